//! Small bounded reads of files below a root, with warnings.

use crate::raw::{SetId, Sets};
use crate::warning::Warnings;
use crate::{CpuSet, ParseCpuSetError};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// No file that is read whole may be longer. The longest honest one, the list of every second of
/// 65536 CPUs, has 190 KiB.
const MAX_FILE: usize = 256 * 1024;

/// Distinct CPU sets are read up to this many bytes, whatever a tree holds. A machine of 8192 CPUs needs about 1 MiB.
const MAX_SET_BYTES: usize = 64 << 20;

/// `O_NONBLOCK` on every Linux this crate supports (x86-64 and aarch64): a named pipe in the
/// place of a file must not stop the reader.
const O_NONBLOCK: i32 = 0o4000;

/// What reading a file gave.
pub(crate) enum Found<T> {
    /// It is there and makes sense.
    Good(T),
    /// There is no such file.
    Missing,
    /// It is there and of no use; a warning was added.
    Bad,
}

impl<T> Found<T> {
    pub(crate) fn good(self) -> Option<T> {
        match self {
            Found::Good(value) => Some(value),
            Found::Missing | Found::Bad => None,
        }
    }
}

pub(crate) struct Files {
    pub(crate) root: PathBuf,
    pub(crate) warnings: Warnings,
    /// A running kernel makes list and mask of one set. Elsewhere they are held against each other.
    pub(crate) cross_check: bool,
    buffer: Vec<u8>,
    path: PathBuf,
    lists: HashMap<Box<str>, SetId>,
    masks: HashMap<Box<str>, SetId>,
    set_bytes: usize,
}

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            warnings: Warnings::default(),
            cross_check: root != Path::new("/"),
            buffer: Vec::new(),
            path: PathBuf::new(),
            lists: HashMap::new(),
            masks: HashMap::new(),
            set_bytes: 0,
        }
    }

    pub(crate) fn warn(&mut self, file: &str, text: impl Into<String>) {
        self.warnings.add(self.root.join(file), text);
    }

    /// The text of `file`, without surrounding blanks.
    pub(crate) fn text(&mut self, file: &str) -> Found<&str> {
        match self.load(file, MAX_FILE, true) {
            Found::Good(()) => Found::Good(text_of(&self.buffer)),
            Found::Missing => Found::Missing,
            Found::Bad => Found::Bad,
        }
    }

    /// At most the first `limit` bytes of `file`, cut at a character.
    pub(crate) fn head(&mut self, file: &str, limit: usize) -> Found<&str> {
        match self.load(file, limit, false) {
            Found::Good(()) => Found::Good(text_of(&self.buffer)),
            Found::Missing => Found::Missing,
            Found::Bad => Found::Bad,
        }
    }

    /// Fills the buffer with UTF-8.
    fn load(&mut self, file: &str, limit: usize, whole: bool) -> Found<()> {
        self.path.clear();
        self.path.push(&self.root);
        self.path.push(file);
        self.buffer.clear();
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(O_NONBLOCK)
            .open(&self.path);
        let more = u64::from(whole);
        let read = open.and_then(|f| f.take(limit as u64 + more).read_to_end(&mut self.buffer));
        match read {
            Err(e) if is_missing(&e) => return Found::Missing,
            Err(e) => {
                self.warnings
                    .add(&self.path, format!("cannot be read: {e}"));
                return Found::Bad;
            }
            Ok(_) if self.buffer.len() > limit => {
                let text = format!("has more than {limit} bytes: not read");
                self.warnings.add(&self.path, text);
                return Found::Bad;
            }
            Ok(_) => {}
        }
        let Err(e) = std::str::from_utf8(&self.buffer) else {
            return Found::Good(());
        };
        if !whole && e.error_len().is_none() {
            self.buffer.truncate(e.valid_up_to());
            return Found::Good(());
        }
        let text = format!("is no text: byte {} is not UTF-8", e.valid_up_to());
        self.warnings.add(&self.path, text);
        Found::Bad
    }

    /// A whole number.
    pub(crate) fn number(&mut self, file: &str) -> Found<i64> {
        let parsed = match self.text(file) {
            Found::Good(text) => text.parse().map_err(|_| shorten(text)),
            Found::Missing => return Found::Missing,
            Found::Bad => return Found::Bad,
        };
        match parsed {
            Ok(number) => Found::Good(number),
            Err(text) => {
                self.warn(file, format!("expected a number, found {text:?}"));
                Found::Bad
            }
        }
    }

    /// A CPU list that is read once, so not worth interning. `None` if missing or bad.
    pub(crate) fn cpu_list(&mut self, file: &str) -> Option<CpuSet> {
        let parsed = CpuSet::parse_list(self.text(file).good()?);
        self.parsed(file, parsed)
    }

    /// A CPU mask that is read once.
    pub(crate) fn cpu_mask(&mut self, file: &str) -> Option<CpuSet> {
        let parsed = CpuSet::parse_mask(self.text(file).good()?);
        self.parsed(file, parsed)
    }

    fn parsed(&mut self, file: &str, parsed: Result<CpuSet, ParseCpuSetError>) -> Option<CpuSet> {
        parsed.map_err(|e| self.warn(file, e.to_string())).ok()
    }

    /// An interned CPU set from a list or mask file.
    pub(crate) fn set(&mut self, file: &str, is_mask: bool, sets: &mut Sets) -> Found<SetId> {
        match self.load(file, MAX_FILE, true) {
            Found::Good(()) => {}
            Found::Missing => return Found::Missing,
            Found::Bad => return Found::Bad,
        }
        let text = text_of(&self.buffer);
        let known = match is_mask {
            true => &mut self.masks,
            false => &mut self.lists,
        };
        if let Some(id) = known.get(text) {
            return Found::Good(*id);
        }
        if self.set_bytes > MAX_SET_BYTES {
            self.warn(file, "too many different CPU sets in this tree: not read");
            return Found::Bad;
        }
        let parsed = match is_mask {
            true => CpuSet::parse_mask(text),
            false => CpuSet::parse_list(text),
        };
        match parsed {
            Err(e) => self.warn(file, e.to_string()),
            Ok(set) if set.is_empty() => self.warn(file, "names no CPU"),
            Ok(set) => {
                self.set_bytes += set.memory() + text.len();
                let id = sets.add(set);
                known.insert(text.into(), id);
                return Found::Good(id);
            }
        }
        Found::Bad
    }

    /// Warns if the mask file beside a list file says something else about the online CPUs.
    pub(crate) fn check_mask(
        &mut self,
        mask_file: &str,
        list: SetId,
        online: &CpuSet,
        sets: &mut Sets,
    ) {
        if !self.cross_check {
            return;
        }
        let Found::Good(mask) = self.set(mask_file, true, sets) else {
            return;
        };
        if mask != list && sets.get(mask) & online != sets.get(list) & online {
            self.warn(
                mask_file,
                "contradicts the list beside it: the list is taken",
            );
        }
    }

    /// The numbers `N` of the entries `PREFIX N` of a folder, ascending, at most `limit` of them;
    /// entries whose number is not below `end` are left out with a warning.
    pub(crate) fn numbered(&mut self, folder: &str, prefix: &str, end: usize) -> Vec<usize> {
        let path = self.root.join(folder);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) => {
                if !is_missing(&e) {
                    self.warnings.add(path, format!("cannot be listed: {e}"));
                }
                return Vec::new();
            }
        };
        let mut numbers = Vec::new();
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => {
                    self.warnings.add(&path, format!("cannot be listed: {e}"));
                    break;
                }
            };
            let name = entry.file_name();
            let Some(digits) = name.to_str().and_then(|name| name.strip_prefix(prefix)) else {
                continue;
            };
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            match digits.parse::<usize>() {
                Ok(number) if number < end && (digits.len() == 1 || !digits.starts_with('0')) => {
                    numbers.push(number);
                }
                _ => {
                    let text = format!("not a number below {end}: left out");
                    self.warnings.add(path.join(&name), text);
                }
            }
        }
        numbers.sort_unstable();
        numbers
    }
}

/// Some kernels end some files with a zero byte.
fn text_of(buffer: &[u8]) -> &str {
    let text = std::str::from_utf8(buffer).unwrap_or_default();
    text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
}

fn is_missing(e: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(e.kind(), NotFound | NotADirectory)
}

pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}
