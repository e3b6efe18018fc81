//! What the fleet does in some cases that matter, one by one.

use std::collections::BTreeSet;

use evenkeel_control::nodes::{Nodes, State};
use evenkeel_core::ids::SnapshotId;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_wire::agent::{Agent, Capacity, Command, CreditReport, FailedKind, Measured, Reply};

use super::super::sharing;
use super::desk::{CAPACITY, Desk};
use super::world::{Life, credits, name};
use super::{amount, node};

/// A cluster of so many nodes, with one volume at each of the first ones.
fn desk(nodes: u32, volumes: u32) -> Desk {
    let mut desk = Desk::new(nodes);
    desk.look();
    for number in 1..=volumes {
        let id = desk.create();
        assert_eq!(desk.fleet.home(id), Some(node(number)));
    }
    desk
}

fn lose(desk: &mut Desk, number: u32) {
    desk.world.things().nodes.get_mut(&number).unwrap().1 = false;
    desk.change(number, Life::Alive, Life::Paused);
    (0..3).for_each(|_| desk.look());
}

#[test]
fn a_volume_of_a_lost_node_is_served_elsewhere_with_what_must_not_have_been_spent() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    let host = *desk.hosts.keys().last().unwrap();
    desk.attach_to(id, host);
    desk.world.things().spend(id, 0, 100);
    lose(&mut desk, 2);
    desk.fleet.apply_owed();
    let things = desk.world.things();
    assert_eq!(things.fences, [2]);
    assert_eq!(things.holders(id), [1]);
    assert_eq!(things.processes[0].volumes[&id].balance, CAPACITY / 2);
}

#[test]
fn a_node_that_is_restarted_is_told_everything_again() {
    for is_elsewhere in [false, true] {
        let mut desk = desk(2, 2);
        let id = *desk.volumes.keys().last().unwrap();
        let host = *desk.hosts.keys().next().unwrap();
        desk.attach_to(id, host);
        desk.world.things().restart(2, is_elsewhere);
        desk.look();
        desk.fleet.apply_owed();
        desk.check_end();
        assert_eq!(desk.fleet.home(id), Some(node(2)));
        assert!(desk.world.things().fences.is_empty());
    }
}

#[test]
fn volumes_of_a_drained_node_move_those_of_one_host_together_and_keep_their_credits() {
    let mut desk = desk(3, 0);
    let hosts: Vec<_> = desk.hosts.keys().copied().collect();
    let ids: Vec<_> = (0..6).map(|_| desk.create()).collect();
    ids[..3].iter().for_each(|id| desk.attach_to(*id, hosts[0]));
    let from = desk.fleet.home(ids[0]).unwrap();
    desk.world.things().spend(ids[0], 0, 77);
    desk.fleet.set_state(&name(from.0), State::Draining).unwrap();
    (0..3).for_each(|_| {
        desk.look();
        desk.fleet.move_on();
    });
    desk.check();
    desk.check_end();
    assert_ne!(desk.fleet.home(ids[0]), Some(from));
    let Reply::Report(report) = desk.fleet.call(Command::Report) else { panic!() };
    assert_eq!(amount(report.volumes[0].balances), CAPACITY - 77);
    assert_eq!(amount(report.hosts[0].balances), CAPACITY - 77);
    assert!(desk.world.things().fences.is_empty());
}

#[test]
fn a_command_for_a_volume_of_a_node_that_is_away_goes_through_after_the_takeover() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    desk.change(2, Life::Alive, Life::Paused);
    let host = *desk.hosts.keys().next().unwrap();
    desk.attach_to(id, host);
    assert!(desk.volumes[&id].is_pending);
    (0..3).for_each(|_| desk.look());
    assert_eq!(desk.fleet.home(id), Some(node(2)), "its lease holds");
    lose(&mut desk, 2);
    desk.repeat();
    desk.check_end();
    assert_eq!(desk.fleet.home(id), Some(node(1)));
}

#[test]
fn volumes_of_two_nodes_are_brought_to_one_for_snapshots_of_one_moment() {
    let desk = desk(2, 2);
    let number = |id: &evenkeel_core::ids::VolumeId| (*id, SnapshotId::from_bits(id.bits()));
    let set: Vec<_> = desk.volumes.keys().map(number).collect();
    assert_eq!(desk.fleet.call(Command::SnapshotSet(set)), Reply::Done);
    assert_eq!(desk.world.things().snapshots.len(), 2);
    desk.check_end();
    desk.volumes.keys().for_each(|id| assert_eq!(desk.fleet.home(*id), Some(node(1))));
}

