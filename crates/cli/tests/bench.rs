//! `cmwq bench` and `cmwq` alone, from outside: rows in the common form, a page, errors that end with status 1.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn cmwq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cmwq"))
        .args(args)
        .output()
        .unwrap()
}

/// The object that a command prints, valid.
fn rows(args: &[&str]) -> Value {
    rows_of(cmwq(args), args)
}

fn rows_of(out: Output, args: &[&str]) -> Value {
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {errors}");
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(cmwq_measure::validate(&json), [], "{args:?}");
    json
}

/// Every bench there is, as short as it can be; their names come from the help, so that none is forgotten.
#[test]
fn every_bench_and_the_simulator_print_the_one_form() {
    let help = cmwq(&["bench", "--help"]);
    let help = String::from_utf8(help.stdout).unwrap();
    let names: Vec<&str> = help
        .lines()
        .skip_while(|l| !l.starts_with("Commands:"))
        .skip(1)
        .take_while(|l| !l.is_empty())
        // Names are indented by two, what is said of them by more.
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() >= 8, "{help}");
    for name in names {
        let short: &[&str] = match name {
            "blocking" => &["--quick", "--rounds", "1"],
            "cost" => &[
                "--rounds", "3", "--items", "100", "--queues", "2", "--timers", "1",
            ],
            "crypt" => &[
                "--scenario",
                "med",
                "--scopes",
                "system,default",
                "--rounds",
                "1",
                "--runtime",
                "0.02",
            ],
            "scopes" => &[
                "--rounds",
                "1",
                "--max-rounds",
                "1",
                "--runtime",
                "0.02",
                "--scenario",
                "sync",
                "--settings",
                "system,default",
            ],
            "queue" => &["--items", "20", "--rounds", "1", "--scopes", "default"],
            "limit" => &[
                "--limits",
                "2",
                "--rounds",
                "1",
                "--runtime",
                "0.02",
                "--scopes",
                "default",
            ],
            "latency" => &[
                "--launches",
                "1",
                "--burst",
                "2",
                "--rest",
                "1",
                "--rounds",
                "1",
            ],
            "monitor" => &["--rounds", "1", "--runtime", "0.2", "--interval", "0.1"],
            "reality" => &["--rounds", "4", "--window", "5"],
            other => panic!("no short run of `cmwq bench {other}` is known: add it here"),
        };
        let mut args = vec!["bench", name, "--json"];
        args.extend(short);
        let json = rows(&args);
        assert_eq!(
            (json["format"].as_str(), json["version"].as_u64()),
            (Some("cmwq-rows"), Some(1))
        );
        assert_eq!(json["tool"], format!("cmwq bench {name}"));
        assert!(!json["rows"].as_array().unwrap().is_empty(), "{name}");
    }
    let json = rows(&[
        "sim",
        "--json",
        "--scenario",
        "llow",
        "--settings",
        "system",
        "--seeds",
        "1",
    ]);
    assert_eq!(json["tool"], "cmwq sim");
    assert_eq!(json["machine"]["simulated"], true);
}

