//! One-shot items: a closure, its result, and the handle that waits for it, in one allocation.

mod cell;
mod detached;
mod join;
mod memory;
#[cfg(all(test, loom))]
mod models;

pub(crate) use cell::{Ops, new_task, unmake};
pub(crate) use detached::{new_detached, take_back};
pub(crate) use join::BEHIND_ITSELF;
pub use join::JoinHandle;
