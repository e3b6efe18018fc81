//! One connection: a [`Transport`] that moves its bytes, a [`Protocol`] that interprets them, and
//! the reactor's state: its requests in the server, and the reasons for which it waits.

use crate::buffers::Lacking;
use crate::connection_limits::Slot;
use crate::handoff::Kept;
use crate::peer::Peer;
use crate::protocol::{Outcome, Protocol};
use crate::table::VolumeSlot;
use crate::transport::Transport;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX};
use evenkeel_core::time::Instant;
use evenkeel_store::buffer::Buffer;
use std::os::fd::OwnedFd;

/// Bytes of reply heads that a client may leave unread before the server takes no more requests of
/// it, or options during the handshake.
pub const REPLY_HEADS_BYTES_MAX: usize = 256 << 10;

/// Stage of a connection's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It negotiates or is served.
    Open,
    /// It has chosen a volume and moves to the volume's home core once its last reply has left.
    Moving {
        /// The volume.
        volume: VolumeId,
        /// The core.
        home: u16,
    },
    /// A lent client's socket takes this one's place once its last reply has left.
    Exchanging,
    /// No more requests are taken; it ends when nothing is outstanding.
    Closing,
    /// Both directions are shut; its slot is freed when the driver lets go.
    Shut,
}

/// Reason for which a connection's next request waits in the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The connection has its maximum in the server: until a reply has left.
    Connection,
    /// The volume's queue is full: until a request of it is dispatched.
    Queue,
    /// The core's payload memory is used up: until some comes back.
    Memory,
    /// It has had its turn of the handshake: until other connections have had theirs.
    Turn,
    /// The volume is about to go to another core: until it is there, or stays after all.
    Departure,
    /// A former connection has a change of the same bytes in the store: until that is done.
    Former,
}

/// Place of a connection in the queue for a volume's room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// It does not wait.
    Free,
    /// In this volume's list of connections that wait for room.
    Waiting(VolumeSlot),
    /// Woken to use the room in this volume's queue.
    Woken(VolumeSlot),
}

/// A connection that no core serves: a new one, or one between two cores. Nothing of it is in
/// flight.
pub struct Connection {
    /// The socket.
    pub fd: OwnedFd,
    /// Address of the client.
    pub peer: Peer,
    /// Its slot among all connections.
    pub slot: Slot,
    /// Its protocol, with the state of the negotiation.
    pub protocol: Protocol,
    /// Bytes that have arrived and were not consumed.
    pub leftover: Vec<u8>,
}

/// One connection.
pub struct Session {
    /// Address of the client.
    pub peer: Peer,
    /// Its slot among all connections.
    pub slot: Slot,
    /// Its socket and its bytes.
    pub transport: Transport,
    /// The interpretation of its bytes.
    pub protocol: Protocol,
    /// The reason why requests are left in the input, if they are.
    pub parked: Option<Bound>,
    /// Time at which the connection was made, or came to this core.
    pub connected_at: Instant,
    stage: Stage,
    /// Its volume is given up: cancelled requests are not answered.
    is_handed_over: bool,
    place: Place,
    /// Bytes of payload memory that its requests and unfetched replies hold.
    pub held_bytes: usize,
    /// The volume in whose list of memory waiters it is, and what limit it has reached.
    memory_of: Option<(VolumeSlot, Lacking)>,
    /// Requests that are parsed and not replied to.
    outstanding: u32,
    /// Payload bytes of these requests.
    outstanding_bytes: u32,
    /// Number of requests taken so far.
    taken: u64,
    /// Requests of a lent client that another data plane is to begin, by their numbers in `taken`,
    /// including the one that was arriving.
    left: Vec<(u64, Vec<u8>)>,
}

impl Session {
    /// Creates the session of a connection.
    #[must_use]
    pub fn new(connection: Connection, now: Instant) -> Self {
        let Connection { fd, peer, slot, protocol, leftover } = connection;
        Self {
            peer,
            slot,
            transport: Transport::new(fd, &leftover, now),
            protocol,
            parked: None,
            connected_at: now,
            stage: Stage::Open,
            is_handed_over: false,
            place: Place::Free,
            held_bytes: 0,
            memory_of: None,
            outstanding: 0,
            outstanding_bytes: 0,
            taken: 0,
            left: Vec::new(),
        }
    }

    /// Converts a quiet connection for the move to another core.
    #[must_use]
    pub fn leave(self) -> Connection {
        let Self { peer, slot, transport, protocol, .. } = self;
        let (fd, leftover) = transport.into_parts();
        Connection { fd, peer, slot, protocol, leftover }
    }

