//! Every verb and flag: name, unit, default, validation.
//!
//! [`command`] returns the whole definition. A flag that also has an environment variable is a
//! setting: its name is a key of the configuration file, too. The doc comments are the texts of
//! `--help` and of docs/reference/cli.md.

use crate::version;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, ValueHint};
use evenkeel_cli::flags::span;
use evenkeel_cli::man::{Completions, Man, without_values_of_variables};
use evenkeel_control::SpaceOversell;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::admission::Oversell;
use evenkeel_core::volume::{Date, VolumeType};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

mod agent;
mod audit;
mod autopilot;
mod aws;
mod calibrate;
mod capacity;
mod fleet;
mod migrate;
mod node;
mod plan;
mod pool;
mod prove;
mod record;
mod report;
mod sim;
mod snapshot;
mod test_server;
mod tls;
mod top;
mod volume;

pub use agent::Agent;
pub use audit::{AuditArgs, AuditVerb, AuditVerify};
pub use autopilot::{AutopilotArgs, AutopilotVerb};
pub use aws::PlanAws;
pub use evenkeel_cli::calibrate::CalibrateWhen;
pub use evenkeel_cli::etcd::Etcd;
pub use evenkeel_cli::flags::{Connection, DataPlanePriority, Io, Output};
pub use evenkeel_cli::store::{Bytes, LocalStore, RbdStore, StoreKind};
pub use evenkeel_cli::tls::{NbdListen, Tls};

pub use calibrate::Calibrate;
pub use capacity::{Capacity, CapacityPlan, CapacityVerb};
pub use fleet::{FleetPolicy, PlanFleet, RiskMax};
pub use migrate::VolumeMigrate;
pub use node::{NodeArgs, NodeVerb};
pub use plan::{
    Assumption, DateWords, Plan, PlanAllowed, PlanCheck, PlanCompare, PlanExplain, PlanFormat,
    PlanOutput, PlanPageFile, PlanPrices, PlanRules, PlanTraces, PlanVerb, PlanWanted,
};
pub use pool::{StoreArgs, StoreVerb};
pub use prove::Prove;
pub use record::Record;
pub use report::{Report, ReportCost, ReportVerb};
pub use sim::{Sim, SimAutopilot, SimRun, SimSwarm, SimVerb};
pub use snapshot::{
    ExportAt, ExportKeys, ExportWork, LockMode, S3, SnapshotArgs, SnapshotCopy, SnapshotCreate,
    SnapshotExport, SnapshotImport, SnapshotLock, SnapshotVerb,
};
pub use test_server::{
    ClockArgs, ClockVerb, FEEL_SEED, FaultArgs, FaultStart, FaultVerb, Feel, TestServer,
};
pub use tls::{ServerNames, TlsArgs, TlsVerb};
pub use top::Top;
pub use volume::{
    Provisioned, VolumeAdopt, VolumeArgs, VolumeAttach, VolumeCopy, VolumeCreate, VolumeDetach,
    VolumeModify, VolumeVerb,
};

const AFTER_HELP: &str = "\
Exit codes: 0 ok, 1 failed check or error, 2 usage, 3 not found, 4 refused, 5 timeout, 6 undecided.
Settings: flag, then environment variable, then ./evenkeel.toml (or --config), then default.";

