//! Storage tiers of snapshots: the operations that an archived snapshot refuses, restores, and the
//! end of a temporary restore, over HTTP and over a restart.

use std::sync::Arc;

use crate::support::{Client, FakeAgent, Server, config_with, create, planned, text};
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::journal::{Change, Journal};
use evenkeel_control::model::{Command, Event, Snapshot, TierOperation, Tiering};
use evenkeel_control::plane::Plane;
use evenkeel_control::{DATABASE_FILE_NAME, Settings};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::quota;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::aws::xml::Element;

const ZONE: (&str, &str) = ("AvailabilityZone", "local-1a");
const DAY_MS: u64 = 86_400_000;

struct Fixture {
    client: Client,
    _server: Server,
    _folder: tempfile::TempDir,
}

fn fixture(settings: Settings) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let config = config_with(folder.path(), settings);
    let server = Server::start_with(config, Arc::default()).unwrap();
    Fixture { client: server.client(), _server: server, _folder: folder }
}

/// Returns a completed snapshot of a volume.
fn snapshot(client: &Client, volume: &str) -> String {
    let made = client.call("CreateSnapshot", &[("VolumeId", volume)]).unwrap();
    let id = text(&made, "snapshotId").to_owned();
    while text(&shown(client, &id), "status") != "completed" {}
    id
}

fn shown(client: &Client, id: &str) -> Element {
    let reply = client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
    reply.items("snapshotSet")[0].clone()
}

