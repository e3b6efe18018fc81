//! The sold amounts, compared with an oracle that adds up everything independently.

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::{
    Costs, DeviceFloor, DomainFloor, Figure, LinearCost, Oversell, Resource, Strain,
};
use evenkeel_core::time::Duration;
use evenkeel_core::volume::{VolumeChange, VolumeRequest, VolumeType};
use evenkeel_wire::agent::{HostAddress, Measured};
use proptest::prelude::*;

use super::*;

/// A device on which a byte takes 1 ns and a request nothing more: 16 KiB take 16,384 ns. 80 % of
/// `iops` x 1.25 of them are for sale.
fn measured(iops: u64) -> Capacity {
    let cost = LinearCost { base: Duration::ZERO, byte_ps: 1_000 };
    let costs = Costs { read: cost, write: cost };
    Capacity::Measured(Box::new(Measured {
        calibration: "cal-test".into(),
        date: "2026-11-21T04:00:00.000Z".into(),
        device: DeviceFloor { time_ns_per_second: iops * 16_384 * 5 / 4, costs },
        domain: DomainFloor::UNLIMITED,
        nodes: Vec::new(),
        strained: Vec::new(),
        left_ppm: 1_000_000,
    }))
}

fn vol(number: u8) -> VolumeId {
    VolumeId::from_bits(number.into())
}

const HOST: u128 = 7;

/// A model with one host, and the steps of its caller.
struct World {
    settings: Settings,
    capacity: Capacity,
    model: Model,
    now: UnixMs,
}

impl World {
    fn selling(capacity: Capacity) -> Self {
        let settings = Settings { zones: vec!["z".into()], ..Settings::default() };
        let mut world = Self { settings, capacity, model: Model::default(), now: UnixMs(1) };
        world.keep_books();
        let id = InstanceId::from_bits(HOST);
        let instance_type = "m5.large".into();
        let address = HostAddress::Local;
        let tags = Tags::new();
        world.run(&Command::RegisterHost { id, zone: None, instance_type, address, tags }).unwrap();
        world
    }

    /// Keeps the books for another capacity, as the plane does when the data plane reports one.
    fn keep_books(&mut self) {
        self.model.keep_books(&self.settings, &self.capacity);
    }

    /// Decides and applies, without the data plane's part.
    fn begin(&mut self, command: &Command) -> Result<Option<VolumeId>, Refusal> {
        self.now = self.now.plus_ms(1);
        let decision = self.model.decide(&self.settings, &self.capacity, command, self.now)?;
        let volume = decision.volume();
        decision.events.into_iter().for_each(|event| self.model.apply(event));
        Ok(volume)
    }

    fn settle(&mut self, id: VolumeId, done: bool) {
        let settled = if done { Settled::Done } else { Settled::Failed("no") };
        let events = self.model.settle(&self.settings, id, settled, self.now);
        events.into_iter().for_each(|event| self.model.apply(event));
    }

    fn run(&mut self, command: &Command) -> Result<(), Refusal> {
        let volume = self.begin(command)?;
        if let Some(id) = volume {
            self.settle(id, true);
        }
        Ok(())
    }

    fn line(&self) -> Line {
        self.model.books(&self.settings, &self.capacity).lines()[0]
    }
}

fn create(number: u8, volume_type: VolumeType, size_gib: u32, iops: Option<u32>) -> Command {
    let throughput_mibps = None;
    let multi_attach = false;
    let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
    let zone = "z".into();
    let tags = Tags::new();
    Command::CreateVolume {
        id: vol(number),
        request,
        begins: Begins::default(),
        zone,
        tags,
        token: None,
    }
}

fn modify(number: u8, change: VolumeChange) -> Command {
    Command::ModifyVolume { id: vol(number), change }
}

fn to_iops(iops: u32) -> VolumeChange {
    VolumeChange { iops: Some(iops), ..VolumeChange::default() }
}

fn attach(number: u8) -> Command {
    let device = format!("/dev/sd{}", char::from(b'f' + number));
    Command::AttachVolume { id: vol(number), instance: InstanceId::from_bits(HOST), device }
}

fn short(result: Result<(), Refusal>) -> Shortfall {
    match result {
        Err(Refusal::Capacity(shortfall)) => *shortfall,
        other => panic!("not short: {other:?}"),
    }
}