/// Block storage with provisioned IOPS that you run yourself.
///
/// Volumes of the types, rules and limits of Amazon EBS, managed through the EC2 API, served over
/// NBD, each held exactly to the IOPS and throughput it was provisioned with.
#[derive(Parser, Debug)]
#[command(name = "evenkeel", version, long_version = version::LONG, after_help = AFTER_HELP)]
#[command(propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    /// Configuration file (TOML). [default: ./evenkeel.toml, if it exists]
    // config::parse reads this flag before all others; it is here for help and usage.
    #[arg(long, global = true, value_name = "FILE", env = "EVENKEEL_CONFIG")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Run the server (volumes over NBD, the EC2 API) until a signal stops it.
    Serve(Box<Serve>),
    /// Show within two minutes that volumes get exactly their provisioned IOPS.
    ///
    /// Exit code 0: kept; 1: broken, or the server is gone; 6: undecided.
    Demo(Demo),
    /// Print the environment variables for aws-cli, other AWS SDKs and this program.
    ///
    /// Meant for `eval "$(evenkeel env)"`, or `evenkeel env --shell fish | source`.
    Env(Env),
    /// Create, list, change, attach and delete volumes.
    Volume(VolumeArgs),
    /// Make, list, copy and delete snapshots of volumes.
    Snapshot(SnapshotArgs),
    /// Register the client hosts that volumes are attached to.
    Host(Host),
    /// Make the certificates of a server and of its client hosts, with an authority of its own.
    ///
    /// No server is needed. The page docs/operating/security.md says what they protect.
    Tls(TlsArgs),
    /// Look after the nodes of a cluster, and move volumes between them.
    Node(NodeArgs),
    /// Make, move and look after the pool of a data folder.
    Store(StoreArgs),
    /// Show and change the clock of a server for tests (serve --test-server).
    Clock(ClockArgs),
    /// Start, list and stop faults of a server for tests (serve --test-server).
    Fault(FaultArgs),
    /// Measure the device under a store and print how much of it may be sold.
    ///
    /// The server must be stopped, and nothing else should use the device. Takes a minute, or three
    /// seconds with --quick. Existing files are not touched; temporary files are removed.
    Calibrate(Calibrate),
    /// Show the load of volumes, their limits and where their requests spend time, live.
    Top(Top),
    /// Add up what volumes and snapshots cost.
    Report(Report),
    /// Print what has happened to volumes, snapshots and the server.
    ///
    /// With -o json, each line is one event in the envelope of EventBridge. The page
    /// docs/reference/events.md lists them.
    Events(Events),
    /// Check the record of all calls of the API.
    Audit(AuditArgs),
    /// Check this machine and print how to fix the problems found.
    Doctor(Doctor),
    /// Ask a server whether it works, for health checks of containers and load balancers.
    ///
    /// Needs no keys. Exit code 0: it does; 1: it does not, or no server answers.
    Health(Health),
    /// Run scenarios on the product's scheduler in virtual time, hours in seconds.
    Sim(Sim),
    /// Name the cheapest volumes for a recorded workload, and what will happen on them.
    ///
    /// Replays the workload on every type, size, IOPS and throughput with the rules and prices of
    /// EBS. The page docs/reference/plan.md has what is counted, and docs/reference/traces.md what
    /// can be read.
    Plan(Box<Plan>),
    /// Plan which devices carry which volumes.
    Capacity(Capacity),
    /// Record what a disk or a volume is asked for in each second, for `evenkeel plan`.
    ///
    /// Of a disk of this machine, each second is a line of JSON, from the kernel's counters. Of a
    /// volume of the server, the lines are those of the server's own recording.
    Record(Record),
    /// Grow, shrink and retune the volumes of mounted file systems, by policies with brakes.
    ///
    /// Runs as root on the host of the file systems, and needs no other service. The page
    /// docs/operating/autopilot.md has the policies, the brakes, and what each kill leaves.
    Agent(Box<Agent>),
    /// Show what the autopilot decides, and stop it for a time.
    ///
    /// Reads the folder of `evenkeel agent`, also while that runs.
    Autopilot(AutopilotArgs),
    /// Check whether a volume, an NBD export, a file or a block device keeps the promise of its
    /// type.
    ///
    /// Loads the target with fio and checks each line of the promise that applies. Only reads,
    /// unless --yes-destroy-data is given. Exit code 0: kept; 1: broken, or the server is gone; 6:
    /// undecided, because the machine was too busy.
    Prove(Prove),
    /// Print the completion script of a shell.
    Completions(Completions),
    /// Print the manual page, or the reference of all verbs.
    Man(Man),
}

#[derive(Args, Clone, Debug)]
pub struct Serve {
    /// Folder for volumes, control state and credentials; created if missing, refused if it has
    /// other content.
    #[arg(long, env = "EVENKEEL_DATA_DIR", default_value = "./evenkeel-data", value_name = "DIR")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub data_dir: PathBuf,

