//! `evenkeel store`: the pool of a data folder whose server is stopped.

use super::{LocalStore, Output};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub verb: StoreVerb,

    /// The data folder.
    #[arg(long, env = "EVENKEEL_DATA_DIR", default_value = "./evenkeel-data", value_name = "DIR")]
    #[arg(global = true, value_hint = ValueHint::DirPath)]
    pub data_dir: PathBuf,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum StoreVerb {
    /// Make the pool of a new data folder.
    ///
    /// The first start of a server does the same. A device or file that holds anything is refused,
    /// and what was found is named.
    Init {
        #[command(flatten)]
        local: LocalStore,

        /// Overwrite what the device of --pool holds.
        #[arg(long, requires = "pool")]
        force: bool,
    },
    /// List the volumes and snapshots of a pool. Only reads; works beside a running server, too.
    Inspect {
        /// The block device or file of the pool; by default that of the data folder.
        #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
        pool: Option<PathBuf>,
    },
    /// Prove every reference and count of a pool. Only reads; the server must be stopped.
    ///
    /// Exit code 1 if there are problems. Space that nothing uses and that is not free is told, and
    /// is no problem.
    Check {
        /// Hold each block of data to its checksum, too: reads everything.
        #[arg(long)]
        data: bool,
    },
    /// Move the volumes of a data folder from files into a pool.
    ///
    /// Every volume is copied and compared with its file; then the folder is served with --store
    /// local. The files are kept, in the folder `volumes.migrated`. May be interrupted: the same
    /// command goes on.
    Migrate {
        #[command(flatten)]
        local: LocalStore,
    },
}
