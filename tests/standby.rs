//! Two servers for the same volumes, whose bytes are on a Ceph cluster and whose books are in etcd:
//! one serves, and the other takes over when it is killed, stopped or paused. Cluster and etcd are
//! throw-away ones on this machine.

mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use support::PATIENCE;
use support::ceph::Cluster;
use support::clock::Deadline;
use support::nbd::Client;
use support::process::{Running, run, start};
use support::server::Server;
use support::tools::absent;

const GP3: &str = "--type gp3 --size 8";
const BLOCK_BYTES: u32 = 4_096;
/// Far enough apart that each is in an object of its own.
const STRIDE: u64 = 5 << 20;
const BLOCKS: u64 = 20;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// One member of etcd, and its endpoint.
fn etcd(folder: &Path) -> (Running, String) {
    let [clients, peers] =
        [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(folder.join("etcd")).args(["--name", "a"]);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("a={peers}")]);
    let running = start(&mut command);
    let answers = || {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &clients, "endpoint", "health"]);
        run(&mut command).status.success()
    };
    assert!(Deadline::after(PATIENCE).comes(answers), "etcd does not answer at {clients}");
    (running, clients)
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

/// Starts a server that will serve when it is elected.
fn stand_by(flags: &str, node: &str) -> JoinHandle<Server> {
    let flags = format!("{flags} --node {node}");
    std::thread::spawn(move || Server::start(&flags))
}

#[test]
fn another_server_serves_what_was_acknowledged() {
    if absent(&["etcd", "etcdctl"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let Some(cluster) = Cluster::start(folder.path()) else { return };
    let (_etcd, endpoint) = etcd(folder.path());
    let flags = format!("{} --etcd {endpoint}", cluster.store());

    let mut first = Server::start(&format!("{flags} --node first"));
    let volume = first.attached(GP3);
    write_all(&first, &volume, 1);
    let second = stand_by(&flags, "second");
    first.kill_9();
    let mut second = second.join().expect("it is elected");
    holds(&second, &volume, 1);
    second.evenkeel(&format!("volume modify {volume} --iops 4000")).ok();
    write_all(&second, &volume, 2);

    // A clean stop gives the lease back.
    let third = stand_by(&flags, "third");
    second.stop();
    let third = third.join().expect("it is elected");
    holds(&third, &volume, 2);
    assert_eq!(third.list("volume ls")[0]["iops"], 4_000);

    a_server_that_wakes_ends(third, &flags, &volume);
}

/// A server that is paused is taken over. What it still has to send when it wakes is refused, and
/// it ends with the reason.
fn a_server_that_wakes_ends(mut paused: Server, flags: &str, volume: &str) {
    let pid = Pid::from_raw(paused.pid().cast_signed()).expect("a pid");
    kill_process(pid, Signal::STOP).expect("it runs");
    let last = stand_by(flags, "last").join().expect("it is elected");
    write_all(&last, volume, 3);
    kill_process(pid, Signal::CONT).expect("it is stopped");
    let output = paused.taken().finish();
    assert_eq!(output.status.code(), Some(1), "{output}");
    let said = &output.stderr;
    assert!(said.contains("leads no more") || said.contains("has fenced this server"), "{output}");
    holds(&last, volume, 3);
}
