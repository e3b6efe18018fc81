//! Runs programs that work on files for a time: a file system on the volumes of a stripe, and on it
//! the published program. As in the articles, sysbench gets an XFS on one striped file, and fio a
//! btrfs that spreads over the volumes by itself.
//!
//! The layout of files is not part of the experiment, so the limits come into force after it.

use evenkeel_core::convert::saturating;
use std::path::Path;

use super::method::{Context, Driven};
use super::recorder::LiveRecorder;
use super::{Export, during, filled_to_the_brim, programs, spans_of, without_limits};
use crate::mounts::{FileSystem, Frontend, MountStack};
use crate::stripe::Member;
use crate::sysbench::{self, Test, Told};
use evenkeel_lab::fio::{self, Detail, Job, Standing, VolumeProgress};
use evenkeel_lab::stalls::{Server, Watch};
use evenkeel_lab::target::Target as FioTarget;
use evenkeel_lab::{LabError, cancel};
use evenkeel_os::clock;
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::expect::{Counts, Subject};
use evenkeel_sim::scenario::program::Program;
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, StripeSetup, Target};
use evenkeel_sim::workload::{Pattern, Workload};
use evenkeel_sim::world::ClientOutcome;
use evenkeel_sim::world::record::{Record, Sample, Span, SpanRecord};
use evenkeel_sim::world::run::Recorded;

/// Total size of the files of a shortened run. Its positions are still spread over every volume,
/// and first touches of memory, which are slow, are few.
const FILES_MIB_MAX: u64 = 256;

/// Making a file system, laying out files and taking it down again, in seconds.
const AROUND_S: u64 = 5;

/// Returns whether a client of a world is such a program.
pub(super) fn are_any(setup: &Setup) -> bool {
    setup.clients.iter().any(is_one)
}

fn is_one(client: &ClientSetup) -> bool {
    client.program.is_some_and(|setup| setup.program.is_timed())
}

/// Returns why the programs of a world cannot run; `None` if they can.
pub(super) fn lacks(setup: &Setup) -> Option<String> {
    let of = |program| match program {
        Program::Sysbench => FileSystem::Xfs.lacks().or_else(sysbench::lacks),
        Program::Fio => FileSystem::Btrfs.lacks(),
        _ => None,
    };
    setup.clients.iter().find_map(|client| of(client.program?.program))
}

/// Returns the approximate duration of a case, in seconds.
pub(super) fn length_s(setup: &Setup) -> u64 {
    setup.duration_ns / 1_000_000_000 + AROUND_S
}

/// A case's program, and the place in which it works.
struct Plan<'a> {
    number: usize,
    client: &'a ClientSetup,
    stripe: &'a StripeSetup,
    program: Program,
    files: u64,
    threads: u16,
    depth: u16,
    total_mib: u64,
    duration_s: u64,
    seed: u64,
}

/// The results of a program.
struct Outcome {
    record: Record,
    answered: u64,
    command: String,
    remark: String,
    started_ms: Option<u64>,
}

