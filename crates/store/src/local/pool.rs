//! The pool: which volumes there are, and who owns which chunk. Everything here is rare, and may
//! block.

use super::device::Device;
use super::format::{Identity, Node, NodeKind, OWNERS, Owner, Superblock};
use super::table::{PAYLOAD_BYTES, SECTOR_BYTES, Table};
use super::volume::recover::{Opening, found};
use super::volume::{Bounds, Chunks, NoChunk, Volume};
use super::{BLOCK_BYTES, CHUNK_BLOCKS};
use crate::disk::{Disk, DiskDone};
use crate::{Completion, Geometry, Pool, Space, Store, StoreError, Submission};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = CHUNK_BLOCKS as u64 * BLOCK_BYTES as u64;
/// Volumes and snapshots that a pool may have.
const NODES: u32 = 16_384;
/// A pool in a file is made longer by so many chunks.
const GROWTH_CHUNKS: u32 = 64;
/// Volumes that may ask at a time; one that comes later waits for its answer.
const ASKS_MAX: usize = 1_024;

/// How a new pool is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// 128 random bits.
    pub identity: u128,
    /// The chunks that it may grow to have.
    pub chunks_max: u32,
    /// Volumes that it may have.
    pub nodes: u32,
}

impl Layout {
    /// A pool of at most so many bytes.
    #[must_use]
    pub fn for_bytes(identity: u128, bytes: u64) -> Self {
        let chunks = (bytes / CHUNK_BYTES).min(u64::from(u32::MAX / CHUNK_BLOCKS));
        Self { identity, chunks_max: chunks as u32, nodes: NODES }
    }

    fn superblock(&self) -> Superblock {
        let chunks_for =
            |sectors: u32| (sectors * SECTOR_BYTES as u32).div_ceil(CHUNK_BYTES as u32);
        let node_sectors = self.nodes + 1;
        let owner_sectors = self.chunks_max.div_ceil(OWNERS as u32);
        let (node_chunks, owner_chunks) = (chunks_for(node_sectors), chunks_for(owner_sectors));
        let nodes = [1, 1 + node_chunks];
        let owners = [nodes[1] + node_chunks, nodes[1] + node_chunks + owner_chunks];
        let first_chunk = owners[1] + owner_chunks;
        Superblock {
            required: 0,
            optional: 0,
            identity: self.identity,
            nodes,
            node_sectors,
            owners,
            owner_sectors,
            first_chunk,
            chunks: first_chunk,
        }
    }
}

/// What the pool knows, all of it also on the device.
#[derive(Debug)]
struct State {
    superblock: Superblock,
    nodes: Table,
    owners: Table,
    volumes: BTreeMap<VolumeId, (u32, Node)>,
    /// Chunks of each node, by their indexes.
    owned: BTreeMap<u32, Vec<u32>>,
    free: BTreeSet<u32>,
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    bounds: Bounds,
    /// Held while the tables are written.
    state: Mutex<State>,
    /// Volumes that are open. Held for a moment only: reactors take it.
    open: Mutex<BTreeSet<VolumeId>>,
}

/// Volumes in one device or file. See docs/internals/disk_format.md.
#[derive(Clone, Debug)]
pub struct LocalPool {
    shared: Arc<Shared>,
    clerk: Option<SyncSender<Ask>>,
}

fn sector_of(chunk: u32) -> usize {
    chunk as usize / OWNERS
}

impl LocalPool {
    /// Makes an empty pool in a device that holds nothing.
    ///
    /// # Errors
    /// When the device holds something, is too small, or fails.
    pub fn init(device: &dyn Device, layout: &Layout) -> Result<(), StoreError> {
        let path = || device.path().to_owned();
        let failed =
            |e: io::Error| StoreError::io(format!("make a pool in {}", path().display()), e);
        let mut first = vec![0; CHUNK_BYTES as usize];
        device.read(0, &mut first).map_err(failed)?;
        if let Some(at) = first.iter().position(|&byte| byte != 0) {
            let found = format!("byte {at} is {:#04x}", first[at]);
            return Err(StoreError::NotEmpty { path: path(), found });
        }
        let superblock = layout.superblock();
        if layout.chunks_max <= superblock.first_chunk {
            let found = format!(
                "{} for {} of its own tables",
                ByteCount(u64::from(layout.chunks_max) * CHUNK_BYTES),
                ByteCount(u64::from(superblock.first_chunk) * CHUNK_BYTES)
            );
            let error = io::Error::new(io::ErrorKind::StorageFull, found);
            return Err(StoreError::io(format!("make a pool in {}", path().display()), error));
        }
        device.grow(u64::from(superblock.first_chunk) * CHUNK_BYTES).map_err(failed)?;
        // The tables may lie where something was; the superblock comes last, so that a pool that
        // was not made whole is none.
        let zeroes = vec![0; CHUNK_BYTES as usize];
        for chunk in 1..superblock.first_chunk {
            device.write(u64::from(chunk) * CHUNK_BYTES, &zeroes).map_err(failed)?;
        }
        device.sync().map_err(failed)?;
        write_superblock(device, &superblock).map_err(failed)
    }

