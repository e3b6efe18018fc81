//! Saturated volumes: each dispatch is followed by the next request of the same volume, and virtual
//! time jumps to the next deadline. The volumes' rates differ, so that they wake in no particular
//! order, and large numbers of them do not fit the caches.

use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::scheduler::{DeviceIndex, InstanceIndex, Io, Scheduler, VolumeIndex};
use evenkeel_core::qos::sharing::{Claim, DeviceModel, InstancePacing, OperationCost, Window};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

/// Dispatches per measured batch.
pub const BATCH: u64 = 1_000;
/// Queued requests of every volume.
const DEPTH: u32 = 8;

fn pacing(operations: Option<Limit>, bytes: Option<Limit>) -> Pacing {
    let tolerance = Duration::from_ms(50);
    Pacing { counting: CountingRule::SSD, tolerance, operations, bytes }
}

/// A gp3-like volume: a limit in I/Os and one in bytes.
pub fn provisioned(per_second: u64) -> Pacing {
    let limit = |per_second| Some(Limit { per_second, credit: None });
    pacing(limit(per_second), limit(1 << 30))
}

/// A gp2-like volume in its burst: a pacer, credits, and a limit in bytes.
pub fn burstable(per_second: u64) -> Pacing {
    let credit = Some(CreditLimit { refill_per_second: 100, capacity: 1 << 60 });
    let bytes = Some(Limit { per_second: 1 << 30, credit: None });
    pacing(Some(Limit { per_second, credit }), bytes)
}

pub struct World {
    scheduler: Scheduler,
    now: Instant,
    handle: u32,
    device: Option<DeviceIndex>,
    instance: Option<InstanceIndex>,
}

impl World {
    pub fn new(volumes: u64, shared: bool, pacing: impl Fn(u64) -> Pacing) -> Self {
        let scheduler = Scheduler::new(Instant::ZERO);
        let mut world =
            Self { scheduler, now: Instant::ZERO, handle: 0, device: None, instance: None };
        for i in 0..volumes {
            // Rates from 1,000 to 1,996 IOPS, in a scattered order.
            let pacing = pacing(1_000 + i * 7_919 % 997);
            let volume = world.scheduler.add(world.now, &pacing, Balances::default());
            let volume = volume.expect("fewer than the most a core carries");
            if shared {
                world.share(i, volume, &pacing);
            }
            for _ in 0..DEPTH {
                world.submit(volume);
            }
            while world.dispatch() {}
        }
        // Spends the saved tokens, up to the steady state.
        for _ in 0..volumes * 100 / BATCH + 1 {
            world.batch();
        }
        world
    }

    /// Puts a volume on the device, with a reservation of 1,000 a second, and forty volumes
    /// together on an instance.
    fn share(&mut self, i: u64, volume: VolumeIndex, pacing: &Pacing) {
        let cost = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
        let window = Window::Slots(1_000);
        let model = DeviceModel { channels: 32, read: cost, write: cost, window };
        if self.device.is_none() {
            self.device = self.scheduler.add_device(self.now, &model).ok();
        }
        if i.is_multiple_of(40) {
            let limit = |per_second| Some(Limit { per_second, credit: None });
            let instance = InstancePacing {
                operations: limit(80_000),
                bytes: limit(1 << 30),
                ..InstancePacing::UNLIMITED
            };
            let added = self.scheduler.add_instance(self.now, &instance, Balances::default());
            self.instance = added.ok();
        }
        let claim = Claim { reservation_per_second: 1_000, ..Claim::best_effort(pacing) };
        let place = (self.device, self.instance);
        self.scheduler.share(self.now, volume, pacing, place, &claim).expect("they are all there");
    }

    fn submit(&mut self, volume: VolumeIndex) {
        self.handle = self.handle.wrapping_add(1);
        let offset = u64::from(self.handle.wrapping_mul(2_654_435_761)) << 12;
        let io = Io { operation: Operation::Read, offset, length: 4_096, handle: self.handle };
        self.scheduler.submit(self.now, volume, io).expect("a queue of eight is not full");
    }

    fn dispatch(&mut self) -> bool {
        let Some(dispatch) = self.scheduler.poll_output() else { return false };
        // The device completes at once, so that the work of completing is measured too.
        self.scheduler.complete(self.now, dispatch.ticket);
        self.submit(dispatch.volume);
        true
    }

    pub fn batch(&mut self) {
        let mut left = BATCH;
        while left > 0 {
            while left > 0 && self.dispatch() {
                left -= 1;
            }
            if left > 0 {
                self.now = self.scheduler.poll_timeout().expect("saturated volumes wait");
                self.scheduler.poll(self.now);
            }
        }
    }
}
