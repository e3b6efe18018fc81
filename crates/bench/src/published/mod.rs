//! Figures of the whole server that `docs/experiments/` publishes, one module for each, with the
//! command that repeats it.
//!
//! Each of them gets a [`Bench`], which starts servers, drives volumes at once and judges each, and
//! returns an [`Outcome`] for the caller to print. A measurement that cannot run is an error; a
//! figure that is not met is not.

pub mod cluster;
pub mod follow;
pub mod idle;
pub mod instance;
pub mod isolation;
pub mod limits;
pub mod proofs;
pub mod replay;
pub mod reservation;

use std::path::Path;

use serde::Serialize;

use crate::server_process::{Connect, Served};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::volume::VolumeRequest;
use evenkeel_lab::LabError;
use evenkeel_lab::checker::{self, Bands, Promise};
use evenkeel_lab::demo::{self, DemoVolume, Serving};
use evenkeel_lab::fio::{self, Detail, Job, Measurement, Standing};
use evenkeel_lab::nbd_uri::Export;
use evenkeel_lab::report::Report;
use evenkeel_lab::stalls::{Observed, Server, Watch};
use evenkeel_sim::workload::Workload;

/// The environment of a measurement.
pub struct Bench<'a> {
    /// An empty folder for logs and data folders; the caller removes it.
    pub folder: &'a Path,
    /// Length of each load in seconds.
    pub seconds: u32,
    /// Connects to the API of a server.
    pub connect: Connect,
    /// Called with each line of progress.
    pub progress: &'a mut dyn FnMut(&str),
}

/// The result of a measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// As JSON.
    pub json: serde_json::Value,
    /// As text, which ends with a line break.
    pub text: String,
    /// Whether the figure is met.
    pub verdict: checker::Outcome,
    /// The meaning of a figure that is not met.
    pub why: String,
}

impl Outcome {
    fn new(found: &impl Serialize, text: String, pass: bool, why: &str) -> Result<Self, LabError> {
        let verdict = if pass { checker::Outcome::Kept } else { checker::Outcome::Broken };
        Self::judged(found, text, verdict, why)
    }

    /// Creates the outcome of a measurement that can be undecided.
    fn judged(
        found: &impl Serialize,
        text: String,
        verdict: checker::Outcome,
        why: &str,
    ) -> Result<Self, LabError> {
        let json = serde_json::to_value(found).map_err(LabError::Json)?;
        Ok(Self { json, text, verdict, why: why.to_owned() })
    }

    fn of_report(report: &Report, why: &str) -> Result<Self, LabError> {
        let text = format!("{}\n", report.to_text().trim_end());
        Self::judged(report, text, report.outcome, why)
    }
}

impl Bench<'_> {
    /// Reports a line of progress.
    fn report(&mut self, line: &str) {
        (self.progress)(line);
    }

    /// Starts a server on a data folder of this name.
    fn serve(&self, name: &str, store: &str, options: &[&str]) -> Result<Served, LabError> {
        Served::start(self.connect, &self.folder.join(name), store, options)
    }

    /// Drives volumes at once, and judges each.
    fn judge(
        &mut self,
        title: &str,
        volumes: &[DemoVolume],
        bands: &Bands,
    ) -> Result<Report, LabError> {
        let progress = &mut *self.progress;
        demo::run(title, volumes, bands, self.folder, Serving::Elsewhere, &mut |volumes| {
            progress(&demo::progress_line(volumes));
        })
    }

    /// Drives volumes at once, and counts the I/Os of each. Returns the times, too, at which the
    /// machine, the clients or this server did not run.
    fn totals(
        &mut self,
        jobs: &[Job],
        server: Server,
    ) -> Result<(Vec<Measurement>, Observed), LabError> {
        let progress = &mut *self.progress;
        let watch = Watch::start(server);
        let run = fio::run(jobs, Detail::Totals, Standing::Same, self.folder, &mut |volumes| {
            progress(&demo::progress_line(volumes));
        });
        let measurements = run?.measurements;
        let observed = demo::placeable(watch.finish(), &measurements);
        let observed = demo::during_load(&observed, &measurements);
        Ok((measurements, observed))
    }
}

/// Returns a volume of a server that is held to a pacing under a load.
fn driven(
    name: &str,
    request: &VolumeRequest,
    export: &Export,
    pacing: &Pacing,
    workload: Workload,
) -> DemoVolume {
    DemoVolume {
        name: name.to_owned(),
        volume_type: request.volume_type.to_string(),
        size_gib: request.size_gib,
        promise: Promise::from_pacing(pacing, Balances::default()),
        workload,
        uri: export.uri(),
        provisioned: None,
    }
}
