//! Points in time and spans of time: nanoseconds of a monotonic clock, milliseconds of the wall
//! clock. There is no `now()`: time is an argument.

use core::fmt;
use core::ops::Add;

/// A point on a monotonic clock, in nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant {
    /// Nanoseconds since the clock's origin.
    pub ns: u64,
}

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Duration {
    /// Length in nanoseconds.
    pub ns: u64,
}

/// A point in time on the wall clock: milliseconds of Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct UnixMs(pub u64);

impl UnixMs {
    /// Returns the time `ms` milliseconds later; saturates.
    #[must_use]
    pub const fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Returns the milliseconds since `earlier`; zero if `earlier` is later, since a wall clock may
    /// be set back.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Instant {
    /// The clock's origin.
    pub const ZERO: Self = Self { ns: 0 };

    /// Returns the point `ns` nanoseconds after the origin.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// Returns the time passed since `earlier`, or zero if `earlier` is later, so that a clock that
    /// steps back brings no tokens.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration { ns: self.ns.saturating_sub(earlier.ns) }
    }
}

impl Duration {
    /// Zero nanoseconds.
    pub const ZERO: Self = Self { ns: 0 };

    /// Returns a span of `ns` nanoseconds.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// Returns a span of `us` microseconds; saturates.
    #[must_use]
    pub const fn from_us(us: u64) -> Self {
        Self { ns: us.saturating_mul(1_000) }
    }

    /// Returns a span of `ms` milliseconds; saturates.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self { ns: ms.saturating_mul(1_000_000) }
    }

    /// Returns a span of `s` seconds; saturates.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self { ns: s.saturating_mul(1_000_000_000) }
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the end of time (584 years after the origin) instead of wrapping.
    fn add(self, span: Duration) -> Self {
        Self { ns: self.ns.saturating_add(span.ns) }
    }
}

impl Add for Duration {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { ns: self.ns.saturating_add(other.ns) }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ns {
            ns if ns < 10_000 => write!(f, "{ns} ns"),
            ns if ns < 10_000_000 => write!(f, "{} us", ns / 1_000),
            ns if ns < 10_000_000_000 => write!(f, "{} ms", ns / 1_000_000),
            ns => write!(f, "{} s", ns / 1_000_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_clock_that_steps_back_earns_nothing() {
        assert_eq!(Instant::from_ns(5).since(Instant::from_ns(9)), Duration::ZERO);
        assert_eq!(Instant::from_ns(9).since(Instant::from_ns(5)), Duration::from_ns(4));
    }

    #[test]
    fn durations_print_their_unit() {
        assert_eq!(Duration::from_ns(9_999).to_string(), "9999 ns");
        assert_eq!(Duration::from_ms(50).to_string(), "50 ms");
    }
}
