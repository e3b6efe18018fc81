//! The capacity that may be sold with all nodes together: they share a device, and each has a
//! machine.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use evenkeel_control::nodes::State;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::qos::admission::{DomainFloor, SOLD_SHARE_PPM, Strain};
use evenkeel_wire::agent::{Capacity, Command, Failed, Measured, Reply};

use super::{Fleet, not_yet};

impl Fleet {
    /// Returns the capacity of the cluster.
    ///
    /// The device counts as its slowest node reports it: a node may find it slower than another, or
    /// use an older calibration until its restart. The resources of the machines add up over the
    /// nodes in service. A node that is away counts with its last report.
    pub(super) fn capacity(&self) -> Result<Reply, Failed> {
        let replies = self.call_each(&Command::Capacity);
        let mut floors = self.floors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut least: Option<Capacity> = None;
        for (number, reply) in replies {
            let Reply::Capacity(capacity) = reply else { continue };
            if let Capacity::Measured(measured) = &capacity {
                floors.insert(number, measured.domain);
            }
            least = match (least, capacity) {
                (None, capacity) => Some(capacity),
                (Some(Capacity::Measured(a)), Capacity::Measured(b)) => {
                    Some(Capacity::Measured(if rank(&b) < rank(&a) { b } else { a }))
                }
                // A node without a calibration guarantees nothing.
                _ => Some(Capacity::Unknown),
            };
        }
        {
            let fleet_state = self.state();
            let is_to_serve = |number: &NodeId| {
                fleet_state
                    .nodes
                    .get(number)
                    .is_some_and(|node_state| node_state.member.state == State::Up)
            };
            floors.retain(|number, _| is_to_serve(number));
        }
        if let Some(Capacity::Measured(measured)) = &mut least {
            add_up(measured, &floors);
        }
        let none = || not_yet("no node of the cluster answers".to_owned());
        least.map(Reply::Capacity).ok_or_else(none)
    }
}

/// Returns the rate of the device that may be sold as a node reports it, in I/Os of 16 KiB a
/// second, half of them writes; and the part of the device that is available, for devices without a
/// limit.
fn rank(measured: &Measured) -> (u64, u32) {
    let now = measured.device_now().for_sale(SOLD_SHARE_PPM);
    let strained = Strain::for_sale(&measured.strained).unwrap_or(now);
    (now.min(strained), measured.left_ppm)
}

/// Adds up the resources of all nodes. A resource that one node does not report is unknown.
fn add_up(measured: &mut Measured, floors: &BTreeMap<NodeId, DomainFloor>) {
    if floors.is_empty() {
        return;
    }
    let sum = |of: fn(&DomainFloor) -> Option<u64>| {
        floors.values().map(of).try_fold(0_u64, |sum, it| Some(sum.saturating_add(it?)))
    };
    measured.domain = DomainFloor {
        network_in_bytes_per_second: sum(|it| it.network_in_bytes_per_second),
        network_out_bytes_per_second: sum(|it| it.network_out_bytes_per_second),
        cpu_ns_per_second: sum(|it| it.cpu_ns_per_second),
        cpu_costs: measured.domain.cpu_costs,
    };
    measured.nodes = floors.values().copied().collect();
}
