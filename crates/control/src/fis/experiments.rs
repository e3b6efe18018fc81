//! Templates and experiments, in memory, and the faults that the actions of experiments start.
//!
//! Actions begin and end by the server's clock, so a move of a test clock ends them. Their faults
//! are as long as a fault may be, in real time, and are stopped when their actions end.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use tracing::info;

use super::FisError;
use super::template::{Step, Template, Work};
use crate::faults::{DURATION_S_MAX, FaultSpec, Faults};
use crate::model::Tags;

/// Maximum number of templates, as FIS has it.
pub const TEMPLATES_MAX: usize = 500;
/// Maximum number of experiments that run, as FIS has it.
pub const RUNNING_MAX: usize = 5;
/// Maximum number of experiments that are remembered. The oldest that has ended is forgotten first.
pub const EXPERIMENTS_MAX: usize = 200;

/// Number of digits of an experiment's place among all that were started.
pub const PLACE_DIGITS: usize = 20;

/// A template that was created.
#[derive(Clone, Debug)]
pub struct Created {
    /// Its id.
    pub id: String,
    /// Its text.
    pub template: Template,
    /// When it was created.
    pub at: UnixMs,
    /// The hash of its request.
    fingerprint: String,
}

/// The state of an action or of an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// It waits for others.
    Pending,
    /// It runs.
    Running,
    /// It has ended by itself.
    Completed,
    /// It was stopped.
    Stopped,
    /// It was not begun when the experiment was stopped.
    Cancelled,
    /// It has no targets.
    Skipped,
    /// It could not be executed.
    Failed,
}

impl Status {
    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// An action of an experiment.
#[derive(Clone, Debug)]
pub struct Run {
    step: Step,
    volumes: Vec<VolumeId>,
    /// Its state.
    pub status: Status,
    /// When it began.
    pub since: Option<UnixMs>,
    /// When it ended.
    pub until: Option<UnixMs>,
    /// The fault in force.
    fault: Option<String>,
}

impl Run {
    /// Returns the name of its action.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.step.name
    }

    fn has_lost_its_fault(&self, faults: &Faults) -> bool {
        let fault = self.fault.as_ref().filter(|_| self.status == Status::Running);
        fault.is_some_and(|fault| faults.check_stop(std::slice::from_ref(fault)).is_err())
    }

    fn is_over(&self) -> bool {
        !matches!(self.status, Status::Pending | Status::Running)
    }

    fn end(&mut self, status: Status, until: UnixMs, faults: &Faults) {
        self.status = status;
        self.until = Some(until);
        if let Some(fault) = self.fault.take()
            && let Err(error) = faults.stop(&[fault])
        {
            // It was stopped before, with StopTestFaults.
            info!(%error, "an action has ended without its fault");
        }
    }
}

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its id.
    pub id: String,
    /// The id of its template.
    pub template_id: String,
    /// The template as it was at the start.
    pub template: Template,
    /// Its own tags.
    pub tags: Tags,
    /// When it began.
    pub at: UnixMs,
    /// When it ended.
    pub until: Option<UnixMs>,
    /// Its state.
    pub status: Status,
    /// Why it is in this state.
    pub reason: String,
    /// Its actions.
    pub runs: Vec<Run>,
    token: String,
    fingerprint: String,
    seed: u64,
}

/// The request for an experiment.
#[derive(Clone, Debug)]
pub struct Start {
    /// The token that makes the request harmless to repeat.
    pub token: String,
    /// The hash of the request.
    pub fingerprint: String,
    /// The id of the template.
    pub template_id: String,
    /// The new experiment's tags.
    pub tags: Tags,
}

