//! `evenkeel demo cluster`: three nodes on a temporary Ceph cluster and etcd, and one client that
//! never stops, while its volume moves and a node is killed. The client's IOPS are shown second by
//! second.

use crate::cli::DemoCluster;
use evenkeel_cli::{connect, runs, signals};
use evenkeel_client::output::{self, Failure, failed};
use evenkeel_client::{Client, hosts, nodes};
use evenkeel_lab::ceph::{self, Ceph};
use evenkeel_lab::child::Guarded;
use evenkeel_lab::etcd::{self, Etcd};
use evenkeel_lab::nodes::Node;
use evenkeel_lab::program::path_of_this_program;
use evenkeel_os::clock::{self, Deadline};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The nodes' names.
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Provisioned IOPS of the volume.
const IOPS: &str = "500";
/// Seconds of the client at which the volume moves, and at which its node is killed.
const MOVE_S: u64 = 8;
const KILL_S: u64 = 16;
/// Length of the client's run in seconds.
const LENGTH_S: u64 = 28;
/// Length of the longest bar in characters.
const BAR: u64 = 40;
/// Longest wait for a node to serve.
const START_MAX: Duration = Duration::from_secs(30);

pub fn run(_: &DemoCluster) -> Result<(), Failure> {
    let folder = runs::folder(&std::env::temp_dir(), "evenkeel-demo-cluster-")?;
    signals::end_when_told_to(vec![folder.path().to_owned()])?;
    output::print("starting a Ceph cluster, etcd and three nodes on this machine...\n")?;
    let ceph =
        Ceph::start(&folder.path().join("ceph"), ceph::Setup { osd_gib: 16, ..Default::default() });
    let ceph = ceph.map_err(failed)?;
    let etcd = Etcd::start(&folder.path().join("etcd"), etcd::Setup::default()).map_err(failed)?;
    let program = path_of_this_program().map_err(failed)?;
    let mut nodes = BTreeMap::new();
    for name in NAMES {
        let node = Node::start(&program, folder.path(), name, (&ceph, &etcd), &[]);
        nodes.insert(name, node.map_err(failed)?);
    }
    let first = &nodes[NAMES[0]];
    let client = connect::client_in_default_region(first.api, &first.data_dir)?;
    let volume = volume(&client)?;
    let home = home(&client)?;
    // The client is connected to the third node, which never is the volume's home.
    let [at, to] = others(&home);
    output::print(&format!(
        "{volume} (io1, {IOPS} IOPS) is at home on node {home}; the client is connected to node \
         {at}.\nAfter {MOVE_S} s it moves to node {to}; after {KILL_S} s that node is killed.\n\n"
    ))?;
    let log = folder.path().join("client");
    let mut fio = load(nodes[at].nbd, &volume, &log)?;
    clock::pause(Duration::from_secs(MOVE_S));
    let through = connect::client_in_default_region(nodes[at].api, &nodes[at].data_dir)?;
    through.call("MoveVolume", &[("VolumeId", &volume), ("Node", to)])?;
    clock::pause(Duration::from_secs(KILL_S - MOVE_S));
    if let Some(node) = nodes.get_mut(to) {
        node.kill();
    }
    let end = clock::now() + Duration::from_secs(LENGTH_S + 60);
    let status = fio.wait_until(end);
    let said = fio.stderr();
    let seconds = seconds(&log)?;
    output::print(&chart(&seconds, to))?;
    match status {
        Some(status) if status.success() => output::print("no request of the client failed\n"),
        _ => Err(Failure::new(format!("the client has failed: {said}"))),
    }
}

/// Creates a volume, and attaches it to this machine.
fn volume(client: &Client) -> Result<String, Failure> {
    let wanted =
        [("AvailabilityZone", "local-1a"), ("Size", "10"), ("VolumeType", "io1"), ("Iops", IOPS)];
    let made = client.call("CreateVolume", &wanted)?;
    let volume = made.child_text("volumeId").unwrap_or_default().to_owned();
    let host = hosts::local(client)?.host_id;
    let place = [("VolumeId", volume.as_str()), ("InstanceId", &host), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &place)?;
    Ok(volume)
}

