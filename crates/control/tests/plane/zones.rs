//! Several availability zones of one server: volumes and instances in each, the attachments that
//! are allowed, copies, and a zone that no longer exists.

use std::path::Path;
use std::sync::Arc;

use crate::support;
use crate::support::{Client, FakeAgent, Server, config_with, text};
use evenkeel_control::Settings;
use evenkeel_wire::aws::xml::Element;

const A: (&str, &str) = ("AvailabilityZone", "local-1a");
const B: (&str, &str) = ("AvailabilityZone", "local-1b");

fn start(folder: &Path, zones: &[&str], agent: &Arc<FakeAgent>) -> Server {
    let zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
    let settings = Settings { zones, recycle_bin_days: 1, ..Settings::default() };
    Server::start_with(config_with(folder, settings), Arc::clone(agent)).unwrap()
}

fn created(client: &Client, zone: (&str, &str)) -> String {
    let made = client.call("CreateVolume", &[zone, ("Size", "10")]).unwrap();
    text(&made, "volumeId").to_owned()
}

fn run(client: &Client, zone: &str, more: &[(&str, &str)]) -> Element {
    let base = [("MinCount", "1"), ("MaxCount", "1"), ("InstanceType", "m5.large")];
    let place = ("Placement.AvailabilityZone", zone);
    let made = client.call("RunInstances", &[&base[..], &[place], more].concat()).unwrap();
    made.items("instancesSet")[0].clone()
}

/// Returns the zone of an item and its id; no id if the zone no longer exists.
fn zone_of(item: &Element) -> (&str, Option<&str>) {
    (text(item, "availabilityZone"), item.child_text("availabilityZoneId"))
}

fn shown(client: &Client, volume: &str) -> Element {
    let reply = client.call("DescribeVolumes", &[("VolumeId.1", volume)]).unwrap();
    reply.items("volumeSet")[0].clone()
}

fn attach(client: &Client, volume: &str, instance: &str) -> Result<(), &'static str> {
    let place = [("VolumeId", volume), ("InstanceId", instance), ("Device", "/dev/sdf")];
    match client.call("AttachVolume", &place) {
        Ok(_) => Ok(()),
        Err(error) if error.code == "InvalidVolume.ZoneMismatch" => Err("mismatch"),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn zones_are_described_in_their_order_with_ids() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["local-1a", "local-1b"], &Arc::default());
    let client = server.client();
    let zones = |params: &[(&str, &str)]| {
        let reply = client.call("DescribeAvailabilityZones", params).unwrap();
        let pair = |it: &Element| format!("{} {}", text(it, "zoneName"), text(it, "zoneId"));
        reply.items("availabilityZoneInfo").iter().map(pair).collect::<Vec<_>>()
    };
    let [first, second] = ["local-1a local1-az1", "local-1b local1-az2"];
    assert_eq!(zones(&[]), [first, second]);
    assert_eq!(zones(&[("ZoneName.1", "local-1b")]), [second]);
    assert_eq!(zones(&[("ZoneId.1", "local1-az1")]), [first]);
    let filter = [("Filter.1.Name", "zone-name"), ("Filter.1.Value.1", "*b")];
    assert_eq!(zones(&filter), [second]);
    for wrong in [("ZoneName.1", "local-1c"), ("ZoneId.1", "local1-az3")] {
        let code = client.code("DescribeAvailabilityZones", &[wrong]);
        assert_eq!(code, "InvalidParameterValue", "{wrong:?}");
    }
}

