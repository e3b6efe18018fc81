//! Comparison of the local store with the file below it: the same requests on one io_uring, through
//! the store and directly to a file of the same size, in turn; medians of the rounds, as a ratio.
//! The last side has no log of answered changes: the difference is the cost of losing nothing when
//! the server is killed. The table also has the processor time of a request, and what the plain
//! volume asks of its device: requests for each request of the client, and bytes for each byte.
//!
//! `cargo bench -p evenkeel-store --bench local [-- [FOLDER] [WORDS]]` writes four files of some
//! 1.5 GiB into the folder (the system's temporary one by default), and removes them. With `WORDS`
//! it measures only the loads whose names contain them, of the file, the plain volume and the
//! encrypted one: `aged` are those of volumes that were overwritten at random.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;
use evenkeel_os::clock;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::disk::{Disk, DiskAction, DiskDone, DiskOp};
use evenkeel_store::encryption::keys::Keys;
use evenkeel_store::local::device::{Device, FileDevice};
use evenkeel_store::local::page_cache_file::{Lasting, LastingFiles};
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::volume::Bounds;
use evenkeel_store::{Pool, Store, Submission};
use io_uring::IoUring;
use std::error::Error;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Bytes of the volume, and of the file beside it.
const SIZE: u64 = 1 << 30;
/// Duration of one measurement.
const LENGTH: Duration = Duration::from_ms(1_500);
/// Number of measurements of each side.
const ROUNDS: usize = 5;
/// Number of measurements of aged volumes, which are aged anew before each.
const AGED_ROUNDS: u64 = 3;

/// A load: its operation, the length of its requests, and the number under way. With flushes each
/// of them is a writer that flushes after its write, and waits for both.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    writes: bool,
    flushes: bool,
    bytes: u32,
    depth: usize,
    is_random: bool,
}

/// Number of times that each block is overwritten, on average, before an aged volume is measured.
const AGE: u64 = 2;

/// Loads of a volume that was written in order.
const FRESH: [Load; 8] = [
    Load {
        name: "256 KiB sequential write, 8 deep",
        writes: true,
        flushes: false,
        bytes: 256 << 10,
        depth: 8,
        is_random: false,
    },
    Load {
        name: "256 KiB sequential read, 8 deep",
        writes: false,
        flushes: false,
        bytes: 256 << 10,
        depth: 8,
        is_random: false,
    },
    Load {
        name: "4 KiB random read, 1 deep",
        writes: false,
        flushes: false,
        bytes: 4_096,
        depth: 1,
        is_random: true,
    },
    Load {
        name: "4 KiB random read, 32 deep",
        writes: false,
        flushes: false,
        bytes: 4_096,
        depth: 32,
        is_random: true,
    },
    Load {
        name: "4 KiB random write, 1 deep",
        writes: true,
        flushes: false,
        bytes: 4_096,
        depth: 1,
        is_random: true,
    },
    Load {
        name: "4 KiB random write, 32 deep",
        writes: true,
        flushes: false,
        bytes: 4_096,
        depth: 32,
        is_random: true,
    },
    Load {
        name: "4 KiB write and flush, one writer",
        writes: true,
        flushes: true,
        bytes: 4_096,
        depth: 1,
        is_random: true,
    },
    Load {
        name: "4 KiB write and flush, eight writers",
        writes: true,
        flushes: true,
        bytes: 4_096,
        depth: 8,
        is_random: true,
    },
];

/// Loads of a volume that was overwritten at random, in this order after each ageing.
const AGED: [Load; 2] = [
    Load {
        name: "256 KiB sequential read, aged, 8 deep",
        writes: false,
        flushes: false,
        bytes: 256 << 10,
        depth: 8,
        is_random: false,
    },
    Load {
        name: "256 KiB sequential write, aged, 8 deep",
        writes: true,
        flushes: false,
        bytes: 256 << 10,
        depth: 8,
        is_random: false,
    },
];

/// Operations on an io_uring.
struct Ring {
    ring: IoUring,
    ops: Vec<Option<DiskOp>>,
    queued: Vec<DiskOp>,
    traffic: Traffic,
}

/// Reads and writes of a device, and their bytes.
#[derive(Clone, Copy, Default)]
struct Traffic {
    requests: u64,
    bytes: u64,
}

