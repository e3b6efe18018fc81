//! Random numbers and ids from the operating system. No other file of this crate reads them.

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

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

/// The letters of ids in IAM.
pub const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Returns a number that is used once.
///
/// # Errors
/// See [`random_bits`].
pub fn nonce() -> Result<[u8; 12], getrandom::Error> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Returns `length` random letters of `alphabet`, whose length must divide 256 so that all letters
/// are equally likely.
///
/// # Errors
/// See [`random_bits`].
pub fn text(length: usize, alphabet: &[u8]) -> Result<String, getrandom::Error> {
    debug_assert!(256_usize.is_multiple_of(alphabet.len()));
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|b| char::from(alphabet[usize::from(*b) % alphabet.len()])).collect())
}
