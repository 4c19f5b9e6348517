//! Paired measurement.
