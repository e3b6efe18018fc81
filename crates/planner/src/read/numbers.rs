//! Reads numbers and times as tools print them.

use evenkeel_core::volume::Date;

/// Reads a number, not negative: `12`, `0.50`, or `0,50` in a locale with a decimal comma.
pub(crate) fn decimal(text: &str) -> Option<f64> {
    // The standard library reads words such as `inf` and `nan` as numbers.
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let value: f64 = match text.split_once(',') {
        Some((whole, part)) if !text.contains('.') => format!("{whole}.{part}").parse().ok()?,
        _ => text.parse().ok()?,
    };
    value.is_finite().then_some(value)
}

/// Returns the nearest whole amount.
pub(crate) fn amount(value: f64) -> u64 {
    // A cast saturates, and returns 0 for negative values and for NaN.
    if is_whole(value) { value as u64 } else { value.round() as u64 }
}

/// Returns whether a value is a whole number, not negative. Rounding calls a function of the C
/// library, and most values need none.
pub(crate) fn is_whole(value: f64) -> bool {
    (value as u64) as f64 == value
}

/// A time in milliseconds since 1970, and whether its zone is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Time {
    pub unix_ms: u64,
    pub has_zone: bool,
}

/// The order of day and month in dates such as `11/25/26`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DateOrder {
    /// As in `25/11/26`.
    DayFirst,
    /// As in `11/25/26`.
    MonthFirst,
}

/// A day in days since 1970, and the order of its parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Day {
    pub unix_day: i64,
    /// The order that the parts show: one is above 12. `None` if they show none.
    pub order: Option<DateOrder>,
    /// Whether the parts make two different dates, and nothing says which one is meant.
    pub is_ambiguous: bool,
    /// Whether the year has four digits.
    pub has_century: bool,
}

/// The reason why a text is not read as a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTime {
    /// It is none.
    Unknown,
    /// It is one of two dates.
    Ambiguous,
}

/// The expected text instead of a date that can be read in two ways.
pub(crate) const ASKS_ORDER: &str = "a date with one meaning: the day or the month may be first; \
                                     say which with --dates day-first or --dates month-first, or \
                                     record with S_TIME_FORMAT=ISO";

/// Reads times of one recording, which have one order of day and month.
#[derive(Clone, Copy, Default)]
pub(crate) struct Times {
    pub order: Option<DateOrder>,
}

impl Times {
    /// Reads a time in one of the formats that sysstat prints, or its seconds since 1970.
    pub fn read(&mut self, text: &str) -> Result<Time, NotTime> {
        let text = text.trim();
        if (9..=11).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let seconds: u64 = text.parse().map_err(|_| NotTime::Unknown)?;
            return Ok(Time { unix_ms: seconds.saturating_mul(1_000), has_zone: true });
        }
        let (time, day) = time_by(text, self.order).ok_or(NotTime::Unknown)?;
        if day.is_ambiguous {
            return Err(NotTime::Ambiguous);
        }
        self.order = self.order.or(day.order);
        Ok(time)
    }
}

/// Reads a time in one of the formats that sysstat, CloudWatch and their locales print.
pub(crate) fn time(text: &str) -> Option<Time> {
    time_by(text, None).map(|(time, _)| time)
}

fn time_by(text: &str, order: Option<DateOrder>) -> Option<(Time, Day)> {
    let text = text.trim();
    let index = text.find(['T', ' '])?;
    let day = text.get(..index)?;
    let rest = text.get(index + 1..)?;
    let mut day = date(day, order)?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && !":.,".contains(c)).unwrap_or(rest.len());
    let clock = rest.get(..end)?;
    let zone = rest.get(end..)?.trim();
    let mut ms = clock_ms(clock)?;
    let (is_half, zone) = match zone.get(..2) {
        Some(half @ ("AM" | "PM" | "am" | "pm")) => (Some(half), zone.get(2..)?.trim()),
        _ => (None, zone),
    };
    if let Some(half) = is_half {
        ms = half_day(ms, half.eq_ignore_ascii_case("pm"))?;
        // Of the locales of glibc with AM and PM and four digits of the year, en_US alone prints
        // these words.
        day.is_ambiguous &= !day.has_century;
    }
    let offset_ms = match zone {
        "" => 0,
        _ => zone_ms(zone)?,
    };
    let day_ms = day.unix_day.checked_mul(86_400_000)?;
    let unix_ms = day_ms.checked_add(ms)?.checked_sub(offset_ms)?;
    let time = Time { unix_ms: u64::try_from(unix_ms).ok()?, has_zone: !zone.is_empty() };
    Some((time, day))
}