impl Experiment {
    /// Returns its place among all that were started, as text in that order.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{:0PLACE_DIGITS$}", self.seed)
    }

    fn step(&mut self, now: UnixMs, faults: &Faults) {
        while self.until.is_none() && self.step_once(now, faults) {}
        if self.until.is_none()
            && let Some(run) = self.runs.iter().find(|run| run.has_lost_its_fault(faults))
        {
            let reason = format!(
                "The fault of the action {} was stopped, or has lasted 12 h of real time.",
                run.name()
            );
            self.end(Status::Stopped, now, faults);
            self.reason = reason;
        }
        if self.until.is_none() && self.runs.iter().all(Run::is_over) {
            self.until = self.runs.iter().filter_map(|run| run.until).max().or(Some(self.at));
            self.status = Status::Completed;
            self.reason = "Experiment completed.".to_owned();
        }
    }

    /// Ends the actions that are over, and begins those that wait for them. Returns whether
    /// something has changed.
    fn step_once(&mut self, now: UnixMs, faults: &Faults) -> bool {
        let mut has_changed = false;
        for place in 0..self.runs.len() {
            let run = &self.runs[place];
            let end = run.since.map(|since| since.plus_ms(run.step.ms));
            match (run.status, end) {
                (Status::Running, Some(end)) if end <= now => {
                    self.runs[place].end(Status::Completed, end, faults);
                    has_changed = true;
                }
                (Status::Pending, _) => {
                    let Some(since) = self.ready(place) else { continue };
                    has_changed = true;
                    if let Err(reason) = self.begin(place, since, now, faults) {
                        self.fail(reason, now, faults);
                        return false;
                    }
                }
                _ => {}
            }
        }
        has_changed
    }

    /// Returns the time at which the actions before another one have ended.
    fn ready(&self, place: usize) -> Option<UnixMs> {
        let mut since = self.at;
        for name in &self.runs[place].step.after {
            let before = self.runs.iter().find(|run| run.step.name == *name)?;
            since = since.max(before.until.filter(|_| before.is_over())?);
        }
        Some(since)
    }

    fn begin(
        &mut self,
        place: usize,
        since: UnixMs,
        now: UnixMs,
        faults: &Faults,
    ) -> Result<(), String> {
        let seed = self.seed;
        let run = &mut self.runs[place];
        run.since = Some(since);
        let Work::Fault { kind, reads, writes, .. } = run.step.work else {
            run.status = Status::Running;
            return Ok(());
        };
        if run.volumes.is_empty() {
            run.end(Status::Skipped, since, faults);
            return Ok(());
        }
        run.status = Status::Running;
        // All of it may be in the time that the clock was moved over.
        if since.plus_ms(run.step.ms) > now {
            let spec = FaultSpec {
                kind,
                volumes: run.volumes.clone(),
                actions: Vec::new(),
                duration_s: DURATION_S_MAX,
                percent: 100,
                reads,
                writes,
                seed,
            };
            let started = faults.start(spec, since).map_err(|refusal| refusal.to_string())?;
            run.fault = Some(started.id);
        }
        Ok(())
    }

    fn end(&mut self, status: Status, now: UnixMs, faults: &Faults) {
        for run in &mut self.runs {
            match run.status {
                Status::Running => run.end(status, now, faults),
                Status::Pending => run.end(Status::Cancelled, now, faults),
                _ => {}
            }
        }
        self.status = status;
        self.until = Some(now);
    }

    fn fail(&mut self, reason: String, now: UnixMs, faults: &Faults) {
        self.end(Status::Failed, now, faults);
        self.reason = reason;
    }
}

#[derive(Debug, Default)]
struct State {
    templates: BTreeMap<String, Created>,
    /// The oldest first.
    experiments: Vec<Experiment>,
    started: u64,
}

impl State {
    fn template(&self, id: &str) -> Result<&Created, FisError> {
        self.templates.get(id).ok_or_else(|| FisError::not_found("experiment template", id))
    }

    fn step(&mut self, now: UnixMs, faults: &Faults) {
        for experiment in self.experiments.iter_mut().filter(|run| run.until.is_none()) {
            experiment.step(now, faults);
        }
    }
}

/// The templates and experiments of a server. None is left after a restart.
#[derive(Debug, Default)]
pub struct Experiments(Mutex<State>);

impl Experiments {
    /// Creates a template with this id, or returns the one that the same request has created.
    ///
    /// # Errors
    /// `ConflictException` if another request had the same token; `ServiceQuotaExceededException`.
    pub fn create(
        &self,
        (id, fingerprint): (String, String),
        template: Template,
        at: UnixMs,
    ) -> Result<Created, FisError> {
        let mut state = self.state();
        let mut known = state.templates.values();
        if let Some(known) = known.find(|known| known.template.token() == template.token()) {
            let is_same = known.fingerprint == fingerprint;
            return if is_same { Ok(known.clone()) } else { Err(FisError::token_reused()) };
        }
        if state.templates.len() >= TEMPLATES_MAX {
            let text =
                format!("There are {TEMPLATES_MAX} experiment templates, the maximum. Delete one.");
            return Err(FisError::quota(text));
        }
        let created = Created { id: id.clone(), template, at, fingerprint };
        state.templates.insert(id, created.clone());
        Ok(created)
    }

    /// Returns a template.
    ///
    /// # Errors
    /// `ResourceNotFoundException`.
    pub fn template(&self, id: &str) -> Result<Created, FisError> {
        self.state().template(id).cloned()
    }

    /// Returns the tags of a template or of an experiment; none if there is no such one.
    #[must_use]
    pub fn tags_of(&self, id: &str) -> Tags {
        let state = self.state();
        let of_template = state.templates.get(id).map(|created| created.template.tags());
        let mut experiments = state.experiments.iter();
        let tags = of_template.or_else(|| {
            experiments.find(|experiment| experiment.id == id).map(|experiment| &experiment.tags)
        });
        tags.cloned().unwrap_or_default()
    }

