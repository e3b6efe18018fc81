//! Snapshots that are exported, damaged, interrupted, and imported by another server.

mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::PATIENCE;
use support::clock::{Deadline, Stopwatch};
use support::nbd::Client;
use support::process::{Output, Running, run, start};
use support::random::Random;
use support::server::{Server, evenkeel};

const UNIT: u64 = 512 << 10;
const GIB: u64 = 1 << 30;
const VOLUME: &str = "--type gp3 --size 1 --throughput 750";

/// Runs a snapshot command.
fn snapshot(server: &Server, words: &str) -> Output {
    server.evenkeel(&format!("snapshot {words}"))
}

#[track_caller]
fn make(server: &Server, volume: &str) -> String {
    let made = server.list(&format!("snapshot create {volume} --wait"));
    made[0]["snapshot_id"].as_str().expect("an id").to_owned()
}

#[track_caller]
fn json(output: Output, field: &str) -> Value {
    let text = output.ok();
    let value: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    value[field].clone()
}

/// Writes a unit of random bytes at each of these numbers.
fn write(server: &Server, volume: &str, random: &mut Random, units: &[u64]) {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    for unit in units {
        client.write(unit * UNIT, &random.bytes(UNIT as usize)).expect("room");
    }
    client.flush().expect("a device");
}

/// Returns the units of a volume; `None` for a unit of zeroes, as most of them are.
fn all_bytes(server: &Server, volume: &str) -> Vec<Option<Vec<u8>>> {
    let mut client = Client::open(server.nbd, volume).expect("an export");
    let zeroes = vec![0; UNIT as usize];
    let mut bytes = zeroes.clone();
    let mut unit = |unit: u64| {
        client.read_into(unit * UNIT, &mut bytes).expect("data");
        (bytes != zeroes).then(|| bytes.clone())
    };
    (0..GIB / UNIT).map(&mut unit).collect()
}

/// Imports a snapshot, and returns all units of a volume made from it.
#[track_caller]
fn imported(server: &Server, of: &str, words: &str) -> Vec<Option<Vec<u8>>> {
    let done = json(snapshot(server, &format!("import {of} {words} -o json")), "import");
    let id = done["snapshot"].as_str().expect("an id");
    let volume = server.attached(&format!("{VOLUME} --snapshot {id}"));
    all_bytes(server, &volume)
}

/// Returns the files of packs in a place.
fn packs(place: &Path) -> Vec<PathBuf> {
    let files = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = files(place.join("packs"));
    let mut all: Vec<PathBuf> =
        folders.flat_map(|folder| files(folder.path())).map(|file| file.path()).collect();
    all.retain(|path| path.extension().is_some_and(|end| end == "pack"));
    all.sort();
    all
}

#[test]
fn another_server_restores_a_full_and_an_incremental_export() {
    let server = Server::start("--store local");
    let other = Server::start("--store local");
    let mut random = Random::new(1);
    let volume = server.attached(VOLUME);
    let units: Vec<u64> = (0..80).chain([2_047]).collect();
    write(&server, &volume, &mut random, &units);
    let mut client = Client::open(server.nbd, &volume).expect("an export");
    client.write(100 * UNIT, &vec![0; UNIT as usize]).expect("room");
    let first = make(&server, &volume);
    let before = all_bytes(&server, &volume);
    write(&server, &volume, &mut random, &[3, 500]);
    let second = make(&server, &volume);
    let after = all_bytes(&server, &volume);

    let place = server.folder().join("exports");
    let to = format!("--to {}", place.display());
    let full = json(snapshot(&server, &format!("export {first} {to} -o json")), "export");
    assert_eq!(full["units"], 81, "zeroes are not stored: {full}");
    let words = format!("export {second} {to} --parent {first} -o json");
    let less = json(snapshot(&server, &words), "export");
    assert_eq!((&less["units"], &less["bytes_written"]), (&82.into(), &(2 * UNIT).into()));
    let again = json(snapshot(&server, &words), "export");
    assert_eq!(again["bytes_read"], 0, "it is there: {again}");

    let shown = format!("--in {}", place.display());
    let listed = other.list(&format!("snapshot exports {shown}"));
    assert_eq!(listed.len(), 2);
    snapshot(&other, &format!("verify {second} {shown}")).ok();
    let from = format!("--from {}", place.display());
    assert!(imported(&other, &second, &from) == after, "the bytes of the second snapshot");
    assert!(imported(&other, &first, &from) == before, "the bytes of the first snapshot");
    // A snapshot that was imported before is not imported again.
    let again = json(snapshot(&other, &format!("import {first} {from} -o json")), "import");
    assert_eq!(again["bytes"], 0, "{again}");

    // Without its parent at the server, it is compared by its checksums.
    let third = make(&server, &volume);
    snapshot(&server, &format!("rm {second}")).ok();
    let words = format!("export {third} {to} --parent {second} -o json");
    let same = json(snapshot(&server, &words), "export");
    assert_eq!((&same["units"], &same["bytes_written"]), (&82.into(), &0.into()), "{same}");

    // Packs that other exports share stay.
    snapshot(&server, &format!("unexport {first} {shown}")).ok();
    snapshot(&server, &format!("unexport {third} {shown}")).ok();
    snapshot(&server, &format!("verify {second} {shown}")).ok();
    snapshot(&server, &format!("unexport {second} {shown}")).ok();
    assert!(packs(&place).is_empty());
    assert_eq!(snapshot(&server, &format!("verify {second} {shown}")).status.code(), Some(3));
}

