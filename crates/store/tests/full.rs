//! Histories of pools that are full for most of their life: volumes are overwritten, discarded,
//! grown, made of snapshots and deleted, the process is killed, the power fails, and single
//! operations of the disk fail. What is there can always be replaced, discarded and deleted, new
//! blocks find no space, and nothing else changes. A failure prints its seed:
//!
//! ```text
//! EVENKEEL_SEED=<n> cargo test -p evenkeel-store --test full
//! cargo x fuzz full 1000
//! ```

#![allow(clippy::unwrap_used)]

mod seeds;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::random::Random;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::disk::{Disk, DiskOp};
use evenkeel_store::local::check::check;
use evenkeel_store::local::packed::PackedDevice;
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::volume::Bounds;
use evenkeel_store::{Completion, Pool, Store, Submission};
use seeds::seeds;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = 4_096;
/// Histories of a run without `EVENKEEL_FUZZ_CASES`.
const CASES: u64 = 40;
const STEPS: u64 = 60;
const MIB_BLOCKS: u64 = 256;

/// Operations that wait, and are answered in any order.
struct Queue {
    device: PackedDevice,
    waiting: Vec<DiskOp>,
    random: Random,
}

impl Disk for Queue {
    fn submit(&mut self, op: DiskOp) {
        self.waiting.push(op);
    }
}

/// What a block holds: zeroes, or this number of a write.
type Version = u32;

struct Volume {
    blocks: u64,
    versions: Vec<Version>,
    /// What blocks may hold instead after a failure: what they held since the last flush.
    before: BTreeMap<u64, BTreeSet<Version>>,
    store: Option<Box<dyn Store>>,
    /// It has shared blocks with a snapshot since it was made or since all of them are given back.
    shares: bool,
}

struct Snapshot {
    of: VolumeId,
    versions: Vec<Version>,
}

struct World {
    seed: u64,
    random: Random,
    device: PackedDevice,
    pool: LocalPool,
    bounds: Bounds,
    volumes: BTreeMap<VolumeId, Volume>,
    snapshots: BTreeMap<SnapshotId, Snapshot>,
    next: u32,
}

/// The bytes of a block, as one word.
fn word(block: u64, version: Version) -> u64 {
    if version == 0 { 0 } else { u64::from(version) << 32 | block }
}

fn bounds(random: &mut Random) -> Bounds {
    Bounds {
        map_pages: random.among(&[4, 64, 16_384]),
        dirty_pages: random.among(&[8, 2_048]),
        log_blocks: random.among(&[20, 2_048]) as u32,
        ..Bounds::default()
    }
}

