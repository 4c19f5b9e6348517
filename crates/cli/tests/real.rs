//! The real command against the real runtime: every command that sees or steers a live process, on a terminal too. The
//! program is the library's example `live`.

#[path = "../../cmwq/examples/live.rs"]
#[allow(dead_code)]
mod live;
mod support;
#[path = "support/terminal.rs"]
mod terminal;
#[path = "support/timeline.rs"]
mod timeline;

use serde_json::Value;
use support::{ALLOW, NAME, Served};
use terminal::Terminal;

/// Not a test of its own: the program that the tests serve, when they start this binary again.
#[test]
fn served() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let mut args = vec!["--name".to_owned(), name];
    if std::env::var_os(ALLOW).is_some() {
        args.push("--allow-set".to_owned());
    }
    println!();
    live::run(&args).unwrap();
    std::process::exit(0);
}

/// The row of a table that begins with this word.
fn row<'a>(text: &'a str, begins: &str) -> Vec<&'a str> {
    text.lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .find(|w| w.first() == Some(&begins))
        .unwrap_or_else(|| panic!("no row {begins} in\n{text}"))
}

fn queue<'a>(json: &'a Value, name: &str) -> &'a Value {
    json["workqueues"]
        .as_array()
        .unwrap()
        .iter()
        .find(|q| q["name"] == name)
        .unwrap_or_else(|| panic!("no queue {name} in {json}"))
}

#[test]
fn list_shows_processes_queues_and_rates() {
    let served = Served::start("lister", false);
    let text = served.ok(&["list"]);
    assert!(
        text.contains("lister") && text.contains("read-only"),
        "{text}"
    );
    let rate: f64 = row(&text, "ingest")[4]
        .trim_end_matches('k')
        .parse()
        .unwrap();
    assert!(rate > 0.0, "{text}");
    let json = served.json(&["list", "--json", "-i", "0.2"]);
    assert_eq!(json[0]["pid"], served.pid());
    assert!(
        queue(&json[0], "ingest")["items_per_second"]
            .as_f64()
            .unwrap()
            > 0.0,
        "{json}"
    );
}

