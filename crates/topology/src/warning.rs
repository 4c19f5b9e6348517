//! [`Warning`]: what was wrong with a file, and what was assumed instead.

use std::fmt;
use std::path::{Path, PathBuf};

/// Something about the input that was not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file or folder, with the root that was given.
    pub path: PathBuf,
    /// What is wrong with it and what was taken instead.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.text)
    }
}

/// Collects warnings, at most [`Warnings::LIMIT`] of them: a machine with thousands of CPUs and
/// one systematic defect must not drown the reader or its memory.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    list: Vec<Warning>,
    dropped: usize,
}

impl Warnings {
    pub(crate) const LIMIT: usize = 100;

    pub(crate) fn add(&mut self, path: impl AsRef<Path>, text: impl Into<String>) {
        if self.list.len() == Self::LIMIT {
            self.dropped += 1;
            return;
        }
        self.list.push(Warning {
            path: path.as_ref().to_path_buf(),
            text: text.into(),
        });
    }

    pub(crate) fn finish(mut self, root: &Path) -> Vec<Warning> {
        if self.dropped > 0 {
            self.list.push(Warning {
                path: root.to_path_buf(),
                text: format!("{} more warnings are not kept", self.dropped),
            });
        }
        self.list
    }
}
