//! Reads the output of `blkparse` for the events of blktrace.
//!
//! Of the events of a request only Q (it arrived) and C (it was answered) are used; G, I and D
//! would count it again. A line is `8,16 1 42 0.000123456 1234 Q WS 2048 + 8 [postgres]`.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::Clock;

use super::bins::{Bins, Direction};
use super::lines::Lines;
use super::{Broken, Hints, Read};

/// Maximum number of requests that wait for their answer.
pub const WAITING_MAX: usize = 65_536;
const SECTOR_BYTES: u64 = 512;
const EXPECTED: &str = "major,minor cpu sequence seconds.nanoseconds pid action rwbs sector + \
                        sectors: print with blkparse in its own format, without -f";

/// A request that arrived and is not answered.
#[derive(Clone, Copy)]
struct Waiting {
    ns: u64,
    direction: Direction,
}

#[derive(Default)]
struct Reader {
    bins: Bins,
    /// Numbers of devices, so that waiting requests need no names.
    devices: BTreeMap<String, u32>,
    waiting: BTreeMap<(u32, u64), Waiting>,
    forgotten: u64,
    answers: u64,
    discards: u64,
}

/// Reads the events of requests. Each device becomes a trace.
///
/// # Errors
/// Returns [`Broken`] if an event is invalid, or if there are no reads and writes.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut reader = Reader::default();
    while let Some((number, line)) = lines.next()? {
        // Other lines are of the summary, or messages.
        if is_event(line) {
            reader.event(line, number, hints)?;
        }
    }
    if reader.bins.is_empty() {
        let expected = "events Q of reads or writes: record with `blktrace -d DEVICE -a queue -a \
                        complete -o - | blkparse -i -`";
        return Err(Broken::whole("no requests", expected));
    }
    let mut remarks = Vec::new();
    if reader.forgotten > 0 {
        let count = reader.forgotten;
        remarks.push(format!("requests whose answer was not found, too many at once: {count}"));
    }
    if reader.discards > 0 {
        remarks.push(format!("discards left out: {}", reader.discards));
    }
    let has_times = reader.answers > 0;
    reader.bins.finish(Clock::Elapsed, has_times, &remarks)
}

/// Returns whether a line begins with the numbers of a device.
fn is_event(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    word.split_once(',').is_some_and(|(major, minor)| {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        is_number(major) && is_number(minor)
    })
}

impl Reader {
    fn event(&mut self, line: &str, number: u64, hints: &Hints) -> Result<(), Broken> {
        let broken = || Broken::at(number, line, EXPECTED);
        let mut words = line.split_whitespace();
        let device = words.next().ok_or_else(broken)?;
        let at = words.nth(2).ok_or_else(broken)?;
        let action = words.nth(1).ok_or_else(broken)?;
        if !matches!(action, "Q" | "C") || hints.name.as_ref().is_some_and(|name| name != device) {
            return Ok(());
        }
        let ns = nanoseconds(at).ok_or_else(broken)?;
        let kind = words.next().ok_or_else(broken)?;
        let direction = match kind {
            _ if kind.contains('D') => {
                self.discards += u64::from(action == "Q");
                return Ok(());
            }
            _ if kind.contains('R') => Direction::Read,
            _ if kind.contains('W') => Direction::Write,
            // Flushes, and messages of drivers.
            _ => return Ok(()),
        };
        let Some(sector) = words.next().filter(|word| !word.starts_with(['[', '('])) else {
            return Ok(());
        };
        let sector: u64 = sector.parse().map_err(|_| broken())?;
        let sectors: u64 = match (words.next(), words.next()) {
            (Some("+"), Some(sectors)) => sectors.parse().map_err(|_| broken())?,
            // An empty write is the flush before it; blkparse prints no length.
            _ => return Ok(()),
        };
        if sectors == 0 {
            return Ok(());
        }
        match action {
            "Q" => self.arrive(device, sector, sectors, Waiting { ns, direction }),
            _ => {
                self.answer(device, sector, sectors, ns);
                Ok(())
            }
        }
    }

    fn arrive(
        &mut self,
        device: &str,
        sector: u64,
        sectors: u64,
        request: Waiting,
    ) -> Result<(), Broken> {
        let bytes = sectors.saturating_mul(SECTOR_BYTES);
        self.bins.add(device, request.ns / 1_000_000_000, request.direction, bytes)?;
        let number = match self.devices.get(device) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
                self.devices.insert(device.to_owned(), number);
                number
            }
        };
        // Missing answers leave requests in the table. Clearing it takes constant time per request,
        // and the affected seconds have no latencies.
        if self.waiting.len() >= WAITING_MAX {
            self.forgotten += self.waiting.len() as u64;
            self.waiting.clear();
        }
        self.waiting.insert((number, sector), request);
        Ok(())
    }

    /// Applies an answer to all requests that begin in its sectors: they were merged.
    fn answer(&mut self, device: &str, sector: u64, sectors: u64, ns: u64) {
        let Some(number) = self.devices.get(device).copied() else { return };
        let end = sector.saturating_add(sectors);
        while let Some((key, request)) =
            self.waiting.range((number, sector)..(number, end)).next().map(|(k, r)| (*k, *r))
        {
            self.waiting.remove(&key);
            self.answers += 1;
            let second = request.ns / 1_000_000_000;
            let took_ns = ns.saturating_sub(request.ns);
            self.bins.add_time(device, second, request.direction, took_ns);
        }
    }
}

