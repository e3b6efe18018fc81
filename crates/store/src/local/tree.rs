//! A tree of pages, for a volume's map and for its space. A page has 512 entries; an entry of an
//! inner page has the place and the checksum of a page. Pages are in memory as far as they are
//! used. A call that needs a missing page returns its place, so that the caller reads it and
//! repeats the call.
//!
//! A checkpoint writes a changed page to another block than its old one. It shares the pages that
//! it writes with the tree; a page that is changed meanwhile is copied.

use super::{Pointer, checksum};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Entries of a page.
pub const FANOUT: u64 = 512;
/// Bits of an index that one level takes.
const FANOUT_BITS: u32 = 9;

/// The contents of a page: 512 entries, or 64 leaves of space.
pub type Page = [u64; FANOUT as usize];

/// A page that is not in memory, and its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Missing {
    /// Levels above the leaves; 0 is a leaf.
    pub level: u32,
    /// Its number among the pages of its level.
    pub index: u64,
    /// Its place, and its checksum.
    pub pointer: Pointer,
}

/// A page as a checkpoint writes it.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// The block that it goes to.
    pub block: u32,
    /// Its contents.
    pub page: Arc<Page>,
}

/// A page in memory.
#[derive(Debug)]
struct Node {
    page: Arc<Page>,
    /// Changed since it was last written or frozen.
    is_dirty: bool,
    /// Used since the clock of [`Tree::shrink`] last passed it.
    is_used: bool,
    /// Number of the checkpoint that writes it. The page stays in memory until that is complete.
    written_by: u64,
    /// Pages below; empty for a leaf.
    children: Vec<Option<Box<Node>>>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Tree {
    /// Level of the root.
    height: u32,
    /// The root at rest; block 0 where there is none.
    root: Pointer,
    top: Option<Box<Node>>,
    /// Leaves that were changed.
    dirty: BTreeSet<u64>,
    /// Leaves in memory, in the order in which the clock passes them.
    clock: VecDeque<u64>,
    /// The last frozen checkpoint, and the number of leaves that it writes.
    frozen: (u64, usize),
}

impl Node {
    fn new(level: u32, page: Arc<Page>) -> Self {
        let children = if level == 0 { Vec::new() } else { (0..FANOUT).map(|_| None).collect() };
        Self { page, is_dirty: false, is_used: true, written_by: 0, children }
    }
}

fn empty_page() -> Arc<Page> {
    Arc::new([0; FANOUT as usize])
}

/// Returns the index of the entry on `level` of the path to a leaf.
const fn slot(leaf: u64, level: u32) -> usize {
    // Level 0 is the leaf itself; the entry in the page of level 1 is the leaf's lowest bits.
    ((leaf >> (FANOUT_BITS * (level - 1))) & (FANOUT - 1)) as usize
}

/// Returns the level of the root of a tree with this number of leaves.
#[must_use]
pub const fn height_for(leaves: u64) -> u32 {
    let mut height = 0;
    while height < 6 && (1_u64 << (FANOUT_BITS * height)) < leaves {
        height += 1;
    }
    height
}

impl Tree {
    /// Creates a tree with this root. No page is in memory.
    #[must_use]
    pub fn new(height: u32, root: Pointer) -> Self {
        let dirty = BTreeSet::new();
        let clock = VecDeque::new();
        Self { height, root, top: None, dirty, clock, frozen: (0, 0) }
    }

    /// Returns the level of the root.
    #[must_use]
    pub const fn height(&self) -> u32 {
        self.height
    }

    /// Returns the root on the device, as of the last frozen checkpoint.
    #[must_use]
    pub const fn root(&self) -> Pointer {
        self.root
    }

    /// Returns the number of leaves that were changed since the last checkpoint was frozen.
    #[must_use]
    pub fn dirty_leaves(&self) -> usize {
        self.dirty.len()
    }

    /// Returns the number of leaves in memory.
    #[must_use]
    #[cfg(test)]
    pub fn leaves_in_memory(&self) -> usize {
        self.clock.len()
    }

