//! The index and books of the model, compared with full sums and scans after every event of random
//! histories.

use std::collections::BTreeSet;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::admission::{Costs, DeviceFloor, LinearCost, Strain};
use evenkeel_core::time::Duration;
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_core::volume::Rules;
use evenkeel_wire::agent::HostAddress;
use proptest::prelude::*;

use super::*;
use crate::model::Filled;
use crate::model::{
    Attachment, AttachmentState, FastRestore, Host, HostState, Modification, ModificationPhase,
    Phase, Snapshot, SnapshotPhase, Tags, TierOperation, Tiering, Token,
};

const HOSTS: u128 = 3;
const DEVICES: [&str; 4] = ["/dev/sdf", "/dev/sdf1", "/dev/sdg", "xvdh"];

fn spec() -> impl Strategy<Value = VolumeSpec> {
    let of_type = 0..VolumeType::ALL.len();
    (of_type, 125_u32..1_024, 3_000_u32..6_000).prop_map(|(of_type, size_gib, iops)| {
        let volume_type = VolumeType::ALL[of_type];
        let sells = matches!(volume_type, VolumeType::Gp3 | VolumeType::Io1 | VolumeType::Io2);
        let iops = sells.then_some(iops);
        let throughput_mibps = None;
        let multi_attach = false;
        let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
        Rules::newest().resolve(&request).unwrap()
    })
}

fn phase() -> impl Strategy<Value = Phase> {
    prop_oneof![
        1 => Just(Phase::Creating),
        3 => Just(Phase::Ready),
        1 => Just(Phase::Deleting),
        1 => Just(Phase::Error("gone".into())),
        1 => Just(Phase::Binned { entered: UnixMs(3), until: UnixMs(4) }),
    ]
}

fn modification() -> impl Strategy<Value = Option<Modification>> {
    let phase = prop_oneof![
        Just(ModificationPhase::Modifying),
        Just(ModificationPhase::Completed { ended: UnixMs(2) }),
    ];
    prop::option::of((spec(), spec(), phase).prop_map(|(original, target, phase)| Modification {
        original,
        target,
        started: UnixMs(1),
        phase,
    }))
}

/// Returns attachments to each host at most once, as in the model.
fn attachments() -> impl Strategy<Value = Vec<Attachment>> {
    let state = prop_oneof![
        Just(AttachmentState::Attached),
        Just(AttachmentState::Attaching),
        Just(AttachmentState::Detaching),
    ];
    let one = (any::<bool>(), 0..DEVICES.len(), state);
    prop::collection::vec(one, 3).prop_map(|all| {
        let hosts = (0..HOSTS).map(InstanceId::from_bits).zip(all);
        let is = hosts.filter(|(_, (is, ..))| *is);
        is.map(|(instance, (_, device, state))| Attachment {
            instance,
            device: DEVICES[device].into(),
            state,
            attached: UnixMs(1),
            delete_on_termination: false,
        })
        .collect()
    })
}

fn vol(number: u8) -> VolumeId {
    VolumeId::from_bits(number.into())
}

fn tiering(data: ByteCount) -> Tiering {
    let last = match data.0 % 3 {
        0 => TierOperation::Archive,
        1 => TierOperation::TemporaryRestore { until: UnixMs(4) },
        _ => TierOperation::PermanentRestore,
    };
    Tiering { last, began: UnixMs(3), archived: UnixMs(2) }
}

