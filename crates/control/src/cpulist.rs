//! A set of CPUs as it travels: the kernel's list form in a string.

use std::fmt::{self, Write as _};

/// A set of CPUs in the kernel's list form (`0-3,8`), ascending, without overlaps; the empty set is the empty string.
///
/// This is a field type for snapshots: cheap to build once, print and compare; not a type to compute with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct CpuList(String);

/// CPU numbers at and above this are refused by [`CpuList::parse`]; far above any machine (the kernel's own ceiling is
/// 8192), low enough that a hostile list cannot make [`CpuList::cpus`] expensive.
pub const MAX_CPUS: u32 = 1 << 16;

impl CpuList {
    /// Builds the list from CPU numbers in any order, duplicates allowed. O(n log n).
    pub fn from_cpus(cpus: impl IntoIterator<Item = u32>) -> Self {
        let mut cpus: Vec<u32> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        let mut text = String::new();
        let mut i = 0;
        while i < cpus.len() {
            let first = cpus[i];
            let mut last = first;
            while i + 1 < cpus.len() && cpus[i + 1] == last + 1 {
                i += 1;
                last = cpus[i];
            }
            i += 1;
            if !text.is_empty() {
                text.push(',');
            }
            // Writing to a String cannot fail.
            let _ = write!(text, "{first}");
            if last > first {
                let _ = write!(text, "-{last}");
            }
        }
        CpuList(text)
    }

    /// Parses the kernel's list form (`0-3,8`; a surrounding newline is ignored) and normalises it.
    ///
    /// # Errors
    /// A message that names the part that is wrong: not a number, a range that runs backwards, a CPU of [`MAX_CPUS`] or above.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim_end_matches('\n');
        let mut cpus = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first, part)?, number(last, part)?);
            if first > last {
                return Err(format!("`{part}` runs backwards"));
            }
            cpus.extend(first..=last);
        }
        Ok(CpuList::from_cpus(cpus))
    }

    /// The list form.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether no CPU is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPU numbers, ascending. Parts that are no valid list (a peer may send anything) are skipped.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.0
            .split(',')
            .filter(|part| !part.is_empty())
            .filter_map(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                Some(number(first, part).ok()?..=number(last, part).ok()?)
            })
            .flatten()
    }

    /// How many CPUs are in it. O(parts).
    pub fn count(&self) -> usize {
        self.cpus().count()
    }

    /// Whether `cpu` is in it.
    pub fn contains(&self, cpu: u32) -> bool {
        self.cpus().any(|c| c == cpu)
    }

    /// The form of the kernel's `cpumask` files: hexadecimal in groups of 32 bits, highest group first, separated by
    /// commas, as wide as `nr_cpus` needs (`03` for CPUs 0-1 of 8).
    pub fn to_hex(&self, nr_cpus: u32) -> String {
        let nr_cpus = nr_cpus.max(self.cpus().max().map_or(1, |last| last + 1));
        let groups = nr_cpus.div_ceil(32) as usize;
        let mut bits = vec![0_u32; groups];
        for cpu in self.cpus() {
            bits[(cpu / 32) as usize] |= 1 << (cpu % 32);
        }
        let mut text = String::new();
        for (i, group) in bits.iter().enumerate().rev() {
            let width = if i + 1 == groups {
                (nr_cpus - 32 * i as u32).div_ceil(4) as usize
            } else {
                8
            };
            if !text.is_empty() {
                text.push(',');
            }
            let _ = write!(text, "{group:0width$x}");
        }
        text
    }
}

fn number(text: &str, part: &str) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!(
            "`{part}` is neither a CPU number nor a range such as 0-3"
        ));
    }
    match text.parse::<u32>() {
        Ok(n) if n < MAX_CPUS => Ok(n),
        _ => Err(format!("`{part}`: CPU {text} is out of range")),
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_form_is_canonical() {
        assert_eq!(CpuList::from_cpus([9, 3, 1, 2, 2, 0]).as_str(), "0-3,9");
        assert_eq!(CpuList::parse("8,0-3,2\n").unwrap().as_str(), "0-3,8");
        assert!(CpuList::parse("").unwrap().is_empty());
        assert_eq!(
            CpuList::parse("0-3,8").unwrap().cpus().collect::<Vec<_>>(),
            [0, 1, 2, 3, 8]
        );
    }

    #[test]
    fn bad_lists_are_refused_by_name() {
        for bad in [
            "a",
            "1-",
            "-1",
            "3-1",
            "1,,2",
            "99999999999",
            "70000",
            "1 2",
            "+1",
        ] {
            assert!(CpuList::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hex_form_is_the_kernels() {
        let hex = |cpus: &[u32], nr| CpuList::from_cpus(cpus.iter().copied()).to_hex(nr);
        assert_eq!(hex(&[0, 1], 8), "03");
        assert_eq!(hex(&[], 8), "00");
        assert_eq!(hex(&[0, 32], 40), "01,00000001");
        assert_eq!(hex(&[63], 64), "80000000,00000000");
        assert_eq!(hex(&[0], 1), "1");
    }

    #[test]
    fn garbage_from_a_peer_is_skipped_not_fatal() {
        let list = CpuList("x,5-1,3,99999999999-4".into());
        assert_eq!(list.cpus().collect::<Vec<_>>(), [3]);
    }
}
