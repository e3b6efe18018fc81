//! The interface of a database of our own for experiments: transactions, a batch job beside them,
//! and the database's own counters of both.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::mounts::MountStack;
use crate::{mariadb, postgres};
use evenkeel_lab::LabError;
use evenkeel_lab::child::{self, Guarded};
use evenkeel_os::clock;
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::text;

/// Duration of the search for a maximum, in seconds.
pub(super) const PROBE_S: u64 = 5;
/// Time beyond its duration that a load gets to end its last transactions.
const GRACE: Duration = Duration::from_secs(60);

/// The number of waits, and their total time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits {
    /// The number.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

/// Counters of a database since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Reads of the transactions' tables that its own cache did not answer.
    pub data: Waits,
    /// Such reads of the batch job's tables.
    pub batch: Waits,
    /// Flushes of the log.
    pub log: Waits,
    /// Transactions that were committed.
    pub transactions: u64,
}

/// The transactions of one second, from the load's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Second {
    /// The second, since 1970.
    pub unix_s: u64,
    /// Transactions that ended in it.
    pub count: u64,
    /// Sum of their times in microseconds, from when they were due.
    pub sum_us: u64,
}

/// A batch job: sessions that each read a page, pause, and read the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readers {
    /// Sessions.
    pub sessions: u16,
    /// Pause between answer and request, in microseconds.
    pub pause_us: u64,
    /// Duration in seconds.
    pub length_s: u64,
}

/// Transactions at a rate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Transactions {
    /// Transactions per second.
    pub per_second: f64,
    /// Duration in seconds.
    pub length_s: u64,
}

/// The maximum rate of a database.
#[derive(Clone, PartialEq, Debug)]
pub struct Maximum {
    /// Transactions a second.
    pub per_second: f64,
    /// The command line of the measurement.
    pub command: String,
}

/// A database of our own with the tables of transactions and of a batch job, which it counts apart.
/// Dropping it stops it.
pub trait Database {
    /// Returns a description of the database, for the record.
    fn described(&self) -> &str;

    /// Measures the maximum rate of transactions. The time includes that for writing the pages
    /// which they have changed in memory, since writes into memory alone are faster than the
    /// volume.
    ///
    /// # Errors
    /// When the load fails or prints something that cannot be parsed.
    fn maximum(&mut self, seed: u64) -> Result<Maximum, LabError>;

    /// Writes changed pages, and drops the tables from caches that would hide the volume.
    ///
    /// # Errors
    /// When the database fails.
    fn rest(&mut self) -> Result<(), LabError>;

    /// Drops the batch job's tables from caches that would hide the volume, so that each read of a
    /// page reaches the volume.
    ///
    /// # Errors
    /// When there is no such file.
    fn forget_batch(&self) -> Result<(), LabError>;

    /// Returns the counters.
    ///
    /// # Errors
    /// When the database has ended, or returns no figures.
    fn counted(&mut self) -> Result<Counted, LabError>;

    /// Starts transactions; their logs are in `scratch`.
    ///
    /// # Errors
    /// When they cannot be started.
    fn transactions(
        &self,
        wanted: Transactions,
        seed: u64,
        scratch: &Path,
    ) -> Result<Running, LabError>;

    /// Starts a batch job; its script is in `scratch`.
    ///
    /// # Errors
    /// When its script cannot be written, or it cannot be started.
    fn readers(&self, readers: &Readers, seed: u64, scratch: &Path) -> Result<Running, LabError>;

    /// Returns the log of each second of transactions that have ended; empty if the load keeps no
    /// log.
    ///
    /// # Errors
    /// When the log cannot be read.
    fn log(&self, ended: &Running, scratch: &Path) -> Result<Vec<Second>, LabError>;
}

/// Returns why this machine cannot run a database; `None` if it can.
#[must_use]
pub fn probe(engine: Engine) -> Option<String> {
    match engine {
        Engine::Postgres => postgres::probe(),
        Engine::MariaDb => mariadb::probe(),
    }
}

