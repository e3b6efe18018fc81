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

use std::path::Path;

pub use self::length::length_s;
use self::method::{Context, Driven, Method};
pub use self::speed::Speeds;
use super::fio::{self, VolumeProgress};
use super::interference::Guard;
use super::{Export, cancel, mounts, versions};
use crate::LabError;
use crate::stalls::Observed;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_sim::scenario::expect::{Expectation, Subject};
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::scenario::setup::{Setup, Target};
use evenkeel_sim::scenario::{Case, Scenario};
use evenkeel_sim::world::record::Span;
use evenkeel_sim::world::run::{self, CaseResults, Results};

/// Runs that fail one after the other until nobody believes in the next.
const FAILURES_MAX: usize = 3;

/// More than anything that is laid out could use of an instance.
const UNBOUND: u64 = 1 << 40;

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
    disk_space::check(&scenario.cases, folder)?;
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

impl Live {
    /// Adds how a case was run; what came of it.
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

/// Refuses a case that asks for what cannot be driven.
fn can_be_driven(case: &Case) -> Result<(), LabError> {
    Method::of(&case.setup, Files::None).check(case)
}

/// Whether a scenario has clients for which file systems can be mounted, and others do without.
#[must_use]
pub fn has_files(scenario: &Scenario) -> bool {
    let is_one = |case: &Case| {
        let method = Method::of(&case.setup, Files::Mounted);
        matches!(method, Method::Programs | Method::Batches | Method::Files)
    };
    scenario.cases.iter().any(is_one)
}

/// What this machine lacks to mount file systems for a scenario; `None` if nothing.
#[must_use]
pub fn lacks(scenario: &Scenario) -> Option<String> {
    let of_cases = || scenario.cases.iter().find_map(|case| files::lacks(&case.setup));
    mounts::probe().or_else(of_cases)
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

fn seconds(ns: u64) -> u32 {
    u32::try_from(ns / 1_000_000_000).unwrap_or(u32::MAX)
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
    observed.during(from_us, length_us)
}

#[cfg(test)]
mod tests;
