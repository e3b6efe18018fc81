//! Volumes whose stored bytes have changed: missing ones, additional ones, and those that the
//! database has lost. Missing bytes are never replaced by zeroes.

mod support;

use serde_json::Value;
use std::path::PathBuf;
use support::PATIENCE;
use support::clock::Deadline;
use support::metrics::Metrics;
use support::nbd::Client;
use support::server::Server;

const GIB: u64 = 1 << 30;

fn mark(server: &Server, volume: &str, byte: u8) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    client.write(8_192, &[byte; 4_096]).expect("written");
    client.flush().expect("flushed");
}

fn check_mark(server: &Server, volume: &str, byte: u8) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    assert_eq!(client.read(8_192, 4_096).expect("read"), [byte; 4_096]);
}

fn described(server: &Server, volume: &str) -> Value {
    let volumes = server.list("volume ls");
    let of_it = |other: &&Value| other["volume_id"] == volume;
    volumes.iter().find(of_it).unwrap_or_else(|| panic!("{volume} is gone")).clone()
}

fn state(server: &Server, volume: &str) -> String {
    described(server, volume)["state"].as_str().expect("a state").to_owned()
}

/// Returns the files of the control plane's database with their contents.
fn database(server: &Server) -> Vec<(PathBuf, Vec<u8>)> {
    let paths =
        ["db", "db-wal", "db-shm"].map(|end| server.data_dir().join(format!("control.{end}")));
    let present = paths.into_iter().filter(|path| path.exists());
    present.map(|path| (path.clone(), std::fs::read(path).expect("read"))).collect()
}

fn remove_database(server: &Server) {
    for (path, _) in database(server) {
        std::fs::remove_file(path).expect("removed");
    }
}

/// The pool is newer than the database that the server finds: one volume is missing in it, and
/// another one is larger.
#[test]
fn bytes_that_are_missing_are_an_error_and_never_zeroes() {
    let mut server = Server::start("");
    let volumes: Vec<String> = (0..3).map(|_| server.attached("--size 1")).collect();
    let [missing, longer, well] = [0, 1, 2].map(|number| &volumes[number]);
    for (volume, byte) in volumes.iter().zip(1..) {
        mark(&server, volume, byte);
    }
    server.stop();
    let older = database(&server);
    server.restart();
    server.evenkeel(&format!("volume modify {longer} --size 2")).ok();
    server.evenkeel(&format!("volume detach {missing} --wait")).ok();
    server.evenkeel(&format!("volume rm {missing}")).ok();
    server.stop();
    remove_database(&server);
    for (path, bytes) in &older {
        std::fs::write(path, bytes).expect("put back");
    }
    server.restart();
    check_mark(&server, well, 3);
    for (volume, says) in [
        (missing, "are missing: they are not in "),
        (longer, "has 1 GiB, but the store holds 2 GiB of it"),
    ] {
        assert_eq!(state(&server, volume), "error");
        assert!(Client::open(server.nbd, volume).is_err(), "{volume} is served");
        let described = described(&server, volume);
        let reason = described["error_reason"].as_str().expect("a reason");
        assert!(reason.contains(says) && reason.contains(volume.as_str()), "{reason}");
        let shown = server.evenkeel(&format!("volume show {volume}")).ok();
        assert!(shown.contains(reason), "{shown}");
        server.evenkeel(&format!("volume modify {volume} --size 3")).fails_with(1);
    }
    let reason = described(&server, longer)["error_reason"].to_string();
    assert!(reason.contains("`volume adopt` keeps the data"), "{reason}");
    // The server of the data folder is found, whatever address it listens on.
    for doctor in ["doctor".to_owned(), format!("doctor --listen {}", server.api)] {
        let text = server.evenkeel(&doctor).fails_with(1);
        assert!(text.contains("is in error: ") && text.contains("1 more in error"), "{text}");
    }
    let held = server.evenkeel("store inspect").ok();
    assert!(!held.contains(missing.as_str()), "it was made anew: {held}");
    // A volume whose bytes stay missing can be deleted.
    server.evenkeel(&format!("volume detach {missing} --wait")).ok();
    server.evenkeel(&format!("volume rm {missing}")).ok();
    assert_eq!(server.list("volume ls").len(), 2);
    // The way that the error of the longer volume names.
    server.stop();
    remove_database(&server);
    server.restart();
    assert_eq!(server.list("volume unowned").len(), 2);
    server.evenkeel(&format!("volume adopt {longer} --type gp3")).ok();
    server.evenkeel(&format!("volume attach {longer} --wait")).ok();
    check_mark(&server, longer, 2);
    assert_eq!(described(&server, longer)["size_gib"], 2);
}