/// Starts a database on a file system, with its tables; `folder` is a folder of the run, for its
/// socket.
///
/// # Errors
/// When a program is missing or fails.
pub fn start(
    engine: Engine,
    stack: &MountStack,
    folder: &Path,
) -> Result<Box<dyn Database>, LabError> {
    Ok(match engine {
        Engine::Postgres => Box::new(postgres::pgbench::Tables::make(stack, folder)?),
        Engine::MariaDb => Box::new(mariadb::Tables::make(stack, folder)?),
    })
}

impl Maximum {
    /// Runs a load of [`PROBE_S`] seconds to its end, and then `write_all`. `count_of` parses the
    /// number of transactions from the load's output.
    pub(super) fn find(
        words: &[String],
        (tool, package): (&'static str, &'static str),
        count_of: fn(&str) -> Option<u64>,
        write_all: impl FnOnce() -> Result<(), LabError>,
    ) -> Result<Self, LabError> {
        let output = child::run_to_end(Command::new(&words[0]).args(&words[1..]), package)?;
        let count = count_of(&output).ok_or_else(|| LabError::BadOutput {
            tool,
            what: format!("no transactions in {output:?}"),
        })?;
        let since = clock::now();
        write_all()?;
        let took_s = PROBE_S as f64 + (clock::now() - since).as_secs_f64();
        Ok(Self { per_second: count as f64 / took_s, command: text::command_line(words) })
    }
}

impl Counted {
    /// Returns the difference to earlier counters.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let waits = |now: Waits, before: Waits| Waits {
            count: now.count.saturating_sub(before.count),
            sum_ns: now.sum_ns.saturating_sub(before.sum_ns),
        };
        Self {
            data: waits(self.data, before.data),
            batch: waits(self.batch, before.batch),
            log: waits(self.log, before.log),
            transactions: self.transactions.saturating_sub(before.transactions),
        }
    }
}

/// A load that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    process: Guarded,
    words: Vec<String>,
}

impl Running {
    pub(super) fn start(words: Vec<String>, package: &'static str) -> Result<Self, LabError> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::null());
        Ok(Self { process: Guarded::spawn(&mut command, package)?, words })
    }

    /// Returns the exact command line.
    #[must_use]
    pub fn command(&self) -> String {
        text::command_line(&self.words)
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the load ends by itself.
    ///
    /// # Errors
    /// When it fails, or does not end in time.
    pub fn finish(&mut self) -> Result<(), LabError> {
        match self.process.wait_until(clock::now() + GRACE) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(status)),
            None => Err(LabError::Deadline { what: self.words.join(" "), after: GRACE }),
        }
    }

    /// Checks that the load runs, or has ended with success.
    ///
    /// # Errors
    /// When it has failed.
    pub fn is_well(&mut self) -> Result<(), LabError> {
        match self.process.wait_until(clock::now()) {
            Some(status) if !status.success() => Err(self.failed(status)),
            _ => Ok(()),
        }
    }

    fn failed(&mut self, status: ExitStatus) -> LabError {
        LabError::ToolFailed {
            tool: self.words[0].clone(),
            how: status.to_string(),
            said: self.process.stderr(),
            command: self.command(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_since_a_moment_are_never_negative() {
        let waits = |count, sum_ns| Waits { count, sum_ns };
        let before = Counted { data: waits(7, 70), transactions: 5, ..Counted::default() };
        let after = Counted { data: waits(10, 100), transactions: 4, ..Counted::default() };
        let since = after.since(&before);
        assert_eq!((since.data, since.transactions), (waits(3, 30), 0));
    }

    #[test]
    fn failed_load_is_an_error_with_its_message() {
        let words = ["sh", "-c", "echo no such table >&2; exit 3"].map(str::to_owned).to_vec();
        let mut load = Running::start(words, "dash").unwrap();
        let text = load.finish().unwrap_err().to_string();
        assert!(text.contains("no such table") && text.contains("exit 3"), "{text}");
        assert!(load.is_well().is_err(), "it has ended, and not well");
    }
}
