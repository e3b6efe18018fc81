//! Nodes that serve the same volumes, on a temporary Ceph cluster and etcd.

use super::PATIENCE;
use super::ceph::Cluster;
use super::clock::Deadline;
use super::etcd::Etcd;
use super::nbd::Client;
use super::server::Server;
use super::tools::absent;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Three nodes: `a`, which leads at first, `b` and `c`.
pub struct Nodes {
    // Dropped in this order.
    pub all: Vec<Server>,
    pub etcd: Etcd,
    pub ceph: Cluster,
    _folder: tempfile::TempDir,
}

pub const A: usize = 0;
pub const B: usize = 1;
pub const C: usize = 2;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Returns the name of a node.
pub fn name(node: usize) -> &'static str {
    NAMES[node]
}

/// Starts Ceph, with these options of `evenkeel demo ceph`, and etcd without nodes; returns `None`
/// with a message if one is not installed.
pub fn ground(options: &str) -> Option<(tempfile::TempDir, Cluster, Etcd)> {
    if absent(&["etcd", "etcdctl"]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ceph = Cluster::start_with(folder.path(), options)?;
    let etcd = Etcd::start(folder.path());
    Some((folder, ceph, etcd))
}

impl Nodes {
    /// Starts three nodes on new ones; returns `None` with a message if a program is not installed.
    pub fn start() -> Option<Self> {
        let (folder, ceph, etcd) = ground("")?;
        let flags = format!("{} --etcd {}", ceph.store(), etcd.endpoint());
        let start = |name| Server::start(&format!("{flags} --node {name}"));
        let nodes = Self { all: NAMES.map(start).into(), etcd, ceph, _folder: folder };
        nodes.all_serve(A);
        Some(nodes)
    }

    /// Returns a node.
    pub fn at(&self, node: usize) -> &Server {
        &self.all[node]
    }

    /// Returns the entry of a node in another node's list; `None` if that node does not answer.
    fn told_of(&self, by: usize, node: usize) -> Option<Value> {
        told(&self.all[by], "node ls").into_iter().find(|it| it["name"] == NAMES[node])
    }

    /// Returns the number of volumes whose home is a node.
    pub fn volumes_of(&self, by: usize, node: usize) -> Option<u64> {
        self.told_of(by, node)?["volumes"].as_u64()
    }

    /// Returns whether a node serves, by the list of another one.
    fn serves(&self, by: usize, node: usize) -> bool {
        self.told_of(by, node).is_some_and(|it| it["status"] == "serving")
    }

    /// Waits until all nodes serve.
    #[track_caller]
    pub fn all_serve(&self, by: usize) {
        let all_serve = || (0..self.all.len()).all(|node| self.serves(by, node));
        let serve = Deadline::after(PATIENCE).comes(all_serve);
        assert!(serve, "{}", self.all[by].evenkeel("node ls"));
    }

    /// Returns the leader, if it is known.
    pub fn leader(&self, by: usize) -> Option<usize> {
        let all = told(&self.all[by], "node ls");
        let leads = all.iter().find(|it| it["leads"] == true)?;
        NAMES.iter().position(|name| leads["name"] == **name)
    }

    /// Makes a node the home of a volume. Earlier events may prevent it for a moment.
    #[track_caller]
    pub fn place(&self, by: usize, volume: &str, node: usize) {
        let verb = format!("node move {volume} {}", NAMES[node]);
        let moves = || self.all[by].evenkeel(&verb).status.success();
        let moved = Deadline::after(PATIENCE).comes(moves);
        assert!(moved, "{verb}: {}", self.all[by].evenkeel(&verb));
    }

    /// Returns the logs of the running nodes, for a test that fails.
    pub fn logs(&mut self) -> String {
        let of = |(name, node): (&&str, &mut Server)| {
            format!("node {name}:\n{}\n", node.process().logged())
        };
        NAMES.iter().zip(&mut self.all).map(of).collect()
    }

    /// Sends a node a signal.
    pub fn signal(&self, node: usize, signal: Signal) {
        signal_server(&self.all[node], signal);
    }
}

/// Sends a server a signal.
pub fn signal_server(server: &Server, signal: Signal) {
    let pid = Pid::from_raw(server.pid().cast_signed()).expect("a pid");
    kill_process(pid, signal).expect("it runs");
}

/// Returns the objects of a listing; empty if the server does not answer.
pub fn told(server: &Server, verb: &str) -> Vec<Value> {
    let output = server.evenkeel(&format!("{verb} -o json"));
    let Ok(Value::Object(object)) = serde_json::from_str(&output.stdout) else { return vec![] };
    let lists = object.into_iter().find_map(|(_, value)| match value {
        Value::Array(items) => Some(items),
        _ => None,
    });
    lists.unwrap_or_default()
}

/// Waits until a node serves a volume.
#[track_caller]
pub fn is_served(server: &Server, volume: &str) {
    let opens = || Client::open(server.nbd, volume).is_ok();
    assert!(Deadline::after(PATIENCE).comes(opens), "{volume} is not served");
}
