//! Files, block devices and memory (an anonymous file), through the same system calls.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, MemfdFlags, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::Device;

/// How [`FileDevice::open`] opens.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileOptions {
    /// Refuse all changes.
    pub read_only: bool,
    /// For files: make the file, sparse, with this many bytes if it does not exist, or lengthen a shorter one. A longer one
    /// is refused. `None`: the file must exist, with any size.
    pub size: Option<u64>,
}

/// Why a file was not opened. Names the file.
#[derive(Debug)]
pub struct OpenError {
    path: PathBuf,
    what: What,
}

#[derive(Debug)]
enum What {
    Io(io::Error),
    InUse,
    Kind,
    Longer { is: u64, wanted: u64 },
    Shorter { is: u64, wanted: u64 },
    SizeOfBlockDevice,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.what {
            What::Io(e) => write!(f, "{e}"),
            What::InUse => write!(f, "in use by another process (locked)"),
            What::Kind => write!(f, "neither a file nor a block device"),
            What::Longer { is, wanted } => {
                write!(
                    f,
                    "has {is} bytes, more than the {wanted} asked for; it is not shortened"
                )
            }
            What::Shorter { is, wanted } => {
                write!(
                    f,
                    "has {is} bytes, less than the {wanted} asked for, and is opened read-only"
                )
            }
            What::SizeOfBlockDevice => write!(f, "is a block device, which has the size it has"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.what {
            What::Io(e) => Some(e),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    File,
    Block,
    Memory,
}

/// A [`Device`] on a file, a block device or memory.
///
/// I/O goes through the page cache, so a write that returned survives the death of this process, and after a flush it
/// survives a loss of power. While open, a file carries an advisory lock (`flock`): exclusive, or shared when read-only; a
/// block device is opened exclusively, which the system refuses while it is mounted.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    size: u64,
    kind: Kind,
    read_only: bool,
    flush_failed: AtomicBool,
}

impl FileDevice {
    /// Opens a file or block device. Blocks on the disk.
    ///
    /// # Errors
    /// [`OpenError`]: it cannot be opened, is in use, is neither file nor block device, or has another size than asked for.
    pub fn open(path: &Path, options: FileOptions) -> Result<FileDevice, OpenError> {
        Self::open_inner(path, options).map_err(|what| OpenError {
            path: path.into(),
            what,
        })
    }

    fn open_inner(path: &Path, options: FileOptions) -> Result<FileDevice, What> {
        let mut open = OpenOptions::new();
        open.read(true).write(!options.read_only);
        // O_EXCL without O_CREAT has a meaning for block devices alone, and the kind is known only by looking first.
        let is_block = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        if is_block {
            open.custom_flags(OFlags::EXCL.bits() as i32);
        }
        let (mut file, created) = match open.open(path) {
            Ok(file) => (file, false),
            Err(e)
                if e.kind() == io::ErrorKind::NotFound
                    && options.size.is_some()
                    && !options.read_only =>
            {
                (
                    open.create_new(true)
                        .mode(0o600)
                        .open(path)
                        .map_err(What::Io)?,
                    true,
                )
            }
            Err(e) => return Err(What::Io(e)),
        };
        let kind = {
            let t = file.metadata().map_err(What::Io)?.file_type();
            match (t.is_file(), t.is_block_device()) {
                (true, _) => Kind::File,
                (_, true) => Kind::Block,
                _ => return Err(What::Kind),
            }
        };
        let lock = match options.read_only {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&file, lock) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(What::InUse),
            // Some network file systems have no locks; serving from them is no error.
            Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => {}
            Err(e) => return Err(What::Io(e.into())),
        }
        let mut size = file.seek(SeekFrom::End(0)).map_err(What::Io)?;
        if let Some(wanted) = options.size {
            if kind == Kind::Block {
                return Err(What::SizeOfBlockDevice);
            }
            if size > wanted {
                return Err(What::Longer { is: size, wanted });
            }
            if size < wanted {
                if options.read_only {
                    return Err(What::Shorter { is: size, wanted });
                }
                let grown = file.set_len(wanted).and_then(|()| file.sync_all());
                if let Err(e) = grown {
                    if created {
                        // An empty leftover would have the wrong size next time; the first error is the one to tell.
                        let _ = std::fs::remove_file(path);
                    }
                    return Err(What::Io(e));
                }
                size = wanted;
            }
        }
        if created {
            sync_parent(path).map_err(What::Io)?;
        }
        Ok(FileDevice {
            file,
            size,
            kind,
            read_only: options.read_only,
            flush_failed: AtomicBool::new(false),
        })
    }

    /// `size` bytes of memory, zero at first; takes memory only where something was written, and is gone when dropped.
    ///
    /// # Errors
    /// The system's, when it has no anonymous files or the size is beyond what it can have.
    pub fn memory(size: u64) -> io::Result<FileDevice> {
        let fd = rustix::fs::memfd_create("cmwq-crypt", MemfdFlags::CLOEXEC)?;
        let file = File::from(fd);
        file.set_len(size)?;
        Ok(FileDevice {
            file,
            size,
            kind: Kind::Memory,
            read_only: false,
            flush_failed: AtomicBool::new(false),
        })
    }

    fn failed_before() -> io::Error {
        io::Error::other("an earlier flush failed, so writes may be lost")
    }

    /// Writes zero bytes where the file system has no call for it.
    fn write_zero_bytes(&self, mut offset: u64, mut len: u64) -> io::Result<()> {
        static ZEROES: [u8; 65_536] = [0; 65_536];
        while len > 0 {
            let n = len.min(ZEROES.len() as u64);
            self.file.write_all_at(&ZEROES[..n as usize], offset)?;
            offset += n;
            len -= n;
        }
        Ok(())
    }

    fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        loop {
            match rustix::fs::fallocate(&self.file, mode, offset, len) {
                Err(Errno::INTR) => {}
                other => return other,
            }
        }
    }
}

