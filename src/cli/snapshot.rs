//! The flags of `evenkeel snapshot`.

use super::{Connection, Output, Wait, snapshot_id, tag, volume_id};
use clap::{Args, Subcommand};
use evenkeel_core::ids::{SnapshotId, VolumeId};

#[derive(Args, Debug)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    pub verb: SnapshotVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotVerb {
    /// Make a snapshot of a volume, in use or not: of everything that was answered to its clients.
    Create(SnapshotCreate),
    /// List the snapshots.
    Ls,
    /// Show all properties of a snapshot.
    Show {
        /// The snapshot's id.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
    },
    /// Delete snapshots, in any order. Volumes made of them keep their bytes.
    Rm {
        /// The snapshots' ids.
        #[arg(required = true, value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshots: Vec<SnapshotId>,
        /// Delete stored snapshots that the database does not know, as `unowned` lists them.
        #[arg(long)]
        unowned: bool,
    },
    /// List stored snapshots that the database does not know, for example after it was lost.
    Unowned,
}

#[derive(Args, Debug)]
pub struct SnapshotCreate {
    /// The volume's id.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub volume: VolumeId,

    /// What the snapshot is for; at most 255 characters.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,

    /// A tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,

    #[command(flatten)]
    pub wait: Wait,
}
