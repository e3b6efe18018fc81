//! Loads by seed: bytes that an application writes and deletes, and its requests.
//!
//! A load is a list of [`Segment`]s of constant rates. An import is not a rate: its bytes are
//! written as fast as the volumes allow.

use std::fmt;
use std::str::FromStr;

use evenkeel_core::random::Random;

use super::btrfs::Order;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Milliseconds of a minute.
pub(super) const MINUTE_MS: u64 = 60_000;
/// Milliseconds of an hour.
pub(super) const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Milliseconds of a day.
pub(super) const DAY_MS: u64 = 24 * HOUR_MS;
/// Milliseconds of a year of 365 days.
pub(super) const YEAR_MS: u64 = 365 * DAY_MS;

/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// The stream of random numbers of loads.
const STREAM: u64 = 1;

/// A stretch of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    /// Its start, in milliseconds since the start of the world.
    pub(super) from_ms: u64,
    /// Bytes a second that are written, less those that are deleted.
    pub(super) net_bytes_per_s: i64,
    /// Bytes that an import adds to its queue at the start.
    pub(super) import_bytes: u64,
    /// Bytes that one `fallocate` takes at the start.
    pub(super) jump_bytes: u64,
    /// Bytes that are deleted at the start; [`u64::MAX`] for all of the last import.
    pub(super) purge: Option<Purge>,
    /// Requests a second.
    pub(super) iops: u32,
    /// MiB/s of requests, apart from what is written.
    pub(super) mibps: u32,
}

/// Bytes that are deleted at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Purge {
    /// The most bytes.
    pub(super) bytes: u64,
    /// The most, in thousandths of the used bytes.
    pub(super) permille: u64,
    /// The order in which chunks lose them.
    pub(super) order: Order,
}

impl Purge {
    const fn of_bytes(bytes: u64, order: Order) -> Self {
        Self { bytes, permille: 1_000, order }
    }

    const fn of_permille(permille: u64, order: Order) -> Self {
        Self { bytes: u64::MAX, permille, order }
    }
}

/// A kind of load.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Generator {
    /// Requests follow the hours of the day; the data grows by some percent a month.
    Daily,
    /// Data is written evenly and deleted after some weeks.
    Retention,
    /// A nightly job writes a temporary file at line rate and deletes it.
    Nightly,
    /// Now and then an import at line rate, which stays.
    Imports,
    /// Imports, and purges of most of the data after some weeks or months.
    Purges,
    /// A restore beside the data at line rate, deleted some days later.
    Restore,
    /// Growth that doubles within weeks, and a purge after it.
    Viral,
    /// Bursts of requests that empty credits.
    Drain,
    /// Files that are preallocated at once.
    Fallocate,
    /// A large memory of dirty pages before every write.
    Dirty,
}

impl Generator {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::Daily,
        Self::Retention,
        Self::Nightly,
        Self::Imports,
        Self::Purges,
        Self::Restore,
        Self::Viral,
        Self::Drain,
        Self::Fallocate,
        Self::Dirty,
    ];

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Daily => "daily",
            Self::Retention => "retention",
            Self::Nightly => "nightly",
            Self::Imports => "imports",
            Self::Purges => "purges",
            Self::Restore => "restore",
            Self::Viral => "viral",
            Self::Drain => "drain",
            Self::Fallocate => "fallocate",
            Self::Dirty => "dirty",
        }
    }

    const fn stream(self) -> u64 {
        match self {
            Self::Daily => 11,
            Self::Retention => 12,
            Self::Nightly => 13,
            Self::Imports => 14,
            Self::Purges => 15,
            Self::Restore => 16,
            Self::Viral => 17,
            Self::Drain => 18,
            Self::Fallocate => 19,
            Self::Dirty => 20,
        }
    }
}

impl fmt::Display for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Generator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|generator| generator.name() == text);
        known.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|generator| generator.name()).collect();
            format!("{text:?} is no generator: expected one of {}", names.join(", "))
        })
    }
}

