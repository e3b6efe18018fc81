//! Writing of the trees: their changed pages go to free blocks, and an anchor names the new roots.
//! The log before it is free then.
//!
//! ```text
//!   Idle -> Preparing (takes blocks) -> Writing (pages) -> Logged (waits for the log)
//!        -> Synced -> Held (is the pool still ours?) -> First (anchor, copy 1)
//!        -> Anchored (flush) -> Second (copy 2)
//!        -> Named (snapshots are noted) -> Idle
//! ```
//!
//! If one copy of the anchor cannot be written, only the other one is, as the first.

use super::reclaim::Reclaim;
use super::{Note, Noting, Purpose, Volume, Waiter, Wanted, Which};
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::local::format::Anchor;
use crate::local::space::{Lacking, Run};
use crate::local::tree::{Frozen, Missing, page_bytes};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS};
use evenkeel_core::request::Failure;
use std::collections::BTreeSet;

/// Pages that are written with one operation, and operations at a time.
const WRITE_PAGES: usize = 64;
const WRITES_MAX: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Idle,
    Preparing,
    Writing,
    Logged,
    Synced,
    Held,
    First,
    Anchored,
    Second,
    Named,
}

/// See the module's text.
#[derive(Debug)]
pub(in crate::local) struct Checkpoint {
    stage: Stage,
    /// The number of the last complete checkpoint.
    completed: u64,
    /// Blocks taken for pages, in the order in which they are used.
    taken: Vec<Run>,
    /// Blocks that are free when it is complete: replaced pages, and log.
    retired: BTreeSet<u32>,
    released: Vec<Run>,
    pages: Vec<Frozen>,
    under_way: usize,
    anchor: Option<Anchor>,
    /// Sequence number up to which the log must be durable before the anchor is written.
    sequence: u64,
    /// Snapshots of the frozen state, and whether they are durable.
    pub snapshots: Vec<u32>,
    pub are_durable: bool,
    has_failed: bool,
    /// Free blocks when it was last put off; `None` if it was not.
    pub lacked_with: Option<u64>,
    /// Chunks that wait for a page of the space tree.
    pub late_chunks: Vec<(u32, u32)>,
    /// Copies of the anchor that a scrub found damaged, and that no checkpoint has replaced yet.
    damaged_anchors: u64,
    /// The only copy of the anchor that is written: 0 or 1; the other one cannot be. `None` is
    /// both.
    pub only_copy: Option<u32>,
}

impl Checkpoint {
    pub fn new(completed: u64) -> Self {
        Self {
            stage: Stage::Idle,
            completed,
            taken: Vec::new(),
            retired: BTreeSet::new(),
            released: Vec::new(),
            pages: Vec::new(),
            under_way: 0,
            anchor: None,
            sequence: 0,
            snapshots: Vec::new(),
            are_durable: false,
            has_failed: false,
            lacked_with: None,
            late_chunks: Vec::new(),
            damaged_anchors: 0,
            only_copy: None,
        }
    }

    pub fn is_under_way(&self) -> bool {
        self.stage != Stage::Idle
    }

    /// Returns whether it waits for the moment at which the state is frozen.
    pub fn is_preparing(&self) -> bool {
        self.stage == Stage::Preparing
    }

    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns whether it waits until the pool can be asked whether it is still this server's.
    pub fn is_held(&self) -> bool {
        self.stage == Stage::Held
    }

    /// Returns whether the pool has to note its snapshots before it is complete.
    pub fn is_naming(&self) -> bool {
        self.stage == Stage::Named
    }

    /// Records how many copies of the anchor are damaged, until the next checkpoint writes both.
    pub fn note_damaged_anchors(&mut self, copies: u64) {
        // A copy that cannot be written was counted by the opening.
        if self.only_copy.is_some() {
            return;
        }
        // Another scrub finds the same copies.
        self.damaged_anchors = self.damaged_anchors.max(copies);
    }

    /// Returns the sequence number up to which the log must be durable before its anchor is
    /// written.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the anchor that it writes.
    pub fn anchor(&self) -> Option<&Anchor> {
        self.anchor.as_ref()
    }
}

/// Reason for which a checkpoint cannot be frozen yet.
enum Unready {
    Page(Missing),
    Chunk,
}

