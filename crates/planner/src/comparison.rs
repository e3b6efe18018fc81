//! Layouts that are named, side by side.

use crate::answer::{Rated, assumed_ms, device, json, model};
use crate::case::{COMPARED_REQUESTS_MAX, Case};
use crate::format::{
    basis_lines, currency, limit_words, loss_words, money, money_more, plain, seconds, waiting,
    waiting_at_most,
};
use crate::layout::LimitKind;
use crate::prices::Prices;
use crate::refusal::{Cause, Refusal};
use crate::risk;
use crate::search::Found;
use crate::verdict;
use evenkeel_sim::text::{csv, or_dash, table};
use serde_json::{Value, json};

/// Layouts that are compared at once.
const LAYOUTS: std::ops::RangeInclusive<usize> = 2..=6;

/// Layouts side by side.
pub struct Comparison<'a> {
    /// The question.
    pub case: &'a Case,
    /// The layouts, in the order in which they are named.
    pub rated: Vec<Rated>,
    /// Why each of them cannot be in the place of the source; `None` if it can.
    pub impossible: Vec<Option<String>>,
}

/// Checks the number of layouts of a comparison.
///
/// # Errors
/// If it is too small or too large.
pub fn check_count(count: usize) -> Result<(), Refusal> {
    if LAYOUTS.contains(&count) {
        return Ok(());
    }
    let least = LAYOUTS.start();
    let most = LAYOUTS.end();
    Err(Refusal::new(format!("{count} layouts: {least} to {most} are compared"))
        .cause(Cause::Question)
        .hint("name each with --layout"))
}

impl Case {
    /// Returns the comparison of layouts in words.
    ///
    /// # Errors
    /// If there are too few or too many, or if one has no price.
    pub fn compare(&self, layouts: &[String]) -> Result<Comparison<'_>, Refusal> {
        check_count(layouts.len())?;
        let rated = layouts.iter().map(|text| self.given(text, COMPARED_REQUESTS_MAX));
        let rated: Vec<Rated> = rated.collect::<Result<_, _>>()?;
        let impossible = rated.iter().map(|rated| verdict::impossible(self, &rated.found.layout));
        Ok(Comparison { case: self, impossible: impossible.collect(), rated })
    }
}

impl Comparison<'_> {
    /// Returns the comparison in lines.
    #[must_use]
    pub fn text(&self) -> String {
        text(self)
    }

    /// Returns whether each layout is possible, and a row for each value.
    #[must_use]
    pub fn rows(&self) -> Vec<Vec<String>> {
        let verdicts = self.impossible.iter().map(|why| if why.is_some() { "no" } else { "yes" });
        let verdicts = std::iter::once("possible").chain(verdicts).map(str::to_owned);
        std::iter::once(verdicts.collect()).chain(rows(self.case, &self.rated)).collect()
    }

    /// Returns each layout that cannot be in the place of the source, with the reasons.
    #[must_use]
    pub fn impossible_words(&self) -> Vec<String> {
        let reasons = letters(self.rated.len()).into_iter().zip(&self.impossible);
        let words = reasons.filter_map(|(letter, why)| {
            why.as_ref().map(|why| format!("{letter} is impossible: {why}"))
        });
        words.collect()
    }

    /// Returns the comparison as CSV, with a column for each layout.
    #[must_use]
    pub fn csv(&self) -> String {
        let layouts = self.rated.iter().map(|rated| rated.found.layout.to_string());
        let mut all = vec![std::iter::once("layout".to_owned()).chain(layouts).collect()];
        all.extend(self.rows());
        csv(&columns(&letters(self.rated.len())), &all)
    }

    /// Returns the comparison as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json_of(self)
    }
}

/// Returns a letter for each layout.
#[must_use]
pub fn letters(count: usize) -> Vec<String> {
    ('A'..).take(count).map(String::from).collect()
}

fn columns(letters: &[String]) -> Vec<&str> {
    std::iter::once("WHAT").chain(letters.iter().map(String::as_str)).collect()
}

fn text(comparison: &Comparison<'_>) -> String {
    let Comparison { case, rated, .. } = comparison;
    let letters = letters(rated.len());
    let mut text = format!("{}\n{}", plain(&case.trace.name), basis_lines(case));
    for (letter, it) in letters.iter().zip(rated) {
        text += &format!("{letter}: {}\n", it.found.layout);
    }
    for words in comparison.impossible_words() {
        text += &format!("{words}\n");
    }
    text.push('\n');
    text += &table(&columns(&letters), &comparison.rows());
    text.push('\n');
    if let [first, others @ ..] = rated.as_slice() {
        for (letter, other) in letters.iter().skip(1).zip(others) {
            text += &format!("{letter} against A: {}\n", better(case, first, other));
        }
    }
    for (letter, it) in letters.iter().zip(rated) {
        for risk in risk::risks(&case.space, &case.trace, &case.demand, it) {
            text += &format!("risk of {letter}: {risk}\n");
        }
    }
    text
}

