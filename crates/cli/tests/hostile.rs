//! Clients that mean harm, against a real program under load: its items go on, its memory, threads and descriptors stay
//! bounded, and whoever comes next and is honest is served, by the real command.

#[path = "../../cmwq/examples/live.rs"]
#[allow(dead_code)]
mod live;
mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cmwq_control::client::Client;
use cmwq_control::protocol::{MAX_REQUEST, Request, encode};
use cmwq_control::snapshot::Detail;
use support::{ALLOW, NAME, Served};

/// Not a test of its own: the program that the tests serve, when they start this binary again.
#[test]
fn served() {
    let Ok(name) = std::env::var(NAME) else {
        return;
    };
    assert!(std::env::var_os(ALLOW).is_none());
    println!();
    live::run(&["--name".to_owned(), name]).unwrap();
    std::process::exit(0);
}

/// How long anything may take before a test gives up; nothing is judged by it.
const PATIENCE: Duration = Duration::from_secs(120);
/// Clients at once that a server takes.
const CLIENTS: usize = 32;

/// The program as the system sees it, whatever it says itself.
struct Victim {
    served: Served,
    threads: usize,
    sockets: usize,
    rss_kb: u64,
}

impl Victim {
    fn start(name: &str) -> Victim {
        let mut victim = Victim {
            served: Served::start(name, false),
            threads: 0,
            sockets: 0,
            rss_kb: 0,
        };
        // One look in every detail, so that what a look leaves behind is not taken for growth.
        victim.served.ok(&["dump", name, "--json"]);
        victim.threads = victim.entries("task").count();
        victim.sockets = victim.sockets();
        victim.rss_kb = victim.status_kb("VmRSS:");
        victim
    }

    fn entries(&self, what: &str) -> impl Iterator<Item = std::fs::DirEntry> {
        let dir = std::fs::read_dir(format!("/proc/{}/{what}", self.served.pid())).unwrap();
        dir.flatten()
    }

