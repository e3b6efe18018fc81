//! How long EBS takes for a request, as its users know it: a distribution for each volume type, and
//! one for blocks of a volume that are not fetched from its snapshot yet. Pure.
//!
//! The figures and their sources are in `data/latency/<date>.toml`; `build.rs` checks them and
//! converts them to the table here. A server for tests answers requests no sooner than this says
//! (`serve --feel ebs`).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use crate::convert::{exact, index};
use crate::ids::VolumeId;
use crate::random::Random;
use crate::request::Operation;
use crate::time::{Duration, Instant};
use crate::units::ByteCount;
use crate::volume::{Date, VolumeType};

include!(concat!(env!("OUT_DIR"), "/latencies.rs"));

/// Maximum of a request's bytes for which a distribution holds without an addition.
const BASE_BYTES: u64 = 16 << 10;
const MIB: u64 = 1 << 20;
/// Number of quantiles of a distribution.
const POINTS: usize = 9;
/// The last quantile, in parts of a million.
const WHOLE_PPM: u64 = 1_000_000;
const NS_PER_US: u64 = 1_000;
const MS_PER_S: u64 = 1_000;
/// Number of blocks whose states are in one word.
const WORD_BLOCKS: u64 = 64;

/// A distribution of latencies, by quantiles. Between two of them it is linear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Distribution {
    /// Quantiles in parts of a million, with the latency in microseconds.
    points: [(u32, u64); POINTS],
}

impl Distribution {
    /// Returns the latency of this quantile, in parts of a million.
    fn at(&self, ppm: u64) -> Duration {
        let above = self.points.iter().position(|(at, _)| u64::from(*at) > ppm);
        let above = above.unwrap_or(POINTS - 1).max(1);
        let (low, low_us) = self.points[above - 1];
        let (high, high_us) = self.points[above];
        let span = u64::from(high - low);
        let into = ppm.saturating_sub(low.into()).min(span);
        let ns_in_span = (high_us - low_us) * NS_PER_US * into / span;
        Duration::from_ns(low_us * NS_PER_US + ns_in_span)
    }

    fn sample(&self, random: &mut Random) -> Duration {
        self.at(random.below(WHOLE_PPM))
    }
}

/// The latency of a volume type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TypeLatency {
    read: Distribution,
    write: Distribution,
    /// Microseconds for each MiB beyond [`BASE_BYTES`].
    us_per_mib: u64,
}

impl TypeLatency {
    /// Returns the time of a request; zero for a flush, because EBS answers a write when it is
    /// durable, and for questions about the volume.
    fn sample(&self, random: &mut Random, operation: Operation, length: u32) -> Duration {
        let base = match operation {
            Operation::Read => self.read.sample(random),
            Operation::Write { .. } | Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                self.write.sample(random)
            }
            Operation::Flush | Operation::BlockStatus | Operation::Cache => return Duration::ZERO,
        };
        let payload = u64::from(operation.payload_bytes(length));
        let beyond = payload.saturating_sub(BASE_BYTES);
        base + Duration::from_ns(self.us_per_mib * NS_PER_US * beyond / MIB)
    }
}

/// The latencies of EBS since a date.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latencies {
    date: Date,
    /// In the order of [`VolumeType::ALL`].
    types: [TypeLatency; VolumeType::ALL.len()],
    /// Size of a block that is fetched as a whole.
    block_bytes: u64,
    /// The rate at which blocks are fetched that no request needs, in MiB per second.
    default_mibps: u32,
    /// The time to fetch a block that a request needs.
    fetch: Distribution,
}

impl Latencies {
    /// Returns the latencies in force on a date; the oldest ones before all dates.
    #[must_use]
    pub fn as_of(date: Date) -> &'static Self {
        LATENCIES.iter().rev().find(|known| known.date <= date).unwrap_or(&LATENCIES[0])
    }

    fn of(&self, volume_type: VolumeType) -> &TypeLatency {
        let place = VolumeType::ALL.iter().position(|other| *other == volume_type);
        &self.types[place.unwrap_or_default()]
    }

    /// Returns the bytes that are fetched in the background in a time, at this rate in MiB per
    /// second or at the default one.
    #[must_use]
    pub fn fetched(&self, mibps: Option<u32>, ms: u64) -> ByteCount {
        let mibps = u64::from(mibps.unwrap_or(self.default_mibps));
        ByteCount((mibps * MIB).saturating_mul(ms) / MS_PER_S)
    }
}

