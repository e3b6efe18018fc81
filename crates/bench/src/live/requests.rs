//! Makes requests at volumes with fio: each client is a job for each of its volumes, and a log
//! writer of this crate runs beside them.
//!
//! fio's `nbd` engine has no stripes. A client on a stripe is a job for each of its volumes, and
//! its requests under way are divided among them as evenly as possible.

use super::method::{Context, Driven};
use super::recorder::LiveRecorder;
use super::writer::{self, Writer};
use super::{during, filled_to_the_brim, seconds, spans_of};
use evenkeel_core::convert::saturating;
use evenkeel_lab::LabError;
use evenkeel_lab::fio::{self, Completion, Detail, Job, Standing};
use evenkeel_lab::stalls::{Server, Watch};
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::expect::{Counts, Metric, Subject};
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, Target, Think};
use evenkeel_sim::workload::{Pattern, Workload};
use evenkeel_sim::world::ClientOutcome;
use evenkeel_sim::world::run::Recorded;

/// The range of a volume that is visited. Positions do not matter to limits, and first touches of
/// memory are slow.
const SPAN_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of requests under way of random arrivals; fio delays later ones.
const OPEN_UNDER_WAY_MAX: u32 = 256;

/// One job of fio: a client's on a volume.
pub(super) struct Part {
    pub client: usize,
    pub volume: usize,
    pub workload: Workload,
}

/// Returns the jobs of fio for a case; refuses a case that fio cannot drive.
pub(super) fn check(case: &Case) -> Result<Vec<Part>, LabError> {
    let setup = &case.setup;
    let refuse = |what: String| {
        let label = if case.label.is_empty() { "the run" } else { &case.label };
        Err(LabError::Unjudgeable(format!("{label} cannot be driven live: {what}")))
    };
    for expectation in case.expectations.iter().chain(&case.measures) {
        if expectation.at_dispatch || expectation.metric == Metric::Peak10ms {
            return refuse(format!("{expectation}: when requests go to the device is not seen"));
        }
    }
    if !setup.changes.is_empty() {
        return refuse("it has [[change]]s".to_owned());
    }
    if setup.device.collection.is_some() || setup.device.window.is_some() {
        return refuse("its [device] has gc_every_mib, or is scheduled".to_owned());
    }
    let mut parts = Vec::new();
    for (number, client) in setup.clients.iter().enumerate() {
        if Writer::of(number, setup).is_some() {
            continue;
        }
        match parts_of(setup, number, client) {
            Ok(of_client) => parts.extend(of_client),
            Err(what) => return refuse(format!("client \"{}\" {what}", client.name)),
        }
    }
    Ok(parts)
}

