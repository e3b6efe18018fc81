//! The disk space that fio's logs of every I/O need: gigabytes for a long run or a fast disk.

use std::path::{Path, PathBuf};

use crate::{LabError, environment};
use evenkeel_sim::text;

/// Bytes of memory that fio keeps for each I/O until its run ends. The line in its log, which it
/// writes then, is shorter.
const IO_BYTES: u64 = 40;

/// The kernel's identifier of a file system in memory.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The room for logs in a folder.
#[derive(Clone, Debug)]
pub struct Room {
    folder: PathBuf,
    disk_bytes: u64,
    memory_bytes: u64,
}

/// A lack of room for logs.
#[derive(Debug)]
pub struct Shortage {
    /// GiB that are needed.
    pub needed_gib: String,
    /// The free GiB, with their place.
    pub free: String,
    /// A remedy, for the message.
    pub next: &'static str,
}

impl Room {
    /// Returns the room that is free now. Of memory it counts three quarters, as other programs
    /// need some, too.
    ///
    /// # Errors
    /// If the system does not report the free space of the folder's disk.
    pub fn of(folder: &Path) -> Result<Self, LabError> {
        let stat = rustix::fs::statvfs(folder).map_err(|error| {
            LabError::io("cannot tell how full the disk is of", folder)(error.into())
        })?;
        let disk_bytes = match stat.f_blocks {
            // Some file systems do not report their size.
            0 => u64::MAX,
            _ => stat.f_bavail.saturating_mul(stat.f_frsize),
        };
        let memory_bytes = environment::available_memory_bytes().unwrap_or(u64::MAX);
        // In such a folder the log takes memory, too, while fio has not yet released its own.
        let is_memory = rustix::fs::statfs(folder).is_ok_and(|of| of.f_type == TMPFS_MAGIC);
        let copies = if is_memory { 2 } else { 1 };
        Ok(Self::with(folder, disk_bytes, memory_bytes / 4 * 3 / copies))
    }

    /// Returns the room of a folder with this free space.
    #[must_use]
    pub fn with(folder: &Path, disk_bytes: u64, memory_bytes: u64) -> Self {
        Self { folder: folder.to_owned(), disk_bytes, memory_bytes }
    }

    /// Returns the shortage of room for this number of I/Os; `None` if they fit.
    #[must_use]
    pub fn shortage(&self, ios: u64) -> Option<Shortage> {
        let needed = ios.saturating_mul(IO_BYTES);
        let (free, place, next) = if needed > self.disk_bytes {
            let place = format!("on the disk of {}", self.folder.display());
            (self.disk_bytes, place, "let TMPDIR name a folder on a larger disk")
        } else if needed > self.memory_bytes {
            (self.memory_bytes, "of memory".to_owned(), "let it last less long")
        } else {
            return None;
        };
        Some(Shortage {
            needed_gib: gib(needed),
            free: format!("{} GiB are free {place}", gib(free)),
            next,
        })
    }
}

fn gib(bytes: u64) -> String {
    text::rate(bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_and_memory_are_read_from_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let room = Room::of(folder.path()).unwrap();
        assert!(room.disk_bytes > 0 && room.shortage(1).is_none(), "{room:?}");
        let memory = environment::available_memory_bytes().unwrap();
        assert!((1..memory).contains(&room.memory_bytes), "{room:?} of {memory}");
        // More I/Os than any machine has room for.
        assert!(room.shortage(u64::MAX).is_some());
        // `/proc` is in memory, and reports no size.
        let proc = Room::of(Path::new("/proc")).unwrap();
        assert_eq!(proc.disk_bytes, u64::MAX);
        assert!(Room::of(&folder.path().join("none")).is_err());
    }

    /// If the log is in memory as well, half as many I/Os fit.
    #[test]
    fn a_log_in_memory_takes_its_own() {
        let [disk, memory] = [Path::new("/sys"), Path::new("/dev/shm")]
            .map(|folder| Room::of(folder).unwrap().memory_bytes as f64);
        assert!((0.4..0.6).contains(&(memory / disk)), "{memory} of {disk}");
    }
}