#[test]
fn unknown_capacity_refuses_nothing() {
    let mut world = World::selling(Capacity::Unknown);
    for number in 0..4 {
        world.run(&create(number, VolumeType::Io2, 1_000, Some(256_000))).unwrap();
    }
    let books = world.model.books(&world.settings, &world.capacity);
    assert!(!books.is_limited() && books.lines().is_empty());
    // Once the capacity is known, existing volumes stay, and the shortage is reported.
    world.capacity = measured(10_000);
    assert_eq!(world.line().sold, 4 * 256_000);
    assert_eq!(world.line().short_by(), 4 * 256_000 - 10_000);
    assert_eq!(short(world.run(&create(9, VolumeType::Io2, 10, Some(100)))).left, 0);
    world.run(&create(9, VolumeType::Standard, 10, None)).unwrap();
    world.run(&attach(1)).unwrap();
    world.run(&modify(0, to_iops(200_000))).unwrap();
    world.run(&Command::DeleteVolume { id: vol(0) }).unwrap();
}

#[test]
fn volumes_fit_to_the_last_io_and_a_refusal_names_one_that_fits() {
    let mut world = World::selling(measured(10_000));
    world.run(&create(0, VolumeType::Io2, 100, Some(6_000))).unwrap();
    let shortfall = short(world.run(&create(1, VolumeType::Io2, 100, Some(4_001))));
    assert_eq!((shortfall.source, shortfall.resource), (Source::Calibration, Resource::DeviceTime));
    assert_eq!((shortfall.needed, shortfall.left), (4_001, 4_000));
    assert_eq!(shortfall.fits.unwrap().iops, Some(4_000));
    world.run(&create(1, VolumeType::Io2, 100, Some(4_000))).unwrap();
    let Line { sold, for_sale, .. } = world.line();
    assert_eq!((sold, for_sale), (10_000, 10_000));
    // For a modification, its present reservation counts as left for it.
    let shortfall = short(world.run(&modify(1, to_iops(4_001))));
    assert_eq!((shortfall.needed, shortfall.left), (4_001, 4_000));
    world.run(&modify(0, to_iops(5_000))).unwrap();
    world.run(&modify(1, to_iops(5_000))).unwrap();
    assert_eq!(short(world.run(&create(2, VolumeType::Io1, 10, Some(100)))).fits, None);
    world.run(&Command::DeleteVolume { id: vol(0) }).unwrap();
    assert_eq!(world.line().sold, 5_000);
}

/// Nodes with this number of nanoseconds of processor time per second, of which an I/O of any
/// length takes one, and a device with ten times the time that all of them can use.
fn cluster(nodes: &[u64]) -> Capacity {
    let Capacity::Measured(measured) = measured(100_000) else { unreachable!() };
    let cost = LinearCost { base: Duration::from_ns(1), byte_ps: 0 };
    let domain = |ns: u64| DomainFloor {
        cpu_ns_per_second: Some(ns),
        cpu_costs: Costs { read: cost, write: cost },
        ..DomainFloor::UNLIMITED
    };
    Capacity::Measured(Box::new(Measured {
        domain: domain(nodes.iter().sum()),
        nodes: nodes.iter().map(|ns| domain(*ns)).collect(),
        ..*measured
    }))
}

#[test]
fn load_of_the_largest_node_must_fit_on_the_others() {
    let io2 = |number, iops| create(number, VolumeType::Io2, 1_000, Some(iops));
    let mut world = World::selling(cluster(&[10_000, 5_000, 5_000]));
    world.run(&io2(0, 5_000)).unwrap();
    // Eight tenths of two nodes with 5,000 each.
    let shortfall = short(world.run(&io2(1, 4_000)));
    assert_eq!((shortfall.row, shortfall.resource), (Row::WithoutNode, Resource::Cpu));
    assert_eq!((shortfall.needed, shortfall.left), (4_000, 3_000));
    assert_eq!(shortfall.fits.unwrap().iops, Some(3_000));
    world.run(&io2(1, 3_000)).unwrap();
    let lines = world.model.books(&world.settings, &world.capacity).lines();
    let lines: Vec<_> =
        lines.iter().map(|line| (line.row, line.resource, line.sold, line.for_sale)).collect();
    let time = Resource::DeviceTime;
    let cpu = Resource::Cpu;
    assert_eq!(
        lines,
        [
            (Row::Present, time, 8_000, 100_000),
            (Row::Present, cpu, 8_000, 16_000),
            (Row::WithoutNode, cpu, 8_000, 8_000)
        ]
    );
    // The largest node is lost permanently: less may be sold than is.
    world.capacity = cluster(&[10_000, 5_000]);
    world.keep_books();
    let lines = world.model.books(&world.settings, &world.capacity).lines();
    assert_eq!((lines[2].row, lines[2].short_by()), (Row::WithoutNode, 4_000));
    // A single node has no takeover.
    world.capacity = cluster(&[10_000]);
    world.keep_books();
    assert_eq!(world.model.books(&world.settings, &world.capacity).lines().len(), 2);
}

