//! Nodes that serve the same volumes, with bytes on a Ceph cluster and records in etcd. If a node
//! is killed, stopped or paused, others serve its volumes. Cluster and etcd are temporary ones on
//! this machine.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::PATIENCE;
use support::clock::Deadline;
use support::cluster::{ground, is_served, signal_server};
use support::nbd::Client;
use support::process::{Output, run, start};
use support::server::{Server, evenkeel};
use support::tools::{absent, tool};
use support::writer::{BLOCK_BYTES, STRIDE};

/// A volume with so small a reservation that it fits on any machine.
const VOLUME: &str = "--type gp2 --size 8";
const BLOCKS: u64 = 20;
/// Bytes of one I/O of a provisioned volume.
const PART_BYTES: u32 = 256 << 10;

/// Makes certificates of nodes by the manual's commands. Returns a function with the flags of each
/// node.
fn certificates(folder: &Path) -> impl Fn(u32) -> String {
    let manual = format!("{}/docs/operating/cluster.md", env!("CARGO_MANIFEST_DIR"));
    let manual = std::fs::read_to_string(manual).expect("the manual");
    let script = manual.split("```sh\n").find(|block| block.starts_with("openssl")).expect("it");
    let script = script.split("```").next().expect("commands");
    let mut shell = Command::new("sh");
    run(shell.args(["-ec", script]).current_dir(folder)).ok();
    let shown = folder.display().to_string();
    move |node| {
        format!(
            "--node-cert {shown}/node-{node}.pem --node-key {shown}/node-{node}.key \
             --node-ca {shown}/nodes.pem"
        )
    }
}

fn write_all(server: &Server, volume: &str, byte: u8) {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    for block in 0..BLOCKS {
        client.write(block * STRIDE, &[byte; BLOCK_BYTES as usize]).expect("room");
    }
}

#[track_caller]
fn holds(server: &Server, volume: &str, byte: u8) {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    for block in 0..BLOCKS {
        let data = client.read(block * STRIDE, BLOCK_BYTES).expect("data");
        assert!(data.iter().all(|found| *found == byte), "block {block}: {} for {byte}", data[0]);
    }
}

/// Returns the number of a node's volumes from the list of nodes; `None` before it is known.
fn volumes_of(server: &Server, node: &str) -> Option<u64> {
    let nodes = server.list("node ls");
    nodes.iter().find(|found| found["name"] == node)?["volumes"].as_u64()
}

/// Returns the settings of a node that differ from the leader's, from the list of nodes.
fn different_settings(server: &Server, node: &str) -> Vec<String> {
    let nodes = server.list("node ls");
    let found = nodes.iter().find(|found| found["name"] == node);
    let settings = found.and_then(|found| found["different_settings"].as_array());
    let texts = settings.into_iter().flatten().filter_map(|setting| setting.as_str());
    texts.map(str::to_owned).collect()
}

#[track_caller]
fn refused(server: &Server, verb: &str, why: &str) {
    let output = server.evenkeel(verb);
    assert!(!output.status.success() && output.stderr.contains(why), "{output}");
}

#[test]
fn acknowledged_writes_are_served_by_other_nodes() {
    if absent(&["openssl"]) {
        return;
    }
    let Some((folder, cluster, etcd)) = ground("") else { return };
    let flags = format!("{} --etcd {}", cluster.store(), etcd.endpoint());

    let shown = certificates(folder.path());
    let as_node = |node: &str, number| format!("{flags} --node {node} {}", shown(number));
    let mut first = Server::start(&as_node("first", 1));
    let volume = first.attached(VOLUME);
    write_all(&first, &volume, 1);
    let refused = first.evenkeel(&format!("serve {} --data-dir x", as_node("second", 3)));
    assert!(refused.stderr.contains("others expect the name node-2.evenkeel"), "{refused}");
    let mut second = Server::start(&as_node("second", 2));
    // Every node answers the API.
    assert_eq!(second.list("volume ls")[0]["state"], "in-use");
    // Every node accepts clients of every export. This client continues without an error.
    let mut client = Client::open(second.nbd, &volume).expect("an export of another node");
    assert!(client.read(0, BLOCK_BYTES).expect("data").iter().all(|byte| *byte == 1));
    first.kill_9();
    recorded_connections(&first, &volume, 1);
    client.write(BLOCKS * STRIDE, &[7; BLOCK_BYTES as usize]).expect("it waits for the takeover");
    assert!(client.read(0, BLOCK_BYTES).expect("data").iter().all(|byte| *byte == 1));
    holds(&second, &volume, 1);
    let mut why = String::new();
    let modify = || {
        let output = second.evenkeel(&format!("volume modify {volume} --size 9"));
        why.clone_from(&output.stderr);
        output.status.success()
    };
    assert!(Deadline::after(PATIENCE).comes(modify), "not modified: {why}");
    write_all(&second, &volume, 2);

    // A node with another setting serves, and is named.
    let third = Server::start(&format!("{} --recycle-bin-days 7", as_node("third", 3)));
    let differ = || different_settings(&second, "third") == ["recycle-bin-days 7 (leader: 0)"];
    assert!(Deadline::after(PATIENCE).comes(differ), "{:?}", second.list("node ls"));
    assert_eq!(different_settings(&second, "second"), [""; 0]);
    drained_and_moved(&second, &third, &volume);
    // Its volumes are handed over before it stops.
    second.stop();
    drop(client);
    recorded_connections(&second, &volume, 5);
    is_served(&third, &volume);
    holds(&third, &volume, 2);
    assert_eq!(third.list("volume ls")[0]["size_gib"], 9);
    assert_eq!(volumes_of(&third, "third"), Some(1));

    // A node that starts again has its former number.
    let last = Server::start(&as_node("second", 2));
    a_node_that_wakes_joins_again(&third, &last, &volume);
}

