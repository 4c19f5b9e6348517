//! The command `cmwq crypt` as a user runs it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn cmwq() -> Command {
    Command::new(env!("CARGO_BIN_EXE_cmwq"))
}

fn output(args: &[&str], folder: &Path) -> Output {
    cmwq().args(args).current_dir(folder).output().unwrap()
}

/// A server that is killed when dropped.
struct Serving {
    child: Child,
    uri: String,
    socket: PathBuf,
}

impl Serving {
    fn start(folder: &Path, args: &[&str]) -> Serving {
        let socket = folder.join("s");
        let mut child = cmwq()
            .args(["crypt", "serve", "--unix", "s"])
            .args(args)
            .current_dir(folder)
            .env("CMWQ_CONTROL_DIR", folder.join("run"))
            .env_remove("CMWQ_CONTROL")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Some(uri) = line.trim_end().strip_prefix("ready ") else {
            let mut error = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut error)
                .unwrap();
            panic!("{line:?} instead of a ready line: {error}");
        };
        Serving {
            uri: uri.into(),
            child,
            socket,
        }
    }

    fn signal(&self, name: &str) {
        assert!(
            Command::new("kill")
                .args([name, &self.child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }

    /// The exit code, and what was printed after the ready line, and the errors.
    fn wait(mut self) -> (Option<i32>, String, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "the server does not end"
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        let (mut out, mut err) = (String::new(), String::new());
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut err)
            .unwrap();
        (status.code(), out, err)
    }

    fn client(&self) -> UnixStream {
        let mut c = UnixStream::connect(&self.socket).unwrap();
        c.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The oldest way in: the name of the export, and its size comes back.
        c.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")
            .unwrap();
        let mut hello = [0; 18 + 10];
        c.read_exact(&mut hello).unwrap();
        assert_eq!(&hello[..8], b"NBDMAGIC");
        c
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Gone already, for the most part.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn request(c: &mut UnixStream, command: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) {
    let mut v = 0x2560_9513u32.to_be_bytes().to_vec();
    v.extend(flags.to_be_bytes());
    v.extend(command.to_be_bytes());
    v.extend(offset.to_be_bytes()); // the cookie
    v.extend(offset.to_be_bytes());
    v.extend(len.to_be_bytes());
    v.extend(payload);
    c.write_all(&v).unwrap();
}

fn reply(c: &mut UnixStream) -> u32 {
    let mut r = [0; 16];
    c.read_exact(&mut r).unwrap();
    assert_eq!(r[..4], 0x6744_6698u32.to_be_bytes());
    u32::from_be_bytes(r[4..8].try_into().unwrap())
}

fn read(c: &mut UnixStream, offset: u64, len: u32) -> Vec<u8> {
    request(c, 0, 0, offset, len, b"");
    assert_eq!(reply(c), 0);
    let mut data = vec![0; len as usize];
    c.read_exact(&mut data).unwrap();
    data
}

fn write(c: &mut UnixStream, flags: u16, offset: u64, data: &[u8]) {
    request(c, 1, flags, offset, data.len() as u32, data);
    assert_eq!(reply(c), 0);
}

fn flush(c: &mut UnixStream) {
    request(c, 3, 0, 0, 0, b"");
    assert_eq!(reply(c), 0);
}

fn folder_with_key() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let out = output(&["crypt", "keygen", "key"], folder.path());
    assert!(out.status.success() && out.stdout.is_empty(), "{out:?}");
    assert_eq!(
        std::fs::metadata(folder.path().join("key")).unwrap().len(),
        64
    );
    folder
}

#[test]
fn one_ready_line_and_a_clean_end_on_either_signal() {
    for signal in ["-TERM", "-INT"] {
        let folder = folder_with_key();
        let dir = folder.path();
        let s = Serving::start(
            dir,
            &["--file", "disk", "--size", "1M", "--key-file", "key"],
        );
        assert_eq!(
            s.uri,
            format!(
                "nbd+unix:///?socket={}",
                dir.canonicalize().unwrap().join("s").display()
            )
        );
        let mut c = s.client();
        write(&mut c, 0, 4096, &[7; 4096]);
        s.signal(signal);
        let (socket, (code, out, err)) = (s.socket.clone(), s.wait());
        assert_eq!(
            (code, out.as_str(), err.as_str()),
            (Some(0), "", ""),
            "{signal}"
        );
        assert!(!socket.exists());
        let raw = std::fs::read(dir.join("disk")).unwrap();
        assert!(
            raw.len() == 1 << 20 && raw[4096..8192] != [7; 4096],
            "not encrypted"
        );
        let s = Serving::start(dir, &["--file", "disk", "--key-file", "key"]);
        assert_eq!(read(&mut s.client(), 4096, 4096), [7; 4096]);
    }
}

#[test]
fn a_killed_server_leaves_what_was_flushed() {
    let folder = folder_with_key();
    let dir = folder.path();
    let args = [
        "--file",
        "disk",
        "--size",
        "64M",
        "--key-file",
        "key",
        "--sector-size",
        "4096",
    ];
    let mut expected: Vec<Option<u8>> = vec![None; 256];
    for round in 0..6u8 {
        let s = Serving::start(dir, &args);
        let mut c = s.client();
        for (slot, fill) in expected.iter().enumerate() {
            if let Some(fill) = fill {
                let data = read(&mut c, slot as u64 * 65536, 65536);
                assert!(
                    data.iter().all(|b| b == fill),
                    "round {round}: slot {slot} was flushed and is lost"
                );
            }
        }
        for slot in (usize::from(round)..256).step_by(7) {
            write(&mut c, 0, slot as u64 * 65536, &vec![round + 1; 65536]);
            expected[slot] = Some(round + 1);
        }
        // One by FUA alone.
        write(&mut c, 1, 255 * 65536, &vec![round + 100; 65536]);
        expected[255] = Some(round + 100);
        flush(&mut c);
        // And many without a flush, cut off in the middle. Their slots may hold either.
        for slot in (0..255).step_by(5) {
            request(&mut c, 1, 0, slot as u64 * 65536, 65536, &vec![200; 65536]);
            expected[slot] = None;
        }
        s.signal("-KILL");
        let socket = s.socket.clone();
        assert_eq!(s.wait().0, None);
        assert!(
            socket.exists(),
            "nobody cleaned up, and the next server copes"
        );
    }
}

#[test]
fn what_is_refused_says_why() {
    let folder = folder_with_key();
    let dir = folder.path();
    std::fs::write(dir.join("short"), [1; 32]).unwrap();
    std::fs::write(dir.join("equal"), [1; 64]).unwrap();
    std::fs::write(dir.join("tiny"), [1; 100]).unwrap();
    let serve = ["crypt", "serve"];
    let cases: &[(&[&str], &str)] = &[
        (
            &["--memory", "1M", "--unix", "s", "--key-file", "short"],
            "the key has 32 bytes",
        ),
        (
            &["--memory", "1M", "--unix", "s", "--key-file", "equal"],
            "halves of the key are equal",
        ),
        (
            &["--memory", "1M", "--unix", "s", "--key-file", "none"],
            "key file none: No such file",
        ),
        (
            &["--memory", "1M", "--unix", "s"],
            "--key-file <PATH>|--no-encryption",
        ),
        (
            &["--memory", "1M", "--tcp", "0.0.0.0:0", "--key-file", "key"],
            "not on the loopback",
        ),
        (
            &[
                "--memory",
                "1M",
                "--unix",
                "/nowhere/s",
                "--key-file",
                "key",
            ],
            "cannot listen on /nowhere/s",
        ),
        (
            &["--memory", "1Q", "--unix", "s", "--key-file", "key"],
            "is not a size",
        ),
        (
            &["--memory", "0", "--unix", "s", "--key-file", "key"],
            "smaller than one sector",
        ),
        (
            &[
                "--memory",
                "1M",
                "--unix",
                "s",
                "--key-file",
                "key",
                "--sector-size",
                "1024",
            ],
            "512 or 4096",
        ),
        (
            &["--file", "none", "--unix", "s", "--key-file", "key"],
            "none: No such file",
        ),
        (
            &["--file", "tiny", "--unix", "s", "--key-file", "key"],
            "smaller than one sector",
        ),
        (
            &["--unix", "s", "--key-file", "key"],
            "--file <PATH>|--memory <SIZE>",
        ),
        (
            &["--memory", "1M", "--key-file", "key"],
            "--unix <PATH>|--tcp <ADDR:PORT>",
        ),
    ];
    for (args, expected) in cases {
        let out = output(&[&serve[..], args].concat(), dir);
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(
            !out.status.success() && out.stdout.is_empty(),
            "{args:?}: {out:?}"
        );
        let flat = err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains(expected),
            "{args:?}: {expected:?} is not in {err}"
        );
    }
    let out = output(&["crypt", "keygen", "key"], dir);
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("exists"),
        "{out:?}"
    );
}

