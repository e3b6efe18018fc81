//! A temporary Ceph cluster on this machine.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::{Running, run, start};
use super::server::evenkeel;
use super::tools::absent;
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The user with exactly the capabilities of the manual.
pub const USER: &str = "client.evenkeel";

/// A Ceph cluster, which ends with its process.
pub struct Cluster {
    process: Running,
    folder: PathBuf,
    pub conf: String,
}

impl Cluster {
    /// Starts a cluster in a folder; returns `None` with a message if Ceph is not installed.
    pub fn start(folder: &Path) -> Option<Self> {
        Self::start_with(folder, "")
    }

    /// Starts a cluster with these options of `evenkeel demo ceph`.
    pub fn start_with(folder: &Path, options: &str) -> Option<Self> {
        if absent(&["ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "monmaptool"]) {
            return None;
        }
        let mut command = evenkeel(folder);
        command.args(["demo", "ceph", "./ceph"]).args(options.split_whitespace());
        let mut process = start(&mut command);
        // The manager loads its modules first, which takes a minute on a machine that is busy.
        let deadline = Deadline::after(4 * PATIENCE);
        let said = loop {
            match process.next_line(deadline) {
                Some(line) if line.contains("--ceph-conf") => break line,
                Some(_) => {}
                None => panic!("the cluster does not start: {}", process.logged()),
            }
        };
        let conf = said.split("--ceph-conf ").nth(1).expect("a path").trim().to_owned();
        Some(Self { process, folder: folder.join("ceph"), conf })
    }

    /// Stops it as Ctrl-C does.
    #[track_caller]
    pub fn interrupt(self) {
        self.process.signal(Signal::INT);
        self.process.finish().ok();
    }

    /// Returns the flags of a server whose volumes are on it.
    pub fn store(&self) -> String {
        format!("--store rbd --ceph-user {USER} --ceph-conf {}", self.conf)
    }

    /// Sends a signal to the only OSD.
    pub fn signal(&self, signal: &str) {
        self.signal_osd(0, signal);
    }

    /// Sends a signal to an OSD.
    pub fn signal_osd(&self, number: u32, signal: &str) {
        let path = self.folder.join(format!("run/osd.{number}.pid"));
        let pid = std::fs::read_to_string(path).expect("its pid");
        run(Command::new("kill").args([signal, pid.trim()])).ok();
    }

    /// Starts a killed OSD again.
    pub fn start_osd(&self, number: u32) -> Running {
        let mut command = Command::new("ceph-osd");
        start(command.args(["-c", &self.conf, "-i", &number.to_string(), "-f"]))
    }

    /// Runs `ceph` with these arguments; returns its output.
    #[track_caller]
    pub fn ask(&self, words: &str) -> String {
        let mut command = Command::new("ceph");
        command.args(["-c", &self.conf, "--connect-timeout", "20"]);
        run(command.args(words.split_whitespace())).ok()
    }

    /// Waits until all placement groups are active and clean, and `osds` OSDs are up.
    #[track_caller]
    pub fn is_well(&self, osds: u64) {
        let is_well = || {
            let status: Value =
                serde_json::from_str(&self.ask("status --format json")).expect("JSON");
            let groups = &status["pgmap"]["pgs_by_state"];
            let states: Vec<&Value> = groups.as_array().into_iter().flatten().collect();
            let is_clean = |state: &&Value| {
                state["state_name"].as_str().is_some_and(|name| name.starts_with("active+clean"))
            };
            status["osdmap"]["num_up_osds"] == osds && states.iter().all(is_clean)
        };
        assert!(Deadline::after(3 * PATIENCE).comes(is_well), "{}", self.ask("status"));
    }

    /// Returns the number of instances on the blocklist.
    #[track_caller]
    pub fn fenced(&self) -> usize {
        // A line for each: its address, its nonce and when the entry ends. A first start tests its
        // right to fence with an address that no instance has, for a second.
        let is_one = |line: &&str| line.contains('/') && !line.starts_with("127.0.0.1:0/1 ");
        self.ask("osd blocklist ls").lines().filter(is_one).count()
    }
}
