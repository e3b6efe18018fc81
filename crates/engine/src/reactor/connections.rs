//! A connection's life: handshake, receiving, sending, the end.

use super::{Mail, Reactor, STOP_MAX, SWEEP_EVERY, memory};
use crate::driver::{Driver, send_now};
use crate::notices::Notice;
use crate::session::{Bound, Moved, OtherEnd, Phase, Session};
use crate::slots::{NoPlace, Slot};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::Duration;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::nbd::handshake::{Listed, Negotiated, Step};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};

/// How long a client may take to agree on an export.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// How long a client may leave us waiting in the middle of something: with replies it does not
/// fetch, or a payload it does not finish.
const STALL_MAX: Duration = Duration::from_secs(60);

impl<D: Driver> Reactor<D> {
    pub(super) fn connect(&mut self, fd: OwnedFd, peer: HostAddress, slot: Slot) {
        if self.stop_by.is_none() && !self.doors_closed {
            let ticket = slot.ticket;
            let id = self.sessions.insert(Session::new(fd, peer, slot, self.now)) as u32;
            self.handshakes.insert(ticket, id);
            self.watch();
            self.proceed(id);
        }
    }

    /// Ends a handshake whose place another has. It may have ended by itself.
    pub(super) fn evict(&mut self, ticket: u64) {
        let Some(&id) = self.handshakes.get(&ticket) else { return };
        let peer = self.sessions[id as usize].peer;
        self.notices.tell(self.now, Notice::MadeRoom, |left_out| {
            let why = "a handshake is ended: its host has the most of them, and others come";
            tracing::info!(?peer, left_out, "{why}");
        });
        self.watch();
        self.close(id);
    }

    /// From here on nobody new is served. Who still shakes hands is sent away without an answer:
    /// while volumes are being closed every answer would be "no such export", after which clients
    /// do not come back.
    pub(super) fn close_doors(&mut self) {
        self.doors_closed = true;
        let ids: Vec<u32> = self.handshakes.values().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    /// A connection comes home.
    pub(super) fn arrive(&mut self, moved: Moved) {
        let id = moved.negotiated.export.name.parse().ok();
        let slot = id.and_then(|id| self.by_id.get(&id)).copied();
        let Some(slot) = slot else {
            // The volume may have gone to another core meanwhile.
            let home = id.and_then(|id| self.directory.get(id)).map(|entry| entry.home);
            let home = home.filter(|home| *home != self.core).map(usize::from);
            if let Some(mailbox) = home.and_then(|home| self.mailboxes.get(home)) {
                mailbox.post(Mail::Moved(Box::new(moved)));
            }
            return;
        };
        // It may have been detached since.
        if !self.volumes[slot as usize].allows(moved.peer) {
            return;
        }
        if self.stop_by.is_none() {
            let mut session = Session::arrived(moved, slot, self.now);
            session.line = self.volumes[slot as usize].line_of(session.peer);
            let id = self.sessions.insert(session) as u32;
            self.proceed(id);
        }
    }

    pub(super) fn received(&mut self, id: u32, result: Result<u32, Errno>) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        let is_cancelled = result == Err(Errno::CANCELED);
        let count = result.unwrap_or(0);
        session.received(count as usize, self.now);
        if session.shut {
            self.abandon_payload(id);
            return self.try_free(id);
        }
        if count == 0 && !is_cancelled {
            return self.close(id);
        }
        self.proceed(id);
    }

    /// Consumes what has arrived as far as it can, then receives more if there is room.
    pub(super) fn proceed(&mut self, id: u32) {
        loop {
            let Some(session) = self.sessions.get_mut(id as usize) else { return };
            session.parked = None;
            if session.closing || session.receiving && session.incoming.is_some() {
                return self.try_free(id);
            }
            let went_on = match session.phase {
                Phase::Handshake(_) => self.shake_hands(id),
                Phase::Moving(..) => return self.sends(id),
                Phase::Transmission(slot, terms) => {
                    !self.waits_for_departure(id, slot) && self.parse(id, slot, terms)
                }
            };
            if !went_on {
                break;
            }
        }
        self.sends(id);
        self.receive(id);
    }

    fn receive(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        if session.closing || matches!(session.phase, Phase::Moving(..)) {
            return;
        }
        if session.parked.is_some() {
            return self.watch_other_end(id);
        }
        let handle = session.incoming.as_ref().map(|incoming| incoming.handle as usize);
        let active = handle.and_then(|handle| self.active.get_mut(handle));
        let buffers = active.map_or(&mut [][..], |active| &mut active.buffers[..]);
        if let Some(message) = session.next_receive(buffers) {
            // SAFETY: the session and the request's buffers are neither moved, touched nor freed
            // while `receiving` is set.
            unsafe { self.driver.receive(id, session.fd.as_raw_fd(), message) };
            if session.incoming.is_some() {
                self.watch();
            }
        }
    }

