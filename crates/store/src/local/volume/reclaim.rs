//! Reclaim of a deleted snapshot's blocks. A block is freed if neither the snapshot before nor the
//! next one, or the volume, uses it. A block that only the volume uses beside it is no longer
//! frozen. A subtree that a neighbour shares is skipped as a whole.
//!
//! The reclaim goes from the first leaf to the last, and frees the pages above a leaf with the last
//! leaf below them. A checkpoint records the position together with the free blocks. After a crash
//! the reclaim continues there, and the pages that it needs are still in place.

use super::{Closing, Doomed, Note, Noting, Volume, Waiter, Wanted, Which};
use crate::disk::Disk;
use crate::local::Pointer;
use crate::local::format::SnapshotRoot;
use crate::local::space::Run;
use crate::local::tree::{FANOUT, Missing, Tree};

/// Bits of a leaf's number that one level takes.
const BITS: u32 = FANOUT.trailing_zeros();
/// Maximum number of pages of each tree in memory.
const PAGES_MAX: usize = 4;
/// Freed blocks at which a checkpoint is begun.
const FREED_MAX: usize = 4_096;
/// Position of a reclaim that is done, but whose node is still in the table.
pub(in crate::local) const DONE: u64 = u64::MAX;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Reclaim {
    node: u32,
    checkpoint: u64,
    tree: Tree,
    older: Tree,
    /// `None` if the volume itself comes next.
    newer: Option<Tree>,
    /// The next leaf; [`DONE`] at the end.
    leaf: u64,
    /// Blocks that were freed since the last checkpoint was frozen.
    pub freed: Vec<Run>,
    is_waiting: bool,
    /// A checkpoint has recorded that it is done.
    is_recorded: bool,
    /// The pool could not clear the node. It is asked again after the next checkpoint, or when the
    /// volume is reopened.
    is_refused: bool,
    /// A page that it needs cannot be read. Its blocks stay in use until a check of the pool finds
    /// them.
    pub is_broken: bool,
}

/// Change of blocks that only the deleted snapshot, and perhaps the volume, use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Free,
    Thaw,
}

fn tree_of(root: Option<SnapshotRoot>) -> Tree {
    root.map_or(Tree::new(0, Pointer::default()), |root| Tree::new(root.height, root.map))
}

impl Reclaim {
    fn new(doomed: &Doomed, leaf: u64) -> Self {
        Self {
            node: doomed.node,
            checkpoint: doomed.root.checkpoint,
            tree: tree_of(Some(doomed.root)),
            older: tree_of(doomed.older),
            newer: doomed.newer.map(|root| tree_of(Some(root))),
            leaf,
            freed: Vec::new(),
            is_waiting: false,
            is_recorded: false,
            is_refused: false,
            is_broken: false,
        }
    }

    /// Returns the position that the anchor records: the node, and the next leaf.
    pub fn position(&self) -> (u32, u64) {
        (self.node, self.leaf)
    }

    /// Returns whether its progress should be recorded by a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        self.freed.len() >= FREED_MAX || self.leaf == DONE && !self.is_recorded
    }

    /// Records that a snapshot was made of the volume: it is the next one after the deleted
    /// snapshot.
    pub fn snapshot_taken(&mut self, root: SnapshotRoot) {
        if self.newer.is_none() {
            self.newer = Some(tree_of(Some(root)));
        }
    }

    /// One of its trees.
    pub fn tree(&mut self, which: Which) -> Option<&mut Tree> {
        match which {
            Which::Doomed => Some(&mut self.tree),
            Which::Older => Some(&mut self.older),
            Which::Newer => self.newer.as_mut(),
            Which::Map | Which::Space => None,
        }
    }

    /// Returns the number of leaves from the present one on that a neighbouring snapshot shares, or
    /// that are holes.
    fn shared(&mut self) -> Result<u64, Wanted> {
        let side = |which| {
            move |(page, is_other): (Missing, bool)| Wanted {
                which: if is_other { which } else { Which::Doomed },
                page,
            }
        };
        let of_older = self.tree.same_leaves(&mut self.older, self.leaf);
        let count = of_older.map_err(side(Which::Older))?;
        let Some(newer) = &mut self.newer else { return Ok(count) };
        let of_newer = self.tree.same_leaves(newer, self.leaf).map_err(side(Which::Newer))?;
        Ok(count.max(of_newer))
    }
}

/// Returns a function that names the missing page of one of the trees.
fn of(which: Which) -> impl Fn(Missing) -> Wanted {
    move |page| Wanted { which, page }
}