fn event() -> impl Strategy<Value = Event> {
    let number = || 0_u8..8;
    let volume = (number(), spec(), phase(), modification(), attachments()).prop_map(
        |(number, spec, phase, modification, attachments)| {
            let copy = number % 3 == 1;
            Event::Volume(Volume {
                source: copy.then(|| vol(number / 2)),
                phase,
                attachments,
                modification,
                ..Volume::new(vol(number), "z", spec, UnixMs(1))
            })
        },
    );
    let name = || (0_u8..12).prop_map(|name| format!("t{name}"));
    let token = (name(), number(), 0_u64..6).prop_map(|(name, volume, used)| {
        let volume = vol(volume);
        let used = UnixMs(used);
        Event::Token(name, Token { fingerprint: "f".into(), volume, used })
    });
    let snapshot = (number(), number(), 0_u64..7, 0_u64..9).prop_map(|(id, of, phase, data)| {
        let data = ByteCount(data);
        let ended = UnixMs(2);
        let entered = UnixMs(3);
        let until = UnixMs(4);
        let fast = FastRestore { since: UnixMs(1), credits: 0, counted: UnixMs(1) };
        let id_of = SnapshotId::from_bits(id.into());
        Event::Snapshot(Snapshot {
            phase: match phase {
                0 => SnapshotPhase::Pending,
                1 => SnapshotPhase::Completed { data, ended },
                2 => SnapshotPhase::Deleting { data },
                3 => SnapshotPhase::Filling,
                4 => SnapshotPhase::Copying { data },
                5 => SnapshotPhase::Binned { data, ended, entered, until },
                _ => SnapshotPhase::Error("why".into()),
            },
            filled: (phase == 3).then(|| Filled {
                parent: None,
                timeout_min: 60,
                token: Some((id.to_string(), String::new())),
            }),
            for_volume: (of % 3 == 1).then(|| vol(of)),
            fast_restores: (of % 3 == 2).then(|| ("a".to_owned(), fast)).into_iter().collect(),
            tiering: (of % 2 == 0).then(|| tiering(data)),
            ..Snapshot::new(id_of, vol(of), 1, UnixMs(1))
        })
    });
    let gone = |number: u8| Event::SnapshotGone(SnapshotId::from_bits(number.into()));
    let host = (0..HOSTS).prop_map(|number| {
        Event::Host(Host {
            id: InstanceId::from_bits(number),
            instance_type: "m5.large".into(),
            address: HostAddress::Local,
            registered: UnixMs(1),
            state: HostState::Running,
            tags: Tags::new(),
            zone: None,
        })
    });
    prop_oneof![
        6 => volume,
        3 => number().prop_map(|number| Event::VolumeGone(vol(number))),
        2 => token,
        1 => name().prop_map(Event::TokenGone),
        1 => host,
        2 => snapshot,
        1 => number().prop_map(gone),
    ]
}

/// Returns costs and floors that change independently of each other.
fn capacity() -> impl Strategy<Value = Capacity> {
    let cost = || {
        (0_u64..3, 0_u32..3).prop_map(|(us, byte_ns)| LinearCost {
            base: Duration::from_us(us),
            byte_ps: byte_ns * 1_000 + 1,
        })
    };
    let costs = || (cost(), cost()).prop_map(|(read, write)| Costs { read, write });
    let cpus = || prop::collection::vec(1_u64..4, 0..4);
    let floors = (1_u64..5, 0_u32..=1_000_000, cpus(), 0_usize..3);
    let measured = (costs(), costs(), floors).prop_map(
        |(costs, cpu_costs, (seconds, left_ppm, cpus, strains))| {
            let domain = |seconds| DomainFloor {
                cpu_ns_per_second: Some(seconds * 1_000_000_000),
                cpu_costs,
                ..DomainFloor::UNLIMITED
            };
            let sum = if cpus.is_empty() { seconds } else { cpus.iter().sum() };
            Capacity::Measured(Box::new(Measured {
                calibration: "cal-test".into(),
                date: "2026-11-21T04:00:00.000Z".into(),
                device: DeviceFloor { time_ns_per_second: seconds * 1_000_000_000, costs },
                domain: domain(sum),
                nodes: cpus.into_iter().map(domain).collect(),
                strained: [Strain::Degraded, Strain::Recovering][..strains]
                    .iter()
                    .map(|strain| {
                        // In these states requests have other costs, too, not only less time.
                        let costs = Costs { read: costs.write, write: costs.read };
                        let time_ns_per_second = seconds * 500_000_000;
                        (*strain, DeviceFloor { time_ns_per_second, costs })
                    })
                    .collect(),
                left_ppm,
            }))
        },
    );
    prop_oneof![1 => Just(Capacity::Unknown), 4 => measured]
}

