//! Decides whether a command is accepted, by a scan of all volumes, snapshots and hosts.

use super::*;

/// Returns whether a command is accepted; `None` if types and limits decide, which the oracle does
/// not know.
pub(super) fn accepts(world: &World, command: &Command) -> Option<bool> {
    let World { model, settings, now, .. } = world;
    Some(match command {
        Command::RestoreVolume { id, .. } => model.volumes.get(id).is_some_and(
            |volume| matches!(volume.phase, Phase::Binned { until, .. } if *now < until),
        ),
        Command::SetAutoEnableIo { id, .. } => shown(world, id).is_some(),
        Command::DeleteVolume { id } => shown(world, id).is_some_and(|it| may_delete(world, it)),
        Command::DeleteWithHost { id, host } => {
            shown(world, id).is_some_and(|it| may_delete_with(it, *host))
        }
        Command::AttachVolume { id, instance, device } => {
            let host = model.hosts.get(instance);
            let host = host.filter(|host| !matches!(host.state, HostState::Terminated { .. }));
            match (shown(world, id), host) {
                (Some(volume), Some(host)) => may_attach(world, volume, host, device),
                _ => false,
            }
        }
        Command::DeleteSnapshot { id } => {
            let is_copied = |copy: &Snapshot| {
                copy.copy_of == Some(*id) && matches!(copy.phase, SnapshotPhase::Copying { .. })
            };
            let found = snapshot(world, id);
            found.is_some_and(|it| !is_locked(it, *now)) && !model.snapshots.values().any(is_copied)
        }
        Command::RestoreSnapshot { id } => model.snapshots.get(id).is_some_and(
            |found| matches!(found.phase, SnapshotPhase::Binned { until, .. } if *now < until),
        ),
        Command::PurgeSnapshot { id } => model
            .snapshots
            .get(id)
            .is_some_and(|snapshot| matches!(snapshot.phase, SnapshotPhase::Binned { .. })),
        Command::LockSnapshot { id, .. } if snapshot(world, id).is_none() => false,
        Command::UnlockSnapshot { id } => snapshot(world, id)
            .is_some_and(|snapshot| snapshot.lock.is_some() && !is_locked_for_good(snapshot, *now)),
        Command::ShareSnapshot { id, add, .. } => {
            let is_open = model.account.public_access == PublicAccess::Unblocked;
            let found = snapshot(world, id);
            let is_free = add.is_empty() || found.is_some_and(|it| !is_archived(it, *now));
            found.is_some() && is_free && (is_open || !add.contains("all"))
        }
        Command::ArchiveSnapshot { id } => may_be_archived(world, id),
        Command::RestoreTier { id, .. } => snapshot(world, id)
            .is_some_and(|snapshot| is_completed(snapshot) && is_in_archive(snapshot, *now)),
        Command::CopySnapshot { of, .. }
            if snapshot(world, of).is_none_or(|snapshot| is_archived(snapshot, *now)) =>
        {
            false
        }
        Command::SetPublicAccess(_) => true,
        Command::SetFastRestore { ids, zones, is_on } => {
            ids.iter().all(|id| may_be_fast(world, id, zones, *is_on))
        }
        Command::SetEncryptByDefault(is_on) => !is_on || settings.key.is_some(),
        Command::CreateTags { resources, .. } | Command::DeleteTags { resources, .. } => {
            resources.iter().all(|resource| match resource {
                Tagged::Volume(id) => shown(world, id).is_some(),
                Tagged::Snapshot(id) => snapshot(world, id).is_some(),
                Tagged::Instance(id) => model.hosts.contains_key(id),
            })
        }
        Command::RegisterHost { id, .. } => !model.hosts.contains_key(id),
        Command::DeregisterHost { id } => {
            model.hosts.get(id).is_some_and(|host| !host.is_local() && !is_used(world, *id))
        }
        Command::SetHostState { ids, state } => ids.iter().all(|id| may_become(world, *id, *state)),
        _ => return None,
    })
}

fn shown<'a>(world: &'a World, id: &VolumeId) -> Option<&'a Volume> {
    let found = world.model.volumes.get(id);
    found.filter(|it| !matches!(it.phase, Phase::Binned { .. }))
}

fn snapshot<'a>(world: &'a World, id: &SnapshotId) -> Option<&'a Snapshot> {
    let is_shown = |it: &&Snapshot| {
        let is_away =
            matches!(it.phase, SnapshotPhase::Deleting { .. } | SnapshotPhase::Binned { .. });
        !is_away && it.for_volume.is_none()
    };
    world.model.snapshots.get(id).filter(is_shown)
}

fn may_be_fast(world: &World, id: &SnapshotId, zones: &[String], is_on: bool) -> bool {
    let is_refused = |it: &Snapshot| {
        let is_new = is_on && zones.iter().any(|zone| !it.fast_restores.contains_key(zone));
        is_new && (matches!(it.phase, SnapshotPhase::Error(_)) || is_archived(it, world.now))
    };
    snapshot(world, id).is_some_and(|snapshot| !is_refused(snapshot))
}

