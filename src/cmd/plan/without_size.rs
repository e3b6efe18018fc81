//! A plan of a volume whose size is not known: what its IOPS and MiB/s cost, and what each GiB
//! adds.

use super::format::{
    asked_words, basis_lines, currency, headroom_words, money, money_exact, waiting,
};
use super::input::{self, Case};
use super::{assumed_ms, cheapest, json, text};
use crate::cli::{Plan, PlanFormat};
use evenkeel_client::output::{self, Failure};
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::answer::{self, Rated};
use evenkeel_planner::layout::Layout;
use evenkeel_planner::prices::{ListPrices, Prices};
use serde_json::{Value, json};

/// The capacity of the search, in GiB: each layout becomes as small as its IOPS and MiB/s allow.
const LEAST_GIB: u64 = 1;
/// A size by which the price of a GiB is known to the last digit of a list.
const PRICED_GIB: u32 = 1_000;
/// The next step.
const NEXT: &str = "the files do not say how large the volume is: add --capacity GIB for layouts \
                    with all costs, or the output of `aws ec2 describe-volumes` after the \
                    recording";

/// Returns whether this is the answer: the size is not known, and costs are those of a list.
pub fn is_possible(arguments: &Plan, case: &Case) -> bool {
    let wanted = &arguments.wanted;
    let is_listing = arguments.page.html.is_none() && arguments.output.format != PlanFormat::Html;
    input::capacity(wanted, case).is_none()
        && matches!(case.space.prices, Prices::List(_))
        && wanted.max_monthly.is_none()
        && is_listing
}

pub fn run(arguments: &Plan, case: &Case) -> Result<(), Failure> {
    let wanted = input::wanted_with(&arguments.wanted, case, LEAST_GIB);
    let rated = cheapest(case, &wanted, arguments.top.into())?;
    let Prices::List(prices) = &case.space.prices else {
        unreachable!("invariant: costs are those of a list")
    };
    let mut rows: Vec<Row<'_>> = Vec::new();
    for rated in &rated {
        let row = Row::of(rated, prices);
        // A smaller volume whose credits run out comes after the one that lasts.
        if rows.iter().all(|earlier| !earlier.differs_only_in_size(&row)) {
            rows.push(row);
        }
    }
    output::print(&match arguments.output.format {
        PlanFormat::Csv => {
            let columns = columns(case);
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            output::csv(&columns, &cells(case, &rows))
        }
        PlanFormat::Json => output::json(&json_of(case, &rows)),
        PlanFormat::Text | PlanFormat::Html | PlanFormat::Junit | PlanFormat::Markdown => {
            text_of(case, &rows)
        }
    })
}

/// A layout, as small as it can be.
struct Row<'a> {
    rated: &'a Rated,
    /// The GiB of all volumes.
    least_gib: u64,
    /// Its monthly cost without that of its GiB, in millionths.
    beside_micros: u64,
    /// The monthly cost of a GiB, in millionths.
    gib_micros: u64,
}

impl<'a> Row<'a> {
    fn of(rated: &'a Rated, prices: &ListPrices) -> Self {
        let layout = &rated.found.layout;
        let priced = VolumeSpec { size_gib: PRICED_GIB, ..layout.each };
        let storage = prices.monthly(&priced).map_or(0, |cost| cost.storage);
        Self {
            rated,
            least_gib: u64::from(layout.each.size_gib) * u64::from(layout.volumes),
            beside_micros: rated.found.total().saturating_sub(rated.found.monthly.storage),
            gib_micros: storage / u64::from(PRICED_GIB),
        }
    }

    fn differs_only_in_size(&self, other: &Self) -> bool {
        let instance = |row: &Self| row.rated.found.layout.instance.map(|instance| instance.name);
        self.volumes() == other.volumes() && instance(self) == instance(other)
    }

    /// Returns the volumes without their size. IOPS that follow from the size are left out.
    fn volumes(&self) -> String {
        let Layout { volumes, each, .. } = self.rated.found.layout;
        let times = if volumes > 1 { format!("{volumes} x ") } else { String::new() };
        let mut words = format!("{times}{}", each.volume_type);
        let request = each.request();
        if let Some(iops) = request.iops {
            words += &format!(", {iops} IOPS");
        }
        if let Some(mibps) = request.throughput_mibps {
            words += &format!(", {mibps} MiB/s");
        }
        words
    }
}

fn columns(case: &Case) -> Vec<String> {
    let currency = currency(case);
    let mut columns = vec!["VOLUMES".to_owned()];
    if case.space.instances.len() > 1 {
        columns.push("INSTANCE".to_owned());
    }
    columns.extend([
        "FROM GIB".to_owned(),
        format!("{currency}/MONTH WITHOUT GIB"),
        format!("{currency}/MONTH PER GIB"),
        "THROTTLED S/DAY".to_owned(),
    ]);
    columns
}

fn cells(case: &Case, rows: &[Row<'_>]) -> Vec<Vec<String>> {
    let cells = |row: &Row<'_>| {
        let found = &row.rated.found;
        let mut cells = vec![row.volumes()];
        if case.space.instances.len() > 1 {
            cells.push(output::or_dash(found.layout.instance.map(|instance| instance.name)));
        }
        cells.extend([
            row.least_gib.to_string(),
            money(row.beside_micros),
            money_exact(row.gib_micros),
            waiting(case, assumed_ms(case, found)),
        ]);
        cells
    };
    rows.iter().map(cells).collect()
}

fn text_of(case: &Case, rows: &[Row<'_>]) -> String {
    let asked = answer::asked(&case.demand);
    let mut text = text::recording(&case.trace);
    text += &format!("{}\n", asked_words(&asked));
    text += &headroom_words(case).map_or_else(String::new, |words| format!("{words}\n"));
    text += &text::notes(&case.trace);
    text += &format!("{}\n", basis_lines(case));
    if let Some(first) = rows.first() {
        text += &format!(
            "{}: {} {} a month and {} for each GiB, from {} GiB on\n\n",
            first.volumes(),
            money(first.beside_micros),
            currency(case),
            money_exact(first.gib_micros),
            first.least_gib
        );
    }
    let columns = columns(case);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    text += &output::table(&columns, &cells(case, rows));
    text + &format!("\nnext: {NEXT}\n")
}

fn json_of(case: &Case, rows: &[Row<'_>]) -> Value {
    let currency = case.space.prices.currency();
    let layout = |row: &Row<'_>| {
        let found = &row.rated.found;
        let each = found.layout.each;
        let mut value = json!({
            "volumes": found.layout.volumes,
            "instance": found.layout.instance.map(|instance| instance.name),
            "volume_type": each.volume_type.to_string(),
            "iops": each.request().iops,
            "throughput_mibps": each.request().throughput_mibps,
            "least_gib": row.least_gib,
            "throttled_ms_per_day": assumed_ms(case, found),
        });
        value[json::micro_key("monthly_without_gib", currency)] = json!(row.beside_micros);
        value[json::micro_key("monthly_per_gib", currency)] = json!(row.gib_micros);
        value
    };
    let value = json!({
        "schema": "evenkeel.plan.without_size/1",
        "trace": json::trace_json(&case.trace),
        "headroom_percent": case.headroom_percent,
        "layouts": rows.iter().map(layout).collect::<Vec<_>>(),
        "next": NEXT,
    });
    json::with_basis(case, value)
}
