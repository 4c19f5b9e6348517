//! `cmwq get` and `cmwq set`: attributes by the kernel's names.

use anyhow::{anyhow, bail};
use cmwq_control::attr::{Access, Attr, Level, SetErrorKind};
use cmwq_control::client::{Client, ClientError};
use cmwq_control::snapshot::Detail;
use cmwq_control::{CpuSet, Target};
use serde_json::json;

use super::live::{self, Whom};

/// Show attributes of a process or of a workqueue
///
/// Examples: `cmwq get 1234` (everything), `cmwq get storage watchdog_thresh`, `cmwq get storage ingest max_active`. A single
/// value is printed bare, for scripts.
#[derive(clap::Args, Debug)]
#[command(after_long_help = attributes())]
pub(crate) struct GetArgs {
    #[command(flatten)]
    whom: Whom,
    /// A workqueue, or an attribute of the process [default: everything]
    name: Option<String>,
    /// An attribute of the workqueue
    attr: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Every attribute, for the end of the help.
fn attributes() -> String {
    let mut text = String::new();
    for (title, level) in [
        ("Attributes of a workqueue", Level::Workqueue),
        ("Attributes of the process", Level::Global),
    ] {
        text += &format!("{title}:\n");
        for info in Attr::all().filter(|i| i.level == level) {
            let expects = match info.access {
                Access::ReadOnly => "read-only",
                Access::ReadWrite => info.expects,
            };
            text += &format!("  {}: {}\n          {expects}\n", info.name, info.help);
        }
        text += "\n";
    }
    text + "Names and refusals are the kernel's. kernel_mode is chosen when a workqueue is made."
}

/// Change attributes of a process or of a workqueue
///
/// Examples: `cmwq set 1234 ingest max_active=16 affinity_scope=cache`, `cmwq set storage watchdog_thresh=5`.
/// Every value is checked and read back; a refused one changes nothing and ends the command with status 1.
///
/// The program must allow it: `cmwq::control::builder().allow_set(true).listen()`, or CMWQ_CONTROL=set in its environment.
#[derive(clap::Args, Debug)]
#[command(after_long_help = attributes())]
pub(crate) struct SetArgs {
    #[command(flatten)]
    whom: Whom,
    /// [WORKQUEUE] ATTR=VALUE...
    #[arg(value_name = "[WORKQUEUE] ATTR=VALUE", required = true)]
    words: Vec<String>,
}

/// One attribute with its value, or why there is none.
struct Shown {
    target: Target,
    name: &'static str,
    value: String,
}

impl GetArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let mut client = self.whom.connect()?;
        let shown = match (self.name.as_deref(), self.attr.as_deref()) {
            (Some(queue), Some(attr)) => {
                vec![one(&mut client, Target::Workqueue(queue.into()), attr)?]
            }
            (Some(name), None) => {
                let queues = queue_names(&mut client)?;
                if queues.iter().any(|q| q == name) {
                    all_of(&mut client, &Target::Workqueue(name.into()))?
                } else if Attr::find(name, Level::Global).is_ok() {
                    vec![one(&mut client, Target::Global, name)?]
                } else {
                    let globals: Vec<_> = names(Level::Global).collect();
                    bail!(
                        "`{name}` is neither a workqueue ({}) nor an attribute of the process ({})",
                        live::clean(&queues.join(", ")),
                        globals.join(", ")
                    );
                }
            }
            (None, _) => {
                let mut shown = all_of(&mut client, &Target::Global)?;
                for queue in queue_names(&mut client)? {
                    shown.extend(all_of(&mut client, &Target::Workqueue(queue))?);
                }
                shown
            }
        };
        if self.json {
            return live::print_json(&as_json(&shown));
        }
        live::to_stdout(|out| {
            // A single value is printed bare, for scripts.
            if let ([only], true) = (&shown[..], self.name.is_some()) {
                writeln!(out, "{}", live::clean(&only.value))?;
                return Ok(());
            }
            for s in &shown {
                writeln!(out, "{}", line(s))?;
            }
            Ok(())
        })
    }
}

