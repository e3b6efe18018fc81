//! The verbs on a file system: preconditions, and the programs that execute them.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::btrfs::{self, TARGET};
use super::device::{Block, Content};
use super::job::Job;
use super::pace::{Group, Move};
use super::program_lock::ProgramLock;
use super::{Background, Facts, LinuxHost, hex, superblock, words};
use crate::Fault;
use evenkeel_os::clock;
use evenkeel_planner::autopilot::observation::{Device, Kind, Profile, Running, RunningKind};
use evenkeel_planner::autopilot::operation::{Verb, room};

/// Longest wait for a program that does not move data. Afterwards it continues.
const SHORT: Duration = Duration::from_secs(30);
/// Wait for the first refusal of a move.
const MOVE_BEGINS: Duration = Duration::from_millis(300);
/// Longest wait for the end of a move whose cancel has ended, and the time between two looks.
const CANCEL_ENDS: Duration = Duration::from_secs(3);
const CANCEL_LOOKS: Duration = Duration::from_millis(50);
/// Smallest size of a device of a btrfs, in bytes.
const DEVICE_BYTES_MIN: u64 = 256 << 20;

impl LinuxHost {
    pub(super) fn dispatch(&mut self, verb: &Verb) -> Result<(), Fault> {
        self.settle();
        let facts = self.facts()?;
        self.tidy_up(&facts);
        match verb {
            Verb::Pace { bytes_per_s } => return pace(&facts, *bytes_per_s),
            Verb::Cancel => return self.cancel(&facts),
            _ => {}
        }
        if let Some(fault) = self.fault_of(verb) {
            return Err(fault);
        }
        match verb {
            Verb::Remove { volume, bytes_per_s } => self.remove(&facts, verb, volume, *bytes_per_s),
            Verb::Rescan { volume } => self.block(volume)?.rescan(),
            Verb::Grow { volume } => self.grow(&facts, verb, volume),
            Verb::Add { volume } => self.add(&facts, verb, volume),
            Verb::Compact { used_percent_max, chunks_max, bytes_per_s } => {
                self.compact(&facts, verb, (*used_percent_max, *chunks_max), *bytes_per_s)
            }
            Verb::Pace { .. } | Verb::Cancel => Ok(()),
        }
    }

    /// Returns the fault of an earlier execution of a verb that failed in the background.
    fn fault_of(&mut self, verb: &Verb) -> Option<Fault> {
        let (failed, fault) = self.failed.take()?;
        is_like(&failed, verb).then_some(fault)
    }

    fn grow(&mut self, facts: &Facts, verb: &Verb, volume: &str) -> Result<(), Fault> {
        let device = facts.device(volume)?;
        if facts.seen.conditions.degraded {
            return Err(facts.refused("it is degraded or read-only: repair it first"));
        }
        // An XFS or ext4 leaves a part of a block at its end.
        if device.device_bytes < device.size_bytes.saturating_add(4_096) {
            return Ok(());
        }
        let mount = facts.seen.mount.as_str();
        match facts.seen.kind {
            Kind::Btrfs => {
                facts.check_idle()?;
                let size = format!("{}:max", device.devid);
                self.short(verb, "btrfs", &["filesystem", "resize", &size, mount])
            }
            Kind::Xfs => self.short(verb, "xfs_growfs", &["-d", mount]),
            Kind::Ext4 => self.short(verb, "resize2fs", &[&device.path]),
        }
    }

    fn add(&mut self, facts: &Facts, verb: &Verb, volume: &str) -> Result<(), Fault> {
        facts.check_btrfs("add")?;
        if facts.find(volume).is_some_and(|device| device.devid != TARGET) {
            return Ok(());
        }
        facts.check_idle()?;
        if facts.seen.conditions.degraded {
            return Err(facts.refused("it is degraded or read-only: repair it first"));
        }
        let block = self.block(volume)?;
        let size_bytes = block.size_bytes()?;
        if size_bytes < DEVICE_BYTES_MIN {
            return Err(facts.refused(&format!(
                "{} of volume {volume} has {size_bytes} bytes, and a device of btrfs at least \
                 {DEVICE_BYTES_MIN}: attach a larger volume",
                block.path.display()
            )));
        }
        clear_target(facts, volume, &block)?;
        let path = block.path.to_string_lossy();
        self.short(verb, "btrfs", &["device", "add", "-K", &path, &facts.seen.mount])
    }

