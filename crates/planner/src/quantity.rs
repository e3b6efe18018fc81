//! Reads quantities of lists and flags: a number, with or without a unit.
//!
//! Every cell of a list and every flag of a size, a rate or an amount is read here, so that the
//! same text has the same meaning everywhere. A text with two meanings is rejected, never guessed.

/// Separators of thousands; the last two are non-breaking spaces.
pub(crate) const THOUSANDS: [char; 5] = [',', '_', '\'', '\u{a0}', '\u{202f}'];

/// The measure of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// Capacity, in GiB.
    Gib,
    /// I/Os per second.
    Iops,
    /// Throughput, in MiB/s.
    Mibps,
}

/// A unit, as a fraction of the unit of its measure.
type Factor = (u64, u64);

/// The units of capacity. AWS calls a GiB a GB in its price list and its console.
const SIZES: [(&str, Factor); 16] = [
    ("b", (1, 1 << 30)),
    ("kib", (1, 1 << 20)),
    ("kb", (1, 1 << 20)),
    ("k", (1, 1 << 20)),
    ("mib", (1, 1 << 10)),
    ("mb", (1, 1 << 10)),
    ("m", (1, 1 << 10)),
    ("gib", (1, 1)),
    ("gb", (1, 1)),
    ("g", (1, 1)),
    ("tib", (1 << 10, 1)),
    ("tb", (1 << 10, 1)),
    ("t", (1 << 10, 1)),
    ("pib", (1 << 20, 1)),
    ("pb", (1 << 20, 1)),
    ("p", (1 << 20, 1)),
];
const RATES: [(&str, Factor); 5] =
    [("iops", (1, 1)), ("io/s", (1, 1)), ("ops", (1, 1)), ("k", (1_000, 1)), ("kiops", (1_000, 1))];
/// The units of throughput. AWS calls a MiB/s a MB/s in its descriptions of volumes.
const THROUGHPUTS: [(&str, Factor); 13] = [
    ("kib/s", (1, 1 << 10)),
    ("kb/s", (1, 1 << 10)),
    ("mib/s", (1, 1)),
    ("mibps", (1, 1)),
    ("mibs", (1, 1)),
    ("mb/s", (1, 1)),
    ("mbs", (1, 1)),
    ("mib", (1, 1)),
    ("mb", (1, 1)),
    ("gib/s", (1 << 10, 1)),
    ("gibps", (1 << 10, 1)),
    ("gb/s", (1 << 10, 1)),
    ("gbs", (1 << 10, 1)),
];
/// Maximum number of decimals of a number.
const DECIMALS_MAX: usize = 12;

impl Measure {
    /// Returns the accepted texts, for errors.
    #[must_use]
    pub const fn expected(self) -> &'static str {
        match self {
            Self::Gib => {
                "a size in GiB, with or without a unit (MiB, GiB, TiB): 100, 1,000, 100 GiB, \
                 1.5 TiB"
            }
            Self::Iops => "I/Os a second, with or without a unit: 3000, 3,000, 3000 IOPS",
            Self::Mibps => {
                "MiB a second, with or without a unit (MiB/s, GiB/s): 125, 1,000, 125 MiB/s"
            }
        }
    }

    fn units(self) -> &'static [(&'static str, Factor)] {
        match self {
            Self::Gib => &SIZES,
            Self::Iops => &RATES,
            Self::Mibps => &THROUGHPUTS,
        }
    }

    /// Returns a unit of this measure; `None` if it is not one. `Mbps` is not: many readers take
    /// `b` for a bit.
    #[must_use]
    pub fn unit(self, text: &str) -> Option<Factor> {
        let text = text.trim();
        if self == Self::Mibps && text.eq_ignore_ascii_case("mbps") {
            return (text == "MBps" || text == "MBPS").then_some((1, 1));
        }
        let units = self.units().iter();
        units.clone().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, factor)| *factor)
    }
}

/// Reads a number of units in whole GiB, IOPS or MiB/s. A text without a unit has that of
/// `heading`.
///
/// # Errors
/// Returns the accepted texts, for an error message, if the text is no such number.
pub fn whole(text: &str, measure: Measure, heading: Option<Factor>) -> Result<u64, String> {
    let (number, unit) = parts(text, measure, heading)?;
    match number.whole(unit) {
        Some((value, true)) => Ok(value),
        _ => Err(format!("{}, which is whole", measure.expected())),
    }
}

/// Reads a size in bytes, rounded up. A text without a unit is in GiB, or in the unit of `heading`.
///
/// # Errors
/// Returns the accepted texts, for an error message, if the text is no such size.
pub(crate) fn bytes(text: &str, heading: Option<Factor>) -> Result<u64, String> {
    let (number, (times, part)) = parts(text, Measure::Gib, heading)?;
    let found = times.checked_mul(1 << 30).and_then(|times| number.whole((times, part)));
    let too_large = || Measure::Gib.expected().to_owned();
    let (value, is_whole) = found.ok_or_else(too_large)?;
    Ok(value.saturating_add(u64::from(!is_whole)))
}

