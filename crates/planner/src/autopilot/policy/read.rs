//! Reads the policies of a file. Every error names the line, the key, the value and its limits.

use std::fmt;

use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::VolumeType;
use toml::de::DeTable;

use super::{Brakes, Budget, Keep, Mode, Policy, PolicyFile, Rate, Schedule, Space, Window};
use crate::fleet;
use crate::format::money_exact;
use crate::price_book::BookError;
use crate::price_book::table::Table;

/// Maximum size of a file of policies, in bytes.
pub const POLICY_BYTES_MAX: usize = 1 << 20;
const GROUPS_MAX: usize = 1_000;
const TAGS_MAX: usize = 50;
/// Maximum number of windows or schedules of a group.
const TIMES_MAX: usize = 100;
const MONEY_MAX: u64 = 1_000_000_000;
const GIB_MAX: u64 = 4_194_304;
const DAY_S: u64 = 86_400;
const DAY_MINUTES: u16 = 1_440;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// An error in a file of policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// The line, from 1 on; `None` if the error is of the file as a whole.
    pub line: Option<usize>,
    /// The value found, and the expected one.
    pub message: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Malformed {}

impl From<BookError> for Malformed {
    fn from(BookError { line, message }: BookError) -> Self {
        Self { line, message }
    }
}

impl Malformed {
    fn in_table(table: &Table<'_>, message: String) -> Self {
        Self { line: Some(table.line()), message }
    }
}

impl PolicyFile {
    /// Reads a file. `plan` has the rules and prices by which recordings are judged; a group may
    /// set its types, durability and headroom.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the text is no TOML, has an unknown key, or a value beyond its
    /// limits.
    pub fn parse(text: &str, plan: &fleet::Policy) -> Result<Self, Malformed> {
        if text.len() > POLICY_BYTES_MAX {
            let message = format!(
                "the policy has {} bytes, of at most {POLICY_BYTES_MAX}: split its groups among \
                 files",
                text.len()
            );
            return Err(Malformed { line: None, message });
        }
        let document = DeTable::parse(text).map_err(|error| Malformed {
            line: error.span().map(|span| evenkeel_sim::text::line_of(text, span.start)),
            message: error.message().to_owned(),
        })?;
        let mut file = Table::new(text, "the policy", 1, document.get_ref());
        let whole = file.table("autopilot", "[autopilot]")?.map(whole).transpose()?;
        let whole = whole.unwrap_or_default();
        let tables = file.tables("group", "[[group]]")?;
        file.done()?;
        if tables.is_empty() {
            return Err(Malformed {
                line: None,
                message: "it has no [[group]]: add one".to_owned(),
            });
        }
        if tables.len() > GROUPS_MAX {
            let message = format!("{} tables [[group]]: expected 1 to {GROUPS_MAX}", tables.len());
            return Err(Malformed { line: None, message });
        }
        let mut groups: Vec<Policy> = Vec::new();
        for table in tables {
            let line = table.line();
            let group = group(table, plan, &whole)?;
            if groups.iter().any(|other| other.name == group.name) {
                let message = format!("two groups have the name {:?}: rename one", group.name);
                return Err(Malformed { line: Some(line), message });
            }
            groups.push(group);
        }
        Ok(Self { paused: whole.is_paused, groups })
    }
}

/// The keys that apply to all groups.
#[derive(Default)]
struct Whole {
    is_paused: bool,
    day_s: Option<u32>,
    fleet_monthly_micro_max: Option<u64>,
    fleet_percent_per_hour_max: Option<u32>,
}

fn whole(mut table: Table<'_>) -> Result<Whole, Malformed> {
    let is_paused = table.flag("paused")?.unwrap_or(false);
    let day_s = table.whole("day_s", 10..=DAY_S)?.map(narrow);
    let fleet_monthly_micro_max = table.amount("fleet_monthly_max", 0..=MONEY_MAX)?;
    let mut fleet_percent_per_hour_max = None;
    let percent = table.whole("fleet_percent_per_hour_max", 0..=100)?;
    if let Some(percent) = percent {
        fleet_percent_per_hour_max = Some(narrow(percent));
    }
    table.done()?;
    Ok(Whole { is_paused, day_s, fleet_monthly_micro_max, fleet_percent_per_hour_max })
}

/// Returns a number whose range ends within 32 bits.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("invariant: its range ends within 32 bits")
}