/// A load from the start of the world until its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Load {
    pub(super) generator: Generator,
    /// Bytes in use at the start.
    pub(super) first_bytes: u64,
    /// Bytes of dirty pages that the host writes back later, at most.
    pub(super) dirty_limit_bytes: u64,
    /// By start, without gaps.
    pub(super) segments: Vec<Segment>,
    pub(super) end_ms: u64,
}

/// The writer of segments.
struct Writer {
    random: Random,
    segments: Vec<Segment>,
    end_ms: u64,
    iops: u32,
    mibps: u32,
}

impl Writer {
    /// Adds a segment at this time with no more than its rates.
    fn at(&mut self, from_ms: u64, net_bytes_per_s: i64) -> &mut Segment {
        let segment = Segment {
            from_ms,
            net_bytes_per_s,
            import_bytes: 0,
            jump_bytes: 0,
            purge: None,
            iops: self.iops,
            mibps: self.mibps,
        };
        self.segments.push(segment);
        self.segments.last_mut().expect("a segment was added")
    }

    /// Returns a time within `spread_ms` after `mean_ms`.
    fn after(&mut self, least_ms: u64, spread_ms: u64) -> u64 {
        // Whole seconds, so that a reading every minute meets events at any second of it.
        (least_ms + self.random.below(spread_ms)) / 1_000 * 1_000
    }

    /// Returns GiB between these bounds.
    fn gib(&mut self, least: u64, most: u64) -> u64 {
        (least + self.random.below(most - least + 1)) * GIB
    }
}

impl Load {
    /// Creates the load of a seed.
    pub(super) fn new(generator: Generator, seed: u64, years: u32) -> Self {
        let mut random = Random::new(seed, STREAM + generator.stream());
        let first_bytes = random.among(&[150, 300, 500, 800, 1_200, 2_000]) * GIB
            + random.below(40) * GIB
            + random.below(GIB);
        let dirty_limit_bytes = random.among(&[256, 512, 1_024]) * MIB;
        let end_ms = u64::from(years) * YEAR_MS;
        let iops = 200 + u32::try_from(random.below(1_200)).expect("a small number");
        let mibps = 2 + u32::try_from(random.below(18)).expect("a small number");
        let mut writer = Writer { random, segments: Vec::new(), end_ms, iops, mibps };
        writer.at(0, 0);
        let mut load =
            Self { generator, first_bytes, dirty_limit_bytes, segments: Vec::new(), end_ms };
        match generator {
            Generator::Daily => daily(&mut writer, first_bytes),
            Generator::Retention => retention(&mut writer, &mut load.first_bytes),
            Generator::Nightly => nightly(&mut writer, first_bytes),
            Generator::Imports => imports(&mut writer, first_bytes),
            Generator::Purges => purges(&mut writer, first_bytes),
            Generator::Restore => restore(&mut writer, first_bytes),
            Generator::Viral => viral(&mut writer, first_bytes),
            Generator::Drain => drain(&mut writer, first_bytes),
            Generator::Fallocate => fallocate(&mut writer, first_bytes),
            Generator::Dirty => {
                load.dirty_limit_bytes = writer.random.among(&[4, 8, 16]) * GIB;
                dirty(&mut writer, first_bytes);
            }
        }
        writer.segments.retain(|segment| segment.from_ms < end_ms);
        writer.segments.sort_by_key(|segment| segment.from_ms);
        load.segments = writer.segments;
        load
    }
}

/// Returns bytes a second that are `percent` of `bytes` in 30 days.
fn monthly(bytes: u64, percent: u64) -> i64 {
    let per_second = bytes / 100 * percent / (30 * DAY_S);
    i64::try_from(per_second).expect("bytes a second are far below 2^63")
}

/// Six stretches of a day: requests follow the hours.
fn wave(writer: &mut Writer, day_ms: u64, net: i64, iops_max: u32) {
    const PARTS: [(u64, u32); 6] = [(0, 20), (6, 45), (9, 100), (13, 80), (18, 60), (22, 30)];
    for (hour, percent) in PARTS {
        let noise = u32::try_from(writer.random.below(10)).expect("a small number");
        let segment = writer.at(day_ms + hour * HOUR_MS, net);
        segment.iops = iops_max / 100 * (percent + noise);
        segment.mibps = segment.iops / 64;
    }
}

