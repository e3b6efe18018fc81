//! Directed tests of single cases of the fleet.

use std::collections::BTreeSet;

use evenkeel_control::nodes::{Nodes, State};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::{Duration, Instant};
use evenkeel_wire::agent::{
    Agent, Attachment, Capacity, Command, CreditReport, FailedKind, HostAddress, Measured, Reply,
    VolumeState,
};

use super::super::sharing;
use super::control_plane::{CAPACITY, ControlPlane};
use super::world::{Life, credits, name};
use super::{amount, node};

/// Creates a cluster of `nodes` nodes, with a volume at each of the first `volumes` nodes.
fn control(nodes: u32, volumes: u32) -> ControlPlane {
    let mut control = ControlPlane::new(nodes);
    control.check_nodes();
    for number in 1..=volumes {
        let id = control.create();
        assert_eq!(control.fleet.home(id), Some(node(number)));
    }
    control
}

fn lose(control: &mut ControlPlane, number: u32) {
    control.world.things().nodes.get_mut(&number).unwrap().1 = false;
    control.change(number, Life::Alive, Life::Paused);
    (0..3).for_each(|_| control.check_nodes());
}

#[test]
fn volume_of_a_lost_node_is_served_elsewhere_with_its_unleased_balance() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    let host = *control.hosts.keys().last().unwrap();
    control.attach_to(id, host);
    control.world.things().spend(id, 0, 100);
    lose(&mut control, 2);
    control.fleet.apply_unapplied();
    let things = control.world.things();
    assert_eq!(things.fences, [2]);
    assert_eq!(things.holders(id), [1]);
    assert_eq!(things.processes[0].volumes[&id].balance, CAPACITY / 2);
}

#[test]
fn restarted_node_gets_all_volumes_and_hosts_again() {
    for is_elsewhere in [false, true] {
        let mut control = control(2, 2);
        let id = *control.volumes.keys().last().unwrap();
        let host = *control.hosts.keys().next().unwrap();
        control.attach_to(id, host);
        control.world.things().restart(2, is_elsewhere);
        control.check_nodes();
        control.fleet.apply_unapplied();
        control.check_end();
        assert_eq!(control.fleet.home(id), Some(node(2)));
        assert!(control.world.things().fences.is_empty());
    }
}

#[test]
fn drained_node_moves_volumes_by_host_and_they_keep_their_credits() {
    let mut control = control(3, 0);
    let hosts: Vec<_> = control.hosts.keys().copied().collect();
    let ids: Vec<_> = (0..6).map(|_| control.create()).collect();
    ids[..3].iter().for_each(|id| control.attach_to(*id, hosts[0]));
    let from = control.fleet.home(ids[0]).unwrap();
    control.world.things().spend(ids[0], 0, 77);
    control.fleet.set_state(&name(from.0), State::Draining).unwrap();
    (0..3).for_each(|_| {
        control.check_nodes();
        control.fleet.drain_nodes();
    });
    control.check();
    control.check_end();
    assert_ne!(control.fleet.home(ids[0]), Some(from));
    let Reply::Report(report) = control.fleet.call(Command::Report) else { panic!() };
    assert_eq!(amount(report.volumes[0].balances), CAPACITY - 77);
    assert_eq!(amount(report.hosts[0].balances), CAPACITY - 77);
    assert!(control.world.things().fences.is_empty());
}

#[test]
fn command_for_a_volume_of_an_absent_node_succeeds_after_the_takeover() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    control.change(2, Life::Alive, Life::Paused);
    let host = *control.hosts.keys().next().unwrap();
    control.attach_to(id, host);
    assert!(control.volumes[&id].is_pending);
    (0..3).for_each(|_| control.check_nodes());
    assert_eq!(control.fleet.home(id), Some(node(2)), "its lease holds");
    lose(&mut control, 2);
    control.repeat();
    control.check_end();
    assert_eq!(control.fleet.home(id), Some(node(1)));
}

#[test]
fn snapshots_of_one_moment_move_volumes_of_two_nodes_to_one() {
    let control = control(2, 2);
    let number = |id: &evenkeel_core::ids::VolumeId| (*id, SnapshotId::from_bits(id.bits()));
    let set: Vec<_> = control.volumes.keys().map(number).collect();
    assert_eq!(control.fleet.call(Command::SnapshotSet(set)), Reply::Done);
    assert_eq!(control.world.things().snapshots.len(), 2);
    control.check_end();
    control.volumes.keys().for_each(|id| assert_eq!(control.fleet.home(*id), Some(node(1))));
}

