//! One measurement: one setting in one scenario for a while.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use cmwq::AffinityScope;
use cmwq_crypt::device::Volume;
use cmwq_measure::usage;

use super::super::host::Host;
use super::super::setting::Setting;
use super::super::way::Way;
use super::issuer::{Job, Places, Tally, Window};
use super::scenario::Scenario;

/// A scenario with its device and jobs, which last over settings and rounds.
pub(super) struct Bench<'a> {
    host: &'a Host,
    scenario: &'a Scenario,
    volume: Arc<Volume>,
    jobs: Vec<Job>,
}

/// What a measurement gave.
pub(super) struct Outcome {
    pub(super) tally: Tally,
    /// Wall time that the rates refer to.
    pub(super) wall: Duration,
    /// CPU time of the whole process, from the first counted request until the last one ended.
    pub(super) cpu: Duration,
    /// Wall time that the CPU time refers to.
    pub(super) cpu_wall: Duration,
    pub(super) cpus: usize,
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        host: &'a Host,
        scenario: &'a Scenario,
        volume: Arc<Volume>,
    ) -> anyhow::Result<Bench<'a>> {
        let jobs = (0..scenario.jobs).map(|n| Job::new(n, scenario)).collect();
        Ok(Bench {
            host,
            scenario,
            volume,
            jobs,
        })
    }

    fn places(&self, setting: Setting) -> Places {
        let top = self.host.topology.possible().last().map_or(1, |c| c + 1);
        let of = |scope: AffinityScope| -> Vec<usize> {
            let pods = self.host.topology.pods(scope);
            (0..top)
                .map(|cpu| pods.pod_of(cpu).unwrap_or(usize::MAX - cpu))
                .collect()
        };
        Places {
            cache: of(AffinityScope::Cache),
            pod: setting.scope().map(of).unwrap_or_default(),
        }
    }

    /// Fills the parts whose content is not known, on as many threads as there are CPUs.
    fn prepare(&mut self) -> anyhow::Result<()> {
        let share = self.jobs.len().div_ceil(self.host.cpus()).max(1);
        let volume = &self.volume;
        thread::scope(|s| {
            let threads: Vec<_> = self
                .jobs
                .chunks_mut(share)
                .map(|jobs| s.spawn(move || jobs.iter_mut().try_for_each(|j| j.prepare(volume))))
                .collect();
            threads.into_iter().try_for_each(|t| {
                t.join()
                    .map_err(|_| anyhow!("filling the device panicked"))?
            })
        })
    }

    /// Measures for `time`, after a tenth of that (20 to 200 ms) to warm up.
    pub(super) fn trial(&mut self, setting: Setting, time: Duration) -> anyhow::Result<Outcome> {
        self.prepare()?;
        let places = self.places(setting);
        let way = Way::start(setting, self.host)?;
        let warm = (time / 10).clamp(Duration::from_millis(20), Duration::from_millis(200));
        let begin = Instant::now() + warm;
        let window = Window {
            begin,
            end: begin + time,
        };
        let (scenario, volume) = (self.scenario, &self.volume);
        let (way_, places) = (&way, &places);
        let (results, cpu, cpu_wall) = thread::scope(|s| {
            let mut threads = Vec::new();
            for job in &mut self.jobs {
                threads.push(
                    thread::Builder::new()
                        .name("issuer".into())
                        .spawn_scoped(s, move || job.run(scenario, way_, volume, places, window)),
                );
            }
            thread::sleep(window.begin.saturating_duration_since(Instant::now()));
            let (cpu, wall) = (usage::process_cpu_time(), Instant::now());
            let results: Vec<anyhow::Result<Tally>> = threads
                .into_iter()
                .map(|t| t?.join().map_err(|_| anyhow!("an issuer panicked"))?)
                .collect();
            let wall = wall.elapsed();
            let cpu = cpu.and_then(|before| Ok(usage::process_cpu_time()?.saturating_sub(before)));
            (results, cpu, wall)
        });
        way.end()?;
        let mut tally = Tally::default();
        for result in results {
            tally.add(&result?);
        }
        let wall = tally.span.map_or(cpu_wall, |(a, b)| b - a);
        Ok(Outcome {
            tally,
            wall,
            cpu: cpu?,
            cpu_wall,
            cpus: self.host.cpus(),
        })
    }
}
