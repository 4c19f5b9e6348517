//! The decisions of the workqueue, without threads, clock or system calls.

pub mod timer;