/// Sets a number that a key has.
fn set(
    table: &mut Table<'_>,
    key: &'static str,
    (least, most): (u64, u64),
    number: &mut u32,
) -> Result<(), Malformed> {
    if let Some(value) = table.whole(key, least..=most)? {
        *number = narrow(value);
    }
    Ok(())
}

fn group(mut table: Table<'_>, plan: &fleet::Policy, whole: &Whole) -> Result<Policy, Malformed> {
    let name = table.words("name")?.map(str::to_owned);
    let name = name.ok_or_else(|| table.missing("name", "a name for the group"))?;
    let mut policy = Policy::usual(&name, plan.clone());
    policy.is_paused = whole.is_paused;
    policy.day_s = whole.day_s.unwrap_or(policy.day_s);
    policy.tags = table.texts("tags", TAGS_MAX)?;
    let mode = table.word("mode", "\"observe\", \"advise\" or \"act\"", |word| match word {
        "observe" => Some(Mode::Observe),
        "advise" => Some(Mode::Advise),
        "act" => Some(Mode::Act),
        _ => None,
    })?;
    policy.mode = mode.unwrap_or_default();
    if let Some(inner) = table.table("space", "[group.space]")? {
        policy.space = space(inner)?;
    }
    if let Some(inner) = table.table("rate", "[group.rate]")? {
        policy.rate = rate(inner, &mut policy.plan)?;
    }
    if let Some(inner) = table.table("budget", "[group.budget]")? {
        policy.budget = budget(inner)?;
    }
    policy.budget.fleet_monthly_micro_max = whole.fleet_monthly_micro_max;
    if let Some(percent) = whole.fleet_percent_per_hour_max {
        policy.budget.fleet_percent_per_hour_max = percent;
    }
    if let Some(inner) = table.table("brakes", "[group.brakes]")? {
        policy.brakes = brakes(inner)?;
    }
    for inner in times(&mut table, "window", "[[group.window]]")? {
        policy.windows.push(window_alone(inner)?);
    }
    for inner in times(&mut table, "schedule", "[[group.schedule]]")? {
        policy.schedules.push(schedule(inner, policy.space.gib_max)?);
    }
    table.done()?;
    Ok(policy)
}

fn times<'a>(
    table: &mut Table<'a>,
    key: &'static str,
    name: &'static str,
) -> Result<Vec<Table<'a>>, Malformed> {
    let tables = table.tables(key, name)?;
    if tables.len() > TIMES_MAX {
        let message = format!("{} tables {name}: expected at most {TIMES_MAX}", tables.len());
        return Err(Malformed::in_table(table, message));
    }
    Ok(tables)
}

fn space(mut table: Table<'_>) -> Result<Space, Malformed> {
    let mut space = Space::default();
    space.is_managed = table.flag("managed")?.unwrap_or(space.is_managed);
    space.grows_volumes = table.flag("grow_volumes")?.unwrap_or(space.grows_volumes);
    let keep = table.word("keep", "\"hard\" or \"likely\"", |word| match word {
        "hard" => Some(Keep::Hard),
        "likely" => Some(Keep::Likely),
        _ => None,
    })?;
    space.keep = keep.unwrap_or(space.keep);
    let t = &mut table;
    set(t, "actuation_s", (1, DAY_S), &mut space.actuation_s)?;
    set(t, "reserve_percent", (0, 50), &mut space.reserve_percent)?;
    if let Some(mib) = t.whole("reserve_mib_min", 0..=1 << 20)? {
        space.reserve_bytes_min = mib * MIB;
    }
    set(t, "grow_percent", (1, 100), &mut space.grow_percent)?;
    set(t, "grow_gib_min", (1, 65_536), &mut space.grow_gib_min)?;
    set(t, "gib_max", (1, GIB_MAX), &mut space.gib_max)?;
    set(t, "gib_min", (1, GIB_MAX), &mut space.gib_min)?;
    set(t, "shrink_below_percent", (1, 95), &mut space.shrink_below_percent)?;
    set(t, "peak_headroom_percent", (0, 1_000), &mut space.peak_headroom_percent)?;
    set(t, "peak_days", (1, 366), &mut space.peak_days)?;
    set(t, "quiet_days", (0, 366), &mut space.quiet_days)?;
    set(t, "shrink_step_percent_max", (1, 50), &mut space.shrink_step_percent_max)?;
    if space.gib_min > space.gib_max {
        let message = format!(
            "gib_min = {} in [group.space] is more than gib_max = {}",
            space.gib_min, space.gib_max
        );
        return Err(Malformed::in_table(&table, message));
    }
    table.done()?;
    Ok(space)
}

