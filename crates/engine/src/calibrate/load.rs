//! Puts a load on one store through a driver: a constant number of requests in flight for a limited
//! time. Counts and times the requests.

use super::CalibrateError;
use crate::driver::{Driver, Event};
use crate::table::VolumeSlot;
use evenkeel_core::convert::saturating;
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::qos::admission::calibration::MixedPart;
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::slots::Slot;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_os::clock::{self, Clock};
use evenkeel_store::buffer::Buffer;
use evenkeel_store::{Completion, Store, Submission};
use std::sync::atomic::{AtomicBool, Ordering};

/// Latencies kept of one load. Later ones are dropped.
const LATENCIES_MAX: usize = 1 << 20;

/// Requests after which a load may end at its time.
const REQUESTS_MIN: u64 = 16;

/// Multiple of its time after which a load ends in any case.
const LONGER_MAX: u64 = 4;

/// The longest sleep, so that a request to stop is noticed.
const WAIT_MAX: Duration = Duration::from_ms(50);

/// Kind of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Reads,
    Writes,
    /// Reads and writes in turn.
    Mixed,
    /// Writes of consecutive ranges from the first byte to the last, once.
    Fill,
}

/// Parameters of a load; see the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub kind: Kind,
    pub length: u32,
    pub depth: u32,
    /// Measured time, after a warm-up of a fifth of it.
    pub time: Duration,
    /// Number of parts of the time that are counted separately.
    pub parts: u32,
}

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub total: MixedPart,
    pub cpu: Duration,
    /// Latencies in nanoseconds, sorted.
    pub latencies_ns: Vec<u32>,
    pub parts: Vec<MixedPart>,
    /// Requests that were submitted, counted or not.
    pub submitted: u64,
}

impl Observed {
    pub fn requests(&self) -> u64 {
        self.total.reads + self.total.writes
    }

    /// Returns the quantile of the latencies, in thousandths.
    pub fn quantile(&self, per_mille: usize) -> Duration {
        let last = self.latencies_ns.len().saturating_sub(1);
        let latency = self.latencies_ns.get(last * per_mille / 1_000);
        Duration::from_ns(latency.copied().unwrap_or(0).into())
    }
}

/// A store, with the state to put a load on it.
pub(super) struct Generator<'a, D> {
    pub driver: D,
    pub store: Box<dyn Store>,
    pub clock: Clock,
    /// Bytes of the volume that are written. The rest reads as holes, which cost nothing.
    pub span: u64,
    pub stop: &'a AtomicBool,
    /// Payload buffers, one for each request in flight.
    pub buffers: Vec<Buffer>,
    pub random: Random,
}

/// A load in progress.
struct Run {
    load: Load,
    /// Time of each request's submission, by its place in flight, which is in its ticket.
    submitted_at: Vec<Instant>,
    in_flight: u32,
    submitted: u64,
    /// End of the warm-up.
    warm_at: Instant,
    /// Start of the measured time, at the end of a request, and the process's processor time then.
    since: Option<(Instant, Duration)>,
    part: MixedPart,
    part_since: Instant,
    observed: Observed,
    is_over: bool,
    failed: Option<CalibrateError>,
}

/// Returns the disk of the store, the only one of the driver.
fn disk<D: Driver>(driver: &mut D) -> D::Disk<'_> {
    driver.disk(VolumeSlot::new(0))
}

