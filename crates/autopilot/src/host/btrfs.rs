//! The facts of a mounted btrfs: requests to the kernel, and `/sys/fs/btrfs`.

use std::fs::{self, File};
use std::path::PathBuf;

use super::device::Block;
use super::ioctl;
use super::pace::{Group, Limits, Move};
use super::{Facts, hex, mounts};
use crate::Fault;
use evenkeel_planner::autopilot::observation::{Conditions, Device, Profile, Running, RunningKind};

/// The most devices of a file system.
const DEVICES_MAX: usize = 1_024;
/// The largest chunk on a device, in bytes, and the part of the file system that it is at most.
const CHUNK_BYTES_MAX: u64 = 1 << 30;
const CHUNK_PART: u64 = 10;
/// The number of the target of a replacement, which a person has started.
pub(super) const TARGET: u64 = 0;

/// The facts of a btrfs that no observation has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Detail {
    /// The kernel's name of the exclusive operation that runs; empty if there is none.
    pub exclusive: String,
    /// The cgroup of the running move.
    pub group: Option<Group>,
    /// Bytes of the largest chunk on one device.
    pub chunk_bytes: u64,
    /// Why no device can leave; `None` if none is pinned.
    pub pin: Option<String>,
    /// Bytes of files that `statfs` counts as free until the next commit: what writers have, and
    /// what was deleted and cannot be written again before it.
    pub uncommitted_bytes: u64,
}

/// The folder of a btrfs in sysfs.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Returns the folder of the file system with this UUID.
    pub fn with_uuid(uuid: &str) -> Self {
        Self { path: PathBuf::from("/sys/fs/btrfs").join(uuid) }
    }

    /// Reads a file of it.
    pub fn text(&self, name: &str) -> Result<String, Fault> {
        let path = self.path.join(name);
        let text = fs::read_to_string(&path);
        text.map(|text| text.trim().to_owned()).map_err(|error| {
            Fault::Later(format!("{}: {error}: Linux 5.14 or later has it", path.display()))
        })
    }

    fn number(&self, name: &str) -> Result<u64, Fault> {
        let text = self.text(name)?;
        text.parse().map_err(|_| {
            Fault::Later(format!("{}/{name}: {text:?} is no number", self.path.display()))
        })
    }

    fn names(&self, name: &str) -> Result<Vec<String>, Fault> {
        let path = self.path.join(name);
        let failed = |error| Fault::Later(format!("{}: {error}", path.display()));
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)?.flatten() {
            if entry.path().is_dir() {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the profile of a kind of chunks.
    fn profile(&self, kind: &str) -> Result<Profile, Fault> {
        let names = self.names(&format!("allocation/{kind}"))?;
        Ok(match names.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["single"] => Profile::Single,
            ["dup"] => Profile::Dup,
            ["raid0"] => Profile::Raid0,
            ["raid1"] => Profile::Raid1,
            // Also several profiles at once, as a conversion leaves them.
            _ => Profile::Other,
        })
    }
}

/// Adds the facts of a btrfs whose folder is open.
pub(super) fn observe(
    open: &File,
    limits: Option<&Limits>,
    facts: &mut Facts,
) -> Result<(), Fault> {
    let uuid = facts.seen.uuid.clone();
    let folder = Folder::with_uuid(&uuid);
    // In chunks of data and metadata in one, there is no folder of data.
    let mixed = folder.path.join("allocation/mixed").is_dir();
    facts.seen.data = Some(if mixed { Profile::Other } else { folder.profile("data")? });
    facts.seen.metadata = Some(if mixed { Profile::Other } else { folder.profile("metadata")? });
    let kinds: &[&str] = if mixed { &["mixed", "system"] } else { &["data", "metadata", "system"] };
    for kind in kinds {
        facts.seen.used_bytes += folder.number(&format!("allocation/{kind}/disk_used"))?;
    }
    let first = kinds[0];
    // `disk_used` follows when the kernel commits, by default after 30 s.
    let written = folder.number(&format!("allocation/{first}/bytes_may_use"))?
        + folder.number(&format!("allocation/{first}/bytes_reserved"))?;
    let pinned = folder.number(&format!("allocation/{first}/bytes_pinned"))?;
    let copies = match facts.seen.data {
        Some(Profile::Dup | Profile::Raid1) => 2,
        _ => 1,
    };
    facts.seen.used_bytes += written * copies;
    facts.detail.uncommitted_bytes = written + pinned;
    let total = folder.number(&format!("allocation/{first}/total_bytes"))?;
    let used = folder.number(&format!("allocation/{first}/bytes_used"))?;
    facts.seen.chunk_slack_bytes = total.saturating_sub(used);
    let is_missing = devices(open, &folder, facts)?;
    facts.seen.conditions.degraded |= is_missing;
    let devices = facts.seen.devices.iter().filter(|device| device.devid != TARGET);
    facts.seen.size_bytes = devices.map(|device| device.size_bytes).sum();
    facts.detail.chunk_bytes = CHUNK_BYTES_MAX.min(facts.seen.size_bytes / CHUNK_PART);
    facts.detail.pin = pin(&uuid)?;
    facts.seen.conditions.pinned = facts.detail.pin.is_some();
    running(open, &folder, limits, facts)
}

