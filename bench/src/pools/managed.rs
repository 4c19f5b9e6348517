//! cmwq itself, in the settings that the bars speak of: an unbound workqueue, waited for by its own handles.

use anyhow::{Context, Result};
use cmwq::{Runtime, Workqueue};

use super::Pool;

/// As a user gets it: items that nobody waits for are queued without a handle, as the peers' are.
const PLAIN: u8 = 0;
/// A waiting thread may run the awaited item itself.
const INLINE: u8 = 1;
/// Items say that they are about to block.
const SAID: u8 = 2;
/// Without histograms of waiting and run times.
const NO_STATS: u8 = 3;
/// Every item gets a handle, which is dropped at once.
const HANDLE: u8 = 4;

/// A workqueue in one of the settings above.
pub(super) struct Managed<const SETTING: u8>(Workqueue);

pub(super) type Cmwq = Managed<PLAIN>;
pub(super) type CmwqNoStats = Managed<NO_STATS>;
pub(super) type CmwqHandle = Managed<HANDLE>;
pub(super) type CmwqInline = Managed<INLINE>;
pub(super) type CmwqSaid = Managed<SAID>;

impl<const SETTING: u8> Pool for Managed<SETTING> {
    fn start(_threads: usize) -> Result<Self> {
        let runtime;
        let mut builder = if SETTING == NO_STATS {
            runtime = Runtime::builder()
                .histograms(false)
                .build()
                .context("building the runtime")?;
            runtime.workqueue("bench")
        } else {
            Workqueue::builder("bench")
        };
        if SETTING == INLINE {
            builder = builder.inline_wait(true);
        }
        Ok(Self(builder.build().context("building the workqueue")?))
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        if SETTING == HANDLE {
            drop(self.0.spawn(item));
        } else if let Err(e) = self.0.spawn_detached(item) {
            panic!("an open queue without a bound takes every item: {e}");
        }
    }

    fn run_one<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.0
            .spawn(item)
            .join()
            .expect("an item of an open queue that does not panic has a result");
    }

    fn block<R>(block: impl FnOnce() -> R) -> R {
        if SETTING == SAID {
            cmwq::blocking(block)
        } else {
            block()
        }
    }
}
