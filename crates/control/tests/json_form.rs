//! The JSON form of a snapshot is a promise: every field is listed in `json_form.txt`. A field that is missing or renamed
//! breaks readers and needs a new `format`; a new one is added to the list.

use std::collections::BTreeSet;

use cmwq_control::CpuList;
use cmwq_control::snapshot::*;
use serde_json::Value;

fn full() -> Snapshot {
    let mut q = WorkqueueSnapshot {
        cpu_pool: vec![PoolSlot::default()],
        nodes: vec![NodeLimit::default()],
        pwqs: vec![PwqSnapshot::default()],
        rescuer: Some(RescuerSnapshot::default()),
        ..Default::default()
    };
    for list in [&mut q.in_flight, &mut q.pending, &mut q.inactive] {
        list.push(ItemSnapshot::default());
    }
    q.queue_to_start.record(1);
    let reasons = vec![ReasonCount::default()];
    let mut s = Snapshot {
        pools: vec![PoolSnapshot {
            births: reasons.clone(),
            deaths: reasons.clone(),
            worker_list: vec![WorkerSnapshot::default()],
            ..Default::default()
        }],
        workqueues: vec![q],
        tunables: vec![Tunable::default()],
        ..Default::default()
    };
    s.topology.nodes = vec![NodeCpus::default()];
    s.topology.scopes = vec![ScopeSnapshot {
        pods: vec![PodSnapshot::default()],
        ..Default::default()
    }];
    s.cpu.quota = Some(Quota::default());
    (s.threads.births, s.threads.deaths) = (reasons.clone(), reasons);
    s
}

fn paths(value: &Value, path: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                paths(value, &format!("{path}.{key}"), all);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter()
                .for_each(|value| paths(value, &format!("{path}[]"), all));
        }
        _ => {
            all.insert(path.trim_start_matches('.').to_owned());
        }
    }
}

#[test]
fn every_field_is_listed() {
    let mut real = BTreeSet::new();
    paths(&serde_json::to_value(full()).unwrap(), "", &mut real);
    let listed: BTreeSet<String> = include_str!("json_form.txt")
        .lines()
        .map(Into::into)
        .collect();
    let missing: Vec<_> = listed.difference(&real).collect();
    let new: Vec<_> = real.difference(&listed).collect();
    assert!(
        missing.is_empty() && new.is_empty(),
        "gone: {missing:#?}\nnot listed: {new:#?}"
    );
}

#[test]
fn snapshots_survive_the_round_trip() {
    let mut s = full();
    s.pools[0].pod_cpus = CpuList::from_cpus([0, 1, 5]);
    s.workqueues[0].counters.started = u64::MAX;
    let text = serde_json::to_string(&s).unwrap();
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), s);
}
