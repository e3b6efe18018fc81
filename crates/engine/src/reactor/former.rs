//! Changes that a connection leaves in the store when it ends. They cannot be cancelled, and a
//! store that is stuck may carry them out long after.
//!
//! Their client sends unanswered requests again over another connection. So a request for the same
//! bytes waits until these changes are done: otherwise an old change could undo a newer one that
//! was answered, and flushed. Other requests pass.

use super::Reactor;
use crate::driver::Driver;
use crate::session::Bound;
use crate::table::{RequestId, SessionId, VolumeSlot};
use evenkeel_core::request::Request;

/// A change of a connection that has ended.
#[derive(Clone, Copy, Debug)]
struct Change {
    handle: RequestId,
    request: Request,
}

/// Changes of a volume from connections that have ended, and connections that wait for them.
#[derive(Debug, Default)]
pub(super) struct Former {
    changes: Vec<Change>,
    /// Waiting connections. An id may belong to another connection by now.
    waiting: Vec<SessionId>,
}

impl Former {
    fn overlaps(&self, request: &Request) -> bool {
        let end = |request: &Request| request.offset.saturating_add(request.length.into());
        self.changes.iter().any(|change| {
            request.offset < end(&change.request) && change.request.offset < end(request)
        })
    }
}

impl<D: Driver> Reactor<D> {
    /// Records the changes that a connection leaves in the store when it ends.
    pub(super) fn note_former(&mut self, id: SessionId) {
        let left = self.active.iter().filter(|(_, active)| active.session() == id);
        for (handle, active) in left.filter(|(_, active)| active.request.operation.is_write()) {
            let request = active.request;
            let changes = &mut self.volumes[active.volume].former.changes;
            if !changes.iter().any(|change| change.handle == handle) {
                changes.push(Change { handle, request });
            }
        }
    }

    /// Holds a connection up if its next request overlaps a change that a former connection has
    /// left. Returns whether it does.
    pub(super) fn waits_for_former(
        &mut self,
        id: SessionId,
        slot: VolumeSlot,
        request: &Request,
    ) -> bool {
        let former = &mut self.volumes[slot].former;
        let waits = former.overlaps(request);
        if waits {
            self.sessions[id].parked = Some(Bound::Former);
            if !former.waiting.contains(&id) {
                former.waiting.push(id);
            }
        }
        waits
    }

    /// Records that a change is done, and retries the connections that wait for changes.
    pub(super) fn end_former(&mut self, slot: VolumeSlot, handle: RequestId) {
        let former = &mut self.volumes[slot].former;
        let Some(at) = former.changes.iter().position(|change| change.handle == handle) else {
            return;
        };
        former.changes.swap_remove(at);
        for id in std::mem::take(&mut former.waiting) {
            let session = self.sessions.get(id);
            if session.is_some_and(|session| session.parked == Some(Bound::Former)) {
                self.ready.push(id);
            }
        }
    }
}
