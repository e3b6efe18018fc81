//! The ways to drive a case live, chosen by its clients.
//!
//! A [`Method`] gets a [`Context`] and returns a [`Driven`] result. A case that it cannot drive,
//! and one whose server or load generator fails, is an error.

use std::path::Path;

use super::{Files, Host, Speeds, database, files, jobs, programs, requests};
use evenkeel_lab::LabError;
use evenkeel_lab::fio::VolumeProgress;
use evenkeel_lab::stalls::{Observed, Server, Watch};
use evenkeel_sim::scenario::Case;
use evenkeel_sim::scenario::setup::Setup;
use evenkeel_sim::world::run::{Recorded, SubjectResults};

/// The way in which the clients of a case are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Method {
    /// A live database.
    Database,
    /// Programs one after the other, each a batch.
    Programs,
    /// Batches of durable calls.
    Batches,
    /// A program that works on files for a time.
    Files,
    /// Requests at volumes.
    Requests,
}

/// A case, and the means to run it.
pub(super) struct Context<'a> {
    pub case: &'a Case,
    pub seed: u64,
    /// Makes the volumes.
    pub host: &'a mut dyn Host,
    pub files: Files,
    /// For logs and mounts.
    pub folder: &'a Path,
    /// Is called about once a second.
    pub progress: &'a mut dyn FnMut(&[VolumeProgress]),
}

/// The outcome of a case.
#[derive(Default)]
pub(super) struct Driven {
    pub recorded: Recorded,
    pub commands: Vec<String>,
    /// The machine's pauses during the run.
    pub stalls: Observed,
    /// Descriptions of the storage below the volumes.
    pub storage: Vec<String>,
    /// Programs that were used.
    pub programs: Vec<&'static str>,
    /// Programs that failed, each with the reason.
    pub failures: Vec<String>,
    /// Speeds of the processor beside programs that it limits.
    pub speeds: Speeds,
    /// Results without a client: passes that the page cache answers, transactions.
    pub more: Vec<SubjectResults>,
}

impl Method {
    /// Returns the method for these clients. Without a mounted file system, a program on files is
    /// replaced by its requests.
    pub fn of(setup: &Setup, files: Files) -> Self {
        if database::is_in(setup) {
            Self::Database
        } else if programs::are_any(setup) {
            Self::Programs
        } else if jobs::are_all(setup) {
            Self::Batches
        } else if files == Files::Mounted && files::are_any(setup) {
            Self::Files
        } else {
            Self::Requests
        }
    }

    /// Refuses a case that it cannot drive.
    pub fn check(self, case: &Case) -> Result<(), LabError> {
        match self {
            Self::Database => database::check(case),
            Self::Programs | Self::Batches => programs::parts_beside(&case.setup).map(drop),
            Self::Files | Self::Requests => requests::check(case).map(drop),
        }
    }

    /// Returns whether fio records every I/O.
    pub fn notes_every_io(self) -> bool {
        matches!(self, Self::Files | Self::Requests)
    }

    /// Runs a case.
    pub fn drive(self, context: &mut Context<'_>) -> Result<Driven, LabError> {
        match self {
            Self::Database => database::drive(context),
            Self::Programs => watched(context, programs::drive),
            Self::Batches => watched(context, jobs::drive),
            Self::Files => files::drive(context),
            Self::Requests => requests::drive(context),
        }
    }
}

/// Runs a case and observes the machine's pauses from before the volumes are created until the end,
/// since batches have no common start of the load.
fn watched(
    context: &mut Context<'_>,
    drive: fn(&mut Context<'_>) -> Result<Driven, LabError>,
) -> Result<Driven, LabError> {
    let watch = Watch::start(Server::Here);
    let driven = drive(context)?;
    Ok(Driven { stalls: watch.finish(), ..driven })
}
