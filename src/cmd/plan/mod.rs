//! `evenkeel plan`: the cheapest layouts for a recorded workload, and what happens on layouts.

mod aws;
mod check;
mod commands;
mod compare;
mod described;
mod device;
mod explain;
mod fleet;
mod format;
mod html;
mod input;
mod json;
mod notes;
mod prices;
mod recordings;
mod sentence;
mod text;
mod without_size;

use crate::cli::{Plan, PlanFormat, PlanOutput, PlanVerb};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeType;
use evenkeel_lab::files;
use evenkeel_planner::advice;
use evenkeel_planner::answer::{self, Asked, Rated};
use evenkeel_planner::demand::{Assume, Demand};
use evenkeel_planner::exact::{self, Exact};
use evenkeel_planner::layout::Layout;
use evenkeel_planner::neighbours::{self, Less};
use evenkeel_planner::search::{self, Found, Space, Tolerance, Wanted};
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

pub fn run(arguments: &Plan) -> Result<(), Failure> {
    let output = &arguments.output;
    let is_check = matches!(arguments.verb, Some(PlanVerb::Check(_)));
    if !is_check && matches!(output.format, PlanFormat::Junit | PlanFormat::Markdown) {
        return Err(PlanOutput::no_verdict());
    }
    match &arguments.verb {
        None => plan(arguments),
        Some(PlanVerb::Aws(flags)) => {
            let region = &arguments.traces.connection.region;
            let files = aws::run(flags, prices::named_region(region), output.format)?;
            if output.format == PlanFormat::Text && !files.is_empty() {
                one_volume(&aws::plan_of(arguments, flags, files));
            }
            Ok(())
        }
        Some(PlanVerb::Check(check)) => check::run(check, output.format),
        Some(PlanVerb::Compare(compare)) => compare::run(compare, output.format),
        Some(PlanVerb::Explain(explain)) => explain::run(explain, output.listing()?),
        Some(PlanVerb::Fleet(fleet)) => {
            let region = &arguments.traces.connection.region;
            fleet::run(fleet, prices::named_region(region), output.format)
        }
    }
}

/// Prints the plan of the only volume of an account below what `plan fleet` says of it. That the
/// recording is too short for a plan, or that no layout does it, is no error of the account's.
fn one_volume(arguments: &Plan) {
    if let Err(failure) = output::print("\n").and_then(|()| plan(arguments)) {
        eprintln!("no plan of this volume: {}", failure.message);
        if let Some(hint) = failure.hint {
            eprintln!(" hint: {hint}");
        }
    }
}

fn plan(arguments: &Plan) -> Result<(), Failure> {
    let mut case = Case::read(&arguments.traces, &arguments.rules, &arguments.wanted)?;
    if without_size::is_possible(arguments, &case) {
        case.prepare(&arguments.wanted)?;
        return without_size::run(arguments, &case);
    }
    let wanted = input::wanted(&arguments.wanted, &case)?;
    case.prepare(&arguments.wanted)?;
    let rated = cheapest(&case, &wanted, arguments.top.into())?;
    let on_hdd = rated.first().and_then(|first| on_hdd(&case, &wanted, first));
    let less = rated.first().map_or_else(Vec::new, |rated| {
        neighbours::one_less(&case.space, &wanted, &rated.found.layout)
    });
    let less = less.into_iter().map(|(less, layout)| Neighbour::of(&case, less, &layout));
    let less = less.collect();
    let asked = answer::asked(&case.demand);
    let in_bursts = rated.first().and_then(|first| in_bursts(&case, &wanted, first));
    let notes = notes::of(&case, &wanted, &rated, in_bursts.as_ref());
    let present = present(&case, &rated);
    let told =
        PlanAnswer { case: &case, asked, rated: &rated, present, on_hdd, in_bursts, less, notes };
    if let Some(path) = &arguments.page.html {
        files::write(path, &html::page(&told, &wanted)?)?;
    }
    match arguments.output.format {
        PlanFormat::Text | PlanFormat::Junit | PlanFormat::Markdown => {
            output::print(&text::text(&told, &wanted))
        }
        PlanFormat::Csv => {
            let columns = text::columns(&case);
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            output::print(&output::csv(&columns, &text::rows(&told)))
        }
        PlanFormat::Json => output::print(&output::json(&json::json_of(&told, &wanted))),
        PlanFormat::Html => output::print(&html::page(&told, &wanted)?),
    }
}

/// The parts of an answer.
struct PlanAnswer<'a> {
    case: &'a Case,
    asked: Asked,
    rated: &'a [Rated],
    /// The source, if it is known and is none of these layouts.
    present: Option<Rated>,
    /// The cheapest layout of HDD types, if it is cheaper than all that are offered.
    on_hdd: Option<Rated>,
    /// The cheapest layout if requests came in bursts that the trace does not show; `None` if they
    /// change nothing.
    in_bursts: Option<InBursts>,
    /// The layouts with one unit less than the cheapest.
    less: Vec<Neighbour>,
    /// Candidates that are left out, with the reasons.
    notes: Vec<String>,
}

