//! Days of the calendar: by which rules and prices are chosen.

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

/// A text is not a date. The text is quoted by the caller, who knows where it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedDate;

impl fmt::Display for MalformedDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a date of the calendar as YYYY-MM-DD or YYYY-MM")
    }
}

/// How many days a month has; 0 if there is no such month.
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

    /// Reads `YYYY-MM-DD`. `YYYY-MM` is the last day of that month, because who asks for the rules
    /// of a month means those it ended with: what was announced in July 2014 counts as of 2014-07.
    fn from_str(text: &str) -> Result<Self, MalformedDate> {
        let mut fields = text.split('-');
        let year = digits::<4>(fields.next())?;
        let month = u8::try_from(digits::<2>(fields.next())?).map_err(|_| MalformedDate)?;
        let last_day = days_in_month(year, month);
        let day = match fields.next() {
            None => last_day,
            day => u8::try_from(digits::<2>(day)?).map_err(|_| MalformedDate)?,
        };
        if fields.next().is_some() || !(1..=last_day).contains(&day) {
            return Err(MalformedDate);
        }
        Ok(Self { year, month, day })
    }
}

/// Exactly `N` decimal digits: `parse` alone would also take a sign or another width.
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
    fn a_month_is_its_last_day() {
        for (month, day) in
            [("2014-07", "2014-07-31"), ("2024-02", "2024-02-29"), ("2023-02", "2023-02-28")]
        {
            assert_eq!(month.parse::<Date>(), day.parse::<Date>());
        }
    }

    #[test]
    fn what_is_not_in_the_calendar_is_refused() {
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
