//! The `cmwq` command. Each subcommand is one module under `commands/`.

mod commands;

use clap::Parser;

/// See, steer, bench and simulate concurrency-managed workqueues.
#[derive(Parser)]
#[command(name = "cmwq", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    match cli.command.run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cmwq: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
