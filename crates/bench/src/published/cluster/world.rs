//! The cluster that all figures use: the nodes, etcd and Ceph.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::super::Bench;
use crate::server_process::{CHANGE_MAX, Connect};
use evenkeel_client::{Client, volumes};
use evenkeel_core::volume::VolumeRequest;
use evenkeel_lab::ceph::{self, Ceph};
use evenkeel_lab::child::Guarded;
use evenkeel_lab::child::wait_for;
use evenkeel_lab::etcd::{self, Etcd};
use evenkeel_lab::nodes::Node;
use evenkeel_lab::program::path_beside_this_program;
use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;

/// The nodes' names.
pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];
/// Size of the only OSD in GiB; sparse.
const OSD_GIB: u32 = 16;
/// Longest wait for an action of the nodes themselves.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks for it.
const LOOK: Duration = Duration::from_millis(50);
/// Volumes may be larger than the disk in sum, as little is written to them.
const OPTIONS: [&str; 4] = ["--oversell-space", "unlimited", "--log", "warn"];

/// The cluster. Dropping it ends all its processes.
pub(super) struct World<'a, 'b> {
    // In the order in which they must end.
    nodes: BTreeMap<&'static str, Node>,
    pub leases: Leases,
    etcd: Etcd,
    pub ceph: Ceph,
    pub bench: &'a mut Bench<'b>,
}

impl<'a, 'b> World<'a, 'b> {
    /// Starts the cluster.
    pub fn start(bench: &'a mut Bench<'b>, propose_ms: u32) -> Result<Self, LabError> {
        bench.report("starting a Ceph cluster, etcd and three nodes");
        let folder = bench.folder;
        let setup = ceph::Setup { osd_gib: OSD_GIB, propose_ms, ..Default::default() };
        let ceph = Ceph::start(&folder.join("ceph"), setup)?;
        let etcd = Etcd::start(&folder.join("etcd"), etcd::Setup::default())?;
        let leases = Leases::watch(&etcd)?;
        let mut world = Self { nodes: BTreeMap::new(), leases, etcd, ceph, bench };
        for name in NAMES {
            world.start_node(name)?;
        }
        world.all_serve()?;
        Ok(world)
    }

    /// Starts a node that does not run.
    pub fn start_node(&mut self, name: &'static str) -> Result<(), LabError> {
        let below = (&self.ceph, &self.etcd);
        let evenkeel = path_beside_this_program("evenkeel")?;
        let node = Node::start(&evenkeel, self.bench.folder, name, below, &OPTIONS)?;
        self.nodes.insert(name, node);
        Ok(())
    }

    /// Returns a node that runs.
    pub fn node(&self, name: &str) -> Result<&Node, LabError> {
        let missing = || LabError::NotFound(format!("node {name} does not run"));
        self.nodes.get(name).ok_or_else(missing)
    }

    /// Kills a node. Returns the time, in nanoseconds of the monotonic clock.
    pub fn kill(&mut self, name: &str) -> u64 {
        let at_ns = clock::monotonic().ns;
        if let Some(mut node) = self.nodes.remove(name) {
            node.kill();
        }
        at_ns
    }

    /// Returns a client of the API at one node.
    pub fn api(&self, name: &str) -> Result<Client, LabError> {
        self.way(name)?.api()
    }

    /// Returns the way to the API of a node, which another thread can use, too.
    pub fn way(&self, name: &str) -> Result<Way, LabError> {
        let node = self.node(name)?;
        Ok(Way { connect: self.bench.connect, api: node.api, keys: node.data_dir.clone() })
    }

    /// Returns the process ids of the nodes.
    pub fn ids(&self) -> Vec<u32> {
        self.nodes.values().map(Node::id).collect()
    }

    /// Creates a volume that this machine may use; returns its id.
    pub fn volume(&self, request: &VolumeRequest) -> Result<String, LabError> {
        let api = self.api(self.any())?;
        Ok(volumes::create_and_attach(&api, &request.into(), CHANGE_MAX)?.volume_id)
    }

