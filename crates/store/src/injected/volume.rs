//! One open volume with faults, and the time that EBS takes.

use super::feel::{Shared, locked};
use super::{Active, Injector};
use crate::disk::{Disk, DiskDone};
use crate::forwarding::ForwardingStore;
use crate::held::HeldAnswers;
use crate::timer::Timer;
use crate::{Completion, Store, Submission};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::io_fault::{Effect, IoFault, IoFaultKind};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_os::clock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Token of the store's only own operation. Stores below that have one use the highest number.
const TIMER_TOKEN: u64 = u64::MAX - 1;
/// Time between two looks whether a pause is over. Its end is known, but it may be ended early.
const PAUSE_LOOK: Duration = Duration::from_ms(20);

/// A fault of this volume, and its choices.
struct Known {
    active: Arc<Active>,
    choices: Random,
}

/// See the module's text.
pub(super) struct InjectedStore {
    id: VolumeId,
    below: Box<dyn Store>,
    injector: Injector,
    /// The injector's version when the faults were read.
    version: u64,
    faults: Vec<Known>,
    feel: Option<Shared>,
    held: HeldAnswers,
}

/// The effects of all faults on one request.
#[derive(Default)]
struct Effects {
    delay: Duration,
    fails: bool,
}

impl InjectedStore {
    pub fn new(
        (id, below): (VolumeId, Box<dyn Store>),
        injector: Injector,
        feel: Option<Shared>,
        timer: Timer,
    ) -> Self {
        // No version is zero once a fault was set, and there is none before.
        let held = HeldAnswers::new(timer, TIMER_TOKEN);
        Self { id, below, injector, version: 0, faults: Vec::new(), feel, held }
    }

    /// Returns the time from which on a request that arrives now is answered without faults.
    fn answered_at(&self, now: Instant, submission: &Submission) -> Instant {
        let &Submission { operation, offset, length, .. } = submission;
        let feel = self.feel.as_ref();
        feel.map_or(now, |feel| locked(feel).answered_at(now, operation, offset, length))
    }

    /// Reads the faults again if they were changed. Choices of those that stay continue.
    fn refresh(&mut self) {
        let version = self.injector.version();
        if version == self.version {
            return;
        }
        self.version = version;
        let mut before = std::mem::take(&mut self.faults);
        for active in self.injector.active() {
            let fault = &active.fault;
            if !fault.volumes.is_empty() && !fault.volumes.contains(&self.id) {
                continue;
            }
            let known = before.iter().position(|known| Arc::ptr_eq(&known.active, &active));
            self.faults.push(match known {
                Some(place) => before.swap_remove(place),
                None => Known { choices: fault.choices(self.id), active },
            });
        }
    }

    fn decide(&mut self, now: Instant, operation: Operation) -> Effects {
        self.refresh();
        let id = self.id;
        let mut effects = Effects::default();
        for Known { active, choices } in &mut self.faults {
            let fault = &active.fault;
            if !fault.concerns(id, now) {
                continue;
            }
            match fault.decide(choices, operation) {
                Effect::Nothing => continue,
                // Whether it still waits is looked up when its answer is due.
                Effect::Waits => {}
                Effect::Delayed(added) => effects.delay = effects.delay + added,
                Effect::Fails => effects.fails = true,
            }
            active.hits.fetch_add(1, Ordering::Relaxed);
        }
        effects
    }

    /// Returns the end of the pauses that are in force.
    fn paused_until(&self, now: Instant) -> Option<Instant> {
        let pauses = self.faults.iter().map(|known| &known.active.fault);
        let is_pause = |fault: &&IoFault| fault.kind == IoFaultKind::Pause;
        let pauses = pauses.filter(is_pause).filter(|fault| fault.concerns(self.id, now));
        pauses.map(|fault| fault.until).max()
    }

    /// Gives out the answers that are due by `now`.
    fn release(&mut self, now: Instant, disk: &mut dyn Disk) {
        self.refresh();
        self.held.collect(self.below.as_mut());
        // A broken timer is no reason to wait for ever.
        let is_readable = now != Instant::from_ns(u64::MAX);
        let until = self.paused_until(now).filter(|_| is_readable);
        let later = until.map(|until| until.min(now + PAUSE_LOOK));
        self.held.release(now, disk, later);
    }
}

impl ForwardingStore for InjectedStore {
    fn below(&self) -> &dyn Store {
        self.below.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.below.as_mut()
    }

    fn submit(&mut self, mut submission: Submission, disk: &mut dyn Disk) {
        let now = clock::monotonic();
        let Submission { ticket, operation, .. } = submission;
        let effects = self.decide(now, operation);
        let due_at = self.answered_at(now, &submission) + effects.delay;
        let slot = self.held.hold(ticket, due_at);
        if effects.fails {
            self.held.fail(slot, submission);
        } else {
            submission.ticket = u64::from(slot);
            self.below.submit(submission, disk);
        }
        self.release(now, disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        if done.token == TIMER_TOKEN {
            let now = self.held.timer_fired(done.result);
            return self.release(now, disk);
        }
        self.below.disk_done(done, disk);
        self.release(clock::monotonic(), disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.held.poll()
    }

    fn is_idle(&self) -> bool {
        !self.held.is_waiting() && self.below.is_idle()
    }
}
