//! Reads flags and files into the planner's types.

use super::described::{self, Described};
use super::format::{no_price, plain};
use super::prices::{self, DEFAULT_REGION, Given};
use super::recordings;
use crate::cli::{
    Assumption, DateWords, PlanAllowed, PlanCheck, PlanPrices, PlanRules, PlanTraces, PlanWanted,
};
use crate::cmd::record;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::{Date, Rules, VolumeSpec, VolumeType};
use evenkeel_planner::advice;
use evenkeel_planner::answer::{self, Rated};
use evenkeel_planner::demand::{Assume, Demand};
use evenkeel_planner::exact;
use evenkeel_planner::fleet::{FREE_PERCENT, gib_with_free};
use evenkeel_planner::layout::Layout;
use evenkeel_planner::layout_text;
use evenkeel_planner::prices::Prices;
use evenkeel_planner::read::{self, Hints};
use evenkeel_planner::regions;
use evenkeel_planner::search::{self, Found, Space, Tolerance, Wanted};
use evenkeel_planner::spread::Spread;
use evenkeel_planner::throttled::HeldBack;
use evenkeel_planner::trace::{Interval, Note, Trace};
use std::collections::BTreeSet;

/// Names that an error lists.
const NAMES_SHOWN: usize = 8;
/// Instance types of one plan: each is a search.
const INSTANCES_MAX: usize = 16;

/// A recorded workload, and the rules by which layouts are found for it.
pub struct Case {
    pub trace: Trace,
    /// Without types until a search is prepared, unless some are named.
    pub space: Space,
    /// How requests are taken to lie within an interval.
    pub assume: Assume,
    /// The requests that were recorded.
    pub demand: Demand,
    /// Percent that layouts of a search carry beyond what was recorded.
    pub headroom_percent: u32,
    /// The requests with the headroom; `None` without any.
    demand_with_headroom: Option<Demand>,
    /// Whether the types of a search are the default ones.
    pub has_default_types: bool,
    /// The volume that was recorded, if it was named.
    pub source: Option<Layout>,
    /// The monthly cost of the source with these prices, if it has a price.
    pub source_monthly: Option<u64>,
    /// The volume that was recorded, as a list of volumes describes it.
    pub described: Option<Described>,
    /// Whether the volume that was recorded is one of AWS, as far as the files say.
    pub is_at_aws: bool,
}

/// The trace that is meant, and what else is known of its volume.
struct Recorded {
    trace: Trace,
    /// The properties of a volume of the server.
    spec: Option<VolumeSpec>,
    described: Option<Described>,
    /// Whether all of the trace is from CloudWatch.
    is_from_cloudwatch: bool,
}

impl Case {
    /// Reads the files that flags name, for a search.
    pub fn read(
        traces: &PlanTraces,
        rules: &PlanRules,
        wanted: &PlanWanted,
    ) -> Result<Self, Failure> {
        let flags = SpaceFlags::read(rules)?;
        let recorded = Recorded::read(traces, flags.rules)?;
        let region = recorded.region(&traces.connection.region)?;
        Self::of(traces, recorded, flags.space(&region, &wanted.types, wanted.stripes)?)
    }

    /// Reads the files that flags name, for layouts that are named: on one instance at most.
    pub fn read_for_given(traces: &PlanTraces, rules: &PlanRules) -> Result<Self, Failure> {
        let flags = SpaceFlags::read(rules)?;
        flags.check_one_instance()?;
        let recorded = Recorded::read(traces, flags.rules)?;
        let region = recorded.region(&traces.connection.region)?;
        Self::of(traces, recorded, flags.space(&region, &[], 1)?)
    }

