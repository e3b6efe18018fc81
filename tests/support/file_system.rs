//! A file system on a volume: nbdfuse presents the volume as a file, a loop device makes that a
//! disk. Writes reach the server without the page cache of the file, and each flush of the file
//! system is one of the volume.

use super::PATIENCE;
use super::clock::Deadline;
use super::loop_device::LoopDevice;
use super::mount::Mount;
use super::process::{Output, Running, run, start};
use super::server::Server;
use super::tools::{absent, skipped, tool};
use std::path::{Path, PathBuf};

/// Time limit of a program of the stack, in seconds: one that waits for a server that has ended
/// must not block the test.
const STEP_SECONDS: &str = "30";

/// The kind of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    /// Makes a file system with small tables of inodes and without later background work.
    fn make(self, device: &str) -> Output {
        let words = match self {
            Self::Ext4 => "mkfs.ext4 -q -F -N 8192 -E nodiscard,lazy_itable_init=0",
            Self::Xfs => "mkfs.xfs -q -f -K",
        };
        step(words, &[device])
    }

    /// Checks an unmounted file system; the exit code is its result.
    fn check(self, device: &str) -> Output {
        let words = match self {
            Self::Ext4 => "e2fsck -f -n",
            Self::Xfs => "xfs_repair -n",
        };
        step(words, &[device])
    }
}

/// Runs a program of the stack with the time limit.
fn step(words: &str, more: &[&str]) -> Output {
    run(tool("timeout", STEP_SECONDS).args(words.split_whitespace()).args(more))
}

/// Returns whether file systems cannot be mounted here, and prints that.
pub fn has_no_mounts() -> bool {
    if absent(&["nbdfuse", "fusermount3", "losetup", "mkfs.ext4", "mkfs.xfs"]) {
        return true;
    }
    let devices = ["/dev/fuse", "/dev/loop-control"];
    if let Some(device) = devices.iter().find(|device| !Path::new(device).exists()) {
        skipped(&format!("{device} is not there"));
        return true;
    }
    Mount::tmpfs("size=64k").is_none()
}

/// A file system on a volume. Dropping it removes all of its mounts and devices.
pub struct FileSystem {
    kind: Kind,
    /// The folder of all mounts.
    folder: PathBuf,
    nbdfuse: Option<Running>,
    device: Option<LoopDevice>,
}

impl FileSystem {
    /// Makes a file system on a volume and mounts it below `folder`.
    #[track_caller]
    pub fn make(kind: Kind, folder: &Path, server: &Server, volume: &str) -> Self {
        Self::make_at(kind, folder, &server.unix_uri(volume))
    }

    /// Makes a file system on an export and mounts it below `folder`.
    #[track_caller]
    pub fn make_at(kind: Kind, folder: &Path, uri: &str) -> Self {
        let folder = folder.join("stack");
        let mut made = Self { kind, folder, nbdfuse: None, device: None };
        for folder in [made.fuse(), made.path()] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        let device = made.connect(uri);
        kind.make(&device).ok();
        made.mount(&device);
        made
    }

    /// Returns the mount point.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    fn fuse(&self) -> PathBuf {
        self.folder.join("fuse")
    }

    /// Mounts it again after a crash of the server, as after a power cut: its journal is replayed.
    /// Then checks that it is whole.
    #[track_caller]
    pub fn recover(&mut self, server: &Server, volume: &str) {
        self.recover_at(&server.unix_uri(volume));
    }

    /// Mounts it again on an export, and checks that it is whole.
    #[track_caller]
    pub fn recover_at(&mut self, uri: &str) {
        let device = self.connect(uri);
        self.mount(&device);
        self.unmount();
        self.kind.check(&device).ok();
        self.mount(&device);
    }

    /// Removes the mounts and the device after a crash of the server. Dirty data is dropped.
    #[track_caller]
    pub fn lose(&mut self) {
        self.unmount();
        self.device = None;
        if let Some(nbdfuse) = self.nbdfuse.take() {
            let fuse = self.fuse();
            // The kernel detaches the loop device's file once the device is closed.
            let is_gone = || step("fusermount3 -u", &[&fuse.to_string_lossy()]).status.success();
            Deadline::after(PATIENCE).ask("the end of nbdfuse's mount", is_gone);
            // Its exit code after the server's end does not matter.
            nbdfuse.finish();
        }
    }

    /// Makes the volume a disk; returns the device.
    #[track_caller]
    fn connect(&mut self, uri: &str) -> String {
        let file = self.fuse().join("nbd");
        let mut nbdfuse = tool("nbdfuse", "-C 4");
        let mut nbdfuse = start(nbdfuse.arg(&file).arg(uri));
        let is_there = || {
            assert!(nbdfuse.is_running(), "nbdfuse has ended: {}", nbdfuse.logged());
            file.exists()
        };
        Deadline::after(PATIENCE).ask("nbdfuse's file", is_there);
        self.nbdfuse = Some(nbdfuse);
        let device = LoopDevice::of(&file).expect("a loop device");
        let path = device.path().to_owned();
        self.device = Some(device);
        path
    }

    #[track_caller]
    fn mount(&self, device: &str) {
        step("mount -o noatime", &[device, &self.path().to_string_lossy()]).ok();
    }

    /// Unmounts it once it is not in use: a killed process may not have ended yet.
    #[track_caller]
    fn unmount(&self) {
        let at = self.path();
        let is_gone =
            || !is_mounted(&at) || step("umount", &[&at.to_string_lossy()]).status.success();
        Deadline::after(PATIENCE).ask("the end of the file system's mount", is_gone);
    }
}

fn is_mounted(at: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("Linux");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&at.to_string_lossy()))
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A failed test ends here, too. Errors must not hide its cause.
        let at = self.path();
        let is_gone =
            || !is_mounted(&at) || step("umount", &[&at.to_string_lossy()]).status.success();
        if !Deadline::after(PATIENCE / 4).comes(is_gone) {
            step("umount -l", &[&at.to_string_lossy()]);
        }
        self.device = None;
        if self.nbdfuse.is_some() {
            step("fusermount3 -u -z", &[&self.fuse().to_string_lossy()]);
        }
    }
}