    /// Opens a pool; what a crash left half deleted is deleted.
    ///
    /// # Errors
    /// When the device holds no pool, one of another format, or a damaged one, or fails.
    pub fn open(device: Arc<dyn Device>, bounds: Bounds) -> Result<Self, StoreError> {
        let path = device.path().to_owned();
        let failed = |doing: &str| {
            let doing = format!("{doing} {}", path.display());
            move |error: io::Error| StoreError::io(doing, error)
        };
        let mut blocks = vec![0; 2 * BLOCK_BYTES];
        device.read(0, &mut blocks).map_err(failed("read"))?;
        let mut copies = blocks.chunks(BLOCK_BYTES).map(Superblock::decode);
        let (first, second) = (copies.next(), copies.next());
        let superblock = match (first, second) {
            // Growing writes one after the other: the larger one counts.
            (Some(Ok(a)), Some(Ok(b))) if b.identity == a.identity && b.chunks > a.chunks => b,
            (Some(Ok(superblock)), _) | (Some(Err(_)), Some(Ok(superblock))) => superblock,
            (Some(Err(error)), _) => {
                return Err(StoreError::NotPool { path, why: error.to_string() });
            }
            (None, _) => unreachable!("two blocks were read"),
        };
        let table = |name: &str, chunks: [u32; 2], sectors: usize| {
            let at = chunks.map(|chunk| u64::from(chunk) * CHUNK_BYTES);
            let read = Table::read(Arc::clone(&device), at, sectors);
            let (table, damaged) = read.map_err(failed(&format!("read the {name} of")))?;
            match damaged.first() {
                None => Ok(table),
                Some(first) => Err(StoreError::Rotten {
                    what: format!("sector {} of the {name} of {}", first.sector, path.display()),
                }),
            }
        };
        let nodes = table("table of volumes", superblock.nodes, superblock.node_sectors as usize)?;
        let owner_sectors = sector_of(superblock.chunks) + 1;
        let owners = table("table of chunks", superblock.owners, owner_sectors)?;
        let (volumes, owned) = (BTreeMap::new(), BTreeMap::new());
        let mut state = State { superblock, nodes, owners, volumes, owned, free: BTreeSet::new() };
        state.index().map_err(|kind| StoreError::NotPool {
            path: path.clone(),
            why: format!("holds a volume of kind {kind}, which this version does not know"),
        })?;
        let (state, open) = (Mutex::new(state), Mutex::default());
        let pool = Self { shared: Arc::new(Shared { device, bounds, state, open }), clerk: None };
        pool.finish_deletions()?;
        Ok(pool)
    }

