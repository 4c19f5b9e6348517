//! `cmwq crypt serve`.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use cmwq::control::{self, ListenError, Listener};
use cmwq::{AffinityScope, Workqueue};
use cmwq_crypt::cipher::{IvUnit, Key, SectorCipher, SectorSize};
use cmwq_crypt::device::{FileDevice, FileOptions, Volume};
use cmwq_crypt::server::{
    Address, Config, Executor, FixedPool, Inline, OnWorkqueue, Server, Stats, Stopper,
    ThreadPerItem,
};
use rustix::process::Resource;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{sector_size, size, speed};
use crate::commands::bench::own_nice;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("device").required(true).args(["file", "memory"])))]
#[command(group(clap::ArgGroup::new("listen").required(true).args(["unix", "tcp"])))]
#[command(group(clap::ArgGroup::new("cipher").required(true).args(["key_file", "no_encryption"])))]
pub(crate) struct Serve {
    /// Serve this file or block device
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Make the file with this size if it does not exist, or lengthen it (K, M, G, T: powers of 1024)
    #[arg(long, value_name = "N", value_parser = size::parse, conflicts_with = "memory")]
    size: Option<u64>,
    /// Serve this much memory, gone when the server ends
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Listen on a Unix socket that its owner alone may use
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Listen on TCP, on the loopback only; port 0 lets the system choose
    #[arg(long, value_name = "ADDR:PORT")]
    tcp: Option<SocketAddr>,
    /// The key: 64 raw bytes, as `cmwq crypt keygen` writes them
    #[arg(long, value_name = "PATH")]
    key_file: Option<PathBuf>,
    /// Store everything as it comes, for comparison
    #[arg(long)]
    no_encryption: bool,
    /// Bytes of an encryption sector, which is also the smallest request: 512 or 4096
    #[arg(long, value_name = "N", default_value = "512", value_parser = sector_size)]
    sector_size: SectorSize,
    /// Count the IV in sectors and not in 512 bytes (dm-crypt's iv_large_sectors; LUKS2 never does)
    #[arg(long)]
    iv_large_sectors: bool,
    /// Refuse all changes
    #[arg(long)]
    read_only: bool,
    /// Refuse to trim; trimming shows whoever sees the storage which ranges are unused
    #[arg(long)]
    no_trim: bool,
    /// The export's name
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// What runs the requests
    #[arg(long, value_enum, default_value_t = Runner::Cmwq)]
    executor: Runner,
    /// The workqueue's affinity scope: cpu, smt, cache_shard, cache, numa, system or default
    #[arg(long, value_name = "S", default_value = "default")]
    scope: AffinityScope,
    /// Never let another pod's workers help
    #[arg(long)]
    strict: bool,
    /// Start items on the CPU that issued them
    #[arg(long)]
    localize: bool,
    /// The workqueue's limit of active items, and the most receivers; 0: its default
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_active: u32,
    /// Run the workqueue as the kernel does: unmanaged, no helping
    #[arg(long)]
    kernel_mode: bool,
    /// How many take in what clients send, each a work item or, with other executors, a thread; 0: one a CPU, at most 8
    #[arg(long, value_name = "N", default_value_t = 0)]
    readers: usize,
    /// Clients served at the same time
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
    /// Bytes of data that all requests in flight may hold
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::parse)]
    max_in_flight: u64,
    /// At the end, print what was done and the raw speed of the cipher to standard error
    #[arg(long)]
    stats: bool,
}

/// What runs the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Runner {
    /// A workqueue
    Cmwq,
    /// The thread that reads from the client
    Inline,
    /// A new thread for each part of a request
    Thread,
    /// A fixed number of threads, one a CPU, with one queue
    Pool,
}

/// Descriptors that are needed besides one for each client.
const SPARE_DESCRIPTORS: u64 = 64;

