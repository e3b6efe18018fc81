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
