//! State of the pool in memory: nodes, owners of chunks, and free chunks. All of it is also on the
//! device.

use super::claim::Claim;
use super::{CHUNK_BYTES, GROWTH_CHUNKS};
use crate::local::BLOCK_BYTES;
use crate::local::device::Device;
use crate::local::format::{
    CHUNKS_MAX, Node, NodeError, NodeKind, OWNERS, Owner, Superblock, decode_key, encode_key,
    owner_sectors,
};
use crate::local::table::{Draft, PAYLOAD_BYTES, Table};
use crate::local::volume::Doomed;
use crate::snapshots::SnapshotInfo;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct State {
    pub superblock: Superblock,
    pub nodes: Table,
    pub owners: Table,
    /// All nodes by their numbers.
    pub all: BTreeMap<u32, Node>,
    /// Nodes by their parents. Each opening of a volume looks up its snapshots, and the volumes
    /// that were made of a snapshot.
    children: BTreeSet<(u32, u32)>,
    /// Snapshots of sets, by the ids of the sets.
    pub(super) sets: BTreeSet<(u64, u32)>,
    /// All numbers below it are in use.
    free_from: u32,
    /// Volumes, including those that are being deleted.
    pub volumes: BTreeMap<VolumeId, u32>,
    /// Snapshots, including those that are being made.
    pub snapshots: BTreeMap<SnapshotId, u32>,
    /// Nodes that snapshots are filled in.
    pub filling: BTreeMap<SnapshotId, u32>,
    /// Chunks of each node, by their indexes.
    pub owned: BTreeMap<u32, Vec<u32>>,
    pub free: BTreeSet<u32>,
    /// Numbers of open readers of snapshots, by their nodes.
    pub readers: BTreeMap<u32, u32>,
    /// The deleted snapshot whose reclaim each volume had begun when it was opened. That reclaim
    /// continues first: the rest of such a snapshot is no neighbour with which another one can be
    /// compared.
    pub begun: BTreeMap<u32, u32>,
    /// Numbers of nodes whose sectors are damaged in both copies. Their contents are unknown; their
    /// numbers and chunks are given to no other node.
    pub unknown: BTreeSet<u32>,
    /// Nodes that cannot be opened according to the tables, with the reason.
    pub damaged: BTreeMap<u32, String>,
    /// Damaged sectors of the owner table. Chunks of any node may be among theirs, so none of those
    /// is allocated.
    doubted: BTreeSet<usize>,
    /// Nodes whose indexes have a gap for chunks in such sectors.
    spaced: BTreeSet<u32>,
    /// Checks whether the pool is still this server's, before either table is written.
    claim: Arc<Claim>,
    /// Number of openings of volumes since the pool was opened.
    openings: u32,
}

fn sector_of(chunk: u32) -> usize {
    chunk as usize / OWNERS
}

impl State {
    /// Creates the state from the tables: finds the nodes and the free chunks.
    ///
    /// # Errors
    /// If a node is impossible.
    pub fn new(
        superblock: Superblock,
        nodes: Table,
        owners: Table,
        claim: Arc<Claim>,
    ) -> Result<Self, NodeError> {
        let mut state = Self {
            superblock,
            nodes,
            owners,
            all: BTreeMap::new(),
            children: BTreeSet::new(),
            sets: BTreeSet::new(),
            free_from: 1,
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            filling: BTreeMap::new(),
            owned: BTreeMap::new(),
            free: BTreeSet::new(),
            readers: BTreeMap::new(),
            begun: BTreeMap::new(),
            unknown: BTreeSet::new(),
            damaged: BTreeMap::new(),
            doubted: BTreeSet::new(),
            spaced: BTreeSet::new(),
            claim,
            openings: 0,
        };
        for number in 1..superblock.node_sectors {
            let Some(payload) = state.nodes.get(number as usize) else { break };
            if state.nodes.is_damaged(number as usize) {
                state.unknown.insert(number);
                continue;
            }
            if let Some(node) = Node::decode(payload)? {
                state.note_node(number, node);
            }
        }
        state.find_owners();
        Ok(state)
    }