#[test]
fn snapshots_of_one_moment_are_made_at_a_home_that_opens_all_volumes() {
    let control = control(2, 2);
    let ids: Vec<_> = control.volumes.keys().copied().collect();
    control.world.things().keyless = Some(0);
    let second = ids[1];
    assert!(control.fleet.move_to(second, node(1)).is_err());
    let number = |id: &VolumeId| (*id, SnapshotId::from_bits(id.bits()));
    let set: Vec<_> = ids.iter().map(number).collect();
    assert_eq!(control.fleet.call(Command::SnapshotSet(set)), Reply::Done);
    ids.iter().for_each(|id| assert_eq!(control.fleet.home(*id), Some(node(2))));
    control.check_end();
}

#[test]
fn snapshots_of_a_drained_nodes_volumes_are_made_at_another() {
    let mut control = control(2, 2);
    control.fleet.set_state(&name(1), State::Draining).unwrap();
    control.check_nodes();
    let number = |id: &evenkeel_core::ids::VolumeId| (*id, SnapshotId::from_bits(id.bits()));
    let set: Vec<_> = control.volumes.keys().map(number).collect();
    assert_eq!(control.fleet.call(Command::SnapshotSet(set)), Reply::Done);
    control.volumes.keys().for_each(|id| assert_eq!(control.fleet.home(*id), Some(node(2))));
}

#[test]
fn single_node_is_never_fenced_and_draining_it_changes_nothing() {
    let mut control = control(1, 1);
    let id = *control.volumes.keys().next().unwrap();
    lose(&mut control, 1);
    assert!(control.world.things().fences.is_empty());
    control.heal();
    control.fleet.set_state(&name(1), State::Draining).unwrap();
    control.check_nodes();
    control.fleet.drain_nodes();
    let host = *control.hosts.keys().next().unwrap();
    control.attach_to(id, host);
    control.check_end();
}

#[test]
fn lease_without_an_answer_counts_as_spent_after_a_takeover() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    let host = *control.hosts.keys().last().unwrap();
    control.attach_to(id, host);
    control.volumes.get_mut(&id).unwrap().row = 10;
    control.world.things().lose_next = Some((|it| matches!(it, Command::Lease(_)), true));
    let volumes = vec![(id, credits(10))];
    control.fleet.call(Command::Lease(CreditReport { volumes, hosts: vec![] }));
    control.world.things().spend(id, 0, CAPACITY);
    lose(&mut control, 2);
    control.fleet.apply_unapplied();
    assert_eq!(control.world.things().truth.volumes[&id], 10);
}

#[test]
fn volume_released_without_an_answer_is_served_again_with_its_unleased_balance() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    let host = *control.hosts.keys().last().unwrap();
    control.attach_to(id, host);
    control.world.things().spend(id, 0, 300);
    control.world.things().lose_next = Some((|it| matches!(it, Command::Release(_)), true));
    let failed = control.fleet.move_to(id, node(1)).unwrap_err();
    assert_eq!(failed.kind, FailedKind::Unanswered);
    control.check_end();
    assert_eq!(control.fleet.home(id), Some(node(2)));
    assert_eq!(control.world.things().truth.volumes[&id], CAPACITY / 2);
}

#[test]
fn volumes_of_a_refused_move_are_served_at_their_former_home() {
    let mut control = control(2, 2);
    let ids: Vec<_> = control.volumes.keys().copied().collect();
    let host = *control.hosts.keys().next().unwrap();
    for id in &ids {
        control.attach_to(*id, host);
    }
    let from = control.fleet.home(ids[0]).unwrap();
    let to = node(if from == node(1) { 2 } else { 1 });
    control.world.things().spend(ids[0], 0, 300);
    control.world.things().keyless = Some(to.0 as usize - 1);
    let failed = control.fleet.move_to(ids[0], to).unwrap_err();
    assert_eq!(failed.kind, FailedKind::Refused, "the volumes are as they were");
    let name = name(from.0);
    let back = format!("cannot be had; the node {name} serves what it had before");
    assert!(failed.message.ends_with(&back), "{}", failed.message);
    for id in &ids {
        assert_eq!(control.fleet.home(*id), Some(from));
        assert_eq!(control.world.things().holders(*id).len(), 1);
    }
    assert_eq!(control.world.things().truth.volumes[&ids[0]], CAPACITY - 300);
    control.check_end();
}