impl Serve {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // Before anything that lasts, so that no signal is lost.
        let signals = Signals::register()?;
        raise_descriptor_limit(self.max_connections);
        let volume = Arc::new(self.volume()?);
        anyhow::ensure!(
            volume.size() > 0,
            "the device is smaller than one sector; --size makes a file of a given size"
        );
        let address = match (&self.unix, self.tcp) {
            (Some(path), _) => Address::Unix(std::path::absolute(path).context("--unix")?),
            (None, Some(addr)) => Address::Tcp(addr),
            (None, None) => anyhow::bail!("--unix or --tcp is needed"),
        };
        let config = Config {
            export: self.export.clone(),
            readers: self.readers,
            max_connections: self.max_connections,
            bytes_in_all: self.max_in_flight,
            trim: !self.no_trim,
            ..Config::default()
        };
        let start = Instant::now();
        let executor = self.executor()?;
        let _control = self.control()?;
        let server = Server::start(Arc::clone(&volume), &address, executor, config)?;
        signals.stop_on(server.stopper())?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "ready {}", server.uri())
            .and_then(|()| stdout.flush())
            .context("standard output")?;
        drop(stdout);
        let stats = server
            .join()
            .context("the device may not hold everything that was written")?;
        if self.stats {
            self.report(&stats, start.elapsed())?;
        }
        Ok(())
    }

    /// Opts in to be seen and changed by `cmwq list`, `dump`, `set` and the others. Where there is no place for the socket the
    /// device is served all the same.
    fn control(&self) -> anyhow::Result<Option<Listener>> {
        if self.executor != Runner::Cmwq {
            return Ok(None);
        }
        let listening = control::builder()
            .name("cmwq crypt")
            .allow_set(true)
            .listen();
        match listening {
            Ok(listener) => Ok(Some(listener)),
            Err(e @ ListenError::Environment(_)) => Err(e.into()),
            Err(e) => {
                eprintln!("cmwq: {e}; it goes on without being seen by cmwq list");
                Ok(None)
            }
        }
    }

    fn executor(&self) -> anyhow::Result<Arc<dyn Executor>> {
        Ok(match self.executor {
            Runner::Cmwq => {
                let queue = |name: &str, max_active: u32| {
                    Workqueue::builder(name)
                        .affinity_scope(self.scope)
                        .affinity_strict(self.strict)
                        .localize(self.localize)
                        .max_active(max_active)
                        .kernel_mode(self.kernel_mode)
                        // Whoever starts the server with a nice means its workers too.
                        .nice(own_nice())
                        .build()
                        .context("workqueue")
                };
                let receivers = (0..self.receivers())
                    .map(|n| queue(&format!("crypt-receive-{n}"), 0))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                Arc::new(
                    OnWorkqueue::new(queue("crypt", self.max_active)?).with_receivers(receivers),
                )
            }
            Runner::Inline => Arc::new(Inline),
            Runner::Thread => Arc::new(ThreadPerItem),
            Runner::Pool => {
                let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
                Arc::new(FixedPool::new(threads).context("threads of the pool")?)
            }
        })
    }

    /// How many items take in what clients send and run it: one a CPU, and not more than items may be active.
    fn receivers(&self) -> usize {
        if self.readers > 0 {
            return self.readers;
        }
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        match self.max_active {
            0 => cpus.min(8),
            most => cpus.min(8).min(most as usize),
        }
    }

    fn volume(&self) -> anyhow::Result<Volume> {
        let cipher = match &self.key_file {
            Some(path) => {
                let iv = if self.iv_large_sectors {
                    IvUnit::Sector
                } else {
                    IvUnit::B512
                };
                Some(SectorCipher::new(
                    Key::from_file(path)?,
                    self.sector_size,
                    iv,
                )?)
            }
            None => None,
        };
        let device = match (&self.file, self.memory) {
            (Some(path), _) => FileDevice::open(
                path,
                FileOptions {
                    read_only: self.read_only,
                    size: self.size,
                },
            )?,
            (None, Some(bytes)) => {
                FileDevice::memory(bytes).with_context(|| format!("{bytes} bytes of memory"))?
            }
            (None, None) => anyhow::bail!("--file or --memory is needed"),
        };
        Ok(match cipher {
            Some(cipher) => Volume::encrypted(Arc::new(device), cipher),
            None => Volume::plain(Arc::new(device), self.sector_size),
        })
    }

    fn report(&self, stats: &Stats, time: Duration) -> anyhow::Result<()> {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let mib = |b: u64| b as f64 / (1 << 20) as f64;
        eprintln!(
            "served {} clients, {} requests ({} refused): read {:.1} MiB, written {:.1} MiB in {:.1} s; CPU {:.3} s",
            stats.connections,
            stats.requests,
            stats.refused_requests,
            mib(stats.read),
            mib(stats.written),
            time.as_secs_f64(),
            cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
        );
        if !self.no_encryption {
            eprintln!(
                "raw cipher: {}",
                speed::line(self.sector_size, 32_768, Duration::from_millis(100))?
            );
        }
        Ok(())
    }
}

/// Makes room for the clients' descriptors where the hard limit allows; otherwise clients beyond it wait to be accepted.
fn raise_descriptor_limit(connections: usize) {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = connections as u64 + SPARE_DESCRIPTORS;
    if limit.current.is_some_and(|now| now < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |max| max.min(wanted)));
        // Fewer clients at a time is all that a failure means.
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    }
}

/// A pipe that SIGTERM and SIGINT write to.
struct Signals(UnixStream);

impl Signals {
    fn register() -> anyhow::Result<Signals> {
        let (read, write) = UnixStream::pair().context("signal pipe")?;
        for signal in [SIGTERM, SIGINT] {
            let end = write.try_clone().context("signal pipe")?;
            signal_hook::low_level::pipe::register(signal, end).context("signal handler")?;
        }
        Ok(Signals(read))
    }

    /// The first signal stops the server, the second one the process.
    fn stop_on(mut self, stopper: Stopper) -> anyhow::Result<()> {
        let wait = move || {
            let mut byte = [0];
            // An error or end would mean that the handlers' end is gone, which lives as long as the process.
            if self.0.read_exact(&mut byte).is_ok() {
                stopper.stop();
                if self.0.read_exact(&mut byte).is_ok() {
                    eprintln!("cmwq: second signal: ended at once, not flushed");
                    std::process::exit(1);
                }
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(wait)
            .context("signal thread")?;
        Ok(())
    }
}
