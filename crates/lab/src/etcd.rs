//! An etcd for tests and trials: one or three members as plain processes on loopback, all in one
//! folder. It ends when its value is dropped, and its data is not worth keeping.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::LabError;
use crate::child::{Guarded, run_within};
use evenkeel_os::clock;

/// The packages of the programs.
const SERVER: &str = "etcd-server";
const CLIENT: &str = "etcd-client";
/// Time limit of a command.
const COMMAND_MAX: Duration = Duration::from_secs(30);
/// Longest wait until a majority answers.
const START_MAX: Duration = Duration::from_secs(60);
/// Maximum time until a stopped member stands still.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Attempts to start with free ports: other programs may take one between its choice and its use.
const START_ATTEMPTS_MAX: usize = 5;
/// Time between two checks for it.
const LOOK: Duration = Duration::from_millis(50);

/// The configuration of an etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Members.
    pub members: usize,
    /// Whether writes are on the disk before their answers, as they are by default.
    pub is_durable: bool,
    /// More arguments of every member.
    pub arguments: Vec<String>,
    /// Certificates, if clients are to use TLS.
    pub tls: Option<Tls>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { members: 1, is_durable: true, arguments: vec![], tls: None }
    }
}

/// Files of the members' certificate, for `127.0.0.1`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tls {
    /// The authority that has signed this certificate and those of clients.
    pub authority: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// A running etcd; killed when dropped.
#[derive(Debug)]
pub struct Etcd {
    folder: PathBuf,
    setup: Setup,
    /// The ports of each member: for clients, and for other members.
    ports: Vec<[u16; 2]>,
    members: Vec<Option<Guarded>>,
}

