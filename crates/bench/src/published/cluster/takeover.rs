//! Nodes are killed with `kill -9`: how long the clients of their volumes get no answers.

use std::time::Duration;

use super::world::{PATIENCE, World, move_volume, others};
use super::writer::Writer;
use super::{Aim, Row, Setup};
use crate::server_process::of_size;
use evenkeel_core::volume::VolumeType;
use evenkeel_lab::LabError;
use evenkeel_os::clock;

/// Nodes that are killed; the second number is for a quick run.
const KILLS: [u32; 2] = [100, 2];
/// Leaders that are killed; the second number is for a quick run.
const KILLS_OF_LEADERS: [u32; 2] = [10, 1];
/// Longest outage of a client, in milliseconds.
const OUTAGE_MS_MAX: f64 = 6_000.0;
/// Longest time from the end of a lease to the first answer, in milliseconds. The first value is
/// for monitors that collect changes for at most [`QUICK_MONITORS_MS`], the second for others.
const QUICK_MONITORS_MS: u32 = 100;
const TAKEOVER_MS_MAX: [f64; 2] = [300.0, 1_500.0];
/// Time for which clients write before a node is killed.
const SETTLE: Duration = Duration::from_millis(300);

/// The effects of a node's death on clients, in milliseconds.
struct Death {
    /// Time from the end of the lease to the first answer to a client of another node.
    takeover_ms: f64,
    /// Time without an answer, for a client of another node.
    outage_ms: f64,
    /// Time without an answer, for a client of the killed node, which connects to another one.
    outage_here_ms: f64,
}

pub(super) fn measure(world: &mut World<'_, '_>, setup: &Setup) -> Result<Vec<Row>, LabError> {
    let volume = world.volume(&of_size(VolumeType::Gp3, 8))?;
    let mut deaths = Vec::new();
    let count = setup.count(KILLS[0], KILLS[1]);
    for number in 1..=count {
        let leader = world.all_serve()?;
        let [at, home] = others(leader);
        deaths.push(die(world, &volume, at, home)?);
        if number % 10 == 0 || setup.quick {
            world.report(&format!("{number} of {count} nodes were killed"));
        }
    }
    let mut of_leaders = Vec::new();
    let count = setup.count(KILLS_OF_LEADERS[0], KILLS_OF_LEADERS[1]);
    for _ in 0..count {
        let leader = world.all_serve()?;
        let [at, _] = others(leader);
        of_leaders.push(die(world, &volume, at, leader)?);
    }
    world.report(&format!("{count} nodes that lead were killed"));
    Ok(rows(setup, &deaths, &of_leaders))
}

fn rows(setup: &Setup, deaths: &[Death], of_leaders: &[Death]) -> Vec<Row> {
    let of = |deaths: &[Death], time: fn(&Death) -> f64| -> Vec<f64> {
        deaths.iter().map(time).collect()
    };
    let is_quick = setup.propose_ms <= QUICK_MONITORS_MS;
    let takeover = Aim::AtMost(TAKEOVER_MS_MAX[usize::from(!is_quick)]);
    let outage = Aim::AtMost(OUTAGE_MS_MAX);
    let kills = "kills of a node";
    let leaders = "kills of the node that leads";
    let rows = [
        Row::times(
            "end of a lease to first answer",
            &of(deaths, |it| it.takeover_ms),
            takeover,
            kills,
        ),
        Row::times("outage, client of another node", &of(deaths, |it| it.outage_ms), outage, kills),
        Row::times(
            "outage, client of that node",
            &of(deaths, |it| it.outage_here_ms),
            outage,
            kills,
        ),
        Row::times(
            "the same, it led: from the lease",
            &of(of_leaders, |it| it.takeover_ms),
            Aim::None,
            leaders,
        ),
        Row::times("the same, it led: outage", &of(of_leaders, |it| it.outage_ms), outage, leaders),
    ];
    rows.into_iter().flatten().collect()
}

/// Kills the home of a volume with a client at it and one at another node. Starts it again after
/// the takeover.
fn die(
    world: &mut World<'_, '_>,
    volume: &str,
    at: &'static str,
    home: &'static str,
) -> Result<Death, LabError> {
    move_volume(&world.api(at)?, volume, home)?;
    let [there, here] = [world.node(at)?.nbd, world.node(home)?.nbd];
    let relayed = Writer::start(vec![there], volume);
    let own = Writer::start(vec![here, there], volume);
    for writer in [&relayed, &own] {
        writer.answered_after(clock::monotonic().ns, PATIENCE)?;
    }
    clock::pause(SETTLE);
    let killed_ns = world.kill(home);
    let ended_ns = world.leases.end_of(home, killed_ns)?;
    let again_ns = relayed.answered_after(ended_ns, PATIENCE)?;
    let here_ns = own.answered_after(ended_ns, PATIENCE)?;
    let death = Death {
        takeover_ms: (again_ns - ended_ns) as f64 / 1e6,
        outage_ms: relayed.longest_gap_ms(killed_ns, again_ns),
        outage_here_ms: own.longest_gap_ms(killed_ns, here_ns),
    };
    if relayed.connections() != 1 {
        return Err(LabError::failed("a client of another node has lost its connection"));
    }
    drop((relayed, own));
    world.start_node(home)?;
    Ok(death)
}
