//! The pool on the built server: rot is an error and never data, keys are added and removed, and
//! programs that inspect a pool find its contents.

mod support;

use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use support::PATIENCE;
use support::clock::Deadline;
use support::metrics::Metrics;
use support::nbd::Client;
use support::patterns::{BLOCK, fill, pattern, read};
use support::server::{SERVE, Server, new_folder};

/// `NBD_EIO`.
const EIO: i32 = 5;

fn pool(server: &Server) -> PathBuf {
    server.data_dir().join("pool")
}

/// Returns the blocks of the pool's file that contain these bytes.
fn places_of(pool: &Path, wanted: &[Vec<u8>]) -> Vec<u64> {
    let bytes = std::fs::read(pool).expect("the pool");
    let place = |data: &Vec<u8>| {
        let mut blocks = bytes.chunks(BLOCK).enumerate();
        blocks.find(|(_, block)| block == data).map(|(at, _)| at as u64)
    };
    wanted.iter().map(|data| place(data).expect("it is in the pool")).collect()
}

fn flip(pool: &Path, byte: u64) {
    let file = OpenOptions::new().read(true).write(true).open(pool).expect("the pool");
    let mut one = [0];
    file.read_exact_at(&mut one, byte).expect("a byte");
    file.write_all_at(&[one[0] ^ 0x10], byte).expect("flipped");
    file.sync_all().expect("synced");
}

fn statuses(server: &Server, volume: &str) -> String {
    let described = server.list("volume ls");
    let of_it = described.iter().find(|other| other["volume_id"] == volume).expect("it is listed");
    of_it["state"].as_str().expect("a state").to_owned()
}

#[test]
fn data_changed_on_the_disk_is_an_error_and_never_returned() {
    const BLOCKS: u64 = 40;
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    let other = server.attached("--size 1");
    fill(&server, &volume, 1, BLOCKS);
    fill(&server, &other, 2, BLOCKS);
    let wanted: Vec<_> = (0..BLOCKS).map(|block| pattern(1, block)).collect();
    let places = places_of(&pool(&server), &wanted);
    // While the server runs, a byte of every fourth block is changed, at another position of each.
    let is_rotten = |block: u64| block.is_multiple_of(4);
    for (block, place) in (0..).zip(&places).filter(|(block, _)| is_rotten(*block)) {
        flip(&pool(&server), place * BLOCK as u64 + block * 101);
    }
    for round in 0..2 {
        let mut client = Client::open(server.nbd, &volume).expect("attached");
        for block in 0..BLOCKS {
            if is_rotten(block) {
                assert_eq!(read(&mut client, block), Err(Some(EIO)), "block {block}")
            } else {
                assert_eq!(read(&mut client, block), Ok(pattern(1, block)))
            }
        }
        let mut client = Client::open(server.nbd, &other).expect("attached");
        for block in 0..BLOCKS {
            assert_eq!(read(&mut client, block), Ok(pattern(2, block)));
        }
        let metrics = Metrics::of(&server);
        assert_eq!(metrics.sum("io_errors_total", &[&volume, "rotten"]), BLOCKS as f64 / 4.0);
        assert_eq!(metrics.sum("io_errors_total", &[&other, "rotten"]), 0.0);
        if round == 0 {
            let logged = server.stop();
            assert!(logged.contains(&volume), "{logged}");
            server.restart();
        }
    }
    server.stop();
    let found = server.evenkeel("store check --data").fails_with(1);
    assert_eq!(found.matches("problem: ").count() as u64, BLOCKS / 4, "{found}");
    assert!(found.contains(&volume) && !found.contains(&other), "{found}");
    // Newly written blocks are good.
    server.restart();
    fill(&server, &volume, 3, BLOCKS);
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    for block in 0..BLOCKS {
        assert_eq!(read(&mut client, block), Ok(pattern(3, block)));
    }
    drop(client);
    server.stop();
    let found = server.evenkeel("store check --data").ok();
    assert!(found.contains("no problems"), "{found}");
}

