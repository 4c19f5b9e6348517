//! The item's word under loom (invariants I1-I6 of the README beside this file). Pools are left out: where an item would be
//! linked, it is on a timer here, which is a table of one place behind a lock.

use super::{Dropped, Grabbed, Header, ItemPtr, OffTimer, VTable, grab, grab_idle, wait_transit};
use crate::completion::Completion;
use crate::sys::futex::Timeout;
use cmwq_policy::word::Word;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::ptr::NonNull;

static TABLE: VTable = VTable {
    run: |_| unreachable!("models run items themselves"),
    discard: |_, _: Dropped| unreachable!("models drop items themselves"),
    name: |_| "modelled",
    strayed: |_, _| {},
    oneshot: false,
    fixed_name: Some(|| "modelled"),
    task: None,
};

struct Model {
    header: Header,
    /// What the owner of PENDING may touch.
    owned: UnsafeCell<u32>,
    /// The timer: armed with its number 0.
    timer: Mutex<bool>,
    given: AtomicU32,
    runs: AtomicUsize,
}

// SAFETY: `owned` is touched by the owner of PENDING only, which loom checks.
unsafe impl Sync for Model {}
// SAFETY: as above.
unsafe impl Send for Model {}

impl Model {
    fn new(word: Word) -> Arc<Model> {
        Arc::new(Model {
            header: Header::new(word, &TABLE),
            owned: UnsafeCell::new(0),
            timer: Mutex::new(word.is_on_timer()),
            given: AtomicU32::new(0),
            runs: AtomicUsize::new(0),
        })
    }

    fn armed() -> Arc<Model> {
        Model::new(Word::IDLE.grabbed().armed(0))
    }

    fn item(&self) -> ItemPtr {
        ItemPtr::new(NonNull::from(&self.header))
    }

    fn own(&self) {
        // SAFETY: called by the owner of PENDING.
        self.owned.with_mut(|p| unsafe { *p += 1 });
    }

    fn disarm(&self) -> bool {
        std::mem::take(&mut *self.timer.lock().unwrap())
    }

    fn grab(&self) -> (Grabbed, Word) {
        grab(self.item(), &self.header, |_| {
            if self.disarm() {
                OffTimer::Taken
            } else {
                OffTimer::NotThere
            }
        })
    }

    /// The timer fires: the item runs. False if it was taken off the timer before.
    fn fire(&self) -> bool {
        {
            let mut timer = self.timer.lock().unwrap();
            if !std::mem::take(&mut *timer) {
                return false;
            }
            self.header.set_word(self.header.word().grabbed());
        }
        self.own();
        self.header.release_for_run();
        self.runs.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// I1: of those who find an item idle one gets it; who owns it is alone with it.
#[test]
fn loom_i1_one_owner_at_a_time() {
    loom::model(|| {
        let m = Model::new(Word::IDLE);
        let try_own = |m: &Model| match grab_idle(&m.header) {
            Ok(before) => {
                m.own();
                m.header.set_word(before.released());
                1
            }
            Err(seen) => {
                assert!(seen.is_pending());
                0
            }
        };
        let m2 = Arc::clone(&m);
        let t = thread::spawn(move || try_own(&m2));
        let n = try_own(&m) + t.join().unwrap();
        assert!(n >= 1);
        // SAFETY: both threads are done with the cell.
        assert_eq!(m.owned.with(|p| unsafe { *p }), n);
    });
}

/// I2: what was stored before a queueing that found the item pending is seen by the run that comes.
#[test]
fn loom_i2_what_was_stored_before_already_pending_is_seen() {
    loom::model(|| {
        let m = Model::armed();
        let m2 = Arc::clone(&m);
        let issuer = thread::spawn(move || {
            m2.given.store(1, Ordering::Relaxed);
            grab_idle(&m2.header).is_err()
        });
        m.header.release_for_run();
        let seen = m.given.load(Ordering::Relaxed);
        let already_pending = issuer.join().unwrap();
        assert!(
            !already_pending || seen == 1,
            "AlreadyPending, and the run did not see it"
        );
    });
}

/// I3: a timer that fires and one who takes the item off it: exactly one of them has it.
#[test]
fn loom_i3_fired_or_taken() {
    loom::model(|| {
        let m = Model::armed();
        let m2 = Arc::clone(&m);
        let timer = thread::spawn(move || m2.fire());
        let (was, before) = m.grab();
        m.own();
        m.header.set_word(before.grabbed().released());
        let fired = timer.join().unwrap();
        assert_eq!(fired, was != Grabbed::Timer);
        assert_eq!(m.runs.load(Ordering::Relaxed), usize::from(fired));
    });
}

/// I3, I4: two who take it, and the timer.
#[test]
fn loom_i4_any_number_may_grab() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let m = Model::armed();
        let take = |m: &Model| {
            let (was, before) = m.grab();
            m.own();
            m.header.set_word(before.grabbed().released());
            was == Grabbed::Timer
        };
        let (m1, m2) = (Arc::clone(&m), Arc::clone(&m));
        let a = thread::spawn(move || take(&m1));
        let timer = thread::spawn(move || m2.fire());
        let b = take(&m);
        let (a, fired) = (a.join().unwrap(), timer.join().unwrap());
        assert_eq!(usize::from(a) + usize::from(b) + usize::from(fired), 1);
        assert!(!m.header.word().is_pending());
    });
}

