//! The messages of etcd's JSON gateway, as far as they are used here. Pure.
//!
//! The gateway writes 64-bit numbers as strings and bytes in base64, and leaves out zeroes and
//! empty values.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Maximum number of operations, and of comparisons, in a transaction: etcd's default for
/// `--max-txn-ops`.
pub const OPERATIONS_MAX: usize = 128;
/// Maximum of bytes of a request: etcd's default for `--max-request-bytes`.
pub const REQUEST_BYTES_MAX: usize = 3 << 19;
/// Bytes that a message adds to those of a key and its value, rounded up.
const OVERHEAD_BYTES: usize = 48;

/// A number that is written as a string.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Number(pub u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, as a string")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                text.parse().map(Number).map_err(E::custom)
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }
        }
        deserializer.deserialize_any(Digits)
    }
}

/// Bytes that are written in base64.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Raw(pub Vec<u8>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes in base64")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Raw, E> {
                STANDARD.decode(text).map(Raw).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// The header of every answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The revision of the whole store at the time of the answer.
    pub revision: Number,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    /// The key.
    pub key: Raw,
    /// Its value.
    pub value: Raw,
    /// The revision that created the key.
    pub create_revision: Number,
    /// The revision that wrote its value.
    pub mod_revision: Number,
    /// The lease at whose end the key is removed; zero if none.
    pub lease: Number,
}

/// The answer to a read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeAnswer {
    /// See [`Header`].
    pub header: Header,
    /// The keys found, in order.
    pub kvs: Vec<KeyValue>,
    /// Whether more keys follow.
    pub more: bool,
}

/// The answer to one operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OperationAnswer {
    /// The answer to a read.
    pub response_range: Option<RangeAnswer>,
}

/// The answer to a transaction.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TransactionAnswer {
    /// See [`Header`].
    pub header: Header,
    /// Whether every comparison held.
    pub succeeded: bool,
    /// The answers to the operations.
    pub responses: Vec<OperationAnswer>,
}

impl TransactionAnswer {
    /// Returns the keys that the transaction's reads found.
    pub fn found(&self) -> impl Iterator<Item = &KeyValue> {
        self.responses
            .iter()
            .filter_map(|response| response.response_range.as_ref())
            .flat_map(|r| &r.kvs)
    }

    /// Returns the key with its value, if a read found it.
    pub fn of(&self, key: &[u8]) -> Option<&KeyValue> {
        self.found().find(|found| found.key.0 == key)
    }
}

/// The answer about a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LeaseAnswer {
    /// The lease.
    #[serde(rename = "ID")]
    pub id: Number,
    /// Seconds until it ends; zero if it has ended.
    #[serde(rename = "TTL")]
    pub ttl_s: Number,
}

/// One message of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Streamed<T> {
    /// The message.
    pub result: Option<T>,
    /// Why there is no message.
    pub error: Option<Refusal>,
}

/// A message of a watch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchAnswer {
    /// See [`Header`].
    pub header: Header,
    /// Whether this is the watch's last message.
    pub canceled: bool,
    /// The earliest revision that is kept, if the watch began before it.
    pub compact_revision: Number,
    /// Why the watch was ended.
    pub cancel_reason: String,
    /// The events. All events of one transaction come in one message.
    pub events: Vec<WatchEvent>,
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WatchEvent {
    /// `DELETE`, or nothing for a put.
    #[serde(rename = "type")]
    pub kind: String,
    /// The key with its new value.
    pub kv: KeyValue,
}

/// State of a member. The numbers are its own.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusAnswer {
    /// See [`Header`].
    pub header: Header,
    /// The member that leads etcd; zero if none does.
    pub leader: Number,
    /// The size of its file in bytes.
    #[serde(rename = "dbSize")]
    pub bytes: Number,
    /// The bytes of its file that are in use.
    #[serde(rename = "dbSizeInUse")]
    pub in_use: Number,
    /// The quota of its file in bytes; from 3.6 on.
    #[serde(rename = "dbSizeQuota")]
    pub quota: Number,
    /// Its problems, alarms included.
    pub errors: Vec<String>,
}

/// The alarms that are raised.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AlarmAnswer {
    /// One for each member and kind.
    pub alarms: Vec<Alarm>,
}

/// An alarm.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Alarm {
    /// The member that raised it.
    #[serde(rename = "memberID")]
    pub member: Number,
    /// `NOSPACE` or `CORRUPT`.
    pub alarm: String,
}

/// Why etcd refused a request.
///
/// All versions have `code` and `message`; `error` is the same text, and only 3.4 and 3.5 have it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Refusal {
    /// gRPC's code.
    #[serde(alias = "grpc_code")]
    pub code: u64,
    /// The text.
    #[serde(default)]
    pub message: String,
}

