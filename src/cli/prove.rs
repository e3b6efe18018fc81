//! The flags of `evenkeel prove`.

use super::{Connection, Output, date, percent_ppm, size_gib, span, volume_type};
use clap::{Args, ValueHint};
use evenkeel_core::volume::{Date, VolumeType};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Prove {
    /// A volume's id, an NBD address (nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH), or
    /// the path of a file or block device.
    #[arg(value_name = "TARGET", value_hint = ValueHint::AnyPath)]
    pub target: String,

    /// The volume type whose promise is checked; a volume of a server has its own.
    #[arg(long = "type", value_name = "TYPE", value_parser = volume_type)]
    pub volume_type: Option<VolumeType>,

    /// Promised size of the volume, such as 100 or 2TiB. [default: the target's own]
    #[arg(long, value_name = "SIZE", value_parser = size_gib)]
    pub size: Option<u32>,

    /// Provisioned IOPS: io1, io2, gp3.
    #[arg(long, value_name = "N")]
    pub iops: Option<u32>,

    /// Provisioned throughput in MiB/s: gp3.
    #[arg(long, value_name = "MIB/S")]
    pub throughput: Option<u32>,

    /// TOML file with the promise, by the keys type, size, iops, throughput and as-of; without a
    /// type, iops and throughput are steady limits of no volume type.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["volume_type", "size", "iops", "throughput"])]
    pub promise: Option<PathBuf>,

    /// Day whose volume rules apply, such as 2012-08. [default: the newest rules]
    #[arg(long, env = "EVENKEEL_AS_OF", value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// Duration of each load, such as 30s; at least 5s.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = span)]
    pub time: Duration,

    /// How much more than promised the target's limiter may give, in percent, 0 to 10. Published
    /// EBS volumes gave 1.2 to 3.7 % more.
    #[arg(long, default_value = "0", value_name = "PERCENT", value_parser = percent_ppm)]
    pub over: u32,

    /// Overwrite the target's data, to check writes and mixed loads, too.
    #[arg(long)]
    pub yes_destroy_data: bool,

    /// Seed of all offsets: the same seed visits the same blocks.
    #[arg(long, default_value = "1", value_name = "N")]
    pub seed: u64,

    /// Write the report with its charts to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,

    /// Write a test case for each check, for a build server.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub junit: Option<PathBuf>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}
