//! Runs scenarios: every case in a world of its own, judged by its expectations.

use super::client::BatchRecord;
use super::policy::Policy;
use super::product::{NotSimulated, Product};
use super::record::{Record, Sample};
use crate::check::{self, Check};
use crate::figures::histogram::LatencySummary;
use crate::scenario::expect::{Counts, Evidence, Expectation, Subject};
use crate::scenario::levels::{self, Level};
use crate::scenario::setup::{ClientSetup, Load, Setup, Target};
use crate::scenario::{Case, Scenario};
use crate::world::{ClientOutcome, World};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::time::Duration;
use serde::Serialize;

/// The name of the JSON format. It changes if a reader of the old format would misread the new one.
pub const SCHEMA: &str = "evenkeel.sim/1";

/// The results of a scenario.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The scenario's name.
    pub scenario: String,
    /// Title of a few words.
    pub title: String,
    /// Description of the experiment.
    pub about: String,
    /// Where its figures come from.
    pub source: String,
    /// Day of the volume rules.
    pub as_of: String,
    /// Seed of the first case.
    pub seed: u64,
    /// Whether all expectations are met.
    pub pass: bool,
    /// The results of each run.
    pub cases: Vec<CaseResults>,
    /// Comparisons between runs.
    #[serde(serialize_with = "check::expectations")]
    pub comparisons: Vec<Check>,
}

/// The results of one case.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CaseResults {
    /// Unique name of the run.
    pub label: String,
    /// Its seed.
    pub seed: u64,
    /// Simulated seconds.
    pub duration_s: u64,
    /// Time between two samples, in seconds.
    pub sample_s: u64,
    /// I/Os that were answered.
    pub ios: u64,
    /// Whether all expectations are met.
    pub pass: bool,
    /// Each expectation.
    #[serde(serialize_with = "check::expectations")]
    pub checks: Vec<Check>,
    /// Figures that are compared with those of other runs.
    #[serde(skip)]
    pub measured: Vec<Option<f64>>,
    /// Each volume.
    pub volumes: Vec<SubjectResults>,
    /// Each client whose record differs from its volume's, or that has batches or dropped requests.
    pub clients: Vec<SubjectResults>,
}

/// The results of a volume or a client.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct SubjectResults {
    /// Its name.
    pub name: String,
    /// The type and size of a volume, the target of a client.
    pub kind: String,
    /// The limits of a volume in words.
    pub limits: String,
    /// Requests that were answered.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Latencies that the client measured.
    pub latency: LatencySummary,
    /// Upper bounds of the latencies of the shares of requests in
    /// [`SHARES_PPM`](crate::figures::histogram::SHARES_PPM), in nanoseconds; empty if only sums
    /// are known.
    #[serde(skip)]
    pub quantiles_ns: Vec<u64>,
    /// Size of a client's requests in bytes; 0 if they differ.
    #[serde(skip)]
    pub block_bytes: u32,
    /// Plural of the unit that a client counts; empty if it counts its requests.
    #[serde(skip)]
    pub unit: &'static str,
    /// Requests dispatched to the device, for each sample.
    pub dispatched: Vec<u64>,
    /// Requests answered, for each sample.
    pub completed: Vec<u64>,
    /// Their bytes.
    pub completed_bytes: Vec<u64>,
    /// Largest number of requests dispatched in ten milliseconds, for each sample.
    pub peak_10ms: Vec<u32>,
    /// I/O credits at the end of each sample; empty without credits.
    pub credits: Vec<u64>,
    /// Byte credits at the end of each sample; empty without credits.
    pub credits_bytes: Vec<u64>,
    /// I/O credits of a client's target at the end of each sample: the sum over a stripe's volumes.
    #[serde(skip)]
    pub target_credits: Vec<u64>,
    /// Byte credits of a client's target at the end of each sample.
    #[serde(skip)]
    pub target_credits_bytes: Vec<u64>,
    /// Number of samples in each of `latencies`.
    pub latency_samples: u64,
    /// Latencies of equal stretches of the run.
    pub latencies: Vec<LatencySummary>,
    /// Batches of a client: start and duration in nanoseconds.
    pub jobs: Vec<(u64, u64)>,
    /// Number of requests in each batch.
    pub job_ios: u64,
    /// Requests of a client that were not sent because too many were in flight.
    pub dropped: u64,
    /// The lines of limits in a chart of the rate.
    #[serde(skip)]
    pub levels: Vec<Level>,
}

