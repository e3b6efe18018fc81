//! `evenkeel plan`: the cheapest layouts for a recorded workload, and what happens on layouts.

mod check;
mod commands;
mod compare;
mod device;
mod explain;
mod fleet;
mod format;
mod html;
mod input;
mod json;
mod notes;
mod prices;
mod text;

use crate::cli::{Plan, PlanFormat, PlanVerb};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeType;
use evenkeel_lab::files;
use evenkeel_planner::answer::{self, Asked, Rated};
use evenkeel_planner::exact::{self, Exact};
use evenkeel_planner::neighbours::{self, Less};
use evenkeel_planner::search::{self, Found, Space, Wanted};
use evenkeel_planner::steady;
use input::Case;

/// The most requests of one volume that are replayed one by one: some seconds.
const EXACT_REQUESTS_MAX: u64 = 20_000_000;
/// The most requests of each layout of a comparison.
const COMPARED_REQUESTS_MAX: u64 = 5_000_000;
/// The most requests of a layout with one unit less than the cheapest.
const NEIGHBOUR_REQUESTS_MAX: u64 = 5_000_000;
/// The most requests of all layouts behind the first that are replayed without the headroom.
const RECORDED_REQUESTS_MAX: u64 = 4_000_000;
/// Layouts of HDD types among which one without failing credits is searched.
const HDD_LAYOUTS: usize = 8;

pub fn run(arguments: &Plan) -> Result<(), Failure> {
    let output = &arguments.output;
    match &arguments.verb {
        None => plan(arguments),
        Some(PlanVerb::Check(check)) => check::run(check, output.format),
        Some(PlanVerb::Compare(compare)) => compare::run(compare, output.format),
        Some(PlanVerb::Explain(explain)) => explain::run(explain, output.listing()?),
        Some(PlanVerb::Fleet(fleet)) => {
            let region = &arguments.traces.connection.region;
            fleet::run(fleet, prices::named_region(region), output.format)
        }
    }
}

fn plan(arguments: &Plan) -> Result<(), Failure> {
    let space = space_of(arguments)?;
    let mut case = Case::read(&arguments.traces, space)?;
    let wanted = input::wanted(&arguments.wanted, &case.trace)?;
    case.prepare(&arguments.wanted)?;
    let rated = cheapest(&case, &wanted, arguments.top.into())?;
    let on_hdd = rated.first().and_then(|first| on_hdd(&case, &wanted, first));
    let less = rated.first().map_or_else(Vec::new, |rated| {
        neighbours::one_less(&case.space, &wanted, &rated.found.layout)
    });
    let less = less.into_iter().map(|(less, layout)| {
        let demand = case.wanted_demand();
        (less, exact::replay(&case.space, demand, &layout, NEIGHBOUR_REQUESTS_MAX))
    });
    let (asked, less) = (answer::asked(&case.demand), less.collect());
    let notes = notes::of(&case, &wanted, &rated);
    let told = PlanAnswer { case: &case, asked, rated: &rated, on_hdd, less, notes };
    if let Some(path) = &arguments.page.html {
        files::write(path, &html::page(&told, &wanted)?)?;
    }
    match arguments.output.format {
        PlanFormat::Text => output::print(&text::text(&told)),
        PlanFormat::Csv => {
            let columns = text::columns(&case);
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            output::print(&output::csv(&columns, &text::rows(&told)))
        }
        PlanFormat::Json => output::print(&output::json(&json::json_of(&told))),
        PlanFormat::Html => output::print(&html::page(&told, &wanted)?),
    }
}

/// The parts of an answer.
struct PlanAnswer<'a> {
    case: &'a Case,
    asked: Asked,
    rated: &'a [Rated],
    /// The cheapest layout of HDD types, if it is cheaper than all that are offered.
    on_hdd: Option<Rated>,
    /// Replays on layouts with one unit less than the cheapest, with the headroom.
    less: Vec<(Less, Option<Exact>)>,
    /// Candidates that are left out, with the reasons.
    notes: Vec<String>,
}

fn space_of(arguments: &Plan) -> Result<Space, Failure> {
    let (wanted, region) = (&arguments.wanted, &arguments.traces.connection.region);
    input::space(&arguments.rules, region, &wanted.types, wanted.stripes)
}

/// Returns the first `count` layouts that carry the workload with its headroom, cheapest first, as
/// they carry what was recorded; there is at least one.
fn cheapest(case: &Case, wanted: &Wanted, count: usize) -> Result<Vec<Rated>, Failure> {
    let found = cheapest_in(&case.space, case, wanted, count);
    match found.is_empty() {
        true => Err(nothing(case, wanted)),
        false => Ok(rated(case, lasting_first(case, wanted, count, found))),
    }
}

/// Rates layouts that were found with the headroom by what happens to what was recorded.
fn rated(case: &Case, found: Vec<Found>) -> Vec<Rated> {
    let others_max = RECORDED_REQUESTS_MAX / found.len().max(1) as u64;
    let requests_max = |place: usize| if place == 0 { EXACT_REQUESTS_MAX } else { others_max };
    let recorded = |(place, found): (usize, Found)| match case.headroom_percent {
        0 => found,
        _ => case
            .replayed(&found.layout, requests_max(place))
            .expect("invariant: a layout that was found has a price"),
    };
    let found = found.into_iter().enumerate().map(recorded).collect();
    answer::rate(&case.space, &case.trace, &case.demand, found)
}

