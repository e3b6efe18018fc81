//! Reads offer files in CSV: several lines of description, then a header, then one line for each
//! price.

use std::io::BufRead;

use super::{Offers, Row};
use crate::read::{Broken, Lines, cells};

/// Maximum number of lines before the header.
const LINES_BEFORE_MAX: u64 = 20;

/// The indices of the columns. Others are ignored.
struct Columns {
    term: Option<usize>,
    usage_type: usize,
    region: Option<usize>,
    unit: usize,
    price: usize,
    currency: Option<usize>,
    date: Option<usize>,
}

impl Columns {
    /// Returns the columns of a header; `None` if the line is not one.
    fn of(titles: &[String]) -> Option<Self> {
        let place = |name: &str| {
            titles.iter().position(|title| title.replace(' ', "").eq_ignore_ascii_case(name))
        };
        Some(Self {
            term: place("TermType"),
            usage_type: place("usageType")?,
            region: place("RegionCode"),
            unit: place("Unit")?,
            price: place("PricePerUnit")?,
            currency: place("Currency"),
            date: place("EffectiveDate"),
        })
    }
}

pub fn read(input: &mut dyn BufRead, offers: &mut Offers) -> Result<(), Broken> {
    let mut lines = Lines::new(input);
    let mut columns: Option<Columns> = None;
    let mut published = String::new();
    while let Some((number, line)) = lines.next()? {
        let (cells, _) = cells(line, ',');
        let Some(columns) = &columns else {
            if let [title, date, ..] = cells.as_slice()
                && title == "Publication Date"
            {
                published.clone_from(date);
            }
            columns = Columns::of(&cells);
            if columns.is_none() && number > LINES_BEFORE_MAX {
                let expected = "a header with usageType, Unit and PricePerUnit";
                return Err(Broken::at(number, line, expected));
            }
            continue;
        };
        let cell = |at: usize| cells.get(at).map(String::as_str).unwrap_or_default();
        let of = |at: Option<usize>| at.map(cell).unwrap_or_default();
        if columns.term.is_some() && of(columns.term) != "OnDemand" {
            continue;
        }
        let is_dated = columns.date.is_some_and(|date| !cell(date).is_empty());
        let date = if is_dated { of(columns.date) } else { &published };
        let currency = if columns.currency.is_some() { of(columns.currency) } else { "USD" };
        offers.add(Row {
            place: format!("line {number}"),
            usage_type: cell(columns.usage_type).to_owned(),
            region: columns.region.map(|region| cell(region).to_owned()),
            unit: cell(columns.unit).to_owned(),
            price: cell(columns.price).to_owned(),
            currency: currency.to_owned(),
            date: date.to_owned(),
        })?;
    }
    Ok(())
}
