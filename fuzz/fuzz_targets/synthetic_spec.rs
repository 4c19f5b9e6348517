//! Any text as a spec: an error inside the text, or a machine whose pods are a partition.
#![no_main]

use cmwq_topology::{AffinityScope, CpuSet, Topology};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Topology::synthetic(text) {
        Ok(machine) => {
            for scope in AffinityScope::ALL {
                let mut all = CpuSet::new();
                for pod in &machine.pods(scope) {
                    assert!(all.is_disjoint(&pod.cpus));
                    all |= &pod.cpus;
                }
                assert_eq!(&all, machine.possible());
            }
        }
        Err(e) => assert!(text.is_char_boundary(e.offset), "{e}"),
    }
});
