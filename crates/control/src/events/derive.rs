//! Derives events from a change of the model: a volume or a snapshot before and after. Pure.
//!
//! Every match on a phase names all phases, so a new phase does not compile before its events are
//! decided here.

use std::collections::BTreeSet;

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::time::UnixMs;

use super::notice::{
    BinEvent, SnapshotDone, SnapshotEvent, SnapshotNews, VolumeEvent, VolumeNews, What,
};
use crate::model::{
    AttachmentState, Event, Model, Modification, ModificationPhase, Phase, Snapshot, SnapshotPhase,
    TierOperation, Volume,
};
use crate::scrub::Target;

/// Maximum number of sets of snapshots that are followed. Further sets get no event at their end.
const SETS_MAX: usize = 256;
/// EC2's word for a failed result.
const FAILED: &str = "failed";

/// Returns the events of a change that is about to be applied. `cause` is the reason of a reverted
/// change.
pub fn of_event(model: &Model, event: &Event, cause: &str) -> Vec<What> {
    match event {
        Event::Volume(after) => of_volume(model.volumes.get(&after.id), Some(after), cause),
        Event::VolumeGone(id) => of_volume(model.volumes.get(id), None, cause),
        Event::Snapshot(after) => of_snapshot(model.snapshots.get(&after.id), Some(after), cause),
        Event::SnapshotGone(id) => of_snapshot(model.snapshots.get(id), None, cause),
        Event::Host(_)
        | Event::HostGone(_)
        | Event::Token(..)
        | Event::TokenGone(_)
        | Event::Account(_)
        | Event::User(_)
        | Event::UserGone(_) => vec![],
    }
}

fn of_volume(before: Option<&Volume>, after: Option<&Volume>, cause: &str) -> Vec<What> {
    let Some(id) = before.or(after).map(|volume| volume.id) else { return vec![] };
    let happened = |event, result, cause: &str| {
        let cause = cause.to_owned();
        What::Volume { id, event, result, cause }
    };
    let mut all: Vec<What> = of_phases(before, after, cause).into_iter().collect();
    if let (Some(Phase::Binned { .. }), None) = (before.map(|volume| &volume.phase), after) {
        // Its record stays in the bin until its bytes are deleted.
        all.insert(0, What::Bin { target: Target::Volume(id), event: BinEvent::Purged });
    }
    let (Some(before), Some(after)) = (before, after) else { return all };
    if let (Phase::Binned { .. }, Phase::Error(_)) = (&before.phase, &after.phase) {
        let target = Target::Volume(id);
        all.insert(0, What::Bin { target, event: BinEvent::Restored });
    }
    let is_lost =
        matches!(after.phase, Phase::Error(_)) && !matches!(before.phase, Phase::Error(_));
    if let (true, Phase::Error(reason)) = (is_lost, &after.phase)
        && after.attachments.iter().any(|attachment| attachment.state == AttachmentState::Attached)
    {
        // Its hosts had it before, and the server could not attach it to them again.
        all.push(happened(VolumeEvent::Reattach, FAILED, reason));
    }
    for attaching in &before.attachments {
        let stays =
            after.attachments.iter().any(|attachment| attachment.instance == attaching.instance);
        if attaching.state == AttachmentState::Attaching && !stays {
            let cause = match &after.phase {
                Phase::Error(reason) if cause.is_empty() => reason,
                _ => cause,
            };
            all.push(happened(VolumeEvent::Attach, FAILED, cause));
        }
    }
    if before.modification != after.modification
        && let Some(modification) = &after.modification
        && !is_moved(before.modification.as_ref(), modification)
    {
        let (result, cause) = match &modification.phase {
            ModificationPhase::Modifying => ("modifying", ""),
            ModificationPhase::Optimizing { .. } => ("optimizing", ""),
            ModificationPhase::Completed { .. } => ("completed", ""),
            ModificationPhase::Failed { reason, .. } => (FAILED, reason.as_str()),
        };
        all.push(happened(VolumeEvent::Modify, result, cause));
    }
    all
}

/// Returns whether a modification differs only in the times of its state `optimizing`, which move
/// when the wall clock is set.
fn is_moved(before: Option<&Modification>, after: &Modification) -> bool {
    let is_optimizing = |it: &_| matches!(it, ModificationPhase::Optimizing { .. });
    before.is_some_and(|it| is_optimizing(&it.phase) && is_optimizing(&after.phase))
}

