//! `cmwq crypt speed`.

use std::time::Duration;

use cmwq_crypt::cipher::{SectorSize, measure_speed};

/// Bytes handed to the cipher in one call: a sector, a page, a request of the published benchmarks.
const CALLS: [usize; 3] = [512, 4096, 32_768];

#[derive(clap::Args)]
pub(crate) struct SpeedArgs {
    /// Milliseconds for each figure
    #[arg(long, default_value_t = 200)]
    ms: u64,
}

/// One line: what is measured and how fast it is.
pub(super) fn line(sector: SectorSize, call: usize, time: Duration) -> anyhow::Result<String> {
    let speed = measure_speed(sector, call, time)?;
    Ok(format!(
        "aes-256-xts, {}-byte sectors, {call} bytes a call, one core: encrypt {:.2} GB/s, decrypt {:.2} GB/s",
        sector.bytes(),
        speed.encrypt / 1e9,
        speed.decrypt / 1e9
    ))
}

impl SpeedArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        for sector in [SectorSize::B512, SectorSize::B4096] {
            for call in CALLS.into_iter().filter(|&c| c >= sector.bytes()) {
                println!("{}", line(sector, call, Duration::from_millis(self.ms))?);
            }
        }
        Ok(())
    }
}
