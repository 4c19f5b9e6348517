//! `cmwq topology` as a user runs it.

use serde_json::Value;
use std::process::{Command, Output};

fn cmwq(args: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_cmwq")).args(args).output();
    run.expect("the command starts")
}

fn stdout(args: &[&str]) -> String {
    let output = cmwq(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[args, &["--json"]].concat())).expect("JSON")
}

fn refused(args: &[&str]) -> String {
    let output = cmwq(args);
    assert!(!output.status.success(), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn json_has_the_pods_of_every_scope() {
    let value = json(&["topology", "--synthetic", "package:2 l3:2 core:2 thread:2"]);
    assert_eq!(value["cpus"]["possible"], "0-15");
    assert_eq!(value["cpus"]["online"], "0-15");
    assert_eq!(value["cpus"]["present"], "0-15");
    for (scope, nr_pods) in [
        ("cpu", 16),
        ("smt", 8),
        ("cache_shard", 4),
        ("cache", 4),
        ("numa", 2),
        ("system", 1),
    ] {
        let scope = &value["scopes"][scope];
        assert_eq!(scope["nr_pods"], nr_pods);
        assert_eq!(scope["pods"].as_array().unwrap().len(), nr_pods);
    }
    assert_eq!(value["scopes"]["cache"]["pods"][1]["cpus"], "2-3,10-11");
    assert_eq!(value["scopes"]["cache"]["pods"][3]["node"], 1);
    assert_eq!(value["scopes"]["system"]["pods"][0]["node"], -1);
    assert_eq!(value["scopes"]["cache"]["cpu_pod"]["10"], 1);
    assert_eq!(value["process"], Value::Null);
    assert_eq!(value["cpu"][9]["siblings"], "1,9");
}

#[test]
fn chosen_cpus_cut_the_pods() {
    let spec = "package:2 l3:2 core:2";
    let value = json(&[
        "topology",
        "--synthetic",
        spec,
        "--cpus",
        "1-4",
        "--scope",
        "cache",
    ]);
    let scopes = value["scopes"].as_object().unwrap();
    assert_eq!(scopes.len(), 1);
    let pods = &scopes["cache"]["pods"];
    let cpus: Vec<&str> = pods
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["cpus"].as_str().unwrap())
        .collect();
    assert_eq!(cpus, ["1", "2-3", "4"]);
    assert_eq!(value["cpus"]["possible"], "0-7");
    assert_eq!(value["cpus"]["unbound"], "1-4");
}

#[test]
fn people_get_a_drawing_and_the_layout_of_wq_dump() {
    let spec = "package:1 l3:2 core:2 thread:2 offline=3 isolated=0";
    let text = stdout(&["topology", "--synthetic", spec]);
    for line in [
        "x86: 1 package, 1 node, 2 cache groups, 4 cores, 7 online CPUs",
        "package 0  CPUs 0-7",
        "  L3  [0i 4][1 5]",
        "  L3  [2 6][(3) 7]",
        "(n) offline, ni isolated",
        "Affinity Scopes",
        "wq_unbound_cpumask=000000fe",
        "CACHE_SHARD (default)",
        "CACHE",
        "  nr_pods  2",
        "  pod_cpus [0]=00000033 [1]=000000cc",
        "  pod_node [0]=0 [1]=0",
        "  cpu_pod  [0]=0 [1]=0 [2]=1 [3]=1 [4]=0 [5]=0 [6]=1 [7]=1",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "{line:?} is not in\n{text}"
        );
    }
    let wide = stdout(&["topology", "--synthetic", "core:40", "--scope", "system"]);
    assert!(
        wide.contains("  pod_cpus [0]=ffffffff 000000ff\n"),
        "{wide}"
    );
}

#[test]
fn this_machine_is_shown_with_what_the_process_may_use() {
    let value = json(&["topology"]);
    assert!(value["process"]["parallelism"].as_u64().unwrap() >= 1);
    assert_ne!(value["process"]["usable"], "");
    let text = stdout(&["topology", "--scope", "default"]);
    assert!(text.contains("CACHE_SHARD (default)"), "{text}");
}

#[test]
fn a_damaged_tree_is_shown_with_warnings_that_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let cpu = dir.path().join("sys/devices/system/cpu");
    std::fs::create_dir_all(cpu.join("cpu0")).unwrap();
    std::fs::write(cpu.join("possible"), "zero").unwrap();
    let root = dir.path().to_str().unwrap();
    let text = stdout(&["topology", "--root", root]);
    let named = format!(
        "{}: at byte 0: expected a CPU number, found 'z'",
        cpu.join("possible").display()
    );
    assert!(text.lines().any(|l| l == named), "{text}");
    let value = json(&["topology", "--root", root]);
    let warnings = value["warnings"].as_array().unwrap();
    assert!(
        warnings
            .iter()
            .any(|w| w["path"].as_str().unwrap().ends_with("cpu/possible"))
    );
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    for (args, reason) in [
        (
            &["--root", "/nonexistent"][..],
            "/nonexistent/sys/devices/system/cpu is no folder",
        ),
        (&["--synthetic", "socket:2"], "at byte 0: expected a level"),
        (
            &["--synthetic", "core:4", "--cpus", "2-9"],
            "CPUs 4-9 do not exist here; possible are 0-3",
        ),
        (&["--synthetic", "core:4", "--cpus", ""], "at least one CPU"),
        (&["--cpus", "0-"], "at byte 2"),
        (&["--scope", "Cache"], "unknown affinity scope \"Cache\""),
        (
            &["--root", "/", "--synthetic", "core:4"],
            "cannot be used with",
        ),
    ] {
        let text = refused(&[&["topology"], args].concat());
        assert!(text.contains(reason), "{args:?}: {text}");
    }
}
