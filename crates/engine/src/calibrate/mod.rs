//! Measures the device under a pool through the pool's own path: a volume of it, opened as the data
//! plane opens one, on the data plane's own driver. [`evenkeel_core::qos::admission::calibration`]
//! interprets the counts and times.
//!
//! The order is part of the method. The volume is written once, because reads of holes cost
//! nothing; reads come next; then writes that last, which fill caches and use up erased blocks, and
//! right after them the writes that are counted; then mixed loads at falling depths, and one that
//! lasts. All loads are limited in time: a plan has a total, and each load a part of it.

mod load;
#[cfg(test)]
mod tests;

use crate::driver::{Driver, Waker};
use crate::ring::Ring;
use crate::threads::Threads;
use crate::{EngineError, IoMode};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::qos::admission::REFERENCE_BYTES;
use evenkeel_core::qos::admission::calibration::{
    CHANNELS_MAX, CurvePoint, Measurements, Rate, Unusable,
};
use evenkeel_core::random::Random;
use evenkeel_core::request::Failure;
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;
use evenkeel_os::clock::Clock;
use evenkeel_store::{Pool, Store, StoreError};
use load::{Generator, Kind, Load, Observed};
use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;

/// The volume of a calibration: created before, deleted after, and not used for anything else.
pub const VOLUME: VolumeId = VolumeId::from_bits(0xca11_b7a7_e000_0001);

/// Maximum number of requests in flight.
pub const DEPTH_MAX: u32 = 256;

/// Request lengths to which the costs are fitted, in bytes.
const LENGTHS: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, QUANTUM_BYTES_MAX];

/// A larger depth is useless if its rate is higher by less than one part in this number. Two
/// useless depths in a row end the growth.
const GAIN_MIN: u64 = 33;

/// Number of parts of the lasting loads.
const PARTS: u32 = 6;

const _: () = assert!(DEPTH_MAX <= CHANNELS_MAX);

/// Duration of a calibration, and size of its volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Measured time. Warming up takes a fifth more.
    pub time: Duration,
    /// Size of the volume. Requests are spread over all of it.
    pub span: ByteCount,
}

impl Plan {
    /// A minute, with a third of lasting writes.
    pub const FULL: Self = Self { time: Duration::from_secs(52), span: ByteCount(2 << 30) };
    /// Three seconds: enough for costs and channels, not for the end of a large write cache.
    pub const QUICK: Self = Self { time: Duration::from_ms(2_500), span: ByteCount(128 << 20) };

    /// Returns this number of thousandths of the time.
    const fn part(&self, per_mille: u64) -> Duration {
        Duration::from_ns(self.time.ns / 1_000 * per_mille)
    }
}

/// Reason why a device could not be measured.
#[derive(Debug)]
pub enum CalibrateError {
    /// The volume could not be created, opened or deleted.
    Store(StoreError),
    /// The driver could not start.
    Engine(EngineError),
    /// The driver failed.
    Driver(io::Error),
    /// A request failed.
    Request {
        /// Whether it was a write.
        is_write: bool,
        /// Its length in bytes.
        length: u32,
        /// The store's error.
        failure: Failure,
    },
    /// Too few requests ended in the available time.
    Unusable(Unusable),
    /// It was asked to stop.
    Stopped,
}

impl fmt::Display for CalibrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::Driver(error) => write!(f, "the driver failed while measuring: {error}"),
            Self::Request { is_write, length, failure } => {
                let what = if *is_write { "write" } else { "read" };
                let why = match failure {
                    Failure::NoSpace => "no space is left",
                    _ => "the device reports an error; see the kernel's log",
                };
                write!(
                    f,
                    "a {what} of {} failed while measuring: {why}",
                    ByteCount((*length).into())
                )
            }
            Self::Unusable(error) => error.fmt(f),
            Self::Stopped => f.write_str("stopped before everything was measured"),
        }
    }
}

impl std::error::Error for CalibrateError {}

