//! A cache that writes its dirty entries back in the background: one reusable item, queued whenever something gets dirty, that
//! never runs concurrently with itself and runs once for however many changes came before.
//!
//! `cargo run -p cmwq --example background_flush`

use cmwq::{Queued, Work, Workqueue};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Store {
    dirty: Mutex<BTreeMap<u32, String>>,
    written: Mutex<BTreeMap<u32, String>>,
}

impl Store {
    fn write_back(&self) {
        // Whatever was set before `queue` returned is seen here, also if it said "already pending".
        let batch = std::mem::take(&mut *self.dirty.lock().unwrap());
        self.written.lock().unwrap().extend(batch);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wq = Workqueue::builder("writeback").max_active(1).build()?;
    let store = Arc::new(Store::default());
    let flush = Work::with_name("write_back", {
        let store = Arc::clone(&store);
        move |_| store.write_back()
    });

    let mut queued = 0;
    for i in 0..10_000 {
        store.dirty.lock().unwrap().insert(i, format!("entry {i}"));
        if wq.queue(&flush)? == Queued::New {
            queued += 1;
        }
    }
    // Waits for the last queueing, and so for everything that was dirty before it.
    flush.flush()?;
    assert!(store.dirty.lock().unwrap().is_empty());
    assert_eq!(store.written.lock().unwrap().len(), 10_000);
    println!("10000 changes written back by {queued} runs");

    // Stops it for good: pending instances are taken out, a running one is waited for.
    flush.disable_sync()?;
    assert!(wq.queue(&flush).is_err());
    wq.destroy()?;
    Ok(())
}
