//! A host with a btrfs, XFS or ext4, on Linux, as root.
//!
//! Facts are read from the kernel, and verbs are executed by the file systems' own programs. Each
//! verb observes first and checks its preconditions on that. Moves run in the background, each
//! paced by a limit for the reads of the device that it empties ([`pace`]): such a move ends or is
//! found again if the agent ends.

mod btrfs;
mod device;
mod dirty;
mod flush;
mod ioctl;
mod job;
mod mounts;
mod pace;
mod plain;
mod program_lock;
mod superblock;
mod verbs;
mod words;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_planner::autopilot::observation::{
    Conditions, FileSystem, Kind, Running, RunningKind,
};
use evenkeel_planner::autopilot::operation::Verb;

use self::btrfs::Detail;
use self::device::Block;
use self::dirty::Dirty;
use self::flush::Probe;
use self::job::Job;
use self::pace::{Group, Limits, Move};
use self::program_lock::ProgramLock;
use crate::{Fault, Host};

/// Returns the volumes that are attached to this host: the id of each, and the path of its device.
pub type Volumes = Box<dyn FnMut() -> Result<Vec<(String, PathBuf)>, Fault> + Send>;

/// A mounted file system of this host.
pub struct LinuxHost {
    mount: PathBuf,
    kind: Kind,
    uuid: [u8; 16],
    volumes: Volumes,
    limits: Option<Limits>,
    background: Option<Background>,
    /// The verb that last failed in the background, and its fault.
    failed: Option<(Verb, Fault)>,
    probe: Option<Probe>,
    flush_window: Duration,
}

/// A program that runs in the background.
struct Background {
    job: Job,
    verb: Verb,
    is_cancelled: bool,
}

/// An observation, and what else verbs need.
struct Facts {
    seen: FileSystem,
    detail: Detail,
    /// The volume of each attached device, by the device's number.
    volumes: BTreeMap<(u32, u32), String>,
}

impl LinuxHost {
    /// Opens the file system that is mounted at a folder. `flush_window` is the time whose flushes
    /// an observation counts.
    ///
    /// # Errors
    /// If no btrfs, XFS or ext4 is mounted there.
    pub fn open(mount: &Path, volumes: Volumes, flush_window: Duration) -> Result<Self, Fault> {
        let mount = fs::canonicalize(mount)
            .map_err(|error| Fault::Refused(format!("{}: {error}: mount it", mount.display())))?;
        let identity = identity(&mount)?;
        Ok(Self {
            mount,
            kind: identity.kind,
            uuid: identity.uuid,
            volumes,
            limits: Limits::find(),
            background: None,
            failed: None,
            probe: None,
            flush_window,
        })
    }

    /// Returns the UUID of the file system.
    #[must_use]
    pub fn uuid(&self) -> String {
        hex(self.uuid)
    }

    /// Returns the means by which moves are paced, as a sentence.
    #[must_use]
    pub fn pacing(&self) -> String {
        match &self.limits {
            Some(limits) if self.kind == Kind::Btrfs && Dirty::of(&self.uuid()).is_none() => {
                format!(
                    "moves are paced by {limits}; flushes wait behind their bursts of writes, \
                     since this kernel cannot bound the dirty pages of a file system: use Linux \
                     6.2 or later"
                )
            }
            Some(limits) => format!("moves are paced by {limits}"),
            None => "moves are refused, since nothing paces them: no cgroup controller blkio (v1) \
                     or io (v2) is mounted"
                .to_owned(),
        }
    }

    /// Takes note of the end of a program in the background.
    fn settle(&mut self) {
        let Some(background) = &mut self.background else { return };
        let Some(ended) = background.job.wait(Duration::ZERO) else { return };
        if ended.status != Some(0) && !background.is_cancelled {
            let fault = words::fault(&background.job.command, &ended);
            self.failed = Some((background.verb.clone(), fault));
        }
        self.background = None;
    }

    fn attached(&mut self, volume: &str) -> Result<Option<PathBuf>, Fault> {
        let all = (self.volumes)()?;
        let mut paths = all.into_iter().filter(|(id, _)| id == volume).map(|(_, path)| path);
        let path = paths.next();
        if let Some(second) = paths.next() {
            let text =
                format!("volume {volume} has two devices, the second at {}", second.display());
            return Err(Fault::Later(text));
        }
        Ok(path)
    }

