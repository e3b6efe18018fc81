//! Whether the data of a device finds room on the other ones.
//!
//! A removal without room fails late, after it used the room that there was, and the second one
//! fails at once. So chunks are counted before, not bytes.

use evenkeel_core::units::GIB;

use crate::autopilot::observation::{Device, FileSystem, Kind, Profile};
use crate::autopilot::policy::Policy;

/// Bytes of a device that its file system may leave unused: tables of partitions, headers of
/// encryption, and ends that are too short for a group of blocks.
const SLACK_BYTES: u64 = 32 << 20;

/// Returns whether a size is less than another one by more than file systems leave unused.
#[must_use]
pub fn is_short(bytes: u64, of_bytes: u64) -> bool {
    bytes.saturating_add(SLACK_BYTES) < of_bytes
}

/// Returns the size of the largest chunks of a btrfs: a tenth of it, and at most 1 GiB.
#[must_use]
pub fn chunk_bytes(file_system: &FileSystem) -> u64 {
    (file_system.size_bytes / 10).min(GIB)
}

/// Returns the bytes that stay free after a move: the reserve of the policy at a size, and what the
/// host has not written yet.
#[must_use]
pub fn reserve_bytes(policy: &Policy, file_system: &FileSystem, size_bytes: u64) -> u64 {
    let share = size_bytes / 100 * u64::from(policy.space.reserve_percent);
    share.max(policy.space.reserve_bytes_min).saturating_add(file_system.dirty_limit_bytes)
}

/// Percent of a chunk that is used after compaction.
pub const COMPACTED_PERCENT: u64 = 80;

/// The way by which the data of a device moves to the other ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// The other devices have room for its chunks.
    Ready,
    /// They have, after chunks that are partly used are compacted.
    AfterCompaction,
}

/// Returns the most bytes of chunks that the data of a device takes on other ones: those of its
/// chunks, or all bytes in use with a last chunk that is not full, since chunks are emptied into
/// full ones. A stripe is as wide as the devices that are left, so its chunks count whole.
#[must_use]
pub fn moved_bytes(file_system: &FileSystem, leaving: &Device) -> u64 {
    let is_striped = |profile| !matches!(profile, Some(Profile::Single | Profile::Dup));
    if is_striped(file_system.data) || is_striped(file_system.metadata) {
        return leaving.allocated_bytes;
    }
    let used = file_system.used_bytes.saturating_add(chunk_bytes(file_system));
    leaving.allocated_bytes.min(used)
}

/// Returns how the data of a device can move to the other ones.
///
/// # Errors
/// If it cannot, with the reason.
pub fn to_remove(policy: &Policy, file_system: &FileSystem, devid: u64) -> Result<Removal, String> {
    if file_system.conditions.pinned {
        return Err("a swap file or another program holds the file system's devices".to_owned());
    }
    without_pin(policy, file_system, devid)
}

/// Returns it for a file system whose devices nothing holds.
fn without_pin(policy: &Policy, file_system: &FileSystem, devid: u64) -> Result<Removal, String> {
    if file_system.kind != Kind::Btrfs {
        return Err("only a btrfs gives up a device".to_owned());
    }
    let mut others = file_system.devices.iter().filter(|device| device.devid != devid).peekable();
    let Some(leaving) = file_system.devices.iter().find(|device| device.devid == devid) else {
        return Err(format!("the file system has no device {devid}"));
    };
    if others.peek().is_none() {
        return Err("it is the last device of the file system".to_owned());
    }
    check_profiles(file_system)?;
    let size_bytes = file_system.size_bytes.saturating_sub(leaving.size_bytes);
    let free = others.map(|device| device.size_bytes.saturating_sub(device.allocated_bytes));
    let unallocated = free.fold(0_u64, u64::saturating_add);
    let chunk = chunk_bytes(file_system);
    let moved = moved_bytes(file_system, leaving);
    let wanted = moved.saturating_add(2 * chunk).saturating_add(reserve_bytes(
        policy,
        file_system,
        size_bytes,
    ));
    if unallocated >= wanted {
        return Ok(Removal::Ready);
    }
    // Compaction itself needs a chunk that is not allocated, on any device.
    let own = leaving.size_bytes.saturating_sub(leaving.allocated_bytes);
    let compacted = compactable_bytes(file_system);
    if unallocated.saturating_add(own) >= chunk && unallocated.saturating_add(compacted) >= wanted {
        return Ok(Removal::AfterCompaction);
    }
    Err(format!(
        "the other devices have {unallocated} bytes that are not allocated, and {compacted} more \
         after compaction; {wanted} are needed: {moved} for the data of {}, two chunks and the \
         reserve",
        leaving.path
    ))
}

/// Returns the bytes that are allocated to chunks and are not after compaction.
fn compactable_bytes(file_system: &FileSystem) -> u64 {
    let devices = file_system.devices.iter();
    let allocated = devices.fold(0_u64, |sum, device| sum.saturating_add(device.allocated_bytes));
    let used = u128::from(allocated.saturating_sub(file_system.chunk_slack_bytes));
    let after = (used * 100).div_ceil(COMPACTED_PERCENT.into()).min(allocated.into());
    allocated - u64::try_from(after).expect("invariant: at most the allocated bytes")
}

/// Returns how the data of a device can move to the other ones and a new one of this size.
///
/// # Errors
/// If it cannot, with the reason.
pub fn to_take_over(
    policy: &Policy,
    file_system: &FileSystem,
    old: &Device,
    size_bytes: u64,
) -> Result<Removal, String> {
    let mut after = file_system.clone();
    let devids = file_system.devices.iter().map(|device| device.devid);
    after.size_bytes = after.size_bytes.saturating_add(size_bytes);
    after.devices.push(Device {
        devid: devids.max().unwrap_or(0).saturating_add(1),
        path: "the new volume".to_owned(),
        volume: None,
        device_bytes: size_bytes,
        size_bytes,
        allocated_bytes: 0,
        errors: 0,
    });
    let removal = without_pin(policy, &after, old.devid)?;
    // Compaction of the only device makes no room on the new one.
    if removal == Removal::AfterCompaction && after.devices.len() == 2 {
        return Err(format!(
            "a volume of {size_bytes} bytes has no room for the data of {}, two chunks and the \
             reserve",
            old.path
        ));
    }
    Ok(removal)
}

/// Checks that no chunk needs more devices than will be there.
fn check_profiles(file_system: &FileSystem) -> Result<(), String> {
    for (name, profile) in [("metadata", file_system.metadata), ("data", file_system.data)] {
        let may_move = match profile {
            Some(Profile::Single | Profile::Dup) => true,
            Some(Profile::Raid0) => name == "data",
            Some(Profile::Raid1 | Profile::Other) | None => false,
        };
        if !may_move {
            return Err(format!(
                "the profile of the {name} is not one with which a device can leave: single, dup, \
                 or raid0 of data"
            ));
        }
    }
    Ok(())
}
