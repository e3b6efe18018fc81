//! A temporary etcd of one member on this machine. It can be killed, stopped and started again.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::{Running, run, start};
use rustix::process::Signal;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Attempts to start with free ports.
const ATTEMPTS_MAX: usize = 5;

/// An etcd, which ends with its value.
pub struct Etcd {
    data: PathBuf,
    /// The addresses for clients, and for other members.
    urls: [String; 2],
    process: Option<Running>,
}

impl Etcd {
    /// Starts an etcd in a folder. It ends if another program has taken one of its ports, and is
    /// started with others.
    #[track_caller]
    pub fn start(folder: &Path) -> Self {
        for _ in 0..ATTEMPTS_MAX {
            // Both ports are bound at once, as one might be returned twice otherwise.
            let bound = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
            let urls = bound
                .each_ref()
                .map(|listener| format!("http://{}", listener.local_addr().expect("its address")));
            drop(bound);
            let mut etcd = Self { data: folder.join("etcd"), urls, process: None };
            etcd.start_again();
            if etcd.answers() {
                return etcd;
            }
            let _ = std::fs::remove_dir_all(&etcd.data);
        }
        panic!("etcd ends at each of {ATTEMPTS_MAX} starts");
    }

    /// Returns its address for clients.
    pub fn endpoint(&self) -> &str {
        &self.urls[0]
    }

    /// Starts it with its data. It must not run.
    pub fn start_again(&mut self) {
        let [clients, peers] = &self.urls;
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(&self.data).args(["--name", "m0"]);
        command.args(["--listen-client-urls", clients, "--advertise-client-urls", clients]);
        command.args(["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]);
        command.args(["--initial-cluster", &format!("m0={peers}")]);
        self.process = Some(start(&mut command));
    }

    /// Kills it as a crash would.
    pub fn kill(&mut self) {
        self.process.take().expect("it runs").kill_9();
    }

    /// Kills it, and starts another one without data at the same address.
    #[track_caller]
    pub fn lose_data(&mut self) {
        self.kill();
        std::fs::remove_dir_all(&self.data).expect("its data");
        self.start_again();
        assert!(self.answers(), "etcd ends at its start");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("it runs").signal(signal);
    }

    /// Waits until it answers; returns false if it ends before that.
    #[track_caller]
    fn answers(&mut self) -> bool {
        let mut has_ended = false;
        let is_decided = || {
            has_ended = !self.process.as_mut().expect("it was started").is_running();
            has_ended || run(self.client().args(["get", "x"])).status.success()
        };
        assert!(Deadline::after(PATIENCE).comes(is_decided), "etcd does not answer");
        !has_ended
    }

    /// Runs `etcdctl` with these arguments, which must succeed.
    #[track_caller]
    pub fn control(&self, words: &[&str]) {
        run(self.client().args(words)).ok();
    }

    fn client(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", self.endpoint()]);
        command
    }
}
