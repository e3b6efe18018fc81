//! A question: a workload, the layouts that are candidates for it, and what they must do.
//!
//! [`Case::answer`] searches the cheapest layouts. [`check`](Case::check),
//! [`compare`](Case::compare) and [`explain`](Case::explain) are about layouts that are named.

mod cheapest;
mod terms;
mod workload;

pub use terms::{Terms, rules_of};
pub use workload::{Workload, one_trace};

use crate::advice;
use crate::answer::{self, Rated};
use crate::demand::{Assume, Demand};
use crate::described::Described;
use crate::exact;
use crate::fleet::{FREE_PERCENT, gib_with_free};
use crate::format::{no_price, plain};
use crate::instances;
use crate::layout::Layout;
use crate::layout_text;
use crate::prices::Prices;
use crate::refusal::{Cause, Refusal};
use crate::search::{self, Found, Space, Tolerance, Wanted};
use crate::throttled::HeldBack;
use crate::trace::{Note, Trace};
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use workload::{check_of_volumes, is_declared};

/// The most requests of one volume that are replayed one by one: some seconds.
pub(crate) const EXACT_REQUESTS_MAX: u64 = 20_000_000;
/// The most requests of each layout of a comparison.
pub(crate) const COMPARED_REQUESTS_MAX: u64 = 5_000_000;

/// A workload, the rules by which layouts are found for it, and what they must do.
pub struct Case {
    /// The workload.
    pub trace: Trace,
    /// The candidates. It has no types if layouts are named.
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
    has_default_types: bool,
    /// The volume that was recorded, if it was named.
    pub source: Option<Layout>,
    /// The monthly cost of the source with these prices, if it has a price.
    pub source_monthly: Option<u64>,
    /// The volume that was recorded, as a list of volumes describes it.
    pub described: Option<Described>,
    /// Whether the volume that was recorded is one of AWS, as far as the files say.
    pub is_at_aws: bool,
    /// The requirements of layouts.
    pub wishes: Wishes,
    /// Why what was recorded does not show that less suffices; `None` if it does, if the workload
    /// is declared, or if layouts are named.
    pub not_shown: Option<NotShown>,
}

/// The reason why a recording does not show that less than the source suffices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotShown {
    /// The reason.
    pub why: String,
    /// The next step.
    pub next: String,
}

/// The size and the workload that layouts hold and carry.
#[derive(Clone, Default, Debug)]
pub struct Wishes {
    /// GiB that a layout holds; `None` if the files say it.
    pub capacity_gib: Option<u64>,
    /// How long requests may wait.
    pub waits: AllowedWaits,
    /// Whether an instance boots from it, even if no list says so.
    pub boots: bool,
    /// Whether several instances attach it, even if no list says so.
    pub multi_attach: bool,
    /// Maximum monthly cost, in millionths of the currency.
    pub monthly_max: Option<u64>,
    /// Percent that layouts of a search carry beyond what was recorded; `None` for the default.
    pub headroom_percent: Option<u32>,
    /// Days that must be recorded for a search.
    pub days_min: u32,
    /// Whether types that are less durable than the source are candidates.
    pub less_durable: bool,
    /// Maximum number of layouts of an answer.
    pub layouts_max: usize,
}

/// How long requests may wait.
#[derive(Clone, Default, Debug)]
pub struct AllowedWaits {
    /// Seconds a day in which requests may wait for a limit.
    pub throttled_s: u32,
    /// Pairs of thousandths of the requests, and the milliseconds that these must not exceed.
    pub delays_ms: Vec<(u32, u32)>,
}

impl AllowedWaits {
    /// Returns the requirements of these waits.
    fn wanted(&self) -> Wanted {
        let delay = |(permille, ms): &(u32, u32)| (*permille, u64::from(*ms) * 1_000);
        // With bounds on delays alone, any time of waiting will do.
        let throttled_s = match self.throttled_s {
            0 if !self.delays_ms.is_empty() => 86_400,
            seconds => seconds,
        };
        Wanted {
            throttled_us_per_day_max: u64::from(throttled_s) * 1_000_000,
            delays: self.delays_ms.iter().map(delay).collect(),
            ..Wanted::default()
        }
    }
}

