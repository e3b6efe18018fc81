//! The flags of `evenkeel report`.

use super::{Connection, Output, date};
use clap::{Args, Subcommand, ValueHint};
use evenkeel_core::volume::Date;
use evenkeel_planner::cost::report::By;
use std::path::PathBuf;

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
    pub by: By,

    /// Day whose list prices apply, such as 2021-06. [default: the newest]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// Price book of your own hardware: what it costs stands beside what AWS would charge. The page
    /// docs/operating/capacity.md describes it.
    #[arg(long, value_name = "BOOK", value_hint = ValueHint::FilePath)]
    pub prices: Option<PathBuf>,
}
