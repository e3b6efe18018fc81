//! The table of API connections, and which of them is evicted when the table is full. Pure.
//!
//! Anyone can open a connection without a valid signature. So a connection is safe from eviction
//! only while it carries an authentic request. The limits leave some connection to evict at all
//! times: a newly accepted one always gets a slot, whichever clients hold the others and however
//! slowly they send.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Maximum number of concurrent connections. One more is still accepted: another is evicted for it.
pub const CONNECTIONS_MAX: usize = 256;
/// Maximum number of authentic requests in flight. Their connections cannot be evicted.
pub const REQUESTS_MAX: usize = 192;
/// Maximum number of requests in flight of one peer, so that no client blocks all others.
pub const REQUESTS_PER_PEER_MAX: usize = 96;
/// Number of connections, and of requests, that only this machine may use: for an operator who
/// diagnoses the server.
pub const OPERATOR_SLOTS: usize = 32;

// Beside all requests in flight, one scrape and the operator's slots, one connection can be
// evicted.
const _: () = assert!(CONNECTIONS_MAX > REQUESTS_MAX + 1 + OPERATOR_SLOTS);
const _: () = assert!(REQUESTS_PER_PEER_MAX <= REQUESTS_MAX - OPERATOR_SLOTS);

/// The other end of a connection, as the limits count it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// A client on this machine.
    Operator,
    /// An IPv4 address, or an IPv6 /64, which networks assign to one client.
    Remote(IpAddr),
}

impl Peer {
    /// Returns the peer of an address.
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            ip if ip.is_loopback() => Self::Operator,
            IpAddr::V6(ip) => Self::Remote(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
            ip @ IpAddr::V4(_) => Self::Remote(ip),
        }
    }
}

/// Why an authentic request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// This many requests are in flight, which is the limit.
    All(usize),
    /// This many requests of this peer are in flight, which is the limit.
    Peer(usize),
    /// The connection is being evicted.
    Evicted,
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
            Self::Evicted => f.write_str("the connection gives way to another one; try again"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No authentic request is in flight.
    Idle,
    /// An authentic request is executed, or its reply is being sent.
    Busy,
    /// Chosen for eviction and not closed yet.
    Evicted,
}

#[derive(Debug)]
struct Connection {
    peer: Peer,
    state: State,
    /// When it was added, or when its last authentic request ended: an increasing number.
    since: u64,
}

/// All connections, by ids that are never reused.
#[derive(Debug, Default)]
pub struct ConnectionTable {
    connections: BTreeMap<u64, Connection>,
    /// The last id, which is also the last point in time.
    next: u64,
}

impl ConnectionTable {
    /// Returns whether a connection must be evicted before one more can be added.
    pub fn is_full(&self) -> bool {
        self.connections.len() >= CONNECTIONS_MAX
    }

    /// Adds a connection and returns its id.
    pub fn add(&mut self, peer: Peer) -> u64 {
        let id = self.now();
        self.connections.insert(id, Connection { peer, state: State::Idle, since: id });
        self.check();
        id
    }

    /// Removes a connection that has ended.
    pub fn remove(&mut self, id: u64) {
        self.connections.remove(&id);
        self.check();
    }

    /// Chooses the connection to evict for `newcomer` and marks it: of the peer that has the most
    /// connections, the one that has been idle longest. A remote newcomer evicts a connection of
    /// this machine only if this machine has more than [`OPERATOR_SLOTS`]. Returns `None` if no
    /// connection may be evicted, or if the one chosen before is not closed yet.
    pub fn evict(&mut self, newcomer: Peer) -> Option<u64> {
        if self.connections.values().any(|connection| connection.state == State::Evicted) {
            return None;
        }
        let mut held: BTreeMap<Peer, usize> = BTreeMap::new();
        for connection in self.connections.values() {
            *held.entry(connection.peer).or_default() += 1;
        }
        let held = |peer: Peer| held.get(&peer).copied().unwrap_or_default();
        let spared = match newcomer {
            Peer::Remote(_) => held(Peer::Operator) <= OPERATOR_SLOTS,
            Peer::Operator => false,
        };
        let may_go = |connection: &Connection| {
            connection.state == State::Idle && !(spared && connection.peer == Peer::Operator)
        };
        let (id, connection) =
            self.connections.iter_mut().filter(|(_, connection)| may_go(connection)).max_by_key(
                |(_, connection)| (held(connection.peer), std::cmp::Reverse(connection.since)),
            )?;
        connection.state = State::Evicted;
        let id = *id;
        self.check();
        Some(id)
    }

