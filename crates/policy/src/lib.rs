//! Internal to cmwq: the decisions of the workqueue as plain state machines.
//!
//! Nothing here has threads, a clock, atomics or system calls: time, CPUs and ids come in as arguments, effects go out
//! through a monomorphised sink. Two drivers run this code: the runtime (`cmwq`) and the simulator (`cmwq-sim`). The machines
//! are cut along the locks; no call touches two of them:
//!
//! | machine | guarded by | file |
//! |---|---|---|
//! | item word | the item's own atomic | [`word`] |
//! | worker pool | the pool's lock | [`pool`] |
//! | active-limit slot | the slot's lock | [`slot`] |
//! | flush state | the queue's lock | [`flush`] |
//! | who helps whom | nothing (pure functions) | [`help`] |
//! | where a worker is woken | the pool's lock | [`near`] |
//!
//! No promises to others than cmwq's own crates; versions move together.

pub mod flush;
pub mod help;
pub mod hist;
pub mod limits;
pub mod list;
pub mod near;
pub mod pool;
pub mod slot;
pub mod timer;
pub mod word;
