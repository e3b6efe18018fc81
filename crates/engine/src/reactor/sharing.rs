//! Resources that volumes share: the limits of their hosts, and the device.

use super::moves::Newcomers;
use super::watch::{AtDevice, Expected};
use super::{Reactor, note};
use crate::driver::Driver;
use crate::peer::Peer;
use crate::shared_device::Said;
use crate::table::{RequestId, VolumeSlot};
use evenkeel_core::convert::saturating;
use evenkeel_core::ids::InstanceId;
use evenkeel_core::qos::admission::PPM;
use evenkeel_core::qos::admission::calibration::drift::Drift;
use evenkeel_core::qos::scheduler::{AttachmentIndex, DeviceIndex, Ticket};
use evenkeel_core::qos::sharing::{Claim, DeviceModel, DeviceOthers};
use evenkeel_core::qos::trace::Call;
use evenkeel_core::slots::Slot;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_wire::agent::{HostReport, HostState};
use std::collections::BTreeSet;

/// Interval at which a core reports its use of the device to the others, and reads theirs.
const HEAR_EVERY: Duration = Duration::from_ms(1);

/// A quantum in the store.
pub(super) struct Flight {
    /// Its request.
    pub(super) handle: RequestId,
    /// Its number among the quanta of its request.
    pub(super) quantum: u32,
    /// The ticket that the scheduler gets when the quantum is complete.
    pub(super) ticket: Ticket,
    /// Time of its submission to the store.
    pub(super) started_at: Instant,
    /// Its expected service time, as far as that is known.
    pub(super) expected: Option<Expected>,
    /// Its length in bytes.
    pub(super) length: u32,
}

/// The device below the store, as this core sees it.
pub(super) struct Device {
    pub(super) index: DeviceIndex,
    pub(super) model: DeviceModel,
    /// Compares the device with its calibration.
    pub(super) drift: Drift,
    /// This core's reads and writes at the device.
    pub(super) here: AtDevice,
    /// The other cores' use of the device.
    pub(super) others: DeviceOthers,
    /// Requests in flight that this core has last reported to the others.
    said_in_flight: u32,
    /// Time of the next exchange with the others.
    look_at: Instant,
}

/// Lines by which a volume's requests enter the scheduler. The first one serves one host, or all
/// hosts while they share nothing.
#[derive(Default)]
pub(super) struct Lines {
    /// The host whose requests use the first line.
    first: Option<InstanceId>,
    /// The lines of other hosts.
    more: Vec<(InstanceId, AttachmentIndex)>,
    /// Whether the volume has a claim. It keeps the claim.
    has_claim: bool,
    /// Device time reserved, in nanoseconds per second.
    reserved_ns: u64,
}

impl Lines {
    /// Returns how many lines stay when the volume is attached to these hosts, and how many go.
    pub(super) fn count(&self, hosts: &BTreeSet<InstanceId>) -> (usize, usize) {
        let stay = self.more.iter().filter(|(host, _)| hosts.contains(host)).count();
        (usize::from(self.has_claim) + stay, self.more.len() - stay)
    }

    /// Returns the line of a host's requests; `None` is the first one.
    fn of(&self, host: InstanceId) -> Option<AttachmentIndex> {
        self.more.iter().find(|(other, _)| *other == host).map(|(_, line)| *line)
    }
}

impl<D: Driver> Reactor<D> {
    /// Applies a host's limits.
    pub(super) fn apply_host(&mut self, state: &HostState) -> Result<(), String> {
        if let Some(&index) = self.hosts.get(&state.id) {
            self.scheduler.repace_instance(self.now, index, &state.pacing);
        } else {
            let coming = Newcomers { hosts: vec![state.id], ..Newcomers::default() };
            // Checked before any change.
            self.has_room(&coming)?;
            let added = self.scheduler.add_instance(self.now, &state.pacing, state.balances);
            let index = added.map_err(|error| error.to_string())?;
            self.scheduler.lease_instance(self.now, index, state.unleased);
            self.hosts.insert(state.id, index);
            // Its volumes here get lines: the host was unknown until now.
            let slots: Vec<VolumeSlot> = self.by_id.values().copied().collect();
            for slot in slots {
                let attachments = &self.volumes[slot].state.attachments;
                if attachments.iter().any(|attachment| attachment.host == state.id) {
                    self.line_up(slot)?;
                }
            }
        }
        self.dispatch();
        Ok(())
    }

