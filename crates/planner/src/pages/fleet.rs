//! The answer as a page: sums, what the changes save, and the changes with their reasons.

use super::parts::made_by;
use crate::fleet::answer::text::{
    self, action_word, assume_word, days, deleted, header, missing, money, unknown_types, unused,
    what,
};
use crate::fleet::answer::{FleetAnswer, script};
use crate::fleet::totals::Sum;
use crate::fleet::{Action, Finding, Judged, Risk, Volume};
use crate::format::{plain, seconds};
use crate::refusal::Refusal;
use evenkeel_core::price;
use evenkeel_pages::page::{
    Axis, Chart, Curve, Keeps, Mark, Over, Page, Part, Row, Section, Shape, Steps, Table,
};

/// Points of the chart of savings.
const POINTS: usize = 400;
/// Rows of the numbers behind the chart of savings.
const NUMBERS: usize = 50;
/// Volumes that are not judged, and parts of metrics that are left out, of which each has a line.
const LINES_MAX: usize = 100;

const CHANGES_NOTE: &str = "At most: seconds a day in which requests may wait for a limit, if they \
                            come as fast as the volume allows. The commands are not executed \
                            here. Those that delete, or that risk more than medium, are to be \
                            read twice.";

/// A change of a volume.
type Change<'a> = (&'a Volume, &'a Judged);

/// Returns the page of a fleet, with the `top` changes that save the most.
pub fn page(answer: &FleetAnswer<'_>, top: usize) -> Result<String, Refusal> {
    let mut changes: Vec<Change<'_>> =
        answer.all().filter(|(_, judged)| judged.action != Action::Keep).collect();
    changes.sort_by_key(|(volume, judged)| (-judged.saving(), &volume.id));
    let mut parts = vec![
        sums(answer, "By finding", &answer.totals.by_finding, |place| Finding::ALL[place].id()),
        sums(answer, "By risk", &answer.totals.by_risk, |place| Risk::ALL[place].word()),
    ];
    parts.extend(savings(answer, &changes));
    parts.extend(list(answer, &changes, top));
    parts.extend(lines("Not judged", not_judged(answer)));
    parts.extend(lines("Types of instances that are not compared", unknown_types(answer)));
    parts.extend(lines("Left out of the metrics", answer.left_out.to_vec()));
    parts.push(assumptions(answer));
    let mut about = sentences(&header(answer));
    about.extend(sentences(&unused(&answer.totals.all)));
    about.extend(sentences(&deleted(answer)));
    let page = Page {
        verb: "plan fleet",
        title: plain(&answer.name),
        about,
        headline: headline(answer),
        mark: Mark::Plain,
        warnings: sentences(&missing(answer)),
        parts,
    };
    Ok(page.to_html()?)
}

