//! A whole server: any bytes after the handshake, over a real socket. It must neither panic nor hang nor leak its budget, and
//! what it answers must be well-formed.
//! `cargo +nightly fuzz run session` in crates/crypt.
#![no_main]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cmwq_crypt::cipher::{IvUnit, Key, SectorCipher, SectorSize};
use cmwq_crypt::device::{FileDevice, Volume};
use cmwq_crypt::server::{Address, Config, Inline, Server};
use libfuzzer_sys::fuzz_target;

fn server() -> &'static (Server, std::path::PathBuf) {
    static SERVER: OnceLock<(Server, std::path::PathBuf)> = OnceLock::new();
    SERVER.get_or_init(|| {
        let key: Vec<u8> = (0..64).collect();
        let cipher =
            SectorCipher::new(Key::from_bytes(&key).expect("key"), SectorSize::B512, IvUnit::B512).expect("cipher");
        let volume = Volume::encrypted(Arc::new(FileDevice::memory(1 << 20).expect("memory")), cipher);
        let path = std::env::temp_dir().join(format!("cmwq-crypt-fuzz-{}", std::process::id()));
        let config = Config { readers: 1, ..Config::default() };
        let server = Server::start(Arc::new(volume), &Address::Unix(path.clone()), Arc::new(Inline), config);
        (server.expect("server"), path)
    })
}

/// Checks the replies and returns how many there are.
fn check(mut b: &[u8]) {
    while !b.is_empty() {
        let word = |at: usize| u32::from_be_bytes(b[at..at + 4].try_into().expect("four bytes"));
        match word(0) {
            // A simple reply. With structured replies no data follows one.
            0x6744_6698 => b = &b[16..],
            0x668e_33ef => b = &b[20 + word(16) as usize..],
            other => panic!("reply magic {other:#x}"),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let (server, path) = server();
    let mut c = UnixStream::connect(path).expect("connect");
    c.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
    let mut hello = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0IHAVEOPT\0\0\0\x01\0\0\0\0".to_vec();
    // Requests with the right magic and anything else, so that the fuzzer need not find it.
    for part in data.chunks(60) {
        hello.extend(0x2560_9513u32.to_be_bytes());
        hello.extend(part);
    }
    let sender = {
        let mut c = c.try_clone().expect("clone");
        std::thread::spawn(move || {
            // The server may close in the middle.
            let _ = c.write_all(&hello);
            let _ = c.shutdown(std::net::Shutdown::Write);
        })
    };
    let mut all = Vec::new();
    if let Err(e) = c.read_to_end(&mut all) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}");
        // What was on its way is lost with the connection.
        all.truncate(0);
    }
    sender.join().expect("sender");
    if all.len() > 18 + 20 + 10 {
        check(&all[18 + 20 + 10..]);
    }
    let start = Instant::now();
    while server.stats().open_connections > 0 || server.stats().bytes_in_flight > 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", server.stats());
        std::thread::yield_now();
    }
});
