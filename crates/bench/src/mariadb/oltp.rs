//! sysbench's transactions on a MariaDB of our own, and sessions of a batch job that read random
//! rows of a table one after the other.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Row, SUPERUSER, Server, program};
use crate::databases::{
    Counted, Database, Maximum, PROBE_S, Readers, Running, Second, Transactions, Waits,
};
use crate::mounts::MountStack;
use evenkeel_lab::{LabError, cancel, child};

/// The package of the load.
const PACKAGE: &str = "sysbench";
/// Rows of either table: 130 MiB, sixteen times the server's cache.
const ROWS: &str = "600000";
/// The database of the transactions, and that of the batch job. Both have the same table, each in a
/// file of its own, so that they are counted apart.
const TRANSACTIONS: &str = "oltp";
const BATCH: &str = "batch";
/// Sessions of the transactions. They are enough to keep the rate while each of them waits for a
/// volume without credits.
const SESSIONS: &str = "--threads=32";
/// Longest wait until all changed pages are written.
const WRITTEN_MAX: Duration = Duration::from_secs(120);
/// Time between two checks for it, in nanoseconds.
const WRITTEN_LOOK: Duration = Duration::from_millis(50);

/// sysbench's own transactions of reads and writes, reduced: one random row of the table is read,
/// and another one is updated.
const SHAPE: [&str; 7] = [
    "--rand-type=uniform",
    "--point-selects=1",
    "--range-selects=off",
    "--index-updates=0",
    "--non-index-updates=1",
    "--delete-inserts=0",
    "--create-secondary=off",
];

/// A row of counters; times in picoseconds. InnoDB has no counter of waits for its log file. So the
/// time of commits stands for it: a commit consists mostly of the flush of its record.
const COUNTERS: &str = "SELECT \
    SUM(IF(FILE_NAME LIKE '%/mariadb/oltp/%', COUNT_READ, 0)), \
    SUM(IF(FILE_NAME LIKE '%/mariadb/oltp/%', SUM_TIMER_READ, 0)), \
    SUM(IF(FILE_NAME LIKE '%/mariadb/batch/%', COUNT_READ, 0)), \
    SUM(IF(FILE_NAME LIKE '%/mariadb/batch/%', SUM_TIMER_READ, 0)), \
    commits.COUNT_STAR, commits.SUM_TIMER_WAIT \
    FROM performance_schema.file_summary_by_instance, \
    performance_schema.events_statements_summary_global_by_event_name commits \
    WHERE commits.EVENT_NAME = 'statement/sql/commit'";

/// The number of changed pages that are not written yet.
const DIRTY: &str = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
    WHERE VARIABLE_NAME = 'INNODB_BUFFER_POOL_PAGES_DIRTY'";

/// A server with the tables of transactions and of a batch job.
#[derive(Debug)]
pub struct Tables {
    server: Server,
}

impl Tables {
    /// Creates the tables of both databases on a file system; `folder` is a folder of the run.
    ///
    /// # Errors
    /// As [`Server::start`], or when sysbench fails.
    pub fn make(stack: &MountStack, folder: &Path) -> Result<Self, LabError> {
        let server = Server::start(stack, folder)?;
        server.rows(&format!("CREATE DATABASE {TRANSACTIONS}; CREATE DATABASE {BATCH}"))?;
        let words = words_for(&server, TRANSACTIONS, &["oltp_read_write"], "prepare")?;
        child::run_to_end(Command::new(&words[0]).args(&words[1..]), PACKAGE)?;
        server.rows(&format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
             CREATE TABLE {BATCH}.sbtest1 LIKE {TRANSACTIONS}.sbtest1; \
             INSERT INTO {BATCH}.sbtest1 SELECT * FROM {TRANSACTIONS}.sbtest1"
        ))?;
        Ok(Self { server })
    }

    /// Writes all changed pages, which would otherwise stay in memory. Before that, the purge of
    /// row versions that no transaction can see is completed, as it changes pages.
    fn write_all(&self) -> Result<(), LabError> {
        self.server.rows(
            "SET GLOBAL innodb_max_purge_lag_wait = 0; \
             SET GLOBAL innodb_max_dirty_pages_pct = 0",
        )?;
        child::wait_for("writing MariaDB's changed pages", WRITTEN_MAX, WRITTEN_LOOK, || {
            cancel::go_on()?;
            Ok((self.server.rows(DIRTY)? == [["0"]]).then_some(()))
        })?;
        self.server.rows("SET GLOBAL innodb_max_dirty_pages_pct = 90").map(drop)
    }
}

impl Database for Tables {
    fn described(&self) -> &str {
        &self.server.described
    }

    fn maximum(&mut self, seed: u64) -> Result<Maximum, LabError> {
        let time = format!("--time={PROBE_S}");
        // With the same seed, the load would later write values that rows already have, and InnoDB
        // would not log that.
        let seed = seed_of(!seed);
        let what = ["oltp_read_write", SESSIONS, &time, &seed];
        let words = words_for(&self.server, TRANSACTIONS, &what, "run")?;
        Maximum::find(&words, ("sysbench", PACKAGE), transactions_of, || self.write_all())
    }

    fn rest(&mut self) -> Result<(), LabError> {
        self.write_all()
    }

    /// Does nothing: InnoDB reads without the page cache, and its own cache has room for few of
    /// these pages.
    fn forget_batch(&self) -> Result<(), LabError> {
        Ok(())
    }