    fn compact(
        &mut self,
        facts: &Facts,
        verb: &Verb,
        (used_percent_max, chunks_max): (u32, u32),
        bytes_per_s: u64,
    ) -> Result<(), Fault> {
        facts.check_btrfs("compact")?;
        if facts.runs(RunningKind::Compact, None) {
            return pace(facts, bytes_per_s);
        }
        facts.check_movable()?;
        // Of `limit=N` alone, the kernel takes N for the least number of chunks, too, and moves
        // none if there are fewer.
        let filter =
            format!("-dusage={},limit=0..{}", used_percent_max.min(100), chunks_max.max(1));
        let group = self.group(facts, Move::Compact, None, 0, bytes_per_s)?;
        let words = ["balance", "start", &filter, &facts.seen.mount];
        self.start(verb, &words, Some(group))
    }

    fn remove(
        &mut self,
        facts: &Facts,
        verb: &Verb,
        volume: &str,
        bytes_per_s: u64,
    ) -> Result<(), Fault> {
        facts.check_btrfs("remove")?;
        let Some(device) = facts.find(volume) else {
            // It has left, or was never a device.
            return self.block(volume).map(drop);
        };
        if facts.runs(RunningKind::Remove, Some(device.devid)) {
            return pace(facts, bytes_per_s);
        }
        facts.check_movable()?;
        facts.check_profiles_without_one()?;
        let room = facts.unallocated_beside(device.devid);
        let moved = room::moved_bytes(&facts.seen, device);
        let wanted = moved.saturating_add(2 * facts.detail.chunk_bytes);
        if room < wanted {
            return Err(facts.refused(&format!(
                "volume {volume} has data for chunks of {moved} bytes, and the other devices have \
                 {room} bytes that are not allocated, of the {wanted} that removing it needs: add \
                 a volume, or compact, first"
            )));
        }
        let group =
            self.group(facts, Move::Remove, Some(device), device.allocated_bytes, bytes_per_s)?;
        let devid = device.devid.to_string();
        self.start(verb, &["device", "remove", &devid, &facts.seen.mount], Some(group))
    }

    fn cancel(&mut self, facts: &Facts) -> Result<(), Fault> {
        self.failed = None;
        let Some(running) = &facts.seen.running else { return Ok(()) };
        let words: &[&str] = match running.kind {
            RunningKind::Remove => &["device", "remove", "cancel"],
            RunningKind::Compact => &["balance", "cancel"],
            RunningKind::Add => return Err(facts.check_idle().err().unwrap_or_else(no_fault)),
            RunningKind::Foreign => {
                return Err(facts.refused(&format!(
                    "{} was not started by the agent: its owner ends it",
                    facts.detail.exclusive
                )));
            }
        };
        if let Some(background) = &mut self.background {
            background.is_cancelled = true;
        }
        let words: Vec<&OsStr> =
            words.iter().map(AsRef::as_ref).chain([facts.seen.mount.as_ref()]).collect();
        let mut job = Job::start("btrfs", &words, None, None)?;
        let Some(ended) = job.wait(SHORT) else {
            let text = format!("{} has not ended within {SHORT:?}", job.command);
            return Err(Fault::Later(text));
        };
        // The program fails if it has cancelled a removal, and if nothing runs any more
        // (`findings/btrfs_remove_cancel.sh`). So the kernel's operation decides.
        if ended.status == Some(0) || self.ends(running)? {
            return Ok(());
        }
        Err(words::fault(&job.command, &ended))
    }

    /// Waits for the end of a move, at most for [`CANCEL_ENDS`], and returns whether it has ended.
    fn ends(&mut self, running: &Running) -> Result<bool, Fault> {
        let deadline = clock::now() + CANCEL_ENDS;
        while self.facts()?.runs(running.kind, running.devid) {
            if clock::now() >= deadline {
                return Ok(false);
            }
            clock::pause(CANCEL_LOOKS);
        }
        Ok(true)
    }

    /// Returns the device of a volume that is attached to this host.
    fn block(&mut self, volume: &str) -> Result<Block, Fault> {
        match self.attached(volume)? {
            Some(path) => Block::at_path(&path),
            None => Err(Fault::Refused(format!(
                "volume {volume} has no device on this host: attach it"
            ))),
        }
    }

