//! The connections of a server over all cores. Their limits are checked when a connection is
//! accepted, when its client chooses a volume and when it ends; never for an I/O.

use crate::handoff::Kept;
use crate::peer::Peer;
use evenkeel_core::connection_limits::{ConnectionId, Connections, NoPlace};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::visit::{Visit, VisitOutcome};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Receives what becomes of connections. It must not wait: threads of the data plane call it.
pub type Observer = Box<dyn Fn(Visit) + Send + Sync>;

/// All connections of a server: a handshake is reached on its core.
#[derive(Default)]
pub struct Slots {
    connections: Mutex<Connections<HostAddress, u16>>,
    observer: OnceLock<Observer>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connections.fmt(f)
    }
}

impl Slots {
    /// Creates a table without an observer.
    #[must_use]
    pub fn new(connections: Connections<HostAddress, u16>) -> Self {
        Self { connections: Mutex::new(connections), observer: OnceLock::new() }
    }

    /// Sets the observer. Only the first one counts.
    pub fn observe(&self, observer: Observer) {
        let _ = self.observer.set(observer);
    }

    /// Reports what becomes of a connection.
    pub fn report(&self, visit: Visit) {
        if let Some(observer) = self.observer.get() {
            observer(visit);
        }
    }

    /// Reports a client that is refused before it names a volume.
    pub fn report_stranger(&self, address: HostAddress, why: &str) {
        self.report(Visit::of_stranger(address, why));
    }
}

/// A connection's place among all connections. Dropping it frees the place.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    peer: Peer,
    /// The host of its volume's attachment; `None` if it has none.
    pub host: Option<InstanceId>,
    /// Its number.
    pub id: ConnectionId,
    volume: Option<VolumeId>,
    /// State for the creator of the connection, kept as long as a request of it is in progress.
    pub kept: Option<Kept>,
}