#[test]
fn tcp_names_its_port() {
    let folder = folder_with_key();
    let mut child = cmwq()
        .args([
            "crypt",
            "serve",
            "--memory",
            "1M",
            "--tcp",
            "127.0.0.1:0",
            "--key-file",
            "key",
            "--stats",
        ])
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let port: u16 = line
        .trim_end()
        .strip_prefix("ready nbd://127.0.0.1:")
        .unwrap()
        .parse()
        .unwrap();
    let mut c = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut hello = [0; 18];
    c.read_exact(&mut hello).unwrap();
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(
        err.contains("served 1 clients") && err.contains("raw cipher: aes-256-xts"),
        "{err}"
    );
}

#[test]
fn two_servers_cannot_have_one_file() {
    let folder = folder_with_key();
    let dir = folder.path();
    let _one = Serving::start(
        dir,
        &["--file", "disk", "--size", "1M", "--key-file", "key"],
    );
    let out = output(
        &[
            "crypt",
            "serve",
            "--file",
            "disk",
            "--unix",
            "other",
            "--key-file",
            "key",
        ],
        dir,
    );
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("disk: in use by another process"),
        "{out:?}"
    );
}

#[test]
fn speed_prints_one_line_a_size() {
    let out = output(&["crypt", "speed", "--ms", "5"], Path::new("."));
    assert!(out.status.success());
    assert_eq!(
        String::from_utf8_lossy(&out.stdout)
            .lines()
            .filter(|l| l.contains("GB/s"))
            .count(),
        5
    );
}

