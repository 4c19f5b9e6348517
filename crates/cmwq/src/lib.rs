//! The workqueue runtime.

pub(crate) mod shim;
#[allow(
    dead_code,
    reason = "the layer offers more than one build of the runtime uses"
)]
pub(crate) mod sys;