    /// Its open sockets. (Other descriptors come and go with its threads.)
    fn sockets(&self) -> usize {
        let is_socket = |e: &std::fs::DirEntry| {
            std::fs::read_link(e.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
        };
        self.entries("fd").filter(is_socket).count()
    }

    fn status_kb(&self, field: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.served.pid())).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(field)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.served.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A connection that is let in: it has said hello and been greeted.
    fn greeted(&self) -> UnixStream {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut stream = self.raw();
            // Turned away is closed: then the next try.
            if stream.write_all(&hello()).is_ok()
                && frame(&mut stream).is_some_and(|f| f.contains("\"reply\":\"hello\""))
            {
                return stream;
            }
            assert!(Instant::now() < deadline, "never let in");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Items of all queues that are done, asked by a client of its own.
    fn done(&self) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let looked = Client::connect(self.served.socket())
                .and_then(|mut c| c.snapshot(Detail::COUNTERS));
            match looked {
                Ok(s) => return s.workqueues.iter().map(|q| q.counters.completed).sum(),
                Err(e) => assert!(
                    Instant::now() < deadline,
                    "an honest client is locked out: {e}"
                ),
            }
        }
    }

    /// Waits until so many more items are done, and checks what must hold meanwhile.
    fn goes_on(&self, what: &str) {
        let before = self.done();
        let deadline = Instant::now() + PATIENCE;
        while self.done() < before + 200 {
            self.is_bounded(what);
            assert!(Instant::now() < deadline, "{what}: items do not go on");
        }
        self.is_bounded(what);
    }

    fn is_bounded(&self, what: &str) {
        let names: Vec<String> = self
            .entries("task")
            .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok())
            .collect();
        let serving = names.iter().filter(|n| n.trim() == "cmwq-control").count();
        assert_eq!(serving, 1, "{what}: one thread serves, whatever comes");
        // The load's own: 64 items of `fetch` may block at once, each with a worker.
        let most = self.threads + 80;
        assert!(names.len() <= most, "{what}: {} threads", names.len());
        // Connections, and two more that are on their way in or out.
        let (open, most) = (self.sockets(), self.sockets + CLIENTS + 2);
        assert!(open <= most, "{what}: {open} sockets of at most {most}");
        // A reply of this program is some 100 kB; a client has one at most, and 64 kB of requests.
        let grown = self.status_kb("VmRSS:").saturating_sub(self.rss_kb);
        assert!(grown < 96 << 10, "{what}: {grown} kB more");
    }

    /// After the attack: the real command is served, nothing is left behind, work goes on.
    fn is_well(&self, what: &str) {
        let who = self.served.pid().to_string();
        let deadline = Instant::now() + PATIENCE;
        for (args, shown) in [
            (&["list", "--json"][..], "items_per_second"),
            (&["monitor", &who, "-i", "0"], "ingest"),
        ] {
            // Where the machine is so busy that the process does not come to answering, once more.
            loop {
                let out = self.served.command(args).output().unwrap();
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                if out.status.success() && text.contains(shown) {
                    break;
                }
                let errors = String::from_utf8_lossy(&out.stderr);
                assert!(Instant::now() < deadline, "{what}: {text}{errors}");
            }
        }
        while self.sockets() > self.sockets {
            assert!(
                Instant::now() < deadline,
                "{what}: {} connections are left",
                self.sockets() - self.sockets
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        self.goes_on(what);
    }
}

fn request(request: &Request) -> Vec<u8> {
    encode(request, MAX_REQUEST).unwrap()
}

fn hello() -> Vec<u8> {
    request(&Request::Hello {
        protocol: 1,
        client: "hostile".into(),
    })
}

fn look() -> Vec<u8> {
    request(&Request::Snapshot {
        detail: Detail::FULL,
    })
}

/// The next frame as text; none if the other side hung up.
fn frame(stream: &mut UnixStream) -> Option<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).ok()?;
    Some(String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn half_messages() {
    let victim = Victim::start("halves");
    let whole = look();
    let mut held = Vec::new();
    for i in 0..200 {
        let mut stream = victim.raw();
        // Cut within the length, or within the body, after the greeting; without it, and one in six says nothing at all.
        let mut said = if i % 2 == 0 { hello() } else { Vec::new() };
        said.extend(&whole[..[2, 0, 3, 1, 5, whole.len() - 1][i % 6]]);
        // Who was turned away at once cannot be written to.
        let _ = stream.write_all(&said);
        held.push(stream);
        if i % 20 == 0 {
            victim.is_bounded("half messages");
        }
    }
    victim.goes_on("half messages");
    // They are let go, all of them, while they still hold on.
    let deadline = Instant::now() + PATIENCE;
    while victim.sockets() > victim.sockets {
        assert!(Instant::now() < deadline, "half messages keep their places");
        std::thread::sleep(Duration::from_millis(50));
    }
    victim.is_well("after half messages");
    drop(held);
}

#[test]
fn floods_of_requests() {
    let victim = Victim::start("flooded");
    let over = AtomicBool::new(false);
    let flood = look().repeat(50);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let stream = victim.greeted();
            let mut reader = stream.try_clone().unwrap();
            let mut writer = stream;
            let (over, flood) = (&over, &flood);
            scope.spawn(move || {
                // Ordering of nothing: a flag that is read again.
                while !over.load(Ordering::Relaxed) && writer.write_all(flood).is_ok() {}
                let _ = writer.shutdown(std::net::Shutdown::Both);
            });
            scope.spawn(move || {
                let mut bytes = vec![0; 1 << 20];
                while matches!(reader.read(&mut bytes), Ok(n) if n > 0) {}
            });
        }
        // Whatever is asked, answering takes a quarter of a CPU at most.
        let serving = || cpu_time_of_server(victim.served.pid());
        let (cpu, start) = (serving(), Instant::now());
        for _ in 0..5 {
            victim.goes_on("a flood");
        }
        if let (Some(before), Some(now)) = (cpu, serving()) {
            let used = (now - before).as_secs_f64();
            // Two windows more, at both ends, and an answer that ran over in each.
            let may = start.elapsed().as_secs_f64() * 0.35 + 0.1;
            assert!(used <= may, "{used} s of CPU time in {:?}", start.elapsed());
        }
        over.store(true, Ordering::Relaxed);
    });
    victim.is_well("after a flood");
}

/// CPU time of the thread that answers.
fn cpu_time_of_server(pid: u32) -> Option<Duration> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let task = task.ok()?.path();
        if std::fs::read_to_string(task.join("comm")).ok()?.trim() == "cmwq-control" {
            let stat = std::fs::read_to_string(task.join("schedstat")).ok()?;
            return Some(Duration::from_nanos(stat.split(' ').next()?.parse().ok()?));
        }
    }
    None
}

#[test]
fn thousands_of_connections() {
    let victim = Victim::start("crowded");
    // One that is in stays in, however many come.
    let mut honest = Client::connect(victim.served.socket()).unwrap();
    let mut held = Vec::new();
    let mut came = 0;
    for i in 0..4000 {
        if let Ok(mut stream) = UnixStream::connect(victim.served.socket()) {
            came += 1;
            if i % 3 == 0 {
                let _ = stream.write_all(&hello());
            }
            held.push(stream);
        }
        if held.len() >= 500 {
            held.drain(..250);
        }
        if i % 200 == 0 {
            honest
                .snapshot(Detail::COUNTERS)
                .expect("who is in and asks stays in");
            victim.is_bounded("thousands of connections");
        }
    }
    assert!(came > 1000, "{came} connections were made");
    // With the last 250 to 500 still held: newcomers get in when the silent ones have lost their places.
    victim.goes_on("thousands of connections");
    drop((held, honest));
    victim.is_well("after thousands of connections");
}

