//! The devices of volumes on this host.
//!
//! An NVMe device has the id of its volume as its serial number. The kernel's client of NBD may
//! have it as its backend, and a loop device as a part of the path of its file. Others are named by
//! flags, or printed by the attach command. Those are kept in a file, since an agent that starts
//! again needs them; the kernel's sequence number of the disk tells whether the device is still
//! that one.

use crate::Fault;
use evenkeel_core::ids::VolumeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The folder with the kernel's disks.
const DISKS: &str = "/sys/block";
/// The beginning of a volume's id.
const VOLUME: &str = "vol-";
/// The beginning of a volume's id in a serial number.
const SERIAL: &str = "vol";

/// The devices of this host. A clone shares them.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The folder with the kernel's disks.
    disks: PathBuf,
    file: PathBuf,
    /// Named by flags.
    given: Arc<BTreeMap<String, PathBuf>>,
    made: Arc<Mutex<BTreeMap<String, Made>>>,
}

/// A device that the attach command has made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Made {
    device: PathBuf,
    /// The boot in which it was made.
    boot: String,
    /// The kernel's sequence number of the disk; empty if the kernel has none.
    sequence: String,
}

impl Devices {
    /// Creates it with the devices that flags name and those in a file.
    #[must_use]
    pub fn new(given: BTreeMap<String, PathBuf>, file: PathBuf) -> Self {
        let text = fs::read(&file).unwrap_or_default();
        // Without a readable file, the volumes are attached by the command again.
        let made: BTreeMap<String, Made> = serde_json::from_slice(&text).unwrap_or_default();
        let made = Arc::new(Mutex::new(made));
        Self { disks: DISKS.into(), file, given: Arc::new(given), made }
    }

    /// Returns all volumes that have a device, each with its path.
    pub fn all(&self) -> Vec<(String, PathBuf)> {
        let mut all: BTreeMap<String, PathBuf> = self.by_kernel();
        let made = self.made();
        let made = made.iter().filter(|(_, made)| self.is_same(made));
        all.extend(made.map(|(volume, made)| (volume.clone(), made.device.clone())));
        let given = self.given.iter().filter(|(_, path)| !self.is_gone(path));
        all.extend(given.map(|(volume, path)| (volume.clone(), path.clone())));
        all.into_iter().collect()
    }

    /// Returns the device of a volume that a flag names, while it is one.
    pub fn given_for(&self, volume: &str) -> Option<PathBuf> {
        self.given.get(volume).filter(|path| !self.is_gone(path)).cloned()
    }

    /// Returns the device of a volume over NBD about which the kernel says whose it is.
    pub fn found_for(&self, volume: &str) -> Option<PathBuf> {
        let found = self.by_kernel().remove(volume);
        found.filter(|path| keeps_its_size(&path.display().to_string()))
    }

    /// For tests: returns it with another folder of disks.
    #[cfg(test)]
    pub fn with_disks(self, disks: PathBuf) -> Self {
        Self { disks, ..self }
    }

    /// Returns whether a device has no bytes: its disk is not connected.
    fn is_gone(&self, device: &Path) -> bool {
        self.text(device, "size").is_some_and(|size| size == "0")
    }

    /// Reads a file of the kernel about a disk.
    fn text(&self, device: &Path, name: &str) -> Option<String> {
        let device = fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
        let text = fs::read_to_string(self.disks.join(device.file_name()?).join(name));
        text.ok().map(|text| text.trim().to_owned())
    }

    /// Returns whether a volume has a device.
    pub fn has(&self, volume: &str) -> bool {
        self.all().iter().any(|(known, _)| known == volume)
    }

    /// Returns the device of a volume that the attach command has made, if it is still that one.
    pub fn made_for(&self, volume: &str) -> Option<PathBuf> {
        let made = self.made();
        made.get(volume).filter(|made| self.is_same(made)).map(|made| made.device.clone())
    }

