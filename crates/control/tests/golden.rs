//! The bytes of replies: a success and an error of every action, as `golden_replies.txt` has them.
//! Ids, times and other values that differ from run to run are replaced by names.
//! `EVENKEEL_WRITE=1` writes the file. Clients see every change in it.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use evenkeel_control::api::ACTIONS;
use evenkeel_control::{Settings, StoreKey};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, LinearCost};
use evenkeel_core::time::Duration;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_wire::agent::{Capacity, Measured, Space, StoredSnapshot};
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::xml::Element;
use support::{Client, FakeAgent, Server, test_config, text};

const ZONE: (&str, &str) = ("AvailabilityZone", "local-1a");
const UNOWNED: &str = "vol-00000000000000abc";
const ABSENT_VOLUME: &str = "vol-00000000000000fff";
const ABSENT_SNAPSHOT: &str = "snap-00000000000000fff";
const ABSENT_INSTANCE: &str = "i-00000000000000fff";
/// Elements whose text depends on the time.
const VOLATILE: [&str; 7] = [
    "lastSequence",
    "nextToken",
    "sampleTimeMs",
    "secondsLeft",
    "soldBytes",
    "timeMs",
    "verifiedBytes",
];

/// Sends requests, and records them with their replies.
struct Script {
    client: Client,
    folder: String,
    /// The name that replaces each id.
    names: BTreeMap<String, String>,
    written: String,
    statuses: BTreeMap<String, BTreeSet<bool>>,
}

impl Script {
    fn call(&mut self, action: &str, params: &[(&str, &str)]) -> (u16, String) {
        let fixed = [("Action", action), ("Version", "2016-11-15")];
        let body = query::encode(fixed.iter().chain(params).copied());
        let answer = self.client.post_until_taken(&body);
        let asked: String = params.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let asked = self.normal(&format!("== {action}{asked}"));
        let shown = self.normal(&answer.body).replace("><", ">\n<");
        writeln!(self.written, "{asked}\n{}\n{shown}\n", answer.status).unwrap();
        self.statuses.entry(action.to_owned()).or_default().insert(answer.status == 200);
        (answer.status, answer.body)
    }

    #[track_caller]
    fn ok(&mut self, action: &str, params: &[(&str, &str)]) -> Element {
        let (status, body) = self.call(action, params);
        assert_eq!(status, 200, "{action}: {body}");
        Element::parse(&body).unwrap()
    }

    #[track_caller]
    fn no(&mut self, action: &str, params: &[(&str, &str)]) {
        let (status, body) = self.call(action, params);
        assert_ne!(status, 200, "{action}: {body}");
    }

    /// Returns the text of a child of a successful reply.
    #[track_caller]
    fn id(&mut self, action: &str, params: &[(&str, &str)], name: &str) -> String {
        text(&self.ok(action, params), name).to_owned()
    }

    /// Returns the text with names for ids, and the same word for every time and every request id.
    fn normal(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let before = out.chars().last().is_some_and(|c| c.is_ascii_alphanumeric() || c == '-');
            let (taken, shown) = match form(rest).filter(|_| !before) {
                Some(Form::Id(length)) => (length, self.name_of(&rest[..length])),
                Some(Form::Time) => (TIME.len(), "TIME".to_owned()),
                Some(Form::Uuid) => (UUID.len(), "UUID".to_owned()),
                None => (first.len_utf8(), first.to_string()),
            };
            out += &shown;
            rest = &rest[taken..];
        }
        VOLATILE.iter().fold(out.replace(&self.folder, "FOLDER"), |text, name| hidden(&text, name))
    }

    fn name_of(&mut self, id: &str) -> String {
        let (kind, number) = id.split_once('-').unwrap();
        // Ids that the tests have chosen stay.
        if number.starts_with("00000000") || number.starts_with("ffffffff") {
            return id.to_owned();
        }
        let next = self.names.keys().filter(|known| known.starts_with(&id[..=kind.len()])).count();
        let name = || format!("{kind}-{}", next + 1);
        self.names.entry(id.to_owned()).or_insert_with(name).clone()
    }
}

