//! Snapshots of an open volume. A snapshot is the map of a checkpoint that is kept. The last log
//! block before that checkpoint has a record of it. From then on the snapshot exists, even if a
//! crash precedes the end of the checkpoint.

use super::{Note, Noting, Purpose, SnapshotEnd, Volume};
use crate::disk::Disk;
use crate::local::format::{ANCHOR_SNAPSHOTS, Record, SnapshotRoot};
use crate::local::table::SECTOR_BYTES;

/// Maximum number of snapshots that an anchor in one sector names.
const SECTOR_SNAPSHOTS: usize = (SECTOR_BYTES - 104) / 4;

impl Volume {
    /// Begins a snapshot of all changes that are answered by now. Later changes are held until the
    /// state is frozen; the snapshot does not have them.
    pub(super) fn begin_snapshot(&mut self, node: u32, disk: &mut dyn Disk) {
        if self.has_failed {
            return self.tables.snapshot_ended(node, SnapshotEnd::NotBegun);
        }
        self.wanted_snapshots.push(node);
        self.begin_checkpoint(disk);
    }

    /// Freezes the present state for the wanted snapshots: adds their records to the batch, and
    /// freezes all blocks that are in use.
    pub(super) fn freeze_snapshots(&mut self, checkpoint: u64) {
        // A crash must not leave a part of the only copy of an anchor.
        let is_alone = self.checkpoint.only_copy.is_some();
        let most = if is_alone { SECTOR_SNAPSHOTS } else { ANCHOR_SNAPSHOTS };
        let count = self.wanted_snapshots.len().min(most);
        self.checkpoint.snapshots = self.wanted_snapshots.drain(..count).collect();
        self.checkpoint.are_durable = self.checkpoint.snapshots.is_empty();
        if self.checkpoint.snapshots.is_empty() {
            return;
        }
        for &node in &self.checkpoint.snapshots {
            // A snapshot whose record is replayed has that record already.
            if !self.is_replaying {
                self.batch.push(Record::Snapshot { node });
            }
            // An anchor may still have the reclaim position of an earlier node with this number.
            if self.reclaim_at.0 == node {
                self.reclaim_at = (0, 0);
            }
        }
        self.space.freeze_all(checkpoint);
        let root = self.frozen_root(checkpoint);
        self.made_snapshots.push(root);
        if let Some(reclaim) = &mut self.reclaim {
            reclaim.snapshot_taken(root);
        }
    }

    fn frozen_root(&self, checkpoint: u64) -> SnapshotRoot {
        SnapshotRoot {
            map: self.map.root(),
            height: self.map.height(),
            checkpoint,
            data_blocks: self.data_blocks,
        }
    }

    /// Reports snapshots that are durable now that the log is durable up to a new place.
    pub(super) fn snapshots_durable(&mut self) {
        if self.checkpoint.are_durable || self.log.durable < self.checkpoint.sequence() {
            return;
        }
        self.checkpoint.are_durable = true;
        for node in self.checkpoint.snapshots.clone() {
            self.tables.snapshot_ended(node, SnapshotEnd::Made);
        }
    }

    /// Requests that the pool note the snapshots of the present checkpoint. Its anchor is durable
    /// before: otherwise an opening after a crash would make the snapshots of other pages, while
    /// clients may already have those of these pages. Until the pool has noted them, the anchor
    /// names them.
    pub(super) fn name_snapshots(&mut self, disk: &mut dyn Disk) {
        if self.noting != Noting::Nothing {
            return;
        }
        let snapshots = std::mem::take(&mut self.checkpoint.snapshots);
        let Some(anchor) = self.checkpoint.anchor().filter(|_| !snapshots.is_empty()) else {
            return self.snapshots_named(true, disk);
        };
        let root = anchor.root();
        self.note(Noting::Made, Note::Made(snapshots, root), disk);
    }

    /// Requests a change of the pool's tables.
    pub(super) fn note(&mut self, noting: Noting, note: Note, disk: &mut dyn Disk) {
        self.noting = noting;
        match self.tables.note(note) {
            None => self.noted(disk),
            Some(fd) => self.await_tables(Purpose::Noted, fd, disk),
        }
    }

    /// Handles the pool's answer to the change.
    pub(super) fn noted(&mut self, disk: &mut dyn Disk) {
        let is_done = self.tables.noted();
        match std::mem::replace(&mut self.noting, Noting::Nothing) {
            Noting::Made => self.snapshots_named(is_done, disk),
            Noting::Held => self.pool_held(is_done, disk),
            Noting::Reclaimed => self.reclaim_forgotten(is_done, disk),
            // If the change could not be made, the next opening finds the chunks with the volume.
            Noting::Returned | Noting::Nothing => {}
        }
        if self.checkpoint.is_naming() && self.noting == Noting::Nothing {
            self.name_snapshots(disk);
        }
        if self.checkpoint.is_held() && self.noting == Noting::Nothing {
            self.hold_pool(disk);
        }
        self.forget_reclaimed(disk);
        self.return_chunks(disk);
    }

    /// Returns to the pool the chunks that the last complete checkpoint has set aside.
    pub(super) fn return_chunks(&mut self, disk: &mut dyn Disk) {
        if self.noting != Noting::Nothing || self.checkpoint.is_under_way() {
            return;
        }
        let chunks = self.space.leave();
        if !chunks.is_empty() {
            self.note(Noting::Returned, Note::Returned(self.identity.node, chunks), disk);
        }
    }

    /// Continues the requests that were held for a snapshot, unless another one is wanted.
    pub(super) fn go_on_with_held(&mut self, disk: &mut dyn Disk) {
        if self.wanted_snapshots.is_empty() {
            for request in std::mem::take(&mut self.held) {
                self.advance(request, disk);
            }
        }
    }

    /// Gives up the snapshots that are not durable, since nothing becomes durable any more. The log
    /// may have the records of those that are frozen or replayed.
    pub(super) fn give_up_snapshots(&mut self) {
        let wanted = if self.is_replaying { SnapshotEnd::Unknown } else { SnapshotEnd::NotBegun };
        for node in std::mem::take(&mut self.wanted_snapshots) {
            self.tables.snapshot_ended(node, wanted);
        }
        if !self.checkpoint.are_durable {
            for node in std::mem::take(&mut self.checkpoint.snapshots) {
                self.tables.snapshot_ended(node, SnapshotEnd::Unknown);
            }
            self.checkpoint.are_durable = true;
        }
    }
}
