//! The free blocks of a volume's chunks. 64 bytes on the device describe a chunk: 256 bits "in
//! use", 256 bits "frozen". A leaf of this tree describes 63 chunks; it is read when it is needed,
//! and stays in memory.
//!
//! A block is *frozen* if a snapshot uses it: it stays in use when the volume replaces it. Making a
//! snapshot freezes all blocks in use without changing a leaf: each leaf has the number of the last
//! snapshot that its frozen bits include. If that is an older one, all blocks in use count as
//! frozen, and the bits are set when the leaf is first changed.
//!
//! Beside the bits on the device there are *busy* blocks: taken by a write that is not in the map
//! yet, or freed by a change that is not durable yet. They are not given out. After a crash no
//! block is busy, and the bits of the tree count.

use super::bits::{Bits, WORDS, count, find_near, find_run, mask};
use super::tree::{Missing, Page, Tree};
use super::{CHUNK_BLOCKS, Pointer};
use foldhash::fast::FixedState;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// Number of chunks that a leaf describes.
pub const LEAF_CHUNKS: u32 = 63;
/// Words of a leaf before those of its chunks. The first is the number of the checkpoint of the
/// last snapshot that its frozen bits include; the others are zero.
const HEADER_WORDS: usize = 8;
/// Words of a chunk's description: in use, then frozen.
const CHUNK_WORDS: usize = 8;
/// A chunk with fewer free blocks is skipped while others have more, since searching it costs more
/// than it yields.
const WORTH_LOOKING: u32 = CHUNK_BLOCKS / 16;
/// Minimum number of blocks of a write that goes to whole free chunks, if there are any. Smaller
/// ones go near their neighbours.
pub const LARGE: u32 = 16;
/// Maximum distance of a block to the place among its neighbours, in blocks. Farther away it would
/// be no better placed than in another chunk, and would take a place that others are near to.
const REACH: u32 = 64;

/// Blocks of the pool that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// The first.
    pub block: u32,
    /// Number of blocks.
    pub count: u32,
}

impl Run {
    /// Returns its blocks.
    #[must_use]
    pub fn blocks(&self) -> std::ops::Range<u32> {
        self.block..self.block + self.count
    }
}

/// A few runs.
pub type Runs = SmallVec<[Run; 2]>;

/// Parts of a run in one chunk each: the index of the chunk, and the range of blocks in it.
type Parts = SmallVec<[(u32, u32, u32); 2]>;

/// A map by indexes or numbers of chunks, in no order.
#[expect(clippy::disallowed_types, reason = "no order is used, and each run has the same one")]
type ByChunk<T> = std::collections::HashMap<u32, T, FixedState>;

/// Reason for which blocks could not be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacking {
    /// A page of the space tree must be read first.
    Leaf(Missing),
    /// The volume needs another chunk.
    Chunk,
}

/// A change of the bits of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// They are in use.
    Use,
    /// They are neither in use nor frozen.
    Free,
    /// No snapshot uses them any more.
    Thaw,
}

/// Returns the index of the word at which a leaf describes a chunk.
const fn words_of(index: u32) -> usize {
    HEADER_WORDS + (index % LEAF_CHUNKS) as usize * CHUNK_WORDS
}

/// Returns the bits of a leaf for one of its chunks: the blocks in use, and those of them that are
/// frozen.
#[must_use]
pub fn described(page: &Page, index: u32, epoch: u64) -> (Bits, Bits) {
    let start = words_of(index);
    let bits = |start: usize| [page[start], page[start + 1], page[start + 2], page[start + 3]];
    let in_use = bits(start);
    (in_use, if page[0] < epoch { in_use } else { bits(start + WORDS) })
}