/// Converts `0.000123456` to nanoseconds.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, part) = text.split_once('.')?;
    if part.len() != 9 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(part.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Interval, Kind};
    use std::io;

    const SAMPLE: &str = include_str!("../../samples/blkparse.txt");

    #[test]
    fn requests_are_counted_when_they_arrive_and_timed_by_their_answers() {
        let traces = read(&mut SAMPLE.as_bytes(), &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one device") };
        assert_eq!((trace.name.as_str(), trace.clock), ("8,16", Clock::Elapsed));
        assert_eq!(trace.columns.times, Some(Kind::Counter));
        let first = trace.intervals[0];
        assert_eq!((first.reads, first.writes), (1, 2));
        assert_eq!((first.read_bytes, first.write_bytes), (16_384, 8_192));
        // Two writes were merged, and have one answer.
        assert_eq!(first.read_ns, Some(512_000));
        assert_eq!(first.write_ns, Some(1_000_000 + 990_000));
        let last = trace.intervals.last().unwrap();
        assert_eq!((last.start_ms, last.writes, last.write_ns), (3_000, 1, None));
        assert_eq!(trace.sizes.as_ref().unwrap().reads.get(&16_384), Some(&1));
        let remark = crate::trace::Note::Remark("discards left out: 1".to_owned());
        assert_eq!(trace.notes, [remark]);
    }

    /// Lines without end. Half of them are answers, and every 50th request has none.
    struct Endless {
        buffer: Vec<u8>,
        taken: usize,
        lines: u64,
        left: u64,
    }

    impl Endless {
        fn refill(&mut self) {
            self.buffer.clear();
            self.taken = 0;
            while self.buffer.len() < 8_192 && self.left > 0 {
                let request = self.lines / 2;
                let is_answer = self.lines % 2 == 1 && !request.is_multiple_of(50);
                let (action, us) = if is_answer { ("C", 40) } else { ("Q", 0) };
                let sector = request * 8 + u64::from(self.lines % 2 == 1 && !is_answer) * 4;
                let line = format!(
                    "  8,0    1 {:8} {:5}.{:06}000  1234  {action}  WS {sector} + 8 [fio]\n",
                    self.lines,
                    request / 20_000,
                    request % 20_000 * 50 + us
                );
                self.buffer.extend_from_slice(line.as_bytes());
                self.left = self.left.saturating_sub(line.len() as u64);
                self.lines += 1;
            }
        }
    }

    impl io::Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let length = io::Read::read(&mut self.fill_buf()?, into)?;
            self.consume(length);
            Ok(length)
        }
    }

    impl BufRead for Endless {
        fn fill_buf(&mut self) -> io::Result<&[u8]> {
            if self.taken >= self.buffer.len() {
                self.refill();
            }
            Ok(&self.buffer[self.taken..])
        }

        fn consume(&mut self, amount: usize) {
            self.taken += amount;
        }
    }

    /// Reads `bytes` bytes. Memory is bounded by the number of seconds and of waiting requests.
    fn read_generated(bytes: u64) {
        let mut input = Endless { buffer: Vec::new(), taken: 0, lines: 0, left: bytes };
        let traces = read(&mut input, &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one device") };
        assert_eq!(trace.intervals.len() as u64, input.lines.div_ceil(2).div_ceil(20_000));
        let requests: u64 = trace.intervals.iter().map(Interval::requests).sum();
        assert!(requests >= input.lines / 2);
        assert_eq!(trace.sizes.as_ref().unwrap().writes.len(), 1);
    }

    #[test]
    fn long_recordings_keep_seconds() {
        read_generated(32 << 20);
    }

    #[test]
    #[ignore = "full: crates/planner/src/read/blkparse.rs::long_recordings_keep_seconds stays"]
    fn a_recording_of_a_gibibyte_keeps_seconds() {
        read_generated(1 << 30);
    }

    #[test]
    fn requests_without_answers_are_forgotten_in_time() {
        let mut reader = Reader::default();
        let request = Waiting { ns: 0, direction: Direction::Read };
        for sector in 0..=WAITING_MAX as u64 {
            reader.arrive("8,0", sector, 1, request).unwrap();
        }
        assert_eq!((reader.waiting.len(), reader.forgotten), (1, WAITING_MAX as u64));
    }
}
