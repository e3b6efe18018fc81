//! Single keys of a cluster in etcd: read, written once, written, removed.

use std::time::Duration;

use crate::etcd::client::{Client, EtcdError};
use crate::etcd::gateway::{
    Compare, Operation, RangeAnswer, Transaction, TransactionAnswer, end_of, get, range,
};
use crate::etcd::keys::Keys;

/// How long etcd may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Keys that are read at a time.
const PAGE: usize = 10_000;

/// The keys of one cluster.
#[derive(Clone, Debug)]
pub struct Kv {
    /// What asks.
    pub client: Client,
    /// What the keys begin with.
    pub keys: Keys,
}

/// What there is below a prefix.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Values by the rest of their keys.
    pub values: Vec<(String, Vec<u8>)>,
    /// The revision of which this is all.
    pub revision: u64,
}

impl Kv {
    /// The whole name of a key.
    #[must_use]
    pub fn name(&self, key: &str) -> Vec<u8> {
        [&self.keys.prefix()[..], key.as_bytes()].concat()
    }

    /// One value.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, EtcdError> {
        let answer: RangeAnswer = self.client.call("kv/range", &get(&self.name(key)), PATIENCE)?;
        Ok(answer.kvs.into_iter().next().map(|found| found.value.0))
    }

    /// Everything below a prefix, as of one revision.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn all(&self, prefix: &str) -> Result<Found, EtcdError> {
        let prefix = self.name(prefix);
        let (mut from, end) = (prefix.clone(), end_of(&prefix));
        let mut found = Found::default();
        loop {
            let request = range(&from, &end, found.revision, PAGE);
            let answer: RangeAnswer = self.client.call("kv/range", &request, PATIENCE)?;
            if found.revision == 0 {
                found.revision = answer.header.revision.0;
            }
            if let Some(last) = answer.kvs.last() {
                from = [&last.key.0[..], &[0]].concat();
            }
            found.values.extend(answer.kvs.into_iter().map(|one| {
                let rest = one.key.0.get(prefix.len()..).unwrap_or_default();
                (String::from_utf8_lossy(rest).into_owned(), one.value.0)
            }));
            if !answer.more {
                return Ok(found);
            }
        }
    }

    /// Writes a value unless there is one; returns the one that is there then.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn once(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, EtcdError> {
        let name = self.name(key);
        let transaction = Transaction {
            when: vec![Compare::CreatedBy(name.clone(), 0)],
            then: vec![Operation::Put(name.clone(), value.to_vec(), 0)],
            otherwise: vec![Operation::Get(name.clone())],
        };
        let answer = self.transact(&transaction)?;
        match answer.of(&name) {
            Some(found) if !answer.succeeded => Ok(found.value.0.clone()),
            _ => Ok(value.to_vec()),
        }
    }

    /// Writes a value, with a lease unless that is zero.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn put(&self, key: &str, value: &[u8], lease: u64) -> Result<(), EtcdError> {
        let then = vec![Operation::Put(self.name(key), value.to_vec(), lease)];
        self.transact(&Transaction { then, ..Transaction::default() }).map(drop)
    }

    /// Removes a key, if there is one.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn remove(&self, key: &str) -> Result<(), EtcdError> {
        let then = vec![Operation::Delete(self.name(key))];
        self.transact(&Transaction { then, ..Transaction::default() }).map(drop)
    }

    /// One transaction.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn transact(&self, transaction: &Transaction) -> Result<TransactionAnswer, EtcdError> {
        self.client.call("kv/txn", &transaction.json(), PATIENCE)
    }
}
