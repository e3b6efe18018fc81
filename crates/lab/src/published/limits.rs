//! `evenkeel bench limits`: one volume after another at its limit, driven by fio over NBD, each
//! judged as strictly as the published figures.

use super::{begin, failed, print, seconds};
use crate::cli::BenchLimits;
use crate::cmd::apply;
use crate::message::Failure;
use crate::server;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::units::{ByteCount, GIB, MIB};
use evenkeel_engine::{Engine, EngineConfig, UnixAccess};
use evenkeel_lab::bench::NbdUri;
use evenkeel_lab::bench::fio::{self, Detail, Job};
use evenkeel_lab::checker::{Bands, Promise};
use evenkeel_lab::demo::{self, DemoVolume};
use evenkeel_lab::report::Report;
use evenkeel_sim::workload::{Pattern, Workload};
use evenkeel_store::memory::MemoryPool;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// The limits in IOPS, from the oldest small volume to the largest of gp3 and io1's middle.
const IOPS: [u64; 5] = [100, 500, 1_000, 3_000, 16_000];
/// The byte limit that gp3 has without paying for more.
const BYTE_LIMIT: u64 = 125 * MIB;
/// Small enough to be filled first: memory that is touched for the first time is slow, and that is
/// not what is measured.
const VOLUME_GIB: u32 = 1;
const VOLUME_BYTES: ByteCount = ByteCount(VOLUME_GIB as u64 * GIB);
const FILL_SECONDS: u32 = 5;
const QUEUE_DEPTH: u32 = 32;

/// What is driven at once.
struct Row {
    name: String,
    volumes: u32,
    pacing: Pacing,
    workload: Workload,
}

fn rows(seconds: u32) -> Vec<Row> {
    let limit = |per_second| Some(Limit { per_second, credit: None });
    let mut rows = Vec::new();
    for read_percent in [100, 0] {
        let what = if read_percent == 100 { "reads" } else { "writes" };
        let workload = |block_bytes| Workload {
            read_percent,
            ..Workload::random_read(block_bytes, QUEUE_DEPTH, seconds)
        };
        rows.extend(IOPS.map(|iops| Row {
            name: format!("{iops}-{what}"),
            volumes: 1,
            pacing: Pacing { operations: limit(iops), ..Pacing::UNLIMITED },
            workload: workload(16 << 10),
        }));
        rows.push(Row {
            name: format!("125MiB-{what}"),
            volumes: 1,
            pacing: Pacing { bytes: limit(BYTE_LIMIT), ..Pacing::UNLIMITED },
            workload: workload(256 << 10),
        });
    }
    rows.push(Row {
        name: "ten".to_owned(),
        volumes: 10,
        pacing: Pacing { operations: limit(1_000), ..Pacing::UNLIMITED },
        workload: Workload::random_read(16 << 10, QUEUE_DEPTH, seconds),
    });
    rows
}

/// Drives every row and prints the table.
pub fn run(arguments: &BenchLimits) -> Result<(), Failure> {
    let folder = begin(&std::env::temp_dir(), "evenkeel-limits-")?;
    let engine = Engine::start(EngineConfig {
        cores: server::cores(),
        io: arguments.io.into(),
        tcp: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
        unix: None,
        unix_access: UnixAccess::default(),
        pool: Arc::new(MemoryPool::new()),
    })
    .map_err(failed)?;
    let seconds = seconds(arguments.time);
    fill(&engine, folder.path())?;
    let mut whole: Option<Report> = None;
    for row in rows(seconds) {
        eprintln!("{} for {seconds} s", row.name);
        let report = drive(&engine, &row, folder.path())?;
        whole = Some(match whole {
            None => report,
            Some(whole) => whole.followed_by(report),
        });
    }
    engine.shutdown();
    let Some(report) = whole else { return Ok(()) };
    print(&arguments.output, &report, |report| format!("{}\n", report.to_text().trim_end()))?;
    if report.pass { Ok(()) } else { Err(Failure::new("not every limit was met exactly")) }
}

/// Writes the first volume from end to end; the others are only read.
fn fill(engine: &Engine, folder: &Path) -> Result<(), Failure> {
    let id = VolumeId::from_bits(1);
    apply(engine, id, VOLUME_BYTES, Pacing::UNLIMITED)?;
    let workload = Workload {
        pattern: Pattern::Sequential,
        read_percent: 0,
        ..Workload::random_read(1 << 20, 4, FILL_SECONDS)
    };
    let job = Job {
        name: "fill".to_owned(),
        target: NbdUri::tcp(address(engine)?, &id.to_string()).into(),
        workload,
    };
    let logs = tempfile::tempdir_in(folder).map_err(failed)?;
    fio::run(&[job], Detail::Totals, logs.path(), &mut |_| {}).map_err(failed)?;
    Ok(())
}

fn address(engine: &Engine) -> Result<SocketAddr, Failure> {
    let first = engine.tcp_addresses().first().copied();
    first.ok_or_else(|| Failure::new("the server listens nowhere"))
}

fn drive(engine: &Engine, row: &Row, folder: &Path) -> Result<Report, Failure> {
    let nbd = address(engine)?;
    let mut volumes = Vec::new();
    for number in 1..=row.volumes {
        let id = VolumeId::from_bits(number.into());
        apply(engine, id, VOLUME_BYTES, row.pacing)?;
        let name = match row.volumes {
            1 => row.name.clone(),
            _ => format!("{}-{number}", row.name),
        };
        volumes.push(DemoVolume {
            name,
            volume_type: "-".to_owned(),
            size_gib: VOLUME_GIB,
            promise: Promise::from_pacing(&row.pacing, Balances::default()),
            workload: Workload { seed: number.into(), ..row.workload },
            uri: NbdUri::tcp(nbd, &id.to_string()),
        });
    }
    let logs = tempfile::tempdir_in(folder).map_err(failed)?;
    let title = "Limits, each alone, then ten volumes at once";
    let report = demo::run(title, &volumes, &Bands::FIGURES, logs.path(), &mut |_| {});
    report.map_err(failed)
}