#[test]
fn a_volume_grows_only_by_a_modification() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    mark(&server, &volume, 1);
    server.evenkeel(&format!("volume modify {volume} --size 2")).ok();
    server.kill_9();
    server.restart();
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    assert_eq!(client.read(2 * GIB - 512, 512).expect("read"), [0; 512]);
    drop(client);
    check_mark(&server, &volume, 1);
}

#[test]
fn bytes_that_no_volume_has_are_listed_adopted_and_removed() {
    let mut server = Server::start("");
    let kept = server.attached("--type gp2 --size 1");
    let removed = server.attached("--size 1");
    mark(&server, &kept, 7);
    server.stop();
    remove_database(&server);
    server.restart();
    assert!(server.list("volume ls").is_empty());
    let unowned = server.list("volume unowned");
    let mut ids: Vec<&str> = unowned.iter().filter_map(|item| item["volume_id"].as_str()).collect();
    ids.sort_unstable();
    let mut expected = [kept.as_str(), &removed];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    let text = server.evenkeel(&format!("doctor --listen {}", server.api)).stdout;
    assert!(text.contains("of 2 volumes that are not known"), "{text}");
    server.evenkeel(&format!("volume adopt {kept} --type gp2")).ok();
    server.evenkeel(&format!("volume attach {kept} --wait")).ok();
    check_mark(&server, &kept, 7);
    assert!(server.credits(&kept) < 100 * 2 * PATIENCE.as_secs(), "credits were given");
    // Bytes of a known volume cannot be removed as unowned, but those without a volume can.
    server.evenkeel(&format!("volume rm --unowned {kept}")).fails_with(3);
    server.evenkeel(&format!("volume adopt {kept} --type gp2")).fails_with(3);
    server.evenkeel(&format!("volume rm --unowned {removed}")).ok();
    assert!(server.list("volume unowned").is_empty());
    let held = server.evenkeel("store inspect").ok();
    assert!(!held.contains(removed.as_str()), "{held}");
    check_mark(&server, &kept, 7);
}

#[test]
fn a_folder_is_served_only_by_the_store_that_holds_its_volumes() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    mark(&server, &volume, 3);
    server.stop();
    let serve = "serve --listen 127.0.0.1:0 --nbd-listen 127.0.0.1:0 --calibrate never";
    let refused = server.evenkeel(&format!("{serve} --store memory")).fails_with(1);
    assert!(refused.contains("serve with --store local"), "{refused}");
    server.restart();
    check_mark(&server, &volume, 3);
    // The contents of memory are lost, and the volume's error says so.
    let mut server = Server::start("--store memory");
    let volume = server.attached("--size 1");
    server.stop();
    server.restart();
    let described = described(&server, &volume);
    assert_eq!(described["state"], "error");
    let reason = described["error_reason"].as_str().expect("a reason");
    assert!(reason.contains("were in memory and are lost"), "{reason}");
}

/// `NBD_EIO`.
const EIO: i32 = 5;

