//! Agent messages of random values.

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::{Latencies, Latency, Stage};
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::admission::{
    Costs, DeviceFloor, DomainFloor, LinearCost, Reserved, Strain,
};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_core::qos::sharing::{
    DeviceModel, InstanceCounters, InstancePacing, OperationCost, Window,
};
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Answered, Attachment, BackgroundReport, Bytes, Capacity, Command, CreditReport, Failed,
    FailedKind, HostAddress, HostReport, HostState, IoErrors, Measured, NewSnapshot, Reply, Report,
    Space, StoreHealth, StoredSnapshot, StoredVolume, Units, UnitsWanted, Verified, VolumeReport,
    VolumeState,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn volume_id() -> impl Strategy<Value = VolumeId> + Clone {
    any::<u128>().prop_map(VolumeId::from_bits)
}

fn snapshot_id() -> impl Strategy<Value = SnapshotId> + Clone {
    any::<u128>().prop_map(SnapshotId::from_bits)
}

fn store_health() -> impl Strategy<Value = StoreHealth> {
    any::<[u64; 5]>().prop_map(
        |[copies_mended, volumes_salvaged, unfinished, without_space, damaged_sectors]| {
            StoreHealth {
                copies_mended,
                volumes_salvaged,
                unfinished,
                without_space,
                damaged_sectors,
            }
        },
    )
}

fn background() -> impl Strategy<Value = BackgroundReport> {
    (any::<[u64; 4]>(), any::<u32>()).prop_map(|([limit, verified, read, filled], waiting)| {
        BackgroundReport {
            bytes_per_second: ByteCount(limit),
            waiting,
            verified: ByteCount(verified),
            read: ByteCount(read),
            filled: ByteCount(filled),
        }
    })
}

fn node_part() -> impl Strategy<Value = NodePart> {
    (any::<[u32; 3]>(), duration(), option::of(any::<u32>())).prop_map(
        |([lasting_ppm, lent_ppm, in_flight], lent_for, window_slots)| NodePart {
            lasting_ppm,
            lent_ppm,
            lent_for,
            in_flight,
            window_slots,
        },
    )
}

fn node_use() -> impl Strategy<Value = NodeUse> {
    (any::<[u64; 2]>(), any::<[u32; 2]>(), any::<bool>()).prop_map(
        |([capacity_ns, reserved_ns], [in_flight, window_slots], has_waited)| NodeUse {
            capacity_ns,
            reserved_ns,
            in_flight,
            window_slots,
            has_waited,
        },
    )
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..40).prop_map(Bytes)
}

fn stored_snapshot() -> impl Strategy<Value = StoredSnapshot> {
    let bytes = || any::<u64>().prop_map(ByteCount);
    (snapshot_id(), option::of(volume_id()), bytes(), bytes(), any::<[bool; 2]>()).prop_map(
        |(id, volume, size, data, [is_complete, is_encrypted])| StoredSnapshot {
            id,
            volume,
            size,
            data,
            is_complete,
            is_encrypted,
        },
    )
}

fn stored_volume() -> impl Strategy<Value = StoredVolume> {
    (volume_id(), any::<(u64, bool)>()).prop_map(|(id, (size, is_encrypted))| StoredVolume {
        id,
        size: ByteCount(size),
        is_encrypted,
    })
}

fn host_id() -> impl Strategy<Value = InstanceId> + Clone {
    any::<u128>().prop_map(InstanceId::from_bits)
}

fn duration() -> impl Strategy<Value = Duration> + Clone {
    any::<u64>().prop_map(Duration::from_ns)
}

fn balances() -> impl Strategy<Value = Balances> + Clone {
    any::<(Option<u64>, Option<u64>)>()
        .prop_map(|(operations, bytes)| Balances { operations, bytes })
}

fn limit() -> impl Strategy<Value = Option<Limit>> + Clone {
    let credit = any::<(u64, u64)>()
        .prop_map(|(refill_per_second, capacity)| CreditLimit { refill_per_second, capacity });
    option::of(
        (any::<u64>(), option::of(credit))
            .prop_map(|(per_second, credit)| Limit { per_second, credit }),
    )
}

