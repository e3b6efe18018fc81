//! Snapshots over HTTP, on a data plane in a map: replies, errors, and the state after a restart.

use std::sync::Arc;

use crate::support::{Client, FakeAgent, Refused, Server, config, create, text};
use evenkeel_core::ids::SnapshotId;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_wire::agent::{Command, FailedKind, Space, StoredSnapshot};
use evenkeel_wire::aws::xml::Element;

struct Fixture {
    server: Server,
    client: Client,
    folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    Fixture { server, client, folder }
}

impl Fixture {
    /// Stops the server and starts one on the same folder.
    fn restart(self) -> Self {
        let Self { server, folder, .. } = self;
        let agent = Arc::clone(&server.agent);
        server.stop().unwrap();
        let server = Server::start_with(config(folder.path()), agent).unwrap();
        Self { client: server.client(), server, folder }
    }

    fn agent(&self) -> &FakeAgent {
        &self.server.agent
    }

    fn snapshot(&self, volume: &str) -> String {
        let made = self.client.call("CreateSnapshot", &[("VolumeId", volume)]).unwrap();
        assert_eq!((text(&made, "status"), text(&made, "progress")), ("pending", "0%"));
        text(&made, "snapshotId").to_owned()
    }

    fn describe(&self, params: &[(&str, &str)]) -> Vec<Element> {
        let reply = self.client.call("DescribeSnapshots", params).unwrap();
        reply.items("snapshotSet").to_vec()
    }

    fn states(&self) -> Vec<String> {
        let described = self.describe(&[]);
        described.iter().map(|snapshot| text(snapshot, "status").to_owned()).collect()
    }

    /// Waits until these are the states. If the tick is looking up the snapshots at this moment, a
    /// description does not look them up.
    #[track_caller]
    fn become_so(&self, states: &[&str]) {
        let is_so = (0..2_000).any(|_| self.states() == states);
        assert!(is_so, "{:?} and not {states:?}", self.states());
    }
}

fn volume(client: &Client) -> String {
    create(client, &[("VolumeType", "gp3"), ("Size", "10")])
}

fn refused(status: u16, code: &str, message: &str) -> Refused {
    Refused { status, code: code.into(), message: message.into() }
}

#[test]
fn the_reply_is_golden() {
    let fixture = fixture();
    let client = &fixture.client;
    let of = volume(client);
    let params = [
        ("VolumeId", of.as_str()),
        ("Description", "before <it>"),
        ("TagSpecification.1.ResourceType", "snapshot"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.1.Tag.1.Value", "nightly"),
    ];
    let made = client.call("CreateSnapshot", &params).unwrap();
    let id = text(&made, "snapshotId");
    let reply = client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
    let snapshot = &reply.items("snapshotSet")[0];
    let [started, ended] = ["startTime", "completionTime"].map(|name| text(snapshot, name));
    let request_id = text(&reply, "requestId");
    let golden = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <DescribeSnapshotsResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>{request_id}</requestId><snapshotSet><item><snapshotId>{id}</snapshotId>\
         <volumeId>{of}</volumeId><status>completed</status><startTime>{started}</startTime>\
         <progress>100%</progress><ownerId>000000000000</ownerId><volumeSize>10</volumeSize>\
         <description>before &lt;it&gt;</description><encrypted>false</encrypted>\
         <storageTier>standard</storageTier><completionTime>{ended}</completionTime>\
         <fullSnapshotSizeInBytes>4096</fullSnapshotSizeInBytes>\
         <tagSet><item><key>Name</key><value>nightly</value></item></tagSet></item></snapshotSet>\
         </DescribeSnapshotsResponse>"
    );
    assert_eq!(reply.document(), golden);
    let clone = create(client, &[("VolumeType", "gp3"), ("SnapshotId", id), ("Size", "12")]);
    let reply = client.call("DescribeVolumes", &[("VolumeId.1", &clone)]).unwrap();
    assert_eq!(text(&reply.items("volumeSet")[0], "snapshotId"), id);
    let filter = [("Filter.1.Name", "snapshot-id"), ("Filter.1.Value.1", id)];
    let reply = client.call("DescribeVolumes", &filter).unwrap();
    assert_eq!(reply.items("volumeSet").len(), 1);
    assert!(fixture.agent().with(|state| {
        state.log.iter().any(|command| {
            matches!(command, Command::CreateFrom(volume, of)
                if of.to_string() == id && volume.size == ByteCount(12 * GIB))
        })
    }));
}

