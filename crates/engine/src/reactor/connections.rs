//! A connection's life: handshake, receiving, sending, the end.

use super::{Message, Reactor, STOP_MAX, SWEEP_EVERY, memory};
use crate::connection_limits::Slot;
use crate::driver::{Driver, send_now};
use crate::handoff::Kept;
use crate::peer::Peer;
use crate::protocol::{Binding, Lobby, Negotiation, Protocol};
use crate::rate_limited_log::Notice;
use crate::session::{Bound, Connection, Session, Stage};
use crate::table::SessionId;
use crate::transport::OtherEnd;
use evenkeel_core::connection_limits::{ConnectionId, NoPlace};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::Duration;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Time limit for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Time limit without progress for a client that does not fetch its replies, or does not finish a
/// payload.
const STALL_MAX: Duration = Duration::from_secs(60);

impl<D: Driver> Reactor<D> {
    pub(super) fn connect(&mut self, fd: OwnedFd, peer: Peer, slot: Slot) {
        if self.stop_by.is_none() && !self.doors_closed {
            let number = slot.id;
            let protocol = Protocol::nbd(peer.host.is_some());
            let leftover = Vec::new();
            let connection = Connection { fd, peer, slot, protocol, leftover };
            let id = self.sessions.insert(Session::new(connection, self.now));
            self.handshakes.insert(number, id);
            self.watch();
            self.proceed(id);
        }
    }

    /// Closes the handshake of this connection, whose slot another client has got. It may have
    /// ended already.
    pub(super) fn evict(&mut self, connection: ConnectionId) {
        let Some(&id) = self.handshakes.get(&connection) else { return };
        let peer = self.sessions[id].peer;
        self.notices.tell(self.now, Notice::MadeRoom, |left_out| {
            let why = "a handshake is ended: its host has the most of them, and others come";
            tracing::info!(?peer, left_out, "{why}");
        });
        self.watch();
        self.close(id);
    }