enum Form {
    Id(usize),
    Time,
    Uuid,
}

const TIME: &str = "0000-00-00T00:00:00.000Z";
const UUID: &str = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

/// Returns the form with which a text begins, if any.
fn form(text: &str) -> Option<Form> {
    let matches = |pattern: &str| {
        let is = |(found, wanted): (u8, u8)| match wanted {
            b'0' => found.is_ascii_digit(),
            b'x' => found.is_ascii_hexdigit(),
            other => found == other,
        };
        text.len() >= pattern.len() && text.bytes().zip(pattern.bytes()).all(is)
    };
    for prefix in ["vol-", "snap-", "i-", "r-"] {
        if matches(&(prefix.to_owned() + &"x".repeat(17))) {
            return Some(Form::Id(prefix.len() + 17));
        }
    }
    match () {
        () if matches(TIME) => Some(Form::Time),
        () if matches(UUID) => Some(Form::Uuid),
        () => None,
    }
}

/// Returns the text without that of an element.
fn hidden(text: &str, name: &str) -> String {
    let open = format!("<{name}>");
    let close = format!("</{name}>");
    let mut parts = text.split(&open);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, after) = part.split_once(&close).unwrap();
        out += &format!("{open}...{close}{after}");
    }
    out
}

fn capacity() -> Capacity {
    let cost = LinearCost { base: Duration::ZERO, byte_ps: 1_000 };
    let costs = Costs { read: cost, write: cost };
    Capacity::Measured(Box::new(Measured {
        calibration: "cal-0123".into(),
        date: "2026-11-21T04:00:00.000Z".into(),
        device: DeviceFloor { time_ns_per_second: 5_000_000_000, costs },
        domain: DomainFloor::UNLIMITED,
        nodes: Vec::new(),
        strained: Vec::new(),
        left_ppm: 900_000,
    }))
}

fn served(run: impl FnOnce(&mut Script, &FakeAgent)) -> Script {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(FakeAgent::default());
    agent.with(|state| {
        state.capacity = capacity();
        let total = ByteCount(4_000 * GIB);
        let free = ByteCount(3_000 * GIB);
        state.space = Some(Space { total, free });
    });
    let settings = Settings {
        key: Some(StoreKey { id: "01234567-89ab-cdef-0123-456789abcdef".into() }),
        recycle_bin_days: 1,
        ..Settings::default()
    };
    let config = test_config(folder.path(), settings);
    let server = Server::start_with(config, Arc::clone(&agent)).unwrap();
    let mut script = Script {
        client: server.client(),
        folder: folder.path().display().to_string(),
        names: BTreeMap::new(),
        written: String::new(),
        statuses: BTreeMap::new(),
    };
    run(&mut script, &agent);
    script
}

