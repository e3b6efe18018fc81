//! Converts `data/instances.csv` to the table of instance types. The newest row with IOPS of a type
//! is the current one; rows without IOPS are from the years in which only the bandwidth was
//! published.

use crate::date::Date;
use crate::reader::{self, Result, read};
use std::collections::BTreeMap;
use std::path::Path;

const HEADER: &str = "instance_type,date,ebs_optimized,baseline_mbps,max_mbps,baseline_iops,\
                      max_iops,max_attachments,attachment_limit,source";

/// One checked row.
struct Row {
    date: Date,
    support: &'static str,
    mbps: (u32, u32),
    /// IOPS (sustained, maximum), maximum number of volumes, and the scope of that limit.
    limits: Option<((u32, u32), u32, &'static str)>,
}

/// Returns the text of `instances.rs` in the build's output folder.
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
    let mut current = String::new();
    let mut history = String::new();
    for (name, rows) in &mut rows {
        rows.sort_by_key(|r| r.date);
        if rows.windows(2).any(|w| matches!(w, [a, b] if a.date == b.date)) {
            return Err(format!("{}: {name}: two rows of the same date", file.display()));
        }
        for row in rows.iter().filter(|r| r.limits.is_none()) {
            history.push_str(&format!(
                "HistoricBandwidth {{ name: {name:?}, date: {}, mbps: {} }},\n",
                reader::expression(row.date),
                row.mbps.1
            ));
        }
        let newest = rows.iter().rev().find_map(|r| Some((r, r.limits?)));
        let Some((row, (iops, attachments, kind))) = newest else {
            return Err(format!("{}: {name}: no row has IOPS", file.display()));
        };
        current.push_str(&format!(
            "InstanceType {{ name: {name:?}, ebs_optimized: EbsOptimized::{}, \
             baseline_mbps: {}, mbps_max: {}, baseline_iops: {}, iops_max: {}, \
             attachments_max: {attachments}, attachment_limit: AttachmentLimit::{kind} }},\n",
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
    let [name, date, support, mbps, mbps_max, iops, iops_max, attachments, kind, source] =
        fields[..]
    else {
        return Err(format!("{} fields instead of 10", fields.len()));
    };
    let legal = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
    if !name.contains('.') || !name.bytes().all(legal) {
        return Err(format!("instance_type = {name:?}: not the name of an instance type"));
    }
    if source.is_empty() {
        return Err("source is missing".to_owned());
    }
    let date = reader::date(date).ok_or(format!("date = {date:?}: expected YYYY-MM-DD"))?;
    let support = match support {
        "default" => "Default",
        "supported" => "Supported",
        _ => return Err(format!("ebs_optimized = {support:?}: expected default or supported")),
    };
    let mbps = pair("mbps", mbps, mbps_max)?;
    let limits = match (iops, iops_max, attachments, kind) {
        ("", "", "", "") => None,
        _ => {
            let (most, kind) = attachment_limit(attachments, kind)?;
            Some((pair("iops", iops, iops_max)?, most, kind))
        }
    };
    Ok((name, Row { date, support, mbps, limits }))
}

fn attachment_limit(most: &str, kind: &str) -> Result<(u32, &'static str)> {
    let number = most.parse().ok().filter(|most| (1..=1_000_u32).contains(most));
    let number =
        number.ok_or(format!("max_attachments = {most:?}: expected a whole number, 1 to 1000"))?;
    match kind {
        "shared" => Ok((number, "Shared")),
        "dedicated" => Ok((number, "Dedicated")),
        _ => Err(format!("attachment_limit = {kind:?}: expected shared or dedicated")),
    }
}

fn pair(what: &str, baseline: &str, max: &str) -> Result<(u32, u32)> {
    let number = |t: &str| t.parse().ok().filter(|n| (1..=100_000_000_u32).contains(n));
    match (number(baseline), number(max)) {
        (Some(baseline), Some(max)) if baseline <= max => Ok((baseline, max)),
        _ => Err(format!("baseline_{what} = {baseline:?}, max_{what} = {max:?}: not a range")),
    }
}
