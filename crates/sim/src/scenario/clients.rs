//! Clients of a scenario.

use super::reader::Reader;
use super::{ScenarioError, Source, matching, nothing_called};
use crate::scenario::program::{Program, ProgramSetup};
use crate::scenario::setup::{Arrival, ClientSetup, Load, Setup, Shape, Target, Think};
use evenkeel_core::convert::exact;
use evenkeel_core::limits::REQUEST_BYTES_MAX;
use evenkeel_core::units::GIB;
use std::ops::RangeInclusive;

const DEPTH: RangeInclusive<u32> = 1..=1_024;
const CLIENTS_MAX: usize = 4_096;
/// Bounds on the calls of a program, in its own unit.
const CALLS: RangeInclusive<u64> = 1..=1_000_000;
/// Bounds on the duration of a program, in seconds.
const PROGRAM_S: RangeInclusive<u64> = 1..=3_600;
/// Maximum number of requests in a trace.
const TRACE_MAX: usize = 10_000_000;

type Read<T> = Result<T, ScenarioError>;

/// All `[[client]]` tables, each for every target that it names.
pub(super) fn clients(
    source: &Source<'_>,
    document: &Reader<'_>,
    setup: &Setup,
) -> Read<Vec<ClientSetup>> {
    let mut clients: Vec<ClientSetup> = Vec::new();
    for reader in document.tables("client")? {
        let targets = targets(&reader, setup)?;
        let several = targets.len() > 1;
        let name = reader.text("name")?.map(str::to_owned);
        let name = name.unwrap_or_else(|| format!("client {}", clients.len() + 1));
        let mut made = Vec::new();
        for (number, (target, size)) in targets.into_iter().enumerate() {
            let name = if several { format!("{name}-{}", number + 1) } else { name.clone() };
            made.push(client(source, &reader, name, (target, size), setup)?);
        }
        reader.done()?;
        for client in made {
            let volumes = setup.volumes.iter().map(|volume| &volume.name);
            let names = volumes.chain(clients.iter().map(|client| &client.name));
            if names.into_iter().any(|name| *name == client.name) {
                let message = format!("\"{}\" is the name of something else, too", client.name);
                return Err(document.fault("client", message));
            }
            clients.push(client);
        }
    }
    if clients.len() > CLIENTS_MAX {
        let message = format!("{} clients; at most {CLIENTS_MAX}", clients.len());
        return Err(document.fault("client", message));
    }
    Ok(clients)
}

/// Returns the targets that `on` names, and the size of each in bytes.
fn targets(reader: &Reader<'_>, setup: &Setup) -> Read<Vec<(Target, u64)>> {
    let wanted = reader.texts("on")?;
    let mut targets = Vec::new();
    for pattern in reader.need("on", wanted, "the volumes or stripes that it uses")? {
        let volumes = || setup.volumes.iter().map(|volume| volume.name.as_str());
        let stripes = || setup.stripes.iter().map(|stripe| stripe.name.as_str());
        let found = matching(pattern, stripes());
        let before = targets.len();
        targets.extend(found.into_iter().map(|stripe| {
            let members = &setup.stripes[stripe as usize];
            let sizes = members.volumes.iter().map(|&v| setup.volumes[v as usize].size_bytes);
            let chunk = u64::from(members.chunk_bytes);
            let least = sizes.min().unwrap_or(0) / chunk * chunk;
            (Target::Stripe(stripe), least * members.volumes.len() as u64)
        }));
        if targets.len() == before {
            let found = matching(pattern, volumes()).into_iter();
            let sized = |v: u32| (Target::Volume(v), setup.volumes[v as usize].size_bytes);
            targets.extend(found.map(sized));
        }
        if targets.len() == before {
            let names = volumes().chain(stripes());
            return Err(nothing_called(reader, "on", "volume or stripe", pattern, names));
        }
    }
    Ok(targets)
}

