//! The bytes of superblock, nodes, owners, anchors and log blocks, as docs/internals/disk_format.md
//! describes them. This module does not read or write a device.

use super::table::{PAYLOAD_BYTES, Place, SECTOR_BYTES};
use super::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use std::fmt;

/// The format that this version writes.
pub const VERSION: u32 = 1;
/// Number of owners in one sector.
pub const OWNERS: usize = PAYLOAD_BYTES / 8 - 1;

const SUPERBLOCK_MAGIC: &[u8; 16] = b"EVENKEEL POOL\n\x1a\n";
const ANCHOR_MAGIC: &[u8; 8] = b"EVKANCHR";
/// Bytes of the superblock that are in use.
const SUPERBLOCK_BYTES: usize = 512;

const CHUNK_BYTES: usize = CHUNK_BLOCKS as usize * BLOCK_BYTES;
/// Maximum number of chunks of a pool, since the number of a block has 32 bits.
pub const CHUNKS_MAX: u32 = u32::MAX / CHUNK_BLOCKS;
/// Sectors of a node table are at most this many; no version has made more.
const NODE_SECTORS_MAX: u32 = 1 << 19;
/// Maximum number of levels of a tree above its leaves.
const HEIGHT_MAX: u32 = 6;

/// Maximum number of openings of a pool.
pub const SESSIONS_MAX: u32 = u32::MAX - 2;

/// Returns the byte offset of a chunk.
fn at(chunk: u32) -> u64 {
    u64::from(chunk) * CHUNK_BYTES as u64
}

/// Returns the number of sectors of the owner table for this number of chunks.
#[must_use]
pub fn owner_sectors(chunks: u32) -> usize {
    (chunks as usize).div_ceil(OWNERS)
}

/// Writes numbers consecutively.
struct Writer<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }
}

/// Reads numbers consecutively; behind the end it reads zeroes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        if let Some(bytes) = self.bytes.get(self.at..self.at + N) {
            value.copy_from_slice(bytes);
        }
        self.at += N;
        value
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// The layout of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Features that a reader must know.
    pub required: u64,
    /// Features that a reader may ignore.
    pub optional: u64,
    /// 128 random bits.
    pub identity: u128,
    /// Chunks at which the node table's copies begin.
    pub nodes: [u32; 2],
    /// Sectors of the node table.
    pub node_sectors: u32,
    /// Chunks at which the owner table's copies begin.
    pub owners: [u32; 2],
    /// Sectors of the owner table.
    pub owner_sectors: u32,
    /// The first chunk of volumes.
    pub first_chunk: u32,
    /// Chunks of the pool.
    pub chunks: u32,
    /// Number of openings of the pool.
    pub session: u32,
    /// Number of chunks whose owner sectors were written at least once: if one of these sectors is
    /// all zeroes, it is damaged. 0 if that is unknown, since an earlier version had the pool.
    pub written: u32,
}

/// Reason for which bytes are not a superblock that this version reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// All bytes are zero.
    Empty,
    /// They belong to another program.
    Foreign,
    /// The checksum does not match.
    Damaged,
    /// Written by another version.
    Version(u32),
    /// It needs features that this version does not have.
    Features(u64),
    /// The checksum matches, but the contents are impossible.
    Impossible(&'static str),
    /// All bytes are zero, but there are remains of a pool behind them.
    Lost,
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "is empty; make a pool in it with: evenkeel store init"),
            Self::Foreign => write!(f, "is not a pool of evenkeel's"),
            Self::Damaged => write!(
                f,
                "was a pool of evenkeel's, but both copies of its superblock are damaged; put back \
                 a copy of its first 8 KiB"
            ),
            Self::Version(found) => write!(
                f,
                "is a pool of format {found}; this version reads format {VERSION}: use the version \
                 of evenkeel that wrote it"
            ),
            Self::Impossible(what) => write!(
                f,
                "has an impossible superblock ({what}); restore a copy of its first 8 KiB"
            ),
            Self::Lost => write!(
                f,
                "was a pool of evenkeel's, but both copies of its superblock are gone; put back a \
                 copy of its first 8 KiB, or make an empty pool with: evenkeel store init --force"
            ),
            Self::Features(bits) => write!(
                f,
                "needs features that this version of evenkeel does not know (bits {bits:#x}); use \
                 the version that wrote it"
            ),
        }
    }
}

