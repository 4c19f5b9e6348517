//! What a real kernel (6.12, 8 CPUs) answered on its control files, played to a runtime on a machine like that, over the socket:
//! values shown after each write, and how the global mask and a queue's own go together. Which accidents of the kernel are
//! errors here is listed, value by value, where values are parsed (the control crate's test of the same rows).

use cmwq::control::Target;
use cmwq::control::snapshot::Detail;
use cmwq::{AffinityScope, Runtime};
use cmwq_control::client::{Client, ClientError};
use serde_json::Value;

struct Played {
    _dir: tempfile::TempDir,
    _listener: cmwq::control::Listener,
    _wq: cmwq::Workqueue,
    client: Client,
}

/// The rows, and a runtime to play them to; `None` (said why) where they are not at hand.
fn start() -> Option<(Value, Played)> {
    let Some(dir) = std::env::var_os("CMWQ_TOPOLOGIES") else {
        println!(
            "skipped: CMWQ_TOPOLOGIES does not name the folder with kernel-control-interface.json"
        );
        return None;
    };
    let path = std::path::Path::new(&dir).join("kernel-control-interface.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} cannot be read", path.display());
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder()
        .topology(cmwq::Topology::synthetic("l3:1 core:8").unwrap())
        .default_affinity_scope(AffinityScope::Cache)
        .build()
        .unwrap();
    let wq = rt.workqueue("writeback").max_active(256).build().unwrap();
    let listener = cmwq::control::builder()
        .runtime(&rt)
        .dir(dir.path().join("run"))
        .allow_set(true)
        .listen()
        .unwrap();
    let client = Client::connect(listener.path().unwrap()).unwrap();
    let played = Played {
        _dir: dir,
        _listener: listener,
        _wq: wq,
        client,
    };
    Some((serde_json::from_str(&text).unwrap(), played))
}

/// The file of the kernel as a target and an attribute.
fn attribute(file: &str) -> (Target, &str) {
    match file.strip_prefix("writeback/") {
        Some(name) => (Target::Workqueue("writeback".into()), name),
        None => (Target::Global, file.rsplit('/').next().unwrap()),
    }
}

#[test]
fn what_is_refused_changes_nothing_and_what_is_taken_is_shown_alike() {
    let Some((file, mut played)) = start() else {
        return;
    };
    let (mut alike, mut refused, mut stricter) = (0, 0, 0);
    for row in file["rows"].as_array().unwrap() {
        let text = |key: &str| row[key].as_str().unwrap();
        if row["note"]
            .as_str()
            .is_some_and(|n| n.starts_with("no write"))
        {
            continue;
        }
        let write = match row["write_repeat"].as_array() {
            Some(r) => r[0]
                .as_str()
                .unwrap()
                .repeat(r[1].as_u64().unwrap() as usize),
            None => text("write").to_owned(),
        };
        let (target, attr) = attribute(text("file"));
        let before = played.client.get(&target, attr).unwrap();
        let answer = played.client.set(&target, attr, &write);
        let after = played.client.get(&target, attr).unwrap();
        match (answer, text("result")) {
            (Err(ClientError::Answer(e)), result) => {
                assert_eq!(before, after, "{attr} {write:?} was refused: {e}");
                if result == "ok" {
                    stricter += 1;
                } else {
                    refused += 1;
                }
            }
            (Err(e), _) => panic!("{attr} {write:?}: {e}"),
            (Ok((value, note)), result) => {
                assert_eq!(value, after, "{attr} {write:?}: read back");
                // Lists of CPUs and leading groups of zeros are taken here; that kernel's highest limit is 512, and it knows no
                // shards. A queue without CPUs of its own is shown with all, which is what it may use.
                let empty = attr == "cpumask" && text("after") == "00";
                let other = note.is_some() || text("after") == "512" || after == "cache_shard";
                let other = other || empty;
                if result == "ok" && !other {
                    assert_eq!(after, text("after"), "{attr} {write:?}");
                    alike += 1;
                }
            }
        }
    }
    assert!(alike > 40 && refused > 30, "{alike} {refused} {stricter}");
}

#[test]
fn the_global_mask_and_a_queues_own_go_together_as_in_the_kernel() {
    let Some((file, mut played)) = start() else {
        return;
    };
    let mut steps = 0;
    for step in file["interplay"].as_array().unwrap() {
        let command = step["cmd"].as_str().unwrap();
        let words: Vec<&str> = command.split_whitespace().collect();
        if let ["echo", value, ">", path] = words[..] {
            // CPUs do not come and go on a machine that is made up; masks do not follow them anyway.
            if let Some(file) = path.strip_prefix("/sys/devices/virtual/workqueue/") {
                let (target, attr) = attribute(file);
                played.client.set(&target, attr, value).unwrap();
                steps += 1;
            }
        }
        for (file, value) in step["state"].as_object().unwrap() {
            let (target, attr) = attribute(file);
            let shown = played.client.get(&target, attr).unwrap();
            assert_eq!(shown, value.as_str().unwrap(), "{file} after `{command}`");
        }
        // A queue whose mask has nothing in common with the global one uses the global one.
        let s = played.client.snapshot(Detail::FULL).unwrap();
        let q = s.workqueue("writeback").unwrap();
        let (own, global) = (
            q.attrs.cpumask.to_set(),
            s.topology.unbound_cpumask.to_set(),
        );
        let both = own.intersection(&global);
        let expected = if both.is_empty() { global } else { both };
        assert_eq!(
            q.attrs.effective_cpumask.to_set(),
            expected,
            "after `{command}`"
        );
    }
    assert!(steps >= 9, "{steps}");
}
