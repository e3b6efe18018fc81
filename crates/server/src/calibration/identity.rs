//! The device of a folder, as far as the kernel reports it.

use evenkeel_cli::store::{Bytes, StoreKind};
use evenkeel_store::Pool;
use evenkeel_store::layout::Layout;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The device of a calibration. Properties that the kernel does not report are absent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Identity {
    /// `ext4`, `xfs`, `tmpfs`; `memory` for the store in memory.
    pub filesystem: String,
    /// Major and minor number of the device, such as `259:1`.
    pub device: Option<String>,
    /// Name of the model.
    pub model: Option<String>,
    /// Serial number, or another lasting name.
    pub serial: Option<String>,
    /// Size of the device in bytes.
    pub bytes: Option<u64>,
    /// Layout of a pool on several machines.
    #[serde(default, rename = "pool", skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
}

impl Identity {
    /// The device below a store in `folder`.
    pub fn of_store(store: &StoreKind, pool: &dyn Pool, folder: &Path) -> Self {
        match store.bytes {
            Bytes::Rbd => Self {
                filesystem: "Ceph".to_owned(),
                serial: Some(pool.describe()),
                // An unknown layout does not differ from any other.
                layout: pool.look_around().ok().flatten().map(|seen| seen.layout),
                ..Self::default()
            },
            Bytes::Local => Self::of_path(folder),
            Bytes::Memory => Self { filesystem: "memory".to_owned(), ..Self::default() },
        }
    }

    /// The device that a file or a folder is on, or that a path names.
    pub fn of_path(path: &Path) -> Self {
        let Ok(metadata) = fs::metadata(path) else { return Self::default() };
        let is_device = metadata.file_type().is_block_device();
        let number = |dev: u64| format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let device = number(if is_device { metadata.rdev() } else { metadata.dev() });
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let sys = sys_folder(&device);
        let named = |names: &[&str]| {
            let sys = sys.as_deref()?;
            let texts = names.iter().filter_map(|name| fs::read_to_string(sys.join(name)).ok());
            texts.map(|text| text.trim().to_owned()).find(|text| !text.is_empty())
        };
        let sectors = named(&["size"]).and_then(|text| text.parse::<u64>().ok());
        Self {
            filesystem: if is_device {
                "block device".to_owned()
            } else {
                filesystem_of(&mounts, &device).unwrap_or("unknown").to_owned()
            },
            model: named(&["device/model"]),
            serial: named(&["device/serial", "serial", "device/wwid", "wwid"]),
            bytes: sectors.map(|sectors| sectors.saturating_mul(512)),
            device: Some(device),
            layout: None,
        }
    }

    /// Whether both may be the same device or pool. Device numbers change when a machine restarts,
    /// serial numbers do not. If neither decides, the devices count as the same.
    pub fn is_same(&self, other: &Self) -> bool {
        if let (Some(one), Some(other)) = (&self.layout, &other.layout) {
            return (&one.cluster, &one.pool) == (&other.cluster, &other.pool);
        }
        let differ = |one: &Option<String>, other: &Option<String>| {
            one.is_some() && other.is_some() && one != other
        };
        self.filesystem == other.filesystem
            && self.bytes == other.bytes
            && !differ(&self.model, &other.model)
            && !differ(&self.serial, &other.serial)
    }

    /// A description in one line.
    pub fn describe(&self) -> String {
        if let Some(Layout { cluster, pool, domain, copies, devices, .. }) = &self.layout {
            return format!(
                "the pool {pool} of the Ceph cluster {cluster}, {devices} OSDs, {copies} copies, \
                 each in a {domain} of its own"
            );
        }
        let mut text = self.filesystem.clone();
        if let Some(device) = &self.device {
            text.push_str(&format!(" on device {device}"));
        }
        for (name, value) in [("model", &self.model), ("serial", &self.serial)] {
            if let Some(value) = value {
                text.push_str(&format!(", {name} {value}"));
            }
        }
        if let Some(bytes) = self.bytes {
            text.push_str(&format!(", {}", exact(bytes)));
        }
        text
    }
}

/// A size in words; those of two sizes differ.
fn exact(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    match bytes % GIB {
        0 => format!("{} GiB", bytes / GIB),
        _ => format!("{:.1} GiB ({bytes} bytes)", bytes as f64 / GIB as f64),
    }
}

/// The folder of a whole device in sysfs; that of a partition has few properties.
fn sys_folder(device: &str) -> Option<PathBuf> {
    let folder = fs::canonicalize(format!("/sys/dev/block/{device}")).ok()?;
    let is_partition = folder.join("partition").is_file();
    if is_partition { folder.parent().map(Path::to_owned) } else { Some(folder) }
}

/// The type of the file system on a device, from the text of `/proc/self/mountinfo`.
fn filesystem_of<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let of_device = |line: &&str| line.split(' ').nth(2) == Some(device);
    let line = mounts.lines().rfind(of_device)?;
    line.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_tells_its_filesystem() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      30 22 0:27 / /tmp rw master:3 - tmpfs tmpfs rw,size=1g\n";
        assert_eq!(filesystem_of(mounts, "254:0"), Some("ext4"));
        assert_eq!(filesystem_of(mounts, "0:27"), Some("tmpfs"));
        assert_eq!(filesystem_of(mounts, "9:9"), None);
    }

    #[test]
    fn a_device_is_known_by_its_serial_number_and_not_by_its_place() {
        let device = |number: &str, serial: Option<&str>| Identity {
            filesystem: "xfs".to_owned(),
            device: Some(number.to_owned()),
            model: Some("M".to_owned()),
            serial: serial.map(str::to_owned),
            bytes: Some(1 << 40),
            layout: None,
        };
        let first = device("259:0", Some("a"));
        assert!(first.is_same(&device("259:3", Some("a"))));
        assert!(first.is_same(&device("259:3", None)));
        assert!(!first.is_same(&device("259:0", Some("b"))));
        assert!(!first.is_same(&Identity { bytes: Some(1 << 41), ..first.clone() }));
        assert_eq!(first.describe(), "xfs on device 259:0, model M, serial a, 1024 GiB");
    }

    #[test]
    fn a_device_that_has_grown_is_described_otherwise() {
        let described =
            |mib: u64| Identity { bytes: Some(mib << 20), ..Identity::default() }.describe();
        assert_eq!(described(400), ", 0.4 GiB (419430400 bytes)");
        assert_eq!(described(401), ", 0.4 GiB (420478976 bytes)");
        assert_eq!(described(1_024), ", 1 GiB");
    }

    #[test]
    fn this_machine_tells_something() {
        let identity = Identity::of_path(Path::new("/proc"));
        assert_eq!(identity.filesystem, "proc");
        assert!(identity.device.is_some());
    }
}