impl Superblock {
    /// Returns a value that grows with each change.
    #[must_use]
    pub const fn age(&self) -> (u32, u32) {
        (self.session, self.chunks)
    }

    /// Encodes it as a block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let mut writer = Writer { bytes: &mut bytes, at: 0 };
        writer.put(SUPERBLOCK_MAGIC).u32(0).u32(VERSION);
        writer.u64(self.required).u64(self.optional).put(&self.identity.to_le_bytes());
        writer.u32(self.nodes[0]).u32(self.nodes[1]).u32(self.node_sectors);
        writer.u32(self.owners[0]).u32(self.owners[1]).u32(self.owner_sectors);
        writer.u32(self.first_chunk).u32(self.chunks).u32(self.session).u32(self.written);
        let sum = checksum(&bytes[20..SUPERBLOCK_BYTES]);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a superblock.
    ///
    /// # Errors The reason for which this version cannot use it.
    pub fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(SuperblockError::Empty);
        }
        let mut reader = Reader { bytes, at: 0 };
        if reader.take() != *SUPERBLOCK_MAGIC {
            return Err(SuperblockError::Foreign);
        }
        let sum = reader.u32();
        if bytes.get(20..SUPERBLOCK_BYTES).map(checksum) != Some(sum) {
            return Err(SuperblockError::Damaged);
        }
        let version = reader.u32();
        if version != VERSION {
            return Err(SuperblockError::Version(version));
        }
        let superblock = Self {
            required: reader.u64(),
            optional: reader.u64(),
            identity: u128::from_le_bytes(reader.take()),
            nodes: [reader.u32(), reader.u32()],
            node_sectors: reader.u32(),
            owners: [reader.u32(), reader.u32()],
            owner_sectors: reader.u32(),
            first_chunk: reader.u32(),
            chunks: reader.u32(),
            session: reader.u32(),
            written: reader.u32(),
        };
        if superblock.required != 0 {
            return Err(SuperblockError::Features(superblock.required));
        }
        match superblock.impossible() {
            None => Ok(superblock),
            Some(what) => Err(SuperblockError::Impossible(what)),
        }
    }

    /// Returns a description of impossible contents; `None` if there are none.
    fn impossible(&self) -> Option<&'static str> {
        let Self { nodes, owners, first_chunk, chunks, .. } = *self;
        let chunks_for = |sectors: u32| sectors.div_ceil(CHUNK_BYTES as u32 / SECTOR_BYTES as u32);
        let ends = |at: u32, length: u32| at.saturating_add(length);
        let of_nodes = chunks_for(self.node_sectors);
        let of_owners = chunks_for(self.owner_sectors);
        let [a, b] = nodes;
        let [c, d] = owners;
        let apart = [(0, 1, a), (a, of_nodes, b), (b, of_nodes, c), (c, of_owners, d)];
        let apart = apart.iter().all(|(at, length, next)| ends(*at, *length) <= *next);
        if !apart || ends(d, of_owners) > first_chunk || first_chunk > chunks {
            return Some("its tables overlap");
        }
        let most = u64::from(self.owner_sectors) * OWNERS as u64;
        if u64::from(chunks) > most.min(u64::from(CHUNKS_MAX)) {
            return Some("it has more chunks than its tables have room for");
        }
        if !(2..=NODE_SECTORS_MAX).contains(&self.node_sectors) {
            return Some("its table of volumes is too small or too large");
        }
        // While the pool is open, its superblock has a number more.
        if self.session > SESSIONS_MAX + 1 {
            return Some("it was opened more often than can be counted");
        }
        (self.written > chunks).then_some("more of its tables is written than it has")
    }

    /// Returns the place of the node table.
    #[must_use]
    pub fn node_table(&self) -> Place {
        Place { copies: self.nodes.map(at), sectors: self.node_sectors as usize, written: 0 }
    }

    /// Returns the place of the owner table.
    #[must_use]
    pub fn owner_table(&self) -> Place {
        let sectors = self.chunks as usize / OWNERS + 1;
        Place { copies: self.owners.map(at), sectors, written: owner_sectors(self.written) }
    }
}

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A volume.
    Volume,
    /// A volume that is being deleted; it cannot be opened.
    Deleting,
    /// A snapshot.
    Snapshot,
    /// A snapshot that is being made. It exists once its record is in the log of its volume.
    SnapshotPending,
    /// A deleted snapshot whose blocks are still in use by volumes that were made of it, or are
    /// being freed.
    SnapshotDeleted,
    /// The rest of a deleted volume: the blocks of its snapshots.
    Husk,
    /// The node in which a snapshot of the same id is filled unit by unit. It is deleted once the
    /// snapshot is made of it.
    Filling,
}

