//! Paired measurement: several settings run side by side, judged by ratios, printed and stored in one form.
//!
//! A time on a busy machine says little. What can be trusted is the ratio of two settings that ran within the same
//! minute, again and again, in changing order. This crate holds what such a comparison needs and nothing about what is
//! compared:
//!
//! | module | what |
//! |---|---|
//! | [`rounds`] | the driver: settings interleaved in paired rounds, order changed by seed, rounds added until the answer is precise |
//! | [`bar`] | a limit on a figure ("at most 1.1 times the best peer") and its verdict: holds, fails, undecided |
//! | [`stats`] | medians, deviations, and the confidence bounds behind the verdicts |
//! | [`usage`] | CPU time, context switches and peak memory of this process, this thread, children, any process |
//! | [`latency`] | a latency recorder and its summary |
//! | [`rows`] | the one JSON form that every bench and the simulator print |
//! | [`validate`](mod@validate) | says what is wrong with a JSON object that claims to be in that form |
//! | [`table`] | aligned text tables, `value ±spread` |
//! | [`report`] | one self-contained HTML page from the same object |
//!
//! Nothing here starts a thread. Only [`usage`] and [`rows::Machine::detect`] ask the system for anything.

pub mod bar;
pub mod latency;
pub mod report;
pub mod rounds;
pub mod rows;
pub mod spin;
pub mod stats;
pub mod table;
pub mod usage;
pub mod validate;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

mod seed;

pub use bar::{Against, Bar, Judgement, Relation, Verdict};
pub use latency::{Latency, LatencySummary};
pub use report::{Drawing, Report};
pub use rounds::{Observation, Order, Plan, Rounds, StopReason, Trial};
pub use rows::{Document, Machine, Row, Spread};
pub use table::Table;
pub use usage::Usage;
pub use validate::{Problem, validate};
