//! The verdict whether a layout that is named carries a workload.

mod forms;

use crate::answer::Rated;
use crate::answer::{exact_ms, json};
use crate::case::{Case, EXACT_REQUESTS_MAX};
use crate::format::{
    at, basis_lines, currency, money, money_exact, plain, seconds, span_us, waiting,
    waiting_at_most,
};
use crate::instances;
use crate::layout::Layout;
use crate::refusal::Refusal;
use crate::risk::limit_words;
use crate::search::{Wanted, attachments_max};
use crate::timeline::{Episode, Timeline, Times};
use evenkeel_sim::text::{csv, table};
use serde_json::{Value, json};

/// The next step after a verdict that the layout does not carry the workload.
pub const NEXT: &str =
    "`evenkeel plan` with the same traces and flags names the cheapest that does";

impl Case {
    /// Returns the verdict on a layout in words.
    ///
    /// # Errors
    /// If the words name no layout, or if the layout has no price.
    pub fn check(&self, layout: &str) -> Result<Verdict<'_>, Refusal> {
        let rated = self.given(layout, EXACT_REQUESTS_MAX)?;
        Ok(Verdict::of(self, rated, &self.wanted_of_given()))
    }
}

/// The check of the waiting.
pub const THROTTLED: &str = "throttled a day";
/// The check of the size.
const CAPACITY: &str = "capacity";
/// The check of the number of volumes against that of the instance.
const ATTACHED: &str = "attached";
/// The check of the IOPS of a volume on an instance that is not built on the Nitro System.
const NOT_ON_NITRO: &str = "without Nitro";
/// The check of Multi-Attach on such an instance.
const NO_MULTI_ATTACH: &str = "Multi-Attach without Nitro";
/// The check of volumes from which no instance boots.
const NOT_BOOTABLE: &str = "not bootable";
/// The check of volumes without Multi-Attach.
const ONE_HOST: &str = "one-host";
/// The check of the cost, whose figures are millionths.
const COST: &str = "cost a month";

const COLUMNS: [&str; 4] = ["CHECK", "ALLOWED", "FOUND", "VERDICT"];

/// A condition, with its verdict.
pub struct Check {
    /// Its name.
    pub what: &'static str,
    /// The unit of its values.
    pub unit: String,
    /// The highest value that passes; of the capacity, the one that the layout has.
    pub allowed: u64,
    found: u64,
    /// Whether it passes.
    pub pass: bool,
}

impl Check {
    /// Returns the allowed and the found value as they are shown: costs with all their digits if
    /// cents do not show that the found one is too much.
    pub fn shown(&self) -> [String; 2] {
        let values = [self.allowed, self.found];
        let cents = values.map(money);
        match (self.what, self.unit.as_str()) {
            (COST, _) if !self.pass && cents[0] == cents[1] => values.map(money_exact),
            (COST, _) => cents,
            (_, "s") => values.map(seconds),
            _ => values.map(|value| value.to_string()),
        }
    }

    /// Returns its name, with the unit of its values.
    fn title(&self) -> String {
        format!("{} {}", self.what, self.unit)
    }

    fn words(&self) -> String {
        let Self { what, unit, .. } = self;
        let [allowed, found] = self.shown();
        match *what {
            CAPACITY => format!("it has {allowed} {unit}, and must hold {found}"),
            ATTACHED => format!("it has {found} {unit}, and the instance takes {allowed}"),
            NOT_ON_NITRO => format!(
                "a volume has {found} {unit}, and an instance that is not built on the Nitro \
                 System achieves at most {allowed}"
            ),
            NO_MULTI_ATTACH => "its volumes have Multi-Attach, and an instance that is not built \
                                on the Nitro System takes none such"
                .to_owned(),
            NOT_BOOTABLE => "its volumes boot no host, and the source boots one".to_owned(),
            ONE_HOST => "its volumes are for one host only, and the source is for several: a \
                         layout for these ends in `, Multi-Attach`"
                .to_owned(),
            what => format!("{what}: {found} {unit}, allowed are {allowed}"),
        }
    }
}

