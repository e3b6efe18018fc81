//! The conformance tests on a real etcd. Skipped, aloud, where etcd is not installed. What etcd
//! and leaders may do to a journal is tested in `crates/lab/tests/etcd.rs`.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::client::Options;
use super::election::Election;
use super::*;
use crate::cluster::kv::Kv;
use crate::journal::conformance;

/// A running etcd; killed when dropped.
struct Etcd {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts one, or says that the test is skipped.
fn etcd() -> Option<Etcd> {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let (url, peer, folder) = (free(), free(), tempfile::tempdir().unwrap());
    let child = Command::new("etcd")
        .args(["--data-dir", folder.path().to_str().unwrap(), "--unsafe-no-fsync"])
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(Etcd { child, url, _folder: folder }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let _ = writeln!(
                std::io::stdout(),
                "SKIPPED: etcd is not installed (cargo x setup installs it)"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The number of each cluster of these tests.
const NUMBER: u128 = 7;

/// Founds a cluster, as its first node does.
fn found(client: &Client, keys: &Keys) -> Result<(), EtcdError> {
    let kv = Kv { client: client.clone(), keys: keys.clone() };
    kv.once("id", number::text_of(NUMBER).as_bytes()).map(drop)
}

#[test]
fn conforms() {
    let Some(etcd) = etcd() else { return };
    let options = Options { endpoints: vec![etcd.url.clone()], ..Options::default() };
    let client = Client::new(&options).unwrap();
    let number = AtomicU32::new(0);
    conformance::check(&mut || {
        let cluster = format!("c{}", number.fetch_add(1, Ordering::Relaxed));
        let keys = Keys::of(&cluster).unwrap();
        let candidate =
            Leader { node: "n".into(), incarnation: cluster, address: "127.0.0.1:1".into() };
        let election = Election::new(client.clone(), keys.clone(), NUMBER, candidate);
        // The first one waits until etcd has started.
        let deadline = clock::since_boot() + Duration::from_secs(60);
        let leadership = loop {
            match found(&client, &keys).and_then(|()| election.wait(Duration::ZERO)) {
                Ok(Some(leadership)) => break leadership,
                other => assert!(clock::since_boot() < deadline, "{other:?}"),
            }
        };
        let client = client.clone();
        Box::new(move || {
            let (client, leadership) = (client.clone(), leadership.clone());
            Box::new(EtcdJournal::lead(client, keys.clone(), leadership))
        })
    });
}
