//! The search of a question: the cheapest layouts, and what is said beside them.

use super::{COMPARED_REQUESTS_MAX, Case, EXACT_REQUESTS_MAX};
use crate::advice;
use crate::answer::{self, Answer, Asked, InBursts, Neighbour, Rated, exact_ms, notes};
use crate::demand::{Assume, Demand};
use crate::exact;
use crate::format;
use crate::layout::Layout;
use crate::neighbours::{self, Less};
use crate::refusal::{Cause, Refusal};
use crate::search::{self, Found, Space, Tolerance, Wanted};
use crate::steady;
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeType;

/// The most requests of a layout with one unit less than the cheapest.
const NEIGHBOUR_REQUESTS_MAX: u64 = 5_000_000;
/// The most requests of all layouts behind the first that are replayed without the headroom.
const RECORDED_REQUESTS_MAX: u64 = 4_000_000;

impl Case {
    /// Returns the cheapest layouts that carry the workload, cheapest first, with all that is said
    /// of them.
    ///
    /// # Errors
    /// If the size of the volume is not known, if too little was recorded, or if no layout does
    /// what is wanted.
    pub fn answer(&self) -> Result<Answer<'_>, Refusal> {
        let wanted = self.wanted()?;
        self.check_length()?;
        let rated = self.cheapest(&wanted, self.wishes.layouts_max)?;
        let first = rated.first();
        let on_hdd = first.and_then(|first| on_hdd(self, &wanted, first));
        // One less is no question if nothing shows that less suffices.
        let less = first.filter(|_| self.not_shown.is_none());
        let less = less.map_or_else(Vec::new, |first| one_less(self, &wanted, first));
        let in_bursts = first.and_then(|first| in_bursts(self, &wanted, first));
        let notes = notes::of(self, &wanted, &rated, in_bursts.as_ref());
        let present = present(self, &rated);
        let asked = answer::asked(&self.demand);
        Ok(Answer { case: self, wanted, asked, rated, present, on_hdd, in_bursts, less, notes })
    }

    /// Returns the first `count` layouts that carry the workload with its headroom, cheapest first,
    /// as they carry what was recorded; there is at least one.
    pub(crate) fn cheapest(&self, wanted: &Wanted, count: usize) -> Result<Vec<Rated>, Refusal> {
        let mut found = cheapest_in(&self.space, self, wanted, count);
        if let Some(source) = as_cheap_source(self, wanted, found.first()) {
            found.retain(|found| !source.layout.is_same_volumes(&found.layout));
            found.insert(0, source);
            found.truncate(count);
        }
        if found.is_empty() {
            return Err(nothing(self, wanted));
        }
        Ok(rated(self, found))
    }
}

/// Returns the source, on the instance of the first layout of the search, if it is a candidate
/// that costs no more than this one and carries the workload month after month. If what was
/// recorded does not show that less suffices, it needs no headroom to be kept.
fn as_cheap_source(case: &Case, wanted: &Wanted, first: Option<&Found>) -> Option<Found> {
    let space = &case.space;
    let demand = if case.not_shown.is_some() { &case.demand } else { case.wanted_demand() };
    let source = case.source?;
    let instance = first.map_or(source.instance, |first| first.layout.instance);
    let layout = Layout { instance, ..source };
    let costs = first.map(Found::total).into_iter().chain(wanted.monthly_max);
    let monthly_max = costs.min().unwrap_or(u64::MAX);
    if !space.is_candidate(&layout, wanted) || space.monthly(&layout)?.total() > monthly_max {
        return None;
    }
    let mut found = search::given(space, demand, &layout)?;
    let does = if space.tolerance == Tolerance::Evenkeel {
        found.exact = exact::replay(space, demand, &layout, EXACT_REQUESTS_MAX);
        found.exact.as_ref()?.does(demand, wanted)
    } else {
        search::does(&found.outcome, demand, wanted)
    };
    let is_cheap = found.total() <= monthly_max;
    (does && is_cheap && search::carries(space, &case.demand, wanted, &found)).then_some(found)
}

/// Returns the layouts with one unit less than the first.
fn one_less(case: &Case, wanted: &Wanted, first: &Rated) -> Vec<Neighbour> {
    let less = neighbours::one_less(&case.space, wanted, &first.found.layout);
    let neighbour = |(less, layout): (Less, Layout)| Neighbour {
        less,
        waits_ms: wanted_ms(case, &layout),
        dry_after_s: steady::dry_after_s(&case.space, case.wanted_demand(), &layout),
    };
    less.into_iter().map(neighbour).collect()
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
    if !case.has_default_types || types.iter().any(|hdd| case.space.types.contains(hdd)) {
        return None;
    }
    let space = Space { types, ..case.space.clone() };
    let monthly_max = first.found.total().checked_sub(1)?;
    let wanted = Wanted { monthly_max: Some(monthly_max), ..wanted.clone() };
    let mut found = cheapest_in(&space, case, &wanted, 1);
    found.retain(|found| search::carries(&space, &case.demand, &wanted, found));
    rated(case, found).pop()
}

fn nothing(case: &Case, wanted: &Wanted) -> Refusal {
    let most = largest(&case.space, wanted);
    if most.is_none() {
        let message = format!(
            "none of these types comes into question: by the rules of {} they are not sold, boot \
             no host, or are for one host only",
            case.space.rules.date()
        );
        return Refusal::new(message).hint("name others with --types, or another day with --as-of");
    }
    let unpriced = case.space.unpriced(wanted);
    if unpriced.len() == case.space.suitable(wanted).count() {
        let message = format!("no candidate is left: {}", notes::unpriced(&case.space, &unpriced));
        let hint = "choose another day with --as-of, other --types, or another book with --prices";
        return Refusal::new(message).cause(Cause::Question).hint(hint);
    }
    if let Some(most) = most.filter(|most| *most < wanted.capacity_gib) {
        let message = format!(
            "no layout holds {} GiB: with at most {} volumes the largest has {most} GiB",
            wanted.capacity_gib,
            case.space.most_volumes(wanted)
        );
        return Refusal::new(message)
            .hint("allow more volumes (--stripes) or types (--types), or ask for less --capacity");
    }
    let Asked { peak_iops, peak_bytes_per_second, .. } = answer::asked(&case.demand);
    let mut message = format!(
        "no layout does this: the busiest interval has {peak_iops} requests and {} MiB a second",
        peak_bytes_per_second / MIB
    );
    message += &format::headroom_words(case).map_or_else(String::new, |words| format!(", {words}"));
    if let Some(lack) = &case.not_shown {
        message += &format!("; {}", lack.why);
    }
    for note in notes::capped(case, wanted).into_iter().chain(notes::without_nitro(case, wanted)) {
        message += &format!("; {note}");
    }
    Refusal::new(message).hint(
        "allow waiting (--throttled, --p99), more volumes (--stripes), more types (--types), or a \
         higher cost (--max-monthly), a stronger --instance; or ask for less --capacity. Each \
         volume must fit on a device of --prices",
    )
}

/// Returns the GiB of the largest layout of the types that are allowed; `None` if no type is.
fn largest(space: &Space, wanted: &Wanted) -> Option<u64> {
    let volumes = u64::from(space.most_volumes(wanted));
    space.suitable(wanted).map(|rules| u64::from(rules.size_gib_max) * volumes).max()
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
