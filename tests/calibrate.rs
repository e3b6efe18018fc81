//! `evenkeel calibrate` and the first start of a server, through the command line.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use support::PATIENCE;
use support::ceph::Cluster;
use support::clock::Deadline;
use support::cluster::ground;
use support::process::{Output, run, start};
use support::server::{Server, evenkeel, new_folder};

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

/// Bounds that a machine breaks only if it stands still for half of the time. Results for a known
/// device are tested in virtual time.
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
    let text = server.evenkeel("volume capacity -o json").ok();
    let told: Value = serde_json::from_str(&text).expect("JSON");
    let calibration = &told["capacity"]["calibration"];
    assert_eq!(calibration["calibration_id"], record["id"]);
    assert_eq!(calibration["measured"], record["date"]);
    // Ten times the device's maximum.
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
    // An edited record is neither used nor overwritten.
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
fn calibrate_never_makes_no_calibration() {
    let server = Server::start("--calibrate never");
    assert!(!names(server.data_dir()).contains(&"calibration.json".to_owned()));
}

#[test]
fn calibration_refuses_or_keeps_existing_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("thesis.tex"), "years of work").unwrap();
    let refused = quick(&path("thesis.tex"), "").fails_with(1);
    assert!(refused.contains("thesis.tex is not a folder"), "{refused}");
    assert_eq!(fs::read_to_string(path("thesis.tex")).unwrap(), "years of work");

    let shown = quick(folder.path(), "").ok();
    assert!(shown.contains("mixed 16 KiB IOPS at"), "{shown}");
    assert!(shown.contains("no record is kept"), "{shown}");
    assert_eq!(names(folder.path()), ["thesis.tex"]);

    let wrong = quick(folder.path(), "--store memory").fails_with(2);
    assert!(wrong.contains("is not a data folder"), "{wrong}");
    let wrong = quick(folder.path(), "--store faulty:local,channels=4").fails_with(2);
    assert!(wrong.contains("read_us is missing"), "{wrong}");
}

/// Returns a calibration of `target` that has created its volume in `data_dir`.
fn begun(target: &Path, data_dir: &Path) -> support::process::Running {
    let running = start(&mut calibrate(target, ""));
    Deadline::after(PATIENCE).ask("the volume", || has_volume(data_dir));
    running
}

/// Returns whether a data folder has the volume for measurements.
fn has_volume(data_dir: &Path) -> bool {
    let mut inspect = evenkeel(data_dir.parent().expect("it is in a folder"));
    let found = run(inspect.args(["store", "inspect", "--data-dir"]).arg(data_dir));
    found.stdout.contains("vol-0ca11b7a7e0000001")
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    let scratch = folder.path().join("evenkeel-calibration");
    let running = begun(folder.path(), &scratch);
    running.signal(Signal::INT);
    let said = running.finish().fails_with(130);
    assert!(said.ends_with("interrupted\n"), "{said}");
    assert_eq!(names(folder.path()), ["thesis.tex"]);
}

#[test]
fn killed_calibration_is_cleaned_up_by_the_next_one_and_by_a_server() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    let scratch = folder.path().join("evenkeel-calibration");
    begun(folder.path(), &scratch).kill_9();
    assert!(has_volume(&scratch));
    quick(folder.path(), "-o csv").ok();
    assert_eq!(names(folder.path()), ["thesis.tex"]);

    let data_dir = folder.path().join("data");
    begun(&data_dir, &data_dir).kill_9();
    let server = Server::start_in(folder, data_dir.clone(), "");
    assert!(!has_volume(&data_dir));
    assert_eq!(server.list("volume ls").len(), 0);
}

