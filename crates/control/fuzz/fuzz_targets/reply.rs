//! Any bytes as a reply: whatever parses can be looked at by everything that looks at snapshots and traces.
#![no_main]

use cmwq_control::advise::{Inputs, advise};
use cmwq_control::protocol::Reply;
use cmwq_control::{prometheus, trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    match Reply::parse(body) {
        Ok(Reply::Snapshot { snapshot }) => {
            prometheus::render(&snapshot);
            advise(&Inputs { now: &snapshot, before: None });
            advise(&Inputs { now: &snapshot, before: Some(&snapshot) });
            for q in &snapshot.workqueues {
                let mut h = q.queue_to_start.clone();
                h.merge(&q.run_time);
                let _ = (h.since(&q.run_time), h.quantile_ns(0.99), h.stdev_ns(), h.count_at_most(1 << 20));
            }
            let recording = trace::chrome::Recording {
                begun: Some(*snapshot),
                ..Default::default()
            };
            trace::chrome::write(&recording, &mut Vec::new()).expect("memory");
        }
        Ok(Reply::Trace { chunk }) => {
            let mut out = Vec::new();
            let recording = trace::chrome::Recording {
                events: chunk.events,
                lost: chunk.lost,
                threads: chunk.threads,
                ..Default::default()
            };
            trace::chrome::write(&recording, &mut out).expect("memory");
        }
        _ => {}
    }
});