/// A scrub finds rot that no client has read, and continues after a restart. Once the block is
/// written again, a scrub succeeds.
#[test]
fn scrub_finds_data_changed_on_the_disk_before_a_client_reads_it() {
    const BLOCKS: u64 = 3_000;
    let mut server = Server::start("");
    let none = server.evenkeel("store scrub --status").fails_with(3);
    assert!(none.contains("no scrub yet"), "{none}");
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, BLOCKS);
    let clean = server.evenkeel("store scrub --wait --rate 1000").ok();
    assert!(clean.contains("completed") && clean.contains("0 places"), "{clean}");
    let place = places_of(&pool(&server), &[pattern(1, 2_900)])[0];
    flip(&pool(&server), place * BLOCK as u64 + 5);
    // So slow that it is still running when the server stops.
    server.evenkeel("store scrub --rate 1").ok();
    let logged = server.stop();
    assert!(!logged.contains("not as it was written"), "{logged}");
    server.restart();
    let found = server.evenkeel("store scrub --wait --rate 1000").fails_with(1);
    let text = format!("{volume} at byte {}", 2_900 * 7 * BLOCK);
    assert!(found.contains(&text) && found.contains("1 places"), "{found}");
    let status = server.evenkeel("store scrub --status -o json").fails_with(1);
    assert!(status.contains("evenkeel.scrub/1") && status.contains("rotten"), "{status}");
    let metrics = Metrics::of(&server);
    assert_eq!(metrics.single("scrub_rotten_places"), 1.0);
    assert_eq!(metrics.single("scrub_running"), 0.0);
    assert!(metrics.sum("background_bytes_total", &["verify"]) > 0.0);
    let doctor = server.evenkeel("doctor").fails_with(1);
    assert!(doctor.contains(&format!("1 damaged places, the first is of {text}")), "{doctor}");
    fill(&server, &volume, 2, BLOCKS);
    let clean = server.evenkeel("store scrub --wait --rate 1000").ok();
    assert!(clean.contains("completed") && clean.contains("0 places"), "{clean}");
    let refused = server.evenkeel("store scrub --rate 0").fails_with(2);
    assert!(refused.contains("1..=100000"), "{refused}");
}

#[test]
fn a_server_starts_on_its_own_pool_only() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, 4);
    server.stop();
    let serve = SERVE;
    let aside = server.folder().join("aside");
    std::fs::rename(pool(&server), &aside).expect("moved");
    let refused = server.evenkeel(serve).fails_with(1);
    assert!(refused.contains("is missing") && refused.contains("--pool"), "{refused}");
    assert!(!pool(&server).exists(), "a pool was made up for");
    File::create(pool(&server)).and_then(|file| file.set_len(1 << 30)).expect("zeroes");
    let refused = server.evenkeel(serve).fails_with(1);
    assert!(refused.contains("is empty"), "{refused}");
    std::fs::remove_file(pool(&server)).expect("removed");
    // The new path is remembered.
    server.option(&format!("--pool {}", aside.display()));
    server.restart();
    server.stop();
    server.restart();
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    assert_eq!(read(&mut client, 3), Ok(pattern(1, 3)));
}

#[test]
fn volumes_are_encrypted_while_there_is_a_key() {
    let mut server = Server::start("");
    let plain = server.attached("--size 1");
    fill(&server, &plain, 1, 10);
    server.stop();
    let key = server.folder().join("key");
    std::fs::write(&key, "5a".repeat(32)).expect("a key");
    let restart = SERVE;
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).expect("open to all");
    let refused = server.evenkeel(&format!("{restart} --key-file {}", key.display())).fails_with(1);
    assert!(refused.contains("chmod 600"), "{refused}");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("ours alone");

    server.option(&format!("--key-file {}", key.display()));
    server.restart();
    let secret = server.attached("--size 1");
    fill(&server, &secret, 2, 10);
    let mut client = Client::open(server.nbd, &secret).expect("attached");
    assert_eq!(read(&mut client, 9), Ok(pattern(2, 9)));
    drop(client);
    let shown = server.list("store inspect");
    let encrypted =
        |id: &str| shown.iter().find(|item| item["id"] == *id).map(|it| &it["encrypted"]);
    assert_eq!(encrypted(&plain), Some(&Value::Bool(false)));
    assert_eq!(encrypted(&secret), Some(&Value::Bool(true)));
    server.stop();
    let bytes = std::fs::read(pool(&server)).expect("the pool");
    let is_there = |data: &[u8]| bytes.chunks(BLOCK).any(|block| block == data);
    assert!(is_there(&pattern(1, 5)) && !is_there(&pattern(2, 5)));

    // With another key the volume cannot be opened; the unencrypted one is served.
    std::fs::write(&key, "5b".repeat(32)).expect("another key");
    server.restart();
    assert_eq!(statuses(&server, &secret), "error");
    let mut client = Client::open(server.nbd, &plain).expect("attached");
    assert_eq!(read(&mut client, 9), Ok(pattern(1, 9)));
    drop(client);
    server.stop();
    std::fs::write(&key, "5a".repeat(32)).expect("the key");
    server.restart();
    Deadline::after(PATIENCE).ask("the volume", || statuses(&server, &secret) == "in-use");
    let mut client = Client::open(server.nbd, &secret).expect("attached");
    assert_eq!(read(&mut client, 9), Ok(pattern(2, 9)));
}

