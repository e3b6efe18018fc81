//! `evenkeel store`: the pool of a data folder.

use super::{Connection, LocalStore, Output, Wait};
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub verb: StoreVerb,

    #[command(flatten)]
    pub connection: Connection,

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
    /// Check every reference and count of a pool. Only reads; the server must be stopped.
    ///
    /// Exit code 1 if there are problems. Unused space that is not free is listed, and is not a
    /// problem.
    Check {
        /// Hold each block of data to its checksum, too: reads everything.
        #[arg(long)]
        data: bool,
    },
    /// Read everything that a running server has stored, and verify its checksums.
    ///
    /// The server reads at a bounded rate, and lets volumes go first. It continues after a restart.
    /// Damaged data is listed, counted in /metrics, and makes the volume's status impaired. Exit
    /// code 1 if there is any.
    Scrub {
        /// MiB a second, from 1 to 100,000. Changes the rate of a scrub that runs.
        #[arg(long, default_value_t = 50, value_name = "MIB")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
        rate: u32,

        /// Stop the scrub that runs; without --stop the next one continues where it was.
        #[arg(long, conflicts_with_all = ["status", "wait"])]
        stop: bool,

        /// Only show how far it is and what it has found.
        #[arg(long, conflicts_with = "wait")]
        status: bool,

        #[command(flatten)]
        wait: Wait,
    },
}
