//! Key material: 64 bytes, two AES-256 keys, wiped when dropped.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use zeroize::{Zeroize, Zeroizing};

/// Bytes in a key: the data key, then the tweak key, 32 bytes each, as `cryptsetup` stores a 512-bit volume key.
pub const KEY_LEN: usize = 64;

/// An AES-256-XTS key. Its bytes are wiped when it is dropped, and it has no `Clone` and no `Debug` that shows them.
pub struct Key(Box<[u8; KEY_LEN]>);

/// Why a key was not taken.
#[derive(Debug)]
pub enum KeyError {
    /// Not 64 bytes; how many there were (65 stands for "more than 64").
    Length(usize),
    /// Both halves are equal, which makes XTS lose its security; IEEE 1619 and FIPS 140 forbid it.
    EqualHalves,
    /// The key file could not be read or written.
    Io(PathBuf, io::Error),
    /// The operating system gave no random bytes.
    Random(io::Error),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Length(n) if *n > KEY_LEN => write!(
                f,
                "the key has more than {KEY_LEN} bytes; AES-256-XTS takes exactly {KEY_LEN} raw bytes (32 for the data key, then 32 for the tweak key)"
            ),
            KeyError::Length(n) => write!(
                f,
                "the key has {n} bytes; AES-256-XTS takes exactly {KEY_LEN} raw bytes (32 for the data key, then 32 for the tweak key)"
            ),
            KeyError::EqualHalves => {
                write!(
                    f,
                    "both 32-byte halves of the key are equal; XTS needs two different keys"
                )
            }
            KeyError::Io(path, e) => write!(f, "key file {}: {e}", path.display()),
            KeyError::Random(e) => write!(f, "no random bytes for a key: {e}"),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            KeyError::Io(_, e) | KeyError::Random(e) => Some(e),
            _ => None,
        }
    }
}

impl Key {
    /// Takes a key from bytes; the caller's copy is the caller's to wipe.
    ///
    /// # Errors
    /// [`KeyError::Length`] unless there are 64 bytes, [`KeyError::EqualHalves`] if the two halves are equal.
    pub fn from_bytes(bytes: &[u8]) -> Result<Key, KeyError> {
        if bytes.len() != KEY_LEN {
            return Err(KeyError::Length(bytes.len()));
        }
        let mut key = Key(Box::new([0; KEY_LEN]));
        key.0.copy_from_slice(bytes);
        let (data, tweak) = key.0.split_at(KEY_LEN / 2);
        if data == tweak {
            return Err(KeyError::EqualHalves);
        }
        Ok(key)
    }

    /// Reads a key file: 64 raw bytes and nothing else (no newline, no hexadecimal). May be a pipe. Blocks on the file.
    ///
    /// # Errors
    /// As [`Key::from_bytes`], or [`KeyError::Io`].
    pub fn from_file(path: &Path) -> Result<Key, KeyError> {
        // One byte of room more than a key, so that a longer file is noticed without reading all of it.
        let mut buf = Zeroizing::new([0u8; KEY_LEN + 1]);
        let mut file = File::open(path).map_err(|e| KeyError::Io(path.into(), e))?;
        let mut n = 0;
        while n < buf.len() {
            match file.read(&mut buf[n..]) {
                Ok(0) => break,
                Ok(k) => n += k,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(KeyError::Io(path.into(), e)),
            }
        }
        Key::from_bytes(&buf[..n])
    }

    /// A new key from the operating system's random source. May block early in boot, until that source is seeded.
    ///
    /// # Errors
    /// [`KeyError::Random`] when the source fails.
    pub fn generate() -> Result<Key, KeyError> {
        let mut key = Key(Box::new([0; KEY_LEN]));
        loop {
            let mut n = 0;
            while n < KEY_LEN {
                let got =
                    rustix::rand::getrandom(&mut key.0[n..], rustix::rand::GetRandomFlags::empty());
                match got {
                    Ok(k) => n += k,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(KeyError::Random(e.into())),
                }
            }
            // Chance 2^-256; costs nothing to exclude.
            if key.0[..KEY_LEN / 2] != key.0[KEY_LEN / 2..] {
                return Ok(key);
            }
        }
    }

    /// Writes the key to a new file that only its owner can read, and syncs it. Blocks on the disk.
    ///
    /// # Errors
    /// [`KeyError::Io`], also when the file exists: overwriting a key loses data, so it is never done here.
    pub fn write_new_file(&self, path: &Path) -> Result<(), KeyError> {
        let io = |e| KeyError::Io(path.into(), e);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(io)?;
        let written = file.write_all(&self.0[..]).and_then(|()| file.sync_all());
        if let Err(e) = written {
            // A half-written key is of no use and would refuse the next attempt; the first error is the one to tell.
            let _ = std::fs::remove_file(path);
            return Err(io(e));
        }
        Ok(())
    }

    /// The 64 bytes: data key, then tweak key. Copies are the caller's to wipe.
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn wrong_lengths_say_what_was_expected() {
        for n in [0, 1, 32, 63, 65, 128] {
            let e = Key::from_bytes(&vec![1; n]).unwrap_err();
            assert!(matches!(e, KeyError::Length(m) if m == n));
            assert!(e.to_string().contains("exactly 64 raw bytes"), "{e}");
        }
    }

    #[test]
    fn equal_halves_are_refused() {
        assert!(matches!(
            Key::from_bytes(&[9; 64]),
            Err(KeyError::EqualHalves)
        ));
    }

    #[test]
    fn key_file_round_trip_and_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = Key::generate().unwrap();
        key.write_new_file(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(Key::from_file(&path).unwrap().as_bytes(), key.as_bytes());
        assert!(
            matches!(key.write_new_file(&path), Err(KeyError::Io(..))),
            "an existing key is never overwritten"
        );
        assert_eq!(Key::from_file(&path).unwrap().as_bytes(), key.as_bytes());
        std::fs::write(&path, [1u8; 10_000]).unwrap();
        assert!(
            Key::from_file(&path)
                .unwrap_err()
                .to_string()
                .contains("more than 64 bytes")
        );
    }

    #[test]
    fn debug_shows_no_key_bytes() {
        assert_eq!(format!("{:?}", Key::generate().unwrap()), "Key(..)");
    }
}
