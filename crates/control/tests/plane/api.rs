//! Every action over HTTP, without an SDK: complete replies, errors by code and text.

use std::sync::Arc;

use crate::support;
use crate::support::{
    Client, FakeAgent, Refused, Server, create, local_instance, test_config, text,
};
use evenkeel_control::api::ACTIONS;
use evenkeel_control::{Settings, StoreKey};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::Rules;
use evenkeel_wire::agent::{Command, FailedKind, HostAddress, StoredSnapshot};
use evenkeel_wire::aws::xml::Element;

struct Fixture {
    server: Server,
    client: Client,
    _folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    Fixture { server, client, _folder: folder }
}

fn refused(status: u16, code: &str, message: &str) -> Result<Element, Refused> {
    Err(Refused { status, code: code.into(), message: message.into() })
}

#[test]
fn replies_are_golden() {
    let fixture = fixture();
    let client = &fixture.client;
    let id = create(
        client,
        &[
            ("VolumeType", "gp3"),
            ("Iops", "4000"),
            ("Throughput", "250"),
            ("TagSpecification.1.ResourceType", "volume"),
            ("TagSpecification.1.Tag.1.Key", "Name"),
            ("TagSpecification.1.Tag.1.Value", "a <b> & \"c\""),
        ],
    );
    let instance = local_instance(client);
    let attach = [("VolumeId", id.as_str()), ("InstanceId", &instance), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &attach).unwrap();
    let reply = client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
    let volume = &reply.items("volumeSet")[0];
    let created = text(volume, "createTime");
    let attached = text(&volume.items("attachmentSet")[0], "attachTime");
    let request_id = text(&reply, "requestId");
    let golden = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <DescribeVolumesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>{request_id}</requestId><volumeSet><item><volumeId>{id}</volumeId>\
         <size>10</size>\
         <snapshotId/><availabilityZone>local-1a</availabilityZone>\
         <availabilityZoneId>local1-az1</availabilityZoneId><status>in-use</status>\
         <createTime>{created}</createTime><attachmentSet><item><volumeId>{id}</volumeId>\
         <instanceId>{instance}</instanceId><device>/dev/sdf</device><status>attached</status>\
         <attachTime>{attached}</attachTime><deleteOnTermination>false</deleteOnTermination></item>\
         </attachmentSet><volumeType>gp3</volumeType><encrypted>false</encrypted>\
         <multiAttachEnabled>false</multiAttachEnabled><iops>4000</iops>\
         <throughput>250</throughput>\
         <tagSet><item><key>Name</key><value>a &lt;b&gt; &amp; &quot;c&quot;</value></item>\
         </tagSet>\
         </item></volumeSet></DescribeVolumesResponse>"
    );
    assert_eq!(reply.document(), golden);
    assert_eq!(created.len(), "2026-01-01T00:00:00.000Z".len());

    let error = support::raw(
        client.address,
        b"GET /?Action=X HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    );
    let (head, body) = error.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(head.contains("content-type: text/xml;charset=UTF-8"), "{head}");
    let (start, end) = body.split_once("<RequestID>").unwrap();
    assert_eq!(
        start,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error>\
         <Code>MissingAuthenticationToken</Code><Message>Request is missing Authentication Token; \
         sign it with the keys that `evenkeel env` prints</Message></Error></Errors>"
    );
    assert_eq!(end.len(), "00000000-0000-0000-0000-000000000000</RequestID></Response>".len());
}

#[test]
fn every_action_refuses_parameters_it_does_not_know() {
    let Fixture { server, client, _folder } = fixture();
    let id = create(&client, &[]);
    let instance = local_instance(&client);
    let before = server.agent.with(|state| state.log.len());
    let of = Named {
        volume: &id,
        binned: &id,
        snapshot: SNAPSHOT,
        locked: SNAPSHOT,
        archived: SNAPSHOT,
        binned_snapshot: SNAPSHOT,
        instance: &instance,
        attached_to: &instance,
    };
    for action in ACTIONS {
        let own: Vec<(&str, &str)> = match action.name {
            "CreateVolume" => vec![("AvailabilityZone", "local-1a"), ("Size", "1")],
            "AttachVolume" => {
                vec![("VolumeId", &id), ("InstanceId", &instance), ("Device", "/dev/sdf")]
            }
            "ModifyVolume" => vec![("VolumeId", &id), ("Size", "20")],
            "DeleteVolume" | "DetachVolume" | "SetVolumeCredits" | "DeleteUnownedVolume" => {
                vec![("VolumeId", &id)]
            }
            "AdoptVolume" => vec![("VolumeId", &id), ("VolumeType", "gp3")],
            "CreateSnapshot" => vec![("VolumeId", &id)],
            "CreateSnapshots" => vec![("InstanceSpecification.InstanceId", &instance)],
            "CreateTags" | "DeleteTags" => {
                vec![("ResourceId.1", &id), ("Tag.1.Key", "k"), ("Tag.1.Value", "v")]
            }
            "RegisterHost" => vec![("InstanceType", "m5.large")],
            "DeregisterHost" => vec![("InstanceId", &instance)],
            other => named(other, &of),
        };
        let mut params = own;
        params.push(("Bogus", "1"));
        let text = "The parameter Bogus is not recognized";
        assert_eq!(client.call(action.name, &params), refused(400, "UnknownParameter", text));
    }
    assert_eq!(server.agent.with(|state| state.log.len()), before, "something was done");
    let params = [("Filter.1.Name", "size"), ("Filter.1.Value.1", "1"), ("Filter.1.Odd", "1")];
    assert_eq!(
        client.call("DescribeVolumes", &params),
        refused(400, "UnknownParameter", "The parameter Filter.1.Odd is not recognized")
    );
}

