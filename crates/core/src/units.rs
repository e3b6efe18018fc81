//! Quantities with their unit in the type. A conversion from one to another is explicit and
//! checked.

use core::fmt;

/// Bytes in a KiB.
pub const KIB: u64 = 1 << 10;
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;
/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;
/// Bytes in a TiB.
pub const TIB: u64 = 1 << 40;

/// An amount of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// Returns `gib` GiB in bytes.
    #[must_use]
    pub const fn from_gib(gib: u32) -> Self {
        // A u32 of GiB is below 2^62 bytes: no overflow. `From` is not const yet.
        #[allow(clippy::as_conversions)]
        Self((gib as u64) << 30)
    }
}

impl fmt::Display for ByteCount {
    /// Prints in the largest binary unit that divides the amount, so that nothing is rounded.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        for (unit, name) in [(TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if bytes >= unit && bytes.is_multiple_of(unit) {
                return write!(f, "{} {name}", bytes / unit);
            }
        }
        write!(f, "{bytes} B")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn byte_counts_print_without_rounding() {
        assert_eq!(ByteCount(256 * KIB).to_string(), "256 KiB");
        assert_eq!(ByteCount(MIB + 1).to_string(), "1048577 B");
        assert_eq!(ByteCount::from_gib(2048).to_string(), "2 TiB");
    }
}