/// The method by which a run is simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Every request is simulated.
    Stepwise,
    /// Exactly repeated stretches are computed. The results are the same.
    ClosedForm,
}

/// The records of a case, in virtual time or live.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Recorded {
    /// The record of each volume, in the order of the setup.
    pub volumes: Vec<Record>,
    /// The outcome of each client.
    pub clients: Vec<ClientOutcome>,
    /// Time's worth of tokens that the scheduler has paid back to each volume; empty if it does not
    /// report that.
    pub catch_up: Vec<Duration>,
    /// The counts of both ends of each volume.
    pub counts: Vec<Counts>,
    /// I/Os that were answered.
    pub completed: u64,
}

/// Runs the cases of a scenario on the product's scheduler. Calls `each` with the results of every
/// case.
///
/// # Errors
/// Returns an error if a part of the scenario cannot be simulated.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    method: Method,
    each: &mut dyn FnMut(&CaseResults),
) -> Result<Results, NotSimulated> {
    run_with(scenario, (seed, method), Product::new, each)
}

/// Runs the cases of a scenario on the scheduler that `policy` creates.
///
/// # Errors
/// Returns the error of `policy`.
pub fn run_with<P: Policy, E>(
    scenario: &Scenario,
    (seed, method): (u64, Method),
    policy: impl Fn(&Setup) -> Result<P, E>,
    each: &mut dyn FnMut(&CaseResults),
) -> Result<Results, E> {
    let mut cases = Vec::with_capacity(scenario.cases.len());
    for (case, number) in scenario.cases.iter().zip(0_u64..) {
        let seed = seed.wrapping_add(number);
        let results = run_case(case, (seed, method), policy(&case.setup)?);
        each(&results);
        cases.push(results);
    }
    Ok(finish(scenario, seed, cases))
}

/// Creates the results of a scenario from those of its cases.
#[must_use]
pub fn finish(scenario: &Scenario, seed: u64, cases: Vec<CaseResults>) -> Results {
    let measured: Vec<&[Option<f64>]> = cases.iter().map(|case| &case.measured[..]).collect();
    let comparisons: Vec<Check> =
        scenario.comparisons.iter().map(|comparison| comparison.check(&measured)).collect();
    let compared = comparisons.iter().all(|check| check.pass);
    Results {
        schema: SCHEMA,
        scenario: scenario.name.clone(),
        title: scenario.title.clone(),
        about: scenario.about.clone(),
        source: scenario.source.clone(),
        as_of: scenario.as_of.to_string(),
        seed,
        pass: compared && cases.iter().all(|case| case.pass),
        cases,
        comparisons,
    }
}

fn run_case<P: Policy>(case: &Case, (seed, method): (u64, Method), policy: P) -> CaseResults {
    let setup = &case.setup;
    let mut world = World::new(setup, seed, policy);
    if method == Method::ClosedForm {
        world = world.leaping(setup);
    }
    for expectation in case.expectations.iter().chain(&case.measures) {
        if expectation.needs_watch(setup.sample_ns) {
            for subject in &expectation.of {
                match resolved(setup, *subject) {
                    Subject::Volume(volume) => world.watch_volume(volume, expectation.span),
                    Subject::Client(client) => world.watch_client(client, expectation.span),
                }
            }
        }
    }
    let outcome = world.run();
    let volumes = (0_u32..).zip(&outcome.volumes);
    let recorded = Recorded {
        catch_up: volumes.map(|(volume, _)| outcome.policy.catch_up(volume)).collect(),
        counts: outcome.volumes.iter().map(counts).collect(),
        volumes: outcome.volumes,
        clients: outcome.clients,
        completed: outcome.census.completed,
    };
    conclude(case, seed, &recorded)
}

