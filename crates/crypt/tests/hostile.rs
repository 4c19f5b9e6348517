//! Clients that break the rules. The server answers by the protocol or closes, serves the others, and holds no more than its
//! limits.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cmwq_crypt::nbd::request::Header;
use cmwq_crypt::server::{Config, Inline, ThreadPerItem};
use common::*;

/// The server still serves.
fn assert_serves(s: &Running) {
    let mut c = s.client(true);
    let data = pattern(77, 4096);
    assert_eq!(c.write(8192, &data), 0);
    assert_eq!(c.read(8192, 4096).unwrap(), data);
}

#[test]
fn garbage_handshakes() {
    let s = Running::memory(1 << 20);
    let inputs: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0xff; 1000],
        vec![0; 1000],
        pattern(5, 5000),
        [&3u32.to_be_bytes()[..], b"NOTMAGIC\0\0\0\x07\0\0\0\0"].concat(),
        [
            &3u32.to_be_bytes()[..],
            b"IHAVEOPT\0\0\0\x01\xff\xff\xff\xff",
        ]
        .concat(),
        [&0x8000_0000u32.to_be_bytes()[..], b"IHAVEOPT"].concat(),
    ];
    for input in inputs {
        let mut c = s.raw();
        c.take::<18>();
        // The server may close before it has all.
        let _ = c.socket.write_all(&input);
        let _ = c.socket.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = c.socket.read_to_end(&mut rest);
        assert!(rest.len() < 4096);
    }
    assert_serves(&s);
    s.wait_for("all closed", |st| st.open_connections == 0);
}

#[test]
fn garbage_after_the_handshake() {
    let s = Running::memory(1 << 20);
    for seed in 0..20 {
        let mut c = s.client(seed % 2 == 0);
        let _ = c.socket.write_all(&pattern(seed + 100, 3000));
        c.assert_closed();
    }
    assert_serves(&s);
}

#[test]
fn sudden_closes_at_every_byte_of_a_write() {
    let s = Running::memory(1 << 20);
    let before = pattern(1, 4096);
    assert_eq!(s.client(false).write(0, &before), 0);
    let mut bytes = Header {
        flags: 0,
        command: WRITE,
        cookie: 1,
        offset: 0,
        length: 4096,
    }
    .encode()
    .to_vec();
    bytes.extend([0xff; 4096]);
    for cut in (0..bytes.len()).step_by(37) {
        let mut c = s.client(false);
        c.socket.write_all(&bytes[..cut]).unwrap();
        drop(c);
    }
    s.wait_for("all closed", |st| {
        st.open_connections == 0 && st.bytes_in_flight == 0
    });
    // What was not received whole was not begun.
    assert_eq!(s.client(false).read(0, 4096).unwrap(), before);
}

#[test]
fn clients_that_leave_with_requests_in_flight() {
    let s = Running::memory(16 << 20);
    for round in 0..50 {
        let mut c = s.client(round % 2 == 0);
        for i in 0..32u64 {
            c.send(READ, 0, i * 65536, 65536, b"");
            c.send(WRITE, 0, i * 65536, 4096, &[1; 4096]);
        }
        drop(c);
    }
    s.wait_for("all given back", |st| {
        st.open_connections == 0 && st.bytes_in_flight == 0
    });
    assert_serves(&s);
    assert_eq!(s.stop().unwrap().bytes_in_flight, 0);
}

#[test]
fn huge_lengths_hold_no_memory() {
    let s = Running::memory(1 << 20);
    let mut clients: Vec<Client> = (0..16).map(|_| s.client(false)).collect();
    for c in &mut clients {
        // Announces 4 GiB and sends a little of it.
        c.send(WRITE, 0, 0, u32::MAX, &[0; 1000]);
    }
    assert_serves(&s);
    // While they are still connected. What was answered is given back just after the client has it, hence the wait.
    s.wait_for("nothing held for them", |st| {
        st.bytes_in_flight == 0 && st.open_connections >= 16
    });
    drop(clients);
    s.wait_for("all closed", |st| st.open_connections == 0);
}

