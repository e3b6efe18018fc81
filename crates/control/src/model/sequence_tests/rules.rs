//! Rules that hold after every step, and for every change, whatever the commands were.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::units::GIB;

use super::*;

/// Checks the rules of the whole model.
pub(super) fn check(world: &World) {
    let model = &world.model;
    places(model);
    owners(model);
    sums(model);
    quotas(model);
    views(model);
    for volume in model.volumes.values() {
        assert!(world.settings.key.is_some() || !volume.is_encrypted, "{volume:?}");
        assert!(ZONES.contains(&volume.zone.as_str()), "{volume:?}");
    }
    for snapshot in model.snapshots.values() {
        assert!(world.settings.key.is_some() || !snapshot.is_encrypted, "{snapshot:?}");
    }
}

/// Checks that every attachment has a host that is not terminated, and its own device name.
fn places(model: &Model) {
    let mut devices = BTreeSet::new();
    for volume in model.volumes.values() {
        let mut addresses = BTreeSet::new();
        let most = if volume.spec.multi_attach { ATTACHMENTS_MAX } else { 1 };
        assert!(volume.attachments.len() <= most, "{volume:?}");
        let is_away =
            matches!(volume.phase, Phase::Creating | Phase::Deleting | Phase::Binned { .. });
        assert!(!is_away || volume.attachments.is_empty(), "{volume:?}");
        for attachment in &volume.attachments {
            let host = &model.hosts[&attachment.instance];
            assert!(!matches!(host.state, HostState::Terminated { .. }), "{host:?}");
            let zone = host.zone.as_deref().unwrap_or(ZONES[0]);
            assert_eq!(volume.zone, zone, "{volume:?}");
            assert!(devices.insert((host.id, attachment.device.clone())), "{attachment:?}");
            let address = format!("{:?}", host.address);
            assert!(addresses.insert(address), "two hosts of one address: {volume:?}");
        }
    }
    assert!(model.hosts.values().filter(|host| host.is_local()).count() == 1);
}

/// Checks that a snapshot that was made for a volume exists only while that volume is being
/// created.
fn owners(model: &Model) {
    for snapshot in model.snapshots.values() {
        let Some(owner) = snapshot.for_volume else { continue };
        assert!(!snapshot.is_shown(), "{snapshot:?}");
        let is_going = matches!(snapshot.phase, SnapshotPhase::Deleting { .. });
        let phase = model.volumes.get(&owner).map(|volume| &volume.phase);
        assert!(is_going || phase == Some(&Phase::Creating), "{snapshot:?} outlives its volume");
    }
    for volume in model.volumes.values() {
        assert!(volume.through.is_none() || volume.phase == Phase::Creating, "{volume:?}");
    }
    // The source of a copy exists until the copy is complete.
    for copy in model.snapshots.values() {
        if matches!(copy.phase, SnapshotPhase::Copying { .. }) {
            let of = copy.copy_of.and_then(|of| model.snapshots.get(&of));
            let is_there = |of: &Snapshot| {
                !matches!(of.phase, SnapshotPhase::Deleting { .. } | SnapshotPhase::Binned { .. })
            };
            assert!(of.is_some_and(is_there), "{copy:?} copies nothing");
        }
    }
}

/// Checks that the sold space is the sum of all bytes that may be stored.
fn sums(model: &Model) {
    let of_volume = |volume: &Volume| {
        let growing = volume
            .modification
            .as_ref()
            .filter(|modification| matches!(modification.phase, ModificationPhase::Modifying));
        let before = growing.map_or(0, |growing| growing.original.size_gib);
        u64::from(before.max(volume.spec.size_gib)) * GIB
    };
    let of_snapshot = |snapshot: &Snapshot| match snapshot.phase {
        SnapshotPhase::Pending | SnapshotPhase::Filling | SnapshotPhase::Error(_) => 0,
        SnapshotPhase::Copying { data }
        | SnapshotPhase::Completed { data, .. }
        | SnapshotPhase::Deleting { data }
        | SnapshotPhase::Binned { data, .. } => data.0,
    };
    let volumes: u64 = model.volumes.values().map(of_volume).sum();
    let snapshots: u64 = model.snapshots.values().map(of_snapshot).sum();
    assert_eq!(model.bytes_sold().0, volumes + snapshots);
}