fn client(
    source: &Source<'_>,
    reader: &Reader<'_>,
    name: String,
    (target, size_bytes): (Target, u64),
    setup: &Setup,
) -> Read<ClientSetup> {
    let shape = shape(reader, size_bytes)?;
    let end_s = setup.duration_ns as f64 / 1e9;
    let start_ns = reader.scaled("start_s", 1e9, 0.0..=end_s)?.unwrap_or(0);
    let stop_ns = reader.scaled("stop_s", 1e9, start_ns as f64 / 1e9..=end_s)?;
    let load = load(source, reader, size_bytes)?;
    let program = program(reader, &load)?;
    let stop_ns = stop_ns.unwrap_or(u64::MAX);
    Ok(ClientSetup { name, target, shape, load, start_ns, stop_ns, program })
}

/// Reads the program that a client stands for, if the table names one.
fn program(reader: &Reader<'_>, load: &Load) -> Read<Option<ProgramSetup>> {
    let program = reader.choice("program", &Program::WORDS)?;
    let calls = reader.whole("program_calls", CALLS)?;
    let seconds = reader.whole("program_s", PROGRAM_S)?;
    let Some(program) = program else {
        let alone = [("program_calls", calls), ("program_s", seconds)].into_iter();
        let alone = alone.filter(|(_, given)| given.is_some()).map(|(key, _)| key).next();
        return alone.map_or(Ok(None), |key| Err(reader.fault(key, "needs a program")));
    };
    let why = match (program, load) {
        (load, Load::Open { .. }) if load.is_transactions() => None,
        (load, _) if load.is_transactions() => Some("needs iops: those of the volume"),
        (timed, Load::Closed { think: Think::No, .. }) if timed.is_timed() => None,
        (timed, _) if timed.is_timed() => Some("needs threads that wait for each answer"),
        (_, Load::Job { .. }) => None,
        _ => Some("needs job_ios: those of the volume"),
    };
    if let Some(why) = why {
        return Err(reader.fault("program", why));
    }
    let calls = reader.need("program_calls", calls, "how much it does, in its own unit")?;
    let seconds = match (seconds, program.needs_seconds()) {
        (Some(_), false) => {
            return Err(reader.fault("program_s", "this program ends when it is done"));
        }
        (None, true) => reader.need("program_s", None, "how long it runs")?,
        (given, _) => given.unwrap_or(0),
    };
    Ok(Some(ProgramSetup { program, calls, seconds }))
}

fn shape(reader: &Reader<'_>, size_bytes: u64) -> Read<Shape> {
    let block_max_kib = f64::from(REQUEST_BYTES_MAX >> 10);
    let block = reader.scaled("block_kib", 1_024.0, 0.5..=block_max_kib)?.unwrap_or(16 << 10);
    if block % 512 != 0 {
        return Err(reader.fault("block_kib", "must be a multiple of 0.5"));
    }
    let span = reader.scaled("span_gib", GIB as f64, 0.000_5..=1e7)?.unwrap_or(size_bytes);
    if span > size_bytes || span < block {
        let gib = size_bytes as f64 / GIB as f64;
        let message = format!("must be at least one block and at most the target's {gib} GiB");
        return Err(reader.fault("span_gib", message));
    }
    let pattern = reader.choice("pattern", &[("random", false), ("sequential", true)])?;
    let read_percent = reader.small("read_percent", 0..=100)?.unwrap_or(100);
    Ok(Shape {
        read_percent: exact(read_percent, "at most 100"),
        block_bytes: exact(block, "at most REQUEST_BYTES_MAX"),
        sequential: pattern.unwrap_or(false),
        fua: reader.flag("fua")?,
        span_bytes: span,
    })
}

/// The key of each kind of load, and the keys that may stand beside it.
const LOADS: [(&str, &[&str]); 4] = [
    ("iops", &["arrivals"]),
    ("job_ios", &["job_every_s", "arrivals", "depth", "think_us", "think"]),
    ("trace", &[]),
    ("depth", &["threads", "think_us", "think"]),
];