/// Runs the program of a case.
pub(super) fn drive(context: &mut Context<'_>) -> Result<Driven, LabError> {
    let Context { case, seed, folder, .. } = *context;
    let setup = &case.setup;
    let plan = Plan::of(setup, seed)?;
    cancel::go_on()?;
    let full = filled_to_the_brim(setup);
    let exports = context.host.open(&without_limits(&full))?;
    let stack = plan.mount(&exports, folder)?;
    plan.lay_out(stack.path())?;
    context.host.limit(&full)?;
    let neighbours = programs::neighbours(setup, &exports, seed)?;
    let before = context.host.counted()?;
    let watch = Watch::start(Server::Here);
    let outcome = match plan.program {
        Program::Sysbench => plan.sysbench(case, stack.path())?,
        _ => plan.fio(context, stack.path())?,
    };
    let observed = watch.finish();
    let after = context.host.counted()?;
    drop(neighbours);
    let on_stripe = |volume: usize| plan.stripe.volumes.iter().any(|of| *of as usize == volume);
    let mut counted = 0;
    let mut beside = 0;
    for (volume, (before, after)) in before.iter().zip(&after).enumerate() {
        *(if on_stripe(volume) { &mut counted } else { &mut beside }) += after - before;
    }
    let Outcome { record, answered, command, remark, started_ms } = outcome;
    let name = plan.client.name.clone();
    let iops = answered as f64 / plan.duration_s as f64;
    let runtime_ms = plan.duration_s * 1_000;
    let ios_total = answered;
    (context.progress)(&[VolumeProgress {
        name,
        iops,
        ios_total,
        runtime_ms,
        ..Default::default()
    }]);
    Ok(Driven {
        recorded: plan.recorded(setup, record, Counts { answered, counted, ..Counts::default() }),
        commands: vec![format!(
            "{command}  # {}, {}{remark}: {counted} I/Os counted by the server for {answered}{}",
            case.label,
            plan.program.manner(),
            neighbours_made(beside)
        )],
        stalls: during(&observed, started_ms, setup),
        storage: vec![context.host.storage(), format!("{}: {}", plan.stripe.name, stack.described)],
        programs: [&stack.programs[..], plan.program.tools()].concat(),
        ..Driven::default()
    })
}

impl<'a> Plan<'a> {
    fn of(setup: &'a Setup, seed: u64) -> Result<Self, LabError> {
        let refuse = |client: &ClientSetup, what: &str| {
            LabError::Unjudgeable(format!("client \"{}\" {what}", client.name))
        };
        let mut programs = setup.clients.iter().enumerate().filter(|(_, client)| is_one(client));
        let Some((number, client)) = programs.next() else {
            return Err(LabError::Unjudgeable("no program works on files".to_owned()));
        };
        if let Some((_, second)) = programs.next() {
            return Err(refuse(second, "is the second program that works on files"));
        }
        let (Target::Stripe(stripe), Load::Closed { threads, depth, .. }, Some(program)) =
            (client.target, &client.load, client.program)
        else {
            return Err(refuse(client, "works on files, and not on a stripe"));
        };
        let is_as_sysbench = client.shape.block_bytes == sysbench::BLOCK_BYTES && *depth == 1;
        if program.program == Program::Sysbench && !is_as_sysbench {
            return Err(refuse(client, "is sysbench, and not one block of 16 KiB at a time"));
        }
        Ok(Self {
            number,
            client,
            stripe: &setup.stripes[stripe as usize],
            program: program.program,
            files: program.calls.max(1),
            threads: *threads,
            depth: *depth,
            total_mib: (client.shape.span_bytes >> 20).clamp(1, FILES_MIB_MAX),
            duration_s: (setup.duration_ns / 1_000_000_000).max(2),
            seed,
        })
    }

    /// Mounts the file system on the volumes, as in the article.
    fn mount(&self, exports: &[Export], folder: &Path) -> Result<MountStack, LabError> {
        let below = folder.join("chain");
        let volumes = self.stripe.volumes.iter();
        let members: Vec<Member<'_>> =
            volumes.map(|volume| member(&exports[*volume as usize])).collect();
        let chunk_bytes = self.stripe.chunk_bytes;
        if self.program == Program::Sysbench {
            let front = Frontend::Stripe { members: &members, chunk_bytes };
            return MountStack::open(&below, &[front], FileSystem::Xfs);
        }
        let apart = members.chunks(1).map(|members| Frontend::Stripe { members, chunk_bytes });
        MountStack::open(&below, &apart.collect::<Vec<_>>(), FileSystem::Btrfs)
    }

    fn lay_out(&self, mounted: &Path) -> Result<(), LabError> {
        match self.program {
            Program::Sysbench => self.test().prepare(mounted),
            _ => fio::lay_out(&self.target(mounted)),
        }
    }

    fn test(&self) -> Test {
        Test {
            files: self.files,
            total_mib: self.total_mib,
            threads: self.threads,
            sequential: self.client.shape.sequential,
            read_percent: self.client.shape.read_percent,
            duration_s: self.duration_s,
            seed: self.seed,
        }
    }