fn of_phases(before: Option<&Volume>, after: Option<&Volume>, cause: &str) -> Option<What> {
    use Phase::{Binned, Creating, Deleting, Error, Ready};
    let id = before.or(after)?.id;
    let target = Target::Volume(id);
    let volume = |event, result, cause: &str| {
        let cause = cause.to_owned();
        Some(What::Volume { id, event, result, cause })
    };
    match (before.map(|it| &it.phase), after.map(|it| &it.phase)) {
        (None | Some(Creating), Some(Ready)) => volume(VolumeEvent::Create, "available", ""),
        (Some(Creating), None) => volume(VolumeEvent::Create, FAILED, cause),
        (Some(Ready | Deleting | Error(_) | Binned { .. }), None) => {
            volume(VolumeEvent::Delete, "deleted", "")
        }
        (None | Some(Creating | Ready | Deleting | Binned { .. }), Some(Error(reason))) => {
            Some(What::VolumeNews { id, news: VolumeNews::Error(reason.clone()) })
        }
        (Some(Error(_)), Some(Ready)) => {
            let news = VolumeNews::Recovered(after?.state().name());
            Some(What::VolumeNews { id, news })
        }
        (None | Some(Creating | Ready | Deleting | Error(_)), Some(Binned { until, .. })) => {
            Some(What::Bin { target, event: BinEvent::Entered(*until) })
        }
        (Some(Binned { .. }), Some(Ready)) => Some(What::Bin { target, event: BinEvent::Restored }),
        // No event: other fields have changed, a change has only begun, or the transition cannot
        // occur.
        (None, None | Some(Creating | Deleting))
        | (Some(Creating | Ready | Deleting | Error(_)), Some(Creating | Deleting))
        | (Some(Ready | Deleting), Some(Ready))
        | (Some(Error(_)), Some(Error(_)))
        | (Some(Binned { .. }), Some(Creating | Deleting | Binned { .. })) => None,
    }
}

/// Returns the zones in which a snapshot that is shown has fast restore.
fn fast_zones(snapshot: Option<&Snapshot>) -> BTreeSet<&String> {
    let shown = snapshot.filter(|snapshot| snapshot.is_shown());
    shown.into_iter().flat_map(|snapshot| snapshot.fast_restores.keys()).collect()
}

fn of_snapshot(before: Option<&Snapshot>, after: Option<&Snapshot>, cause: &str) -> Vec<What> {
    let Some(known) = after.or(before) else { return vec![] };
    if known.for_volume.is_some() {
        // A snapshot that only serves a copy of a volume is never shown.
        return vec![];
    }
    let mut all: Vec<What> = of_snapshot_phases(before, after, cause).into_iter().collect();
    let fast_before = fast_zones(before);
    let fast_after = fast_zones(after);
    all.extend(fast_before.symmetric_difference(&fast_after).map(|zone| What::FastRestore {
        id: known.id,
        zone: (*zone).clone(),
        is_on: fast_after.contains(zone),
    }));
    if let (Some(before), Some(after)) = (before, after) {
        all.extend(of_tier(before, after));
        let is_new = |account: &&String| account.as_str() != "all"; // public ones are no event
        let added = after.shared_with.difference(&before.shared_with).filter(is_new).count();
        if added > 0 {
            all.push(What::Snapshot(SnapshotDone {
                id: after.id,
                event: SnapshotEvent::Share,
                failed: None,
                started: after.started,
            }));
        }
    }
    all
}

/// Returns the event of a storage tier. A change of times with the clock has no event.
fn of_tier(before: &Snapshot, after: &Snapshot) -> Option<What> {
    let tiering = after.tiering?;
    let was = before.tiering.map(|tiering| tiering.last);
    if before.tiering.is_some_and(|it| it.began == tiering.began) {
        return None;
    }
    let event = match tiering.last {
        TierOperation::PermanentRestore => SnapshotEvent::RestoreForGood,
        TierOperation::TemporaryRestore { until } => SnapshotEvent::RestoreUntil(until),
        // A snapshot that is restored for some days is archived only when that time ends.
        TierOperation::Archive if matches!(was, Some(TierOperation::TemporaryRestore { .. })) => {
            SnapshotEvent::RestoreEnd
        }
        TierOperation::Archive => SnapshotEvent::Archive,
    };
    let id = after.id;
    let failed = None;
    let started = tiering.began;
    Some(What::Snapshot(SnapshotDone { id, event, failed, started }))
}

