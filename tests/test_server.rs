//! A server for tests: its clock and its faults, with boto3, the fixture of the Python package and
//! qemu-io.

mod support;

use support::bench::json;
use support::process::run;
use support::server::{SERVE, Server, evenkeel, new_folder};
use support::tools::{absent, in_venv};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs one check of tests/python/test_server.py, which starts servers with these flags.
fn check(name: &str, flags: &str) {
    let python = in_venv("python");
    if absent(&[&python, "qemu-io"]) {
        return;
    }
    let (folder, _) = new_folder();
    let mut command = support::server::without_settings(std::process::Command::new(python));
    command.args(["-B", &format!("{ROOT}/tests/python/test_server.py"), name]);
    command.args(flags.split_whitespace()).current_dir(folder.path());
    command.env("EVENKEEL_PROGRAM", env!("CARGO_BIN_EXE_evenkeel"));
    command.env("PYTHONPATH", format!("{ROOT}/packaging/python/src"));
    run(&mut command).ok();
}

#[test]
fn six_hours_pass_in_a_moment() {
    check("clock", "--modify-policy aws-classic-6h --recycle-bin-days 2");
}

#[test]
fn clients_meet_the_faults_that_were_started() {
    check("faults", "");
}

#[test]
fn settings_of_the_account_are_reset() {
    check("settings", "");
}

#[test]
fn experiments_of_fis_pause_volumes_and_make_them_slow() {
    check("fis", "");
}

#[test]
fn calls_of_fis_need_the_rights_of_its_reference_and_have_records() {
    check("fis_rights", "");
}

#[test]
fn volumes_feel_like_those_of_ebs() {
    check("feel", "--feel ebs --feel-seed 7");
}

#[test]
fn the_clock_of_the_data_folder_continues_and_a_usual_server_refuses_it() {
    let mut server = Server::start("--store memory --test-server");
    let time = |server: &Server| {
        let shown = json(&server.evenkeel("clock show -o json"));
        shown["clocks"][0]["time"].as_str().expect("a time").to_owned()
    };
    server.evenkeel("clock freeze").ok();
    server.evenkeel("clock advance 3d").ok();
    let frozen = time(&server);
    assert_eq!(time(&server), frozen);
    server.kill_9();
    server.restart();
    assert_eq!(time(&server), frozen);
    let back = server.evenkeel("clock set 2001-02-03T04:05:06Z").fails_with(2);
    assert!(back.contains("is before that"), "{back}");
    server.stop();
    let mut usual = evenkeel(server.folder());
    usual.args(SERVE.split(' ')).args(["--store", "memory", "--data-dir"]);
    let refused = run(usual.arg(server.data_dir())).fails_with(1);
    assert!(refused.contains("start with --test-server, or use another data folder"), "{refused}");
}

#[test]
fn a_server_for_tests_neither_measures_its_store_nor_reserves_device_time() {
    let server = Server::start(
        "--store local --test-server --calibrate first-start --oversell-space unlimited",
    );
    let record = server.data_dir().join("calibration.json");
    assert!(!record.exists(), "it was measured");
    for _ in 0..3 {
        server.create("--type io2 --size 100 --iops 100000");
    }
}

#[test]
fn a_usual_server_has_no_clock_to_change() {
    let server = Server::start("--store memory");
    let refused = server.evenkeel("clock advance 1h").fails_with(1);
    assert!(refused.contains("Start `evenkeel serve` with --test-server"), "{refused}");
}
