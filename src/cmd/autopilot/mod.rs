//! `evenkeel autopilot`: what the agent decides, and the orders of a person.
//!
//! All of it is in the folder of the agent, which need not run.

mod advise;
mod check;
mod explain;
mod orders;
mod status;
mod words;

use crate::cli::{AutopilotArgs, AutopilotVerb};
use evenkeel_autopilot::audit::{self, Decided};
use evenkeel_autopilot::journal::Reader;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_os::clock;
use evenkeel_planner::autopilot::{Decision, Observation};

pub fn run(arguments: &AutopilotArgs) -> Result<(), Failure> {
    let format = arguments.output.format;
    if let AutopilotVerb::Check { file } = &arguments.verb {
        return output::print(&check::text(file, format)?);
    }
    let missing = |message: String| Failure::new(message).exit(Exit::NotFound);
    let reader = Reader::open(&arguments.folder).map_err(missing)?;
    let now_ms = clock::unix_ms().0;
    match &arguments.verb {
        AutopilotVerb::Status => output::print(&status::text(&reader, now_ms, format)?),
        AutopilotVerb::Explain { decision } => explain::run(&reader, decision, format),
        AutopilotVerb::Advise => output::print(&advise::text(&reader, format)?),
        AutopilotVerb::Hold(hold) => {
            orders::hold(&reader, &hold.until, &hold.reason.reason, now_ms)
        }
        AutopilotVerb::Pause(pause) => orders::pause(&reader, &pause.reason, now_ms),
        AutopilotVerb::Resume => orders::resume(&reader),
        AutopilotVerb::Release => orders::release(&reader, now_ms),
        AutopilotVerb::Check { .. } => Ok(()),
    }
}

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
