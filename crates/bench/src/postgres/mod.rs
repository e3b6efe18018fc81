//! A PostgreSQL of our own on a file system that is tested, with pgbench's tables in it.
//!
//! The server refuses to run as root, but mounts need root. So the server runs as the user
//! `postgres`, or `nobody`. It only listens on a unix socket in the folder of the run. Its data
//! folder is written to the journal of the file system's [`MountStack`] before the server starts.
//! So it is always stopped before the file system is unmounted.

pub mod pgbench;
mod session;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{Advice, fadvise};

pub use self::session::{Row, Session};
use crate::mounts::{self, MountStack};
use evenkeel_lab::child::{self, Guarded};
use evenkeel_lab::{LabError, servers};
use evenkeel_os::clock;
use evenkeel_sim::text;

/// The superuser of the cluster, whichever user of the system runs the server.
const SUPERUSER: &str = "postgres";
/// Debian's folder of the programs that are not on the `PATH`, with a subfolder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The package of all of them.
const PACKAGE: &str = "postgresql";
/// The socket's name contains a port, although none is opened.
const PORT: &str = "5432";
/// The socket's name.
const SOCKET: &str = ".s.PGSQL.5432";
/// Longest wait for a server to be ready, and to end.
const READY_MAX: Duration = Duration::from_secs(60);

/// Arguments of `initdb`. Its files are flushed later, before any measurement.
const INITDB: [&str; 6] = [
    "--no-sync",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--wal-segsize=64",
    "--username=postgres",
];

/// Settings of the server, beside its folders. Its own cache is small, so that reads reach the
/// volume. No checkpoint, vacuum or background writer adds load of its own. Bulk loads are not
/// logged.
const SETTINGS: [(&str, &str); 17] = [
    ("port", PORT),
    ("listen_addresses", ""),
    ("max_connections", "200"),
    ("shared_buffers", "8MB"),
    ("track_io_timing", "on"),
    ("track_wal_io_timing", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("wal_level", "minimal"),
    ("max_wal_senders", "0"),
    ("checkpoint_timeout", "1h"),
    ("max_wal_size", "8GB"),
    ("autovacuum", "off"),
    ("bgwriter_lru_maxpages", "0"),
    ("max_parallel_workers_per_gather", "0"),
    ("jit", "off"),
    ("update_process_title", "off"),
];

/// Returns why this machine cannot run a server; `None` if it can.
#[must_use]
pub fn probe() -> Option<String> {
    let missing = ["initdb", "postgres", "pgbench"].into_iter().find(|tool| find(tool).is_none());
    let lacks =
        missing.map(|tool| LabError::ToolMissing { tool: tool.to_owned(), package: PACKAGE });
    lacks
        .map(|error| error.to_string())
        .or_else(|| User::find().err().map(|error| error.to_string()))
}

/// Returns the path of a program of PostgreSQL: on the `PATH`, or the newest version in Debian's
/// folder.
pub(super) fn find(tool: &str) -> Option<PathBuf> {
    let versions = fs::read_dir(DEBIAN).into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|version| version.file_name().to_str()?.parse::<u32>().ok())
        .max()
        .map(|version| Path::new(DEBIAN).join(version.to_string()).join("bin"));
    child::find(tool, newest)
}

fn program(tool: &str) -> Result<PathBuf, LabError> {
    find(tool).ok_or_else(|| LabError::ToolMissing { tool: tool.to_owned(), package: PACKAGE })
}

/// The system's user that runs the server.
struct User {
    name: &'static str,
    uid: u32,
    gid: u32,
}

