//! A proof: one volume, file or device is driven and held to a promise, line by line.
//!
//! Like [`demo`], this only runs loads and judges them. The caller provides the subject's address
//! and its promise. The server's knowledge (balances, the limits that held the volume up) comes
//! through [`Insight`]. A device of another maker has none, and is judged by what a client sees.
//!
//! A measurement that looks like a kept promise and is something else gets a [`Caution`]: a burst
//! in place of the baseline, a cache in place of the device. A machine that stood still proves
//! nothing either way: the outcome is then [`Outcome::Undecided`].

mod cautions;
mod output;
mod steps;

use evenkeel_core::convert::saturating;
use std::path::Path;

use evenkeel_core::qos::pacing::Balances;
use serde::{Deserialize, Serialize};

pub use cautions::{Caution, CautionKind};

use self::steps::Step;
use crate::LabError;
use crate::checker::{self, Bands, Outcome, Promise, Seen, Verdict, short_percent};
use crate::demo;
use crate::environment::{self, Environment};
use crate::fio::{self, Detail, Job, Measurement, Standing, VolumeProgress};
use crate::interference::Guard;
use crate::report::{Report, VolumeFacts, VolumeReport};
use crate::stalls::{Observed, Server, Stalls, Watch};
use crate::target::Target;
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::figures::stats::{Bootstrap, Interval, Sample};

/// The version of the JSON's schema.
pub const SCHEMA: &str = "evenkeel.proof/2";

/// The shortest load that shows a steady rate, in seconds.
pub const SECONDS_MIN: u32 = 5;

/// The volume, file or device that a proof is about.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As the user named it.
    pub name: String,
    /// Its address.
    pub target: Target,
    /// The volume type of the promise, or `-`.
    pub volume_type: String,
    /// Its size in GiB, rounded down.
    pub size_gib: u32,
    /// Its promise, with full balances.
    pub promise: Promise,
}

/// The loads of a proof.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Length of each load in seconds.
    pub seconds: u32,
    /// Whether its data may be overwritten; only then are writes part of the proof.
    pub writes: bool,
    /// The seed of all offsets.
    pub seed: u64,
    /// How much more than its limit the limiter may give, in millionths; 0 for exactly the limit.
    pub over_ppm: u32,
}

/// The knowledge of the subject's server.
pub trait Insight {
    /// Returns the present credit balances; `None` if they are unknown.
    ///
    /// # Errors
    /// When the server does not answer.
    fn balances(&mut self) -> Result<Option<Balances>, LabError>;

    /// Returns how long each limit has held the volume up since the server's start; `None` if
    /// unknown.
    fn held_up(&mut self) -> Option<HeldUp>;

    /// Returns whether the server guarantees its promises against neighbours; `None` if unknown.
    fn guarantees(&mut self) -> Option<bool>;
}

/// A subject without insight: only the client's view is known.
#[derive(Clone, Copy, Debug)]
pub struct Outside;

impl Insight for Outside {
    fn balances(&mut self) -> Result<Option<Balances>, LabError> {
        Ok(None)
    }

    fn held_up(&mut self) -> Option<HeldUp> {
        None
    }

    fn guarantees(&mut self) -> Option<bool> {
        None
    }
}

/// Time for which a volume was held up, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HeldUp {
    /// By its own limits.
    pub own_s: f64,
    /// By its instance's.
    pub instance_s: f64,
    /// By the device: within all limits.
    pub device_s: f64,
}

/// The mean of the full seconds after the first, with its confidence interval.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mean {
    /// The name of the load.
    pub load: String,
    /// The I/Os of each second: number of seconds, mean, and spread.
    pub seconds: Sample,
    /// The 95 % confidence interval of the mean (bootstrap).
    pub interval: Option<Interval>,
}

/// A load that cannot be judged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unjudged {
    /// The name of the load.
    pub load: String,
    /// The reason.
    pub why: String,
}

/// A finished proof.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// [`SCHEMA`].
    pub schema: String,
    /// The subject, as the user named it.
    pub target: String,
    /// The promise.
    pub promise: String,
    /// The outcome.
    pub outcome: Outcome,
    /// Reasons for a broken promise, as far as they are known.
    pub reasons: Vec<String>,
    /// Reasons for which the proof may not show what it seems to.
    pub cautions: Vec<Caution>,
    /// Loads without a verdict.
    pub unjudged: Vec<Unjudged>,
    /// Latencies of one read at a time, without other load.
    pub alone: LatencySummary,
    /// Mean rates with their confidence intervals.
    pub means: Vec<Mean>,
    /// All measurements and verdicts; each load is a row.
    pub report: Report,
}

