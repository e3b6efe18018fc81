//! The space of the file system of the world: a btrfs, or an XFS or ext4 on one volume.

use evenkeel_planner::autopilot::observation::{Device, Kind, Profile};

use super::btrfs::{Btrfs, Order};

/// The share of an XFS or ext4 that its metadata takes: one in this many bytes.
const PLAIN_SHARE: u64 = 64;

/// An XFS or ext4.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Plain {
    pub(super) kind: Kind,
    pub(super) volume: String,
    pub(super) device_bytes: u64,
    pub(super) size_bytes: u64,
    pub(super) used: u64,
}

impl Plain {
    fn room(&self) -> u64 {
        (self.size_bytes - self.size_bytes / PLAIN_SHARE).saturating_sub(self.used)
    }
}

/// A file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Space {
    Btrfs(Btrfs),
    Plain(Plain),
}

impl Space {
    pub(super) const fn kind(&self) -> Kind {
        match self {
            Self::Btrfs(_) => Kind::Btrfs,
            Self::Plain(plain) => plain.kind,
        }
    }

    /// Returns the profiles of file data and of metadata.
    pub(super) fn profiles(&self) -> (Option<Profile>, Option<Profile>) {
        match self {
            Self::Btrfs(btrfs) => {
                let (data, metadata) = btrfs.profiles();
                (Some(data), Some(metadata))
            }
            Self::Plain(_) => (None, None),
        }
    }

    pub(super) const fn used(&self) -> u64 {
        match self {
            Self::Btrfs(btrfs) => btrfs.used,
            Self::Plain(plain) => plain.used,
        }
    }

    /// Returns the bytes that files can still use.
    pub(super) fn room(&self) -> u64 {
        match self {
            Self::Btrfs(btrfs) => btrfs.room(),
            Self::Plain(plain) => plain.room(),
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        match self {
            Self::Btrfs(btrfs) => btrfs.size_bytes(),
            Self::Plain(plain) => plain.size_bytes,
        }
    }

    pub(super) fn slack_bytes(&self) -> u64 {
        match self {
            Self::Btrfs(btrfs) => btrfs.slack_bytes(),
            Self::Plain(_) => 0,
        }
    }

    /// Uses more bytes; returns those for which there was room.
    pub(super) fn write(&mut self, bytes: u64) -> u64 {
        match self {
            Self::Btrfs(btrfs) => btrfs.write(bytes),
            Self::Plain(plain) => {
                let written = bytes.min(plain.room());
                plain.used += written;
                written
            }
        }
    }

    /// Uses less bytes.
    pub(super) fn free(&mut self, bytes: u64, order: Order) {
        match self {
            Self::Btrfs(btrfs) => btrfs.free(bytes, order),
            Self::Plain(plain) => plain.used -= bytes.min(plain.used),
        }
    }

    /// Returns the volumes of its devices.
    pub(super) fn volumes(&self) -> Vec<&str> {
        match self {
            Self::Btrfs(btrfs) => btrfs.devices.iter().map(|d| d.volume.as_str()).collect(),
            Self::Plain(plain) => vec![plain.volume.as_str()],
        }
    }

    pub(super) fn has_volume(&self, volume: &str) -> bool {
        self.volumes().contains(&volume)
    }

    /// Returns its devices as an observation has them.
    pub(super) fn devices(&self) -> Vec<Device> {
        match self {
            Self::Btrfs(btrfs) => btrfs.devices.iter().map(seen).collect(),
            Self::Plain(plain) => vec![Device {
                devid: 1,
                path: format!("/dev/disk/{}", plain.volume),
                volume: Some(plain.volume.clone()),
                device_bytes: plain.device_bytes,
                size_bytes: plain.size_bytes,
                allocated_bytes: plain.size_bytes,
                errors: 0,
            }],
        }
    }

    /// Asserts what must always hold.
    pub(super) fn invariants(&self) {
        if let Self::Btrfs(btrfs) = self {
            btrfs.invariants();
        }
    }
}

fn seen(device: &super::btrfs::Device) -> Device {
    Device {
        devid: device.devid,
        path: format!("/dev/disk/{}", device.volume),
        volume: Some(device.volume.clone()),
        device_bytes: device.device_bytes,
        size_bytes: device.size_bytes,
        allocated_bytes: device.allocated_bytes,
        errors: 0,
    }
}
