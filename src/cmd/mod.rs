//! The verbs, one file each.

use crate::cli::{Cli, DemoVerb, Verb};
use evenkeel_client::output::Failure;
use evenkeel_lab::bench::mounts;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

mod bench;
mod calibrate;
mod capacity;
mod capacity_plan;
mod demo;
mod demo_ceph;
mod demo_cluster;
mod doctor;
mod env;
mod events;
mod export;
mod host;
mod man;
mod migrate;
mod node;
mod plan;
mod prove;
mod record;
mod recording;
mod report;
pub mod serve;
mod sim;
pub mod snapshot;
mod store;
mod top;
mod verdict;
pub mod volume;

/// The prefix of the name of every [`folder_of_a_run`].
const FOLDERS_OF_RUNS: &str = "evenkeel-";

/// Executes the verb of the command line.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.verb {
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Demo(arguments) => match &arguments.verb {
            None => demo::run(&arguments),
            Some(DemoVerb::Ceph(ceph)) => demo_ceph::run(ceph),
            Some(DemoVerb::Cluster(cluster)) => demo_cluster::run(cluster),
        },
        Verb::Env(arguments) => env::run(&arguments),
        Verb::Volume(arguments) => volume::run(&arguments),
        Verb::Snapshot(arguments) => snapshot::run(&arguments),
        Verb::Host(arguments) => host::run(&arguments),
        Verb::Node(arguments) => node::run(&arguments),
        Verb::Calibrate(arguments) => calibrate::run(&arguments),
        Verb::Store(arguments) => store::run(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Events(arguments) => events::run(&arguments),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Sim(arguments) => sim::run(&arguments),
        Verb::Plan(arguments) => plan::run(&arguments),
        Verb::Capacity(arguments) => capacity_plan::run(&arguments),
        Verb::Record(arguments) => record::run(&arguments),
        Verb::Prove(arguments) => prove::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments.verb),
        Verb::Completions(arguments) => man::completions(&arguments),
        Verb::Man(arguments) => man::run(&arguments),
    }
}

/// Opens a path, or standard input for `-`.
fn input(path: &Path) -> std::io::Result<Box<dyn std::io::Read>> {
    Ok(match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path)?),
    })
}

/// Returns the command line of this program, in a form that can be typed again.
fn this_call() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = std::iter::once("evenkeel".to_owned()).chain(words).collect();
    evenkeel_sim::text::command_line(&words)
}

/// Creates a folder in `parent` for a run; it is removed on drop. First removes the folders of
/// earlier killed runs with the same prefix.
fn folder_of_a_run(parent: &Path, prefix: &str) -> Result<TempDir, Failure> {
    debug_assert!(prefix.starts_with(FOLDERS_OF_RUNS), "`bench clean` would not find {prefix}");
    // Absolute, because programs in it have other working folders.
    let parent = parent
        .canonicalize()
        .map_err(|error| Failure::new(format!("a folder in {}: {error}", parent.display())))?;
    for message in mounts::clean_leftovers(&parent, prefix) {
        eprintln!("{message}");
    }
    let folder = temporary_folder(&parent, prefix)?;
    mounts::claim(folder.path()).map_err(|error| Failure::new(error.to_string()))?;
    Ok(folder)
}

/// Creates a folder in `parent` that is removed on drop.
fn temporary_folder(parent: &Path, prefix: &str) -> Result<TempDir, Failure> {
    // Other users may enter, because their servers work in it; only the owner may write, whatever
    // the umask.
    let mode = Permissions::from_mode(0o755);
    let made = tempfile::Builder::new().prefix(prefix).permissions(mode).tempdir_in(parent);
    made.map_err(|error| Failure::new(format!("a folder in {}: {error}", parent.display())))
}
