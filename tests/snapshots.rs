//! Snapshots of volumes in use: their contents, their state after a crash, and the verbs of the
//! command line.

mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use support::nbd::Client;
use support::server::{CommandLine, FAST, Server};

/// Blocks that are written in turn, far apart.
const BLOCKS: u64 = 64;
const STRIDE: u64 = 64 << 20;
const BLOCK_BYTES: usize = 4_096;

/// Writes ascending numbers to ascending blocks, each when the previous write is answered. At any
/// moment the volume has the state after one of the writes.
struct Writer<'a> {
    client: Client,
    answered: &'a AtomicU64,
}

impl Writer<'_> {
    fn write(&mut self) -> std::io::Result<()> {
        let number = self.answered.load(Ordering::SeqCst) + 1;
        let data = number.to_le_bytes().repeat(BLOCK_BYTES / 8);
        self.client.write(number % BLOCKS * STRIDE, &data)?;
        self.answered.store(number, Ordering::SeqCst);
        Ok(())
    }
}

/// Returns the last number on a volume; panics if the volume does not have the state after that
/// number.
#[track_caller]
fn last_number(server: &Server, volume: &str) -> u64 {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    let mut read = |block: u64| {
        let data = client.read(block * STRIDE, BLOCK_BYTES as u32).expect("data");
        let words = data.as_chunks::<8>().0;
        assert!(words.iter().all(|word| *word == words[0]), "block {block} is torn");
        u64::from_le_bytes(words[0])
    };
    let numbers: Vec<u64> = (0..BLOCKS).map(&mut read).collect();
    let last = *numbers.iter().max().expect("blocks");
    for (block, number) in (0..).zip(numbers) {
        let expected = (0..=last).rev().take(BLOCKS as usize).find(|n| n % BLOCKS == block);
        assert_eq!(number, expected.unwrap_or(0), "block {block}, written up to {last}");
    }
    last
}

/// Returns a snapshot's id from the output of `snapshot create -o json`.
fn id_of(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    Some(value["snapshots"][0]["snapshot_id"].as_str()?.to_owned())
}

#[track_caller]
fn make(server: &Server, volume: &str) -> String {
    let text = server.evenkeel(&format!("snapshot create {volume} --wait -o json")).ok();
    id_of(&text).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn snapshot_of_a_volume_in_use_holds_acknowledged_writes() {
    let server = Server::start("--store local");
    let volume = server.attached(FAST);
    let answered = AtomicU64::new(0);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = Client::open(server.nbd, &volume).expect("an export");
        let mut writer = Writer { client, answered: &answered };
        let ends = &ends;
        scope.spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                writer.write().expect("room");
            }
        });
        for _ in 0..4 {
            let before = answered.load(Ordering::SeqCst);
            let snapshot = make(&server, &volume);
            let after = answered.load(Ordering::SeqCst) + 1;
            let clone = server.attached(&format!("--type gp3 --snapshot {snapshot}"));
            let last = last_number(&server, &clone);
            assert!((before..=after).contains(&last), "{before} <= {last} <= {after}");
            server.evenkeel(&format!("snapshot rm {snapshot}")).ok();
            assert_eq!(last_number(&server, &clone), last, "the clone needs no snapshot");
        }
        ends.store(true, Ordering::SeqCst);
    });
    assert!(server.list("snapshot ls").is_empty());
}

/// Two volumes are written in turn, each number to the second one when the first has answered. So a
/// set of snapshots has a number of the second one only together with that of the first.
#[test]
fn the_volumes_of_a_host_are_snapshotted_at_one_moment() {
    let server = Server::start("--store local");
    let volumes = [server.attached(FAST), server.attached(FAST)];
    let left_out = server.attached(FAST);
    let host = server.list("host ls")[0]["host_id"].as_str().expect("an id").to_owned();
    let answered = [AtomicU64::new(0), AtomicU64::new(0)];
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut writers = [0, 1].map(|index| {
            let client = Client::open(server.nbd, &volumes[index]).expect("an export");
            Writer { client, answered: &answered[index] }
        });
        let ends = &ends;
        scope.spawn(move || {
            while !ends.load(Ordering::SeqCst) {
                writers.iter_mut().for_each(|writer| writer.write().expect("room"));
            }
        });
        for _ in 0..3 {
            let before = answered[1].load(Ordering::SeqCst);
            let create = format!("snapshot create --host {host} --exclude {left_out} --wait");
            let made = server.list(&create);
            assert_eq!(made.len(), 2, "{made:?}");
            let last = [0, 1].map(|index| {
                let is_of = |it: &&Value| it["volume_id"] == volumes[index].as_str();
                let snapshot = made.iter().find(is_of).expect("one of each volume");
                let snapshot = snapshot["snapshot_id"].as_str().expect("an id");
                let clone = server.attached(&format!("--type gp3 --snapshot {snapshot}"));
                let last = last_number(&server, &clone);
                server.evenkeel(&format!("volume detach {clone} --wait")).ok();
                last
            });
            assert!(last[1] >= before, "{last:?}, and {before} was answered before");
            assert!(last[0] == last[1] || last[0] == last[1] + 1, "not one moment: {last:?}");
        }
        ends.store(true, Ordering::SeqCst);
    });
}