fn rate(mut table: Table<'_>, plan: &mut fleet::Policy) -> Result<Rate, Malformed> {
    let mut rate = Rate::default();
    rate.is_managed = table.flag("managed")?.unwrap_or(rate.is_managed);
    let expected = "a list of standard, st1, sc1, gp2, gp3, io1, io2";
    let types = table.list("types", expected, |text| text.parse::<VolumeType>().ok())?;
    if !types.is_empty() {
        plan.types = types;
    }
    plan.less_durable = table.flag("less_durable")?.unwrap_or(plan.less_durable);
    let t = &mut table;
    set(t, "headroom_percent", (0, 1_000), &mut plan.headroom_percent)?;
    set(t, "window_s", (60, 3_600), &mut rate.window_s)?;
    set(t, "exceeded_s_max", (0, 3_600), &mut rate.exceeded_s_max)?;
    set(t, "credits_s_min", (0, 30 * DAY_S), &mut rate.credits_s_min)?;
    set(t, "days", (1, 366), &mut rate.days)?;
    set(t, "down_percent_max", (1, 99), &mut rate.down_percent_max)?;
    set(t, "confirm_s", (0, 30 * DAY_S), &mut rate.confirm_s)?;
    set(t, "watch_s", (0, 30 * DAY_S), &mut rate.watch_s)?;
    if rate.exceeded_s_max >= rate.window_s {
        let message = format!(
            "exceeded_s_max = {} in [group.rate]: expected less than window_s = {}, or limits \
             never rise; managed = false leaves them as they are",
            rate.exceeded_s_max, rate.window_s
        );
        return Err(Malformed::in_table(&table, message));
    }
    table.done()?;
    Ok(rate)
}

fn budget(mut table: Table<'_>) -> Result<Budget, Malformed> {
    let mut budget = Budget::default();
    let t = &mut table;
    set(t, "modifications_per_day", (1, 100), &mut budget.modifications_per_day)?;
    set(t, "kept_for_undo", (0, 100), &mut budget.kept_for_undo)?;
    set(t, "kept_for_emergency", (0, 100), &mut budget.kept_for_emergency)?;
    budget.monthly_micro_max = t.amount("monthly_max", 0..=MONEY_MAX)?;
    budget.group_monthly_micro_max = t.amount("group_monthly_max", 0..=MONEY_MAX)?;
    set(t, "cost_factor_max", (1, 1_000_000), &mut budget.cost_factor_max)?;
    let saving_min = t.amount("saving_min", 0..=MONEY_MAX)?;
    budget.saving_micro_min = saving_min.unwrap_or(budget.saving_micro_min);
    set(t, "saving_times_min", (0, 1_000), &mut budget.saving_times_min)?;
    set(t, "operations_per_host_max", (1, 100), &mut budget.operations_per_host_max)?;
    set(t, "opposite_days", (0, 366), &mut budget.opposite_days)?;
    set(t, "after_emergency_days", (0, 366), &mut budget.after_emergency_days)?;
    set(t, "grace_hours", (1, 8_784), &mut budget.grace_hours)?;
    let kept = budget.kept_for_undo + budget.kept_for_emergency;
    if kept >= budget.modifications_per_day {
        let message = format!(
            "kept_for_undo and kept_for_emergency in [group.budget] are {kept} together: expected \
             less than modifications_per_day = {}",
            budget.modifications_per_day
        );
        return Err(Malformed::in_table(&table, message));
    }
    if let (Some(group), Some(each)) = (budget.group_monthly_micro_max, budget.monthly_micro_max)
        && group < each
    {
        let message = format!(
            "group_monthly_max = {} in [group.budget] is less than monthly_max = {}, which is of \
             one file system",
            money_exact(group),
            money_exact(each)
        );
        return Err(Malformed::in_table(&table, message));
    }
    table.done()?;
    Ok(budget)
}

