//! A suite that is run again: what this machine can run of it, in virtual time and live.
//!
//! [`Rerun`] is given a suite and the part of it that is wanted, and adds what comes to one
//! [`SuiteResult`]. A plan that cannot be read, or a load that cannot be run at all, is an error; a
//! figure that is not met is in the result.

use std::path::Path;
use std::time::Duration;

use super::result::SuiteResult;
use super::{Choice, Ready, Suite};
use crate::bench::data_plane::World;
use crate::bench::fio::VolumeProgress;
use crate::bench::live::{self, Files};
use crate::bench::{databases, mounts};
use crate::{LabError, clock};
use evenkeel_engine::IoMode;
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::world::run::{self, CaseResults};

/// Longest wait, after Ctrl-C, until a run has taken down what it had mounted.
const STOP_MAX: Duration = Duration::from_secs(60);
/// And how long for its end once the kernel answers everything with an error.
const GIVEN_UP_MAX: Duration = Duration::from_secs(10);
/// Distance of two looks whether it has.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// A suite that is run again.
#[derive(Debug)]
pub struct Rerun<'a> {
    name: &'a str,
    suite: &'a Suite,
    part: Choice<'a>,
    /// What has come so far.
    pub result: SuiteResult,
}

/// What is to be run live.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepared {
    /// The scenario, without what cannot run here.
    pub ready: Ready,
    files: Files,
}

impl<'a> Rerun<'a> {
    /// Nothing was run yet.
    #[must_use]
    pub fn begin(name: &'a str, suite: &'a Suite, part: Choice<'a>) -> Self {
        Self { name, suite, part, result: SuiteResult::begin(name, suite) }
    }

    /// The workload in virtual time.
    ///
    /// # Errors
    /// If the suite has no such part.
    pub fn simulated(&self) -> Result<Ready, LabError> {
        self.suite.simulate.read(self.name, &self.part)
    }

    /// Runs a workload in virtual time; its I/Os. `progress` is called after each case.
    ///
    /// # Errors
    /// If the scenario cannot be simulated.
    pub fn simulate(
        &mut self,
        ready: &Ready,
        progress: &mut dyn FnMut(&CaseResults),
    ) -> Result<u64, LabError> {
        let scenario = &ready.scenario;
        let results = run::run(scenario, scenario.seed, run::Method::ClosedForm, progress);
        let results = results.map_err(LabError::failed)?;
        self.result.add_simulated(ready, &results);
        Ok(results.cases.iter().map(|case| case.ios).sum())
    }

    /// Finds out what this machine can run live: at full length or not, with file systems or
    /// without. What is left out is a warning of the result, and `progress` is called with it.
    ///
    /// # Errors
    /// If the suite has no such part, or nothing of it can run here.
    pub fn prepare(
        &mut self,
        is_full: bool,
        may_mount: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Prepared, LabError> {
        let plan = self.suite.live_plan(is_full);
        let all = plan.read(self.name, &self.part)?;
        let mut skipped = |what: String| {
            progress(&format!("skipped: {what}"));
            self.result.warnings.push(what);
        };
        let files = if may_mount { files(&all, &mut skipped) } else { Files::None };
        let without = left_out(&all, files, &mut skipped);
        let mut ready = plan.read(self.name, &Choice { without: &without, ..self.part })?;
        // Some programs have no meaning without a file system.
        ready.is_part |= files == Files::None;
        Ok(Prepared { ready, files })
    }

    /// Runs it live, on a data plane that talks to the kernel in this way; `folder` holds its
    /// socket, logs and mounts. `progress` is called about once a second with the case's label.
    ///
    /// # Errors
    /// As [`live::run`].
    pub fn live(
        &mut self,
        prepared: &Prepared,
        io: IoMode,
        folder: &Path,
        progress: &mut dyn FnMut(&str, &[VolumeProgress]),
    ) -> Result<(), LabError> {
        let Prepared { ready, files } = prepared;
        let mut world = World::new(folder, io);
        let live = live::run(&ready.scenario, &mut world, *files, folder, progress)?;
        self.result.add_live(ready, &live);
        Ok(())
    }
}

/// Whether file systems are mounted for a scenario.
fn files(ready: &Ready, skipped: &mut dyn FnMut(String)) -> Files {
    let has_files = live::has_files(&ready.scenario);
    if !has_files && live::engines(&ready.scenario).is_empty() {
        return Files::None;
    }
    match live::lacks(&ready.scenario) {
        None => Files::Mounted,
        Some(_) if !has_files => Files::None,
        Some(why) => {
            skipped(format!("no file systems: {why}; their requests are made directly"));
            Files::None
        }
    }
}

/// The databases of a scenario that cannot run.
fn left_out(ready: &Ready, files: Files, skipped: &mut dyn FnMut(String)) -> Vec<Engine> {
    let unmounted = || mounts::probe().or_else(|| Some("nothing is to be mounted".to_owned()));
    let mut without = Vec::new();
    for engine in live::engines(&ready.scenario) {
        let why = match files {
            Files::None => unmounted(),
            Files::Mounted => databases::probe(engine),
        };
        let Some(why) = why else { continue };
        skipped(format!("no {}: {why}; what needs one is left out", engine.name()));
        without.push(engine);
    }
    without
}

/// After Ctrl-C: waits until the run has taken down what it has mounted below a folder, then takes
/// down the rest; returns what stays.
///
/// The data plane must live until then, for what is mounted is in use until the pass that runs has
/// ended.
#[must_use]
pub fn take_down(folder: &Path) -> Vec<String> {
    let wait = |longest: Duration| {
        let end = clock::now() + longest;
        while mounts::is_any_below(folder) && clock::now() < end {
            clock::pause(STOP_LOOK);
        }
    };
    wait(STOP_MAX);
    // What a program has left to be written may take minutes.
    if mounts::is_any_below(folder) {
        mounts::give_up_below(folder);
        wait(GIVEN_UP_MAX);
    }
    mounts::clean_below(folder)
}
