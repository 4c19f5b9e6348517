//! The same scenarios through the server with real fio, beside nbdkit.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use cmwq_crypt::cipher::Key;
use cmwq_measure::{
    LatencySummary, Observation, Plan, Row, Spread, Table, rounds, stats, table, usage,
};
use serde_json::Value;

use super::super::progress::Progress;
use super::super::setting::Setting;
use super::scenario::Scenario;
use super::{Args, Show};

/// What serves the device.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Server {
    /// `cmwq crypt serve` with its requests run in this setting.
    Ours(Setting),
    /// nbdkit's file plugin: no encryption.
    NbdkitFile,
    /// nbdkit's file plugin with its luks filter.
    NbdkitLuks,
}

impl Server {
    fn name(&self) -> String {
        match self {
            Server::Ours(setting) => setting.to_string(),
            Server::NbdkitFile => "nbdkit-file".into(),
            Server::NbdkitLuks => "nbdkit-luks".into(),
        }
    }
}

/// Whether a program can be started.
fn installed(program: &str) -> bool {
    let run = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    run.is_ok_and(|s| s.success())
}

/// The settings that `cmwq crypt serve` has, as its arguments.
fn serve_arguments(setting: Setting) -> Option<Vec<String>> {
    let text = |list: &[&str]| Some(list.iter().map(|s| (*s).to_owned()).collect());
    match setting {
        Setting::Default => text(&[]),
        Setting::Thread => text(&["--executor", "thread"]),
        Setting::Pool => text(&["--executor", "pool"]),
        Setting::Static {
            scope,
            strict,
            local,
        } => {
            let mut list = vec![
                "--kernel-mode".to_owned(),
                "--scope".into(),
                scope.name().into(),
            ];
            list.extend(strict.then(|| "--strict".into()));
            list.extend(local.then(|| "--localize".into()));
            Some(list)
        }
        Setting::DefaultInline | Setting::PoolPerCpu | Setting::PoolPerCpuHigh => None,
    }
}

/// Runs the scenarios: their rows, and what failed.
///
/// # Errors
/// fio is not installed, or nothing can be prepared. A server or a run that fails makes a row with its error.
pub(super) fn run(
    args: &Args,
    scenarios: &[Scenario],
    program: &Path,
    show: Show<'_>,
) -> anyhow::Result<(Vec<Row>, Vec<String>)> {
    ensure!(
        installed("fio"),
        "--fio needs fio, which is not installed (Debian: apt-get install fio)"
    );
    let folder = match args.file.as_deref().and_then(Path::parent) {
        Some(parent) if !parent.as_os_str().is_empty() => tempfile::tempdir_in(parent),
        _ => tempfile::tempdir(),
    }
    .context("a folder for the servers' files")?;
    let key = folder.path().join("key");
    let secret = Key::generate()?;
    secret.write_new_file(&key)?;
    // nbdkit reads a passphrase up to its first newline, so it gets text.
    let secret_text: String = secret
        .as_bytes()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let passphrase = folder.path().join("passphrase");
    std::fs::write(&passphrase, secret_text).context("the passphrase of nbdkit's luks filter")?;
    let wanted = match args.scopes.is_empty() {
        true => Setting::TABLE.to_vec(),
        false => args.scopes.clone(),
    };
    let mut servers: Vec<Server> = wanted
        .into_iter()
        .filter(|s| serve_arguments(*s).is_some())
        .map(Server::Ours)
        .collect();
    let mut note = String::new();
    if installed("nbdkit") {
        servers.push(Server::NbdkitFile);
        match installed("cryptsetup") {
            true => servers.push(Server::NbdkitLuks),
            false => note += "nbdkit's luks filter is left out: cryptsetup is not installed\n",
        }
    } else {
        note += "nbdkit is left out: it is not installed\n";
    }
    let n = args.rounds as usize;
    let mut progress = Progress::new(n * servers.len() * scenarios.len());
    let (mut all, mut failures) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        let plan = Plan {
            seed: args.seed,
            min_rounds: n,
            max_rounds: n,
            ..Plan::new(servers.iter().map(Server::name))
        };
        let bench = Bench {
            scenario,
            time: args.runtime,
            program,
            folder: folder.path(),
            key: &key,
            passphrase: &passphrase,
        };
        let measured = rounds::run(&plan, &[], |trial| {
            progress.step(&format!(
                "fio {} round {}/{n} {}",
                scenario.name,
                trial.round + 1,
                trial.setting
            ));
            let server = servers
                .iter()
                .find(|s| s.name() == trial.setting)
                .context("no such server")?;
            bench.measure(server)
        })?;
        let rows = rows(scenario, &servers, &measured);
        progress.clear();
        show(&format!(
            "{}
",
            text(scenario, &rows)
        ))?;
        for server in &servers {
            for (round, e) in measured.errors(&server.name()) {
                let round = round + 1;
                failures.push(format!(
                    "fio {} {} round {round}: {e}",
                    scenario.name,
                    server.name()
                ));
            }
        }
        all.extend(rows);
    }
    show(&note)?;
    Ok((all, failures))
}

