//! What the commands that talk to a live process share: which process, printing, text from a peer.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use cmwq_control::Label;
use cmwq_control::client::{Client, Directory};
use cmwq_control::snapshot::{Detail, Snapshot};

/// Where control sockets are looked for.
#[derive(clap::Args, Debug)]
pub(crate) struct Place {
    /// Directory of control sockets [default: $CMWQ_CONTROL_DIR, else $XDG_RUNTIME_DIR/cmwq]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

impl Place {
    pub(crate) fn open(&self) -> anyhow::Result<Directory> {
        Ok(Directory::open(self.dir.as_deref())?)
    }

    /// Connects to a process.
    pub(crate) fn connect(&self, who: &str) -> anyhow::Result<Client> {
        Ok(self.open()?.find(who)?)
    }
}

/// The process that a command is about.
#[derive(clap::Args, Debug)]
pub(crate) struct Whom {
    #[command(flatten)]
    pub(crate) place: Place,
    /// The process: a pid, a name (or the beginning of one), or the path of a control socket
    #[arg(value_name = "PID")]
    pub(crate) who: String,
}

impl Whom {
    pub(crate) fn connect(&self) -> anyhow::Result<Client> {
        self.place.connect(&self.who)
    }
}

/// A snapshot for people: control characters in names are taken out, so that a process cannot write to the terminal of
/// whoever looks at it.
pub(crate) fn snapshot(client: &mut Client, detail: Detail) -> anyhow::Result<Snapshot> {
    let mut snapshot = client.snapshot(detail)?;
    sanitize(&mut snapshot);
    Ok(snapshot)
}

/// Seconds as given on the command line.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is no number of seconds"))?;
    if !(0.0..=86_400.0).contains(&value) {
        return Err(format!("`{text}`: from 0 to 86400 seconds"));
    }
    Ok(Duration::from_secs_f64(value))
}

/// Runs `print` with buffered standard output. A reader that hangs up (`| head`) is no error.
pub(crate) fn to_stdout(
    print: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let result = print(&mut out).and_then(|()| out.flush().context("cannot write"));
    match result {
        Err(e) if is_broken_pipe(&e) => Ok(()),
        other => other,
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    to_stdout(|out| {
        serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
        writeln!(out)?;
        Ok(())
    })
}

/// A text without control characters.
pub(crate) fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

pub(crate) fn sanitize(s: &mut Snapshot) {
    fn string(text: &mut String) {
        if text.chars().any(char::is_control) {
            *text = clean(text);
        }
    }
    fn label(text: &mut Label) {
        if text.chars().any(char::is_control) {
            *text = clean(text).into();
        }
    }
    string(&mut s.process.name);
    string(&mut s.process.runtime);
    label(&mut s.process.version);
    label(&mut s.topology.default_scope);
    for scope in &mut s.topology.scopes {
        label(&mut scope.name);
    }
    if let Some(quota) = &mut s.cpu.quota {
        string(&mut quota.cgroup);
    }
    for pool in &mut s.pools {
        for count in pool.births.iter_mut().chain(&mut pool.deaths) {
            label(&mut count.reason);
        }
        for worker in &mut pool.worker_list {
            string(&mut worker.name);
            string(&mut worker.workqueue);
            label(&mut worker.func);
            label(&mut worker.blocked_on);
            string(&mut worker.description);
        }
    }
    for q in &mut s.workqueues {
        string(&mut q.name);
        label(&mut q.attrs.affinity_scope);
        label(&mut q.attrs.effective_scope);
        for list in [&mut q.in_flight, &mut q.pending, &mut q.inactive] {
            list.items.iter_mut().for_each(|item| label(&mut item.func));
        }
    }
    let d = &mut s.detection;
    for m in [&mut d.said, &mut d.sentinel, &mut d.tick, &mut d.records] {
        label(&mut m.reason);
    }
    string(&mut s.threads.last_failure);
    for count in s.threads.births.iter_mut().chain(&mut s.threads.deaths) {
        label(&mut count.reason);
    }
    for tunable in &mut s.tunables {
        label(&mut tunable.name);
        string(&mut tunable.value);
    }
    // Lists of CPUs are printed as they are; one that is no list is not printed at all.
    let lists = s
        .pools
        .iter_mut()
        .flat_map(|p| [&mut p.cpus, &mut p.pod_cpus]);
    let lists = lists.chain([
        &mut s.cpu.usable,
        &mut s.cpu.affinity_at_start,
        &mut s.cpu.cpuset,
    ]);
    let lists = lists.chain([
        &mut s.topology.possible,
        &mut s.topology.online,
        &mut s.topology.unbound_cpumask,
    ]);
    let lists = lists.chain(s.topology.nodes.iter_mut().map(|n| &mut n.cpus));
    let lists = lists.chain(
        s.topology
            .scopes
            .iter_mut()
            .flat_map(|s| &mut s.pods)
            .map(|p| &mut p.cpus),
    );
    let lists = lists.chain(s.workqueues.iter_mut().flat_map(|q| {
        let rescuer = q.rescuer.as_mut().map(|r| &mut r.cpus);
        let slots = q.cpu_pool.iter_mut().map(|s| &mut s.cpus);
        [&mut q.attrs.cpumask, &mut q.attrs.effective_cpumask]
            .into_iter()
            .chain(slots)
            .chain(rescuer)
    }));
    for list in lists {
        if list.as_str().chars().any(char::is_control) {
            *list = Default::default();
        }
    }
}

/// Columns of text, each as wide as its widest cell; the first is aligned left, others as asked for.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left: Vec<bool>,
}