    /// Returns whether neither the server nor the driver has anything of it except input that was
    /// not consumed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.transport.is_quiet() && !self.is_closing() && self.outstanding == 0
    }

    /// Returns whether it waits for its client to send or to fetch something, which may never
    /// happen.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.transport.is_owed() || !self.protocol.is_bound()
    }
}

/// The connection's stage.
impl Session {
    /// Returns the stage.
    #[inline]
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Begins the move to the home of its volume, another core.
    pub fn begin_to_move(&mut self, volume: VolumeId, home: u16) {
        self.stage = Stage::Moving { volume, home };
    }

    /// Begins the exchange with a lent client's socket.
    pub fn begin_to_exchange(&mut self) {
        if self.stage == Stage::Open {
            self.stage = Stage::Exchanging;
        }
    }

    /// Takes no more requests from now on.
    pub fn begin_to_close(&mut self) {
        if self.stage != Stage::Shut {
            self.stage = Stage::Closing;
        }
    }

    /// Returns whether no more requests are taken.
    #[inline]
    #[must_use]
    pub fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing | Stage::Shut)
    }

    /// Begins to close because its volume is given up. Cancelled requests are not answered, so that
    /// the client repeats them elsewhere.
    pub fn begin_to_hand_over(&mut self) {
        self.begin_to_close();
        self.is_handed_over = true;
    }

    /// Returns whether its volume is given up.
    #[inline]
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    /// Returns whether the connection is a lent client's.
    #[inline]
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.slot.kept.as_ref().is_some_and(Kept::is_lent)
    }

    /// Returns whether the connection is a lent client's that goes back to its lender.
    #[inline]
    #[must_use]
    pub fn goes_back(&self) -> bool {
        self.is_handed_over && self.stage == Stage::Closing && self.is_lent()
    }

    /// Shuts both directions.
    pub fn shut(&mut self) {
        self.stage = Stage::Shut;
        // Fails if the client was faster, which has the same effect.
        let _ = rustix::net::shutdown(self.transport.fd(), rustix::net::Shutdown::Both);
    }

    /// Returns whether both directions are shut.
    #[inline]
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.stage == Stage::Shut
    }
}

/// Requests and bytes in the server.
impl Session {
    /// Returns whether the connection may not have another request of `payload_bytes` in the
    /// server.
    #[inline]
    #[must_use]
    pub fn is_full(&self, payload_bytes: u32) -> bool {
        let held = self.transport.unsent_bytes() + self.outstanding_bytes as usize;
        self.outstanding as usize >= CONNECTION_REQUESTS_MAX
            || self.leaves_heads_unread()
            // The largest request must pass when nothing else is held.
            || held > 0 && held + payload_bytes as usize > CONNECTION_BYTES_MAX as usize
    }

    /// Returns whether the client has its maximum of reply heads to fetch.
    #[inline]
    #[must_use]
    pub fn leaves_heads_unread(&self) -> bool {
        self.transport.unsent_head_bytes() > REPLY_HEADS_BYTES_MAX
    }

    /// Returns whether requests are parsed and not replied to.
    #[must_use]
    pub fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Returns the number of the next request. Numbers increase.
    #[inline]
    pub fn next_number(&mut self) -> u64 {
        self.taken += 1;
        self.taken
    }

    /// Keeps a request, or its beginning, that another data plane is to begin.
    pub fn leave_to_others(&mut self, number: u64, request: Vec<u8>) {
        self.left.push((number, request));
    }

    /// Removes the requests that another data plane is to begin, and returns their bytes in order
    /// of arrival.
    pub fn take_left(&mut self) -> Vec<u8> {
        let mut left = std::mem::take(&mut self.left);
        left.sort_unstable_by_key(|(number, _)| *number);
        left.into_iter().flat_map(|(_, request)| request).collect()
    }

    /// Records a request of `payload_bytes` that is now in the server.
    #[inline]
    pub fn begun(&mut self, payload_bytes: u32) {
        self.outstanding += 1;
        self.outstanding_bytes += payload_bytes;
    }

    /// Records that a request of `payload_bytes` was replied to or given up.
    #[inline]
    pub fn ended(&mut self, payload_bytes: u32) {
        self.outstanding -= 1;
        self.outstanding_bytes -= payload_bytes;
    }

    /// Appends the reply to a request, unless the connection is shut. The `buffers` of a successful
    /// read are moved to the output.
    #[inline]
    pub fn reply(&mut self, outcome: &Outcome<'_>, buffers: &mut Vec<Option<Buffer>>) {
        if !self.is_shut() {
            self.protocol.reply(outcome, buffers, self.transport.output());
        }
    }
}

