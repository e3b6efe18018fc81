//! The pace of moves: limits of the reads of devices, in a cgroup of the program that moves.
//!
//! The kernel's copy runs in the program's context, so a limit for the program's cgroup limits the
//! copy, and no other reader. The name of the cgroup's folder says which move it is for. So an
//! agent that starts again finds the move, its pace, and the bound of the dirty pages before it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::dirty::Dirty;
use crate::Fault;

/// The lowest pace, in bytes a second: at zero, the kernel would lift the limit.
const PACE_MIN: u64 = 1 << 20;
/// The beginning of the names of our cgroups.
const PREFIX: &str = "evenkeel-";

/// The kernel's interface for limits of requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Limits {
    /// The controller `blkio` of cgroup v1, mounted here.
    V1(PathBuf),
    /// The controller `io` of cgroup v2, mounted here.
    V2(PathBuf),
}

/// A kind of move, as the names of cgroups have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Move {
    /// The data of a device moves to the others.
    Remove,
    /// Chunks with little data are emptied.
    Compact,
}

/// The cgroup of a move.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Group {
    /// The kind of the move.
    pub moves: Move,
    /// The device that it empties; 0 for all of them.
    pub devid: u64,
    /// Bytes that were to be moved when it started.
    pub bytes: u64,
    /// The number of that device, `8:17`; `0:0` for all of them.
    pub number: String,
    /// The bound of the dirty pages before the move; `None` if the kernel has none.
    pub dirty: Option<Dirty>,
    folder: PathBuf,
    is_v1: bool,
}

impl Limits {
    /// Returns the interface that this kernel has; `None` if it has none.
    pub fn find() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let limits = Self::among(&mounts)?;
        match &limits {
            Self::V1(_) => Some(limits),
            Self::V2(root) => {
                let controllers = fs::read_to_string(root.join("cgroup.controllers")).ok()?;
                controllers.split_whitespace().any(|name| name == "io").then_some(limits)
            }
        }
    }

    /// Chooses from the lines of `/proc/self/mountinfo`. If `blkio` is mounted, v2 lacks it.
    fn among(mounts: &str) -> Option<Self> {
        let mut v2 = None;
        for line in mounts.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(point) = left.split(' ').nth(4) else { continue };
            let mut right = right.split(' ');
            let kind = right.next();
            let mut options = right.nth(1).unwrap_or_default().split(',');
            if kind == Some("cgroup") && options.any(|option| option == "blkio") {
                return Some(Self::V1(point.into()));
            }
            if kind == Some("cgroup2") {
                v2.get_or_insert_with(|| Self::V2(point.into()));
            }
        }
        v2
    }

    /// Returns the cgroups of the moves of a file system, with the programs in them.
    pub fn groups(&self, uuid: &str) -> Vec<Group> {
        let entries = fs::read_dir(self.root()).into_iter().flatten().flatten();
        let prefix = format!("{PREFIX}{uuid}-");
        let group = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            self.parse(entry.path(), name.strip_prefix(&prefix)?)
        };
        entries.filter_map(group).collect()
    }

    fn parse(&self, folder: PathBuf, rest: &str) -> Option<Group> {
        let mut words = rest.split('-');
        let moves = Move::with_name(words.next()?)?;
        let devid = words.next()?.parse().ok()?;
        let bytes = words.next()?.parse().ok()?;
        let number = words.next()?.to_owned();
        // A group of an older version has no bound.
        let dirty = match (words.next(), words.next()) {
            (Some(per_million), Some(strict)) => {
                Some(Dirty { per_million: per_million.parse().ok()?, is_strict: strict == "1" })
            }
            _ => None,
        };
        let is_v1 = matches!(self, Self::V1(_));
        Some(Group { moves, devid, bytes, number, dirty, folder, is_v1 })
    }

    /// Makes the cgroup of a move.
    pub fn make(
        &self,
        uuid: &str,
        moves: Move,
        (devid, number): (u64, &str),
        bytes: u64,
    ) -> Result<Group, Fault> {
        for old in self.groups(uuid) {
            old.restore_dirty(uuid)?;
            old.remove();
        }
        let dirty = Dirty::of(uuid);
        if let Self::V2(root) = self {
            let control = root.join("cgroup.subtree_control");
            let is_on = fs::read_to_string(&control).is_ok_and(|text| text.contains("io"));
            if !is_on {
                fs::write(&control, "+io").map_err(|error| failed(&control, &error))?;
            }
        }
        let kept = dirty.map_or_else(String::new, |Dirty { per_million, is_strict }| {
            format!("-{per_million}-{}", u8::from(is_strict))
        });
        let name = format!("{PREFIX}{uuid}-{}-{devid}-{bytes}-{number}{kept}", moves.name());
        let folder = self.root().join(name);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(&folder, &error));
            }
            _ => {}
        }
        let number = number.to_owned();
        let is_v1 = matches!(self, Self::V1(_));
        Ok(Group { moves, devid, bytes, number, dirty, folder, is_v1 })
    }

    fn root(&self) -> &Path {
        match self {
            Self::V1(root) | Self::V2(root) => root,
        }
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::V1(root) => {
                write!(f, "blkio.throttle.read_bps_device of cgroup v1 at {}", root.display())
            }
            Self::V2(root) => write!(f, "io.max of cgroup v2 at {}", root.display()),
        }
    }
}

