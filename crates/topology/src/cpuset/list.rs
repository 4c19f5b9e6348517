//! The list form: `0-3,8,10-19:2/4`.

use super::{CpuSet, ParseCpuSetError};
use std::fmt;

/// A set in list form. Made by [`CpuSet::list`].
#[derive(Clone, Copy, Debug)]
pub struct ListDisplay<'a>(pub(super) &'a CpuSet);

impl fmt::Display for ListDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.ranges().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            if first == last {
                write!(f, "{first}")?;
            } else {
                write!(f, "{first}-{last}")?;
            }
        }
        Ok(())
    }
}

struct Cursor<'a> {
    text: &'a str,
    pos: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let hit = self.peek() == Some(byte);
        self.pos += usize::from(hit);
        hit
    }

    fn blanks(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace()) {
            self.pos += 1;
        }
    }

    fn error(&self, expected: &'static str) -> ParseCpuSetError {
        ParseCpuSetError::at(self.text, self.pos, expected)
    }

    /// A decimal number below `MAX_CPUS` (or equal to it, for the sizes in a stride).
    fn number(&mut self, expected: &'static str, max: usize) -> Result<usize, ParseCpuSetError> {
        let start = self.pos;
        let mut value = 0usize;
        while let Some(digit) = self.peek().filter(u8::is_ascii_digit) {
            value = value * 10 + usize::from(digit - b'0');
            if value > max {
                let limit = "a number below 65536";
                return Err(ParseCpuSetError::at(self.text, start, limit));
            }
            self.pos += 1;
        }
        if self.pos == start {
            return Err(self.error(expected));
        }
        Ok(value)
    }
}

pub(super) fn parse(text: &str) -> Result<CpuSet, ParseCpuSetError> {
    const TOP: usize = CpuSet::MAX_CPUS - 1;
    let mut set = CpuSet::new();
    let mut at = Cursor { text, pos: 0 };
    at.blanks();
    if at.peek().is_none() {
        return Ok(set);
    }
    loop {
        at.blanks();
        let start = at.pos;
        let first = at.number("a CPU number", TOP)?;
        let mut last = first;
        if at.take(b'-') {
            last = at.number("the last CPU of the range", TOP)?;
            if last < first {
                let order = "a range whose last CPU is not below its first";
                return Err(ParseCpuSetError::at(text, start, order));
            }
            if at.take(b':') {
                let stride = at.pos;
                let used = at.number("the number of CPUs used of each group", TOP)?;
                if !at.take(b'/') {
                    return Err(at.error("'/' and the size of the group"));
                }
                let group = at.number("the size of the group", TOP)?;
                if used == 0 || used > group {
                    let sizes = "a stride used/group with 0 < used <= group";
                    return Err(ParseCpuSetError::at(text, stride, sizes));
                }
                for from in (first..=last).step_by(group) {
                    set.insert_range(from, last.min(from + used - 1));
                }
                last = first;
            }
        }
        set.insert_range(first, last);
        at.blanks();
        if at.peek().is_none() {
            return Ok(set);
        }
        if !at.take(b',') {
            return Err(at.error("',' or the end of the list"));
        }
    }
}
