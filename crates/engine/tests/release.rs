//! Volumes that are given up, so that another data plane can serve them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::device::ServiceTime;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::limits::REQUEST_BYTES_MAX;
use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit};
use evenkeel_core::qos::sharing::InstancePacing;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use evenkeel_engine::IoMode;
use evenkeel_os::clock::Clock;
use evenkeel_store::Pool;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::faulty::setup::Setup;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{
    Command, CreditReport, Failed, FailedKind, HostState, Reply, VolumeState,
};
use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use support::{Answer, Nbd, Served, local_pool, on, unlimited};

const MIB: u64 = 1 << 20;
const BLOCK: u32 = 4_096;
const WRITE: Operation = Operation::Write { fua: false };
const ID: VolumeId = VolumeId::from_bits(7);
const CREDITS: u64 = 500_000;

/// Returns a volume of which each I/O takes one credit, and that earns one in a second.
fn with_credits(id: VolumeId, iops: u64) -> VolumeState {
    let mut state = unlimited(id, 8 * MIB);
    let credit = Some(CreditLimit { refill_per_second: 1, capacity: 1_000_000 });
    state.pacing.operations = Some(Limit { per_second: iops, credit });
    state.balances = Balances { operations: Some(CREDITS), bytes: None };
    state
}

fn release(served: &Served, id: VolumeId) -> CreditReport {
    match served.call(Command::Release(id)) {
        Reply::Balances(report) => report,
        other => panic!("{other:?}"),
    }
}

