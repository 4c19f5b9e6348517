//! The full-screen view of the real command in terminals of several sizes, with many queues and names that are hard to
//! draw, looking at a real program.

#[path = "support/many_queues.rs"]
mod many_queues;
mod support;
#[path = "support/terminal.rs"]
mod terminal;

use many_queues::{HARD, PLAIN};
use support::Served;
use terminal::{Terminal, resize};

/// Not a test of its own: the program that the tests serve, when they start this binary again.
#[test]
fn served() {
    many_queues::served_program();
}
