//! A served program whose queues a test controls: the registry of `cmwq_control::testing`.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use cmwq_control::server::ServerBuilder;
use cmwq_control::snapshot::WqKind;
use cmwq_control::testing::Fake;

use crate::support::{ALLOW, NAME};

/// The body of the program: three queues under load, until standard input closes.
pub(crate) fn served_program() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let fake = Fake::new(&name);
    let ingest = fake.queue("ingest", WqKind::Unbound, 16);
    let ticks = fake.queue("ticks", WqKind::PerCpu, 4);
    let journal = fake.queue("journal", WqKind::Ordered, 1);
    let server = ServerBuilder::new(fake.process())
        .allow_set(std::env::var_os(ALLOW).is_some())
        .listen()
        .unwrap();
    for _ in 0..3 {
        journal.push("slow_item", || std::thread::sleep(Duration::from_secs(600)));
    }
    let load = {
        let (ingest, ticks) = (Arc::clone(&ingest), Arc::clone(&ticks));
        move || loop {
            if ingest.waiting() < 20 {
                ingest.push("ingest_item", || {
                    std::thread::sleep(Duration::from_millis(1))
                });
                ticks.push("tick", || {});
            }
            std::thread::sleep(Duration::from_micros(500));
        }
    };
    std::thread::spawn(load);
    println!("\nserved {}", server.path().display());
    let _ = std::io::stdin().read(&mut [0; 1]);
    drop(server);
    std::process::exit(0);
}
