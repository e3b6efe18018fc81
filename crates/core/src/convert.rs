//! Conversions between integer types that say what happens to a value that does not fit.
//!
//! | function | a value that does not fit |
//! |---|---|
//! | [`exact`] | cannot occur: its caller names the invariant, and debug builds assert it |
//! | [`saturating`] | can occur, and the limit of the type is the right answer |
//! | [`index`], [`count`] | does not exist: `usize` has 64 bits |
//!
//! A conversion that can fail in any other way is an error of its caller, and is returned as one.

use core::fmt;

const _: () = assert!(usize::BITS == 64, "a length in bytes is also an offset of a volume");

/// An integer type with its limits.
pub trait Integer: Copy {
    /// The lowest value.
    const MIN: Self;
    /// The highest value.
    const MAX: Self;
}

macro_rules! integers {
    ($($name:ident)+) => {$(
        impl Integer for $name {
            const MIN: Self = Self::MIN;
            const MAX: Self = Self::MAX;
        }
    )+};
}

integers! { u8 u16 u32 u64 u128 usize i32 i64 i128 }

/// Converts a value, or returns the limit of the type that it exceeds.
#[inline]
pub fn saturating<Value, Target>(value: Value) -> Target
where
    Value: TryInto<Target> + PartialOrd + Default + Copy,
    Target: Integer,
{
    let limit = if value < Value::default() { Target::MIN } else { Target::MAX };
    value.try_into().unwrap_or(limit)
}

/// Converts a value that fits because of `invariant`.
///
/// # Panics
/// If it does not fit, in builds with debug assertions. Other builds return the limit that it
/// exceeds: a figure that is wrong is better than a core that ends.
#[inline]
#[track_caller]
pub fn exact<Value, Target>(value: Value, invariant: &str) -> Target
where
    Value: TryInto<Target> + PartialOrd + Default + Copy + fmt::Debug,
    Target: Integer,
{
    let converted: Result<Target, _> = value.try_into();
    debug_assert!(converted.is_ok(), "{value:?} does not fit, against the invariant: {invariant}");
    saturating(value)
}

/// Converts a number of things or bytes to an index or a length in memory.
#[inline]
#[allow(clippy::as_conversions)] // both have 64 bits, see above
pub fn index(value: impl Into<u64>) -> usize {
    value.into() as usize
}

/// Converts a length in memory to a number of things or bytes.
#[inline]
#[allow(clippy::as_conversions)] // both have 64 bits, see above
pub const fn count(length: usize) -> u64 {
    length as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturating_returns_the_limit_that_is_exceeded() {
        assert_eq!(saturating::<u64, u32>(7), 7);
        assert_eq!(saturating::<u64, u32>(1 << 40), u32::MAX);
        assert_eq!(saturating::<i64, u32>(-1), 0);
        assert_eq!(saturating::<i128, i64>(i128::MIN), i64::MIN);
        assert_eq!(saturating::<u128, i64>(u128::MAX), i64::MAX);
    }

    #[test]
    fn index_and_count_are_inverse() {
        for value in [0, 1, u64::from(u32::MAX) + 1, u64::MAX] {
            assert_eq!(count(index(value)), value);
        }
    }

    #[test]
    #[should_panic(expected = "256 does not fit, against the invariant: a byte")]
    fn exact_names_the_invariant_that_does_not_hold() {
        let _: u8 = exact(256_u32, "a byte");
    }
}
