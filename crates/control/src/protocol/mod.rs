//! Frames and messages of the control socket. `README.md` beside this file describes them and their limits.

mod frame;
mod message;

pub use frame::{FrameBuffer, FrameError, encode};
pub use message::{Reply, Request};

/// The version of the protocol that this crate speaks. Raised when an old peer could misunderstand a new one.
pub const PROTOCOL_VERSION: u32 = 1;

/// The longest request, bytes: the longest sensible one is a `set` of a mask of a few kilobytes.
pub const MAX_REQUEST: usize = 64 << 10;

/// The longest reply, bytes: a snapshot of a thousand queues on a thousand CPUs is about 10 MB.
pub const MAX_REPLY: usize = 64 << 20;