/// Returns the home node of the volume, once all nodes serve.
fn home(client: &Client) -> Result<String, Failure> {
    let deadline = Deadline::after(START_MAX);
    loop {
        let nodes = nodes::Node::set(&client.call("DescribeNodes", &[])?);
        let serving = nodes.iter().filter(|node| node.status == "serving").count();
        let home = nodes.iter().find(|node| node.volumes > 0);
        if let (Some(home), true) = (home, serving == NAMES.len()) {
            return Ok(home.name.clone());
        }
        if !deadline.pause(Duration::from_millis(200)) {
            return Err(Failure::new("the nodes of the demo do not find each other"));
        }
    }
}

/// Returns the two other nodes.
fn others(home: &str) -> [&'static str; 2] {
    let mut others = NAMES.into_iter().filter(|name| *name != home);
    [others.next().unwrap_or(NAMES[0]), others.next().unwrap_or(NAMES[1])]
}

/// Starts a load that writes at random places as fast as the volume allows.
fn load(at: SocketAddr, volume: &str, log: &Path) -> Result<Guarded, Failure> {
    let mut command = Command::new("fio");
    command.args(["--name=client", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=8"]);
    command.arg(format!("--uri=nbd://{at}/{volume}"));
    command.args(["--size=256m", "--time_based", "--log_avg_msec=1000", "--output-format=terse"]);
    command.arg(format!("--runtime={LENGTH_S}")).arg(format!("--write_iops_log={}", log.display()));
    Guarded::spawn(command.stdout(Stdio::null()), "fio").map_err(failed)
}

/// Returns the number of I/Os that ended in each second.
fn seconds(log: &Path) -> Result<Vec<u64>, Failure> {
    let path = PathBuf::from(format!("{}_iops.1.log", log.display()));
    let text = fs::read_to_string(&path)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    let mut seconds = vec![0; LENGTH_S as usize];
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        let number = |field: Option<&str>| field.and_then(|field| field.parse::<u64>().ok());
        let (Some(ms), Some(ios)) = (number(fields.next()), number(fields.next())) else {
            continue;
        };
        // The value at 1,000 ms is that of the first second.
        if let Some(second) = seconds.get_mut((ms.saturating_sub(500) / 1_000) as usize) {
            *second += ios;
        }
    }
    Ok(seconds)
}

/// Returns a chart with a line for each second.
fn chart(seconds: &[u64], to: &str) -> String {
    let most = seconds.iter().copied().max().unwrap_or(1).max(1);
    let mut text = String::from("second  IOPS\n");
    for (second, ios) in (0..).zip(seconds) {
        let bar = "#".repeat((ios * BAR / most) as usize);
        let event = match second {
            MOVE_S => format!("  <- moves to node {to}"),
            KILL_S => format!("  <- node {to} is killed"),
            _ => String::new(),
        };
        let _ = writeln!(text, "{second:>6}  {ios:>4}  {bar}{event}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_becomes_a_chart_with_its_gaps() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("x");
        let text = "1000, 500, 1, 4096, 0\n2001, 250, 1, 4096, 0\n5000, 500, 1, 4096, 0\n";
        fs::write(folder.path().join("x_iops.1.log"), text).unwrap();
        let seconds = seconds(&log).unwrap();
        assert_eq!(seconds[..5], [500, 250, 0, 0, 500]);
        let chart = chart(&seconds, "b");
        assert!(chart.contains(&format!("     1   250  {}\n", "#".repeat(20))), "{chart}");
        assert!(chart.contains("     8     0    <- moves to node b\n"), "{chart}");
        assert!(seconds.len() == LENGTH_S as usize);
    }

    #[test]
    fn a_client_is_at_neither_home() {
        for name in NAMES {
            let [at, to] = others(name);
            assert!(at != name && to != name && at != to);
        }
    }
}