fn of_snapshot_phases(
    before: Option<&Snapshot>,
    after: Option<&Snapshot>,
    cause: &str,
) -> Option<What> {
    use SnapshotPhase::{Binned, Completed, Copying, Deleting, Error, Filling, Pending};
    let known = before.or(after)?;
    let id = known.id;
    let target = Target::Snapshot(id);
    let done = |failed: Option<&str>| {
        let event = match known.copy_of {
            Some(of) => SnapshotEvent::Copy(Some(of)),
            None if matches!(known.phase, Copying { .. }) => SnapshotEvent::Copy(None),
            None => SnapshotEvent::Create(known.volume),
        };
        let failed = failed.map(str::to_owned);
        Some(What::Snapshot(SnapshotDone { id, event, failed, started: known.started }))
    };
    match (before.map(|it| &it.phase), after.map(|it| &it.phase)) {
        (None | Some(Pending | Filling | Copying { .. }), Some(Completed { .. })) => done(None),
        (Some(Pending | Filling | Copying { .. }), None) => done(Some(cause)),
        (None | Some(Pending | Filling | Copying { .. }), Some(Error(reason))) => {
            done(Some(reason))
        }
        (Some(Completed { .. } | Deleting { .. } | Binned { .. }), Some(Error(reason))) => {
            Some(What::SnapshotNews { id, news: SnapshotNews::Error(reason.clone()) })
        }
        (Some(Error(_)), Some(Completed { .. })) => {
            Some(What::SnapshotNews { id, news: SnapshotNews::Recovered })
        }
        (Some(Deleting { .. } | Completed { .. } | Error(_) | Binned { .. }), None) => {
            Some(What::SnapshotNews { id, news: SnapshotNews::Deleted })
        }
        (
            None
            | Some(
                Pending | Filling | Copying { .. } | Completed { .. } | Error(_) | Deleting { .. },
            ),
            Some(Binned { until, .. }),
        ) => Some(What::Bin { target, event: BinEvent::Entered(*until) }),
        (Some(Binned { .. }), Some(Completed { .. })) => {
            Some(What::Bin { target, event: BinEvent::Restored })
        }
        (Some(Binned { .. }), Some(Deleting { .. })) => {
            Some(What::Bin { target, event: BinEvent::Purged })
        }
        // No event: other fields have changed, a change has only begun, or the transition cannot
        // occur.
        (None, None | Some(Pending | Filling | Copying { .. } | Deleting { .. }))
        | (
            Some(
                Pending | Filling | Copying { .. } | Completed { .. } | Error(_) | Deleting { .. },
            ),
            Some(Pending | Filling | Copying { .. } | Deleting { .. }),
        )
        | (Some(Completed { .. } | Deleting { .. }), Some(Completed { .. }))
        | (Some(Error(_)), Some(Error(_)))
        | (Some(Binned { .. }), Some(Pending | Filling | Copying { .. } | Binned { .. })) => None,
    }
}

/// A set of snapshots of one moment that is being made.
#[derive(Debug)]
struct Set {
    started: UnixMs,
    /// The snapshots, and whether each is complete; `None` while its outcome is open.
    all: Vec<(Snapshot, Option<bool>)>,
}

/// The sets that are being made, if they began after the server's start.
#[derive(Debug, Default)]
pub struct Sets(Vec<Set>);

impl Sets {
    /// Records a change that is decided as one: several new snapshots of volumes are a set.
    pub fn begin(&mut self, model: &Model, events: &[Event]) {
        if events.len() < 2 || self.0.len() >= SETS_MAX {
            return;
        }
        let new = events.iter().filter_map(|event| match event {
            Event::Snapshot(it) => Some(it),
            _ => None,
        });
        let new = new.filter(|it| {
            it.phase == SnapshotPhase::Pending
                && it.for_volume.is_none()
                && !model.snapshots.contains_key(&it.id)
        });
        let all: Vec<_> = new.map(|it| (it.clone(), None)).collect();
        if let (2.., Some(started)) = (all.len(), all.first().map(|(it, _)| it.started)) {
            self.0.push(Set { started, all });
        }
    }

    /// Processes an event. Returns the event of a set that ends with it.
    pub fn follow(&mut self, event: &Event) -> Option<What> {
        let (id, outcome) = match event {
            Event::Snapshot(it) => (it.id, outcome(&it.phase)?),
            Event::SnapshotGone(id) => (*id, false),
            _ => return None,
        };
        let is_it = |(it, known): &&mut (Snapshot, Option<bool>)| it.id == id && known.is_none();
        let index = self.0.iter_mut().position(|set| {
            let known = set.all.iter_mut().find(is_it).map(|(_, known)| known);
            known.map(|known| *known = Some(outcome)).is_some()
        })?;
        if self.0.get(index)?.all.iter().any(|(_, known)| known.is_none()) {
            return None;
        }
        let Set { started, all } = self.0.swap_remove(index);
        let each =
            |(it, known): &(Snapshot, Option<bool>)| (it.id, it.volume, *known == Some(true));
        let all: Vec<(SnapshotId, _, bool)> = all.iter().map(each).collect();
        Some(What::Set { all, started })
    }
}

/// Returns whether a snapshot in this phase was made; `None` while the outcome is open.
const fn outcome(phase: &SnapshotPhase) -> Option<bool> {
    match phase {
        SnapshotPhase::Pending | SnapshotPhase::Filling | SnapshotPhase::Copying { .. } => None,
        SnapshotPhase::Completed { .. } | SnapshotPhase::Binned { .. } => Some(true),
        SnapshotPhase::Error(_) | SnapshotPhase::Deleting { .. } => Some(false),
    }
}