/// Requests about a server before anything is created.
fn world(script: &mut Script) {
    const BOGUS: (&str, &str) = ("Bogus", "1");
    script.ok("DescribeRegions", &[]);
    script.no("DescribeRegions", &[("RegionName.1", "us-east-1")]);
    script.ok("DescribeAvailabilityZones", &[]);
    script.no("DescribeAvailabilityZones", &[("ZoneName.1", "us-east-1a")]);
    script.ok("DescribeAccountAttributes", &[]);
    script.no("DescribeAccountAttributes", &[("AttributeName.1", "nothing")]);
    script.ok("DescribeImages", &[]);
    script.no("DescribeImages", &[("ImageId.1", "ami-12345678")]);
    script.ok("DescribeVpcs", &[]);
    script.no("DescribeVpcs", &[("VpcId.1", "vpc-12345678")]);
    script.ok("DescribeAddresses", &[]);
    script.no("DescribeAddresses", &[("PublicIp.1", "192.0.2.1")]);
    script.ok("DescribeInstanceTypes", &[("InstanceType.1", "m5.large")]);
    script.no("DescribeInstanceTypes", &[("InstanceType.1", "m5.huge")]);
    script.ok("DescribeEndpoints", &[]);
    script.no("DescribeEndpoints", &[BOGUS]);
    script.ok("DescribeInstanceStatus", &[]);
    script.no("DescribeInstanceStatus", &[("InstanceId.1", ABSENT_INSTANCE)]);
    script.ok("DescribeInstances", &[]);
    script.no("DescribeInstances", &[("InstanceId.1", ABSENT_INSTANCE)]);
    script.ok("GetEbsEncryptionByDefault", &[]);
    script.no("GetEbsEncryptionByDefault", &[BOGUS]);
    script.ok("EnableEbsEncryptionByDefault", &[]);
    script.no("EnableEbsEncryptionByDefault", &[("DryRun", "true")]);
    script.ok("DisableEbsEncryptionByDefault", &[]);
    script.no("DisableEbsEncryptionByDefault", &[("DryRun", "true")]);
    script.ok("GetEbsEncryptionByDefault", &[]);
    script.ok("GetSnapshotBlockPublicAccessState", &[]);
    script.no("GetSnapshotBlockPublicAccessState", &[BOGUS]);
    script.ok("EnableSnapshotBlockPublicAccess", &[("State", "block-new-sharing")]);
    script.no("EnableSnapshotBlockPublicAccess", &[("State", "unblocked")]);
    script.ok("GetSnapshotBlockPublicAccessState", &[]);
    script.ok("DisableSnapshotBlockPublicAccess", &[]);
    script.no("DisableSnapshotBlockPublicAccess", &[("DryRun", "true")]);
    script.ok("GetEbsDefaultKmsKeyId", &[]);
    script.no("GetEbsDefaultKmsKeyId", &[BOGUS]);
    script.ok("ModifyEbsDefaultKmsKeyId", &[("KmsKeyId", "alias/aws/ebs")]);
    script.no("ModifyEbsDefaultKmsKeyId", &[("KmsKeyId", "alias/mine")]);
    script.ok("ResetEbsDefaultKmsKeyId", &[]);
    script.no("ResetEbsDefaultKmsKeyId", &[("DryRun", "true")]);
    script.ok("StopScrub", &[]);
    script.no("StopScrub", &[BOGUS]);
    script.ok("DescribeScrub", &[]);
    script.no("DescribeScrub", &[BOGUS]);
    script.no("StartScrub", &[("MiBPerSecond", "0")]);
    script.ok("StartScrub", &[("MiBPerSecond", "1")]);
}

