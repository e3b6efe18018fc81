//! Protection of volumes and snapshots over HTTP: the recycle bin, locks, sharing, fast restore.

use std::sync::Arc;

use crate::support::{Client, Server, config_with, create, text};
use evenkeel_control::Settings;
use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::FailedKind;
use evenkeel_wire::aws::xml::Element;

struct Fixture {
    server: Server,
    client: Client,
    _folder: tempfile::TempDir,
}

fn fixture(recycle_bin_days: u32) -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings { recycle_bin_days, ..Settings::default() };
    let config = config_with(folder.path(), settings);
    let server = Server::start_with(config, Arc::default()).unwrap();
    let client = server.client();
    Fixture { server, client, _folder: folder }
}

impl Fixture {
    fn snapshot(&self) -> String {
        let volume = create(&self.client, &[]);
        let made = self.client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap();
        let id = text(&made, "snapshotId").to_owned();
        while text(&self.shown(&id), "status") != "completed" {}
        id
    }

    fn shown(&self, id: &str) -> Element {
        let reply = self.client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
        reply.items("snapshotSet")[0].clone()
    }
}

#[test]
fn deleted_volumes_and_snapshots_are_in_the_bin_and_are_restored() {
    let fixture = fixture(7);
    let client = &fixture.client;
    let id = create(client, &[("VolumeType", "gp3"), ("Iops", "4000")]);
    let volume = ("VolumeId", id.as_str());
    client.call("DeleteVolume", &[volume]).unwrap();
    assert!(fixture.server.agent.with(|state| state.volumes.contains_key(&id.parse().unwrap())));
    for (action, params) in [
        ("DescribeVolumes", vec![("VolumeId.1", id.as_str())]),
        ("DeleteVolume", vec![volume]),
        ("ModifyVolume", vec![volume, ("Size", "20")]),
        ("CreateSnapshot", vec![volume]),
        ("CopyVolumes", vec![("SourceVolumeId", id.as_str())]),
        ("DescribeVolumeStatus", vec![("VolumeId.1", id.as_str())]),
    ] {
        assert_eq!(client.code(action, &params), "InvalidVolume.NotFound", "{action}");
    }
    assert!(client.call("DescribeVolumes", &[]).unwrap().items("volumeSet").is_empty());
    let bin = client.call("ListVolumesInRecycleBin", &[]).unwrap();
    let item = &bin.items("volumeSet")[0];
    assert_eq!((text(item, "volumeId"), text(item, "iops")), (id.as_str(), "4000"));
    assert!(text(item, "recycleBinExitTime") > text(item, "recycleBinEnterTime"));
    client.call("RestoreVolumeFromRecycleBin", &[volume]).unwrap();
    let back = client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
    assert_eq!(text(&back.items("volumeSet")[0], "status"), "available");
    assert_eq!(client.code("RestoreVolumeFromRecycleBin", &[volume]), "InvalidVolume.NotFound");

    let id = fixture.snapshot();
    let snapshot = ("SnapshotId", id.as_str());
    client.call("DeleteSnapshot", &[snapshot]).unwrap();
    assert_eq!(client.code("DeleteSnapshot", &[snapshot]), "InvalidSnapshot.NotFound");
    let bin = client.call("ListSnapshotsInRecycleBin", &[("SnapshotId.1", &id)]).unwrap();
    assert_eq!(text(&bin.items("snapshotSet")[0], "snapshotId"), id);
    let back = client.call("RestoreSnapshotFromRecycleBin", &[snapshot]).unwrap();
    assert_eq!((text(&back, "status"), text(&back, "progress")), ("completed", "100%"));
    assert_eq!(text(&fixture.shown(&id), "status"), "completed");
    let code = client.code("ListSnapshotsInRecycleBin", &[("SnapshotId.1", &id)]);
    assert_eq!(code, "InvalidSnapshot.NotFound");
}

