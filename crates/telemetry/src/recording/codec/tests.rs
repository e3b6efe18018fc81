//! Tests of the bytes of a recording.

use super::*;
use proptest::prelude::*;

const T0: u64 = 1_795_633_200_000;
/// Number of seconds in a block of a volume that is in use.
const BLOCK_SECONDS: usize = (super::super::BLOCK_MS / 1_000) as usize;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..5_000_u64, (0..1_000_000_u64).prop_map(|n| n * 512), any::<u64>()]
}

fn requests() -> impl Strategy<Value = Requests> {
    (number(), number(), number()).prop_map(|(count, bytes, us)| Requests { count, bytes, us })
}

/// Returns consecutive intervals; those at rest are short.
fn looks() -> impl Strategy<Value = Vec<Interval>> {
    let throttled = prop::array::uniform4(number()).prop_map(|[a, b, c, d]| Throttled {
        operations_us: a,
        bytes_us: b,
        instance_us: c,
        device_us: d,
    });
    let work = (requests(), requests(), throttled).prop_map(|(reads, writes, throttled)| Work {
        reads,
        writes,
        throttled,
    });
    let one = (prop::option::of(work), 0..2_500_u64, prop::option::of(0..=1_000_000_u32));
    prop::collection::vec(one, 1..60).prop_map(|all| {
        let mut start_ms = T0;
        let place = |(work, length_ms, balance_ppm)| {
            let interval = Interval { start_ms, length_ms, work, balance_ppm };
            start_ms += length_ms;
            interval
        };
        all.into_iter().map(place).collect()
    })
}

/// Returns the blocks of intervals, and each interval as it is read back: those at rest are joined.
fn written(looks: &[Interval]) -> (Vec<u8>, Vec<Interval>) {
    let mut bytes = Vec::new();
    let mut expected = Vec::<Interval>::new();
    let mut block = Block::new(T0);
    let mut is_new = true;
    for look in looks {
        if !block.push(look) {
            bytes.extend(block.bytes());
            block = Block::new(look.start_ms);
            is_new = true;
            assert!(block.push(look), "an empty block has room");
        }
        let last = expected.last_mut().filter(|last| {
            let may_grow = last.balance_ppm == look.balance_ppm || last.length_ms < 60_000;
            !is_new && last.work.is_none() && look.work.is_none() && may_grow
        });
        match last {
            Some(last) => {
                last.length_ms += look.length_ms;
                last.balance_ppm = look.balance_ppm;
            }
            None => expected.push(*look),
        }
        is_new = false;
    }
    bytes.extend(block.bytes());
    (bytes, expected)
}

/// Returns a second of a load that rises and falls.
fn second(at: u64) -> Work {
    let wave = |step: u64| at * step % 97;
    let reads = 2_000 + wave(31) * 3;
    let writes = 700 + wave(57) * 2;
    Work {
        reads: Requests { count: reads, bytes: (reads + 2) * 4_096, us: reads * (400 + wave(11)) },
        writes: Requests { count: writes, bytes: writes * 16_384, us: writes * (900 + wave(7)) },
        throttled: Throttled::default(),
    }
}

#[test]
fn a_busy_second_takes_some_bytes_and_a_day_at_rest_takes_few() {
    let looks: Vec<Interval> = (0..86_400)
        .map(|number| Interval {
            start_ms: T0 + number * 1_000 + number % 3,
            length_ms: 1_000 + (number + 1) % 3 - number % 3,
            work: Some(second(number)),
            balance_ppm: None,
        })
        .collect();
    let (bytes, expected) = written(&looks);
    assert_eq!(read(&bytes).intervals, expected);
    // A block is written once in ten seconds, full or not.
    let blocks = looks.chunks(BLOCK_SECONDS).map(|looks| {
        let mut block = Block::new(looks[0].start_ms);
        assert!(looks.iter().all(|look| block.push(look)));
        block.bytes().len()
    });
    let each = blocks.sum::<usize>() as f64 / 86_400.0;
    println!("{each:.1} bytes a second");
    assert!((10.0..20.0).contains(&each), "{each} bytes a second");
    let rest = looks.iter().map(|look| Interval { work: None, ..*look }).collect::<Vec<_>>();
    let (bytes, expected) = written(&rest);
    assert_eq!((bytes.len(), expected.len()), (HEAD_BYTES + 5, 1));
}

