//! Durable data and state survive kill -9 and a clean stop.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;
use support::PATIENCE;
use support::clock::{Deadline, Stopwatch};
use support::nbd::{self, Client};
use support::process::start;
use support::server::{FAST, Server};
use support::tools::{absent, libnbd, libnbd_script};

/// The credits that a crash may cost the gp2 volume below, as docs/reference/api.md says: a lease,
/// which is ten seconds of burst (3,000) less baseline (100), and 50 ms of burst.
const CRASH_COST: u64 = 10 * (3_000 - 100) + 150;
/// The credits that the volume earns in the longest time of a test: 100 a second.
const EARNED_MAX: u64 = 100 * 2 * PATIENCE.as_secs();

/// Kills the server several times under a client that writes, and checks each time that flushed
/// writes and those with FUA are there.
fn writes_survive(options: &str) {
    if absent(&["libnbd for Python"]) {
        return;
    }
    let mut server = Server::start(options);
    let volume = server.attached(FAST);
    let memory = server.folder().join("memory.json").display().to_string();
    for acknowledged in [500, 4_000, 1_500] {
        let arguments = ["write", &server.unix_uri(&volume), &memory];
        let mut writer = start(libnbd_script("writer.py").args(arguments).stdin(Stdio::null()));
        writer.wait_for_line(&format!("progress {acknowledged}\n"));
        server.kill_9();
        let output = writer.finish().ok();
        assert!(output.contains("acknowledged "), "{output}");
        server.restart();
        let found = libnbd("writer.py", &["check", &server.tcp_uri(&volume), &memory]);
        let survivors = found.trim().strip_prefix("survivors ").and_then(|n| n.parse().ok());
        assert!(survivors > Some(10_u32), "{found}");
    }
    // The same writes, with a clean stop.
    server.stop();
    server.restart();
    libnbd("writer.py", &["check", &server.tcp_uri(&volume), &memory]);
}

#[test]
fn acknowledged_writes_survive_kill_9_with_io_uring() {
    writes_survive("--io uring");
}

#[test]
fn acknowledged_writes_survive_kill_9_with_plain_calls() {
    writes_survive("--io pread");
}

/// Kills the server several times after writes without a flush, and a few with one: all of them are
/// there.
#[test]
fn answered_writes_survive_kill_9_without_a_flush() {
    const BLOCK: usize = 4_096;
    let mut server = Server::start("--store local");
    let volume = server.attached(FAST);
    let mut expected: BTreeMap<u64, u8> = BTreeMap::new();
    for round in 1..=4_u8 {
        let mut client = Client::open(server.nbd, &volume).expect("attached");
        for (&place, &byte) in &expected {
            let found = client.read(place, BLOCK as u32).expect("read");
            assert!(found == [byte; BLOCK], "round {round}, {place}: not {byte} but {}", found[0]);
        }
        let places = (0..300_u64)
            .map(|number| number * 37 % 211 * BLOCK as u64 + u64::from(round % 3) * 512);
        for (at, place) in places.enumerate() {
            client.write(place, &[round; BLOCK]).expect("written");
            expected.retain(|other, _| other.abs_diff(place) >= BLOCK as u64);
            expected.insert(place, round);
            if at == 40 * usize::from(round) {
                client.flush().expect("flushed");
            }
        }
        server.kill_9();
        server.restart();
    }
}

/// Returns all that the API lists of volumes and hosts.
fn inventory(server: &Server) -> Vec<Vec<Value>> {
    ["volume ls", "host ls"].map(|verb| server.list(verb)).to_vec()
}

/// Starts a server with some of everything.
fn furnished() -> (Server, [String; 3]) {
    let server = Server::start("");
    let attached = server.attached("--type gp2 --size 10 --tag Name=first");
    let modified = server.attached("--type io1 --size 10 --iops 100");
    server.evenkeel(&format!("volume modify {modified} --type io2 --iops 700 --size 20")).ok();
    let detached = server.create("--type gp3 --size 5 --throughput 200 --tag Name=third");
    server.evenkeel("host register --type m5.large --address 192.0.2.1 --tag Name=far").ok();
    let shared = server.create("--type io2 --size 10 --iops 100 --multi-attach");
    let hosts = server.list("host ls");
    assert_eq!(hosts.len(), 2);
    for host in &hosts {
        let host = host["host_id"].as_str().expect("an id");
        server.evenkeel(&format!("volume attach {shared} --host {host} --wait")).ok();
    }
    (server, [attached, modified, detached])
}

