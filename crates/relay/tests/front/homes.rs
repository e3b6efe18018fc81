//! Answers to a client while no node serves its volume, and when none will.

use crate::cluster::{Cluster, ID, Place, SIZE, connect, pause, until};
use crate::support::{Answer, Nbd};
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_relay::{FrontConfig, Timing};
use evenkeel_wire::agent::{Command, Reply, VolumeState};
use std::time::Duration;

const WRITE: Operation = Operation::Write { fua: false };

fn ends(client: &mut Nbd) {
    assert_eq!(client.receive(), None, "the connection ends");
}

#[test]
fn client_that_connects_during_a_move_waits_for_the_home() {
    let cluster = Cluster::new(2);
    cluster.release(0);
    let address = cluster.nodes[0].address();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || connect(address, true).expect("the export is there"));
        pause();
        cluster.settle(1);
        let mut client = client.join().unwrap();
        assert_eq!(client.ask(WRITE, 0, 512, &[7; 512]), Answer::Done(Vec::new()));
    });
}

/// A client may hear of a new volume before its node does.
#[test]
fn client_that_connects_before_its_volume_is_known_waits() {
    let patient = |config: FrontConfig| FrontConfig {
        timing: Timing { word: Duration::from_secs(30), ..config.timing },
        ..config
    };
    let cluster = Cluster::with(2, "", patient);
    cluster.map.set(ID, Place::Nowhere);
    let address = cluster.nodes[1].address();
    std::thread::scope(|scope| {
        let client = scope.spawn(move || connect(address, true).expect("the export is there"));
        pause();
        cluster.settle(0);
        let mut client = client.join().unwrap();
        assert_eq!(client.ask(WRITE, 0, 512, &[7; 512]), Answer::Done(Vec::new()));
    });
}

#[test]
fn client_that_waits_in_vain_is_refused_by_the_own_data_plane() {
    let impatient = |config: FrontConfig| FrontConfig {
        timing: Timing { first_contact: Duration::from_millis(50), ..config.timing },
        ..config
    };
    let cluster = Cluster::with(2, "", impatient);
    cluster.release(0);
    assert!(connect(cluster.nodes[0].address(), true).is_none());
    cluster.map.set(ID, Place::Nowhere);
    assert!(connect(cluster.nodes[0].address(), true).is_none());
    // A home that cannot be reached.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    cluster.map.divert(cluster.nodes[1].id, gone);
    cluster.map.set(ID, Place::Node(cluster.nodes[1].id));
    assert!(connect(cluster.nodes[0].address(), true).is_none());
}

#[test]
fn requests_wait_for_a_home_and_are_done_in_order() {
    let cluster = Cluster::new(2);
    let mut client = cluster.connect(0, true);
    cluster.release(0);
    // Three writes to the same block: the last one counts.
    let cookies = [1, 2, 3].map(|fill| client.send(WRITE, 0, 4_096, &[fill; 4_096]));
    cluster.settle(1);
    for cookie in cookies {
        assert_eq!(client.receive(), Some((cookie, Answer::Done(Vec::new()))));
    }
    assert_eq!(client.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(vec![3; 4_096]));
}

#[test]
fn a_client_of_a_deleted_or_detached_volume_is_closed() {
    let cluster = Cluster::new(2);
    let mut near = cluster.connect(0, true);
    let mut far = cluster.connect(1, true);
    cluster.release(0);
    cluster.map.set(ID, Place::Nowhere);
    ends(&mut near);
    ends(&mut far);
    // The volume is detached, so the home answers each time that there is no such export.
    cluster.settle(0);
    let mut near = cluster.connect(0, true);
    let mut far = cluster.connect(1, false);
    cluster.release(0);
    cluster.map.set(ID, Place::Node(cluster.nodes[0].id));
    ends(&mut near);
    ends(&mut far);
}

#[test]
fn client_continues_on_a_larger_volume_and_not_on_a_smaller_one() {
    let cluster = Cluster::new(2);
    let mut client = cluster.connect(0, true);
    let last = SIZE - 512;
    assert_eq!(client.ask(WRITE, last, 512, &[9; 512]), Answer::Done(Vec::new()));
    cluster.release(0);
    let grown = VolumeState { size: ByteCount(2 * SIZE), ..cluster.state.lock().unwrap().clone() };
    let node = &cluster.nodes[1];
    assert_eq!(node.served.call(Command::Grow(grown.clone(), ByteCount(SIZE))), Reply::Done);
    *cluster.state.lock().unwrap() = grown;
    cluster.map.set(ID, Place::Node(node.id));
    assert_eq!(client.ask(Operation::Read, last, 512, &[]), Answer::Done(vec![9; 512]));
    assert_eq!(client.ask(WRITE, 2 * SIZE - 512, 512, &[8; 512]), Answer::Done(Vec::new()));
    // A client that got the larger size in its handshake does not fit a smaller one.
    let mut other = cluster.connect(1, true);
    let third = Cluster::new(1);
    let small = third.nodes[0].front.as_ref().unwrap().node_address();
    cluster.map.divert(node.id, small);
    // That one is node 1, which here is the first node's own number: the second relays to it.
    cluster.map.set(ID, Place::Node(cluster.nodes[0].id));
    cluster.map.divert(cluster.nodes[0].id, small);
    ends(&mut other);
}

#[test]
fn a_client_that_takes_its_leave_has_everything_done() {
    let cluster = Cluster::with(2, "channels=1,read_us=1000,write_us=1000", |config| config);
    let mut client = cluster.connect(1, true);
    for block in 0..50_u64 {
        client.send(WRITE, block * 4_096, 4_096, &[block as u8 + 1; 4_096]);
    }
    client.disconnect();
    drop(client);
    let front = cluster.nodes[1].front.as_ref().unwrap();
    until("it is over", || front.figures().clients == 0);
    let mut client = cluster.connect(0, true);
    for block in 0..50_u64 {
        let read = client.ask(Operation::Read, block * 4_096, 4_096, &[]);
        assert_eq!(read, Answer::Done(vec![block as u8 + 1; 4_096]));
    }
}
