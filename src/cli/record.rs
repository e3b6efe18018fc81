//! The flags of `evenkeel record`.

use super::{Connection, span};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Record {
    /// The disk to record: a disk or a partition of this machine, such as /dev/sdb. Or a volume of
    /// the server, such as vol-0123456789abcdef0, whose recording by the server is printed.
    #[arg(value_name = "DISK|VOLUME", value_hint = ValueHint::FilePath)]
    pub source: String,

    /// Record a disk for so long, such as 1h or 1d. [default: until Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    pub length: Option<Duration>,

    /// Time between two looks at a disk, such as 1s or 10s. [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = every)]
    pub every: Option<Duration>,

    /// Print what was recorded of a volume in the last 2h or 3d. [default: all]
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub since: Option<Duration>,

    /// Append to a file, instead of standard output.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub connection: Connection,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = span(text)?;
    match every.as_secs() {
        1..=3_600 => Ok(every),
        _ => Err("expected 1s to 1h".to_owned()),
    }
}