const DRY_RUN: &str = "Request would have succeeded, but DryRun flag is set.";

/// The objects that parameters name.
struct Named<'a> {
    volume: &'a str,
    binned: &'a str,
    snapshot: &'a str,
    locked: &'a str,
    archived: &'a str,
    binned_snapshot: &'a str,
    instance: &'a str,
    /// An instance with a volume as /dev/sdf.
    attached_to: &'a str,
}

/// Returns the required parameters of an action.
fn named<'a>(action: &str, of: &Named<'a>) -> Vec<(&'static str, &'a str)> {
    match action {
        "CopyVolumes" => vec![("SourceVolumeId", of.volume)],
        "CopySnapshot" => vec![("SourceSnapshotId", of.snapshot), ("SourceRegion", "local-1")],
        "DescribeVolumeAttribute" => {
            vec![("VolumeId", of.volume), ("Attribute", "autoEnableIO")]
        }
        "ModifyVolumeAttribute" => {
            vec![("VolumeId", of.volume), ("AutoEnableIO.Value", "true")]
        }
        "DescribeVolumeRecording" | "EnableVolumeIO" => vec![("VolumeId", of.volume)],
        "DescribeHistory" => vec![("Kind", "events")],
        "ModifyNode" => vec![("Node", "a"), ("State", "up")],
        "MoveVolume" => vec![("VolumeId", of.volume), ("Node", "a")],
        "ModifyTestClock" => vec![("AdvanceSeconds", "1")],
        "StartTestFault" => vec![("FaultType", "stuck-attachment")],
        "RestoreVolumeFromRecycleBin" | "PurgeVolume" => vec![("VolumeId", of.binned)],
        "DescribeSnapshotAttribute" | "ResetSnapshotAttribute" => {
            vec![("SnapshotId", of.snapshot), ("Attribute", "createVolumePermission")]
        }
        "EnableSnapshotBlockPublicAccess" => vec![("State", "block-all-sharing")],
        "ModifySnapshotAttribute" => {
            vec![("SnapshotId", of.snapshot), ("CreateVolumePermission.Add.1.Group", "all")]
        }
        "LockSnapshot" => {
            vec![("SnapshotId", of.snapshot), ("LockMode", "governance"), ("LockDuration", "1")]
        }
        "DeleteSnapshot" => vec![("SnapshotId", of.snapshot)],
        "DeleteUnownedSnapshot" => vec![("SnapshotId", SNAPSHOT)],
        "UnlockSnapshot" => vec![("SnapshotId", of.locked)],
        "ModifySnapshotTier" => vec![("SnapshotId", of.snapshot)],
        "RestoreSnapshotTier" => vec![("SnapshotId", of.archived), ("PermanentRestore", "true")],
        "RestoreSnapshotFromRecycleBin" | "PurgeSnapshot" => {
            vec![("SnapshotId", of.binned_snapshot)]
        }
        "EnableFastSnapshotRestores" | "DisableFastSnapshotRestores" => {
            vec![("SourceSnapshotId.1", of.snapshot), ("AvailabilityZone.1", "local-1a")]
        }
        "ModifyEbsDefaultKmsKeyId" => vec![("KmsKeyId", "alias/aws/ebs")],
        "RunInstances" => vec![("MinCount", "1"), ("MaxCount", "1")],
        "StartInstances" | "StopInstances" | "TerminateInstances" => {
            vec![("InstanceId.1", of.instance)]
        }
        "DescribeInstanceAttribute" => {
            vec![("InstanceId", of.instance), ("Attribute", "instanceType")]
        }
        "ModifyInstanceAttribute" => vec![
            ("InstanceId", of.attached_to),
            ("BlockDeviceMapping.1.DeviceName", "/dev/sdf"),
            ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true"),
        ],
        _ => vec![],
    }
}

/// The id of bytes that belong to no volume.
const UNOWNED: &str = "vol-00000000000000abc";
/// The id of a stored snapshot that the database does not have.
const SNAPSHOT: &str = "snap-00000000000000abc";

fn fixture_with_key_and_bin() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        key: Some(StoreKey { id: "01234567-89ab-cdef-0123-456789abcdef".into() }),
        recycle_bin_days: 1,
        ..Settings::default()
    };
    let config = test_config(folder.path(), settings);
    let server = Server::start_with(config, Arc::default()).unwrap();
    let client = server.client();
    Fixture { server, client, _folder: folder }
}

fn attach_to(client: &Client, volume: &str, instance: &str) {
    let place = [("VolumeId", volume), ("InstanceId", instance), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &place).unwrap();
}

