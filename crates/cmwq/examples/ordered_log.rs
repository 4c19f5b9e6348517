//! A log writer: many threads, one file, lines in the order in which they were issued, no lock around the file.
//!
//! `cargo run -p cmwq --example ordered_log`

use cmwq::{Workqueue, WorkqueueKind};
use std::io::{BufRead, BufReader, BufWriter, Seek, Write};
use std::sync::{Arc, Mutex};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("cmwq-log-{}", std::process::id()));
    let file = std::fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    // The queue runs one item at a time in order; the mutex is never contended, it only says so to the compiler.
    let log = Arc::new(Mutex::new(BufWriter::new(file)));
    let wq = Workqueue::builder("log").ordered().build()?;
    assert_eq!(wq.kind(), WorkqueueKind::Ordered);

    std::thread::scope(|s| {
        for t in 0..4 {
            let (wq, log) = (&wq, &log);
            s.spawn(move || {
                for i in 0..1000 {
                    let log = Arc::clone(log);
                    // Detached: an error is the writer's affair; here it panics, which the queue counts.
                    wq.spawn(move || writeln!(log.lock().unwrap(), "{t} {i}").unwrap())
                        .detach();
                }
            });
        }
    });
    // Everything before is written, then the buffer goes out, as the next item in line.
    let last = Arc::clone(&log);
    wq.spawn(move || last.lock().unwrap().flush()).join()??;
    assert_eq!(wq.stats().panicked, 0);

    let mut file = log.lock().unwrap().get_ref().try_clone()?;
    file.rewind()?;
    let mut next = [0; 4];
    for line in BufReader::new(file).lines() {
        let line = line?;
        let (t, i) = line.split_once(' ').ok_or("a line without a space")?;
        let (t, i): (usize, u32) = (t.parse()?, i.parse()?);
        assert_eq!(i, next[t], "thread {t}'s lines are in order");
        next[t] += 1;
    }
    assert_eq!(next, [1000; 4]);
    println!("4000 lines in order");
    wq.destroy()?;
    Ok(())
}