impl Etcd {
    /// Makes an etcd in a folder, which must be empty or absent, and starts it. Returns when a
    /// majority answers.
    ///
    /// # Errors
    /// When etcd is not installed, the folder is not empty, or a member does not start.
    pub fn start(folder: &Path, setup: Setup) -> Result<Self, LabError> {
        let used = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if used {
            let what = format!("{} is not empty; name a new folder", folder.display());
            return Err(LabError::Failed { what, hint: None });
        }
        let mut attempt = 1;
        loop {
            match Self::start_on_free_ports(folder, setup.clone()) {
                Err(error) if attempt < START_ATTEMPTS_MAX && is_port_taken(&error) => {
                    fs::remove_dir_all(folder).map_err(LabError::io("cannot remove", folder))?;
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn start_on_free_ports(folder: &Path, setup: Setup) -> Result<Self, LabError> {
        fs::create_dir_all(folder).map_err(LabError::io("cannot make", folder))?;
        let count = setup.members;
        let ports = free_ports(2 * count)?;
        let ports = ports.chunks(2).map(|pair| [pair[0], pair[1]]).collect();
        let members = (0..count).map(|_| None).collect();
        let mut etcd = Self { folder: folder.to_owned(), setup, ports, members };
        for member in 0..count {
            etcd.start_member(member)?;
        }
        etcd.wait()?;
        Ok(etcd)
    }

    /// Returns the addresses for clients, one for each member.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.ports.len()).map(|member| self.endpoint(member)).collect()
    }

    fn endpoint(&self, member: usize) -> String {
        let scheme = if self.setup.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports[member][0])
    }

    /// Starts a member that does not run.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_member(&mut self, member: usize) -> Result<(), LabError> {
        let peer = |member: usize| format!("http://127.0.0.1:{}", self.ports[member][1]);
        let cluster = (0..self.ports.len()).map(|other| format!("m{other}={}", peer(other)));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        let url = self.endpoint(member);
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{member}"), "--data-dir"])
            .arg(self.folder.join(format!("m{member}")))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer(member)])
            .args(["--initial-advertise-peer-urls", &peer(member)])
            .args(["--initial-cluster", &cluster])
            .args(&self.setup.arguments)
            .stdout(Stdio::null());
        if !self.setup.is_durable {
            command.arg("--unsafe-no-fsync");
        }
        if let Some(Tls { authority, certificate, key }) = &self.setup.tls {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(authority);
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        }
        self.members[member] = Some(Guarded::spawn(&mut command, SERVER)?);
        Ok(())
    }

    /// Waits until a majority answers. A member answers this request only when it has a leader.
    ///
    /// # Errors
    /// When that takes too long, or a member has ended.
    pub fn wait(&mut self) -> Result<(), LabError> {
        let deadline = clock::now() + START_MAX;
        let mut last = String::new();
        while clock::now() < deadline {
            self.check_members()?;
            match self.client(&["get", "x"]) {
                Ok(_) => return Ok(()),
                // It requires a user, so it has a leader.
                Err(error) if error.to_string().contains("user name is empty") => return Ok(()),
                Err(missing @ LabError::ToolMissing { .. }) => return Err(missing),
                Err(error) => last = error.to_string(),
            }
            clock::pause(LOOK);
        }
        Err(LabError::failed(format!("etcd has not begun to answer: {last}")))
    }

    /// Returns an error with the last messages of a member that has ended.
    fn check_members(&mut self) -> Result<(), LabError> {
        for (member, program) in self.members.iter_mut().enumerate() {
            let Some(program) = program else { continue };
            if let Some(status) = program.wait_until(clock::now()) {
                let messages = program.stderr();
                let what = format!("etcd's member {member} has ended ({status}): {messages}");
                return Err(LabError::failed(what));
            }
        }
        Ok(())
    }

    /// Runs `etcdctl` with these arguments; returns its output.
    ///
    /// # Errors
    /// When it fails or hangs.
    pub fn client(&self, words: &[&str]) -> Result<String, LabError> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.endpoints().join(",")]);
        if let Some(Tls { authority, certificate, key }) = &self.setup.tls {
            command.arg("--cacert").arg(authority);
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        run_within(COMMAND_MAX, command.args(words), CLIENT)
    }

    fn member(&self, member: usize) -> Result<&Guarded, LabError> {
        let running = self.members.get(member).and_then(Option::as_ref);
        running.ok_or_else(|| LabError::NotFound(format!("member {member} does not run")))
    }

    /// Kills a member.
    ///
    /// # Errors
    /// When it does not run.
    ///
    /// For tests.
    pub fn kill_member(&mut self, member: usize) -> Result<(), LabError> {
        self.member(member)?;
        self.members[member] = None;
        Ok(())
    }

    fn signal(&self, member: usize, signal: Signal) -> Result<(), LabError> {
        let pid = i32::try_from(self.member(member)?.id()).ok().and_then(Pid::from_raw);
        match pid.map(|pid| kill_process(pid, signal)) {
            Some(Ok(())) => Ok(()),
            _ => Err(LabError::NotFound(format!("member {member} does not run"))),
        }
    }

    /// Stops a member with SIGSTOP, and waits until it stands still: its connections stay open.
    ///
    /// # Errors
    /// When it does not run, or does not stop.
    ///
    /// For tests.
    pub fn pause_member(&self, member: usize) -> Result<(), LabError> {
        self.signal(member, Signal::STOP)?;
        let tasks = PathBuf::from(format!("/proc/{}/task", self.member(member)?.id()));
        let begun = clock::now();
        while begun.elapsed() < STOP_MAX {
            if are_stopped(&tasks) {
                return Ok(());
            }
            clock::pause(LOOK);
        }
        Err(LabError::failed(format!("member {member} does not stop")))
    }

    /// Resumes a stopped member.
    ///
    /// # Errors
    /// When it does not run.
    ///
    /// For tests.
    pub fn resume_member(&self, member: usize) -> Result<(), LabError> {
        self.signal(member, Signal::CONT)
    }
}

/// Returns whether a member has ended because another program uses one of its ports.
fn is_port_taken(error: &LabError) -> bool {
    error.to_string().contains("address already in use")
}

/// Returns whether all threads in this folder of `/proc` are stopped. A signal stops one after the
/// other.
fn are_stopped(tasks: &Path) -> bool {
    let threads = fs::read_dir(tasks).into_iter().flatten().flatten();
    let mut stats =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    // The state follows the name, which is in parentheses.
    let is_stopped =
        |stat: String| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"));
    stats.all(is_stopped)
}

/// Returns this number of free ports of loopback. Other programs may take them before they are
/// used.
fn free_ports(count: usize) -> Result<Vec<u16>, LabError> {
    // All are bound at once, as one port might be returned twice otherwise.
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0"));
    let ports = listeners
        .collect::<Result<Vec<_>, _>>()
        .and_then(|all| all.iter().map(|one| Ok(one.local_addr()?.port())).collect());
    ports.map_err(LabError::io("cannot find a free port", "127.0.0.1"))
}