/// A pool is served by one server, even if another one is started with another folder. An
/// overwritten pool is not called empty.
#[test]
fn pool_held_by_a_server_is_refused_to_others() {
    let (folder, data_dir) = new_folder();
    let pool = folder.path().join("disk");
    File::create(&pool).expect("a file");
    let copy = folder.path().join("copy");
    let options = format!("--pool {}", pool.display());
    let mut server = Server::start_in(folder, data_dir, &options);
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, 10);
    std::fs::create_dir(&copy).expect("a folder");
    for name in ["EVENKEEL", "POOL", "control.db", "credentials"] {
        std::fs::copy(server.data_dir().join(name), copy.join(name)).expect("copied");
    }
    let copy = format!("--data-dir {}", copy.display());
    let fresh = format!("--data-dir {}", server.folder().join("fresh").display());
    let held = format!("{} is held by another program", pool.display());
    // Each waits some seconds first.
    for verb in [format!("{SERVE} {copy}"), format!("store init {fresh} {options} --force")] {
        let refused = server.evenkeel(&verb).fails_with(1);
        assert!(refused.contains(&held), "{verb}: {refused}");
    }
    // Inspecting it is harmless.
    let shown = server.evenkeel(&format!("store inspect {copy}")).ok();
    assert!(shown.contains(&volume), "{shown}");
    server.stop();
    let of_other = server.evenkeel(&format!("{SERVE} {fresh} {options}")).fails_with(1);
    assert!(of_other.contains("holds the pool of another data folder"), "{of_other}");
    let file = OpenOptions::new().write(true).open(&pool).expect("the pool");
    file.write_all_at(&[0; 2 * BLOCK], 0).expect("written");
    for verb in [
        SERVE.to_owned(),
        "store check".to_owned(),
        format!("store init {fresh} {options}"),
        format!("{SERVE} {fresh} {options}"),
    ] {
        let refused = server.evenkeel(&verb).fails_with(1);
        assert!(refused.contains("both copies of its superblock are gone"), "{verb}: {refused}");
    }
    let made = server.evenkeel(&format!("store init {fresh} {options} --force")).ok();
    assert!(made.contains("a pool with room for"), "{made}");
}

/// A check reports a lost copy, and faults that a server would refuse.
#[test]
fn check_finds_every_fault_that_a_server_would_refuse() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, 10);
    server.stop();
    let pool = pool(&server);
    let found = server.evenkeel("store check --data").ok();
    assert!(found.contains("no problems"), "{found}");
    // The second copy of the superblock, and an unused sector of the table of volumes.
    for byte in [BLOCK as u64 + 60, (1 << 20) + 9 * 512 + 100] {
        flip(&pool, byte);
        let found = server.evenkeel("store check").fails_with(1);
        assert!(found.contains("problem: one copy of "), "{found}");
        server.restart();
        let logged = server.stop();
        assert!(logged.contains("are written anew from the other copy"), "{logged}");
        server.evenkeel("store check --data").ok();
    }
    let old = std::fs::read(&pool).expect("the pool");
    server.restart();
    server.stop();
    std::fs::write(&pool, &old).expect("written");
    let found = server.evenkeel("store check").fails_with(1);
    assert!(found.contains("is an older copy of this folder's pool"), "{found}");
    let file = OpenOptions::new().write(true).open(&pool).expect("the pool");
    file.set_len(old.len() as u64 - (1 << 20)).expect("cut");
    let found = server.evenkeel("store check").fails_with(1);
    assert!(found.contains("and the pool needs "), "{found}");
}

