//! Clients over TLS, which another listener passes to the front: plain bytes on one socket, and the
//! client's own socket beside it.

use crate::cluster::{Cluster, ID, stream};
use crate::load::{Load, more, under_load};
use crate::support::{Answer, LOCAL, Nbd};
use evenkeel_core::ids::InstanceId;
use evenkeel_core::request::Operation;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

/// A client that a listener has passed to a node's front.
pub struct Passed {
    pub client: Nbd,
    /// The client's end of its own socket.
    pub far: TcpStream,
}

pub fn pass(cluster: &Cluster, node: usize, host: InstanceId) -> Option<Passed> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (near, address) = listener.accept().unwrap();
    let entrance = cluster.nodes[node].front.as_ref().unwrap().entrance();
    let outside = entrance.connect(host, address, near.as_fd()).unwrap();
    Some(Passed { client: Nbd::over(outside, ID, true)?, far })
}

#[test]
fn a_client_over_tls_moves_with_its_volume_and_is_never_lent() {
    let cluster = Cluster::with(2, "channels=4,read_us=200,write_us=300", |config| config);
    let passed = [0, 1].map(|node| pass(&cluster, node, LOCAL).expect("it is attached"));
    let [first, second] = passed;
    let loads = vec![Load::new(first.client, (0, 2), true), Load::new(second.client, (1, 2), true)];
    under_load(loads, |answers| {
        for number in 0..10 {
            more(answers, 10);
            cluster.release(number % 2);
            cluster.settle((number + 1) % 2);
        }
        let lent = |node: usize| cluster.nodes[node].front.as_ref().unwrap().figures().lent;
        assert_eq!((lent(0), lent(1)), (0, 0));
    });
    drop((first.far, second.far));
}

#[test]
fn a_client_over_tls_sees_the_volumes_of_its_host_only() {
    let cluster = Cluster::new(2);
    for node in 0..2 {
        assert!(pass(&cluster, node, LOCAL).is_some());
        // The address is that of the attachment, and does not count.
        assert!(pass(&cluster, node, InstanceId::from_bits(77)).is_none());
    }
}

/// It may have sent its requests again over another connection.
#[test]
fn no_request_of_a_client_over_tls_is_passed_on_after_its_own_socket_has_ended() {
    let cluster = Cluster::new(2);
    for node in 0..2 {
        let Passed { mut client, far } = pass(&cluster, node, LOCAL).expect("it is attached");
        let before = vec![u8::try_from(node).unwrap() + 1; 512];
        let written = client.ask(Operation::Write { fua: false }, 0, 512, &before);
        assert_eq!(written, Answer::Done(Vec::new()));
        drop(far);
        // TLS passes these bytes on later than the system reports the end.
        client.send(Operation::Write { fua: false }, 0, 512, &[99; 512]);
        let mut other = Nbd::over(stream(cluster.nodes[node].address()), ID, true).unwrap();
        assert_eq!(other.ask(Operation::Read, 0, 512, &[]), Answer::Done(before.clone()));
        drop(client);
        assert_eq!(other.ask(Operation::Read, 0, 512, &[]), Answer::Done(before));
    }
}
