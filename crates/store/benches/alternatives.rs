//! Comparison of three ways to keep a checksum with every 4 KiB block: their device operations,
//! counted and timed. This is the evidence of decision 9 in docs/decisions.md. Each way is reduced
//! to its device operations for a load; no data is stored that could be read back.
//!
//! `cargo bench -p evenkeel-store --bench alternatives [-- FOLDER]` writes a file of 3 GiB into the
//! folder (the system's temporary one by default), and removes it.

use evenkeel_core::random::Random;
use io_uring::{IoUring, opcode, types};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::error::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// The unit of all places and lengths below.
const BLOCK: u64 = 4_096;
/// Blocks of the volume that is written to: 2 GiB.
const VOLUME: u64 = 512 << 10;
/// Blocks behind the volume: free slots, log, checksum and map pages.
const SPARE: u64 = 256 << 10;
/// Checksum or map entries of one page, with eight bytes each.
const ENTRIES: u64 = 512;
/// Log records of one block, with sixteen bytes each.
const RECORDS: usize = 250;
/// Blocks of the log (or journal) between two checkpoints.
const LOG: usize = 4_096;
/// The longest transfer, in blocks.
const RUN: usize = 256;
/// Number of requests of a load.
const REQUESTS: usize = 40_000;
/// Number of writes of a load that flushes after each.
const FLUSHED: usize = 1_500;
/// Number of measurements of each pair.
const ROUNDS: usize = 3;

/// A device operation of a design.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write {
        at: u64,
        blocks: u64,
    },
    Read {
        at: u64,
        blocks: u64,
    },
    /// Waits for all operations before it, and makes them durable.
    Flush,
}

/// A way to keep checksums.
trait Design {
    fn name(&self) -> &'static str;
    fn write(&mut self, at: u64, blocks: u64, steps: &mut Vec<Step>);
    fn flush(&mut self, steps: &mut Vec<Step>);
    fn read(&self, at: u64, blocks: u64, steps: &mut Vec<Step>);
}

/// A file without checksums.
struct Raw;

impl Design for Raw {
    fn name(&self) -> &'static str {
        "raw file"
    }
    fn write(&mut self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        steps.push(Step::Write { at, blocks });
    }
    fn flush(&mut self, steps: &mut Vec<Step>) {
        steps.push(Step::Flush);
    }
    fn read(&self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        steps.push(Step::Read { at, blocks });
    }
}

/// A ring of log blocks behind the volume.
#[derive(Default)]
struct Log {
    next: u64,
    blocks: usize,
}

impl Log {
    fn append(&mut self, blocks: u64, steps: &mut Vec<Step>) {
        let room = SPARE / 4;
        let start = if self.next + blocks > room { 0 } else { self.next };
        steps.push(Step::Write { at: VOLUME + start, blocks });
        self.next = start + blocks;
        self.blocks += blocks as usize;
    }
}

/// Every write goes to a free place. A flush commits a log of (block, place, checksum), and a
/// checkpoint writes pages of the map.
struct Redirect {
    places: Vec<u64>,
    free: Vec<u64>,
    /// Places that were replaced since the last commit, which frees them.
    replaced: Vec<u64>,
    records: usize,
    dirty: BTreeSet<u64>,
    log: Log,
    /// Whether the log is written beside the data, not by the flush.
    is_eager: bool,
}

impl Redirect {
    fn new(is_eager: bool) -> Self {
        // A tenth of the volume's blocks are free, as on a pool that is nearly full.
        let spare = VOLUME + SPARE / 2;
        Self {
            places: (0..VOLUME).collect(),
            free: (spare..spare + VOLUME / 10).collect(),
            replaced: Vec::new(),
            records: 0,
            dirty: BTreeSet::new(),
            log: Log::default(),
            is_eager,
        }
    }

    fn commit(&mut self, steps: &mut Vec<Step>) {
        if self.records > 0 {
            self.log.append(self.records.div_ceil(RECORDS) as u64, steps);
            self.records = 0;
        }
        steps.push(Step::Flush);
        self.free.append(&mut self.replaced);
        if self.log.blocks >= LOG || self.dirty.len() >= LOG {
            self.log.blocks = 0;
            for page in std::mem::take(&mut self.dirty) {
                steps.push(Step::Write { at: VOLUME + SPARE / 4 + page, blocks: 1 });
            }
            steps.push(Step::Flush);
        }
    }
}

