//! A live scenario: the same volumes, limits, instances and clients as in virtual time, on a
//! running server, and judged by the same expectations.
//!
//! [`run`](fn@run) is given a [`Host`] that makes the volumes. What its clients are decides the
//! `Method` by which a case is driven: a database, programs, batches, a program on files, or plain
//! requests.

mod database;
mod disk_space;
mod files;
mod jobs;
mod length;
mod method;
mod programs;
mod recorder;
mod requests;
mod speed;
mod writer;

use evenkeel_core::convert::saturating;
use std::path::Path;

pub use self::length::length_s;
use self::method::{Context, Driven, Method};
pub use self::speed::Speeds;
use crate::{mounts, versions};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_lab::fio::{self, VolumeProgress};
use evenkeel_lab::interference::Guard;
use evenkeel_lab::nbd_uri::Export;
use evenkeel_lab::stalls::Observed;
use evenkeel_lab::{LabError, cancel};
use evenkeel_sim::scenario::expect::{Expectation, Subject};
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::scenario::setup::{Setup, Target};
use evenkeel_sim::scenario::{Case, Scenario};
use evenkeel_sim::world::record::Span;
use evenkeel_sim::world::run::{self, CaseResults, Results};

/// Consecutive failed runs after which the remaining runs are skipped.
const FAILURES_MAX: usize = 3;

/// More operations or bytes per second than a layout could use.
const UNBOUND: u64 = 1 << 40;

/// A server on which the volumes of a scenario can be made.
pub trait Host {
    /// Creates the device, instances and volumes of a case, with their balances, and removes those
    /// of the case before. Returns where each volume is, in the order of the set-up.
    ///
    /// # Errors
    /// If the server cannot create them.
    fn open(&mut self, setup: &Setup) -> Result<Vec<Export>, LabError>;

    /// Gives the open volumes other limits, with their balances; their bytes stay.
    ///
    /// # Errors
    /// If the server refuses the limits.
    fn limit(&mut self, setup: &Setup) -> Result<(), LabError>;

    /// Returns a description of the storage below the open volumes.
    fn storage(&self) -> String;

    /// Returns the server's counters of each volume since its creation.
    ///
    /// # Errors
    /// If the server does not return them.
    fn counters(&mut self) -> Result<Vec<Counters>, LabError>;

    /// Returns the I/O counters of the volumes.
    ///
    /// # Errors
    /// As [`Self::counters`].
    fn counted(&mut self) -> Result<Vec<u64>, LabError> {
        Ok(self.counters()?.into_iter().map(|volume| volume.ios).collect())
    }
}

/// The server's counters of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// I/Os, as its limit counts them.
    pub ios: u64,
    /// Flushes, which cost no I/O.
    pub flushes: u64,
}

/// The way in which batches of durable writes are made.
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
    /// Descriptions of the storage below the volumes, without duplicates.
    pub storage: Vec<String>,
    /// Versions of the other programs that were used, without duplicates.
    pub programs: Vec<String>,
    /// Warnings that limit what the figures prove.
    pub warnings: Vec<String>,
    /// Reasons for which broken figures prove nothing about the volumes: the machine was busy, or
    /// stood still.
    pub busy: Vec<String>,
    /// Speeds of the processor beside programs that it limits: a slow one explains their broken
    /// figures.
    pub speeds: Speeds,
    /// Runs, and programs in them, that failed, each with the reason.
    pub failures: Vec<String>,
}