/// Returns the differences of a layout from the first.
#[must_use]
pub fn better(case: &Case, first: &Rated, other: &Rated) -> String {
    let mut words = Vec::new();
    let [a, b] = [first, other].map(|rated| rated.found.total());
    let [a_year, b_year] = [a, b].map(|monthly| monthly.saturating_mul(12));
    let currency = currency(case);
    words.push(format!(
        "{} {currency} a month, {} a year",
        money_more(b, a),
        money_more(b_year, a_year)
    ));
    let [a, b] = [first, other].map(|rated| assumed_ms(case, &rated.found));
    words.push(match a.cmp(&b) {
        std::cmp::Ordering::Equal => "requests wait as long".to_owned(),
        std::cmp::Ordering::Less => format!("requests wait {} s a day longer", seconds(b - a)),
        std::cmp::Ordering::Greater => format!("requests wait {} s a day less", seconds(a - b)),
    });
    if let (Some(a), Some(b)) = (first.loss_ppb, other.loss_ppb) {
        words.push(match a.cmp(&b) {
            std::cmp::Ordering::Equal => "as durable".to_owned(),
            std::cmp::Ordering::Less => "less durable".to_owned(),
            std::cmp::Ordering::Greater => "more durable".to_owned(),
        });
    }
    words.join("; ")
}

/// Returns a row for each value, with a cell for each layout.
#[must_use]
pub fn rows(case: &Case, rated: &[Rated]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |what: &str, of: &dyn Fn(&Rated) -> String| {
        let cells = rated.iter().map(of);
        rows.push(std::iter::once(what.to_owned()).chain(cells).collect());
    };
    let currency = currency(case);
    let mut cost = |what: &str, of: &dyn Fn(&Found) -> String| {
        row(&format!("{what} {currency}/month"), &|rated| of(&rated.found));
    };
    if let Prices::Book(_) = case.space.prices {
        cost("space", &|found| money(found.monthly.storage));
        cost("device time", &|found| money(found.monthly.iops));
    } else {
        cost("storage", &|found| money(found.monthly.storage));
        cost("IOPS", &|found| money(found.monthly.iops));
        cost("throughput", &|found| money(found.monthly.throughput));
        cost("requests", &|found| money(found.requests));
    }
    cost("all", &|found| money(found.total()));
    if let Some(before) = case.source_monthly {
        cost("saved", &|found| money_more(before, found.total()));
    }
    row(&format!("all {currency}/year"), &|rated| money(rated.found.total().saturating_mul(12)));
    row("throttled s/day", &|rated| waiting(case, assumed_ms(case, &rated.found)));
    row("  at least", &|rated| {
        waiting(case, rated.throttled_ms_per_day[0].min(assumed_ms(case, &rated.found)))
    });
    row("  at most", &|rated| {
        waiting_at_most(case, rated.throttled_ms_per_day[2].max(assumed_ms(case, &rated.found)))
    });
    let wait = |permille| move |rated: &Rated| ms(rated.found.delays().permille(permille));
    row("p50 wait ms", &wait(500));
    row("p99 wait ms", &wait(990));
    row("p99.9 wait ms", &wait(999));
    row("longest wait ms", &|rated| ms(rated.found.delays().most_us()));
    row("p99 with device ms", &|rated| or_dash(device::with_device(case, &rated.found, 990)));
    row("waits by", &|rated| model(&rated.found).to_owned());
    for kind in [
        LimitKind::VolumeIops,
        LimitKind::VolumeBytes,
        LimitKind::InstanceIops,
        LimitKind::InstanceBytes,
    ] {
        let used = |rated: &Rated| {
            let mut all = rated.used_permille.iter();
            all.find(|(limit, _)| *limit == kind).map(|(_, used)| *used)
        };
        if rated.iter().any(|rated| used(rated).is_some()) {
            let cell = |rated: &Rated| or_dash(used(rated).map(|used| format!("{} %", used / 10)));
            row(&format!("{} used", limit_words(kind)), &cell);
        }
    }
    row("least credits", &|rated| or_dash(least_credits(case, rated)));
    row("lost/year", &|rated| or_dash(rated.loss_ppb.map(loss_words)));
    rows
}

fn ms(us: u64) -> String {
    us.div_ceil(1_000).to_string()
}

/// Returns the least credits of the replay, if the layout saves credits.
fn least_credits(case: &Case, rated: &Rated) -> Option<String> {
    let saves = rated.found.layout.saves_credits(&case.space);
    let least = rated.found.outcome.least_ppm.iter().zip(saves);
    let least = least.filter(|(_, saves)| *saves).map(|(ppm, _)| *ppm).min()?;
    Some(format!("{} %", least / 10_000))
}

fn json_of(comparison: &Comparison<'_>) -> Value {
    let Comparison { case, rated, impossible } = comparison;
    let signed = |of: u64, than: u64| i128::from(of) - i128::from(than);
    let first = rated.first();
    let difference = |it: &Rated| {
        first.map(|first| {
            let monthly = signed(it.found.total(), first.found.total());
            let waited_ms = signed(assumed_ms(case, &it.found), assumed_ms(case, &first.found));
            let mut value = json!({
                "throttled_ms_per_day": i64::try_from(waited_ms).ok(),
                "words": better(case, first, it),
            });
            for (period, micros) in [("monthly", monthly), ("yearly", monthly * 12)] {
                let key = match &case.space.prices {
                    Prices::List(prices) => json::micro_key(period, prices.list().currency()),
                    Prices::Book(_) => format!("{period}_micros"),
                };
                value[key] = json!(i64::try_from(micros).ok());
            }
            value
        })
    };
    let value = json!({
        "schema": "evenkeel.plan.compare/1",
        "trace": json::trace_json(&case.trace),
        "layouts": rated.iter().map(|rated| json::layout_json(case, rated)).collect::<Vec<_>>(),
        "impossible": impossible,
        "against_the_first": rated.iter().skip(1).map(difference).collect::<Vec<_>>(),
    });
    json::with_basis(case, value)
}
