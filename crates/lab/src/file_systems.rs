//! The bytes that the file systems of a disk use: those of the disk itself, of its partitions and
//! of the devices that are mapped to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Mounts of this process.
const MOUNTS: &str = "/proc/self/mountinfo";
/// The deepest nesting of devices: a disk, a partition, a mapped device and a few more.
const DEPTH_MAX: u32 = 8;

/// Returns the bytes in use by the mounted file systems of a disk; `None` if none is mounted, or
/// they cannot be read. `folder` is the disk's folder in `/sys/dev/block`.
#[must_use]
pub fn used_bytes(folder: &Path) -> Option<u64> {
    let mut devices = BTreeMap::new();
    add_devices(folder, &mut devices, DEPTH_MAX);
    let mounts = fs::read(MOUNTS).ok()?;
    let points = points(&String::from_utf8_lossy(&mounts), &devices);
    let used = points.values().filter_map(|point| used_at(point));
    used.fold(None, |sum: Option<u64>, bytes| Some(sum.unwrap_or(0).saturating_add(bytes)))
}

fn used_at(point: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(point).ok()?;
    space.f_blocks.checked_sub(space.f_bfree)?.checked_mul(space.f_frsize)
}

/// Adds a device, its partitions and what is mapped to it: the name of each by its number, `8:17`.
fn add_devices(folder: &Path, devices: &mut BTreeMap<String, String>, depth: u32) {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let Some(number) = text("dev").map(|number| number.trim().to_owned()) else { return };
    let link = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if devices.insert(number, name).is_some() || depth == 0 {
        return;
    }
    for (parent, needed) in [(link.clone(), "partition"), (link.join("holders"), "dev")] {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let folders = entries.map(|entry| entry.path()).filter(|path| path.join(needed).exists());
        folders.for_each(|folder| add_devices(&folder, devices, depth - 1));
    }
}

/// Returns a mount point of each file system on these devices, by its device. `mounts` is the text
/// of `/proc/self/mountinfo`.
fn points(mounts: &str, devices: &BTreeMap<String, String>) -> BTreeMap<String, PathBuf> {
    let names: BTreeSet<&str> = devices.values().map(String::as_str).collect();
    let mut points = BTreeMap::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let Some(number) = fields.nth(2) else { continue };
        let Some(point) = fields.nth(1) else { continue };
        // Some file systems, as btrfs, have a number of their own.
        let source = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').nth(1));
        let source = source.and_then(|source| source.strip_prefix("/dev/"));
        let name = devices.get(number).map(String::as_str).or(source);
        if let Some(name) = name.filter(|name| names.contains(name)) {
            points.entry(name.to_owned()).or_insert_with(|| unescaped(point));
        }
    }
    points
}

/// Returns a path of `mountinfo`, in which a space is `\040`.
fn unescaped(path: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let replaced = |path: String, (escaped, plain): (&str, &str)| path.replace(escaped, plain);
    plain.into_iter().fold(path.to_owned(), replaced).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_of_a_disk_has_one_mount_point() {
        let mounts = "\
22 27 0:21 / /proc rw,nosuid - proc proc rw
27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 27 8:17 / /srv/my\\040data rw - xfs /dev/sdb1 rw
31 27 8:17 /sub /elsewhere rw - xfs /dev/sdb1 rw
32 27 0:44 / /pool rw - btrfs /dev/sdb2 rw
33 27 253:0 / /logs rw - ext4 /dev/mapper/vg-logs rw
broken
";
        let device = |(number, name): (&str, &str)| (number.to_owned(), name.to_owned());
        let devices = [("8:16", "sdb"), ("8:17", "sdb1"), ("8:18", "sdb2"), ("253:0", "dm-0")];
        let points = points(mounts, &devices.map(device).into());
        let found: Vec<(&str, &str)> = points
            .iter()
            .map(|(name, point)| (name.as_str(), point.to_str().expect("UTF-8")))
            .collect();
        assert_eq!(found, [("dm-0", "/logs"), ("sdb1", "/srv/my data"), ("sdb2", "/pool")]);
    }

    #[test]
    fn used_space_is_that_of_the_system_and_unknown_without_a_mount() {
        let space = rustix::fs::statvfs("/").unwrap();
        let used = used_at(Path::new("/")).unwrap();
        assert!(used > 0 && used <= space.f_blocks * space.f_frsize);
        assert_eq!(used_bytes(Path::new("/sys/dev/block/none")), None);
    }
}
