//! Tests of the fleet over model nodes and a model store, with random steps and invariants.

mod control_plane;
mod directed;
mod world;

use std::time::Duration;

use evenkeel_control::nodes::{Nodes, State};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_wire::agent::{Agent, Command, Reply};
use proptest::prelude::*;

use self::control_plane::ControlPlane;
use self::world::{Life, name};

/// Number of nodes. The first one leads, and never fails.
const NODES: u32 = 4;
/// One of this many answers is lost.
const FAULTS: u64 = 12;

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Create,
    Attach(usize, usize),
    Detach(usize, usize),
    Modify(usize, u64),
    Delete(usize),
    ApplyHost(usize),
    DeleteHost(usize),
    Lease(u8),
    SetBalances(usize, u8),
    Spend(usize, usize, u64),
    SnapshotSet(usize, usize),
    Kill(u32),
    Pause(u32),
    Wake(u32),
    EndLease(u32),
    RenewLease(u32),
    Restart(u32, bool),
    Drain(u32),
    Join(u32),
    Elect,
    MoveTo(usize, u32),
    CheckNodes,
    ApplyUnapplied,
    DrainNodes,
    Repeat,
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 2..=NODES;
    let one = || any::<usize>();
    prop_oneof![
        4 => Just(Step::Create),
        6 => (one(), one()).prop_map(|(id, host)| Step::Attach(id, host)),
        3 => (one(), one()).prop_map(|(id, host)| Step::Detach(id, host)),
        2 => (one(), 1..1_000_u64).prop_map(|(id, rate)| Step::Modify(id, rate)),
        1 => one().prop_map(Step::Delete),
        1 => one().prop_map(Step::ApplyHost),
        1 => one().prop_map(Step::DeleteHost),
        5 => any::<u8>().prop_map(Step::Lease),
        1 => (one(), any::<u8>()).prop_map(|(id, part)| Step::SetBalances(id, part)),
        8 => (one(), 0..2_usize, 1..500_u64).prop_map(|(id, by, n)| Step::Spend(id, by, n)),
        1 => (one(), one()).prop_map(|(a, b)| Step::SnapshotSet(a, b)),
        2 => node().prop_map(Step::Kill),
        3 => node().prop_map(Step::Pause),
        2 => node().prop_map(Step::Wake),
        4 => node().prop_map(Step::EndLease),
        2 => node().prop_map(Step::RenewLease),
        3 => (node(), any::<bool>()).prop_map(|(node, other)| Step::Restart(node, other)),
        2 => (1..=NODES).prop_map(Step::Drain),
        2 => (1..=NODES).prop_map(Step::Join),
        1 => Just(Step::Elect),
        3 => (one(), 1..=NODES).prop_map(|(id, node)| Step::MoveTo(id, node)),
        10 => Just(Step::CheckNodes),
        5 => Just(Step::ApplyUnapplied),
        3 => Just(Step::DrainNodes),
        5 => Just(Step::Repeat),
    ]
}

impl ControlPlane {
    fn take(&mut self, step: &Step) {
        match *step {
            Step::Create => _ = self.create(),
            Step::Attach(id, host) => self.attach(id, host),
            Step::Detach(id, host) => self.detach(id, host),
            Step::Modify(id, rate) => self.modify(id, rate),
            Step::Delete(id) => self.delete(id),
            Step::ApplyHost(host) => self.apply_host(host),
            Step::DeleteHost(host) => self.delete_host(host),
            Step::Lease(part) => self.lease(part),
            Step::SetBalances(id, part) => self.set_balances(id, part),
            Step::Spend(id, by, amount) => self.spend(id, by, amount),
            Step::SnapshotSet(a, b) => self.snapshot_set(a, b),
            Step::Kill(node) => self.world.things().kill(node),
            Step::Pause(node) => self.change(node, Life::Alive, Life::Paused),
            Step::Wake(node) => self.change(node, Life::Paused, Life::Alive),
            Step::EndLease(node) => self.world.things().nodes.get_mut(&node).unwrap().1 = false,
            Step::RenewLease(node) => {
                let mut things = self.world.things();
                if things.newest(node).life != Life::Dead {
                    things.nodes.get_mut(&node).unwrap().1 = true;
                }
            }
            Step::Restart(node, other) => self.world.things().restart(node, other),
            Step::Drain(node) => _ = self.fleet.set_state(&name(node), State::Draining),
            Step::Join(node) => _ = self.fleet.set_state(&name(node), State::Up),
            Step::Elect => self.elect(),
            Step::MoveTo(id, node) => self.move_to(id, node),
            Step::CheckNodes => self.check_nodes(),
            Step::ApplyUnapplied => self.fleet.apply_unapplied(),
            Step::DrainNodes => self.fleet.drain_nodes(),
            Step::Repeat => self.repeat(),
        }
        self.check();
    }

