//! `evenkeel-bench clean`: removes the leftovers of killed runs.

use crate::cli::BenchClean;
use evenkeel_cli::runs;
use evenkeel_client::output::{self, Failure};
use evenkeel_lab::leftovers::{self, Leftover};
use std::path::PathBuf;

/// Folder in which `nbd` has its disks in memory.
const MEMORY_FOLDER: &str = "/dev/shm";

pub fn run(arguments: &BenchClean) -> Result<(), Failure> {
    let folders = match &arguments.dir {
        Some(folder) => vec![found(folder.clone())?],
        None => vec![found(std::env::temp_dir())?, PathBuf::from(MEMORY_FOLDER)],
    };
    let clean = |folder| leftovers::take_down_leftovers(folder, runs::PREFIX);
    let leftovers: Vec<Leftover> = folders.iter().flat_map(|folder| clean(folder)).collect();
    let lines: String = leftovers.iter().map(|leftover| format!("{}\n", leftover.text)).collect();
    if leftovers.is_empty() {
        return output::print("earlier runs have left nothing\n");
    }
    output::print(&lines)?;
    if leftovers.iter().all(|leftover| leftover.is_gone) {
        return Ok(());
    }
    Err(Failure::new("not everything could be taken down")
        .hint("end the programs that use it (`fuser -vm FOLDER` lists them), then try again"))
}

/// Returns the folder under its canonical name, as in the kernel's tables of mounts.
fn found(folder: PathBuf) -> Result<PathBuf, Failure> {
    folder.canonicalize().map_err(|error| Failure::new(format!("{}: {error}", folder.display())))
}
