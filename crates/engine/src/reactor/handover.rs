//! Volumes that are given up, so that another data plane can serve them.
//!
//! A client without an answer repeats its request at the volume's next home. A client with an error
//! reports it to the user of its disk. So requests that were not begun get no reply, and requests
//! in the store are completed and answered before the connection is closed. A client that was lent
//! is not disconnected: it returns to its lender, with all requests that were not begun.

use super::Reactor;
use super::volumes::Farewell;
use crate::driver::Driver;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::time::{Duration, Instant};
use evenkeel_wire::agent::CreditReport;
use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;

/// How long clients may take to fetch their last replies: one that does not must not keep the
/// volume from all others.
const FETCH_MAX: Duration = Duration::from_secs(1);

/// A volume that is given up and still has connections.
pub(super) struct Handover {
    id: VolumeId,
    slot: u32,
    /// When its connections are closed, whatever they have not fetched. Known once its store is
    /// done.
    by: Option<Instant>,
}

impl<D: Driver> Reactor<D> {
    /// Begins no request of a volume any more, and gives it up when what has begun is answered.
    pub(super) fn give_up(&mut self, id: VolumeId, ack: SyncSender<Option<CreditReport>>) {
        let Some(&slot) = self.by_id.get(&id) else {
            // Whoever asked may have given up; that is no concern of ours.
            let _ = ack.send(None);
            return;
        };
        self.volumes[slot as usize].leaving.push(Farewell::GivenUp(ack));
        self.handovers.push(Handover { id, slot, by: None });
        let is_bound = |id: &u32| self.sessions[*id as usize].protocol.is_bound_to(slot);
        let ids = self.sessions.iter().map(|(id, _)| id as u32);
        let ids: Vec<u32> = ids.filter(is_bound).collect();
        // All of them before the first is cancelled: what one leaves is not for another to use.
        ids.iter().for_each(|id| self.sessions[*id as usize].begin_to_hand_over());
        ids.into_iter().for_each(|id| self.hand_over(id));
        self.settle(slot);
    }

    /// Has a connection end with the replies to what has begun.
    pub(super) fn hand_over(&mut self, id: u32) {
        // The end of one may be the end of another.
        let Some(session) = self.sessions.get(id as usize) else { return };
        if session.transport.is_receiving_payload() {
            self.driver.cancel_receive(id);
        }
        self.abandon_payload(id);
        self.cancel_of(id);
        self.sends(id);
        self.try_free(id);
    }

    /// Closes connections of volumes that are given up whose clients do not fetch their replies.
    pub(super) fn end_handovers(&mut self) {
        for at in (0..self.handovers.len()).rev() {
            let Handover { id, slot, by } = self.handovers[at];
            let is_here = self.by_id.get(&id) == Some(&slot);
            if !is_here || !self.volumes[slot as usize].is_leaving() {
                self.handovers.swap_remove(at);
                continue;
            }
            let is_due = by.is_some_and(|by| self.now >= by);
            if is_due {
                self.disconnect_strangers(slot);
            }
            // Also after that: connections are freed when the driver lets go.
            let store_is_done = self.volumes.get(slot as usize).is_some_and(|it| it.in_store == 0);
            if store_is_done && (is_due || by.is_none()) {
                self.handovers[at].by = Some(self.now + FETCH_MAX);
            }
        }
    }

    /// When the first of them has to be looked at.
    pub(super) fn handovers_by(&self) -> Option<Instant> {
        self.handovers.iter().filter_map(|handover| handover.by).min()
    }

    /// What a volume and its hosts with limits have left.
    pub(super) fn last_credits(&mut self, slot: u32) -> CreditReport {
        let volume = &self.volumes[slot as usize];
        let (id, index) = (volume.state.id, volume.index);
        let hosts: BTreeSet<InstanceId> = volume.state.attachments.iter().map(|a| a.host).collect();
        let volumes = vec![(id, self.scheduler.balances(self.now, index))];
        let hosts = hosts.into_iter().filter_map(|host| self.host_report(host));
        let hosts = hosts.map(|host| (host.id, host.balances)).collect();
        CreditReport { volumes, hosts }
    }
}