fn lock(slots: &Slots) -> MutexGuard<'_, Connections<HostAddress, u16>> {
    // No panic is possible between two changes that belong together.
    slots.connections.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    /// Takes a place among the handshakes for a client of `peer` on `core`. Returns it, and the
    /// handshake that the caller must close to make room, with its core.
    ///
    /// # Errors
    /// [`NoPlace::Server`], while an evicted handshake is not closed yet.
    pub fn greet(
        slots: &Arc<Slots>,
        peer: impl Into<Peer>,
        core: u16,
    ) -> Result<(Self, Option<(ConnectionId, u16)>), NoPlace> {
        let peer = peer.into();
        let (id, evicted) = lock(slots).greet(peer.address, core)?;
        let slots = Arc::clone(slots);
        Ok((Self { slots, peer, host: peer.host, id, volume: None, kept: None }, evicted))
    }

    /// Checks whether this client could connect to `volume` now.
    ///
    /// # Errors
    /// The limit that is reached, as a message for the client.
    pub fn may_join(&self, volume: VolumeId) -> Result<(), NoPlace> {
        lock(&self.slots).may_join(self.peer.address, volume)
    }

    /// Turns the handshake into a connection to `volume`.
    ///
    /// # Errors
    /// If a limit is reached, or another handshake has taken the place of this one.
    pub fn join(&mut self, volume: VolumeId) -> Result<(), NoPlace> {
        lock(&self.slots).join(self.peer.address, self.id, volume)?;
        self.volume = Some(volume);
        self.report(VisitOutcome::Connected, self.volume);
        Ok(())
    }

    /// Reports that the client does not get the volume that it has named.
    pub fn report_refused(&self, volume: Option<VolumeId>, why: &str) {
        self.report(VisitOutcome::Refused(why.to_owned()), volume);
    }

    fn report(&self, outcome: VisitOutcome, volume: Option<VolumeId>) {
        if self.kept.as_ref().is_some_and(|kept| kept.is_reported_by_creator) {
            return;
        }
        let address = self.peer.seen;
        let is_proven = self.peer.host.is_some();
        self.slots.report(Visit { outcome, address, host: self.host, is_proven, volume });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.slots).leave(self.peer.address, self.id, self.volume);
        if self.volume.is_some() {
            self.report(VisitOutcome::Ended, self.volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::connection_limits::Bounds;
    use evenkeel_core::limits::CONNECTIONS_PER_CORE_MAX;

    const BOUNDS: Bounds =
        Bounds { connections: 1_000, per_volume: 200, handshakes: 100, handshakes_per_peer: 30 };

    fn slots() -> Arc<Slots> {
        Arc::new(Slots::new(Connections::new(BOUNDS)))
    }

    fn host(number: u8) -> HostAddress {
        HostAddress::Remote([10, 0, 0, number].into())
    }

    fn volume(number: u128) -> VolumeId {
        VolumeId::from_bits(number)
    }

    /// Returns as many connections as `peer` gets to `volume`, and the reason for the end.
    fn all(slots: &Arc<Slots>, peer: HostAddress, volume: VolumeId) -> (Vec<Slot>, NoPlace) {
        let mut held = Vec::new();
        loop {
            let (mut slot, _) = Slot::greet(slots, peer, 0).unwrap();
            match slot.join(volume) {
                Ok(()) => held.push(slot),
                Err(why) => return (held, why),
            }
        }
    }

    #[test]
    fn new_host_finds_a_slot_beside_greedy_hosts() {
        let slots = slots();
        let mut held = Vec::new();
        for number in 0..8 {
            let mut count = 0;
            for id in 0..20 {
                let (more, _) = all(&slots, host(number), volume(id));
                count += more.len();
                held.extend(more);
            }
            assert!(count > 0, "host {number}");
        }
        assert!(held.len() > 850, "what there is is used: {}", held.len());
        // Handshakes have room of their own.
        assert!(Slot::greet(&slots, host(9), 0).is_ok());
    }

    #[test]
    fn a_volume_leaves_room_for_the_others_of_its_host() {
        let slots = slots();
        let (first, why) = all(&slots, HostAddress::Local, volume(1));
        assert_eq!((first.len(), why), (200, NoPlace::Volume(200)));
        let (second, _) = all(&slots, HostAddress::Local, volume(2));
        let (third, why) = all(&slots, HostAddress::Local, volume(3));
        assert_eq!((second.len(), third.len(), why), (125, 63, NoPlace::Volume(63)));
        // Closed connections make room again.
        drop(second);
        assert_eq!(all(&slots, HostAddress::Local, volume(4)).0.len(), 94);
        drop((first, third));
        assert_eq!(lock(&slots).places(), 0);
    }

    #[test]
    fn handshakes_of_one_host_take_each_others_places_only() {
        let slots = slots();
        let (other, none) = Slot::greet(&slots, host(1), 3).unwrap();
        assert_eq!(none, None);
        let mut silent: Vec<Slot> = Vec::new();
        for number in 0..500_usize {
            let (slot, evicted) = Slot::greet(&slots, host(2), 7).unwrap();
            let oldest = number.checked_sub(30).map(|oldest| silent[oldest].id);
            assert_eq!(evicted, oldest.map(|connection| (connection, 7)));
            silent.push(slot);
        }
        // An evicted handshake cannot connect any more, and frees nothing twice.
        assert_eq!(silent[0].join(volume(1)), Err(NoPlace::Taken));
        drop(silent);
        assert_eq!(lock(&slots).places(), 1);
        drop(other);
        assert_eq!(lock(&slots).places(), 0);
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_oldest_of_the_greediest() {
        let slots = slots();
        let greeted = |number: u8, count| -> Vec<Slot> {
            (0..count)
                .map(|_| Slot::greet(&slots, host(number), u16::from(number)).unwrap().0)
                .collect()
        };
        let mut held = [greeted(1, 25), greeted(2, 26), greeted(3, 24), greeted(4, 25)];
        let oldest = |held: &[Slot], core| Some((held[0].id, core));
        let (_new, evicted) = Slot::greet(&slots, host(5), 0).unwrap();
        assert_eq!(evicted, oldest(&held[1], 2));
        held[1].remove(0);
        // A host that would have the most handshakes itself replaces one of its own.
        let (_new, evicted) = Slot::greet(&slots, host(1), 1).unwrap();
        assert_eq!(evicted, oldest(&held[0], 1));
    }

    #[test]
    fn evicted_connection_counts_until_it_is_closed() {
        let slots = slots();
        let held: Vec<Slot> =
            (0..BOUNDS.connections).map(|_| Slot::greet(&slots, host(1), 0).unwrap().0).collect();
        assert_eq!(Slot::greet(&slots, host(2), 0).err(), Some(NoPlace::Server(1_000)));
        drop(held);
        assert!(Slot::greet(&slots, host(2), 0).is_ok());
    }

    #[test]
    fn few_files_are_shared_out_too() {
        let bounds = Bounds::new(4, Some(1_024));
        assert_eq!((bounds.connections, bounds.handshakes), (512, 64));
        assert_eq!(Bounds::new(2, None).connections, 2 * CONNECTIONS_PER_CORE_MAX);
        assert!(Bounds::new(1, Some(0)).handshakes_per_peer > 0);
    }
}
