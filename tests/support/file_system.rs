//! A file system on a volume: nbdfuse makes the volume a file, a loop device makes that a disk.
//! What is written to it reaches the server past the page cache, and each flush of the file system
//! is one of the volume.

use super::PATIENCE;
use super::clock::Deadline;
use super::loop_device::LoopDevice;
use super::mount::Mount;
use super::process::{Output, Running, run, start};
use super::server::Server;
use super::tools::{absent, skipped, tool};
use std::path::{Path, PathBuf};

/// Seconds after which a program of the stack is given up: one that waits for a server that is gone
/// must not keep the test waiting.
const STEP_SECONDS: &str = "30";

/// Which file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    /// Makes one: small tables of inodes, and nothing that is done in the background later.
    fn make(self, device: &str) -> Output {
        let words = match self {
            Self::Ext4 => "mkfs.ext4 -q -F -N 8192 -E nodiscard,lazy_itable_init=0",
            Self::Xfs => "mkfs.xfs -q -f -K",
        };
        step(words, &[device])
    }

    /// Says with its exit code whether one that is not mounted is whole.
    fn check(self, device: &str) -> Output {
        let words = match self {
            Self::Ext4 => "e2fsck -f -n",
            Self::Xfs => "xfs_repair -n",
        };
        step(words, &[device])
    }
}

/// Runs a program of the stack, bounded in time.
fn step(words: &str, more: &[&str]) -> Output {
    run(tool("timeout", STEP_SECONDS).args(words.split_whitespace()).args(more))
}

/// Whether file systems cannot be mounted here; says so.
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

/// A file system on a volume. Dropping it takes it down, whatever is there of it.
pub struct FileSystem {
    kind: Kind,
    /// Whose path has all that is mounted.
    folder: PathBuf,
    nbdfuse: Option<Running>,
    device: Option<LoopDevice>,
}

impl FileSystem {
    /// Makes one on a volume and mounts it below `folder`.
    #[track_caller]
    pub fn make(kind: Kind, folder: &Path, server: &Server, volume: &str) -> Self {
        Self::make_at(kind, folder, &server.unix_uri(volume))
    }

    /// The same on an export.
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

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    fn fuse(&self) -> PathBuf {
        self.folder.join("fuse")
    }

    /// Mounts it again after a crash, as after a power cut: its journal is replayed. Checks that it
    /// is whole then.
    #[track_caller]
    pub fn recover(&mut self, server: &Server, volume: &str) {
        self.recover_at(&server.unix_uri(volume));
    }

    /// The same on an export.
    #[track_caller]
    pub fn recover_at(&mut self, uri: &str) {
        let device = self.connect(uri);
        self.mount(&device);
        self.unmount();
        self.kind.check(&device).ok();
        self.mount(&device);
    }

    /// Takes all of it down after a crash of the server. What was not written yet is forgotten.
    #[track_caller]
    pub fn lose(&mut self) {
        self.unmount();
        self.device = None;
        if let Some(nbdfuse) = self.nbdfuse.take() {
            let fuse = self.fuse();
            // The kernel lets go of the loop device's file when nobody looks at the device.
            let is_gone = || step("fusermount3 -u", &[&fuse.to_string_lossy()]).status.success();
            Deadline::after(PATIENCE).ask("the end of nbdfuse's mount", is_gone);
            // How it ends after its server has gone is its own affair.
            nbdfuse.finish();
        }
    }

    /// Makes the volume a disk.
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

    /// Unmounts it as soon as nobody uses it: a process that was killed may not be gone yet.
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
        // A test that fails ends here, too: whatever does not go must not hide why it failed.
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