/// Registers a host with volumes attached under these device names. Returns their ids.
fn attached(client: &Client, devices: &[&str]) -> (String, Vec<String>) {
    let params = [("InstanceType", "m5.large"), ("Address", "10.0.0.7")];
    let host = client.call("RegisterHost", &params).unwrap();
    let host = text(host.child("instance").unwrap(), "instanceId").to_owned();
    let attach = |device: &&str| {
        let volume = volume(client);
        let params = [("VolumeId", &*volume), ("InstanceId", &*host), ("Device", *device)];
        client.call("AttachVolume", &params).unwrap();
        volume
    };
    let volumes = devices.iter().map(attach).collect();
    (host, volumes)
}

#[test]
fn the_volumes_of_a_host_are_snapshotted_together() {
    let fixture = fixture();
    let client = &fixture.client;
    let (host, volumes) = attached(client, &["/dev/sda1", "/dev/sdf", "/dev/sdg"]);
    let tag = [("ResourceId.1", &*volumes[2]), ("Tag.1.Key", "Name"), ("Tag.1.Value", "log")];
    client.call("CreateTags", &tag).unwrap();
    let params = [
        ("InstanceSpecification.InstanceId", host.as_str()),
        ("InstanceSpecification.ExcludeBootVolume", "true"),
        ("Description", "before the upgrade"),
        ("CopyTagsFromSource", "volume"),
        ("TagSpecification.1.ResourceType", "snapshot"),
        ("TagSpecification.1.Tag.1.Key", "set"),
        ("TagSpecification.1.Tag.1.Value", "1"),
    ];
    let dry = client.call("CreateSnapshots", &[&params[..], &[("DryRun", "true")]].concat());
    assert_eq!(dry.unwrap_err().code, "DryRunOperation");
    let made = client.call("CreateSnapshots", &params).unwrap();
    let set = made.items("snapshotSet");
    let mut of: Vec<&str> = set.iter().map(|item| text(item, "volumeId")).collect();
    of.sort_unstable();
    let mut expected = vec![volumes[1].as_str(), volumes[2].as_str()];
    expected.sort_unstable();
    assert_eq!(of, expected);
    for item in set {
        assert_eq!((text(item, "state"), text(item, "volumeSize")), ("pending", "10"));
        assert_eq!(text(item, "description"), "before the upgrade");
        let tags = item.items("tagSet").len();
        assert_eq!(tags, if text(item, "volumeId") == volumes[2] { 2 } else { 1 });
    }
    fixture.become_so(&["completed", "completed"]);
    // One call of the data plane, for all of them at one moment.
    let sets = fixture.agent().with(|state| {
        let is_set =
            |command: &&Command| matches!(command, Command::SnapshotSet(set) if set.len() == 2);
        let is_single = |command: &&Command| matches!(command, Command::Snapshot(..));
        (state.log.iter().filter(is_set).count(), state.log.iter().filter(is_single).count())
    });
    assert_eq!(sets, (1, 0));
    let without = [
        ("InstanceSpecification.InstanceId", host.as_str()),
        ("InstanceSpecification.ExcludeDataVolumeId.1", volumes[1].as_str()),
    ];
    let made = client.call("CreateSnapshots", &without).unwrap();
    assert_eq!(made.items("snapshotSet").len(), 2);
}

