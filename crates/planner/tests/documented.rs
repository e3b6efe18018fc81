//! The planner's answers, compared with a model that is written from the documentation of EBS alone
//! and uses none of the planner's rules: its limits, credits, prices and queue are those below.
#![allow(clippy::unwrap_used)] // a test may panic

use evenkeel_core::price::PriceList;
use evenkeel_core::random::Random;
use evenkeel_core::volume::{Rules, VolumeType};
use evenkeel_planner::demand::{Demand, Span};
use evenkeel_planner::search::{self, Found, Space, Tolerance, Wanted};
use evenkeel_planner::spread::Spread;

const KIB: f64 = 1_024.0;
const MIB: f64 = 1_048_576.0;
/// Relative difference of the load that rounding to millionths explains.
const ROUNDING: f64 = 1e-5;
/// Random workloads of the comparison.
const WORKLOADS: u64 = 1_000;

/// Requests that arrive evenly within a time: seconds, requests, and KiB of each.
#[derive(Clone, Copy, Debug)]
struct Arrivals {
    start_s: u64,
    length_s: u64,
    requests: u64,
    kib: u64,
}

/// A workload, and the seconds a day for which its requests may wait.
#[derive(Clone, Debug)]
struct Workload {
    arrivals: Vec<Arrivals>,
    length_s: u64,
    gib: u32,
    allowed_s: u64,
}

/// One volume of a layout.
#[derive(Clone, Copy, Debug)]
struct Volume {
    volume_type: VolumeType,
    gib: u32,
    iops: u32,
    mibps: u32,
}

/// A limit per second, what is earned per second without credits, and the credits.
#[derive(Clone, Copy, Debug)]
struct Limit {
    most: f64,
    earned: f64,
    credits: f64,
}

impl Limit {
    const fn steady(most: f64) -> Self {
        Self { most, earned: most, credits: 0.0 }
    }

    const NONE: Self = Self::steady(1e18);
}

/// Largest and smallest sizes in GiB. Source: EBS user guide, "Amazon EBS volume types".
const fn sizes(volume_type: VolumeType) -> (u32, u32) {
    match volume_type {
        VolumeType::Gp2 => (1, 16_384),
        VolumeType::Gp3 => (1, 65_536),
        VolumeType::Io1 => (4, 16_384),
        VolumeType::Io2 => (4, 65_536),
        _ => (125, 16_384),
    }
}

impl Volume {
    /// Returns the limits in I/Os and in bytes. Source: EBS user guide, "General Purpose SSD
    /// volumes", "Provisioned IOPS SSD volumes", "Throughput Optimized HDD and Cold HDD volumes".
    fn limits(&self) -> [Limit; 2] {
        let tib = f64::from(self.gib) / 1_024.0;
        let iops = f64::from(self.iops);
        let hdd = |base: f64, base_max: f64, burst: f64, burst_max: f64| Limit {
            most: (burst * tib).min(burst_max) * MIB,
            earned: (base * tib).min(base_max) * MIB,
            // 1 TiB of credits for each TiB.
            credits: tib * MIB * MIB,
        };
        match self.volume_type {
            VolumeType::Gp2 => {
                let earned = (3.0 * f64::from(self.gib)).clamp(100.0, 16_000.0);
                let most = earned.max(3_000.0);
                let credits = if earned < most { 5_400_000.0 } else { 0.0 };
                let mibps = if self.gib <= 170 { 128.0 } else { 250.0 };
                [Limit { most, earned, credits }, Limit::steady(mibps * MIB)]
            }
            VolumeType::Gp3 => [Limit::steady(iops), Limit::steady(f64::from(self.mibps) * MIB)],
            VolumeType::Io1 => {
                let mibps = match self.iops {
                    0..=2_000 => iops / 4.0,
                    2_001..=32_000 => 500.0,
                    _ => iops / 64.0,
                };
                [Limit::steady(iops), Limit::steady(mibps.min(1_000.0) * MIB)]
            }
            VolumeType::Io2 => {
                [Limit::steady(iops), Limit::steady((iops * 0.256).min(4_000.0) * MIB)]
            }
            VolumeType::St1 => [Limit::NONE, hdd(40.0, 500.0, 250.0, 500.0)],
            _ => [Limit::NONE, hdd(12.0, 192.0, 80.0, 250.0)],
        }
    }