    /// One step of the handshake; whether there may be another in this turn.
    fn shake_hands(&mut self, id: u32) -> bool {
        let session = &mut self.sessions[id as usize];
        if session.leaves_heads_unread() {
            // A list of many exports can be asked for many times.
            session.parked = Some(Bound::Connection);
            return false;
        }
        let Phase::Handshake(server) = &mut session.phase else { return false };
        match server.poll_output() {
            Some(Step::Send(bytes)) => {
                session.output.head(&bytes);
                session.answered = true;
            }
            Some(Step::WantExport(name)) => {
                let export = self.directory.export(&name, session.peer);
                // There are no other names than those of volumes.
                let place = name.parse().map_or(Ok(()), |volume| session.slot.may_join(volume));
                match (export, place) {
                    (Some((export, _)), Ok(())) => server.export(Some(export)),
                    (Some(_), Err(why)) => {
                        server.deny(&why.to_string());
                        self.tell_too_many(id, why);
                    }
                    (None, _) => server.export(None),
                }
            }
            Some(Step::WantList) => {
                let names = self.directory.names(session.peer);
                let listed = |name| Listed { name, description: "" };
                server.list(&names.iter().map(|name| listed(name)).collect::<Vec<_>>());
            }
            Some(Step::Ready(negotiated)) => self.agreed(id, negotiated),
            Some(Step::Close(reason)) => {
                tracing::debug!(%reason, "a handshake ended");
                session.closing = true;
            }
            None => {
                if std::mem::take(&mut session.answered) && session.start < session.end {
                    // Options that all arrived at once are not all answered at once: a list of many
                    // exports is work.
                    session.parked = Some(Bound::Turn);
                    self.ready.push(id);
                    return false;
                }
                let consumed = server.handle(&session.input[session.start..session.end]);
                session.start += consumed;
                return consumed > 0;
            }
        }
        true
    }

    /// A client and we have agreed on an export: it becomes one of the volume's, here or at its
    /// home.
    fn agreed(&mut self, id: u32, negotiated: Negotiated) {
        let session = &mut self.sessions[id as usize];
        self.handshakes.remove(&session.slot.ticket);
        let export = self.directory.export(&negotiated.export.name, session.peer);
        let volume = negotiated.export.name.parse::<VolumeId>();
        let (Some((_, home)), Ok(volume)) = (export, volume) else {
            return session.closing = true;
        };
        // There was a place when it asked; another may have been faster.
        if let Err(why) = session.slot.join(volume) {
            session.closing = true;
            return self.tell_too_many(id, why);
        }
        if home != self.core {
            session.phase = Phase::Moving(Box::new(negotiated), home);
            return;
        }
        match self.by_id.get(&volume) {
            Some(&slot) => {
                session.phase = Phase::Transmission(slot, negotiated.terms());
                session.line = self.volumes[slot as usize].line_of(session.peer);
            }
            None => session.closing = true,
        }
    }

    fn tell_too_many(&mut self, id: u32, why: NoPlace) {
        let peer = self.sessions[id as usize].peer;
        self.notices.tell(self.now, Notice::TooMany, |left_out| {
            tracing::warn!(?peer, left_out, "a connection is refused: {why}");
        });
        self.watch();
    }

    /// Lists a connection as having something to send, if it has.
    pub(super) fn sends(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        let idle = session.output.is_empty() && !matches!(session.phase, Phase::Moving(..));
        if !session.in_to_send && !session.in_send && !idle {
            session.in_to_send = true;
            self.to_send.push(id);
        }
    }

    pub(super) fn send_all(&mut self) {
        let mut ids = std::mem::take(&mut self.to_send);
        for id in ids.drain(..) {
            self.send(id);
        }
        // What was listed meanwhile is sent in the next turn, which follows at once.
        ids.append(&mut self.to_send);
        self.to_send = ids;
    }

    /// Sends what there is, as far as the socket takes it; the driver sends the rest.
    fn send(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        session.in_to_send = false;
        while !session.shut
            && let Some(message) = session.next_send()
        {
            let fd = session.fd.as_raw_fd();
            // SAFETY: the session has just made the message.
            match unsafe { send_now(fd, message) } {
                Ok(count) => {
                    let shares = (&mut self.pool, &mut self.volumes);
                    memory::left(session, count as usize, self.now, shares);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    // SAFETY: the session keeps what the message points to while `in_send` is set,
                    // and is not freed before.
                    unsafe { self.driver.send(id, fd, message) };
                    return self.watch();
                }
                Err(_) => {
                    session.in_send = false;
                    return self.close(id);
                }
            }
        }
        self.left(id);
    }

