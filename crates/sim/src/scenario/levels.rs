//! Limits that a chart of a rate shows as lines, in the client's own requests per second.

use serde::{Deserialize, Serialize};

use super::setup::{ClientSetup, InstanceSetup, Load, Setup, Target, VolumeSetup};
use crate::world::product::instance_pacing;
use evenkeel_core::qos::pacing::{CountingRule, Limit};

/// The share of its rate that a volume is promised in every second (specification, line 2).
pub const FLOOR: f64 = 0.99;

/// An instance's line is left out above this multiple of its volumes' limit: it would compress the
/// other lines.
const INSTANCE_TIMES_MAX: f64 = 4.0;

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LevelKind {
    /// The limit of volumes without credits.
    Limit,
    /// The limit of volumes that have credits left.
    Burst,
    /// The limit of those volumes without credits left.
    Baseline,
    /// The limit of their instance.
    Instance,
    /// The promised rate in every second: 99 % of the lowest sustained limit.
    Floor,
}

/// A line across a chart.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Level {
    /// Its kind.
    pub kind: LevelKind,
    /// Its height, in requests per second.
    pub iops: f64,
}

impl LevelKind {
    /// Returns its name in a chart.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Burst => "burst",
            Self::Baseline => "baseline",
            Self::Instance => "instance",
            Self::Floor => "floor",
        }
    }
}

/// The properties of requests that determine how they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Requests {
    /// Bytes of each.
    bytes: u64,
    /// Bytes of the pieces that a stripe cuts them into.
    piece_bytes: u64,
    read_percent: u8,
    /// Whether each request begins where the previous one ended, so that neighbours share a unit.
    in_a_row: bool,
}

/// Returns the lines of a volume, in requests of its clients. If their requests differ, each counts
/// as one I/O, and limits in bytes draw no line.
#[must_use]
pub fn of_volume(setup: &Setup, number: u32) -> Vec<Level> {
    let is_in = |client: &&ClientSetup| match client.target {
        Target::Volume(volume) => volume == number,
        Target::Stripe(stripe) => setup.stripes[stripe as usize].volumes.contains(&number),
    };
    let mut all = setup.clients.iter().filter(is_in).map(|client| {
        // A volume sees the pieces of requests that a stripe cuts.
        let whole = Requests::of(setup, client);
        Requests { bytes: whole.piece_bytes, ..whole }
    });
    let first = all.next();
    let requests = first.filter(|first| all.all(|other| other == *first));
    lines(setup, &[number], requests)
}

/// Returns the lines of a client's target: the sum of a stripe's volumes, and the limit of their
/// instance. Clients of the same target share these limits.
#[must_use]
pub fn of_client(setup: &Setup, client: &ClientSetup) -> Vec<Level> {
    lines(setup, client.target.volumes(setup), Some(Requests::of(setup, client)))
}

/// Returns the size of the requests that clients send to the volume itself, in bytes; 0 if they
/// differ or there are none.
#[must_use]
pub fn block_bytes(setup: &Setup, number: u32) -> u32 {
    let of_volume = setup.clients.iter().filter(|client| client.target == Target::Volume(number));
    let mut sizes = of_volume.map(|client| client.shape.block_bytes);
    let first = sizes.next().unwrap_or(0);
    if sizes.all(|size| size == first) { first } else { 0 }
}

impl Requests {
    fn of(setup: &Setup, client: &ClientSetup) -> Self {
        let bytes = u64::from(client.shape.block_bytes).max(1);
        let chunk_bytes = match client.target {
            Target::Volume(_) => bytes,
            Target::Stripe(stripe) => u64::from(setup.stripes[stripe as usize].chunk_bytes),
        };
        let read_percent = client.shape.read_percent;
        let is_one_way = [0, 100].contains(&read_percent);
        let is_one_at_a_place = match client.load {
            Load::Closed { threads, .. } => threads == 1,
            Load::Job { .. } => true,
            Load::Open { .. } | Load::Trace(_) => false,
        };
        Self {
            bytes,
            piece_bytes: bytes.min(chunk_bytes.max(1)),
            read_percent,
            in_a_row: client.shape.sequential && is_one_way && is_one_at_a_place,
        }
    }

