//! What a workqueue costs in memory while nobody uses it, counted by an allocator that counts.

use cmwq::{Runtime, Topology};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const N: usize = 100;

/// Bytes a queue, of queues built (and, `used`, queued on once).
fn each(cpus: &str, kind: &str, used: bool) -> usize {
    let rt = Runtime::builder()
        .topology(Topology::synthetic(cpus).unwrap())
        .build()
        .unwrap();
    let build = |i: usize| {
        let b = rt.workqueue(format!("q{i}"));
        let b = match kind {
            "per-CPU" => b.per_cpu(),
            "ordered" => b.ordered(),
            _ => b,
        };
        let wq = b.build().unwrap();
        if used {
            wq.spawn(|| {}).join().unwrap();
            wq.flush().unwrap();
        }
        wq
    };
    // What all queues share (pods, pools, threads) is made by the first.
    let first = build(N);
    let before = BYTES.load(Ordering::Relaxed);
    let queues: Vec<_> = (0..N).map(build).collect();
    let bytes = BYTES.load(Ordering::Relaxed) - before;
    drop((first, queues));
    bytes / N
}

#[test]
fn an_idle_queue_is_small_on_256_cpus() {
    let machine = "package:2 l3:16 core:8";
    println!("bytes a workqueue on 256 CPUs: never used / used from one CPU");
    for (kind, most) in [
        ("unbound", 24 << 10),
        ("per-CPU", 48 << 10),
        ("ordered", 24 << 10),
    ] {
        let (idle, used) = (each(machine, kind, false), each(machine, kind, true));
        println!("  {kind:8} {idle:6} / {used:6}");
        assert!(idle <= most, "an idle {kind} queue takes {idle} bytes");
        // Two histograms of 3 KiB each, and the pwq.
        assert!(
            used <= idle + (12 << 10),
            "a used {kind} queue takes {used} bytes"
        );
    }
}