#[test]
fn volumes_of_a_drained_node_are_snapshotted_at_another() {
    let mut desk = desk(2, 2);
    desk.fleet.set_state(&name(1), State::Draining).unwrap();
    desk.look();
    let number = |id: &evenkeel_core::ids::VolumeId| (*id, SnapshotId::from_bits(id.bits()));
    let set: Vec<_> = desk.volumes.keys().map(number).collect();
    assert_eq!(desk.fleet.call(Command::SnapshotSet(set)), Reply::Done);
    desk.volumes.keys().for_each(|id| assert_eq!(desk.fleet.home(*id), Some(node(2))));
}

#[test]
fn with_one_node_nothing_is_fenced_and_draining_it_changes_nothing() {
    let mut desk = desk(1, 1);
    let id = *desk.volumes.keys().next().unwrap();
    lose(&mut desk, 1);
    assert!(desk.world.things().fences.is_empty());
    desk.heal();
    desk.fleet.set_state(&name(1), State::Draining).unwrap();
    desk.look();
    desk.fleet.move_on();
    let host = *desk.hosts.keys().next().unwrap();
    desk.attach_to(id, host);
    desk.check_end();
}

#[test]
fn a_lease_whose_answer_is_lost_is_not_given_again_when_the_node_is() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    let host = *desk.hosts.keys().last().unwrap();
    desk.attach_to(id, host);
    desk.volumes.get_mut(&id).unwrap().row = 10;
    desk.world.things().lose_next = Some((|it| matches!(it, Command::Lease(_)), true));
    let volumes = vec![(id, credits(10))];
    desk.fleet.call(Command::Lease(CreditReport { volumes, hosts: vec![] }));
    desk.world.things().spend(id, 0, CAPACITY);
    lose(&mut desk, 2);
    desk.fleet.apply_owed();
    assert_eq!(desk.world.things().truth.volumes[&id], 10);
}

#[test]
fn a_volume_whose_release_is_not_answered_is_served_again_without_a_gift() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    let host = *desk.hosts.keys().last().unwrap();
    desk.attach_to(id, host);
    desk.world.things().spend(id, 0, 300);
    desk.world.things().lose_next = Some((|it| matches!(it, Command::Release(_)), true));
    let failed = desk.fleet.move_to(id, node(1)).unwrap_err();
    assert_eq!(failed.kind, FailedKind::Unanswered);
    desk.check_end();
    assert_eq!(desk.fleet.home(id), Some(node(2)));
    assert_eq!(desk.world.things().truth.volumes[&id], CAPACITY / 2);
}

/// After etcd was away all leases have ended, while all nodes live.
#[test]
fn a_leader_that_is_elected_leaves_volumes_where_they_are() {
    let mut desk = desk(3, 3);
    for number in [2, 3] {
        desk.world.things().nodes.get_mut(&number).unwrap().1 = false;
    }
    desk.take_the_lead();
    (0..10).for_each(|_| {
        desk.look();
        desk.fleet.apply_owed();
        desk.fleet.move_on();
    });
    let homes: Vec<_> = desk.volumes.keys().map(|id| desk.fleet.home(*id)).collect();
    assert_eq!(homes, [Some(node(1)), Some(node(2)), Some(node(3))]);
}

#[test]
fn a_leader_that_is_elected_asks_nodes_without_a_lease_before_it_takes_over() {
    let mut desk = desk(3, 3);
    desk.take_the_lead();
    for number in [2, 3] {
        desk.world.things().nodes.get_mut(&number).unwrap().1 = false;
    }
    desk.world.things().kill(3);
    (0..10).for_each(|_| desk.look());
    assert_eq!(desk.world.things().fences, [3]);
    let lost = *desk.volumes.keys().last().unwrap();
    assert_ne!(desk.fleet.home(lost), Some(node(3)));
    // Nobody can be asked where it is that this one was.
    desk.world.things().faults = 1;
    (0..3).for_each(|_| desk.look());
    assert_eq!(desk.world.things().fences, [3]);
}

#[test]
fn a_leader_that_is_deposed_does_nothing_and_waits_for_nobody() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    desk.fleet.close();
    let Reply::Failed(failed) = desk.fleet.call(Command::Report) else { panic!() };
    assert_eq!(failed.kind, FailedKind::Down);
    assert_eq!(desk.fleet.move_to(id, node(1)).unwrap_err().kind, FailedKind::Down);
    lose(&mut desk, 2);
    assert!(desk.world.things().fences.is_empty());
}

#[test]
fn a_host_that_is_known_to_a_node_that_is_away_is_changed_when_that_is_lost() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    let host = *desk.hosts.keys().next().unwrap();
    desk.attach_to(id, host);
    desk.change(2, Life::Alive, Life::Paused);
    desk.apply_host(0);
    assert!(desk.hosts[&host].is_pending);
    lose(&mut desk, 2);
    desk.repeat();
    assert!(!desk.hosts[&host].is_pending);
    desk.fleet.apply_owed();
    desk.check_end();
}

