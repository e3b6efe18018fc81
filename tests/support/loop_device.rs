//! Loop devices of a test.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::run;
use super::tools::{absent, skipped, tool};
use std::path::Path;

/// A loop device. It is detached when dropped.
pub struct LoopDevice(String);

impl LoopDevice {
    /// Attaches one to a file; returns `None` with a message if that is not possible.
    pub fn of(file: &Path) -> Option<Self> {
        if absent(&["losetup"]) {
            return None;
        }
        if !Path::new("/dev/loop-control").exists() {
            skipped("no loop devices: there is no /dev/loop-control");
            return None;
        }
        let make = || run(tool("losetup", "--find --show --direct-io=on").arg(file));
        let mut output = make();
        // Another process may take the device that was found free.
        let is_made = || {
            if !output.status.success() {
                output = make();
            }
            output.status.success()
        };
        Deadline::after(PATIENCE).ask("a loop device", is_made);
        Some(Self(output.stdout.trim().to_owned()))
    }

    /// Returns its path in `/dev`.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        run(tool("losetup", "-d").arg(&self.0));
    }
}
