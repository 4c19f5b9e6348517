//! Receivers as work items: fair to their connections, never held up by a cold disk, a slow client or a panic, and gone at the end.

mod common;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cmwq_crypt::cipher::SectorSize;
use cmwq_crypt::device::{Device, FileDevice, Volume};
use cmwq_crypt::nbd::request::Header;
use cmwq_crypt::server::{Config, Executor, OnWorkqueue};
use common::*;

/// Reads at this offset are cold: they wait for the gate.
const COLD: u64 = 512 << 10;
/// Reads at this offset panic.
const BROKEN: u64 = 768 << 10;

/// Memory, parts of which behave like a disk.
struct Disk {
    memory: FileDevice,
    open: Mutex<bool>,
    opened: Condvar,
    cold: AtomicUsize,
}

impl Disk {
    fn new() -> Arc<Disk> {
        Arc::new(Disk {
            memory: FileDevice::memory(1 << 20).unwrap(),
            open: Mutex::new(false),
            opened: Condvar::new(),
            cold: AtomicUsize::new(0),
        })
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        self.memory.size()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        assert!(offset != BROKEN, "a broken block, on purpose");
        if offset == COLD {
            self.cold.fetch_add(1, Ordering::SeqCst);
            let mut open = self.open.lock().unwrap();
            while !*open {
                open = self.opened.wait(open).unwrap();
            }
        }
        self.memory.read_at(offset, buf)
    }
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        if offset == COLD {
            return Ok(false);
        }
        self.read_at(offset, buf).map(|()| true)
    }
    fn write_at(&self, offset: u64, buf: &[u8], durable: bool) -> io::Result<()> {
        self.memory.write_at(offset, buf, durable)
    }
    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }
    fn trim(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.trim(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, keep_space: bool) -> io::Result<()> {
        self.memory.write_zeroes(offset, len, keep_space)
    }
}

fn serve(disk: &Arc<Disk>) -> Running {
    let volume = Volume::plain(Arc::clone(disk) as Arc<dyn Device>, SectorSize::B512);
    Running::start(Arc::new(volume), receiving(1), Config::default())
}

fn wait_for(what: &str, f: impl Fn() -> bool) {
    let start = Instant::now();
    while !f() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_cold_read_holds_up_nobody_and_the_end_waits_for_it() {
    let disk = Disk::new();
    let mut s = serve(&disk);
    let (mut a, mut b) = (s.client(false), s.client(false));
    let cold = a.send(READ, 0, COLD, 4096, b"");
    wait_for("the cold read", || disk.cold.load(Ordering::SeqCst) == 1);
    // The same receiver has both connections.
    for i in 0..50u64 {
        assert_eq!(b.write(i * 512, &pattern(i + 1, 512)), 0);
        assert_eq!(b.read(i * 512, 512).unwrap(), pattern(i + 1, 512));
        assert_eq!(a.call(FLUSH, 0, 0, 0, b""), 0, "behind its own cold read");
    }
    let server = s.server.take().unwrap();
    server.stopper().stop();
    let ended = Arc::new(AtomicBool::new(false));
    let joiner = {
        let ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            let stats = server.join();
            ended.store(true, Ordering::SeqCst);
            stats
        })
    };
    b.assert_closed();
    assert!(
        !ended.load(Ordering::SeqCst),
        "ended with a request in flight"
    );
    disk.open();
    let answer = a.answer(|_| 4096);
    assert_eq!((answer.cookie, answer.error), (cold, 0));
    a.assert_closed();
    let stats = joiner.join().unwrap().unwrap();
    assert_eq!((stats.bytes_in_flight, stats.open_connections), (0, 0));
}

#[test]
fn an_item_that_panics_in_a_receiver_is_answered_and_the_receiver_goes_on() {
    let s = serve(&Disk::new());
    let mut c = s.client(false);
    let broken = c.send(READ, 0, BROKEN, 512, b"");
    let fine = c.send(READ, 0, 0, 512, b"");
    let mut errors = Vec::new();
    for _ in 0..2 {
        let a = c.answer(|_| 512);
        errors.push((a.cookie, a.error));
    }
    errors.sort_unstable();
    assert_eq!(errors, [(broken, 5), (fine, 0)]);
    assert_eq!(c.read(512, 512).unwrap(), vec![0; 512]);
    assert_eq!(s.stop().unwrap().bytes_in_flight, 0);
}

