//! A job: a thread that writes, reads back and verifies blocks of its own part of the device, as fio does with `randrw` and
//! `verify=sha512`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use cmwq_crypt::device::Volume;
use cmwq_measure::Latency;

use super::super::way::{Way, current_cpu, pin};
use super::block::{self, Random, Stamp};
use super::port::{Done, InFlight, Port, Ran, Request};
use super::scenario::Scenario;

/// A job's part of the device and what it knows of it. Lasts over settings and rounds, so each verifies what others wrote.
pub(crate) struct Job {
    number: u64,
    base: u64,
    block: usize,
    /// How often each block was written.
    versions: Vec<u64>,
    random: Random,
    /// A trial did not end well: what the device holds is unknown.
    unknown: bool,
}

/// When a trial measures.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

/// Reads that a measurement has at least: a busy machine gets more time for them, up to [`GRACE`].
const READS: u64 = 8;
const GRACE: Duration = Duration::from_secs(10);

impl Window {
    fn is_over(&self, now: Instant, tally: &Tally) -> bool {
        now >= self.end && (tally.read.count() >= READS || now >= self.end + GRACE)
    }
}

/// Where requests count as near their issuer, by CPU number.
pub(crate) struct Places {
    /// The last-level cache of each CPU.
    pub(crate) cache: Vec<usize>,
    /// The pod of each CPU in the setting's scope; empty for ways without pods.
    pub(crate) pod: Vec<usize>,
}

/// What one job saw in one trial.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) read: Latency,
    pub(crate) write: Latency,
    pub(crate) requests: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) same_cpu: u64,
    pub(crate) same_cache: u64,
    pub(crate) in_pod: u64,
    pub(crate) moves: u64,
    /// From the first to the last moment that counts.
    pub(crate) span: Option<(Instant, Instant)>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.requests += other.requests;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
        self.same_cpu += other.same_cpu;
        self.same_cache += other.same_cache;
        self.in_pod += other.in_pod;
        self.moves += other.moves;
        self.span = match (self.span, other.span) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (a, b) => a.or(b),
        };
    }
}

/// A request in flight, as its issuer sees it.
#[derive(Clone, Copy)]
struct Slot {
    index: usize,
    write: bool,
    issued: Instant,
    cpu: usize,
}

impl Job {
    pub(crate) fn new(number: usize, scenario: &Scenario) -> Job {
        let bytes = scenario.blocks() * scenario.block;
        Job {
            number: number as u64,
            base: (number * bytes) as u64,
            block: scenario.block,
            versions: vec![0; scenario.blocks()],
            random: Random::new(number as u64 + 1),
            unknown: true,
        }
    }

    fn stamp(&self, index: usize) -> Stamp {
        Stamp {
            job: self.number,
            index: index as u64,
            version: self.versions[index],
        }
    }

    fn offset(&self, index: usize) -> u64 {
        self.base + (index * self.block) as u64
    }

    /// Writes all blocks where their content is not known.
    pub(crate) fn prepare(&mut self, volume: &Volume) -> anyhow::Result<()> {
        if !self.unknown {
            return Ok(());
        }
        let mut buffer = vec![0; self.block];
        for index in 0..self.versions.len() {
            self.versions[index] += 1;
            block::fill(&mut buffer, self.stamp(index), &mut self.random);
            volume
                .write(self.offset(index), &mut buffer, false)
                .context("filling the device")?;
        }
        self.unknown = false;
        Ok(())
    }

    /// The next request: which block, and which way. Not one that `busy` says is in flight.
    fn choose(&mut self, busy: &[bool]) -> (usize, bool) {
        let n = self.versions.len();
        let mut index = self.random.below(n);
        // At most half of the blocks are in flight.
        while busy[index] {
            index = (index + 1) % n;
        }
        (index, self.random.next() & 1 == 0)
    }

    fn request(&mut self, volume: &Arc<Volume>, slot: Slot, mut buffer: Vec<u8>) -> Request {
        if slot.write {
            self.versions[slot.index] += 1;
            block::fill(&mut buffer, self.stamp(slot.index), &mut self.random);
        }
        Request {
            volume: Arc::clone(volume),
            offset: self.offset(slot.index),
            write: slot.write,
            buffer,
        }
    }

    /// Issues requests until the window ends, and waits for the last. Everything that was read is verified.
    ///
    /// # Errors
    /// What went wrong with a request, first of all that it read other bytes than were written. The trial has no figures then.
    pub(crate) fn run(
        &mut self,
        scenario: &Scenario,
        way: &Way,
        volume: &Arc<Volume>,
        places: &Places,
        window: Window,
    ) -> anyhow::Result<Tally> {
        if let Some(cpu) = scenario.pinned {
            pin(cpu)?;
        }
        self.unknown = true;
        let tally = match scenario.depth {
            1 => self.one_at_a_time(scenario, way, volume, places, window),
            _ => self.many_at_once(scenario, way, volume, places, window),
        }?;
        self.unknown = false;
        ensure!(
            tally.read.count() > 0 && tally.span.is_some(),
            "nothing was read back within the time; --runtime gives more"
        );
        Ok(tally)
    }