fn locked_snapshot(client: &Client, volume: &str) -> String {
    let made = client.call("CreateSnapshot", &[("VolumeId", volume)]).unwrap();
    let id = text(&made, "snapshotId").to_owned();
    let lock = [("SnapshotId", id.as_str()), ("LockMode", "governance"), ("LockDuration", "1")];
    client.call("LockSnapshot", &lock).unwrap();
    id
}

fn archived_snapshot(client: &Client, volume: &str) -> String {
    let made = client.call("CreateSnapshot", &[("VolumeId", volume)]).unwrap();
    let id = text(&made, "snapshotId").to_owned();
    let described = || client.call("DescribeSnapshots", &[("SnapshotId.1", &id)]).unwrap();
    while text(&described().items("snapshotSet")[0], "status") != "completed" {}
    client.call("ModifySnapshotTier", &[("SnapshotId", &id)]).unwrap();
    id
}

#[test]
fn every_action_understands_a_dry_run() {
    let Fixture { server, client, _folder } = fixture_with_key_and_bin();
    let id = create(&client, &[]);
    let binned = create(&client, &[]);
    client.call("DeleteVolume", &[("VolumeId", &binned)]).unwrap();
    let gone = client.call("CreateSnapshot", &[("VolumeId", &id)]).unwrap();
    let binned_snapshot = text(&gone, "snapshotId");
    client.call("DeleteSnapshot", &[("SnapshotId", binned_snapshot)]).unwrap();
    let gp2 = create(&client, &[("VolumeType", "gp2")]);
    let attached = create(&client, &[]);
    let local = local_instance(&client);
    let other = client.call("RegisterHost", &[("InstanceType", "m5.large")]).unwrap();
    let other = text(other.child("instance").unwrap(), "instanceId");
    attach_to(&client, &attached, &local);
    let made = client.call("CreateSnapshot", &[("VolumeId", &id)]).unwrap();
    let known = text(&made, "snapshotId");
    let locked = locked_snapshot(&client, &id);
    let archived = archived_snapshot(&client, &gp2);
    let before = client.call("DescribeVolumes", &[]).unwrap();
    server.agent.with(|state| {
        state.unowned.insert(UNOWNED.parse().unwrap(), ByteCount::from_gib(1));
        let stored = *state.snapshots.values().next().unwrap();
        let id = SNAPSHOT.parse().unwrap();
        state.snapshots.insert(id, StoredSnapshot { id, ..stored });
    });
    let log = server.agent.with(|state| state.log.len());
    let of = Named {
        volume: &id,
        binned: &binned,
        snapshot: known,
        locked: &locked,
        archived: &archived,
        binned_snapshot,
        instance: other,
        attached_to: &local,
    };
    // A server that serves alone has no nodes.
    let of_nodes = ["ModifyNode", "MoveVolume"];
    for action in ACTIONS.iter().filter(|action| !of_nodes.contains(&action.name)) {
        let own: Vec<(&str, &str)> = match action.name {
            "CreateVolume" => vec![("AvailabilityZone", "local-1a"), ("Size", "1")],
            "AttachVolume" => {
                vec![("VolumeId", &id), ("InstanceId", &local), ("Device", "/dev/sdg")]
            }
            "DetachVolume" => vec![("VolumeId", &attached)],
            "ModifyVolume" => vec![("VolumeId", &id), ("Size", "20")],
            "DeleteVolume" => vec![("VolumeId", &id)],
            "AdoptVolume" => vec![("VolumeId", UNOWNED), ("VolumeType", "gp3")],
            "DeleteUnownedVolume" => vec![("VolumeId", UNOWNED)],
            "CreateSnapshot" => vec![("VolumeId", &id)],
            "CreateSnapshots" => vec![("InstanceSpecification.InstanceId", &local)],
            "SetVolumeCredits" => vec![("VolumeId", &gp2), ("Operations", "5")],
            "CreateTags" | "DeleteTags" => vec![("ResourceId.1", &id), ("Tag.1.Key", "k")],
            "RegisterHost" => vec![("InstanceType", "m5.large")],
            "DeregisterHost" => vec![("InstanceId", other)],
            other => named(other, &of),
        };
        let mut params = own;
        params.push(("DryRun", "true"));
        assert_eq!(
            client.call(action.name, &params),
            refused(412, "DryRunOperation", DRY_RUN),
            "{}",
            action.name
        );
    }
    let after = client.call("DescribeVolumes", &[]).unwrap();
    assert_eq!(after.child("volumeSet"), before.child("volumeSet"));
    assert_eq!(server.agent.with(|state| state.log.len()), log);
}