/// The blocks of a volume that are not fetched from its snapshot yet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ColdBlocks {
    block_bytes: u64,
    /// A bit for each block that is fetched.
    fetched: Vec<u64>,
    blocks: u64,
    /// Number of blocks that are not fetched.
    cold: u64,
    /// Blocks that requests wait for, and when they are there. Older ones are removed with each
    /// block that is added, so there are no more than blocks of requests that are not answered.
    on_the_way: BTreeMap<u64, Instant>,
}

impl ColdBlocks {
    fn new(bytes: ByteCount, block_bytes: u64) -> Self {
        let blocks = bytes.0.div_ceil(block_bytes);
        let fetched = vec![0; index(blocks.div_ceil(WORD_BLOCKS))];
        Self { block_bytes, fetched, blocks, cold: blocks, on_the_way: BTreeMap::new() }
    }

    /// Marks a block as fetched. Returns whether it was not.
    fn mark(&mut self, block: u64) -> bool {
        let bit = 1_u64 << (block % WORD_BLOCKS);
        let word = &mut self.fetched[index(block / WORD_BLOCKS)];
        let is_cold = *word & bit == 0;
        *word |= bit;
        self.cold -= u64::from(is_cold);
        is_cold
    }

    /// Fetches the blocks of a range. Returns when all are there. `time` is the time for one block.
    fn access(
        &mut self,
        now: Instant,
        offset: u64,
        length: u32,
        mut time: impl FnMut() -> Duration,
    ) -> Instant {
        let first = offset / self.block_bytes;
        let end = offset.saturating_add(length.into()).div_ceil(self.block_bytes).min(self.blocks);
        let mut there = now;
        for block in first..end {
            if self.mark(block) {
                self.on_the_way.retain(|_, at| *at > now);
                self.on_the_way.insert(block, now + time());
            }
            there = there.max(self.on_the_way.get(&block).copied().unwrap_or(now));
        }
        there
    }

    /// Returns whether no request has to wait for a block any more.
    fn is_over(&self, now: Instant) -> bool {
        self.cold == 0 && self.on_the_way.values().all(|there| *there <= now)
    }

    /// Marks the blocks of the first `bytes` as fetched.
    fn fetched_until(&mut self, bytes: ByteCount) {
        let end = (bytes.0 / self.block_bytes).min(self.blocks);
        // A move of the clock may fetch all of a large volume.
        for word in self.fetched.iter_mut().take(index(end / WORD_BLOCKS)) {
            self.cold -= u64::from(word.count_zeros());
            *word = u64::MAX;
        }
        for block in end / WORD_BLOCKS * WORD_BLOCKS..end {
            self.mark(block);
        }
    }
}

/// How one volume feels. Its random choices depend only on the seed, its id and its requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeFeel {
    latencies: &'static Latencies,
    volume_type: VolumeType,
    random: Random,
    cold: Option<ColdBlocks>,
}

impl VolumeFeel {
    /// Creates the feel of a volume. The blocks of its first `cold` bytes are cold.
    #[must_use]
    pub fn new(
        latencies: &'static Latencies,
        seed: u64,
        (id, volume_type): (VolumeId, VolumeType),
        cold: ByteCount,
    ) -> Self {
        let blocks = ColdBlocks::new(cold, latencies.block_bytes);
        let cold = (blocks.cold > 0).then_some(blocks);
        Self { latencies, volume_type, random: Random::of_volume(seed, id), cold }
    }

    /// Sets the type, which a modification may change.
    pub fn set_type(&mut self, volume_type: VolumeType) {
        self.volume_type = volume_type;
    }

    /// Records that the blocks of the first `bytes` are fetched.
    pub fn fetched_until(&mut self, bytes: ByteCount) {
        if let Some(cold) = &mut self.cold {
            cold.fetched_until(bytes);
        }
    }

