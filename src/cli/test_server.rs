//! Flags of a server for tests, and of the verb that changes its clock.

use super::{Connection, Output};
use clap::{Args, Subcommand};
use evenkeel_cli::flags::span;
use std::time::Duration;

#[derive(Args, Clone, Debug)]
pub struct TestServer {
    /// Serve tests: clients can move the clock of the API ahead and stop it (`evenkeel clock`). On
    /// loopback addresses only, and not beside --etcd.
    #[arg(long, env = "EVENKEEL_TEST_SERVER")]
    pub test_server: bool,
}

#[derive(Args, Debug)]
pub struct ClockArgs {
    #[command(subcommand)]
    pub verb: ClockVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum ClockVerb {
    /// Print the clock's time.
    Show,
    /// Move the clock ahead by a time such as 6h.
    ///
    /// Volumes have the credits of that time without I/O when the command returns, and whatever
    /// ends in that time has ended: cool-downs, the recycle bin, locks, restores.
    Advance {
        /// The time, such as 90s, 5m, 6h or 2d; 400 days at most.
        #[arg(value_name = "TIME", value_parser = span)]
        by: Duration,
    },
    /// Move the clock ahead to a time; an earlier one is refused.
    Set {
        /// The time in UTC, such as 2026-12-31T23:59:59Z.
        #[arg(value_name = "TIME")]
        to: String,
    },
    /// Stop the clock.
    Freeze,
    /// Let the clock run.
    Run,
}
