//! The workqueue runtime.

#[allow(dead_code, reason = "the statistics of the workqueues use it")]
pub(crate) mod hist;
pub(crate) mod shim;
#[allow(
    dead_code,
    reason = "the layer offers more than one build of the runtime uses"
)]
pub(crate) mod sys;