    /// Makes the cgroup of a move, with a limit for the reads of the device that it empties.
    fn group(
        &self,
        facts: &Facts,
        moves: Move,
        device: Option<&Device>,
        bytes: u64,
        bytes_per_s: u64,
    ) -> Result<Group, Fault> {
        let limits = self.limits.as_ref().ok_or_else(|| {
            facts.refused(
                "a move without a limit of its reads would stall it, and no cgroup controller \
                 blkio (v1) or io (v2) is mounted: mount cgroup2 at /sys/fs/cgroup",
            )
        })?;
        let devid = device.map_or(0, |device| device.devid);
        let number = match device {
            Some(device) => Block::at_path(device.path.as_ref())?.number_text(),
            None => "0:0".to_owned(),
        };
        let group = limits.make(&facts.seen.uuid, moves, (devid, &number), bytes)?;
        limit(facts, &group, bytes_per_s)?;
        Ok(group)
    }

    /// Executes a program that moves no data.
    fn short(&mut self, verb: &Verb, program: &str, words: &[&str]) -> Result<(), Fault> {
        self.run(verb, program, words, None, SHORT)?;
        match &self.background {
            None => Ok(()),
            Some(background) => Err(Fault::Later(format!(
                "{} continues after {SHORT:?}: the kernel waits for the devices",
                background.job.command
            ))),
        }
    }

    /// Starts a move, and returns its fault if it is refused at once.
    fn start(&mut self, verb: &Verb, words: &[&str], group: Option<Group>) -> Result<(), Fault> {
        let folder = group.as_ref().map(Group::folder);
        self.run(verb, "btrfs", words, folder, MOVE_BEGINS)
    }

    fn run(
        &mut self,
        verb: &Verb,
        program: &str,
        words: &[&str],
        cgroup: Option<&Path>,
        longest: Duration,
    ) -> Result<(), Fault> {
        if let Some(background) = &self.background {
            return Err(Fault::Later(format!("{} still runs", background.job.command)));
        }
        let words: Vec<&OsStr> = words.iter().map(AsRef::as_ref).collect();
        let lock = ProgramLock::with_uuid(&self.uuid()).take()?;
        let mut job = Job::start(program, &words, cgroup, Some(lock))?;
        match job.wait(longest) {
            Some(ended) if ended.status == Some(0) => Ok(()),
            Some(ended) => Err(words::fault(&job.command, &ended)),
            None => {
                self.background = Some(Background { job, verb: verb.clone(), is_cancelled: false });
                Ok(())
            }
        }
    }
}

impl Facts {
    fn find(&self, volume: &str) -> Option<&Device> {
        self.seen.devices.iter().find(|device| device.volume.as_deref() == Some(volume))
    }

    fn device(&self, volume: &str) -> Result<&Device, Fault> {
        self.find(volume).ok_or_else(|| self.no_device(volume))
    }

    fn no_device(&self, volume: &str) -> Fault {
        self.refused(&format!(
            "volume {volume} is no device of it: see `evenkeel autopilot status`"
        ))
    }

    fn refused(&self, why: &str) -> Fault {
        Fault::Refused(format!("file system {} at {}: {why}", self.seen.uuid, self.seen.mount))
    }

    fn later(&self, why: &str) -> Fault {
        Fault::Later(format!("file system {} at {}: {why}", self.seen.uuid, self.seen.mount))
    }

    fn runs(&self, kind: RunningKind, devid: Option<u64>) -> bool {
        let running = self.seen.running.as_ref();
        running.is_some_and(|running| {
            running.kind == kind && (devid.is_none() || running.devid == devid)
        })
    }

    /// Returns the bytes that are not allocated on the other devices.
    fn unallocated_beside(&self, devid: u64) -> u64 {
        let others = self.seen.devices.iter();
        let others = others.filter(|device| device.devid != devid && device.devid != TARGET);
        others.map(|device| device.size_bytes.saturating_sub(device.allocated_bytes)).sum()
    }

    fn check_btrfs(&self, verb: &str) -> Result<(), Fault> {
        if self.seen.kind == Kind::Btrfs {
            return Ok(());
        }
        Err(self.refused(&format!(
            "{verb} needs btrfs, and this is {:?}, which only grows, on one volume",
            self.seen.kind
        )))
    }

    /// Checks that the kernel executes no exclusive operation.
    fn check_idle(&self) -> Result<(), Fault> {
        if self.detail.exclusive.is_empty() {
            return Ok(());
        }
        Err(self.later(&format!("{} runs: wait for its end, or cancel it", self.detail.exclusive)))
    }

