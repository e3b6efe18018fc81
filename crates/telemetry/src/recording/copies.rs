//! Blocks of recordings that a server copies from another one.

use std::collections::BTreeMap;
use std::io;

use evenkeel_core::ids::VolumeId;
use tracing::warn;

use super::codec::{self, Whole};
use super::files::{DAY_MS, Files, Writer};
use evenkeel_core::time::UnixMs;

/// Blocks of one volume and day.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The day since 1970.
    pub day: u64,
    /// The volume.
    pub id: VolumeId,
    /// The end of the last block, in milliseconds of Unix time.
    pub end_ms: u64,
    /// Whole blocks.
    pub bytes: Vec<u8>,
}

/// Place at which a page ends: the day, the volume and the end of its last part.
pub type Place = (u64, VolumeId, u64);

/// Returns the blocks that end after the first moment and lie before the second, by day and volume,
/// after this place. Returns at most `bytes_max` and a block; at least one part if there is any.
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
    let mut parts = Vec::new();
    let mut bytes = 0;
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

/// The recordings in a data folder whose server does not record: they are copied from the one that
/// does.
#[derive(Debug)]
pub struct Copies {
    files: Files,
    writer: Writer,
    /// The last day of each volume of which blocks were copied.
    known: BTreeMap<VolumeId, Known>,
    /// The day on which old days were deleted last.
    cleaned: Option<u64>,
}

/// A day of a volume.
#[derive(Clone, Copy, Debug)]
struct Known {
    day: u64,
    /// The end of its last block; 0 without one.
    end_ms: u64,
    /// The end of the blocks that were there at first: before it some may be missing.
    whole_from_ms: u64,
}

impl Copies {
    /// Opens the recordings of a data folder.
    #[must_use]
    pub fn new(files: Files) -> Self {
        let writer = Writer::new(files.clone());
        Self { files, writer, known: BTreeMap::new(), cleaned: None }
    }

    /// Deletes the oldest days until `days` are left besides today. Does so once a day.
    pub fn clean(&mut self, now: UnixMs, days: u64) {
        let today = now.0 / DAY_MS;
        if self.cleaned.replace(today) == Some(today) {
            return;
        }
        if let Err(error) = self.files.keep(today, days) {
            warn!("{error}; this recording is not deleted");
        }
        let oldest = today.saturating_sub(days);
        // Days that are forgotten here are read from their files again.
        self.known.retain(|_, known| (oldest..=today).contains(&known.day));
        self.writer.keep(|id| self.known.contains_key(&id));
    }

    /// Returns the state of a day of a volume.
    fn known(&mut self, id: VolumeId, day: u64) -> io::Result<Known> {
        if let Some(known) = self.known.get(&id).filter(|known| known.day == day) {
            return Ok(*known);
        }
        let end = self.files.end(id, day, u64::MAX)?;
        let end_ms = codec::whole(&end).last().map_or(0, |block| block.end_ms);
        let known = Known { day, end_ms, whole_from_ms: end_ms };
        self.known.insert(id, known);
        Ok(known)
    }

    /// Adds blocks for times of which there is none.
    ///
    /// # Errors
    /// Returns the first error; other blocks are written anyway.
    pub fn merge(&mut self, parts: &[Part]) -> io::Result<()> {
        if parts.is_empty() {
            return Ok(());
        }
        self.writer.check_room()?;
        let mut result = Ok(());
        for part in parts {
            result = result.and(self.take(part));
        }
        result
    }

    fn take(&mut self, part: &Part) -> io::Result<()> {
        let Known { day, mut end_ms, whole_from_ms } = self.known(part.id, part.day)?;
        let mut later = Vec::new();
        let mut earlier = Vec::new();
        for block in codec::whole(&part.bytes) {
            if block.start_ms / DAY_MS != day {
                continue;
            }
            // If a clock was set back, some times occur twice; readers take the block that begins
            // first.
            if block.start_ms >= end_ms {
                later.extend(block.bytes);
                end_ms = block.end_ms;
            } else if block.start_ms < whole_from_ms {
                earlier.push(block);
            }
        }
        if !earlier.is_empty() {
            self.fill(part, &earlier)?;
        }
        if !later.is_empty() {
            self.writer.append(part.id, day, &later)?;
            self.known.insert(part.id, Known { day, end_ms, whole_from_ms });
        }
        Ok(())
    }

