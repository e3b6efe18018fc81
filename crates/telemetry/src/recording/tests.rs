//! Tests of recordings: reading returns the work that was done, during and after the recording.

use std::fs;

use super::*;
use crate::counters::{self, Counters};
use evenkeel_wire::agent::Answered;
use proptest::prelude::*;

/// A whole day, and some seconds before its end.
const T0: u64 = 20_783 * DAY_MS - 30_000;

fn id(bits: u128) -> VolumeId {
    VolumeId::from_bits(bits)
}

fn sample(bits: u128, count: u64) -> Sample {
    let answered = Answered { writes: count, write_ns: count * 700_000, ..Answered::default() };
    let total = Counters { write_bytes: count * 8_192, answered, ..Counters::default() };
    let volume = counters::Sample { id: id(bits), total, queued: 0, created: UnixMs(0) };
    Sample { volume, balance_ppm: Some(1_000_000) }
}

fn look(ms: u64, samples: Vec<Sample>) -> Look {
    Look { now: UnixMs(T0 + ms), samples }
}

/// A recording without its thread.
struct Still {
    recording: Recording,
    tracker: Tracker,
}

impl Still {
    fn new(folder: &Path) -> Self {
        let recording = Recording {
            files: Files::of(folder),
            open: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        Self { recording, tracker: Tracker::default() }
    }

    fn take(&mut self, look: &Look, keeper_writes: bool) {
        let due = self.recording.take(&mut self.tracker, look);
        if keeper_writes {
            Keeper::new(&self.recording).write(&due);
        }
    }

    fn counts(&self, bits: u128) -> Vec<(u64, u64)> {
        let all = self.recording.read(id(bits), UnixMs(0), UnixMs(u64::MAX), usize::MAX).unwrap();
        assert!(all.windows(2).all(|two| two[0].end_ms() <= two[1].start_ms));
        let worked = all.iter().filter_map(|it| Some((it.start_ms - T0, it.work?.writes.count)));
        worked.collect()
    }
}

#[test]
fn recording_reads_the_same_before_and_after_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut still = Still::new(folder.path());
    let mut expected = Vec::new();
    let mut count = 0;
    for second in 0..200 {
        still.take(&look(second * 1_000, vec![sample(1, count), sample(2, 0)]), second % 50 > 10);
        if second > 0 && (second - 1) % 3 == 0 {
            expected.push(((second - 1) * 1_000, second));
        }
        assert_eq!(still.counts(1), expected);
        count += if second % 3 == 0 { second + 1 } else { 0 };
    }
    assert_eq!(still.recording.files.days(id(1), 0, u64::MAX).unwrap(), [20_782, 20_783]);
    let idle = still.recording.read(id(2), UnixMs(0), UnixMs(u64::MAX), usize::MAX).unwrap();
    assert!(idle.len() <= 3, "{idle:?}");
    assert_eq!(idle.iter().map(|idle| idle.length_ms).sum::<u64>(), 199_000);
    // After a stop without warning, a new server finds the written blocks.
    let written = still.recording.written_bytes();
    let sizes = [20_782, 20_783].map(|day| {
        [1, 2].map(|bits| {
            let of = folder.path().join("recordings").join(id(bits).to_string());
            let date = if day == 20_782 { "2026-11-25.rec" } else { "2026-11-26.rec" };
            fs::metadata(of.join(date)).map_or(0, |it| it.len())
        })
    });
    assert_eq!(sizes.iter().flatten().sum::<u64>(), written);
    let anew = Still::new(folder.path());
    let found = anew.counts(1);
    assert!(!found.is_empty() && expected.starts_with(&found), "{found:?}");
}

#[test]
fn parts_are_cut_out_and_pages_make_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut still = Still::new(folder.path());
    for second in 0..=100 {
        let count = u64::saturating_sub(second, 40).min(30);
        still.take(&look(second * 1_000, vec![sample(1, count)]), true);
    }
    let read = |from: u64, until: u64, max| {
        still.recording.read(id(1), UnixMs(T0 + from), UnixMs(T0 + until), max).unwrap()
    };
    let all = read(0, 100_000, usize::MAX);
    let part = read(39_500, 42_500, usize::MAX);
    let spans: Vec<_> = part.iter().map(|part| (part.start_ms - T0, part.length_ms)).collect();
    assert_eq!(spans, [(39_500, 500), (40_000, 1_000), (41_000, 1_000), (42_000, 1_000)]);
    assert!(read(50_000, 50_000, 9).is_empty() && read(200_000, 300_000, 9).is_empty());
    let mut from = 0;
    let mut paged = Vec::new();
    loop {
        let page = read(from, 100_000, 7);
        let Some(last) = page.last() else { break };
        from = last.end_ms() - T0;
        paged.extend(page);
    }
    assert_eq!(paged, all);
    assert!(still.recording.has(id(1)) && !still.recording.has(id(2)));
}

#[test]
fn clock_set_back_records_no_time_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut still = Still::new(folder.path());
    for (at, count) in (0..20).zip(0..).chain((5..25).zip(20..)) {
        still.take(&look(at * 1_000, vec![sample(1, count)]), true);
    }
    let found = still.counts(1);
    assert_eq!(found.len(), 24);
    assert!(found.iter().all(|(_, count)| *count == 1));
}

