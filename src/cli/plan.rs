//! The flags of `evenkeel plan`.

use super::{Connection, PlanAws, PlanFleet, date, volume_type};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use evenkeel_client::output::{Exit, Failure, Format};
use evenkeel_core::volume::{Date, VolumeType};
use evenkeel_planner::advice;
use evenkeel_planner::explanation::Moment;
use evenkeel_planner::prices::WHOLE;
use evenkeel_planner::quantity::{self, Measure};
use evenkeel_planner::read::{DateOrder, Format as RecordingForm};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Plan {
    #[command(subcommand)]
    pub verb: Option<PlanVerb>,

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
    pub page: PlanPageFile,

    #[command(flatten)]
    pub output: PlanOutput,
}

/// A page beside the output.
#[derive(Args, Debug)]
pub struct PlanPageFile {
    /// Write the answer as a page with charts to this file, too.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum PlanVerb {
    /// Check whether a layout carries a workload: for continuous integration.
    ///
    /// Exit code 0: it does; 1: requests wait longer than is allowed, it is too small, it costs too
    /// much, or it cannot be in the place of the source; 2: a flag is wrong; 3: the trace or the
    /// prices cannot be read, or the page cannot be written. `-o junit` and `-o markdown` print the
    /// verdict for continuous integration and for a pull request.
    Check(Box<PlanCheck>),
    /// Compare costs and waiting of layouts, side by side.
    Compare(Box<PlanCompare>),
    /// Show step by step what happens on a layout.
    Explain(Box<PlanExplain>),
    /// Propose changes of many volumes, with the saving and the risk of each.
    Fleet(Box<PlanFleet>),
    /// Read the volumes of an account at AWS and their metrics, and propose changes as `plan fleet`
    /// does.
    ///
    /// Runs the AWS CLI, with its profiles and credentials, and changes nothing. The files that it
    /// reads are kept, so that the plan can be repeated from them. Of a single volume, the text has
    /// its plan, too.
    Aws(Box<PlanAws>),
}

#[derive(Args, Debug)]
pub struct PlanCheck {
    #[command(flatten)]
    pub traces: PlanTraces,

    #[command(flatten)]
    pub rules: PlanRules,

    #[command(flatten)]
    pub allowed: PlanAllowed,

    /// The volumes, such as "gp3 100" or "2 x gp3 100 GiB, 3000 IOPS, 125 MiB/s".
    #[arg(long, value_name = "LAYOUT")]
    pub layout: String,

    /// Capacity of all volumes together, in GiB or with a unit: 100, 100GB, 1.5T. [default: the
    /// bytes in use in the trace]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<u64>,

    /// The most that it may cost a month: US dollars, or the currency of --prices.
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub max_monthly: Option<u64>,

    #[command(flatten)]
    pub page: PlanPageFile,
}

#[derive(Args, Debug)]
pub struct PlanCompare {
    #[command(flatten)]
    pub traces: PlanTraces,

    #[command(flatten)]
    pub rules: PlanRules,

    /// A layout, such as "gp3 100" or "2 x gp3 100 GiB, 3000 IOPS, 125 MiB/s"; two to six times.
    /// Others are compared with the first.
    #[arg(long = "layout", value_name = "LAYOUT", required = true)]
    pub layouts: Vec<String>,

    #[command(flatten)]
    pub page: PlanPageFile,
}

#[derive(Args, Debug)]
pub struct PlanExplain {
    #[command(flatten)]
    pub traces: PlanTraces,

    #[command(flatten)]
    pub rules: PlanRules,

    #[command(flatten)]
    pub wanted: PlanWanted,

    /// The layout, such as "gp3 100". [default: the cheapest that does what is wanted]
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<String>,

    /// Seconds of a step. [default: a minute, or an interval of the trace if that is longer]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..=31_536_000))]
    pub step: Option<u32>,

    /// The most lines: the steps with the longest waiting have one each, others share one.
    #[arg(long, value_name = "N", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u16).range(3..=10_000))]
    pub top: u16,

    /// The beginning of the time that is shown, such as 2026-11-25T19:00:00Z, or 90m after the
    /// beginning of the trace.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub from: Option<Moment>,

    /// The end of the time that is shown.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub to: Option<Moment>,
}