/// Runs every case of a live scenario. Repetitions are interleaved: the first of every case, then
/// the second, because a machine drifts. `progress` is called with the case and its volumes about
/// once a second. `folder` holds fio's logs while they are needed, and mounts. A failure during a
/// run is recorded in the result, and the other runs continue, until three in a row have failed.
///
/// # Errors
/// Before the first run, if a case cannot be driven, its logs have no room, or fio is missing.
/// Later, if the process is asked to stop.
pub fn run(
    scenario: &Scenario,
    host: &mut dyn Host,
    files: Files,
    folder: &Path,
    progress: &mut dyn FnMut(&str, &[VolumeProgress]),
) -> Result<Live, LabError> {
    scenario.cases.iter().try_for_each(can_be_driven)?;
    disk_space::check(&scenario.cases, folder)?;
    let guard = Guard::begin();
    let mut live = Live {
        results: run::finish(scenario, scenario.seed, Vec::new()),
        commands: Vec::new(),
        fio: fio::version()?,
        stalls: Vec::new(),
        storage: Vec::new(),
        programs: Vec::new(),
        // Later, the load comes from these runs themselves.
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
        let case = &scenario.cases[number];
        let seed = seed_of(number);
        let progress = &mut |volumes: &[VolumeProgress]| progress(&case.label, volumes);
        let context = &mut Context { case, seed, host: &mut *host, files, folder, progress };
        match Method::of(&case.setup, files).drive(context) {
            Ok(driven) => {
                programs.extend(&driven.programs);
                done[number] = live.add(case, seed, driven);
                in_a_row = 0;
            }
            Err(error) => {
                cancel::go_on()?;
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
    // The load generator's version is in `fio` already.
    programs.retain(|program| *program != "fio");
    live.programs = versions::of(&programs);
    live.busy = guard.reasons(&live.stalls);
    live.results = run::finish(scenario, scenario.seed, done);
    Ok(live)
}

/// Returns an error as one line, as results have it; a program's message may have several.
fn in_a_line(error: &LabError) -> String {
    error.to_string().lines().collect::<Vec<_>>().join("; ")
}

impl Live {
    /// Adds the outcome of a run, and returns its results.
    fn add(&mut self, case: &Case, seed: u64, driven: Driven) -> CaseResults {
        self.stalls.push(driven.stalls);
        self.commands.extend(driven.commands);
        self.failures.extend(driven.failures);
        self.speeds.join(driven.speeds);
        for storage in driven.storage {
            if !self.storage.contains(&storage) {
                self.storage.push(storage);
            }
        }
        let mut results = run::conclude(case, seed, &driven.recorded);
        results.clients.extend(driven.more);
        results
    }
}

/// Refuses a case that cannot be driven.
fn can_be_driven(case: &Case) -> Result<(), LabError> {
    Method::of(&case.setup, Files::None).check(case)
}

/// Returns whether a scenario has clients for which file systems can be mounted, but need not be.
#[must_use]
pub fn has_files(scenario: &Scenario) -> bool {
    let is_one = |case: &Case| {
        let method = Method::of(&case.setup, Files::Mounted);
        matches!(method, Method::Programs | Method::Batches | Method::Files)
    };
    scenario.cases.iter().any(is_one)
}

/// Returns why this machine cannot mount the file systems of a scenario; `None` if it can.
#[must_use]
pub fn lacks(scenario: &Scenario) -> Option<String> {
    let of_cases = || scenario.cases.iter().find_map(|case| files::lacks(&case.setup));
    mounts::probe().or_else(of_cases)
}

/// Returns the database of a case. Without a file system, such a case cannot run.
#[must_use]
pub fn database_of(case: &Case) -> Option<Engine> {
    database::engine(&case.setup)
}

/// Returns the databases that programs of a scenario need, without duplicates.
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

/// Returns the numbers of the cases in the order of their runs: the first run of every case, then
/// the second of every case, and so on.
fn interleaved(cases: &[Case]) -> Vec<usize> {
    let nth = |number: usize| {
        cases[..number].iter().filter(|before| before.name == cases[number].name).count()
    };
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_cached_key(|number| nth(*number));
    order
}

fn seconds(ns: u64) -> u32 {
    saturating::<_, u32>(ns / 1_000_000_000)
}

/// Returns the set-up with buckets that have no room beyond their balance at the start, if every
/// load begins at once. Credits earned until fio starts would make a shortened burst longer.
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

/// Returns the set-up for the layout of files, before the limits apply: volumes without limits and
/// credits, and instances with limits out of reach. A real limit would also be a volume's weight,
/// and the effect of that weight would outlast it.
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

/// Returns the spans of the run in which latencies of this subject are needed. A client that has a
/// volume to itself counts as the volume, and the other way round.
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

/// Returns the machine's pauses while the load ran.
fn during(observed: &Observed, started_ms: Option<u64>, setup: &Setup) -> Observed {
    let Some(started_ms) = started_ms else {
        return Observed::unwatched("fio did not tell when it began");
    };
    let from_us = started_ms.saturating_mul(1_000);
    let length_us = setup.duration_ns / 1_000;
    observed.during(from_us, length_us)
}

#[cfg(test)]
mod tests;