    /// Address of the EC2 API; port 0 takes a free port.
    #[arg(long, env = "EVENKEEL_LISTEN", default_value = "127.0.0.1:8650", value_name = "ADDR")]
    pub listen: SocketAddr,

    /// Addresses of the NBD server, separated by commas; port 0 takes a free port. `none`: the unix
    /// socket only, so that other users of this machine cannot reach the volumes attached to it.
    #[arg(long, env = "EVENKEEL_NBD_LISTEN", default_value = "127.0.0.1:10809")]
    #[arg(value_name = "ADDR", value_delimiter = ',')]
    pub nbd_listen: Vec<NbdListen>,

    #[command(flatten)]
    pub tls: Tls,

    /// Unix socket of the NBD server. [default: nbd.sock in the data folder]
    #[arg(long, env = "EVENKEEL_NBD_UNIX", value_name = "PATH")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub nbd_unix: Option<PathBuf>,

    /// Users that may use the unix socket in addition to the server's own user and root: numbers or
    /// names, separated by commas.
    #[arg(long, env = "EVENKEEL_NBD_UNIX_USERS", value_name = "USER", value_delimiter = ',')]
    pub nbd_unix_users: Vec<String>,

    /// Group whose members may use the unix socket, too: a number or a name.
    #[arg(long, env = "EVENKEEL_NBD_UNIX_GROUP", value_name = "GROUP")]
    pub nbd_unix_group: Option<String>,

    /// Region of the API; requests are signed for it.
    #[arg(long, env = "EVENKEEL_REGION", default_value = "local-1", value_name = "NAME")]
    pub region: String,

    /// The region's availability zones, separated by commas: names, up to 16. The first is that of
    /// the server's own machine, and of what names none.
    #[arg(long, env = "EVENKEEL_ZONE", default_value = "local-1a", value_name = "NAME")]
    #[arg(value_delimiter = ',', value_parser = zone)]
    pub zone: Vec<String>,

    /// The account that owns everything: twelve digits.
    #[arg(long, env = "EVENKEEL_ACCOUNT", default_value = "000000000000", value_name = "ID")]
    #[arg(value_parser = account)]
    pub account: String,

    /// Accept requests that are signed for any region; replies name the one of --region.
    #[arg(long, env = "EVENKEEL_ANY_REGION")]
    pub any_region: bool,

    /// Names under which clients reach the API, as they send them in the header Host, separated by
    /// commas. Requests for other names are refused. [default: names of this machine on loopback,
    /// any elsewhere]
    #[arg(long, env = "EVENKEEL_API_HOST", value_name = "NAME", value_delimiter = ',')]
    #[arg(value_parser = host_name)]
    pub api_host: Vec<String>,

    /// Requests a second that the API answers, those of CloudWatch and of the EBS direct APIs
    /// included; one more gets RequestLimitExceeded, as on EC2.
    /// [default: no limit]
    #[arg(long, env = "EVENKEEL_API_RATE", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub api_rate: Option<u32>,

