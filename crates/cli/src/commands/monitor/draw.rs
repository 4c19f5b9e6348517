//! Draws the full-screen view.

use std::collections::BTreeSet;

use cmwq_control::advise::human_ns;
use cmwq_control::histogram::{HistogramSnapshot, bucket_bounds};
use cmwq_control::snapshot::{ItemList, Snapshot, WorkqueueSnapshot};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row as TableRow, Table, TableState, Wrap};
use unicode_width::UnicodeWidthStr;

use super::super::dump::function;
use super::super::live::human_span;
use super::app::{App, View};
use super::columns::{columns, fitted, side};
use super::machine::{self, PodLoad};
use super::rows::{SortBy, interval};

/// Width of the drawing of the machine.
const MACHINE: u16 = 44;
/// Below this width the drawing goes under the table.
const WIDE: u16 = 168;
pub(super) fn draw(frame: &mut Frame, app: &App) {
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    header(frame, head, app);
    match (&app.view, &app.now) {
        (View::Help, _) => help(frame, body),
        (_, None) => frame.render_widget(Paragraph::new("waiting for the process ..."), body),
        (View::Queues, Some(now)) => overview(frame, body, app, now),
        (View::Queue(id, name), Some(now)) => match now
            .workqueues
            .iter()
            .find(|q| q.id == *id && q.name == *name)
        {
            Some(q) => queue(frame, body, app, q),
            None => frame.render_widget(
                Paragraph::new(format!("the workqueue {name} is gone")),
                body,
            ),
        },
    }
    footer(frame, foot, app);
}

fn header(frame: &mut Frame, area: Rect, app: &App) {
    let Some(s) = &app.now else { return };
    let p = &s.process;
    let up = human_span(s.clock.unix_ms.saturating_sub(p.started_unix_ms) / 1000);
    let mut first = vec![
        Span::from(format!("{} ", p.name)).bold(),
        Span::from(format!("pid {}  cmwq {}  up {up}  ", p.pid, p.version)),
        Span::from(if p.allow_set {
            "changes allowed"
        } else {
            "read-only"
        }),
    ];
    if app.paused {
        first.push(Span::from("  PAUSED").fg(Color::Yellow));
    }
    let quota = s
        .cpu
        .quota
        .as_ref()
        .map_or_else(String::new, |q| format!(" quota {:.2}", q.cpus));
    let stalled = s.pools.iter().filter(|p| p.stalled_ns.is_some()).count();
    let mut second = vec![Span::from(format!(
        "{} workers (ceiling {}), {} pools, CPUs {}{quota}",
        s.threads.workers,
        s.threads.ceiling,
        s.pools.len(),
        s.cpu.usable
    ))];
    if stalled > 0 {
        second.push(
            Span::from(format!("  {stalled} STALLED"))
                .fg(Color::Red)
                .bold(),
        );
    }
    frame.render_widget(
        Paragraph::new(vec![Line::from(first), Line::from(second)]),
        area,
    );
}

fn footer(frame: &mut Frame, area: Rect, app: &App) {
    let text = if let Some(trouble) = &app.trouble {
        Line::from(trouble.clone()).fg(Color::Red)
    } else if app.typing {
        Line::from(format!("/{}_", app.filter)).fg(Color::Yellow)
    } else {
        let filter = if app.filter.is_empty() {
            String::new()
        } else {
            format!("  filter: {}", app.filter)
        };
        let order = if app.reverse { ", reversed" } else { "" };
        let keys = keys(usize::from(area.width), app.sort.title(), order, &filter);
        Line::from(keys).add_modifier(Modifier::DIM)
    };
    frame.render_widget(Paragraph::new(text), area);
}