fn cheapest_in(space: &Space, case: &Case, wanted: &Wanted, count: usize) -> Vec<Found> {
    let demand = case.wanted_demand();
    let found = search::sharpest(space, demand, wanted, count);
    search::settle(space, demand, wanted, found, EXACT_REQUESTS_MAX)
}

fn is_lasting(case: &Case, found: &Found) -> bool {
    steady::dry_after_s(&case.space, &case.demand, &found.layout).is_none()
}

/// Puts layouts that carry the workload month after month first, and behind them those whose
/// credits run out. If there are such, types without credits are searched by themselves.
fn lasting_first(case: &Case, wanted: &Wanted, count: usize, found: Vec<Found>) -> Vec<Found> {
    let (mut lasting, dry): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|found| is_lasting(case, found));
    if dry.is_empty() {
        return lasting;
    }
    let has_no_credits = |volume_type: &VolumeType| {
        !matches!(volume_type, VolumeType::Gp2 | VolumeType::St1 | VolumeType::Sc1)
    };
    let types = case.space.types.iter().copied().filter(has_no_credits).collect();
    let space = Space { types, ..case.space.clone() };
    for other in cheapest_in(&space, case, wanted, count) {
        if !lasting.iter().any(|found| found.layout == other.layout) {
            lasting.push(other);
        }
    }
    lasting.sort_by_key(Found::total);
    lasting.extend(dry);
    lasting.truncate(count);
    lasting
}

/// Returns the cheapest layout of HDD types, if none of them is offered and it is cheaper than
/// `first` month after month.
fn on_hdd(case: &Case, wanted: &Wanted, first: &Rated) -> Option<Rated> {
    let types = vec![VolumeType::St1, VolumeType::Sc1];
    if !case.has_default_types || types.iter().any(|it| case.space.types.contains(it)) {
        return None;
    }
    let space = Space { types, ..case.space.clone() };
    let monthly_max = first.found.total().checked_sub(1)?;
    let wanted = Wanted { monthly_max: Some(monthly_max), ..wanted.clone() };
    let mut found = cheapest_in(&space, case, &wanted, HDD_LAYOUTS);
    found.retain(|found| is_lasting(case, found));
    found.truncate(1);
    rated(case, found).pop()
}

fn nothing(case: &Case, wanted: &Wanted) -> Failure {
    let most = largest(&case.space, wanted);
    if most.is_none() {
        let message = format!(
            "none of these types comes into question: by the rules of {} they are not sold, boot \
             no host, or are for one host only",
            case.space.rules.date()
        );
        return Failure::new(message).hint("name others with --types, or another day with --as-of");
    }
    let unpriced = case.space.unpriced(wanted);
    if unpriced.len() == case.space.suitable(wanted).count() {
        let message = format!("no candidate is left: {}", notes::unpriced(&case.space, &unpriced));
        let hint = "choose another day with --as-of, other --types, or another book with --prices";
        return Failure::new(message).exit(Exit::Usage).hint(hint);
    }
    if let Some(most) = most.filter(|most| *most < wanted.capacity_gib) {
        let message = format!(
            "no layout holds {} GiB: with at most {} volumes the largest has {most} GiB",
            wanted.capacity_gib,
            case.space.most_volumes()
        );
        return Failure::new(message)
            .hint("allow more volumes (--stripes) or types (--types), or ask for less --capacity");
    }
    let Asked { peak_iops, peak_bytes_per_second, .. } = answer::asked(&case.demand);
    let mut message = format!(
        "no layout does this: the busiest interval has {peak_iops} requests and {} MiB a second",
        peak_bytes_per_second / MIB
    );
    message += &format::headroom_words(case).map_or_else(String::new, |words| format!(", {words}"));
    for note in notes::capped(case, wanted) {
        message += &format!("; {note}");
    }
    Failure::new(message).hint(
        "allow waiting (--throttled, --p99), more volumes (--stripes), more types (--types), or a \
         higher cost (--max-monthly), a stronger --instance; or ask for less --capacity. Each \
         volume must fit on a device of --prices",
    )
}

/// Returns the GiB of the largest layout of the types that are allowed; `None` if no type is.
fn largest(space: &Space, wanted: &Wanted) -> Option<u64> {
    let volumes = u64::from(space.most_volumes());
    space.suitable(wanted).map(|rules| u64::from(rules.size_gib_max) * volumes).max()
}

/// Returns the milliseconds a day in which requests wait by the assumption: on the scheduler, if
/// it ran.
fn assumed_ms(case: &Case, found: &Found) -> u64 {
    let length_us = case.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(found.waited_us(), length_us.max(found.end_us()))
}

/// Returns the model that a layout's waits are from.
const fn model(found: &Found) -> &'static str {
    if found.exact.is_some() { "scheduler" } else { "fluid" }
}

/// Returns the milliseconds a day in which requests wait on the scheduler.
fn exact_ms(case: &Case, exact: &Exact) -> u64 {
    let length_us = case.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(exact.waited_us, length_us.max(exact.end_us))
}
