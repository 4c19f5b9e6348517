//! The command as a user runs it: tables on standard output, rows in the common form, a page, errors that name the input.

use std::fs;
use std::process::{Command, Output};

use cmwq_measure::{Document, Verdict};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(arguments)
        .output()
        .expect("cargo built it")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_quick_run_prints_tables_and_writes_valid_rows_and_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let (json, page) = (dir.path().join("rows.json"), dir.path().join("page.html"));
    let out = bench(&[
        "--quick",
        "--rounds=2",
        "--only=pp,ext",
        "--peers=rayon,crossbeam,libdispatch,cmwq",
        "--json",
        json.to_str().unwrap(),
        "--report",
        page.to_str().unwrap(),
    ]);
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(out.status.success(), "{stdout}{stderr}");
    for part in [
        "floor of this machine",
        "ext: empty items",
        "pp: one item",
        "ratio, paired",
        "ns/item / crossbeam",
        "bars:",
    ] {
        assert!(stdout.contains(part), "{part:?} is missing from\n{stdout}");
    }
    let document = Document::from_json(&fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(document.scenarios(), ["floor", "ext", "pp"]);
    // In the order of the pools, whatever the order on the command line; a pool that is missing has its reason.
    let rows: Vec<_> = document.rows_of("ext").collect();
    assert_eq!(
        rows.iter().map(|r| r.setting.as_str()).collect::<Vec<_>>(),
        ["cmwq", "crossbeam", "rayon", "libdispatch"]
    );
    for row in rows {
        match &row.error {
            None => {
                let ns = &row.figures["ext_ns"];
                assert!(
                    ns.unit == "ns" && ns.spread.mean > 0.0 && ns.spread.n == Some(2),
                    "{row:?}"
                );
                assert!(row.items_per_s.is_some());
            }
            Some(why) => assert!(
                why == "not installed" || why.contains("feature") || why.contains("switch"),
                "{row:?}"
            ),
        }
    }
    assert!(
        document
            .rows_of("pp")
            .any(|r| r.latency_us.is_some_and(|l| l.p50 > Some(0.0)))
    );
    assert!(document.versions.contains_key("rayon"));
    // Two rounds decide nothing.
    assert!(
        document
            .verdicts
            .iter()
            .all(|v| v.verdict == Verdict::Undecided),
        "{:?}",
        document.verdicts
    );
    assert!(fs::read_to_string(page).unwrap().contains("<h2>ext</h2>"));
}

#[test]
fn unknown_names_are_errors_that_name_them() {
    for (arguments, wanted) in [
        (["--only", "nosuch"], "no workload \"nosuch\""),
        (["--peers", "nopool"], "no pool \"nopool\""),
    ] {
        let out = bench(&arguments);
        assert!(!out.status.success());
        assert!(text(&out.stderr).contains(wanted), "{}", text(&out.stderr));
    }
}

#[test]
fn a_child_answers_with_its_error() {
    let out = bench(&[
        "child",
        "nopool",
        "ext",
        "--threads=1",
        "--steps-per-us=1",
        "--quick",
    ]);
    assert!(out.status.success());
    assert!(
        text(&out.stdout).contains("no pool"),
        "{}",
        text(&out.stdout)
    );
    assert!(text(&out.stdout).starts_with("{\"error\":"));
}

#[test]
fn the_list_and_the_single_mode_work() {
    let out = bench(&["--list"]);
    assert!(text(&out.stdout).contains("crossbeam") && text(&out.stdout).contains("handover"));
    assert!(bench(&["one", "crossbeam", "ext", "500"]).status.success());
    assert!(!bench(&["one", "crossbeam", "lat", "500"]).status.success());
}