    /// Returns the maximum number of leaves that must stay in memory because checkpoint `completed`
    /// and those before it have not written them.
    #[must_use]
    pub fn unwritten_leaves(&self, completed: u64) -> usize {
        let (by, count) = self.frozen;
        self.dirty.len() + if by > completed { count } else { 0 }
    }

    /// Makes room for this number of leaves: the root becomes an entry of a higher one.
    ///
    /// # Errors
    /// When the root is not in memory.
    pub fn grow(&mut self, leaves: u64) -> Result<(), Missing> {
        while self.height < height_for(leaves) {
            if self.top.is_none() && self.root.block != 0 {
                return Err(Missing { level: self.height, index: 0, pointer: self.root });
            }
            let below = self.top.take();
            self.height += 1;
            if below.is_none() {
                continue;
            }
            let mut node = Node::new(self.height, empty_page());
            let entries = Arc::make_mut(&mut node.page);
            // The old root is an entry now. The new one has no place yet, and stays in memory until
            // then.
            entries[0] = std::mem::take(&mut self.root).to_bits();
            node.is_dirty = true;
            node.children[0] = below;
            self.top = Some(Box::new(node));
            // The new root is written with the next checkpoint, and so is the path to one leaf.
            self.dirty.insert(0);
            if self.height == 1
                && let Some(leaf) = self.top.as_mut().and_then(|top| top.children[0].as_mut())
            {
                leaf.is_dirty = true;
            }
        }
        Ok(())
    }

    /// Returns a leaf; `None` if it was never written.
    ///
    /// # Errors
    /// The page on the path to it, or the leaf itself, if it is not in memory.
    pub fn leaf(&mut self, leaf: u64) -> Result<Option<&Arc<Page>>, Missing> {
        let height = self.height;
        if leaf >> (FANOUT_BITS * height) != 0 {
            // Leaves beyond the root were never written.
            return Ok(None);
        }
        let Some(mut node) = self.top.as_mut() else {
            return match self.root.block {
                0 => Ok(None),
                _ => Err(Missing { level: height, index: 0, pointer: self.root }),
            };
        };
        for level in (1..=height).rev() {
            let slot = slot(leaf, level);
            if node.children[slot].is_none() {
                let pointer = Pointer::from_bits(node.page[slot]);
                let (level, index) = (level - 1, leaf >> (FANOUT_BITS * (level - 1)));
                return match pointer.block {
                    0 => Ok(None),
                    _ => Err(Missing { level, index, pointer }),
                };
            }
            node = match &mut node.children[slot] {
                Some(child) => child,
                None => unreachable!("a page that was just seen"),
            };
        }
        node.is_used = true;
        Ok(Some(&node.page))
    }

    /// Returns the number of leaves from this one on that were never written, as far as one page
    /// shows; 0 if this one was written.
    ///
    /// # Errors
    /// As [`Self::leaf`].
    pub fn unwritten_from(&self, leaf: u64) -> Result<u64, Missing> {
        let height = self.height;
        let leaves = 1_u64 << (FANOUT_BITS * height);
        if leaf >= leaves {
            return Ok(u64::MAX - leaf);
        }
        let Some(mut node) = self.top.as_ref() else {
            return match self.root.block {
                0 => Ok(leaves - leaf),
                _ => Err(Missing { level: height, index: 0, pointer: self.root }),
            };
        };
        for level in (1..=height).rev() {
            let first = slot(leaf, level);
            if let Some(child) = &node.children[first] {
                node = child;
                continue;
            }
            let below = FANOUT_BITS * (level - 1);
            let pointer = Pointer::from_bits(node.page[first]);
            if pointer.block != 0 {
                return Err(Missing { level: level - 1, index: leaf >> below, pointer });
            }
            let is_empty = |at: &usize| {
                node.children[*at].is_none() && Pointer::from_bits(node.page[*at]).block == 0
            };
            let empty = (first..FANOUT as usize).take_while(is_empty).count() as u64;
            return Ok((((leaf >> below) + empty) << below) - leaf);
        }
        Ok(0)
    }