const KINDS: [NodeKind; 7] = [
    NodeKind::Volume,
    NodeKind::Deleting,
    NodeKind::Snapshot,
    NodeKind::SnapshotPending,
    NodeKind::SnapshotDeleted,
    NodeKind::Husk,
    NodeKind::Filling,
];

/// The map of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SnapshotRoot {
    /// Root of the map.
    pub map: Pointer,
    /// Its level.
    pub height: u32,
    /// Number of the checkpoint that wrote it.
    pub checkpoint: u64,
    /// Blocks of data that it has.
    pub data_blocks: u64,
}

/// Snapshots that are made together: all of them or none. All zeroes for one that is made alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SnapshotSet {
    /// A number that no other set of the pool has.
    pub id: u64,
    /// Number of snapshots in the set.
    pub count: u32,
}

/// A volume or a snapshot in the node table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its kind.
    pub kind: NodeKind,
    /// The home chunk of a volume; 0 before it was opened for the first time.
    pub home: u32,
    /// The bits of the id of the volume or snapshot.
    pub id: u128,
    /// 64 random bits, new for each creation.
    pub generation: u64,
    /// Size in bytes.
    pub size: u64,
    /// For a snapshot, the node of its volume. For a volume, the node of the snapshot that it was
    /// made of, or 0.
    pub parent: u32,
    /// The map of a snapshot.
    pub root: SnapshotRoot,
    /// The set that the snapshot was made with.
    pub set: SnapshotSet,
    /// Whether its data is encrypted. Its wrapped key is behind these fields.
    pub is_encrypted: bool,
}

/// Impossible contents of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeError {
    /// The kind is unknown to this version.
    Kind(u8),
    /// The map has this number of levels.
    Height(u32),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "kind {kind}"),
            Self::Height(height) => write!(f, "a map of {height} levels"),
        }
    }
}

/// Offset of a node's wrapped key in the payload: its length in two bytes, then the key.
const KEY_AT: usize = 96;

/// Writes the wrapped key of a node; no key if it is empty.
pub fn encode_key(payload: &mut [u8], key: &[u8]) {
    let place = &mut payload[KEY_AT..];
    place.fill(0);
    place[..2].copy_from_slice(&(key.len() as u16).to_le_bytes());
    place[2..2 + key.len()].copy_from_slice(key);
}

/// Returns the wrapped key of a node.
#[must_use]
pub fn decode_key(payload: &[u8]) -> &[u8] {
    let place = payload.get(KEY_AT..).unwrap_or_default();
    match place.split_first_chunk() {
        Some((length, key)) => key.get(..u16::from_le_bytes(*length).into()).unwrap_or_default(),
        None => &[],
    }
}

impl Node {
    /// Creates a node without a home, a map, or a key. The parent is a node, or 0.
    #[must_use]
    pub fn new(kind: NodeKind, id: u128, size: u64, parent: u32) -> Self {
        let home = 0;
        let generation = 0;
        let is_encrypted = false;
        let root = SnapshotRoot::default();
        let set = SnapshotSet::default();
        Self { kind, home, id, generation, size, parent, root, set, is_encrypted }
    }

