//! `evenkeel-bench plan`: workloads with bursts run on volumes whose limits they do not reach. A
//! plan for smaller volumes is calculated from the recording, and the workloads run on those
//! volumes, too.
//!
//! All volumes are driven at once, first the large ones and then the small ones. The trace has
//! steps of a second, from the server's counters. Averaged to minutes, it must give an interval
//! that contains the measured value.

use super::{begin, print, seconds};
use crate::cli::BenchPlan;
use evenkeel_bench::open_loop::{self, Due, Sent};
use evenkeel_bench::server_process::Served;
use evenkeel_cli::connect;
use evenkeel_client::Client;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_client::volume_samples::{self, Sample, VolumeSample};
use evenkeel_core::convert::saturating;
use evenkeel_core::price::PriceList;
use evenkeel_core::random::Random;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::nbd_uri::Export;
use evenkeel_planner::delays::Delays;
use evenkeel_planner::demand::{Assume, Demand};
use evenkeel_planner::exact;
use evenkeel_planner::layout::{Layout, LimitKind};
use evenkeel_planner::search::{self, Space, Tolerance};
use evenkeel_planner::spread::Spread;
use evenkeel_planner::trace::{Clock, Columns, Interval, SourceLimits, Trace};
use serde::Serialize;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// Minimum length of a run in seconds: the bursts of all workloads have to fit into it.
const SECONDS_MIN: u32 = 30;
/// Time for which volumes rest before and after the load.
const REST: Duration = Duration::from_secs(2);
/// Maximum number of requests that are replayed one by one.
const REQUESTS_MAX: u64 = 50_000_000;
/// Seconds from the beginning to the first burst, and from the last one to the end, at least.
const BURSTS_S: (u32, u32) = (5, 8);

/// Maximum errors of a plan: shares of the measured value, or absolute differences.
const THROTTLED_WITHIN: f64 = 0.02;
const THROTTLED_WITHIN_S: f64 = 1.0;
const MEAN_WITHIN: f64 = 0.10;
const P99_WITHIN: f64 = 0.20;
/// A difference of a tenth of a millisecond may be due to the machine.
const DELAY_WITHIN_MS: f64 = 0.1;
/// Delay in a second from which a limit counts as having held the volume up: single requests come
/// closer to each other by chance than a limit allows in any second.
const THROTTLED_SECOND_NS: u64 = 100_000_000;
/// Minimum share of the seconds in which a limit holds a volume up that have the plan's limit.
const SAME_LIMIT: f64 = 0.95;

/// A workload, the volume on which it is recorded, and the one that is planned.
struct Case {
    name: &'static str,
    kib: u32,
    read_percent: u8,
    /// Requests per second outside of bursts.
    steady_iops: u32,
    /// Bursts: their beginnings and lengths in seconds, and requests per second in them.
    bursts: Vec<(u32, u32, u32)>,
    recorded: VolumeRequest,
    planned: VolumeRequest,
}

/// Results of a workload.
#[derive(Serialize)]
struct Found {
    name: &'static str,
    recorded_on: String,
    planned: String,
    /// Seconds in which requests wait: planned, and measured by the client.
    throttled_s: [f64; 2],
    /// Minimum and maximum of these seconds by the same trace in steps of a minute.
    by_minutes_s: [f64; 2],
    /// Mean delay of a request in milliseconds: planned, and measured.
    mean_ms: [f64; 2],
    /// 99th percentile of the delay in milliseconds: planned, and measured.
    p99_ms: [f64; 2],
    /// The limit that holds the volume up in most seconds, and the share of the measured seconds
    /// for which the plan names the right limit.
    limit: Option<&'static str>,
    same_limit: f64,
    misses: Vec<&'static str>,
}

#[derive(Serialize)]
struct Results {
    schema: &'static str,
    seconds: u32,
    seed: u64,
    workloads: Vec<Found>,
}