    fn change(&self, node: u32, from: Life, to: Life) {
        let mut things = self.world.things();
        let process = things.newest(node);
        if process.life == from {
            process.life = to;
        }
    }

    fn check_nodes(&mut self) {
        self.now += Duration::from_millis(200);
        self.fleet.check_nodes_at(self.now);
    }

    /// Ends all faults and restarts every node that is not alive.
    fn heal(&mut self) {
        {
            let mut things = self.world.things();
            things.faults = 0;
            let nodes: Vec<u32> = things.nodes.keys().copied().collect();
            for node in nodes {
                let process = things.newest(node);
                match (process.is_fenced, process.life) {
                    (false, Life::Alive) => {}
                    (false, Life::Paused) => process.life = Life::Alive,
                    _ => things.restart(node, node % 2 == 0),
                }
                things.nodes.get_mut(&node).unwrap().1 = true;
            }
            if things.nodes.values().all(|node| node.0 != State::Up) {
                // A new volume needs a node in service.
                things.nodes.get_mut(&1).unwrap().0 = State::Up;
            }
        }
        for _ in 0..8 {
            self.check_nodes();
            self.fleet.apply_unapplied();
            self.fleet.drain_nodes();
            self.repeat();
            self.check();
        }
    }

    /// Asserts the invariants that hold after every step.
    fn check(&self) {
        self.fleet.state().invariants();
        let things = self.world.things();
        for (id, wanted) in &self.volumes {
            assert!(things.holders(*id).len() <= 1, "{id} is served twice");
            if let Some(truth) = things.truth.volumes.get(id) {
                let row = wanted.row;
                assert!(row <= *truth, "the journal promises {row} of {id}, which has {truth}");
            }
        }
        for (id, host) in &self.hosts {
            let nodes = things.nodes_of(*id);
            assert!(host.pacing.is_none() || nodes.len() <= 1, "{id} is at {nodes:?}");
            if let Some(truth) = things.truth.hosts.get(id) {
                let row = host.row;
                assert!(row <= *truth, "the journal promises {row} of {id}, which has {truth}");
            }
        }
    }

    /// Asserts the invariants that hold after [`Self::heal`].
    fn check_end(&self) {
        let Reply::Report(report) = self.fleet.call(Command::Report) else { panic!() };
        let reported: Vec<_> = report.volumes.iter().map(|volume| volume.id).collect();
        assert!(reported.iter().eq(self.volumes.keys()), "{reported:?}");
        let views = self.fleet.views();
        let has_eligible =
            self.fleet.state().nodes.values().any(|node_state| node_state.member.takes_volumes());
        let things = self.world.things();
        for (id, wanted) in &self.volumes {
            assert!(!wanted.is_pending, "{id} is not settled");
            let home = self.fleet.home(*id).unwrap();
            assert_eq!(things.holders(*id), [home.0], "{id}");
            assert_eq!(things.stored_homes[id], home.0);
            let at = things.processes.iter().rfind(|it| it.node == home.0).unwrap();
            let state = &at.volumes[id].state;
            assert_eq!(state.attachments, wanted.attachments, "{id}");
            assert_eq!(state.pacing.operations.unwrap().per_second, wanted.rate, "{id}");
            assert!(!has_eligible || things.nodes[&home.0].0 == State::Up, "{id} is not drained");
            for attachment in &wanted.attachments {
                let is_there = at.hosts.contains_key(&attachment.host);
                assert_eq!(is_there, self.hosts[&attachment.host].pacing.is_some());
            }
        }
        for process in things.processes.iter().filter(|process| process.may_serve()) {
            let is_wanted = |id| self.volumes.contains_key(id);
            assert!(process.volumes.keys().all(is_wanted), "a deleted volume is served");
        }
        for view in views {
            let is_home = |id| self.fleet.home(id) == Some(view.number);
            let count = self.volumes.keys().filter(|id| is_home(**id)).count();
            assert_eq!(view.volumes, count, "{}", view.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn fleet_serves_every_volume_once_and_creates_no_credits(
        random in 1..u64::MAX,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut control = ControlPlane::new(NODES);
        control.check_nodes();
        {
            let mut things = control.world.things();
            (things.faults, things.random) = (FAULTS, random);
        }
        for step in &steps {
            control.take(step);
        }
        control.heal();
        control.check_end();
    }
}

/// Returns the id of the node with this number.
fn node(number: u32) -> NodeId {
    NodeId(number)
}

/// Returns the credits of I/Os in balances.
fn amount(balances: Balances) -> u64 {
    balances.operations.unwrap()
}
