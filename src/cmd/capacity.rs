//! `evenkeel volume capacity`, and the lines on capacity below other listings.

use evenkeel_client::Client;
use evenkeel_client::capacity::{Capacity, MEASURE, NOT_SHOWN, TypeSold};
use evenkeel_client::model::{VolumeDescription, VolumeStatus};
use evenkeel_client::output::{self, Failure, Format, Item, listing};
use serde_json::json;

/// Prints what each type reserves, its part of the capacity, and the source of the figures.
pub fn run(client: &Client, format: Format) -> Result<(), Failure> {
    let capacity = Capacity::get(client)?;
    output::print(&match format {
        Format::Csv => listing(&capacity.types, Format::Csv, ""),
        Format::Json => output::json(&json!({ "schema": TypeSold::SCHEMA, "capacity": capacity })),
        Format::Text => {
            let mut lines = capacity.summary();
            lines.extend(capacity.sources());
            if !capacity.is_known() {
                lines.push(MEASURE.to_owned());
            }
            below(listing(&capacity.types, Format::Text, ""), &lines)
        }
    })
}

/// A list of volumes, with the sold amounts below; without them if the user may not ask for them.
pub fn volumes(
    client: &Client,
    volumes: &[VolumeDescription],
    format: Format,
    when_empty: &str,
) -> Result<String, Failure> {
    let list = listing(volumes, format, when_empty);
    Ok(match format {
        Format::Csv => list,
        Format::Json => {
            let capacity = Capacity::get_if_allowed(client)?;
            let schema = VolumeDescription::SCHEMA;
            let field = VolumeDescription::FIELD;
            output::json(&json!({ "schema": schema, field: volumes, "capacity": capacity }))
        }
        Format::Text => {
            let mut lines = match Capacity::get_if_allowed(client)? {
                Some(capacity) => capacity.summary(),
                None => vec![NOT_SHOWN.to_owned()],
            };
            lines.extend(impaired(client, volumes)?);
            below(list, &lines)
        }
    })
}

/// Maximum number of impaired volumes that are named.
const IMPAIRED_MAX: usize = 3;

/// Returns a line with the impaired ones of these volumes; `None` if there are none. The table
/// shows those in the state `error`.
fn impaired(client: &Client, volumes: &[VolumeDescription]) -> Result<Option<String>, Failure> {
    if volumes.is_empty() {
        return Ok(None);
    }
    let statuses = VolumeStatus::impaired(client, None)?;
    let is_impaired = |volume: &&VolumeDescription| {
        volume.state != "error"
            && statuses.iter().any(|status| status.volume_id == volume.volume_id)
    };
    let ids: Vec<&str> =
        volumes.iter().filter(is_impaired).map(|volume| volume.volume_id.as_str()).collect();
    let named = ids.iter().take(IMPAIRED_MAX).copied().collect::<Vec<_>>().join(", ");
    let others = match ids.len().saturating_sub(IMPAIRED_MAX) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let line = || format!("impaired: {named}{others}; `evenkeel volume status` shows the reasons");
    Ok((!ids.is_empty()).then(line))
}

/// A table with remarks below.
fn below(mut table: String, lines: &[String]) -> String {
    table.push('\n');
    for line in lines {
        table.push_str(line);
        table.push('\n');
    }
    table
}