#[test]
fn the_life_of_a_volume() {
    let Fixture { server, client, _folder } = fixture();
    let id = create(&client, &[("VolumeType", "gp2"), ("Size", "100")]);
    let volume_id: VolumeId = id.parse().unwrap();
    let held = |what: &str| {
        let state = server.agent.with(|state| state.volumes.get(&volume_id).cloned());
        state.unwrap_or_else(|| panic!("the data plane does not hold it: {what}"))
    };
    let made = held("created");
    assert_eq!((made.size, made.attachments.as_slice()), (ByteCount::from_gib(100), &[][..]));
    assert_eq!(made.balances.operations, Some(5_400_000));
    let local = local_instance(&client);
    let remote =
        client.call("RegisterHost", &[("InstanceType", "m5.large"), ("Address", "10.0.0.7")]);
    let remote = text(remote.unwrap().child("instance").unwrap(), "instanceId").to_owned();

    let place = |instance, device| {
        [("VolumeId", id.as_str()), ("InstanceId", instance), ("Device", device)]
    };
    let reply = client.call("AttachVolume", &place(&remote, "/dev/sdf")).unwrap();
    assert_eq!(text(&reply, "status"), "attached");
    assert_eq!(held("attached").attachments[0].address, HostAddress::Remote([10, 0, 0, 7].into()));
    let again = client.call("AttachVolume", &place(&local, "/dev/sdf"));
    let text_of = format!("{id} is already attached to an instance");
    assert_eq!(again, refused(400, "VolumeInUse", &text_of));
    let busy = format!("Volume {id} is currently attached to {remote}");
    assert_eq!(
        client.call("DeleteVolume", &[("VolumeId", &id)]),
        refused(400, "VolumeInUse", &busy)
    );
    assert_eq!(client.code("DeregisterHost", &[("InstanceId", &remote)]), "DependencyViolation");
    let elsewhere = client.call("DetachVolume", &[("VolumeId", &id), ("InstanceId", &local)]);
    let text_of =
        format!("Volume {id} can not be detached from {local} because it is not attached");
    assert_eq!(elsewhere, refused(400, "InvalidAttachment.NotFound", &text_of));

    let second = create(&client, &[]);
    let taken = client.call(
        "AttachVolume",
        &[("VolumeId", &second), ("InstanceId", &remote), ("Device", "/dev/sdf")],
    );
    let text_of =
        "Invalid value '/dev/sdf' for unixDevice. Attachment point /dev/sdf is already in use";
    assert_eq!(taken, refused(400, "InvalidParameterValue", text_of));

    let change = [("VolumeId", id.as_str()), ("Size", "200")];
    let reply = client.call("ModifyVolume", &change).unwrap();
    let modification = reply.child("volumeModification").unwrap();
    assert_eq!(text(modification, "modificationState"), "completed");
    assert_eq!(
        (text(modification, "originalIops"), text(modification, "targetIops")),
        ("300", "600")
    );
    assert_eq!(held("grown").size, ByteCount::from_gib(200));
    let shrink = client.call("ModifyVolume", &[("VolumeId", &id), ("Size", "199")]);
    let text_of = "New size cannot be smaller than existing size";
    assert_eq!(shrink, refused(400, "InvalidParameterValue", text_of));

    let reply = client.call("DetachVolume", &[("VolumeId", &id)]).unwrap();
    assert_eq!(text(&reply, "status"), "detached");
    assert_eq!(held("detached").attachments, []);
    let text_of = format!("Volume '{id}' is in the 'available' state.");
    let detached = client.call("DetachVolume", &[("VolumeId", &id)]);
    assert_eq!(detached, refused(400, "IncorrectState", &text_of));
    client.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
    assert!(!server.agent.with(|state| state.volumes.contains_key(&volume_id)));
    assert_eq!(client.code("DescribeVolumes", &[("VolumeId.1", &id)]), "InvalidVolume.NotFound");
    client.call("DeregisterHost", &[("InstanceId", &remote)]).unwrap();
}

#[test]
fn a_volume_is_attached_to_one_host_of_an_address() {
    let Fixture { server: _server, client, _folder } = fixture();
    let io2 = [("VolumeType", "io2"), ("Iops", "100"), ("MultiAttachEnabled", "true")];
    let id = create(&client, &io2);
    let local = local_instance(&client);
    let register = |more: &[(&str, &str)]| {
        let params = [&[("InstanceType", "m5.large")], more].concat();
        let made = client.call("RegisterHost", &params).unwrap();
        text(made.child("instance").unwrap(), "instanceId").to_owned()
    };
    let same = register(&[]);
    let own = register(&[("Address", "127.0.0.2")]);
    let place =
        |instance| [("VolumeId", id.as_str()), ("InstanceId", instance), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &place(&local)).unwrap();
    let message = format!(
        "Volume {id} is attached to {local}, which connects from the same address as {same}, so \
         their requests could not be distinguished. Detach it from {local} first, or attach it to \
         an instance that is registered with an address of its own"
    );
    let answer = client.call("AttachVolume", &place(&same));
    assert_eq!(answer, refused(400, "UnsupportedOperation", &message));
    client.call("AttachVolume", &place(&own)).unwrap();
}