impl<D: Driver> Generator<'_, D> {
    /// Runs `load` to its end. Returns an error if a request fails or `stop` is set.
    pub fn run(&mut self, load: Load) -> Result<Observed, CalibrateError> {
        let now = self.clock.now();
        let mut run = Run {
            load,
            submitted_at: vec![now; load.depth as usize],
            in_flight: 0,
            submitted: 0,
            warm_at: now + Duration::from_ns(load.time.ns / 5),
            since: None,
            part: MixedPart::default(),
            part_since: now,
            observed: Observed::default(),
            is_over: false,
            failed: None,
        };
        for place in 0..load.depth {
            self.submit(&mut run, place, now);
        }
        while run.in_flight > 0 {
            while let Some(completion) = self.store.poll() {
                self.ended(&mut run, completion);
            }
            if run.in_flight > 0 {
                self.driver.wait(Some(WAIT_MAX), false).map_err(CalibrateError::Driver)?;
                while let Some(event) = self.driver.poll() {
                    if let Event::Disk(_, done) = event {
                        self.store.disk_done(done, &mut disk(&mut self.driver));
                    }
                }
            }
            run.is_over |= self.stop.load(Ordering::Relaxed);
        }
        match run.failed {
            Some(error) => Err(error),
            None if self.stop.load(Ordering::Relaxed) => Err(CalibrateError::Stopped),
            None => {
                run.observed.latencies_ns.sort_unstable();
                run.observed.submitted = run.submitted;
                Ok(run.observed)
            }
        }
    }

    fn submit(&mut self, run: &mut Run, place: u32, now: Instant) {
        let Load { kind, length, .. } = run.load;
        let Some(offset) = self.offset(kind, length, run.submitted) else { return };
        let is_write = match kind {
            Kind::Reads => false,
            Kind::Writes | Kind::Fill => true,
            Kind::Mixed => run.submitted.is_multiple_of(2),
        };
        let operation = if is_write { Operation::Write { fua: false } } else { Operation::Read };
        let buffer = self.buffers.pop().unwrap_or_else(|| incompressible(&mut self.random));
        run.submitted += 1;
        run.in_flight += 1;
        run.submitted_at[place as usize] = now;
        // The lowest bit of a ticket is set for a write.
        let ticket = u64::from(place) << 1 | u64::from(is_write);
        let submission = Submission { ticket, operation, offset, length, buffer: Some(buffer) };
        self.store.submit(submission, &mut disk(&mut self.driver));
    }

    /// Returns the offset of the next request; `None` if the volume is filled.
    fn offset(&mut self, kind: Kind, length: u32, submitted: u64) -> Option<u64> {
        let length = u64::from(length);
        let blocks = self.span / length;
        if kind == Kind::Fill {
            return (submitted < blocks).then(|| submitted * length);
        }
        Some(self.random.below(blocks) * length)
    }

    fn ended(&mut self, run: &mut Run, completion: Completion) {
        let now = self.clock.now();
        run.in_flight -= 1;
        self.buffers.extend(completion.buffer);
        let place = (completion.ticket >> 1) as u32;
        let is_write = completion.ticket & 1 == 1;
        if let Err(failure) = completion.result {
            let length = run.load.length;
            run.failed = Some(CalibrateError::Request { is_write, length, failure });
            run.is_over = true;
        }
        if self.stop.load(Ordering::Relaxed) {
            run.is_over = true;
        }
        if !run.is_over {
            run.count(now, place, is_write);
        }
        if !run.is_over {
            self.submit(run, place, now);
        }
    }
}

impl Run {
    /// Counts a request that has ended. The first one after the warm-up only starts the measured
    /// time, and the first one that ends after it is the last: so a stall of the device at the end
    /// counts.
    fn count(&mut self, now: Instant, place: u32, is_write: bool) {
        let Some((since, cpu_since)) = self.since else {
            if now >= self.warm_at {
                self.since = Some((now, clock::process_time()));
                self.part_since = now;
            }
            return;
        };
        *(if is_write { &mut self.part.writes } else { &mut self.part.reads }) += 1;
        *(if is_write {
            &mut self.observed.total.writes
        } else {
            &mut self.observed.total.reads
        }) += 1;
        if self.observed.latencies_ns.len() < LATENCIES_MAX {
            let latency = now.since(self.submitted_at[place as usize]).ns;
            self.observed.latencies_ns.push(saturating(latency));
        }
        let elapsed = now.since(since);
        let time = self.load.time.ns;
        let few = self.observed.requests() < REQUESTS_MIN;
        self.is_over = elapsed.ns >= if few { time * LONGER_MAX } else { time };
        let part_elapsed = now.since(self.part_since);
        if part_elapsed.ns >= time / u64::from(self.load.parts.max(1)) || self.is_over {
            self.part.elapsed = part_elapsed;
            self.observed.parts.push(std::mem::take(&mut self.part));
            self.part_since = now;
        }
        if self.is_over {
            self.observed.total.elapsed = elapsed;
            self.observed.cpu =
                Duration::from_ns(clock::process_time().ns.saturating_sub(cpu_since.ns));
        }
    }
}

/// Creates a buffer of the longest request with random bytes: some devices are faster with zeroes,
/// and with data that they can compress.
fn incompressible(random: &mut Random) -> Buffer {
    let mut buffer = Buffer::new(QUANTUM_BYTES_MAX as usize);
    for word in buffer.bytes_mut().chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
    buffer
}
