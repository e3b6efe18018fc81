//! Questions to the kernel that no program answers in a fixed form.
//!
//! Arguments are arrays of words: each offset here is one of the structure in the kernel's header
//! (`linux/btrfs.h`, `xfs_fs.h`), whose size is a part of the request's number. They only read.

#![allow(unsafe_code)] // The one place of this crate that needs it.

use std::fs::File;
use std::io;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};

/// The group of the requests of btrfs.
const BTRFS: u8 = 0x94;
/// The tree of a btrfs that has the chunks of each device.
const DEVICE_TREE: u64 = 4;
/// The type of an item that is a chunk on a device.
const DEVICE_EXTENT: u32 = 204;
/// The type of the item that has the state of a replacement.
const DEVICE_REPLACE: u32 = 250;
/// Bytes of the head of a found item.
const ITEM_HEAD: usize = 32;
/// Searches for the chunks of one device: 49 chunks each, a petabyte of chunks of 1 GiB.
const SEARCHES_MAX: u32 = 20_000;

/// The size and use of a device of a btrfs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeviceInfo {
    /// Bytes of it that are allocated to chunks.
    pub allocated_bytes: u64,
    /// Bytes of it that the file system uses; those after the move while it shrinks.
    pub size_bytes: u64,
    /// Its path, as the kernel names it.
    pub path: String,
}

/// A chunk's part on one device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Its start.
    pub start: u64,
    /// Its length.
    pub length: u64,
}

/// The size and the identity of an XFS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// Returns the UUID of a btrfs.
pub(super) fn btrfs_uuid(folder: &File) -> io::Result<[u8; 16]> {
    let mut words = [0_u64; 128];
    ask::<{ opcode::read::<[u64; 128]>(BTRFS, 31) }, 128>(folder, &mut words)?;
    Ok(uuid(&bytes(&words), 16))
}

/// Returns the facts of a device of a btrfs; `None` if it has no device of this number.
pub(super) fn device_info(folder: &File, devid: u64) -> io::Result<Option<DeviceInfo>> {
    let mut words = [0_u64; 512];
    words[0] = devid;
    let asked = ask::<{ opcode::read_write::<[u64; 512]>(BTRFS, 30) }, 512>(folder, &mut words);
    if asked == Err(Errno::NODEV) {
        return Ok(None);
    }
    asked?;
    let path = &bytes(&words)[4096 - 1024..];
    let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
    Ok(Some(DeviceInfo {
        allocated_bytes: words[3],
        size_bytes: words[4],
        path: String::from_utf8_lossy(&path[..end]).into_owned(),
    }))
}

/// Returns the chunks of a device of a btrfs, in the order of their places.
pub(super) fn extents(folder: &File, devid: u64) -> io::Result<Vec<Extent>> {
    let mut found = Vec::new();
    let mut start = 0_u64;
    for _ in 0..SEARCHES_MAX {
        let items = search(folder, devid, DEVICE_EXTENT, start)?;
        let Some((last, _)) = items.last() else { return Ok(found) };
        let Some(next) = last.checked_add(1) else { return Ok(found) };
        start = next;
        for (place, item) in &items {
            found.push(Extent { start: *place, length: word(item, 24) });
        }
    }
    Err(io::Error::other(format!("device {devid} has more than {} chunks", found.len())))
}

/// Returns the device that a replacement replaces, as the file system last stored it.
pub(super) fn replaced(folder: &File) -> io::Result<Option<u64>> {
    let items = search(folder, 0, DEVICE_REPLACE, 0)?;
    Ok(items.first().map(|(_, item)| word(item, 0)))
}

/// Returns the progress of a replacement in thousandths; `None` if none runs.
pub(super) fn replace_progress(folder: &File) -> io::Result<Option<u32>> {
    const STATUS: u64 = 1;
    const STARTED: u64 = 1;
    let mut words = [0_u64; 325];
    words[0] = STATUS;
    ask::<{ opcode::read_write::<[u64; 325]>(BTRFS, 53) }, 325>(folder, &mut words)?;
    let permille = u32::try_from(words[3].min(1_000)).ok();
    Ok(permille.filter(|_| words[2] == STARTED))
}

