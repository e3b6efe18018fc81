//! Limits on the connections to a front, for handshakes and for each host.
//!
//! At the limit of handshakes, the oldest one of the host with the most is closed. A host may hold
//! no more connections than it leaves free.

use evenkeel_core::limits::{HANDSHAKES_MAX, HANDSHAKES_PER_PEER_MAX};
use evenkeel_wire::agent::HostAddress;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::Notify;

#[derive(Debug, Default)]
struct Peer {
    /// By number, so the oldest comes first.
    handshakes: BTreeMap<u64, Rc<Notify>>,
    connections: usize,
}

#[derive(Debug, Default)]
struct Table {
    peers: BTreeMap<HostAddress, Peer>,
    handshakes: usize,
    connections: usize,
    next: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Places {
    connections: usize,
    handshakes: usize,
    /// Handshakes of one host.
    per_peer: usize,
    /// Whether a host may hold at most as many connections as it leaves free.
    is_fair: bool,
    table: RefCell<Table>,
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    places: Rc<Places>,
    peer: HostAddress,
    number: u64,
    evicted: Rc<Notify>,
}

impl Places {
    /// Creates the places of a front for at most `connections` clients.
    pub fn new(connections: usize) -> Rc<Self> {
        let handshakes = HANDSHAKES_MAX.min(connections / 4).max(1);
        let per_peer = HANDSHAKES_PER_PEER_MAX.min(handshakes.div_ceil(2));
        let table = RefCell::default();
        Rc::new(Self { connections, handshakes, per_peer, is_fair: true, table })
    }

    /// Creates the places for at most `connections` clients that other nodes relay. All clients of
    /// a node come from one address, so a host may hold all places.
    pub fn of_nodes(connections: usize) -> Rc<Self> {
        let handshakes = HANDSHAKES_MAX.min(connections / 4).max(1);
        let per_peer = handshakes;
        let table = RefCell::default();
        Rc::new(Self { connections, handshakes, per_peer, is_fair: false, table })
    }

    /// Returns the number of connections, including handshakes.
    pub fn taken(&self) -> usize {
        self.table.borrow().connections
    }

    /// Takes a place for a client of `peer`; returns `None` if none is free for it.
    pub fn greet(self: &Rc<Self>, peer: HostAddress) -> Option<Place> {
        let mut table = self.table.borrow_mut();
        let held = table.peers.get(&peer).map_or(0, |of| of.connections);
        let left = self.connections.saturating_sub(table.connections);
        if left == 0 || self.is_fair && held >= left {
            return None;
        }
        table.make_room(peer, self.handshakes, self.per_peer);
        let number = table.next;
        let evicted = Rc::new(Notify::new());
        (table.next, table.connections) = (number + 1, table.connections + 1);
        table.handshakes += 1;
        let of = table.peers.entry(peer).or_default();
        of.connections += 1;
        of.handshakes.insert(number, Rc::clone(&evicted));
        Some(Place { places: Rc::clone(self), peer, number, evicted })
    }
}

impl Table {
    fn make_room(&mut self, peer: HostAddress, handshakes_max: usize, per_peer_max: usize) {
        let held = |of: &Peer| of.handshakes.len();
        let from = if self.peers.get(&peer).map_or(0, held) >= per_peer_max {
            Some(peer)
        } else if self.handshakes >= handshakes_max {
            self.peers.iter().max_by_key(|(_, of)| held(of)).map(|(peer, _)| *peer)
        } else {
            None
        };
        let oldest = from.and_then(|from| self.peers.get_mut(&from)?.handshakes.pop_first());
        if let Some((_, evicted)) = oldest {
            self.handshakes -= 1;
            evicted.notify_one();
        }
    }
}

impl Place {
    /// Returns when this place among the handshakes was given to another client.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Ends the handshake; the connection keeps its place.
    pub fn settle(&self) {
        let mut table = self.places.table.borrow_mut();
        let of = table.peers.get_mut(&self.peer);
        if of.is_some_and(|of| of.handshakes.remove(&self.number).is_some()) {
            table.handshakes -= 1;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.settle();
        let mut table = self.places.table.borrow_mut();
        table.connections -= 1;
        if let Some(of) = table.peers.get_mut(&self.peer) {
            of.connections -= 1;
            if of.connections == 0 {
                table.peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Waker};

    fn is_evicted(place: &Place) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        std::pin::pin!(place.evicted()).poll(&mut context).is_ready()
    }

    #[test]
    fn the_oldest_handshake_of_the_greediest_goes_and_one_more_host_finds_room() {
        let places = Places::new(64); // 16 handshakes, 8 of one host
        let peer = |number| HostAddress::Remote([10, 0, 0, number].into());
        let greedy: Vec<Place> = (0..9).map(|_| places.greet(peer(1)).unwrap()).collect();
        assert!(is_evicted(&greedy[0]) && !is_evicted(&greedy[1]));
        let others: Vec<Place> = (2..11).map(|n| places.greet(peer(n)).unwrap()).collect();
        assert!(is_evicted(&greedy[1]) && !is_evicted(&greedy[2]));
        assert!(!others.iter().any(is_evicted));
        others.iter().chain(&greedy).for_each(Place::settle);
        let mut held = Vec::new();
        for number in 20..25 {
            let before = held.len();
            while let Some(place) = places.greet(peer(number)) {
                place.settle();
                held.push(place);
            }
            assert!(held.len() > before, "host {number}");
        }
        drop((held, greedy, others));
        let table = places.table.borrow();
        assert_eq!((table.connections, table.handshakes, table.peers.len()), (0, 0, 0));
    }
}
