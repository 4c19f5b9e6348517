//! AES-256-XTS contexts of the C library, and a pool of them.
//!
//! A context holds two expanded keys and the current tweak, so it serves one caller at a time. Expanding keys takes
//! longer than encrypting a sector, so contexts are kept and lent out. The library wipes a context when it is freed.

use std::ffi::c_int;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Mutex;

use aws_lc_sys as lc;
use crossbeam_utils::CachePadded;

use super::key::Key;

/// Which way a context works; the key schedules differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Ciphertext to plaintext.
    Decrypt = 0,
    /// Plaintext to ciphertext.
    Encrypt = 1,
}

/// The C library refused a call. With checked arguments that means it ran out of memory.
#[derive(Debug)]
pub(crate) struct LibraryError;

/// One keyed context for one direction.
struct Context {
    raw: NonNull<lc::EVP_CIPHER_CTX>,
    direction: Direction,
}

// SAFETY: an EVP_CIPHER_CTX is plain heap memory without thread affinity; it is used through `&mut` alone.
unsafe impl Send for Context {}

impl Context {
    fn new(key: &Key, direction: Direction) -> Result<Context, LibraryError> {
        // SAFETY: no arguments; the result is checked for null.
        let raw = NonNull::new(unsafe { lc::EVP_CIPHER_CTX_new() }).ok_or(LibraryError)?;
        let context = Context { raw, direction };
        // SAFETY: `raw` is a live context that `context` owns; the cipher is a static of the library; the key has the 64
        // bytes which AES-256-XTS reads; no IV is given yet.
        let ok = unsafe {
            lc::EVP_CipherInit_ex(
                raw.as_ptr(),
                lc::EVP_aes_256_xts(),
                null_mut(),
                key.as_bytes().as_ptr(),
                null(),
                direction as c_int,
            )
        };
        if ok == 1 {
            Ok(context)
        } else {
            Err(LibraryError)
        }
    }

    /// Works on one sector in place.
    fn sector(&mut self, tweak: &[u8; 16], sector: &mut [u8]) -> Result<(), LibraryError> {
        let len = c_int::try_from(sector.len()).map_err(|_| LibraryError)?;
        // SAFETY: the context is live and keyed for this direction; the IV is the 16 bytes which XTS reads; cipher and
        // key stay as they are when null.
        let ok = unsafe {
            lc::EVP_CipherInit_ex(
                self.raw.as_ptr(),
                null(),
                null_mut(),
                null(),
                tweak.as_ptr(),
                self.direction as c_int,
            )
        };
        if ok != 1 {
            return Err(LibraryError);
        }
        let mut written: c_int = 0;
        let data = sector.as_mut_ptr();
        // SAFETY: input and output are the same `len` writable bytes, which the library allows; XTS writes as many bytes
        // as it reads.
        let ok = unsafe { lc::EVP_CipherUpdate(self.raw.as_ptr(), data, &mut written, data, len) };
        if ok == 1 && written == len {
            Ok(())
        } else {
            Err(LibraryError)
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is owned here and not used afterwards. The library wipes what it frees.
        unsafe { lc::EVP_CIPHER_CTX_free(self.raw.as_ptr()) };
    }
}

/// Shards of the pool, picked by CPU: enough that two CPUs seldom meet, few enough to stay small. A power of two.
const SHARDS: usize = 32;
/// Idle contexts kept in one shard; more are freed. Concurrent users of one CPU are few.
const KEEP: usize = 8;

#[derive(Default)]
struct Shard {
    encrypt: Vec<Context>,
    decrypt: Vec<Context>,
}

impl Shard {
    fn list(&mut self, direction: Direction) -> &mut Vec<Context> {
        match direction {
            Direction::Encrypt => &mut self.encrypt,
            Direction::Decrypt => &mut self.decrypt,
        }
    }
}

/// Lends contexts for one key.
pub(crate) struct ContextPool {
    key: Key,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl ContextPool {
    pub(crate) fn new(key: Key) -> Result<ContextPool, LibraryError> {
        let pool = ContextPool {
            key,
            shards: (0..SHARDS)
                .map(|_| CachePadded::new(Mutex::new(Shard::default())))
                .collect(),
        };
        // Shows at start, and not at the first request, that the library takes the key.
        drop(pool.take(Direction::Encrypt)?);
        drop(pool.take(Direction::Decrypt)?);
        Ok(pool)
    }

    /// A context for `direction`; goes back to the pool when dropped. Allocates only when the shard has none left.
    fn take(&self, direction: Direction) -> Result<Lent<'_>, LibraryError> {
        let shard = &self.shards[rustix::thread::sched_getcpu() % SHARDS];
        let kept = shard
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .list(direction)
            .pop();
        let context = match kept {
            Some(context) => context,
            None => Context::new(&self.key, direction)?,
        };
        Ok(Lent {
            context: Some(context),
            shard,
        })
    }

    /// Works on `data` in place, sector by sector; `tweaks` gives the IV number of each sector in turn.
    pub(crate) fn sectors(
        &self,
        direction: Direction,
        data: &mut [u8],
        sector_size: usize,
        first_iv: u64,
        iv_step: u64,
    ) -> Result<(), LibraryError> {
        let mut lent = self.take(direction)?;
        let context = lent.context.as_mut().ok_or(LibraryError)?;
        let mut iv = first_iv;
        for sector in data.chunks_exact_mut(sector_size) {
            // plain64: the number, little-endian, in the first 8 of 16 bytes.
            let mut tweak = [0u8; 16];
            tweak[..8].copy_from_slice(&iv.to_le_bytes());
            context.sector(&tweak, sector)?;
            iv = iv.wrapping_add(iv_step);
        }
        Ok(())
    }
}

/// A context on loan.
struct Lent<'a> {
    context: Option<Context>,
    shard: &'a CachePadded<Mutex<Shard>>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            let mut shard = self.shard.lock().unwrap_or_else(|e| e.into_inner());
            let list = shard.list(context.direction);
            if list.len() < KEEP {
                list.push(context);
            }
        }
    }
}