/// Reads a time such as `2026-11-25T19:00:00Z` or with `+00:00`, which most texts have, in
/// milliseconds since 1970. It is a fast path of [`time`].
pub(crate) fn utc(text: &str) -> Option<u64> {
    UtcTimes::default().read(text.as_bytes())
}

/// Parses successive times as [`utc`] does. It keeps the start of the last day, because successive
/// times of a series are mostly on the same day.
#[derive(Default)]
pub(crate) struct UtcTimes {
    /// The text of the day of the last time, and the day's start in seconds since 1970.
    day: Option<([u8; 11], i64)>,
}

impl UtcTimes {
    /// Parses a time; `None` if it has another form.
    pub fn read(&mut self, text: &[u8]) -> Option<u64> {
        let (day, rest) = text.split_first_chunk::<11>()?;
        let (clock, zone) = rest.split_first_chunk::<8>()?;
        if !matches!(zone, b"Z" | b"+00:00") {
            return None;
        }
        let start_s = match self.day {
            Some((known, start_s)) if known == *day => start_s,
            _ => {
                let start_s = utc_day_s(*day)?;
                self.day = Some((*day, start_s));
                start_s
            }
        };
        let [h1, h2, b':', n1, n2, b':', s1, s2] = *clock else { return None };
        let hours = two_digits(h1, h2).filter(|hours| *hours < 24)?;
        let minutes = two_digits(n1, n2).filter(|minutes| *minutes < 60)?;
        let seconds = two_digits(s1, s2).filter(|seconds| *seconds < 60)?;
        u64::try_from((start_s + (hours * 60 + minutes) * 60 + seconds) * 1_000).ok()
    }
}

/// Returns the start of a day such as `2026-11-25T` in seconds since 1970.
fn utc_day_s(text: [u8; 11]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T'] = text else { return None };
    let year = two_digits(y1, y2)? * 100 + two_digits(y3, y4)?;
    Some(days(year, two_digits(m1, m2)?, two_digits(d1, d2)?)? * 86_400)
}

fn two_digits(high: u8, low: u8) -> Option<i64> {
    let is_number = high.is_ascii_digit() && low.is_ascii_digit();
    is_number.then(|| i64::from(high - b'0') * 10 + i64::from(low - b'0'))
}

/// Reads a time of day, `19:09:48` or `07:09:48 PM`, in milliseconds since midnight.
pub(crate) fn time_of_day(clock: &str, half: Option<&str>) -> Option<u64> {
    let ms = clock_ms(clock)?;
    let ms = match half {
        Some("AM" | "am") => half_day(ms, false)?,
        Some("PM" | "pm") => half_day(ms, true)?,
        _ => ms,
    };
    u64::try_from(ms).ok()
}