fn daily(writer: &mut Writer, first_bytes: u64) {
    let percent = 1 + writer.random.below(6);
    let iops_max = 1_000 + u32::try_from(writer.random.below(5_000)).expect("a small number");
    let mut bytes = first_bytes;
    for day in 0..writer.end_ms / DAY_MS {
        let net = monthly(bytes, percent);
        bytes += net.unsigned_abs() * DAY_S;
        wave(writer, day * DAY_MS, net, iops_max);
    }
}

fn retention(writer: &mut Writer, first_bytes: &mut u64) {
    let weeks = 2 + writer.random.below(7);
    // Bytes of a day when the retention is full.
    let plateau = *first_bytes;
    *first_bytes = plateau / 4;
    let usual = plateau / (weeks * 7);
    let days = writer.end_ms / DAY_MS;
    let written: Vec<u64> = (0..days)
        .map(|day| {
            let weekend = if day % 7 >= 5 { 60 } else { 100 };
            let busy = if writer.random.one_in(60) { 3 } else { 1 };
            usual / 100 * weekend * busy * (80 + writer.random.below(41)) / 100
        })
        .collect();
    let mut present = *first_bytes;
    for (day, bytes) in (0..).zip(&written) {
        let kept = weeks * 7;
        let old = if day >= kept { written.get(usize_of(day - kept)).copied() } else { None };
        // The bytes of the start leave over the first weeks.
        let old = old.unwrap_or(*first_bytes / kept).min(present);
        present = present + bytes - old;
        let from = day * DAY_MS;
        writer.at(from, per_second(*bytes, 20 * HOUR_MS));
        let segment = writer.at(from + 20 * HOUR_MS, 0);
        segment.purge = Some(Purge::of_bytes(old, Order::Oldest));
    }
}

fn usize_of(number: u64) -> usize {
    evenkeel_core::convert::index(number)
}

/// Returns the rate of `bytes` in `ms`.
fn per_second(bytes: u64, ms: u64) -> i64 {
    i64::try_from(bytes / (ms / 1_000)).expect("bytes a second are far below 2^63")
}

fn nightly(writer: &mut Writer, first_bytes: u64) {
    let usual = (first_bytes / GIB * (8 + writer.random.below(18)) / 100).max(4);
    let growth = monthly(first_bytes, writer.random.below(3));
    for day in 0..writer.end_ms / DAY_MS {
        let start = day * DAY_MS + writer.after(2 * HOUR_MS, HOUR_MS);
        // A month's end, or a bad night, has more.
        let times = if day % 30 == 29 { 2 } else { 1 };
        let more = if writer.random.one_in(200) { 2 } else { 1 };
        let gib = usual * times * more * (85 + writer.random.below(31)) / 100;
        writer.at(start, growth).import_bytes = gib * GIB;
        let end = start + writer.after(90 * MINUTE_MS, 90 * MINUTE_MS);
        writer.at(end, growth).purge = Some(Purge::of_bytes(gib * GIB, Order::Newest));
    }
}

fn imports(writer: &mut Writer, first_bytes: u64) {
    let mut now = writer.after(3 * DAY_MS, 20 * DAY_MS);
    let growth = monthly(first_bytes, 1);
    writer.at(HOUR_MS, growth);
    while now < writer.end_ms {
        let part = first_bytes / GIB / 5;
        let bytes = writer.gib(8, 16 + part);
        writer.at(now, growth).import_bytes = bytes;
        now += writer.after(4 * DAY_MS, 50 * DAY_MS);
    }
}

