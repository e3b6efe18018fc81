//! Which connections there are, and which of them gives way when they are short. Pure.
//!
//! A signature costs nothing to leave out, so a connection is sure of its place only while it
//! carries an authentic request. Such connections are never all that there are: one that is just
//! accepted always finds a place, whoever holds the others and however slowly they send.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Connections at once. One more is accepted all the same: another gives way to it.
pub const CONNECTIONS_MAX: usize = 256;
/// Authentic requests under way at once, each on a connection that nothing takes away from it.
pub const REQUESTS_MAX: usize = 192;
/// The part of them that one peer may have, so that no client keeps all others waiting.
pub const REQUESTS_PER_PEER_MAX: usize = 96;
/// Connections, and requests, that are kept for this machine: whoever is here to see what is wrong.
pub const OPERATOR_RESERVE: usize = 32;

// Beside all requests under way, one scrape and the operator's reserve, somebody can give way.
const _: () = assert!(CONNECTIONS_MAX > REQUESTS_MAX + 1 + OPERATOR_RESERVE);
const _: () = assert!(REQUESTS_PER_PEER_MAX <= REQUESTS_MAX - OPERATOR_RESERVE);

/// Who is at the other end, as far as places are concerned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// Somebody on this machine.
    Operator,
    /// An IPv4 address, or a /64 of IPv6: what one network hands out to one client.
    Remote(IpAddr),
}

impl Peer {
    /// The peer that connects from an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            ip if ip.is_loopback() => Self::Operator,
            IpAddr::V6(ip) => Self::Remote(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
            ip @ IpAddr::V4(_) => Self::Remote(ip),
        }
    }
}

/// Why an authentic request is not carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// So many are under way.
    All(usize),
    /// So many of this peer are under way.
    Peer(usize),
    /// The connection has been told to go.
    Going,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(count) => write!(
                f,
                "{count} requests are under way, which is as many as there may be; try again"
            ),
            Self::Peer(count) => write!(
                f,
                "{count} requests from this address are under way, which is as many as there may \
                 be; try again"
            ),
            Self::Going => f.write_str("the connection gives way to another one; try again"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing that is known to be authentic is under way.
    Idle,
    /// An authentic request is carried out, or its reply is on its way.
    Busy,
    /// Told to go, and not gone yet.
    Going,
}

#[derive(Debug)]
struct Place {
    peer: Peer,
    state: State,
    /// When it came, or when its last authentic request was done: a number that grows.
    since: u64,
}

/// All connections, by numbers that are not used twice.
#[derive(Debug, Default)]
pub struct Table {
    places: BTreeMap<u64, Place>,
    /// Of places and of points in time.
    next: u64,
}

impl Table {
    /// Whether somebody has to give way before one more can come.
    pub fn is_full(&self) -> bool {
        self.places.len() >= CONNECTIONS_MAX
    }

    /// A new connection.
    pub fn enter(&mut self, peer: Peer) -> u64 {
        let id = self.now();
        self.places.insert(id, Place { peer, state: State::Idle, since: id });
        id
    }

    /// It has ended.
    pub fn leave(&mut self, id: u64) {
        self.places.remove(&id);
    }

    /// Chooses who gives way to a newcomer, and notes that it goes: of the peer that has the most
    /// connections, the one without an authentic request for the longest time. `None` while the one
    /// that was chosen before is not gone yet.
    pub fn give_way(&mut self, newcomer: Peer) -> Option<u64> {
        if self.places.values().any(|place| place.state == State::Going) {
            return None;
        }
        let mut held: BTreeMap<Peer, usize> = BTreeMap::new();
        for place in self.places.values() {
            *held.entry(place.peer).or_default() += 1;
        }
        let held = |peer: Peer| held.get(&peer).copied().unwrap_or_default();
        let spared = match newcomer {
            Peer::Remote(_) => held(Peer::Operator) <= OPERATOR_RESERVE,
            Peer::Operator => false,
        };
        let may_go =
            |place: &Place| place.state == State::Idle && !(spared && place.peer == Peer::Operator);
        let (id, place) = self
            .places
            .iter_mut()
            .filter(|(_, place)| may_go(place))
            .max_by_key(|(_, place)| (held(place.peer), std::cmp::Reverse(place.since)))?;
        place.state = State::Going;
        Some(*id)
    }

