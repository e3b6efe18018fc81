//! The flags of `evenkeel top`.

use super::{Connection, Output, span};
use clap::{Args, ValueEnum};
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Top {
    /// Print one sample and end, as it also does with -o json, -o csv, and without a terminal.
    #[arg(long)]
    pub once: bool,

    /// Time between two looks, such as 1s or 10s; rates are those in between.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    pub interval: Duration,

    /// What stands first.
    #[arg(long, default_value = "iops", value_name = "COLUMN")]
    pub sort: TopSort,

    /// Print so many volumes at most. [default: all]
    #[arg(long, value_name = "N")]
    pub rows: Option<usize>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

/// By what volumes are sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum TopSort {
    /// Most I/Os a second first.
    Iops,
    /// Most bytes a second first.
    Throughput,
    /// Longest 99th percentile first.
    P99,
    /// Longest queue first.
    Queue,
    /// Credits that end soonest first, then those of the lowest balance.
    Credits,
    /// Who holds the device most first.
    Device,
    /// In the order of ids.
    Volume,
}

/// Without any time in between there are no rates.
fn interval(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("expected at least 1s".to_owned()),
        interval => Ok(interval),
    }
}
