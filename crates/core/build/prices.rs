//! `data/prices/<date>.toml` to one `PriceList` expression each. The shapes are those of
//! `price.rs`.

use crate::reader::{Result, Section, VOLUME_TYPES, dated_files, expression};
use std::path::Path;

/// 1,000 dollars: a unit price beyond it is taken for a typing error.
const MICRO_USD_MAX: u64 = 1_000_000_000;

/// The text of `prices.rs` in the build's output folder.
pub fn generate(folder: &Path) -> Result<String> {
    let files = dated_files(folder)?;
    let lists: Vec<_> = files.iter().map(|f| price_list(f)).collect::<Result<_>>()?;
    let count = lists.len();
    let mut out = format!("static PRICES: [PriceList; {count}] = [\n{}];\n\n", lists.join(",\n"));
    out.push_str(&format!("static NEWEST: &PriceList = &PRICES[{}];\n", count - 1));
    Ok(out)
}

fn price_list(file: &Path) -> Result<String> {
    let (mut top, date) = Section::open(file)?;
    let region = top.text("region")?;
    let mut types = String::new();
    for (key, name) in VOLUME_TYPES {
        if let Some(section) = top.section_if_any(key)? {
            types.push_str(&type_prices(name, section)?);
            types.push_str(", ");
        }
    }
    let fast_restore = match top.section_if_any("fast_restore")? {
        None => "None".to_owned(),
        Some(mut s) => {
            let hour = s.number("hour", 1..=MICRO_USD_MAX)?;
            let minutes = s.number("minutes_min", 1..=1_440)?;
            s.finish()?;
            format!("Some(FastRestorePrice {{ hour: {hour}, minutes_min: {minutes} }})")
        }
    };
    let snapshot = match top.section_if_any("snapshot")? {
        None => "None".to_owned(),
        Some(mut s) => {
            let gib_month = s.number("gib_month", 1..=MICRO_USD_MAX)?;
            let archive = s.number("archive_gib_month", 1..=MICRO_USD_MAX)?;
            let retrieval = s.number("archive_retrieval_gib", 1..=MICRO_USD_MAX)?;
            let days_min = s.number("archive_days_min", 1..=366)?;
            s.finish()?;
            format!(
                "Some(SnapshotPrices {{ gib_month: {gib_month}, archive_gib_month: {archive}, \
                 archive_retrieval_gib: {retrieval}, archive_days_min: {days_min} }})"
            )
        }
    };
    top.finish()?;
    Ok(format!(
        "PriceList {{ date: {}, region: {region:?}, types: &[{types}], \
         fast_restore: {fast_restore}, snapshot: {snapshot} }}",
        expression(date)
    ))
}

fn type_prices(name: &str, mut s: Section) -> Result<String> {
    let gib_month = s.number("gib_month", 1..=MICRO_USD_MAX)?;
    let million_ios = s.number_if_any("million_ios", 1..=MICRO_USD_MAX)?.unwrap_or(0);
    let iops = tiers(&mut s, "iops_month")?;
    let mibps = tiers(&mut s, "mibps_month")?;
    s.finish()?;
    Ok(format!(
        "TypePrices {{ volume_type: VolumeType::{name}, gib_month: {gib_month}, \
         iops_month: &[{iops}], mibps_month: &[{mibps}], million_ios: {million_ios} }}"
    ))
}

fn tiers(s: &mut Section, key: &str) -> Result<String> {
    if !s.has(key) {
        return Ok(String::new());
    }
    let mut out = String::new();
    let mut from = 1;
    let mut sections = s.list(key)?;
    let last = sections.len() - 1;
    for (i, tier) in sections.iter_mut().enumerate() {
        let end = u64::from(u32::MAX);
        let up_to = if i == last { end } else { tier.number("up_to", from..=end - 1)? };
        let price = tier.number("price", 0..=MICRO_USD_MAX)?;
        out.push_str(&format!("Tier {{ up_to: {up_to}, price: {price} }}, "));
        from = up_to + 1;
    }
    sections.into_iter().try_for_each(Section::finish)?;
    Ok(out)
}
