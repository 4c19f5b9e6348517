//! The real command in a pseudo-terminal.
#![allow(dead_code)] // Each test program uses a part of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::OpenptFlags;

use crate::support::Served;

/// A command in a terminal (120 x 40 unless said otherwise), and what is on its screen.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    pub(crate) keys: File,
    pub(crate) screen: Arc<Mutex<vt100::Parser>>,
    /// Everything the command wrote.
    pub(crate) raw: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn open(served: &Served, args: &[&str]) -> Option<Terminal> {
        Terminal::of_size(120, 40, served, args)
    }

    pub(crate) fn of_size(
        columns: u16,
        rows: u16,
        served: &Served,
        args: &[&str],
    ) -> Option<Terminal> {
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
        resize(&master, columns, rows);
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let child = served
            .command(args)
            .env("TERM", "xterm-256color")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
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

    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// The window changes its size, and the command is told.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        self.screen
            .lock()
            .unwrap()
            .screen_mut()
            .set_size(rows, columns);
        resize(&self.keys, columns, rows);
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::WINCH).unwrap();
    }

    /// The screen cell by cell: each line as the texts of its columns (empty where a wide letter goes on).
    pub(crate) fn cells(&self) -> Vec<Vec<String>> {
        let parser = self.screen.lock().unwrap();
        let screen = parser.screen();
        let (rows, columns) = screen.size();
        let text = |r, c| {
            screen
                .cell(r, c)
                .map_or_else(String::new, |c| c.contents().to_owned())
        };
        (0..rows)
            .map(|r| (0..columns).map(|c| text(r, c)).collect())
            .collect()
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Until the screen is as wanted.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + Duration::from_secs(120);
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

    pub(crate) fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(120);
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

/// Whether the row of this queue ends in a history of at least two samples.
pub(crate) fn sparkline(screen: &str, queue: &str) -> bool {
    let row = screen.lines().find(|l| l.contains(queue)).unwrap_or("");
    let bars = row.chars().filter(|c| ('▁'..='█').contains(c));
    bars.count() >= 2
}

/// Whether the drawing of the machine has at least one pod, and for each its bar and how many of its CPUs are taken.
pub(crate) fn pods_with_load(screen: &str) -> bool {
    let mut lines = screen
        .lines()
        .skip_while(|l| !l.contains("machine, pods of scope"))
        .skip(1)
        .filter(|l| l.contains('░') || l.contains('█'))
        .peekable();
    let has_load = |l: &str| {
        l.split_whitespace().any(|word| {
            word.split_once('/').is_some_and(|(running, cpus)| {
                running.parse::<u32>().is_ok() && cpus.parse::<u32>().is_ok_and(|n| n > 0)
            })
        })
    };
    lines.peek().is_some() && lines.all(has_load)
}

pub(crate) fn resize(terminal: impl AsFd, columns: u16, rows: u16) {
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(terminal, size).unwrap();
}
