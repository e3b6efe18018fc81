//! `evenkeel report`: monthly costs of volumes and snapshots.

use super::plan::failure;
use crate::cli::{self, ReportCost, ReportVerb};
use crate::price_book;
use evenkeel_cli::connect;
use evenkeel_client::Client;
use evenkeel_client::model::VolumeDescription;
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_client::snapshots::Snapshot;
use evenkeel_core::price::PriceList;
use evenkeel_planner::cost::Tier;
use evenkeel_planner::cost::report::{self, Report};

/// Maximum number of volumes or snapshots on one page.
const PAGE: &str = "500";

pub fn run(arguments: &cli::Report) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let ReportVerb::Cost(flags) = &arguments.verb;
    let report = of_server(&client, flags)?;
    output::print(&match arguments.output.format {
        Format::Text => report.text(),
        Format::Csv => report.csv(),
        Format::Json => output::json(&report.json()),
    })
}

fn of_server(client: &Client, flags: &ReportCost) -> Result<Report, Failure> {
    let prices = match flags.as_of {
        None => PriceList::newest(),
        Some(date) => PriceList::as_of(date).map_err(|error| Failure::new(error.to_string()))?,
    };
    let page = [("MaxResults", PAGE)];
    let volumes = client.list("DescribeVolumes", &page, VolumeDescription::set)?;
    let snapshots = client.list("DescribeSnapshots", &page, Snapshot::set)?;
    let book = flags.prices.as_deref().map(price_book::load).transpose()?;
    let volumes: Vec<report::Volume> =
        volumes.into_iter().map(volume).collect::<Result<_, Failure>>()?;
    let snapshots: Vec<report::Snapshot> = snapshots.into_iter().filter_map(snapshot).collect();
    Report::new(flags.by.clone(), (prices, book), &volumes, &snapshots).map_err(failure)
}

fn volume(volume: VolumeDescription) -> Result<report::Volume, Failure> {
    let spec = volume.spec()?;
    let hosts = volume.attachments.into_iter().map(|attachment| attachment.host_id);
    Ok(report::Volume { id: volume.volume_id, spec, hosts: hosts.collect(), tags: volume.tags })
}

/// Returns a snapshot; `None` for an incomplete one, whose size is not known.
fn snapshot(snapshot: Snapshot) -> Option<report::Snapshot> {
    let tier = match snapshot.storage_tier.as_str() {
        "archive" => Tier::Archive,
        _ if snapshot.restore_expiry_time.is_some() => Tier::Restored,
        _ => Tier::Standard,
    };
    Some(report::Snapshot { volume_id: snapshot.volume_id, bytes: snapshot.data_bytes?, tier })
}