#[test]
fn change_refused_by_the_data_plane_is_taken_back() {
    let Fixture { server, client, _folder } = fixture();
    let fail = |kind| server.agent.with(|state| state.fail_next = Some(kind));
    let zone = [("AvailabilityZone", "local-1a"), ("Size", "10"), ("ClientToken", "t")];
    fail(FailedKind::NoSpace);
    let full = client.call("CreateVolume", &zone).unwrap_err();
    assert_eq!((full.status, full.code.as_str()), (500, "InsufficientVolumeCapacity"));
    assert_eq!(client.call("DescribeVolumes", &[]).unwrap().items("volumeSet"), &[]);

    let reply = client.call("CreateVolume", &zone).unwrap();
    let id = text(&reply, "volumeId");
    let local = local_instance(&client);
    let attach = [("VolumeId", id), ("InstanceId", local.as_str()), ("Device", "sdf")];
    let state = || {
        let reply = client.call("DescribeVolumes", &[("VolumeId.1", id)]).unwrap();
        let volume = &reply.items("volumeSet")[0];
        (text(volume, "status").to_owned(), text(volume, "size").to_owned())
    };
    fail(FailedKind::Internal);
    assert_eq!(client.code("AttachVolume", &attach), "InternalError");
    assert_eq!(state(), ("available".into(), "10".into()));
    // Not an error of the server, which clients would retry, but one of the volume's state, with
    // its text.
    fail(FailedKind::Refused);
    let refused = refused(400, "IncorrectState", "simulated failure: Refused");
    assert_eq!(client.call("AttachVolume", &attach), refused);
    assert_eq!(state(), ("available".into(), "10".into()));
    client.call("AttachVolume", &attach).unwrap();
    fail(FailedKind::Internal);
    assert_eq!(client.code("DetachVolume", &[("VolumeId", id)]), "InternalError");
    assert_eq!(state(), ("in-use".into(), "10".into()));
    fail(FailedKind::NoSpace);
    let grow = [("VolumeId", id), ("Size", "20")];
    assert_eq!(client.code("ModifyVolume", &grow), "InsufficientVolumeCapacity");
    assert_eq!(state(), ("in-use".into(), "10".into()));
    let reply = client.call("DescribeVolumesModifications", &[("VolumeId.1", id)]).unwrap();
    let modification = &reply.items("volumeModificationSet")[0];
    assert_eq!(text(modification, "modificationState"), "failed");
    assert_eq!(text(modification, "statusMessage"), "simulated failure: NoSpace");
    client.call("DetachVolume", &[("VolumeId", id)]).unwrap();
    fail(FailedKind::Internal);
    assert_eq!(client.code("DeleteVolume", &[("VolumeId", id)]), "InternalError");
    assert_eq!(state(), ("available".into(), "10".into()));
    client.call("DeleteVolume", &[("VolumeId", id)]).unwrap();
}

/// The disk hangs for more than a minute. The volume is closed to its host anyway, and must not be
/// shown as attached again.
#[test]
fn unanswered_detach_continues_until_it_is_answered() {
    let Fixture { server, client, _folder } = fixture();
    let id = support::create(&client, &[]);
    let local = local_instance(&client);
    let attach = [("VolumeId", id.as_str()), ("InstanceId", local.as_str()), ("Device", "sdf")];
    client.call("AttachVolume", &attach).unwrap();
    let attachments = || {
        let reply = client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
        let set = reply.items("volumeSet")[0].items("attachmentSet");
        set.iter().map(|item| text(item, "status").to_owned()).collect::<Vec<_>>()
    };
    // While this closure runs, neither the tick nor a request reaches the data plane.
    server.agent.with(|state| state.silent = true);
    assert_eq!(client.code("DetachVolume", &[("VolumeId", &id)]), "InternalError");
    assert_eq!(attachments(), ["detaching"]);
    let again = client.code("DetachVolume", &[("VolumeId", &id)]);
    assert_eq!((again.as_str(), attachments()), ("IncorrectState", vec!["detaching".to_owned()]));
    server.agent.with(|state| {
        state.silent = false;
        state.log.clear();
    });
    // The tick calls again.
    for _ in 0..600 {
        if attachments().is_empty() {
            let detached = |command: &Command| match command {
                Command::Apply(state) => state.attachments.is_empty(),
                _ => false,
            };
            assert!(server.agent.with(|state| state.log.iter().any(detached)));
            client.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
            return;
        }
        server.agent.with(|state| assert!(state.log.len() < 3, "{:?}", state.log));
        std::thread::park_timeout(std::time::Duration::from_millis(100));
    }
    panic!("it is not asked again");
}

#[test]
fn client_tokens_make_requests_idempotent() {
    let fixture = fixture();
    let client = &fixture.client;
    let params = [("AvailabilityZone", "local-1a"), ("Size", "10"), ("ClientToken", "once")];
    let first = client.call("CreateVolume", &params).unwrap();
    let second = client.call("CreateVolume", &params).unwrap();
    assert_eq!(text(&first, "volumeId"), text(&second, "volumeId"));
    let other = [("AvailabilityZone", "local-1a"), ("Size", "11"), ("ClientToken", "once")];
    assert_eq!(client.code("CreateVolume", &other), "IdempotentParameterMismatch");
    client.call("DeleteVolume", &[("VolumeId", text(&first, "volumeId"))]).unwrap();
    assert_eq!(client.code("CreateVolume", &params), "InvalidVolume.NotFound");
}