/// Waiting for room, turns and memory.
impl Session {
    /// Enters the list of connections that wait for room in a volume's queue. Returns whether it
    /// was not in the list.
    pub fn wait_for_room(&mut self, volume: VolumeSlot) -> bool {
        self.parked = Some(Bound::Queue);
        std::mem::replace(&mut self.place, Place::Waiting(volume)) != Place::Waiting(volume)
    }

    /// Leaves that list because there is room now. Returns whether it still waits for it.
    pub fn wake(&mut self, volume: VolumeSlot) -> bool {
        if self.place != Place::Waiting(volume) {
            return false;
        }
        let waits = self.parked == Some(Bound::Queue);
        self.place = if waits { Place::Woken(volume) } else { Place::Free };
        waits
    }

    /// Uses its turn at a volume's queue. Returns whether it has one.
    #[inline]
    pub fn use_turn(&mut self, volume: VolumeSlot) -> bool {
        let has_turn = self.place == Place::Woken(volume);
        if has_turn {
            self.place = Place::Free;
        }
        has_turn
    }

    /// Gives up a turn that it has not used. Returns the volume of that queue.
    #[inline]
    pub fn give_up_turn(&mut self) -> Option<VolumeSlot> {
        let Place::Woken(volume) = self.place else { return None };
        self.place = Place::Free;
        Some(volume)
    }

    /// Enters the list of connections that wait for a volume's memory. Returns whether it was not
    /// in the list.
    pub fn wait_for_memory(&mut self, volume: VolumeSlot, lacking: Lacking) -> bool {
        self.parked = Some(Bound::Memory);
        self.memory_of.replace((volume, lacking)).is_none_or(|(of, _)| of != volume)
    }

    /// Leaves that list.
    pub fn leave_memory_waiters(&mut self, volume: VolumeSlot) {
        self.memory_of.take_if(|(of, _)| *of == volume);
    }

    /// Returns the limit for which it is in that list; `None` if it is not.
    #[must_use]
    pub fn waits_for_memory(&self, volume: VolumeSlot) -> Option<Lacking> {
        self.memory_of.filter(|(of, _)| *of == volume).map(|(_, lacking)| lacking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_limits::Slots;
    use evenkeel_wire::agent::HostAddress;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    fn session() -> Session {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (slot, _) = Slot::greet(&Arc::new(Slots::default()), HostAddress::Local, 0).unwrap();
        let fd = ours.into();
        let peer = HostAddress::Local.into();
        let protocol = Protocol::nbd(false);
        let connection = Connection { fd, peer, slot, protocol, leftover: Vec::new() };
        Session::new(connection, Instant::from_ns(0))
    }

    #[test]
    fn a_connection_holds_a_bounded_number_of_requests_and_bytes() {
        let mut session = session();
        let largest = evenkeel_core::limits::REQUEST_BYTES_MAX;
        assert!(!session.is_full(largest), "the largest request passes when alone");
        session.begun(4_096);
        assert!(session.is_full(CONNECTION_BYTES_MAX));
        session.ended(4_096);
        for _ in 0..CONNECTION_REQUESTS_MAX {
            assert!(!session.is_full(0));
            session.begun(0);
        }
        assert!(session.is_full(0));
    }

    #[test]
    fn a_turn_at_one_volume_is_none_at_another() {
        const ONE: VolumeSlot = VolumeSlot::for_test(1);
        const OTHER: VolumeSlot = VolumeSlot::for_test(2);
        let mut session = session();
        assert!(session.wait_for_room(ONE) && !session.wait_for_room(ONE));
        assert!(!session.wake(OTHER), "it waits for another volume");
        assert!(session.wake(ONE) && !session.wake(ONE));
        assert!(!session.use_turn(OTHER) && session.use_turn(ONE) && !session.use_turn(ONE));
        assert!(session.wait_for_room(ONE) && session.wake(ONE));
        assert_eq!((session.give_up_turn(), session.give_up_turn()), (Some(ONE), None));
        let lacking = Lacking::Volume;
        assert!(session.wait_for_memory(ONE, lacking) && !session.wait_for_memory(ONE, lacking));
        session.leave_memory_waiters(OTHER);
        assert_eq!(
            [ONE, OTHER].map(|volume| session.waits_for_memory(volume)),
            [Some(lacking), None]
        );
        session.leave_memory_waiters(ONE);
        assert_eq!(session.waits_for_memory(ONE), None);
    }
}