/// The documentation states this size, and a file's limit depends on it.
#[test]
fn a_day_of_the_worst_seconds_fits_into_its_file() {
    let worst = |at: u64| {
        let most = |odd| if at % 2 == odd { u64::MAX - 1 } else { u64::MAX / 2 };
        let requests = Requests { count: most(0), bytes: most(1), us: most(0) };
        let throttled = Throttled {
            operations_us: u64::MAX,
            bytes_us: u64::MAX,
            instance_us: u64::MAX,
            device_us: u64::MAX,
        };
        Interval {
            start_ms: T0 + at * 1_001,
            length_ms: 1_001,
            work: Some(Work { reads: requests, writes: requests, throttled }),
            balance_ppm: Some(at as u32 % 2 * 1_000_000),
        }
    };
    let looks: Vec<Interval> = (0..86_400).map(worst).collect();
    let (bytes, expected) = written(&looks);
    assert_eq!(expected.len(), 86_400);
    let bound = 86_400 * INTERVAL_BYTES_MAX + 86_400 / BLOCK_SECONDS * HEAD_BYTES;
    assert!(bytes.len() <= bound && bound < super::super::files::FILE_BYTES_MAX, "{}", bytes.len());
}

#[test]
fn numbers_have_the_bytes_that_are_documented() {
    let work = Work {
        reads: Requests { count: 12, bytes: 49_152, us: 3_600 },
        writes: Requests::default(),
        throttled: Throttled { operations_us: 300, ..Throttled::default() },
    };
    let mut block = Block::new(T0);
    let mut push = |start_ms, length_ms, work, balance_ppm| {
        assert!(block.push(&Interval { start_ms, length_ms, work, balance_ppm }));
    };
    push(T0, 2_000, None, Some(500_000));
    push(T0 + 2_000, 1_000, Some(work), Some(500_000));
    push(T0 + 3_000, 1_001, Some(work), Some(499_999));
    let hexadecimal: Vec<String> = block.bytes().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hexadecimal.join(" "),
        include_str!("golden.txt").split_whitespace().collect::<Vec<_>>().join(" "),
    );
}

proptest! {
    #[test]
    fn written_recording_is_read_back(looks in looks()) {
        let (bytes, expected) = written(&looks);
        let found = read(&bytes);
        prop_assert_eq!(found.intervals, expected);
        prop_assert_eq!((found.damaged_bytes, found.whole_bytes), (0, bytes.len()));
    }

    /// A file that is cut anywhere has the intervals of its complete blocks, and no others.
    #[test]
    fn a_file_that_is_cut_has_the_blocks_before(looks in looks()) {
        let (bytes, expected) = written(&looks);
        for length in 0..bytes.len() {
            let found = read(&bytes[..length]);
            prop_assert_eq!(found.intervals.as_slice(), &expected[..found.intervals.len()]);
            prop_assert_eq!(found.damaged_bytes + found.whole_bytes, length);
            prop_assert!(found.intervals.len() < expected.len());
        }
    }

    /// One changed byte costs its block, and never makes up an interval.
    #[test]
    fn changed_byte_loses_intervals_and_never_invents_one(
        looks in prop::collection::vec(looks(), 1..5),
        (at, bits) in (any::<prop::sample::Index>(), 1_u8..),
    ) {
        let blocks: Vec<_> = looks.iter().map(|looks| written(looks)).collect();
        let mut bytes: Vec<u8> = blocks.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
        let offset = at.index(bytes.len());
        bytes[offset] ^= bits;
        let all: Vec<_> = blocks.iter().flat_map(|(_, expected)| expected.clone()).collect();
        let found = read(&bytes).intervals;
        prop_assert!(found.len() < all.len());
        let mut rest = all.iter();
        prop_assert!(found.iter().all(|interval| rest.any(|known| known == interval)));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        noise in prop::collection::vec(any::<u8>(), 0..300),
        contents in prop::collection::vec(any::<u8>(), 0..300), start in any::<u64>(),
    ) {
        let mut bytes = noise;
        bytes.extend(MAGIC);
        bytes.extend((contents.len() as u16).to_le_bytes());
        bytes.extend(start.to_le_bytes());
        let head = &bytes[bytes.len() - 14..];
        let sum = crc32c_append(crc32c(head), &contents);
        bytes.extend(sum.to_le_bytes());
        bytes.extend(contents);
        let found = read(&bytes);
        prop_assert!(found.whole_bytes.max(found.damaged_bytes) <= bytes.len());
    }
}