/// Removes the volume that a killed calibration has left in the pool. Returns whether there was
/// one.
///
/// # Errors
/// If the pool fails.
pub fn clean(pool: &dyn Pool) -> Result<bool, StoreError> {
    let is_there = pool.list()?.iter().any(|(id, _)| *id == VOLUME);
    pool.delete(VOLUME)?;
    Ok(is_there)
}

/// Measures `pool`, which must have no other load meanwhile. Calls `told` with the name of each
/// step. When it returns, the pool is as it was. It ends within the time of a request after `stop`
/// is set.
///
/// # Errors
/// See [`CalibrateError`].
pub fn measure(
    pool: &dyn Pool,
    io: IoMode,
    plan: &Plan,
    stop: &AtomicBool,
    told: &mut (dyn FnMut(&str) + Send),
) -> Result<Measurements, CalibrateError> {
    let io = crate::choose(io).map_err(CalibrateError::Engine)?;
    clean(pool).map_err(CalibrateError::Store)?;
    // A ring belongs to the thread that creates it, and so does the kernel's cleanup of it.
    let ended = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("calibrate".to_owned());
        let measuring = thread.spawn_scoped(scope, || measure_here(pool, io, plan, stop, told));
        measuring.map(std::thread::ScopedJoinHandle::join)
    });
    // Also after a failure.
    let deleted = pool.delete(VOLUME).map_err(CalibrateError::Store);
    let measured = ended.map_err(CalibrateError::Driver)?;
    let measured = measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    deleted?;
    Ok(measured)
}

/// Measures in this thread. Leaves its volume in the pool.
fn measure_here(
    pool: &dyn Pool,
    io: IoMode,
    plan: &Plan,
    stop: &AtomicBool,
    told: &mut (dyn FnMut(&str) + Send),
) -> Result<Measurements, CalibrateError> {
    pool.create(VOLUME, plan.span).map_err(CalibrateError::Store)?;
    let store = pool.open(VOLUME, plan.span).map_err(CalibrateError::Store)?;
    let waker = Waker::new().map_err(CalibrateError::Driver)?;
    let clock = Clock::start();
    match io {
        IoMode::Auto | IoMode::Uring => {
            let ring = Ring::new(waker, clock);
            let ring = ring.map_err(|e| CalibrateError::Engine(EngineError::Uring(e)))?;
            Session::new(ring, store, clock, plan, stop, told).measure()
        }
        IoMode::Pread => {
            let threads = Threads::new(waker).map_err(CalibrateError::Driver)?;
            Session::new(threads, store, clock, plan, stop, told).measure()
        }
    }
}

/// A calibration on one driver.
struct Session<'a, D> {
    generator: Generator<'a, D>,
    plan: &'a Plan,
    told: &'a mut (dyn FnMut(&str) + Send),
    measured: Measurements,
}

impl<'a, D: Driver> Session<'a, D> {
    fn new(
        driver: D,
        store: Box<dyn Store>,
        clock: Clock,
        plan: &'a Plan,
        stop: &'a AtomicBool,
        told: &'a mut (dyn FnMut(&str) + Send),
    ) -> Self {
        let span = plan.span.0;
        let buffers = Vec::new();
        let random = Random::from_state(1);
        let generator = Generator { driver, store, clock, span, stop, buffers, random };
        Self { generator, plan, told, measured: Measurements::default() }
    }

