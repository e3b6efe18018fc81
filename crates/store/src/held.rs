//! Answers of a store that wait for a time: for stores that answer later than the one below.
//!
//! The owner submits a wait for its timer to its [`Disk`] only while an answer is held back. So the
//! caller has an unanswered request as long as the disk has an operation of the store, and keeps
//! the store open.

use crate::disk::{Disk, DiskOp};
use crate::timer::Timer;
use crate::{Completion, Store, Submission};
use evenkeel_core::request::Failure;
use evenkeel_core::time::Instant;
use evenkeel_os::clock;
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Requests whose answers are held back.
pub(crate) struct HeldAnswers {
    timer: Timer,
    /// Token of the wait for the timer, which the store below does not use.
    token: u64,
    /// Time to which the timer is set, while the disk waits for it.
    waiting_for: Option<Instant>,
    /// Requests, by their numbers in the store below.
    held: Vec<Option<Held>>,
    free: Vec<u32>,
    /// Answers that are not due or not there yet, by the time at which they are due.
    due: BinaryHeap<Reverse<(Instant, u32)>>,
    finished: VecDeque<Completion>,
}

/// A request whose answer was not given yet.
struct Held {
    ticket: u64,
    /// The answer of the store below, if it has given it.
    answer: Option<Completion>,
}

impl HeldAnswers {
    pub fn new(timer: Timer, token: u64) -> Self {
        Self {
            timer,
            token,
            waiting_for: None,
            held: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            finished: VecDeque::new(),
        }
    }

    /// Adds a request that is answered from `due_at` on. Returns its place, which is its ticket in
    /// the store below.
    pub fn hold(&mut self, ticket: u64, due_at: Instant) -> u32 {
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

    /// Takes the answer of a request.
    pub fn answer(&mut self, slot: u64, answer: Completion) {
        if let Some(held) = self.held.get_mut(slot as usize).and_then(Option::as_mut) {
            held.answer = Some(answer);
        }
    }

    /// Answers a request with an I/O error: it does not reach the store below.
    pub fn fail(&mut self, slot: u32, submission: Submission) {
        let Submission { ticket, buffer, .. } = submission;
        let answer = Completion { ticket, result: Err(Failure::Io), buffer, extents: Vec::new() };
        self.answer(slot.into(), answer);
    }

    /// Takes the completions of the store below.
    pub fn collect(&mut self, below: &mut dyn Store) {
        while let Some(answer) = below.poll() {
            self.answer(answer.ticket, answer);
        }
    }

    /// Gives out the answers that are due by `now`, in the order of their times, and sets the timer
    /// for the next one. With `later`, answers that are due wait until that time.
    pub fn release(&mut self, now: Instant, disk: &mut dyn Disk, later: Option<Instant>) {
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
            if let Some(due_at) = later {
                unanswered.push(Reverse((due_at, slot)));
                continue;
            }
            match self.held[slot as usize].take_if(|held| held.answer.is_some()) {
                Some(Held { ticket, answer: Some(answer) }) => {
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
    /// but not there arrives with another [`crate::disk::DiskDone`].
    pub fn set_timer(&mut self, now: Instant, disk: &mut dyn Disk) {
        let is_there =
            |slot: u32| self.held[slot as usize].as_ref().is_some_and(|held| held.answer.is_some());
        let next = match self.due.peek() {
            None => return,
            Some(&Reverse((due_at, slot))) if due_at > now || is_there(slot) => due_at,
            // This is rare: the store below is slower than the time.
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
                disk.submit(DiskOp::readable(self.token, self.timer.fd()));
            }
        }
    }

    /// Processes the end of the wait for the timer. Returns the time by which answers are due.
    pub fn timer_fired(&mut self, result: Result<u32, Errno>) -> Instant {
        self.waiting_for = None;
        match result {
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => clock::monotonic(),
            // Without a timer all answers are given at once, so that no client waits without end.
            // Only the timing is lost.
            Err(_) => Instant::from_ns(u64::MAX),
        }
    }

    pub fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    /// Returns whether the disk waits for the timer.
    pub fn is_waiting(&self) -> bool {
        self.waiting_for.is_some()
    }
}
