//! Clients that mean harm, or are broken, do none: the invariants P1 to P4 of the protocol's README.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cmwq_control::attr::{Attr, ParseContext, SetError, Setting};
use cmwq_control::client::{Client, ClientError};
use cmwq_control::protocol::{MAX_REQUEST, Request, encode};
use cmwq_control::server::{Server, ServerBuilder};
use cmwq_control::snapshot::{Detail, ProcessInfo, Snapshot, WqKind};
use cmwq_control::testing::Fake;
use cmwq_control::{Process, Target};
use proptest::prelude::*;

struct Served {
    _dir: tempfile::TempDir,
    fake: Fake,
    server: Server,
}

fn served() -> Served {
    let dir = private_dir();
    let fake = Fake::new("victim");
    fake.queue("q", WqKind::Unbound, 4);
    let server = ServerBuilder::new(fake.process())
        .dir(dir.path())
        .listen()
        .unwrap();
    Served {
        _dir: dir,
        fake,
        server,
    }
}

fn private_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

fn raw(served: &Served) -> UnixStream {
    let stream = UnixStream::connect(served.server.path()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn hello() -> Vec<u8> {
    encode(
        &Request::Hello {
            protocol: 1,
            client: "test".into(),
        },
        MAX_REQUEST,
    )
    .unwrap()
}

/// Everything until the server closes.
fn drain(mut stream: UnixStream) -> String {
    let mut all = Vec::new();
    // A reset instead of an orderly close is a close too.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// How long anything may take before a test gives up; nothing is judged by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// An honest client gets its answer, within the time that clients have.
fn assert_alive(served: &Served) {
    let start = Instant::now();
    // A client gives up after some seconds; on a machine that does not even get to that, it tries again.
    loop {
        let answer =
            Client::connect(served.server.path()).and_then(|mut c| c.snapshot(Detail::FULL));
        match answer {
            Ok(_) => return,
            Err(e) => assert!(
                start.elapsed() < PATIENCE,
                "an honest client is not answered: {e}"
            ),
        }
    }
}

#[test]
fn huge_lengths_are_refused_unread() {
    let served = served();
    for length in [MAX_REQUEST as u32 + 1, u32::MAX, 0x7fff_ffff] {
        let mut stream = raw(&served);
        stream.write_all(&length.to_le_bytes()).unwrap();
        let said = drain(stream);
        assert!(said.contains("longer than"), "{said}");
    }
    assert_alive(&served);
}

#[test]
fn wrong_versions_and_impolite_clients_are_told_why() {
    let served = served();
    let say = |request: &Request| {
        let mut stream = raw(&served);
        stream
            .write_all(&encode(request, MAX_REQUEST).unwrap())
            .unwrap();
        drain(stream)
    };
    let said = say(&Request::Hello {
        protocol: 99,
        client: String::new(),
    });
    assert!(said.contains("version 1") && said.contains("99"), "{said}");
    let said = say(&Request::Snapshot {
        detail: Detail::FULL,
    });
    assert!(said.contains("hello"), "{said}");
    assert_eq!(served.fake.snapshots(), 0);
    assert_alive(&served);
}

#[test]
fn half_messages_are_closed_in_time() {
    let served = served();
    let start = Instant::now();
    let silent = raw(&served);
    let mut half_length = raw(&served);
    half_length.write_all(&[1, 0]).unwrap();
    let mut half_body = raw(&served);
    half_body.write_all(&hello()).unwrap();
    half_body.write_all(&100_u32.to_le_bytes()).unwrap();
    half_body.write_all(b"{\"request\":").unwrap();
    assert_alive(&served);
    assert_eq!(drain(silent), "");
    assert_eq!(drain(half_length), "");
    assert!(
        start.elapsed() < PATIENCE,
        "no hello: closed after two seconds"
    );
    assert!(drain(half_body).contains("\"hello\""));
    assert!(
        start.elapsed() > Duration::from_secs(4),
        "an incomplete request gets five seconds"
    );
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    assert_alive(&served);
}

#[test]
fn a_client_that_never_reads_holds_nobody_up() {
    let served = served();
    let mut greedy = raw(&served);
    greedy.write_all(&hello()).unwrap();
    greedy
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let ask = encode(
        &Request::Snapshot {
            detail: Detail::FULL,
        },
        MAX_REQUEST,
    )
    .unwrap();
    // Until nothing more is taken: the server stopped reading because we do not.
    let mut sent = 0;
    while sent < 1_000_000 && greedy.write_all(&ask).is_ok() {
        sent += 1;
    }
    assert!(sent < 1_000_000, "the server must stop reading");
    let answered = served.fake.snapshots();
    assert!(
        answered < 10_000,
        "{answered} replies were built for a client that takes none"
    );
    for _ in 0..20 {
        assert_alive(&served);
    }
}

#[test]
fn a_flood_of_requests_is_slowed_down() {
    let served = served();
    let mut flood = raw(&served);
    flood.write_all(&hello()).unwrap();
    let reader = flood.try_clone().unwrap();
    let ask = encode(
        &Request::Snapshot {
            detail: Detail::COUNTERS,
        },
        MAX_REQUEST,
    )
    .unwrap();
    let drainer = std::thread::spawn(move || drain(reader));
    let start = Instant::now();
    let mut honest = 0;
    while start.elapsed() < Duration::from_secs(1) {
        if flood.write_all(&ask.repeat(50)).is_err() {
            break;
        }
        assert_alive(&served);
        honest += 1;
    }
    let flooded = served.fake.snapshots() - honest;
    // 64 in each window of 100 ms, those at both ends included.
    let windows = start.elapsed().as_millis() as u64 / 100 + 2;
    assert!(flooded <= 64 * windows, "{flooded} in {windows} windows");
    flood.shutdown(std::net::Shutdown::Both).unwrap();
    drainer.join().unwrap();
}

#[test]
fn thousands_of_connections_do_not_lock_out_the_honest() {
    let served = served();
    let mut honest = Client::connect(served.server.path()).unwrap();
    let mut held = Vec::new();
    let mut refused = 0;
    for i in 0..3000 {
        match UnixStream::connect(served.server.path()) {
            Ok(stream) => held.push(stream),
            Err(_) => refused += 1,
        }
        if held.len() > 200 {
            held.drain(..100);
        }
        if i % 100 == 0 {
            honest
                .snapshot(Detail::COUNTERS)
                .expect("who is in stays in");
        }
    }
    honest.snapshot(Detail::FULL).unwrap();
    assert!(refused < 3000);
    // The held ones say nothing and lose their places after two seconds at most.
    let start = Instant::now();
    loop {
        match Client::connect(served.server.path()) {
            Ok(mut newcomer) => {
                newcomer.snapshot(Detail::FULL).unwrap();
                break;
            }
            Err(e) => assert!(start.elapsed() < PATIENCE, "locked out: {e}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(held);
}

#[test]
fn idle_clients_make_room_and_busy_servers_say_so() {
    let dir = private_dir();
    let fake = Fake::new("small");
    let server = ServerBuilder::new(fake.process())
        .dir(dir.path())
        .max_clients(2)
        .listen()
        .unwrap();
    let mut first = Client::connect(server.path()).unwrap();
    let mut second = Client::connect(server.path()).unwrap();
    // Said to whoever asks at once; a client tries again until the longest idle one has to go.
    let mut said = String::new();
    let deadline = Instant::now() + PATIENCE;
    while !said.contains("\"busy\":true") && Instant::now() < deadline {
        first.snapshot(Detail::COUNTERS).unwrap();
        second.snapshot(Detail::COUNTERS).unwrap();
        said = drain(UnixStream::connect(server.path()).unwrap());
    }
    assert!(
        said.contains("2 clients are connected; try again"),
        "{said}"
    );
    second.snapshot(Detail::COUNTERS).unwrap();
    let third = loop {
        match Client::connect(server.path()) {
            Ok(client) => break client,
            Err(e) => assert!(
                matches!(e, ClientError::Busy(_)) && Instant::now() < deadline,
                "{e}"
            ),
        }
    };
    assert!(
        first.snapshot(Detail::COUNTERS).is_err(),
        "the longest idle one had to go"
    );
    drop(third);
}

#[test]
fn another_user_is_not_talked_to() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let served = served();
    // Open everything that usually keeps others out: the credentials alone must do.
    let path = served.server.path().to_owned();
    let mut dir = path.parent();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(dir.unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    while let Some(d) = dir {
        let mode = std::fs::metadata(d).unwrap().permissions().mode();
        if mode & 0o001 == 0 {
            println!("skipped: {} cannot be entered by others", d.display());
            return;
        }
        dir = d.parent();
    }
    let said = std::thread::spawn(move || {
        // SAFETY: plain system calls with integer arguments; they change the credentials of this thread only, which ends
        // right after.
        let rc = unsafe {
            libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534);
            libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534)
        };
        assert_eq!(rc, 0);
        let mut stream =
            UnixStream::connect(path).expect("nothing but the credentials keeps us out");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&hello());
        drain(stream)
    })
    .join()
    .unwrap();
    assert_eq!(said, "", "not a word to another user");
    assert_eq!(served.fake.snapshots(), 0);
}

#[test]
fn a_forked_child_leaves_the_server_alone() {
    let served = served();
    let path = served.server.path().to_owned();
    // SAFETY: the child only runs the drop under test (no locks, no allocation it could hang on: it removes nothing and
    // joins nobody) and ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(served.server);
        // SAFETY: ends the child at once, without running the parent's exit handlers.
        unsafe { libc::_exit(7) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made; `status` is valid for writes.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, libc::WEXITSTATUS(status)), (pid, 7));
    assert!(
        path.exists(),
        "the child must not remove the parent's socket"
    );
    assert_alive(&served);
}

/// A process whose own code fails.
struct Failing;

impl Process for Failing {
    fn info(&self) -> ProcessInfo {
        ProcessInfo::default()
    }
    fn snapshot(&self, _: Detail) -> Snapshot {
        panic!("a bug in the process (expected by the test)")
    }
    fn parse_context(&self) -> ParseContext {
        ParseContext { nr_cpu_ids: 1 }
    }
    fn get(&self, _: &Target, _: Attr) -> Result<String, SetError> {
        Ok("x".repeat(70 << 20))
    }
    fn set(&self, _: &Target, _: &Setting) -> Result<String, SetError> {
        Ok(String::new())
    }
}

#[test]
fn failures_of_the_process_itself_become_errors() {
    let dir = private_dir();
    let server = ServerBuilder::new(Arc::new(Failing))
        .dir(dir.path())
        .listen()
        .unwrap();
    let mut client = Client::connect(server.path()).unwrap();
    assert!(
        client
            .snapshot(Detail::FULL)
            .unwrap_err()
            .to_string()
            .contains("failed")
    );
    // Seventy megabytes are much for a busy machine: a client may lose patience first.
    let deadline = Instant::now() + PATIENCE;
    let e = loop {
        let e = client.get(&Target::Global, "cpumask").unwrap_err();
        if matches!(e, ClientError::Answer(_)) || Instant::now() > deadline {
            break e;
        }
        client = Client::connect(server.path()).unwrap();
    };
    assert!(e.to_string().contains("does not fit"), "{e}");
    assert!(
        client
            .trace_start(&Default::default())
            .unwrap_err()
            .to_string()
            .contains("cannot record")
    );
    assert!(
        client.snapshot(Detail::FULL).is_err(),
        "and the conversation goes on"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// P4: whatever is sent, the answer is an error or a close, and others are served.
    #[test]
    fn garbage_gets_an_error_or_a_close(
        greet in any::<bool>(),
        frames in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200)), 1..6),
    ) {
        thread_local!(static SERVED: Served = served());
        SERVED.with(|served| {
            let mut stream = raw(served);
            if greet {
                stream.write_all(&hello()).unwrap();
            }
            for (framed, bytes) in &frames {
                if *framed && stream.write_all(&(bytes.len() as u32).to_le_bytes()).is_err() {
                    break;
                }
                if stream.write_all(bytes).is_err() {
                    break;
                }
            }
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let said = drain(stream);
            assert!(!said.contains("\"snapshot\":"), "{said}");
            assert_alive(served);
        });
    }
}
