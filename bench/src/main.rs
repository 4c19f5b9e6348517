//! `cargo run --release -p bench`: cmwq beside the pools that a user would pick instead.

use std::fs;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use cmwq_measure::Report;
use cmwq_measure::table::Centre;

use bench::child::{Answer, Launcher};
use bench::suite::{Suite, choose_pools, choose_workloads};
use bench::{show, workloads};
use cmwq_measure::spin::Rate;

/// Runs pools side by side in paired rounds, every measurement in a process of its own, and prints medians, ranges, ratios and verdicts.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Command {
    #[command(subcommand)]
    hidden: Option<Single>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
struct Options {
    /// Workloads to run, separated by commas (all unless given; see --list)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Option<Vec<String>>,
    /// Pools to run, separated by commas (all unless given; see --list)
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    peers: Option<Vec<String>>,
    /// Rounds before anything is judged [default: 7; 3 with --quick]
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// The most rounds, where bars are still open [default: 8 times --rounds; 1 time with --quick]
    #[arg(long, value_name = "N")]
    max_rounds: Option<usize>,
    /// Begin no further round of a workload after this long
    #[arg(long, value_name = "S", default_value_t = 300)]
    max_seconds: u64,
    /// CPUs to use (those of the process unless given)
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Seed of the order of pools in a round
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Shorter and rougher: to see that everything runs, not for figures
    #[arg(long)]
    quick: bool,
    /// Write the rows here in the common JSON form
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one self-contained HTML page with tables and charts here
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// List pools and workloads
    #[arg(long)]
    list: bool,
}

#[derive(Debug, Subcommand)]
enum Single {
    /// One workload on one pool in this process; prints one JSON object. Used by the program itself.
    #[command(hide = true)]
    Child {
        pool: String,
        workload: String,
        #[arg(long)]
        threads: usize,
        #[arg(long)]
        steps_per_us: f64,
        #[arg(long)]
        quick: bool,
    },
    /// Queue N empty items on one pool and end: for counting instructions (ci/instructions.sh)
    One {
        pool: String,
        /// `ext` (queued by the main thread), `int` (queued by an item a CPU) or `pp` (queued and waited for, one by one)
        workload: String,
        n: u64,
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
}

fn main() -> ExitCode {
    let command = Command::parse();
    let outcome = match command.hidden {
        Some(Single::Child {
            pool,
            workload,
            threads,
            steps_per_us,
            quick,
        }) => child(
            &pool,
            &workload,
            &workloads::Job {
                threads,
                quick,
                rate: Rate { steps_per_us },
            },
        ),
        Some(Single::One {
            pool,
            workload,
            n,
            threads,
        }) => one(&pool, &workload, threads, n),
        None => suite(&command.options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn child(pool: &str, workload: &str, job: &workloads::Job) -> Result<()> {
    let answer = match workloads::run(pool, workload, job) {
        Ok(figures) => Answer::Figures(figures),
        Err(e) => Answer::Error(format!("{e:#}")),
    };
    println!("{}", serde_json::to_string(&answer)?);
    std::io::stdout().flush()?;
    // Without taking the pool down: some would wait for threads that sleep.
    std::process::exit(0)
}

fn one(pool: &str, workload: &str, threads: usize, n: u64) -> Result<()> {
    let from = match workload {
        "ext" => workloads::From::Outside,
        "int" => workloads::From::Inside,
        "pp" => workloads::From::Waiter,
        _ => anyhow::bail!("no single workload {workload:?}, expected ext, int or pp"),
    };
    workloads::count_down(pool, from, threads, n)?;
    std::process::exit(0)
}

fn suite(options: &Options) -> Result<()> {
    if options.list {
        print!("{}", show::list());
        return Ok(());
    }
    let min_rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 7 });
    let factor = if options.quick { 1 } else { 8 };
    let suite = Suite {
        workloads: choose_workloads(options.only.as_deref())?,
        pools: choose_pools(options.peers.as_deref())?,
        min_rounds,
        max_rounds: options
            .max_rounds
            .unwrap_or(min_rounds.saturating_mul(factor))
            .max(min_rounds),
        max_time: Duration::from_secs(options.max_seconds),
        seed: options.seed,
    };
    if cfg!(debug_assertions) {
        eprintln!("bench: built without optimisation; use cargo run --release -p bench");
    }
    let launcher = Launcher::this_program(workloads::Job::here(options.threads, options.quick))?;
    let terminal = std::io::stderr().is_terminal();
    let clear = || {
        if terminal {
            eprint!("\r\x1b[K");
        }
    };
    let mut floor_shown = false;
    let document = suite.run(
        &launcher,
        |line| {
            if terminal {
                eprint!("\r\x1b[K{line}");
            }
        },
        |measured, document| {
            clear();
            if !floor_shown {
                println!("{}", document.machine.line());
                print!("{}", show::floor(document));
                floor_shown = true;
            }
            print!("{}", show::workload(measured, document, &suite.pools));
        },
    )?;
    clear();
    print!("{}", show::verdicts(&document));
    if let Some(path) = &options.json {
        fs::write(path, document.to_json()?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &options.report {
        let ours: Vec<&str> = bench::pools::ALL
            .iter()
            .filter(|p| !p.peer)
            .map(|p| p.name)
            .collect();
        // These repeat what the named figures show with their spread.
        let mut document = document.clone();
        for row in &mut document.rows {
            (
                row.latency_us,
                row.handover_us,
                row.cpu_util_percent,
                row.cpu_util_of,
            ) = (None, None, None, None);
        }
        let report = Report::new(&document)
            .title("cmwq beside other pools")
            .centre(Centre::Median)
            .highlight(ours);
        fs::write(path, report.to_html()?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