pub fn run(arguments: &BenchPlan) -> Result<(), Failure> {
    let length_s = seconds(arguments.time);
    if length_s < SECONDS_MIN {
        let message = format!("time: the bursts do not fit into {length_s} s: use {SECONDS_MIN}s");
        return Err(Failure::new(message).exit(Exit::Usage));
    }
    let folder = begin(&std::env::temp_dir(), "evenkeel-plan-")?;
    let cases = cases(length_s, arguments.seed);
    let of = (length_s, arguments.seed);
    let recorded = drive(folder.path(), "recorded", &cases, of, |case| &case.recorded)?;
    let measured = drive(folder.path(), "planned", &cases, of, |case| &case.planned)?;
    let both = recorded.iter().zip(&measured);
    let found = cases.iter().zip(both).map(|(case, (from, to))| compare(case, from, to));
    let workloads = found.collect::<Result<Vec<Found>, Failure>>()?;
    let is_missed = workloads.iter().any(|found| !found.misses.is_empty());
    let seed = arguments.seed;
    let results = Results { schema: "evenkeel.bench.plan/1", seconds: length_s, seed, workloads };
    print(&arguments.output, &results, words)?;
    if is_missed {
        return Err(Failure::new("the measured result differs from the plan"));
    }
    Ok(())
}

/// Returns the workloads: bursts of small requests, large reads that a limit in bytes holds up, and
/// bursts at random times.
fn cases(length_s: u32, seed: u64) -> Vec<Case> {
    let of = |volume_type, size_gib, iops, throughput_mibps| VolumeRequest {
        volume_type,
        size_gib,
        iops,
        throughput_mibps,
        multi_attach: false,
    };
    let last = length_s - BURSTS_S.1;
    let regular = |count: u32, length_s, iops| {
        let every = (last - BURSTS_S.0) / count;
        (0..count).map(|number| (BURSTS_S.0 + number * every, length_s, iops)).collect()
    };
    let mut random = Random::new(seed, 0);
    let mut draw =
        |from: u32, to: u32| from + u32::try_from(random.below((to - from).into())).unwrap_or(0);
    // Steps of a second blur shorter bursts, and the planned waits would be too short.
    let bursts = (0..4).map(|_| (draw(BURSTS_S.0, last), draw(3, 6), draw(500, 900)));
    let by_chance = bursts.collect();
    vec![
        Case {
            name: "bursts",
            kib: 4,
            read_percent: 100,
            steady_iops: 200,
            bursts: regular(3, 4, 800),
            recorded: of(VolumeType::Io2, 10, Some(4_000), None),
            planned: of(VolumeType::Io2, 10, Some(800), None),
        },
        Case {
            name: "large reads",
            kib: 64,
            read_percent: 100,
            steady_iops: 300,
            bursts: regular(3, 4, 2_000),
            recorded: of(VolumeType::Gp3, 20, Some(6_000), Some(500)),
            planned: of(VolumeType::Gp3, 20, Some(3_000), Some(125)),
        },
        Case {
            name: "by chance",
            kib: 16,
            read_percent: 70,
            steady_iops: 150,
            bursts: by_chance,
            recorded: of(VolumeType::Io1, 100, Some(4_000), None),
            planned: of(VolumeType::Io1, 100, Some(600), None),
        },
    ]
}

/// Measurements of one volume.
struct Measured {
    /// Samples of its counters, about a second apart.
    samples: Vec<VolumeSample>,
    /// Time at which the load began.
    started_ms: u64,
    /// For each request, the time at which it was due, in microseconds after the beginning, and its
    /// delay.
    requests: Vec<(u64, u64)>,
    delays: Delays,
}

