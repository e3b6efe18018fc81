//! `evenkeel bench`: an unlimited volume beside other servers, under the same load.

use super::{print, seconds};
use crate::cli::{BenchNbd, Export, Floor};
use crate::cmd::{apply, folder_of_a_run, serve};
use crate::message::Failure;
use crate::server;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Pacing;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::{Engine, EngineConfig, UnixAccess};
use evenkeel_lab::bench::compare::{self, CompareConfig, Peer, PeerSize, Transport};
use evenkeel_store::memory::MemoryPool;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The one volume of [`export`].
const VOLUME: VolumeId = VolumeId::from_bits(1);

/// How the folders of its runs are called, before what is different of each.
const FOLDERS: &str = "evenkeel-bench-nbd-";

/// Large enough that caches of the processor do not hold it, small enough for six servers at once.
const SIZE: PeerSize = PeerSize { mib: 256 };

/// Time that starting and filling the servers may take, beside the runs.
const SET_UP_MAX: Duration = Duration::from_secs(300);

/// Compares with nbdkit and qemu-storage-daemon and prints the table.
pub fn nbd(arguments: &BenchNbd) -> Result<(), Failure> {
    let folder = folder_of_a_run(&std::env::temp_dir(), FOLDERS)?;
    let memory_folder = folder_of_a_run(Path::new("/dev/shm"), FOLDERS)?;
    let folders = [&folder, &memory_folder].map(|folder| folder.path().to_owned());
    serve::end_when_told_to(folders.to_vec())?;
    let seconds = seconds(arguments.time);
    let peers = vec![
        this_program("evenkeel", "export", true)?,
        compare::nbdkit_memory(),
        compare::nbdkit_file(),
        compare::qemu_file(),
        this_program(compare::FLOOR, "floor", false)?,
    ];
    let rows = compare::standard_rows(seconds);
    let transports = vec![Transport::Unix, Transport::Tcp];
    let runs = rows.len() * transports.len() * peers.len();
    let runs = u32::try_from(runs).unwrap_or(u32::MAX).saturating_mul(arguments.rounds);
    let config = CompareConfig {
        peers,
        rows,
        transports,
        rounds: arguments.rounds,
        size: SIZE,
        folder: folder.path().to_owned(),
        memory_folder: memory_folder.path().to_owned(),
        // Each run takes about a second more than its load.
        deadline: SET_UP_MAX + (arguments.time * 2 + Duration::from_secs(5)) * runs,
    };
    let comparison = compare::compare(&config, &mut |what| eprintln!("{what}"))
        .map_err(|error| Failure::new(error.to_string()))?;
    print(&arguments.output, &comparison, ToString::to_string)
}

/// This program as one server of the comparison, called `name`: one of its hidden verbs.
fn this_program(name: &str, verb: &str, keeps_bytes: bool) -> Result<Peer, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("where this program is: {error}")))?;
    let program = program.to_string_lossy().into_owned();
    let command = |listen: [&str; 2]| {
        let arguments = ["bench", verb, "--size", "{size}"].into_iter().chain(listen);
        [program.clone()].into_iter().chain(arguments.map(str::to_owned)).collect()
    };
    Ok(Peer {
        name: name.to_owned(),
        package: "evenkeel",
        export: VOLUME.to_string(),
        unix: command(["--unix", "{socket}"]),
        tcp: command(["--tcp", "127.0.0.1:{port}"]),
        needs_file: false,
        keeps_bytes,
    })
}

/// Serves an export that keeps nothing, at the least cost, until it is killed.
pub fn floor(arguments: &Floor) -> Result<(), Failure> {
    let served = match (&arguments.unix, arguments.tcp) {
        (Some(socket), _) => compare::floor::serve_unix(socket, arguments.size),
        (None, Some(address)) => compare::floor::serve_tcp(address, arguments.size),
        // The command line asks for one of them.
        (None, None) => Ok(()),
    };
    served.map_err(|error| Failure::new(format!("the floor cannot serve: {error}")))
}

/// Serves one unlimited volume in memory, without a control plane, until told to stop.
pub fn export(arguments: &Export) -> Result<(), Failure> {
    serve::log_to_stderr("warn")?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(error.to_string());
    let engine = Engine::start(EngineConfig {
        cores: arguments.cores.unwrap_or_else(server::cores),
        io: arguments.io.into(),
        tcp: arguments.tcp.into_iter().collect(),
        unix: arguments.unix.clone(),
        unix_access: UnixAccess::default(),
        pool: Arc::new(MemoryPool::new()),
    })
    .map_err(|error| failed(&error))?;
    apply(&engine, VOLUME, ByteCount(arguments.size), Pacing::UNLIMITED)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(&error))?
        .block_on(serve::stop_signal());
    engine.shutdown();
    Ok(())
}
