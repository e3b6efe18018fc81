//! Resources that volumes share, through the whole data plane: a host's limits, a device.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::latency::Stage;
use evenkeel_core::limits::{INSTANCES_PER_CORE_MAX, VOLUMES_PER_CORE_MAX};
use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, LinearCost, Reserved};
use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit};
use evenkeel_core::qos::sharing::{DeviceModel, InstancePacing, OperationCost, Window};
use evenkeel_core::request::Operation;
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_os::clock::Clock;
use evenkeel_store::Pool;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{
    Attachment, Capacity, Command, Failed, FailedKind, HostAddress, HostReport, HostState,
    Measured, Reply, VolumeState,
};
use rustix::net::{AddressFamily, SocketType};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Answer, LOCAL, Nbd, Served, local_pool, on, paced, unlimited};

const MIB: u64 = 1 << 20;
const KIB: u32 = 1 << 10;
const HOST: InstanceId = InstanceId::from_bits(0x1);

fn served() -> Served {
    Served::new(IoMode::Pread, Arc::new(MemoryPool::new()))
}

fn id(number: u32) -> VolumeId {
    VolumeId::from_bits(number.into())
}

fn limit(per_second: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: None })
}

/// Returns the limits of a host with this rate in IOPS.
fn iops(per_second: u64) -> InstancePacing {
    InstancePacing { operations: limit(per_second), ..InstancePacing::UNLIMITED }
}

fn host(served: &Served, id: InstanceId, pacing: InstancePacing) -> Reply {
    served.call(Command::ApplyHost(HostState {
        id,
        pacing,
        balances: Balances::default(),
        unleased: Balances::default(),
    }))
}

fn host_report(served: &Served, id: InstanceId) -> HostReport {
    served.report_all().hosts.into_iter().find(|report| report.id == id).unwrap()
}

/// Keeps `depth` reads in flight on each connection for this number of rounds. Returns the answered
/// reads of each.
fn read_rounds(clients: &mut [Nbd], depth: usize, length: u32, rounds: u32) -> Vec<u64> {
    let mut answered = vec![0; clients.len()];
    for client in clients.iter_mut() {
        for _ in 0..depth {
            client.send(Operation::Read, 0, length, &[]);
        }
    }
    for _ in 0..rounds {
        for (client, answered) in clients.iter_mut().zip(&mut answered) {
            // One answer of each connection in turn: each has a read in flight.
            assert!(matches!(client.receive().unwrap().1, Answer::Done(_)));
            *answered += 1;
            client.send(Operation::Read, 0, length, &[]);
        }
    }
    answered
}

#[test]
fn a_host_s_volumes_share_its_limits_exactly_wherever_they_were() {
    let served = served();
    // A core reads its clock once a turn, and may be interrupted after it. So the time begins with
    // the host, turns before the first request.
    let clock = Clock::start();
    let begin = clock.now();
    assert_eq!(host(&served, HOST, iops(2_000)), Reply::Done);
    // Created without a host, the volumes are spread over the cores. Attached, they come together.
    for attachments in [Vec::new(), vec![on(HOST)]] {
        for number in 0..4 {
            let attachments = attachments.clone();
            served.apply(VolumeState { attachments, ..paced(id(number), 8 * MIB, 1_000) });
        }
    }
    let mut clients: Vec<Nbd> = (0..4).map(|number| served.connect(id(number))).collect();
    let answered = read_rounds(&mut clients, 4, 4 * KIB, 400);
    // Requests are still in flight: the time ends when they have been counted, not before.
    let charged = host_report(&served, HOST).counters.operations;
    let elapsed = clock.now().since(begin);
    // In any time at most the rate, the tolerance, and one request.
    let bound = elapsed.ns * 2_000 / 1_000_000_000 + 100 + 1;
    assert!(charged <= bound, "{charged} I/Os in {elapsed:?}, at most {bound}");
    assert!(charged >= answered.iter().sum());
    // Each connection waits for its answers in turn, so their numbers are equal by design; the
    // counters show which volumes were delayed by the host's limit.
    let held: Vec<u64> =
        (0..4).map(|n| served.report(id(n)).exceeded.instance_operations_ns).collect();
    assert!(held.iter().all(|held| *held > 0), "{held:?}");
}