impl Queue {
    /// Answers one of the operations that wait; whether there was one.
    fn answer(&mut self, store: &mut dyn Store) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let at = self.random.below(self.waiting.len() as u64) as usize;
        let op = self.waiting.swap_remove(at);
        let done = self.device.answer(op);
        store.disk_done(done, self);
        true
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 9);
        let large = random.one_in(40) && std::env::var("EVENKEEL_FUZZ_CASES").is_ok();
        let mib = if large { 1_000 + random.below(7_000) } else { 40 + random.below(300) };
        let device = PackedDevice::new((mib + 64) << 20);
        let layout = Layout { identity: u128::from(seed), chunks_max: mib as u32, nodes: 63 };
        LocalPool::init(&device, &layout).unwrap();
        let bounds = bounds(&mut random);
        let pool = LocalPool::open(Arc::new(device.clone()), bounds).unwrap();
        let (volumes, snapshots) = (BTreeMap::new(), BTreeMap::new());
        Self { seed, random, device, pool, bounds, volumes, snapshots, next: 1 }
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\nreplay: EVENKEEL_SEED={} cargo test -p evenkeel-store --test full",
            self.seed
        )
    }

    /// A number that nothing had before.
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn run(&mut self) {
        self.make_volume();
        for _ in 0..STEPS {
            self.step();
            self.sample();
        }
        self.restart(false);
        self.prove();
    }

    fn step(&mut self) {
        let Some(id) = self.some_volume() else { return self.make_volume() };
        match self.random.below(24) {
            0..=2 => self.fill(id),
            3..=10 => self.write_some(id),
            11..=13 => self.clear_some(id),
            14 | 15 => self.snapshot(id),
            16 | 17 => self.delete_snapshot(),
            18 => self.make_clone(),
            19 => self.make_volume(),
            20 if self.random.one_in(2) => self.delete_volume(id),
            21 => self.grow(id),
            22 => self.reopen(id),
            23 => self.restart(true),
            _ => self.flush(id),
        }
    }

    fn some_volume(&mut self) -> Option<VolumeId> {
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        (!ids.is_empty()).then(|| self.random.among(&ids))
    }

    /// Carries out requests that are under way together, answered in any order.
    fn carry_out(&mut self, id: VolumeId, requests: Vec<Submission>) -> Vec<Completion> {
        let count = requests.len();
        let random = Random::new(self.random.next_u64(), 1);
        let mut queue = Queue { device: self.device.clone(), waiting: Vec::new(), random };
        let store = self.volumes.get_mut(&id).unwrap().store.as_mut().unwrap();
        let mut ended = Vec::new();
        for request in requests {
            store.submit(request, &mut queue);
        }
        loop {
            while let Some(done) = store.poll() {
                ended.push(done);
            }
            if !queue.answer(store.as_mut()) {
                break;
            }
        }
        if store.must_reopen() {
            self.fail(&format!("{id} must be opened again, and nothing has failed"));
        }
        if ended.len() != count {
            self.fail(&format!("{} of {count} requests of {id} hang", count - ended.len()));
        }
        ended
    }

    /// The store does what its pool wants of it.
    fn attend(&mut self, id: VolumeId) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        let Some(store) = volume.store.as_mut() else { return };
        let random = Random::new(self.random.next_u64(), 1);
        let mut queue = Queue { device: self.device.clone(), waiting: Vec::new(), random };
        store.attend(&mut queue);
        while queue.answer(store.as_mut()) {}
        if store.must_reopen() {
            self.fail(&format!("{id} must be opened again, and nothing has failed"));
        }
    }
}

/// Requests.
impl World {
    fn write(&mut self, ticket: u64, block: u64, count: u64, version: Version) -> Submission {
        let length = (count * BLOCK) as usize;
        let mut buffer = Buffer::new(length);
        for (at, bytes) in (block..).zip(buffer.bytes_mut()[..length].chunks_mut(BLOCK as usize)) {
            bytes.as_chunks_mut::<8>().0.fill(word(at, version).to_le_bytes());
        }
        let operation = Operation::Write { fua: self.random.one_in(20) };
        let (offset, length, buffer) = (block * BLOCK, length as u32, Some(buffer));
        Submission { ticket, operation, offset, length, buffer }
    }

    /// Whether this write must find room: it replaces blocks that the volume alone has.
    fn must_fit(&self, id: VolumeId, blocks: Range<u64>) -> bool {
        let volume = &self.volumes[&id];
        let held = &volume.versions[blocks.start as usize..blocks.end as usize];
        !volume.shares && held.iter().all(|version| *version != 0)
    }

    /// Blocks hold this from now on, and may hold what they held after a failure.
    fn note(&mut self, id: VolumeId, blocks: Range<u64>, version: Version) {
        let volume = self.volumes.get_mut(&id).unwrap();
        for block in blocks {
            let held = std::mem::replace(&mut volume.versions[block as usize], version);
            volume.before.entry(block).or_default().insert(held);
        }
    }

    /// Writes from the beginning until there is no space.
    fn fill(&mut self, id: VolumeId) {
        let (mut at, count) = (0, 64);
        while at < self.volumes[&id].blocks {
            let requests = (0..8).map(|part| at + part * count);
            let blocks = self.volumes[&id].blocks;
            let starts: Vec<u64> = requests.filter(|start| start + count <= blocks).collect();
            if starts.is_empty() || !self.write_all(id, &starts, count) {
                break;
            }
            at += 8 * count;
        }
    }