    /// Writes the node to the payload of its sector. The wrapped key there stays.
    pub fn encode(&self, payload: &mut [u8]) {
        payload[..KEY_AT].fill(0);
        let kind =
            KINDS.iter().position(|kind| *kind == self.kind).map_or(0, |index| index as u8 + 1);
        let mut writer = Writer { bytes: payload, at: 0 };
        // Heights are at most 6.
        writer.put(&[kind, u8::from(self.is_encrypted)]).u16(self.root.height as u16);
        writer.u32(self.home).put(&self.id.to_le_bytes());
        writer.u64(self.generation).u64(self.size);
        writer.u64(self.root.map.to_bits()).u32(self.parent).u32(self.set.count);
        writer.u64(self.root.checkpoint).u64(self.root.data_blocks).u64(self.set.id);
    }

    /// Decodes the node of a sector; `Ok(None)` if it has none.
    ///
    /// # Errors If the contents are impossible.
    pub fn decode(payload: &[u8]) -> Result<Option<Self>, NodeError> {
        let mut reader = Reader { bytes: payload, at: 0 };
        let [number, flags] = reader.take();
        if number == 0 {
            return Ok(None);
        }
        let kind = *KINDS.get(usize::from(number) - 1).ok_or(NodeError::Kind(number))?;
        let height = u32::from(reader.u16());
        let home = reader.u32();
        let id = u128::from_le_bytes(reader.take());
        let generation = reader.u64();
        let size = reader.u64();
        let map = Pointer::from_bits(reader.u64());
        let parent = reader.u32();
        let count = reader.u32();
        let checkpoint = reader.u64();
        let data_blocks = reader.u64();
        if height > HEIGHT_MAX {
            return Err(NodeError::Height(height));
        }
        let root = SnapshotRoot { map, height, checkpoint, data_blocks };
        let set = SnapshotSet { id: reader.u64(), count };
        let is_encrypted = flags & 1 == 1;
        Ok(Some(Self { kind, home, id, generation, size, parent, root, set, is_encrypted }))
    }

    /// Returns whether it has chunks of its own, with an anchor and a log.
    #[must_use]
    pub const fn has_space(&self) -> bool {
        matches!(
            self.kind,
            NodeKind::Volume | NodeKind::Deleting | NodeKind::Husk | NodeKind::Filling
        )
    }

    /// Returns whether it is a snapshot with a map.
    #[must_use]
    pub const fn has_root(&self) -> bool {
        matches!(self.kind, NodeKind::Snapshot | NodeKind::SnapshotDeleted)
    }
}

/// Owner of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Owner {
    /// The node; 0 if the chunk has no owner.
    pub node: u32,
    /// The chunk's index in the node.
    pub index: u32,
}

impl Owner {
    /// Writes the owner of a chunk to the payload of its sector.
    pub fn encode(self, chunk: usize, payload: &mut [u8]) {
        let mut writer = Writer { bytes: payload, at: chunk % OWNERS * 8 };
        writer.u32(self.node).u32(self.index);
    }

    /// Reads the owner of a chunk from the payload of its sector.
    #[must_use]
    pub fn decode(chunk: usize, payload: &[u8]) -> Self {
        let mut reader = Reader { bytes: payload, at: chunk % OWNERS * 8 };
        Self { node: reader.u32(), index: reader.u32() }
    }
}

/// Owner of a block: its node and generation are in every anchor and log block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The node.
    pub node: u32,
    /// Its generation.
    pub generation: u64,
}

/// Maximum number of snapshots that an anchor names; the records of all of them fit one log block.
pub const ANCHOR_SNAPSHOTS: usize = 240;

/// Returns whether a block is an anchor of any volume, at least in part.
#[must_use]
pub fn is_anchor(block: &[u8]) -> bool {
    block.starts_with(ANCHOR_MAGIC)
}

