//! The flags of `evenkeel plan fleet`.

use super::{Assumption, PlanPageFile, PlanPrices, date, volume_type};
use clap::{Args, ValueEnum, ValueHint};
use evenkeel_core::volume::{Date, VolumeType};
use evenkeel_planner::advice;
use evenkeel_planner::fleet::{FREE_PERCENT, GroupBy};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct PlanFleet {
    /// The volumes: a table with a header, an answer of `aws ec2 describe-volumes`, or the JSON or
    /// CSV of `evenkeel volume ls`. `-` is standard input.
    #[arg(value_name = "VOLUMES", value_hint = ValueHint::FilePath)]
    pub volumes: PathBuf,

    /// The folder with their recordings: one or several files of a volume or of many.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub metrics: Option<PathBuf>,

    /// Used space of volumes: files, or a folder of files, of `df -P -k`, `lsblk -J -b -o
    /// NAME,SERIAL,FSTYPE,FSUSED`, node_exporter, the CloudWatch agent, or `aws ec2
    /// describe-snapshots`. Repeat it for several.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub used: Vec<PathBuf>,

    /// The types of instances, whose limits all their volumes share: an answer of `aws ec2
    /// describe-instances`. A column InstanceType of the list will do, too.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub instances: Option<PathBuf>,

    #[command(flatten)]
    pub policy: FleetPolicy,

    /// Take a part of an answer or of an export for all of it.
    #[arg(long)]
    pub allow_partial: bool,

    /// Volumes that are judged at once. [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: Option<u16>,

    /// The most volumes to list as text and on a page; CSV and JSON have all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub top: u32,

    /// Add up volumes by the values of a tag, by account, or by zone.
    #[arg(long, value_name = "tag:NAME|account|zone")]
    pub group_by: Option<GroupBy>,

    /// Write the commands of all changes, with their way back, to a file; nothing is executed.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub commands: Option<PathBuf>,

    /// The highest risk of a change whose command is not a comment.
    #[arg(long, value_enum, value_name = "RISK", default_value_t = RiskMax::Low)]
    pub risk_max: RiskMax,

    #[command(flatten)]
    pub page: PlanPageFile,
}

/// Help of `--prices`.
const PRICES: &str = "A price list of AWS for other regions, contracts or currencies: an offer \
                      file of AmazonEC2 in JSON or CSV, or the output of `aws pricing \
                      get-products`; several times for its parts";

/// The rules by which volumes are judged. A price book has no prices of EBS.
#[derive(Args, Clone, Debug)]
#[command(mut_arg("prices", |prices| prices.help(PRICES)))]
pub struct FleetPolicy {
    /// Percent that a volume must carry beyond what was recorded.
    #[arg(long, value_name = "PERCENT", default_value_t = advice::HEADROOM_PERCENT)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub headroom: u32,

    /// Days of metrics below which no limit of a volume is lowered.
    #[arg(long, value_name = "DAYS", default_value_t = advice::DAYS_MIN)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=366))]
    pub days_min: u32,

    /// Percent of gaps in a volume's metrics above which no limit is lowered.
    #[arg(long, value_name = "PERCENT", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=99))]
    pub gaps_max: u32,

    /// Seconds a day at a limit above which a volume counts as throttled and gets more.
    #[arg(long, value_name = "S", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub throttled: u32,

    /// Percent of a smaller copy of a volume that is free at first.
    #[arg(long, value_name = "PERCENT", default_value_t = FREE_PERCENT)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=90))]
    pub free: u32,

    /// How requests lie within an interval of the metrics.
    #[arg(long, value_enum, default_value_t = Assumption::Idle)]
    pub assume: Assumption,

    /// Day whose volume rules and prices apply, such as 2021-06. [default: the newest]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    #[command(flatten)]
    pub priced: PlanPrices,

    /// The types that volumes may become. [default: all but standard; SSD types stay SSD types]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = volume_type)]
    pub types: Vec<VolumeType>,

    /// Allow types whose published durability is less than the present one, as gp3 for io2.
    #[arg(long)]
    pub less_durable: bool,
}

/// The risk of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RiskMax {
    /// No limit is lowered, and no promise is weaker.
    None,
    /// Limits that were not used are lowered.
    Low,
    /// Only bursts within a step of the metrics could wait, or a hundredth of the day.
    Medium,
    /// They could wait longer.
    High,
}