/// Checks the audit of a node that has ended: it has its own clients' connections to a volume, each
/// once, and none of those that it relayed or that were relayed to it.
#[track_caller]
fn recorded_connections(node: &Server, volume: &str, count: usize) {
    let mut verify = evenkeel(node.folder());
    run(verify.args(["audit", "verify", "--data-dir"]).arg(node.data_dir())).ok();
    let records = node.audited();
    let named = |name: &str| records.iter().filter(|record| record["eventName"] == name).count();
    let counts = ["ConnectVolume", "DisconnectVolume", "RefuseConnection"].map(named);
    assert_eq!(counts, [count, count, 0], "{records:?}");
    let connections = records.iter().filter(|record| record["eventSource"] == "evenkeel");
    for connection in connections {
        assert_eq!(connection["requestParameters"]["VolumeId"], volume, "{connection}");
        assert_eq!(connection["sourceIPAddress"], "local", "{connection}");
    }
}

/// Checks the audit of a node that has ended: clients over TLS have the host of their certificate.
#[track_caller]
fn recorded_hosts(node: &Server, host: &str) {
    let records = node.audited();
    for (name, host) in [("ConnectVolume", host), ("RefuseConnection", IDLE_HOST)] {
        let is_of_host = |record: &Value| {
            record["eventName"] == name && record["tlsDetails"]["clientCertificate"] == host
        };
        assert!(records.iter().any(is_of_host), "{name} {host}: {records:?}");
    }
}

/// Certificates for nodes and for two hosts.
struct Certificates {
    folder: String,
}

/// A host without volumes.
const IDLE_HOST: &str = "i-00000000000000077";

impl Certificates {
    fn make(folder: &Path) -> Self {
        let made = Self { folder: folder.join("tls").display().to_string() };
        made.tls("init");
        made.tls(&format!("host {IDLE_HOST}"));
        made
    }

    fn tls(&self, verb: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        run(command.arg("tls").args(verb.split(' ')).args(["--dir", &self.folder])).ok();
    }

    /// Returns the flags of a node, without those of the authority.
    fn flags(&self) -> String {
        let folder = &self.folder;
        format!(
            "--nbd-tls-listen 127.0.0.1:0 --tls-cert {folder}/server-cert.pem \
             --tls-key {folder}/server-key.pem"
        )
    }

    fn authority(&self) -> String {
        format!("{}/ca-cert.pem", self.folder)
    }

    fn uri(&self, server: &Server, volume: &str, host: &str) -> String {
        let folder = &self.folder;
        let address = server.nbd_tls;
        format!("nbds://{address}/{volume}?tls-certificates={folder}/hosts/{host}")
    }

    fn size(&self, server: &Server, volume: &str, host: &str) -> Output {
        run(&mut tool("nbdinfo", &format!("--size {}", self.uri(server, volume, host))))
    }

    fn metrics(&self, server: &Server) -> String {
        let url = format!("--silent --cacert {} {}/metrics", self.authority(), server.endpoint);
        run(&mut tool("curl", &url)).stdout
    }

    /// Checks that a node without an authority, or whose certificate is not for its address, does
    /// not start.
    fn refuses(&self, folder: &Path, flags: &str) {
        let refused = |more: &str| {
            let mut command = evenkeel(folder);
            command.args(["serve", "--node", "first", "--data-dir", "x"]);
            run(command.args(flags.split(' ')).args(more.split_whitespace())).fails_with(2)
        };
        let without_ca = refused("");
        assert!(without_ca.contains("which they cannot without tls-ca"), "{without_ca}");
        let misnamed = refused(&format!("--tls-ca {} --listen 127.0.0.2:0", self.authority()));
        assert!(misnamed.contains("is not for this address"), "{misnamed}");
    }