/// Counts the answers and the dispatches of a record. In virtual time they are recorded separately.
fn counts(record: &Record) -> Counts {
    let total = |pick: fn(&Sample) -> u64| record.samples.iter().map(pick).sum();
    let answered = total(|at| at.completed);
    let counted = total(|at| at.dispatched);
    Counts { answered, counted, ..Counts::default() }
}

/// Judges the records of a case.
#[must_use]
pub fn conclude(case: &Case, seed: u64, recorded: &Recorded) -> CaseResults {
    let setup = &case.setup;
    let check = |expectation: &Expectation| {
        let of: Vec<_> =
            expectation.of.iter().filter_map(|of| evidence(setup, recorded, *of)).collect();
        expectation.check(&of, setup.sample_ns)
    };
    let checks: Vec<Check> = case.expectations.iter().map(check).collect();
    let measured = case.measures.iter().map(|measure| check(measure).value).collect();
    CaseResults {
        label: case.label.clone(),
        seed,
        duration_s: setup.duration_ns / 1_000_000_000,
        sample_s: setup.sample_ns / 1_000_000_000,
        ios: recorded.completed,
        pass: checks.iter().all(|check| check.pass),
        checks,
        measured,
        volumes: volumes(setup, recorded),
        clients: clients(setup, recorded),
    }
}

/// Returns the results of a case without records: every figure is missing.
#[must_use]
pub fn nothing(case: &Case, seed: u64) -> CaseResults {
    CaseResults {
        label: case.label.clone(),
        seed,
        duration_s: case.setup.duration_ns / 1_000_000_000,
        sample_s: case.setup.sample_ns / 1_000_000_000,
        ios: 0,
        pass: false,
        checks: Vec::new(),
        measured: vec![None; case.measures.len()],
        volumes: Vec::new(),
        clients: Vec::new(),
    }
}

/// Returns the volume of a client without a record of its own; otherwise the subject itself.
fn resolved(setup: &Setup, subject: Subject) -> Subject {
    match subject {
        Subject::Client(client) => match setup.clients[client as usize].target {
            Target::Volume(volume) if setup.is_sole(setup.clients[client as usize].target) => {
                Subject::Volume(volume)
            }
            _ => subject,
        },
        Subject::Volume(_) => subject,
    }
}

/// Returns the records of a subject; always `Some`, because a client without a record of its own
/// has its volume's.
fn evidence<'a>(setup: &Setup, recorded: &'a Recorded, subject: Subject) -> Option<Evidence<'a>> {
    let record = match resolved(setup, subject) {
        Subject::Volume(volume) => Some(&recorded.volumes[volume as usize]),
        Subject::Client(client) => recorded.clients[client as usize].record.as_ref(),
    };
    let (batches, batch_ios): (&[BatchRecord], u64) = match subject {
        Subject::Volume(_) => (&[], 0),
        Subject::Client(client) => {
            let ios = job_ios(&setup.clients[client as usize]);
            (&recorded.clients[client as usize].batches, ios)
        }
    };
    let volume = match resolved(setup, subject) {
        Subject::Volume(volume) => Some(volume),
        Subject::Client(_) => None,
    };
    let catch_up = volume.and_then(|volume| recorded.catch_up.get(volume as usize).copied());
    let catch_up = catch_up.unwrap_or(Duration::ZERO);
    let counts = volume.and_then(|volume| recorded.counts.get(volume as usize).copied());
    Some(Evidence { record: record?, batches, batch_ios, catch_up, counts })
}

/// Returns the number of requests in a batch; 0 of a client without batches.
fn job_ios(client: &ClientSetup) -> u64 {
    match client.load {
        Load::Job { ios, .. } => ios,
        _ => 0,
    }
}

fn volumes(setup: &Setup, recorded: &Recorded) -> Vec<SubjectResults> {
    let both = setup.volumes.iter().zip(&recorded.volumes);
    let results = (0_u32..).zip(both).map(|(number, (volume, record))| {
        let promise = crate::promise::Promise::from_pacing(&volume.pacing, volume.balances);
        SubjectResults {
            limits: promise.to_string(),
            levels: levels::of_volume(setup, number),
            block_bytes: levels::block_bytes(setup, number),
            ..subject(&volume.name, &volume.kind, record)
        }
    });
    results.collect()
}