/// Returns a key in the form of the gateway.
fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Returns the first key after all keys that begin with `prefix`.
#[must_use]
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The key was created by this revision; zero: there is no such key.
    CreatedBy(Vec<u8>, u64),
    /// The key was last written by this revision; zero: there is no such key.
    WrittenBy(Vec<u8>, u64),
    /// The key was not written after this revision.
    NotWrittenAfter(Vec<u8>, u64),
    /// The key has this value. Does not hold if there is no such key.
    Holds(Vec<u8>, Vec<u8>),
}

impl Compare {
    fn key(&self) -> &[u8] {
        match self {
            Self::CreatedBy(key, _)
            | Self::WrittenBy(key, _)
            | Self::NotWrittenAfter(key, _)
            | Self::Holds(key, _) => key,
        }
    }

    fn bytes(&self) -> usize {
        let value = if let Self::Holds(_, value) = self { value.len() } else { 0 };
        self.key().len() + value + OVERHEAD_BYTES
    }

    fn json(&self) -> Value {
        let key = text(self.key());
        match self {
            Self::CreatedBy(_, revision) => json!({
                "key": key, "target": "CREATE", "result": "EQUAL",
                "create_revision": revision.to_string(),
            }),
            Self::WrittenBy(_, revision) => json!({
                "key": key, "target": "MOD", "result": "EQUAL",
                "mod_revision": revision.to_string(),
            }),
            Self::NotWrittenAfter(_, revision) => json!({
                "key": key, "target": "MOD", "result": "LESS",
                "mod_revision": revision.saturating_add(1).to_string(),
            }),
            Self::Holds(_, value) => json!({
                "key": key, "target": "VALUE", "result": "EQUAL", "value": text(value),
            }),
        }
    }
}

/// An operation of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Writes a value, with a lease unless it is zero.
    Put(Vec<u8>, Vec<u8>, u64),
    /// Removes a key.
    Delete(Vec<u8>),
    /// Reads a key.
    Get(Vec<u8>),
    /// Reads a key without its value.
    Look(Vec<u8>),
}

impl Operation {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(key, ..) | Self::Delete(key) | Self::Get(key) | Self::Look(key) => key,
        }
    }

    fn bytes(&self) -> usize {
        let value = if let Self::Put(_, value, _) = self { value.len() } else { 0 };
        self.key().len() + value + OVERHEAD_BYTES
    }

    fn json(&self) -> Value {
        let key = text(self.key());
        match self {
            Self::Put(_, value, lease) => json!({ "request_put": {
                "key": key, "value": text(value), "lease": lease.to_string(),
            }}),
            Self::Delete(_) => json!({ "request_delete_range": { "key": key }}),
            Self::Get(_) => json!({ "request_range": { "key": key }}),
            Self::Look(_) => json!({ "request_range": { "key": key, "keys_only": true }}),
        }
    }
}

/// A transaction: if all comparisons hold, `then` is executed, else `otherwise`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    /// The comparisons.
    pub when: Vec<Compare>,
    /// The operations if all comparisons hold. No key may be written twice.
    pub then: Vec<Operation>,
    /// The operations otherwise.
    pub otherwise: Vec<Operation>,
}

impl Transaction {
    /// Returns its size in bytes as etcd counts it, rounded up.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let compares = self.when.iter().map(Compare::bytes);
        let operations = self.then.iter().chain(&self.otherwise).map(Operation::bytes);
        compares.chain(operations).sum()
    }

    /// Returns the number of operations or comparisons of its largest part, which etcd limits.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.when.len().max(self.then.len()).max(self.otherwise.len())
    }

    /// Returns the request.
    #[must_use]
    pub fn json(&self) -> Value {
        let all = |all: &[Operation]| all.iter().map(Operation::json).collect::<Vec<_>>();
        json!({
            "compare": self.when.iter().map(Compare::json).collect::<Vec<_>>(),
            "success": all(&self.then),
            "failure": all(&self.otherwise),
        })
    }
}

/// Returns a request for the keys from `from` up to and not including `to`, at a revision (zero:
/// the newest), for at most `limit` keys.
#[must_use]
pub fn range(from: &[u8], to: &[u8], revision: u64, limit: usize) -> Value {
    json!({
        "key": text(from), "range_end": text(to),
        "revision": revision.to_string(), "limit": limit.to_string(),
    })
}

/// Returns a request for one key.
#[must_use]
pub fn get(key: &[u8]) -> Value {
    json!({ "key": text(key) })
}

