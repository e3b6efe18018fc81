//! The values of keys that hold no event: the form, balances, the mark of a clean stop
//! and the leader. JSON; an unknown field is an error. Pure.

use std::collections::BTreeMap;

use evenkeel_control::journal::format::{self, FORM, FormatError};
use evenkeel_control::journal::{Credits, JournalError};
use evenkeel_control::time::Moment;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use serde::{Deserialize, Serialize};

/// Number of values that hold balances: a few changed balances are few bytes, and those of 100,000
/// volumes are few operations.
pub const PARTS: usize = 32;

/// Returns the part with an id's balances. Ids are random, so all parts have about the same size.
pub fn part_of(bits: u128) -> usize {
    // The result is below PARTS, so it fits.
    (bits % PARTS as u128) as usize
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetaForm {
    #[serde(rename = "format")]
    _format: u64,
}

/// Returns the value of `meta`.
pub fn meta() -> Vec<u8> {
    format!(r#"{{"format":{FORM}}}"#).into_bytes()
}

/// Checks that keys of that form can be read.
pub fn check_meta(bytes: &[u8]) -> Result<(), JournalError> {
    #[derive(Deserialize)]
    struct Numbered {
        format: u64,
    }
    let Numbered { format } =
        serde_json::from_slice(bytes).map_err(|error| malformed("meta", &error))?;
    if format != FORM {
        return Err(FormatError::Form(format).at("etcd's keys"));
    }
    let MetaForm { .. } =
        serde_json::from_slice(bytes).map_err(|error| malformed("meta", &error))?;
    Ok(())
}

/// Balances of operations and bytes.
type Row = (Option<u64>, Option<u64>);

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct CreditsForm {
    volumes: BTreeMap<String, Row>,
    hosts: BTreeMap<String, Row>,
}

/// Encodes a part of the balances.
pub fn credits(credits: &Credits) -> Result<Vec<u8>, JournalError> {
    let row = |balances: &Balances| (balances.operations, balances.bytes);
    let volumes = credits.volumes.iter().map(|(id, b)| (id.to_string(), row(b))).collect();
    let hosts = credits.hosts.iter().map(|(id, b)| (id.to_string(), row(b))).collect();
    serde_json::to_vec(&CreditsForm { volumes, hosts }).map_err(|error| malformed("c/", &error))
}

/// Decodes a part of the balances.
pub fn read_credits(bytes: &[u8]) -> Result<Credits, JournalError> {
    let form: CreditsForm =
        serde_json::from_slice(bytes).map_err(|error| malformed("c/", &error))?;
    let balances = |(operations, bytes)| Balances { operations, bytes };
    let mut credits = Credits::default();
    for (id, row) in form.volumes {
        let id: VolumeId =
            id.parse().map_err(|_| malformed("c/", &format!("{id} is no volume")))?;
        credits.volumes.insert(id, balances(row));
    }
    for (id, row) in form.hosts {
        let id: InstanceId =
            id.parse().map_err(|_| malformed("c/", &format!("{id} is no host")))?;
        credits.hosts.insert(id, balances(row));
    }
    Ok(credits)
}

/// Encodes a point in time.
pub fn moment(key: &str, moment: &Moment) -> Result<Vec<u8>, JournalError> {
    let json = format::encode_moment(moment).map_err(|error| malformed(key, &error))?;
    Ok(json.into_bytes())
}

/// Decodes a point in time.
pub fn read_moment(key: &str, bytes: &[u8]) -> Result<Moment, JournalError> {
    format::decode_moment(bytes).map_err(|error| malformed(key, &error))
}

/// Returns the error of a value that cannot be read or written.
pub fn malformed(key: &str, why: &impl ToString) -> JournalError {
    let why = why.to_string();
    JournalError::Failed(format!("etcd's key '{key}': {why}; restore it from a backup of etcd"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::time::UnixMs;

    #[test]
    fn values_are_golden_and_read_back() {
        let volume = VolumeId::from_bits(33);
        let host = InstanceId::from_bits(2);
        let some = Credits {
            volumes: [(volume, Balances { operations: Some(5), bytes: None })].into(),
            hosts: [(host, Balances { operations: None, bytes: Some(u64::MAX) })].into(),
        };
        let bytes = credits(&some).unwrap();
        let golden = r#"{"volumes":{"vol-00000000000000021":[5,null]},"#.to_owned()
            + r#""hosts":{"i-00000000000000002":[null,18446744073709551615]}}"#;
        assert_eq!(String::from_utf8(bytes.clone()).unwrap(), golden);
        assert_eq!(read_credits(&bytes), Ok(some));
        assert_eq!(part_of(volume.bits()), 1);
        let moment = Moment { unix: UnixMs(5), boot: Some(("b".into(), 7)) };
        let bytes = super::moment("stop", &moment).unwrap();
        assert_eq!(read_moment("stop", &bytes), Ok(moment));
        assert_eq!(check_meta(&meta()), Ok(()));
    }

    #[test]
    fn another_form_and_an_unknown_value_are_refused() {
        let other = check_meta(br#"{"format":2,"pool":"x"}"#).unwrap_err();
        assert!(matches!(other, JournalError::OtherForm(_)), "{other}");
        let words = "etcd's keys: written in form 2, and this program reads form 1";
        assert!(other.to_string().starts_with(words), "{other}");
        for bytes in [&br#"{"format":1,"pool":"x"}"#[..], b"", b"[]"] {
            let error = check_meta(bytes).unwrap_err();
            assert!(matches!(error, JournalError::Failed(_)), "{error}");
        }
        let error = read_credits(br#"{"volumes":{"x":[1,2]},"hosts":{}}"#).unwrap_err();
        assert!(error.to_string().contains("x is no volume"), "{error}");
    }
}