    /// Deletes a template, and returns it. Its experiments continue.
    ///
    /// # Errors
    /// `ResourceNotFoundException`.
    pub fn delete(&self, id: &str) -> Result<Created, FisError> {
        let mut state = self.state();
        let deleted = state.template(id)?.clone();
        state.templates.remove(id);
        Ok(deleted)
    }

    /// Returns all templates, by their ids.
    #[must_use]
    pub fn templates(&self) -> Vec<Created> {
        self.state().templates.values().cloned().collect()
    }

    /// Starts an experiment with this id, or returns the one that the same request has started.
    /// `volumes` returns the volumes of a target of a template.
    ///
    /// # Errors
    /// `ResourceNotFoundException`, `ConflictException`, `ServiceQuotaExceededException`.
    pub fn start(
        &self,
        id: String,
        start: Start,
        now: UnixMs,
        faults: &Faults,
        volumes: impl Fn(&Template, &str) -> Vec<VolumeId>,
    ) -> Result<Experiment, FisError> {
        let mut state = self.state();
        state.step(now, faults);
        let Start { token, fingerprint, template_id, tags } = start;
        if let Some(known) = state.experiments.iter().find(|known| known.token == token) {
            let is_same = known.fingerprint == fingerprint;
            return if is_same { Ok(known.clone()) } else { Err(FisError::token_reused()) };
        }
        let template = state.template(&template_id)?.template.clone();
        if state.experiments.iter().filter(|known| known.until.is_none()).count() >= RUNNING_MAX {
            let text = format!("{RUNNING_MAX} experiments run, the maximum. Stop one of them.");
            return Err(FisError::quota(text));
        }
        state.started += 1;
        let seed = state.started;
        let run = |step: Step| {
            let volumes = step.target().map_or_else(Vec::new, |target| volumes(&template, target));
            let status = Status::Pending;
            Run { step, volumes, status, since: None, until: None, fault: None }
        };
        let runs: Vec<Run> = template.steps()?.into_iter().map(run).collect();
        let is_empty = |run: &Run| run.step.work != Work::Wait && run.volumes.is_empty();
        let fails = template.fails_if_empty() && runs.iter().any(is_empty);
        let mut experiment = Experiment {
            id,
            template_id,
            template,
            tags,
            at: now,
            until: None,
            status: Status::Running,
            reason: "Experiment is running.".to_owned(),
            runs,
            token,
            fingerprint,
            seed,
        };
        if fails {
            experiment.fail("Target resolution returned empty set".to_owned(), now, faults);
        } else {
            experiment.step(now, faults);
        }
        if state.experiments.len() >= EXPERIMENTS_MAX
            && let Some(oldest) = state.experiments.iter().position(|known| known.until.is_some())
        {
            state.experiments.remove(oldest);
        }
        state.experiments.push(experiment.clone());
        Ok(experiment)
    }

    /// Returns an experiment as it is at `now`.
    ///
    /// # Errors
    /// `ResourceNotFoundException`.
    pub fn experiment(
        &self,
        id: &str,
        now: UnixMs,
        faults: &Faults,
    ) -> Result<Experiment, FisError> {
        let found = self.experiments(now, faults).into_iter().find(|known| known.id == id);
        found.ok_or_else(|| FisError::not_found("experiment", id))
    }

    /// Stops an experiment, and returns it. One that has ended stays as it is.
    ///
    /// # Errors
    /// `ResourceNotFoundException`.
    pub fn stop(&self, id: &str, now: UnixMs, faults: &Faults) -> Result<Experiment, FisError> {
        let mut state = self.state();
        state.step(now, faults);
        let found = state.experiments.iter_mut().find(|known| known.id == id);
        let experiment = found.ok_or_else(|| FisError::not_found("experiment", id))?;
        if experiment.until.is_none() {
            experiment.end(Status::Stopped, now, faults);
            experiment.reason = "Experiment stopped by user.".to_owned();
        }
        Ok(experiment.clone())
    }

    /// Returns all experiments as they are at `now`, the oldest first.
    #[must_use]
    pub fn experiments(&self, now: UnixMs, faults: &Faults) -> Vec<Experiment> {
        let mut state = self.state();
        state.step(now, faults);
        state.experiments.clone()
    }

    /// Returns the faults of actions that run, and when these actions end by the server's clock.
    #[must_use]
    pub fn ends(&self) -> Vec<(String, UnixMs)> {
        let state = self.state();
        let runs = state.experiments.iter().flat_map(|experiment| &experiment.runs);
        let end = |run: &Run| Some((run.fault.clone()?, run.since?.plus_ms(run.step.ms)));
        runs.filter_map(end).collect()
    }

    /// Begins and ends the actions that are due at `now`.
    pub fn step(&self, now: UnixMs, faults: &Faults) {
        self.state().step(now, faults);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of it leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
