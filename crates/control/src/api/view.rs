//! Volumes, snapshots, hosts and their parts as EC2's XML. Element names are those of botocore's
//! EC2 model.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use crate::model::{
    Attachment, Host, HostState, Model, Modification, ModificationPhase, Phase, Settings, Snapshot,
    SnapshotPhase, Tags, Volume,
};
use crate::plane::Plane;

/// Device names of the boot volume of EC2's instances; the first is the usual one.
pub const BOOT_DEVICES: [&str; 2] = ["/dev/sda1", "/dev/xvda"];
/// The list of tags of a resource.
const TAG_SET: &str = "tagSet";
/// Type of the boot volume of all instances.
pub const ROOT_DEVICE_TYPE: &str = "ebs";

/// Returns a point in time.
pub fn time(name: &str, at: UnixMs) -> Element {
    Element::text(name, timestamp::extended(at.0))
}

/// Returns the reply of actions that return only success.
pub fn success() -> Vec<Element> {
    vec![Element::text("return", true)]
}

/// Returns a list, `<name><item/>...</name>`, and the token of the next page.
pub fn paged(name: &str, items: Vec<Element>, token: Option<String>) -> Vec<Element> {
    let token = token.map(|token| Element::text("nextToken", token));
    [Element::list(name, items)].into_iter().chain(token).collect()
}

/// Returns a zone, and its id if it is still one of the server.
pub fn zone(settings: &Settings, name: &str) -> impl Iterator<Item = Element> + use<> {
    let id = settings.zone_id(name).map(|id| Element::text("availabilityZoneId", id));
    [Element::text("availabilityZone", name)].into_iter().chain(id)
}

/// Completes the description of a resource for the action that makes it: with an empty list of tags
/// if there are none, as on EC2.
pub fn made(mut fields: Vec<Element>) -> Vec<Element> {
    if fields.iter().all(|field| field.name != TAG_SET) {
        fields.push(Element::new(TAG_SET));
    }
    fields
}

/// Returns the tags of a resource; `None` without tags, because EC2 leaves the list out of
/// descriptions.
pub fn tag_set(tags: &Tags) -> Option<Element> {
    let item = |(key, value): (&String, &String)| {
        Element::list("item", [Element::text("key", key), Element::text("value", value)])
    };
    (!tags.is_empty()).then(|| Element::list(TAG_SET, tags.iter().map(item)))
}

pub fn limits(spec: &VolumeSpec) -> impl Iterator<Item = Element> {
    let iops = spec.iops.map(|iops| Element::text("iops", iops));
    let throughput = spec.throughput_mibps.map(|mibps| Element::text("throughput", mibps));
    iops.into_iter().chain(throughput)
}

/// Returns a volume in the form of CreateVolume and DescribeVolumes.
pub fn volume(settings: &Settings, volume: &Volume) -> Vec<Element> {
    let spec = &volume.spec;
    let attachments = volume.attachments.iter().map(|attachment| {
        Element::list("item", attachment_fields(volume.id, attachment, attachment.state.name()))
    });
    let mut fields = vec![
        Element::text("volumeId", volume.id),
        Element::text("size", spec.size_gib),
        match volume.snapshot {
            Some(snapshot) => Element::text("snapshotId", snapshot),
            None => Element::new("snapshotId"),
        },
    ];
    fields.extend(zone(settings, &volume.zone));
    fields.extend([
        Element::text("status", volume.state().name()),
        time("createTime", volume.created),
        Element::list("attachmentSet", attachments),
        Element::text("volumeType", spec.volume_type),
        Element::text("encrypted", volume.is_encrypted),
        Element::text("multiAttachEnabled", spec.multi_attach),
    ]);
    fields.extend(key_id(settings, volume.is_encrypted));
    fields.extend(volume.source.map(|source| Element::text("sourceVolumeId", source)));
    if volume.is_fast_restored {
        fields.push(Element::text("fastRestored", true));
    }
    fields.extend(limits(spec));
    fields.extend(tag_set(&volume.tags));
    if let Phase::Error(reason) = &volume.phase {
        // An extension: EC2 does not return the reason.
        fields.push(Element::text("errorReason", reason));
    }
    fields
}

/// Returns the id of the key of an encrypted volume or snapshot.
fn key_id(settings: &Settings, is_encrypted: bool) -> Option<Element> {
    let key = settings.key.as_ref().filter(|_| is_encrypted)?;
    Some(Element::text("kmsKeyId", key.arn(settings)))
}

/// Returns the fields of a snapshot that all actions return; the name of its state differs.
pub fn snapshot_fields(plane: &Plane, snapshot: &Snapshot, state: &str) -> Vec<Element> {
    vec![
        Element::text("snapshotId", snapshot.id),
        Element::text("volumeId", snapshot.volume),
        Element::text(state, snapshot.state()),
        time("startTime", snapshot.started),
        Element::text("progress", format!("{}%", plane.percent(snapshot))),
        Element::text("ownerId", &plane.settings.account),
        Element::text("volumeSize", snapshot.size_gib),
        Element::text("description", &snapshot.description),
        Element::text("encrypted", snapshot.is_encrypted),
    ]
}

