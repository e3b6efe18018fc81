//! A volume's life: applied, reported, removed or moved to another core.

use super::contract::Judged;
use super::discard::Clears;
use super::errors::Errors;
use super::former::Former;
use super::memory::Share;
use super::moves::Newcomers;
use super::sharing::Lines;
use super::watch::Changes;
use super::{Reactor, note};
use crate::driver::Driver;
use crate::peer::Peer;
use crate::session::Connection;
use crate::table::{SessionId, VolumeSlot};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::scheduler::{Exported, VolumeIndex};
use evenkeel_core::qos::trace::Call;
use evenkeel_store::Store;
use evenkeel_store::disk::Disk;
use evenkeel_store::unaligned::Anywhere;
use evenkeel_wire::agent::{Answered, Attachment, CreditReport, Report, VolumeReport, VolumeState};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::mpsc::SyncSender;

/// An open volume.
pub(super) struct Volume {
    pub(super) state: VolumeState,
    pub(super) index: VolumeIndex,
    pub(super) store: Box<dyn Store>,
    pub(super) lines: Lines,
    /// Where its requests spent their time; present after the first one.
    pub(super) latencies: Option<Box<Latencies>>,
    /// Quanta in the store.
    pub(super) in_store: u32,
    /// Whether the completions of its store are held back.
    pub(super) is_held: bool,
    /// Quanta in the store that change its file.
    pub(super) changes: Changes,
    /// Flushes that the store has got. The scheduler does not count them: they cost no IOPS.
    pub(super) flushes: u64,
    /// Failures of its requests.
    pub(super) errors: Errors,
    /// Whether it is in the list of volumes whose balances may change.
    dirty: bool,
    pub(super) judged: Judged,
    /// Connections with a request that did not fit in the queue, in order of arrival.
    pub(super) waiters: VecDeque<SessionId>,
    /// Payload memory that it holds, and its requests that wait for some.
    pub(super) share: Share,
    /// Its operations that clear a range and wait.
    pub(super) clears: Clears,
    /// Changes of connections that have ended, in its store.
    pub(super) former: Former,
    /// Callers that wait until the store has no request of hosts that were detached.
    applied: Vec<SyncSender<Result<(), String>>>,
    /// Callers that wait until the volume is closed.
    pub(super) leaving: Vec<Farewell>,
    /// The store is closing; the volume is dropped when it is idle.
    is_closing: bool,
    /// The volume is about to go to another core: it takes no more requests.
    pub(super) departs: bool,
}

/// Volumes whose latencies are copied in one turn: 10 KiB each, some 100 us together.
pub const PAGE_LATENCIES_MAX: usize = 32;
/// Volumes that are examined in one turn. Most of them may have had no request.
const PAGE_VOLUMES_MAX: usize = 1_024;

/// Latencies of some volumes.
#[derive(Debug, Default)]
pub struct LatencyPage {
    /// Volumes that have had requests, in the order of ids.
    pub found: Vec<(VolumeId, Box<Latencies>)>,
    /// The volume after which to continue; `None` if there are no more.
    pub last: Option<VolumeId>,
}

/// A caller that waits until a volume has left this core, and the reason why it leaves.
pub(super) enum Farewell {
    Removed(SyncSender<bool>),
    Moved(SyncSender<Option<Box<Released>>>),
    GivenUp(SyncSender<Option<CreditReport>>),
}

/// A volume between two cores. Neither the store nor a connection has a request of it in flight.
pub struct Released {
    pub(super) state: VolumeState,
    /// Connections that move with it, all quiet.
    pub(super) connections: Vec<Connection>,
    store: Box<dyn Store>,
    exported: Exported,
    latencies: Option<Box<Latencies>>,
    flushes: u64,
    errors: Errors,
    contract: Contract,
}

impl Released {
    /// Closes the volume's store, and opens it anew. If that fails, the volume is lost.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn reopen<E>(
        self: Box<Self>,
        open: impl FnOnce() -> Result<Box<dyn Store>, E>,
    ) -> Result<Box<Self>, E> {
        let Self { store, .. } = *self;
        drop(store);
        let store = Box::new(Anywhere::new(open()?));
        Ok(Box::new(Self { store, ..*self }))
    }
}

impl Volume {
    pub(super) fn allows(&self, peer: Peer) -> bool {
        let from_there = |attachment: &Attachment| peer.has(attachment);
        self.leaving.is_empty() && self.state.attachments.iter().any(from_there)
    }

