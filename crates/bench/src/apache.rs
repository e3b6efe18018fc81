//! An Apache that serves one page of a file system that is tested, and `ab`, which requests it.
//!
//! The server is a single process, so that killing it ends all of it. If it starts as root, it
//! changes to an unprivileged user and its root directory to the page's folder. So the folders of
//! the run need not be open to other users.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use evenkeel_lab::LabError;
use evenkeel_lab::child::{self, Guarded};

/// The folder of the page on the file system.
pub(super) const FOLDER: &str = "apache";
/// The server.
const TOOL: &str = "apache2";
/// The package of the server, and that of `ab`.
const PACKAGE: &str = "apache2-bin";
/// Debian's folders of the server and of its modules.
const DEBIAN: (&str, &str) = ("/usr/sbin", "/usr/lib/apache2");
/// Bytes of the page, as the published test had it.
const PAGE_BYTES: usize = 3_064;
/// Number of an unprivileged user and group.
const NOBODY: u32 = 65_534;
/// Connections that `ab` keeps busy, and threads for them.
pub(super) const CONNECTIONS: &str = "100";
const THREADS: u32 = 128;
/// Longest wait for a server to answer.
const READY_MAX: Duration = Duration::from_secs(20);
/// Ports that are tried: another program may take a free port before the server does.
const PORTS_MAX: u32 = 3;

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub(super) struct Apache {
    _process: Guarded,
    /// The address of its page.
    pub url: String,
}

impl Apache {
    /// Creates the page in a folder and starts a server for it. `scratch` is for the server's
    /// configuration and its errors.
    ///
    /// # Errors
    /// When the server is missing, ends, or does not answer.
    pub fn start(folder: &Path, scratch: &Path) -> Result<Self, LabError> {
        let program = find()?;
        let root = folder.join(FOLDER);
        let page = root.join("index.html");
        fs::create_dir(&root)
            .and_then(|()| fs::write(&page, vec![b'x'; PAGE_BYTES]))
            .and_then(|()| fs::set_permissions(&root, Permissions::from_mode(0o755)))
            .and_then(|()| fs::set_permissions(&page, Permissions::from_mode(0o644)))
            .map_err(LabError::io("cannot make", &page))?;
        let mut ports = 0;
        loop {
            ports += 1;
            match Self::start_once(&program, &root, scratch) {
                Err(LabError::ToolFailed { said, .. })
                    if said.contains("Address already in use") && ports < PORTS_MAX => {}
                started => return started,
            }
        }
    }

    fn start_once(program: &Path, root: &Path, scratch: &Path) -> Result<Self, LabError> {
        let address = free_address()?;
        let told = scratch.join("apache.conf");
        fs::write(&told, configuration(address, root, scratch))
            .map_err(LabError::io("cannot write", &told))?;
        let mut command = Command::new(program);
        // Errors of an earlier start are removed.
        let _ = fs::remove_file(errors(scratch));
        // The server is found by its working folder. It starts there, as it changes to the folder
        // itself only later.
        command.current_dir(root);
        // Threads end with a function of this library, which cannot be loaded after the change of
        // the root directory.
        command.arg("-X").arg("-f").arg(&told).env("LD_PRELOAD", "libgcc_s.so.1");
        let mut process = Guarded::spawn(command.stdout(Stdio::null()), PACKAGE)?;
        process.wait_until_ready(
            (TOOL, format!("{TOOL} -X -f {}", told.display())),
            READY_MAX,
            || TcpStream::connect(address).is_ok(),
            || fs::read_to_string(errors(scratch)).unwrap_or_default(),
        )?;
        Ok(Self { _process: process, url: format!("http://{address}/index.html") })
    }
}

/// Returns the path of the server: on the `PATH`, or in Debian's folder of programs for root.
pub(super) fn find() -> Result<PathBuf, LabError> {
    child::find(TOOL, [DEBIAN.0.into()])
        .ok_or_else(|| LabError::ToolMissing { tool: TOOL.to_owned(), package: PACKAGE })
}

/// Returns a port that is free at the moment.
fn free_address() -> Result<SocketAddr, LabError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener
        .and_then(|listener| listener.local_addr())
        .map_err(LabError::io("cannot listen on", "a port of 127.0.0.1"))
}

fn errors(scratch: &Path) -> PathBuf {
    scratch.join("apache-errors.log")
}

/// Returns the server's configuration, the minimum that one page needs.
fn configuration(address: SocketAddr, root: &Path, scratch: &Path) -> String {
    let mut text = format!(
        "ServerRoot {}\nServerName localhost\nListen {address}\nPidFile \"{}\"\nErrorLog \"{}\"\n",
        DEBIAN.1,
        scratch.join("apache.pid").display(),
        errors(scratch).display(),
    );
    for module in ["mpm_event", "authz_core"] {
        let _ = writeln!(text, "LoadModule {module}_module modules/mod_{module}.so");
    }
    let _ = write!(
        text,
        "ServerLimit 1\nStartServers 1\nThreadLimit {THREADS}\nThreadsPerChild {THREADS}\n\
         MaxRequestWorkers {THREADS}\n"
    );
    let root = root.display();
    let _ = if rustix::process::geteuid().is_root() {
        write!(text, "User #{NOBODY}\nGroup #{NOBODY}\nChrootDir \"{root}\"\nDocumentRoot \"/\"\n")
    } else {
        writeln!(text, "DocumentRoot \"{root}\"")
    };
    text
}

/// Returns the requests per second that `ab` reports; `None` unless all of them were answered with
/// the page.
pub(super) fn rate(told: &str, requests: u64) -> Option<f64> {
    let figure = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line?.split_whitespace().next()?.parse::<f64>().ok()
    };
    let is_all = figure("Complete requests")? == requests as f64
        && figure("Failed requests")? == 0.0
        && figure("Non-2xx responses").is_none();
    figure("Requests per second").filter(|rate| is_all && *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_rate_is_that_of_answers_with_the_page() {
        let text = |complete: u32, failed: u32, more: &str| {
            format!(
                "Complete requests:      {complete}\nFailed requests:        {failed}\n{more}\
                 Requests per second:    12467.90 [#/sec] (mean)\n"
            )
        };
        assert_eq!(rate(&text(2_000, 0, ""), 2_000), Some(12_467.9));
        assert_eq!(rate(&text(1_999, 0, ""), 2_000), None);
        assert_eq!(rate(&text(2_000, 1, ""), 2_000), None);
        assert_eq!(rate(&text(2_000, 0, "Non-2xx responses:      2000\n"), 2_000), None);
        assert_eq!(rate("", 0), None);
    }

    #[test]
    fn apache_that_ends_at_once_is_an_error_with_its_message() {
        if let Err(error) = find() {
            let _ = writeln!(std::io::stdout(), "SKIPPED: {error}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir(scratch.path().join("apache.pid")).unwrap();
        let error = Apache::start(folder.path(), scratch.path()).unwrap_err().to_string();
        assert!(
            error.contains("apache2 failed (it ended") && error.contains("pid file"),
            "{error}"
        );
    }
}