impl Case {
    /// Creates a question about layouts that are named.
    ///
    /// # Errors
    /// If the source is no layout by the rules of the space, or if list prices of EBS are for what
    /// is no volume of EBS.
    pub fn of_layouts(
        workload: Workload,
        mut space: Space,
        wishes: Wishes,
    ) -> Result<Self, Refusal> {
        // A volume of the server stays one.
        if workload.is_served {
            space.tolerance = Tolerance::Evenkeel;
        }
        let is_at_aws = workload.is_at_aws();
        let Workload { mut trace, spec, described, .. } = workload;
        let source = workload.source.as_deref().map(|text| layout("--source", text, &space));
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
        let assume = workload.assume.unwrap_or_else(|| advice::assume(&trace));
        let demand = Demand::of(&trace, assume);
        // Volumes of Evenkeel may take the place of any storage.
        if matches!(space.prices, Prices::List(_)) {
            let percent = wishes.headroom_percent.unwrap_or(advice::HEADROOM_PERCENT);
            check_of_volumes(&trace, &demand, percent)?;
        }
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
            wishes,
            not_shown: None,
        })
    }

    /// Creates a question that a search answers, with the headroom and the types of `plan fleet`
    /// where none are named.
    ///
    /// # Errors
    /// As of [`Case::of_layouts`].
    pub fn of_search(workload: Workload, space: Space, wishes: Wishes) -> Result<Self, Refusal> {
        let mut case = Self::of_layouts(workload, space, wishes)?;
        case.not_shown = case.find_not_shown();
        let default_percent = if is_declared(&case.trace) { 0 } else { advice::HEADROOM_PERCENT };
        case.headroom_percent = case.wishes.headroom_percent.unwrap_or(default_percent);
        case.demand_with_headroom = (case.headroom_percent > 0)
            .then(|| advice::with_headroom(&case.demand, case.headroom_percent));
        case.has_default_types = case.space.types.is_empty();
        if case.has_default_types {
            case.space.types = case.default_types();
        }
        Ok(case)
    }

    /// Returns the types of a search that names none.
    fn default_types(&self) -> Vec<VolumeType> {
        let present = self.source.map(|source| source.each.volume_type);
        let rules = self.space.rules;
        let is_durable = |volume_type: &VolumeType| {
            let is_less =
                present.is_some_and(|present| !advice::is_as_durable(rules, *volume_type, present));
            self.wishes.less_durable || !is_less
        };
        let offered = VolumeType::ALL.into_iter();
        let offered = offered.filter(|volume_type| advice::is_offered(present, *volume_type));
        offered.filter(is_durable).collect()
    }

    /// Returns why what was recorded does not show that less suffices, by the rules of fleets.
    fn find_not_shown(&self) -> Option<NotShown> {
        if is_declared(&self.trace) {
            return None;
        }
        let percent = advice::GAPS_PERCENT_MAX;
        if let Err(why) = advice::shows_enough(&self.trace, self.wishes.days_min, percent) {
            let step_s = advice::STEP_MS_MAX / 1_000;
            let next = format!(
                "record steps of {step_s} s or less with at most {percent} % of gaps, as `evenkeel \
                 plan aws` and `evenkeel record` do, and plan again"
            );
            return Some(NotShown { why, next });
        }
        let stood = |instance| instances::stood(std::iter::once(&self.trace), instance);
        let why = self.space.instances.iter().find_map(|instance| stood(instance))?;
        let next = "record the workload on the larger instance, and plan again".to_owned();
        Some(NotShown { why, next })
    }

    /// Returns whether a layout of a search is advice: not one for a new volume by a recording that
    /// does not show what suffices.
    #[must_use]
    pub fn is_advised(&self) -> bool {
        self.not_shown.is_none() || self.source.is_some()
    }

    /// Checks that enough was recorded to name a price a month.
    pub(crate) fn check_length(&self) -> Result<(), Refusal> {
        let known_ms = advice::known_ms(&self.trace);
        let days_min = self.wishes.days_min;
        let missing = advice::too_short(known_ms, days_min);
        let Some(missing) = missing.filter(|_| !is_declared(&self.trace)) else { return Ok(()) };
        let name = plain(&self.trace.name);
        let message = format!("{name}: {missing}: no price a month is named");
        Err(Refusal::new(message).cause(Cause::Undecided).hint(format!(
            "record at least {days_min} days; --days-min 0 plans for what was recorded, as if each \
             day of the month were so"
        )))
    }

    /// Returns the GiB that a layout of a search must hold, if the question or a file says it.
    #[must_use]
    pub fn capacity_gib(&self) -> Option<u64> {
        let of_trace = self.trace.source.capacity.map(|bytes| bytes.div_ceil(GIB));
        let size = |layout: &Layout| u64::from(layout.each.size_gib) * u64::from(layout.volumes);
        let of_source = self.source.as_ref().map(size);
        let known = self.wishes.capacity_gib.or(of_trace).or(of_source);
        // A volume of the used size would be full at once.
        known.or_else(|| gib_with_free(self.trace.used_bytes_max()?, FREE_PERCENT))
    }

    /// Returns what a layout of a search must hold and carry.
    pub(crate) fn wanted(&self) -> Result<Wanted, Refusal> {
        match self.capacity_gib() {
            Some(capacity_gib) => Ok(self.wanted_with(capacity_gib)),
            None => Err(Refusal::new("the files do not say how large the volume is")
                .cause(Cause::Question)
                .hint(
                    "add --capacity GIB, or the output of `aws ec2 describe-volumes` after the \
                     recording",
                )),
        }
    }

    /// Returns what a layout of a search must carry, and hold with this capacity.
    pub(crate) fn wanted_with(&self, capacity_gib: u64) -> Wanted {
        let described = self.described.as_ref();
        let is_shared = |layout: Layout| layout.each.multi_attach;
        Wanted {
            capacity_gib,
            boots: self.wishes.boots || described.is_some_and(|described| described.boots),
            multi_attach: self.wishes.multi_attach
                || described.is_some_and(|described| described.spec.multi_attach)
                || self.source.is_some_and(is_shared),
            monthly_max: self.wishes.monthly_max,
            no_less_than: self.source.filter(|_| self.not_shown.is_some()),
            ..self.wishes.waits.wanted()
        }
    }

    /// Returns what a layout that is named must hold and carry.
    pub(crate) fn wanted_of_given(&self) -> Wanted {
        let used_gib = || self.trace.used_bytes_max().map(|bytes| bytes.div_ceil(GIB));
        let capacity_gib = self.wishes.capacity_gib.or_else(used_gib).unwrap_or_default();
        self.wanted_with(capacity_gib)
    }

    /// Returns the requests that layouts of a search must carry.
    #[must_use]
    pub fn wanted_demand(&self) -> &Demand {
        self.demand_with_headroom.as_ref().unwrap_or(&self.demand)
    }

    /// Replays what was recorded on a layout: by the scheduler, if its tolerance is counted on and
    /// at most `requests_max` requests of a volume may wait. Returns `None` if the layout has no
    /// price.
    pub(crate) fn replayed(&self, layout: &Layout, requests_max: u64) -> Option<Found> {
        let mut found = search::given(&self.space, &self.demand, layout)?;
        if self.space.tolerance == Tolerance::Evenkeel {
            found.exact = exact::replay(&self.space, &self.demand, layout, requests_max);
        }
        Some(found)
    }

    /// Rates a layout that is named: by the scheduler, if at most `requests_max` requests of a
    /// volume may wait.
    pub(crate) fn given(&self, text: &str, requests_max: u64) -> Result<Rated, Refusal> {
        let instance = self.space.instances.first().copied();
        let layout = Layout { instance, ..layout("--layout", text, &self.space)? };
        let found = self
            .replayed(&layout, requests_max)
            .ok_or_else(|| unpriced(&self.space.prices, &layout.each))?;
        if !self.space.prices.fits(self.space.rules, &layout.each) {
            let volume = Layout::one(layout.each);
            let message =
                format!("--layout {text:?}: no device of the price book carries {volume}");
            return Err(Refusal::new(message)
                .cause(Cause::Question)
                .hint("make its volumes smaller or slower, or more"));
        }
        let mut rated = answer::rate(&self.space, &self.trace, &self.demand, vec![found]);
        rated.pop().ok_or_else(|| Refusal::new("the layout was not rated"))
    }
}

