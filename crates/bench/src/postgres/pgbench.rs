//! pgbench on a server of our own: its tables, its transactions at a rate or one after the other,
//! and sessions of a batch job that read random pages of a table one after the other.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{PACKAGE, PORT, Row, SUPERUSER, Server, Session, program};
use crate::databases::{
    Counted, Database, Maximum, PROBE_S, Readers, Running, Second, Transactions, Waits,
};
use crate::desktop::Score;
use crate::mounts::MountStack;
use evenkeel_lab::{LabError, child};
use evenkeel_sim::text;

/// pgbench's scale, in hundred thousands of accounts: 256 MiB, thirty times the server's cache.
const SCALE: u64 = 20;
/// The database of the transactions.
const TRANSACTIONS: &str = "oltp";
/// The database that a new cluster has; neither load uses it.
const FIRST: &str = "postgres";
/// The database of the batch job: the same tables, which the server counts apart.
const BATCH: &str = "batch";
/// Sessions of the transactions. They are enough to keep the rate while each of them waits for a
/// volume without credits.
const SESSIONS: &str = "32";
/// The prefix of pgbench's logs; the process id follows it.
const LOG: &str = "transactions";
/// A server with the tables of transactions and of a batch job.
#[derive(Debug)]
pub struct Tables {
    server: Server,
    session: Session,
    /// Files of the transactions' tables, as the server names them.
    transactions: Vec<String>,
    /// Files of the tables that the batch job reads.
    batch: Vec<String>,
}

/// A row of counters; times in milliseconds.
const COUNTERS: &str = "\
    SELECT o.blks_read, o.blk_read_time, b.blks_read, b.blk_read_time, w.wal_sync, \
    w.wal_sync_time, o.xact_commit \
    FROM pg_stat_database o, pg_stat_database b, pg_stat_wal w \
    WHERE o.datname = 'oltp' AND b.datname = 'batch'";

impl Tables {
    /// Creates the tables of both databases on a file system; `folder` is a folder of the run.
    ///
    /// # Errors
    /// As [`Server::start`], or when pgbench fails.
    pub fn make(stack: &MountStack, folder: &Path) -> Result<Self, LabError> {
        let server = Server::start(stack, folder)?;
        let mut session = server.session(FIRST)?;
        session.rows(&format!("CREATE DATABASE {TRANSACTIONS}"))?;
        fill(&server, TRANSACTIONS, SCALE)?;
        // A copy of the files. In a copy by statements, reads would set the hint bits of rows, and
        // so write.
        let copied = format!("CREATE DATABASE {BATCH} TEMPLATE {TRANSACTIONS} STRATEGY file_copy");
        session.rows(&copied)?;
        let files = |database| -> Result<Vec<String>, LabError> {
            let rows = server.session(database)?.rows(
                "SELECT pg_relation_filepath(oid) FROM pg_class \
                 WHERE relname IN ('pgbench_accounts', 'pgbench_accounts_pkey')",
            )?;
            Ok(rows.into_iter().flatten().collect())
        };
        let transactions = files(TRANSACTIONS)?;
        let batch = files(BATCH)?;
        Ok(Self { server, session, transactions, batch })
    }
}

impl Database for Tables {
    fn described(&self) -> &str {
        &self.server.described
    }

    fn maximum(&mut self, seed: u64) -> Result<Maximum, LabError> {
        let mut words = words_for(&self.server, TRANSACTIONS, Some(seed))?;
        words.extend(["-c", SESSIONS, "-T"].map(str::to_owned));
        words.push(PROBE_S.to_string());
        let write_all = || self.session.rows("CHECKPOINT").map(drop);
        Maximum::find(&words, ("pgbench", PACKAGE), transactions_of, write_all)
    }

    fn rest(&mut self) -> Result<(), LabError> {
        self.session.rows("CHECKPOINT")?;
        self.server.forget(&self.transactions)?;
        self.forget_batch()
    }

    /// Drops only the batch job's tables. The transactions' pages would have to be written before,
    /// and are rarely read again.
    fn forget_batch(&self) -> Result<(), LabError> {
        self.server.forget(&self.batch)
    }

    fn counted(&mut self) -> Result<Counted, LabError> {
        let rows = self.session.rows(COUNTERS)?;
        rows.first().and_then(counted_of).ok_or_else(|| LabError::BadOutput {
            tool: "PostgreSQL",
            what: format!("no figures in {rows:?}"),
        })
    }

