//! Servers side by side: the same rows of work, run in turn, against each server and transport.
//!
//! All servers are started at the beginning and wait idle (which costs no CPU); rows then visit
//! them one after the other, round by round (A B C, A B C, ...), because a shared machine drifts.
//! fio stands on the same machine and costs as much CPU as a fast server: the ratio between servers
//! is the figure, not the rate.

mod figures;
pub mod floor;
mod peer;
mod table;

use evenkeel_core::convert::saturating;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use peer::{Peer, PeerSize, Transport, nbdkit_file, nbdkit_memory, qemu_file};

use self::peer::Place;
pub(crate) use self::peer::{Running, nbdkit_limited, qemu_limited};
use crate::median;
use crate::usage::cpu_seconds;
use evenkeel_core::ids::VolumeId;
use evenkeel_lab::LabError;
use evenkeel_lab::environment::Environment;
use evenkeel_lab::fio::{self, Detail, Job, Standing};
use evenkeel_lab::program::path_of_this_program;
use evenkeel_os::clock;
use evenkeel_sim::workload::{Pattern, Workload};

/// The name of the server of [`floor`] in tables.
pub const FLOOR: &str = "floor";

/// The one volume of our own server.
pub const OUR_VOLUME: VolumeId = VolumeId::from_bits(1);

/// Large enough that caches of the processor do not hold it, small enough for six servers at once.
const SIZE: PeerSize = PeerSize { mib: 256 };

/// Time that starting and filling the servers may take, beside the runs.
const SET_UP_MAX: Duration = Duration::from_secs(300);

/// The configuration of a comparison.
#[derive(Clone, Debug)]
pub struct CompareConfig {
    /// The servers, in the order of the table's columns.
    pub peers: Vec<Peer>,
    /// The rows of work.
    pub rows: Vec<Workload>,
    /// The ways to connect to the servers.
    pub transports: Vec<Transport>,
    /// Times each row visits each server; the median is reported.
    pub rounds: u32,
    /// Bytes of each server's export.
    pub size: PeerSize,
    /// An empty folder for sockets and logs.
    pub folder: PathBuf,
    /// A folder in memory for servers that keep their bytes in a file, usually under `/dev/shm`.
    pub memory_folder: PathBuf,
    /// The whole comparison is given up after this long.
    pub deadline: Duration,
}

/// One run of one row on one server.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// I/Os per second.
    pub iops: f64,
    /// Median latency as the client sees it.
    pub p50_ns: u64,
    /// CPU seconds of the server, user and system, for a million I/Os.
    pub cpu_s_per_million: f64,
}

/// All rounds of one row on one server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// The row.
    pub workload: Workload,
    /// The way in which clients connected.
    pub transport: Transport,
    /// The server's name.
    pub peer: String,
    /// Whether the server keeps written bytes; only such servers can be the best.
    pub keeps_bytes: bool,
    /// One sample for each round.
    pub samples: Vec<Sample>,
}

/// A finished comparison.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// Names the shape of this document: `evenkeel.comparison/1`.
    pub schema: String,
    /// When it was measured.
    pub measured_at: String,
    /// The machine and its software.
    pub environment: Environment,
    /// The servers' names and exact command lines.
    pub servers: Vec<(String, String)>,
    /// One cell for each row, transport and server, in that order.
    pub cells: Vec<Cell>,
    /// Warnings that limit what the figures prove.
    pub warnings: Vec<String>,
}

impl Cell {
    /// Returns the median of each figure over the rounds.
    #[must_use]
    pub fn median(&self) -> Sample {
        let median = |figure: fn(&Sample) -> f64| median(&self.samples, figure);
        Sample {
            iops: median(|sample| sample.iops),
            p50_ns: median(|sample| sample.p50_ns as f64).round() as u64,
            cpu_s_per_million: median(|sample| sample.cpu_s_per_million),
        }
    }
}