    /// Reads all facts.
    fn facts(&mut self) -> Result<Facts, Fault> {
        let mut volumes = BTreeMap::new();
        for (volume, path) in (self.volumes)()? {
            // A device that is gone since belongs to no volume.
            if let Ok(block) = Block::at_path(&path) {
                volumes.insert(block.number, volume);
            }
        }
        let Identity { kind, uuid, open, block, is_degraded } = identity(&self.mount)?;
        if (kind, uuid) != (self.kind, self.uuid) {
            return Err(Fault::Refused(format!(
                "{}: the file system {} is mounted there, not {}: mount that, or start the agent \
                 again",
                self.mount.display(),
                hex(uuid),
                hex(self.uuid)
            )));
        }
        let seen = FileSystem {
            uuid: hex(uuid),
            kind,
            mount: self.mount.to_string_lossy().into_owned(),
            size_bytes: 0,
            used_bytes: 0,
            free_bytes: 0,
            data: None,
            metadata: None,
            devices: Vec::new(),
            chunk_slack_bytes: 0,
            dirty_limit_bytes: self.dirty_limit_bytes()?,
            largest_jump_bytes: 0,
            peak_used_bytes: 0,
            largest_growth_bytes: 0,
            conditions: Conditions { degraded: is_degraded, ..Conditions::default() },
            running: None,
            flush: None,
        };
        let detail = Detail::default();
        let mut facts = Facts { seen, detail, volumes };
        match &block {
            None => btrfs::observe(&open, self.limits.as_ref(), &mut facts)?,
            Some(block) => plain::observe(&open, block, &mut facts)?,
        }
        // After the running operation: while a device leaves, the kernel does not count its room. A
        // reading from before the end of a removal would be taken for one from after it.
        let space = rustix::fs::fstatvfs(&open);
        let space = space.map_err(|error| {
            Fault::Later(format!("{}: its space: {error}", self.mount.display()))
        })?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        facts.seen.free_bytes = free.saturating_sub(facts.detail.uncommitted_bytes);
        if block.is_some() {
            let seen = &mut facts.seen;
            seen.used_bytes = seen.size_bytes.saturating_sub(seen.free_bytes);
        }
        if facts.seen.running.is_none() && ProgramLock::with_uuid(&facts.seen.uuid).is_taken()? {
            // The kernel has not begun its operation yet, or has ended it.
            facts.seen.running = Some(Running {
                kind: RunningKind::Foreign,
                devid: None,
                done_permille: None,
                pace_bytes_per_s: None,
            });
            facts.detail.exclusive = "a program that an agent has started".to_owned();
        }
        Ok(facts)
    }

    /// Returns the most bytes of dirty pages that the host keeps for the file system: those of all,
    /// or fewer if a btrfs has a strict bound of its own. The bound of a move does not count.
    fn dirty_limit_bytes(&self) -> Result<u64, Fault> {
        let all = all_dirty_bytes()?;
        let uuid = self.uuid();
        let kept = self.groups().into_iter().find_map(|group| group.dirty);
        let own = kept.or_else(|| Dirty::of(&uuid));
        Ok(own.map_or(all, |own| own.bytes(all)))
    }

    /// Returns the cgroups of the moves of the file system.
    fn groups(&self) -> Vec<Group> {
        self.limits.as_ref().map(|limits| limits.groups(&self.uuid())).unwrap_or_default()
    }

    /// Ends what belongs to a move, if none runs.
    fn tidy_up(&mut self, facts: &Facts) {
        if let Some(group) = &facts.detail.group {
            self.bound_again(group);
        }
        if facts.seen.running.is_some() || self.background.is_some() {
            return;
        }
        for group in self.groups() {
            // If one of them fails now, the next observation finds the group again.
            if group.restore_dirty(&facts.seen.uuid).is_ok() && clear_left(facts, &group).is_ok() {
                group.remove();
            }
        }
    }

    /// Bounds the dirty pages of a move that an earlier agent has begun, which has restored their
    /// bound at its end.
    fn bound_again(&self, group: &Group) {
        let uuid = self.uuid();
        let Some(pace) = group.pace() else { return };
        if group.dirty.is_some() && group.dirty == Dirty::of(&uuid) {
            // The next observation tries again.
            let _ = verbs::bound_dirty(&uuid, group, pace);
        }
    }
}

