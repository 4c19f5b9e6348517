//! The raw speed of the cipher on one core, to be shown beside a server's.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{CipherError, IvUnit, Key, SectorCipher, SectorSize};

/// One core's speed, in bytes a second.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Encryption.
    pub encrypt: f64,
    /// Decryption.
    pub decrypt: f64,
}

/// CPU time of the calling thread so far.
fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Measures with a throw-away key: runs of `call` bytes, cut down to whole sectors, for about `time` each way, all on the
/// calling thread. Both `time` and the speed are of CPU time, as `openssl speed` counts it: others that want the CPU make the
/// measurement longer and not the speed lower, but for what they do to caches and the clock rate.
///
/// # Errors
/// As [`SectorCipher::encrypt`].
pub fn measure_speed(
    sector: SectorSize,
    call: usize,
    time: Duration,
) -> Result<Speed, CipherError> {
    let mut bytes = [0u8; super::KEY_LEN];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = i as u8;
    }
    let key = Key::from_bytes(&bytes).map_err(|_| CipherError::Library)?;
    let cipher = SectorCipher::new(key, sector, IvUnit::B512)?;
    let call = (call / sector.bytes()).max(1) * sector.bytes();
    let mut data = vec![0u8; call];
    let mut rate = |f: &dyn Fn(&mut [u8]) -> Result<(), CipherError>| -> Result<f64, CipherError> {
        let start = cpu_time();
        let mut done = 0u64;
        loop {
            // About 64 KiB between two looks at the clock.
            for _ in 0..(65_536 / call).max(1) {
                f(std::hint::black_box(&mut data))?;
                done += call as u64;
            }
            let elapsed = cpu_time().saturating_sub(start);
            if elapsed >= time {
                return Ok(done as f64 / elapsed.as_secs_f64());
            }
        }
    };
    Ok(Speed {
        encrypt: rate(&|d| cipher.encrypt(0, d))?,
        decrypt: rate(&|d| cipher.decrypt(0, d))?,
    })
}
