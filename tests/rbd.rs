//! A server with volumes on a Ceph cluster, seen by clients when it is killed, and when the cluster
//! does not answer. The cluster is a temporary one on this machine.

mod support;

use serde_json::Value;
use std::path::Path;
use support::PATIENCE;
use support::ceph::{Cluster, USER};
use support::clock::Deadline;
use support::nbd::Client;
use support::process::run;
use support::server::{Server, evenkeel};

const GP3: &str = "--type gp3 --size 8";
const BLOCK_BYTES: u32 = 4_096;
/// Distance of blocks, so that each is in an object of its own.
const STRIDE: u64 = 5 << 20;

fn write(client: &mut Client, block: u64, byte: u8) {
    client.write(block * STRIDE, &[byte; BLOCK_BYTES as usize]).expect("room");
}

fn read(client: &mut Client, block: u64) -> u8 {
    let data = client.read(block * STRIDE, BLOCK_BYTES).expect("data");
    assert!(data.iter().all(|byte| *byte == data[0]), "block {block} is torn");
    data[0]
}

#[test]
fn volumes_on_ceph_survive_their_server_and_a_hung_cluster_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(cluster) = Cluster::start(folder.path()) else { return };
    doctor_tells_what_the_cluster_takes_away(&cluster, folder.path());
    users_with_too_few_rights_are_told_which(&cluster, folder.path());
    let mut server = Server::start(&cluster.store());
    what_was_acknowledged_is_there_after_kill_9(&mut server);
    a_cluster_that_hangs_is_told_within_seconds(&cluster, &server);
    server.stop();
    let refused = Server::start("--store local");
    let conf = &cluster.conf;
    let output = refused.evenkeel(&format!("serve --ceph-conf {conf}"));
    assert!(output.stderr.contains("--store rbd"), "{output}");
    cluster.interrupt();
}

/// Checks that Ceph users without a needed right are refused at the first start, with the command
/// that grants it.
fn users_with_too_few_rights_are_told_which(cluster: &Cluster, folder: &Path) {
    let ceph = |words: &[&str]| {
        let mut command = std::process::Command::new("ceph");
        command.current_dir(folder).args(["-c", &cluster.conf, "--connect-timeout", "20"]);
        run(command.args(words)).ok();
    };
    for (user, mon, osd, why) in [
        ("client.blind", "allow r", "allow rwx pool=evenkeel", "mon 'profile rbd'"),
        (
            "client.other",
            "profile rbd",
            "profile rbd pool=other",
            "osd 'profile rbd pool=evenkeel'",
        ),
        ("client.nobody", "", "", "the cluster does not know client.nobody"),
        ("nobody", "", "", "as in --ceph-user client.evenkeel"),
    ] {
        if !mon.is_empty() {
            let keyring = format!("ceph/{user}.keyring");
            ceph(&["auth", "get-or-create", user, "mon", mon, "osd", osd, "-o", &keyring]);
        }
        let conf = &cluster.conf;
        let words = format!(
            "serve --store rbd --ceph-conf {conf} --ceph-user {user} --data-dir {user} \
             --listen 127.0.0.1:0 --nbd-listen 127.0.0.1:0 --no-guarantee"
        );
        let output = run(evenkeel(folder).args(words.split_whitespace()));
        assert!(!output.status.success() && output.stderr.contains(why), "{user}: {output}");
    }
}

/// Returns the checks of `evenkeel doctor` whose names begin with Ceph, and their results.
fn examined(cluster: &Cluster, folder: &Path, flags: &str) -> Vec<(String, Value)> {
    let conf = &cluster.conf;
    let words = format!(
        "doctor --store rbd --ceph-user {USER} --ceph-conf {conf} --listen 127.0.0.1:0 \
         --nbd-listen 127.0.0.1:0 -o json {flags}"
    );
    let printed = run(evenkeel(folder).args(words.split_whitespace())).stdout;
    let told: Value = serde_json::from_str(&printed).expect("JSON");
    let checks = told["checks"].as_array().expect("checks").iter();
    let named = checks.map(|check| (check["what"].as_str().expect("a name").to_owned(), check));
    let of_ceph = named.filter(|(what, _)| what.starts_with("Ceph"));
    of_ceph.map(|(what, check)| (what, check.clone())).collect()
}

