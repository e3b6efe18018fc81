//! The only file of this crate that asks the OS for the time or for randomness.

use std::time::SystemTime;

use evenkeel_core::ids::{InstanceId, VolumeId};

use crate::model::UnixMs;

/// The wall clock.
#[must_use]
#[allow(clippy::disallowed_methods)] // this is the clock.rs the rule speaks of
pub fn now() -> UnixMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// 128 random bits.
///
/// # Errors
/// The OS has no randomness to give, which on Linux only happens in a sandbox without `getrandom`.
pub fn random_bits() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_le_bytes(bytes))
}

/// A new volume id.
///
/// # Errors
/// See [`random_bits`].
pub fn volume_id() -> Result<VolumeId, getrandom::Error> {
    random_bits().map(VolumeId::from_bits)
}

/// A new host id.
///
/// # Errors
/// See [`random_bits`].
pub fn instance_id() -> Result<InstanceId, getrandom::Error> {
    random_bits().map(InstanceId::from_bits)
}

/// Waits, where nothing tells when to go on.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}