/// The places of a volume's trees, and of the beginning of its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The volume.
    pub identity: Identity,
    /// Number of the checkpoint, counted from 1.
    pub checkpoint: u64,
    /// Root of the map, and its level.
    pub map: (Pointer, u32),
    /// Root of the space tree, and its level.
    pub space: (Pointer, u32),
    /// The log block at which replay begins.
    pub log: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Blocks of data that the volume has.
    pub data_blocks: u64,
    /// Number of the last snapshot's checkpoint; 0 if there was none.
    pub epoch: u64,
    /// Position of the reclaim: the node of the deleted snapshot (0 is none), and the next map
    /// leaf.
    pub reclaim: (u32, u64),
    /// The session of the log block before. A block of an earlier session does not follow.
    pub session: u64,
    /// Snapshots that have this map, and that are noted in the node table next. At most
    /// [`ANCHOR_SNAPSHOTS`].
    pub snapshots: Vec<u32>,
}

impl Anchor {
    /// Returns the root of the map, for a snapshot.
    #[must_use]
    pub const fn root(&self) -> SnapshotRoot {
        let (map, height) = self.map;
        let checkpoint = self.checkpoint;
        SnapshotRoot { map, height, checkpoint, data_blocks: self.data_blocks }
    }

    /// Encodes it as a block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        let mut writer = Writer { bytes: &mut bytes, at: 0 };
        writer.put(ANCHOR_MAGIC).u32(0).u32(self.identity.node).u64(self.identity.generation);
        writer.u64(self.checkpoint).u64(self.map.0.to_bits()).u64(self.space.0.to_bits());
        // Heights are at most 6.
        writer.u16(self.map.1 as u16).u16(self.space.1 as u16);
        writer.u32(self.log).u64(self.sequence).u64(self.data_blocks);
        writer.u64(self.epoch).u32(self.reclaim.0).u32(self.snapshots.len() as u32);
        writer.u64(self.reclaim.1).u64(self.session);
        self.snapshots.iter().for_each(|&node| _ = writer.u32(node));
        let sum = checksum(&bytes[12..]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns the newest valid copy of the anchor in a volume's first blocks; `None` if no copy is
    /// valid.
    #[must_use]
    pub fn newest(copies: &[u8], identity: Identity) -> Option<Self> {
        let anchors = copies.chunks(BLOCK_BYTES).filter_map(|copy| Self::decode(copy, identity));
        anchors.max_by_key(|anchor| anchor.checkpoint)
    }

    /// Decodes a block, if it is an anchor of this volume.
    #[must_use]
    pub fn decode(bytes: &[u8], identity: Identity) -> Option<Self> {
        let mut reader = Reader { bytes, at: 0 };
        let magic: [u8; 8] = reader.take();
        let sum = reader.u32();
        if magic != *ANCHOR_MAGIC || checksum(bytes.get(12..)?) != sum {
            return None;
        }
        let found = Identity { node: reader.u32(), generation: reader.u64() };
        let checkpoint = reader.u64();
        let map = reader.u64();
        let space = reader.u64();
        let map_height = u32::from(reader.u16());
        let space_height = u32::from(reader.u16());
        let mut anchor = Self {
            identity,
            checkpoint,
            map: (Pointer::from_bits(map), map_height),
            space: (Pointer::from_bits(space), space_height),
            log: reader.u32(),
            sequence: reader.u64(),
            data_blocks: reader.u64(),
            epoch: reader.u64(),
            reclaim: (reader.u32(), 0),
            session: 0,
            snapshots: vec![0; (reader.u32() as usize).min(ANCHOR_SNAPSHOTS)],
        };
        (anchor.reclaim.1, anchor.session) = (reader.u64(), reader.u64());
        anchor.snapshots.fill_with(|| reader.u32());
        // Impossible numbers are not accepted, whatever the checksum.
        let is_possible = map_height.max(space_height) <= HEIGHT_MAX
            && anchor.checkpoint > 0
            && anchor.sequence > 0
            && anchor.log >= CHUNK_BLOCKS;
        (found == identity && is_possible).then_some(anchor)
    }
}

/// Bytes of a log block before its records.
pub const LOG_HEADER_BYTES: usize = 48;
/// Offset at which a log block names the chunk that follows its own.
const FOLLOWING_AT: usize = BLOCK_BYTES - 4;
/// Bytes of records that a log block has room for.
pub const LOG_RECORDS_BYTES: usize = FOLLOWING_AT - LOG_HEADER_BYTES;

/// Header of a log block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHead {
    /// The volume.
    pub identity: Identity,
    /// Its sequence number.
    pub sequence: u64,
    /// Sequence number up to which the log was flushed when the block was written.
    pub durable: u64,
    /// Place of the next log block.
    pub next: u32,
    /// Bytes of records.
    pub used: u32,
    /// Session that wrote it. A block of an earlier session does not follow it.
    pub session: u64,
    /// The chunk that the log enters after that of the next block; 0 if that is not known yet.
    pub following: u32,
}