impl Volume {
    /// Begins the reclaim of a deleted snapshot's blocks, or continues it.
    pub(super) fn begin_reclaim(&mut self, mut doomed: Doomed, disk: &mut dyn Disk) {
        if self.reclaim.is_some() {
            // It is the next one: the pool knows already that this one is done.
            self.next_doomed = Some(doomed);
            return;
        }
        // The pool may not have known yet of a snapshot that was made meanwhile.
        let is_later = |made: &&SnapshotRoot| made.checkpoint > doomed.root.checkpoint;
        let made = self.made_snapshots.iter().find(is_later).copied();
        doomed.newer = doomed.newer.or(made);
        let (node, leaf) = self.reclaim_at;
        let leaf = if node == doomed.node { leaf } else { 0 };
        let is_recorded = leaf == DONE;
        self.reclaim = Some(Reclaim { is_recorded, ..Reclaim::new(&doomed, leaf) });
        self.forget_reclaimed(disk);
        self.advance_reclaim(disk);
    }

    /// Continues the reclaim as far as the pages in memory allow. Does nothing while a checkpoint
    /// is under way, since its pages may not be yet where the trees name them.
    pub(super) fn advance_reclaim(&mut self, disk: &mut dyn Disk) {
        while !self.checkpoint.is_under_way() && !self.has_failed && self.closing == Closing::Open {
            let Some(mut reclaim) = self.reclaim.take() else { return };
            if reclaim.leaf == DONE
                || reclaim.is_broken
                || reclaim.is_waiting && self.waits_for_reclaim()
            {
                self.reclaim = Some(reclaim);
                break;
            }
            reclaim.is_waiting = false;
            let step = self.reclaim_step(&mut reclaim);
            reclaim.is_waiting = step.is_err();
            self.reclaim = Some(reclaim);
            match step {
                Ok(true) => self.advance_commit(disk),
                Ok(false) => return self.begin_checkpoint(disk),
                Err(wanted) => return self.wait_for(wanted, Waiter::Reclaim, disk),
            }
        }
        if self.reclaim.as_ref().is_some_and(Reclaim::wants_checkpoint) {
            self.begin_checkpoint(disk);
        }
    }

    /// Reclaims one leaf. Returns false if a checkpoint comes first: it needs blocks for the
    /// changed pages, and frees the blocks that were reclaimed since the last one.
    fn reclaim_step(&mut self, reclaim: &mut Reclaim) -> Result<bool, Wanted> {
        let has_floor = self.has_floor().map_err(of(Which::Space))?;
        if !has_floor && self.space.tree().dirty_leaves() > 0 {
            return Ok(false);
        }
        self.reclaim_leaf(reclaim)?;
        Ok(true)
    }

    pub(super) fn waits_for_reclaim(&self) -> bool {
        self.waiting.values().flatten().any(|waiter| *waiter == Waiter::Reclaim)
    }

    /// Reclaims one leaf, or skips shared leaves: completely, or not at all if a page is missing.
    fn reclaim_leaf(&mut self, reclaim: &mut Reclaim) -> Result<(), Wanted> {
        let leaf = reclaim.leaf;
        let shared = reclaim.shared()?;
        let next = leaf + shared.max(1);
        let mut fates = Vec::new();
        if shared == 0 {
            self.fates_of_data(reclaim, &mut fates)?;
        }
        // The pages of which this is the last leaf.
        let first = if shared == 0 { 0 } else { shared.trailing_zeros() / BITS + 1 };
        let height = reclaim.tree.height();
        for level in first..=height {
            if !next.is_multiple_of(1 << (BITS * level)) {
                break;
            }
            let index = (next - 1) >> (BITS * level);
            let page = reclaim.tree.pointer_at(level, index).map_err(of(Which::Doomed))?;
            let older = reclaim.older.pointer_at(level, index).map_err(of(Which::Older))?;
            let newer = reclaim.newer.as_mut().map(|tree| tree.pointer_at(level, index));
            let newer = newer.transpose().map_err(of(Which::Newer))?;
            if page.block == 0 || page == older || newer == Some(page) {
                continue;
            }
            let is_ours = newer.is_none() && {
                let live = self.map.pointer_at(level, index).map_err(of(Which::Map))?;
                live.block == page.block
            };
            fates.push((page.block, if is_ours { Fate::Thaw } else { Fate::Free }));
        }
        self.carry_out(reclaim, &fates)?;
        let end = 1 << (BITS * height);
        reclaim.leaf = if next >= end { DONE } else { next };
        for tree in [Some(&mut reclaim.tree), Some(&mut reclaim.older), reclaim.newer.as_mut()] {
            tree.into_iter().for_each(|tree| tree.shrink(PAGES_MAX, u64::MAX));
        }
        Ok(())
    }

