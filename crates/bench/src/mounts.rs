//! Mounts file systems on NBD exports, for programs that use files. nbdfuse presents one export as
//! a file, or [`Stripe`] presents several as one. A loop device makes the file a disk. A file
//! system is made on the disk, or on several such disks, and mounted.
//!
//! This needs root and FUSE; [`probe`] returns the reason if they are missing. Each step is written
//! to a journal before it is done. It is undone when the stack is dropped, by [`clean`] after
//! Ctrl-C, or by [`clean_leftovers`] after a crash.
//!
//! [`clean_leftovers`]: evenkeel_lab::leftovers::clean_leftovers

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::syncfs;

use crate::stripe::{Member, Stripe};
use evenkeel_lab::LabError;
use evenkeel_lab::child::{Guarded, wait_until};
use evenkeel_lab::leftovers::{
    GONE_MAX, Journal, Step, apart_from_terminal, clean, lacks_right_to_mount, output,
};
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_os::clock;

/// Connections of nbdfuse. With 16 of them it serves ten requests at once, with one only three.
const CONNECTIONS: &str = "16";

/// A file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    /// Three device writes for each durable one: data, journal, commit.
    Ext4,
    /// Two.
    Xfs,
    /// Every write uses new blocks; their positions and checksums are written later. Over several
    /// disks it is a RAID 0 with chunks of 64 KiB.
    Btrfs,
    /// A btrfs that fills chunks of one disk after the other, so disks can be added and removed.
    BtrfsSingle,
}

impl FileSystem {
    /// Returns the command that makes the file system, and the package of its program. The options
    /// keep it from discarding the device's blocks, which would be requests, too.
    fn make(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Ext4 => (&["mkfs.ext4", "-q", "-F", "-E", EXT4_OPTIONS], "e2fsprogs"),
            Self::Xfs => (&["mkfs.xfs", "-q", "-f", "-K"], "xfsprogs"),
            Self::Btrfs | Self::BtrfsSingle => (&["mkfs.btrfs", "-q", "-f", "-K"], "btrfs-progs"),
        }
    }

    /// Returns why the file system cannot be made; `None` if it can.
    #[must_use]
    pub fn lacks(self) -> Option<String> {
        let (make, package) = self.make();
        output(&[make[0], "-V"], package).err().map(|error| error.to_string())
    }

    /// Returns the options for the disks below: an XFS lays files out along the stripe's chunks,
    /// and a btrfs writes each block once.
    fn along(self, fronts: &[Frontend<'_>]) -> Vec<String> {
        match (self, fronts) {
            (Self::Xfs, [Frontend::Stripe { members, chunk_bytes }]) => {
                vec!["-d".to_owned(), format!("su={chunk_bytes},sw={}", members.len())]
            }
            (Self::Btrfs, _) => {
                let profile = if fronts.len() == 1 { "single" } else { "raid0" };
                ["-d", profile, "-m", profile].map(str::to_owned).to_vec()
            }
            (Self::BtrfsSingle, _) => ["-d", "single", "-m", "single"].map(str::to_owned).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Returns the mount options for these disks. A btrfs needs the names of all its disks, since
    /// the kernel has not scanned them.
    fn mount_options(self, devices: &[String]) -> String {
        match self {
            // Discards would be requests, too.
            Self::Btrfs | Self::BtrfsSingle => {
                devices.iter().fold("noatime,nodiscard".to_owned(), |options, device| {
                    format!("{options},device={device}")
                })
            }
            Self::Ext4 | Self::Xfs => "noatime".to_owned(),
        }
    }
}

/// Options of an ext4 without background initialisation, which would disturb a measurement.
const EXT4_OPTIONS: &str = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";

/// A program that presents exports as a file.
#[derive(Clone, Copy, Debug)]
pub enum Frontend<'a> {
    /// nbdfuse, of one export.
    Nbdfuse(&'a NbdUri),
    /// This crate's stripe, of several volumes.
    Stripe {
        /// Its volumes.
        members: &'a [Member<'a>],
        /// Bytes in a row on one of them.
        chunk_bytes: u32,
    },
}

/// A front end that serves.
#[derive(Debug)]
enum Served {
    Nbdfuse(Guarded),
    Stripe(Stripe),
}

/// A mounted file system on NBD exports. Dropping it takes everything down.
#[derive(Debug)]
pub struct MountStack {
    folder: PathBuf,
    mount: PathBuf,
    fronts: Vec<Served>,
    /// The disks, in the order of the exports.
    devices: Vec<String>,
    /// Description of the stack, for the record.
    pub described: String,
    /// The programs that set it up.
    pub programs: Vec<&'static str>,
}

/// Returns why this machine cannot mount a stack; `None` if it can.
#[must_use]
pub fn probe() -> Option<String> {
    if let Some(reason) = lacks_right_to_mount() {
        return Some(reason);
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            return Some(format!("{device} is not there"));
        }
    }
    for (program, package) in
        [("nbdfuse", "libnbd-bin"), ("fusermount3", "fuse3"), ("losetup", "mount")]
    {
        if let Err(error) = output(&[program, "--version"], package) {
            return Some(error.to_string());
        }
    }
    None
}