/// Returns the lines of a text that are not empty.
fn sentences(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn headline(answer: &FleetAnswer<'_>) -> String {
    let all = &answer.totals.all;
    let currency = &answer.policies.currency;
    let [before, after, saving] = money(&[(all.before, all.after)]).1;
    let year = price::half_up(all.saving().unsigned_abs().saturating_mul(12));
    let year = price::decimal(year);
    let sign = if all.saving() < 0 { "-" } else { "" };
    format!(
        "{} of {} volumes change: {before} {currency} a month become {after}, which saves {saving} \
         a month, {sign}{year} a year",
        all.changes, all.volumes
    )
}

/// Returns a table of sums, with their total.
fn sums(
    answer: &FleetAnswer<'_>,
    title: &str,
    all: &[Sum],
    word: fn(usize) -> &'static str,
) -> Part {
    let shown: Vec<(usize, &Sum)> =
        all.iter().enumerate().filter(|(_, sum)| sum.volumes > 0).collect();
    let amounts: Vec<(u64, u64)> = shown.iter().map(|(_, sum)| (sum.before, sum.after)).collect();
    let (cells, total) = money(&amounts);
    let row = |word: &str, volumes: u64, changes: u64, cells: [String; 3]| {
        let mut row = vec![word.to_owned(), volumes.to_string(), changes.to_string()];
        row.extend(cells);
        Row::from(row)
    };
    let mut rows: Vec<Row> = shown
        .iter()
        .zip(cells)
        .map(|((place, sum), cells)| row(word(*place), sum.volumes, sum.changes, cells))
        .collect();
    let count = |of: fn(&Sum) -> u64| all.iter().map(of).sum();
    rows.push(row("all", count(|sum| sum.volumes), count(|sum| sum.changes), total));
    let currency = &answer.policies.currency;
    let columns = [
        String::new(),
        "volumes".to_owned(),
        "changes".to_owned(),
        format!("{currency} before"),
        format!("{currency} after"),
        "saved".to_owned(),
    ];
    Part::Table {
        title: title.to_owned(),
        table: Table { columns: columns.to_vec(), rows, words: vec![0] },
        note: "Amounts are of a month of 30 days.".to_owned(),
    }
}

/// Returns the chart of what the changes save together, the largest first; `None` if none saves.
fn savings(answer: &FleetAnswer<'_>, changes: &[Change<'_>]) -> Option<Part> {
    let saving: Vec<&Judged> =
        changes.iter().map(|(_, judged)| *judged).filter(|judged| judged.saving() > 0).collect();
    if saving.is_empty() {
        return None;
    }
    let of_risk = |most: Risk| {
        let mut sum = 0_i64;
        let sums = saving.iter().map(|judged| {
            if judged.risk <= most {
                sum = sum.saturating_add(judged.saving());
            }
            sum as f64 / 1e6
        });
        sums.collect::<Vec<f64>>()
    };
    let together = saving.len().div_ceil(POINTS).max(1);
    let curve = |name: &str, shape: Shape, sums: &[f64]| Curve {
        name: name.to_owned(),
        shape,
        keeps: Keeps::Most,
        values: sums.chunks(together).map(|sums| sums.last().copied()).collect(),
    };
    let all = of_risk(Risk::High);
    let low = of_risk(Risk::Low);
    let rows = saving.len().div_ceil(saving.len().div_ceil(NUMBERS).max(1));
    let every = saving.len().div_ceil(rows.max(1));
    let row = |count: usize| {
        let sum = |sums: &[f64]| sums.get(count - 1).map_or_else(String::new, |sum| cents(*sum));
        vec![count.to_string(), sum(&all), sum(&low)].into()
    };
    let counts = (1..=rows).map(|row| (row * every).min(saving.len()));
    let currency = &answer.policies.currency;
    let columns = ["changes", "saved a month", "with no or low risk"];
    let curves = vec![curve("all", Shape::Area, &all), curve("low risk", Shape::Line, &low)];
    let axis = Axis {
        from: 0.0,
        to: saving.len() as f64,
        steps: Steps::Count,
        words: Box::new(|value, _| format!("{value:.0}")),
    };
    Some(Part::Chart(Box::new(Section {
        title: "What the changes save".to_owned(),
        caption: format!(
            "{currency} that the first changes save together a month, by their number, the \
             largest saving first. Line: without those of medium or high risk."
        ),
        chart: Chart::Over(Over {
            axis,
            unit: currency.clone(),
            curves,
            band: None,
            gaps: vec![],
            top: None,
        }),
        numbers: Table {
            columns: columns.map(str::to_owned).to_vec(),
            rows: counts.map(row).collect(),
            words: vec![],
        },
        shows_numbers: false,
    })))
}

/// Returns an amount with cents.
fn cents(amount: f64) -> String {
    format!("{amount:.2}")
}

/// Returns the table of the changes that save the most; `None` without any.
fn list(answer: &FleetAnswer<'_>, changes: &[Change<'_>], top: usize) -> Option<Part> {
    let shown = changes.get(..top.min(changes.len()))?;
    if shown.is_empty() {
        return None;
    }
    let rest = &changes[shown.len()..];
    let sum = |of: fn(&Judged) -> u64| rest.iter().map(|(_, judged)| of(judged)).sum::<u64>();
    let mut amounts: Vec<(u64, u64)> =
        shown.iter().map(|(_, judged)| (judged.before, judged.after)).collect();
    if !rest.is_empty() {
        amounts.push((sum(|judged| judged.before), sum(|judged| judged.after)));
    }
    let (cells, total) = money(&amounts);
    let mut cells = cells.into_iter();
    let mut rows: Vec<Row> = shown
        .iter()
        .zip(cells.by_ref())
        .map(|(change, cells)| change_row(answer, *change, cells))
        .collect();
    let last = |name: String, [_, after, saved]: [String; 3]| {
        let dash = || "–".to_owned();
        Row::from(vec![name, dash(), after, saved, dash(), dash()])
    };
    rows.extend(cells.next().map(|cells| last(format!("{} more", rest.len()), cells)));
    rows.push(last("all changes".to_owned(), total));
    let currency = &answer.policies.currency;
    let columns = [
        "volume".to_owned(),
        "becomes".to_owned(),
        format!("{currency} a month"),
        "saved a month".to_owned(),
        "at most s/day".to_owned(),
        "risk".to_owned(),
    ];
    Some(Part::Table {
        title: "Changes".to_owned(),
        table: Table { columns: columns.to_vec(), rows, words: vec![0, 1, 5] },
        note: CHANGES_NOTE.to_owned(),
    })
}

