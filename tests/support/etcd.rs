//! A throw-away etcd on this machine.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::{Running, run, start};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// One member of etcd, and its endpoint.
pub fn etcd(folder: &Path) -> (Running, String) {
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