fn check_reachable(server: &Server, [attached, modified, detached]: &[String; 3], byte: u8) {
    for (volume, gib) in [(attached, 10_u64), (modified, 20)] {
        let mut client = Client::open(server.nbd, volume).expect("attached");
        let last = (gib << 30) - 512;
        assert_eq!(client.read(last, 512).expect("read"), [byte; 512]);
        client.write(last, &[byte + 1; 512]).expect("written");
        client.flush().expect("flushed");
        assert!(client.read(last + 512, 512).is_err(), "larger than {gib} GiB");
    }
    assert!(Client::open(server.nbd, detached).is_err());
}

#[test]
fn volumes_attachments_limits_and_keys_survive() {
    let (mut server, volumes) = furnished();
    let before = inventory(&server);
    let keys = std::fs::read(server.data_dir().join("credentials")).expect("credentials");
    for byte in 0..4 {
        check_reachable(&server, &volumes, byte);
        if byte % 2 == 0 {
            server.kill_9();
        } else {
            server.stop();
        }
        server.restart();
        assert_eq!(inventory(&server), before);
    }
    check_reachable(&server, &volumes, 4);
    assert!(std::fs::read(server.data_dir().join("credentials")).expect("credentials") == keys);
}

#[test]
fn credit_balances_survive_and_a_crash_gives_none() {
    let mut server = Server::start("");
    let volume = server.attached("--type gp2 --size 10");
    server.evenkeel(&format!("volume credits {volume} --set 1000000")).ok();
    let set = server.credits(&volume);
    assert!((1_000_000..1_000_000 + EARNED_MAX).contains(&set), "{set}");
    server.stop();
    server.restart();
    let stopped = server.credits(&volume);
    assert!((set..set + EARNED_MAX).contains(&stopped), "{set}, after a stop {stopped}");
    server.kill_9();
    server.restart();
    let killed = server.credits(&volume);
    // Credits earned since the balance was last stored may be lost, too.
    let least = 1_000_000 - CRASH_COST;
    assert!((least..least + EARNED_MAX).contains(&killed), "{stopped}, after a crash {killed}");
    // A balance smaller than that becomes zero, not less.
    server.evenkeel(&format!("volume credits {volume} --set 5")).ok();
    server.kill_9();
    server.restart();
    assert!(server.credits(&volume) < EARNED_MAX);
}

/// While writes to the disk fail, for any reason, no more credits are spent than the disk's record
/// allows: the burst ends with the lease, and a crash gives none back.
#[test]
fn a_crash_after_the_disk_hung_gives_no_credits() {
    if absent(&["libnbd for Python"]) {
        return;
    }
    const REQUESTS: u64 = 45_000;
    let mut server = Server::start("");
    let volume = server.attached("--type gp2 --size 10");
    server.evenkeel(&format!("volume credits {volume} --set 1000000")).ok();
    let mut client = Client::open(server.nbd, &volume).expect("attached");
    let mut holder = libnbd_script("hold.py");
    let holder = &mut start(holder.arg(server.data_dir().join("control.db")));
    holder.wait_for_line("held");
    // Fifteen seconds of burst, of which ten are leased; more would take minutes.
    let begin = Stopwatch::start();
    let mut answered = 0;
    for number in 0..REQUESTS {
        client.send(nbd::READ, number, 0, 4_096).expect("sent");
        if number >= 32 {
            read_reply(&mut client);
            answered += 1;
        }
        if begin.seconds() > 20.0 {
            break;
        }
    }
    let left = server.credits(&volume);
    let since = Stopwatch::start();
    assert!(left < 1_000_000 - 20_000, "{answered} were answered, and {left} credits are left");
    assert!(left + 100 >= 1_000_000 - CRASH_COST, "more was spent than was leased: {left}");
    server.kill_9();
    holder.signal(Signal::KILL);
    server.restart();
    let after = server.credits(&volume);
    let earned = (100.0 * since.seconds()).ceil() as u64 + 1;
    assert!(after <= left + earned, "{after} after {left}");
}

fn read_reply(client: &mut Client) {
    assert_eq!(client.reply().expect("a reply").0, 0);
    let mut data = [0; 4_096];
    client.stream.read_exact(&mut data).expect("its data");
}

/// The message at the start of a server whose predecessor did not stop cleanly.
const NOT_CLEAN: &str = "not stopped cleanly";

#[test]
fn a_stop_that_comes_with_the_greeting_is_clean() {
    let mut server = Server::start("");
    let volume = server.attached("--type gp2 --size 10");
    server.evenkeel(&format!("volume credits {volume} --set 1000000")).ok();
    server.stop();
    for _ in 0..25 {
        server.restart();
        let logged = server.stop();
        assert!(!logged.contains(NOT_CLEAN), "{logged}");
    }
    server.restart();
    let left = server.credits(&volume);
    assert!((1_000_000..1_000_000 + EARNED_MAX).contains(&left), "{left}");
    // The message appears when it should.
    server.kill_9();
    server.restart();
    let logged = server.stop();
    assert!(logged.contains(NOT_CLEAN), "{logged}");
}

