//! `evenkeel-bench limits`: volumes at their limits, one after another, driven by fio over NBD, and
//! judged by the strict bands of the published figures.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Bench, Outcome};
use crate::data_plane;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::units::{ByteCount, GIB, MIB};
use evenkeel_engine::{Engine, EngineConfig, IoMode};
use evenkeel_lab::LabError;
use evenkeel_lab::checker::{Bands, Promise};
use evenkeel_lab::demo::{self, DemoVolume, Recording, Serving};
use evenkeel_lab::fio::{self, Detail, Job, Standing};
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_lab::report::Report;
use evenkeel_sim::oracle::recorded::Provisioned;
use evenkeel_sim::workload::{Pattern, Workload};

/// The title of the report.
const TITLE: &str = "Limits, each alone, then ten volumes at once";
/// The limits in IOPS, from the oldest small volume to the largest of gp3 and io1's middle.
const IOPS: [u64; 5] = [100, 500, 1_000, 3_000, 16_000];
/// The byte limit of a gp3 volume without extra payment.
const BYTE_LIMIT: u64 = 125 * MIB;
/// Small enough to be filled before: the first touch of memory is slow, and is not to be measured.
const VOLUME_GIB: u32 = 1;
const VOLUME_BYTES: ByteCount = ByteCount(VOLUME_GIB as u64 * GIB);
const FILL_SECONDS: u32 = 5;
const QUEUE_DEPTH: u32 = 32;

/// Volumes that are driven at once.
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

/// Drives every row, one after the other, on a data plane that uses this interface of the kernel.
///
/// # Errors
/// If the data plane does not start, or fio cannot be run.
pub fn measure(mut bench: Bench<'_>, io: IoMode) -> Result<Outcome, LabError> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let engine =
        data_plane::start(EngineConfig { tcp: vec![listen], ..data_plane::in_memory(io) })?;
    let recorder = engine.recorder();
    fill(&engine, &bench)?;
    let mut whole: Option<Report> = None;
    for row in rows(bench.seconds) {
        bench.report(&format!("{} for {} s", row.name, bench.seconds));
        let volumes = volumes(&engine, &row)?;
        let bands = &Bands::FIGURES;
        let serving = Serving::Here(Recording::begin(&recorder, &volumes));
        let report = demo::run(TITLE, &volumes, bands, bench.folder, serving, &mut |_| {})?;
        whole = Some(match whole {
            None => report,
            Some(whole) => whole.followed_by(report),
        });
    }
    engine.shutdown();
    let report = whole.ok_or_else(|| LabError::failed("no row was driven"))?;
    Outcome::of_report(&report, "not every limit was met exactly")
}

/// Writes the first volume from end to end; the others are only read.
fn fill(engine: &Engine, bench: &Bench<'_>) -> Result<(), LabError> {
    let id = VolumeId::from_bits(1);
    data_plane::apply(engine, id, VOLUME_BYTES, Pacing::UNLIMITED)?;
    let workload = Workload {
        pattern: Pattern::Sequential,
        read_percent: 0,
        ..Workload::random_read(1 << 20, 4, FILL_SECONDS)
    };
    let target = uri(engine, id)?.into();
    let job = Job { name: "fill".to_owned(), target, workload };
    fio::run(&[job], Detail::Totals, Standing::Same, bench.folder, &mut |_| {}).map(drop)
}

fn uri(engine: &Engine, id: VolumeId) -> Result<NbdUri, LabError> {
    let first = engine.tcp_addresses().first().copied();
    let address = first.ok_or_else(|| LabError::failed("the server listens nowhere"))?;
    Ok(NbdUri::tcp(address, &id.to_string()))
}

/// Returns the volumes of a row, with their limits applied.
fn volumes(engine: &Engine, row: &Row) -> Result<Vec<DemoVolume>, LabError> {
    (1..=row.volumes).map(|number| volume(engine, row, number)).collect()
}

/// Applies the limits of a row to its volume of this number, and returns the volume.
fn volume(engine: &Engine, row: &Row, number: u32) -> Result<DemoVolume, LabError> {
    let id = VolumeId::from_bits(number.into());
    data_plane::apply(engine, id, VOLUME_BYTES, row.pacing)?;
    let name = match row.volumes {
        1 => row.name.clone(),
        _ => format!("{}-{number}", row.name),
    };
    Ok(DemoVolume {
        name,
        volume_type: "-".to_owned(),
        size_gib: VOLUME_GIB,
        promise: Promise::from_pacing(&row.pacing, Balances::default()),
        workload: Workload { seed: number.into(), ..row.workload },
        uri: uri(engine, id)?,
        provisioned: Some(Provisioned {
            id,
            pacings: vec![row.pacing],
            balances: Balances::default(),
        }),
    })
}