/// Returns `TagSpecification.1` with these tags, in this order and with these numbers.
fn tagged(numbers: [u32; 3], tags: [(&str, &str); 3]) -> Vec<(String, String)> {
    let mut params = vec![("TagSpecification.1.ResourceType".into(), "volume".into())];
    for (number, (key, value)) in numbers.into_iter().zip(tags) {
        params.push((format!("TagSpecification.1.Tag.{number}.Key"), key.into()));
        params.push((format!("TagSpecification.1.Tag.{number}.Value"), value.into()));
    }
    params
}

#[test]
fn client_tokens_accept_the_same_tags_in_any_order() {
    let fixture = fixture();
    let client = &fixture.client;
    let source = create(client, &[]);
    let [a, b, c] = [("a", "1"), ("b", "2"), ("c", "3")];
    let orders = [
        tagged([1, 2, 3], [a, b, c]),
        tagged([1, 2, 3], [c, a, b]),
        tagged([3, 2, 1], [b, c, a]),
        tagged([2, 4, 9], [a, c, b]),
    ];
    // Other tags: the values are exchanged, one differs, one is left out.
    let mut fewer = tagged([1, 2, 3], [a, b, c]);
    fewer.truncate(5);
    let others = [
        tagged([1, 2, 3], [("a", "2"), ("b", "1"), c]),
        tagged([1, 2, 3], [a, b, ("c", "4")]),
        fewer,
    ];
    let create = [("AvailabilityZone", "local-1a"), ("Size", "1"), ("ClientToken", "create")];
    let copy = [("SourceVolumeId", source.as_str()), ("ClientToken", "copy")];
    for (action, own) in [("CreateVolume", &create[..]), ("CopyVolumes", &copy)] {
        let with = |tags: &[(String, String)]| {
            let mut params = own.to_vec();
            params.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            let reply = client.call(action, &params)?;
            let copied = reply.items("volumeSet").first();
            Ok::<_, Refused>(text(copied.unwrap_or(&reply), "volumeId").to_owned())
        };
        let first = with(&orders[0]).unwrap();
        for tags in &orders[1..] {
            assert_eq!(with(tags).unwrap(), first, "{action} {tags:?}");
        }
        for tags in &others {
            let refused = with(tags).unwrap_err();
            assert_eq!(refused.code, "IdempotentParameterMismatch", "{action} {tags:?}");
        }
    }
    assert_eq!(client.call("DescribeVolumes", &[]).unwrap().items("volumeSet").len(), 3);
}

#[test]
fn tag_specifications_have_a_tag_and_a_type_of_their_own() {
    let fixture = fixture();
    let client = &fixture.client;
    let of = |number: u32, field: &str| format!("TagSpecification.{number}.{field}");
    let [kind, key, second, second_key] =
        [of(1, "ResourceType"), of(1, "Tag.1.Key"), of(2, "ResourceType"), of(2, "Tag.1.Key")];
    let zone = [("AvailabilityZone", "local-1a"), ("Size", "1")];
    let empty = [&zone[..], &[(&kind, "volume")]].concat();
    let twice = [(kind.as_str(), "volume"), (&key, "a"), (&second, "volume"), (&second_key, "b")];
    let twice = [&zone[..], &twice].concat();
    for (params, message) in [
        (empty, "Tag specification must have at least one tag"),
        (twice, "The same resource type may not be specified more than once in tag specifications"),
    ] {
        let expected = refused(400, "InvalidParameterValue", message);
        assert_eq!(client.call("CreateVolume", &params), expected);
    }
    assert!(client.call("DescribeVolumes", &[]).unwrap().items("volumeSet").is_empty());
}

#[test]
fn resources_without_tags_are_described_without_a_tag_set() {
    let fixture = fixture();
    let client = &fixture.client;
    let volume = create(client, &[]);
    let of = [("VolumeId", volume.as_str())];
    let snapshot = client.call("CreateSnapshot", &of).unwrap();
    let instance = local_instance(client);
    let shown = |action: &str, set: &str| {
        let reply = client.call(action, &[]).unwrap();
        reply.items(set)[0].clone()
    };
    let all = || {
        let reservation = shown("DescribeInstances", "reservationSet");
        [
            shown("DescribeVolumes", "volumeSet"),
            shown("DescribeSnapshots", "snapshotSet"),
            reservation.items("instancesSet")[0].clone(),
        ]
    };
    assert!(all().iter().all(|it| it.child("tagSet").is_none()));
    assert_eq!(snapshot.child("tagSet").map(|tags| tags.children.len()), Some(0));
    let ids = [volume.as_str(), text(&snapshot, "snapshotId"), &instance];
    let names = ["ResourceId.1", "ResourceId.2", "ResourceId.3"].into_iter();
    let mut params: Vec<(&str, &str)> = names.zip(ids).collect();
    params.extend([("Tag.1.Key", "team"), ("Tag.1.Value", "blue")]);
    client.call("CreateTags", &params).unwrap();
    assert!(all().iter().all(|it| it.items("tagSet").len() == 1));
    for (action, set) in [
        ("DescribeVolumes", "volumeSet"),
        ("DescribeSnapshots", "snapshotSet"),
        ("DescribeInstances", "reservationSet"),
    ] {
        for (value, count) in [("bl*", 1), ("team", 0)] {
            let filter = [("Filter.1.Name", "tag-value"), ("Filter.1.Value.1", value)];
            let found = client.call(action, &filter).unwrap();
            assert_eq!(found.items(set).len(), count, "{action} {value}");
        }
    }
}

