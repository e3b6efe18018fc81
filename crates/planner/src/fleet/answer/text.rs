//! The answer as text and as a table.

use super::{FleetAnswer, Missing, Script, copies};
use crate::cost;
use crate::fleet::hosts::{Host, Rates};
use crate::fleet::totals::{Sum, Totals};
use crate::fleet::{Action, Class, Finding, Judged, OnHdd, Volume};
use crate::format::{list_words, money_exact, plain, seconds};
use crate::layout::Layout;
use crate::prices::ListPrices;
use crate::used::{Source, Used};
use evenkeel_core::price::{self, PriceList};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_sim::text::{self, or_dash};

/// Files that are not used of which each has a line.
const LEFT_OUT_SHOWN: usize = 10;
/// Title of the types of instances without published limits.
const UNKNOWN_TYPES: &str = "types of instances without published limits, which are not compared";
const MS_PER_DAY: u64 = 86_400_000;

/// Returns the titles of columns, with the currency of their amounts.
fn titles(answer: &FleetAnswer<'_>, columns: &[&str]) -> Vec<String> {
    columns.iter().map(|column| column.replace("USD", &answer.policies.currency)).collect()
}

fn table(answer: &FleetAnswer<'_>, columns: &[&str], rows: &[Vec<String>]) -> String {
    let titles = titles(answer, columns);
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    text::table(&titles, rows)
}

/// Returns the answer as CSV, with a row for each volume.
pub fn csv(answer: &FleetAnswer<'_>) -> String {
    let titles = titles(answer, &COLUMNS);
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    text::csv(&titles, &rows(answer))
}

const COLUMNS: [&str; 32] = [
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
    "PRICE REGION",
    "ADVICE",
    "SNAPSHOT USD/MONTH",
    "GROUP",
    "USED GIB",
    "SMALLER TYPE",
    "SMALLER GIB",
    "AFTER A COPY USD/MONTH",
    "IF LATENCY DOES NOT MATTER USD/MONTH",
];

/// Returns a row for each volume, with exact amounts.
fn rows(answer: &FleetAnswer<'_>) -> Vec<Vec<String>> {
    answer.all().map(|(volume, judged)| row(volume, judged)).collect()
}

fn row(volume: &Volume, judged: &Judged) -> Vec<String> {
    let also: Vec<&str> = judged.findings.iter().skip(1).map(|finding| finding.id()).collect();
    let after = match judged.action {
        Action::Keep => Some(judged.present),
        Action::Modify(to) => Some(to),
        Action::Delete => None,
    };
    let new = |of: fn(&VolumeSpec) -> Option<String>| or_dash(after.as_ref().and_then(of));
    let now = &judged.present;
    let waits = |of: fn(&crate::fleet::Waits) -> u64| {
        or_dash(judged.waits.as_ref().map(|waits| seconds(of(waits))))
    };
    vec![
        as_text(&volume.id),
        as_text(volume.name.as_deref().unwrap_or_default()),
        judged.finding().id().to_owned(),
        also.join(" "),
        action_word(&judged.action).to_owned(),
        now.volume_type.to_string(),
        now.size_gib.to_string(),
        or_dash(now.iops),
        or_dash(now.throughput_mibps),
        new(|spec| Some(spec.volume_type.to_string())),
        new(|spec| spec.iops.map(|iops| iops.to_string())),
        new(|spec| spec.throughput_mibps.map(|mibps| mibps.to_string())),
        money_exact(judged.before),
        money_exact(judged.after),
        signed_exact(judged.saving()),
        judged.risk.word().to_owned(),
        waits(|waits| waits.after_ms),
        waits(|waits| waits.after_at_most_ms),
        or_dash(judged.never_used_iops),
        or_dash(judged.never_used_mibps),
        or_dash(judged.known.map(|known| days(known.known_ms))),
        judged.reasons.join("; "),
        or_dash(volume.region.as_deref()),
        volume.price_region.clone(),
        or_dash(judged.class().map(Class::id)),
        or_dash(judged.snapshot_at_most.map(money_exact)),
        or_dash(volume.group.as_deref().map(as_text)),
        or_dash(used(volume, judged).map(|used| used.bytes.div_ceil(1 << 30))),
        or_dash(judged.smaller.map(|smaller| smaller.spec.volume_type)),
        or_dash(judged.smaller.map(|smaller| smaller.spec.size_gib)),
        or_dash(judged.smaller.map(|smaller| money_exact(smaller.after))),
        or_dash(judged.on_hdd.map(|hdd| money_exact(hdd.after))),
    ]
}

