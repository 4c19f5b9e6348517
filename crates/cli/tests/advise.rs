//! `cmwq advise` against real programs, each ill in one way: it names the illness, and what it says to set can be set.

#[path = "support/ill_program.rs"]
mod ill_program;
mod support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::Served;

/// Not a test of its own: the program that the tests serve, when they start this binary again.
#[test]
fn served() {
    ill_program::served_program();
}

/// How long an illness may take to show itself on a busy machine; nothing is judged by it.
const PATIENCE: Duration = Duration::from_secs(240);

fn find(report: &Value, rule: &str, workqueue: &str) -> Option<Value> {
    let advice = report["advice"].as_array().expect("advice is a list");
    advice
        .iter()
        .find(|a| a["rule"] == rule && a["workqueue"] == workqueue)
        .cloned()
}

/// One report; where the machine is so busy that the process does not come to answering, the next one.
fn look(served: &Served, seconds: &str, deadline: Instant) -> Value {
    let who = served.pid().to_string();
    loop {
        let out = served
            .command(&["advise", &who, "--json", "-i", seconds])
            .output()
            .unwrap();
        if out.status.success() {
            return serde_json::from_slice(&out.stdout).unwrap();
        }
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(
            errors.contains("does not answer") && Instant::now() < deadline,
            "{errors}"
        );
    }
}

/// Asks until the rule has spoken about the queue, and answers what it said.
fn until(served: &Served, rule: &str, workqueue: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let report = look(served, "0.3", deadline);
        assert_eq!(report["format"], 1);
        if let Some(found) = find(&report, rule, workqueue) {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "{rule} never spoke about `{workqueue}`: {report:#}"
        );
    }
}

fn says(advice: &Value) -> &str {
    advice["says"].as_str().unwrap()
}

/// Does what the advice says.
fn heed(served: &Served, advice: &Value) -> usize {
    let who = served.pid().to_string();
    let all = advice["set"].as_array().unwrap();
    for words in all {
        let mut args = vec!["set", &who];
        args.extend(words.as_str().unwrap().split_whitespace());
        served.ok(&args);
    }
    all.len()
}

#[test]
fn a_healthy_program_has_no_problem() {
    let served = Served::start("healthy", false);
    let report = served.json(&["advise", "healthy", "--json", "-i", "1"]);
    assert_eq!(
        (&report["pid"], &report["name"]),
        (&served.pid().into(), &"healthy".into())
    );
    let seconds = report["interval_seconds"].as_f64().unwrap();
    assert!((1.0..100.0).contains(&seconds), "{seconds}");
    // A machine that is busy otherwise may make its items late, which is said then, and rightly.
    for a in report["advice"].as_array().unwrap() {
        assert_eq!(a["rule"], "starving", "{a}");
    }
    let whole_life = served.json(&["advise", "healthy", "--json", "-i", "0"]);
    assert!(whole_life["interval_seconds"].is_null());
}

#[test]
fn a_limit_meant_for_the_machine_but_taken_for_each_cpu() {
    let served = Served::start("per-cpu-limit", false);
    let a = until(&served, "limit_meant_as_global", "connections");
    assert_eq!(a["severity"], "warning");
    assert!(
        says(&a).contains("up to 16 items may be active; 16 were active at once"),
        "{a}"
    );
    assert!(says(&a).contains("unbound"), "{a}");
}

#[test]
fn a_limit_that_is_never_reached() {
    let served = Served::start("loose-limit", false);
    let a = until(&served, "limit_never_reached", "wide");
    assert_eq!(a["severity"], "note");
    assert!(
        says(&a).contains("max_active=256 does nothing: of 1500 items"),
        "{a}"
    );
}

#[test]
fn a_strict_scope_beside_idle_pods() {
    let served = Served::start("strict", false);
    let a = until(&served, "strict_with_idle_pods", "pinned");
    assert!(says(&a).contains("of 4 pods of scope cpu"), "{a}");
    assert_eq!(a["set"], serde_json::json!(["pinned affinity_strict=0"]));
    assert_eq!(heed(&served, &a), 1);
    let who = served.pid().to_string();
    assert_eq!(
        served.ok(&["get", &who, "pinned", "affinity_strict"]),
        "0\n"
    );
    let report = served.json(&["advise", &who, "--json", "-i", "0"]);
    assert!(
        find(&report, "strict_with_idle_pods", "pinned").is_none(),
        "{report}"
    );
}

#[test]
fn items_that_keep_their_cpu() {
    let served = Served::start("hogs", false);
    let per_cpu = until(&served, "hogs", "crunch");
    assert_eq!(per_cpu["severity"], "warning");
    assert!(
        says(&per_cpu).contains("make the queue unbound"),
        "{per_cpu}"
    );
    let unbound = until(&served, "hogs", "grind");
    assert_eq!(unbound["set"], serde_json::json!(["grind nice=10"]));
    assert_eq!(heed(&served, &unbound), 1);
}

