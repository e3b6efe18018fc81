//! The agent of a host: a controller for each of its file systems, and what they share.
//!
//! | module | content |
//! | --- | --- |
//! | `claim` | one agent for each file system |
//! | `devices` | the device of each volume |
//! | `front` | the API, with the commands that make devices of volumes appear and disappear |
//! | `judge` | the evidence of recordings, in a thread |
//! | `mount` | one file system: its group, its controller, its ticks |
//! | `turns` | the ticks of each file system, in a thread of its own |
//! | `lines` | what is printed |
//! | `metrics`, `listen` | what Prometheus reads |

mod claim;
mod devices;
mod front;
mod judge;
mod lines;
mod listen;
mod metrics;
mod mount;
#[cfg(test)]
pub(crate) mod testing;
mod turns;

pub use lines::{name, step_words};

use crate::cloud::Api;
use crate::counters::{Counters, Watched};
use crate::journal::{Bounds, Folder};
use crate::{Fault, Ticked, policy_file};
use devices::Devices;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_os::clock;
use evenkeel_planner::autopilot::PolicyFile;
use evenkeel_planner::fleet;
use listen::Page;
use metrics::Snapshot;
use mount::Mount;
use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use turns::{Turn, Turns};

pub use front::{Commands, Uri};

/// The file with the devices that the attach command has made, in the folder of the agent.
const DEVICES: &str = "devices.json";
/// The folder with the starts of modifications.
const MODIFICATIONS: &str = "modifications";
/// Time between two readings of the counters, in milliseconds.
const SECOND_MS: u64 = 1_000;
/// The longest time between two ticks while an operation is open, in milliseconds: each step of one
/// takes a tick, and the policy counts on room within seconds.
const OPEN_MS: u64 = 2_000;
/// The longest wait for the ticks that have begun, if the agent is asked to stop: less than the
/// 90 s after which systemd kills a service.
const STOP_MAX: Duration = Duration::from_secs(75);
/// The longest wait for the only tick.
const ONCE_MAX: Duration = Duration::from_secs(180);
/// The longest time between two moments of [`Moment::Alive`] while the agent waits for its next
/// tick.
const ALIVE: Duration = Duration::from_secs(30);

/// Makes the client of an API: each file system has its own.
pub type Connector = Arc<dyn Fn() -> Result<Box<dyn Api + Send>, Failure> + Send + Sync>;
/// Makes the function that returns the addresses of volumes.
pub type Addresses = Arc<dyn Fn() -> Result<Uri, Failure> + Send + Sync>;

/// A moment in the life of an agent, for the service manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// It listens, and has ticked once.
    Ready,
    /// It begins to use changed policies.
    Reloading,
    /// It has read them.
    Reloaded,
    /// It works: it has observed a file system, or waits for the next tick.
    Alive,
}

/// The settings of an agent.
pub struct Config {
    /// Called at each [`Moment`].
    pub notify: Box<dyn Fn(Moment)>,
    /// The file of policies. It is read again when it changes.
    pub policy: PathBuf,
    /// The rules and prices by which recordings are judged.
    pub plan: fleet::Policy,
    /// The mount points of the file systems.
    pub mounts: Vec<PathBuf>,
    /// The folder of the agent.
    pub folder: PathBuf,
    /// The id of the host in the API.
    pub instance: String,
    /// Devices of volumes without a serial number, by volume.
    pub devices: BTreeMap<String, PathBuf>,
    /// The commands of the front end.
    pub commands: Commands,
    /// Time between two ticks.
    pub every: Duration,
    /// The address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// The clients of the API.
    pub connector: Connector,
    /// The addresses of volumes.
    pub addresses: Addresses,
}

/// The policies, and the text they were read from.
struct Policies {
    file: PolicyFile,
    digest: String,
    text: String,
}

/// A running agent.
pub struct Agent {
    config: Config,
    common: Arc<Common>,
    folder: Folder,
    policies: Arc<Policies>,
    counters: Counters,
    devices: Devices,
    mounts: Vec<Turns>,
    page: Page,
    /// The error of the policy file since it changed.
    policy_error: Option<String>,
}

