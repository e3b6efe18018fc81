//! Volumes that move from one server to another: in use, interrupted, refused, and to a cluster and
//! back.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use support::PATIENCE;
use support::clock::Deadline;
use support::cluster::ground;
use support::nbd::Client;
use support::process::{Running, run, start};
use support::random::Random;
use support::server::{Server, evenkeel};

const UNIT: u64 = 512 << 10;
const BLOCK: usize = 4_096;
const GP3: &str = "--type gp3 --size 1 --throughput 750";

/// Returns the command with its server's settings.
fn migrate(from: &Server, to: &Server, words: &str) -> Command {
    let mut command = evenkeel(from.folder());
    command.env("EVENKEEL_ENDPOINT", &from.endpoint);
    command.env("EVENKEEL_DATA_DIR", from.data_dir());
    command.args(["volume", "migrate", "--to-data-dir"]).arg(to.data_dir());
    command.args(words.split_whitespace()).stdin(Stdio::null());
    command
}

/// Runs it to its end; returns its report of the migration.
#[track_caller]
fn migrated(from: &Server, to: &Server, words: &str) -> Value {
    let text = run(&mut migrate(from, to, &format!("{words} -o json"))).ok();
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema"], "evenkeel.migration/1");
    value["migration"].clone()
}

#[track_caller]
fn number(migration: &Value, field: &str) -> u64 {
    migration[field].as_u64().unwrap_or_else(|| panic!("{field}: {migration}"))
}

/// Writes a unit of random bytes at each of these numbers.
fn write(server: &Server, volume: &str, random: &mut Random, units: impl Iterator<Item = u64>) {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    for unit in units {
        client.write(unit * UNIT, &random.bytes(UNIT as usize)).expect("room");
    }
    client.flush().expect("a device");
}

fn bytes(server: &Server, volume: &str, units: std::ops::Range<u64>) -> Vec<Vec<u8>> {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    units.map(|unit| client.read(unit * UNIT, UNIT as u32).expect("data")).collect()
}

/// Checks that both volumes have the same bytes in all units that a test writes to, and in a
/// sixteenth of the others. The volumes may be attached already.
#[track_caller]
fn same(one: (&Server, &str), other: (&Server, &str)) {
    for (server, volume) in [one, other] {
        let volumes = server.list("volume ls");
        let found = volumes.iter().find(|it| it["volume_id"] == volume).expect("the volume");
        if found["state"] == "available" {
            server.evenkeel(&format!("volume attach {volume} --wait")).ok();
        }
    }
    let [mut one, mut other] =
        [one, other].map(|(server, volume)| Client::open(server.nbd, volume).expect("an export"));
    let mut units = [(); 2].map(|()| vec![0; UNIT as usize]);
    for unit in (0..700).chain([1_500]).chain((700..2_048).filter(|unit| unit % 16 == 15)) {
        let [found, expected] = &mut units;
        one.read_into(unit * UNIT, expected).expect("data");
        other.read_into(unit * UNIT, found).expect("data");
        assert!(found == expected, "unit {unit} differs");
    }
}

#[track_caller]
fn no_snapshots(servers: [&Server; 2]) {
    for server in servers {
        let left = server.list("snapshot ls");
        assert!(left.is_empty(), "{left:?}");
        let binned = server.list("snapshot bin");
        assert!(binned.is_empty(), "{binned:?}");
    }
}

fn state(server: &Server, volume: &str) -> Value {
    server.list("volume ls").into_iter().find(|it| it["volume_id"] == volume).expect("the volume")
}

/// Ends a writer when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes blocks at random until it is disconnected or asked to stop. Returns the acknowledged
/// blocks, without the last one if it was disconnected, as its outcome is unknown.
fn writer(nbd: SocketAddr, volume: &str, ends: &AtomicBool) -> BTreeMap<u64, Vec<u8>> {
    let mut random = Random::new(7);
    let mut written = BTreeMap::new();
    let mut client = Client::open(nbd, volume).expect("an export");
    while !ends.load(Ordering::Relaxed) {
        // Some positions were not written before.
        let offset = random.below(320 * UNIT / BLOCK as u64) * BLOCK as u64;
        let data = random.bytes(BLOCK);
        match client.write(offset, &data) {
            Ok(()) => drop(written.insert(offset, data)),
            Err(_) => {
                written.remove(&offset);
                break;
            }
        }
        // So slowly that it never writes to all units in one round.
        support::clock::pass(std::time::Duration::from_millis(50));
    }
    written
}

