//! A server in a temporary folder, and its command line.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::{Output, Running, run, start};
use super::tools::in_venv;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The arguments that start another server, which ends at once if its folder or pool is refused.
pub const SERVE: &str = "serve --listen 127.0.0.1:0 --nbd-listen 127.0.0.1:0 --calibrate never";

/// Longest time for which a node of a cluster closes the API's port when it begins or ends to lead.
const PORT_CLOSED_MAX: Duration = Duration::from_secs(10);

/// Flags of a volume that is fast enough for every test: 64,000 IOPS.
pub const FAST: &str = "--type io2 --size 64 --iops 64000";

/// `evenkeel serve` on free ports, with a data folder that outlives its crashes.
pub struct Server {
    // Declared first and so dropped first: the folder is removed when it is not used any more.
    process: Option<Running>,
    folder: tempfile::TempDir,
    data_dir: PathBuf,
    options: Vec<String>,
    /// The soft limit of open files that it is started with, if not that of the tests.
    open_files: Option<u32>,
    environment: Vec<(&'static str, String)>,
    /// The API's URL.
    pub endpoint: String,
    /// The address of the API.
    pub api: SocketAddr,
    /// The address of NBD over TCP.
    pub nbd: SocketAddr,
    /// The address of NBD over TLS.
    pub nbd_tls: SocketAddr,
}

/// The command line for a server.
pub struct CommandLine {
    folder: PathBuf,
    data_dir: PathBuf,
    endpoint: String,
}

impl CommandLine {
    /// Runs a verb.
    pub fn run(&self, verb: &str) -> Output {
        let mut command = evenkeel(&self.folder);
        command.env("EVENKEEL_ENDPOINT", &self.endpoint).env("EVENKEEL_DATA_DIR", &self.data_dir);
        run(command.args(verb.split_whitespace()))
    }
}

/// Returns a command of the built binary, without the settings of the environment.
pub fn evenkeel(folder: &Path) -> Command {
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_evenkeel")));
    command.current_dir(folder);
    command
}

/// Removes the settings of the environment from a command.
pub fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("EVENKEEL_") || text.starts_with("AWS_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Returns a new folder, and the path of a data folder in it.
pub fn new_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("evenkeel-").tempdir().expect("a folder");
    let data_dir = folder.path().join("data");
    (folder, data_dir)
}

/// Returns a command that lowers its soft limit of open files and runs the binary.
fn limited_evenkeel(folder: &Path, open_files: u32) -> Command {
    let mut command = without_settings(Command::new("sh"));
    command.args(["-c", "ulimit -S -n \"$0\" && exec \"$@\""]);
    command.args([&open_files.to_string(), env!("CARGO_BIN_EXE_evenkeel")]);
    command.current_dir(folder);
    command
}

impl Server {
    /// Sends a GET request without a signature, such as for `/healthz`; returns the whole answer.
    ///
    /// A node of a cluster closes the API's port for a moment when it begins or ends to lead.
    #[track_caller]
    pub fn get(&self, path: &str) -> String {
        let mut answer = Err(io::ErrorKind::TimedOut.into());
        let answers = || {
            answer = self.try_get(path);
            answer.as_ref().is_ok_and(|text| !text.is_empty())
        };
        let has_answered = Deadline::after(PORT_CLOSED_MAX).comes(answers);
        assert!(has_answered, "{path}: {answer:?}");
        answer.expect("it has answered")
    }