impl Group {
    /// Returns its folder, for the program that enters it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns whether a program runs in it.
    pub fn has_programs(&self) -> bool {
        let programs = fs::read_to_string(self.folder.join("cgroup.procs"));
        programs.is_ok_and(|text| !text.trim().is_empty())
    }

    /// Limits the reads of a disk by its number.
    pub fn limit(&self, disk: &str, bytes_per_s: u64) -> Result<(), Fault> {
        let pace = bytes_per_s.max(PACE_MIN);
        let path = self.file();
        let line =
            if self.is_v1 { format!("{disk} {pace}") } else { format!("{disk} rbps={pace}") };
        fs::write(&path, line).map_err(|error| failed(&path, &error))
    }

    /// Returns the lowest limit of the reads of a disk.
    pub fn pace(&self) -> Option<u64> {
        let text = fs::read_to_string(self.file()).ok()?;
        text.lines().filter_map(pace).min()
    }

    /// Puts the bound of the dirty pages before the move in force again.
    pub fn restore_dirty(&self, uuid: &str) -> Result<(), Fault> {
        self.dirty.map_or(Ok(()), |dirty| dirty.restore(uuid))
    }

    /// Removes the folder, if no program is in it.
    pub fn remove(&self) {
        // The kernel refuses it while there is one.
        let _ = fs::remove_dir(&self.folder);
    }

    fn file(&self) -> PathBuf {
        self.folder.join(if self.is_v1 { "blkio.throttle.read_bps_device" } else { "io.max" })
    }
}

impl Move {
    const ALL: [Self; 2] = [Self::Remove, Self::Compact];

    fn name(self) -> &'static str {
        match self {
            Self::Remove => "remove",
            Self::Compact => "compact",
        }
    }

    fn with_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|moves| moves.name() == name)
    }
}

/// Parses a limit: `7:1 1048576` of v1, `7:1 rbps=1048576 wbps=max` of v2.
fn pace(line: &str) -> Option<u64> {
    let mut words = line.split_whitespace().skip(1);
    let first = words.next()?;
    if let Ok(number) = first.parse() {
        return Some(number);
    }
    let limit = [first].into_iter().chain(words).find_map(|word| word.strip_prefix("rbps="))?;
    limit.parse().ok()
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::Refused(format!(
        "{}: {error}: a move without a limit of its reads would stall the file system; run the \
         agent as root, with the cgroup controller blkio (v1) or io (v2)",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_in_v1_before_v2() {
        let v2 = "30 20 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let v1 = "31 20 0:3 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n";
        let other = "32 20 0:4 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        let found = Limits::among(&[v2, other, v1].concat());
        assert_eq!(found, Some(Limits::V1("/sys/fs/cgroup/blkio".into())));
        let found = Limits::among(&[other, v2].concat());
        assert_eq!(found, Some(Limits::V2("/sys/fs/cgroup/unified".into())));
        assert_eq!(Limits::among(other), None);
    }

    #[test]
    fn group_is_found_again_by_the_name_of_its_folder() {
        let root = tempfile::tempdir().unwrap();
        let limits = Limits::V1(root.path().into());
        let made = limits.make("ab-cd", Move::Remove, (3, "7:1"), 77).unwrap();
        fs::create_dir(root.path().join("evenkeel-ab-cd-unknown-3-77-7:1")).unwrap();
        fs::create_dir(root.path().join("evenkeel-other-remove-3-77-7:1")).unwrap();
        assert_eq!(limits.groups("ab-cd"), std::slice::from_ref(&made));
        assert!(!made.has_programs());
        made.limit("7:1", 0).unwrap();
        assert_eq!(made.pace(), Some(PACE_MIN));
        made.limit("7:1", 5 << 20).unwrap();
        assert_eq!(made.pace(), Some(5 << 20));
        let with_bound = "evenkeel-ab-cd-compact-0-77-0:0-250000-1";
        fs::create_dir(root.path().join(with_bound)).unwrap();
        let found = limits.groups("ab-cd").into_iter().find(|group| group.moves == Move::Compact);
        let dirty = Dirty { per_million: 250_000, is_strict: true };
        assert_eq!(found.unwrap().dirty, Some(dirty));
        assert_eq!(made.dirty, None, "the kernel has no such file system");
    }

    #[test]
    fn paces_of_both_versions_are_parsed() {
        assert_eq!(pace("7:1 1048576"), Some(1_048_576));
        assert_eq!(pace("7:1 rbps=5 wbps=max riops=max wiops=max"), Some(5));
        assert_eq!(pace("7:1 rbps=max wbps=7"), None);
        assert_eq!(pace(""), None);
    }
}