impl MountStack {
    /// Creates `folder` and sets a stack up below it. The folder must hold no other stack.
    ///
    /// # Errors
    /// If other users may write to the folder, or a program is missing, fails or hangs. The steps
    /// done until then are undone.
    pub fn open(
        folder: &Path,
        fronts: &[Frontend<'_>],
        system: FileSystem,
    ) -> Result<Self, LabError> {
        // Servers that run as other users work below it, so it is searchable whatever the umask.
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(LabError::io("cannot make", folder))?;
        // The kernel's tables have the canonical path, by which the mounts are found again.
        let folder = fs::canonicalize(folder).map_err(LabError::io("cannot find", folder))?;
        // This run's new journal replaces an older one, whose steps have to be undone first.
        let left = clean(&folder);
        if !left.is_empty() {
            let what = format!("mounts of an earlier run cannot be removed: {}", left.join("; "));
            return Err(LabError::Unjudgeable(what));
        }
        let mut stack = Self {
            mount: folder.join("mnt"),
            folder,
            fronts: Vec::new(),
            devices: Vec::new(),
            described: String::new(),
            programs: Vec::new(),
        };
        // From here on, dropping `stack` undoes the steps that were done.
        stack.set_up(fronts, system)?;
        Ok(stack)
    }

    /// Returns the mount point of the file system.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Returns its disks, in the order of the exports.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        &self.devices
    }

    /// Records that a server will work in a folder of the file system. It is stopped before the
    /// stack is taken down.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn serves(&self, folder: &Path) -> Result<(), LabError> {
        Journal::of(&self.folder).write(&Step::Server(folder.to_path_buf()))
    }

    /// Remounts the file system so that it sends no flushes, as on a machine whose disks have no
    /// write cache. Only for volumes whose contents are not needed after a crash.
    ///
    /// # Errors
    /// If the remount fails.
    pub fn without_flushes(&self) -> Result<(), LabError> {
        let path = self.mount.to_string_lossy();
        output(&["mount", "-o", "remount,nobarrier", &path], "mount").map(drop)
    }

    fn set_up(&mut self, fronts: &[Frontend<'_>], system: FileSystem) -> Result<(), LabError> {
        fs::create_dir_all(&self.mount).map_err(LabError::io("cannot make", &self.mount))?;
        let journal = Journal::begin(&self.folder)?;
        let mut devices: Vec<String> = Vec::new();
        for (number, front) in fronts.iter().enumerate() {
            let file = self.serve(number, *front, &journal)?;
            journal.write(&Step::Loop(file.clone()))?;
            let words = ["losetup", "-f", "--show", "--direct-io=on", &file.to_string_lossy()];
            devices.push(output(&words, "mount")?.trim().to_owned());
        }
        let (make, package) = system.make();
        let along = system.along(fronts);
        let mut words = make.to_vec();
        words.extend(along.iter().chain(&devices).map(String::as_str));
        output(&words, package)?;
        journal.write(&Step::Mount(self.mount.clone()))?;
        let first = devices.first().map_or("", String::as_str);
        let path = self.mount.to_string_lossy();
        let options = system.mount_options(&devices);
        output(&["mount", "-o", &options, first, &path], "mount")?;
        let words: Vec<&str> = words.into_iter().filter(|word| *word != "-q").collect();
        let options = options.split(",device=").next().unwrap_or_default();
        self.programs.extend(["losetup", make[0]]);
        self.described = format!("{} with {options} {}", words.join(" "), scheduler(first));
        self.devices = devices;
        Ok(())
    }

    /// Presents exports as a file. Returns the file's path.
    fn serve(
        &mut self,
        number: usize,
        front: Frontend<'_>,
        journal: &Journal,
    ) -> Result<PathBuf, LabError> {
        match front {
            Frontend::Nbdfuse(uri) => {
                let fuse = self.folder.join(format!("fuse-{number}"));
                fs::create_dir_all(&fuse).map_err(LabError::io("cannot make", &fuse))?;
                journal.write(&Step::Fuse(fuse.clone()))?;
                let file = fuse.join("nbd");
                let mut command = apart_from_terminal("nbdfuse");
                command.args(["-C", CONNECTIONS]).arg(&file).arg(uri.as_str());
                let child = Guarded::spawn(command.stdout(Stdio::null()), "libnbd-bin")?;
                self.fronts.push(Served::Nbdfuse(child));
                self.programs.push("nbdfuse");
                wait_until(&format!("{}", file.display()), GONE_MAX, || file.exists())?;
                Ok(file)
            }
            Frontend::Stripe { members, chunk_bytes } => {
                let file = self.folder.join(format!("stripe-{number}"));
                journal.write(&Step::Fuse(file.clone()))?;
                let stripe = Stripe::mount(&file, members, chunk_bytes)?;
                self.fronts.push(Served::Stripe(stripe));
                Ok(file)
            }
        }
    }
}

impl Drop for MountStack {
    fn drop(&mut self) {
        clean(&self.folder);
        for front in self.fronts.drain(..) {
            match front {
                // nbdfuse ends by itself after the unmount.
                Served::Nbdfuse(mut child) => {
                    let _ = child.wait_until(clock::now() + GONE_MAX);
                }
                Served::Stripe(stripe) => drop(stripe),
            }
        }
    }
}

/// Writes all dirty data of the folder's file system to its disk.
///
/// # Errors
/// If the write fails.
pub(crate) fn settle(folder: &Path) -> Result<(), LabError> {
    let written = fs::File::open(folder).and_then(|folder| Ok(syncfs(folder)?));
    written.map_err(LabError::io("cannot have the system write", folder))
}

/// Returns the I/O scheduler of a block device, as the kernel reports it.
fn scheduler(device: &str) -> String {
    let name = device.rsplit('/').next().unwrap_or_default();
    let text = fs::read_to_string(format!("/sys/block/{name}/queue/scheduler"));
    text.map_or_else(|_| String::new(), |text| format!("(scheduler {})", text.trim()))
}