    fn try_get(&self, path: &str) -> io::Result<String> {
        let api = self.api;
        let mut stream = TcpStream::connect_timeout(&api, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {api}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Starts a server in a new folder, with these options of `evenkeel serve`.
    pub fn start(options: &str) -> Self {
        let (folder, data_dir) = new_folder();
        Self::start_in(folder, data_dir, options)
    }

    /// Starts a server with a soft limit of open files that is below the hard one.
    pub fn start_with_open_files(open_files: u32, options: &str) -> Self {
        let (folder, data_dir) = new_folder();
        Self::start_as(folder, data_dir, options, Some(open_files))
    }

    /// Starts a server on a given data folder, such as a mount within `folder`.
    pub fn start_in(folder: tempfile::TempDir, data_dir: PathBuf, options: &str) -> Self {
        Self::start_as(folder, data_dir, options, None)
    }

    fn start_as(
        folder: tempfile::TempDir,
        data_dir: PathBuf,
        options: &str,
        open_files: Option<u32>,
    ) -> Self {
        let nowhere: SocketAddr = ([0, 0, 0, 0], 0).into();
        let mut server = Self {
            process: None,
            folder,
            data_dir,
            options: options.split_whitespace().map(str::to_owned).collect(),
            open_files,
            environment: Vec::new(),
            endpoint: String::new(),
            api: nowhere,
            nbd: nowhere,
            nbd_tls: nowhere,
        };
        server.restart();
        server
    }

    /// Starts it again on the same folder, after its end, with new ports.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(self.process.is_none(), "the server runs");
        let mut process = self.launch();
        let address = |line: &str, before: &str, after: char| -> SocketAddr {
            let text = line.split(before).nth(1).and_then(|rest| rest.split(after).next());
            text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("greeting: {line}"))
        };
        let api = process.wait_for_line("API");
        let scheme = if api.contains("https://") { "https" } else { "http" };
        self.api = address(&api, "://", ' ');
        if !self.has_option("--nbd-listen none") {
            self.nbd = address(&process.wait_for_line("NBD"), "nbd://", '/');
        }
        if self.has_option("--nbd-tls-listen") {
            self.nbd_tls = address(&process.wait_for_line("nbds://"), "nbds://", '/');
        }
        process.wait_for_line("SIGTERM stops it");
        self.endpoint = format!("{scheme}://{}", self.api);
        self.process = Some(process);
    }

    /// Starts another process on the same folder with the same options; the caller owns it.
    pub fn launch(&self) -> Running {
        let mut command = match self.open_files {
            None => evenkeel(self.folder.path()),
            Some(open_files) => limited_evenkeel(self.folder.path(), open_files),
        };
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        if !self.has_option("--nbd-listen") {
            command.args(["--nbd-listen", "127.0.0.1:0"]);
        }
        command.arg("--data-dir").arg(&self.data_dir);
        // Calibrations of three seconds for each new folder would be most of the tests' time.
        if !self.options.iter().any(|option| option == "--calibrate") {
            command.args(["--calibrate", "never"]);
        }
        // Tests write little to volumes that are as large as their limits require.
        if !self.options.iter().any(|option| option == "--oversell-space") {
            command.args(["--oversell-space", "unlimited"]);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        start(command.args(&self.options).stdin(Stdio::null()))
    }

    fn has_option(&self, option: &str) -> bool {
        self.options.join(" ").contains(option)
    }

    /// Sets variables of the environment for later starts.
    pub fn environment(&mut self, variables: Vec<(&'static str, String)>) {
        self.environment = variables;
    }

    /// Adds options for later starts.
    pub fn option(&mut self, options: &str) {
        self.options.extend(options.split_whitespace().map(str::to_owned));
    }

    /// Kills it as a crash would.
    pub fn kill_9(&mut self) {
        self.process.take().expect("it runs").kill_9();
    }

    /// Asks it to stop, and checks that it ends with exit code 0. Returns what it logged.
    #[track_caller]
    pub fn stop(&mut self) -> String {
        self.stop_by(Signal::TERM)
    }

    /// Stops the server with this signal.
    #[track_caller]
    pub fn stop_by(&mut self, signal: Signal) -> String {
        let process = self.process.take().expect("it runs");
        process.signal(signal);
        let output = process.finish();
        assert!(output.status.success(), "{output}");
        output.stderr
    }

    /// Returns the process.
    pub fn process(&mut self) -> &mut Running {
        self.process.as_mut().expect("it runs")
    }

    /// Returns the process, which the caller owns from then on.
    pub fn taken(&mut self) -> Running {
        self.process.take().expect("it runs")
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// Returns the memory in use, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = self.process.as_ref().expect("it runs").proc_file("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib * 1_024
    }

    /// Returns the folder around the data folder, for the test's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the data folder.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Returns the records of the audit, oldest first.
    pub fn audited(&self) -> Vec<Value> {
        let entries = std::fs::read_dir(self.data_dir.join("audit")).expect("a folder");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "jsonl"));
        paths.sort();
        let texts = paths.iter().map(|path| std::fs::read_to_string(path).expect("records"));
        let record =
            |line: &str| serde_json::from_str::<Value>(line).expect("a record")["record"].take();
        texts.flat_map(|text| text.lines().map(record).collect::<Vec<_>>()).collect()
    }

