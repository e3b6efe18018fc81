//! The flags of `evenkeel autopilot`.

use super::Output;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct AutopilotArgs {
    #[command(subcommand)]
    pub verb: AutopilotVerb,

    /// The folder of the agent: its journal, its audit and its recordings.
    #[arg(long = "agent-folder", global = true, env = "EVENKEEL_AGENT_FOLDER")]
    #[arg(value_name = "DIR")]
    #[arg(default_value = "/var/lib/evenkeel-agent", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum AutopilotVerb {
    /// Show each file system with its mode, forecast, brakes, alarms and open operations.
    Status,
    /// Print all of a decision: inputs, rules, costs, commands, undo, steps and their results.
    ///
    /// It is decided again from the inputs of the audit, and the bytes are compared. Exit code 1 if
    /// they differ, 6 if the policy of that time is not kept.
    Explain {
        /// The id of the decision, such as 3f0c2b51-1207: `status` shows the last one of each file
        /// system. That of an operation, 3f0c2b51-1207.0, names the decision that made it.
        decision: String,
    },
    /// Print the commands of the changes that the last decision of each file system asks for, and
    /// the commands that undo them.
    Advise,
    /// Make no call and no change before a time.
    Hold(AutopilotHold),
    /// Make no call and no change before `resume`.
    Pause(AutopilotReason),
    /// End a pause.
    Resume,
    /// End a hold, also one that the autopilot set, and continue after failures.
    Release,
    /// Read a file of policies, and print its groups.
    Check {
        /// The file (TOML).
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

#[derive(Args, Debug)]
pub struct AutopilotHold {
    /// The end: a day such as 2026-12-24, a time such as 2026-12-24T06:00:00Z, or a duration such
    /// as 36h.
    #[arg(value_name = "UNTIL")]
    pub until: String,

    #[command(flatten)]
    pub reason: AutopilotReason,
}

#[derive(Args, Debug)]
pub struct AutopilotReason {
    /// The reason, which `status` shows.
    #[arg(long, default_value = "ordered by a person", value_name = "TEXT")]
    pub reason: String,
}
