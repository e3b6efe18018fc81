//! The used bytes of the past, as far as the rules of space need them.
//!
//! It is bounded: a row for each of the last [`DAYS_MAX`] days, and the readings of the last
//! actuation time, at most [`READINGS_MAX`].

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The most days that are kept.
pub const DAYS_MAX: usize = 400;
/// The most readings that are kept. With more, every second one is dropped.
pub const READINGS_MAX: usize = 512;
/// Readings that are further apart show growth and no jump, in milliseconds.
const JUMP_MS_MAX: u64 = 60_000;

/// The used bytes of the past.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct History {
    /// The last readings, oldest first: the time in milliseconds since 1970, and the bytes.
    readings: VecDeque<(u64, u64)>,
    /// The days, oldest first.
    days: VecDeque<Day>,
}

/// The largest values of a day.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Day {
    /// Days since 1970; shorter ones in a trial.
    day: u64,
    /// The most that was used, in bytes.
    peak: u64,
    /// The largest difference of two readings, in bytes.
    jump: u64,
    /// The largest growth within the actuation time, in bytes.
    growth: u64,
}

/// The largest values of some days.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Largest {
    /// The most that was used, in bytes.
    pub peak_bytes: u64,
    /// The largest difference of two readings, in bytes.
    pub jump_bytes: u64,
    /// The largest growth within the actuation time, in bytes.
    pub growth_bytes: u64,
}

/// The part of the past that the rules look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Past {
    /// The actuation time of the policy, in milliseconds.
    pub window_ms: u64,
    /// The days of the largest values.
    pub days: u32,
    /// The length of a day, in milliseconds.
    pub day_ms: u64,
}

impl History {
    /// Adds a reading, and returns the largest values of the past.
    ///
    /// A reading that is not later than the last one is not kept: a clock was set back. Readings
    /// from the future are dropped, so that a clock that was wrong does no lasting harm.
    pub fn add(&mut self, unix_ms: u64, used_bytes: u64, past: &Past) -> Largest {
        let now = unix_ms / past.day_ms;
        self.readings.retain(|(time_ms, _)| *time_ms <= unix_ms);
        self.days.retain(|day| day.day <= now);
        let last = self.readings.back().copied();
        if last.is_none_or(|(time_ms, _)| time_ms < unix_ms) {
            let jump = last
                .filter(|(time_ms, _)| unix_ms - time_ms <= JUMP_MS_MAX)
                .map_or(0, |(_, bytes)| used_bytes.saturating_sub(bytes));
            self.keep(unix_ms, used_bytes, past, jump);
        }
        self.largest(now, past.days)
    }

    fn keep(&mut self, unix_ms: u64, used_bytes: u64, past: &Past, jump: u64) {
        let from_ms = unix_ms.saturating_sub(past.window_ms);
        while self.readings.front().is_some_and(|(time_ms, _)| *time_ms < from_ms) {
            self.readings.pop_front();
        }
        if self.readings.len() >= READINGS_MAX {
            let thinned = self.readings.iter().step_by(2).copied().collect();
            self.readings = thinned;
        }
        self.readings.push_back((unix_ms, used_bytes));
        let least = self.readings.iter().map(|(_, bytes)| *bytes).min();
        let growth = used_bytes.saturating_sub(least.unwrap_or(used_bytes));
        let number = unix_ms / past.day_ms;
        if self.days.back().is_none_or(|day| day.day != number) {
            self.days.push_back(Day { day: number, ..Day::default() });
        }
        while self.days.len() > DAYS_MAX {
            self.days.pop_front();
        }
        if let Some(day) = self.days.back_mut() {
            day.peak = day.peak.max(used_bytes);
            day.jump = day.jump.max(jump);
            day.growth = day.growth.max(growth);
        }
    }