/// How much a run of fio does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// As long as was asked for.
    Whole,
    /// A block for each job.
    OneBlockEach,
}

/// One scenario's way to measure.
struct Bench<'a> {
    scenario: &'a Scenario,
    time: Duration,
    program: &'a Path,
    folder: &'a Path,
    key: &'a Path,
    passphrase: &'a Path,
}

/// A server in a process of its own, ended when dropped.
struct Running {
    child: Child,
    uri: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself, which the run has noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bench<'_> {
    fn measure(&self, server: &Server) -> anyhow::Result<Observation> {
        let running = self.start(server)?;
        let pid = running.child.id();
        let cpu_time = || usage::cpu_time_of(pid).context("the server's CPU time");
        // The same connections with next to nothing on them, whose cost is taken out: nbdkit's luks filter stretches its passphrase
        // anew for each one, for some milliseconds. Once before, for what only the first connections cost.
        self.fio(&running.uri, Extent::OneBlockEach)?;
        let before = cpu_time()?;
        self.fio(&running.uri, Extent::OneBlockEach)?;
        let connecting = cpu_time()?.saturating_sub(before);
        let (before, began) = (cpu_time()?, Instant::now());
        let report = self.fio(&running.uri, Extent::Whole)?;
        let wall = began.elapsed();
        let cpu = cpu_time()?
            .saturating_sub(before)
            .saturating_sub(connecting);
        let mut figures = figures(&report)?;
        let mib = figures.remove("mib").unwrap_or(0.0);
        ensure!(
            mib > 0.0,
            "fio moved no data within the time; --runtime gives more"
        );
        // A run that cost no more than its connections was too short to tell: no figure rather than 0.
        if !cpu.is_zero() {
            let seconds = cpu.as_secs_f64();
            figures.insert("server_cpu_us_per_mib".into(), seconds * 1e6 / mib);
            figures.insert(
                "server_cpu_percent".into(),
                100.0 * seconds / wall.as_secs_f64(),
            );
        }
        Ok(figures)
    }

