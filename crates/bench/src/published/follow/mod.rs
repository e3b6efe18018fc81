//! `evenkeel-bench follow`: the autopilot follows a PostgreSQL whose data doubles and halves, and
//! whose load rises and falls, beside the cost of a static layout.
//!
//! | module | content |
//! | --- | --- |
//! | `place` | the server, its volumes, the file system on them, the agent |
//! | `load` | transactions, the growing and shrinking data, durable writes |
//! | `moments` | what is recorded each second |
//! | `verdict` | the figures and the checks |
//! | `page` | the text and the charts |

mod load;
mod moments;
mod page;
mod place;
mod verdict;

use std::path::Path;

use super::{Bench, Outcome};
use crate::mounts::{self, FileSystem};
use crate::postgres;
use evenkeel_lab::interference::Guard;
use evenkeel_lab::{LabError, cancel};
use load::{Archive, Durable};
use moments::{Moments, Recorder};
use place::Place;
use verdict::{Found, Observed};

/// The name of the suite.
pub const NAME: &str = "follow-the-load";

/// Size of a table of the archive in MiB.
const TABLE_MIB: u32 = 64;

/// A part of the run.
#[derive(Clone, Copy)]
struct Phase {
    name: &'static str,
    seconds: u32,
    /// Transactions a second.
    per_second: u32,
    /// Tables of the archive that there are to be.
    tables: u32,
}

const BASE_TABLES: u32 = 26;
const MORE_TABLES: u32 = 62;
const CALM_TPS: u32 = 20;
const PEAK_TPS: u32 = 150;

const PHASES: [Phase; 4] = [
    Phase { name: "calm", seconds: 45, per_second: CALM_TPS, tables: BASE_TABLES },
    Phase { name: "growth", seconds: 110, per_second: PEAK_TPS, tables: MORE_TABLES },
    Phase { name: "peak", seconds: 35, per_second: PEAK_TPS, tables: MORE_TABLES },
    Phase { name: "fall", seconds: 190, per_second: CALM_TPS, tables: BASE_TABLES },
];

/// Runs it.
///
/// # Errors
/// If this machine cannot mount file systems or run PostgreSQL, or a program fails.
pub fn measure(mut bench: Bench<'_>, charts: Option<&Path>) -> Result<Outcome, LabError> {
    let lacks = mounts::probe().or_else(|| FileSystem::BtrfsSingle.lacks());
    if let Some(reason) = lacks.or_else(postgres::probe) {
        return Err(LabError::Unjudgeable(format!("{NAME} cannot run: {reason}")));
    }
    let guard = Guard::begin();
    let mut place = Place::new(&mut bench)?;
    let mut recorder = Recorder::new(&place);
    let durable = Durable::start(place.mount())?;
    let archive = Archive::start(&place)?;
    archive.wait_for(BASE_TABLES)?;
    place.start_agent()?;
    for (number, phase) in (1..).zip(PHASES) {
        (bench.progress)(&format!(
            "{}: {} s at {} transactions a second",
            phase.name, phase.seconds, phase.per_second
        ));
        archive.want(phase.tables);
        let running = place.transactions(phase.per_second, phase.seconds, number)?;
        recorder.record(&mut place, phase.name, phase.seconds, bench.progress)?;
        recorder.transactions(place.ended(running)?);
        cancel::go_on()?;
    }
    let operations = place.stop_agent();
    let failures = archive.finish().into_iter().collect();
    let (writes, fault) = durable.finish();
    let mut observed = Observed {
        moments: Moments::finish(recorder),
        operations,
        writes,
        failures,
        busy: guard.reasons(&[]),
        checks: Vec::new(),
    };
    observed.failures.extend(fault);
    observed.checks = place.checks()?;
    let described = place.described();
    drop(place);
    let found = Found::of(observed, described);
    if let Some(folder) = charts {
        page::write_charts(folder, &found)?;
    }
    let text = page::text(&found);
    let why = "the autopilot did not follow the load as it must";
    Outcome::judged(&found, text, found.verdict, why)
}