    /// Returns whether the volume is being closed.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Closes the volume's store if it has no request.
    fn close_when_unused(&mut self, disk: &mut dyn Disk) {
        if self.in_store == 0 && !std::mem::replace(&mut self.is_closing, true) {
            self.store.close(disk);
        }
    }
}

impl<D: Driver> Reactor<D> {
    pub(super) fn apply(
        &mut self,
        state: VolumeState,
        store: Option<Box<dyn Store>>,
        ack: SyncSender<Result<(), String>>,
    ) {
        let coming = Newcomers::one(&state, false);
        // Checked before any change: a refusal leaves the volume as it was.
        let slot = self.has_room(&coming).and_then(|()| match (self.by_id.get(&state.id), store) {
            (Some(&slot), _) => Ok(slot),
            (None, Some(store)) => self.open(&state, store),
            (None, None) => Err(format!("volume {} is not open here", state.id)),
        });
        self.apply_state(slot, state, ack);
    }

    /// Takes a volume over from another core, with the exact levels of its limiters.
    pub(super) fn adopt(
        &mut self,
        state: VolumeState,
        released: Box<Released>,
        ack: SyncSender<Result<(), String>>,
    ) {
        let coming = Newcomers::one(&state, true);
        let slot = self
            .has_room(&coming)
            .and_then(|()| self.take_in(released).map_err(|(_, error)| error));
        self.apply_state(slot, state, ack);
    }

    /// Adds a volume with the state that it had on another core. If the scheduler refuses it,
    /// nothing changes and the volume is returned with the reason.
    pub(super) fn take_in(
        &mut self,
        mut released: Box<Released>,
    ) -> Result<VolumeSlot, (Box<Released>, String)> {
        let pacing = &released.state.pacing;
        match self.scheduler.import(self.now, released.exported, pacing, (None, None)) {
            Ok(index) => {
                note(&mut self.trace, self.now, Call::Other("import"));
                note(&mut self.trace, self.now, Call::Name(index, released.state.id));
                let slot = self.keep(&released.state, released.store, index);
                let volume = &mut self.volumes[slot];
                (volume.latencies, volume.flushes) = (released.latencies, released.flushes);
                volume.errors = released.errors;
                self.judge_from_now_on(slot, released.contract);
                Ok(slot)
            }
            Err((exported, error)) => {
                released.exported = exported;
                Err((released, error.to_string()))
            }
        }
    }

