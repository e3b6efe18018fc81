//! A point in time by the wall clock and by the clock since the boot. Pure.

use evenkeel_core::time::UnixMs;

/// The resolution of the kernel's time since boot, in milliseconds.
const BOOT_CLOCK_MS: u64 = 10;

/// A point in time by two clocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    /// Time of the wall clock, which may be changed.
    pub unix: UnixMs,
    /// Time of the clock that runs since the machine's boot and never jumps: the id of the boot,
    /// and milliseconds since then. `None` if the machine does not report it.
    pub boot: Option<(String, u64)>,
}

impl Moment {
    /// Returns the milliseconds since `earlier`, never more than have really passed, as far as the
    /// clocks show. After a restart of the machine only the wall clock spans the interval.
    #[must_use]
    pub fn ms_since(&self, earlier: &Self) -> u64 {
        let by_wall = self.unix.ms_since(earlier.unix);
        match (&self.boot, &earlier.boot) {
            (Some((boot, now)), Some((same, then))) if boot == same => {
                now.saturating_sub(*then).saturating_sub(BOOT_CLOCK_MS)
            }
            // At least the time since the boot has passed.
            (Some((_, now)), Some(_)) => by_wall.max(now.saturating_sub(BOOT_CLOCK_MS)),
            _ => by_wall,
        }
    }
}
