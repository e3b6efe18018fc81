//! Scrub of the pool's metadata: superblocks, tables, anchors, logs, and pages of trees are read
//! and their checksums verified.
//!
//! Damaged metadata that is still in memory is rewritten. The pool writes superblocks and sectors;
//! an open volume writes its anchors, and pages that it has in memory, with a checkpoint, which
//! also begins a new log. A scrub blocks no volume: a volume may write while it is read. So a
//! mismatch counts only if the anchor has not changed since.

use super::LocalPool;
use crate::local::device::{Device, read_readable};
use crate::local::format::{Anchor, Identity, Node, NodeKind, OWNERS, Superblock};
use crate::local::table::SECTOR_BYTES;
use crate::local::tree::{FANOUT, Missing, Tree, page_from};
use crate::local::volume::recover::read_log;
use crate::local::volume::{Rewrite, Task};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use crate::{LOOKED_BYTES, Looked, StoreError};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Blocks of each copy of a table in one part.
const TABLE_BLOCKS: usize = LOOKED_BYTES as usize / BLOCK_BYTES / 2;
/// Pages of a tree in one part.
const PAGES: u64 = LOOKED_BYTES / BLOCK_BYTES as u64;
/// Bits of a leaf's number that one level takes.
const BITS: u32 = FANOUT.trailing_zeros();
/// Bit offsets of the fields of a place: a tree of the node, the node, and the kind. The leaf is
/// below.
const TREE_AT: u32 = 34;
const NODE_AT: u32 = 36;
const KIND_AT: u32 = 60;

/// A part of the scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Superblocks,
    /// From a block of the table on.
    Nodes(u64),
    Owners(u64),
    /// Anchors and log of a volume's node.
    Log(u32),
    /// Pages of a node's trees, from a leaf on.
    Space(u32, u64),
    Map(u32, u64),
}

impl Place {
    /// Returns the number of the part. Later parts have larger numbers.
    const fn number(self) -> u64 {
        let (kind, node, tree, leaf) = match self {
            Self::Superblocks => (0, 0, 0, 0),
            Self::Nodes(block) => (1, 0, 0, block),
            Self::Owners(block) => (2, 0, 0, block),
            Self::Log(node) => (3, node, 0, 0),
            Self::Space(node, leaf) => (3, node, 1, leaf),
            Self::Map(node, leaf) => (3, node, 2, leaf),
        };
        kind << KIND_AT | (node as u64) << NODE_AT | tree << TREE_AT | leaf
    }

    /// Returns the part with this number; `None` behind the last.
    const fn from(number: u64) -> Option<Self> {
        let leaf = number & ((1 << TREE_AT) - 1);
        let node = (number >> NODE_AT) as u32 & ((1 << (KIND_AT - NODE_AT)) - 1);
        let tree = number >> TREE_AT & ((1 << (NODE_AT - TREE_AT)) - 1);
        Some(match (number >> KIND_AT, tree) {
            (0, _) => Self::Superblocks,
            (1, _) => Self::Nodes(leaf),
            (2, _) => Self::Owners(leaf),
            (3, 0) => Self::Log(node),
            (3, 1) => Self::Space(node, leaf),
            (3, 2) => Self::Map(node, leaf),
            _ => return None,
        })
    }
}

/// Result of reading pages of a tree.
struct Walked {
    /// `None` at the end.
    next: Option<u64>,
    pages: u64,
    /// The damaged page. The pages below it are skipped.
    bad: Option<Missing>,
}

fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

/// Reads pages of a tree from leaf `first` on.
fn walk(device: &dyn Device, root: (Pointer, u32), first: u64) -> io::Result<Walked> {
    let (pointer, height) = root;
    let mut tree = Tree::new(height, pointer);
    let mut nothing = Tree::new(0, Pointer::default());
    let mut leaf = first;
    let mut pages = 0;
    let end = 1 << (BITS * height);
    while leaf < end && pages < PAGES {
        let missing = match tree.same_leaves(&mut nothing, leaf) {
            Ok(0) => match tree.leaf(leaf) {
                Ok(_) => {
                    leaf += 1;
                    continue;
                }
                Err(missing) => missing,
            },
            Ok(holes) => {
                leaf += holes;
                continue;
            }
            Err((missing, _)) => missing,
        };
        let mut bytes = [0; BLOCK_BYTES];
        device.read(offset(missing.pointer.block), &mut bytes)?;
        pages += 1;
        if checksum(&bytes) != missing.pointer.checksum {
            let next = (missing.index + 1) << (BITS * missing.level);
            return Ok(Walked { next: (next < end).then_some(next), pages, bad: Some(missing) });
        }
        tree.install(missing, page_from(&bytes));
    }
    Ok(Walked { next: (leaf < end).then_some(leaf), pages, bad: None })
}