/// Requests about a volume, from its creation to an attachment.
fn volumes(script: &mut Script, agent: &FakeAgent) -> (String, String) {
    let tags = [
        ("TagSpecification.1.ResourceType", "volume"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.1.Tag.1.Value", "a <b> & \"c\""),
    ];
    let new = [&[ZONE, ("Size", "10"), ("VolumeType", "gp3")][..], &tags].concat();
    let id = script.id("CreateVolume", &new, "volumeId");
    let volume = ("VolumeId", id.as_str());
    script.no("CreateVolume", &[ZONE, ("Size", "0"), ("VolumeType", "gp3")]);
    let gp2 = script.id("CreateVolume", &[ZONE, ("Size", "10"), ("VolumeType", "gp2")], "volumeId");
    let host = [("InstanceType", "m5.large"), ("Address", "10.0.0.7")];
    let registered = script.ok("RegisterHost", &host);
    let host = text(registered.child("instance").unwrap(), "instanceId").to_owned();
    script.no("RegisterHost", &[("InstanceType", "m5.huge")]);
    let instance = ("InstanceId", host.as_str());
    script.ok("AttachVolume", &[volume, instance, ("Device", "/dev/sdf")]);
    script.no("AttachVolume", &[volume, instance, ("Device", "/dev/sdf")]);
    script.ok("ModifyVolume", &[volume, ("Size", "20"), ("Iops", "4000")]);
    script.no("ModifyVolume", &[volume, ("Size", "5")]);
    let listed = ("VolumeId.1", id.as_str());
    script.ok("DescribeVolumes", &[listed]);
    script.no("DescribeVolumes", &[("VolumeId.1", ABSENT_VOLUME)]);
    script.ok("DescribeVolumesModifications", &[listed]);
    script.no("DescribeVolumesModifications", &[("VolumeId.1", gp2.as_str())]);
    script.ok("DescribeVolumeStatus", &[listed]);
    script.no("DescribeVolumeStatus", &[("MaxResults", "1")]);
    script.ok("DescribeVolumeAttribute", &[volume, ("Attribute", "autoEnableIO")]);
    script.no("DescribeVolumeAttribute", &[volume, ("Attribute", "size")]);
    script.ok("ModifyVolumeAttribute", &[volume, ("AutoEnableIO.Value", "true")]);
    script.no("ModifyVolumeAttribute", &[volume]);
    script.ok("EnableVolumeIO", &[volume]);
    script.no("EnableVolumeIO", &[("VolumeId", ABSENT_VOLUME)]);
    script.ok("DescribeVolumeCredits", &[("VolumeId.1", gp2.as_str())]);
    script.no("DescribeVolumeCredits", &[("NextToken", "zz")]);
    script.ok("SetVolumeCredits", &[("VolumeId", &gp2), ("Operations", "5")]);
    script.no("SetVolumeCredits", &[volume, ("Operations", "5")]);
    script.ok("DescribeVolumeMetrics", &[listed]);
    script.no("DescribeVolumeMetrics", &[("VolumeId.1", ABSENT_VOLUME)]);
    // A time before its creation, for which there is no data.
    let before =
        [volume, ("StartTime", "2020-01-01T00:00:00Z"), ("EndTime", "2020-01-02T00:00:00Z")];
    script.ok("DescribeVolumeRecording", &before);
    script.no("DescribeVolumeRecording", &[volume, ("StartTime", "yesterday")]);
    agent.with(|state| state.unowned.insert(UNOWNED.parse::<VolumeId>().unwrap(), ByteCount(GIB)));
    script.ok("DescribeUnownedVolumes", &[]);
    script.no("DescribeUnownedVolumes", &[("Bogus", "1")]);
    script.ok("AdoptVolume", &[("VolumeId", UNOWNED), ("VolumeType", "gp3")]);
    script.no("AdoptVolume", &[("VolumeId", UNOWNED), ("VolumeType", "gp3")]);
    let other: VolumeId = "vol-00000000000000abd".parse().unwrap();
    agent.with(|state| state.unowned.insert(other, ByteCount(GIB)));
    script.ok("DeleteUnownedVolume", &[("VolumeId", "vol-00000000000000abd")]);
    script.no("DeleteUnownedVolume", &[("VolumeId", &id)]);
    (id, host)
}

