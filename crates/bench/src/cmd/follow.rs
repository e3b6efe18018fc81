//! `evenkeel-bench follow`, and `run follow-the-load`.

use super::{begin_with_mounts, conclude, end_with_mounts};
use evenkeel_bench::published::{Bench, follow};
use evenkeel_cli::connect;
use evenkeel_cli::flags::Output;
use evenkeel_client::output::Failure;
use std::path::Path;

pub use follow::NAME;

/// Prefix of the folders of runs, by which those of interrupted runs are found.
const FOLDERS: &str = "evenkeel-follow-";

pub fn run(charts: Option<&Path>, output: &Output) -> Result<(), Failure> {
    let folder = begin_with_mounts(FOLDERS)?;
    let bench = Bench {
        folder: folder.path(),
        seconds: 0,
        connect: connect::client_in_default_region,
        progress: &mut |line| eprintln!("{line}"),
    };
    let found = follow::measure(bench, charts);
    end_with_mounts(folder);
    conclude(output, &found?)
}