/// Returns the name of a node, for people.
fn name_of(node: &Node) -> String {
    if node.has_space() {
        VolumeId::from_bits(node.id).to_string()
    } else {
        SnapshotId::from_bits(node.id).to_string()
    }
}

impl LocalPool {
    pub(super) fn look_at_place(&self, place: u64) -> Result<Looked, StoreError> {
        let doing = || "read what the pool needs beside the data".to_owned();
        self.look(place).map_err(self.io(doing()))
    }

    fn look(&self, place: u64) -> io::Result<Looked> {
        match Place::from(place) {
            None => Ok(Looked::default()),
            Some(Place::Superblocks) => self.look_at_superblocks(),
            Some(Place::Nodes(block)) => self.look_at_table(true, block),
            Some(Place::Owners(block)) => self.look_at_table(false, block),
            Some(Place::Log(node)) => self.look_at_log(node),
            Some(Place::Space(node, leaf)) => self.look_at_tree(node, leaf, false),
            Some(Place::Map(node, leaf)) => self.look_at_tree(node, leaf, true),
        }
    }

    fn tell(&self, what: &str, whose: &str, at: u64, is_mended: bool) {
        let pool = self.shared.device.path().display();
        let outcome = if is_mended {
            "it is written anew from memory"
        } else {
            "the data behind it cannot be read; restore it from a copy"
        };
        tracing::error!(%pool, at, "{what} of {whose} is not as it was written: {outcome}");
    }

    fn look_at_superblocks(&self) -> io::Result<Looked> {
        let state = self.state();
        // A superblock of another server's session is no damage: this one must not replace it.
        self.shared.claim.hold()?;
        let device = self.shared.device.as_ref();
        let mut rotten = Vec::new();
        for at in [0, BLOCK_BYTES as u64] {
            let mut block = vec![0; BLOCK_BYTES];
            read_readable(device, at, &mut block)?;
            if Superblock::decode(&block) != Ok(state.superblock) {
                device.write(at, &state.superblock.encode())?;
                device.sync()?;
                self.shared.mended.fetch_add(1, Ordering::Relaxed);
                self.tell("a superblock", "the pool", at, true);
                rotten.push(at);
            }
        }
        let next = Some(Place::Nodes(0).number());
        Ok(Looked { next, bytes: 2 * BLOCK_BYTES as u64, rotten })
    }

    fn look_at_table(&self, is_nodes: bool, first: u64) -> io::Result<Looked> {
        let mut state = self.state();
        self.shared.claim.hold()?;
        let superblock = state.superblock;
        let (table, sectors) = if is_nodes {
            (&mut state.nodes, superblock.node_sectors as usize)
        } else {
            (&mut state.owners, superblock.chunks as usize / OWNERS + 1)
        };
        let end = (sectors * SECTOR_BYTES).div_ceil(BLOCK_BYTES);
        let blocks = first as usize..end.min(first as usize + TABLE_BLOCKS);
        let looked = table.look_at(blocks.clone())?;
        let mended: Vec<u64> = looked.iter().filter(|copy| copy.1).map(|copy| copy.0).collect();
        let rotten = looked.into_iter().map(|copy| copy.0).collect();
        self.shared.mended.fetch_add(mended.len() as u64, Ordering::Relaxed);
        let what = if is_nodes { "the table of volumes" } else { "the table of chunks" };
        // The table logs a block that cannot be written.
        mended.iter().for_each(|place| self.tell(what, "the pool", *place, true));
        let next = match (blocks.end < end, is_nodes) {
            (true, true) => Some(Place::Nodes(blocks.end as u64)),
            (true, false) => Some(Place::Owners(blocks.end as u64)),
            (false, true) => Some(Place::Owners(0)),
            (false, false) => {
                drop(state);
                self.first_place_of_node(1)
            }
        };
        let bytes = 2 * (blocks.len() * BLOCK_BYTES) as u64;
        Ok(Looked { next: next.map(Place::number), bytes, rotten })
    }

