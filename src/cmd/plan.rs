//! `evenkeel plan`: the cheapest layouts for a recorded workload.

use crate::cli::{Assumption, Plan};
use crate::message::{self, Exit, Failure, Format};
use evenkeel_core::instance;
use evenkeel_core::price::PriceList;
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::{Rules, VolumeSpec, VolumeType};
use evenkeel_planner::answer::{self, Asked, Rated};
use evenkeel_planner::delays::Delays;
use evenkeel_planner::demand::{Assume, Demand};
use evenkeel_planner::exact::{self, Exact};
use evenkeel_planner::layout::{Layout, LimitKind};
use evenkeel_planner::read::{self, FioLog, Hints};
use evenkeel_planner::search::{self, Space, Wanted};
use evenkeel_planner::trace::{Clock, Note, Trace};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The bytes of a file by which its form is told.
const HEAD_BYTES: usize = 64 << 10;
/// Names that an error lists.
const NAMES_SHOWN: usize = 8;
/// Gaps that are listed one by one.
const GAPS_SHOWN: usize = 3;
/// The most requests of one volume that are replayed one by one: some seconds.
const EXACT_REQUESTS_MAX: u64 = 20_000_000;
const MICRO_USD_PER_CENT: u64 = 10_000;

pub fn run(arguments: &Plan) -> Result<(), Failure> {
    let trace = trace(arguments)?;
    let space = space(arguments)?;
    let wanted = wanted(arguments, &trace)?;
    let assume = match arguments.assume {
        Assumption::Even => Assume::Even,
        Assumption::Idle => Assume::Active,
        Assumption::Worst => Assume::Worst,
    };
    let demand = Demand::of(&trace, assume);
    let mut found = search::cheapest(&space, &demand, &wanted);
    if found.is_empty() {
        return Err(nothing(&demand));
    }
    found.truncate(arguments.top.into());
    let rated = answer::rate(&space, &trace, &demand, found);
    let first = rated.first().map(|rated| rated.found.layout);
    let exact = first.and_then(|it| exact::replay(&space, &demand, &it, EXACT_REQUESTS_MAX));
    let asked = answer::asked(&demand);
    let told = Told { trace: &trace, asked, space: &space, rated: &rated, exact };
    match arguments.output.format {
        Format::Text => message::print(&text(&told)),
        Format::Csv => message::print(&message::csv(&COLUMNS, &rows(&told))),
        Format::Json => message::print(&message::json(&json_of(&told))),
    }
}

/// What an answer is made of.
struct Told<'a> {
    trace: &'a Trace,
    asked: Asked,
    space: &'a Space,
    rated: &'a [Rated],
    /// The cheapest, if it has few enough requests.
    exact: Option<Exact>,
}

fn nothing(demand: &Demand) -> Failure {
    let Asked { peak_iops, peak_bytes_per_second, .. } = answer::asked(demand);
    let message = format!(
        "no layout does this: the busiest interval has {peak_iops} requests and {} MiB a second",
        peak_bytes_per_second / MIB
    );
    Failure::new(message).hint(
        "allow waiting (--throttled, --p99), more volumes (--stripes), more types (--types), or \
         a higher cost (--max-monthly); or ask for less --capacity",
    )
}

/// The one trace of all files that is meant.
fn trace(arguments: &Plan) -> Result<Trace, Failure> {
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
        ..Hints::default()
    };
    let mut all = Vec::new();
    for path in &arguments.traces {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let hints = Hints { fio_log: FioLog::of_file_name(name), ..hints.clone() };
        all.extend(read_file(path, &hints)?);
    }
    let names: BTreeSet<&str> = all.iter().map(|trace| trace.name.as_str()).collect();
    if names.len() > 1 {
        let shown: Vec<&str> = names.iter().copied().take(NAMES_SHOWN).collect();
        let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
        let message = format!("there are {} traces: {}{more}", names.len(), shown.join(", "));
        return Err(Failure::new(message).hint("name one with --volume"));
    }
    if all.is_empty() {
        let of = arguments.volume.as_deref().map_or_else(String::new, |name| format!(" of {name}"));
        let message = format!("there is no trace{of} in these files");
        return Err(Failure::new(message).exit(Exit::NotFound));
    }
    let mut trace = read::merge(all).map_err(|broken| Failure::new(broken.to_string()))?;
    let columns = [(trace.columns.requests, "requests"), (trace.columns.bytes, "bytes")];
    if let Some((_, what)) = columns.into_iter().find(|(kind, _)| kind.is_none()) {
        return Err(Failure::new(format!("{}: the trace has no {what}", trace.name))
            .hint("both are needed: record them too, or give the other file beside this one"));
    }
    if trace.intervals.is_empty() {
        return Err(Failure::new(format!("{} has no interval with values", trace.name)));
    }
    let source = &mut trace.source;
    source.iops = arguments.source_iops.map(u64::from).or(source.iops);
    let bytes = arguments.source_throughput.map(|mibps| u64::from(mibps) * MIB);
    source.bytes_per_second = bytes.or(source.bytes_per_second);
    Ok(trace)
}

