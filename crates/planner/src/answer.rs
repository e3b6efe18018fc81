//! The answer to a question: layouts with their properties, and what is said beside them.
//!
//! The properties of a layout beside its cost are the use of its limits, the limit that holds
//! requests and the time at which it does, and the dependence on the assumptions about the trace.

pub mod device;
pub mod json;
pub(crate) mod notes;
pub mod sentence;
pub mod text;
pub mod without_size;

use crate::case::Case;
use crate::demand::{Assume, DAY_US, Demand, HOUR_US};
use crate::exact::Exact;
use crate::fluid::{Fluid, MICRO};
use crate::layout::{Layout, LimitKind};
use crate::neighbours::Less;
use crate::search::{Found, Space, Wanted, buckets, waited};
use crate::steady;
use crate::trace::Trace;
use evenkeel_core::convert::saturating;
use evenkeel_sim::text::csv;
use serde_json::Value;

/// The answer to a question: the cheapest layouts, and what is said beside them.
pub struct Answer<'a> {
    /// The question.
    pub case: &'a Case,
    /// The size and the workload that the layouts hold and carry.
    pub wanted: Wanted,
    /// The rates of the workload.
    pub asked: Asked,
    /// The layouts, cheapest first.
    pub rated: Vec<Rated>,
    /// The source, if it is known and is none of these layouts.
    pub present: Option<Rated>,
    /// The cheapest layout of HDD types, if it is cheaper than all that are offered.
    pub on_hdd: Option<Rated>,
    /// The cheapest layout if requests came in bursts that the trace does not show; `None` if they
    /// change nothing.
    pub in_bursts: Option<InBursts>,
    /// The layouts with one unit less than the cheapest.
    pub less: Vec<Neighbour>,
    /// Candidates that are left out, with the reasons.
    pub notes: Vec<String>,
}

/// A layout with one unit less than the cheapest, with the headroom.
pub struct Neighbour {
    /// The unit.
    pub less: Less,
    /// Milliseconds a day in which requests wait; `None` if there are too many requests for the
    /// scheduler.
    pub waits_ms: Option<u64>,
    /// Seconds after which its credits are used up, if the workload repeats for a month.
    pub dry_after_s: Option<u64>,
}

/// Bursts within the steps of a trace that are a second or less.
pub struct InBursts {
    /// The cheapest layout that carries them, if there is one.
    pub found: Option<Found>,
}

impl Answer<'_> {
    /// Returns the answer in lines.
    #[must_use]
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// Returns the answer in lines, without the commands that make its first layout.
    #[must_use]
    pub fn text_without_commands(&self) -> String {
        text::without_commands(self)
    }

    /// Returns the layouts as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        let columns = text::columns(self.case);
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        csv(&columns, &text::rows(self))
    }

    /// Returns the answer as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json::json_of(self)
    }

    /// Returns the layouts of the answer with the source before them, if that is known.
    fn with_present(&self) -> impl Iterator<Item = &Rated> {
        self.present.iter().chain(&self.rated)
    }

    /// Returns the layouts of a page, of which the first `most` are drawn: the source is among
    /// these, if it is known.
    #[must_use]
    pub fn drawn(&self, most: usize) -> Vec<Rated> {
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
    pub(crate) fn is_present(&self, rated: &Rated) -> bool {
        let source = self.case.source.as_ref();
        source.is_some_and(|source| source.is_same_volumes(&rated.found.layout))
    }
}

/// A layout with its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rated {
    /// The layout, its cost, and its replay.
    pub found: Found,
    /// Milliseconds per day in which requests wait, by assumption: even, active, worst.
    pub throttled_ms_per_day: [u64; 3],
    /// Use of each limit in the busiest span, in thousandths; above 1,000 requests wait.
    pub used_permille: Vec<(LimitKind, u64)>,
    /// The hour with the longest waiting time; `None` if no request waits.
    pub worst_hour: Option<WorstHour>,
    /// Layouts of a billion that lose data within a year, at best and at worst; `None` if the
    /// type's durability is not published.
    pub loss_ppb: Option<(u64, u64)>,
    /// Time after which requests wait longer than in the trace, in seconds, because credits have
    /// run out, if the workload is repeated for a month; `None` if they never do.
    pub dry_after_s: Option<u64>,
}