fn may_be_archived(world: &World, id: &SnapshotId) -> bool {
    snapshot(world, id).is_some_and(|snapshot| {
        is_completed(snapshot)
            && !is_in_archive(snapshot, world.now)
            && snapshot.fast_restores.is_empty()
    })
}

fn is_completed(snapshot: &Snapshot) -> bool {
    matches!(snapshot.phase, SnapshotPhase::Completed { .. })
}

/// Returns whether it is archived, and not restored at this time.
fn is_archived(snapshot: &Snapshot, now: UnixMs) -> bool {
    snapshot.tiering.is_some_and(|tiering| match tiering.last {
        TierOperation::Archive => true,
        TierOperation::TemporaryRestore { until } => until <= now,
        TierOperation::PermanentRestore => false,
    })
}

/// Returns whether it is archived, restored for some days or not.
fn is_in_archive(snapshot: &Snapshot, now: UnixMs) -> bool {
    let is_restored = |it: Tiering| matches!(it.last, TierOperation::TemporaryRestore { .. });
    is_archived(snapshot, now) || snapshot.tiering.is_some_and(is_restored)
}

fn may_become(world: &World, id: InstanceId, state: HostState) -> bool {
    let is_end = matches!(state, HostState::Terminated { .. });
    world.model.hosts.get(&id).is_some_and(|host| match host.state {
        HostState::Terminated { .. } => is_end,
        _ => !is_end || (!host.is_local() && !is_used(world, id)),
    })
}

fn may_delete_with(volume: &Volume, host: InstanceId) -> bool {
    let is_its = |it: &Attachment| it.instance == host;
    let is_attached = |it: &Attachment| it.state == AttachmentState::Attached;
    let all = &volume.attachments;
    // Whether it will be detached or deleted, it must be attached to the host.
    let is_at_rest = match &volume.phase {
        Phase::Ready => !volume.is_being_modified() && all.iter().all(is_attached),
        Phase::Error(_) => true,
        _ => false,
    };
    is_at_rest && all.iter().any(is_its)
}

fn is_used(world: &World, host: InstanceId) -> bool {
    let mut all = world.model.volumes.values().flat_map(|volume| &volume.attachments);
    all.any(|attachment| attachment.instance == host)
}

fn may_delete(world: &World, volume: &Volume) -> bool {
    let is_made = |own| {
        let own = world.model.snapshots.get(&own).map(|own| &own.phase);
        matches!(own, None | Some(SnapshotPhase::Completed { .. }))
    };
    volume.attachments.is_empty()
        && match volume.phase {
            Phase::Creating => volume.through.is_some_and(|own| !is_made(own)),
            Phase::Ready => !volume.is_being_modified(),
            Phase::Error(_) => true,
            Phase::Deleting | Phase::Binned { .. } => false,
        }
}

fn may_attach(world: &World, volume: &Volume, host: &Host, device: &str) -> bool {
    let hosts = &world.model.hosts;
    let is_free = match volume.attachments.as_slice() {
        [] => true,
        others => {
            let is_apart = |other: &Attachment| hosts[&other.instance].address != host.address;
            volume.spec.multi_attach && others.iter().all(is_apart)
        }
    };
    let mut all = world.model.volumes.values().flat_map(|volume| &volume.attachments);
    let is_taken = all.any(|other| other.instance == host.id && other.device == device);
    let is_attached = |it: &Attachment| it.state == AttachmentState::Attached;
    let zone = host.zone.as_deref().unwrap_or(ZONES[0]);
    volume.phase == Phase::Ready
        && volume.zone == zone
        && is_free
        && !is_taken
        && !volume.is_being_modified()
        && volume.attachments.iter().all(is_attached)
}

/// Returns the time at which a lock begins.
fn begins(snapshot: &Snapshot, lock: &Lock) -> Option<UnixMs> {
    match snapshot.phase {
        SnapshotPhase::Completed { ended, .. } => Some(lock.created.max(ended)),
        SnapshotPhase::Pending | SnapshotPhase::Filling | SnapshotPhase::Copying { .. } => None,
        _ => Some(lock.created),
    }
}

fn is_locked(snapshot: &Snapshot, now: UnixMs) -> bool {
    let Some(lock) = &snapshot.lock else { return false };
    let ends = begins(snapshot, lock).map(|from| from.0 + u64::from(lock.days) * 24 * HOUR_MS);
    ends.is_none_or(|ends| now.0 < ends)
}

fn is_locked_for_good(snapshot: &Snapshot, now: UnixMs) -> bool {
    let Some(lock) = &snapshot.lock else { return false };
    let cooled = lock.created.0 + u64::from(lock.cool_off_hours) * HOUR_MS;
    lock.mode == LockMode::Compliance && is_locked(snapshot, now) && now.0 >= cooled
}
