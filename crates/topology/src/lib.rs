//! CPU sets, topology and pods.