    /// Returns the path of the unix socket.
    pub fn socket(&self) -> PathBuf {
        self.data_dir.join("nbd.sock")
    }

    /// Returns a volume's address over TCP.
    pub fn tcp_uri(&self, volume: &str) -> String {
        format!("nbd://{}/{volume}", self.nbd)
    }

    /// Returns a volume's address over the unix socket.
    pub fn unix_uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }

    /// Runs a verb of the command line against it.
    pub fn evenkeel(&self, verb: &str) -> Output {
        self.command_line().run(verb)
    }

    /// Returns the command line, for a thread that uses it while the server is killed.
    pub fn command_line(&self) -> CommandLine {
        let folder = self.folder().to_owned();
        let data_dir = self.data_dir.clone();
        CommandLine { folder, data_dir, endpoint: self.endpoint.clone() }
    }

    /// Returns a shell that has evaluated `evenkeel env`, as the documentation says, and has this
    /// binary and the tools of `cargo x setup` on its path. It ends at the first failure.
    pub fn shell(&self, script: &str) -> Command {
        let own = Path::new(env!("CARGO_BIN_EXE_evenkeel")).parent().expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{path}", own.display(), in_venv(""));
        let env = "eval \"$(evenkeel env --endpoint \"$0\" --data-dir \"$1\")\"";
        let mut command = without_settings(Command::new("sh"));
        command.arg("-c").arg(format!("set -eu\n{env}\n{script}"));
        command.arg(&self.endpoint).arg(&self.data_dir);
        command.current_dir(self.folder()).env("PATH", path).stdin(Stdio::null());
        command.env("HOME", self.folder()).env("NO_PROXY", "127.0.0.1");
        command.env("AWS_PAGER", "").env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Runs a listing verb. Returns the objects of the one field that is a list.
    #[track_caller]
    pub fn list(&self, verb: &str) -> Vec<Value> {
        let text = self.evenkeel(&format!("{verb} -o json")).ok();
        let Ok(Value::Object(object)) = serde_json::from_str(&text) else { panic!("JSON: {text}") };
        let items = object.into_iter().find(|(_, value)| value.is_array());
        let Some((_, Value::Array(items))) = items else { panic!("a listing: {text}") };
        items
    }

    /// Creates a volume with these flags; returns its id.
    #[track_caller]
    pub fn create(&self, flags: &str) -> String {
        let volumes = self.list(&format!("volume create {flags}"));
        volumes[0]["volume_id"].as_str().expect("an id").to_owned()
    }

    /// Creates a volume with these flags and attaches it to this machine; returns its id.
    #[track_caller]
    pub fn attached(&self, flags: &str) -> String {
        self.create(&format!("{flags} --attach"))
    }

    /// Returns the credit balance of a gp2 volume.
    #[track_caller]
    pub fn credits(&self, volume: &str) -> u64 {
        let credits = self.list(&format!("volume credits {volume}"));
        credits[0]["balance"].as_u64().expect("a balance")
    }
}
