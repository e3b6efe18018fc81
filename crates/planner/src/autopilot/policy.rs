//! The policy of a group of volumes: all thresholds of the autopilot, read from one TOML file.

use std::collections::BTreeMap;

use crate::fleet;

/// The seconds of a day.
const DAY_S: u32 = 86_400;
/// The hours of a day.
const HOURS: u64 = 24;

mod read;
#[cfg(test)]
mod tests;

pub use read::{Malformed, POLICY_BYTES_MAX};

/// The effect of a decision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Mode {
    /// It is recorded.
    #[default]
    Observe,
    /// Its commands and their undo are printed.
    Advise,
    /// It is carried out.
    Act,
}

/// The policies of a file.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// Whether all groups are paused.
    pub paused: bool,
    /// The groups, in the order of the file. The first whose tags match has a volume.
    pub groups: Vec<Policy>,
}

/// The policy of one group.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// The tags that select its volumes.
    pub tags: BTreeMap<String, String>,
    /// The effect of its decisions.
    pub mode: Mode,
    /// Whether the file's `paused` is set.
    pub is_paused: bool,
    /// The length of a day of the rules in seconds: the file's. It is less than 86,400 only in a
    /// trial, in which all days and hours of the rules are shorter.
    pub day_s: u32,
    /// The rules of `evenkeel plan` by which recordings are judged, with the prices.
    pub plan: fleet::Policy,
    /// When the file system grows and shrinks.
    pub space: Space,
    /// When IOPS, MiB/s and the type change.
    pub rate: Rate,
    /// How many changes, and how much money.
    pub budget: Budget,
    /// The brakes of moves.
    pub brakes: Brakes,
    /// When the file system may shrink; any time if there is none.
    pub windows: Vec<Window>,
    /// Limits at known times of the week.
    pub schedules: Vec<Schedule>,
}

/// The rule by which free space is kept.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Keep {
    /// As much as the volumes can write during the actuation time: the file system cannot become
    /// full.
    #[default]
    Hard,
    /// 1.5 times the largest growth that was seen within the actuation time.
    Likely,
}

/// The rules of space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    /// Whether the group's file systems change their size.
    pub is_managed: bool,
    /// Whether volumes grow. If devices keep their size when their volumes grow, as over NBD,
    /// volumes are only added.
    pub grows_volumes: bool,
    /// The rule by which free space is kept.
    pub keep: Keep,
    /// The time from the decision to the room, in seconds.
    pub actuation_s: u32,
    /// The reserve in percent of the size.
    pub reserve_percent: u32,
    /// The least reserve in bytes.
    pub reserve_bytes_min: u64,
    /// The least step up, in percent of the size.
    pub grow_percent: u32,
    /// The least step up, in GiB.
    pub grow_gib_min: u32,
    /// The maximum size of a file system in GiB.
    pub gib_max: u32,
    /// The minimum size of a file system in GiB.
    pub gib_min: u32,
    /// Percent of the size that the peak with its headroom must not exceed to shrink.
    pub shrink_below_percent: u32,
    /// The headroom over the peak, in percent.
    pub peak_headroom_percent: u32,
    /// The days of the peak.
    pub peak_days: u32,
    /// The days without a change of size before it shrinks.
    pub quiet_days: u32,
    /// The largest step down, in percent of the size.
    pub shrink_step_percent_max: u32,
}

/// The rules of IOPS, MiB/s and the type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Whether the group's volumes change IOPS, MiB/s and type.
    pub is_managed: bool,
    /// The window of `exceeded_s_max`, in seconds.
    pub window_s: u32,
    /// Seconds of the window in which a limit may delay requests.
    pub exceeded_s_max: u32,
    /// The days that a recording must have to lower a limit.
    pub days: u32,
    /// Credits must last this long, in seconds.
    pub credits_s_min: u32,
    /// A proposal must be at most this percentage of the present limit to lower it.
    pub down_percent_max: u32,
    /// The time between the two confirmations of a lower limit, in seconds.
    pub confirm_s: u32,
    /// The time for which a lower limit is watched, in seconds.
    pub watch_s: u32,
}