impl Disk for Ring {
    fn submit(&mut self, op: DiskOp) {
        self.queued.push(op);
    }
}

impl Ring {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(4_096)?,
            ops: Vec::new(),
            queued: Vec::new(),
            traffic: Traffic::default(),
        })
    }

    /// Submits the queued operations to the kernel, and waits for at least one answer.
    fn turn(&mut self) -> Result<Vec<DiskDone>, Box<dyn Error>> {
        for op in std::mem::take(&mut self.queued) {
            if matches!(op.action, DiskAction::Read | DiskAction::Write) {
                self.traffic.requests += 1;
                self.traffic.bytes += u64::from(op.length);
            }
            let slot = match self.ops.iter().position(Option::is_none) {
                Some(slot) => slot,
                None => {
                    self.ops.push(None);
                    self.ops.len() - 1
                }
            };
            let entry = op.entry().user_data(slot as u64);
            self.ops[slot] = Some(op);
            // SAFETY: the operation, and with it its memory, stays until it is answered.
            unsafe { self.ring.submission().push(&entry)? };
        }
        self.ring.submit_and_wait(1)?;
        let mut done = Vec::new();
        for completion in self.ring.completion() {
            let Some(op) = self.ops[completion.user_data() as usize].take() else { continue };
            let code = completion.result();
            let result = u32::try_from(code)
                .map_err(|_| rustix::io::Errno::from_raw_os_error(code.wrapping_neg()));
            done.push(DiskDone { token: op.token, result, buffer: op.buffer });
        }
        Ok(done)
    }
}

/// One side of the comparison, which executes requests.
trait Side {
    fn submit(&mut self, operation: Operation, offset: u64, buffer: Option<Buffer>, length: u32);
    fn done(&mut self) -> Result<Vec<Option<Buffer>>, Box<dyn Error>>;
    fn traffic(&self) -> Traffic;
}

struct Raw {
    ring: Ring,
    fd: RawFd,
}

impl Side for Raw {
    fn submit(&mut self, operation: Operation, offset: u64, buffer: Option<Buffer>, length: u32) {
        let action = match operation {
            Operation::Read => DiskAction::Read,
            Operation::Flush => DiskAction::Sync,
            _ => DiskAction::Write,
        };
        let fd = self.fd;
        self.ring.submit(DiskOp { token: 0, fd, action, offset, length, buffer, buffer_offset: 0 });
    }

    fn done(&mut self) -> Result<Vec<Option<Buffer>>, Box<dyn Error>> {
        let done = self.ring.turn()?;
        done.into_iter().map(|done| Ok(done.result.map(|_| done.buffer)?)).collect()
    }

    fn traffic(&self) -> Traffic {
        self.ring.traffic
    }
}

struct Stored {
    ring: Ring,
    store: Box<dyn Store>,
    /// Directory of its log of answered changes.
    _folder: TempDir,
}

impl Stored {
    /// A volume in a pool of its own.
    fn new(file: &Path, notes: bool, keys: Option<Keys>) -> Result<Self, Box<dyn Error>> {
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(file, false)?);
        LocalPool::init(device.as_ref(), &Layout::for_bytes(0x5eed_5eed, 2 * SIZE))?;
        // As a server opens it: what is answered is noted in case the process is killed.
        let folder = tempfile::tempdir_in(file.parent().unwrap_or(Path::new(".")))?;
        let lasting = LastingFiles::in_folder(folder.path(), 0);
        let bounds = Bounds::default();
        let lasting = notes.then(|| Arc::new(lasting) as Arc<dyn Lasting>);
        let mut pool = LocalPool::open_noting(device, bounds, lasting)?;
        let id = VolumeId::from_bits(1);
        let size = ByteCount(SIZE);
        if let Some(keys) = keys {
            pool = pool.with_keys(keys);
            pool.create_encrypted(id, size)?;
        }
        pool.create(id, size)?;
        Ok(Self { ring: Ring::new()?, store: pool.open(id, size)?, _folder: folder })
    }
}

impl Side for Stored {
    fn submit(&mut self, operation: Operation, offset: u64, buffer: Option<Buffer>, length: u32) {
        let submission = Submission { ticket: 0, operation, offset, length, buffer };
        self.store.submit(submission, &mut self.ring);
    }

