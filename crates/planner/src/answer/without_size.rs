//! A plan of a volume whose size is not known: what its IOPS and MiB/s cost, and what each GiB
//! adds.

use super::{Rated, asked, assumed_ms, json, sentence, text};
use crate::case::Case;
use crate::format::{
    asked_words, basis_lines, currency, headroom_words, money, money_exact, waiting,
};
use crate::layout::Layout;
use crate::prices::{ListPrices, Prices};
use crate::refusal::Refusal;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_sim::text::{csv, or_dash, table};
use serde_json::{Value, json};

/// The capacity of the search, in GiB: each layout becomes as small as its IOPS and MiB/s allow.
const LEAST_GIB: u64 = 1;
/// A size by which the price of a GiB is known to the last digit of a list.
const PRICED_GIB: u32 = 1_000;
/// The next step.
const NEXT: &str = "the files do not say how large the volume is: add --capacity GIB for layouts \
                    with all costs, or the output of `aws ec2 describe-volumes` after the \
                    recording";

/// The cheapest layouts, each with the least size that its IOPS and MiB/s allow.
pub struct WithoutSize<'a> {
    case: &'a Case,
    rows: Vec<Row>,
}

impl Case {
    /// Returns whether the answer is one without a size: nothing says the size, no cost is bounded,
    /// and costs are those of a list.
    #[must_use]
    pub fn is_without_size(&self) -> bool {
        self.capacity_gib().is_none()
            && matches!(self.space.prices, Prices::List(_))
            && self.wishes.monthly_max.is_none()
    }

    /// Returns the cheapest layouts without the cost of their size.
    ///
    /// # Errors
    /// If too little was recorded, or if no layout carries it.
    ///
    /// # Panics
    /// If costs are not those of a list: see [`is_without_size`](Self::is_without_size).
    pub fn answer_without_size(&self) -> Result<WithoutSize<'_>, Refusal> {
        self.check_length()?;
        let wanted = self.wanted_with(LEAST_GIB);
        let Prices::List(prices) = &self.space.prices else {
            unreachable!("invariant: costs are those of a list")
        };
        let mut rows: Vec<Row> = Vec::new();
        for rated in self.cheapest(&wanted, self.wishes.layouts_max)? {
            let row = Row::of(rated, prices);
            // A smaller volume whose credits run out comes after the one that lasts.
            if rows.iter().all(|earlier| !earlier.differs_only_in_size(&row)) {
                rows.push(row);
            }
        }
        Ok(WithoutSize { case: self, rows })
    }
}

impl WithoutSize<'_> {
    /// Returns the answer in lines.
    #[must_use]
    pub fn text(&self) -> String {
        text_of(self.case, &self.rows)
    }

    /// Returns the layouts as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        let columns = columns(self.case);
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        csv(&columns, &cells(self.case, &self.rows))
    }

    /// Returns the answer as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json_of(self.case, &self.rows)
    }
}

/// A layout, as small as it can be.
struct Row {
    rated: Rated,
    /// The GiB of all volumes.
    least_gib: u64,
    /// Its monthly cost without that of its GiB, in millionths.
    beside_micros: u64,
    /// The monthly cost of a GiB, in millionths.
    gib_micros: u64,
}

impl Row {
    fn of(rated: Rated, prices: &ListPrices) -> Self {
        let layout = rated.found.layout;
        let priced = VolumeSpec { size_gib: PRICED_GIB, ..layout.each };
        let storage = prices.monthly(&priced).map_or(0, |cost| cost.storage);
        Self {
            least_gib: u64::from(layout.each.size_gib) * u64::from(layout.volumes),
            beside_micros: rated.found.total().saturating_sub(rated.found.monthly.storage),
            gib_micros: storage / u64::from(PRICED_GIB),
            rated,
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

fn cells(case: &Case, rows: &[Row]) -> Vec<Vec<String>> {
    let cells = |row: &Row| {
        let found = &row.rated.found;
        let mut cells = vec![row.volumes()];
        if case.space.instances.len() > 1 {
            cells.push(or_dash(found.layout.instance.map(|instance| instance.name)));
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

fn text_of(case: &Case, rows: &[Row]) -> String {
    let asked = asked(&case.demand);
    let mut text = text::recording(&case.trace);
    text += &format!("{}\n", asked_words(&asked));
    text += &headroom_words(case).map_or_else(String::new, |words| format!("{words}\n"));
    text += &text::notes(&case.trace);
    text += &format!("{}\n", basis_lines(case));
    if let Some(words) = sentence::not_shown(case) {
        text += &format!("{words}\n\n");
    } else if let Some(first) = rows.first() {
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
    text += &table(&columns, &cells(case, rows));
    text + &format!("\nnext: {NEXT}\n")
}

fn json_of(case: &Case, rows: &[Row]) -> Value {
    let currency = case.space.prices.currency();
    let layout = |row: &Row| {
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
        "evidence": json::evidence_json(case),
        "layouts": rows.iter().map(layout).collect::<Vec<_>>(),
        "next": NEXT,
    });
    json::with_basis(case, value)
}