    /// Day whose volume rules apply, such as 2012-08. Prices of volumes are the newest all the
    /// same. [default: the newest rules]
    #[arg(long, env = "EVENKEEL_AS_OF", value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// How often a volume may be modified.
    #[arg(
        long,
        env = "EVENKEEL_MODIFY_POLICY",
        default_value = "immediate",
        value_name = "POLICY"
    )]
    pub modify_policy: ModifyPolicy,

    /// Amounts that the account may have although there is capacity for more, separated by commas.
    /// `iops=N`, `throughput=N` (MiB/s) and `size=N` (GiB, or with a unit): all volumes together;
    /// the first two count what volumes reserve. `ec2`: EC2's default quotas of storage and IOPS by
    /// type and of snapshots.
    #[arg(long, env = "EVENKEEL_QUOTAS", default_value = "none", value_name = "QUOTAS")]
    #[arg(value_delimiter = ',', value_parser = parsed::<Quota>)]
    pub quotas: Vec<Quota>,

    /// Days for which deleted volumes and snapshots stay in the recycle bin, from which they can be
    /// restored. 0: what is deleted is gone.
    #[arg(long, env = "EVENKEEL_RECYCLE_BIN_DAYS", default_value_t = 0, value_name = "DAYS")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=365))]
    pub recycle_bin_days: u32,

    /// Days for which the server keeps what each volume was asked for in each second, for `evenkeel
    /// plan` and `evenkeel record`. 0: nothing is recorded, and what was recorded is deleted.
    #[arg(long, env = "EVENKEEL_RECORD_DAYS", value_name = "DAYS")]
    #[arg(default_value_t = evenkeel_telemetry::recording::RECORD_DAYS)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=455))]
    pub record_days: u32,

    /// IOPS of 16 KiB, half of them writes, that may be sold in all; never more than measured.
    #[arg(long, env = "EVENKEEL_SELL_IOPS", value_name = "N")]
    pub sell_iops: Option<u32>,

    /// MiB/s, in I/Os of 1 MiB, that may be sold instead; needs --sell-iops.
    #[arg(long, env = "EVENKEEL_SELL_THROUGHPUT", value_name = "MIB/S")]
    pub sell_throughput: Option<u32>,

    /// How many times over volume types are sold, such as gp3=2,io1=1.5.
    #[arg(long, env = "EVENKEEL_OVERSELL", value_name = "TYPE=FACTOR", value_delimiter = ',')]
    #[arg(value_parser = oversell)]
    pub oversell: Vec<(VolumeType, Oversell)>,

    /// How many times over the space of the store is sold, such as 1.5, or `unlimited`. Volumes are
    /// thin and use only the space that is written to.
    #[arg(long, env = "EVENKEEL_OVERSELL_SPACE", default_value = "1", value_name = "FACTOR")]
    #[arg(value_parser = parsed::<SpaceOversell>)]
    pub oversell_space: SpaceOversell,

    /// MiB a second that background work may move together: scrubs, snapshots that are copied out
    /// and in. On a calibrated device volumes go first, whatever this says.
    #[arg(long, env = "EVENKEEL_BACKGROUND_RATE", default_value_t = 256, value_name = "MIB")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub background_rate: u32,

    /// MiB on disk for the metrics of volumes that CloudWatch's actions return. The oldest hours
    /// are deleted when they are full, and when there are 15 days of later ones.
    #[arg(long, env = "EVENKEEL_METRICS_SPACE", default_value_t = 256, value_name = "MIB")]
    #[arg(value_parser = clap::value_parser!(u32).range(16..=1_048_576))]
    pub metrics_space: u32,

    /// URL to which each event is posted as JSON, http:// or https://; may be repeated, up to four
    /// times. Every user of the machine can read a flag: put a URL with a secret into the variable
    /// or the configuration file.
    #[arg(long, env = "EVENKEEL_EVENTS_WEBHOOK", value_name = "URL", value_delimiter = ' ')]
    #[arg(hide_env_values = true)]
    pub events_webhook: Vec<String>,

    /// A file with the secret that posted events are signed with, in the header
    /// x-evenkeel-signature: 16 to 1,024 bytes, not readable by others. [default: not signed]
    #[arg(long, env = "EVENKEEL_EVENTS_WEBHOOK_SECRET_FILE", value_name = "FILE")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub events_webhook_secret_file: Option<PathBuf>,

    /// Where the bytes of the volumes are stored: `local` (blocks with checksums in one pool),
    /// `rbd` (images of a Ceph cluster), `memory` (lost when the process ends), or one of them
    /// behind a simulated device, such as `faulty:memory,channels=8,read_us=80`;
    /// docs/operating/configuration.md has its parameters.
    #[arg(long, env = "EVENKEEL_STORE", default_value = "local", value_name = "STORE")]
    #[arg(value_parser = store)]
    pub store: StoreKind,

    #[command(flatten)]
    pub local: LocalStore,

    #[command(flatten)]
    pub rbd: RbdStore,

    #[command(flatten)]
    pub etcd: Etcd,

    #[command(flatten)]
    pub test: TestServer,

    /// When the server measures how much of the store may be sold.
    #[arg(long, env = "EVENKEEL_CALIBRATE", default_value = "first-start", value_name = "WHEN")]
    pub calibrate: CalibrateWhen,

    /// Enforce the limits of volumes but reserve nothing for them: no calibration applies, no
    /// volume is refused, neighbours share the device first come, first served. Shows what the
    /// guarantee achieves.
    #[arg(long)]
    pub no_guarantee: bool,

    /// How the server talks to disks and sockets.
    #[arg(long, env = "EVENKEEL_IO", default_value = "auto", value_name = "WAY")]
    pub io: Io,

    /// Priority of the data plane's threads over other programs on the same processors.
    #[arg(long, env = "EVENKEEL_DATA_PLANE_PRIORITY", default_value = "auto")]
    #[arg(value_name = "PRIORITY")]
    pub data_plane_priority: DataPlanePriority,

    /// Threads of the data plane, one per core. [default: the number of cores]
    #[arg(long, env = "EVENKEEL_CORES", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cores: Option<u16>,

    /// Log level for standard error: error, warn, info, debug, trace, or a filter by module.
    #[arg(long, env = "EVENKEEL_LOG", default_value = "info", value_name = "FILTER")]
    pub log: String,
}