#[test]
fn volume_must_fit_on_one_node() {
    let mut world = World::selling(cluster(&[1_000; 64]));
    for number in 0..20 {
        world.run(&create(number, VolumeType::Io2, 1_000, Some(800))).unwrap();
    }
    let shortfall = short(world.run(&create(20, VolumeType::Io2, 1_000, Some(801))));
    assert_eq!((shortfall.row, shortfall.resource), (Row::OneNode, Resource::Cpu));
    assert_eq!(shortfall.fits.unwrap().iops, Some(800));
}

#[test]
fn states_of_a_pool_have_rows() {
    let io2 = |number, iops| create(number, VolumeType::Io2, 1_000, Some(iops));
    // 10,000 are for sale when all is well. Degraded, a request takes twice the time, and 95 of 100
    // parts of the present capacity are for sale: 7,600. During recovery it is 8,550.
    let Capacity::Measured(whole) = measured(10_000) else { unreachable!() };
    let slow = LinearCost { base: Duration::ZERO, byte_ps: 2_000 };
    let degraded = DeviceFloor {
        time_ns_per_second: 8_000 * 2 * 16_384,
        costs: Costs { read: slow, write: slow },
    };
    let recovering = DeviceFloor { time_ns_per_second: 9_000 * 16_384, ..whole.device };
    let strained = |left_ppm| {
        Capacity::Measured(Box::new(Measured {
            strained: vec![(Strain::Degraded, degraded), (Strain::Recovering, recovering)],
            left_ppm,
            ..*whole.clone()
        }))
    };
    let mut world = World::selling(strained(1_000_000));
    world.run(&io2(0, 5_000)).unwrap();
    let shortfall = short(world.run(&io2(1, 2_601)));
    assert_eq!(shortfall.row, Row::Strained(Strain::Degraded));
    assert_eq!((shortfall.resource, shortfall.left), (Resource::DeviceTime, 2_600));
    assert_eq!(shortfall.fits.unwrap().iops, Some(2_600));
    world.run(&io2(1, 2_600)).unwrap();
    let lines = world.model.books(&world.settings, &world.capacity).lines();
    assert_eq!(
        lines.iter().map(|line| (line.row, line.sold, line.for_sale)).collect::<Vec<_>>(),
        [
            (Row::Present, 7_600, 10_000),
            (Row::Strained(Strain::Degraded), 7_600, 7_600),
            (Row::Strained(Strain::Recovering), 7_600, 8_550),
        ]
    );
    // The device is degraded and measured slower: that is not subtracted twice.
    world.capacity = strained(700_000);
    world.keep_books();
    let lines = world.model.books(&world.settings, &world.capacity).lines();
    assert_eq!(lines.iter().map(|line| line.for_sale).collect::<Vec<_>>(), [7_000, 7_600, 8_550]);
    let shortfall = short(world.run(&io2(2, 100)));
    assert_eq!(shortfall.row, Row::Present);
}

