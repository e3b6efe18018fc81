//! File systems of a test's own.

use super::process::run;
use super::tools::{skipped, tool};
use std::path::Path;

/// A small file system in memory, unmounted in the end.
pub struct Mount {
    folder: tempfile::TempDir,
}

impl Mount {
    /// `None`, with a word about it, where mounting is not permitted.
    pub fn tmpfs(options: &str) -> Option<Self> {
        let folder = tempfile::Builder::new().prefix("evenkeel-full-").tempdir().expect("a folder");
        let mount = format!("-t tmpfs -o {options} tmpfs {}", folder.path().display());
        let output = run(&mut tool("mount", &mount));
        if !output.status.success() {
            skipped(&format!("mounting a tmpfs needs root: {output}"));
            return None;
        }
        Some(Self { folder })
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