/// A quota of the account, beside the limits of capacity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quota {
    /// No quotas.
    None,
    /// EC2's quotas of an account in a region that has not requested higher ones.
    Ec2,
    /// IOPS of all volumes.
    Iops(u32),
    /// MiB/s of all volumes.
    Throughput(u32),
    /// GiB of all volumes.
    Size(u32),
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let amount = match text.split_once('=') {
            None if text == "none" => return Ok(Self::None),
            None if text == "ec2" => return Ok(Self::Ec2),
            None => ("", ""),
            Some(amount) => amount,
        };
        match amount {
            ("iops", iops) => amount_of("iops", iops).map(Self::Iops),
            ("throughput", mibps) => amount_of("throughput", mibps).map(Self::Throughput),
            ("size", size) => {
                size_gib(size).map(Self::Size).map_err(|why| format!("size is '{size}': {why}"))
            }
            _ => Err("expected none, ec2, iops=N, throughput=MIB/S or size=GIB".to_owned()),
        }
    }
}

/// Parses the amount of a quota.
fn amount_of(key: &str, text: &str) -> Result<u32, String> {
    let why = || format!("{key} is '{text}'; it must be a whole number from 0 to {}", u32::MAX);
    text.parse().map_err(|_| why())
}

/// How often a volume may be modified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModifyPolicy {
    /// Any number of times; each modification is complete at once.
    #[value(alias = "none")]
    Immediate,
    /// By the rule of AWS on the day of the volume rules: a waiting time, and hours in the state
    /// `optimizing`.
    Aws,
    /// As `aws`, by AWS's rule since 2026-01-15: four modifications in 24 hours.
    #[value(name = "aws-2026")]
    Aws2026,
    /// As `aws`, by AWS's rule before: one in six hours.
    #[value(name = "aws-classic-6h")]
    AwsClassic,
}

/// Whether to wait until a change is in force, and for how long.
#[derive(Args, Clone, Debug)]
pub struct Wait {
    /// Wait until the change is in force.
    #[arg(long)]
    pub wait: bool,

    /// Longest wait, such as 30s or 5m; exit code 5 if it is exceeded.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = span)]
    pub timeout: Duration,
}