/// Adds the devices, and returns whether one is missing.
fn devices(open: &File, folder: &Folder, facts: &mut Facts) -> Result<bool, Fault> {
    let mut is_missing = false;
    let ids = folder.names("devinfo")?;
    if ids.len() > DEVICES_MAX {
        let text = format!("{} devices: the agent reads {DEVICES_MAX}", ids.len());
        return Err(Fault::Refused(text));
    }
    let mut ids: Vec<u64> = ids.iter().filter_map(|id| id.parse().ok()).collect();
    ids.sort_unstable();
    for devid in ids {
        if folder.number(&format!("devinfo/{devid}/missing"))? == 1 {
            is_missing = true;
            continue;
        }
        let failed = |error| Fault::Later(format!("device {devid} of btrfs: {error}"));
        // A device that has left since is not listed.
        let Some(info) = ioctl::device_info(open, devid).map_err(failed)? else { continue };
        let block = Block::at_path(info.path.as_ref())?;
        let errors = folder.text(&format!("devinfo/{devid}/error_stats"))?;
        facts.seen.devices.push(Device {
            devid,
            path: info.path,
            volume: facts.volumes.get(&block.number).cloned(),
            device_bytes: block.size_bytes()?,
            size_bytes: info.size_bytes,
            allocated_bytes: info.allocated_bytes,
            errors: errors_in(&errors),
        });
    }
    Ok(is_missing)
}

/// Sums the counters of errors: `write_errs 0` and so on, a line each.
fn errors_in(text: &str) -> u64 {
    let numbers =
        text.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    numbers.fold(0, u64::saturating_add)
}

/// Returns why no device can leave: a swap file, whose blocks the kernel does not move.
fn pin(uuid: &str) -> Result<Option<String>, Fault> {
    for file in mounts::swap_files()? {
        let folder = File::open(mounts::folder_of(&file));
        let found = folder.and_then(|folder| ioctl::btrfs_uuid(&folder));
        if found.is_ok_and(|found| hex(found) == uuid) {
            return Ok(Some(format!("the swap file {}: run swapoff", file.display())));
        }
    }
    Ok(None)
}

/// Adds the running exclusive operation, and scrubs and balances.
fn running(
    open: &File,
    folder: &Folder,
    limits: Option<&Limits>,
    facts: &mut Facts,
) -> Result<(), Fault> {
    let failed = |error| Fault::Later(format!("the running operation of btrfs: {error}"));
    let exclusive = folder.text("exclusive_operation")?;
    let groups = limits.map(|limits| limits.groups(&facts.seen.uuid)).unwrap_or_default();
    let group = |moves: Move| {
        let mut ours = groups.iter().filter(|group| group.moves == moves);
        // Without programs: of a kernel that continues for one that was killed.
        let busy = ours.clone().find(|group| group.has_programs());
        busy.or_else(|| ours.next()).cloned()
    };
    let mut done_permille = None;
    let mut devid = None;
    facts.detail.group = match exclusive.as_str() {
        "device remove" => group(Move::Remove),
        "balance" => group(Move::Compact),
        _ => None,
    };
    let group = facts.detail.group.as_ref();
    let kind = match exclusive.as_str() {
        "none" => None,
        "device add" => Some(RunningKind::Add),
        "device remove" => {
            devid = group.map(|group| group.devid);
            done_permille = group.and_then(|group| done(facts, group));
            Some(if group.is_some() { RunningKind::Remove } else { RunningKind::Foreign })
        }
        "balance" => {
            let progress = ioctl::balance_progress(open).map_err(failed)?;
            done_permille = progress.and_then(|(done, all)| permille(done, all));
            Some(if group.is_some() { RunningKind::Compact } else { RunningKind::Foreign })
        }
        _ => Some(RunningKind::Foreign),
    };
    let is_ours = kind == Some(RunningKind::Compact);
    facts.seen.conditions.balance = exclusive.starts_with("balance") && !is_ours;
    // The copy of a replacement is a scrub, too.
    if exclusive != "device replace" {
        facts.seen.conditions.scrub = scrub(open, &facts.seen.devices)?;
    }
    let pace = facts.detail.group.as_ref().and_then(Group::pace);
    facts.seen.running =
        kind.map(|kind| Running { kind, devid, done_permille, pace_bytes_per_s: pace });
    facts.detail.exclusive = if exclusive == "none" { String::new() } else { exclusive };
    Ok(())
}

fn scrub(open: &File, devices: &[Device]) -> Result<bool, Fault> {
    for device in devices {
        let failed = |error| Fault::Later(format!("the scrub of {}: {error}", device.path));
        if ioctl::is_scrubbed(open, device.devid).map_err(failed)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the part of a move that is done, by the bytes that are still to be moved.
fn done(facts: &Facts, group: &Group) -> Option<u32> {
    let device = facts.seen.devices.iter().find(|device| device.devid == group.devid)?;
    permille(group.bytes.saturating_sub(device.allocated_bytes), group.bytes)
}

fn permille(done: u64, all: u64) -> Option<u32> {
    let part = u128::from(done.min(all)) * 1_000 / u128::from(all.max(1));
    u32::try_from(part).ok()
}

/// Returns whether a condition is one that forbids moves.
pub(super) fn forbids(conditions: Conditions) -> bool {
    conditions.degraded || conditions.scrub || conditions.balance || conditions.pinned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_errors_are_summed() {
        assert_eq!(errors_in("write_errs 1\nread_errs 20\nflush_errs 0\ncorruption_errs 300"), 321);
        assert_eq!(errors_in(""), 0);
    }

    #[test]
    fn progress_is_a_part_of_what_was_to_be_moved() {
        assert_eq!(permille(0, 0), Some(0));
        assert_eq!(permille(1, 3), Some(333));
        assert_eq!(permille(9, 3), Some(1_000));
        assert_eq!(permille(u64::MAX, u64::MAX), Some(1_000));
    }
}