    fn transactions(
        &self,
        wanted: Transactions,
        seed: u64,
        scratch: &Path,
    ) -> Result<Running, LabError> {
        transactions_of_database(&self.server, TRANSACTIONS, wanted, seed, scratch)
    }

    fn readers(&self, readers: &Readers, seed: u64, scratch: &Path) -> Result<Running, LabError> {
        let rows = self.server.session(BATCH)?.rows(
            "SELECT pg_relation_size('pgbench_accounts') / current_setting('block_size')::int",
        )?;
        let pages: Option<u64> = rows.first().and_then(|row| row.first()?.parse().ok());
        let last = pages.and_then(|pages| pages.checked_sub(1)).unwrap_or(0);
        // A row that is read by its position is one page, and no index is read.
        let script = format!(
            "\\set page random(0, {last})\n\
             SELECT aid FROM pgbench_accounts WHERE ctid = '(:page,1)';\n\
             \\sleep {} us\n",
            readers.pause_us
        );
        let path = scratch.join("batch.sql");
        fs::write(&path, script).map_err(LabError::io("cannot write", &path))?;
        let mut words = words_for(&self.server, BATCH, Some(seed))?;
        words.extend(["-c".to_owned(), readers.sessions.to_string()]);
        words.extend(["-T".to_owned(), readers.length_s.to_string()]);
        words.extend(["-f".to_owned(), path.display().to_string()]);
        Running::start(words, PACKAGE)
    }

    fn log(&self, ended: &Running, scratch: &Path) -> Result<Vec<Second>, LabError> {
        log(ended, scratch)
    }
}

/// Parses a row of [`COUNTERS`].
fn counted_of(row: &Row) -> Option<Counted> {
    let count = |column: usize| row.get(column)?.parse::<u64>().ok();
    let waits = |column: usize| {
        let ms: f64 = row.get(column + 1)?.parse().ok()?;
        Some(Waits { count: count(column)?, sum_ns: (ms * 1e6).round() as u64 })
    };
    Some(Counted { data: waits(0)?, batch: waits(2)?, log: waits(4)?, transactions: count(6)? })
}

/// Creates tables of `scale` hundred thousand accounts.
fn fill(server: &Server, database: &str, scale: u64) -> Result<(), LabError> {
    let mut words = words_for(server, database, None)?;
    words.extend(["-i", "-q", "-s"].map(str::to_owned));
    words.push(scale.to_string());
    child::run_to_end(Command::new(&words[0]).args(&words[1..]), PACKAGE).map(drop)
}

/// Creates tables of `scale` hundred thousand accounts in the first database of a server.
///
/// # Errors
/// When pgbench is missing or fails.
pub fn accounts(server: &Server, scale: u64) -> Result<(), LabError> {
    fill(server, FIRST, scale)
}

/// Opens a session of the database of [`accounts`].
///
/// # Errors
/// When the server is gone.
pub fn session(server: &Server) -> Result<Session, LabError> {
    server.session(FIRST)
}

/// Starts transactions on [`accounts`]; their logs are in `scratch`.
///
/// # Errors
/// When pgbench is missing.
pub fn transactions(
    server: &Server,
    wanted: Transactions,
    seed: u64,
    scratch: &Path,
) -> Result<Running, LabError> {
    transactions_of_database(server, FIRST, wanted, seed, scratch)
}

fn transactions_of_database(
    server: &Server,
    database: &str,
    wanted: Transactions,
    seed: u64,
    scratch: &Path,
) -> Result<Running, LabError> {
    let mut words = words_for(server, database, Some(seed))?;
    words.extend(["-c", SESSIONS].map(str::to_owned));
    words.push(format!("--rate={:.2}", wanted.per_second));
    words.extend(["-T".to_owned(), wanted.length_s.to_string()]);
    let log = scratch.join(LOG);
    words.extend(["-l".to_owned(), "--aggregate-interval=1".to_owned()]);
    words.push(format!("--log-prefix={}", log.display()));
    Running::start(words, PACKAGE)
}