#[test]
fn a_set_is_made_as_a_whole_or_not_at_all() {
    let fixture = fixture();
    let client = &fixture.client;
    let (host, volumes) = attached(client, &["/dev/sda1", "/dev/sdf"]);
    let other = volume(client);
    let call = |params: &[(&str, &str)]| {
        let host = [("InstanceSpecification.InstanceId", host.as_str())];
        client.call("CreateSnapshots", &[&host, params].concat()).unwrap_err()
    };
    let exclude = |volume| call(&[("InstanceSpecification.ExcludeDataVolumeId.1", volume)]);
    let value = |message: &str| refused(400, "InvalidParameterValue", message);
    assert_eq!(
        exclude(&other),
        value(&format!("{other} is in ExcludeDataVolumeId and not attached to {host}"))
    );
    assert_eq!(
        exclude(&volumes[0]),
        value(&format!(
            "{} is the boot volume of {host} (/dev/sda1); leave it out with ExcludeBootVolume",
            volumes[0]
        ))
    );
    let both = [
        ("InstanceSpecification.ExcludeBootVolume", "true"),
        ("InstanceSpecification.ExcludeDataVolumeId.1", volumes[1].as_str()),
    ];
    assert_eq!(call(&both), value(&format!("All 2 volumes of {host} are left out")));
    let source = call(&[("CopyTagsFromSource", "instance")]);
    assert_eq!(source, value("Invalid value 'instance' for CopyTagsFromSource. Must be volume"));
    let missing = client.call("CreateSnapshots", &[]).unwrap_err();
    assert_eq!(missing.code, "MissingParameter");
    let unknown = [("InstanceSpecification.InstanceId", "i-0123456789abcdef0")];
    let unknown = client.call("CreateSnapshots", &unknown).unwrap_err();
    assert_eq!(unknown.code, "InvalidInstanceID.NotFound");
    // The data plane makes no snapshots, so none is left.
    fixture.agent().with(|state| state.fail_next = Some(FailedKind::Internal));
    assert_eq!(call(&[]).status, 500);
    assert!(fixture.states().is_empty());
    // The data plane does not answer: each is pending or in error, as the store lists it.
    fixture.agent().with(|state| state.fail_next = Some(FailedKind::Unanswered));
    let host = [("InstanceSpecification.InstanceId", host.as_str())];
    let made = client.call("CreateSnapshots", &host).unwrap();
    assert_eq!(made.items("snapshotSet").len(), 2);
    fixture.become_so(&["error", "error"]);
}

#[test]
fn a_volume_of_a_snapshot_is_as_large_unless_more_is_asked_and_its_token_lasts() {
    let fixture = fixture();
    let client = &fixture.client;
    let id = fixture.snapshot(&volume(client));
    let zone = [("AvailabilityZone", "local-1a"), ("VolumeType", "gp3")];
    let params = [&zone[..], &[("SnapshotId", id.as_str()), ("ClientToken", "t")]].concat();
    let made = client.call("CreateVolume", &params).unwrap();
    assert_eq!(text(&made, "size"), "10");
    client.call("DeleteSnapshot", &[("SnapshotId", &id)]).unwrap();
    let again = client.call("CreateVolume", &params).unwrap();
    assert_eq!(text(&again, "volumeId"), text(&made, "volumeId"), "the snapshot is not needed");
    assert_eq!(text(&again, "snapshotId"), id);
}

