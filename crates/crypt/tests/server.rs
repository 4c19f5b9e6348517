//! The server as clients see it: what it answers, in which order, and what it stores.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use cmwq_crypt::server::{Config, Executor, Inline, Item, ThreadPerItem};
use common::*;

#[test]
fn round_trips_with_every_executor_and_reply_form() {
    for (name, executor) in executors() {
        let s = Running::start(memory(64 << 20), executor, Config::default());
        for structured in [false, true] {
            let mut c = s.client(structured);
            assert_eq!(c.size, 64 << 20);
            for (n, len) in [
                512usize,
                4096,
                32 << 10,
                128 << 10,
                (128 << 10) + 512,
                1 << 20,
                32 << 20,
            ]
            .iter()
            .enumerate()
            {
                let data = pattern(n as u64 + 1, *len);
                let offset = n as u64 * 512;
                assert_eq!(c.write(offset, &data), 0, "{name} {len}");
                assert!(c.read(offset, *len as u32).unwrap() == data, "{name} {len}");
                if structured {
                    assert!(
                        c.read_with(4, offset, *len as u32).unwrap() == data,
                        "{name} {len} DF"
                    );
                }
            }
            assert_eq!(c.call(FLUSH, 0, 0, 0, b""), 0);
            assert_eq!(c.call(WRITE, 1, 0, 512, &[5; 512]), 0, "FUA");
            assert_eq!(c.call(WRITE_ZEROES, 1, 512, 16 << 20, b""), 0);
            assert!(c.read(512, 16 << 20).unwrap().iter().all(|&b| b == 0));
            assert_eq!(c.read(0, 512).unwrap(), [5; 512]);
            assert_eq!(c.call(TRIM, 1, 0, 1 << 20, b""), 0);
            c.send(DISC, 0, 0, 0, b"");
            c.assert_closed();
        }
        let stats = s.stop().unwrap();
        assert_eq!(
            (stats.bytes_in_flight, stats.open_connections),
            (0, 0),
            "{name}"
        );
    }
}

#[test]
fn many_requests_in_flight_are_each_answered_once() {
    for (name, executor) in executors() {
        let s = Running::start(memory(16 << 20), executor, Config::default());
        let mut c = s.client(true);
        let mut expected = HashMap::new();
        for i in 0..128u64 {
            let data = pattern(i, 16 << 10);
            expected.insert(c.send(WRITE, 0, i * (16 << 10), 16 << 10, &data), ());
        }
        for _ in 0..128 {
            let a = c.answer(|_| 0);
            assert_eq!(a.error, 0, "{name}");
            assert!(
                expected.remove(&a.cookie).is_some(),
                "{name}: answered twice or never asked"
            );
        }
        let mut reads = HashMap::new();
        for i in 0..128u64 {
            reads.insert(c.send(READ, 0, i * (16 << 10), 16 << 10, b""), i);
        }
        for _ in 0..128 {
            let a = c.answer(|_| 16 << 10);
            let i = reads.remove(&a.cookie).unwrap();
            assert!(a.chunks[0].1 == pattern(i, 16 << 10), "{name}: request {i}");
        }
        s.stop().unwrap();
    }
}

#[test]
fn requests_that_come_byte_by_byte() {
    use std::io::Write;
    let s = Running::memory(1 << 20);
    let mut c = s.raw();
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    let header = cmwq_crypt::nbd::request::Header {
        flags: 0,
        command: WRITE,
        cookie: 1,
        offset: 512,
        length: 512,
    };
    bytes.extend(header.encode());
    bytes.extend([7; 512]);
    let read = cmwq_crypt::nbd::request::Header {
        command: READ,
        cookie: 2,
        ..header
    };
    bytes.extend(read.encode());
    c.take::<18>();
    for b in bytes {
        c.socket.write_all(&[b]).unwrap();
    }
    while c.option_reply().0 != 1 {}
    // The write may overtake the read, which a disk may do too: both are in flight. Either content is right.
    let mut got = [
        c.answer(|k| if k == 2 { 512 } else { 0 }),
        c.answer(|k| if k == 2 { 512 } else { 0 }),
    ];
    got.sort_by_key(|a| a.cookie);
    assert_eq!((got[0].cookie, got[0].error), (1, 0));
    assert_eq!((got[1].cookie, got[1].error), (2, 0));
    assert_eq!(c.read(512, 512).unwrap(), [7; 512]);
}

