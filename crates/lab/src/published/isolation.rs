//! `evenkeel bench isolation`: a log writer beside large neighbours, on several servers in turn.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::{Bench, Outcome};
use crate::LabError;
use crate::bench::isolation::{
    self, Disks, Isolation, IsolationConfig, Limits, P99_TIMES_MAX, Subject,
};
use crate::bench::served::{Served, io2};

/// What the log's volume is provisioned with, and each neighbour's: five thousand together, which
/// the device of the published figures may sell.
const LIMITS: Limits = Limits { log_iops: 2_000, neighbour_iops: 1_500 };

/// The part of each volume that is used: more than a disk's own cache would be a longer wait than
/// it is worth, and past the page cache there is no other.
const SPAN_MIB: u32 = 256;

/// The server that is judged.
const OURS: &str = "evenkeel";

/// What the volumes lie on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    /// As `serve --store` takes it.
    pub name: String,
    /// Whether it is a plain disk, on which other servers can be measured, too.
    pub is_disk: bool,
}

/// Measures each store, so many times in each situation.
///
/// # Errors
/// If a server is missing, does not start or refuses a volume, or fio cannot be run.
pub fn measure(mut bench: Bench<'_>, stores: &[Store], rounds: u32) -> Result<Outcome, LabError> {
    let mut results = Vec::new();
    for store in stores {
        let folder = bench.folder.join(format!("store-{}", results.len()));
        // Servers of other users work in it: they may pass, and not write.
        DirBuilder::new().mode(0o755).create(&folder).map_err(LabError::path(&folder))?;
        results.push(on(store, &folder, rounds, &mut bench)?);
        // What cannot be removed goes with the folder around it.
        let _ = fs::remove_dir_all(&folder);
    }
    let texts: Vec<String> = results.iter().map(ToString::to_string).collect();
    let pass = results.iter().all(|result| result.holds(OURS));
    let why =
        format!("beside neighbours the log's p99 is more than {P99_TIMES_MAX} times that alone");
    Outcome::new(&results, texts.join("\n"), pass, &why)
}

/// All servers on one store, and the other servers too if it is a disk.
fn on(
    store: &Store,
    folder: &Path,
    rounds: u32,
    bench: &mut Bench<'_>,
) -> Result<Isolation, LabError> {
    let start = |name: &str, calibrate: &str| -> Result<(Served, Subject), LabError> {
        let options = ["--calibrate", calibrate];
        let server = Served::start(bench.connect, &folder.join(calibrate), &store.name, &options)?;
        let subject = subject(name, &server)?;
        Ok((server, subject))
    };
    let (_calibrated, ours) = start(OURS, "first-start")?;
    let (_not, not_calibrated) = start("not calibrated", "never")?;
    let mut subjects = vec![ours, not_calibrated];
    let mut others = Vec::new();
    if store.is_disk {
        let [nbdkit, qemu] = ["nbdkit", "qemu"].map(|name| folder.join(name));
        for folder in [&nbdkit, &qemu] {
            fs::create_dir(folder).map_err(LabError::path(folder))?;
        }
        others.push(Disks::nbdkit(&nbdkit, SPAN_MIB)?);
        others.push(Disks::qemu(&qemu, SPAN_MIB, LIMITS)?);
    }
    subjects.extend(others.iter().map(Disks::subject));
    let config = IsolationConfig {
        subjects,
        run_s: bench.seconds,
        rounds,
        span_mib: SPAN_MIB,
        folder: folder.to_owned(),
    };
    isolation::measure(&store.name, &config, bench.progress)
}

/// The three volumes on a server of ours.
fn subject(name: &str, server: &Served) -> Result<Subject, LabError> {
    Ok(Subject {
        name: name.to_owned(),
        log: server.volume(&io2(LIMITS.log_iops))?,
        reads: server.volume(&io2(LIMITS.neighbour_iops))?,
        writes: server.volume(&io2(LIMITS.neighbour_iops))?,
    })
}
