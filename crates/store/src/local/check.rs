//! Check of every reference and count of a pool that is not open; it changes nothing. Each block
//! that a tree names must lie in a chunk of the right node, be marked in use, be named once, and be
//! frozen if a snapshot uses it and its volume, too. A volume's state is the map that its anchor
//! names, with the log applied, as the next opening would find it.
//!
//! In memory are five bits for each block of the pool, pages on the path to one leaf, and the
//! changes of one volume's log.

use super::bits::{Bits, count};
use super::device::{Device, read_readable};
use super::discovery::find_superblock;
use super::format::{
    Anchor, CHUNKS_MAX, Identity, Node, NodeKind, OWNERS, Owner, Record, SnapshotRoot, Superblock,
    decode_key,
};
use super::pool::{CHUNK_BYTES, CHUNKS_MIN};
use super::space::{LEAF_CHUNKS, Run, described};
use super::table::{Damaged, Image};
use super::tree::{FANOUT, Page, Tree, page_from};
use super::volume::reclaim::DONE;
use super::volume::recover::{is_possible, read_log};
use super::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use crate::StoreError;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

/// Maximum number of problems that are described. The others are only counted.
const PROBLEMS_MAX: usize = 100;
/// Bits of a leaf's number that one level takes.
const BITS: u32 = FANOUT.trailing_zeros();

/// Result of a check.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Report {
    /// Volumes, including rests of deleted ones.
    pub volumes: u64,
    /// Snapshots, including deleted ones that are still in use.
    pub snapshots: u64,
    /// Chunks that have an owner.
    pub chunks: u64,
    /// Blocks that are marked in use.
    pub in_use: u64,
    /// Blocks that are marked in use but that no tree names: lost space, not lost data.
    pub leaked: u64,
    /// Blocks of data whose checksums were verified.
    pub verified: u64,
    /// Descriptions of the first problems.
    pub problems: Vec<String>,
    /// Number of problems.
    pub problems_total: u64,
}

/// State of a chunk in a check.
#[derive(Clone, Copy, Default)]
struct Chunk {
    owner: Owner,
    in_use: Bits,
    frozen: Bits,
    /// Blocks of the space tree, the log and the anchors.
    own: Bits,
    /// Blocks that snapshots name.
    kept: Bits,
    /// Blocks that the volume names.
    live: Bits,
    verified: Bits,
}

/// Kind of a volume's references.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    Kept,
    Live,
}

/// A tree that is walked.
struct Walk<'a> {
    /// Name of its owner, for people.
    name: String,
    /// The volume whose chunks it is in, and the volumes that this one was made of.
    line: &'a [u32],
    kind: Kind,
    /// Leaves before this one were freed, and the pages above them.
    from: u64,
    /// Blocks of the volume that the log changes.
    changed: &'a BTreeMap<u64, Pointer>,
    /// Blocks that it has named so far.
    seen: BTreeMap<u32, Bits>,
    data_blocks: u64,
    /// Whether a page could not be read.
    is_broken: bool,
}

fn get(bits: &Bits, block: u32) -> bool {
    bits[block as usize % 256 / 64] >> (block % 64) & 1 == 1
}

fn set(bits: &mut Bits, block: u32, value: bool) {
    let bit = 1 << (block % 64);
    let word = &mut bits[block as usize % 256 / 64];
    *word = if value { *word | bit } else { *word & !bit };
}

fn name_of(node: &Node) -> String {
    match node.kind {
        NodeKind::Volume | NodeKind::Deleting => VolumeId::from_bits(node.id).to_string(),
        NodeKind::Husk => format!("what is left of {}", VolumeId::from_bits(node.id)),
        NodeKind::Filling => format!("{}, which is being filled", SnapshotId::from_bits(node.id)),
        _ => SnapshotId::from_bits(node.id).to_string(),
    }
}