/// Units of [`with_data`]: ten packs.
const UNITS: u64 = 320;

/// Starts a server with a volume of ten packs, and makes its snapshot.
fn with_data(random: &mut Random) -> (Server, String, String) {
    let server = Server::start("--store local");
    let volume = server.attached(VOLUME);
    write(&server, &volume, random, &(0..UNITS).collect::<Vec<_>>());
    let id = make(&server, &volume);
    (server, volume, id)
}

fn begin(server: &Server, words: &str) -> Running {
    let mut command = evenkeel(server.folder());
    command.env("EVENKEEL_ENDPOINT", &server.endpoint);
    command.env("EVENKEEL_DATA_DIR", server.data_dir());
    start(command.arg("snapshot").args(words.split_whitespace()).stdin(Stdio::null()))
}

#[test]
fn killed_export_resumes_with_the_existing_packs() {
    let (mut server, volume, id) = with_data(&mut Random::new(2));
    let place = server.folder().join("exports");
    let to = format!("--to {}", place.display());
    let slow = format!("export {id} {to} --rate 50 --jobs 1");
    let wait_for = |count: usize| {
        Deadline::after(PATIENCE).ask("packs", || packs(&place).len() >= count);
    };
    let exporter = begin(&server, &slow);
    wait_for(2);
    exporter.kill_9();
    assert!(!place.join("manifests").exists(), "no manifest before the end");
    // The server is killed instead.
    let exporter = begin(&server, &slow);
    wait_for(5);
    server.kill_9();
    assert!(!exporter.finish().status.success(), "it was exported without its server");
    server.restart();
    let found = packs(&place).len();
    let done = json(snapshot(&server, &format!("export {id} {to} -o json")), "export");
    let bytes = |name: &str| done[name].as_u64().expect("a number");
    assert!(bytes("bytes_found") >= found as u64 * 32 * UNIT, "{done}");
    assert_eq!(bytes("bytes_found") + bytes("bytes_written"), UNITS * UNIT, "{done}");
    let from = format!("--from {}", place.display());
    assert!(imported(&server, &id, &from) == all_bytes(&server, &volume));
}

