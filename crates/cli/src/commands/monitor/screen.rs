//! The full-screen view's loop: one thread looks at the process, this one draws and takes keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::Context as _;
use cmwq_control::client::Client;
use cmwq_control::snapshot::{Detail, Snapshot};
use ratatui::crossterm::event::{self, Event};
use regex::Regex;

use super::super::live;
use super::app::App;
use super::draw;

/// How long a key waits at most until it is seen.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// How long to wait before a process that went silent is looked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// `again` connects anew: a process that was stopped comes back, and one that was restarted under its name is there again.
pub(super) fn run(
    client: Client,
    again: impl Fn() -> anyhow::Result<Client> + Send + 'static,
    patterns: Vec<Regex>,
    interval: Duration,
) -> anyhow::Result<()> {
    let wants_items = Arc::new(AtomicBool::new(false));
    let (nudge, nudged) = mpsc::channel();
    let samples = look(client, again, interval, Arc::clone(&wants_items), nudged)?;
    let mut terminal = ratatui::try_init().context("cannot draw on this terminal (try --plain)")?;
    let result = show(
        &mut terminal,
        App::new(patterns),
        &samples,
        &wants_items,
        &nudge,
    );
    // Whatever happened, the terminal is given back first.
    ratatui::restore();
    result
}

/// Looks at the process in a thread, so that keys are taken while it does not answer. The thread ends when nobody listens.
fn look(
    mut client: Client,
    again: impl Fn() -> anyhow::Result<Client> + Send + 'static,
    interval: Duration,
    wants_items: Arc<AtomicBool>,
    nudged: mpsc::Receiver<()>,
) -> anyhow::Result<mpsc::Receiver<Result<Snapshot, String>>> {
    let (send, receive) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("cmwq-look".into())
        .spawn(move || {
            loop {
                let detail = Detail {
                    items: wants_items.load(Ordering::Relaxed),
                    ..Detail::FULL
                };
                let sample = live::snapshot(&mut client, detail).map_err(|e| format!("{e:#}"));
                let failed = sample.is_err();
                if send.send(sample).is_err() {
                    return;
                }
                // An opened queue is looked at at once.
                let pause = if failed { AGAIN } else { interval };
                if nudged.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
                if failed {
                    // The conversation is over; why is shown until there is another one.
                    match again() {
                        Ok(next) => client = next,
                        Err(e) if send.send(Err(format!("{e:#}"))).is_err() => return,
                        Err(_) => {}
                    }
                }
            }
        })?;
    Ok(receive)
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    mut app: App,
    samples: &mpsc::Receiver<Result<Snapshot, String>>,
    wants_items: &AtomicBool,
    nudge: &mpsc::Sender<()>,
) -> anyhow::Result<()> {
    // The first picture waits for the first sample, but not for long.
    match samples.recv_timeout(Duration::from_millis(500)) {
        Ok(sample) => app.sample(sample),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
    }
    let mut dirty = true;
    loop {
        if dirty {
            terminal
                .draw(|frame| draw::draw(frame, &app))
                .context("cannot draw")?;
        }
        dirty = false;
        if event::poll(KEY_WAIT).context("cannot read keys")? {
            match event::read().context("cannot read keys")? {
                Event::Key(key) => {
                    if !app.key(key) {
                        return Ok(());
                    }
                    let wanted = app.wants_items();
                    if wants_items.swap(wanted, Ordering::Relaxed) != wanted && wanted {
                        // Fails only if the conversation is over, which the last sample said.
                        let _ = nudge.send(());
                    }
                    dirty = true;
                }
                Event::Resize(..) => dirty = true,
                _ => {}
            }
        }
        while let Ok(sample) = samples.try_recv() {
            app.sample(sample);
            dirty = true;
        }
    }
}