fn brakes(mut table: Table<'_>) -> Result<Brakes, Malformed> {
    let mut brakes = Brakes::default();
    let t = &mut table;
    set(t, "flush_p99_ms", (1, 60_000), &mut brakes.flush_p99_ms)?;
    set(t, "window_s", (10, 3_600), &mut brakes.window_s)?;
    set(t, "cancel_after", (1, 1_000), &mut brakes.cancel_after)?;
    set(t, "hold_hours", (0, 8_784), &mut brakes.hold_hours)?;
    set(t, "failures_max", (1, 1_000), &mut brakes.failures_max)?;
    set(t, "error_minutes_per_month", (0, 44_640), &mut brakes.error_minutes_per_month)?;
    set(t, "stale_s", (10, DAY_S), &mut brakes.stale_s)?;
    set(t, "clock_skew_s_max", (1, DAY_S), &mut brakes.clock_skew_s_max)?;
    if let Some(mibps) = t.whole("pace_mibps_min", 1..=GIB / MIB)? {
        brakes.pace_bytes_per_s_min = mibps * MIB;
    }
    table.done()?;
    Ok(brakes)
}

fn window_alone(mut table: Table<'_>) -> Result<Window, Malformed> {
    let window = window(&mut table)?;
    table.done()?;
    Ok(window)
}

fn window(table: &mut Table<'_>) -> Result<Window, Malformed> {
    let expected = "days of the week, as \"mon-fri\", \"sat,sun\" or \"daily\"";
    let days = table.word("days", expected, days)?;
    let days = days.ok_or_else(|| table.missing("days", expected))?;
    let from = table.word("from", "a time from \"00:00\" to \"23:59\"", |text| {
        minute(text).filter(|minute| *minute < DAY_MINUTES)
    })?;
    let from = from.ok_or_else(|| table.missing("from", "its start in UTC, as \"01:00\""))?;
    let to = table.word("to", "a time from \"00:00\" to \"24:00\"", minute)?;
    let to = to.ok_or_else(|| table.missing("to", "its end in UTC, as \"05:00\""))?;
    // An end that is no later is on the next day.
    let minutes = if to > from { to - from } else { to + DAY_MINUTES - from };
    if to == from {
        let message = "it begins and ends at the same time: write `to = \"24:00\"` for the end of \
                       the day";
        return Err(Malformed::in_table(table, message.to_owned()));
    }
    Ok(Window { days, from_minute: from, minutes })
}

fn schedule(mut table: Table<'_>, gib_max: u32) -> Result<Schedule, Malformed> {
    let window = window(&mut table)?;
    let iops_min = table.whole("iops_min", 1..=10_000_000)?.map(narrow);
    let mibps_min = table.whole("mibps_min", 1..=1_000_000)?.map(narrow);
    let gib_min = table.whole("gib_min", 1..=GIB_MAX)?.map(narrow);
    if iops_min.is_none() && mibps_min.is_none() && gib_min.is_none() {
        let error = table.missing("limit", "iops_min, mibps_min or gib_min");
        return Err(error.into());
    }
    if let Some(gib_min) = gib_min.filter(|gib_min| *gib_min > gib_max) {
        let message = format!(
            "gib_min = {gib_min} in [[group.schedule]] is more than gib_max = {gib_max} in \
             [group.space]"
        );
        return Err(Malformed::in_table(&table, message));
    }
    table.done()?;
    Ok(Schedule { window, iops_min, mibps_min, gib_min })
}

/// Reads `HH:MM`, up to `24:00`.
fn minute(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let digits = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u16>().ok()).flatten()
    };
    let hours = digits(hours)?;
    let minutes = digits(minutes).filter(|minutes| *minutes < 60)?;
    let minute = hours * 60 + minutes;
    (minute <= DAY_MINUTES).then_some(minute)
}

/// Reads days of the week as bits: names, ranges of names, and lists of both; or `daily`.
fn days(text: &str) -> Option<u8> {
    if text == "daily" {
        return Some(0b111_1111);
    }
    let day = |name: &str| DAYS.iter().position(|day| *day == name.trim());
    let mut bits = 0_u8;
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (day(first)?, day(last)?),
            None => (day(part)?, day(part)?),
        };
        // A range may pass the end of the week.
        let length = (last + DAYS.len() - first) % DAYS.len();
        for offset in 0..=length {
            bits |= 1 << ((first + offset) % DAYS.len());
        }
    }
    Some(bits)
}
