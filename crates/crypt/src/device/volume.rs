//! A device with the cipher on top, or without one.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::stripe::{MAX_LEN, Stripes};
use super::{Device, SectorSize};
use crate::cipher::SectorCipher;

/// An encrypted device, or a plain one for comparison: what is served.
///
/// # As a disk
/// * Offsets and lengths are multiples of [`block_size`](Self::block_size), or the call is refused.
/// * Of overlapping calls that run at once, each aligned 4096-byte block shows one or the other whole, never a mixture;
///   which one, and in which order over several blocks, is open.
/// * Durability is [`Device`]'s: what was flushed is there.
///
/// # After a trim
/// The storage reads as zeroes where it made holes, and zeroes decrypt to noise: a trimmed range of an encrypted volume
/// reads as bytes that look random, stable until written; only [`write_zeroes`](Self::write_zeroes) makes it read as zeroes.
/// (dm-crypt with `allow_discards` is the same.) Trimming also shows whoever sees the storage which ranges are unused.
pub struct Volume {
    device: Arc<dyn Device>,
    cipher: Option<SectorCipher>,
    block: SectorSize,
    size: u64,
    stripes: Stripes,
}

impl Volume {
    /// An encrypted volume. A tail of the device shorter than a sector is left out, as dm-crypt does.
    pub fn encrypted(device: Arc<dyn Device>, cipher: SectorCipher) -> Volume {
        let block = cipher.sector_size();
        Volume::new(device, Some(cipher), block)
    }

    /// A volume without encryption, with the same rules: for comparison.
    pub fn plain(device: Arc<dyn Device>, block: SectorSize) -> Volume {
        Volume::new(device, None, block)
    }

    fn new(device: Arc<dyn Device>, cipher: Option<SectorCipher>, block: SectorSize) -> Volume {
        let size = device.size() / block.bytes() as u64 * block.bytes() as u64;
        Volume {
            device,
            cipher,
            block,
            size,
            stripes: Stripes::new(),
        }
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What offsets and lengths are multiples of.
    pub fn block_size(&self) -> SectorSize {
        self.block
    }

    /// Whether changes are refused.
    pub fn read_only(&self) -> bool {
        self.device.read_only()
    }

    /// Whether there is a cipher.
    pub fn is_encrypted(&self) -> bool {
        self.cipher.is_some()
    }

    fn check(&self, offset: u64, len: u64, change: bool) -> io::Result<()> {
        if change && self.read_only() {
            return Err(io::Error::new(
                io::ErrorKind::ReadOnlyFilesystem,
                "the volume is read-only",
            ));
        }
        let block = self.block.bytes() as u64;
        let end = offset.checked_add(len);
        if !offset.is_multiple_of(block)
            || !len.is_multiple_of(block)
            || end.is_none_or(|e| e > self.size)
        {
            let text = format!(
                "{len} bytes at {offset}: not whole {block}-byte blocks within {} bytes",
                self.size
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }

    /// Runs `f` over the range in pieces that the stripes can lock.
    fn pieces(
        offset: u64,
        len: u64,
        mut f: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let n = (len - done).min(MAX_LEN);
            f(offset + done, n)?;
            done += n;
        }
        Ok(())
    }

    /// Fills `buf` with the plaintext at byte `offset`. May block on the disk. O(length).
    ///
    /// # Errors
    /// `InvalidInput` for a range that is not whole blocks inside the volume; the device's; the cipher's. `buf` is in no
    /// usable state then.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64, false)?;
        Self::pieces(offset, buf.len() as u64, |at, n| {
            let _held = self.stripes.read(at, n);
            let from = (at - offset) as usize;
            self.device.read_at(at, &mut buf[from..from + n as usize])
        })?;
        match &self.cipher {
            Some(cipher) => Ok(cipher.decrypt(offset, buf)?),
            None => Ok(()),
        }
    }

    /// As [`read`](Self::read) if that needs to wait neither for the disk nor for a write to the same blocks; else false, and
    /// `buf` holds anything.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        self.check(offset, buf.len() as u64, false)?;
        let mut cached = true;
        Self::pieces(offset, buf.len() as u64, |at, n| {
            let from = (at - offset) as usize;
            if cached {
                cached = match self.stripes.try_read(at, n) {
                    Some(_held) => self
                        .device
                        .read_cached(at, &mut buf[from..from + n as usize])?,
                    None => false,
                };
            }
            Ok(())
        })?;
        if cached && let Some(cipher) = &self.cipher {
            cipher.decrypt(offset, buf)?;
        }
        Ok(cached)
    }

    /// Writes `buf`, plaintext, at byte `offset`; with `durable`, on stable storage before it returns. `buf` holds ciphertext
    /// afterwards: it is encrypted in place, to save a copy. May block on the disk. O(length).
    ///
    /// # Errors
    /// As [`read`](Self::read), and `ReadOnlyFilesystem`. After a device error any part of the range may have been written.
    pub fn write(&self, offset: u64, buf: &mut [u8], durable: bool) -> io::Result<()> {
        self.check(offset, buf.len() as u64, true)?;
        if let Some(cipher) = &self.cipher {
            cipher.encrypt(offset, buf)?;
        }
        Self::pieces(offset, buf.len() as u64, |at, n| {
            let _held = self.stripes.write(at, n);
            let from = (at - offset) as usize;
            self.device
                .write_at(at, &buf[from..from + n as usize], durable)
        })
    }

    /// Makes the range read as zeroes; with `keep_space`, with its space allocated. An encrypted volume writes encrypted
    /// zeroes through `scratch` (any content, at least a block long), as no storage can make those by itself.
    ///
    /// # Errors
    /// As [`write`](Self::write); `InvalidInput` if `scratch` is shorter than a block and there is a cipher.
    pub fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        keep_space: bool,
        scratch: &mut [u8],
    ) -> io::Result<()> {
        self.check(offset, len, true)?;
        let Some(cipher) = &self.cipher else {
            return Self::pieces(offset, len, |at, n| {
                let _held = self.stripes.write(at, n);
                self.device.write_zeroes(at, n, keep_space)
            });
        };
        let block = self.block.bytes();
        let room = scratch.len() / block * block;
        if room == 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "scratch is shorter than a block",
            ));
        }
        let mut done = 0;
        while done < len {
            let n = (len - done).min(room as u64).min(MAX_LEN);
            let (at, piece) = (offset + done, &mut scratch[..n as usize]);
            piece.fill(0);
            cipher.encrypt(at, piece)?;
            let _held = self.stripes.write(at, n);
            self.device.write_at(at, piece, false)?;
            done += n;
        }
        Ok(())
    }

    /// Gives the space of the range back; what it reads as afterwards: see the [type](Self). May block on the disk.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len, true)?;
        Self::pieces(offset, len, |at, n| {
            let _held = self.stripes.write(at, n);
            self.device.trim(at, n)
        })
    }

    /// Puts all writes that returned before on stable storage. Blocks on the disk.
    ///
    /// # Errors
    /// The device's; after one failure, always. Nothing to do on a read-only volume.
    pub fn flush(&self) -> io::Result<()> {
        if self.read_only() {
            Ok(())
        } else {
            self.device.flush()
        }
    }
}

impl fmt::Debug for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Volume")
            .field("size", &self.size)
            .field("cipher", &self.cipher)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}
