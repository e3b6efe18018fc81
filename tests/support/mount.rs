//! File systems of a test.

use super::loop_device::LoopDevice;
use super::process::run;
use super::tools::{absent, skipped, tool};
use std::fs::File;
use std::path::Path;

/// A small file system. It is unmounted when dropped.
pub struct Mount {
    folder: tempfile::TempDir,
    /// The disk below it, with the file of its bytes.
    _disk: Option<(LoopDevice, tempfile::NamedTempFile)>,
}

impl Mount {
    /// Mounts one in memory; returns `None` with a message if mounts are not permitted.
    pub fn tmpfs(options: &str) -> Option<Self> {
        Self::mounted(&format!("-t tmpfs -o {options} tmpfs"), None)
    }

    /// Mounts one on a disk of this size that `mkfs`, a program and its flags, prepares.
    pub fn disk(mkfs: &str, bytes: u64) -> Option<Self> {
        let (program, flags) = mkfs.split_once(' ').expect("flags");
        if absent(&[program]) {
            return None;
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        File::options()
            .write(true)
            .open(file.path())
            .and_then(|it| it.set_len(bytes))
            .expect("room");
        let device = LoopDevice::of(file.path())?;
        run(tool(program, flags).arg(device.path())).ok();
        let path = device.path().to_owned();
        Self::mounted(&path, Some((device, file)))
    }

    fn mounted(what: &str, disk: Option<(LoopDevice, tempfile::NamedTempFile)>) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("evenkeel-full-").tempdir().expect("a folder");
        let output = run(tool("mount", what).arg(folder.path()));
        if !output.status.success() {
            skipped(&format!("mounting {what} needs root: {output}"));
            return None;
        }
        Some(Self { folder, _disk: disk })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let output = run(tool("umount", "").arg(self.path()));
        assert!(output.status.success() || std::thread::panicking(), "{output}");
    }
}
