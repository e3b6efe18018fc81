//! Worlds that once revealed a fault, in files: they do not change with the generator of random
//! worlds. `cargo x mutations 30` restores faults that some of them detect.

use super::{NS_PER_S, judge_world};
use crate::scenario::setup::{
    Change, ChangeKind, ClientSetup, DeviceSetup, InstanceSetup, Load, PollerSetup, ServiceTime,
    Setup, Shape, ShareSetup, Target, Think, VolumeSetup, WindowSetup,
};
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::time::Duration;
use evenkeel_core::units::GIB;
use serde::Deserialize;

/// A world as its file has it. Times are nanoseconds, pairs are base and burst.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// Description of the fault that it revealed.
    found: String,
    /// Determines the behaviour of clients and device.
    seed: u64,
    duration: u64,
    timer_late: u64,
    #[serde(default)]
    pauses: Vec<(u64, u64)>,
    device: WrittenDevice,
    #[serde(default)]
    instances: Vec<WrittenInstance>,
    /// The volumes, each with its client.
    volumes: Vec<WrittenVolume>,
    #[serde(default)]
    changes: Vec<WrittenChange>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDevice {
    channels: Option<u32>,
    /// Service time of an empty request, and of each KiB.
    takes: (u64, u64),
    #[serde(default)]
    noise_ppm: u32,
    slots: Option<u32>,
    small_p99: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenInstance {
    iops: (u64, u64),
    bytes: (u64, u64),
    per_direction: bool,
    efficiency_ppm: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenVolume {
    instance: Option<u32>,
    tolerance_ms: u64,
    iops: Option<u64>,
    /// Refill and capacity.
    credit: Option<(u64, u64)>,
    bytes: Option<u64>,
    /// Reservation and weight.
    share: Option<(u64, u32)>,
    read_percent: u8,
    block: u32,
    #[serde(default)]
    sequential: bool,
    #[serde(default)]
    fua: bool,
    #[serde(default)]
    start: u64,
    /// Number of requests in flight; or, of one at a time, the mean pause; or requests per second.
    depth: Option<u16>,
    think: Option<u64>,
    per_second: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenChange {
    at: u64,
    stall: Option<u64>,
    /// The volume whose rate or balance changes.
    #[serde(default)]
    volume: u32,
    iops: Option<u64>,
    balance: Option<u64>,
}

impl Written {
    fn setup(&self) -> Setup {
        let volumes: Vec<VolumeSetup> = (0..).zip(&self.volumes).map(volume).collect();
        let changes = self.changes.iter().map(|change| change.setup(&volumes)).collect();
        Setup {
            duration_ns: self.duration,
            sample_ns: NS_PER_S,
            instances: (0..).zip(&self.instances).map(instance).collect(),
            stripes: Vec::new(),
            clients: (0..).zip(&self.volumes).map(client).collect(),
            device: self.device.setup(),
            poller: PollerSetup {
                late_mean_ns: self.timer_late,
                pauses: self.pauses.clone(),
                ..PollerSetup::default()
            },
            changes,
            volumes,
        }
    }
}

impl WrittenDevice {
    fn setup(&self) -> DeviceSetup {
        let (base_ns, ns_per_kib) = self.takes;
        let time = ServiceTime { base_ns, ns_per_kib };
        DeviceSetup {
            channels: self.channels,
            read: time,
            write: time,
            noise_ppm: self.noise_ppm,
            window: match (self.slots, self.small_p99) {
                (Some(slots), _) => Some(WindowSetup::Slots(slots)),
                (_, target) => target.map(WindowSetup::Adaptive),
            },
            ..DeviceSetup::ideal(base_ns)
        }
    }
}

fn instance((number, written): (u32, &WrittenInstance)) -> InstanceSetup {
    InstanceSetup {
        name: format!("i{number}"),
        kind: String::new(),
        baseline_iops: written.iops.0,
        iops_max: written.iops.1,
        baseline_bytes_per_second: written.bytes.0,
        bytes_per_second_max: written.bytes.1,
        per_direction: written.per_direction,
        efficiency_ppm: written.efficiency_ppm,
    }
}

fn volume((number, written): (u32, &WrittenVolume)) -> VolumeSetup {
    let credit = written
        .credit
        .map(|(refill_per_second, capacity)| CreditLimit { refill_per_second, capacity });
    VolumeSetup {
        name: format!("v{number}"),
        kind: "raw".to_owned(),
        size_bytes: 16 * GIB,
        pacing: Pacing {
            counting: CountingRule::SSD,
            tolerance: Duration::from_ms(written.tolerance_ms),
            operations: written.iops.map(|per_second| Limit { per_second, credit }),
            bytes: written.bytes.map(|per_second| Limit { per_second, credit: None }),
        },
        balances: Balances::default(),
        spec: None,
        instance: written.instance,
        share: written.share.map(|(reservation_per_second, weight)| ShareSetup {
            reservation_per_second,
            weight: Some(weight),
        }),
    }
}

fn client((number, written): (u32, &WrittenVolume)) -> ClientSetup {
    let closed = |depth, think| Load::Closed { threads: 1, depth, think };
    ClientSetup {
        name: format!("c{number}"),
        target: Target::Volume(number),
        shape: Shape {
            read_percent: written.read_percent,
            block_bytes: written.block,
            sequential: written.sequential,
            fua: written.fua,
            span_bytes: 16 * GIB,
        },
        load: match (written.depth, written.think, written.per_second) {
            (Some(depth), None, None) => closed(depth, Think::No),
            (None, Some(mean), None) => closed(1, Think::Exponential(mean)),
            (None, None, Some(per_second)) => Load::Open { per_second, poisson: true },
            _ => panic!("volume {number} has depth, think or per_second, one of them"),
        },
        start_ns: written.start,
        stop_ns: u64::MAX,
        program: None,
    }
}

impl WrittenChange {
    fn setup(&self, volumes: &[VolumeSetup]) -> Change {
        let kind = match (self.stall, self.balance, self.iops) {
            (Some(span), None, None) => ChangeKind::Stall(span),
            (None, Some(units), None) => {
                let balances = Balances { operations: Some(units), bytes: None };
                ChangeKind::SetBalances(self.volume, balances)
            }
            (None, None, Some(per_second)) => {
                let mut pacing = volumes[self.volume as usize].pacing;
                let limit = pacing.operations.as_mut();
                limit.expect("every volume has a limit").per_second = per_second;
                ChangeKind::SetLimits(self.volume, Box::new(pacing))
            }
            _ => panic!("at {} there is a stall, a balance or a rate, one of them", self.at),
        };
        Change { at_ns: self.at, kind }
    }
}

fn keeps_the_promise(text: &str) {
    let written: Written = toml::from_str(text).expect("a world as it is written down");
    let judged = judge_world(&written.setup(), written.seed).expect("the product takes it");
    let world = &judged.world;
    let report = &judged.report;
    assert!(report.pass(), "{world}\nit once found: {}\n{report}", written.found);
}

macro_rules! worlds {
    ($($name:ident $file:literal)*) => {
        $(
            #[test]
            fn $name() {
                keeps_the_promise(include_str!($file));
            }
        )*
    };
}

worlds! {
    world_90 "found/90.toml"
    world_97 "found/97.toml"
    world_414 "found/414.toml"
    world_480 "found/480.toml"
    world_486 "found/486.toml"
    world_601 "found/601.toml"
    world_1111 "found/1111.toml"
    world_1242 "found/1242.toml"
    world_1554 "found/1554.toml"
    world_1639 "found/1639.toml"
    world_2227 "found/2227.toml"
    world_2260 "found/2260.toml"
    world_2605 "found/2605.toml"
    world_4345 "found/4345.toml"
    world_7510 "found/7510.toml"
}