impl Table {
    /// A table with these headings; a heading that starts with `<` is a column aligned left.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Table {
            rows: vec![
                headings
                    .iter()
                    .map(|h| h.trim_start_matches('<').to_owned())
                    .collect(),
            ],
            left: headings.iter().map(|h| h.starts_with('<')).collect(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn write(&self, out: &mut dyn Write, indent: &str) -> io::Result<()> {
        let columns = self.left.len();
        let width = |c: usize| {
            self.rows
                .iter()
                .filter_map(|r| r.get(c))
                .map(|s| s.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (c, cell) in row.iter().enumerate().take(columns) {
                let pad = " ".repeat(widths[c].saturating_sub(cell.chars().count()));
                if c > 0 {
                    line += "  ";
                }
                line += &if self.left[c] {
                    format!("{cell}{pad}")
                } else {
                    format!("{pad}{cell}")
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Time span for people: `3d04h`, `5h07m`, `2m03s`, `12s`.
pub(crate) fn human_span(seconds: u64) -> String {
    match seconds {
        s if s >= 86_400 => format!("{}d{:02}h", s / 86_400, s % 86_400 / 3600),
        s if s >= 3600 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        s if s >= 60 => format!("{}m{:02}s", s / 60, s % 60),
        s => format!("{s}s"),
    }
}

/// Events per second between two counts.
pub(crate) fn rate(now: u64, before: u64, ns: u64) -> f64 {
    if ns == 0 {
        0.0
    } else {
        now.saturating_sub(before) as f64 * 1e9 / ns as f64
    }
}

/// A rate for people.
pub(crate) fn human_rate(rate: f64) -> String {
    match rate {
        r if r >= 1e7 => format!("{:.1}M", r / 1e6),
        r if r >= 1e5 => format!("{:.0}k", r / 1e3),
        r if r >= 1e4 => format!("{:.1}k", r / 1e3),
        r if r >= 100.0 => format!("{r:.0}"),
        r => format!("{r:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_peer_cannot_drive_the_terminal() {
        use cmwq_control::snapshot::{ItemSnapshot, WorkqueueSnapshot};
        let mut q = WorkqueueSnapshot {
            name: "\u{1b}[2Jx".into(),
            ..Default::default()
        };
        q.pending.push(ItemSnapshot {
            func: "a\rb".into(),
            ..Default::default()
        });
        let mut s = Snapshot {
            workqueues: vec![q],
            ..Default::default()
        };
        sanitize(&mut s);
        assert_eq!(s.workqueues[0].name, "\u{fffd}[2Jx");
        assert_eq!(s.workqueues[0].pending.items[0].func, "a\u{fffd}b");
    }

    #[test]
    fn tables_align() {
        let mut t = Table::new(&["<NAME", "N"]);
        t.row(vec!["long name".into(), "7".into()]);
        t.row(vec!["x".into(), "12345".into()]);
        let mut out = Vec::new();
        t.write(&mut out, " ").unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            " NAME           N\n long name      7\n x          12345\n"
        );
    }

    #[test]
    fn seconds_are_checked() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["x", "-1", "nan", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(human_span(59), "59s");
        assert_eq!(human_span(3601), "1h00m");
        assert_eq!(human_span(90_000), "1d01h");
        assert_eq!(human_rate(rate(100, 50, 500_000_000)), "100");
        assert_eq!(human_rate(123_456.0), "123k");
        assert_eq!(rate(5, 9, 1), 0.0);
    }
}