struct Checker<'a> {
    device: &'a dyn Device,
    verify_data: bool,
    superblock: Superblock,
    nodes: BTreeMap<u32, Node>,
    /// Chunks of each node, by their indexes.
    owned: BTreeMap<u32, BTreeMap<u32, u32>>,
    chunks: Vec<Chunk>,
    report: Report,
}

/// Checks a pool that is not open; with `verify_data`, also each block of data against its
/// checksum. Writes nothing.
///
/// # Errors
/// When the device holds no pool, or fails.
pub fn check(device: &dyn Device, verify_data: bool) -> Result<Report, StoreError> {
    let (superblock, lost) = find_superblock(device)?;
    let failed = |error| StoreError::io(format!("check {}", device.path().display()), error);
    let read = |table| Image::read(device, table).map_err(failed);
    let nodes = read(superblock.node_table())?;
    let owners = read(superblock.owner_table())?;
    let size = device.size().map_err(failed)?;
    let fits = (size / CHUNK_BYTES).min(superblock.chunks.into()) as usize;
    let mut checker = Checker {
        device,
        verify_data,
        superblock,
        nodes: BTreeMap::new(),
        owned: BTreeMap::new(),
        chunks: vec![Chunk::default(); fits],
        report: Report::default(),
    };
    if fits < superblock.chunks as usize {
        let needed = ByteCount(u64::from(superblock.chunks) * CHUNK_BYTES);
        checker.problem(format!("it has {}, and the pool needs {needed}", ByteCount(size)));
    }
    if lost > 0 {
        checker.lost("the superblock");
    }
    for (name, table) in [("volumes", &nodes), ("chunks", &owners)] {
        for Damaged { sector } in &table.damaged {
            checker.problem(format!("sector {sector} of the table of {name} is damaged"));
        }
        for (_, sector) in &table.lost {
            checker.lost(&format!("sector {sector} of the table of {name}"));
        }
    }
    checker.read_nodes(&nodes);
    checker.read_owners(&owners);
    for number in checker.in_order() {
        checker.volume(number).map_err(failed)?;
    }
    Ok(checker.report)
}