impl User {
    fn find() -> Result<Self, LabError> {
        let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let of_name = |name: &'static str| {
            let line = known.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let mut fields = line.split(':').skip(1);
            let uid = fields.next()?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then_some(Self { name, uid, gid })
        };
        ["postgres", "nobody"].into_iter().find_map(of_name).ok_or_else(|| {
            LabError::Unjudgeable(
                "PostgreSQL refuses to run as root, and there is no user postgres or nobody"
                    .to_owned(),
            )
        })
    }

    fn may_have(&self, folder: &Path) -> Result<(), LabError> {
        servers::private_folder(folder)?;
        chown(folder, Some(self.uid), Some(self.gid))
            .map_err(LabError::io("cannot give away", folder))
    }

    /// Lets the user pass through the folders of the run, which this process owns. Those above them
    /// must be open to all users already.
    fn may_pass(&self, own: &[&Path]) -> Result<(), LabError> {
        for folder in own {
            fs::set_permissions(folder, Permissions::from_mode(0o711))
                .map_err(LabError::io("cannot open up", *folder))?;
        }
        for above in own.iter().flat_map(|folder| folder.ancestors()) {
            let mode = fs::metadata(above).map_err(LabError::io("cannot look at", above))?.mode();
            if mode & 0o001 == 0 {
                return Err(LabError::BadTarget {
                    name: above.display().to_string(),
                    why: format!("PostgreSQL runs as {}, which may not enter it", self.name),
                    hint: "set TMPDIR to a folder that all may enter, such as /tmp".to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    data: PathBuf,
    folder: PathBuf,
    process: Guarded,
    /// Description of the server, for the record.
    pub described: String,
}

impl Server {
    /// Creates a cluster on a file system and starts its server. `folder` is a folder of the run,
    /// for its socket.
    ///
    /// # Errors
    /// When a program is missing or fails, or a folder cannot be passed.
    pub fn start(stack: &MountStack, folder: &Path) -> Result<Self, LabError> {
        let user = User::find()?;
        let data = stack.path().join("postgres");
        user.may_pass(&[folder, stack.path().parent().unwrap_or(folder)])?;
        let folder = folder.join("postgres");
        stack.serves(&data)?;
        user.may_have(&data)?;
        user.may_have(&folder)?;
        let mut make = Command::new(program("initdb")?);
        make.args(INITDB).arg("-D").arg(&data).uid(user.uid).gid(user.gid).current_dir("/");
        child::run_to_end(&mut make, PACKAGE)?;
        let mut command = Command::new(program("postgres")?);
        command.arg("-D").arg(&data).arg("-k").arg(&folder);
        for (name, value) in SETTINGS {
            command.args(["-c", &format!("{name}={value}")]);
        }
        command.uid(user.uid).gid(user.gid).current_dir("/").stdout(Stdio::null());
        let process = Guarded::spawn(&mut command, PACKAGE)?;
        let mut started = Self { data, folder, process, described: String::new() };
        started.wait_until_ready()?;
        started.describe(user.name)?;
        Ok(started)
    }

    /// Returns the folder of its socket, as its programs take it after `-h`.
    #[must_use]
    pub fn host(&self) -> &Path {
        &self.folder
    }

    /// Opens a session of one of its databases.
    ///
    /// # Errors
    /// When there is no such database, or the server is gone.
    pub fn session(&self, database: &str) -> Result<Session, LabError> {
        Session::open(&self.folder.join(SOCKET), SUPERUSER, database)
    }

    /// Drops these files of the cluster from the page cache. Their names are those that the server
    /// reports. Dirty pages stay.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn forget(&self, files: &[String]) -> Result<(), LabError> {
        for name in files {
            let path = self.data.join(name);
            let forgotten = fs::File::open(&path)
                .and_then(|file| Ok(fadvise(file, 0, None, Advice::DontNeed)?));
            forgotten.map_err(LabError::io("cannot have the cache forget", &path))?;
        }
        Ok(())
    }

    /// Writes all dirty data of its file system to the disk, so that it does not disturb what
    /// follows.
    ///
    /// # Errors
    /// When the write fails.
    pub fn settle(&self) -> Result<(), LabError> {
        mounts::settle(&self.data)
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let command = format!("postgres -D {}", self.data.display());
        let socket = self.folder.join(SOCKET);
        self.process.wait_until_ready(
            ("postgres", command),
            READY_MAX,
            || Session::open(&socket, SUPERUSER, SUPERUSER).is_ok(),
            String::new,
        )
    }

    fn describe(&mut self, user: &str) -> Result<(), LabError> {
        let rows = self.session(SUPERUSER)?.rows("SHOW server_version")?;
        let version = rows.first().and_then(|row| row.first()).cloned().unwrap_or_default();
        let settings = SETTINGS.map(|(name, value)| format!("{name}={value}"));
        let words: Vec<&str> = settings.iter().map(String::as_str).collect();
        let settings = text::command_line(&words);
        self.described =
            format!("PostgreSQL {version} as {user}, WAL segments of 64 MiB, {settings}");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that stays is reported when the file system below it is taken down.
        let _ = servers::stop(&self.data);
        let _ = self.process.wait_until(clock::now() + servers::QUIT_MAX);
        // The next server of this run has a folder of the same name.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_the_user_may_not_pass_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("run");
        fs::create_dir(&own).unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        let user = User { name: "postgres", uid: 1, gid: 1 };
        let text = user.may_pass(&[&own]).unwrap_err().to_string();
        let above = folder.path().display().to_string();
        assert!(text.starts_with(&above) && text.contains("set TMPDIR"), "{text}");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).unwrap();
        user.may_pass(&[&own]).unwrap();
    }
}
