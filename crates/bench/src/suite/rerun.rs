//! The repetition of a suite on this machine, in virtual time and live.
//!
//! [`Rerun`] gets a suite and the requested part of it, and adds all results to one
//! [`SuiteResult`]. A plan that cannot be read, and a load that cannot be run at all, is an error.
//! A figure that is not met is part of the result.

use std::path::Path;
use std::time::Duration;

use super::result::SuiteResult;
use super::{Choice, Ready, Suite};
use crate::data_plane::World;
use crate::live::{self, Files};
use crate::{databases, mounts};
use evenkeel_engine::IoMode;
use evenkeel_lab::fio::VolumeProgress;
use evenkeel_lab::{LabError, leftovers};
use evenkeel_os::clock;
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::world::run::{self, CaseResults};

/// Longest wait, after Ctrl-C, until a run has taken its mounts down.
const STOP_MAX: Duration = Duration::from_secs(60);
/// Longest wait for the same after the kernel fails all requests.
const GIVEN_UP_MAX: Duration = Duration::from_secs(10);
/// Time between two checks for it.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// The repetition of a suite.
#[derive(Debug)]
pub struct Rerun<'a> {
    name: &'a str,
    suite: &'a Suite,
    part: Choice<'a>,
    /// The results so far.
    pub result: SuiteResult,
}

/// A live workload that this machine can run.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepared {
    /// The scenario, without the cases that cannot run here.
    pub ready: Ready,
    files: Files,
}

impl<'a> Rerun<'a> {
    /// Creates an empty result.
    #[must_use]
    pub fn begin(name: &'a str, suite: &'a Suite, part: Choice<'a>) -> Self {
        Self { name, suite, part, result: SuiteResult::begin(name, suite) }
    }

    /// Returns the workload of virtual time.
    ///
    /// # Errors
    /// If the suite has no such part.
    pub fn simulated(&self) -> Result<Ready, LabError> {
        self.suite.simulate.read(self.name, &self.part)
    }

    /// Runs a workload in virtual time; returns its number of I/Os. `progress` is called after each
    /// case.
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

    /// Returns the part of the live workload that this machine can run: at full length or not, with
    /// file systems or without. Each part that is left out becomes a warning of the result, and
    /// `progress` is called with it.
    ///
    /// # Errors
    /// If the suite has no such part, or this machine can run none of it.
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
        // Some programs cannot run without a file system.
        ready.is_part |= files == Files::None;
        Ok(Prepared { ready, files })
    }

    /// Runs it live, on a data plane that uses this interface of the kernel; `folder` holds its
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

/// Returns the way in which the requests of a scenario are made, and reports why file systems
/// cannot be mounted.
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

/// Returns the databases of a scenario that cannot run.
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

/// Waits after Ctrl-C until the run has taken down its mounts below a folder, and takes down the
/// rest. Returns descriptions of those that stay.
///
/// The data plane must serve until then, since the mounts are in use until the present pass has
/// ended.
#[must_use]
pub fn take_down(folder: &Path) -> Vec<String> {
    let wait = |longest: Duration| {
        let end = clock::now() + longest;
        while leftovers::is_any_below(folder) && clock::now() < end {
            clock::pause(STOP_LOOK);
        }
    };
    wait(STOP_MAX);
    // Write-back of a program's dirty data may take minutes.
    if leftovers::is_any_below(folder) {
        leftovers::give_up_below(folder);
        wait(GIVEN_UP_MAX);
    }
    leftovers::clean_below(folder)
}