/// The most GiB that volumes hold together.
const CAPACITY_GIB_MAX: u64 = 10_000_000;

/// Returns a number that is above zero and at most a limit.
fn positive(text: &str, number: u64, most: u64) -> Result<u64, String> {
    match number {
        0 => Err("expected more than 0".to_owned()),
        _ if number > most => Err(format!("{text} is more than {most}")),
        _ => Ok(number),
    }
}

/// Reads a size in whole GiB, rounded up.
fn capacity(text: &str) -> Result<u64, String> {
    let gib = quantity::at_least(text, Measure::Gib);
    let gib = gib.map_err(|expected| format!("expected {expected}"))?;
    positive(text, gib, CAPACITY_GIB_MAX)
}

/// Reads I/Os a second.
fn iops(text: &str) -> Result<u64, String> {
    let iops = quantity::whole(text, Measure::Iops, None);
    positive(text, iops.map_err(|expected| format!("expected {expected}"))?, u32::MAX.into())
}

/// Reads MiB a second.
fn throughput(text: &str) -> Result<u64, String> {
    let mibps = quantity::whole(text, Measure::Mibps, None);
    positive(text, mibps.map_err(|expected| format!("expected {expected}"))?, u32::MAX.into())
}

/// Reads `gp3=12.5`: a type, and hundredths of a percent.
pub(super) fn discount(text: &str) -> Result<(VolumeType, u32), String> {
    let expected = "expected TYPE=PERCENT from 0 to 100, with at most two decimals: gp3=12.5";
    let (name, percent) = text.split_once('=').ok_or(expected)?;
    let volume_type = volume_type(name)?;
    let micros = quantity::micros(percent.trim_end_matches('%')).map_err(|_| expected)?;
    let hundredths = u32::try_from(micros / 10_000).map_err(|_| expected)?;
    if hundredths <= WHOLE && micros % 10_000 == 0 {
        Ok((volume_type, hundredths))
    } else {
        Err(expected.to_owned())
    }
}

/// Reads an amount of money, in millionths.
fn amount(text: &str) -> Result<u64, String> {
    let micros = quantity::micros(text);
    positive(text, micros.map_err(|expected| format!("expected {expected}"))?, u64::MAX)
}

/// Reads `2026-11-25T19:00:00Z`, or a time after the beginning: `90s`, `1h30m`.
fn moment(text: &str) -> Result<Moment, String> {
    if let Some(ms) = evenkeel_wire::aws::timestamp::parse_extended(text) {
        return Ok(Moment::Unix(ms));
    }
    let expected = "expected a time such as 2026-11-25T19:00:00Z, or 1h30m after the beginning";
    let mut seconds = 0_u64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| expected)?;
        let unit = rest[digits..].chars().next().ok_or(expected)?;
        let of_unit = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return Err(expected.to_owned()),
        };
        seconds = seconds.saturating_add(number.saturating_mul(of_unit));
        rest = &rest[digits + 1..];
    }
    match text {
        "" => Err(expected.to_owned()),
        _ => Ok(Moment::After(seconds.saturating_mul(1_000))),
    }
}

/// The form of a plan.
#[derive(Args, Clone, Debug)]
pub struct PlanOutput {
    /// Form of the output.
    #[arg(
        short = 'o',
        long = "output",
        global = true,
        env = "EVENKEEL_OUTPUT",
        value_name = "FORMAT"
    )]
    #[arg(default_value = "text")]
    pub format: PlanFormat,
}

/// The form of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum PlanFormat {
    /// Tables and sentences for people.
    #[default]
    Text,
    /// One JSON object with a `schema` field, its version.
    Json,
    /// A header line, then one line per item.
    Csv,
    /// One page with charts; `explain` has none.
    Html,
    /// The verdict of a check as JUnit's XML, for continuous integration.
    Junit,
    /// The verdict of a check as Markdown, for a pull request.
    Markdown,
}

impl PlanOutput {
    /// Returns the form of an answer that is neither a page nor a verdict.
    pub fn listing(&self) -> Result<Format, Failure> {
        match self.format {
            PlanFormat::Text => Ok(Format::Text),
            PlanFormat::Json => Ok(Format::Json),
            PlanFormat::Csv => Ok(Format::Csv),
            PlanFormat::Html => {
                Err(Failure::new("`evenkeel plan explain` makes no page; its answer is a table")
                    .exit(Exit::Usage)
                    .hint("choose text, json or csv with -o, or `plan check` for a page"))
            }
            PlanFormat::Junit | PlanFormat::Markdown => Err(Self::no_verdict()),
        }
    }

