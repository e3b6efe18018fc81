//! From what should be to what the data plane is told. Pure.
//!
//! Desired state goes down whole, so a restart of either side is repaired by saying everything
//! again.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{Command, HostAddress, VolumeState};

use crate::model::{AttachmentState, Model, Phase, Settings, Volume};

/// The limits of a volume under the rulebook in force.
#[must_use]
pub fn pacing(settings: &Settings, volume: &Volume) -> Pacing {
    settings.rules.pacing(&volume.spec)
}

/// What the data plane is to do about `volume`: be like this, or be rid of it. `balances` count
/// only if it does not hold the volume yet.
#[must_use]
pub fn desired(settings: &Settings, model: &Model, volume: &Volume, balances: Balances) -> Command {
    if volume.phase == Phase::Deleting {
        return Command::Delete(volume.id);
    }
    let admitted = volume.attachments.iter().filter(|a| a.state != AttachmentState::Detaching);
    let mut hosts: Vec<HostAddress> =
        admitted.filter_map(|a| model.hosts.get(&a.instance)).map(|host| host.address).collect();
    // Two hosts may share an address: several instances played by one machine.
    hosts.sort_unstable();
    hosts.dedup();
    Command::Apply(VolumeState {
        id: volume.id,
        size: ByteCount::from_gib(volume.spec.size_gib),
        pacing: pacing(settings, volume),
        balances,
        hosts,
    })
}

/// The same volume, closed to every host: nothing can be spent any more.
#[must_use]
pub fn closed(settings: &Settings, volume: &Volume, balances: Balances) -> Command {
    Command::Apply(VolumeState {
        id: volume.id,
        size: ByteCount::from_gib(volume.spec.size_gib),
        pacing: pacing(settings, volume),
        balances,
        hosts: vec![],
    })
}

/// Whether the volume has credits to spend: such a volume must be closed before its balance is
/// final.
#[must_use]
pub fn has_credits(settings: &Settings, volume: &Volume) -> bool {
    let pacing = pacing(settings, volume);
    [pacing.operations, pacing.bytes].into_iter().flatten().any(|limit| limit.credit.is_some())
}

/// Volumes about which the data plane must still be told something.
#[must_use]
pub fn unsettled(model: &Model) -> Vec<VolumeId> {
    model.volumes.values().filter(|volume| !volume.is_settled()).map(|volume| volume.id).collect()
}