    fn measure(mut self) -> Result<Measurements, CalibrateError> {
        self.fill()?;
        self.read_depths()?;
        let channels = self.measured.channels().map_err(CalibrateError::Unusable)?;
        // Twice as many as are useful, so that the device never waits for the next request.
        let depth = channels.saturating_mul(2).clamp(2, DEPTH_MAX);
        (self.told)("reads of several lengths");
        for length in LENGTHS {
            let rate = self.rate(Kind::Reads, length, depth)?;
            self.measured.reads.push(rate);
        }
        (self.told)("writes, until what is fast only for a while is used up");
        let kind = Kind::Writes;
        let length = QUANTUM_BYTES_MAX;
        let lasting = Load { kind, length, depth, time: self.plan.part(300), parts: PARTS };
        self.measured.settling = self.generator.run(lasting)?.parts;
        (self.told)("writes of several lengths");
        // The longest ones first: they find the caches as full as the load before has left them.
        for length in LENGTHS.into_iter().rev() {
            let rate = self.rate(Kind::Writes, length, depth)?;
            self.measured.writes.push(rate);
        }
        self.curve(depth)?;
        (self.told)("a mixed load that lasts");
        let kind = Kind::Mixed;
        let length = REFERENCE_BYTES;
        let lasting = Load { kind, length, depth, time: self.plan.part(120), parts: PARTS };
        self.measured.lasting = self.generator.run(lasting)?.parts;
        Ok(self.measured)
    }

    /// Writes the volume once, as far as the time allows.
    fn fill(&mut self) -> Result<(), CalibrateError> {
        (self.told)("filling a volume");
        let length = QUANTUM_BYTES_MAX;
        let time = self.plan.part(100);
        let fill = Load { kind: Kind::Fill, length, depth: 16, time, parts: 1 };
        let filled = self.generator.run(fill)?.submitted * u64::from(length);
        self.generator.span = self.generator.span.min(filled);
        Ok(())
    }

    /// Reads at growing depths, from one, until two in a row bring nothing.
    fn read_depths(&mut self) -> Result<(), CalibrateError> {
        (self.told)("reads of 16 KiB at growing depths");
        let mut best = 0;
        let mut useless = 0;
        for depth in depths() {
            let seen = self.run(Kind::Reads, REFERENCE_BYTES, depth, 12)?;
            if depth == 1 {
                // Not the mean: a pause of the machine is not the device's time, and on a busy
                // machine most wake-ups of a thread are late.
                self.measured.alone = seen.quantile(250);
            }
            let rate = rate(REFERENCE_BYTES, depth, &seen);
            self.measured.depths.push(rate);
            let per_second = rate.per_second();
            useless = if per_second > best + best / GAIN_MIN { 0 } else { useless + 1 };
            best = best.max(per_second);
            if useless == 2 {
                break;
            }
        }
        Ok(())
    }

    /// Puts mixed loads on the device, from twice the depth at which it is always busy downwards.
    /// Caches that a lower depth does not keep full are then as full as the depth before has left
    /// them.
    fn curve(&mut self, depth_busy: u32) -> Result<(), CalibrateError> {
        (self.told)("mixed loads of 16 KiB at falling depths");
        let depths: Vec<u32> = depths().take_while(|&depth| depth / 2 <= depth_busy).collect();
        for depth in depths.into_iter().rev() {
            let seen = self.run(Kind::Mixed, REFERENCE_BYTES, depth, 12)?;
            let per_second = rate(REFERENCE_BYTES, depth, &seen).per_second();
            let p50 = seen.quantile(500);
            let p99 = seen.quantile(990);
            self.measured.curve.push(CurvePoint { depth, per_second, p50, p99 });
        }
        self.measured.curve.reverse();
        Ok(())
    }

    fn rate(&mut self, kind: Kind, length: u32, depth: u32) -> Result<Rate, CalibrateError> {
        let seen = self.run(kind, length, depth, 20)?;
        Ok(rate(length, depth, &seen))
    }

    fn run(
        &mut self,
        kind: Kind,
        length: u32,
        depth: u32,
        per_mille: u64,
    ) -> Result<Observed, CalibrateError> {
        let time = self.plan.part(per_mille);
        self.generator.run(Load { kind, length, depth, time, parts: 1 })
    }
}

fn rate(length: u32, depth: u32, seen: &Observed) -> Rate {
    let requests = seen.requests();
    let elapsed = seen.total.elapsed;
    Rate { length, depth, requests, elapsed, cpu: seen.cpu }
}

fn depths() -> impl Iterator<Item = u32> {
    (0..).map(|exponent| 1 << exponent).take_while(|&depth| depth <= DEPTH_MAX)
}
