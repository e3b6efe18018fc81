//! A volume's life: applied, reported, removed.

use super::Reactor;
use crate::driver::Driver;
use crate::session::Phase;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::scheduler::VolumeIndex;
use evenkeel_store::Store;
use evenkeel_wire::agent::{HostAddress, VolumeReport, VolumeState};
use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;

/// An open volume.
pub(super) struct Volume {
    pub(super) state: VolumeState,
    pub(super) index: VolumeIndex,
    pub(super) store: Box<dyn Store>,
    /// Quanta the store works on.
    pub(super) in_store: u32,
    /// Connections with a request that did not fit the queue, in the order they came.
    pub(super) waiters: VecDeque<u32>,
    /// Who waits until nothing of the hosts that were detached is in the store.
    applied: Vec<SyncSender<Result<(), String>>>,
    /// Who waits until the volume is closed.
    removed: Vec<SyncSender<bool>>,
}

impl Volume {
    pub(super) fn allows(&self, peer: HostAddress) -> bool {
        self.removed.is_empty() && self.state.hosts.contains(&peer)
    }
}

impl<D: Driver> Reactor<D> {
    pub(super) fn apply(
        &mut self,
        state: VolumeState,
        store: Option<Box<dyn Store>>,
        ack: SyncSender<Result<(), String>>,
    ) {
        let slot = match (self.by_id.get(&state.id), store) {
            (Some(&slot), _) => slot,
            (None, Some(store)) => match self.open(&state, store) {
                Ok(slot) => slot,
                Err(error) => {
                    let _ = ack.send(Err(error));
                    return;
                }
            },
            (None, None) => {
                let _ = ack.send(Err(format!("volume {} is not open here", state.id)));
                return;
            }
        };
        let volume = &mut self.volumes[slot as usize];
        if volume.state.pacing != state.pacing {
            self.scheduler.repace(self.now, volume.index, &state.pacing);
        }
        if volume.state.size != state.size {
            volume.store.resized(state.size);
        }
        volume.state = state;
        volume.applied.push(ack);
        self.dispatch();
        self.disconnect_strangers(slot);
        self.settle(slot);
    }

    fn open(&mut self, state: &VolumeState, store: Box<dyn Store>) -> Result<u32, String> {
        let index = self
            .scheduler
            .add(self.now, &state.pacing, state.balances)
            .map_err(|error| error.to_string())?;
        let slot = self.volumes.insert(Volume {
            state: state.clone(),
            index,
            store,
            in_store: 0,
            waiters: VecDeque::new(),
            applied: Vec::new(),
            removed: Vec::new(),
        }) as u32;
        self.by_id.insert(state.id, slot);
        Ok(slot)
    }

    /// Closes connections of hosts the volume is no longer attached to.
    fn disconnect_strangers(&mut self, slot: u32) {
        let ids: Vec<u32> = self.sessions.iter().map(|(id, _)| id as u32).collect();
        for id in ids {
            if self.is_stranger(id, slot) {
                self.close(id);
            }
        }
    }

    fn is_stranger(&self, id: u32, slot: u32) -> bool {
        let Some(session) = self.sessions.get(id as usize) else { return false };
        matches!(session.phase, Phase::Transmission(of, _) if of == slot)
            && !self.volumes[slot as usize].allows(session.peer)
    }

    /// Answers those who wait for the store to be done with hosts that were detached.
    pub(super) fn settle(&mut self, slot: u32) {
        let Some(volume) = self.volumes.get(slot as usize) else { return };
        if volume.applied.is_empty() && volume.removed.is_empty() {
            return;
        }
        let busy = self.active.iter().any(|(_, active)| {
            active.is_in_store_of(slot) && self.is_stranger(active.session(), slot)
        });
        if busy {
            return;
        }
        for ack in self.volumes[slot as usize].applied.drain(..) {
            let _ = ack.send(Ok(()));
        }
        // A connection's slot refers to the volume until it is free.
        let on_it = |phase: &Phase| matches!(phase, Phase::Transmission(of, _) if *of == slot);
        let connected = self.sessions.iter().any(|(_, session)| on_it(&session.phase));
        if !self.volumes[slot as usize].removed.is_empty() && !connected {
            let volume = self.volumes.remove(slot as usize);
            self.by_id.remove(&volume.state.id);
            drop(self.scheduler.remove(self.now, volume.index));
            drop(volume.store);
            for ack in volume.removed {
                let _ = ack.send(true);
            }
        }
    }

    pub(super) fn remove(&mut self, id: VolumeId, ack: SyncSender<bool>) {
        let Some(&slot) = self.by_id.get(&id) else {
            let _ = ack.send(false);
            return;
        };
        self.volumes[slot as usize].removed.push(ack);
        self.disconnect_strangers(slot);
        self.settle(slot);
    }

    pub(super) fn set_balances(&mut self, id: VolumeId, balances: Balances) -> bool {
        let Some(&slot) = self.by_id.get(&id) else { return false };
        let index = self.volumes[slot as usize].index;
        self.scheduler.set_balances(self.now, index, balances);
        self.dispatch();
        true
    }

    pub(super) fn report(&mut self) -> Vec<VolumeReport> {
        let mut connections = vec![0; self.volumes.capacity()];
        for (_, session) in &self.sessions {
            if let Phase::Transmission(slot, _) = session.phase {
                connections[slot as usize] += 1;
            }
        }
        let mut reports = Vec::with_capacity(self.by_id.len());
        for (&id, &slot) in &self.by_id {
            let volume = &self.volumes[slot as usize];
            let balances = self.scheduler.balances(self.now, volume.index);
            let counters = self.scheduler.counters(volume.index);
            reports.push(VolumeReport {
                id,
                balances,
                connections: connections[slot as usize],
                queued: counters.queued_requests + volume.in_store,
                operations: counters.operations,
                bytes_read: counters.bytes_read,
                bytes_written: counters.bytes_written,
            });
        }
        reports
    }
}