impl CompareConfig {
    /// Returns the published comparison: an unlimited volume of ours beside nbdkit,
    /// qemu-storage-daemon and the [`floor`], with runs of `seconds` seconds. The folders are an
    /// empty one for sockets and logs, and one in memory.
    ///
    /// # Errors
    /// If the system does not report the path of this program.
    pub fn published(
        seconds: u32,
        rounds: u32,
        [folder, memory_folder]: [PathBuf; 2],
    ) -> Result<Self, LabError> {
        let peers = vec![
            this_program("evenkeel", "export", true)?,
            nbdkit_memory(),
            nbdkit_file(),
            qemu_file(),
            this_program(FLOOR, "floor", false)?,
        ];
        let rows = standard_rows(seconds);
        let transports = vec![Transport::Unix, Transport::Tcp];
        let runs = rows.len() * transports.len() * peers.len();
        let runs = saturating::<_, u32>(runs).saturating_mul(rounds);
        // Each run takes about a second more than its load.
        let run = Duration::from_secs(u64::from(seconds) * 2 + 5);
        let deadline = SET_UP_MAX + run * runs;
        Ok(Self { peers, rows, transports, rounds, size: SIZE, folder, memory_folder, deadline })
    }
}

/// Returns this program as one server of the comparison, called `name`: one of its hidden verbs.
fn this_program(name: &str, verb: &str, keeps_bytes: bool) -> Result<Peer, LabError> {
    let program = path_of_this_program()?.to_string_lossy().into_owned();
    let command = |listen: [&str; 2]| {
        let arguments = [verb, "--size", "{size}"].into_iter().chain(listen);
        [program.clone()].into_iter().chain(arguments.map(str::to_owned)).collect()
    };
    Ok(Peer {
        name: name.to_owned(),
        package: "evenkeel",
        export: OUR_VOLUME.to_string(),
        unix: command(["--unix", "{socket}"]),
        tcp: command(["--tcp", "127.0.0.1:{port}"]),
        needs_file: false,
        keeps_bytes,
    })
}

/// Returns the rows of the published table: 4 KiB random read and write at depth 1, 32 and 128, and
/// 64 KiB at 16.
#[must_use]
fn standard_rows(duration_s: u32) -> Vec<Workload> {
    let mut rows = Vec::new();
    for read in [true, false] {
        for (block, depth) in [(4 << 10, 1), (4 << 10, 32), (4 << 10, 128), (64 << 10, 16)] {
            rows.push(if read {
                Workload::random_read(block, depth, duration_s)
            } else {
                Workload::random_write(block, depth, duration_s)
            });
        }
    }
    rows
}

/// Starts the servers, runs every row on each in turn, and stops them. `progress` is called with
/// the name of each run before it begins.
///
/// # Errors
/// When a server or fio is missing, fails, or the deadline passes. Nothing is left running.
pub fn compare(
    config: &CompareConfig,
    progress: &mut dyn FnMut(&str),
) -> Result<Comparison, LabError> {
    config.rows.iter().try_for_each(Workload::validate)?;
    let environment = Environment::read(fio::version()?);
    // Only the load before the comparison: during it, the load is our own.
    let warnings: Vec<String> = fio::load_warning("before").into_iter().collect();
    let deadline = clock::now() + config.deadline;
    let CompareConfig { folder, memory_folder: files, size, .. } = config;
    let place = Place { folder, files, size: *size };
    let mut servers: Vec<Running> = Vec::new();
    for (index, peer) in config.peers.iter().enumerate() {
        for &transport in &config.transports {
            progress(&format!("starting {} on {transport}", peer.name));
            servers.push(peer.start(transport, index, place)?);
        }
    }
    for server in &servers {
        progress(&format!("filling {} on {}", server.name, server.transport));
        measure(server, &filling(config.size), config)?;
    }
    let mut cells = empty_cells(config);
    for round in 1..=config.rounds.max(1) {
        for cell in &mut cells {
            let here =
                |server: &&Running| server.name == cell.peer && server.transport == cell.transport;
            let Some(server) = servers.iter().find(here) else { continue };
            if clock::now() >= deadline {
                let what = format!("the comparison (in round {round})");
                return Err(LabError::Deadline { what, after: config.deadline });
            }
            let workload = cell.workload;
            let peer = &cell.peer;
            let transport = cell.transport;
            progress(&format!("round {round}: {workload}: {peer} on {transport}"));
            cell.samples.push(measure(server, &workload, config)?);
        }
    }
    Ok(Comparison {
        schema: "evenkeel.comparison/1".to_string(),
        measured_at: clock::utc_now(),
        environment,
        servers: servers
            .iter()
            .map(|server| {
                (format!("{} ({})", server.name, server.transport), server.command.clone())
            })
            .collect(),
        cells,
        warnings,
    })
}

