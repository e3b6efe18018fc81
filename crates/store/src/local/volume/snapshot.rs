//! Snapshots of an open volume. A snapshot is the map of a checkpoint that is kept. The log says in
//! its last block before that checkpoint that there is one: from then on it exists, also if the
//! checkpoint is not completed before a crash.

use super::{Note, Noting, Purpose, Volume};
use crate::disk::Disk;
use crate::local::format::{Record, SnapshotRoot};

impl Volume {
    /// Begins a snapshot of everything that was answered by now.
    pub(super) fn begin_snapshot(&mut self, node: u32, disk: &mut dyn Disk) {
        if self.has_failed {
            return self.tables.snapshot_made(node, false);
        }
        self.wanted_snapshots.push(node);
        self.begin_checkpoint(disk);
    }

    /// The state at this moment is that of the snapshots that are wanted: the batch says so, and
    /// all that is in use is theirs from here on.
    pub(super) fn freeze_snapshots(&mut self, checkpoint: u64) {
        self.checkpoint.snapshots = std::mem::take(&mut self.wanted_snapshots);
        self.checkpoint.are_durable = self.checkpoint.snapshots.is_empty();
        if self.checkpoint.snapshots.is_empty() {
            return;
        }
        for &node in &self.checkpoint.snapshots {
            // One that is found in the log when the volume is opened stays where it is there.
            if !self.is_replaying {
                self.batch.push(Record::Snapshot { node });
            }
        }
        self.space.freeze_all(checkpoint);
        let root = self.frozen_root(checkpoint);
        self.latest_snapshot = Some(root);
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

    /// The log is durable up to a new place: perhaps it says now that there are snapshots.
    pub(super) fn snapshots_durable(&mut self) {
        if self.checkpoint.are_durable || self.log.durable < self.checkpoint.sequence() {
            return;
        }
        self.checkpoint.are_durable = true;
        for node in self.checkpoint.snapshots.clone() {
            self.tables.snapshot_made(node, true);
        }
    }

    /// Has the pool note the snapshots of the present checkpoint: their pages are durable, and the
    /// log that says that they exist is not behind the anchor yet.
    pub(super) fn name_snapshots(&mut self, disk: &mut dyn Disk) {
        if self.noting != Noting::Nothing {
            return;
        }
        let snapshots = std::mem::take(&mut self.checkpoint.snapshots);
        let Some(anchor) = self.checkpoint.anchor().filter(|_| !snapshots.is_empty()) else {
            return self.snapshots_named(true, disk);
        };
        let root = SnapshotRoot {
            map: anchor.map.0,
            height: anchor.map.1,
            checkpoint: anchor.checkpoint,
            data_blocks: anchor.data_blocks,
        };
        self.note(Noting::Made, Note::Made(snapshots, root), disk);
    }

    /// Has the pool note something.
    pub(super) fn note(&mut self, noting: Noting, note: Note, disk: &mut dyn Disk) {
        self.noting = noting;
        match self.tables.note(note) {
            None => self.noted(disk),
            Some(fd) => self.await_tables(Purpose::Noted, fd, disk),
        }
    }

    /// The pool has noted something, or could not.
    pub(super) fn noted(&mut self, disk: &mut dyn Disk) {
        let is_done = self.tables.noted();
        match std::mem::replace(&mut self.noting, Noting::Nothing) {
            Noting::Made => self.snapshots_named(is_done, disk),
            Noting::Reclaimed => self.reclaim_forgotten(disk),
            Noting::Nothing => {}
        }
        if self.checkpoint.is_naming() && self.noting == Noting::Nothing {
            self.name_snapshots(disk);
        }
    }

    /// Nothing becomes durable any more: snapshots that are not will not be.
    pub(super) fn give_up_snapshots(&mut self) {
        let mut given_up = std::mem::take(&mut self.wanted_snapshots);
        if !self.checkpoint.are_durable {
            given_up.append(&mut self.checkpoint.snapshots);
            self.checkpoint.are_durable = true;
        }
        for node in given_up {
            self.tables.snapshot_made(node, false);
        }
    }
}