    /// Returns the number of I/Os as which one request counts.
    fn units(&self, unit_bytes: u64) -> u64 {
        let pieces = self.bytes.div_ceil(self.piece_bytes);
        pieces * self.piece_bytes.div_ceil(unit_bytes.max(1))
    }
}

fn lines(setup: &Setup, numbers: &[u32], requests: Option<Requests>) -> Vec<Level> {
    let volumes = || numbers.iter().filter_map(|number| setup.volumes.get(*number as usize));
    let sum = |of: fn(&Limit) -> u64| -> Option<f64> {
        volumes().map(|volume| rate(volume, requests, of)).sum()
    };
    let peak = sum(|limit| limit.per_second);
    let base = sum(Limit::sustained_per_second);
    let instance = instance_of(setup, numbers).and_then(|of| instance_rate(of, requests));
    let is_near = |instance: &f64| peak.is_none_or(|peak| *instance <= peak * INSTANCE_TIMES_MAX);
    let instance = instance.filter(is_near);
    let mut levels = Vec::new();
    let mut add = |kind, iops| levels.push(Level { kind, iops });
    match (peak, base) {
        (Some(peak), Some(base)) if base < peak => {
            add(LevelKind::Burst, peak);
            add(LevelKind::Baseline, base);
        }
        (Some(peak), _) => add(LevelKind::Limit, peak),
        (None, _) => {}
    }
    if let Some(instance) = instance {
        add(LevelKind::Instance, instance);
    }
    // A volume without a limit has no floor.
    if let Some(base) = base {
        add(LevelKind::Floor, instance.map_or(base, |instance| base.min(instance)) * FLOOR);
    }
    levels
}

/// Returns the requests per second that the tighter limit of a volume allows; `None` if no limit
/// applies to such requests.
fn rate(volume: &VolumeSetup, requests: Option<Requests>, of: fn(&Limit) -> u64) -> Option<f64> {
    let CountingRule { unit_bytes, charge_whole_units, merge_bytes_min } = volume.pacing.counting;
    let unit = u64::from(unit_bytes.max(1));
    let operations = volume.pacing.operations.as_ref().map(|limit| of(limit) as f64);
    let bytes = volume.pacing.bytes.as_ref().map(|limit| of(limit) as f64);
    let Some(requests) = requests else { return operations };
    let units = requests.units(unit);
    let is_merged = requests.in_a_row && requests.piece_bytes >= u64::from(merge_bytes_min);
    let in_units = if is_merged { requests.bytes as f64 / unit as f64 } else { units as f64 };
    let charged = if charge_whole_units { in_units * unit as f64 } else { requests.bytes as f64 };
    let operations = operations.map(|limit| limit / in_units);
    operations.into_iter().chain(bytes.map(|limit| limit / charged)).min_by(f64::total_cmp)
}

/// Returns the instance of the volumes; `None` if they have none, or several.
fn instance_of<'a>(setup: &'a Setup, numbers: &[u32]) -> Option<&'a InstanceSetup> {
    let mut places = numbers.iter().map(|number| setup.volumes.get(*number as usize)?.instance);
    let first = places.next()??;
    if !places.all(|place| place == Some(first)) {
        return None;
    }
    setup.instances.get(first as usize)
}

