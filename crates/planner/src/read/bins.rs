//! Requests that were recorded one by one, counted by the second of their arrival.

use evenkeel_core::convert::saturating;
use std::collections::BTreeMap;

use crate::trace::{Clock, Columns, INTERVALS_MAX, Interval, Kind, Note, SIZES_MAX, Sizes, Trace};

use super::collect::{malformed, too_many_intervals, too_many_names};
use super::{Broken, Hints, INTERVALS_TOTAL_MAX, NAMES_MAX, Read};

/// The direction of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Read,
    Write,
}

/// The counts of one direction in a second.
#[derive(Clone, Copy, Default)]
struct Half {
    requests: u64,
    bytes: u64,
    ns: u64,
    timed: u64,
}

impl Half {
    /// Returns the sum of all latencies, if each is known.
    fn times(self) -> Option<u64> {
        (self.timed == self.requests).then_some(self.ns)
    }
}

/// The requests of one device.
#[derive(Default)]
struct Device {
    seconds: BTreeMap<u64, [Half; 2]>,
    sizes: Sizes,
    /// Whether sizes were rounded up to powers of two, because there were too many.
    rounds: bool,
}

/// The requests of a recording, by device.
#[derive(Default)]
pub(super) struct Bins {
    devices: BTreeMap<String, Device>,
    total: usize,
    /// The first and the last second of each part of the recording; none if it has one part.
    parts: Vec<(u64, u64)>,
}

const fn half_of(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}

impl Bins {
    /// Counts a request.
    pub fn add(
        &mut self,
        name: &str,
        second: u64,
        direction: Direction,
        bytes: u64,
    ) -> Result<(), Broken> {
        if !self.devices.contains_key(name) {
            if self.devices.len() >= NAMES_MAX {
                return Err(too_many_names(name));
            }
            self.devices.insert(name.to_owned(), Device::default());
        }
        let Some(device) = self.devices.get_mut(name) else { return Ok(()) };
        let before = device.seconds.len();
        let halves = device.seconds.entry(second).or_default();
        if let Some(half) = halves.get_mut(half_of(direction)) {
            half.requests += 1;
            half.bytes = half.bytes.saturating_add(bytes);
        }
        self.total += device.seconds.len() - before;
        if device.seconds.len() > INTERVALS_MAX || self.total > INTERVALS_TOTAL_MAX {
            return Err(too_many_intervals(name));
        }
        device.count_size(direction, bytes);
        Ok(())
    }

    /// Adds the latency of a request that was counted in this second.
    pub fn add_time(&mut self, name: &str, second: u64, direction: Direction, ns: u64) {
        let device = self.devices.get_mut(name);
        let halves = device.and_then(|device| device.seconds.get_mut(&second));
        if let Some(half) = halves.and_then(|halves| halves.get_mut(half_of(direction))) {
            half.ns = half.ns.saturating_add(ns);
            half.timed += 1;
        }
    }