    /// Inserts blocks into a day if there is none of their times.
    fn fill(&mut self, part: &Part, blocks: &[Whole<'_>]) -> io::Result<()> {
        let file = self.files.end(part.id, part.day, 0)?;
        let mut all = codec::whole(&file);
        all.sort_by_key(|block| block.start_ms);
        let known = all.len();
        for block in blocks {
            let index = all.partition_point(|it| it.start_ms < block.start_ms);
            let before = index.checked_sub(1).and_then(|index| all.get(index));
            let is_free = before.is_none_or(|it| it.end_ms <= block.start_ms)
                && all.get(index).is_none_or(|it| block.end_ms <= it.start_ms);
            if is_free {
                all.insert(index, *block);
            }
        }
        if all.len() == known {
            return Ok(());
        }
        let bytes: Vec<u8> = all.iter().flat_map(|block| block.bytes).copied().collect();
        self.writer.replace(part.id, part.day, &bytes)
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

    /// Returns a block of one interval, whose count identifies its writer and time.
    fn block(at_s: u64, count: u64) -> Vec<u8> {
        let start_ms = at_s * 1_000;
        let mut block = Block::new(start_ms);
        let reads = Requests { count, bytes: count * 512, us: 1 };
        let work = Some(Work { reads, ..Work::default() });
        assert!(block.push(&Interval { start_ms, length_ms: 1_000, work, balance_ppm: None }));
        block.bytes()
    }

    /// A server that records into a folder.
    struct Recorder(Files, Writer);

    impl Recorder {
        fn new(folder: &tempfile::TempDir) -> Self {
            let files = Files::of(folder.path());
            Self(files.clone(), Writer::new(files))
        }

        fn write(&mut self, bits: u128, at_s: u64, count: u64) {
            self.1.append(id(bits), at_s * 1_000 / DAY_MS, &block(at_s, count)).unwrap();
        }

        /// Returns the beginnings in seconds and the counts of all recorded intervals.
        fn all(&self, bits: u128) -> Vec<(u64, u64)> {
            let days = self.0.days(id(bits), 0, u64::MAX).unwrap();
            let all = days.into_iter().flat_map(|day| self.0.read(id(bits), day).unwrap());
            all.map(|it| (it.start_ms / 1_000, it.work.unwrap().reads.count)).collect()
        }

        /// Copies everything since a moment to another server, page by page.
        fn give(&self, to: &mut Copies, from_ms: u64, bytes_max: usize) {
            let mut after = None;
            loop {
                let parts = parts(&self.0, (from_ms, u64::MAX), after, bytes_max).unwrap();
                to.merge(&parts).unwrap();
                let Some(last) = parts.last() else { break };
                after = Some((last.day, last.id, last.end_ms));
            }
        }
    }

    #[test]
    fn copied_blocks_are_not_copied_again_and_damaged_ones_are_skipped() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mut recorder = Recorder::new(&folders[0]);
        let other = Recorder::new(&folders[1]);
        let at = |second: u64| DAY * 86_400 + second;
        for second in 0..40 {
            recorder.write(1, at(second * 10), second);
        }
        recorder.write(2, at(86_000), 7);
        recorder.write(2, at(86_400), 8);
        let mut copies = Copies::new(Files::of(folders[1].path()));
        recorder.give(&mut copies, 0, 100);
        recorder.give(&mut copies, 0, 1_000_000);
        assert_eq!((recorder.all(1), recorder.all(2)), (other.all(1), other.all(2)));
        assert_eq!(other.all(1).len(), 40);
        // Opened again after a restart, the copies have the same content.
        let mut copies = Copies::new(Files::of(folders[1].path()));
        recorder.give(&mut copies, 0, 1_000_000);
        assert_eq!(other.all(1).len(), 40);
        // Only blocks of the part's own day are taken.
        let bytes = [block(at(90_000), 1), b"EkR1 torn".to_vec(), block(at(1_000), 2)].concat();
        copies.merge(&[Part { day: DAY, id: id(1), end_ms: 0, bytes }]).unwrap();
        assert_eq!(other.all(1).last(), Some(&(at(1_000), 2)));
        assert_eq!(other.all(1).len(), 41);
    }

    /// A server that was away leads for a short time: it has blocks that others lack, in the
    /// middle.
    #[test]
    fn a_hole_in_the_middle_of_a_day_is_filled() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [mut one, mut other] = [&folders[0], &folders[1]].map(Recorder::new);
        let at = |second: u64| DAY * 86_400 + second;
        for second in 0..100 {
            one.write(1, at(second * 10), second);
        }
        (0..10).for_each(|second| other.write(1, at(second * 10), second));
        // Its own blocks begin at other moments than the other server's would.
        [503, 508, 513].into_iter().for_each(|second| other.write(1, at(second), 7_000 + second));
        let mut copies = Copies::new(Files::of(folders[1].path()));
        one.give(&mut copies, 0, 300);
        let found = other.all(1);
        assert!(found.is_sorted_by_key(|(start, _)| *start), "{found:?}");
        let own = |(_, count): &(u64, u64)| *count >= 7_000;
        assert_eq!(found.iter().filter(|it| own(it)).count(), 3);
        let taken: Vec<_> = found.into_iter().filter(|it| !own(it)).collect();
        let all = one.all(1);
        // A block that begins within one of its own is of a time that it has.
        assert_eq!(taken, all);
        // Copying again changes nothing.
        one.give(&mut copies, 0, 1_000_000);
        assert_eq!(other.all(1).len(), 103);
    }

