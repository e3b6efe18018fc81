//! `evenkeel bench idle`: what attached volumes cost that nobody uses.

use super::served::{Served, wait};
use super::{begin, failed, print};
use crate::cli::BenchIdle;
use crate::clock::Deadline;
use crate::cmd::{host, volume};
use crate::message::Failure;
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_lab::bench::usage::{cpu_seconds, resident_bytes};
use evenkeel_sim::text;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// Volumes on one host: there are so many device names.
const VOLUMES_PER_HOST: u32 = 60;
/// A new server and one that was just started may have something to tidy up.
const SETTLE: Duration = Duration::from_secs(3);
/// What a server may use of a processor, with volumes, more than without: a tick of the kernel's
/// books.
const CPU_S_MAX: f64 = 0.011;
/// How long a server with ten thousand may take to start; others as much longer or shorter.
const START_S_MAX_PER_VOLUME: f64 = 2.0 / 10_000.0;

#[derive(Serialize)]
struct Found {
    schema: &'static str,
    volumes: u32,
    /// Of the server with them.
    resident_bytes: u64,
    /// More than that of a server with none, for each.
    resident_bytes_per_volume: f64,
    /// Over which processor time was measured.
    seconds: f64,
    cpu_s: f64,
    /// Of a server with none, in as much time.
    cpu_s_empty: f64,
    start_s: f64,
    pass: bool,
}

pub fn run(arguments: &BenchIdle) -> Result<(), Failure> {
    let folder = begin(&std::env::temp_dir(), "evenkeel-idle-")?;
    let data_dir = folder.path().join("data");
    let server = start(&data_dir)?;
    fill(&server, arguments.volumes)?;
    server.stop();
    let full = start(&data_dir)?;
    let empty = start(&folder.path().join("empty"))?;
    let _ = Deadline::after(SETTLE * 2).pause(SETTLE);
    let cpu = || -> Result<[f64; 2], Failure> {
        Ok([cpu_seconds(full.id()).map_err(failed)?, cpu_seconds(empty.id()).map_err(failed)?])
    };
    let before = cpu()?;
    let _ = Deadline::after(arguments.time * 2).pause(arguments.time);
    let after = cpu()?;
    let memory = |server: &Served| resident_bytes(server.id()).map_err(failed);
    let (resident, resident_empty) = (memory(&full)?, memory(&empty)?);
    let [cpu_s, cpu_s_empty] = [after[0] - before[0], after[1] - before[1]];
    let start_s = full.start_time.as_secs_f64();
    let volumes = f64::from(arguments.volumes);
    let found = Found {
        schema: "evenkeel.idle/1",
        volumes: arguments.volumes,
        resident_bytes: resident,
        resident_bytes_per_volume: resident.saturating_sub(resident_empty) as f64 / volumes,
        seconds: arguments.time.as_secs_f64(),
        cpu_s,
        cpu_s_empty,
        start_s,
        pass: cpu_s - cpu_s_empty <= CPU_S_MAX
            && start_s <= (START_S_MAX_PER_VOLUME * volumes).max(1.0),
    };
    full.stop();
    empty.stop();
    print(&arguments.output, &found, shown)?;
    if found.pass { Ok(()) } else { Err(Failure::new("idle volumes cost more than they should")) }
}

fn start(data_dir: &Path) -> Result<Served, Failure> {
    Served::start(data_dir, "local", &["--calibrate", "never"])
}

/// Makes so many volumes and attaches each, to hosts without limits.
fn fill(server: &Served, volumes: u32) -> Result<(), Failure> {
    let request = VolumeRequest {
        volume_type: VolumeType::Gp3,
        size_gib: 1,
        iops: None,
        throughput_mibps: None,
        multi_attach: false,
    };
    let mut host = String::new();
    for number in 0..volumes {
        if number % VOLUMES_PER_HOST == 0 {
            host = host::register(&server.client, "evenkeel.local")?.host_id;
        }
        let id = server.create(&request, false)?;
        volume::attach(&server.client, &id, Some(host.clone()), None, &wait())?;
        if (number + 1) % 1_000 == 0 {
            eprintln!("{} volumes", number + 1);
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
