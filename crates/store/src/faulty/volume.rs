//! One open volume behind the faulty pool's device: requests go to the store below at once, and
//! their answers wait until the device would have given them.

use super::device::Device;
use super::setup::Setup;
use crate::disk::{Disk, DiskDone};
use crate::forwarding::ForwardingStore;
use crate::held::HeldAnswers;
use crate::timer::Timer;
use crate::{Completion, Store, Submission};
use evenkeel_core::device::Head;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use evenkeel_os::clock;
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
    held: HeldAnswers,
}

impl FaultyStore {
    pub fn new(
        id: VolumeId,
        below: Box<dyn Store>,
        device: Arc<Mutex<Device>>,
        timer: Timer,
        setup: &Setup,
    ) -> Self {
        Self {
            below,
            device,
            head: Head::default(),
            random: Random::of_volume(setup.seed, id),
            fail_ppm: setup.fail_ppm,
            flushes_to_failure: setup.fail_flush,
            held: HeldAnswers::new(timer, TIMER_TOKEN),
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

    /// Gives out the answers that are due by `now`.
    fn release(&mut self, now: Instant, disk: &mut dyn Disk) {
        self.held.collect(self.below.as_mut());
        self.held.release(now, disk, None);
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
        let slot = self.held.hold(ticket, due_at);
        let may_fail = !matches!(operation, Operation::BlockStatus | Operation::Cache);
        // Both are evaluated, so that whether the n-th request of a volume fails does not depend on
        // the flushes.
        let fails_by_chance = may_fail && self.random.chance_ppm(self.fail_ppm);
        if fails_by_chance | self.is_failing_flush(operation) {
            self.held.fail(slot, submission);
        } else {
            submission.ticket = u64::from(slot);
            self.below.submit(submission, disk);
            self.held.collect(self.below.as_mut());
        }
        self.held.set_timer(now, disk);
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