#[test]
fn errors_by_the_protocol_and_the_connection_goes_on() {
    let s = Running::memory(1 << 20);
    for structured in [false, true] {
        let mut c = s.client(structured);
        assert_eq!(c.write(0, &pattern(1, 4096)), 0);
        let end = 1u64 << 20;
        assert_eq!(c.read(end, 512), Err(22));
        assert_eq!(c.read(end - 512, 1024), Err(22));
        assert_eq!(c.read(u64::MAX - 511, 512), Err(22));
        assert_eq!(c.read(1, 512), Err(22));
        assert_eq!(c.read(0, 0), Err(22));
        assert_eq!(c.read(0, u32::MAX), Err(22));
        assert_eq!(c.write(end, &[1; 512]), 28);
        assert_eq!(c.write(end - 512, &[1; 1024]), 28);
        assert_eq!(c.write(256, &[1; 512]), 22);
        assert_eq!(c.write(0, &[1; 511]), 22);
        assert_eq!(c.call(WRITE_ZEROES, 0, end, 512, b""), 28);
        assert_eq!(c.call(WRITE_ZEROES, 0, 0, u32::MAX - 511, b""), 28);
        assert_eq!(c.call(TRIM, 0, end, 512, b""), 22);
        assert_eq!(c.call(FLUSH, 0, 512, 512, b""), 22);
        for command in [5, 7, 8, 9, 1000, u16::MAX] {
            assert_eq!(c.call(command, 0, 0, 512, b""), 22, "command {command}");
        }
        assert_eq!(
            c.call(WRITE, 1 << 9, 0, 512, &[1; 512]),
            22,
            "unknown flag, payload skipped"
        );
        // A write longer than allowed: its payload is skipped without being held.
        assert_eq!(c.write(0, &vec![9; (32 << 20) + 512]), 28);
        assert_eq!(
            c.read(0, 4096).unwrap(),
            pattern(1, 4096),
            "nothing was changed"
        );
    }
    let stats = s.stop().unwrap();
    assert_eq!(stats.bytes_in_flight, 0);
    assert!(stats.refused_requests > 30);
}

#[test]
fn a_write_too_long_for_one_request_is_refused_though_it_would_fit_the_device() {
    let s = Running::memory(128 << 20);
    let mut c = s.client(false);
    assert_eq!(c.write(0, &vec![9; (32 << 20) + 512]), 22);
    assert_eq!(c.write(0, &vec![9; 32 << 20]), 0);
}

#[test]
fn read_only_exports() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let options = cmwq_crypt::device::FileOptions {
        read_only: true,
        size: None,
    };
    let device = cmwq_crypt::device::FileDevice::open(&path, options).unwrap();
    let volume =
        cmwq_crypt::device::Volume::plain(Arc::new(device), cmwq_crypt::cipher::SectorSize::B512);
    let s = Running::start(Arc::new(volume), Arc::new(Inline), Config::default());
    let mut c = s.client(false);
    assert_eq!(c.flags & 2, 2);
    assert_eq!(c.read(0, 512).unwrap(), [1; 512]);
    assert_eq!(c.write(0, &[0; 512]), 1);
    assert_eq!(c.call(TRIM, 0, 0, 512, b""), 1);
    assert_eq!(c.call(WRITE_ZEROES, 0, 0, 512, b""), 1);
    assert_eq!(c.call(FLUSH, 0, 0, 0, b""), 0);
    assert_eq!(c.read(0, 512).unwrap(), [1; 512]);
}

