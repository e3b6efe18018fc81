//! The answer as text and as a table.

use super::FleetAnswer;
use crate::cmd::plan::format::seconds;
use evenkeel_client::output;
use evenkeel_core::price::{self, PriceList};
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_planner::cost;
use evenkeel_planner::fleet::totals::Sum;
use evenkeel_planner::fleet::{Action, Finding, Judged, Risk, Volume};
use evenkeel_planner::layout::Layout;

/// What was left out that is told one by one.
const LEFT_OUT_SHOWN: usize = 10;
/// Hours of a month of 30 days.
const MS_PER_DAY: u64 = 86_400_000;

/// The titles of columns, with the currency of their amounts.
fn titles(told: &FleetAnswer<'_>, columns: &[&str]) -> Vec<String> {
    columns.iter().map(|column| column.replace("USD", &told.policies.currency)).collect()
}

fn table(told: &FleetAnswer<'_>, columns: &[&str], rows: &[Vec<String>]) -> String {
    let titles = titles(told, columns);
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    output::table(&titles, rows)
}

/// The answer as CSV, with a row for each volume.
pub fn csv(told: &FleetAnswer<'_>) -> String {
    let titles = titles(told, &COLUMNS);
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    output::csv(&titles, &rows(told))
}

const COLUMNS: [&str; 23] = [
    "VOLUME",
    "NAME",
    "FINDING",
    "ALSO",
    "ACTION",
    "TYPE",
    "GIB",
    "IOPS",
    "MIB/S",
    "NEW TYPE",
    "NEW IOPS",
    "NEW MIB/S",
    "BEFORE USD/MONTH",
    "AFTER USD/MONTH",
    "SAVING USD/MONTH",
    "RISK",
    "WAITS S/DAY",
    "WAITS AT MOST S/DAY",
    "NEVER USED IOPS",
    "NEVER USED MIB/S",
    "DAYS KNOWN",
    "REASON",
    "REGION",
];

/// A row for each volume, with exact amounts.
fn rows(told: &FleetAnswer<'_>) -> Vec<Vec<String>> {
    told.all().map(|(volume, judged)| row(volume, judged)).collect()
}

fn row(volume: &Volume, judged: &Judged) -> Vec<String> {
    let also: Vec<&str> = judged.findings.iter().skip(1).map(|finding| finding.id()).collect();
    let after = match judged.action {
        Action::Keep => Some(judged.present),
        Action::Modify(to) => Some(to),
        Action::Delete => None,
    };
    let new = |of: fn(&VolumeSpec) -> Option<String>| output::or_dash(after.as_ref().and_then(of));
    let now = &judged.present;
    let waits = |of: fn(&evenkeel_planner::fleet::Waits) -> u64| {
        output::or_dash(judged.waits.as_ref().map(|waits| seconds(of(waits))))
    };
    vec![
        volume.id.clone(),
        volume.name.clone().unwrap_or_default(),
        judged.finding().id().to_owned(),
        also.join(" "),
        action_word(&judged.action).to_owned(),
        now.volume_type.to_string(),
        now.size_gib.to_string(),
        output::or_dash(now.iops),
        output::or_dash(now.throughput_mibps),
        new(|spec| Some(spec.volume_type.to_string())),
        new(|spec| spec.iops.map(|iops| iops.to_string())),
        new(|spec| spec.throughput_mibps.map(|mibps| mibps.to_string())),
        exact(judged.before),
        exact(judged.after),
        signed_exact(judged.saving()),
        judged.risk.word().to_owned(),
        waits(|waits| waits.after_ms),
        waits(|waits| waits.after_at_most_ms),
        output::or_dash(judged.never_used_iops),
        output::or_dash(judged.never_used_mibps),
        output::or_dash(judged.known.map(|known| days(known.known_ms))),
        judged.reasons.join("; "),
        output::or_dash(volume.region.as_deref()),
    ]
}

pub const fn action_word(action: &Action) -> &'static str {
    match action {
        Action::Keep => "keep",
        Action::Modify(_) => "modify",
        Action::Delete => "snapshot-and-delete",
    }
}

fn days(ms: u64) -> String {
    let tenths = ms * 10 / MS_PER_DAY;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// What a volume is, in words.
pub fn what(spec: &VolumeSpec) -> String {
    Layout::one(*spec).to_string()
}

/// Millionths of a dollar as dollars, with as many digits as it takes, and cents at least.
fn exact(micro: u64) -> String {
    let part = format!("{:06}", micro % 1_000_000);
    let part = part.trim_end_matches('0');
    format!("{}.{part:0<2}", micro / 1_000_000)
}

/// The same of an amount that may be negative.
pub fn signed_exact(micro: i64) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    format!("{sign}{}", exact(micro.unsigned_abs()))
}

