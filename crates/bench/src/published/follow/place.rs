//! The server, its volumes, the btrfs on them, the database, and the agent that acts.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use super::verdict::{Check, Operation};
use crate::databases::{Running, Second, Transactions};
use crate::mounts::{self, FileSystem, Frontend, MountStack};
use crate::postgres::{Server, Session, pgbench};
use crate::published::Bench;
use crate::server_process::{CHANGE_MAX, Served, evenkeel};
use evenkeel_client::volumes::{self, NewVolume};
use evenkeel_client::{Client, model::VolumeDescription};
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::child::{self, Guarded};
use evenkeel_lab::files::write;
use evenkeel_lab::nbd_uri::Export;
use evenkeel_os::clock;

const POLICY: &str = include_str!("policy.toml");
/// The scripts that make a disk of a volume and remove it.
const SCRIPTS: [(&str, &str); 2] =
    [("attach", include_str!("attach.sh")), ("detach", include_str!("detach.sh"))];
/// The tag of all volumes of the run.
const TAG: (&str, &str) = ("App", "follow");
/// The volumes at first.
const VOLUMES: usize = 2;
const GIB: u32 = 4;
/// The IOPS of each at first.
const IOPS: u32 = 400;
/// pgbench's scale: 300 MiB.
const SCALE: u64 = 20;
/// Most bytes of dirty pages that the kernel keeps of the file system. Without this limit it would
/// keep a fifth of the memory, more than the volumes' free space.
const DIRTY_BYTES: u64 = 128 << 20;
/// Longest time in which the agent ends.
const AGENT_STOP_MAX: Duration = Duration::from_secs(60);
/// Longest time of a scrub.
const SCRUB_MAX: Duration = Duration::from_secs(300);
/// The most lines of the agent that are kept.
const LINES_MAX: usize = 20_000;

/// All that runs. Its parts are taken down in the order of the fields.
pub struct Place {
    agent: Option<Agent>,
    database: Server,
    stack: MountStack,
    server: Served,
    folder: PathBuf,
    volumes: Vec<String>,
}

/// A running agent with the lines that it has printed.
struct Agent {
    process: Guarded,
    lines: Receiver<(u64, String)>,
    text: Vec<(u64, String)>,
}

impl Place {
    /// Starts the server, the file system on its volumes, and the database with its accounts.
    pub fn new(bench: &mut Bench<'_>) -> Result<Self, LabError> {
        let options = ["--calibrate", "never", "--modify-policy", "immediate"];
        let server = bench.serve("data", "memory", &options)?;
        let folder = bench.folder.to_owned();
        let mut exports = Vec::new();
        for _ in 0..VOLUMES {
            let request = VolumeRequest {
                volume_type: VolumeType::Io2,
                size_gib: GIB,
                iops: Some(IOPS),
                throughput_mibps: None,
                multi_attach: false,
            };
            let tags = vec![(TAG.0.to_owned(), TAG.1.to_owned())];
            let new = NewVolume { tags, ..NewVolume::from(&request) };
            let volume = volumes::create_and_attach(&server.api, &new, CHANGE_MAX)?;
            exports.push(Export { socket: server.socket.clone(), name: volume.volume_id });
        }
        (bench.progress)("two volumes of io2 with a btrfs");
        let uris: Vec<_> = exports.iter().map(Export::uri).collect();
        let fronts: Vec<Frontend<'_>> = uris.iter().map(Frontend::Nbdfuse).collect();
        let stack = MountStack::open(&folder.join("stack"), &fronts, FileSystem::BtrfsSingle)?;
        bound_dirty_pages(&stack)?;
        (bench.progress)("PostgreSQL with its tables");
        let database = Server::start(&stack, &folder)?;
        pgbench::accounts(&database, SCALE)?;
        let volumes = exports.into_iter().map(|export| export.name).collect();
        Ok(Self { agent: None, database, stack, server, folder, volumes })
    }

    /// Returns the mount point.
    pub fn mount(&self) -> &Path {
        self.stack.path()
    }

    /// Returns the client of the API.
    pub const fn api(&self) -> &Client {
        &self.server.api
    }

    /// Opens a session of the database.
    pub fn session(&self) -> Result<Session, LabError> {
        pgbench::session(&self.database)
    }

    /// Returns the volumes of the run, retired ones included.
    pub fn volumes(&self) -> Result<Vec<VolumeDescription>, LabError> {
        let all = self.api().list("DescribeVolumes", &[], VolumeDescription::set)?;
        let is_ours =
            |volume: &VolumeDescription| volume.tags.get(TAG.0).is_some_and(|tag| tag == TAG.1);
        Ok(all.into_iter().filter(is_ours).collect())
    }

