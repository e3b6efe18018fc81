//! What may be sold with all nodes together: they have one device below them, and a machine each.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use evenkeel_control::nodes::State;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::qos::admission::{DomainFloor, SOLD_SHARE_PPM, Strain};
use evenkeel_wire::agent::{Capacity, Command, Failed, Measured, Reply};

use super::{Fleet, not_yet};

impl Fleet {
    /// The slowest view of the device counts: one node finds it slower than another, or goes by
    /// an older calibration until it is started again. What the machines have adds up: those of the
    /// nodes that are to have volumes, with what one that is away has said last.
    pub(super) fn capacity(&self) -> Result<Reply, Failed> {
        let replies = self.each(&Command::Capacity);
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
                // Without a calibration a node guarantees nothing.
                _ => Some(Capacity::Unknown),
            };
        }
        {
            let books = self.books();
            let is_to_serve = |number: &NodeId| {
                books.seats.get(number).is_some_and(|seat| seat.member.state == State::Up)
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

/// What may be sold of the device as a node sees it, in I/Os of 16 KiB a second, half writes; and
/// of a device that does any number, what of it is there.
fn rank(measured: &Measured) -> (u64, u32) {
    let now = measured.device_now().for_sale(SOLD_SHARE_PPM);
    let strained = Strain::for_sale(&measured.strained).unwrap_or(now);
    (now.min(strained), measured.left_ppm)
}

/// Counts what all nodes have. Of a resource that one of them does not tell, nothing is known.
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