/// Returns the log of each second of transactions that have ended.
///
/// # Errors
/// When the log cannot be read.
pub fn log(ended: &Running, scratch: &Path) -> Result<Vec<Second>, LabError> {
    let path = scratch.join(format!("{LOG}.{}", ended.id()));
    let text = fs::read_to_string(&path).map_err(LabError::io("cannot read", &path))?;
    fs::remove_file(&path).map_err(LabError::io("cannot remove", &path))?;
    Ok(text.lines().filter_map(second).collect())
}

/// Starts a server with the tables of [`batch`], and writes all dirty data to the disk.
///
/// # Errors
/// As [`Server::start`], or when pgbench fails.
pub fn ready(stack: &MountStack, folder: &Path) -> Result<Server, LabError> {
    let server = Server::start(stack, folder)?;
    fill(&server, FIRST, 1)?;
    server.session(FIRST)?.rows("CHECKPOINT")?;
    server.settle()?;
    Ok(server)
}

/// Makes transactions one after the other. Returns how long they took by pgbench's own rate,
/// without the time to connect.
///
/// # Errors
/// When pgbench fails or prints something that cannot be parsed.
pub fn batch(server: &Server, transactions: u64, seed: u64) -> Result<Score, LabError> {
    let mut words = words_for(server, FIRST, Some(seed))?;
    words.extend(["-c", "1", "-t", &transactions.to_string()].map(str::to_owned));
    let output = child::run_to_end(Command::new(&words[0]).args(&words[1..]), PACKAGE)?;
    let is_all = transactions_of(&output) == Some(transactions);
    let rate = rate_of(&output).filter(|_| is_all).ok_or_else(|| LabError::BadOutput {
        tool: "pgbench",
        what: format!("no rate of {transactions} transactions in {output:?}"),
    })?;
    let took_ns = (transactions as f64 * 1e9 / rate).round() as u64;
    Ok(Score { took_ns, command: text::command_line(&words) })
}

/// Returns the arguments with which all calls begin. With a seed they are those of a load, which
/// vacuums no tables before.
fn words_for(server: &Server, database: &str, seed: Option<u64>) -> Result<Vec<String>, LabError> {
    let program = program("pgbench")?.display().to_string();
    let host = server.host().display().to_string();
    let words = [program.as_str(), "-h", &host, "-p", PORT, "-U", SUPERUSER, database];
    let mut words = words.map(str::to_owned).to_vec();
    let load = seed.map(|seed| ["-n".to_owned(), format!("--random-seed={seed}")]);
    words.extend(load.into_iter().flatten());
    Ok(words)
}

/// Parses a line of an aggregated log: start time, number of transactions, sum of latencies, and
/// more.
fn second(line: &str) -> Option<Second> {
    let mut figures = line.split_whitespace().map(|figure| figure.parse::<u64>().ok());
    let mut next = || figures.next()?;
    Some(Second { unix_s: next()?, count: next()?, sum_us: next()? })
}

/// Returns the number of transactions of a run; `None` if there were none.
fn transactions_of(told: &str) -> Option<u64> {
    let (_, figures) = told.rsplit_once("actually processed: ")?;
    figures.split(['/', '\n']).next()?.trim().parse().ok().filter(|count| *count > 0)
}

/// Returns the transactions per second, without the time to connect.
fn rate_of(told: &str) -> Option<f64> {
    let (_, figures) = told.rsplit_once("tps = ")?;
    figures.split_whitespace().next()?.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_pgbench_are_read() {
        let text = "duration: 5 s\nnumber of transactions actually processed: 1203\n\
                    number of failed transactions: 0 (0.000%)\n";
        assert_eq!(transactions_of(text), Some(1_203));
        let none = ["number of transactions actually processed: 0", "no luck"].map(transactions_of);
        assert_eq!(none, [None, None]);
        let text = "tps = 331.250000 (without initial connection time)\n";
        assert_eq!(rate_of(text), Some(331.25));
        for none in ["", "tps = ", "tps = x", "tps = 0.000000 (without initial connection time)"] {
            assert_eq!(rate_of(none), None, "{none}");
        }
        let line = "1795313404 1457 63664905 2849622601363 40143 121165 0 0 0 0 0 0 0 0 0";
        let expected = Second { unix_s: 1_795_313_404, count: 1_457, sum_us: 63_664_905 };
        assert_eq!(second(line), Some(expected));
        assert_eq!(second("1795313404 1457"), None);
    }
}