/// A volume that is damaged, or encrypted if the server has started without its key, comes back as
/// it is after such a start. Then its readable data can be salvaged.
#[test]
fn a_volume_that_cannot_be_opened_is_restored_in_error_and_can_be_salvaged() {
    let fixture = fixture(7);
    let client = &fixture.client;
    let id = create(client, &[("VolumeType", "gp3")]);
    let volume = ("VolumeId", id.as_str());
    client.call("DeleteVolume", &[volume]).unwrap();
    let bin = || client.call("ListVolumesInRecycleBin", &[]).unwrap().items("volumeSet").to_vec();
    let before = bin();
    let number: VolumeId = id.parse().unwrap();
    fixture.server.agent.with(|state| {
        state.volumes.remove(&number);
        state.damaged.insert(number);
    });
    // It is not known whether its bytes can be opened.
    fixture.server.agent.with(|state| state.fail_next = Some(FailedKind::Unanswered));
    client.call("RestoreVolumeFromRecycleBin", &[volume]).unwrap_err();
    assert_eq!(bin(), before);
    let dry_run = [volume, ("DryRun", "true")];
    assert_eq!(client.code("RestoreVolumeFromRecycleBin", &dry_run), "DryRunOperation");
    assert_eq!(bin(), before);
    client.call("RestoreVolumeFromRecycleBin", &[volume]).unwrap();
    assert!(bin().is_empty());
    let status = || {
        let back = client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
        text(&back.items("volumeSet")[0], "status").to_owned()
    };
    assert_eq!(status(), "error");
    let checked = client.call("DescribeVolumeStatus", &[("VolumeId.1", &id)]).unwrap();
    let checked = &checked.items("volumeStatusSet")[0];
    assert_eq!(text(checked.child("volumeStatus").unwrap(), "status"), "impaired");
    assert_eq!(text(&checked.items("actionsSet")[0], "code"), "enable-volume-io");
    fixture.server.agent.with(|state| state.damaged.clear());
    client.call("EnableVolumeIO", &[volume]).unwrap();
    assert_eq!(status(), "available");
}

/// It stays in the bin until its bytes are deleted, and cannot be restored meanwhile.
#[test]
fn a_volume_whose_time_in_the_bin_is_over_is_not_listed() {
    let fixture = fixture(7);
    let client = &fixture.client;
    let id = create(client, &[("VolumeType", "gp3")]);
    let volume = ("VolumeId", id.as_str());
    client.call("DeleteVolume", &[volume]).unwrap();
    fixture.server.agent.with(|state| state.fail_always = Some(FailedKind::Internal));
    client.call("PurgeVolume", &[volume]).unwrap_err();
    assert!(client.call("ListVolumesInRecycleBin", &[]).unwrap().items("volumeSet").is_empty());
    let by_id = [("VolumeId.1", id.as_str())];
    assert_eq!(client.code("ListVolumesInRecycleBin", &by_id), "InvalidVolume.NotFound");
    assert_eq!(client.code("RestoreVolumeFromRecycleBin", &[volume]), "InvalidVolume.NotFound");
    fixture.server.agent.with(|state| state.fail_always = None);
}

#[test]
fn a_locked_snapshot_is_not_deleted() {
    let fixture = fixture(0);
    let client = &fixture.client;
    let id = fixture.snapshot();
    let snapshot = ("SnapshotId", id.as_str());
    let lock = |more: &[(&str, &str)]| client.call("LockSnapshot", &[&[snapshot], more].concat());
    let governance = ("LockMode", "governance");
    let locked = lock(&[governance, ("LockDuration", "2")]).unwrap();
    assert_eq!((text(&locked, "lockState"), text(&locked, "lockDuration")), ("governance", "2"));
    assert_eq!(client.code("DeleteSnapshot", &[snapshot]), "SnapshotLocked");
    let described = client.call("DescribeLockedSnapshots", &[]).unwrap();
    assert_eq!(text(&described.items("snapshotSet")[0], "lockState"), "governance");
    client.call("UnlockSnapshot", &[snapshot]).unwrap();
    assert_eq!(client.code("UnlockSnapshot", &[snapshot]), "IncorrectState");
    // A compliance lock is permanent after its cooling-off period.
    let compliance = ("LockMode", "compliance");
    let date = ("ExpirationDate", "2126-01-01T00:00:00.000Z");
    let cooling = lock(&[compliance, ("CoolOffPeriod", "1"), ("LockDuration", "3")]).unwrap();
    assert_eq!(text(&cooling, "lockState"), "compliance-cooloff");
    client.call("UnlockSnapshot", &[snapshot]).unwrap();
    let locked = lock(&[compliance, ("LockDuration", "3")]).unwrap();
    assert_eq!(text(&locked, "lockState"), "compliance");
    assert_eq!(client.code("UnlockSnapshot", &[snapshot]), "SnapshotLocked");
    for shorter in [
        vec![governance, ("LockDuration", "30")],
        vec![compliance, ("LockDuration", "2")],
        vec![compliance, ("LockDuration", "30"), ("CoolOffPeriod", "1")],
    ] {
        assert_eq!(lock(&shorter).unwrap_err().code, "SnapshotLocked", "{shorter:?}");
    }
    let longer = lock(&[compliance, date]).unwrap();
    assert_eq!(text(&longer, "lockExpiresOn"), date.1);
    let filter = [("Filter.1.Name", "lock-state"), ("Filter.1.Value.1", "governance")];
    let none = client.call("DescribeLockedSnapshots", &filter).unwrap();
    assert!(none.items("snapshotSet").is_empty());
    for (wrong, code) in [
        (vec![("LockMode", "x"), ("LockDuration", "1")], "InvalidParameterValue"),
        (vec![governance], "MissingParameter"),
        (vec![("LockDuration", "1")], "MissingParameter"),
        (vec![governance, ("LockDuration", "0")], "InvalidParameterValue"),
        (vec![governance, ("LockDuration", "36501")], "InvalidParameterValue"),
        (vec![governance, ("LockDuration", "1"), date], "InvalidParameterCombination"),
        (vec![governance, ("ExpirationDate", "2001-01-01T00:00:00Z")], "InvalidParameterValue"),
        (
            vec![governance, ("LockDuration", "1"), ("CoolOffPeriod", "1")],
            "InvalidParameterCombination",
        ),
        (vec![compliance, ("LockDuration", "1"), ("CoolOffPeriod", "73")], "InvalidParameterValue"),
    ] {
        assert_eq!(lock(&wrong).unwrap_err().code, code, "{wrong:?}");
    }
}

