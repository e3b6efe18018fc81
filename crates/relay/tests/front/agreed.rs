//! A front's handshake offers the same as the data plane's, wherever the volume is.

use crate::cluster::{Cluster, ID, stream};
use evenkeel_wire::nbd::handshake::{Client, ClientGoal, ClientPlan, ClientStep};
use std::io::{Read, Write};
use std::net::SocketAddr;

/// Returns the result of a handshake; `None` if the connection ends.
pub fn shake(address: SocketAddr, plan: &ClientPlan) -> Option<ClientStep> {
    let mut stream = stream(address);
    stream.set_read_timeout(Some(crate::support::ANSWER_MAX)).unwrap();
    let mut client = Client::new(plan.clone());
    let mut byte = [0];
    loop {
        match client.poll_output() {
            Some(ClientStep::Send(bytes)) => stream.write_all(&bytes).ok()?,
            Some(step) => return Some(step),
            None => {
                stream.read_exact(&mut byte).ok()?;
                client.handle(&byte);
            }
        }
    }
}

#[test]
fn the_data_plane_says_the_same() {
    let cluster = Cluster::new(2);
    let direct = cluster.nodes[0].served.engine.as_ref().unwrap().tcp_addresses()[0];
    let near = cluster.nodes[0].address();
    let far = cluster.nodes[1].address();
    let goals = [
        ClientGoal::Transmit,
        ClientGoal::TransmitAnySize,
        ClientGoal::TransmitOldWay,
        ClientGoal::Describe,
        ClientGoal::List,
    ];
    let names = [ID.to_string(), "vol-00000000000000009".into(), "other".into(), String::new()];
    for goal in goals {
        for export in &names {
            for (structured_replies, base_allocation) in
                [(false, false), (true, false), (true, true)]
            {
                let export = export.clone();
                let plan = ClientPlan { export, goal, structured_replies, base_allocation };
                let told = shake(direct, &plan);
                assert_eq!(shake(near, &plan), told, "{plan:?}");
                if goal != ClientGoal::List {
                    assert_eq!(shake(far, &plan), told, "{plan:?}");
                }
            }
        }
    }
}
