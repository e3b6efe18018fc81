//! Days of the calendar, by which rules and prices are chosen.

use core::fmt;
use core::str::FromStr;

/// A day of the Gregorian calendar. Ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Date {
    /// Year, as written.
    pub year: u16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
}

/// A text is not a date. The caller quotes the text with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedDate;

impl fmt::Display for MalformedDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a date of the calendar as YYYY-MM-DD or YYYY-MM")
    }
}

/// Days from 0000-03-01 to 1970-01-01. A year that begins in March ends with its leap day.
const EPOCH_DAYS: u64 = 719_468;
/// Days in 400 years.
const ERA_DAYS: u64 = 146_097;
/// The days of 9999-12-31 since 1970-01-01: a later year has a fifth digit.
const UNIX_DAY_MAX: u64 = 2_932_896;

impl Date {
    /// Creates a day of the calendar; `None` if there is no such day.
    #[must_use]
    pub fn new(year: u16, month: u8, day: u8) -> Option<Self> {
        (1..=days_in_month(year, month)).contains(&day).then_some(Self { year, month, day })
    }

    /// Returns the day `days` after 1970-01-01, at most 9999-12-31.
    #[must_use]
    pub fn of_unix_day(days: u64) -> Self {
        let days = days.min(UNIX_DAY_MAX) + EPOCH_DAYS;
        let day_of_era = days % ERA_DAYS;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = days / ERA_DAYS * 400 + year_of_era + u64::from(month <= 2);
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        Self {
            year: u16::try_from(year).expect("invariant: at most 9999"),
            month: u8::try_from(month).expect("invariant: at most 12"),
            day: u8::try_from(day).expect("invariant: at most 31"),
        }
    }

    /// Returns the days since 1970-01-01; `None` for an earlier day.
    #[must_use]
    pub fn unix_day(self) -> Option<u64> {
        let month = u64::from(self.month);
        let day = u64::from(self.day);
        let march_year = u64::from(self.year).checked_sub(u64::from(month <= 2))?;
        let march_month = (month + 9) % 12;
        let day_of_year = (153 * march_month + 2) / 5 + day - 1;
        let leap_days = march_year / 4 - march_year / 100 + march_year / 400;
        (365 * march_year + leap_days + day_of_year).checked_sub(EPOCH_DAYS)
    }
}

/// Returns the number of days of a month; 0 if there is no such month.
const fn days_in_month(year: u16, month: u8) -> u8 {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) => {
            29
        }
        2 => 28,
        _ => 0,
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl FromStr for Date {
    type Err = MalformedDate;

    /// Parses `YYYY-MM-DD`. `YYYY-MM` is the last day of that month: the rules of a month are those
    /// at its end, so that rules announced in July 2014 apply to 2014-07.
    fn from_str(text: &str) -> Result<Self, MalformedDate> {
        let mut fields = text.split('-');
        let year = digits::<4>(fields.next())?;
        let month = u8::try_from(digits::<2>(fields.next())?).map_err(|_| MalformedDate)?;
        let day = match fields.next() {
            None => days_in_month(year, month),
            day => u8::try_from(digits::<2>(day)?).map_err(|_| MalformedDate)?,
        };
        if fields.next().is_some() {
            return Err(MalformedDate);
        }
        Self::new(year, month, day).ok_or(MalformedDate)
    }
}

/// Parses exactly `N` decimal digits: `parse` alone would also accept a sign or another width.
fn digits<const N: usize>(field: Option<&str>) -> Result<u16, MalformedDate> {
    let field = field.filter(|f| f.len() == N && f.bytes().all(|b| b.is_ascii_digit()));
    field.and_then(|f| f.parse().ok()).ok_or(MalformedDate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn dates_survive_a_round_trip() {
        for text in ["2012-08-01", "2024-02-29", "0001-12-31", "2000-02-29"] {
            assert_eq!(text.parse::<Date>().map(|d| d.to_string()), Ok(text.to_string()));
        }
    }

    #[test]
    fn days_are_counted_from_1970() {
        for (text, days) in [
            ("1970-01-01", 0),
            ("2000-02-29", 11_016),
            ("2100-02-28", 47_540),
            ("2100-03-01", 47_541),
            ("9999-12-31", UNIX_DAY_MAX),
        ] {
            let date: Date = text.parse().unwrap();
            assert_eq!((date.unix_day(), Date::of_unix_day(days)), (Some(days), date), "{text}");
        }
        assert_eq!(Date::of_unix_day(u64::MAX).unix_day(), Some(UNIX_DAY_MAX));
        for early in ["1969-12-31", "0000-01-01"] {
            assert_eq!(early.parse::<Date>().unwrap().unix_day(), None, "{early}");
        }
    }

    #[test]
    fn each_day_is_the_one_after_the_day_before() {
        for day in 0..UNIX_DAY_MAX {
            let date = Date::of_unix_day(day);
            let next = Date::of_unix_day(day + 1);
            let Date { year, month, .. } = date;
            let expected = Date::new(year, month, date.day + 1)
                .or_else(|| Date::new(year, month + 1, 1))
                .or_else(|| Date::new(year + 1, 1, 1));
            assert_eq!((Some(next), date.unix_day()), (expected, Some(day)));
        }
    }

    #[test]
    fn a_month_is_its_last_day() {
        for (month, day) in
            [("2014-07", "2014-07-31"), ("2024-02", "2024-02-29"), ("2023-02", "2023-02-28")]
        {
            assert_eq!(month.parse::<Date>(), day.parse::<Date>());
        }
    }

    #[test]
    fn dates_not_in_the_calendar_are_refused() {
        for text in [
            "",
            "2024",
            "2024-13",
            "2024-00-01",
            "2023-02-29",
            "1900-02-29",
            "2024-1-1",
            "24-01-01",
            "2024-01-01-01",
            "+024-01-01",
            "2024-01-",
            "2024-01-1\u{e9}",
            "2024-04-31",
        ] {
            assert_eq!(text.parse::<Date>(), Err(MalformedDate), "{text:?}");
        }
    }
}
