//! A live scenario: the same volumes, limits, instances and clients as in virtual time, on a
//! running server and driven by fio, and judged by the same expectations.
//!
//! fio's `nbd` engine knows no stripes. A client on one is a job for each of its volumes, with the
//! requests it keeps under way dealt out among them as evenly as they go.

mod database;
mod files;
mod jobs;
mod length;
mod programs;
mod recorder;
mod room;
mod speed;
mod writer;

use std::path::Path;

pub use self::length::length_s;
use self::recorder::LiveRecorder;
pub use self::speed::Speeds;
use self::writer::Writer;
use super::fio::{self, Completion, Detail, Job, VolumeProgress};
use super::guard::Guard;
use super::{Export, mounts, stop, versions};
use crate::LabError;
use crate::stalls::{Observed, Watch};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_sim::scenario::expect::{Counts, Expectation, Metric, Subject};
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::scenario::setup::{ClientSetup, Load, Setup, Target, Think};
use evenkeel_sim::scenario::{Case, Scenario};
use evenkeel_sim::workload::{Pattern, Workload};
use evenkeel_sim::world::ClientOutcome;
use evenkeel_sim::world::record::Span;
use evenkeel_sim::world::run::{self, CaseResults, Recorded, Results};

/// Most of a volume that is visited: where a block lies means nothing to a limit, and memory that
/// is touched for the first time is slow.
const SPAN_BYTES_MAX: u64 = 256 << 20;

/// What a run takes beside its load: a server made, fio started and its log read.
const AROUND_A_RUN_S: u64 = 2;
/// Runs that fail one after the other until nobody believes in the next.
const FAILURES_MAX: usize = 3;

/// More than anything that is laid out could use of an instance.
const UNBOUND: u64 = 1 << 40;

/// Requests of arrivals at a rate that are under way at most: fio holds later ones back.
const OPEN_UNDER_WAY_MAX: u32 = 256;

/// A server on which the volumes of a scenario can be made.
pub trait Host {
    /// Makes the world of a case afresh: its device, instances and volumes, with their balances.
    /// Where each volume is, in the order of the set-up.
    ///
    /// # Errors
    /// When the server cannot make it so.
    fn open(&mut self, setup: &Setup) -> Result<Vec<Export>, LabError>;

    /// Gives the volumes of the world that is open other limits, and the balances that go with
    /// them; their bytes stay.
    ///
    /// # Errors
    /// When the server does not take them.
    fn limit(&mut self, setup: &Setup) -> Result<(), LabError>;

    /// What the bytes of the world that is open lie on, in words.
    fn storage(&self) -> String;

    /// What the server has counted of each volume since it was made.
    ///
    /// # Errors
    /// When the server does not tell.
    fn counters(&mut self) -> Result<Vec<Counters>, LabError>;

    /// The I/Os of them.
    ///
    /// # Errors
    /// As [`Self::counters`].
    fn counted(&mut self) -> Result<Vec<u64>, LabError> {
        Ok(self.counters()?.into_iter().map(|volume| volume.ios).collect())
    }
}

/// What a server counts of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// I/Os, as its limit counts them.
    pub ios: u64,
    /// Flushes, which cost none.
    pub flushes: u64,
}

/// With what batches of durable writes are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Files {
    /// A file system is mounted on the volume, and a program writes to a file in it.
    Mounted,
    /// The writes that a file system would make are made directly.
    None,
}

/// A scenario that was run live.
#[derive(Clone, PartialEq, Debug)]
pub struct Live {
    /// Judged as in virtual time.
    pub results: Results,
    /// The exact command lines, of each run that came to its end.
    pub commands: Vec<String>,
    /// fio's version.
    pub fio: String,
    /// The machine's own pauses in each of them.
    pub stalls: Vec<Observed>,
    /// What the bytes lay on, each once.
    pub storage: Vec<String>,
    /// Versions of the other programs that were used, each once.
    pub programs: Vec<String>,
    /// What a reader should know before believing the figures.
    pub warnings: Vec<String>,
    /// Why broken figures say nothing of the volumes: the machine was busy, or stood still.
    pub busy: Vec<String>,
    /// The processor beside programs that it binds: why broken figures of theirs say nothing.
    pub speeds: Speeds,
    /// Runs, and programs in them, that came to nothing: which, and why.
    pub failures: Vec<String>,
}