    /// Begins an authentic request: from now on its connection cannot be evicted.
    ///
    /// # Errors
    /// See [`Busy`]. The request must not be executed then.
    pub fn begin(&mut self, id: u64) -> Result<(), Busy> {
        let Some(connection) = self.connections.get(&id) else { return Err(Busy::Evicted) };
        let peer = connection.peer;
        let state = connection.state;
        match state {
            State::Evicted => return Err(Busy::Evicted),
            // The client sends its next request before it has the reply to the last.
            State::Busy => return Ok(()),
            State::Idle => {}
        }
        let busy = |of: &dyn Fn(Peer) -> bool| {
            let connections = self.connections.values();
            connections
                .filter(|connection| connection.state == State::Busy && of(connection.peer))
                .count()
        };
        let all = busy(&|_| true);
        let remote = busy(&|peer| peer != Peer::Operator);
        let is_remote = peer != Peer::Operator;
        if all >= REQUESTS_MAX || (is_remote && remote >= REQUESTS_MAX - OPERATOR_SLOTS) {
            return Err(Busy::All(all));
        }
        let of_peer = busy(&|other| other == peer);
        if is_remote && of_peer >= REQUESTS_PER_PEER_MAX {
            return Err(Busy::Peer(of_peer));
        }
        self.pin(id);
        Ok(())
    }

    /// Protects a connection from eviction, however many requests are in flight. Only the one
    /// scrape that runs at a time uses this. Returns whether this call has protected it.
    pub fn pin(&mut self, id: u64) -> bool {
        let connection =
            self.connections.get_mut(&id).filter(|connection| connection.state == State::Idle);
        let is_pinned = connection.map(|connection| connection.state = State::Busy).is_some();
        self.check();
        is_pinned
    }

    /// Marks a connection idle, so that it may be evicted again: its request is done, or its reply
    /// has been passed to the kernel.
    pub fn set_idle(&mut self, id: u64) {
        let now = self.now();
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.state == State::Busy
        {
            (connection.state, connection.since) = (State::Idle, now);
        }
        self.check();
    }

