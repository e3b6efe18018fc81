//! nbdkit's `rate` filter (`filters/rate`; as of 2020, nbdkit 1.24, commit 097995643c65): a bucket
//! of bits in front of threads that sleep.
//!
//! The bucket holds two seconds' worth and starts full. A request takes the bits that are there;
//! for the rest its thread sleeps as long as they take at the rate, then looks again. Threads that
//! sleep at the same time race, so order is lost and sleeps are repeated. Time is counted in whole
//! microseconds and bits in whole bits, and the time stamp moves on each look: where less than one
//! bit is earned between two looks, nothing ever is. Reads and writes have a bucket each. A change
//! of the rate never adds bits.
//!
//! There is no limit in I/Os. Left out: the limit of a connection beside the server's, and reading
//! the rate's file again for each request.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_core::time::{Duration, Instant};

use super::limited::{QUEUE_REQUESTS_MAX, Rates, payload, whole};
use crate::world::policy::{Dispatch, Policy, Request};

/// Threads of a connection (`--threads`); each carries a request from its arrival to its reply.
const THREADS: usize = 16;

const CAPACITY_SECONDS: u64 = 2;

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    bits_per_second: u64,
    capacity: u64,
    level: u64,
    looked_us: u64,
}

impl Bucket {
    pub(super) const fn new(now: Instant, bits_per_second: u64) -> Self {
        let capacity = bits_per_second * CAPACITY_SECONDS;
        Self { bits_per_second, capacity, level: capacity, looked_us: now.ns / 1_000 }
    }

    /// Takes up to `bits`; what is lacking, and how long the caller has to sleep for it.
    pub(super) fn look(&mut self, now: Instant, bits: u64) -> (u64, Duration) {
        let now_us = now.ns / 1_000;
        let passed_us = now_us.saturating_sub(self.looked_us);
        self.looked_us = now_us;
        let earned = u128::from(self.bits_per_second) * u128::from(passed_us) / 1_000_000;
        let room = self.capacity - self.level;
        self.level += u64::try_from(earned).unwrap_or(u64::MAX).min(room);
        let taken = bits.min(self.level);
        self.level -= taken;
        let lacking = bits - taken;
        let sleep_ns = u128::from(lacking) * 1_000_000_000 / u128::from(self.bits_per_second);
        (lacking, Duration::from_ns(sleep_ns as u64))
    }

    fn adjust(&mut self, bits_per_second: u64) {
        self.bits_per_second = bits_per_second;
        self.capacity = bits_per_second * CAPACITY_SECONDS;
        self.level = self.level.min(self.capacity);
    }
}

#[derive(Debug)]
struct FilteredVolume {
    /// For reads and for writes; `None` is unlimited.
    buckets: [Option<Bucket>; 2],
    threads_busy: usize,
    waiting: VecDeque<Request>,
}

/// Servers with a `rate` filter each, one a volume. Volumes are numbered from 0; limits in I/Os are
/// ignored.
#[derive(Debug)]
pub struct Nbdkit {
    volumes: Vec<FilteredVolume>,
    /// Threads that sleep, by when they wake and in the order they fell asleep: their request and
    /// the bits it still lacks.
    sleepers: BTreeMap<(Instant, u64), (Request, u64)>,
    slept: u64,
    output: VecDeque<Dispatch>,
}

impl Nbdkit {
    /// As many volumes as there are limits given.
    #[must_use]
    pub fn new(now: Instant, rates: &[Rates]) -> Self {
        let volume = |rates: &Rates| {
            let bucket = || rates.bytes.map(|bytes| Bucket::new(now, bytes.max(1) * 8));
            FilteredVolume {
                buckets: [bucket(), bucket()],
                threads_busy: 0,
                waiting: VecDeque::new(),
            }
        };
        Self {
            volumes: rates.iter().map(volume).collect(),
            sleepers: BTreeMap::new(),
            slept: 0,
            output: VecDeque::new(),
        }
    }

    /// Puts another rate in force for a volume; a volume that does not exist is ignored.
    pub fn reconfigure(&mut self, now: Instant, volume: u32, rates: &Rates) {
        let Some(volume) = self.volumes.get_mut(volume as usize) else { return };
        for entry in &mut volume.buckets {
            match (entry.as_mut(), rates.bytes) {
                (Some(bucket), Some(bytes)) => bucket.adjust(bytes.max(1) * 8),
                (_, bytes) => *entry = bytes.map(|bytes| Bucket::new(now, bytes.max(1) * 8)),
            }
        }
    }

    /// A thread looks whether its request may go; if not, it sleeps.
    fn look(&mut self, now: Instant, request: &Request, bits: u64) {
        let volume = &mut self.volumes[request.volume as usize];
        let bucket = &mut volume.buckets[usize::from(request.operation.is_write())];
        let (lacking, sleep) = match bucket {
            Some(bucket) if bits > 0 => bucket.look(now, bits),
            _ => (0, Duration::ZERO),
        };
        if lacking == 0 {
            self.output.push_back(whole(request));
        } else {
            self.slept += 1;
            self.sleepers.insert((now + sleep, self.slept), (*request, lacking));
        }
    }

    /// Gives waiting requests to free threads.
    fn start(&mut self, now: Instant, at: usize) {
        while self.volumes[at].threads_busy < THREADS {
            let Some(request) = self.volumes[at].waiting.pop_front() else { return };
            self.volumes[at].threads_busy += 1;
            self.look(now, &request, payload(&request) * 8);
        }
    }
}

impl Policy for Nbdkit {
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let at = request.volume as usize;
        let Some(volume) = self.volumes.get_mut(at) else { return false };
        if volume.waiting.len() >= QUEUE_REQUESTS_MAX {
            return false;
        }
        volume.waiting.push_back(*request);
        self.start(now, at);
        true
    }

    fn poll(&mut self, now: Instant) {
        // Those that wake now; a thread that falls asleep again waits for the next poll.
        let later = self.sleepers.split_off(&(now + Duration::from_ns(1), 0));
        let awake = std::mem::replace(&mut self.sleepers, later);
        for (request, bits) in awake.into_values() {
            self.look(now, &request, bits);
        }
    }

    fn poll_output(&mut self) -> Option<Dispatch> {
        self.output.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sleepers.first_key_value().map(|((at, _), _)| *at)
    }

    fn complete(&mut self, now: Instant, dispatch: &Dispatch, _: Duration) {
        let at = dispatch.volume as usize;
        let volume = &mut self.volumes[at];
        volume.threads_busy = volume.threads_busy.saturating_sub(1);
        self.start(now, at);
    }
}
