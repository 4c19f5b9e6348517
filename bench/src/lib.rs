//! Side-by-side runs of pools behind one small trait: what `cargo run --release -p bench` measures.
//!
//! Every pool, workload and round runs in a process of its own (the program starts itself again), so that pools do not disturb
//! one another; rounds are paired, see `cmwq-measure`. Each workload counts its items: one that was lost or ran twice makes
//! the round an error, not a fast round.

pub mod bars;
pub mod child;
pub mod pools;
pub mod show;
pub mod suite;
pub mod workloads;