#[test]
fn sharing_is_noted_and_taken_back() {
    let fixture = fixture(0);
    let client = &fixture.client;
    let id = fixture.snapshot();
    let base = [("SnapshotId", id.as_str()), ("Attribute", "createVolumePermission")];
    let accounts = || {
        let reply = client.call("DescribeSnapshotAttribute", &base).unwrap();
        let items = reply.items("createVolumePermission");
        let of = |item: &Element| {
            item.children.iter().map(|child| child.text.clone()).collect::<String>()
        };
        items.iter().map(of).collect::<Vec<_>>()
    };
    let modify =
        |more: &[(&str, &str)]| client.call("ModifySnapshotAttribute", &[&base[..], more].concat());
    assert!(accounts().is_empty());
    let two = [
        ("CreateVolumePermission.Add.1.UserId", "123456789012"),
        ("CreateVolumePermission.Add.2.Group", "all"),
    ];
    modify(&two).unwrap();
    assert_eq!(accounts(), ["123456789012", "all"]);
    modify(&[("OperationType", "add"), ("UserId.1", "210987654321")]).unwrap();
    modify(&[("OperationType", "remove"), ("UserGroup.1", "all")]).unwrap();
    assert_eq!(accounts(), ["123456789012", "210987654321"]);
    modify(&[("CreateVolumePermission.Remove.1.UserId", "123456789012")]).unwrap();
    assert_eq!(accounts(), ["210987654321"]);
    client.call("ResetSnapshotAttribute", &base).unwrap();
    assert!(accounts().is_empty());
    for (wrong, code) in [
        (vec![], "MissingParameter"),
        (vec![("CreateVolumePermission.Add.1.UserId", "me")], "InvalidUserID.Malformed"),
        (vec![("UserId.1", "123456789012")], "InvalidParameterValue"),
        (vec![("CreateVolumePermission.Add.1.Odd", "1")], "UnknownParameter"),
    ] {
        assert_eq!(modify(&wrong).unwrap_err().code, code, "{wrong:?}");
    }
}