    /// Returns the first place of the first node from number `from` on that has metadata to read.
    fn first_place_of_node(&self, from: u32) -> Option<Place> {
        let state = self.state();
        state.all.range(from..).find_map(|(number, node)| match node.kind {
            _ if node.has_space() => (node.home != 0).then_some(Place::Log(*number)),
            NodeKind::SnapshotDeleted if !state.is_pinned(*number) => None,
            _ => (node.root.checkpoint > 0).then_some(Place::Map(*number, 0)),
        })
    }

    fn node_of(&self, number: u32) -> Option<Node> {
        self.state().all.get(&number).copied()
    }

    fn anchor_of(&self, number: u32, node: &Node) -> io::Result<(Vec<u8>, Option<Anchor>)> {
        let mut copies = vec![0; 2 * BLOCK_BYTES];
        self.shared.device.read(offset(node.home * CHUNK_BLOCKS), &mut copies)?;
        let identity = Identity { node: number, generation: node.generation };
        let newest = Anchor::newest(&copies, identity);
        Ok((copies, newest))
    }

    /// Requests that an open volume rewrite metadata. Returns whether the volume is open.
    fn ask_to_rewrite(&self, number: u32, rewrite: Rewrite) -> bool {
        let is_open = self.shared.open().contains(&number);
        if is_open {
            let mut mail = self.shared.mail();
            mail.tasks.entry(number).or_default().push_back(Task::Rewrite(rewrite));
        }
        is_open
    }

    /// Has damaged copies of a volume's anchor rewritten, and logs them. `has_whole_copy` if one
    /// copy is valid.
    fn mend_anchors(&self, number: u32, node: &Node, rotten: &[u64], has_whole_copy: bool) {
        let damaged = rotten.len() as u64;
        let is_open = self.ask_to_rewrite(number, Rewrite::Anchors(damaged));
        if !is_open && has_whole_copy {
            // An opening of the volume mends its anchor.
            self.tend(number);
        }
        let known = self.shared.known().get(&number).cloned();
        if known.is_some_and(|known| known.has_one_anchor.load(Ordering::Relaxed)) {
            let pool = self.shared.device.path().display();
            tracing::error!(
                %pool, at = ?rotten, volume = name_of(node),
                "a copy of an anchor is lost and cannot be written; the other one serves alone: \
                 replace the device"
            );
            return;
        }
        let is_mended = is_open || has_whole_copy;
        let tell = |block: &u64| self.tell("an anchor", &name_of(node), *block, is_mended);
        rotten.iter().for_each(tell);
    }

    fn look_at_log(&self, number: u32) -> io::Result<Looked> {
        let next = Some(Place::Space(number, 0).number());
        let node = self.node_of(number).filter(|node| node.has_space() && node.home != 0);
        let Some(node) = node else { return Ok(Looked { next, ..Looked::default() }) };
        let durable = {
            let known = self.shared.known().get(&number).cloned();
            known.map_or(0, |known| known.durable.load(Ordering::Relaxed))
        };
        let (copies, anchor) = self.anchor_of(number, &node)?;
        let mut looked = Looked { next, bytes: copies.len() as u64, rotten: Vec::new() };
        let identity = Identity { node: number, generation: node.generation };
        for (at, copy) in (node.home * CHUNK_BLOCKS..).zip(copies.chunks(BLOCK_BYTES)) {
            if Anchor::decode(copy, identity).is_some() {
                continue;
            }
            // The copy may have been written at this moment.
            let mut again = vec![0; BLOCK_BYTES];
            self.shared.device.read(offset(at), &mut again)?;
            if again == copy {
                looked.rotten.push(offset(at));
            }
        }
        if !looked.rotten.is_empty() {
            self.mend_anchors(number, &node, &looked.rotten, anchor.is_some());
        }
        let Some(anchor) = anchor else { return Ok(looked) };
        let owned = self.state().owned.get(&number).cloned().unwrap_or_default();
        let (is_whole, bytes) = self.is_log_whole(&anchor, &owned, durable)?;
        looked.bytes += bytes;
        if !is_whole {
            let again = self.anchor_of(number, &node)?.1;
            if again.as_ref() != Some(&anchor) {
                // The volume has begun another log meanwhile.
                let next = Some(Place::Log(number).number());
                return Ok(Looked { next, rotten: Vec::new(), ..looked });
            }
            if !self.is_log_whole(&anchor, &owned, durable)?.0 {
                let is_open = self.ask_to_rewrite(number, Rewrite::Anchors(0));
                let place = offset(anchor.log);
                self.tell("the log", &name_of(&node), place, is_open);
                looked.rotten.push(place);
            }
        }
        Ok(looked)
    }