#[test]
fn killed_import_resumes_with_its_snapshot() {
    let (mut server, volume, id) = with_data(&mut Random::new(3));
    let place = server.folder().join("exports");
    snapshot(&server, &format!("export {id} --to {}", place.display())).ok();
    let slow = format!("import {id} --from {} --rate 25 --jobs 2", place.display());
    let pending = |server: &Server| -> Vec<String> {
        let all = server.list("snapshot ls");
        let all = all.iter().filter(|snapshot| snapshot["state"] == "pending");
        all.map(|snapshot| snapshot["snapshot_id"].as_str().expect("an id").to_owned()).collect()
    };
    let importer = begin(&server, &slow);
    Deadline::after(PATIENCE).ask("a snapshot", || pending(&server).len() == 1);
    support::clock::pass(std::time::Duration::from_millis(500));
    importer.kill_9();
    let its = pending(&server);
    let importer = begin(&server, &slow);
    support::clock::pass(std::time::Duration::from_millis(500));
    server.kill_9();
    assert!(!importer.finish().status.success(), "it was imported without its server");
    server.restart();
    assert_eq!(pending(&server), its, "filling goes on after a restart");
    let words = format!("import {id} --from {} -o json", place.display());
    let done = json(snapshot(&server, &words), "import");
    assert_eq!(done["snapshot"], its[0], "it is the same snapshot");
    let clone = server.attached(&format!("{VOLUME} --snapshot {}", its[0]));
    assert!(all_bytes(&server, &clone) == all_bytes(&server, &volume));
    snapshot(&server, &format!("rm {}", its[0])).ok();
    assert!(server.list("snapshot unowned").is_empty());
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let server = Server::start("--store local");
    let volume = server.attached(VOLUME);
    write(&server, &volume, &mut Random::new(4), &[7, 8, 9]);
    let id = make(&server, &volume);
    let place = server.folder().join("exports");
    snapshot(&server, &format!("export {id} --to {}", place.display())).ok();
    let pack = packs(&place).remove(0);
    let mut bytes = std::fs::read(&pack).expect("a pack");
    bytes[UNIT as usize + 5] ^= 1;
    std::fs::write(&pack, &bytes).expect("room");
    for words in ["verify {} --in", "import {} --from"] {
        let words = words.replace("{}", &id);
        let text = snapshot(&server, &format!("{words} {}", place.display())).fails_with(1);
        for part in ["00000000.pack", "byte 524288 is damaged", "unit 8 of"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let manifest = place.join("manifests").join(format!("{id}.json"));
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    std::fs::write(&manifest, text.replace("\"size_gib\":1", "\"size_gib\":2")).expect("room");
    let text = snapshot(&server, &format!("verify {id} --in {}", place.display())).fails_with(1);
    assert!(text.contains("it is damaged") && text.contains(".json"), "{text}");
}

/// Writes a file with a key.
fn key_file(server: &Server, name: &str, digit: &str) -> PathBuf {
    let path = server.folder().join(name);
    std::fs::write(&path, digit.repeat(64)).expect("a file");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
    path
}

fn modes(folder: &Path) -> Vec<(PathBuf, u32)> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one"));
    let all = entries.flat_map(|entry| {
        if entry.path().is_dir() {
            modes(&entry.path())
        } else {
            vec![(entry.path(), entry.metadata().expect("ours").mode() & 0o777)]
        }
    });
    let own = folder.metadata().expect("ours").mode() & 0o777;
    all.chain([(folder.to_owned(), own)]).collect()
}

/// Returns whether each snapshot other than `of` is encrypted, in order.
fn encrypted_imports(server: &Server, of: &str) -> Vec<bool> {
    let others = server.list("snapshot ls").into_iter().filter(|it| it["snapshot_id"] != of);
    let mut all: Vec<bool> =
        others.map(|other| other["encrypted"].as_bool().expect("a truth value")).collect();
    all.sort_unstable();
    all
}

#[test]
fn an_export_of_an_encrypted_snapshot_is_encrypted() {
    let mut server = Server::start("--store local");
    let key = key_file(&server, "key", "a");
    let other = key_file(&server, "other", "b");
    server.stop();
    server.option(&format!("--key-file {}", key.display()));
    server.restart();
    let volume = server.attached(&format!("{VOLUME} --encrypted"));
    let marks = [vec![0x5a; UNIT as usize], vec![0x3c; UNIT as usize]];
    let mut client = Client::open(server.nbd, &volume).expect("an export");
    for (unit, mark) in (3..).zip(&marks) {
        client.write(unit * UNIT, mark).expect("room");
    }
    client.flush().expect("a device");
    drop(client);
    let id = make(&server, &volume);
    let place = server.folder().join("exports");
    let to = format!("export {id} --to {}", place.display());
    let refused = snapshot(&server, &to).fails_with(2);
    assert!(refused.contains("is encrypted, and its export to"), "{refused}");
    let with = |key: &Path| format!("--key-file {}", key.display());
    snapshot(&server, &format!("{to} {}", with(&key))).ok();
    for (path, mode) in modes(&place) {
        let expected = if path.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(mode, expected, "{}", path.display());
    }
    let mut pack = std::fs::read(&packs(&place)[0]).expect("a pack");
    for mark in &marks {
        assert!(!pack.windows(64).any(|part| part == &mark[..64]), "a unit is readable");
    }
    let shown = format!("verify {id} --in {}", place.display());
    snapshot(&server, &format!("{shown} {}", with(&key))).ok();
    assert!(snapshot(&server, &shown).fails_with(2).contains("and there is no key"));
    let refused = snapshot(&server, &format!("{shown} {}", with(&other))).fails_with(1);
    assert!(refused.contains("wrapped by another key"), "{refused}");
    let words = format!("--from {} {}", place.display(), with(&key));
    let read = imported(&server, &id, &words);
    assert!(read[3..5] == marks.clone().map(Some), "other bytes were imported");
    assert_eq!(encrypted_imports(&server, &id), [true]);
    let keyless = Server::start("--store local");
    let refused = snapshot(&keyless, &format!("import {id} {words}")).fails_with(1);
    assert!(refused.contains("--unencrypted"), "{refused}");
    assert_eq!(encrypted_imports(&keyless, &id), [] as [bool; 0]);
    let plain = format!("{words} --unencrypted");
    let read = imported(&keyless, &id, &plain);
    assert!(read[3..5] == marks.clone().map(Some), "other bytes were imported");
    assert_eq!(encrypted_imports(&keyless, &id), [false]);
    // It is complete, and found again.
    let again = snapshot(&keyless, &format!("import {id} {plain}"));
    assert!(again.stderr.contains("warning: the export of") && again.status.success(), "{again}");
    assert_eq!(encrypted_imports(&keyless, &id), [false]);
    pack[UNIT as usize + 5] ^= 1;
    std::fs::write(&packs(&place)[0], &pack).expect("room");
    let damaged = snapshot(&server, &format!("{shown} {}", with(&key))).fails_with(1);
    assert!(damaged.contains("unit 4 of"), "{damaged}");
    let manifest = place.join("manifests").join(format!("{id}.json"));
    let mut bytes = std::fs::read(&manifest).expect("a manifest");
    bytes[9] ^= 1;
    std::fs::write(&manifest, &bytes).expect("room");
    let changed = snapshot(&server, &format!("{shown} {}", with(&key))).fails_with(1);
    assert!(changed.contains("keyed checksum"), "{changed}");
    let plain = server.folder().join("plain");
    let written = snapshot(&server, &format!("export {id} --plain --to {}", plain.display()));
    assert!(written.stderr.contains("warning: ") && written.status.success(), "{written}");
}

#[test]
fn a_rate_is_kept() {
    let server = Server::start("--store local");
    let volume = server.attached(VOLUME);
    write(&server, &volume, &mut Random::new(5), &(0..41).collect::<Vec<_>>());
    let id = make(&server, &volume);
    let place = server.folder().join("exports");
    // The first unit does not wait, and 40 follow: 20 MiB.
    let clock = Stopwatch::start();
    snapshot(&server, &format!("export {id} --to {} --rate 10 --jobs 4", place.display())).ok();
    assert!(clock.seconds() >= 2.0, "{} s for 20 MiB at 10 MiB/s", clock.seconds());
    let clock = Stopwatch::start();
    snapshot(&server, &format!("verify {id} --in {} --rate 10", place.display())).ok();
    assert!(clock.seconds() >= 1.5, "{} s for 20 MiB at 10 MiB/s", clock.seconds());
}

#[test]
fn a_bucket_is_a_place_as_a_folder_is() {
    let one = Server::start("--store local");
    let other = Server::start("--store local");
    let mut s3 = start(
        Command::new("python3")
            .args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/s3.py")])
            .args(["bucket", "key"])
            .stdin(Stdio::null()),
    );
    let port = s3.wait_for_line("port").trim().rsplit(' ').next().expect("a port").to_owned();
    let call = |server: &Server, words: &str| {
        let mut command = evenkeel(server.folder());
        command.env("EVENKEEL_ENDPOINT", &server.endpoint);
        command.env("EVENKEEL_DATA_DIR", server.data_dir());
        command.env("S3_ACCESS_KEY_ID", "key").env("S3_SECRET_ACCESS_KEY", "secret");
        command.arg("snapshot").args(words.split_whitespace());
        run(command.args(["--s3-endpoint", &format!("http://127.0.0.1:{port}")]))
    };
    let mut random = Random::new(6);
    let volume = one.attached(VOLUME);
    write(&one, &volume, &mut random, &(0..70).collect::<Vec<_>>());
    let first = make(&one, &volume);
    write(&one, &volume, &mut random, &[1, 2_047]);
    let second = make(&one, &volume);
    call(&one, &format!("export {first} --to s3://bucket/some/prefix")).ok();
    let words = format!("export {second} --to s3://bucket/some/prefix --parent {first} -o json");
    let less = json(call(&one, &words), "export");
    assert_eq!((&less["units"], &less["bytes_written"]), (&71.into(), &(2 * UNIT).into()));
    let listed = call(&other, "exports --in s3://bucket/some/prefix").ok();
    assert!(listed.contains(&first) && listed.contains(&second), "{listed}");
    let words = format!("import {second} --from s3://bucket/some/prefix -o json");
    let done = json(call(&other, &words), "import");
    let id = done["snapshot"].as_str().expect("an id");
    let clone = other.attached(&format!("{VOLUME} --snapshot {id}"));
    assert!(all_bytes(&other, &clone) == all_bytes(&one, &volume));
    call(&one, &format!("unexport {first} --in s3://bucket/some/prefix")).ok();
    call(&one, &format!("verify {second} --in s3://bucket/some/prefix")).ok();
    let absent = call(&one, &format!("verify {first} --in s3://bucket/some/prefix"));
    assert_eq!(absent.status.code(), Some(3), "{absent}");
    let denied = snapshot(&one, "exports --in s3://bucket/some/prefix");
    assert_eq!(denied.status.code(), Some(2), "{denied}");
    assert!(denied.stderr.contains("S3_ACCESS_KEY_ID"), "{denied}");
}
