//! Flags of a server for tests, and of the verbs that change its clock and start its faults.

use super::{Connection, Output, volume_id};
use clap::{Args, Subcommand, ValueEnum};
use evenkeel_cli::flags::span;
use evenkeel_core::ids::VolumeId;
use std::time::Duration;

#[derive(Args, Clone, Debug)]
pub struct TestServer {
    /// Serve tests: clients can move the clock of the API ahead (`evenkeel clock`) and inject
    /// faults (`evenkeel fault`). On loopback addresses only, and not beside --etcd.
    #[arg(long, env = "EVENKEEL_TEST_SERVER")]
    pub test_server: bool,

    /// Let volumes of a server for tests take as long as those of EBS: ebs. [default: as fast as
    /// the store]
    #[arg(long, env = "EVENKEEL_FEEL", value_name = "FEEL")]
    pub feel: Option<Feel>,

    /// Seed of the latencies of --feel.
    #[arg(long, env = "EVENKEEL_FEEL_SEED", default_value_t = FEEL_SEED, value_name = "N")]
    pub feel_seed: u64,
}

/// The default of `--feel-seed`.
pub const FEEL_SEED: u64 = 1;

/// How volumes feel.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feel {
    /// Like those of EBS.
    Ebs,
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
        #[arg(value_name = "TIME", value_parser = span_with_unit)]
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

#[derive(Args, Debug)]
pub struct FaultArgs {
    #[command(subcommand)]
    pub verb: FaultVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum FaultVerb {
    /// Start a fault.
    ///
    /// Faults of volumes: pause-volume-io, volume-io-latency, volume-io-error, stuck-attachment,
    /// snapshot-error. Of the API: insufficient-volume-capacity, api-throttle-error,
    /// api-internal-error, api-unavailable-error. The page docs/operating/test_server.md describes
    /// them.
    Start(FaultStart),
    /// List the faults in force.
    List,
    /// Stop faults before their end.
    Stop {
        /// The faults' ids. [default: all]
        #[arg(value_name = "FAULT")]
        faults: Vec<String>,
    },
}

#[derive(Args, Debug)]
pub struct FaultStart {
    /// The type of the fault.
    #[arg(value_name = "TYPE")]
    pub fault: String,

    /// A volume that it concerns; may be repeated. [default: all]
    #[arg(long = "volume", value_name = "VOLUME", value_parser = volume_id)]
    pub volumes: Vec<VolumeId>,

    /// An action of the API that it concerns; may be repeated. [default: all]
    #[arg(long = "operation", value_name = "ACTION")]
    pub operations: Vec<String>,

    /// How long it lasts, in real time; 12h at most.
    #[arg(long = "for", default_value = "5m", value_name = "TIME", value_parser = span)]
    pub lasting: Duration,

    /// Percentage of the requests to the API that it concerns. [default: 100]
    #[arg(long, value_name = "N")]
    pub percent: Option<u32>,

    /// Percentage of the reads that it concerns. [default: 100; 0 if only writes are named]
    #[arg(long, value_name = "N")]
    pub read_percent: Option<u32>,

    /// Percentage of the writes that it concerns. [default: 100; 0 if only reads are
    /// named]
    #[arg(long, value_name = "N")]
    pub write_percent: Option<u32>,

    /// Latency that is added to reads, in milliseconds. [default: 100]
    #[arg(long, value_name = "MS")]
    pub read_ms: Option<u64>,

    /// Latency that is added to writes and flushes, in milliseconds. [default: 100]
    #[arg(long, value_name = "MS")]
    pub write_ms: Option<u64>,

    /// Seed of its random choices. [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Parses a time with its unit. A clock never goes back, so a unit is not guessed.
fn span_with_unit(text: &str) -> Result<Duration, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text} has no unit; write {text}s, {text}m, {text}h or {text}d"));
    }
    span(text)
}