/// An hour of a replay in which requests waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorstHour {
    /// Its start, in microseconds since the trace's start, without gaps.
    pub start_us: u64,
    /// Time in which requests waited, in microseconds.
    pub waited_us: u64,
    /// The limit for which they waited the longest.
    pub limit: LimitKind,
}

/// Converts a waiting time to milliseconds per day.
#[must_use]
pub fn ms_per_day(waited_us: u64, length_us: u64) -> u64 {
    let ms = u128::from(waited_us) * DAY_US / u128::from(length_us.max(1)) / 1_000;
    saturating::<_, u64>(ms)
}

/// Returns the milliseconds a day in which requests wait by the assumption: on the scheduler, if
/// it ran.
#[must_use]
pub fn assumed_ms(case: &Case, found: &Found) -> u64 {
    let length_us = case.trace.known_ms().saturating_mul(1_000);
    ms_per_day(found.waited_us(), length_us.max(found.end_us()))
}

/// Returns the model that a layout's waits are from.
#[must_use]
pub const fn model(found: &Found) -> &'static str {
    if found.exact.is_some() { "scheduler" } else { "fluid" }
}

/// Returns the milliseconds a day in which requests wait on the scheduler.
#[must_use]
pub fn exact_ms(case: &Case, exact: &Exact) -> u64 {
    let length_us = case.trace.known_ms().saturating_mul(1_000);
    ms_per_day(exact.waited_us, length_us.max(exact.end_us))
}

/// Computes the properties of layouts that a search found for the demand of a trace.
#[must_use]
pub fn rate(space: &Space, trace: &Trace, demand: &Demand, found: Vec<Found>) -> Vec<Rated> {
    let all = [Assume::Even, Assume::Active, Assume::Worst].map(|it| Demand::of(trace, it));
    let rated = |found: Found| {
        let layout = found.layout;
        let throttled_ms_per_day = all.each_ref().map(|other| {
            let (waited_us, end_us) = if other == demand {
                (found.waited_us(), found.end_us())
            } else {
                waited(space, other, &layout)
            };
            ms_per_day(waited_us, other.length_us.max(end_us))
        });
        let has_waited = found.waited_us() > 0;
        Rated {
            throttled_ms_per_day,
            used_permille: used(space, demand, &layout),
            worst_hour: has_waited.then(|| worst_hour(space, demand, &layout)).flatten(),
            loss_ppb: layout.loss_ppb(space.rules),
            dry_after_s: steady::dry_after_s(space, demand, &layout),
            found,
        }
    };
    found.into_iter().map(rated).collect()
}

/// Returns the use of each limit in the busiest span, in thousandths.
fn used(space: &Space, demand: &Demand, layout: &Layout) -> Vec<(LimitKind, u64)> {
    let pacing = space.rules.pacing(&layout.each);
    let mut operations = 0;
    let mut bytes = 0;
    for part in demand.parts(pacing.counting, layout.share(space)) {
        let (each_operations, each_bytes) = part.rates();
        operations = each_operations.max(operations);
        bytes = each_bytes.max(bytes);
    }
    let limits = layout.limits(space);
    let of = |(kind, limit): (LimitKind, u64)| {
        let peak = if kind.counts_bytes() { bytes } else { operations };
        let used = u128::from(peak) * 1_000 / u128::from(limit.max(1));
        (kind, saturating::<_, u64>(used))
    };
    limits.into_iter().map(of).collect()
}