/// Returns a cell that no spreadsheet takes for a formula: `'` stands before a text that begins as
/// one (OWASP, CSV injection).
fn as_text(cell: &str) -> String {
    let mark = if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("{mark}{cell}")
}

/// Returns the used space of a volume, by a file or by its metrics.
pub fn used(volume: &Volume, judged: &Judged) -> Option<Used> {
    let of_trace = judged.known.and_then(|known| known.used_bytes);
    let source = Source::FileSystem;
    volume.used.or(of_trace.map(|bytes| Used { bytes, source }))
}

/// Returns the word for an action.
#[must_use]
pub const fn action_word(action: &Action) -> &'static str {
    match action {
        Action::Keep => "keep",
        Action::Modify(_) => "modify",
        Action::Delete => "snapshot-and-delete",
    }
}

/// Returns milliseconds as days, with a decimal.
#[must_use]
pub fn days(ms: u64) -> String {
    let tenths = ms * 10 / MS_PER_DAY;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Returns the properties of a volume in words.
pub fn what(spec: &VolumeSpec) -> String {
    Layout::one(*spec).to_string()
}

/// Returns an amount that may be negative with all its digits, and cents at least.
pub fn signed_exact(micro: i64) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    format!("{sign}{}", money_exact(micro.unsigned_abs()))
}