fn load(source: &Source<'_>, reader: &Reader<'_>, size_bytes: u64) -> Read<Load> {
    let kind = LOADS.iter().find(|(key, _)| reader.has(key)).unwrap_or(&LOADS[3]);
    let all = LOADS.iter().flat_map(|(key, with)| [*key].into_iter().chain(with.iter().copied()));
    for key in all {
        if reader.has(key) && key != kind.0 && !kind.1.contains(&key) {
            let message = format!("does not go with {}, which says when requests are sent", kind.0);
            return Err(reader.fault(key, message));
        }
    }
    let depth = reader.small("depth", DEPTH)?.unwrap_or(1);
    let depth: u16 = exact(depth, "within DEPTH");
    match kind.0 {
        "iops" => {
            let per_second = reader.whole("iops", 1..=100_000_000)?.unwrap_or(1);
            let poisson = reader.choice("arrivals", &[("poisson", true), ("even", false)])?;
            Ok(Load::Open { per_second, poisson: poisson.unwrap_or(true) })
        }
        "job_ios" => {
            let every_ns = reader.scaled("job_every_s", 1e9, 0.001..=1e9)?;
            let every_ns = reader.need("job_every_s", every_ns, "distance of the jobs' starts")?;
            let ios = reader.whole("job_ios", 1..=1 << 40)?.unwrap_or(1);
            let think = think(reader)?;
            if think != Think::No && depth > 1 {
                let message = "goes with job_ios where depth is 1";
                return Err(reader.fault("think_us", message));
            }
            let words = [("even", false), ("poisson", true)];
            let poisson = reader.choice("arrivals", &words)?.unwrap_or(false);
            Ok(Load::Job { every_ns, poisson, ios, depth, think })
        }
        "trace" => trace(source, reader, size_bytes),
        _ => {
            let threads = reader.small("threads", DEPTH)?.unwrap_or(1);
            let threads = exact(threads, "within DEPTH");
            Ok(Load::Closed { threads, depth, think: think(reader)? })
        }
    }
}

/// The pause between answer and request.
fn think(reader: &Reader<'_>) -> Read<Think> {
    let ns = reader.scaled("think_us", 1e3, 0.0..=1e12)?;
    let words = [("constant", false), ("exponential", true)];
    let exponential = reader.choice("think", &words)?.unwrap_or(false);
    Ok(match ns {
        None | Some(0) => Think::No,
        Some(ns) if exponential => Think::Exponential(ns),
        Some(ns) => Think::Constant(ns),
    })
}

/// A file with a line `seconds,read|write,offset,length` for each request, in order of time.
fn trace(source: &Source<'_>, reader: &Reader<'_>, size_bytes: u64) -> Read<Load> {
    let path = reader.text("trace")?.unwrap_or_default();
    let Some(files) = source.files else {
        return Err(reader.fault("trace", "only a scenario of your own may name a file"));
    };
    let file = files.read(path).map_err(|message| reader.fault("trace", message))?;
    let mut arrivals: Vec<Arrival> = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = |message: &str| {
            let message = format!("{line:?}: {message}");
            ScenarioError::new(&file.name, number, message)
        };
        let arrival = arrival(line)
            .ok_or_else(|| at("expected seconds,read|write,offset in bytes,length in bytes"))?;
        if arrivals.last().is_some_and(|last| last.at_ns > arrival.at_ns) {
            return Err(at("is earlier than the line before"));
        }
        if arrival.offset.saturating_add(arrival.length.into()) > size_bytes {
            return Err(at(&format!("ends beyond the target's {size_bytes} bytes")));
        }
        if arrival.length == 0 || arrival.length > REQUEST_BYTES_MAX {
            return Err(at(&format!("the length must be from 1 to {REQUEST_BYTES_MAX}")));
        }
        if arrivals.len() == TRACE_MAX {
            return Err(at(&format!("more than {TRACE_MAX} requests")));
        }
        arrivals.push(arrival);
    }
    Ok(Load::Trace(arrivals))
}

fn arrival(line: &str) -> Option<Arrival> {
    let mut fields = line.split(',').map(str::trim);
    let seconds: f64 = fields.next()?.parse().ok()?;
    let is_read = match fields.next()? {
        "read" => true,
        "write" => false,
        _ => return None,
    };
    let offset = fields.next()?.parse().ok()?;
    let length = fields.next()?.parse().ok()?;
    let at_ns = (seconds * 1e9).round() as u64;
    let whole = fields.next().is_none() && seconds.is_finite() && seconds >= 0.0;
    whole.then_some(Arrival { at_ns, is_read, offset, length })
}