#[test]
fn refusal_suggests_a_volume_in_the_units_of_its_type() {
    let mut world = World::selling(measured(10_000));
    // gp3: 125 MiB/s are worth 8,000 I/Os; fewer IOPS first, then less throughput.
    let gp3 = |iops, mibps| {
        let mut command = create(0, VolumeType::Gp3, 100, Some(iops));
        let Command::CreateVolume { request, .. } = &mut command else { unreachable!() };
        request.throughput_mibps = Some(mibps);
        command
    };
    let bought = |shortfall: Shortfall| {
        shortfall.fits.map(|spec| (spec.iops.unwrap(), spec.throughput_mibps.unwrap()))
    };
    // Only bytes cost device time here: 156.25 MiB/s are for sale, and IOPS cost nothing.
    assert_eq!(bought(short(world.run(&gp3(4_000, 1_000)))), Some((3_000, 156)));
    world.run(&create(1, VolumeType::Gp2, 700, None)).unwrap();
    assert_eq!(bought(short(world.run(&gp3(3_000, 125)))), None, "it takes 8,000, 7,900 are left");
    // gp2: the largest size.
    let shortfall = short(world.run(&create(2, VolumeType::Gp2, 4_000, None)));
    assert_eq!(shortfall.fits.map(|spec| spec.size_gib), Some(7_900 / 3));
    // st1: the largest size, too, by its base throughput.
    let fits = short(world.run(&create(2, VolumeType::St1, 16_000, None))).fits.unwrap();
    let base = |size_gib: u32| u64::from(size_gib) * 40 * 1_024;
    assert!((7_897 * 16_384..=7_900 * 16_384).contains(&base(fits.size_gib)), "{fits:?}");
    // An existing volume does not shrink.
    world.run(&create(2, VolumeType::Gp2, 2_000, None)).unwrap();
    let grow = VolumeChange { size_gib: Some(16_000), ..VolumeChange::default() };
    let shortfall = short(world.run(&modify(1, grow)));
    assert_eq!(shortfall.fits.map(|spec| spec.size_gib), Some(1_333));
    world.capacity = measured(2_000);
    assert_eq!(short(world.run(&modify(1, grow))).fits.map(|spec| spec.size_gib), Some(700));
}

#[test]
fn oversold_type_counts_divided_by_its_factor() {
    let mut world = World::selling(measured(10_000));
    world.settings.oversell.insert(VolumeType::Io1, "2.5".parse().unwrap());
    world.run(&create(0, VolumeType::Io1, 1_000, Some(24_999))).unwrap();
    assert_eq!(world.line().sold, 10_000);
    let shortfall = short(world.run(&create(1, VolumeType::Io1, 100, Some(100))));
    assert_eq!(shortfall.oversell, Oversell::from_ppm(2_500_000).unwrap());
    assert_eq!((shortfall.needed, shortfall.left), (40, 0));
    // Changed to a type that is sold once, it needs all of it.
    let change = VolumeChange {
        volume_type: Some(VolumeType::Io2),
        iops: Some(10_001),
        ..VolumeChange::default()
    };
    assert_eq!(short(world.run(&modify(0, change))).needed, 10_001);
    world.run(&modify(0, VolumeChange { iops: Some(10_000), ..change })).unwrap();
}

#[test]
fn an_operator_s_figure_sells_less_than_was_measured_and_never_more() {
    let mut world = World::selling(Capacity::Unknown);
    world.settings.figure = Some(Figure::new(4_000, 100).unwrap());
    world.run(&create(0, VolumeType::Io2, 100, Some(4_000))).unwrap();
    let shortfall = short(world.run(&create(1, VolumeType::Io2, 100, Some(100))));
    assert_eq!((shortfall.source, shortfall.left), (Source::Operator, 0));
    world.capacity = measured(3_000);
    let lines = world.model.books(&world.settings, &world.capacity).lines();
    let short_by: Vec<_> = lines.iter().map(|line| (line.source, line.short_by())).collect();
    assert_eq!(short_by, [(Source::Calibration, 1_000), (Source::Operator, 0)]);
    world.capacity = measured(1_000_000);
    let shortfall = short(world.run(&create(1, VolumeType::Io2, 100, Some(100))));
    assert_eq!(shortfall.source, Source::Operator);
}

#[test]
fn unsettled_change_keeps_the_old_reservation() {
    let mut world = World::selling(measured(10_000));
    world.run(&create(0, VolumeType::Io2, 100, Some(9_000))).unwrap();
    world.begin(&modify(0, to_iops(1_000))).unwrap();
    assert_eq!(world.line().sold, 9_000, "it may still be taken back");
    assert_eq!(short(world.run(&create(1, VolumeType::Io2, 100, Some(2_000)))).left, 1_000);
    world.settle(vol(0), false);
    assert_eq!(world.line().sold, 9_000);
    world.begin(&modify(0, to_iops(1_000))).unwrap();
    world.settle(vol(0), true);
    assert_eq!(world.line().sold, 1_000);
    // The deletion of a volume may fail.
    world.begin(&Command::DeleteVolume { id: vol(0) }).unwrap();
    assert_eq!(world.line().sold, 1_000);
    world.settle(vol(0), true);
    assert_eq!(world.line().sold, 0);
}

