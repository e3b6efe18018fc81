//! The requests of one volume that are not completely answered, by handle.

use std::collections::BTreeMap;

use super::event::{Completed, Direction, Dispatched, Submitted};

/// The state of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Its number in the order of submission.
    pub(super) seq: u64,
    pub(super) at: u64,
    /// Time at which its latest piece was dispatched.
    pub(super) dispatched_at: u64,
    pub(super) length: u32,
    pub(super) has_payload: bool,
    pub(super) dispatched_bytes: u64,
    pub(super) dispatched_pieces: u32,
    pub(super) completed_bytes: u64,
    pub(super) completed_pieces: u32,
    /// Whether it is completely dispatched.
    pub(super) gone: bool,
    /// Whether it was answered by a cancellation; pieces of it are on the device.
    pub(super) cancelled: bool,
}

/// The table of requests, and counters of those that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests {
    by_handle: BTreeMap<u64, Request>,
    pub(super) queued: u64,
    /// Payload bytes that wait.
    pub(super) queued_bytes: u64,
}

impl Request {
    pub(super) fn new(submitted: &Submitted, seq: u64) -> Self {
        Self {
            seq,
            at: submitted.at,
            dispatched_at: submitted.at,
            length: submitted.length,
            has_payload: submitted.direction != Direction::None,
            dispatched_bytes: 0,
            dispatched_pieces: 0,
            completed_bytes: 0,
            completed_pieces: 0,
            gone: false,
            cancelled: false,
        }
    }

    /// Returns whether it waits, wholly or in part.
    pub(super) const fn waits(&self) -> bool {
        !self.gone && !self.cancelled
    }

    fn waiting_payload(&self) -> u64 {
        let left = u64::from(self.length).saturating_sub(self.dispatched_bytes);
        if self.has_payload { left } else { 0 }
    }
}

impl Requests {
    pub(super) fn get(&self, handle: u64) -> Option<&Request> {
        self.by_handle.get(&handle)
    }

    /// Returns the handle of the request that was completely dispatched first and is not answered,
    /// and the time of its dispatch.
    pub(super) fn oldest_on_device(&self) -> Option<(u64, u64)> {
        let gone = self.by_handle.iter().filter(|(_, request)| request.gone);
        gone.map(|(handle, request)| (*handle, request.dispatched_at)).min_by_key(|(_, at)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// Adds a request. If the handle is in use, the earlier request stays: conservation reports
    /// that.
    pub(super) fn insert(&mut self, handle: u64, request: Request) {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.by_handle.entry(handle) {
            self.queued += 1;
            self.queued_bytes += request.waiting_payload();
            vacant.insert(request);
        }
    }

    pub(super) fn dispatch(&mut self, dispatched: &Dispatched) {
        let Some(request) = self.by_handle.get_mut(&dispatched.handle) else { return };
        if !request.waits() {
            return;
        }
        let before = request.waiting_payload();
        request.dispatched_bytes += u64::from(dispatched.length);
        request.dispatched_pieces += 1;
        request.dispatched_at = dispatched.at;
        request.gone = dispatched.last;
        let after = if request.gone { 0 } else { request.waiting_payload() };
        self.queued -= u64::from(request.gone);
        self.queued_bytes -= before - after;
    }

    pub(super) fn cancel(&mut self, handle: u64) {
        let Some(request) = self.by_handle.get_mut(&handle) else { return };
        if request.waits() {
            self.queued -= 1;
            self.queued_bytes -= request.waiting_payload();
        }
        request.cancelled = true;
        if request.completed_pieces >= request.dispatched_pieces {
            self.by_handle.remove(&handle);
        }
    }

    pub(super) fn complete(&mut self, completed: &Completed) {
        let Some(request) = self.by_handle.get_mut(&completed.handle) else { return };
        request.completed_bytes += u64::from(completed.length);
        request.completed_pieces += 1;
        let all_back = request.completed_pieces >= request.dispatched_pieces;
        if completed.last || (request.cancelled && all_back) {
            // An answer to a waiting request is a violation of its own. The request must still
            // leave the queue.
            if request.waits() {
                self.queued -= 1;
                self.queued_bytes -= request.waiting_payload();
            }
            self.by_handle.remove(&completed.handle);
        }
    }
}
