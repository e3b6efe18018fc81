//! A server in a process of its own for a measurement.
//!
//! Its memory and processor time can be measured, and it is called through the API as by any other
//! client.
//!
//! The program is the `evenkeel` in this program's folder.

use std::io::BufReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use evenkeel_client::output::Failure;
use evenkeel_client::{Client, volumes};
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::child::Guarded;
use evenkeel_lab::nbd_uri::Export;
use evenkeel_lab::program::{address_in, greeting, path_beside_this_program, without_settings};
use evenkeel_os::clock;

/// Longest wait for its orderly end.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Longest wait until a volume is available, or attached.
pub(crate) const CHANGE_MAX: Duration = Duration::from_secs(30);

/// A device that one processor can keep busy: four channels, which have the service times of a 16
/// KiB I/O.
pub const DEVICE: &str = "faulty:memory,channels=4,read_us=200,read_ns_per_byte=20";

/// Connects to the API of the server at an address, with the keys in a folder.
pub type Connect = fn(SocketAddr, &Path) -> Result<Client, Failure>;

/// A running server. Dropping it kills it.
pub struct Served {
    child: Guarded,
    /// Kept open, as the server's next line would fail otherwise.
    _stdout: BufReader<ChildStdout>,
    /// The client of its API.
    pub api: Client,
    /// The address of its API.
    pub address: SocketAddr,
    /// Path of its unix socket for NBD.
    pub socket: PathBuf,
    /// Time from its start until every address answered.
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
        let mut command = evenkeel(data_dir.parent().unwrap_or(data_dir))?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--nbd-listen", "127.0.0.1:0"]);
        command.args(["--store", store, "--log", "error"]).args(options);
        // Volumes are as large as their limits require, but little is written to them.
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

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops it in order, so that the next start on its folder is an ordinary one.
    pub fn stop(mut self) {
        self.child.stop(STOP_MAX);
    }

    /// Creates a volume and attaches it to this machine; returns its export.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn volume(&self, request: &VolumeRequest) -> Result<Export, LabError> {
        let volume = volumes::create_and_attach(&self.api, &request.into(), CHANGE_MAX)?;
        Ok(self.export(volume.volume_id))
    }

    /// Creates a volume and attaches it to another host.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn volume_of(&self, host: &str, request: &VolumeRequest) -> Result<Export, LabError> {
        let volume = volumes::create(&self.api, &request.into(), Some(CHANGE_MAX))?;
        let id = volume.volume_id;
        volumes::attach(&self.api, &id, Some(host), None, Some(CHANGE_MAX))?;
        Ok(self.export(id))
    }

    fn export(&self, name: String) -> Export {
        Export { socket: self.socket.clone(), name }
    }
}

/// Returns the command of `evenkeel` in a folder, without settings that are meant for other
/// servers.
///
/// # Errors
/// If this program's folder has no `evenkeel`.
pub fn evenkeel(folder: &Path) -> Result<Command, LabError> {
    Ok(without_settings(&path_beside_this_program("evenkeel")?, folder))
}

/// Returns the request for an io2 volume with `iops` provisioned IOPS, of the smallest size that
/// may have them.
#[must_use]
pub fn io2(iops: u32) -> VolumeRequest {
    const IOPS_PER_GIB: u32 = 500;
    const GIB_MIN: u32 = 4;
    let size_gib = iops.div_ceil(IOPS_PER_GIB).max(GIB_MIN);
    VolumeRequest { iops: Some(iops), ..of_size(VolumeType::Io2, size_gib) }
}

/// Returns the request for a volume of this type and size.
#[must_use]
pub const fn of_size(volume_type: VolumeType, size_gib: u32) -> VolumeRequest {
    VolumeRequest { volume_type, size_gib, iops: None, throughput_mibps: None, multi_attach: false }
}