impl Design for Redirect {
    fn name(&self) -> &'static str {
        if self.is_eager { "redirect, log beside data" } else { "redirect, log by flush" }
    }
    fn write(&mut self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        if (self.free.len() as u64) < blocks || self.replaced.len() > 8_192 {
            self.commit(steps);
        }
        // A run of places if there is one, otherwise single ones.
        let start = self.free.len() - blocks as usize;
        let mut taken = self.free.split_off(start);
        taken.sort_unstable();
        for (block, place) in (at..).zip(&taken) {
            self.replaced.push(std::mem::replace(&mut self.places[block as usize], *place));
            self.dirty.insert(block / ENTRIES);
        }
        for run in taken.chunk_by(|a, b| a + 1 == *b) {
            steps.push(Step::Write { at: run[0], blocks: run.len() as u64 });
        }
        self.records += blocks as usize;
        if self.is_eager {
            self.log.append(self.records.div_ceil(RECORDS) as u64, steps);
            self.records = 0;
        }
    }
    fn flush(&mut self, steps: &mut Vec<Step>) {
        self.commit(steps);
    }
    fn read(&self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        let places = &self.places[at as usize..(at + blocks) as usize];
        for run in places.chunk_by(|a, b| a + 1 == *b) {
            steps.push(Step::Read { at: run[0], blocks: run.len() as u64 });
        }
    }
}

/// Data and checksum go to a journal first; a checkpoint writes the blocks to their places, where
/// several writes of one block become one.
#[derive(Default)]
struct Journal {
    pending: Vec<u64>,
    home: BTreeSet<u64>,
    log: Log,
}

impl Journal {
    fn append(&mut self, steps: &mut Vec<Step>) {
        if !self.pending.is_empty() {
            let headers = self.pending.len().div_ceil(RECORDS) as u64;
            self.log.append(headers + self.pending.len() as u64, steps);
            self.home.extend(self.pending.drain(..));
        }
        if self.log.blocks >= LOG * 4 {
            self.log.blocks = 0;
            let blocks: Vec<u64> = std::mem::take(&mut self.home).into_iter().collect();
            let pages: BTreeSet<u64> = blocks.iter().map(|block| block / ENTRIES).collect();
            let runs = blocks.chunk_by(|a, b| a + 1 == *b);
            for run in runs.flat_map(|run| run.chunks(RUN)) {
                steps.push(Step::Write { at: run[0], blocks: run.len() as u64 });
            }
            for page in pages {
                steps.push(Step::Write { at: VOLUME + SPARE / 4 + page, blocks: 1 });
            }
            steps.push(Step::Flush);
        }
    }
}

impl Design for Journal {
    fn name(&self) -> &'static str {
        "journal of data, then in place"
    }
    fn write(&mut self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        self.pending.extend(at..at + blocks);
        // Requests that 32 callers make together are one write of the journal.
        if self.pending.len() as u64 >= (32 * blocks).min(RUN as u64) {
            self.append(steps);
        }
    }
    fn flush(&mut self, steps: &mut Vec<Step>) {
        self.append(steps);
        steps.push(Step::Flush);
    }
    fn read(&self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        steps.push(Step::Read { at, blocks });
    }
}

/// Data is written in place. Changing regions are first marked on the device, and a flush logs
/// checksums. After a crash, blocks of marked regions are accepted as they are, so rot there is not
/// found.
#[derive(Default)]
struct Marked {
    marked: BTreeSet<u64>,
    records: usize,
    log: Log,
}

/// Number of blocks of a region that is marked as a whole: 4 MiB.
const REGION: u64 = 1_024;
impl Design for Marked {
    fn name(&self) -> &'static str {
        "in place, marked regions"
    }
    fn write(&mut self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        if self.marked.insert(at / REGION) {
            steps.push(Step::Write { at: VOLUME, blocks: 1 });
            steps.push(Step::Flush);
        }
        self.records += blocks as usize;
        steps.push(Step::Write { at, blocks });
        if self.records > 8_192 {
            self.flush(steps);
        }
    }
    fn flush(&mut self, steps: &mut Vec<Step>) {
        if self.records > 0 {
            self.log.append(self.records.div_ceil(RECORDS) as u64, steps);
            self.records = 0;
        }
        steps.push(Step::Flush);
    }
    fn read(&self, at: u64, blocks: u64, steps: &mut Vec<Step>) {
        steps.push(Step::Read { at, blocks });
    }
}

/// Returns a load as steps of a design.
fn load(name: &str, design: &mut dyn Design) -> (usize, u64, Vec<Step>) {
    let mut steps = Vec::new();
    let mut random = Random::new(42, 3);
    match name {
        "4 KiB random write" | "4 KiB random write, aged" => {
            let aged = name.ends_with("aged");
            if aged {
                let mut before = Vec::new();
                for _ in 0..2 * VOLUME {
                    design.write(random.below(VOLUME), 1, &mut before);
                }
            }
            for _ in 0..REQUESTS {
                design.write(random.below(VOLUME), 1, &mut steps);
            }
            design.flush(&mut steps);
            (REQUESTS, 1, steps)
        }
        "4 KiB write and flush" => {
            for _ in 0..FLUSHED {
                design.write(random.below(VOLUME), 1, &mut steps);
                design.flush(&mut steps);
            }
            (FLUSHED, 1, steps)
        }
        "256 KiB sequential write" => {
            let count = VOLUME / 64;
            for request in 0..count {
                design.write(request * 64, 64, &mut steps);
            }
            design.flush(&mut steps);
            (count as usize, 64, steps)
        }
        _ => {
            let mut before = Vec::new();
            for _ in 0..2 * VOLUME {
                design.write(random.below(VOLUME), 1, &mut before);
            }
            let count = VOLUME / 256;
            for request in 0..count {
                design.read(request * 64, 64, &mut steps);
            }
            (count as usize, 64, steps)
        }
    }
}

