//! Random histories of volumes, snapshots and volumes made of snapshots on a simulated disk whose
//! power fails at any write. A failure prints its seed:
//!
//! ```text
//! EVENKEEL_SEED=<n> cargo test -p evenkeel-store --test snapshot_crashes
//! cargo x fuzz crashes 10000
//! ```

#![allow(clippy::unwrap_used)]

mod seeds;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::disk::{Disk, DiskDone};
use evenkeel_store::local::check::check;
use evenkeel_store::local::device::Device;
use evenkeel_store::local::pool::snapshots::UNIT_BLOCKS;
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::simulated::{SimulatedDevice, SimulatedLasting, SimulatedQueue};
use evenkeel_store::local::volume::Bounds;
use evenkeel_store::snapshots::Units;
use evenkeel_store::{Completion, Pool, Store, StoreError, Submission};
use seeds::seeds;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const BLOCK: u64 = 4_096;
/// Number of histories of a plain run.
const CASES: u64 = 60;
/// Power failures in one history, and in a dense one.
const CRASHES: u32 = 5;
const CRASHES_DENSE: u32 = 15;
/// Maximum size of the disk in bytes.
const CAPACITY: u64 = 260 << 20;

/// Byte offset of the first volume's anchor in a pool of this layout.
const HOME: u64 = 5 << 20;

/// Contents of a block: zeroes, or a pattern of this number.
type Version = u64;

/// Contents of a volume or a snapshot; missing blocks are zero.
type Content = BTreeMap<u64, Version>;

struct Volume {
    id: VolumeId,
    size: ByteCount,
    /// The answered changes.
    content: Content,
    /// Other possible versions of each block after a crash, since they are not flushed yet.
    unsure: BTreeMap<u64, BTreeSet<Version>>,
}

struct Snapshot {
    id: SnapshotId,
    of: VolumeId,
    size: ByteCount,
    content: Content,
    /// Changes under way when it was requested may be in it or not, block by block.
    unsure: BTreeMap<u64, BTreeSet<Version>>,
}

/// A write or a discard that is not answered yet.
#[derive(Clone, Copy)]
struct Pending {
    first: u64,
    count: u64,
    version: Version,
}

struct Open {
    store: Box<dyn Store>,
    queue: SimulatedQueue,
    /// Requests under way, by their tickets.
    pending: BTreeMap<u64, Pending>,
    /// Answered requests, with their success, that the model does not have yet.
    answered: Vec<(Pending, bool)>,
}

struct World {
    seed: u64,
    random: Random,
    device: SimulatedDevice,
    /// Files that outlive the process.
    lasting: SimulatedLasting,
    /// The machine has failed, and the resulting image is decided.
    has_failed: bool,
    /// The process was killed, and nothing else has happened since: the blocks of each volume that
    /// were being changed.
    killed: Option<Vec<BTreeSet<u64>>>,
    volumes: Vec<Volume>,
    snapshots: Vec<Snapshot>,
    next: u64,
    bounds: Bounds,
    /// Volumes are small, snapshots change after few writes, and the power fails soon. So blocks
    /// are reused while other changes are incomplete.
    is_dense: bool,
}

/// Store of a closed volume.
struct Nothing;

impl Store for Nothing {
    fn geometry(&self) -> evenkeel_store::Geometry {
        unreachable!("nothing is asked of a closed volume")
    }
    fn submit(&mut self, _: Submission, _: &mut dyn Disk) {}
    fn disk_done(&mut self, _: DiskDone, _: &mut dyn Disk) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
    fn writes_zeroes(&self, _: Operation) -> bool {
        false
    }
    fn resized(&mut self, _: ByteCount) {}
    fn is_idle(&self) -> bool {
        true
    }
    fn close(&mut self, _: &mut dyn Disk) {}
}

fn fill(version: Version, block: u64, bytes: &mut [u8]) {
    let words = bytes.as_chunks_mut::<8>().0;
    if version == 0 {
        return words.fill([0; 8]);
    }
    let mut random = Random::new(version, block);
    words.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
    words[0] = version.to_le_bytes();
}

fn version_of(block: u64, bytes: &[u8]) -> Option<Version> {
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = vec![0; BLOCK as usize];
    fill(version, block, &mut expected);
    (expected == bytes).then_some(version)
}

impl Open {
    fn new(store: Box<dyn Store>, queue: SimulatedQueue) -> Self {
        Self { store, queue, pending: BTreeMap::new(), answered: Vec::new() }
    }

    /// Returns whether a request under way changes one of these blocks.
    fn is_changing(&self, first: u64, count: u64) -> bool {
        self.under_way()
            .any(|write| write.first < first + count && first < write.first + write.count)
    }