/// Runs all workloads at once on volumes of a new server.
fn drive(
    folder: &Path,
    name: &str,
    cases: &[Case],
    (length_s, seed): (u32, u64),
    on: impl Fn(&Case) -> &VolumeRequest,
) -> Result<Vec<Measured>, Failure> {
    let data_dir = folder.join(name);
    let server = Served::start(
        connect::client_in_default_region,
        &data_dir,
        "memory",
        &["--calibrate", "never"],
    )?;
    let client = connect::client_in_default_region(server.address, &data_dir)?;
    let exports: Vec<Export> =
        cases.iter().map(|case| server.volume(on(case))).collect::<Result<_, _>>()?;
    let (stop, stopped) = mpsc::channel::<()>();
    let sampler = std::thread::spawn(move || samples(&client, &stopped));
    let due: Vec<Vec<Due>> = cases.iter().map(|case| due(case, length_s, seed)).collect();
    let sent: Vec<Result<Sent, LabError>> = std::thread::scope(|scope| {
        let all = exports.iter().zip(&due);
        let all = all.map(|(export, due)| scope.spawn(move || open_loop::run(export, due)));
        let all: Vec<_> = all.collect();
        let ended = |_| LabError::Failed { what: "a client ended early".to_owned(), hint: None };
        all.into_iter().map(|it| it.join().map_err(ended).flatten()).collect()
    });
    // So that the last requests are sampled, too.
    let (_rests, rest) = mpsc::channel::<()>();
    let _ = rest.recv_timeout(REST);
    drop(stop);
    let samples = sampler.join().map_err(|_| Failure::new("the sampler ended early"))??;
    server.stop();
    let of_volume = |((export, due), sent): ((&Export, &Vec<Due>), Result<Sent, LabError>)| {
        let Sent { started_unix_ms, delays_ns } = sent?;
        let delays_us = delays_ns.iter().map(|ns| ns / 1_000);
        let requests: Vec<(u64, u64)> = due.iter().map(|it| it.at_us).zip(delays_us).collect();
        let mut delays = Delays::default();
        requests.iter().for_each(|(_, us)| delays.add(*us, *us, 1_000_000));
        Ok(Measured {
            samples: samples
                .iter()
                .filter_map(|sample| sample.get(&export.name).cloned())
                .collect(),
            started_ms: started_unix_ms,
            requests,
            delays,
        })
    };
    exports.iter().zip(&due).zip(sent).map(of_volume).collect()
}

/// Returns the requests of a workload, at exponentially distributed distances.
fn due(case: &Case, length_s: u32, seed: u64) -> Vec<Due> {
    const PLACES: u64 = 1 << 12;
    const NS_PER_S: u64 = 1_000_000_000;
    let mut random = Random::new(seed, 1);
    let length = case.kib << 10;
    let mut all = Vec::new();
    let mut at_ns = 0;
    loop {
        let at_s = saturating::<_, u32>(at_ns / NS_PER_S);
        if at_s >= length_s {
            return all;
        }
        let is_now = |(start_s, length_s, _): &&(u32, u32, u32)| {
            (*start_s..start_s + length_s).contains(&at_s)
        };
        let bursts: u32 = case.bursts.iter().filter(is_now).map(|(_, _, iops)| iops).sum();
        all.push(Due {
            at_us: at_ns / 1_000,
            offset: random.below(PLACES) * u64::from(length),
            length,
            writes: random.below(100) >= case.read_percent.into(),
        });
        at_ns += random.exponential(NS_PER_S / u64::from(case.steady_iops + bursts));
    }
}

/// Samples the counters of all volumes every second until `stopped` receives a message.
fn samples(client: &Client, stopped: &mpsc::Receiver<()>) -> Result<Vec<Sample>, Failure> {
    let mut all = Vec::new();
    loop {
        all.push(volume_samples::take(client)?);
        if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
            all.push(volume_samples::take(client)?);
            return Ok(all);
        }
    }
}

