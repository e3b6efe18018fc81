//! `evenkeel volume`: manages volumes, through the API only, as any other client does.

use super::{capacity, migrate};
use crate::cli::{
    self, Provisioned, VolumeAdopt, VolumeAttach, VolumeCopy, VolumeCreate, VolumeDetach,
    VolumeModify, VolumeVerb,
};
use evenkeel_cli::connect;
use evenkeel_client::Client;
use evenkeel_client::credits::{CreditRow, TREND_INTERVAL, balances, level, trend};
use evenkeel_client::endpoints::Endpoints;
use evenkeel_client::model::{Attachment, Binned, Unowned, VolumeDescription, VolumeStatus};
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_client::volumes::{self, NewVolume};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::price;
use evenkeel_os::clock;
use serde_json::json;

const NO_VOLUMES: &str =
    "no volumes yet; make one with `evenkeel volume create --size 10 --attach`";

/// Text of a listing of an empty recycle bin.
pub const EMPTY_BIN: &str =
    "the recycle bin is empty; a server with --recycle-bin-days keeps here what is deleted";

const NO_UNOWNED: &str = "every volume's bytes in the store belong to a volume";

pub fn run(arguments: &cli::VolumeArgs) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let format = arguments.output.format;
    match &arguments.verb {
        VolumeVerb::Create(create) => {
            let volume = self::create(&client, create)?;
            output::print(&output::listing(&[volume], format, ""))
        }
        VolumeVerb::Copy(copy) => {
            let volume = self::copy(&client, copy)?;
            output::print(&output::listing(&[volume], format, ""))
        }
        VolumeVerb::Status { volumes } => {
            let statuses = statuses(&client, volumes)?;
            output::print(&output::listing(&statuses, format, NO_VOLUMES))
        }
        VolumeVerb::Bin => {
            let answer = client.call("ListVolumesInRecycleBin", &[])?;
            let binned = Binned::set(&answer, "volumeSet", "volumeId");
            output::print(&output::listing(&binned, format, EMPTY_BIN))
        }
        VolumeVerb::Restore { volume } => {
            let id = [("VolumeId", &*volume.to_string())];
            client.call("RestoreVolumeFromRecycleBin", &id).map(|_| ())
        }
        VolumeVerb::Salvage { volume } => {
            let id = [("VolumeId", &*volume.to_string())];
            client.call("EnableVolumeIO", &id).map(|_| ())
        }
        VolumeVerb::Ls => {
            let volumes = VolumeDescription::set(&client.call("DescribeVolumes", &[])?);
            output::print(&capacity::volumes(&client, &volumes, format, NO_VOLUMES)?)
        }
        VolumeVerb::Show { volume } => show(&client, &volume.to_string(), format),
        VolumeVerb::Modify(change) => modify(&client, change),
        VolumeVerb::Attach(attach) => {
            let VolumeAttach { volume, host, device, wait } = attach;
            let id = volume.to_string();
            let host = host.map(|host| host.to_string());
            volumes::attach(&client, &id, host.as_deref(), device.as_deref(), wait.longest())
        }
        VolumeVerb::Detach(VolumeDetach { volume, host, wait }) => {
            let host = host.map(|host| host.to_string());
            volumes::detach(&client, &volume.to_string(), host.as_deref(), wait.longest())
        }
        VolumeVerb::Rm { volumes, unowned, bin } => volumes.iter().try_for_each(|volume| {
            let action = match (unowned, bin) {
                (true, _) => "DeleteUnownedVolume",
                (_, true) => "PurgeVolume",
                _ => "DeleteVolume",
            };
            client.call(action, &[("VolumeId", &volume.to_string())]).map(|_| ())
        }),
        VolumeVerb::Unowned => {
            let unowned = Unowned::set(&client.call("DescribeUnownedVolumes", &[])?);
            output::print(&output::listing(&unowned, format, NO_UNOWNED))
        }
        VolumeVerb::Adopt(adopt) => {
            let volume = self::adopt(&client, adopt)?;
            output::print(&output::listing(&[volume], format, ""))
        }
        VolumeVerb::Capacity => capacity::run(&client, format),
        VolumeVerb::Migrate(migrate) => migrate::run(&client, arguments, migrate),
        VolumeVerb::Credits { volume, set } => credits(&client, &volume.to_string(), *set, format),
    }
}

