//! The cost of many volumes of which few have a client.

use std::net::TcpStream;
use std::time::Duration;

use super::control::{calls, make};
use super::world::{World, others};
use super::{Aim, Row, Setup};
use crate::open_loop::greet;
use crate::server_process::of_size;
use crate::usage::{cpu_seconds, resident_bytes};
use evenkeel_core::volume::VolumeType;
use evenkeel_lab::LabError;
use evenkeel_os::clock;
use evenkeel_sim::text;

/// Volumes in all, and those with a client; the second numbers are for a quick run.
const VOLUMES: [u32; 2] = [10_000, 200];
const CONNECTED: [u32; 2] = [100, 10];
const CALLERS: usize = 4;
/// Volumes that are created between two lines of progress.
const STEP: u32 = 1_000;
/// Pauses before the measurement of processor time, and its length in seconds.
const SETTLE: Duration = Duration::from_secs(5);
const IDLE_S: [u32; 2] = [30, 5];
/// Limits for volumes without a client: memory of all nodes together, processor time of one.
const MIB_MAX: f64 = 60.0;
const CPU_PERCENT_MAX: f64 = 0.5;

/// The resources that all nodes use together.
struct Usage {
    mib: f64,
    /// Processor time, in percent of one processor.
    cpu_percent: f64,
}

pub(super) fn measure(world: &mut World<'_, '_>, setup: &Setup) -> Result<Vec<Row>, LabError> {
    let leader = world.all_serve()?;
    let connected = setup.count(CONNECTED[0], CONNECTED[1]);
    let mut clients = Vec::new();
    for number in 0..connected {
        let volume = world.volume(&of_size(VolumeType::Gp3, 1))?;
        let node = [leader, others(leader)[0], others(leader)[1]][number as usize % 3];
        let address = world.node(node)?.nbd;
        let io = |what| LabError::io(what, address.to_string());
        let mut client = TcpStream::connect(address).map_err(io("cannot connect to"))?;
        greet(&mut client, &volume).map_err(io("no handshake with"))?;
        clients.push(client);
    }
    let seconds = setup.count(IDLE_S[0], IDLE_S[1]);
    let few = usage(world, seconds)?;
    let way = world.way(leader)?;
    let all = setup.count(VOLUMES[0], VOLUMES[1]);
    let mut made = connected;
    let begun_ns = clock::monotonic().ns;
    while made < all {
        let step = STEP.min(all - made);
        calls(&way, CALLERS, step as usize, &|api, _| make(api))?;
        made += step;
        world.report(&format!("{made} volumes"));
    }
    let took_s = (clock::monotonic().ns - begun_ns) as f64 / 1e9;
    let many = usage(world, seconds)?;
    drop(clients);
    let more = text::thousands(u64::from(all - connected));
    let of = |few: f64, many: f64, unit: &str| {
        format!("{few:.1} {unit} with {connected} connected, {many:.1} with {more} more")
    };
    let memory = Aim::AtMost(MIB_MAX);
    let processor = Aim::AtMost(CPU_PERCENT_MAX);
    Ok(vec![
        Row::new(
            "memory of volumes without a client",
            many.mib - few.mib,
            "MiB",
            memory,
            of(few.mib, many.mib, "MiB"),
        ),
        Row::new(
            "processor time of volumes without a client",
            many.cpu_percent - few.cpu_percent,
            "% of one",
            processor,
            of(few.cpu_percent, many.cpu_percent, "%"),
        ),
        Row::new(
            "create, at many volumes",
            f64::from(all - connected) / took_s.max(0.001),
            "a second",
            Aim::None,
            format!("{more} volumes by {CALLERS} callers"),
        ),
    ])
}

/// Measures the resources that the nodes use without requests.
fn usage(world: &World<'_, '_>, seconds: u32) -> Result<Usage, LabError> {
    clock::pause(SETTLE);
    let ids = world.ids();
    let cpu_s = || ids.iter().map(|id| cpu_seconds(*id)).sum::<Result<f64, LabError>>();
    let before = cpu_s()?;
    clock::pause(Duration::from_secs(seconds.into()));
    let cpu_percent = (cpu_s()? - before) * 100.0 / f64::from(seconds);
    let bytes = ids.iter().map(|id| resident_bytes(*id)).sum::<Result<u64, LabError>>()?;
    Ok(Usage { mib: bytes as f64 / f64::from(1 << 20), cpu_percent })
}