/// Returns a snapshot in the form of CreateSnapshot and DescribeSnapshots.
pub fn snapshot(plane: &Plane, snapshot: &Snapshot) -> Vec<Element> {
    let mut fields = snapshot_fields(plane, snapshot, "status");
    fields.extend(key_id(&plane.settings, snapshot.is_encrypted));
    let now = plane.now();
    fields.push(Element::text("storageTier", snapshot.tier(now)));
    fields.extend(snapshot.restored_until(now).map(|until| time("restoreExpiryTime", until)));
    match &snapshot.phase {
        SnapshotPhase::Completed { data, ended } => {
            fields.push(time("completionTime", *ended));
            fields.push(Element::text("fullSnapshotSizeInBytes", data.0));
        }
        SnapshotPhase::Error(reason) => fields.push(Element::text("statusMessage", reason)),
        SnapshotPhase::Copying { .. } => {
            let reason = plane.copy_waits_for(snapshot.id);
            fields.extend(reason.map(|reason| Element::text("statusMessage", reason)));
        }
        SnapshotPhase::Pending
        | SnapshotPhase::Filling
        | SnapshotPhase::Deleting { .. }
        | SnapshotPhase::Binned { .. } => {}
    }
    fields.extend(tag_set(&snapshot.tags));
    fields
}

/// Returns a snapshot in the form of CreateSnapshots.
pub fn snapshot_of_set(plane: &Plane, snapshot: &Snapshot) -> Vec<Element> {
    let mut fields = snapshot_fields(plane, snapshot, "state");
    fields.extend(tag_set(&snapshot.tags));
    made(fields)
}

/// Returns an attachment in the form of AttachVolume, DetachVolume and DescribeVolumes.
pub fn attachment_fields(volume: VolumeId, attachment: &Attachment, state: &str) -> Vec<Element> {
    vec![
        Element::text("volumeId", volume),
        Element::text("instanceId", attachment.instance),
        Element::text("device", &attachment.device),
        Element::text("status", state),
        time("attachTime", attachment.attached),
        Element::text("deleteOnTermination", attachment.delete_on_termination),
    ]
}

/// Returns a modification in the form of ModifyVolume and DescribeVolumesModifications.
pub fn modification(volume: VolumeId, modification: &Modification, now: UnixMs) -> Vec<Element> {
    let (state, progress, ended) = modification.progress(now);
    let mut fields =
        vec![Element::text("volumeId", volume), Element::text("modificationState", state)];
    if let ModificationPhase::Failed { reason, .. } = &modification.phase {
        fields.push(Element::text("statusMessage", reason));
    }
    for (side, spec) in [("target", &modification.target), ("original", &modification.original)] {
        let field = |what: &str, value: String| Element::text(&format!("{side}{what}"), value);
        fields.push(field("Size", spec.size_gib.to_string()));
        fields.push(field("VolumeType", spec.volume_type.to_string()));
        fields.push(field("MultiAttachEnabled", spec.multi_attach.to_string()));
        fields.extend(spec.iops.map(|iops| field("Iops", iops.to_string())));
        fields.extend(spec.throughput_mibps.map(|mibps| field("Throughput", mibps.to_string())));
    }
    fields.push(Element::text("progress", progress));
    fields.push(time("startTime", modification.started));
    fields.extend(ended.map(|ended| time("endTime", ended)));
    fields
}

/// Returns a host as an instance of DescribeInstances.
pub fn host(settings: &Settings, model: &Model, host: &Host) -> Vec<Element> {
    let tenancy = Element::text("tenancy", "default");
    let placement = zone(settings, host.zone(settings)).chain([tenancy]);
    let mut fields = vec![
        Element::text("instanceId", host.id),
        host_state("instanceState", host.state),
        Element::text("instanceType", &host.instance_type),
        time("launchTime", host.registered),
        Element::list("placement", placement),
        Element::text("privateIpAddress", address(host)),
        Element::text("ebsOptimized", true),
        Element::text("rootDeviceType", ROOT_DEVICE_TYPE),
        Element::text("rootDeviceName", root_device(model, host)),
        block_devices(settings, model, host),
    ];
    fields.extend(tag_set(&host.tags));
    fields
}

/// Returns the device name of a host's boot volume: that of the volume attached as one, or the
/// usual one. A record has nothing to boot, but clients expect the name.
pub fn root_device(model: &Model, host: &Host) -> &'static str {
    let is_attached =
        |device: &&str| model.attachments_of(host.id).any(|(_, a)| a.device == **device);
    BOOT_DEVICES.into_iter().find(is_attached).unwrap_or(BOOT_DEVICES[0])
}

/// Returns the volumes of a host: the boot volume, then the others in the order of their
/// attachment.
pub fn block_devices(settings: &Settings, model: &Model, host: &Host) -> Element {
    let root = root_device(model, host);
    let mut attached: Vec<_> = model.attachments_of(host.id).collect();
    attached.sort_by_key(|(_, a)| (a.device != root, a.attached, a.device.clone()));
    let mappings = attached.into_iter().map(|(volume, attachment)| {
        let ebs = [
            Element::text("volumeId", volume.id),
            Element::text("status", attachment.state.name()),
            time("attachTime", attachment.attached),
            Element::text("deleteOnTermination", attachment.delete_on_termination),
            Element::text("volumeOwnerId", &settings.account),
        ];
        let device = Element::text("deviceName", &attachment.device);
        Element::list("item", [device, Element::list("ebs", ebs)])
    });
    Element::list("blockDeviceMapping", mappings)
}

/// Returns a host's state in EC2's form.
pub fn host_state(name: &str, state: HostState) -> Element {
    let (text, code) = state.name();
    Element::list(name, [Element::text("code", code), Element::text("name", text)])
}

/// Returns the address from which a host connects.
pub fn address(host: &Host) -> String {
    match host.address {
        HostAddress::Local => "127.0.0.1".into(),
        HostAddress::Remote(ip) => ip.to_string(),
    }
}
