//! `evenkeel snapshot`: manages snapshots, through the API only, as any other client does.

use super::export;
use super::volume::EMPTY_BIN;
use crate::cli::{self, LockMode, SnapshotCopy, SnapshotCreate, SnapshotVerb};
use evenkeel_cli::connect;
use evenkeel_client::Client;
use evenkeel_client::model::Binned;
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_client::snapshots::{self, Snapshot, SnapshotLock, UnownedSnapshot};
use evenkeel_client::volumes;
use evenkeel_core::ids::SnapshotId;
use serde_json::json;

const NO_SNAPSHOTS: &str = "no snapshots yet; make one with `evenkeel snapshot create VOLUME`";

const NO_LOCKS: &str =
    "no snapshot is locked; `evenkeel snapshot lock SNAPSHOT --days N` locks one";

const NO_UNOWNED: &str = "the database knows every snapshot of the store";

pub fn run(arguments: &cli::SnapshotArgs) -> Result<(), Failure> {
    // Exports are looked at without a server.
    let client = || connect::client(&arguments.connection);
    let format = arguments.output.format;
    match &arguments.verb {
        SnapshotVerb::Create(create) => {
            let snapshots = self::create(&client()?, create)?;
            output::print(&output::listing(&snapshots, format, ""))
        }
        SnapshotVerb::Ls => {
            let snapshots = Snapshot::set(&client()?.call("DescribeSnapshots", &[])?);
            output::print(&output::listing(&snapshots, format, NO_SNAPSHOTS))
        }
        SnapshotVerb::Copy(copy) => {
            let snapshot = self::copy(&client()?, copy)?;
            output::print(&output::listing(&[snapshot], format, ""))
        }
        SnapshotVerb::Bin => {
            let answer = client()?.call("ListSnapshotsInRecycleBin", &[])?;
            let binned = Binned::set(&answer, "snapshotSet", "snapshotId");
            output::print(&output::listing(&binned, format, EMPTY_BIN))
        }
        SnapshotVerb::Restore { snapshot } => {
            change(&client()?, "RestoreSnapshotFromRecycleBin", *snapshot, None)
        }
        SnapshotVerb::Archive { snapshot } => {
            let tier = Some(("StorageTier", "archive"));
            change(&client()?, "ModifySnapshotTier", *snapshot, tier)
        }
        SnapshotVerb::Unarchive { snapshot, days, .. } => unarchive(&client()?, *snapshot, *days),
        SnapshotVerb::Lock(lock) => {
            let lock = self::lock(&client()?, lock)?;
            output::print(&output::listing(&[lock], format, ""))
        }
        SnapshotVerb::Unlock { snapshot } => change(&client()?, "UnlockSnapshot", *snapshot, None),
        SnapshotVerb::Locks => {
            let locks = SnapshotLock::set(&client()?.call("DescribeLockedSnapshots", &[])?);
            output::print(&output::listing(&locks, format, NO_LOCKS))
        }
        SnapshotVerb::Show { snapshot } => show(&client()?, &snapshot.to_string(), format),
        SnapshotVerb::Rm { snapshots, unowned, bin } => {
            let client = client()?;
            let action = match (unowned, bin) {
                (true, _) => "DeleteUnownedSnapshot",
                (_, true) => "PurgeSnapshot",
                _ => "DeleteSnapshot",
            };
            snapshots.iter().try_for_each(|snapshot| {
                client.call(action, &[("SnapshotId", &snapshot.to_string())]).map(|_| ())
            })
        }
        SnapshotVerb::Export(arguments) => {
            let snapshot = snapshots::get(&client()?, &arguments.snapshot.to_string())?;
            export::export(&client()?, &snapshot, arguments, format)
        }
        SnapshotVerb::Import(arguments) => export::import(&client()?, arguments, format),
        SnapshotVerb::Exports(at) => export::list(at, format),
        SnapshotVerb::Verify { snapshot, at, work } => {
            export::verify(at, work, &snapshot.to_string(), format)
        }
        SnapshotVerb::Unexport { snapshot, at } => export::remove(at, &snapshot.to_string()),
        SnapshotVerb::Unowned => {
            let unowned = UnownedSnapshot::set(&client()?.call("DescribeUnownedSnapshots", &[])?);
            output::print(&output::listing(&unowned, format, NO_UNOWNED))
        }
    }
}

/// Restores a snapshot from the archive, for some days or for good.
fn unarchive(client: &Client, snapshot: SnapshotId, days: Option<u32>) -> Result<(), Failure> {
    let days = days.map(|days| days.to_string());
    let days = days.as_deref().map(|days| ("TemporaryRestoreDays", days));
    let how = days.or(Some(("PermanentRestore", "true")));
    change(client, "RestoreSnapshotTier", snapshot, how)
}

/// Changes something about one snapshot by an action that needs its id and at most this beside it.
fn change(
    client: &Client,
    action: &str,
    snapshot: SnapshotId,
    with: Option<(&str, &str)>,
) -> Result<(), Failure> {
    let id = snapshot.to_string();
    let parameters: Vec<_> = [("SnapshotId", id.as_str())].into_iter().chain(with).collect();
    client.call(action, &parameters).map(|_| ())
}