/// Requests about its snapshots, and copies of them.
fn snapshots(script: &mut Script, agent: &FakeAgent, volume: &str, host: &str) {
    let of = ("VolumeId", volume);
    let id = script.id("CreateSnapshot", &[of, ("Description", "first")], "snapshotId");
    script.no("CreateSnapshot", &[("VolumeId", ABSENT_VOLUME)]);
    let from = ("InstanceSpecification.InstanceId", host);
    script.ok("CreateSnapshots", &[from, ("Description", "both")]);
    script.no("CreateSnapshots", &[("InstanceSpecification.InstanceId", ABSENT_INSTANCE)]);
    script.ok("DescribeSnapshots", &[("SnapshotId.1", &id)]);
    script.no("DescribeSnapshots", &[("SnapshotId.1", ABSENT_SNAPSHOT)]);
    let source = [("SourceSnapshotId", id.as_str()), ("SourceRegion", "local-1")];
    let copy = script.id("CopySnapshot", &source, "snapshotId");
    script.no("CopySnapshot", &[source[0], ("SourceRegion", "us-east-1")]);
    script.ok("CreateVolume", &[ZONE, ("SnapshotId", &id), ("VolumeType", "gp3")]);
    script.ok("CopyVolumes", &[("SourceVolumeId", volume), ("VolumeType", "gp3")]);
    script.no("CopyVolumes", &[("SourceVolumeId", volume), ("Size", "5")]);
    let snapshot = ("SnapshotId", id.as_str());
    let permission = ("Attribute", "createVolumePermission");
    let adding = ("CreateVolumePermission.Add.1.UserId", "111122223333");
    script.ok("ModifySnapshotAttribute", &[snapshot, adding]);
    script.no("ModifySnapshotAttribute", &[snapshot]);
    script.ok("DescribeSnapshotAttribute", &[snapshot, permission]);
    script.no("DescribeSnapshotAttribute", &[snapshot, ("Attribute", "size")]);
    script.ok("ResetSnapshotAttribute", &[snapshot, permission]);
    script.no("ResetSnapshotAttribute", &[("SnapshotId", ABSENT_SNAPSHOT), permission]);
    let fast = [("SourceSnapshotId.1", id.as_str()), ("AvailabilityZone.1", "local-1a")];
    script.ok("EnableFastSnapshotRestores", &fast);
    script.no("EnableFastSnapshotRestores", &[fast[0], ("AvailabilityZone.1", "x")]);
    script.ok("DescribeFastSnapshotRestores", &[]);
    script.no("DescribeFastSnapshotRestores", &[("Filter.1.Name", "x")]);
    script.ok("DisableFastSnapshotRestores", &fast);
    script.no("DisableFastSnapshotRestores", &[fast[0]]);
    let lock = [("LockMode", "governance"), ("LockDuration", "1")];
    script.ok("LockSnapshot", &[&[snapshot][..], &lock].concat());
    script.no("LockSnapshot", &[snapshot, ("LockMode", "governance")]);
    script.ok("DescribeLockedSnapshots", &[]);
    script.no("DescribeLockedSnapshots", &[("SnapshotId.1", ABSENT_SNAPSHOT)]);
    script.no("DeleteSnapshot", &[snapshot]);
    script.ok("UnlockSnapshot", &[snapshot]);
    script.no("UnlockSnapshot", &[snapshot]);
    script.no("RestoreSnapshotTier", &[snapshot, ("PermanentRestore", "true")]);
    script.ok("ModifySnapshotTier", &[snapshot, ("StorageTier", "archive")]);
    script.no("ModifySnapshotTier", &[snapshot]);
    script.no("CreateVolume", &[ZONE, ("SnapshotId", &id), ("VolumeType", "gp3")]);
    let only = [("Filter.1.Name", "snapshot-id"), ("Filter.1.Value.1", id.as_str())];
    script.ok("DescribeSnapshotTierStatus", &only);
    script.no("DescribeSnapshotTierStatus", &[("Filter.1.Name", "x")]);
    script.ok("RestoreSnapshotTier", &[snapshot, ("TemporaryRestoreDays", "1")]);
    script.no("RestoreSnapshotTier", &[snapshot]);
    script.ok("RestoreSnapshotTier", &[snapshot, ("PermanentRestore", "true")]);
    script.ok("DeleteSnapshot", &[snapshot]);
    script.ok("ListSnapshotsInRecycleBin", &[]);
    script.no("ListSnapshotsInRecycleBin", &[("SnapshotId.1", &copy)]);
    script.ok("RestoreSnapshotFromRecycleBin", &[snapshot]);
    script.no("RestoreSnapshotFromRecycleBin", &[snapshot]);
    script.ok("DeleteSnapshot", &[("SnapshotId", &copy)]);
    script.ok("PurgeSnapshot", &[("SnapshotId", &copy)]);
    script.no("PurgeSnapshot", &[("SnapshotId", &copy)]);
    let unknown = "snap-00000000000000abc".parse().unwrap();
    agent.with(|state| {
        let stored = *state.snapshots.values().next().unwrap();
        let of = Some("vol-00000000000000abe".parse().unwrap());
        state.snapshots.insert(unknown, StoredSnapshot { id: unknown, volume: of, ..stored });
    });
    script.ok("DescribeUnownedSnapshots", &[]);
    script.no("DescribeUnownedSnapshots", &[("Bogus", "1")]);
    script.ok("DeleteUnownedSnapshot", &[("SnapshotId", "snap-00000000000000abc")]);
    script.no("DeleteUnownedSnapshot", &[snapshot]);
}

