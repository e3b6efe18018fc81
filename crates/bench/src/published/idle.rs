//! `evenkeel-bench idle`: the cost of attached volumes that are not used.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::{Bench, Outcome};
use crate::server_process::{Served, of_size};
use crate::usage::{cpu_seconds, resident_bytes};
use evenkeel_client::hosts;
use evenkeel_core::volume::VolumeType;
use evenkeel_lab::LabError;
use evenkeel_os::clock;
use evenkeel_sim::text;

/// Volumes on one host, which has no more device names.
const VOLUMES_PER_HOST: u32 = 60;
/// Time in which servers that were just started finish background work.
const SETTLE: Duration = Duration::from_secs(3);
/// Maximum processor time that a server with volumes uses beyond one without, in seconds: one tick
/// of the kernel's counter.
const CPU_S_MAX: f64 = 0.011;
/// Maximum start time for each volume, in seconds: two seconds for ten thousand.
const START_S_MAX_PER_VOLUME: f64 = 2.0 / 10_000.0;

#[derive(Serialize)]
struct Found {
    schema: &'static str,
    volumes: u32,
    /// Memory of the server with them.
    resident_bytes: u64,
    /// Memory beyond that of a server without volumes, for each volume.
    resident_bytes_per_volume: f64,
    /// Duration of the measurement of processor time.
    seconds: f64,
    cpu_s: f64,
    /// Processor time of a server without volumes in the same duration.
    cpu_s_empty: f64,
    start_s: f64,
    pass: bool,
}

/// Attaches this number of volumes and compares a server that starts with them with one that has
/// none.
///
/// # Errors
/// If a server does not start, or refuses a volume.
pub fn measure(mut bench: Bench<'_>, volumes: u32) -> Result<Outcome, LabError> {
    let start = |bench: &Bench<'_>, name| bench.serve(name, "local", &["--calibrate", "never"]);
    let server = start(&bench, "data")?;
    fill(&server, volumes, &mut bench)?;
    server.stop();
    let full = start(&bench, "data")?;
    let empty = start(&bench, "empty")?;
    clock::pause(SETTLE);
    let cpu = || -> Result<[f64; 2], LabError> {
        Ok([cpu_seconds(full.id())?, cpu_seconds(empty.id())?])
    };
    let before = cpu()?;
    clock::pause(Duration::from_secs(bench.seconds.into()));
    let after = cpu()?;
    let resident = resident_bytes(full.id())?;
    let resident_empty = resident_bytes(empty.id())?;
    let [cpu_s, cpu_s_empty] = [after[0] - before[0], after[1] - before[1]];
    let start_s = full.start_time.as_secs_f64();
    let count = f64::from(volumes);
    let found = Found {
        schema: "evenkeel.idle/1",
        volumes,
        resident_bytes: resident,
        resident_bytes_per_volume: resident.saturating_sub(resident_empty) as f64 / count,
        seconds: f64::from(bench.seconds),
        cpu_s,
        cpu_s_empty,
        start_s,
        pass: cpu_s - cpu_s_empty <= CPU_S_MAX
            && start_s <= (START_S_MAX_PER_VOLUME * count).max(1.0),
    };
    full.stop();
    empty.stop();
    Outcome::new(&found, shown(&found), found.pass, "idle volumes cost more than they should")
}

/// Creates this number of volumes and attaches each to a host without limits.
fn fill(server: &Served, volumes: u32, bench: &mut Bench<'_>) -> Result<(), LabError> {
    let request = of_size(VolumeType::Gp3, 1);
    let mut host = String::new();
    for number in 0..volumes {
        if number % VOLUMES_PER_HOST == 0 {
            host = hosts::register(&server.api, &[("InstanceType", "evenkeel.local")])?.host_id;
        }
        server.volume_of(&host, &request)?;
        if (number + 1) % 1_000 == 0 {
            bench.report(&format!("{} volumes", number + 1));
        }
    }
    Ok(())
}

fn shown(found: &Found) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} attached volumes, idle", text::thousands(found.volumes.into()));
    let mib = found.resident_bytes as f64 / f64::from(1 << 20);
    let _ = writeln!(
        out,
        "  memory     {mib:.1} MiB resident, {:.0} bytes for each volume",
        found.resident_bytes_per_volume
    );
    let _ = writeln!(
        out,
        "  processor  {:.2} s in {:.0} s; a server with none {:.2} s",
        found.cpu_s, found.seconds, found.cpu_s_empty
    );
    let _ = writeln!(out, "  start      {:.2} s", found.start_s);
    out
}