/// Returns the jobs of a client.
pub(super) fn parts_of(
    setup: &Setup,
    number: usize,
    client: &ClientSetup,
) -> Result<Vec<Part>, String> {
    let (under_way, rate) = pace(&client.load)?;
    if client.shape.fua {
        // fio's nbd engine cannot set FUA.
        return Err("makes durable writes, but not one at a time on one volume".to_owned());
    }
    if rate.is_some() && !matches!(client.target, Target::Volume(_)) {
        return Err("comes at a rate, and so goes to one volume only".to_owned());
    }
    let volumes: Vec<usize> = match client.target {
        Target::Volume(volume) => vec![volume as usize],
        Target::Stripe(stripe) => {
            setup.stripes[stripe as usize].volumes.iter().map(|volume| *volume as usize).collect()
        }
    };
    let count = saturating::<_, u32>(volumes.len()).max(1);
    let span = (client.shape.span_bytes / u64::from(count)).min(SPAN_BYTES_MAX) >> 20;
    let start_s = seconds(client.start_ns);
    let part = |(nth, volume): (u32, &usize)| Part {
        client: number,
        volume: *volume,
        workload: Workload {
            pattern: if client.shape.sequential { Pattern::Sequential } else { Pattern::Random },
            block_bytes: client.shape.block_bytes,
            read_percent: client.shape.read_percent,
            queue_depth: under_way / count + u32::from(nth < under_way % count),
            duration_s: seconds(client.stop_ns.min(setup.duration_ns)).saturating_sub(start_s),
            span_mib: u32::try_from(span.max(1)).ok(),
            rate_iops: rate,
            start_s: (start_s > 0).then_some(start_s),
            seed: 1,
        },
    };
    let parts: Vec<Part> = (0_u32..).zip(&volumes).map(part).collect();
    match parts.iter().try_for_each(|part| part.workload.validate()) {
        Ok(()) => Ok(parts),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the requests under way, and their rate if there is one. Threads that pause between two
/// requests become one request under way each, at the rate that they would have if answers took no
/// time.
fn pace(load: &Load) -> Result<(u32, Option<u32>), String> {
    let narrow = |rate: u64| Some(saturating::<_, u32>(rate));
    match *load {
        Load::Closed { threads, depth, think } => {
            let under_way = u32::from(threads) * u32::from(depth);
            let rate = match think {
                Think::No | Think::Constant(0) | Think::Exponential(0) => None,
                Think::Constant(ns) | Think::Exponential(ns) => {
                    narrow(u64::from(under_way) * 1_000_000_000 / ns)
                }
            };
            Ok((under_way, rate))
        }
        Load::Open { per_second, poisson: true } => Ok((OPEN_UNDER_WAY_MAX, narrow(per_second))),
        // fio has no batches at random times: the same number of requests comes one by one.
        Load::Job { every_ns, poisson: true, ios, depth, .. } => {
            let rate = ios.saturating_mul(1_000_000_000) / every_ns.max(1);
            Ok((depth.into(), narrow(rate.max(1))))
        }
        _ => Err("is neither of threads that wait for answers nor of random arrivals".to_owned()),
    }
}

/// Makes the requests of a case.
pub(super) fn drive(context: &mut Context<'_>) -> Result<Driven, LabError> {
    let Context { case, seed, folder, .. } = *context;
    let setup = &case.setup;
    let parts = check(case)?;
    let exports = context.host.open(&filled_to_the_brim(setup))?;
    let jobs: Vec<Job> = (1_u64..)
        .zip(&parts)
        .map(|(nth, part)| Job {
            name: setup.volumes[part.volume].name.clone(),
            target: exports[part.volume].uri().into(),
            workload: Workload {
                seed: seed.wrapping_mul(1_000).wrapping_add(nth),
                ..part.workload
            },
        })
        .collect();
    let mut recorders = Recorders::new(case);
    let writers: Vec<Writer> =
        (0..setup.clients.len()).filter_map(|number| Writer::of(number, setup)).collect();
    let watch = Watch::start(Server::Here);
    let writing = writers.iter().map(|writer| writer.start(&exports[writer.volume], seed));
    let writing: Vec<_> = writing.collect();
    let ran = fio::run_each(
        &jobs,
        Detail::EveryIo,
        Standing::Same,
        folder,
        context.progress,
        &mut |job, io| {
            let Some(part) = parts.get(job) else { return };
            let start_ms = u64::from(part.workload.start_s.unwrap_or(0)) * 1_000;
            recorders.completed(part.client, part.volume, io.later(start_ms));
        },
    );
    let written: Vec<_> = writing.into_iter().map(writer::Writing::finish).collect();
    let observed = watch.finish();
    let ran = ran?;
    ran.is_well(&case.label)?;
    let started_ms = ran.started_unix_ms();
    let mut answered = vec![0; setup.volumes.len()];
    for (part, measured) in parts.iter().zip(&ran.measurements) {
        answered[part.volume] += measured.ios_total;
    }
    for (writer, written) in writers.iter().zip(written) {
        let written = written?;
        answered[writer.volume] += written.ios.len() as u64;
        for io in written.since(started_ms) {
            recorders.completed(writer.client, writer.volume, io);
        }
    }
    let counted = context.host.counted()?.into_iter().zip(&answered);
    let counts = counted.map(|(counted, answered)| Counts {
        answered: *answered,
        counted,
        ..Counts::default()
    });
    let recorded = Recorded { counts: counts.collect(), ..recorders.finish(setup) };
    let recorded = Recorded { completed: answered.iter().sum(), ..recorded };
    Ok(Driven {
        recorded,
        commands: vec![ran.command],
        stalls: during(&observed, started_ms, setup),
        storage: vec![context.host.storage()],
        programs: vec!["fio"],
        ..Driven::default()
    })
}

/// The records of a case's volumes and clients while it runs.
struct Recorders {
    volumes: Vec<LiveRecorder>,
    clients: Vec<LiveRecorder>,
}

impl Recorders {
    fn new(case: &Case) -> Self {
        let setup = &case.setup;
        let of = |subject| LiveRecorder::new(setup, spans_of(case, subject));
        let volumes = (0_u32..).zip(&setup.volumes).map(|(number, _)| of(Subject::Volume(number)));
        let clients = (0_u32..).zip(&setup.clients).map(|(number, _)| of(Subject::Client(number)));
        Self { volumes: volumes.collect(), clients: clients.collect() }
    }

    fn completed(&mut self, client: usize, volume: usize, io: Completion) {
        self.clients[client].completed(io);
        self.volumes[volume].completed(io);
    }

    fn finish(self, setup: &Setup) -> Recorded {
        let outcomes =
            setup.clients.iter().zip(self.clients).map(|(client, recorder)| ClientOutcome {
                record: (!setup.is_sole(client.target)).then(|| recorder.finish()),
                batches: Vec::new(),
                dropped: 0,
            });
        Recorded {
            clients: outcomes.collect(),
            volumes: self.volumes.into_iter().map(LiveRecorder::finish).collect(),
            ..Recorded::default()
        }
    }
}