    /// Starts the agent in mode `act`.
    pub fn start_agent(&mut self) -> Result<(), LabError> {
        let folder = &self.folder;
        write(&folder.join("policy.toml"), POLICY)?;
        for (name, text) in SCRIPTS {
            let path = folder.join(name);
            write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))
                .map_err(LabError::path(&path))?;
        }
        let mut command = evenkeel(folder)?;
        command.args([
            "agent",
            "--policy",
            "policy.toml",
            "--agent-folder",
            "agent",
            "--every",
            "1s",
        ]);
        command.arg("--mount").arg(self.stack.path());
        for (volume, device) in self.volumes.iter().zip(self.stack.devices()) {
            command.args(["--device", &format!("{device}={volume}")]);
        }
        let script = |name: &str, rest: &str| format!("{} {rest}", folder.join(name).display());
        command.args(["--attach-command", &script("attach", "{volume} {uri}")]);
        command.args(["--detach-command", &script("detach", "{volume} {device}")]);
        command.env("EVENKEEL_DATA_DIR", folder.join("data"));
        let mut process = Guarded::spawn(command.stdout(Stdio::piped()), "evenkeel")?;
        let stdout = process
            .take_stdout()
            .ok_or_else(|| LabError::failed("an agent without output".to_owned()))?;
        let (sender, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // With too many lines the last ones are lost, and the agent does not wait.
                let _ = sender.try_send((clock::unix_us() / 1_000, line));
            }
        });
        self.agent = Some(Agent { process, lines, text: Vec::new() });
        Ok(())
    }

    /// Checks that the agent runs, and returns its new lines.
    pub fn look_at_agent(&mut self) -> Result<Vec<String>, LabError> {
        let Some(agent) = &mut self.agent else { return Ok(Vec::new()) };
        let new = agent.read();
        if agent.process.wait_until(clock::now()).is_some() {
            let said = agent.process.stderr();
            return Err(LabError::failed(format!("the agent has ended: {said}")));
        }
        Ok(new)
    }

    /// Stops the agent; returns its operations.
    pub fn stop_agent(&mut self) -> Vec<Operation> {
        let Some(mut agent) = self.agent.take() else { return Vec::new() };
        agent.process.stop(AGENT_STOP_MAX);
        agent.read();
        let text: Vec<String> =
            agent.text.iter().map(|(time_ms, line)| format!("{time_ms} {line}\n")).collect();
        // For a person; the figures do not need it.
        let _ = fs::write(self.folder.join("agent.log"), text.concat());
        super::verdict::operations(&agent.text)
    }

    /// Starts transactions at a rate.
    pub fn transactions(
        &self,
        per_second: u32,
        seconds: u32,
        seed: u64,
    ) -> Result<Running, LabError> {
        let wanted = Transactions { per_second: per_second.into(), length_s: seconds.into() };
        pgbench::transactions(&self.database, wanted, seed, &self.folder)
    }

    /// Waits for the end of transactions; returns their log.
    pub fn ended(&self, mut running: Running) -> Result<Vec<Second>, LabError> {
        running.finish()?;
        pgbench::log(&running, &self.folder)
    }

    /// Checks the contents of the database and of the file system.
    pub fn checks(&self) -> Result<Vec<Check>, LabError> {
        let mut session = self.session()?;
        let sum = |table: &str, column: &str| {
            format!("(SELECT coalesce(sum({column}), 0) FROM pgbench_{table})")
        };
        let rows = session.rows(&format!(
            "SELECT {}, {}, {}, {}",
            sum("accounts", "abalance"),
            sum("tellers", "tbalance"),
            sum("branches", "bbalance"),
            sum("history", "delta")
        ))?;
        let sums = rows.into_iter().next().unwrap_or_default();
        let is_equal = sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]);
        let balances = Check {
            what: "the sums of accounts, tellers, branches and history are equal".to_owned(),
            found: sums.join(", "),
            is_kept: is_equal,
        };
        session.rows("CHECKPOINT")?;
        mounts::settle(self.mount())?;
        let mut scrub = std::process::Command::new("btrfs");
        scrub.args(["scrub", "start", "-B"]).arg(self.mount());
        let scrubbed = child::run_within(SCRUB_MAX, &mut scrub, "btrfs-progs");
        let (found, is_kept) = match scrubbed {
            Ok(text) => {
                let line = text.lines().find(|line| line.starts_with("Error summary"));
                let line = line.unwrap_or("no summary").trim().to_owned();
                let is_clean = line.ends_with("no errors found");
                (line, is_clean)
            }
            Err(error) => (error.to_string(), false),
        };
        let what = "a scrub of the btrfs finds no error".to_owned();
        Ok(vec![balances, Check { what, found, is_kept }])
    }

    /// Returns descriptions of the database and of the file system.
    pub fn described(&self) -> Vec<String> {
        vec![self.database.described.clone(), self.stack.described.clone()]
    }
}

impl Agent {
    fn read(&mut self) -> Vec<String> {
        let new: Vec<(u64, String)> = self.lines.try_iter().collect();
        let lines = new.iter().map(|(_, line)| line.clone()).collect();
        self.text.extend(new);
        lines
    }
}

/// Bounds the dirty pages of the file system.
fn bound_dirty_pages(stack: &MountStack) -> Result<(), LabError> {
    let first = stack.devices().first().map(|device| device.replacen("/dev/", "", 1));
    let first = first.unwrap_or_default();
    let systems = Path::new("/sys/fs/btrfs");
    let entries = fs::read_dir(systems).map_err(LabError::path(systems))?;
    let folders = entries.flatten().map(|entry| entry.path());
    let own = folders.into_iter().find(|folder| folder.join("devices").join(&first).exists());
    let own = own.ok_or_else(|| LabError::failed(format!("no btrfs has {first}")))?;
    write(&own.join("bdi/strict_limit"), "1")?;
    write(&own.join("bdi/max_bytes"), &DIRTY_BYTES.to_string())
}
