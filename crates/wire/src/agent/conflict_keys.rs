//! Keys that identify the things that a command changes.
//!
//! Commands with a common key must be executed in the order in which control sends them. If the
//! reply to a command is lost, its keys identify the state that is uncertain.

use alloc::vec::Vec;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

use super::Command;

/// A thing that a command changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Touched {
    /// A volume: its state, its bytes.
    Volume(VolumeId),
    /// A host's limits.
    Host(InstanceId),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// The credits of volumes and hosts.
    Credits,
    /// The properties of the device.
    Device,
    /// The limit of background work.
    Background,
}

impl Command {
    /// Returns the keys of the things that it changes; none if it only reads. [`Command::Balances`]
    /// has none, although its reply cannot be had again if it is lost: the next one has only later
    /// changes.
    #[must_use]
    pub fn touched(&self) -> Vec<Touched> {
        let mut all = Vec::new();
        match self {
            Self::Create(state) | Self::Apply(state) | Self::Grow(state, _) => {
                all.push(Touched::Volume(state.id));
            }
            Self::CreateFrom(state, of) => {
                all.extend([Touched::Volume(state.id), Touched::Snapshot(*of)]);
            }
            Self::Delete(id) | Self::Release(id) | Self::Salvage(id) => {
                all.push(Touched::Volume(*id))
            }
            Self::ApplyHost(state) => all.push(Touched::Host(state.id)),
            Self::DeleteHost(id) => all.push(Touched::Host(*id)),
            Self::Calibrated(_) | Self::Divide(Some(_)) => all.push(Touched::Device),
            Self::SetBalances(id, _) => all.extend([Touched::Volume(*id), Touched::Credits]),
            Self::Lease(_) => all.push(Touched::Credits),
            Self::Snapshot(of, id) => all.extend([Touched::Volume(*of), Touched::Snapshot(*id)]),
            Self::SnapshotSet(set) => {
                all.extend(
                    set.iter().flat_map(|(of, id)| [Touched::Volume(*of), Touched::Snapshot(*id)]),
                );
            }
            Self::DeleteSnapshot(id) | Self::PutSnapshot(id, ..) | Self::CompleteSnapshot(id) => {
                all.push(Touched::Snapshot(*id))
            }
            Self::StartSnapshot(new) => {
                all.push(Touched::Snapshot(new.id));
                all.extend(new.parent.map(Touched::Snapshot));
            }
            Self::SetBackground(_) => all.push(Touched::Background),
            Self::Report
            | Self::ReportOf(_)
            | Self::Balances
            | Self::Latencies(_)
            | Self::Stored
            | Self::Space
            | Self::Capacity
            | Self::Snapshots
            | Self::SnapshotsOf(_)
            | Self::SnapshotUnits(_)
            | Self::ReadSnapshot(..)
            | Self::Background
            | Self::Divide(None)
            | Self::Verify(..)
            | Self::VerifySnapshot(..)
            | Self::VerifyStore(_)
            | Self::Filled(_)
            | Self::StoreHealth => {}
        }
        all
    }
}