#[test]
fn drained_and_lost_volumes_avoid_a_node_that_cannot_open_them() {
    let mut control = control(3, 3);
    (0..3).for_each(|_| _ = control.create());
    control.world.things().keyless = Some(0);
    control.fleet.set_state(&name(2), State::Draining).unwrap();
    for _ in 0..10 {
        control.check_nodes();
        control.fleet.drain_nodes();
    }
    let of_first = control.fleet.state().at(node(1));
    assert_eq!(of_first.len(), 2, "those that it has opened before");
    assert!(control.fleet.state().at(node(2)).is_empty());
    control.check_end();

    // No other node can open what the node 3 has. Each volume is moved there and back once.
    control.fleet.set_state(&name(3), State::Draining).unwrap();
    let drain = |control: &mut ControlPlane| {
        for _ in 0..5 {
            control.check_nodes();
            control.fleet.drain_nodes();
        }
        control.fleet.state().counts.moves
    };
    let moves = drain(&mut control);
    assert_eq!(drain(&mut control), moves);
    let of_last = control.fleet.state().at(node(3));
    assert_eq!(of_last.len(), 4);
    assert!(of_last.iter().all(|id| control.world.things().holders(*id) == [3]));

    control.fleet.set_state(&name(2), State::Up).unwrap();
    control.check_nodes();
    lose(&mut control, 3);
    control.fleet.apply_unapplied();
    assert_eq!(control.fleet.state().at(node(2)).len(), 4);
    assert_eq!(control.fleet.state().at(node(1)), of_first);
    control.check_end();
}

/// Returns the state of a volume as the fleet has it, encrypted.
fn encrypted(control: &ControlPlane, id: VolumeId) -> VolumeState {
    let state = control.fleet.state().volume(id).cloned().unwrap();
    VolumeState { is_encrypted: true, ..state }
}

#[test]
fn encrypted_volumes_get_homes_at_nodes_with_the_key_of_most() {
    let mut control = control(3, 1);
    for (number, key) in [(1, "other"), (2, "key"), (3, "key")] {
        control.world.things().keys.insert(number, key.to_owned());
    }
    control.check_nodes();
    let plain = *control.volumes.keys().next().unwrap();
    let of_first = encrypted(&control, plain);
    for number in 100..106 {
        let state = VolumeState { id: VolumeId::from_bits(number), ..of_first.clone() };
        assert_eq!(control.fleet.call(Command::Create(state)), Reply::Done);
    }
    let at = |number| control.fleet.state().at(node(number)).len();
    assert_eq!([at(1), at(2), at(3)], [1, 3, 3]);
}

/// The previous leader may have chosen a home that cannot open the volume, and a leader that has
/// just been elected does not know which volumes are encrypted.
#[test]
fn new_leader_gives_a_volume_another_home_if_the_recorded_one_cannot_open_it() {
    for is_published in [true, false] {
        let mut control = control(3, 3);
        let id = *control.volumes.keys().next().unwrap();
        let state = encrypted(&control, id);
        control.elect();
        control.world.things().keyless = Some(2);
        if is_published {
            for number in [1, 2] {
                control.world.things().keys.insert(number, "key".to_owned());
            }
            control.check_nodes();
        }
        {
            let mut fleet_state = control.fleet.state();
            fleet_state.set_home(id, Some(node(3)));
            fleet_state.mark_lost(id);
        }
        assert_eq!(control.fleet.call(Command::Apply(state)), Reply::Done);
        assert_ne!(control.fleet.home(id), Some(node(3)), "{is_published}");
        assert_eq!(control.world.things().holders(id), [control.fleet.home(id).unwrap().0]);
    }
}

#[test]
fn volumes_of_a_lost_node_that_no_node_can_open_have_a_home_and_are_served_later() {
    let mut control = control(2, 2);
    control.world.things().keyless = Some(0);
    let of_second = control.fleet.state().at(node(2));
    lose(&mut control, 2);
    let fences = control.world.things().fences.len();
    for _ in 0..5 {
        control.check_nodes();
        control.fleet.apply_unapplied();
    }
    assert_eq!(control.world.things().fences.len(), fences, "it is fenced once");
    assert!(of_second.iter().all(|id| control.fleet.home(*id) == Some(node(1))));
    assert_eq!(control.fleet.state().unserved.len(), of_second.len());
    control.world.things().keyless = None;
    control.fleet.apply_unapplied();
    assert!(control.fleet.state().unserved.is_empty());
    assert!(of_second.iter().all(|id| control.world.things().holders(*id) == [1]));
}

