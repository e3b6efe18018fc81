//! What was being done when the pool was left, and what volumes that are not open have left to do.
//!
//! What cannot be done is the trouble of one volume. The pool and all other volumes serve. It is
//! tried again when space comes back, and at the next opening of the pool.

use super::open::Closed;
use super::state::State;
use super::{LocalPool, Shared};
use crate::local::format::{Node, NodeKind};
use crate::{Store, StoreError};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use std::collections::BTreeMap;
use std::io;
use std::sync::{MutexGuard, PoisonError};

/// What cannot be finished of a volume that is not open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// The volume, or what is left of it, for people.
    pub what: String,
    /// Why.
    pub why: String,
    /// Whether it may be done when there is space.
    pub is_no_space: bool,
}

/// A volume, or what is left of one, for people.
fn name_of(node: &Node) -> String {
    match node.kind {
        NodeKind::Husk => format!("what is left of {}", VolumeId::from_bits(node.id)),
        NodeKind::Filling => format!("{}, which is being filled", SnapshotId::from_bits(node.id)),
        _ => VolumeId::from_bits(node.id).to_string(),
    }
}

/// Whether a volume cannot be opened, or not be gone through, because something has rotted.
fn is_rotten(error: &StoreError) -> bool {
    match error {
        StoreError::Rotten { .. } => true,
        StoreError::Io { source, .. } => source.kind() == io::ErrorKind::InvalidData,
        _ => false,
    }
}

impl State {
    /// Whether nobody uses anything of a deleted volume any more: all its snapshots are deleted,
    /// and no volume or reader uses one.
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

    /// Whether a volume has work left that does not wait for a client.
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

    /// Something of a volume that is not open has failed, or has not.
    fn note_trouble(&self, number: u32, done: Result<(), &StoreError>) {
        let Err(error) = done else {
            self.troubles().remove(&number);
            return;
        };
        let Some(node) = self.state().all.get(&number).copied() else { return };
        let (what, why) = (name_of(&node), error.to_string());
        let is_no_space = error.is_no_space();
        let trouble = Trouble { what, why, is_no_space };
        let before = self.troubles().insert(number, trouble.clone());
        // Told once.
        if before.as_ref() != Some(&trouble) {
            let pool = self.device.path().display();
            let Trouble { what, why, .. } = trouble;
            tracing::error!(
                %pool, what, why,
                "what is to be done cannot be finished; it keeps its space, and all others serve"
            );
        }
    }
}

impl LocalPool {
    /// What cannot be finished of volumes that are not open, by their nodes.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        self.shared.troubles().values().cloned().collect()
    }

    /// Finishes what was being done when the pool was left: deletions, and snapshots that may be in
    /// the log of their volumes.
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
                tracing::error!(%error, "what a snapshot was filled in cannot be deleted");
            }
        }
    }

    /// Tries once more what there was no space for.
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

    /// Takes a volume that is being deleted out of all tables, or makes it what its snapshots need.
    pub(super) fn finish_deletion(&self, number: u32, node: Node) -> Result<(), StoreError> {
        let done = self.do_finish_deletion(number, node);
        self.shared.note_trouble(number, done.as_ref().map(|_| ()));
        // What is left to do is no part of the deletion.
        self.tend(done?.unwrap_or(number));
        Ok(())
    }

    /// As [`Self::finish_deletion`], where no caller waits for the result.
    pub(super) fn finish_deletion_or_note(&self, number: u32, node: Node) {
        // A failure is noted.
        let _ = self.finish_deletion(number, node);
    }

    /// The volume that is to be tended next, if none of this one is left.
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

    /// The node of the deleted snapshot that gets all that a deleted volume has.
    fn make_heir(&self, number: u32, node: &Node) -> Result<u32, StoreError> {
        let doing = || format!("finish the deletion of {}", VolumeId::from_bits(node.id));
        let heir = Node::new(NodeKind::SnapshotDeleted, node.id, node.size, number);
        let made = self.state().make_node(heir, &[]).map_err(self.io(doing()))?;
        made.ok_or_else(|| self.io(doing())(self.state().table_is_full()))
    }

    /// Takes a deleted volume out of all tables with its snapshots, if nobody uses anything of it:
    /// none of its blocks needs to be looked at for that. The volume to be tended next (0 is none)
    /// if that was done: of its snapshot this one was made.
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

    /// Does what is left to do for the space of a volume that is not open: snapshots that were
    /// asked for, blocks of deleted snapshots. If nothing is left of a deleted volume, its chunks
    /// are free, and the snapshot that it was made of is looked at likewise.
    pub(super) fn tend(&self, volume: u32) {
        let mut next = volume;
        while next != 0 {
            let volume = next;
            let tended = self.tend_one(volume);
            self.shared.note_trouble(volume, tended.as_ref().map(|_| ()));
            next = tended.unwrap_or(0);
        }
    }

    /// The volume that is to be tended next; 0 is none.
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

    /// Why a volume that was open may have failed.
    fn why_failed(&self) -> io::Error {
        match self.state().free.is_empty() {
            true => io::ErrorKind::StorageFull.into(),
            false => io::Error::other("a write or a flush failed"),
        }
    }
}