/// Runs every case of a live scenario. Repetitions are interleaved: the first of every case,
/// then the second, because a machine drifts. `progress` is told the case and its volumes about
/// once a second; `folder` holds fio's logs while they are needed, and mounts. What fails in the
/// middle is told in the result, and the others go on, until three in a row have failed.
///
/// # Errors
/// Before anything is run: when a case asks for what cannot be driven, its logs have no room, or
/// fio is missing. And when the whole run is told to stop.
pub fn run(
    scenario: &Scenario,
    host: &mut dyn Host,
    files: Files,
    folder: &Path,
    progress: &mut dyn FnMut(&str, &[VolumeProgress]),
) -> Result<Live, LabError> {
    scenario.cases.iter().try_for_each(can_be_driven)?;
    room::check(&scenario.cases, folder)?;
    let guard = Guard::begin();
    let mut live = Live {
        results: run::finish(scenario, scenario.seed, Vec::new()),
        commands: Vec::new(),
        fio: fio::version()?,
        stalls: Vec::new(),
        storage: Vec::new(),
        programs: Vec::new(),
        // Later the load is our own.
        warnings: fio::load_warning("before").into_iter().collect(),
        busy: Vec::new(),
        speeds: Speeds::default(),
        failures: Vec::new(),
    };
    let mut programs = Vec::new();
    let seed_of = |number: usize| scenario.seed.wrapping_add(number as u64);
    let mut done: Vec<CaseResults> =
        (0..).zip(&scenario.cases).map(|(nth, case)| run::nothing(case, seed_of(nth))).collect();
    let mut in_a_row = 0;
    for number in interleaved(&scenario.cases) {
        let (case, seed) = (&scenario.cases[number], seed_of(number));
        let told = &mut |volumes: &[VolumeProgress]| progress(&case.label, volumes);
        match live.drive(case, seed, host, (files, folder), told, &mut programs) {
            Ok(results) => {
                done[number] = results;
                in_a_row = 0;
            }
            Err(error) => {
                stop::go_on()?;
                let name = if case.label.is_empty() { "the run" } else { &case.label };
                live.failures.push(format!("{name}: {}", in_a_line(&error)));
                in_a_row += 1;
            }
        }
        if in_a_row == FAILURES_MAX {
            live.warnings.push(format!("{in_a_row} runs in a row failed: the rest is not tried"));
            break;
        }
    }
    // That of the load generator is told already.
    programs.retain(|program| *program != "fio");
    live.programs = versions::of(&programs);
    live.busy = guard.reasons(&live.stalls);
    live.results = run::finish(scenario, scenario.seed, done);
    Ok(live)
}

/// A failure as results have it: what a program said may have several lines.
fn in_a_line(error: &LabError) -> String {
    error.to_string().lines().collect::<Vec<_>>().join("; ")
}

/// Refuses a case that asks for what cannot be driven.
fn can_be_driven(case: &Case) -> Result<(), LabError> {
    if database::is_in(&case.setup) {
        return database::check(case);
    }
    if has_batches(&case.setup) {
        return programs::parts_beside(&case.setup).map(|_| ());
    }
    check(case).map(|_| ())
}