    /// Returns whether the log can be read up to the block that was flushed before, and its length
    /// in bytes.
    fn is_log_whole(
        &self,
        anchor: &Anchor,
        owned: &[u32],
        durable: u64,
    ) -> io::Result<(bool, u64)> {
        let found = read_log(self.shared.device.as_ref(), anchor, owned)?;
        Ok(found.map_or((false, 0), |(blocks, _)| {
            let last = anchor.sequence + blocks.len() as u64 - 1;
            (last >= durable, (blocks.len() * BLOCK_BYTES) as u64)
        }))
    }

    fn look_at_tree(&self, number: u32, leaf: u64, is_map: bool) -> io::Result<Looked> {
        let following =
            if is_map { self.first_place_of_node(number + 1) } else { Some(Place::Map(number, 0)) };
        let passed = Looked { next: following.map(Place::number), ..Looked::default() };
        let Some(node) = self.node_of(number) else { return Ok(passed) };
        let Some(root) = self.root_of(number, &node, is_map)? else { return Ok(passed) };
        let walked = walk(self.shared.device.as_ref(), root, leaf)?;
        let of_leaf = |leaf: u64| {
            if is_map {
                Place::Map(number, leaf).number()
            } else {
                Place::Space(number, leaf).number()
            }
        };
        let bytes = walked.pages * BLOCK_BYTES as u64;
        let next = walked.next.map(of_leaf).or(passed.next);
        let Some(bad) = walked.bad else { return Ok(Looked { next, bytes, rotten: Vec::new() }) };
        let now = self.node_of(number);
        let is_same = match now {
            Some(now) => self.root_of(number, &now, is_map)? == Some(root),
            None => false,
        };
        if !is_same {
            // The blocks that were read may have been reused by now.
            return Ok(Looked { next: Some(of_leaf(leaf)), bytes, rotten: Vec::new() });
        }
        let leaves = bad.index << (BITS * bad.level)..(bad.index + 1) << (BITS * bad.level);
        let is_asked = node.has_space() && self.ask_to_rewrite(number, rewrite(is_map, leaves));
        let what = match (is_map, is_asked) {
            (true, false) => "a page of the map",
            (true, true) => "a page of the map (if it is in memory)",
            (false, false) => "a page of the map of space",
            (false, true) => "a page of the map of space (if it is in memory)",
        };
        let place = offset(bad.pointer.block);
        self.tell(what, &name_of(&node), place, is_asked);
        Ok(Looked { next, bytes, rotten: vec![place] })
    }

    /// Returns the root of one of a node's trees, and its level, as on the device.
    fn root_of(
        &self,
        number: u32,
        node: &Node,
        is_map: bool,
    ) -> io::Result<Option<(Pointer, u32)>> {
        if !node.has_space() {
            let is_kept = node.kind != NodeKind::SnapshotDeleted || self.state().is_pinned(number);
            let root = (node.root.map, node.root.height);
            return Ok((is_map && is_kept && node.root.checkpoint > 0).then_some(root));
        }
        if node.home == 0 {
            return Ok(None);
        }
        let anchor = self.anchor_of(number, node)?.1;
        Ok(anchor.map(|anchor| if is_map { anchor.map } else { anchor.space }))
    }
}

const fn rewrite(is_map: bool, leaves: Range<u64>) -> Rewrite {
    if is_map { Rewrite::Map(leaves) } else { Rewrite::Space(leaves) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_again_by_their_numbers() {
        let places = [
            Place::Superblocks,
            Place::Nodes(7),
            Place::Owners(1 << 20),
            Place::Log(1),
            Place::Space(1, (1 << 34) - 1),
            Place::Map(1, 0),
            Place::Log(393_216),
            Place::Map((1 << 24) - 1, 5),
        ];
        for place in places {
            assert_eq!(Place::from(place.number()), Some(place));
        }
        assert!(places.is_sorted_by_key(|place| place.number()));
        assert_eq!(Place::from(u64::MAX), None);
    }
}