/// The cells of each row, before, after and saving, and of the sums that they add up to.
fn money(rows: &[(u64, u64)]) -> (Vec<[String; 3]>, [String; 3]) {
    let column = |of: fn(&(u64, u64)) -> u64| {
        let amounts = rows.iter().map(of).collect::<Vec<u64>>();
        let total = price::half_up(amounts.iter().copied().fold(0, u64::saturating_add));
        (cost::apportioned(&amounts, total), total)
    };
    let (before, all_before) = column(|(before, _)| *before);
    let (after, all_after) = column(|(_, after)| *after);
    let rows = before.into_iter().zip(after).map(|(before, after)| cells(before, after));
    (rows.collect(), cells(all_before, all_after))
}

fn cells(before: u64, after: u64) -> [String; 3] {
    let saving = price::decimal(before.abs_diff(after));
    let sign = if after > before { "-" } else { "" };
    [price::decimal(before), price::decimal(after), format!("{sign}{saving}")]
}

pub fn text(told: &FleetAnswer<'_>, top: usize) -> String {
    let mut text = header(told);
    text += &by_finding(told);
    text += &by_risk(told);
    text += &unused(&told.totals.all);
    text += &deleted(told);
    text += &list(told, top);
    text + &not_judged(told)
}

/// A price list in words, with the types of which it has no price: they are proposed for no volume.
fn list_name(list: &PriceList) -> String {
    let without = unpriced(list);
    let name = format!("{}, {}", list.date(), list.region());
    if without.is_empty() { name } else { format!("{name} (no price of {})", without.join(", ")) }
}

/// The types that volumes may become of which a list has no price.
pub fn unpriced(list: &PriceList) -> Vec<String> {
    use VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1};
    let without = [Gp2, Gp3, Io1, Io2, St1, Sc1].into_iter().filter(|t| list.of(*t).is_none());
    without.map(|volume_type| volume_type.to_string()).collect()
}

fn header(told: &FleetAnswer<'_>) -> String {
    let policy = &told.policies.usual;
    let lists: Vec<String> = told.policies.lists().map(list_name).collect();
    let known = |judged: &&Judged| judged.known.is_some();
    let with_metrics = told.judged.iter().filter(known).count();
    format!(
        "{} volumes, {with_metrics} of them with metrics; list prices of {}, of a month of 30 \
         days\nheadroom {} %, at least {} days of metrics, requests within an interval: {}\n\n",
        told.totals.all.volumes,
        lists.join("; "),
        policy.headroom_percent,
        policy.days_min,
        assume_word(policy.assume),
    )
}

pub const fn assume_word(assume: evenkeel_planner::demand::Assume) -> &'static str {
    use evenkeel_planner::demand::Assume;
    match assume {
        Assume::Even => "even",
        Assume::Active => "idle",
        Assume::Worst => "worst",
    }
}

fn by_finding(told: &FleetAnswer<'_>) -> String {
    let columns =
        ["FINDING", "VOLUMES", "CHANGES", "BEFORE USD/MONTH", "AFTER USD/MONTH", "SAVING"];
    sums(told, &columns, &told.totals.by_finding, |at| Finding::ALL[at].id())
}

fn by_risk(told: &FleetAnswer<'_>) -> String {
    let columns = ["RISK", "VOLUMES", "CHANGES", "BEFORE USD/MONTH", "AFTER USD/MONTH", "SAVING"];
    sums(told, &columns, &told.totals.by_risk, |at| Risk::ALL[at].word())
}

/// A table of sums, with what they come to together.
fn sums(
    told: &FleetAnswer<'_>,
    columns: &[&str],
    all: &[Sum],
    word: fn(usize) -> &'static str,
) -> String {
    let mut rows = Vec::new();
    let row = |word: &str, volumes: u64, changes: u64, cells: [String; 3]| {
        let mut row = vec![word.to_owned(), volumes.to_string(), changes.to_string()];
        row.extend(cells);
        row
    };
    let shown: Vec<(usize, &Sum)> =
        all.iter().enumerate().filter(|(_, sum)| sum.volumes > 0).collect();
    let amounts: Vec<(u64, u64)> = shown.iter().map(|(_, sum)| (sum.before, sum.after)).collect();
    let (cells, total) = money(&amounts);
    for ((at, sum), cells) in shown.into_iter().zip(cells) {
        rows.push(row(word(at), sum.volumes, sum.changes, cells));
    }
    if rows.is_empty() {
        return String::new();
    }
    let of = |count: fn(&Sum) -> u64| all.iter().map(count).sum();
    rows.push(row("all", of(|sum| sum.volumes), of(|sum| sum.changes), total));
    table(told, columns, &rows) + "\n"
}

fn unused(all: &Sum) -> String {
    let mut parts = Vec::new();
    if all.iops > 0 {
        parts.push(format!("{} of {} provisioned IOPS", all.never_used_iops, all.iops));
    }
    if all.mibps > 0 {
        parts.push(format!("{} of {} MiB/s", all.never_used_mibps, all.mibps));
    }
    match parts.as_slice() {
        [] => String::new(),
        parts => format!("never used, with the headroom: {}\n\n", parts.join(", ")),
    }
}

