//! Server and client against a working registry: the conversation, the place of the socket, what is refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cmwq_control::Target;
use cmwq_control::attr::SetErrorKind;
use cmwq_control::client::{Client, ClientError, Directory};
use cmwq_control::server::{PlaceError, Server, ServerBuilder};
use cmwq_control::snapshot::{Detail, WqKind};
use cmwq_control::testing::Fake;
use cmwq_control::trace::{TraceKind, TraceOptions};

fn serve(fake: &Fake, dir: &Path, allow_set: bool) -> Server {
    ServerBuilder::new(fake.process())
        .dir(dir)
        .allow_set(allow_set)
        .listen()
        .expect("listens")
}

fn private_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

fn kind(e: ClientError) -> SetErrorKind {
    match e {
        ClientError::Answer(e) => e.kind,
        other => panic!("not an answer: {other}"),
    }
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn see_and_steer() {
    let dir = private_dir();
    let fake = Fake::new("steered");
    let queue = fake.queue("ingest", WqKind::Unbound, 16);
    let server = serve(&fake, dir.path(), true);
    let mut client = Client::connect(server.path()).unwrap();
    assert_eq!(client.process().pid, std::process::id());
    assert!(client.process().allow_set);

    queue.push("f", || {});
    until("the item ran", || {
        client.snapshot(Detail::COUNTERS).unwrap().workqueues[0]
            .counters
            .completed
            == 1
    });
    let snapshot = client.snapshot(Detail::FULL).unwrap();
    assert_eq!(snapshot.workqueues[0].queue_to_start.count, 1);
    assert_eq!(snapshot.topology.scopes.len(), 6);
    let counters = client.snapshot(Detail::COUNTERS).unwrap();
    assert!(
        counters.workqueues[0].queue_to_start.is_empty() && counters.topology.scopes.is_empty()
    );

    let wq = Target::Workqueue("ingest".into());
    assert_eq!(
        client.get(&wq, "affinity_scope").unwrap(),
        "default (cache_shard)"
    );
    assert_eq!(
        client.set(&wq, "max_active", "3").unwrap(),
        ("3".into(), None)
    );
    assert_eq!(client.get(&wq, "min_active").unwrap(), "3");
    let (value, note) = client.set(&wq, "max_active", "99999").unwrap();
    assert_eq!(value, "2048");
    assert!(note.unwrap().contains("99999"));
    assert_eq!(client.set(&wq, "cpumask", "0-2").unwrap().0, "07");
    assert_eq!(
        kind(client.set(&wq, "max_active", "0").unwrap_err()),
        SetErrorKind::Invalid
    );
    assert_eq!(
        kind(client.set(&wq, "cpumask", "100").unwrap_err()),
        SetErrorKind::Overflow
    );
    assert_eq!(
        kind(client.set(&wq, "per_cpu", "1").unwrap_err()),
        SetErrorKind::ReadOnly
    );
    assert_eq!(
        kind(client.get(&wq, "nonsense").unwrap_err()),
        SetErrorKind::NotFound
    );
    assert_eq!(
        kind(
            client
                .get(&Target::Workqueue("x".into()), "nice")
                .unwrap_err()
        ),
        SetErrorKind::NotFound
    );
    assert_eq!(
        client
            .set(&Target::Global, "watchdog_thresh", "5")
            .unwrap()
            .0,
        "5"
    );
}

#[test]
fn read_only_unless_allowed() {
    let dir = private_dir();
    let fake = Fake::new("readonly");
    fake.queue("q", WqKind::Unbound, 4);
    let server = serve(&fake, dir.path(), false);
    let mut client = Client::connect(server.path()).unwrap();
    let wq = Target::Workqueue("q".into());
    let e = client.set(&wq, "max_active", "3").unwrap_err();
    assert!(e.to_string().contains("allow_set"), "{e}");
    assert_eq!(kind(e), SetErrorKind::NotPermitted);
    assert_eq!(client.get(&wq, "max_active").unwrap(), "4");
    assert!(!client.process().allow_set);
}

#[test]
fn the_directory_must_be_ours_alone() {
    let fake = Fake::new("placed");
    let listen = |path: &Path| ServerBuilder::new(fake.process()).dir(path).listen();
    let dir = private_dir();

    // Made where missing, closed to others, the socket named after the process.
    let made = dir.path().join("made");
    let server = listen(&made).unwrap();
    assert_eq!(
        std::fs::metadata(&made).unwrap().permissions().mode() & 0o777,
        0o700
    );
    let name = server
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        name.starts_with(&format!("{}-", std::process::id())) && name.ends_with(".sock"),
        "{name}"
    );
    drop(server);
    assert_eq!(
        std::fs::read_dir(&made).unwrap().count(),
        0,
        "the socket goes with its server"
    );

    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(listen(&open), Err(PlaceError::Unsafe { .. })));

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&made, &link).unwrap();
    assert!(matches!(listen(&link), Err(PlaceError::Unsafe { .. })));
    assert!(matches!(
        listen(Path::new("relative")),
        Err(PlaceError::NotAbsolute(_))
    ));
    assert!(matches!(
        listen(&dir.path().join("no/parent")),
        Err(PlaceError::Io { .. })
    ));

    if rustix::process::geteuid().is_root() {
        let foreign = dir.path().join("foreign");
        std::fs::create_dir(&foreign).unwrap();
        std::fs::set_permissions(&foreign, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(&foreign, Some(65534), None).unwrap();
        assert!(matches!(listen(&foreign), Err(PlaceError::Unsafe { .. })));
    } else {
        println!("skipped: a directory of another user needs root to be made");
    }
}

