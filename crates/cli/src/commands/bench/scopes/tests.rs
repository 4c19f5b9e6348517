use super::*;
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(text: &str) -> Args {
    Cli::try_parse_from(text.split(' ')).unwrap().args
}

#[test]
fn every_scenario_gives_rows_in_the_common_form() {
    let args = args("scopes --runtime 0.02 --rounds 1 --max-rounds 1 --work-us 5");
    let host = Host::new(None).unwrap();
    let (document, text, failures) = args.measure(&host).unwrap();
    assert_eq!(failures, Vec::<String>::new());
    let json = document.to_json().unwrap();
    assert_eq!(
        Document::from_json(&json).unwrap().rows.len(),
        document.rows.len()
    );
    assert_eq!(
        document.scenarios(),
        ["overload", "sync", "pair", "each-cpu", "calm"]
    );
    for row in &document.rows {
        assert!(row.items_per_s.unwrap().mean > 0.0, "{row:?}");
        assert!(row.cpu_util_percent.unwrap() > 0.0, "{row:?}");
        let in_pod = row.started_in_pod_percent.unwrap();
        assert!((0.0..=100.0).contains(&in_pod), "{row:?}");
        assert!(row.migrations_per_item.is_some(), "{row:?}");
        assert!(text.contains(&row.setting), "{text}");
    }
    // Whoever waits for each item knows its latency.
    let sync = document.rows_of("sync").next().unwrap();
    assert!(sync.latency_us.unwrap().p50.unwrap() > 0.0);
    assert!(document.verdicts.iter().any(|v| v.name.contains("busy")));
}

#[test]
fn strict_settings_start_every_item_in_the_pod() {
    let host = Host::new(None).unwrap();
    let args = args(
        "scopes --scenario overload --settings cpu-strict,cache-strict --runtime 0.05 --rounds 1",
    );
    let (document, ..) = args.measure(&host).unwrap();
    assert!(document.verdicts.is_empty(), "nothing is promised of these");
    for row in &document.rows {
        assert_eq!(row.started_in_pod_percent, Some(100.0), "{row:?}");
    }
}

#[test]
fn settings_without_a_scope_are_refused_by_name() {
    let host = Host::new(None).unwrap();
    let e = args("scopes --settings thread").measure(&host).unwrap_err();
    assert!(e.to_string().contains("thread has no scope"), "{e}");
    assert!(Cli::try_parse_from(["scopes", "--scenario", "nothing"]).is_err());
    assert!(
        Cli::try_parse_from(["scopes", "--one-cache-per-cpu", "--synthetic", "core:2"]).is_err()
    );
}
