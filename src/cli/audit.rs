//! The flags of `evenkeel audit`.

use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct AuditArgs {
    #[command(subcommand)]
    pub verb: AuditVerb,
}

#[derive(Subcommand, Debug)]
pub enum AuditVerb {
    /// Check that no line of the audit was changed, removed or put elsewhere.
    ///
    /// Reads the files of a data folder, also while its server runs. Lines that were cut off at the
    /// end are not found by this alone: keep the printed hash elsewhere, and give it to --expect
    /// later.
    Verify(AuditVerify),
}

#[derive(Args, Debug)]
pub struct AuditVerify {
    /// Data folder of the server.
    #[arg(long, env = "EVENKEEL_DATA_DIR", default_value = "./evenkeel-data", value_name = "DIR")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub data_dir: PathBuf,

    /// The hash that an earlier check has printed; a line must have it.
    #[arg(long, value_name = "HASH")]
    pub expect: Option<String>,
}