    /// The error of a form that only a check has.
    pub fn no_verdict() -> Failure {
        Failure::new("only `evenkeel plan check` prints JUnit's XML and Markdown")
            .exit(Exit::Usage)
            .hint("choose text, json or csv with -o")
    }
}

/// The order of day and month in dates with two meanings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DateWords {
    /// 05/11/26 is the fifth of November.
    DayFirst,
    /// 05/11/26 is the eleventh of May.
    MonthFirst,
}

impl DateWords {
    /// Returns the planner's order.
    pub const fn order(self) -> DateOrder {
        match self {
            Self::DayFirst => DateOrder::DayFirst,
            Self::MonthFirst => DateOrder::MonthFirst,
        }
    }
}

/// Reads the name of a form.
fn form(name: &str) -> Result<RecordingForm, String> {
    name.parse()
}

/// The recordings, and facts that they lack.
#[derive(Args, Clone, Debug)]
pub struct PlanTraces {
    /// Recordings of one volume: exports of CloudWatch, iostat, sar, fio, blkparse or
    /// Prometheus, `evenkeel record`, or a declared workload; compressed by gzip, too. A folder is
    /// all files in it, `-` is standard input. The id of a volume of the server, such as
    /// vol-0123456789abcdef0, is its recording by the server. An answer of
    /// `aws ec2 describe-volumes` among them, or beside them, describes the volume.
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

    /// The form of the recordings, if their beginnings do not show it, such as iostat or fio-log.
    #[arg(long, value_name = "NAME", value_parser = form)]
    pub form: Option<RecordingForm>,

    /// Which comes first in dates such as 05/11/26, which have two meanings.
    #[arg(long, value_enum, value_name = "ORDER")]
    pub dates: Option<DateWords>,

    /// The series of an answer of Prometheus are rates a second, and not counters.
    #[arg(long)]
    pub rates: bool,

    /// The first report of iostat is of an interval, as with -y, and not since boot.
    #[arg(long)]
    pub keep_first: bool,

    /// Take a part of an export for all of it.
    #[arg(long)]
    pub allow_partial: bool,

    /// How requests lie within an interval of the trace. [default: even if its steps are a second
    /// or less, idle otherwise]
    #[arg(long, value_enum)]
    pub assume: Option<Assumption>,

    /// The volume that was recorded, such as "gp2 500": its limits, and the way back to it.
    #[arg(long, value_name = "LAYOUT")]
    pub source: Option<String>,

    /// IOPS that the volume was limited to while the trace was recorded.
    #[arg(long, value_name = "N", value_parser = iops)]
    pub source_iops: Option<u64>,

    /// MiB/s that the volume was limited to while the trace was recorded.
    #[arg(long, value_name = "MIB/S", value_parser = throughput)]
    pub source_throughput: Option<u64>,

    #[command(flatten)]
    pub connection: Connection,
}

/// The rules and prices that apply.
#[derive(Args, Clone, Debug)]
pub struct PlanRules {
    /// Day whose volume rules and prices apply, such as 2021-06. [default: the newest]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    #[command(flatten)]
    pub priced: PlanPrices,

    /// The instance type of the host, whose limits apply, too. Several are candidates of a plan.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub instance: Vec<String>,

    /// Percent of the requests that go to one of several volumes, which are not striped: a hot set
    /// of a file system on them. [default: a stripe, all evenly]
    #[arg(long, value_name = "PERCENT", conflicts_with = "stripe_size")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub hot_share: Option<u32>,

    /// KiB in a row on one volume of a stripe.
    #[arg(long, value_name = "KIB", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=16_384))]
    pub stripe_size: u32,
}

/// Prices beside the lists of the region.
#[derive(Args, Clone, Debug)]
pub struct PlanPrices {
    /// A price list of AWS for other regions, contracts or currencies: an offer file of AmazonEC2
    /// in JSON or CSV, or the output of `aws pricing get-products`; several times for its parts. Or
    /// a price book of your own hardware (docs/operating/capacity.md).
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub prices: Vec<PathBuf>,

