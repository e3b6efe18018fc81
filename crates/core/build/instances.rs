//! `data/instances.csv` to the table of instance types. The newest row of a type is what counts
//! today; rows without IOPS are from the years in which only the bandwidth was published.

use crate::reader::{Date, Result, read};
use std::collections::BTreeMap;
use std::path::Path;

const HEADER: &str =
    "instance_type,date,ebs_optimized,baseline_mbps,max_mbps,baseline_iops,max_iops,source";

/// One row, checked.
struct Row {
    date: Date,
    support: &'static str,
    mbps: (u32, u32),
    iops: Option<(u32, u32)>,
}

/// The text of `instances.rs` in the build's output folder.
pub fn generate(file: &Path) -> Result<String> {
    let text = read(file)?;
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, header)| header != HEADER) {
        return Err(format!("{}: line 1: expected \"{HEADER}\"", file.display()));
    }
    let mut rows: BTreeMap<&str, Vec<Row>> = BTreeMap::new();
    for (i, line) in lines {
        let fail = |why| format!("{}: line {}: {line}: {why}", file.display(), i + 1);
        let (name, row) = row(line).map_err(fail)?;
        rows.entry(name).or_default().push(row);
    }
    let (mut current, mut history) = (String::new(), String::new());
    for (name, rows) in &mut rows {
        rows.sort_by_key(|r| r.date);
        if rows.windows(2).any(|w| matches!(w, [a, b] if a.date == b.date)) {
            return Err(format!("{}: {name}: two rows of the same date", file.display()));
        }
        for row in rows.iter().filter(|r| r.iops.is_none()) {
            history.push_str(&format!(
                "HistoricBandwidth {{ name: {name:?}, date: {}, mbps: {} }},\n",
                row.date.expression(),
                row.mbps.1
            ));
        }
        let Some((row, iops)) = rows.iter().rev().find_map(|r| Some((r, r.iops?))) else {
            return Err(format!("{}: {name}: no row has IOPS", file.display()));
        };
        current.push_str(&format!(
            "InstanceType {{ name: {name:?}, ebs_optimized: EbsOptimized::{}, \
             baseline_mbps: {}, mbps_max: {}, baseline_iops: {}, iops_max: {} }},\n",
            row.support, row.mbps.0, row.mbps.1, iops.0, iops.1
        ));
    }
    Ok(format!(
        "static INSTANCES: &[InstanceType] = &[\n{current}];\n\n\
         static HISTORY: &[HistoricBandwidth] = &[\n{history}];\n"
    ))
}

fn row(line: &str) -> Result<(&str, Row)> {
    let fields: Vec<_> = line.split(',').collect();
    let [name, date, support, mbps, mbps_max, iops, iops_max, source] = fields[..] else {
        return Err(format!("{} fields instead of 8", fields.len()));
    };
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
    if !name.contains('.') || !name.bytes().all(legal) {
        return Err(format!("instance_type = {name:?}: not the name of an instance type"));
    }
    if source.is_empty() {
        return Err("source is missing".to_owned());
    }
    let date = Date::parse(date).ok_or(format!("date = {date:?}: expected YYYY-MM-DD"))?;
    let support = match support {
        "default" => "Default",
        "supported" => "Supported",
        _ => return Err(format!("ebs_optimized = {support:?}: expected default or supported")),
    };
    let mbps = pair("mbps", mbps, mbps_max)?;
    let iops = match (iops, iops_max) {
        ("", "") => None,
        _ => Some(pair("iops", iops, iops_max)?),
    };
    Ok((name, Row { date, support, mbps, iops }))
}

fn pair(what: &str, baseline: &str, max: &str) -> Result<(u32, u32)> {
    let number = |t: &str| t.parse().ok().filter(|n| (1..=100_000_000_u32).contains(n));
    match (number(baseline), number(max)) {
        (Some(baseline), Some(max)) if baseline <= max => Ok((baseline, max)),
        _ => Err(format!("baseline_{what} = {baseline:?}, max_{what} = {max:?}: not a range")),
    }
}
