//! Fleets: for each of many volumes a change, its saving and its risk.
//!
//! The reading order is the order of the data. A [`list`] of volumes is read; [`judge()`] decides
//! on one volume by its recording, with the volumes of [`alternatives`]; [`totals`] adds up.

pub mod alternatives;
mod exports;
pub mod list;
mod recommend;
mod risk;
#[cfg(test)]
mod testing;
pub mod totals;

use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};

use crate::advice;
use crate::demand::Assume;
use crate::prices::ListPrices;
use crate::trace::Trace;

pub use list::{List, Reason, Refused, Volume};
pub use recommend::{judge, not_judged};
pub use risk::{Risk, Waits};

/// The rules by which volumes are judged.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The rules in force.
    pub rules: &'static Rules,
    /// The prices in force in the region of the volumes.
    pub prices: ListPrices,
    /// The types that a volume may become; without any, those of [`advice::is_offered`].
    pub types: Vec<VolumeType>,
    /// Whether a volume may become one of a type whose published durability is less.
    pub less_durable: bool,
    /// How requests are taken to lie within an interval.
    pub assume: Assume,
    /// Percent that a volume must carry beyond what was recorded.
    pub headroom_percent: u32,
    /// Days that a trace needs to show that less suffices.
    pub days_min: u32,
    /// Percent of the time of a trace that may be gaps.
    pub gaps_percent_max: u32,
    /// Seconds a day at a limit above which a volume counts as throttled.
    pub throttled_s_per_day: u32,
}

impl Policy {
    /// Returns the newest rules and prices, with the defaults of the program.
    ///
    /// For tests and benchmarks.
    #[must_use]
    pub fn usual() -> Self {
        Self {
            rules: Rules::newest(),
            prices: PriceList::newest().into(),
            types: Vec::new(),
            less_durable: false,
            assume: Assume::Active,
            headroom_percent: advice::HEADROOM_PERCENT,
            days_min: advice::DAYS_MIN,
            gaps_percent_max: 20,
            throttled_s_per_day: 60,
        }
    }
}

/// The recording of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// There is none.
    Absent,
    /// It cannot be read, for this reason.
    Broken(String),
    /// The requests.
    Trace(Box<Trace>),
}

/// A statement about a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finding {
    /// It is attached to no instance.
    Unattached,
    /// It had no request.
    Idle,
    /// It stands at a limit, and needs more.
    Throttled,
    /// gp3 has the same limits, or carries its workload, for less.
    Gp2ToGp3,
    /// Another type carries its workload for less.
    TypeChange,
    /// It has more IOPS than it ever used.
    NeverUsedIops,
    /// It has more throughput than it ever used.
    NeverUsedThroughput,
    /// Nothing is to be changed.
    Keep,
    /// It could not be judged.
    NotJudged,
}

impl Finding {
    /// All, in the order of an answer.
    pub const ALL: [Self; 9] = [
        Self::Unattached,
        Self::Idle,
        Self::Throttled,
        Self::Gp2ToGp3,
        Self::TypeChange,
        Self::NeverUsedIops,
        Self::NeverUsedThroughput,
        Self::Keep,
        Self::NotJudged,
    ];

    /// Returns its id in listings.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Unattached => "unattached",
            Self::Idle => "idle",
            Self::Throttled => "throttled",
            Self::Gp2ToGp3 => "gp2-to-gp3",
            Self::TypeChange => "type-change",
            Self::NeverUsedIops => "never-used-iops",
            Self::NeverUsedThroughput => "never-used-throughput",
            Self::Keep => "keep",
            Self::NotJudged => "not-judged",
        }
    }
}

/// A change of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// None.
    Keep,
    /// The volume is modified in place.
    Modify(VolumeSpec),
    /// It is deleted after a snapshot.
    Delete,
}

/// The known facts of a volume's requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// Milliseconds that are known in full.
    pub known_ms: u64,
    /// Milliseconds from the first interval to the last that are not.
    pub gaps_ms: u64,
    /// The longest interval with requests.
    pub resolution_ms: u64,
    /// Milliseconds at a limit.
    pub at_limit_ms: u64,
    /// Counted I/Os a second in the busiest span, by the assumption.
    pub peak_iops: u64,
    /// Bytes a second in the busiest span.
    pub peak_bytes_per_second: u64,
}

/// A volume's judgement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// The volume as it is.
    pub present: VolumeSpec,
    /// Its monthly cost, in millionths of the list's currency.
    pub before: u64,
    /// Its monthly cost after the action.
    pub after: u64,
    /// The action that is proposed.
    pub action: Action,
    /// All that applies; the volume counts as the first.
    pub findings: Vec<Finding>,
    /// The risk of the action.
    pub risk: Risk,
    /// Milliseconds a day in which requests wait, before a change and after it; `None` without
    /// metrics or a change.
    pub waits: Option<Waits>,
    /// Facts of its requests; `None` without metrics.
    pub known: Option<Known>,
    /// Provisioned IOPS above the peak and the headroom; `None` if not known.
    pub never_used_iops: Option<u32>,
    /// Provisioned MiB/s above the peak and the headroom; `None` if not known.
    pub never_used_mibps: Option<u32>,
    /// The reasons, as sentences.
    pub reasons: Vec<String>,
}

impl Judged {
    /// Returns the finding that the volume counts as.
    #[must_use]
    pub fn finding(&self) -> Finding {
        self.findings.first().copied().unwrap_or(Finding::Keep)
    }

    /// Returns the monthly saving of the action; negative if it costs.
    #[must_use]
    pub fn saving(&self) -> i64 {
        signed(self.before).saturating_sub(signed(self.after))
    }
}

/// Returns an amount of money with a sign.
pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
