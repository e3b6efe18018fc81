//! pgbench on a server of our own: its tables, its transactions at a rate or one after the other,
//! and sessions of a batch job that read one page after the other anywhere in a table.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use super::{PACKAGE, PORT, SUPERUSER, Server, program};
use crate::bench::chain::Chain;
use crate::bench::child::{self, Guarded};
use crate::bench::desktop::Score;
use crate::{LabError, clock, text};

/// Hundred thousands of accounts: 256 MiB, thirty times the server's cache.
const SCALE: u64 = 20;
/// The database of the transactions.
pub const TRANSACTIONS: &str = "oltp";
/// The database that a cluster is made with, which neither of both uses.
pub const FIRST: &str = "postgres";
/// That of the batch job: the same tables, which the server counts apart.
pub const BATCH: &str = "batch";
/// Sessions of the transactions: enough that a rate can be kept while each of them waits for a
/// volume without credits.
const SESSIONS: &str = "32";
/// A maximum is looked for so long, in seconds.
const PROBE_S: u64 = 5;
/// What pgbench's logs are called; its process id follows.
const LOG: &str = "transactions";
/// Beyond its own time, pgbench gets so long to end its last transactions.
const GRACE: Duration = Duration::from_secs(60);

/// Second by second what pgbench has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Second {
    /// Which: seconds since 1970.
    pub unix_s: u64,
    /// Transactions that were done in it.
    pub count: u64,
    /// How long they took in microseconds, all together, from when they were due.
    pub sum_us: u64,
}

/// A batch job: sessions that each read a page, pause, and read the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Readers {
    /// Sessions.
    pub sessions: u16,
    /// Pause between answer and request, in microseconds.
    pub pause_us: u64,
    /// How long, in seconds.
    pub length_s: u64,
}

/// A pgbench that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    process: Guarded,
    words: Vec<String>,
    scratch: PathBuf,
}

/// The most that a server does.
#[derive(Clone, PartialEq, Debug)]
pub struct Maximum {
    /// Transactions a second.
    pub per_second: f64,
    /// The exact command line that found it.
    pub command: String,
}

/// The files of a cluster that hold what is visited, as the server names them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Files {
    /// Those of the transactions.
    pub transactions: Vec<String>,
    /// Those of the batch job, which only reads.
    pub batch: Vec<String>,
}

/// Makes the tables of both databases.
///
/// # Errors
/// When pgbench or the server fails.
pub fn prepare(server: &Server) -> Result<Files, LabError> {
    let mut session = server.session(FIRST)?;
    session.rows(&format!("CREATE DATABASE {TRANSACTIONS}"))?;
    fill(server, TRANSACTIONS, SCALE)?;
    // Copied as files: read again, rows would be marked as known to be committed, and written.
    let copied = format!("CREATE DATABASE {BATCH} TEMPLATE {TRANSACTIONS} STRATEGY file_copy");
    session.rows(&copied)?;
    let files = |database| -> Result<Vec<String>, LabError> {
        let rows = server.session(database)?.rows(
            "SELECT pg_relation_filepath(oid) FROM pg_class \
             WHERE relname IN ('pgbench_accounts', 'pgbench_accounts_pkey')",
        )?;
        Ok(rows.into_iter().flatten().collect())
    };
    Ok(Files { transactions: files(TRANSACTIONS)?, batch: files(BATCH)? })
}

/// Makes tables of so many hundred thousand accounts.
fn fill(server: &Server, database: &str, scale: u64) -> Result<(), LabError> {
    let mut words = words_for(server, database, None)?;
    words.extend(["-i", "-q", "-s"].map(str::to_owned));
    words.push(scale.to_string());
    child::run_to_end(Command::new(&words[0]).args(&words[1..]), PACKAGE).map(drop)
}

/// A server with the tables of [`batch`], and nothing left to write but what transactions do.
///
/// # Errors
/// As [`Server::start`], or when pgbench fails.
pub fn ready(chain: &Chain, folder: &Path) -> Result<Server, LabError> {
    let server = Server::start(chain, folder)?;
    fill(&server, FIRST, 1)?;
    server.session(FIRST)?.rows("CHECKPOINT")?;
    server.settle()?;
    Ok(server)
}