impl LogHead {
    /// Writes it around the records of a block: before them, and in the last four bytes.
    pub fn encode(&self, block: &mut [u8]) {
        if self.used as usize <= LOG_RECORDS_BYTES {
            block[FOLLOWING_AT..BLOCK_BYTES].copy_from_slice(&self.following.to_le_bytes());
        }
        let mut writer = Writer { bytes: block, at: 4 };
        writer.u32(self.identity.node).u64(self.identity.generation);
        writer.u64(self.sequence).u64(self.durable).u32(self.next).u32(self.used).u64(self.session);
        let sum = checksum(&block[4..BLOCK_BYTES]);
        block[..4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Decodes the header of a block, if it is a log block of this volume.
    #[must_use]
    pub fn decode(block: &[u8], identity: Identity) -> Option<Self> {
        let mut reader = Reader { bytes: block, at: 0 };
        let sum = reader.u32();
        let found = Identity { node: reader.u32(), generation: reader.u64() };
        let head = Self {
            identity,
            sequence: reader.u64(),
            durable: reader.u64(),
            next: reader.u32(),
            used: reader.u32(),
            session: reader.u64(),
            following: 0,
        };
        let is_ours = found == identity && checksum(block.get(4..BLOCK_BYTES)?) == sum;
        if !is_ours || head.used as usize > BLOCK_BYTES - LOG_HEADER_BYTES {
            return None;
        }
        // Earlier versions used these bytes for records if there were enough of them.
        let has_following = head.used as usize <= LOG_RECORDS_BYTES;
        let mut last = Reader { bytes: block, at: FOLLOWING_AT };
        let following = if has_following { last.u32() } else { 0 };
        Some(Self { following, ..head })
    }
}

/// A change of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Consecutive blocks of the volume are in consecutive blocks of the pool.
    Map {
        /// The first block of the volume.
        first: u64,
        /// The first block of the pool.
        block: u32,
        /// The checksum of each.
        checksums: Vec<u32>,
    },
    /// Blocks of the volume are holes.
    Unmap {
        /// The first.
        first: u64,
        /// Number of blocks.
        count: u32,
    },
    /// A snapshot of the volume's state at this place. The last record of its log block.
    Snapshot {
        /// Its node.
        node: u32,
    },
}

const MAP: u8 = 1;
const UNMAP: u8 = 2;
const SNAPSHOT: u8 = 3;
/// Bytes of a record without checksums.
const RECORD_BYTES: usize = 16;

/// Maximum number of blocks of one map record: as many as fit a log block.
pub const RECORD_BLOCKS_MAX: usize = (LOG_RECORDS_BYTES - RECORD_BYTES) / 4;

impl Record {
    /// Returns its length in the log, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Map { checksums, .. } => RECORD_BYTES + 4 * checksums.len(),
            Self::Unmap { .. } | Self::Snapshot { .. } => RECORD_BYTES,
        }
    }

    /// Appends it to the records of a block, which must have room for it.
    pub fn encode(&self, records: &mut Vec<u8>) {
        match self {
            Self::Map { first, block, checksums } => {
                records.extend([MAP, 0]);
                // At most `RECORD_BLOCKS_MAX`.
                records.extend((checksums.len() as u16).to_le_bytes());
                records.extend(first.to_le_bytes());
                records.extend(block.to_le_bytes());
                records.extend(checksums.iter().flat_map(|sum| sum.to_le_bytes()));
            }
            Self::Unmap { first, count } => {
                records.extend([UNMAP, 0, 0, 0]);
                records.extend(first.to_le_bytes());
                records.extend(count.to_le_bytes());
            }
            Self::Snapshot { node } => {
                records.extend([SNAPSHOT, 0, 0, 0]);
                records.extend(0_u64.to_le_bytes());
                records.extend(node.to_le_bytes());
            }
        }
    }

    /// Decodes all records of a block.
    ///
    /// # Errors
    /// If there is an unknown record among them.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Self>, UnknownRecord> {
        let mut records = Vec::new();
        while !bytes.is_empty() {
            let mut reader = Reader { bytes, at: 0 };
            let [kind, _] = reader.take();
            let count = reader.u16();
            let first = reader.u64();
            let last = reader.u32();
            let length = RECORD_BYTES + if kind == MAP { 4 * usize::from(count) } else { 0 };
            if length > bytes.len() {
                return Err(UnknownRecord);
            }
            records.push(match kind {
                MAP => {
                    let checksums = (0..count).map(|_| reader.u32()).collect();
                    Self::Map { first, block: last, checksums }
                }
                UNMAP => Self::Unmap { first, count: last },
                SNAPSHOT => Self::Snapshot { node: last },
                _ => return Err(UnknownRecord),
            });
            bytes = &bytes[length..];
        }
        Ok(records)
    }
}

