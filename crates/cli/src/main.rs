//! The `cmwq` command. Each subcommand is one module under `commands/`.

mod commands;
mod front;

use clap::Parser;

/// See, steer, bench and simulate concurrency-managed workqueues.
///
/// Without a subcommand: draws this machine and runs the main job on it, `cmwq bench crypt` with short rounds, in about a minute.
#[derive(Parser)]
#[command(name = "cmwq", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<commands::Command>,
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Some(command) => command.run(),
        None => front::run(),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cmwq: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