#[test]
fn volumes_move_to_their_host_s_core_with_their_balances_and_bytes() {
    let served = served();
    let credit = Some(CreditLimit { refill_per_second: 1, capacity: 1_000_000 });
    let burst = |number| {
        let mut state = paced(id(number), 8 * MIB, 100_000);
        state.pacing.operations = Some(Limit { per_second: 100_000, credit });
        state.balances = Balances { operations: Some(500_000), bytes: None };
        state
    };
    // Two volumes on two cores, with requests.
    for number in 0..2 {
        served.apply(burst(number));
        let mut client = served.connect(id(number));
        let payload = vec![number as u8 + 1; 4_096];
        let write = Operation::Write { fua: false };
        for _ in 0..100 {
            assert_eq!(client.ask(write, 0, 4_096, &payload), Answer::Done(Vec::new()));
        }
    }
    // Detached from the machine, attached to a host with limits: on one core from now on.
    assert_eq!(host(&served, HOST, iops(50_000)), Reply::Done);
    for number in 0..2 {
        let state = burst(number);
        served.apply(VolumeState { attachments: Vec::new(), ..state.clone() });
        served.apply(VolumeState { attachments: vec![on(HOST)], ..state });
        let report = served.report(id(number));
        let left = report.balances.operations.unwrap();
        assert!((499_900..499_960).contains(&left), "{left} credits after 100 writes");
        assert_eq!(report.operations, 100, "the counters went with it");
        let mut client = served.connect(id(number));
        let bytes = vec![number as u8 + 1; 4_096];
        assert_eq!(client.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(bytes));
    }
    assert_eq!(host_report(&served, HOST).counters.operations, 2, "both count as the host's");
}

/// Two instances on one machine, which their addresses tell apart.
#[test]
fn hosts_with_loopback_addresses_of_their_own_are_distinguished() {
    let served = served();
    assert_eq!(host(&served, HOST, iops(50_000)), Reply::Done);
    let second = HostAddress::of([127, 0, 0, 2].into());
    let attachments = vec![on(LOCAL), Attachment { host: HOST, address: second }];
    served.apply(VolumeState { attachments, ..unlimited(id(0), MIB) });
    let from = |ip: [u8; 4]| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from((ip, 0))).unwrap();
        let server = served.engine.as_ref().unwrap().tcp_addresses()[0];
        rustix::net::connect(&socket, &server).unwrap();
        Nbd::over(socket.into(), id(0), true)
    };
    let mut here = from([127, 0, 0, 1]).unwrap();
    let mut other = from([127, 0, 0, 2]).unwrap();
    assert!(from([127, 0, 0, 3]).is_none(), "that is nobody");
    for (client, counted) in [(&mut here, 0), (&mut other, 1)] {
        assert_eq!(client.ask(Operation::Read, 0, 512, &[]), Answer::Done(vec![0; 512]));
        assert_eq!(host_report(&served, HOST).counters.operations, counted);
    }
    served.apply(unlimited(id(0), MIB));
    assert!(other.receive().is_none(), "its host is detached");
    assert_eq!(here.ask(Operation::Read, 0, 512, &[]), Answer::Done(vec![0; 512]));
}

/// The control plane gets balances that may have changed, and none of volumes at rest.
#[test]
fn balances_are_reported_only_if_they_may_have_changed() {
    let served = served();
    let reported = || {
        let Reply::Balances(told) = served.call(Command::Balances) else { panic!("no balances") };
        told.volumes
    };
    let full = Balances { operations: Some(1_000), bytes: None };
    let credit = Some(CreditLimit { refill_per_second: 1_000, capacity: 1_000 });
    let burst = |number| {
        let mut state = paced(id(number), 8 * MIB, 1_000_000);
        state.pacing.operations = Some(Limit { per_second: 1_000_000, credit });
        VolumeState { balances: full, ..state }
    };
    served.apply(burst(1));
    served
        .apply(VolumeState { balances: Balances { operations: Some(0), bytes: None }, ..burst(2) });
    served.apply(paced(id(3), 8 * MIB, 1_000));
    let first = reported();
    assert!(first.contains(&(id(1), full)), "{first:?}");
    assert!(first.iter().any(|(of, _)| *of == id(2)), "{first:?}");
    assert!(first.iter().all(|(of, _)| *of != id(3)), "it has no credits: {first:?}");
    // The second volume is reported until it is full, once when it is full, and then no more; the
    // first one is at rest.
    let clock = Clock::start();
    let mut last = Vec::new();
    loop {
        let now = reported();
        assert!(now.iter().all(|(of, _)| *of == id(2)), "{now:?}");
        if now.is_empty() {
            break;
        }
        last = now;
        assert!(clock.now() < evenkeel_core::time::Instant::from_ns(30_000_000_000), "{last:?}");
    }
    assert_eq!(last, [(id(2), full)]);
    // The first volume is reported again once it is used, and the second after its limits change.
    let mut client = served.connect(id(1));
    for _ in 0..50 {
        assert!(matches!(client.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(_)));
    }
    assert!(matches!(reported()[..], [(of, _)] if of == id(1)));
    let mut smaller = burst(2);
    smaller.pacing.operations = Some(Limit { per_second: 500, credit });
    served.apply(smaller);
    assert!(reported().contains(&(id(2), full)));
}