    /// Adds the changes of one leaf's data blocks to `fates`.
    fn fates_of_data(
        &mut self,
        reclaim: &mut Reclaim,
        fates: &mut Vec<(u32, Fate)>,
    ) -> Result<(), Wanted> {
        let leaf = reclaim.leaf;
        let block = |bits: u64| Pointer::from_bits(bits).block;
        let page = reclaim.tree.leaf(leaf).map_err(of(Which::Doomed))?.cloned();
        let older = reclaim.older.leaf(leaf).map_err(of(Which::Older))?.cloned();
        let newer = match &mut reclaim.newer {
            Some(newer) => Some(newer.leaf(leaf).map_err(of(Which::Newer))?.cloned()),
            None => None,
        };
        let Some(page) = page else { return Ok(()) };
        for (slot, &entry) in page.iter().enumerate() {
            let is_in = |other: &Option<_>| {
                let other: &Option<std::sync::Arc<crate::local::tree::Page>> = other;
                other.as_ref().is_some_and(|other| block(other[slot]) == block(entry))
            };
            if block(entry) == 0 || is_in(&older) || newer.as_ref().is_some_and(is_in) {
                continue;
            }
            let is_ours = newer.is_none() && {
                let live = self.pointer(leaf * FANOUT + slot as u64).map_err(of(Which::Map))?;
                live.block == block(entry)
            };
            fates.push((block(entry), if is_ours { Fate::Thaw } else { Fate::Free }));
        }
        Ok(())
    }

    /// Applies the changes to the space tree: all of them, or none if a page is missing.
    fn carry_out(&mut self, reclaim: &mut Reclaim, fates: &[(u32, Fate)]) -> Result<(), Wanted> {
        let runs = || {
            fates
                .chunk_by(|a, b| a.0 + 1 == b.0 && a.1 == b.1)
                .map(|run| (Run { block: run[0].0, count: run.len() as u32 }, run[0].1))
        };
        for (run, _) in runs() {
            self.space.prepare(run).map_err(of(Which::Space))?;
        }
        for (run, fate) in runs() {
            match fate {
                Fate::Free => {
                    self.space.free(run).map_err(of(Which::Space))?;
                    reclaim.freed.push(run);
                }
                Fate::Thaw => self.space.thaw(run).map_err(of(Which::Space))?,
            }
        }
        Ok(())
    }

    /// Handles a complete checkpoint. If it has recorded that the reclaim is done, the pool clears
    /// the node.
    pub(super) fn reclaim_recorded(&mut self, disk: &mut dyn Disk) {
        let Some(anchor) = self.checkpoint.anchor() else { return };
        self.reclaim_at = anchor.reclaim;
        let is_done = |reclaim: &&mut Reclaim| anchor.reclaim == (reclaim.node, DONE);
        if let Some(reclaim) = self.reclaim.as_mut().filter(is_done) {
            (reclaim.is_recorded, reclaim.is_refused) = (true, false);
            self.forget_reclaimed(disk);
        }
    }

    /// Requests that the pool clear the node, if a checkpoint has recorded that the reclaim is
    /// done. If the pool is making another change, the request is repeated after it.
    pub(super) fn forget_reclaimed(&mut self, disk: &mut dyn Disk) {
        if let Some(reclaim) = &self.reclaim
            && reclaim.is_recorded
            && !reclaim.is_refused
            && self.noting == Noting::Nothing
        {
            let note = Note::Reclaimed(reclaim.node);
            self.note(Noting::Reclaimed, note, disk);
        }
    }

    /// Handles the pool's answer to that. If the node could not be cleared, later anchors still
    /// record that the reclaim is done, since the snapshot's blocks may hold other data by now.
    pub(super) fn reclaim_forgotten(&mut self, is_done: bool, disk: &mut dyn Disk) {
        if !is_done {
            self.reclaim.iter_mut().for_each(|reclaim| reclaim.is_refused = true);
            return;
        }
        let ended = self.reclaim.take().map(|reclaim| reclaim.checkpoint);
        self.made_snapshots.retain(|made| Some(made.checkpoint) != ended);
        self.reclaim_at = (0, 0);
        if let Some(doomed) = self.next_doomed.take() {
            self.begin_reclaim(doomed, disk);
        }
        crate::Store::attend(self, disk);
    }
}