    fn of(traces: &PlanTraces, recorded: Recorded, mut space: Space) -> Result<Self, Failure> {
        // A volume of the server stays one.
        if traces.traces.iter().filter_map(|path| path.to_str()).any(record::is_volume) {
            space.tolerance = Tolerance::Evenkeel;
        }
        let is_at_aws = recorded.is_at_aws();
        let Recorded { mut trace, spec, described, .. } = recorded;
        let source = traces.source.as_deref().map(|text| layout("--source", text, &space));
        // The volume as it is now, if the rules of the day have it.
        let present = spec.or(described.as_ref().map(|described| described.spec));
        let present = present.and_then(|spec| space.rules.resolve(&spec.request()).ok());
        let source = source.transpose()?.or(present.map(Layout::one));
        // No limit held back a workload that was not recorded.
        if let Some(source) = source.as_ref().filter(|_| !is_declared(&trace)) {
            limit_source(&mut trace, source, &space);
        }
        if let Some(held) = HeldBack::of(&trace) {
            trace.notes.push(Note::Remark(held_back_words(&held)));
        }
        let assume = traces.assume.map_or_else(|| advice::assume(&trace), assume);
        let demand = Demand::of(&trace, assume);
        let of_source = source.and_then(|source| search::given(&space, &demand, &source));
        let source_monthly = of_source.map(|found| found.total());
        Ok(Self {
            trace,
            space,
            assume,
            demand,
            headroom_percent: 0,
            demand_with_headroom: None,
            has_default_types: false,
            source,
            source_monthly,
            described,
            is_at_aws,
        })
    }

    /// Prepares a search by the rules that `plan fleet` goes by, too: its types, the headroom, and
    /// whether enough was recorded to name a price a month.
    pub fn prepare(&mut self, arguments: &PlanWanted) -> Result<(), Failure> {
        let is_declared = is_declared(&self.trace);
        let known_ms = advice::known_ms(&self.trace);
        let missing = advice::too_short(known_ms, arguments.days_min).filter(|_| !is_declared);
        if let Some(missing) = missing {
            let name = plain(&self.trace.name);
            let message = format!("{name}: {missing}: no price a month is named");
            return Err(Failure::new(message).exit(Exit::Undecided).hint(format!(
                "record at least {} days; --days-min 0 plans for what was recorded, as if each \
                 day of the month were so",
                arguments.days_min
            )));
        }
        let default_percent = if is_declared { 0 } else { advice::HEADROOM_PERCENT };
        self.headroom_percent = arguments.headroom.unwrap_or(default_percent);
        self.demand_with_headroom = (self.headroom_percent > 0)
            .then(|| advice::with_headroom(&self.demand, self.headroom_percent));
        self.has_default_types = self.space.types.is_empty();
        if self.has_default_types {
            let present = self.source.map(|source| source.each.volume_type);
            let rules = self.space.rules;
            let is_durable = |it: &VolumeType| {
                let is_less =
                    present.is_some_and(|present| !advice::is_as_durable(rules, *it, present));
                arguments.less_durable || !is_less
            };
            let offered = VolumeType::ALL.into_iter().filter(|it| advice::is_offered(present, *it));
            self.space.types = offered.filter(is_durable).collect();
        }
        Ok(())
    }

    /// Returns the requests that layouts of a search must carry.
    pub fn wanted_demand(&self) -> &Demand {
        self.demand_with_headroom.as_ref().unwrap_or(&self.demand)
    }

    /// Replays what was recorded on a layout: by the scheduler, if its tolerance is counted on and
    /// at most `requests_max` requests of a volume may wait. Returns `None` if the layout has no
    /// price.
    pub fn replayed(&self, layout: &Layout, requests_max: u64) -> Option<Found> {
        let mut found = search::given(&self.space, &self.demand, layout)?;
        if self.space.tolerance == Tolerance::Evenkeel {
            found.exact = exact::replay(&self.space, &self.demand, layout, requests_max);
        }
        Some(found)
    }