#[test]
fn watching_is_measured_with_a_monitor_that_really_looks() {
    let json = rows(&[
        "bench",
        "monitor",
        "--rounds",
        "2",
        "--runtime",
        "0.6",
        "--interval",
        "0.1",
        "--json",
    ]);
    assert_eq!(
        settings(&json, "monitor"),
        ["alone", "monitor", "monitor-x100"]
    );
    let serving = |row: usize| json["rows"][row]["figures"]["serving_us_per_s"]["mean"].as_f64();
    if std::path::Path::new("/proc/self/schedstat").exists() {
        assert!(serving(1) > Some(0.0), "{json}");
    }
    let verdicts = json["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 9);
    // Two rounds are too few for an answer, but the figure behind it is there: ten looks a second here.
    let own = verdicts.iter().find(|v| v["metric"] == "look_percent");
    let own = own.expect("what a look takes for itself")["estimate"].as_f64();
    assert!(own > Some(0.0) && own < Some(50.0), "{own:?}");
    let out = cmwq(&["bench", "monitor", "--runtime", "0.5"]);
    assert!(!out.status.success());
    assert!(String::from_utf8_lossy(&out.stderr).contains("at least --interval"));
}

fn settings(json: &Value, scenario: &str) -> Vec<String> {
    let rows = json["rows"].as_array().unwrap();
    rows.iter()
        .filter(|r| r["scenario"] == scenario)
        .map(|r| r["setting"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn crypt_prints_rows_in_the_common_form() {
    let json = rows(&[
        "bench",
        "crypt",
        "--scenario",
        "med,think",
        "--runtime",
        "0.03",
        "--rounds",
        "2",
        "--json",
        "--scopes",
        "system,cache-strict,default,thread",
    ]);
    assert_eq!(json["tool"], "cmwq bench crypt");
    assert_eq!(json["settings"]["rounds"], 2);
    for scenario in ["med", "think"] {
        assert_eq!(
            settings(&json, scenario),
            ["system", "cache-strict", "default", "thread"]
        );
    }
    for row in json["rows"].as_array().unwrap() {
        assert!(row["bandwidth_mib_s"]["mean"].as_f64() > Some(0.0), "{row}");
        assert_eq!(row["bandwidth_mib_s"]["n"], 2);
        let of = if row["scenario"] == "med" {
            "machine"
        } else {
            "one-cpu"
        };
        assert_eq!(row["cpu_util_of"], of);
        for member in ["mean", "p50", "p95", "p99"] {
            assert!(row["latency_us"][member].as_f64() > Some(0.0), "{row}");
        }
        assert!(row["vs_system_percent"].is_number());
        assert!(row["migrations_per_item"].is_number());
        assert!(row["figures"]["started_on_issuing_cpu_percent"].is_object());
        assert_eq!(
            row["started_in_pod_percent"].is_number(),
            row["setting"] != "thread"
        );
    }
    let names: Vec<&str> = json["verdicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn queue_limit_and_latency_print_rows_in_the_common_form() {
    let json = rows(&["bench", "queue", "--items", "50", "--rounds", "2", "--json"]);
    assert_eq!(
        settings(&json, "queue"),
        [
            "cpu",
            "smt",
            "cache-shard",
            "cache",
            "numa",
            "system",
            "default"
        ]
    );
    for row in json["rows"].as_array().unwrap() {
        assert!(row["items_per_s"]["mean"].as_f64() > Some(0.0), "{row}");
        let threads = json["settings"]["threads"].as_u64().unwrap();
        assert_eq!(row["latency_us"]["count"].as_u64(), Some(2 * 50 * threads));
    }

    let json = rows(&[
        "bench",
        "limit",
        "--limits",
        "2,64",
        "--rounds",
        "1",
        "--runtime",
        "0.05",
        "--json",
    ]);
    assert_eq!(
        settings(&json, "limit"),
        ["default-2", "default-64", "cache-2", "cache-64"]
    );
    for row in json["rows"].as_array().unwrap() {
        let most = row["figures"]["most_at_once"]["mean"].as_f64().unwrap();
        let limit: f64 = row["setting"]
            .as_str()
            .unwrap()
            .rsplit('-')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(most >= 1.0 && most <= limit, "{row}");
    }

    let json = rows(&[
        "bench",
        "latency",
        "--launches",
        "3",
        "--burst",
        "4",
        "--rest",
        "1",
        "--rounds",
        "1",
        "--json",
    ]);
    assert_eq!(settings(&json, "latency").len(), 7);
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["latency_us"]["count"], 12, "{row}");
        assert!(row["latency_us"]["stdev"].is_number());
    }
}

#[test]
fn a_page_is_written_and_holds_the_machine_and_all_settings() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("report.html");
    let out = cmwq(&[
        "bench",
        "crypt",
        "--scenario",
        "llow",
        "--runtime",
        "0.03",
        "--rounds",
        "1",
        "--report",
        page.to_str().unwrap(),
    ]);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(
        text.contains("llow: 512 bytes, depth 4, 1 job on CPU"),
        "{text}"
    );
    let html = std::fs::read_to_string(&page).unwrap();
    for expected in [
        "<!doctype html>",
        "online CPU",
        "cache-strict",
        "pool-per-cpu",
        "<svg",
        "scopes",
    ] {
        assert!(html.contains(expected), "{expected} is not in the page");
    }
    assert!(
        !html.contains("http://") || html.contains("www.w3.org"),
        "the page loads nothing"
    );
}

#[test]
fn a_file_device_is_made_and_holds_no_plaintext_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("device");
    let json = rows(&[
        "bench",
        "crypt",
        "--scenario",
        "sync",
        "--runtime",
        "0.03",
        "--rounds",
        "1",
        "--scopes",
        "default",
        "--json",
        "--file",
        file.to_str().unwrap(),
    ]);
    assert_eq!(json["settings"]["device"], "file");
    let bytes = std::fs::read(&file).unwrap();
    // Block 1 of job 0 would begin with eight zero bytes and a one.
    assert!(!bytes[512..].starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 1]));
    assert!(bytes[512..1024].iter().any(|b| *b != 0));
}