fn read_file(path: &Path, hints: &Hints) -> Result<Vec<Trace>, Failure> {
    let name = path.display();
    let input: Box<dyn std::io::Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(File::open(path).map_err(|error| Failure::new(format!("{name}: {error}")))?),
    };
    let mut input = BufReader::with_capacity(HEAD_BYTES, input);
    let head = input.fill_buf().map_err(|error| Failure::new(format!("{name}: {error}")))?;
    let Some(format) = read::detect(head) else {
        return Err(Failure::new(format!("{name}: the form of this file is not known"))
            .hint("docs/reference/traces.md lists what can be read, and how to record it"));
    };
    read::read(format, &mut input, hints)
        .map_err(|broken| Failure::new(format!("{name}: {broken}")))
}

fn space(arguments: &Plan) -> Result<Space, Failure> {
    let fail = |error: String| Failure::new(error).exit(Exit::Usage);
    let (mut rules, mut prices) = (Rules::newest(), PriceList::newest());
    if let Some(date) = arguments.as_of {
        rules = Rules::as_of(date).map_err(|error| fail(error.to_string()))?;
        prices = PriceList::as_of(date).map_err(|error| fail(error.to_string()))?;
    }
    let named = |name: &String| {
        let found = instance::by_name(name);
        found.ok_or_else(|| fail(format!("{name:?} is no instance type with published EBS limits")))
    };
    let instance = arguments.instance.as_ref().map(named).transpose()?;
    let types = match arguments.types.as_slice() {
        [] => VolumeType::ALL.to_vec(),
        types => types.to_vec(),
    };
    Ok(Space {
        rules,
        prices,
        types,
        volumes_max: arguments.stripes,
        stripe_bytes: arguments.stripe_size << 10,
        instance,
    })
}

fn wanted(arguments: &Plan, trace: &Trace) -> Result<Wanted, Failure> {
    let used = trace.intervals.iter().filter_map(|interval| interval.used_bytes).max();
    let known = trace.source.capacity.or(used).map(|bytes| bytes.div_ceil(GIB));
    let capacity_gib = arguments.capacity.or(known).ok_or_else(|| {
        Failure::new("the trace does not tell how many bytes the volume must hold")
            .exit(Exit::Usage)
            .hint("name it with --capacity GIB")
    })?;
    let delays = [(500, arguments.p50), (990, arguments.p99), (999, arguments.p999)];
    let delay = |(permille, ms): (u32, Option<u32>)| Some((permille, u64::from(ms?) * 1_000));
    // Whoever bounds delays, and not the time, is content with the delays.
    let has_delays = delays.iter().any(|(_, ms)| ms.is_some());
    let throttled_s = match arguments.throttled {
        0 if has_delays => 86_400,
        seconds => seconds,
    };
    Ok(Wanted {
        capacity_gib,
        throttled_us_per_day_max: u64::from(throttled_s) * 1_000_000,
        delays: delays.into_iter().filter_map(delay).collect(),
        boots: arguments.boots,
        multi_attach: arguments.multi_attach,
        monthly_max: arguments.max_monthly.map(|usd| u64::from(usd) * 1_000_000),
    })
}

/// Millionths of a dollar as dollars and cents.
fn usd(micro: u64) -> String {
    let cents = micro.div_ceil(MICRO_USD_PER_CENT);
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Milliseconds as seconds.
fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}", ms / 1_000, ms % 1_000 / 100),
        _ => (ms / 1_000).to_string(),
    }
}

fn layout_words(layout: &Layout) -> String {
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, .. } = layout.each;
    let mut words = match layout.volumes {
        1 => format!("{volume_type} {size_gib} GiB"),
        volumes => format!("{volumes} x {volume_type} {size_gib} GiB"),
    };
    if let Some(iops) = iops {
        words += &format!(", {iops} IOPS");
    }
    if let Some(mibps) = throughput_mibps {
        words += &format!(", {mibps} MiB/s");
    }
    words
}

const fn limit_words(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::VolumeIops => "IOPS",
        LimitKind::VolumeBytes => "MiB/s",
        LimitKind::InstanceIops => "instance IOPS",
        LimitKind::InstanceBytes => "instance MiB/s",
    }
}

