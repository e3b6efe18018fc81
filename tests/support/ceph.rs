//! A throw-away Ceph cluster on this machine.

use super::process::{Running, run, start};
use super::server::evenkeel;
use super::tools::absent;
use std::path::{Path, PathBuf};

/// The user that may do what the manual says, and nothing else.
pub const USER: &str = "client.evenkeel";

/// A Ceph cluster, which ends with its process.
pub struct Cluster {
    _process: Running,
    folder: PathBuf,
    pub conf: String,
}

impl Cluster {
    /// Starts it in a folder; `None`, and a word, without Ceph.
    pub fn start(folder: &Path) -> Option<Self> {
        if absent(&["ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "monmaptool"]) {
            return None;
        }
        let mut command = evenkeel(folder);
        let mut process = start(command.args(["demo", "ceph", "./ceph"]));
        let said = process.wait_for_line("--ceph-conf");
        let conf = said.split("--ceph-conf ").nth(1).expect("a path").trim().to_owned();
        Some(Self { _process: process, folder: folder.join("ceph"), conf })
    }

    /// The flags of a server whose volumes are there.
    pub fn store(&self) -> String {
        format!("--store rbd --ceph-user {USER} --ceph-conf {}", self.conf)
    }

    /// Sends a signal to the only OSD.
    pub fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.folder.join("run/osd.0.pid")).expect("its pid");
        run(std::process::Command::new("kill").args([signal, pid.trim()])).ok();
    }
}