/// Returns the states of volumes; of all if none is named.
fn statuses(client: &Client, volumes: &[VolumeId]) -> Result<Vec<VolumeStatus>, Failure> {
    let names =
        (1..).zip(volumes).map(|(number, id)| (format!("VolumeId.{number}"), id.to_string()));
    let named: Vec<(String, String)> = names.collect();
    let named: Vec<(&str, &str)> =
        named.iter().map(|(name, id)| (name.as_str(), id.as_str())).collect();
    Ok(VolumeStatus::set(&client.call("DescribeVolumeStatus", &named)?))
}

/// Creates a volume by the flags, and waits for it and attaches it if they request that.
fn create(client: &Client, create: &VolumeCreate) -> Result<VolumeDescription, Failure> {
    let new = NewVolume {
        volume_type: create.volume_type,
        size_gib: create.size,
        snapshot: create.snapshot,
        zone: create.zone.clone(),
        iops: create.provisioned.iops,
        throughput_mibps: create.provisioned.throughput,
        multi_attach: create.provisioned.multi_attach,
        encrypted: create.encrypted,
        tags: create.tags.clone(),
    };
    if create.attach {
        return volumes::create_and_attach(client, &new, create.wait.timeout);
    }
    volumes::create(client, &new, create.wait.longest())
}

/// Creates a copy of a volume by the flags, and waits for it if they request that.
fn copy(client: &Client, copy: &VolumeCopy) -> Result<VolumeDescription, Failure> {
    let VolumeCopy { source, volume_type, size, provisioned, .. } = copy;
    let Provisioned { iops, throughput, multi_attach } = provisioned;
    let source = source.to_string();
    let size = size.map(|n| n.to_string());
    let (mut iops, mut throughput) =
        (iops.map(|n| n.to_string()), throughput.map(|n| n.to_string()));
    let volume_type = match volume_type {
        Some(volume_type) => volume_type.to_string(),
        None => {
            let volume = volumes::get(client, &source)?;
            // The copy has the same provisioned values as the source.
            if volumes::is_provisioned(&volume) {
                iops = iops.or(volume.iops.map(|n| n.to_string()));
                throughput = throughput.or(volume.throughput_mibps.map(|n| n.to_string()));
            }
            volume.volume_type
        }
    };
    let mut parameters = vec![("SourceVolumeId", source.as_str()), ("VolumeType", &volume_type)];
    parameters.extend(size.as_deref().map(|n| ("Size", n)));
    parameters.extend(iops.as_deref().map(|n| ("Iops", n)));
    parameters.extend(throughput.as_deref().map(|n| ("Throughput", n)));
    parameters.extend(multi_attach.then_some(("MultiAttachEnabled", "true")));
    parameters.extend(copy.encrypted.then_some(("Encrypted", "true")));
    let tags = volumes::tag_specification("volume", &copy.tags);
    parameters.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let answer = client.call("CopyVolumes", &parameters)?;
    let made = VolumeDescription::set(&answer).into_iter().next();
    let made = made.ok_or_else(|| Failure::new("the server returns no copy".to_owned()))?;
    volumes::once_available(client, made, copy.wait.longest())
}

fn adopt(client: &Client, adopt: &VolumeAdopt) -> Result<VolumeDescription, Failure> {
    let VolumeAdopt { volume, volume_type, provisioned } = adopt;
    let Provisioned { iops, throughput, multi_attach } = provisioned;
    let id = volume.to_string();
    let volume_type = volume_type.to_string();
    let (iops, throughput) = (iops.map(|n| n.to_string()), throughput.map(|n| n.to_string()));
    let mut parameters = vec![("VolumeId", id.as_str()), ("VolumeType", &volume_type)];
    parameters.extend(iops.as_deref().map(|n| ("Iops", n)));
    parameters.extend(throughput.as_deref().map(|n| ("Throughput", n)));
    parameters.extend(multi_attach.then_some(("MultiAttachEnabled", "true")));
    Ok(VolumeDescription::read(&client.call("AdoptVolume", &parameters)?))
}

