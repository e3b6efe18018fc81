//! The flags of `evenkeel calibrate`.

use super::{Io, Output, StoreKind, store};
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Calibrate {
    /// A data folder, new or of a server that is stopped: the record is written into it. Of another
    /// folder, or an empty file, the device below is measured and nothing is left behind.
    #[arg(value_name = "DIR_OR_FILE", value_hint = ValueHint::AnyPath)]
    pub target: PathBuf,

    /// Take three seconds instead of a minute: enough for costs, not for a large write cache.
    #[arg(long)]
    pub quick: bool,

    /// The store to calibrate, as for `serve`.
    #[arg(long, env = "EVENKEEL_STORE", default_value = "local", value_name = "STORE")]
    #[arg(value_parser = store)]
    pub store: StoreKind,

    /// How to talk to the disk, as for `serve`.
    #[arg(long, env = "EVENKEEL_IO", default_value = "auto", value_name = "WAY")]
    pub io: Io,

    #[command(flatten)]
    pub output: Output,
}

/// When a server calibrates its store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum CalibrateWhen {
    /// At the first start on a data folder, for three seconds; and when the record there is not of
    /// this store on this device.
    FirstStart,
    /// Never: a record is used if there is one that fits.
    Never,
}