/// Sends reads without end, as fast as the server takes them, until told to stop; takes the replies as they come.
#[test]
fn a_greedy_client_leaves_its_neighbours_their_turns() {
    let s = Running::start(memory(8 << 20), receiving(1), Config::default());
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicUsize::new(0));
    let greedy = {
        let (mut c, stop, answered) = (s.client(false), Arc::clone(&stop), Arc::clone(&answered));
        let mut writer = c.socket.try_clone().unwrap();
        let (told, sent) = std::sync::mpsc::channel();
        let sender = std::thread::spawn(move || {
            let mut n = 0u64;
            while !stop.load(Ordering::SeqCst) {
                let header = Header {
                    flags: 0,
                    command: READ,
                    cookie: n,
                    offset: (n % 64) * (64 << 10),
                    length: 64 << 10,
                };
                writer.write_all(&header.encode()).unwrap();
                n += 1;
                told.send(()).unwrap();
            }
        });
        std::thread::spawn(move || {
            while sent.recv().is_ok() {
                assert_eq!(c.answer(|_| 64 << 10).error, 0);
                answered.fetch_add(1, Ordering::SeqCst);
            }
            sender.join().unwrap();
        })
    };
    wait_for("the greedy client", || {
        answered.load(Ordering::SeqCst) > 300
    });
    let mut modest = s.client(false);
    let mut most = 0;
    for i in 0..100u64 {
        let before = answered.load(Ordering::SeqCst);
        assert_eq!(modest.write(i * 512, &[i as u8; 512]), 0);
        most = most.max(answered.load(Ordering::SeqCst) - before);
    }
    assert!(!greedy.is_finished(), "it was greedy all the while");
    // What it may have in flight, twice (what came before and what comes with ours), and what it reads from its socket meanwhile.
    assert!(
        most <= 2 * 256 + 256,
        "{most} of its requests before one of ours"
    );
    stop.store(true, Ordering::SeqCst);
    greedy.join().unwrap();
    assert_eq!(s.stop().unwrap().bytes_in_flight, 0);
}

#[test]
fn closed_queues_give_their_receivers_to_threads_and_lose_nothing() {
    let queue = |name: &str| cmwq::Workqueue::builder(name).build().unwrap();
    let (items, receive) = (queue("crypt"), queue("receive"));
    let executor = OnWorkqueue::new(items.clone()).with_receivers(vec![receive.clone()]);
    let executor: Arc<dyn Executor> = Arc::new(executor);
    let s = Running::start(memory(1 << 20), executor, Config::default());
    let mut c = s.client(true);
    assert_eq!(c.write(0, &pattern(1, 4096)), 0);
    receive.close();
    items.close();
    for i in 0..200u64 {
        let data = pattern(i, 64 << 10);
        assert_eq!(c.write((i % 8) << 16, &data), 0);
        assert!(c.read((i % 8) << 16, 64 << 10).unwrap() == data);
        assert_eq!(c.call(FLUSH, 0, 0, 0, b""), 0);
    }
    assert_eq!(s.stop().unwrap().bytes_in_flight, 0);
}

#[test]
fn more_receivers_than_queues_and_more_clients_than_receivers() {
    let config = Config {
        readers: 3,
        ..Config::default()
    };
    let s = Running::start(memory(8 << 20), receiving(2), config);
    let clients: Vec<_> = (0..12u64)
        .map(|n| {
            let mut c = s.client(n % 2 == 0);
            std::thread::spawn(move || {
                for i in 0..40u64 {
                    let (at, len) = (n * (512 << 10), 4096usize << (i % 7));
                    let data = pattern(n * 100 + i, len);
                    assert_eq!(c.write(at, &data), 0);
                    assert!(c.read(at, len as u32).unwrap() == data, "client {n}");
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let stats = s.stop().unwrap();
    assert_eq!((stats.bytes_in_flight, stats.requests), (0, 12 * 80));
}