impl Volume {
    /// Begins a checkpoint, unless one is under way.
    pub(in crate::local) fn begin_checkpoint(&mut self, disk: &mut dyn Disk) {
        if self.checkpoint.is_under_way() || self.has_failed {
            return;
        }
        if self.is_without_room() {
            self.give_up_snapshots();
            return self.go_on_with_held(disk);
        }
        self.checkpoint.lacked_with = None;
        self.checkpoint.stage = Stage::Preparing;
        self.advance_checkpoint(disk);
    }

    /// Returns whether the last checkpoint was put off, and there is no more room than then.
    pub(super) fn is_without_room(&self) -> bool {
        let lacked_with = self.checkpoint.lacked_with;
        lacked_with.is_some_and(|free| self.is_full && self.space.known_free() <= free)
    }

    /// Does the next steps of the present checkpoint, as far as possible.
    pub(super) fn advance_checkpoint(&mut self, disk: &mut dyn Disk) {
        self.add_late_chunks(disk);
        match self.checkpoint.stage {
            Stage::Preparing => self.prepare_checkpoint(disk),
            Stage::Writing => self.write_pages(disk),
            Stage::Logged => self.sync_checkpoint(disk),
            _ => {}
        }
    }

    /// Waits for a page of the space tree, for the checkpoint, the log, or a chunk of an answer.
    pub(super) fn wait_for_space(&mut self, page: Missing, disk: &mut dyn Disk) {
        self.wait_for(Wanted { which: Which::Space, page }, Waiter::Volume, disk);
    }

    /// Returns whether a checkpoint would free anything.
    pub(super) fn has_something_to_checkpoint(&mut self) -> bool {
        self.log.chunks.len() > 1
            || self.map.dirty_leaves() > 0
            || self.space.tree().dirty_leaves() > 0
    }

    fn prepare_checkpoint(&mut self, disk: &mut dyn Disk) {
        // The batch is sealed in the same moment.
        if self.commit.is_under_way() || self.has_failed {
            return;
        }
        // The log continues in the same chunk after the checkpoint, which frees the chunks before
        // it.
        if !self.fits_checkpoint() {
            return self.begin_commit(disk);
        }
        // The log needs whole chunks, and pages would take blocks of the last ones.
        if !self.is_replaying
            && let Err(Lacking::Leaf(page)) = self.keep_spares()
        {
            return self.wait_for_space(page, disk);
        }
        self.take_blocks_and_freeze(disk);
    }

    fn take_blocks_and_freeze(&mut self, disk: &mut dyn Disk) {
        match self.take_blocks() {
            Ok(()) => {
                self.freeze(disk);
                self.go_on_with_held(disk);
            }
            Err(Unready::Page(page)) => self.wait_for_space(page, disk),
            Err(Unready::Chunk) if self.is_full && self.lend_spare() => {
                self.take_blocks_and_freeze(disk);
            }
            Err(Unready::Chunk) if self.is_full => self.put_off_checkpoint(disk),
            Err(Unready::Chunk) => self.ask_for_chunks(disk),
        }
    }

    /// Puts off a checkpoint for which no block is free. None of its pages is written; the blocks
    /// that it has taken and retired stay so for the next one.
    pub(super) fn put_off_checkpoint(&mut self, disk: &mut dyn Disk) {
        self.checkpoint.stage = Stage::Idle;
        self.checkpoint.lacked_with = Some(self.space.known_free());
        self.give_up_snapshots();
        self.go_on_with_held(disk);
    }

