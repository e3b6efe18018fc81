//! Converts each `data/prices/<date>.toml`, and each row of `data/regions/<date>.csv`, to a
//! `PriceList` expression. The types are those of `price.rs`.

use crate::date::Date;
use crate::reader::{self, Result, Section, VOLUME_TYPES, dated_files, expression, read};
use std::path::Path;

const REGION_HEADER: &str = "region,st1_gib,sc1_gib,gp2_gib,gp3_gib,gp3_iops,gp3_gibps,io1_gib,\
                             io1_iops,io2_gib,io2_iops,io2_iops_tier2,io2_iops_tier3";
/// 1,000 dollars: a unit price beyond it is taken for a typing error.
const MICRO_USD_MAX: u64 = 1_000_000_000;

/// Returns the text of `prices.rs` in the build's output folder.
pub fn generate(folder: &Path, regions: &Path) -> Result<String> {
    let files = dated_files(folder, "toml")?;
    let lists: Vec<_> = files.iter().map(|f| price_list(f)).collect::<Result<_>>()?;
    let count = lists.len();
    let mut out = format!("static PRICES: [PriceList; {count}] = [\n{}];\n\n", lists.join(",\n"));
    out.push_str(&format!("static NEWEST: &PriceList = &PRICES[{}];\n\n", count - 1));
    let mut others = Vec::new();
    for file in dated_files(regions, "csv")? {
        others.extend(region_lists(&file)?);
    }
    let count = others.len();
    let others = others.join(",\n");
    out.push_str(&format!("static REGIONS: [PriceList; {count}] = [\n{others}];\n"));
    Ok(out)
}

/// Returns the list of each region of a file, which has one line of each.
fn region_lists(file: &Path) -> Result<Vec<String>> {
    let text = read(file)?;
    let stem = file.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let date = reader::date(&stem);
    let date = date.ok_or_else(|| format!("{}: expected <date>.csv", file.display()))?;
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).enumerate();
    if lines.next().is_none_or(|(_, header)| header != REGION_HEADER) {
        return Err(format!("{}: expected the header \"{REGION_HEADER}\"", file.display()));
    }
    let list = |(_, line): (usize, &str)| {
        region_list(line, date).map_err(|why| format!("{}: {line}: {why}", file.display()))
    };
    lines.map(list).collect()
}

fn region_list(line: &str, date: Date) -> Result<String> {
    let cells: Vec<&str> = line.split(',').collect();
    let [region, prices @ ..] = cells.as_slice() else { return Err("no region".to_owned()) };
    let price = |cell: &&str| match cell.parse::<u64>() {
        Ok(price @ 1..=MICRO_USD_MAX) => Ok(price),
        _ => Err(format!("{cell}: expected millionths of a dollar")),
    };
    let [st1, sc1, gp2, gp3, gp3_iops, gp3_gibps, io1, io1_iops, io2, io2_iops, tiers @ ..] =
        prices
    else {
        return Err(format!("{} cells", cells.len()));
    };
    let simple = |name: &str, gib: &&str, iops: String, gibps: String| {
        Ok::<_, String>(of_type(name, price(gib)?, &iops, &gibps, 0))
    };
    let free = |up_to: u32, price: u64| {
        format!("Tier {{ up_to: {up_to}, price: 0 }}, {}", tier_text(u32::MAX, price))
    };
    // The tiers end before one without a known price.
    let io2_tiers = match tiers {
        ["", ""] => tier_text(32_000, price(io2_iops)?),
        [second, third] => [
            tier_text(32_000, price(io2_iops)?),
            tier_text(64_000, price(second)?),
            tier_text(u32::MAX, price(third)?),
        ]
        .concat(),
        _ => return Err(format!("{} cells", cells.len())),
    };
    let types = [
        simple("St1", st1, String::new(), String::new())?,
        simple("Sc1", sc1, String::new(), String::new())?,
        simple("Gp2", gp2, String::new(), String::new())?,
        simple("Gp3", gp3, free(3_000, price(gp3_iops)?), free(125, price(gp3_gibps)?))?,
        simple("Io1", io1, tier_text(u32::MAX, price(io1_iops)?), String::new())?,
        simple("Io2", io2, io2_tiers, String::new())?,
    ];
    let types = types.join(", ");
    Ok(format!(
        "PriceList {{ date: {}, region: Cow::Borrowed({region:?}), \
         currency: Cow::Borrowed(\"USD\"), types: Cow::Borrowed(&[{types}]), \
         fast_restore: None, snapshot: None }}",
        expression(date)
    ))
}

fn tier_text(up_to: u32, price: u64) -> String {
    format!("Tier {{ up_to: {up_to}, price: {price} }}, ")
}

fn of_type(name: &str, gib_month: u64, iops: &str, gibps: &str, million_ios: u64) -> String {
    format!(
        "TypePrices {{ volume_type: VolumeType::{name}, gib_month: {gib_month}, \
         iops_month: Cow::Borrowed(&[{iops}]), gibps_month: Cow::Borrowed(&[{gibps}]), \
         million_ios: {million_ios} }}"
    )
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
        "PriceList {{ date: {}, region: Cow::Borrowed({region:?}), \
         currency: Cow::Borrowed(\"USD\"), types: Cow::Borrowed(&[{types}]), \
         fast_restore: {fast_restore}, snapshot: {snapshot} }}",
        expression(date)
    ))
}

fn type_prices(name: &str, mut s: Section) -> Result<String> {
    let gib_month = s.number("gib_month", 1..=MICRO_USD_MAX)?;
    let million_ios = s.number_if_any("million_ios", 1..=MICRO_USD_MAX)?.unwrap_or(0);
    let iops = tiers(&mut s, "iops_month")?;
    let gibps = tiers(&mut s, "gibps_month")?;
    s.finish()?;
    Ok(of_type(name, gib_month, &iops, &gibps, million_ios))
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
        let last = u32::try_from(up_to).expect("invariant: within u32");
        out.push_str(&tier_text(last, price));
        from = up_to + 1;
    }
    sections.into_iter().try_for_each(Section::finish)?;
    Ok(out)
}
