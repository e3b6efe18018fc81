//! Reads flags and files into a question of the planner.

use super::{described, failure, prices, recordings, unopened};
use crate::cli::{
    Assumption, DateWords, PlanAllowed, PlanCheck, PlanRules, PlanTraces, PlanWanted,
};
use crate::cmd::record;
use evenkeel_client::output::Failure;
use evenkeel_core::units::MIB;
use evenkeel_core::volume::{Rules, VolumeSpec};
use evenkeel_planner::case::{self, AllowedWaits, Case, Terms, Wishes, Workload};
use evenkeel_planner::demand::Assume;
use evenkeel_planner::described::{VolumeList, in_given};
use evenkeel_planner::read::Hints;
use evenkeel_planner::spread::Spread;
use evenkeel_planner::trace::Trace;

/// Reads the files that flags name, for a search of at most `layouts_max` layouts.
pub fn of_search(
    traces: &PlanTraces,
    rules: &PlanRules,
    wanted: &PlanWanted,
    layouts_max: u16,
) -> Result<Case, Failure> {
    let terms = terms(rules)?;
    let workload = workload(traces, terms.rules)?;
    let region = region(&workload, traces)?;
    let space = terms.space(&region, &wanted.types, wanted.stripes).map_err(failure)?;
    Case::of_search(workload, space, wishes(wanted, layouts_max)).map_err(failure)
}

/// Reads the files that flags name, for layouts that are named: on one instance at most.
pub fn of_layouts(traces: &PlanTraces, rules: &PlanRules, wishes: Wishes) -> Result<Case, Failure> {
    let terms = terms(rules)?;
    terms.check_one_instance().map_err(failure)?;
    let workload = workload(traces, terms.rules)?;
    let region = region(&workload, traces)?;
    let space = terms.space(&region, &[], 1).map_err(failure)?;
    Case::of_layouts(workload, space, wishes).map_err(failure)
}

fn region(workload: &Workload, traces: &PlanTraces) -> Result<String, Failure> {
    let named = prices::named_region(&traces.connection);
    workload.region(named).map_err(failure)
}

fn terms(flags: &PlanRules) -> Result<Terms, Failure> {
    let prices = prices::read(&flags.priced, flags.as_of)?;
    let spread = match flags.hot_share {
        Some(percent) => Spread::Hot { percent },
        None => Spread::Striped { stripe_bytes: flags.stripe_size << 10 },
    };
    Terms::new(flags.as_of, prices, spread, &flags.instance).map_err(failure)
}

fn wishes(flags: &PlanWanted, layouts_max: u16) -> Wishes {
    Wishes {
        capacity_gib: flags.capacity,
        waits: waits(&flags.allowed),
        boots: flags.boots,
        multi_attach: flags.multi_attach,
        monthly_max: flags.max_monthly,
        headroom_percent: flags.headroom,
        days_min: flags.days_min,
        less_durable: flags.less_durable,
        layouts_max: layouts_max.into(),
    }
}

/// Returns what a layout that is named must hold and carry.
pub fn wishes_of_check(flags: &PlanCheck) -> Wishes {
    Wishes {
        capacity_gib: flags.capacity,
        waits: waits(&flags.allowed),
        monthly_max: flags.max_monthly,
        ..Wishes::default()
    }
}

/// Returns how long requests may wait.
fn waits(flags: &PlanAllowed) -> AllowedWaits {
    let delays = [(500, flags.p50), (990, flags.p99), (999, flags.p999)];
    let delays = delays.into_iter().filter_map(|(permille, ms)| Some((permille, ms?)));
    AllowedWaits { throttled_s: flags.throttled, delays_ms: delays.collect() }
}

/// Reads the trace that is meant from all files, and the description of its volume.
fn workload(flags: &PlanTraces, rules: &'static Rules) -> Result<Workload, Failure> {
    let Files { traces, is_served, spec, lists, is_from_cloudwatch } = Files::read(flags, rules)?;
    let mut trace = case::one_trace(traces, flags.volume.as_deref()).map_err(failure)?;
    let source = &mut trace.source;
    source.iops = flags.source_iops.or(source.iops);
    let bytes = flags.source_throughput.map(|mibps| mibps * MIB);
    source.bytes_per_second = bytes.or(source.bytes_per_second);
    let mut described = None;
    let mut broken = Vec::new();
    if !lists.is_empty() {
        described = in_given(&lists, &trace.name).map_err(failure)?;
    } else if spec.is_none() && flags.source.is_none() {
        (described, broken) = described::beside(&flags.traces, &trace.name, rules)?;
    }
    let workload = Workload {
        trace,
        is_served,
        spec,
        described: None,
        source: flags.source.clone(),
        assume: flags.assume.map(assume),
        is_from_cloudwatch,
    };
    Ok(workload.with_described(described, broken))
}

/// The content of all files.
struct Files {
    traces: Vec<Trace>,
    /// Whether an Evenkeel server recorded one of them.
    is_served: bool,
    /// The properties of a volume of the server.
    spec: Option<VolumeSpec>,
    /// Lists of volumes.
    lists: Vec<VolumeList>,
    /// Whether all recordings are answers or exports of CloudWatch.
    is_from_cloudwatch: bool,
}

impl Files {
    fn read(arguments: &PlanTraces, rules: &'static Rules) -> Result<Self, Failure> {
        let queries = arguments.queries.as_ref().map(|path| {
            let hint = "name the file of --metric-data-queries of `aws cloudwatch get-metric-data`";
            std::fs::read_to_string(path).map_err(|error| unopened(path, &error, hint))
        });
        let hints = Hints {
            name: arguments.volume.clone(),
            interval_ms: arguments.interval_ms,
            allows_partial: arguments.allow_partial,
            queries: queries.transpose()?,
            are_rates: arguments.rates,
            keeps_first: arguments.keep_first,
            dates: arguments.dates.map(DateWords::order),
            ..Hints::default()
        };
        let mut files = Self {
            traces: vec![],
            is_served: false,
            spec: None,
            lists: vec![],
            is_from_cloudwatch: true,
        };
        let mut paths = Vec::new();
        for path in &arguments.traces {
            if let Some(volume) = path.to_str().filter(|path| record::is_volume(path)) {
                let (trace, spec) = record::trace_of(&arguments.connection, volume)?;
                files.traces.push(trace);
                files.is_served = true;
                files.spec = spec;
                files.is_from_cloudwatch = false;
            } else {
                paths.push(path.clone());
            }
        }
        let read = recordings::read_all(&paths, arguments.form, &hints, rules)?;
        files.traces.extend(read.traces);
        files.lists = read.lists;
        files.is_from_cloudwatch &= read.is_from_cloudwatch;
        Ok(files)
    }
}

/// Returns how requests are taken to lie within an interval.
pub const fn assume(assumption: Assumption) -> Assume {
    match assumption {
        Assumption::Even => Assume::Even,
        Assumption::Idle => Assume::Active,
        Assumption::Worst => Assume::Worst,
    }
}