#[test]
fn a_client_that_reads_no_replies_is_held_to_its_limit_and_then_closed() {
    let config = Config {
        bytes_per_connection: 1 << 20,
        requests_per_connection: 64,
        stall_timeout: Duration::from_millis(1500),
        ..Config::default()
    };
    for (name, executor) in executors() {
        let s = Running::start(memory(16 << 20), executor, config.clone());
        let mut c = s.client(true);
        c.socket
            .set_write_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let mut sent = 0;
        // Until the server reads no more from it, and its socket is full.
        while sent < 100_000 {
            let h = Header {
                flags: 0,
                command: READ,
                cookie: sent,
                offset: 0,
                length: 128 << 10,
            };
            if c.socket.write_all(&h.encode()).is_err() {
                break;
            }
            sent += 1;
        }
        assert!(sent < 100_000, "{name}: the server took everything");
        let stats = s.server().stats();
        assert!(stats.bytes_in_flight <= 1 << 20, "{name}: {stats:?}");
        assert!(stats.requests < 200, "{name}: {stats:?}");
        assert_serves(&s);
        s.wait_for("the stuck client is closed", |st| {
            st.expired_connections == 1 && st.bytes_in_flight == 0
        });
        assert_serves(&s);
    }
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    let config = Config {
        bytes_per_connection: 1 << 20,
        requests_per_connection: 8,
        ..Config::default()
    };
    for (name, executor) in executors() {
        let s = Running::start(memory(16 << 20), executor, config.clone());
        let mut c = s.client(true);
        let data = pattern(4, 8 << 20);
        for (i, part) in data.chunks(1 << 20).enumerate() {
            assert_eq!(c.write((i as u64) << 20, part), 0);
        }
        let mut writer = c.socket.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            for i in 0..64u64 {
                let h = Header {
                    flags: 0,
                    command: READ,
                    cookie: i,
                    offset: i * (128 << 10),
                    length: 128 << 10,
                };
                writer.write_all(&h.encode()).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..64 {
            let a = c.answer(|_| 0);
            let at = a.cookie as usize * (128 << 10);
            assert!(a.chunks[0].1 == data[at..at + (128 << 10)], "{name}");
        }
        thread.join().unwrap();
    }
}

#[test]
fn all_connections_share_one_budget_first_come_first_served() {
    // Room for one large request at a time.
    let config = Config {
        max_request: 1 << 20,
        bytes_in_all: 1 << 20,
        ..Config::default()
    };
    for (name, executor) in executors() {
        let s = Running::start(memory(16 << 20), executor, config.clone());
        std::thread::scope(|scope| {
            for t in 0..8u64 {
                let s = &s;
                scope.spawn(move || {
                    let mut c = s.client(t % 2 == 0);
                    for round in 0..20 {
                        let data = pattern(t * 100 + round, 1 << 20);
                        assert_eq!(c.write(t << 20, &data), 0, "{name}");
                        assert!(c.read(t << 20, 1 << 20).unwrap() == data, "{name}");
                        assert!(s.server().stats().bytes_in_flight <= 1 << 20);
                    }
                });
            }
        });
        s.wait_for("all given back", |st| st.bytes_in_flight == 0);
    }
}

#[test]
fn clients_that_wait_for_the_budget_and_leave() {
    let config = Config {
        max_request: 1 << 20,
        bytes_in_all: 1 << 20,
        ..Config::default()
    };
    let s = Running::start(memory(16 << 20), Arc::new(ThreadPerItem), config);
    // One has the whole budget and sends nothing; the others wait behind it.
    let mut first = s.client(false);
    first.send(WRITE, 0, 0, 1 << 20, b"");
    s.wait_for("budget taken", |st| st.bytes_in_flight == 1 << 20);
    let mut waiting: Vec<Client> = (0..10).map(|_| s.client(false)).collect();
    for c in &mut waiting {
        c.send(READ, 0, 0, 4096, b"");
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut last = waiting.pop().unwrap();
    drop(waiting);
    drop(first);
    let a = last.answer(|_| 4096);
    assert_eq!(a.error, 0);
    drop(last);
    s.wait_for("all given back", |st| {
        st.open_connections == 0 && st.bytes_in_flight == 0
    });
}

#[test]
fn thousands_of_connections() {
    let nofile = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let mut raised = nofile;
    raised.current = nofile.maximum.map_or(Some(20_000), |m| Some(m.min(20_000)));
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    if raised.current.is_some_and(|n| n < 7000) {
        println!(
            "skipped: the hard limit of descriptors is {:?}",
            nofile.maximum
        );
        return;
    }
    let config = Config {
        max_connections: 2000,
        refused_connections: 32,
        ..Config::default()
    };
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let s = Running::start(memory(1 << 20), Arc::new(Inline), config);
    let before = threads();
    let mut clients: Vec<Client> = (0..2000).map(|_| s.client(true)).collect();
    // Other tests of this process come and go with their own threads, but no thousand of them.
    assert!(
        threads() < before + 200,
        "{} threads for 2000 clients",
        threads()
    );
    // Beyond: told so by the protocol.
    let mut told: Vec<Client> = (0..32).map(|_| s.raw()).collect();
    for c in &mut told {
        c.greet();
        c.option(7, &[0; 6]);
        assert_eq!(
            c.option_reply(),
            ((1 << 31) + 2, b"too many connections".to_vec())
        );
    }
    // And beyond that: closed.
    for _ in 0..200 {
        s.raw().assert_closed();
    }
    for c in clients.iter_mut().step_by(97) {
        assert_eq!(
            c.read(0, 512).map(|d| d.len()),
            Ok(512),
            "those that are served are served"
        );
    }
    drop(told);
    drop(clients.split_off(1000));
    s.wait_for("places come back", |st| st.open_connections == 1000);
    assert_serves(&s);
    drop(clients);
    s.wait_for("all closed", |st| st.open_connections == 0);
}

#[test]
fn silent_clients_are_closed_after_the_handshake_timeout_but_not_later() {
    let config = Config {
        handshake_timeout: Duration::from_millis(300),
        ..Config::default()
    };
    let s = Running::start(memory(1 << 20), Arc::new(Inline), config);
    let mut quiet = s.client(true);
    let mut silent = s.raw();
    let start = Instant::now();
    silent.take::<18>();
    silent.assert_closed();
    assert!(start.elapsed() < Duration::from_secs(10));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(
        quiet.read(0, 512).map(|d| d.len()),
        Ok(512),
        "silence between requests is no fault"
    );
    assert_eq!(s.server().stats().expired_connections, 1);
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_request_is_closed() {
    let config = Config {
        stall_timeout: Duration::from_millis(300),
        ..Config::default()
    };
    let s = Running::start(memory(1 << 20), Arc::new(Inline), config);
    for cut in [10usize, 28, 1000] {
        let mut c = s.client(false);
        let mut bytes = Header {
            flags: 0,
            command: WRITE,
            cookie: 1,
            offset: 0,
            length: 4096,
        }
        .encode()
        .to_vec();
        bytes.extend([1; 4096]);
        c.socket.write_all(&bytes[..cut]).unwrap();
        c.assert_closed();
    }
    s.wait_for("all given back", |st| {
        st.bytes_in_flight == 0 && st.expired_connections == 3
    });
}