#[test]
fn ids_of_8_digits_are_not_found_and_others_are_malformed() {
    let fixture = fixture();
    let client = &fixture.client;
    let attach =
        |volume, instance| [("VolumeId", volume), ("InstanceId", instance), ("Device", "/dev/sdf")];
    let id = create(client, &[]);
    for (action, params, code) in [
        ("DescribeVolumes", &[("VolumeId.1", "vol-12345678")][..], "InvalidVolume.NotFound"),
        ("DeleteVolume", &[("VolumeId", "vol-12345678")], "InvalidVolume.NotFound"),
        ("DeleteVolume", &[("VolumeId", "vol-1234567")], "InvalidVolumeID.Malformed"),
        ("DeleteVolume", &[("VolumeId", "vol-1234567X")], "InvalidVolumeID.Malformed"),
        ("DeleteVolume", &[("VolumeId", "snap-12345678")], "InvalidVolumeID.Malformed"),
        ("DeleteSnapshot", &[("SnapshotId", "snap-12345678")], "InvalidSnapshot.NotFound"),
        ("DeleteSnapshot", &[("SnapshotId", "snap-123456789")], "InvalidSnapshotID.Malformed"),
        ("DescribeInstances", &[("InstanceId.1", "i-12345678")], "InvalidInstanceID.NotFound"),
        ("AttachVolume", &attach(id.as_str(), "i-12345678"), "InvalidInstanceID.NotFound"),
        ("AttachVolume", &attach(id.as_str(), "i-1"), "InvalidInstanceID.Malformed"),
        ("CreateTags", &TAG_SHORT, "InvalidVolume.NotFound"),
    ] {
        assert_eq!(client.code(action, params), code, "{action} {params:?}");
    }
}

const TAG_SHORT: [(&str, &str); 2] = [("ResourceId.1", "vol-12345678"), ("Tag.1.Key", "a")];

