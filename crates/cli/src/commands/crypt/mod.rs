//! `cmwq crypt`: an encrypted block device over NBD.

mod serve;
mod size;
mod speed;

use std::path::PathBuf;

use anyhow::Context as _;
use cmwq_crypt::cipher::{Key, SectorSize};

/// The subcommands of `cmwq crypt`.
#[derive(clap::Subcommand)]
pub(crate) enum Crypt {
    /// Serve a file, a block device or memory, encrypted with AES-256-XTS as dm-crypt's aes-xts-plain64
    ///
    /// Prints one line, `ready URI`, when clients are accepted. SIGTERM and SIGINT end it: requests in flight are finished, the
    /// device is flushed, exit status 0; a second signal ends it at once.
    Serve(serve::Serve),
    /// Write a new random key to a new file (64 bytes, readable by its owner alone)
    Keygen {
        /// The file; it must not exist
        path: PathBuf,
    },
    /// Print the raw speed of the cipher on one core
    Speed(speed::SpeedArgs),
}

impl Crypt {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Crypt::Serve(s) => s.run(),
            Crypt::Keygen { path } => {
                let key = Key::generate()?;
                key.write_new_file(&path).context("no key was made")
            }
            Crypt::Speed(s) => s.run(),
        }
    }
}

/// `512` or `4096`.
fn sector_size(s: &str) -> Result<SectorSize, String> {
    s.parse()
        .ok()
        .and_then(SectorSize::from_bytes)
        .ok_or_else(|| "a sector has 512 or 4096 bytes".into())
}