#[test]
fn a_volume_is_attached_to_instances_of_its_zone_only() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["local-1a", "local-1b"], &Arc::default());
    let client = &server.client();
    let by_id = ("AvailabilityZoneId", "local1-az2");
    let in_a = created(client, A);
    let in_b = created(client, by_id);
    assert_eq!(zone_of(&shown(client, &in_a)), ("local-1a", Some("local1-az1")));
    assert_eq!(zone_of(&shown(client, &in_b)), ("local-1b", Some("local1-az2")));
    let local = support::local_instance(client);
    let host = run(client, "local-1b", &[]);
    let placement = host.child("placement").unwrap();
    assert_eq!(zone_of(placement), ("local-1b", Some("local1-az2")));
    let in_zone_b = text(&host, "instanceId").to_owned();
    let registered = [("InstanceType", "m5.large"), ("Address", "10.0.0.9"), B];
    let registered = client.call("RegisterHost", &registered).unwrap();
    let registered = text(registered.child("instance").unwrap(), "instanceId").to_owned();
    assert_eq!(attach(client, &in_b, &local), Err("mismatch"));
    assert_eq!(attach(client, &in_a, &in_zone_b), Err("mismatch"));
    assert_eq!(attach(client, &in_a, &registered), Err("mismatch"));
    assert_eq!(attach(client, &in_a, &local), Ok(()));
    assert_eq!(attach(client, &in_b, &in_zone_b), Ok(()));
    for (action, params) in [
        ("CreateVolume", vec![("AvailabilityZone", "local-1c"), ("Size", "1")]),
        ("CreateVolume", vec![("AvailabilityZoneId", "local1-az3"), ("Size", "1")]),
        ("RegisterHost", vec![("InstanceType", "m5.large"), ("AvailabilityZone", "x")]),
        (
            "RunInstances",
            vec![("MinCount", "1"), ("MaxCount", "1"), ("Placement.AvailabilityZone", "x")],
        ),
    ] {
        assert_eq!(client.code(action, &params), "InvalidZone.NotFound", "{action} {params:?}");
    }
    // RunInstances makes the volumes of an instance in its zone.
    let device = ("BlockDeviceMapping.1.DeviceName", "/dev/sdg");
    let size = ("BlockDeviceMapping.1.Ebs.VolumeSize", "5");
    let with_volume = run(client, "local-1b", &[device, size]);
    let mapping = &with_volume.items("blockDeviceMapping")[0];
    let its = text(mapping.child("ebs").unwrap(), "volumeId").to_owned();
    assert_eq!(zone_of(&shown(client, &its)).0, "local-1b");
    for (action, list, name, value, expected) in [
        ("DescribeVolumes", "volumeSet", "availability-zone", "local-1b", 2),
        ("DescribeVolumes", "volumeSet", "availability-zone-id", "local1-az1", 1),
        ("DescribeVolumeStatus", "volumeStatusSet", "availability-zone", "local-1b", 2),
        ("DescribeInstances", "reservationSet", "availability-zone", "local-1b", 3),
        ("DescribeInstances", "reservationSet", "availability-zone-id", "local1-az1", 1),
        ("DescribeInstanceStatus", "instanceStatusSet", "availability-zone", "local-1b", 3),
    ] {
        let filter = [("Filter.1.Name", name), ("Filter.1.Value.1", value)];
        let found = client.call(action, &filter).unwrap();
        assert_eq!(found.items(list).len(), expected, "{action} {name}={value}");
    }
}

#[test]
fn a_snapshot_is_of_all_zones_and_a_copy_of_a_volume_is_in_its_zone() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path(), &["local-1a", "local-1b"], &Arc::default());
    let client = &server.client();
    let source = created(client, B);
    let copied = client.call("CopyVolumes", &[("SourceVolumeId", &source)]).unwrap();
    assert_eq!(zone_of(&copied.items("volumeSet")[0]).0, "local-1b");
    let made = client.call("CreateSnapshot", &[("VolumeId", &source)]).unwrap();
    let id = text(&made, "snapshotId").to_owned();
    let state = || {
        let reply = client.call("DescribeSnapshots", &[("SnapshotId.1", &id)]).unwrap();
        text(&reply.items("snapshotSet")[0], "status").to_owned()
    };
    while state() != "completed" {}
    for zone in [A, B] {
        let made = client.call("CreateVolume", &[zone, ("SnapshotId", &id)]).unwrap();
        assert_eq!(text(&made, "availabilityZone"), zone.1);
    }
}

/// Returns the pairs of state and zone of a snapshot's fast restores.
fn fast_restores(client: &Client, filters: &[(&str, &str)]) -> Vec<String> {
    let found = client.call("DescribeFastSnapshotRestores", filters).unwrap();
    let items = found.items("fastSnapshotRestoreSet").iter();
    items.map(|it| format!("{} {}", text(it, "state"), text(it, "availabilityZone"))).collect()
}

