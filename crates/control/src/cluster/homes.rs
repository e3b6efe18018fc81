//! Which node is the home of which volume, in etcd.

use std::collections::BTreeMap;

use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;

use super::kv::Kv;
use crate::journal::etcd::client::EtcdError;
use crate::journal::etcd::gateway::{Compare, Operation, Transaction};

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

/// Writes homes, if the leader that this revision created still leads.
///
/// # Errors
/// etcd does not answer, or another one leads.
pub fn write(kv: &Kv, leader: u64, changes: &Changes) -> Result<(), EtcdError> {
    for part in changes.chunks(BATCH) {
        let operation = |(id, home): &(VolumeId, Option<NodeId>)| {
            let key = kv.name(&format!("{PREFIX}{id}"));
            match home {
                Some(node) => Operation::Put(key, node.0.to_string().into_bytes(), 0),
                None => Operation::Delete(key),
            }
        };
        let transaction = Transaction {
            when: vec![Compare::CreatedBy(kv.keys.leader(), leader)],
            then: part.iter().map(operation).collect(),
            otherwise: vec![],
        };
        if !kv.transact(&transaction)?.succeeded {
            return Err(EtcdError::Options("this server does not lead any more".to_owned()));
        }
    }
    Ok(())
}
