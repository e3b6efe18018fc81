//! Programs that work on files for a time: a file system on the volumes of a stripe, and on it the
//! published program itself.
//!
//! What is laid out before is no part of the experiment, so that the limits come into force when
//! it is done.

use std::path::Path;

use super::{Driven, Export, Host, during, programs, spans_of};
use crate::LabError;
use crate::bench::chain::{Chain, FileSystem, Front};
use crate::bench::fio::VolumeProgress;
use crate::bench::stripe::Member;
use crate::bench::sysbench::{self, Test, Told};
use crate::clock;
use crate::sim::expect::{Counts, Subject};
use crate::sim::record::{Record, Sample, Span, SpanRecord};
use crate::sim::run::Recorded;
use crate::sim::scenario::Case;
use crate::sim::setup::{ClientSetup, InstanceSetup, Load, Setup, StripeSetup, Target};
use crate::sim::world::ClientOutcome;
use crate::stalls::Watch;
use evenkeel_core::qos::pacing::Pacing;

/// What files of a shortened run have in all: anywhere in them is anywhere on every volume, and
/// memory that is touched for the first time is slow.
const FILES_MIB_MAX: u64 = 256;

/// Making a file system, laying out files and taking it down again, in seconds.
const AROUND_S: u64 = 5;

/// More than anything that is laid out could use of an instance.
const INSTANCE_UNBOUND: u64 = 1 << 40;

/// Whether a client of a world is such a program.
pub(super) fn are_any(setup: &Setup) -> bool {
    setup.clients.iter().any(is_one)
}

fn is_one(client: &ClientSetup) -> bool {
    client.program.is_some_and(|setup| setup.program.is_timed())
}

/// What is missing of the programs that are needed.
pub(super) fn lacks() -> Option<String> {
    FileSystem::Xfs.lacks().or_else(sysbench::lacks)
}

/// About how long a case takes, in seconds.
pub(super) fn length_s(setup: &Setup) -> u64 {
    setup.duration_ns / 1_000_000_000 + AROUND_S
}

/// A case's program, and where it works.
struct Plan<'a> {
    number: usize,
    client: &'a ClientSetup,
    stripe: &'a StripeSetup,
    test: Test,
}

/// Runs the program of a case.
pub(super) fn drive(
    case: &Case,
    seed: u64,
    host: &mut dyn Host,
    folder: &Path,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Driven, LabError> {
    let setup = &case.setup;
    let plan = plan(setup, seed)?;
    let exports = host.open(&without_limits(setup))?;
    let members: Vec<Member<'_>> =
        plan.stripe.volumes.iter().map(|volume| member(&exports[*volume as usize])).collect();
    let front = Front::Stripe { members: &members, chunk_bytes: plan.stripe.chunk_bytes };
    let below = folder.join("chain");
    std::fs::create_dir_all(&below).map_err(LabError::io("cannot make", &below))?;
    let chain = Chain::open(&below, front, FileSystem::Xfs)?;
    plan.test.prepare(chain.path())?;
    host.limit(setup)?;
    let neighbours = programs::neighbours(setup, &exports, seed)?;
    let before = counted(host, plan.stripe)?;
    let watch = Watch::start();
    let started_ms = clock::unix_us() / 1_000;
    let told = plan.test.run(chain.path())?;
    let observed = watch.finish();
    let counted = counted(host, plan.stripe)? - before;
    drop(neighbours);
    let answered = told.latency.count;
    let iops = answered as f64 / plan.test.duration_s as f64;
    let runtime_ms = plan.test.duration_s * 1_000;
    let name = plan.client.name.clone();
    progress(&[VolumeProgress { name, iops, ios_total: answered, runtime_ms }]);
    Ok(Driven {
        recorded: recorded(case, &plan, &told, counted),
        command: format!(
            "{}  # {}, sysbench itself: 95 % within {} ms, {counted} I/Os counted by the server \
             for {answered}",
            told.command, case.label, told.rest.p95_ms
        ),
        stalls: during(&observed, Some(started_ms), setup),
        storage: vec![host.storage(), format!("{}: {}", plan.stripe.name, chain.described)],
        warnings: Vec::new(),
    })
}

fn member(export: &Export) -> Member<'_> {
    Member { socket: &export.socket, export: &export.name }
}

