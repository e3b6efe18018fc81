//! A disk of this machine: its number, its counters, and the used space of its file systems.

use evenkeel_client::output::{Exit, Failure};
use evenkeel_lab::file_systems;
use evenkeel_planner::read::diskstats::Counters;
use rustix::fs::{FileType, major, minor};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A disk or a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// Its name in the kernel.
    pub name: String,
    /// Its folder in `/sys/dev/block`.
    folder: PathBuf,
}

impl Disk {
    /// Returns the disk of a device file.
    ///
    /// # Errors
    /// If it is no block device.
    pub fn of(device: &Path) -> Result<Self, Failure> {
        let shown = device.display();
        let stat = rustix::fs::stat(device).map_err(|error| {
            let failure = Failure::new(format!("{shown}: {}", io::Error::from(error)));
            failure.exit(Exit::NotFound).hint("`lsblk` lists the disks of this machine")
        })?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
            return Err(Failure::new(format!("{shown} is neither a block device nor a volume"))
                .exit(Exit::Usage)
                .hint("name a disk such as /dev/sdb, or a volume such as vol-0123456789abcdef0"));
        }
        let number = format!("{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
        let folder = Path::new("/sys/dev/block").join(number);
        let link = fs::read_link(&folder)
            .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
        let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, folder })
    }

    /// Returns a disk that does not exist.
    #[cfg(test)]
    pub fn absent() -> Self {
        Self { name: "absent".to_owned(), folder: PathBuf::from("/sys/dev/block/absent") }
    }

    /// Reads its counters.
    ///
    /// # Errors
    /// If the disk is gone, or the kernel's text is not as documented.
    pub fn counters(&self) -> Result<Counters, Failure> {
        let path = self.folder.join("stat");
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::new(format!("the disk {} is gone", self.name))
                .hint("the recording up to then is complete"),
            _ => Failure::new(format!("{}: {error}", path.display())),
        })?;
        Counters::read(&text).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
    }

    /// Returns the bytes in use by its mounted file systems; `None` if none is mounted, or they
    /// cannot be read.
    #[must_use]
    pub fn used_bytes(&self) -> Option<u64> {
        file_systems::used_bytes(&self.folder)
    }
}
