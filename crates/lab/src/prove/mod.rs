//! A proof: one volume, file or device is driven and held to a promise, line by line.
//!
//! Pure orchestration, like [`demo`]: whoever calls it knows where the subject is and
//! what was promised for it. What can be told of the subject from within (balances, what held it
//! up) comes through [`Insight`]; a device of another maker has none, and is judged by what a
//! client sees.
//!
//! A proof must not be fooled. What looks like a promise kept and is something else is said as a
//! [`Caution`]: a burst in place of the baseline, a cache in place of the device. A machine that
//! stood still proves nothing either way: the outcome is then [`Outcome::Undecided`].

mod cautions;
mod output;
mod steps;

use std::path::Path;

use evenkeel_core::qos::pacing::Balances;
use serde::{Deserialize, Serialize};

pub use cautions::{Caution, CautionKind};

use self::steps::Step;
use crate::LabError;
use crate::bench::Target;
use crate::bench::fio::{self, Detail, Job, Measurement, Standing, VolumeProgress};
use crate::bench::interference::Guard;
use crate::checker::{self, Bands, Outcome, Promise, Seen, Verdict, short_percent};
use crate::demo;
use crate::environment::{self, Environment};
use crate::report::{Report, VolumeFacts, VolumeReport};
use crate::stalls::{Observed, Server, Stalls, Watch};
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::figures::stats::{Bootstrap, Interval, Sample};

/// Names the shape of the JSON.
pub const SCHEMA: &str = "evenkeel.proof/2";

/// The shortest load that says something about a steady rate, in seconds.
pub const SECONDS_MIN: u32 = 5;

/// What is put to the proof.
#[derive(Clone, Debug)]
pub struct Subject {
    /// As the user named it.
    pub name: String,
    /// Where it is.
    pub target: Target,
    /// The type that the promise is of, or `-`.
    pub volume_type: String,
    /// Its size in GiB, rounded down.
    pub size_gib: u32,
    /// What it is held to, with full balances.
    pub promise: Promise,
}

/// What is done to it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Length of each load in seconds.
    pub seconds: u32,
    /// Whether its data may be overwritten: only then are writes put to the proof.
    pub writes: bool,
    /// Of all offsets.
    pub seed: u64,
    /// By how much more than promised its limiter may give, in millionths; 0 for the promise.
    pub over_ppm: u32,
}

/// What the subject's server can tell.
pub trait Insight {
    /// Credit balances of now; `None` if nobody can tell.
    ///
    /// # Errors
    /// When the server does not answer.
    fn balances(&mut self) -> Result<Option<Balances>, LabError>;

    /// For how long the volume was held up since the server started, by what; `None` if nobody can
    /// tell.
    fn held_up(&mut self) -> Option<HeldUp>;

    /// Whether the server guarantees what it has sold, against neighbours; `None` if nobody can
    /// tell.
    fn guarantees(&mut self) -> Option<bool>;
}

/// Nothing can be told: the subject is seen from outside only.
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

/// The mean of the full seconds after the first, with what it may be off by.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mean {
    /// Of which load.
    pub load: String,
    /// Seconds, their mean in I/Os a second, and their spread.
    pub seconds: Sample,
    /// Where the mean lies with 95 % confidence (bootstrap).
    pub interval: Option<Interval>,
}

/// A load that cannot be judged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unjudged {
    /// Which.
    pub load: String,
    /// Why not.
    pub why: String,
}

/// A finished proof.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// [`SCHEMA`].
    pub schema: String,
    /// What was put to the proof, as the user named it.
    pub target: String,
    /// What it was held to.
    pub promise: String,
    /// What came out.
    pub outcome: Outcome,
    /// Why a promise was broken, as far as that can be told.
    pub reasons: Vec<String>,
    /// What to know before believing it.
    pub cautions: Vec<Caution>,
    /// Loads without a verdict.
    pub unjudged: Vec<Unjudged>,
    /// Latencies of one read at a time, nothing else going on.
    pub alone: LatencySummary,
    /// Means with their confidence.
    pub means: Vec<Mean>,
    /// Everything that was measured and judged; each load is a row.
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
    /// Whether the server closed the connection.
    const fn is_gone(&self) -> bool {
        self.measurement.gone_after_ms.is_some()
    }
}

/// About how long a proof takes, in seconds of load.
#[must_use]
pub fn length_s(promise: &Promise, plan: &Plan) -> u64 {
    let alone = [steps::alone("first reads", plan.seed), steps::alone("reads again", plan.seed)];
    // How deep the queue is, which is not known before, makes none of them longer.
    let loads = steps::loads(promise, plan, 0);
    alone.iter().chain(&loads).map(|step| u64::from(step.workload.duration_s)).sum()
}

/// Puts a subject to the proof. `progress` is called about once a second with what runs; `folder`
/// holds the logs while they are needed.
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
    // The same blocks twice: what is cold or cached the first time is not the second.
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
        // A load needs a server.
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
    /// Runs one load, with what the subject tells before and after.
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
        let elapsed_ms = u64::try_from(run.elapsed.as_millis()).unwrap_or(u64::MAX);
        let load_ms = u64::from(step.workload.duration_s) * 1_000;
        // Later the load is our own.
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
        let (mut volumes, mut unjudged, mut means) = (Vec::new(), Vec::new(), Vec::new());
        let (mut reasons, mut observed) = (Vec::new(), Vec::new());
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
                    let (load, why) = (one.step.name.to_owned(), error.to_string());
                    unjudged.push(Unjudged { load, why });
                }
            }
        }
        cautions.dedup();
        let environment = Environment::read(self.version);
        let mut warnings = self.warnings;
        warnings.extend(cautions.iter().map(|caution| caution.text.clone()));
        warnings.extend(unjudged.iter().map(|one| format!("{}: {}", one.load, one.why)));
        warnings.extend(reasons.iter().cloned());
        warnings.dedup();
        // A promise that is judged with an allowance is another promise.
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