    /// Rates a layout that is named: by the scheduler, if at most `requests_max` requests of a
    /// volume may wait.
    pub fn given(&self, text: &str, requests_max: u64) -> Result<Rated, Failure> {
        let instance = self.space.instances.first().copied();
        let layout = Layout { instance, ..layout("--layout", text, &self.space)? };
        let found = self
            .replayed(&layout, requests_max)
            .ok_or_else(|| unpriced(&self.space.prices, &layout.each))?;
        if !self.space.prices.fits(self.space.rules, &layout.each) {
            let one = Layout::one(layout.each);
            let message = format!("--layout {text:?}: no device of the price book carries {one}");
            return Err(Failure::new(message)
                .exit(Exit::Usage)
                .hint("make its volumes smaller or slower, or more"));
        }
        let mut rated = answer::rate(&self.space, &self.trace, &self.demand, vec![found]);
        rated.pop().ok_or_else(|| Failure::new("the layout was not rated"))
    }
}

/// Returns whether a workload was declared, and not recorded.
fn is_declared(trace: &Trace) -> bool {
    trace.notes.iter().any(|note| matches!(note, Note::Remark(it) if it == read::DECLARED))
}

/// The error of a volume without a price.
fn unpriced(prices: &Prices, each: &VolumeSpec) -> Failure {
    let lacks = prices.unpriced(each).expect("invariant: it has no cost").to_string();
    let failure = match prices {
        Prices::List(list) => Failure::new(no_price(list.list(), &lacks)).hint(
            "choose another day with --as-of or another layout, or name a price list with --prices",
        ),
        Prices::Book(book) => match book.carrier(each.volume_type) {
            Err(not_carried) => Failure::new(not_carried.to_string()),
            Ok(_) => Failure::new(format!("the price book has no price of {lacks}")),
        },
    };
    failure.exit(Exit::Usage)
}

/// Reads a layout in words.
fn layout(flag: &str, text: &str, space: &Space) -> Result<Layout, Failure> {
    layout_text::parse(text, space.rules).map_err(|bad| {
        Failure::new(format!("{flag} {text:?}: {bad}"))
            .exit(Exit::Usage)
            .hint("it is written as in the column LAYOUT: 2 x gp3 100 GiB, 3000 IOPS, 125 MiB/s")
    })
}

/// Sets the limits of the volume that was recorded, unless the trace has them.
fn limit_source(trace: &mut Trace, layout: &Layout, space: &Space) {
    let source = &mut trace.source;
    source.fill(&space.rules.pacing(&layout.each), layout.share(space));
    let bytes = u64::from(layout.each.size_gib).saturating_mul(GIB);
    source.capacity = source.capacity.or(Some(bytes.saturating_mul(layout.volumes.into())));
}

impl Recorded {
    /// Reads the trace that is meant from all files, and the description of its volume.
    fn read(arguments: &PlanTraces, rules: &'static Rules) -> Result<Self, Failure> {
        let files = Files::read(arguments, rules)?;
        let Files { traces, spec, lists, is_from_cloudwatch } = files;
        let mut trace = the_one_trace(traces, arguments)?;
        let mut described = None;
        if !lists.is_empty() {
            described = described::in_given(&lists, &trace.name)?;
        } else if spec.is_none() && arguments.source.is_none() {
            let found = described::beside(&arguments.traces, &trace.name, rules)?;
            trace.notes.extend(found.1.into_iter().map(Note::Remark));
            described = found.0;
        }
        if let Some(described) = &described {
            let layout = Layout::one(described.spec);
            let remark = format!("the volume is {layout}, by {}", described.file.display());
            trace.notes.insert(0, Note::Remark(remark));
        }
        Ok(Self { trace, spec, described, is_from_cloudwatch })
    }

