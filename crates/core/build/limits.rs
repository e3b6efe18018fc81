//! Converts each `data/limits/<date>.toml` to a `Rules` expression. The types are those of
//! `volume/rules.rs`.

use crate::reader::{Result, Section, VOLUME_TYPES, dated_files, expression};
use std::path::Path;

/// Plausible limits: a larger number is taken for a typing error.
const SIZE_GIB_MAX: u64 = 1 << 20;
const IOPS_MAX: u64 = 10_000_000;
const MIBPS_MAX: u64 = 1_000_000;

/// Result of one file: its Rust expression, and the types in their order there.
struct RuleBook {
    expression: String,
    types: Vec<&'static str>,
}

/// Returns the text of `limits.rs` in the build's output folder.
pub fn generate(folder: &Path) -> Result<String> {
    let mut books = Vec::new();
    for file in dated_files(folder, "toml")? {
        books.push(rule_book(&file)?);
    }
    let count = books.len();
    let expressions: Vec<_> = books.iter().map(|b| b.expression.as_str()).collect();
    let mut out = format!("static RULES: [Rules; {count}] = [\n{}];\n\n", expressions.join(",\n"));
    out.push_str(&format!("static NEWEST: &Rules = &RULES[{}];\n\n", count - 1));
    out.push_str("fn first_rules(t: VolumeType) -> &'static TypeRules {\n    match t {\n");
    for (key, name) in VOLUME_TYPES {
        let places = books.iter().enumerate();
        let mut found =
            places.filter_map(|(i, b)| Some((i, b.types.iter().position(|n| *n == name)?)));
        let (i, j) =
            found.next().ok_or(format!("{}: no file has the type {key}", folder.display()))?;
        out.push_str(&format!("VolumeType::{name} => &RULES[{i}].types[{j}],\n"));
    }
    out.push_str("    }\n}\n");
    Ok(out)
}

fn rule_book(file: &Path) -> Result<RuleBook> {
    let (mut top, date) = Section::open(file)?;
    let modify = modify(top.section("modify")?)?;
    let mut types = Vec::new();
    let mut list = Vec::new();
    for (key, name) in VOLUME_TYPES {
        if let Some(section) = top.section_if_any(key)? {
            types.push(name);
            list.push(type_rules(name, section)?);
        }
    }
    top.finish()?;
    if types.is_empty() {
        return Err(format!("{}: no volume type at all", file.display()));
    }
    let expression = format!(
        "Rules {{ date: {}, modify: {modify}, types: &[{}] }}",
        expression(date),
        list.join(", ")
    );
    Ok(RuleBook { expression, types })
}

fn modify(mut s: Section) -> Result<String> {
    let policies = [("unavailable", 0), ("cooldown", 1), ("rolling", 2)];
    let policy = match s.word("policy", &policies)? {
        0 => {
            s.finish()?;
            return Ok("None".to_owned());
        }
        1 => format!("ModifyPolicy::Cooldown {{ hours: {} }}", s.number("hours", 1..=720)?),
        _ => format!(
            "ModifyPolicy::Rolling {{ modifications_max: {}, hours: {} }}",
            s.number("modifications_max", 1..=1_000)?,
            s.number("hours", 1..=720)?
        ),
    };
    let iops = s.number("iops_on_type_change", 1..=IOPS_MAX)?;
    let standard = s.flag("standard_convertible")?;
    s.finish()?;
    Ok(format!(
        "Some(ModifyRules {{ policy: {policy}, iops_on_type_change: {iops}, \
         standard_convertible: {standard} }})"
    ))
}

/// The kinds of the IOPS and the throughput rule, to check that they are consistent.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Ceiling,
    Uncounted,
    FromSize,
    Provisioned { max: u64 },
    Piecewise,
    Credits,
}

fn type_rules(name: &str, mut s: Section) -> Result<String> {
    let mut size = s.section("size_gib")?;
    let size_min = size.number("min", 1..=SIZE_GIB_MAX)?;
    let size_max = size.number("max", size_min..=SIZE_GIB_MAX)?;
    size.finish()?;
    let boot = s.flag("boot")?;
    let multi_attach =
        s.word("multi_attach", &[("no", "No"), ("fixed", "Fixed"), ("switchable", "Switchable")])?;
    let errors = s.word("limit_errors", &[("separate", "Separate"), ("combined", "Combined")])?;
    let counting = counting(s.section("counting")?)?;
    let tolerance_ns = s.number("tolerance_ms", 1..=1_000)? * 1_000_000;
    let (iops, iops_shape) = iops(s.section("iops")?)?;
    let (throughput, throughput_shape) = throughput(s.section("throughput")?, iops_shape)?;
    let reservation = reservation(&mut s, iops_shape, throughput_shape)?;
    if errors == "Combined" && !matches!(iops_shape, Shape::Provisioned { .. }) {
        return Err(s.wrong("limit_errors", "combined", "only where IOPS are provisioned"));
    }
    let promise = promise(s.section("promise")?)?;
    s.finish()?;
    Ok(format!(
        "TypeRules {{ volume_type: VolumeType::{name}, size_gib_min: {size_min}, \
         size_gib_max: {size_max}, boot: {boot}, multi_attach: MultiAttach::{multi_attach}, \
         limit_errors: LimitErrors::{errors}, reservation: Reservation::{reservation}, \
         counting: {counting}, tolerance: Duration {{ ns: {tolerance_ns} }}, iops: {iops}, \
         throughput: {throughput}, promise: {promise} }}"
    ))
}

