//! Why a value or a request was refused.

use std::fmt;

/// Why a read or a change of an attribute was refused. Nothing was changed.
///
/// Shown as the message followed by the kernel's name for the kind: ``max_active: `0` is out of range, ... (EINVAL)``.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SetError {
    /// The kind, for programs.
    pub kind: SetErrorKind,
    /// What was wrong and what was expected, for people.
    pub message: String,
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum SetErrorKind {
    /// The text is no value of this attribute, or out of its range.
    Invalid,
    /// A CPU mask names CPUs that the machine does not have.
    Overflow,
    /// The attribute cannot be written.
    ReadOnly,
    /// The attribute does not apply to this kind of queue.
    WrongKind,
    /// No queue or attribute of that name.
    NotFound,
    /// The process does not allow changes over its socket.
    NotPermitted,
    /// This process does not have the attribute or the facility.
    Unsupported,
    /// Out of threads or memory; the old state is in force.
    NoResources,
    /// Cannot be done now: somebody else does it, or the queue goes away.
    Busy,
}

impl SetErrorKind {
    /// The errno that the kernel answers in this case.
    pub fn errno_name(self) -> &'static str {
        match self {
            SetErrorKind::Invalid | SetErrorKind::WrongKind => "EINVAL",
            SetErrorKind::Overflow => "EOVERFLOW",
            SetErrorKind::ReadOnly => "EACCES",
            SetErrorKind::NotFound => "ENOENT",
            SetErrorKind::NotPermitted => "EPERM",
            SetErrorKind::Unsupported => "EOPNOTSUPP",
            SetErrorKind::NoResources => "ENOMEM",
            SetErrorKind::Busy => "EBUSY",
        }
    }
}

impl SetError {
    /// An error of that kind.
    pub fn new(kind: SetErrorKind, message: impl Into<String>) -> Self {
        SetError {
            kind,
            message: message.into(),
        }
    }

    /// [`SetErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        SetError::new(SetErrorKind::Invalid, message)
    }

    /// [`SetErrorKind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        SetError::new(SetErrorKind::NotFound, message)
    }

    /// [`SetErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        SetError::new(SetErrorKind::Unsupported, message)
    }
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.errno_name())
    }
}

impl std::error::Error for SetError {}