    /// Returns the percentage of the blocks that are fetched; `None` if all are.
    #[must_use]
    pub fn percent_fetched(&self) -> Option<u32> {
        let ColdBlocks { blocks, cold, .. } =
            self.cold.as_ref().filter(|blocks| blocks.cold > 0)?;
        Some(exact((blocks - cold) * 100 / blocks, "a percentage"))
    }

    /// Returns the time before which a request that arrives now is not answered.
    pub fn answered_at(
        &mut self,
        now: Instant,
        operation: Operation,
        offset: u64,
        length: u32,
    ) -> Instant {
        let Self { latencies, random, .. } = self;
        let time = latencies.of(self.volume_type).sample(random, operation, length);
        let moves_bytes = operation.payload_bytes(length) > 0;
        let Some(cold) = self.cold.as_mut().filter(|_| moves_bytes) else { return now + time };
        let fetch = || latencies.fetch.sample(random);
        let there = cold.access(now, offset, length, fetch);
        self.cold.take_if(|cold| cold.is_over(now));
        there + time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: VolumeId = VolumeId::from_bits(7);
    const WRITE: Operation = Operation::Write { fua: false };
    const BLOCK: u64 = 512 << 10;

    fn newest() -> &'static Latencies {
        Latencies::as_of(Date::new(2100, 1, 1).unwrap())
    }

    fn feel(volume_type: VolumeType, cold: u64) -> VolumeFeel {
        VolumeFeel::new(newest(), 3, (ID, volume_type), ByteCount(cold))
    }

    /// Returns the mean, and the number above a bound in a million, of many requests of 16 KiB.
    fn shape(volume_type: VolumeType, operation: Operation, above: Duration) -> (Duration, u64) {
        const REQUESTS: u64 = 200_000;
        let mut feel = feel(volume_type, 0);
        let mut sum = 0;
        let mut slow = 0;
        for _ in 0..REQUESTS {
            let time = feel.answered_at(Instant::ZERO, operation, 0, 16 << 10).ns;
            sum += time;
            slow += u64::from(time > above.ns);
        }
        (Duration::from_ns(sum / REQUESTS), slow * 1_000_000 / REQUESTS)
    }

    #[test]
    fn io2_is_as_the_user_guide_says() {
        let bound = Duration::from_us(800);
        for operation in [Operation::Read, WRITE] {
            let (mean, io2) = shape(VolumeType::Io2, operation, bound);
            assert!(mean < Duration::from_us(500), "{mean}");
            for general in [VolumeType::Gp2, VolumeType::Gp3] {
                let (_, slow) = shape(general, operation, bound);
                assert!(slow > 10 * io2, "{general}: {slow}, and {io2} in a million");
            }
        }
    }

    #[test]
    fn volumes_on_ssd_take_single_digit_milliseconds() {
        for volume_type in [VolumeType::Gp2, VolumeType::Gp3, VolumeType::Io1] {
            for operation in [Operation::Read, WRITE] {
                let (mean, above) = shape(volume_type, operation, Duration::from_ms(10));
                assert!(mean < Duration::from_ms(1), "{volume_type}: {mean}");
                assert!(above < 200, "{volume_type}: {above} in a million above 10 ms");
            }
        }
    }

    #[test]
    fn quantiles_are_those_of_the_file_and_size_adds_its_time() {
        let gp3 = newest().of(VolumeType::Gp3);
        assert_eq!(gp3.read.at(500_000), Duration::from_us(580));
        assert_eq!(gp3.read.at(650_000), Duration::from_us((580 + 780) / 2));
        assert_eq!(gp3.read.at(0), Duration::from_us(300));
        assert_eq!(gp3.write.at(WHOLE_PPM), Duration::from_us(25_000));
        let time = |operation, bytes| gp3.sample(&mut Random::new(1, 1), operation, bytes);
        let small = time(Operation::Read, 4_096);
        assert_eq!(small, time(Operation::Read, 16_384));
        let large = time(Operation::Read, (1 << 20) + (16 << 10));
        assert_eq!(large, small + Duration::from_us(2_500));
        assert_eq!(time(Operation::Flush, 0), Duration::ZERO);
        // Nothing is transferred.
        let discard = Operation::Discard { fua: false };
        assert_eq!(time(discard, 1 << 30), time(WRITE, 4_096));
        assert_eq!(Latencies::as_of(Date::new(2012, 8, 1).unwrap()), &LATENCIES[0]);
    }