impl SetArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (target, pairs) = split(&self.words)?;
        let mut client = self.whom.connect()?;
        let mut done = Vec::new();
        let mut failed = None;
        for (attr, value) in pairs {
            match client.set(&target, attr, value) {
                Ok((value, note)) => {
                    let name = Attr::find(attr, level(&target)).map_or("?", Attr::name);
                    done.push((
                        Shown {
                            target: target.clone(),
                            name,
                            value,
                        },
                        note,
                    ));
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        live::to_stdout(|out| {
            for (shown, note) in &done {
                writeln!(out, "{}", line(shown))?;
                if let Some(note) = note {
                    writeln!(out, "note: {}", live::clean(note))?;
                }
            }
            Ok(())
        })?;
        match failed {
            Some(e) => Err(anyhow!("{}", live::clean(&e.to_string()))),
            None => Ok(()),
        }
    }
}

/// The words of `set`: a queue's name first, unless the first word is an assignment already.
fn split(words: &[String]) -> anyhow::Result<(Target, Vec<(&str, &str)>)> {
    let (target, rest) = match words {
        [first, rest @ ..] if !first.contains('=') => (Target::Workqueue(first.clone()), rest),
        all => (Target::Global, all),
    };
    if rest.is_empty() {
        bail!("nothing to set: give ATTR=VALUE, for example max_active=16");
    }
    let pairs = rest.iter().map(|word| {
        let (attr, value) = word
            .split_once('=')
            .ok_or_else(|| anyhow!("`{word}` is no ATTR=VALUE, for example max_active=16"))?;
        // The names are known here as well: say at once what is wrong, before anything was changed.
        Attr::find(attr, level(&target)).map_err(|e| anyhow!("{e}"))?;
        Ok((attr, value))
    });
    let pairs = pairs.collect::<anyhow::Result<Vec<_>>>()?;
    Ok((target, pairs))
}

fn level(target: &Target) -> Level {
    match target {
        Target::Global => Level::Global,
        Target::Workqueue(_) => Level::Workqueue,
    }
}

fn names(level: Level) -> impl Iterator<Item = &'static str> {
    Attr::all()
        .filter(move |i| i.level == level)
        .map(|i| i.name)
}

fn queue_names(client: &mut Client) -> anyhow::Result<Vec<String>> {
    Ok(client
        .snapshot(Detail::COUNTERS)?
        .workqueues
        .into_iter()
        .map(|q| q.name)
        .collect())
}

fn one(client: &mut Client, target: Target, attr: &str) -> anyhow::Result<Shown> {
    let name = Attr::find(attr, level(&target))
        .map_err(|e| anyhow!("{e}"))?
        .name();
    let value = client
        .get(&target, attr)
        .map_err(|e| anyhow!("{}", live::clean(&e.to_string())))?;
    Ok(Shown {
        target,
        name,
        value,
    })
}

/// Every attribute that the target has.
fn all_of(client: &mut Client, target: &Target) -> anyhow::Result<Vec<Shown>> {
    let mut shown = Vec::new();
    for name in names(level(target)) {
        match client.get(target, name) {
            Ok(value) => shown.push(Shown {
                target: target.clone(),
                name,
                value,
            }),
            Err(ClientError::Answer(e))
                if matches!(e.kind, SetErrorKind::WrongKind | SetErrorKind::Unsupported) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(shown)
}

/// `queue attr=value`, with the CPUs of a mask beside it.
fn line(s: &Shown) -> String {
    let whose = match &s.target {
        Target::Global => String::new(),
        Target::Workqueue(name) => format!("{} ", live::clean(name)),
    };
    let mut line = format!("{whose}{}={}", s.name, live::clean(&s.value));
    if s.name.starts_with("cpumask")
        && let Ok(cpus) = CpuSet::parse_mask(&s.value)
    {
        let cpus = if cpus.is_empty() {
            "none".to_owned()
        } else {
            cpus.to_string()
        };
        line += &format!(" (CPUs {cpus})");
    }
    line
}

fn as_json(shown: &[Shown]) -> serde_json::Value {
    let mut process = serde_json::Map::new();
    let mut workqueues = serde_json::Map::new();
    for s in shown {
        let map = match &s.target {
            Target::Global => &mut process,
            Target::Workqueue(name) => {
                let entry = workqueues.entry(name.clone()).or_insert_with(|| json!({}));
                entry.as_object_mut().expect("made as an object above")
            }
        };
        map.insert(s.name.into(), json!(s.value));
    }
    json!({"format": 1, "process": process, "workqueues": workqueues})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(Into::into).collect()
    }

    #[test]
    fn the_first_word_names_a_queue_unless_it_assigns() {
        let all = words("ingest max_active=4 nice=5");
        let (target, pairs) = split(&all).unwrap();
        assert_eq!(target, Target::Workqueue("ingest".into()));
        assert_eq!(pairs, [("max_active", "4"), ("nice", "5")]);
        let all = words("watchdog_thresh=5");
        assert_eq!(split(&all).unwrap().0, Target::Global);
    }

    #[test]
    fn mistakes_are_named_before_anything_is_changed() {
        for (text, says) in [
            ("ingest", "nothing to set"),
            ("ingest nice", "no ATTR=VALUE"),
            ("ingest nise=1", "no attribute `nise`"),
            ("nice=1", "name the queue"),
            ("ingest watchdog_thresh=1", "leave the queue out"),
        ] {
            let e = split(&words(text)).unwrap_err().to_string();
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    #[test]
    fn the_help_names_every_attribute() {
        let text = attributes();
        for info in Attr::all() {
            assert!(
                text.contains(&format!("  {}: ", info.name)),
                "{}",
                info.name
            );
        }
    }

    #[test]
    fn masks_show_their_cpus() {
        let shown = |value: &str| {
            line(&Shown {
                target: Target::Global,
                name: "cpumask",
                value: value.into(),
            })
        };
        assert_eq!(shown("0f"), "cpumask=0f (CPUs 0-3)");
        assert_eq!(shown("00"), "cpumask=00 (CPUs none)");
    }
}