    /// Returns the largest values of the last days. The present day counts as one.
    fn largest(&self, now: u64, days: u32) -> Largest {
        let oldest = now.saturating_sub(u64::from(days));
        let kept = self.days.iter().filter(|day| day.day > oldest || day.day == now);
        kept.fold(Largest::default(), |sum, day| Largest {
            peak_bytes: sum.peak_bytes.max(day.peak),
            jump_bytes: sum.jump_bytes.max(day.jump),
            growth_bytes: sum.growth_bytes.max(day.growth),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY_MS: u64 = 86_400_000;
    const USUAL: Past = Past { window_ms: 240_000, days: 28, day_ms: DAY_MS };

    #[test]
    fn history_has_the_peak_the_jump_and_the_growth() {
        let mut history = History::default();
        history.add(1_000, 100, &USUAL);
        history.add(11_000, 150, &USUAL);
        let largest = history.add(21_000, 170, &USUAL);
        assert_eq!(largest, Largest { peak_bytes: 170, jump_bytes: 50, growth_bytes: 70 });
        let largest = history.add(31_000, 20, &USUAL);
        assert_eq!(largest, Largest { peak_bytes: 170, jump_bytes: 50, growth_bytes: 70 });
    }

    #[test]
    fn reading_after_a_pause_of_the_agent_is_no_jump() {
        let mut history = History::default();
        history.add(1_000, 100, &USUAL);
        let largest = history.add(3_600_000, 9_000, &USUAL);
        assert_eq!(largest, Largest { peak_bytes: 9_000, jump_bytes: 0, growth_bytes: 0 });
    }

    #[test]
    fn reading_of_a_clock_that_was_wrong_is_dropped() {
        let mut history = History::default();
        history.add(90 * DAY_MS, 5_000, &USUAL);
        let largest = history.add(2 * DAY_MS, 100, &USUAL);
        assert_eq!(largest.peak_bytes, 100);
    }

    #[test]
    fn day_outside_of_the_window_is_not_counted() {
        let mut history = History::default();
        history.add(DAY_MS, 5_000, &USUAL);
        assert_eq!(history.add(28 * DAY_MS, 100, &USUAL).peak_bytes, 5_000);
        assert_eq!(history.add(29 * DAY_MS, 100, &USUAL).peak_bytes, 100);
    }

    proptest! {
        /// Compared with all readings, as long as none is thinned out.
        #[test]
        fn history_equals_a_list_of_all_readings(
            steps in proptest::collection::vec((1_u64..50_000, 0_u64..1_000), 1..200),
        ) {
            let mut history = History::default();
            let mut all: Vec<(u64, u64)> = Vec::new();
            let mut now = 1;
            for (pause, used) in steps {
                now += pause;
                all.push((now, used));
                let largest = history.add(now, used, &Past { window_ms: 60_000, ..USUAL });
                let mut expected = Largest::default();
                for (index, (time, used)) in all.iter().enumerate() {
                    expected.peak_bytes = expected.peak_bytes.max(*used);
                    for (before, bytes) in all.iter().take(index) {
                        let growth = used.saturating_sub(*bytes);
                        if time - before <= 60_000 {
                            expected.growth_bytes = expected.growth_bytes.max(growth);
                        }
                    }
                    let last = index.checked_sub(1).map(|before| all[before]);
                    if let Some((before, bytes)) = last
                        && time - before <= JUMP_MS_MAX
                    {
                        let jump = used.saturating_sub(bytes);
                        expected.jump_bytes = expected.jump_bytes.max(jump);
                    }
                }
                prop_assert_eq!(largest, expected);
            }
        }

        #[test]
        fn history_is_bounded(count in 1_u64..3_000) {
            let mut history = History::default();
            for number in 0..count {
                let past = Past { window_ms: u64::MAX, ..USUAL };
                history.add(number * DAY_MS / 40 + number, number, &past);
                prop_assert!(history.readings.len() <= READINGS_MAX);
                prop_assert!(history.days.len() <= DAYS_MAX);
            }
        }
    }
}