/// Makes transactions one after the other; how long they took, without the connection's making, by
/// pgbench's own rate.
///
/// # Errors
/// When pgbench fails or prints what we do not understand.
pub fn batch(server: &Server, transactions: u64, seed: u64) -> Result<Score, LabError> {
    let mut words = words_for(server, FIRST, Some(seed))?;
    words.extend(["-c", "1", "-t", &transactions.to_string()].map(str::to_owned));
    let told = child::run_to_end(Command::new(&words[0]).args(&words[1..]), PACKAGE)?;
    let is_all = transactions_of(&told) == Some(transactions);
    let rate = rate_of(&told).filter(|_| is_all).ok_or_else(|| LabError::BadOutput {
        tool: "pgbench",
        what: format!("no rate of {transactions} transactions in {told:?}"),
    })?;
    let took_ns = (transactions as f64 * 1e9 / rate).round() as u64;
    Ok(Score { took_ns, command: text::command_line(&words) })
}

/// The most transactions a second that the server does: in a short time, and in that which it takes
/// to write what they have left in memory. Without it, the page cache would lend what it never gets
/// back.
///
/// # Errors
/// When pgbench fails or prints what we do not understand.
pub fn maximum(server: &Server, seed: u64) -> Result<Maximum, LabError> {
    let mut words = words_for(server, TRANSACTIONS, Some(seed))?;
    words.extend(["-c", SESSIONS, "-T"].map(str::to_owned));
    words.push(PROBE_S.to_string());
    let told = child::run_to_end(Command::new(&words[0]).args(&words[1..]), PACKAGE)?;
    let count = transactions_of(&told).ok_or_else(|| LabError::BadOutput {
        tool: "pgbench",
        what: format!("no transactions in {:?}", told.lines().last()),
    })?;
    let since = clock::now();
    server.session(FIRST)?.rows("CHECKPOINT")?;
    let took_s = PROBE_S as f64 + (clock::now() - since).as_secs_f64();
    Ok(Maximum { per_second: count as f64 / took_s, command: text::command_line(&words) })
}

/// Begins transactions at a rate; what they took is logged second by second in `scratch`.
///
/// # Errors
/// When pgbench cannot be started.
pub fn transactions(
    server: &Server,
    (per_second, seed): (f64, u64),
    length_s: u64,
    scratch: &Path,
) -> Result<Running, LabError> {
    let mut words = words_for(server, TRANSACTIONS, Some(seed))?;
    words.extend(["-c", SESSIONS].map(str::to_owned));
    words.push(format!("--rate={per_second:.2}"));
    words.extend(["-T".to_owned(), length_s.to_string()]);
    let log = scratch.join(LOG);
    words.extend(["-l".to_owned(), "--aggregate-interval=1".to_owned()]);
    words.push(format!("--log-prefix={}", log.display()));
    Running::start(words, scratch)
}

/// Begins a batch job.
///
/// # Errors
/// When its script cannot be written, or pgbench not be started.
pub fn readers(
    server: &Server,
    readers: &Readers,
    seed: u64,
    scratch: &Path,
) -> Result<Running, LabError> {
    let rows = server
        .session(BATCH)?
        .rows("SELECT pg_relation_size('pgbench_accounts') / current_setting('block_size')::int")?;
    let pages: Option<u64> = rows.first().and_then(|row| row.first()?.parse().ok());
    let last = pages.and_then(|pages| pages.checked_sub(1)).unwrap_or(0);
    // By its place a row is one page and no index.
    let script = format!(
        "\\set page random(0, {last})\n\
         SELECT aid FROM pgbench_accounts WHERE ctid = '(:page,1)';\n\
         \\sleep {} us\n",
        readers.pause_us
    );
    let path = scratch.join("batch.sql");
    fs::write(&path, script).map_err(LabError::io("cannot write", &path))?;
    let mut words = words_for(server, BATCH, Some(seed))?;
    words.extend(["-c".to_owned(), readers.sessions.to_string()]);
    words.extend(["-T".to_owned(), readers.length_s.to_string()]);
    words.extend(["-f".to_owned(), path.display().to_string()]);
    Running::start(words, scratch)
}