fn clients(setup: &Setup, recorded: &Recorded) -> Vec<SubjectResults> {
    let mut results = Vec::new();
    for (number, (client, came)) in (0_u32..).zip(setup.clients.iter().zip(&recorded.clients)) {
        let of_volume = match resolved(setup, Subject::Client(number)) {
            Subject::Volume(volume) => Some(&recorded.volumes[volume as usize]),
            Subject::Client(_) => None,
        };
        let tells_more = !came.batches.is_empty() || came.dropped > 0;
        if client.is_live_only() && !tells_more {
            continue;
        }
        let Some(record) = came.record.as_ref().or(of_volume.filter(|_| tells_more)) else {
            continue;
        };
        let target = match client.target {
            Target::Volume(volume) => &setup.volumes[volume as usize].name,
            Target::Stripe(stripe) => &setup.stripes[stripe as usize].name,
        };
        // Other programs make requests of their own, of different sizes.
        let is_alike =
            client.program.is_none_or(|of| of.program.is_timed() || of.program.is_of_iomelt());
        let (target_credits, target_credits_bytes) = credits_of(setup, recorded, client.target);
        results.push(SubjectResults {
            levels: levels::of_client(setup, client),
            block_bytes: if is_alike { client.shape.block_bytes } else { 0 },
            unit: client.program.and_then(|of| of.program.unit()).unwrap_or_default(),
            target_credits,
            target_credits_bytes,
            jobs: came.batches.iter().map(|b| (b.started_ns, b.took_ns)).collect(),
            job_ios: job_ios(client),
            dropped: came.dropped,
            ..subject(&client.name, &format!("on {target}"), record)
        });
    }
    results
}

/// Returns the I/O and byte credits of a target at the end of each sample: the sums over a stripe's
/// volumes. They are empty without credits.
fn credits_of(setup: &Setup, recorded: &Recorded, target: Target) -> (Vec<u64>, Vec<u64>) {
    let volumes = target.volumes(setup);
    let records = || volumes.iter().filter_map(|volume| recorded.volumes.get(*volume as usize));
    let samples = records().map(|record| record.samples.len()).min().unwrap_or(0);
    let sums = |pick: fn(&Balances) -> Option<u64>| -> Vec<u64> {
        let at = |at: usize| {
            records().map(|record| pick(&record.samples[at].balances)).sum::<Option<u64>>()
        };
        (0..samples).map(at).collect::<Option<Vec<u64>>>().unwrap_or_default()
    };
    (sums(|balances| balances.operations), sums(|balances| balances.bytes))
}

/// Returns the results of a record, under a name.
pub fn subject(name: &str, kind: &str, record: &Record) -> SubjectResults {
    let samples = &record.samples;
    let balances = |pick: fn(&Balances) -> Option<u64>| {
        samples.iter().filter_map(|sample| pick(&sample.balances)).collect()
    };
    SubjectResults {
        name: name.to_owned(),
        kind: kind.to_owned(),
        limits: String::new(),
        ios: record.latency.count,
        bytes: record.bytes,
        latency: record.latency,
        quantiles_ns: record.quantiles_ns.clone(),
        block_bytes: 0,
        unit: "",
        dispatched: samples.iter().map(|sample| sample.dispatched).collect(),
        completed: samples.iter().map(|sample| sample.completed).collect(),
        completed_bytes: samples.iter().map(|sample| sample.completed_bytes).collect(),
        peak_10ms: samples.iter().map(|sample| sample.peak_10ms).collect(),
        credits: balances(|balances| balances.operations),
        credits_bytes: balances(|balances| balances.bytes),
        target_credits: Vec::new(),
        target_credits_bytes: Vec::new(),
        latency_samples: record.latency_samples,
        latencies: record.latencies.clone(),
        jobs: Vec::new(),
        job_ios: 0,
        dropped: 0,
        levels: Vec::new(),
    }
}
