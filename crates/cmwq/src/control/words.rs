//! The control plane's words for the policy's reasons.

use cmwq_control::snapshot::{ReasonCount, reasons};
use cmwq_policy::pool::{BirthReason, DeathReason};

/// Why a worker was made.
pub(crate) fn birth(why: BirthReason) -> &'static str {
    match why {
        BirthReason::Demand => reasons::CONCURRENCY,
        BirthReason::Reserve => reasons::RESERVE,
        BirthReason::Blocked => reasons::BLOCKED,
        BirthReason::Fairness => reasons::FAIRNESS,
        BirthReason::Hog => reasons::HOG,
        BirthReason::Floor => reasons::LIVENESS,
        BirthReason::Help => reasons::HELP,
    }
}

/// Why a worker left.
pub(crate) fn death(why: DeathReason) -> &'static str {
    match why {
        DeathReason::Culled => reasons::IDLE,
        DeathReason::Shutdown => reasons::POOL_RELEASED,
        DeathReason::Replaced => reasons::REPLACEMENT,
        DeathReason::Lost => "lost",
    }
}

const BIRTHS: [BirthReason; 7] = [
    BirthReason::Demand,
    BirthReason::Reserve,
    BirthReason::Blocked,
    BirthReason::Fairness,
    BirthReason::Hog,
    BirthReason::Floor,
    BirthReason::Help,
];
const DEATHS: [DeathReason; 4] = [
    DeathReason::Culled,
    DeathReason::Shutdown,
    DeathReason::Replaced,
    DeathReason::Lost,
];

/// The counts by reason that are not zero.
pub(super) fn births(count: impl Fn(usize) -> u64) -> Vec<ReasonCount> {
    counted(BIRTHS.map(|why| (birth(why), count(why as usize))))
}

/// As [`births`].
pub(super) fn deaths(count: impl Fn(usize) -> u64) -> Vec<ReasonCount> {
    counted(DEATHS.map(|why| (death(why), count(why as usize))))
}

fn counted<const N: usize>(counts: [(&'static str, u64); N]) -> Vec<ReasonCount> {
    counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| ReasonCount {
            reason: reason.into(),
            count,
        })
        .collect()
}