#[test]
fn tcp_on_the_loopback() {
    use cmwq_crypt::server::{Address, Server, StartError};
    let any: std::net::SocketAddr = "0.0.0.0:0".parse().unwrap();
    let e = Server::start(
        memory(4096),
        &Address::Tcp(any),
        Arc::new(Inline),
        Config::default(),
    )
    .unwrap_err();
    assert!(matches!(e, StartError::NotLoopback(_)), "{e}");
    let local = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::start(
        memory(1 << 20),
        &local,
        Arc::new(ThreadPerItem),
        Config::default(),
    )
    .unwrap();
    let Address::Tcp(addr) = server.address().clone() else {
        panic!("not TCP")
    };
    assert_eq!(server.uri(), format!("nbd://127.0.0.1:{}", addr.port()));
    let tcp = std::net::TcpStream::connect(addr).unwrap();
    use std::io::Read;
    let mut greeting = [0; 18];
    (&tcp).read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    server.stopper().stop();
    server.join().unwrap();
}

/// An executor that keeps items until it is told to let them go.
#[derive(Default)]
struct Held {
    items: std::sync::Mutex<Vec<Item>>,
    open: AtomicBool,
}

impl Executor for Held {
    fn submit(&self, item: Item) {
        if self.open.load(Ordering::SeqCst) {
            return Inline.submit(item);
        }
        self.items.lock().unwrap().push(item);
    }
}

impl Held {
    fn take(&self) -> Vec<Item> {
        std::mem::take(&mut *self.items.lock().unwrap())
    }