    /// Writes at several places together; whether all of them had space.
    fn write_all(&mut self, id: VolumeId, starts: &[u64], count: u64) -> bool {
        let version = self.number();
        let requests: Vec<Submission> = (0..)
            .zip(starts)
            .map(|(ticket, start)| self.write(ticket, *start, count, version))
            .collect();
        let must: Vec<bool> =
            starts.iter().map(|start| self.must_fit(id, *start..start + count)).collect();
        let mut had_space = true;
        for done in self.carry_out(id, requests) {
            let start = starts[done.ticket as usize];
            match done.result {
                Ok(()) => self.note(id, start..start + count, version),
                Err(Failure::NoSpace) if !must[done.ticket as usize] => had_space = false,
                Err(failure) => {
                    self.fail(&format!("{id}: write of {count} blocks at {start}: {failure:?}"))
                }
            }
        }
        had_space
    }

    fn write_some(&mut self, id: VolumeId) {
        for _ in 0..self.random.below(12) {
            let count = self.random.among(&[1, 1, 3, 16, 64, 256]);
            let units = self.volumes[&id].blocks / count;
            let depth = self.random.among(&[1, 4, 32]);
            let starts: BTreeSet<u64> =
                (0..depth).map(|_| self.random.below(units) * count).collect();
            self.write_all(id, &Vec::from_iter(starts), count);
        }
        if self.random.one_in(2) {
            self.flush(id);
        }
    }

    fn flush(&mut self, id: VolumeId) {
        let (operation, buffer) = (Operation::Flush, None);
        let flush = Submission { ticket: 0, operation, offset: 0, length: 0, buffer };
        let done = self.carry_out(id, vec![flush]);
        if done[0].result.is_err() {
            self.fail(&format!("{id}: a flush: {:?}", done[0].result));
        }
        self.volumes.get_mut(&id).unwrap().before.clear();
    }

    /// Discards blocks, or writes zeroes.
    fn clear_some(&mut self, id: VolumeId) {
        for _ in 0..self.random.below(8) {
            let count = self.random.among(&[1, 5, 512, 4_000]).min(self.volumes[&id].blocks);
            let start = self.random.below(self.volumes[&id].blocks - count + 1);
            let fua = self.random.one_in(4);
            let is_discard = self.random.one_in(2);
            let operation = match is_discard {
                true => Operation::Discard { fua },
                false => Operation::WriteZeroes { fua, keep_allocated: false, only_if_fast: false },
            };
            let (offset, length) = (start * BLOCK, (count * BLOCK) as u32);
            let clear = Submission { ticket: 0, operation, offset, length, buffer: None };
            let done = self.carry_out(id, vec![clear]);
            let shares = self.volumes[&id].shares;
            match done[0].result {
                Ok(()) if !(is_discard && shares) => self.note(id, start..start + count, 0),
                // A discard of blocks that a snapshot has gives nothing back, and may do nothing.
                Ok(()) => self.learn(id, start..start + count),
                // A part of it may be done.
                Err(Failure::NoSpace) if !is_discard && shares => {
                    self.learn(id, start..start + count);
                }
                Err(failure) => {
                    self.fail(&format!("{id}: {operation:?} of {count} at {start}: {failure:?}"))
                }
            }
        }
    }

    /// Blocks are what they were, or zeroes: which is looked up.
    fn learn(&mut self, id: VolumeId, blocks: Range<u64>) {
        for block in blocks {
            let held = self.volumes[&id].versions[block as usize];
            if held != 0 && self.read(id, block) == 0 {
                self.note(id, block..block + 1, 0);
            }
        }
    }

    /// The first word of a block.
    fn read(&mut self, id: VolumeId, block: u64) -> u64 {
        let (operation, buffer) = (Operation::Read, Some(Buffer::new(BLOCK as usize)));
        let (offset, length) = (block * BLOCK, BLOCK as u32);
        let read = Submission { ticket: 0, operation, offset, length, buffer };
        let done = self.carry_out(id, vec![read]).remove(0);
        if done.result.is_err() {
            self.fail(&format!("{id}: block {block}: {:?}", done.result));
        }
        u64::from_le_bytes(done.buffer.unwrap().bytes()[..8].try_into().unwrap())
    }