fn pacing() -> impl Strategy<Value = Pacing> {
    let counting =
        any::<(u32, u32, bool)>().prop_map(|(unit_bytes, merge_bytes_min, charge_whole_units)| {
            CountingRule { unit_bytes, merge_bytes_min, charge_whole_units }
        });
    (counting, duration(), limit(), limit()).prop_map(|(counting, tolerance, operations, bytes)| {
        Pacing { counting, tolerance, operations, bytes }
    })
}

fn attachment() -> impl Strategy<Value = Attachment> {
    let address = prop_oneof![
        Just(HostAddress::Local),
        any::<[u8; 4]>().prop_map(|ip| HostAddress::Remote(ip.into())),
        any::<[u8; 16]>().prop_map(|ip| HostAddress::Remote(ip.into())),
    ];
    (host_id(), address).prop_map(|(host, address)| Attachment { host, address })
}

fn volume() -> impl Strategy<Value = VolumeState> {
    let numbers = any::<(u64, u32, u64, bool)>();
    let attachments = vec(attachment(), 0..4);
    (volume_id(), pacing(), [balances(), balances()], attachments, numbers).prop_map(
        |(id, pacing, [balances, unleased], attachments, numbers)| {
            let (size, operations_per_second, bytes_per_second, is_encrypted) = numbers;
            let reserved = Reserved { operations_per_second, bytes_per_second };
            let size = ByteCount(size);
            VolumeState {
                id,
                size,
                pacing,
                balances,
                unleased,
                reserved,
                attachments,
                is_encrypted,
            }
        },
    )
}

fn host() -> impl Strategy<Value = HostState> {
    let links = any::<(Option<u64>, Option<u64>)>();
    let pacing = (duration(), limit(), limit(), links).prop_map(
        |(tolerance, operations, bytes, (read_bytes_per_second, write_bytes_per_second))| {
            InstancePacing {
                tolerance,
                operations,
                bytes,
                read_bytes_per_second,
                write_bytes_per_second,
            }
        },
    );
    (host_id(), pacing, balances(), balances())
        .prop_map(|(id, pacing, balances, unleased)| HostState { id, pacing, balances, unleased })
}

fn device_model() -> impl Strategy<Value = DeviceModel> {
    let cost =
        || (duration(), any::<u32>()).prop_map(|(base, byte_ps)| OperationCost { base, byte_ps });
    let window = prop_oneof![
        any::<u32>().prop_map(Window::Slots),
        duration().prop_map(|small_p99| Window::Adaptive { small_p99 }),
    ];
    (any::<u32>(), cost(), cost(), window).prop_map(|(channels, read, write, window)| DeviceModel {
        channels,
        read,
        write,
        window,
    })
}

fn credits() -> impl Strategy<Value = CreditReport> {
    let volumes = vec((volume_id(), balances()), 0..4);
    (volumes, vec((host_id(), balances()), 0..4))
        .prop_map(|(volumes, hosts)| CreditReport { volumes, hosts })
}

