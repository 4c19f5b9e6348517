//! The state of the full-screen view and what keys do to it. Draws nothing, waits for nothing.

use cmwq_control::snapshot::Snapshot;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use regex::Regex;

use super::rows::{History, Row, SortBy, rows, sort};
use super::wanted;

/// What is on the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// All queues, and the machine.
    Queues,
    /// One queue: its number and name.
    Queue(u32, String),
    /// What the keys do.
    Help,
}

pub(super) struct App {
    pub(super) view: View,
    pub(super) now: Option<Snapshot>,
    pub(super) before: Option<Snapshot>,
    pub(super) history: History,
    /// The rows shown, filtered and sorted.
    pub(super) rows: Vec<Row>,
    pub(super) selected: usize,
    pub(super) sort: SortBy,
    pub(super) reverse: bool,
    pub(super) paused: bool,
    pub(super) show_machine: bool,
    /// The filter being typed, or in force.
    pub(super) filter: String,
    pub(super) typing: bool,
    /// What the last look met, if it failed.
    pub(super) trouble: Option<String>,
    patterns: Vec<Regex>,
    filter_regex: Option<Regex>,
}

impl App {
    pub(super) fn new(patterns: Vec<Regex>) -> Self {
        App {
            view: View::Queues,
            now: None,
            before: None,
            history: History::default(),
            rows: Vec::new(),
            selected: 0,
            sort: SortBy::Name,
            reverse: false,
            paused: false,
            show_machine: true,
            filter: String::new(),
            typing: false,
            trouble: None,
            patterns,
            filter_regex: None,
        }
    }

    /// A new sample arrived.
    pub(super) fn sample(&mut self, sample: Result<Snapshot, String>) {
        match sample {
            Ok(snapshot) => {
                self.trouble = None;
                if !self.paused {
                    self.before = self.now.replace(snapshot);
                    if let Some(now) = &self.now {
                        self.history.push(&rows(now, self.before.as_ref()));
                    }
                    self.arrange();
                }
            }
            Err(e) => self.trouble = Some(e),
        }
    }

    /// Filters and sorts; the selection stays on its queue.
    fn arrange(&mut self) {
        let chosen = self.selected_row().map(|r| r.id);
        let Some(now) = &self.now else { return };
        let mut all = rows(now, self.before.as_ref());
        all.retain(|r| {
            wanted(&self.patterns, &r.name)
                && self
                    .filter_regex
                    .as_ref()
                    .is_none_or(|f| f.is_match(&r.name))
        });
        sort(&mut all, self.sort, self.reverse);
        self.rows = all;
        let again = chosen.and_then(|id| self.rows.iter().position(|r| r.id == id));
        self.selected = again
            .unwrap_or(self.selected)
            .min(self.rows.len().saturating_sub(1));
    }

    pub(super) fn selected_row(&self) -> Option<&Row> {
        self.rows.get(self.selected)
    }

    /// Whether the next look needs items: only while a queue is open.
    pub(super) fn wants_items(&self) -> bool {
        matches!(self.view, View::Queue(..))
    }