#[test]
fn a_failed_flush_is_remembered_until_the_volume_is_attached_anew() {
    let server = Server::start("--store faulty:memory,channels=4,read_us=10,fail_flush=2");
    let volume = server.attached("--size 1");
    let other = server.attached("--size 1");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    let mut second = Client::open(server.nbd, &volume).expect("attached");
    client.write(0, &[1; 4_096]).expect("written");
    client.flush().expect("the first flush");
    client.write(0, &[2; 4_096]).expect("written");
    let error = |result: std::io::Result<()>| result.expect_err("it fails").raw_os_error();
    assert_eq!(error(client.flush()), Some(EIO));
    // The device accepts later flushes, but the writes before the failed one are lost all the same.
    let mut third = Client::open(server.nbd, &volume).expect("attached");
    for client in [&mut client, &mut second, &mut third] {
        assert_eq!(error(client.flush()), Some(EIO));
        assert_eq!(error(client.write(0, &[4; 4_096])), Some(EIO));
        assert_eq!(client.read(0, 4_096).expect("read"), [2; 4_096]);
    }
    let metrics = Metrics::of(&server);
    assert_eq!(metrics.sum("flush_failed", &[&volume]), 1.0);
    assert_eq!(metrics.sum("io_errors_total", &[&volume, "device"]), 7.0);
    assert_eq!(metrics.sum("flush_failed", &[&other]), 0.0);
    // Verbs name the volume, and the next step as soon as the server has noted the failure.
    let shown = format!("volume show {volume}");
    Deadline::after(PATIENCE).ask("the failure in `volume show`", || {
        let words = "impaired: A flush failed. Detach the volume from all instances";
        server.evenkeel(&shown).ok().contains(words)
    });
    let text = server.evenkeel("doctor").fails_with(1);
    assert!(text.contains(&format!("{volume}: impaired: A flush failed. Detach")), "{text}");
    assert!(text.contains("alerts.md#data") && !text.contains(&other), "{text}");
    let listed = server.evenkeel("volume ls").ok();
    assert!(listed.contains(&format!("\nimpaired: {volume}; ")), "{listed}");
    assert!(!server.evenkeel(&format!("volume show {other}")).ok().contains("impaired"));
    Client::open(server.nbd, &other).expect("attached").flush().expect("nothing of it failed");
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume attach {volume} --wait")).ok();
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    client.write(0, &[3; 4_096]).expect("written");
    client.flush().expect("it begins anew");
    assert_eq!(Metrics::of(&server).sum("flush_failed", &[&volume]), 0.0);
    let text = server.evenkeel("doctor").ok();
    assert!(text.contains("2, none in error or impaired"), "{text}");
    assert!(!server.evenkeel("volume ls").ok().contains("impaired"));
}

/// Each process counts the device's flushes from the start, so the first flush after a start would
/// succeed if the failure was forgotten.
#[test]
fn a_failed_flush_is_remembered_by_the_next_process() {
    let mut server = Server::start("--store faulty:local,channels=4,read_us=10,fail_flush=2");
    let volume = server.attached("--size 1");
    let other = server.attached("--size 1");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    client.write(0, &[1; 4_096]).expect("written");
    client.flush().expect("the first flush");
    let error = |result: std::io::Result<()>| result.expect_err("it fails").raw_os_error();
    assert_eq!(error(client.flush()), Some(EIO));
    drop(client);
    let mark = server.data_dir().join("failed-flushes").join(&volume);
    Deadline::after(PATIENCE).ask("the mark", || mark.exists());
    server.kill_9();
    for is_killed in [false, true] {
        server.restart();
        let mut client = Client::open(server.nbd, &volume).expect("attached");
        assert_eq!(error(client.flush()), Some(EIO), "{is_killed}");
        assert_eq!(error(client.write(0, &[2; 4_096])), Some(EIO));
        assert_eq!(client.read(0, 4_096).expect("read"), [1; 4_096]);
        assert_eq!(Metrics::of(&server).sum("flush_failed", &[&volume]), 1.0);
        Client::open(server.nbd, &other).expect("attached").flush().expect("none failed");
        drop(client);
        if is_killed {
            server.kill_9();
        } else {
            server.stop();
        }
    }
    server.restart();
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume attach {volume} --wait")).ok();
    assert!(!mark.exists());
    Client::open(server.nbd, &volume).expect("attached").flush().expect("it begins anew");
    server.kill_9();
    server.restart();
    Client::open(server.nbd, &volume).expect("attached").flush().expect("it has begun anew");
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    assert_eq!(error(client.flush()), Some(EIO));
    Deadline::after(PATIENCE).ask("the mark", || mark.exists());
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume rm {volume}")).ok();
    assert!(!mark.exists(), "the volume is gone");
}
