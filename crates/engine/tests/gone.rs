//! Requests of clients that have disconnected: they are not run, and cost other clients nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Limit, Pacing};
use evenkeel_core::request::{Operation, Request};
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::disk::Disk;
use evenkeel_store::forwarding::{ForwardingPool, ForwardingStore};
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{Pool, Store, StoreError, Submission};
use evenkeel_wire::agent::VolumeState;
use evenkeel_wire::nbd::transmission::RequestHeader;
use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;
use support::{Answer, Nbd, Served, unlimited};

const MIB: u64 = 1 << 20;
const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
const ID: VolumeId = VolumeId::from_bits(1);
const LARGE: u32 = 32 << 20;

/// Serves a volume with this limit in bytes per second.
fn served(io: IoMode, per_second: u64) -> Served {
    let served = Served::new(io, Arc::new(MemoryPool::new()));
    let bytes = Some(Limit { per_second, credit: None });
    let pacing = Pacing { bytes, ..Pacing::UNLIMITED };
    served.apply(VolumeState { pacing, ..unlimited(ID, 64 * MIB) });
    served
}

/// A pool over memory whose volumes keep the first write to the first block until [`KEY`] is read.
#[derive(Default)]
struct StuckPool(MemoryPool);

struct Stuck {
    inner: Box<dyn Store>,
    kept: Option<Submission>,
    has_kept: bool,
}

const BLOCK: u32 = 4_096;
const KEY: u64 = 32 * MIB;

impl ForwardingPool for StuckPool {
    fn below(&self) -> &dyn Pool {
        &self.0
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let inner = self.0.open(id, size)?;
        Ok(Box::new(Stuck { inner, kept: None, has_kept: false }))
    }
}

impl ForwardingStore for Stuck {
    fn below(&self) -> &dyn Store {
        self.inner.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.inner.as_mut()
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        let is_write = matches!(submission.operation, Operation::Write { .. });
        if is_write && submission.offset == 0 && !std::mem::replace(&mut self.has_kept, true) {
            self.kept = Some(submission);
            return;
        }
        if submission.operation == Operation::Read
            && submission.offset == KEY
            && let Some(kept) = self.kept.take()
        {
            self.inner.submit(kept, disk);
        }
        self.inner.submit(submission, disk);
    }
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Closed,
    Reset,
    Left,
}

/// A write of a connection that has ended may be stuck in the store. Writes of others to the same
/// bytes come after it, and other requests are not delayed.
#[test]
fn a_stuck_write_of_a_client_that_is_gone_is_not_done_after_newer_ones() {
    let write = Operation::Write { fua: false };
    for io in MODES {
        for ends in [Ends::Closed, Ends::Reset, Ends::Left] {
            for is_new in [true, false] {
                let served = Served::new(io, Arc::new(StuckPool::default()));
                served.apply(unlimited(ID, 64 * MIB));
                let mut other = served.connect(ID);
                let known = served.connect(ID);
                let mut client = served.connect_tcp(ID);
                client.send(write, 0, BLOCK, &[1; BLOCK as usize]);
                while served.report(ID).in_store == 0 {}
                match ends {
                    Ends::Closed => {}
                    Ends::Reset => {
                        let at_once = Some(Duration::ZERO);
                        rustix::net::sockopt::set_socket_linger(&client.stream, at_once).unwrap();
                    }
                    Ends::Left => client.disconnect(),
                }
                drop(client);
                let elsewhere = |client: &mut Nbd| {
                    for _ in 0..10 {
                        let read = client.ask(Operation::Read, MIB, BLOCK, &[]);
                        assert_eq!(read, Answer::Done(vec![0; BLOCK as usize]));
                    }
                };
                let mut next = if is_new { served.connect(ID) } else { known };
                elsewhere(&mut next);
                let cookie = next.send(write, 0, BLOCK, &[2; BLOCK as usize]);
                elsewhere(&mut other);
                // The store is not stuck any more.
                assert!(matches!(other.ask(Operation::Read, KEY, BLOCK, &[]), Answer::Done(_)));
                assert_eq!(next.receive(), Some((cookie, Answer::Done(Vec::new()))));
                let read = next.ask(Operation::Read, 0, BLOCK, &[]);
                assert!(
                    read == Answer::Done(vec![2; BLOCK as usize]),
                    "what was answered is overwritten: {io:?} {ends:?} {is_new}"
                );
            }
        }
    }
}

/// Clients leave more requests than the server reads of their connections. The end of the
/// connections is detected in spite of that.
#[test]
fn requests_of_closed_connections_are_neither_run_nor_charged() {
    for io in MODES {
        for (tcp, reset) in [(true, true), (true, false), (false, true)] {
            let served = served(io, MIB);
            let connect = || if tcp { served.connect_tcp(ID) } else { served.connect(ID) };
            let mut good = connect();
            let mut clients: Vec<Nbd> = (0..32).map(|_| connect()).collect();
            for client in &mut clients {
                (0..3).for_each(|_| _ = client.send(Operation::Read, 0, LARGE, &[]));
                if reset {
                    let at_once = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(&client.stream, at_once).unwrap();
                }
            }
            drop(clients);
            // It stands behind all of them, and they would take three thousand seconds.
            let answer = good.ask(Operation::Read, 0, 4_096, &[]);
            assert_eq!(answer, Answer::Done(vec![0; 4_096]));
            let report = served.report(ID);
            assert!(report.bytes_read < u64::from(LARGE), "{} bytes", report.bytes_read);
            assert_eq!(report.queued, 0, "{io:?} {tcp} {reset}");
        }
    }
}

#[test]
fn client_that_disconnects_and_still_reads_gets_all_replies() {
    for io in MODES {
        for tcp in [true, false] {
            let served = served(io, 256 * MIB);
            let mut client = if tcp { served.connect_tcp(ID) } else { served.connect(ID) };
            let write = Operation::Write { fua: false };
            (0..3).for_each(|_| _ = client.send(Operation::Read, 0, LARGE, &[]));
            client.send(write, 0, 4_096, &[7; 4_096]);
            let nothing = Request { operation: Operation::Flush, offset: 0, length: 0 };
            let leave = RequestHeader { command: 2, ..RequestHeader::new(9, &nothing, false) };
            client.stream.write_all(&leave.encode()).unwrap();
            client.stream.shutdown(Shutdown::Write).unwrap();
            for _ in 0..4 {
                assert!(matches!(client.receive().unwrap().1, Answer::Done(_)), "{io:?} {tcp}");
            }
            assert!(client.receive().is_none());
            let mut other = served.connect(ID);
            let answer = other.ask(Operation::Read, 0, 4_096, &[]);
            assert_eq!(answer, Answer::Done(vec![7; 4_096]));
        }
    }
}

#[test]
fn client_that_disconnects_and_resets_is_dropped() {
    for io in MODES {
        let served = served(io, MIB / 4);
        let mut good = served.connect_tcp(ID);
        let mut client = served.connect_tcp(ID);
        client.send(Operation::Read, 0, LARGE, &[]);
        let nothing = Request { operation: Operation::Flush, offset: 0, length: 0 };
        let leave = RequestHeader { command: 2, ..RequestHeader::new(9, &nothing, false) };
        client.stream.write_all(&leave.encode()).unwrap();
        rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
        drop(client);
        let answer = good.ask(Operation::Read, 0, 4_096, &[]);
        assert_eq!(answer, Answer::Done(vec![0; 4_096]), "{io:?}");
    }
}
