use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

fn list(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

fn mask(text: &str) -> CpuSet {
    CpuSet::parse_mask(text).unwrap()
}

#[test]
fn lists_are_read_as_the_kernel_writes_and_accepts_them() {
    for (text, want) in [
        ("", ""),
        ("\n", ""),
        ("0", "0"),
        ("0-3,8,10-11\n", "0-3,8,10-11"),
        ("0-3,8,10-11:2/4", "0-3,8,10-11"),
        ("0-31:1/4", "0,4,8,12,16,20,24,28"),
        ("10-19:2/4", "10-11,14-15,18-19"),
        ("8-15:4/4", "8-15"),
        ("3,1,2,1", "1-3"),
        (" 0 , 2 ", "0,2"),
        ("8191", "8191"),
        ("65535", "65535"),
        ("007", "7"),
    ] {
        assert_eq!(list(text).to_string(), want, "{text:?}");
    }
    assert_eq!(list("0-65535").len(), CpuSet::MAX_CPUS);
}

#[test]
fn a_bad_list_says_where_and_what_was_expected() {
    for (text, offset, expected, found) in [
        ("a", 0, "a CPU number", Some('a')),
        ("1,", 2, "a CPU number", None),
        (",1", 0, "a CPU number", Some(',')),
        ("1,,2", 2, "a CPU number", Some(',')),
        ("-1", 0, "a CPU number", Some('-')),
        ("1-", 2, "last CPU", None),
        ("3-1", 0, "not below its first", Some('3')),
        ("1 2", 2, "',' or the end", Some('2')),
        ("0-3:", 4, "used of each group", None),
        ("0-3:2", 5, "'/'", None),
        ("0-3:2/", 6, "size of the group", None),
        ("0-3:3/2", 4, "used <= group", Some('3')),
        ("0-3:0/2", 4, "used <= group", Some('0')),
        ("0-3:1/0", 4, "used <= group", Some('1')),
        ("65536", 0, "below 65536", Some('6')),
        ("1,99999999999999999999999", 2, "below 65536", Some('9')),
        ("0-4294967296", 2, "below 65536", Some('4')),
        ("0\u{0}", 1, "',' or the end", Some('\0')),
        ("0-ü", 2, "last CPU", Some('ü')),
    ] {
        let error = CpuSet::parse_list(text).unwrap_err();
        assert_eq!(error.offset, offset, "{text:?}: {error}");
        assert!(error.expected.contains(expected), "{text:?}: {error}");
        assert_eq!(error.found, found, "{text:?}: {error}");
    }
    let error = CpuSet::parse_list("0-3,x").unwrap_err();
    assert_eq!(
        error.to_string(),
        "at byte 4: expected a CPU number, found 'x'"
    );
}

#[test]
fn masks_are_read_highest_group_first() {
    for (text, want) in [
        ("0", ""),
        ("f", "0-3"),
        ("00000000,00000001\n", "0"),
        ("1,00000000", "32"),
        ("80000000,00000000,00000001", "0,95"),
        ("F0,0", "36-39"),
        ("00000000,0000000f,ffffffff", "0-35"),
    ] {
        assert_eq!(mask(text).to_string(), want, "{text:?}");
    }
    let wide = "0,".repeat(5000) + "1";
    assert_eq!(mask(&wide).to_string(), "0", "leading zeros are harmless");
}

#[test]
fn a_bad_mask_says_where_and_what_was_expected() {
    for (text, offset, expected) in [
        ("", 0, "a hex digit"),
        ("  ", 2, "a hex digit"),
        (",", 0, "a hex digit"),
        ("f,", 2, "a hex digit"),
        ("f,,f", 2, "a hex digit"),
        ("0x3", 1, "a hex digit or ','"),
        ("f g", 1, "a hex digit or ','"),
        ("123456789", 8, "','"),
    ] {
        let error = CpuSet::parse_mask(text).unwrap_err();
        assert_eq!(error.offset, offset, "{text:?}: {error}");
        assert!(error.expected.contains(expected), "{text:?}: {error}");
    }
    let far = "1,".to_owned() + &"00000000,".repeat(2047) + "00000000";
    let error = CpuSet::parse_mask(&far).unwrap_err();
    assert_eq!((error.offset, error.expected), (0, "no bit from 65536 on"));
}

#[test]
fn masks_are_printed_at_the_kernels_width() {
    assert_eq!(CpuSet::new().mask().to_string(), "0");
    assert_eq!(list("0,32").mask().to_string(), "1,00000001");
    assert_eq!(list("0").mask().width(8).to_string(), "01");
    assert_eq!(list("0").mask().width(36).to_string(), "0,00000001");
    assert_eq!(list("0").mask().width(64).to_string(), "00000000,00000001");
    assert_eq!(list("40").mask().width(8).to_string(), "100,00000000");
}

#[test]
fn a_set_far_up_costs_what_it_spans() {
    let set = list("8000-8007");
    assert_eq!(set.words.len(), 1);
    assert_eq!((set.first(), set.last()), (Some(8000), Some(8007)));
    assert_eq!(set.next(8003), Some(8003));
    assert_eq!(set.next_wrapping(8008), Some(8000));
    assert_eq!(CpuSet::new().next_wrapping(0), None);
    assert!(!set.contains(usize::MAX));
    assert_eq!(set.next(usize::MAX), None);
}

#[test]
#[should_panic(expected = "MAX_CPUS")]
fn a_cpu_past_the_end_is_refused() {
    CpuSet::new().insert(CpuSet::MAX_CPUS);
}

fn cpus() -> impl Strategy<Value = BTreeSet<usize>> {
    let cpu = prop_oneof![
        0usize..200,
        60usize..70,
        8000usize..8200,
        65_500usize..65_536
    ];
    prop::collection::btree_set(cpu, 0..60)
}

fn set_of(cpus: &BTreeSet<usize>) -> CpuSet {
    cpus.iter().copied().collect()
}

fn hash(set: &CpuSet) -> u64 {
    let mut hasher = DefaultHasher::new();
    set.hash(&mut hasher);
    hasher.finish()
}

fn canonical(set: &CpuSet) {
    assert_ne!(set.words.first(), Some(&0));
    assert_ne!(set.words.last(), Some(&0));
    if set.words.is_empty() {
        assert_eq!(set.base, 0);
    }
}

proptest! {
    #[test]
    fn texts_round_trip(cpus in cpus()) {
        let set = set_of(&cpus);
        prop_assert_eq!(&CpuSet::parse_list(&set.to_string()).unwrap(), &set);
        prop_assert_eq!(&CpuSet::parse_mask(&set.mask().to_string()).unwrap(), &set);
        let wide = set.mask().width(8192).to_string();
        prop_assert_eq!(&CpuSet::parse_mask(&wide).unwrap(), &set);
    }

    #[test]
    fn a_set_behaves_as_a_plain_set(cpus in cpus(), from in 0usize..66_000) {
        let set = set_of(&cpus);
        canonical(&set);
        prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), cpus.clone());
        prop_assert!(set.iter().is_sorted());
        prop_assert_eq!(set.len(), cpus.len());
        prop_assert_eq!(set.is_empty(), cpus.is_empty());
        prop_assert_eq!(set.first(), cpus.first().copied());
        prop_assert_eq!(set.last(), cpus.last().copied());
        prop_assert_eq!(set.next(from), cpus.range(from..).next().copied());
        prop_assert_eq!(set.contains(from), cpus.contains(&from));
        let ranges: Vec<usize> = set.ranges().flat_map(|(a, b)| a..=b).collect();
        prop_assert_eq!(ranges, cpus.iter().copied().collect::<Vec<_>>());
    }

    #[test]
    fn algebra_is_that_of_plain_sets(a in cpus(), b in cpus()) {
        let (x, y) = (set_of(&a), set_of(&b));
        let model = [&a & &b, &a | &b, &a - &b, &a ^ &b];
        let sets = [&x & &y, &x | &y, &x - &y, &x ^ &y];
        for (set, model) in sets.iter().zip(&model) {
            canonical(set);
            prop_assert_eq!(set, &set_of(model));
            prop_assert_eq!(hash(set), hash(&set_of(model)));
        }
        let mut in_place = [x.clone(), x.clone(), x.clone(), x.clone()];
        in_place[0] &= &y;
        in_place[1] |= &y;
        in_place[2] -= &y;
        in_place[3] ^= &y;
        prop_assert_eq!(&in_place, &sets);
        prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
        prop_assert_eq!(x.is_superset(&y), a.is_superset(&b));
        prop_assert_eq!(x.intersects(&y), !a.is_disjoint(&b));
        prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
        prop_assert_eq!(x.intersection_len(&y), model[0].len());
        prop_assert_eq!(x.first_common(&y), model[0].first().copied());
        prop_assert_eq!(x == y, a == b);
        // As binary numbers: compare from the highest CPU down.
        let order = a.iter().rev().cmp(b.iter().rev());
        prop_assert_eq!(x.cmp(&y), order);
    }

    #[test]
    fn inserting_and_removing_keeps_the_set_canonical(
        steps in prop::collection::vec((any::<bool>(), 0usize..400), 0..200),
    ) {
        let (mut set, mut model) = (CpuSet::new(), BTreeSet::new());
        for (insert, cpu) in steps {
            let cpu = cpu * 7;
            if insert {
                prop_assert_eq!(set.insert(cpu), model.insert(cpu));
            } else {
                prop_assert_eq!(set.remove(cpu), model.remove(&cpu));
            }
            canonical(&set);
        }
        prop_assert_eq!(set, set_of(&model));
    }

    #[test]
    fn no_text_panics(text in "[0-9a-f,:/ \\-x\n]{0,40}|.{0,20}") {
        for parsed in [CpuSet::parse_list(&text), CpuSet::parse_mask(&text)] {
            if let Err(e) = parsed {
                prop_assert!(e.offset <= text.len());
                prop_assert!(text.is_char_boundary(e.offset), "{e}");
            }
        }
    }
}