#[test]
fn pages_and_filters() {
    let fixture = fixture();
    let client = &fixture.client;
    let mut ids: Vec<String> =
        (1..=12).map(|size| create(client, &[("Size", &size.to_string())])).collect();
    client
        .call(
            "CreateTags",
            &[
                ("ResourceId.1", &ids[2]),
                ("ResourceId.2", &ids[3]),
                ("Tag.1.Key", "team"),
                ("Tag.1.Value", "blue-1"),
            ],
        )
        .unwrap();
    client.call("DeleteTags", &[("ResourceId.1", &ids[3]), ("Tag.1.Key", "team")]).unwrap();
    let by = |name: &str, values: &[&str]| {
        let values: Vec<(String, &str)> =
            values.iter().zip(1..).map(|(v, n)| (format!("Filter.1.Value.{n}"), *v)).collect();
        let mut params = vec![("Filter.1.Name", name)];
        params.extend(values.iter().map(|(n, v)| (n.as_str(), *v)));
        let reply = client.call("DescribeVolumes", &params).unwrap();
        let found = reply.items("volumeSet").iter();
        found.map(|volume| text(volume, "volumeId").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(by("size", &["3"]), [ids[2].clone()]);
    assert_eq!(by("size", &["1?"]).len(), 3);
    assert_eq!(by("size", &["1", "2"]).len(), 2);
    assert_eq!(by("tag:team", &["blue-*"]), [ids[2].clone()]);
    assert_eq!(by("tag-key", &["team"]), [ids[2].clone()]);
    assert_eq!(by("status", &["in-use"]).len(), 0);
    assert_eq!(by("volume-id", &[&ids[5]]), [ids[5].clone()]);
    for (name, value) in [
        ("availability-zone", "local-1a"),
        ("availability-zone-id", "local1-az1"),
        ("volume-type", "gp2"),
        ("status", "available"),
        ("encrypted", "false"),
        ("multi-attach-enabled", "false"),
        ("create-time", "20*"),
        ("snapshot-id", ""),
        ("iops", "100"),
    ] {
        assert_eq!(by(name, &[value]).len(), 12, "{name}");
    }
    let tags =
        client.call("DescribeTags", &[("Filter.1.Name", "key"), ("Filter.1.Value.1", "team")]);
    assert_eq!(tags.unwrap().items("tagSet").len(), 1);

    let mut seen = Vec::new();
    let mut token = None;
    loop {
        let mut params = vec![("MaxResults", "5")];
        params.extend(token.as_deref().map(|token| ("NextToken", token)));
        let reply = client.call("DescribeVolumes", &params).unwrap();
        seen.extend(reply.items("volumeSet").iter().map(|v| text(v, "volumeId").to_owned()));
        token = reply.child_text("nextToken").map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    ids.sort();
    assert_eq!(seen, ids);
}

#[test]
fn describe_endpoints_lists_the_tcp_and_unix_sockets() {
    let fixture = fixture();
    let reply = fixture.client.call("DescribeEndpoints", &[]).unwrap();
    let socket = fixture._folder.path().join("nbd.sock");
    let endpoints = reply.items("endpointSet").iter().map(|item| {
        let field = |name| text(item, name);
        (field("protocol"), field("transport"), field("address"))
    });
    let tcp = ("nbd", "tcp", "127.0.0.1:10809");
    assert_eq!(endpoints.collect::<Vec<_>>(), [tcp, ("nbd", "unix", socket.to_str().unwrap())]);
}

#[test]
fn credits_are_shown_and_set() {
    let Fixture { server, client, _folder } = fixture();
    let gp2 = create(&client, &[("VolumeType", "gp2"), ("Size", "100")]);
    let gp3 = create(&client, &[("VolumeType", "gp3")]);
    let reply =
        client.call("SetVolumeCredits", &[("VolumeId", &gp2), ("Operations", "1000")]).unwrap();
    let credit = reply.child("volumeCredit").unwrap().child("operations").unwrap();
    let shown =
        ["balance", "capacity", "refillPerSecond", "burstPerSecond"].map(|n| text(credit, n));
    assert_eq!(shown, ["1000", "5400000", "300", "3000"]);
    let id: VolumeId = gp2.parse().unwrap();
    assert_eq!(server.agent.with(|s| s.volumes[&id].balances.operations), Some(1_000));
    let all = client.call("DescribeVolumeCredits", &[]).unwrap();
    assert_eq!(all.items("volumeCreditSet").len(), 2);
    let reply = client.call("DescribeVolumeCredits", &[("VolumeId.1", &gp3)]).unwrap();
    assert!(reply.items("volumeCreditSet")[0].child("operations").is_none());
    let too_many = [("VolumeId", gp2.as_str()), ("Operations", "5400001")];
    assert_eq!(client.code("SetVolumeCredits", &too_many), "InvalidParameterValue");
    let none = [("VolumeId", gp3.as_str()), ("Operations", "1")];
    assert_eq!(client.code("SetVolumeCredits", &none), "InvalidParameterCombination");
    assert_eq!(client.code("SetVolumeCredits", &[("VolumeId", &gp2)]), "MissingParameter");
}

#[test]
fn metrics_of_volumes_come_with_their_limits_and_in_pages() {
    let Fixture { server, client, _folder } = fixture();
    let gp2 = create(&client, &[("VolumeType", "gp2"), ("Size", "100")]);
    let gp3 = create(&client, &[("VolumeType", "gp3")]);
    let reply = client.call("DescribeVolumeMetrics", &[("VolumeId.1", &gp2)]).unwrap();
    let [item] = reply.items("volumeMetricSet") else { panic!("{reply:?}") };
    assert_eq!((text(item, "volumeId"), text(item, "volumeType")), (gp2.as_str(), "gp2"));
    assert_eq!((text(item, "countedIos"), text(item, "queueLength")), ("0", "0"));
    assert!(text(item, "sampleTimeMs").parse::<u64>().unwrap() > 0);
    let limit = item.child("operations").unwrap();
    let shown = ["perSecond", "refillPerSecond", "capacity", "balance"].map(|n| text(limit, n));
    assert_eq!(shown, ["3000", "300", "5400000", "5400000"]);
    assert_eq!(text(item.child("reads").unwrap(), "count"), "0");
    let mut seen = vec![];
    let mut token: Option<String> = None;
    loop {
        let mut params = vec![("MaxResults", "1")];
        params.extend(token.as_deref().map(|token| ("NextToken", token)));
        let page = client.call("DescribeVolumeMetrics", &params).unwrap();
        seen.extend(page.items("volumeMetricSet").iter().map(|i| text(i, "volumeId").to_owned()));
        token = page.child_text("nextToken").map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    let mut all = vec![gp2, gp3];
    all.sort();
    assert_eq!(seen, all);
    let absent = [("VolumeId.1", "vol-0000000000000dead")];
    assert_eq!(client.code("DescribeVolumeMetrics", &absent), "InvalidVolume.NotFound");
    assert_eq!(
        client.code("DescribeVolumeMetrics", &[("MaxResults", "0")]),
        "InvalidParameterValue"
    );
    server.agent.with(|state| state.fail_always = Some(FailedKind::Down));
    assert_eq!(client.code("DescribeVolumeMetrics", &[]), "InternalError");
    server.agent.with(|state| state.fail_always = None);
}

#[test]
fn the_rules_of_2012_can_be_served() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = support::config(folder.path());
    config.settings.rules = Rules::as_of("2012-08".parse().unwrap()).unwrap();
    let server = Server::start_with(config, Arc::new(FakeAgent::default())).unwrap();
    let client = server.client();
    let id = create(&client, &[]);
    let reply = client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
    assert_eq!(text(&reply.items("volumeSet")[0], "volumeType"), "standard");
    let gp3 = [("AvailabilityZone", "local-1a"), ("Size", "10"), ("VolumeType", "gp3")];
    assert_eq!(client.code("CreateVolume", &gp3), "UnknownVolumeType");
    assert_eq!(
        client.code("ModifyVolume", &[("VolumeId", &id), ("Size", "11")]),
        "UnsupportedOperation"
    );
}
