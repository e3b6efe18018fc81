//! Reports of what becomes of a front's own clients.

use crate::cluster::{Cluster, ID, connect, stream, until};
use crate::passed::pass;
use crate::support::{LOCAL, Nbd};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_relay::FrontConfig;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::visit::{Visit, VisitOutcome};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

/// The data planes, which must report no client of a front.
const ENGINES: NodeId = NodeId(0);
const STRANGER: InstanceId = InstanceId::from_bits(77);

/// Reports with the nodes that have made them.
type Reports = Arc<Mutex<Vec<(NodeId, Visit)>>>;

fn noted_by(node: NodeId, reports: &Reports) -> impl Fn(Visit) + Send + Sync + use<> {
    let reports = Arc::clone(reports);
    move |visit| reports.lock().unwrap().push((node, visit))
}

fn cluster(reports: &Reports) -> Cluster {
    let cluster = Cluster::with(2, "", |config| {
        let observer = Arc::new(noted_by(config.node, reports));
        FrontConfig { observer, ..config }
    });
    for node in &cluster.nodes {
        let observer = Box::new(noted_by(ENGINES, reports));
        node.served.engine.as_ref().unwrap().observe(observer);
    }
    cluster
}

fn ended(reports: &Reports) -> usize {
    let reports = reports.lock().unwrap();
    reports.iter().filter(|(_, visit)| visit.outcome == VisitOutcome::Ended).count()
}

/// Clients that the data plane has accepted itself, at the unix socket, are those of its node, too.
#[test]
fn the_data_plane_of_a_node_reports_clients_of_its_own_listeners() {
    let reports = Reports::default();
    let cluster = cluster(&reports);
    let socket = UnixStream::connect(&cluster.nodes[0].served.socket).unwrap();
    drop(Nbd::over(socket, ID, true).unwrap());
    until("the end is reported", || ended(&reports) == 1);
    let found: Vec<_> = reports.lock().unwrap().drain(..).collect();
    assert!(found.iter().all(|(by, visit)| *by == ENGINES && visit.host == Some(LOCAL)));
    assert_eq!(found.len(), 2, "{found:?}");
}

/// The first node is the volume's home, and the second one relays.
#[test]
fn each_front_reports_its_own_clients_once_and_the_home_does_not() {
    let reports = Reports::default();
    let cluster = cluster(&reports);
    let other = VolumeId::from_bits(9);
    for (number, node) in cluster.nodes.iter().enumerate() {
        drop(connect(node.address(), true).unwrap());
        until("the end is reported", || ended(&reports) == 1);
        assert!(Nbd::over(stream(node.address()), other, true).is_none());
        drop(pass(&cluster, number, LOCAL).unwrap());
        until("the end is reported", || ended(&reports) == 2);
        assert!(pass(&cluster, number, STRANGER).is_none());
        let refused = || VisitOutcome::Refused("no such volume is attached to it".to_owned());
        let expected = [
            (VisitOutcome::Connected, None, ID),
            (VisitOutcome::Ended, None, ID),
            (refused(), None, other),
            (VisitOutcome::Connected, Some(LOCAL), ID),
            (VisitOutcome::Ended, Some(LOCAL), ID),
            (refused(), Some(STRANGER), ID),
        ];
        let address = HostAddress::Local;
        let expected = expected.map(|(outcome, host, volume)| {
            let is_proven = host.is_some();
            (node.id, Visit { outcome, address, host, is_proven, volume: Some(volume) })
        });
        assert_eq!(*reports.lock().unwrap(), expected);
        reports.lock().unwrap().clear();
    }
}

#[test]
fn a_client_that_moves_with_its_volume_is_reported_once() {
    let reports = Reports::default();
    let cluster = cluster(&reports);
    let mut client = cluster.connect(0, true);
    let read = |client: &mut Nbd| {
        let answer = client.ask(evenkeel_core::request::Operation::Read, 0, 512, &[]);
        assert_eq!(answer, crate::support::Answer::Done(vec![0; 512]));
    };
    read(&mut client);
    for home in [1, 0] {
        cluster.give_up(1 - home);
        cluster.settle(home);
        read(&mut client);
    }
    assert_eq!(reports.lock().unwrap().len(), 1);
    drop(client);
    until("the end is reported", || ended(&reports) == 1);
    drop(cluster);
    let found: Vec<_> = reports.lock().unwrap().drain(..).collect();
    let outcomes: Vec<_> = found.iter().map(|(node, visit)| (node.0, &visit.outcome)).collect();
    assert_eq!(outcomes, [(1, &VisitOutcome::Connected), (1, &VisitOutcome::Ended)]);
}
