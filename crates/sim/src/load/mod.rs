//! The load: issuers with requests in flight, a device, and what a request passes through.
//!
//! A request of an issuer is a list of stages: the issuer's own work (generate and submit), items on queues, the device,
//! and at the end the issuer's work again (reap and verify). While an issuer has requests to reap or may start new ones it
//! uses its CPU; otherwise it sleeps and is woken by whoever completes a request.

mod issuer;
mod server;

use crate::faults::Plan;
use crate::wq::ItemId;
use std::collections::VecDeque;

/// A part of a request's way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Stage {
    /// An item of this queue; it costs so much.
    Item { queue: u32, ns: u64, locked: u64 },
    /// The device.
    Device,
    /// One command for this server.
    Server(u32),
}

/// A thread or item that does one command after the other, in order, for as long as there are any.
#[derive(Debug, Clone, Default)]
pub(crate) struct Server {
    /// Its thread, or the reusable item that a workqueue runs for it.
    pub(crate) by: By,
    /// What one command costs, ns.
    pub(crate) ns: u64,
    /// It touches the payload.
    pub(crate) touches: bool,
    pub(crate) list: VecDeque<ItemId>,
    pub(crate) doing: Option<ItemId>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum By {
    #[default]
    Nobody,
    Thread(u32),
    Item(ItemId),
}

/// A request in flight. Its number is that of its item.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    pub(crate) issuer: u32,
    pub(crate) write: bool,
    pub(crate) stage: u8,
    /// Where it was submitted to the device: who is interrupted.
    pub(crate) cpu: u32,
    pub(crate) started: u64,
}

/// What an issuer does; all of one load do the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shape {
    pub(crate) bytes: u32,
    /// Before a write, before a read, after a write, after a read; ns.
    pub(crate) before: [u64; 2],
    pub(crate) after: [u64; 2],
    /// Stages of reads and of writes.
    pub(crate) ways: [Vec<Stage>; 2],
    /// Pause before each request, ns.
    pub(crate) think: u64,
    /// Open loop: a request every so many ns on average, per issuer; 0 = closed loop.
    pub(crate) every: u64,
    /// Requests an open-loop arrival brings.
    pub(crate) burst: u32,
    /// Out of 100.
    pub(crate) reads: u32,
    /// A request is reaped when no other may be started; else all that are done are reaped first.
    pub(crate) one_by_one: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Issuer {
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) inbox: VecDeque<ItemId>,
    /// Requests that it may start.
    pub(crate) credit: u32,
    /// What it works on now.
    pub(crate) doing: Doing,
    pub(crate) spare: Vec<ItemId>,
    /// Whether it sleeps about once per item that finds its pool at rest.
    pub(crate) sleepy: Sleepy,
    /// It has thought already.
    pub(crate) thought: bool,
}

/// What the runtime keeps of an issuing thread: it looks at its sleeps once in [`SAMPLE`] items.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sleepy {
    items: u32,
    sleeps: u32,
    pub(crate) is: bool,
}

const SAMPLE: u32 = 16;

impl Sleepy {
    /// One more item; the thread has slept so often by now.
    pub(crate) fn asked(&mut self, sleeps: u32) -> bool {
        self.items += 1;
        if self.items >= SAMPLE {
            self.is = sleeps.wrapping_sub(self.sleeps) >= SAMPLE * 3 / 4;
            (self.items, self.sleeps) = (0, sleeps);
        }
        self.is
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Doing {
    #[default]
    Nothing,
    Starting(ItemId),
    Ending(ItemId),
    Thinking,
}

/// The device: a latency, and a time per request during which it does nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Device {
    pub(crate) latency: u64,
    pub(crate) per_request: u64,
    pub(crate) free_at: u64,
}

/// Everything about the load.
#[derive(Default)]
pub(crate) struct Load {
    pub(crate) shape: Shape,
    pub(crate) issuers: Vec<Issuer>,
    pub(crate) servers: Vec<Server>,
    pub(crate) requests: Vec<Request>,
    pub(crate) device: Device,
    pub(crate) done: u64,
    pub(crate) done_reads: u64,
    pub(crate) latency: cmwq_policy::hist::Histogram,
    pub(crate) lock_spread: f64,
    pub(crate) lock_spinners: f64,
    pub(crate) plan: Option<Box<Plan>>,
}