#[test]
fn fast_restore_is_on_or_off_in_each_zone() {
    let folder = tempfile::tempdir().unwrap();
    let agent: Arc<FakeAgent> = Arc::default();
    let server = start(folder.path(), &["local-1a", "local-1b"], &agent);
    let client = &server.client();
    let made = client.call("CreateSnapshot", &[("VolumeId", &created(client, A))]).unwrap();
    let id = text(&made, "snapshotId").to_owned();
    let source = ("SourceSnapshotId.1", id.as_str());
    let [in_a, in_b] = [("AvailabilityZone.1", "local-1a"), ("AvailabilityZone.1", "local-1b")];
    let on = client.call("EnableFastSnapshotRestores", &[source, in_b]).unwrap();
    let on: Vec<_> = on.items("successful").iter().map(zone_of).map(|(zone, _)| zone).collect();
    assert_eq!(on, ["local-1b"]);
    assert!(fast_restores(client, &[])[0].ends_with(" local-1b"));
    // The other zone is turned off without an effect on this one.
    client.call("DisableFastSnapshotRestores", &[source, in_a]).unwrap();
    assert_eq!(fast_restores(client, &[]).len(), 1);
    let by_id = ("AvailabilityZoneId.1", "local1-az1");
    client.call("EnableFastSnapshotRestores", &[source, by_id]).unwrap();
    for (name, value, expected) in [
        ("availability-zone", "local-1a", 1),
        ("availability-zone-id", "local1-az2", 1),
        ("availability-zone", "local-1c", 0),
        ("snapshot-id", id.as_str(), 2),
        ("state", "disabled", 0),
    ] {
        let filter = [("Filter.1.Name", name), ("Filter.1.Value.1", value)];
        assert_eq!(fast_restores(client, &filter).len(), expected, "{name}={value}");
    }
    let both = client.code("EnableFastSnapshotRestores", &[source, in_a, by_id]);
    assert_eq!(both, "InvalidParameterCombination");
    let is_enabled = || fast_restores(client, &[]).iter().all(|it| it.starts_with("enabled"));
    support::until(|| is_enabled().then_some(())).unwrap();
    server.stop().unwrap();
    // A zone that is removed from the setting can still be turned off, but not on.
    let server = start(folder.path(), &["local-1a"], &agent);
    let client = &server.client();
    assert_eq!(fast_restores(client, &[]), ["enabled local-1a", "enabled local-1b"]);
    client.call("DisableFastSnapshotRestores", &[source, in_b]).unwrap();
    assert_eq!(fast_restores(client, &[]), ["enabled local-1a"]);
    for action in ["EnableFastSnapshotRestores", "DisableFastSnapshotRestores"] {
        assert_eq!(client.code(action, &[source, in_b]), "InvalidZone.NotFound", "{action}");
    }
    let archive = [("SnapshotId", id.as_str()), ("StorageTier", "archive")];
    assert_eq!(client.code("ModifySnapshotTier", &archive), "IncorrectState");
}

#[test]
fn zones_outlive_a_restart_and_one_that_is_gone_keeps_its_volumes() {
    let folder = tempfile::tempdir().unwrap();
    let agent: Arc<FakeAgent> = Arc::default();
    let (volume, other, host) = {
        let server = start(folder.path(), &["local-1a", "local-1b"], &agent);
        let client = server.client();
        let host = text(&run(&client, "local-1b", &[]), "instanceId").to_owned();
        let volumes = [created(&client, B), created(&client, B)];
        attach(&client, &volumes[0], &host).unwrap();
        server.stop().unwrap();
        let [volume, other] = volumes;
        (volume, other, host)
    };
    let server = start(folder.path(), &["local-1a"], &agent);
    let client = &server.client();
    assert_eq!(zone_of(&shown(client, &volume)), ("local-1b", None));
    assert_eq!(text(&shown(client, &volume), "status"), "in-use");
    assert_eq!(attach(client, &other, &support::local_instance(client)), Err("mismatch"));
    assert_eq!(client.code("CreateVolume", &[B, ("Size", "1")]), "InvalidZone.NotFound");
    client.call("DetachVolume", &[("VolumeId", &volume)]).unwrap();
    assert_eq!(attach(client, &volume, &host), Ok(()), "the host is still there");
    client.call("DetachVolume", &[("VolumeId", &volume)]).unwrap();
    client.call("DeleteVolume", &[("VolumeId", &volume)]).unwrap();
    let bin = client.call("ListVolumesInRecycleBin", &[]).unwrap();
    assert_eq!(zone_of(&bin.items("volumeSet")[0]), ("local-1b", None));
}
