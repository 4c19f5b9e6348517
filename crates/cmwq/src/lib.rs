//! The workqueue runtime.