#[test]
fn each_step_survives_a_restart() {
    let mut server = Server::start("--store local");
    let volume = server.attached(FAST);
    let answered = AtomicU64::new(0);
    let client = Client::open(server.nbd, &volume).expect("an export");
    let mut writer = Writer { client, answered: &answered };
    (0..100).for_each(|_| writer.write().expect("room"));
    drop(writer);
    let restart = |server: &mut Server| {
        server.stop();
        server.restart();
    };
    restart(&mut server);
    let tagged = format!("snapshot create {volume} --wait --description nightly --tag a=b -o json");
    let snapshot = id_of(&server.evenkeel(&tagged).ok()).expect("an id");
    restart(&mut server);
    let shown = server.evenkeel(&format!("snapshot show {snapshot}")).ok();
    for words in ["completed", "nightly", "a=b", &volume, "64 GiB"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume rm {volume}")).ok();
    restart(&mut server);
    let clone = server.attached(&format!("--type gp3 --size 100 --snapshot {snapshot}"));
    restart(&mut server);
    assert_eq!(last_number(&server, &clone), 100);
    server.evenkeel(&format!("snapshot rm {snapshot}")).ok();
    restart(&mut server);
    assert!(server.list("snapshot ls").is_empty());
    assert!(server.list("snapshot unowned").is_empty());
    assert_eq!(last_number(&server, &clone), 100);
    let of = server.list("volume ls")[0]["snapshot_id"].clone();
    assert_eq!(of, Value::from(snapshot), "where it comes from is remembered");
}

/// Makes snapshots until the server ends; records those that it acknowledged.
fn make_on(server: &CommandLine, volume: &str, made: &Mutex<Vec<String>>) {
    loop {
        let output = server.run(&format!("snapshot create {volume} -o json"));
        if !output.status.success() {
            return;
        }
        made.lock().expect("whole").extend(id_of(&output.stdout));
    }
}

#[test]
fn snapshot_is_whole_or_says_that_it_is_not_after_kill_9() {
    let mut server = Server::start("--store local");
    let volume = server.attached(FAST);
    let answered = AtomicU64::new(0);
    let mut acknowledged = 0;
    for round in 0..5_u64 {
        let made = Mutex::new(Vec::new());
        let client = Client::open(server.nbd, &volume).expect("an export");
        let mut writer = Writer { client, answered: &answered };
        // Blocks that the crash before has lost are written again.
        (0..BLOCKS).for_each(|_| writer.write().expect("room"));
        let command_line = server.command_line();
        std::thread::scope(|scope| {
            let made = &made;
            let volume = &volume;
            scope.spawn(move || make_on(&command_line, volume, made));
            scope.spawn(move || while writer.write().is_ok() {});
            std::thread::park_timeout(Duration::from_millis(150 + 130 * round));
            server.kill_9();
        });
        server.restart();
        let made = made.into_inner().expect("whole");
        let listed = server.list("snapshot ls");
        let state = |id: &str| {
            let found = listed.iter().find(|snapshot| snapshot["snapshot_id"] == id);
            found.map(|snapshot| snapshot["state"].as_str().expect("a state").to_owned())
        };
        for id in &made {
            assert_eq!(state(id).as_deref(), Some("completed"), "{id} was answered");
        }
        acknowledged += made.len();
        for snapshot in &listed {
            let id = snapshot["snapshot_id"].as_str().expect("an id");
            match state(id).as_deref() {
                Some("completed") => {
                    let clone = server.attached(&format!("--type gp3 --snapshot {id}"));
                    assert!(last_number(&server, &clone) > 0, "{id}");
                    server.evenkeel(&format!("volume detach {clone} --wait")).ok();
                    server.evenkeel(&format!("volume rm {clone}")).ok();
                }
                other => assert_eq!(other, Some("error"), "{snapshot}"),
            }
            server.evenkeel(&format!("snapshot rm {id}")).ok();
        }
        assert!(server.list("snapshot unowned").is_empty());
    }
    assert!(acknowledged > 0, "none was made in time");
}

#[test]
fn store_without_snapshots_and_a_missing_snapshot_are_distinguished() {
    let server = Server::start("--store memory");
    let volume = server.create("--size 10");
    let refused = server.evenkeel(&format!("snapshot create {volume}"));
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(refused.stderr.contains("serve with --store local"), "{refused}");
    let absent = server.evenkeel("snapshot show snap-00000000000000bad");
    assert_eq!(absent.status.code(), Some(3), "{absent}");
    assert!(absent.stderr.contains("`evenkeel snapshot ls` lists the snapshots"), "{absent}");
    let neither = server.evenkeel("volume create");
    assert_eq!(neither.status.code(), Some(2), "{neither}");
    assert!(neither.stderr.contains("--size <SIZE>"), "{neither}");
    assert_eq!(server.evenkeel("snapshot ls -o csv").ok().lines().count(), 1);
}

#[test]
fn the_archive_has_verbs_and_keeps_the_data() {
    let mut server = Server::start("--store local");
    let volume = server.create("--size 1 --type gp3");
    let snapshot = make(&server, &volume);
    let shown = |server: &Server| {
        let text = server.evenkeel(&format!("snapshot show {snapshot} -o json")).ok();
        serde_json::from_str::<Value>(&text).expect("JSON")["snapshot"].clone()
    };
    let before = shown(&server);
    assert_eq!(before["storage_tier"], "standard");
    server.evenkeel(&format!("snapshot archive {snapshot}")).ok();
    let archived = shown(&server);
    assert_eq!(archived["storage_tier"], "archive", "{archived}");
    assert_eq!(archived["data_bytes"], before["data_bytes"]);
    let cost = server.evenkeel("report cost").ok();
    assert!(cost.contains("archived: 1; AWS charges each for 90 days at least"), "{cost}");
    // It stays archived over a restart, and no volume can be made from it.
    server.stop();
    server.restart();
    for verb in ["volume create --type gp3 --snapshot", "snapshot copy"] {
        let refused = server.evenkeel(&format!("{verb} {snapshot}"));
        assert_eq!(refused.status.code(), Some(1), "{refused}");
        let says = format!("{snapshot} is archived; restore it");
        assert!(refused.stderr.contains(&says), "{refused}");
    }
    let folder = server.folder().join("exports");
    let export = format!("snapshot export {snapshot} --to {}", folder.display());
    let refused = server.evenkeel(&export);
    assert!(!refused.status.success() && refused.stderr.contains("is archived"), "{refused}");
    let neither = server.evenkeel(&format!("snapshot unarchive {snapshot}"));
    assert_eq!(neither.status.code(), Some(2), "{neither}");
    server.evenkeel(&format!("snapshot unarchive {snapshot} --days 2")).ok();
    let restored = shown(&server);
    assert_eq!(restored["storage_tier"], "standard");
    assert!(restored["restore_expiry_time"].is_string(), "{restored}");
    server.evenkeel(&export).ok();
    server.evenkeel(&format!("snapshot unarchive {snapshot} --permanent")).ok();
    assert!(shown(&server)["restore_expiry_time"].is_null());
    server.evenkeel(&format!("volume create --type gp3 --snapshot {snapshot}")).ok();
}

#[test]
fn copies_locks_and_the_bin_have_verbs() {
    let server = Server::start("--store local --recycle-bin-days 1");
    let volume = server.create("--size 1");
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let snapshot = make(&server, &volume);
    let copied = server.evenkeel(&format!("snapshot copy {snapshot} --wait -o json")).ok();
    let copy = id_of(&copied).expect("the copy");
    let copied = json(&server.evenkeel(&format!("volume copy {volume} --wait -o json")).ok());
    let other = copied["volumes"][0]["volume_id"].as_str().expect("the copy").to_owned();
    let status = json(&server.evenkeel(&format!("volume status {other} -o json")).ok());
    assert_eq!(status["statuses"][0]["status"], "ok", "{status}");
    assert_eq!(status["statuses"][0]["initialized_percent"], 100, "{status}");

    let locked = server.evenkeel(&format!("snapshot lock {snapshot} --days 2 -o json")).ok();
    assert_eq!(json(&locked)["locks"][0]["state"], "governance", "{locked}");
    let kept = server.evenkeel(&format!("snapshot rm {snapshot}"));
    assert!(kept.status.code() == Some(1) && kept.stderr.contains("locked"), "{kept}");
    let until = format!("snapshot lock {copy} --mode compliance --until 2000-01-01T00:00:00.000Z");
    let past = server.evenkeel(&until);
    assert!(past.stderr.contains("Must be a time in the future"), "{past}");
    let neither = server.evenkeel(&format!("snapshot lock {copy}"));
    assert_eq!(neither.status.code(), Some(2), "{neither}");
    let cooling = format!("snapshot lock {copy} --mode compliance --days 1 --cool-off 1");
    server.evenkeel(&cooling).ok();
    let locks = server.list("snapshot locks");
    let states = locks.iter().map(|lock| lock["state"].as_str().unwrap_or_default());
    let mut states: Vec<&str> = states.collect();
    states.sort_unstable();
    assert_eq!(states, ["compliance-cooloff", "governance"], "{locks:?}");
    for id in [&snapshot, &copy] {
        server.evenkeel(&format!("snapshot unlock {id}")).ok();
        server.evenkeel(&format!("snapshot rm {id}")).ok();
    }
    assert!(server.list("snapshot locks").is_empty());
    server.evenkeel(&format!("volume rm {other}")).ok();
    assert_eq!((server.list("snapshot bin").len(), server.list("volume bin").len()), (2, 1));
    server.evenkeel(&format!("snapshot restore {snapshot}")).ok();
    server.evenkeel(&format!("volume restore {other}")).ok();
    server.evenkeel(&format!("snapshot rm {copy} --bin")).ok();
    assert_eq!((server.list("snapshot bin").len(), server.list("volume bin").len()), (0, 0));
    assert_eq!((server.list("snapshot ls").len(), server.list("volume ls").len()), (1, 2));
}
