//! Durations of durable writes while data moves between volumes of a server, at their limits.
//!
//! A limit of the root cgroup does not show them: it serves the writers in turn.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::{
    Disk, MIB, Mounted, PATIENCE, Place, attempt, host, is_unable, mounts, run, skipped, write_file,
};
use evenkeel_autopilot::Host;
use evenkeel_lab::child::{Guarded, find, wait_until};
use evenkeel_os::clock;
use evenkeel_planner::autopilot::operation::Verb;

/// Time between two durable writes.
const PERIOD: Duration = Duration::from_millis(50);

/// A client that presents a volume as a file. It is unmounted when dropped.
struct Client {
    file: PathBuf,
    _process: Guarded,
}

impl Drop for Client {
    fn drop(&mut self) {
        attempt(&["fusermount3".as_ref(), "-u".as_ref(), "-z".as_ref(), self.file.as_os_str()]);
    }
}

/// A server, and disks of its volumes.
struct Served {
    // Dropped in this order.
    disks: Vec<Disk>,
    _clients: Vec<Client>,
    _server: Guarded,
}

impl Served {
    /// Starts the server beside this test with a volume for each set of flags; `None` if a program
    /// is absent.
    fn new(place: &Place, volumes: &[&str]) -> Option<Self> {
        let test = std::env::current_exe().expect("this test");
        let program = test.ancestors().nth(2).expect("its folder").join("evenkeel");
        if !program.exists() || find("nbdfuse", []).is_none() {
            skipped("no evenkeel is built beside the test, or nbdfuse is not installed");
            return None;
        }
        let data = place.path("data");
        let evenkeel = |words: &str| {
            let mut command = Command::new(&program);
            command.args(words.split(' ')).env("EVENKEEL_DATA_DIR", &data).stdout(Stdio::null());
            command
        };
        let serve = "serve --store memory --calibrate never --listen 127.0.0.1:0 \
                     --nbd-listen 127.0.0.1:0";
        let server = Guarded::spawn(&mut evenkeel(serve), "evenkeel").expect("a server");
        let socket = data.join("nbd.sock");
        wait_until("the server", PATIENCE, || socket.exists() && data.join("endpoint").exists())
            .expect("the server");
        let mut clients = Vec::new();
        let mut disks = Vec::new();
        for flags in volumes {
            let create = format!("volume create --size 4 {flags} --attach -o csv");
            let made = evenkeel(&create).stdout(Stdio::piped()).output().expect("an answer");
            let text = String::from_utf8_lossy(&made.stdout).into_owned();
            let id = text.split([',', '\n']).find(|word| word.starts_with("vol-"));
            let id = id.unwrap_or_else(|| panic!("no volume in {text}")).to_owned();
            let file = place.path(&id);
            File::create(&file).expect("a file");
            let uri = format!("nbd+unix:///{id}?socket={}", socket.display());
            let mut client = Command::new("nbdfuse");
            client.args(["-C", "4"]).arg(&file).arg(uri).stdout(Stdio::null());
            let process = Guarded::spawn(&mut client, "nbdfuse").expect("a client");
            clients.push(Client { file: file.clone(), _process: process });
            let is_there = || fs::metadata(&file).is_ok_and(|found| found.len() > 0);
            wait_until("the client", PATIENCE, is_there).expect("the client");
            let losetup = ["losetup", "--find", "--show", "--direct-io=on"].map(AsRef::as_ref);
            let device = run(&[losetup.as_slice(), &[file.as_os_str()]].concat());
            disks.push(Disk { id, device: PathBuf::from(device.trim()), file });
        }
        Some(Self { disks, _clients: clients, _server: server })
    }
}

/// Writes 4 KiB durably in each period until it is stopped. Returns how long each write took.
fn write_durably(path: &Path, is_stopped: &AtomicBool) -> Vec<Duration> {
    let file = File::create(path).expect("a file");
    file.write_all_at(&vec![1; 1 << 20], 0).and_then(|()| file.sync_all()).expect("durable");
    let mut took = Vec::new();
    for number in 0.. {
        if is_stopped.load(Ordering::Relaxed) {
            break;
        }
        let begin = clock::now();
        let written = file.write_all_at(&[number as u8; 4_096], number % 256 * 4_096);
        written.and_then(|()| file.sync_data()).expect("durable");
        let latency = clock::now() - begin;
        took.push(latency);
        clock::pause(PERIOD.saturating_sub(latency));
    }
    took
}

/// Does work beside durable writes, and returns a summary of their durations.
fn write_while(path: &Path, work: impl FnOnce()) -> String {
    let is_stopped = AtomicBool::new(false);
    let mut took = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_durably(path, &is_stopped));
        work();
        is_stopped.store(true, Ordering::Relaxed);
        writer.join().expect("written")
    });
    let count = took.len();
    let mut ms = |part| super::load::permille(&mut took, part).as_micros() as f64 / 1_000.0;
    let figures = [ms(500), ms(990), ms(1_000)];
    format!("{count} writes, p50 {:.1} p99 {:.1} max {:.1} ms", figures[0], figures[1], figures[2])
}

/// Moves 400 MiB to a volume with these limits at a pace, and prints how long durable writes take.
fn measure(limits: &str, mib_per_s: u64) {
    let place = Place::new();
    let Some(served) = Served::new(&place, &["--type io2 --iops 480", limits]) else { return };
    let [first, second] = &served.disks[..] else { panic!("two disks") };
    let device = first.device.as_os_str();
    let words = ["mkfs.btrfs", "-q", "-f", "-d", "single", "-m", "single"].map(AsRef::as_ref);
    run(&[words.as_slice(), &[device]].concat());
    let mounted = Mounted::without_discards(&first.device, &place.path("mnt"));
    write_file(&mounted.folder.join("data"), 400 * MIB, 9);
    let mut host = host(&mounted, &[first, second]);
    host.execute(&Verb::Add { volume: second.id.clone() }).expect("an added device");
    let path = mounted.folder.join("durable");
    let before = write_while(&path, || clock::pause(Duration::from_secs(5)));
    let begin = clock::now();
    let during = write_while(&path, || {
        let volume = first.id.clone();
        host.execute(&Verb::Remove { volume, bytes_per_s: mib_per_s * MIB }).expect("a move");
        let has_ended = || host.observe().expect("an observation").running.is_none();
        wait_until("the end of the move", PATIENCE, has_ended).expect("its end");
    });
    let took = (clock::now() - begin).as_secs_f64();
    println!("{limits}, at {mib_per_s} MiB/s: {took:.1} s; {during}; before the move {before}");
}

/// Prints a table. Durations are not judged, since they depend on the machine.
#[test]
#[ignore = "full: crates/autopilot/tests/host/verbs.rs::\
            data_leaves_a_removed_device_at_the_set_pace stays"]
fn durable_writes_are_measured_while_data_moves() {
    if is_unable() {
        return;
    }
    let _turn = mounts();
    measure("--type io2 --iops 231", 15);
    measure("--type io2 --iops 480", 60);
    for mib_per_s in [15, 62, 1_000] {
        measure("--type gp3", mib_per_s);
    }
}