    fn done(&mut self) -> Result<Vec<Option<Buffer>>, Box<dyn Error>> {
        let mut ended = Vec::new();
        loop {
            while let Some(completion) = self.store.poll() {
                completion.result.map_err(|failure| format!("{failure:?}"))?;
                ended.push(completion.buffer);
            }
            if !ended.is_empty() {
                return Ok(ended);
            }
            for done in self.ring.turn()? {
                self.store.disk_done(done, &mut self.ring);
            }
        }
    }

    fn traffic(&self) -> Traffic {
        self.ring.traffic
    }
}

/// End of a measurement.
#[derive(Clone, Copy)]
enum Until {
    /// It has taken [`LENGTH`].
    Time,
    /// This number of requests was begun.
    Requests(u64),
}

/// A measurement: requests a second, and what each of them takes of the processor and the device.
#[derive(Clone, Copy)]
struct Measured {
    rate: f64,
    /// Microseconds of the process's processor time for each request.
    processor_us: f64,
    device_requests: f64,
    /// For each byte of the client.
    device_bytes: f64,
}

/// Measures a load. Its flushes are not counted as requests.
fn measure(
    side: &mut dyn Side,
    load: Load,
    seed: u64,
    until: Until,
) -> Result<Measured, Box<dyn Error>> {
    let mut random = Random::new(seed, 9);
    let places = SIZE / u64::from(load.bytes);
    let mut next = 0;
    let mut under_way = 0;
    let mut count = 0_u64;
    let mut buffers: Vec<Buffer> = Vec::new();
    for _ in 0..load.depth {
        let mut buffer = Buffer::new(load.bytes as usize);
        buffer.bytes_mut().iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
        buffers.push(buffer);
    }
    let before = side.traffic();
    let processor_before = clock::process_time();
    let start = clock::monotonic();
    let mut flushes_due = 0_u32;
    loop {
        let is_over = match until {
            Until::Time => clock::monotonic().since(start) >= LENGTH,
            Until::Requests(requests) => next >= requests,
        };
        while !is_over && under_way < load.depth {
            if flushes_due > 0 {
                flushes_due -= 1;
                side.submit(Operation::Flush, 0, None, 0);
            } else {
                let place = if load.is_random { random.below(places) } else { next % places };
                next += 1;
                let operation =
                    if load.writes { Operation::Write { fua: false } } else { Operation::Read };
                let buffer = buffers.pop();
                side.submit(operation, place * u64::from(load.bytes), buffer, load.bytes);
            }
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        for buffer in side.done()? {
            under_way -= 1;
            count += u64::from(buffer.is_some());
            flushes_due += u32::from(load.flushes && buffer.is_some());
            buffers.extend(buffer);
        }
    }
    let seconds = clock::monotonic().since(start).ns as f64 / 1e9;
    let processor = clock::process_time().ns - processor_before.ns;
    let after = side.traffic();
    let each = |device: u64| device as f64 / count as f64;
    Ok(Measured {
        rate: count as f64 / seconds,
        processor_us: each(processor) / 1e3,
        device_requests: each(after.requests - before.requests),
        device_bytes: each(after.bytes - before.bytes) / f64::from(load.bytes),
    })
}

/// Overwrites all blocks of a side in random order, [`AGE`] times on average.
fn age(side: &mut dyn Side, seed: u64) -> Result<(), Box<dyn Error>> {
    const WRITES: Load = Load {
        name: "ageing",
        writes: true,
        flushes: false,
        bytes: 4_096,
        depth: 32,
        is_random: true,
    };
    let writes = AGE * SIZE / u64::from(WRITES.bytes);
    measure(side, WRITES, seed, Until::Requests(writes))?;
    side.submit(Operation::Flush, 0, None, 0);
    side.done()?;
    Ok(())
}

/// The measurements of one load, of each side.
type Rounds = Vec<Vec<Measured>>;

fn main() -> Result<(), Box<dyn Error>> {
    let words = std::env::args().skip(1).filter(|word| !word.starts_with('-'));
    let (folders, only): (Vec<String>, Vec<String>) =
        words.partition(|word| Path::new(word).is_dir());
    let is_wanted = |load: &&Load| only.iter().all(|words| load.name.contains(words));
    let folder = folders.first().map_or_else(std::env::temp_dir, PathBuf::from);
    let file = || tempfile::NamedTempFile::new_in(&folder);
    let raw = file()?;
    let plain = file()?;
    let encrypted = file()?;
    let unnoted = file()?;
    let raw_device = FileDevice::open(raw.path(), false)?;
    raw_device.grow(SIZE)?;
    let mut sides: Vec<Box<dyn Side>> = vec![
        Box::new(Raw { ring: Ring::new()?, fd: raw_device.fd() }),
        Box::new(Stored::new(plain.path(), true, None)?),
        Box::new(Stored::new(encrypted.path(), true, Some(Keys::Command("cat".to_owned())))?),
    ];
    if only.is_empty() {
        sides.push(Box::new(Stored::new(unnoted.path(), false, None)?));
    }
    for side in &mut sides {
        // Twice: the pool's file has had all its blocks then, too.
        for _ in 0..2 {
            fill(side.as_mut())?;
        }
    }
    let more = if sides.len() > 3 { " without notes | ratio |" } else { "" };
    println!(
        "| load | raw file, requests a second | us of processor | local store | ratio | us of \
         processor | device requests | device bytes | encrypted | ratio |{more}"
    );
    println!("| --- {}|", "| ---: ".repeat(2 * sides.len() + 3));
    for load in FRESH.iter().filter(is_wanted) {
        let mut rounds = vec![Vec::new(); sides.len()];
        for round in 0..ROUNDS as u64 {
            add_round(&mut sides, &mut rounds, *load, round)?;
        }
        print(load.name, rounds);
    }
    let loads: Vec<&Load> = AGED.iter().filter(is_wanted).collect();
    let mut aged = vec![vec![Vec::new(); sides.len()]; loads.len()];
    for round in 0..if loads.is_empty() { 0 } else { AGED_ROUNDS } {
        // The file is the same at any age.
        for side in sides.iter_mut().skip(1) {
            age(side.as_mut(), round)?;
        }
        for (load, rounds) in loads.iter().zip(&mut aged) {
            add_round(&mut sides, rounds, **load, round)?;
        }
    }
    loads.iter().zip(aged).for_each(|(load, rounds)| print(load.name, rounds));
    Ok(())
}

/// Measures a load once on each side.
fn add_round(
    sides: &mut [Box<dyn Side>],
    rounds: &mut Rounds,
    load: Load,
    seed: u64,
) -> Result<(), Box<dyn Error>> {
    for (rounds, side) in rounds.iter_mut().zip(sides) {
        rounds.push(measure(side.as_mut(), load, seed, Until::Time)?);
    }
    Ok(())
}

/// Prints the medians of a load.
fn print(name: &str, rounds: Rounds) {
    let median = |mut rounds: Vec<Measured>| {
        rounds.sort_unstable_by(|a, b| a.rate.total_cmp(&b.rate));
        rounds[rounds.len() / 2]
    };
    let medians: Vec<Measured> = rounds.into_iter().map(median).collect();
    let raw = medians[0];
    let plain = medians[1];
    print!("| {name} | {:.0} | {:.1} ", raw.rate, raw.processor_us);
    for (number, side) in medians.iter().enumerate().skip(1) {
        print!("| {:.0} | {:.2} ", side.rate, side.rate / raw.rate);
        if number == 1 {
            let Measured { processor_us, device_requests, device_bytes, .. } = plain;
            print!("| {processor_us:.1} | {device_requests:.2} | {device_bytes:.2} ");
        }
    }
    println!("|");
}

/// Writes everything once.
fn fill(side: &mut dyn Side) -> Result<(), Box<dyn Error>> {
    const PART: u32 = 1 << 20;
    for part in 0..SIZE / u64::from(PART) {
        let mut buffer = Buffer::new(PART as usize);
        buffer.bytes_mut().fill(part as u8);
        side.submit(Operation::Write { fua: false }, part * u64::from(PART), Some(buffer), PART);
        side.done()?;
    }
    side.submit(Operation::Flush, 0, None, 0);
    side.done()?;
    Ok(())
}
