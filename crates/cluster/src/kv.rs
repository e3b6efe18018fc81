//! Reads and writes single keys of a cluster in etcd.

use std::time::Duration;

use crate::etcd::client::{Client, EtcdError};
use crate::etcd::gateway::{
    Compare, Operation, RangeAnswer, Transaction, TransactionAnswer, end_of, get, range,
};
use crate::etcd::keys::Keys;

/// Maximum time that etcd may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of keys in one read.
const PAGE: usize = 10_000;

/// The keys of one cluster.
#[derive(Clone, Debug)]
pub struct Kv {
    /// The client of etcd.
    pub client: Client,
    /// The names of the keys, which have the cluster's prefix.
    pub keys: Keys,
}

/// The keys below a prefix, with their values.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Values, each with the rest of its key after the prefix.
    pub values: Vec<(String, Vec<u8>)>,
    /// The revision of etcd at which all keys were read.
    pub revision: u64,
}

impl Kv {
    /// Returns the full name of a key.
    #[must_use]
    pub fn name(&self, key: &str) -> Vec<u8> {
        [&self.keys.prefix()[..], key.as_bytes()].concat()
    }

    /// Reads one value.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, EtcdError> {
        let answer: RangeAnswer = self.client.call("kv/range", &get(&self.name(key)), PATIENCE)?;
        Ok(answer.kvs.into_iter().next().map(|found| found.value.0))
    }

    /// Reads all keys below a prefix at one revision.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn all(&self, prefix: &str) -> Result<Found, EtcdError> {
        let prefix = self.name(prefix);
        let mut from = prefix.clone();
        let end = end_of(&prefix);
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

    /// Writes a value if the key does not exist. Returns the value of the key afterwards.
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

    /// Writes a value, with a lease unless `lease` is zero.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn put(&self, key: &str, value: &[u8], lease: u64) -> Result<(), EtcdError> {
        let then = vec![Operation::Put(self.name(key), value.to_vec(), lease)];
        self.transact(&Transaction { then, ..Transaction::default() }).map(drop)
    }

    /// Removes a key, if it exists.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn remove(&self, key: &str) -> Result<(), EtcdError> {
        let then = vec![Operation::Delete(self.name(key))];
        self.transact(&Transaction { then, ..Transaction::default() }).map(drop)
    }

    /// Executes a transaction.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn transact(&self, transaction: &Transaction) -> Result<TransactionAnswer, EtcdError> {
        self.client.call("kv/txn", &transaction.json(), PATIENCE)
    }
}