/// Runs a case of what knows files.
fn drive_batches(
    case: &Case,
    seed: u64,
    host: &mut dyn Host,
    files: Files,
    folder: &Path,
    told: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<(jobs::Batches, Observed), LabError> {
    if database::is_in(&case.setup) {
        return database::drive(case, seed, host, folder, told);
    }
    let watch = Watch::start();
    let batches = match programs::are_any(&case.setup) {
        true => programs::drive(case, seed, host, files, folder, told)?,
        false => jobs::drive(case, seed, host, files, folder, told)?,
    };
    Ok((batches, watch.finish()))
}

/// A case that was driven for a time.
struct Driven {
    recorded: Recorded,
    command: String,
    stalls: Observed,
    storage: Vec<String>,
    programs: Vec<&'static str>,
}

impl Live {
    /// Runs a case, and notes how; what came of it.
    fn drive(
        &mut self,
        case: &Case,
        seed: u64,
        host: &mut dyn Host,
        (files, folder): (Files, &Path),
        told: &mut dyn FnMut(&[VolumeProgress]),
        programs: &mut Vec<&'static str>,
    ) -> Result<CaseResults, LabError> {
        if has_batches(&case.setup) {
            let (batches, stalls) = drive_batches(case, seed, host, files, folder, told)?;
            self.stalls.push(stalls);
            self.commands.extend(batches.commands);
            self.failures.extend(batches.failures);
            self.speeds.join(batches.speeds);
            self.lay_on(batches.storage);
            programs.extend(batches.programs);
            let mut results = run::conclude(case, seed, &batches.recorded);
            results.clients.extend(batches.more);
            return Ok(results);
        }
        let works_on_files = files == Files::Mounted && files::are_any(&case.setup);
        let driven = match works_on_files {
            true => files::drive(case, seed, host, folder, told)?,
            false => drive(case, seed, host, folder, told)?,
        };
        self.commands.push(driven.command);
        self.stalls.push(driven.stalls);
        self.lay_on(driven.storage);
        programs.extend(&driven.programs);
        Ok(run::conclude(case, seed, &driven.recorded))
    }

    /// Notes what the bytes of a run lay on.
    fn lay_on(&mut self, storage: Vec<String>) {
        for storage in storage {
            if !self.storage.contains(&storage) {
                self.storage.push(storage);
            }
        }
    }
}

/// Whether a scenario has clients for which file systems can be mounted, and others do without.
#[must_use]
pub fn has_files(scenario: &Scenario) -> bool {
    let is_one = |case: &Case| {
        (has_batches(&case.setup) || files::are_any(&case.setup)) && database_of(case).is_none()
    };
    scenario.cases.iter().any(is_one)
}

/// What this machine lacks to mount file systems for a scenario; `None` if nothing.
#[must_use]
pub fn lacks(scenario: &Scenario) -> Option<String> {
    let of_cases = || scenario.cases.iter().find_map(|case| files::lacks(&case.setup));
    mounts::probe().or_else(of_cases)
}

/// Whether a world's clients know files: batches one after the other, or a database.
fn has_batches(setup: &Setup) -> bool {
    jobs::are_all(setup) || programs::are_any(setup) || database::is_in(setup)
}

/// The database that a case is of, which nothing stands in for where no file system can be mounted.
#[must_use]
pub fn database_of(case: &Case) -> Option<Engine> {
    database::engine(&case.setup)
}

/// The databases that programs of a scenario need, each once.
#[must_use]
pub fn engines(scenario: &Scenario) -> Vec<Engine> {
    let clients = scenario.cases.iter().flat_map(|case| &case.setup.clients);
    let mut engines = Vec::new();
    for engine in clients.filter_map(|client| client.program?.program.engine()) {
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    engines
}

/// Numbers of the runs: the first of every case, the second of every case, and so on.
fn interleaved(cases: &[Case]) -> Vec<usize> {
    let nth = |number: usize| {
        cases[..number].iter().filter(|before| before.name == cases[number].name).count()
    };
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_cached_key(|number| nth(*number));
    order
}

/// One job of fio: of which client, on which volume.
struct Part {
    client: usize,
    volume: usize,
    workload: Workload,
}

/// What a case means for fio; refuses what it cannot do.
fn check(case: &Case) -> Result<Vec<Part>, LabError> {
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

fn parts_of(setup: &Setup, number: usize, client: &ClientSetup) -> Result<Vec<Part>, String> {
    let (under_way, rate) = pace(&client.load)?;
    if client.shape.fua {
        // fio's nbd engine cannot ask for them.
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
    let count = u32::try_from(volumes.len()).unwrap_or(u32::MAX).max(1);
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

/// Requests under way, and the rate they come at. Threads that pause between two requests are as
/// many requests as there are threads, and the rate that they come to when answers take no time.
fn pace(load: &Load) -> Result<(u32, Option<u32>), String> {
    let narrow = |rate: u64| Some(u32::try_from(rate).unwrap_or(u32::MAX));
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
        // fio knows no batches at random times: as many requests, one by one.
        Load::Job { every_ns, poisson: true, ios, depth, .. } => {
            let rate = ios.saturating_mul(1_000_000_000) / every_ns.max(1);
            Ok((depth.into(), narrow(rate.max(1))))
        }
        _ => Err("is neither of threads that wait for answers nor of random arrivals".to_owned()),
    }
}

fn seconds(ns: u64) -> u32 {
    u32::try_from(ns / 1_000_000_000).unwrap_or(u32::MAX)
}

fn drive(
    case: &Case,
    seed: u64,
    host: &mut dyn Host,
    folder: &Path,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Driven, LabError> {
    let setup = &case.setup;
    let parts = check(case)?;
    let exports = host.open(&filled_to_the_brim(setup))?;
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
    let watch = Watch::start();
    let writing = writers.iter().map(|writer| writer.start(&exports[writer.volume], seed));
    let writing: Vec<_> = writing.collect();
    let ran = fio::run_each(&jobs, Detail::EveryIo, folder, progress, &mut |job, io| {
        let Some(part) = parts.get(job) else { return };
        let start_ms = u64::from(part.workload.start_s.unwrap_or(0)) * 1_000;
        recorders.completed(part.client, part.volume, io.later(start_ms));
    });
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
    let counted = host.counted()?.into_iter().zip(&answered);
    let counts = counted.map(|(counted, answered)| Counts {
        answered: *answered,
        counted,
        ..Counts::default()
    });
    let recorded = Recorded { counts: counts.collect(), ..recorders.finish(setup) };
    let recorded = Recorded { completed: answered.iter().sum(), ..recorded };
    Ok(Driven {
        recorded,
        command: ran.command,
        stalls: during(&observed, started_ms, setup),
        storage: vec![host.storage()],
        programs: vec!["fio"],
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

/// The same world; where the load begins at once, no bucket has room for more than it holds at the
/// start: what would be earned until fio is there would make a shortened burst longer.
fn filled_to_the_brim(setup: &Setup) -> Setup {
    let mut full = setup.clone();
    if setup.clients.iter().any(|client| client.start_ns > 0) {
        return full;
    }
    for volume in &mut full.volumes {
        let Pacing { operations, bytes, .. } = &mut volume.pacing;
        for (limit, balance) in
            [(operations, volume.balances.operations), (bytes, volume.balances.bytes)]
        {
            let credit = limit.as_mut().and_then(|limit| limit.credit.as_mut());
            if let (Some(credit), Some(balance)) = (credit, balance) {
                credit.capacity = credit.capacity.min(balance);
            }
        }
    }
    full
}

/// The same world without limits, for what is laid out before they are asked for: its volumes have
/// none and no credits, and its instances such as nothing reaches. Such a limit would be a volume's
/// weight, too, and what that brought would still be felt when the real one has come.
fn without_limits(setup: &Setup) -> Setup {
    let mut free = setup.clone();
    for volume in &mut free.volumes {
        (volume.pacing, volume.balances) = (Pacing::UNLIMITED, Balances::default());
    }
    for instance in &mut free.instances {
        instance.baseline_iops = UNBOUND;
        instance.iops_max = UNBOUND;
        instance.baseline_bytes_per_second = UNBOUND;
        instance.bytes_per_second_max = UNBOUND;
    }
    free
}

/// Parts of the run whose latencies are asked for, of one subject. A client that is all that its
/// volume serves is looked for as the volume, and the other way round.
fn spans_of(case: &Case, subject: Subject) -> Vec<Span> {
    let setup = &case.setup;
    let is_same = |of: &Subject| match (*of, subject) {
        (Subject::Client(client), Subject::Volume(volume)) => {
            setup.clients[client as usize].target == Target::Volume(volume)
        }
        (of, subject) => of == subject,
    };
    let all: Vec<&Expectation> = case.expectations.iter().chain(&case.measures).collect();
    let asked = all.into_iter().filter(|expectation| expectation.needs_watch(setup.sample_ns));
    let mut spans: Vec<_> =
        asked.filter(|one| one.of.iter().any(is_same)).map(|one| one.span).collect();
    spans.sort_unstable();
    spans.dedup();
    spans
}

/// The machine's pauses while the load ran.
fn during(observed: &Observed, started_ms: Option<u64>, setup: &Setup) -> Observed {
    let Some(started_ms) = started_ms else {
        return Observed::unwatched("fio did not tell when it began");
    };
    let (from_us, length_us) = (started_ms.saturating_mul(1_000), setup.duration_ns / 1_000);
    Observed { stalls: observed.stalls.during(from_us, length_us), ..observed.clone() }
}

#[cfg(test)]
mod tests;
