//! Side-by-side runs of cmwq against other pools.
fn main() {}