fn counting(mut s: Section) -> Result<String> {
    let unit = s.number("unit_kib", 1..=4_096)? * 1_024;
    let merge = s.number("merge_min_bytes", 1..=unit)?;
    let whole = s.flag("whole_units")?;
    s.finish()?;
    Ok(format!(
        "CountingRule {{ unit_bytes: {unit}, merge_bytes_min: {merge}, \
         charge_whole_units: {whole} }}"
    ))
}

fn reservation(s: &mut Section, iops: Shape, throughput: Shape) -> Result<&'static str> {
    let (name, fits) = s.word(
        "reservation",
        &[
            ("nothing", ("Nothing", true)),
            ("provisioned", ("Provisioned", matches!(iops, Shape::Provisioned { .. }))),
            ("baseline", ("Baseline", iops == Shape::FromSize)),
            ("base_throughput", ("BaseThroughput", throughput == Shape::Credits)),
        ],
    )?;
    let why = "the type has nothing of that kind to reserve";
    if fits { Ok(name) } else { Err(s.wrong("reservation", name, why)) }
}

fn iops(mut s: Section) -> Result<(String, Shape)> {
    let rules = [("ceiling", 0), ("uncounted", 1), ("from_size", 2), ("provisioned", 3)];
    let (rule, shape) = match s.word("rule", &rules)? {
        0 => {
            let max = s.number("max", 1..=IOPS_MAX)?;
            (format!("IopsRule::Ceiling {{ max: {max} }}"), Shape::Ceiling)
        }
        1 => ("IopsRule::Uncounted".to_owned(), Shape::Uncounted),
        2 => {
            let per_gib = s.number("per_gib", 1..=10_000)?;
            let min = s.number("min", 1..=IOPS_MAX)?;
            let max = s.number("max", min..=IOPS_MAX)?;
            let burst = s.number("burst", min..=IOPS_MAX)?;
            let credits = s.number("credits", 1..=1_000_000_000)?;
            let rule = format!(
                "IopsRule::FromSize {{ per_gib: {per_gib}, min: {min}, max: {max}, \
                 burst: {burst}, credits: {credits} }}"
            );
            (rule, Shape::FromSize)
        }
        _ => {
            let min = s.number("min", 1..=IOPS_MAX)?;
            let max = s.number("max", min..=IOPS_MAX)?;
            let default = s.number_if_any("default", min..=max)?;
            let per_gib = s.number("per_gib", 1..=10_000)?;
            let any_size = s.number_if_any("any_size", min..=max)?.unwrap_or(0);
            let rule = format!(
                "IopsRule::Provisioned {{ min: {min}, max: {max}, default: {default:?}, \
                 per_gib: {per_gib}, any_size: {any_size} }}"
            );
            (rule, Shape::Provisioned { max })
        }
    };
    s.finish()?;
    Ok((rule, shape))
}

fn throughput(mut s: Section, iops: Shape) -> Result<(String, Shape)> {
    let rules = [("provisioned", 0), ("piecewise", 1), ("credits", 2)];
    let (rule, shape) = match s.word("rule", &rules)? {
        0 => {
            let min = s.number("min_mibps", 1..=MIBPS_MAX)?;
            let max = s.number("max_mibps", min..=MIBPS_MAX)?;
            let default = s.number("default_mibps", min..=max)?;
            let (n, d) = s.ratio("mibps_per_iops")?;
            let Shape::Provisioned { .. } = iops else {
                return Err(s.wrong("rule", "provisioned", "needs provisioned IOPS"));
            };
            let rule = format!(
                "ThroughputRule::Provisioned {{ min_mibps: {min}, max_mibps: {max}, \
                 default_mibps: {default}, mibps_per_iops: {} }}",
                ratio(n, d)
            );
            (rule, Shape::Provisioned { max })
        }
        1 => (piecewise(&mut s, iops)?, Shape::Piecewise),
        _ => {
            if iops != Shape::Uncounted {
                return Err(s.wrong("rule", "credits", "needs iops.rule = \"uncounted\""));
            }
            let base = s.number("base_mibps_per_tib", 1..=10_000)?;
            let base_max = s.number("base_max_mibps", base..=MIBPS_MAX)?;
            let burst = s.number("burst_mibps_per_tib", base..=10_000)?;
            let burst_max = s.number("burst_max_mibps", base_max..=MIBPS_MAX)?;
            let credit = s.number("credit_tib_per_tib", 1..=100)?;
            let rule = format!(
                "ThroughputRule::Credits {{ base_mibps_per_tib: {base}, \
                 base_max_mibps: {base_max}, burst_mibps_per_tib: {burst}, \
                 burst_max_mibps: {burst_max}, credit_tib_per_tib: {credit} }}"
            );
            (rule, Shape::Credits)
        }
    };
    s.finish()?;
    Ok((rule, shape))
}

