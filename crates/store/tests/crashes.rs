//! Random histories of a pool on a simulated disk that loses, reorders and tears unflushed writes.
//! Its writes and flushes fail, its power fails at any write, or the process is killed. Every read,
//! and every image that a crash leaves, is compared with a model. A killed process has lost no
//! answered change. A failure prints its seed:
//!
//! ```text
//! EVENKEEL_SEED=<n> cargo test -p evenkeel-store --test crashes
//! cargo x fuzz crashes 10000
//! ```

#![allow(clippy::unwrap_used)]

mod seeds;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::local::check::check;
use evenkeel_store::local::device::Device;
use evenkeel_store::local::page_cache_file::Lasting;
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::simulated::{SimulatedDevice, SimulatedLasting, SimulatedQueue};
use evenkeel_store::local::volume::Bounds;
use evenkeel_store::{Completion, Pool, Store, StoreError, Submission};
use seeds::seeds;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = 4_096;
/// Number of histories of a plain run.
const CASES: u64 = 60;
/// Power failures and kills in one history.
const CRASHES: u32 = 6;
/// Number of blocks of a volume that are changed on the disk to simulate rot.
const ROTTEN: usize = 6;
/// Maximum size of the disk in bytes.
const CAPACITY: u64 = 96 << 20;

/// Contents of a block: zeroes, or a pattern of its place and this number.
type Version = u64;

/// Flag in the number of a discard: the block has zeroes from then on.
const ZERO: Version = 1 << 63;

/// Returns whether the contents that were found are those of this version.
fn is(found: Version, version: Version) -> bool {
    found == if version & ZERO != 0 { 0 } else { version }
}

/// State of one block in the model: versions from the durable one on, in the order in which they
/// were written. The last one may be under way.
#[derive(Clone, Debug)]
struct Known {
    versions: Vec<Version>,
    /// Number of requests under way that change it.
    changing: u32,
    /// Whether several were under way together, so that any of them may have been the last.
    is_tangled: bool,
    /// Index of the last complete version.
    complete: usize,
}

impl Default for Known {
    fn default() -> Self {
        Self { versions: vec![0], changing: 0, is_tangled: false, complete: 0 }
    }
}

impl Known {
    /// Discards versions before the last answered one, which is there: only the process has ended.
    fn keep_answered(&mut self) {
        self.versions.drain(..self.complete);
        self.complete = 0;
    }

    /// Counts a request that begins to change it.
    fn begin(&mut self) {
        self.is_tangled &= self.changing > 0;
        self.changing += 1;
        self.is_tangled |= self.changing > 1;
    }
}

/// A request under way in the model.
#[derive(Clone, Debug)]
enum Pending {
    Write {
        first: u64,
        count: u64,
        fua: bool,
    },
    /// Versions that were complete when it was submitted.
    Flush {
        covered: BTreeMap<u64, Version>,
    },
    /// Versions that each block could have when it was submitted, and those that it could not have
    /// any more.
    Read {
        first: u64,
        might: Vec<Vec<Version>>,
        past: Vec<Vec<Version>>,
    },
}

struct Model {
    id: VolumeId,
    size: ByteCount,
    blocks: BTreeMap<u64, Known>,
    next_version: Version,
    /// Blocks that were changed on the disk to simulate rot.
    rotten: Vec<u64>,
}

struct OpenVolume {
    store: Box<dyn Store>,
    queue: SimulatedQueue,
    pending: BTreeMap<u64, Pending>,
    next_ticket: u64,
    /// Changes and flushes from this ticket on must fail, since a flush has failed before.
    fails_from: Option<u64>,
}

struct World {
    seed: u64,
    random: Random,
    device: SimulatedDevice,
    /// Files that outlive the process, an earlier state of them, and whether the present process
    /// uses them.
    lasting: SimulatedLasting,
    older: SimulatedLasting,
    has_lasting: bool,
    /// The power has failed, and the resulting image is decided.
    has_crashed: bool,
    /// The process was killed, and nothing else has happened since.
    was_killed: bool,
    volumes: Vec<Model>,
    next_id: u128,
    bounds: Bounds,
    /// Number of operations of volumes that fail, in a million.
    fail_ppm: u32,
}

