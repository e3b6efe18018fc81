//! Superblocks on devices, read without the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rustix::fs::OFlags;

use crate::Fault;
use evenkeel_planner::autopilot::observation::Kind;

/// Places of the superblocks of a btrfs, in bytes: 64 KiB, 64 MiB, 256 GiB.
const BTRFS_PLACES: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const BTRFS_MAGIC: &[u8; 8] = b"_BHRfS_M";
/// Bytes from the start of a superblock to the magic.
const MAGIC_OFFSET: u64 = 64;
/// Bytes of each read, and what its buffer is aligned to.
const BLOCK: usize = 4096;
/// Longest wait for the reads of one device.
const READ_MAX: Duration = Duration::from_secs(20);
/// Readers that wait for devices, in this process.
static READERS: AtomicU32 = AtomicU32::new(0);
/// The most of them: each is a thread of a device that does not answer.
const READERS_MAX: u32 = 8;

/// The identity in a superblock of a btrfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Btrfs {
    /// The UUID of its file system.
    pub uuid: [u8; 16],
    /// The number of the device.
    pub devid: u64,
    /// Bytes of the device that are allocated to chunks.
    pub allocated_bytes: u64,
}

/// Returns whether the device has a superblock of a file system.
pub(super) fn is_on(device: &Path, kind: Kind, uuid: [u8; 16]) -> Result<bool, Fault> {
    bounded(device, move |file| match kind {
        Kind::Btrfs => Ok(btrfs(file)?.iter().any(|found| found.uuid == uuid)),
        Kind::Xfs => {
            let block = read(file, 0)?;
            Ok(block.is_some_and(|block| block[..4] == *b"XFSB" && block[32..48] == uuid))
        }
        Kind::Ext4 => {
            let block = read(file, 0)?;
            let is_ext = |block: &[u8]| block[1080..1082] == [0x53, 0xEF];
            Ok(block.is_some_and(|block| is_ext(&block) && block[1128..1144] == uuid))
        }
    })
}

/// Returns the superblocks of a btrfs that the device has: up to three.
pub(super) fn btrfs_on(device: &Path) -> Result<Vec<Btrfs>, Fault> {
    bounded(device, btrfs)
}

/// Clears the superblocks of a btrfs that a device has, if each of them is a leftover.
pub(super) fn clear_btrfs(
    device: &Path,
    is_leftover: impl Fn(&Btrfs) -> bool,
) -> Result<(), Fault> {
    let failed = |error: io::Error| Fault::Later(format!("{}: {error}", device.display()));
    let mut options = OpenOptions::new();
    // Fails if a file system or another device holds it.
    let exclusive = OFlags::EXCL.bits().cast_signed();
    let file = options.read(true).write(true).custom_flags(exclusive).open(device);
    let file = file.map_err(failed)?;
    if !btrfs_on(device)?.iter().all(is_leftover) {
        return Ok(());
    }
    for place in BTRFS_PLACES {
        let mut magic = [0; BTRFS_MAGIC.len()];
        let place = place + MAGIC_OFFSET;
        // Beyond the end of the device, there is nothing to clear.
        if file.read_exact_at(&mut magic, place).is_ok() && magic == *BTRFS_MAGIC {
            file.write_all_at(&[0; BTRFS_MAGIC.len()], place).map_err(failed)?;
        }
    }
    file.sync_all().map_err(failed)
}

fn btrfs(file: &File) -> io::Result<Vec<Btrfs>> {
    let mut found = Vec::new();
    for place in BTRFS_PLACES {
        // The next ones lie further, so the device has none of them either.
        let Some(block) = read(file, place)? else { break };
        found.extend(parse(&block));
    }
    Ok(found)
}

fn parse(block: &[u8]) -> Option<Btrfs> {
    let number =
        |place: usize| Some(u64::from_le_bytes(block.get(place..place + 8)?.try_into().ok()?));
    if block.get(64..72)? != BTRFS_MAGIC {
        return None;
    }
    let uuid = block.get(32..48)?.try_into().ok()?;
    Some(Btrfs { uuid, devid: number(201)?, allocated_bytes: number(217)? })
}

/// Reads a block; `None` if the device ends before.
fn read(file: &File, place: u64) -> io::Result<Option<Vec<u8>>> {
    let mut buffer = vec![0_u8; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
    let aligned = &mut buffer[start..start + BLOCK];
    match file.read_exact_at(aligned, place) {
        Ok(()) => Ok(Some(aligned.to_vec())),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads on a thread of its own, since a device that does not answer blocks its reader forever.
fn bounded<T: Send + 'static>(
    device: &Path,
    read: impl FnOnce(&File) -> io::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    let later = |why: String| Fault::Later(format!("{}: {why}", device.display()));
    if READERS.fetch_add(1, Ordering::Relaxed) >= READERS_MAX {
        READERS.fetch_sub(1, Ordering::Relaxed);
        return Err(later(format!(
            "{READERS_MAX} reads of devices wait already: check the volumes"
        )));
    }
    let (sender, result) = mpsc::sync_channel(1);
    let path: PathBuf = device.to_owned();
    std::thread::spawn(move || {
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(direct).open(path);
        let sent = sender.send(file.and_then(|file| read(&file)));
        READERS.fetch_sub(1, Ordering::Relaxed);
        sent
    });
    match result.recv_timeout(READ_MAX) {
        Ok(result) => result.map_err(|error| later(format!("its superblock: {error}"))),
        Err(RecvTimeoutError::Timeout) => {
            Err(later(format!("it has not answered a read within {READ_MAX:?}: check the volume")))
        }
        Err(RecvTimeoutError::Disconnected) => Err(later("its reader has ended".to_owned())),
    }
}
