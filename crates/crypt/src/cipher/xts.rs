//! AES-256-XTS contexts of the C library, and a pool of them.
//!
//! A context holds two expanded keys and the current tweak, so it serves one caller at a time. Expanding keys takes
//! longer than encrypting a sector, so contexts are kept and lent out. The library wipes a context when it is freed.

use std::ffi::c_int;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard};

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
        let data = sector.as_mut_ptr();
        // `EVP_Cipher` and not `EVP_CipherUpdate`, which does the same here with more checks on the way: 10 ns of 85 for a sector of
        // 512 bytes.
        // SAFETY: input and output are the same writable bytes of the given length, which the library allows; XTS writes as many
        // bytes as it reads.
        let ok = unsafe { lc::EVP_Cipher(self.raw.as_ptr(), data, data, sector.len()) };
        if ok == 1 { Ok(()) } else { Err(LibraryError) }
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

/// Tweaks made in one go. The library reads 16 bytes at once, which the CPU cannot forward from two stores of 8 that are still
/// on their way: made one by one, each takes 12 ns longer.
const AHEAD: usize = 16;

/// Idle contexts of one direction and shard.
struct Idle {
    direction: Direction,
    /// The one to take first, or null: two atomic steps for whoever is alone on its CPU. Owned by the cell while it is in there.
    first: AtomicPtr<lc::EVP_CIPHER_CTX>,
    more: Mutex<Vec<Context>>,
}

impl Idle {
    fn new(direction: Direction) -> Idle {
        Idle {
            direction,
            first: AtomicPtr::new(null_mut()),
            more: Mutex::default(),
        }
    }

    fn take(&self) -> Option<Context> {
        // Ordering: Acquire pairs with the Release in `put`: the context's memory is seen as its last user left it.
        let raw = self.first.swap(null_mut(), Ordering::Acquire);
        match NonNull::new(raw) {
            Some(raw) => Some(Context {
                raw,
                direction: self.direction,
            }),
            None => self.list().pop(),
        }
    }

    /// Takes it over, or frees it where there are enough. Its direction is this one's.
    fn put(&self, context: Context) {
        debug_assert_eq!(context.direction, self.direction);
        let raw = context.raw.as_ptr();
        // Ordering: Release pairs with the Acquire in `take`. Where another one is there nothing is read through it.
        let put =
            self.first
                .compare_exchange(null_mut(), raw, Ordering::Release, Ordering::Relaxed);
        if put.is_ok() {
            // The cell owns it now.
            std::mem::forget(context);
            return;
        }
        let mut list = self.list();
        if list.len() < KEEP {
            list.push(context);
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Context>> {
        self.more.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        drop(self.take());
    }
}

struct Shard {
    encrypt: Idle,
    decrypt: Idle,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            encrypt: Idle::new(Direction::Encrypt),
            decrypt: Idle::new(Direction::Decrypt),
        }
    }

    fn idle(&self, direction: Direction) -> &Idle {
        match direction {
            Direction::Encrypt => &self.encrypt,
            Direction::Decrypt => &self.decrypt,
        }
    }
}

/// Lends contexts for one key.
pub(crate) struct ContextPool {
    key: Key,
    shards: Box<[CachePadded<Shard>]>,
}

impl ContextPool {
    pub(crate) fn new(key: Key) -> Result<ContextPool, LibraryError> {
        let pool = ContextPool {
            key,
            shards: (0..SHARDS)
                .map(|_| CachePadded::new(Shard::new()))
                .collect(),
        };
        // Shows at start, and not at the first request, that the library takes the key.
        drop(pool.take(Direction::Encrypt)?);
        drop(pool.take(Direction::Decrypt)?);
        Ok(pool)
    }

    /// A context for `direction`; goes back to the pool when dropped. Allocates only when the shard has none left.
    fn take(&self, direction: Direction) -> Result<Lent<'_>, LibraryError> {
        let idle = self.shards[rustix::thread::sched_getcpu() % SHARDS].idle(direction);
        let context = match idle.take() {
            Some(context) => context,
            None => Context::new(&self.key, direction)?,
        };
        Ok(Lent {
            context: Some(context),
            idle,
        })
    }

    /// Works on `data` in place, sector by sector, with IV numbers from `first_iv` up by `iv_step`. `sector_size` is a power of two.
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
        let mut tweaks = [[0u8; 16]; AHEAD];
        for run in data.chunks_mut(AHEAD * sector_size) {
            let sectors = run.len() >> sector_size.trailing_zeros();
            for tweak in tweaks.iter_mut().take(sectors) {
                // plain64: the number, little-endian, in the first 8 of 16 bytes.
                tweak[..8].copy_from_slice(&iv.to_le_bytes());
                iv = iv.wrapping_add(iv_step);
            }
            for (sector, tweak) in run.chunks_exact_mut(sector_size).zip(&tweaks) {
                context.sector(tweak, sector)?;
            }
        }
        Ok(())
    }
}

/// A context on loan.
struct Lent<'a> {
    context: Option<Context>,
    idle: &'a Idle,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            self.idle.put(context);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::from_bytes(&std::array::from_fn::<u8, 64, _>(|i| i as u8)).unwrap()
    }

    /// The first one has its own place, a few more are kept, and the rest is freed; what was kept still works.
    #[test]
    fn idle_contexts_are_kept_up_to_a_limit() {
        let key = key();
        let idle = Idle::new(Direction::Encrypt);
        assert!(idle.take().is_none());
        let made: Vec<Context> = (0..2 * KEEP)
            .map(|_| Context::new(&key, Direction::Encrypt).unwrap())
            .collect();
        made.into_iter().for_each(|c| idle.put(c));
        let mut kept: Vec<Context> = std::iter::from_fn(|| idle.take()).collect();
        assert_eq!(kept.len(), 1 + KEEP);
        let mut same: Vec<[u8; 512]> = vec![[7; 512]; kept.len()];
        for (context, data) in kept.iter_mut().zip(&mut same) {
            context.sector(&[1; 16], data).unwrap();
        }
        assert_ne!(same[0], [7; 512]);
        assert!(same.iter().all(|data| *data == same[0]));
        idle.put(kept.swap_remove(0));
        drop(idle);
    }

    /// Runs longer than the tweaks made in one go, with a rest: the same as sector by sector.
    #[test]
    fn long_runs_number_all_sectors() {
        let pool = ContextPool::new(key()).unwrap();
        let first = u64::MAX - 100;
        let mut run = vec![3u8; (2 * AHEAD + 5) * 512];
        let mut single = run.clone();
        pool.sectors(Direction::Encrypt, &mut run, 512, first, 2)
            .unwrap();
        for (n, sector) in single.chunks_mut(512).enumerate() {
            let iv = first.wrapping_add(2 * n as u64);
            pool.sectors(Direction::Encrypt, sector, 512, iv, 1)
                .unwrap();
        }
        assert!(run == single);
    }
}
