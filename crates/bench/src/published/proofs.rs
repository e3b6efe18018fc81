//! `evenkeel-bench prove`: checks the proofs themselves. Volumes that must keep their promise, one
//! that cannot, and disks of other makers under the same promise.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;

use serde::Serialize;

use super::{Bench, Outcome as Measured};
use crate::compare::{nbdkit_limited, qemu_limited};
use crate::durable;
use crate::server_process::{DEVICE, Served, evenkeel, io2, of_size};
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::checker::Outcome;
use evenkeel_lab::child::Guarded;
use evenkeel_lab::fio::{self, Job};
use evenkeel_lab::prove::{CautionKind, Proof};
use evenkeel_sim::workload::Workload;

/// The promise for disks of other makers.
const IOPS: u32 = 1_000;
/// Size of an I/O, to convert nbdkit's limit in bytes per second to IOPS.
const IO_BYTES: u64 = 16 << 10;
/// Size of the disks of other makers.
const DISK_MIB: u32 = 256;
/// Promise of a volume beside greedy neighbours, on a device that does some 7,500 I/Os per second.
const SOLD_IOPS: u32 = 2_000;
/// Number of neighbours. Each has a throughput of 128 MiB/s, two thirds of the device's.
const GREEDY: u32 = 3;
/// Upper bound on the loads of a proof, which makes at most five.
const LOADS_MAX: u32 = 6;

#[derive(Serialize)]
struct Found {
    schema: &'static str,
    rows: Vec<Row>,
    /// Whether every row with an expected outcome has it.
    pass: bool,
}

#[derive(Serialize)]
struct Row {
    subject: String,
    /// The expected outcome; `None` if it is only shown.
    expected: Option<Outcome>,
    proof: Proof,
}

/// Proves one subject after the other.
///
/// # Errors
/// If a server does not start, a disk of another maker cannot be started, or a proof has no output.
pub fn measure(bench: Bench<'_>) -> Result<Measured, LabError> {
    let mut proofs = Proofs { bench, rows: Vec::new() };
    proofs.own_volumes()?;
    proofs.beside_greedy_neighbours("guaranteed", &io2(SOLD_IOPS), true)?;
    for (number, request) in requests(SOLD_IOPS).iter().enumerate() {
        proofs.beside_greedy_neighbours(&format!("not-guaranteed-{number}"), request, false)?;
    }
    proofs.disks_of_others()?;
    let rows = proofs.rows;
    let judged = rows.iter().map(|row| as_it_must(row.expected, row.proof.outcome));
    let verdict = judged.max().unwrap_or(Outcome::Kept);
    let pass = verdict == Outcome::Kept;
    let found = Found { schema: "evenkeel.bench-prove/1", rows, pass };
    Measured::judged(&found, shown(&found), verdict, "a proof did not come out as it must")
}

/// Returns kept if the outcome is the expected one or none is expected, `is` if it is undecided or
/// the server has gone, and broken otherwise.
fn as_it_must(expected: Option<Outcome>, is: Outcome) -> Outcome {
    match (expected, is) {
        (None, _) => Outcome::Kept,
        (Some(expected), is) if is == expected => Outcome::Kept,
        (_, Outcome::Undecided | Outcome::ServerGone) => is,
        (_, Outcome::Kept | Outcome::Broken) => Outcome::Broken,
    }
}

/// Returns requests for a volume of each kind of promise; `iops` is for the one that is
/// provisioned.
fn requests(iops: u32) -> [VolumeRequest; 4] {
    [
        io2(iops),
        of_size(VolumeType::Gp3, 100),
        of_size(VolumeType::Gp2, 100),
        of_size(VolumeType::St1, 500),
    ]
}

struct Proofs<'a> {
    bench: Bench<'a>,
    rows: Vec<Row>,
}