fn change_row(
    answer: &FleetAnswer<'_>,
    (volume, judged): Change<'_>,
    [before, after, saved]: [String; 3],
) -> Row {
    let becomes = match judged.action {
        Action::Modify(to) => what(&to),
        _ => action_word(&judged.action).to_owned(),
    };
    let at_most = judged.waits.as_ref().map(|waits| seconds(waits.after_at_most_ms));
    let at_most = at_most.unwrap_or_else(|| "–".to_owned());
    let name = match &volume.name {
        Some(name) if !name.is_empty() => format!("{} {}", plain(&volume.id), plain(name)),
        _ => plain(&volume.id),
    };
    let cells = vec![name, becomes, after, saved, at_most, judged.risk.word().to_owned()];
    let term = |name: &str, words: String| (name.to_owned(), words);
    let findings: Vec<&str> = judged.findings.iter().map(|finding| finding.id()).collect();
    let mut more = vec![
        term("findings", findings.join(", ")),
        term("now", format!("{}, {before} a month", what(&judged.present))),
    ];
    if let Some(waits) = &judged.waits {
        let words =
            |assumed, most| format!("{} s a day, at most {}", seconds(assumed), seconds(most));
        more.push(term("waiting now", words(waits.before_ms, waits.before_at_most_ms)));
        more.push(term("waiting then", words(waits.after_ms, waits.after_at_most_ms)));
    }
    more.extend(judged.known.map(|known| term("days known", days(known.known_ms))));
    more.extend(volume.region.as_deref().map(|region| term("region", plain(region))));
    more.extend(judged.reasons.iter().map(|reason| term("reason", plain(reason))));
    let commands = script::of_volume(answer, (volume, judged), Risk::High);
    Row { colour: None, cells, more, commands: commands.trim().to_owned() }
}

fn not_judged(answer: &FleetAnswer<'_>) -> Vec<String> {
    let refused = answer.list.refused.iter().map(|refused| {
        let id = refused.id.as_ref().map_or_else(String::new, |id| format!(", {id}"));
        format!("{}{id}: {}", refused.place, refused.reason)
    });
    let failed = answer.all().filter(|(_, judged)| judged.finding() == Finding::NotJudged);
    let failed =
        failed.map(|(volume, judged)| format!("{}: {}", volume.id, judged.reasons.join("; ")));
    refused.chain(failed).map(|line| plain(&line)).collect()
}

/// Returns a section of sentences; `None` without any.
fn lines(title: &str, mut lines: Vec<String>) -> Option<Part> {
    let more = lines.len().saturating_sub(LINES_MAX);
    lines.truncate(LINES_MAX);
    if more > 0 {
        lines.push(format!("{more} more, in the JSON"));
    }
    (!lines.is_empty()).then(|| Part::Lines { title: title.to_owned(), lines })
}

fn assumptions(answer: &FleetAnswer<'_>) -> Part {
    let policy = &answer.policies.usual;
    let term = |name: &str, words: String| (name.to_owned(), words);
    let mut terms = vec![term("Rules", format!("of {}", policy.rules.date()))];
    terms.extend(answer.policies.lists().map(|list| term("Prices", text::list_name(list))));
    terms.extend([
        term("Headroom", format!("{} % over what was recorded", policy.headroom_percent)),
        term("Metrics", format!("at least {} days to lower a limit", policy.days_min)),
        term("Gaps", format!("at most {} % to lower a limit", policy.gaps_percent_max)),
        term("Throttled", format!("more than {} s a day at a limit", policy.throttled_s_per_day)),
        term("Within intervals", assume_word(policy.assume).to_owned()),
        made_by(),
    ]);
    Part::Terms { title: "What was assumed".to_owned(), terms }
}