impl Wait {
    /// Returns the longest wait; `None` if there is to be none.
    pub fn longest(&self) -> Option<Duration> {
        self.wait.then_some(self.timeout)
    }
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Demo {
    #[command(subcommand)]
    pub verb: Option<DemoVerb>,

    /// File for the HTML report.
    #[arg(long, env = "EVENKEEL_DEMO_REPORT", value_name = "FILE")]
    #[arg(default_value = "./evenkeel-demo-report.html", value_hint = ValueHint::FilePath)]
    pub report: PathBuf,

    /// Measured time, such as 30s or 1m; the credits of one volume last for 10 s.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// Where the bytes of the volumes are stored: `local` (in a temporary folder), `memory`, or
    /// one of them behind a simulated device, as for `serve`.
    #[arg(long, default_value = "local", value_name = "STORE", value_parser = store)]
    pub store: StoreKind,

    /// How the server talks to disks and sockets.
    #[arg(long, env = "EVENKEEL_IO", default_value = "auto", value_name = "WAY")]
    pub io: Io,
}

#[derive(Subcommand, Debug)]
pub enum DemoVerb {
    /// Run a throw-away Ceph cluster on this machine, to try the store `rbd`.
    ///
    /// One monitor, one manager and some OSDs run as plain processes on loopback until Ctrl-C.
    /// Every user that can read the folder may use the cluster. Its data is not worth keeping.
    Ceph(DemoCeph),
    /// Show what a client gets while its volume moves between nodes and a node is killed.
    ///
    /// Starts a throw-away Ceph cluster, etcd and three nodes on loopback, and fio as the client.
    /// Takes about a minute.
    Cluster(DemoCluster),
}

#[derive(Args, Debug)]
pub struct DemoCluster {}

#[derive(Args, Debug)]
pub struct DemoCeph {
    /// The folder for its files; empty or new.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,

    /// OSDs; each holds a copy of everything, up to three.
    #[arg(long, default_value_t = 1, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=16))]
    pub osds: u32,

    /// Size of an OSD in GiB; its file is sparse.
    #[arg(long, default_value_t = 8, value_name = "GIB")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub osd_gib: u32,

    /// How long the monitors collect changes, in milliseconds. Ceph's default is 1000: snapshots
    /// and fencing wait that long.
    #[arg(long, default_value_t = 100, value_name = "MS")]
    #[arg(value_parser = clap::value_parser!(u32).range(10..=10_000))]
    pub propose_ms: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum EnvShell {
    /// sh, bash, zsh and their like.
    Sh,
    Fish,
}

#[derive(Args, Debug)]
pub struct Env {
    /// The shell that will read it.
    #[arg(long, default_value = "sh", value_name = "SHELL")]
    pub shell: EnvShell,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Args, Debug)]
pub struct Host {
    #[command(subcommand)]
    pub verb: HostVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum HostVerb {
    /// Register a host under the EBS limits of an instance type.
    Register {
        /// Instance type, such as m5.large.
        #[arg(short = 't', long = "type", value_name = "TYPE")]
        instance_type: String,
        /// Address from which the host connects; a loopback address other than 127.0.0.1 is another
        /// host on this machine. [default: this machine]
        #[arg(long, value_name = "IP")]
        address: Option<IpAddr>,
        /// The availability zone: its volumes must be in the same. [default: the server's first]
        #[arg(long, value_name = "NAME")]
        zone: Option<String>,
        /// A tag; may be repeated.
        #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
        tags: Vec<(String, String)>,
    },
    /// List the hosts.
    Ls,
    /// Remove a host that has no volume attached.
    #[command(alias = "delete")]
    Rm {
        /// The host's id.
        #[arg(value_name = "HOST", value_parser = instance_id)]
        host: InstanceId,
    },
}

#[derive(Args, Debug)]
pub struct Events {
    /// Print events after this sequence number; 0 stands for all that are kept.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub after: u64,

    /// Continue with new events, until Ctrl-C.
    #[arg(long)]
    pub follow: bool,

    /// Only events of this name or detail type, such as createVolume or "EBS Volume*"; may be
    /// repeated.
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,

    /// Only events of this volume or snapshot, by id or ARN; may be repeated.
    #[arg(long = "resource", value_name = "ID")]
    pub resources: Vec<String>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Args, Debug)]
pub struct Doctor {
    /// Data folder to check.
    #[arg(long, env = "EVENKEEL_DATA_DIR", default_value = "./evenkeel-data", value_name = "DIR")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub data_dir: PathBuf,

    /// Address that the API would use.
    #[arg(long, env = "EVENKEEL_LISTEN", default_value = "127.0.0.1:8650", value_name = "ADDR")]
    pub listen: SocketAddr,