    pub(super) fn sent(&mut self, id: u32, count: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        let shares = (&mut self.pool, &mut self.volumes);
        memory::left(session, count as usize, self.now, shares);
        if count == 0 {
            return self.close(id);
        }
        self.send(id);
    }

    /// What had to be sent has left: there is room for more requests, or nothing left to stay for.
    fn left(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        if session.in_send {
            return;
        }
        if session.closing {
            return self.try_free(id);
        }
        if session.parked == Some(Bound::Connection) {
            self.ready.push(id);
        }
        if matches!(session.phase, Phase::Moving(..)) {
            self.move_home(id);
        }
    }

    /// Hands a connection over to its volume's home core. Nothing of it is in the kernel: the
    /// handshake is over, so no receive was begun, and the last reply has left.
    fn move_home(&mut self, id: u32) {
        let session = self.sessions.remove(id as usize);
        let leftover = session.pending().to_vec();
        let Session { fd, peer, slot, phase: Phase::Moving(negotiated, home), .. } = session else {
            return;
        };
        let moved = Box::new(Moved { fd, peer, slot, negotiated, leftover });
        if let Some(mailbox) = self.mailboxes.get(usize::from(home)) {
            mailbox.post(Mail::Moved(moved));
        }
    }

    /// The connection is gone: what waits for it is cancelled.
    pub(super) fn close(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        if !session.shut {
            session.closing = true;
            shut(session);
            self.abandon_payload(id);
            self.cancel_of(id);
        }
        self.try_free(id);
    }

    /// Ends a connection that wants to end and has nothing left to wait for.
    pub(super) fn try_free(&mut self, id: u32) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        if session.closing && session.outstanding > 0 {
            return self.watch_other_end(id);
        }
        if !session.closing || session.in_send {
            return;
        }
        if !session.shut {
            if !session.output.is_empty() || !session.sending.is_empty() {
                return self.sends(id);
            }
            shut(session);
        }
        if session.receiving || session.other_end == OtherEnd::Watched {
            return;
        }
        let mut session = self.sessions.remove(id as usize);
        self.handshakes.remove(&session.slot.ticket);
        memory::abandon(&mut session, (&mut self.pool, &mut self.volumes));
        if let Phase::Transmission(slot, _) = session.phase {
            self.settle(slot);
        }
    }

    /// Makes sure that connections which owe us something are looked at.
    pub(super) fn watch(&mut self) {
        self.next_sweep.get_or_insert(self.now + SWEEP_EVERY);
    }

    /// Closes connections that leave us waiting and gives unneeded memory back; goes on looking
    /// while there is something to look at.
    pub(super) fn sweep(&mut self) {
        if !self.pool.is_empty() || self.notices.owes() {
            self.watch();
        }
        if self.next_sweep.is_none_or(|at| self.now < at) {
            return;
        }
        let now = self.now;
        self.pool.trim();
        self.notices.tell_rest(now);
        let mut late = Vec::new();
        let mut owed = false;
        for (id, session) in self.sessions.iter().filter(|(_, session)| session.is_owed()) {
            owed = true;
            let (since, max) = match session.phase {
                Phase::Transmission(..) => (session.progress_at, STALL_MAX),
                _ => (session.connected_at, HANDSHAKE_MAX),
            };
            if now.since(since) > max {
                late.push(id as u32);
            }
        }
        for id in late {
            let Some(&Session { peer, .. }) = self.sessions.get(id as usize) else { continue };
            self.notices.tell(now, Notice::Stopped, |left_out| {
                let why = "a connection is closed: its client stopped in the middle";
                tracing::info!(?peer, left_out, "{why}");
            });
            self.close(id);
        }
        let more = owed || !self.pool.is_empty() || self.notices.owes();
        self.next_sweep = more.then(|| now + SWEEP_EVERY);
    }

    /// Begins to end: nothing more is taken, what waits for tokens is refused, what the stores work
    /// on is finished and replied to.
    pub(super) fn stop(&mut self) {
        self.stop_by.get_or_insert(self.now + STOP_MAX);
        let ids: Vec<u32> = self.sessions.iter().map(|(id, _)| id as u32).collect();
        for id in ids {
            // The end of one may be the end of another.
            let Some(session) = self.sessions.get_mut(id as usize) else { continue };
            session.closing = true;
            if session.incoming.is_some() {
                // Its request cannot be finished, and the stream not be resumed behind it.
                self.close(id);
                continue;
            }
            self.cancel_of(id);
            self.sends(id);
            self.try_free(id);
        }
    }
}

fn shut(session: &mut Session) {
    session.shut = true;
    // It fails when the other end was faster, which is as good.
    let _ = rustix::net::shutdown(&session.fd, Shutdown::Both);
}
