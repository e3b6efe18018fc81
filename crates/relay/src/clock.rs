//! The only file of this crate that asks for the time.

/// The time since some origin, for limits of log lines.
pub(crate) fn now() -> evenkeel_core::time::Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let ns = u64::try_from(time.tv_nsec).unwrap_or_default();
    evenkeel_core::time::Instant::from_ns(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}