/// One load, measured.
struct Measured {
    step: Step,
    measurement: Measurement,
    observed: Observed,
    promise: Promise,
    held_up: Option<HeldUp>,
    /// As [`Insight::guarantees`].
    guarantees: Option<bool>,
}

impl Measured {
    /// Returns whether the server closed the connection.
    const fn is_gone(&self) -> bool {
        self.measurement.gone_after_ms.is_some()
    }
}

/// Returns the approximate duration of a proof, in seconds of load.
#[must_use]
pub fn length_s(promise: &Promise, plan: &Plan) -> u64 {
    let alone = [steps::alone("first reads", plan.seed), steps::alone("reads again", plan.seed)];
    // The depth of the queue is not known yet, and does not change a load's duration.
    let loads = steps::loads(promise, plan, 0);
    alone.iter().chain(&loads).map(|step| u64::from(step.workload.duration_s)).sum()
}

/// Proves a subject's promise. `progress` is called about once a second with the running load;
/// `folder` holds the logs while they are needed.
///
/// # Errors
/// When a load cannot be run at all. A broken promise is not an error.
pub fn run(
    subject: &Subject,
    plan: &Plan,
    insight: &mut dyn Insight,
    folder: &Path,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Proof, LabError> {
    let guard = Guard::begin_at(&subject.target);
    let mut prover = Prover {
        bands: Bands::PROMISE.with_over(plan.over_ppm),
        load_before_hundredths: environment::load_hundredths(),
        subject,
        folder,
        insight,
        commands: Vec::new(),
        warnings: Vec::new(),
        version: String::new(),
    };
    // The same blocks are read twice: if they are cold or not cached at first, they are not later.
    let first = prover.measure(steps::alone("first reads", plan.seed), progress)?;
    if first.is_gone() {
        let alone = first.measurement.latency;
        return Ok(prover.proof(vec![first], alone, Vec::new()));
    }
    let again = prover.measure(steps::alone("reads again", plan.seed), progress)?;
    let alone = again.measurement.latency;
    let mut cautions = cautions::cold(&first.measurement, &again.measurement);
    cautions.extend(cautions::page_cache(&subject.target));
    if again.is_gone() {
        return Ok(prover.proof(vec![again], alone, cautions));
    }
    let mut measured = Vec::new();
    for step in steps::loads(&subject.promise, plan, alone.p50_ns) {
        let load = prover.measure(step, progress)?;
        let is_gone = load.is_gone();
        measured.push(load);
        // Without the server no further load can run.
        if is_gone {
            break;
        }
    }
    let others = guard.and_then(|guard| guard.others());
    cautions.extend(cautions::busy(&prover.warnings, others, &measured));
    Ok(prover.proof(measured, alone, cautions))
}

struct Prover<'a> {
    bands: Bands,
    load_before_hundredths: Option<u64>,
    subject: &'a Subject,
    folder: &'a Path,
    insight: &'a mut dyn Insight,
    commands: Vec<String>,
    warnings: Vec<String>,
    version: String,
}

