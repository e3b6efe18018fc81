//! Random calls from several clients, and SIGKILL at a random moment. After the restart answered
//! calls have had their effect, others have it completely or not at all, nothing stays in an
//! intermediate state, and no unowned bytes are left.

mod support;

use std::time::Duration;
use support::process::{run, start};
use support::random::{Random, seed_of};
use support::server::Server;
use support::tools::{absent, in_venv};

/// Least number of answers before the server is killed.
const ANSWERS_MIN: u64 = 10;
/// Maximum number of further answers.
const ANSWERS_MORE: u64 = 60;
/// The longest time from there to the kill, in milliseconds: two or three calls.
const DELAY_MAX_MS: u64 = 40;

fn survives(rounds: u64, test: &str) {
    let python = in_venv("python");
    if absent(&[&python]) {
        return;
    }
    let seed = seed_of(&format!("kills -- {test} --exact --include-ignored"));
    let mut random = Random::new(seed);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/kills.py");
    let mut server = Server::start("--store local --recycle-bin-days 1");
    let mut text = String::new();
    for round in 0..rounds {
        let calls = format!("exec {python} -B {script} ask {}", random.number());
        let mut clients = start(&mut server.shell(&calls));
        for _ in 0..ANSWERS_MIN + random.below(ANSWERS_MORE) {
            clients.wait_for_line("\"did\"");
        }
        std::thread::park_timeout(Duration::from_millis(random.below(DELAY_MAX_MS)));
        server.kill_9();
        let output = clients.finish();
        assert!(output.status.success(), "round {round}: {output}");
        text += &output.stdout;
        text += "{\"killed\": true}\n";
        let log = server.folder().join("told.txt");
        std::fs::write(&log, &text).expect("written");
        server.restart();
        run(&mut server.shell(&format!("exec {python} -B {script} check told.txt"))).ok();
        let unowned = [server.list("volume unowned"), server.list("snapshot unowned")];
        assert!(unowned.iter().all(Vec::is_empty), "round {round}: bytes of nobody: {unowned:?}");
    }
    server.stop();
}

#[test]
fn answered_requests_of_clients_survive_kill_9() {
    survives(2, "answered_requests_of_clients_survive_kill_9");
}

#[test]
#[ignore = "full: tests/kills.rs::answered_requests_of_clients_survive_kill_9 stays"]
fn answered_requests_of_clients_survive_20_kills() {
    survives(20, "answered_requests_of_clients_survive_20_kills");
}
