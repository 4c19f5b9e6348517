//! An encrypted block device served over NBD, each request run as work items.
//!
//! * [`cipher`]: AES-256-XTS with 512- or 4096-byte sectors, byte for byte what dm-crypt writes.
//! * [`device`]: files, block devices and memory with positional I/O; [`device::Volume`] puts the cipher on one.
//! * [`digest`]: SHA-512, to check what was read back.
//! * [`nbd`]: the protocol as pure functions: bytes in, decisions and bytes out. No sockets.
//! * [`server`]: sockets, requests in flight and their limits; work items go through [`server::Executor`].
//!
//! The crate handles no signals and prints nothing.

pub mod cipher;
pub mod device;
pub mod digest;
pub mod nbd;
pub mod server;
