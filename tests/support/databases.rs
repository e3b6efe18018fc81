//! Real databases on a test's file system: how they are created, started, queried and stopped.
//! Queries go through their own command lines, one line at a time.

use super::PATIENCE;
use super::bench::databases;
use super::clock::Deadline;
use super::process::{Running, run, start};
use super::tools::{absent, skipped, tool};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Debian's folder of the versions of PostgreSQL.
const POSTGRES: &str = "/usr/lib/postgresql";

/// The line that a client prints after the results of a query.
const ANSWERED: &str = "answered";

/// A database. Its commits are as durable as by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Database {
    /// With a write-ahead log, or with a rollback journal.
    Sqlite {
        has_log: bool,
    },
    PostgreSql,
    MariaDb,
}

/// A database's folders: its data, on the tested file system, and its socket, beside it.
pub struct Place {
    pub data: PathBuf,
    pub socket: PathBuf,
}

/// The server of a database; SQLite has none.
pub struct Served {
    process: Option<Running>,
    data: PathBuf,
}

impl Database {
    /// Returns whether it is not installed, and prints that.
    pub fn is_absent(self) -> bool {
        match self {
            Self::Sqlite { .. } => absent(&["sqlite3", "stdbuf"]),
            Self::PostgreSql if postgres_folder().is_none() => {
                skipped("PostgreSQL is not installed (cargo x setup installs it)");
                true
            }
            Self::PostgreSql => false,
            Self::MariaDb => absent(&["mariadbd", "mariadb-install-db", "mariadb"]),
        }
    }

    /// Returns the number of sessions that write at once.
    pub const fn sessions(self) -> u64 {
        match self {
            Self::Sqlite { .. } => 1,
            Self::PostgreSql | Self::MariaDb => 2,
        }
    }

    /// Creates an empty database and makes it durable.
    #[track_caller]
    pub fn make(self, place: &Place) {
        let data = place.data.display().to_string();
        std::fs::create_dir_all(&place.socket).expect("a folder");
        run(&mut tool("mkdir", &data)).ok();
        match self {
            Self::Sqlite { .. } => {}
            Self::PostgreSql => {
                run(tool("chown", "postgres").arg(&data).arg(&place.socket)).ok();
                let words = "--auth=trust --encoding=UTF8 --locale=C --data-checksums \
                             --wal-segsize=4 --username=postgres -D";
                run(postgres("initdb").args(words.split_whitespace()).arg(&data)).ok();
            }
            Self::MariaDb => {
                let words = "--no-defaults --auth-root-socket-user=root --force -uroot";
                let data = format!("--datadir={data}");
                run(tool("mariadb-install-db", words).arg(data).current_dir("/")).ok();
            }
        }
        run(tool("sync", "-f").arg(&place.data)).ok();
    }

    /// Starts its server, without waiting for it.
    pub fn launch(self, place: &Place) -> Served {
        let process = match self {
            Self::Sqlite { .. } => None,
            Self::PostgreSql => {
                let mut server = postgres("postgres");
                server.arg("-D").arg(&place.data).arg("-k").arg(&place.socket);
                // Segments and caches are small, so that a short test has checkpoints, too.
                for setting in [
                    "listen_addresses=",
                    "shared_buffers=8MB",
                    "max_wal_size=16MB",
                    "restart_after_crash=off",
                ] {
                    server.args(["-c", setting]);
                }
                Some(start(server.stdin(Stdio::null())))
            }
            Self::MariaDb => {
                // Its pages are written as soon as they are changed.
                let words = "--no-defaults --user=root --skip-networking \
                             --innodb-buffer-pool-size=16M --innodb-log-file-size=8M \
                             --innodb-max-dirty-pages-pct=0";
                let mut server = tool("mariadbd", words);
                server.arg(format!("--datadir={}", place.data.display()));
                server.arg(format!("--socket={}", mariadb_socket(place).display()));
                Some(start(server.current_dir("/")))
            }
        };
        Served { process, data: place.data.clone() }
    }

    /// Starts its server and waits until it has recovered.
    #[track_caller]
    pub fn start(self, place: &Place) -> Served {
        let mut served = self.launch(place);
        if let Some(process) = &mut served.process {
            let is_ready = || {
                assert!(process.is_running(), "{}", process.logged());
                let told = process.logged();
                ["ready to accept connections", "ready for connections"]
                    .iter()
                    .any(|words| told.contains(words))
            };
            let is_up = Deadline::after(PATIENCE).comes(is_ready);
            assert!(is_up, "{self:?} is not ready:\n{}", process.logged());
        }
        served
    }

    /// Returns SQLite with its other way of commits; other databases have one.
    pub const fn other_way(self) -> Self {
        match self {
            Self::Sqlite { has_log } => Self::Sqlite { has_log: !has_log },
            Self::PostgreSql | Self::MariaDb => self,
        }
    }

