//! CPU sets, the machine's topology read from sysfs, and pods for every affinity scope.
//!
//! * [`CpuSet`]: a set of CPU numbers, with the kernel's list and mask texts.
//! * [`Topology`]: what is known of a machine. [`Topology::current`] reads the one it runs on,
//!   [`Topology::read`] any tree of the same shape, [`Topology::synthetic`] makes one up from a
//!   short text, [`Topology::write_tree`] writes one as a tree of files.
//! * [`Pods`]: the groups of CPUs that share a worker pool, for each [`AffinityScope`].
//! * [`masks`]: which CPUs a queue may use, and which pool each CPU of a queue leads to.
//! * [`Distances`]: how far two CPUs are from each other, as a small ordered number.
//! * [`ProcessCpus`]: what this process may use of the machine: affinity, cpuset, CPU quota.
//!
//! A file that is missing, unreadable, or contradicts another never fails a read: the kernel's
//! own fallback is taken and a [`Warning`] that names the file is kept in the result.
//!
//! Every type is plain data: `Send`, `Sync`, `Clone`, without locks or background work.

mod cpuset;
mod distance;
mod llc;
mod machine;
pub mod masks;
mod pods;
mod process;
mod raw;
mod scope;
mod shard;
pub mod synthetic;
mod sysfs;
mod warning;

pub use cpuset::{CpuSet, Iter, ListDisplay, MaskDisplay, ParseCpuSetError, Ranges};
pub use distance::{Distance, Distances};
pub use machine::{Arch, Cache, CacheKind, CoreKind, Node, Topology};
pub use pods::{Pod, Pods};
pub use process::{ProcessCpus, Quota};
pub use scope::{AffinityScope, ParseAffinityScopeError};
pub use shard::DEFAULT_CACHE_SHARD_SIZE;
pub use synthetic::SpecError;
pub use warning::Warning;