impl Drop for LinuxHost {
    /// Without an agent, nothing would restore the bound of the dirty pages at the end of a move.
    fn drop(&mut self) {
        for group in self.groups() {
            let _ = group.restore_dirty(&self.uuid());
        }
    }
}

impl Host for LinuxHost {
    fn observe(&mut self) -> Result<FileSystem, Fault> {
        self.settle();
        let mut facts = self.facts()?;
        self.tidy_up(&facts);
        if facts.seen.running.is_none() {
            self.probe = None;
        } else if !facts.seen.conditions.degraded {
            let probe = self.probe.get_or_insert_with(|| Probe::start(&self.mount));
            facts.seen.flush = probe.flush(self.flush_window);
        }
        Ok(facts.seen)
    }

    fn has_superblock(&mut self, volume: &str) -> Result<Option<bool>, Fault> {
        let Some(path) = self.attached(volume)? else { return Ok(None) };
        let block = Block::at_path(&path)?;
        superblock::is_on(&block.path, self.kind, self.uuid).map(Some)
    }

    fn execute(&mut self, verb: &Verb) -> Result<(), Fault> {
        self.dispatch(verb)
    }
}

/// Clears the superblocks of a device that has left. The kernel does it at the end of the removal,
/// except if its program was killed (`findings/btrfs_killed_remove.sh`); two devices with one
/// number would be confused at the next mount.
fn clear_left(facts: &Facts, group: &Group) -> Result<(), Fault> {
    if group.moves != Move::Remove {
        return Ok(());
    }
    let Ok(block) = Block::with_number(&group.number) else { return Ok(()) };
    for device in &facts.seen.devices {
        if Block::at_path(device.path.as_ref())?.number == block.number {
            return Ok(());
        }
    }
    let uuid = facts.seen.uuid.clone();
    let devid = group.devid;
    superblock::clear_btrfs(&block.path, move |found| {
        hex(found.uuid) == uuid && found.devid == devid
    })
}

/// The file system that is mounted at a folder.
struct Identity {
    kind: Kind,
    uuid: [u8; 16],
    /// The folder.
    open: File,
    /// Its device; `None` for btrfs.
    block: Option<Block>,
    is_degraded: bool,
}

fn identity(folder: &Path) -> Result<Identity, Fault> {
    let mount = mounts::mount_at(folder)?;
    let Some(kind) = mount.kind else {
        return Err(Fault::Refused(format!(
            "{}: its file system is none of btrfs, XFS and ext4: choose another mount",
            folder.display()
        )));
    };
    let failed = |error| Fault::Later(format!("{}: {error}", folder.display()));
    let open = File::open(folder).map_err(failed)?;
    let is_degraded = mount.is_degraded;
    if kind == Kind::Btrfs {
        let uuid = ioctl::btrfs_uuid(&open).map_err(failed)?;
        return Ok(Identity { kind, uuid, open, block: None, is_degraded });
    }
    let block = Block::with_number(&mount.number)?;
    let uuid = plain::identity(kind, &open, &block)?.0;
    Ok(Identity { kind, uuid, open, block: Some(block), is_degraded })
}

/// Returns the most bytes of dirty pages that the host keeps for all file systems.
fn all_dirty_bytes() -> Result<u64, Fault> {
    let bytes = number("/proc/sys/vm/dirty_bytes")?;
    if bytes != 0 {
        return Ok(bytes);
    }
    let percent = number("/proc/sys/vm/dirty_ratio")?;
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(|error| unread(path, &error.to_string()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let kib = kib.ok_or_else(|| unread(path, "it has no MemAvailable"))?;
    Ok(kib.saturating_mul(1_024).saturating_mul(percent) / 100)
}

fn number(path: &str) -> Result<u64, Fault> {
    let text = fs::read_to_string(path).map_err(|error| unread(path, &error.to_string()))?;
    text.trim().parse().map_err(|_| unread(path, &format!("{:?} is no number", text.trim())))
}

fn unread(path: &str, why: &str) -> Fault {
    Fault::Later(format!("{path}: {why}"))
}

/// Returns a UUID in its usual form.
fn hex(uuid: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