    /// Returns the region whose prices apply: that of the volume's zone, or of the flag.
    fn region(&self, flag: &str) -> Result<String, Failure> {
        let named = prices::named_region(flag);
        let described = self.described.as_ref();
        let Some((of_zone, described)) =
            described.and_then(|described| Some((described.region.as_deref()?, described)))
        else {
            return Ok(named.unwrap_or(DEFAULT_REGION).to_owned());
        };
        let is_other = |named: &&str| *named != of_zone && *named != regions::endpoint(of_zone);
        match named.filter(is_other) {
            None => Ok(of_zone.to_owned()),
            Some(named) => {
                let message = format!(
                    "{} is in {of_zone} by {}, and --region says {}",
                    plain(&self.trace.name),
                    described.file.display(),
                    plain(named)
                );
                Err(Failure::new(message).exit(Exit::Usage).hint("leave --region out"))
            }
        }
    }

    /// Returns whether the volume is one of AWS, as far as the files say.
    fn is_at_aws(&self) -> bool {
        let has_id = self.trace.name.parse::<VolumeId>().is_ok();
        let is_ours = self.spec.is_some();
        has_id
            && !is_ours
            && match &self.described {
                Some(described) => described.region.is_some(),
                None => self.is_from_cloudwatch,
            }
    }
}

/// The content of all files.
struct Files {
    traces: Vec<Trace>,
    /// The properties of a volume of the server.
    spec: Option<VolumeSpec>,
    /// Lists of volumes.
    lists: Vec<described::Given>,
    is_from_cloudwatch: bool,
}

