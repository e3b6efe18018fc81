//! Comparison of the local store with the file below it: the same requests on one io_uring, through
//! the store and directly to a file of the same size, in turn; medians of the rounds, as a ratio.
//! The last side has no log of answered changes: the difference is the cost of losing nothing when
//! the server is killed.
//!
//! `cargo bench -p evenkeel-store --bench local [-- FOLDER]` writes four files of some 1.5 GiB
//! into the folder (the system's temporary one by default), and removes them.

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

/// A load: its operation, the length of its requests, and the number under way.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    writes: bool,
    flushes: bool,
    bytes: u32,
    depth: usize,
    is_random: bool,
}

/// The random writes in the middle of the list age the volume.
const LOADS: [Load; 9] = [
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
        name: "4 KiB write and flush, 1 deep",
        writes: true,
        flushes: true,
        bytes: 4_096,
        depth: 1,
        is_random: true,
    },
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
}

impl Disk for Ring {
    fn submit(&mut self, op: DiskOp) {
        self.queued.push(op);
    }
}

impl Ring {
    fn new() -> std::io::Result<Self> {
        Ok(Self { ring: IoUring::new(4_096)?, ops: Vec::new(), queued: Vec::new() })
    }

    /// Submits the queued operations to the kernel, and waits for at least one answer.
    fn turn(&mut self) -> Result<Vec<DiskDone>, Box<dyn Error>> {
        for op in std::mem::take(&mut self.queued) {
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
        let lasting = LastingFiles::in_folder(folder.path(), 0)?;
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
}

/// Requests a second of a load.
fn measure(side: &mut dyn Side, load: Load, seed: u64) -> Result<f64, Box<dyn Error>> {
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
    let start = clock::monotonic();
    let mut is_flush = false;
    loop {
        let is_over = clock::monotonic().since(start) >= LENGTH;
        while !is_over && under_way < load.depth {
            if load.flushes && is_flush {
                side.submit(Operation::Flush, 0, None, 0);
            } else {
                let place = if load.is_random { random.below(places) } else { next % places };
                next += 1;
                let operation =
                    if load.writes { Operation::Write { fua: false } } else { Operation::Read };
                let buffer = buffers.pop();
                side.submit(operation, place * u64::from(load.bytes), buffer, load.bytes);
            }
            is_flush = !is_flush;
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        for buffer in side.done()? {
            under_way -= 1;
            count += u64::from(buffer.is_some());
            buffers.extend(buffer);
        }
    }
    Ok(count as f64 / clock::monotonic().since(start).ns as f64 * 1e9)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
    let file = || tempfile::NamedTempFile::new_in(&folder);
    let raw = file()?;
    let plain = file()?;
    let encrypted = file()?;
    let unnoted = file()?;
    let raw_device = FileDevice::open(raw.path(), false)?;
    raw_device.grow(SIZE)?;
    let mut sides: [Box<dyn Side>; 4] = [
        Box::new(Raw { ring: Ring::new()?, fd: raw_device.fd() }),
        Box::new(Stored::new(plain.path(), true, None)?),
        Box::new(Stored::new(encrypted.path(), true, Some(Keys::Command("cat".to_owned())))?),
        Box::new(Stored::new(unnoted.path(), false, None)?),
    ];
    for side in &mut sides {
        // Twice: the pool's file has had all its blocks then, too.
        for _ in 0..2 {
            fill(side.as_mut())?;
        }
    }
    println!(
        "| load | raw file, requests a second | local store | ratio | encrypted | ratio | without \
         notes | ratio |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    for load in LOADS {
        let mut rates = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for round in 0..ROUNDS as u64 {
            for (rates, side) in rates.iter_mut().zip(&mut sides) {
                rates.push(measure(side.as_mut(), load, round)?);
            }
        }
        let median = |rates: &mut Vec<f64>| {
            rates.sort_unstable_by(f64::total_cmp);
            rates[rates.len() / 2]
        };
        let [raw, plain, encrypted, unnoted] = rates.each_mut().map(median);
        let ours = |rate: f64| format!("{rate:.0} | {:.2}", rate / raw);
        let ours = [plain, encrypted, unnoted].map(ours).join(" | ");
        println!("| {} | {raw:.0} | {ours} |", load.name);
    }
    Ok(())
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
