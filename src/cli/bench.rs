//! The flags of `evenkeel bench`.

use super::{Io, Output, StoreKind, span, store};
use clap::{Args, Subcommand, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Bench {
    #[command(subcommand)]
    pub verb: BenchVerb,
}

#[derive(Subcommand, Debug)]
pub enum BenchVerb {
    /// List the published experiments, the other benchmarks and the results that are kept.
    Ls(BenchLs),
    /// Run a published experiment again, live and in virtual time, and lay the article's
    /// figures beside ours; exit code 1 when one is not what it must be, 6 when the machine was too
    /// busy to say.
    Run(BenchRun),
    /// Show a result that was kept.
    Show(BenchShow),
    /// Compare two results of one experiment: ratios, and how sure they are.
    Compare(BenchCompare),
    /// An unlimited volume beside nbdkit and qemu-storage-daemon, runs in turn, under the same fio
    /// jobs.
    Nbd(BenchNbd),
    /// One volume after another at its limit, from 100 to 16,000 IOPS, then ten at once; each
    /// judged as strictly as the published figures.
    Limits(BenchLimits),
    /// A log writer beside large neighbours: how much longer do its durable writes take? On a
    /// device of known speed, and on this disk beside nbdkit and qemu-storage-daemon.
    Isolation(BenchIsolation),
    /// A device sold as far as it may be, and greedy neighbours: does every reserved volume get its
    /// IOPS in every second?
    Reservation(BenchReservation),
    /// `evenkeel prove`, put to the proof: volumes that must keep their promise, one without the
    /// guarantee that cannot, and limited disks of others held to the same.
    Prove(BenchProve),
    /// Ten volumes of an instance that can carry less than they are provisioned with: does it get
    /// its limit, shared evenly?
    Instance(BenchInstance),
    /// Attached volumes nobody uses: what do they cost in memory and processor time, and how long
    /// does a server with them take to start?
    Idle(BenchIdle),
    /// A live load once more in virtual time: does the simulator dispatch the same requests at the
    /// same times?
    Replay(BenchReplay),
    /// Take down what runs of `bench`, `prove` and `demo` left that were killed: servers, mounts,
    /// loop devices and folders; exit code 1 if something stays.
    ///
    /// A run does the same for earlier runs of its own kind before it begins. What a run that goes
    /// on uses, or another user owns, is not touched.
    Clean(BenchClean),
    /// Serve one unlimited volume in memory: the subject of `bench nbd`.
    #[command(hide = true)]
    Export(Export),
    /// Answer requests at the least cost there is, and keep nothing: the floor of `bench nbd`.
    #[command(hide = true)]
    Floor(Floor),
}

/// Where results are kept.
#[derive(Args, Debug)]
pub struct Results {
    /// Folder in which results are kept. [default: evenkeel/results in XDG_DATA_HOME]
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
    /// The experiment, as `bench ls` calls it.
    #[arg(value_name = "SUITE")]
    pub suite: String,

    /// Only live, shortened to minutes.
    #[arg(long, group = "how")]
    pub live: bool,

    /// Only live, and as long as the article: hours, and four weeks for
    /// `five-minute-job`.
    #[arg(long, group = "how")]
    pub full: bool,

    /// Only in virtual time, as long as the article.
    #[arg(long, group = "how")]
    pub simulate: bool,

    /// Only the cases whose name begins so.
    #[arg(long, value_name = "CASE")]
    pub only: Option<String>,

    /// At most so many runs of each case, and batches of each job; figures that need more are left
    /// out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub runs: Option<u32>,

    /// Without file systems, even where this machine could mount them: their requests are
    /// made directly.
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
    /// The result: its name in the folder, the name of an experiment for its newest, or a file.
    #[arg(value_name = "RESULT", value_hint = ValueHint::FilePath)]
    pub result: String,

    /// Write the HTML report here.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,

    /// Write each chart of the report into this folder, as a file of its own.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub svg: Option<PathBuf>,

    #[command(flatten)]
    pub results: Results,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchCompare {
    /// A result, as for `bench show`.
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub a: String,

    /// Another of the same experiment.
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub b: String,

    #[command(flatten)]
    pub results: Results,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchNbd {
    /// Time of each run, such as 3s.
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
    /// Time of each run, such as 30s.
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
    /// The folder to look through, where a run was told to work in another one. [default: those of
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
    /// Time of each run, such as 5s.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// Runs of each situation on each server; the median is shown.
    #[arg(long, default_value = "3", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Measure on this store only, such as local or faulty:memory,channels=8,read_us=80.
    /// [default: a device of four channels, then the disk of DIR]
    #[arg(long, value_name = "STORE", value_parser = store)]
    pub store: Option<StoreKind>,

    /// A folder on the disk to measure. [default: that of temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchReservation {
    /// Time of the run, such as 60s.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// The store, as for `serve`. [default: a device of four channels]
    #[arg(long, value_name = "STORE", value_parser = store)]
    pub store: Option<StoreKind>,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchProve {
    /// Time of each load, such as 30s; at least 5s.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchInstance {
    /// Time of the run, such as 30s.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Args, Debug)]
pub struct BenchIdle {
    /// Attached volumes.
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
    /// Time of the load, such as 10s; a minute at most.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// How the server talks to disks and sockets.
    #[arg(long, default_value = "auto", value_name = "WAY")]
    pub io: Io,

    #[command(flatten)]
    pub output: Output,
}