/// Reads a day: `2026-11-25`, `2026/11/25`, `25.11.2026`, or one whose year is last and whose day
/// and month are in this order, `11/25/2026` or `25/11/26`. Without an order, the month is first
/// unless that makes no date.
pub(crate) fn date(text: &str, order: Option<DateOrder>) -> Option<Day> {
    let separator = text.chars().find(|c| !c.is_ascii_digit())?;
    if !"-/.".contains(separator) {
        return None;
    }
    let mut parts = text.split(separator);
    let (a, b, c) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let number = |text: &str| -> Option<i64> {
        let is_digits = text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_digits.then(|| text.parse().ok()).flatten()
    };
    let first = number(a)?;
    let second = number(b)?;
    let is_year_first = a.len() == 4;
    let year = if is_year_first { a } else { c };
    let full_year = number(year)? + if year.len() == 2 { 2_000 } else { 0 };
    let is_open = !is_year_first && separator != '.';
    let shown = match (first > 12, second > 12) {
        _ if !is_open => None,
        (true, false) => Some(DateOrder::DayFirst),
        (false, true) => Some(DateOrder::MonthFirst),
        _ => None,
    };
    let unix_day = match (order.or(shown), separator) {
        _ if is_year_first => days(full_year, second, number(c)?)?,
        (_, '.') | (Some(DateOrder::DayFirst), _) => days(full_year, second, first)?,
        _ => days(full_year, first, second)?,
    };
    let is_ambiguous = is_open && order.or(shown).is_none() && first != second;
    Some(Day { unix_day, order: shown, is_ambiguous, has_century: year.len() == 4 })
}

/// Returns the days from 1970-01-01 to a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let year = u16::try_from(year).ok()?;
    let date = Date::new(year, u8::try_from(month).ok()?, u8::try_from(day).ok()?)?;
    i64::try_from(date.unix_day()?).ok()
}

/// Converts `19:09`, `19:09:48` or `19:09:48.250` to milliseconds.
fn clock_ms(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once(['.', ',']).unwrap_or((text, ""));
    let mut units = whole.split(':').map(|unit| {
        let is_digits = (1..=2).contains(&unit.len()) && unit.bytes().all(|b| b.is_ascii_digit());
        is_digits.then(|| unit.parse::<i64>().ok()).flatten()
    });
    let hours = units.next()??;
    let minutes = units.next()??;
    let seconds = units.next().map_or(Some(0), |seconds| seconds)?;
    // A minute with a leap second has 61 seconds.
    if units.next().is_some() || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    if part.len() > 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ms: String = part.chars().chain("000".chars()).take(3).collect();
    Some(((hours * 60 + minutes) * 60 + seconds) * 1_000 + ms.parse::<i64>().ok()?)
}

/// Converts a time of a half day to one of a whole day: 12 is the hour before 1.
fn half_day(ms: i64, is_afternoon: bool) -> Option<i64> {
    const HALF: i64 = 43_200_000;
    (ms < HALF + 3_600_000).then_some(ms % HALF + if is_afternoon { HALF } else { 0 })
}

/// Converts `Z`, `UTC`, `+0200` or `+02:00` to milliseconds.
fn zone_ms(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "UTC" | "GMT") {
        return Some(0);
    }
    let sign = match text.chars().next()? {
        '+' => 1,
        '-' => -1,
        _ => return None,
    };
    let digits: String = text.chars().skip(1).filter(|c| *c != ':').collect();
    if !matches!(digits.len(), 2 | 4) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let hours: i64 = digits.get(..2)?.parse().ok()?;
    let minutes: i64 = digits.get(2..4).map_or(Some(0), |minutes| minutes.parse().ok())?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes) * 60_000)
}