/// Returns the requests per second that an instance sustains without credits; `None` if no limit
/// applies.
fn instance_rate(instance: &InstanceSetup, requests: Option<Requests>) -> Option<f64> {
    let pacing = instance_pacing(instance).ok()?;
    let operations = pacing.operations.map(|limit| limit.sustained_per_second() as f64);
    let Some(requests) = requests else { return operations };
    let unit = u64::from(CountingRule::SSD.unit_bytes);
    let operations = operations.map(|limit| limit / requests.units(unit) as f64);
    let both = pacing.bytes.map(|limit| limit.sustained_per_second() as f64);
    // Each direction carries only its share of the requests.
    let link = |link: Option<u64>, percent: u8| {
        link.filter(|_| percent > 0).map(|link| link as f64 * 100.0 / f64::from(percent))
    };
    let reads = requests.read_percent.min(100);
    let links = [
        both,
        link(pacing.read_bytes_per_second, reads),
        link(pacing.write_bytes_per_second, 100 - reads),
    ];
    let bytes = links.into_iter().flatten().map(|bytes| bytes / requests.bytes as f64);
    operations.into_iter().chain(bytes).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{self, Source};

    fn setup(text: &str) -> Setup {
        let text = format!("title = \"t\"\nas_of = \"2021-07-31\"\nduration_s = 9\n{text}");
        scenario::read(&Source::new("s.toml", &text)).unwrap().cases.remove(0).setup
    }

    fn shown(levels: &[Level]) -> String {
        let each = levels.iter().map(|level| format!("{} {:.1}", level.kind.word(), level.iops));
        each.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn stripe_has_the_limits_of_its_volumes_and_of_its_instance() {
        let text = |more: &str| {
            format!(
                "[[instance]]\nname = \"i\"\nmbps = 500\nper_direction = true\n\
                 efficiency_percent = 88\n[[volume]]\nname = \"v\"\ncount = 10\niops = 1_000\n\
                 instance = \"i\"\n[[stripe]]\nname = \"s\"\nvolumes = \"v-*\"\nchunk_kib = 64\n\
                 [[client]]\nname = \"c\"\non = \"s\"\nthreads = 16\n{more}\n"
            )
        };
        let of = |more: &str| {
            let setup = setup(&text(more));
            shown(&of_client(&setup, &setup.clients[0]))
        };
        // 62.5 MB/s at 88 % are 55 MB/s.
        let one_way = "limit 10000.0, instance 3356.9, floor 3323.4";
        assert_eq!(of("block_kib = 16"), one_way);
        let both_ways = "limit 10000.0, instance 6713.9, floor 6646.7";
        assert_eq!(of("block_kib = 16\nread_percent = 50"), both_ways);
        // Four pieces of 64 KiB, an I/O each.
        assert_eq!(of("block_kib = 256"), "limit 2500.0, instance 209.8, floor 207.7");
    }

    #[test]
    fn burst_baseline_and_floor_of_volumes_with_credits() {
        let one = |volume: &str, client: &str| {
            let setup = setup(&format!(
                "[[volume]]\nname = \"v\"\n{volume}\n[[client]]\nname = \"c\"\non = \"v\"\n{client}"
            ));
            assert_eq!(of_client(&setup, &setup.clients[0]), of_volume(&setup, 0));
            shown(&of_client(&setup, &setup.clients[0]))
        };
        let gp2 = "type = \"gp2\"\nsize_gib = 100";
        assert_eq!(one(gp2, "block_kib = 16"), "burst 3000.0, baseline 300.0, floor 297.0");
        // Its throughput binds, and needs no credits: 128 MiB/s of requests of 1 MiB.
        assert_eq!(one(gp2, "block_kib = 1024"), "burst 128.0, baseline 75.0, floor 74.2");
        let st1 = "type = \"st1\"\nsize_gib = 1024";
        // A whole MiB for each small request anywhere; its own bytes for each in a row.
        assert_eq!(one(st1, "block_kib = 256"), "burst 250.0, baseline 40.0, floor 39.6");
        let row = "block_kib = 256\npattern = \"sequential\"";
        assert_eq!(one(st1, row), "burst 1000.0, baseline 160.0, floor 158.4");
        assert_eq!(one("", "block_kib = 16"), "", "nothing is promised where nothing is limited");
    }
}