fn terms() -> impl Strategy<Value = (Settings, Capacity)> {
    let figure = prop::option::of(Just(Figure::new(10_000, 500).unwrap()));
    let oversold = prop::option::of(1_000_000_u32..3_000_000);
    (figure, oversold, capacity()).prop_map(|(figure, oversold, capacity)| {
        let oversold = oversold.and_then(Oversell::from_ppm);
        let settings = Settings {
            zones: vec!["z".into()],
            figure,
            oversell: oversold.map(|times| (VolumeType::Gp3, times)).into_iter().collect(),
            ..Settings::default()
        };
        (settings, capacity)
    })
}

#[derive(Clone, Debug)]
enum BooksStep {
    Apply(Box<Event>),
    /// Keep books for these terms from now on.
    Keep(Box<(Settings, Capacity)>),
    /// Change the available part of the measured capacity.
    Drift(u32),
}

fn step() -> impl Strategy<Value = BooksStep> {
    prop_oneof![
        12 => event().prop_map(|event| BooksStep::Apply(Box::new(event))),
        1 => terms().prop_map(|terms| BooksStep::Keep(terms.into())),
        2 => (0_u32..1_000_000).prop_map(BooksStep::Drift),
    ]
}

/// Returns a volume's sold part of a resource's time, by the definition: half of its requests are
/// writes.
fn time(settings: &Settings, volume: &Volume, costs: Costs) -> u128 {
    let (reserved, oversell) = settings.reserved(volume);
    let length = u128::from(reserved.io_bytes());
    let ns = |cost: LinearCost| {
        u128::from(cost.base.ns) + (length * u128::from(cost.byte_ps)).div_ceil(1_000)
    };
    let pairs = u128::from(reserved.operations_per_second) * (ns(costs.read) + ns(costs.write));
    (pairs * 500_000).div_ceil(u128::from(oversell.ppm()))
}

/// Returns the rows by their definition.
fn floors(measured: &Measured) -> Vec<(Row, DeviceFloor, DomainFloor)> {
    let device = measured.device_now();
    let mut rows = vec![(Row::Present, device, measured.domain)];
    let mut cpus: Vec<u64> =
        measured.nodes.iter().filter_map(|node| node.cpu_ns_per_second).collect();
    cpus.sort_unstable();
    let cpu = |ns| DomainFloor { cpu_ns_per_second: Some(ns), ..measured.domain };
    if let [others @ .., largest] = &cpus[..]
        && !others.is_empty()
    {
        rows.push((Row::WithoutNode, device, cpu(others.iter().sum())));
        rows.push((Row::OneNode, device, cpu(*largest)));
    }
    let unlimited = DomainFloor::UNLIMITED;
    let strained = |(of, device): &(Strain, DeviceFloor)| (Row::Strained(*of), *device, unlimited);
    rows.extend(measured.strained.iter().map(strained));
    rows
}

