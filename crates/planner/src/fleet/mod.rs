//! Fleets: for each of many volumes a change, its saving and its risk.
//!
//! The reading order is the order of the data. A [`list`] of volumes is read; [`judge()`] decides
//! on one volume by its recording, with the volumes of [`alternatives`]; [`totals`] adds up. The
//! recordings are in [`files`], which [`evidence`] reads a group at a time.

pub mod alternatives;
pub mod answer;
mod copy;
pub mod evidence;
mod exports;
pub mod files;
pub mod hosts;
pub mod list;
pub mod policies;
mod recommend;
mod risk;
#[cfg(test)]
pub(crate) mod testing;
pub mod totals;

use evenkeel_core::convert::saturating;
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};

use crate::advice;
use crate::demand::Assume;
use crate::prices::ListPrices;
use crate::trace::Trace;

pub use copy::Smaller;
pub use copy::gib_with_free;
pub use list::{GroupBy, List, Options, Reason, Refused, Volume};
pub use recommend::{judge, larger, not_judged, shows_enough};
pub use risk::{Risk, Waits};

/// An action that makes a volume more than this many times as dear is for a person to decide.
const DEARER_MAX: u64 = 2;

/// Percent of a smaller copy that is free at first, unless another number is given.
pub const FREE_PERCENT: u32 = 30;

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
    /// Percent of a smaller copy that is free at first.
    pub free_percent: u32,
}

impl Policy {
    /// Returns the newest rules and prices, with the defaults of the program.
    #[must_use]
    pub fn usual() -> Self {
        Self::by(Rules::newest(), PriceList::newest())
    }

    /// Returns the usual policy for rules and prices of a day.
    #[must_use]
    pub fn by(rules: &'static Rules, prices: &'static PriceList) -> Self {
        Self {
            rules,
            prices: prices.into(),
            types: Vec::new(),
            less_durable: false,
            assume: Assume::Active,
            headroom_percent: advice::HEADROOM_PERCENT,
            days_min: advice::DAYS_MIN,
            gaps_percent_max: advice::GAPS_PERCENT_MAX,
            throttled_s_per_day: 60,
            free_percent: FREE_PERCENT,
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
    /// The most bytes in use by its file systems.
    pub used_bytes: Option<u64>,
}

/// The advice about a proposal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// It can be carried out now.
    SafeNow,
    /// A person looks at it first.
    AfterALook,
    /// It saves money, and the metrics do not show that it does no harm.
    NotAdvised,
    /// A volume without an instance is deleted after a snapshot.
    Unattached,
}

impl Class {
    /// All, in the order of an answer.
    pub const ALL: [Self; 4] =
        [Self::SafeNow, Self::AfterALook, Self::NotAdvised, Self::Unattached];

    /// Returns its id in listings.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::SafeNow => "safe-now",
            Self::AfterALook => "after-a-look",
            Self::NotAdvised => "not-advised",
            Self::Unattached => "unattached",
        }
    }
}

/// A volume's judgement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// The volume as it is.
    pub present: VolumeSpec,
    /// Its monthly cost, in millionths of the list's currency.
    pub before: u64,
    /// Its monthly cost after the action, at most.
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
    /// The most that the snapshot of a deleted volume costs a month, which is its cost after the
    /// action; `None` without one, or without a price of snapshots.
    pub snapshot_at_most: Option<u64>,
    /// The volume of an HDD type that would do if latency did not matter, for less.
    pub on_hdd: Option<OnHdd>,
    /// A smaller volume to which it could be copied.
    pub smaller: Option<Smaller>,
    /// The reasons, as sentences.
    pub reasons: Vec<String>,
}

/// A volume of an HDD type, which is no proposal: its requests take longer than on an SSD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OnHdd {
    /// The volume.
    pub spec: VolumeSpec,
    /// The monthly cost of the volume after the advised action.
    pub before: u64,
    /// Its own monthly cost.
    pub after: u64,
    /// Thousandths of the requests that are smaller than 128 KiB.
    pub small_permille: u64,
}

impl Judged {
    /// Returns the volume after the action if that is advised, and otherwise as it is, and its
    /// monthly cost.
    #[must_use]
    pub const fn advised(&self) -> (VolumeSpec, u64) {
        match (self.action, self.class()) {
            (Action::Modify(to), Some(Class::SafeNow | Class::AfterALook)) => (to, self.after),
            _ => (self.present, self.before),
        }
    }

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

    /// Returns whether the action makes the volume more than twice as dear.
    #[must_use]
    pub const fn is_much_dearer(&self) -> bool {
        self.after > self.before.saturating_mul(DEARER_MAX)
    }

    /// Returns the advice about the action; `None` without one.
    #[must_use]
    pub const fn class(&self) -> Option<Class> {
        match (self.action, self.risk) {
            (Action::Keep, _) => None,
            (Action::Delete, _) => Some(Class::Unattached),
            (Action::Modify(_), Risk::High) => Some(Class::NotAdvised),
            (Action::Modify(_), Risk::Medium) => Some(Class::AfterALook),
            (Action::Modify(_), _) if self.is_much_dearer() => Some(Class::AfterALook),
            (Action::Modify(_), _) => Some(Class::SafeNow),
        }
    }

    /// Returns whether a script executes the action if it takes risks up to `most`. It deletes
    /// nothing, and makes no volume much dearer.
    #[must_use]
    pub fn is_executed(&self, most: Risk) -> bool {
        matches!(self.action, Action::Modify(_)) && self.risk <= most && !self.is_much_dearer()
    }
}

/// Returns an amount of money with a sign.
pub(crate) fn signed(amount: u64) -> i64 {
    saturating::<_, i64>(amount)
}