    /// Checks the API and the exports of a node.
    fn serve_at(&self, server: &Server, volume: &str, host: &str) {
        // The leader's API, over TLS on the whole way, also for metrics.
        assert!(server.endpoint.starts_with("https://"), "{}", server.endpoint);
        assert_eq!(server.list("volume ls")[0]["state"], "in-use");
        let metrics = self.metrics(server);
        assert!(metrics.contains("evenkeel_certificate_expiry_time_seconds{"), "{metrics}");
        assert!(server.get("/healthz").contains("https://"), "a client without TLS is answered");
        let size = self.size(server, volume, host);
        assert_eq!(size.ok().trim(), (8_u64 << 30).to_string());
        let other = self.size(server, volume, IDLE_HOST);
        assert!(!other.status.success(), "{other}");
    }
}

/// The API at https and NBD over TLS on three nodes: any node serves any client, also while the
/// volume's home, which runs the control plane, is killed.
#[test]
#[ignore = "full: crates/cluster/src/api_relay.rs::\
            relay_keeps_to_tls_and_checks_the_leaders_certificate stays"]
fn clients_over_tls_use_any_node_and_outlive_the_home_of_their_volume() {
    let needed = absent(&["nbdinfo", "nbdcopy", "curl"]);
    let Some((folder, cluster, etcd)) = ground("").filter(|_| !needed) else { return };
    let made = Certificates::make(folder.path());
    let flags = format!("{} --etcd {} {}", cluster.store(), etcd.endpoint(), made.flags());
    made.refuses(folder.path(), &flags);
    let flags = format!("{flags} --tls-ca {}", made.authority());
    let mut first = Server::start(&format!("{flags} --node first"));
    let host = first.list("host register --type m5.large")[0]["host_id"].clone();
    let host = host.as_str().expect("an id");
    made.tls(&format!("host {host}"));
    let volume = first.create("--type io1 --size 8 --iops 100");
    first.evenkeel(&format!("volume attach {volume} --host {host} --wait")).ok();
    let [second, third] =
        ["second", "third"].map(|node| Server::start(&format!("{flags} --node {node}")));
    for server in [&first, &second, &third] {
        made.serve_at(server, &volume, host);
    }
    // The copy takes seconds at the volume's rate. Its client continues at another home.
    let bytes: Vec<u8> =
        (0..96_u32 << 20).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let there = folder.path().join("there");
    std::fs::write(&there, &bytes).expect("a file");
    let copy = format!("--requests=1 {} {}", there.display(), made.uri(&third, &volume, host));
    let copy = start(&mut tool("nbdcopy", &copy));
    let is_written = || {
        let text = made.metrics(&third);
        let mut lines = text.lines().filter(|line| line.starts_with("evenkeel_write_bytes_total{"));
        lines.any(|line| !line.ends_with(" 0"))
    };
    assert!(Deadline::after(PATIENCE).comes(is_written), "nothing is written");
    first.kill_9();
    recorded_hosts(&first, host);
    copy.finish().ok();
    let detached = || third.evenkeel(&format!("volume detach {volume} --wait")).status.success();
    assert!(Deadline::after(PATIENCE).comes(detached), "{}", third.evenkeel("volume ls"));
    assert!(!made.size(&second, &volume, host).status.success(), "it is attached to no host");
    // The address of this machine, without TLS.
    third.evenkeel(&format!("volume attach {volume} --wait")).ok();
    let mut client = Client::open(second.nbd, &volume).expect("an export");
    for (number, part) in bytes.chunks(PART_BYTES as usize).enumerate() {
        let read = client.read(number as u64 * u64::from(PART_BYTES), PART_BYTES).expect("data");
        assert!(read == part, "part {number} differs");
    }
}

/// Moves volumes under load: no request of a client may fail.
fn drained_and_moved(second: &Server, third: &Server, volume: &str) {
    let mut clients =
        [second, third].map(|server| Client::open(server.nbd, volume).expect("an export"));
    let mut go_on = || {
        for client in &mut clients {
            client.write(BLOCKS * STRIDE, &[8; BLOCK_BYTES as usize]).expect("no error");
        }
    };
    go_on();
    let comes = |node: &str, count| {
        let moved = || volumes_of(third, node) == Some(count);
        assert!(Deadline::after(PATIENCE).comes(moved), "{node} does not get {count}");
    };
    comes("second", 1);
    third.evenkeel("node drain second").ok();
    comes("third", 1);
    go_on();
    holds(third, volume, 2);
    refused(second, &format!("node move {volume} second"), "draining");
    second.evenkeel("node join second").ok();
    second.evenkeel(&format!("node move {volume} second")).ok();
    go_on();
    comes("second", 1);
    refused(third, "node remove second", "Drain it");
    refused(third, "node drain nobody", "The nodes are first, second, third");
    holds(second, volume, 2);
}

