//! Exact parsing of attribute values and how they are shown.

use cmwq_topology::{AffinityScope, CpuSet};

use super::{Attr, SetError, SetErrorKind, Setting, WQ_MAX_ACTIVE};

/// What parsing has to know about the machine.
#[derive(Clone, Copy, Debug)]
pub struct ParseContext {
    /// One more than the highest possible CPU number: masks may not reach beyond.
    pub nr_cpu_ids: u32,
}

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The value.
    pub setting: Setting,
    /// What was changed about it on the way in (clamped), for people; `None` if it is taken as written.
    pub note: Option<String>,
}

impl Setting {
    /// Parses the text of a value.
    ///
    /// # Errors
    /// A [`SetError`] that names the text, what was expected, and where it can say so, what was probably meant. Read-only
    /// attributes give [`SetErrorKind::ReadOnly`].
    pub fn parse(attr: Attr, text: &str, context: &ParseContext) -> Result<Parsed, SetError> {
        attr.check_writable()?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let p = Input { attr, text };
        let mut note = None;
        let setting = match attr {
            Attr::MaxActive => {
                let asked = p.unsigned(1, i32::MAX as u64)? as u32;
                if asked > WQ_MAX_ACTIVE {
                    note = Some(format!(
                        "max_active: {asked} is out of range, clamped to {WQ_MAX_ACTIVE} (1 to {WQ_MAX_ACTIVE})"
                    ));
                }
                Setting::MaxActive(asked.min(WQ_MAX_ACTIVE))
            }
            Attr::MinActive => Setting::MinActive(p.unsigned(0, WQ_MAX_ACTIVE.into())? as u32),
            Attr::Nice => Setting::Nice(p.signed(-20, 19)?),
            Attr::Cpumask => Setting::Cpumask(p.mask(context)?),
            Attr::AffinityScope => Setting::AffinityScope(p.scope()?),
            Attr::AffinityStrict => Setting::AffinityStrict(p.zero_or_one()?),
            Attr::Localize => Setting::Localize(p.zero_or_one()?),
            Attr::KernelMode => Setting::KernelMode(p.zero_or_one()?),
            Attr::GlobalCpumask => {
                let mask = p.mask(context)?;
                if mask.is_empty() {
                    return Err(p.error("would leave no CPU for unbound queues"));
                }
                Setting::GlobalCpumask(mask)
            }
            Attr::DefaultAffinityScope => match p.scope()? {
                AffinityScope::Default => return Err(p.error("the default cannot be itself")),
                scope => Setting::DefaultAffinityScope(scope),
            },
            // An hour on the CPU is surely a hog.
            Attr::CpuIntensiveThreshUs => {
                Setting::CpuIntensiveThreshUs(p.unsigned(0, 3_600_000_000)?)
            }
            Attr::CpuIntensiveWarningThresh => {
                Setting::CpuIntensiveWarningThresh(p.unsigned(0, u32::MAX.into())? as u32)
            }
            // The kernel's bound with a tick of 1 ms: the period in ticks must fit 31 bits.
            Attr::WatchdogThresh => Setting::WatchdogThresh(p.unsigned(0, i32::MAX as u64 / 1000)?),
            Attr::PanicOnStall => Setting::PanicOnStall(p.unsigned(0, u32::MAX.into())? as u32),
            Attr::PanicOnStallTime => {
                Setting::PanicOnStallTime(p.unsigned(0, i32::MAX as u64 / 1000)? as u32)
            }
            Attr::DebugForceRrCpu => Setting::DebugForceRrCpu(p.yes_or_no()?),
            Attr::MaxThreads => Setting::MaxThreads(p.unsigned(1, 65_536)? as u32),
            Attr::FairnessThreshUs => Setting::FairnessThreshUs(p.unsigned(0, 3_600_000_000)?),
            Attr::PerCpu
            | Attr::CpumaskRequested
            | Attr::CpumaskIsolated
            | Attr::CacheShardSize
            | Attr::PowerEfficient => unreachable!("refused by check_writable"),
        };
        Ok(Parsed { setting, note })
    }
}