    fn target(&self, mounted: &Path) -> FioTarget {
        let mib = (self.total_mib / self.files).max(1);
        FioTarget::Files { folder: mounted.to_owned(), files: self.files, mib }
    }

    fn sysbench(&self, case: &Case, mounted: &Path) -> Result<Outcome, LabError> {
        let started_ms = Some(clock::unix_us() / 1_000);
        let output = self.test().run(mounted)?;
        Ok(Outcome {
            record: record(&case.setup, &output, &self.spans(case)),
            answered: output.latency.count,
            remark: format!(", 95 % within {} ms", output.rest.p95_ms),
            command: output.command,
            started_ms,
        })
    }

    /// Runs fio with a job for each thread, all on the same files.
    fn fio(&self, context: &mut Context<'_>, mounted: &Path) -> Result<Outcome, LabError> {
        let Context { case, folder, .. } = *context;
        let progress = &mut *context.progress;
        let shape = self.client.shape;
        let workload = Workload {
            pattern: if shape.sequential { Pattern::Sequential } else { Pattern::Random },
            block_bytes: shape.block_bytes,
            read_percent: shape.read_percent,
            queue_depth: self.depth.into(),
            duration_s: saturating::<_, u32>(self.duration_s),
            span_mib: None,
            rate_iops: None,
            start_s: None,
            seed: self.seed,
        };
        let job = |thread: u16| Job {
            name: self.client.name.clone(),
            target: self.target(mounted),
            workload: Workload { seed: self.seed.wrapping_add(thread.into()), ..workload },
        };
        let jobs: Vec<Job> = (0..self.threads).map(job).collect();
        let mut recorder = LiveRecorder::new(&case.setup, self.spans(case));
        let ran = fio::run_each(
            &jobs,
            Detail::EveryIo,
            Standing::Same,
            folder,
            progress,
            &mut |_, io| {
                recorder.completed(io);
            },
        )?;
        ran.is_well(&case.label)?;
        Ok(Outcome {
            record: recorder.finish(),
            answered: ran.measurements.iter().map(|measurement| measurement.ios_total).sum(),
            remark: String::new(),
            started_ms: ran.started_unix_ms(),
            command: ran.command,
        })
    }

    fn spans(&self, case: &Case) -> Vec<Span> {
        spans_of(case, Subject::Client(saturating::<_, u32>(self.number)))
    }

    /// Returns the program's record as that of its client. Of the volumes only the sum is known.
    fn recorded(&self, setup: &Setup, record: Record, counts: Counts) -> Recorded {
        let mut clients: Vec<ClientOutcome> = Vec::new();
        for _ in &setup.clients {
            let record = Some(Record::default());
            clients.push(ClientOutcome { record, batches: Vec::new(), dropped: 0 });
        }
        clients[self.number].record = Some(record);
        let mut of_volumes = vec![Counts::default(); setup.volumes.len()];
        if let Some(first) = self.stripe.volumes.first() {
            of_volumes[*first as usize] = counts;
        }
        Recorded {
            clients,
            volumes: vec![Record::default(); setup.volumes.len()],
            counts: of_volumes,
            completed: counts.answered,
            ..Recorded::default()
        }
    }
}

/// Returns why the programs of a world cannot be driven.
#[cfg(test)]
pub(super) fn refusal(setup: &Setup) -> String {
    Plan::of(setup, 1).err().map(|error| error.to_string()).unwrap_or_default()
}

fn member(export: &Export) -> Member<'_> {
    Member { socket: &export.socket, export: &export.name }
}

/// Returns a remark on the I/Os of the load beside the program, which is not recorded.
fn neighbours_made(ios: u64) -> String {
    if ios == 0 { String::new() } else { format!(", and {ios} of others beside it") }
}

/// Returns a record of sysbench's results. Percentiles are those of the whole run.
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
        quantiles_ns: told.quantiles_ns.clone(),
        latency_samples: seconds as u64,
        latencies: vec![told.latency],
        spans: spans.iter().map(span).collect(),
        samples,
    }
}