struct Device {
    file: OwnedFd,
    ring: IoUring,
    memory: evenkeel_store::buffer::Buffer,
}

impl Device {
    /// Executes steps, at most `depth` at a time. Returns the duration.
    fn run(&mut self, steps: &[Step], depth: usize) -> Result<Duration, Box<dyn Error>> {
        let start = evenkeel_os::clock::monotonic();
        let mut under_way = 0;
        for step in steps {
            while under_way >= depth || (under_way > 0 && matches!(step, Step::Flush)) {
                self.ring.submit_and_wait(1)?;
                under_way -= self.finished()?;
            }
            let fd = types::Fd(self.file.as_raw_fd());
            let memory = self.memory.as_ptr();
            let entry = match *step {
                Step::Write { at, blocks } => {
                    opcode::Write::new(fd, memory, (blocks * BLOCK) as u32)
                        .offset(at * BLOCK)
                        .build()
                }
                Step::Read { at, blocks } => opcode::Read::new(fd, memory, (blocks * BLOCK) as u32)
                    .offset(at * BLOCK)
                    .build(),
                Step::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            };
            // SAFETY: the memory lives as long as the ring, and its contents are not used.
            unsafe { self.ring.submission().push(&entry)? };
            under_way += 1;
            if matches!(step, Step::Flush) {
                self.ring.submit_and_wait(1)?;
                under_way -= self.finished()?;
            }
        }
        while under_way > 0 {
            self.ring.submit_and_wait(1)?;
            under_way -= self.finished()?;
        }
        Ok(Duration::from_nanos(evenkeel_os::clock::monotonic().since(start).ns))
    }

    fn finished(&mut self) -> Result<usize, Box<dyn Error>> {
        let mut count = 0;
        for done in self.ring.completion() {
            if done.result() < 0 {
                return Err(std::io::Error::from_raw_os_error(-done.result()).into());
            }
            count += 1;
        }
        Ok(count)
    }
}

fn open(folder: PathBuf) -> Result<(tempfile::NamedTempFile, Device), Box<dyn Error>> {
    let named = tempfile::NamedTempFile::new_in(folder)?;
    let file = rustix::fs::open(named.path(), OFlags::RDWR | OFlags::DIRECT, Mode::empty())?;
    let memory = evenkeel_store::buffer::Buffer::new(1 << 21);
    let mut device = Device { file, ring: IoUring::new(64)?, memory };
    // Written once, so that no measurement includes the file system's first allocation.
    let all: Vec<Step> = (0..(VOLUME + SPARE) / 256)
        .map(|part| Step::Write { at: part * 256, blocks: 256 })
        .chain([Step::Flush])
        .collect();
    device.run(&all, 16)?;
    Ok((named, device))
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let (_named, mut device) = open(folder.map_or_else(std::env::temp_dir, PathBuf::from))?;
    println!(
        "| load | design | writes a request | bytes written for each of payload \
         | reads a request | flushes a request | rate, of raw |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: |");
    let loads = [
        ("4 KiB random write", 32),
        ("4 KiB random write, aged", 32),
        ("4 KiB write and flush", 2),
        ("256 KiB sequential write", 8),
        ("256 KiB sequential read, aged", 8),
    ];
    for (name, depth) in loads {
        let designs = || -> [Box<dyn Design>; 5] {
            [
                Box::new(Raw),
                Box::new(Redirect::new(false)),
                Box::new(Redirect::new(true)),
                Box::<Journal>::default(),
                Box::<Marked>::default(),
            ]
        };
        let mut times = [const { Vec::new() }; 5];
        for _ in 0..ROUNDS {
            for (times, mut design) in times.iter_mut().zip(designs()) {
                let (_, _, steps) = load(name, design.as_mut());
                // A file system would merge neighbouring requests in a queue; here none are merged.
                times.push(device.run(&steps, depth)?);
            }
        }
        for times in &mut times {
            times.sort_unstable();
        }
        let raw = times[0][ROUNDS / 2];
        for (times, mut design) in times.iter().zip(designs()) {
            let (requests, blocks, steps) = load(name, design.as_mut());
            let mut writes = 0_u64;
            let mut written = 0;
            let mut reads = 0_u64;
            let mut flushes = 0_u64;
            for step in &steps {
                match step {
                    Step::Write { blocks, .. } => {
                        (writes, written) = (writes + 1, written + blocks)
                    }
                    Step::Read { .. } => reads += 1,
                    Step::Flush => flushes += 1,
                }
            }
            let each = |count: u64| count as f64 / requests as f64;
            println!(
                "| {name} | {} | {:.3} | {:.3} | {:.2} | {:.3} | {:.2} |",
                design.name(),
                each(writes),
                each(written) / blocks as f64,
                each(reads),
                each(flushes),
                raw.as_secs_f64() / times[ROUNDS / 2].as_secs_f64(),
            );
        }
    }
    Ok(())
}
