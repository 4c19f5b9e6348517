//! A served program with five hundred queues on the real runtime, some with names that are hard to draw.

use std::io::Read as _;
use std::time::Duration;

use cmwq::{Runtime, Work, Workqueue};

use crate::support::NAME;

/// Queues besides `ingest` and the hard ones.
pub(crate) const PLAIN: usize = 500;

/// Wide letters, letters of several code points, right to left, control characters, spaces, longer than any column.
pub(crate) const HARD: [&str; 8] = [
    "写入队列-日志",
    "файл-запись",
    "naïve-cafe\u{301}",
    "🚀🚀-launch",
    "👩‍👩‍👧‍👦-family",
    "קבצים",
    "tab\tand\u{1b}[31mescape",
    "a-name-that-is-far-too-long-for-any-column-of-any-terminal-that-somebody-has",
];

/// The body of the program; runs until standard input closes.
pub(crate) fn served_program() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    let rt = Runtime::builder().build().unwrap();
    let ingest = rt.workqueue("ingest").build().unwrap();
    let hard: Vec<Workqueue> = HARD
        .iter()
        .map(|name| rt.workqueue(*name).max_active(3).build().unwrap())
        .collect();
    let plain: Vec<Workqueue> = (0..PLAIN)
        .map(|i| rt.workqueue(format!("shard-{i:03}")).build().unwrap())
        .collect();
    // One that runs for long, and a thread that waits for it.
    let scan = Work::with_name("scan_all", |_| {
        cmwq::blocking(|| std::thread::sleep(Duration::from_secs(3600)));
    });
    hard[0].queue(&scan).unwrap();
    std::thread::spawn(move || scan.flush());
    let control = cmwq::control::builder()
        .runtime(&rt)
        .name(name)
        .listen()
        .unwrap();
    std::thread::spawn(move || {
        for i in 0.. {
            for wq in [&ingest, &plain[i % PLAIN], &hard[i % HARD.len()]] {
                if wq.spawn_detached(|| {}).is_err() {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    println!("\nserved {}", control.path().unwrap().display());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(control);
    std::process::exit(0);
}
