//! Reads the output of `blkparse` for the events of blktrace.
//!
//! Of the events of a request only Q (it arrived) and C (it was answered) are used; G, I and D
//! would count it again. A line is `8,16 1 42 0.000123456 1234 Q WS 2048 + 8 [postgres]`.
//!
//! A device without FUA gets a flush after a write with FUA. The kernel then reports the end of
//! such a write twice: of its data, with its length, and after the flush without one, at the sector
//! behind it (`blk_update_request` in block/blk-mq.c). The client waits for the second one.

use evenkeel_core::convert::saturating;
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

/// The writes with FUA whose data is written, and which may still wait for a flush.
#[derive(Clone, Copy)]
struct Flushing {
    ns: u64,
    second: u64,
    count: u64,
}

#[derive(Default)]
struct Reader {
    bins: Bins,
    /// Numbers of devices, so that waiting requests need no names.
    devices: BTreeMap<String, u32>,
    waiting: BTreeMap<(u32, u64), Waiting>,
    /// By the sector behind them.
    flushing: BTreeMap<(u32, u64), Flushing>,
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
        if begins_with_device(line) {
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

/// Returns whether a line is an event in blkparse's own form: the numbers of a device, a core, a
/// sequence number, a time with nine decimals, a process, and an action of letters.
pub(super) fn is_event(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let device = words.next().unwrap_or_default();
    let is_device =
        device.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor));
    let are_numbers = words.by_ref().take(2).filter(|word| is_number(word)).count() == 2;
    let is_time = words.next().is_some_and(|word| nanoseconds(word).is_some());
    let is_process = words.next().is_some_and(is_number);
    let is_action = |word: &str| word.bytes().all(|byte| byte.is_ascii_uppercase());
    is_device && are_numbers && is_time && is_process && words.next().is_some_and(is_action)
}

/// Returns whether a line begins with the numbers of a device.
fn begins_with_device(line: &str) -> bool {
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
            // An empty write is a flush; blkparse prints no length.
            _ => {
                if action == "C" {
                    self.end_flush(device, sector, ns);
                }
                return Ok(());
            }
        };
        if sectors == 0 {
            return Ok(());
        }
        match action {
            "Q" => self.arrive(device, sector, sectors, Waiting { ns, direction }),
            _ => {
                let second = self.answer(device, sector, sectors, ns);
                // An F after the W is FUA; an F before the W is a flush that precedes the write.
                let is_fua = kind.rfind('F') > kind.find('W');
                if let Some((second, count)) = second.filter(|_| is_fua) {
                    let end = sector.saturating_add(sectors);
                    self.begin_flush(device, end, Flushing { ns, second, count });
                }
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
                let number = saturating::<_, u32>(self.devices.len());
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

    fn begin_flush(&mut self, device: &str, end: u64, flushing: Flushing) {
        let Some(number) = self.devices.get(device).copied() else { return };
        // Devices with FUA never report a flush of them.
        if self.flushing.len() >= WAITING_MAX {
            self.flushing.clear();
        }
        self.flushing.insert((number, end), flushing);
    }

    /// Ends writes with FUA, after the flush behind them.
    fn end_flush(&mut self, device: &str, sector: u64, ns: u64) {
        let Some(number) = self.devices.get(device).copied() else { return };
        let Some(flushing) = self.flushing.remove(&(number, sector)) else { return };
        let more_ns = ns.saturating_sub(flushing.ns).saturating_mul(flushing.count);
        self.bins.extend_time(device, flushing.second, Direction::Write, more_ns);
    }

    /// Applies an answer to all requests that begin in its sectors: they were merged. Returns the
    /// second of the last one, and their number.
    fn answer(&mut self, device: &str, sector: u64, sectors: u64, ns: u64) -> Option<(u64, u64)> {
        let number = self.devices.get(device).copied()?;
        let end = sector.saturating_add(sectors);
        let mut last = None;
        while let Some((key, request)) =
            self.waiting.range((number, sector)..(number, end)).next().map(|(k, r)| (*k, *r))
        {
            self.waiting.remove(&key);
            self.answers += 1;
            let second = request.ns / 1_000_000_000;
            let took_ns = ns.saturating_sub(request.ns);
            self.bins.add_time(device, second, request.direction, took_ns);
            last = Some((second, last.map_or(1, |(_, count)| count + 1)));
        }
        last
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

    #[test]
    fn a_write_with_fua_ends_with_the_flush_after_it() {
        let read_ns = |last: &str| {
            let text = format!(
                "8,16 1 1 0.100000000 7 Q WFS 2048 + 8 [db]\n\
                 8,16 1 2 0.100200000 0 C WFS 2048 + 8 [0]\n\
                 8,16 1 3 0.100900000 0 C {last}\n"
            );
            let traces = read(&mut text.as_bytes(), &Hints::default()).unwrap();
            traces[0].intervals[0].write_ns
        };
        assert_eq!(read_ns("WFS 2056 [0]"), Some(900_000));
        // Of another write, and of the flush itself.
        assert_eq!(read_ns("WFS 4096 [0]"), Some(200_000));
        assert_eq!(read_ns("FN 0 [0]"), Some(200_000));
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
