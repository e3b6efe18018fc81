//! The answers of `evenkeel autopilot`, as text, JSON and CSV: they come from the agent's folder,
//! and no agent need run.
//!
//! | function | content |
//! | --- | --- |
//! | [`mod@status`] | each file system with its forecast, changes, brakes, alarms and operations |
//! | [`mod@explain`] | all of a decision, and its replay |
//! | [`mod@advise`] | the commands of the last decisions |
//! | [`mod@check`] | the groups of a file of policies |

mod advise;
mod check;
mod explain;
mod status;
pub mod words;

use crate::audit::{self, Decided};
use crate::journal::Reader;
use evenkeel_client::output::Failure;
use evenkeel_planner::autopilot::{Decision, Observation};

pub use advise::text as advise;
pub use check::text as check;
pub use explain::{Explanation, explain};
pub use status::text as status;

/// A decision of the audit, with the parts that are shown.
struct Read {
    line: Decided,
    observation: Observation,
    decision: Decision,
}

impl Read {
    fn new(line: &str) -> Result<Self, Failure> {
        let line = audit::read(line).map_err(Failure::new)?;
        let observation = audit::part("observation", &line.observation).map_err(Failure::new)?;
        let decision = audit::part("decision", &line.decision).map_err(Failure::new)?;
        Ok(Self { line, observation, decision })
    }

    /// Returns the last decision of a file system; `None` if the audit has none.
    fn last(reader: &Reader, uuid: &str) -> Result<Option<Self>, Failure> {
        let line = reader.last_decision(uuid).map_err(Failure::new)?;
        line.map(|line| Self::new(&line)).transpose()
    }
}