    /// Keeps the device that the attach command has made for a volume.
    ///
    /// # Errors
    /// If it is no block device, or the file cannot be written.
    pub fn add(&self, volume: &str, device: &Path) -> Result<(), Fault> {
        use std::os::unix::fs::FileTypeExt as _;
        let is_block = fs::metadata(device).is_ok_and(|found| found.file_type().is_block_device());
        if !is_block {
            return Err(Fault::Later(format!(
                "the attach command of {volume} printed {:?}, which is no block device: its last \
                 line must be the path of the device",
                device.display().to_string()
            )));
        }
        let boot = boot().to_owned();
        let made = Made { sequence: self.sequence(device), boot, device: device.to_owned() };
        self.made().insert(volume.to_owned(), made);
        self.write()
    }

    /// Forgets the device of a volume.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn forget(&self, volume: &str) -> Result<(), Fault> {
        // Not in one expression with `write`, which takes the lock again.
        let removed = self.made().remove(volume);
        if removed.is_some() { self.write() } else { Ok(()) }
    }

    fn write(&self) -> Result<(), Fault> {
        let text = serde_json::to_vec(&*self.made()).expect("invariant: paths are UTF-8");
        let written = evenkeel_os::files::write_whole(&self.file, &text);
        written.map_err(|error| Fault::Later(format!("{}: {error}", self.file.display())))
    }

    fn made(&self) -> MutexGuard<'_, BTreeMap<String, Made>> {
        // The map is consistent after each of its changes.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a device is the disk that it was when it was made.
    fn is_same(&self, made: &Made) -> bool {
        made.boot == boot() && made.sequence == self.sequence(&made.device)
    }

    fn sequence(&self, device: &Path) -> String {
        self.text(device, "diskseq").unwrap_or_default()
    }

    /// Returns the devices about which the kernel itself says whose volume they are.
    fn by_kernel(&self) -> BTreeMap<String, PathBuf> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.disks).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
            let serial = read("device/serial").as_deref().and_then(volume_of);
            let backend = || read("backend").as_deref().and_then(volume_in);
            let file = || read("loop/backing_file").as_deref().and_then(volume_in);
            let device = Path::new("/dev").join(entry.file_name());
            let volume = serial.or_else(backend).or_else(file);
            if let Some(volume) = volume.filter(|_| !self.is_gone(&device)) {
                found.insert(volume, device);
            }
        }
        found
    }
}

/// Returns the volume whose id is a part of a path, such as `/run/evenkeel/vol-.../nbd`.
fn volume_in(path: &str) -> Option<String> {
    let mut ids = path.trim().split('/').filter_map(|part| part.parse::<VolumeId>().ok());
    ids.next().map(|id| id.to_string())
}

/// Returns whether a device keeps its size when its volume grows: one of the kernel's client of
/// NBD, and a loop device over a file of such a client.
pub fn keeps_its_size(device: &str) -> bool {
    let device = fs::canonicalize(device).unwrap_or_else(|_| device.into());
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.starts_with("nbd") || name.starts_with("loop")
}

/// Returns the id of this boot; an empty one if the kernel has none.
fn boot() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| evenkeel_os::clock::boot_id().unwrap_or_default())
}

