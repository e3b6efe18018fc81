//! Computes the commands for the data plane from the model's state. Pure.
//!
//! Each command has the whole desired state of a volume or host. So after a restart of either side
//! it is enough to send everything again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::sharing::InstancePacing;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{Attachment, Command, HostState, VolumeState};

use crate::model::{AttachmentState, Host, Model, Phase, Settings, Volume};

/// Returns the limits of a volume under the volume rules in force.
#[must_use]
pub fn pacing(settings: &Settings, volume: &Volume) -> Pacing {
    settings.rules.pacing(&volume.spec)
}

/// The credits with which a volume or a host starts if the data plane does not hold it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Start {
    /// The whole balances.
    pub balances: Balances,
    /// The part of them that is not leased.
    pub unleased: Balances,
}

/// Returns the command for `volume`: create it, set its state, or delete it. Bytes are created only
/// while the volume is being created, and added only while it is being modified. A volume that has
/// existed before has its bytes or is in error. `start` is used only if the data plane does not
/// hold the volume yet.
#[must_use]
pub fn desired(settings: &Settings, model: &Model, volume: &Volume, start: Start) -> Command {
    if volume.phase == Phase::Deleting {
        return Command::Delete(volume.id);
    }
    let admitted = volume.attachments.iter().filter(|a| a.state != AttachmentState::Detaching);
    let attachments = attached(model, admitted.map(|a| a.instance));
    let state = state(settings, volume, start, attachments);
    let grows_from = volume.modification.as_ref().filter(|modification| {
        volume.is_being_modified() && modification.original.size_gib < volume.spec.size_gib
    });
    match (&volume.phase, grows_from) {
        (Phase::Creating, _) => match volume.through.or(volume.snapshot) {
            Some(snapshot) => Command::CreateFrom(state, snapshot),
            None => Command::Create(state),
        },
        (_, Some(modification)) => {
            Command::Grow(state, ByteCount::from_gib(modification.original.size_gib))
        }
        _ => Command::Apply(state),
    }
}

/// Returns the attachments of a volume in the data plane, including those that are being detached.
#[must_use]
pub fn may_be_attached(model: &Model, volume: &Volume) -> Vec<Attachment> {
    attached(model, volume.attachments.iter().map(|a| a.instance))
}

/// Returns the registered hosts in the form of the data plane.
fn attached(model: &Model, hosts: impl Iterator<Item = InstanceId>) -> Vec<Attachment> {
    let hosts = hosts.filter_map(|id| model.hosts.get(&id));
    hosts.map(|host| Attachment { host: host.id, address: host.address }).collect()
}

fn state(
    settings: &Settings,
    volume: &Volume,
    Start { balances, unleased }: Start,
    attachments: Vec<Attachment>,
) -> VolumeState {
    let pacing = pacing(settings, volume);
    // The volume is guaranteed its reservation.
    let reserved = settings.rules.reserved(&volume.spec);
    let size = ByteCount::from_gib(volume.spec.size_gib);
    let id = volume.id;
    let is_encrypted = volume.is_encrypted;
    VolumeState { id, size, pacing, balances, unleased, reserved, attachments, is_encrypted }
}

/// Returns the I/Os per second that a volume has reserved.
pub fn floor_iops(settings: &Settings, volume: &Volume) -> u32 {
    settings.rules.reserved(&volume.spec).operations_per_second
}

/// Returns the state of a host for the data plane; `None` for a host without limits. `start` is
/// used only if the data plane does not hold the host yet.
#[must_use]
pub fn host(host: &Host, Start { balances, unleased }: Start) -> Option<HostState> {
    Some(HostState { id: host.id, pacing: host_pacing(host)?, balances, unleased })
}

/// Returns the limits of a host; `None` if it has none.
#[must_use]
pub fn host_pacing(host: &Host) -> Option<InstancePacing> {
    instance::by_name(&host.instance_type).map(InstanceType::pacing)
}

/// Returns the state of a volume that is closed to every host, so that no credits can be spent.
#[must_use]
pub fn closed(settings: &Settings, volume: &Volume, start: Start) -> Command {
    Command::Apply(state(settings, volume, start, vec![]))
}

/// Returns whether the volume has credits to spend, its own or those of a host: such a volume must
/// be closed before balances are final.
#[must_use]
pub fn spends_credits(settings: &Settings, model: &Model, volume: &Volume) -> bool {
    let hosts = volume.attachments.iter().filter_map(|a| model.hosts.get(&a.instance));
    let of_hosts = hosts.filter_map(host_pacing).map(|pacing| pacing.as_volume());
    of_hosts.chain([pacing(settings, volume)]).any(|pacing| {
        let mut limits = [pacing.operations, pacing.bytes].into_iter().flatten();
        limits.any(|limit| limit.credit.is_some())
    })
}

/// Returns volumes in error. Each returns to service once its problem is solved.
#[must_use]
pub fn in_error(model: &Model) -> Vec<VolumeId> {
    model.in_error().collect()
}

/// Returns volumes for which the data plane must still be called, without those [`in_error`], which
/// are retried separately.
#[must_use]
pub fn unsettled(model: &Model) -> Vec<VolumeId> {
    model.unsettled().collect()
}

/// Returns all volumes in the order in which they are sent to the data plane at a start: the
/// attached ones, then the others. Volumes that are connected by hosts with limits form a group;
/// the volumes of a group are sent one after the other, and the largest group first. Each volume
/// but the first of its group shares a host with an earlier one, so its core is known and nothing
/// has to be moved. Groups are spread over the cores by size.
#[must_use]
pub fn bring_up_order(model: &Model) -> [Vec<Vec<VolumeId>>; 2] {
    let is_limited =
        |id: &InstanceId| model.hosts.get(id).is_some_and(|host| host_pacing(host).is_some());
    let hosts_of = |volume: &Volume| -> Vec<InstanceId> {
        let admitted = volume.attachments.iter().filter(|a| a.state != AttachmentState::Detaching);
        admitted.map(|a| a.instance).filter(is_limited).collect()
    };
    let mut volumes_of = BTreeMap::<InstanceId, Vec<VolumeId>>::new();
    for volume in model.volumes.values() {
        for host in hosts_of(volume) {
            volumes_of.entry(host).or_default().push(volume.id);
        }
    }
    let mut groups = Vec::new();
    let mut seen = BTreeSet::new();
    for &first in model.volumes.keys() {
        let mut group = Vec::new();
        let mut next = VecDeque::from([first]);
        while let Some(id) = next.pop_front() {
            let Some(volume) = model.volumes.get(&id).filter(|_| seen.insert(id)) else { continue };
            group.push(id);
            for host in hosts_of(volume) {
                // Each host is visited once, however many volumes it has.
                next.extend(volumes_of.remove(&host).unwrap_or_default());
            }
        }
        groups.push(group);
    }
    groups.sort_by_key(|group| Reverse(group.len()));
    let is_attached =
        |id: &VolumeId| model.volumes.get(id).is_some_and(|volume| !volume.attachments.is_empty());
    let (attached, others) = groups.into_iter().partition(|group| group.iter().any(is_attached));
    [attached, others]
}
