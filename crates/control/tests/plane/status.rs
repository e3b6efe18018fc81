//! DescribeVolumeStatus: the state of volumes, and their problems.

use crate::support::{Client, Server, create, local_instance, text, until};
use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::FailedKind;
use evenkeel_wire::aws::xml::Element;

/// Returns the status of a volume, and its checks.
fn checks(client: &Client, id: &str) -> (Element, String, Vec<String>) {
    let reply = client.call("DescribeVolumeStatus", &[("VolumeId.1", id)]).unwrap();
    let item = reply.items("volumeStatusSet")[0].clone();
    let status = item.child("volumeStatus").unwrap();
    let check = |detail: &Element| format!("{} {}", text(detail, "name"), text(detail, "status"));
    let details = status.items("details").iter().map(check).collect();
    let status = text(status, "status").to_owned();
    (item, status, details)
}

/// Waits until the status of a volume is this one.
fn becomes(client: &Client, id: &str, wanted: &str) -> (Element, Vec<String>) {
    let found = until(|| {
        let (item, status, details) = checks(client, id);
        (status == wanted).then_some((item, details))
    });
    found.unwrap_or_else(|| panic!("{id} does not become {wanted}: {:?}", checks(client, id)))
}

#[test]
fn missed_seconds_are_a_warning_and_a_failed_flush_impairs() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let local = local_instance(&client);
    let id = create(&client, &[("VolumeType", "gp3")]);
    let volume: VolumeId = id.parse().unwrap();
    assert_eq!(checks(&client, &id).2, ["io-enabled passed", "io-performance not-applicable"]);
    let attach = [("VolumeId", id.as_str()), ("InstanceId", &local), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &attach).unwrap();
    assert_eq!(checks(&client, &id).2, ["io-enabled passed", "io-performance normal"]);

    server.agent.with(|state| state.missed.insert(volume, 3));
    let (item, details) = becomes(&client, &id, "warning");
    assert_eq!(details, ["io-enabled passed", "io-performance degraded"]);
    let [event] = item.items("eventsSet") else { panic!("{item:?}") };
    let kind = (text(event, "eventType"), text(event, "description"));
    assert_eq!(kind, ("io-performance:degraded", "Degraded"));
    let first = text(event, "eventId").to_owned();
    assert!(first.starts_with("evol-") && first.len() == "evol-".len() + 17, "{first}");
    let by = |name: &str, value: &str| {
        let filter = [("Filter.1.Name", name), ("Filter.1.Value.1", value)];
        client.call("DescribeVolumeStatus", &filter).unwrap().items("volumeStatusSet").len()
    };
    assert_eq!(by("event.event-id", &first), 1);
    assert_eq!(by("event.event-type", "io-performance:*"), 1);
    assert_eq!(by("event.not-before", text(event, "notBefore")), 1);
    assert_eq!(by("event.description", "Stalled"), 0);
    assert_eq!(by("volume-status.status", "warning"), 1);

    server.agent.with(|state| state.missed.insert(volume, 40));
    let severely = "io-performance severely-degraded".to_owned();
    let severe = until(|| checks(&client, &id).2.contains(&severely).then_some(())).is_some();
    assert!(severe, "{:?}", checks(&client, &id));

    server.agent.with(|state| state.flush_failed.insert(volume));
    let (_, details) = becomes(&client, &id, "impaired");
    assert_eq!(details, ["io-enabled failed", "io-performance severely-degraded"]);
    let kind = "potential-data-inconsistency";
    let told = until(|| (by("event.event-type", kind) == 1).then_some(())).is_some();
    assert!(told, "{:?}", checks(&client, &id));
}