/// One value to parse.
struct Input<'a> {
    attr: Attr,
    text: &'a str,
}

impl Input<'_> {
    /// An `Invalid` error about the text; `why` completes the sentence.
    fn error(&self, why: &str) -> SetError {
        self.error_of(SetErrorKind::Invalid, why)
    }

    fn error_of(&self, kind: SetErrorKind, why: &str) -> SetError {
        // A peer may send anything of any length; the message stays one short printable line.
        let shown: String = self
            .text
            .chars()
            .take(60)
            .flat_map(char::escape_default)
            .collect();
        let dots = if self.text.chars().count() > 60 {
            "..."
        } else {
            ""
        };
        let info = self.attr.info();
        SetError::new(
            kind,
            format!(
                "{}: `{shown}{dots}` {why}; expected {}",
                info.name, info.expects
            ),
        )
    }

    fn digits(&self, text: &str) -> Result<(), SetError> {
        if text.is_empty() {
            return Err(self.error("is empty"));
        }
        if text.trim() != text {
            return Err(self.error("has blanks around it"));
        }
        if text.starts_with("0x") || text.starts_with("0X") {
            return Err(self.error("is hexadecimal"));
        }
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.error("is not a whole number"));
        }
        Ok(())
    }

    fn unsigned(&self, low: u64, high: u64) -> Result<u64, SetError> {
        let body = self
            .text
            .strip_prefix('-')
            .filter(|rest| !rest.is_empty())
            .unwrap_or(self.text);
        self.digits(body)?;
        match self.text.parse::<u64>() {
            Ok(n) if (low..=high).contains(&n) => Ok(n),
            _ => Err(self.error("is out of range")),
        }
    }

    fn signed(&self, low: i32, high: i32) -> Result<i32, SetError> {
        self.digits(self.text.strip_prefix('-').unwrap_or(self.text))?;
        match self.text.parse::<i32>() {
            Ok(n) if (low..=high).contains(&n) => Ok(n),
            _ => Err(self.error("is out of range")),
        }
    }

    fn zero_or_one(&self) -> Result<bool, SetError> {
        match self.text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.error("is neither")),
        }
    }

    fn yes_or_no(&self) -> Result<bool, SetError> {
        match self.text {
            "1" | "y" | "Y" | "on" => Ok(true),
            "0" | "n" | "N" | "off" => Ok(false),
            _ => Err(self.error("is neither")),
        }
    }

    fn scope(&self) -> Result<AffinityScope, SetError> {
        if let Some(scope) = SCOPES.into_iter().find(|s| s.name() == self.text) {
            return Ok(scope);
        }
        let lower = self.text.trim().to_ascii_lowercase();
        // What it begins with (the longest: `cache_shard x` is not `cache`), else what it is the beginning of.
        let begins = SCOPES
            .into_iter()
            .filter(|s| lower.starts_with(s.name()))
            .max_by_key(|s| s.name().len());
        let meant = begins.or_else(|| {
            SCOPES
                .into_iter()
                .find(|s| !lower.is_empty() && s.name().starts_with(&lower))
        });
        match meant {
            Some(scope) => Err(self.error(&format!(
                "is no scope (names are exact; did you mean `{}`?)",
                scope.name()
            ))),
            None => Err(self.error("is no scope")),
        }
    }

    /// The kernel's hexadecimal groups, or the list form where it cannot be taken for hexadecimal: it has a range in it
    /// or is introduced by `list:`.
    fn mask(&self, context: &ParseContext) -> Result<CpuSet, SetError> {
        if self.text.is_empty() {
            return Err(self.error("is empty (write 0 for an empty mask)"));
        }
        if self.text.trim() != self.text {
            return Err(self.error("has blanks around it"));
        }
        let list = self
            .text
            .strip_prefix("list:")
            .or_else(|| self.text.contains('-').then_some(self.text));
        let set = match list {
            Some(list) => CpuSet::parse_list(list)
                .map_err(|e| self.error(&format!("is no list of CPUs ({e})")))?,
            None => {
                let digits =
                    |group: &str| group.len() > 8 && group.bytes().all(|b| b.is_ascii_hexdigit());
                if self.text.split(',').any(digits) {
                    let why = "has a group of more than eight digits (groups of 32 bits are separated by commas)";
                    return Err(self.error_of(SetErrorKind::Overflow, why));
                }
                CpuSet::parse_mask(self.text)
                    .map_err(|e| self.error(&format!("is no mask ({e})")))?
            }
        };
        match set.last() {
            Some(cpu) if cpu >= context.nr_cpu_ids as usize => Err(self.error_of(
                SetErrorKind::Overflow,
                &format!(
                    "names CPU {cpu}, but CPUs end at {}",
                    context.nr_cpu_ids.saturating_sub(1)
                ),
            )),
            _ => Ok(set),
        }
    }
}

