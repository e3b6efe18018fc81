//! `evenkeel bench prove`: the judge is put to the proof. Volumes that must keep their promise, one
//! that cannot, and disks of others held to the same.

use super::served::{DEVICE, Served, io2, this_program};
use super::{begin, failed, print, seconds};
use crate::cli::BenchProve;
use crate::message::Failure;
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_lab::bench::NbdUri;
use evenkeel_lab::bench::child::Guarded;
use evenkeel_lab::bench::fio::{self, Job};
use evenkeel_lab::bench::limited::LimitedDisk;
use evenkeel_lab::prove::{CautionKind, Outcome, Proof};
use evenkeel_sim::workload::Workload;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What the disks of others are held to, too.
const IOPS: u32 = 1_000;
/// A type's I/O, by which nbdkit's limit in bytes is made of that in IOPS.
const IO_BYTES: u64 = 16 << 10;
/// The disks of others.
const DISK_MIB: u32 = 256;
/// A volume that is sold beside greedy neighbours, on a device that does some 7,500 I/Os.
const SOLD_IOPS: u32 = 2_000;
/// Each has a throughput of 128 MiB/s, two thirds of what the device can do.
const GREEDY: u32 = 3;
/// Longer than any proof takes at the same time of each load: it makes at most five of them.
const LOADS_MAX: u32 = 6;

#[derive(Serialize)]
struct Found {
    schema: &'static str,
    rows: Vec<Row>,
    /// Whether every row that must be something is.
    pass: bool,
}

#[derive(Serialize)]
struct Row {
    subject: String,
    /// What must come out; none where it is only shown.
    expected: Option<Outcome>,
    proof: Proof,
}

pub fn run(arguments: &BenchProve) -> Result<(), Failure> {
    let folder = begin(&std::env::temp_dir(), "evenkeel-bench-prove-")?;
    let seconds = seconds(arguments.time);
    let mut bench = Bench { folder: folder.path().to_owned(), seconds, rows: Vec::new() };
    bench.own_volumes(&folder.path().join("own"))?;
    bench.beside_greedy_neighbours(&folder.path().join("guaranteed"), &io2(SOLD_IOPS), true)?;
    let requests = [
        io2(SOLD_IOPS),
        of_size(VolumeType::Gp3, 100),
        of_size(VolumeType::Gp2, 100),
        of_size(VolumeType::St1, 500),
    ];
    for (number, request) in requests.iter().enumerate() {
        let place = folder.path().join(format!("not-guaranteed-{number}"));
        bench.beside_greedy_neighbours(&place, request, false)?;
    }
    bench.disks_of_others(folder.path())?;
    let rows = bench.rows;
    let as_expected = |row: &Row| row.expected.is_none_or(|expected| row.proof.outcome == expected);
    let pass = rows.iter().all(as_expected);
    let found = Found { schema: "evenkeel.bench-prove/1", rows, pass };
    print(&arguments.output, &found, shown)?;
    if pass { Ok(()) } else { Err(Failure::new("a proof did not come out as it must")) }
}

struct Bench {
    /// Where nothing but what was made for the measurement is.
    folder: PathBuf,
    seconds: u32,
    rows: Vec<Row>,
}

impl Bench {
    /// A volume of each kind of promise, alone on a server.
    fn own_volumes(&mut self, data_dir: &Path) -> Result<(), Failure> {
        let server = Served::start(data_dir, "memory", &[])?;
        let requests = [
            io2(IOPS),
            of_size(VolumeType::Gp3, 100),
            of_size(VolumeType::Gp2, 100),
            of_size(VolumeType::St1, 500),
        ];
        for request in requests {
            let id = server.volume(&request)?;
            let subject = format!("{}, {} GiB", request.volume_type, request.size_gib);
            let words = ["--yes-destroy-data".to_owned()];
            self.prove(subject, Some(Outcome::Kept), &id, &own(&server, &words)?)?;
        }
        server.stop();
        Ok(())
    }

    /// A volume that has reserved its IOPS beside others that want more than the device can do: it
    /// keeps its promise if that is guaranteed.
    fn beside_greedy_neighbours(
        &mut self,
        data_dir: &Path,
        sold: &VolumeRequest,
        guarantee: bool,
    ) -> Result<(), Failure> {
        let expected = if guarantee { Outcome::Kept } else { Outcome::Broken };
        let options: &[&str] = if guarantee { &[] } else { &["--no-guarantee"] };
        let server = Served::start(data_dir, DEVICE, options)?;
        let id = server.volume(sold)?;
        // Their baseline is little, and they have credits for all that the device can do.
        let request = of_size(VolumeType::Gp2, 34);
        let seconds = LOADS_MAX * (self.seconds + 10);
        let mut jobs = Vec::new();
        for _ in 0..GREEDY {
            let greedy = server.volume(&request)?;
            let target = NbdUri::unix(&server.socket, &greedy).into();
            jobs.push(Job {
                name: greedy,
                target,
                workload: Workload::random_read(256 << 10, 64, seconds),
            });
        }
        let load = fio::beside(&jobs, seconds).map_err(failed)?;
        let without = if guarantee { "" } else { ", --no-guarantee" };
        let iops = sold.iops.map_or_else(String::new, |iops| format!(", {iops} IOPS"));
        let subject = format!("{}{iops} beside greedy neighbours{without}", sold.volume_type);
        self.prove(subject, Some(expected), &id, &own(&server, &[])?)?;
        drop(load);
        server.stop();
        Ok(())
    }