#[test]
fn attachment_that_a_node_refuses_leaves_the_volume_served_where_it_was() {
    let mut control = control(2, 2);
    let ids: Vec<_> = control.volumes.keys().copied().collect();
    let host = *control.hosts.keys().next().unwrap();
    control.attach_to(ids[0], host);
    let place = control.fleet.home(ids[0]).unwrap();
    let former = control.fleet.home(ids[1]).unwrap();
    assert_ne!(place, former);
    control.world.things().keyless = Some(place.0 as usize - 1);
    let mut state = control.fleet.state().volume(ids[1]).cloned().unwrap();
    state.attachments.push(Attachment { host, address: HostAddress::Local });
    let Reply::Failed(failed) = control.fleet.call(Command::Apply(state)) else { panic!() };
    assert!(failed.message.ends_with("serves what it had before"), "{}", failed.message);
    assert_eq!(control.fleet.home(ids[1]), Some(former));
    assert_eq!(control.world.things().holders(ids[1]), [former.0]);
    control.check_end();
}

/// After etcd was away, all leases have ended, while all nodes live.
#[test]
fn new_leader_does_not_move_volumes_of_nodes_without_a_lease() {
    let mut control = control(3, 3);
    for number in [2, 3] {
        control.world.things().nodes.get_mut(&number).unwrap().1 = false;
    }
    control.elect();
    (0..10).for_each(|_| {
        control.check_nodes();
        control.fleet.apply_unapplied();
        control.fleet.drain_nodes();
    });
    let homes: Vec<_> = control.volumes.keys().map(|id| control.fleet.home(*id)).collect();
    assert_eq!(homes, [Some(node(1)), Some(node(2)), Some(node(3))]);
}

#[test]
fn new_leader_connects_to_nodes_without_a_lease_before_it_takes_over() {
    let mut control = control(3, 3);
    control.elect();
    for number in [2, 3] {
        control.world.things().nodes.get_mut(&number).unwrap().1 = false;
    }
    control.world.things().kill(3);
    (0..10).for_each(|_| control.check_nodes());
    assert_eq!(control.world.things().fences, [3]);
    let lost = *control.volumes.keys().last().unwrap();
    assert_ne!(control.fleet.home(lost), Some(node(3)));
    // A node to which no connection succeeds is not fenced again.
    control.world.things().faults = 1;
    (0..3).for_each(|_| control.check_nodes());
    assert_eq!(control.world.things().fences, [3]);
}

#[test]
fn closed_fleet_does_nothing_and_waits_for_no_node() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    control.fleet.close();
    let Reply::Failed(failed) = control.fleet.call(Command::Report) else { panic!() };
    assert_eq!(failed.kind, FailedKind::Down);
    assert_eq!(control.fleet.move_to(id, node(1)).unwrap_err().kind, FailedKind::Down);
    lose(&mut control, 2);
    assert!(control.world.things().fences.is_empty());
}

#[test]
fn host_at_an_absent_node_is_changed_after_the_node_is_lost() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    let host = *control.hosts.keys().next().unwrap();
    control.attach_to(id, host);
    control.change(2, Life::Alive, Life::Paused);
    control.apply_host(0);
    assert!(control.hosts[&host].is_pending);
    lose(&mut control, 2);
    control.repeat();
    assert!(!control.hosts[&host].is_pending);
    control.fleet.apply_unapplied();
    control.check_end();
}

/// Returns the lasting and the lent part of each node's newest process.
fn parts(control: &ControlPlane, now: Instant, nodes: u32) -> Vec<(u32, u32)> {
    // The report of one node reaches the others in the next round.
    for _ in 0..2 {
        (1..=nodes).for_each(|number| control.fleet.divide_with(node(number), now));
    }
    let mut things = control.world.things();
    let part = |number| things.newest(number).part.map(|part| (part.lasting_ppm, part.lent_ppm));
    (1..=nodes).map(part).map(Option::unwrap).collect()
}