fn plan(setup: &Setup, seed: u64) -> Result<Plan<'_>, LabError> {
    let refuse = |client: &ClientSetup, what: &str| {
        LabError::Unjudgeable(format!("client \"{}\" {what}", client.name))
    };
    let mut found = None;
    for (number, client) in setup.clients.iter().enumerate().filter(|(_, client)| is_one(client)) {
        if found.is_some() {
            return Err(refuse(client, "is the second program that works on files"));
        }
        let (Target::Stripe(stripe), Load::Closed { threads, .. }, Some(program)) =
            (client.target, &client.load, client.program)
        else {
            return Err(refuse(client, "works on files, and not on a stripe"));
        };
        if client.shape.block_bytes != sysbench::BLOCK_BYTES {
            return Err(refuse(client, "works on files, and not in blocks of 16 KiB"));
        }
        let test = Test {
            files: program.calls,
            total_mib: (client.shape.span_bytes >> 20).clamp(1, FILES_MIB_MAX),
            threads: *threads,
            sequential: client.shape.sequential,
            read_percent: client.shape.read_percent,
            duration_s: (setup.duration_ns / 1_000_000_000).max(2),
            seed,
        };
        found = Some(Plan { number, client, stripe: &setup.stripes[stripe as usize], test });
    }
    found.ok_or_else(|| LabError::Unjudgeable("no program works on files".to_owned()))
}

/// The same world with limits that nothing reaches.
fn without_limits(setup: &Setup) -> Setup {
    let mut free = setup.clone();
    for volume in &mut free.volumes {
        volume.pacing = Pacing::UNLIMITED;
    }
    for instance in &mut free.instances {
        *instance = InstanceSetup {
            baseline_iops: INSTANCE_UNBOUND,
            iops_max: INSTANCE_UNBOUND,
            baseline_bytes_per_second: INSTANCE_UNBOUND,
            bytes_per_second_max: INSTANCE_UNBOUND,
            ..instance.clone()
        };
    }
    free
}

/// What the server has counted of the stripe's volumes.
fn counted(host: &mut dyn Host, stripe: &StripeSetup) -> Result<u64, LabError> {
    let counted = host.counted()?;
    Ok(stripe.volumes.iter().filter_map(|volume| counted.get(*volume as usize)).sum())
}

/// What the program told, as a record of its client. Of single volumes only their sum is known.
fn recorded(case: &Case, plan: &Plan<'_>, told: &Told, counted: u64) -> Recorded {
    let setup = &case.setup;
    let of_client = |number: usize| match number == plan.number {
        true => record(setup, told, &spans_of(case, client_subject(number))),
        false => Record::default(),
    };
    let clients = (0..setup.clients.len()).map(|number| ClientOutcome {
        record: Some(of_client(number)),
        batches: Vec::new(),
        dropped: 0,
    });
    let mut counts = vec![Counts::default(); setup.volumes.len()];
    if let Some(first) = plan.stripe.volumes.first() {
        counts[*first as usize] = Counts { answered: told.latency.count, counted };
    }
    Recorded {
        clients: clients.collect(),
        volumes: vec![Record::default(); setup.volumes.len()],
        counts,
        completed: told.latency.count,
        ..Recorded::default()
    }
}

fn client_subject(number: usize) -> Subject {
    Subject::Client(u32::try_from(number).unwrap_or(u32::MAX))
}

fn record(setup: &Setup, told: &Told, spans: &[Span]) -> Record {
    let seconds = usize::try_from(setup.duration_ns / setup.sample_ns.max(1)).unwrap_or(0);
    let block_bytes = u64::from(sysbench::BLOCK_BYTES);
    let sample = |ios: &u64| Sample {
        completed: *ios,
        completed_bytes: ios * block_bytes,
        ..Sample::default()
    };
    let samples: Vec<Sample> = told.per_second.iter().take(seconds).map(sample).collect();
    let span = |span: &Span| SpanRecord {
        span: *span,
        dispatched: 0,
        latency: if span.from_ns == 0 { told.latency } else { told.latency_of_rest() },
    };
    Record {
        bytes: samples.iter().map(|sample| sample.completed_bytes).sum(),
        latency: told.latency,
        latency_samples: seconds as u64,
        latencies: vec![told.latency],
        spans: spans.iter().map(span).collect(),
        samples,
    }
}