    /// Returns the place of the page with this number on this level; block 0 if it has none.
    ///
    /// # Errors
    /// The page on the path to it, if it is not in memory.
    pub fn pointer_at(&mut self, level: u32, index: u64) -> Result<Pointer, Missing> {
        let height = self.height;
        let leaf = index << (FANOUT_BITS * level);
        if level > height || leaf >> (FANOUT_BITS * height) != 0 {
            return Ok(Pointer::default());
        }
        let mut pointer = self.root;
        let mut place = self.top.as_deref();
        for above in (level + 1..=height).rev() {
            let Some(node) = place else {
                let index = leaf >> (FANOUT_BITS * above);
                return match pointer.block {
                    0 => Ok(pointer),
                    _ => Err(Missing { level: above, index, pointer }),
                };
            };
            let slot = slot(leaf, above);
            pointer = Pointer::from_bits(node.page[slot]);
            place = node.children.get(slot).and_then(|child| child.as_deref());
        }
        Ok(pointer)
    }

    /// Returns the number of leaves from this one on that both trees have in common, as far as one
    /// page shows: a power of 512, or 0 if the leaf differs.
    ///
    /// # Errors
    /// The page that must be in memory first, and whether it is one of the other tree.
    pub fn same_leaves(&mut self, other: &mut Self, leaf: u64) -> Result<u64, (Missing, bool)> {
        for level in (0..=self.height.max(other.height)).rev() {
            let index = leaf >> (FANOUT_BITS * level);
            // The lower tree has no page for this whole range, but may have some below.
            let is_above = index == 0 && level > self.height.min(other.height);
            if index << (FANOUT_BITS * level) == leaf && !is_above {
                let here = self.pointer_at(level, index).map_err(|page| (page, false))?;
                let there = other.pointer_at(level, index).map_err(|page| (page, true))?;
                if here == there {
                    return Ok(1 << (FANOUT_BITS * level));
                }
            }
        }
        Ok(0)
    }

    /// Returns a leaf to be changed, and creates it if there is none.
    ///
    /// # Errors
    /// As [`Self::leaf`].
    pub fn leaf_mut(&mut self, leaf: u64) -> Result<&mut Page, Missing> {
        let height = self.height;
        debug_assert_eq!(leaf >> (FANOUT_BITS * height), 0, "the tree was not grown");
        if self.top.is_none() && self.root.block != 0 {
            return Err(Missing { level: height, index: 0, pointer: self.root });
        }
        if self.top.is_none() && height == 0 {
            self.clock.push_back(0);
        }
        let mut node = self.top.get_or_insert_with(|| Box::new(Node::new(height, empty_page())));
        for level in (1..=height).rev() {
            let slot = slot(leaf, level);
            let pointer = Pointer::from_bits(node.page[slot]);
            let child = &mut node.children[slot];
            if child.is_none() && pointer.block != 0 {
                let index = leaf >> (FANOUT_BITS * (level - 1));
                return Err(Missing { level: level - 1, index, pointer });
            }
            if child.is_none() && level == 1 {
                self.clock.push_back(leaf);
            }
            node = child.get_or_insert_with(|| Box::new(Node::new(level - 1, empty_page())));
        }
        node.is_used = true;
        if !node.is_dirty {
            node.is_dirty = true;
            self.dirty.insert(leaf);
        }
        Ok(Arc::make_mut(&mut node.page))
    }

    /// Adds a page that was missing, unless it was added meanwhile.
    pub fn install(&mut self, missing: Missing, page: Arc<Page>) {
        let Missing { level, index, .. } = missing;
        let leaf = index << (FANOUT_BITS * level);
        let height = self.height;
        let mut place = &mut self.top;
        for above in (level + 1..=height).rev() {
            // The path to it was in memory when it was found missing, and inner pages stay there.
            let Some(node) = place else { return };
            place = &mut node.children[slot(leaf, above)];
        }
        if place.is_none() {
            *place = Some(Box::new(Node::new(level, page)));
            if level == 0 {
                self.clock.push_back(leaf);
            }
        }
    }

