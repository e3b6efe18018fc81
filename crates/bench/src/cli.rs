//! Every verb and flag of `evenkeel-bench`: name, unit, default, validation. The doc comments are
//! the texts of `--help` and of docs/reference/cli_bench.md.

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint};
use evenkeel_cli::flags::{Io, Output, span};
use evenkeel_cli::man::{Completions, Man, without_values_of_variables};
use evenkeel_cli::store::StoreKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Exit codes: 0 ok, 1 failed check or error, 2 usage, 3 not found, 4 refused, 5 timeout, 6 undecided.
Settings: flag, then environment variable, then default. No configuration file is read.
The figures of a whole server need `evenkeel` in the folder of this program.";

/// Repeat published experiments on Evenkeel, and compare it with other servers.
#[derive(Parser, Debug)]
#[command(name = "evenkeel-bench", version, after_help = AFTER_HELP)]
#[command(propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

/// Returns the whole definition.
pub fn command() -> clap::Command {
    without_values_of_variables(Cli::command())
}

/// Parses the command line.
pub fn parse() -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches()?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// List the published experiments, the other benchmarks and the stored results.
    Ls(BenchLs),
    /// Repeat a published experiment, live and in virtual time, and print the article's figures
    /// beside ours; exit code 1 if a figure misses its expectation, 6 if the machine was too busy
    /// to decide.
    Run(BenchRun),
    /// Show a stored result.
    Show(BenchShow),
    /// Compare two results of one experiment: ratios with their confidence.
    Compare(BenchCompare),
    /// Compare an unlimited volume with nbdkit and qemu-storage-daemon in alternating runs of the
    /// same fio jobs.
    Nbd(BenchNbd),
    /// Run one volume after another at its limit, from 100 to 16,000 IOPS, then ten at once, and
    /// judge each as strictly as the published figures; exit code 0: kept; 1: broken; 6: undecided.
    Limits(BenchLimits),
    /// Measure how much longer the durable writes of a log writer take beside large neighbours: on
    /// a device of known speed, and on this disk in comparison with nbdkit and qemu-storage-daemon.
    Isolation(BenchIsolation),
    /// Check on a fully sold device with greedy neighbours that every reserved volume gets its IOPS
    /// in every second; exit code 0: kept; 1: broken, or the server is gone; 6: undecided.
    Reservation(BenchReservation),
    /// Check `evenkeel prove` itself: on volumes that must keep their promise, on one without the
    /// guarantee that cannot, and on other servers' limited disks; exit code 1 if a verdict is
    /// wrong, 6 if one is undecided.
    Prove(BenchProve),
    /// Check that ten volumes of an instance, provisioned with more than its limit, get that limit,
    /// shared evenly; exit code 1 if they do not, 6 if the machine may be the reason.
    Instance(BenchInstance),
    /// Measure what unused attached volumes cost in memory and processor time, and how long a
    /// server with them takes to start.
    Idle(BenchIdle),
    /// Replay a live load in virtual time, and check that the simulator dispatches the same
    /// requests at the same times.
    Replay(BenchReplay),
    /// Let the autopilot follow a PostgreSQL whose data and load double and halve, on a btrfs of
    /// small volumes, beside the cost of a static layout; exit code 1 if a check is broken. It
    /// needs root and takes about eight minutes; `run follow-the-load` is the same.
    Follow(BenchFollow),
    /// Run workloads on volumes, plan from what was recorded what happens on others, and run them
    /// there.
    Plan(BenchPlan),
    /// Measure three nodes on a throw-away Ceph cluster and etcd: takeover, moves, throughput and
    /// processor time beside librbd itself, the control plane, many volumes; exit code 1 if a
    /// figure misses its aim.
    Cluster(BenchCluster),
    /// Remove what killed runs of this program, `evenkeel prove` and `evenkeel demo` left behind:
    /// servers, mounts, loop devices and folders; exit code 1 if something remains.
    ///
    /// A run does the same for earlier runs of its own kind before it begins. Resources of active
    /// runs and of other users are not touched.
    Clean(BenchClean),
    /// Serve one unlimited volume in memory: the subject of `nbd`.
    #[command(hide = true)]
    Export(Export),
    /// Answer requests at the lowest possible cost and store nothing: the floor of `nbd`.
    #[command(hide = true)]
    Floor(Floor),
    /// Print the completion script of a shell.
    Completions(Completions),
    /// Print the manual page, or the reference of all verbs.
    Man(Man),
}