/// The budgets of changes and money.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Modifications of a volume in 24 hours that the service accepts.
    pub modifications_per_day: u32,
    /// Modifications of these that are kept for an undo.
    pub kept_for_undo: u32,
    /// Modifications of these that are kept for an emergency.
    pub kept_for_emergency: u32,
    /// The maximum monthly cost of a file system's volumes, in millionths of the currency.
    pub monthly_micro_max: Option<u64>,
    /// The maximum monthly cost of the group, in millionths of the currency.
    pub group_monthly_micro_max: Option<u64>,
    /// The maximum monthly cost of all groups together, in millionths of the currency: the file's.
    pub fleet_monthly_micro_max: Option<u64>,
    /// The percentage of the fleet's volumes that may be changed in an hour: the file's. One volume
    /// always may. Growth and raises of limits without another type are exempt.
    pub fleet_percent_per_hour_max: u32,
    /// A raise of limits costs at most this many times the present volume, or 1.00 if that is more.
    pub cost_factor_max: u32,
    /// The least monthly saving of a change to less, in millionths of the currency.
    pub saving_micro_min: u64,
    /// The saving of a change to less must be this many times what the change costs.
    pub saving_times_min: u32,
    /// The number of operations of one host.
    pub operations_per_host_max: u32,
    /// The days between opposite changes.
    pub opposite_days: u32,
    /// The days between an emergency and the change back.
    pub after_emergency_days: u32,
    /// The hours for which a detached volume is kept.
    pub grace_hours: u32,
}

/// The brakes of moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Brakes {
    /// The target of durable writes during moves, in milliseconds at the 99th percentile.
    pub flush_p99_ms: u32,
    /// The length of the windows in which it is measured, in seconds.
    pub window_s: u32,
    /// Windows above the target in a row after which the move is cancelled.
    pub cancel_after: u32,
    /// The hold after a cancelled move, in hours.
    pub hold_hours: u32,
    /// Failures in a row after which nothing is done before a person looks.
    pub failures_max: u32,
    /// Minutes of a month in which flushes may be above the target during moves.
    pub error_minutes_per_month: u32,
    /// The age of a source from which it is stale, in seconds.
    pub stale_s: u32,
    /// The difference of the host's clock from the API's from which nothing but growth is done, in
    /// seconds.
    pub clock_skew_s_max: u32,
    /// The least pace of a move, in bytes a second.
    pub pace_bytes_per_s_min: u64,
}

/// A time of the week, in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Bit `n` is set if it begins on the day `n`; 0 is Monday.
    pub days: u8,
    /// Its start, in minutes of the day.
    pub from_minute: u16,
    /// Its length in minutes, at most a day.
    pub minutes: u16,
}

/// Limits at a known time of the week: a volume has at least these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The time.
    pub window: Window,
    /// The least IOPS of the file system's volumes together.
    pub iops_min: Option<u32>,
    /// The least MiB/s of the file system's volumes together.
    pub mibps_min: Option<u32>,
    /// The least size of the file system in GiB.
    pub gib_min: Option<u32>,
}

