//! The record of a volume or client that was driven live, made from logs that are read one after
//! the other: unlike in virtual time, I/Os arrive in no order.

use evenkeel_core::convert::saturating;
use evenkeel_lab::fio::Completion;
use evenkeel_sim::figures::histogram::{LatencyHistogram, LatencySummary};
use evenkeel_sim::scenario::setup::Setup;
use evenkeel_sim::world::record::{Record, Sample, Span, SpanRecord};

/// Maximum number of equal parts of a run for which latencies are summarized. Each is a histogram
/// until the end.
pub(super) const STRETCHES_MAX: usize = 60;

/// Collects the I/Os of a volume or client.
pub(super) struct LiveRecorder {
    sample_ns: u64,
    samples: Vec<Sample>,
    whole: LatencyHistogram,
    stretch_samples: usize,
    stretches: Vec<LatencyHistogram>,
    watched: Vec<(Span, LatencyHistogram)>,
}

impl LiveRecorder {
    /// Creates the recorder of a run of this world, with separate latencies for these spans.
    pub fn new(setup: &Setup, spans: Vec<Span>) -> Self {
        let samples = usize::try_from(setup.duration_ns / setup.sample_ns).unwrap_or(0);
        let stretch_samples = samples.div_ceil(STRETCHES_MAX).max(1);
        let histogram = |span| (span, LatencyHistogram::new());
        Self {
            sample_ns: setup.sample_ns,
            samples: vec![Sample::default(); samples],
            whole: LatencyHistogram::new(),
            stretch_samples,
            stretches: vec![LatencyHistogram::new(); samples.div_ceil(stretch_samples)],
            watched: spans.into_iter().map(histogram).collect(),
        }
    }

    /// Counts an I/O. Answers after the end, when the load drains, are in no sample.
    pub fn completed(&mut self, io: Completion) {
        let at_ns = io.time_ms.saturating_mul(1_000_000);
        let number = saturating::<_, usize>(at_ns / self.sample_ns);
        let Some(sample) = self.samples.get_mut(number) else { return };
        sample.completed += 1;
        sample.completed_bytes += io.bytes;
        self.whole.record(io.latency_ns);
        self.stretches[number / self.stretch_samples].record(io.latency_ns);
        for (span, histogram) in &mut self.watched {
            if span.contains(at_ns) {
                histogram.record(io.latency_ns);
            }
        }
    }

    /// Ends the recording.
    pub fn finish(self) -> Record {
        let summaries: Vec<LatencySummary> =
            self.stretches.iter().map(LatencyHistogram::summary).collect();
        let spans = self.watched.iter().map(|(span, histogram)| SpanRecord {
            span: *span,
            dispatched: 0,
            latency: histogram.summary(),
        });
        Record {
            bytes: self.samples.iter().map(|sample| sample.completed_bytes).sum(),
            latency: self.whole.summary(),
            quantiles_ns: self.whole.quantiles(),
            latency_samples: self.stretch_samples as u64,
            latencies: summaries,
            spans: spans.collect(),
            samples: self.samples,
        }
    }
}