#[test]
fn a_server_can_be_seen_and_changed_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let serving = Serving::start(dir, &["--memory", "1M", "--no-encryption"]);
    let pid = serving.child.id().to_string();
    let ask = |args: &[&str]| {
        let out = cmwq()
            .args(args)
            .env("CMWQ_CONTROL_DIR", dir.join("run"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {errors}");
        String::from_utf8(out.stdout).unwrap()
    };
    let list = ask(&["list"]);
    assert!(list.contains(&pid) && list.contains("cmwq crypt"), "{list}");
    ask(&["set", &pid, "crypt", "max_active=3"]);
    let limit = ask(&["get", &pid, "crypt", "max_active"]);
    assert!(limit.contains('3'), "{limit}");
    // It serves on, and ends cleanly with its socket gone.
    drop(serving.client());
    serving.signal("-TERM");
    let (code, _, errors) = serving.wait();
    assert_eq!(code, Some(0), "{errors}");
    assert!(!ask(&["list"]).contains(&pid));
}

#[test]
fn without_a_place_for_the_control_socket_it_serves_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    // A file where the folder would be.
    std::fs::write(folder.path().join("run"), b"").unwrap();
    let serving = Serving::start(folder.path(), &["--memory", "1M", "--no-encryption"]);
    drop(serving.client());
    serving.signal("-TERM");
    let (code, _, errors) = serving.wait();
    assert_eq!(code, Some(0), "{errors}");
    assert!(
        errors.contains("without being seen by cmwq list"),
        "{errors}"
    );
}
