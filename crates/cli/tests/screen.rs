//! The full-screen view of the real command in a pseudo-terminal, looking at a real program.

#[path = "support/fake_program.rs"]
mod fake_program;
mod support;
#[path = "support/terminal.rs"]
mod terminal;

use fake_program::served_program;
use support::Served;
use terminal::{Terminal, resize};

#[test]
fn served() {
    served_program();
}

#[test]
fn queues_and_machine_are_drawn_and_keys_work() {
    let served = Served::start("drawn", false);
    let Some(mut t) = Terminal::open(&served, &["monitor", "drawn", "-i", "0.1"]) else {
        return;
    };
    let text = t.until("queues and machine", |s| {
        s.contains("ingest") && s.contains("machine, pods of scope cache_shard")
    });
    for part in [
        "drawn",
        "journal",
        "ticks",
        "node 0",
        "0-3",
        "4-7",
        "P99 HISTORY",
        "3 workqueues",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    t.until("a sparkline", |s| terminal::sparkline(s, "ingest"));
    t.until("the load of each pod", terminal::pods_with_load);
    t.until("rates", |s| {
        let row = s.lines().find(|l| l.contains("ingest")).unwrap_or("");
        row.split_whitespace()
            .any(|w| w.parse::<f64>().is_ok_and(|v| v > 50.0))
    });

    t.press("/jour");
    t.until("the filter", |s| {
        s.contains("1 workqueues match jour") && !s.contains("ingest")
    });
    t.press("\r\r");
    let text = t.until("the open queue", |s| {
        s.contains("in flight") && s.contains("slow_item")
    });
    for part in ["queue to start", "run time", "ordered"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    t.press("q?");
    t.until("help", |s| s.contains("reverse the order"));
    t.press("qm");
    t.until("the machine hidden", |s| {
        s.contains("match jour") && !s.contains("machine, pods")
    });
    t.press("sss");
    t.until("another order", |s| s.contains("sort (items/s)"));
    t.press("r");
    t.until("the order reversed", |s| {
        s.contains("sort (items/s, reversed)")
    });
    // Without the filter all are there again, the busiest last.
    t.press("/\u{1b}");
    t.until("rows in the reversed order", |s| {
        let at = |name: &str| s.lines().position(|l| l.contains(name));
        at("journal").is_some() && at("journal") < at("ingest")
    });
    t.press("q");
    assert!(t.end().success());
    let raw = t.raw.lock().unwrap().clone();
    let has = |sequence: &[u8]| raw.windows(sequence.len()).any(|w| w == sequence);
    assert!(
        has(b"\x1b[?1049h") && has(b"\x1b[?1049l"),
        "the screen that was there before comes back"
    );
    assert!(has(b"\x1b[?25h"), "and the cursor");
}

#[test]
fn a_new_size_is_taken() {
    let served = Served::start("resized", false);
    let Some(t) = Terminal::open(&served, &["monitor", "resized", "-i", "0.1"]) else {
        return;
    };
    t.until("the table", |s| s.contains("P99 HISTORY"));
    t.screen.lock().unwrap().screen_mut().set_size(24, 60);
    resize(&t.keys, 60, 24);
    let pid = rustix::process::Pid::from_child(&t.child);
    rustix::process::kill_process(pid, rustix::process::Signal::WINCH).unwrap();
    t.until("fewer columns", |s| {
        s.contains("ingest") && !s.contains("P99 HISTORY")
    });
}

#[test]
fn the_end_of_the_process_is_said() {
    let mut served = Served::start("ending", false);
    let Some(mut t) = Terminal::open(&served, &["monitor", "ending", "-i", "0.1"]) else {
        return;
    };
    t.until("the table", |s| s.contains("ingest"));
    served.kill();
    t.until("the trouble", |s| {
        s.contains("hung up") || s.contains("control socket")
    });
    t.press("q");
    assert!(t.end().success());
}

#[test]
fn plain_output_on_a_terminal_if_asked_for() {
    let served = Served::start("plain", false);
    let Some(t) = Terminal::open(&served, &["monitor", "plain", "--plain", "-i", "0.1"]) else {
        return;
    };
    t.until("rows", |s| s.contains("CPUlocl") && s.contains("ingest"));
    assert!(
        !t.raw
            .lock()
            .unwrap()
            .windows(8)
            .any(|w| w == b"\x1b[?1049h")
    );
}
