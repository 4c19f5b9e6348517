//! The real command against a program whose queues are controlled by the test: what it prints of known states. The same
//! commands against the real runtime are in `real.rs`.

#[path = "support/fake_program.rs"]
mod fake_program;
mod support;

use fake_program::served_program;
use serde_json::Value;
use support::Served;

/// Not a test of its own: the program that the tests serve, when they start this binary again.
#[test]
fn served() {
    served_program();
}

#[test]
fn a_process_is_named_by_pid_name_or_beginning_of_name() {
    let served = Served::start("storage-engine", false);
    for who in [served.pid().to_string().as_str(), "storage-engine", "stor"] {
        assert!(
            served
                .ok(&["get", who, "ingest", "max_active"])
                .starts_with("16"),
            "{who}"
        );
    }
    let e = served.fails(&["dump", "nobody"]);
    assert!(
        e.contains("no process `nobody`") && e.contains("storage-engine"),
        "{e}"
    );
}

#[test]
fn errors_say_what_to_do() {
    let empty = tempfile::tempdir().unwrap();
    let run = |dir: Option<&str>| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cmwq"));
        command
            .args(["dump", "x"])
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("CMWQ_CONTROL_DIR");
        if let Some(dir) = dir {
            command.args(["--dir", dir]);
        }
        let out = command.output().unwrap();
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8(out.stderr).unwrap()
    };
    let e = run(None);
    assert!(
        e.contains("XDG_RUNTIME_DIR") && e.contains("CMWQ_CONTROL_DIR"),
        "{e}"
    );
    let e = run(Some(empty.path().join("none").to_str().unwrap()));
    assert!(e.contains("cmwq::control::listen()"), "{e}");
}