/// As many keys as fit, the most needed ones longest.
fn keys(room: usize, sort: &str, order: &str, filter: &str) -> String {
    let sort = format!("s sort ({sort}{order})");
    // In the order in which they are given up, from the last.
    let by_need = [
        "q quit",
        "? help",
        "enter open",
        "/ filter",
        &sort,
        "m machine",
        "p pause",
        "r reverse",
    ];
    let shown = [
        "q quit",
        "enter open",
        &sort,
        "r reverse",
        "/ filter",
        "m machine",
        "p pause",
        "? help",
    ];
    (1..=by_need.len())
        .rev()
        .map(|n| {
            let fit = shown.iter().filter(|key| by_need[..n].contains(key));
            fit.copied().collect::<Vec<_>>().join("  ") + filter
        })
        .find(|text| text.width() <= room)
        .unwrap_or_default()
}

fn overview(frame: &mut Frame, area: Rect, app: &App, now: &Snapshot) {
    if !app.show_machine {
        return table(frame, area, app);
    }
    let loads = machine::pods(now);
    let [queues, drawing] = if area.width >= WIDE {
        Layout::horizontal([Constraint::Min(60), Constraint::Length(MACHINE)]).areas(area)
    } else {
        // The queues are what one looks for: where there is little room, it is theirs.
        if area.height < 14 {
            return table(frame, area, app);
        }
        let nodes: BTreeSet<_> = loads.iter().map(|l| l.node).collect();
        let height = ((loads.len() + nodes.len() + 2) as u16).min(area.height / 2);
        Layout::vertical([Constraint::Min(3), Constraint::Length(height)]).areas(area)
    };
    table(frame, queues, app);
    drawing_of(frame, drawing, &loads, now);
}

fn table(frame: &mut Frame, area: Rect, app: &App) {
    let room = area.width.saturating_sub(2);
    let columns = columns(room);
    let taken: u16 = columns.iter().map(|c| c.2 + 1).sum();
    let name_room = usize::from(room.saturating_sub(taken).max(1));
    let heading = |title: &'static str, by: Option<SortBy>| {
        let style = if by == Some(app.sort) {
            Style::new().bold().underlined()
        } else {
            Style::new().bold()
        };
        Cell::from(Line::from(title).alignment(side(title))).style(style)
    };
    let head = std::iter::once(heading("WORKQUEUE", Some(SortBy::Name)));
    let head = TableRow::new(head.chain(columns.iter().map(|c| heading(c.0, c.1))));
    let rows = app.rows.iter().map(|r| {
        let full = r.waiting > 0 && r.active >= r.max_active;
        let style = if full {
            Style::new().fg(Color::Yellow)
        } else {
            Style::new()
        };
        let name = Cell::from(fitted(&r.name, name_room));
        let cells = columns
            .iter()
            .map(|c| Cell::from(Line::from(c.4(app, r)).alignment(side(c.0))));
        TableRow::new(std::iter::once(name).chain(cells)).style(style)
    });
    let widths = std::iter::once(Constraint::Length(name_room as u16))
        .chain(columns.iter().map(|c| Constraint::Length(c.2)));
    let title = if app.filter.is_empty() {
        format!(" {} workqueues ", app.rows.len())
    } else {
        format!(" {} workqueues match {} ", app.rows.len(), app.filter)
    };
    let table = Table::new(rows, widths)
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(title));
    let mut state =
        TableState::default().with_selected((!app.rows.is_empty()).then_some(app.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

fn colour(load: &PodLoad) -> Color {
    match load {
        l if l.stalled => Color::Red,
        l if l.waiting > 0 && l.load() >= 1.0 => Color::Yellow,
        l if l.running > 0 => Color::Green,
        _ => Color::DarkGray,
    }
}

fn drawing_of(frame: &mut Frame, area: Rect, loads: &[PodLoad], now: &Snapshot) {
    let mut lines: Vec<Line> = Vec::new();
    let mut node = None;
    for load in loads {
        if node != Some(load.node) {
            node = Some(load.node);
            let name = load
                .node
                .map_or_else(|| "no node".into(), |n| format!("node {n}"));
            lines.push(Line::from(name).bold());
        }
        let cells = machine::cells(load);
        // Many CPUs: the bar says it all.
        let cells = if cells.chars().count() <= 16 {
            cells
        } else {
            String::new()
        };
        let mut text = vec![
            Span::from(format!(" {:<9}", load.cpus.to_string())),
            Span::from(machine::bar(load.load(), 10)).fg(colour(load)),
            Span::from(format!(" {}/{} ", load.running, load.capacity)),
            Span::from(cells).fg(colour(load)),
        ];
        if load.waiting > 0 {
            text.push(Span::from(format!(" +{}", load.waiting)).fg(Color::Yellow));
        }
        if load.blocked > 0 {
            text.push(Span::from(format!(" {} blocked", load.blocked)).fg(Color::Magenta));
        }
        if load.stalled {
            text.push(Span::from(" STALLED").fg(Color::Red).bold());
        }
        lines.push(Line::from(text));
    }
    let room = usize::from(area.height.saturating_sub(2));
    if lines.len() > room && room > 0 {
        let hidden = lines.len() - (room - 1);
        lines.truncate(room - 1);
        lines.push(Line::from(format!(" ... {hidden} more lines")).add_modifier(Modifier::DIM));
    }
    let title = format!(" machine, pods of scope {} ", now.topology.default_scope);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(title)),
        area,
    );
}

