//! The number of a cluster, which identifies its etcd.
//!
//! The first node of a cluster writes the key `id`; nothing changes it later. A process compares it
//! in each election and each time it writes its own key. So an etcd that has lost its data, or was
//! exchanged for another one, elects no leader: a leader would find no volumes there, and would
//! take all stored bytes for unowned.

use super::client::EtcdError;
use super::gateway::{Compare, KeyValue, Operation};
use super::keys::Keys;

/// Returns the value of the key: 32 hexadecimal digits.
#[must_use]
pub fn text_of(number: u128) -> String {
    format!("{number:032x}")
}

/// Parses a value of the key; returns `None` if it is not a number.
#[must_use]
pub fn read(value: &[u8]) -> Option<u128> {
    let text = std::str::from_utf8(value).ok()?;
    u128::from_str_radix(text, 16).ok()
}

/// Returns the condition that etcd has the data of this cluster.
#[must_use]
pub fn is_of(keys: &Keys, number: u128) -> Compare {
    Compare::Holds(keys.number(), text_of(number).into_bytes())
}

/// Returns a read of the key for the same transaction as [`is_of`], for [`check`].
#[must_use]
pub fn look(keys: &Keys) -> Operation {
    Operation::Get(keys.number())
}

/// Checks the key that a transaction has found.
///
/// # Errors
/// [`EtcdError::OtherCluster`]: there is no number, or another one.
pub fn check(keys: &Keys, number: u128, found: Option<&KeyValue>) -> Result<(), EtcdError> {
    let what = match found {
        Some(found) if found.value.0 == text_of(number).as_bytes() => return Ok(()),
        Some(_) => "has another number than this node's cluster: this is the etcd of another one",
        None => "is missing: etcd has lost its data, or another etcd is at this address",
    };
    let key = String::from_utf8_lossy(&keys.number()).into_owned();
    Err(EtcdError::OtherCluster(format!(
        "etcd's key {key} {what}; volumes are served as before, and no node decides anything: \
         restore etcd from a backup, or name the right endpoints"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::gateway::Raw;
    use super::*;

    #[test]
    fn a_number_is_read_as_it_is_written() {
        assert_eq!(text_of(0xab).len(), 32);
        assert_eq!(read(text_of(u128::MAX).as_bytes()), Some(u128::MAX));
        assert_eq!(read(b"none"), None);
    }

    #[test]
    fn a_missing_and_a_foreign_number_are_told_apart() {
        let keys = Keys::of("c").unwrap();
        let key =
            |number| KeyValue { value: Raw(text_of(number).into_bytes()), ..KeyValue::default() };
        assert_eq!(check(&keys, 5, Some(&key(5))), Ok(()));
        let foreign = check(&keys, 5, Some(&key(6))).unwrap_err().to_string();
        assert!(foreign.starts_with("etcd's key /evenkeel/c/id has another number"), "{foreign}");
        let missing = check(&keys, 5, None).unwrap_err().to_string();
        assert!(missing.contains("is missing") && missing.contains("from a backup"), "{missing}");
        assert!(!foreign.contains(&text_of(5)) && !foreign.contains(&text_of(6)));
    }
}