#[test]
fn dump_as_text_and_json() {
    let served = Served::start("dumped", true);
    let text = served.ok(&["dump", "dumped"]);
    for part in [
        "Affinity Scopes",
        "CACHE_SHARD (default)",
        "Worker Pools",
        "Workqueue CPU -> pool",
        "Unbound workqueue -> node_nr/max_active",
        "Concurrency",
        "Detection of blocked workers",
        "CPU quota: 2.50 CPUs",
        "inactive",
        "slow_item",
        "changes over the control socket: allowed",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = served.json(&["dump", "dumped", "--json"]);
    for key in ["process", "topology", "pools", "workqueues", "detection"] {
        assert!(!json[key].is_null(), "{key}");
    }
    assert_eq!(json["workqueues"][0]["name"], "ingest");
    assert_eq!(json["format"], 1);
    assert!(
        !served
            .ok(&["dump", "dumped", "--no-items"])
            .contains("slow_item")
    );
}

#[test]
fn monitor_once_and_as_a_stream() {
    let served = Served::start("watched", false);
    let text = served.ok(&["monitor", "watched", "-i", "0"]);
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(
        heads,
        [
            "total", "infl", "CPUtime", "CPUlocl", "CPUitsv", "CMW/RPR", "mayday", "rescued"
        ]
    );
    assert!(lines[1].starts_with("ingest"), "{text}");
    assert!(
        !served
            .ok(&["monitor", "watched", "^jour", "-i", "0"])
            .contains("ingest")
    );

    let stream = served.first_lines(&["monitor", "watched", "--json", "-i", "0.05"], 3);
    let totals: Vec<u64> = stream
        .iter()
        .map(|l| {
            serde_json::from_str::<Value>(l).unwrap()["workqueues"][0]["started"]
                .as_u64()
                .unwrap()
        })
        .collect();
    assert!(
        totals.windows(2).all(|w| w[0] <= w[1]) && totals[0] < totals[2],
        "{totals:?}"
    );
    assert!(served.fails(&["monitor", "watched", "("]).contains("regex"));
}

#[test]
fn latency_tables_and_comparisons() {
    let served = Served::start("timed", false);
    let text = served.ok(&["latency", "timed"]);
    for part in [
        "queue to start",
        "run time",
        "median",
        "p99.9",
        "stdev",
        "ingest",
        "####",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let saved = served.dir().join("before.json");
    let saved = saved.to_str().unwrap();
    served.ok(&["latency", "timed", "--save", saved]);
    let text = served.ok(&["latency", "timed", "ingest", "--against", saved]);
    assert!(text.contains("change") && text.contains('%'), "{text}");
    let json = served.json(&["latency", "timed", "ingest", "--json", "-i", "0.3"]);
    let figures = &json["workqueues"]["ingest"]["run_time"];
    let (min, median, max) = (
        figures["min_us"].as_f64(),
        figures["median_us"].as_f64(),
        figures["max_us"].as_f64(),
    );
    assert!(
        min <= median && median <= max && median > Some(500.0),
        "{json}"
    );

    let other = served.another("other", false);
    let text = served.ok(&[
        "latency",
        "timed",
        "ingest",
        "--against",
        &other.pid().to_string(),
        "--no-bars",
    ]);
    assert!(text.contains(&other.pid().to_string()), "{text}");
    assert!(
        served
            .fails(&["latency", "timed", "nothing"])
            .contains("ingest")
    );
    assert!(
        served
            .fails(&["latency", "timed", "--against", "/nonexistent.json"])
            .contains("cannot open")
    );
}

#[test]
fn get_and_set() {
    let served = Served::start("steered", true);
    assert_eq!(
        served.ok(&["get", "steered", "ingest", "affinity_scope"]),
        "default (cache_shard)\n"
    );
    assert_eq!(
        served.ok(&["set", "steered", "ingest", "max_active=3"]),
        "ingest max_active=3\n"
    );
    assert_eq!(
        served.ok(&["get", "steered", "ingest", "max_active"]),
        "3\n"
    );
    assert_eq!(
        served.ok(&["get", "steered", "ingest", "min_active"]),
        "3\n"
    );
    let text = served.ok(&[
        "set",
        "steered",
        "ingest",
        "cpumask=0-2",
        "affinity_scope=numa",
        "affinity_strict=1",
    ]);
    assert_eq!(
        text,
        "ingest cpumask=07 (CPUs 0-2)\ningest affinity_scope=numa\ningest affinity_strict=1\n"
    );
    let text = served.ok(&["set", "steered", "ingest", "max_active=5000"]);
    assert!(
        text.contains("max_active=2048") && text.contains("clamped"),
        "{text}"
    );
    assert_eq!(
        served.ok(&["set", "steered", "watchdog_thresh=7"]),
        "watchdog_thresh=7\n"
    );
    assert_eq!(served.ok(&["get", "steered", "debug_force_rr_cpu"]), "N\n");

    for (words, says) in [
        (&["ingest", "max_active=0"][..], "out of range"),
        (&["ingest", "cpumask=100"], "EOVERFLOW"),
        (&["ingest", "affinity_scope=Cache"], "did you mean `cache`"),
        (&["journal", "max_active=2"], "one item at a time"),
        (&["nosuch", "nice=1"], "there are: ingest"),
        (&["ingest", "per_cpu=1"], "read-only"),
        (&["cpumask=0"], "no CPU"),
    ] {
        let mut all = vec!["set", "steered"];
        all.extend(words);
        let e = served.fails(&all);
        assert!(e.contains(says), "{words:?}: {e}");
    }
    let all = served.ok(&["get", "steered"]);
    assert!(
        all.contains("ingest max_active=2048") && all.contains("journal max_active="),
        "{all}"
    );
    assert!(
        !all.lines().any(|l| l.starts_with("journal min_active")),
        "an ordered queue has none"
    );
    let json = served.json(&["get", "steered", "ingest", "--json"]);
    assert_eq!(json["workqueues"]["ingest"]["affinity_scope"], "numa");
    assert!(
        served
            .fails(&["get", "steered", "whatever"])
            .contains("neither a workqueue")
    );
}

#[test]
fn a_process_that_allows_no_changes_is_not_changed() {
    let served = Served::start("sealed", false);
    let e = served.fails(&["set", "sealed", "ingest", "max_active=3"]);
    assert!(e.contains("EPERM") && e.contains("allow_set"), "{e}");
    assert_eq!(
        served.ok(&["get", "sealed", "ingest", "max_active"]),
        "16\n"
    );
}

#[test]
fn metrics_advice_and_trace() {
    let served = Served::start("measured", false);
    let text = served.ok(&["metrics", "measured"]);
    assert!(
        text.contains("# TYPE cmwq_workqueue_started_total counter"),
        "{text}"
    );
    assert!(
        text.lines()
            .any(|l| l
                .starts_with("cmwq_workqueue_queue_to_start_seconds_count{workqueue=\"ingest\"}")),
        "{text}"
    );

    let advice = served.json(&["advise", "measured", "--json", "-i", "1.2"]);
    let journal = advice["advice"]
        .as_array()
        .unwrap()
        .iter()
        .find(|a| a["workqueue"] == "journal" && a["rule"] == "starving");
    assert!(
        journal.expect("two items wait for the ordered queue")["says"]
            .as_str()
            .unwrap()
            .contains("ordered"),
        "{advice}"
    );
    assert!(
        served
            .ok(&["advise", "measured", "-i", "0"])
            .contains("[starving] journal:")
    );

    let file = served.dir().join("t.json");
    served.ok(&[
        "trace",
        "measured",
        "-d",
        "0.3",
        "-o",
        file.to_str().unwrap(),
    ]);
    let timeline: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    assert!(
        events
            .iter()
            .any(|e| e["ph"] == "X" && e["name"] == "ingest_item"),
        "no item was drawn"
    );
    let text = served.ok(&["trace", "measured", "-d", "0.1", "-o", "-"]);
    assert!(serde_json::from_str::<Value>(&text).is_ok());
    assert!(
        served
            .fails(&["trace", "measured", "nosuch"])
            .contains("there are")
    );
}
