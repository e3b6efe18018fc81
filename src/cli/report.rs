//! The flags of `evenkeel report`.

use super::{Connection, Output, date};
use clap::{Args, Subcommand, ValueHint};
use evenkeel_core::volume::Date;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Debug)]
pub struct Report {
    #[command(subcommand)]
    pub verb: ReportVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum ReportVerb {
    /// Print what the server's volumes and snapshots cost a month: at AWS, and on hardware of
    /// yours.
    Cost(ReportCost),
}

#[derive(Args, Debug)]
pub struct ReportCost {
    /// Groups of the costs: `type`, `tag:KEY`, `host`, or `volume` for each by itself.
    #[arg(long, default_value = "type", value_name = "GROUP")]
    pub by: CostBy,

    /// Day whose list prices apply, such as 2021-06. [default: the newest]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// Price book of your own hardware: what it costs stands beside what AWS would charge. The page
    /// docs/operating/capacity_plan.md describes it.
    #[arg(long, value_name = "BOOK", value_hint = ValueHint::FilePath)]
    pub prices: Option<PathBuf>,
}

/// Groups of costs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CostBy {
    Type,
    /// The values of the tag with this key.
    Tag(String),
    Host,
    Volume,
}

impl FromStr for CostBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.split_once(':')) {
            ("type", _) => Ok(Self::Type),
            ("host", _) => Ok(Self::Host),
            ("volume", _) => Ok(Self::Volume),
            (_, Some(("tag", key))) if !key.is_empty() => Ok(Self::Tag(key.to_owned())),
            _ => Err("expected type, tag:KEY, host or volume".to_owned()),
        }
    }
}

impl fmt::Display for CostBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type => f.write_str("type"),
            Self::Tag(key) => write!(f, "tag:{key}"),
            Self::Host => f.write_str("host"),
            Self::Volume => f.write_str("volume"),
        }
    }
}