fn queue(frame: &mut Frame, area: Rect, app: &App, q: &WorkqueueSnapshot) {
    let facts = facts_of(q, usize::from(area.width.saturating_sub(2)));
    // Where there is little room: first what runs and waits, then the facts, then the histograms.
    let items_need = 6.min(area.height);
    let facts_need = (facts.len() as u16 + 2).min(area.height - items_need);
    let [top, middle, items] = Layout::vertical([
        Constraint::Length(facts_need),
        Constraint::Min(0),
        Constraint::Length(items_need),
    ])
    .areas(area);
    let name = fitted(&q.name, usize::from(area.width.saturating_sub(4)));
    frame.render_widget(
        Paragraph::new(facts).block(Block::bordered().title(format!(" {name} "))),
        top,
    );
    let [left, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
    let over = interval(q, app.before.as_ref());
    histogram(
        frame,
        left,
        "queue to start",
        &over.queue_to_start,
        &q.queue_to_start,
    );
    histogram(frame, right, "run time", &over.run_time, &q.run_time);
    let room = usize::from(items.width.saturating_sub(2));
    // Somewhere the name must be.
    let title = if top.height > 0 {
        " items ".to_owned()
    } else {
        format!(" items of {name} ")
    };
    let lines = [
        ("in flight", &q.in_flight),
        ("pending", &q.pending),
        ("inactive", &q.inactive),
    ]
    .map(|(name, list)| Line::from(items_of(name, list, room)));
    let delayed = Line::from(format!("delayed    {}", q.delayed));
    let text: Vec<Line> = lines.into_iter().chain([delayed]).collect();
    frame.render_widget(
        Paragraph::new(text).block(Block::bordered().title(title)),
        items,
    );
}

/// Groups of facts, each on as few lines as fit into the width.
fn facts_of(q: &WorkqueueSnapshot, width: usize) -> Vec<Line<'static>> {
    let (a, c) = (&q.attrs, &q.counters);
    let flags: Vec<&str> = q.flags.names().collect();
    let scope = cmwq_control::attr::format_scope(&a.affinity_scope, &a.effective_scope);
    let nodes: Vec<String> = q
        .nodes
        .iter()
        .map(|n| {
            let node = n.node.map_or_else(|| "dfl".into(), |n| n.to_string());
            format!("{node}:{}/{}", n.nr, n.max)
        })
        .collect();
    let or = |text: String, none: &str| if text.is_empty() { none.into() } else { text };
    let groups = [
        vec![
            q.kind.as_str().to_owned(),
            format!("active {}/{}", q.nr_active, q.max_active),
            format!("min_active {}", q.min_active),
            format!("nice {}", a.nice),
            format!("flags {}", or(flags.join(","), "none")),
        ],
        vec![
            format!("affinity_scope {scope}"),
            format!("strict {}", u8::from(a.affinity_strict)),
            format!("localize {}", u8::from(a.localize)),
            format!("CPUs {}", a.effective_cpumask),
            format!("nodes {}", or(nodes.join(" "), "-")),
        ],
        [
            ("queued", c.queued),
            ("started", c.started),
            ("completed", c.completed),
            ("cancelled", c.cancelled),
            ("panicked", c.panicked),
            ("refused", c.refused),
            ("throttled", c.throttled),
        ]
        .map(counter)
        .to_vec(),
        std::iter::once(format!("CPU {:.1} s", c.cpu_time_ns as f64 / 1e9))
            .chain(
                [
                    ("local", c.cpu_local),
                    ("intensive", c.cpu_intensive),
                    ("helped", c.helped),
                    ("hedged", c.hedged),
                    ("widened", c.widened),
                    ("inline", c.inline_run),
                ]
                .map(counter),
            )
            .collect(),
        [
            ("CM wake-ups", c.cm_wakeup),
            ("repatriated", c.repatriated),
            ("mayday", c.mayday),
            ("rescued", c.rescued),
            ("stalls", c.stalls),
            ("peak active", c.peak_active),
            ("peak waiting", c.peak_waiting),
        ]
        .map(counter)
        .to_vec(),
    ];
    groups
        .iter()
        .flat_map(|parts| flow(parts, width))
        .map(Line::from)
        .collect()
}

