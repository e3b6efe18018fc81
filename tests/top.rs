//! `evenkeel top` on a real server: samples for scripts, and the screen on a real terminal.

mod support;

use serde_json::Value;
use std::process::{Command, Stdio};
use support::PATIENCE;
use support::clock::Deadline;
use support::nbd::Client;
use support::process::run;
use support::server::{FAST, Server};
use support::tools::absent;

/// Reads from a volume while `meanwhile` runs; returns its result.
fn reading<T>(server: &Server, volume: &str, meanwhile: impl FnOnce() -> T) -> T {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                client.read(0, 4_096).expect("read");
            }
        });
        let result = meanwhile();
        drop(stop);
        result
    })
}

#[test]
fn sample_shows_the_load_of_a_client() {
    // A device with a delay, since the times of memory would be rounded to zero.
    let server = Server::start("--store faulty:memory,channels=4,read_us=200");
    let busy = server.attached("--type io2 --size 10 --iops 200");
    let idle = server.attached("--type gp2 --size 100");
    let mut rows = vec![];
    let mut csv = String::new();
    let text = reading(&server, &busy, || {
        // A second in which this machine stood still has no I/O, and no rate.
        Deadline::after(PATIENCE).ask("a sample of a busy volume", || {
            rows = server.list("top --sort volume");
            csv = server.evenkeel("top --once --rows 1 -o csv").ok();
            let is_busy = |row: &Value| row["volume_id"] == *busy && row["device_share"] == 1.0;
            rows.iter().any(is_busy) && csv.lines().nth(1).is_some_and(|row| row.starts_with(&busy))
        });
        server.evenkeel("top --once").ok()
    });
    assert_eq!(rows.len(), 2);
    let row = |id: &str| rows.iter().find(|row| row["volume_id"] == id).expect("its row");
    let rate = |field: &str| row(&busy)[field].as_f64().unwrap_or_else(|| panic!("{rows:?}"));
    assert!(rate("iops") > 0.0, "{rows:?}");
    assert_eq!(row(&busy)["iops_limit"], 200);
    assert_eq!((rate("reads_per_second") > 0.0, rate("writes_per_second")), (true, 0.0));
    assert!(rate("p99_us") >= rate("p50_us") && rate("p50_us") > 0.0, "{rows:?}");
    let shares = row(&busy)["time_shares"].as_object().expect("shares");
    let sum: f64 = shares.values().filter_map(Value::as_f64).sum();
    assert!((sum - 1.0).abs() < 0.01, "{shares:?}");
    assert_eq!((&row(&idle)["iops"], &row(&idle)["credit_ratio"]), (&0.0.into(), &1.0.into()));
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(text.starts_with("VOLUME ") && text.contains(&idle), "{text}");
}

#[test]
fn a_sample_of_no_volume_says_how_to_make_one() {
    let server = Server::start("--store memory");
    assert_eq!(server.evenkeel("top --once").ok().lines().count(), 1);
    let volume = server.attached(FAST);
    let answer = server.list("top");
    assert_eq!(answer.len(), 1);
    assert_eq!(answer[0]["volume_id"], volume.as_str());
}

#[test]
fn top_without_a_server_or_an_interval_is_an_error_that_says_so() {
    let mut server = Server::start("--store memory");
    let text = server.evenkeel("top --interval 0s").fails_with(2);
    assert!(text.contains("expected at least 1s"), "{text}");
    server.stop();
    let text = server.evenkeel("top").fails_with(1);
    assert!(text.contains("hint: start one with `evenkeel serve`"), "{text}");
}

/// Runs one check of tests/python/terminal.py, which simulates the terminal.
fn on_a_terminal(check: &str) {
    if absent(&["python3"]) {
        return;
    }
    let server = Server::start("--store memory");
    let volume = server.attached(FAST);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/terminal.py");
    let mut command = Command::new("python3");
    command.args(["-B", script, check, &volume, env!("CARGO_BIN_EXE_evenkeel"), "top"]);
    command.args(["--endpoint", &server.endpoint, "--data-dir"]).arg(server.data_dir());
    // For the check in which the server ends.
    command.env("SERVER_PID", server.pid().to_string()).current_dir(server.folder());
    run(command.stdin(Stdio::null())).ok();
}

#[test]
fn the_screen_is_drawn_and_the_terminal_given_back() {
    on_a_terminal("quit");
}

#[test]
fn ctrl_c_gives_the_terminal_back() {
    on_a_terminal("interrupt");
}

#[test]
fn sigterm_gives_the_terminal_back() {
    on_a_terminal("terminate");
}

#[test]
fn lost_server_is_reported_and_waited_for() {
    on_a_terminal("away");
}