/// A pool of three devices, each a failure domain, is measured with all of them, without one, and
/// while that one recovers. A server and nodes sell a capacity that all three states have.
#[test]
#[ignore = "full: crates/control/src/model/admission_tests.rs::states_of_a_pool_have_rows stays"]
fn a_pool_is_calibrated_healthy_degraded_and_recovering() {
    let Some((_folder, ceph, etcd)) = ground("--osds 3") else { return };
    let (folder, data_dir) = new_folder();
    let measure = |flags: &str| {
        let store = format!("{} --rbd-namespace calibration {flags}", ceph.store());
        quick(&data_dir, &store)
    };
    let refused = measure("--as degraded").fails_with(1);
    assert!(refused.contains("--as degraded: the pool is healthy"), "{refused}");
    assert!(refused.contains("ceph osd set noout"), "{refused}");
    measure("").ok();
    let healthy = record(&data_dir);
    assert_eq!(healthy["device"]["pool"]["devices"], 3, "{healthy}");
    assert_eq!(healthy["device"]["pool"]["domain"], "osd");

    // Writes without the device keep it busy when it comes back: half a second for each object.
    ceph.ask("osd set noout");
    ceph.ask("config set osd osd_recovery_sleep 0.5");
    ceph.signal_osd(0, "-TERM");
    let states = |word: &str| ceph.ask("status --format json").contains(word);
    assert!(
        Deadline::after(PATIENCE).comes(|| states("active+undersized")),
        "{}",
        ceph.ask("status")
    );
    let refused = measure("").fails_with(1);
    assert!(refused.contains("the pool is degraded: osd.0 with osd.0 lost"), "{refused}");
    let told = measure("--as degraded").ok();
    assert!(told.contains("\ndegraded on 2"), "{told}");
    write_objects(&ceph, 200);
    let _osd = ceph.start_osd(0);
    let recovers = || states("active+recovering");
    assert!(Deadline::after(PATIENCE).comes(recovers), "{}", ceph.ask("status"));
    measure("--as recovering").ok();
    ceph.ask("config rm osd osd_recovery_sleep");
    ceph.ask("osd unset noout");
    let all = record(&data_dir);
    let names: Vec<&Value> =
        all["states"].as_array().unwrap().iter().map(|state| &state["state"]).collect();
    assert_eq!(names, ["degraded", "recovering"]);
    assert_eq!(all["curve"], healthy["curve"], "the base stays");
    ceph.is_well(3);

    // Nodes share the record that the first one brings, and later a newer one.
    let flags = |node| format!("{} --etcd {} --node {node}", ceph.store(), etcd.endpoint());
    let capacity_of = |server: &Server| -> Value {
        let text = server.evenkeel("volume capacity -o json").ok();
        serde_json::from_str::<Value>(&text).expect("JSON")["capacity"].clone()
    };
    let mut first = Server::start_in(folder, data_dir.clone(), &flags("a"));
    let capacity = capacity_of(&first);
    let rows: Vec<&Value> =
        capacity["sold"].as_array().unwrap().iter().map(|it| &it["row"]).collect();
    let has = |row: &str| rows.iter().any(|it| *it == row);
    assert!(has("without its largest failure domain"), "{capacity}");
    assert!(has("while the pool recovers"), "{capacity}");
    let mut second = Server::start(&flags("b"));
    assert_eq!(record(second.data_dir())["id"], all["id"]);
    first.stop();
    second.stop();
    measure("").ok();
    let newer = record(&data_dir);
    assert_ne!(newer["id"], all["id"]);
    assert_eq!(newer["states"], all["states"], "they are kept");
    first.restart();
    second.restart();
    assert_eq!(record(second.data_dir())["id"], newer["id"]);
    assert_eq!(capacity_of(&second)["calibration"]["calibration_id"], newer["id"]);
}

/// Writes this number of objects of 4 MiB to the pool of volumes.
fn write_objects(ceph: &Cluster, objects: u32) {
    let mut command = Command::new("rados");
    command.args(["-c", &ceph.conf, "-p", "evenkeel", "bench", "300", "write", "--no-cleanup"]);
    command.args(["--max-objects", &objects.to_string(), "-t", "4"]);
    run(&mut command).ok();
}
