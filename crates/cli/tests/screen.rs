//! The full-screen view of the real command in a pseudo-terminal, looking at a real program.

#[path = "../../control/tests/fake/mod.rs"]
mod fake;
mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::OpenptFlags;
use support::{Served, served_program};

#[test]
fn served() {
    served_program();
}

/// A command in a terminal of 120 x 40, and what is on its screen.
struct Terminal {
    child: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Everything the command wrote.
    raw: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn open(served: &Served, args: &[&str]) -> Option<Terminal> {
        let open = || -> rustix::io::Result<(OwnedFd, File)> {
            let master = rustix::pty::openpt(
                OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
            )?;
            rustix::pty::grantpt(&master)?;
            rustix::pty::unlockpt(&master)?;
            let name = rustix::pty::ptsname(&master, Vec::new())?;
            let name = name.to_string_lossy().into_owned();
            let slave = File::options()
                .read(true)
                .write(true)
                .open(name)
                .map_err(|_| rustix::io::Errno::NODEV)?;
            Ok((master, slave))
        };
        let Ok((master, slave)) = open() else {
            println!("skipped: no pseudo-terminal can be opened here");
            return None;
        };
        resize(&master, 120, 40);
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let child = served
            .command(args)
            .env("TERM", "xterm-256color")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(40, 120, 0)));
        let raw = Arc::new(Mutex::new(Vec::new()));
        let mut output = File::from(master.try_clone().unwrap());
        let (to, all) = (Arc::clone(&screen), Arc::clone(&raw));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                to.lock().unwrap().process(&bytes[..n]);
                all.lock().unwrap().extend_from_slice(&bytes[..n]);
            }
        });
        Some(Terminal {
            child,
            keys: File::from(master),
            screen,
            raw,
        })
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Until the screen is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(
                Instant::now() < deadline,
                "never seen: {what}; the screen is\n{text}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "does not end; the screen is\n{}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: impl AsFd, columns: u16, rows: u16) {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(terminal, size).unwrap();
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
    t.until("a sparkline", |s| s.contains('█'));
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
