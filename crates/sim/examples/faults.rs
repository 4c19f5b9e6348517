//! Fault runs: `faults FROM COUNT [THREADS]`.

fn main() {
    if let Ok(only) = std::env::var("ONLY") {
        let seed = std::env::args().nth(1).unwrap().parse().unwrap();
        let only: Vec<u32> = only.split(',').filter_map(|s| s.parse().ok()).collect();
        println!("{:?}", cmwq_sim::faults::run_seed(seed, Some(&only)));
        return;
    }
    let a: Vec<u64> = std::env::args()
        .skip(1)
        .map(|s| s.parse().unwrap())
        .collect();
    let (from, n) = (
        a.first().copied().unwrap_or(0),
        a.get(1).copied().unwrap_or(100),
    );
    let t = std::time::Instant::now();
    let (good, sum, bad) =
        cmwq_sim::faults::run_many(from, n, a.get(2).copied().unwrap_or(2) as usize);
    println!(
        "{good} seeds without a violation, {} events, {} items, {:.1} s",
        sum.events,
        sum.items,
        t.elapsed().as_secs_f64()
    );
    for v in &bad {
        println!("VIOLATION {v}\n{}", v.operations());
    }
    std::process::exit(i32::from(!bad.is_empty()));
}