    /// Accepts no new connection from now on, and closes handshakes without an answer: while
    /// volumes are being closed, every answer would be "no such export", after which clients do not
    /// try again.
    pub(super) fn close_doors(&mut self) {
        self.doors_closed = true;
        let ids: Vec<SessionId> = self.handshakes.values().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    /// Serves a connection at the home of the volume that its client has chosen.
    pub(super) fn arrive(&mut self, volume: VolumeId, mut connection: Connection) {
        let Some(&slot) = self.by_id.get(&volume) else {
            // The volume may have gone to another core meanwhile.
            let home = self.directory.get(volume).map(|entry| entry.home);
            let home = home.filter(|home| *home != self.core).map(usize::from);
            if let Some(inbox) = home.and_then(|home| self.inboxes.get(home)) {
                inbox.post(Message::Moved(volume, Box::new(connection)));
            }
            return;
        };
        // The volume may have been detached meanwhile.
        if !self.volumes[slot].allows(connection.peer) {
            return;
        }
        if self.stop_by.is_none() {
            let line = self.volumes[slot].line_of(connection.peer);
            connection.protocol.bind(Binding { id: volume, volume: slot, line });
            let id = self.sessions.insert(Session::new(connection, self.now));
            self.proceed(id);
        }
    }

    pub(super) fn received(&mut self, id: SessionId, result: Result<u32, Errno>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let is_cancelled = result == Err(Errno::CANCELED);
        let count = result.unwrap_or(0);
        session.transport.received(count as usize, self.now);
        if session.is_shut() {
            self.abandon_payload(id);
            return self.try_free(id);
        }
        if count == 0 && !is_cancelled {
            let has_loan = session.slot.kept.as_ref().is_some_and(Kept::has_loan);
            return if has_loan { self.exchange(id) } else { self.close(id) };
        }
        if session.is_closing() {
            // A write that was arriving when the volume was given up has not begun.
            self.abandon_payload(id);
        }
        self.proceed(id);
    }

    /// Consumes as much of the input as it can, then receives more if there is room.
    pub(super) fn proceed(&mut self, id: SessionId) {
        loop {
            let Some(session) = self.sessions.get_mut(id) else { return };
            session.parked = None;
            if session.is_closing() || session.transport.is_receiving_payload() {
                return self.try_free(id);
            }
            if matches!(session.stage(), Stage::Moving { .. } | Stage::Exchanging) {
                return self.sends(id);
            }
            let went_on = if session.protocol.is_bound() {
                !self.waits_for_departure(id) && self.parse(id)
            } else {
                self.negotiate(id)
            };
            if !went_on {
                break;
            }
        }
        self.sends(id);
        self.receive(id);
    }

    fn receive(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.stage() != Stage::Open {
            return;
        }
        if session.parked.is_some() {
            return self.watch_other_end(id);
        }
        let transport = &mut session.transport;
        let handle = transport.payload().map(|stretch| stretch.handle);
        let active = handle.and_then(|handle| self.active.get_mut(handle));
        let buffers = active.map_or(&mut [][..], |active| &mut active.buffers[..]);
        if let Some(message) = transport.next_receive(buffers) {
            // SAFETY: the transport and the request's buffers are neither moved, touched nor freed
            // while it is receiving.
            unsafe { self.driver.receive(id, transport.raw_fd(), message) };
            if transport.payload().is_some() {
                self.watch();
            }
        }
    }

    /// Takes one step of the negotiation. Returns whether there may be another in this turn.
    fn negotiate(&mut self, id: SessionId) -> bool {
        let session = &mut self.sessions[id];
        if session.leaves_heads_unread() {
            // A client may ask for a long list of exports many times.
            session.parked = Some(Bound::Connection);
            return false;
        }
        let Session { transport, protocol, slot, peer, .. } = session;
        let lobby = Lobby { directory: &self.directory, slot, peer: *peer };
        let (pending, output) = transport.pending_and_output();
        match protocol.negotiate(pending, output, &lobby) {
            Negotiation::Incomplete => return false,
            Negotiation::Consumed(count) => transport.consume(count),
            Negotiation::Answered => {}
            Negotiation::Yield => {
                session.parked = Some(Bound::Turn);
                self.ready.push(id);
                return false;
            }
            Negotiation::Denied(why) => self.tell_too_many(id, why),
            Negotiation::Chosen(volume) => self.agreed(id, volume),
            Negotiation::End => session.begin_to_close(),
        }
        true
    }

    /// Binds a connection whose client has chosen a volume to the volume, here or at its home.
    fn agreed(&mut self, id: SessionId, volume: VolumeId) {
        let session = &mut self.sessions[id];
        self.handshakes.remove(&session.slot.id);
        let Some((_, home)) = self.directory.find(volume, session.peer) else {
            return session.begin_to_close();
        };
        session.slot.host = self.directory.host_of(volume, session.peer);
        // There was a free slot when the client asked; another client may have taken it.
        if let Err(why) = session.slot.join(volume) {
            session.slot.report_refused(Some(volume), &why.to_string());
            session.begin_to_close();
            return self.tell_too_many(id, why);
        }
        if home != self.core {
            return session.begin_to_move(volume, home);
        }
        match self.by_id.get(&volume) {
            Some(&slot) => {
                let line = self.volumes[slot].line_of(session.peer);
                session.protocol.bind(Binding { id: volume, volume: slot, line });
            }
            None => session.begin_to_close(),
        }
    }

    fn tell_too_many(&mut self, id: SessionId, why: NoPlace) {
        let peer = self.sessions[id].peer;
        self.notices.tell(self.now, Notice::TooMany, |left_out| {
            tracing::warn!(?peer, left_out, "a connection is refused: {why}");
        });
        self.watch();
    }

    /// Lists a connection for sending, if it has output.
    pub(super) fn sends(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let moves = matches!(session.stage(), Stage::Moving { .. });
        if (session.transport.has_output() || moves) && session.transport.list() {
            self.to_send.push(id);
        }
    }

    pub(super) fn send_all(&mut self) {
        let mut ids = std::mem::take(&mut self.to_send);
        for id in ids.drain(..) {
            self.send(id);
        }
        // Connections that were listed meanwhile send in the next turn, which follows at once.
        ids.append(&mut self.to_send);
        self.to_send = ids;
    }

    /// Sends as much output as the socket takes; the driver sends the rest.
    fn send(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.transport.unlist();
        while !session.is_shut()
            && let Some(message) = session.transport.next_send()
        {
            let fd = session.transport.raw_fd();
            // SAFETY: the transport has just made the message.
            match unsafe { send_now(fd, message) } {
                Ok(count) => {
                    let shares = (&mut self.pool, &mut self.volumes);
                    memory::left(session, count as usize, self.now, shares);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    // SAFETY: the transport keeps what the message points to while it is in a send,
                    // and is not freed before.
                    unsafe { self.driver.send(id, fd, message) };
                    return self.watch();
                }
                Err(_) => {
                    session.transport.send_failed();
                    return self.close(id);
                }
            }
        }
        self.left(id);
    }

    pub(super) fn sent(&mut self, id: SessionId, result: Result<u32, Errno>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if result == Err(Errno::CANCELED) {
            session.transport.send_failed();
            return self.try_free(id);
        }
        let count = result.unwrap_or(0);
        let shares = (&mut self.pool, &mut self.volumes);
        memory::left(session, count as usize, self.now, shares);
        if count == 0 {
            return self.close(id);
        }
        // The rest of the output goes back with the client.
        let goes_back = self.sessions[id].goes_back();
        if goes_back && !self.sessions[id].has_outstanding() {
            return self.try_free(id);
        }
        self.send(id);
    }

    /// Proceeds after a connection's output has left: it may take more requests, move, or end.
    fn left(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.transport.is_in_send() {
            return;
        }
        if session.is_closing() {
            return self.try_free(id);
        }
        if session.parked == Some(Bound::Connection) {
            self.ready.push(id);
        }
        match session.stage() {
            Stage::Moving { volume, home } => self.move_home(id, volume, home),
            Stage::Exchanging => self.exchange(id),
            _ => {}
        }
    }

    /// Hands a connection over to its volume's home core. The driver has no operation of it: the
    /// negotiation is over, so no receive was begun, and the last reply has left.
    fn move_home(&mut self, id: SessionId, volume: VolumeId, home: u16) {
        let connection = Box::new(self.sessions.remove(id).leave());
        if let Some(inbox) = self.inboxes.get(usize::from(home)) {
            inbox.post(Message::Moved(volume, connection));
        }
    }

    /// Shuts a connection, and cancels its requests that wait.
    pub(super) fn close(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if !session.is_shut() {
            session.shut();
            self.abandon_payload(id);
            self.cancel_of(id);
            self.note_former(id);
        }
        self.try_free(id);
    }

    /// Frees a connection that is closing and has nothing left to wait for.
    pub(super) fn try_free(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.is_closing() && session.has_outstanding() {
            return self.watch_other_end(id);
        }
        if session.goes_back() {
            return self.return_client(id);
        }
        if !session.is_closing() || session.transport.is_in_send() {
            return;
        }
        if !session.is_shut() {
            if session.transport.has_unsent() {
                return self.sends(id);
            }
            session.shut();
        }
        let transport = &session.transport;
        if transport.is_receiving() || transport.other_end == OtherEnd::Watched {
            return;
        }
        let mut session = self.sessions.remove(id);
        self.handshakes.remove(&session.slot.id);
        memory::abandon(&mut session, (&mut self.pool, &mut self.volumes));
        for binding in session.protocol.bindings() {
            self.settle(binding.volume);
        }
    }

    /// Makes sure that overdue connections are checked.
    pub(super) fn watch(&mut self) {
        self.next_sweep.get_or_insert(self.now + SWEEP_EVERY);
    }

    /// Closes connections whose clients are overdue, and frees unneeded buffers. Schedules the next
    /// check if one is needed.
    pub(super) fn sweep(&mut self) {
        if !self.pool.is_empty() || self.notices.owes() {
            self.watch();
        }
        if self.next_sweep.is_none_or(|time| self.now < time) {
            return;
        }
        let now = self.now;
        self.pool.trim();
        self.notices.tell_rest(now);
        let mut late = Vec::new();
        let mut owed = false;
        for (id, session) in self.sessions.iter().filter(|(_, session)| session.is_owed()) {
            owed = true;
            let (since, max) = if session.protocol.is_bound() {
                (session.transport.progress_at(), STALL_MAX)
            } else {
                (session.connected_at, HANDSHAKE_MAX)
            };
            if now.since(since) > max {
                late.push(id);
            }
        }
        for id in late {
            let Some(&Session { peer, .. }) = self.sessions.get(id) else { continue };
            self.notices.tell(now, Notice::Stopped, |left_out| {
                let why = "a connection is closed: its client stopped in the middle";
                tracing::info!(?peer, left_out, "{why}");
            });
            self.close(id);
        }
        let more = owed || !self.pool.is_empty() || self.notices.owes();
        self.next_sweep = more.then(|| now + SWEEP_EVERY);
    }

    /// Begins to stop: takes no more requests, fails those that wait for tokens, and completes and
    /// answers those in the stores.
    pub(super) fn stop(&mut self) {
        self.stop_by.get_or_insert(self.now + STOP_MAX);
        let ids: Vec<SessionId> = self.sessions.iter().map(|(id, _)| id).collect();
        for id in ids {
            // Closing one connection may have freed another.
            let Some(session) = self.sessions.get_mut(id) else { continue };
            if session.is_lent() {
                session.begin_to_hand_over();
                self.hand_over(id);
                continue;
            }
            session.begin_to_close();
            if session.transport.payload().is_some() {
                // Its request cannot be finished, and the stream cannot be resumed behind it.
                self.close(id);
                continue;
            }
            self.cancel_of(id);
            self.sends(id);
            self.try_free(id);
        }
    }
}
