//! One open volume behind the faulty pool's device: requests go to the store below at once, and
//! their answers wait until the device would have given them.
//!
//! The store submits a wait for its timer to its [`Disk`] only while it holds an answer back. So
//! the caller has an unanswered request as long as the disk has an operation of the store, and
//! keeps the store open.

use super::device::Device;
use super::setup::Setup;
use crate::disk::{Disk, DiskDone, DiskOp};
use crate::forwarding::ForwardingStore;
use crate::timer::Timer;
use crate::{Completion, Store, Submission};
use evenkeel_core::convert::exact;
use evenkeel_core::device::Head;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::time::Instant;
use evenkeel_os::clock;
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Token of the store's only own operation; the tokens of the store below count from 0.
const TIMER_TOKEN: u64 = u64::MAX;

/// See the module's text.
pub(super) struct FaultyStore {
    below: Box<dyn Store>,
    device: Arc<Mutex<Device>>,
    head: Head,
    random: Random,
    fail_ppm: u32,
    /// Number of flushes until one fails; 0 is never.
    flushes_to_failure: u32,
    timer: Timer,
    /// Time to which the timer is set, while the disk waits for it.
    waiting_for: Option<Instant>,
    /// Requests, by their numbers in the store below.
    held: Vec<Option<Held>>,
    free: Vec<u32>,
    /// Answers that are not due or not there yet, by the time at which they are due.
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    finished: VecDeque<Completion>,
}

/// A request whose answer the device has not given yet.
struct Held {
    ticket: u64,
    /// The answer of the store below, if it has given it.
    answer: Option<Completion>,
}

impl FaultyStore {
    pub fn new(
        id: VolumeId,
        below: Box<dyn Store>,
        device: Arc<Mutex<Device>>,
        timer: Timer,
        setup: &Setup,
    ) -> Self {
        // The high bits of an id are no more random than the low ones.
        let stream: u64 = exact(id.bits() & u128::from(u64::MAX), "the lower half");
        Self {
            below,
            device,
            head: Head::default(),
            random: Random::new(setup.seed, stream | 1),
            fail_ppm: setup.fail_ppm,
            flushes_to_failure: setup.fail_flush,
            timer,
            waiting_for: None,
            held: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            finished: VecDeque::new(),
        }
    }

    /// Counts a flush. Returns whether it is the one that fails.
    fn is_failing_flush(&mut self, operation: Operation) -> bool {
        if operation != Operation::Flush || self.flushes_to_failure == 0 {
            return false;
        }
        self.flushes_to_failure -= 1;
        self.flushes_to_failure == 0
    }

    /// Adds a request that is answered from `due_at` on. Returns its place.
    fn hold(&mut self, ticket: u64, due_at: Instant) -> u32 {
        let held = Some(Held { ticket, answer: None });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.held[slot as usize] = held;
                slot
            }
            None => {
                self.held.push(held);
                (self.held.len() - 1) as u32
            }
        };
        self.due.push(Reverse((due_at, slot)));
        slot
    }

    /// Takes the completions of the store below.
    fn collect(&mut self) {
        while let Some(answer) = self.below.poll() {
            if let Some(held) = self.held.get_mut(answer.ticket as usize).and_then(Option::as_mut) {
                held.answer = Some(answer);
            }
        }
    }

    /// Gives out the answers that are due by `now`, in the order of their times, and sets the timer
    /// for the next one.
    fn release(&mut self, now: Instant, disk: &mut dyn Disk) {
        self.collect();
        let mut unanswered = Vec::new();
        while let Some(&Reverse((due_at, slot))) = self.due.peek() {
            if due_at > now {
                break;
            }
            // The last answer stays as long as the disk waits: see the module's text.
            if self.waiting_for.is_some() && self.due.len() + unanswered.len() == 1 {
                break;
            }
            self.due.pop();
            match self.held[slot as usize].take_if(|held| held.answer.is_some()) {
                Some(Held { ticket, answer: Some(answer), .. }) => {
                    self.free.push(slot);
                    self.finished.push_back(Completion { ticket, ..answer });
                }
                _ => unanswered.push(Reverse((due_at, slot))),
            }
        }
        self.due.extend(unanswered);
        self.set_timer(now, disk);
    }

    /// Sets the timer to the first answer that is there, or is not due yet. An answer that is due
    /// but not there arrives with another [`DiskDone`].
    fn set_timer(&mut self, now: Instant, disk: &mut dyn Disk) {
        let is_there =
            |slot: u32| self.held[slot as usize].as_ref().is_some_and(|held| held.answer.is_some());
        let next = match self.due.peek() {
            None => return,
            Some(&Reverse((due_at, slot))) if due_at > now || is_there(slot) => due_at,
            // This is rare: the store below is slower than the configured device.
            Some(_) => {
                let rest =
                    self.due.iter().filter(|Reverse((at, slot))| *at > now || is_there(*slot));
                let Some(next) = rest.map(|Reverse((at, _))| *at).min() else { return };
                next
            }
        };
        match self.waiting_for {
            Some(set_to) if set_to <= next => {}
            Some(_) => {
                self.timer.set(next);
                self.waiting_for = Some(next);
            }
            None => {
                self.timer.set(next);
                self.waiting_for = Some(next);
                disk.submit(DiskOp::readable(TIMER_TOKEN, self.timer.fd()));
            }
        }
    }

    fn timer_fired(&mut self, result: Result<u32, Errno>, disk: &mut dyn Disk) {
        self.waiting_for = None;
        match result {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => self.release(clock::monotonic(), disk),
            // Without a timer all answers are given at once, so that no client waits without end.
            // Only the timing is lost.
            Err(_) => self.release(Instant::from_ns(u64::MAX), disk),
        }
    }
}

impl ForwardingStore for FaultyStore {
    fn below(&self) -> &dyn Store {
        self.below.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.below.as_mut()
    }

    fn submit(&mut self, mut submission: Submission, disk: &mut dyn Disk) {
        let Submission { ticket, operation, offset, length, .. } = submission;
        let now = clock::monotonic();
        let device = self.device.lock();
        let mut device = device.unwrap_or_else(PoisonError::into_inner);
        let due_at = device.give(now, operation, (offset, length), &mut self.head);
        drop(device);
        let slot = self.hold(ticket, due_at);
        let may_fail = !matches!(operation, Operation::BlockStatus | Operation::Cache);
        // Both are evaluated, so that whether the n-th request of a volume fails does not depend on
        // the flushes.
        let fails_by_chance = may_fail && self.random.chance_ppm(self.fail_ppm);
        if fails_by_chance | self.is_failing_flush(operation) {
            let result = Err(Failure::Io);
            let buffer = submission.buffer.take();
            let answer = Completion { ticket, result, buffer, extents: Vec::new() };
            if let Some(held) = &mut self.held[slot as usize] {
                held.answer = Some(answer);
            }
        } else {
            submission.ticket = u64::from(slot);
            self.below.submit(submission, disk);
            self.collect();
        }
        self.set_timer(now, disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        if done.token == TIMER_TOKEN {
            return self.timer_fired(done.result, disk);
        }
        self.below.disk_done(done, disk);
        self.release(clock::monotonic(), disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    fn is_idle(&self) -> bool {
        self.waiting_for.is_none() && self.below.is_idle()
    }
}
