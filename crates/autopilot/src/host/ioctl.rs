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