    /// Some blocks of some volumes and snapshots hold what they should.
    fn sample(&mut self) {
        for _ in 0..6 {
            let Some(id) = self.some_volume() else { return };
            let block = self.random.below(self.volumes[&id].blocks);
            let expected = word(block, self.volumes[&id].versions[block as usize]);
            let found = self.read(id, block);
            if found != expected {
                self.fail(&format!("{id}: block {block} is {found:#x}, not {expected:#x}"));
            }
        }
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        if !ids.is_empty() {
            let id = self.random.among(&ids);
            self.check_snapshot(id, 6);
        }
    }

    fn check_snapshot(&mut self, id: SnapshotId, samples: u64) {
        let mut reader = match self.pool.read_snapshot(id) {
            Ok(reader) => reader,
            Err(error) => self.fail(&format!("{id} cannot be read: {error}")),
        };
        for _ in 0..samples {
            let versions = &self.snapshots[&id].versions;
            let block = self.random.below(versions.len() as u64);
            let expected = word(block, versions[block as usize]);
            let found = match reader.read(block) {
                Ok(bytes) => bytes.map_or(0, |it| u64::from_le_bytes(it[..8].try_into().unwrap())),
                Err(error) => self.fail(&format!("{id} block {block}: {error}")),
            };
            if found != expected {
                self.fail(&format!("{id}: block {block} is {found:#x}, not {expected:#x}"));
            }
        }
    }
}

/// Volumes and snapshots.
impl World {
    fn make_volume(&mut self) {
        if self.volumes.len() >= 4 {
            return;
        }
        let id = VolumeId::from_bits(u128::from(self.number()));
        let space = self.pool.space().unwrap().unwrap().total.0 >> 20;
        let mib = space / self.random.among(&[1, 2, 8]) + 1;
        let size = ByteCount(mib << 20);
        self.pool.create(id, size).unwrap_or_else(|error| self.fail(&error.to_string()));
        let versions = vec![0; (mib * MIB_BLOCKS) as usize];
        self.keep(id, versions, false);
    }

    /// A volume that was just made. One that finds no chunk for its anchor goes again.
    fn keep(&mut self, id: VolumeId, versions: Vec<Version>, shares: bool) {
        let blocks = versions.len() as u64;
        match self.pool.open(id, ByteCount(blocks * BLOCK)) {
            Ok(store) => {
                let (store, before) = (Some(store), BTreeMap::new());
                self.volumes.insert(id, Volume { blocks, versions, before, store, shares });
            }
            Err(error) if error.is_no_space() => {
                self.pool.delete(id).unwrap_or_else(|error| self.fail(&error.to_string()));
            }
            Err(error) => self.fail(&format!("{id} does not open: {error}")),
        }
    }

    fn snapshot(&mut self, of: VolumeId) {
        if self.snapshots.len() >= 6 {
            return;
        }
        let id = SnapshotId::from_bits(u128::from(self.number()));
        let making = match self.pool.snapshot(of, id) {
            Ok(making) => making,
            Err(error) => self.fail(&format!("{id} of {of}: {error}")),
        };
        self.attend(of);
        if making.made.try_recv() != Ok(true) {
            self.fail(&format!("{id} of {of} is not made"));
        }
        let volume = self.volumes.get_mut(&of).unwrap();
        volume.shares = true;
        volume.before.clear();
        let versions = volume.versions.clone();
        self.snapshots.insert(id, Snapshot { of, versions });
    }

    fn delete_snapshot(&mut self) {
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = self.random.among(&ids);
        let of = self.snapshots.remove(&id).unwrap().of;
        if let Err(error) = self.pool.delete_snapshot(id) {
            self.fail(&format!("{id} cannot be deleted: {error}"));
        }
        self.attend(of);
    }

