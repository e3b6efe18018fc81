//! Changes since the first copy, snapshot after snapshot.

use super::copy::Copied;
use super::state::{self, Base};
use super::units::UnitSet;
use super::{Migration, ROUNDS_MAX};
use crate::export::UNIT_BYTES;
use crate::output::Failure;
use crate::snapshots::Snapshot;

/// Maximum number of snapshots in a tag, whose value has 256 characters.
const LIST_MAX: usize = 11;

/// The snapshot at the target with the changes.
struct Changes {
    id: String,
    size_gib: u64,
    /// The snapshots at the source whose differences it has; the first is that of the first copy.
    list: Vec<String>,
    /// The units that were put into it.
    units: UnitSet,
}

/// The rounds so far.
pub struct Rounds {
    /// The newest snapshot at the source that is copied.
    pub last: String,
    changes: Option<Changes>,
}

impl Migration<'_> {
    /// Returns the rounds of an earlier run, if they can be continued. Others are deleted, and so
    /// are snapshots at the source that are not needed.
    pub(super) fn rounds(&mut self, base: &Base) -> Result<Rounds, Failure> {
        let target = self.copier.target;
        let mut rounds = Rounds { last: base.of.clone(), changes: None };
        for snapshot in state::snapshots(target, state::OF, &self.id)? {
            let Some(list) = snapshot.tags.get(state::CHANGES) else { continue };
            let list: Vec<String> = list.split(' ').map(str::to_owned).collect();
            if rounds.changes.is_none() && self.can_go_on(&snapshot, &list, base)? {
                rounds = self.continued(&snapshot, list)?;
            } else {
                state::delete(target, state::SNAPSHOT, &snapshot.snapshot_id)?;
            }
        }
        let list = rounds.changes.iter().flat_map(|changes| &changes.list);
        let kept: Vec<&String> = list.chain([&base.of]).collect();
        self.remove_snapshots(&kept)?;
        Ok(rounds)
    }

    /// Returns whether changes may be added to those of an earlier run.
    fn can_go_on(
        &self,
        snapshot: &Snapshot,
        list: &[String],
        base: &Base,
    ) -> Result<bool, Failure> {
        let more = ROUNDS_MAX as usize + 1;
        let begins = list.first() == Some(&base.of) && list.len() >= 2;
        if snapshot.state != "pending" || !begins || list.len() + more > LIST_MAX {
            return Ok(false);
        }
        Ok(list.iter().all(|id| self.copier.source.has_snapshot(id)))
    }

    /// Continues with the changes of an earlier run. Whether their last round was copied completely
    /// is not known, so it is copied again.
    fn continued(&mut self, snapshot: &Snapshot, list: Vec<String>) -> Result<Rounds, Failure> {
        let mut units = UnitSet::default();
        for pair in list[..list.len() - 1].windows(2) {
            self.copier.changed(&pair[1], &pair[0])?.iter().for_each(|unit| units.insert(unit));
        }
        let [.., before, last] = list.as_slice() else {
            return Err(Failure::new(format!("{}: its tag is wrong", snapshot.snapshot_id)));
        };
        let before = before.clone();
        let last = last.clone();
        let id = snapshot.snapshot_id.clone();
        let size_gib = snapshot.size_gib;
        let mut changes = Changes { id, size_gib, list, units };
        self.copy_changes(&mut changes, &before, &last)?;
        Ok(Rounds { last, changes: Some(changes) })
    }

    /// Copies the changes since the last round. Returns the number of units.
    pub(super) fn round(&mut self, base: &Base, rounds: &mut Rounds) -> Result<u64, Failure> {
        let new = self.snapshot()?;
        let id = new.snapshot_id.clone();
        if rounds.changes.as_ref().is_some_and(|changes| changes.size_gib < new.size_gib) {
            // The volume has grown. All changes since the first copy are copied into a larger
            // snapshot.
            if let Some(small) = rounds.changes.take() {
                state::delete(self.copier.target, state::SNAPSHOT, &small.id)?;
            }
            rounds.last.clone_from(&base.of);
        }
        // While there is no snapshot of changes, there may be no change since the first copy.
        // Later, this check would only cost one more list.
        if rounds.changes.is_none() && !self.copier.differs(&id, &rounds.last)? {
            state::delete(self.copier.source, state::SNAPSHOT, &id)?;
            return Ok(0);
        }
        let mut changes = match rounds.changes.take() {
            Some(mut changes) => {
                // Recorded before any unit is put, so that the next run knows of every unit.
                changes.list.push(id.clone());
                let tag = (state::CHANGES.to_owned(), changes.list.join(" "));
                state::set_tags(self.copier.target, &changes.id, &[tag])?;
                changes
            }
            None => self.new_changes(base, &new)?,
        };
        let put = self.copy_changes(&mut changes, &rounds.last, &id)?;
        *rounds = Rounds { last: id, changes: Some(changes) };
        Ok(put)
    }

    fn new_changes(&self, base: &Base, new: &Snapshot) -> Result<Changes, Failure> {
        let list = vec![base.of.clone(), new.snapshot_id.clone()];
        let token = format!("migrate-{}-{}", base.of, new.snapshot_id);
        let tag = (state::CHANGES, list.join(" "));
        let id = self.start(new.size_gib, Some(&base.id), tag, &token)?;
        Ok(Changes { id, size_gib: new.size_gib, list, units: UnitSet::default() })
    }

    fn copy_changes(
        &mut self,
        changes: &mut Changes,
        before: &str,
        last: &str,
    ) -> Result<u64, Failure> {
        let Changes { id, size_gib, units, .. } = changes;
        let copied = Copied { from: last, older: Some(before), into: id, size_gib: *size_gib };
        let mut put = 0;
        self.copier.copy(&copied, 0, |segment| {
            segment.units.iter().for_each(|unit| units.insert(*unit));
            put += segment.put;
            Ok(())
        })?;
        self.told.rounds += u32::from(put > 0);
        self.told.copied_bytes += put * UNIT_BYTES;
        Ok(put)
    }

    /// Completes and compares the copied rounds. Returns the snapshot at the target that equals the
    /// newest one at the source.
    pub(super) fn complete(&mut self, base: &Base, rounds: &Rounds) -> Result<String, Failure> {
        let Some(Changes { id, units, .. }) = &rounds.changes else { return Ok(base.id.clone()) };
        self.complete_at_target(id, units.count())?;
        // All that differs from the first copy must have been in one of the rounds.
        let changed = self.copier.changed(&rounds.last, &base.of)?;
        if let Some(unit) = changed.iter().find(|unit| !units.contains(*unit)) {
            let last = &rounds.last;
            let message =
                format!("unit {unit} of {last} differs from {}, and was in no round", base.of);
            return Err(self.damaged(Failure::new(message), id));
        }
        let compared = self.copier.compare_set(&rounds.last, id, units);
        compared.map_err(|failure| self.damaged(failure, id))?;
        self.told.compared_units += units.count();
        Ok(id.clone())
    }
}