    /// Returns millionths of a dollar a month. Source: the price page of EBS, us-east-1.
    fn monthly(&self) -> u64 {
        let [gib, iops, mibps] = [self.gib, self.iops, self.mibps].map(u64::from);
        match self.volume_type {
            VolumeType::Gp2 => 100_000 * gib,
            VolumeType::Gp3 => 80_000 * gib + 5_000 * (iops - 3_000) + 40_000 * (mibps - 125),
            VolumeType::Io1 => 125_000 * gib + 65_000 * iops,
            VolumeType::Io2 => {
                let tier = |from: u64, to: u64| iops.clamp(from, to) - from;
                125_000 * gib
                    + 65_000 * tier(0, 32_000)
                    + 45_500 * tier(32_000, 64_000)
                    + 31_850 * tier(64_000, 256_000)
            }
            VolumeType::St1 => 45_000 * gib,
            _ => 15_000 * gib,
        }
    }
}

/// The load of one of several volumes: start, length, I/Os and bytes that count.
type Load = [f64; 4];

/// Returns what one of `volumes` gets, times a factor. A stripe has chunks of 64 KiB; the chunks of
/// a request on one volume follow each other there. An I/O has at most 256 KiB, and 1 MiB of an
/// HDD, which counts each as a whole. Source: EBS user guide, "I/O characteristics".
fn load(workload: &Workload, volume_type: VolumeType, volumes: u64, factor: f64) -> Vec<Load> {
    let is_hdd = matches!(volume_type, VolumeType::St1 | VolumeType::Sc1);
    let unit_kib = if is_hdd { 1_024 } else { 256 };
    let load_of = |it: &Arrivals| {
        let mut on_each = vec![0; usize::try_from(volumes).unwrap()];
        for chunk in 0..it.kib.div_ceil(64) {
            let kib = 64.min(it.kib - 64 * chunk);
            on_each[usize::try_from(chunk % volumes).unwrap()] += kib;
        }
        // A volume alone gets requests as they are.
        let counted: u64 = on_each.iter().map(|kib: &u64| kib.div_ceil(unit_kib)).sum();
        let share = it.requests as f64 * factor / volumes as f64;
        let operations = share * counted as f64;
        let bytes = if is_hdd { operations * MIB } else { share * it.kib as f64 * KIB };
        [it.start_s as f64, it.length_s as f64, operations, bytes]
    };
    workload.arrivals.iter().filter(|arrivals| arrivals.requests > 0).map(load_of).collect()
}

/// Returns the seconds in which requests wait in a queue before the limits, and the time at which
/// the last one is served.
fn waits([iops, bytes]: [Limit; 2], load: &[Load]) -> (f64, f64) {
    let mut now = 0.0_f64;
    let mut waited = 0.0_f64;
    let limits = [iops, bytes];
    let mut credits = [iops.credits, bytes.credits];
    let pass = |credits: &mut [f64; 2], seconds: f64, served: [f64; 2]| {
        for ((credits, limit), served) in credits.iter_mut().zip(limits).zip(served) {
            let earned = *credits + limit.earned * seconds - served;
            *credits = earned.clamp(0.0, limit.credits);
        }
    };
    for [start, length, operations, amount] in load {
        if now < *start {
            pass(&mut credits, start - now, [0.0; 2]);
            now = *start;
        }
        let all = [*operations, *amount];
        let arrives = 1.0 / length;
        let mut served = 0.0;
        while served < 1.0 - 1e-12 {
            let arrived = ((now - start) / length).min(1.0);
            let is_arriving = now < start + length - 1e-9;
            let rate_of = |at: usize| {
                let limit = limits[at];
                let most = if credits[at] > 1e-3 { limit.most } else { limit.earned };
                most / all[at].max(1e-9)
            };
            let most = rate_of(0).min(rate_of(1));
            let is_behind = arrived - served > 1e-9 || !is_arriving;
            let waits = is_behind || most < arrives * (1.0 - 1e-9);
            let rate = if waits { most } else { arrives };
            let mut seconds = (1.0 - served) / rate;
            if is_arriving {
                seconds = seconds.min(start + length - now);
            }
            if is_arriving && is_behind && rate > arrives {
                seconds = seconds.min((arrived - served) / (rate - arrives));
            }
            for ((credits, limit), all) in credits.iter().zip(limits).zip(all) {
                let spends = rate * all - limit.earned;
                if *credits > 1e-3 && spends > 0.0 {
                    seconds = seconds.min(credits / spends);
                }
            }
            let seconds = seconds.max(1e-9);
            let part = (rate * seconds).min(1.0 - served);
            pass(&mut credits, seconds, [part * all[0], part * all[1]]);
            served += part;
            now += seconds;
            // What is left of an arrival when it ends is rounding, unless it waits.
            if !is_behind && !waits && now >= start + length - 1e-9 {
                served = 1.0;
            }
            waited += if waits { seconds } else { 0.0 };
        }
    }
    (waited, now)
}