const COLUMNS: [&str; 8] = [
    "LAYOUT",
    "USD/MONTH",
    "THROTTLED S/DAY",
    "AT LEAST",
    "AT MOST",
    "P99 WAIT MS",
    "FULLEST LIMIT",
    "LOST/YEAR",
];

fn rows(told: &Told<'_>) -> Vec<Vec<String>> {
    told.rated.iter().map(|rated| row(told, rated)).collect()
}

fn row(told: &Told<'_>, rated: &Rated) -> Vec<String> {
    let found = &rated.found;
    let [even, _, worst] = rated.throttled_ms_per_day;
    let assumed = assumed_ms(told, rated);
    let fullest = rated.used_permille.iter().max_by_key(|(_, used)| *used);
    let fullest = fullest.map(|(kind, used)| format!("{} {} %", limit_words(*kind), used / 10));
    let lost = rated.loss_ppb.map(|(best, worst)| {
        let percent = |ppb: u64| format!("{}.{:03}", ppb / 10_000_000, ppb / 10_000 % 1_000);
        match best == worst {
            true => format!("{} %", percent(best)),
            false => format!("{}-{} %", percent(best), percent(worst)),
        }
    });
    vec![
        layout_words(&found.layout),
        usd(found.total()),
        seconds(assumed),
        seconds(even.min(assumed)),
        seconds(worst.max(assumed)),
        found.outcome.delays.permille(990).div_ceil(1_000).to_string(),
        message::or_dash(fullest),
        message::or_dash(lost),
    ]
}

/// Milliseconds a day in which requests wait by the replay that the search went by.
fn assumed_ms(told: &Told<'_>, rated: &Rated) -> u64 {
    let outcome = &rated.found.outcome;
    let length_us = told.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(outcome.waited_us(), length_us.max(outcome.end_us))
}

fn text(told: &Told<'_>) -> String {
    let mut text = header(told);
    text += &message::table(&COLUMNS, &rows(told));
    if let Some(first) = told.rated.first() {
        text += &first_words(told, first);
    }
    text
}

fn header(told: &Told<'_>) -> String {
    let Told { trace, asked, .. } = told;
    let known = message::span(trace.known_ms() / 1_000);
    let resolution = message::span(trace.resolution_ms().div_ceil(1_000));
    let mut text = format!("{}: {known}, in steps of {resolution}\n", trace.name);
    text += &format!(
        "asked for: at most {} requests and {} MiB a second, on average {} and {}\n",
        asked.peak_iops,
        asked.peak_bytes_per_second.div_ceil(MIB),
        asked.mean_iops,
        asked.mean_bytes_per_second.div_ceil(MIB),
    );
    let gaps = trace.notes.iter().filter(|note| matches!(note, Note::Gap { .. })).count();
    let mut shown = 0;
    for note in &trace.notes {
        match note {
            Note::Remark(remark) => text += &format!("note: {remark}\n"),
            Note::Gap { start_ms, length_ms } if shown < GAPS_SHOWN => {
                shown += 1;
                let length = message::span(length_ms.div_ceil(1_000));
                text += &format!("gap: {length} from {} on are not known\n", at(trace, *start_ms));
            }
            Note::Gap { .. } => {}
        }
    }
    if gaps > shown {
        text += &format!("gap: {} more\n", gaps - shown);
    }
    text + "\n"
}

/// A time of a trace.
fn at(trace: &Trace, ms: u64) -> String {
    match trace.clock {
        Clock::Unix => evenkeel_wire::aws::timestamp::extended(ms),
        Clock::Elapsed => message::span(ms / 1_000),
    }
}

/// What is to say of the cheapest layout.
fn first_words(told: &Told<'_>, rated: &Rated) -> String {
    let mut text = String::from("\n");
    text += &match &told.exact {
        Some(exact) => format!(
            "the cheapest, request by request on the scheduler: {} s of waiting a day, p99 {} ms\n",
            seconds(exact_ms(told, exact)),
            exact.delays.permille(990).div_ceil(1_000),
        ),
        None => format!(
            "not replayed request by request: a volume has more than {EXACT_REQUESTS_MAX} of them\n"
        ),
    };
    let found = &rated.found;
    if let Some(hour) = rated.worst_hour {
        text += &format!(
            "worst hour: {} after the beginning, {} s of waiting for {}\n",
            message::span(hour.start_us / 1_000_000),
            seconds(hour.waited_us / 1_000),
            limit_words(hour.limit),
        );
    }
    let resolution_s = told.trace.resolution_ms() / 1_000;
    let [even, _, worst] = rated.throttled_ms_per_day;
    if resolution_s > 1 && worst > even {
        text += &format!(
            "steps of {} hide what happens within: requests wait for {} to {} s a day; a trace of \
             seconds tells which\n",
            message::span(resolution_s),
            seconds(even),
            seconds(worst),
        );
    }
    text += "to make it:\n";
    for line in commands(told, &found.layout) {
        text += &format!("  {line}\n");
    }
    text
}

