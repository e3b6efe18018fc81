//! Sums over a fleet.

use super::{Action, Class, Finding, Judged, Risk, signed};

/// A sum over some volumes, in millionths of a currency a month.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sum {
    /// The number of volumes.
    pub volumes: u64,
    /// The number of those that are to be changed or deleted.
    pub changes: u64,
    /// Their cost.
    pub before: u64,
    /// Their cost after all actions.
    pub after: u64,
    /// Their provisioned IOPS, as far as they are known to be used or not.
    pub iops: u64,
    /// Provisioned IOPS that were never used.
    pub never_used_iops: u64,
    /// Their provisioned MiB/s.
    pub mibps: u64,
    /// Provisioned MiB/s that were never used.
    pub never_used_mibps: u64,
}

impl Sum {
    /// Adds a volume.
    pub fn add(&mut self, judged: &Judged) {
        self.volumes += 1;
        self.changes += u64::from(judged.action != Action::Keep);
        self.before = self.before.saturating_add(judged.before);
        self.after = self.after.saturating_add(judged.after);
        if let Some(never_used) = judged.never_used_iops {
            self.iops += u64::from(judged.present.iops.unwrap_or(0));
            self.never_used_iops += u64::from(never_used);
        }
        if let Some(never_used) = judged.never_used_mibps {
            self.mibps += u64::from(judged.present.throughput_mibps.unwrap_or(0));
            self.never_used_mibps += u64::from(never_used);
        }
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        self.volumes += other.volumes;
        self.changes += other.changes;
        self.before = self.before.saturating_add(other.before);
        self.after = self.after.saturating_add(other.after);
        self.iops += other.iops;
        self.never_used_iops += other.never_used_iops;
        self.mibps += other.mibps;
        self.never_used_mibps += other.never_used_mibps;
    }

    /// Returns the saving of all actions; negative if they cost.
    #[must_use]
    pub fn saving(&self) -> i64 {
        signed(self.before).saturating_sub(signed(self.after))
    }
}

/// Sums over a fleet.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Over all.
    pub all: Sum,
    /// By finding, in the order of [`Finding::ALL`].
    pub by_finding: [Sum; Finding::ALL.len()],
    /// Of those that are to be changed or deleted, in the order of [`Class::ALL`].
    pub by_class: [Sum; Class::ALL.len()],
    /// Of those that are to be changed or deleted, in the order of [`Risk::ALL`].
    pub by_risk: [Sum; Risk::ALL.len()],
    /// GiB of the volumes that are to be deleted: the most that their snapshots have.
    pub deleted_gib: u64,
}

impl Sum {
    /// Adds up these volumes.
    #[must_use]
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Judged>) -> Self {
        let mut sum = Self::default();
        all.into_iter().for_each(|judged| sum.add(judged));
        sum
    }
}

impl Totals {
    /// Adds up these volumes.
    #[must_use]
    pub fn of<'a>(all: impl IntoIterator<Item = &'a Judged>) -> Self {
        let mut totals = Self::default();
        all.into_iter().for_each(|judged| totals.add(judged));
        totals
    }

    /// Adds a volume.
    pub fn add(&mut self, judged: &Judged) {
        self.all.add(judged);
        let class = judged.class();
        let class = Class::ALL.iter().position(|each| Some(*each) == class);
        let finding = Finding::ALL.iter().position(|each| *each == judged.finding());
        let risk = Risk::ALL.iter().position(|each| *each == judged.risk);
        let has_action = judged.action != Action::Keep;
        let rows = [
            class.and_then(|place| self.by_class.get_mut(place)),
            finding.and_then(|place| self.by_finding.get_mut(place)),
            risk.filter(|_| has_action).and_then(|place| self.by_risk.get_mut(place)),
        ];
        rows.into_iter().flatten().for_each(|sum| sum.add(judged));
        if judged.action == Action::Delete {
            self.deleted_gib += u64::from(judged.present.size_gib);
        }
    }
}