    /// Starts its client.
    pub fn client(self, place: &Place) -> Session {
        let mut client = match self {
            Self::Sqlite { .. } => {
                let mut client = tool("stdbuf", "-oL sqlite3 -batch -bail");
                client.arg(place.data.join("kept.db"));
                client
            }
            Self::PostgreSql => {
                let mut client = postgres("psql");
                client.args("-X -q -A -t -v ON_ERROR_STOP=1".split_whitespace());
                client.arg("-h").arg(&place.socket).args(["-U", "postgres", "postgres"]);
                client
            }
            Self::MariaDb => {
                let words = "--no-defaults --batch --skip-column-names --unbuffered --user=root";
                let mut client = tool("mariadb", words);
                client.arg(format!("--socket={}", mariadb_socket(place).display()));
                client.arg("test");
                client
            }
        };
        Session { client: start(client.stdin(Stdio::piped())) }
    }

    /// Starts its client, and waits until it has opened the database.
    #[track_caller]
    pub fn session(self, place: &Place) -> Session {
        let mut session = self.client(place);
        // The end of a rollback journal is only durable with EXTRA, which syncs its folder.
        session.rows(match self {
            Self::Sqlite { has_log: true } => "PRAGMA journal_mode=wal; PRAGMA synchronous=full;",
            Self::Sqlite { has_log: false } => {
                "PRAGMA journal_mode=delete; PRAGMA synchronous=extra;"
            }
            Self::PostgreSql | Self::MariaDb => "",
        });
        session
    }

    /// Returns the statement that writes changes from the log to the tables.
    pub const fn checkpoint(self) -> &'static str {
        match self {
            Self::Sqlite { .. } => "PRAGMA wal_checkpoint(truncate);",
            Self::PostgreSql => "CHECKPOINT;",
            Self::MariaDb => "FLUSH TABLES;",
        }
    }

    /// Returns the statement that checks its table `kept` and the index, and the text with which
    /// the answer of a sound database ends.
    pub const fn integrity(self) -> (&'static str, &'static str) {
        match self {
            Self::Sqlite { .. } => ("PRAGMA integrity_check;", "ok"),
            Self::PostgreSql => (
                "CREATE EXTENSION IF NOT EXISTS amcheck; \
                 SELECT 'sound' || bt_index_check('kept_pkey', true)::text;",
                "sound",
            ),
            Self::MariaDb => ("CHECK TABLE kept EXTENDED;", "OK"),
        }
    }
}

impl Served {
    /// Kills it and waits until all its processes have ended.
    #[track_caller]
    pub fn kill(mut self) {
        if let Some(mut process) = self.process.take() {
            // On SIGQUIT, a PostgreSQL ends its children; each of its processes leads a group of
            // its own.
            let is_over = process.is_running() && {
                process.signal(Signal::QUIT);
                Deadline::after(PATIENCE / 6).comes(|| !process.is_running())
            };
            if !is_over && process.is_running() {
                process.signal(Signal::KILL);
            }
            process.finish();
            let is_gone = || databases(&self.data).is_empty();
            Deadline::after(PATIENCE).ask("the end of the database's processes", is_gone);
        }
    }
}

/// A client of a database. It ends at the first error.
pub struct Session {
    client: Running,
}

impl Session {
    /// Sends a statement without waiting for its outcome.
    pub fn begin(&mut self, statement: &str) {
        let _ = self.client.try_to_tell(statement);
    }

    /// Runs statements; returns the rows of all of them, or `None` if one failed.
    #[track_caller]
    pub fn ask(&mut self, statements: &str) -> Option<Vec<String>> {
        let deadline = Deadline::after(PATIENCE);
        self.client.try_to_tell(&format!("{statements} SELECT '{ANSWERED}';")).ok()?;
        let mut rows = Vec::new();
        loop {
            let Some(line) = self.client.next_line(deadline) else {
                assert!(!deadline.left().is_zero(), "a client waits in vain");
                return None;
            };
            match line.trim_end_matches('\n') {
                ANSWERED => return Some(rows),
                row => rows.push(row.replace('\t', "|")),
            }
        }
    }

    /// Runs statements that must not fail; returns the rows of all of them.
    #[track_caller]
    pub fn rows(&mut self, statements: &str) -> Vec<String> {
        let rows = self.ask(statements);
        rows.unwrap_or_else(|| panic!("{statements}: {}", self.client.logged()))
    }
}

fn postgres_folder() -> Option<PathBuf> {
    let versions = std::fs::read_dir(POSTGRES).into_iter().flatten().flatten();
    let newest = versions.filter_map(|version| version.file_name().to_str()?.parse::<u32>().ok());
    newest.max().map(|version| Path::new(POSTGRES).join(version.to_string()).join("bin"))
}

/// Returns a command of a program of PostgreSQL. Its server refuses to run as root.
fn postgres(program: &str) -> Command {
    let id = |flag: &str| run(&mut tool("id", &format!("{flag} postgres"))).ok().trim().parse();
    let mut command = Command::new(postgres_folder().expect("it is installed").join(program));
    command.uid(id("-u").expect("a number")).gid(id("-g").expect("a number"));
    command.current_dir("/").stdin(Stdio::null());
    command
}

fn mariadb_socket(place: &Place) -> PathBuf {
    place.socket.join("s")
}