    /// Removes a host. Returns its last state, if it was known here.
    pub(super) fn delete_host(&mut self, id: InstanceId) -> Option<HostReport> {
        let report = self.host_report(id);
        if let Some(index) = self.hosts.remove(&id) {
            self.scheduler.remove_instance(self.now, index);
            self.dispatch();
        }
        report
    }

    pub(super) fn host_reports(&mut self) -> Vec<HostReport> {
        let ids: Vec<InstanceId> = self.hosts.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.host_report(id)).collect()
    }

    pub(super) fn host_report(&mut self, id: InstanceId) -> Option<HostReport> {
        let index = *self.hosts.get(&id)?;
        let balances = self.scheduler.instance_balances(self.now, index);
        let counters = self.scheduler.instance_counters(index);
        Some(HostReport { id, balances, counters })
    }

    /// Shares the device by this model from now on.
    pub(super) fn calibrated(&mut self, model: &DeviceModel) -> Result<(), String> {
        match &mut self.device {
            Some(device) => {
                device.model = *model;
                device.drift = Drift::new(self.now);
                self.scheduler.set_device(self.now, device.index, model);
            }
            None => {
                let added = self.scheduler.add_device(self.now, model);
                let index = added.map_err(|error| error.to_string())?;
                let drift = Drift::new(self.now);
                let look_at = self.now;
                let model = *model;
                let others = DeviceOthers::NONE;
                let here = AtDevice::default();
                let said_in_flight = 0;
                let device = Device { index, model, drift, here, others, said_in_flight, look_at };
                self.device = Some(device);
            }
        }
        self.shared_device.may_sell(self.core, PPM);
        self.shared_device.set_capacity(u64::from(model.channels).saturating_mul(1_000_000_000));
        let slots: Vec<VolumeSlot> = self.by_id.values().copied().collect();
        for slot in slots {
            self.line_up(slot)?;
        }
        self.share_with_background();
        self.dispatch();
        Ok(())
    }

    /// Updates the scheduler's claim and attachments of a volume to its state, and binds its
    /// connections to them.
    pub(super) fn line_up(&mut self, slot: VolumeSlot) -> Result<(), String> {
        let result = self.line_up_hosts(slot);
        // Also after an error: no connection keeps a line that has been removed.
        for (_, session) in self.sessions.iter_mut() {
            let bindings = session.protocol.bindings_mut().iter_mut();
            for binding in bindings.filter(|binding| binding.volume == slot) {
                binding.line = self.volumes[slot].line_of(session.peer);
            }
        }
        result
    }

    fn line_up_hosts(&mut self, slot: VolumeSlot) -> Result<(), String> {
        self.detach_gone(slot);
        let volume = &mut self.volumes[slot];
        let attachments = &volume.state.attachments;
        let has_limits = attachments.iter().any(|a| self.hosts.contains_key(&a.host));
        let lines = &mut volume.lines;
        if self.device.is_none() && !has_limits && !lines.has_claim {
            return Ok(());
        }
        let mut unbound: Vec<InstanceId> = attachments.iter().map(|a| a.host).collect();
        unbound.retain(|&host| lines.first != Some(host) && lines.of(host).is_none());
        unbound.dedup();
        let mut unbound = unbound.into_iter();
        lines.first = lines.first.or_else(|| unbound.next());
        let instance_of = |host: InstanceId| self.hosts.get(&host).copied();
        let place = (self.device.as_ref().map(|d| d.index), lines.first.and_then(instance_of));
        let model = self.device.as_ref().map(|device| device.model);
        let pacing = &volume.state.pacing;
        let reserved = volume.state.reserved;
        let reservation_per_second = model.map_or(0, |model| model.reference_requests(reserved));
        let claim = &Claim { reservation_per_second, ..Claim::best_effort(pacing) };
        self.scheduler
            .share(self.now, volume.index, pacing, place, claim)
            .map_err(|error| error.to_string())?;
        lines.has_claim = true;
        for host in unbound {
            let line = self.scheduler.attach(self.now, volume.index, instance_of(host));
            lines.more.push((host, line.map_err(|error| error.to_string())?));
        }
        let reference_ns = model.map_or(0, |model| model.reference_ns());
        let reserved_ns = u64::from(reservation_per_second).saturating_mul(reference_ns);
        let before_ns = std::mem::replace(&mut lines.reserved_ns, reserved_ns);
        self.reserve_instead(before_ns, reserved_ns);
        note(&mut self.trace, self.now, Call::Other("share"));
        Ok(())
    }

    /// Ends the lines of hosts that are no longer attached. Their connections are closed. A
    /// connection from an address that another host has, too, stays, and its requests that wait
    /// there fail.
    fn detach_gone(&mut self, slot: VolumeSlot) {
        let volume = &mut self.volumes[slot];
        let attachments = &volume.state.attachments;
        let is_attached = |host: InstanceId| attachments.iter().any(|a| a.host == host);
        let lines = &mut volume.lines;
        lines.first = lines.first.filter(|&first| is_attached(first));
        let gone: Vec<AttachmentIndex> = lines
            .more
            .extract_if(.., |(host, _)| !is_attached(*host))
            .map(|(_, line)| line)
            .collect();
        for line in gone {
            // Requests that a line's end releases may be dispatched now: they are not cancelled
            // with their requests any more.
            self.dispatch();
            let cancelled = self.scheduler.detach(self.now, line).map(RequestId::new).collect();
            self.fail_cancelled(slot, cancelled);
        }
    }

    /// Changes the device time that is reserved by a volume, from `before_ns` to `now_ns` per
    /// second.
    fn reserve_instead(&mut self, before_ns: u64, now_ns: u64) {
        self.reserved_ns = self.reserved_ns.saturating_sub(before_ns).saturating_add(now_ns);
        self.shared_device.reserve(self.core, self.reserved_ns);
    }

    /// Ends the reservation of a volume that goes away.
    pub(super) fn give_up_reservation(&mut self, lines: &Lines) {
        self.reserve_instead(lines.reserved_ns, 0);
    }

    /// Exchanges the use of a shared device with the other cores, if the last exchange is
    /// [`HEAR_EVERY`] ago.
    pub(super) fn sync_shared_device(&mut self) {
        let Some(device) = self.device.as_mut().filter(|_| self.shared_device.is_shared()) else {
            return;
        };
        // Reported at once when nothing is in flight any more: the next turn of the loop may come
        // late.
        let is_done = self.flights.is_empty() && device.said_in_flight > 0;
        if self.now < device.look_at && !is_done {
            return;
        }
        let counters = self.scheduler.device_counters(device.index);
        device.look_at = self.now + HEAR_EVERY;
        device.said_in_flight = counters.in_flight;
        let said = Said {
            wanted: self.scheduler.is_device_wanted(device.index),
            urgent_at: self.scheduler.urgent_at(device.index),
            in_flight: counters.in_flight,
            window_slots: saturating(counters.window_slots),
            beside_urgent: counters.beside_urgent,
        };
        self.shared_device.say(self.core, self.now, &said);
        let capacity_ns = u64::from(device.model.channels).saturating_mul(1_000_000_000);
        let others = self.shared_device.others(self.core, self.now, capacity_ns);
        if others != device.others {
            device.others = others;
            self.scheduler.set_device_others(self.now, device.index, &others);
        }
    }
}

impl super::volumes::Volume {
    /// Returns the line of requests from `peer`; `None` is the first one.
    pub(super) fn line_of(&self, peer: Peer) -> Option<AttachmentIndex> {
        let of_peer = self.state.attachments.iter().find(|attachment| peer.has(attachment));
        of_peer.and_then(|attachment| self.lines.of(attachment.host))
    }
}