fn worst_hour(space: &Space, demand: &Demand, layout: &Layout) -> Option<WorstHour> {
    let pacing = space.rules.pacing(&layout.each);
    let (limits, buckets) = buckets(space, layout);
    let mut fluid = Fluid::new(buckets, demand.spans.first()?.start_us).without_delays();
    let mut before = fluid.throttled_us().to_vec();
    let (mut worst, mut hour): (Option<WorstHour>, u64) = (None, 0);
    let mut look = |fluid: &Fluid, hour: u64| {
        let added = fluid.throttled_us().iter().zip(&before).map(|(now, before)| now - before);
        let added: Vec<u64> = added.collect();
        before = fluid.throttled_us().to_vec();
        let waited_us: u64 = added.iter().sum();
        let most = added.iter().zip(&limits).max_by_key(|(us, _)| **us);
        let is_worse = worst.as_ref().is_none_or(|worst: &WorstHour| waited_us > worst.waited_us);
        if let Some((_, limit)) = most.filter(|_| waited_us > 0 && is_worse) {
            // Its backlog waits in the hours that follow.
            let waited_us = waited_us.min(HOUR_US);
            worst = Some(WorstHour { start_us: hour * HOUR_US, waited_us, limit: *limit });
        }
    };
    for part in demand.parts(pacing.counting, layout.share(space)) {
        let of_part = part.start_us / HOUR_US;
        if of_part != hour {
            look(&fluid, hour);
            hour = of_part;
        }
        fluid.take(part);
    }
    look(&fluid, hour);
    worst
}

/// The maximum and mean rates of a demand, in requests as the trace has them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Asked {
    /// Requests per second in the busiest span.
    pub peak_iops: u64,
    /// Bytes per second in the busiest span.
    pub peak_bytes_per_second: u64,
    /// Mean requests per second.
    pub mean_iops: u64,
    /// Mean bytes per second.
    pub mean_bytes_per_second: u64,
}

/// Returns the rates of a demand.
#[must_use]
pub fn asked(demand: &Demand) -> Asked {
    let rate = |amount: u64, length_us: u64| {
        let rate = u128::from(amount) * MICRO / u128::from(length_us.max(1));
        saturating::<_, u64>(rate)
    };
    let spans = &demand.spans;
    let sum = |of: fn(&crate::demand::Span) -> u64| spans.iter().map(of).sum::<u64>();
    let most = |of: fn(&crate::demand::Span) -> u64| {
        spans.iter().map(|span| rate(of(span), span.length_us)).max().unwrap_or_default()
    };
    Asked {
        peak_iops: most(|span| span.requests),
        peak_bytes_per_second: most(|span| span.bytes),
        mean_iops: rate(sum(|span| span.requests), demand.length_us),
        mean_bytes_per_second: rate(sum(|span| span.bytes), demand.length_us),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType;

    use super::*;
    use crate::search::{Wanted, cheapest};
    use crate::testing::{minutes, space};
    use crate::trace::SourceLimits;

    /// Returns a trace of minutes with these numbers of requests of 4 KiB. The source's limit is
    /// 6,000 per second.
    fn limited(all: &[u64]) -> Trace {
        let mut trace = minutes(all);
        trace.source = SourceLimits { iops: Some(6_000), ..SourceLimits::default() };
        trace
    }

    #[test]
    fn an_answer_names_the_limit_the_hour_and_what_is_not_known() {
        let mut all = vec![60_000; 120];
        all[90] = 360_000;
        let trace = limited(&all);
        let demand = Demand::of(&trace, Assume::Even);
        assert_eq!((asked(&demand).peak_iops, asked(&demand).mean_iops), (6_000, 1_041));
        let space = space(&[VolumeType::Gp3], 1);
        let wanted = Wanted {
            capacity_gib: 10,
            throttled_us_per_day_max: 86_400_000_000,
            delays: vec![],
            boots: false,
            multi_attach: false,
            monthly_max: None,
            no_less_than: None,
        };
        let found = cheapest(&space, &demand, &wanted);
        let rated = rate(&space, &trace, &demand, found).remove(0);
        assert_eq!(
            rated.used_permille,
            [(LimitKind::VolumeIops, 2_000), (LimitKind::VolumeBytes, 187)]
        );
        let worst = rated.worst_hour.unwrap();
        // 180,000 are left after the minute, and 2,000 per second are free then.
        assert_eq!((worst.start_us, worst.waited_us), (HOUR_US, 150_000_000));
        assert_eq!(worst.limit, LimitKind::VolumeIops);
        let [even, active, most] = rated.throttled_ms_per_day;
        assert_eq!((even, active), (150_000 * 12, 150_000 * 12));
        assert!(most > even, "{most}: every minute's requests may have come at 6,000 a second");
        assert_eq!(rated.loss_ppb, Some((1_000_000, 2_000_000)));
    }
}
