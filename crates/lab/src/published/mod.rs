//! Figures of the whole server that `docs/experiments/` publishes, each by the command that finds
//! it again: one module a figure.
//!
//! All of them are given a [`Bench`], which starts servers, drives volumes all at once and judges
//! each, and return an [`Outcome`] for the caller to print. What cannot be run at all is an error;
//! a figure that is not met is not.

pub mod cluster;
pub mod idle;
pub mod instance;
pub mod isolation;
pub mod limits;
pub mod proofs;
pub mod replay;
pub mod reservation;

use std::path::Path;

use serde::Serialize;

use crate::LabError;
use crate::bench::Export;
use crate::bench::fio::{self, Detail, Job, Measurement, Standing};
use crate::bench::server_process::{Connect, Served};
use crate::checker::{self, Bands, Promise};
use crate::demo::{self, DemoVolume, Serving};
use crate::report::Report;
use crate::stalls::{Observed, Server, Watch};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::volume::VolumeRequest;
use evenkeel_sim::workload::Workload;

/// What every measurement is given.
pub struct Bench<'a> {
    /// A folder with nothing in it, for logs and data folders; the caller removes it.
    pub folder: &'a Path,
    /// Length of each load in seconds.
    pub seconds: u32,
    /// How the API of a server is asked.
    pub connect: Connect,
    /// Is called with each line of progress.
    pub progress: &'a mut dyn FnMut(&str),
}

/// What a measurement found.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// As JSON.
    pub json: serde_json::Value,
    /// In words, with a line's end.
    pub text: String,
    /// Whether the figure is met.
    pub verdict: checker::Outcome,
    /// What a figure that is not met means.
    pub why: String,
}

impl Outcome {
    fn new(found: &impl Serialize, text: String, pass: bool, why: &str) -> Result<Self, LabError> {
        let verdict = if pass { checker::Outcome::Kept } else { checker::Outcome::Broken };
        Self::judged(found, text, verdict, why)
    }

    /// What came out of a measurement that can be undecided.
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

    /// Drives volumes all at once, and judges each.
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

    /// Drives volumes all at once, and counts what each does in all; with the time that was lost
    /// meanwhile by the machine, the clients and this server.
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

/// A volume of a server, held to a pacing under a load.
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
