//! The columns of the table of queues: which ones fit, and what stands in them.

use cmwq_control::advise::human_ns;
use ratatui::layout::Alignment;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::super::live::human_rate;
use super::app::App;
use super::rows::{Row, SortBy};

/// Width of a sparkline.
const SPARK: usize = 15;

/// A column: its heading, the order that it stands for, its width, how soon it is given up where there is little room (the
/// highest first; 0: never), and what it shows.
pub(super) type Column = (
    &'static str,
    Option<SortBy>,
    u16,
    u16,
    fn(&App, &Row) -> String,
);

/// The least that is left for a queue's name before columns are given up.
const NAME: u16 = 20;
/// The least that is left for it in any terminal.
const LEAST_NAME: u16 = 10;

/// The columns that fit into so much room beside a name.
pub(super) fn columns(room: u16) -> Vec<&'static Column> {
    let mut all: Vec<&Column> = COLUMNS.iter().collect();
    let width = |all: &[&Column]| NAME + all.iter().map(|c| c.2 + 1).sum::<u16>();
    while width(&all) > room {
        let Some(least) = (0..all.len()).max_by_key(|&i| all[i].3) else {
            break;
        };
        if all[least].3 == 0 {
            break;
        }
        all.remove(least);
    }
    // A table without names is of no use at all.
    while LEAST_NAME + all.iter().map(|c| c.2 + 1).sum::<u16>() > room && all.pop().is_some() {}
    all
}

/// A name in so much room: its end tells queues apart better than its beginning. Without what joins letters or is drawn
/// nowhere, about whose width terminals disagree.
pub(super) fn fitted(name: &str, room: usize) -> String {
    let zero = |c: char| c.width().unwrap_or(0) == 0 && !c.is_control();
    let drawn: String = name.chars().filter(|c| !zero(*c)).collect();
    if drawn.width() <= room {
        return drawn;
    }
    let mut tail: Vec<char> = Vec::new();
    let mut width = 1;
    for c in drawn.chars().rev() {
        width += c.width().unwrap_or(1);
        if width > room {
            break;
        }
        tail.push(c);
    }
    std::iter::once('…').chain(tail.into_iter().rev()).collect()
}

fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.0}"))
}

fn time(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), human_ns)
}

pub(super) const COLUMNS: &[Column] = &[
    ("KIND", None, 9, 5, |_, r| r.kind.into()),
    ("ACT/MAX", Some(SortBy::Active), 9, 0, |_, r| {
        format!("{}/{}", r.active, r.max_active)
    }),
    ("WAITING", Some(SortBy::Waiting), 7, 0, |_, r| {
        r.waiting.to_string()
    }),
    ("ITEMS/S", Some(SortBy::Rate), 7, 0, |_, r| {
        human_rate(r.per_second)
    }),
    ("CPU%", Some(SortBy::Cpu), 6, 2, |_, r| {
        format!("{:.1}", r.cpu)
    }),
    ("LOCL%", None, 5, 6, |_, r| share(r.local)),
    ("HELP%", None, 5, 7, |_, r| share(r.helped)),
    ("ITSV", None, 5, 8, |_, r| r.intensive.to_string()),
    ("CMW/RPR", None, 7, 9, |_, r| r.cmw_rpr.to_string()),
    ("P50", None, 8, 4, |_, r| time(r.p50)),
    ("P99", Some(SortBy::P99), 8, 1, |_, r| time(r.p99)),
    ("P99 HISTORY", None, SPARK as u16, 3, |app, r| {
        app.history.sparkline(r.id, SPARK)
    }),
];

/// Figures to the right, so that they can be compared; words and drawings to the left.
pub(super) fn side(title: &str) -> Alignment {
    match title {
        "WORKQUEUE" | "KIND" | "P99 HISTORY" => Alignment::Left,
        _ => Alignment::Right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_given_up_by_need_and_never_torn() {
        for width in 1..300 {
            let shown = columns(width);
            let taken: u16 = shown.iter().map(|c| c.2 + 1).sum();
            let least = shown.iter().all(|c| c.3 == 0);
            let name = if least { LEAST_NAME } else { NAME };
            assert!(taken + name <= width || shown.is_empty(), "{width}");
        }
        let titles = |width| columns(width).iter().map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(titles(38), ["ACT/MAX", "WAITING", "ITEMS/S"]);
        assert_eq!(
            titles(78),
            [
                "ACT/MAX",
                "WAITING",
                "ITEMS/S",
                "CPU%",
                "P99",
                "P99 HISTORY"
            ]
        );
        assert_eq!(titles(200).len(), COLUMNS.len());
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(fitted("abcdef", 6), "abcdef");
        assert_eq!(fitted("abcdef", 4), "…def");
        assert_eq!(fitted("写入队列", 6), "…队列");
        assert_eq!(fitted("写入队列", 5), "…队列");
        assert_eq!(fitted("e\u{301}\u{200d}x", 5), "ex");
        assert_eq!(fitted("abc", 0), "…");
    }
}