impl Checker<'_> {
    fn problem(&mut self, text: String) {
        self.report.problems_total += 1;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(text);
        }
    }

    /// Records that one of two copies is damaged or cannot be read.
    fn lost(&mut self, what: &str) {
        self.problem(format!(
            "one copy of {what} is damaged; the other one is whole, and the next start of the \
             server writes both"
        ));
    }

    fn read_nodes(&mut self, image: &Image) {
        for number in 1..self.superblock.node_sectors {
            let Some(payload) = image.get(number as usize) else { break };
            match Node::decode(payload) {
                Ok(Some(node)) if node.is_encrypted && decode_key(payload).is_empty() => {
                    self.problem(format!("{}, node {number}, has lost its key", name_of(&node)));
                    self.nodes.insert(number, node);
                }
                Ok(Some(node)) => _ = self.nodes.insert(number, node),
                Ok(None) => {}
                Err(why) => self.problem(format!("node {number} cannot be: {why}")),
            }
        }
        for (number, node) in self.nodes.clone() {
            let parent = self.nodes.get(&node.parent);
            let is_right = if node.has_space() {
                node.parent == 0 || parent.is_some_and(Node::has_root)
            } else {
                parent.is_some_and(Node::has_space)
            };
            if !is_right {
                let name = name_of(&node);
                let parent = node.parent;
                self.problem(format!(
                    "{name}, node {number}, is of node {parent}, which it cannot"
                ));
            }
        }
        let mut names = BTreeSet::new();
        for node in self.nodes.clone().values() {
            if !matches!(node.kind, NodeKind::SnapshotDeleted | NodeKind::Husk)
                && !names.insert((node.has_space(), node.kind == NodeKind::Filling, node.id))
            {
                self.problem(format!("there are two nodes of {}", name_of(node)));
            }
        }
        let count = |is: fn(&Node) -> bool| self.nodes.values().filter(|node| is(node)).count();
        self.report.volumes = count(Node::has_space) as u64;
        self.report.snapshots = count(Node::has_root) as u64;
    }

    fn read_owners(&mut self, image: &Image) {
        for chunk in self.superblock.first_chunk..self.chunks.len() as u32 {
            let Some(payload) = image.get(chunk as usize / OWNERS) else { break };
            let owner = Owner::decode(chunk as usize, payload);
            let most = 2 * (self.superblock.owner_sectors * OWNERS as u32).min(CHUNKS_MAX);
            if owner.node >= self.superblock.node_sectors || owner.index >= most {
                let Owner { node, index } = owner;
                self.problem(format!(
                    "chunk {chunk} is chunk {index} of node {node}: it cannot be"
                ));
                continue;
            }
            let Some(node) = self.nodes.get(&owner.node).copied() else { continue };
            self.chunks[chunk as usize].owner = owner;
            self.report.chunks += 1;
            let Owner { node: number, index } = owner;
            if !node.has_space() {
                let name = name_of(&node);
                self.problem(format!("chunk {chunk} is of {name}, which can own none"));
            }
            let before = self.owned.entry(number).or_default().insert(index, chunk);
            if let Some(before) = before {
                let name = name_of(&node);
                self.problem(format!(
                    "chunks {before} and {chunk} both are chunk {index} of {name}"
                ));
            }
        }
    }

    /// Returns a volume, and the volumes whose blocks it uses: the one that it was made of, and so
    /// on.
    fn line_of(&self, volume: u32) -> Vec<u32> {
        let mut line = vec![volume];
        while let Some(node) = line.last().and_then(|number| self.nodes.get(number))
            && let Some(snapshot) = self.nodes.get(&node.parent)
            && !line.contains(&snapshot.parent)
        {
            line.push(snapshot.parent);
        }
        line
    }

    /// Returns the volumes; one from which others were made precedes them.
    fn in_order(&self) -> Vec<u32> {
        let volumes = self.nodes.iter().filter(|(_, node)| node.has_space());
        let mut order: Vec<u32> = volumes.map(|(number, _)| *number).collect();
        order.sort_by_key(|number| self.line_of(*number).len());
        order
    }

    fn read(&self, block: u32, count: u32) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count as usize * BLOCK_BYTES];
        // Unreadable bytes match no checksum.
        read_readable(self.device, u64::from(block) * BLOCK_BYTES as u64, &mut bytes)?;
        Ok(bytes)
    }

    fn anchor(&mut self, number: u32, node: &Node) -> io::Result<Option<Anchor>> {
        let name = name_of(node);
        if self.chunks.get(node.home as usize).is_none_or(|chunk| chunk.owner.node != number) {
            self.problem(format!("chunk {} is the home of {name}, and not its own", node.home));
            return Ok(None);
        }
        let identity = Identity { node: number, generation: node.generation };
        let copies = self.read(node.home * CHUNK_BLOCKS, 2)?;
        let decode = |copy| Anchor::decode(copy, identity);
        match copies.chunks(BLOCK_BYTES).filter_map(decode).count() {
            0 => self.problem(format!("neither copy of the anchor of {name} is as it was written")),
            1 => self.lost(&format!("the anchor of {name}")),
            _ => {}
        }
        Ok(Anchor::newest(&copies, identity))
    }

    fn volume(&mut self, number: u32) -> io::Result<()> {
        let Some(node) = self.nodes.get(&number).copied() else { return Ok(()) };
        let has_snapshots =
            self.nodes.values().any(|node| !node.has_space() && node.parent == number);
        let owned = self.owned.get(&number).map_or(0, BTreeMap::len);
        if node.home == 0 && owned > CHUNKS_MIN {
            let name = name_of(&node);
            self.problem(format!("{name} has {owned} chunks, and none of them is its first one"));
        }
        // A volume that was never opened has no block yet, and one that is being deleted has none
        // any more.
        if node.home == 0
            || !matches!(node.kind, NodeKind::Volume | NodeKind::Filling) && !has_snapshots
        {
            return Ok(());
        }
        let Some(anchor) = self.anchor(number, &node)? else { return Ok(()) };
        let name = name_of(&node);
        let line = self.line_of(number);
        let none = BTreeMap::new();
        let mut is_broken = !self.read_space(number, &name, &anchor)?;
        let Some(changed) = self.replay(number, &name, &anchor)? else { return Ok(()) };
        for (name, root, from) in self.roots_of(number, &anchor) {
            let mut walk = Walk::new(name, &line, Kind::Kept, &none);
            walk.from = from;
            self.walk(&mut walk, root.height, 0, root.map)?;
            is_broken |= walk.is_broken;
            if from == 0 {
                self.compare_count(&walk, root.data_blocks);
            }
        }
        let mut walk = Walk::new(name, &line, Kind::Live, &changed);
        self.walk(&mut walk, anchor.map.1, 0, anchor.map.0)?;
        self.compare_count(&walk, anchor.data_blocks);
        is_broken |= walk.is_broken;
        for (&at, &pointer) in changed.iter().filter(|(_, pointer)| pointer.block != 0) {
            if self.refer(&mut walk, pointer.block, &format!("block {at}")) {
                self.verify(&walk.name, at, &[pointer])?;
            }
        }
        for chunk in self.owned.get(&number).into_iter().flat_map(BTreeMap::values) {
            let chunk = &self.chunks[*chunk as usize];
            self.report.in_use += u64::from(count(&chunk.in_use));
            // Blocks below a page that cannot be read are not counted as lost.
            let pointed = |word: usize| chunk.own[word] | chunk.kept[word] | chunk.live[word];
            let lost = [0, 1, 2, 3].map(|word| chunk.in_use[word] & !pointed(word));
            self.report.leaked += if is_broken { 0 } else { u64::from(count(&lost)) };
        }
        Ok(())
    }

    fn compare_count(&mut self, walk: &Walk<'_>, noted: u64) {
        let name = &walk.name;
        let found = walk.data_blocks;
        if found != noted && !walk.is_broken {
            self.problem(format!("{name} has {found} blocks of data, and {noted} are noted"));
        }
    }

    /// Returns the maps of a volume's snapshots, and the leaf at which the rest of each begins.
    fn roots_of(&self, volume: u32, anchor: &Anchor) -> Vec<(String, SnapshotRoot, u64)> {
        let of_volume = |(_, node): &(&u32, &Node)| !node.has_space() && node.parent == volume;
        let nodes = self.nodes.iter().filter(of_volume);
        nodes
            .filter_map(|(number, node)| match node.root.checkpoint {
                // The node table does not have its map yet.
                0 if !anchor.snapshots.contains(number) => None,
                0 => Some((name_of(node), anchor.root(), 0)),
                _ if node.kind == NodeKind::SnapshotDeleted && anchor.reclaim.0 == *number => {
                    Some((name_of(node), node.root, anchor.reclaim.1))
                }
                _ => Some((name_of(node), node.root, 0)),
            })
            .filter(|(_, _, from)| *from != DONE)
            .collect()
    }

    /// Records the space tree's bits of a volume's chunks. Returns whether all pages could be read.
    fn read_space(&mut self, number: u32, name: &str, anchor: &Anchor) -> io::Result<bool> {
        let (root, height) = anchor.space;
        let mut pages = Vec::new();
        let mut is_whole = true;
        let mut left = vec![(height, 0, root)];
        while let Some((level, index, pointer)) = left.pop() {
            if pointer.block == 0 {
                continue;
            }
            let what = format!("page {index} of level {level} of the space tree of {name}");
            let Some(page) = self.page(pointer, &what)? else {
                is_whole = false;
                continue;
            };
            pages.push((pointer.block, what));
            if level == 0 {
                self.note_space(number, name, index as u32, &page, anchor.epoch);
                continue;
            }
            let entries = page.iter().map(|entry| Pointer::from_bits(*entry));
            left.extend((0..).zip(entries).map(|(slot, at)| (level - 1, index << BITS | slot, at)));
        }
        let line = [number];
        let none = BTreeMap::new();
        let mut walk = Walk::new(name.to_owned(), &line, Kind::Own, &none);
        for (block, what) in pages {
            self.refer(&mut walk, block, &what);
        }
        Ok(is_whole)
    }

    fn note_space(&mut self, number: u32, name: &str, leaf: u32, page: &Page, epoch: u64) {
        for index in leaf * LEAF_CHUNKS..(leaf + 1) * LEAF_CHUNKS {
            let (in_use, frozen) = described(page, index, epoch);
            let chunk = self.owned.get(&number).and_then(|owned| owned.get(&index));
            match chunk.and_then(|chunk| self.chunks.get_mut(*chunk as usize)) {
                Some(chunk) => (chunk.in_use, chunk.frozen) = (in_use, frozen),
                None if in_use == [0; 4] => {}
                None => self.problem(format!(
                    "the space tree of {name} has blocks of chunk {index}, which it does not own"
                )),
            }
        }
    }

    /// Reads a page, and verifies its checksum.
    fn page(&mut self, pointer: Pointer, what: &str) -> io::Result<Option<Arc<Page>>> {
        let bytes = if pointer.block / CHUNK_BLOCKS < self.chunks.len() as u32 {
            self.read(pointer.block, 1)?
        } else {
            Vec::new()
        };
        if checksum(&bytes) == pointer.checksum && !bytes.is_empty() {
            return Ok(Some(page_from(&bytes)));
        }
        self.problem(format!("{what}, in block {}, is not as it was written", pointer.block));
        Ok(None)
    }

    /// Records that a tree names a block. Returns whether the block is in the pool.
    fn refer(&mut self, walk: &mut Walk<'_>, block: u32, what: &str) -> bool {
        let number = block / CHUNK_BLOCKS;
        let owner = self.chunks.get(number as usize).map_or(0, |chunk| chunk.owner.node);
        let text = |why: &str| format!("{}: {what} is in block {block}, {why}", walk.name);
        if !walk.line.contains(&owner) {
            let why = format!("in chunk {number}, which is of node {owner}");
            self.problem(text(&why));
            return (number as usize) < self.chunks.len();
        }
        let seen = walk.seen.entry(number).or_default();
        let is_twice = get(seen, block);
        set(seen, block, true);
        let chunk = &mut self.chunks[number as usize];
        let is_foreign = owner != walk.line[0];
        let why = if is_twice {
            Some("which the same tree points to elsewhere, too")
        } else if !get(&chunk.in_use, block) {
            Some("which is marked as free")
        } else if get(&chunk.own, block) {
            Some("which is of the log or the space tree, too")
        } else if is_foreign && !get(&chunk.kept, block) {
            Some("of another volume, which keeps it for no snapshot")
        } else if walk.kind == Kind::Live
            && get(&chunk.kept, block)
            && !is_foreign
            && !get(&chunk.frozen, block)
        {
            Some("which a snapshot uses, too, and which is not frozen")
        } else {
            None
        };
        match walk.kind {
            _ if is_foreign => {}
            Kind::Own => set(&mut chunk.own, block, true),
            Kind::Kept => set(&mut chunk.kept, block, true),
            Kind::Live => set(&mut chunk.live, block, true),
        }
        if let Some(why) = why {
            self.problem(text(why));
        }
        true
    }

    /// Walks a map from a page on.
    fn walk(
        &mut self,
        walk: &mut Walk<'_>,
        level: u32,
        index: u64,
        pointer: Pointer,
    ) -> io::Result<()> {
        if pointer.block == 0 || (index + 1) << (BITS * level) <= walk.from {
            return Ok(());
        }
        let what = format!("page {index} of level {level} of the map");
        self.refer(walk, pointer.block, &what);
        let Some(page) = self.page(pointer, &format!("{what} of {}", walk.name))? else {
            walk.is_broken = true;
            return Ok(());
        };
        if level == 0 {
            return self.leaf(walk, index, &page);
        }
        for (slot, &entry) in (0..).zip(page.iter()) {
            self.walk(walk, level - 1, index << BITS | slot, Pointer::from_bits(entry))?;
        }
        Ok(())
    }

    fn leaf(&mut self, walk: &mut Walk<'_>, leaf: u64, page: &Page) -> io::Result<()> {
        let mut run: Vec<Pointer> = Vec::new();
        let first = leaf * FANOUT;
        for (at, &entry) in (first..).zip(page.iter()) {
            let pointer = Pointer::from_bits(entry);
            walk.data_blocks += u64::from(pointer.block != 0);
            let is_current = pointer.block != 0 && !walk.changed.contains_key(&at);
            let follows = run.last().is_none_or(|last| last.block + 1 == pointer.block);
            if !is_current || !follows {
                self.verify(&walk.name, at - run.len() as u64, &std::mem::take(&mut run))?;
            }
            if is_current && self.refer(walk, pointer.block, &format!("block {at}")) {
                run.push(pointer);
            }
        }
        self.verify(&walk.name, first + FANOUT - run.len() as u64, &run)
    }

    /// Verifies the checksums of contiguous blocks of data, unless that was done.
    fn verify(&mut self, name: &str, at: u64, run: &[Pointer]) -> io::Result<()> {
        let Some(first) = run.first().filter(|_| self.verify_data) else { return Ok(()) };
        let place = |block: u32| (block / CHUNK_BLOCKS) as usize;
        if run.iter().all(|pointer| get(&self.chunks[place(pointer.block)].verified, pointer.block))
        {
            return Ok(());
        }
        let bytes = self.read(first.block, run.len() as u32)?;
        for ((at, pointer), bytes) in (at..).zip(run).zip(bytes.chunks(BLOCK_BYTES)) {
            let verified = &mut self.chunks[place(pointer.block)].verified;
            let was = get(verified, pointer.block);
            set(verified, pointer.block, true);
            self.report.verified += u64::from(!was);
            if checksum(bytes) != pointer.checksum {
                let block = pointer.block;
                self.problem(format!(
                    "{name}: block {at}, in block {block}, is not as it was written"
                ));
            }
        }
        Ok(())
    }
}