/// Returns why a layout cannot be in the place of the source: what it lacks, with the limits.
/// Returns `None` if it can.
pub fn impossible(case: &Case, layout: &Layout) -> Option<String> {
    let wanted = case.wanted_of_given();
    let checks = [capacity(layout, &wanted).into_iter().collect(), possible(case, layout, &wanted)];
    let failed = checks.iter().flatten().filter(|check| !check.pass);
    let words: Vec<String> = failed.map(Check::words).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Returns the check of the capacity, if some is needed.
fn capacity(layout: &Layout, wanted: &Wanted) -> Option<Check> {
    let size_gib = u64::from(layout.each.size_gib) * u64::from(layout.volumes);
    (wanted.capacity_gib > 0).then(|| Check {
        what: CAPACITY,
        unit: "GiB".to_owned(),
        allowed: size_gib,
        found: wanted.capacity_gib,
        pass: wanted.capacity_gib <= size_gib,
    })
}

/// Returns the checks whether a layout is possible in the place of the source, whatever its size.
fn possible(case: &Case, layout: &Layout, wanted: &Wanted) -> Vec<Check> {
    let check = |what: &'static str, allowed: u32, found: u32| Check {
        what,
        unit: "volumes".to_owned(),
        allowed: allowed.into(),
        found: found.into(),
        pass: found <= allowed,
    };
    let mut checks = Vec::new();
    if let Some(instance) = layout.instance {
        let most = attachments_max(Some(instance), wanted.boots);
        checks.push(check(ATTACHED, most, layout.volumes));
    }
    let rules = case.space.rules.of(layout.each.volume_type);
    if wanted.boots {
        let is_bootable = rules.is_some_and(|rules| rules.boot);
        checks.push(check(NOT_BOOTABLE, 0, if is_bootable { 0 } else { layout.volumes }));
    }
    let each = &layout.each;
    if let (Some(most), Some(iops)) =
        (instances::iops_max(layout.instance, each.volume_type), each.iops)
    {
        let unit = "IOPS".to_owned();
        checks.push(Check { unit, ..check(NOT_ON_NITRO, most, iops) });
    }
    if each.multi_attach && !instances::takes_multi_attach(layout.instance) {
        checks.push(check(NO_MULTI_ATTACH, 0, layout.volumes));
    }
    if wanted.multi_attach {
        checks.push(check(ONE_HOST, 0, if layout.each.multi_attach { 0 } else { layout.volumes }));
    }
    checks
}

/// The verdict on a layout.
pub struct Verdict<'a> {
    /// The question.
    pub case: &'a Case,
    /// The layout.
    pub rated: Rated,
    /// The conditions, with their verdicts.
    pub checks: Vec<Check>,
    timeline: Timeline,
    times: Times,
}

/// Rounds milliseconds up as a table shows them, so that the shown value decides.
const fn as_shown(ms: u64) -> u64 {
    match ms {
        0..10_000 => ms.div_ceil(100) * 100,
        _ => ms.div_ceil(1_000) * 1_000,
    }
}

impl<'a> Verdict<'a> {
    fn of(case: &'a Case, rated: Rated, wanted: &Wanted) -> Self {
        let found = &rated.found;
        // The search for layouts decides in this way, too.
        let pass = found.waits_as_wanted(&case.demand, wanted);
        let waited_ms = as_shown(found.waited_us_per_day(&case.demand).div_ceil(1_000));
        let allowed = wanted.throttled_us_per_day_max / 1_000;
        let unit = "s".to_owned();
        let mut checks = vec![Check { what: THROTTLED, unit, allowed, found: waited_ms, pass }];
        for (permille, most_us) in &wanted.delays {
            let what = match permille {
                500 => "p50 wait",
                990 => "p99 wait",
                _ => "p99.9 wait",
            };
            let found_us = found.delays().permille(*permille);
            checks.push(Check {
                what,
                unit: "ms".to_owned(),
                allowed: most_us / 1_000,
                found: found_us.div_ceil(1_000),
                pass: found_us <= *most_us,
            });
        }
        let layout = &rated.found.layout;
        checks.extend(capacity(layout, wanted));
        checks.extend(possible(case, layout, wanted));
        checks.extend(wanted.monthly_max.map(|allowed| {
            let found = rated.found.total();
            Check { what: COST, unit: currency(case), allowed, found, pass: found <= allowed }
        }));
        // Only the times of waiting are used, so one step is enough.
        let timeline = Timeline::of(&case.space, &case.demand, layout, case.demand.length_us);
        Self { case, rated, checks, timeline, times: Times::of(&case.trace) }
    }