#[test]
fn public_access_that_is_blocked_stays_so_after_a_restart() {
    let fixture = fixture(0);
    let client = &fixture.client;
    let id = fixture.snapshot();
    let base = [("SnapshotId", id.as_str()), ("Attribute", "createVolumePermission")];
    let everyone = [base[0], ("CreateVolumePermission.Add.1.Group", "all")];
    let one = [base[0], ("CreateVolumePermission.Add.1.UserId", "123456789012")];
    let state = |client: &Client| {
        let reply = client.call("GetSnapshotBlockPublicAccessState", &[]).unwrap();
        assert_eq!(text(&reply, "managedBy"), "account");
        text(&reply, "state").to_owned()
    };
    assert_eq!(state(client), "unblocked");
    client.call("ModifySnapshotAttribute", &everyone).unwrap();
    for blocked in ["block-new-sharing", "block-all-sharing"] {
        let reply = client.call("EnableSnapshotBlockPublicAccess", &[("State", blocked)]).unwrap();
        assert_eq!((text(&reply, "state"), state(client).as_str()), (blocked, blocked));
        let error = client.call("ModifySnapshotAttribute", &everyone).unwrap_err();
        assert_eq!(error.code, "OperationNotPermitted");
        assert!(error.message.contains(blocked), "{error:?}");
        client.call("ModifySnapshotAttribute", &one).unwrap();
    }
    // Earlier shares stay in the attribute, and can be removed.
    let shown = client.call("DescribeSnapshotAttribute", &base).unwrap();
    assert_eq!(shown.items("createVolumePermission").len(), 2);
    client.call("ResetSnapshotAttribute", &base).unwrap();
    for (wrong, code) in [
        (vec![], "MissingParameter"),
        (vec![("State", "unblocked")], "InvalidParameterValue"),
        (vec![("State", "block")], "InvalidParameterValue"),
    ] {
        assert_eq!(client.code("EnableSnapshotBlockPublicAccess", &wrong), code, "{wrong:?}");
    }
    let Fixture { server, _folder: folder, .. } = fixture;
    let agent = Arc::clone(&server.agent);
    server.stop().unwrap();
    let config = config_with(folder.path(), Settings::default());
    let server = Server::start_with(config, agent).unwrap();
    let client = &server.client();
    assert_eq!(state(client), "block-all-sharing");
    // Another setting of the account does not change it.
    client.call("DisableEbsEncryptionByDefault", &[]).unwrap();
    assert_eq!(state(client), "block-all-sharing");
    let reply = client.call("DisableSnapshotBlockPublicAccess", &[]).unwrap();
    assert_eq!((text(&reply, "state"), state(client).as_str()), ("unblocked", "unblocked"));
    client.call("ModifySnapshotAttribute", &everyone).unwrap();
}

#[test]
fn fast_restore_begins_when_the_snapshot_is_made() {
    let fixture = fixture(0);
    let client = &fixture.client;
    let states = || {
        let shown = client.call("DescribeFastSnapshotRestores", &[]).unwrap();
        let items = shown.items("fastSnapshotRestoreSet").iter();
        items
            .map(|item| (text(item, "state").to_owned(), item.child("enabledTime").is_some()))
            .collect::<Vec<_>>()
    };
    fixture.server.agent.with(|state| state.snapshots_pend = true);
    let volume = create(client, &[]);
    let made = client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap();
    let id = text(&made, "snapshotId");
    let base = [("SourceSnapshotId.1", id), ("AvailabilityZone.1", "local-1a")];
    let on = client.call("EnableFastSnapshotRestores", &base).unwrap();
    assert_eq!(text(&on.items("successful")[0], "state"), "enabling");
    assert_eq!(states(), [("enabling".to_owned(), false)]);
    fixture.server.agent.with(|state| {
        state.snapshots.values_mut().for_each(|snapshot| snapshot.is_complete = true);
    });
    while text(&fixture.shown(id), "status") != "completed" {}
    assert_eq!(states(), [("enabled".to_owned(), true)]);
}

#[test]
fn fast_restore_counts_its_credits() {
    let fixture = fixture(0);
    let client = &fixture.client;
    let id = fixture.snapshot();
    let base = [("SourceSnapshotId.1", id.as_str()), ("AvailabilityZone.1", "local-1a")];
    let on = client.call("EnableFastSnapshotRestores", &base).unwrap();
    assert_eq!(text(&on.items("successful")[0], "state"), "enabled");
    let described = client.call("DescribeFastSnapshotRestores", &[]).unwrap();
    assert_eq!(text(&described.items("fastSnapshotRestoreSet")[0], "snapshotId"), id);
    // The bucket is empty at first, so the volume is made without a credit.
    let zone = ("AvailabilityZone", "local-1a");
    let made = client.call("CreateVolume", &[zone, ("SnapshotId", &id)]).unwrap();
    assert!(made.child("fastRestored").is_none());
    let off = client.call("DisableFastSnapshotRestores", &base).unwrap();
    assert_eq!(text(&off.items("successful")[0], "state"), "disabled");
    let none = client.call("DescribeFastSnapshotRestores", &[]).unwrap();
    assert!(none.items("fastSnapshotRestoreSet").is_empty());
    for (wrong, code) in [
        (vec![base[0]], "MissingParameter"),
        (vec![base[1]], "MissingParameter"),
        (vec![base[0], ("AvailabilityZone.1", "elsewhere")], "InvalidZone.NotFound"),
        (
            vec![("SourceSnapshotId.1", "snap-00000000000000001"), base[1]],
            "InvalidSnapshot.NotFound",
        ),
    ] {
        assert_eq!(client.code("EnableFastSnapshotRestores", &wrong), code, "{wrong:?}");
    }
}