fn compare_books(model: &Model, settings: &Settings, capacity: &Capacity) {
    assert!(model.keeps_books(settings, capacity));
    let books = model.books(settings, capacity);
    assert!(matches!(books, Cow::Borrowed(_)), "they are kept");
    let measured = match capacity {
        Capacity::Measured(measured) => floors(measured),
        Capacity::Unknown => Vec::new(),
    };
    let figure =
        settings.figure.map(|figure| (Row::Present, figure.floor(), DomainFloor::UNLIMITED));
    let floors: Vec<_> = measured.into_iter().chain(figure).collect();
    assert_eq!(books.books.len(), floors.len());
    for (book, (row, device, domain)) in books.books.iter().zip(floors) {
        assert_eq!((book.row, *book.ledger.device()), (row, device));
        if book.source == Source::Calibration {
            let percent = if matches!(row, Row::Strained(_)) { 95 } else { 80 };
            let for_sale = u64::try_from(u128::from(device.time_ns_per_second) * percent / 100);
            assert_eq!(book.ledger.usage(Resource::DeviceTime).sellable, for_sale.ok(), "{row:?}");
        }
        assert_eq!(
            book.ledger.usage(Resource::Cpu).sellable,
            domain.cpu_ns_per_second.map(|ns| ns / 5 * 4),
            "{row:?}"
        );
        if row == Row::OneNode {
            assert_eq!(book.ledger.usage(Resource::DeviceTime).sold, 0, "nothing adds up");
            continue;
        }
        let sold = || model.volumes.values().filter(|v| !matches!(v.phase, Phase::Binned { .. }));
        let sum = |costs| sold().map(|v| time(settings, v, costs)).sum::<u128>();
        assert_eq!(
            book.ledger.usage(Resource::DeviceTime).sold,
            sum(device.costs),
            "to the last nanosecond"
        );
        assert_eq!(
            book.ledger.usage(Resource::Cpu).sold,
            sum(domain.cpu_costs),
            "to the last nanosecond"
        );
        let for_sale = book.line(Resource::DeviceTime).map(|line| line.for_sale);
        let fresh = model.added_up(settings, capacity);
        let is_same = |other: &&Book| (other.source, other.row) == (book.source, book.row);
        let same = fresh.books.iter().find(is_same).unwrap();
        assert_eq!(for_sale, same.line(Resource::DeviceTime).map(|line| line.for_sale));
    }
    for volume_type in VolumeType::ALL {
        let mut sum = TypeSold::default();
        let sold = model.volumes.values().filter(|v| !matches!(v.phase, Phase::Binned { .. }));
        for volume in sold.filter(|v| v.spec.volume_type == volume_type) {
            let (reserved, _) = settings.reserved(volume);
            sum.volumes += 1;
            sum.operations_per_second += u64::from(reserved.operations_per_second);
            sum.bytes_per_second += reserved.bytes_per_second;
        }
        assert_eq!(books.of_type(volume_type), sum);
    }
}

fn compare_snapshots(model: &Model) {
    let all = || model.volumes.values();
    let snapshots = || model.snapshots.values();
    let in_phase = |is: fn(&SnapshotPhase) -> bool| -> BTreeSet<SnapshotId> {
        snapshots().filter(|snapshot| is(&snapshot.phase)).map(|snapshot| snapshot.id).collect()
    };
    let unsettled =
        in_phase(|it| matches!(it, SnapshotPhase::Pending | SnapshotPhase::Deleting { .. }));
    assert_eq!(model.unsettled_snapshots().collect::<BTreeSet<_>>(), unsettled);
    assert_eq!(*model.index.copying(), in_phase(|it| matches!(it, SnapshotPhase::Copying { .. })));
    let is_binned = |volume: &&Volume| matches!(volume.phase, Phase::Binned { .. });
    let binned = all().filter(is_binned).map(|volume| volume.id).collect();
    let binned_snapshots = in_phase(|it| matches!(it, SnapshotPhase::Binned { .. }));
    assert_eq!(*model.index.binned(), (binned, binned_snapshots));
    let is_fast = |it: &&Snapshot| it.is_shown() && !it.fast_restores.is_empty();
    let fast: Vec<_> = snapshots().filter(is_fast).collect();
    assert_eq!(model.fast_restored().collect::<Vec<_>>(), fast);
    let is_restored = |it: &&Snapshot| {
        let last = it.tiering.map(|tiering| tiering.last);
        matches!(last, Some(TierOperation::TemporaryRestore { .. }))
    };
    let restored: Vec<_> = snapshots().filter(is_restored).map(|snapshot| snapshot.id).collect();
    let ended = model.restores_ended(UnixMs(4));
    assert_eq!(ended.len(), restored.len());
    for event in ended {
        let Event::Snapshot(after) = event else { panic!("{event:?}") };
        assert!(restored.contains(&after.id) && after.is_archived(UnixMs(0)), "{after:?}");
    }
    assert_eq!(model.restores_ended(UnixMs(3)), vec![]);
    let copies = all().filter(|it| it.source.is_some() && it.phase == Phase::Creating);
    assert_eq!(model.index.volume_copies(), copies.clone().count());
    for id in (0..8).map(vol) {
        let its: Vec<_> = snapshots().filter(|snapshot| snapshot.for_volume == Some(id)).collect();
        assert_eq!(model.made_for(id).collect::<Vec<_>>(), its);
        let its: Vec<_> = copies.clone().filter(|copy| copy.source == Some(id)).collect();
        assert_eq!(model.index.copies_of(id).count(), its.len());
    }
}