/// Keeps a connection busy with requests until `stop` is set. Each request is answered, and reads
/// return the written bytes. Returns the number of requests.
fn keep_asking(client: &mut Nbd, block: u8, stop: &AtomicBool) -> u64 {
    let mut answered = 0;
    let bytes = vec![block; 4_096];
    while !stop.load(Ordering::Relaxed) || client.outstanding() > 0 {
        while client.outstanding() < 16 && !stop.load(Ordering::Relaxed) {
            let operation = match answered % 3 {
                0 => Operation::Write { fua: false },
                1 => Operation::Flush,
                _ => Operation::Read,
            };
            let (length, payload) = match operation {
                Operation::Write { .. } => (4_096, &bytes[..]),
                Operation::Flush => (0, &[][..]),
                _ => (4_096, &[][..]),
            };
            client.send(operation, 0, length, payload);
            answered += 1;
        }
        match client.receive().expect("the connection lives").1 {
            Answer::Done(read) if read.is_empty() => {}
            Answer::Done(read) => assert!(read == bytes, "other bytes than were written"),
            other => panic!("{other:?}"),
        }
    }
    answered
}

/// Two hosts with limits, each with its own volumes on its own core, all in use, and a volume that
/// is to be attached to both: they come together, and no connection is closed.
#[test]
fn hosts_that_share_a_volume_come_together_with_their_connections() {
    for io in [IoMode::Auto, IoMode::Pread] {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::new(io, Arc::new(local_pool(folder.path())));
        let hosts = [InstanceId::from_bits(2), InstanceId::from_bits(3)];
        for of in hosts {
            assert_eq!(host(&served, of, iops(1_000_000)), Reply::Done);
        }
        let state = |number: u32, hosts: &[InstanceId]| {
            let attachments = hosts.iter().copied().map(on).collect();
            VolumeState { attachments, ..unlimited(id(number), MIB) }
        };
        for number in 0..6 {
            served.apply(state(number, &[hosts[number as usize % 2]]));
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut clients = Vec::new();
            for number in 0..6 {
                let mut client = served.connect(id(number));
                let bytes = vec![number as u8 + 1; 4_096];
                let write = Operation::Write { fua: false };
                assert_eq!(client.ask(write, 0, 4_096, &bytes), Answer::Done(Vec::new()));
                let stop = &stop;
                clients.push(scope.spawn(move || keep_asking(&mut client, number as u8 + 1, stop)));
            }
            // Attached while all clients are busy, and again after a detachment.
            for round in 0..10 {
                served.apply(state(0, &hosts));
                served.apply(state(0, &hosts[..1]));
                // Volumes without these hosts may be on any core; the hosts stay together.
                let other = unlimited(id(100 + round), MIB);
                served.apply(other);
            }
            served.apply(state(0, &hosts));
            stop.store(true, Ordering::Relaxed);
            assert!(clients.into_iter().all(|client| client.join().unwrap() > 0));
        });
        let total: u64 =
            hosts.iter().map(|host| host_report(&served, *host).counters.operations).sum();
        let reports = served.report_all().volumes;
        assert_eq!(
            total,
            reports.iter().map(|report| report.operations).sum::<u64>(),
            "counters stay"
        );
    }
}

