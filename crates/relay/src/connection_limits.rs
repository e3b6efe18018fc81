//! The connections to a front, and the notices to handshakes that make room for others.

use crate::Peer;
use evenkeel_core::connection_limits::{Bounds, ConnectionId, Connections};
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::Notify;

/// The places of all clients of a front.
#[derive(Debug)]
pub(crate) struct Places {
    /// Whether a host may hold at most as many connections as it leaves free.
    is_fair: bool,
    table: RefCell<Connections<Peer, Rc<Notify>>>,
}

/// A connection's place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    places: Rc<Places>,
    peer: Peer,
    id: ConnectionId,
    evicted: Rc<Notify>,
}

impl Places {
    /// Creates the places of a front for at most `connections` clients.
    pub fn new(connections: usize) -> Rc<Self> {
        let table = RefCell::new(Connections::new(Bounds::of_front(connections)));
        Rc::new(Self { is_fair: true, table })
    }

    /// Creates the places for at most `connections` clients that other nodes relay. All clients of
    /// a node come from one address, so a host may hold all places.
    pub fn of_nodes(connections: usize) -> Rc<Self> {
        let bounds = Bounds::of_front(connections);
        let bounds = Bounds { handshakes_per_peer: bounds.handshakes, ..bounds };
        Rc::new(Self { is_fair: false, table: RefCell::new(Connections::new(bounds)) })
    }

    /// Returns the number of connections, including handshakes.
    pub fn taken(&self) -> usize {
        self.table.borrow().places()
    }

    /// Takes a place for a client of `peer`; returns `None` if none is free for it.
    pub fn greet(self: &Rc<Self>, peer: Peer) -> Option<Place> {
        let mut table = self.table.borrow_mut();
        if self.is_fair && !table.leaves_room(peer) {
            return None;
        }
        let evicted = Rc::new(Notify::new());
        let (id, oldest) = table.greet(peer, Rc::clone(&evicted)).ok()?;
        if let Some((_, oldest)) = oldest {
            oldest.notify_one();
        }
        Some(Place { places: Rc::clone(self), peer, id, evicted })
    }
}

impl Place {
    /// Returns when this place among the handshakes was given to another client.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Ends the handshake; the connection keeps its place.
    pub fn settle(&self) {
        self.places.table.borrow_mut().settle(self.peer, self.id);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table.borrow_mut().leave(self.peer, self.id, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_wire::agent::HostAddress;
    use std::future::Future;
    use std::task::{Context, Waker};

    fn is_evicted(place: &Place) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        std::pin::pin!(place.evicted()).poll(&mut context).is_ready()
    }

    #[test]
    fn the_oldest_handshake_of_the_greediest_goes_and_one_more_host_finds_room() {
        let places = Places::new(64); // 16 handshakes, 8 of one host
        let peer = |number| Peer::At(HostAddress::Remote([10, 0, 0, number].into()));
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
        assert_eq!(table.places(), 0);
    }
}
