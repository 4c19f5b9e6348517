//! Who is at the other end of a Unix socket.
//!
//! Not through `rustix`: its type for a process id cannot be 0, which is what the kernel reports for a peer in a pid namespace
//! that we cannot see into (containers that share a run-time directory).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

/// Peer credentials: those of the process that connected, or that called `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `None` if it is in a pid namespace that we do not see into.
    pub(crate) pid: Option<u32>,
    pub(crate) uid: u32,
}

pub(crate) fn of(socket: impl AsFd) -> io::Result<Peer> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call; `cred` and `length` are valid for writes, and `length` is the size
    // of `cred`, beyond which the kernel does not write.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != mem::size_of::<libc::ucred>() {
        return Err(io::Error::other("peer credentials of an unknown form"));
    }
    Ok(Peer {
        pid: u32::try_from(cred.pid).ok().filter(|&pid| pid != 0),
        uid: cred.uid,
    })
}

/// Whether a user's connections are taken: this user, and root.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    #[test]
    fn we_are_our_own_peer() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = super::of(&a).unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert!(super::is_trusted(peer.uid));
        assert!(super::is_trusted(0) && !super::is_trusted(peer.uid ^ 0x5555));
    }
}
