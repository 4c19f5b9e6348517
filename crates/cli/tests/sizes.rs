//! The full-screen view of the real command in terminals of several sizes, with many queues and names that are hard to
//! draw, looking at a real program.

#[path = "support/many_queues.rs"]
mod many_queues;
mod support;
#[path = "support/terminal.rs"]
mod terminal;

use many_queues::{HARD, PLAIN};
use support::Served;
use terminal::Terminal;

/// Not a test of its own: the program that the tests serve, when they start this binary again.
#[test]
fn served() {
    many_queues::served_program();
}

/// What must hold in any size: the frames are whole, and their right side is the last column, whatever the names are. Waits
/// for it, since a picture may be read while it is drawn.
fn frames_are_whole(t: &Terminal, columns: u16) {
    t.until("whole frames", |_| are_whole(&t.cells(), columns));
}

fn are_whole(cells: &[Vec<String>], columns: u16) -> bool {
    let last = usize::from(columns) - 1;
    let mut open = false;
    let whole = cells.iter().all(|line| {
        let (left, right) = (line[0].as_str(), line[last].as_str());
        match left {
            "┌" => !std::mem::replace(&mut open, true) && right == "┐",
            "└" => std::mem::replace(&mut open, false) && right == "┘",
            "│" => open && right == "│",
            _ => !open,
        }
    });
    whole && !open
}

#[test]
fn every_size_shows_what_matters() {
    let served = Served::start("many", false);
    for (columns, rows) in [(80, 24), (40, 12), (200, 60), (24, 8)] {
        let args = ["monitor", "many", "-i", "0.2"];
        let Some(mut t) = Terminal::of_size(columns, rows, &served, &args) else {
            return;
        };
        let total = format!("{} workqueues", PLAIN + HARD.len() + 1);
        let text = t.until("queues", |s| s.contains("ingest") && s.contains(&total));
        frames_are_whole(&t, columns);
        assert!(text.contains("q quit"), "{columns}x{rows}:\n{text}");
        assert_eq!(
            text.contains("machine, pods"),
            rows >= 20,
            "the machine is drawn where there is room for it:\n{text}"
        );
        // The end of the list, where the hard names are.
        t.press("G");
        t.until("the last queue", |s| s.contains("launch"));
        frames_are_whole(&t, columns);
        // Open one that runs something, found by its name.
        t.press("g/日志\r\r");
        t.until("it is open", |s| s.contains("写入") && s.contains("items"));
        if columns >= 40 {
            t.until("the item", |s| s.contains("scan_all"));
        }
        frames_are_whole(&t, columns);
        t.press("q?");
        t.until("help", |s| s.contains("keys"));
        frames_are_whole(&t, columns);
        t.press("qq");
        assert!(t.end().success());
    }
}

#[test]
fn a_window_that_changes_its_size_is_drawn_anew() {
    let served = Served::start("many", false);
    let args = ["monitor", "many", "-i", "0.2"];
    let Some(mut t) = Terminal::of_size(80, 24, &served, &args) else {
        return;
    };
    t.until("queues", |s| s.contains("naïve"));
    for (columns, rows) in [(200, 60), (40, 12), (6, 3), (120, 40)] {
        t.resize(columns, rows);
        // From the last column of the last frame one sees that all of it was drawn.
        let last = usize::from(columns) - 1;
        t.until("the new size", |_| {
            let cells = t.cells();
            let corner = |c: &str| cells.iter().any(|line| line[last] == c);
            columns < 10 || (corner("┐") && corner("┘"))
        });
        if columns >= 40 {
            t.until("queues", |s| s.contains("naïve"));
            frames_are_whole(&t, columns);
        }
    }
    t.press("q");
    assert!(t.end().success());
}

#[test]
fn a_process_that_was_stopped_comes_back() {
    let served = Served::start("many", false);
    let Some(mut t) = Terminal::open(&served, &["monitor", "many", "-i", "0.2"]) else {
        return;
    };
    t.until("queues", |s| s.contains("naïve"));
    served.signal(rustix::process::Signal::STOP);
    t.until("that it is silent", |s| s.contains("does not answer"));
    served.signal(rustix::process::Signal::CONT);
    t.until("it is there again", |s| {
        s.contains("q quit") && !s.contains("does not answer")
    });
    t.press("q");
    assert!(t.end().success());
}
