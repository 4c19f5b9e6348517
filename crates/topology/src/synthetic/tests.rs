use crate::{AffinityScope, Arch, CpuSet, Topology};
use proptest::prelude::*;

fn machine(spec: &str) -> Topology {
    Topology::synthetic(spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

fn pods(machine: &Topology, scope: AffinityScope) -> Vec<String> {
    let pods = machine.pods(scope);
    pods.iter().map(|pod| pod.cpus.to_string()).collect()
}

#[test]
fn levels_nest_as_written() {
    let m = machine("package:2 l3:2 core:2 thread:2");
    assert_eq!(m.possible().to_string(), "0-15");
    assert_eq!(pods(&m, AffinityScope::Smt)[1], "1,9");
    assert_eq!(
        pods(&m, AffinityScope::Cache),
        ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    );
    assert_eq!(pods(&m, AffinityScope::Numa), ["0-3,8-11", "4-7,12-15"]);
    assert_eq!(m.package_id(4), Some(1));
    assert!(m.warnings().is_empty());
}

#[test]
fn a_cache_around_nodes_is_cut_at_the_nodes() {
    let m = machine("package:1 l3:1 node:2 core:4");
    assert_eq!(m.caches(0).next().unwrap().cpus.as_ref().unwrap().len(), 8);
    assert_eq!(pods(&m, AffinityScope::Cache), ["0-3", "4-7"]);
}

#[test]
fn numbering_follows_the_options() {
    let m = machine("package:2 core:2 thread:2 threads=adjacent");
    assert_eq!(pods(&m, AffinityScope::Smt), ["0-1", "2-3", "4-5", "6-7"]);
    let m = machine("package:2 core:2 order=round-robin");
    assert_eq!(pods(&m, AffinityScope::Numa), ["0,2", "1,3"]);
    let m = machine("core:4 cpus=0,7,100-101 possible=3 offline=7 isolated=100");
    assert_eq!(m.possible().to_string(), "0,3,7,100-101");
    assert_eq!(m.online().to_string(), "0,100-101");
    assert_eq!(m.isolated().to_string(), "100");
    assert!(!m.is_known(3));
    assert_eq!(m.node_of(3), Some(0));
}

#[test]
fn kinds_of_cores_have_their_own_threads_and_capacity() {
    let m = machine("l3:1 core:2x2@1024+3@400 thread:1 threads=adjacent");
    assert_eq!(pods(&m, AffinityScope::Smt), ["0-1", "2-3", "4", "5", "6"]);
    assert_eq!((m.capacity(3), m.capacity(6)), (Some(1024), Some(400)));
}

#[test]
fn without_caches_the_architecture_decides() {
    let amd = machine("package:1 l2:4 core:1 arch=x86-amd");
    assert_eq!(pods(&amd, AffinityScope::Cache), ["0-3"]);
    assert_eq!(amd.arch(), Arch::X86Amd);
    let intel = machine("package:1 l2:4 core:1");
    assert_eq!(pods(&intel, AffinityScope::Cache).len(), 4);
    let bare = machine("package:1 core:4 thread:2 arch=arm");
    assert_eq!(pods(&bare, AffinityScope::Cache), ["0-7"]);
    let across = machine("node:1 l3:1 package:2 core:2 arch=arm");
    assert_eq!(pods(&across, AffinityScope::Cache), ["0-1", "2-3"]);
}

#[test]
fn the_largest_machine_is_made_and_a_larger_one_refused() {
    let m = machine("package:8 node:8 l3:16 core:32 thread:2");
    assert_eq!(m.possible().len(), CpuSet::MAX_CPUS);
    assert_eq!(m.pods(AffinityScope::CacheShard).len(), 4096);
    let error = Topology::synthetic("package:8 core:8193").unwrap_err();
    assert!(error.text.contains("65544 CPUs"), "{error}");
    let error = Topology::synthetic("package:65536 die:65536 l3:65536 l2:65536 core:65536");
    assert!(error.unwrap_err().text.contains("at most 65536"));
}

#[test]
fn a_bad_spec_says_where_and_what_was_expected() {
    for (spec, offset, text) in [
        ("", 0, "expected a level"),
        ("package", 0, "level:count or option=value"),
        ("package:", 8, "expected a number"),
        ("package:0", 8, "count from 1"),
        ("package:-1", 8, "expected a number"),
        ("package:2 package:2", 10, "stands twice"),
        ("socket:2", 0, "expected a level (package"),
        ("core:2 l3:1", 7, "only 'thread' may come after"),
        ("thread:2 core:2", 9, "'thread' is the last level"),
        ("core:2+", 7, "expected a number"),
        ("core:2x", 7, "expected a number"),
        ("core:2@2000", 7, "capacity from 1 to 1024"),
        ("core:2 colour=red", 7, "expected an option (threads"),
        ("core:2 threads=odd", 15, "expected last or adjacent"),
        ("core:2 offline=0-", 17, "last CPU of the range"),
        ("core:2 offline=0-1", 15, "at least one CPU to stay online"),
        ("core:2 cpus=0-4", 12, "expected 2 CPU numbers"),
        ("core:2 distance=10,20", 21, "expected a number"),
        (
            "core:2 distance=10,20,30,40",
            25,
            "expected three distances",
        ),
        ("core:2 distance=10,0,30", 19, "distance from 1"),
        ("core:2 arch=vax", 12, "expected one of x86"),
        ("core:2 memory-nodes=1025", 20, "at most 1024"),
        ("package:1025 core:1", 0, "1025 nodes"),
        ("cörë:2", 0, "expected a level"),
    ] {
        let error = Topology::synthetic(spec).unwrap_err();
        assert!(error.text.contains(text), "{spec}: {error}");
        assert_eq!(error.offset, offset, "{spec}: {error}");
    }
}

/// Everything that a tree of files can carry.
fn assert_same(spec: &str, a: &Topology, b: &Topology) {
    assert_eq!(b.warnings(), [], "{spec}");
    assert_eq!(a.arch(), b.arch(), "{spec}");
    assert_eq!(a.possible(), b.possible(), "{spec}");
    assert_eq!(a.present(), b.present(), "{spec}");
    assert_eq!(a.online(), b.online(), "{spec}");
    assert_eq!(a.isolated(), b.isolated(), "{spec}");
    assert_eq!(a.nodes(), b.nodes(), "{spec}");
    for cpu in a.possible() {
        let facts = |t: &Topology| {
            let sets = [
                t.siblings(cpu),
                t.llc_cpus(cpu),
                t.package_cpus(cpu),
                t.die_cpus(cpu),
                t.cluster_cpus(cpu),
            ];
            let sets = sets.map(|set| set.cloned());
            let ids = (
                t.core_id(cpu),
                t.package_id(cpu),
                t.die_id(cpu),
                t.cluster_id(cpu),
            );
            let caches: Vec<_> = t.caches(cpu).cloned().collect();
            (
                sets,
                ids,
                t.node_of(cpu),
                t.capacity(cpu),
                t.core_kind(cpu),
                t.is_known(cpu),
                caches,
            )
        };
        assert_eq!(facts(a), facts(b), "{spec}: CPU {cpu}");
    }
    for scope in AffinityScope::ALL {
        assert_eq!(a.pods(scope), b.pods(scope), "{spec}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_machine_written_as_files_is_read_back_the_same(spec in crate::pods::tests::spec()) {
        // Of x86 CPUs without any cache the reader says so.
        prop_assume!(spec.contains("l3:") || spec.contains("l2:") || spec.contains("arm"));
        let Ok(made) = Topology::synthetic(&spec) else {
            return Ok(());
        };
        prop_assume!(made.arch() != Arch::Other && made.possible().len() <= 100);
        let memory = tempfile::tempdir_in("/dev/shm");
        let dir = memory.or_else(|_| tempfile::tempdir()).unwrap();
        made.write_tree(dir.path()).unwrap();
        assert_same(&spec, &made, &Topology::read(dir.path()));
    }

    #[test]
    fn no_spec_panics(spec in "([a-z0-9]{1,8}[:=][0-9x@+,a-z-]{0,8} ?){0,6}|.{0,30}") {
        if let Err(e) = Topology::synthetic(&spec) {
            prop_assert!(e.offset <= spec.len());
        }
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("sys"), "a file").unwrap();
    let error = machine("core:1").write_tree(dir.path()).unwrap_err();
    assert!(error.to_string().contains("sys/devices/system"), "{error}");
}