    /// Percent of discount on the list prices of a type, such as gp3=12,io2=7.5.
    #[arg(long, value_name = "TYPE=PERCENT", value_delimiter = ',', value_parser = discount)]
    pub discount: Vec<(VolumeType, u32)>,
}

/// How long requests may wait.
#[derive(Args, Clone, Debug)]
pub struct PlanAllowed {
    /// Seconds a day in which requests may wait for a limit.
    #[arg(long, value_name = "S", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub throttled: u32,

    /// Maximum wait of half of the requests for a limit, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub p50: Option<u32>,

    /// The longest that 99 of 100 requests may wait for a limit, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub p99: Option<u32>,

    /// The longest that 999 of 1,000 requests may wait for a limit, in milliseconds.
    #[arg(long, value_name = "MS")]
    pub p999: Option<u32>,
}

/// The conditions on layouts, and the space of the search.
#[derive(Args, Clone, Debug)]
pub struct PlanWanted {
    /// Capacity of all volumes together, in GiB or with a unit: 100, 100GB, 1.5T. [default: that of
    /// the trace or of its volume]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<u64>,

    #[command(flatten)]
    pub allowed: PlanAllowed,

    /// Percent that a layout must carry beyond what was recorded. [default: 20; 0 for a declared
    /// workload]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub headroom: Option<u32>,

    /// Days that must be recorded to name a price a month; a declared workload needs none.
    #[arg(long, value_name = "DAYS", default_value_t = advice::DAYS_MIN)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=366))]
    pub days_min: u32,

    /// The types of the layouts. [default: gp2, gp3, io1 and io2; for an HDD source also st1 and
    /// sc1]
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = volume_type)]
    pub types: Vec<VolumeType>,

    /// Allow types whose published durability is less than that of the source, as gp3 for io2.
    #[arg(long)]
    pub less_durable: bool,

    /// The most volumes that share the workload: as a stripe (RAID 0), but for --hot-share.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=128))]
    pub stripes: u32,

    /// The host boots from it.
    #[arg(long)]
    pub boots: bool,

    /// Several hosts attach it.
    #[arg(long)]
    pub multi_attach: bool,

    /// The most that it may cost a month: US dollars, or the currency of --prices.
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub max_monthly: Option<u64>,
}

/// How requests lie within an interval of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Assumption {
    /// Evenly: a lower bound of the waiting.
    Even,
    /// Evenly in the time in which the volume was not idle, if the trace has that; if it is a
    /// device's busy time, only where its queue shows a burst.
    Idle,
    /// As fast as the source allowed: an upper bound of the waiting.
    Worst,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_quantities_as_lists_do() {
        assert_eq!(["100", "100GB", "1.5T", "1 MiB"].map(capacity), [100, 100, 1_536, 1].map(Ok));
        assert_eq!((iops("3,000"), throughput("250 MB/s")), (Ok(3_000), Ok(250)));
        assert_eq!((amount("400"), amount("99.50")), (Ok(400_000_000), Ok(99_500_000)));
        assert_eq!(discount("gp3=12.5"), Ok((VolumeType::Gp3, 1_250)));
        assert_eq!(discount("io2=100%"), Ok((VolumeType::Io2, 10_000)));
        for text in ["gp3", "gp3=101", "gp3=1.234", "gp9=1", "gp3=-1", "gp3="] {
            assert!(discount(text).is_err(), "{text}");
        }
        for text in ["0", "8 potatoes", "10,000,001", "-1", ""] {
            assert!(capacity(text).is_err(), "{text}");
        }
        for read in [iops, throughput, amount] {
            assert!(read("0").is_err() && read("8 potatoes").is_err());
        }
    }

    #[test]
    fn times_are_of_the_clock_or_after_the_beginning() {
        for (text, expected) in [
            ("1970-01-01T00:01:00Z", Some(Moment::Unix(60_000))),
            ("90s", Some(Moment::After(90_000))),
            ("1h30m", Some(Moment::After(5_400_000))),
            ("2d", Some(Moment::After(172_800_000))),
            ("", None),
            ("90", None),
            ("h", None),
            ("1w", None),
            ("1\u{e4}", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(moment(text).ok(), expected, "{text}");
        }
    }
}