impl Agent {
    /// Opens the folder, reads the policies and listens. Observes nothing yet.
    ///
    /// # Errors
    /// If another agent runs with the folder, the policies cannot be read, or the address of the
    /// metrics is in use.
    pub fn open(config: Config) -> Result<Self, Failure> {
        let failed = |message: String| Failure::new(message).exit(Exit::Usage);
        let (text, file) = read_policies(&config)?;
        let folder = Folder::claim(&config.folder, Bounds::default()).map_err(failed)?;
        let digest = folder.keep_policy(&text).map_err(Failure::new)?;
        let modifications = config.folder.join(MODIFICATIONS);
        fs::create_dir_all(&modifications)
            .map_err(|error| Failure::new(format!("{}: {error}", modifications.display())))?;
        let page = Page::default();
        page.set(Snapshot::default().encoded());
        if let Some(address) = config.metrics {
            let bound = page.listen(address).map_err(|error| {
                Failure::new(format!("--metrics-listen {address}: {error}"))
                    .hint("name another address, such as 127.0.0.1:9650")
            })?;
            say(&format!("metrics at http://{bound}/metrics\n"));
        }
        let devices = Devices::new(config.devices.clone(), config.folder.join(DEVICES));
        let counters = Counters::start(&config.folder);
        let mounts: Result<Vec<Turns>, Failure> =
            config.mounts.iter().cloned().map(Mount::start).collect();
        let mounts = mounts?;
        let policies = Arc::new(Policies { file, digest, text });
        let common = Arc::new(Common::of(&config));
        let policy_error = None;
        Ok(Self { config, common, folder, policies, counters, devices, mounts, page, policy_error })
    }

    /// Ticks until `stop` gets a message. Steps that have begun are completed, unless that takes
    /// longer than a service may take to stop.
    ///
    /// # Errors
    /// If the thread of a file system has ended.
    pub fn run(&mut self, stop: &Receiver<()>) -> Result<(), Failure> {
        let every_ms = u64::try_from(self.config.every.as_millis())
            .expect("invariant: the flag has a maximum");
        let sampler = Sampler::start(&self.counters)?;
        let mut is_ready = false;
        loop {
            self.tick()?;
            if !is_ready {
                self.notify(Moment::Ready);
                is_ready = true;
            }
            let now_ms = clock::unix_ms().0;
            let is_open = self.mounts.iter().any(|mount| mount.open_operations() > 0);
            let every_ms = if is_open { every_ms.min(OPEN_MS) } else { every_ms };
            let pause = Duration::from_millis(every_ms - now_ms % every_ms);
            if self.is_stopped_within(pause, stop) {
                drop(sampler);
                return self.settle(STOP_MAX);
            }
        }
    }

    /// Waits for the next tick. Returns whether `stop` got a message.
    fn is_stopped_within(&self, pause: Duration, stop: &Receiver<()>) -> bool {
        let mut left = pause;
        while !left.is_zero() {
            self.notify(Moment::Alive);
            let part = left.min(ALIVE);
            if stop.recv_timeout(part) != Err(RecvTimeoutError::Timeout) {
                return true;
            }
            left -= part;
        }
        false
    }

    fn notify(&self, moment: Moment) {
        (self.config.notify)(moment);
    }

    /// Ticks once.
    ///
    /// # Errors
    /// If a file system could not be observed.
    pub fn once(&mut self) -> Result<(), Failure> {
        self.tick()?;
        self.settle(ONCE_MAX)?;
        let absent: Vec<String> = self.mounts.iter().filter_map(absence).collect();
        match absent.as_slice() {
            [] => Ok(()),
            some => Err(Failure::new(some.join("; "))),
        }
    }

    /// Observes, decides and acts for each file system whose last tick has ended. Waits for each
    /// tick for its share of the time until the next one, so that one after the other knows the
    /// operations of those before it.
    fn tick(&mut self) -> Result<(), Failure> {
        self.reload();
        let count = u32::try_from(self.mounts.len()).expect("invariant: a few of each");
        let share = self.config.every / count.max(1);
        for place in 0..self.mounts.len() {
            let others = self.mounts.iter().enumerate().filter(|(other, _)| *other != place);
            let others: usize = others.map(|(_, mount)| mount.open_operations()).sum();
            let shared = Shared {
                common: Arc::clone(&self.common),
                policies: Arc::clone(&self.policies),
                folder: self.folder.clone(),
                counters: self.counters.clone(),
                devices: self.devices.clone(),
                other_operations: u32::try_from(others).expect("invariant: a few of each"),
            };
            let mount = &mut self.mounts[place];
            say(&mount.wait(Duration::ZERO)?.concat());
            mount.begin(Turn { shared, unix_ms: clock::unix_ms().0 })?;
            say(&mount.wait(share)?.concat());
            self.notify(Moment::Alive);
        }
        self.show();
        Ok(())
    }

    /// Waits for the ticks that have begun, at most this long.
    fn settle(&mut self, longest: Duration) -> Result<(), Failure> {
        let deadline = clock::now() + longest;
        for mount in &mut self.mounts {
            let left = deadline.saturating_duration_since(clock::now());
            say(&mount.wait(left)?.concat());
        }
        self.show();
        Ok(())
    }