/// Every scope that can be written.
const SCOPES: [AffinityScope; 7] = [
    AffinityScope::Default,
    AffinityScope::Cpu,
    AffinityScope::Smt,
    AffinityScope::CacheShard,
    AffinityScope::Cache,
    AffinityScope::Numa,
    AffinityScope::System,
];

/// How `affinity_scope` is shown: `cache`, or `default (cache_shard)` for the default, which names what it means.
pub fn format_scope(set: &str, in_force: &str) -> String {
    if set == AffinityScope::Default.name() {
        format!("default ({in_force})")
    } else {
        set.to_owned()
    }
}

/// How a boolean attribute is shown: `0`/`1` for queues' attributes, `N`/`Y` for the runtime's.
pub fn format_bool(attr: Attr, value: bool) -> &'static str {
    match (attr.info().level, value) {
        (super::Level::Workqueue, false) => "0",
        (super::Level::Workqueue, true) => "1",
        (super::Level::Global, false) => "N",
        (super::Level::Global, true) => "Y",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EIGHT: ParseContext = ParseContext { nr_cpu_ids: 8 };

    fn parse(attr: Attr, text: &str) -> Result<Setting, SetErrorKind> {
        Setting::parse(attr, text, &EIGHT)
            .map(|p| p.setting)
            .map_err(|e| e.kind)
    }

    #[test]
    fn numbers_are_exact() {
        assert_eq!(parse(Attr::MaxActive, "16\n"), Ok(Setting::MaxActive(16)));
        assert_eq!(parse(Attr::MaxActive, "010"), Ok(Setting::MaxActive(10)));
        for bad in [
            "",
            "0",
            "-1",
            "-",
            "+5",
            "3x",
            "8 9",
            " 7",
            "0x10",
            "2147483648",
            "4294967297",
            "9".repeat(99).as_str(),
        ] {
            assert_eq!(
                parse(Attr::MaxActive, bad),
                Err(SetErrorKind::Invalid),
                "{bad}"
            );
        }
        assert_eq!(parse(Attr::Nice, "-20"), Ok(Setting::Nice(-20)));
        for bad in ["-21", "20", "--1", "5 6", "0x5", "1e1", "2147483648"] {
            assert_eq!(parse(Attr::Nice, bad), Err(SetErrorKind::Invalid), "{bad}");
        }
    }

    #[test]
    fn too_large_limits_are_clamped_with_a_note() {
        let p = Setting::parse(Attr::MaxActive, "4096", &EIGHT).unwrap();
        assert_eq!(p.setting, Setting::MaxActive(2048));
        assert!(p.note.unwrap().contains("4096"));
        assert_eq!(
            Setting::parse(Attr::MaxActive, "2048", &EIGHT)
                .unwrap()
                .note,
            None
        );
    }

    #[test]
    fn masks_in_both_forms() {
        let mask = |text: &str, nr| {
            Setting::parse(Attr::Cpumask, text, &ParseContext { nr_cpu_ids: nr }).map(|p| {
                match p.setting {
                    Setting::Cpumask(set) => set.to_string(),
                    other => panic!("{other:?}"),
                }
            })
        };
        assert_eq!(mask("ff", 8).unwrap(), "0-7");
        assert_eq!(mask("3", 8).unwrap(), "0-1");
        assert_eq!(mask("0", 8).unwrap(), "");
        assert_eq!(mask("1,00000003", 64).unwrap(), "0-1,32");
        assert_eq!(mask("00000000,00000003", 8).unwrap(), "0-1");
        assert_eq!(mask("ffffffff,ffffffff", 64).unwrap(), "0-63");
        assert_eq!(mask("0-2,5", 8).unwrap(), "0-2,5");
        assert_eq!(mask("list:0,2", 8).unwrap(), "0,2");
        for bad in [
            "", "zz", "0x3", "3,", "3 4", " 3", "1-", "list:a", "5-3", ",", "-",
        ] {
            assert_eq!(
                mask(bad, 8).unwrap_err().kind,
                SetErrorKind::Invalid,
                "{bad}"
            );
        }
        for wide in [
            "100",
            "fff",
            "1,0",
            "0-8",
            "list:8",
            "f".repeat(5000).as_str(),
            "1,".repeat(9000).as_str(),
        ] {
            let kind = mask(wide, 8).unwrap_err().kind;
            assert!(
                matches!(kind, SetErrorKind::Overflow | SetErrorKind::Invalid),
                "{wide}"
            );
        }
        assert_eq!(mask("100", 8).unwrap_err().kind, SetErrorKind::Overflow);
    }

    #[test]
    fn scopes_are_exact_and_say_what_was_meant() {
        assert_eq!(
            parse(Attr::AffinityScope, "cache_shard"),
            Ok(Setting::AffinityScope(AffinityScope::CacheShard))
        );
        let e = Setting::parse(Attr::AffinityScope, "CPU", &EIGHT).unwrap_err();
        assert!(e.message.contains("did you mean `cpu`"), "{e}");
        let e = Setting::parse(Attr::AffinityScope, "default (cache)", &EIGHT).unwrap_err();
        assert!(e.message.contains("did you mean `default`"), "{e}");
        for (text, meant) in [
            ("Cache", "cache"),
            ("cache_shards", "cache_shard"),
            ("cach", "cache_shard"),
            ("num", "numa"),
        ] {
            let e = Setting::parse(Attr::AffinityScope, text, &EIGHT).unwrap_err();
            assert!(
                e.message.contains(&format!("did you mean `{meant}`")),
                "{e}"
            );
        }
        assert_eq!(
            parse(Attr::DefaultAffinityScope, "default"),
            Err(SetErrorKind::Invalid)
        );
    }

    #[test]
    fn messages_stay_short_and_printable() {
        let e = Setting::parse(Attr::Nice, &"\u{1b}[2J".repeat(5000), &EIGHT).unwrap_err();
        assert!(
            e.message.len() < 700 && !e.message.contains('\u{1b}'),
            "{}",
            e.message.len()
        );
    }

    #[test]
    fn every_writable_attribute_parses_something_and_refuses_junk() {
        for info in Attr::all() {
            let any = ["1", "cpu"].iter().any(|v| parse(info.attr, v).is_ok());
            match info.access {
                super::super::Access::ReadOnly => {
                    assert_eq!(parse(info.attr, "1"), Err(SetErrorKind::ReadOnly))
                }
                super::super::Access::ReadWrite => assert!(any, "{}", info.name),
            }
            assert!(parse(info.attr, "junk!").is_err(), "{}", info.name);
            assert!(parse(info.attr, "").is_err(), "{}", info.name);
        }
    }

    #[test]
    fn parsed_settings_name_their_attribute() {
        for info in Attr::all() {
            for text in ["1", "cpu"] {
                if let Ok(setting) = parse(info.attr, text) {
                    assert_eq!(setting.attr(), info.attr);
                }
            }
        }
    }

    #[test]
    fn shown_as_the_kernel_shows_it() {
        assert_eq!(
            format_scope("default", "cache_shard"),
            "default (cache_shard)"
        );
        assert_eq!(format_scope("numa", "numa"), "numa");
        assert_eq!(format_bool(Attr::AffinityStrict, true), "1");
        assert_eq!(format_bool(Attr::DebugForceRrCpu, false), "N");
    }
}
