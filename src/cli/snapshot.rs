//! The flags of `evenkeel snapshot`.

use super::{Connection, Output, Wait, instance_id, snapshot_id, tag, volume_id};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use std::path::PathBuf;

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
    /// Copy a snapshot. A copy that is encrypted as its source is shares its blocks.
    Copy(SnapshotCopy),
    /// List the snapshots in the recycle bin.
    Bin,
    /// Take a snapshot out of the recycle bin.
    Restore {
        /// The snapshot's id.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
    },
    /// Archive a snapshot: no volume and no copy can be made of it until it is restored. Its data
    /// stay where they are.
    Archive {
        /// The snapshot's id.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
    },
    /// Restore a snapshot from the archive, for some days or for good.
    Unarchive {
        /// The snapshot's id.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
        /// Days after which it counts as archived again, from 1 to 180.
        #[arg(long, value_name = "N", required_unless_present = "permanent")]
        #[arg(conflicts_with = "permanent")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..=180))]
        days: Option<u32>,
        /// Restore it for good.
        #[arg(long)]
        permanent: bool,
    },
    /// Lock a snapshot, so that it cannot be deleted before a time.
    Lock(SnapshotLock),
    /// Remove the lock of a snapshot, if its mode allows that.
    Unlock {
        /// The snapshot's id.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
    },
    /// List the locks of snapshots.
    Locks,
    /// Delete snapshots, in any order, or put them into the recycle bin if there is one. Volumes
    /// made of them keep their bytes.
    #[command(alias = "delete")]
    Rm {
        /// The snapshots' ids.
        #[arg(required = true, value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshots: Vec<SnapshotId>,
        /// Delete stored snapshots that the database does not know, as `unowned` lists them.
        #[arg(long)]
        unowned: bool,
        /// Delete what is in the recycle bin, before its time.
        #[arg(long, conflicts_with = "unowned")]
        bin: bool,
    },
    /// Copy a snapshot to a folder or to an S3-compatible endpoint.
    Export(SnapshotExport),
    /// Make a snapshot of an export, also of another server's.
    Import(SnapshotImport),
    /// List the exports in a place.
    Exports(ExportAt),
    /// Read an export and compare every unit of it with its checksum.
    Verify {
        /// The id of the snapshot that was exported.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
        #[command(flatten)]
        at: ExportAt,
        #[command(flatten)]
        work: ExportWork,
    },
    /// Remove an export, and what no other export in its place shares with it. Not beside an export
    /// that is being made there.
    Unexport {
        /// The id of the snapshot that was exported.
        #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
        snapshot: SnapshotId,
        #[command(flatten)]
        at: ExportAt,
    },
    /// List stored snapshots that the database does not know, for example after it was lost.
    Unowned,
}

#[derive(Args, Debug)]
pub struct SnapshotCreate {
    /// The volume's id.
    #[arg(value_name = "VOLUME", value_parser = volume_id, required_unless_present = "host")]
    pub volume: Option<VolumeId>,

    /// All volumes that this host has attached, at one moment, instead of one volume.
    #[arg(long, value_name = "HOST", value_parser = instance_id, conflicts_with = "volume")]
    pub host: Option<InstanceId>,

    /// A volume of the host that is left out; may be repeated.
    #[arg(long, value_name = "VOLUME", value_parser = volume_id, requires = "host")]
    pub exclude: Vec<VolumeId>,

    /// Give each snapshot the tags of its volume, too.
    #[arg(long, requires = "host")]
    pub copy_tags: bool,

    /// Purpose of the snapshot; at most 255 characters.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,

    /// A tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,

    #[command(flatten)]
    pub wait: Wait,
}

#[derive(Args, Debug)]
pub struct SnapshotCopy {
    /// The id of the snapshot that is copied.
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
    pub source: SnapshotId,

    /// Encrypt the copy of a snapshot that is not encrypted; needs a server with a key.
    #[arg(long)]
    pub encrypted: bool,

    /// Purpose of the copy; at most 255 characters.
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,

    /// A tag; may be repeated. The source's tags are not copied.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,

    #[command(flatten)]
    pub wait: Wait,
}

/// Operations that the lock of a snapshot forbids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LockMode {
    /// Deleting the snapshot; the lock can be changed and removed.
    Governance,
    /// Deleting the snapshot, and shortening or removing the lock, by anybody.
    Compliance,
}