    fn apply_state(
        &mut self,
        slot: Result<VolumeSlot, String>,
        state: VolumeState,
        ack: SyncSender<Result<(), String>>,
    ) {
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => {
                // The receiver may have given up waiting; that is no error, here and below.
                let _ = ack.send(Err(error));
                return;
            }
        };
        if !self.volumes[slot].leaving.is_empty() {
            let _ = ack.send(Err(format!("volume {} is being closed: try again", state.id)));
            return;
        }
        let volume = &mut self.volumes[slot];
        if volume.state.pacing != state.pacing {
            self.scheduler.set_limits(self.now, volume.index, &state.pacing);
            let call = Call::SetLimits(volume.index, Box::new(state.pacing));
            note(&mut self.trace, self.now, call);
            // Requests that may start with the new limits start before any is cancelled.
            self.dispatch();
        }
        let volume = &mut self.volumes[slot];
        if volume.state.size != state.size {
            volume.store.resized(state.size);
        }
        if volume.state.attachments.is_empty() && !state.attachments.is_empty() {
            volume.errors.begin_anew(state.id, &self.flush_marks);
        }
        volume.state = state;
        self.mark_balances_dirty(slot);
        self.disconnect_strangers(slot);
        match self.line_up(slot) {
            Ok(()) => self.volumes[slot].applied.push(ack),
            Err(error) => _ = ack.send(Err(error)),
        }
        self.dispatch();
        self.settle(slot);
    }

    fn open(&mut self, state: &VolumeState, store: Box<dyn Store>) -> Result<VolumeSlot, String> {
        let added = self.scheduler.add(self.now, &state.pacing, state.balances);
        let index = added.map_err(|error| error.to_string())?;
        self.scheduler.lease(self.now, index, state.unleased);
        let with = Box::new((state.pacing, state.balances));
        note(&mut self.trace, self.now, Call::Add(index, with));
        note(&mut self.trace, self.now, Call::Name(index, state.id));
        // Not all clients align their requests to blocks.
        Ok(self.keep(state, Box::new(Anywhere::new(store)), index))
    }

    fn keep(
        &mut self,
        state: &VolumeState,
        store: Box<dyn Store>,
        index: VolumeIndex,
    ) -> VolumeSlot {
        let slot = self.volumes.insert(Volume {
            state: state.clone(),
            index,
            store,
            lines: Lines::default(),
            latencies: None,
            in_store: 0,
            is_held: false,
            changes: Changes::default(),
            flushes: 0,
            errors: Errors::of(state.id, &self.flush_marks),
            dirty: true,
            judged: Judged::default(),
            waiters: VecDeque::new(),
            share: Share::default(),
            clears: Clears::default(),
            former: Former::default(),
            applied: Vec::new(),
            leaving: Vec::new(),
            is_closing: false,
            departs: false,
        });
        self.by_id.insert(state.id, slot);
        self.dirty.push(slot);
        self.second.make_room(self.volumes.len());
        // A request of its pool may have waited until the volume is here.
        self.volumes[slot].store.attend(&mut self.driver.disk(slot));
        slot
    }

    /// Has a volume's store attend to its pool's requests. A store that is being closed does so
    /// when it is opened the next time. Returns whether the volume is here and open.
    pub(super) fn attend(&mut self, id: VolumeId) -> bool {
        let Some(&slot) = self.by_id.get(&id) else { return false };
        let volume = &self.volumes[slot];
        if volume.is_leaving() || volume.is_closing {
            return false;
        }
        self.volumes[slot].store.attend(&mut self.driver.disk(slot));
        self.finish_store(slot);
        true
    }

    /// Holds back the completions of a volume's store, or reports them. Returns whether the volume
    /// is here.
    pub(super) fn hold(&mut self, id: VolumeId, is_held: bool) -> bool {
        let Some(&slot) = self.by_id.get(&id) else { return false };
        self.volumes[slot].is_held = is_held;
        self.finish_store(slot);
        true
    }

    /// Closes connections of hosts to which the volume is no longer attached. Lent clients go back
    /// to their lender, which knows whether the volume is served elsewhere.
    pub(super) fn disconnect_strangers(&mut self, slot: VolumeSlot) {
        let ids: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
        for id in ids {
            if !self.is_stranger(id, slot) {
                continue;
            }
            let session = &mut self.sessions[id];
            if session.is_lent() && !session.is_handed_over() {
                session.begin_to_hand_over();
                self.hand_over(id);
            } else {
                self.close(id);
            }
        }
    }

    fn is_stranger(&self, id: SessionId, slot: VolumeSlot) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        session.protocol.is_bound_to(slot) && !self.volumes[slot].allows(session.peer)
    }

    /// Answers callers once the store has no request of detached hosts, and lets the volume go if
    /// it leaves and is at rest.
    pub(super) fn settle(&mut self, slot: VolumeSlot) {
        let Some(volume) = self.volumes.get(slot) else { return };
        if volume.applied.is_empty() && volume.leaving.is_empty() {
            return;
        }
        let busy = self.active.iter().any(|(_, active)| {
            active.is_in_store_of(slot) && self.is_stranger(active.session(), slot)
        });
        if busy {
            return;
        }
        for ack in self.volumes[slot].applied.drain(..) {
            let _ = ack.send(Ok(()));
        }
        // A connection's slot refers to the volume until it is free.
        let connected = self.sessions.iter().any(|(_, session)| session.protocol.is_bound_to(slot));
        if !self.volumes[slot].leaving.is_empty() && !connected && self.is_at_rest(slot) {
            self.let_go(slot);
        }
    }

    /// Returns whether the store of a volume that leaves has no request on the disk. The store is
    /// closed first, unless the volume only moves to another core.
    fn is_at_rest(&mut self, slot: VolumeSlot) -> bool {
        let volume = &mut self.volumes[slot];
        let ends = !volume.leaving.iter().all(|farewell| matches!(farewell, Farewell::Moved(_)));
        if ends {
            volume.close_when_unused(&mut self.driver.disk(slot));
        }
        volume.in_store == 0 && volume.store.is_idle()
    }

    /// Closes the stores of all volumes. Returns whether all of them are at rest. Called when no
    /// connection is left. The stores close in parallel, since each one waits for flushes.
    pub(super) fn are_stores_at_rest(&mut self) -> bool {
        let mut at_rest = true;
        for (slot, volume) in self.volumes.iter_mut() {
            volume.close_when_unused(&mut self.driver.disk(slot));
            at_rest &= volume.in_store == 0 && volume.store.is_idle();
        }
        at_rest
    }

    /// Gives up a volume without connections. The first caller that moves it gets its state.
    fn let_go(&mut self, slot: VolumeSlot) {
        let credits = self.last_credits(slot);
        let (released, farewells) = self.take_out(slot);
        let mut released = released.map(Box::new);
        for farewell in farewells {
            match farewell {
                Farewell::Removed(ack) => {
                    released = None;
                    let _ = ack.send(true);
                }
                Farewell::GivenUp(ack) => {
                    released = None;
                    let _ = ack.send(Some(credits.clone()));
                }
                Farewell::Moved(ack) => _ = ack.send(released.take()),
            }
        }
    }

    /// Removes a volume without connections and waiting requests. Returns its state, `None` if it
    /// was lost, and the callers that wait for its end.
    pub(super) fn take_out(&mut self, slot: VolumeSlot) -> (Option<Released>, Vec<Farewell>) {
        let volume = self.volumes.remove(slot);
        self.by_id.remove(&volume.state.id);
        self.dirty.retain(|other| *other != slot);
        self.second.forget(slot);
        self.give_up_reservation(&volume.lines);
        let exported = self.scheduler.export(self.now, volume.index).ok();
        drop(self.scheduler.remove(self.now, volume.index));
        note(&mut self.trace, self.now, Call::Other("remove"));
        let Volume { state, store, latencies, flushes, errors, judged, leaving, .. } = volume;
        let contract = judged.contract;
        let connections = Vec::new();
        let released = exported.map(|exported| Released {
            state,
            connections,
            store,
            exported,
            latencies,
            flushes,
            errors,
            contract,
        });
        (released, leaving)
    }

    pub(super) fn remove(&mut self, id: VolumeId, ack: SyncSender<bool>) {
        let Some(&slot) = self.by_id.get(&id) else {
            let _ = ack.send(false);
            return;
        };
        self.say_farewell(slot, Farewell::Removed(ack));
    }

    /// Gives a volume away to another core, once its connections are closed.
    pub(super) fn release_volume(&mut self, id: VolumeId, ack: SyncSender<Option<Box<Released>>>) {
        let Some(&slot) = self.by_id.get(&id) else {
            let _ = ack.send(None);
            return;
        };
        self.say_farewell(slot, Farewell::Moved(ack));
    }

    fn say_farewell(&mut self, slot: VolumeSlot, farewell: Farewell) {
        self.volumes[slot].leaving.push(farewell);
        self.disconnect_strangers(slot);
        self.settle(slot);
    }

    pub(super) fn set_balances(&mut self, id: VolumeId, balances: Balances) -> bool {
        let Some(&slot) = self.by_id.get(&id) else { return false };
        let index = self.volumes[slot].index;
        self.scheduler.set_balances(self.now, index, balances);
        let call = Call::SetBalances(index, Box::new(balances));
        note(&mut self.trace, self.now, call);
        self.mark_balances_dirty(slot);
        self.dispatch();
        true
    }

    /// Leases credits of volumes and hosts that are here. Returns the credits that stay unleased.
    pub(super) fn lease(&mut self, unleased: &CreditReport) -> CreditReport {
        let mut after = CreditReport::default();
        for &(id, asked) in &unleased.volumes {
            let Some(&slot) = self.by_id.get(&id) else { continue };
            let index = self.volumes[slot].index;
            after.volumes.push((id, self.scheduler.lease(self.now, index, asked)));
        }
        for &(id, asked) in &unleased.hosts {
            let Some(&index) = self.hosts.get(&id) else { continue };
            after.hosts.push((id, self.scheduler.lease_instance(self.now, index, asked)));
        }
        note(&mut self.trace, self.now, Call::Other("lease"));
        self.dispatch();
        after
    }

    /// Returns whether a volume's store refuses changes until it is opened anew.
    pub(super) fn must_reopen(&self, id: VolumeId) -> bool {
        let slot = self.by_id.get(&id);
        slot.is_some_and(|&slot| self.volumes[slot].store.must_reopen())
    }

    /// Returns where a volume's requests spent their time; `None` if it has had none.
    pub(super) fn latencies_of(&self, id: VolumeId) -> Option<Box<Latencies>> {
        self.volumes[*self.by_id.get(&id)?].latencies.clone()
    }

    /// Returns the latencies of volumes after `after`, in the order of ids. The page is limited so
    /// that clients wait only a moment.
    pub(super) fn latencies(&self, after: Option<VolumeId>) -> LatencyPage {
        let mut page = LatencyPage::default();
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (looked_at, (id, slot)) in self.by_id.range((after, Bound::Unbounded)).enumerate() {
            if looked_at >= PAGE_VOLUMES_MAX || page.found.len() >= PAGE_LATENCIES_MAX {
                return page;
            }
            let latencies = self.volumes[*slot].latencies.clone();
            page.found.extend(latencies.map(|latencies| (*id, latencies)));
            page.last = Some(*id);
        }
        page.last = None;
        page
    }

    /// Marks a volume whose credit balances may change, for the next credit report.
    pub(super) fn mark_balances_dirty(&mut self, slot: VolumeSlot) {
        // Never reallocates: it had room for all volumes when the last one was added.
        if !std::mem::replace(&mut self.volumes[slot].dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Returns the balances that may have changed since the last time. Without the list of dirty
    /// volumes, ten thousand volumes at rest would be looked up every second.
    pub(super) fn credit_report(&mut self) -> CreditReport {
        let mut moved = CreditReport::default();
        let volumes = &mut self.volumes;
        let scheduler = &mut self.scheduler;
        let now = self.now;
        self.dirty.retain(|&slot| {
            let volume = &mut volumes[slot];
            let balances = scheduler.balances(now, volume.index);
            if balances != Balances::default() {
                moved.volumes.push((volume.state.id, balances));
            }
            volume.dirty = balances != Balances::full(&volume.state.pacing);
            volume.dirty
        });
        moved.hosts = self.host_reports().iter().map(|host| (host.id, host.balances)).collect();
        moved
    }

    pub(super) fn report(&mut self) -> Report {
        let slots: Vec<VolumeSlot> = self.by_id.values().copied().collect();
        let connections = self.count_connections(&slots);
        let report = |slot: VolumeSlot| self.report_of_slot(slot, connections[&slot]);
        let volumes = slots.into_iter().map(report).collect();
        Report { volumes, hosts: self.host_reports() }
    }

    /// Reports the state of those of these volumes that are here.
    pub(super) fn report_of(&mut self, ids: &[VolumeId]) -> Report {
        let slots = ids.iter().filter_map(|id| self.by_id.get(id)).copied();
        let slots: Vec<VolumeSlot> = slots.collect();
        let connections = self.count_connections(&slots);
        let report = |(slot, connections)| self.report_of_slot(slot, connections);
        Report { volumes: connections.into_iter().map(report).collect(), hosts: Vec::new() }
    }

    /// Returns the number of connections to each of these volumes.
    fn count_connections(&self, slots: &[VolumeSlot]) -> BTreeMap<VolumeSlot, u32> {
        let mut connections: BTreeMap<VolumeSlot, u32> =
            slots.iter().map(|slot| (*slot, 0)).collect();
        for (_, session) in self.sessions.iter() {
            for binding in session.protocol.bindings() {
                if let Some(count) = connections.get_mut(&binding.volume) {
                    *count += 1;
                }
            }
        }
        connections
    }

    fn report_of_slot(&mut self, slot: VolumeSlot, connections: u32) -> VolumeReport {
        let volume = &self.volumes[slot];
        let balances = self.scheduler.balances(self.now, volume.index);
        let counters = self.scheduler.counters(volume.index);
        VolumeReport {
            id: volume.state.id,
            balances,
            connections,
            queued: counters.queued_requests + volume.in_store,
            in_store: volume.in_store,
            operations: counters.operations,
            bytes_read: counters.bytes_read,
            bytes_written: counters.bytes_written,
            flushes: volume.flushes,
            answered: volume.latencies.as_deref().map(Answered::from).unwrap_or_default(),
            exceeded: counters.exceeded,
            errors: volume.errors.report(),
            contract: volume.judged.contract,
        }
    }
}