/// One piece as a ratio of MiB/s: per IOPS, or constant.
#[derive(Clone, Copy)]
struct Piece {
    up_to: u64,
    numerator: u64,
    denominator: u64,
    per_iops: bool,
}

impl Piece {
    /// Returns MiB/s x denominator and the denominator at `x` IOPS.
    fn at(self, x: u64) -> (u64, u64) {
        (if self.per_iops { self.numerator * x } else { self.numerator }, self.denominator)
    }
}

fn piecewise(s: &mut Section, iops: Shape) -> Result<String> {
    let by_iops = s.word("by", &[("size_gib", false), ("iops", true)])?;
    let max = s.number("max_mibps", 1..=MIBPS_MAX)?;
    let x_max = match iops {
        Shape::Provisioned { max } if by_iops => max,
        _ if by_iops => return Err(s.wrong("by", "iops", "needs provisioned IOPS")),
        _ => SIZE_GIB_MAX,
    };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut sections = s.list("pieces")?;
    let last = sections.len() - 1;
    for (i, p) in sections.iter_mut().enumerate() {
        let from = pieces.last().map_or(1, |before| before.up_to + 1);
        let up_to = if i == last { x_max } else { p.number("up_to", from..=x_max)? };
        let per_iops = p.has("mibps_per_iops");
        let (numerator, denominator) = match per_iops {
            true if !by_iops => return Err(p.wrong("mibps_per_iops", "", "needs by = \"iops\"")),
            true => p.ratio("mibps_per_iops")?,
            false => (p.number("mibps", 1..=max)?, 1),
        };
        let piece = Piece { up_to, numerator, denominator, per_iops };
        if let Some(before) = pieces.last() {
            let ((a, b), (c, d)) = (before.at(before.up_to), piece.at(before.up_to + 1));
            if a * d > c * b {
                let why = format!("less throughput than the piece before it, above {}", from - 1);
                return Err(s.wrong("pieces", format!("[{i}]"), why));
            }
        }
        pieces.push(piece);
    }
    sections.into_iter().try_for_each(Section::finish)?;
    let pieces: Vec<_> = pieces.iter().map(|p| piece_expression(*p)).collect();
    let by = if by_iops { "Iops" } else { "SizeGib" };
    Ok(format!(
        "ThroughputRule::Piecewise {{ by: Axis::{by}, pieces: &[{}], max_mibps: {max} }}",
        pieces.join(", ")
    ))
}

fn piece_expression(p: Piece) -> String {
    let rate = if p.per_iops {
        format!("PieceRate::MibpsPerIops({})", ratio(p.numerator, p.denominator))
    } else {
        format!("PieceRate::Mibps({})", p.numerator)
    };
    format!("Piece {{ up_to: {}, rate: {rate} }}", p.up_to)
}

fn ratio(numerator: u64, denominator: u64) -> String {
    format!("Ratio {{ numerator: {numerator}, denominator: {denominator} }}")
}

fn promise(mut s: Section) -> Result<String> {
    let consistency = match s.number_if_any("delivered_percent", 1..=100)? {
        None => "None".to_owned(),
        Some(percent) => format!(
            "Some(Consistency {{ delivered_percent: {percent}, of_time_permille: {}, \
             of: Measure::{} }})",
            s.number("of_time_permille", 1..=1_000)?,
            s.word("of", &[("iops", "Iops"), ("throughput", "Throughput")])?
        ),
    };
    let latency = s.text("latency")?;
    let durability = match s.section_if_any("durability_ppm")? {
        None => "None".to_owned(),
        Some(mut range) => {
            let min = range.number("min", 1..=1_000_000)?;
            let max = range.number("max", min..=1_000_000)?;
            range.finish()?;
            format!("Some(Durability {{ min_ppm: {min}, max_ppm: {max} }})")
        }
    };
    s.finish()?;
    Ok(format!(
        "Promise {{ consistency: {consistency}, latency: {latency:?}, durability: {durability} }}"
    ))
}
