//! A pool on a device that has all of its space from the beginning, as a disk has.

use super::super::discovery::{WIPED, WIPED_AT};
use super::super::simulated::SimulatedDevice;
use super::super::volume::recover;
use super::*;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
const SIZE: ByteCount = ByteCount(200 * MIB);
const ID: VolumeId = VolumeId::from_bits(7);

/// A disk of a fixed size, which only a test makes larger.
#[derive(Clone, Debug)]
struct FixedDisk {
    below: SimulatedDevice,
    size: Arc<AtomicU64>,
}

impl FixedDisk {
    fn new(size: u64) -> Self {
        Self { below: SimulatedDevice::new(1 << 40), size: Arc::new(AtomicU64::new(size)) }
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }

    fn refuse_beyond(&self, end: u64) -> io::Result<()> {
        if end > self.size.load(Ordering::Relaxed) {
            Err(rustix::io::Errno::NOSPC.into())
        } else {
            Ok(())
        }
    }
}

impl Device for FixedDisk {
    fn fd(&self) -> RawFd {
        -1
    }

    fn path(&self) -> &Path {
        Path::new("a simulated disk")
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.size.load(Ordering::Relaxed))
    }

    fn room(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.refuse_beyond(len)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.below.read(offset, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.refuse_beyond(offset + bytes.len() as u64)?;
        self.below.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.below.sync()
    }
}

/// Writes blocks of one MiB from `first` on until there is no space. Returns their number.
fn fill(disk: &FixedDisk, store: &mut dyn Store, first: u64) -> u64 {
    for part in first.. {
        let buffer = Buffer::new(MIB as usize);
        let operation = Operation::Write { fua: true };
        let offset = part * MIB;
        let length = MIB as u32;
        let mut ops = Vec::new();
        let submission = Submission { ticket: 1, operation, offset, length, buffer: Some(buffer) };
        store.submit(submission, &mut ops);
        while !ops.is_empty() {
            let done = recover::run(disk, ops.remove(0));
            store.disk_done(done, &mut ops);
        }
        match store.poll().unwrap().result {
            Ok(()) => {}
            Err(Failure::NoSpace) => return part - first,
            Err(error) => panic!("part {part}: {error:?}"),
        }
    }
    unreachable!("the disk ends")
}

/// All of a disk can be used from the beginning, and also space that is added later.
#[test]
fn a_disk_is_used_to_its_end() {
    let disk = FixedDisk::new(64 * MIB);
    let layout = Layout::for_bytes(1, 128 * MIB);
    LocalPool::init(&disk, &layout).unwrap();
    let open = || LocalPool::open(disk.device(), Bounds::default()).unwrap();
    let pool = open();
    let total = |pool: &LocalPool| pool.space().unwrap().unwrap().total.0 / MIB;
    let small = total(&pool);
    let first = read_superblock(&disk).unwrap().first_chunk;
    assert_eq!(small, (64 - u64::from(first)) * 7 / 8);
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let filled = fill(&disk, store.as_mut(), 0);
    assert!(filled >= small, "{filled} of {small} MiB");
    assert_eq!(total(&pool), small);
    // The same pool, and one that is opened later.
    disk.size.store(96 * MIB, Ordering::Relaxed);
    assert_eq!(total(&pool), (96 - u64::from(first)) * 7 / 8);
    let more = fill(&disk, store.as_mut(), filled);
    assert!(more > 24, "{more} MiB more");
    drop((store, pool));
    disk.size.store(1 << 40, Ordering::Relaxed);
    let pool = open();
    let largest = u64::from(layout.chunks_max - first) * 7 / 8;
    assert!((largest..largest + 62).contains(&total(&pool)), "its tables have room for no more");
    let mut store = pool.open(ID, SIZE).unwrap();
    assert!(fill(&disk, store.as_mut(), filled + more) > 24);
    drop((store, pool));
    assert_eq!(check(&disk, false).unwrap().problems, Vec::<String>::new());
}

/// Writes a block that is zeroes except for these bytes at `offset`.
fn put(disk: &FixedDisk, offset: u64, bytes: &[u8]) {
    let mut block = vec![0; BLOCK_BYTES];
    let start = offset as usize % BLOCK_BYTES;
    block[start..start + bytes.len()].copy_from_slice(bytes);
    disk.write(offset - start as u64, &block).unwrap();
}

/// A GPT has its second copy in the last sector, and a Linux RAID its superblock before the end.
#[test]
fn a_device_with_content_at_its_end_is_left_alone() {
    let size = 64 * MIB;
    for (before_end, bytes, found) in [
        (512, b"EFI PART", "the second copy of a GPT partition table"),
        (4_096, b"EFI PART", "the second copy of a GPT partition table"),
        (65_536, b"\xfc\x4e\x2b\xa9....", "is 0xfc"),
        (8_192, b"\xfc\x4e\x2b\xa9....", "is 0xfc"),
    ] {
        let disk = FixedDisk::new(size);
        put(&disk, size - before_end, bytes);
        let error = LocalPool::init(&disk, &LAYOUT).unwrap_err();
        assert!(matches!(error, StoreError::NotEmpty { .. }), "{error}");
        assert!(error.to_string().contains(found), "{error}");
        // As `store init --force` marks a device.
        put(&disk, WIPED_AT as u64, WIPED);
        LocalPool::init(&disk, &LAYOUT).unwrap();
    }
}

/// The error has the size of the device, and not that of the pool that it may grow to.
#[test]
fn a_device_that_is_too_small_for_a_pool_is_refused_with_its_size() {
    let layout = Layout::for_bytes(1, 128 * MIB);
    let large = FixedDisk::new(64 * MIB);
    LocalPool::init(&large, &layout).unwrap();
    let tables = u64::from(read_superblock(&large).unwrap().first_chunk) * MIB;
    for (size, is_enough) in [(512, false), (tables, false), (tables + MIB, true)] {
        let disk = FixedDisk::new(size);
        let made = LocalPool::init(&disk, &layout);
        assert_eq!(made.is_ok(), is_enough, "{size}");
        if let Err(error) = made {
            let size = format!("it has {}, and a pool needs", ByteCount(size));
            assert!(error.to_string().contains(&size), "{error}");
        }
    }
}
