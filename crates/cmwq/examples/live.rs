//! A program with queues of every kind under load, served to the `cmwq` command. Look at it from another terminal:
//!
//! ```text
//! cargo run -p cmwq --features control --example live -- --allow-set
//! cmwq list
//! cmwq monitor live
//! ```
//!
//! Ends when its standard input does. `--name NAME`, `--allow-set`.

use cmwq::{AffinityScope, DelayedWork, Runtime, Work, Workqueue};
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn parse_record() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(60) {
        std::hint::spin_loop();
    }
}

fn fetch_page() {
    cmwq::describe("page from the store");
    cmwq::blocking(|| std::thread::sleep(Duration::from_millis(2)));
}

fn append_entry() {
    std::thread::sleep(Duration::from_micros(300));
}

fn rebuild_index() {
    cmwq::describe("index of last week");
    while !END.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

static END: AtomicBool = AtomicBool::new(false);

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("live: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// The program; tests of the command call it, too.
pub(crate) fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let name = args
        .iter()
        .position(|a| a == "--name")
        .and_then(|i| args.get(i + 1));
    let control = cmwq::control::builder()
        .name(name.map_or("live", String::as_str))
        .allow_set(args.iter().any(|a| a == "--allow-set"))
        .listen()?;

    let ingest = Workqueue::builder("ingest")
        .max_active(16)
        .affinity_scope(AffinityScope::CacheShard)
        .build()?;
    let fetch = Workqueue::builder("fetch")
        .max_active(64)
        .guaranteed()
        .build()?;
    let ticks = Workqueue::builder("ticks")
        .per_cpu()
        .max_active(4)
        .build()?;
    let urgent = Workqueue::builder("urgent").highpri().build()?;
    // One that never ends, and others behind it: what a stuck program looks like.
    let journal = Workqueue::builder("journal").ordered().build()?;
    let log = Workqueue::builder("log").ordered().build()?;
    for _ in 0..3 {
        drop(journal.spawn(rebuild_index));
    }
    let flush = Work::with_name("flush_dirty", |_| parse_record());
    let later = DelayedWork::new(|_| {});
    Runtime::global()
        .system()
        .unbound
        .queue_delayed(&later, Duration::from_secs(3600))?;

    match control.path() {
        Some(path) => println!("served {}", path.display()),
        None => println!("not served"),
    }
    let load = std::thread::spawn(move || {
        while !END.load(Ordering::Relaxed) {
            for _ in 0..8 {
                drop(ingest.spawn(parse_record));
                drop(fetch.spawn(fetch_page));
            }
            drop(ticks.spawn(|| std::hint::black_box(())));
            drop(urgent.spawn(parse_record));
            drop(log.spawn(append_entry));
            // Twice: the second finds it pending, or it has run already.
            let queued = ingest.queue(&flush).and_then(|_| ingest.queue(&flush));
            if let Err(e) = queued {
                eprintln!("live: {e}");
                return;
            }
            std::thread::sleep(Duration::from_millis(4));
        }
    });
    // Until the other side hangs up.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    END.store(true, Ordering::Relaxed);
    load.join().map_err(|_| "the load panicked")?;
    later.cancel();
    Runtime::global().shutdown()?;
    control.stop();
    Ok(())
}