#[test]
fn filters_owners_tags_and_pages() {
    let fixture = fixture();
    let client = &fixture.client;
    let of = volume(client);
    let other = volume(client);
    let mut ids: Vec<String> = (0..6).map(|_| fixture.snapshot(&of)).collect();
    ids.push(fixture.snapshot(&other));
    let tag = [("ResourceId.1", ids[0].as_str()), ("Tag.1.Key", "env"), ("Tag.1.Value", "test")];
    client.call("CreateTags", &tag).unwrap();
    let count = |name: &str, value: &str| {
        let filter = [("Filter.1.Name", name), ("Filter.1.Value.1", value)];
        fixture.describe(&filter).len()
    };
    for (name, value, expected) in [
        ("volume-id", other.as_str(), 1),
        ("status", "completed", 7),
        ("status", "pending", 0),
        ("progress", "100%", 7),
        ("snapshot-id", &ids[2], 1),
        ("snapshot-id", "snap-*", 7),
        ("owner-id", "000000000000", 7),
        ("volume-size", "10", 7),
        ("encrypted", "true", 0),
        ("storage-tier", "standard", 7),
        ("description", "", 7),
        ("start-time", "20*", 7),
        ("tag:env", "test", 1),
        ("tag-key", "env", 1),
    ] {
        assert_eq!(count(name, value), expected, "{name} {value}");
    }
    for (owner, expected) in [("self", 7), ("000000000000", 7), ("amazon", 0)] {
        assert_eq!(fixture.describe(&[("Owner.1", owner)]).len(), expected, "{owner}");
    }
    let first = client.call("DescribeSnapshots", &[("MaxResults", "5")]).unwrap();
    let token = text(&first, "nextToken");
    let second =
        client.call("DescribeSnapshots", &[("MaxResults", "5"), ("NextToken", token)]).unwrap();
    assert_eq!(first.items("snapshotSet").len() + second.items("snapshotSet").len(), 7);
    let filter = [("Filter.1.Name", "resource-type"), ("Filter.1.Value.1", "snapshot")];
    assert_eq!(client.call("DescribeTags", &filter).unwrap().items("tagSet").len(), 1);
    client.call("DeleteTags", &tag[..2]).unwrap();
    assert_eq!(count("tag-key", "env"), 0);
}

#[test]
fn errors_have_ec2_s_codes_and_texts() {
    let fixture = fixture();
    let volume = volume(&fixture.client);
    let absent = "snap-00000000000000bad";
    let call = |action: &str, of: &[(&str, &str)]| fixture.client.call(action, of).unwrap_err();
    let missing = format!("The snapshot '{absent}' does not exist.");
    let not_found = refused(400, "InvalidSnapshot.NotFound", &missing);
    assert_eq!(call("DescribeSnapshots", &[("SnapshotId.1", absent)]), not_found);
    assert_eq!(call("DeleteSnapshot", &[("SnapshotId", absent)]), not_found);
    let zone = ("AvailabilityZone", "local-1a");
    assert_eq!(call("CreateVolume", &[zone, ("SnapshotId", absent)]), not_found);
    let malformed = "Value (snap-1) for parameter snapshotId is invalid. Expected: 'snap-...'.";
    let malformed = refused(400, "InvalidSnapshotID.Malformed", malformed);
    assert_eq!(call("DeleteSnapshot", &[("SnapshotId", "snap-1")]), malformed);
    let code = |action: &str, params: &[(&str, &str)]| call(action, params).code;
    assert_eq!(code("CreateSnapshot", &[]), "MissingParameter");
    let none = [("VolumeId", "vol-00000000000000bad")];
    assert_eq!(code("CreateSnapshot", &none), "InvalidVolume.NotFound");
    let long = "x".repeat(256);
    let dry = [("VolumeId", volume.as_str()), ("DryRun", "true")];
    assert_eq!(code("CreateSnapshot", &dry), "DryRunOperation");
    let long = [("VolumeId", volume.as_str()), ("Description", &long)];
    assert_eq!(code("CreateSnapshot", &long), "InvalidParameterValue");
    assert_eq!(code("ExportSnapshot", &[]), "InvalidAction");
    let filter = [("Filter.1.Name", "color"), ("Filter.1.Value.1", "red")];
    assert_eq!(code("DescribeSnapshots", &filter), "InvalidParameterValue");
    let id = fixture.snapshot(&volume);
    let small = [zone, ("VolumeType", "gp3"), ("SnapshotId", &id), ("Size", "9")];
    assert_eq!(
        call("CreateVolume", &small),
        refused(
            400,
            "InvalidParameterValue",
            &format!("Volume of 9GiB is smaller than snapshot '{id}', expect size >= 10GiB")
        )
    );
    // The SDK for Go sends zero for no maximum.
    let none = [("SnapshotId.1", id.as_str()), ("MaxResults", "0")];
    assert_eq!(
        fixture.client.call("DescribeSnapshots", &none).unwrap().items("snapshotSet").len(),
        1
    );
    let both = [("SnapshotId.1", id.as_str()), ("MaxResults", "5")];
    assert_eq!(code("DescribeSnapshots", &both), "InvalidParameterCombination");
    fixture.agent().with(|state| state.snapshots_pend = true);
    let last: Vec<String> = (0..5).map(|_| fixture.snapshot(&volume)).collect();
    assert_eq!(
        call("CreateSnapshot", &[("VolumeId", &volume)]),
        refused(
            400,
            "ConcurrentSnapshotLimitExceeded",
            "Maximum allowed in-progress snapshots for a single volume exceeded."
        )
    );
    assert_eq!(
        call("CreateVolume", &[zone, ("SnapshotId", &last[0])]),
        refused(400, "IncorrectState", "Snapshot is in invalid state - pending")
    );
    let space = Space { total: ByteCount(10 * GIB), free: ByteCount(0) };
    fixture.agent().with(|state| state.space = Some(space));
    let fixture = fixture.restart();
    let other = fixture.client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap_err();
    assert_eq!(other.code, "ConcurrentSnapshotLimitExceeded", "{other:?}");
    client_deletes(&fixture.client, &last);
    let full = fixture.client.call("CreateSnapshot", &[("VolumeId", &volume)]).unwrap_err();
    assert_eq!((full.status, full.code.as_str()), (500, "InsufficientVolumeCapacity"));
    assert!(full.message.starts_with("There is no space left to sell for a snapshot"), "{full:?}");
}