/// Returns the cells before, after and saving of each row, and of the sums, which they add up to.
pub fn money(rows: &[(u64, u64)]) -> (Vec<[String; 3]>, [String; 3]) {
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

/// Returns the answer in lines, with at most `top` rows of a table.
#[must_use]
pub fn text(answer: &FleetAnswer<'_>, top: usize) -> String {
    let mut text = header(answer);
    text += &by_class(answer);
    text += &script(answer);
    text += &by_finding(answer);
    text += &missing(answer);
    text += &by_group(answer, top);
    text += &unused(&answer.totals.all);
    text += &deleted(answer);
    text += &list(answer, top);
    text += &copies::text(answer, top);
    text += &on_hdd(answer);
    text += &hosts(answer, top);
    text += &section(UNKNOWN_TYPES, &unknown_types(answer));
    text + &not_judged(answer)
}

/// Returns the line about volumes that would do on a disk with a head.
fn on_hdd(answer: &FleetAnswer<'_>) -> String {
    let all: Vec<&OnHdd> =
        answer.judged.iter().filter_map(|judged| judged.on_hdd.as_ref()).collect();
    let Some(least) = all.iter().map(small).min() else { return String::new() };
    let most = all.iter().map(small).max().unwrap_or(least);
    let saved = |hdd: &&OnHdd| hdd.before.saturating_sub(hdd.after);
    let permille = |permille: u64| format!("{}.{}", permille / 10, permille % 10);
    format!(
        "\nif latency does not matter: st1 or sc1 carries the requests of {} of the volumes, for \
         {} {} a month less than\nis advised above; {} to {} % of the requests are smaller than \
         128 KiB, and a disk moves its head for each that is\nnot sequential\n",
        all.len(),
        price::rounded(all.iter().map(saved).fold(0, u64::saturating_add)),
        answer.policies.currency,
        permille(least),
        permille(most),
    )
}

fn small(hdd: &&OnHdd) -> u64 {
    hdd.small_permille
}

/// Returns the types of instances without published limits, a line for each.
pub fn unknown_types(answer: &FleetAnswer<'_>) -> Vec<String> {
    let line = |(name, volumes): (&String, &usize)| format!("{}: {volumes} volumes", plain(name));
    answer.unknown_types.iter().map(line).collect()
}

/// Returns the table of instances whose limits their volumes exceed.
fn hosts(answer: &FleetAnswer<'_>, top: usize) -> String {
    let rows = answer.hosts.iter().take(top).map(|host| {
        let pair = |of: fn(&Host) -> Rates| {
            let Rates { iops, bytes } = of(host);
            format!("{iops}, {}", bytes / MIB)
        };
        vec![
            host.id.clone(),
            host.instance.name.to_owned(),
            host.volumes.to_string(),
            if host.asked == Rates::default() { "-".to_owned() } else { pair(|host| host.asked) },
            pair(|host| host.after),
            pair(Host::sustained),
            pair(Host::most),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let columns = ["INSTANCE", "TYPE", "VOLUMES", "PEAKS", "LIMITS", "IT SUSTAINS", "AT MOST"];
    format!(
        "\ninstances with less than their volumes ask for, or are provisioned with, together: {} \
         (IOPS, MiB/s)\n{}",
        answer.hosts.len(),
        text::table(&columns, &rows)
    )
}

/// Returns a price list in words, with the types that it has no price of: they are proposed for no
/// volume.
pub fn list_name(prices: &ListPrices) -> String {
    let name = list_words(prices);
    let without = unpriced(prices.list());
    if without.is_empty() { name } else { format!("{name} (no price of {})", without.join(", ")) }
}

/// Returns the types that volumes may become of which a list has no price.
pub fn unpriced(list: &PriceList) -> Vec<String> {
    use VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1};
    let without = [Gp2, Gp3, Io1, Io2, St1, Sc1].into_iter().filter(|t| list.of(*t).is_none());
    without.map(|volume_type| volume_type.to_string()).collect()
}

/// Returns the lines about the volumes, the prices and the policy.
#[must_use]
pub fn header(answer: &FleetAnswer<'_>) -> String {
    let policy = &answer.policies.usual;
    let lists: Vec<String> = answer.policies.lists().map(list_name).collect();
    let known = |judged: &&Judged| judged.known.is_some();
    let with_metrics = answer.judged.iter().filter(known).count();
    format!(
        "{} volumes, {with_metrics} of them with metrics; list prices of {}, of a month of 30 \
         days\nheadroom {} %, at least {} days of metrics, requests within an interval: {}\n\n",
        answer.totals.all.volumes,
        lists.join("; "),
        policy.headroom_percent,
        policy.days_min,
        assume_word(policy.assume),
    )
}

/// Returns the word for an assumption.
#[must_use]
pub const fn assume_word(assume: crate::demand::Assume) -> &'static str {
    use crate::demand::Assume;
    match assume {
        Assume::Even => "even",
        Assume::Active => "idle",
        Assume::Worst => "worst",
    }
}

fn by_finding(answer: &FleetAnswer<'_>) -> String {
    let columns =
        ["FINDING", "VOLUMES", "CHANGES", "BEFORE USD/MONTH", "AFTER USD/MONTH", "SAVING"];
    let rows = Finding::ALL.iter().zip(answer.totals.by_finding);
    sums(answer, &columns, &named(rows.map(|(finding, sum)| (finding.id(), sum))))
}

/// Returns the table of the groups that save the most, and of the others together.
fn by_group(answer: &FleetAnswer<'_>, top: usize) -> String {
    let Some(group_by) = answer.group_by else { return String::new() };
    let mut groups: Vec<(&str, Totals)> = answer.groups().into_iter().collect();
    groups.sort_by_key(|(name, totals)| (-totals.all.saving(), *name));
    let rest = groups.split_off(top.min(groups.len()));
    let name = group_by.to_string().to_uppercase();
    let columns =
        [name.as_str(), "VOLUMES", "CHANGES", "BEFORE USD/MONTH", "AFTER USD/MONTH", "SAVING"];
    let mut rows: Vec<(String, Sum)> =
        groups.iter().map(|(name, totals)| ((*name).to_owned(), totals.all)).collect();
    if !rest.is_empty() {
        let mut sum = Sum::default();
        rest.iter().for_each(|(_, totals)| sum.merge(&totals.all));
        rows.push((format!("{} more", rest.len()), sum));
    }
    sums(answer, &columns, &rows)
}

fn by_class(answer: &FleetAnswer<'_>) -> String {
    let columns = ["ADVICE", "VOLUMES", "CHANGES", "BEFORE USD/MONTH", "AFTER USD/MONTH", "SAVING"];
    let rows = Class::ALL.iter().zip(answer.totals.by_class);
    sums(answer, &columns, &named(rows.map(|(class, sum)| (class.id(), sum))))
}

/// Returns the line about the script, if one is written.
fn script(answer: &FleetAnswer<'_>) -> String {
    let Some(script) = &answer.script else { return String::new() };
    format!("in the script {} {}\n\n", script.path, script_words(answer, script))
}

/// Returns what the commands of a script that are not comments save.
pub fn script_words(answer: &FleetAnswer<'_>, script: &Script) -> String {
    format!(
        "the commands that are not comments change {} of {} volumes and save {} {} a month",
        script.executed.volumes,
        answer.totals.all.changes,
        signed_exact(script.executed.saving()),
        answer.policies.currency,
    )
}

/// Returns sums with their names.
fn named(rows: impl Iterator<Item = (&'static str, Sum)>) -> Vec<(String, Sum)> {
    rows.map(|(name, sum)| (name.to_owned(), sum)).collect()
}

/// Returns a table of sums, with their total. Those without a volume have no row.
fn sums(answer: &FleetAnswer<'_>, columns: &[&str], all: &[(String, Sum)]) -> String {
    let mut rows = Vec::new();
    let row = |word: &str, volumes: u64, changes: u64, cells: [String; 3]| {
        let mut row = vec![word.to_owned(), volumes.to_string(), changes.to_string()];
        row.extend(cells);
        row
    };
    let shown: Vec<&(String, Sum)> = all.iter().filter(|(_, sum)| sum.volumes > 0).collect();
    let amounts: Vec<(u64, u64)> = shown.iter().map(|(_, sum)| (sum.before, sum.after)).collect();
    let (cells, total) = money(&amounts);
    for ((name, sum), cells) in shown.into_iter().zip(cells) {
        rows.push(row(name, sum.volumes, sum.changes, cells));
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut whole = Sum::default();
    all.iter().for_each(|(_, sum)| whole.merge(sum));
    rows.push(row("all", whole.volumes, whole.changes, total));
    table(answer, columns, &rows) + "\n"
}

/// Returns the line about provisioned limits that are never used, if there are some.
#[must_use]
pub fn unused(all: &Sum) -> String {
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

/// Returns the line about volumes that are not in the sums, if there are some.
pub fn missing(answer: &FleetAnswer<'_>) -> String {
    let Missing { refused, unpriced } = answer.missing();
    let words = [
        (refused > 0).then(|| format!("{refused} that are refused")),
        (unpriced > 0).then(|| format!("{unpriced} without a price")),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    match words.as_slice() {
        [] => String::new(),
        words => format!("not in these sums: {} (see not judged)\n\n", words.join(", ")),
    }
}

/// Returns the line about snapshots of the volumes that are to be deleted, if there are some.
#[must_use]
pub fn deleted(answer: &FleetAnswer<'_>) -> String {
    let Some(snapshots) = answer.snapshots() else { return String::new() };
    let currency = &answer.policies.currency;
    let region = |(region, gib): (&&str, &u64)| format!("{region} ({gib} GiB)");
    let without: Vec<String> = snapshots.unpriced_gib.iter().map(region).collect();
    let without = match without.as_slice() {
        [] => String::new(),
        all => format!("no price of snapshots is known in {}", all.join(", ")),
    };
    match snapshots.most_micros.map(price::rounded) {
        None => format!("snapshots of what is to be deleted: {without}\n\n"),
        Some(most) => {
            let most = format!("at most {most} {currency} a month");
            let without = if without.is_empty() { without } else { format!("; {without}") };
            format!("snapshots of what is to be deleted cost {most}{without}\n\n")
        }
    }
}

/// Returns the table of the changes with the largest savings.
fn list(answer: &FleetAnswer<'_>, top: usize) -> String {
    let mut changes: Vec<(&Volume, &Judged)> =
        answer.all().filter(|(_, judged)| judged.action != Action::Keep).collect();
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
            [judged.risk.word().to_owned(), or_dash(at_most)],
        ));
    }
    let dash = || "-".to_owned();
    let others = |count: usize| [format!("{count} more"), dash(), dash(), dash()];
    if let Some(cells) = cells.next() {
        rows.push(row(others(rest.len()), cells, [dash(), dash()]));
    }
    let all = ["all changes".to_owned(), dash(), dash(), dash()];
    rows.push(row(all, total, [dash(), dash()]));
    table(answer, &columns, &rows)
}

fn not_judged(answer: &FleetAnswer<'_>) -> String {
    let mut lines = Vec::new();
    for refused in &answer.list.refused {
        let id = refused.id.as_ref().map_or_else(String::new, |id| format!(", {id}"));
        lines.push(format!("{}, {}{id}: {}", answer.name, refused.place, refused.reason));
    }
    let failed = |(_, judged): &(&Volume, &Judged)| judged.finding() == Finding::NotJudged;
    for (volume, judged) in answer.all().filter(failed) {
        lines.push(format!("{}: {}", volume.id, judged.reasons.join("; ")));
    }
    let mut text = section("not judged", &lines);
    text += &section("left out of the metrics", answer.left_out);
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
    fn a_cost_has_a_sign() {
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