#[test]
fn dump_shows_pools_workers_items_limits_and_the_rescuer() {
    let served = Served::start("dumped", true);
    let text = served.ok(&["dump", "dumped"]);
    for part in [
        "Affinity Scopes",
        "CACHE_SHARD (default)",
        "Worker Pools",
        "Workqueue CPU -> pool",
        "Workqueue -> rescuer",
        "Unbound workqueue -> node_nr/max_active",
        "Concurrency",
        "Counters",
        "MOST-WAITING",
        "hung=",
        "Detection of blocked workers",
        "live::rebuild_index",
        "index of last week",
        "changes over the control socket: allowed",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    assert!(
        text.lines()
            .any(|l| l.starts_with("said") && l.contains("in_force")),
        "{text}"
    );
    let json = served.json(&["dump", "dumped", "--json"]);
    for key in ["process", "topology", "pools", "workqueues", "detection"] {
        assert!(!json[key].is_null(), "{key}");
    }
    let journal = queue(&json, "journal");
    assert_eq!(journal["kind"], "ordered");
    assert_eq!(
        (
            journal["in_flight"]["total"].as_u64(),
            journal["inactive"]["total"].as_u64()
        ),
        (Some(1), Some(2))
    );
    let tid = journal["in_flight"]["items"][0]["tid"].as_u64().unwrap();
    assert!(
        std::path::Path::new(&format!("/proc/{}/task/{tid}", served.pid())).exists(),
        "the thread is real"
    );
    assert!(queue(&json, "fetch")["rescuer"]["tid"].as_u64().unwrap() > 0);
    assert_eq!(queue(&json, "ticks")["kind"], "per_cpu");
    assert_eq!(queue(&json, "events_unbound")["delayed"], 1);
    assert!(
        queue(&json, "ingest")["counters"]["queued"]
            .as_u64()
            .unwrap()
            > 0
    );
    let pools = json["pools"].as_array().unwrap();
    assert!(
        pools.iter().any(|p| p["kind"] == "per_cpu")
            && pools.iter().any(|p| p["kind"] == "unbound")
    );
    assert!(
        pools.iter().any(|p| p["nice"] == -20),
        "the urgent queue has a pool of its own"
    );
}

#[test]
fn monitor_counts_what_is_done_and_the_cpu_time_of_the_threads() {
    let served = Served::start("watched", false);
    let text = served.ok(&["monitor", "watched", "-i", "0"]);
    assert_eq!(
        text.lines()
            .next()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>(),
        [
            "total", "infl", "CPUtime", "CPUlocl", "CPUitsv", "CMW/RPR", "mayday", "rescued"
        ]
    );
    assert_eq!(
        row(&text, "journal")[2],
        "1",
        "one of the journal's is in flight:\n{text}"
    );
    let stream = served.first_lines(&["monitor", "watched", "--json", "-i", "0.2"], 4);
    let looks: Vec<Value> = stream
        .iter()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let of = |look: &Value, key: &str| queue(look, "ingest")[key].as_u64().unwrap();
    for pair in looks.windows(2) {
        for key in ["started", "completed", "cpu_time"] {
            assert!(
                of(&pair[0], key) <= of(&pair[1], key),
                "{key} goes back: {pair:?}"
            );
        }
    }
    let (first, last) = (&looks[0], &looks[3]);
    let items = of(last, "completed") - of(first, "completed");
    let cpu_us = of(last, "cpu_time") - of(first, "cpu_time");
    // Items spin for 60 us by the clock; on a busy machine they are on a CPU for less of that.
    let each = cpu_us as f64 / items as f64;
    assert!(
        items > 0 && each > 3.0 && each < 3000.0,
        "{each} us of CPU time for each of {items} items"
    );
    // What sleeps uses no CPU time to speak of.
    let sleeps = queue(last, "journal")["cpu_time"].as_u64().unwrap();
    assert!(sleeps < 1_000_000, "{sleeps}");
}

#[test]
fn latency_of_real_items() {
    let served = Served::start("timed", false);
    let json = served.json(&["latency", "timed", "--json"]);
    let figures = &json["workqueues"]["ingest"]["run_time"];
    let value = |key: &str| figures[key].as_f64().unwrap();
    assert!(
        value("min_us") >= 60.0 * 0.9,
        "each spins for 60 us: {figures}"
    );
    assert!(value("min_us") <= value("median_us") && value("median_us") <= value("max_us"));
    assert!(
        json["workqueues"]["fetch"]["run_time"]["min_us"]
            .as_f64()
            .unwrap()
            >= 2000.0 * 0.9
    );
    let saved = served.dir().join("before.json");
    let saved = saved.to_str().unwrap();
    served.ok(&["latency", "timed", "--save", saved]);
    assert!(
        served
            .ok(&["latency", "timed", "ingest", "--against", saved])
            .contains("change")
    );
}

#[test]
fn attributes_change_what_the_runtime_does() {
    let served = Served::start("steered", true);
    assert_eq!(
        served.ok(&["set", "steered", "fetch", "max_active=2"]),
        "fetch max_active=2\n"
    );
    assert_eq!(
        served.ok(&["get", "steered", "fetch", "min_active"]),
        "2\n",
        "it is lowered with it"
    );
    // What was active before finishes; then no more than two at once.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let json = served.json(&["dump", "steered", "--json"]);
        let active = queue(&json, "fetch")["nr_active"].as_u64().unwrap();
        if active <= 2 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{active} are active");
    }
    for _ in 0..5 {
        let json = served.json(&["dump", "steered", "--json"]);
        assert!(queue(&json, "fetch")["nr_active"].as_u64().unwrap() <= 2);
    }
    let text = served.ok(&[
        "set",
        "steered",
        "ingest",
        "affinity_scope=numa",
        "affinity_strict=1",
        "localize=0",
    ]);
    assert_eq!(
        text,
        "ingest affinity_scope=numa\ningest affinity_strict=1\ningest localize=0\n"
    );
    let json = served.json(&["dump", "steered", "--json"]);
    assert_eq!(queue(&json, "ingest")["attrs"]["effective_scope"], "numa");
    assert_eq!(
        served.ok(&["set", "steered", "log", "nice=5"]),
        "log nice=5\n"
    );
    assert_eq!(
        served.ok(&["set", "steered", "watchdog_thresh=7"]),
        "watchdog_thresh=7\n"
    );
    for (word, shown) in [
        (
            "cpu_intensive_thresh_us=20000",
            "cpu_intensive_thresh_us=20000",
        ),
        (
            "cpu_intensive_warning_thresh=8",
            "cpu_intensive_warning_thresh=8",
        ),
        ("debug_force_rr_cpu=on", "debug_force_rr_cpu=Y"),
        ("debug_force_rr_cpu=0", "debug_force_rr_cpu=N"),
        ("panic_on_stall=9", "panic_on_stall=9"),
        ("panic_on_stall_time=0", "panic_on_stall_time=0"),
        ("fairness_thresh_us=5000", "fairness_thresh_us=5000"),
    ] {
        assert_eq!(served.ok(&["set", "steered", word]), format!("{shown}\n"));
    }
    assert_eq!(
        served.ok(&["set", "steered", "max_threads=99"]),
        "max_threads=99\n"
    );
    assert_eq!(
        served.ok(&["set", "steered", "default_affinity_scope=system"]),
        "default_affinity_scope=system\n"
    );
    assert_eq!(
        served.ok(&["get", "steered", "fetch", "affinity_scope"]),
        "default (system)\n"
    );
    for (words, says) in [
        (&["ingest", "max_active=0"][..], "out of range"),
        (&["ingest", "affinity_scope=Cache"], "did you mean `cache`"),
        (&["journal", "max_active=2"], "one item at a time"),
        (&["ticks", "nice=2"], "does not apply"),
        (&["nosuch", "nice=1"], "there are: ingest, fetch"),
        (&["ingest", "kernel_mode=1"], "when the queue is made"),
        (&["ingest", "cpumask=list:8000"], "EOVERFLOW"),
        (&["panic_on_stall=-1"], "0 for never"),
        (&["default_affinity_scope=default"], "cannot be itself"),
        (&["cache_shard_size=4"], "read-only"),
    ] {
        let mut all = vec!["set", "steered"];
        all.extend(words);
        let e = served.fails(&all);
        assert!(e.contains(says), "{words:?}: {e}");
    }
    // Work goes on after all of that.
    let done = || {
        queue(
            &served.json(&["monitor", "steered", "--json", "-i", "0"]),
            "ingest",
        )["completed"]
            .as_u64()
    };
    let before = done();
    while done() == before {
        assert!(
            std::time::Instant::now() < deadline,
            "nothing is done any more"
        );
    }
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
        text.contains("cmwq_workqueue_queue_to_start_seconds_count{workqueue=\"ingest\"}"),
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
            .contains("ordered")
    );

    let file = served.dir().join("t.json");
    let path = file.to_str().unwrap();
    served.ok(&["trace", "measured", "-d", "0.5", "-o", path]);
    let timeline: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = timeline::check(&timeline);
    // The item that never ends began before the trace and goes through all of it.
    let stuck = events
        .iter()
        .find(|e| e["args"]["begun_before_us"].is_number() && e["args"]["workqueue"] == "journal")
        .expect("what ran before is drawn");
    assert_eq!(stuck["args"]["unfinished"], true);
    assert!(stuck["name"].as_str().unwrap().contains("rebuild_index"));
    let spans = |name: &str| {
        events
            .iter()
            .filter(|e| e["ph"] == "X" && e["name"] == name)
            .count()
    };
    assert!(
        spans("live::parse_record") + spans("real::live::parse_record") > 0,
        "no item was drawn"
    );
    assert!(
        events
            .iter()
            .any(|e| e["name"].as_str().is_some_and(|n| n.contains("blocked"))),
        "no blocked span"
    );
    served.ok(&["trace", "measured", "ticks", "-d", "0.3", "-o", path]);
    let only: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    timeline::check(&only);
    assert!(
        !only.to_string().contains("parse_record"),
        "only the queue that was asked for"
    );
    assert!(
        served
            .fails(&["trace", "measured", "nosuch"])
            .contains("there are")
    );
}

