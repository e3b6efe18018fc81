//! The closed form of a steady stretch: exact repetitions are not simulated again.
//!
//! At the end of each sample the whole state of the world is written down, with all times relative
//! to that moment: the requests in the scheduler and their waiting times, the levels of its limits,
//! the work of the device, the ends of the clients' pauses. If the state equals that of the
//! previous sample, the next sample will equal the last one, and so on until the next external
//! event: a change, a start, a stop, a pause, the end. All of those samples are added to the
//! records at once. The world's clock does not advance for them. Instead the external events are
//! moved earlier, since no state depends on the absolute time.
//!
//! The results must stay identical to the bit, so this is tried only if no result depends on a
//! random number: one volume, one client with requests of one length, whose cost depends neither on
//! their place nor on their direction, an ideal device, exact timers. The direction of a request is
//! then only a name. Credits that are spent or refilled are repeated until they are used up or
//! full.

use super::{Event, World};
use crate::scenario::setup::{ChangeKind, ClientSetup, Load, Setup, Shape, Think};
use crate::world::client::NO_THREAD;
use crate::world::device::Device;
use crate::world::policy::Policy;
use crate::world::record::{Recorder, brought_nearer};
use evenkeel_core::qos::Phase;
use evenkeel_core::qos::pacing::Pacing;
use evenkeel_core::time::Instant;

/// Period of even arrivals: they come at the same times of every second.
const SECOND_NS: u64 = 1_000_000_000;

/// The state of a world at the end of a sample.
#[derive(Debug)]
pub(super) struct Snapshot {
    at: u64,
    /// Time of the next external event.
    horizon: u64,
    /// Time at which the oldest request in flight was submitted.
    oldest_submitted_at: u64,
    phase: Phase,
    words: Vec<u64>,
    /// Counters: requests submitted, completed, and dropped.
    counts: [u64; 3],
}

/// Returns whether no result of a world depends on a random number.
pub(super) fn may_repeat(setup: &Setup) -> bool {
    let ([volume], [client]) = (setup.volumes.as_slice(), setup.clients.as_slice()) else {
        return false;
    };
    let ClientSetup { shape, load, .. } = client;
    let is_even = match load {
        Load::Closed { think, .. } => !matches!(think, Think::Exponential(_)),
        Load::Open { poisson, .. } => !poisson,
        Load::Job { .. } | Load::Trace(_) => false,
    };
    let later = setup.changes.iter().filter_map(|change| match &change.kind {
        ChangeKind::SetLimits(_, pacing) => Some(pacing.as_ref()),
        _ => None,
    });
    let is_exact = setup.poller.late_mean_ns == 0 && setup.poller.pause_ppm == 0;
    is_even
        && is_exact
        && setup.sample_ns.is_multiple_of(SECOND_NS)
        && Device::is_ideal(&setup.device)
        && later.chain([&volume.pacing]).all(|pacing| costs_the_same(shape, pacing))
}

/// Returns whether consecutive requests never share a counted I/O, and none is urgent.
const fn costs_the_same(shape: &Shape, pacing: &Pacing) -> bool {
    let counting = &pacing.counting;
    let merges = shape.block_bytes >= counting.merge_bytes_min
        && !shape.block_bytes.is_multiple_of(counting.unit_bytes);
    !merges && !shape.fua
}

/// Returns a time relative to `now`; `u64::MAX` stays as it is.
fn counted_from(now: u64, at: u64) -> u64 {
    if at == u64::MAX { at } else { at.wrapping_sub(now) }
}

impl<P: Policy> World<P> {
    /// Skips the next samples if they are known. Is called after each sample.
    pub(super) fn leap_if_steady(&mut self) {
        if !self.may_leap {
            return;
        }
        let before = self.snapshot.take();
        let after = self.take_snapshot();
        let leapt = match (&before, &after) {
            (Some(before), Some(after)) => self.leap(before, after),
            _ => false,
        };
        // A leap changes the credits.
        self.snapshot = after.filter(|_| !leapt);
    }

    /// Skips as many repetitions of the time between two snapshots as are certain. Returns whether
    /// there were any.
    fn leap(&mut self, before: &Snapshot, after: &Snapshot) -> bool {
        let cycle_ns = after.at - before.at;
        let is_undisturbed = before.horizon >= after.at && cycle_ns == self.sample_ns;
        if !is_undisturbed || before.words != after.words || !after.phase.is_like(&before.phase) {
            return false;
        }
        let mut horizon = after.horizon;
        for edge in self.recorders().flat_map(|recorder| recorder.edges()) {
            if edge > self.now {
                horizon = horizon.min(edge);
            } else if edge > after.oldest_submitted_at {
                return false; // some requests that are answered next were sent before it
            }
        }
        let cycles_max = horizon.saturating_sub(self.now) / cycle_ns;
        let mut cycles = 0;
        while cycles < cycles_max && self.policy.repeat(&before.phase, &after.phase) {
            self.repeat_sample();
            cycles += 1;
        }
        let [submitted, completed, dropped] =
            [0, 1, 2].map(|nth| cycles * (after.counts[nth] - before.counts[nth]));
        self.submitted += submitted;
        self.completed += completed;
        self.clients[0].dropped += dropped;
        self.bring_nearer(cycles * cycle_ns);
        cycles > 0
    }