    /// What else calls itself limited, and what does not.
    fn disks_of_others(&mut self, folder: &Path) -> Result<(), Failure> {
        let held_to =
            ["--type", "io2", "--size", "100", "--iops", &IOPS.to_string(), "--yes-destroy-data"]
                .map(str::to_owned);
        let place = |name: &str| -> Result<_, Failure> {
            let folder = folder.join(name);
            std::fs::create_dir(&folder)
                .map_err(|error| failed(format!("{}: {error}", folder.display())))?;
            Ok(folder)
        };
        let bytes_per_second = u64::from(IOPS) * IO_BYTES;
        let nbdkit = LimitedDisk::nbdkit(&place("nbdkit")?, DISK_MIB, bytes_per_second);
        let nbdkit = nbdkit.map_err(failed)?;
        let subject = "nbdkit memory, rate filter of 1,000 x 16 KiB a second".to_owned();
        self.prove(subject, None, nbdkit.uri().as_str(), &held_to)?;
        drop(nbdkit);
        let qemu = LimitedDisk::qemu(&place("qemu")?, DISK_MIB, IOPS).map_err(failed)?;
        let subject = "qemu-storage-daemon, throttle group of 1,000 IOPS".to_owned();
        self.prove(subject, None, qemu.uri().as_str(), &held_to)?;
        drop(qemu);
        let path = folder.join("plain-file");
        fill(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        self.prove("a plain file".to_owned(), None, &path.to_string_lossy(), &held_to)
    }

    /// Runs `evenkeel prove` as anybody would, and keeps what it says.
    fn prove(
        &mut self,
        subject: String,
        expected: Option<Outcome>,
        target: &str,
        words: &[String],
    ) -> Result<(), Failure> {
        eprintln!("{subject}");
        let mut command = this_program(&self.folder)?;
        command.args(["prove", target, "-o", "json", "--time"]);
        command.arg(format!("{}s", self.seconds)).args(words);
        let mut child =
            Guarded::spawn(command.stdout(Stdio::piped()), "evenkeel").map_err(failed)?;
        let mut told = String::new();
        if let Some(mut stdout) = child.take_stdout() {
            // It ends by itself: every load has its time.
            stdout.read_to_string(&mut told).map_err(failed)?;
        }
        let proof = Proof::from_json(&told)
            .map_err(|error| failed(format!("{subject}: {error}; it said: {}", child.stderr())))?;
        self.rows.push(Row { subject, expected, proof });
        Ok(())
    }
}

/// A volume of which only the size is chosen.
const fn of_size(volume_type: VolumeType, size_gib: u32) -> VolumeRequest {
    VolumeRequest { volume_type, size_gib, iops: None, throughput_mibps: None, multi_attach: false }
}

/// How a server's volume is named to `evenkeel prove`, with more words.
fn own(server: &Served, more: &[String]) -> Result<Vec<String>, Failure> {
    let data_dir = server.socket.parent().unwrap_or(Path::new("."));
    let data_dir = data_dir.to_str().ok_or_else(|| Failure::new("a folder without a name"))?;
    let mut words = vec!["--data-dir".to_owned(), data_dir.to_owned()];
    words.extend_from_slice(more);
    Ok(words)
}

/// A file whose blocks are all there.
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

/// Why it was broken, else what was broken first, or what to know before one believes it.
fn why(proof: &Proof) -> String {
    if let Some(reason) = proof.reasons.first() {
        return reason.clone();
    }
    let broken = proof.report.volumes.iter().find_map(|load| {
        let check = load.verdict.checks.iter().find(|check| !check.pass)?;
        let (expected, measured) = (&check.expected, &check.measured);
        Some(format!("{}: {}: expected {expected}, measured {measured}", load.name, check.name))
    });
    // The greedy neighbours of a proof are at work on this machine, too.
    let told = || proof.cautions.iter().find(|of| of.kind != CautionKind::HostBusy);
    broken.or_else(|| Some(told()?.text.clone())).unwrap_or_default()
}