    /// Adds to the latencies of requests whose latency was added.
    pub fn extend_time(&mut self, name: &str, second: u64, direction: Direction, ns: u64) {
        let device = self.devices.get_mut(name);
        let halves = device.and_then(|device| device.seconds.get_mut(&second));
        if let Some(half) = halves.and_then(|halves| halves.get_mut(half_of(direction))) {
            half.ns = half.ns.saturating_add(ns);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Sets the parts of the recording: the first and the last second of each.
    pub fn set_parts(&mut self, parts: Vec<(u64, u64)>) {
        self.parts = parts;
    }

    /// Returns the traces. A second without requests is idle, not a gap, because the recording
    /// continued, unless it is between two parts of it.
    pub fn finish(self, clock: Clock, has_times: bool, remarks: &[String]) -> Read {
        let mut traces = Vec::new();
        for (name, device) in self.devices {
            let columns = Columns {
                requests: Some(Kind::Counter),
                bytes: Some(Kind::Counter),
                times: has_times.then_some(Kind::Counter),
                queue: None,
                idle_is_of_device: false,
            };
            let intervals = device.intervals(has_times, &self.parts);
            let trace = Trace::new(name.as_str(), clock, columns, intervals);
            let mut trace = trace.map_err(|error| malformed(&name, &error))?;
            trace.sizes = Some(device.sizes);
            trace.notes.extend(remarks.iter().cloned().map(Note::Remark));
            if device.rounds {
                let remark = "there are many sizes; they are rounded up to powers of two";
                trace.notes.push(Note::Remark(remark.to_owned()));
            }
            traces.push(trace);
        }
        Ok(traces)
    }
}

impl Device {
    fn count_size(&mut self, direction: Direction, bytes: u64) {
        let mut size = saturating::<_, u32>(bytes);
        if self.rounds {
            size = round_up(size);
        }
        let sizes = match direction {
            Direction::Read => &mut self.sizes.reads,
            Direction::Write => &mut self.sizes.writes,
        };
        *sizes.entry(size).or_default() += 1;
        // Each direction has half of the sizes; powers of two fit into that.
        if sizes.len() > SIZES_MAX / 2 && !self.rounds {
            self.rounds = true;
            for sizes in [&mut self.sizes.reads, &mut self.sizes.writes] {
                let mut rounded = BTreeMap::new();
                for (size, count) in &*sizes {
                    *rounded.entry(round_up(*size)).or_default() += count;
                }
                *sizes = rounded;
            }
        }
    }

    fn intervals(&self, has_times: bool, parts: &[(u64, u64)]) -> Vec<Interval> {
        let mut intervals: Vec<Interval> = Vec::with_capacity(self.seconds.len());
        for (second, [reads, writes]) in &self.seconds {
            let start_ms = second.saturating_mul(1_000);
            // One interval for a pause of any length, because its seconds are equal.
            let end_ms = intervals.last().map_or(start_ms, Interval::end_ms);
            let is_recorded = parts.is_empty()
                || parts
                    .iter()
                    .any(|(first, last)| *first <= end_ms / 1_000 && start_ms / 1_000 <= *last);
            let pause_ms = start_ms.checked_sub(end_ms).filter(|ms| *ms > 0 && is_recorded);
            if let Some(length_ms) = pause_ms {
                intervals.push(Interval {
                    start_ms: end_ms,
                    length_ms,
                    idle_ms: Some(length_ms),
                    read_ns: has_times.then_some(0),
                    write_ns: has_times.then_some(0),
                    ..Interval::default()
                });
            }
            intervals.push(Interval {
                start_ms,
                length_ms: 1_000,
                reads: reads.requests,
                writes: writes.requests,
                read_bytes: reads.bytes,
                write_bytes: writes.bytes,
                read_ns: reads.times().filter(|_| has_times),
                write_ns: writes.times().filter(|_| has_times),
                ..Interval::default()
            });
        }
        intervals
    }
}

/// Returns the next power of two. The largest size represents all above it, so that there are 32.
fn round_up(size: u32) -> u32 {
    size.max(2).checked_next_power_of_two().unwrap_or(1 << 31)
}

/// Returns the name for a recording without one.
pub(super) fn name_or(hints: &Hints, fallback: &str) -> String {
    hints.name.clone().unwrap_or_else(|| fallback.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_idle_and_times_are_those_of_all_or_none() {
        let mut bins = Bins::default();
        bins.add("a", 3, Direction::Read, 4_096).unwrap();
        bins.add_time("a", 3, Direction::Read, 7);
        bins.add("a", 10, Direction::Write, 512).unwrap();
        let traces = bins.finish(Clock::Elapsed, true, &[]).unwrap();
        let intervals = &traces[0].intervals;
        let spans: Vec<_> =
            intervals.iter().map(|interval| (interval.start_ms, interval.length_ms)).collect();
        assert_eq!(spans, [(3_000, 1_000), (4_000, 6_000), (10_000, 1_000)]);
        assert_eq!((intervals[0].read_ns, intervals[1].idle_ms), (Some(7), Some(6_000)));
        assert_eq!(intervals[2].write_ns, None);
        assert_eq!(traces[0].notes, []);
    }

    #[test]
    fn many_sizes_become_powers_of_two() {
        let mut bins = Bins::default();
        for size in 1..=1_000 {
            bins.add("a", 0, Direction::Read, size * 512).unwrap();
        }
        bins.add("a", 0, Direction::Write, 1 << 40).unwrap();
        let sizes = bins.finish(Clock::Elapsed, false, &[]).unwrap().remove(0).sizes.unwrap();
        assert_eq!(sizes.reads.values().sum::<u64>(), 1_000);
        assert!(sizes.reads.keys().all(|size| size.is_power_of_two()));
        assert_eq!(sizes.reads.get(&1_024), Some(&1));
        assert_eq!(sizes.writes.get(&(1 << 31)), Some(&1));
    }
}
