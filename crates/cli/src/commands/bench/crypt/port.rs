//! Where an issuer finds its completed requests.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use cmwq_crypt::device::Volume;

use super::super::way::current_cpu;

/// What a worker saw of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ran {
    /// The CPU that it started on.
    pub(crate) cpu: usize,
    /// Times that the worker was found on another CPU than where it was last seen: since its last request, or within this one.
    pub(crate) moves: u32,
}

/// A request that ended.
pub(crate) struct Done {
    pub(crate) slot: usize,
    pub(crate) buffer: Vec<u8>,
    pub(crate) result: io::Result<()>,
    pub(crate) ran: Ran,
}

/// A request as it is queued: one block, one direction.
pub(crate) struct Request {
    pub(crate) volume: Arc<Volume>,
    pub(crate) offset: u64,
    pub(crate) write: bool,
    pub(crate) buffer: Vec<u8>,
}

thread_local! {
    /// The CPU on which this worker was last seen.
    static LAST_CPU: std::cell::Cell<usize> = const { std::cell::Cell::new(usize::MAX) };
}

impl Request {
    /// Carries it out: cipher and device.
    pub(crate) fn run(&mut self) -> (io::Result<()>, Ran) {
        let cpu = current_cpu();
        let last = LAST_CPU.replace(cpu);
        let mut moves = u32::from(last != cpu && last != usize::MAX);
        let result = match self.write {
            true => self.volume.write(self.offset, &mut self.buffer, false),
            false => self.volume.read(self.offset, &mut self.buffer),
        };
        let end = current_cpu();
        moves += u32::from(end != cpu);
        LAST_CPU.set(end);
        (result, Ran { cpu, moves })
    }
}

#[derive(Default)]
struct State {
    done: Vec<Done>,
    waiting: bool,
}

/// Completed requests of one issuer.
#[derive(Default)]
pub(crate) struct Port {
    state: Mutex<State>,
    wake: Condvar,
}

impl Port {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn push(&self, done: Done) {
        let mut state = self.lock();
        state.done.push(done);
        let wake = std::mem::take(&mut state.waiting);
        drop(state);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Swaps what is done into `into`, which is empty; waits until there is something.
    pub(crate) fn wait(&self, into: &mut Vec<Done>) {
        let mut state = self.lock();
        while state.done.is_empty() {
            state.waiting = true;
            state = self.wake.wait(state).unwrap_or_else(|e| e.into_inner());
        }
        state.waiting = false;
        std::mem::swap(&mut state.done, into);
    }
}

/// A request on its way through a queue. If it is lost there, its issuer is told in place of waiting for ever.
pub(crate) struct InFlight {
    pub(crate) port: Arc<Port>,
    pub(crate) slot: usize,
    pub(crate) request: Option<Request>,
}

impl InFlight {
    pub(crate) fn run(mut self) {
        if let Some(request) = &mut self.request {
            let (result, ran) = request.run();
            let buffer = std::mem::take(&mut request.buffer);
            self.request = None;
            self.port.push(Done {
                slot: self.slot,
                buffer,
                result,
                ran,
            });
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.request.is_some() {
            self.port.push(Done {
                slot: self.slot,
                buffer: Vec::new(),
                result: Err(io::Error::other("a request was dropped or panicked")),
                ran: Ran::default(),
            });
        }
    }
}
