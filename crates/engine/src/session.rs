//! One connection: a [`Transport`] that moves its bytes, a [`Protocol`] that knows what they mean,
//! and what the reactor remembers of it: how much of it is in the server, and what it waits for.

use crate::buffers::Lacking;
use crate::connection_limits::Slot;
use crate::handoff::Kept;
use crate::protocol::{Outcome, Protocol};
use crate::transport::Transport;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX};
use evenkeel_core::time::Instant;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::agent::HostAddress;
use std::os::fd::OwnedFd;

/// Bytes of reply heads that a client may leave unread before its requests are, and its options
/// while it shakes hands.
pub const REPLY_HEADS_BYTES_MAX: usize = 256 << 10;

/// How far a connection has come.
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

/// What a request may have to wait for before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The connection has as much in the server as it may: until a reply has left.
    Connection,
    /// The volume's queue is full: until something of it was dispatched.
    Queue,
    /// The core's payload memory is used up: until some comes back.
    Memory,
    /// It has had its turn of the handshake: until the others have had theirs.
    Turn,
    /// The volume is about to go to another core: until it is there, or stays after all.
    Departure,
    /// A connection that has ended has a change of the same bytes in the store: until that is done.
    Former,
}

/// How a connection stands with a volume's queue that was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// It waits for none.
    Free,
    /// In this volume's list of those who wait for room.
    Waiting(u32),
    /// Woken to use the room in this volume's queue.
    Woken(u32),
}

/// A connection that no core serves: a new one, or one between two cores, of which nothing is in
/// flight.
pub struct Connection {
    /// The socket.
    pub fd: OwnedFd,
    /// Who is at the other end.
    pub peer: HostAddress,
    /// Its place among all connections.
    pub slot: Slot,
    /// What it speaks, and what was agreed.
    pub protocol: Protocol,
    /// What has arrived and was not taken.
    pub leftover: Vec<u8>,
}

/// One connection.
pub struct Session {
    /// Who is at the other end.
    pub peer: HostAddress,
    /// Its place among all connections.
    pub slot: Slot,
    /// Its bytes.
    pub transport: Transport,
    /// What they mean.
    pub protocol: Protocol,
    /// Requests are left in the input because this bound was reached.
    pub parked: Option<Bound>,
    /// When the connection was made, or came to this core.
    pub connected_at: Instant,
    stage: Stage,
    /// Its volume is given up: what is cancelled of it is not answered.
    is_handed_over: bool,
    place: Place,
    /// Bytes of payload memory that its requests and unfetched replies hold.
    pub held_bytes: usize,
    /// In this volume's list of those who wait for memory, and who holds too much of it.
    memory_of: Option<(u32, Lacking)>,
    /// Requests that are parsed and not replied to.
    outstanding: u32,
    /// Their payload bytes.
    outstanding_bytes: u32,
    /// Requests that were taken, ever.
    taken: u64,
    /// Of a lent client: those that another data plane is to begin, by their numbers in `taken`,
    /// and the one that was arriving.
    left: Vec<(u64, Vec<u8>)>,
}

impl Session {
    /// Serves a connection.
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

    /// What goes to another core of a connection that is quiet.
    #[must_use]
    pub fn leave(self) -> Connection {
        let Self { peer, slot, transport, protocol, .. } = self;
        let (fd, leftover) = transport.into_parts();
        Connection { fd, peer, slot, protocol, leftover }
    }

    /// Whether nothing of it is in the server or in the driver's hands but what was not taken yet.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.transport.is_quiet() && !self.is_closing() && self.outstanding == 0
    }

    /// Whether the other end has to move for anything to go on here, and might not.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.transport.is_owed() || !self.protocol.is_bound()
    }
}

/// How far it has come.
impl Session {
    /// How far it has come.
    #[inline]
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Its volume's home is another core.
    pub fn begin_to_move(&mut self, volume: VolumeId, home: u16) {
        self.stage = Stage::Moving { volume, home };
    }

    /// A lent client's socket is to take this one's place.
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

    /// Whether no more requests are taken.
    #[inline]
    #[must_use]
    pub fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing | Stage::Shut)
    }

    /// The same, because its volume is given up: what is cancelled of it is not answered, so that
    /// the client asks for it elsewhere.
    pub fn begin_to_hand_over(&mut self) {
        self.begin_to_close();
        self.is_handed_over = true;
    }

    /// Whether its volume is given up.
    #[inline]
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    /// Whether the connection is a client's that was lent.
    #[inline]
    #[must_use]
    pub fn is_lent(&self) -> bool {
        self.slot.kept.as_ref().is_some_and(Kept::is_lent)
    }

    /// Whether it is a lent client's that is to go back to who has lent it.
    #[inline]
    #[must_use]
    pub fn goes_back(&self) -> bool {
        self.is_handed_over && self.stage == Stage::Closing && self.is_lent()
    }

    /// Shuts both directions.
    pub fn shut(&mut self) {
        self.stage = Stage::Shut;
        // It fails when the other end was faster, which is as good.
        let _ = rustix::net::shutdown(self.transport.fd(), rustix::net::Shutdown::Both);
    }

    /// Whether both directions are shut.
    #[inline]
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.stage == Stage::Shut
    }
}