fn purges(writer: &mut Writer, first_bytes: u64) {
    let mut now = writer.after(2 * DAY_MS, 10 * DAY_MS);
    let growth = monthly(first_bytes, 1);
    writer.at(HOUR_MS, growth);
    while now < writer.end_ms {
        let imports = 1 + writer.random.below(6);
        for _ in 0..imports {
            let part = first_bytes / GIB / 2;
            let bytes = writer.gib(8, 20 + part);
            writer.at(now, growth).import_bytes = bytes;
            now += writer.after(2 * HOUR_MS, 10 * DAY_MS);
        }
        now += writer.after(5 * DAY_MS, 60 * DAY_MS);
        let permille = 500 + writer.random.below(400);
        let order = if writer.random.one_in(2) { Order::Scattered } else { Order::Oldest };
        writer.at(now, growth).purge = Some(Purge::of_permille(permille, order));
        now += writer.after(10 * DAY_MS, 90 * DAY_MS);
    }
}

fn restore(writer: &mut Writer, first_bytes: u64) {
    let growth = monthly(first_bytes, 1 + writer.random.below(3));
    writer.at(HOUR_MS, growth);
    let mut now = writer.after(10 * DAY_MS, 60 * DAY_MS);
    while now < writer.end_ms {
        let bytes = first_bytes / 100 * (60 + writer.random.below(41));
        writer.at(now, growth).import_bytes = bytes;
        now += writer.after(DAY_MS, 6 * DAY_MS);
        writer.at(now, growth).purge = Some(Purge::of_bytes(bytes, Order::Newest));
        now += writer.after(45 * DAY_MS, 120 * DAY_MS);
    }
}

fn viral(writer: &mut Writer, first_bytes: u64) {
    /// A volume does not grow beyond this in a phase.
    const BYTES_MAX: u64 = 3_000 * GIB;
    let usual = monthly(first_bytes, 2);
    writer.at(HOUR_MS, usual);
    let mut now = writer.after(7 * DAY_MS, 60 * DAY_MS);
    while now < writer.end_ms {
        let doubling_days = 7 + writer.random.below(28);
        let mut bytes = first_bytes;
        let phase = now + writer.after(15 * DAY_MS, 60 * DAY_MS);
        while now < phase && bytes < BYTES_MAX {
            let net = per_second(bytes * 7 / 10, doubling_days * DAY_MS);
            writer.at(now, net);
            bytes += net.unsigned_abs() * DAY_S / 2;
            now += DAY_MS / 2;
        }
        writer.at(now, usual);
        now += writer.after(20 * DAY_MS, 70 * DAY_MS);
        let permille = 1_000 - (first_bytes * 1_000 / bytes.max(1)).min(1_000);
        writer.at(now, usual).purge = Some(Purge::of_permille(permille, Order::Scattered));
        now += writer.after(30 * DAY_MS, 150 * DAY_MS);
    }
}

fn drain(writer: &mut Writer, first_bytes: u64) {
    let growth = monthly(first_bytes, 1);
    let low = 300 + u32::try_from(writer.random.below(400)).expect("a small number");
    let high = 3_500 + u32::try_from(writer.random.below(9_000)).expect("a small number");
    for day in 0..writer.end_ms / DAY_MS {
        let from = day * DAY_MS;
        let segment = writer.at(from, growth);
        segment.iops = low;
        segment.mibps = low / 64;
        // Weeks with bursts, and weeks without.
        if day / 21 % 2 == 1 {
            continue;
        }
        let start = from + writer.after(8 * HOUR_MS, 3 * HOUR_MS);
        let segment = writer.at(start, growth);
        segment.iops = high;
        segment.mibps = high / 64;
        let end = start + writer.after(20 * MINUTE_MS, 4 * HOUR_MS);
        let segment = writer.at(end, growth);
        segment.iops = low;
        segment.mibps = low / 64;
    }
}