impl Files {
    fn read(arguments: &PlanTraces, rules: &'static Rules) -> Result<Self, Failure> {
        let queries = arguments.queries.as_ref().map(|path| {
            std::fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
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
        let mut files =
            Self { traces: vec![], spec: None, lists: vec![], is_from_cloudwatch: true };
        let mut paths = Vec::new();
        for path in &arguments.traces {
            if let Some(volume) = path.to_str().filter(|path| record::is_volume(path)) {
                let (trace, spec) = record::trace_of(&arguments.connection, volume)?;
                files.traces.push(trace);
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

/// Merges the traces of one volume.
fn the_one_trace(all: Vec<Trace>, arguments: &PlanTraces) -> Result<Trace, Failure> {
    let names: BTreeSet<&str> = all.iter().map(|trace| trace.name.as_str()).collect();
    if names.len() > 1 {
        let shown: Vec<String> = names.iter().copied().take(NAMES_SHOWN).map(plain).collect();
        let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
        let message = format!("there are {} traces: {}{more}", names.len(), shown.join(", "));
        return Err(Failure::new(message).hint(name_one(&all)));
    }
    if all.is_empty() {
        let volume = arguments
            .volume
            .as_deref()
            .map_or_else(String::new, |name| format!(" of {}", plain(name)));
        let message = format!("there is no trace{volume} in these files");
        return Err(Failure::new(message).exit(Exit::NotFound));
    }
    let mut trace = read::merge(all).map_err(|broken| Failure::new(broken.to_string()))?;
    let columns = [(trace.columns.requests, "requests"), (trace.columns.bytes, "bytes")];
    if let Some((_, what)) = columns.into_iter().find(|(kind, _)| kind.is_none()) {
        return Err(Failure::new(format!("{}: the trace has no {what}", plain(&trace.name)))
            .hint("both are needed: record them too, or give the other file beside this one"));
    }
    if trace.intervals.is_empty() {
        return Err(Failure::new(format!("{} has no interval with values", plain(&trace.name))));
    }
    let source = &mut trace.source;
    source.iops = arguments.source_iops.or(source.iops);
    let bytes = arguments.source_throughput.map(|mibps| mibps * MIB);
    source.bytes_per_second = bytes.or(source.bytes_per_second);
    Ok(trace)
}

/// Returns how to name one of several traces: as an example that with the most requests.
fn name_one(all: &[Trace]) -> String {
    let requests = |trace: &&Trace| -> u64 {
        let of_one = |interval: &Interval| interval.reads.saturating_add(interval.writes);
        trace.intervals.iter().map(of_one).fold(0, u64::saturating_add)
    };
    match all.iter().max_by_key(requests).filter(|busiest| requests(busiest) > 0) {
        Some(busiest) => {
            let name = plain(&busiest.name);
            format!("name one with --volume, as --volume {name}, which has the most requests")
        }
        None => "name one with --volume".to_owned(),
    }
}

/// Returns the note about requests that the source's limits held back.
fn held_back_words(held: &HeldBack) -> String {
    let limits = [
        held.iops.map(|iops| format!("{iops} IOPS")),
        held.bytes_per_second.map(|bytes| format!("{} MiB/s", bytes / MIB)),
        held.earned_iops.map(|iops| format!("{iops} IOPS without credits")),
        held.earned_bytes_per_second.map(|it| format!("{} MiB/s without credits", it / MIB)),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let least = match limits.is_empty() {
        true => "name it with --source, or its limits with --source-iops and --source-throughput"
            .to_owned(),
        false => format!("no layout has less than its {}", limits.join(" and ")),
    };
    format!(
        "the source's limits held requests back in {} intervals, {} in all: more was wanted then \
         than was recorded, so {least}, unless --throttled allows that long",
        held.intervals,
        layout_text::span(held.length_ms.div_ceil(1_000)),
    )
}

/// Returns how requests are taken to lie within an interval.
pub const fn assume(assumption: Assumption) -> Assume {
    match assumption {
        Assumption::Even => Assume::Even,
        Assumption::Idle => Assume::Active,
        Assumption::Worst => Assume::Worst,
    }
}

/// Returns the rules of a day, or the newest.
pub fn rules_of(day: Option<Date>) -> Result<&'static Rules, Failure> {
    let fail = |error: String| Failure::new(error).exit(Exit::Usage);
    let Some(day) = day else { return Ok(Rules::newest()) };
    Rules::as_of(day).map_err(|error| fail(error.to_string()))
}

/// The flags of a space of layouts, before the region of its prices is known.
struct SpaceFlags<'a> {
    flags: &'a PlanRules,
    rules: &'static Rules,
    prices: Given,
    instances: Vec<&'static InstanceType>,
}

impl<'a> SpaceFlags<'a> {
    fn read(flags: &'a PlanRules) -> Result<Self, Failure> {
        let PlanPrices { prices, discount } = &flags.priced;
        Ok(Self {
            flags,
            prices: Given::read(prices, discount, flags.as_of)?,
            rules: rules_of(flags.as_of)?,
            instances: instances(&flags.instance)?,
        })
    }

    /// Returns an error if several instances are named.
    fn check_one_instance(&self) -> Result<(), Failure> {
        match self.instances.len() {
            0 | 1 => Ok(()),
            count => {
                let message = format!("--instance names {count} types: a named layout is on one");
                Err(Failure::new(message)
                    .exit(Exit::Usage)
                    .hint("name one type, or let `evenkeel plan` choose among several"))
            }
        }
    }

    /// Returns the space of layouts at the prices of a region.
    fn space(self, region: &str, types: &[VolumeType], volumes_max: u32) -> Result<Space, Failure> {
        // A type that is named twice is one type.
        let types = VolumeType::ALL.into_iter().filter(|named| types.contains(named)).collect();
        let prices = self.prices.of(region)?;
        // A price book is one of volumes of our own.
        let tolerance = match &prices {
            Prices::List(_) => Tolerance::None,
            Prices::Book(_) => Tolerance::Evenkeel,
        };
        Ok(Space {
            rules: self.rules,
            prices,
            tolerance,
            types,
            volumes_max,
            spread: match self.flags.hot_share {
                Some(percent) => Spread::Hot { percent },
                None => Spread::Striped { stripe_bytes: self.flags.stripe_size << 10 },
            },
            instances: self.instances,
        })
    }
}

/// Returns the instance types, each once, the weakest first: it is preferred at the same cost.
fn instances(names: &[String]) -> Result<Vec<&'static InstanceType>, Failure> {
    let fail = |error: String| Failure::new(error).exit(Exit::Usage);
    if names.len() > INSTANCES_MAX {
        let message = format!("--instance names {} types: at most {INSTANCES_MAX}", names.len());
        return Err(fail(message));
    }
    let named = |name: &String| {
        instance::by_name(name).ok_or_else(|| {
            fail(format!("--instance {name:?} is no instance type with published EBS limits"))
        })
    };
    let mut all = names.iter().map(named).collect::<Result<Vec<_>, _>>()?;
    all.sort_by_key(|it| (it.baseline_mbps, it.baseline_iops, it.mbps_max, it.iops_max, it.name));
    all.dedup_by_key(|it| it.name);
    Ok(all)
}

/// Returns the GiB that are in use in a trace, if it says so.
fn used_gib(trace: &Trace) -> Option<u64> {
    trace.used_bytes_max().map(|bytes| bytes.div_ceil(GIB))
}

/// Returns the GiB that a layout of a search must hold, if a flag or a file says it.
pub fn capacity(arguments: &PlanWanted, case: &Case) -> Option<u64> {
    let of_trace = case.trace.source.capacity.map(|bytes| bytes.div_ceil(GIB));
    let size = |layout: &Layout| u64::from(layout.each.size_gib) * u64::from(layout.volumes);
    let of_source = case.source.as_ref().map(size);
    let known = arguments.capacity.or(of_trace).or(of_source);
    // A volume of the used size would be full at once.
    known.or_else(|| gib_with_free(case.trace.used_bytes_max()?, FREE_PERCENT))
}

/// Returns what a layout of a search must hold and carry.
pub fn wanted(arguments: &PlanWanted, case: &Case) -> Result<Wanted, Failure> {
    match capacity(arguments, case) {
        Some(capacity_gib) => Ok(wanted_with(arguments, case, capacity_gib)),
        None => Err(Failure::new("the files do not say how large the volume is")
            .exit(Exit::Usage)
            .hint(
                "add --capacity GIB, or the output of `aws ec2 describe-volumes` after the \
                 recording",
            )),
    }
}

/// Returns what a layout of a search must carry, and hold with this capacity.
pub fn wanted_with(arguments: &PlanWanted, case: &Case, capacity_gib: u64) -> Wanted {
    let described = case.described.as_ref();
    Wanted {
        capacity_gib,
        boots: arguments.boots || described.is_some_and(|described| described.boots),
        multi_attach: arguments.multi_attach
            || described.is_some_and(|described| described.spec.multi_attach),
        monthly_max: arguments.max_monthly,
        ..allowed(&arguments.allowed)
    }
}

/// Returns what a layout that is named must hold and carry.
pub fn wanted_of_given(arguments: &PlanCheck, trace: &Trace) -> Wanted {
    let capacity_gib = arguments.capacity.or_else(|| used_gib(trace)).unwrap_or_default();
    let monthly_max = arguments.max_monthly;
    Wanted { capacity_gib, monthly_max, ..allowed(&arguments.allowed) }
}

/// Returns how long requests may wait.
fn allowed(arguments: &PlanAllowed) -> Wanted {
    let delays = [(500, arguments.p50), (990, arguments.p99), (999, arguments.p999)];
    let delay = |(permille, ms): (u32, Option<u32>)| Some((permille, u64::from(ms?) * 1_000));
    // With bounds on delays alone, any time of waiting will do.
    let has_delays = delays.iter().any(|(_, ms)| ms.is_some());
    let throttled_s = match arguments.throttled {
        0 if has_delays => 86_400,
        seconds => seconds,
    };
    Wanted {
        throttled_us_per_day_max: u64::from(throttled_s) * 1_000_000,
        delays: delays.into_iter().filter_map(delay).collect(),
        ..Wanted::default()
    }
}
