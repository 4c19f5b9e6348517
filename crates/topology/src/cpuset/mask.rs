//! The mask form: `ffffffff,00000000`.

use super::{CpuSet, ParseCpuSetError};
use std::fmt;

/// A set in mask form. Made by [`CpuSet::mask`].
#[derive(Clone, Copy, Debug)]
pub struct MaskDisplay<'a> {
    pub(super) set: &'a CpuSet,
    pub(super) bits: usize,
}

impl MaskDisplay<'_> {
    /// Pads with zeros to the width that a kernel built for, or booted with, `bits` CPUs prints:
    /// every group but the highest has eight digits, the highest as many as its bits need.
    pub fn width(self, bits: usize) -> Self {
        Self { bits, ..self }
    }
}

fn group(set: &CpuSet, index: usize) -> u32 {
    (set.word(index / 2) >> (index % 2 * 32)) as u32
}

impl fmt::Display for MaskDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.set.last().map_or(1, |last| last + 1);
        let bits = self.bits.max(used);
        let top = (bits - 1) / 32;
        let digits = if self.bits >= used {
            (bits - top * 32).div_ceil(4)
        } else {
            1
        };
        write!(f, "{:0digits$x}", group(self.set, top))?;
        for index in (0..top).rev() {
            write!(f, ",{:08x}", group(self.set, index))?;
        }
        Ok(())
    }
}

pub(super) fn parse(text: &str) -> Result<CpuSet, ParseCpuSetError> {
    let start = text.len() - text.trim_ascii_start().len();
    let end = text.trim_ascii_end().len().max(start);
    let body = &text.as_bytes()[start..end];

    // Lowest group first: right to left over the text, one pass to check, one to store.
    let mut digits = 0;
    let mut groups = 1;
    for (i, byte) in body.iter().enumerate() {
        match byte {
            b',' if digits > 0 => (digits, groups) = (0, groups + 1),
            b',' => return Err(ParseCpuSetError::at(text, start + i, "a hex digit")),
            b if b.is_ascii_hexdigit() && digits < 8 => digits += 1,
            b if b.is_ascii_hexdigit() => {
                let long = "',' after a group of eight hex digits";
                return Err(ParseCpuSetError::at(text, start + i, long));
            }
            _ => {
                let expected = "a hex digit or ','";
                return Err(ParseCpuSetError::at(text, start + i, expected));
            }
        }
    }
    if digits == 0 {
        return Err(ParseCpuSetError::at(text, end, "a hex digit"));
    }

    let mut words = Vec::with_capacity(groups.min(CpuSet::MAX_CPUS / 32).div_ceil(2));
    let (mut index, mut shift) = (0, 0);
    for (i, byte) in body.iter().enumerate().rev() {
        if *byte == b',' {
            (index, shift) = (index + 1, 0);
            continue;
        }
        let nibble = match byte {
            b'0'..=b'9' => byte - b'0',
            _ => (byte | 0x20) - b'a' + 10,
        };
        if nibble != 0 {
            if index >= CpuSet::MAX_CPUS / 32 {
                let limit = "no bit from 65536 on";
                return Err(ParseCpuSetError::at(text, start + i, limit));
            }
            if words.len() <= index / 2 {
                words.resize(index / 2 + 1, 0);
            }
            words[index / 2] |= u64::from(nibble) << (index % 2 * 32 + shift);
        }
        shift += 4;
    }
    Ok(CpuSet::from_words(0, words.into_iter()))
}