    /// A key; false when the user leaves.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return false;
        }
        if self.typing {
            self.type_filter(key.code);
            return true;
        }
        match (&self.view, key.code) {
            (View::Queues, KeyCode::Char('q') | KeyCode::Esc)
                if self.filter.is_empty() || key.code != KeyCode::Esc =>
            {
                return false;
            }
            (View::Queues, KeyCode::Esc) => self.set_filter(String::new()),
            (_, KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Left) => {
                self.view = View::Queues
            }
            (View::Queues, KeyCode::Enter | KeyCode::Right) => {
                if let Some(row) = self.selected_row() {
                    self.view = View::Queue(row.id, row.name.clone());
                }
            }
            (_, KeyCode::Char('?' | 'h') | KeyCode::F(1)) => self.view = View::Help,
            (_, KeyCode::Char('p' | ' ')) => self.paused = !self.paused,
            (View::Queues, KeyCode::Char('/')) => self.typing = true,
            (View::Queues, KeyCode::Char('s')) => {
                self.sort = self.sort.next();
                self.arrange();
            }
            (View::Queues, KeyCode::Char('r')) => {
                self.reverse = !self.reverse;
                self.arrange();
            }
            (View::Queues, KeyCode::Char('m')) => self.show_machine = !self.show_machine,
            (View::Queues | View::Queue(..), KeyCode::Up | KeyCode::Char('k')) => self.go(-1),
            (View::Queues | View::Queue(..), KeyCode::Down | KeyCode::Char('j')) => self.go(1),
            (View::Queues, KeyCode::PageUp) => self.go(-10),
            (View::Queues, KeyCode::PageDown) => self.go(10),
            (View::Queues, KeyCode::Home | KeyCode::Char('g')) => self.go(isize::MIN),
            (View::Queues, KeyCode::End | KeyCode::Char('G')) => self.go(isize::MAX),
            _ => {}
        }
        true
    }

    fn go(&mut self, by: isize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
        if let (View::Queue(..), Some(row)) = (&self.view, self.rows.get(self.selected)) {
            self.view = View::Queue(row.id, row.name.clone());
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.set_filter(String::new());
            }
            KeyCode::Backspace => {
                let mut text = self.filter.clone();
                text.pop();
                self.set_filter(text);
            }
            KeyCode::Char(c) if self.filter.chars().count() < 64 => {
                let mut text = self.filter.clone();
                text.push(c);
                self.set_filter(text);
            }
            _ => {}
        }
    }

    /// A filter that is no regular expression (yet) is taken as plain text.
    fn set_filter(&mut self, text: String) {
        self.filter_regex = match text.as_str() {
            "" => None,
            text => Regex::new(text)
                .or_else(|_| Regex::new(&regex::escape(text)))
                .ok(),
        };
        self.filter = text;
        self.arrange();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use cmwq_control::snapshot::WorkqueueSnapshot;

    use super::*;

    pub(in super::super) fn sample(names: &[&str]) -> Snapshot {
        let queue = |(i, name): (usize, &&str)| {
            let mut q = WorkqueueSnapshot {
                id: i as u32,
                name: (*name).into(),
                ..Default::default()
            };
            q.pending.total = i as u64;
            q
        };
        Snapshot {
            workqueues: names.iter().enumerate().map(queue).collect(),
            ..Default::default()
        }
    }

    fn press(app: &mut App, keys: &str) -> bool {
        let mut stays = true;
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '\u{8}' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            stays = app.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        stays
    }

    fn names(app: &App) -> String {
        app.rows
            .iter()
            .map(|r| r.name.as_str())
            .collect::<Vec<_>>()
            .join(" ")
    }

    fn app() -> App {
        let mut app = App::new(Vec::new());
        app.sample(Ok(sample(&["gamma", "alpha", "beta"])));
        app
    }

    #[test]
    fn sorting_keeps_the_selection_on_its_queue() {
        let mut app = app();
        assert_eq!(names(&app), "alpha beta gamma");
        press(&mut app, "j");
        assert_eq!(app.selected_row().unwrap().name, "beta");
        press(&mut app, "ss");
        assert_eq!(app.sort, SortBy::Waiting);
        assert_eq!(names(&app), "beta alpha gamma");
        assert_eq!(app.selected_row().unwrap().name, "beta");
        press(&mut app, "r");
        assert_eq!(names(&app), "gamma alpha beta");
    }

    #[test]
    fn filtering_by_text_and_by_regex() {
        let mut app = app();
        press(&mut app, "/^al");
        assert!(app.typing);
        assert_eq!(names(&app), "alpha");
        press(&mut app, "\u{8}\u{8}\u{8}(");
        assert_eq!(names(&app), "", "an unfinished expression is plain text");
        press(&mut app, "\u{8}eta\nq");
        assert!(!app.typing && names(&app) == "beta");
        assert!(
            press(&mut app, "\u{1b}"),
            "the first Esc takes the filter away"
        );
        assert_eq!(names(&app), "alpha beta gamma");
        assert!(!press(&mut app, "\u{1b}"), "the second leaves");
    }

    #[test]
    fn opening_and_closing_a_queue() {
        let mut app = app();
        press(&mut app, "jj\n");
        assert_eq!(app.view, View::Queue(0, "gamma".into()));
        assert!(app.wants_items());
        press(&mut app, "k");
        assert_eq!(app.view, View::Queue(2, "beta".into()));
        assert!(press(&mut app, "q"), "q closes the queue");
        assert_eq!(app.view, View::Queues);
        assert!(!press(&mut app, "q"), "and then leaves");
    }

    #[test]
    fn a_pause_keeps_the_picture_and_trouble_is_kept_apart() {
        let mut app = app();
        press(&mut app, "p");
        app.sample(Ok(sample(&["new"])));
        assert_eq!(names(&app), "alpha beta gamma");
        app.sample(Err("gone".into()));
        assert_eq!(app.trouble.as_deref(), Some("gone"));
        press(&mut app, "p");
        app.sample(Ok(sample(&["new"])));
        assert_eq!(
            (names(&app).as_str(), app.trouble.is_none(), app.selected),
            ("new", true, 0)
        );
    }

    #[test]
    fn keys_without_data_do_no_harm() {
        let mut app = App::new(Vec::new());
        assert!(press(&mut app, "jkgG\nsr/x\nmp?"));
        assert_eq!(app.view, View::Help);
    }
}
