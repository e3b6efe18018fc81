//! Blocks of recordings that one server has and another one is to have, too.

use std::collections::BTreeMap;
use std::io;

use evenkeel_core::ids::VolumeId;
use tracing::{info, warn};

use super::codec::{self, Whole};
use super::files::{DAY_MS, Files, Writer};
use crate::model::UnixMs;

/// Blocks of one volume and day.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The day since 1970.
    pub day: u64,
    /// Whose.
    pub id: VolumeId,
    /// Where the last block ends, in milliseconds of Unix time.
    pub end_ms: u64,
    /// Whole blocks.
    pub bytes: Vec<u8>,
}

/// Where a part ends that others follow: its day, its volume and its end.
pub type Place = (u64, VolumeId, u64);

/// The blocks between two moments that end after the first one, by day and volume, behind this
/// place: at most so many bytes and a block, and one part at least if there is any.
///
/// # Errors
/// A file cannot be read.
pub fn parts(
    files: &Files,
    (from_ms, until_ms): (u64, u64),
    after: Option<Place>,
    bytes_max: usize,
) -> io::Result<Vec<Part>> {
    let first_day = after.map_or(from_ms / DAY_MS, |(day, ..)| day);
    let mut days = BTreeMap::<u64, Vec<VolumeId>>::new();
    for id in files.volumes()? {
        for day in files.days(id, first_day, until_ms / DAY_MS)? {
            days.entry(day).or_default().push(id);
        }
    }
    let (mut parts, mut bytes) = (Vec::new(), 0);
    for (day, id) in days.iter().flat_map(|(day, ids)| ids.iter().map(move |id| (*day, *id))) {
        let from_ms = match after {
            Some((of, after, _)) if (day, id) < (of, after) => continue,
            Some((of, after, end_ms)) if (day, id) == (of, after) => from_ms.max(end_ms),
            _ => from_ms,
        };
        let end = files.end(id, day, from_ms)?;
        let mut part = Part { day, id, end_ms: 0, bytes: Vec::new() };
        for block in codec::whole(&end).iter().filter(|block| block.end_ms > from_ms) {
            if bytes < bytes_max {
                part.bytes.extend(block.bytes);
                part.end_ms = block.end_ms;
                bytes += block.bytes.len();
            }
        }
        parts.extend(Some(part).filter(|part| !part.bytes.is_empty()));
        if bytes >= bytes_max {
            break;
        }
    }
    Ok(parts)
}

/// The recordings of a data folder in which nobody records now: they are taken from who does.
#[derive(Debug)]
pub struct Copies {
    files: Files,
    writer: Writer,
    /// The day of the last file of each volume, and where its last block ends.
    ends: BTreeMap<VolumeId, (u64, u64)>,
    is_failing: bool,
}

impl Copies {
    /// Those of a data folder.
    #[must_use]
    pub fn new(files: Files) -> Self {
        let writer = Writer::new(files.clone());
        Self { files, writer, ends: BTreeMap::new(), is_failing: false }
    }

    /// The moment from which on something may be missing of what was recorded in the last days.
    /// Parts are taken by days, so of all days before the newest there is all.
    pub fn since(&self, now: UnixMs, days: u64) -> UnixMs {
        let newest = self.newest_day().unwrap_or_else(|error| {
            warn!("{error}; recordings are taken over anew");
            None
        });
        let oldest = (now.0 / DAY_MS).saturating_sub(days);
        UnixMs(newest.unwrap_or_default().max(oldest) * DAY_MS)
    }

    fn newest_day(&self) -> io::Result<Option<u64>> {
        let mut newest = None;
        for id in self.files.volumes()? {
            newest = newest.max(self.files.days(id, newest.unwrap_or_default(), u64::MAX)?.pop());
        }
        Ok(newest)
    }

    /// Where the last block of a day ends; 0 without one.
    fn end_ms(&mut self, id: VolumeId, day: u64) -> io::Result<u64> {
        if let Some((_, end_ms)) = self.ends.get(&id).filter(|(of, _)| *of == day) {
            return Ok(*end_ms);
        }
        let end = self.files.end(id, day, u64::MAX)?;
        let end_ms = codec::whole(&end).last().map_or(0, |block| block.end_ms);
        self.ends.insert(id, (day, end_ms));
        Ok(end_ms)
    }

    /// Takes blocks that begin where those of this folder end, or later. Others are there, or are
    /// of a time that this server recorded itself. One that cannot be written is dropped, and the
    /// log says so once.
    pub fn merge(&mut self, parts: &[Part]) {
        if parts.is_empty() {
            return;
        }
        let mut result = self.writer.check_room();
        for part in parts {
            result = result.and_then(|()| self.append(part));
        }
        match (result, self.is_failing) {
            (Err(error), false) => {
                warn!("{error}; no recordings are taken over until that is over")
            }
            (Ok(()), true) => info!("recordings are taken over again"),
            (Err(_), true) | (Ok(()), false) => return,
        }
        self.is_failing = !self.is_failing;
    }

