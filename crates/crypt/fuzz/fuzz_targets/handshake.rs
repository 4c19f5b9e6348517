//! The option phase: any bytes, cut anywhere, give the same answer as the same bytes at once.
//! `cargo +nightly fuzz run handshake` in crates/crypt.
#![no_main]

use std::sync::Arc;

use cmwq_crypt::nbd::handshake::{Handshake, Step};
use cmwq_crypt::nbd::{Export, flags};
use libfuzzer_sys::fuzz_target;

fn run(input: &[u8], piece: usize) -> (Vec<u8>, Step) {
    let export = Export {
        name: "x".into(),
        size: 1 << 20,
        flags: flags::HAS_FLAGS,
        block: 512,
        preferred: 4096,
        max_request: 1 << 20,
    };
    let mut h = Handshake::new(Arc::new(export));
    let (mut out, mut kept) = (Vec::new(), Vec::new());
    for part in input.chunks(piece) {
        kept.extend_from_slice(part);
        let (used, step) = h.feed(&kept, &mut out);
        kept.drain(..used);
        if step != Step::More {
            return (out, step);
        }
    }
    (out, Step::More)
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else { return };
    assert_eq!(run(input, usize::from(piece).max(1)), run(input, input.len().max(1)));
});