fn fill(volume: VolumeId, block: u64, version: Version, bytes: &mut [u8]) {
    let words = bytes.as_chunks_mut::<8>().0;
    if version == 0 {
        return words.fill([0; 8]);
    }
    let mut random = Random::new(version ^ block << 24, volume.bits() as u64 * 2 + 1);
    words.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
    words[0] = version.to_le_bytes();
}

/// Returns the version of these bytes; `None` if they are of none.
fn version_of(volume: VolumeId, block: u64, bytes: &[u8]) -> Option<Version> {
    let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut expected = vec![0; BLOCK as usize];
    fill(volume, block, version, &mut expected);
    (expected == bytes).then_some(version)
}

/// Reads one block while other requests are under way; `None` if it is not answered.
fn read(volume: &mut OpenVolume, block: u64) -> Option<Completion> {
    let operation = Operation::Read;
    let buffer = Some(Buffer::new(BLOCK as usize));
    let offset = block * BLOCK;
    let length = BLOCK as u32;
    let read = Submission { ticket: 0, operation, offset, length, buffer };
    volume.store.submit(read, &mut volume.queue);
    loop {
        if let Some(done) = volume.store.poll() {
            return Some(done);
        }
        let answer = volume.queue.answer()?;
        volume.store.disk_done(answer, &mut volume.queue);
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 5);
        let bounds = Bounds {
            map_pages: random.among(&[1, 2, 1_000]),
            dirty_pages: random.among(&[1, 3, 1_000]),
            log_blocks: random.among(&[2, 10, 100, 100_000]) as u32,
            batch_bytes: random.among(&[100, 4_000, 64_000]),
            answered_bytes: random.among(&[0, 200, 2_000, 40_000]),
        };
        let device = SimulatedDevice::new(CAPACITY);
        let layout = Layout { identity: 0xfeed_0000 + u128::from(seed), chunks_max: 90, nodes: 30 };
        LocalPool::init(&device, &layout).unwrap();
        let lasting = SimulatedLasting::default();
        let has_lasting = true;
        let has_crashed = false;
        let was_killed = false;
        let older = lasting.clone();
        let volumes = Vec::new();
        let next_id = 1;
        let fail_ppm = 0;
        Self {
            seed,
            random,
            device,
            lasting,
            older,
            has_lasting,
            has_crashed,
            was_killed,
            volumes,
            next_id,
            bounds,
            fail_ppm,
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\nreplay: EVENKEEL_SEED={} cargo test -p evenkeel-store --test crashes",
            self.seed
        )
    }

    fn run(&mut self) {
        for _ in 0..CRASHES {
            let power = self.random.below(400);
            self.device.cut_power_after(power);
            let Some((pool, mut open)) = self.open_all() else {
                // If the machine has failed after the kill, it may have lost all of this.
                if self.was_killed && self.random.one_in(2) {
                    self.go_on(self.lasting.killed())
                } else {
                    self.crash_quietly()
                }
                continue;
            };
            self.check_all(&mut open);
            if self.random.one_in(6) && !self.device.is_dark() {
                self.fill_a_log(&mut open);
                let power = self.random.below(200);
                self.device.cut_power_after(power);
            }
            self.fail_ppm = self.random.among(&[0, 0, 1_000, 30_000]) as u32;
            self.live(&pool, &mut open);
            self.fail_ppm = 0;
            self.crash(open);
            self.prove();
        }
        // At the end, with power, everything must open and read correctly.
        self.crash_quietly();
        let Some((pool, mut open)) = self.open_all() else { self.fail("no power failed") };
        self.check_all(&mut open);
        self.device.sync().unwrap();
        self.prove();
        self.rot(&mut open);
        drop(open);
        drop(pool);
        // Rotten data stays rotten after another opening.
        let Some((_pool, mut open)) = self.open_all() else { self.fail("no power failed") };
        self.check_rotten(&mut open);
    }

    /// Checks all references and counts of the pool.
    fn prove(&self) {
        let report = check(&self.device, true).unwrap();
        if report.problems_total > 0 || report.leaked > 0 {
            let problems = report.problems.join("\n  ");
            self.fail(&format!("{} blocks are lost, problems:\n  {problems}", report.leaked));
        }
    }

    /// Changes some data on the disk to simulate rot.
    fn rot(&mut self, open: &mut [Option<OpenVolume>]) {
        self.check_rotten(open);
        for number in 0..open.len() {
            let id = self.volumes[number].id;
            let blocks: Vec<u64> = self.volumes[number].blocks.keys().copied().collect();
            for _ in 0..ROTTEN.min(blocks.len()) {
                let block = self.random.among(&blocks);
                let version = self.volumes[number].blocks[&block].versions[0];
                if is(0, version) || self.volumes[number].rotten.contains(&block) {
                    continue;
                }
                let mut bytes = vec![0; BLOCK as usize];
                fill(id, block, version, &mut bytes);
                for place in self.device.find(&bytes) {
                    self.device.rot(place + self.random.below(BLOCK));
                }
                self.volumes[number].rotten.push(block);
            }
        }
        self.check_rotten(open);
    }

    /// Checks that reads of rotten blocks fail, and no others.
    fn check_rotten(&mut self, open: &mut [Option<OpenVolume>]) {
        for (number, volume) in open.iter_mut().enumerate() {
            let Some(volume) = volume else { continue };
            let Model { id, blocks, rotten, .. } = &self.volumes[number];
            for (&block, known) in blocks {
                let done = read(volume, block).unwrap_or_else(|| self.fail("a read hangs"));
                let bytes = &done.buffer.as_ref().unwrap().bytes()[..BLOCK as usize];
                let is_right = match done.result {
                    Ok(()) => {
                        !rotten.contains(&block)
                            && version_of(*id, block, bytes)
                                .is_some_and(|found| is(found, known.versions[0]))
                    }
                    Err(failure) => rotten.contains(&block) && failure == Failure::Rotten,
                };
                if !is_right {
                    self.fail(&format!(
                        "{id} block {block}, rotten: {}: {:?}",
                        rotten.contains(&block),
                        done.result
                    ));
                }
            }
        }
    }

    /// Opens the pool and all volumes; `None` if the power failed meanwhile.
    fn open_all(&mut self) -> Option<(LocalPool, Vec<Option<OpenVolume>>)> {
        self.has_crashed = false;
        self.has_lasting = !self.random.one_in(6);
        if !self.has_lasting {
            // Earlier answered changes are lost.
            self.lasting = self.lasting.failed();
            self.was_killed = false;
        }
        let pool = match self.open_pool() {
            Ok(pool) => pool,
            Err(_) if self.device.is_dark() => return None,
            Err(error) => self.fail(&format!("the pool does not open: {error}")),
        };
        let listed = pool.list().unwrap();
        let expected: Vec<_> = self.volumes.iter().map(|model| (model.id, model.size)).collect();
        if listed != expected {
            self.fail(&format!("the pool has {listed:?}, and should have {expected:?}"));
        }
        let mut open = Vec::new();
        for number in 0..self.volumes.len() {
            open.push(Some(self.open_volume(&pool, number)?));
        }
        Some((pool, open))
    }

    fn open_pool(&self) -> Result<LocalPool, StoreError> {
        let lasting: Option<Arc<dyn Lasting>> =
            if self.has_lasting { Some(Arc::new(self.lasting.clone())) } else { None };
        LocalPool::open_noting(Arc::new(self.device.clone()), self.bounds, lasting)
    }

    fn open_volume(&mut self, pool: &LocalPool, number: usize) -> Option<OpenVolume> {
        let id = self.volumes[number].id;
        let size = self.volumes[number].size;
        let store = match pool.open(id, size) {
            Ok(store) => store,
            Err(_) if self.device.is_dark() => return None,
            Err(error) => self.fail(&format!("{id} does not open: {error}")),
        };
        let queue = SimulatedQueue::new(self.device.clone(), self.random.next_u64());
        let pending = BTreeMap::new();
        let next_ticket = 0;
        let fails_from = None;
        Some(OpenVolume { store, queue, pending, next_ticket, fails_from })
    }

    /// Fails the power while only an opening is under way, and restores it.
    fn crash_quietly(&mut self) {
        self.device = self.device.crash(&mut self.random);
        // The disk may have an older state of the files.
        let older = self.random.one_in(2).then(|| self.older.failed_with(&self.lasting));
        self.lasting = older.unwrap_or_else(|| self.lasting.failed());
        self.older = self.lasting.clone();
        (self.has_crashed, self.was_killed) = (true, false);
    }

    /// Continues without a failure of the machine: the next process finds everything as the last
    /// one left it, with these files.
    fn go_on(&mut self, lasting: SimulatedLasting) {
        self.device.go_on();
        self.lasting = lasting;
        self.was_killed = self.has_lasting;
    }

    /// Checks that each block of every volume has one of its possible versions. That version is
    /// durable then, and the only one.
    fn check_all(&mut self, open: &mut [Option<OpenVolume>]) {
        let was_killed = std::mem::take(&mut self.was_killed);
        for (number, volume) in open.iter_mut().enumerate() {
            if let Some(volume) = volume {
                if was_killed {
                    self.volumes[number].blocks.values_mut().for_each(Known::keep_answered);
                }
                self.check_one(number, volume);
            }
        }
    }

    /// Checks one volume that was opened just now, as [`Self::check_all`].
    fn check_one(&mut self, number: usize, volume: &mut OpenVolume) {
        let id = self.volumes[number].id;
        let blocks: Vec<u64> = self.volumes[number].blocks.keys().copied().collect();
        for block in blocks {
            let Some(done) = read(volume, block) else {
                self.fail(&format!("a read of block {block} hangs"));
            };
            if self.device.is_dark() && done.result.is_err() {
                return;
            }
            let bytes = done.buffer.as_ref().unwrap().bytes();
            let found = match done.result {
                Ok(()) => version_of(id, block, &bytes[..BLOCK as usize]),
                Err(failure) => {
                    self.fail(&format!("{id} block {block}: {failure:?} after an opening"))
                }
            };
            let known = &self.volumes[number].blocks[&block];
            match found {
                Some(version) if known.versions.iter().any(|&known| is(version, known)) => {
                    let known = Known { versions: vec![version], ..Known::default() };
                    self.volumes[number].blocks.insert(block, known);
                }
                found => self.fail(&format!(
                    "{id} block {block} holds {found:?} after an opening, and may hold {:?}",
                    known.versions
                )),
            }
        }
    }

    /// Closes a volume when its requests have ended, and opens it again.
    fn reopen(&mut self, pool: &LocalPool, number: usize, open: &mut Option<OpenVolume>) {
        if let Some(mut volume) = open.take() {
            self.settle(number, &mut volume);
            if self.random.one_in(2) {
                volume.queue.fail_ppm = 0;
                volume.store.close(&mut volume.queue);
                self.settle(number, &mut volume);
            }
        }
        let Some(mut volume) = self.open_volume(pool, number) else { return };
        if self.has_lasting {
            self.volumes[number].blocks.values_mut().for_each(Known::keep_answered);
        }
        self.check_one(number, &mut volume);
        *open = Some(volume);
        self.cut_power_soon();
    }

    /// Cuts the power at one of the next writes or flushes in some cases, since few histories would
    /// do that by chance.
    fn cut_power_soon(&mut self) {
        if self.random.one_in(8) && !self.device.is_dark() {
            let power = self.random.below(14);
            self.device.cut_power_after(power);
        }
    }

    /// Answers all operations that are under way.
    fn settle(&mut self, number: usize, volume: &mut OpenVolume) {
        while !volume.queue.is_empty() {
            self.answer(number, volume);
        }
        if !volume.pending.is_empty() && !self.device.is_dark() {
            self.fail(&format!("{:?} hang", volume.pending));
        }
    }

    /// Makes enough durable writes that the log of a volume comes back to chunks in which it was
    /// before.
    fn fill_a_log(&mut self, open: &mut [Option<OpenVolume>]) {
        self.device.cut_power_after(u64::MAX);
        let number = self.random.below(open.len().max(1) as u64) as usize;
        let Some(Some(mut volume)) = open.get_mut(number).map(Option::take) else { return };
        for _ in 0..self.random.below(1_100) {
            let block = self.place(number, 1);
            self.write(number, &mut volume, block, 1, true);
            self.settle(number, &mut volume);
        }
        open[number] = Some(volume);
    }

    /// Runs requests and changes of the pool until the power fails or the history ends.
    fn live(&mut self, pool: &LocalPool, open: &mut Vec<Option<OpenVolume>>) {
        for _ in 0..self.random.below(600) {
            if self.device.is_dark() {
                return;
            }
            if self.random.one_in(60) {
                self.manage(pool, open);
            }
            if self.random.one_in(200) {
                self.older = self.lasting.killed();
            }
            if self.random.one_in(100) {
                self.lasting.fill(self.random.one_in(2));
            }
            if open.is_empty() {
                continue;
            }
            let number = self.random.below(open.len() as u64) as usize;
            let must_reopen = open[number].as_ref().is_none_or(|open| open.store.must_reopen());
            if self.random.one_in(if must_reopen { 8 } else { 80 }) {
                self.reopen(pool, number, &mut open[number]);
            }
            let Some(mut volume) = open[number].take() else { continue };
            volume.queue.fail_ppm = self.fail_ppm;
            if self.random.one_in(2) && volume.pending.len() < 12 {
                if self.random.one_in(60) {
                    self.clear_all(number, &mut volume)
                } else {
                    self.submit(number, &mut volume)
                }
            }
            if self.random.one_in(2) {
                self.answer(number, &mut volume);
            }
            if self.random.one_in(30) {
                volume.store.rest(&mut volume.queue);
            }
            open[number] = Some(volume);
        }
        // In some cases all operations are answered, or volumes are closed.
        if self.random.one_in(3) {
            for (number, place) in open.iter_mut().enumerate() {
                let Some(mut volume) = place.take() else { continue };
                self.settle(number, &mut volume);
                if self.random.one_in(2) {
                    drop(volume);
                } else {
                    *place = Some(volume);
                }
            }
        }
    }

    /// Creates, grows or deletes a volume.
    fn manage(&mut self, pool: &LocalPool, open: &mut Vec<Option<OpenVolume>>) {
        self.cut_power_soon();
        let outcome = match self.random.below(4) {
            0 | 1 if self.volumes.len() < 4 => {
                let id = VolumeId::from_bits(self.next_id);
                let size = ByteCount(self.random.among(&[1 << 20, 5 << 20, 3 << 29]));
                self.next_id += 1;
                let made = pool.create(id, size);
                let blocks = BTreeMap::new();
                let next_version = 1;
                let rotten = Vec::new();
                if made.is_ok() || !self.is_absent(id) {
                    self.volumes.push(Model { id, size, blocks, next_version, rotten });
                    if made.is_ok()
                        && let Some(volume) = self.open_volume(pool, self.volumes.len() - 1)
                    {
                        open.push(Some(volume));
                    } else {
                        open.push(None);
                    }
                }
                made
            }
            2 if !self.volumes.is_empty() => {
                let number = self.random.below(self.volumes.len() as u64) as usize;
                let id = self.volumes[number].id;
                let from = self.volumes[number].size;
                let to = ByteCount(from.0 * 2);
                let grown = pool.resize(id, from, to);
                if grown.is_ok() {
                    self.volumes[number].size = to;
                    if let Some(volume) = &mut open[number] {
                        volume.store.resized(to);
                    }
                } else if self.device.is_dark() && !self.has_size(id, from) {
                    self.volumes[number].size = to;
                }
                grown
            }
            3 if !self.volumes.is_empty() => {
                let number = self.random.below(self.volumes.len() as u64) as usize;
                let id = self.volumes[number].id;
                if open[number]
                    .as_ref()
                    .is_some_and(|open| !open.pending.is_empty() || !open.queue.is_empty())
                {
                    return;
                }
                drop(open.remove(number));
                let deleted = pool.delete(id);
                let volume = self.volumes.remove(number);
                if deleted.is_err() && !self.is_absent(id) {
                    // The power failed before the deletion began: the volume is complete.
                    self.volumes.insert(number, volume);
                    open.insert(number, None);
                }
                deleted
            }
            _ => return,
        };
        match outcome {
            Err(error) if !self.device.is_dark() => {
                self.fail(&format!("what the pool should do it does not: {error}"))
            }
            _ => {}
        }
    }

    /// Opens the pool after a power failure, whose image is decided here.
    fn after(&mut self) -> Option<LocalPool> {
        self.crash_quietly();
        let pool = self.open_pool();
        self.device.cut_power_after(0);
        pool.ok()
    }

    fn is_absent(&mut self, id: VolumeId) -> bool {
        let pool = self.after();
        pool.is_none_or(|pool| pool.list().unwrap().iter().all(|(found, _)| *found != id))
    }

    fn has_size(&mut self, id: VolumeId, size: ByteCount) -> bool {
        self.after().is_some_and(|pool| pool.list().unwrap().contains(&(id, size)))
    }

    /// Returns a place in a volume: near its beginning, its end, or a few others.
    fn place(&mut self, number: usize, count: u64) -> u64 {
        let blocks = self.volumes[number].size.0 / BLOCK;
        let region = self.random.below(6);
        let start = (blocks / 6 * region + self.random.below(40)).min(blocks - count);
        if self.random.one_in(10) { blocks - count } else { start }
    }

    fn submit(&mut self, number: usize, volume: &mut OpenVolume) {
        let count = self.random.among(&[1, 1, 1, 2, 3, 8, 20, 64]);
        let first = self.place(number, count);
        let offset = first * BLOCK;
        let length = (count * BLOCK) as u32;
        let range = first..first + count;
        let model = &mut self.volumes[number];
        let is_changing = range
            .clone()
            .any(|block| model.blocks.get(&block).is_some_and(|known| known.changing > 0));
        let kind = self.random.below(10);
        let is_changing = is_changing && !self.random.one_in(4);
        let (operation, buffer, pending) = match kind {
            0..=4 if !is_changing => return self.write(number, volume, first, count, kind == 0),
            5 if !is_changing => return self.clear(number, volume, first, count),
            6 | 7 => {
                let covered = model.blocks.iter();
                let covered =
                    covered.map(|(block, known)| (*block, known.versions[known.complete]));
                (Operation::Flush, None, Pending::Flush { covered: covered.collect() })
            }
            _ => {
                let known: Vec<Known> = range
                    .map(|block| model.blocks.get(&block).cloned().unwrap_or_default())
                    .collect();
                let might = known.iter().map(|known| known.versions[known.complete..].to_vec());
                let past = known.iter().map(|known| known.versions[..known.complete].to_vec());
                let might = might.collect();
                let past = past.collect();
                let buffer = Some(Buffer::new(length as usize));
                (Operation::Read, buffer, Pending::Read { first, might, past })
            }
        };
        let (offset, length) =
            if operation == Operation::Flush { (0, 0) } else { (offset, length) };
        let submission = Submission { ticket: 0, operation, offset, length, buffer };
        self.begin(number, volume, submission, pending);
    }

    fn write(&mut self, number: usize, volume: &mut OpenVolume, first: u64, count: u64, fua: bool) {
        let model = &mut self.volumes[number];
        let version = model.next_version;
        model.next_version += 1;
        let offset = first * BLOCK;
        let length = (count * BLOCK) as u32;
        let mut buffer = Buffer::new(length as usize);
        for (block, bytes) in (first..).zip(buffer.bytes_mut().chunks_mut(BLOCK as usize)) {
            fill(model.id, block, version, bytes);
            let known = model.blocks.entry(block).or_default();
            known.versions.push(version);
            known.begin();
        }
        let operation = Operation::Write { fua };
        let buffer = Some(buffer);
        let submission = Submission { ticket: 0, operation, offset, length, buffer };
        self.begin(number, volume, submission, Pending::Write { first, count, fua });
    }

    fn clear(&mut self, number: usize, volume: &mut OpenVolume, first: u64, count: u64) {
        let fua = self.random.one_in(4);
        let model = &mut self.volumes[number];
        let version = model.next_version | ZERO;
        model.next_version += 1;
        for block in first..first + count {
            let known = model.blocks.entry(block).or_default();
            known.versions.push(version);
            known.begin();
        }
        let operation = if self.random.one_in(2) {
            Operation::Discard { fua }
        } else {
            // These zeroes are written, piece by piece if the range is long.
            let keep_allocated = self.random.one_in(3);
            Operation::WriteZeroes { fua, keep_allocated, only_if_fast: !keep_allocated }
        };
        let offset = first * BLOCK;
        let length = (count * BLOCK) as u32;
        let submission = Submission { ticket: 0, operation, offset, length, buffer: None };
        self.begin(number, volume, submission, Pending::Write { first, count, fua });
    }

    /// Clears nearly all blocks of a volume, so that whole chunks of it are free.
    fn clear_all(&mut self, number: usize, volume: &mut OpenVolume) {
        let part = self.volumes[number].size.0 / BLOCK / 6;
        for region in 0..6 {
            let first = part * region;
            let count = part.min(104);
            let mut blocks = self.volumes[number].blocks.range(first..first + count);
            if blocks.all(|(_, known)| known.changing == 0) {
                self.clear(number, volume, first, count);
            }
        }
    }

    fn begin(
        &mut self,
        number: usize,
        volume: &mut OpenVolume,
        mut submission: Submission,
        pending: Pending,
    ) {
        submission.ticket = volume.next_ticket;
        if volume.store.must_reopen() {
            volume.fails_from.get_or_insert(submission.ticket);
        }
        volume.next_ticket += 1;
        if let Pending::Write { first, count, .. } = pending {
            self.might_be_read(number, volume, first..first + count);
        }
        volume.pending.insert(submission.ticket, pending);
        volume.store.submit(submission, &mut volume.queue);
        self.collect(number, volume);
    }

    /// Adds written blocks to what a read under way may return, even if they are replaced before
    /// the read has ended.
    fn might_be_read(&self, number: usize, volume: &mut OpenVolume, written: Range<u64>) {
        for pending in volume.pending.values_mut() {
            let Pending::Read { first, might, .. } = pending else { continue };
            for (block, might) in (*first..).zip(might).filter(|(at, _)| written.contains(at)) {
                might.extend(self.volumes[number].blocks[&block].versions.last());
            }
        }
    }

    fn answer(&mut self, number: usize, volume: &mut OpenVolume) {
        if let Some(done) = volume.queue.answer() {
            volume.store.disk_done(done, &mut volume.queue);
        }
        self.collect(number, volume);
    }

    fn collect(&mut self, number: usize, volume: &mut OpenVolume) {
        while let Some(completion) = volume.store.poll() {
            let Some(pending) = volume.pending.remove(&completion.ticket) else {
                self.fail(&format!("{completion:?} was answered twice"));
            };
            if completion.result.is_err() && !self.device.is_dark() && self.fail_ppm == 0 {
                self.fail(&format!("{pending:?} failed: {:?}", completion.result));
            }
            match (completion.result, &pending) {
                (Ok(()), Pending::Write { .. } | Pending::Flush { .. })
                    if volume.fails_from.is_some_and(|first| first <= completion.ticket) =>
                {
                    self.fail(&format!("{pending:?} is done after a flush has failed"));
                }
                (Ok(()), _) => self.completed(number, pending, &completion),
                (Err(_), Pending::Flush { .. }) if !volume.store.must_reopen() => {
                    self.fail("a flush that failed is forgotten");
                }
                // Its blocks have their old contents, or those of the write.
                (Err(_), &Pending::Write { first, count, .. }) if !self.device.is_dark() => {
                    let blocks = &mut self.volumes[number].blocks;
                    blocks
                        .range_mut(first..first + count)
                        .for_each(|(_, known)| known.changing -= 1);
                }
                (Err(_), _) => {}
            }
        }
    }

    fn completed(&mut self, number: usize, pending: Pending, completion: &Completion) {
        match pending {
            Pending::Write { first, count, fua } => {
                for (_, known) in self.volumes[number].blocks.range_mut(first..first + count) {
                    known.changing -= 1;
                    if known.is_tangled {
                        continue;
                    }
                    known.complete = known.versions.len() - 1;
                    if fua {
                        known.versions.drain(..known.complete);
                        known.complete = 0;
                    }
                }
            }
            Pending::Flush { covered } => {
                for (block, version) in covered {
                    let known = self.volumes[number].blocks.get_mut(&block).unwrap();
                    // A later flush may have made a later version durable.
                    if let Some(at) = known.versions.iter().rposition(|v| *v == version)
                        && at <= known.complete
                    {
                        known.versions.drain(..at);
                        known.complete -= at;
                    }
                }
            }
            Pending::Read { first, might, past } => {
                let id = self.volumes[number].id;
                let bytes = completion.buffer.as_ref().unwrap().bytes();
                let blocks =
                    (first..).zip(might.iter().zip(&past)).zip(bytes.chunks(BLOCK as usize));
                for ((block, (might, past)), bytes) in blocks {
                    let known =
                        self.volumes[number].blocks.get(&block).cloned().unwrap_or_default();
                    let is_right = version_of(id, block, bytes).is_some_and(|found| {
                        let now = known.versions.iter().filter(|version| !past.contains(version));
                        might.iter().chain(now).any(|&version| is(found, version))
                    });
                    if !is_right {
                        let found = version_of(id, block, bytes);
                        self.fail(&format!(
                            "{id} block {block} reads as {found:?}: {known:?}, {might:?}"
                        ));
                    }
                }
            }
        }
    }

    /// Fails the power, or kills the process: operations under way may have taken effect or not.
    fn crash(&mut self, mut open: Vec<Option<OpenVolume>>) {
        let is_kill = self.random.one_in(2) && !self.has_crashed;
        if is_kill {
            open.iter_mut().flatten().for_each(|volume| volume.queue.kill());
        }
        let lasting = self.lasting.killed();
        self.device.cut_power_after(0);
        drop(open);
        match is_kill {
            true if self.random.one_in(8) => {
                // An older copy of the files is put back. The run number is the machine's, and
                // stays.
                self.go_on(self.older.in_run_of(&self.lasting));
                self.was_killed = false;
            }
            true => self.go_on(lasting),
            false => self.crash_quietly(),
        }
        for model in &mut self.volumes {
            for known in model.blocks.values_mut() {
                known.changing = 0;
                known.is_tangled = false;
            }
        }
    }
}

#[test]
fn histories() {
    for seed in seeds(CASES) {
        World::new(seed).run();
    }
}
