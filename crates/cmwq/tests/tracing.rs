//! `tracing` subscribers get the kernel's four events, with no lock of the runtime held.

use cmwq::Runtime;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Keeps events as text, and uses the runtime while it is called.
struct Collector {
    seen: Mutex<Vec<String>>,
    rt: OnceLock<Runtime>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for &'static Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "cmwq"
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().name().to_owned());
        event.record(&mut text);
        self.seen.lock().unwrap().push(text.0);
        // Would deadlock if a pool's or queue's lock were held.
        if let Some(rt) = self.rt.get() {
            rt.snapshot();
        }
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn subscribers_get_the_kernels_events() {
    let collector: &'static Collector = Box::leak(Box::new(Collector {
        seen: Mutex::default(),
        rt: OnceLock::new(),
    }));
    tracing::subscriber::set_global_default(collector).unwrap();
    let rt = Runtime::builder().build().unwrap();
    let _ = collector.rt.set(rt.clone());
    let wq = rt.workqueue("watched").max_active(1).build().unwrap();
    let work = Arc::new(cmwq::Work::with_name("sync_inode", |_| {}));
    wq.queue(&work).unwrap();
    wq.flush().unwrap();
    for _ in 0..5 {
        drop(wq.spawn(|| {}));
    }
    wq.flush().unwrap();
    let seen = collector.seen.lock().unwrap().clone();
    let of = |name: &str| seen.iter().filter(|s| s.starts_with(name)).count();
    for name in [
        "queue_work",
        "activate_work",
        "execute_start",
        "execute_end",
    ] {
        assert_eq!(of(name), 6, "{name}: {seen:#?}");
    }
    assert!(seen.iter().any(|s| s.starts_with("queue_work ")
        && s.contains("function=\"sync_inode\"")
        && s.contains("workqueue=\"watched\"")));
}
