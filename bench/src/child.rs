//! One measurement in a process of its own: the program starts itself with `child POOL WORKLOAD ...`, the child prints one JSON object
//! on its standard output, and the parent waits for that with a limit.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cmwq_measure::Observation;
use serde::{Deserialize, Serialize};

use crate::workloads::Job;
use cmwq_measure::spin::Rate;

/// What a child prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The figures.
    Figures(Observation),
    /// Why there are none.
    Error(String),
}

/// How to start children.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The program, normally this one.
    pub program: PathBuf,
    /// A child that takes longer is killed.
    pub limit: Duration,
    /// What every child is told.
    pub job: Job,
}

impl Launcher {
    /// Starts this program again.
    ///
    /// # Errors
    /// When the system does not say where the program is.
    pub fn this_program(job: Job) -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let limit = Duration::from_secs(if job.quick { 30 } else { 90 });
        Ok(Self {
            program,
            limit,
            job,
        })
    }

    /// Runs one workload on one pool in a new process and waits for its figures.
    ///
    /// # Errors
    /// The child's own error; that it crashed, with the last line of what it wrote to standard error; that it hung and was killed.
    pub fn run(&self, pool: &str, workload: &str) -> Result<Observation> {
        let mut arguments = vec!["child".to_owned(), pool.to_owned(), workload.to_owned()];
        arguments.extend(["--threads".into(), self.job.threads.to_string()]);
        arguments.extend([
            "--steps-per-us".into(),
            self.job.rate.steps_per_us.to_string(),
        ]);
        if self.job.quick {
            arguments.push("--quick".into());
        }
        let output = start(&self.program, &arguments, self.limit)?;
        let answer = serde_json::from_str(&output)
            .with_context(|| format!("the child printed {output:?}"))?;
        match answer {
            Answer::Figures(figures) => Ok(figures),
            Answer::Error(why) => bail!("{why}"),
        }
    }
}

impl Job {
    /// A job for this machine; measures the speed of computing.
    pub fn here(threads: Option<usize>, quick: bool) -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: threads.unwrap_or(cpus).max(1),
            quick,
            rate: Rate::measure(),
        }
    }
}

/// Runs a program to its end, or kills it at the limit; gives what it wrote to standard output.
fn start(program: &Path, arguments: &[String], limit: Duration) -> Result<String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    // Both pipes are read by threads, so that neither can fill up; this thread sleeps meanwhile.
    let (done, ended) = mpsc::channel();
    let out = collect(child.stdout.take(), Some(done));
    let err = collect(child.stderr.take(), None);
    let in_time = !matches!(
        ended.recv_timeout(limit),
        Err(mpsc::RecvTimeoutError::Timeout)
    );
    if !in_time {
        child.kill().context("killing a child that hung")?;
    }
    let status = child.wait().context("waiting for a child")?;
    let join = |reader: thread::JoinHandle<std::io::Result<String>>| match reader.join() {
        Ok(text) => text.context("reading from a child"),
        Err(_) => bail!("the thread that reads from a child panicked"),
    };
    let (out, err) = (join(out)?, join(err)?);
    let last = err.lines().last().unwrap_or_default();
    anyhow::ensure!(in_time, "hung: killed after {limit:?} {last}");
    anyhow::ensure!(status.success(), "ended with {status}: {last}");
    Ok(out)
}

fn collect<R: Read + Send + 'static>(
    pipe: Option<R>,
    done: Option<mpsc::Sender<()>>,
) -> thread::JoinHandle<std::io::Result<String>> {
    thread::spawn(move || {
        let mut text = String::new();
        let outcome = pipe.map_or(Ok(0), |mut p| p.read_to_string(&mut text));
        drop(done); // tells the parent
        outcome.map(|_| text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<String> {
        start(Path::new("sh"), &["-c".into(), script.into()], limit)
    }

    #[test]
    fn output_comes_back() {
        assert_eq!(
            shell("echo hello; echo noise >&2", Duration::from_secs(20)).unwrap(),
            "hello\n"
        );
    }

    #[test]
    fn more_output_than_a_pipe_holds_is_read() {
        let text = shell(
            "yes x | head -n 200000; yes e | head -n 200000 >&2",
            Duration::from_secs(60),
        )
        .unwrap();
        assert_eq!(text.len(), 400_000);
    }

    #[test]
    fn a_crash_is_told_with_its_last_words() {
        let e = shell(
            "echo first >&2; echo last words >&2; exit 3",
            Duration::from_secs(20),
        )
        .unwrap_err()
        .to_string();
        assert!(
            e.contains("exit status: 3") && e.contains("last words"),
            "{e}"
        );
    }

    #[test]
    fn a_hanging_child_is_killed_and_told() {
        // exec: the shell's own process is the one that hangs, so that killing it closes the pipes.
        let e = shell("exec sleep 1000", Duration::from_millis(200))
            .unwrap_err()
            .to_string();
        assert!(e.contains("hung: killed after 200ms"), "{e}");
    }

    #[test]
    fn answers_survive_the_pipe() {
        for answer in [
            Answer::Figures(Observation::from([("x".into(), 1.5)])),
            Answer::Error("lost 3 of 4".into()),
        ] {
            let text = serde_json::to_string(&answer).unwrap();
            assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), answer);
        }
    }
}
