//! Time and randomness from the OS. No other file of this crate reads them.

use std::time::{Duration, SystemTime};

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

use crate::credits::Moment;
use crate::model::UnixMs;

/// Path of the id of this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Path of the seconds since the boot, with two decimals, including suspension; and another number.
const UPTIME: &str = "/proc/uptime";

/// Returns the time of the wall clock.
#[must_use]
#[allow(clippy::disallowed_methods)] // this is the clock.rs the rule speaks of
pub fn now() -> UnixMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixMs(saturating(since.as_millis()))
}

/// Returns the present time by both clocks.
#[must_use]
pub fn moment() -> Moment {
    let text = |path| std::fs::read_to_string(path).ok();
    let boot = text(BOOT_ID).zip(text(UPTIME).and_then(|uptime| milliseconds(&uptime)));
    let boot = boot.map(|(id, ms)| (id.trim().to_owned(), ms));
    Moment { unix: now(), boot }
}

/// Returns the time since the machine's boot, including suspension. It never jumps.
#[must_use]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// Parses `12.34 5.67` as 12,340.
fn milliseconds(uptime: &str) -> Option<u64> {
    let (seconds, decimals) = uptime.split_whitespace().next()?.split_once('.')?;
    let hundredths: u64 = decimals.get(..2)?.parse().ok()?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(hundredths * 10)
}

/// Returns 128 random bits.
///
/// # Errors
/// The OS returns no random bytes. On Linux this happens only in a sandbox without `getrandom`.
pub fn random_bits() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

/// Returns a new volume id.
///
/// # Errors
/// See [`random_bits`].
pub fn volume_id() -> Result<VolumeId, getrandom::Error> {
    random_bits().map(VolumeId::from_bits)
}

/// Returns a new snapshot id.
///
/// # Errors
/// See [`random_bits`].
pub fn snapshot_id() -> Result<SnapshotId, getrandom::Error> {
    random_bits().map(SnapshotId::from_bits)
}

/// Returns a new host id.
///
/// # Errors
/// See [`random_bits`].
pub fn instance_id() -> Result<InstanceId, getrandom::Error> {
    random_bits().map(InstanceId::from_bits)
}

/// Sleeps. Only for waits without an event to wait for.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_since_boot_is_read_and_rises() {
        assert_eq!(milliseconds("12.34 56.78\n"), Some(12_340));
        for text in ["", "12", "x.00 1", "1.2"] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
        let first = moment().boot.unwrap();
        let second = moment().boot.unwrap();
        assert!(first.0 == second.0 && first.1 <= second.1);
    }
}
