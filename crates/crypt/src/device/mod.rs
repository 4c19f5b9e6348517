//! Where the bytes lie: files, block devices and memory, all with positional I/O, and the encrypted [`Volume`] on top.

mod file;
mod stripe;
#[cfg(test)]
mod tests;
mod volume;

use std::io;

use crate::cipher::SectorSize;

pub use file::{FileDevice, FileOptions, OpenError};
pub use volume::Volume;

/// A fixed number of bytes with positional I/O. Calls may come from many threads at once and may block on the disk.
///
/// # What holds, as on a disk with a volatile write cache
/// * A read that begins after a write returned sees that write.
/// * A write that returned is on stable storage once a [`flush`](Device::flush) that began afterwards returned `Ok`, or at
///   once if it asked for that.
/// * Nothing is promised about overlapping calls that run at the same time; [`Volume`] adds whole 4096-byte blocks.
pub trait Device: Send + Sync + 'static {
    /// Bytes; never changes.
    fn size(&self) -> u64;

    /// Whether all changes are refused.
    fn read_only(&self) -> bool;

    /// Fills `buf` from byte `offset`.
    ///
    /// # Errors
    /// The system's; `UnexpectedEof` when the file became shorter behind our back.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// As [`read_at`](Device::read_at) if that needs no wait for the disk; else false, and `buf` holds anything. A device that cannot
    /// tell always says false.
    ///
    /// # Errors
    /// As `read_at`.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        let _ = (offset, buf);
        Ok(false)
    }

    /// Writes all of `buf` at byte `offset`; with `durable`, on stable storage before it returns.
    ///
    /// # Errors
    /// The system's. Any part of the range may have been written then.
    fn write_at(&self, offset: u64, buf: &[u8], durable: bool) -> io::Result<()>;

    /// Puts all writes that returned before on stable storage.
    ///
    /// # Errors
    /// The system's. After one failure every later flush fails too: the system forgets which writes it lost, so no later
    /// success could be believed.
    fn flush(&self) -> io::Result<()>;

    /// Gives the space of the range back where the storage can. Afterwards the range reads as zeroes or as before.
    ///
    /// # Errors
    /// The system's, but not that trimming is unsupported: then nothing happens.
    fn trim(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes the range read as zeroes; with `keep_space`, with its space allocated.
    ///
    /// # Errors
    /// The system's.
    fn write_zeroes(&self, offset: u64, len: u64, keep_space: bool) -> io::Result<()>;
}
