//! A volume moves from node to node while its clients write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::world::{PATIENCE, World, move_volume, others};
use super::writer::Writer;
use super::{Aim, Row, Setup};
use crate::server_process::io2;
use evenkeel_client::Client;
use evenkeel_lab::LabError;
use evenkeel_lab::fio::{self, Detail, Job, Measurement, Standing};
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_os::clock;
use evenkeel_sim::workload::Workload;

/// Number of moves; the second number is for a quick run.
const MOVES: [u32; 2] = [200, 6];
/// Longest pause of a client at a move, in milliseconds.
const PAUSE_MS_MAX: f64 = 50.0;
/// Pause between two moves.
const BREATH: Duration = Duration::from_millis(100);
/// The paced volume, the duration of its load, and the time between its moves.
const PACED_IOPS: u32 = 500;
const PACED_S: [u32; 2] = [60, 8];
const PACED_DEPTH: u32 = 8;
const PACED_MOVE_EVERY: Duration = Duration::from_millis(1_700);
/// Largest deviation of one of its seconds, in percent.
const OFF_PERCENT_MAX: f64 = 0.5;

pub(super) fn measure(world: &mut World<'_, '_>, setup: &Setup) -> Result<Vec<Row>, LabError> {
    let leader = world.all_serve()?;
    let mut rows = Vec::new();
    let volume = world.volume(&io2(16_000))?;
    let api = world.api(leader)?;
    let places = others(leader);
    // The leader's client is at neither home; the other client is at one of them.
    for (at, figure) in [
        (leader, "pause at a move, client of a third node"),
        (places[0], "pause at a move, client of a home"),
    ] {
        let writer = Writer::start(vec![world.node(at)?.nbd], &volume);
        let count = setup.count(MOVES[0], MOVES[1]) / 2;
        let (pauses, calls) = pauses(&api, &volume, &writer, places, count)?;
        if writer.connections() != 1 {
            return Err(LabError::failed("a client has lost its connection in a move"));
        }
        rows.extend(Row::times(figure, &pauses, Aim::AtMost(PAUSE_MS_MAX), "moves"));
        let [call, _] = Row::times("the call itself", &calls, Aim::None, "moves");
        rows.push(call);
        world.report(&format!("{count} moves, {figure}"));
    }
    rows.push(paced(world, setup, leader)?);
    Ok(rows)
}

/// Moves a volume to and fro. Returns how long its client waited each time, and how long the call
/// took, in milliseconds.
fn pauses(
    api: &Client,
    volume: &str,
    writer: &Writer,
    places: [&'static str; 2],
    count: u32,
) -> Result<(Vec<f64>, Vec<f64>), LabError> {
    move_volume(api, volume, places[1])?;
    writer.answered_after(clock::monotonic().ns, PATIENCE)?;
    let mut waited = Vec::new();
    let mut calls = Vec::new();
    for to in places.into_iter().cycle().take(count as usize) {
        clock::pause(BREATH);
        let begun_ns = clock::monotonic().ns;
        move_volume(api, volume, to)?;
        let done_ns = clock::monotonic().ns;
        writer.answered_after(done_ns + 20_000_000, PATIENCE)?;
        waited.push(writer.longest_gap_ms(begun_ns, done_ns + 20_000_000));
        calls.push((done_ns - begun_ns) as f64 / 1e6);
    }
    Ok((waited, calls))
}

/// Drives a paced volume through moves; returns the worst of its seconds.
fn paced(world: &mut World<'_, '_>, setup: &Setup, leader: &'static str) -> Result<Row, LabError> {
    let volume = world.volume(&io2(PACED_IOPS))?;
    let seconds = setup.count(PACED_S[0], PACED_S[1]);
    let job = Job {
        name: "paced".to_owned(),
        target: NbdUri::tcp(world.node(leader)?.nbd, &volume).into(),
        workload: Workload {
            span_mib: Some(256),
            ..Workload::random_write(4 << 10, PACED_DEPTH, seconds)
        },
    };
    let is_over = AtomicBool::new(false);
    let way = world.way(leader)?;
    let (run, moves) = std::thread::scope(|scope| {
        let moving = scope.spawn(|| -> Result<u32, LabError> {
            let api = way.api()?;
            let mut moves = 0;
            for to in others(leader).into_iter().cycle() {
                clock::pause(PACED_MOVE_EVERY);
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                move_volume(&api, &volume, to)?;
                moves += 1;
            }
            Ok(moves)
        });
        let run =
            fio::run(&[job], Detail::EveryIo, Standing::Same, world.bench.folder, &mut |_| {});
        is_over.store(true, Ordering::Release);
        let moves = moving.join().unwrap_or_else(|_| Err(LabError::failed("no more moves")));
        (run, moves)
    });
    let run = run?;
    let moves = moves?;
    run.is_well("a paced volume that moves")?;
    let per_second = run.measurements.first().map(seconds_of).unwrap_or_default();
    let off = |ios: &u64| (*ios as f64 / f64::from(PACED_IOPS) - 1.0).abs() * 100.0;
    let worst = per_second.iter().map(off).fold(0.0, f64::max);
    let text = format!("{} seconds at {PACED_IOPS} IOPS, {moves} moves", per_second.len());
    Ok(Row::new("worst second of a paced volume", worst, "%", Aim::AtMost(OFF_PERCENT_MAX), text))
}

/// Returns the I/Os of its full seconds, without the first one, which may have saved tokens.
fn seconds_of(measurement: &Measurement) -> Vec<u64> {
    measurement.series.per_second().into_iter().skip(1).collect()
}
