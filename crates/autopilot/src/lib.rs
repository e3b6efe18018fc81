//! The autopilot's agent: it observes file systems, decides by the planner's policy and executes
//! one step at a time.
//!
//! The policy ([`evenkeel_planner::autopilot`]) is pure. This crate has what it needs of the
//! outside: a [`Host`] executes verbs on a file system, a [`Cloud`] calls the EC2 API, and a
//! [`Journal`] keeps the state and the audit. The [`Controller`] connects them, and has no clock:
//! each [`tick`](Controller::tick) is given the time. So the same controller runs on a real host
//! and in the simulated world.

#![deny(unsafe_code)] // Except for questions to the kernel, in `host::ioctl`.

pub mod agent;
pub mod answers;
pub mod audit;
pub mod aws_cli;
pub mod cloud;
pub mod controller;
pub mod counters;
pub mod disk;
pub mod history;
pub mod host;
pub mod journal;
pub mod orders;
pub mod policy_file;
pub mod world;

use evenkeel_planner::autopilot::observation::{
    Account, FileSystem, FrontEnd, Instance, Observation, Volume,
};
use evenkeel_planner::autopilot::operation::{Call, Verb};
use evenkeel_planner::autopilot::state::State;
use serde::{Deserialize, Serialize};

pub use controller::Controller;
pub use history::History;
pub use orders::Orders;

/// Why a call or a verb failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It was refused, and would be refused again.
    Refused(String),
    /// It may succeed later: throttling, a lost connection, a device that is busy.
    Later(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused(reason) => f.write_str(reason),
            Self::Later(reason) => write!(f, "{reason}; it is tried again"),
        }
    }
}

/// A host with a file system.
pub trait Host {
    /// Returns the facts of the file system, without the history that the controller keeps:
    /// `largest_jump_bytes`, `peak_used_bytes` and `largest_growth_bytes` are zero.
    ///
    /// # Errors
    /// If the file system is not mounted, or cannot be read.
    fn observe(&mut self) -> Result<FileSystem, Fault>;

    /// Returns whether the device of a volume has a superblock of the file system; `None` if the
    /// volume has no device here.
    ///
    /// # Errors
    /// If the device cannot be read.
    fn has_superblock(&mut self, volume: &str) -> Result<Option<bool>, Fault>;

    /// Checks the preconditions of a verb on the host, and executes it. Moves start and continue
    /// in the background.
    ///
    /// # Errors
    /// If a precondition does not hold, or the kernel refuses.
    fn execute(&mut self, verb: &Verb) -> Result<(), Fault>;
}

/// The API's facts of a file system's volumes, their host and the account.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// The volumes with the tag of the file system, and those that are attached to its host and
    /// belong to its devices.
    pub volumes: Vec<Volume>,
    /// The host.
    pub instance: Option<Instance>,
    /// The account.
    pub account: Account,
    /// The API's time, in milliseconds since 1970, if its replies have one.
    pub unix_ms: Option<u64>,
}

/// The EC2 API of Evenkeel or of AWS.
pub trait Cloud {
    /// Returns what is known about the volumes of a file system. `devices` are those that the file
    /// system has now.
    ///
    /// # Errors
    /// If the API does not answer.
    fn observe(&mut self, uuid: &str, devices: &[String]) -> Result<Known, Fault>;

    /// Returns the front end that makes disks of volumes; `None` if they have devices themselves.
    fn front_end(&self) -> Option<FrontEnd> {
        None
    }

    /// Makes a call for the file system with this UUID. A call that is repeated after a lost
    /// answer has no further effect.
    ///
    /// # Errors
    /// If the API refuses it, or does not answer.
    fn execute(&mut self, uuid: &str, call: &Call) -> Result<(), Fault>;
}

/// The memory of a file system.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Memory {
    /// The state of the policy.
    pub state: State,
    /// The used bytes of the past.
    pub history: History,
    /// The last `release` that is carried out, in milliseconds since 1970.
    pub released_ms: u64,
}

/// The durable memory of the agent.
pub trait Journal {
    /// Returns what is remembered of a file system; the default one if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load(&mut self, uuid: &str) -> Result<Memory, Fault>;

    /// Stores it durably, before the first step that depends on it.
    ///
    /// # Errors
    /// If it cannot be written.
    fn store(&mut self, uuid: &str, memory: &Memory) -> Result<(), Fault>;

    /// Appends a line of the audit, one JSON object without a newline, made at `unix_ms`.
    ///
    /// # Errors
    /// If it cannot be written.
    fn audit(&mut self, unix_ms: u64, line: &str) -> Result<(), Fault>;

    /// Returns whether lines of the audit are kept. If not, none is made.
    fn has_audit(&self) -> bool {
        true
    }

    /// Returns the orders of a person: holds, pauses and releases.
    ///
    /// # Errors
    /// If they cannot be read.
    fn orders(&mut self) -> Result<Orders, Fault> {
        Ok(Orders::default())
    }
}

/// The observation and what came of it in one tick, for status and metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticked {
    /// The observation; `None` if the file system could not be observed.
    pub observation: Option<Observation>,
    /// The decision; `None` without an observation.
    pub decision: Option<evenkeel_planner::autopilot::Decision>,
    /// Steps that were executed, and their faults.
    pub steps: Vec<(String, evenkeel_planner::autopilot::Step, Option<Fault>)>,
    /// Why the file system or the API could not be observed, as sentences.
    pub faults: Vec<String>,
}
