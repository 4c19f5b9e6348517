//! A deterministic simulator of cmwq's workqueues on machines of any size.
//!
//! It drives the very same `cmwq-policy` as the runtime, on a modelled machine and operating system, for two ends: to prove
//! the policy under faults ([`faults`]), and to answer what a setting would do on a machine that is not at hand ([`run()`]).
//! One seed decides everything; the same seed gives the same trace, bit for bit. The crate's README says what is modelled,
//! after what, and how far the model was found to hold.

pub mod cost;
mod events;
pub mod faults;
mod load;
pub mod machine;
pub mod machines;
mod os;
pub mod run;
pub mod scenario;
pub mod setting;
mod sim;
mod timeline;
mod wq;

pub use cost::Costs;
pub use machine::Machine;
pub use os::Rules;
pub use run::{Outcome, run, run_with};
pub use scenario::Scenario;
pub use setting::Setting;