/// The volume of a snapshot may overwrite all its data. There must be space for that beside
/// everything that is sold, and beside snapshots that are being made.
#[test]
fn a_snapshot_is_refused_if_not_all_that_is_sold_could_be_written_then() {
    let fixture = fixture();
    let volume = volume(&fixture.client);
    fixture.agent().with(|state| {
        let total = ByteCount(20 * GIB);
        let free = ByteCount(14 * GIB);
        state.space = Some(Space { total, free });
        state.snapshots_pend = true;
        state.filled = [(volume.parse().unwrap(), ByteCount(6 * GIB))].into();
    });
    let fixture = fixture.restart();
    let first = fixture.snapshot(&volume);
    let call = || fixture.client.call("CreateSnapshot", &[("VolumeId", &volume)]);
    let message = "There is not enough space left to sell for a snapshot: it takes 6.0 GiB, \
                   because its volume may overwrite everything that the two share; 4.0 GiB of \
                   20.0 GiB are left. Make room, or serve with a larger --oversell-space; \
                   `evenkeel volume capacity` lists what is sold.";
    assert_eq!(call().unwrap_err(), refused(500, "InsufficientVolumeCapacity", message));
    assert_eq!(fixture.states(), ["pending"]);
    client_deletes(&fixture.client, &[first]);
    call().unwrap();
}

fn client_deletes(client: &Client, ids: &[String]) {
    for id in ids {
        client.call("DeleteSnapshot", &[("SnapshotId", id)]).unwrap();
    }
}

#[test]
fn a_store_without_snapshots_is_told_apart_and_leaves_nothing() {
    let fixture = fixture();
    let volume = volume(&fixture.client);
    fixture.agent().with(|state| state.no_snapshots = true);
    let code = fixture.client.code("CreateSnapshot", &[("VolumeId", &volume)]);
    assert_eq!(code, "UnsupportedOperation");
    assert!(fixture.describe(&[]).is_empty());
    assert_eq!(fixture.client.call("DescribeUnownedSnapshots", &[]).unwrap().children.len(), 2);
    let fixture = fixture.restart();
    assert!(fixture.describe(&[]).is_empty());
}