/// A volume in the middle of a write moves after it; input behind the write moves along unread.
#[test]
fn moving_volume_finishes_a_partial_write_and_takes_later_input_along() {
    let served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    for round in 0..30 {
        let hosts = [1, 2].map(|nth| InstanceId::from_bits(round * 10 + nth));
        let volumes = [1, 2].map(|nth| id(round as u32 * 10 + nth));
        for (of, volume) in hosts.into_iter().zip(volumes) {
            assert_eq!(host(&served, of, iops(1_000_000)), Reply::Done);
            served.apply(VolumeState { attachments: vec![on(of)], ..unlimited(volume, MIB) });
        }
        // The other volume has more connections, so this one moves.
        let mut client = served.connect(volumes[0]);
        let _others = [served.connect(volumes[1]), served.connect(volumes[1])];
        let payload = vec![round as u8 + 1; 4_096];
        let (now, then) = payload.split_at(2_048);
        client.send(Operation::Write { fua: false }, 0, 4_096, now);
        std::thread::scope(|scope| {
            let shared = hosts.map(on).to_vec();
            let state = VolumeState { attachments: shared, ..unlimited(volumes[0], MIB) };
            let served = &served;
            scope.spawn(move || served.apply(state));
            client.stream.write_all(then).unwrap();
            for _ in 0..200 {
                client.send(Operation::Read, 0, 4_096, &[]);
                if client.outstanding() >= 24 {
                    client.receive().unwrap();
                }
            }
            while client.outstanding() > 0 {
                let Answer::Done(read) = client.receive().unwrap().1 else { panic!("refused") };
                assert!(read.is_empty() || read == payload);
            }
        });
    }
}

/// A client that does not fetch its replies cannot move. Its connection stays, and the attachment
/// is refused.
#[test]
fn volume_with_unread_replies_does_not_move() {
    let served = served();
    let hosts = [InstanceId::from_bits(2), InstanceId::from_bits(3)];
    for (number, of) in hosts.into_iter().enumerate() {
        assert_eq!(host(&served, of, iops(1_000_000)), Reply::Done);
        let attachments = vec![on(of)];
        served.apply(VolumeState { attachments, ..unlimited(id(number as u32), 64 * MIB) });
    }
    let mut clients = [served.connect(id(0)), served.connect(id(1))];
    for client in &mut clients {
        // More than any socket holds.
        client.send(Operation::Read, 0, 32 * (MIB as u32), &[]);
    }
    let before = served.report_all();
    let shared = VolumeState {
        attachments: hosts.map(on).to_vec(),
        pacing: paced(id(0), MIB, 7).pacing,
        ..unlimited(id(0), 128 * MIB)
    };
    let grow = Command::Grow(shared.clone(), ByteCount(64 * MIB));
    let Reply::Failed(Failed { kind, message }) = served.call(grow) else {
        panic!("one volume on two cores")
    };
    assert_eq!(kind, FailedKind::Refused);
    for part in [format!("host {} on core 0", hosts[0]), format!("host {} on core 1", hosts[1])] {
        assert!(message.contains(&part), "{message}");
    }
    assert!(message.contains("serve with one core"), "{message}");
    // Nothing has changed: the clients get all their replies at once, and the old size.
    assert_eq!(served.report_all().volumes.len(), before.volumes.len());
    for client in &mut clients {
        let Answer::Done(bytes) = client.receive().unwrap().1 else { panic!("no answer") };
        assert_eq!(bytes.len(), 32 * MIB as usize);
        let beyond = client.ask(Operation::Read, 64 * MIB, 4_096, &[]);
        assert!(matches!(beyond, Answer::Failed(_)), "{beyond:?}");
    }
    // Once the clients rest, the volume can move.
    served.apply(shared);
    let answer = served.call(Command::DeleteHost(hosts[1]));
    assert!(matches!(answer, Reply::Failed(Failed { kind: FailedKind::Refused, .. })));
    for client in &mut clients {
        assert!(matches!(client.ask(Operation::Read, 0, 512, &[]), Answer::Done(_)));
    }
}

/// Applies a state that is refused, and then one that is not: the volume still exists, with its
/// written bytes.
fn is_refused_and_still_there(served: &Served, state: VolumeState, reason: &str) {
    let then = VolumeState { attachments: vec![on(LOCAL)], ..state.clone() };
    let Reply::Failed(Failed { kind, message }) = served.call(Command::Apply(state)) else {
        panic!("more than a core may have")
    };
    assert_eq!(kind, FailedKind::Refused);
    assert!(message.contains(reason), "{message}");
    let id = then.id;
    served.apply(then);
    let mut client = served.connect(id);
    assert_eq!(client.ask(Operation::Read, 0, 512, &[]), Answer::Done(vec![7; 512]));
}