    fn start(&self, server: &Server) -> anyhow::Result<Running> {
        let (socket, image) = (self.folder.join("socket"), self.folder.join("image"));
        for old in [&socket, &image] {
            match std::fs::remove_file(old) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).with_context(|| format!("removing {}", old.display()));
                }
                _ => {}
            }
        }
        let size = self.scenario.device_bytes();
        if let Server::Ours(setting) = server {
            let mut command = Command::new(self.program);
            command.env("CMWQ_CONTROL", "off");
            command.args(["crypt", "serve", "--file"]).arg(&image);
            command
                .args(["--size", &size.to_string(), "--unix"])
                .arg(&socket);
            command.arg("--key-file").arg(self.key);
            command.args(serve_arguments(*setting).unwrap_or_default());
            return self.ready(command);
        }
        let file = std::fs::File::create_new(&image).context("the server's file")?;
        let mut command = Command::new("nbdkit");
        command
            .arg("-f")
            .arg("-U")
            .arg(&socket)
            .arg("file")
            .arg(&image);
        if *server == Server::NbdkitLuks {
            // The header of LUKS1 has 2 MiB.
            file.set_len(size + (4 << 20))
                .context("the server's file")?;
            let format = Command::new("cryptsetup")
                .args([
                    "luksFormat",
                    "--type",
                    "luks1",
                    "--batch-mode",
                    // The fewest that LUKS1 allows: the filter stretches the passphrase for each connection, which is no part of serving.
                    "--pbkdf-force-iterations",
                    "1000",
                ])
                .args([
                    "--cipher",
                    "aes-xts-plain64",
                    "--key-size",
                    "512",
                    "--key-file",
                ])
                .arg(self.passphrase)
                .arg(&image)
                .output()
                .context("cryptsetup")?;
            ensure!(
                format.status.success(),
                "cryptsetup: {}",
                String::from_utf8_lossy(&format.stderr).trim()
            );
            command.arg("--filter=luks");
            command.arg(format!("passphrase=+{}", self.passphrase.display()));
        } else {
            file.set_len(size).context("the server's file")?;
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nbdkit")?;
        let mut running = Running {
            child,
            uri: format!("nbd+unix:///?socket={}", socket.display()),
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if let Some(status) = running.child.try_wait().context("nbdkit")? {
                bail!("nbdkit ended before it was ready: {status}");
            }
            ensure!(Instant::now() < deadline, "nbdkit is not ready after 10 s");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(running)
    }

    /// Starts our server and waits for its line.
    fn ready(&self, mut command: Command) -> anyhow::Result<Running> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cmwq crypt serve")?;
        let out = child.stdout.take();
        let mut running = Running {
            child,
            uri: String::new(),
        };
        let mut line = String::new();
        let out = out.context("the server's output")?;
        BufReader::new(out)
            .read_line(&mut line)
            .context("the server's output")?;
        match line.trim_end().strip_prefix("ready ") {
            Some(uri) => running.uri = uri.to_owned(),
            None => bail!("cmwq crypt serve did not start: {line:?}"),
        }
        Ok(running)
    }

    fn fio(&self, uri: &str, extent: Extent) -> anyhow::Result<Value> {
        let s = self.scenario;
        let size = s.blocks() * s.block;
        let mut command = Command::new("fio");
        command.current_dir(self.folder);
        command.args([
            "--name=job",
            "--ioengine=nbd",
            "--rw=randrw",
            "--verify=sha512",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--group_reporting",
            "--output-format=json",
        ]);
        command.args([
            format!("--uri={uri}"),
            format!("--bs={}", s.block),
            format!("--iodepth={}", s.depth),
            format!("--numjobs={}", s.jobs),
            format!("--size={size}"),
            format!("--offset_increment={size}"),
        ]);
        match extent {
            Extent::Whole => {
                command.arg("--time_based");
                command.arg(format!("--runtime={}ms", self.time.as_millis().max(1)));
            }
            Extent::OneBlockEach => {
                command.arg(format!("--io_size={}", s.block));
            }
        }
        if let Some(cpu) = s.pinned {
            command.arg(format!("--cpus_allowed={cpu}"));
        }
        if !s.think.is_zero() {
            command.arg(format!("--thinktime={}", s.think.as_micros()));
        }
        let out = command.output().context("fio")?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(
            out.status.success(),
            "fio: {}: {} {}",
            out.status,
            String::from_utf8_lossy(&out.stderr).trim(),
            text.lines().next().unwrap_or_default()
        );
        // Warnings come before the object.
        let object = text.find('{').map_or("", |at| &text[at..]);
        serde_json::from_str(object).context("fio's report")
    }
}

