//! The pool: its volumes, and the owners of its chunks. Calls here are rare, and may block.

mod claim;
mod open;
mod scrub;
mod sets;
mod snapshot_io;
pub mod snapshots;
mod snapshots_trait;
mod state;
mod unfinished;

use self::claim::Claim;
use self::open::{Ask, Closed, OpenVolume, PoolTables, answer_all};
use self::snapshot_io::Desk;
use self::state::State;
pub use self::unfinished::Trouble;
use super::ack_log::Answered;
use super::device::{Device, read_readable};
use super::discovery::{WIPED, WIPED_AT, content_at_end, find_superblock, remains};
use super::format::{Anchor, Identity, Node, NodeKind, OWNERS, Superblock};
use super::page_cache_file::Lasting;
use super::table::{Damaged, Place, SECTOR_BYTES, Table};
use super::volume::recover::{FIRST_CHECKPOINT, Opening, found};
use super::volume::{Bounds, Task, Volume};
use super::{BLOCK_BYTES, CHUNK_BLOCKS};
use crate::encryption::NO_KEY;
use crate::encryption::crypt::{Cipher, DataKey};
use crate::encryption::keys::Keys;
use crate::flush_marks::FlushMarks;
use crate::folder::Folder;
use crate::snapshots::Snapshots;
use crate::{Looked, Pool, PoolHealth, Salvaged, Space, Store, StoreError};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = CHUNK_BLOCKS as u64 * BLOCK_BYTES as u64;
/// Bytes of a pool for each volume or snapshot that its table has room for, within the two bounds.
const NODE_BYTES: u64 = 4 << 20;
const NODES_MIN: u64 = 4_096;
/// The maximum that one control plane may have of volumes and snapshots together.
const NODES_MAX: u64 = 3 * 131_072;
/// Chunks by which a pool in a file is extended.
const GROWTH_CHUNKS: u32 = 64;
/// Maximum number of queued requests of volumes. A request that finds the queue full is answered in
/// its own thread.
const ASKS_MAX: usize = 1_024;
/// Minimum number of chunks of a volume: its home, all of which is log at first, and one for the
/// pages of its first checkpoint.
pub(in crate::local) const CHUNKS_MIN: usize = 2;

/// Sizes of a new pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// 128 random bits.
    pub identity: u128,
    /// Maximum number of chunks of the pool.
    pub chunks_max: u32,
    /// Maximum number of volumes and snapshots.
    pub nodes: u32,
}

impl Layout {
    /// Returns the layout of a pool of at most `bytes`.
    #[must_use]
    pub fn for_bytes(identity: u128, bytes: u64) -> Self {
        let chunks = (bytes / CHUNK_BYTES).min(u64::from(u32::MAX / CHUNK_BLOCKS));
        let nodes = (bytes / NODE_BYTES).clamp(NODES_MIN, NODES_MAX) as u32;
        Self { identity, chunks_max: chunks as u32, nodes }
    }

    fn superblock(&self) -> Superblock {
        let chunks_for =
            |sectors: u32| (sectors * SECTOR_BYTES as u32).div_ceil(CHUNK_BYTES as u32);
        let node_sectors = self.nodes + 1;
        let owner_sectors = self.chunks_max.div_ceil(OWNERS as u32);
        let node_chunks = chunks_for(node_sectors);
        let owner_chunks = chunks_for(owner_sectors);
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
            session: 0,
            written: 0,
        }
    }
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    bounds: Bounds,
    /// Directory for the volumes' logs of answered changes.
    lasting: Option<Arc<dyn Lasting>>,
    /// Keys that unwrap the keys of encrypted volumes.
    keys: OnceLock<Keys>,
    /// Checks whether the pool is still this server's.
    claim: Arc<Claim>,
    /// Number of damaged copies of superblock, tables and anchors that were rewritten.
    mended: AtomicU64,
    /// Volumes that were salvaged and lost something.
    salvaged: AtomicU64,
    /// Sectors of both tables that are damaged in both copies.
    damaged_sectors: u64,
    /// Error of the last request for chunks; `None` if it succeeded.
    failure: Mutex<Option<String>>,
    /// Held while the tables are written.
    state: Mutex<State>,
    /// Nodes of the volumes that are open. Held only briefly, since reactors take it.
    open: Mutex<BTreeSet<u32>>,
    /// Held only briefly, likewise.
    mail: Mutex<Mail>,
    /// Figures of volumes that were opened, by their nodes.
    known: Mutex<BTreeMap<u32, Arc<Known>>>,
    /// Work that cannot be finished of volumes that are not open, by their nodes.
    troubles: Mutex<BTreeMap<u32, Trouble>>,
}