/// Returns the volume of a serial number such as `vol0123456789abcdef0`.
fn volume_of(serial: &str) -> Option<String> {
    let rest = serial.trim().strip_prefix(SERIAL)?;
    let digits = rest.strip_prefix('-').unwrap_or(rest);
    let is_id = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| format!("{VOLUME}{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvme_device_is_found_by_its_serial_number() {
        let folder = tempfile::tempdir().unwrap();
        let disks = folder.path().join("block");
        for (name, serial) in [
            ("nvme0n1", "vol0123456789abcdef0 \n"),
            ("nvme1n1", "vol-0fe\n"),
            ("nvme2n1", "AWS6A2B3C\n"),
            ("nvme3n1", "vol\n"),
        ] {
            fs::create_dir_all(disks.join(name).join("device")).unwrap();
            fs::write(disks.join(name).join("device/serial"), serial).unwrap();
        }
        fs::create_dir_all(disks.join("nbd77")).unwrap();
        fs::write(disks.join("nbd77/size"), "0\n").unwrap();
        let given = [("vol-0fe", "/dev/sdb"), ("vol-1", "/dev/nbd77")];
        let given = given.map(|(volume, path)| (volume.to_owned(), PathBuf::from(path))).into();
        let devices = Devices::new(given, folder.path().join("devices.json"));
        let devices = Devices { disks, ..devices };
        let pair = |volume: &str, device: &str| (volume.to_owned(), PathBuf::from(device));
        let expected = [pair("vol-0123456789abcdef0", "/dev/nvme0n1"), pair("vol-0fe", "/dev/sdb")];
        assert_eq!(devices.all(), expected);
        assert!(devices.has("vol-0fe") && !devices.has("vol-1"));
        // A disk that is not connected has no bytes.
        assert_eq!(devices.given_for("vol-1"), None);
        assert_eq!(devices.given_for("vol-0fe"), Some("/dev/sdb".into()));
    }

    #[test]
    fn device_whose_backend_or_file_names_a_volume_needs_no_flag() {
        let folder = tempfile::tempdir().unwrap();
        let disks = folder.path().join("block");
        for (name, text) in [
            ("nbd0/backend", "vol-0123456789abcdef0\n"),
            ("loop1/loop/backing_file", "/run/evenkeel/vol-0123456789abcdef1/nbd\n"),
            ("loop2/loop/backing_file", "/home/vol-1/disk\n"),
            ("nbd3/backend", "vol-0123456789abcdef3\n"),
            // It is not connected.
            ("nbd3/size", "0\n"),
        ] {
            let path = disks.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let devices = Devices::new(BTreeMap::new(), folder.path().join("devices.json"));
        let devices = Devices { disks, ..devices };
        let pair = |volume: &str, device: &str| (volume.to_owned(), PathBuf::from(device));
        let expected = [
            pair("vol-0123456789abcdef0", "/dev/nbd0"),
            pair("vol-0123456789abcdef1", "/dev/loop1"),
        ];
        assert_eq!(devices.all(), expected);
    }

    #[test]
    fn devices_of_nbd_keep_their_size() {
        for (device, keeps) in [("/dev/nbd0", true), ("/dev/loop12", true), ("/dev/nvme1n1", false)]
        {
            assert_eq!(keeps_its_size(device), keeps, "{device}");
        }
    }

    #[test]
    fn made_device_is_forgotten_when_it_is_another_disk() {
        let folder = tempfile::tempdir().unwrap();
        let disks = folder.path().join("block");
        fs::create_dir_all(disks.join("loop7")).unwrap();
        fs::write(disks.join("loop7/diskseq"), "12\n").unwrap();
        let file = folder.path().join("devices.json");
        let made = Made {
            device: "/dev/loop7".into(),
            boot: boot().to_owned(),
            sequence: "12".to_owned(),
        };
        let before: BTreeMap<&str, &Made> = [("vol-1", &made)].into();
        fs::write(&file, serde_json::to_vec(&before).unwrap()).unwrap();
        let devices =
            Devices { disks: disks.clone(), ..Devices::new(BTreeMap::new(), file.clone()) };
        assert_eq!(devices.made_for("vol-1"), Some("/dev/loop7".into()));
        fs::write(disks.join("loop7/diskseq"), "13\n").unwrap();
        assert_eq!(devices.made_for("vol-1"), None);
        assert_eq!(devices.all(), []);
        devices.forget("vol-1").unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "{}");
        let refused = devices.add("vol-1", Path::new("/etc/passwd")).unwrap_err();
        assert!(refused.to_string().contains("is no block device"), "{refused}");
    }
}
