//! How blocked workers are noticed, and at what cost.

use crate::Label;

/// The four mechanisms by which a blocked worker is noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Detection {
    /// The worker says so itself: `blocking` sections and the runtime's own waits.
    pub said: Mechanism,
    /// The idle-class threads, one per CPU in use.
    pub sentinel: Mechanism,
    /// The backstop tick that reads thread states.
    pub tick: Mechanism,
    /// Context-switch records (opt-in).
    pub records: Mechanism,
}

impl Detection {
    /// The mechanisms with their names, in the order of the design.
    pub fn each(&self) -> [(&'static str, &Mechanism); 4] {
        [
            ("said", &self.said),
            ("sentinel", &self.sentinel),
            ("tick", &self.tick),
            ("records", &self.records),
        ]
    }
}

/// One mechanism.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
pub struct Mechanism {
    /// Whether it works.
    pub state: MechanismState,
    /// Why it is in that state, for people ("proc is not mounted", "paused after 3 unconfirmed runs").
    pub reason: Label,
    /// CPU time that the mechanism itself used, ns.
    pub cpu_time_ns: u64,
    /// How often it looked (said: announcements; sentinel: runs; tick: ticks; records: records read).
    pub looks: u64,
    /// How often a blocked worker was found.
    pub found: u64,
    /// How often what it suspected was not confirmed.
    pub unconfirmed: u64,
    /// Threads that it has.
    pub threads: u32,
}

/// Whether a mechanism works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum MechanismState {
    /// Switched off or not asked for.
    #[default]
    Off,
    /// Works; costs something only while items wait.
    InForce,
    /// Works, but pauses for now (see the reason).
    Paused,
    /// Was asked for, but the system does not allow it (see the reason).
    Unavailable,
}

impl MechanismState {
    /// The word that the dump and the JSON form show.
    pub fn as_str(self) -> &'static str {
        match self {
            MechanismState::Off => "off",
            MechanismState::InForce => "in_force",
            MechanismState::Paused => "paused",
            MechanismState::Unavailable => "unavailable",
        }
    }
}