    /// Takes a block for each page that will be written, and retires those that the pages replace.
    /// Either changes the space tree, so it is repeated until no page is added.
    fn take_blocks(&mut self) -> Result<(), Unready> {
        self.release_log().map_err(Unready::Page)?;
        loop {
            let (map, replaced) = self.map.pending();
            let (space, of_space) = self.space.tree().pending();
            let mut is_settled = true;
            // A snapshot may use pages of the map; those of the space tree are the volume's own.
            let of_map = replaced.into_iter().map(|block| (block, true));
            for (block, is_map) in of_map.chain(of_space.into_iter().map(|block| (block, false))) {
                if self.checkpoint.retired.contains(&block) {
                    continue;
                }
                let run = Run { block, count: 1 };
                if is_map {
                    let retired = self.space.retire(run).map_err(Unready::Page)?;
                    self.checkpoint.released.extend(retired);
                } else {
                    self.space.free(run).map_err(Unready::Page)?;
                    self.checkpoint.released.push(run);
                }
                self.checkpoint.retired.insert(block);
                is_settled = false;
            }
            let has: u32 = self.checkpoint.taken.iter().map(|run| run.count).sum();
            let needs = (map + space) as u32;
            if has < needs {
                let run = match self.space.take((needs - has).min(64), 0, self.may_grow()) {
                    Ok(run) => run,
                    Err(Lacking::Leaf(page)) => return Err(Unready::Page(page)),
                    Err(Lacking::Chunk) => return Err(Unready::Chunk),
                };
                self.checkpoint.taken.push(run);
                self.space.commit(run).map_err(Unready::Page)?;
                is_settled = false;
            }
            if is_settled {
                return Ok(());
            }
        }
    }

    /// Retires the chunks that the log has left. They are free when the checkpoint is complete.
    fn release_log(&mut self) -> Result<(), Missing> {
        while self.log.chunks.len() > 1 {
            let Some(&chunk) = self.log.chunks.front() else { break };
            // The anchors stay.
            let kept = if chunk == self.home { 2 } else { 0 };
            let run = Run { block: chunk * CHUNK_BLOCKS + kept, count: CHUNK_BLOCKS - kept };
            self.space.free(run)?;
            self.checkpoint.released.push(run);
            self.log.chunks.pop_front();
        }
        Ok(())
    }

    /// Freezes the state, and begins to write it.
    fn freeze(&mut self, disk: &mut dyn Disk) {
        let number = self.checkpoint.completed + 1;
        let taken = std::mem::take(&mut self.checkpoint.taken);
        let mut blocks = taken.iter().flat_map(|run| run.block..run.block + run.count);
        let mut pages = self.map.freeze(&mut blocks, number);
        pages.extend(self.space.tree().freeze(&mut blocks, number));
        debug_assert_eq!(blocks.next(), None, "blocks were taken for no page");
        pages.sort_unstable_by_key(|page| std::cmp::Reverse(page.block));
        if let Some(reclaim) = &mut self.reclaim {
            self.checkpoint.released.append(&mut reclaim.freed);
        }
        self.checkpoint.released.append(&mut self.space.take_late());
        self.space.set_aside();
        self.freeze_snapshots(number);
        self.seal(disk);
        debug_assert!(self.batch.is_empty(), "a batch is sealed whole");
        self.checkpoint.pages = pages;
        self.checkpoint.sequence = self.log.sequence - 1;
        let height = self.space.tree().height();
        self.checkpoint.anchor = Some(Anchor {
            identity: self.identity,
            checkpoint: number,
            map: (self.map.root(), self.map.height()),
            space: (self.space.tree().root(), height),
            log: self.log.next,
            sequence: self.log.sequence,
            data_blocks: self.data_blocks,
            epoch: self.space.epoch(),
            // A reclaim that an earlier opening has begun, and that the pool has not requested yet,
            // keeps its position.
            reclaim: self.reclaim.as_ref().map_or(self.reclaim_at, Reclaim::position),
            session: self.session,
            snapshots: self.checkpoint.snapshots.clone(),
        });
        self.log.blocks = 0;
        self.checkpoint.stage = Stage::Writing;
        self.write_pages(disk);
    }

    fn write_pages(&mut self, disk: &mut dyn Disk) {
        self.checkpoint.has_failed |= self.has_failed;
        while self.checkpoint.under_way < WRITES_MAX && !self.checkpoint.has_failed {
            let Some(first) = self.checkpoint.pages.pop() else { break };
            let mut group = vec![first];
            while group.len() < WRITE_PAGES
                && let Some(next) = self.checkpoint.pages.last()
                && next.block == group[0].block + group.len() as u32
            {
                group.extend(self.checkpoint.pages.pop());
            }
            let mut buffer = Buffer::new(group.len() * BLOCK_BYTES);
            for (place, page) in buffer.bytes_mut().chunks_mut(BLOCK_BYTES).zip(&group) {
                place.copy_from_slice(page_bytes(&page.page));
            }
            let run = Run { block: group[0].block, count: group.len() as u32 };
            self.checkpoint.under_way += 1;
            self.write_op(Purpose::Checkpoint, run, buffer, disk);
        }
        if self.checkpoint.under_way == 0 {
            self.checkpoint.stage = Stage::Logged;
            self.sync_checkpoint(disk);
        }
    }

