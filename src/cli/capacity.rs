//! The flags of `evenkeel capacity`.

use super::Output;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Capacity {
    #[command(subcommand)]
    pub verb: CapacityVerb,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum CapacityVerb {
    /// Say whether volumes fit on devices, on which each goes, and how many more are needed.
    ///
    /// Counts what admission counts: device time by what a volume reserves, and its whole size.
    /// Exit code 0: all fit; 3: a file cannot be read; 4: they do not; 6: undecided. The page
    /// docs/operating/capacity.md has more.
    Plan(CapacityPlan),
}

#[derive(Args, Debug)]
pub struct CapacityPlan {
    /// All volumes that the devices are to carry, as CSV with the columns `type` and `gib`, and if
    /// need be `volume`, `iops`, `mib_s`, `count`: what `evenkeel volume ls -o csv` prints. `-` is
    /// standard input.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub volumes: PathBuf,

    /// The calibration record of a device, for each device that there is.
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "prices")]
    pub calibration: Vec<PathBuf>,

    /// Take the devices of a price book instead.
    #[arg(long, value_name = "BOOK", value_hint = ValueHint::FilePath)]
    #[arg(conflicts_with_all = ["calibration", "space"])]
    pub prices: Option<PathBuf>,

    /// GiB of each device. [default: what its calibration record says]
    #[arg(long, value_name = "GIB", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub space: Option<u64>,

    /// Cores of each server, whose time admission counts, too. [default: not limited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    #[arg(conflicts_with = "prices")]
    pub cores: Option<u16>,

    /// MiB/s of each server's network in each direction, of which 80 % are sold. [default: not
    /// limited]
    #[arg(long, value_name = "MIB/S")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub network: Option<u32>,

    /// The device of which more are to be had: its place in the list, from 1 on, or its name in the
    /// price book. [default: the first]
    #[arg(long, value_name = "DEVICE")]
    pub next: Option<String>,
}