    /// Checks that data can move.
    fn check_movable(&self) -> Result<(), Fault> {
        self.check_idle()?;
        let conditions = self.seen.conditions;
        if conditions.degraded {
            return Err(self.refused("it is degraded or read-only: repair it first"));
        }
        if conditions.scrub {
            return Err(self.later("a scrub runs: wait for its end, or cancel it"));
        }
        if let Some(pin) = &self.detail.pin {
            return Err(self.refused(&format!("no device can leave because of {pin}")));
        }
        if btrfs::forbids(conditions) {
            return Err(self.later("a balance runs or is paused: wait, or cancel it"));
        }
        for (kind, profile) in [("data", self.seen.data), ("metadata", self.seen.metadata)] {
            if profile == Some(Profile::Other) {
                return Err(self.refused(&format!(
                    "the profile of its {kind} is not single, dup, raid0 or raid1: convert it with \
                     `btrfs balance start` first"
                )));
            }
        }
        Ok(())
    }

    /// Checks that the profiles allow a device fewer.
    fn check_profiles_without_one(&self) -> Result<(), Fault> {
        let left = self.seen.devices.len().saturating_sub(1);
        let has_raid1 = [self.seen.data, self.seen.metadata].contains(&Some(Profile::Raid1));
        let least = if has_raid1 { 2 } else { 1 };
        if left >= least {
            return Ok(());
        }
        Err(self.refused(&format!(
            "{left} of its devices would be left, and its profiles need {least}: add a volume, or \
             convert raid1 with `btrfs balance start -mconvert=dup`, first"
        )))
    }
}

/// Refuses a device with content. The superblock that an interrupted `add` left is cleared: of this
/// file system, for a number that it has not, and without chunks.
fn clear_target(facts: &Facts, volume: &str, block: &Block) -> Result<(), Fault> {
    block.check_unused()?;
    let Content::Signature(kind, uuid) = block.content()? else { return Ok(()) };
    let path = block.path.display();
    if kind == "btrfs" && uuid.as_deref() == Some(&facts.seen.uuid) {
        let superblocks = superblock::btrfs_on(&block.path)?;
        let is_leftover = |found: &superblock::Btrfs| {
            let is_listed = facts.seen.devices.iter().any(|device| device.devid == found.devid);
            hex(found.uuid) == facts.seen.uuid && !is_listed && found.allocated_bytes == 0
        };
        if !superblocks.is_empty() && superblocks.iter().all(is_leftover) {
            return superblock::clear_btrfs(&block.path, is_leftover);
        }
    }
    let uuid = uuid.map(|uuid| format!(" with UUID {uuid}")).unwrap_or_default();
    Err(facts.refused(&format!(
        "{path} of volume {volume} has content: {kind}{uuid}; the agent overwrites none: attach an \
         empty volume, or clear it with `wipefs -a {path}` if it is not needed"
    )))
}

/// Sets the pace of the running move.
fn pace(facts: &Facts, bytes_per_s: u64) -> Result<(), Fault> {
    let Some(running) = &facts.seen.running else { return Ok(()) };
    match &facts.detail.group {
        Some(group) => limit(facts, group, bytes_per_s),
        None if running.kind == RunningKind::Add => Ok(()),
        None => Err(facts.refused(&format!(
            "{} was not started by the agent, and has no pace: wait for its end",
            facts.detail.exclusive
        ))),
    }
}

/// Limits the reads of the devices that a move empties, and the dirty pages.
fn limit(facts: &Facts, group: &Group, bytes_per_s: u64) -> Result<(), Fault> {
    let is_emptied = |device: &&Device| group.devid == 0 || device.devid == group.devid;
    for device in facts.seen.devices.iter().filter(is_emptied) {
        let disk = Block::at_path(device.path.as_ref())?.disk_number()?;
        group.limit(&disk, bytes_per_s)?;
    }
    bound_dirty(&facts.seen.uuid, group, bytes_per_s)
}

/// Bounds the dirty pages of a file system during a move.
pub(super) fn bound_dirty(uuid: &str, group: &Group, bytes_per_s: u64) -> Result<(), Fault> {
    match group.dirty {
        Some(dirty) => dirty.bound(uuid, super::all_dirty_bytes()?, bytes_per_s),
        None => Ok(()),
    }
}

/// Returns whether two verbs have one effect, at whatever pace.
fn is_like(a: &Verb, b: &Verb) -> bool {
    match (a, b) {
        (Verb::Remove { volume: a, .. }, Verb::Remove { volume: b, .. }) => a == b,
        (Verb::Compact { .. }, Verb::Compact { .. }) => true,
        _ => a == b,
    }
}

fn no_fault() -> Fault {
    Fault::Later("the operation has ended".to_owned())
}
