//! Requests that nobody waits for any more: they are not run, and cost those who are there nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Limit, Pacing};
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::IoMode;
use evenkeel_store::memory::MemoryPool;
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

/// A volume of so many bytes per second.
fn served(io: IoMode, per_second: u64) -> Served {
    let served = Served::new(io, Arc::new(MemoryPool::new()));
    let bytes = Some(Limit { per_second, credit: None });
    let pacing = Pacing { bytes, ..Pacing::UNLIMITED };
    served.apply(VolumeState { pacing, ..unlimited(ID, 64 * MIB) });
    served
}

/// Clients leave more behind than their connections are read: the end of those is seen all the
/// same.
#[test]
fn what_clients_that_are_gone_have_asked_for_is_neither_run_nor_charged() {
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
fn who_takes_leave_and_still_listens_is_answered_to_the_end() {
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
fn who_takes_leave_and_breaks_off_is_forgotten() {
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
