//! The way of a request: from its client to the policy, to the device, and back.

use super::{Event, Group, NO_GROUP, RunningVolume, UnderWay, World};
use crate::scenario::setup::Target;
use crate::world::client::{BACKLOG_MAX, NextSend, Wanted};
use crate::world::device::Done;
use crate::world::policy::{Dispatch, Policy, Request};
use evenkeel_core::convert::exact;
use evenkeel_core::time::{Duration, Instant};

impl<P: Policy> World<P> {
    pub(super) fn carry_out(&mut self, client: u32, step: NextSend) {
        match step {
            NextSend::Send(requests) => {
                for nth in 0..requests {
                    let thread = self.clients[client as usize].thread(nth);
                    self.send_next(client, thread);
                }
            }
            NextSend::SendAs(thread) => self.send_next(client, thread),
            NextSend::SendThis(wanted) => self.send(client, 0, wanted),
            NextSend::Wait(until, thread) => self.events.push(until, Event::Wake(client, thread)),
            NextSend::Rest => {}
        }
    }

    #[inline(always)]
    fn send_next(&mut self, client: u32, thread: u16) {
        let wanted = self.clients[client as usize].next_request(thread);
        self.send(client, thread, wanted);
    }

    /// Sends a client's request.
    #[inline(always)]
    fn send(&mut self, number: u32, thread: u16, wanted: Wanted) {
        let client = &mut self.clients[number as usize];
        if client.under_way >= BACKLOG_MAX {
            client.dropped += 1;
            return;
        }
        client.under_way += 1;
        match client.setup.target {
            Target::Volume(volume) => self.submit(volume, number, thread, NO_GROUP, wanted),
            Target::Stripe(stripe) => self.send_striped(stripe as usize, number, thread, wanted),
        }
    }

    /// Sends a request to a stripe, in one part for each chunk.
    fn send_striped(&mut self, stripe: usize, number: u32, thread: u16, wanted: Wanted) {
        let mut rest = wanted;
        let Some((volume, part)) = self.stripes[stripe].first_part(&mut rest) else { return };
        if rest.length == 0 {
            self.submit(volume, number, thread, NO_GROUP, part);
            return;
        }
        let parts = 1 + self.stripes[stripe].parts(&rest).count();
        let parts = exact(parts, "a part has at least one of the 2^32 bytes");
        let whole = Group { submitted_at: self.now, length: wanted.length, parts };
        let group = number_of(self.groups.insert(whole));
        self.submit(volume, number, thread, group, part);
        while let Some((volume, part)) = self.stripes[stripe].first_part(&mut rest) {
            self.submit(volume, number, thread, group, part);
        }
    }

    #[inline(always)]
    fn submit(&mut self, volume: u32, client: u32, thread: u16, group: u32, wanted: Wanted) {
        let Wanted { operation, offset, length } = wanted;
        let submitted_at = self.now;
        let handle = number_of(self.requests.insert(UnderWay {
            submitted_at,
            client,
            length,
            group,
            thread,
            pieces: 0,
            whole: false,
        }));
        self.submitted += 1;
        let RunningVolume { blocked, instance, .. } = &mut self.volumes[volume as usize];
        let instance = *instance;
        let request = Request { volume, instance, operation, offset, length, handle };
        // Requests that wait already precede it.
        if !blocked.is_empty() || !self.policy.submit(Instant::from_ns(self.now), &request) {
            blocked.push_back(request);
            return;
        }
        self.dispatch();
    }

    /// Gives the device the dispatches of the policy, mostly none.
    #[inline(always)]
    pub(super) fn dispatch(&mut self) {
        while let Some(dispatch) = self.policy.poll_output() {
            self.give(dispatch);
        }
    }

    #[inline(always)]
    fn give(&mut self, dispatch: Dispatch) {
        let volume = &mut self.volumes[dispatch.volume as usize];
        let request = &mut self.requests[dispatch.handle as usize];
        request.pieces += 1;
        if dispatch.last {
            request.whole = true;
            volume.recorder.dispatched(self.now);
        }
        self.device.give(self.now, dispatch);
        while let Some(request) = volume.blocked.front() {
            if !self.policy.submit(Instant::from_ns(self.now), request) {
                break;
            }
            volume.blocked.pop_front();
        }
    }

    #[inline(always)]
    pub(super) fn complete(&mut self, done: &Done) {
        let now = self.now;
        let service = Duration::from_ns(now - done.given_at);
        self.policy.complete(Instant::from_ns(now), &done.dispatch, service);
        self.dispatch();
        let handle = done.dispatch.handle as usize;
        let request = &mut self.requests[handle];
        request.pieces -= 1;
        if request.pieces > 0 || !request.whole {
            return;
        }
        let UnderWay { submitted_at, client, length, group, thread, .. } =
            self.requests.remove(handle);
        self.completed += 1;
        let recorder = &mut self.volumes[done.dispatch.volume as usize].recorder;
        recorder.completed(now, now - submitted_at, length);
        if group == NO_GROUP {
            self.answer(client, thread, submitted_at, length);
            return;
        }
        let whole = &mut self.groups[group as usize];
        whole.parts -= 1;
        if whole.parts == 0 {
            let Group { submitted_at, length, .. } = self.groups.remove(group as usize);
            self.answer(client, thread, submitted_at, length);
        }
    }

    #[inline(always)]
    fn answer(&mut self, number: u32, thread: u16, submitted_at: u64, length: u32) {
        let client = &mut self.clients[number as usize];
        if let Some(recorder) = &mut client.recorder {
            recorder.dispatched(submitted_at);
            recorder.completed(self.now, self.now - submitted_at, length);
        }
        match client.answered(self.now, thread) {
            // The case of nearly every closed loop, without a call.
            NextSend::SendAs(thread) => self.send_next(number, thread),
            step => self.carry_out(number, step),
        }
    }
}

pub(super) fn number_of(place: usize) -> u32 {
    exact(place, "fewer requests than 2^32 are in flight")
}
