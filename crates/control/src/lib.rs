//! Snapshots and the control protocol.
