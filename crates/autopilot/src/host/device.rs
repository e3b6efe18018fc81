//! Block devices: identity, size, and signs of use.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;

use super::job::{self, Ended};
use crate::Fault;

/// Longest run of `blkid`.
const BLKID_MAX: Duration = Duration::from_secs(20);

/// A block device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Block {
    /// Its path.
    pub path: PathBuf,
    /// Its number.
    pub number: (u32, u32),
}

/// Content of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// No file system, partition table or other signature.
    Nothing,
    /// A signature: its type, and its UUID if there is one.
    Signature(String, Option<String>),
}

impl Block {
    /// Returns the block device at a path.
    pub fn at_path(path: &Path) -> Result<Self, Fault> {
        let metadata = fs::metadata(path).map_err(|error| {
            Fault::Later(format!("{}: {error}: attach the volume", path.display()))
        })?;
        if !metadata.file_type().is_block_device() {
            return Err(Fault::Refused(format!(
                "{} is not a block device: name the volume's device",
                path.display()
            )));
        }
        let number = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        Ok(Self { path: path.to_owned(), number })
    }

    /// Returns the block device with a number, `8:17`.
    pub fn with_number(number: &str) -> Result<Self, Fault> {
        let event = fs::read_to_string(format!("/sys/dev/block/{number}/uevent"));
        let event = event.map_err(|error| Fault::Later(format!("device {number}: {error}")))?;
        let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="));
        let name = name.ok_or_else(|| Fault::Later(format!("device {number} has no name")))?;
        Self::at_path(&Path::new("/dev").join(name))
    }

    /// Returns its size in bytes, as the kernel knows it.
    pub fn size_bytes(&self) -> Result<u64, Fault> {
        let text = self.text("size")?;
        let sectors: u64 = text.parse().map_err(|_| self.later(&format!("size {text:?}")))?;
        sectors.checked_mul(512).ok_or_else(|| self.later("its size exceeds 64 bits"))
    }

    /// Returns its number as the kernel writes it.
    pub fn number_text(&self) -> String {
        format!("{}:{}", self.number.0, self.number.1)
    }

    /// Returns the number of the whole disk, which limits of requests are for.
    pub fn disk_number(&self) -> Result<String, Fault> {
        if !self.folder().join("partition").exists() {
            return Ok(self.number_text());
        }
        let folder = fs::canonicalize(self.folder()).map_err(|error| self.failed(&error))?;
        let disk = folder.parent().unwrap_or(&folder).join("dev");
        let text = fs::read_to_string(disk).map_err(|error| self.failed(&error))?;
        Ok(text.trim().to_owned())
    }

    /// Refuses a device that is mounted, swapped to, or a part of another device.
    pub fn check_unused(&self) -> Result<(), Fault> {
        let mut options = fs::OpenOptions::new();
        // With this flag, the kernel opens a block device only if nothing else holds it.
        let exclusive = OFlags::EXCL.bits().cast_signed();
        match options.read(true).custom_flags(exclusive).open(&self.path) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Err(Fault::Refused(format!(
                    "{} is in use, by a mount, swap, or another device: unmount it",
                    self.path.display()
                )))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Returns the content of the device by its signatures.
    pub fn content(&self) -> Result<Content, Fault> {
        let path = self.path.as_os_str();
        let words = ["-p", "-o", "export"].map(AsRef::as_ref).into_iter().chain([path]);
        let words: Vec<_> = words.collect();
        let Ended { status, printed, said } = job::run_short("blkid", &words, BLKID_MAX)?;
        match status {
            Some(2) => Ok(Content::Nothing),
            Some(0) => Ok(content(&printed)),
            Some(8) => Ok(Content::Signature("several signatures".to_owned(), None)),
            _ => Err(self.later(&format!("blkid ended with {status:?}: {said}"))),
        }
    }

    /// Lets the kernel read the size of the device again.
    pub fn rescan(&self) -> Result<(), Fault> {
        let folder = fs::canonicalize(self.folder()).map_err(|error| self.failed(&error))?;
        if folder.join("loop").is_dir() {
            let words = ["-c".as_ref(), self.path.as_os_str()];
            let Ended { status, said, .. } = job::run_short("losetup", &words, BLKID_MAX)?;
            return match status {
                Some(0) => Ok(()),
                _ => Err(self.later(&format!("losetup -c ended with {status:?}: {said}"))),
            };
        }
        // A namespace of NVMe is a device of its controller, or of a subsystem with controllers.
        for name in ["device/rescan_controller", "device/device/rescan_controller", "device/rescan"]
        {
            let path = folder.join(name);
            if path.exists() {
                return fs::write(&path, "1").map_err(|error| self.failed(&error));
            }
        }
        // Other drivers, as virtio's and NBD's, notice a new size by themselves.
        self.size_bytes().map(drop)
    }

    fn folder(&self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{}", self.number_text()))
    }

    fn text(&self, name: &str) -> Result<String, Fault> {
        let text = fs::read_to_string(self.folder().join(name));
        text.map(|text| text.trim().to_owned()).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Fault {
        self.later(&error.to_string())
    }

    fn later(&self, why: &str) -> Fault {
        Fault::Later(format!("{}: {why}", self.path.display()))
    }
}

/// Parses the output of `blkid -o export`.
fn content(text: &str) -> Content {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(str::to_owned)
    };
    let kind = value("TYPE").or_else(|| value("PTTYPE"));
    // Lines without a type, as of the device's name alone, are no signature that can be trusted.
    let kind = kind.unwrap_or_else(|| "unknown".to_owned());
    Content::Signature(kind, value("UUID").or_else(|| value("PTUUID")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_blkid_is_a_signature_with_type_and_uuid() {
        let signature = |kind: &str, uuid: Option<&str>| {
            Content::Signature(kind.to_owned(), uuid.map(str::to_owned))
        };
        let text = "DEVNAME=/dev/loop0\nUUID=ab\nUUID_SUB=cd\nTYPE=btrfs\nUSAGE=filesystem\n";
        assert_eq!(content(text), signature("btrfs", Some("ab")));
        assert_eq!(content("PTUUID=12\nPTTYPE=dos\n"), signature("dos", Some("12")));
        assert_eq!(content("DEVNAME=/dev/loop0\n"), signature("unknown", None));
    }

    #[test]
    fn path_without_a_block_device_is_refused() {
        let Err(Fault::Refused(text)) = Block::at_path(Path::new("/dev/null")) else { panic!() };
        assert!(text.contains("/dev/null is not a block device"), "{text}");
        assert!(matches!(Block::at_path(Path::new("/dev/no-such")), Err(Fault::Later(_))));
    }
}