/// What of it is in the server.
impl Session {
    /// Whether this connection may not have another request of `payload_bytes` in the server.
    #[inline]
    #[must_use]
    pub fn is_full(&self, payload_bytes: u32) -> bool {
        let held = self.transport.unsent_bytes() + self.outstanding_bytes as usize;
        self.outstanding as usize >= CONNECTION_REQUESTS_MAX
            || self.leaves_heads_unread()
            // The largest request must pass when nothing else is held.
            || held > 0 && held + payload_bytes as usize > CONNECTION_BYTES_MAX as usize
    }

    /// Whether the client has as many heads of replies to fetch as it may leave.
    #[inline]
    #[must_use]
    pub fn leaves_heads_unread(&self) -> bool {
        self.transport.unsent_head_bytes() > REPLY_HEADS_BYTES_MAX
    }

    /// Whether requests are parsed and not replied to.
    #[must_use]
    pub fn has_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// The number of a request that is about to be taken: a later one's is larger.
    #[inline]
    pub fn next_number(&mut self) -> u64 {
        self.taken += 1;
        self.taken
    }

    /// Keeps a request that another data plane is to begin, or the beginning of one.
    pub fn leave_to_others(&mut self, number: u64, request: Vec<u8>) {
        self.left.push((number, request));
    }

    /// What another data plane is to begin with, in the order in which it came.
    pub fn take_left(&mut self) -> Vec<u8> {
        let mut left = std::mem::take(&mut self.left);
        left.sort_unstable_by_key(|(number, _)| *number);
        left.into_iter().flat_map(|(_, request)| request).collect()
    }

    /// Notes a request of `payload_bytes` that is now in the server.
    #[inline]
    pub fn begun(&mut self, payload_bytes: u32) {
        self.outstanding += 1;
        self.outstanding_bytes += payload_bytes;
    }

    /// Notes that a request of `payload_bytes` was replied to or given up.
    #[inline]
    pub fn ended(&mut self, payload_bytes: u32) {
        self.outstanding -= 1;
        self.outstanding_bytes -= payload_bytes;
    }

    /// Appends the reply to a request, unless nobody can receive it any more. A read that was done
    /// gives up its `buffers`.
    #[inline]
    pub fn reply(&mut self, outcome: &Outcome<'_>, buffers: &mut Vec<Option<Buffer>>) {
        if !self.is_shut() {
            self.protocol.reply(outcome, buffers, self.transport.output());
        }
    }
}

/// What it waits for.
impl Session {
    /// Enters the list of those who wait for room in a volume's queue; whether it was not there.
    pub fn wait_for_room(&mut self, volume: u32) -> bool {
        self.parked = Some(Bound::Queue);
        std::mem::replace(&mut self.place, Place::Waiting(volume)) != Place::Waiting(volume)
    }

    /// Leaves that list because there is room now; whether it still waits for it.
    pub fn wake(&mut self, volume: u32) -> bool {
        if self.place != Place::Waiting(volume) {
            return false;
        }
        let waits = self.parked == Some(Bound::Queue);
        self.place = if waits { Place::Woken(volume) } else { Place::Free };
        waits
    }

    /// Uses its turn at a volume's queue; whether it has one.
    #[inline]
    pub fn use_turn(&mut self, volume: u32) -> bool {
        let has_turn = self.place == Place::Woken(volume);
        if has_turn {
            self.place = Place::Free;
        }
        has_turn
    }

    /// Gives up the turn that it has not used; at which volume's queue.
    #[inline]
    pub fn give_up_turn(&mut self) -> Option<u32> {
        let Place::Woken(volume) = self.place else { return None };
        self.place = Place::Free;
        Some(volume)
    }

    /// Enters the list of those who wait for a volume's memory; whether it was not there.
    pub fn wait_for_memory(&mut self, volume: u32, lacking: Lacking) -> bool {
        self.parked = Some(Bound::Memory);
        self.memory_of.replace((volume, lacking)).is_none_or(|(of, _)| of != volume)
    }

    /// Leaves that list.
    pub fn leave_memory_waiters(&mut self, volume: u32) {
        self.memory_of.take_if(|(of, _)| *of == volume);
    }

    /// Whether it is in that list: who holds too much of the memory.
    #[must_use]
    pub fn waits_for_memory(&self, volume: u32) -> Option<Lacking> {
        self.memory_of.filter(|(of, _)| *of == volume).map(|(_, lacking)| lacking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_limits::Slots;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    fn session() -> Session {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (slot, _) = Arc::new(Slots::default()).greet(HostAddress::Local, 0).unwrap();
        let (fd, peer, protocol) = (ours.into(), HostAddress::Local, Protocol::nbd());
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
        let mut session = session();
        assert!(session.wait_for_room(1) && !session.wait_for_room(1));
        assert!(!session.wake(2), "it waits for another volume");
        assert!(session.wake(1) && !session.wake(1));
        assert!(!session.use_turn(2) && session.use_turn(1) && !session.use_turn(1));
        assert!(session.wait_for_room(1) && session.wake(1));
        assert_eq!((session.give_up_turn(), session.give_up_turn()), (Some(1), None));
        let lacking = Lacking::Volume;
        assert!(session.wait_for_memory(1, lacking) && !session.wait_for_memory(1, lacking));
        session.leave_memory_waiters(2);
        assert_eq!([1, 2].map(|of| session.waits_for_memory(of)), [Some(lacking), None]);
        session.leave_memory_waiters(1);
        assert_eq!(session.waits_for_memory(1), None);
    }
}
