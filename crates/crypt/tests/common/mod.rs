//! A small NBD client that can also misbehave, and servers to try it on.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cmwq_crypt::cipher::{IvUnit, Key, SectorCipher, SectorSize};
use cmwq_crypt::device::{FileDevice, Volume};
use cmwq_crypt::nbd::request::Header;
use cmwq_crypt::server::{
    Address, Config, Executor, FixedPool, Inline, OnWorkqueue, Server, ThreadPerItem,
};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;

/// How long a test waits for what must happen before it calls it a hang.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn key() -> Key {
    let bytes: Vec<u8> = (0..64).map(|i| i * 3 + 1).collect();
    Key::from_bytes(&bytes).unwrap()
}

pub fn memory(size: u64) -> Arc<Volume> {
    let cipher = SectorCipher::new(key(), SectorSize::B512, IvUnit::B512).unwrap();
    Arc::new(Volume::encrypted(
        Arc::new(FileDevice::memory(size).unwrap()),
        cipher,
    ))
}

/// Every executor there is, by name.
pub fn executors() -> Vec<(&'static str, Arc<dyn Executor>)> {
    vec![
        ("inline", Arc::new(Inline)),
        ("thread", Arc::new(ThreadPerItem)),
        ("pool", Arc::new(FixedPool::new(4).unwrap())),
        (
            "cmwq",
            Arc::new(OnWorkqueue::new(
                cmwq::Workqueue::builder("crypt").build().unwrap(),
            )),
        ),
        ("cmwq that receives", receiving(1)),
        ("cmwq that receives twice", receiving(2)),
    ]
}

/// A workqueue whose receivers are work items too.
pub fn receiving(n: usize) -> Arc<dyn Executor> {
    let queue = |name: &str| cmwq::Workqueue::builder(name).build().unwrap();
    let receivers = (0..n).map(|_| queue("receive")).collect();
    Arc::new(OnWorkqueue::new(queue("crypt")).with_receivers(receivers))
}