    /// Addresses that the NBD server would use.
    #[arg(long, env = "EVENKEEL_NBD_LISTEN", default_value = "127.0.0.1:10809")]
    #[arg(value_name = "ADDR", value_delimiter = ',')]
    pub nbd_listen: Vec<NbdListen>,

    /// Region of the server, if one runs here.
    #[arg(long, env = "EVENKEEL_REGION", default_value = "local-1", value_name = "NAME")]
    pub region: String,

    /// The store that the server would use. With `rbd` the Ceph cluster is looked at, too.
    #[arg(long, env = "EVENKEEL_STORE", default_value = "local", value_name = "STORE")]
    #[arg(value_parser = store)]
    pub store: StoreKind,

    #[command(flatten)]
    pub rbd: RbdStore,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct Health {
    /// Ask whether changes can be made (`/readyz`), instead of whether the server can continue
    /// without a restart (`/healthz`).
    #[arg(long)]
    pub ready: bool,

    #[command(flatten)]
    pub connection: Connection,
}

/// The whole definition.
pub fn command() -> clap::Command {
    without_values_of_variables(Cli::command())
}

fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn volume_id(text: &str) -> Result<VolumeId, String> {
    parsed(text)
}

/// Digits of an account's id.
/// The most bytes of a zone's name.
const ZONE_BYTES_MAX: usize = 64;
const ACCOUNT_DIGITS: usize = 12;

/// Parses the name or the address of a host, without a port.
fn host_name(text: &str) -> Result<String, String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    match text.parse::<IpAddr>().is_ok() || (!text.is_empty() && text.chars().all(is_name)) {
        true => Ok(text.to_owned()),
        false => {
            Err("expected a name such as api.example.org or an address, without a port".into())
        }
    }
}

fn account(text: &str) -> Result<String, String> {
    if text.len() == ACCOUNT_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(text.to_owned())
    } else {
        Err(format!("it must have {ACCOUNT_DIGITS} digits, such as 123456789012"))
    }
}

fn zone(text: &str) -> Result<String, String> {
    let is_plain = |letter: char| !letter.is_whitespace() && !letter.is_control();
    match (1..=ZONE_BYTES_MAX).contains(&text.len()) && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "a zone has a name of 1 to {ZONE_BYTES_MAX} bytes without spaces, such as local-1a"
        )),
    }
}

fn snapshot_id(text: &str) -> Result<SnapshotId, String> {
    parsed(text)
}

fn instance_id(text: &str) -> Result<InstanceId, String> {
    parsed(text)
}

fn volume_type(text: &str) -> Result<VolumeType, String> {
    parsed(text)
}

fn store(text: &str) -> Result<StoreKind, String> {
    parsed(text)
}

fn date(text: &str) -> Result<Date, String> {
    parsed(text)
}

fn oversell(text: &str) -> Result<(VolumeType, Oversell), String> {
    let (volume_type, factor) = text.split_once('=').ok_or("expected TYPE=FACTOR")?;
    Ok((parsed(volume_type)?, parsed(factor)?))
}

fn tag(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Parses a size in whole GiB.
fn size_gib(text: &str) -> Result<u32, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let gib_per_unit = match &text[digits.len()..] {
        "" | "GiB" => 1,
        "TiB" => 1_024,
        unit => return Err(format!("unit {unit} is not GiB or TiB")),
    };
    let number: u32 = digits.parse().map_err(|_| "expected a whole number, then GiB or TiB")?;
    number.checked_mul(gib_per_unit).ok_or_else(|| "more than 4,294,967,295 GiB".to_owned())
}

/// Parses a percentage; returns parts per million.
fn percent_ppm(text: &str) -> Result<u32, String> {
    let percent: f64 =
        text.trim_end_matches('%').trim().parse().map_err(|_| "expected a number")?;
    if (0.0..=10.0).contains(&percent) {
        Ok((percent * 10_000.0).round() as u32)
    } else {
        Err("expected 0 to 10 %".to_owned())
    }
}

#[cfg(test)]
mod tests;
