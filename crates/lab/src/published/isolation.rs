//! `evenkeel bench isolation`: a log writer beside large neighbours, on several servers in turn.

use super::served::{DEVICE, Served, io2};
use super::{begin, failed, print, seconds};
use crate::cli::{BenchIsolation, Bytes, StoreKind};
use crate::cmd::temporary_folder;
use crate::message::Failure;
use evenkeel_lab::bench::isolation::{
    self, Disks, Export, Isolation, IsolationConfig, Limits, P99_TIMES_MAX, Subject,
};
use std::path::Path;

/// What the log's volume is provisioned with, and each neighbour's: five thousand together, which
/// the device of the published figures may sell.
const LIMITS: Limits = Limits { log_iops: 2_000, neighbour_iops: 1_500 };

/// The part of each volume that is used: more than a disk's own cache would be a longer wait than
/// it is worth, and past the page cache there is no other.
const SPAN_MIB: u32 = 256;

/// The server that is judged.
const OURS: &str = "evenkeel";

pub fn run(arguments: &BenchIsolation) -> Result<(), Failure> {
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = begin(&parent, "evenkeel-isolation-")?;
    let mut results = Vec::new();
    match &arguments.store {
        Some(store) => results.push(on(store, arguments, folder.path())?),
        None => {
            for store in [DEVICE, "local"] {
                let store = store.parse().map_err(|error: String| Failure::new(error))?;
                results.push(on(&store, arguments, folder.path())?);
            }
        }
    }
    let words = |results: &Vec<Isolation>| {
        results.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    print(&arguments.output, &results, words)?;
    if results.iter().all(|result| result.holds(OURS)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "beside neighbours the log's p99 is more than {P99_TIMES_MAX} times that alone"
    )))
}

/// All servers on one store, and the other servers too if it is a disk.
fn on(store: &StoreKind, arguments: &BenchIsolation, folder: &Path) -> Result<Isolation, Failure> {
    let folder = temporary_folder(folder, "store-")?;
    let folder = folder.path();
    let store_text = store.to_string();
    let start = |name: &str, calibrate: &str| -> Result<(Served, Subject), Failure> {
        let data_dir = folder.join(calibrate);
        let server = Served::start(&data_dir, &store_text, &["--calibrate", calibrate])?;
        let subject = subject(name, &server)?;
        Ok((server, subject))
    };
    let (_calibrated, ours) = start(OURS, "first-start")?;
    let (_not, not_calibrated) = start("not calibrated", "never")?;
    let mut subjects = vec![ours, not_calibrated];
    let mut others = Vec::new();
    if store.bytes == Bytes::Local && store.device.is_none() {
        for name in ["nbdkit", "qemu"] {
            let folder = folder.join(name);
            std::fs::create_dir(&folder)
                .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
            others.push(match name {
                "nbdkit" => Disks::nbdkit(&folder, SPAN_MIB),
                _ => Disks::qemu(&folder, SPAN_MIB, LIMITS),
            });
        }
    }
    let others: Vec<Disks> = others.into_iter().collect::<Result<_, _>>().map_err(failed)?;
    subjects.extend(others.iter().map(Disks::subject));
    let config = IsolationConfig {
        subjects,
        run_s: seconds(arguments.time),
        rounds: arguments.rounds,
        span_mib: SPAN_MIB,
        folder: folder.to_owned(),
    };
    isolation::measure(&store_text, &config, &mut |what| eprintln!("{what}")).map_err(failed)
}

/// The three volumes on a server of ours.
fn subject(name: &str, server: &Served) -> Result<Subject, Failure> {
    let export = |iops| -> Result<Export, Failure> {
        let name = server.volume(&io2(iops))?;
        Ok(Export { socket: server.socket.clone(), name })
    };
    Ok(Subject {
        name: name.to_owned(),
        log: export(LIMITS.log_iops)?,
        reads: export(LIMITS.neighbour_iops)?,
        writes: export(LIMITS.neighbour_iops)?,
    })
}