/// Requests about tags and client hosts, and the deletion of everything.
fn hosts(script: &mut Script, volume: &str, host: &str) {
    let of = ("VolumeId", volume);
    let instance = ("InstanceId", host);
    let tag = [("ResourceId.1", volume), ("Tag.1.Key", "k"), ("Tag.1.Value", "v")];
    script.ok("CreateTags", &tag);
    script.no("CreateTags", &tag[..1]);
    script.ok("DescribeTags", &[("Filter.1.Name", "key"), ("Filter.1.Value.1", "k")]);
    script.no("DescribeTags", &[("Filter.1.Name", "nothing"), ("Filter.1.Value.1", "k")]);
    script.ok("DeleteTags", &tag);
    script.no("DeleteTags", &[("ResourceId.1", "x")]);
    let device = ("BlockDeviceMapping.1.DeviceName", "/dev/sdf");
    let keeps = ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "false");
    script.ok("ModifyInstanceAttribute", &[instance, device, keeps]);
    script.no("ModifyInstanceAttribute", &[instance, ("InstanceType.Value", "m5.xlarge")]);
    script.ok("DescribeInstanceAttribute", &[instance, ("Attribute", "blockDeviceMapping")]);
    script.no("DescribeInstanceAttribute", &[instance, ("Attribute", "kernel")]);
    let new = [("MinCount", "1"), ("MaxCount", "1"), ("InstanceType", "m5.large")];
    let ran = script.ok("RunInstances", &new);
    let ran = text(&ran.items("instancesSet")[0], "instanceId").to_owned();
    script.no("RunInstances", &[("MinCount", "2"), ("MaxCount", "1")]);
    script.ok("DescribeInstances", &[("InstanceId.1", host)]);
    for action in ["StopInstances", "StartInstances", "TerminateInstances"] {
        script.ok(action, &[("InstanceId.1", &ran)]);
        script.no(action, &[("InstanceId.1", ABSENT_INSTANCE)]);
    }
    script.no("DeregisterHost", &[instance]);
    script.no("DeleteVolume", &[of]);
    script.ok("DetachVolume", &[of]);
    script.no("DetachVolume", &[of]);
    script.ok("DeregisterHost", &[instance]);
    script.ok("DeleteVolume", &[of]);
    script.ok("ListVolumesInRecycleBin", &[]);
    script.no("ListVolumesInRecycleBin", &[("MaxResults", "1")]);
    script.ok("RestoreVolumeFromRecycleBin", &[of]);
    script.no("RestoreVolumeFromRecycleBin", &[of]);
    script.ok("DeleteVolume", &[of]);
    script.ok("PurgeVolume", &[of]);
    script.no("PurgeVolume", &[of]);
    script.ok("DescribeCapacity", &[]);
    script.no("DescribeCapacity", &[("Bogus", "1")]);
    let since = ("StartTime", "2020-01-01T00:00:00Z");
    script.no("DescribeHistory", &[since]);
    script.no("DescribeHistory", &[("Kind", "rumours"), since]);
    script.no("DescribeHistory", &[("Kind", "metrics"), ("StartTime", "yesterday")]);
    script.ok("DescribeHistory", &[("Kind", "events"), ("AfterSequence", "100000")]);
    script.ok("DescribeNodes", &[]);
    script.no("DescribeNodes", &[("Bogus", "1")]);
    script.no("MoveVolume", &[("VolumeId", "vol-00000000000000abd"), ("Node", "a")]);
    script.no("ModifyNode", &[("Node", "a"), ("State", "draining")]);
    script.no("ModifyNode", &[("Node", "a"), ("State", "tired")]);
    let of_volume = [("Filter.1.Name", "event"), ("Filter.1.Value.1", "createVolume")];
    script.ok("DescribeEvents", &[of_volume[0], of_volume[1], ("AfterSequence", "100000")]);
    script.no("DescribeEvents", &[("MaxResults", "0")]);
}