#[test]
fn a_long_path_is_no_obstacle() {
    let dir = private_dir();
    let deep = dir.path().join("d".repeat(200));
    let fake = Fake::new("deep");
    let _server = serve(&fake, &deep, false);
    let found = Directory::open(Some(&deep)).unwrap().list().unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].client.is_ok());
}

#[test]
fn processes_are_found_by_pid_and_name() {
    let dir = private_dir();
    let (a, b) = (Fake::new("storage-a"), Fake::new("storage-b"));
    let (_sa, _sb) = (serve(&a, dir.path(), false), serve(&b, dir.path(), false));
    let directory = Directory::open(Some(dir.path())).unwrap();
    assert_eq!(
        directory.find("storage-a").unwrap().process().name,
        "storage-a"
    );
    let ambiguous = directory.find("storage").unwrap_err().to_string();
    assert!(ambiguous.contains("several"), "{ambiguous}");
    let none = directory.find("nobody").unwrap_err().to_string();
    assert!(
        none.contains("storage-a") && none.contains("storage-b"),
        "{none}"
    );
    let by_pid = directory
        .find(&std::process::id().to_string())
        .unwrap_err()
        .to_string();
    assert!(
        by_pid.contains("several"),
        "two servers in one process: {by_pid}"
    );
    let missing = Directory::open(Some(&dir.path().join("missing"))).unwrap();
    assert!(
        missing
            .find("x")
            .unwrap_err()
            .to_string()
            .contains("listen")
    );
}

