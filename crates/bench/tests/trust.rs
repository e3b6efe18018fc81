//! Checks the verdicts of the demonstration: fio drives an honest volume and broken ones at once,
//! and each is judged by the same promise. Skipped with a message if fio is not installed. The long
//! form is `cargo x demo-trust`, with limiters that are broken in the sources.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use evenkeel_bench::data_plane;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::time;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_engine::{Engine, EngineConfig, IoMode};
use evenkeel_lab::checker::{Bands, Outcome, Promise};
use evenkeel_lab::demo::{self, DemoVolume, Recording, Serving};
use evenkeel_lab::fio::VolumeProgress;
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_lab::report::Report;
use evenkeel_sim::oracle::recorded::Provisioned;
use evenkeel_sim::workload::Workload;

/// Seconds of load.
const SECONDS: u32 = 8;

/// Time at which a volume begins to skip a second, in milliseconds.
const SKIP_FROM_MS: u64 = 3_500;

/// The promise of every volume, in I/Os per second.
const PROMISED: u64 = 1_000;

/// Other load of the machine may hide a fault, but not three times in a row.
const RUNS_MAX: usize = 3;

fn pacing(per_second: u64, tolerance_ms: u64) -> Pacing {
    let operations = Some(Limit { per_second, credit: None });
    Pacing { operations, tolerance: time::Duration::from_ms(tolerance_ms), ..Pacing::UNLIMITED }
}

/// Returns the volumes: their names, and their limits in the data plane. The slow one is slower
/// than in the long form, so that a busy machine cannot hide it.
fn volumes() -> [(&'static str, Pacing); 5] {
    [
        ("honest", pacing(PROMISED, 50)),
        ("fast", pacing(1_015, 50)),
        ("slow", pacing(950, 50)),
        ("lax", pacing(PROMISED, 70)),
        ("skips", pacing(PROMISED, 50)),
    ]
}

fn has_fio() -> bool {
    let version = Command::new("fio").arg("--version").stdout(Stdio::null()).status();
    let is_there = version.is_ok_and(|status| status.success());
    if !is_there {
        let _ = writeln!(std::io::stdout(), "SKIPPED: fio not installed (apt-get install fio)");
    }
    is_there
}

fn id(number: u32) -> VolumeId {
    VolumeId::from_bits(number.into())
}

fn driven(socket: &Path, number: u32, name: &str) -> DemoVolume {
    let promised = pacing(PROMISED, 50);
    // The volume that skips a second is modified twice, but is judged as if its limits stayed the
    // same.
    let pacings = vec![promised; 3];
    DemoVolume {
        name: name.to_owned(),
        volume_type: "-".to_owned(),
        size_gib: 1,
        promise: Promise::from_pacing(&promised, Balances::default()),
        workload: Workload { seed: number.into(), ..Workload::random_read(16 << 10, 32, SECONDS) },
        uri: NbdUri::unix(socket, &id(number).to_string()),
        provisioned: Some(Provisioned { id: id(number), pacings, balances: Balances::default() }),
    }
}

fn run(engine: &Engine, folder: &Path, socket: &Path) -> Report {
    let mut driven_volumes = Vec::new();
    for (number, (name, limits)) in (1..).zip(volumes()) {
        data_plane::apply(engine, id(number), ByteCount(GIB), limits).unwrap();
        driven_volumes.push(driven(socket, number, name));
    }
    let recorder = engine.recorder();
    let serving = Serving::Here(Recording::begin(&recorder, &driven_volumes));
    // The last volume is limited to almost nothing for a second, between two calls.
    let last = u32::try_from(volumes().len()).unwrap();
    let mut changes = [pacing(1, 50), pacing(PROMISED, 50)].into_iter();
    let progress = &mut |volumes: &[VolumeProgress]| {
        let runtime_ms = volumes.iter().map(|volume| volume.runtime_ms).max().unwrap_or(0);
        if runtime_ms >= SKIP_FROM_MS
            && let Some(limits) = changes.next()
        {
            data_plane::apply(engine, id(last), ByteCount(GIB), limits).unwrap();
        }
    };
    let bands = &Bands::PROMISE;
    demo::run("trust", &driven_volumes, bands, folder, serving, progress).unwrap()
}

#[test]
fn an_honest_limiter_is_never_broken_and_a_broken_one_is_found() {
    if !has_fio() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let engine = data_plane::start(EngineConfig {
        unix: Some(socket.clone()),
        ..data_plane::in_memory(IoMode::Auto)
    })
    .unwrap();
    let mut to_find: Vec<&str> = volumes()[1..].iter().map(|(name, _)| *name).collect();
    for _ in 0..RUNS_MAX {
        let report = run(&engine, folder.path(), &socket);
        println!("{}", report.to_text());
        let outcome = |name: &str| {
            let of = report.volumes.iter().find(|volume| volume.name == name).unwrap();
            of.verdict.outcome
        };
        assert_ne!(outcome("honest"), Outcome::Broken, "{}", report.to_text());
        // Limits are judged by the record, which other programs do not disturb.
        assert_eq!(outcome("fast"), Outcome::Broken, "{}", report.to_text());
        assert_eq!(outcome("lax"), Outcome::Broken, "{}", report.to_text());
        to_find.retain(|name| outcome(name) != Outcome::Broken);
        if to_find.is_empty() {
            break;
        }
    }
    engine.shutdown();
    assert!(to_find.is_empty(), "not found in {RUNS_MAX} runs: {to_find:?}");
}