/// Both an opening and a scrub count, and the next step is named.
#[test]
fn a_copy_that_was_mended_is_an_event_a_metric_and_a_check_of_doctor() {
    const SECOND_SUPERBLOCK: u64 = BLOCK as u64 + 60;
    let mut server = Server::start("");
    let pool_check = |server: &Server| {
        let doctor = server.evenkeel(&format!("doctor -o json --listen {}", server.api)).stdout;
        let doctor: Value = serde_json::from_str(&doctor).expect("JSON");
        let checks = doctor["checks"].as_array().expect("checks");
        checks.iter().find(|check| check["what"] == "pool").expect("the pool's check").clone()
    };
    assert_eq!(pool_check(&server)["verdict"], "ok");
    server.stop();
    flip(&pool(&server), SECOND_SUPERBLOCK);
    server.restart();
    assert_eq!(Metrics::of(&server).single("store_copies_mended_total"), 1.0);
    let check = pool_check(&server);
    assert_eq!(check["verdict"], "warn", "{check}");
    assert!(check["found"].as_str().is_some_and(|found| found.starts_with("1 damaged")), "{check}");
    assert!(check["advice"].as_str().is_some_and(|it| it.contains("store scrub")), "{check}");
    Deadline::after(PATIENCE).ask("an event", || {
        let events = server.evenkeel("events -o json --type storeCopiesMended").ok();
        events.lines().count() == 1 && events.contains("\"copies\":1")
    });
    flip(&pool(&server), SECOND_SUPERBLOCK);
    server.evenkeel("store scrub --wait --rate 1000").fails_with(1);
    assert_eq!(Metrics::of(&server).single("store_copies_mended_total"), 2.0);
}

/// A volume with a damaged log block is in error. Salvage serves it without the changes in that
/// block.
#[test]
fn a_volume_whose_log_is_damaged_is_served_after_salvage() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    fill(&server, &volume, 1, 10);
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    let mut write = |value: u64| {
        client.write(0, &pattern(value, 0)).expect("written");
        client.flush().expect("flushed");
    };
    write(2);
    let before = std::fs::read(pool(&server)).expect("the pool");
    write(3);
    let after = std::fs::read(pool(&server)).expect("the pool");
    (4..8).for_each(&mut write);
    server.kill_9();
    // The write has changed the block with its data, and that of the log.
    let blocks = after.chunks(BLOCK).zip(before.chunks(BLOCK)).enumerate();
    let changed = blocks.filter(|(_, (new, old))| new != old && **new != pattern(3, 0));
    let changed: Vec<u64> = changed.map(|(at, _)| at as u64).collect();
    let [log] = changed[..] else { panic!("{changed:?}") };
    flip(&pool(&server), log * BLOCK as u64 + 20);
    server.restart();
    assert_eq!(statuses(&server, &volume), "error");
    let status = &server.list(&format!("volume status {volume}"))[0];
    assert_eq!(status["status"], "impaired", "{status}");
    assert!(status.to_string().contains("EnableVolumeIO"), "{status}");
    assert!(Client::open(server.nbd, &volume).is_err(), "it is not served");
    server.evenkeel(&format!("volume salvage {volume}")).ok();
    assert_eq!(statuses(&server, &volume), "in-use");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    // The last write was in a later block.
    assert_eq!(read(&mut client, 0), Ok(pattern(7, 0)));
    for block in 1..10 {
        assert_eq!(read(&mut client, block), Ok(pattern(1, block)));
    }
    // A volume that is served has nothing to salvage.
    server.evenkeel(&format!("volume salvage {volume}")).ok();
    server.stop();
    let found = server.evenkeel("store check --data").ok();
    assert!(found.contains("no problems"), "{found}");
}
