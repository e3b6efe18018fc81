//! Which node is the home of which volume, in etcd.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;

use super::kv::Kv;
use crate::etcd::client::EtcdError;
use crate::etcd::gateway::{Compare, Operation, Transaction};
use crate::etcd::keys::Keys;

/// What the keys begin with.
pub const PREFIX: &str = "o/";
/// Operations of one transaction: etcd takes 128.
const BATCH: usize = 120;

/// Homes that change; `None` where there is none any more.
pub type Changes = [(VolumeId, Option<NodeId>)];

/// The node of a value; `None` if it is not one.
#[must_use]
pub fn read(_: &str, value: &[u8]) -> Option<NodeId> {
    std::str::from_utf8(value).ok()?.parse().ok().map(NodeId)
}

/// The homes of all volumes.
///
/// # Errors
/// etcd does not answer.
pub fn load(kv: &Kv) -> Result<BTreeMap<VolumeId, NodeId>, EtcdError> {
    let all = kv.all(PREFIX)?.values.into_iter();
    Ok(all.filter_map(|(key, value)| Some((key.parse().ok()?, read("", &value)?))).collect())
}

/// The outcome of a transaction that writes homes.
pub struct Written {
    /// Whether every comparison held, so that the homes are written.
    pub is_done: bool,
    /// Whether the leader still leads.
    pub leads: bool,
    /// The revision of etcd that answered.
    pub revision: u64,
}

/// Writes the homes of volumes for a leader.
///
/// A transaction whose answer is lost may be applied later, after the leader has written another
/// home of the same volume. So each transaction holds only if its keys were not written after the
/// last revision that the leader has seen.
#[derive(Debug)]
pub struct Writer {
    keys: Keys,
    /// The revision that created the leader's key.
    leader: u64,
    /// The last revision of etcd that was seen.
    seen: AtomicU64,
}

impl Writer {
    /// The writer of the leader whose key this revision has created.
    #[must_use]
    pub fn new(keys: Keys, leader: u64) -> Self {
        Self { keys, leader, seen: AtomicU64::new(leader) }
    }

    /// Writes homes, if the leader still leads.
    ///
    /// # Errors
    /// etcd does not answer, or another process leads.
    pub fn write(&self, kv: &Kv, changes: &Changes) -> Result<(), EtcdError> {
        self.write_by(changes, |transaction| {
            let answer = kv.transact(transaction)?;
            let leader = answer.of(&self.keys.leader());
            let leads = leader.is_some_and(|found| found.create_revision.0 == self.leader);
            let revision = answer.header.revision.0;
            Ok(Written { is_done: answer.succeeded, leads, revision })
        })
    }

    /// Writes homes as [`Self::write`] does; `transact` executes the transactions.
    pub(super) fn write_by(
        &self,
        changes: &Changes,
        mut transact: impl FnMut(&Transaction) -> Result<Written, EtcdError>,
    ) -> Result<(), EtcdError> {
        for part in changes.chunks(BATCH) {
            loop {
                let seen = self.seen.load(Ordering::SeqCst);
                let written = transact(&self.transaction(part, seen))?;
                self.seen.fetch_max(written.revision, Ordering::SeqCst);
                if written.is_done {
                    break;
                }
                if !written.leads || written.revision <= seen {
                    let text = "this server does not lead any more";
                    return Err(EtcdError::Options(text.to_owned()));
                }
            }
        }
        Ok(())
    }

    fn transaction(&self, part: &Changes, seen: u64) -> Transaction {
        let key =
            |id: &VolumeId| [&self.keys.prefix()[..], format!("{PREFIX}{id}").as_bytes()].concat();
        let operation = |(id, home): &(VolumeId, Option<NodeId>)| match home {
            Some(node) => Operation::Put(key(id), node.0.to_string().into_bytes(), 0),
            None => Operation::Delete(key(id)),
        };
        let leads = Compare::CreatedBy(self.keys.leader(), self.leader);
        let is_known = |(id, _): &(VolumeId, _)| Compare::NotWrittenAfter(key(id), seen);
        Transaction {
            when: std::iter::once(leads).chain(part.iter().map(is_known)).collect(),
            then: part.iter().map(operation).collect(),
            otherwise: vec![Operation::Look(self.keys.leader())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys with the revisions that wrote them, and a leader that leads.
    #[derive(Default)]
    struct Etcd {
        revision: u64,
        written: BTreeMap<Vec<u8>, (u64, Vec<u8>)>,
    }

    impl Etcd {
        fn execute(&mut self, transaction: &Transaction) -> Written {
            let is_done = transaction.when.iter().all(|compare| match compare {
                Compare::CreatedBy(_, created) => *created == 7,
                Compare::NotWrittenAfter(key, revision) => {
                    self.written.get(key).is_none_or(|(written, _)| written <= revision)
                }
                other => panic!("{other:?}"),
            });
            if is_done {
                self.revision += 1;
                for operation in &transaction.then {
                    let Operation::Put(key, value, _) = operation else { panic!("{operation:?}") };
                    self.written.insert(key.clone(), (self.revision, value.clone()));
                }
            }
            Written { is_done, leads: true, revision: self.revision }
        }

        fn home(&self) -> &[u8] {
            &self.written.values().next().unwrap().1
        }
    }

    const ID: VolumeId = VolumeId::from_bits(1);

    #[test]
    fn a_transaction_that_is_applied_late_changes_no_home_that_was_written_since() {
        let writer = Writer::new(Keys::of("c").unwrap(), 7);
        let mut etcd = Etcd { revision: 7, ..Etcd::default() };
        let mut late = None;
        let lost = writer.write_by(&[(ID, Some(NodeId(1)))], |transaction| {
            late = Some(transaction.clone());
            Err(EtcdError::Options("no answer".to_owned()))
        });
        assert!(lost.is_err());
        writer.write_by(&[(ID, Some(NodeId(2)))], |it| Ok(etcd.execute(it))).unwrap();
        assert!(!etcd.execute(&late.unwrap()).is_done);
        assert_eq!(etcd.home(), b"2");
    }

    #[test]
    fn what_was_written_without_an_answer_is_replaced() {
        let writer = Writer::new(Keys::of("c").unwrap(), 7);
        let mut etcd = Etcd { revision: 7, ..Etcd::default() };
        let lost = writer.write_by(&[(ID, Some(NodeId(1)))], |transaction| {
            etcd.execute(transaction);
            Err(EtcdError::Options("no answer".to_owned()))
        });
        assert!(lost.is_err());
        assert_eq!(etcd.home(), b"1");
        let mut asked = 0;
        let written = writer.write_by(&[(ID, Some(NodeId(2)))], |transaction| {
            asked += 1;
            Ok(etcd.execute(transaction))
        });
        written.unwrap();
        assert_eq!((etcd.home(), asked), (&b"2"[..], 2));
    }

    #[test]
    fn a_process_that_leads_no_more_writes_nothing() {
        let writer = Writer::new(Keys::of("c").unwrap(), 6);
        let mut etcd = Etcd { revision: 9, ..Etcd::default() };
        let refused = writer.write_by(&[(ID, Some(NodeId(1)))], |transaction| {
            Ok(Written { leads: false, ..etcd.execute(transaction) })
        });
        assert!(refused.unwrap_err().to_string().contains("does not lead any more"));
        assert_eq!(etcd.written.len(), 0);
    }
}