    /// Removes the least recently used leaves from memory until at most `max` are left. A leaf
    /// stays if it is changed, or if the checkpoint that writes it is later than `completed`.
    pub fn shrink(&mut self, max: usize, completed: u64) {
        let mut looks = 2 * self.clock.len();
        while self.clock.len() > max && looks > 0 {
            looks -= 1;
            let Some(leaf) = self.clock.pop_front() else { return };
            if !self.drop_leaf(leaf, completed) {
                self.clock.push_back(leaf);
            }
        }
    }

    /// Removes a leaf from memory if it may go. Returns whether it did.
    fn drop_leaf(&mut self, leaf: u64, completed: u64) -> bool {
        let height = self.height;
        let mut place = &mut self.top;
        for level in (1..=height).rev() {
            let Some(node) = place else { return true };
            place = &mut node.children[slot(leaf, level)];
        }
        let Some(node) = place else { return true };
        let may_go = !node.is_dirty && !node.is_used && node.written_by <= completed;
        node.is_used = false;
        if may_go {
            *place = None;
        }
        may_go
    }

    /// Returns the number of pages that the next checkpoint writes, and the blocks of the pages
    /// that they replace.
    #[must_use]
    pub fn pending(&self) -> (usize, Vec<u32>) {
        let mut count = 0;
        let mut replaced = Vec::new();
        let mut last = vec![None; self.height as usize + 1];
        for &leaf in &self.dirty {
            let mut pointer = self.root;
            let mut node = self.top.as_deref();
            let mut level = self.height;
            while let Some(here) = node {
                let page = leaf >> (FANOUT_BITS * level);
                if last[level as usize].replace(page) != Some(page) {
                    count += 1;
                    replaced.extend((pointer.block != 0).then_some(pointer.block));
                }
                if level == 0 {
                    break;
                }
                let slot = slot(leaf, level);
                pointer = Pointer::from_bits(here.page[slot]);
                node = here.children[slot].as_deref();
                level -= 1;
            }
        }
        (count, replaced)
    }

    /// Freezes all changed pages for a checkpoint: gives each the next of `blocks`, of which there
    /// must be as many as [`Self::pending`] returns, and records it with its checksum in the page
    /// above, or in the root. The pages count as unchanged after this.
    pub fn freeze(&mut self, blocks: &mut impl Iterator<Item = u32>, by: u64) -> Vec<Frozen> {
        let dirty = std::mem::take(&mut self.dirty);
        let mut frozen = Vec::new();
        let leaves: Vec<u64> = dirty.into_iter().collect();
        self.frozen = (by, leaves.len());
        if let (Some(top), false) = (&mut self.top, leaves.is_empty()) {
            self.root = freeze(top, self.height, &leaves, blocks, by, &mut frozen);
        }
        frozen
    }

