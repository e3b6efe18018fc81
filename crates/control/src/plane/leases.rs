//! Leases of credits: how much of each balance the data plane may spend without asking.
//!
//! The journal has the *unleased* part of each balance, which is never more than the credits left.
//! A renewal gets the reported balances. To lease less, it changes the data plane first and the
//! journal second; to lease more, the journal first. It fails if either fails. The next tick then
//! requests all balances.

use std::sync::MutexGuard;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_wire::agent::{Command as AgentCommand, CreditReport, Reply, Report};
use tracing::{info, warn};

use super::calls::unexpected;
use super::writer::Writer;
use super::{Plane, PlaneError};
use crate::journal::{Credits, Revision};
use crate::key_locks::Key;
use crate::{credits, reconcile};

/// State that is accessible only under the leases lock.
#[derive(Default)]
pub(super) struct Leases {
    /// Whether the last renewal failed. The failure is logged once, not every second, and the next
    /// renewal requests all balances again.
    pub(super) behind: bool,
}

impl Plane {
    /// Sets credit balances in the data plane and stores them.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn set_balances(&self, id: VolumeId, balances: Balances) -> Result<(), PlaneError> {
        let _keys = self.lock_keys(vec![Key::Volume(id)])?;
        let _leases = self.leases()?;
        let pacing = reconcile::pacing(&self.settings, self.model().volume(id)?);
        let row_of_it = self.lower(id, &pacing, balances)?;
        self.call(AgentCommand::SetBalances(id, balances)).map_err(PlaneError::Agent)?;
        // If the balance was higher before, all credits left may be unleased.
        self.lease(&row_of_it)?;
        let began = self.writer()?.revision;
        let report = self.report()?;
        self.renew(credits_of(report), began)
    }

    /// Commits, before `balances` are set, a row that is a lower bound before and after. Returns
    /// that row.
    fn lower(
        &self,
        id: VolumeId,
        pacing: &Pacing,
        balances: Balances,
    ) -> Result<Credits, PlaneError> {
        let mut writer = self.writer()?;
        let before = writer.stored.volume(id);
        let after = credits::unleased(pacing, balances);
        let least = |set: Option<u64>, before: Option<u64>, after: Option<u64>| match set {
            Some(_) => before.min(after),
            None => before,
        };
        let row = Balances {
            operations: least(balances.operations, before.operations, after.operations),
            bytes: least(balances.bytes, before.bytes, after.bytes),
        };
        let row_of_it = Credits { volumes: [(id, row)].into(), ..Default::default() };
        if row != before {
            self.commit(&mut writer, vec![], &row_of_it)?;
        }
        Ok(row_of_it)
    }

    /// Reads how much may be sold now and renews the leases of credits. Touches no stored bytes,
    /// so a slow device does not delay it.
    pub fn renew_leases(&self) {
        self.capacity();
        let Ok(mut leases) = self.leases() else { return };
        let was_behind = leases.behind;
        match self.renew_moved(&mut leases) {
            Ok(()) if was_behind => info!("credits are being leased again"),
            Err(error) if !was_behind => {
                warn!(%error, "credits are not being leased: bursts end when the leases do");
            }
            _ => {}
        }
    }

    /// Renews the leases of the balances that moved, or of all balances if the last renewal
    /// failed.
    pub(super) fn renew_moved(&self, leases: &mut Leases) -> Result<(), PlaneError> {
        let was_behind = std::mem::replace(&mut leases.behind, true);
        let began = self.writer()?.revision;
        let reported = if was_behind {
            credits_of(self.report()?)
        } else {
            match self.agent.call(AgentCommand::Balances) {
                Reply::Balances(reported) => reported,
                Reply::Failed(failed) => return Err(PlaneError::Agent(failed)),
                _ => {
                    return Err(PlaneError::Agent(unexpected(
                        "Balances was answered with something else",
                    )));
                }
            }
        };
        self.vitals.answered();
        self.renew(reported, began)?;
        if was_behind {
            // The data plane may hold smaller leases than the journal allows: raise them.
            let stored = self.writer()?.stored.clone();
            self.lease(&stored)?;
        }
        leases.behind = false;
        Ok(())
    }

    /// Renews leases by balances that were reported after the revision `began`. To lease less, it
    /// changes the data plane first, then the journal; to lease more, the journal first. So the
    /// journal never holds more than there is. The caller holds the leases lock.
    fn renew(&self, reported: CreditReport, began: Revision) -> Result<(), PlaneError> {
        let Renewal { mut rows, less, mut more } = self.renewal(&*self.writer()?, reported);
        if rows.is_empty() {
            return Ok(());
        }
        if !less.is_empty() {
            let confirmed = self.lease(&less)?;
            // A volume or host that the data plane does not confirm keeps its row.
            let is_confirmed = |id: &VolumeId| {
                !less.volumes.contains_key(id) || confirmed.volumes.contains_key(id)
            };
            rows.volumes.retain(|id, _| is_confirmed(id));
            rows.hosts
                .retain(|id, _| !less.hosts.contains_key(id) || confirmed.hosts.contains_key(id));
            overlay(&mut rows, &confirmed);
        }
        {
            let mut writer = self.writer()?;
            let Writer { stored, born, .. } = &*writer;
            rows.volumes.retain(|id, _| {
                stored.volumes.contains_key(id) && born.get(id).is_none_or(|born| *born <= began)
            });
            rows.hosts.retain(|id, _| stored.hosts.contains_key(id));
            if !rows.is_empty() {
                self.commit(&mut writer, vec![], &rows)?;
            }
        }
        more.volumes.retain(|id, _| rows.volumes.contains_key(id));
        more.hosts.retain(|id, _| rows.hosts.contains_key(id));
        if !more.is_empty() {
            self.lease(&more)?;
        }
        Ok(())
    }

    /// Compares reported balances with the stored rows.
    fn renewal(&self, writer: &Writer, reported: CreditReport) -> Renewal {
        let model = self.model();
        let mut renewal = Renewal::default();
        for (id, balances) in reported.volumes {
            if let Some(volume) = model.volumes.get(&id)
                && let Some(&before) = writer.stored.volumes.get(&id)
            {
                let pacing = reconcile::pacing(&self.settings, volume);
                let RowRenewal { row, less, more } = renewed(&pacing, before, balances);
                renewal.rows.volumes.extend(row.map(|row| (id, row)));
                renewal.less.volumes.extend(less.map(|less| (id, less)));
                renewal.more.volumes.extend(more.map(|more| (id, more)));
            }
        }
        for (id, balances) in reported.hosts {
            if let Some(host) = model.hosts.get(&id)
                && let Some(pacing) = reconcile::host_pacing(host)
                && let Some(&before) = writer.stored.hosts.get(&id)
            {
                let RowRenewal { row, less, more } = renewed(&pacing.as_volume(), before, balances);
                renewal.rows.hosts.extend(row.map(|row| (id, row)));
                renewal.less.hosts.extend(less.map(|less| (id, less)));
                renewal.more.hosts.extend(more.map(|more| (id, more)));
            }
        }
        renewal
    }

    /// Sends the unleased amounts to the data plane. Returns those that it confirms.
    fn lease(&self, unleased: &Credits) -> Result<Credits, PlaneError> {
        let volumes = unleased.volumes.iter().map(|(id, balances)| (*id, *balances)).collect();
        let hosts = unleased.hosts.iter().map(|(id, balances)| (*id, *balances)).collect();
        match self.agent.call(AgentCommand::Lease(CreditReport { volumes, hosts })) {
            Reply::Balances(CreditReport { volumes, hosts }) => Ok(Credits {
                volumes: volumes.into_iter().collect(),
                hosts: hosts.into_iter().collect(),
            }),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Lease was answered with something else"))),
        }
    }

    pub(super) fn leases(&self) -> Result<MutexGuard<'_, Leases>, PlaneError> {
        self.leases.lock().map_err(|_| PlaneError::Poisoned)
    }
}