#[test]
fn works_on_one_cpu() {
    let args = [
        "bench",
        "crypt",
        "--runtime",
        "0.02",
        "--rounds",
        "1",
        "--json",
        "--scopes",
        "system,default,thread,pool-per-cpu",
    ];
    let out = Command::new("taskset")
        .args(["-c", &first_cpu().to_string(), env!("CARGO_BIN_EXE_cmwq")])
        .args(args)
        .output();
    match out {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => println!("skipped: no taskset"),
        out => {
            let json = rows_of(out.unwrap(), &args);
            assert_eq!(json["machine"]["cpus"], 1);
            assert_eq!(json["rows"].as_array().unwrap().len(), 24);
        }
    }
}

fn first_cpu() -> usize {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU)
        .find(|c| set.is_set(*c))
        .unwrap()
}

#[test]
fn made_up_caches_are_those_of_the_runtime() {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    let n = set.count();
    if (0..n as usize).any(|c| !set.is_set(c)) {
        println!("skipped: the CPUs of this process are not the first ones");
        return;
    }
    let json = rows(&[
        "bench",
        "queue",
        "--items",
        "20",
        "--rounds",
        "1",
        "--json",
        "--scopes",
        "cache,default",
        "--synthetic",
        &format!("package:1 l3:{n} core:1"),
    ]);
    let topology = json["machine"]["topology"].as_str().unwrap();
    assert!(topology.contains("made up"), "{topology}");
    if n > 1 {
        assert!(
            topology.contains(&format!("{n} last-level caches")),
            "{topology}"
        );
    }
}

#[test]
fn what_cannot_be_measured_says_so() {
    for (args, expected) in [
        (
            &["bench", "queue", "--scopes", "thread", "--rounds", "1"][..],
            "is no workqueue",
        ),
        (
            &["bench", "limit", "--scopes", "pool", "--rounds", "1"][..],
            "is no workqueue",
        ),
        (&["bench", "queue", "--scopes", "cpu,cpu"][..], "twice"),
        (
            &["bench", "latency", "--synthetic", "package:77"][..],
            "the same ones",
        ),
        (
            &[
                "bench",
                "crypt",
                "--file",
                "/nonexistent/device",
                "--scenario",
                "sync",
            ][..],
            "/nonexistent/device",
        ),
    ] {
        let out = cmwq(args);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {errors}");
        assert!(errors.contains(expected), "{args:?}: {errors}");
    }
}

#[test]
fn fio_through_the_server_where_fio_is_installed() {
    if Command::new("fio").arg("--version").output().is_err() {
        println!("skipped: fio is not installed");
        return;
    }
    let args = [
        "bench",
        "crypt",
        "--fio",
        "--scenario",
        "low,think",
        "--runtime",
        "0.2",
        "--rounds",
        "1",
        "--scopes",
        "system,default,thread",
        "--json",
    ];
    let out = cmwq(&args);
    let errors = String::from_utf8_lossy(&out.stderr).into_owned();
    if !out.status.success() && errors.contains("nbdkit") {
        println!("skipped: nbdkit, which is measured beside, failed here: {errors}");
        return;
    }
    let json = rows_of(out, &args);
    for scenario in ["fio-low", "fio-think"] {
        let have = settings(&json, scenario);
        assert!(
            have.starts_with(&["system".into(), "default".into(), "thread".into()]),
            "{have:?}"
        );
    }
    for row in json["rows"].as_array().unwrap() {
        assert!(row["bandwidth_mib_s"]["mean"].as_f64() > Some(0.0), "{row}");
        let cpu = row["figures"]["server_cpu_per_mib"]["mean"].as_f64();
        // With a thinking client so short a run costs about as much as its connections, and may have no figure.
        match row["scenario"].as_str().unwrap() {
            "fio-low" => assert!(cpu > Some(0.0), "{row}"),
            _ => assert!(cpu.is_none_or(|c| c > 0.0), "{row}"),
        }
    }
}

#[test]
fn without_arguments_the_machine_comes_first_and_help_still_helps() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cmwq"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut seen = String::new();
    for line in out.lines() {
        seen += &line.unwrap();
        seen.push('\n');
        // The first table: the machine and its scopes came before.
        if seen.contains("high: 32 KiB, depth 64") {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for expected in [
        "online CPU",
        "scopes",
        "cache_shard",
        "(default)",
        "high: 32 KiB",
    ] {
        assert!(seen.contains(expected), "{expected}: {seen}");
    }
    let help = cmwq(&["--help"]);
    assert!(help.status.success());
    let help = String::from_utf8(help.stdout).unwrap();
    for expected in ["bench", "topology", "Without a subcommand"] {
        assert!(help.contains(expected), "{help}");
    }
}