/// Returns the cells in the order of their runs: rows outermost, then transports, then servers, so
/// that the compared runs are neighbours in time.
fn empty_cells(config: &CompareConfig) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &workload in &config.rows {
        for &transport in &config.transports {
            for peer in &config.peers {
                let keeps_bytes = peer.keeps_bytes;
                let peer = peer.name.clone();
                cells.push(Cell { workload, transport, peer, keeps_bytes, samples: Vec::new() });
            }
        }
    }
    cells
}

/// Returns sequential writes that touch the whole export, so that no server answers from holes.
/// They are long enough for the slowest server at 250 MiB/s.
fn filling(size: PeerSize) -> Workload {
    let seconds = saturating::<_, u32>(size.bytes() / (250 << 20)).clamp(1, 60);
    Workload { pattern: Pattern::Sequential, ..Workload::random_write(1 << 20, 4, seconds) }
}

fn measure(
    server: &Running,
    workload: &Workload,
    config: &CompareConfig,
) -> Result<Sample, LabError> {
    let job =
        Job { name: server.name.clone(), target: server.uri.clone().into(), workload: *workload };
    let before = cpu_seconds(server.id())?;
    let run = fio::run(&[job], Detail::Totals, Standing::Same, &config.folder, &mut |_| {})?;
    let used = cpu_seconds(server.id())? - before;
    let [measurement] = &run.measurements[..] else {
        let what = format!("{} results of one job", run.measurements.len());
        return Err(LabError::BadOutput { tool: "fio", what });
    };
    if let Some(error) = &measurement.error {
        return Err(LabError::ToolFailed {
            tool: "fio".to_string(),
            how: format!("{} on {}: {error}", server.name, server.transport),
            said: String::new(),
            command: run.command,
        });
    }
    let ios = measurement.ios_total.max(1) as f64;
    Ok(Sample {
        iops: ios * 1_000.0 / measurement.runtime_ms.max(1) as f64,
        p50_ns: measurement.latency.p50_ns,
        cpu_s_per_million: used * 1e6 / ios,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_per_figure() {
        let sample = |iops, p50_ns| Sample { iops, p50_ns, cpu_s_per_million: iops };
        let mut cell = Cell {
            workload: Workload::random_read(4_096, 1, 1),
            transport: Transport::Unix,
            peer: String::new(),
            keeps_bytes: true,
            samples: vec![sample(3.0, 10), sample(1.0, 30), sample(2.0, 20)],
        };
        assert_eq!(cell.median(), sample(2.0, 20));
        cell.samples.push(sample(4.0, 40));
        assert_eq!(cell.median(), sample(2.5, 25));
    }

    #[test]
    fn the_published_rows() {
        let rows: Vec<String> = standard_rows(2).iter().map(ToString::to_string).collect();
        assert_eq!(rows[0], "4 KiB random read, depth 1, 2 s");
        assert_eq!(rows[7], "64 KiB random write, depth 16, 2 s");
    }
}