/// The error of a volume without a price.
fn unpriced(prices: &Prices, each: &VolumeSpec) -> Refusal {
    let lacks = prices.unpriced(each).expect("invariant: it has no cost").to_string();
    let failure = match prices {
        Prices::List(list) => Refusal::new(no_price(list.list(), &lacks)).hint(
            "choose another day with --as-of or another layout, or name a price list with --prices",
        ),
        Prices::Book(book) => match book.carrier(each.volume_type) {
            Err(not_carried) => Refusal::new(not_carried.to_string()),
            Ok(_) => Refusal::new(format!("the price book has no price of {lacks}")),
        },
    };
    failure.cause(Cause::Question)
}

/// Reads a layout in words.
fn layout(flag: &str, text: &str, space: &Space) -> Result<Layout, Refusal> {
    layout_text::parse(text, space.rules).map_err(|bad| {
        Refusal::new(format!("{flag} {text:?}: {bad}"))
            .cause(Cause::Question)
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

/// Returns the note about requests that the source's limits held back.
fn held_back_words(held: &HeldBack) -> String {
    let limits = [
        held.iops.map(|iops| format!("{iops} IOPS")),
        held.bytes_per_second.map(|bytes| format!("{} MiB/s", bytes / MIB)),
        held.earned_iops.map(|iops| format!("{iops} IOPS without credits")),
        held.earned_bytes_per_second.map(|bytes| format!("{} MiB/s without credits", bytes / MIB)),
    ];
    let limits: Vec<String> = limits.into_iter().flatten().collect();
    let least = if limits.is_empty() {
        "name it with --source, or its limits with --source-iops and --source-throughput".to_owned()
    } else {
        format!("no layout has less than its {}", limits.join(" and "))
    };
    format!(
        "the source's limits held requests back in {} intervals, {} in all: more was wanted then \
         than was recorded, so {least}, unless --throttled allows that long",
        held.intervals,
        evenkeel_sim::text::span(held.length_ms.div_ceil(1_000)),
    )
}

#[cfg(test)]
mod tests;