fn compare_index(model: &Model) {
    let all = || model.volumes.values();
    let taken = all().map(|volume| {
        let before = volume.modification.as_ref().filter(|_| volume.is_being_modified());
        let before = before.map_or(0, |modification| modification.original.size_gib);
        u64::from(volume.spec.size_gib.max(before)) * GIB
    });
    let snapshots = || model.snapshots.values();
    let data: u64 = snapshots()
        .map(|snapshot| match snapshot.phase {
            SnapshotPhase::Completed { data, .. }
            | SnapshotPhase::Copying { data }
            | SnapshotPhase::Deleting { data }
            | SnapshotPhase::Binned { data, .. } => data.0,
            _ => 0,
        })
        .sum();
    assert_eq!(model.bytes_sold().0, taken.sum::<u64>() + data);
    compare_snapshots(model);
    for id in (0..8).map(vol) {
        let its = snapshots().filter(|snapshot| snapshot.volume == id);
        let pending = its.filter(|snapshot| snapshot.state() == "pending").count();
        assert_eq!(model.index.pending_snapshots_of(id), pending);
    }
    for snapshot in snapshots().filter(|snapshot| snapshot.filled.is_some() && snapshot.is_shown())
    {
        let token = snapshot.id.bits().to_string();
        assert_eq!(model.started_with(&token), Some(snapshot), "{token}");
    }
    let in_error = |volume: &&Volume| matches!(volume.phase, Phase::Error(_));
    let ids: Vec<_> = all().filter(in_error).map(|volume| volume.id).collect();
    assert_eq!(model.in_error().collect::<Vec<_>>(), ids);
    let unsettled = |volume: &&Volume| !volume.is_settled() && !in_error(volume);
    let ids: Vec<_> = all().filter(unsettled).map(|volume| volume.id).collect();
    assert_eq!(model.unsettled().collect::<Vec<_>>(), ids);
    for host in (0..HOSTS).map(InstanceId::from_bits) {
        let pairs = all().flat_map(|v| v.attachments.iter().map(move |a| (v, a)));
        let of_host: Vec<_> = pairs.filter(|(_, a)| a.instance == host).collect();
        assert_eq!(model.attachments_of(host).collect::<Vec<_>>(), of_host);
        for device in DEVICES {
            let taken = of_host.iter().any(|(_, a)| a.device == device);
            assert_eq!(model.index.has_device(host, device), taken, "{device}");
        }
    }
    let mut by_age: Vec<_> = model.tokens.iter().map(|(name, t)| (t.used, name)).collect();
    by_age.sort();
    assert_eq!(model.index.tokens_by_age().collect::<Vec<_>>(), by_age);
    for id in (0..8).map(vol) {
        let its = model.tokens.iter().filter(|(_, token)| token.volume == id);
        let its: Vec<_> = its.map(|(name, _)| name).collect();
        assert_eq!(model.index.tokens_of(id).collect::<Vec<_>>(), its);
    }
}

proptest! {
    #[test]
    fn kept_books_agree_with_a_full_recount(
        first in terms(), steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut model = Model::default();
        let (mut settings, mut capacity) = first;
        model.keep_books(&settings, &capacity);
        for step in steps {
            match step {
                BooksStep::Apply(event) => model.apply(*event),
                BooksStep::Keep(terms) => {
                    (settings, capacity) = *terms;
                    model.keep_books(&settings, &capacity);
                }
                BooksStep::Drift(left) => {
                    if let Capacity::Measured(measured) = &mut capacity {
                        measured.left_ppm = left;
                    }
                    model.keep_books(&settings, &capacity);
                }
            }
            compare_books(&model, &settings, &capacity);
            compare_index(&model);
            model.invariants();
        }
    }
}