/// Reads a number as [`whole`] does. One that is larger than `u64::MAX` is `u64::MAX`.
///
/// # Errors
/// Returns what is accepted, for the text of an error, if the text is no such number.
pub(crate) fn whole_saturating(text: &str, measure: Measure) -> Result<u64, String> {
    let (number, unit) = parts(text, measure, None)?;
    match number.whole(unit) {
        Some((_, false)) => Err(format!("{}, which is whole", measure.expected())),
        Some((value, true)) => Ok(value),
        None => Ok(u64::MAX),
    }
}

/// Reads a number in a unit, rounded up: the least whole number that holds the quantity.
///
/// # Errors
/// Returns the accepted texts, for an error message, if the text is no such number.
pub fn at_least(text: &str, measure: Measure) -> Result<u64, String> {
    let (number, unit) = parts(text, measure, None)?;
    let (value, is_whole) = number.whole(unit).ok_or_else(|| measure.expected().to_owned())?;
    Ok(value.saturating_add(u64::from(!is_whole)))
}

/// Reads an amount of money in millionths of its currency.
///
/// # Errors
/// Returns the accepted texts, for an error message, if the text is no such amount.
pub fn micros(text: &str) -> Result<u64, String> {
    let expected = || "an amount, such as 400, 1,200 or 99.50".to_owned();
    let (number, rest) = Number::read(text.trim()).map_err(|_| expected())?;
    match number.whole((1_000_000, 1)) {
        Some((value, true)) if rest.is_empty() => Ok(value),
        _ => Err(expected()),
    }
}

fn parts(
    text: &str,
    measure: Measure,
    heading: Option<Factor>,
) -> Result<(Number, Factor), String> {
    let (number, unit) = Number::read(text.trim()).map_err(|why| match why {
        Some(why) => format!("{}; {why}", measure.expected()),
        None => measure.expected().to_owned(),
    })?;
    let unit = match unit.trim() {
        "" => heading.unwrap_or((1, 1)),
        unit => measure.unit(unit).ok_or_else(|| measure.expected().to_owned())?,
    };
    Ok((number, unit))
}

/// A number as it was written: its digits, and the number of decimals among them.
struct Number {
    digits: u128,
    scale: u128,
}

impl Number {
    /// Reads the number at the start of a text. Returns it and the rest; or the reason, if there is
    /// one beside that it is not a number.
    fn read(text: &str) -> Result<(Self, &str), Option<String>> {
        let is_part = |c: char| c.is_ascii_digit() || c == '.' || THOUSANDS.contains(&c);
        let mut end = text.find(|c| !is_part(c)).unwrap_or(text.len());
        // A plain space separates thousands only before three digits.
        while let Some(rest) = text[end..].strip_prefix(' ')
            && rest.len() >= 3
            && rest.as_bytes()[..3].iter().all(u8::is_ascii_digit)
        {
            let more = &rest[3..];
            end += 4 + more.find(|c| !is_part(c)).unwrap_or(more.len());
        }
        let (number, rest) = text.split_at(end);
        let number = number.replace(' ', "\u{a0}");
        let (whole, decimals) = Self::point(&number)?;
        let whole = Self::without_thousands(whole).ok_or(None)?;
        let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_digits(decimals) || decimals.len() > DECIMALS_MAX || whole.is_empty() {
            return Err(None);
        }
        let decimals = decimals.trim_end_matches('0');
        let digits = format!("{whole}{decimals}").parse().map_err(|_| None)?;
        let places = u32::try_from(decimals.len()).expect("invariant: few decimals");
        Ok((Self { digits, scale: 10_u128.pow(places) }, rest))
    }

    /// Returns the parts before and after a decimal point or comma.
    fn point(number: &str) -> Result<(&str, &str), Option<String>> {
        if number.ends_with(['.', ',']) {
            return Err(None);
        }
        if let Some((whole, decimals)) = number.split_once('.') {
            // Three digits may be thousands, as in many languages.
            let is_short = (1..=3).contains(&whole.len()) && whole != "0";
            let is_grouped = decimals.split('.').all(|group| group.len() == 3);
            if decimals != "000" && is_short && is_grouped {
                let plain = number.replace('.', "");
                let why = format!("{number} may be {plain}: write {plain}, or another decimal");
                return Err(Some(why));
            }
            if decimals == "000" && is_short {
                let why = format!("{number} may be {whole} or {whole}000: write one of them");
                return Err(Some(why));
            }
            return Ok((whole, decimals));
        }
        match number.split_once(',') {
            Some((whole, decimals))
                if decimals.len() != 3 && !decimals.contains(|c: char| !c.is_ascii_digit()) =>
            {
                Ok((whole, decimals))
            }
            _ => Ok((number, "")),
        }
    }