fn fallocate(writer: &mut Writer, first_bytes: u64) {
    let growth = monthly(first_bytes, 1);
    writer.at(HOUR_MS, growth);
    let usual = 1 + writer.random.below(4);
    let mut now = writer.after(DAY_MS, 5 * DAY_MS);
    let mut held = 0;
    while now < writer.end_ms {
        let bytes = (usual + writer.random.below(4)) * GIB;
        writer.at(now, growth).jump_bytes = bytes;
        held += bytes;
        now += writer.after(30 * MINUTE_MS, 6 * DAY_MS);
        if held > first_bytes / 4 {
            writer.at(now, growth).purge = Some(Purge::of_bytes(held, Order::Newest));
            held = 0;
            now += writer.after(HOUR_MS, 2 * DAY_MS);
        }
    }
}

fn dirty(writer: &mut Writer, first_bytes: u64) {
    let growth = monthly(first_bytes, 1);
    writer.at(HOUR_MS, growth);
    let mut now = writer.after(DAY_MS, 3 * DAY_MS);
    while now < writer.end_ms {
        let bytes = writer.gib(2, 8 + first_bytes / GIB / 20);
        writer.at(now, growth).import_bytes = bytes;
        now += writer.after(4 * HOUR_MS, 7 * DAY_MS);
        let purged = bytes / 100 * (70 + writer.random.below(28));
        writer.at(now, growth).purge = Some(Purge::of_bytes(purged, Order::Oldest));
        now += writer.after(HOUR_MS, 4 * DAY_MS);
    }
}

impl Load {
    /// Returns the most bytes in use on each day, if there is always room and an import ends at
    /// once. It does not depend on a policy.
    pub(super) fn peaks_by_day(&self) -> Vec<u64> {
        let days = usize_of(self.end_ms.div_ceil(DAY_MS));
        let mut peaks = vec![0_u64; days];
        let mut used = self.first_bytes;
        for (n, segment) in self.segments.iter().enumerate() {
            let next = self.segments.get(n + 1);
            let until = next.map_or(self.end_ms, |next| next.from_ms).min(self.end_ms);
            if let Some(purge) = segment.purge {
                let share = u128::from(used) * u128::from(purge.permille) / 1_000;
                let share = u64::try_from(share).expect("invariant: a share of the used bytes");
                used -= purge.bytes.min(share).min(used);
            }
            used += segment.jump_bytes + segment.import_bytes;
            let mut now = segment.from_ms;
            loop {
                let day = usize_of(now / DAY_MS).min(days - 1);
                peaks[day] = peaks[day].max(used);
                if now >= until {
                    break;
                }
                let end = until.min((now / DAY_MS + 1) * DAY_MS);
                let rate = segment.net_bytes_per_s;
                let bytes = rate.unsigned_abs() * (end - now) / 1_000;
                used = if rate < 0 { used.saturating_sub(bytes) } else { used + bytes };
                // The end of a day belongs to it.
                peaks[day] = peaks[day].max(used);
                now = end;
            }
        }
        peaks
    }

    /// Returns the most requests a second on each day.
    pub(super) fn iops_by_day(&self) -> Vec<u32> {
        let days = usize_of(self.end_ms.div_ceil(DAY_MS));
        let mut peaks = vec![0_u32; days];
        for (n, segment) in self.segments.iter().enumerate() {
            let next = self.segments.get(n + 1);
            let until = next.map_or(self.end_ms, |next| next.from_ms).min(self.end_ms);
            let first = segment.from_ms / DAY_MS;
            let last = until.saturating_sub(1).max(segment.from_ms) / DAY_MS;
            for day in first..=last {
                if let Some(peak) = peaks.get_mut(usize_of(day)) {
                    *peak = (*peak).max(segment.iops);
                }
            }
        }
        peaks
    }
}

impl Load {
    /// Returns the most requests a second and the most MiB/s between two times.
    pub(super) fn most(&self, from_ms: u64, to_ms: u64) -> (u32, u32) {
        let begun = self.segments.partition_point(|segment| segment.from_ms <= from_ms);
        let first = begun.saturating_sub(1);
        let within = self.segments.get(first..).unwrap_or_default();
        let within = within.iter().take_while(|segment| segment.from_ms < to_ms.max(1));
        within.fold((0, 0), |(iops, mibps), segment| {
            (iops.max(segment.iops), mibps.max(segment.mibps))
        })
    }
}