    /// Returns whether all checks pass.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.checks.iter().all(|check| check.pass)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |check: &Check| {
            let [allowed, found] = check.shown();
            vec![check.title(), allowed, found, if check.pass { "ok" } else { "failed" }.to_owned()]
        };
        self.checks.iter().map(row).collect()
    }

    /// Returns the checks as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        csv(&COLUMNS, &self.rows())
    }

    /// Returns the verdict in lines.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.headline(), basis_lines(self.case));
        text += &table(&COLUMNS, &self.rows());
        text.push('\n');
        for line in self.waiting_lines() {
            text += &format!("{line}\n");
        }
        text
    }

    fn verb(&self) -> &'static str {
        if self.passes() { "carries" } else { "does not carry" }
    }

    /// Returns the verdict in a sentence.
    pub fn headline(&self) -> String {
        let layout = self.rated.found.layout;
        format!("{layout} {} {}", self.verb(), plain(&self.case.trace.name))
    }

    /// Returns why the layout does not carry the workload.
    #[must_use]
    pub fn failure_words(&self) -> String {
        let failed = self.checks.iter().filter(|check| !check.pass);
        let mut failed: Vec<String> = failed.map(Check::words).collect();
        if let Some(first) = self.timeline.first {
            failed.push(format!("requests wait first {}", self.episode(&first)));
        }
        format!("{}: {}", self.headline(), failed.join("; "))
    }

    /// Returns when and for how long requests wait, in sentences.
    pub fn waiting_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(first), Some(longest)) = (self.timeline.first, self.timeline.longest) {
            lines.push(format!("requests wait first {}", self.episode(&first)));
            if self.timeline.episodes > 1 {
                let episodes = self.timeline.episodes;
                let longest = self.episode(&longest);
                lines.push(format!("the longest of {episodes} times: {longest}"));
            }
        }
        if let Some(exact) = &self.rated.found.exact {
            lines.push(format!(
                "request by request on the scheduler: {} s of waiting a day, p99 {} ms",
                waiting(self.case, exact_ms(self.case, exact)),
                exact.delays.permille(990).div_ceil(1_000),
            ));
        }
        let [even, _, worst] = self.rated.throttled_ms_per_day;
        if worst > even {
            lines.push(format!(
                "whatever the steps of the trace hide: {} to {} s of waiting a day",
                waiting(self.case, even),
                waiting_at_most(self.case, worst)
            ));
        }
        lines
    }

    fn episode(&self, episode: &Episode) -> String {
        format!(
            "from {} on for {}, at the limit of {}",
            at(self.case.trace.clock, self.times.ms(episode.start_us)),
            span_us(episode.length_us()),
            limit_words(episode.limit),
        )
    }

    /// Returns the verdict as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let check = |check: &Check| {
            json!({
                "check": check.what,
                "unit": match (check.what, check.unit.as_str()) {
                    (COST, currency) => format!("millionths of {currency}"),
                    (_, "s") => "ms".to_owned(),
                    (_, unit) => unit.to_owned(),
                },
                "allowed": check.allowed,
                "found": check.found,
                "pass": check.pass,
            })
        };
        let episode = |episode: Episode| {
            json!({
                "start_ms": self.times.ms(episode.start_us),
                "length_ms": episode.length_us() / 1_000,
                "limit": limit_words(episode.limit),
            })
        };
        let exact = self.rated.found.exact.as_ref();
        let value = json!({
            "schema": "evenkeel.plan.check/1",
            "trace": json::trace_json(&self.case.trace),
            "pass": self.passes(),
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
            "waiting": {
                "times": self.timeline.episodes,
                "first": self.timeline.first.map(episode),
                "longest": self.timeline.longest.map(episode),
            },
            "layout": json::layout_json(self.case, &self.rated),
            "by_scheduler": exact.map(|exact| json::exact_json(self.case, exact)),
        });
        json::with_basis(self.case, value)
    }
}