    /// Asserts the invariants in debug builds and tests, after every mutation.
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.invariants();
        }
    }

    /// Asserts that at most one connection is being evicted, that requests in flight keep their
    /// bound (and one scrape beside them), and that no id or time is later than the last.
    ///
    /// # Panics
    /// If one of these does not hold.
    fn invariants(&self) {
        let count = |state| {
            self.connections.values().filter(|connection| connection.state == state).count()
        };
        assert!(count(State::Evicted) <= 1, "several connections are being evicted");
        assert!(count(State::Busy) <= REQUESTS_MAX + 1, "too many requests are in flight");
        for (id, connection) in &self.connections {
            assert!(*id <= connection.since && connection.since <= self.next, "{id}: {self:?}");
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

    /// Returns a table with the given number of connections of each peer, in this order, and their
    /// ids.
    fn with(peers: &[(Peer, usize)]) -> (ConnectionTable, Vec<u64>) {
        let mut table = ConnectionTable::default();
        let each = peers.iter().flat_map(|(peer, count)| std::iter::repeat_n(*peer, *count));
        let ids = each.map(|peer| table.add(peer)).collect();
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
    fn the_longest_idle_is_evicted_one_at_a_time() {
        let (mut table, ids) = with(&[(HERE, CONNECTIONS_MAX)]);
        assert!(table.is_full());
        table.begin(ids[0]).unwrap();
        table.begin(ids[1]).unwrap();
        table.set_idle(ids[1]);
        assert_eq!(table.evict(HERE), Some(ids[2]));
        assert_eq!(table.evict(HERE), None, "it has not gone yet");
        assert_eq!(table.begin(ids[2]), Err(Busy::Evicted));
        table.remove(ids[2]);
        assert!(!table.is_full());
        assert_eq!(table.evict(HERE), Some(ids[3]));
    }

    #[test]
    fn the_peer_with_most_is_evicted_and_this_machine_keeps_its_slots() {
        let others = CONNECTIONS_MAX - OPERATOR_SLOTS;
        let (mut table, ids) = with(&[(HERE, OPERATOR_SLOTS), (there(1), 4), (there(2), 1)]);
        let flood: Vec<u64> = (0..others - 5).map(|_| table.add(there(3))).collect();
        assert_eq!(table.evict(there(9)), Some(flood[0]));
        table.remove(flood[0]);
        // Many addresses with one connection each do not take this machine's slots either.
        let (mut table, _) = with(&[(HERE, OPERATOR_SLOTS)]);
        let many: Vec<u64> = (1..=others).map(|n| table.add(there(n as u8))).collect();
        assert_eq!(table.evict(there(0)), Some(many[0]));
        table.remove(many[0]);
        table.add(HERE);
        assert_eq!(table.evict(there(0)), Some(1), "what it has beyond its slots");
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
        let left = REQUESTS_MAX - OPERATOR_SLOTS - REQUESTS_PER_PEER_MAX;
        second[..left].iter().for_each(|id| table.begin(*id).unwrap());
        assert_eq!(table.begin(second[left]), Err(Busy::All(REQUESTS_MAX - OPERATOR_SLOTS)));
        here.iter().for_each(|id| table.begin(*id).unwrap());
        table.set_idle(second[0]);
        let next = table.add(HERE);
        table.begin(next).unwrap();
        let after = table.add(HERE);
        assert_eq!(table.begin(after), Err(Busy::All(REQUESTS_MAX)));
        assert!(table.pin(after));
        assert!(table.evict(there(7)).is_some_and(|id| id != after), "a scrape is not cut");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(6)))]

        /// After any history, no connection with a request in flight is evicted, and a full table
        /// has a connection to evict for any newcomer.
        #[test]
        fn a_full_table_always_has_a_connection_to_evict(
            steps in proptest::collection::vec((0..6_u8, any::<u8>(), any::<u16>()), 0..2_000),
        ) {
            let mut table = ConnectionTable::default();
            let mut ids: Vec<u64> = Vec::new();
            let mut busy = std::collections::BTreeSet::new();
            for (step, peer, which) in steps {
                let peer = if peer < 64 { HERE } else { there(peer % 8) };
                let one = ids.get(usize::from(which) % ids.len().max(1)).copied();
                match (step, one) {
                    (0..=2, _) => {
                        if table.is_full() {
                            let goes = table.evict(peer);
                            prop_assert!(goes.is_some_and(|id| !busy.contains(&id)), "{goes:?}");
                            table.remove(goes.unwrap());
                            ids.retain(|id| Some(*id) != goes);
                        }
                        ids.push(table.add(peer));
                        prop_assert!(ids.len() <= CONNECTIONS_MAX);
                    }
                    (3..=4, Some(id)) => {
                        if table.begin(id).is_ok() {
                            busy.insert(id);
                        }
                        prop_assert!(busy.len() <= REQUESTS_MAX);
                    }
                    (5, Some(id)) => {
                        table.set_idle(id);
                        busy.remove(&id);
                    }
                    _ => {}
                }
            }
        }
    }
}
