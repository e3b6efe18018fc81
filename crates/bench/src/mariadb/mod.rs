//! A MariaDB of our own on a file system that is tested.
//!
//! InnoDB reads and writes without the page cache, and counts its waits for each file. The server
//! only listens on a unix socket in the folder of the run. Its data folder is written to the
//! journal of the file system's [`MountStack`] before the server starts. So it is always stopped
//! before the file system is unmounted.

mod oltp;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub use self::oltp::Tables;
use crate::mounts::MountStack;
use evenkeel_lab::child::{self, Guarded};
use evenkeel_lab::{LabError, servers};
use evenkeel_sim::text;

/// The user with all rights, without a password over the socket.
const SUPERUSER: &str = "root";
/// The packages of its programs.
const SERVER_PACKAGE: &str = "mariadb-server-core";
const CLIENT_PACKAGE: &str = "mariadb-client-core";
/// The programs that it needs, and their packages.
const TOOLS: [(&str, &str); 4] = [
    ("mariadbd", SERVER_PACKAGE),
    ("mariadb-install-db", SERVER_PACKAGE),
    ("mariadb", CLIENT_PACKAGE),
    ("sysbench", "sysbench"),
];
/// The folder of programs that are not started by hand.
const SYSTEM: &str = "/usr/sbin";
/// The socket's name.
const SOCKET: &str = "s";
/// Longest wait for a server to be ready.
const READY_MAX: Duration = Duration::from_secs(60);

/// Settings of the server, beside its folders. Its own cache is small, so that reads reach the
/// volume. A commit is flushed before it is answered. Pages are written without the page cache, and
/// twice, as is InnoDB's default. There is no read-ahead. The log is so small that all of it has
/// been written before a measurement: the first write to a block of a file waits for the file
/// system's journal.
const SETTINGS: [(&str, &str); 21] = [
    ("skip-networking", "ON"),
    ("max-connections", "200"),
    ("innodb-buffer-pool-size", "8M"),
    ("innodb-flush-log-at-trx-commit", "1"),
    ("innodb-flush-method", "O_DIRECT"),
    ("innodb-log-file-size", "32M"),
    ("innodb-doublewrite", "ON"),
    ("innodb-io-capacity", "2000"),
    ("innodb-io-capacity-max", "4000"),
    ("innodb-lru-scan-depth", "100"),
    ("innodb-flush-neighbors", "0"),
    ("innodb-read-ahead-threshold", "0"),
    ("innodb-adaptive-hash-index", "OFF"),
    ("innodb-change-buffering", "none"),
    ("innodb-stats-persistent", "OFF"),
    ("innodb-buffer-pool-dump-at-shutdown", "OFF"),
    ("innodb-buffer-pool-load-at-startup", "OFF"),
    ("performance-schema", "ON"),
    ("performance-schema-instrument", "%=OFF"),
    ("performance-schema-instrument", "wait/io/file/innodb/innodb_data_file=ON"),
    ("performance-schema-instrument", "statement/%=ON"),
];

/// Returns why this machine cannot run a server; `None` if it can.
#[must_use]
pub fn probe() -> Option<String> {
    let (tool, package) = TOOLS.into_iter().find(|(tool, _)| find(tool).is_none())?;
    Some(LabError::ToolMissing { tool: tool.to_owned(), package }.to_string())
}

/// Returns the path of a program of MariaDB or of its load.
pub(super) fn find(tool: &str) -> Option<PathBuf> {
    let is_ours = TOOLS.iter().any(|(known, _)| *known == tool);
    is_ours.then(|| child::find(tool, [PathBuf::from(SYSTEM)])).flatten()
}

/// Returns a command of one of these programs.
fn program(tool: &'static str) -> Result<Command, LabError> {
    let package = TOOLS.iter().find(|(known, _)| *known == tool).map_or(SERVER_PACKAGE, |of| of.1);
    let found =
        find(tool).ok_or_else(|| LabError::ToolMissing { tool: tool.to_owned(), package })?;
    Ok(Command::new(found))
}

