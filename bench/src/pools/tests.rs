use super::*;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Starts the pool, queues from outside and from inside, waits by `run_one`, and counts.
struct Exercise;

impl Visitor for Exercise {
    type Out = Result<()>;

    fn visit<P: Pool>(self) -> Result<()> {
        let pool: &'static P = Box::leak(Box::new(P::start(2)?));
        let count: &'static AtomicU64 = Box::leak(Box::default());
        for _ in 0..100 {
            pool.spawn(move || {
                count.fetch_add(1, Ordering::Relaxed);
                pool.spawn(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                });
            });
        }
        pool.run_one(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert!(count.load(Ordering::Relaxed) >= 1);
        assert_eq!(P::block(|| 7), 7);
        let began = Instant::now();
        while count.load(Ordering::Relaxed) < 201 {
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "items lost: {}",
                count.load(Ordering::Relaxed)
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

#[test]
fn every_pool_of_this_build_runs_items_from_outside_and_inside() {
    for pool in ALL {
        match pool.missing {
            Some(why) => println!("skipped: {}: {why}", pool.name),
            None => visit(pool.name, Exercise)
                .unwrap()
                .unwrap_or_else(|e| panic!("{}: {e}", pool.name)),
        }
    }
}

#[test]
fn unknown_and_missing_pools_are_told_apart() {
    let e = visit("nosuch", Exercise).unwrap_err().to_string();
    assert!(e.contains("no pool \"nosuch\""), "{e}");
    for pool in ALL.iter().filter(|p| p.missing.is_some()) {
        let e = visit(pool.name, Exercise).unwrap_err().to_string();
        assert!(e.contains(pool.missing.unwrap()), "{e}");
    }
}

#[test]
fn names_are_unique() {
    for (i, pool) in ALL.iter().enumerate() {
        assert!(
            ALL[..i].iter().all(|p| p.name != pool.name),
            "{}",
            pool.name
        );
    }
}

#[test]
fn versions_come_from_the_lock_file() {
    for pool in ALL {
        let version = pool.version();
        assert_eq!(
            version.is_some(),
            !pool.package.is_empty(),
            "{}: {version:?}",
            pool.name
        );
        assert!(
            version.is_none_or(|v| v.starts_with(|c: char| c.is_ascii_digit())),
            "{}: {version:?}",
            pool.name
        );
    }
}
