//! A server of its own for a measurement: another process, so that its memory and processor time
//! are its own, made ready and asked through the API as by anybody else.

use super::failed;
use crate::api::Client;
use crate::cli::{VolumeCreate, Wait};
use crate::clock::Stopwatch;
use crate::cmd::volume;
use crate::message::Failure;
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_lab::bench::child::Guarded;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait for a server to be ready: it may have to calibrate first.
const START_MAX: Duration = Duration::from_secs(60);
/// Longest wait for its orderly end.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Longest wait for one volume to be there and attached.
const VOLUME_WAIT_MAX: Duration = Duration::from_secs(30);
/// How a server is known to be ready: the line of its greeting that comes last of those with
/// addresses.
const READY: &str = "Ctrl-C";

/// A device that one processor can keep busy: four channels, and what a 16 KiB I/O takes there.
pub const DEVICE: &str = "faulty:memory,channels=4,read_us=200,read_ns_per_byte=20";

/// A running server. Dropping it kills it.
pub struct Served {
    child: Guarded,
    /// Closing it would make the server's next word an error.
    _stdout: BufReader<ChildStdout>,
    /// Asks it.
    pub client: Client,
    /// Where NBD is served on a unix socket.
    pub socket: PathBuf,
    /// From its start until every address answered.
    pub start_time: Duration,
}

impl Served {
    /// Starts a server on a data folder and waits until it is ready.
    pub fn start(data_dir: &Path, store: &str, options: &[&str]) -> Result<Self, Failure> {
        let mut command = this_program(data_dir.parent().unwrap_or(data_dir))?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--nbd-listen", "127.0.0.1:0"]);
        command.args(["--store", store, "--log", "error"]).args(options);
        // Volumes have the sizes that their limits need, and little is written to them.
        command.args(["--oversell-space", "unlimited"]);
        command.arg("--data-dir").arg(data_dir);
        let started = Stopwatch::start();
        let mut child =
            Guarded::spawn(command.stdout(Stdio::piped()), "evenkeel").map_err(failed)?;
        let stdout = child.take_stdout().ok_or_else(|| Failure::new("a server without output"))?;
        let greeting = greeting(stdout);
        let start_time = started.elapsed();
        let Some((stdout, lines)) = greeting else {
            let said = child.stderr();
            return Err(Failure::new(format!("the server to be measured did not start: {said}")));
        };
        let address = |before: &str| -> Result<SocketAddr, Failure> {
            let rest = lines.iter().find_map(|line| line.split_once(before));
            let text = rest.and_then(|(_, rest)| rest.split([' ', '/']).next());
            text.and_then(|text| text.parse().ok())
                .ok_or_else(|| Failure::new(format!("no {before} in the greeting of the server")))
        };
        let api = address("http://")?;
        let client = Client::of_server(api, "local-1", data_dir)?;
        let socket = data_dir.join("nbd.sock");
        Ok(Self { child, _stdout: stdout, client, socket, start_time })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order, so that the next start on its folder is an ordinary one.
    pub fn stop(mut self) {
        self.child.stop(STOP_MAX);
    }

    /// Makes a volume and attaches it to this machine; its id.
    pub fn volume(&self, request: &VolumeRequest) -> Result<String, Failure> {
        self.create(request, true)
    }

    /// Makes a volume, attached to this machine or to no host; its id.
    pub fn create(&self, request: &VolumeRequest, attach: bool) -> Result<String, Failure> {
        let VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach } =
            *request;
        let create = VolumeCreate {
            volume_type,
            size: size_gib,
            iops,
            throughput: throughput_mibps,
            multi_attach,
            tags: Vec::new(),
            attach,
            wait: wait(),
        };
        volume::create(&self.client, &create).map(|volume| volume.volume_id)
    }
}

/// This program, to be run in a folder without the settings of the shell, which are meant for other
/// servers, and without those of a file in the folder one is in.
pub fn this_program(folder: &Path) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("where this program is: {error}")))?;
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(folder);
    Ok(command)
}

/// How long a volume may take to get where it is to be.
pub fn wait() -> Wait {
    Wait { wait: true, timeout: VOLUME_WAIT_MAX }
}

/// An io2 volume with so many provisioned IOPS, as small as it may be with them.
pub fn io2(iops: u32) -> VolumeRequest {
    const IOPS_PER_GIB: u32 = 500;
    const GIB_MIN: u32 = 4;
    VolumeRequest {
        volume_type: VolumeType::Io2,
        size_gib: iops.div_ceil(IOPS_PER_GIB).max(GIB_MIN),
        iops: Some(iops),
        throughput_mibps: None,
        multi_attach: false,
    }
}

/// The greeting's lines and what is left of the output; `None` if it ends or takes too long.
fn greeting(stdout: ChildStdout) -> Option<(BufReader<ChildStdout>, Vec<String>)> {
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
