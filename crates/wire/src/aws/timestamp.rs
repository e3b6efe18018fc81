//! AWS's two forms of a time.

use alloc::format;
use alloc::string::String;

use evenkeel_core::volume::Date;

/// Seconds in a day; Unix time has no leap seconds.
const DAY_S: u64 = 86_400;
/// The last second of the year 9999. Later times would need a fifth digit and are shown as this
/// one.
const UNIX_S_MAX: u64 = 253_402_300_799;

/// The form in signatures: `20150830T123600Z`.
#[must_use]
pub fn basic(unix_s: u64) -> String {
    let Civil { date, hour, minute, second } = Civil::from_unix(unix_s);
    let Date { year, month, day } = date;
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The form in EC2's replies: `2015-08-30T12:36:00.000Z`.
#[must_use]
pub fn extended(unix_ms: u64) -> String {
    let ms = unix_ms % 1_000;
    let Civil { date, hour, minute, second } = Civil::from_unix(unix_ms / 1_000);
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Parses the form that [`basic`] writes; returns Unix time in seconds, or `None` for anything else
/// and for years before 1970.
#[must_use]
pub fn parse_basic(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes.get(8) != Some(&b'T') || bytes.get(15) != Some(&b'Z') {
        return None;
    }
    let number = |from: usize, to: usize| {
        bytes.get(from..to)?.iter().try_fold(0_u16, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + u16::from(byte - b'0'))
        })
    };
    let two = |from: usize| u8::try_from(number(from, from + 2)?).ok();
    let date = Date::new(number(0, 4)?, two(4)?, two(6)?)?;
    let hour = two(9).filter(|hour| *hour < 24)?;
    let minute = two(11).filter(|minute| *minute < 60)?;
    let second = two(13).filter(|second| *second < 60)?;
    let of_day = (u64::from(hour) * 60 + u64::from(minute)) * 60 + u64::from(second);
    Some(date.unix_day()? * DAY_S + of_day)
}

/// Parses the form that [`extended`] writes, with a fraction of one to nine digits or without one;
/// returns Unix time in milliseconds, rounded down, or `None` for anything else.
#[must_use]
pub fn parse_extended(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let bytes = whole.as_bytes();
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if separators.iter().any(|(place, byte)| bytes.get(*place) != Some(byte)) {
        return None;
    }
    let plain = whole.char_indices().filter(|(at, _)| ![4, 7, 13, 16].contains(at));
    let mut basic: String = plain.map(|(_, letter)| letter).collect();
    basic.push('Z');
    if !(1..=9).contains(&fraction.len()) || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let ms = fraction.bytes().chain([b'0', b'0']).take(3);
    let ms = ms.fold(0, |ms, digit| ms * 10 + u64::from(digit - b'0'));
    Some(parse_basic(&basic)? * 1_000 + ms)
}

/// A time of the Gregorian calendar in UTC.
struct Civil {
    date: Date,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Civil {
    fn from_unix(unix_s: u64) -> Self {
        let unix_s = unix_s.min(UNIX_S_MAX);
        Self {
            date: Date::of_unix_day(unix_s / DAY_S),
            hour: unix_s % DAY_S / 3_600,
            minute: unix_s % 3_600 / 60,
            second: unix_s % 60,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        for (unix_s, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (4_107_542_400, "21000301T000000Z"),
            (UNIX_S_MAX, "99991231T235959Z"),
        ] {
            assert_eq!(basic(unix_s), text);
            assert_eq!(parse_basic(text), Some(unix_s));
        }
        assert_eq!(basic(u64::MAX), "99991231T235959Z");
        assert_eq!(extended(1_440_938_160_007), "2015-08-30T12:36:00.007Z");
    }

    #[test]
    fn invalid_timestamp_is_refused() {
        for text in [
            "",
            "20150830T123600",
            "20150230T000000Z",
            "20151301T000000Z",
            "20150830T240000Z",
            "20150830t123600Z",
            "2015-8-30T123600",
            "19691231T235959Z",
            "00000000T000000Z",
            "2015083\u{e9}123600Z",
        ] {
            assert_eq!(parse_basic(text), None, "{text}");
        }
    }

    #[test]
    fn extended_times() {
        for (text, ms) in [
            ("2015-08-30T12:36:00.007Z", Some(1_440_938_160_007)),
            ("2015-08-30T12:36:00Z", Some(1_440_938_160_000)),
            ("2015-08-30T12:36:00.5Z", Some(1_440_938_160_500)),
            ("2015-08-30T12:36:00.123456789Z", Some(1_440_938_160_123)),
            ("2015-08-30T12:36:00.Z", None),
            ("2015-08-30T12:36:00.007", None),
            ("2015-08-3012:36:00.007Z", None),
            ("2015-02-30T00:00:00Z", None),
            ("20150830T123600Z", None),
            ("", None),
        ] {
            assert_eq!(parse_extended(text), ms, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_millisecond_survives_a_round_trip(ms in 0..=UNIX_S_MAX * 1_000) {
            prop_assert_eq!(parse_extended(&extended(ms)), Some(ms));
        }

        #[test]
        fn every_second_survives_a_round_trip(unix_s in 0..=UNIX_S_MAX) {
            prop_assert_eq!(parse_basic(&basic(unix_s)), Some(unix_s));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,20}|[0-9TZ]{16}") {
            let _ = (parse_basic(&text), parse_extended(&text));
        }
    }
}
