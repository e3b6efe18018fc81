//! The [`Nodes`] of the control plane, implemented by the fleet.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::nodes::{Counts, NodeView, Nodes, State};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_os::clock;
use evenkeel_telemetry::metrics::{EtcdAnswerNow, EtcdMemberNow};
use evenkeel_wire::agent::{Attachment, Failed};

use super::Fleet;
use super::failover::FleetThreads;
use crate::etcd::upkeep::{MemberAnswer, MemberSeen};

/// Maximum time to wait until a written state is in this process's copy of etcd.
const SEEN_MAX: Duration = Duration::from_secs(2);
/// Time between two checks of that copy.
const SEEN_LOOK: Duration = Duration::from_millis(20);

impl Nodes for Fleet {
    fn keep(self: Arc<Self>) -> io::Result<Box<dyn Send>> {
        Ok(Box::new(FleetThreads::start(&self)?))
    }

    fn term(&self) -> u64 {
        self.cluster.term()
    }

    fn views(&self) -> Vec<NodeView> {
        self.state().views(self.cluster.here())
    }

    fn set_state(&self, node: &str, state: State) -> Result<bool, String> {
        let is_there = self.cluster.set_state(node, state)?;
        // The fleet knows the new state before the reply, so the next request uses it.
        let deadline = clock::since_boot() + SEEN_MAX;
        while is_there && clock::since_boot() < deadline {
            let members = self.cluster.members();
            let member = members.iter().find(|member| member.name == node);
            if let Some(member) = member.filter(|member| member.state == state) {
                self.connect_to(member);
                break;
            }
            clock::pause(SEEN_LOOK);
        }
        Ok(is_there)
    }

    fn move_to(&self, id: VolumeId, to: NodeId) -> Result<(), Failed> {
        self.move_volume(id, to)
    }

    fn home_name(&self, id: VolumeId) -> Option<String> {
        let fleet_state = self.state();
        fleet_state.homes.get(&id).map(|home| fleet_state.name(*home))
    }

    fn part_ppm(&self, number: NodeId) -> Option<u32> {
        self.part_of(number)
    }

    fn counts(&self) -> Counts {
        self.state().counts
    }

    fn etcd(&self) -> Vec<EtcdMemberNow> {
        self.cluster.etcd().into_iter().map(etcd_member).collect()
    }

    fn expect(&self, volumes: Vec<(VolumeId, Vec<Attachment>)>) {
        let mut fleet_state = self.state();
        volumes.into_iter().for_each(|(id, attachments)| fleet_state.expect(id, attachments));
    }

    fn keep_only(&self, known: &BTreeSet<VolumeId>) {
        let gone: Vec<VolumeId> =
            self.state().homes.keys().filter(|id| !known.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| self.forget(id));
    }
}

fn etcd_member(seen: MemberSeen) -> EtcdMemberNow {
    let answer = |answer: MemberAnswer| EtcdAnswerNow {
        took: answer.took,
        has_leader: answer.has_leader,
        bytes: answer.bytes,
        in_use: answer.in_use,
        quota: answer.quota,
        is_full: answer.is_full,
    };
    EtcdMemberNow { endpoint: seen.endpoint, answer: seen.answer.map(answer) }
}
