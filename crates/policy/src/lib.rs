//!
//! Internal to cmwq: the decisions of the workqueue as plain state machines.
//! No promises to others than cmwq's own crates; versions move together.
//! Nothing here has threads, a clock, atomics or system calls: time, CPUs and ids come in as arguments, effects go out
//! The decisions of the workqueue, without threads, clock or system calls.
//! are cut along the locks; no call touches two of them:
//! through a monomorphised sink. Two drivers run this code: the runtime (`cmwq`) and the simulator (`cmwq-sim`). The machines
//! | active-limit slot | the slot's lock | [`slot`] |
//! | flush state | the queue's lock | [`flush`] |
//! | item word | the item's own atomic | [`word`] |
//! | machine | guarded by | file |
//! | worker pool | the pool's lock | [`pool`] |
//! |---|---|---|
pub mod flush;
pub mod hist;
pub mod limits;
pub mod list;
pub mod pool;
pub mod slot;
pub mod timer;
pub mod word;
