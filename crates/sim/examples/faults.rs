//! Fault runs without the rest of the command: `faults FROM COUNT [THREADS]`. Same as `cmwq sim --faults COUNT --seed FROM`.

fn main() {
    let args: Vec<u64> = match std::env::args().skip(1).map(|s| s.parse()).collect() {
        Ok(a) => a,
        Err(e) => {
            eprintln!("usage: faults FROM COUNT [THREADS]: {e}");
            std::process::exit(2);
        }
    };
    let from = args.first().copied().unwrap_or(0);
    let n = args.get(1).copied().unwrap_or(100);
    let threads = args.get(2).copied().unwrap_or(2) as usize;
    let start = std::time::Instant::now();
    let (good, sum, bad) = cmwq_sim::faults::run_many(from, n, threads);
    println!(
        "{good} of {n} seeds from {from} on without a violation: {} items, {} events, every invariant checked after each; {:.1} s",
        sum.items,
        sum.events,
        start.elapsed().as_secs_f64()
    );
    for v in &bad {
        println!("violation: {v}\n{}", v.operations());
    }
    std::process::exit(i32::from(!bad.is_empty()));
}
