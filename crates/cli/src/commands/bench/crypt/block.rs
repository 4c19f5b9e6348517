//! What issuers write and how they know it again: a block says which it is, how often it was written, and has its own SHA-512.

use std::fmt;

use cmwq_crypt::digest::{SHA512_LEN, sha512};

/// Job, block and version, 8 bytes each.
const HEAD: usize = 24;

/// Which block of which job, as of which write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) job: u64,
    pub(crate) index: u64,
    pub(crate) version: u64,
}

/// A block that is not what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mismatch {
    /// Its bytes are not those that were digested.
    Digest(Stamp),
    /// It is intact, but another one or an older one.
    Stamp { expected: Stamp, found: Stamp },
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "block {} of job {}, write {}",
            self.index, self.job, self.version
        )
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Digest(stamp) => {
                write!(f, "read back wrong bytes for {stamp}: SHA-512 differs")
            }
            Mismatch::Stamp { expected, found } => {
                write!(f, "read back {found} in place of {expected}")
            }
        }
    }
}

impl std::error::Error for Mismatch {}

/// A fast source of bytes that do not compress and are not the same twice (xorshift64*, Vigna 2016). Not for secrets.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `n`, which is at least 1.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

/// Makes the content of a block. `buf` has room for the stamp and the digest: 512 bytes at least here.
pub(crate) fn fill(buf: &mut [u8], stamp: Stamp, random: &mut Random) {
    let body = buf.len() - SHA512_LEN;
    for chunk in buf[HEAD..body].chunks_mut(8) {
        let bytes = random.next().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    for (n, value) in [stamp.job, stamp.index, stamp.version]
        .into_iter()
        .enumerate()
    {
        buf[n * 8..n * 8 + 8].copy_from_slice(&value.to_le_bytes());
    }
    let digest = sha512(&buf[..body]);
    buf[body..].copy_from_slice(&digest);
}

/// Checks what was read.
pub(crate) fn check(buf: &[u8], expected: Stamp) -> Result<(), Mismatch> {
    let body = buf.len() - SHA512_LEN;
    if sha512(&buf[..body]) != buf[body..] {
        return Err(Mismatch::Digest(expected));
    }
    let field = |n: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&buf[n * 8..n * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    let found = Stamp {
        job: field(0),
        index: field(1),
        version: field(2),
    };
    match found == expected {
        true => Ok(()),
        false => Err(Mismatch::Stamp { expected, found }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_other_block_is_noticed() {
        let stamp = Stamp {
            job: 1,
            index: 2,
            version: 3,
        };
        let mut random = Random::new(5);
        let mut buf = vec![0; 512];
        fill(&mut buf, stamp, &mut random);
        assert_eq!(check(&buf, stamp), Ok(()));
        for bit in 0..512 * 8 {
            buf[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                check(&buf, stamp),
                Err(Mismatch::Digest(stamp)),
                "bit {bit}"
            );
            buf[bit / 8] ^= 1 << (bit % 8);
        }
        for other in [
            Stamp { job: 0, ..stamp },
            Stamp { index: 3, ..stamp },
            Stamp {
                version: 2,
                ..stamp
            },
        ] {
            assert!(matches!(
                check(&buf, other),
                Err(Mismatch::Stamp { found, .. }) if found == stamp
            ));
        }
    }

    #[test]
    fn two_writes_of_a_block_differ() {
        let mut random = Random::new(5);
        let stamp = Stamp {
            job: 0,
            index: 0,
            version: 1,
        };
        let (mut a, mut b) = (vec![0; 4096], vec![0; 4096]);
        fill(&mut a, stamp, &mut random);
        fill(&mut b, stamp, &mut random);
        assert_ne!(a, b);
    }
}
