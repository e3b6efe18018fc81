//! The facts of a mounted XFS or ext4, which have one device.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use super::device::Block;
use super::{Facts, hex, ioctl};
use crate::Fault;
use evenkeel_planner::autopilot::observation::{Device, Kind};

/// The place of the superblock of ext4 on its device, and its length, in bytes.
const EXT4_PLACE: u64 = 1_024;
const EXT4_BYTES: usize = 1_024;
/// The flag of block numbers with 64 bits.
const EXT4_64_BITS: u32 = 0x80;
/// The largest block is this power of two times 1,024 bytes: 1 MiB.
const EXT4_EXPONENT_MAX: u32 = 10;

/// Returns the UUID of an XFS or ext4 and its size in bytes.
pub(super) fn identity(kind: Kind, open: &File, block: &Block) -> Result<([u8; 16], u64), Fault> {
    let failed = |error: io::Error| {
        Fault::Later(format!("the superblock of {}: {error}", block.path.display()))
    };
    if kind == Kind::Xfs {
        let geometry = ioctl::xfs_geometry(open).map_err(failed)?;
        return Ok((geometry.uuid, geometry.size_bytes));
    }
    // ext4 changes its superblock in the page cache of the device, so this is the present one.
    let mut bytes = [0_u8; EXT4_BYTES];
    let device = File::open(&block.path).map_err(failed)?;
    device.read_exact_at(&mut bytes, EXT4_PLACE).map_err(failed)?;
    ext4(&bytes).ok_or_else(|| failed(io::Error::other("it is not one of ext4")))
}

/// Parses the superblock of an ext4: its UUID, and its size in bytes.
fn ext4(bytes: &[u8; EXT4_BYTES]) -> Option<([u8; 16], u64)> {
    let number =
        |place: usize| u32::from_le_bytes(std::array::from_fn(|index| bytes[place + index]));
    if bytes[56..58] != [0x53, 0xEF] {
        return None;
    }
    let high = if number(96) & EXT4_64_BITS == 0 { 0 } else { number(336) };
    let blocks = u64::from(high) << 32 | u64::from(number(4));
    let exponent = Some(number(24)).filter(|exponent| *exponent <= EXT4_EXPONENT_MAX)?;
    let block_bytes = 1_024_u64 << exponent;
    let uuid = std::array::from_fn(|index| bytes[104 + index]);
    Some((uuid, blocks.checked_mul(block_bytes)?))
}

/// Adds the facts of an XFS or ext4.
pub(super) fn observe(open: &File, block: &Block, facts: &mut Facts) -> Result<(), Fault> {
    let (uuid, size_bytes) = identity(facts.seen.kind, open, block)?;
    debug_assert_eq!(hex(uuid), facts.seen.uuid, "the caller has compared them");
    facts.seen.size_bytes = size_bytes;
    facts.seen.devices = vec![Device {
        devid: 1,
        path: block.path.to_string_lossy().into_owned(),
        volume: facts.volumes.get(&block.number).cloned(),
        device_bytes: block.size_bytes()?,
        size_bytes,
        allocated_bytes: size_bytes,
        errors: errors(facts.seen.kind, block),
    }];
    Ok(())
}

/// Returns the errors that ext4 has counted. XFS counts none: it shuts down.
fn errors(kind: Kind, block: &Block) -> u64 {
    let name = block.path.file_name().unwrap_or_default();
    let path = std::path::Path::new("/sys/fs/ext4").join(name).join("errors_count");
    let text = (kind == Kind::Ext4).then(|| fs::read_to_string(path).ok()).flatten();
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblock_of_ext4_has_uuid_and_size() {
        let mut bytes = [0_u8; EXT4_BYTES];
        assert_eq!(ext4(&bytes), None);
        bytes[56..58].copy_from_slice(&[0x53, 0xEF]);
        bytes[4..8].copy_from_slice(&1_000_u32.to_le_bytes());
        bytes[24..28].copy_from_slice(&2_u32.to_le_bytes());
        bytes[104..120].fill(7);
        bytes[336..340].copy_from_slice(&1_u32.to_le_bytes());
        assert_eq!(ext4(&bytes), Some(([7; 16], 4_096_000)));
        bytes[96] = 0x80;
        assert_eq!(ext4(&bytes), Some(([7; 16], ((1 << 32) + 1_000) * 4_096)));
        bytes[24..28].copy_from_slice(&60_u32.to_le_bytes());
        assert_eq!(ext4(&bytes), None);
    }
}
