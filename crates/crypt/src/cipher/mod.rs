//! AES-256-XTS over sectors, laid out as dm-crypt's `aes-xts-plain64` lays them out.
//!
//! # The IV of a sector
//! `plain64`: a 64-bit little-endian number in the first 8 bytes of the 16-byte tweak, the rest zero. dm-crypt counts
//! that number in units of 512 bytes whatever the encryption sector size, so with 4096-byte sectors consecutive sectors
//! have the numbers 0, 8, 16, ...; LUKS2 is always so. Only dm-crypt's `iv_large_sectors` flag, which `cryptsetup` offers
//! for plain devices alone (`--iv-large-sectors`), makes them 0, 1, 2, ...; [`IvUnit::Sector`] is that.
//!
//! # The crate behind it
//! `aws-lc-sys`, chosen by speed on one core (Sapphire Rapids, GB/s, in place, IV set for every sector, runs of 32 KiB):
//!
//! | | 512-byte sectors | 4096-byte sectors |
//! |---|---|---|
//! | aws-lc-sys 0.47 | 7.7 | 11.6 |
//! | the same, one sector a call | 4.5 | 10.4 |
//! | OpenSSL 3.0.19 (Debian), same loop through its EVP interface | 2.7 | 5.2 |
//! | `openssl speed -evp aes-256-xts` (no IV change between calls) | 4.6 | 5.8 |
//! | aes 0.9 + xts-mode 0.6 (pure Rust; block by block) | 0.25 | 0.26 |
//!
//! `bench/cipher_compare.py` compares with `openssl speed` in interleaved rounds; sectors of 512 bytes one a call: 0.96 of its speed
//! (95 % bounds 0.94-0.97) for encryption and 0.99 (0.96-1.02) for decryption; in runs of 32 KiB 1.6 and 1.7.
//!
//! It needs a C compiler and nothing else, has assembly for x86-64 (AES-NI, VAES) and aarch64, and wipes what it frees.
//!
//! # What this does not give
//! XTS hides content and nothing more: no integrity (a changed sector decrypts to noise in the changed 16-byte blocks),
//! and someone who sees two states of the disk sees which 16-byte blocks changed.

mod key;
mod speed;
#[cfg(test)]
mod tests;
mod xts;

use std::fmt;
use std::io;

pub use key::{KEY_LEN, Key, KeyError};
pub use speed::{Speed, measure_speed};
use xts::{ContextPool, Direction, LibraryError};

/// The size of an encryption sector: 512 or 4096 bytes, nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum SectorSize {
    /// 512 bytes, dm-crypt's and LUKS1's own.
    B512,
    /// 4096 bytes, as `cryptsetup --sector-size 4096` makes them.
    B4096,
}

impl SectorSize {
    /// In bytes.
    pub const fn bytes(self) -> usize {
        match self {
            SectorSize::B512 => 512,
            SectorSize::B4096 => 4096,
        }
    }

    /// From a number of bytes; `None` unless it is 512 or 4096.
    pub const fn from_bytes(n: u64) -> Option<SectorSize> {
        match n {
            512 => Some(SectorSize::B512),
            4096 => Some(SectorSize::B4096),
            _ => None,
        }
    }
}

/// What the IV number counts; see the [module documentation](self).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum IvUnit {
    /// 512 bytes, dm-crypt's default and LUKS2's only way.
    #[default]
    B512,
    /// Encryption sectors: dm-crypt's `iv_large_sectors`. The same as `B512` where sectors have 512 bytes.
    Sector,
}

/// Why sectors were not encrypted or decrypted.
#[derive(Debug)]
#[non_exhaustive]
pub enum CipherError {
    /// Offset or length is not a multiple of the sector size.
    Unaligned {
        /// Byte offset on the device.
        offset: u64,
        /// Length in bytes.
        len: usize,
        /// The sector size in bytes.
        sector: usize,
    },
    /// The C library refused; with the arguments used here that means it ran out of memory.
    Library,
}

impl fmt::Display for CipherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CipherError::Unaligned {
                offset,
                len,
                sector,
            } => {
                write!(
                    f,
                    "offset {offset} or length {len} is not a multiple of the {sector}-byte sector"
                )
            }
            CipherError::Library => write!(f, "the cipher library refused a call (out of memory)"),
        }
    }
}

impl std::error::Error for CipherError {}

impl From<LibraryError> for CipherError {
    fn from(LibraryError: LibraryError) -> Self {
        CipherError::Library
    }
}

impl From<CipherError> for io::Error {
    fn from(e: CipherError) -> Self {
        let kind = match e {
            CipherError::Unaligned { .. } => io::ErrorKind::InvalidInput,
            CipherError::Library => io::ErrorKind::OutOfMemory,
        };
        io::Error::new(kind, e)
    }
}

/// Encrypts and decrypts runs of sectors in place. Shared freely between threads; calls do not wait for one another beyond
/// a few instructions.
pub struct SectorCipher {
    pool: ContextPool,
    sector: SectorSize,
    iv: IvUnit,
}

impl SectorCipher {
    /// Takes the key over; it is wiped when the cipher is dropped.
    ///
    /// # Errors
    /// [`CipherError::Library`] when the library cannot take the key (out of memory).
    pub fn new(key: Key, sector: SectorSize, iv: IvUnit) -> Result<SectorCipher, CipherError> {
        Ok(SectorCipher {
            pool: ContextPool::new(key)?,
            sector,
            iv,
        })
    }

    /// The sector size.
    pub fn sector_size(&self) -> SectorSize {
        self.sector
    }

    /// Encrypts `data`, which belongs at byte `offset` of the device, in place. Never blocks on I/O; O(length); allocates
    /// only when more threads encrypt at once than ever before.
    ///
    /// # Errors
    /// [`CipherError::Unaligned`] with `data` untouched; [`CipherError::Library`] with `data` in no usable state.
    pub fn encrypt(&self, offset: u64, data: &mut [u8]) -> Result<(), CipherError> {
        self.run(Direction::Encrypt, offset, data)
    }

    /// The inverse of [`encrypt`](Self::encrypt), with the same conditions.
    ///
    /// # Errors
    /// As `encrypt`.
    pub fn decrypt(&self, offset: u64, data: &mut [u8]) -> Result<(), CipherError> {
        self.run(Direction::Decrypt, offset, data)
    }

    fn run(&self, direction: Direction, offset: u64, data: &mut [u8]) -> Result<(), CipherError> {
        let sector = self.sector.bytes();
        // Masks and shifts where the compiler cannot know that all are powers of two: a division takes as long as 64 bytes of cipher.
        let inside = sector - 1;
        if (offset as usize | data.len()) & inside != 0 {
            return Err(CipherError::Unaligned {
                offset,
                len: data.len(),
                sector,
            });
        }
        let unit = match self.iv {
            IvUnit::B512 => 9,
            IvUnit::Sector => sector.trailing_zeros(),
        };
        self.pool.sectors(
            direction,
            data,
            sector,
            offset >> unit,
            (sector as u64) >> unit,
        )?;
        Ok(())
    }
}

impl fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SectorCipher")
            .field("sector", &self.sector)
            .field("iv", &self.iv)
            .finish_non_exhaustive()
    }
}
