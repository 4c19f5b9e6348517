//! `cmwq` without arguments: the machine, and the main job on it, in about a minute.

use std::time::Duration;

use crate::commands::bench::{CryptArgs, Host, all_measured, print};

/// What can be run after that.
const NEXT: &str = "\
What to try next
  cmwq bench crypt --runtime 5 --rounds 10 --report report.html   longer, with verdicts, as a page with charts
  cmwq bench crypt --synthetic SPEC                               the same CPUs with other caches (cmwq topology --help)
  cmwq bench crypt --fio                                          through the NBD server, with real fio
  cmwq bench queue | limit | latency                              other effects, one by one
  cmwq topology                                                   the machine and its scopes in full
  cmwq crypt serve --memory 1G --unix SOCKET --no-encryption      the server itself, for any NBD client
  cmwq list, dump, monitor                                        programs that run now and opt in
  cmwq --help                                                     everything
";

/// Measurements of the short run: six scenarios, ten settings, two of them with inline running, and as many rounds as a verdict needs
/// at least, of 0.12 s each: some 50 s with what lies between.
const ROUNDS: u32 = 5;
const RUNTIME: Duration = Duration::from_millis(120);

/// Runs it.
///
/// # Errors
/// Something that was read back differs from what was written, or the system refuses memory or threads.
pub(crate) fn run() -> anyhow::Result<()> {
    let host = Host::new(None)?;
    print(&format!(
        "{}\n\n{}\n",
        host.machine().line(),
        host.drawing()
    ))?;
    print(
        "An encrypted device in memory, requests run as work items: written, read back, verified. Short rounds, about a minute.\n\
         Settings with a scope's name are static, as in the kernel; \"default\" is the library's default.\n\n",
    )?;
    if cfg!(debug_assertions) {
        print("This build is not optimised: use cargo run --release for figures.\n\n")?;
    }
    let args = CryptArgs::short(RUNTIME, ROUNDS);
    let (_, failures) = args.measure(&host, &mut |text| print(text))?;
    print(NEXT)?;
    all_measured(&failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_run_takes_less_than_a_minute() {
        // Warming up is 20 ms, starting and ending a setting some 15 ms.
        let each = RUNTIME + Duration::from_millis(20 + 15);
        let measurements = (6 * 10 + 2) * ROUNDS;
        assert!(each * measurements < Duration::from_secs(60));
    }
}