/// Pauses a node, which is taken over. When it wakes, its late writes are refused, and it joins
/// again.
fn a_node_that_wakes_joins_again(paused: &Server, last: &Server, volume: &str) {
    signal_server(paused, Signal::STOP);
    is_served(last, volume);
    write_all(last, volume, 3);
    signal_server(paused, Signal::CONT);
    holds(last, volume, 3);
    let serves = || {
        let nodes = last.list("node ls");
        nodes.iter().any(|node| node["name"] == "third" && node["status"] == "serving")
    };
    assert!(Deadline::after(PATIENCE).comes(serves), "it does not join again");
    last.evenkeel(&format!("node move {volume} third")).ok();
    holds(paused, volume, 3);
}

/// Waits until a node answers a request for its readiness with this status and text.
#[track_caller]
fn readiness_becomes(node: &Server, status: u16, text: &str) {
    let mut answer = String::new();
    let is_so = || {
        // A restart of the process is never asked for.
        let alive = node.get("/healthz");
        assert!(alive.starts_with("HTTP/1.1 200 ") && alive.ends_with("\r\n\r\nok"), "{alive}");
        answer = node.get("/readyz");
        answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(text)
    };
    assert!(Deadline::after(PATIENCE).comes(is_so), "{status} {text}: {answer}");
}

/// A node that does not lead is alive whatever happens outside of it. It is ready while it reaches
/// etcd and the leader.
#[test]
fn health_of_a_follower_is_its_own_and_its_readiness_needs_etcd_and_a_leader() {
    let Some((_folder, cluster, mut etcd)) = ground("") else { return };
    let flags = format!("{} --etcd {}", cluster.store(), etcd.endpoint());
    let leader = Server::start(&format!("{flags} --node leader"));
    let follower = Server::start(&format!("{flags} --node follower"));
    let leads = |node: &Value| node["name"] == "leader" && node["leads"] == true;
    assert!(leader.list("node ls").iter().any(leads), "{}", leader.evenkeel("node ls"));
    readiness_becomes(&follower, 200, "\r\n\r\nok");

    etcd.signal(Signal::STOP);
    readiness_becomes(&follower, 503, "etcd");
    etcd.signal(Signal::CONT);
    readiness_becomes(&follower, 200, "\r\n\r\nok");

    etcd.kill();
    readiness_becomes(&follower, 503, "etcd");
    etcd.start_again();
    readiness_becomes(&follower, 200, "\r\n\r\nok");
}

/// etcd answers, but has data that the leader does not know.
#[test]
fn etcd_is_read_again_after_an_unknown_commit_and_decides_nothing_without_its_data() {
    let Some((_folder, cluster, mut etcd)) = ground("") else { return };
    let flags = format!("{} --etcd {} --node a", cluster.store(), etcd.endpoint());
    let mut server = Server::start(&flags);
    let volume = server.attached(VOLUME);
    write_all(&server, &volume, 1);

    // As after a commit whose answer was lost: each commit of this term is refused.
    etcd.control(&["put", "/evenkeel/evenkeel/revision", "unheard"]);
    let mut why = String::new();
    let modified = || {
        let output = server.evenkeel(&format!("volume modify {volume} --size 9"));
        why.clone_from(&output.stderr);
        output.status.success()
    };
    assert!(Deadline::after(PATIENCE).comes(modified), "not modified: {why}");

    etcd.lose_data();
    // There is no leader, so the bytes that it serves are not unowned.
    let leads = || server.evenkeel("volume unowned").status.success();
    assert!(Deadline::after(PATIENCE).comes(|| !leads()), "a leader of nothing");
    let is_led = || Deadline::after(Duration::from_secs(10)).comes(leads);
    assert!(!is_led(), "a leader was elected in an etcd without data");
    holds(&server, &volume, 1);
    // A process that starts does not treat it as a new cluster.
    server.kill_9();
    let data_dir = server.data_dir().display().to_string();
    let refused = server.evenkeel(&format!("serve {flags} --data-dir {data_dir}"));
    let expected = "etcd's key /evenkeel/evenkeel/id is missing";
    assert!(!refused.status.success() && refused.stderr.contains(expected), "{refused}");
}