/// Figures that an open volume reports.
#[derive(Debug, Default)]
struct Known {
    /// Blocks of data of the volume.
    data_blocks: AtomicU64,
    /// Its log was flushed up to this sequence number.
    durable: AtomicU64,
}

/// Messages between the pool and its open volumes.
#[derive(Debug, Default)]
struct Mail {
    /// Tasks for each volume, by its node.
    tasks: BTreeMap<u32, VecDeque<Task>>,
    /// Snapshots that are being made, by their nodes: the node of the volume, and the sender of the
    /// result to the caller that waits.
    waiting: BTreeMap<u32, (u32, SyncSender<bool>)>,
    /// Volumes that have a reclaim task, or are executing one.
    reclaiming: BTreeSet<u32>,
}

impl Mail {
    /// Removes snapshots that are no longer wanted.
    fn take_back(&mut self, snapshots: &[(u32, Node)]) {
        for (number, node) in snapshots {
            self.waiting.remove(number);
            if let Some(tasks) = self.tasks.get_mut(&node.parent) {
                tasks.retain(|task| *task != Task::Snapshot(*number));
            }
        }
    }
}

/// Volumes in one device or file. See docs/internals/disk_format.md.
#[derive(Clone, Debug)]
pub struct LocalPool {
    shared: Arc<Shared>,
    clerk: Option<SyncSender<Ask>>,
    desk: Arc<Desk>,
    /// The data folder, locked.
    folder: Option<Arc<Folder>>,
}

impl LocalPool {
    /// Creates an empty pool in a device that holds nothing.
    ///
    /// # Errors
    /// When the device holds something, is too small, or fails.
    pub fn init(device: &dyn Device, layout: &Layout) -> Result<(), StoreError> {
        let path = || device.path().to_owned();
        let failed =
            |e: io::Error| StoreError::io(format!("make a pool in {}", path().display()), e);
        let mut first = vec![0; CHUNK_BYTES as usize];
        device.read(0, &mut first).map_err(failed)?;
        let note = &mut first[WIPED_AT..WIPED_AT + WIPED.len()];
        let is_wiped = note == WIPED;
        if is_wiped {
            note.fill(0);
        }
        if let Some(at) = first.iter().position(|&byte| byte != 0) {
            let found = format!("byte {at} is {:#04x}", first[at]);
            return Err(StoreError::NotEmpty { path: path(), found });
        }
        // A pool whose superblock is gone is not empty.
        if !is_wiped && let Some(found) = remains(device).map_err(failed)? {
            return Err(StoreError::NotEmpty { path: path(), found });
        }
        if !is_wiped && let Some(found) = content_at_end(device).map_err(failed)? {
            return Err(StoreError::NotEmpty { path: path(), found });
        }
        let superblock = layout.superblock();
        refuse_without_room(device, layout, &superblock).map_err(failed)?;
        let is_new = device.size().map_err(failed)? == 0;
        device.grow(u64::from(superblock.first_chunk) * CHUNK_BYTES).map_err(failed)?;
        // The tables may lie where other data was. The superblock is written last, so that an
        // incomplete pool is not taken for one.
        let zeroes = vec![0; CHUNK_BYTES as usize];
        for chunk in (1..superblock.first_chunk).filter(|_| !is_new) {
            device.write(u64::from(chunk) * CHUNK_BYTES, &zeroes).map_err(failed)?;
        }
        device.sync().map_err(failed)?;
        // The mark that the device may be overwritten is removed before there is a pool.
        device.write(0, &first).and_then(|()| device.sync()).map_err(failed)?;
        write_superblock(device, &superblock).map_err(failed)
    }

