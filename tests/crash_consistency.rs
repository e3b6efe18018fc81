//! fio verifies a volume whose server was killed during writes, and the snapshots that were made
//! and deleted meanwhile.

mod support;

use serde_json::Value;
use std::sync::Mutex;
use std::time::Duration;
use support::PATIENCE;
use support::clock::{Deadline, pass};
use support::machine;
use support::metrics::Metrics;
use support::nbd::Client;
use support::process::{Running, run};
use support::random::{Random, seed_of};
use support::server::{CommandLine, Server};
use support::tools::{absent, fio, reports, start_fio, tool};

const BLOCK: u64 = 4_096;
/// Bytes of the volume for each job.
const REGION: u64 = 16 << 20;
/// Writes of a job from one flush to the next.
const WRITES_A_FLUSH: u64 = 8;
/// Least number of flushes of the jobs before the server is killed.
const FLUSHES_MIN: f64 = 20.0;
/// Maximum number of snapshots that are kept.
const SNAPSHOTS: usize = 2;

/// fio's numbers of checksums in the header of a block.
const MD5: u16 = 2;
const CRC32C: u16 = 5;
/// The value with which that header begins.
const MAGIC: u16 = 0xacca;

/// A job of fio that overwrites each block of its region once, in an order that its seed decides,
/// one request at a time. At any moment the region holds the writes up to some point in that order.
struct Job {
    offset: u64,
    seed: u64,
}

/// The progress of a job when its server ended.
struct Progress {
    /// Writes that it has sent.
    sent: u64,
    /// Those of them that an answered flush has covered.
    durable: u64,
}

impl Job {
    fn words(&self, more: &str) -> String {
        let Self { offset, seed } = self;
        format!("--verify_state_save=0 --randseed={seed} --offset={offset} --size={REGION} {more}")
    }

    fn overwriting(&self, more: &str) -> String {
        let words = format!("--rw=randwrite --bs={BLOCK} --verify=crc32c --fsync={WRITES_A_FLUSH}");
        self.words(&format!("{words} {more}"))
    }

    /// Fills its region with blocks of another kind of checksum.
    #[track_caller]
    fn fill(&self, server: &Server, volume: &str) {
        let words = format!("--rw=write --bs=64k --verify=md5 --verify_interval={BLOCK}");
        let words = format!("{words} --do_verify=0 --end_fsync=1");
        fio(server, &server.unix_uri(volume), &self.words(&words));
    }

    fn start(&self, server: &Server, volume: &str) -> Running {
        start_fio(server, &server.unix_uri(volume), &self.overwriting("--do_verify=0"))
    }

    /// Verifies with fio that a volume has the first `writes` writes and no others.
    #[track_caller]
    fn verify(&self, server: &Server, volume: &str, writes: u64) {
        // fio would take 0 bytes as all of them.
        if writes > 0 {
            let bytes = writes * BLOCK;
            let words = format!("--verify_only --verify_fatal=1 --io_size={bytes}");
            let result = fio(server, &server.unix_uri(volume), &self.overwriting(&words));
            assert_eq!(result["read"]["total_ios"], writes, "fio has verified something else");
        }
    }

    /// Returns the blocks of a volume that it has overwritten. All others are as before.
    #[track_caller]
    fn written(&self, server: &Server, volume: &str) -> u64 {
        const READ: u64 = 1 << 20;
        let mut client = Client::open(server.nbd, volume).expect("an export");
        let mut written = 0;
        for at in (self.offset..self.offset + REGION).step_by(READ as usize) {
            let data = client.read(at, READ as u32).expect("data");
            for (block, place) in data.chunks(BLOCK as usize).zip((at..).step_by(BLOCK as usize)) {
                let number = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
                let offset = u64::from_le_bytes(block[16..24].try_into().expect("eight bytes"));
                let magic = number(0);
                let kind = number(2);
                let is_whole = magic == MAGIC && [MD5, CRC32C].contains(&kind) && offset == place;
                assert!(is_whole, "{volume}, byte {place}: {:02x?}", &block[..32]);
                written += u64::from(kind == CRC32C);
            }
        }
        written
    }
}

/// Returns the progress from the output of a job, which may have ended with an error.
#[track_caller]
fn progress(fio: Running) -> Progress {
    let output = fio.finish();
    let report = reports(&output.stdout).pop().unwrap_or_default();
    let Some(sent) = report["jobs"][0]["write"]["total_ios"].as_u64() else { panic!("{output}") };
    // fio continues after a failed flush. A flush was certainly answered only if the write after it
    // was. The last write that fio counts may not have been.
    let answered = sent.saturating_sub(2) / WRITES_A_FLUSH;
    Progress { sent, durable: answered * WRITES_A_FLUSH }
}

/// The snapshots, by the answers to their maker.
#[derive(Default)]
struct Snapshots {
    made: Vec<String>,
    /// Those whose deletion was requested.
    deleted: Vec<String>,
}