/// The words that all calls begin with; with a seed those of a load, which vacuums nothing first.
fn words_for(server: &Server, database: &str, seed: Option<u64>) -> Result<Vec<String>, LabError> {
    let program = program("pgbench")?.display().to_string();
    let host = server.host().display().to_string();
    let words = [program.as_str(), "-h", &host, "-p", PORT, "-U", SUPERUSER, database];
    let mut words = words.map(str::to_owned).to_vec();
    let load = seed.map(|seed| ["-n".to_owned(), format!("--random-seed={seed}")]);
    words.extend(load.into_iter().flatten());
    Ok(words)
}

impl Running {
    fn start(words: Vec<String>, scratch: &Path) -> Result<Self, LabError> {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::null());
        let process = Guarded::spawn(&mut command, PACKAGE)?;
        Ok(Self { process, words, scratch: scratch.to_path_buf() })
    }

    /// The exact command line.
    #[must_use]
    pub fn command(&self) -> String {
        text::command_line(&self.words)
    }

    /// Waits for its end, which comes by itself.
    ///
    /// # Errors
    /// When it fails, or does not come.
    pub fn finish(&mut self) -> Result<(), LabError> {
        match self.process.wait_until(clock::now() + GRACE) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(self.failed(status)),
            None => Err(LabError::Deadline { what: self.words.join(" "), after: GRACE }),
        }
    }

    /// An error if it has ended before it should have.
    ///
    /// # Errors
    /// Then.
    pub fn is_well(&mut self) -> Result<(), LabError> {
        match self.process.wait_until(clock::now()) {
            Some(status) if !status.success() => Err(self.failed(status)),
            _ => Ok(()),
        }
    }

    fn failed(&mut self, status: ExitStatus) -> LabError {
        LabError::ToolFailed {
            tool: "pgbench".to_owned(),
            how: status.to_string(),
            said: self.process.stderr(),
            command: self.command(),
        }
    }

    /// What it has logged, once it has ended.
    ///
    /// # Errors
    /// When there is no log.
    pub fn log(&self) -> Result<Vec<Second>, LabError> {
        let path = self.scratch.join(format!("{LOG}.{}", self.process.id()));
        let told = fs::read_to_string(&path).map_err(LabError::io("cannot read", &path))?;
        fs::remove_file(&path).map_err(LabError::io("cannot remove", &path))?;
        Ok(told.lines().filter_map(second).collect())
    }
}

/// A line of an aggregated log: when it begins, how many, the sum of their latencies, and more.
fn second(line: &str) -> Option<Second> {
    let mut figures = line.split_whitespace().map(|figure| figure.parse::<u64>().ok());
    let mut next = || figures.next()?;
    Some(Second { unix_s: next()?, count: next()?, sum_us: next()? })
}

/// How many transactions a run came to; none if there was none.
fn transactions_of(told: &str) -> Option<u64> {
    let (_, figures) = told.rsplit_once("actually processed: ")?;
    figures.split(['/', '\n']).next()?.trim().parse().ok().filter(|count| *count > 0)
}

/// Transactions a second, without the time to connect.
fn rate_of(told: &str) -> Option<f64> {
    let (_, figures) = told.rsplit_once("tps = ")?;
    figures.split_whitespace().next()?.parse().ok().filter(|rate: &f64| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_pgbench_are_read() {
        let told = "duration: 5 s\nnumber of transactions actually processed: 1203\n\
                    number of failed transactions: 0 (0.000%)\n";
        assert_eq!(transactions_of(told), Some(1_203));
        let none = ["number of transactions actually processed: 0", "no luck"].map(transactions_of);
        assert_eq!(none, [None, None]);
        let told = "tps = 331.250000 (without initial connection time)\n";
        assert_eq!(rate_of(told), Some(331.25));
        for none in ["", "tps = ", "tps = x", "tps = 0.000000 (without initial connection time)"] {
            assert_eq!(rate_of(none), None, "{none}");
        }
        let line = "1795313404 1457 63664905 2849622601363 40143 121165 0 0 0 0 0 0 0 0 0";
        let expected = Second { unix_s: 1_795_313_404, count: 1_457, sum_us: 63_664_905 };
        assert_eq!(second(line), Some(expected));
        assert_eq!(second("1795313404 1457"), None);
    }
}
