//! A server in a process of its own for a measurement.
//!
//! Its memory and processor time are its own, and it is called through the API as by any other
//! client.
//!
//! The program is the one that runs. How its API is asked is the caller's: see [`ControlApi`].

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::bench::Export;
use crate::bench::child::Guarded;
use crate::{LabError, clock};
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_wire::aws::xml::Element;

/// Longest wait for a server to be ready: it may have to calibrate first.
const START_MAX: Duration = Duration::from_secs(60);
/// Longest wait for its orderly end.
const STOP_MAX: Duration = Duration::from_secs(30);
/// How a server is known to be ready: the line of its greeting that comes last of those with
/// addresses.
const READY: &str = "Ctrl-C";

/// A device that one processor can keep busy: four channels, and what a 16 KiB I/O takes there.
pub const DEVICE: &str = "faulty:memory,channels=4,read_us=200,read_ns_per_byte=20";

/// What a measurement asks of a server's control plane. Every call returns when the server has done
/// it, and returns [`LabError::Api`] if the server refuses it or takes too long.
pub trait ControlApi {
    /// Creates a volume, attached to this machine or to no host; its id.
    ///
    /// # Errors
    /// See the trait.
    fn create(&self, request: &VolumeRequest, attach: bool) -> Result<String, LabError>;

    /// Registers a host of this instance type; its id.
    ///
    /// # Errors
    /// See the trait.
    fn register(&self, instance_type: &str) -> Result<String, LabError>;

    /// Attaches a volume to a host.
    ///
    /// # Errors
    /// See the trait.
    fn attach(&self, volume: &str, host: &str) -> Result<(), LabError>;

    /// Calls an action of the API with parameters; the answer's root.
    ///
    /// # Errors
    /// See the trait.
    fn ask(&self, action: &str, parameters: &[(&str, &str)]) -> Result<Element, LabError>;

    /// How much of each limited resource is sold.
    ///
    /// # Errors
    /// See the trait.
    fn sold(&self) -> Result<Vec<Sold>, LabError>;
}

/// How much of one resource is sold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sold {
    /// Of both numbers.
    pub unit: String,
    /// To all volumes together.
    pub sold: u64,
    /// The most that may be.
    pub for_sale: u64,
}

/// Returns a client of the server that answers at an address and has its keys in a folder.
pub type Connect = fn(SocketAddr, &Path) -> Result<Box<dyn ControlApi>, LabError>;

/// A running server. Dropping it kills it.
pub struct Served {
    child: Guarded,
    /// Closing it would make the server's next line an error.
    _stdout: BufReader<ChildStdout>,
    /// Its control plane.
    pub api: Box<dyn ControlApi>,
    /// Where its API listens.
    pub address: SocketAddr,
    /// Where NBD is served on a unix socket.
    pub socket: PathBuf,
    /// From its start until every address answered.
    pub start_time: Duration,
}

impl Served {
    /// Starts a server on a data folder and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start within a minute, or its API cannot be asked.
    pub fn start(
        connect: Connect,
        data_dir: &Path,
        store: &str,
        options: &[&str],
    ) -> Result<Self, LabError> {
        let mut command = this_program(data_dir.parent().unwrap_or(data_dir))?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--nbd-listen", "127.0.0.1:0"]);
        command.args(["--store", store, "--log", "error"]).args(options);
        // Volumes have the sizes that their limits need, and little is written to them.
        command.args(["--oversell-space", "unlimited"]);
        command.arg("--data-dir").arg(data_dir);
        let started = clock::now();
        let mut child = Guarded::spawn(command.stdout(Stdio::piped()), "evenkeel")?;
        let stdout =
            child.take_stdout().ok_or_else(|| LabError::failed("a server without output"))?;
        let greeting = greeting(stdout);
        let start_time = clock::now().saturating_duration_since(started);
        let Some((stdout, lines)) = greeting else {
            let said = child.stderr();
            let what = format!("the server to be measured did not start: {said}");
            return Err(LabError::failed(what));
        };
        let address = address_in(&lines, "http://")?;
        let api = connect(address, data_dir)?;
        let socket = data_dir.join("nbd.sock");
        Ok(Self { child, _stdout: stdout, api, address, socket, start_time })
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order, so that the next start on its folder is an ordinary one.
    pub fn stop(mut self) {
        self.child.stop(STOP_MAX);
    }

    /// Creates a volume and attaches it to this machine: where it is.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn volume(&self, request: &VolumeRequest) -> Result<Export, LabError> {
        self.api.create(request, true).map(|id| self.export(id))
    }

    /// Creates a volume and attaches it to another host.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn volume_of(&self, host: &str, request: &VolumeRequest) -> Result<Export, LabError> {
        let id = self.api.create(request, false)?;
        self.api.attach(&id, host)?;
        Ok(self.export(id))
    }

    fn export(&self, name: String) -> Export {
        Export { socket: self.socket.clone(), name }
    }
}

/// This program, to be run in a folder without the settings of the shell, which are meant for other
/// servers, and without those of a file in the current folder.
///
/// # Errors
/// If the system does not say where this program is.
pub fn this_program(folder: &Path) -> Result<Command, LabError> {
    let mut command = Command::new(path_of_this_program()?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(folder);
    Ok(command)
}

/// Where this program is.
pub(super) fn path_of_this_program() -> Result<PathBuf, LabError> {
    std::env::current_exe()
        .map_err(|error| LabError::failed(format!("where this program is: {error}")))
}

/// An io2 volume with so many provisioned IOPS, as small as it may be with them.
#[must_use]
pub fn io2(iops: u32) -> VolumeRequest {
    const IOPS_PER_GIB: u32 = 500;
    const GIB_MIN: u32 = 4;
    let size_gib = iops.div_ceil(IOPS_PER_GIB).max(GIB_MIN);
    VolumeRequest { iops: Some(iops), ..of_size(VolumeType::Io2, size_gib) }
}

/// A volume of which only the size is chosen.
#[must_use]
pub const fn of_size(volume_type: VolumeType, size_gib: u32) -> VolumeRequest {
    VolumeRequest { volume_type, size_gib, iops: None, throughput_mibps: None, multi_attach: false }
}

/// The first address of a greeting that stands behind these words.
pub(super) fn address_in(lines: &[String], before: &str) -> Result<SocketAddr, LabError> {
    let rest = lines.iter().find_map(|line| line.split_once(before));
    let text = rest.and_then(|(_, rest)| rest.split([' ', '/', '\n']).next());
    let address = text.and_then(|text| text.parse().ok());
    let missing = || LabError::failed(format!("no {before} in the greeting of the server"));
    address.ok_or_else(missing)
}

/// The greeting's lines and what is left of the output; `None` if it ends or takes too long.
pub(super) fn greeting(stdout: ChildStdout) -> Option<(BufReader<ChildStdout>, Vec<String>)> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A read cannot be given up, a thread can: it ends with the server's output.
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut lines = Vec::new();
        let mut line = String::new();
        while stdout.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            lines.push(std::mem::take(&mut line));
            if lines.last().is_some_and(|line| line.starts_with(READY)) {
                let _ = sender.send((stdout, lines));
                return;
            }
        }
    });
    receiver.recv_timeout(START_MAX).ok()
}