    /// Visits every page and leaf of the tree. Reads missing pages with `read`, and keeps none of
    /// them in memory.
    ///
    /// # Errors
    /// The first error of `read`.
    pub fn walk<E>(
        &self,
        read: &mut impl FnMut(Missing) -> Result<Arc<Page>, E>,
        visit: &mut impl FnMut(Visit<'_>),
    ) -> Result<(), E> {
        walk(self.top.as_deref(), self.height, 0, self.root, read, visit)
    }
}

/// A page or a leaf that [`Tree::walk`] visits.
#[derive(Debug)]
pub enum Visit<'a> {
    /// A page of the tree, at rest in this block (0: not yet).
    Page {
        /// Its block.
        block: u32,
    },
    /// The contents of a leaf.
    Leaf {
        /// Its number.
        leaf: u64,
        /// Its contents.
        page: &'a Page,
    },
}

fn walk<E>(
    node: Option<&Node>,
    level: u32,
    index: u64,
    pointer: Pointer,
    read: &mut impl FnMut(Missing) -> Result<Arc<Page>, E>,
    visit: &mut impl FnMut(Visit<'_>),
) -> Result<(), E> {
    if node.is_none() && pointer.block == 0 {
        return Ok(());
    }
    let page = match node {
        Some(node) => Arc::clone(&node.page),
        None => read(Missing { level, index, pointer })?,
    };
    visit(Visit::Page { block: pointer.block });
    if level == 0 {
        visit(Visit::Leaf { leaf: index, page: &page });
        return Ok(());
    }
    for (slot, &entry) in (0..).zip(page.iter()) {
        let child = node.and_then(|node| node.children[slot].as_deref());
        let below = index << FANOUT_BITS | slot as u64;
        walk(child, level - 1, below, Pointer::from_bits(entry), read, visit)?;
    }
    Ok(())
}

/// Freezes a page and the changed ones below it, which contain `leaves`. Returns its new place.
fn freeze(
    node: &mut Node,
    level: u32,
    leaves: &[u64],
    blocks: &mut impl Iterator<Item = u32>,
    by: u64,
    frozen: &mut Vec<Frozen>,
) -> Pointer {
    if level > 0 {
        let entries = Arc::make_mut(&mut node.page);
        for group in leaves.chunk_by(|a, b| slot(*a, level) == slot(*b, level)) {
            let slot = slot(group[0], level);
            if let Some(child) = &mut node.children[slot] {
                entries[slot] = freeze(child, level - 1, group, blocks, by, frozen).to_bits();
            }
        }
    }
    node.is_dirty = false;
    node.written_by = by;
    let Some(block) = blocks.next() else {
        unreachable!("a checkpoint took fewer blocks than it has pages");
    };
    frozen.push(Frozen { block, page: Arc::clone(&node.page) });
    Pointer { block, checksum: checksum(page_bytes(&node.page)) }
}

/// Returns the bytes of a page on the device.
#[must_use]
pub fn page_bytes(page: &Page) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "pages are little-endian on the device") };
    // SAFETY: the page is 4,096 initialised bytes, and every alignment suits a byte.
    unsafe { std::slice::from_raw_parts(page.as_ptr().cast::<u8>(), size_of::<Page>()) }
}