    /// When pages and log are written, flushes them.
    fn sync_checkpoint(&mut self, disk: &mut dyn Disk) {
        if self.checkpoint.has_failed || self.has_failed {
            return self.fail_checkpoint();
        }
        if self.durable() >= self.checkpoint.sequence {
            self.checkpoint.stage = Stage::Synced;
            self.sync_op(Purpose::Checkpoint, disk);
        }
    }

    pub(super) fn checkpoint_op_done(&mut self, result: Result<(), Failure>, disk: &mut dyn Disk) {
        self.checkpoint.has_failed |= result.is_err();
        match self.checkpoint.stage {
            Stage::Writing => {
                self.checkpoint.under_way -= 1;
                self.write_pages(disk);
            }
            _ if result.is_err() || self.has_failed => self.fail_checkpoint(),
            Stage::Synced => self.hold_pool(disk),
            Stage::First => {
                self.checkpoint.stage = Stage::Anchored;
                self.sync_op(Purpose::Checkpoint, disk);
            }
            Stage::Anchored if self.checkpoint.only_copy.is_none() => {
                self.write_anchor(1, Stage::Second, disk)
            }
            Stage::Anchored | Stage::Second => {
                self.checkpoint.stage = Stage::Named;
                self.name_snapshots(disk);
            }
            Stage::Idle | Stage::Preparing | Stage::Logged | Stage::Held | Stage::Named => {}
        }
    }

    /// Handles the pool's answer to the request to note the snapshots of this checkpoint.
    pub(super) fn snapshots_named(&mut self, is_done: bool, disk: &mut dyn Disk) {
        if is_done && !self.has_failed {
            self.complete_checkpoint(disk)
        } else {
            self.fail_checkpoint()
        }
    }

    /// Asks whether the pool is still this server's, before an anchor is written.
    pub(super) fn hold_pool(&mut self, disk: &mut dyn Disk) {
        self.checkpoint.stage = Stage::Held;
        if self.noting == Noting::Nothing {
            self.note(Noting::Held, Note::Held, disk);
        }
    }

    /// Handles the answer to that.
    pub(super) fn pool_held(&mut self, is_held: bool, disk: &mut dyn Disk) {
        if is_held && !self.has_failed {
            self.write_anchor(self.checkpoint.only_copy.unwrap_or(0), Stage::First, disk)
        } else {
            self.fail_checkpoint()
        }
    }

    fn write_anchor(&mut self, copy: u32, stage: Stage, disk: &mut dyn Disk) {
        let Some(anchor) = &self.checkpoint.anchor else { return };
        let mut buffer = Buffer::new(BLOCK_BYTES);
        buffer.bytes_mut()[..BLOCK_BYTES].copy_from_slice(&anchor.encode());
        self.checkpoint.stage = stage;
        let run = Run { block: self.home * CHUNK_BLOCKS + copy, count: 1 };
        self.write_op(Purpose::Checkpoint, run, buffer, disk);
    }

    fn complete_checkpoint(&mut self, disk: &mut dyn Disk) {
        self.checkpoint.stage = Stage::Idle;
        self.checkpoint.completed += 1;
        self.checkpoint.retired.clear();
        let mended = std::mem::take(&mut self.checkpoint.damaged_anchors);
        self.tables.mended(mended);
        self.space.thaws_recorded();
        // The anchor confirms as much of an empty log.
        self.log.is_confirmed |= self.log.blocks == 0;
        for run in std::mem::take(&mut self.checkpoint.released) {
            self.space.release(run);
        }
        self.reclaim_recorded(disk);
        self.return_chunks(disk);
        // Reserved before data takes the chunks that the log has left.
        let _ = self.keep_spares();
        self.retry_stalled(disk);
        self.advance_commit(disk);
    }

    fn fail_checkpoint(&mut self) {
        // The trees in memory name pages that may not be there, so nothing may become durable after
        // this.
        self.checkpoint.stage = Stage::Idle;
        self.fail();
    }
}