    /// Returns all requests whose result the model does not have.
    fn under_way(&self) -> impl Iterator<Item = Pending> + '_ {
        self.pending.values().copied().chain(self.answered.iter().map(|(pending, _)| *pending))
    }

    /// Returns the blocks of those requests.
    fn blocks_under_way(&self) -> BTreeSet<u64> {
        self.under_way().flat_map(|pending| pending.first..pending.first + pending.count).collect()
    }

    /// Returns the next completion that belongs to no request under way.
    fn poll(&mut self) -> Option<Completion> {
        loop {
            let done = self.store.poll()?;
            match self.pending.remove(&done.ticket) {
                Some(pending) => self.answered.push((pending, done.result.is_ok())),
                None => return Some(done),
            }
        }
    }

    /// Executes a request; `None` if it is not answered.
    fn run(
        &mut self,
        operation: Operation,
        first: u64,
        buffer: Option<Buffer>,
        count: u64,
    ) -> Option<Result<Option<Buffer>, ()>> {
        let offset = first * BLOCK;
        let length = (count * BLOCK) as u32;
        let submission = Submission { ticket: 7, operation, offset, length, buffer };
        self.store.submit(submission, &mut self.queue);
        loop {
            if let Some(done) = self.poll() {
                return Some(done.result.map(|()| done.buffer).map_err(drop));
            }
            self.answer()?;
        }
    }

    fn answer(&mut self) -> Option<()> {
        let done = self.queue.answer()?;
        self.store.disk_done(done, &mut self.queue);
        Some(())
    }

    /// Answers all operations of the disk.
    fn settle(&mut self) {
        while self.answer().is_some() {}
        assert!(self.poll().is_none(), "an answer to nothing");
    }

    fn read(&mut self, block: u64) -> Option<Result<Vec<u8>, ()>> {
        let buffer = Some(Buffer::new(BLOCK as usize));
        let done = self.run(Operation::Read, block, buffer, 1)?;
        Some(done.map(|buffer| buffer.unwrap().bytes()[..BLOCK as usize].to_vec()))
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 6);
        let bounds = Bounds {
            map_pages: random.among(&[1, 2, 1_000]),
            dirty_pages: random.among(&[1, 3, 1_000]),
            log_blocks: random.among(&[2, 10, 100_000]) as u32,
            batch_bytes: random.among(&[100, 64_000]),
            answered_bytes: random.among(&[200, 40_000]),
        };
        let device = SimulatedDevice::new(CAPACITY);
        let layout = Layout { identity: 0xbeef + u128::from(seed), chunks_max: 240, nodes: 120 };
        LocalPool::init(&device, &layout).unwrap();
        let volumes = Vec::new();
        let snapshots = Vec::new();
        let is_dense = random.one_in(2);
        let lasting = SimulatedLasting::default();
        let has_failed = false;
        let killed = None;
        let next = 1;
        Self {
            seed,
            random,
            device,
            lasting,
            has_failed,
            killed,
            volumes,
            snapshots,
            next,
            bounds,
            is_dense,
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\nreplay: EVENKEEL_SEED={} cargo test -p evenkeel-store --test snapshot_crashes",
            self.seed
        )
    }

    fn run(&mut self) {
        for _ in 0..if self.is_dense { CRASHES_DENSE } else { CRASHES } {
            let power = self.random.below(if self.is_dense { 250 } else { 1_500 });
            self.device.cut_power_after(power);
            if let Some((pool, mut open)) = self.open_all() {
                self.check_all(&pool, &mut open);
                self.live(&pool, &mut open);
                self.end(open);
            } else {
                self.fail_machine();
            }
            self.prove(false);
        }
        let Some((pool, mut open)) = self.open_all() else { self.fail("no power failed") };
        self.check_all(&pool, &mut open);
        self.give_all_back(&pool, open);
        drop(pool);
        self.prove(true);
    }

    /// Kills the process, or fails the machine.
    fn end(&mut self, mut open: Vec<Open>) {
        if self.has_failed || self.random.one_in(2) {
            return self.fail_machine();
        }
        let under_way = open.iter().map(Open::blocks_under_way).collect();
        // If the disk has failed requests before, less is certain about the blocks.
        self.killed = (!self.device.is_dark()).then_some(under_way);
        open.iter_mut().for_each(|volume| volume.queue.kill());
        self.lasting = self.lasting.killed();
        self.device.cut_power_after(0);
        drop(open);
        self.device.go_on();
    }

    fn fail_machine(&mut self) {
        self.device.cut_power_after(0);
        self.device = self.device.crash(&mut self.random);
        self.lasting = self.lasting.failed();
        (self.has_failed, self.killed) = (true, None);
    }

    fn open_pool(&self) -> Result<LocalPool, StoreError> {
        let lasting = Arc::new(self.lasting.clone());
        LocalPool::open_noting(Arc::new(self.device.clone()), self.bounds, Some(lasting))
    }

    /// Checks all references and counts of the pool.
    fn prove(&self, has_room_back: bool) {
        let report = check(&self.device, true).unwrap();
        if report.problems_total > 0 {
            let problems = report.problems.join("\n  ");
            self.fail(&format!("{} problems:\n  {problems}", report.problems_total));
        }
        if report.leaked > 0 || has_room_back && report.chunks > 0 {
            self.fail(&format!("space is lost: {report:?}"));
        }
    }

    /// Deletes everything, and checks that all space comes back.
    fn give_all_back(&mut self, pool: &LocalPool, mut open: Vec<Open>) {
        let before = pool.space().unwrap().unwrap();
        while !self.snapshots.is_empty() && self.random.one_in(2) {
            let number = self.random.below(self.snapshots.len() as u64) as usize;
            let id = self.snapshots.remove(number).id;
            pool.delete_snapshot(id).unwrap();
            open.iter_mut().for_each(|open| {
                open.store.attend(&mut open.queue);
                open.settle();
            });
        }
        drop(open);
        for volume in std::mem::take(&mut self.volumes) {
            pool.delete(volume.id).unwrap();
        }
        for snapshot in std::mem::take(&mut self.snapshots) {
            let mut reader = pool.read_snapshot(snapshot.id).unwrap();
            self.check_snapshot(&snapshot, &mut reader);
            drop(reader);
            pool.delete_snapshot(snapshot.id).unwrap();
        }
        let after = pool.space().unwrap().unwrap();
        if after.free != after.total {
            self.fail(&format!("{before:?}, and with nothing left {after:?}"));
        }
    }

    fn open_all(&mut self) -> Option<(LocalPool, Vec<Open>)> {
        self.has_failed = false;
        let pool = match self.open_pool() {
            Ok(pool) => pool,
            Err(_) if self.device.is_dark() => return None,
            Err(error) => self.fail(&format!("the pool does not open: {error}")),
        };
        let listed = pool.list().unwrap();
        let expected: Vec<_> = self.volumes.iter().map(|volume| (volume.id, volume.size)).collect();
        if listed != expected {
            self.fail(&format!("the pool has {listed:?}, and should have {expected:?}"));
        }
        let mut open = Vec::new();
        for (id, size) in listed {
            match pool.open(id, size) {
                Ok(store) => {
                    let queue = SimulatedQueue::new(self.device.clone(), self.random.next_u64());
                    let mut volume = Open::new(store, queue);
                    volume.store.attend(&mut volume.queue);
                    open.push(volume);
                }
                Err(_) if self.device.is_dark() => return None,
                Err(error) => self.fail(&format!("{id} does not open: {error}")),
            }
        }
        // Exactly the snapshots that were answered are there.
        let listed: Vec<_> =
            pool.snapshots().iter().map(|snapshot| (snapshot.id, snapshot.size)).collect();
        let expected: Vec<_> =
            self.snapshots.iter().map(|snapshot| (snapshot.id, snapshot.size)).collect();
        if listed != expected {
            self.fail(&format!("there are {listed:?}, and should be {expected:?}"));
        }
        Some((pool, open))
    }

    /// Checks that after a crash each block has its answered version, or one since the last flush;
    /// if only the process has ended, the answered version.
    fn check_all(&mut self, pool: &LocalPool, open: &mut [Open]) {
        for (volume, under_way) in self.volumes.iter_mut().zip(self.killed.take().iter().flatten())
        {
            volume.unsure.retain(|block, _| under_way.contains(block));
        }
        for (number, open) in open.iter_mut().enumerate() {
            let blocks: BTreeSet<u64> = {
                let volume = &self.volumes[number];
                volume.content.keys().chain(volume.unsure.keys()).copied().collect()
            };
            for block in blocks {
                let found = match open.read(block) {
                    None => self.fail(&format!("a read of block {block} hangs")),
                    Some(Err(())) if self.device.is_dark() => return,
                    Some(Err(())) => self.fail(&format!("block {block} cannot be read")),
                    Some(Ok(bytes)) => version_of(block, &bytes),
                };
                let volume = &mut self.volumes[number];
                let latest = volume.content.get(&block).copied().unwrap_or(0);
                let may_be = volume.unsure.get(&block);
                let is_right = found.is_some_and(|found| {
                    found == latest || may_be.is_some_and(|versions| versions.contains(&found))
                });
                if !is_right {
                    let id = volume.id;
                    let text = format!("{id} block {block}: {found:?}, not {latest} or {may_be:?}");
                    self.fail(&text);
                }
                volume.content.insert(block, found.unwrap());
            }
            self.volumes[number].unsure.clear();
        }
        (0..self.snapshots.len()).for_each(|number| self.make_sure(pool, number));
        for snapshot in &self.snapshots {
            match pool.read_snapshot(snapshot.id) {
                Ok(mut reader) => self.check_snapshot(snapshot, &mut reader),
                Err(StoreError::Unready { .. }) => {}
                Err(error) => self.fail(&format!("{} cannot be read: {error}", snapshot.id)),
            }
        }
    }

    /// Finds out which changes that were under way are in a snapshot, which keeps them from then
    /// on.
    fn make_sure(&mut self, pool: &LocalPool, at: usize) {
        let Ok(mut reader) = pool.read_snapshot(self.snapshots[at].id) else { return };
        for (block, may_be) in self.snapshots[at].unsure.clone() {
            let found = match reader.read(block) {
                Ok(None) => Some(0),
                Ok(Some(bytes)) => version_of(block, &bytes),
                Err(_) if self.device.is_dark() => return,
                Err(error) => self.fail(&format!("block {block} of a snapshot: {error}")),
            };
            let Some(found) = found.filter(|found| may_be.contains(found)) else {
                let id = self.snapshots[at].id;
                self.fail(&format!("{id} block {block}: {found:?}, not one of {may_be:?}"))
            };
            self.snapshots[at].content.insert(block, found);
            self.snapshots[at].unsure.remove(&block);
        }
    }

    fn check_snapshot(
        &self,
        snapshot: &Snapshot,
        reader: &mut evenkeel_store::local::pool::snapshots::SnapshotReader,
    ) {
        let blocks = snapshot.size.0 / BLOCK;
        let others = (0..3).map(|nth| (self.seed * 31 + nth * 977) % blocks);
        let looked_at: BTreeSet<u64> = snapshot.content.keys().copied().chain(others).collect();
        for block in looked_at {
            if snapshot.unsure.contains_key(&block) {
                continue;
            }
            let expected = snapshot.content.get(&block).copied().unwrap_or(0);
            let found = match reader.read(block) {
                Ok(None) => Some(0),
                Ok(Some(bytes)) => version_of(block, &bytes),
                Err(_) if self.device.is_dark() => return,
                Err(error) => self.fail(&format!("{} block {block}: {error}", snapshot.id)),
            };
            if found != Some(expected) {
                let id = snapshot.id;
                self.fail(&format!("{id} block {block}: {found:?}, and was {expected}"));
            }
        }
    }

    /// Checks that the pool's list of changes between two snapshots has all that differ.
    fn check_changed(&mut self, pool: &LocalPool) {
        if self.snapshots.len() < 2 {
            return;
        }
        let pick = |random: &mut Random, count: usize| random.below(count as u64) as usize;
        let (a, b) = {
            let count = self.snapshots.len();
            (pick(&mut self.random, count), pick(&mut self.random, count))
        };
        self.make_sure(pool, a);
        self.make_sure(pool, b);
        let older = &self.snapshots[a];
        let newer = &self.snapshots[b];
        if !older.unsure.is_empty() || !newer.unsure.is_empty() {
            return;
        }
        let opened =
            pool.read_snapshot(older.id).and_then(|a| Ok((a, pool.read_snapshot(newer.id)?)));
        let Ok((mut first, mut second)) = opened else { return };
        let mut reported = BTreeSet::new();
        let mut from = Some(0);
        while let Some(next) = from {
            match second.changed(Some(&mut first), next, 3) {
                Ok(Units { units, next: more }) => {
                    reported.extend(units);
                    from = more;
                }
                Err(_) if self.device.is_dark() => return,
                Err(error) => self.fail(&format!("cannot compare: {error}")),
            }
        }
        let version_of =
            |snapshot: &Snapshot, block: u64| snapshot.content.get(&block).copied().unwrap_or(0);
        let blocks: BTreeSet<u64> =
            older.content.keys().chain(newer.content.keys()).copied().collect();
        for &block in &blocks {
            if block < newer.size.0 / BLOCK
                && version_of(older, block) != version_of(newer, block)
                && !reported.contains(&(block / UNIT_BLOCKS))
            {
                let a = older.id;
                let b = newer.id;
                self.fail(&format!("block {block} differs from {a} to {b}, and is not told"));
            }
        }
        let touched: BTreeSet<u64> = blocks.iter().map(|block| block / UNIT_BLOCKS).collect();
        if let Some(unit) = reported.iter().find(|unit| !touched.contains(unit)) {
            self.fail(&format!("unit {unit} never held anything, and is told as changed"));
        }
    }

    fn live(&mut self, pool: &LocalPool, open: &mut Vec<Open>) {
        for _ in 0..self.random.below(250) {
            if self.device.is_dark() {
                return;
            }
            match self.random.below(if self.is_dense { 22 } else { 30 }) {
                0 => self.make(pool, open),
                1 if self.volumes.len() > 1 => self.delete(pool, open),
                2..=3 => self.snapshot(pool, open),
                4 if !self.snapshots.is_empty() => {
                    let number = self.random.below(self.snapshots.len() as u64) as usize;
                    self.delete_snapshot(pool, open, number);
                }
                5 => self.check_changed(pool),
                6 => self.grow(pool, open),
                _ if open.is_empty() => {}
                7..=8 => self.flush(open),
                9 => {
                    let number = self.random.below(open.len() as u64) as usize;
                    open[number].settle();
                }
                10 => self.reopen(pool, open),
                11 => self.read_what_is_deleted(pool, open),
                12..=15 => {
                    let number = self.random.below(open.len() as u64) as usize;
                    (0..self.random.below(9)).for_each(|_| _ = open[number].answer());
                    self.learn(number, &mut open[number]);
                }
                _ => self.write(open),
            }
        }
    }

    /// Adds the answered requests to the model.
    fn learn(&mut self, number: usize, open: &mut Open) {
        assert!(open.poll().is_none(), "an answer to nothing");
        for (pending, is_done) in std::mem::take(&mut open.answered) {
            if !is_done && !self.device.is_dark() {
                self.fail(&format!("a write of {} blocks fails", pending.count));
            }
            if is_done {
                let blocks = pending.first..pending.first + pending.count;
                blocks.for_each(|block| {
                    _ = self.volumes[number].content.insert(block, pending.version)
                });
            }
        }
    }

    /// Records that the contents at the request are durable; changes that were under way then, or
    /// came later, may be.
    fn is_durable(&mut self, number: usize, open: &mut Open) {
        let volume = &mut self.volumes[number];
        volume.unsure.clear();
        for Pending { first, count, version } in open.under_way() {
            for block in first..first + count {
                let before = volume.content.get(&block).copied().unwrap_or(0);
                volume.unsure.entry(block).or_default().extend([before, version]);
            }
        }
        self.learn(number, open);
    }

    /// Closes a volume with requests under way, and opens it again.
    fn reopen(&mut self, pool: &LocalPool, open: &mut [Open]) {
        let number = self.random.below(open.len() as u64) as usize;
        let id = self.volumes[number].id;
        let size = self.volumes[number].size;
        open[number].settle();
        self.learn(number, &mut open[number]);
        let closing = &mut open[number];
        closing.store.close(&mut closing.queue);
        closing.settle();
        let queue = SimulatedQueue::new(self.device.clone(), self.random.next_u64());
        open[number].store = Box::new(Nothing);
        match pool.open(id, size) {
            Ok(store) => open[number] = Open::new(store, queue),
            Err(_) if self.device.is_dark() => {}
            Err(error) => self.fail(&format!("{id} does not open again: {error}")),
        }
    }

    /// Checks that a snapshot that is deleted while it is read stays unchanged until the reader is
    /// dropped.
    fn read_what_is_deleted(&mut self, pool: &LocalPool, open: &mut [Open]) {
        if self.snapshots.is_empty() {
            return;
        }
        let number = self.random.below(self.snapshots.len() as u64) as usize;
        self.make_sure(pool, number);
        let Snapshot { id, of, size, ref content, ref unsure } = self.snapshots[number];
        let copy = Snapshot { id, of, size, content: content.clone(), unsure: unsure.clone() };
        let Ok(mut reader) = pool.read_snapshot(copy.id) else { return };
        self.delete_snapshot(pool, open, number);
        for _ in 0..self.random.below(5) {
            self.write(open);
        }
        let number = self.random.below(open.len() as u64) as usize;
        open[number].settle();
        self.learn(number, &mut open[number]);
        self.check_snapshot(&copy, &mut reader);
        drop(reader);
        for open in open {
            open.store.attend(&mut open.queue);
        }
    }

    fn make(&mut self, pool: &LocalPool, open: &mut Vec<Open>) {
        if self.volumes.len() >= 5 {
            return;
        }
        let id = VolumeId::from_bits(u128::from(self.next));
        self.next += 1;
        let source = (!self.snapshots.is_empty() && self.random.one_in(2))
            .then(|| self.random.below(self.snapshots.len() as u64) as usize);
        if let Some(at) = source {
            self.make_sure(pool, at);
        }
        let source = source.filter(|number| self.snapshots[*number].unsure.is_empty());
        let (size, content, made) = match source.map(|number| &self.snapshots[number]) {
            None => {
                let sizes = [1 << 20, 9 << 20, 3 << 29];
                let sizes = if self.is_dense { &sizes[..1] } else { &sizes };
                let size = ByteCount(self.random.among(sizes));
                (size, Content::new(), pool.create(id, size))
            }
            Some(snapshot) => {
                let size = ByteCount(snapshot.size.0 * self.random.among(&[1, 1, 3]));
                (size, snapshot.content.clone(), pool.create_from(id, size, snapshot.id))
            }
        };
        match made {
            Err(StoreError::Unready { .. }) => return,
            Err(error) if !self.device.is_dark() => self.fail(&format!("{id}: {error}")),
            Err(_) if !self.is_listed(id) => return,
            _ => {}
        }
        self.volumes.push(Volume { id, size, content, unsure: BTreeMap::new() });
        match pool.open(id, size) {
            Ok(store) => {
                let queue = SimulatedQueue::new(self.device.clone(), self.random.next_u64());
                open.push(Open::new(store, queue));
            }
            Err(_) if self.device.is_dark() => {}
            Err(error) => self.fail(&format!("{id} does not open: {error}")),
        }
    }

    /// Returns whether a volume is there after a crash that happens now.
    fn is_listed(&mut self, id: VolumeId) -> bool {
        self.fail_machine();
        let pool = self.open_pool().unwrap();
        let is_there = pool.list().unwrap().iter().any(|(listed, _)| *listed == id);
        self.device.cut_power_after(0);
        is_there
    }

    fn delete(&mut self, pool: &LocalPool, open: &mut Vec<Open>) {
        self.cut_power_soon();
        let number = self.random.below(open.len().max(1) as u64) as usize;
        if number >= open.len() {
            return;
        }
        let mut closing = open.remove(number);
        closing.store.close(&mut closing.queue);
        closing.settle();
        self.learn(number, &mut closing);
        if !closing.store.is_idle() {
            self.fail("a volume that was closed is not idle");
        }
        drop(closing);
        let volume = self.volumes.remove(number);
        if let Err(error) = pool.delete(volume.id) {
            if !self.device.is_dark() {
                self.fail(&format!("{} cannot be deleted: {error}", volume.id));
            }
            if self.is_listed(volume.id) {
                self.volumes.insert(number, volume);
            }
        }
    }

    /// Makes snapshots of some volumes, at one point in time.
    fn snapshot(&mut self, pool: &LocalPool, open: &mut [Open]) {
        let count = open.len().min(1 + self.random.below(3) as usize);
        if count == 0 || self.snapshots.len() >= 8 {
            return;
        }
        let start = self.random.below(open.len() as u64) as usize;
        let numbers: Vec<usize> = (0..count).map(|nth| (start + nth) % open.len()).collect();
        let mut makings = Vec::new();
        for &number in &numbers {
            self.learn(number, &mut open[number]);
            let volume = self.volumes[number].id;
            let id = SnapshotId::from_bits(self.next.into());
            self.next += 1;
            match pool.snapshot(volume, id) {
                Ok(making) => {
                    makings.push((number, self.model_of(number, id, &open[number]), making))
                }
                Err(_) if self.device.is_dark() => break,
                Err(error) => self.fail(&format!("{id} of {volume}: {error}")),
            }
        }
        for &number in &numbers {
            let open = &mut open[number];
            open.store.attend(&mut open.queue);
        }
        // None of these writes is in any of the snapshots.
        if self.random.one_in(2) {
            for _ in 0..self.random.below(4) {
                self.begin_write(start, &mut open[start]);
            }
        }
        let mut missing = Vec::new();
        let mut made = Vec::new();
        for (number, snapshot, making) in makings {
            let is_made = loop {
                match making.made.try_recv() {
                    Ok(is_made) => break is_made,
                    Err(_) if open[number].answer().is_some() => {}
                    Err(_) => break false,
                }
            };
            if is_made {
                made.push((number, snapshot));
            } else if self.device.is_dark() {
                missing.push((number, snapshot));
            } else {
                self.fail(&format!("{} of {} is not made", snapshot.id, snapshot.of));
            }
        }
        for (number, snapshot) in made {
            // The snapshot's contents are durable, so the volume's are, too.
            self.is_durable(number, &mut open[number]);
            self.snapshots.push(snapshot);
        }
        if !missing.is_empty() {
            self.find_snapshots(missing);
        }
        self.snapshots.sort_by_key(|snapshot| snapshot.id);
    }

    /// Returns the model of a snapshot that is requested now.
    fn model_of(&self, number: usize, id: SnapshotId, open: &Open) -> Snapshot {
        let Volume { id: of, size, content, .. } = &self.volumes[number];
        let mut unsure: BTreeMap<u64, BTreeSet<Version>> = BTreeMap::new();
        for Pending { first, count, version } in open.under_way() {
            for block in first..first + count {
                let before = content.get(&block).copied().unwrap_or(0);
                unsure.insert(block, BTreeSet::from([before, version]));
            }
        }
        Snapshot { id, of: *of, size: *size, content: content.clone(), unsure }
    }

    /// Finds out which of these snapshots exist after the power failed while they were made.
    fn find_snapshots(&mut self, missing: Vec<(usize, Snapshot)>) {
        self.fail_machine();
        let pool = self.open_pool().unwrap();
        for (_, snapshot) in missing {
            if pool.snapshots().iter().any(|listed| listed.id == snapshot.id) {
                self.snapshots.push(snapshot);
            }
        }
        self.device.cut_power_after(0);
    }

    /// Cuts the power at one of the next writes or flushes in some cases, since few histories would
    /// do that by chance.
    fn cut_power_soon(&mut self) {
        if self.random.one_in(6) && !self.device.is_dark() {
            let power = self.random.below(60);
            self.device.cut_power_after(power);
        }
    }

    fn delete_snapshot(&mut self, pool: &LocalPool, open: &mut [Open], at: usize) {
        self.cut_power_soon();
        let snapshot = self.snapshots.remove(at);
        let deleted = pool.delete_snapshot(snapshot.id);
        if let Err(error) = deleted {
            if !self.device.is_dark() {
                self.fail(&format!("{} cannot be deleted: {error}", snapshot.id));
            }
            self.fail_machine();
            let pool = self.open_pool().unwrap();
            if pool.snapshots().iter().any(|listed| listed.id == snapshot.id) {
                self.snapshots.insert(at, snapshot);
            }
            self.device.cut_power_after(0);
            return;
        }
        if let Some(number) = self.volumes.iter().position(|volume| volume.id == snapshot.of)
            && let Some(open) = open.get_mut(number)
        {
            open.store.attend(&mut open.queue);
        }
    }

    fn grow(&mut self, pool: &LocalPool, open: &mut [Open]) {
        let number = self.random.below(open.len().max(1) as u64) as usize;
        if number >= open.len() || self.volumes[number].size.0 > 3 << 29 {
            return;
        }
        let Volume { id, size, .. } = self.volumes[number];
        let to = ByteCount(size.0 * self.random.among(&[2, 700]));
        match pool.resize(id, size, to) {
            Ok(()) => {
                self.volumes[number].size = to;
                open[number].store.resized(to);
            }
            Err(_) if self.device.is_dark() => {
                self.fail_machine();
                let pool = self.open_pool().unwrap();
                if pool.list().unwrap().contains(&(id, to)) {
                    self.volumes[number].size = to;
                }
                self.device.cut_power_after(0);
            }
            Err(error) => self.fail(&format!("{id} does not grow: {error}")),
        }
    }

    fn flush(&mut self, open: &mut [Open]) {
        let number = self.random.below(open.len() as u64) as usize;
        self.learn(number, &mut open[number]);
        match open[number].run(Operation::Flush, 0, None, 0) {
            None => self.fail("a flush hangs"),
            Some(Ok(_)) => self.is_durable(number, &mut open[number]),
            Some(Err(())) if self.device.is_dark() => {}
            Some(Err(())) => self.fail("a flush fails"),
        }
    }

    fn write(&mut self, open: &mut [Open]) {
        let number = self.random.below(open.len() as u64) as usize;
        let open = &mut open[number];
        let durable = self.begin_write(number, open);
        if self.random.one_in(2) {
            open.settle();
            if !open.pending.is_empty() && !self.device.is_dark() {
                self.fail("a write hangs");
            }
            let is_done = |it: &Pending| {
                let mut answered = open.answered.iter();
                answered.any(|(other, is_done)| *is_done && other.version == it.version)
            };
            if let Some(Pending { first, count, .. }) = durable.filter(is_done) {
                let unsure = &mut self.volumes[number].unsure;
                (first..first + count).for_each(|block| _ = unsure.remove(&block));
            }
        }
        self.learn(number, open);
    }

    /// Begins a write or a discard, unless another one of the same blocks is under way. Returns it
    /// if it is durable when it is answered.
    fn begin_write(&mut self, number: usize, open: &mut Open) -> Option<Pending> {
        let blocks = self.volumes[number].size.0 / BLOCK;
        let count = self.random.among(&[1, 1, 2, 5, 20, 64]);
        let region = self.random.below(5);
        let first = (blocks / 5 * region + self.random.below(60)).min(blocks - count);
        if open.is_changing(first, count) {
            return None;
        }
        let is_discard = self.random.one_in(6);
        let version = if is_discard { 0 } else { self.next };
        let ticket = 1_000 + self.next;
        self.next += 1;
        let (operation, buffer) = if is_discard {
            (Operation::Discard { fua: false }, None)
        } else {
            let mut buffer = Buffer::new((count * BLOCK) as usize);
            for (block, bytes) in (first..).zip(buffer.bytes_mut().chunks_mut(BLOCK as usize)) {
                fill(version, block, bytes);
            }
            (Operation::Write { fua: self.random.one_in(5) }, Some(buffer))
        };
        let volume = &mut self.volumes[number];
        for block in first..first + count {
            let before = volume.content.get(&block).copied().unwrap_or(0);
            volume.unsure.entry(block).or_default().extend([before, version]);
        }
        let offset = first * BLOCK;
        let length = (count * BLOCK) as u32;
        let submission = Submission { ticket, operation, offset, length, buffer };
        let pending = Pending { first, count, version };
        open.pending.insert(ticket, pending);
        open.store.submit(submission, &mut open.queue);
        (operation == Operation::Write { fua: true }).then_some(pending)
    }
}