/// I5: depth is neither lost nor made up by calls that race.
#[test]
fn loom_i5_disable_and_enable_balance() {
    loom::model(|| {
        let m = Model::new(Word::IDLE);
        let cycle = |m: &Model| {
            let (_, before) = m.grab();
            m.header
                .set_word(before.grabbed().released().with_depth(before.depth() + 1));
            assert!(grab_idle(&m.header).is_err(), "disabled");
            loop {
                let seen = wait_transit(&m.header);
                assert!(seen.depth() > 0);
                if m.header.try_change(seen, seen.with_depth(seen.depth() - 1)) {
                    break;
                }
            }
        };
        let m2 = Arc::clone(&m);
        let t = thread::spawn(move || cycle(&m2));
        cycle(&m);
        t.join().unwrap();
        assert_eq!(
            (m.header.word().depth(), m.header.word().is_pending()),
            (0, false)
        );
    });
}

/// I6: cancel and wait: disabled, taken, and the running instance waited for by a barrier under the pool's lock. When it
/// returns the item neither is pending nor runs, and what the run did is seen.
#[test]
fn loom_i6_cancel_and_wait() {
    #[derive(Default)]
    struct Pool {
        running: bool,
        barrier: Option<std::sync::Arc<Completion>>,
    }
    loom::model(|| {
        let m = Model::armed();
        let pool = Arc::new(Mutex::new(Pool::default()));
        let (m2, p2) = (Arc::clone(&m), Arc::clone(&pool));
        let worker = thread::spawn(move || {
            {
                let mut timer = m2.timer.lock().unwrap();
                if !std::mem::take(&mut *timer) {
                    return;
                }
                m2.header.set_word(m2.header.word().grabbed());
            }
            p2.lock().unwrap().running = true;
            m2.header.release_for_run();
            m2.given.store(1, Ordering::Relaxed);
            m2.runs.fetch_add(1, Ordering::Relaxed);
            let barrier = {
                let mut pool = p2.lock().unwrap();
                pool.running = false;
                pool.barrier.take()
            };
            if let Some(b) = barrier {
                b.complete();
            }
        });
        let (was, before) = m.grab();
        m.header.set_word(before.grabbed().released().with_depth(1));
        let wait = {
            let mut pool = pool.lock().unwrap();
            pool.running.then(|| {
                let done = Completion::new();
                pool.barrier = Some(std::sync::Arc::clone(&done));
                done
            })
        };
        if let Some(done) = wait {
            assert!(done.wait(Timeout::Never));
        }
        let runs = m.runs.load(Ordering::Relaxed);
        assert_eq!(
            runs,
            usize::from(was != Grabbed::Timer),
            "it has run, or never will"
        );
        assert_eq!(m.given.load(Ordering::Relaxed) as usize, runs);
        assert!(!m.header.word().is_pending() && !pool.lock().unwrap().running);
        worker.join().unwrap();
        assert_eq!(m.runs.load(Ordering::Relaxed), runs);
    });
}
