//! A process that listens, and a client that asks it.

use cmwq::Runtime;
use cmwq::control::attr::SetErrorKind;
use cmwq::control::snapshot::Detail;
use cmwq::control::trace::TraceOptions;
use cmwq::control::{ListenBuilder, Target};
use cmwq_control::client::{Client, ClientError};
use std::path::PathBuf;

fn serve(dir: &tempfile::TempDir) -> ListenBuilder {
    cmwq::control::builder().dir(dir.path().join("run"))
}

fn connect(path: &std::path::Path) -> Client {
    Client::connect(path).unwrap()
}

fn sockets(dir: &tempfile::TempDir) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir.path().join("run")) else {
        return Vec::new();
    };
    entries.map(|e| e.unwrap().path()).collect()
}

#[test]
fn a_listener_serves_a_runtime_until_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").max_active(16).build().unwrap();
    let listener = serve(&dir).runtime(&rt).name("storage").listen().unwrap();
    let path = listener.path().unwrap().to_owned();
    assert_eq!(sockets(&dir), std::slice::from_ref(&path));
    let mut client = connect(&path);
    assert_eq!(client.process().name, "storage");
    assert_eq!(client.process().pid, std::process::id());
    wq.spawn(|| {}).join().unwrap();
    // Counted out, too, which comes just after the joiner is woken.
    wq.flush().unwrap();
    let s = client.snapshot(Detail::FULL).unwrap();
    assert_eq!(s.workqueue("ingest").unwrap().counters.completed, 1);
    let target = Target::Workqueue("ingest".into());
    assert_eq!(client.get(&target, "max_active").unwrap(), "16");
    // Nobody said that changes are allowed.
    match client.set(&target, "max_active", "3").unwrap_err() {
        ClientError::Answer(e) => assert_eq!(e.kind, SetErrorKind::NotPermitted),
        e => panic!("{e}"),
    }
    assert_eq!(wq.limits().0, 16);
    // Being looked at keeps nothing alive, and what is gone is shown as empty.
    wq.destroy().unwrap();
    rt.shutdown().unwrap();
    assert!(client.snapshot(Detail::FULL).unwrap().workqueues.is_empty());
    drop(rt);
    listener.stop();
    assert!(sockets(&dir).is_empty());
    assert!(client.snapshot(Detail::FULL).is_err());
}

#[test]
fn changes_where_they_are_allowed_and_a_trace_that_ends_with_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").build().unwrap();
    let listener = serve(&dir).runtime(&rt).allow_set(true).listen().unwrap();
    let mut client = connect(listener.path().unwrap());
    assert!(client.process().allow_set);
    let target = Target::Workqueue("ingest".into());
    assert_eq!(client.set(&target, "max_active", "3").unwrap().0, "3");
    assert_eq!(wq.limits().0, 3);
    client.trace_start(&TraceOptions::default()).unwrap();
    wq.spawn(|| {}).join().unwrap();
    let chunk = client.trace_poll(100).unwrap();
    assert!(chunk.events.len() >= 3, "{chunk:?}");
    drop(client);
    // The next one may trace once the server has seen the end of the first.
    let mut next = connect(listener.path().unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(e) = next.trace_start(&TraceOptions::default()) {
        assert!(std::time::Instant::now() < deadline, "{e}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// The thread that serves must not take the application's signals.
#[test]
fn the_control_thread_blocks_the_applications_signals() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let listener = serve(&dir).runtime(&rt).listen().unwrap();
    drop(connect(listener.path().unwrap()));
    let mask = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .find_map(|task| {
            let dir = task.unwrap().path();
            let comm = std::fs::read_to_string(dir.join("comm")).ok()?;
            (comm.trim() == "cmwq-control")
                .then(|| std::fs::read_to_string(dir.join("status")).unwrap())
        });
    let mask = mask.expect("the thread has its name");
    let blocked = mask
        .lines()
        .find_map(|l| l.strip_prefix("SigBlk:"))
        .unwrap()
        .trim();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0, "{blocked:x}");
    assert_eq!(blocked & 1 << (libc::SIGSEGV - 1), 0, "{blocked:x}");
}

#[test]
fn in_a_forked_child_the_handle_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rt = Runtime::builder().build().unwrap();
    let wq = rt.workqueue("ingest").build().unwrap();
    wq.spawn(|| {}).join().unwrap();
    let listener = serve(&dir).runtime(&rt).listen().unwrap();
    let again = serve(&dir).runtime(&rt);
    // SAFETY: the child makes no use of what other threads may have held at that moment: it drops a handle, tries to listen
    // (which must be refused before anything is allocated by it) and leaves.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        listener.stop();
        let refused = matches!(again.listen(), Err(cmwq::control::ListenError::Forked));
        // SAFETY: ends the child at once, without running the test harness's or the runtime's ends.
        unsafe { libc::_exit(if refused { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7,
        "{status:x}"
    );
    let mut client = connect(listener.path().unwrap());
    assert!(
        client
            .snapshot(Detail::COUNTERS)
            .unwrap()
            .workqueue("ingest")
            .is_some()
    );
}