/// See the module's text.
#[derive(Debug)]
pub struct Space {
    tree: Tree,
    /// The pool's chunk for each index of the volume; 0 if it has none with that index.
    chunks: Vec<u32>,
    /// The volume's index for chunks of the pool.
    indexes: ByChunk<u32>,
    busy: ByChunk<Bits>,
    /// Free blocks of each chunk; `None` while its leaf is not in memory, and for the chunks that
    /// are being filled.
    free: Vec<Option<u32>>,
    /// Free blocks of all chunks whose leaves are in memory.
    total_free: u64,
    /// Chunks all of whose blocks are free, and other chunks that are worth a search.
    empty: BTreeSet<u32>,
    partial: BTreeSet<u32>,
    /// Chunks that are not, but have free blocks: their number, and the index.
    poor: BTreeSet<(u32, u32)>,
    /// Number of whole free chunks that only the log may take.
    kept_whole: usize,
    /// The chunks that small and large writes are filling.
    current: [Option<u32>; 2],
    /// Leaves that are in memory.
    known: Vec<bool>,
    /// Number of leaves that are not.
    unknown: usize,
    /// The number of the checkpoint of the latest snapshot; 0 before the first.
    epoch: u64,
    /// Chunks that go back to the pool when the present checkpoint is complete.
    aside: Vec<u32>,
    /// Blocks that are not frozen any more, but that no checkpoint has recorded so yet. After a
    /// crash they are frozen again, and the reclaim of the snapshot thaws them again. Until a
    /// checkpoint has recorded them they are not used for other data.
    thawed: ByChunk<Bits>,
    /// Thawed blocks that the volume has replaced.
    late: Vec<Run>,
}

impl Space {
    /// The space of a volume with these chunks, in the order of their indexes (0 where there is
    /// none).
    #[must_use]
    pub fn new(height: u32, root: Pointer, epoch: u64, chunks: Vec<u32>) -> Self {
        let mut space = Self {
            tree: Tree::new(height, root),
            chunks: Vec::new(),
            indexes: ByChunk::default(),
            busy: ByChunk::default(),
            free: Vec::new(),
            total_free: 0,
            empty: BTreeSet::new(),
            partial: BTreeSet::new(),
            poor: BTreeSet::new(),
            kept_whole: 0,
            current: [None; 2],
            known: Vec::new(),
            unknown: 0,
            epoch,
            aside: Vec::new(),
            thawed: ByChunk::default(),
            late: Vec::new(),
        };
        for (index, chunk) in (0..).zip(chunks) {
            if chunk != 0 {
                space.place(index, chunk);
            }
        }
        space
    }

    /// Returns the tree, for a checkpoint.
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Returns the number of leaves of the tree.
    #[must_use]
    pub fn leaves(&self) -> u32 {
        (self.chunks.len() as u32).div_ceil(LEAF_CHUNKS).max(1)
    }