    fn append(&mut self, part: &Part) -> io::Result<()> {
        let mut end_ms = self.end_ms(part.id, part.day)?;
        let mut bytes = Vec::new();
        for Whole { start_ms, end_ms: until_ms, bytes: block } in codec::whole(&part.bytes) {
            // A clock that was set back has them twice; readers go by what begins first.
            if start_ms >= end_ms && start_ms / DAY_MS == part.day {
                bytes.extend(block);
                end_ms = until_ms;
            }
        }
        if !bytes.is_empty() {
            self.writer.append(part.id, part.day, &bytes)?;
            self.ends.insert(part.id, (part.day, end_ms));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::{Block, Interval, Requests, Work};
    use super::*;
    use proptest::prelude::*;

    const DAY: u64 = 20_783;

    fn id(bits: u128) -> VolumeId {
        VolumeId::from_bits(bits)
    }

    /// A block of one interval, which tells by its count who wrote it when.
    fn block(at_s: u64, count: u64) -> Vec<u8> {
        let start_ms = at_s * 1_000;
        let mut block = Block::new(start_ms);
        let reads = Requests { count, bytes: count * 512, us: 1 };
        let work = Some(Work { reads, ..Work::default() });
        assert!(block.push(&Interval { start_ms, length_ms: 1_000, work, balance_ppm: None }));
        block.bytes()
    }

    /// Who records into a folder.
    struct Recorder(Files, Writer);

    impl Recorder {
        fn new(folder: &tempfile::TempDir) -> Self {
            let files = Files::of(folder.path());
            Self(files.clone(), Writer::new(files))
        }

        fn write(&mut self, bits: u128, at_s: u64, count: u64) {
            self.1.append(id(bits), at_s * 1_000 / DAY_MS, &block(at_s, count)).unwrap();
        }

        /// Beginnings in seconds and counts of all that was recorded.
        fn all(&self, bits: u128) -> Vec<(u64, u64)> {
            let days = self.0.days(id(bits), 0, u64::MAX).unwrap();
            let all = days.into_iter().flat_map(|day| self.0.read(id(bits), day).unwrap());
            all.map(|it| (it.start_ms / 1_000, it.work.unwrap().reads.count)).collect()
        }

        /// Has another one take over, page by page, what there is since a moment.
        fn give(&self, to: &mut Copies, from_ms: u64, bytes_max: usize) {
            let mut after = None;
            loop {
                let parts = parts(&self.0, (from_ms, u64::MAX), after, bytes_max).unwrap();
                to.merge(&parts);
                let Some(last) = parts.last() else { break };
                after = Some((last.day, last.id, last.end_ms));
            }
        }
    }

    #[test]
    fn what_is_there_is_not_taken_twice_and_damage_is_left_behind() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (mut one, other) = (Recorder::new(&folders[0]), Recorder::new(&folders[1]));
        let at = |second: u64| DAY * 86_400 + second;
        for second in 0..40 {
            one.write(1, at(second * 10), second);
        }
        one.write(2, at(86_000), 7);
        one.write(2, at(86_400), 8);
        let mut copies = Copies::new(Files::of(folders[1].path()));
        assert_eq!(copies.since(UnixMs(at(86_400) * 1_000), 15).0, (DAY + 1 - 15) * DAY_MS);
        one.give(&mut copies, 0, 100);
        one.give(&mut copies, 0, 1_000_000);
        assert_eq!((one.all(1), one.all(2)), (other.all(1), other.all(2)));
        assert_eq!(other.all(1).len(), 40);
        let now = UnixMs(at(86_401) * 1_000);
        assert_eq!(copies.since(now, 15).0, (DAY + 1) * DAY_MS, "the newest day");
        // Asked again after a restart it has the same.
        let mut copies = Copies::new(Files::of(folders[1].path()));
        one.give(&mut copies, 0, 1_000_000);
        assert_eq!(other.all(1).len(), 40);
        // Only of the day it says it is of.
        let bytes = [block(at(90_000), 1), b"EkR1 torn".to_vec(), block(at(1_000), 2)].concat();
        copies.merge(&[Part { day: DAY, id: id(1), end_ms: 0, bytes }]);
        assert_eq!(other.all(1).last(), Some(&(at(1_000), 2)));
        assert_eq!(other.all(1).len(), 41);
    }

    #[test]
    fn only_the_end_of_a_file_is_read_for_what_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let mut one = Recorder::new(&folder);
        let at = |second: u64| DAY * 86_400 + second;
        for second in 0..5_000 {
            one.write(1, at(second), second);
        }
        let file = one.0.end(id(1), DAY, 0).unwrap().len();
        let end = one.0.end(id(1), DAY, at(4_995) * 1_000).unwrap();
        assert!(file > 8 * end.len(), "{file}, {}", end.len());
        let found = parts(&one.0, (at(4_995) * 1_000, u64::MAX), None, 1_000_000).unwrap();
        assert_eq!(codec::read(&found[0].bytes).intervals.len(), 5);
        assert_eq!(found[0].end_ms, at(5_000) * 1_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Two servers record in turn, and who does not takes over what the other one has. The
        /// oracle is what both have written.
        #[test]
        fn who_takes_over_has_what_was_recorded(
            terms in proptest::collection::vec((any::<bool>(), 1..40_u64, 1..40_000_u64), 1..10),
            bytes_max in 1..400_usize,
        ) {
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let mut oracle = BTreeMap::<u128, Vec<(u64, u64)>>::new();
            let (mut second, mut from_ms, mut count) = (DAY * 86_400, 0, 0);
            for (leads, length, pause) in terms {
                let leads = usize::from(leads);
                let mut recorder = Recorder::new(&folders[leads]);
                for _ in 0..length {
                    let bits = 1 + u128::from(second % 3 == 0);
                    recorder.write(bits, second, count);
                    oracle.entry(bits).or_default().push((second, count));
                    second += 1;
                    count += 1;
                }
                let mut copies = Copies::new(Files::of(folders[1 - leads].path()));
                recorder.give(&mut copies, from_ms, bytes_max);
                from_ms = second.saturating_sub(5) * 1_000;
                second += pause;
                for (bits, expected) in &oracle {
                    for folder in &folders {
                        prop_assert_eq!(&Recorder::new(folder).all(*bits), expected);
                    }
                }
            }
        }
    }
}
