//! A temporary etcd of one member on this machine. It can be killed, stopped and started again.

use evenkeel_lab::etcd::{Etcd as Members, Setup};
use std::path::{Path, PathBuf};

/// An etcd, which ends with its value.
pub struct Etcd {
    folder: PathBuf,
    endpoint: String,
    members: Members,
}

impl Etcd {
    /// Starts an etcd in a folder.
    #[track_caller]
    pub fn start(folder: &Path) -> Self {
        let folder = folder.join("etcd");
        let members = Members::start(&folder, Setup::default()).expect("etcd starts");
        let endpoint = members.endpoints().remove(0);
        Self { folder, endpoint, members }
    }

    /// Returns its address for clients.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Starts it with its data. It must not run.
    #[track_caller]
    pub fn start_again(&mut self) {
        self.members.start_member(0).expect("etcd starts");
    }

    /// Kills it as a crash would.
    #[track_caller]
    pub fn kill(&mut self) {
        self.members.kill_member(0).expect("etcd runs");
    }

    /// Kills it, and starts another one without data at the same address.
    #[track_caller]
    pub fn lose_data(&mut self) {
        self.kill();
        std::fs::remove_dir_all(self.folder.join("m0")).expect("its data");
        self.start_again();
        self.members.wait().expect("etcd answers");
    }

    /// Stops it with SIGSTOP: its connections stay open.
    #[track_caller]
    pub fn pause(&self) {
        self.members.pause_member(0).expect("etcd runs");
    }

    /// Resumes it after [`pause`](Self::pause).
    #[track_caller]
    pub fn resume(&self) {
        self.members.resume_member(0).expect("etcd runs");
    }

    /// Runs `etcdctl` with these arguments, which must succeed.
    #[track_caller]
    pub fn control(&self, words: &[&str]) {
        self.members.client(words).expect("etcdctl");
    }
}
