//! Volumes that are given up, so that another data plane can serve them.
//!
//! A client without an answer repeats its request at the volume's next home. A client with an error
//! reports it to the user of its disk. So requests that were not begun get no reply, and requests
//! in the store are completed and answered before the connection is closed. A client that was lent
//! is not disconnected: it returns to its lender, with all requests that were not begun.

use super::Reactor;
use super::volumes::Farewell;
use crate::driver::Driver;
use crate::table::{SessionId, VolumeSlot};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::time::{Duration, Instant};
use evenkeel_wire::agent::CreditReport;
use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;

/// Time limit for clients to fetch their last replies: a slow client must not keep the volume from
/// all others.
const FETCH_MAX: Duration = Duration::from_secs(1);

/// A volume that is given up and still has connections.
pub(super) struct Handover {
    id: VolumeId,
    slot: VolumeSlot,
    /// Time at which its connections are closed, even with unfetched replies. Known once its store
    /// has no request.
    by: Option<Instant>,
}

impl<D: Driver> Reactor<D> {
    /// Stops beginning requests of a volume, and gives it up when the requests in progress are
    /// answered.
    pub(super) fn give_up(&mut self, id: VolumeId, ack: SyncSender<Option<CreditReport>>) {
        let Some(&slot) = self.by_id.get(&id) else {
            // The receiver may have given up waiting; that is no error.
            let _ = ack.send(None);
            return;
        };
        self.volumes[slot].leaving.push(Farewell::GivenUp(ack));
        self.handovers.push(Handover { id, slot, by: None });
        let is_bound = |id: &SessionId| self.sessions[*id].protocol.is_bound_to(slot);
        let ids = self.sessions.iter().map(|(id, _)| id);
        let ids: Vec<SessionId> = ids.filter(is_bound).collect();
        // All connections are marked before a request is cancelled, so that none uses tokens or
        // room that another one leaves.
        ids.iter().for_each(|id| self.sessions[*id].begin_to_hand_over());
        ids.into_iter().for_each(|id| self.hand_over(id));
        self.settle(slot);
    }

    /// Cancels a connection's waiting requests, and ends it after the replies to those in the
    /// store.
    pub(super) fn hand_over(&mut self, id: SessionId) {
        // Handing over one connection may have freed another.
        let Some(session) = self.sessions.get(id) else { return };
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
            if !is_here || !self.volumes[slot].is_leaving() {
                self.handovers.swap_remove(at);
                continue;
            }
            let is_due = by.is_some_and(|by| self.now >= by);
            if is_due {
                self.disconnect_strangers(slot);
            }
            // Repeated after that: connections are freed when the driver lets go of them.
            let store_is_done = self.volumes.get(slot).is_some_and(|volume| volume.in_store == 0);
            if store_is_done && (is_due || by.is_none()) {
                self.handovers[at].by = Some(self.now + FETCH_MAX);
            }
        }
    }

    /// Returns when the first handover is due.
    pub(super) fn handovers_by(&self) -> Option<Instant> {
        self.handovers.iter().filter_map(|handover| handover.by).min()
    }

    /// Returns the remaining credits of a volume and its hosts with limits.
    pub(super) fn last_credits(&mut self, slot: VolumeSlot) -> CreditReport {
        let volume = &self.volumes[slot];
        let id = volume.state.id;
        let index = volume.index;
        let hosts: BTreeSet<InstanceId> = volume.state.attachments.iter().map(|a| a.host).collect();
        let volumes = vec![(id, self.scheduler.balances(self.now, index))];
        let hosts = hosts.into_iter().filter_map(|host| self.host_report(host));
        let hosts = hosts.map(|host| (host.id, host.balances)).collect();
        CreditReport { volumes, hosts }
    }
}