#[test]
fn histories() {
    for seed in seeds(CASES) {
        World::new(seed).run();
    }
}

/// An anchor that names many snapshots is longer than the 512 bytes that storage replaces as a
/// whole, so a crash may leave a copy in part. The other copy is complete, even after another
/// crash.
#[test]
fn an_anchor_that_names_many_snapshots_outlives_two_crashes() {
    const BOUNDS: Bounds = Bounds {
        map_pages: 10,
        dirty_pages: 10,
        log_blocks: 100,
        batch_bytes: 64_000,
        answered_bytes: 0,
    };
    let id = VolumeId::from_bits(1);
    let size = ByteCount(1 << 20);
    let empty = SimulatedDevice::new(CAPACITY);
    let layout = Layout { identity: 7, chunks_max: 240, nodes: 250 };
    LocalPool::init(&empty, &layout).unwrap();
    let open = |device: &SimulatedDevice| LocalPool::open(Arc::new(device.clone()), BOUNDS);
    open(&empty).unwrap().create(id, size).unwrap();
    // A run with more histories tries all seeds.
    let torn_max = if std::env::var_os("EVENKEEL_FUZZ_CASES").is_some() { u32::MAX } else { 3 };
    let mut torn = 0;
    for seed in 0..600 {
        if torn == torn_max {
            break;
        }
        let mut random = Random::new(seed, 8);
        let device = empty.crash(&mut random);
        let pool = open(&device).unwrap();
        let mut store = pool.open(id, size).unwrap();
        (1..=200).for_each(|nth| _ = pool.snapshot(id, SnapshotId::from_bits(nth)).unwrap());
        device.cut_power_after(random.below(30));
        let mut queue = SimulatedQueue::new(device.clone(), seed);
        store.attend(&mut queue);
        while let Some(done) = queue.answer() {
            store.disk_done(done, &mut queue);
        }
        drop((store, pool));
        let device = device.crash(&mut random);
        let mut anchors = vec![0; 2 * BLOCK as usize];
        device.read(HOME, &mut anchors).unwrap();
        let (first, second) = anchors.split_at(BLOCK as usize);
        // The first sectors of both are equal, and the rest differs.
        if first == second || first[..512] != second[..512] {
            continue;
        }
        torn += 1;
        for power in (0..20).cycle().take(200) {
            let device = device.crash(&mut random);
            device.cut_power_after(power);
            let _ = open(&device).map(|pool| pool.open(id, size).map(drop));
            let device = device.crash(&mut random);
            let pool = open(&device).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            drop(pool.open(id, size).unwrap_or_else(|error| panic!("seed {seed}: {error}")));
        }
    }
    assert!(torn > 2, "{torn} crashes have torn a copy");
}
