//! The flags of `evenkeel volume`.

use super::{
    Connection, Output, VolumeMigrate, Wait, instance_id, size_gib, snapshot_id, tag, volume_id,
    volume_type,
};
use clap::{Args, Subcommand};
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::volume::VolumeType;

#[derive(Args, Debug)]
pub struct VolumeArgs {
    #[command(subcommand)]
    pub verb: VolumeVerb,

    #[command(flatten)]
    pub output: Output,

    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Subcommand, Debug)]
pub enum VolumeVerb {
    /// Create a volume.
    Create(VolumeCreate),
    /// Create a volume that begins as another one is now, in use or not.
    Copy(VolumeCopy),
    /// List the volumes.
    Ls,
    /// Show whether volumes can be used, by EC2's status checks.
    Status {
        /// The volumes' ids. [default: all]
        #[arg(value_name = "VOLUME", value_parser = volume_id)]
        volumes: Vec<VolumeId>,
    },
    /// Show all properties of a volume: limits, attachments, address, credits.
    Show {
        /// The volume's id.
        #[arg(value_name = "VOLUME", value_parser = volume_id)]
        volume: VolumeId,
    },
    /// Change type, size or limits. Takes effect at once and never refills credits.
    Modify(VolumeModify),
    /// Attach the volume to a host, which can then connect to it.
    Attach(VolumeAttach),
    /// Detach the volume from a host and close its connections.
    Detach(VolumeDetach),
    /// Delete volumes and their bytes, or put them into the recycle bin if there is one.
    #[command(alias = "delete")]
    Rm {
        /// The volumes' ids; none may be attached.
        #[arg(required = true, value_name = "VOLUME", value_parser = volume_id)]
        volumes: Vec<VolumeId>,
        /// Delete stored bytes that belong to no volume, as `unowned` lists them.
        #[arg(long)]
        unowned: bool,
        /// Delete what is in the recycle bin, before its time.
        #[arg(long, conflicts_with = "unowned")]
        bin: bool,
    },
    /// List the volumes in the recycle bin.
    Bin,
    /// Take a volume out of the recycle bin.
    ///
    /// One whose bytes cannot be opened comes back in the state `error`, and can be salvaged.
    Restore {
        /// The volume's id.
        #[arg(value_name = "VOLUME", value_parser = volume_id)]
        volume: VolumeId,
    },
    /// Serve a volume in error whose stored bytes are damaged, with what can be read of them.
    ///
    /// Changes that only damaged blocks of its log had are lost: the volume's blocks hold what they
    /// held before, or cannot be read until they are written. Check the file system or the database
    /// before you use it.
    Salvage {
        /// The volume's id.
        #[arg(value_name = "VOLUME", value_parser = volume_id)]
        volume: VolumeId,
    },
    /// List stored bytes that belong to no volume, for example after the database was lost.
    Unowned,
    /// Create a volume from stored bytes that belong to none: with their id and size, and no
    /// credits.
    Adopt(VolumeAdopt),
    /// Move a volume to another server, such as a cluster: copied while it is in use, then detached
    /// for a moment, and compared.
    ///
    /// Interrupted or refused, the same command continues with what is copied. The volume stays
    /// until it is removed. The target's keys are in the folder that --to-data-dir names, or in
    /// EVENKEEL_TO_ACCESS_KEY_ID and EVENKEEL_TO_SECRET_ACCESS_KEY.
    Migrate(VolumeMigrate),
    /// Show what may be sold, what is sold, and what each volume type reserves.
    Capacity,
    /// Show the credit balances of a gp2, st1 or sc1 volume, or set one.
    Credits {
        /// The volume's id.
        #[arg(value_name = "VOLUME", value_parser = volume_id)]
        volume: VolumeId,
        /// New balance: I/O credits of a gp2 volume, bytes of an st1 or sc1 volume.
        #[arg(long, value_name = "N")]
        set: Option<u64>,
    },
}

/// Provisioned properties of a new volume.
#[derive(Args, Debug)]
pub struct Provisioned {
    /// Provisioned IOPS (gp3, io1, io2).
    #[arg(long, value_name = "N")]
    pub iops: Option<u32>,

    /// Provisioned throughput in MiB/s (gp3).
    #[arg(long, value_name = "MIB/S")]
    pub throughput: Option<u32>,