/// The lasting and the lent part of each node's newest process.
fn parts(desk: &Desk, now: Instant, nodes: u32) -> Vec<(u32, u32)> {
    // What one says is told to the others in the next round.
    for _ in 0..2 {
        (1..=nodes).for_each(|number| desk.fleet.divide_with(node(number), now));
    }
    let mut things = desk.world.things();
    let part = |number| things.newest(number).part.map(|it| (it.lasting_ppm, it.lent_ppm));
    (1..=nodes).map(part).map(Option::unwrap).collect()
}

#[test]
fn the_device_is_divided_by_what_volumes_reserve_wherever_they_are() {
    let mut desk = desk(3, 2);
    let later = |s| sharing::now() + Duration::from_secs(s);
    // Two of eight parts are reserved, and two of the others are each node's. The third one needs
    // nothing.
    let even = [(375_000, 125_000), (375_000, 125_000), (250_000, 0)];
    assert_eq!(parts(&desk, later(10), 3), even);
    // A volume takes what it has reserved along.
    let id = *desk.volumes.keys().next().unwrap();
    desk.fleet.move_to(id, node(2)).unwrap();
    let moved = [(250_000, 0), (500_000, 500_000), (250_000, 0)];
    assert_eq!(parts(&desk, later(20), 3), moved);
    // Nothing is lent of a node that does not answer, and what it has is kept for it.
    desk.change(2, Life::Alive, Life::Paused);
    desk.look();
    let hung = parts(&desk, later(30), 3);
    assert_eq!((hung[0], hung[2]), ((250_000, 0), (250_000, 0)));
    // Once it is fenced, the others have what its volumes take along.
    lose(&mut desk, 2);
    desk.fleet.apply_owed();
    let left = parts(&desk, later(40), 3);
    assert_eq!((left[0].0 + left[2].0, left[0].1 + left[2].1), (1_000_000, 0));
    assert_eq!(left[0].0, left[2].0, "one volume at each");
}

fn measured(desk: &Desk) -> Measured {
    match desk.fleet.call(Command::Capacity) {
        Reply::Capacity(Capacity::Measured(measured)) => *measured,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_machines_have_adds_up_and_the_slowest_view_of_the_device_counts() {
    let mut desk = desk(3, 1);
    let all = measured(&desk);
    let cpus = |all: &Measured| {
        let each = all.nodes.iter().map(|it| it.cpu_ns_per_second.unwrap());
        (all.domain.cpu_ns_per_second.unwrap(), each.collect::<Vec<_>>())
    };
    assert_eq!(cpus(&all), (6, vec![1, 2, 3]));
    assert_eq!((all.left_ppm, all.device.time_ns_per_second), (899_998, 8_000));
    assert_eq!(all.domain.network_in_bytes_per_second, None, "one does not tell it");
    // One that is away for a moment has what it had.
    desk.change(2, Life::Alive, Life::Paused);
    desk.look();
    assert_eq!(cpus(&measured(&desk)), (6, vec![1, 2, 3]));
    // One that is to have no volumes has nothing.
    desk.fleet.set_state(&name(3), State::Draining).unwrap();
    let left = measured(&desk);
    assert_eq!(cpus(&left), (3, vec![1, 2]));
    assert_eq!(left.domain.network_in_bytes_per_second, Some(20));
}

#[test]
fn a_volume_without_a_home_is_found_where_it_is_open_and_waits_for_a_silent_node() {
    let mut desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    // As a leader that has lost the homes and the volumes.
    desk.fleet.keep_only(&BTreeSet::new());
    assert_eq!(desk.fleet.home(id), None);
    let Reply::Report(report) = desk.fleet.call(Command::ReportOf(vec![id])) else { panic!() };
    assert_eq!(report.volumes.len(), 1, "node 2 has it open");
    // What a node may have open that does not answer is not deleted by another one.
    desk.change(2, Life::Alive, Life::Paused);
    desk.look();
    let Reply::Failed(failed) = desk.fleet.call(Command::Delete(id)) else { panic!("deleted") };
    assert_eq!(failed.kind, FailedKind::Unanswered);
    assert!(failed.message.contains(&name(2)), "{}", failed.message);
    assert!(desk.world.things().stored.contains(&id));
}

#[test]
#[should_panic(expected = "the volumes of node 1")]
fn invariants_notice_a_home_that_is_not_counted() {
    let desk = desk(2, 2);
    let id = *desk.volumes.keys().last().unwrap();
    desk.fleet.books().homes.insert(id, node(1));
    desk.fleet.look();
}

#[test]
#[should_panic(expected = "is to be applied, and is not known")]
fn invariants_notice_a_volume_that_is_owed_and_forgotten() {
    let desk = desk(1, 1);
    let id = *desk.volumes.keys().last().unwrap();
    desk.fleet.books().owed.insert(id);
    desk.fleet.books().forget(id);
    desk.fleet.look();
}
