//! What a browser's trace viewer takes for granted about a timeline.
#![allow(dead_code)] // Each test program uses a part of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Checks the whole file and gives back its events.
pub(crate) fn check(timeline: &Value) -> Vec<Value> {
    assert!(timeline["otherData"]["events_lost"].is_u64());
    let events = timeline["traceEvents"].as_array().unwrap().clone();
    let mut named = BTreeSet::new();
    let mut slices: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    let mut queued = BTreeSet::new();
    for e in &events {
        let text = |key: &str| e[key].as_str().unwrap_or_else(|| panic!("no {key}: {e}"));
        let number = |key: &str| e[key].as_f64().unwrap_or_else(|| panic!("no {key}: {e}"));
        assert!(e["pid"].is_u64() && e["tid"].is_u64(), "{e}");
        let tid = e["tid"].as_u64().unwrap();
        assert!(!text("name").is_empty(), "{e}");
        match text("ph") {
            "M" => {
                assert!(e["args"]["name"].is_string(), "{e}");
                named.insert(tid);
                continue;
            }
            "X" => {
                assert!(number("dur") >= 0.0, "{e}");
                assert!(["item", "blocked"].contains(&text("cat")), "{e}");
                slices
                    .entry(tid)
                    .or_default()
                    .push((number("ts"), number("ts") + number("dur")));
            }
            "s" => {
                queued.insert(e["id"].to_string());
            }
            "f" => assert_eq!(text("bp"), "e"),
            "i" => assert_eq!(text("s"), "t"),
            other => panic!("a phase that is not ours: {other}"),
        }
        assert!(number("ts") >= 0.0, "{e}");
        match (text("ph"), text("name")) {
            ("i", "queue_work") => {
                for key in ["workqueue", "func"] {
                    assert!(e["args"][key].is_string(), "{e}");
                }
                for key in ["cpu", "pool"] {
                    assert!(e["args"][key].is_u64(), "{e}");
                }
            }
            ("X", _) if e["cat"] == "item" => {
                for key in ["workqueue", "pool"] {
                    assert!(!e["args"][key].is_null(), "{e}");
                }
            }
            ("X", _) => assert!(e["args"]["seen_by"].is_string(), "{e}"),
            _ => {}
        }
    }
    for e in &events {
        let tid = e["tid"].as_u64().unwrap();
        assert!(named.contains(&tid), "a thread without a name: {e}");
    }
    // Arrows that end have begun, but for items that were queued before the trace.
    let arrows = events.iter().filter(|e| e["ph"] == "f");
    let (ended, begun) = arrows.fold((0, 0), |(all, known), e| {
        (
            all + 1,
            known + u32::from(queued.contains(&e["id"].to_string())),
        )
    });
    assert!(ended == 0 || begun > 0, "no arrow has a beginning");
    // Slices of one thread lie in each other or beside each other: a viewer cannot draw others.
    for (tid, slices) in &mut slices {
        slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (from, to) in slices {
            while open.last().is_some_and(|end| *end <= *from + 1e-6) {
                open.pop();
            }
            if let Some(end) = open.last() {
                assert!(
                    *to <= *end + 1e-3,
                    "thread {tid}: {from}..{to} leaves {end}"
                );
            }
            open.push(*to);
        }
    }
    events
}