#[test]
fn a_volume_in_use_moves_with_all_that_it_has() {
    let server = Server::start("--recycle-bin-days 1");
    let other = Server::start("--recycle-bin-days 1");
    let volume = server.attached("--type gp2 --size 1 --tag Name=log --tag a=b");
    write(&server, &volume, &mut Random::new(1), 0..300);
    server.evenkeel(&format!("volume credits {volume} --set 1000000")).ok();
    let host = state(&server, &volume)["attachments"][0]["host_id"].clone();
    let ends = AtomicBool::new(false);
    let nbd = server.nbd;
    let (moved, written) = std::thread::scope(|scope| {
        let writes = scope.spawn(|| writer(nbd, &volume, &ends));
        // Also if the migration fails: the scope waits for the writer.
        let end = Ends(&ends);
        let moved = migrated(&server, &other, &format!("{volume} --detach"));
        drop(end);
        (moved, writes.join().expect("it ends"))
    });
    let new = moved["volume_id"].as_str().expect("an id");
    assert_ne!(new, volume);
    assert!(number(&moved, "rounds") >= 2, "{moved}");
    assert!(number(&moved, "compared_units") >= 300, "{moved}");
    assert!(number(&moved, "copied_bytes") >= 300 * UNIT, "{moved}");
    assert!(number(&moved, "copied_detached_bytes") < 300 * UNIT, "{moved}");
    assert_eq!(moved["hosts"], serde_json::json!([{ "host_id": host, "device": "/dev/sdf" }]));
    no_snapshots([&server, &other]);

    let had = state(&server, &volume);
    let state = state(&other, new);
    for field in ["volume_type", "size_gib", "iops", "throughput_mibps", "multi_attach"] {
        assert_eq!(had[field], state[field], "{field}");
    }
    assert_eq!(
        state["tags"],
        serde_json::json!({ "Name": "log", "a": "b", "evenkeel:migrated-from": volume })
    );
    let credits = other.credits(new);
    assert!((900_000..1_200_000).contains(&credits), "no credits are given: {credits}");
    // Acknowledged writes are there, and the source is kept.
    same((&server, &volume), (&other, new));
    let mut client = Client::open(other.nbd, new).expect("an export");
    assert!(!written.is_empty());
    for (at, data) in written {
        assert!(client.read(at, BLOCK as u32).expect("data") == data, "the block at {at}");
    }
    // A second migration moves nothing, and reports the volume of the first.
    let again = migrated(&server, &other, &volume);
    assert_eq!((&again["was_done"], &again["volume_id"]), (&true.into(), &new.into()));
    assert_eq!(other.list("volume ls").len(), 1);
}

fn begin(from: &Server, to: &Server, words: &str) -> Running {
    start(&mut migrate(from, to, words))
}

/// Waits until the first copy has recorded units at the target.
fn wait_for_units(to: &Server, units: u64) {
    let copied = || {
        let all = to.list("snapshot ls");
        let tag = all.first().and_then(|it| it["tags"]["evenkeel:migrate-base"].as_str());
        let next = tag.and_then(|tag| tag.split(' ').nth(1)?.parse::<u64>().ok());
        next.is_some_and(|next| next >= units)
    };
    Deadline::after(PATIENCE).ask("units", copied);
}

