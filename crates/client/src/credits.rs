//! The credits of a volume in words: how long they last, and how they change.

use crate::model::{Balance, Credits};
use crate::output::{Item, or_dash};
use evenkeel_sim::text::span;
use serde::Serialize;
use std::time::Duration;

/// Readings of a balance a second, for a trend.
const READINGS_PER_SECOND: u64 = 2;
/// Time between two readings of a balance.
pub const TREND_INTERVAL: Duration = Duration::from_millis(1_000 / READINGS_PER_SECOND);

/// Returns the balances of a volume, each after its name.
pub fn balances(credits: &Credits) -> impl Iterator<Item = (&'static str, Balance)> {
    let operations = credits.operations.map(|balance| ("I/O credits", balance));
    let bytes = credits.bytes.map(|balance| ("byte credits", balance));
    operations.into_iter().chain(bytes)
}

/// Describes a balance, and the time that it lasts at full burst.
pub fn level(balance: &Balance) -> String {
    let level = format!("{} of {}", balance.balance, balance.capacity);
    match balance.burst_to_empty_s() {
        Some(lasts_s) => format!("{level}, {} of full burst", span(lasts_s)),
        None => level,
    }
}

/// Describes how a balance changes, by two readings with [`TREND_INTERVAL`] between them.
pub fn trend(first: &Balance, second: &Balance) -> String {
    let spent = first.balance.saturating_sub(second.balance) * READINGS_PER_SECOND;
    let earned = second.balance.saturating_sub(first.balance) * READINGS_PER_SECOND;
    if let Some(left_s) = second.balance.checked_div(spent) {
        let left = span(left_s);
        format!("spending {spent}/s: empty in {left} at this rate")
    } else if earned > 0 {
        let missing = second.capacity.saturating_sub(second.balance);
        let left = span(missing.div_ceil(earned));
        format!("earning {earned}/s: full in {left} at this rate")
    } else if second.balance >= second.capacity {
        "full".to_owned()
    } else {
        "steady: all that is earned is spent".to_owned()
    }
}

/// One bucket of credits, as `volume credits` lists it.
#[derive(Serialize)]
pub struct CreditRow {
    volume_id: String,
    /// `operations` (gp2) or `bytes` (st1, sc1).
    unit: &'static str,
    #[serde(flatten)]
    balance: Balance,
    seconds_to_full_when_idle: Option<u64>,
    seconds_of_full_burst: Option<u64>,
}

impl CreditRow {
    /// Returns a row for each bucket of a volume.
    pub fn of(volume_id: &str, credits: &Credits) -> Vec<Self> {
        let buckets = [("operations", credits.operations), ("bytes", credits.bytes)];
        let row = |(unit, balance): (&'static str, Option<Balance>)| {
            let balance = balance?;
            Some(Self {
                volume_id: volume_id.to_owned(),
                unit,
                balance,
                seconds_to_full_when_idle: balance.idle_to_full_s(),
                seconds_of_full_burst: balance.burst_to_empty_s(),
            })
        };
        buckets.into_iter().filter_map(row).collect()
    }
}

impl Item for CreditRow {
    const SCHEMA: &'static str = "evenkeel.credits/1";
    const FIELD: &'static str = "credits";
    const COLUMNS: &'static [&'static str] =
        &["VOLUME", "UNIT", "BALANCE", "CAPACITY", "FULL WHEN IDLE IN", "LASTS AT FULL BURST"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.volume_id.clone(),
            self.unit.to_owned(),
            self.balance.balance.to_string(),
            self.balance.capacity.to_string(),
            or_dash(self.seconds_to_full_when_idle.map(span)),
            or_dash(self.seconds_of_full_burst.map(span)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trend_has_a_rate_and_its_end() {
        let filled = |balance| Balance {
            balance,
            capacity: 5_400_000,
            refill_per_second: 300,
            burst_per_second: 3_000,
        };
        assert_eq!(
            trend(&filled(5_400_000), &filled(5_398_650)),
            "spending 2700/s: empty in 33 min at this rate"
        );
        assert_eq!(trend(&filled(0), &filled(150)), "earning 300/s: full in 5 h at this rate");
        assert_eq!(trend(&filled(7), &filled(7)), "steady: all that is earned is spent");
        assert_eq!(trend(&filled(5_400_000), &filled(5_400_000)), "full");
    }

    /// By the published table, 100 GiB of gp2 burst for 33 minutes.
    #[test]
    fn a_balance_is_shown_with_how_long_it_lasts() {
        let filled = |balance, refill_per_second| Balance {
            balance,
            capacity: 5_400_000,
            refill_per_second,
            burst_per_second: 3_000,
        };
        assert_eq!(level(&filled(5_400_000, 300)), "5400000 of 5400000, 33 min of full burst");
        assert_eq!(level(&filled(7, 300)), "7 of 5400000, 0 s of full burst");
        assert_eq!(
            level(&filled(2_700 * 100 + 2_699, 300)),
            "272699 of 5400000, 100 s of full burst"
        );
        // At 1,000 GiB the baseline equals the burst rate, so bursting costs nothing.
        assert_eq!(level(&filled(7, 3_000)), "7 of 5400000");
    }
}