/// A row, column by column.
type Row = Vec<String>;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    data: PathBuf,
    folder: PathBuf,
    process: Guarded,
    /// Description of the server, for the record.
    described: String,
}

impl Server {
    /// Creates a data folder on a file system and starts its server. `folder` is a folder of the
    /// run, for its socket.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn start(stack: &MountStack, folder: &Path) -> Result<Self, LabError> {
        let data = stack.path().join("mariadb");
        let folder = folder.join("mariadb");
        stack.serves(&data)?;
        let mut make = program("mariadb-install-db")?;
        // With `-u` only the server gets the user. With `--user` the script would also give files
        // of the system to it. `--force` keeps it from resolving this host's names.
        make.args(["--no-defaults", "--auth-root-socket-user=root", "--skip-test-db", "--force"]);
        make.arg("-uroot").arg(servers::data_folder(&data)).current_dir("/");
        child::run_to_end(&mut make, SERVER_PACKAGE)?;
        // A client of the server can read and write files as root.
        servers::private_folder(&folder)?;
        let mut command = program("mariadbd")?;
        command.args(["--no-defaults", "--user=root"]).arg(servers::data_folder(&data));
        command.arg(format!("--socket={}", folder.join(SOCKET).display()));
        for (name, value) in SETTINGS {
            command.arg(format!("--{name}={value}"));
        }
        command.current_dir(&data).stdout(Stdio::null());
        let process = Guarded::spawn(&mut command, SERVER_PACKAGE)?;
        let mut started = Self { data, folder, process, described: String::new() };
        started.wait_until_ready()?;
        started.describe()?;
        Ok(started)
    }

    /// Returns the path of its socket.
    fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// Runs statements; returns the rows of all of them.
    ///
    /// # Errors
    /// When the server refuses one, with the server's message, or does not answer in time.
    fn rows(&self, statements: &str) -> Result<Vec<Row>, LabError> {
        let output = child::run_to_end(&mut client(&self.socket(), statements)?, CLIENT_PACKAGE)?;
        Ok(output.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let command = format!("mariadbd --datadir={}", self.data.display());
        let socket = self.socket();
        // Each query starts a program, so the first one waits for the socket.
        let is_ready = || {
            let asked = || child::run_to_end(&mut client(&socket, "SELECT 1")?, CLIENT_PACKAGE);
            socket.exists() && asked().is_ok()
        };
        self.process.wait_until_ready(("mariadbd", command), READY_MAX, is_ready, String::new)
    }

    fn describe(&mut self) -> Result<(), LabError> {
        let rows = self.rows("SELECT version()")?;
        let version = rows.first().and_then(|row| row.first()).cloned().unwrap_or_default();
        let settings = SETTINGS.map(|(name, value)| format!("--{name}={value}"));
        let words: Vec<&str> = settings.iter().map(String::as_str).collect();
        self.described = format!("MariaDB {version}, {}", text::command_line(&words));
        Ok(())
    }
}

/// Returns a command of the client, which prints rows as text, one in a line.
fn client(socket: &Path, statements: &str) -> Result<Command, LabError> {
    let mut command = program("mariadb")?;
    command.args(["--no-defaults", "--batch", "--skip-column-names", "--no-auto-rehash"]);
    command.arg(format!("--user={SUPERUSER}")).arg(format!("--socket={}", socket.display()));
    command.arg(format!("--execute={statements}")).current_dir("/");
    Ok(command)
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is one process, and its data is not needed again.
        self.process.kill();
        // The next server of this run has a folder of the same name.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_programs_of_mariadb_only() {
        assert_eq!(find("sh"), None);
        let known = ["mariadbd", "mariadb"].map(program);
        assert!(known.iter().all(|of| of.is_ok()) || probe().is_some());
    }
}
