//! Snapshots that are made together: all of them or none, even if the power fails meanwhile.
//!
//! Each volume makes its own. Until all are made, and the table has their maps, each is pending: no
//! client can read it. An opening after a crash finds which of them the logs have, and keeps all of
//! them or deletes those that exist.

use super::state::State;
use crate::local::format::{Node, NodeKind, SnapshotSet};
use std::io;

impl State {
    /// Returns the remaining snapshots of a set, including deleted ones.
    fn members(&self, set: SnapshotSet) -> Vec<(u32, Node)> {
        let numbers = self.sets.range((set.id, 0)..=(set.id, u32::MAX));
        numbers.filter_map(|(_, number)| Some((*number, *self.all.get(number)?))).collect()
    }

    /// Returns whether it is not decided yet if a set has all its snapshots.
    pub fn is_undecided(&self, set: SnapshotSet) -> bool {
        let is_pending = |(_, node): &(u32, Node)| node.kind == NodeKind::SnapshotPending;
        set.id != 0 && self.members(set).iter().any(is_pending)
    }

    /// Keeps the snapshots of a set when all of them are made, or deletes those that exist if one
    /// is lost. Returns the volumes that have blocks to free then.
    ///
    /// # Errors
    /// When the device fails; the set is decided at the next opening of the pool.
    pub fn settle_set(&mut self, set: SnapshotSet) -> io::Result<Vec<u32>> {
        if !self.is_undecided(set) {
            return Ok(Vec::new());
        }
        let members = self.members(set);
        let (pending, others): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(_, node)| node.kind == NodeKind::SnapshotPending);
        // One of them was kept before a crash, so all were made.
        let is_kept = others.iter().any(|(_, node)| node.kind == NodeKind::Snapshot);
        let count = pending.len() + others.len();
        if !is_kept && count < set.count as usize {
            // A missing one may be in a damaged sector.
            if !self.unknown.is_empty() {
                return Ok(Vec::new());
            }
            let deleted = |(number, node): &(u32, Node)| {
                let kind = NodeKind::SnapshotDeleted;
                let set = SnapshotSet::default();
                (*number, Node { kind, set, ..*node })
            };
            self.write_nodes(pending.iter().map(deleted))?;
            return Ok(pending.iter().map(|(_, node)| node.parent).collect());
        }
        let is_made = |(_, node): &&(u32, Node)| node.root.checkpoint > 0;
        if is_kept || pending.iter().all(|entry| is_made(&entry)) {
            let kept = |(number, node): &(u32, Node)| {
                (*number, Node { kind: NodeKind::Snapshot, ..*node })
            };
            self.write_nodes(pending.iter().filter(is_made).map(kept))?;
            // The blocks of one that was deleted before can be freed now.
            return Ok(others.iter().map(|(_, node)| node.parent).collect());
        }
        Ok(Vec::new())
    }

    /// Returns all undecided sets.
    pub fn undecided_sets(&self) -> Vec<SnapshotSet> {
        let is_pending = |node: &&Node| node.kind == NodeKind::SnapshotPending && node.set.id != 0;
        let mut sets: Vec<_> = self.all.values().filter(is_pending).map(|node| node.set).collect();
        sets.sort_unstable_by_key(|set| set.id);
        sets.dedup();
        sets
    }
}
