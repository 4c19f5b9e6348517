//! What a live cmwq process shows and how it is steered.
//!
//! Without features this crate is plain data and pure functions, with no dependencies outside the project:
//!
//! - [`snapshot`]: the state of a runtime at one moment, as plain structs;
//! - [`histogram`]: the layout of the always-on latency histograms and their maths, in one place;
//! - [`attr`]: every attribute that can be read or written, with the kernel's names, exact parsing and refusals;
//! - [`trace`]: the events of a timeline;
//! - [`advise`]: rules that say in plain words what is wrong;
//! - [`prometheus`]: the text for a metrics endpoint;
//! - [`Process`]: the trait that a runtime answers.
//!
//! Features: `serde` makes every snapshot type (de)serialisable (the field names are the documented JSON form);
//! `server` serves a [`Process`] on a Unix socket; `client` finds and asks such processes; `testing` has a registry for tests.

pub mod advise;
pub mod attr;
#[cfg(feature = "client")]
pub mod client;
mod cpulist;
pub mod histogram;
#[cfg(any(feature = "client", feature = "server"))]
mod peer;
#[cfg(any(feature = "client", feature = "server"))]
mod place;
mod process;
pub mod prometheus;
#[cfg(feature = "protocol")]
pub mod protocol;
#[cfg(feature = "server")]
pub mod server;
pub mod snapshot;
#[cfg(feature = "testing")]
pub mod testing;
pub mod trace;

pub use cmwq_topology::{AffinityScope, CpuSet};
pub use cpulist::CpuList;
pub use process::{Process, Target};

/// Text that is usually a constant of the program (a function's type name, a reason) and therefore free to hand out,
/// and an owned string after it came over a socket.
pub type Label = std::borrow::Cow<'static, str>;