#[test]
fn a_volume_is_not_lost_on_its_way_to_a_core_that_is_full() {
    let served = served();
    // The maximum number of hosts, one after the other on the first volume's core.
    let hosts: Vec<InstanceId> =
        (1..=INSTANCES_PER_CORE_MAX as u128).map(InstanceId::from_bits).collect();
    for of_them in hosts.chunks(64) {
        for &known in of_them {
            assert_eq!(host(&served, known, iops(1_000)), Reply::Done);
        }
        let attachments = of_them.iter().copied().map(on).collect();
        served.apply(VolumeState { attachments, ..unlimited(id(0), MIB) });
    }
    // A volume on the other core.
    served.apply(unlimited(id(1), MIB));
    let mut client = served.connect(id(1));
    let write = Operation::Write { fua: false };
    assert_eq!(client.ask(write, 0, 512, &[7; 512]), Answer::Done(Vec::new()));
    let detached = VolumeState { attachments: Vec::new(), ..unlimited(id(1), MIB) };
    served.apply(detached.clone());
    // It would have to go to the first core, with one host too many for that core: it does not
    // leave.
    let one_too_many = InstanceId::from_bits(u128::MAX);
    assert_eq!(host(&served, one_too_many, iops(1_000)), Reply::Done);
    let attachments = vec![on(hosts[0]), on(one_too_many)];
    is_refused_and_still_there(
        &served,
        VolumeState { attachments, ..detached.clone() },
        "this core knows 4096 instances",
    );
    served.apply(detached.clone());
    // There is room for its host, but not for this number of attachments: it arrives and is sent
    // back.
    let crowd = (0..=VOLUMES_PER_CORE_MAX as u128).map(|n| on(InstanceId::from_bits(1 << 64 | n)));
    let attachments = std::iter::once(on(hosts[0])).chain(crowd).collect();
    is_refused_and_still_there(
        &served,
        VolumeState { attachments, ..detached },
        "attachments, the most it may",
    );
}

/// A refused state changes nothing: not for the volume's clients, not its limits, not its bytes on
/// the disk.
#[test]
fn refused_state_changes_nothing() {
    let pool = Arc::new(MemoryPool::new());
    let served = Served::new(IoMode::Pread, Arc::clone(&pool) as Arc<dyn Pool>);
    assert_eq!(host(&served, HOST, iops(1_000)), Reply::Done);
    let state = paced(id(1), MIB, 1_000_000);
    served.apply(state.clone());
    let mut client = served.connect(id(1));
    let write = Operation::Write { fua: false };
    assert_eq!(client.ask(write, 0, 4_096, &[5; 4_096]), Answer::Done(Vec::new()));
    // A lower limit, with or without a growth, and more attachments than the maximum.
    let crowd = (0..=VOLUMES_PER_CORE_MAX as u128).map(|n| on(InstanceId::from_bits(1 << 64 | n)));
    let attachments: Vec<_> = std::iter::once(on(HOST)).chain(crowd).collect();
    for size in [2 * MIB, MIB] {
        let refused = VolumeState { attachments: attachments.clone(), ..paced(id(1), size, 1) };
        let command = match size {
            MIB => Command::Apply(refused),
            _ => Command::Grow(refused, state.size),
        };
        let Reply::Failed(Failed { kind, message }) = served.call(command) else {
            panic!("more attachments than there may be")
        };
        assert_eq!(kind, FailedKind::Refused);
        assert!(message.contains("attachments, the most it may"), "{message}");
        assert_eq!(pool.list().unwrap()[0], (id(1), state.size), "not grown");
        // At one I/O a second this would take a minute. The client is still connected, with the old
        // size.
        for _ in 0..100 {
            let bytes = client.ask(Operation::Read, 0, 4_096, &[]);
            assert_eq!(bytes, Answer::Done(vec![5; 4_096]));
        }
        assert!(matches!(client.ask(Operation::Read, MIB, 4_096, &[]), Answer::Failed(_)));
        let mut other = served.connect(id(1));
        assert!(matches!(other.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(_)));
        // The second time the host is on that core already: only the core itself can refuse.
        let hosts = served.report_all().hosts;
        assert_eq!(hosts.is_empty(), size > MIB, "{hosts:?}");
        let of_host = VolumeState { attachments: vec![on(HOST)], ..unlimited(id(3), MIB) };
        let none = VolumeState { attachments: Vec::new(), ..unlimited(id(2), MIB) };
        served.apply(none);
        served.apply(of_host);
    }
    // The same state again is no change.
    served.apply(state);
    assert!(matches!(client.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(_)));
}