#[derive(Args, Debug)]
pub struct SnapshotLock {
    /// The snapshot's id.
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
    pub snapshot: SnapshotId,

    /// Operations that the lock forbids.
    #[arg(long, value_enum, default_value_t = LockMode::Governance)]
    pub mode: LockMode,

    /// Days for which it is locked, from 1 to 36500.
    #[arg(long, value_name = "N", required_unless_present = "until", conflicts_with = "until")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: Option<u32>,

    /// Until when it is locked, such as 2030-01-31T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,

    /// Hours in which a lock in compliance mode can still be changed and removed, from 1 to 72.
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u32).range(1..=72))]
    pub cool_off: Option<u32>,
}

/// How an S3-compatible endpoint is reached.
#[derive(Args, Debug)]
pub struct S3 {
    /// Address of the S3-compatible endpoint; the keys are in S3_ACCESS_KEY_ID,
    /// S3_SECRET_ACCESS_KEY and S3_SESSION_TOKEN. [default: Amazon S3 of the region]
    #[arg(long, value_name = "URL", env = "EVENKEEL_S3_ENDPOINT")]
    pub s3_endpoint: Option<String>,

    /// Region of the bucket.
    #[arg(long, value_name = "NAME", env = "EVENKEEL_S3_REGION", default_value = "us-east-1")]
    pub s3_region: String,
}

/// How fast an export is read or written.
#[derive(Args, Debug)]
pub struct ExportWork {
    /// The most MiB a second. [default: as fast as possible]
    #[arg(long, value_name = "MIBPS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: Option<u64>,

    /// Packs that are worked on at once; each takes up to 17 MiB of memory.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=64))]
    pub jobs: u8,
}

/// The key of an encrypted place of exports: that of the server, or another one.
#[derive(Args, Debug)]
pub struct ExportKeys {
    /// The file with the key that wraps the key of the exports, as of `serve`: 64 hexadecimal
    /// digits. Without it, or what keeps it, encrypted exports are lost.
    #[arg(long, env = "EVENKEEL_KEY_FILE", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,

    /// The command that wraps and unwraps the key of the exports, as of `serve`.
    #[arg(long, env = "EVENKEEL_KEY_COMMAND", value_name = "COMMAND", hide_env_values = true)]
    #[arg(conflicts_with = "key_file")]
    pub key_command: Option<String>,
}

/// The place of exports.
#[derive(Args, Debug)]
pub struct ExportAt {
    /// The folder, or s3://BUCKET/PREFIX.
    #[arg(long = "in", value_name = "PLACE")]
    pub place: String,

    #[command(flatten)]
    pub keys: ExportKeys,

    #[command(flatten)]
    pub s3: S3,
}

#[derive(Args, Debug)]
pub struct SnapshotExport {
    /// The snapshot's id.
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
    pub snapshot: SnapshotId,

    /// The folder, or s3://BUCKET/PREFIX.
    #[arg(long, value_name = "PLACE")]
    pub to: String,

    /// A snapshot that is exported there: only what differs from it is written.
    #[arg(long, value_name = "SNAPSHOT", value_parser = snapshot_id)]
    pub parent: Option<SnapshotId>,

    #[command(flatten)]
    pub keys: ExportKeys,

    /// Write what is in an encrypted snapshot without encryption.
    #[arg(long)]
    pub plain: bool,

    #[command(flatten)]
    pub work: ExportWork,

    #[command(flatten)]
    pub s3: S3,
}

#[derive(Args, Debug)]
pub struct SnapshotImport {
    /// The id of the snapshot that was exported.
    #[arg(value_name = "SNAPSHOT", value_parser = snapshot_id)]
    pub snapshot: SnapshotId,

    /// The folder, or s3://BUCKET/PREFIX.
    #[arg(long, value_name = "PLACE")]
    pub from: String,

    #[command(flatten)]
    pub keys: ExportKeys,

    /// Purpose of the new snapshot. [default: as the exported one]
    #[arg(long, value_name = "TEXT")]
    pub description: Option<String>,

    /// A tag of the new snapshot; may be repeated. [default: as the exported one]
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,

    /// Let the snapshot of an encrypted export be as the server makes new ones. Without it the
    /// snapshot is encrypted, and the server needs a key.
    #[arg(long)]
    pub unencrypted: bool,

    #[command(flatten)]
    pub work: ExportWork,

    #[command(flatten)]
    pub s3: S3,
}