#[derive(Clone, Debug)]
enum SaleStep {
    Create(u8, usize, u32, u32),
    Modify(u8, u32, u32),
    Convert(u8, usize),
    Attach(u8),
    Detach(u8),
    Delete(u8),
    /// For sale from now on.
    Capacity(u64),
}

fn step() -> impl Strategy<Value = SaleStep> {
    let volume = || 0_u8..8;
    let size = 125_u32..3_000;
    let iops = 100_u32..8_000;
    let of_type = || 0..VolumeType::ALL.len();
    prop_oneof![
        4 => (volume(), of_type(), size.clone(), iops.clone())
            .prop_map(|(v, t, s, i)| SaleStep::Create(v, t, s, i)),
        3 => (volume(), size, iops).prop_map(|(v, s, i)| SaleStep::Modify(v, s, i)),
        2 => (volume(), of_type()).prop_map(|(v, t)| SaleStep::Convert(v, t)),
        1 => volume().prop_map(SaleStep::Attach),
        1 => volume().prop_map(SaleStep::Detach),
        2 => volume().prop_map(SaleStep::Delete),
        1 => (0_u64..30_000).prop_map(SaleStep::Capacity),
    ]
}

fn sells_iops(volume_type: VolumeType) -> bool {
    matches!(volume_type, VolumeType::Gp3 | VolumeType::Io1 | VolumeType::Io2)
}

impl SaleStep {
    fn command(&self, model: &Model) -> Option<Command> {
        Some(match *self {
            Self::Create(v, t, size, iops) => {
                let volume_type = VolumeType::ALL[t];
                let iops = Some(iops.max(3_000)).filter(|_| sells_iops(volume_type));
                create(v, volume_type, size.min(1_024), iops)
            }
            Self::Modify(v, size, iops) => {
                let sells = model
                    .volumes
                    .get(&vol(v))
                    .is_some_and(|volume| sells_iops(volume.spec.volume_type));
                let iops = Some(iops).filter(|_| sells);
                modify(v, VolumeChange { size_gib: Some(size), iops, ..VolumeChange::default() })
            }
            Self::Convert(v, t) => {
                let volume_type = Some(VolumeType::ALL[t]);
                modify(v, VolumeChange { volume_type, ..VolumeChange::default() })
            }
            Self::Attach(v) => attach(v),
            Self::Detach(v) => Command::DetachVolume { id: vol(v), instance: None, device: None },
            Self::Delete(v) => Command::DeleteVolume { id: vol(v) },
            Self::Capacity(_) => return None,
        })
    }
}

/// Returns the reservation of a volume in bytes per second, by the published rules only: on this
/// device only bytes cost device time.
fn bytes_reserved(spec: &VolumeSpec) -> u64 {
    let iops = u64::from(spec.iops.unwrap_or(0));
    let size = u64::from(spec.size_gib);
    let mib = 1 << 20;
    match spec.volume_type {
        VolumeType::Standard => 0,
        VolumeType::St1 => (size * 40 * 1_024).min(500 * mib),
        VolumeType::Sc1 => (size * 12 * 1_024).min(192 * mib),
        VolumeType::Gp2 => (iops * 16_384).min(if size <= 170 { 128 * mib } else { 250 * mib }),
        VolumeType::Gp3 => u64::from(spec.throughput_mibps.unwrap()) * mib,
        VolumeType::Io1 | VolumeType::Io2 => iops * 16_384,
    }
}

/// Returns the least and the largest sum of all reservations. Admission rounds each up to whole
/// requests, which adds less than a byte for each.
fn bounds(world: &World) -> (u64, u64) {
    world.model.volumes.values().fold((0, 0), |(low, high), volume| {
        let bytes = bytes_reserved(&volume.spec);
        let requests = world.settings.rules.reserved(&volume.spec).operations_per_second;
        (low + bytes, high + bytes + u64::from(requests))
    })
}