/// Returns the trace of a volume, in steps of at least `step_ms` milliseconds.
fn trace(measured: &Measured, step_ms: u64, limits: SourceLimits) -> Result<Trace, Failure> {
    let counts =
        |of: &VolumeSample| [of.reads.count, of.writes.count, of.read_bytes, of.write_bytes];
    let mut intervals: Vec<Interval> = Vec::new();
    let mut samples = measured.samples.iter();
    let Some(mut from) = samples.next() else { return Err(Failure::new("no samples")) };
    for to in samples {
        let length_ms = to.time_ms.saturating_sub(from.time_ms);
        if length_ms < step_ms && measured.samples.last() != Some(to) {
            continue;
        }
        let mut grown = counts(to);
        grown.iter_mut().zip(counts(from)).for_each(|(to, from)| *to = to.saturating_sub(from));
        let [reads, writes, read_bytes, write_bytes] = grown;
        let start_ms = from.time_ms;
        intervals.push(Interval {
            start_ms,
            length_ms,
            reads,
            writes,
            read_bytes,
            write_bytes,
            ..Interval::default()
        });
        from = to;
    }
    intervals.retain(|interval| interval.length_ms > 0);
    let trace = Trace::new("recorded", Clock::Unix, Columns::default(), intervals);
    let mut trace = trace.map_err(|broken| Failure::new(broken.to_string()))?;
    trace.source = limits;
    Ok(trace)
}

fn compare(case: &Case, recorded: &Measured, measured: &Measured) -> Result<Found, Failure> {
    let space = Space {
        rules: Rules::newest(),
        prices: PriceList::newest().into(),
        tolerance: Tolerance::Evenkeel,
        types: vec![case.planned.volume_type],
        volumes_max: 1,
        spread: Spread::STRIPED,
        instances: vec![],
    };
    let spec =
        |request| space.rules.resolve(request).map_err(|error| Failure::new(error.to_string()));
    let layout = Layout::one(spec(&case.planned)?);
    let pacing = space.rules.pacing(&spec(&case.recorded)?);
    let mut limits = SourceLimits::default();
    limits.fill(&pacing, layout.share(&space));
    let by_seconds = trace(recorded, 1, limits)?;
    let demand = Demand::of(&by_seconds, Assume::Even);
    let many = || Failure::new("the workload has too many requests to be replayed");
    let exact = exact::replay(&space, &demand, &layout, REQUESTS_MAX).ok_or_else(many)?;
    let each_second = exact::held_each_second(&space, &demand, &layout, REQUESTS_MAX);
    let each_second = each_second.ok_or_else(many)?;
    let start_ms = by_seconds.intervals.first().map_or(0, |first| first.start_ms);
    let offset_ms = recorded.started_ms.saturating_sub(start_ms);
    let (limit, same_limit) = same_limit(&each_second, offset_ms, measured);

    let by_minutes = trace(recorded, 60_000, limits)?;
    let by_minutes_s = [Assume::Even, Assume::Worst].map(|assume| {
        let outcome = search::replay(&space, &Demand::of(&by_minutes, assume), &layout).1;
        outcome.waited_us() as f64 / 1e6
    });
    let ms = |us: u64| us as f64 / 1e3;
    // Delays of requests that no limit holds up.
    let free = &recorded.delays;
    let planned_p99_us = exact.delays.permille(990) + free.mean_us();
    let mut found = Found {
        name: case.name,
        recorded_on: Layout::one(spec(&case.recorded)?).to_string(),
        planned: layout.to_string(),
        throttled_s: [exact.waited_us as f64 / 1e6, waited_s(measured, free.permille(990))],
        by_minutes_s,
        mean_ms: [ms(exact.delays.mean_us() + free.mean_us()), ms(measured.delays.mean_us())],
        p99_ms: [ms(planned_p99_us.max(free.permille(990))), ms(measured.delays.permille(990))],
        limit,
        same_limit,
        misses: Vec::new(),
    };
    found.misses = misses(&found);
    Ok(found)
}

/// Returns the seconds in which requests waited: from the time at which each is due until only its
/// delay without limits is left.
fn waited_s(measured: &Measured, free_us: u64) -> f64 {
    let mut waited_us = 0;
    let mut until_us = 0;
    for (at_us, delay_us) in &measured.requests {
        let end_us = at_us + delay_us.saturating_sub(free_us);
        waited_us += end_us.saturating_sub(until_us.max(*at_us));
        until_us = until_us.max(end_us);
    }
    waited_us as f64 / 1e6
}

