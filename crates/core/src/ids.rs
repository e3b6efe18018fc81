//! EC2's ids: a prefix and seventeen hexadecimal digits (68 bits).

use core::fmt;
use core::str::FromStr;

/// Hexadecimal digits in an id.
const DIGITS: usize = 17;
/// The largest value of seventeen hexadecimal digits.
const VALUE_MAX: u128 = (1 << (4 * DIGITS)) - 1;

/// A text is not an id. The caller quotes the text with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MalformedId {
    /// The prefix that was expected, with its hyphen.
    pub prefix: &'static str,
}

impl fmt::Display for MalformedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} and {DIGITS} lower-case hexadecimal digits", self.prefix)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// Prefix of the text form.
            pub const PREFIX: &'static str = $prefix;

            /// Creates the id of the low 68 bits of `bits`.
            #[must_use]
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits & VALUE_MAX)
            }

            /// Returns the 68 bits of the id.
            #[must_use]
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:017x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = MalformedId;

            fn from_str(text: &str) -> Result<Self, MalformedId> {
                let malformed = MalformedId { prefix: $prefix };
                let digits = text.strip_prefix($prefix).ok_or(malformed)?;
                let lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
                if digits.len() != DIGITS || !digits.bytes().all(lower_hex) {
                    return Err(malformed);
                }
                u128::from_str_radix(digits, 16).map(Self).map_err(|_| malformed)
            }
        }
    };
}

id! {
    /// A volume: `vol-` and 17 hexadecimal digits. Also the volume's NBD export name.
    VolumeId, "vol-"
}
id! {
    /// A snapshot: `snap-` and 17 hexadecimal digits.
    SnapshotId, "snap-"
}
id! {
    /// A client host: `i-` and 17 hexadecimal digits.
    InstanceId, "i-"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn ids_survive_a_round_trip() {
        let id = VolumeId::from_bits(0x0001_2345_6789_abcd_ef01);
        assert_eq!(id.to_string(), "vol-123456789abcdef01");
        assert_eq!("vol-123456789abcdef01".parse(), Ok(id));
        assert_eq!(VolumeId::from_bits(u128::MAX).to_string(), "vol-fffffffffffffffff");
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in [
            "",
            "vol-",
            "vol-123",
            "i-123456789abcdef01",
            "vol-123456789ABCDEF01",
            "vol-123456789abcdef012",
            "vol-+23456789abcdef01",
            "vol-123456789abcdef0\u{e9}",
        ] {
            assert_eq!(text.parse::<VolumeId>(), Err(MalformedId { prefix: "vol-" }), "{text}");
        }
    }
}
