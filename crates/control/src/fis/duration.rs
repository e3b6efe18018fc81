//! Durations in the form of ISO 8601, as FIS has them: `PT5M`.

const UNITS: [(char, u64); 3] = [('H', 3_600), ('M', 60), ('S', 1)];

/// Returns the seconds of a duration of hours, minutes and seconds; `None` if it has another form.
pub fn seconds(text: &str) -> Option<u64> {
    let mut rest = text.strip_prefix("PT")?;
    let mut units = UNITS.iter();
    let mut sum = 0_u64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = rest.split_at(end);
        let letter = unit.chars().next()?;
        // Each unit stands once, the largest first.
        let (_, each) = units.by_ref().find(|(known, _)| *known == letter)?;
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(*each)?)?;
        rest = &unit[letter.len_utf8()..];
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_hours_minutes_and_seconds() {
        for (text, expected) in [
            ("PT1S", Some(1)),
            ("PT5M", Some(300)),
            ("PT12H", Some(43_200)),
            ("PT1H30M5S", Some(5_405)),
            ("PT90M", Some(5_400)),
            ("PT0S", Some(0)),
            ("P1D", None),
            ("PT", None),
            ("PT5", None),
            ("PTM", None),
            ("PT5M1H", None),
            ("PT1M2M", None),
            ("PT-5M", None),
            ("pt5m", None),
            ("PT1.5M", None),
            ("PT99999999999999999999S", None),
            ("PT18446744073709551615H", None),
            ("300", None),
            ("", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }
}
