//! Random steps of everything at once against the reference model of `world/`.

mod world;

use proptest::prelude::*;
use world::{Op, Setup, World};

fn setup() -> impl Strategy<Value = Setup> {
    (
        [1u32..4, 1u32..4, 1u32..4],
        [1u32..40, 1u32..6, 1u32..20],
        1u32..5,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(u32::MAX), 1u32..6],
    )
        .prop_map(
            |(targets, max, percpu_limit, intensive, reserve, lag, create_fails, max_workers)| {
                Setup {
                    targets,
                    max,
                    percpu_limit,
                    intensive,
                    reserve,
                    lag,
                    create_fails,
                    max_workers,
                }
            },
        )
}

fn op() -> impl Strategy<Value = Op> {
    (0u8..100, any::<u16>(), any::<u16>(), any::<u16>()).prop_map(|(what, a, b, c)| Op {
        what,
        a,
        b,
        c,
    })
}

fn cases() -> u32 {
    std::env::var("CMWQ_CASES")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    /// P1-P7, S1-S3, F1-F4 between any two steps; nothing is lost, nothing runs twice, order holds, everything ends.
    #[test]
    fn every_interleaving_keeps_the_invariants_and_everything_ends(
        s in setup(),
        ops in proptest::collection::vec(op(), 1..400),
    ) {
        let mut w = World::new(&s);
        w.check();
        for op in ops {
            w.apply(op);
            w.check();
        }
        w.finish(40);
    }
}
