//! A temporary etcd on this machine, of one member or three. Members can be killed, stopped and
//! started again.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::{Running, run, start};
use rustix::process::Signal;
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An etcd, which ends with its value.
pub struct Etcd {
    folder: PathBuf,
    /// The ports of each member: for clients, and for other members.
    ports: Vec<[u16; 2]>,
    members: Vec<Option<Running>>,
}

/// Returns free ports for this number of members. All are bound at once, as one might be returned
/// twice otherwise.
fn free_ports(members: usize) -> Vec<[u16; 2]> {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let all: Vec<[TcpListener; 2]> = (0..members).map(|_| [bind(), bind()]).collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("its address").port();
    all.iter().map(|[clients, peers]| [port(clients), port(peers)]).collect()
}

impl Etcd {
    /// Starts an etcd of this number of members in a folder.
    #[track_caller]
    pub fn start(folder: &Path, members: usize) -> Self {
        let folder = folder.join("etcd");
        let ports = free_ports(members);
        let mut etcd = Self { folder, ports, members: (0..members).map(|_| None).collect() };
        (0..members).for_each(|member| etcd.start_member(member));
        etcd.wait();
        etcd
    }

    /// Returns the address of a member for clients.
    pub fn endpoint(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[member][0])
    }

    /// Returns the addresses of all members for clients, separated by commas.
    pub fn endpoints(&self) -> String {
        let all = (0..self.ports.len()).map(|member| self.endpoint(member));
        all.collect::<Vec<_>>().join(",")
    }

    /// Returns the port of a member for clients.
    pub fn port(&self, member: usize) -> u16 {
        self.ports[member][0]
    }

    /// Starts a member that does not run, with its data.
    pub fn start_member(&mut self, member: usize) {
        let peer = |member: usize| format!("http://127.0.0.1:{}", self.ports[member][1]);
        let all = (0..self.ports.len()).map(|other| format!("m{other}={}", peer(other)));
        let url = self.endpoint(member);
        let peers = peer(member);
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.join(format!("m{member}")));
        command.args(["--name", &format!("m{member}")]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &all.collect::<Vec<_>>().join(",")]);
        self.members[member] = Some(start(&mut command));
    }

    /// Kills a member as a crash would.
    pub fn kill_member(&mut self, member: usize) {
        self.members[member].take().expect("it runs").kill_9();
    }

    /// Kills the only member, and starts another one without data at the same address.
    #[track_caller]
    pub fn lose_data(&mut self) {
        assert_eq!(self.ports.len(), 1, "one member");
        self.kill_member(0);
        std::fs::remove_dir_all(self.folder.join("m0")).expect("its data");
        self.start_member(0);
        self.wait();
    }

    /// Sends a member a signal.
    pub fn signal(&self, member: usize, signal: Signal) {
        self.members[member].as_ref().expect("it runs").signal(signal);
    }

    /// Waits until a majority answers.
    #[track_caller]
    pub fn wait(&self) {
        let answers = || run(self.client().args(["get", "x"])).status.success();
        assert!(Deadline::after(PATIENCE).comes(answers), "etcd does not answer");
    }

    /// Runs `etcdctl` with these arguments, which must succeed.
    #[track_caller]
    pub fn control(&self, words: &[&str]) {
        run(self.client().args(words)).ok();
    }

    /// Returns the member that leads.
    #[track_caller]
    pub fn leader(&self) -> usize {
        let text = run(self.client().args(["endpoint", "status", "-w", "json"])).ok();
        let all: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        let leads = |at: &Value| at["Status"]["leader"] == at["Status"]["header"]["member_id"];
        let leader = all.iter().find(|at| leads(at)).expect("a leader");
        let of_leader = |member: &usize| leader["Endpoint"] == self.endpoint(*member).as_str();
        (0..self.ports.len()).find(of_leader).expect("a member")
    }

    fn client(&self) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints()]);
        command
    }
}