    /// Returns the digits of a number whose thousands may be separated, all by the same character.
    fn without_thousands(text: &str) -> Option<String> {
        let Some(separator) = text.chars().find(|c| !c.is_ascii_digit()) else {
            return Some(text.to_owned());
        };
        let groups: Vec<&str> = text.split(separator).collect();
        let (first, others) = groups.split_first()?;
        let is_digits = |group: &str| group.bytes().all(|byte| byte.is_ascii_digit());
        let is_grouped = THOUSANDS.contains(&separator)
            && (1..=3).contains(&first.len())
            && is_digits(first)
            && others.iter().all(|group| group.len() == 3 && is_digits(group));
        is_grouped.then(|| groups.concat())
    }

    /// The number of units, rounded down, and whether it is exact.
    fn whole(&self, (times, parts): Factor) -> Option<(u64, bool)> {
        let all = self.digits.checked_mul(times.into())?;
        let of = self.scale.checked_mul(parts.into())?;
        let value = u64::try_from(all / of).ok()?;
        Some((value, all % of == 0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_and_thousands_are_read() {
        for (text, gib) in [
            ("100", 100),
            ("100.0", 100),
            ("3000.000", 3_000),
            ("1,000", 1_000),
            ("1 000", 1_000),
            ("1'000'000", 1_000_000),
            ("100GB", 100),
            ("100 GiB", 100),
            ("2 TiB", 2_048),
            ("1.5T", 1_536),
            ("1,5 TiB", 1_536),
            ("0.125 TiB", 128),
            ("2048 MiB", 2),
            ("107374182400 B", 100),
        ] {
            assert_eq!(whole(text, Measure::Gib, None), Ok(gib), "{text}");
        }
        assert_eq!(whole("3k", Measure::Iops, None), Ok(3_000));
        assert_eq!(whole("16,000 IOPS", Measure::Iops, None), Ok(16_000));
        assert_eq!(whole("1 GiB/s", Measure::Mibps, None), Ok(1_024));
        assert_eq!(whole("125 MBps", Measure::Mibps, None), Ok(125));
        // The unit of the heading applies to a cell without one.
        let tib = Measure::Gib.unit("TiB");
        assert_eq!(whole("2", Measure::Gib, tib), Ok(2_048));
        assert_eq!(whole("2 GiB", Measure::Gib, tib), Ok(2));
    }

    #[test]
    fn what_is_no_quantity_or_has_two_meanings_is_refused() {
        for text in [
            "",
            "8 potatoes",
            "potatoes",
            "-8",
            "8 8",
            "1,00,000",
            "1,000.",
            ".5",
            "1..5",
            "0x10",
            "1e3",
            "1.234",
            "3.000",
            "12.345.678",
            "1_000,000",
            "500 MiB/s",
            "1.5 MiB",
            "1.5",
            "99999999999999999999 TiB",
            "inf",
            "1,,000",
            "10 000 00",
        ] {
            assert!(whole(text, Measure::Gib, None).is_err(), "{text}");
        }
        for text in ["125 Mbps", "125 mbps", "1 Gbit/s", "125 GiB", "125 MiB/m"] {
            assert!(whole(text, Measure::Mibps, None).is_err(), "{text}");
        }
        let two = whole("1.234", Measure::Gib, None).unwrap_err();
        assert!(two.ends_with("1.234 may be 1234: write 1234, or another decimal"), "{two}");
    }

    #[test]
    fn what_must_be_held_is_rounded_up() {
        assert_eq!(at_least("100GB", Measure::Gib), Ok(100));
        assert_eq!(at_least("1.5 GiB", Measure::Gib), Ok(2));
        assert_eq!(at_least("1 MiB", Measure::Gib), Ok(1));
        assert!(at_least("8 potatoes", Measure::Gib).is_err());
    }

    #[test]
    fn amounts_have_cents() {
        assert_eq!(micros("1,200.50"), Ok(1_200_500_000));
        assert_eq!(micros(" 400 "), Ok(400_000_000));
        for text in ["400 EUR", "", "4 hundred", "0.0000001", "1.234"] {
            assert!(micros(text).is_err(), "{text}");
        }
    }

    proptest! {
        /// A written number is read as this number or rejected.
        #[test]
        fn a_number_is_what_its_digits_say(number in 0_u64..1 << 40, separator in 0_usize..6) {
            let digits = number.to_string();
            let mut text = String::new();
            for (at, digit) in digits.chars().enumerate() {
                let left = digits.len() - at;
                if at > 0 && left % 3 == 0 && separator > 0 {
                    text.push(THOUSANDS[separator - 1]);
                }
                text.push(digit);
            }
            prop_assert_eq!(whole(&text, Measure::Iops, None), Ok(number));
            prop_assert_eq!(whole(&format!("{text} potatoes"), Measure::Iops, None).ok(), None);
        }
    }
}