    fn counted(&mut self) -> Result<Counted, LabError> {
        let rows = self.server.rows(COUNTERS)?;
        rows.first().and_then(counted_of).ok_or_else(|| LabError::BadOutput {
            tool: "MariaDB",
            what: format!("no figures in {rows:?}"),
        })
    }

    /// Starts sysbench at a whole number of transactions per second, at least one, as it takes no
    /// other rates.
    fn transactions(
        &self,
        wanted: Transactions,
        seed: u64,
        _scratch: &Path,
    ) -> Result<Running, LabError> {
        let rate = format!("--rate={}", wanted.per_second.round().max(1.0));
        let time = format!("--time={}", wanted.length_s);
        let seed = seed_of(seed);
        let what = ["oltp_read_write", SESSIONS, &rate, &time, &seed];
        Running::start(words_for(&self.server, TRANSACTIONS, &what, "run")?, PACKAGE)
    }

    fn readers(&self, readers: &Readers, seed: u64, scratch: &Path) -> Result<Running, LabError> {
        let script = format!(
            "local ffi = require('ffi')\n\
             ffi.cdef('int usleep(unsigned int);')\n\
             local driver, connection\n\
             function thread_init()\n  \
             driver = sysbench.sql.driver()\n  \
             connection = driver:connect()\n\
             end\n\
             function thread_done() connection:disconnect() end\n\
             function event()\n  \
             connection:query('SELECT c FROM sbtest1 WHERE id = ' \
             .. sysbench.rand.uniform(1, {ROWS}))\n  \
             ffi.C.usleep({})\n\
             end\n",
            readers.pause_us
        );
        let path = scratch.join("batch.lua");
        fs::write(&path, script).map_err(LabError::io("cannot write", &path))?;
        let path = path.to_string_lossy();
        let sessions = format!("--threads={}", readers.sessions);
        let time = format!("--time={}", readers.length_s);
        let seed = seed_of(seed);
        let what = [&*path, &sessions, &time, &seed];
        Running::start(words_for(&self.server, BATCH, &what, "run")?, PACKAGE)
    }

    /// Returns no seconds: sysbench does not report their times.
    fn log(&self, _ended: &Running, _scratch: &Path) -> Result<Vec<Second>, LabError> {
        Ok(Vec::new())
    }
}

/// Returns the arguments of sysbench: `what` is its test with options, `command` its action.
fn words_for(
    server: &Server,
    database: &str,
    what: &[&str],
    command: &str,
) -> Result<Vec<String>, LabError> {
    let sysbench = program("sysbench")?.get_program().to_string_lossy().into_owned();
    let mut words = vec![sysbench];
    words.extend(what.iter().map(|word| (*word).to_owned()));
    words.push("--db-driver=mysql".to_owned());
    words.push(format!("--mysql-socket={}", server.socket().display()));
    words.push(format!("--mysql-user={SUPERUSER}"));
    words.push(format!("--mysql-db={database}"));
    // The server would count the execution of any prepared statement as the same kind of statement.
    words.push("--db-ps-mode=disable".to_owned());
    if what.first() == Some(&"oltp_read_write") {
        words.extend(["--tables=1".to_owned(), format!("--table-size={ROWS}")]);
        words.extend(SHAPE.map(str::to_owned));
    }
    words.push(command.to_owned());
    Ok(words)
}

/// Returns the option for the seed; 0 would mean the time of day.
fn seed_of(seed: u64) -> String {
    format!("--rand-seed={}", (seed & 0x7fff_ffff).max(1))
}

/// Parses a row of [`COUNTERS`].
fn counted_of(row: &Row) -> Option<Counted> {
    let count = |column: usize| row.get(column)?.parse::<u64>().ok();
    let waits =
        |column: usize| Some(Waits { count: count(column)?, sum_ns: count(column + 1)? / 1_000 });
    Some(Counted { data: waits(0)?, batch: waits(2)?, log: waits(4)?, transactions: count(4)? })
}

/// Returns the number of transactions of a run; `None` if there were none.
fn transactions_of(told: &str) -> Option<u64> {
    let (_, figures) = told.rsplit_once("transactions:")?;
    figures.split_whitespace().next()?.parse().ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_sysbench_and_of_the_server_are_read() {
        let text = "    queries performed:\n    transactions:                        \
                    1234   (246.31 per sec.)\n";
        assert_eq!(transactions_of(text), Some(1_234));
        assert_eq!(transactions_of("    transactions:  0   (0.00 per sec.)"), None);
        assert_eq!(transactions_of("no luck"), None);
        let row = ["3", "4500000", "2", "1999", "42", "7000"].map(str::to_owned).to_vec();
        let counted = counted_of(&row).unwrap();
        assert_eq!(counted.data, Waits { count: 3, sum_ns: 4_500 });
        assert_eq!(counted.batch, Waits { count: 2, sum_ns: 1 });
        assert_eq!((counted.log, counted.transactions), (Waits { count: 42, sum_ns: 7 }, 42));
        assert_eq!(counted_of(&row[..5].to_vec()), None);
        assert_eq!(
            [0, 7, u64::MAX].map(seed_of).join(" "),
            "--rand-seed=1 --rand-seed=7 --rand-seed=2147483647"
        );
    }
}