#[test]
fn a_stop_before_the_greeting_is_clean_and_is_not_waited_for() {
    let mut server = Server::start("");
    let volume = server.attached("--type gp2 --size 10");
    server.stop();
    // A first start takes three seconds, which is long enough to be stopped in.
    server.option("--calibrate first-start");
    let mut starting = server.launch();
    let begun = || starting.logged().contains("calibrating the store");
    Deadline::after(PATIENCE).ask("the calibration", begun);
    starting.signal(Signal::TERM);
    let output = starting.finish();
    assert!(output.status.success() && output.stdout.is_empty(), "{output}");
    assert!(!server.data_dir().join("calibration.json").exists(), "{output}");
    server.restart();
    check_reads_zeroes(&server, &volume);
    let logged = server.stop();
    assert!(!logged.contains(NOT_CLEAN), "{logged}");
    assert!(logged.contains("calibrating the store"), "{logged}");
}

#[test]
fn acknowledged_api_changes_survive_kill_9() {
    let mut server = Server::start("");
    for round in 0..3 {
        let (kept, removed) = killed_amid_changes(&mut server, 2 + 3 * round);
        server.restart();
        let volumes = server.list("volume ls");
        let state = |id: &String| {
            let volume = volumes.iter().find(|volume| volume["volume_id"] == id.as_str());
            volume.map(|volume| volume["state"].as_str().expect("a state").to_owned())
        };
        for volume in &kept {
            assert_eq!(state(volume).as_deref(), Some("in-use"), "{volume} was acknowledged");
            check_reads_zeroes(&server, volume);
        }
        for volume in &removed {
            assert_eq!(state(volume), None, "{volume} was removed");
        }
        // Operations that were under way are done completely or not at all.
        for volume in &volumes {
            let state = volume["state"].as_str().expect("a state");
            assert!(["available", "in-use"].contains(&state), "{volume}");
            let id = volume["volume_id"].as_str().expect("an id");
            if state == "in-use" {
                server.evenkeel(&format!("volume detach {id} --wait")).ok();
            }
            server.evenkeel(&format!("volume rm {id}")).ok();
        }
    }
    assert!(server.list("volume ls").is_empty());
    assert!(server.list("volume unowned").is_empty(), "bytes of removed volumes are left");
}

#[test]
fn a_folder_has_one_server_and_only_its_own() {
    let mut server = Server::start("");
    let volume = server.attached("--size 1");
    let folder = server.data_dir().display().to_string();
    let serve = "serve --listen 127.0.0.1:0 --nbd-listen 127.0.0.1:0 --data-dir";
    let refused = server.evenkeel(&format!("{serve} {folder}")).fails_with(1);
    assert!(refused.contains(&folder), "{refused}");
    // The refused server has removed nothing: the socket answers, too.
    check_reads_zeroes(&server, &volume);
    drop(std::os::unix::net::UnixStream::connect(server.socket()).expect("the socket"));
    let another = server.folder().join("another");
    std::fs::create_dir(&another).expect("a folder");
    std::fs::write(another.join("diary.txt"), "mine").expect("written");
    let refused = server.evenkeel(&format!("{serve} {}", another.display())).fails_with(1);
    assert!(refused.contains(&another.display().to_string()), "{refused}");
    assert_eq!(std::fs::read_dir(&another).expect("the folder").count(), 1);
    server.stop();
    server.restart();
    check_reads_zeroes(&server, &volume);
}

fn check_reads_zeroes(server: &Server, volume: &str) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    assert_eq!(client.read(0, 512).expect("read"), [0; 512]);
}

/// Creates volumes, and removes every second of them, until a call fails.
const CHANGES: &str = r#"
    make() { evenkeel volume create --size 1 --attach -o csv >made && sed -n '2s/,.*//p' made; }
    while true; do
        KEPT=$(make)
        echo kept $KEPT
        GONE=$(make)
        evenkeel volume detach $GONE --wait
        evenkeel volume rm $GONE
        echo removed $GONE
    done
"#;

/// Kills the server after `removals` acknowledged removals, with another change under way. Returns
/// the volumes that exist and are attached, and those that were removed.
fn killed_amid_changes(server: &mut Server, removals: usize) -> (Vec<String>, Vec<String>) {
    let mut changes = start(&mut server.shell(CHANGES));
    for _ in 0..removals {
        changes.wait_for_line("removed ");
    }
    server.kill_9();
    let text = changes.finish().stdout;
    let of = |word: &str| {
        let ids = text.lines().filter_map(|line| line.strip_prefix(word));
        ids.map(str::to_owned).collect::<Vec<_>>()
    };
    (of("kept "), of("removed "))
}