#[test]
fn device_is_divided_by_the_reservations_of_volumes_at_their_homes() {
    let mut control = control(3, 2);
    let later = |s| sharing::now() + Duration::from_secs(s);
    // Two of eight parts are reserved, and each node has two of the others. The third node needs
    // none.
    let even = [(375_000, 125_000), (375_000, 125_000), (250_000, 0)];
    assert_eq!(parts(&control, later(10), 3), even);
    // A volume that moves takes its reservation along.
    let id = *control.volumes.keys().next().unwrap();
    control.fleet.move_to(id, node(2)).unwrap();
    let moved = [(250_000, 0), (500_000, 500_000), (250_000, 0)];
    assert_eq!(parts(&control, later(20), 3), moved);
    // The part of a node without an answer is kept for it, and not lent.
    control.change(2, Life::Alive, Life::Paused);
    control.check_nodes();
    let hung = parts(&control, later(30), 3);
    assert_eq!((hung[0], hung[2]), ((250_000, 0), (250_000, 0)));
    // After the node is fenced, the others get the reservations of its volumes.
    lose(&mut control, 2);
    control.fleet.apply_unapplied();
    let left = parts(&control, later(40), 3);
    assert_eq!((left[0].0 + left[2].0, left[0].1 + left[2].1), (1_000_000, 0));
    assert_eq!(left[0].0, left[2].0, "one volume at each");
}

fn measured(control: &ControlPlane) -> Measured {
    match control.fleet.call(Command::Capacity) {
        Reply::Capacity(Capacity::Measured(measured)) => *measured,
        other => panic!("{other:?}"),
    }
}

#[test]
fn capacity_adds_up_machines_and_uses_the_slowest_report_of_the_device() {
    let mut control = control(3, 1);
    let all = measured(&control);
    let cpus = |all: &Measured| {
        let each = all.nodes.iter().map(|node| node.cpu_ns_per_second.unwrap());
        (all.domain.cpu_ns_per_second.unwrap(), each.collect::<Vec<_>>())
    };
    assert_eq!(cpus(&all), (6, vec![1, 2, 3]));
    assert_eq!((all.left_ppm, all.device.time_ns_per_second), (899_998, 8_000));
    assert_eq!(all.domain.network_in_bytes_per_second, None, "one node does not report it");
    // A node that is away counts with its last report.
    control.change(2, Life::Alive, Life::Paused);
    control.check_nodes();
    assert_eq!(cpus(&measured(&control)), (6, vec![1, 2, 3]));
    // A drained node does not count.
    control.fleet.set_state(&name(3), State::Draining).unwrap();
    let left = measured(&control);
    assert_eq!(cpus(&left), (3, vec![1, 2]));
    assert_eq!(left.domain.network_in_bytes_per_second, Some(20));
}

#[test]
fn volume_without_a_home_is_reported_and_its_deletion_waits_for_a_silent_node() {
    let mut control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    // The leader has lost the homes and the volumes.
    control.fleet.keep_only(&BTreeSet::new());
    assert_eq!(control.fleet.home(id), None);
    let Reply::Report(report) = control.fleet.call(Command::ReportOf(vec![id])) else { panic!() };
    assert_eq!(report.volumes.len(), 1, "node 2 has it open");
    // Another node does not delete a volume that a silent node may have open.
    control.change(2, Life::Alive, Life::Paused);
    control.check_nodes();
    let Reply::Failed(failed) = control.fleet.call(Command::Delete(id)) else { panic!("deleted") };
    assert_eq!(failed.kind, FailedKind::Unanswered);
    assert!(failed.message.contains(&name(2)), "{}", failed.message);
    assert!(control.world.things().stored.contains(&id));
}

#[test]
#[should_panic(expected = "the volumes of node 1")]
fn invariants_detect_a_home_that_is_not_counted() {
    let control = control(2, 2);
    let id = *control.volumes.keys().last().unwrap();
    control.fleet.state().homes.insert(id, node(1));
    control.fleet.check_nodes();
}

#[test]
#[should_panic(expected = "must be applied, and is unknown")]
fn invariants_detect_an_unapplied_volume_that_is_unknown() {
    let control = control(1, 1);
    let id = *control.volumes.keys().last().unwrap();
    control.fleet.state().unapplied.insert(id);
    control.fleet.state().forget(id);
    control.fleet.check_nodes();
}