#[test]
fn interrupted_migration_resumes_with_the_copied_data() {
    let server = Server::start("--store local");
    let mut other = Server::start("--store local");
    let volume = server.create(&format!("{GP3} --attach"));
    // Some zeroes, which are not copied, before and after the interruption.
    write(&server, &volume, &mut Random::new(2), (0..620).filter(|unit| unit % 100 != 7));
    let mut client = Client::open(server.nbd, &volume).expect("an export");
    for unit in [7, 107, 607] {
        client.write(unit * UNIT, &vec![0; UNIT as usize]).expect("room");
    }
    let slow = format!("{volume} --rate 150");
    let command = begin(&server, &other, &slow);
    wait_for_units(&other, 256);
    command.kill_9();
    let command = begin(&server, &other, &slow);
    wait_for_units(&other, 512);
    other.kill_9();
    let failed = command.finish();
    assert_eq!(failed.status.code(), Some(1), "{failed}");
    assert!(failed.stderr.contains("it resumes the copy"), "{failed}");
    other.restart();
    // The bytes now differ from those of the first snapshot, and some are removed.
    write(&server, &volume, &mut Random::new(3), [0, 600, 1_500].into_iter());
    client.write(5 * UNIT, &vec![0; UNIT as usize]).expect("room");
    // While the volume is attached, the migration stops before its last step.
    let output = run(&mut migrate(&server, &other, &volume));
    let text = output.fails_with(5);
    assert!(text.contains("was not detached from i-") && text.contains("--detach"), "{text}");
    assert!(text.contains("it resumes the copy"), "{text}");
    assert_eq!(other.list("snapshot ls").len(), 2);
    write(&server, &volume, &mut Random::new(4), [1, 600].into_iter());
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    let moved = migrated(&server, &other, &volume);
    assert!(number(&moved, "copied_bytes") < 32 * UNIT, "it was there: {moved}");
    no_snapshots([&server, &other]);
    assert!(other.list("snapshot unowned").is_empty() && other.list("volume unowned").is_empty());
    same((&server, &volume), (&other, moved["volume_id"].as_str().expect("an id")));
}

#[test]
fn volume_attached_at_the_last_moment_stays_at_its_source() {
    let server = Server::start("--store local");
    let other = Server::start("--store local");
    let volume = server.attached(GP3);
    write(&server, &volume, &mut Random::new(5), 0..300);
    // So slow that the copy still runs after the volume is detached; then its changes are compared.
    let command = begin(&server, &other, &format!("{volume} --detach --rate 40"));
    wait_for_units(&other, 256);
    write(&server, &volume, &mut Random::new(6), 0..40);
    Deadline::after(PATIENCE).ask("detached", || state(&server, &volume)["state"] == "available");
    server.evenkeel(&format!("volume attach {volume} --wait")).ok();
    write(&server, &volume, &mut Random::new(7), 3..5);
    let text = command.finish().fails_with(1);
    assert!(text.contains("has changed since it was copied: it is attached to i-"), "{text}");
    assert!(text.contains("`evenkeel volume attach"), "{text}");
    assert!(other.list("volume ls").is_empty());
    let moved = migrated(&server, &other, &format!("{volume} --detach"));
    same((&server, &volume), (&other, moved["volume_id"].as_str().expect("an id")));
    no_snapshots([&server, &other]);
}

#[test]
fn impossible_migration_is_refused_before_any_copy() {
    let mut server = Server::start("--store local");
    let small = Server::start("--sell-iops 100 --sell-throughput 2");
    let volume = server.create(GP3);
    let refused = |to: &Server, words: &str, code: i32, said: &[&str]| {
        let text = run(&mut migrate(&server, to, words)).fails_with(code);
        for part in said {
            assert!(text.contains(part), "{part}: {text}");
        }
    };
    refused(&small, &volume, 4, &[&volume, "would not be made at", "volume capacity"]);
    refused(&server, &volume, 2, &["it is the source", "--to names another server"]);
    refused(&small, "vol-00000000000000000", 3, &["vol-00000000000000000", "volume ls"]);
    let wrong = format!("{volume} --to-region elsewhere-1");
    refused(&small, &wrong, 1, &["--to-data-dir and --to-region"]);
    let nowhere = format!("{volume} --to http://{}", server.endpoint.replace("http://", "x:1@"));
    refused(&small, &nowhere, 2, &["expected http://HOST:PORT"]);
    let mut command = evenkeel(server.folder());
    command.args(["volume", "migrate", &volume, "--to", &small.endpoint, "--data-dir"]);
    let text = run(command.arg(server.data_dir())).fails_with(2);
    assert!(text.contains("EVENKEEL_TO_ACCESS_KEY_ID") && text.contains("--to-data-dir"), "{text}");
    no_snapshots([&server, &small]);
    // A target without snapshots.
    let memory = Server::start("--store memory");
    refused(&memory, &volume, 1, &["has no snapshots", "--store local"]);
    assert!(server.list("snapshot ls").is_empty());
    // A target that does not answer.
    server.stop();
    server.restart();
    let away = Server::start("--store local");
    let to = away.endpoint.clone();
    let folder = server.folder().join("away");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::copy(away.data_dir().join("credentials"), folder.join("credentials")).expect("a file");
    drop(away);
    let words = format!("volume migrate {volume} --to {to} --to-data-dir {}", folder.display());
    let text = server.evenkeel(&words).fails_with(1);
    assert!(text.contains("no server at"), "{text}");
}