/// Returns the tier's status of a snapshot.
fn status(client: &Client, id: &str) -> Element {
    let filter = [("Filter.1.Name", "snapshot-id"), ("Filter.1.Value.1", id)];
    let reply = client.call("DescribeSnapshotTierStatus", &filter).unwrap();
    let found = reply.items("snapshotTierStatusSet");
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

#[test]
fn an_archived_snapshot_is_shown_and_cannot_be_used() {
    let Fixture { client, .. } = &fixture(Settings::default());
    let id = snapshot(client, &create(client, &[]));
    let by_id = ("SnapshotId", id.as_str());
    let never = status(client, &id);
    assert_eq!(text(&never, "storageTier"), "standard");
    assert!(never.child("lastTieringOperationStatus").is_none(), "{never:?}");
    let done = client.call("ModifySnapshotTier", &[by_id, ("StorageTier", "archive")]).unwrap();
    assert_eq!(text(&done, "snapshotId"), id);
    let began = text(&done, "tieringStartTime");
    let archived = status(client, &id);
    for (field, expected) in [
        ("storageTier", "archive"),
        ("status", "completed"),
        ("lastTieringOperationStatus", "archival-completed"),
        ("lastTieringProgress", "100"),
        ("lastTieringStartTime", began),
        ("archivalCompleteTime", began),
    ] {
        assert_eq!(text(&archived, field), expected, "{field}");
    }
    assert_eq!(text(&shown(client, &id), "storageTier"), "archive");
    let source = ("SourceSnapshotId", id.as_str());
    let fast = ("SourceSnapshotId.1", id.as_str());
    let add = ("CreateVolumePermission.Add.1.UserId", "111122223333");
    for (action, params) in [
        ("CreateVolume", vec![ZONE, by_id]),
        ("CopySnapshot", vec![source, ("SourceRegion", "local-1")]),
        ("EnableFastSnapshotRestores", vec![fast, ("AvailabilityZone.1", "local-1a")]),
        ("ModifySnapshotAttribute", vec![by_id, add]),
        ("ModifySnapshotTier", vec![by_id]),
    ] {
        let error = client.call(action, &params).unwrap_err();
        assert_eq!(error.code, "IncorrectState", "{action}: {error:?}");
        assert!(error.message.contains(&id) && error.message.contains("RestoreSnapshotTier"));
    }
    // Locks, tags, and the end of sharing are possible while it is archived.
    let remove = ("CreateVolumePermission.Remove.1.UserId", "111122223333");
    client.call("ModifySnapshotAttribute", &[by_id, remove]).unwrap();
    let tag = [("ResourceId.1", id.as_str()), ("Tag.1.Key", "k"), ("Tag.1.Value", "v")];
    client.call("CreateTags", &tag).unwrap();
    assert_eq!(status(client, &id).items("tagSet").len(), 1);
    client.call("DeleteSnapshot", &[by_id]).unwrap();
    assert_eq!(client.code("ModifySnapshotTier", &[by_id]), "InvalidSnapshot.NotFound");
}

#[test]
fn a_restored_snapshot_can_be_used_for_its_days_or_for_good() {
    let Fixture { client, .. } = &fixture(Settings::default());
    let id = snapshot(client, &create(client, &[]));
    let by_id = ("SnapshotId", id.as_str());
    let restore =
        |more: &[(&str, &str)]| client.call("RestoreSnapshotTier", &[&[by_id], more].concat());
    let days = ("TemporaryRestoreDays", "3");
    let good = ("PermanentRestore", "true");
    assert_eq!(restore(&[good]).unwrap_err().code, "IncorrectState");
    client.call("ModifySnapshotTier", &[by_id]).unwrap();
    for (wrong, code) in [
        (vec![], "MissingParameter"),
        (vec![("PermanentRestore", "false")], "MissingParameter"),
        (vec![days, good], "InvalidParameterCombination"),
        (vec![("TemporaryRestoreDays", "0")], "InvalidParameterValue"),
        (vec![("TemporaryRestoreDays", "181")], "InvalidParameterValue"),
    ] {
        assert_eq!(restore(&wrong).unwrap_err().code, code, "{wrong:?}");
    }
    let done = restore(&[days]).unwrap();
    assert_eq!(text(&done, "restoreDuration"), "3");
    assert_eq!(text(&done, "isPermanentRestore"), "false");
    let restored = status(client, &id);
    assert_eq!(text(&restored, "lastTieringOperationStatus"), "temporary-restore-completed");
    let expiry = text(&restored, "restoreExpiryTime").to_owned();
    let seen = shown(client, &id);
    assert_eq!(
        (text(&seen, "storageTier"), text(&seen, "restoreExpiryTime")),
        ("standard", expiry.as_str())
    );
    client.call("CreateVolume", &[ZONE, by_id]).unwrap();
    assert_eq!(client.code("ModifySnapshotTier", &[by_id]), "IncorrectState");
    // The days begin again.
    restore(&[("TemporaryRestoreDays", "180")]).unwrap();
    assert!(text(&status(client, &id), "restoreExpiryTime") > expiry.as_str());
    let done = restore(&[good]).unwrap();
    assert_eq!(text(&done, "isPermanentRestore"), "true");
    assert!(done.child("restoreDuration").is_none());
    let back = status(client, &id);
    assert_eq!(text(&back, "lastTieringOperationStatus"), "permanent-restore-completed");
    assert!(back.child("restoreExpiryTime").is_none());
    assert_eq!(restore(&[good]).unwrap_err().code, "IncorrectState");
    client.call("ModifySnapshotTier", &[by_id]).unwrap();
}

#[test]
fn refused_archiving_says_why() {
    let quotas = Some(&quota::EC2);
    let Fixture { client, .. } = &fixture(Settings { quotas, ..Settings::default() });
    let volume = create(client, &[]);
    let id = snapshot(client, &volume);
    let by_id = ("SnapshotId", id.as_str());
    let wrong = client.call("ModifySnapshotTier", &[by_id, ("StorageTier", "standard")]);
    let wrong = wrong.unwrap_err();
    assert_eq!(wrong.code, "InvalidParameterValue");
    assert!(wrong.message.contains("standard"), "{wrong:?}");
    let fast = [("SourceSnapshotId.1", id.as_str()), ("AvailabilityZone.1", "local-1a")];
    client.call("EnableFastSnapshotRestores", &fast).unwrap();
    let refused = client.call("ModifySnapshotTier", &[by_id]).unwrap_err();
    assert_eq!(refused.code, "IncorrectState");
    assert!(refused.message.contains("DisableFastSnapshotRestores"), "{refused:?}");
    client.call("DisableFastSnapshotRestores", &fast).unwrap();
    // A temporarily restored snapshot is still in the archive, and counts.
    client.call("ModifySnapshotTier", &[by_id]).unwrap();
    client.call("RestoreSnapshotTier", &[by_id, ("TemporaryRestoreDays", "1")]).unwrap();
    for _ in 1..quota::EC2.archived_snapshots {
        let id = snapshot(client, &volume);
        client.call("ModifySnapshotTier", &[("SnapshotId", &id)]).unwrap();
    }
    let one_more = snapshot(client, &volume);
    let refused = client.call("ModifySnapshotTier", &[("SnapshotId", &one_more)]).unwrap_err();
    assert_eq!(refused.code, "ResourceLimitExceeded");
    assert!(refused.message.contains("25") && refused.message.contains(&volume), "{refused:?}");
    let other = snapshot(client, &create(client, &[]));
    client.call("ModifySnapshotTier", &[("SnapshotId", &other)]).unwrap();
    client.call("RestoreSnapshotTier", &[by_id, ("PermanentRestore", "true")]).unwrap();
    client.call("ModifySnapshotTier", &[("SnapshotId", &one_more)]).unwrap();
}

#[test]
fn tier_statuses_are_filtered_and_paged() {
    let Fixture { client, .. } = &fixture(Settings::default());
    let volumes = [create(client, &[]), create(client, &[])];
    let ids: Vec<String> = (0..7).map(|n| snapshot(client, &volumes[n % 2])).collect();
    for id in &ids[..3] {
        client.call("ModifySnapshotTier", &[("SnapshotId", id)]).unwrap();
    }
    let days = ("TemporaryRestoreDays", "1");
    client.call("RestoreSnapshotTier", &[("SnapshotId", &ids[0]), days]).unwrap();
    let all = |params: &[(&str, &str)]| {
        let reply = client.call("DescribeSnapshotTierStatus", params).unwrap();
        let found = reply.items("snapshotTierStatusSet");
        let token = reply.child_text("nextToken").map(str::to_owned);
        (found.iter().map(|it| text(it, "snapshotId").to_owned()).collect::<Vec<_>>(), token)
    };
    let filtered = |name: &str, value: &str| {
        let mut found = all(&[("Filter.1.Name", name), ("Filter.1.Value.1", value)]).0;
        found.sort_by_key(|id| ids.iter().position(|it| it == id));
        found
    };
    assert_eq!(filtered("last-tiering-operation", "archival-completed"), ids[1..3]);
    assert_eq!(filtered("last-tiering-operation", "temporary-*"), ids[..1]);
    assert_eq!(filtered("volume-id", &volumes[1]).len(), 3);
    let (mut seen, token) = all(&[("MaxResults", "5")]);
    assert_eq!(seen.len(), 5);
    let (rest, end) = all(&[("MaxResults", "5"), ("NextToken", &token.unwrap())]);
    assert_eq!((rest.len(), end), (2, None));
    seen.extend(rest);
    let (mut expected, _) = all(&[]);
    expected.sort();
    assert_eq!(seen, expected);
    let tiers = [("Filter.1.Name", "storage-tier"), ("Filter.1.Value.1", "archive")];
    let archived = client.call("DescribeSnapshots", &tiers).unwrap();
    assert_eq!(archived.items("snapshotSet").len(), 2);
}

#[test]
fn a_temporary_restore_ends_by_the_servers_time_and_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DATABASE_FILE_NAME);
    let agent: Arc<FakeAgent> = Arc::default();
    let start = || {
        let journal = SqliteJournal::open(&path).unwrap();
        let its = Arc::clone(&agent) as _;
        Plane::start(Box::new(journal), Settings::default(), its, || {}).unwrap()
    };
    let plane = start();
    planned(&plane, 1, VolumeType::Gp3, 10);
    let id = SnapshotId::from_bits(3);
    let volume = VolumeId::from_bits(1);
    let description = String::new();
    let tags = Default::default();
    plane.execute(&Command::CreateSnapshot { id, volume, description, tags }, false).unwrap();
    plane.tick();
    plane.execute(&Command::ArchiveSnapshot { id }, false).unwrap();
    plane.execute(&Command::RestoreTier { id, days: Some(1) }, false).unwrap();
    plane.tick();
    let restored = plane.model().snapshots[&id].clone();
    let now = plane.now();
    let until = restored.restored_until(now).unwrap();
    assert!(until.ms_since(now) > DAY_MS - 600_000);
    assert_eq!(restored.tier(until), "archive", "the moment of its end");
    assert_eq!(restored.tier(UnixMs(until.0 - 1)), "standard");
    // As if it had been restored a day ago, and the server had been down since.
    drop(plane);
    let ended = UnixMs(now.0 - 1_000);
    {
        let mut journal = SqliteJournal::open(&path).unwrap();
        let revision = journal.load().unwrap().revision;
        let last = TierOperation::TemporaryRestore { until: ended };
        let tiering = Some(Tiering { last, ..restored.tiering.unwrap() });
        let event = Event::Snapshot(Snapshot { tiering, ..restored });
        journal.commit(&Change::from(vec![event]), revision).unwrap();
    }
    let plane = start();
    let state = || plane.model().snapshots[&id].clone();
    assert!(state().is_archived(plane.now()), "before any tick");
    // A clock that is set back does not restore it, and the tick corrects the time.
    plane.follow_clock_at(UnixMs(plane.now().0 - 30 * DAY_MS));
    assert!(state().is_archived(plane.now()));
    plane.tick();
    let tiering = state().tiering.unwrap();
    assert_eq!(tiering.last, TierOperation::Archive);
    assert!(tiering.began <= ended, "{tiering:?}");
    assert!(plane.model().restores_ended(plane.now()).is_empty());
}
