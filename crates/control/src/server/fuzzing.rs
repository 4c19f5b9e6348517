//! A conversation without the thread and its clock, for fuzzing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::PollFlags;

use super::answer::Service;
use super::conn::{Conn, Fate};
use crate::Process;

/// Sends the pieces one after the other to a connection of the server and answers everything that it said.
pub fn converse(process: &Arc<dyn Process>, pieces: &[Vec<u8>]) -> Vec<u8> {
    let (mut client, server) = UnixStream::pair().expect("a socket pair");
    client.set_nonblocking(true).expect("non-blocking");
    server.set_nonblocking(true).expect("non-blocking");
    let service = Service {
        process: Arc::clone(process),
        allow_set: true,
    };
    let now = Instant::now();
    let mut conn = Conn::new(server.into(), now);
    let mut said = Vec::new();
    let mut fate = Fate::Keep;
    for piece in pieces {
        // A full socket takes the rest of a piece never: the server is then known to hold us back.
        let _ = client.write(piece);
        for _ in 0..8 {
            if fate == Fate::Keep {
                fate = conn.turn(PollFlags::IN | PollFlags::OUT, &service, now, false);
            }
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = client.read(&mut chunk) {
                said.extend_from_slice(&chunk[..n]);
            }
        }
        if fate == Fate::Close {
            break;
        }
    }
    conn.close(&service);
    said
}
