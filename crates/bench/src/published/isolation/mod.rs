//! `evenkeel-bench isolation`: a log writer beside large neighbours, on several servers in turn. It
//! shows whether small durable writes stay fast.

mod runs;
mod table;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use self::runs::Isolation;
use super::{Bench, Outcome};
use crate::compare::{Peer, Running, nbdkit_file, qemu_limited};
use crate::server_process::{Served, io2};
use evenkeel_lab::LabError;
use evenkeel_lab::nbd_uri::Export;

/// Largest ratio of the 99th percentile of a durable write beside neighbours to that alone.
const P99_TIMES_MAX: f64 = 2.0;

/// Provisioned IOPS of the log's volume, and of each neighbour's. Their sum is 5,000, which the
/// device of the published figures may sell.
const LOG_IOPS: u32 = 2_000;
const NEIGHBOUR_IOPS: u32 = 1_500;

/// The range of each volume that is used. Filling more than a disk's own cache would take too long,
/// and direct I/O uses no other cache.
const SPAN_MIB: u32 = 256;

/// The server that is judged.
const OURS: &str = "evenkeel";

/// A server with three volumes.
struct Subject {
    /// The server's name in the table.
    name: &'static str,
    log: Export,
    /// The volume of the neighbour that reads.
    reads: Export,
    /// The volume of the neighbour that writes.
    writes: Export,
}

/// The storage below the volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Store {
    /// The argument of `serve --store`.
    pub name: String,
    /// Whether it is a plain disk, on which other servers can be measured, too.
    pub is_disk: bool,
}

/// Measures each store, `rounds` times in each situation.
///
/// # Errors
/// If a server is missing, does not start or refuses a volume, or fio cannot be run.
pub fn measure(mut bench: Bench<'_>, stores: &[Store], rounds: u32) -> Result<Outcome, LabError> {
    let mut results = Vec::new();
    for store in stores {
        let folder = bench.folder.join(format!("store-{}", results.len()));
        // Servers of other users work in it: they may enter it, but not write.
        DirBuilder::new().mode(0o755).create(&folder).map_err(LabError::path(&folder))?;
        results.push(on(store, &folder, rounds, &mut bench)?);
        // Files that cannot be removed are removed with the folder above.
        let _ = fs::remove_dir_all(&folder);
    }
    let texts: Vec<String> = results.iter().map(ToString::to_string).collect();
    let pass = results.iter().all(|result| result.holds(OURS));
    let why =
        format!("beside neighbours the log's p99 is more than {P99_TIMES_MAX} times that alone");
    Outcome::new(&results, texts.join("\n"), pass, &why)
}

/// Measures all servers on one store; servers of others only if it is a disk.
fn on(
    store: &Store,
    folder: &Path,
    rounds: u32,
    bench: &mut Bench<'_>,
) -> Result<Isolation, LabError> {
    let start = |name, calibrate: &str| -> Result<(Served, Subject), LabError> {
        let options = ["--calibrate", calibrate];
        let server = Served::start(bench.connect, &folder.join(calibrate), &store.name, &options)?;
        let subject = Subject {
            name,
            log: server.volume(&io2(LOG_IOPS))?,
            reads: server.volume(&io2(NEIGHBOUR_IOPS))?,
            writes: server.volume(&io2(NEIGHBOUR_IOPS))?,
        };
        Ok((server, subject))
    };
    let (_calibrated, ours) = start(OURS, "first-start")?;
    let (_not, not_calibrated) = start("not calibrated", "never")?;
    let mut subjects = vec![ours, not_calibrated];
    let mut others = Vec::new();
    if store.is_disk {
        let [log, neighbour] = [LOG_IOPS, NEIGHBOUR_IOPS].map(qemu_limited);
        for (name, place, peers) in [
            // nbdkit's disks have no limit.
            ("nbdkit", "nbdkit", [nbdkit_file(), nbdkit_file(), nbdkit_file()]),
            ("qemu throttle", "qemu", [log, neighbour.clone(), neighbour]),
        ] {
            let folder = folder.join(place);
            fs::create_dir(&folder).map_err(LabError::path(&folder))?;
            let (running, subject) = other(name, &peers, &folder)?;
            others.push(running);
            subjects.push(subject);
        }
    }
    runs::measure(&store.name, &subjects, rounds, bench)
}

/// Starts servers of another make, each with a disk in a folder: for the log, reads and writes.
fn other(
    name: &'static str,
    peers: &[Peer; 3],
    folder: &Path,
) -> Result<([Running; 3], Subject), LabError> {
    let start = |index: usize| peers[index].on_disk(folder, index, SPAN_MIB);
    let running = [start(0)?, start(1)?, start(2)?];
    let export = |index: usize| Export {
        socket: running[index].socket.clone(),
        name: peers[index].export.clone(),
    };
    let subject = Subject { name, log: export(0), reads: export(1), writes: export(2) };
    Ok((running, subject))
}
