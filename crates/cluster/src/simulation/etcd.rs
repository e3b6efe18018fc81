//! The parts of etcd that nodes use: keys with leases, and transactions that compare the leader's
//! key. A transaction whose answer is lost may have been applied, may be applied later, or never.

use evenkeel_core::ids::VolumeId;

use super::super::homes::{Written, read};
use super::super::membership::Question;
use super::ceph::{Instance, VOLUMES};
use crate::etcd::gateway::{Compare, Operation, Transaction};

/// Maximum number of nodes of a history.
pub const NODES_MAX: usize = 4;
/// Time after which a lease ends without a renewal.
pub const TTL_MS: u64 = 3_000;

/// The leader's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaderKey {
    pub node: usize,
    pub process: u64,
    pub question: Question,
    /// The revision that created it.
    pub created: u64,
    pub ends_ms: u64,
}

/// The key of a node's process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstKey {
    pub incarnation: u64,
    pub instance: Instance,
    pub is_reachable: bool,
    pub is_leaving: bool,
    pub ends_ms: u64,
}

/// A node's copy of etcd.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    pub insts: [Option<InstKey>; NODES_MAX],
    pub lasts: [Option<InstKey>; NODES_MAX],
    pub homes: [Option<usize>; VOLUMES],
    pub leader: Option<u64>,
}

#[derive(Default)]
pub struct Etcd {
    revision: u64,
    pub leader: Option<LeaderKey>,
    pub seen: Seen,
    /// Transactions that have not arrived yet.
    pub delayed: Vec<Transaction>,
    /// The revisions that wrote the homes.
    written: [u64; VOLUMES],
}

impl Etcd {
    /// Removes the keys whose leases have ended.
    pub fn expire(&mut self, now_ms: u64) {
        self.leader.take_if(|key| now_ms >= key.ends_ms);
        for inst in &mut self.seen.insts {
            inst.take_if(|key| now_ms >= key.ends_ms);
        }
        self.seen.leader = self.leader.map(|key| key.created);
    }

    /// Makes a process the leader if there is no leader. Returns the leader's key.
    pub fn elect(&mut self, (node, process): (usize, u64), question: Question, now_ms: u64) {
        self.revision += 1;
        let created = self.revision;
        let ends_ms = now_ms + TTL_MS;
        self.leader = Some(LeaderKey { node, process, question, created, ends_ms });
        self.seen.leader = Some(created);
    }

    pub fn leads(&self, created: u64) -> bool {
        self.leader.is_some_and(|key| key.created == created)
    }

    /// Executes a transaction of a [`Writer`](super::super::homes::Writer).
    pub fn execute(&mut self, transaction: &Transaction) -> Written {
        let holds = |compare: &Compare| match compare {
            Compare::CreatedBy(_, created) => self.leads(*created),
            Compare::NotWrittenAfter(key, revision) => self.written[volume_of(key)] <= *revision,
            other => panic!("{other:?} is not part of the model"),
        };
        let is_done = transaction.when.iter().all(holds);
        let leads = matches!(
            transaction.when.first(),
            Some(Compare::CreatedBy(_, created)) if self.leads(*created)
        );
        if is_done {
            self.revision += 1;
            transaction.then.iter().for_each(|operation| self.write(operation));
        }
        Written { is_done, leads, revision: self.revision }
    }

    fn write(&mut self, operation: &Operation) {
        let (key, home) = match operation {
            Operation::Put(key, value, _) => {
                (key, read("", value).map(|home| usize::try_from(home.0).unwrap() - 1))
            }
            Operation::Delete(key) => (key, None),
            other => panic!("{other:?} is not part of the model"),
        };
        let volume = volume_of(key);
        self.seen.homes[volume] = home;
        self.written[volume] = if home.is_some() { self.revision } else { 0 };
    }
}

/// Returns the volume of a home's key.
fn volume_of(key: &[u8]) -> usize {
    let name = std::str::from_utf8(key).unwrap().rsplit('/').next().unwrap();
    let id: VolumeId = name.parse().unwrap();
    usize::try_from(id.bits()).unwrap()
}