proptest! {
    /// After any history: an admitted volume fits into the capacity for sale at that moment, a
    /// volume refused for capacity does not, no volume loses its reservation, and when all volumes
    /// are deleted everything can be sold again.
    #[test]
    fn no_history_sells_more_than_there_is(
        steps in prop::collection::vec((step(), prop::bool::weighted(0.9)), 1..60),
    ) {
        let mut for_sale = 12_000_u64;
        let mut world = World::selling(measured(for_sale));
        for (step, done) in steps {
            let Some(command) = step.command(&world.model) else {
                let SaleStep::Capacity(iops) = step else { unreachable!() };
                let before = world.model.clone();
                for_sale = iops;
                world.capacity = measured(iops);
                world.keep_books();
                prop_assert_eq!(&world.model, &before);
                continue;
            };
            let (before, _) = bounds(&world);
            match world.begin(&command) {
                Ok(Some(id)) => {
                    let (after, _) = bounds(&world);
                    prop_assert!(after <= before || after <= for_sale * 16_384, "{:?}", command);
                    world.settle(id, done);
                }
                Ok(None) => {}
                Err(Refusal::Capacity(shortfall)) => {
                    prop_assert!(
                        matches!(
                            step,
                            SaleStep::Create(..) | SaleStep::Modify(..) | SaleStep::Convert(..)
                        ),
                        "{:?} sells nothing", step
                    );
                    let asked = bytes_reserved(&shortfall.asked);
                    let has = match &command {
                        Command::ModifyVolume { id, .. } => {
                            bytes_reserved(&world.model.volumes[id].spec)
                        }
                        _ => 0,
                    };
                    let (_, high) = bounds(&world);
                    let rounded = u64::from(shortfall.reserves.operations_per_second);
                    prop_assert!(high - has + asked + rounded > for_sale * 16_384);
                    prop_assert!(shortfall.needed > shortfall.left);
                    if let Some(fits) = shortfall.fits {
                        let fits = bytes_reserved(&fits);
                        prop_assert!(fits <= asked);
                        prop_assert!(before - has + fits <= for_sale * 16_384 || fits <= has);
                    }
                }
                Err(_) => {}
            }
            // The books equal the sum: in I/Os of 16 KiB, rounded up.
            let (low, high) = bounds(&world);
            let sold = world.line().sold;
            world.model.invariants();
            prop_assert!((low.div_ceil(16_384)..=high.div_ceil(16_384)).contains(&sold));
        }
        let ids: Vec<VolumeId> = world.model.volumes.keys().copied().collect();
        for id in ids {
            let instance = None;
            let _ = world.run(&Command::DetachVolume { id, instance, device: None });
            world.run(&Command::DeleteVolume { id }).unwrap();
        }
        world.capacity = measured(12_000);
        world.run(&create(0, VolumeType::Io2, 1_000, Some(12_000))).unwrap();
        short(world.run(&create(1, VolumeType::Io2, 1_000, Some(100))));
    }
}

#[test]
fn volume_in_the_bin_reserves_nothing_and_is_restored_only_if_it_fits() {
    let mut world = World::selling(measured(10_000));
    world.settings.recycle_bin_days = 1;
    world.run(&create(0, VolumeType::Io2, 100, Some(10_000))).unwrap();
    world.begin(&Command::DeleteVolume { id: vol(0) }).unwrap();
    world.run(&create(1, VolumeType::Io2, 100, Some(10_000))).unwrap();
    let restore = Command::RestoreVolume { id: vol(0), error: None };
    let refused = world.begin(&restore).unwrap_err();
    assert!(matches!(refused, Refusal::Capacity(_)), "{refused:?}");
    world.settings.recycle_bin_days = 0;
    world.run(&Command::DeleteVolume { id: vol(1) }).unwrap();
    world.begin(&restore).unwrap();
}

#[test]
fn hosts_that_are_no_longer_shown_give_their_places_to_others() {
    let mut world = World::selling(Capacity::Unknown);
    let register = |number: u128| Command::RegisterHost {
        id: InstanceId::from_bits(number),
        zone: None,
        instance_type: "m5.large".into(),
        address: HostAddress::Local,
        tags: Tags::new(),
    };
    let all = 100..100 + HOSTS_MAX as u128;
    while world.model.hosts.len() < HOSTS_MAX {
        world.begin(&register(100 + world.model.hosts.len() as u128)).unwrap();
    }
    assert_eq!(world.begin(&register(9)).map(drop), Err(Refusal::TooManyHosts));
    let ids = all.map(InstanceId::from_bits).filter(|id| world.model.hosts.contains_key(id));
    let ids = ids.collect();
    let state = HostState::Terminated { at: world.now };
    world.begin(&Command::SetHostState { ids, state }).unwrap();
    assert_eq!(world.begin(&register(9)).map(drop), Err(Refusal::TooManyHosts));
    world.now = world.now.plus_ms(10 * TERMINATED_SHOWN_MS);
    world.begin(&register(9)).unwrap();
}