impl Prover<'_> {
    /// Runs one load, and reads the subject's insight before and after it.
    fn measure(
        &mut self,
        step: Step,
        progress: &mut dyn FnMut(&[VolumeProgress]),
    ) -> Result<Measured, LabError> {
        let job = Job {
            name: step.name.to_owned(),
            target: self.subject.target.clone(),
            workload: step.workload,
        };
        let known = self.insight.balances()?;
        let before = self.insight.held_up();
        let watch =
            Watch::start(self.subject.target.server().map_or(Server::Unknown, Server::Process));
        let run = fio::run(&[job], Detail::EveryIo, Standing::Same, self.folder, progress)?;
        let observed = demo::placeable(watch.finish(), &run.measurements);
        let after = self.insight.held_up();
        let elapsed_ms = saturating::<_, u64>(run.elapsed.as_millis());
        let load_ms = u64::from(step.workload.duration_s) * 1_000;
        // Later, the load comes from these runs themselves.
        if self.commands.is_empty() {
            self.warnings.extend(run.warnings);
        }
        self.commands.push(run.command);
        self.version = run.version;
        let Some(measurement) = run.measurements.into_iter().next() else {
            return Err(LabError::BadOutput { tool: "fio", what: "no job".to_owned() });
        };
        let promise = match known {
            Some(balances) => self
                .subject
                .promise
                .with_balances(balances)
                .started_within(elapsed_ms.saturating_sub(load_ms)),
            None => {
                let over = self.bands.over_share();
                steps::assumed(&self.subject.promise, &step.workload, &measurement.series, over)
            }
        };
        let held_up = before.zip(after).map(|(before, after)| HeldUp {
            own_s: after.own_s - before.own_s,
            instance_s: after.instance_s - before.instance_s,
            device_s: after.device_s - before.device_s,
        });
        let start_us = demo::start_us(&measurement).unwrap_or(0);
        let observed = observed.during(start_us, load_ms * 1_000);
        let guarantees = self.insight.guarantees();
        Ok(Measured { step, measurement, observed, promise, held_up, guarantees })
    }

    /// Judges all loads.
    fn proof(
        self,
        measured: Vec<Measured>,
        alone: LatencySummary,
        mut cautions: Vec<Caution>,
    ) -> Proof {
        let subject = self.subject;
        let mut volumes = Vec::new();
        let mut unjudged = Vec::new();
        let mut means = Vec::new();
        let mut reasons = Vec::new();
        let mut observed = Vec::new();
        for one in measured {
            observed.push(one.observed.clone());
            means.push(mean(&one));
            cautions.extend(cautions::burst(&subject.promise, &one, &self.bands));
            cautions.extend(cautions::write_cache(&one));
            match judge(&one, &self.bands) {
                Ok(verdict) => {
                    reasons.extend(cautions::reason(&one, &verdict, &self.bands));
                    let facts = VolumeFacts {
                        volume_type: subject.volume_type.clone(),
                        size_gib: subject.size_gib,
                        promise: one.promise.to_string(),
                    };
                    let lost = one.observed.lost();
                    volumes.push(VolumeReport::new(facts, one.measurement, lost, verdict));
                }
                Err(error) => {
                    let load = one.step.name.to_owned();
                    let why = error.to_string();
                    unjudged.push(Unjudged { load, why });
                }
            }
        }
        cautions.dedup();
        let environment = Environment::read(self.version);
        let mut warnings = self.warnings;
        warnings.extend(cautions.iter().map(|caution| caution.text.clone()));
        warnings
            .extend(unjudged.iter().map(|unjudged| format!("{}: {}", unjudged.load, unjudged.why)));
        warnings.extend(reasons.iter().cloned());
        warnings.dedup();
        // If the promise is judged with an allowance, its text says so.
        let promise = match self.bands.over_ppm {
            0 => subject.promise.to_string(),
            ppm => format!("{}, and up to {} more", subject.promise, short_percent(ppm)),
        };
        let title = format!("{} held to {promise}", subject.name);
        let report = Report::new(title, environment, observed, volumes, self.commands, warnings)
            .without_verdict_on(unjudged.len())
            .with_note(Some(self.bands.sentence_of_ceilings()))
            .with_load_since(self.load_before_hundredths);
        Proof {
            schema: SCHEMA.to_owned(),
            target: subject.name.clone(),
            promise,
            outcome: report.outcome,
            reasons,
            cautions,
            unjudged,
            alone,
            means,
            report,
        }
    }
}

fn judge(one: &Measured, bands: &Bands) -> Result<Verdict, LabError> {
    let Measured { step, measurement, observed, promise, .. } = one;
    let seen = Seen {
        series: &measurement.series,
        lost: &observed.lost(),
        idle: &Stalls::NONE,
        steal: &observed.steal,
        error: measurement.error.as_deref(),
        gone_after_ms: measurement.gone_after_ms,
        has_record: false,
    };
    checker::check(promise, &step.workload, &seen, bands)
}

fn mean(one: &Measured) -> Mean {
    let counts = one.measurement.series.per_second();
    let steady: Vec<f64> = counts.iter().skip(1).map(|count| *count as f64).collect();
    Mean {
        load: one.step.name.to_owned(),
        seconds: Sample::of(&steady),
        interval: Bootstrap::default().mean(&steady),
    }
}

#[cfg(test)]
mod tests;