    #[test]
    fn the_seed_replays() {
        let run = |seed, id| {
            let mut feel = VolumeFeel::new(
                newest(),
                seed,
                (VolumeId::from_bits(id), VolumeType::Gp3),
                ByteCount(10 * BLOCK),
            );
            let mut time = |number| {
                feel.answered_at(Instant::ZERO, Operation::Read, number * BLOCK / 3, 4_096).ns
            };
            (0..30).map(&mut time).collect::<Vec<u64>>()
        };
        assert_eq!(run(1, 7), run(1, 7));
        assert_ne!(run(1, 7), run(2, 7));
        assert_ne!(run(1, 7), run(1, 8));
    }

    #[test]
    fn a_block_is_fetched_once_and_all_of_its_readers_wait_for_it() {
        let mut cold = ColdBlocks::new(ByteCount(10 * BLOCK + 1), BLOCK);
        let [now, later] = [1_000, 5_000].map(Instant::from_ns);
        let fetch = || Duration::from_ns(3_000);
        let there = now + fetch();
        assert_eq!((cold.blocks, cold.access(now, 0, 4_096, fetch)), (11, there));
        assert_eq!(cold.access(now, 4_096, 4_096, fetch), there, "on the way");
        assert_eq!(cold.access(Instant::from_ns(2_000), 0, 512, fetch), there, "on the way");
        assert_eq!(cold.access(later, 0, 4_096, fetch), later, "there");
        assert_eq!(cold.access(later, BLOCK - 512, 1_024, fetch), later + fetch(), "the second");
        // What has arrived is not remembered.
        assert_eq!(cold.on_the_way.len(), 1);
        // Beyond the end of the snapshot nothing is fetched.
        assert_eq!(cold.access(later, 11 * BLOCK, 1 << 30, fetch), later);
        assert_eq!(cold.cold, 9);
    }

    #[test]
    fn blocks_get_warm_by_requests_and_in_the_background() {
        let mut feel = feel(VolumeType::Io2, 200 * BLOCK);
        let fetch_min = Duration::from_us(4_000);
        let mut now = Instant::ZERO;
        let mut is_cold = |feel: &mut VolumeFeel, block: u64, operation| {
            now = now + Duration::from_secs(100);
            feel.answered_at(now, operation, block * BLOCK, 4_096) >= now + fetch_min
        };
        assert_eq!(feel.percent_fetched(), Some(0));
        assert!(is_cold(&mut feel, 7, Operation::Read) && is_cold(&mut feel, 8, WRITE));
        assert!(!is_cold(&mut feel, 7, Operation::Read) && !is_cold(&mut feel, 8, WRITE));
        assert!(!is_cold(&mut feel, 9, Operation::Flush));
        feel.fetched_until(ByteCount(100 * BLOCK + 1));
        assert_eq!(feel.percent_fetched(), Some(50));
        assert!(!is_cold(&mut feel, 99, Operation::Read));
        assert!(is_cold(&mut feel, 100, Operation::Read));
        // A later look may be at an earlier place.
        feel.fetched_until(ByteCount(0));
        assert_eq!(feel.percent_fetched(), Some(50));
        feel.fetched_until(ByteCount(u64::MAX));
        assert!(!is_cold(&mut feel, 150, Operation::Read));
        assert_eq!(feel.percent_fetched(), None);
    }

    #[test]
    fn the_background_has_the_rate_of_the_volume_or_the_default() {
        assert_eq!(newest().fetched(Some(300), 1_500), ByteCount(450 << 20));
        assert_eq!(newest().fetched(None, 1_000), ByteCount(50 << 20));
        assert_eq!(newest().fetched(Some(300), u64::MAX), ByteCount(u64::MAX / MS_PER_S));
    }
}