#[test]
fn a_queue_starves_by_its_own_limit() {
    let served = Served::start("narrow", false);
    let a = until(&served, "starving", "narrow");
    assert!(says(&a).contains("held back by max_active=1"), "{a}");
    assert_eq!(a["set"], serde_json::json!(["narrow max_active=2"]));
    assert_eq!(heed(&served, &a), 1);
}

#[test]
fn a_queue_starves_because_another_one_has_its_workers() {
    let served = Served::start("crowded-out", false);
    // Otherwise the runtime helps itself: a queue whose first item waits gets a worker of its own.
    served.ok(&["set", "crowded-out", "fairness_thresh_us=0"]);
    let a = until(&served, "starving", "late");
    assert!(says(&a).contains("run items of `bulk`"), "{a}");
    assert_eq!(a["set"], serde_json::json!(["bulk nice=10"]));
    // With pools of their own they do not wait for each other any more.
    assert_eq!(heed(&served, &a), 1);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let report = look(&served, "0.5", deadline);
        let still = find(&report, "starving", "late");
        if still.is_none_or(|a| !says(&a).contains("bulk")) {
            return;
        }
        assert!(Instant::now() < deadline, "{report:#}");
    }
}

#[test]
fn all_threads_that_may_exist_are_blocked() {
    let served = Served::start("ceiling", false);
    let a = until(&served, "thread_ceiling", "");
    assert_eq!(a["severity"], "problem");
    assert!(says(&a).contains("3 of at most 3 worker threads"), "{a}");
    assert!(says(&a).contains("blocked"), "{a}");
    let stalled = until(&served, "stalled", "");
    assert!(
        says(&stalled).contains("wait_for_ever") && says(&stalled).contains("items waiting"),
        "{stalled}"
    );
    let text = served.ok(&["advise", &served.pid().to_string(), "-i", "0"]);
    assert!(
        text.contains("problem [thread_ceiling] 3 of at most 3"),
        "{text}"
    );
}

#[test]
fn the_system_refuses_threads() {
    let served = Served::start("refused", false);
    let a = until(&served, "threads_refused", "");
    assert_eq!(a["severity"], "problem");
    assert!(
        says(&a).contains("pids.max") && says(&a).contains("io"),
        "{a}"
    );
}

#[test]
fn everything_is_blocked_on_one_lock() {
    let served = Served::start("one-lock", false);
    let who = served.pid().to_string();
    let json = served.json(&["dump", &who, "--json"]);
    let sees = |m: &str| json["detection"][m]["state"] == "in_force";
    if !sees("tick") && !sees("sentinel") && !sees("records") {
        println!("skipped: no means of noticing blocked threads is in force here");
        return;
    }
    let a = until(&served, "blocked_on_one_thing", "accounts");
    assert!(says(&a).contains("busy workers are blocked"), "{a}");
    let set = a["set"][0].as_str().unwrap();
    assert!(set.starts_with("accounts max_active="), "{a}");
    assert_eq!(heed(&served, &a), 1);
}

#[test]
fn items_panic() {
    let served = Served::start("panics", false);
    let a = until(&served, "panics", "fragile");
    assert!(says(&a).contains("items panicked"), "{a}");
}

/// `docs/json.md` names every field and every rule, and nothing that is not there.
#[test]
fn the_form_is_the_documented_one() {
    let document = include_str!("../../../docs/json.md");
    let (_, section) = document
        .split_once("## `cmwq advise --json`")
        .expect("docs/json.md has a section about it");
    let section = section.split("\n## ").next().unwrap();
    let tables: Vec<BTreeSet<&str>> = section
        .split("\n\n")
        .map(|part| {
            part.lines()
                .filter_map(|l| l.strip_prefix("| `")?.split_once('`'))
                .map(|(word, _)| word)
                .collect()
        })
        .filter(|words: &BTreeSet<&str>| !words.is_empty())
        .collect();
    let [report, advice, rules] = &tables[..] else {
        panic!("three tables: the report, a piece of advice, the rules; not {tables:?}")
    };
    let served = Served::start("per-cpu-limit", false);
    let a = until(&served, "limit_meant_as_global", "connections");
    let whole = served.json(&["advise", &served.pid().to_string(), "--json", "-i", "0"]);
    let keys = |v: &Value| -> BTreeSet<String> { v.as_object().unwrap().keys().cloned().collect() };
    let listed = |words: &BTreeSet<&str>| -> BTreeSet<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    };
    assert_eq!(keys(&whole), listed(report));
    assert_eq!(keys(&a), listed(advice));
    let known: BTreeSet<&str> = cmwq_control::advise::RULES.iter().map(|r| r.0).collect();
    assert_eq!(*rules, known);
}