    #[test]
    fn recordings_older_than_the_kept_days_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(&folder);
        (0..5).for_each(|day| recorder.write(1, (DAY + day) * 86_400, day));
        recorder.write(2, DAY * 86_400, 9);
        let mut copies = Copies::new(Files::of(folder.path()));
        copies.clean(UnixMs((DAY + 5) * DAY_MS), 3);
        let days = |bits| recorder.0.days(id(bits), 0, u64::MAX).unwrap();
        assert_eq!((days(1), days(2)), (vec![DAY + 2, DAY + 3, DAY + 4], vec![]));
        // Days are deleted only once a day.
        recorder.write(2, DAY * 86_400, 9);
        copies.clean(UnixMs((DAY + 6) * DAY_MS - 1), 3);
        assert!(recorder.0.has(id(2)));
        copies.clean(UnixMs((DAY + 6) * DAY_MS), 3);
        assert!(!recorder.0.has(id(2)));
    }

    #[test]
    fn recordings_outlive_a_clock_that_is_set_in_either_direction() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(&folder);
        (0..4).for_each(|day| recorder.write(1, (DAY + day) * 86_400, day));
        let mut copies = Copies::new(Files::of(folder.path()));
        let days = |recorder: &Recorder| recorder.0.days(id(1), 0, u64::MAX).unwrap();
        let there = vec![DAY, DAY + 1, DAY + 2, DAY + 3];
        for wrong in [DAY + 33, DAY + 3, DAY - 30, 0] {
            copies.clean(UnixMs(wrong * DAY_MS), 4);
            assert_eq!(days(&recorder), there, "{wrong}");
        }
        // Days recorded with a wrong clock are deleted before older ones.
        recorder.write(1, (DAY + 33) * 86_400, 9);
        copies.clean(UnixMs((DAY + 33) * DAY_MS), 4);
        assert_eq!(days(&recorder).len(), 5);
        copies.clean(UnixMs((DAY + 4) * DAY_MS), 4);
        assert_eq!(days(&recorder), there);
    }

    #[test]
    fn new_recordings_are_read_from_the_end_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(&folder);
        let at = |second: u64| DAY * 86_400 + second;
        for second in 0..5_000 {
            recorder.write(1, at(second), second);
        }
        let file = recorder.0.end(id(1), DAY, 0).unwrap().len();
        let end = recorder.0.end(id(1), DAY, at(4_995) * 1_000).unwrap();
        assert!(file > 8 * end.len(), "{file}, {}", end.len());
        let found = parts(&recorder.0, (at(4_995) * 1_000, u64::MAX), None, 1_000_000).unwrap();
        assert_eq!(codec::read(&found[0].bytes).intervals.len(), 5);
        assert_eq!(found[0].end_ms, at(5_000) * 1_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

        /// Two servers record in turn, and the other one copies. The oracle is everything that both
        /// have written.
        #[test]
        fn copied_recordings_equal_the_recorded_ones(
            terms in proptest::collection::vec((any::<bool>(), 1..40_u64, 1..40_000_u64), 1..10),
            bytes_max in 1..400_usize,
        ) {
            let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let mut oracle = BTreeMap::<u128, Vec<(u64, u64)>>::new();
            let mut second = DAY * 86_400;
            let mut from_ms = 0;
            let mut count = 0;
            for (leads, length, pause) in terms {
                let leads = usize::from(leads);
                let mut recorder = Recorder::new(&folders[leads]);
                for _ in 0..length {
                    let bits = 1 + u128::from(second.is_multiple_of(3));
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
