//! Starts a real program that is served, and the real command that looks at it.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the program to serve: set where the test binary is started again to be that program.
pub const NAME: &str = "CMWQ_TEST_PROGRAM";
/// Set if it allows changes.
pub const ALLOW: &str = "CMWQ_TEST_ALLOW_SET";

/// A served program and the directory of its socket.
pub struct Served {
    child: Child,
    /// Kept open: the program may say something more, and must not die of that.
    _out: BufReader<std::process::ChildStdout>,
    dir: Arc<tempfile::TempDir>,
    socket: PathBuf,
}

impl Served {
    pub fn start(name: &str, allow_set: bool) -> Served {
        Served::start_in(Arc::new(tempfile::tempdir().unwrap()), name, allow_set)
    }

    /// Another program with the same directory.
    pub fn another(&self, name: &str, allow_set: bool) -> Served {
        Served::start_in(Arc::clone(&self.dir), name, allow_set)
    }

    fn start_in(dir: Arc<tempfile::TempDir>, name: &str, allow_set: bool) -> Served {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "served", "--nocapture"])
            .env("CMWQ_CONTROL_DIR", dir.path().join("run"))
            .env(NAME, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if allow_set {
            command.env(ALLOW, "1");
        }
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("served ") {
            line.clear();
            assert!(
                out.read_line(&mut line).unwrap() > 0,
                "the program ended before it was served"
            );
        }
        let served = Served {
            child,
            _out: out,
            dir,
            socket: line.trim_start_matches("served ").trim_end().into(),
        };
        // Until the load has run for a moment, so that there is something to see.
        let deadline = Instant::now() + Duration::from_secs(120);
        let who = served.pid().to_string();
        loop {
            let json = served.json(&["monitor", &who, "ingest", "--json", "-i", "0"]);
            if json["workqueues"][0]["completed"].as_u64() > Some(20) {
                return served;
            }
            assert!(
                Instant::now() < deadline,
                "the program does no work: {json}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A directory for files of the test.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn socket_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cmwq"));
        command
            .args(args)
            .env("CMWQ_CONTROL_DIR", self.socket_dir())
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Standard output of a command that must succeed.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.command(args).output().unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {errors}");
        String::from_utf8(out.stdout).unwrap()
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"))
    }

    /// Standard error of a command that must fail.
    pub fn fails(&self, args: &[&str]) -> String {
        let out = self.command(args).output().unwrap();
        assert!(
            !out.status.success(),
            "{args:?} must fail: {}",
            String::from_utf8_lossy(&out.stdout)
        );
        String::from_utf8(out.stderr).unwrap()
    }

    /// The first lines of a command that does not end by itself; the reader then hangs up, which must end it cleanly.
    pub fn first_lines(&self, args: &[&str], n: usize) -> Vec<String> {
        let mut child = self
            .command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let lines: Vec<String> = out.lines().take(n).map(Result::unwrap).collect();
        let deadline = Instant::now() + Duration::from_secs(120);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("{args:?} goes on though nobody reads");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "{args:?}: {status}");
        lines
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Closes its standard input, which ends it in an orderly way.
    pub fn hang_up(&mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Closing its standard input ends it; a stopped one would never see that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