    /// Returns the number of chunks that the volume owns.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.indexes.len()
    }

    fn place(&mut self, index: u32, chunk: u32) {
        let needed = index as usize + 1;
        if self.chunks.len() < needed {
            self.chunks.resize(needed, 0);
            self.free.resize(needed, None);
            let leaves = needed.div_ceil(LEAF_CHUNKS as usize);
            self.unknown += leaves - self.known.len();
            self.known.resize(leaves, false);
        }
        self.chunks[index as usize] = chunk;
        self.indexes.insert(chunk, index);
        let leaf = index / LEAF_CHUNKS;
        if self.known[leaf as usize] {
            self.count_chunk(index);
        }
    }

    /// Makes the tree high enough for the volume's chunks, some of which it may have got since the
    /// last checkpoint.
    ///
    /// # Errors
    /// The page of the tree that must be in memory first.
    pub fn fit(&mut self) -> Result<(), Missing> {
        self.tree.grow((self.chunks.len() as u64).div_ceil(u64::from(LEAF_CHUNKS)).max(1))
    }

    /// Adds a chunk that the pool has durably given to the volume.
    ///
    /// # Errors
    /// The page of the tree that must be in memory first.
    pub fn add_chunk(&mut self, index: u32, chunk: u32) -> Result<(), Missing> {
        self.tree.grow(u64::from(index / LEAF_CHUNKS) + 1)?;
        self.place(index, chunk);
        Ok(())
    }

    /// Returns the number of the checkpoint of the latest snapshot; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Freezes all blocks that are in use: this checkpoint makes a snapshot of them.
    pub fn freeze_all(&mut self, checkpoint: u64) {
        self.epoch = checkpoint;
    }

    /// Returns the blocks of a chunk that are in use, and those of them that are frozen.
    fn at_rest(&mut self, index: u32) -> Result<(Bits, Bits), Missing> {
        let epoch = self.epoch;
        // A leaf that was never written describes free chunks.
        let page = self.tree.leaf(u64::from(index / LEAF_CHUNKS))?;
        Ok(page.map_or_else(Default::default, |page| described(page, index, epoch)))
    }

    /// Returns a leaf to be changed, with frozen bits that include the latest snapshot.
    fn leaf_mut(&mut self, leaf: u32) -> Result<&mut Page, Missing> {
        let epoch = self.epoch;
        let page = self.tree.leaf_mut(u64::from(leaf))?;
        if page[0] < epoch {
            page[0] = epoch;
            for chunk in page[HEADER_WORDS..].chunks_exact_mut(CHUNK_WORDS) {
                chunk.copy_within(..WORDS, WORDS);
            }
        }
        Ok(page)
    }

    fn used(&mut self, index: u32) -> Result<Bits, Missing> {
        let (mut bits, _) = self.at_rest(index)?;
        if let Some(busy) = self.busy.get(&index) {
            bits.iter_mut().zip(busy).for_each(|(word, busy)| *word |= busy);
        }
        Ok(bits)
    }

    /// Counts a chunk's free blocks again, and records whether it is worth a search.
    fn count_chunk(&mut self, index: u32) {
        if self.chunks[index as usize] == 0 {
            return;
        }
        let Ok(used) = self.used(index) else { return };
        let free = CHUNK_BLOCKS - count(&used);
        // Most changes make a busy block one in use, or the reverse.
        if self.free[index as usize] != Some(free) {
            self.list(index, free);
        }
    }

    /// Stops filling a chunk.
    fn leave_current(&mut self, at: usize) {
        let Some(index) = self.current[at].take() else { return };
        if let Ok(used) = self.used(index)
            && self.chunks[index as usize] != 0
        {
            self.list(index, CHUNK_BLOCKS - count(&used));
        }
    }

    /// Puts a chunk with this number of free blocks on the list of its kind.
    fn list(&mut self, index: u32, free: u32) {
        self.unlist(index);
        if self.free[index as usize].replace(free).is_none() {
            self.total_free += u64::from(free);
        }
        if self.current.contains(&Some(index)) {
            return;
        }
        match free {
            0 => {}
            CHUNK_BLOCKS => _ = self.empty.insert(index),
            WORTH_LOOKING.. => _ = self.partial.insert(index),
            _ => _ = self.poor.insert((free, index)),
        }
    }

    /// Removes a chunk from the list that its number of free blocks has put it on.
    fn unlist(&mut self, index: u32) {
        self.empty.remove(&index);
        self.partial.remove(&index);
        if let Some(free) = self.free[index as usize] {
            self.poor.remove(&(free, index));
        }
    }

    /// Requires that a leaf of the tree is in memory, and counts its chunks the first time.
    ///
    /// # Errors
    /// The page that must be read.
    fn know(&mut self, leaf: u32) -> Result<(), Missing> {
        if self.known.get(leaf as usize).copied().unwrap_or(true) {
            return Ok(());
        }
        self.tree.leaf(u64::from(leaf))?;
        self.known[leaf as usize] = true;
        self.unknown -= 1;
        let end = ((leaf + 1) * LEAF_CHUNKS).min(self.chunks.len() as u32);
        (leaf * LEAF_CHUNKS..end).for_each(|index| self.count_chunk(index));
        Ok(())
    }

    /// Takes blocks for data that is to be written: a run of `wanted` if there is one, and a
    /// shorter one otherwise. They are busy after this.
    ///
    /// `floor` blocks stay free. `may_grow` is whether the pool may give another chunk; if so,
    /// chunks with few free blocks are skipped.
    ///
    /// # Errors
    /// The missing page, or that another chunk is needed.
    pub fn take(&mut self, wanted: u32, floor: u64, may_grow: bool) -> Result<Run, Lacking> {
        // No run is longer than a chunk.
        let wanted = wanted.min(CHUNK_BLOCKS);
        let is_large = usize::from(wanted >= LARGE);
        while self.total_free < u64::from(wanted) + floor {
            self.know_more()?;
        }
        loop {
            if let Some(index) = self.current[is_large] {
                let used = self.used(index).map_err(Lacking::Leaf)?;
                match find_run(&used, wanted) {
                    Some((start, length)) if length == wanted || is_large == 0 || !may_grow => {
                        return Ok(self.occupy(index, start, length));
                    }
                    _ => {}
                }
                self.leave_current(is_large);
            }
            let empty = self.whole_chunk();
            let partial = self.partial.first();
            let next = match is_large {
                0 => partial.or(empty),
                _ if may_grow => empty,
                _ => empty.or(partial),
            };
            let next = next.copied();
            if let Some(index) = next {
                self.unlist(index);
                self.current[is_large] = Some(index);
                continue;
            }
            // A leaf that is not counted yet may have room.
            match self.know_more() {
                Ok(()) => {}
                Err(Lacking::Chunk) if !may_grow => {
                    return self
                        .take_anything(wanted)
                        .map_err(Lacking::Leaf)?
                        .ok_or(Lacking::Chunk);
                }
                Err(lacking) => return Err(lacking),
            }
        }
    }

    /// Takes a run of `wanted` blocks for data, near `target`: a block of the pool. They are busy
    /// after this. Returns `None` if there is no such run, if its chunk is whole, not the volume's
    /// or described by a leaf that is not in memory, or if fewer than `floor` blocks would stay
    /// free.
    pub fn take_near(&mut self, target: u32, wanted: u32, floor: u64) -> Option<Run> {
        let index = *self.indexes.get(&(target / CHUNK_BLOCKS))?;
        let is_whole = self.empty.contains(&index);
        if is_whole || self.total_free < u64::from(wanted) + floor || !self.is_counted(index) {
            return None;
        }
        let used = self.used(index).ok()?;
        let start = find_near(&used, wanted, target % CHUNK_BLOCKS, REACH)?;
        Some(self.occupy(index, start, wanted))
    }

    /// Returns whether a chunk's free blocks are counted in [`Self::known_free`].
    fn is_counted(&self, index: u32) -> bool {
        self.free[index as usize].is_some()
    }

    /// Returns whether this block of the pool is in a chunk of the volume.
    #[must_use]
    pub fn has(&self, block: u32) -> bool {
        self.indexes.contains_key(&(block / CHUNK_BLOCKS))
    }

    /// Counts the chunks of one more leaf.
    ///
    /// # Errors
    /// The page that must be read first; that there are no more.
    pub fn know_more(&mut self) -> Result<(), Lacking> {
        let unknown = self.known.iter().position(|known| !known);
        self.know(unknown.ok_or(Lacking::Chunk)? as u32).map_err(Lacking::Leaf)
    }

    /// Takes the best run of a chunk that has free blocks; if all chunks have few, of the one with
    /// the most. Returns `None` if all blocks of all chunks are taken.
    fn take_anything(&mut self, wanted: u32) -> Result<Option<Run>, Missing> {
        // Includes the free blocks of the chunks that are being filled.
        for at in 0..self.current.len() {
            self.leave_current(at);
        }
        let whole = self.whole_chunk().or(self.partial.first()).copied();
        let Some(index) = whole.or(self.poor.last().map(|(_, index)| *index)) else {
            return Ok(None);
        };
        let used = self.used(index)?;
        let found = find_run(&used, wanted);
        Ok(found.map(|(start, length)| self.occupy(index, start, length)))
    }

    fn occupy(&mut self, index: u32, start: u32, length: u32) -> Run {
        let block = self.chunks[index as usize] * CHUNK_BLOCKS + start;
        self.mark_busy(index, start, start + length, true);
        self.recount(index);
        self.total_free -= u64::from(length);
        Run { block, count: length }
    }

    /// Begins or ends the busy state of blocks. The caller counts the chunk again, unless the
    /// blocks are in use.
    fn mark_busy(&mut self, index: u32, from: u32, to: u32, is_busy: bool) {
        let bits = self.busy.entry(index).or_default();
        for (word, bits) in bits.iter_mut().enumerate() {
            if is_busy { *bits |= mask(word, from, to) } else { *bits &= !mask(word, from, to) }
        }
        if *bits == [0; WORDS] {
            self.busy.remove(&index);
        }
    }

    /// Counts a chunk again whose free blocks are counted, unless it is being filled.
    fn recount(&mut self, index: u32) {
        if self.is_counted(index) && !self.current.contains(&Some(index)) {
            self.count_chunk(index);
        }
    }

    /// Sets the number of whole chunks that only the log may take. If free blocks are scattered,
    /// the log depends on the last whole chunks.
    pub fn keep_whole(&mut self, chunks: usize) {
        self.kept_whole = chunks;
    }

    /// Sets that number to 0. Returns whether that makes a chunk available.
    pub fn give_up_whole(&mut self) -> bool {
        std::mem::take(&mut self.kept_whole) > 0 && !self.empty.is_empty()
    }

    /// Returns a chunk of which all blocks are free, unless it is kept for the log.
    fn whole_chunk(&self) -> Option<&u32> {
        if self.empty.len() > self.kept_whole { self.empty.first() } else { None }
    }

    /// Returns the number of free blocks of the chunks that are known, without the whole chunks
    /// that are kept for the log.
    #[must_use]
    pub fn free_beside_kept(&self) -> u64 {
        let kept = self.kept_whole.min(self.empty.len()) as u64 * u64::from(CHUNK_BLOCKS);
        self.total_free - kept
    }

    /// Takes a chunk of which all blocks are free, for the log. All of its blocks are busy then.
    ///
    /// # Errors
    /// The missing page, or that another chunk is needed.
    pub fn take_chunk(&mut self) -> Result<u32, Lacking> {
        loop {
            if let Some(index) = self.empty.first().copied() {
                return Ok(self.occupy(index, 0, CHUNK_BLOCKS).block / CHUNK_BLOCKS);
            }
            self.know_more()?;
        }
    }

    /// Takes this chunk, as [`Self::take_chunk`], if all of its blocks are free. Returns whether
    /// they were.
    ///
    /// # Errors
    /// The page that must be read first.
    pub fn take_chunk_at(&mut self, chunk: u32) -> Result<bool, Missing> {
        let Some(&index) = self.indexes.get(&chunk) else { return Ok(false) };
        self.know(index / LEAF_CHUNKS)?;
        let is_empty = self.empty.contains(&index);
        if is_empty {
            self.occupy(index, 0, CHUNK_BLOCKS);
        }
        Ok(is_empty)
    }

    /// Returns whether the free blocks of all chunks are known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.unknown == 0
    }

    /// Returns the number of free blocks of the chunks that are known.
    #[must_use]
    pub fn known_free(&self) -> u64 {
        self.total_free
    }

    fn change(&mut self, index: u32, from: u32, to: u32, change: Change) -> Result<(), Missing> {
        let words = words_of(index);
        let busy = self.busy.get(&index).copied().unwrap_or_default();
        let page = self.leaf_mut(index / LEAF_CHUNKS)?;
        let mut taken = 0;
        let mut freed = 0;
        for (word, busy) in busy.iter().enumerate() {
            let mask = mask(word, from, to);
            let in_use = words + word;
            let frozen = words + WORDS + word;
            match change {
                Change::Use => {
                    taken += (mask & !busy & !page[in_use]).count_ones();
                    page[in_use] |= mask;
                }
                Change::Free => {
                    freed += (mask & !busy & page[in_use]).count_ones();
                    page[in_use] &= !mask;
                    page[frozen] &= !mask;
                }
                Change::Thaw => page[frozen] &= !mask,
            }
        }
        // Most changes are of busy blocks, and leave the free ones as they are.
        if taken > 0 || freed > 0 {
            if self.is_counted(index) {
                self.total_free = self.total_free + u64::from(freed) - u64::from(taken);
            }
            self.recount(index);
        }
        Ok(())
    }

    /// Splits a run into its parts.
    fn parts(&self, run: Run) -> Parts {
        let end = run.block.saturating_add(run.count);
        let mut parts = Parts::new();
        let mut block = run.block;
        while block < end {
            let until = end.min((block / CHUNK_BLOCKS + 1).saturating_mul(CHUNK_BLOCKS));
            if let Some(&index) = self.indexes.get(&(block / CHUNK_BLOCKS)) {
                let start = block % CHUNK_BLOCKS;
                parts.push((index, start, start + (until - block)));
            }
            block = until;
        }
        parts
    }

    /// Requires that the leaves that describe these blocks are in memory.
    ///
    /// # Errors
    /// The page that must be read first.
    pub fn prepare(&mut self, run: Run) -> Result<(), Missing> {
        self.prepared(run).map(drop)
    }

    /// Requires the same, and returns the parts of the run.
    fn prepared(&mut self, run: Run) -> Result<Parts, Missing> {
        let parts = self.parts(run);
        for (index, ..) in &parts {
            self.know(index / LEAF_CHUNKS)?;
            self.tree.leaf(u64::from(index / LEAF_CHUNKS))?;
        }
        Ok(parts)
    }

    /// Marks busy blocks as in use, also after a crash: the map names them.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn commit(&mut self, run: Run) -> Result<(), Missing> {
        for (index, from, to) in self.prepared(run)? {
            self.change(index, from, to, Change::Use)?;
            self.mark_busy(index, from, to, false);
        }
        Ok(())
    }

    /// Frees blocks that the volume has replaced, except those that are frozen; the freed blocks
    /// stay busy until [`Self::release`]. Returns the freed blocks, without those that
    /// [`Self::take_late`] returns.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn retire(&mut self, run: Run) -> Result<Runs, Missing> {
        let parts = self.prepared(run)?;
        let mut retired = Runs::new();
        for (index, from, to) in parts {
            let (_, frozen) = self.at_rest(index)?;
            let thawed = self.thawed.get(&index).copied().unwrap_or_default();
            let is_in =
                |bits: &Bits, block: u32| bits[block as usize / 64] >> (block % 64) & 1 == 1;
            let state = |block| (is_in(&frozen, block), is_in(&thawed, block));
            let mut start = from;
            while start < to {
                let end = (start..to).find(|&block| state(block) != state(start)).unwrap_or(to);
                let (is_frozen, is_thawed) = state(start);
                if !is_frozen {
                    self.give_back(index, start, end)?;
                    let block = self.chunks[index as usize] * CHUNK_BLOCKS + start;
                    let run = Run { block, count: end - start };
                    if is_thawed {
                        self.late.push(run);
                    } else {
                        retired.push(run);
                    }
                }
                start = end;
            }
        }
        Ok(retired)
    }

    /// Returns whether a block is free when the volume has replaced it: no snapshot uses it.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn gives_back(&mut self, block: u32) -> Result<bool, Missing> {
        let parts = self.prepared(Run { block, count: 1 })?;
        // The blocks of a snapshot that the volume was made of are in chunks of others.
        let Some(&(index, start, _)) = parts.first() else { return Ok(false) };
        let (_, frozen) = self.at_rest(index)?;
        Ok(frozen[start as usize / 64] >> (start % 64) & 1 == 0)
    }

    /// Frees blocks that neither the volume nor a snapshot uses. They stay busy until
    /// [`Self::release`].
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn free(&mut self, run: Run) -> Result<(), Missing> {
        for (index, from, to) in self.prepared(run)? {
            self.give_back(index, from, to)?;
        }
        Ok(())
    }

    /// Unfreezes blocks that no snapshot uses any more, but the volume does.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn thaw(&mut self, run: Run) -> Result<(), Missing> {
        for (index, from, to) in self.prepared(run)? {
            self.change(index, from, to, Change::Thaw)?;
            let bits = self.thawed.entry(index).or_default();
            (0..).zip(bits).for_each(|(word, bits)| *bits |= mask(word, from, to));
        }
        Ok(())
    }

    /// Returns whether the volume has more free chunks than it probably needs soon. `batch` is the
    /// number of chunks that it requests at once.
    #[must_use]
    pub fn has_surplus(&self, batch: usize) -> bool {
        self.empty.len() > batch + self.reserve()
    }

    /// Returns the number of free chunks that the volume keeps.
    fn reserve(&self) -> usize {
        (self.chunks() / 16).clamp(2, 32)
    }

    /// Sets aside the free chunks that are not kept, for the checkpoint that is frozen now. It
    /// records that they are free, and no later record of the log names them.
    pub fn set_aside(&mut self) {
        let kept = self.reserve();
        while self.empty.len() > kept {
            let Some(index) = self.empty.pop_last() else { break };
            debug_assert_eq!(self.free[index as usize], Some(CHUNK_BLOCKS));
            self.free[index as usize] = None;
            self.total_free -= u64::from(CHUNK_BLOCKS);
            self.aside.push(index);
        }
    }

    /// Removes the chunks that were set aside from the volume. Returns them with their indexes.
    pub fn leave(&mut self) -> Vec<(u32, u32)> {
        let leave = |index: u32| {
            let chunk = std::mem::take(&mut self.chunks[index as usize]);
            self.indexes.remove(&chunk);
            (index, chunk)
        };
        std::mem::take(&mut self.aside).into_iter().map(leave).collect()
    }

    /// Handles a checkpoint that has recorded the thawed blocks.
    pub fn thaws_recorded(&mut self) {
        self.thawed.clear();
    }

    /// Takes the blocks that were thawed, and then retired before a checkpoint recorded that. The
    /// checkpoint that is frozen now records both, and releases the blocks when it is complete.
    pub fn take_late(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.late)
    }

    fn give_back(&mut self, index: u32, from: u32, to: u32) -> Result<(), Missing> {
        self.mark_busy(index, from, to, true);
        self.change(index, from, to, Change::Free)
    }

    /// Marks blocks as busy, whatever their other state is.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn hold(&mut self, run: Run) -> Result<(), Missing> {
        for (index, from, to) in self.prepared(run)? {
            let before = count(&self.used(index)?);
            self.mark_busy(index, from, to, true);
            self.recount(index);
            self.total_free -= u64::from(count(&self.used(index)?) - before);
        }
        Ok(())
    }

    /// Ends the busy state of blocks; they are free if they are not in use.
    pub fn release(&mut self, run: Run) {
        for (index, from, to) in self.parts(run) {
            let before = self.used(index).map_or(0, |used| count(&used));
            self.mark_busy(index, from, to, false);
            self.recount(index);
            let after = self.used(index).map_or(0, |used| count(&used));
            if self.free[index as usize].is_some() {
                self.total_free += u64::from(before - after);
            }
        }
    }

    /// Checks the counted free blocks against the bits of the tree.
    ///
    /// # Errors
    /// A description of the violation.
    pub fn invariants(&mut self) -> Result<(), String> {
        let mut total = 0;
        for index in 0..self.chunks.len() as u32 {
            if self.chunks[index as usize] == 0 {
                continue;
            }
            let Some(counted) = self.free[index as usize] else { continue };
            let Ok(used) = self.used(index) else {
                return Err(format!("chunk {index} is counted, and its leaf not in memory"));
            };
            let is_current = self.current.contains(&Some(index));
            let free = CHUNK_BLOCKS - count(&used);
            total += u64::from(free);
            if !is_current && free != counted {
                return Err(format!("chunk {index} has {free} free blocks, {counted} are noted"));
            }
            let is_in = |range: std::ops::Range<u32>| !is_current && range.contains(&free);
            let belongs = [
                is_in(1..WORTH_LOOKING),
                is_in(WORTH_LOOKING..CHUNK_BLOCKS),
                is_in(CHUNK_BLOCKS..CHUNK_BLOCKS + 1),
            ];
            let listed = [
                self.poor.contains(&(counted, index)),
                self.partial.contains(&index),
                self.empty.contains(&index),
            ];
            if listed != belongs {
                return Err(format!("chunk {index} has {free} free blocks; {listed:?} is listed"));
            }
        }
        if total != self.total_free {
            return Err(format!("{total} blocks are free, {} are noted", self.total_free));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::random::Random;

    /// Blocks that were thawed and then replaced are released with the checkpoint that records
    /// both, not with an earlier commit. Blocks that are replaced later are released with their
    /// commit.
    #[test]
    fn thawed_blocks_are_retired_with_the_checkpoint_that_records_it() {
        let mut space = Space::new(0, Pointer::default(), 0, vec![100]);
        let run = space.take(4, 0, false).unwrap();
        space.commit(run).unwrap();
        space.freeze_all(7);
        assert_eq!(space.retire(run), Ok(Runs::new()), "frozen");
        space.thaw(run).unwrap();
        let first = Run { count: 2, ..run };
        let second = Run { block: run.block + 2, count: 2 };
        assert_eq!(space.retire(first), Ok(Runs::new()));
        assert_eq!(space.take_late(), [first]);
        space.thaws_recorded();
        assert_eq!(space.retire(second).unwrap()[..], [second]);
        assert_eq!(space.take_late(), []);
    }

    /// Takes a few blocks near a random place, and checks that they are near.
    fn take_somewhere_near(space: &mut Space, random: &mut Random) -> Option<Run> {
        let target = 100 * CHUNK_BLOCKS + random.below(220 * 256) as u32;
        let wanted = 1 + random.below(4) as u32;
        let floor = random.below(2) * random.below(2_000);
        let free = space.known_free();
        let run = space.take_near(target, wanted, floor)?;
        assert_eq!(run.count, wanted);
        assert!(run.block.abs_diff(target) <= REACH && space.has(run.block));
        assert!(free >= u64::from(wanted) + floor);
        Some(run)
    }

    /// Random takes, commits, retirements and releases beside a set of block numbers: no block is
    /// handed out twice, and none is lost.
    #[test]
    fn blocks_are_handed_out_once_until_they_are_released() {
        for seed in 0..60 {
            let mut random = Random::new(seed, 2);
            let mut space = Space::new(0, Pointer::default(), 0, Vec::new());
            let mut taken = Vec::new();
            let mut used = Vec::new();
            let mut retired = Vec::new();
            let mut owned = BTreeSet::new();
            let mut held: BTreeSet<u32> = BTreeSet::new();
            for _ in 0..3_000 {
                match random.below(7) {
                    6 => {
                        let run = take_somewhere_near(&mut space, &mut random);
                        for block in run.iter().flat_map(Run::blocks) {
                            assert!(held.insert(block), "seed {seed}: {block} twice");
                        }
                        taken.extend(run);
                    }
                    0 | 1 => {
                        let wanted = random.among(&[1, 1, 2, 4, 16, 64, 256]);
                        let may_grow = owned.len() < 70 && random.one_in(2);
                        match space.take(wanted, 0, may_grow) {
                            Ok(run) => {
                                assert!((1..=wanted).contains(&run.count));
                                for block in run.blocks() {
                                    assert!(owned.contains(&(block / CHUNK_BLOCKS)));
                                    assert!(held.insert(block), "seed {seed}: {block} twice");
                                }
                                taken.push(run);
                            }
                            Err(Lacking::Chunk) if owned.len() >= 70 => {}
                            Err(Lacking::Chunk) => {
                                let index = owned.len() as u32;
                                let chunk = 100 + index * 3;
                                space.add_chunk(index, chunk).unwrap();
                                owned.insert(chunk);
                            }
                            Err(Lacking::Leaf(missing)) => panic!("{missing:?}: none was written"),
                        }
                    }
                    2 if !taken.is_empty() => {
                        let run = taken.swap_remove(random.below(taken.len() as u64) as usize);
                        space.commit(run).unwrap();
                        used.push(run);
                    }
                    3 if !taken.is_empty() => {
                        let run = taken.swap_remove(random.below(taken.len() as u64) as usize);
                        space.release(run);
                        run.blocks().for_each(|block| _ = held.remove(&block));
                    }
                    4 if !used.is_empty() => {
                        let run = used.swap_remove(random.below(used.len() as u64) as usize);
                        assert_eq!(space.retire(run).unwrap()[..], [run], "nothing is frozen");
                        retired.push(run);
                    }
                    5 => {
                        for run in retired.drain(..) {
                            space.release(run);
                            run.blocks().for_each(|block| _ = held.remove(&block));
                        }
                    }
                    _ => {}
                }
                assert_eq!(space.invariants(), Ok(()), "seed {seed}");
            }
            let free = owned.len() as u64 * u64::from(CHUNK_BLOCKS) - held.len() as u64;
            assert_eq!(space.known_free(), free, "seed {seed}: blocks were lost");
        }
    }
}