    /// Passes what is known to the counters and the metrics.
    fn show(&self) {
        let watched: Vec<Watched> = self.mounts.iter().flat_map(Turns::watched).collect();
        self.counters.watch(&watched);
        self.page.set(self.snapshot().encoded());
    }

    /// Reads the policies again if their text has changed. If they are malformed, those that were
    /// read before stay in force.
    fn reload(&mut self) {
        let read = read_policies(&self.config);
        let error = match read {
            Ok((text, _)) if text == self.policies.text => None,
            Ok((text, file)) => self.use_policies(text, file).err(),
            Err(failure) => Some(failure.message),
        };
        if let Some(error) =
            error.as_ref().filter(|error| self.policy_error.as_ref() != Some(error))
        {
            say(&format!("{error}; the policies that were read before stay in force\n"));
        }
        if error.is_none() && self.policy_error.is_some() {
            say(&format!("{}: it is well-formed again\n", self.config.policy.display()));
        }
        self.policy_error = error;
    }

    /// Stores changed policies, and uses them from now on.
    fn use_policies(&mut self, text: String, file: PolicyFile) -> Result<(), String> {
        self.notify(Moment::Reloading);
        let kept = self.folder.keep_policy(&text);
        self.notify(Moment::Reloaded);
        self.policies = Arc::new(Policies { file, digest: kept?, text });
        say(&format!("{}: read again\n", self.config.policy.display()));
        Ok(())
    }

    fn snapshot(&self) -> Snapshot {
        let mounts: Vec<_> = self.mounts.iter().filter_map(Turns::now).collect();
        let absent = self.mounts.len() - mounts.len();
        Snapshot { mounts, absent, ticked_ms: clock::unix_ms().0 }
    }
}

/// The settings that all file systems use.
struct Common {
    policy: PathBuf,
    folder: PathBuf,
    instance: String,
    commands: Commands,
    connector: Connector,
    addresses: Addresses,
}

impl Common {
    fn of(config: &Config) -> Self {
        Self {
            policy: config.policy.clone(),
            folder: config.folder.clone(),
            instance: config.instance.clone(),
            commands: config.commands.clone(),
            connector: Arc::clone(&config.connector),
            addresses: Arc::clone(&config.addresses),
        }
    }
}

/// The parts of an agent that all file systems use in a tick.
struct Shared {
    common: Arc<Common>,
    policies: Arc<Policies>,
    folder: Folder,
    counters: Counters,
    devices: Devices,
    other_operations: u32,
}

/// Returns why a file system was not observed; `None` if it was.
fn absence(mount: &Turns) -> Option<String> {
    mount.absence().map(|why| format!("{}: {why}", mount.path().display()))
}

/// Prints lines. The agent continues if nothing reads them.
fn say(text: &str) {
    use std::io::Write as _;
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Returns the text of the policy file, and the policies.
fn read_policies(config: &Config) -> Result<(String, PolicyFile), Failure> {
    policy_file::read(&config.policy, &config.plan).map_err(|failure| failure.exit(Exit::Usage))
}

/// The thread that reads the counters each second. Dropping it ends the thread.
struct Sampler {
    _stop: std::sync::mpsc::SyncSender<()>,
}

impl Sampler {
    fn start(counters: &Counters) -> Result<Self, Failure> {
        let (stop, stops) = std::sync::mpsc::sync_channel::<()>(1);
        let counters = counters.clone();
        let work = move || loop {
            let pause = SECOND_MS - clock::unix_ms().0 % SECOND_MS;
            match stops.recv_timeout(Duration::from_millis(pause)) {
                Err(RecvTimeoutError::Timeout) => counters.sample(clock::unix_ms().0),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        let spawned = std::thread::Builder::new().name("counters".to_owned()).spawn(work);
        spawned.map_err(|error| Failure::new(format!("no thread for the counters: {error}")))?;
        Ok(Self { _stop: stop })
    }
}

/// Returns the result of a step, as its place among the results of the metrics.
const fn result(fault: Option<&Fault>) -> usize {
    match fault {
        None => 0,
        Some(Fault::Later(_)) => 1,
        Some(Fault::Refused(_)) => 2,
    }
}

/// Returns the devices of a tick's file system.
fn watched(ticked: &Ticked) -> Vec<Watched> {
    let devices = ticked.observation.iter().flat_map(|seen| &seen.file_system.devices);
    let of_volume = devices.filter_map(|device| {
        let volume = device.volume.as_ref()?.parse().ok()?;
        Some(Watched { volume, device: PathBuf::from(&device.path) })
    });
    of_volume.collect()
}