impl Proofs<'_> {
    /// Proves a volume of each kind of promise, alone on a server.
    fn own_volumes(&mut self) -> Result<(), LabError> {
        let server = self.bench.serve("own", "memory", &[])?;
        for request in requests(IOPS) {
            let id = server.volume(&request)?.name;
            let subject = format!("{}, {} GiB", request.volume_type, request.size_gib);
            let words = ["--yes-destroy-data".to_owned()];
            self.prove(subject, Some(Outcome::Kept), &id, &own(&server, &words)?)?;
        }
        server.stop();
        Ok(())
    }

    /// Proves a volume with reserved IOPS beside others that request more than the device can do.
    /// It keeps its promise if the promise is guaranteed.
    fn beside_greedy_neighbours(
        &mut self,
        name: &str,
        sold: &VolumeRequest,
        guarantee: bool,
    ) -> Result<(), LabError> {
        let expected = if guarantee { Outcome::Kept } else { Outcome::Broken };
        let options: &[&str] = if guarantee { &[] } else { &["--no-guarantee"] };
        let server = self.bench.serve(name, DEVICE, options)?;
        let id = server.volume(sold)?.name;
        // Their baseline is low, but they have credits for all of the device's rate.
        let request = of_size(VolumeType::Gp2, 34);
        let seconds = LOADS_MAX * (self.bench.seconds + 10);
        let mut jobs = Vec::new();
        for _ in 0..GREEDY {
            let greedy = server.volume(&request)?;
            let target = greedy.uri().into();
            let workload = Workload::random_read(256 << 10, 64, seconds);
            jobs.push(Job { name: greedy.name, target, workload });
        }
        let load = fio::beside(&jobs, seconds)?;
        let without = if guarantee { "" } else { ", --no-guarantee" };
        let iops = sold.iops.map_or_else(String::new, |iops| format!(", {iops} IOPS"));
        let subject = format!("{}{iops} beside greedy neighbours{without}", sold.volume_type);
        self.prove(subject, Some(expected), &id, &own(&server, &[])?)?;
        drop(load);
        server.stop();
        Ok(())
    }

    /// Proves limited and unlimited disks of other makers.
    fn disks_of_others(&mut self) -> Result<(), LabError> {
        let folder = self.bench.folder;
        let held_to =
            ["--type", "io2", "--size", "100", "--iops", &IOPS.to_string(), "--yes-destroy-data"]
                .map(str::to_owned);
        let place = |name: &str| -> Result<_, LabError> {
            let folder = folder.join(name);
            fs::create_dir(&folder).map_err(LabError::path(&folder))?;
            Ok(folder)
        };
        let bytes_per_second = u64::from(IOPS) * IO_BYTES;
        let peer = nbdkit_limited(bytes_per_second);
        let nbdkit = peer.on_disk(&place("nbdkit")?, 0, DISK_MIB)?;
        let subject = "nbdkit memory, rate filter of 1,000 x 16 KiB a second".to_owned();
        self.prove(subject, None, nbdkit.uri.as_str(), &held_to)?;
        drop(nbdkit);
        let peer = qemu_limited(IOPS);
        let qemu = peer.on_disk(&place("qemu")?, 0, DISK_MIB)?;
        // It is filled, as reads of blocks that were never written pass its limiter.
        durable::fill(&qemu.socket, &peer.export, u64::from(DISK_MIB) << 20)?;
        let subject = "qemu-storage-daemon, throttle group of 1,000 IOPS".to_owned();
        self.prove(subject, None, qemu.uri.as_str(), &held_to)?;
        drop(qemu);
        let path = folder.join("plain-file");
        fill(&path).map_err(LabError::path(&path))?;
        self.prove("a plain file".to_owned(), None, &path.to_string_lossy(), &held_to)
    }

    /// Runs `evenkeel prove` as a user does, and keeps its proof.
    fn prove(
        &mut self,
        subject: String,
        expected: Option<Outcome>,
        target: &str,
        words: &[String],
    ) -> Result<(), LabError> {
        self.bench.report(&subject);
        let mut command = evenkeel(self.bench.folder)?;
        command.args(["prove", target, "-o", "json", "--time"]);
        command.arg(format!("{}s", self.bench.seconds)).args(words);
        let mut child = Guarded::spawn(command.stdout(Stdio::piped()), "evenkeel")?;
        let mut output = String::new();
        if let Some(mut stdout) = child.take_stdout() {
            // It ends by itself, since every load has a duration.
            stdout.read_to_string(&mut output).map_err(LabError::failed)?;
        }
        let proof = Proof::from_json(&output).map_err(|error| {
            LabError::failed(format!("{subject}: {error}; it said: {}", child.stderr()))
        })?;
        self.rows.push(Row { subject, expected, proof });
        Ok(())
    }
}

/// Returns the arguments that name a server's volume to `evenkeel prove`, with further ones.
fn own(server: &Served, more: &[String]) -> Result<Vec<String>, LabError> {
    let data_dir = server.socket.parent().unwrap_or(Path::new("."));
    let data_dir = data_dir.to_str().ok_or_else(|| LabError::failed("a folder without a name"))?;
    let mut words = vec!["--data-dir".to_owned(), data_dir.to_owned()];
    words.extend_from_slice(more);
    Ok(words)
}

/// Creates a file without holes.
fn fill(path: &Path) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let block = vec![0xA5; 1 << 20];
    for _ in 0..DISK_MIB {
        file.write_all(&block)?;
    }
    file.sync_all()
}

fn shown(found: &Found) -> String {
    let width = found.rows.iter().map(|row| row.subject.len()).max().unwrap_or(0);
    let mut out = format!("{:width$}  must be    is         why\n", "held to its promise");
    for row in &found.rows {
        let must = row.expected.map_or("-", Outcome::word);
        let is = row.proof.outcome.word();
        let _ = write!(out, "{:width$}  {must:<9}  {is:<9}", row.subject);
        let _ = writeln!(out, "  {}", why(&row.proof));
    }
    out
}

/// Returns why the promise was broken, otherwise the first broken check, otherwise a caution.
fn why(proof: &Proof) -> String {
    if let Some(reason) = proof.reasons.first() {
        return reason.clone();
    }
    let broken = proof.report.volumes.iter().find_map(|load| {
        let check = load.verdict.checks.iter().find(|check| !check.pass)?;
        let expected = &check.expected;
        let measured = &check.measured;
        Some(format!("{}: {}: expected {expected}, measured {measured}", load.name, check.name))
    });
    // The greedy neighbours of a proof make this machine busy, too.
    let caution = || proof.cautions.iter().find(|caution| caution.kind != CautionKind::HostBusy);
    broken.or_else(|| Some(caution()?.text.clone())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_that_is_undecided_leaves_the_judge_undecided() {
        use Outcome::{Broken, Kept, ServerGone, Undecided};
        for (expected, is, verdict) in [
            (Some(Kept), Kept, Kept),
            (Some(Broken), Broken, Kept),
            (Some(Kept), Broken, Broken),
            (Some(Broken), Kept, Broken),
            (Some(Kept), Undecided, Undecided),
            (Some(Broken), Undecided, Undecided),
            (Some(Kept), ServerGone, ServerGone),
            (None, Broken, Kept),
            (None, Undecided, Kept),
        ] {
            assert_eq!(as_it_must(expected, is), verdict, "{expected:?} {is:?}");
        }
    }
}