fn deleted(told: &FleetAnswer<'_>) -> String {
    let mut most_micros: Option<u64> = None;
    for (volume, judged) in told.all().filter(|(_, judged)| judged.action == Action::Delete) {
        let policy = told.policies.policy(volume).ok();
        let Some(prices) = policy.and_then(|policy| policy.prices.list().snapshot()) else {
            return String::new();
        };
        let gib = u64::from(judged.present.size_gib);
        let sum = most_micros.get_or_insert(0);
        *sum = sum.saturating_add(gib.saturating_mul(prices.gib_month));
    }
    most_micros.map_or_else(String::new, |micros| {
        let (most, currency) = (price::rounded(micros), &told.policies.currency);
        format!("snapshots of what is to be deleted cost at most {most} {currency} a month\n\n")
    })
}

/// The changes that matter most.
fn list(told: &FleetAnswer<'_>, top: usize) -> String {
    let mut changes: Vec<(&Volume, &Judged)> =
        told.all().filter(|(_, judged)| judged.action != Action::Keep).collect();
    changes.sort_by_key(|(volume, judged)| (-judged.saving(), &volume.id));
    if changes.is_empty() || top == 0 {
        return String::new();
    }
    let columns = [
        "VOLUME",
        "FINDING",
        "NOW",
        "BETTER",
        "BEFORE",
        "AFTER",
        "SAVING",
        "RISK",
        "AT MOST S/DAY",
    ];
    let mut rows = Vec::new();
    let row = |first: [String; 4], cells: [String; 3], last: [String; 2]| {
        first.into_iter().chain(cells).chain(last).collect::<Vec<_>>()
    };
    let rest = changes.split_off(top.min(changes.len()));
    let mut amounts: Vec<(u64, u64)> =
        changes.iter().map(|(_, judged)| (judged.before, judged.after)).collect();
    if !rest.is_empty() {
        let sum = |of: fn(&Judged) -> u64| rest.iter().map(|(_, judged)| of(judged)).sum();
        amounts.push((sum(|judged| judged.before), sum(|judged| judged.after)));
    }
    let (cells, total) = money(&amounts);
    let mut cells = cells.into_iter();
    for ((volume, judged), cells) in changes.into_iter().zip(cells.by_ref()) {
        let better = match judged.action {
            Action::Modify(to) => what(&to),
            _ => action_word(&judged.action).to_owned(),
        };
        let at_most = judged.waits.as_ref().map(|waits| seconds(waits.after_at_most_ms));
        rows.push(row(
            [volume.id.clone(), judged.finding().id().to_owned(), what(&judged.present), better],
            cells,
            [judged.risk.word().to_owned(), output::or_dash(at_most)],
        ));
    }
    let dash = || "-".to_owned();
    let others = |count: usize| [format!("{count} more"), dash(), dash(), dash()];
    if let Some(cells) = cells.next() {
        rows.push(row(others(rest.len()), cells, [dash(), dash()]));
    }
    let all = ["all changes".to_owned(), dash(), dash(), dash()];
    rows.push(row(all, total, [dash(), dash()]));
    table(told, &columns, &rows)
}

fn not_judged(told: &FleetAnswer<'_>) -> String {
    let mut lines = Vec::new();
    for refused in &told.list.refused {
        let id = refused.id.as_ref().map_or_else(String::new, |id| format!(", {id}"));
        lines.push(format!("{}, {}{id}: {}", told.name, refused.place, refused.reason));
    }
    let failed = |(_, judged): &(&Volume, &Judged)| judged.finding() == Finding::NotJudged;
    for (volume, judged) in told.all().filter(failed) {
        lines.push(format!("{}: {}", volume.id, judged.reasons.join("; ")));
    }
    let mut text = section("not judged", &lines);
    text += &section("left out of the metrics", told.left_out);
    text
}

fn section(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{title} ({}):\n", lines.len());
    for line in lines.iter().take(LEFT_OUT_SHOWN) {
        text += &format!("  {line}\n");
    }
    if lines.len() > LEFT_OUT_SHOWN {
        text += &format!("  {} more: -o json has all\n", lines.len() - LEFT_OUT_SHOWN);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_with_cents_at_least() {
        let all = [0, 5_000, 8_000_000, 1_234_567, 10_000_010].map(exact);
        assert_eq!(all, ["0.00", "0.005", "8.00", "1.234567", "10.00001"]);
        assert_eq!(signed_exact(-8_500_000), "-8.50");
    }

    #[test]
    fn printed_rows_add_up_to_what_is_printed_below() {
        let (rows, total) = money(&[(3_333_333, 1_666_667); 7]);
        let sum = |at: usize| -> u64 {
            rows.iter().map(|row| row[at].replace('.', "").parse::<u64>().unwrap()).sum()
        };
        assert_eq!(total, ["23.33", "11.67", "11.66"]);
        assert_eq!((sum(0), sum(1), sum(2)), (2_333, 1_167, 1_166));
    }
}