    fn wait_for(&self, n: usize) {
        let start = std::time::Instant::now();
        while self.items.lock().unwrap().len() < n {
            assert!(
                start.elapsed() < PATIENCE,
                "{} of {n} items came",
                self.items.lock().unwrap().len()
            );
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

#[test]
fn items_run_in_any_order_make_whole_replies() {
    for structured in [false, true] {
        let held = Arc::new(Held::default());
        let s = Running::start(memory(4 << 20), held.clone(), Config::default());
        let mut c = s.client(structured);
        let data = pattern(3, 1 << 20);
        c.send(WRITE, 0, 512, 1 << 20, &data);
        held.wait_for(8);
        let mut items = held.take();
        items.reverse();
        items.into_iter().for_each(|i| assert!(i.run().is_none()));
        assert_eq!(c.answer(|_| 0).error, 0);
        c.send(READ, 0, 512, 1 << 20, b"");
        held.wait_for(8);
        let mut items = held.take();
        items.swap(0, 7);
        items.swap(2, 5);
        items.into_iter().for_each(|i| assert!(i.run().is_none()));
        let a = c.answer(|_| 1 << 20);
        assert_eq!(a.error, 0);
        if structured {
            assert_eq!(a.chunks.len(), 8, "each part is sent as it comes");
            for (at, chunk) in a.chunks {
                let from = (at - 512) as usize;
                assert!(chunk == data[from..from + chunk.len()]);
            }
        } else {
            assert!(a.chunks[0].1 == data);
        }
    }
}

#[test]
fn dropped_items_are_answered_with_an_error() {
    for structured in [false, true] {
        let held = Arc::new(Held::default());
        let s = Running::start(memory(4 << 20), held.clone(), Config::default());
        let mut c = s.client(structured);
        for (command, len, items) in [
            (READ, 512, 1),
            (READ, 1 << 20, 8),
            (WRITE, 1 << 20, 8),
            (WRITE_ZEROES, 1 << 20, 4),
        ] {
            let payload = if command == WRITE {
                vec![1; len as usize]
            } else {
                Vec::new()
            };
            c.send(command, 0, 0, len, &payload);
            held.wait_for(items);
            let mut all = held.take();
            assert_eq!(all.len(), items);
            // One is run, the rest is lost: the request as a whole failed.
            if let Some(mut rest) = all.pop().filter(|_| items > 1).map(Some) {
                while let Some(item) = rest {
                    rest = item.run();
                }
            }
            drop(all);
            assert_eq!(c.answer(|_| len as usize).error, 108, "command {command}");
        }
        assert_eq!(s.stop().unwrap().bytes_in_flight, 0);
    }
}

#[test]
fn long_zeroes_take_four_items_at_a_time() {
    struct Counting(AtomicUsize);
    impl Executor for Counting {
        fn submit(&self, item: Item) {
            self.0.fetch_add(1, Ordering::SeqCst);
            ThreadPerItem.submit(item);
        }
    }
    let executor = Arc::new(Counting(AtomicUsize::new(0)));
    let s = Running::start(memory(256 << 20), executor.clone(), Config::default());
    let mut c = s.client(true);
    assert_eq!(c.write(100 << 20, &[7; 4096]), 0);
    let before = executor.0.load(Ordering::SeqCst);
    assert_eq!(c.call(WRITE_ZEROES, 0, 0, 256 << 20, b""), 0);
    assert_eq!(executor.0.load(Ordering::SeqCst) - before, 4);
    for at in [0u64, 100 << 20, (256 << 20) - 4096] {
        assert_eq!(c.read(at, 4096).unwrap(), [0; 4096]);
    }
}

#[test]
fn stopping_finishes_what_is_in_flight() {
    let held = Arc::new(Held::default());
    let volume = memory(1 << 20);
    let mut s = Running::start(volume.clone(), held.clone(), Config::default());
    let mut c = s.client(false);
    let data = pattern(9, 64 << 10);
    c.send(WRITE, 0, 0, 64 << 10, &data);
    held.wait_for(1);
    // Half a request more, which is forgotten.
    use std::io::Write;
    let half = cmwq_crypt::nbd::request::Header {
        flags: 0,
        command: WRITE,
        cookie: 99,
        offset: 0,
        length: 4096,
    };
    c.socket.write_all(&half.encode()).unwrap();
    c.socket.write_all(&[0xff; 100]).unwrap();
    let server = s.server.take().unwrap();
    let (path, stopper) = (s.path.clone(), server.stopper());
    let (tell, told) = mpsc::channel();
    let joiner = std::thread::spawn(move || {
        let r = server.join();
        tell.send(()).unwrap();
        r
    });
    stopper.stop();
    assert!(
        told.recv_timeout(std::time::Duration::from_millis(200))
            .is_err(),
        "ended with a request in flight"
    );
    held.open.store(true, Ordering::SeqCst);
    held.take().into_iter().for_each(|i| Inline.submit(i));
    assert_eq!(c.answer(|_| 0).error, 0, "the reply still comes");
    c.assert_closed();
    let stats = joiner.join().unwrap().unwrap();
    assert_eq!((stats.bytes_in_flight, stats.open_connections), (0, 0));
    assert!(!path.exists(), "the socket's name is gone");
    let mut back = vec![0; 64 << 10];
    volume.read(0, &mut back).unwrap();
    assert!(back == data);
}

#[test]
fn a_dead_servers_socket_is_reused_and_a_live_ones_is_not() {
    use cmwq_crypt::server::{Address, Server};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left over, as by kill -9");
    let start = || {
        Server::start(
            memory(4096),
            &Address::Unix(path.clone()),
            Arc::new(Inline),
            Config::default(),
        )
    };
    let server = start().unwrap();
    let e = start().unwrap_err().to_string();
    assert!(
        e.contains("cannot listen on") && e.contains("in use"),
        "{e}"
    );
    drop(server);
    assert!(!path.exists());
    std::fs::write(&path, b"a file of someone's").unwrap();
    assert!(start().is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"a file of someone's");
}

#[test]
fn the_socket_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let s = Running::memory(4096);
    assert_eq!(
        std::fs::metadata(&s.path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn an_idle_server_does_not_wake() {
    // With a client connected and silent; two readers and this thread.
    let s = Running::memory(1 << 20);
    let mut c = s.client(true);
    assert_eq!(c.write(0, &[1; 512]), 0);
    // Long enough for the scan that follows activity to find all quiet.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let switches = || -> u64 {
        let mut all = 0;
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("crypt-reader") {
                let status =
                    std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
                let line = status
                    .lines()
                    .find(|l| l.starts_with("voluntary_ctxt"))
                    .unwrap_or("x\t0");
                all += line
                    .split('\t')
                    .nth(1)
                    .unwrap()
                    .trim()
                    .parse::<u64>()
                    .unwrap();
            }
        }
        all
    };
    // Other tests of this process have readers too; take the quietest of several looks.
    let fewest = (0..10)
        .map(|_| {
            let before = switches();
            std::thread::sleep(std::time::Duration::from_millis(300));
            switches().saturating_sub(before)
        })
        .min()
        .unwrap();
    assert_eq!(fewest, 0, "readers woke with nothing to do");
    assert_eq!(c.read(0, 512).unwrap(), [1; 512]);
}
