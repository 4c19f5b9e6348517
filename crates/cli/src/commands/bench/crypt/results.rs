//! From measurements to rows, a table and verdicts.

use cmwq_measure::rows::CpuUtilOf;
use cmwq_measure::{
    Against, Bar, Judgement, Latency, Observation, Relation, Rounds, Row, Spread, Table, Verdict,
    stats, table,
};

use super::super::setting::Setting;
use super::scenario::Scenario;
use super::trial::Outcome;

/// All measurements of one scenario.
pub(super) struct Results<'a> {
    scenario: &'a Scenario,
    settings: Vec<(Setting, Latency, Latency)>,
}

/// How far the default may be behind the best static setting.
const BEHIND: f64 = 0.02;

const READ: &str = "read_mib_s";
const WRITE: &str = "write_mib_s";
const CPU: &str = "cpu_percent";
const MEAN: &str = "read_latency_mean_us";
const P50: &str = "read_latency_p50_us";
const SAME_CPU: &str = "started_on_issuing_cpu_percent";
const SAME_CACHE: &str = "started_in_issuers_cache_percent";
const IN_POD: &str = "started_in_pod_percent";
const MOVES: &str = "migrations_per_item";

impl<'a> Results<'a> {
    pub(super) fn new(scenario: &'a Scenario, settings: &[Setting]) -> Results<'a> {
        let each = |s: &Setting| (*s, Latency::new(), Latency::new());
        Results {
            scenario,
            settings: settings.iter().map(each).collect(),
        }
    }

    /// Takes a measurement in, and gives its figures.
    pub(super) fn keep(&mut self, setting: Setting, outcome: Outcome) -> Observation {
        let Outcome {
            tally,
            wall,
            cpu,
            cpu_wall,
            cpus,
        } = outcome;
        for (s, read, write) in &mut self.settings {
            if *s == setting {
                read.add(&tally.read);
                write.add(&tally.write);
            }
        }
        let rate = |bytes: u64| bytes as f64 / f64::from(1 << 20) / wall.as_secs_f64();
        let of_requests = |n: u64| n as f64 / tally.requests as f64;
        let cpus = if self.scenario.of_one_cpu { 1 } else { cpus };
        let summary = tally.read.summary();
        let mut figures = Observation::from([
            (READ.into(), rate(tally.read_bytes)),
            (WRITE.into(), rate(tally.write_bytes)),
            (
                CPU.into(),
                100.0 * cpu.as_secs_f64() / cpu_wall.as_secs_f64() / cpus as f64,
            ),
            (SAME_CPU.into(), 100.0 * of_requests(tally.same_cpu)),
            (SAME_CACHE.into(), 100.0 * of_requests(tally.same_cache)),
            (MOVES.into(), of_requests(tally.moves)),
        ]);
        figures.extend(summary.mean.map(|v| (MEAN.into(), v)));
        figures.extend(summary.p50.map(|v| (P50.into(), v)));
        if setting.scope().is_some() {
            figures.insert(IN_POD.into(), 100.0 * of_requests(tally.in_pod));
        }
        figures
    }

    /// What failed, for people.
    pub(super) fn failures(&self, rounds: &Rounds) -> Vec<String> {
        let mut all = Vec::new();
        for (setting, ..) in &self.settings {
            for (round, e) in rounds.errors(&setting.to_string()) {
                let round = round + 1;
                all.push(format!(
                    "{} {setting} round {round}: {e}",
                    self.scenario.name
                ));
            }
        }
        all
    }

    /// A row for each setting.
    pub(super) fn rows(&self, rounds: &Rounds) -> Vec<Row> {
        let mean = |setting: &str, figure| stats::mean(&rounds.values(setting, figure));
        let system = mean("system", READ);
        let mut rows = Vec::new();
        for (setting, read, write) in &self.settings {
            let name = setting.to_string();
            let mut row = Row::new(self.scenario.name, name.clone());
            if let Some((round, e)) = rounds.errors(&name).first() {
                row.error = Some(format!("round {}: {e}", round + 1));
            }
            // A setting that read wrong bytes once has no figures at all.
            let values = |figure| match row.error {
                None => rounds.values(&name, figure),
                Some(_) => Vec::new(),
            };
            let bandwidth = Spread::of(&values(READ));
            let cpu = stats::mean(&values(CPU));
            let in_pod = stats::mean(&values(IN_POD));
            let moves = stats::mean(&values(MOVES));
            let mut figures = Vec::new();
            for (figure, key, unit) in [
                ("write_bandwidth", WRITE, "MiB/s"),
                (SAME_CPU, SAME_CPU, "%"),
                (SAME_CACHE, SAME_CACHE, "%"),
            ] {
                figures.extend(Spread::of(&values(key)).map(|s| (figure, unit, s)));
            }
            if row.error.is_none() {
                figures.extend(
                    write
                        .percentile_us(99.0)
                        .map(|us| ("write_latency_p99", "us", Spread::exact(us))),
                );
                row.latency_us = Some(read.summary());
                row.vs_system_percent = match (bandwidth, system) {
                    (Some(b), Some(s)) if s > 0.0 => Some(100.0 * (b.mean / s - 1.0)),
                    _ => None,
                };
            }
            row.bandwidth_mib_s = bandwidth;
            row.cpu_util_percent = cpu;
            row.cpu_util_of = cpu.map(|_| match self.scenario.of_one_cpu {
                true => CpuUtilOf::OneCpu,
                false => CpuUtilOf::Machine,
            });
            row.started_in_pod_percent = in_pod;
            row.migrations_per_item = moves;
            for (figure, unit, spread) in figures {
                row = row.figure(figure, unit, spread);
            }
            rows.push(row);
        }
        rows
    }

    /// Is the default behind a static setting, is it slower than a thread for each request?
    pub(super) fn verdicts(&self, rounds: &Rounds) -> Vec<Judgement> {
        let has = |s: Setting| self.settings.iter().any(|(have, ..)| *have == s);
        let mut verdicts = Vec::new();
        if !has(Setting::Default) {
            return verdicts;
        }
        let name = self.scenario.name;
        let paced = !self.scenario.think.is_zero();
        let statics: Vec<String> = self
            .settings
            .iter()
            .filter(|(s, ..)| s.is_static())
            .map(|(s, ..)| s.to_string())
            .collect();
        if !statics.is_empty() {
            let (metric, relation, limit) = match paced {
                true => (MEAN, Relation::AtMost, 1.0 + BEHIND),
                false => (READ, Relation::AtLeast, 1.0 - BEHIND),
            };
            let title = format!("{name}: default never behind the best static setting");
            verdicts.push(against_best(
                &title, rounds, &statics, metric, relation, limit,
            ));
        }
        if self.scenario.depth == 1 && has(Setting::Thread) {
            let bar = Bar::new(
                &format!("{name}: default completes no later than a thread for each request"),
                "default",
                P50,
                Relation::AtMost,
                1.0,
                Against::Setting("thread".into()),
            );
            verdicts.push(bar.judge(rounds));
        }
        verdicts
    }

    /// The scenario for people.
    pub(super) fn text(&self, rows: &[Row], verdicts: &[Judgement]) -> String {
        let of = if self.scenario.of_one_cpu {
            "of one CPU"
        } else {
            "of machine"
        };
        let mut table = Table::new([
            "setting".into(),
            "read MiB/s".into(),
            "vs system".into(),
            format!("CPU {of}"),
            "p50 us".into(),
            "p95 us".into(),
            "p99 us".into(),
            "same CPU".into(),
            "same cache".into(),
            "moves/op".into(),
        ]);
        for row in rows {
            if let Some(e) = &row.error {
                table.row([row.setting.clone(), format!("failed: {e}")]);
                continue;
            }
            let number = |v: Option<f64>| v.map_or("-".into(), table::number);
            let percent = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.0} %"));
            let figure = |name: &str| row.figures.get(name).map(|f| f.spread.mean);
            let latency = row.latency_us.unwrap_or_default();
            table.row([
                row.setting.clone(),
                row.bandwidth_mib_s
                    .map_or("-".into(), |s| table::spread(&s)),
                row.vs_system_percent
                    .map_or("-".into(), |v| format!("{v:+.1} %")),
                row.cpu_util_percent
                    .map_or("-".into(), |v| format!("{v:.0} %")),
                number(latency.p50),
                number(latency.p95),
                number(latency.p99),
                percent(figure(SAME_CPU)),
                percent(figure(SAME_CACHE)),
                row.migrations_per_item
                    .map_or("-".into(), |v| format!("{v:.3}")),
            ]);
        }
        let mut text = format!("{}\n{}", self.scenario.line(), table.render());
        for verdict in verdicts {
            text.push_str(&verdict.line());
            text.push('\n');
        }
        text
    }
}