/// Returns the page of these bytes from the device.
#[must_use]
pub fn page_from(bytes: &[u8]) -> Arc<Page> {
    let mut page = [0; FANOUT as usize];
    let (words, _) = bytes.as_chunks::<8>();
    for (entry, word) in page.iter_mut().zip(words) {
        *entry = u64::from_le_bytes(*word);
    }
    Arc::new(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::random::Random;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    /// A tree, the pages that were written for it, and its expected contents.
    struct Bench {
        tree: Tree,
        at_rest: BTreeMap<u32, Arc<Page>>,
        model: BTreeMap<u64, u64>,
        next_block: u32,
        checkpoint: u64,
    }

    impl Bench {
        fn new(height: u32) -> Self {
            let at_rest = BTreeMap::new();
            let model = BTreeMap::new();
            let tree = Tree::new(height, Pointer::default());
            Self { tree, at_rest, model, next_block: 1, checkpoint: 0 }
        }

        /// Adds a missing page from those that were written, as the caller of a tree does.
        fn fetch(&mut self, missing: Missing) {
            let page = Arc::clone(&self.at_rest[&missing.pointer.block]);
            assert_eq!(checksum(page_bytes(&page)), missing.pointer.checksum);
            self.tree.install(missing, page);
        }

        fn set(&mut self, entry: u64, value: u64) {
            let leaf = entry / FANOUT;
            let slot = (entry % FANOUT) as usize;
            loop {
                match self.tree.leaf_mut(leaf) {
                    Ok(page) => page[slot] = value,
                    Err(missing) => {
                        self.fetch(missing);
                        continue;
                    }
                }
                break;
            }
            self.model.insert(entry, value);
        }

        fn get(&mut self, entry: u64) -> u64 {
            let leaf = entry / FANOUT;
            let slot = (entry % FANOUT) as usize;
            loop {
                match self.tree.leaf(leaf) {
                    Ok(page) => return page.map_or(0, |page| page[slot]),
                    Err(missing) => self.fetch(missing),
                }
            }
        }

        fn checkpoint(&mut self) {
            let (count, replaced) = self.tree.pending();
            let first = self.next_block;
            let mut blocks = first..first + count as u32;
            self.checkpoint += 1;
            let frozen = self.tree.freeze(&mut blocks, self.checkpoint);
            assert_eq!((frozen.len(), blocks.count()), (count, 0));
            self.next_block += count as u32;
            for block in replaced {
                assert!(self.at_rest.remove(&block).is_some(), "block {block} was freed twice");
            }
            self.at_rest.extend(frozen.into_iter().map(|page| (page.block, page.page)));
            assert_eq!(self.tree.dirty_leaves(), 0);
        }

        /// Checks that a walk visits exactly the pages at rest, and that the contents are the
        /// model's.
        fn check_at_rest(&self) {
            let tree = Tree::new(self.tree.height(), self.tree.root());
            let mut pages = Vec::new();
            let mut found = BTreeMap::new();
            let mut read = |missing: Missing| -> Result<_, Infallible> {
                Ok(Arc::clone(&self.at_rest[&missing.pointer.block]))
            };
            let visited = tree.walk(&mut read, &mut |visit| match visit {
                Visit::Page { block } => pages.push(block),
                Visit::Leaf { leaf, page } => {
                    found.extend((leaf * FANOUT..).zip(page.iter().copied()));
                }
            });
            assert_eq!(visited, Ok(()));
            pages.sort_unstable();
            assert!(pages.iter().eq(self.at_rest.keys()), "pages leaked or lost");
            for (entry, value) in &self.model {
                assert_eq!(found.get(entry).copied().unwrap_or(0), *value, "entry {entry}");
            }
        }
    }

    #[test]
    fn tree_keeps_its_entries_through_checkpoints_and_growth() {
        for seed in 0..40 {
            let mut random = Random::new(seed, 1);
            let mut bench = Bench::new(random.below(2) as u32);
            let mut leaves = if bench.tree.height() == 0 { 1 } else { 1 + random.below(512) };
            for _ in 0..400 {
                match random.below(20) {
                    0 => bench.checkpoint(),
                    1 => bench.tree.shrink(random.below(4) as usize, bench.checkpoint),
                    2 if leaves < 1 << 20 => {
                        leaves *= 3;
                        while let Err(missing) = bench.tree.grow(leaves) {
                            bench.fetch(missing);
                        }
                    }
                    _ if random.one_in(3) => {
                        let known: Vec<u64> = bench.model.keys().copied().collect();
                        if !known.is_empty() {
                            let entry = random.among(&known);
                            assert_eq!(bench.get(entry), bench.model[&entry], "seed {seed}");
                        }
                    }
                    _ => {
                        let entry =
                            random.below(leaves.min(40)) * (leaves / leaves.min(40)) * FANOUT
                                + random.below(FANOUT);
                        bench.set(entry, random.next_u64() | 1);
                    }
                }
            }
            bench.checkpoint();
            bench.check_at_rest();
        }
    }

    /// A page that a checkpoint writes does not change with the tree.
    #[test]
    fn frozen_page_stays_unchanged() {
        let mut bench = Bench::new(1);
        bench.set(700, 1);
        let (count, _) = bench.tree.pending();
        let frozen = bench.tree.freeze(&mut (1..=count as u32), 1);
        bench.set(700, 2);
        assert_eq!(frozen[0].page[700 - 512], 1);
        assert_eq!(bench.get(700), 2);
        assert_eq!(bench.tree.dirty_leaves(), 1);
    }

    #[test]
    fn a_leaf_stays_in_memory_until_it_is_written() {
        let mut bench = Bench::new(1);
        bench.set(0, 1);
        bench.tree.shrink(0, 0);
        assert_eq!(bench.tree.leaves_in_memory(), 1, "it is changed");
        bench.checkpoint();
        bench.tree.shrink(0, 0);
        assert_eq!(bench.tree.leaves_in_memory(), 1, "its checkpoint is not complete");
        bench.tree.shrink(0, 1);
        assert_eq!(bench.tree.leaves_in_memory(), 0);
        assert_eq!(bench.get(0), 1);
    }

    #[test]
    fn heights_are_the_least_that_hold_the_leaves() {
        assert_eq!([1, 2, 512, 513, 1 << 18, (1 << 18) + 1].map(height_for), [0, 1, 1, 2, 2, 3]);
    }
}
