//! Fleets: of each of many volumes, what to change, what that saves, and what it risks.
//!
//! The reading order is the order of the data. A [`list`] of volumes is read; [`judge()`] decides
//! of one volume by what was recorded of it, with what [`better`] finds; [`totals`] adds up.

pub mod alternatives;
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

/// By what volumes are judged.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The rules in force.
    pub rules: &'static Rules,
    /// The prices in force in the region of the volumes.
    pub prices: ListPrices,
    /// What a volume may become; without types, SSD types stay SSD types.
    pub types: Vec<VolumeType>,
    /// Whether a volume may become one of a type whose published durability is less.
    pub less_durable: bool,
    /// How requests are taken to lie within an interval.
    pub assume: Assume,
    /// What a volume must be able to do beyond what it was asked for, in percent.
    pub headroom_percent: u32,
    /// Days that a trace must have, to conclude that less suffices.
    pub days_min: u32,
    /// How much of the time of a trace may be gaps, in percent.
    pub gaps_percent_max: u32,
    /// Seconds a day at a limit from which on a volume counts as throttled.
    pub throttled_s_per_day: u32,
}

impl Policy {
    /// The newest rules and prices, with the defaults of the program.
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

/// What was recorded of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Nothing.
    Absent,
    /// Something that cannot be read, and why.
    Broken(String),
    /// What it was asked for.
    Trace(Box<Trace>),
}

/// What there is to say of a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finding {
    /// No instance has it.
    Unattached,
    /// Nothing was asked of it.
    Idle,
    /// A limit holds it up: it needs more.
    Throttled,
    /// gp3 does the same, or what is needed, for less.
    Gp2ToGp3,
    /// Another type does what is needed, for less.
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
    /// All, in the order in which they are told.
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

    /// Its id in listings.
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

/// What to do with a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    Keep,
    /// To change it in place.
    Modify(VolumeSpec),
    /// To delete it, after a snapshot.
    Delete,
}

/// How much is known of a volume's requests.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Known {
    /// Milliseconds of all intervals.
    pub known_ms: u64,
    /// Milliseconds of gaps between them.
    pub gaps_ms: u64,
    /// The longest interval with requests.
    pub resolution_ms: u64,
    /// Milliseconds in which a limit held the volume up, or in which it stood at one.
    pub at_limit_ms: u64,
    /// Counted I/Os a second in the busiest span, by the assumption.
    pub peak_iops: u64,
    /// Bytes a second in the busiest span.
    pub peak_bytes_per_second: u64,
}

/// A volume's judgement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// What it is.
    pub present: VolumeSpec,
    /// What it costs in a month by the price list, in millionths of a US dollar.
    pub before: u64,
    /// What it costs after the action.
    pub after: u64,
    /// What to do.
    pub action: Action,
    /// What there is to say; the first is what it counts as.
    pub findings: Vec<Finding>,
    /// What the action risks.
    pub risk: Risk,
    /// Milliseconds a day in which requests wait, before a change and after it; `None` without
    /// metrics or a change.
    pub waits: Option<Waits>,
    /// What is known of its requests; `None` without metrics.
    pub known: Option<Known>,
    /// Provisioned IOPS above all that was ever asked and the headroom; `None` if not known.
    pub never_used_iops: Option<u32>,
    /// The same of MiB/s.
    pub never_used_mibps: Option<u32>,
    /// Why, in sentences.
    pub reasons: Vec<String>,
}

impl Judged {
    /// What it counts as.
    #[must_use]
    pub fn finding(&self) -> Finding {
        self.findings.first().copied().unwrap_or(Finding::Keep)
    }

    /// What the action saves in a month; negative if it costs.
    #[must_use]
    pub fn saving(&self) -> i64 {
        signed(self.before).saturating_sub(signed(self.after))
    }
}

/// An amount of money with a sign.
pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