/// Any command.
pub fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        volume().prop_map(Command::Create),
        volume().prop_map(Command::Apply),
        (volume(), any::<u64>()).prop_map(|(volume, from)| Command::Grow(volume, ByteCount(from))),
        volume_id().prop_map(Command::Delete),
        volume_id().prop_map(Command::Release),
        host().prop_map(Command::ApplyHost),
        host_id().prop_map(Command::DeleteHost),
        device_model().prop_map(Command::Calibrated),
        (volume_id(), balances()).prop_map(|(id, balances)| Command::SetBalances(id, balances)),
        credits().prop_map(Command::Lease),
        option::of(volume_id()).prop_map(Command::Latencies),
        (volume(), snapshot_id()).prop_map(|(volume, of)| Command::CreateFrom(volume, of)),
        (volume_id(), snapshot_id()).prop_map(|(of, id)| Command::Snapshot(of, id)),
        snapshot_id().prop_map(Command::DeleteSnapshot),
        vec((volume_id(), snapshot_id()), 0..4).prop_map(Command::SnapshotSet),
        (snapshot_id(), option::of(snapshot_id()), any::<u64>(), any::<u32>()).prop_map(
            |(id, older, first, max)| Command::SnapshotUnits(UnitsWanted { id, older, first, max })
        ),
        (snapshot_id(), any::<u64>()).prop_map(|(id, unit)| Command::ReadSnapshot(id, unit)),
        (snapshot_id(), any::<(u64, bool)>(), option::of(snapshot_id())).prop_map(
            |(id, (size, is_encrypted), parent)| {
                let size = ByteCount(size);
                Command::StartSnapshot(NewSnapshot { id, size, parent, is_encrypted })
            }
        ),
        (snapshot_id(), any::<u64>(), payload())
            .prop_map(|(id, unit, bytes)| Command::PutSnapshot(id, unit, bytes)),
        snapshot_id().prop_map(Command::CompleteSnapshot),
        vec(snapshot_id(), 0..4).prop_map(Command::SnapshotsOf),
        vec(volume_id(), 0..4).prop_map(Command::ReportOf),
        any::<u64>().prop_map(|limit| Command::SetBackground(ByteCount(limit))),
        (volume_id(), any::<u64>()).prop_map(|(id, offset)| Command::Verify(id, offset)),
        (snapshot_id(), any::<u64>()).prop_map(|(id, unit)| Command::VerifySnapshot(id, unit)),
        any::<u64>().prop_map(Command::VerifyStore),
        vec(volume_id(), 0..4).prop_map(Command::Filled),
        volume_id().prop_map(Command::Salvage),
        option::of(node_part()).prop_map(Command::Divide),
        prop::sample::select(vec![
            Command::Report,
            Command::Balances,
            Command::Stored,
            Command::Space,
            Command::Capacity,
            Command::Snapshots,
            Command::Background,
            Command::StoreHealth,
        ]),
    ]
}

fn exceeded() -> impl Strategy<Value = Exceeded> + Clone {
    any::<[u64; 6]>().prop_map(|[operations_ns, bytes_ns, guard_ns, a, b, device_ns]| Exceeded {
        operations_ns,
        bytes_ns,
        guard_ns,
        instance_operations_ns: a,
        instance_bytes_ns: b,
        device_ns,
    })
}

fn volume_report() -> impl Strategy<Value = VolumeReport> {
    let small = any::<[u32; 2]>();
    let large = any::<[u64; 8]>();
    (volume_id(), balances(), small, large, exceeded(), any::<bool>()).prop_map(
        |(id, balances, [connections, queued], large, exceeded, flush_failed)| {
            let [operations, bytes_read, bytes_written, flushes, device, no_space, ..] = large;
            let [.., seconds, missed] = large;
            VolumeReport {
                id,
                balances,
                connections,
                queued,
                in_store: queued / 2,
                operations,
                bytes_read,
                bytes_written,
                flushes,
                answered: Answered {
                    reads: operations ^ seconds,
                    writes: flushes ^ missed,
                    read_ns: bytes_read ^ device,
                    write_ns: bytes_written ^ no_space,
                },
                exceeded,
                errors: IoErrors {
                    device,
                    no_space,
                    rotten: device ^ no_space,
                    is_rotten: !flush_failed,
                    flush_failed,
                },
                contract: Contract { seconds, missed },
            }
        },
    )
}

fn host_report() -> impl Strategy<Value = HostReport> {
    (host_id(), balances(), any::<(u64, u64, u32)>(), exceeded()).prop_map(
        |(id, balances, (operations, bytes, waiting), exceeded)| {
            let counters = InstanceCounters { operations, bytes, exceeded, waiting };
            HostReport { id, balances, counters }
        },
    )
}