/// What is taken out of fio's report.
fn figures(report: &Value) -> anyhow::Result<Observation> {
    let job = &report["jobs"][0];
    ensure!(
        job["error"].as_i64() == Some(0),
        "fio reports error {}",
        job["error"]
    );
    let number = |v: &Value, what: &str| {
        v.as_f64()
            .with_context(|| format!("fio's report has no {what}"))
    };
    let mib = f64::from(1 << 20);
    let (read, write) = (&job["read"], &job["write"]);
    let moved =
        number(&read["io_bytes"], "read bytes")? + number(&write["io_bytes"], "written bytes")?;
    let mut figures = Observation::from([
        (
            "read_mib_s".into(),
            number(&read["bw_bytes"], "read bandwidth")? / mib,
        ),
        (
            "write_mib_s".into(),
            number(&write["bw_bytes"], "write bandwidth")? / mib,
        ),
        ("mib".into(), moved / mib),
    ]);
    let clat = &read["clat_ns"];
    for (name, value) in [
        ("mean", &clat["mean"]),
        ("p50", &clat["percentile"]["50.000000"]),
        ("p95", &clat["percentile"]["95.000000"]),
        ("p99", &clat["percentile"]["99.000000"]),
    ] {
        figures.extend(value.as_f64().map(|ns| (name.into(), ns / 1000.0)));
    }
    Ok(figures)
}

fn rows(scenario: &Scenario, servers: &[Server], measured: &cmwq_measure::Rounds) -> Vec<Row> {
    let system = stats::mean(&measured.values("system", "read_mib_s"));
    let mut rows = Vec::new();
    for server in servers {
        let name = server.name();
        let mut row = Row::new(format!("fio-{}", scenario.name), &name);
        if let Some((round, e)) = measured.errors(&name).first() {
            row.error = Some(format!("round {}: {e}", round + 1));
            rows.push(row);
            continue;
        }
        let values = |figure: &str| measured.values(&name, figure);
        let mean = |figure: &str| stats::mean(&values(figure));
        row.bandwidth_mib_s = Spread::of(&values("read_mib_s"));
        row.vs_system_percent = match (row.bandwidth_mib_s, system) {
            (Some(b), Some(s)) if s > 0.0 => Some(100.0 * (b.mean / s - 1.0)),
            _ => None,
        };
        // fio's percentiles of each round, averaged.
        row.latency_us = Some(LatencySummary {
            mean: mean("mean"),
            p50: mean("p50"),
            p95: mean("p95"),
            p99: mean("p99"),
            ..LatencySummary::default()
        });
        for (figure, key, unit) in [
            ("write_bandwidth", "write_mib_s", "MiB/s"),
            ("server_cpu_per_mib", "server_cpu_us_per_mib", "us/MiB"),
            ("server_cpu", "server_cpu_percent", "% of one CPU"),
        ] {
            if let Some(s) = Spread::of(&values(key)) {
                row = row.figure(figure, unit, s);
            }
        }
        rows.push(row);
    }
    rows
}

fn text(scenario: &Scenario, rows: &[Row]) -> String {
    let mut table = Table::new([
        "server",
        "read MiB/s",
        "vs system",
        "p50 us",
        "p95 us",
        "p99 us",
        "server CPU us/MiB",
    ]);
    for row in rows {
        if let Some(e) = &row.error {
            table.row([row.setting.clone(), format!("failed: {e}")]);
            continue;
        }
        let latency = row.latency_us.unwrap_or_default();
        let number = |v: Option<f64>| v.map_or("-".into(), table::number);
        let cpu = row.figures.get("server_cpu_per_mib");
        table.row([
            row.setting.clone(),
            row.bandwidth_mib_s
                .map_or("-".into(), |s| table::spread(&s)),
            row.vs_system_percent
                .map_or("-".into(), |v| format!("{v:+.1} %")),
            number(latency.p50),
            number(latency.p95),
            number(latency.p99),
            cpu.map_or("-".into(), |f| table::spread(&f.spread)),
        ]);
    }
    format!("fio through the server, {}\n{table}", scenario.line())
}

/// This program, which is the server too.
pub(super) fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}