fn counter((name, n): (&str, u64)) -> String {
    format!("{name} {n}")
}

/// Parts one after the other, on as many lines as the width makes it; none is torn.
fn flow(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.width() + 2 + part.width() <= width => {
                line.push_str("  ");
                line.push_str(part);
            }
            _ => lines.push(part.clone()),
        }
    }
    lines
}

/// The last interval as bars, one for each doubling; figures of the last interval and of the whole life above.
fn histogram(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    last: &HistogramSnapshot,
    all: &HistogramSnapshot,
) {
    let line = |name: &str, h: &HistogramSnapshot| {
        let q = |q| h.quantile_ns(q).map_or_else(|| "-".to_owned(), human_ns);
        let parts = [
            format!("{name} n {}", h.total()),
            format!("p50 {}", q(0.5)),
            format!("p90 {}", q(0.9)),
            format!("p99 {}", q(0.99)),
            format!("p99.9 {}", q(0.999)),
        ];
        flow(&parts, usize::from(area.width.saturating_sub(2)))
    };
    let mut lines: Vec<Line> = [line("now ", last), line("life", all)]
        .concat()
        .into_iter()
        .map(Line::from)
        .collect();
    let mut octaves: Vec<(u32, u64)> = Vec::new();
    for &(i, n) in &last.buckets {
        let k = bucket_bounds(i as usize).0.max(1).ilog2();
        match octaves.last_mut() {
            Some((last, sum)) if *last == k => *sum += n,
            _ => octaves.push((k, n)),
        }
    }
    let most = octaves.iter().map(|o| o.1).max().unwrap_or(1).max(1);
    let width = usize::from(area.width.saturating_sub(24)).max(4);
    for (k, n) in octaves {
        let length = (n as f64 / most as f64 * width as f64).ceil() as usize;
        lines.push(Line::from(vec![
            Span::from(format!("{:>9} ", human_ns((1_u64 << k) as f64))),
            Span::from("█".repeat(length)).fg(Color::Cyan),
            Span::from(format!(" {n}")),
        ]));
    }
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(format!(" {title} "))),
        area,
    );
}

