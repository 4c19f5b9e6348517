//! [`Warning`]: what was wrong with a file, and what was assumed instead.

use std::collections::HashMap;
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

/// Collects warnings: at most [`Warnings::LIMIT`], and at most [`Warnings::ALIKE`] of one text. A
/// machine with thousands of CPUs and one systematic defect must not drown its reader.
#[derive(Debug, Default)]
pub(crate) struct Warnings {
    list: Vec<Warning>,
    /// How often each text came, and the last path that it came for.
    alike: HashMap<String, (usize, PathBuf)>,
    dropped: usize,
}

impl Warnings {
    pub(crate) const LIMIT: usize = 100;
    pub(crate) const ALIKE: usize = 4;

    pub(crate) fn add(&mut self, path: impl AsRef<Path>, text: impl Into<String>) {
        let (path, text) = (path.as_ref(), text.into());
        if let Some((count, last)) = self.alike.get_mut(&text) {
            *count += 1;
            if *count > Self::ALIKE {
                last.clear();
                last.push(path);
                return;
            }
        } else if self.list.len() < Self::LIMIT {
            self.alike.insert(text.clone(), (1, PathBuf::new()));
        }
        if self.list.len() >= Self::LIMIT {
            self.dropped += 1;
            return;
        }
        self.list.push(Warning {
            path: path.to_path_buf(),
            text,
        });
    }

    pub(crate) fn finish(mut self, root: &Path) -> Vec<Warning> {
        let mut more: Vec<Warning> = self
            .alike
            .into_iter()
            .filter(|(_, (count, _))| *count > Self::ALIKE)
            .map(|(text, (count, path))| {
                let more = count - Self::ALIKE;
                let text = format!("{text} (and {} more alike)", more - 1);
                Warning { path, text }
            })
            .collect();
        more.sort_by(|a, b| a.path.cmp(&b.path));
        self.list.extend(more);
        if self.dropped > 0 {
            self.list.push(Warning {
                path: root.to_path_buf(),
                text: format!("{} more warnings are not kept", self.dropped),
            });
        }
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_defect_in_thousands_of_files_is_a_handful_of_warnings() {
        let mut warnings = Warnings::default();
        for cpu in 0..5000 {
            warnings.add(format!("cpu{cpu}/online"), "is no text");
        }
        warnings.add("elsewhere", "another");
        let list = warnings.finish(Path::new("/"));
        assert_eq!(list.len(), Warnings::ALIKE + 2);
        let last = &list[Warnings::ALIKE + 1];
        assert_eq!(
            last.to_string(),
            "cpu4999/online: is no text (and 4995 more alike)"
        );
    }

    #[test]
    fn many_different_defects_are_counted_past_the_limit() {
        let mut warnings = Warnings::default();
        for cpu in 0..300 {
            warnings.add("file", format!("defect {cpu}"));
        }
        let list = warnings.finish(Path::new("/root"));
        assert_eq!(list.len(), Warnings::LIMIT + 1);
        assert_eq!(list[Warnings::LIMIT].text, "200 more warnings are not kept");
    }
}