    /// Returns the name of a node that runs.
    fn any(&self) -> &'static str {
        self.nodes.keys().next().copied().unwrap_or(NAMES[0])
    }

    /// Returns the leader, once all nodes serve.
    pub fn all_serve(&self) -> Result<&'static str, LabError> {
        wait_for("the nodes to find each other", PATIENCE, LOOK, || {
            cancel::go_on()?;
            // Without a leader no call is answered.
            if let Ok(answer) = self.api(self.any())?.call("DescribeNodes", &[]) {
                let nodes = answer.items("nodeSet");
                let is = |field, value| {
                    move |name: &&str| {
                        let mut nodes = nodes.iter();
                        let node = nodes.find(|node| node.child_text("nodeName") == Some(*name));
                        node.and_then(|node| node.child_text(field)) == Some(value)
                    }
                };
                let leader = NAMES.into_iter().find(|name| is("leads", "true")(name));
                if let (Some(leader), true) =
                    (leader, NAMES.iter().all(|name| is("status", "serving")(name)))
                {
                    return Ok(Some(leader));
                }
            }
            Ok(None)
        })
    }

    /// Reports a line of progress.
    pub fn report(&mut self, line: &str) {
        self.bench.report(line);
    }
}

/// The way to the API of a node.
#[derive(Clone)]
pub(super) struct Way {
    connect: Connect,
    api: SocketAddr,
    keys: PathBuf,
}

impl Way {
    /// Returns a client of the API.
    pub fn api(&self) -> Result<Client, LabError> {
        Ok((self.connect)(self.api, &self.keys)?)
    }
}

/// Moves a volume to a node; it may be there already.
pub(super) fn move_volume(api: &Client, volume: &str, to: &str) -> Result<(), LabError> {
    api.call("MoveVolume", &[("VolumeId", volume), ("Node", to)])?;
    Ok(())
}

/// Returns the other two names.
pub(super) fn others(but: &str) -> [&'static str; 2] {
    let mut names = NAMES.into_iter().filter(|name| *name != but);
    [names.next().unwrap_or(NAMES[0]), names.next().unwrap_or(NAMES[1])]
}

/// The times at which etcd reported the ends of nodes' leases.
pub(super) struct Leases {
    _watch: Guarded,
    ended: Arc<Mutex<Vec<(String, u64)>>>,
}

impl Leases {
    /// Watches the keys of the nodes' processes by `etcdctl`, independently of the nodes.
    fn watch(etcd: &Etcd) -> Result<Self, LabError> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &etcd.endpoints().join(",")]);
        command.args(["watch", "--prefix", "/evenkeel/evenkeel/n/"]).stdout(Stdio::piped());
        let mut watch = Guarded::spawn(&mut command, "etcd-client")?;
        let stdout = watch.take_stdout().ok_or_else(|| LabError::failed("no output"))?;
        let ended = Arc::<Mutex<Vec<(String, u64)>>>::default();
        let told = Arc::clone(&ended);
        std::thread::spawn(move || {
            let mut is_end = false;
            // One line has the kind of event, the next one the key.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let node = line.strip_suffix("/inst").and_then(|key| key.rsplit('/').next());
                if let (Some(node), true) = (node, is_end) {
                    let end = (node.to_owned(), clock::monotonic().ns);
                    told.lock().unwrap_or_else(PoisonError::into_inner).push(end);
                }
                is_end = line == "DELETE";
            }
        });
        Ok(Self { _watch: watch, ended })
    }

    /// Returns when the lease of a node ended that was killed at `killed_ns`.
    pub fn end_of(&self, node: &str, killed_ns: u64) -> Result<u64, LabError> {
        wait_for(&format!("the end of node {node}'s lease"), PATIENCE, LOOK / 10, || {
            let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let end = ended.iter().find(|(name, end_ns)| name == node && *end_ns > killed_ns);
            Ok(end.map(|(_, end_ns)| *end_ns))
        })
    }
}
