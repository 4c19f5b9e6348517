//! Any text as a CPU list: an error inside the text, or a set that round-trips.
#![no_main]

use cmwq_topology::CpuSet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match CpuSet::parse_list(text) {
        Ok(set) => {
            let list = set.to_string();
            assert_eq!(CpuSet::parse_list(&list).as_ref(), Ok(&set));
            assert_eq!(CpuSet::parse_mask(&set.mask().to_string()), Ok(set));
        }
        Err(e) => assert!(text.is_char_boundary(e.offset), "{e}"),
    }
});
