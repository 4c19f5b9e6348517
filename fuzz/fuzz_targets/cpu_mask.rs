//! Any text as a CPU mask: an error inside the text, or a set that round-trips.
#![no_main]

use cmwq_topology::CpuSet;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match CpuSet::parse_mask(text) {
        Ok(set) => {
            let mask = set.mask().to_string();
            assert_eq!(CpuSet::parse_mask(&mask).as_ref(), Ok(&set));
            assert_eq!(CpuSet::parse_list(&set.to_string()), Ok(set));
        }
        Err(e) => assert!(text.is_char_boundary(e.offset), "{e}"),
    }
});
