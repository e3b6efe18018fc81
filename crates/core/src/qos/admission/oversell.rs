//! The text form of oversell factors: `2`, `1.5`.

use core::fmt;
use core::str::FromStr;

use super::model::{Oversell, PPM};

/// Maximum factor: a larger one is taken for a typing error.
const TIMES_MAX: u32 = 1_000;

/// A text is no oversell factor. The caller quotes the text with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedOversell;

impl fmt::Display for MalformedOversell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected a factor from 1 to {TIMES_MAX} with at most six decimals, such as 1.5")
    }
}

impl core::error::Error for MalformedOversell {}

impl fmt::Display for Oversell {
    /// Prints the exact factor with as few decimals as possible.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.ppm() / PPM;
        let mut millionths = self.ppm() % PPM;
        write!(f, "{whole}")?;
        if millionths == 0 {
            return Ok(());
        }
        let mut decimals = 6;
        while millionths.is_multiple_of(10) {
            millionths /= 10;
            decimals -= 1;
        }
        write!(f, ".{millionths:0decimals$}")
    }
}

impl FromStr for Oversell {
    type Err = MalformedOversell;

    fn from_str(text: &str) -> Result<Self, MalformedOversell> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| (1..=6).contains(&text.len()) && text.bytes().all(is_digit);
        if !digits(whole) || !digits(decimals) {
            return Err(MalformedOversell);
        }
        let number = |text: &str| text.bytes().fold(0, |n: u32, b| n * 10 + u32::from(b - b'0'));
        let scale = (decimals.len()..6).fold(1, |scale: u32, _| scale * 10);
        let whole = number(whole);
        let millionths = number(decimals) * scale;
        if whole > TIMES_MAX || (whole == TIMES_MAX && millionths > 0) {
            return Err(MalformedOversell);
        }
        Self::from_ppm(whole * PPM + millionths).ok_or(MalformedOversell)
    }
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn factors_survive_a_round_trip() {
        for text in ["1", "2", "1.5", "1.000001", "10.25", "999.999999", "1000"] {
            assert_eq!(text.parse::<Oversell>().map(|o| o.to_string()), Ok(text.to_string()));
        }
        for (text, ppm) in [("1.50", 1_500_000), ("01", 1_000_000), ("1000.0", 1_000_000_000)] {
            assert_eq!(text.parse().map(Oversell::ppm), Ok(ppm));
        }
    }

    #[test]
    fn invalid_oversell_factor_is_refused() {
        for text in [
            "",
            "0",
            "0.999999",
            "1000.000001",
            "1001",
            "1,5",
            "+2",
            "-1",
            "1.",
            ".5",
            "1.0000001",
            "2x",
            "1e3",
            "9999999",
        ] {
            assert_eq!(text.parse::<Oversell>(), Err(MalformedOversell), "{text:?}");
        }
    }
}