/// Judges the default against the best static setting, which for each round is chosen on the other rounds: chosen on the same one it
/// would be the luckiest, not the best.
fn against_best(
    title: &str,
    rounds: &Rounds,
    statics: &[String],
    metric: &str,
    relation: Relation,
    limit: f64,
) -> Judgement {
    let value = |setting: &str, round: usize| -> Option<f64> {
        rounds
            .outcomes(setting)
            .nth(round)?
            .as_ref()
            .ok()?
            .get(metric)
            .copied()
    };
    let mut ratios = Vec::new();
    let mut chosen: Vec<&str> = Vec::new();
    for round in 0..rounds.len() {
        let elsewhere = |setting: &String| -> Option<f64> {
            let values: Vec<f64> = (0..rounds.len())
                .filter(|r| *r != round)
                .filter_map(|r| value(setting, r))
                .collect();
            stats::median(&values)
        };
        let best = statics
            .iter()
            .filter_map(|s| Some((s, elsewhere(s)?)))
            .max_by(|a, b| match relation {
                Relation::AtLeast => a.1.total_cmp(&b.1),
                Relation::AtMost => b.1.total_cmp(&a.1),
            });
        let Some((best, _)) = best else { continue };
        if let (Some(ours), Some(theirs)) = (value("default", round), value(best, round))
            && theirs > 0.0
        {
            ratios.push(ours / theirs);
            chosen.push(best);
        }
    }
    let plan = rounds.plan();
    let bounds = stats::bounds(&ratios, plan.method, plan.confidence);
    let verdict = match (bounds, relation) {
        (Some(b), Relation::AtLeast) if b.lower >= limit => Verdict::Holds,
        (Some(b), Relation::AtLeast) if b.upper < limit => Verdict::Fails,
        (Some(b), Relation::AtMost) if b.upper <= limit => Verdict::Holds,
        (Some(b), Relation::AtMost) if b.lower > limit => Verdict::Fails,
        _ => Verdict::Undecided,
    };
    let mut names = chosen.clone();
    names.sort_unstable();
    names.dedup();
    let reason = match bounds {
        None => Some(format!(
            "{} rounds; a bound at {:.0} % needs {}",
            ratios.len(),
            plan.confidence * 100.0,
            stats::values_needed(plan.method, plan.confidence)
        )),
        Some(_) if verdict == Verdict::Undecided => Some("the limit lies within the bounds".into()),
        Some(_) => None,
    };
    Judgement {
        name: title.into(),
        setting: "default".into(),
        metric: metric.into(),
        relation,
        against: (!names.is_empty()).then(|| names.join("/")),
        limit,
        verdict,
        estimate: stats::median(&ratios),
        lower: bounds.map(|b| b.lower),
        upper: bounds.map(|b| b.upper),
        half_width: bounds.map(|b| (b.upper - b.lower) / 2.0 / b.estimate),
        rounds: ratios.len(),
        reason,
    }
}