/// Formats a time for a note.
pub(crate) fn show_time(unix_ms: u64) -> String {
    let date = Date::of_unix_day(unix_ms / 86_400_000);
    let of_day = unix_ms % 86_400_000 / 1_000;
    let (hours, minutes, seconds) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{date}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_locale_are_read() {
        assert_eq!(decimal("12.50"), Some(12.5));
        assert_eq!(decimal("12,50"), Some(12.5));
        for not in ["", "-1", "inf", "NaN", "1,2.3", "1.2.3", "x", "1e999"] {
            assert_eq!(decimal(not), None, "{not}");
        }
        assert_eq!((amount(1.5), amount(-3.0), amount(1e300)), (2, 0, u64::MAX));
    }

    #[test]
    fn times_of_any_locale_are_read() {
        let at = 1_795_633_788_000;
        for text in [
            "2026-11-25T19:09:48+0000",
            "2026-11-25T19:09:48Z",
            "2026-11-25T20:39:48.000+01:30",
            "2026-11-25 19:09:48 UTC",
        ] {
            assert_eq!(time(text), Some(Time { unix_ms: at, has_zone: true }), "{text}");
        }
        for text in [
            "11/25/26 19:09:48",
            "11/25/2026 07:09:48 PM",
            "25.11.2026 19:09:48",
            "2026/11/25 19:09:48",
            "25/11/26 19:09:48",
            "25-11-2026 19:09:48",
        ] {
            assert_eq!(time(text), Some(Time { unix_ms: at, has_zone: false }), "{text}");
        }
        for not in ["25/13/26 19:09:48", "2026-02-29 00:00:00", "11/25/26", "a b", "1/1/26 24:00"] {
            assert_eq!(time(not), None, "{not}");
        }
        assert_eq!(time_of_day("12:00:01", Some("AM")), Some(1_000));
        assert_eq!(time_of_day("12:00:01", Some("PM")), Some(43_201_000));
    }

    #[test]
    fn dates_with_two_meanings_are_refused_until_the_order_is_known() {
        let day = |text: &str, order| {
            let time = Times { order }.read(&format!("{text} 00:00:00"))?;
            Ok(show_time(time.unix_ms).split('T').next().unwrap().to_owned())
        };
        assert_eq!(day("05/11/26", None), Err(NotTime::Ambiguous));
        assert_eq!(day("05/11/2026", None), Err(NotTime::Ambiguous));
        assert_eq!(day("11/11/26", None), Ok("2026-11-11".to_owned()));
        assert_eq!(day("05.11.2026", None), Ok("2026-11-05".to_owned()));
        assert_eq!(day("05/11/26", Some(DateOrder::DayFirst)), Ok("2026-11-05".to_owned()));
        assert_eq!(day("05/11/26", Some(DateOrder::MonthFirst)), Ok("2026-05-11".to_owned()));
        assert_eq!(day("25/11/26", Some(DateOrder::MonthFirst)), Err(NotTime::Unknown));
        // The first date of a recording that has one meaning says how others are read.
        let mut times = Times::default();
        let first = times.read("30/11/26 23:59:59").unwrap();
        let next = times.read("01/12/26 00:00:00").unwrap();
        assert_eq!(next.unix_ms - first.unix_ms, 1_000);
        // Only en_US prints four digits of the year, and AM or PM.
        let american = Times::default().read("11/05/2026 07:09:48 PM").unwrap();
        assert_eq!(show_time(american.unix_ms), "2026-11-05T19:09:48Z");
        assert_eq!(Times::default().read("11/05/26 07:09:48 PM"), Err(NotTime::Ambiguous));
        let epoch = Times::default().read("1795633788").unwrap();
        assert_eq!(epoch, Time { unix_ms: 1_795_633_788_000, has_zone: true });
    }

    proptest::proptest! {
        #[test]
        fn a_shown_time_is_read_as_what_it_was(second in 0_u64..250_000_000_000) {
            let read = time(&show_time(second * 1_000)).unwrap();
            proptest::prop_assert_eq!(read, Time { unix_ms: second * 1_000, has_zone: true });
        }
    }

    proptest::proptest! {
        #[test]
        fn the_short_way_says_the_same(text in "[12][90][0-9]{2}-[01][0-9]-[0-3][0-9]T\
            [0-2][0-9]:[0-6][0-9]:[0-6][0-9](Z|\\+00:00|\\+01:00| )") {
            if let Some(unix_ms) = utc(&text) {
                proptest::prop_assert_eq!(time(&text).map(|time| time.unix_ms), Some(unix_ms));
            }
        }
    }

    #[test]
    fn the_usual_times_go_the_short_way() {
        for text in ["2026-11-25T19:09:48Z", "2026-11-25T19:09:48+00:00"] {
            assert_eq!(utc(text), time(text).map(|time| time.unix_ms));
            assert!(utc(text).is_some());
        }
        for text in ["2026-02-30T19:09:48Z", "2026-11-25T24:09:48Z", "2026-11-25 19:09:48Z", ""] {
            assert_eq!(utc(text), None, "{text}");
        }
    }
}