    fn find_owners(&mut self) {
        let chunks = self.superblock.first_chunk..self.superblock.chunks;
        for chunk in chunks.clone() {
            let sector = sector_of(chunk);
            let owner = self.owner_of(chunk);
            // Such numbers are never written.
            let is_possible = owner.node < self.superblock.node_sectors
                && (owner.node == 0 || owner.index < 2 * self.chunks_max());
            if self.owners.is_damaged(sector) || !is_possible {
                self.doubted.insert(sector);
                continue;
            }
            if self.unknown.contains(&owner.node) {
                continue;
            }
            if !self.all.contains_key(&owner.node) {
                self.free.insert(chunk);
                continue;
            }
            let owned = self.owned.entry(owner.node).or_default();
            let index = owner.index as usize;
            if owned.len() <= index {
                owned.resize(index + 1, 0);
            }
            owned[index] = chunk;
        }
        self.find_damaged();
        let doubted = &self.doubted;
        self.free.retain(|chunk| !doubted.contains(&sector_of(*chunk)));
    }

    /// Finds nodes whose first chunk has another owner. Other owners in the same sector may be
    /// wrong, too.
    fn find_damaged(&mut self) {
        let chunks = self.superblock.first_chunk..self.superblock.chunks;
        let mut homes = BTreeSet::new();
        for (number, node) in self.all.iter().filter(|(_, node)| node.home == 0) {
            // The volume begins with the map of its snapshot, which is lost.
            if node.has_space() && self.unknown.contains(&node.parent) {
                let id = VolumeId::from_bits(node.id);
                let sector = node.parent;
                let what =
                    format!("sector {sector} of the table of volumes, from which {id} begins,");
                tracing::error!("{what} is not as it was written: the volume is not opened");
                self.damaged.insert(*number, what);
                continue;
            }
            // A volume gets only its minimum of chunks before its home is recorded.
            let owned = self.owned.get(number).map_or(0, Vec::len);
            if node.has_space() && owned > super::CHUNKS_MIN {
                let id = VolumeId::from_bits(node.id);
                let what = format!("the first chunk of {id}, which has {owned} chunks,");
                tracing::error!("{what} is not as it was written: the volume is not opened");
                self.damaged.insert(*number, what);
            }
        }
        for (number, node) in self.all.iter().filter(|(_, node)| node.home != 0) {
            // Its chunks may have been freed already; the node is deleted next.
            let is_going = matches!(node.kind, NodeKind::Deleting | NodeKind::Husk)
                && self.children_of(*number).next().is_none();
            let is_placed = chunks.contains(&node.home);
            let sector = sector_of(node.home);
            let is_owner = is_placed
                && !self.owners.is_damaged(sector)
                && self.owner_of(node.home).node == *number;
            if !node.has_space() || is_going || is_owner {
                continue;
            }
            let what = format!(
                "the owner of chunk {}, the first chunk of {},",
                node.home,
                VolumeId::from_bits(node.id)
            );
            tracing::error!("{what} is not as it was written: the volume is not opened");
            self.damaged.insert(*number, what);
            if is_placed {
                self.doubted.insert(sector);
                homes.insert(node.home);
            }
        }
        // The table names another owner, which must not use the chunk either.
        for chunk in self.owned.values_mut().flatten().filter(|chunk| homes.contains(chunk)) {
            *chunk = 0;
        }
    }

    /// Returns whether a snapshot of this volume may be among the unknown nodes, and volumes that
    /// were made of it may use its blocks. Then no block of the volume's snapshots is freed.
    pub fn may_have_unknown_snapshots(&self, volume: u32) -> bool {
        let parent = self.all.get(&volume).map_or(0, |node| node.parent);
        // The snapshot that the volume was made of is older than the volume.
        self.unknown.iter().any(|number| *number != parent && self.is_pinned(*number))
    }

    fn owner_of(&self, chunk: u32) -> Owner {
        let payload = self.owners.get(sector_of(chunk)).unwrap_or(&[0; PAYLOAD_BYTES]);
        Owner::decode(chunk as usize, payload)
    }

    /// Writes the owners of all chunks that were never written, so that a lost sector is
    /// distinguished from one that was never written.
    pub fn begin_owners(&mut self, device: &dyn Device) -> io::Result<()> {
        self.begin_owners_of(self.superblock.chunks)?;
        if self.superblock.written == self.superblock.chunks {
            return Ok(());
        }
        let written = self.superblock.chunks;
        let superblock = Superblock { written, ..self.superblock };
        self.claim.hold()?;
        super::write_superblock(device, &superblock)?;
        self.superblock = superblock;
        Ok(())
    }

    fn begin_owners_of(&mut self, chunks: u32) -> io::Result<()> {
        let mut draft = Draft::new();
        let is_new =
            |sector: &usize| self.owners.version(*sector) == 0 && !self.owners.is_damaged(*sector);
        for sector in (0..owner_sectors(chunks)).filter(is_new) {
            self.owners.change(&mut draft, sector, |_| ());
        }
        self.claim.hold()?;
        self.owners.write(draft)
    }