/// Returns the chunks that a balance has moved, and those that it will move; `None` if there is
/// none.
pub(super) fn balance_progress(folder: &File) -> io::Result<Option<(u64, u64)>> {
    let mut words = [0_u64; 128];
    let asked = ask::<{ opcode::read::<[u64; 128]>(BTRFS, 34) }, 128>(folder, &mut words);
    if asked == Err(Errno::NOTCONN) {
        return Ok(None);
    }
    asked?;
    Ok(Some((words[55], words[53])))
}

/// Returns whether a scrub, or the copy of a replacement, reads a device.
pub(super) fn is_scrubbed(folder: &File, devid: u64) -> io::Result<bool> {
    let mut words = [0_u64; 128];
    words[0] = devid;
    let asked = ask::<{ opcode::read_write::<[u64; 128]>(BTRFS, 29) }, 128>(folder, &mut words);
    match asked {
        Ok(()) => Ok(true),
        Err(Errno::NOTCONN | Errno::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the geometry of an XFS.
pub(super) fn xfs_geometry(folder: &File) -> io::Result<Geometry> {
    let mut words = [0_u64; 14];
    ask::<{ opcode::read::<[u64; 14]>(b'X', 100) }, 14>(folder, &mut words)?;
    let all = bytes(&words);
    let block = u32::from_ne_bytes([all[0], all[1], all[2], all[3]]);
    let size_bytes = word(&all, 32).saturating_mul(u64::from(block));
    Ok(Geometry { uuid: uuid(&all, 64), size_bytes })
}

/// Returns the first items of a type of an object in the device tree, from a place on.
fn search(folder: &File, object: u64, kind: u32, from: u64) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut words = [0_u64; 512];
    // Tree, objects, places, generations, types, and how many items there is room for.
    words[..7].copy_from_slice(&[DEVICE_TREE, object, object, from, u64::MAX, 0, u64::MAX]);
    words[7] = halves(kind, kind);
    words[8] = halves(64, 0);
    ask::<{ opcode::read_write::<[u64; 512]>(BTRFS, 17) }, 512>(folder, &mut words)?;
    let all = bytes(&words);
    let count = u32::from_ne_bytes([all[64], all[65], all[66], all[67]]);
    let mut items = Vec::new();
    let mut place = 104;
    for _ in 0..count {
        let Some(head) = all.get(place..place + ITEM_HEAD) else { break };
        let length = u32::from_ne_bytes([head[28], head[29], head[30], head[31]]);
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let Some(item) = all.get(place + ITEM_HEAD..place + ITEM_HEAD + length) else { break };
        items.push((u64::from_ne_bytes(eight(head, 16)), item.to_vec()));
        place += ITEM_HEAD + length;
    }
    Ok(items)
}

/// Asks the kernel. `OPCODE` has the size of the words in it.
fn ask<const OPCODE: Opcode, const WORDS: usize>(
    folder: &File,
    words: &mut [u64; WORDS],
) -> Result<(), Errno> {
    const { assert!(((OPCODE >> 16) & 0x1FFF) as usize == WORDS * 8, "the size of the words") };
    // SAFETY: the kernel reads and writes at most as many bytes as the request's number has, and
    // those are the array's, as is asserted. Every pattern of bits is a value of its words.
    unsafe { rustix::ioctl::ioctl(folder, Updater::<OPCODE, [u64; WORDS]>::new(words)) }
}

/// Returns a word of two numbers, the first one at the lower address.
fn halves(first: u32, second: u32) -> u64 {
    let low = first.to_ne_bytes();
    let high = second.to_ne_bytes();
    u64::from_ne_bytes([low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]])
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn eight(bytes: &[u8], offset: usize) -> [u8; 8] {
    std::array::from_fn(|index| bytes.get(offset + index).copied().unwrap_or(0))
}

fn uuid(bytes: &[u8], offset: usize) -> [u8; 16] {
    std::array::from_fn(|index| bytes.get(offset + index).copied().unwrap_or(0))
}

/// Returns a little-endian word; zero beyond the end.
fn word(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(eight(bytes, offset))
}