    /// Opens a pool, and finishes deletions that a crash interrupted.
    ///
    /// # Errors
    /// When the device holds no pool, one of another format, or a damaged one, or fails.
    pub fn open(device: Arc<dyn Device>, bounds: Bounds) -> Result<Self, StoreError> {
        Self::open_noting(device, bounds, None)
    }

    /// Opens a pool as [`Self::open`]. Volumes note answered changes in files that outlive the
    /// process, so that none is lost when the process is killed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_noting(
        device: Arc<dyn Device>,
        bounds: Bounds,
        lasting: Option<Arc<dyn Lasting>>,
    ) -> Result<Self, StoreError> {
        let path = device.path().to_owned();
        let failed = |doing: &str| {
            let doing = format!("{doing} {}", path.display());
            move |error: io::Error| StoreError::io(doing, error)
        };
        let (superblock, lost) = find_superblock(device.as_ref())?;
        // Written before anything else: the session number distinguishes the log blocks of this
        // session from those of earlier ones.
        let superblock = Superblock { session: superblock.session + 1, ..superblock };
        write_superblock(device.as_ref(), &superblock)
            .map_err(failed("write the superblock of"))?;
        let read = |name: &str, place: Place| {
            let read = Table::read(Arc::clone(&device), place);
            read.map_err(failed(&format!("read the {name} of")))
        };
        let (nodes, damaged_nodes, lost_nodes) = read("table of volumes", superblock.node_table())?;
        for Damaged { sector } in &damaged_nodes {
            tracing::error!(
                pool = %path.display(),
                "sector {sector} of the table of volumes is damaged: the volume or snapshot in it \
                 is not served, and its space is given to no other one; all others are served"
            );
        }
        let (owners, damaged, lost_owners) = read("table of chunks", superblock.owner_table())?;
        for Damaged { sector } in &damaged {
            tracing::error!(
                pool = %path.display(),
                "sector {sector} of the table of chunks is damaged: its chunks are not allocated"
            );
        }
        let mended = [("superblock", lost), ("volumes", lost_nodes), ("chunks", lost_owners)];
        tell_of_lost_copies(&path, &mended);
        let claim = Arc::new(Claim::new(Arc::clone(&device), &superblock));
        let state = State::new(superblock, nodes, owners, Arc::clone(&claim));
        let mut state = state.map_err(|why| StoreError::NotPool {
            path: path.clone(),
            why: format!("holds a node that this version does not know ({why})"),
        })?;
        if let Err(error) = state.begin_owners(device.as_ref()) {
            tracing::warn!(%error, pool = %path.display(), "the table of chunks is not complete");
        }
        let mended = AtomicU64::new(mended.iter().map(|(_, lost)| *lost as u64).sum());
        let state = Mutex::new(state);
        let shared = Shared {
            device,
            bounds,
            lasting,
            keys: OnceLock::new(),
            claim,
            mended,
            salvaged: AtomicU64::new(0),
            damaged_sectors: (damaged_nodes.len() + damaged.len()) as u64,
            failure: Mutex::default(),
            state,
            open: Mutex::default(),
            mail: Mutex::default(),
            known: Mutex::default(),
            troubles: Mutex::default(),
        };
        let pool = Self::without_clerk(Arc::new(shared));
        pool.finish();
        Ok(pool)
    }

    /// Creates a handle of the pool that answers volumes in the caller's thread.
    fn without_clerk(shared: Arc<Shared>) -> Self {
        Self { shared, clerk: None, desk: Arc::default(), folder: None }
    }

    /// Starts a thread that answers the volumes' requests to the pool. Without it, a volume that
    /// needs a chunk waits for the flushes that make it the volume's.
    ///
    /// # Errors
    /// If no thread can be started.
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

    /// Adds the keys with which volumes are encrypted, and encrypted volumes are opened.
    #[must_use]
    pub fn with_keys(self, keys: Keys) -> Self {
        // Keys that were added before stay.
        let _ = self.shared.keys.set(keys);
        self
    }

    /// Creates the wrapped key of a new volume.
    fn new_key(&self, id: VolumeId) -> Result<Vec<u8>, StoreError> {
        let locked = |why: String| StoreError::Locked { id, why };
        let Some(keys) = self.shared.keys.get() else {
            return Err(locked(NO_KEY.to_owned()));
        };
        let key = DataKey::random().map_err(|error| locked(error.to_string()))?;
        keys.wrap(&key).map_err(|error| locked(error.to_string()))
    }

    /// Keeps the data folder locked as long as this pool is open.
    #[must_use]
    pub fn holding(self, folder: Folder) -> Self {
        Self { folder: Some(Arc::new(folder)), ..self }
    }

    /// Returns the marks of failed flushes, if a data folder keeps them.
    fn flush_marks(&self) -> Option<FlushMarks> {
        self.folder.as_deref().map(|folder| FlushMarks::new(folder.path()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    fn io(&self, doing: String) -> impl FnOnce(io::Error) -> StoreError {
        let path = self.shared.device.path().to_owned();
        move |error| StoreError::io(format!("{doing} in {}", path.display()), error)
    }

    /// Finds a volume by its id.
    fn find(&self, state: &State, id: VolumeId) -> Result<(u32, Node), StoreError> {
        match state.volume(id) {
            Some((number, node)) if node.kind == NodeKind::Volume => Ok((number, node)),
            None if !state.unknown.is_empty() => Err(self.may_be_damaged(state, &id.to_string())),
            _ => {
                let path = Some(self.shared.device.path().to_owned());
                Err(StoreError::NotFound { id, path })
            }
        }
    }

    /// Returns the error for an object that is not found while a sector of the table of volumes is
    /// damaged.
    fn may_be_damaged(&self, state: &State, id: &str) -> StoreError {
        let sectors: Vec<String> = state.unknown.iter().take(10).map(u32::to_string).collect();
        let sectors = sectors.join(", ");
        let path = self.shared.device.path().display();
        let what =
            format!("sector {sectors} of the table of volumes of {path}, which may have {id},");
        StoreError::Rotten { what }
    }

    /// Creates the node of an empty volume, with the wrapped key of its data. The key is empty if
    /// the volume is not encrypted.
    fn create_with(
        &self,
        id: VolumeId,
        size: ByteCount,
        key: impl FnOnce() -> Result<Vec<u8>, StoreError>,
    ) -> Result<(), StoreError> {
        let present = self.state().volume(id);
        match present {
            Some((number, node)) if node.kind == NodeKind::Deleting => {
                self.finish_deletion(number, node)?;
            }
            Some((_, node)) if node.size == size.0 => return Ok(()),
            Some((_, node)) => {
                return Err(StoreError::Size { id, present: ByteCount(node.size), asked: size });
            }
            None => {}
        }
        let key = key()?;
        self.make_volume(&mut self.state(), id, size, 0, &key)
    }

    /// Creates the node of a volume. `parent` is the node of the snapshot that it is made of, or 0.
    fn make_volume(
        &self,
        state: &mut State,
        id: VolumeId,
        size: ByteCount,
        parent: u32,
        key: &[u8],
    ) -> Result<(), StoreError> {
        let node = Node::new(NodeKind::Volume, id.bits(), size.0, parent);
        let doing = || format!("make {id}");
        let made = state.make_node(node, key).map_err(self.io(doing()))?;
        made.map(drop).ok_or_else(|| self.io(doing())(state.table_is_full()))
    }

    /// Opens the volume of a node that is already recorded as open. Without a cipher its data is
    /// not read or written; it can only change its owner.
    fn open_node(
        &self,
        number: u32,
        node: Node,
        closed: Closed,
        cipher: Option<Cipher>,
    ) -> Result<OpenVolume, StoreError> {
        let volume = Volume::open(self.opening(number, node, cipher)?)?;
        self.shared.mended.fetch_add(volume.damage().anchors, Ordering::Relaxed);
        self.opened(number, volume, closed)
    }

    /// Returns the parameters for opening the volume of a node.
    fn opening(
        &self,
        number: u32,
        node: Node,
        cipher: Option<Cipher>,
    ) -> Result<Opening, StoreError> {
        let opening = format!("open node {number}");
        self.shared.claim.hold().map_err(self.io(opening))?;
        if let Some(what) = self.state().damaged.get(&number) {
            let what = format!("{what} in {}", self.shared.device.path().display());
            return Err(StoreError::Rotten { what });
        }
        let (node, owned) = self.place_home(number, node)?;
        let shared = Arc::clone(&self.shared);
        let session = self.state().next_session();
        let identity = Identity { node: number, generation: node.generation };
        let name = VolumeId::from_bits(node.id).to_string();
        let doing = || format!("read what {name} has answered");
        let answered = shared.answered(identity).map_err(|e| StoreError::io(doing(), e))?;
        Ok(Opening {
            device: Arc::clone(&self.shared.device),
            identity,
            home: node.home,
            owned,
            size: ByteCount(node.size),
            tables: Box::new(PoolTables::new(shared, number, self.clerk.clone())),
            bounds: self.shared.bounds,
            session,
            cipher,
            answered,
            name,
        })
    }

    /// Records the figures of a volume that was opened, and the reclaim that it has begun.
    fn opened(
        &self,
        number: u32,
        volume: Volume,
        closed: Closed,
    ) -> Result<OpenVolume, StoreError> {
        let known = Arc::clone(self.shared.known().entry(number).or_default());
        known.data_blocks.store(volume.data_blocks(), Ordering::Relaxed);
        self.strike_unmade(number)?;
        let mut state = self.state();
        match volume.reclaim_begun() {
            Some(node) => state.begun.insert(number, node),
            None => state.begun.remove(&number),
        };
        self.shared.ask_reclaim_anew(&state, number);
        drop(state);
        Ok(OpenVolume::new(volume, closed))
    }

    /// Salvages the volume of a node that is already recorded as open, and closes it.
    fn salvage_node(
        &self,
        number: u32,
        node: Node,
        closed: Closed,
        cipher: Option<Cipher>,
    ) -> Result<Salvaged, StoreError> {
        let (volume, salvaged) = Volume::salvage(self.opening(number, node, cipher)?)?;
        drop(self.opened(number, volume, closed)?);
        let id = VolumeId::from_bits(node.id);
        if salvaged != Salvaged::default() {
            self.shared.salvaged.fetch_add(1, Ordering::Relaxed);
        }
        let Salvaged { log_blocks, map_pages, lost_blocks, unreachable_blocks } = salvaged;
        tracing::warn!(
            volume = %id, log_blocks, map_pages, lost_blocks, unreachable_blocks,
            "a damaged volume was salvaged: changes of the damaged log blocks are lost, and what \
             lies under damaged pages of the map cannot be read"
        );
        Ok(salvaged)
    }

    /// Removes snapshots that the log of their volume does not have and for which no caller waits:
    /// they were never made.
    fn strike_unmade(&self, volume: u32) -> Result<(), StoreError> {
        let mut state = self.state();
        for (number, node) in state.snapshots_of(volume) {
            let is_wanted = self.shared.mail().waiting.contains_key(&number);
            if node.root.checkpoint == 0 && !is_wanted {
                let doing = format!("strike out node {number}, which was never made");
                state.clear_nodes(&[number]).map_err(self.io(doing))?;
                self.shared.settle_set(&mut state, node.set);
            }
        }
        Ok(())
    }

    fn place_home(&self, number: u32, node: Node) -> Result<(Node, Vec<u32>), StoreError> {
        let doing = || format!("give {} its first chunks", VolumeId::from_bits(node.id));
        let owned = || self.state().owned.get(&number).cloned().unwrap_or_default();
        // Earlier versions gave a volume only its home.
        let owned_now = owned().iter().filter(|chunk| **chunk != 0).count();
        let mut lacks = CHUNKS_MIN.saturating_sub(owned_now);
        while lacks > 0 {
            let given = self.shared.acquire(number, lacks).map_err(self.io(doing()))?.len();
            if given == 0 {
                break;
            }
            lacks = lacks.saturating_sub(given);
        }
        let owned = owned();
        if node.home != 0 {
            return Ok((node, owned));
        }
        if lacks > 0 {
            return Err(self.io(doing())(io::ErrorKind::StorageFull.into()));
        }
        let root = self.state().all.get(&node.parent).map(|parent| parent.root);
        if node.parent != 0 && root.is_none() {
            let what = format!("the snapshot that {} begins from", VolumeId::from_bits(node.id));
            return Err(StoreError::Rotten { what });
        }
        let node = Node { home: owned[0], ..node };
        let identity = Identity { node: number, generation: node.generation };
        let root = root.unwrap_or_default();
        self.refuse_used_home(&node, identity)?;
        found(self.shared.device.as_ref(), identity, node.home, ByteCount(node.size), root)
            .and_then(|()| self.state().write_nodes([(number, node)]))
            .map_err(self.io(doing()))?;
        Ok((node, owned))
    }
}

/// Returns an error if a device has no room for a chunk behind the tables of a new pool.
fn refuse_without_room(
    device: &dyn Device,
    layout: &Layout,
    superblock: &Superblock,
) -> io::Result<()> {
    // The tables of a layout have room for a device that grows later.
    let size = device.size()?.saturating_add(device.room()?);
    let size = size.min(u64::from(layout.chunks_max) * CHUNK_BYTES);
    let tables = u64::from(superblock.first_chunk) * CHUNK_BYTES;
    if size >= tables + CHUNK_BYTES {
        return Ok(());
    }
    let text = format!(
        "no storage space: it has {}, and a pool needs {} for its tables and {} for data; name a \
         larger device",
        ByteCount(size),
        ByteCount(tables),
        ByteCount(CHUNK_BYTES)
    );
    Err(io::Error::new(io::ErrorKind::StorageFull, text))
}

/// Logs how many sectors had a lost copy, by the names of their tables.
fn tell_of_lost_copies(pool: &Path, mended: &[(&str, usize)]) {
    for (name, lost) in mended.iter().filter(|(_, lost)| *lost > 0) {
        tracing::warn!(
            pool = %pool.display(),
            "{lost} sectors of one copy of the table of {name} were not as they were written, and \
             are written anew from the other copy: the device loses data"
        );
    }
}

impl LocalPool {
    /// Returns an error if the home of a node whose home was not recorded before has the anchor of
    /// a volume that was used: the node is damaged, and the volume must not begin anew there.
    fn refuse_used_home(&self, node: &Node, identity: Identity) -> Result<(), StoreError> {
        let mut copies = vec![0; 2 * BLOCK_BYTES];
        let start = u64::from(node.home) * CHUNK_BYTES;
        let id = VolumeId::from_bits(node.id);
        read_readable(self.shared.device.as_ref(), start, &mut copies)
            .map_err(self.io(format!("look at the first chunk of {id}")))?;
        let anchor = Anchor::newest(&copies, identity);
        if anchor.is_some_and(|anchor| anchor.checkpoint > FIRST_CHECKPOINT) {
            Err(StoreError::Rotten { what: format!("the node of {id}") })
        } else {
            Ok(())
        }
    }
}

fn write_superblock(device: &dyn Device, superblock: &Superblock) -> io::Result<()> {
    let block = superblock.encode();
    let write = |copy: u64| {
        device.write(copy * BLOCK_BYTES as u64, &block)?;
        device.sync()
    };
    match (write(0), write(1)) {
        (Err(error), Err(_)) => Err(error),
        (Err(error), Ok(())) | (Ok(()), Err(error)) => {
            let path = device.path().display();
            tracing::warn!(%error, device = %path, "a copy of the superblock cannot be written");
            Ok(())
        }
        (Ok(()), Ok(())) => Ok(()),
    }
}

impl Shared {
    /// Opens the log of answered changes of a volume.
    fn answered(&self, identity: Identity) -> io::Result<Option<Answered>> {
        let new = |lasting| Answered::new(lasting, identity, self.bounds.answered_bytes);
        self.lasting.clone().map(new).transpose()
    }

    /// Removes a node from all tables.
    fn forget(&self, state: &mut State, node: u32) -> io::Result<()> {
        state.forget(node)?;
        self.known().remove(&node);
        if let Some(lasting) = &self.lasting {
            lasting.forget(node);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cipher of a node's data; `None` if the node is not encrypted.
    fn cipher(
        &self,
        state: &State,
        number: u32,
        node: &Node,
    ) -> Result<Option<Cipher>, StoreError> {
        if !node.is_encrypted {
            return Ok(None);
        }
        let locked = |why: String| StoreError::Locked { id: VolumeId::from_bits(node.id), why };
        let Some(keys) = self.keys.get() else {
            return Err(locked(NO_KEY.to_owned()));
        };
        let key = keys.unwrap(state.key_of(number)).map_err(|error| locked(error.to_string()))?;
        Ok(Some(Cipher::new(&key)))
    }

    /// Gives a node at most `count` more chunks, durably. Returns their indexes and numbers; none
    /// if that fails. An opening of the pool finds the part that has become durable.
    fn give(&self, node: u32, count: usize) -> Vec<(u32, u32)> {
        let given = self.acquire(node, count);
        let failure = given.as_ref().err().map(ToString::to_string);
        let mut last = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        // Volumes repeat their requests; the same error is logged once.
        if let Some(error) = failure.as_ref().filter(|_| *last != failure) {
            tracing::error!(%error, pool = %self.device.path().display(), "no chunk can be given");
        }
        *last = failure;
        given.unwrap_or_default()
    }

    fn acquire(&self, node: u32, count: usize) -> io::Result<Vec<(u32, u32)>> {
        self.state().give(self.device.as_ref(), node, count)
    }
}

impl Pool for LocalPool {
    fn describe(&self) -> String {
        format!("checksummed blocks in {}", self.shared.device.path().display())
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.create_with(id, size, || Ok(Vec::new()))
    }

    fn create_encrypted(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.create_with(id, size, || self.new_key(id))
    }

    fn is_encrypted(&self, id: VolumeId) -> bool {
        self.state().volume(id).is_some_and(|(_, node)| node.is_encrypted)
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let (number, node) = self.find(&self.state(), id)?;
        if node.size != size.0 {
            let present = ByteCount(node.size);
            return Err(StoreError::Differs { id, present, expected: size });
        }
        let closed = Closed::claim(&self.shared, number).ok_or(StoreError::Open { id })?;
        let cipher = self.shared.cipher(&self.state(), number, &node)?;
        Ok(Box::new(self.open_node(number, node, closed, cipher)?))
    }

    fn salvage(&self, id: VolumeId) -> Result<Salvaged, StoreError> {
        let (number, node) = self.find(&self.state(), id)?;
        let closed = Closed::claim(&self.shared, number).ok_or(StoreError::Open { id })?;
        let cipher = self.shared.cipher(&self.state(), number, &node)?;
        self.salvage_node(number, node, closed, cipher)
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
            return Err(StoreError::Differs { id, present, expected: from });
        }
        let grown = Node { size: to.0, ..node };
        state.write_nodes([(number, grown)]).map_err(self.io(format!("grow {id} to {to}")))
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        let (number, node) = {
            let mut state = self.state();
            let Some((number, node)) = state.volume(id) else { return Ok(()) };
            if self.shared.open().contains(&number) {
                return Err(StoreError::Open { id });
            }
            let deleting = Node { kind: NodeKind::Deleting, ..node };
            if node.kind == NodeKind::Volume {
                let written = state.write_nodes([(number, deleting)]);
                written.map_err(self.io(format!("delete {id}")))?;
            }
            (number, deleting)
        };
        self.finish_deletion(number, node).map_err(|error| match error {
            StoreError::Io { doing, source } => StoreError::Unfinished { id, doing, source },
            error => error,
        })?;
        self.try_again();
        Ok(())
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        let state = self.state();
        let nodes = state.volumes.iter().filter_map(|(id, number)| {
            let node = state.all.get(number)?;
            (node.kind == NodeKind::Volume).then_some((*id, ByteCount(node.size)))
        });
        Ok(nodes.collect())
    }

    fn filled(&self, id: VolumeId) -> Option<ByteCount> {
        let (number, node) = self.find(&self.state(), id).ok()?;
        let known = self.shared.known().get(&number).cloned();
        match known.map(|known| known.data_blocks.load(Ordering::Relaxed)) {
            Some(blocks) => Some(ByteCount(blocks * BLOCK_BYTES as u64)),
            // It has not been opened yet: its size is the maximum.
            None => Some(ByteCount(node.size)),
        }
    }

    fn look_at(&self, place: u64) -> Result<Looked, StoreError> {
        self.look_at_place(place)
    }

    fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        let found = self.state().volume(id);
        Ok(found.is_some_and(|(_, node)| node.kind == NodeKind::Volume))
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        let state = self.state();
        let doing = || "look at the space".to_owned();
        let device = self.shared.device.as_ref();
        // A block device has all of its space from the beginning, including space that is not
        // divided into chunks yet.
        let size = device.size().and_then(|size| Ok(size.saturating_add(device.room()?)));
        let fits = size.map_err(self.io(doing()))? / CHUNK_BYTES;
        let fits = fits.min(u64::from(state.chunks_max()));
        let to_come = fits.saturating_sub(u64::from(state.superblock.chunks));
        let present = u64::from(state.superblock.chunks - state.superblock.first_chunk);
        // An eighth is for pages, logs, and blocks that are not reusable yet.
        let bytes = |chunks: u64| ByteCount(chunks * CHUNK_BYTES / 8 * 7);
        let free = bytes(state.free.len() as u64 + to_come);
        Ok(Some(Space { total: bytes(present + to_come), free }))
    }

    fn health(&self) -> PoolHealth {
        let troubles = self.troubles();
        let without_space = troubles.iter().filter(|trouble| trouble.is_no_space).count();
        PoolHealth {
            copies_mended: self.shared.mended.load(Ordering::Relaxed),
            volumes_salvaged: self.shared.salvaged.load(Ordering::Relaxed),
            unfinished: (troubles.len() - without_space) as u64,
            without_space: without_space as u64,
            damaged_sectors: self.shared.damaged_sectors,
        }
    }

    fn note_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.flush_marks().map_or(Ok(()), |marks| marks.note(id))
    }

    fn has_failed_flush(&self, id: VolumeId) -> Result<bool, StoreError> {
        self.flush_marks().map_or(Ok(false), |marks| marks.has(id))
    }

    fn forget_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.flush_marks().map_or(Ok(()), |marks| marks.forget(id))
    }

    fn is_taken_over(&self) -> bool {
        self.shared.claim.is_lost()
    }

    fn look(&self) -> Result<(), StoreError> {
        self.shared.claim.hold().map_err(self.io("look for another server".to_owned()))
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }
}