/// Requests about the clock and the faults of a server for tests.
fn test_server(script: &mut Script) {
    script.ok("DescribeTestClock", &[]);
    script.no("DescribeTestClock", &[("Bogus", "1")]);
    script.ok("ModifyTestClock", &[("AdvanceSeconds", "3600"), ("State", "running")]);
    script.no("ModifyTestClock", &[("AdvanceSeconds", "34560001")]);
    script.no("ModifyTestClock", &[("Time", "2001-02-03T04:05:06Z"), ("AdvanceSeconds", "1")]);
    script.no("ModifyTestClock", &[("State", "late")]);
    script.no("ModifyTestClock", &[]);
    let all = ("FaultType", "volume-io-latency");
    let slow = [all, ("DurationSeconds", "600"), ("ReadLatencyMilliseconds", "250")];
    script.ok("StartTestFault", &slow);
    script.no("StartTestFault", &[all, ("WritePercentage", "101")]);
    script.no("StartTestFault", &[("FaultType", "earthquake")]);
    let throttle = ("FaultType", "api-throttle-error");
    let some = [throttle, ("Operation.1", "DescribeVolumes"), ("Percentage", "25")];
    script.ok("StartTestFault", &some);
    script.no("StartTestFault", &[throttle, ("Operation.1", "DescribeVolume")]);
    script.no("StartTestFault", &[throttle, ("VolumeId.1", ABSENT_VOLUME)]);
    script.no("StartTestFault", &[all, ("VolumeId.1", ABSENT_VOLUME)]);
    script.ok("DescribeTestFaults", &[]);
    script.no("DescribeTestFaults", &[("Bogus", "1")]);
    script.ok("StopTestFaults", &[("FaultId.1", "fault-1")]);
    script.no("StopTestFaults", &[("FaultId.1", "fault-1")]);
    script.ok("StopTestFaults", &[]);
}

#[test]
fn replies_are_those_of_the_file() {
    let script = served(|script, agent| {
        world(script);
        let (volume, host) = volumes(script, agent);
        snapshots(script, agent, &volume, &host);
        hosts(script, &volume, &host);
        test_server(script);
    });
    for action in ACTIONS {
        let seen = script.statuses.get(action.name).cloned().unwrap_or_default();
        // A server that serves alone has no nodes.
        let is_of_nodes = ["ModifyNode", "MoveVolume"].contains(&action.name);
        let expected = if is_of_nodes { 1 } else { 2 };
        assert_eq!(seen.len(), expected, "{}: a success and an error", action.name);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden_replies.txt");
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        std::fs::write(path, &script.written).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap_or_default();
    let both = golden.lines().zip(script.written.lines());
    let differs = both.enumerate().find(|(_, (golden, found))| golden != found);
    assert!(
        golden == script.written,
        "replies differ from golden_replies.txt (line, (there, now)): {differs:#?}\n\
         EVENKEEL_WRITE=1 cargo test -p evenkeel-control --test golden  # writes it again"
    );
}