#[test]
fn lost_answer_is_looked_up_and_failed_snapshot_is_gone() {
    let fixture = fixture();
    let volume = volume(&fixture.client);
    fixture.agent().with(|state| state.fail_next = Some(FailedKind::Internal));
    assert_eq!(fixture.client.code("CreateSnapshot", &[("VolumeId", &volume)]), "InternalError");
    assert!(fixture.describe(&[]).is_empty());
    // Made, but not complete yet: a restart does not change that.
    fixture.agent().with(|state| state.snapshots_pend = true);
    let id = fixture.snapshot(&volume);
    assert_eq!(fixture.states(), ["pending"]);
    let fixture = fixture.restart();
    assert_eq!(fixture.states(), ["pending"]);
    let complete = |fixture: &Fixture, is_complete| {
        fixture.agent().with(|state| {
            state.snapshots.values_mut().for_each(|stored| stored.is_complete = is_complete);
        });
    };
    complete(&fixture, true);
    fixture.become_so(&["completed"]);
    client_deletes(&fixture.client, &[id]);
    // Never begun: the store does not have it.
    fixture.agent().with(|state| state.fail_next = Some(FailedKind::Unanswered));
    let id = fixture.snapshot(&volume);
    fixture.become_so(&["error"]);
    let found = &fixture.describe(&[("SnapshotId.1", &id)])[0];
    assert!(text(found, "statusMessage").contains("the server ended before"), "{found:?}");
    let zone = ("AvailabilityZone", "local-1a");
    let code = fixture.client.code("CreateVolume", &[zone, ("SnapshotId", &id)]);
    assert_eq!(code, "IncorrectState");
    client_deletes(&fixture.client, &[id]);
    assert!(fixture.describe(&[]).is_empty());
}

#[test]
fn restart_finds_lost_and_unowned_snapshots() {
    let fixture = fixture();
    let volume = volume(&fixture.client);
    let id = fixture.snapshot(&volume);
    let kept = fixture.snapshot(&volume);
    fixture.become_so(&["completed", "completed"]);
    let lost: SnapshotId = id.parse().unwrap();
    let unknown = SnapshotId::from_bits(0xabc);
    fixture.agent().with(|state| {
        let stored: StoredSnapshot = state.snapshots.remove(&lost).unwrap();
        state.snapshots.insert(unknown, StoredSnapshot { id: unknown, ..stored });
    });
    let fixture = fixture.restart();
    let found = &fixture.describe(&[("SnapshotId.1", &id)])[0];
    assert_eq!(text(found, "status"), "error");
    assert!(text(found, "statusMessage").starts_with("its bytes are missing"), "{found:?}");
    let reply = fixture.client.call("DescribeUnownedSnapshots", &[]).unwrap();
    let unowned = reply.items("unownedSnapshotSet");
    assert_eq!(unowned.len(), 1, "it is reported, and not deleted");
    assert_eq!(text(&unowned[0], "snapshotId"), unknown.to_string());
    assert_eq!(text(&unowned[0], "bytes"), "4096");
    let delete = |id: &str| fixture.client.call("DeleteUnownedSnapshot", &[("SnapshotId", id)]);
    assert_eq!(delete(&kept).unwrap_err().code, "InvalidSnapshot.NotFound");
    delete(&unknown.to_string()).unwrap();
    let left = fixture.agent().with(|state| state.snapshots.len());
    assert_eq!(left, 1);
}

#[test]
fn a_deletion_is_repeated_until_it_is_confirmed() {
    let fixture = fixture();
    let volume = volume(&fixture.client);
    let id = fixture.snapshot(&volume);
    fixture.become_so(&["completed"]);
    for _ in 0..2 {
        fixture.agent().with(|state| state.fail_always = Some(FailedKind::Internal));
        let params = [("SnapshotId", id.as_str())];
        let code = fixture.client.code("DeleteSnapshot", &params);
        assert!(["InternalError", "InvalidSnapshot.NotFound"].contains(&code.as_str()), "{code}");
        assert!(fixture.describe(&[]).is_empty());
    }
    let of_stored = |fixture: &Fixture| fixture.agent().with(|state| state.snapshots.len());
    assert_eq!(of_stored(&fixture), 1);
    fixture.agent().with(|state| state.fail_always = None);
    let fixture = fixture.restart();
    assert_eq!(of_stored(&fixture), 0);
    let reply = fixture.client.call("DescribeUnownedSnapshots", &[]).unwrap();
    assert!(reply.items("unownedSnapshotSet").is_empty());
}
