//! Quotas: limits of an account. The numbers live in `data/quotas.toml`; `build.rs` checks them and
//! turns them into the table here.

use crate::volume::VolumeType;

include!(concat!(env!("OUT_DIR"), "/quotas.rs"));

/// Quotas of an account in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quotas {
    /// Snapshots.
    pub snapshots: usize,
    /// Snapshots with fast restore.
    pub fast_restores: usize,
    /// Pending snapshots that the direct APIs fill.
    pub filling: usize,
    /// Copies of volumes in progress.
    pub volume_copies: usize,
    /// Copies of snapshots in progress.
    pub snapshot_copies: usize,
    /// Archived snapshots of one volume.
    pub archived_snapshots: usize,
    /// TiB of all volumes, in the order of [`VolumeType::ALL`].
    storage_tib: [u64; VolumeType::ALL.len()],
    /// Provisioned IOPS of all volumes, in the same order.
    iops: [Option<u64>; VolumeType::ALL.len()],
    /// Pending snapshots of one volume, in the same order.
    pending_snapshots: [usize; VolumeType::ALL.len()],
}

impl Quotas {
    /// Returns the quota of all volumes of a type, in TiB.
    #[must_use]
    pub fn storage_tib(&self, volume_type: VolumeType) -> u64 {
        of(&self.storage_tib, volume_type)
    }

    /// Returns the quota of provisioned IOPS of all volumes of a type; `None` if there is none.
    #[must_use]
    pub fn iops(&self, volume_type: VolumeType) -> Option<u64> {
        of(&self.iops, volume_type)
    }

    /// Returns the quota of pending snapshots of one volume of a type.
    #[must_use]
    pub fn pending_snapshots(&self, volume_type: VolumeType) -> usize {
        of(&self.pending_snapshots, volume_type)
    }
}

fn of<T: Copy + Default>(all: &[T], volume_type: VolumeType) -> T {
    let place = VolumeType::ALL.iter().position(|other| *other == volume_type);
    place.and_then(|place| all.get(place)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_those_of_ec2() {
        assert_eq!(EC2.storage_tib(VolumeType::Io2), 20);
        assert!(VolumeType::ALL.iter().all(|volume_type| EC2.storage_tib(*volume_type) >= 20));
        assert_eq!(EC2.iops(VolumeType::Io1), Some(300_000));
        assert_eq!(EC2.iops(VolumeType::Gp3), None);
        let pending = [VolumeType::St1, VolumeType::Gp2]
            .map(|volume_type| EC2.pending_snapshots(volume_type));
        assert_eq!(pending, [1, 5]);
        let rest = (EC2.snapshots, EC2.fast_restores, EC2.filling);
        assert_eq!(EC2.archived_snapshots, 25);
        assert_eq!((rest, EC2.volume_copies, EC2.snapshot_copies), ((100_000, 50, 100), 5, 20));
    }
}
