//! Records of a run: a sample of each second of every volume, and latencies.

use crate::figures::histogram::{LatencyHistogram, LatencySummary};
use evenkeel_core::convert::index;
use evenkeel_core::qos::pacing::Balances;

/// Width of the short windows of which the highest count is kept.
pub const SHORT_WINDOW_NS: u64 = 10_000_000;

/// Maximum number of equal stretches of the run for which latencies are summed up.
const STRETCHES_MAX: u64 = 240;

/// The counts of one volume or client in one sample, which lasts a second or the run's `sample_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sample {
    /// Requests whose last piece went to the device.
    pub dispatched: u64,
    /// Requests that were answered.
    pub completed: u64,
    /// Their bytes.
    pub completed_bytes: u64,
    /// Largest number of requests dispatched in one of the ten-millisecond windows that ended in
    /// it.
    pub peak_10ms: u32,
    /// Credit balances at its end.
    pub balances: Balances,
}

/// A span of the run, in nanoseconds after the start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    /// First time in it.
    pub from_ns: u64,
    /// First time after it.
    pub to_ns: u64,
}

impl Span {
    /// Returns whether a time is in it.
    #[must_use]
    pub const fn contains(&self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && at_ns < self.to_ns
    }

    /// Returns its length in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64 / 1e9
    }
}

/// Records one volume or client during the run.
#[derive(Debug)]
pub struct Recorder {
    current: Sample,
    samples: Vec<Sample>,
    bytes: u64,
    short_ends_at: u64,
    short_count: u32,
    /// Latencies of the present sample; of the whole run if there are no stretches.
    latencies: LatencyHistogram,
    stretch: Option<Stretch>,
    watched: Vec<Watched>,
}

/// The counts of a requested span.
#[derive(Debug)]
struct Watched {
    span: Span,
    /// The span in the world's time, which is earlier after stretches were skipped.
    in_world: Span,
    dispatched: u64,
    histogram: LatencyHistogram,
}

/// Latencies of the present stretch, and of all earlier ones.
#[derive(Debug)]
struct Stretch {
    whole: LatencyHistogram,
    histogram: LatencyHistogram,
    /// Latencies of the last complete sample.
    last: LatencyHistogram,
    samples: u64,
    samples_max: u64,
    summaries: Vec<LatencySummary>,
}

/// The complete record of one volume or client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The samples; a last partial one is left out.
    pub samples: Vec<Sample>,
    /// Bytes of all answered requests of the run.
    pub bytes: u64,
    /// Latencies of the whole run.
    pub latency: LatencySummary,
    /// Upper bounds of the latencies of the shares of requests in
    /// [`SHARES_PPM`](crate::figures::histogram::SHARES_PPM), in nanoseconds; empty if only sums
    /// are known.
    pub quantiles_ns: Vec<u64>,
    /// Number of samples in each of `latencies`.
    pub latency_samples: u64,
    /// Latencies of equal stretches of the run; empty if there are too many volumes.
    pub latencies: Vec<LatencySummary>,
    /// The requested spans.
    pub spans: Vec<SpanRecord>,
}

/// Counts of one span, exact to the nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpanRecord {
    /// The span.
    pub span: Span,
    /// Requests whose last piece was dispatched to the device in it.
    pub dispatched: u64,
    /// Latencies of requests that were answered in it.
    pub latency: LatencySummary,
}

impl Recorder {
    /// Creates the recorder of a run of `samples`. One with stretches takes four times the memory.
    #[must_use]
    pub fn new(samples: u64, with_stretches: bool) -> Self {
        let stretch = with_stretches.then(|| Stretch {
            whole: LatencyHistogram::new(),
            histogram: LatencyHistogram::new(),
            last: LatencyHistogram::new(),
            samples: 0,
            samples_max: samples.div_ceil(STRETCHES_MAX).max(1),
            summaries: Vec::new(),
        });
        Self {
            current: Sample::default(),
            samples: Vec::with_capacity(index(samples)),
            bytes: 0,
            short_ends_at: SHORT_WINDOW_NS,
            short_count: 0,
            latencies: LatencyHistogram::new(),
            stretch,
            watched: Vec::new(),
        }
    }

    /// Also records the count and the latencies of this span.
    pub fn watch(&mut self, span: Span) {
        if self.watched.iter().all(|watched| watched.span != span) {
            let histogram = LatencyHistogram::new();
            self.watched.push(Watched { span, in_world: span, dispatched: 0, histogram });
        }
    }

    /// Counts a request that was dispatched to the device.
    #[inline(always)]
    pub fn dispatched(&mut self, now: u64) {
        self.current.dispatched += 1;
        if now >= self.short_ends_at {
            self.close_short(now);
        }
        self.short_count += 1;
        for watched in &mut self.watched {
            watched.dispatched += u64::from(watched.in_world.contains(now));
        }
    }

    /// Counts a request that was answered.
    #[inline(always)]
    pub fn completed(&mut self, now: u64, latency_ns: u64, length: u32) {
        self.current.completed += 1;
        self.current.completed_bytes += u64::from(length);
        self.latencies.record(latency_ns);
        for watched in &mut self.watched {
            if watched.in_world.contains(now) {
                watched.histogram.record(latency_ns);
            }
        }
    }