    /// Records a node in memory.
    fn note_node(&mut self, number: u32, node: Node) {
        if let Some(before) = self.all.insert(number, node) {
            self.strike(number, &before);
        }
        self.children.insert((node.parent, number));
        if node.set.id != 0 {
            self.sets.insert((node.set.id, number));
        }
        match node.kind {
            NodeKind::Volume | NodeKind::Deleting => {
                self.volumes.insert(VolumeId::from_bits(node.id), number);
            }
            NodeKind::Snapshot | NodeKind::SnapshotPending => {
                self.snapshots.insert(SnapshotId::from_bits(node.id), number);
            }
            NodeKind::Filling => {
                self.filling.insert(SnapshotId::from_bits(node.id), number);
            }
            NodeKind::SnapshotDeleted | NodeKind::Husk => {}
        }
    }

    /// Removes the index entries of a node.
    fn strike(&mut self, number: u32, node: &Node) {
        self.children.remove(&(node.parent, number));
        self.sets.remove(&(node.set.id, number));
        match node.kind {
            NodeKind::Volume | NodeKind::Deleting => {
                self.volumes.remove(&VolumeId::from_bits(node.id));
            }
            NodeKind::Snapshot | NodeKind::SnapshotPending => {
                self.snapshots.remove(&SnapshotId::from_bits(node.id));
            }
            NodeKind::Filling => {
                self.filling.remove(&SnapshotId::from_bits(node.id));
            }
            NodeKind::SnapshotDeleted | NodeKind::Husk => {}
        }
    }

    /// Returns the node of a volume, even if it is being deleted.
    pub fn volume(&self, id: VolumeId) -> Option<(u32, Node)> {
        let number = *self.volumes.get(&id)?;
        Some((number, *self.all.get(&number)?))
    }

    /// Returns the node of a snapshot, even if it is being made.
    pub fn snapshot(&self, id: SnapshotId) -> Option<(u32, Node)> {
        let number = *self.snapshots.get(&id)?;
        Some((number, *self.all.get(&number)?))
    }

    /// Returns the description of a snapshot with this node.
    pub fn info(&self, id: SnapshotId, node: &Node) -> SnapshotInfo {
        let volume = self.all.get(&node.parent).filter(|parent| parent.kind == NodeKind::Volume);
        SnapshotInfo {
            id,
            volume: volume.map(|parent| VolumeId::from_bits(parent.id)),
            size: ByteCount(node.size),
            is_complete: node.kind == NodeKind::Snapshot,
            data: ByteCount(node.root.data_blocks.saturating_mul(BLOCK_BYTES as u64)),
            is_encrypted: node.is_encrypted,
        }
    }

    /// Returns the node that a snapshot is filled in.
    pub fn filling(&self, id: SnapshotId) -> Option<(u32, Node)> {
        let number = *self.filling.get(&id)?;
        Some((number, *self.all.get(&number)?))
    }

    /// Returns the wrapped key of a node's data.
    pub fn key_of(&self, number: u32) -> &[u8] {
        self.nodes.get(number as usize).map_or(&[], decode_key)
    }

    /// Creates a node with a wrapped key, durably. Returns its number; `None` if the table is full.
    pub fn make_node(&mut self, node: Node, key: &[u8]) -> io::Result<Option<u32>> {
        Ok(self.make_nodes(vec![(node, key.to_vec())])?.and_then(|made| made.first().copied()))
    }

    /// Creates nodes with their wrapped keys, durably. Returns their numbers; `None` if the table
    /// has no room for all of them.
    pub fn make_nodes(&mut self, nodes: Vec<(Node, Vec<u8>)>) -> io::Result<Option<Vec<u32>>> {
        let is_free =
            |number: &u32| !self.all.contains_key(number) && !self.unknown.contains(number);
        let free = (self.free_from..self.superblock.node_sectors).filter(is_free);
        let numbers: Vec<u32> = free.take(nodes.len()).collect();
        if numbers.len() < nodes.len() {
            return Ok(None);
        }
        let mut made = Vec::new();
        let mut draft = Draft::new();
        for (&number, (node, key)) in numbers.iter().zip(nodes) {
            // Unique: no other node of this number has had this generation, in this pool or an
            // earlier one on the device.
            let version = u64::from(self.nodes.version(number as usize));
            let generation = (self.superblock.identity as u64).wrapping_add(version);
            self.nodes.change(&mut draft, number as usize, |payload| encode_key(payload, &key));
            made.push((number, Node { generation, is_encrypted: !key.is_empty(), ..node }));
        }
        self.write_with(draft, made)?;
        self.free_from = numbers.last().map_or(self.free_from, |last| last + 1);
        Ok(Some(numbers))
    }