    /// Allow several hosts to attach it (io1, io2).
    #[arg(long)]
    pub multi_attach: bool,
}

#[derive(Args, Debug)]
pub struct VolumeCreate {
    /// Volume type: standard, st1, sc1, gp2, gp3, io1 or io2.
    #[arg(short = 't', long = "type", default_value = "gp3", value_name = "TYPE")]
    #[arg(value_parser = volume_type)]
    pub volume_type: VolumeType,

    /// Size, such as 100GiB or 2TiB; a bare number is GiB. [default with --snapshot: its size]
    #[arg(short, long, value_name = "SIZE", value_parser = size_gib)]
    #[arg(required_unless_present = "snapshot")]
    pub size: Option<u32>,

    /// The snapshot that the volume begins as.
    #[arg(long, value_name = "SNAPSHOT", value_parser = snapshot_id)]
    pub snapshot: Option<SnapshotId>,

    /// The availability zone. [default: the server's first]
    #[arg(long, value_name = "NAME")]
    pub zone: Option<String>,

    #[command(flatten)]
    pub provisioned: Provisioned,

    /// Encrypt it with a data key of its own; needs a server with a key.
    #[arg(long)]
    pub encrypted: bool,

    /// A tag; may be repeated.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,

    /// Attach it to this machine as soon as it is available; implies --wait.
    #[arg(long)]
    pub attach: bool,

    #[command(flatten)]
    pub wait: Wait,
}

#[derive(Args, Debug)]
pub struct VolumeCopy {
    /// The id of the volume that is copied.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub source: VolumeId,

    /// Volume type of the copy. [default: the source's, with its IOPS and throughput]
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = volume_type)]
    pub volume_type: Option<VolumeType>,

    /// Size, such as 100GiB or 2TiB; not below the source's. [default: the source's]
    #[arg(short, long, value_name = "SIZE", value_parser = size_gib)]
    pub size: Option<u32>,

    #[command(flatten)]
    pub provisioned: Provisioned,

    /// Encrypt the copy of a volume that is not encrypted; needs a server with a key.
    #[arg(long)]
    pub encrypted: bool,

    /// A tag; may be repeated. The source's tags are not copied.
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = tag)]
    pub tags: Vec<(String, String)>,

    #[command(flatten)]
    pub wait: Wait,
}

#[derive(Args, Debug)]
pub struct VolumeAdopt {
    /// Id of the bytes, as `unowned` lists them.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub volume: VolumeId,

    /// Volume type: standard, st1, sc1, gp2, gp3, io1 or io2.
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = volume_type)]
    pub volume_type: VolumeType,

    #[command(flatten)]
    pub provisioned: Provisioned,
}

#[derive(Args, Debug)]
pub struct VolumeModify {
    /// The volume's id.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub volume: VolumeId,

    /// New volume type.
    #[arg(short = 't', long = "type", value_name = "TYPE", value_parser = volume_type)]
    pub volume_type: Option<VolumeType>,

    /// New size, such as 100GiB or 2TiB; not below the present size.
    #[arg(short, long, value_name = "SIZE", value_parser = size_gib)]
    pub size: Option<u32>,

    /// New provisioned IOPS.
    #[arg(long, value_name = "N")]
    pub iops: Option<u32>,

    /// New provisioned throughput in MiB/s.
    #[arg(long, value_name = "MIB/S")]
    pub throughput: Option<u32>,

    #[command(flatten)]
    pub wait: Wait,
}

#[derive(Args, Debug)]
pub struct VolumeAttach {
    /// The volume's id.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub volume: VolumeId,

    /// The host's id. [default: this machine]
    #[arg(long, value_name = "HOST", value_parser = instance_id)]
    pub host: Option<InstanceId>,

    /// Device name, unique on the host. [default: the first free name from /dev/sdf on]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    #[command(flatten)]
    pub wait: Wait,
}

#[derive(Args, Debug)]
pub struct VolumeDetach {
    /// The volume's id.
    #[arg(value_name = "VOLUME", value_parser = volume_id)]
    pub volume: VolumeId,

    /// The host's id; needed only when several hosts have attached it.
    #[arg(long, value_name = "HOST", value_parser = instance_id)]
    pub host: Option<InstanceId>,

    #[command(flatten)]
    pub wait: Wait,
}
