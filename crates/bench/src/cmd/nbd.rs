//! `evenkeel-bench nbd`: an unlimited volume beside other servers, under the same load; and the two
//! servers of ours that it starts.

use super::{print, seconds};
use crate::cli::{BenchNbd, Export, Floor};
use evenkeel_bench::compare::{self, CompareConfig, OUR_VOLUME};
use evenkeel_bench::data_plane;
use evenkeel_cli::{log, runs, signals};
use evenkeel_client::output::Failure;
use evenkeel_core::qos::pacing::Pacing;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::EngineConfig;
use std::path::Path;

/// Prefix of the folders of its runs.
const FOLDERS: &str = "evenkeel-bench-nbd-";

/// Compares with nbdkit and qemu-storage-daemon and prints the table.
pub fn nbd(arguments: &BenchNbd) -> Result<(), Failure> {
    let folder = runs::folder(&std::env::temp_dir(), FOLDERS)?;
    let memory_folder = runs::folder(Path::new("/dev/shm"), FOLDERS)?;
    let folders = [&folder, &memory_folder].map(|folder| folder.path().to_owned());
    signals::end_when_told_to(folders.to_vec())?;
    let config = CompareConfig::published(seconds(arguments.time), arguments.rounds, folders)?;
    let comparison = compare::compare(&config, &mut |what| eprintln!("{what}"))?;
    print(&arguments.output, &comparison, ToString::to_string)
}

/// Serves an export that stores nothing, at minimum cost, until the process is killed.
pub fn floor(arguments: &Floor) -> Result<(), Failure> {
    let served = match (&arguments.unix, arguments.tcp) {
        (Some(socket), _) => compare::floor::serve_unix(socket, arguments.size),
        (None, Some(address)) => compare::floor::serve_tcp(address, arguments.size),
        // The command line requires one of them.
        (None, None) => Ok(()),
    };
    served.map_err(|error| Failure::new(format!("the floor cannot serve: {error}")))
}

/// Serves one unlimited volume in memory, without a control plane, until told to stop.
pub fn export(arguments: &Export) -> Result<(), Failure> {
    log::to_stderr("warn")?;
    let default = data_plane::in_memory(arguments.io.into());
    let engine = data_plane::start(EngineConfig {
        cores: arguments.cores.unwrap_or(default.cores),
        tcp: arguments.tcp.into_iter().collect(),
        unix: arguments.unix.clone(),
        ..default
    })?;
    data_plane::apply(&engine, OUR_VOLUME, ByteCount(arguments.size), Pacing::UNLIMITED)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(error.to_string()))?
        .block_on(signals::stop_signal());
    engine.shutdown();
    Ok(())
}