/// A failed flush counts until the volume is detached; another pool may not know of it.
#[test]
fn a_volume_whose_flush_has_failed_is_not_given_up_while_it_is_attached() {
    let setup = "channels=1,read_us=1,fail_flush=1".parse().unwrap();
    let pool = Arc::new(FaultyPool::new(Arc::new(MemoryPool::new()), &setup));
    let served = Served::new(IoMode::Auto, pool);
    let state = unlimited(ID, 8 * MIB);
    served.apply(state.clone());
    let mut client = served.connect(ID);
    let failed = |answer| assert!(matches!(answer, Answer::Failed(_)), "{answer:?}");
    failed(client.ask(Operation::Flush, 0, 0, &[]));
    match served.call(Command::Release(ID)) {
        Reply::Failed(Failed { kind: FailedKind::Refused, message }) => {
            assert!(message.contains("detach it from all its hosts"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    // Its client is still served, and the failure still counts.
    assert!(matches!(client.ask(Operation::Read, 0, BLOCK, &[]), Answer::Done(_)));
    failed(client.ask(Operation::Flush, 0, 0, &[]));
    let detached = VolumeState { attachments: Vec::new(), ..state };
    assert_eq!(served.call(Command::Apply(detached)), Reply::Done);
    release(&served, ID);
}

/// Returns the requests that are answered until the connection ends. None may fail.
fn answered_until_the_end(client: &mut Nbd) -> BTreeSet<u64> {
    let mut answered = BTreeSet::new();
    while let Some((cookie, answer)) = client.receive() {
        assert!(matches!(answer, Answer::Done(_)), "{cookie}: {answer:?}");
        assert!(answered.insert(cookie));
    }
    answered
}

/// Returns whether exactly this number of I/Os was charged since `begin`.
fn is_charged(balances: Balances, operations: u64, (clock, begin): (Clock, Instant)) -> bool {
    let earned = clock.now().since(begin).ns / 1_000_000_000 + 1;
    let least = CREDITS - operations;
    balances.operations.is_some_and(|left| (least..=least + earned).contains(&left))
}

fn block_of(client: &mut Nbd, block: u64) -> Vec<u8> {
    match client.ask(Operation::Read, block * u64::from(BLOCK), BLOCK, &[]) {
        Answer::Done(bytes) => bytes,
        other => panic!("{other:?}"),
    }
}

fn is_held(served: &Served, id: VolumeId) -> bool {
    served.report_all().volumes.iter().any(|report| report.id == id)
}

/// Returns a pool with a slow device, which always has some requests.
fn slow(pool: Arc<dyn Pool>) -> Arc<dyn Pool> {
    let setup = Setup::new(2, ServiceTime { base_ns: 20_000_000, ns_per_kib: 0 });
    Arc::new(FaultyPool::new(pool, &setup))
}

#[test]
fn release_answers_begun_requests_and_never_does_the_others() {
    const WRITES: u64 = 96;
    let folder = tempfile::tempdir().unwrap();
    for io in [IoMode::Pread, IoMode::Auto] {
        for number in 0..2 {
            let at_rest: Arc<dyn Pool> = match number {
                0 => Arc::new(MemoryPool::new()),
                _ => Arc::new(local_pool(folder.path())),
            };
            let served = Served::new(io, slow(at_rest));
            // Most of the requests wait for the volume's limit, and some are at the device.
            let id = VolumeId::from_bits(io as u128 * 2 + number + 1);
            let state = with_credits(id, 200);
            let clock = Clock::start();
            let begin = clock.now();
            served.apply(state.clone());
            let mut clients = [served.connect(id), served.connect_tcp(id)];
            for client in &mut clients {
                let before = client.ask(WRITE, 4 * MIB, BLOCK, &vec![9; BLOCK as usize]);
                assert_eq!(before, Answer::Done(Vec::new()));
            }
            let mut blocks = Vec::new();
            for nth in 0..WRITES {
                let client = &mut clients[(nth % 2) as usize];
                let data = vec![1; BLOCK as usize];
                let cookie = client.send(WRITE, nth * u64::from(BLOCK), BLOCK, &data);
                blocks.push(((nth % 2) as usize, cookie, nth));
            }
            // Some of them are taken, and some are answered.
            assert!(matches!(clients[0].receive(), Some((_, Answer::Done(_)))));
            let first = blocks[0].1;
            let report = release(&served, id);
            let mut answered = clients.each_mut().map(answered_until_the_end);
            answered[0].insert(first);
            let done = answered[0].len() + answered[1].len();
            assert!(done > 1 && done < WRITES as usize, "{done} of {WRITES}");
            // The balance counts each I/O up to the last one.
            let [(of, balances)] = report.volumes[..] else { panic!("{report:?}") };
            assert!(of == id && is_charged(balances, 2 + done as u64, (clock, begin)), "{done}");
            assert_eq!(report.hosts, [], "no limits, no balances");
            assert!(!is_held(&served, id));
            assert!(Nbd::connect(&served.socket, id, true).is_none(), "nobody is let in");
            assert_eq!(release(&served, id), CreditReport::default(), "it is not held");
            // The volume is served again with its balance and its bytes.
            assert_eq!(served.call(Command::Apply(VolumeState { balances, ..state })), Reply::Done);
            let now = served.report(id).balances;
            assert!(is_charged(now, 2 + done as u64, (clock, begin)), "{done}: {now:?}");
            let mut client = served.connect(id);
            assert_eq!(block_of(&mut client, 4 * MIB / u64::from(BLOCK)), vec![9; BLOCK as usize]);
            for (of, cookie, block) in blocks {
                let is_there = u8::from(answered[of].contains(&cookie));
                assert_eq!(block_of(&mut client, block), vec![is_there; BLOCK as usize], "{block}");
            }
        }
    }
}

#[test]
fn clients_that_stop_in_the_middle_or_fetch_nothing_keep_no_volume() {
    for io in [IoMode::Pread, IoMode::Auto] {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        served.apply(unlimited(ID, 64 * MIB));
        // Three clients are in the middle of a head, and of a small and a large payload.
        let mut middle = [served.connect(ID), served.connect(ID), served.connect_tcp(ID)];
        middle[0].stream.write_all(&[0x25, 0x60]).unwrap();
        middle[1].send(WRITE, 0, BLOCK, &[1; 100]);
        middle[2].send(WRITE, 0, 8 << 20, &vec![1; 5 << 20]);
        let mut greedy = served.connect(ID);
        for _ in 0..4 {
            greedy.send(Operation::Read, 0, REQUEST_BYTES_MAX, &[]);
        }
        let mut idle = served.connect(ID);
        assert_eq!(block_of(&mut idle, 0), vec![0; BLOCK as usize]);
        let report = release(&served, ID);
        assert_eq!(report.volumes, [(ID, Balances::default())], "it has no credits");
        for client in middle.iter_mut().chain([&mut idle]) {
            assert_eq!(answered_until_the_end(client).len(), 0);
        }
        assert!(!is_held(&served, ID));
        assert_eq!(served.call(Command::Apply(unlimited(ID, 64 * MIB))), Reply::Done);
        let mut client = served.connect(ID);
        assert_eq!(block_of(&mut client, 0), vec![0; BLOCK as usize], "half a write is none");
    }
}

#[test]
fn a_host_s_balances_go_with_its_last_volume() {
    let served = Served::new(IoMode::Pread, Arc::new(MemoryPool::new()));
    let clock = Clock::start();
    let begin = clock.now();
    let host = InstanceId::from_bits(0x1);
    let credit = Some(CreditLimit { refill_per_second: 1, capacity: 1_000_000 });
    let operations = Some(Limit { per_second: 100_000, credit });
    let balances = Balances { operations: Some(CREDITS), bytes: None };
    let unleased = Balances::default();
    let pacing = InstancePacing { operations, ..InstancePacing::UNLIMITED };
    let state = HostState { id: host, pacing, balances, unleased };
    assert_eq!(served.call(Command::ApplyHost(state)), Reply::Done);
    let ids = [1, 2].map(VolumeId::from_bits);
    for id in ids {
        served.apply(VolumeState { attachments: vec![on(host)], ..with_credits(id, 100_000) });
        let mut client = served.connect(id);
        (0..10).for_each(|block| assert_eq!(block_of(&mut client, block).len(), BLOCK as usize));
    }
    let first = release(&served, ids[0]);
    let [(_, balances)] = first.volumes[..] else { panic!("{first:?}") };
    assert!(is_charged(balances, 10, (clock, begin)) && first.hosts.is_empty(), "{first:?}");
    let refused = served.call(Command::DeleteHost(host));
    assert!(matches!(refused, Reply::Failed(_)), "the other volume is attached: {refused:?}");
    let last = release(&served, ids[1]);
    let ([(_, balances)], [(of, shared)]) = (&last.volumes[..], &last.hosts[..]) else {
        panic!("{last:?}")
    };
    assert!(is_charged(*balances, 10, (clock, begin)), "{last:?}");
    assert!(*of == host && is_charged(*shared, 20, (clock, begin)), "{last:?}");
    assert_eq!(served.call(Command::DeleteHost(host)), Reply::Done);
}

#[test]
fn release_of_a_volume_affects_no_other_and_allows_its_deletion() {
    let served = Served::new(IoMode::Pread, slow(Arc::new(MemoryPool::new())));
    let other = VolumeId::from_bits(8);
    served.apply(unlimited(ID, MIB));
    served.apply(unlimited(other, MIB));
    let mut client = served.connect(ID);
    let mut beside = served.connect(other);
    client.send(WRITE, 0, BLOCK, &[1; BLOCK as usize]);
    beside.send(WRITE, 0, BLOCK, &[1; BLOCK as usize]);
    release(&served, ID);
    assert!(matches!(beside.receive(), Some((_, Answer::Done(_)))));
    assert_eq!(block_of(&mut beside, 0), vec![1; BLOCK as usize]);
    assert_eq!(served.call(Command::Delete(ID)), Reply::Done);
    let Reply::Stored(stored) = served.call(Command::Stored) else { panic!("no answer") };
    assert_eq!(stored.iter().map(|stored| stored.id).collect::<Vec<_>>(), [other]);
}