impl PlanAnswer<'_> {
    /// Returns the layouts of the answer with the source before them, if that is known.
    fn with_present(&self) -> impl Iterator<Item = &Rated> {
        self.present.iter().chain(self.rated)
    }

    /// Returns the layouts of a page, of which the first `most` are drawn: the source is among
    /// these, if it is known.
    fn drawn(&self, most: usize) -> Vec<Rated> {
        let mut all = self.rated.to_vec();
        let place = all.iter().position(|rated| self.is_present(rated));
        let present = match place {
            Some(place) if place >= most => Some(all.remove(place)),
            _ => self.present.clone(),
        };
        let place = all.len().min(most.saturating_sub(1));
        all.splice(place..place, present);
        all
    }

    /// Returns whether a layout is the source.
    fn is_present(&self, rated: &Rated) -> bool {
        let source = self.case.source.as_ref();
        source.is_some_and(|source| source.is_same_volumes(&rated.found.layout))
    }
}

/// Rates the source, if it has a price and is none of these layouts.
fn present(case: &Case, rated: &[Rated]) -> Option<Rated> {
    let source = case.source.as_ref()?;
    if rated.iter().any(|rated| source.is_same_volumes(&rated.found.layout)) {
        return None;
    }
    // The limits of an instance apply if there is no choice among several.
    let only = match case.space.instances.as_slice() {
        [instance] => Some(*instance),
        _ => None,
    };
    let layout = Layout { instance: source.instance.or(only), ..*source };
    let found = case.replayed(&layout, COMPARED_REQUESTS_MAX)?;
    answer::rate(&case.space, &case.trace, &case.demand, vec![found]).pop()
}

/// A layout with one unit less than the cheapest, with the headroom.
struct Neighbour {
    less: Less,
    /// Milliseconds a day in which requests wait; `None` if there are too many requests for the
    /// scheduler.
    waits_ms: Option<u64>,
    /// Seconds after which its credits are used up, if the workload repeats for a month.
    dry_after_s: Option<u64>,
}

impl Neighbour {
    fn of(case: &Case, less: Less, layout: &Layout) -> Self {
        Self {
            less,
            waits_ms: wanted_ms(case, layout),
            dry_after_s: steady::dry_after_s(&case.space, case.wanted_demand(), layout),
        }
    }
}

/// Bursts within the steps of a trace that are a second or less.
struct InBursts {
    /// The cheapest layout that carries them, if there is one.
    found: Option<Found>,
}

/// Returns the cheapest layout if the requests of each step came as fast as the device served them.
/// Returns `None` if that is no other assumption, or if `first` carries them.
fn in_bursts(case: &Case, wanted: &Wanted, first: &Rated) -> Option<InBursts> {
    let [even, _, worst] = first.throttled_ms_per_day;
    if case.assume != Assume::Even || !advice::has_seconds(&case.trace) || worst <= even {
        return None;
    }
    let recorded = Demand::of(&case.trace, Assume::Worst);
    let demand = advice::with_headroom(&recorded, case.headroom_percent);
    let mut found = search::for_months(&case.space, &demand, &recorded, wanted, (1, 0));
    found.retain(|found| search::carries(&case.space, &recorded, wanted, found));
    let found = found.pop();
    Some(InBursts { found })
}

/// Returns the first `count` layouts that carry the workload with its headroom, cheapest first, as
/// they carry what was recorded; there is at least one.
fn cheapest(case: &Case, wanted: &Wanted, count: usize) -> Result<Vec<Rated>, Failure> {
    let found = cheapest_in(&case.space, case, wanted, count);
    match found.is_empty() {
        true => Err(nothing(case, wanted)),
        false => Ok(rated(case, found)),
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

/// Returns the first `count` layouts that carry the workload with its headroom month after month,
/// and behind them those whose credits run out.
fn cheapest_in(space: &Space, case: &Case, wanted: &Wanted, count: usize) -> Vec<Found> {
    let bounds = (count, EXACT_REQUESTS_MAX);
    search::for_months(space, case.wanted_demand(), &case.demand, wanted, bounds)
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
    let mut found = cheapest_in(&space, case, &wanted, 1);
    found.retain(|found| search::carries(&space, &case.demand, &wanted, found));
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

/// Returns the milliseconds a day in which requests wait on a layout with the headroom. Returns
/// `None` if more than [`NEIGHBOUR_REQUESTS_MAX`] would have to be sent to the scheduler.
fn wanted_ms(case: &Case, layout: &Layout) -> Option<u64> {
    let demand = case.wanted_demand();
    if case.space.tolerance == Tolerance::Evenkeel {
        let exact = exact::replay(&case.space, demand, layout, NEIGHBOUR_REQUESTS_MAX)?;
        return Some(exact_ms(case, &exact));
    }
    let (_, outcome) = search::replay(&case.space, demand, layout);
    Some(answer::ms_per_day(outcome.waited_us(), demand.length_us.max(outcome.end_us)))
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