/// Where results are stored.
#[derive(Args, Debug)]
pub struct Results {
    /// Folder of the results. [default: evenkeel/results in XDG_DATA_HOME]
    #[arg(long, env = "EVENKEEL_RESULTS", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub results: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct BenchLs {
    #[command(flatten)]
    pub results: Results,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchRun {
    /// The experiment's name, as `ls` lists it.
    #[arg(value_name = "SUITE")]
    pub suite: String,

    /// Run only live, shortened to minutes.
    #[arg(long, group = "how")]
    pub live: bool,

    /// Run only live, for the article's full time: hours, and four weeks for `five-minute-job`.
    #[arg(long, group = "how")]
    pub full: bool,

    /// Run only in virtual time, for the article's full time.
    #[arg(long, group = "how")]
    pub simulate: bool,

    /// Run only the cases whose name begins with this text.
    #[arg(long, value_name = "CASE")]
    pub only: Option<String>,

    /// At most this many runs of each case, and batches of each job; figures that need more are
    /// left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub runs: Option<u32>,

    /// Use no file systems, even if this machine could mount them: send their requests directly.
    #[arg(long)]
    pub no_mount: bool,

    /// How the server talks to disks and sockets.
    #[arg(long, env = "EVENKEEL_IO", default_value = "auto", value_name = "WAY")]
    pub io: Io,

    #[command(flatten)]
    pub results: Results,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchShow {
    /// The result: its name in the folder, the name of an experiment for its newest result, or a
    /// file.
    #[arg(value_name = "RESULT", value_hint = ValueHint::FilePath)]
    pub result: String,

    /// Write the HTML report to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,

    /// Write each chart of the report into this folder, as a separate file.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub svg: Option<PathBuf>,

    #[command(flatten)]
    pub results: Results,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchCompare {
    /// A result, as for `show`.
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub a: String,

    /// Another result of the same experiment.
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub b: String,

    #[command(flatten)]
    pub results: Results,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchNbd {
    /// Duration of each run, such as 3s.
    #[arg(long, default_value = "3s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// Runs of each row on each server; the median is shown.
    #[arg(long, default_value = "3", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchLimits {
    /// Duration of each run, such as 30s.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// How the server talks to disks and sockets.
    #[arg(long, default_value = "auto", value_name = "WAY")]
    pub io: Io,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchClean {
    /// The folder to search, if a run used another one than the default. [default: the folders of
    /// temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Export {
    /// Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, value_name = "ADDR", required_unless_present = "unix")]
    pub tcp: Option<SocketAddr>,

    /// Size in bytes.
    #[arg(long, value_name = "BYTES")]
    pub size: u64,

    /// How the server talks to disks and sockets.
    #[arg(long, default_value = "auto", value_name = "WAY")]
    pub io: Io,

    /// Threads of the data plane. [default: the number of cores]
    #[arg(long, value_name = "N")]
    pub cores: Option<u16>,
}

#[derive(Args, Debug)]
pub struct Floor {
    /// Unix socket to listen on.
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, value_name = "ADDR", required_unless_present = "unix", conflicts_with = "unix")]
    pub tcp: Option<SocketAddr>,

    /// Size in bytes.
    #[arg(long, value_name = "BYTES")]
    pub size: u64,
}

#[derive(Args, Debug)]
pub struct BenchIsolation {
    /// Duration of each run, such as 5s.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// Runs of each situation on each server; the median is shown.
    #[arg(long, default_value = "3", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Measure on this store only, such as local or faulty:memory,channels=8,read_us=80.
    /// [default: a device of four channels, then the disk of DIR]
    #[arg(long, value_name = "STORE", value_parser = str::parse::<StoreKind>)]
    pub store: Option<StoreKind>,

    /// A folder on the disk to measure. [default: the folder of temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchReservation {
    /// Duration of the run, such as 60s.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// The store, as for `evenkeel serve`. [default: a device of four channels]
    #[arg(long, value_name = "STORE", value_parser = str::parse::<StoreKind>)]
    pub store: Option<StoreKind>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchProve {
    /// Duration of each load, such as 30s; at least 5s.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchInstance {
    /// Duration of the run, such as 30s.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchIdle {
    /// Number of attached volumes.
    #[arg(long, default_value = "10000", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub volumes: u32,

    /// Time over which processor time is measured, such as 30s.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchReplay {
    /// Duration of the load, such as 10s; at most a minute.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// How the server talks to disks and sockets.
    #[arg(long, default_value = "auto", value_name = "WAY")]
    pub io: Io,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchFollow {
    /// Write the charts into this folder.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub svg: Option<PathBuf>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchPlan {
    /// Duration of each of the two runs, such as 60s; at least half a minute.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// Seed of the bursts.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    #[command(flatten)]
    pub output: Output,
}

/// A part of `cluster`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ClusterFigure {
    /// Nodes are killed, and what their clients wait is measured.
    Takeover,
    /// Volumes move under load.
    Moves,
    /// Beside fio on librbd, in turn.
    Throughput,
    /// Changes a second, through the node that leads.
    Control,
    /// The cost of volumes without connections.
    Many,
}

#[derive(Args, Debug)]
pub struct BenchCluster {
    /// Measure only this; can be given several times. [default: all]
    #[arg(long, value_name = "FIGURE")]
    pub only: Vec<ClusterFigure>,

    /// Do a few of each: this shows that everything works, and not how well.
    #[arg(long)]
    pub quick: bool,

    /// How long Ceph's monitors collect changes, in milliseconds; 1000 is Ceph's default.
    #[arg(long, default_value = "100", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(50..=5_000))]
    pub propose_ms: u32,

    #[command(flatten)]
    pub output: Output,
}
