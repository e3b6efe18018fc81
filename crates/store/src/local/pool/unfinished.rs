//! Operations that were interrupted when the pool was closed, and remaining work of volumes that
//! are not open.
//!
//! Work that fails is the trouble of one volume. The pool and all other volumes serve. The work is
//! repeated when space becomes free, and at the next opening of the pool.

use super::open::Closed;
use super::state::State;
use super::{LocalPool, Shared};
use crate::local::format::{Node, NodeKind};
use crate::{Store, StoreError};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use std::collections::BTreeMap;
use std::io;
use std::sync::{MutexGuard, PoisonError};

/// Work that cannot be finished of a volume that is not open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Name of the volume, or of its rest, for people.
    pub what: String,
    /// Reason of the failure.
    pub why: String,
    /// Whether it may succeed when there is space.
    pub is_no_space: bool,
}

/// Returns the name of a volume, or of its rest, for people.
fn name_of(node: &Node) -> String {
    match node.kind {
        NodeKind::Husk => format!("what is left of {}", VolumeId::from_bits(node.id)),
        NodeKind::Filling => format!("{}, which is being filled", SnapshotId::from_bits(node.id)),
        _ => VolumeId::from_bits(node.id).to_string(),
    }
}

/// Returns whether a volume cannot be opened or read completely because its data is damaged.
fn is_rotten(error: &StoreError) -> bool {
    match error {
        StoreError::Rotten { .. } => true,
        StoreError::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

impl State {
    /// Returns whether no part of a deleted volume is in use: all of its snapshots are deleted, and
    /// no volume or reader uses one.
    fn is_unused(&self, volume: u32) -> bool {
        let is_gone = |(number, node): &(u32, Node)| {
            node.kind == NodeKind::SnapshotDeleted
                && !self.is_pinned(*number)
                && !self.is_undecided(node.set)
        };
        // A volume that was never opened has made no snapshot.
        let was_opened = self.all.get(&volume).is_some_and(|node| node.home != 0);
        !was_opened
            || self.snapshots_of(volume).iter().all(is_gone)
                && !self.may_have_unknown_snapshots(volume)
    }

    /// Returns whether a volume has work left that no client requests.
    fn is_unsettled(&self, number: u32, node: &Node) -> bool {
        let is_unknown = |(_, snapshot): &(u32, Node)| snapshot.root.checkpoint == 0;
        let has_unknown = || self.snapshots_of(number).iter().any(is_unknown);
        match node.kind {
            NodeKind::Husk => {
                has_unknown() || self.is_unused(number) || self.doomed_of(number).is_some()
            }
            NodeKind::Volume | NodeKind::Filling => has_unknown(),
            _ => false,
        }
    }
}

impl Shared {
    fn troubles(&self) -> MutexGuard<'_, BTreeMap<u32, Trouble>> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of work for a volume that is not open.
    fn note_trouble(&self, number: u32, done: Result<(), &StoreError>) {
        let Err(error) = done else {
            self.troubles().remove(&number);
            return;
        };
        let Some(node) = self.state().all.get(&number).copied() else { return };
        let what = name_of(&node);
        let why = error.to_string();
        let is_no_space = error.is_no_space();
        let trouble = Trouble { what, why, is_no_space };
        let before = self.troubles().insert(number, trouble.clone());
        // Each trouble is logged once.
        if before.as_ref() != Some(&trouble) {
            let pool = self.device.path().display();
            let Trouble { what, why, .. } = trouble;
            tracing::error!(
                %pool, what, why,
                "work cannot be finished; it keeps its space, and all volumes are served"
            );
        }
    }
}

impl LocalPool {
    /// Returns the work that cannot be finished of volumes that are not open.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        self.shared.troubles().values().cloned().collect()
    }

    /// Finishes operations that were interrupted when the pool was closed: deletions, and snapshots
    /// that may be in the log of their volumes.
    pub(super) fn finish(&self) {
        let (deleting, unsettled): (Vec<_>, Vec<_>) = {
            let state = self.state();
            let nodes = || state.all.iter().map(|(number, node)| (*number, *node));
            (
                nodes().filter(|(_, node)| node.kind == NodeKind::Deleting).collect(),
                nodes().filter(|(number, node)| state.is_unsettled(*number, node)).collect(),
            )
        };
        for (number, node) in deleting {
            self.finish_deletion_or_note(number, node);
        }
        for (number, _) in unsettled {
            self.tend(number);
        }
        let sets = self.state().undecided_sets();
        for set in sets {
            let settled = self.state().settle_set(set);
            match settled {
                Ok(volumes) => volumes.into_iter().for_each(|volume| self.tend(volume)),
                Err(error) => {
                    let pool = self.shared.device.path().display();
                    tracing::error!(%pool, %error, "a set of snapshots cannot be settled");
                }
            }
        }
        let filled: Vec<_> = {
            let state = self.state();
            let is_made = |id: &SnapshotId| self.complete_snapshot(&state, *id).is_ok();
            state.filling.keys().copied().filter(is_made).collect()
        };
        for id in filled {
            if let Err(error) = self.delete_filling(id) {
                tracing::error!(%error, "the temporary volume of a snapshot cannot be deleted");
            }
        }
    }

    /// Repeats the work for which there was no space.
    pub(super) fn try_again(&self) {
        let lacking: Vec<u32> = {
            let troubles = self.shared.troubles();
            let lacking = troubles.iter().filter(|(_, trouble)| trouble.is_no_space);
            lacking.map(|(number, _)| *number).collect()
        };
        for number in lacking {
            let node = self.state().all.get(&number).copied();
            match node {
                Some(node) if node.kind == NodeKind::Deleting => {
                    self.finish_deletion_or_note(number, node);
                }
                Some(_) => self.tend(number),
                None => self.shared.note_trouble(number, Ok(())),
            }
        }
    }

    /// Removes a deleted volume from all tables, or reduces it to the blocks that its snapshots
    /// need.
    pub(super) fn finish_deletion(&self, number: u32, node: Node) -> Result<(), StoreError> {
        let done = self.do_finish_deletion(number, node);
        self.shared.note_trouble(number, done.as_ref().map(|_| ()));
        // The remaining work is not a part of the deletion.
        self.tend(done?.unwrap_or(number));
        Ok(())
    }

    /// Finishes a deletion as [`Self::finish_deletion`], if no caller waits for the result.
    pub(super) fn finish_deletion_or_note(&self, number: u32, node: Node) {
        // A failure is recorded as a trouble.
        let _ = self.finish_deletion(number, node);
    }

    /// Finishes a deletion. Returns the next volume to tend (0 is none) if this one was removed
    /// from the tables.
    fn do_finish_deletion(&self, number: u32, node: Node) -> Result<Option<u32>, StoreError> {
        let id = VolumeId::from_bits(node.id);
        let doing = || format!("finish the deletion of {id}");
        let closed = Closed::claim(&self.shared, number).ok_or(StoreError::Open { id })?;
        if let Some(next) = self.clear_out(number).map_err(self.io(doing()))? {
            return Ok(Some(next));
        }
        let left = self.open_node(number, node, closed, None).and_then(|mut open| {
            let heir = self.make_heir(number, &node)?;
            open.volume.leave_all_to(heir).map_err(self.io(doing()))
        });
        match left {
            Err(error) if is_rotten(&error) => tracing::error!(
                %error, volume = %id, "its blocks are freed with the last of its snapshots"
            ),
            left => left?,
        }
        let home = self.state().all.get(&number).map_or(node.home, |node| node.home);
        let husk = Node { kind: NodeKind::Husk, home, ..node };
        self.state().write_nodes([(number, husk)]).map_err(self.io(doing()))?;
        Ok(None)
    }

    /// Creates the node of the deleted snapshot that gets all blocks of a deleted volume.
    fn make_heir(&self, number: u32, node: &Node) -> Result<u32, StoreError> {
        let doing = || format!("finish the deletion of {}", VolumeId::from_bits(node.id));
        let heir = Node::new(NodeKind::SnapshotDeleted, node.id, node.size, number);
        let mut state = self.state();
        let made = state.make_node(heir, &[]).map_err(self.io(doing()))?;
        let number = made.ok_or_else(|| self.io(doing())(state.table_is_full()))?;
        // Another node may have had this number.
        self.shared.mail().unmade.remove(&number);
        Ok(number)
    }

    /// Removes a deleted volume with its snapshots from all tables, if no part of it is in use.
    /// None of its blocks is read for that. If it was removed, returns the next volume to tend (0
    /// is none): that of the snapshot of which this volume was made.
    fn clear_out(&self, number: u32) -> io::Result<Option<u32>> {
        let mut state = self.state();
        let Some(node) = state.all.get(&number).copied() else { return Ok(Some(0)) };
        if !state.is_unused(number) {
            return Ok(None);
        }
        let snapshots = state.snapshots_of(number);
        let numbers: Vec<u32> = snapshots.iter().map(|(number, _)| *number).collect();
        state.clear_nodes(&numbers)?;
        self.shared.forget(&mut state, number)?;
        for (_, snapshot) in snapshots {
            self.shared.settle_set(&mut state, snapshot.set);
        }
        let Some(parent) = state.all.get(&node.parent).map(|parent| parent.parent) else {
            return Ok(Some(0));
        };
        self.shared.want_reclaim(&state, parent);
        Ok(Some(parent))
    }

    /// Does the remaining work for the space of a volume that is not open: pending snapshots, and
    /// freeing the blocks of deleted ones. If that leaves a deleted volume without blocks in use,
    /// its chunks are freed, and the volume of the snapshot that it was made of is tended next.
    pub(super) fn tend(&self, volume: u32) {
        let mut next = volume;
        while next != 0 {
            let volume = next;
            let tended = self.tend_one(volume);
            self.shared.note_trouble(volume, tended.as_ref().map(|_| ()));
            next = tended.unwrap_or(0);
        }
    }

    /// Tends one volume. Returns the next one to tend; 0 is none.
    pub(super) fn tend_one(&self, volume: u32) -> Result<u32, StoreError> {
        loop {
            let Some(closed) = Closed::claim(&self.shared, volume) else { return Ok(0) };
            let Some(node) = self.state().all.get(&volume).copied() else { return Ok(0) };
            let is_husk = node.kind == NodeKind::Husk;
            let doing = || format!("clear {}", name_of(&node));
            if is_husk && let Some(next) = self.clear_out(volume).map_err(self.io(doing()))? {
                return Ok(next);
            }
            let mut open = self.open_node(volume, node, closed, None)?;
            open.volume.attend_now();
            let has_failed = open.volume.must_reopen();
            drop(open);
            if has_failed {
                return Err(self.io(format!("tend to {}", name_of(&node)))(self.why_failed()));
            }
            if !is_husk || !self.state().is_unused(volume) {
                return Ok(0);
            }
        }
    }

    /// Returns the likely reason for which an open volume has failed.
    fn why_failed(&self) -> io::Error {
        if self.state().free.is_empty() {
            io::ErrorKind::StorageFull.into()
        } else {
            io::Error::other("a write or a flush failed")
        }
    }
}