    /// From now on a thread answers what volumes ask the pool. Without it, a volume that needs a
    /// chunk waits for the flushes that make it the volume's.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn with_clerk(mut self) -> Result<Self, StoreError> {
        let (clerk, asks) = sync_channel(ASKS_MAX);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("evenkeel-pool".to_owned());
        thread
            .spawn(move || answer_all(&shared, &asks))
            .map_err(|error| StoreError::io("start the thread of the pool", error))?;
        self.clerk = Some(clerk);
        Ok(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    fn io(&self, doing: String) -> impl FnOnce(io::Error) -> StoreError {
        let path = self.shared.device.path().to_owned();
        move |error| StoreError::io(format!("{doing} in {}", path.display()), error)
    }

    fn finish_deletions(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let deleting: Vec<VolumeId> = state
            .volumes
            .iter()
            .filter(|(_, (_, node))| node.kind == NodeKind::Deleting)
            .map(|(id, _)| *id)
            .collect();
        for id in deleting {
            state.forget(id).map_err(self.io(format!("finish the deletion of {id}")))?;
        }
        Ok(())
    }

    /// A volume that is there.
    fn find(&self, state: &State, id: VolumeId) -> Result<(u32, Node), StoreError> {
        match state.volumes.get(&id) {
            Some(&(number, node)) if node.kind == NodeKind::Volume => Ok((number, node)),
            _ => {
                let path = Some(self.shared.device.path().to_owned());
                Err(StoreError::NotFound { id, path })
            }
        }
    }

    fn place_home(&self, number: u32, node: Node) -> Result<(Node, Vec<u32>), StoreError> {
        let doing = || format!("give {} its first chunk", node.id);
        if node.home != 0 {
            return Ok((node, self.state().owned.get(&number).cloned().unwrap_or_default()));
        }
        let has_chunk = self.state().owned.get(&number).is_some_and(|owned| !owned.is_empty());
        if !has_chunk {
            let given = self.shared.acquire(number, 1).map_err(self.io(doing()))?;
            if given.is_empty() {
                return Err(self.io(doing())(io::ErrorKind::StorageFull.into()));
            }
        }
        let owned = self.state().owned.get(&number).cloned().unwrap_or_default();
        let node = Node { home: owned[0], ..node };
        let identity = Identity { node: number, generation: node.generation };
        found(self.shared.device.as_ref(), identity, node.home, ByteCount(node.size))
            .and_then(|()| self.state().write_node(number, node))
            .map_err(self.io(doing()))?;
        Ok((node, owned))
    }
}

fn write_superblock(device: &dyn Device, superblock: &Superblock) -> io::Result<()> {
    let block = superblock.encode();
    for copy in 0..2 {
        device.write(copy * BLOCK_BYTES as u64, &block)?;
        device.sync()?;
    }
    Ok(())
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<VolumeId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::acquire`]; none if that fails. What of it has become durable is found when the
    /// pool is opened.
    fn give(&self, node: u32, count: usize) -> Vec<(u32, u32)> {
        self.acquire(node, count).unwrap_or_else(|error| {
            tracing::error!(%error, pool = %self.device.path().display(), "no chunk can be given");
            Vec::new()
        })
    }

    /// Gives a node up to so many more chunks, durably: their indexes and numbers.
    fn acquire(&self, node: u32, count: usize) -> io::Result<Vec<(u32, u32)>> {
        let mut state = self.state();
        if state.free.is_empty() {
            state.grow(self.device.as_ref())?;
        }
        let mut given = Vec::new();
        let mut sectors = BTreeSet::new();
        for _ in 0..count {
            let Some(chunk) = state.free.pop_first() else { break };
            let owned = state.owned.entry(node).or_default();
            let index = owned.iter().position(|&chunk| chunk == 0).unwrap_or(owned.len());
            match owned.get_mut(index) {
                Some(place) => *place = chunk,
                None => owned.push(chunk),
            }
            let owner = Owner { node, index: index as u32 };
            state.set_owner(chunk, owner);
            sectors.insert(sector_of(chunk));
            given.push((index as u32, chunk));
        }
        state.owners.write(&Vec::from_iter(sectors))?;
        Ok(given)
    }
}

impl State {
    /// Finds the volumes, and what is free.
    fn index(&mut self) -> Result<(), u8> {
        for number in 1..self.superblock.node_sectors {
            let Some(payload) = self.nodes.get(number as usize) else { break };
            if let Some(node) = Node::decode(payload)? {
                self.volumes.insert(node.id, (number, node));
            }
        }
        let known: BTreeSet<u32> = self.volumes.values().map(|(number, _)| *number).collect();
        for chunk in self.superblock.first_chunk..self.superblock.chunks {
            let payload = self.owners.get(sector_of(chunk)).unwrap_or(&[0; PAYLOAD_BYTES]);
            let owner = Owner::decode(chunk as usize, payload);
            if owner.node == 0 || !known.contains(&owner.node) {
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
        Ok(())
    }

    fn set_owner(&mut self, chunk: u32, owner: Owner) {
        self.owners.change(sector_of(chunk), |payload| owner.encode(chunk as usize, payload));
    }

    /// Makes the pool longer, if it may be and the device lets it.
    fn grow(&mut self, device: &dyn Device) -> io::Result<()> {
        let present = self.superblock.chunks;
        let most = self.superblock.owner_sectors * OWNERS as u32;
        let fits = match device.size()? / CHUNK_BYTES {
            // A block device is as long as it is.
            length if length > u64::from(present) => length.min(u64::from(most)) as u32,
            _ => most.min(present + GROWTH_CHUNKS),
        };
        if fits <= present {
            return Ok(());
        }
        match device.grow(u64::from(fits) * CHUNK_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            grown => grown?,
        }
        let superblock = Superblock { chunks: fits, ..self.superblock };
        write_superblock(device, &superblock)?;
        self.superblock = superblock;
        self.free.extend(present..fits);
        Ok(())
    }

    fn write_node(&mut self, number: u32, node: Node) -> io::Result<()> {
        self.nodes.change(number as usize, |payload| node.encode(payload));
        self.nodes.write(&[number as usize])?;
        self.volumes.insert(node.id, (number, node));
        Ok(())
    }

    /// Takes a volume that is being deleted out of all tables.
    fn forget(&mut self, id: VolumeId) -> io::Result<()> {
        let Some(&(number, _)) = self.volumes.get(&id) else { return Ok(()) };
        let chunks: Vec<u32> = self
            .owned
            .get(&number)
            .map(|owned| owned.iter().copied().filter(|&chunk| chunk != 0).collect())
            .unwrap_or_default();
        for &chunk in &chunks {
            self.set_owner(chunk, Owner::default());
        }
        self.owners.write(&chunks.iter().map(|&chunk| sector_of(chunk)).collect::<Vec<_>>())?;
        self.nodes.change(number as usize, |payload| payload.fill(0));
        self.nodes.write(&[number as usize])?;
        self.owned.remove(&number);
        self.free.extend(chunks);
        self.volumes.remove(&id);
        Ok(())
    }
}

/// Asks for chunks, and the thread that answers: a reactor does not wait for the flushes that make
/// an owner durable.
#[derive(Debug)]
struct Ask {
    node: u32,
    count: usize,
    answer: Arc<Answer>,
}

/// What comes of an [`Ask`].
#[derive(Debug)]
struct Answer {
    chunks: Mutex<Option<Vec<(u32, u32)>>>,
    /// Readable when it is there.
    ready: OwnedFd,
}

/// Answers what volumes ask, until none of them is left.
fn answer_all(shared: &Shared, asks: &Receiver<Ask>) {
    for Ask { node, count, answer } in asks {
        let given = shared.give(node, count);
        *answer.chunks.lock().unwrap_or_else(PoisonError::into_inner) = Some(given);
        // It cannot be full: it is written to once.
        let _ = rustix::io::write(&answer.ready, &1_u64.to_ne_bytes());
    }
}

/// Chunks for one volume.
struct PoolChunks {
    shared: Arc<Shared>,
    node: u32,
    /// Who answers; without it, asking waits for the answer.
    clerk: Option<SyncSender<Ask>>,
    answer: Option<Arc<Answer>>,
    given: Vec<(u32, u32)>,
}

impl PoolChunks {
    /// Asks the clerk.
    fn send(&mut self, count: usize) -> Option<RawFd> {
        let clerk = self.clerk.as_ref()?;
        let ready = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        let answer = Arc::new(Answer { chunks: Mutex::default(), ready });
        let ask = Ask { node: self.node, count, answer: Arc::clone(&answer) };
        clerk.try_send(ask).ok()?;
        Some(self.answer.insert(answer).ready.as_raw_fd())
    }
}

impl Chunks for PoolChunks {
    fn ask(&mut self, count: usize) -> Option<RawFd> {
        let sent = self.send(count);
        if sent.is_none() {
            self.given = self.shared.give(self.node, count);
        }
        sent
    }

    fn answer(&mut self) -> Result<Vec<(u32, u32)>, NoChunk> {
        let answer = self.answer.take();
        let answered = answer
            .and_then(|answer| answer.chunks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let given = answered.unwrap_or_else(|| std::mem::take(&mut self.given));
        if given.is_empty() { Err(NoChunk) } else { Ok(given) }
    }
}

/// A volume of the pool, which counts as open while this lives.
struct OpenVolume {
    volume: Volume,
    id: VolumeId,
    shared: Arc<Shared>,
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        if self.volume.is_idle() && !self.volume.is_closed() {
            self.volume.close_now();
        }
        self.shared.open().remove(&self.id);
    }
}

impl Store for OpenVolume {
    fn geometry(&self) -> Geometry {
        self.volume.geometry()
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        self.volume.submit(submission, disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        self.volume.disk_done(done, disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.volume.poll()
    }

    fn writes_zeroes(&self, operation: Operation) -> bool {
        self.volume.writes_zeroes(operation)
    }

    fn resized(&mut self, size: ByteCount) {
        self.volume.resized(size);
    }

    fn is_idle(&self) -> bool {
        self.volume.is_idle()
    }

    fn close(&mut self, disk: &mut dyn Disk) {
        self.volume.close(disk);
    }

    fn must_reopen(&self) -> bool {
        self.volume.must_reopen()
    }
}

impl Pool for LocalPool {
    fn describe(&self) -> String {
        format!("checksummed blocks in {}", self.shared.device.path().display())
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        let mut state = self.state();
        match state.volumes.get(&id) {
            Some((_, node)) if node.kind == NodeKind::Deleting => {
                state.forget(id).map_err(self.io(format!("finish the deletion of {id}")))?;
            }
            Some((_, node)) if node.size == size.0 => return Ok(()),
            Some((_, node)) => {
                return Err(StoreError::Size { id, present: ByteCount(node.size), asked: size });
            }
            None => {}
        }
        let used: BTreeSet<u32> = state.volumes.values().map(|(number, _)| *number).collect();
        let free = (1..state.superblock.node_sectors).find(|number| !used.contains(number));
        let doing = format!("make {id}");
        let Some(number) = free else {
            return Err(self.io(doing)(io::ErrorKind::StorageFull.into()));
        };
        // No other volume of this number has had it, in this pool or one that was here before.
        let version = u64::from(state.nodes.version(number as usize));
        let generation = (state.superblock.identity as u64).wrapping_add(version);
        let node = Node { kind: NodeKind::Volume, home: 0, id, generation, size: size.0 };
        state.write_node(number, node).map_err(self.io(doing))
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let (number, node) = self.find(&self.state(), id)?;
        if node.size != size.0 {
            let present = ByteCount(node.size);
            return Err(StoreError::Differs { id, path: None, present, expected: size });
        }
        if !self.shared.open().insert(id) {
            return Err(StoreError::Open { id });
        }
        let opened = self.place_home(number, node).and_then(|(node, owned)| {
            let shared = Arc::clone(&self.shared);
            let clerk = self.clerk.clone();
            let (answer, given) = (None, Vec::new());
            let chunks = PoolChunks { shared, node: number, clerk, answer, given };
            Volume::open(Opening {
                device: Arc::clone(&self.shared.device),
                identity: Identity { node: number, generation: node.generation },
                home: node.home,
                owned,
                size,
                chunks: Box::new(chunks),
                bounds: self.shared.bounds,
                name: id.to_string(),
            })
        });
        match opened {
            Ok(volume) => Ok(Box::new(OpenVolume { volume, id, shared: Arc::clone(&self.shared) })),
            Err(error) => {
                self.shared.open().remove(&id);
                Err(error)
            }
        }
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        if to < from {
            return Err(StoreError::Size { id, present: from, asked: to });
        }
        let mut state = self.state();
        let (number, node) = self.find(&state, id)?;
        if node.size == to.0 {
            return Ok(());
        }
        if node.size != from.0 {
            let present = ByteCount(node.size);
            return Err(StoreError::Differs { id, path: None, present, expected: from });
        }
        let grown = Node { size: to.0, ..node };
        state.write_node(number, grown).map_err(self.io(format!("grow {id} to {to}")))
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        let mut state = self.state();
        if self.shared.open().contains(&id) {
            return Err(StoreError::Open { id });
        }
        let Some(&(number, node)) = state.volumes.get(&id) else { return Ok(()) };
        if node.kind == NodeKind::Volume {
            let deleting = Node { kind: NodeKind::Deleting, ..node };
            state.write_node(number, deleting).map_err(self.io(format!("delete {id}")))?;
        }
        state.forget(id).map_err(|source| StoreError::Unfinished {
            id,
            doing: format!("clear {}", self.shared.device.path().display()),
            source,
        })
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        let state = self.state();
        let is_volume = |(_, (_, node)): &(&VolumeId, &(u32, Node))| node.kind == NodeKind::Volume;
        let volumes = state.volumes.iter().filter(is_volume);
        Ok(volumes.map(|(id, (_, node))| (*id, ByteCount(node.size))).collect())
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        let state = self.state();
        let most = state.superblock.owner_sectors * OWNERS as u32;
        let to_come = u64::from(most.saturating_sub(state.superblock.chunks));
        let chunks = u64::from(most.saturating_sub(state.superblock.first_chunk));
        // An eighth is for pages, logs, and blocks that wait to be used again.
        let bytes = |chunks: u64| ByteCount(chunks * CHUNK_BYTES / 8 * 7);
        let free = bytes(state.free.len() as u64 + to_come);
        Ok(Some(Space { total: bytes(chunks), free }))
    }
}
