//! `evenkeel autopilot`: what the agent decides, and the orders of a person.
//!
//! All of it is in the folder of the agent, which need not run.

mod orders;

use crate::cli::{AutopilotArgs, AutopilotVerb};
use evenkeel_autopilot::answers;
use evenkeel_autopilot::journal::Reader;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_os::clock;

pub fn run(arguments: &AutopilotArgs) -> Result<(), Failure> {
    let format = arguments.output.format;
    if let AutopilotVerb::Check { file } = &arguments.verb {
        return output::print(&answers::check(file, format)?);
    }
    let missing = |message: String| Failure::new(message).exit(Exit::NotFound);
    let reader = Reader::open(&arguments.folder).map_err(missing)?;
    let now_ms = clock::unix_ms().0;
    match &arguments.verb {
        AutopilotVerb::Status => output::print(&answers::status(&reader, now_ms, format)?),
        AutopilotVerb::Explain { decision } => {
            let explanation = answers::explain(&reader, decision, format)?;
            output::print(&explanation.text)?;
            explanation.verdict
        }
        AutopilotVerb::Advise => output::print(&answers::advise(&reader, format)?),
        AutopilotVerb::Hold(hold) => {
            orders::hold(&reader, &hold.until, &hold.reason.reason, now_ms)
        }
        AutopilotVerb::Pause(pause) => orders::pause(&reader, &pause.reason, now_ms),
        AutopilotVerb::Resume => orders::resume(&reader),
        AutopilotVerb::Release => orders::release(&reader, now_ms),
        AutopilotVerb::Check { .. } => Ok(()),
    }
}