fn latency() -> impl Strategy<Value = Latency> {
    let durations = vec((0_u32..40, 0_u64..1 << 50), 0..20);
    let stages = any::<[u64; 8]>();
    ([durations.clone(), durations.clone(), durations], stages).prop_map(|(histograms, stages)| {
        let mut latency = Latency::default();
        let [total, device, waits] = histograms;
        for (histogram, durations) in [
            (&mut latency.total, total),
            (&mut latency.device, device),
            (&mut latency.waits, waits),
        ] {
            for (log2, count) in durations {
                histogram.record_many(Duration::from_ns(1 << log2), count);
            }
        }
        for (stage, ns) in Stage::ALL.into_iter().zip(stages) {
            latency.spend(stage, Duration::from_ns(ns));
        }
        latency
    })
}

fn capacity() -> impl Strategy<Value = Capacity> {
    let cost =
        || (duration(), any::<u32>()).prop_map(|(base, byte_ps)| LinearCost { base, byte_ps });
    let costs = || (cost(), cost()).prop_map(|(read, write)| Costs { read, write });
    let floors = any::<(u64, [Option<u64>; 3], u32, u8)>();
    let measured = (".*", ".*", costs(), costs(), floors).prop_map(
        |(calibration, date, costs, cpu_costs, (time, [read, write, cpu], left_ppm, nodes))| {
            Measured {
                calibration,
                date,
                device: DeviceFloor { time_ns_per_second: time, costs },
                domain: DomainFloor {
                    network_in_bytes_per_second: write,
                    network_out_bytes_per_second: read,
                    cpu_ns_per_second: cpu,
                    cpu_costs,
                },
                nodes: vec![
                    DomainFloor {
                        cpu_ns_per_second: read,
                        cpu_costs,
                        ..DomainFloor::UNLIMITED
                    };
                    usize::from(nodes % 4)
                ],
                strained: [Strain::Degraded, Strain::Recovering]
                    .map(|of| (of, DeviceFloor { time_ns_per_second: time / 2, costs }))
                    .into_iter()
                    .skip(usize::from(nodes % 3))
                    .collect(),
                left_ppm,
            }
        },
    );
    let measured = measured.prop_map(|measured| Capacity::Measured(Box::new(measured)));
    prop_oneof![1 => Just(Capacity::Unknown), 4 => measured]
}

/// Any reply.
pub fn reply() -> impl Strategy<Value = Reply> {
    use FailedKind::{
        Damaged, Down, Internal, NoSpace, NotFound, Refused, Unanswered, Unsupported,
    };
    let kinds = vec![NoSpace, NotFound, Damaged, Refused, Internal, Unanswered, Down, Unsupported];
    let failed = (prop::sample::select(kinds), ".*")
        .prop_map(|(kind, message)| Reply::Failed(Failed { kind, message }));
    let report = (vec(volume_report(), 0..4), vec(host_report(), 0..4))
        .prop_map(|(volumes, hosts)| Reply::Report(Report { volumes, hosts }));
    let latencies = (volume_id(), latency(), latency())
        .prop_map(|(id, reads, writes)| (id, Box::new(Latencies { reads, writes })));
    let bytes = || any::<u64>().prop_map(ByteCount);
    let space = (bytes(), bytes()).prop_map(|(total, free)| Space { total, free });
    prop_oneof![
        Just(Reply::Done),
        report,
        credits().prop_map(Reply::Balances),
        vec(latencies, 0..3).prop_map(Reply::Latencies),
        vec(stored_volume(), 0..4).prop_map(Reply::Stored),
        option::of(space).prop_map(Reply::Space),
        capacity().prop_map(Reply::Capacity),
        vec(stored_snapshot(), 0..4).prop_map(Reply::Snapshots),
        (vec(any::<u64>(), 0..4), option::of(any::<u64>()))
            .prop_map(|(units, next)| Reply::Units(Units { units, next })),
        option::of(payload()).prop_map(Reply::Unit),
        background().prop_map(Reply::Background),
        store_health().prop_map(Reply::StoreHealth),
        node_use().prop_map(Reply::Use),
        (option::of(any::<u64>()), any::<u64>(), vec(any::<u64>(), 0..4)).prop_map(
            |(next, bytes, rotten)| {
                Reply::Verified(Verified { next, bytes: ByteCount(bytes), rotten })
            }
        ),
        failed,
    ]
}