    /// Issues, waits for that one, verifies.
    fn one_at_a_time(
        &mut self,
        scenario: &Scenario,
        way: &Way,
        volume: &Arc<Volume>,
        places: &Places,
        window: Window,
    ) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        let mut buffer = vec![0; self.block];
        let free = vec![false; self.versions.len()];
        let mut begun = None;
        loop {
            let now = Instant::now();
            if window.is_over(now, &tally) {
                break;
            }
            let begin = (now >= window.begin).then(|| *begun.get_or_insert(now));
            let (index, write) = self.choose(&free);
            let mut slot = Slot {
                index,
                write,
                issued: now,
                cpu: 0,
            };
            let mut request = self.request(volume, slot, buffer);
            slot.cpu = current_cpu();
            slot.issued = Instant::now();
            let (result, ran, back) = way.run(move || {
                let (result, ran) = request.run();
                (result, ran, request.buffer)
            })?;
            let seen = Instant::now();
            result?;
            buffer = back;
            self.completed(slot, &buffer)?;
            if let Some(begin) = begin {
                tally.count(self.block, slot, ran, seen, places);
                tally.span = Some((begin, seen));
            }
            if !scenario.think.is_zero() {
                std::thread::sleep(scenario.think);
            }
        }
        Ok(tally)
    }

    /// Keeps `depth` requests in flight.
    fn many_at_once(
        &mut self,
        scenario: &Scenario,
        way: &Way,
        volume: &Arc<Volume>,
        places: &Places,
        window: Window,
    ) -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        let port = Arc::new(Port::default());
        let mut busy = vec![false; self.versions.len()];
        let mut slots: Vec<Option<Slot>> = vec![None; scenario.depth];
        let mut done: Vec<Done> = (0..scenario.depth)
            .map(|slot| Done {
                slot,
                buffer: vec![0; self.block],
                result: Ok(()),
                ran: Ran::default(),
            })
            .collect();
        let mut in_flight = 0;
        let mut begun = None;
        // An error stops issuing; what is in flight is waited for, so that nothing of this trial runs into the next.
        let mut failed = None;
        loop {
            let seen = Instant::now();
            let measuring = (seen >= window.begin).then(|| *begun.get_or_insert(seen));
            for Done {
                slot: n,
                buffer,
                result,
                ran,
            } in done.drain(..)
            {
                if let Some(slot) = slots[n].take() {
                    in_flight -= 1;
                    busy[slot.index] = false;
                    let outcome = result
                        .map_err(anyhow::Error::from)
                        .and_then(|()| self.completed(slot, &buffer));
                    if let Err(e) = outcome {
                        failed.get_or_insert(e);
                    }
                    if let Some(begin) = measuring {
                        tally.count(self.block, slot, ran, seen, places);
                        tally.span = Some((begin, seen));
                    }
                }
                if failed.is_some() || window.is_over(Instant::now(), &tally) {
                    continue;
                }
                let (index, write) = self.choose(&busy);
                let mut slot = Slot {
                    index,
                    write,
                    issued: seen,
                    cpu: 0,
                };
                let request = self.request(volume, slot, buffer);
                let item = InFlight {
                    port: Arc::clone(&port),
                    slot: n,
                    request: Some(request),
                };
                busy[index] = true;
                in_flight += 1;
                slot.cpu = current_cpu();
                slot.issued = Instant::now();
                slots[n] = Some(slot);
                if let Err(e) = way.submit(move || item.run()) {
                    // The item was dropped, which the port tells as well.
                    failed.get_or_insert(e);
                }
            }
            if in_flight == 0 {
                break;
            }
            port.wait(&mut done);
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(tally),
        }
    }

    /// A request ended well: what was read must be what was written last.
    fn completed(&self, slot: Slot, buffer: &[u8]) -> anyhow::Result<()> {
        if !slot.write {
            block::check(buffer, self.stamp(slot.index))?;
        }
        Ok(())
    }
}

impl Tally {
    fn count(&mut self, block: usize, slot: Slot, ran: Ran, seen: Instant, places: &Places) {
        let latency = seen.saturating_duration_since(slot.issued);
        self.requests += 1;
        if slot.write {
            self.write.record(latency);
            self.write_bytes += block as u64;
        } else {
            self.read.record(latency);
            self.read_bytes += block as u64;
        }
        let same = |of: &[usize]| matches!((of.get(slot.cpu), of.get(ran.cpu)), (Some(a), Some(b)) if a == b);
        self.same_cpu += u64::from(slot.cpu == ran.cpu);
        self.same_cache += u64::from(same(&places.cache));
        self.in_pod += u64::from(same(&places.pod));
        self.moves += u64::from(ran.moves);
    }
}