    fn repeat_sample(&mut self) {
        let now = self.now;
        let balances = self.balances_of(0, now);
        self.volumes[0].recorder.repeat_sample(now, balances);
        if let Some(recorder) = &mut self.clients[0].recorder {
            recorder.repeat_sample(now, Default::default());
        }
    }

    fn recorders(&self) -> impl Iterator<Item = &Recorder> {
        let of_clients = self.clients.iter().filter_map(|client| client.recorder.as_ref());
        self.volumes.iter().map(|volume| &volume.recorder).chain(of_clients)
    }

    /// Moves all external events earlier by `leapt_ns`.
    fn bring_nearer(&mut self, leapt_ns: u64) {
        let now = self.now;
        let nearer = |at| brought_nearer(at, now, leapt_ns);
        self.end = nearer(self.end);
        self.events.move_in_time(|at, event| match event {
            Event::Start(_) | Event::Change(_) => nearer(at),
            Event::Wake(..) => at,
        });
        self.poller.bring_nearer(nearer);
        for client in &mut self.clients {
            client.setup.start_ns = nearer(client.setup.start_ns);
            client.setup.stop_ns = nearer(client.setup.stop_ns);
            client.recorder.iter_mut().for_each(|recorder| recorder.bring_nearer(nearer));
        }
        self.volumes.iter_mut().for_each(|volume| volume.recorder.bring_nearer(nearer));
    }

    /// Returns the time of the next external event.
    fn horizon(&self) -> u64 {
        let events = self.events.iter().filter(|(_, event)| !matches!(event, Event::Wake(..)));
        let stops = self.clients.iter().map(|client| client.setup.stop_ns);
        let stops = stops.filter(|stop| *stop > self.now);
        // One nanosecond earlier: a wake-up at the end of a sample would be late if a pause began
        // then.
        let pause = self.poller.next_pause_at().map(|begin| begin.saturating_sub(1));
        let all = events.map(|(at, _)| at).chain(stops).chain(pause).chain([self.end]);
        all.fold(u64::MAX, u64::min)
    }

    /// Returns the present state; `None` if this is not the end of a sample, or if the state cannot
    /// be written down.
    fn take_snapshot(&mut self) -> Option<Snapshot> {
        let now = self.now;
        let client = &self.clients[0];
        if self.next_sample != now + self.sample_ns || !self.groups.is_empty() {
            return None;
        }
        let mut words = vec![
            counted_from(now, self.poller.asked),
            counted_from(now, self.poller.at),
            client.under_way,
            client.arrivals_of_second(),
            u64::from(client.setup.stop_ns <= now),
            self.policy.catch_up(0).ns,
        ];
        let counts = [self.submitted, self.completed, client.dropped];
        for (at, event) in self.events.iter_in_order() {
            if let Event::Wake(_, thread) = event {
                words.extend([at - now, u64::from(thread == NO_THREAD)]);
            }
        }
        let phase = self.policy.phase(Instant::from_ns(now))?;
        let mut handles = phase.handles().to_vec();
        words.extend([u64::MAX, self.volumes[0].blocked.len() as u64]);
        handles.extend(self.volumes[0].blocked.iter().map(|request| request.handle));
        self.device.write_state(now, &mut words, &mut handles)?;
        let oldest_submitted_at = self.write_requests(&handles, &mut words);
        let horizon = self.horizon();
        Some(Snapshot { at: now, horizon, oldest_submitted_at, phase, words, counts })
    }

    /// Writes the requests in flight, in the order of `handles`. Returns the time at which the
    /// oldest was submitted. A request in pieces occurs repeatedly; it is written as its first
    /// place.
    fn write_requests(&self, handles: &[u32], words: &mut Vec<u64>) -> u64 {
        let mut places = vec![None; self.requests.capacity()];
        let mut oldest = self.now;
        for (place, handle) in handles.iter().enumerate() {
            let request = &self.requests[*handle as usize];
            let first = *places[*handle as usize].get_or_insert(place);
            let age_ns = self.now - request.submitted_at;
            words.extend([first as u64, age_ns, u64::from(request.length)]);
            words.extend([u64::from(request.pieces), u64::from(request.whole)]);
            oldest = oldest.min(request.submitted_at);
        }
        oldest
    }
}

#[cfg(test)]
mod tests;
