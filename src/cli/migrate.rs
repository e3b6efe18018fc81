//! The flags of `evenkeel volume migrate`.

use super::{span, volume_id};
use clap::{Args, ValueHint};
use evenkeel_core::ids::VolumeId;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct VolumeMigrate {
    /// The volume's id.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub volume: VolumeId,

    /// Address of the target's API; of a cluster, that of any node. [default: that of the server on
    /// the folder that --to-data-dir names]
    #[arg(long, value_name = "URL", required_unless_present = "to_data_dir")]
    pub to: Option<String>,

    /// The target's data folder, or any folder with a copy of its file `credentials`.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub to_data_dir: Option<PathBuf>,

    /// The certificates of the target's authority, in PEM form, if it is at https://. [default:
    /// those that the server on the folder that --to-data-dir names, or --ca]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub to_ca: Option<PathBuf>,

    /// The target's region. [default: that of the server on the folder that --to-data-dir
    /// names, or the source's]
    #[arg(long, value_name = "NAME")]
    pub to_region: Option<String>,

    /// Detach the volume from its hosts when little is left to copy. What its clients have not
    /// flushed may be lost: stop them before.
    #[arg(long)]
    pub detach: bool,

    /// Maximum wait for the operator to detach the volume when little is left to copy, such as 10m;
    /// exit code 5 if it is exceeded.
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = span)]
    #[arg(conflicts_with = "detach")]
    pub wait: Duration,

    /// Let the copy of an encrypted volume be as the target makes new volumes.
    #[arg(long)]
    pub unencrypted: bool,

    /// Delete the volume at the source in the end, or put it into the recycle bin if there is one.
    #[arg(long)]
    pub remove_source: bool,

    /// The most MiB a second that are copied, and compared. [default: as fast as possible]
    #[arg(long, value_name = "MIBPS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,

    /// Units of 512 KiB that are copied at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    pub jobs: u8,
}