/// A new name is on stable storage only after its folder is synced.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        if self.kind == Kind::Memory {
            return self.read_at(offset, buf).map(|()| true);
        }
        let wanted = buf.len();
        let slices = &mut [IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.file, slices, offset, ReadWriteFlags::NOWAIT) {
            // Where only the first part is in memory the system returns that.
            Ok(n) => Ok(n == wanted),
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8], durable: bool) -> io::Result<()> {
        if !durable || self.kind == Kind::Memory {
            return self.file.write_all_at(buf, offset);
        }
        // Ordering: none needed; the flag only ever goes from false to true, and whoever sees it late flushed earlier.
        if self.flush_failed.load(Ordering::Relaxed) {
            return Err(Self::failed_before());
        }
        let mut done = 0;
        while done < buf.len() {
            let slices = [IoSlice::new(&buf[done..])];
            match rustix::io::pwritev2(
                &self.file,
                &slices,
                offset + done as u64,
                ReadWriteFlags::DSYNC,
            ) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                // File systems and kernels without the flag: the long way round.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.file.write_all_at(&buf[done..], offset + done as u64)?;
                    return self.flush();
                }
                Err(e) => {
                    // The data may be in the page cache and lost at write-back without another word.
                    if e == Errno::IO {
                        self.flush_failed.store(true, Ordering::Relaxed);
                    }
                    return Err(e.into());
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if self.kind == Kind::Memory {
            return Ok(());
        }
        if self.flush_failed.load(Ordering::Relaxed) {
            return Err(Self::failed_before());
        }
        self.file
            .sync_data()
            .inspect_err(|_| self.flush_failed.store(true, Ordering::Relaxed))
    }

    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        match self.allocate(
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            len,
        ) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep_space: bool) -> io::Result<()> {
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mode = if keep_space {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        } else {
            holes
        };
        match self.allocate(mode, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.write_zero_bytes(offset, len)
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// A device on any descriptor, to see system calls fail.
#[cfg(test)]
pub(super) fn tests_support(file: File) -> FileDevice {
    FileDevice {
        file,
        size: 4096,
        kind: Kind::File,
        read_only: false,
        flush_failed: AtomicBool::new(false),
    }
}
