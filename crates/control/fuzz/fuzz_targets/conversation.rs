//! Any bytes, in any pieces, to the server: whole replies or a close, and never a panic.
#![no_main]

use std::sync::{Arc, LazyLock};

use cmwq_control::attr::{Attr, ParseContext, SetError, Setting};
use cmwq_control::protocol::{FrameBuffer, MAX_REPLY, Reply};
use cmwq_control::server::fuzzing::converse;
use cmwq_control::snapshot::{Detail, ProcessInfo, Snapshot};
use cmwq_control::trace::TraceOptions;
use cmwq_control::{Process, Target};
use libfuzzer_sys::fuzz_target;

struct Small;

impl Process for Small {
    fn info(&self) -> ProcessInfo {
        ProcessInfo::default()
    }
    fn snapshot(&self, _: Detail) -> Snapshot {
        Snapshot::default()
    }
    fn parse_context(&self) -> ParseContext {
        ParseContext { nr_cpu_ids: 8 }
    }
    fn get(&self, _: &Target, attr: Attr) -> Result<String, SetError> {
        Ok(attr.name().to_owned())
    }
    fn set(&self, _: &Target, setting: &Setting) -> Result<String, SetError> {
        Ok(setting.attr().name().to_owned())
    }
    fn trace_start(&self, _: &TraceOptions) -> Result<(), SetError> {
        Ok(())
    }
}

static PROCESS: LazyLock<Arc<dyn Process>> = LazyLock::new(|| Arc::new(Small));

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    let said = converse(&PROCESS, &pieces);
    let mut buffer = FrameBuffer::new(MAX_REPLY);
    buffer.push(&said);
    while let Some(body) = buffer.next_frame().expect("a frame of the protocol") {
        Reply::parse(&body).expect("a reply of the protocol");
    }
    assert!(buffer.is_empty(), "no half reply");
});