fn quotas(model: &Model) {
    let mut pending = BTreeMap::new();
    let mut copies = [0; 2];
    for snapshot in model.snapshots.values() {
        if snapshot.is_pending() && snapshot.volume != NO_VOLUME {
            *pending.entry(snapshot.volume).or_insert(0) += 1;
        }
        if matches!(snapshot.phase, SnapshotPhase::Copying { .. }) {
            copies[usize::from(snapshot.for_volume.is_some())] += 1;
        }
        assert!(snapshot.tags.len() <= TAGS_MAX);
    }
    // One may be the snapshot of a copy of the volume, which the limit does not count.
    assert!(pending.values().all(|count| *count <= 6), "{pending:?}");
    assert!(copies.iter().all(|count| *count <= 20), "{copies:?}");
    let making = |it: &&Volume| it.source.is_some() && it.phase == Phase::Creating;
    let sources: Vec<_> =
        model.volumes.values().filter(making).map(|volume| volume.source).collect();
    assert!(sources.len() <= 5, "{sources:?}");
    assert_eq!(sources.iter().collect::<BTreeSet<_>>().len(), sources.len(), "{sources:?}");
}

/// Checks that each volume and snapshot is shown to clients in exactly one place.
fn views(model: &Model) {
    for id in model.volumes.keys() {
        assert!(model.volume(*id).is_ok() != model.binned_volume(*id).is_ok(), "{id}");
    }
    for (id, snapshot) in &model.snapshots {
        let is_going = matches!(snapshot.phase, SnapshotPhase::Deleting { .. });
        let seen = [model.snapshot(*id).is_ok(), model.binned_snapshot(*id).is_ok()];
        let is_hidden = is_going || snapshot.for_volume.is_some();
        assert_eq!(seen.iter().filter(|seen| **seen).count(), usize::from(!is_hidden), "{id}");
    }
    let mut tokens = BTreeSet::new();
    for snapshot in model.snapshots.values().filter(|snapshot| snapshot.is_shown()) {
        let token = snapshot.filled.as_ref().and_then(|filled| filled.token.as_ref());
        assert!(token.is_none_or(|(name, _)| tokens.insert(name.clone())), "{snapshot:?}");
    }
}

/// Checks that an event changes a volume or a snapshot only as the phases allow.
pub(super) fn check_transition(model: &Model, event: &Event) {
    match event {
        Event::Volume(after) => {
            let Some(before) = model.volumes.get(&after.id) else {
                assert_eq!(after.phase, Phase::Creating, "{after:?}");
                return;
            };
            let fixed = |it: &Volume| {
                (it.zone.clone(), it.created, it.snapshot, it.source, it.is_encrypted)
            };
            assert_eq!(fixed(before), fixed(after));
            let is_taken_back = before.is_being_modified();
            assert!(is_taken_back || after.spec.size_gib >= before.spec.size_gib, "{after:?}");
            assert!(before.phase == after.phase || becomes(&before.phase, &after.phase));
        }
        Event::VolumeGone(id) => {
            let Some(before) = model.volumes.get(id) else { return };
            let may_go =
                matches!(before.phase, Phase::Creating | Phase::Deleting | Phase::Binned { .. });
            assert!(may_go, "{before:?}");
        }
        Event::Snapshot(after) => {
            let Some(before) = model.snapshots.get(&after.id) else {
                let is_new = after.is_pending();
                assert!(is_new, "{after:?}");
                return;
            };
            let fixed = |it: &Snapshot| {
                (it.volume, it.size_gib, it.started, it.copy_of, it.for_volume, it.is_encrypted)
            };
            assert_eq!(fixed(before), fixed(after));
            assert!(
                !matches!(before.phase, SnapshotPhase::Deleting { .. })
                    || matches!(after.phase, SnapshotPhase::Deleting { .. }),
                "{after:?} comes back"
            );
        }
        Event::SnapshotGone(id) => {
            let Some(before) = model.snapshots.get(id) else { return };
            let was_none = matches!(before.phase, SnapshotPhase::Pending | SnapshotPhase::Filling);
            assert!(was_none || matches!(before.phase, SnapshotPhase::Deleting { .. }));
        }
        Event::Host(_) | Event::HostGone(_) | Event::Token(..) | Event::TokenGone(_) => {}
        Event::Account(_) | Event::User(_) | Event::UserGone(_) => {}
    }
}

/// Returns whether a volume's phase may follow another.
fn becomes(before: &Phase, after: &Phase) -> bool {
    match before {
        Phase::Creating => matches!(after, Phase::Ready),
        Phase::Ready | Phase::Error(_) => !matches!(after, Phase::Creating),
        Phase::Deleting => matches!(after, Phase::Error(_)),
        Phase::Binned { .. } => matches!(after, Phase::Ready | Phase::Error(_)),
    }
}