fn doctor_tells_what_the_cluster_takes_away(cluster: &Cluster, folder: &Path) {
    let verdicts = |checks: Vec<(String, Value)>| -> Vec<String> {
        checks
            .into_iter()
            .map(|(what, check)| format!("{what}: {}", check["verdict"].as_str().expect("one")))
            .collect()
    };
    // One OSD with one copy, of a release whose scheduler reserves nothing for clients.
    let alone = [
        "Ceph cluster: ok",
        "Ceph health: ok",
        "Ceph copies: warn",
        "Ceph failure domain: warn",
        "Ceph neighbours: ok",
        "Ceph space: ok",
        "Ceph map changes: ok",
        "Ceph recovery: warn",
        "Ceph hung devices: ok",
        "Ceph images: ok",
    ];
    assert_eq!(verdicts(examined(cluster, folder, "")), alone);
    let mut pool = std::process::Command::new("ceph");
    pool.args(["-c", &cluster.conf, "--connect-timeout", "20"]);
    run(pool.args(["osd", "pool", "create", "cold", "1"])).ok();
    let checks = examined(cluster, folder, "");
    let neighbours = checks.iter().find(|(what, _)| what == "Ceph neighbours").expect("a check");
    assert_eq!(neighbours.1["found"], "on the same OSDs: cold (0 GiB)");
    let none = examined(cluster, folder, "--rbd-pool none");
    assert_eq!(verdicts(none), ["Ceph cluster: fail"]);
    // The check has written nothing.
    let mut names = std::process::Command::new("rados");
    let stored = run(names.args(["-c", &cluster.conf, "-p", "evenkeel", "--all", "ls"])).ok();
    assert!(!stored.contains("evenkeel"), "{stored}");
}

fn what_was_acknowledged_is_there_after_kill_9(server: &mut Server) {
    let volume = server.attached(GP3);
    let mut client = Client::open(server.nbd, &volume).expect("an export");
    (0..20).for_each(|block| write(&mut client, block, 1));
    let made = server.list(&format!("snapshot create {volume} --wait"));
    let snapshot = made[0]["snapshot_id"].as_str().expect("an id").to_owned();
    for round in 2..5_u8 {
        (0..20).for_each(|block| write(&mut client, block, round));
        server.kill_9();
        server.restart();
        client = Client::open(server.nbd, &volume).expect("an export");
        for block in 0..20 {
            assert_eq!(read(&mut client, block), round, "block {block}");
        }
    }
    let clone = server.attached(&format!("--type gp3 --snapshot {snapshot}"));
    let mut of_snapshot = Client::open(server.nbd, &clone).expect("an export");
    for block in 0..20 {
        assert_eq!(read(&mut of_snapshot, block), 1, "block {block} of the snapshot");
    }
    drop((client, of_snapshot));
    for id in [&volume, &clone] {
        server.evenkeel(&format!("volume detach {id} --wait")).ok();
        server.evenkeel(&format!("volume rm {id}")).ok();
    }
    server.evenkeel(&format!("snapshot rm {snapshot}")).ok();
    assert!(server.list("volume ls").is_empty());
}

fn status(server: &Server, volume: &str) -> String {
    let told: Vec<Value> = server.list(&format!("volume status {volume}"));
    told[0].to_string()
}

fn a_cluster_that_hangs_is_told_within_seconds(cluster: &Cluster, server: &Server) {
    let volume = server.attached(GP3);
    let mut client = Client::open(server.nbd, &volume).expect("an export");
    write(&mut client, 0, 1);
    cluster.signal("-STOP");
    let address = server.nbd;
    let name = volume.clone();
    let late = std::thread::spawn(move || {
        let mut client = Client::open(address, &name).expect("an export");
        write(&mut client, 1, 2);
    });
    let is_told = Deadline::after(PATIENCE).comes(|| status(server, &volume).contains("stalled"));
    assert!(is_told, "{}", status(server, &volume));
    // The description of volumes does not need the cluster.
    assert_eq!(server.list("volume ls").len(), 1);
    cluster.signal("-CONT");
    late.join().expect("it is answered when the cluster goes on");
    assert_eq!(read(&mut client, 1), 2);
    let is_well = Deadline::after(PATIENCE).comes(|| !status(server, &volume).contains("stalled"));
    assert!(is_well, "{}", status(server, &volume));
}