/// Error for a log block with a record that is unknown to this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownRecord;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDENTITY: Identity = Identity { node: 7, generation: 0x0123_4567_89ab_cdef };

    fn superblock() -> Superblock {
        Superblock {
            required: 0,
            optional: 5,
            identity: 0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00,
            nodes: [1, 9],
            node_sectors: 16_384,
            owners: [17, 18],
            owner_sectors: 2_048,
            first_chunk: 19,
            chunks: 4_096,
            session: 17,
            written: 4_095,
        }
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written_or_refused() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        assert_eq!(Superblock::decode(&[0; BLOCK_BYTES]), Err(SuperblockError::Empty));
        let changed = |at: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[at] = value;
            Superblock::decode(&changed)
        };
        assert_eq!(changed(3, b'X'), Err(SuperblockError::Foreign));
        assert_eq!(changed(60, 99), Err(SuperblockError::Damaged));
        let newer = Superblock { required: 1 << 40, ..superblock() };
        assert_eq!(Superblock::decode(&newer.encode()), Err(SuperblockError::Features(1 << 40)));
    }

    #[test]
    fn impossible_superblock_is_refused_despite_a_right_checksum() {
        let right = superblock();
        let overlap = "its tables overlap";
        let nodes = "its table of volumes is too small or too large";
        for (wrong, why) in [
            (Superblock { nodes: [0, 9], ..right }, overlap),
            (Superblock { nodes: [1, 8], ..right }, overlap),
            (Superblock { nodes: [1, u32::MAX], ..right }, overlap),
            (Superblock { owners: [16, 18], ..right }, overlap),
            (Superblock { owners: [17, 17], ..right }, overlap),
            (Superblock { first_chunk: 18, ..right }, overlap),
            (Superblock { chunks: 18, written: 0, ..right }, overlap),
            (Superblock { owner_sectors: u32::MAX, ..right }, overlap),
            (Superblock { node_sectors: 1, ..right }, nodes),
            (Superblock { written: 4_097, ..right }, "more of its tables is written than it has"),
        ] {
            let why = Err(SuperblockError::Impossible(why));
            assert_eq!(Superblock::decode(&wrong.encode()), why, "{wrong:?}");
        }
        let chunks = Superblock { chunks: 62 * 2_048 + 1, ..right };
        let why = "it has more chunks than its tables have room for";
        assert_eq!(Superblock::decode(&chunks.encode()), Err(SuperblockError::Impossible(why)));
        let large = Superblock { node_sectors: u32::MAX, first_chunk: u32::MAX, ..right };
        Superblock::decode(&large.encode()).unwrap_err();
    }

    /// Format 1, byte for byte: these bytes must stay readable.
    #[test]
    fn the_bytes_are_those_of_format_1() {
        let pointer = |block, checksum| Pointer { block, checksum };
        let anchor = Anchor {
            identity: IDENTITY,
            checkpoint: 3,
            map: (pointer(0x300, 0xaabb_ccdd), 2),
            space: (pointer(0x301, 0x1122_3344), 0),
            log: 0x402,
            sequence: 99,
            data_blocks: 1_234,
            epoch: 2,
            reclaim: (8, 77),
            session: 0x0001_0000_0002,
            snapshots: vec![5, 6],
        };
        let bytes = anchor.encode();
        assert_eq!(
            hex(&bytes[..112]),
            "45564b414e434852c2f84ab707000000efcdab89674523010300000000000000\
             00030000ddccbbaa010300004433221102000000020400006300000000000000\
             d204000000000000020000000000000008000000020000004d000000000000000200000001000000\
             0500000006000000"
        );
        assert_eq!(Anchor::decode(&bytes, IDENTITY), Some(anchor));
        let foreign = Identity { generation: 1, ..IDENTITY };
        assert_eq!(Anchor::decode(&bytes, foreign), None);
        let node = Node {
            kind: NodeKind::Deleting,
            home: 0x55,
            id: 0xabc,
            generation: 0x1234,
            size: 1 << 30,
            parent: 9,
            root: SnapshotRoot {
                map: pointer(0x17, 0x99),
                height: 2,
                checkpoint: 5,
                data_blocks: 6,
            },
            set: SnapshotSet::default(),
            is_encrypted: true,
        };
        let mut payload = [0; PAYLOAD_BYTES];
        encode_key(&mut payload, b"wrapped");
        node.encode(&mut payload);
        assert_eq!(
            hex(&payload[..72]),
            "0201020055000000bc0a00000000000000000000000000003412000000000000\
             0000004000000000170000009900000009000000000000000500000000000000\
             0600000000000000"
        );
        assert_eq!(Node::decode(&payload), Ok(Some(node)));
        let set = SnapshotSet { id: 0x0102_0304_0506_0708, count: 3 };
        let of_set = Node { set, ..node };
        of_set.encode(&mut payload);
        assert_eq!(hex(&payload[52..56]), "03000000");
        assert_eq!(hex(&payload[72..96]), format!("{:0<48}", "0807060504030201"));
        assert_eq!(Node::decode(&payload), Ok(Some(of_set)));
        assert_eq!(hex(&payload[96..112]), "0700777261707065640000000000000000"[..32]);
        assert_eq!(decode_key(&payload), b"wrapped");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn records() -> impl Strategy<Value = Vec<Record>> {
        let map = (any::<u64>(), any::<u32>(), prop::collection::vec(any::<u32>(), 1..70))
            .prop_map(|(first, block, checksums)| Record::Map { first, block, checksums });
        let unmap =
            (any::<u64>(), any::<u32>()).prop_map(|(first, count)| Record::Unmap { first, count });
        let snapshot = any::<u32>().prop_map(|node| Record::Snapshot { node });
        prop::collection::vec(prop_oneof![map, unmap, snapshot], 0..12)
    }

    proptest! {
        #[test]
        fn log_blocks_are_read_as_they_were_written(
            records in records(),
            numbers: (u64, u64, u64),
            next: u32,
            flip in 0_usize..4_096,
        ) {
            let mut bytes = Vec::new();
            for record in &records {
                let before = bytes.len();
                record.encode(&mut bytes);
                prop_assert_eq!(bytes.len() - before, record.bytes());
            }
            let used = bytes.len() as u32;
            let mut block = vec![0; LOG_HEADER_BYTES];
            block.extend(&bytes);
            block.resize(BLOCK_BYTES, 0);
            let (sequence, durable, session) = numbers;
            let following = if used as usize > LOG_RECORDS_BYTES { 0 } else { next / 3 };
            let identity = IDENTITY;
            let head = LogHead { identity, sequence, durable, next, used, session, following };
            head.encode(&mut block);
            prop_assert_eq!(LogHead::decode(&block, IDENTITY), Some(head));
            prop_assert_eq!(Record::decode_all(&bytes), Ok(records));
            block[flip] ^= 0x10;
            prop_assert_eq!(LogHead::decode(&block, IDENTITY), None);
        }

        #[test]
        fn any_bytes_are_records_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode_all(&bytes);
        }
    }
}
