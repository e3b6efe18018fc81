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
    value.round() as u64
}

/// A time in milliseconds since 1970, and whether its zone is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Time {
    pub unix_ms: u64,
    pub has_zone: bool,
}

/// Reads a time in one of the formats that sysstat, CloudWatch and their locales print.
pub(crate) fn time(text: &str) -> Option<Time> {
    let text = text.trim();
    let at = text.find(['T', ' '])?;
    let (day, rest) = (text.get(..at)?, text.get(at + 1..)?);
    let days = date(day)?;
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_digit() && !":.,".contains(c)).unwrap_or(rest.len());
    let (clock, zone) = (rest.get(..end)?, rest.get(end..)?.trim());
    let mut ms = clock_ms(clock)?;
    let (is_half, zone) = match zone.get(..2) {
        Some(half @ ("AM" | "PM" | "am" | "pm")) => (Some(half), zone.get(2..)?.trim()),
        _ => (None, zone),
    };
    if let Some(half) = is_half {
        ms = half_day(ms, half.eq_ignore_ascii_case("pm"))?;
    }
    let offset_ms = match zone {
        "" => 0,
        _ => zone_ms(zone)?,
    };
    let unix_ms = days.checked_mul(86_400_000)?.checked_add(ms)?.checked_sub(offset_ms)?;
    Some(Time { unix_ms: u64::try_from(unix_ms).ok()?, has_zone: !zone.is_empty() })
}

/// Reads a time such as `2026-11-25T19:00:00Z` or with `+00:00`, which most texts have, in
/// milliseconds since 1970. It is a fast path of [`time`].
pub(crate) fn utc(text: &str) -> Option<u64> {
    let (digits, zone) = text.as_bytes().split_at_checked(19)?;
    if !matches!(zone, b"Z" | b"+00:00") {
        return None;
    }
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T', h1, h2, b':', n1, n2, b':', s1, s2] =
        *digits
    else {
        return None;
    };
    let digit = |byte: u8| Some(i64::from(byte.checked_sub(b'0').filter(|digit| *digit < 10)?));
    let two = |high: u8, low: u8| Some(digit(high)? * 10 + digit(low)?);
    let days = days(two(y1, y2)? * 100 + two(y3, y4)?, two(m1, m2)?, two(d1, d2)?)?;
    let (hours, minutes, seconds) = (two(h1, h2)?, two(n1, n2)?, two(s1, s2)?);
    let is_clock = hours < 24 && minutes < 60 && seconds < 60;
    let all = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    u64::try_from(all * 1_000).ok().filter(|_| is_clock)
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

/// Reads a day, `2026-11-25`, `2026/11/25`, `11/25/2026`, `11/25/26` or `25.11.2026`, in days since
/// 1970.
pub(crate) fn date(text: &str) -> Option<i64> {
    let separator = text.chars().find(|c| !c.is_ascii_digit())?;
    if !"-/.".contains(separator) {
        return None;
    }
    let mut parts = text.split(separator);
    let (a, b, c) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (year, month, day) = match (a.len(), separator) {
        (4, _) => (a, b, c),
        (_, '.') => (c, b, a),
        _ => (c, a, b),
    };
    let number = |text: &str| -> Option<i64> {
        let is_digits = text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_digits.then(|| text.parse().ok()).flatten()
    };
    let year = number(year)? + if year.len() == 2 { 2_000 } else { 0 };
    days(year, number(month)?, number(day)?)
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
    let (hours, minutes) = (units.next()??, units.next()??);
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
        ] {
            assert_eq!(time(text), Some(Time { unix_ms: at, has_zone: false }), "{text}");
        }
        for not in ["25/11/26 19:09:48", "2026-02-29 00:00:00", "11/25/26", "a b", "1/1/26 24:00"] {
            assert_eq!(time(not), None, "{not}");
        }
        assert_eq!(time_of_day("12:00:01", Some("AM")), Some(1_000));
        assert_eq!(time_of_day("12:00:01", Some("PM")), Some(43_201_000));
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
                proptest::prop_assert_eq!(time(&text).map(|it| it.unix_ms), Some(unix_ms));
            }
        }
    }

    #[test]
    fn the_usual_times_go_the_short_way() {
        for text in ["2026-11-25T19:09:48Z", "2026-11-25T19:09:48+00:00"] {
            assert_eq!(utc(text), time(text).map(|it| it.unix_ms));
            assert!(utc(text).is_some());
        }
        for text in ["2026-02-30T19:09:48Z", "2026-11-25T24:09:48Z", "2026-11-25 19:09:48Z", ""] {
            assert_eq!(utc(text), None, "{text}");
        }
    }
}
