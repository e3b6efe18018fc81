//! Converts each `data/latency/<date>.toml` to a `Latencies` expression. The types are those of
//! `feel.rs`.

use crate::reader::{Result, Section, VOLUME_TYPES, dated_files, expression};
use std::path::Path;

/// The quantiles of a distribution: key, and parts of a million.
const QUANTILES: [(&str, u32); 9] = [
    ("min", 0),
    ("p10", 100_000),
    ("p50", 500_000),
    ("p80", 800_000),
    ("p90", 900_000),
    ("p99", 990_000),
    ("p99_9", 999_000),
    ("p99_99", 999_900),
    ("max", 1_000_000),
];
/// Maximum of a latency in microseconds: a minute, as that of a fault.
const US_MAX: u64 = 60_000_000;

/// Returns the text of `latencies.rs` in the build's output folder.
pub fn generate(folder: &Path) -> Result<String> {
    let files = dated_files(folder, "toml")?;
    let tables: Vec<_> = files.iter().map(|file| table(file)).collect::<Result<_>>()?;
    let count = tables.len();
    Ok(format!("static LATENCIES: [Latencies; {count}] = [\n{}];\n", tables.join(",\n")))
}

fn table(file: &Path) -> Result<String> {
    let (mut top, date) = Section::open(file)?;
    let mut types = String::new();
    for (key, _) in VOLUME_TYPES {
        let mut section = top.section(key)?;
        let per_mib = section.number("us_per_mib", 0..=US_MAX)?;
        let read = distribution(section.section("read")?)?;
        let write = distribution(section.section("write")?)?;
        section.finish()?;
        types.push_str(&format!(
            "TypeLatency {{ read: {read}, write: {write}, us_per_mib: {per_mib} }}, "
        ));
    }
    let mut cold = top.section("cold")?;
    let block_bytes = cold.number("block_kib", 4..=65_536)? * 1_024;
    let default_mibps = cold.number("default_mibps", 1..=100_000)?;
    let fetch = distribution(cold.section("fetch")?)?;
    cold.finish()?;
    top.finish()?;
    let date = expression(date);
    Ok(format!(
        "Latencies {{ date: {date}, types: [{types}], block_bytes: {block_bytes}, \
         default_mibps: {default_mibps}, fetch: {fetch} }}"
    ))
}

fn distribution(mut section: Section) -> Result<String> {
    let mut points = String::new();
    let mut before = 0;
    for (key, ppm) in QUANTILES {
        let us = section.number(key, 1..=US_MAX)?;
        if us < before {
            return Err(section.wrong(key, us, "below the quantile before it"));
        }
        before = us;
        points.push_str(&format!("({ppm}, {us}), "));
    }
    section.finish()?;
    Ok(format!("Distribution {{ points: [{points}] }}"))
}