/// Returns a request for all events of keys with this prefix, beginning with a revision.
#[must_use]
pub fn watch(prefix: &[u8], from: u64) -> Value {
    json!({ "create_request": {
        "key": text(prefix), "range_end": text(&end_of(prefix)),
        "start_revision": from.to_string(),
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_the_gateway_writes_them() {
        let answer = r#"{"header":{"cluster_id":"1","revision":"7"},"kvs":[{"key":"aw==",
            "create_revision":"2","mod_revision":"3","version":"1","value":"dg=="}],"count":"1"}"#;
        let answer: RangeAnswer = serde_json::from_str(answer).unwrap();
        assert_eq!((answer.header.revision, answer.more), (Number(7), false));
        assert_eq!(answer.kvs[0].key, Raw(b"k".to_vec()));
        assert_eq!(answer.kvs[0].mod_revision, Number(3));
        // Zeroes are left out: a lease that has ended has no TTL.
        let ended = r#"{"result":{"header":{"revision":"2"},"ID":"77"}}"#;
        let ended: Streamed<LeaseAnswer> = serde_json::from_str(ended).unwrap();
        assert_eq!(ended.result.unwrap().ttl_s, Number(0));
        assert!(serde_json::from_str::<RangeAnswer>(r#"{"kvs":[{"key":"*"}]}"#).is_err());
        assert!(serde_json::from_str::<Header>(r#"{"revision":"-1"}"#).is_err());
    }

    #[test]
    fn a_status_is_read_as_each_version_writes_it() {
        let old = r#"{"header":{"member_id":"1","revision":"8","raft_term":"2"},
            "version":"3.4.23","dbSize":"626688","leader":"1","raftIndex":"28","raftTerm":"2",
            "errors":["memberID:1 alarm:NOSPACE "],"dbSizeInUse":"425984"}"#;
        let new = r#"{"header":{"revision":"8"}, "version":"3.7.3", "dbSize":"626688",
            "leader":"1", "errors":["memberID:1 alarm:NOSPACE"], "dbSizeInUse":"425984",
            "storageVersion":"3.7.0", "dbSizeQuota":"600000", "downgradeInfo":{}}"#;
        for (text, quota) in [(old, 0), (new, 600_000)] {
            let status: StatusAnswer = serde_json::from_str(text).unwrap();
            assert_eq!((status.bytes.0, status.in_use.0), (626_688, 425_984));
            assert_eq!((status.quota.0, status.header.revision.0), (quota, 8));
            assert!(status.errors[0].contains("NOSPACE"));
        }
        let raised = r#"{"alarms":[{"memberID":"1883230925091560625","alarm":"NOSPACE"}]}"#;
        let raised: AlarmAnswer = serde_json::from_str(raised).unwrap();
        assert_eq!(raised.alarms[0].member, Number(1_883_230_925_091_560_625));
    }

    #[test]
    fn a_refusal_is_read_as_each_version_writes_it() {
        for text in [
            r#"{"error":"etcdserver: x","message":"etcdserver: x","code":5}"#,
            r#"{"error":"etcdserver: x","code":5,"message":"etcdserver: x"}"#,
            r#"{"code":5, "message":"etcdserver: x"}"#,
            r#"{"code":5,"message":"etcdserver: x","details":[]}"#,
        ] {
            let refusal: Refusal = serde_json::from_str(text).unwrap();
            assert_eq!((refusal.code, refusal.message.as_str()), (5, "etcdserver: x"), "{text}");
        }
        // In a stream.
        for text in [
            r#"{"error":{"grpc_code":5,"http_code":404,"message":"x","http_status":"Not Found"}}"#,
            r#"{"error":{"code":5,"message":"x"}}"#,
        ] {
            let streamed: Streamed<LeaseAnswer> = serde_json::from_str(text).unwrap();
            let refusal = Refusal { code: 5, message: "x".to_owned() };
            assert_eq!((streamed.result, streamed.error), (None, Some(refusal)), "{text}");
        }
        assert!(serde_json::from_str::<Refusal>("{}").is_err(), "no answer of etcd");
    }

    #[test]
    fn a_prefix_ends_before_the_next_key() {
        assert_eq!(end_of(b"/a/"), b"/a0");
        assert_eq!(end_of(&[7, 255]), [8]);
        assert_eq!(end_of(&[255]), [0]);
    }

    #[test]
    fn requests_have_the_json_form_of_the_gateway() {
        let transaction = Transaction {
            when: vec![Compare::NotWrittenAfter(b"k".to_vec(), 4)],
            then: vec![Operation::Put(b"k".to_vec(), b"v".to_vec(), 0)],
            otherwise: vec![Operation::Look(b"k".to_vec())],
        };
        let expected = json!({
            "compare": [{"key": "aw==", "target": "MOD", "result": "LESS", "mod_revision": "5"}],
            "success": [{"request_put": {"key": "aw==", "value": "dg==", "lease": "0"}}],
            "failure": [{"request_range": {"key": "aw==", "keys_only": true}}],
        });
        assert_eq!(transaction.json(), expected);
        assert_eq!((transaction.operations(), transaction.bytes()), (1, 4 + 3 * OVERHEAD_BYTES));
    }
}