fn items_of(name: &str, list: &ItemList, room: usize) -> String {
    let mut text = format!("{name:<10} {}", list.total);
    for item in &list.items {
        if item.barrier {
            let next = format!(" <- {}", function(item));
            if text.width() + next.width() <= room {
                text += &next;
            }
            continue;
        }
        let times = if item.count > 1 {
            format!("{}*", item.count)
        } else {
            String::new()
        };
        let by = item.tid.map_or_else(String::new, |t| format!("{t}:"));
        let next = format!(
            "  {by}{times}{} {}",
            item.func,
            human_ns(item.age_ns as f64)
        );
        if text.width() + next.width() + 4 > room {
            text.push_str(" ...");
            break;
        }
        text += &next;
    }
    text
}

fn help(frame: &mut Frame, area: Rect) {
    let keys = [
        (
            "up, down, j, k",
            "select a workqueue (page up/down, home, end)",
        ),
        (
            "enter, right",
            "open it: attributes, counters, histograms, items",
        ),
        ("esc, left, q", "back; leave"),
        (
            "s",
            "sort by the next column: name, active, waiting, items/s, CPU, p99",
        ),
        ("r", "reverse the order"),
        ("/", "show only names that match a regular expression"),
        ("m", "show or hide the machine"),
        ("p, space", "pause"),
    ];
    let mut lines: Vec<Line> = keys
        .iter()
        .map(|(key, does)| {
            Line::from(vec![
                Span::from(format!("{key:<16}")).bold(),
                Span::from(*does),
            ])
        })
        .collect();
    lines.push(Line::default());
    for text in [
        "The machine: one line a pod of the default scope: its CPUs, load (running workers of its CPUs),",
        "one mark a CPU (· idle, ■ one worker, ▓ several), +n items waiting, blocked workers.",
        "Yellow: full and work waits. Red: stalled.",
        "LOCL%: items started on the issuing CPU. HELP%: items run by another pod. ITSV: CPU-intensive items.",
        "CMW/RPR: concurrency-management wake-ups (per-CPU) or repatriated workers (unbound). P50, P99: queue to start.",
    ] {
        lines.push(Line::from(text));
    }
    frame.render_widget(
        Paragraph::new(lines)
            .wrap(Wrap { trim: false })
            .block(Block::bordered().title(" keys ")),
        area,
    );
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::super::super::dump;
    use super::*;

    fn screen(app: &App, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        terminal.backend().to_string()
    }

    fn app() -> App {
        let mut app = App::new(Vec::new());
        app.sample(Ok(dump::tests::sample()));
        app
    }

    #[test]
    fn the_overview_has_queues_and_the_machine() {
        let text = screen(&app(), 160, 30);
        for part in [
            "sample",
            "journal",
            "ticks",
            "machine, pods of scope cache",
            "node 0",
            "node 1",
            "3 workqueues",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn an_open_queue_shows_attributes_and_items() {
        let mut app = app();
        app.key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
        app.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE));
        let text = screen(&app, 140, 40);
        for part in [
            "queue to start",
            "run time",
            "4711:f",
            "3*g",
            "min_active 8",
            "mem_reclaim",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn every_size_can_be_drawn() {
        let mut app = app();
        for view in [
            View::Queues,
            View::Queue(0, "q".into()),
            View::Queue(9, "gone".into()),
            View::Help,
        ] {
            app.view = view;
            for (w, h) in [(1, 1), (2, 3), (20, 5), (80, 24), (131, 7), (300, 90)] {
                screen(&app, w, h);
            }
        }
        screen(&App::new(Vec::new()), 80, 24);
    }

    #[test]
    fn keys_are_given_up_by_need() {
        assert!(keys(200, "name", "", "").contains("r reverse"));
        let narrow = keys(36, "name", "", "");
        assert_eq!(narrow, "q quit  enter open  / filter  ? help");
        assert_eq!(keys(3, "name", "", ""), "");
    }

    #[test]
    fn trouble_is_said() {
        let mut app = app();
        app.sample(Err("the process hung up".into()));
        assert!(screen(&app, 80, 24).contains("the process hung up"));
    }
}