    /// Ends a sample.
    pub fn close_sample(&mut self, now: u64, balances: Balances) {
        if now >= self.short_ends_at {
            self.close_short(now);
        }
        let sample = Sample { balances, ..std::mem::take(&mut self.current) };
        self.bytes += sample.completed_bytes;
        self.samples.push(sample);
        if let Some(stretch) = &mut self.stretch {
            stretch.add(&mut self.latencies);
            stretch.samples += 1;
            if stretch.samples == stretch.samples_max {
                stretch.close();
            }
        }
    }

    /// Appends a copy of the last sample, which ended at `now`, with other balances. Does nothing
    /// in a record without stretches, which does not keep the latencies of a sample.
    pub fn repeat_sample(&mut self, now: u64, balances: Balances) {
        let (Some(stretch), Some(last)) = (&self.stretch, self.samples.last()) else { return };
        self.current = *last;
        self.latencies.add(&stretch.last);
        for watched in self.watched.iter_mut().filter(|watched| watched.in_world.contains(now)) {
            watched.dispatched += last.dispatched;
            watched.histogram.add(&stretch.last);
        }
        self.close_sample(now, balances);
    }

    /// Returns the starts and the ends of the requested spans, in the world's time.
    pub fn edges(&self) -> impl Iterator<Item = u64> {
        self.watched.iter().flat_map(|watched| [watched.in_world.from_ns, watched.in_world.to_ns])
    }

    /// Moves the starts and the ends that are still to come.
    pub fn bring_nearer(&mut self, nearer: impl Fn(u64) -> u64) {
        for Watched { in_world: Span { from_ns, to_ns }, .. } in &mut self.watched {
            (*from_ns, *to_ns) = (nearer(*from_ns), nearer(*to_ns));
        }
    }

    /// Ends the recording.
    #[must_use]
    pub fn finish(mut self) -> Record {
        let mut record = Record::default();
        if let Some(mut stretch) = self.stretch.take() {
            // Latencies after the last whole sample belong to the stretch that the end of the run
            // cuts short. If that stretch has no sample, they belong to none.
            stretch.add(&mut self.latencies);
            if stretch.samples > 0 {
                stretch.close();
            }
            stretch.whole.add(&stretch.histogram);
            self.latencies = stretch.whole;
            record.latency_samples = stretch.samples_max;
            record.latencies = stretch.summaries;
        }
        record.samples = self.samples;
        record.bytes = self.bytes + self.current.completed_bytes;
        record.latency = self.latencies.summary();
        record.quantiles_ns = self.latencies.quantiles();
        let spans = self.watched.iter().map(|watched| SpanRecord {
            span: watched.span,
            dispatched: watched.dispatched,
            latency: watched.histogram.summary(),
        });
        record.spans = spans.collect();
        record
    }

    fn close_short(&mut self, now: u64) {
        self.current.peak_10ms = self.current.peak_10ms.max(self.short_count);
        self.short_count = 0;
        self.short_ends_at = (now / SHORT_WINDOW_NS + 1) * SHORT_WINDOW_NS;
    }
}

/// Returns the new time of an event in the world's time if `leapt_ns` after `now` are skipped. A
/// past event keeps its time.
pub fn brought_nearer(at: u64, now: u64, leapt_ns: u64) -> u64 {
    if at > now { at.saturating_sub(leapt_ns).max(now) } else { at }
}

impl Stretch {
    /// Adds the latencies of a complete sample.
    fn add(&mut self, sample: &mut LatencyHistogram) {
        self.histogram.add(sample);
        std::mem::swap(sample, &mut self.last);
        sample.reset();
    }

    fn close(&mut self) {
        self.summaries.push(self.histogram.summary());
        self.whole.add(&self.histogram);
        self.histogram.reset();
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn samples_peaks_and_latencies_are_kept_apart() {
        let mut recorder = Recorder::new(2, true);
        recorder.watch(Span { from_ns: SECOND, to_ns: 2 * SECOND });
        for now in [0, 9_999_999, 10_000_000, 10_000_001, 10_000_002] {
            recorder.dispatched(now);
            recorder.completed(now + 100, 100, 512);
        }
        recorder.close_sample(SECOND, Balances::default());
        recorder.dispatched(SECOND);
        recorder.completed(SECOND + 900, 900, 1_024);
        recorder.close_sample(2 * SECOND, Balances { operations: Some(7), bytes: None });
        let record = recorder.finish();
        let [first, second] = record.samples[..] else { panic!("{record:?}") };
        assert_eq!((first.dispatched, first.completed, first.completed_bytes), (5, 5, 2_560));
        assert_eq!((first.peak_10ms, second.peak_10ms), (3, 1));
        assert_eq!(second.balances.operations, Some(7));
        let [in_second] = record.spans[..] else { panic!("{record:?}") };
        assert_eq!((in_second.latency.count, in_second.latency.p50_ns), (1, 900));
        assert_eq!(in_second.dispatched, 1);
        assert_eq!((record.latency.count, record.latency.max_ns), (6, 900));
        let counts: Vec<u64> = record.latencies.iter().map(|latency| latency.count).collect();
        assert_eq!(counts, [5, 1]);
    }
}
