//! Where control sockets live and what they are called. Shared by server and client.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The environment variable that names the directory of control sockets; looked at before `XDG_RUNTIME_DIR`.
pub const DIR_VARIABLE: &str = "CMWQ_CONTROL_DIR";

/// Why there is no usable directory of control sockets.
#[derive(Debug)]
pub enum PlaceError {
    /// No run-time directory is known. There is no fallback to a directory that is shared with other users.
    NoRuntimeDir,
    /// A path that must be absolute is not.
    NotAbsolute(PathBuf),
    /// The directory belongs to somebody else or is open to others.
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A system call failed.
    Io {
        /// What was tried.
        what: String,
        /// The error.
        error: io::Error,
    },
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaceError::NoRuntimeDir => write!(
                f,
                "no run-time directory: XDG_RUNTIME_DIR is not set; name a directory of your own (0700) \
                 with {DIR_VARIABLE} or as an argument"
            ),
            PlaceError::NotAbsolute(path) => {
                write!(f, "{}: an absolute path is needed", path.display())
            }
            PlaceError::Unsafe { path, why } => write!(f, "{}: not used, {why}", path.display()),
            PlaceError::Io { what, error } => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for PlaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PlaceError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A directory of control sockets, open and verified: owned by this user, closed to everybody else.
#[derive(Debug)]
pub(crate) struct Place {
    fd: OwnedFd,
    path: PathBuf,
}

impl Place {
    /// Opens the directory: `explicit`, else what [`DIR_VARIABLE`] names, else `cmwq` under `XDG_RUNTIME_DIR`. With
    /// `create`, its last component is made if missing; without, a missing directory is `Ok(None)`.
    pub(crate) fn open(explicit: Option<&Path>, create: bool) -> Result<Option<Place>, PlaceError> {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let path = match explicit
            .map(Path::to_owned)
            .or_else(|| variable(DIR_VARIABLE))
        {
            Some(path) => path,
            None => {
                let base = variable("XDG_RUNTIME_DIR").ok_or(PlaceError::NoRuntimeDir)?;
                absolute(&base)?;
                let fd = open_dir(&base).map_err(|e| io_error("open", &base, e))?;
                verify(&fd, &base, 0o022)?;
                base.join("cmwq")
            }
        };
        absolute(&path)?;
        let opened = match open_dir(&path) {
            Err(Errno::NOENT) if create => {
                match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(io_error("make", &path, e)),
                }
                open_dir(&path)
            }
            Err(Errno::NOENT) => return Ok(None),
            other => other,
        };
        let fd = opened.map_err(|e| match e {
            Errno::LOOP | Errno::NOTDIR => PlaceError::Unsafe {
                path: path.clone(),
                why: "it is not a directory (or a symbolic link)".into(),
            },
            e => io_error("open", &path, e),
        })?;
        // Root may look at the processes of others, in directories that only their owner can write.
        if create || !rustix::process::geteuid().is_root() {
            verify(&fd, &path, 0o077)?;
        }
        Ok(Some(Place { fd, path }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The address of an entry, through the verified descriptor (this also lifts the length limit of socket paths); by path
    /// where `/proc` is not mounted.
    pub(crate) fn address(&self, name: &str) -> io::Result<SocketAddrUnix> {
        let through = PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()));
        let base = if through.exists() {
            through
        } else {
            self.path.clone()
        };
        Ok(SocketAddrUnix::new(base.join(name))?)
    }

    #[cfg(feature = "server")]
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.fd,
            name,
            rustix::fs::AtFlags::empty(),
        )?)
    }

    /// Whether the entry is a socket of this user.
    pub(crate) fn is_own_socket(&self, name: &str) -> bool {
        rustix::fs::statat(&self.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok_and(
            |stat| {
                FileType::from_raw_mode(stat.st_mode) == FileType::Socket
                    && stat.st_uid == rustix::process::geteuid().as_raw()
            },
        )
    }

    #[cfg(feature = "server")]
    /// Seconds since the entry was last changed.
    fn age_seconds(&self, name: &str) -> Option<u64> {
        let stat =
            rustix::fs::statat(&self.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()?
            .as_secs();
        now.checked_sub(u64::try_from(stat.st_ctime).ok()?)
    }

    /// The names of control sockets in the directory, and of half-made ones, sorted.
    pub(crate) fn entries(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok(name) if SocketName::parse(name).is_some() || name.starts_with(NEW_PREFIX) => {
                    names.push(name.to_owned());
                }
                _ => {}
            }
        }
        names.sort();
        Ok(names)
    }

    #[cfg(feature = "server")]
    /// Removes sockets on which nobody listens any more. Names are never used twice, so what is refused once is gone for
    /// good; half-made ones get a minute. Errors on single entries are left to the next cleaning.
    pub(crate) fn clean(&self) -> io::Result<usize> {
        let mut removed = 0;
        for name in self.entries()? {
            if name.starts_with(NEW_PREFIX) && self.age_seconds(&name).is_none_or(|age| age < 60) {
                continue;
            }
            let dead = matches!(self.connect(&name), Err(e) if e.kind() == io::ErrorKind::ConnectionRefused);
            if dead && self.is_own_socket(&name) && self.remove(&name).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Connects to an entry without waiting.
    pub(crate) fn connect(&self, name: &str) -> io::Result<OwnedFd> {
        connect(&self.address(name)?)
    }
}

/// Connects without waiting: [`io::ErrorKind::WouldBlock`] if too many wait to be let in.
pub(crate) fn connect(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let socket = stream_socket(SocketFlags::NONBLOCK)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// A close-on-exec stream socket.
pub(crate) fn stream_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags | SocketFlags::CLOEXEC,
        None,
    )?)
}

