//! `evenkeel-bench follow`, and `run follow-the-load`.

use super::print;
use evenkeel_bench::published::{Bench, follow};
use evenkeel_bench::suite::rerun;
use evenkeel_cli::flags::Output;
use evenkeel_cli::verdict::{AGAIN, Says};
use evenkeel_cli::{connect, log, runs, signals};
use evenkeel_client::output::Failure;
use evenkeel_lab::leftovers;
use std::path::Path;

pub use follow::NAME;

/// Prefix of the folders of runs, by which those of interrupted runs are found.
const FOLDERS: &str = "evenkeel-follow-";

pub fn run(charts: Option<&Path>, output: &Output) -> Result<(), Failure> {
    log::to_stderr("warn")?;
    let folder = runs::folder(&std::env::temp_dir(), FOLDERS)?;
    let mounts = folder.path().to_owned();
    signals::end_when_told_to_after(vec![mounts.clone()], move || {
        for left in rerun::take_down(&mounts) {
            eprintln!("left behind: {left}");
        }
    })?;
    let bench = Bench {
        folder: folder.path(),
        seconds: 0,
        connect: connect::client_in_default_region,
        progress: &mut |line| eprintln!("{line}"),
    };
    let found = follow::measure(bench, charts);
    if leftovers::is_any_below(folder.path()) {
        // Its journal has the resources that are left; the next run tries to remove them.
        eprintln!("not everything could be taken down: {} is kept", folder.keep().display());
    }
    let found = found?;
    print(output, &found.json, |_| found.text.clone())?;
    Says { broken: &found.why, gone: "the server is gone", hint: None, again: AGAIN }
        .of(found.verdict)
}