/// Makes snapshots of a volume, and deletes the older ones, until the server ends.
fn keep_making(server: &CommandLine, volume: &str, snapshots: &Mutex<Snapshots>) {
    loop {
        let output = server.run(&format!("snapshot create {volume} --wait -o json"));
        let value: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        let id = value["snapshots"][0]["snapshot_id"].as_str();
        let (Some(id), true) = (id, output.status.success()) else { return };
        let mut known = snapshots.lock().expect("whole");
        known.made.push(id.to_owned());
        if known.made.len() <= SNAPSHOTS {
            continue;
        }
        let oldest = known.made.remove(0);
        known.deleted.push(oldest.clone());
        drop(known);
        if !server.run(&format!("snapshot rm {oldest}")).status.success() {
            return;
        }
    }
}

/// Kills the server while jobs write and snapshots are made and deleted. Returns the progress of
/// the jobs, and the snapshots.
#[track_caller]
fn kill(
    server: &mut Server,
    volume: &str,
    jobs: &[Job],
    delay: Duration,
) -> (Vec<Progress>, Snapshots) {
    let snapshots = Mutex::new(Snapshots::default());
    let command_line = server.command_line();
    let flushes = |server: &Server| Metrics::of(server).sum("flushes_total", &[volume]);
    let before = flushes(server);
    let writers: Vec<Running> = jobs.iter().map(|job| job.start(server, volume)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| keep_making(&command_line, volume, &snapshots));
        let is_busy = || {
            !snapshots.lock().expect("whole").made.is_empty()
                && flushes(server) >= before + FLUSHES_MIN
        };
        let is_busy = Deadline::after(PATIENCE).comes(is_busy);
        pass(delay);
        // Also on failure: the scope waits for the thread that calls the server.
        server.kill_9();
        assert!(is_busy, "no snapshot, or no flush");
    });
    (writers.into_iter().map(progress).collect(), snapshots.into_inner().expect("whole"))
}

/// Checks a snapshot by a volume made from it: it can be read completely, and each job's region has
/// the first of its writes and no others.
#[track_caller]
fn check_snapshot(server: &Server, snapshot: &str, jobs: &[Job]) {
    let clone = server.attached(&format!("--type io2 --iops 8000 --snapshot {snapshot}"));
    run(tool("nbdcopy", "").arg(server.unix_uri(&clone)).arg("null:")).ok();
    for job in jobs {
        job.verify(server, &clone, job.written(server, &clone));
    }
    remove(server, &clone);
}

#[track_caller]
fn remove(server: &Server, volume: &str) {
    server.evenkeel(&format!("volume detach {volume} --wait")).ok();
    server.evenkeel(&format!("volume rm {volume}")).ok();
}

/// Kills the server this number of times.
fn fio_verifies_after_kills(rounds: u32, test: &str) {
    if absent(&["fio", "nbdcopy"]) {
        return;
    }
    let seed = seed_of(&format!("crash_consistency -- {test} --exact --include-ignored"));
    let mut random = Random::new(seed);
    let mut server = Server::start("");
    for round in 0..rounds {
        let _turn = machine::beside_others();
        let volume = server.attached("--type io2 --size 8 --iops 8000");
        let jobs = [0, REGION].map(|offset| Job { offset, seed: random.below(1 << 31) });
        jobs.iter().for_each(|job| job.fill(&server, &volume));
        let delay = Duration::from_millis(random.below(700));
        let (progress, snapshots) = kill(&mut server, &volume, &jobs, delay);
        server.restart();
        for (job, Progress { sent, durable }) in jobs.iter().zip(progress) {
            let written = job.written(&server, &volume);
            println!("round {round}: {written} of {sent} writes, {durable} durable");
            assert!((durable..=sent).contains(&written), "writes are lost, or made up");
            job.verify(&server, &volume, durable);
        }
        let listed = server.list("snapshot ls");
        let is_completed = |id: &str| {
            let is_it = |of: &&Value| of["snapshot_id"] == id && of["state"] == "completed";
            listed.iter().find(is_it).is_some()
        };
        for id in &snapshots.made {
            assert!(is_completed(id), "{id} was made");
        }
        for snapshot in &listed {
            let id = snapshot["snapshot_id"].as_str().expect("an id");
            // A snapshot whose creation or deletion was under way when the server was killed.
            let is_between = !snapshots.made.iter().any(|made| made == id);
            if is_completed(id) {
                check_snapshot(&server, id, &jobs);
            } else {
                assert!(is_between && snapshot["state"] == "error", "{snapshot}");
            }
            server.evenkeel(&format!("snapshot rm {id}")).ok();
        }
        println!("{} snapshots, {} deleted before", listed.len(), snapshots.deleted.len());
        remove(&server, &volume);
        assert!(server.list("snapshot unowned").is_empty());
    }
}

#[test]
fn fio_verifies_flushed_writes_and_snapshots_after_kill_9() {
    fio_verifies_after_kills(2, "fio_verifies_flushed_writes_and_snapshots_after_kill_9");
}

#[test]
#[ignore = "full: tests/crash_consistency.rs::\
            fio_verifies_flushed_writes_and_snapshots_after_kill_9 stays"]
fn fio_verifies_flushed_writes_and_snapshots_after_20_kills() {
    fio_verifies_after_kills(20, "fio_verifies_flushed_writes_and_snapshots_after_20_kills");
}
