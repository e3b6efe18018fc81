//! The flags of `evenkeel calibrate`.

use super::{Io, LocalStore, Output, RbdStore, StoreKind, store};
use clap::{Args, ValueHint};
use evenkeel_cli::calibrate::As;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Calibrate {
    /// A data folder, new or of a stopped server: the record is written into it. In any other
    /// folder, a temporary folder is measured and nothing is left behind.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub target: PathBuf,

    /// Take three seconds instead of a minute. Enough to measure costs, but not to fill a large
    /// write cache.
    #[arg(long)]
    pub quick: bool,

    /// The state that the pool of the store `rbd` is in: it is measured healthy first, then without
    /// its largest failure domain, then while it recovers, one command each; the record has all.
    /// The operator brings the pool into the state; it is an error if it is in another one.
    #[arg(long = "as", default_value = "healthy", value_name = "STATE")]
    pub state: As,

    /// The store to calibrate, as for `serve`.
    #[arg(long, env = "EVENKEEL_STORE", default_value = "local", value_name = "STORE")]
    #[arg(value_parser = store)]
    pub store: StoreKind,

    #[command(flatten)]
    pub local: LocalStore,

    #[command(flatten)]
    pub rbd: RbdStore,

    /// How to access the disk, as for `serve`.
    #[arg(long, env = "EVENKEEL_IO", default_value = "auto", value_name = "WAY")]
    pub io: Io,

    #[command(flatten)]
    pub output: Output,
}