#[test]
fn a_stopped_process_is_reported_and_not_waited_for() {
    let served = Served::start("frozen", false);
    served.signal(rustix::process::Signal::STOP);
    let start = std::time::Instant::now();
    let e = served.fails(&["dump", "frozen"]);
    assert!(e.contains("does not answer"), "{e}");
    assert!(
        start.elapsed() < std::time::Duration::from_secs(120),
        "{:?}",
        start.elapsed()
    );
    served.signal(rustix::process::Signal::CONT);
    served.ok(&["dump", "frozen"]);
}

#[test]
fn a_killed_process_leaves_no_trace_and_an_orderly_one_removes_its_socket() {
    let mut served = Served::start("killed", false);
    served.kill();
    let text = served.ok(&["list"]);
    assert!(text.contains("no process is served"), "{text}");
    assert_eq!(
        std::fs::read_dir(served.socket_dir()).unwrap().count(),
        0,
        "its socket is removed"
    );
    let mut orderly = served.another("orderly", false);
    assert!(orderly.hang_up().success(), "it ends when its input does");
    assert_eq!(std::fs::read_dir(served.socket_dir()).unwrap().count(), 0);
}

#[test]
fn the_environment_has_the_last_word() {
    let run = |word: &str| {
        let dir = tempfile::tempdir().unwrap();
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "served", "--nocapture"])
            .env(NAME, "switched")
            .env("CMWQ_CONTROL", word)
            .env("CMWQ_CONTROL_DIR", dir.path().join("run"))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned()
            + &String::from_utf8_lossy(&out.stderr);
        (out.status.success(), text)
    };
    let (ok, text) = run("off");
    assert!(ok && text.contains("not served"), "{text}");
    let (ok, text) = run("maybe");
    assert!(!ok && text.contains("`maybe` is none of"), "{text}");
}