#[test]
fn volumes_of_snapshots_and_copies_report_their_progress() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let empty = create(&client, &[]);
    assert!(checks(&client, &empty).0.child("initializationStatusDetails").is_none());
    let snapshot = client.call("CreateSnapshot", &[("VolumeId", &empty)]).unwrap();
    let restored = create(&client, &[("SnapshotId", text(&snapshot, "snapshotId"))]);
    let reply = client.call("CopyVolumes", &[("SourceVolumeId", &empty)]).unwrap();
    let copied = text(&reply.items("volumeSet")[0], "volumeId").to_owned();
    for (id, method) in [(restored, "default"), (copied, "volume-copy")] {
        let (item, details) = becomes(&client, &id, "ok");
        assert_eq!(details[2], "initialization-state completed");
        let how = item.child("initializationStatusDetails").unwrap();
        let how = (text(how, "initializationType"), text(how, "progress"));
        assert_eq!(how, (method, "100"));
    }
}

#[test]
fn volume_status_matches_the_report_of_the_data_plane() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    let mut ids: Vec<String> = (0..7).map(|_| create(&client, &[])).collect();
    ids.sort();
    let reply = client.call("DescribeVolumeStatus", &[("VolumeId.1", &ids[0])]).unwrap();
    let golden = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <DescribeVolumeStatusResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>{}</requestId><volumeStatusSet><item><volumeId>{}</volumeId>\
         <availabilityZone>local-1a</availabilityZone>\
         <availabilityZoneId>local1-az1</availabilityZoneId>\
         <volumeStatus><status>ok</status><details>\
         <item><name>io-enabled</name><status>passed</status></item>\
         <item><name>io-performance</name><status>not-applicable</status></item>\
         </details></volumeStatus><eventsSet/><actionsSet/></item></volumeStatusSet>\
         </DescribeVolumeStatusResponse>",
        text(&reply, "requestId"),
        ids[0]
    );
    assert_eq!(reply.document(), golden);
    // Two volumes that the data plane does not report.
    for id in &ids[1..3] {
        server.agent.with(|state| state.volumes.remove(&id.parse::<VolumeId>().unwrap()));
    }
    let found = |params: &[(&str, &str)]| {
        let reply = client.call("DescribeVolumeStatus", params).unwrap();
        let found = reply.items("volumeStatusSet").iter();
        let ids = found.map(|item| text(item, "volumeId").to_owned()).collect::<Vec<_>>();
        (ids, reply.child_text("nextToken").map(str::to_owned))
    };
    let by =
        |name: &str, value: &str| found(&[("Filter.1.Name", name), ("Filter.1.Value.1", value)]).0;
    assert_eq!(by("volume-status.status", "insufficient-data"), ids[1..3]);
    assert_eq!(by("volume-status.status", "ok").len(), 5);
    assert_eq!(by("volume-status.details-status", "passed").len(), 5);
    assert_eq!(by("volume-status.details-name", "io-enabled").len(), 7);
    assert_eq!(by("availability-zone", "local-1a").len(), 7);
    assert_eq!(by("event.event-type", "*").len(), 0);
    server.agent.with(|state| state.flush_failed.insert(ids[4].parse().unwrap()));
    assert_eq!(by("volume-status.status", "impaired"), ids[4..5]);
    assert_eq!(by("volume-status.details-status", "failed"), ids[4..5]);
    let (first, token) = found(&[("MaxResults", "5")]);
    let (second, end) = found(&[("MaxResults", "5"), ("NextToken", &token.unwrap())]);
    assert_eq!(([first, second].concat(), end), (ids.clone(), None));
    let absent = [("VolumeId.1", "vol-00000000000000000")];
    assert_eq!(client.code("DescribeVolumeStatus", &absent), "InvalidVolume.NotFound");
    let both = [("VolumeId.1", ids[0].as_str()), ("MaxResults", "5")];
    assert_eq!(client.code("DescribeVolumeStatus", &both), "InvalidParameterCombination");
    server.agent.with(|state| state.fail_always = Some(FailedKind::Down));
    assert_eq!(by("volume-status.status", "insufficient-data"), ids);
    server.agent.with(|state| state.fail_always = None);
}