/// Milliseconds a day in which requests wait on the scheduler.
fn exact_ms(told: &Told<'_>, exact: &Exact) -> u64 {
    let length_us = told.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(exact.waited_us, length_us.max(exact.waited_us))
}

/// Commands that make a layout.
fn commands(told: &Told<'_>, layout: &Layout) -> [String; 2] {
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } = layout.each;
    let sells = told.space.rules.of(volume_type).and_then(|rules| rules.iops_max(size_gib));
    let iops = iops.filter(|_| sells.is_some());
    let flag = |name: &str, value: Option<u32>| {
        value.map_or_else(String::new, |value| format!(" {name} {value}"))
    };
    let each =
        if layout.volumes > 1 { format!("   # {} times", layout.volumes) } else { "".into() };
    let both = if multi_attach { [" --multi-attach", " --multi-attach-enabled"] } else { ["", ""] };
    [
        format!(
            "evenkeel volume create --type {volume_type} --size {size_gib}{}{}{}{each}",
            flag("--iops", iops),
            flag("--throughput", throughput_mibps),
            both[0],
        ),
        format!(
            "aws ec2 create-volume --availability-zone ZONE --volume-type {volume_type} --size \
             {size_gib}{}{}{}{each}",
            flag("--iops", iops),
            flag("--throughput", throughput_mibps),
            both[1],
        ),
    ]
}

fn json_of(told: &Told<'_>) -> Value {
    let Told { trace, asked, space, rated, exact } = told;
    let cheapest = exact.as_ref().map(|exact| {
        json!({
            "requests": exact.requests,
            "throttled_ms_per_day": exact_ms(told, exact),
            "delay_us": delays_json(&exact.delays),
        })
    });
    let layouts: Vec<Value> = rated.iter().map(|rated| layout_json(told, rated)).collect();
    let notes = trace.notes.iter().map(|note| match note {
        Note::Gap { start_ms, length_ms } => {
            json!({ "gap": { "start_ms": start_ms, "length_ms": length_ms } })
        }
        Note::Remark(remark) => json!({ "remark": remark }),
    });
    json!({
        "schema": "evenkeel.plan/1",
        "trace": {
            "name": trace.name,
            "known_ms": trace.known_ms(),
            "resolution_ms": trace.resolution_ms(),
            "notes": notes.collect::<Vec<_>>(),
        },
        "asked": {
            "peak_iops": asked.peak_iops,
            "peak_bytes_per_second": asked.peak_bytes_per_second,
            "mean_iops": asked.mean_iops,
            "mean_bytes_per_second": asked.mean_bytes_per_second,
        },
        "rules": space.rules.date().to_string(),
        "prices": space.prices.date().to_string(),
        "layouts": layouts,
        "cheapest_by_scheduler": cheapest,
    })
}

fn delays_json(delays: &Delays) -> Value {
    json!({
        "mean": delays.mean_us(),
        "p50": delays.permille(500),
        "p99": delays.permille(990),
        "p999": delays.permille(999),
        "max": delays.most_us(),
    })
}

fn layout_json(told: &Told<'_>, rated: &Rated) -> Value {
    let found = &rated.found;
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } =
        found.layout.each;
    let [even, active, worst] = rated.throttled_ms_per_day;
    let used = rated.used_permille.iter();
    let used = used.map(|(kind, used)| json!({ "limit": limit_words(*kind), "permille": used }));
    let hour = rated.worst_hour.map(|hour| {
        json!({
            "start_s": hour.start_us / 1_000_000,
            "waited_ms": hour.waited_us / 1_000,
            "limit": limit_words(hour.limit),
        })
    });
    json!({
        "volumes": found.layout.volumes,
        "volume_type": volume_type.to_string(),
        "size_gib": size_gib,
        "iops": iops,
        "throughput_mibps": throughput_mibps,
        "multi_attach": multi_attach,
        "monthly_micro_usd": {
            "storage": found.monthly.storage,
            "iops": found.monthly.iops,
            "throughput": found.monthly.throughput,
            "requests": found.requests,
            "total": found.total(),
        },
        "throttled_ms_per_day": assumed_ms(told, rated),
        "throttled_ms_per_day_by_assumption": { "even": even, "idle": active, "worst": worst },
        "delay_us": delays_json(&found.outcome.delays),
        "used": used.collect::<Vec<_>>(),
        "worst_hour": hour,
        "loss_ppb_per_year": rated.loss_ppb.map(|(best, worst)| json!([best, worst])),
        "commands": commands(told, &found.layout),
    })
}