    /// An authentic request begins: from now on the connection is not chosen to give way.
    ///
    /// # Errors
    /// See [`Busy`]; the request is not to be carried out then.
    pub fn begin(&mut self, id: u64) -> Result<(), Busy> {
        let Some(place) = self.places.get(&id) else { return Err(Busy::Going) };
        let (peer, state) = (place.peer, place.state);
        match state {
            State::Going => return Err(Busy::Going),
            // A client that does not wait for a reply before it asks again.
            State::Busy => return Ok(()),
            State::Idle => {}
        }
        let busy = |of: &dyn Fn(Peer) -> bool| {
            let places = self.places.values();
            places.filter(|place| place.state == State::Busy && of(place.peer)).count()
        };
        let (all, remote) = (busy(&|_| true), busy(&|peer| peer != Peer::Operator));
        let is_remote = peer != Peer::Operator;
        if all >= REQUESTS_MAX || (is_remote && remote >= REQUESTS_MAX - OPERATOR_RESERVE) {
            return Err(Busy::All(all));
        }
        let of_peer = busy(&|other| other == peer);
        if is_remote && of_peer >= REQUESTS_PER_PEER_MAX {
            return Err(Busy::Peer(of_peer));
        }
        self.hold(id);
        Ok(())
    }

    /// The connection is not chosen to give way from now on, however many requests are under way:
    /// for the only scrape that is carried out at a time. Whether that is so because of this.
    pub fn hold(&mut self, id: u64) -> bool {
        let place = self.places.get_mut(&id).filter(|place| place.state == State::Idle);
        place.map(|place| place.state = State::Busy).is_some()
    }

    /// Its request is done, or its reply is handed over: it may be chosen to give way again.
    pub fn rest(&mut self, id: u64) {
        let now = self.now();
        if let Some(place) = self.places.get_mut(&id)
            && place.state == State::Busy
        {
            (place.state, place.since) = (State::Idle, now);
        }
    }

    fn now(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HERE: Peer = Peer::Operator;

    fn there(last: u8) -> Peer {
        Peer::of(IpAddr::from([192, 0, 2, last]))
    }

    /// The table with so many connections of each peer, in this order; their numbers.
    fn with(peers: &[(Peer, usize)]) -> (Table, Vec<u64>) {
        let mut table = Table::default();
        let each = peers.iter().flat_map(|(peer, count)| std::iter::repeat_n(*peer, *count));
        let ids = each.map(|peer| table.enter(peer)).collect();
        (table, ids)
    }

    #[test]
    fn peers_are_networks_and_this_machine_is_one() {
        let of = |text: &str| Peer::of(text.parse().unwrap());
        for text in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(text), HERE, "{text}");
        }
        assert_eq!(of("::ffff:192.0.2.1"), there(1));
        assert_ne!(there(1), there(2));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn the_longest_idle_gives_way_and_one_at_a_time() {
        let (mut table, ids) = with(&[(HERE, CONNECTIONS_MAX)]);
        assert!(table.is_full());
        table.begin(ids[0]).unwrap();
        table.begin(ids[1]).unwrap();
        table.rest(ids[1]);
        assert_eq!(table.give_way(HERE), Some(ids[2]));
        assert_eq!(table.give_way(HERE), None, "it has not gone yet");
        assert_eq!(table.begin(ids[2]), Err(Busy::Going));
        table.leave(ids[2]);
        assert!(!table.is_full());
        assert_eq!(table.give_way(HERE), Some(ids[3]));
    }

