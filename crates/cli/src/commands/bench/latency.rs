//! `cmwq bench latency`: from queueing to the start, when a burst of items meets workers that sleep and caches that are cold. The
//! published case is work of a file system during the start of an application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cmwq_crypt::digest::sha512;
use cmwq_measure::{Against, Bar, Latency, Observation, Relation, Row, Table, table};

use super::grid::{Common, Sample, check};
use super::host::Host;
use super::setting::Setting;
use super::way::Way;

/// Queue-to-start times of bursts after a rest, with cold caches
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Settings, separated by commas; see cmwq bench crypt --help. pool-per-cpu-high has threads of nice -20 where that is permitted
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "numa,cache,cpu,pool-per-cpu-high,default,pool,thread"
    )]
    scopes: Vec<Setting>,
    /// Bursts in each round
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    launches: u32,
    /// Items of a burst
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    burst: u32,
    /// Rest before each burst, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10)]
    rest: u64,
    #[command(flatten)]
    common: Common,
}

/// What is walked through to make caches cold: more than most second-level caches, and a part of a third-level one.
const COLD_BYTES: usize = 16 << 20;
/// Bytes that an item digests: about 50 us of work.
const ITEM_BYTES: usize = 32 << 10;

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let host = Host::new(self.common.synthetic.as_deref())?;
        let settings: Vec<(String, Setting)> =
            self.scopes.iter().map(|s| (s.to_string(), *s)).collect();
        let measured = self
            .common
            .measure("latency", &settings, |s, _| self.sample(*s, &host))?;
        let mut table = Table::new([
            "setting",
            "average us",
            "median us",
            "min us",
            "max us",
            "stdev us",
            "p95 us",
            "all done us",
        ]);
        let mut document = self
            .common
            .document("cmwq bench latency", &host)
            .setting("launches", self.launches)
            .setting("burst", self.burst)
            .setting("rest_ms", self.rest);
        for (name, _) in &settings {
            let mut row = measured.row(name);
            if let Some(s) = measured.spread(name, "burst_us") {
                row = row.figure("burst", "us", s);
            }
            table.row(cells(&row));
            document.rows.push(row);
        }
        let has = |s: Setting| self.scopes.contains(&s);
        let mut text = format!(
            "queue to start: {} bursts of {} items, after {} ms of rest and with cold caches\n{table}",
            self.launches, self.burst, self.rest
        );
        if has(Setting::Default) {
            let others: Vec<String> = self
                .scopes
                .iter()
                .filter(|s| s.is_static())
                .map(Setting::to_string)
                .collect();
            if !others.is_empty() {
                let bar = Bar::new(
                    "default waits no longer than the best static setting",
                    "default",
                    "mean_us",
                    Relation::AtMost,
                    1.0,
                    Against::BestWithinSpread(others),
                );
                let verdict = bar.judge(&measured.rounds);
                text += &format!("{}\n", verdict.line());
                document.verdicts.push(verdict);
            }
        }
        self.common.output.finish(&document, &host, &text)?;
        check(&document.rows)
    }

    fn sample(&self, setting: Setting, host: &Host) -> anyhow::Result<Sample> {
        let way = Way::start(setting, host)?;
        let mut latency = Latency::new();
        let mut bursts = Vec::new();
        let mut cold = vec![0u8; COLD_BYTES];
        let data: Arc<[u8]> = vec![7; ITEM_BYTES].into();
        for _ in 0..self.launches {
            for line in cold.chunks_mut(64) {
                line[0] = line[0].wrapping_add(1);
            }
            std::hint::black_box(&cold);
            std::thread::sleep(Duration::from_millis(self.rest));
            bursts.push(self.burst(&way, &data, &mut latency)?.as_secs_f64() * 1e6);
        }
        way.end()?;
        ensure!(
            latency.count() == u64::from(self.launches) * u64::from(self.burst),
            "{} items were queued, {} started",
            u64::from(self.launches) * u64::from(self.burst),
            latency.count()
        );
        let summary = latency.summary();
        let mean = cmwq_measure::stats::mean(&bursts).context("no burst")?;
        let mut figures = Observation::from([("burst_us".into(), mean)]);
        figures.extend(summary.mean.map(|v| ("mean_us".into(), v)));
        Ok(Sample { figures, latency })
    }

    /// Queues a burst, waits for all of it, and takes down when each item started.
    fn burst(
        &self,
        way: &Way,
        data: &Arc<[u8]>,
        latency: &mut Latency,
    ) -> anyhow::Result<Duration> {
        let base = Instant::now();
        let starts: Arc<[AtomicU64]> = (0..self.burst).map(|_| AtomicU64::new(0)).collect();
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut queued = Vec::with_capacity(self.burst as usize);
        for n in 0..self.burst as usize {
            let (starts, data, sender) = (Arc::clone(&starts), Arc::clone(data), sender.clone());
            queued.push(base.elapsed());
            way.submit(move || {
                let at = u64::try_from(base.elapsed().as_nanos()).unwrap_or(u64::MAX);
                starts[n].store(at.max(1), Ordering::Relaxed);
                std::hint::black_box(sha512(&data));
                // The channel orders the store; a receiver that is gone has failed already.
                let _ = sender.send(());
            })?;
        }
        drop(sender);
        for _ in 0..self.burst {
            receiver.recv().context("an item was lost")?;
        }
        let took = base.elapsed();
        for (queued, start) in queued.into_iter().zip(starts.iter()) {
            let start = Duration::from_nanos(start.load(Ordering::Relaxed));
            ensure!(!start.is_zero(), "an item ended that had not started");
            latency.record(start.saturating_sub(queued));
        }
        Ok(took)
    }
}

fn cells(row: &Row) -> Vec<String> {
    if let Some(e) = &row.error {
        return vec![row.setting.clone(), format!("failed: {e}")];
    }
    let l = row.latency_us.unwrap_or_default();
    let mut cells = vec![row.setting.clone()];
    for v in [l.mean, l.p50, l.min, l.max, l.stdev, l.p95] {
        cells.push(v.map_or("-".into(), table::number));
    }
    let burst = row.figures.get("burst");
    cells.push(burst.map_or("-".into(), |f| table::spread(&f.spread)));
    cells
}