    /// Returns the error for a full table of nodes.
    pub fn table_is_full(&self) -> io::Error {
        let nodes = self.superblock.node_sectors - 1;
        let text = format!("it has room for {nodes} volumes and snapshots, and all of it is taken");
        io::Error::new(io::ErrorKind::StorageFull, text)
    }

    /// Writes nodes to the table, durably.
    pub fn write_nodes(&mut self, nodes: impl IntoIterator<Item = (u32, Node)>) -> io::Result<()> {
        self.write_with(Draft::new(), nodes.into_iter().collect())
    }

    /// Writes nodes, and the changes of `draft`, to the table, durably.
    fn write_with(&mut self, mut draft: Draft, nodes: Vec<(u32, Node)>) -> io::Result<()> {
        for (number, node) in &nodes {
            self.nodes.change(&mut draft, *number as usize, |payload| node.encode(payload));
        }
        self.claim.hold()?;
        self.nodes.write(draft)?;
        nodes.into_iter().for_each(|(number, node)| self.note_node(number, node));
        Ok(())
    }

    /// Clears nodes in the table, durably.
    pub fn clear_nodes(&mut self, numbers: &[u32]) -> io::Result<()> {
        let mut draft = Draft::new();
        for &number in numbers {
            self.nodes.change(&mut draft, number as usize, |payload| payload.fill(0));
        }
        self.claim.hold()?;
        self.nodes.write(draft)?;
        for &number in numbers {
            self.damaged.remove(&number);
            self.free_from = self.free_from.min(number);
            if let Some(node) = self.all.remove(&number) {
                self.strike(number, &node);
            }
        }
        Ok(())
    }

    /// Removes a node and its chunks from all tables.
    pub fn forget(&mut self, number: u32) -> io::Result<()> {
        let owned = self.owned.get(&number).cloned().unwrap_or_default();
        let chunks: Vec<u32> = owned.into_iter().filter(|&chunk| chunk != 0).collect();
        self.write_owners(chunks.iter().map(|&chunk| (chunk, Owner::default())))?;
        // They are free from here on, also if the node cannot be cleared.
        self.owned.remove(&number);
        self.free.extend(chunks);
        self.clear_nodes(&[number])
    }

    /// Takes back chunks that a node does not use any more, durably.
    ///
    /// If the table cannot be written they stay the node's until its next opening: one copy of the
    /// table may have no owner for them already, and the next chunk must not get one of their
    /// indexes. After a power failure some may be free and others still the node's, all unused.
    pub fn take_back(&mut self, node: u32, chunks: &[(u32, u32)]) -> io::Result<()> {
        let owned = self.owned.get(&node).map_or(&[][..], Vec::as_slice);
        let is_owned = |(index, chunk): &(u32, u32)| owned.get(*index as usize) == Some(chunk);
        let returned: Vec<(u32, u32)> = chunks.iter().copied().filter(is_owned).collect();
        self.write_owners(returned.iter().map(|(_, chunk)| (*chunk, Owner::default())))?;
        let Some(owned) = self.owned.get_mut(&node) else { return Ok(()) };
        for (index, chunk) in returned {
            owned[index as usize] = 0;
            self.free.insert(chunk);
        }
        Ok(())
    }

    /// Returns a number for the opening of a volume, larger than those of all openings before it.
    pub fn next_session(&mut self) -> u64 {
        self.openings += 1;
        u64::from(self.superblock.session) << 32 | u64::from(self.openings)
    }

    fn write_owners(&mut self, owners: impl Iterator<Item = (u32, Owner)>) -> io::Result<()> {
        let mut draft = Draft::new();
        for (chunk, owner) in owners {
            let number = chunk as usize;
            let encode = |payload: &mut [u8]| owner.encode(number, payload);
            self.owners.change(&mut draft, sector_of(chunk), encode);
        }
        self.claim.hold()?;
        self.owners.write(draft)
    }

    /// Returns the index of a node's next chunk: the first that is free. While some owners are
    /// unknown, it is behind all indexes that the node may have.
    fn next_index(&mut self, node: u32, owned: &mut Vec<u32>) -> usize {
        if self.doubted.is_empty() || owned.is_empty() {
            return owned.iter().position(|&chunk| chunk == 0).unwrap_or(owned.len());
        }
        if self.spaced.insert(node) {
            owned.resize(owned.len() + self.doubted.len() * OWNERS, 0);
        }
        owned.len()
    }

