//! Lent client sockets: each takes the place of the connection made for it, and returns when the
//! volume is given up.
//!
//! A client goes back with its unsent replies, then all that it has sent and the data plane has not
//! begun, from requests that waited for tokens to the first bytes of a request's head. So the
//! lender can continue to serve it, and each request is answered once.

use super::{Reactor, memory};
use crate::driver::Driver;
use crate::handoff::{Kept, Returned};
use crate::session::Session;
use crate::table::{RequestId, SessionId, VolumeSlot};
use crate::transport::OtherEnd;
use evenkeel_core::connection_limits::ConnectionId;
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::request::Operation;

impl<D: Driver> Reactor<D> {
    /// Has a lent client's socket take a connection's place, once the connection is quiet: its end
    /// was received, and its last reply has left.
    pub(super) fn exchange(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.begin_to_exchange();
        if session.transport.other_end == OtherEnd::Watched {
            self.driver.cancel_watch(id);
        }
        let is_served = session.protocol.is_bound() && session.transport.pending().is_empty();
        if session.is_closing() || !is_served {
            // The loan goes back when the connection is freed.
            return self.close(id);
        }
        if !session.is_quiet() {
            return self.sends(id);
        }
        let mut connection = self.sessions.remove(id).leave();
        // `has_loan` was true, and only this core takes it.
        let loan = connection.slot.kept.as_mut().and_then(Kept::borrow);
        let Some((client, unread)) = loan else { return };
        (connection.fd, connection.leftover) = (client, unread);
        let id = self.sessions.insert(Session::new(connection, self.now));
        self.proceed(id);
    }

    /// Gives the lent client of this connection back to its lender, if it is here.
    pub(super) fn recall(&mut self, connection: ConnectionId) {
        let is_it = |session: &Session| session.slot.id == connection && session.is_lent();
        let found = self.sessions.iter().find(|(_, session)| is_it(session));
        let Some((id, _)) = found else { return };
        let session = &mut self.sessions[id];
        if !session.is_shut() && !session.is_handed_over() {
            session.begin_to_hand_over();
            self.hand_over(id);
        }
    }

    /// Gives lent clients back whose volume is served elsewhere, according to its store.
    pub(super) fn return_elsewhere(&mut self) {
        for id in std::mem::take(&mut self.elsewhere) {
            // The connection may have ended meanwhile.
            if self.sessions.get(id).is_some_and(Session::goes_back) {
                self.hand_over(id);
            }
        }
    }

    /// Returns whether a connection's request that was not carried out is left to another data
    /// plane.
    pub(super) fn is_left_to_others(&mut self, id: SessionId) -> bool {
        let session = &mut self.sessions[id];
        if session.is_lent() && !session.is_shut() && !session.is_handed_over() {
            // The volume was not given up here, but its store carries nothing out any more.
            session.begin_to_hand_over();
            self.elsewhere.push(id);
        }
        session.is_handed_over()
    }

    /// Keeps a request for another data plane, with the first `payload_bytes` of its payload, if
    /// its client goes back to its lender. A client that was not lent repeats the request itself.
    pub(super) fn leave_to_others(&mut self, handle: RequestId, payload_bytes: u32) {
        let active = &self.active[handle];
        let id = active.session();
        let session = &mut self.sessions[id];
        if !session.goes_back() {
            return;
        }
        let mut bytes = session.protocol.ask_again(active.tag, &active.request);
        if matches!(active.request.operation, Operation::Write { .. }) {
            let mut left = payload_bytes;
            for buffer in &active.buffers {
                let count = left.min(QUANTUM_BYTES_MAX);
                let Some(buffer) = buffer.as_ref().filter(|_| count > 0) else { break };
                bytes.extend_from_slice(&buffer.bytes()[..count as usize]);
                left -= count;
            }
            if left > 0 {
                // A store has kept the buffer: the client gets no reply, which is better than a
                // request with half of its payload.
                tracing::error!(request = ?active.request, "a request cannot be handed over");
                return self.sessions[id].shut();
            }
        }
        session.leave_to_others(active.number, bytes);
    }

    /// Gives a lent client back that has no request in the server, once the driver has no operation
    /// of its socket.
    pub(super) fn return_client(&mut self, id: SessionId) {
        let transport = &self.sessions[id].transport;
        let is_watched = transport.other_end == OtherEnd::Watched;
        let receives = transport.is_receiving();
        let sends = transport.is_in_send();
        if receives {
            self.driver.cancel_receive(id);
        }
        if sends {
            self.driver.cancel_send(id);
        }
        if is_watched {
            self.driver.cancel_watch(id);
        }
        if receives || sends || is_watched {
            return;
        }
        let mut session = self.sessions.remove(id);
        let unsent = session.transport.unsent();
        memory::abandon(&mut session, (&mut self.pool, &mut self.volumes));
        let mut unread = session.take_left();
        let volumes: Vec<VolumeSlot> =
            session.protocol.bindings().iter().map(|b| b.volume).collect();
        let unskipped = session.protocol.unskipped();
        let mut connection = session.leave();
        let back = connection.slot.kept.as_mut().and_then(Kept::take_back);
        // The slot is free before the lender continues with the client.
        drop(connection.slot);
        let arrived = &connection.leftover;
        let of_refused = arrived.len().min(unskipped as usize);
        unread.extend_from_slice(&arrived[of_refused..]);
        let skipped = unskipped - of_refused as u32;
        if let Some(back) = back {
            back(Returned { client: connection.fd, unsent, unread, skipped });
        }
        volumes.into_iter().for_each(|slot| self.settle(slot));
    }
}
