//! `evenkeel calibrate` and the first start of a server, from outside.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::PATIENCE;
use support::clock::Deadline;
use support::process::{Output, run, start};
use support::server::Server;

const DEVICE: &str = "faulty:memory,channels=4,read_us=500,write_us=1000";

fn calibrate(target: &Path, flags: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(&name);
        }
    }
    command.arg("calibrate").arg(target).args(flags.split_whitespace()).stdin(Stdio::null());
    command
}

fn quick(target: &Path, flags: &str) -> Output {
    run(&mut calibrate(target, &format!("--quick {flags}")))
}

fn record(data_dir: &Path) -> Value {
    let text = fs::read_to_string(data_dir.join("calibration.json")).expect("a record");
    serde_json::from_str(&text).expect("JSON")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Bounds that only a machine which stands still half of the time could break; what is found of a
/// device that is known is tested in virtual time.
#[test]
fn a_known_device_is_found_and_its_record_is_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let printed = quick(&data_dir, &format!("--store {DEVICE} -o json")).ok();
    let printed: Value = serde_json::from_str(&printed).expect("JSON");
    let record = record(&data_dir);
    assert_eq!(printed, record);
    assert_eq!(record["schema"], "evenkeel.calibration/1");
    assert_eq!(record["store"], DEVICE);
    assert_eq!(record["method"]["plan"], "quick");
    let per_second = |kind: &str| {
        let base_ns = record[kind]["base_ns"].as_f64().unwrap();
        let byte_ns = record[kind]["byte_ps"].as_f64().unwrap() / 1e3;
        record["channels"].as_f64().unwrap() * 1e9 / (base_ns + byte_ns * 16_384.0)
    };
    assert!((800.0..24_000.0).contains(&per_second("read")), "{record}");
    assert!((400.0..12_000.0).contains(&per_second("write")), "{record}");
    let first = &record["curve"][0];
    assert!(first["depth"] == 1 && first["p99_ns"].as_u64() >= Some(500_000), "{record}");

    let options = format!("--store {DEVICE} --calibrate first-start");
    let mut server = Server::start_in(folder, data_dir.clone(), &options);
    assert_eq!(server.list("volume ls").len(), 0);
    assert_eq!(self::record(&data_dir), record, "it was measured anew");
    let told = server.evenkeel("volume capacity -o json").ok();
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let calibration = &told["capacity"]["calibration"];
    assert_eq!(calibration["calibration_id"], record["id"]);
    assert_eq!(calibration["measured"], record["date"]);
    // Ten times what the device could do at best.
    let refused = server.evenkeel("volume create --type io2 --size 300 --iops 240000");
    let refused = refused.fails_with(4);
    assert!(refused.contains("not enough device time left to sell (as calibrated)"), "{refused}");
    let in_use = quick(&data_dir, "").fails_with(1);
    assert!(in_use.contains("is in use by another evenkeel process"), "{in_use}");
    server.stop();
}

#[test]
fn the_first_start_calibrates_and_the_next_does_not() {
    let mut server = Server::start("--store memory --calibrate first-start");
    let first = record(server.data_dir());
    assert_eq!(
        (&first["store"], &first["device"]["filesystem"]),
        (&"memory".into(), &"memory".into())
    );
    assert_eq!(server.list("volume ls").len(), 0);
    server.stop();
    server.restart();
    assert_eq!(record(server.data_dir()), first);
    assert_eq!(server.list("volume ls").len(), 0);
    server.stop();
    // A record that was edited is not believed, and not overwritten either.
    let path = server.data_dir().join("calibration.json");
    let text = fs::read_to_string(&path).unwrap().replace("\"channels\": ", "\"channels\": 1");
    fs::write(&path, &text).unwrap();
    let serve = format!(
        "serve --store memory --listen 127.0.0.1:0 --nbd-listen 127.0.0.1:0 --data-dir {}",
        server.data_dir().display()
    );
    let refused = server.evenkeel(&serve).fails_with(1);
    assert!(refused.contains("changed since it was written"), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn who_does_not_want_it_is_not_calibrated() {
    let server = Server::start("--calibrate never");
    assert!(!names(server.data_dir()).contains(&"calibration.json".to_owned()));
}

#[test]
fn what_holds_something_is_refused_or_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("thesis.tex"), "years of work").unwrap();
    let refused = quick(&path("thesis.tex"), "").fails_with(1);
    assert!(refused.contains("thesis.tex is not empty (13 B)"), "{refused}");
    assert_eq!(fs::read_to_string(path("thesis.tex")).unwrap(), "years of work");

    let shown = quick(folder.path(), "").ok();
    assert!(shown.contains("mixed 16 KiB IOPS at"), "{shown}");
    assert!(shown.contains("no record is kept"), "{shown}");
    assert_eq!(names(folder.path()), ["thesis.tex"]);

    fs::write(path("empty"), "").unwrap();
    quick(&path("empty"), "-o csv").ok();
    assert_eq!(fs::metadata(path("empty")).unwrap().len(), 0);

    let wrong = quick(folder.path(), "--store memory").fails_with(2);
    assert!(wrong.contains("is not a data folder"), "{wrong}");
    let wrong = quick(folder.path(), "--store faulty:local,channels=4").fails_with(2);
    assert!(wrong.contains("read_us is missing"), "{wrong}");
}

/// A calibration of `target` that has begun to use `file`.
fn begun(target: &Path, file: &Path) -> support::process::Running {
    let running = start(&mut calibrate(target, "--store files"));
    let has_begun = || fs::metadata(file).is_ok_and(|metadata| metadata.len() > 0);
    Deadline::after(PATIENCE).ask("the volume", has_begun);
    running
}

/// The file of the volume that is measured with, in a data folder.
fn volume(data_dir: &Path) -> PathBuf {
    data_dir.join("volumes/vol-0ca11b7a7e0000001.raw")
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    let scratch = folder.path().join("evenkeel-calibration");
    let running = begun(folder.path(), &volume(&scratch));
    running.signal(Signal::INT);
    let said = running.finish().fails_with(130);
    assert!(said.ends_with("interrupted\n"), "{said}");
    assert_eq!(names(folder.path()), ["thesis.tex"]);
}

#[test]
fn what_a_killed_one_left_is_removed_by_the_next_and_by_a_server() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    let scratch = folder.path().join("evenkeel-calibration");
    begun(folder.path(), &volume(&scratch)).kill_9();
    assert!(volume(&scratch).exists());
    quick(folder.path(), "--store files").ok();
    assert_eq!(names(folder.path()), ["thesis.tex"]);

    let empty = folder.path().join("empty");
    fs::write(&empty, "").unwrap();
    begun(&empty, &empty).kill_9();
    assert!(fs::metadata(&empty).unwrap().len() > 0);
    quick(&empty, "").ok();
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);

    let data_dir = folder.path().join("data");
    begun(&data_dir, &volume(&data_dir)).kill_9();
    let server = Server::start_in(folder, data_dir.clone(), "--store files");
    assert!(!volume(&data_dir).exists());
    assert_eq!(server.list("volume ls").len(), 0);
}
