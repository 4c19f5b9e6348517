//! The swap of a queue's table under loom (invariants T1-T3 of the README beside this file), with tables and pwqs reduced to what
//! the protocol needs. The swap itself is a lock here; the real one (`arc-swap`) is a sequentially consistent exchange.

use loom::sync::{Arc, Mutex};
use loom::thread;

#[derive(Default)]
struct Pwq {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    retiring: bool,
    released: bool,
    items: usize,
    done: usize,
}

struct Queue {
    table: Mutex<Arc<Pwq>>,
}

impl Queue {
    fn load(&self) -> Arc<Pwq> {
        Arc::clone(&self.table.lock().unwrap())
    }

    /// As `WqInner::queue_reserved`: a retiring pwq will not do.
    fn queue(&self) -> Arc<Pwq> {
        loop {
            let pwq = self.load();
            let mut s = pwq.state.lock().unwrap();
            if s.retiring {
                drop(s);
                thread::yield_now();
                continue;
            }
            assert!(!s.released, "T2: an item goes into a released pwq");
            s.items += 1;
            drop(s);
            return pwq;
        }
    }

    /// As `WqInner::apply_attrs`: the new table is in place before the old pwqs are retired.
    fn swap(&self) -> Arc<Pwq> {
        let old = std::mem::replace(&mut *self.table.lock().unwrap(), Arc::default());
        retire(&old);
        old
    }
}

fn retire(pwq: &Pwq) {
    let mut s = pwq.state.lock().unwrap();
    s.retiring = true;
    s.released |= s.items == 0;
}

/// As a worker: runs one item if there is one; the last one releases a retiring pwq.
fn work(pwq: &Pwq) {
    let mut s = pwq.state.lock().unwrap();
    if s.items > 0 {
        assert!(!s.released, "T2: a released pwq has an item");
        s.items -= 1;
        s.done += 1;
        s.released |= s.retiring && s.items == 0;
    }
}

/// T1-T3: whoever queues while tables are swapped gets into a pwq that will run it; each pwq is released once it is empty.
#[test]
fn loom_t1_t3_an_item_queued_during_a_swap_is_run() {
    loom::model(|| {
        let q = Arc::new(Queue {
            table: Mutex::new(Arc::default()),
        });
        let q2 = Arc::clone(&q);
        let issuer = thread::spawn(move || {
            let pwq = q2.queue();
            work(&pwq);
            pwq
        });
        let old = q.swap();
        let used = issuer.join().unwrap();
        let newest = q.load();
        assert_eq!(used.state.lock().unwrap().done, 1);
        assert_eq!(old.state.lock().unwrap().items, 0);
        assert!(
            old.state.lock().unwrap().released,
            "T3: the old pwq is released"
        );
        let s = newest.state.lock().unwrap();
        assert!(!s.released && !s.retiring);
    });
}

/// T1: two swaps in a row, as an issuer looks again and again.
#[test]
fn loom_t1_an_issuer_gets_in_however_often_tables_are_swapped() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let q = Arc::new(Queue {
            table: Mutex::new(Arc::default()),
        });
        let q2 = Arc::clone(&q);
        let tuner = thread::spawn(move || [q2.swap(), q2.swap()]);
        let used = q.queue();
        work(&used);
        for old in tuner.join().unwrap() {
            assert!(old.state.lock().unwrap().released);
        }
        assert_eq!(used.state.lock().unwrap().done, 1);
    });
}
