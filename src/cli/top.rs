//! The flags of `evenkeel top`.

use super::{Connection, Output, span};
use clap::Args;
use evenkeel_client::top::Sort;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Top {
    /// Print one sample and exit. -o json, -o csv and output without a terminal imply this.
    #[arg(long)]
    pub once: bool,

    /// Time between two samples, such as 1s or 10s; rates are averages over it.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    pub interval: Duration,

    /// Sort order.
    #[arg(long, default_value = "iops", value_name = "COLUMN")]
    pub sort: Sort,

    /// Print at most this many volumes. [default: all]
    #[arg(long, value_name = "N")]
    pub rows: Option<usize>,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

/// Parses the interval. Zero is an error: rates need time.
fn interval(text: &str) -> Result<Duration, String> {
    match span(text)? {
        Duration::ZERO => Err("expected at least 1s".to_owned()),
        interval => Ok(interval),
    }
}