#[test]
fn sockets_of_the_dead_are_removed() {
    let dir = private_dir();
    let stale = dir.path().join("4000000-1-00000000000000aa.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let other = dir.path().join("notes.txt");
    std::fs::write(&other, "mine").unwrap();
    let fake = Fake::new("cleaner");
    let server = serve(&fake, dir.path(), false);
    assert!(!stale.exists() && other.exists() && server.path().exists());
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert_eq!(
        Directory::open(Some(dir.path()))
            .unwrap()
            .list()
            .unwrap()
            .len(),
        1
    );
    assert!(!stale.exists(), "listing cleans too");
}

#[test]
fn a_trace_is_bounded_and_ends_with_its_connection() {
    let dir = private_dir();
    let fake = Fake::new("traced");
    let queue = fake.queue("q", WqKind::Unbound, 4);
    let server = serve(&fake, dir.path(), false);
    let mut client = Client::connect(server.path()).unwrap();
    assert_eq!(
        kind(client.trace_poll(10).unwrap_err()),
        SetErrorKind::Invalid
    );
    client
        .trace_start(&TraceOptions {
            buffer_events: 6,
            ..Default::default()
        })
        .unwrap();
    let mut second = Client::connect(server.path()).unwrap();
    assert_eq!(
        kind(second.trace_start(&TraceOptions::default()).unwrap_err()),
        SetErrorKind::Busy
    );
    for _ in 0..10 {
        queue.push("traced_fn", || {});
    }
    until("all ran", || {
        client.snapshot(Detail::COUNTERS).unwrap().workqueues[0]
            .counters
            .completed
            == 10
    });
    let chunk = client.trace_poll(4).unwrap();
    assert_eq!((chunk.events.len(), chunk.more), (4, true));
    assert!(chunk.lost >= 20, "{}", chunk.lost);
    assert!(
        chunk
            .events
            .iter()
            .any(|e| matches!(&e.kind, TraceKind::QueueWork { func, .. } if func == "traced_fn"))
    );
    assert!(fake.tracing());
    drop(client);
    until("the trace stopped", || !fake.tracing());
}

#[test]
fn dropping_the_server_closes_conversations() {
    let dir = private_dir();
    let fake = Fake::new("dropped");
    let server = serve(&fake, dir.path(), false);
    let mut client = Client::connect(server.path()).unwrap();
    server.stop();
    assert!(matches!(
        client.snapshot(Detail::FULL),
        Err(ClientError::Io(_))
    ));
}

/// How often the server's thread ran so far.
fn times_run() -> Option<u64> {
    let mut found = None;
    for task in std::fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?.path();
        if std::fs::read_to_string(task.join("comm")).ok()?.trim() == "cmwq-control" {
            let schedstat = std::fs::read_to_string(task.join("schedstat")).ok()?;
            assert!(found.is_none(), "one server in this process");
            found = schedstat.split_whitespace().nth(2)?.parse().ok();
        }
    }
    found
}

/// P5. In a process of its own: other tests have servers too.
#[test]
fn without_a_client_the_server_sleeps() {
    if std::env::var_os("CMWQ_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "without_a_client_the_server_sleeps"])
            .env("CMWQ_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let dir = private_dir();
    let fake = Fake::new("sleeper");
    let server = serve(&fake, dir.path(), false);
    let visit = || {
        Client::connect(server.path())
            .unwrap()
            .snapshot(Detail::COUNTERS)
            .unwrap()
    };
    // A thread names itself when it starts: after an answer it has.
    visit();
    if times_run().is_none() {
        println!("skipped: no /proc/self/task/*/schedstat");
        return;
    }
    // It still sees the visitor hang up, which may take a while on a busy machine; then it does not run any more.
    let mut before = times_run();
    until(
        "an unused server does not run for a second and a half",
        || {
            before = times_run();
            std::thread::sleep(Duration::from_millis(1500));
            times_run() == before
        },
    );
    visit();
    assert!(times_run() > before, "and the measure sees it when it does");
}

#[test]
fn descriptors_are_not_inherited() {
    let dir = private_dir();
    let fake = Fake::new("closer");
    let server = serve(&fake, dir.path(), false);
    let _client = Client::connect(server.path()).unwrap();
    let sockets = |fds: &str| {
        fds.lines()
            .filter(|l| l.contains("socket:") || l.contains("eventfd"))
            .count()
    };
    let list = |pid: &str| {
        let mut ls = std::process::Command::new("ls");
        let out = ls
            .args(["-l", &format!("/proc/{pid}/fd")])
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(
        sockets(&list(&std::process::id().to_string())) >= 3,
        "listener, connection, eventfd"
    );
    let inherited = list("self");
    assert_eq!(sockets(&inherited), 0, "{inherited}");
}