/// Replay of the log.
impl Checker<'_> {
    /// Returns the blocks of a volume that the log changes, and applies them to its space in
    /// memory. Returns `None` if the log cannot be read.
    fn replay(
        &mut self,
        number: u32,
        name: &str,
        anchor: &Anchor,
    ) -> io::Result<Option<BTreeMap<u64, Pointer>>> {
        let owned = self.owned.get(&number).into_iter().flat_map(BTreeMap::values);
        let owned: Vec<u32> = owned.copied().collect();
        let size = ByteCount(self.nodes.get(&number).map_or(0, |node| node.size));
        let log = read_log(self.device, anchor, &owned)?;
        let log = log.filter(|(blocks, tail)| is_possible(blocks, tail, &owned, size));
        let Some((blocks, tail)) = log else {
            self.problem(format!("the log of {name} is not as it was written"));
            return Ok(None);
        };
        for &chunk in &tail.chunks {
            let chunk = &mut self.chunks[chunk as usize];
            (chunk.in_use, chunk.own) = ([u64::MAX; 4], [u64::MAX; 4]);
        }
        let home = &mut self.chunks[(anchor_home(&self.nodes, number)) as usize];
        (0..2).for_each(|block| set(&mut home.own, block, true));
        let mut log = Replay {
            number,
            name,
            map: Tree::new(anchor.map.1, anchor.map.0),
            changed: BTreeMap::new(),
        };
        for block in &blocks {
            let is_durable = block.head.sequence <= tail.durable;
            for record in &block.records {
                self.replay_record(&mut log, record, is_durable)?;
            }
        }
        Ok(Some(log.changed))
    }

    fn replay_record(
        &mut self,
        log: &mut Replay<'_>,
        record: &Record,
        is_durable: bool,
    ) -> io::Result<()> {
        match record {
            Record::Map { first, block, checksums } => {
                let run = Run { block: *block, count: checksums.len() as u32 };
                let bytes = if is_durable { Vec::new() } else { self.read(run.block, run.count)? };
                let mut found = bytes.chunks(BLOCK_BYTES).map(checksum);
                for (at, &sum) in (0_u32..).zip(checksums) {
                    // A block that was not durable keeps its old contents.
                    if is_durable || found.next() == Some(sum) {
                        let pointer = Pointer { block: block + at, checksum: sum };
                        self.replace(log, first + u64::from(at), pointer)?;
                    }
                }
            }
            Record::Unmap { first, count } => {
                for at in *first..first + u64::from(*count) {
                    self.replace(log, at, Pointer::default())?;
                }
            }
            Record::Snapshot { .. } => {
                // All blocks in use become frozen, and the snapshot that the next opening makes
                // keeps them.
                let owned = self.owned.get(&log.number).into_iter().flat_map(BTreeMap::values);
                for chunk in owned {
                    let chunk = &mut self.chunks[*chunk as usize];
                    chunk.frozen = chunk.in_use;
                    chunk.kept = [0, 1, 2, 3]
                        .map(|word| chunk.kept[word] | chunk.in_use[word] & !chunk.own[word]);
                }
            }
        }
        Ok(())
    }

    fn replace(&mut self, log: &mut Replay<'_>, at: u64, pointer: Pointer) -> io::Result<()> {
        let before = match log.changed.get(&at) {
            Some(pointer) => *pointer,
            None => self.at_rest(log, at)?,
        };
        if before.block == pointer.block {
            return Ok(());
        }
        log.changed.insert(at, pointer);
        for (block, is_used) in [(pointer.block, true), (before.block, false)] {
            let chunk = self.chunks.get_mut((block / CHUNK_BLOCKS) as usize);
            if let Some(chunk) = chunk.filter(|chunk| chunk.owner.node == log.number)
                && (is_used || !get(&chunk.frozen, block))
            {
                set(&mut chunk.in_use, block, is_used);
            }
        }
        Ok(())
    }

    /// Returns the entry of a block in the map on the device.
    fn at_rest(&mut self, log: &mut Replay<'_>, at: u64) -> io::Result<Pointer> {
        log.map.shrink(64, u64::MAX);
        loop {
            match log.map.leaf(at / FANOUT) {
                Ok(page) => {
                    let entry = page.map_or(0, |page| page[(at % FANOUT) as usize]);
                    return Ok(Pointer::from_bits(entry));
                }
                Err(missing) => {
                    let what = format!("a page of the map of {}", log.name);
                    let Some(page) = self.page(missing.pointer, &what)? else {
                        return Ok(Pointer::default());
                    };
                    log.map.install(missing, page);
                }
            }
        }
    }
}

/// State of the replay of a volume's log.
struct Replay<'a> {
    number: u32,
    name: &'a str,
    map: Tree,
    changed: BTreeMap<u64, Pointer>,
}

fn anchor_home(nodes: &BTreeMap<u32, Node>, number: u32) -> u32 {
    nodes.get(&number).map_or(0, |node| node.home)
}

impl<'a> Walk<'a> {
    fn new(name: String, line: &'a [u32], kind: Kind, changed: &'a BTreeMap<u64, Pointer>) -> Self {
        let seen = BTreeMap::new();
        Self { name, line, kind, from: 0, changed, seen, data_blocks: 0, is_broken: false }
    }
}