fn absolute(path: &Path) -> Result<(), PlaceError> {
    if path.is_absolute() {
        Ok(())
    } else {
        Err(PlaceError::NotAbsolute(path.to_owned()))
    }
}

fn io_error(verb: &str, path: &Path, error: Errno) -> PlaceError {
    PlaceError::Io {
        what: format!("cannot {verb} {}", path.display()),
        error: error.into(),
    }
}

fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Verifies through the descriptor that the directory is ours and has none of the `forbidden` mode bits.
fn verify(fd: &impl AsFd, path: &Path, forbidden: u32) -> Result<(), PlaceError> {
    let stat = rustix::fs::fstat(fd).map_err(|e| io_error("look at", path, e))?;
    let own = rustix::process::geteuid().as_raw();
    let mode = stat.st_mode & 0o7777;
    let why = if stat.st_uid != own {
        format!("it belongs to user {} and not to user {own}", stat.st_uid)
    } else if mode & forbidden != 0 {
        format!("its mode is {mode:04o}, open to others (chmod 0700)")
    } else {
        return Ok(());
    };
    Err(PlaceError::Unsafe {
        path: path.to_owned(),
        why,
    })
}

/// Half-made sockets: bound but not yet listened on.
pub(crate) const NEW_PREFIX: &str = ".new-";

/// The name of a control socket: pid and start time name the process, the random part keeps processes of different pid
/// namespaces that share the directory apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketName {
    pub(crate) pid: u32,
    pub(crate) start_ticks: u64,
    pub(crate) random: u64,
}

impl SocketName {
    #[cfg(feature = "server")]
    pub(crate) fn for_this_process() -> io::Result<SocketName> {
        let mut bytes = [0_u8; 8];
        let got = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())?;
        if got != bytes.len() {
            return Err(io::Error::other("too little randomness"));
        }
        let pid = std::process::id();
        Ok(SocketName {
            pid,
            start_ticks: start_ticks(pid).unwrap_or(0),
            random: u64::from_ne_bytes(bytes),
        })
    }

    pub(crate) fn file_name(&self) -> String {
        format!(
            "{}-{}-{:016x}.sock",
            self.pid, self.start_ticks, self.random
        )
    }

    pub(crate) fn parse(name: &str) -> Option<SocketName> {
        let mut parts = name.strip_suffix(".sock")?.split('-');
        let parsed = SocketName {
            pid: parts.next()?.parse().ok()?,
            start_ticks: parts.next()?.parse().ok()?,
            random: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        // Only what we would have written ourselves.
        (parts.next().is_none() && parsed.file_name() == name).then_some(parsed)
    }
}

/// When a process started, in clock ticks since boot: field 22 of its `stat`, counted after the last `)`.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    use std::io::Read as _;
    let mut text = String::new();
    File::open(format!("/proc/{pid}/stat"))
        .ok()?
        .take(4096)
        .read_to_string(&mut text)
        .ok()?;
    text.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_not_ours() {
        let name = SocketName::for_this_process().unwrap();
        assert_eq!(SocketName::parse(&name.file_name()), Some(name.clone()));
        assert!(name.start_ticks > 0);
        for other in [
            "x.sock",
            "1-2.sock",
            "1-2-3.sock",
            "+1-2-0000000000000003.sock",
            "1-2-0000000000000003-4.sock",
            "",
        ] {
            assert_eq!(SocketName::parse(other), None, "{other}");
        }
        assert!(SocketName::parse("1-2-0000000000000003.sock").is_some());
    }

    #[test]
    fn our_start_time_is_read() {
        assert!(start_ticks(std::process::id()).unwrap() > 0);
        assert_eq!(start_ticks(u32::MAX), None);
    }
}