fn create(client: &Client, create: &SnapshotCreate) -> Result<Vec<Snapshot>, Failure> {
    let mut parameters: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: String| parameters.push((name.to_owned(), value));
    if let Some(host) = &create.host {
        add("InstanceSpecification.InstanceId", host.to_string());
        for (volume, at) in create.exclude.iter().zip(1..) {
            add(&format!("InstanceSpecification.ExcludeDataVolumeId.{at}"), volume.to_string());
        }
        if create.copy_tags {
            add("CopyTagsFromSource", "volume".to_owned());
        }
    }
    create.volume.iter().for_each(|volume| add("VolumeId", volume.to_string()));
    create.description.iter().for_each(|text| add("Description", text.clone()));
    parameters.extend(volumes::tag_specification("snapshot", &create.tags));
    let parameters: Vec<(&str, &str)> =
        parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let snapshots = match create.host {
        Some(_) => Snapshot::set(&client.call("CreateSnapshots", &parameters)?),
        None => vec![Snapshot::read(&client.call("CreateSnapshot", &parameters)?)],
    };
    if !create.wait.wait {
        return Ok(snapshots);
    }
    let completed = |snapshot: Snapshot| {
        snapshots::completed(client, &snapshot.snapshot_id, create.wait.timeout)
    };
    snapshots.into_iter().map(completed).collect()
}

/// Copies a snapshot by the flags, and waits for the copy if they say so.
fn copy(client: &Client, copy: &SnapshotCopy) -> Result<Snapshot, Failure> {
    let source = copy.source.to_string();
    let zones = client.call("DescribeAvailabilityZones", &[])?;
    let zone = zones.items("availabilityZoneInfo").first();
    let region = zone.and_then(|item| item.child_text("regionName")).unwrap_or_default();
    let mut parameters = vec![("SourceSnapshotId", source.as_str()), ("SourceRegion", region)];
    parameters.extend(copy.description.as_deref().map(|text| ("Description", text)));
    parameters.extend(copy.encrypted.then_some(("Encrypted", "true")));
    let tags = volumes::tag_specification("snapshot", &copy.tags);
    parameters.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let answer = client.call("CopySnapshot", &parameters)?;
    let id = answer.child_text("snapshotId").unwrap_or_default().to_owned();
    if copy.wait.wait {
        snapshots::completed(client, &id, copy.wait.timeout)
    } else {
        snapshots::get(client, &id)
    }
}

/// Locks a snapshot by the flags.
fn lock(client: &Client, lock: &cli::SnapshotLock) -> Result<SnapshotLock, Failure> {
    let id = lock.snapshot.to_string();
    let mode = match lock.mode {
        LockMode::Governance => "governance",
        LockMode::Compliance => "compliance",
    };
    let [days, hours] = [lock.days, lock.cool_off].map(|it| it.map(|number| number.to_string()));
    let mut parameters = vec![("SnapshotId", id.as_str()), ("LockMode", mode)];
    parameters.extend(days.as_deref().map(|days| ("LockDuration", days)));
    parameters.extend(lock.until.as_deref().map(|time| ("ExpirationDate", time)));
    parameters.extend(hours.as_deref().map(|hours| ("CoolOffPeriod", hours)));
    Ok(SnapshotLock::read(&client.call("LockSnapshot", &parameters)?))
}

fn show(client: &Client, id: &str, format: Format) -> Result<(), Failure> {
    let snapshot = snapshots::get(client, id)?;
    match format {
        Format::Csv => output::print(&output::listing(&[snapshot], Format::Csv, "")),
        Format::Json => {
            let value = json!({ "schema": "evenkeel.snapshot/1", "snapshot": snapshot });
            output::print(&output::json(&value))
        }
        Format::Text => {
            let rows = details(snapshot);
            let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
            let lines = rows.iter().map(|(name, value)| format!("{name:<width$}  {value}\n"));
            output::print(&lines.collect::<String>())
        }
    }
}

fn details(snapshot: Snapshot) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("snapshot", snapshot.snapshot_id),
        ("volume", snapshot.volume_id),
        ("size", format!("{} GiB", snapshot.size_gib)),
        ("state", snapshot.state),
        ("progress", snapshot.progress),
    ];
    rows.extend(snapshot.error_reason.map(|reason| ("reason", reason)));
    rows.extend(snapshot.data_bytes.map(|bytes| ("data", format!("{bytes} bytes"))));
    rows.push(("tier", snapshot.storage_tier));
    rows.extend(snapshot.restore_expiry_time.map(|time| ("archived again", time)));
    rows.push(("encrypted", if snapshot.encrypted { "yes" } else { "no" }.to_owned()));
    rows.push(("started", snapshot.start_time));
    rows.extend(snapshot.completion_time.map(|time| ("completed", time)));
    if !snapshot.description.is_empty() {
        rows.push(("description", snapshot.description));
    }
    rows.extend(snapshot.tags.iter().map(|(key, value)| ("tag", format!("{key}={value}"))));
    rows
}