/// Returns whether requests wait no longer than is allowed.
fn carries(volume: &Volume, load: &[Load], workload: &Workload, more: f64) -> bool {
    let (waited, end) = waits(volume.limits(), load);
    let known = end.max(workload.length_s as f64);
    let rounding = 2e-6 * load.len() as f64;
    waited * 86_400.0 <= workload.allowed_s as f64 * known * (1.0 + more) + rounding * 86_400.0
}

/// Returns the least number of a range for which `of` is true.
fn least((from, to): (u32, u32), of: impl Fn(u32) -> bool) -> Option<u32> {
    if from > to || !of(to) {
        return None;
    }
    let mut low = from;
    let mut high = to;
    while low < high {
        let middle = low + (high - low) / 2;
        if of(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}

/// Returns the cheapest volume that carries the load of one of `volumes`.
fn best(workload: &Workload, volume_type: VolumeType, volumes: u32) -> Option<Volume> {
    let load = load(workload, volume_type, volumes.into(), 1.0);
    let (least_gib, most_gib) = sizes(volume_type);
    let gib = workload.gib.div_ceil(volumes).max(least_gib);
    let volume = |gib, iops, mibps| Volume { volume_type, gib, iops, mibps };
    let does = |volume: &Volume| carries(volume, &load, workload, 0.0);
    let sized = |iops: u32, mibps: u32| {
        let needed = match volume_type {
            VolumeType::Gp3 if iops <= 3_000 => 0,
            VolumeType::Gp3 => iops.div_ceil(500),
            VolumeType::Io1 => iops.div_ceil(50),
            _ => iops.div_ceil(1_000),
        };
        volume(gib.max(needed), iops, mibps)
    };
    match volume_type {
        VolumeType::Gp3 => best_gp3(sized, does),
        VolumeType::Io1 | VolumeType::Io2 => {
            let most = if volume_type == VolumeType::Io1 { 64_000 } else { 256_000 };
            least((100, most), |iops| does(&sized(iops, 0))).map(|iops| sized(iops, 0))
        }
        _ => least((gib, most_gib), |gib| does(&volume(gib, 0, 0))).map(|gib| volume(gib, 0, 0)),
    }
    .filter(|volume| volume.gib <= most_gib)
}

/// Returns the cheapest of all pairs of IOPS and MiB/s of gp3, with at most a quarter MiB/s for
/// each IOPS.
fn best_gp3(sized: impl Fn(u32, u32) -> Volume, does: impl Fn(&Volume) -> bool) -> Option<Volume> {
    let floor = least((3_000, 80_000), |iops| does(&sized(iops, 2_000)))?;
    let mut best: Option<Volume> = None;
    let first = least((125, 2_000), |mibps| does(&sized(80_000, mibps)))?;
    for mibps in first..=2_000 {
        let from = floor.max(4 * mibps);
        let is_dearer = |best: &Volume| sized(from, mibps).monthly() >= best.monthly();
        if best.as_ref().is_some_and(is_dearer) {
            break;
        }
        let found = least((from, 80_000), |iops| does(&sized(iops, mibps)));
        let found = found.map(|iops| sized(iops, mibps));
        best = best.into_iter().chain(found).min_by_key(Volume::monthly);
    }
    best
}

/// Returns a workload of seconds, minutes or hours.
fn workload(random: &mut Random) -> Workload {
    let mut below = |most: u64| random.below(most);
    let length_s = [1, 60, 300, 3_600][usize::try_from(below(4)).unwrap()];
    let count = 2 + below(14);
    let fastest = [300, 3_000, 20_000][usize::try_from(below(3)).unwrap()];
    let mut arrivals = Vec::new();
    for at in 0..count {
        let is_idle = below(3) == 0;
        let kib = [4, 8, 16, 64, 128, 256, 512, 1_024][usize::try_from(below(8)).unwrap()];
        // At most two gigabytes a second.
        let rate = (1 + below(fastest)).min(1_900_000 / kib);
        let requests = if is_idle { 0 } else { rate * length_s };
        arrivals.push(Arrivals { start_s: at * length_s, length_s, requests, kib });
    }
    Workload {
        arrivals,
        length_s: count * length_s,
        gib: u32::try_from(1 + below(4_000)).unwrap(),
        allowed_s: [0, 0, 60, 3_600, 20_000][usize::try_from(below(5)).unwrap()],
    }
}

fn demand(workload: &Workload) -> Demand {
    let span = |it: &Arrivals| Span {
        start_us: it.start_s * 1_000_000,
        length_us: it.length_s * 1_000_000,
        requests: it.requests,
        bytes: it.requests * it.kib * 1_024,
        ..Span::default()
    };
    let spans =
        workload.arrivals.iter().filter(|arrivals| arrivals.requests > 0).map(span).collect();
    Demand { spans, length_us: workload.length_s * 1_000_000, held_back: None }
}

fn wanted(workload: &Workload) -> Wanted {
    Wanted {
        capacity_gib: workload.gib.into(),
        throttled_us_per_day_max: workload.allowed_s * 1_000_000,
        ..Wanted::default()
    }
}

const TYPES: [VolumeType; 6] = [
    VolumeType::Gp2,
    VolumeType::Gp3,
    VolumeType::Io1,
    VolumeType::Io2,
    VolumeType::St1,
    VolumeType::Sc1,
];

fn space(volumes_max: u32) -> Space {
    Space {
        rules: Rules::newest(),
        prices: PriceList::newest().into(),
        tolerance: Tolerance::None,
        types: TYPES.to_vec(),
        volumes_max,
        spread: Spread::STRIPED,
        instances: vec![],
    }
}

/// Returns a layout's volume as the model has it.
fn volume(found: &Found) -> Volume {
    let each = found.layout.each;
    let sells = matches!(each.volume_type, VolumeType::Gp3 | VolumeType::Io1 | VolumeType::Io2);
    Volume {
        volume_type: each.volume_type,
        gib: each.size_gib,
        iops: each.iops.filter(|_| sells).unwrap_or(0),
        mibps: each.throughput_mibps.unwrap_or(0),
    }
}

/// Returns why the planner and the model name other costs; `None` if that is a fault.
fn explained(
    workload: &Workload,
    (volume_type, volumes): (VolumeType, u32),
    planned: Option<Volume>,
    modelled: Option<Volume>,
) -> Option<&'static str> {
    let cost = |volume: Option<Volume>| volume.map_or(u64::MAX, |volume| volume.monthly());
    let with = |factor: f64| load(workload, volume_type, volumes.into(), factor);
    let is_cheaper = cost(modelled) < cost(planned);
    match (planned, modelled) {
        // With a little more load, the model's layout does not carry it, either.
        (_, Some(modelled)) if is_cheaper => {
            let is_marginal = !carries(&modelled, &with(1.0 + ROUNDING), workload, -ROUNDING);
            is_marginal.then_some("the planner rounds against the volume")
        }
        (Some(planned), _) => {
            let is_marginal = carries(&planned, &with(1.0 - ROUNDING), workload, ROUNDING);
            is_marginal.then_some("the model rounds against the volume")
        }
        _ => None,
    }
}

/// Each type, alone and striped, costs what the model says: to the millionth of a dollar, but for
/// layouts that carry the workload by less than rounding.
#[test]
fn answers_are_those_of_the_documented_rules() {
    let mut random = Random::new(46, 0);
    let mut rows = 0_u64;
    let mut rounded = 0_u64;
    for number in 0..WORKLOADS {
        let workload = workload(&mut random);
        let volumes_max = [1, 2, 3, 6][usize::try_from(number % 4).unwrap()];
        let found = search::cheapest(&space(volumes_max), &demand(&workload), &wanted(&workload));
        for volume_type in TYPES {
            for volumes in [1, volumes_max] {
                let is_row = |it: &&Found| {
                    (it.layout.each.volume_type, it.layout.volumes) == (volume_type, volumes)
                };
                let row = found.iter().find(is_row);
                let planned = row.map(volume);
                if let (Some(row), Some(volume)) = (row, planned) {
                    let cost = volume.monthly() * u64::from(volumes);
                    assert_eq!(row.monthly.total(), cost, "{volume:?}");
                }
                let modelled = best(&workload, volume_type, volumes);
                rows += 1;
                let costs = [planned, modelled].map(|volume| volume.map(|volume| volume.monthly()));
                if costs[0] == costs[1] {
                    continue;
                }
                let why = explained(&workload, (volume_type, volumes), planned, modelled);
                assert!(
                    why.is_some(),
                    "workload {number}: {volumes} x {planned:?}, and {modelled:?}: {workload:?}"
                );
                rounded += 1;
            }
        }
    }
    assert!(rows >= 12 * WORKLOADS && rounded * 50 <= rows, "{rounded} of {rows} are explained");
}

/// The first answer carries every repetition of a month, and one GiB less does not.
#[test]
fn the_month_of_every_first_answer_is_carried() {
    let mut random = Random::new(28, 0);
    let mut credits = 0;
    for _ in 0..200 {
        let mut workload = workload(&mut random);
        workload.allowed_s = 0;
        // A month has at most some thousand repetitions.
        if workload.length_s < 600 {
            continue;
        }
        let space = space(2);
        let demand = demand(&workload);
        let wanted = wanted(&workload);
        let repetitions = (30 * 86_400_u64).div_ceil(workload.length_s);
        let month_of = |load: &[Load]| -> Vec<Load> {
            let shifted = |number: u64| {
                let start_s = (number * workload.length_s) as f64;
                load.iter().map(move |[start, length, operations, bytes]| {
                    [start + start_s, *length, *operations, *bytes]
                })
            };
            (0..repetitions).flat_map(shifted).collect()
        };
        for volume_type in TYPES {
            let only = Space { types: vec![volume_type], ..space.clone() };
            let rows = search::for_months(&only, &demand, &demand, &wanted, (1, 0));
            let Some(first) = rows.first() else { continue };
            if !search::carries(&only, &demand, &wanted, first) {
                continue;
            }
            let each = volume(first);
            let volumes = first.layout.volumes.into();
            let month = month_of(&load(&workload, volume_type, volumes, 1.0 - ROUNDING));
            let (waited, _) = waits(each.limits(), &month);
            assert!(waited < 0.1, "{first:?} waits {waited} s in the month of {workload:?}");
            let least_gib = workload.gib.div_ceil(first.layout.volumes).max(sizes(volume_type).0);
            let has_credits =
                matches!(volume_type, VolumeType::Gp2 | VolumeType::St1 | VolumeType::Sc1);
            if !has_credits || each.gib <= least_gib {
                continue;
            }
            credits += 1;
            let less = Volume { gib: each.gib - 1, ..each };
            let more = month_of(&load(&workload, volume_type, volumes, 1.0 + 2.0 * ROUNDING));
            let (waited, _) = waits(less.limits(), &more);
            assert!(waited > 0.0, "{less:?} carries the month of {workload:?}, too");
        }
    }
    assert!(credits > 30, "{credits} answers live on credits");
}
