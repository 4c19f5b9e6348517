//! The two bare pools written here: boxed closures through one channel, one thread a CPU, no handles, no statistics, no panics
//! caught. They are the floor that a pool with more to offer is held against.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

use super::Pool;

type Item = Box<dyn FnOnce() + Send>;

/// Threads that receive from one crossbeam channel.
pub(super) struct Crossbeam {
    queue: crossbeam_channel::Sender<Item>,
}

impl Pool for Crossbeam {
    fn start(threads: usize) -> Result<Self> {
        let (queue, items) = crossbeam_channel::unbounded::<Item>();
        for i in 0..threads {
            let items = items.clone();
            let work = move || items.iter().for_each(|item| item());
            thread::Builder::new()
                .name(format!("crossbeam-{i}"))
                .spawn(work)
                .context("starting a worker")?;
        }
        Ok(Self { queue })
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.queue
            .send(Box::new(item))
            .expect("the workers hold the receiver as long as the process lives");
    }
}

/// Threads that take turns at the receiver of a std channel.
pub(super) struct StdMpsc {
    queue: mpsc::Sender<Item>,
}

impl Pool for StdMpsc {
    fn start(threads: usize) -> Result<Self> {
        let (queue, items) = mpsc::channel::<Item>();
        let items = Arc::new(Mutex::new(items));
        for i in 0..threads {
            let items = Arc::clone(&items);
            let work = move || {
                loop {
                    let next = items.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match next {
                        Ok(item) => item(),
                        Err(mpsc::RecvError) => return,
                    }
                }
            };
            thread::Builder::new()
                .name(format!("std-mpsc-{i}"))
                .spawn(work)
                .context("starting a worker")?;
        }
        Ok(Self { queue })
    }

    fn spawn<F: FnOnce() + Send + 'static>(&self, item: F) {
        self.queue
            .send(Box::new(item))
            .expect("the workers hold the receiver as long as the process lives");
    }
}
