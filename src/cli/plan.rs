//! The flags of `evenkeel plan`.

use super::{Output, date, volume_type};
use clap::{Args, ValueEnum, ValueHint};
use evenkeel_core::volume::{Date, VolumeType};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Plan {
    #[command(flatten)]
    pub traces: PlanTraces,

    #[command(flatten)]
    pub rules: PlanRules,

    #[command(flatten)]
    pub wanted: PlanWanted,

    /// The most layouts to list.
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub top: u16,

    #[command(flatten)]
    pub output: Output,
}

/// What was recorded, and what is known of how.
#[derive(Args, Debug)]
pub struct PlanTraces {
    /// What was recorded of one volume: exports of CloudWatch, iostat, sar, fio, blkparse or
    /// Prometheus, or a declared workload. `-` is standard input.
    #[arg(required = true, value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub traces: Vec<PathBuf>,

    /// The volume or device that is meant, if a trace has several.
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,

    /// Milliseconds between two reports of a trace without times.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub interval_ms: Option<u64>,

    /// The queries to which an answer of GetMetricData belongs, as they were given to aws-cli.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub queries: Option<PathBuf>,

    /// The series of an answer of Prometheus are rates a second, and not counters.
    #[arg(long)]
    pub rates: bool,

    /// The first report of iostat is of an interval, as with -y, and not since boot.
    #[arg(long)]
    pub keep_first: bool,

    /// Take a part of an export for all of it.
    #[arg(long)]
    pub allow_partial: bool,

    /// How requests lie within an interval of the trace.
    #[arg(long, value_enum, default_value_t = Assumption::Idle)]
    pub assume: Assumption,

    /// IOPS that the volume was limited to while the trace was recorded.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_iops: Option<u32>,

    /// MiB/s that it was limited to.
    #[arg(long, value_name = "MIB/S", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_throughput: Option<u32>,
}

/// The rules and prices that apply.
#[derive(Args, Debug)]
pub struct PlanRules {
    /// Day whose volume rules and prices apply, such as 2021-06. [default: the newest]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// The instance type of the host, whose limits apply, too.
    #[arg(long, value_name = "TYPE")]
    pub instance: Option<String>,

    /// KiB in a row on one volume of a stripe.
    #[arg(long, value_name = "KIB", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=16_384))]
    pub stripe_size: u32,
}

/// What a layout must do, and where it is looked for.
#[derive(Args, Debug)]
pub struct PlanWanted {
    /// GiB that the volumes must hold together. [default: what the trace says]
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub capacity: Option<u64>,

    /// Seconds a day in which requests may wait for a limit.
    #[arg(long, value_name = "S", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub throttled: u32,

    /// The longest that half of the requests may wait for a limit, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub p50: Option<u32>,

    /// The same of 99 of 100 requests.
    #[arg(long, value_name = "MS")]
    pub p99: Option<u32>,

    /// The same of 999 of 1,000 requests.
    #[arg(long, value_name = "MS")]
    pub p999: Option<u32>,

    /// The types that come into question. [default: all]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = volume_type)]
    pub types: Vec<VolumeType>,

    /// The most volumes that share the workload as a stripe (RAID 0).
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=128))]
    pub stripes: u32,

    /// The host boots from it.
    #[arg(long)]
    pub boots: bool,

    /// Several hosts attach it.
    #[arg(long)]
    pub multi_attach: bool,

    /// The most US dollars that it may cost a month.
    #[arg(long, value_name = "USD", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_monthly: Option<u32>,
}

/// How requests lie within an interval of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Assumption {
    /// Evenly: the least that a layout may have to do.
    Even,
    /// Evenly in the time in which the volume was not idle, where the trace tells that.
    Idle,
    /// As fast as the source allowed: the most that a layout may have to do.
    Worst,
}
