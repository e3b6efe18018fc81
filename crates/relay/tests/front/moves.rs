//! Homes that change under load: no request fails, none is answered twice, and acknowledged writes
//! are kept.

use crate::cluster::{Cluster, ID, SIZE, connect};
use crate::link::Relay;
use crate::load::{Load, more, under_load};
use crate::support::paced;
use evenkeel_wire::agent::{Command, Reply};

/// Requests take a while, so some are under way at every moment.
const DEVICE: &str = "channels=4,read_us=200,write_us=300";

fn loads(cluster: &Cluster) -> Vec<Load> {
    let client = |node, structured| cluster.connect(node, structured);
    vec![
        Load::new(client(0, true), (0, 3), true),
        Load::new(client(0, false), (1, 3), false),
        Load::new(client(1, true), (2, 3), true),
    ]
}

#[test]
fn a_volume_moves_fifty_times_and_its_clients_notice_nothing() {
    let cluster = Cluster::with(2, DEVICE, |config| config);
    under_load(loads(&cluster), |answers| {
        for number in 0..50 {
            more(answers, 10);
            let from = number % 2;
            let to = (number + 1) % 2;
            cluster.release(from);
            cluster.settle(to);
        }
    });
    let reconnected = |node: usize| {
        let front = cluster.nodes[node].front.as_ref().unwrap();
        front.figures().reconnected
    };
    assert!(reconnected(0) >= 100 && reconnected(1) >= 50);
}

#[test]
fn a_third_node_relays_wherever_the_volume_goes() {
    let cluster = Cluster::with(3, DEVICE, |config| config);
    let loads = vec![Load::new(cluster.connect(2, true), (0, 1), true)];
    under_load(loads, |answers| {
        for number in 0..10 {
            more(answers, 20);
            cluster.release(number % 2);
            cluster.settle((number + 1) % 2);
        }
    });
}

#[test]
fn stopping_home_sends_its_clients_no_refusal() {
    let mut cluster = Cluster::with(2, DEVICE, |config| config);
    let loads = vec![
        Load::new(cluster.connect(1, true), (0, 2), true),
        Load::new(cluster.connect(1, false), (1, 2), false),
    ];
    // So slow that most requests under way wait for tokens, and are refused.
    let slow = paced(ID, SIZE, 400);
    assert_eq!(cluster.nodes[0].served.call(Command::Apply(slow)), Reply::Done);
    let engine = cluster.nodes[0].served.engine.take().unwrap();
    under_load(loads, |answers| {
        more(answers, 100);
        // The engine finishes the requests that it has begun and refuses the rest. The map does not
        // know.
        drop(engine);
        cluster.settle(1);
        more(answers, 100);
    });
}

#[test]
fn a_home_that_dies_without_a_word_is_replaced() {
    let mut cluster = Cluster::with(2, DEVICE, |config| config);
    let loads = vec![
        Load::new(cluster.connect(1, true), (0, 2), true),
        Load::new(cluster.connect(1, false), (1, 2), false),
    ];
    let front = cluster.nodes[0].front.take().unwrap();
    under_load(loads, |answers| {
        more(answers, 100);
        front.stop();
        // Requests under way there get no reply; then the node is fenced.
        cluster.nodes[0].drain();
        cluster.settle(1);
        more(answers, 100);
    });
}

#[test]
fn a_network_that_cuts_connections_between_nodes_costs_no_request() {
    let cluster = Cluster::with(2, DEVICE, |config| config);
    let front = cluster.nodes[0].front.as_ref().unwrap();
    let relay = Relay::to(front.node_address(), Vec::new());
    cluster.map.divert(cluster.nodes[0].id, relay.address);
    let loads = vec![
        Load::new(cluster.connect(1, true), (0, 2), true),
        Load::new(cluster.connect(1, false), (1, 2), false),
    ];
    under_load(loads, |answers| {
        for _ in 0..30 {
            more(answers, 30);
            relay.cut();
        }
        more(answers, 30);
    });
    // No connection is left behind.
    drop(connect(cluster.nodes[1].address(), true));
    crate::cluster::until("all are gone", || {
        cluster.nodes.iter().all(|node| {
            let figures = node.front.as_ref().unwrap().figures();
            (figures.clients, figures.relayed, figures.held_bytes) == (0, 0, 0)
        })
    });
}