    fn make_clone(&mut self) {
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        if ids.is_empty() || self.volumes.len() >= 4 {
            return;
        }
        let snapshot = self.random.among(&ids);
        let id = VolumeId::from_bits(u128::from(self.number()));
        let versions = self.snapshots[&snapshot].versions.clone();
        let size = ByteCount(versions.len() as u64 * BLOCK);
        if let Err(error) = self.pool.create_from(id, size, snapshot) {
            self.fail(&format!("{id} of {snapshot}: {error}"));
        }
        self.keep(id, versions, true);
    }

    fn delete_volume(&mut self, id: VolumeId) {
        drop(self.volumes.remove(&id));
        if let Err(error) = self.pool.delete(id) {
            self.fail(&format!("{id} cannot be deleted: {error}"));
        }
    }

    fn grow(&mut self, id: VolumeId) {
        let volume = self.volumes.get_mut(&id).unwrap();
        let from = ByteCount(volume.blocks * BLOCK);
        let to = ByteCount(from.0 + (1 << 20));
        self.pool.resize(id, from, to).unwrap();
        volume.blocks += MIB_BLOCKS;
        volume.versions.resize(volume.blocks as usize, 0);
        volume.store.as_mut().unwrap().resized(to);
    }

    fn reopen(&mut self, id: VolumeId) {
        let volume = self.volumes.get_mut(&id).unwrap();
        drop(volume.store.take());
        volume.before.clear();
        self.open(id);
    }

    fn open(&mut self, id: VolumeId) {
        let size = ByteCount(self.volumes[&id].blocks * BLOCK);
        match self.pool.open(id, size) {
            Ok(store) => self.volumes.get_mut(&id).unwrap().store = Some(store),
            Err(error) => self.fail(&format!("{id} does not open: {error}")),
        }
    }

    /// The process is killed or stopped, or the power fails, and everything is opened again.
    fn restart(&mut self, is_killed: bool) {
        let stores: Vec<_> = self.volumes.values_mut().map(|volume| volume.store.take()).collect();
        if !is_killed {
            drop(stores);
        } else {
            // What the process had is gone, and nothing of it writes any more.
            std::mem::forget((stores, self.pool.clone()));
            self.device = match self.random.one_in(2) {
                true => self.device.copy(),
                false => self.device.crash(&mut self.random),
            };
        }
        self.bounds = bounds(&mut self.random);
        match LocalPool::open(Arc::new(self.device.clone()), self.bounds) {
            Ok(pool) => self.pool = pool,
            Err(error) => self.fail(&format!("the pool does not open: {error}")),
        }
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        for id in ids {
            self.open(id);
            self.attend(id);
            self.settle(id);
        }
    }

    /// Blocks that were not flushed are one of those that they were.
    fn settle(&mut self, id: VolumeId) {
        for (block, before) in std::mem::take(&mut self.volumes.get_mut(&id).unwrap().before) {
            let found = self.read(id, block);
            let held = self.volumes[&id].versions[block as usize];
            let mut may = before.into_iter().chain([held]);
            match may.find(|version| word(block, *version) == found) {
                Some(version) => {
                    self.volumes.get_mut(&id).unwrap().versions[block as usize] = version;
                }
                None => self.fail(&format!("{id}: block {block} is {found:#x} after a restart")),
            }
        }
    }

    /// Every block, and every reference and count of the pool.
    fn prove(&mut self) {
        for id in Vec::from_iter(self.volumes.keys().copied()) {
            for block in (0..self.volumes[&id].blocks).step_by(7) {
                let expected = word(block, self.volumes[&id].versions[block as usize]);
                let found = self.read(id, block);
                if found != expected {
                    self.fail(&format!("{id}: block {block} is {found:#x}, not {expected:#x}"));
                }
            }
        }
        for id in Vec::from_iter(self.snapshots.keys().copied()) {
            self.check_snapshot(id, 300);
        }
        self.volumes.values_mut().for_each(|volume| drop(volume.store.take()));
        let report = check(&self.device, true).unwrap();
        if report.problems_total > 0 || report.leaked > 0 {
            let problems = report.problems.join("\n  ");
            self.fail(&format!("{} blocks are lost, problems:\n  {problems}", report.leaked));
        }
    }
}

#[test]
fn histories() {
    for seed in seeds(CASES) {
        World::new(seed).run();
    }
}