#[test]
fn the_full_screen_draws_real_queues_pools_and_items() {
    let served = Served::start("drawn", false);
    let Some(mut t) = Terminal::open(&served, &["monitor", "drawn", "-i", "0.1"]) else {
        return;
    };
    let text = t.until("queues and machine", |s| {
        s.contains("ingest") && s.contains("machine, pods of scope cache_shard")
    });
    for part in [
        "drawn",
        "journal",
        "ticks",
        "node 0",
        "P99 HISTORY",
        "14 workqueues",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    t.until("a sparkline", |s| terminal::sparkline(s, "ingest"));
    t.until("the load of each pod", terminal::pods_with_load);
    t.until("rates", |s| {
        let row = s.lines().find(|l| l.contains("ingest")).unwrap_or("");
        row.split_whitespace()
            .any(|w| w.parse::<f64>().is_ok_and(|v| v > 20.0))
    });
    t.press("/jour");
    t.until("the filter", |s| {
        s.contains("1 workqueues match jour") && !s.contains("ingest")
    });
    t.press("\r\r");
    let text = t.until("the open queue", |s| {
        s.contains("in flight") && s.contains("rebuild_index")
    });
    assert!(text.contains("ordered"), "{text}");
    t.press("qq");
    assert!(t.end().success());
}