    /// Gives a node at most `count` more chunks, durably. Returns their indexes and numbers.
    pub fn give(
        &mut self,
        device: &dyn Device,
        node: u32,
        count: usize,
    ) -> io::Result<Vec<(u32, u32)>> {
        if self.free.is_empty() {
            self.grow(device)?;
        }
        let mut owned = self.owned.get(&node).cloned().unwrap_or_default();
        let mut given = Vec::new();
        for chunk in self.free.iter().copied().take(count).collect::<Vec<_>>() {
            let index = self.next_index(node, &mut owned);
            if index >= 2 * self.chunks_max() as usize {
                break;
            }
            match owned.get_mut(index) {
                Some(place) => *place = chunk,
                None => owned.push(chunk),
            }
            given.push((index as u32, chunk));
        }
        let owner = |(index, chunk): &(u32, u32)| (*chunk, Owner { node, index: *index });
        self.write_owners(given.iter().map(owner))?;
        given.iter().for_each(|(_, chunk)| _ = self.free.remove(chunk));
        self.owned.insert(node, owned);
        Ok(given)
    }

    /// Extends the pool, up to its maximum and as far as the device allows.
    fn grow(&mut self, device: &dyn Device) -> io::Result<()> {
        let present = self.superblock.chunks;
        let most = self.chunks_max();
        let length = device.size()? / CHUNK_BYTES;
        let mut fits = if length > u64::from(present) {
            // The size of a block device is fixed.
            length.min(u64::from(most)) as u32
        } else {
            most.min(present + GROWTH_CHUNKS)
        };
        while fits > present {
            match device.grow(u64::from(fits) * CHUNK_BYTES) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    fits = present + (fits - present) / 2;
                }
                grown => {
                    grown?;
                    break;
                }
            }
        }
        if fits == present {
            return Ok(());
        }
        self.begin_owners_of(fits)?;
        let superblock = Superblock { chunks: fits, written: fits, ..self.superblock };
        self.claim.hold()?;
        super::write_superblock(device, &superblock)?;
        self.superblock = superblock;
        self.free.extend(present..fits);
        Ok(())
    }

    /// Returns the maximum number of chunks of the pool.
    pub fn chunks_max(&self) -> u32 {
        (self.superblock.owner_sectors * OWNERS as u32).min(CHUNKS_MAX)
    }

    /// Returns the snapshots of a volume's node, of all kinds, from the oldest to the newest.
    pub fn snapshots_of(&self, volume: u32) -> Vec<(u32, Node)> {
        let children = self.children_of(volume);
        let mut found: Vec<(u32, Node)> = children.filter(|(_, node)| !node.has_space()).collect();
        found.sort_by_key(|(number, node)| (node.root.checkpoint, *number));
        found
    }

    /// Returns whether a reader, or a volume that was made of it, uses a snapshot.
    pub fn is_pinned(&self, snapshot: u32) -> bool {
        self.readers.contains_key(&snapshot)
            || self.children_of(snapshot).any(|(_, node)| node.has_space())
    }

    /// Returns the nodes whose parent is this one, by their numbers.
    fn children_of(&self, parent: u32) -> impl Iterator<Item = (u32, Node)> {
        let numbers = self.children.range((parent, 0)..=(parent, u32::MAX));
        numbers.filter_map(|(_, number)| Some((*number, *self.all.get(number)?)))
    }

    /// Returns the next deleted snapshot of a volume whose blocks are to be freed.
    pub fn doomed_of(&self, volume: u32) -> Option<Doomed> {
        if self.may_have_unknown_snapshots(volume) {
            return None;
        }
        let snapshots = self.snapshots_of(volume);
        let with_root: Vec<&(u32, Node)> =
            snapshots.iter().filter(|(_, node)| node.root.checkpoint > 0).collect();
        let is_doomed = |(number, node): &(u32, Node)| {
            node.kind == NodeKind::SnapshotDeleted
                && !self.is_pinned(*number)
                && !self.is_undecided(node.set)
        };
        let begun = self.begun.get(&volume);
        let has_begun = |entry: &&(u32, Node)| Some(&entry.0) == begun && is_doomed(entry);
        let position = with_root
            .iter()
            .position(has_begun)
            .or_else(|| with_root.iter().position(|entry| is_doomed(entry)))?;
        let root = |position: usize| with_root.get(position).map(|(_, node)| node.root);
        let (number, node) = with_root[position];
        let older = position.checked_sub(1).and_then(root);
        Some(Doomed { node: *number, root: node.root, older, newer: root(position + 1) })
    }
}