#[test]
fn a_volume_that_is_gone_is_written_and_takes_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut still = Still::new(folder.path());
    for second in 0..5 {
        still.take(&look(second * 1_000, vec![sample(1, second), sample(2, second)]), true);
    }
    still.take(&look(5_000, vec![sample(2, 9)]), true);
    still.take(&look(6_000, vec![sample(2, 9)]), true);
    assert_eq!(still.recording.open().len(), 1);
    assert_eq!(still.counts(1).len(), 4);
}

#[test]
fn failing_disk_loses_blocks_and_recording_continues() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("recordings");
    fs::write(&in_the_way, "").unwrap();
    let mut still = Still::new(folder.path());
    for second in 0..12 {
        still.take(&look(second * 1_000, vec![sample(1, second)]), true);
    }
    assert_eq!((still.recording.lost(), still.recording.written_bytes()), (1, 0));
    fs::remove_file(in_the_way).unwrap();
    for second in 12..200 {
        still.take(&look(second * 1_000, vec![sample(1, second)]), true);
    }
    assert!(still.recording.lost() == 1 && still.recording.written_bytes() > 0);
    let found = still.counts(1);
    assert!(found.len() > 130 && found.iter().all(|(_, count)| *count == 1), "{}", found.len());
}

#[test]
fn recorder_thread_writes_the_rest_and_deletes_old_days() {
    let folder = tempfile::tempdir().unwrap();
    let days = |bits| Files::of(folder.path()).days(id(bits), 0, u64::MAX).unwrap();
    let record = |days, from_ms: u64| {
        let recorder = Recorder::start(folder.path(), days);
        let inbox = recorder.inbox().unwrap();
        for second in 0..2 {
            // The test waits for room, since it has no clock.
            inbox.looks.send(look(from_ms + second * 1_000, vec![sample(1, second)])).unwrap();
        }
        let recording = recorder.recording().unwrap();
        drop((inbox, recorder));
        assert_eq!(recording.lost(), 0);
    };
    record(2, 0);
    assert_eq!(days(1), [20_782]);
    record(2, DAY_MS);
    record(2, 2 * DAY_MS);
    assert_eq!(days(1), [20_782, 20_783, 20_784]);
    record(2, 3 * DAY_MS);
    assert_eq!(days(1), [20_783, 20_784, 20_785]);
    let none = Recorder::start(folder.path(), 0);
    assert!(none.inbox().is_none() && none.recording().is_none());
    drop(none);
    assert!(!folder.path().join("recordings").exists());
}

#[test]
fn looks_beyond_the_inbox_are_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let recording = Arc::new(Still::new(folder.path()).recording);
    let (looks, taken) = sync_channel(LOOKS_MAX);
    let inbox = Inbox { looks, recording: Arc::clone(&recording) };
    (0..9).for_each(|second| inbox.offer(look(second * 1_000, vec![])));
    assert_eq!(recording.lost(), 9 - LOOKS_MAX as u64);
    drop(taken);
    inbox.offer(look(0, vec![]));
    assert_eq!(recording.lost(), 9 - LOOKS_MAX as u64);
}

/// The documentation states this size.
#[test]
fn a_volume_takes_a_bounded_amount_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let mut still = Still::new(folder.path());
    for second in 0..100 {
        let mut worst = sample(1, 0);
        let most = u64::MAX / 100 * second;
        let answered = Answered { reads: most, writes: most, read_ns: most, write_ns: most };
        let read_bytes = most + second;
        let write_bytes = most + second;
        worst.volume.total = Counters { read_bytes, write_bytes, answered, ..Counters::default() };
        still.take(&look(second * 1_000, vec![worst]), false);
        let open = still.recording.open();
        let it = open.get(&id(1)).unwrap();
        let closed = it.closed.as_ref().map_or(0, |(_, bytes)| bytes.len());
        let filling = it.block.as_ref().map_or(0, |block| block.bytes().len());
        assert!(closed.max(filling) <= codec::BLOCK_BYTES_MAX, "{closed} {filling}");
        assert!(size_of::<Open>() + 2 * codec::BLOCK_BYTES_MAX <= 9 << 10);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(3)))]

    /// The oracle has every second. Some samples are missing, and the server is restarted.
    #[test]
    fn sums_are_those_of_the_counters(
        seconds in prop::collection::vec((0..40_u64, 0..10_u8), 1..150),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut still = Still::new(folder.path());
        let mut total = 0;
        let mut told = None::<(u64, u64)>;
        let mut expected = 0;
        for (at, (more, event)) in (0..).zip(seconds) {
            total += more;
            match event {
                0 => continue,
                1 => {
                    let due = still.recording.close_all();
                    Keeper::new(&still.recording).write(&due);
                    (still, told) = (Still::new(folder.path()), None);
                }
                _ => {}
            }
            still.take(&look(at * 1_000, vec![sample(1, total)]), true);
            if let Some((then, before)) = told && at - then <= INTERVAL_MS_MAX / 1_000 {
                expected += total - before;
            }
            told = Some((at, total));
        }
        let found: u64 = still.counts(1).iter().map(|(_, count)| count).sum();
        prop_assert_eq!(found, expected);
    }
}