#[test]
fn everything_is_answered_while_a_device_is_shared() {
    // Requests never wait in the memory store, which completes them at once. So the pool is slowed
    // down.
    let setup = "channels=4,read_us=80".parse().unwrap();
    let pool = FaultyPool::new(Arc::new(MemoryPool::new()), &setup);
    let served = Served::new(IoMode::Pread, Arc::new(pool));
    for number in 0..6 {
        let hundred = Reserved { operations_per_second: 100, bytes_per_second: 100 * 16 * 1_024 };
        let reserved = if number % 2 == 0 { hundred } else { Reserved::NOTHING };
        served.apply(VolumeState { reserved, ..unlimited(id(number), 8 * MIB) });
    }
    let mut clients: Vec<Nbd> = (0..6).map(|number| served.connect(id(number))).collect();
    let cost = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
    // The window is smaller than the number of requests in flight: they wait for it in turn.
    let model = DeviceModel { channels: 2, read: cost, write: cost, window: Window::Slots(3) };
    assert_eq!(served.call(Command::Calibrated(model)), Reply::Done);
    let answered = read_rounds(&mut clients, 8, 16 * KIB, 300);
    assert!(answered.iter().all(|count| *count > 0), "{answered:?}");
    // Another calibration while the device is in use; volumes are created and deleted.
    let model = DeviceModel { channels: 4, window: Window::Slots(5), ..model };
    assert_eq!(served.call(Command::Calibrated(model)), Reply::Done);
    let gone = VolumeState { attachments: Vec::new(), ..unlimited(id(5), 8 * MIB) };
    served.apply(gone);
    assert_eq!(served.call(Command::Delete(id(5))), Reply::Done);
    clients.pop();
    let more = read_rounds(&mut clients, 1, 256 * KIB, 100);
    assert!(more.iter().all(|count| *count > 0), "{more:?}");
    for client in &mut clients {
        while client.outstanding() > 0 {
            assert!(matches!(client.receive().unwrap().1, Answer::Done(_)));
        }
    }
    assert_eq!(served.report(id(0)).queued, 0);
    let Reply::Latencies(all) = served.call(Command::Latencies(None)) else { panic!("no answer") };
    assert_eq!(
        all.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        (0..5).map(id).collect::<Vec<_>>()
    );
    for (volume, latencies) in &all {
        let reads = &latencies.reads;
        // Each nanosecond between a request's head and its reply belongs to one stage.
        let stages: u64 = Stage::ALL.into_iter().map(|stage| reads.spent(stage).ns).sum();
        assert_eq!(stages, reads.total.sum().ns, "{volume}");
        assert!(reads.spent(Stage::DeviceQueue).ns > 0, "{volume}: nobody waited for the device");
        assert_eq!(reads.total.count(), reads.device.count(), "{volume}: one quantum each");
        assert_eq!(latencies.writes.total.count(), 0);
    }
    let Reply::Latencies(one) = served.call(Command::Latencies(Some(id(3)))) else { panic!() };
    assert_eq!(one, [all[3].clone()]);
}

/// The capacity is unknown until it is set for the first time; then the last one counts.
#[test]
fn capacity_is_unknown_or_the_one_set_last() {
    let served = Served::new(IoMode::Pread, Arc::new(MemoryPool::new()));
    let capacity = || served.call(Command::Capacity);
    assert_eq!(capacity(), Reply::Capacity(Capacity::Unknown));
    let cost = LinearCost { base: Duration::from_us(80), byte_ps: 4_000 };
    let costs = Costs { read: cost, write: cost };
    for left_ppm in [1_000_000, 750_000] {
        let measured = Capacity::Measured(Box::new(Measured {
            calibration: "cal-1".to_owned(),
            date: "2026-11-21T04:00:00.000Z".into(),
            device: DeviceFloor { time_ns_per_second: 8_000_000_000, costs },
            domain: DomainFloor::UNLIMITED,
            nodes: Vec::new(),
            strained: Vec::new(),
            left_ppm,
        }));
        served.engine.as_ref().unwrap().set_capacity(measured.clone());
        assert_eq!(capacity(), Reply::Capacity(measured));
    }
}