/// Starts a server that can encrypt.
fn with_key() -> Server {
    let (folder, data_dir) = support::server::new_folder();
    let key = folder.path().join("key");
    std::fs::write(&key, "1".repeat(64)).expect("room");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, mode).expect("ours");
    let options = format!("--store local --key-file {}", key.display());
    Server::start_in(folder, data_dir, &options)
}

#[test]
fn an_encrypted_volume_stays_so_and_may_grow_while_it_is_copied() {
    let one = with_key();
    let plain = Server::start("--store local");
    let other = with_key();
    let volume = one.attached(&format!("{GP3} --encrypted"));
    write(&one, &volume, &mut Random::new(10), 0..40);
    let text = run(&mut migrate(&one, &plain, &volume)).fails_with(1);
    assert!(text.contains("has no key") && text.contains("--unencrypted"), "{text}");
    run(&mut migrate(&one, &other, &volume)).fails_with(5);
    one.evenkeel(&format!("volume modify {volume} --size 2 --wait")).ok();
    write(&one, &volume, &mut Random::new(11), [3, 3_000].into_iter());
    let mut command = begin(&one, &other, &format!("{volume} --wait 60s -o json"));
    let asked = || command.logged().contains("detach it now from i-");
    Deadline::after(PATIENCE).ask("to be asked", asked);
    one.evenkeel(&format!("volume detach {volume} --wait")).ok();
    let value: Value = serde_json::from_str(&command.finish().ok()).expect("JSON");
    let moved = &value["migration"];
    assert_eq!(moved["is_encrypted"], true, "{moved}");
    let new = moved["volume_id"].as_str().expect("an id");
    let has = state(&other, new);
    assert_eq!((&has["encrypted"], &has["size_gib"]), (&true.into(), &2.into()));
    same((&one, &volume), (&other, new));
    assert!(bytes(&one, &volume, 2_990..3_010) == bytes(&other, new, 2_990..3_010));
    // Without a key at the target, the volume is only moved with `--unencrypted`.
    one.evenkeel(&format!("volume detach {volume} --wait")).ok();
    let moved = migrated(&one, &plain, &format!("{volume} --unencrypted"));
    let new = moved["volume_id"].as_str().expect("an id");
    assert_eq!(state(&plain, new)["encrypted"], false);
    plain.evenkeel(&format!("volume attach {new} --wait")).ok();
    assert!(
        bytes(&other, has["volume_id"].as_str().expect("an id"), 0..50)
            == bytes(&plain, new, 0..50)
    );
}

#[test]
fn a_volume_moves_to_a_cluster_and_back() {
    let Some((_folder, cluster, etcd)) = ground("") else { return };
    let flags = format!("{} --etcd {} --node first", cluster.store(), etcd.endpoint());
    let node = Server::start(&flags);
    let local = Server::start("--store local");
    let volume = local.attached(GP3);
    write(&local, &volume, &mut Random::new(8), (0..60).chain([2_047]));
    let there = migrated(&local, &node, &format!("{volume} --detach"));
    let there = there["volume_id"].as_str().expect("an id");
    same((&local, &volume), (&node, there));
    // Changed while it is in use there.
    write(&node, there, &mut Random::new(9), [2, 70].into_iter());
    let back = migrated(&node, &local, &format!("{there} --detach --remove-source"));
    assert_eq!(back["source_removed"], true, "{back}");
    assert!(node.list("volume ls").is_empty());
    let new = back["volume_id"].as_str().expect("an id");
    local.evenkeel(&format!("volume attach {new} --wait")).ok();
    let was = bytes(&local, &volume, 0..100);
    let is = bytes(&local, new, 0..100);
    let differ: Vec<usize> = (0..100).filter(|unit| was[*unit] != is[*unit]).collect();
    assert_eq!(differ, [2, 70]);
    no_snapshots([&local, &node]);
}
