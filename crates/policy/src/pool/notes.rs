//! For tests: a driver that notes whom it is to wake and why it is to make workers, and a pool with one queue.

use super::{
    BirthReason, Driver, Enqueue, Here, Next, Pool, PoolConfig, PwqConfig, PwqFlags, PwqId, PwqTag,
    Taken, Time, WorkerId,
};

pub(super) const HERE: Here = Here {
    cpu: 0,
    in_pod: true,
};

/// Workers claim nothing beyond the first item of a batch.
#[derive(Default)]
pub(super) struct Notes {
    pub(super) woken: Vec<WorkerId>,
    pub(super) wanted: Vec<BirthReason>,
}

impl Driver<u32> for Notes {
    fn wake(&mut self, w: WorkerId) {
        self.woken.push(w);
    }
    fn create(&mut self, reason: BirthReason) {
        self.wanted.push(reason);
    }
    fn barrier(&mut self, _: u32) {}
    fn flushed(&mut self, _: PwqTag, _: u8) {}
    fn ask(&mut self, _: PwqTag) {}
    fn give_back(&mut self, _: PwqTag, _: u32) {}
    fn drained(&mut self, _: PwqTag) {}
    fn mayday(&mut self, _: PwqTag) {}
    fn contended(&self, _: PwqTag) -> bool {
        false
    }
    fn claimed(&self, _: WorkerId) -> u32 {
        1
    }
    fn recall(&mut self, _: WorkerId) -> u32 {
        1
    }
    fn start_stamp(&self, _: WorkerId, _: u32) -> Time {
        0
    }
}

/// A pool with one pwq.
pub(super) fn pool(helpable: bool) -> (Pool<u32, u32>, PwqId, Notes) {
    let mut p = Pool::new(PoolConfig {
        reserve: false,
        ..PoolConfig::default()
    });
    let id = p.link_pwq(PwqConfig {
        tag: 7,
        limit: 100,
        leased: false,
        colour: 0,
        flags: PwqFlags {
            helpable,
            ..PwqFlags::default()
        },
        draining: false,
        frozen: false,
    });
    (p, id, Notes::default())
}

pub(super) fn queue(p: &mut Pool<u32, u32>, pwq: PwqId, item: u32, now: Time, drv: &mut Notes) {
    queue_on(0, p, pwq, item, now, drv);
}

pub(super) fn queue_on(
    issuer_cpu: u32,
    p: &mut Pool<u32, u32>,
    pwq: PwqId,
    item: u32,
    now: Time,
    drv: &mut Notes,
) {
    let q = Enqueue {
        item,
        pwq,
        oneshot: true,
        chained: false,
        issuer_cpu,
    };
    p.enqueue(q, now, drv).unwrap();
}

/// A new worker comes and asks for work.
pub(super) fn start(p: &mut Pool<u32, u32>, now: Time, drv: &mut Notes) -> (WorkerId, Next) {
    let w = p.worker_started(0, now);
    let mut batch: Vec<Taken<u32>> = Vec::new();
    (w, p.next(w, HERE, now, &mut batch, drv))
}