impl PolicyFile {
    /// Returns a file with one group, in which each key has its default and a comment.
    #[must_use]
    pub const fn usual_text() -> &'static str {
        include_str!("policy/usual.toml")
    }

    /// Returns such a file for volumes of an Evenkeel server, which gives room within seconds, and
    /// whose devices keep their size when their volumes grow. Both keys have other defaults, which
    /// are those of AWS.
    #[must_use]
    pub fn server_text() -> String {
        /// Parts of the usual text, and what takes their place.
        const PARTS: [(&str, &str); 4] = [
            ("The policy of the autopilot. Each", "The policy of the autopilot for a server. Each"),
            (
                "here, except the caps of money and the tags:\n# a key that is left out has the \
                 same effect.",
                "here, if it is left out, except\n# caps of money, tags, `grow_volumes` and \
                 `actuation_s`.",
            ),
            (
                "= true               # false: devices do",
                "= false              # usually true; devices do",
            ),
            ("= 240                 # from", "= 10                  # usually 240, for AWS; from"),
        ];
        let usual = Self::usual_text().to_owned();
        PARTS.iter().fold(usual, |text, (part, own)| text.replacen(part, own, 1))
    }

    /// Returns the policy of a volume or file system with these tags: that of the first group whose
    /// tags it all has. A group without tags has every one.
    #[must_use]
    pub fn group(&self, tags: &BTreeMap<String, String>) -> Option<&Policy> {
        let applies = |policy: &&Policy| {
            policy.tags.iter().all(|(key, value)| tags.get(key).is_some_and(|own| own == value))
        };
        self.groups.iter().find(applies)
    }
}

impl Policy {
    /// Returns the defaults, for a group with this name and no tags.
    #[must_use]
    pub fn usual(name: &str, plan: fleet::Policy) -> Self {
        Self {
            name: name.to_owned(),
            tags: BTreeMap::new(),
            mode: Mode::Observe,
            is_paused: false,
            day_s: DAY_S,
            plan,
            space: Space::default(),
            rate: Rate::default(),
            budget: Budget::default(),
            brakes: Brakes::default(),
            windows: Vec::new(),
            schedules: Vec::new(),
        }
    }

    /// Returns the length of a day of the rules, in milliseconds.
    #[must_use]
    pub fn day_ms(&self) -> u64 {
        u64::from(self.day_s) * 1_000
    }

    /// Returns the length of an hour of the rules, in milliseconds.
    #[must_use]
    pub fn hour_ms(&self) -> u64 {
        self.day_ms() / HOURS
    }

    /// Returns whether its days have their usual length.
    #[must_use]
    pub const fn has_whole_days(&self) -> bool {
        self.day_s == DAY_S
    }
}

impl Space {
    /// Returns whether a file system grows with its volume.
    #[must_use]
    pub const fn grows_file_systems(&self) -> bool {
        self.is_managed && self.grows_volumes
    }
}

impl Default for Space {
    fn default() -> Self {
        Self {
            is_managed: true,
            grows_volumes: true,
            keep: Keep::Hard,
            actuation_s: 240,
            reserve_percent: 2,
            reserve_bytes_min: 1 << 30,
            grow_percent: 10,
            grow_gib_min: 10,
            gib_max: 16_384,
            gib_min: 1,
            shrink_below_percent: 80,
            peak_headroom_percent: 10,
            peak_days: 28,
            quiet_days: 7,
            shrink_step_percent_max: 25,
        }
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self {
            is_managed: true,
            window_s: 900,
            exceeded_s_max: 60,
            days: 14,
            credits_s_min: 1_800,
            down_percent_max: 75,
            confirm_s: 86_400,
            watch_s: 86_400,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            modifications_per_day: 4,
            kept_for_undo: 1,
            kept_for_emergency: 1,
            monthly_micro_max: None,
            group_monthly_micro_max: None,
            fleet_monthly_micro_max: None,
            fleet_percent_per_hour_max: 5,
            cost_factor_max: 5,
            saving_micro_min: 1_000_000,
            saving_times_min: 3,
            operations_per_host_max: 2,
            opposite_days: 7,
            after_emergency_days: 28,
            grace_hours: 24,
        }
    }
}

impl Default for Brakes {
    fn default() -> Self {
        Self {
            flush_p99_ms: 20,
            window_s: 300,
            cancel_after: 3,
            hold_hours: 24,
            failures_max: 3,
            error_minutes_per_month: 60,
            stale_s: 180,
            clock_skew_s_max: 60,
            pace_bytes_per_s_min: 4 << 20,
        }
    }
}