/// Returns the balances in a report.
pub(super) fn credits_of(report: Report) -> CreditReport {
    CreditReport {
        volumes: report.volumes.iter().map(|report| (report.id, report.balances)).collect(),
        hosts: report.hosts.iter().map(|report| (report.id, report.balances)).collect(),
    }
}

/// Replaces the amounts in `rows` with those that `others` has for the same volume or host.
fn overlay(rows: &mut Credits, others: &Credits) {
    let overlay = |over: &Balances, row: &mut Balances| {
        row.operations = over.operations.or(row.operations);
        row.bytes = over.bytes.or(row.bytes);
    };
    for (id, over) in &others.volumes {
        if let Some(row) = rows.volumes.get_mut(id) {
            overlay(over, row);
        }
    }
    for (id, over) in &others.hosts {
        if let Some(row) = rows.hosts.get_mut(id) {
            overlay(over, row);
        }
    }
}

/// The leases to renew.
#[derive(Default)]
struct Renewal {
    /// All rows that change, with their new values.
    rows: Credits,
    /// The parts of `rows` whose unleased amount rises, so that less is leased.
    less: Credits,
    /// The parts of `rows` whose unleased amount falls, so that more is leased.
    more: Credits,
}

/// The change of one row, if any; see [`Renewal`] for the meaning of the fields.
struct RowRenewal {
    row: Option<Balances>,
    less: Option<Balances>,
    more: Option<Balances>,
}

/// Computes the new unleased amounts of `balances` where the journal has `before`.
fn renewed(pacing: &Pacing, before: Balances, balances: Balances) -> RowRenewal {
    let row = credits::renewed(pacing, before, balances);
    let part = |is: fn(u64, u64) -> bool| {
        let one =
            |row: Option<u64>, before: Option<u64>| row.filter(|row| is(*row, before.unwrap_or(0)));
        let operations = one(row.operations, before.operations);
        let part = Balances { operations, bytes: one(row.bytes, before.bytes) };
        (part != Balances::default()).then_some(part)
    };
    RowRenewal {
        row: (row != before).then_some(row),
        less: part(|row, before| row > before),
        more: part(|row, before| row < before),
    }
}
