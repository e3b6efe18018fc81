//! The conformance tests on a real etcd. Skipped with a message if etcd is not installed.
//! `crates/lab/tests/etcd.rs` tests failures of etcd and changes of the leader.

use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::client::Options;
use super::election::Election;
use super::*;
use crate::kv::Kv;

#[path = "../../../control/src/journal/conformance.rs"]
mod conformance;

/// A running etcd, which is killed when this is dropped.
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

/// Starts an etcd, or prints that the test is skipped.
fn etcd() -> Option<Etcd> {
    let free = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let url = free();
    let peer = free();
    let folder = tempfile::tempdir().unwrap();
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

/// Writes the number of a cluster, as its first node does.
fn found(client: &Client, keys: &Keys) -> Result<(), EtcdError> {
    let kv = Kv { client: client.clone(), keys: keys.clone() };
    kv.once("id", number::text_of(NUMBER).as_bytes()).map(drop)
}

/// Wins the election in a cluster of this name.
fn lead(client: &Client, cluster: &str) -> (Keys, Leadership) {
    let keys = Keys::of(cluster).unwrap();
    let candidate =
        Leader { node: "n".into(), incarnation: cluster.to_owned(), address: "127.0.0.1:1".into() };
    let election = Election::new(client.clone(), keys.clone(), NUMBER, candidate);
    // The first one waits until etcd has started.
    let deadline = clock::since_boot() + Duration::from_secs(60);
    loop {
        match found(client, &keys).and_then(|()| election.wait(Duration::ZERO)) {
            Ok(Some(leadership)) => return (keys, leadership),
            other => assert!(clock::since_boot() < deadline, "{other:?}"),
        }
    }
}

fn client(etcd: &Etcd) -> Client {
    let options = Options { endpoints: vec![etcd.url.clone()], ..Options::default() };
    Client::new(&options).unwrap()
}

#[test]
fn conforms() {
    let Some(etcd) = etcd() else { return };
    let client = client(&etcd);
    let number = AtomicU32::new(0);
    conformance::check(&mut || {
        let cluster = format!("c{}", number.fetch_add(1, Ordering::Relaxed));
        let (keys, leadership) = lead(&client, &cluster);
        let client = client.clone();
        Box::new(move || {
            let client = client.clone();
            let leadership = leadership.clone();
            Box::new(EtcdJournal::lead(client, keys.clone(), leadership))
        })
    });
}

#[test]
fn keys_of_another_form_are_refused_and_stay_as_they_are() {
    let Some(etcd) = etcd() else { return };
    let client = client(&etcd);
    let event = r#"{"version":6,"kind":"volume_gone","event":{"id":"vol-00000000000000007"}}"#;
    for (cluster, meta, key, value, form) in [
        ("keys", r#"{"format":2}"#, "clock", r#"{"a":1}"#, 2),
        ("event", r#"{"format":1}"#, "v/vol-00000000000000007", event, 6),
    ] {
        let (keys, leadership) = lead(&client, cluster);
        let kv = Kv { client: client.clone(), keys: keys.clone() };
        kv.put("meta", meta.as_bytes(), 0).unwrap();
        kv.put(key, value.as_bytes(), 0).unwrap();
        let before = kv.all("").unwrap().values;
        let mut journal = EtcdJournal::lead(client.clone(), keys, leadership);
        let refused = journal.load().unwrap_err();
        assert!(matches!(refused, JournalError::OtherForm(_)), "{refused}");
        let words = format!("written in form {form}, and this program reads form 1");
        assert!(refused.to_string().contains(&words), "{refused}");
        assert_eq!(journal.commit(&Change::default(), Revision(0)), Err(refused));
        // Its revision rises when the lease of the other cluster's leader ends.
        assert_eq!(kv.all("").unwrap().values, before);
    }
}