/// A server on a Unix socket in a folder of its own.
pub struct Running {
    pub server: Option<Server>,
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Running {
    pub fn start(volume: Arc<Volume>, executor: Arc<dyn Executor>, config: Config) -> Running {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let server = Server::start(volume, &Address::Unix(path.clone()), executor, config).unwrap();
        Running {
            server: Some(server),
            path,
            _folder: folder,
        }
    }

    pub fn memory(size: u64) -> Running {
        Running::start(memory(size), Arc::new(ThreadPerItem), Config::default())
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub fn raw(&self) -> Client {
        Client::raw(UnixStream::connect(&self.path).unwrap())
    }

    /// A client in the transmission phase.
    pub fn client(&self, structured: bool) -> Client {
        let mut c = self.raw();
        c.go(structured);
        c
    }

    pub fn stop(mut self) -> std::io::Result<cmwq_crypt::server::Stats> {
        let server = self.server.take().unwrap();
        server.stopper().stop();
        server.join()
    }

    /// Waits until `f` holds for the server's counts.
    pub fn wait_for(&self, what: &str, f: impl Fn(&cmwq_crypt::server::Stats) -> bool) {
        let start = std::time::Instant::now();
        while !f(&self.server().stats()) {
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: {:?}",
                self.server().stats()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub struct Client {
    pub socket: UnixStream,
    structured: bool,
    next: u64,
    pub size: u64,
    pub flags: u16,
}

/// The answer to one request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub cookie: u64,
    /// 0 for success.
    pub error: u32,
    /// Data by offset, in the order of arrival.
    pub chunks: Vec<(u64, Vec<u8>)>,
}

impl Client {
    fn raw(socket: UnixStream) -> Client {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client {
            socket,
            structured: false,
            next: 1,
            size: 0,
            flags: 0,
        }
    }

    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut b = [0; N];
        self.socket.read_exact(&mut b).unwrap();
        b
    }

    pub fn take_vec(&mut self, n: usize) -> Vec<u8> {
        let mut b = vec![0; n];
        self.socket.read_exact(&mut b).unwrap();
        b
    }

    pub fn greet(&mut self) {
        let g = self.take::<18>();
        assert_eq!(&g[..16], b"NBDMAGICIHAVEOPT");
        self.socket.write_all(&3u32.to_be_bytes()).unwrap();
    }

    pub fn option(&mut self, kind: u32, data: &[u8]) {
        let mut v = b"IHAVEOPT".to_vec();
        v.extend(kind.to_be_bytes());
        v.extend((data.len() as u32).to_be_bytes());
        v.extend(data);
        self.socket.write_all(&v).unwrap();
    }

    /// One option reply: type and data.
    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let h = self.take::<20>();
        assert_eq!(h[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let len = u32::from_be_bytes(h[16..20].try_into().unwrap());
        (
            u32::from_be_bytes(h[12..16].try_into().unwrap()),
            self.take_vec(len as usize),
        )
    }

    pub fn go(&mut self, structured: bool) {
        self.greet();
        if structured {
            self.option(8, b"");
            assert_eq!(self.option_reply().0, 1);
        }
        self.structured = structured;
        self.option(7, &[0; 6]);
        loop {
            let (kind, data) = self.option_reply();
            match kind {
                1 => return,
                3 if data[..2] == [0, 0] => {
                    self.size = u64::from_be_bytes(data[2..10].try_into().unwrap());
                    self.flags = u16::from_be_bytes(data[10..12].try_into().unwrap());
                }
                3 => {}
                other => panic!(
                    "GO was answered by {other:#x}: {}",
                    String::from_utf8_lossy(&data)
                ),
            }
        }
    }

    /// Sends a request without waiting; returns its cookie.
    pub fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let mut v = Header {
            flags,
            command,
            cookie,
            offset,
            length,
        }
        .encode()
        .to_vec();
        v.extend_from_slice(payload);
        self.socket.write_all(&v).unwrap();
        cookie
    }

    /// The next complete answer. `read_len` gives the length of a read by cookie, for simple replies.
    pub fn answer(&mut self, read_len: impl Fn(u64) -> usize) -> Answer {
        let mut chunks = Vec::new();
        let mut error = 0;
        loop {
            let magic = u32::from_be_bytes(self.take());
            if magic == 0x6744_6698 {
                let error = u32::from_be_bytes(self.take());
                let cookie = u64::from_be_bytes(self.take());
                let n = if error == 0 { read_len(cookie) } else { 0 };
                assert!(n == 0 || !self.structured, "reads get structured replies");
                if n > 0 {
                    chunks.push((0, self.take_vec(n)));
                }
                return Answer {
                    cookie,
                    error,
                    chunks,
                };
            }
            assert_eq!(magic, 0x668e_33ef, "reply magic");
            assert!(self.structured);
            let flags = u16::from_be_bytes(self.take());
            let kind = u16::from_be_bytes(self.take());
            let cookie = u64::from_be_bytes(self.take());
            let len = u32::from_be_bytes(self.take()) as usize;
            let body = self.take_vec(len);
            match kind {
                0 => assert_eq!(len, 0),
                1 => chunks.push((
                    u64::from_be_bytes(body[..8].try_into().unwrap()),
                    body[8..].to_vec(),
                )),
                0x8001 | 0x8002 => error = u32::from_be_bytes(body[..4].try_into().unwrap()),
                other => panic!("chunk type {other}"),
            }
            if flags & 1 != 0 {
                return Answer {
                    cookie,
                    error,
                    chunks,
                };
            }
        }
    }

    /// One request and its answer; the error is 0 for success.
    pub fn call(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> u32 {
        let cookie = self.send(command, flags, offset, length, payload);
        let a = self.answer(|_| if command == READ { length as usize } else { 0 });
        assert_eq!(a.cookie, cookie);
        a.error
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.call(WRITE, 0, offset, data.len() as u32, data)
    }

    pub fn read_with(&mut self, flags: u16, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        let cookie = self.send(READ, flags, offset, length, b"");
        let a = self.answer(|_| length as usize);
        assert_eq!(a.cookie, cookie);
        if a.error != 0 {
            return Err(a.error);
        }
        if !self.structured {
            return Ok(a.chunks.into_iter().next().unwrap().1);
        }
        if flags & 4 != 0 {
            assert_eq!(a.chunks.len(), 1, "DF asks for one chunk");
        }
        let mut data = vec![0xee; length as usize];
        let mut covered = 0;
        for (at, chunk) in a.chunks {
            let from = (at - offset) as usize;
            data[from..from + chunk.len()].copy_from_slice(&chunk);
            covered += chunk.len();
        }
        assert_eq!(covered, length as usize, "each byte comes once");
        Ok(data)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        self.read_with(0, offset, length)
    }

    /// The server closed: nothing more comes.
    pub fn assert_closed(&mut self) {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "{} bytes instead of an end", rest.len()),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
        }
    }
}

/// Bytes that differ from place to place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        })
        .collect()
}