pub fn modify(client: &Client, change: &VolumeModify) -> Result<(), Failure> {
    let id = change.volume.to_string();
    let parameters: Vec<(&str, String)> = [
        ("VolumeType", change.volume_type.map(|t| t.to_string())),
        ("Size", change.size.map(|n| n.to_string())),
        ("Iops", change.iops.map(|n| n.to_string())),
        ("Throughput", change.throughput.map(|n| n.to_string())),
    ]
    .into_iter()
    .filter_map(|(name, value)| value.map(|value| (name, value)))
    .collect();
    if parameters.is_empty() {
        return Err(Failure::new(format!("nothing to change on {id}"))
            .exit(Exit::Usage)
            .hint("name a new --type, --size, --iops or --throughput"));
    }
    let mut all = vec![("VolumeId", id.as_str())];
    all.extend(parameters.iter().map(|(name, value)| (*name, value.as_str())));
    client.call("ModifyVolume", &all)?;
    change
        .wait
        .longest()
        .map_or(Ok(()), |longest| volumes::wait_for_modification(client, &id, longest))
}

fn show(client: &Client, id: &str, format: Format) -> Result<(), Failure> {
    let volume = volumes::get(client, id)?;
    let credits = volumes::credits(client, id)?;
    if format == Format::Csv {
        return output::print(&output::listing(&[volume], Format::Csv, ""));
    }
    let endpoints = Endpoints::of(client)?;
    let reach = endpoints.uris(id);
    if format == Format::Json {
        let value = json!({
            "schema": "evenkeel.volume/1", "volume": volume, "credits": credits, "nbd": reach,
        });
        return output::print(&output::json(&value));
    }
    let mut rows = details(&volume);
    if volume.state != "error" {
        let statuses = VolumeStatus::impaired(client, Some(id))?;
        rows.extend(statuses.iter().map(|status| ("status", reasons(status))));
    }
    if reach.is_empty() {
        let there = endpoints.elsewhere().join(", ");
        rows.push(("NBD", format!("not from this machine; the server listens at: {there}")));
    }
    rows.extend(reach.into_iter().map(|uri| ("NBD", uri)));
    for (kind, first) in balances(&credits) {
        clock::pause(TREND_INTERVAL);
        let later = volumes::credits(client, id)?;
        let second = balances(&later).find(|(other, _)| *other == kind).map_or(first, |(_, b)| b);
        rows.push((kind, format!("{}; {}", level(&second), trend(&first, &second))));
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n"));
    output::print(&lines.collect::<String>())
}

/// Returns a status with the descriptions of its events.
fn reasons(status: &VolumeStatus) -> String {
    let events = status.events.iter().map(|event| format!(": {}", event.description));
    [status.status.clone()].into_iter().chain(events).collect()
}

fn details(volume: &VolumeDescription) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("volume", volume.volume_id.clone()),
        ("type", volume.volume_type.clone()),
        ("size", format!("{} GiB", volume.size_gib)),
    ];
    rows.extend(volume.iops.map(|iops| ("IOPS", iops.to_string())));
    rows.extend(volume.throughput_mibps.map(|mibps| ("throughput", format!("{mibps} MiB/s"))));
    rows.push(("state", volume.state.clone()));
    rows.extend(volume.error_reason.iter().map(|reason| ("reason", reason.clone())));
    rows.extend(volume.snapshot_id.iter().map(|id| ("snapshot", id.clone())));
    rows.extend(volume.source_volume_id.iter().map(|id| ("copy of", id.clone())));
    rows.push(("encrypted", if volume.encrypted { "yes" } else { "no" }.to_owned()));
    rows.extend(
        volume
            .monthly_micro_usd
            .map(|micros| ("list price", format!("{} USD a month at AWS", price::rounded(micros)))),
    );
    rows.push(("created", volume.create_time.clone()));
    for attachment in &volume.attachments {
        let Attachment { host_id, device, state } = attachment;
        rows.push(("host", format!("{host_id} as {device}, {state}")));
    }
    rows.extend(volume.tags.iter().map(|(key, value)| ("tag", format!("{key}={value}"))));
    rows
}

fn credits(client: &Client, id: &str, set: Option<u64>, format: Format) -> Result<(), Failure> {
    if let Some(balance) = set {
        volumes::set_credits(client, id, balance)?;
    }
    let credits = volumes::credits(client, id)?;
    let rows = CreditRow::of(id, &credits);
    let none = format!("{id} has no credits: only gp2, st1 and sc1 volumes do");
    output::print(&output::listing(&rows, format, &none))
}