    #[test]
    fn who_has_most_gives_way_and_this_machine_has_a_reserve() {
        let others = CONNECTIONS_MAX - OPERATOR_RESERVE;
        let (mut table, ids) = with(&[(HERE, OPERATOR_RESERVE), (there(1), 4), (there(2), 1)]);
        let flood: Vec<u64> = (0..others - 5).map(|_| table.enter(there(3))).collect();
        assert_eq!(table.give_way(there(9)), Some(flood[0]));
        table.leave(flood[0]);
        // Many addresses with a connection each take nothing from this machine either.
        let (mut table, _) = with(&[(HERE, OPERATOR_RESERVE)]);
        let many: Vec<u64> = (1..=others).map(|n| table.enter(there(n as u8))).collect();
        assert_eq!(table.give_way(there(0)), Some(many[0]));
        table.leave(many[0]);
        table.enter(HERE);
        assert_eq!(table.give_way(there(0)), Some(1), "what it has beyond its reserve");
        drop(ids);
    }

    #[test]
    fn requests_under_way_are_bounded_and_some_are_for_this_machine() {
        let (mut table, ids) = with(&[(there(1), 128), (there(2), 96), (HERE, 32)]);
        let (first, rest) = ids.split_at(128);
        let (second, here) = rest.split_at(96);
        for id in &first[..REQUESTS_PER_PEER_MAX] {
            table.begin(*id).unwrap();
            table.begin(*id).unwrap();
        }
        let refused = table.begin(first[REQUESTS_PER_PEER_MAX]);
        assert_eq!(refused, Err(Busy::Peer(REQUESTS_PER_PEER_MAX)));
        let left = REQUESTS_MAX - OPERATOR_RESERVE - REQUESTS_PER_PEER_MAX;
        second[..left].iter().for_each(|id| table.begin(*id).unwrap());
        assert_eq!(table.begin(second[left]), Err(Busy::All(REQUESTS_MAX - OPERATOR_RESERVE)));
        here.iter().for_each(|id| table.begin(*id).unwrap());
        table.rest(second[0]);
        let next = table.enter(HERE);
        table.begin(next).unwrap();
        let after = table.enter(HERE);
        assert_eq!(table.begin(after), Err(Busy::All(REQUESTS_MAX)));
        assert!(table.hold(after));
        assert!(table.give_way(there(7)).is_some_and(|id| id != after), "a scrape is not cut");
    }

    proptest! {
        /// Whatever has happened: who is under way is never chosen, and when all places are taken
        /// somebody can be chosen for whoever comes.
        #[test]
        fn there_is_always_somebody_who_gives_way(
            steps in proptest::collection::vec((0..6_u8, any::<u8>(), any::<u16>()), 0..2_000),
        ) {
            let mut table = Table::default();
            let mut ids: Vec<u64> = Vec::new();
            let mut busy = std::collections::BTreeSet::new();
            for (step, peer, which) in steps {
                let peer = if peer < 64 { HERE } else { there(peer % 8) };
                let one = ids.get(usize::from(which) % ids.len().max(1)).copied();
                match (step, one) {
                    (0..=2, _) => {
                        if table.is_full() {
                            let goes = table.give_way(peer);
                            prop_assert!(goes.is_some_and(|id| !busy.contains(&id)), "{goes:?}");
                            table.leave(goes.unwrap());
                            ids.retain(|id| Some(*id) != goes);
                        }
                        ids.push(table.enter(peer));
                        prop_assert!(ids.len() <= CONNECTIONS_MAX);
                    }
                    (3..=4, Some(id)) => {
                        if table.begin(id).is_ok() {
                            busy.insert(id);
                        }
                        prop_assert!(busy.len() <= REQUESTS_MAX);
                    }
                    (5, Some(id)) => {
                        table.rest(id);
                        busy.remove(&id);
                    }
                    _ => {}
                }
            }
        }
    }
}