/// Returns the limit that holds the volume up the longest, and the share of this time for which the
/// plan names the same limit within a second.
fn same_limit(
    planned: &[Vec<(LimitKind, u64)>],
    offset_ms: u64,
    measured: &Measured,
) -> (Option<&'static str>, f64) {
    const KINDS: [LimitKind; 2] = [LimitKind::VolumeIops, LimitKind::VolumeBytes];
    let most = |held: [u64; 2]| if held[0] >= held[1] { 0 } else { 1 };
    let (mut all, mut same, mut held) = (0_u64, 0_u64, [0_u64; 2]);
    for pair in measured.samples.windows(2) {
        let [from, to] = pair else { continue };
        let mut grown = to.exceeded_ns;
        grown.iter_mut().zip(from.exceeded_ns).for_each(|(to, from)| *to = to.saturating_sub(from));
        let sum: u64 = grown.iter().sum();
        if sum < THROTTLED_SECOND_NS {
            continue;
        }
        held.iter_mut().zip(grown).for_each(|(sum, ns)| *sum += ns);
        // Both loads began at their second 0.
        let at_ms = (from.time_ms + offset_ms).saturating_sub(measured.started_ms);
        let at = saturating::<_, usize>(at_ms / 1_000);
        let near = planned.iter().skip(at.saturating_sub(1)).take(4).flatten();
        let mut of_plan = [0_u64; 2];
        for (kind, ns) in near {
            let sum = KINDS.iter().zip(&mut of_plan).find(|(it, _)| *it == kind);
            if let Some((_, sum)) = sum {
                *sum += ns;
            }
        }
        all += sum;
        if of_plan.iter().sum::<u64>() > 0 && most(of_plan) == most(grown) {
            same += sum;
        }
    }
    let name = ["IOPS", "MiB/s"].get(most(held)).copied().filter(|_| all > 0);
    (name, if all > 0 { same as f64 / all as f64 } else { 1.0 })
}

/// Returns the names of the results that are not within the maximum errors.
fn misses(found: &Found) -> Vec<&'static str> {
    let within = |[planned, measured]: [f64; 2], share: f64, or: f64| {
        (planned - measured).abs() <= (measured * share).max(or)
    };
    let [even_s, worst_s] = found.by_minutes_s;
    let truth_s = found.throttled_s[1];
    let all = [
        (within(found.throttled_s, THROTTLED_WITHIN, THROTTLED_WITHIN_S), "throttled seconds"),
        (within(found.mean_ms, MEAN_WITHIN, DELAY_WITHIN_MS), "mean delay"),
        (within(found.p99_ms, P99_WITHIN, DELAY_WITHIN_MS), "p99"),
        (found.same_limit >= SAME_LIMIT, "limit"),
        ((even_s..=worst_s).contains(&truth_s), "interval of minutes"),
    ];
    all.into_iter().filter(|(is_met, _)| !is_met).map(|(_, what)| what).collect()
}

fn words(results: &Results) -> String {
    let header = [
        "WORKLOAD",
        "RECORDED ON",
        "PLANNED FOR",
        "THROTTLED S",
        "BY MINUTES",
        "MEAN MS",
        "P99 MS",
        "LIMIT",
        "SAME",
        "MISSED",
    ];
    let pair = |[planned, measured]: [f64; 2]| format!("{planned:.2} {measured:.2}");
    let rows: Vec<Vec<String>> = results
        .workloads
        .iter()
        .map(|found| {
            vec![
                found.name.to_owned(),
                found.recorded_on.clone(),
                found.planned.clone(),
                pair(found.throttled_s),
                format!("{:.1} to {:.1}", found.by_minutes_s[0], found.by_minutes_s[1]),
                pair(found.mean_ms),
                pair(found.p99_ms),
                output::or_dash(found.limit.map(str::to_owned)),
                format!("{:.1} %", found.same_limit * 100.0),
                output::or_dash((!found.misses.is_empty()).then(|| found.misses.join(", "))),
            ]
        })
        .collect();
    let table = output::table(&header, &rows);
    format!("of two numbers, the first is planned and the second measured\n\n{table}")
}