#[test]
fn readers_that_never_read() {
    let victim = Victim::start("unread");
    let mut greedy = Vec::new();
    for _ in 0..CLIENTS - 4 {
        let mut stream = victim.greeted();
        stream
            .set_write_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let ask = look();
        let mut sent = 0;
        // Until nothing more is taken: the server does not read on while its answer is not taken.
        while sent < 100_000 && stream.write_all(&ask).is_ok() {
            sent += 1;
        }
        assert!(sent < 100_000, "requests are taken without end");
        greedy.push(stream);
    }
    victim.goes_on("unread answers");
    // Ten seconds, and they are let go though they hold on.
    let deadline = Instant::now() + PATIENCE;
    while victim.sockets() > victim.sockets {
        assert!(Instant::now() < deadline, "they keep their places for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    victim.is_well("after unread answers");
    drop(greedy);
}

/// A small generator with a fixed seed: failures can be repeated.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn garbage() {
    let victim = Victim::start("noisy");
    let mut noise = Noise(0x5eed);
    let good = look();
    for i in 0..400 {
        let mut stream = victim.raw();
        let mut said = if i % 4 > 0 { hello() } else { Vec::new() };
        match i % 5 {
            // Noise, as frames and without.
            0 => said.extend(noise.bytes(3000)),
            1 => {
                let body = noise.bytes(500);
                said.extend((body.len() as u32).to_le_bytes());
                said.extend(body);
            }
            // A good request with one byte changed.
            2 => {
                let mut bad = good.clone();
                let at = noise.next() as usize % bad.len();
                bad[at] ^= 1 << (noise.next() % 8);
                said.extend(bad);
            }
            // Deep and wide JSON.
            3 => {
                let body = "[".repeat(60_000);
                said.extend((body.len() as u32).to_le_bytes());
                said.extend(body.as_bytes());
            }
            _ => said.extend(u32::MAX.to_le_bytes()),
        }
        // A server that has hung up takes no more.
        let _ = stream.write_all(&said);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut all = Vec::new();
        // A reset is a close, too.
        let _ = stream.read_to_end(&mut all);
        if i % 40 == 0 {
            victim.is_bounded("garbage");
        }
    }
    victim.is_well("after garbage");
}

#[test]
fn everything_at_once() {
    let victim = Victim::start("besieged");
    let over = AtomicBool::new(false);
    let on = || !over.load(Ordering::Relaxed);
    let socket = victim.served.socket().to_owned();
    std::thread::scope(|scope| {
        let (socket, on) = (&socket, &on);
        for kind in 0..6_u64 {
            scope.spawn(move || {
                let mut noise = Noise(0x5eed + kind);
                let mut held = Vec::new();
                while on() {
                    if let Ok(mut stream) = UnixStream::connect(socket) {
                        let _ = stream.set_write_timeout(Some(Duration::from_millis(20)));
                        let said = match kind {
                            0 => Vec::new(),
                            1 => hello()[..7].to_vec(),
                            2 => noise.bytes(2000),
                            _ => [hello(), look().repeat(100)].concat(),
                        };
                        let _ = stream.write_all(&said);
                        held.push(stream);
                    }
                    if held.len() > 30 {
                        held.drain(..15);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        for _ in 0..3 {
            victim.goes_on("a siege");
        }
        over.store(true, Ordering::Relaxed);
    });
    victim.is_well("after a siege");
}

#[test]
fn another_user_is_not_talked_to() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: becoming another user needs root");
        return;
    }
    let victim = Victim::start("private");
    // Open everything that usually keeps others out: the credentials alone must do.
    let path = victim.served.socket().to_owned();
    let mode = |p: &std::path::Path, mode| {
        std::fs::set_permissions(p, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&path, 0o777);
    mode(&victim.served.socket_dir(), 0o755);
    mode(victim.served.dir(), 0o755);
    let closed = path.ancestors().skip(1).find(|d| {
        let mode = std::fs::metadata(d).map_or(0, |m| m.permissions().mode());
        mode & 0o001 == 0
    });
    if let Some(dir) = closed {
        println!("skipped: {} cannot be entered by others", dir.display());
        return;
    }
    let heard = std::thread::spawn(move || {
        // SAFETY: plain system calls with integer arguments; they change the credentials of this thread only, which ends
        // right after.
        let rc = unsafe {
            libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534);
            libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534)
        };
        assert_eq!(rc, 0);
        let mut heard = Vec::new();
        for _ in 0..500 {
            let mut stream =
                UnixStream::connect(&path).expect("nothing but the credentials keeps us out");
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stream.write_all(&[hello(), look()].concat());
            let _ = stream.read_to_end(&mut heard);
        }
        heard
    })
    .join()
    .unwrap();
    assert_eq!(heard, b"", "not a word to another user");
    victim.is_well("after another user's tries");
    // The real command as that user: it says why, and gets nothing. (Where it cannot be run as another user, that is seen
    // by its not starting at all.)
    let mut command = victim.served.command(&["dump", "private"]);
    use std::os::unix::process::CommandExt;
    match command.uid(65534).gid(65534).output() {
        Ok(out) => {
            assert!(!out.status.success());
            let errors = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(errors.contains("belongs to user 0"), "{errors}");
        }
        Err(e) => println!("skipped: the command cannot be run as another user: {e}"),
    }
}
