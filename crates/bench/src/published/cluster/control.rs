//! The control plane: commands per second through the leader, whose journal is in etcd.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::world::{PATIENCE, Way, World, others};
use super::{Aim, Row, Setup};
use evenkeel_client::Client;
use evenkeel_client::output::Failure;
use evenkeel_lab::LabError;
use evenkeel_lab::child::wait_for;
use evenkeel_os::clock;
use evenkeel_sim::figures::stats;

/// Volumes that are created and modified; the second number is for a quick run.
const VOLUMES: [u32; 2] = [600, 40];
/// Callers at once.
const CALLERS: usize = 8;
/// Calls of a kind by one caller, one after the other; the second number is for a quick run.
const CALLS: [u32; 2] = [200, 20];
/// The minimum rate of changes, per second.
const RATE_MIN: f64 = 300.0;
/// Time between two checks whether volumes are available.
const LOOK: Duration = Duration::from_millis(20);

pub(super) fn measure(world: &mut World<'_, '_>, setup: &Setup) -> Result<Vec<Row>, LabError> {
    let leader = world.all_serve()?;
    let way = world.way(leader)?;
    let follower = world.way(others(leader)[0])?;
    let count = setup.count(VOLUMES[0], VOLUMES[1]) as usize;
    let mut rows = Vec::new();

    let (volumes, rate, p50) = create(&way, count)?;
    let text = format!("{count} volumes by {CALLERS} callers until available, each {p50:.1} ms");
    rows.push(Row::new("create", rate, "a second", Aim::AtLeast(RATE_MIN), text));
    world.report(&format!("{count} volumes created"));

    let modify = |api: &Client, number: usize| {
        let volume = volumes.get(number).map_or("", String::as_str);
        api.call("ModifyVolume", &[("VolumeId", volume), ("Iops", "4000")]).map(drop)
    };
    let (rate, p50) = at_once(&way, CALLERS, count, &modify)?;
    let text = format!("{count} volumes by {CALLERS} callers, each {p50:.1} ms");
    rows.push(Row::new("modify", rate, "a second", Aim::AtLeast(RATE_MIN), text));
    world.report(&format!("{count} volumes modified"));

    let calls = setup.count(CALLS[0], CALLS[1]) as usize;
    let first = volumes.first().map_or("", String::as_str);
    // One commit, without a command to a data plane.
    let tag = |api: &Client, number: usize| {
        let value = number.to_string();
        let words = [("ResourceId.1", first), ("Tag.1.Key", "number"), ("Tag.1.Value", &value)];
        api.call("CreateTags", &words).map(drop)
    };
    for callers in [1, CALLERS] {
        let (rate, p50) = at_once(&way, callers, calls, &tag)?;
        let text = format!("{calls} tags by {callers} callers, each {p50:.1} ms");
        rows.push(Row::new("commits of the journal", rate, "a second", Aim::None, text));
    }
    let describe =
        |api: &Client, _| api.call("DescribeVolumes", &[("VolumeId.1", first)]).map(drop);
    for (node, way) in [("that leads", &way), ("that follows", &follower)] {
        let (rate, p50) = at_once(way, 1, calls, &describe)?;
        let text = format!("{calls} of one volume at a node {node}, each {p50:.1} ms");
        rows.push(Row::new("describe", rate, "a second", Aim::None, text));
    }
    Ok(rows)
}

/// Creates volumes. Returns their ids, how many per second became available, and the median time of
/// a call in milliseconds.
fn create(way: &Way, count: usize) -> Result<(Vec<String>, f64, f64), LabError> {
    let begun_ns = clock::monotonic().ns;
    let (volumes, _, p50) = calls(way, CALLERS, count, &|api, _| make(api))?;
    let api = way.api()?;
    for volume in &volumes {
        wait_for(&format!("{volume} to be available"), PATIENCE, LOOK, || {
            Ok((state(&api, volume)? == "available").then_some(()))
        })?;
    }
    Ok((volumes, per_second(count, begun_ns), p50))
}

/// Creates a small volume; returns its id.
pub(super) fn make(api: &Client) -> Result<String, Failure> {
    let words = [("AvailabilityZone", "local-1a"), ("Size", "8"), ("VolumeType", "gp3")];
    let made = api.call("CreateVolume", &words)?;
    Ok(made.child_text("volumeId").unwrap_or_default().to_owned())
}

fn state(api: &Client, volume: &str) -> Result<String, Failure> {
    let answer = api.call("DescribeVolumes", &[("VolumeId.1", volume)])?;
    let first = answer.items("volumeSet").first();
    Ok(first.and_then(|it| it.child_text("status")).unwrap_or_default().to_owned())
}

fn per_second(count: usize, begun_ns: u64) -> f64 {
    count as f64 * 1e9 / (clock::monotonic().ns - begun_ns).max(1) as f64
}

/// Makes calls by several callers at once. Returns the calls per second, and the median time of one
/// in milliseconds.
fn at_once(
    way: &Way,
    callers: usize,
    count: usize,
    call: &(dyn Fn(&Client, usize) -> Result<(), Failure> + Sync),
) -> Result<(f64, f64), LabError> {
    calls(way, callers, count, call).map(|(_, rate, p50)| (rate, p50))
}

/// Makes calls as [`at_once`] does, and returns their results, too.
pub(super) fn calls<T: Send>(
    way: &Way,
    callers: usize,
    count: usize,
    call: &(dyn Fn(&Client, usize) -> Result<T, Failure> + Sync),
) -> Result<(Vec<T>, f64, f64), LabError> {
    let next = AtomicUsize::new(0);
    let begun_ns = clock::monotonic().ns;
    let caller = || -> Result<(Vec<T>, Vec<f64>), LabError> {
        let api = way.api()?;
        let mut made = Vec::new();
        let mut times_ms = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return Ok((made, times_ms));
            }
            let before_ns = clock::monotonic().ns;
            made.push(call(&api, number)?);
            times_ms.push((clock::monotonic().ns - before_ns) as f64 / 1e6);
        }
    };
    let mut made = Vec::new();
    let mut times_ms = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(caller)).collect();
        for thread in threads {
            let ended = thread.join();
            let (more, times) =
                ended.unwrap_or_else(|_| Err(LabError::failed("a caller ended")))?;
            made.extend(more);
            times_ms.extend(times);
        }
        Ok::<(), LabError>(())
    })?;
    let p50 = stats::median(&times_ms).unwrap_or_default();
    Ok((made, per_second(count, begun_ns), p50))
}
