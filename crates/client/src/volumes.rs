//! Creates, attaches and reads volumes, and waits for their states; the parameters of tags.

use crate::events::{PAGE, Page};
use crate::model::{Credits, VolumeDescription, VolumeStatus};
use crate::output::{Exit, Failure, or_dash};
use crate::progress::Progress;
use crate::{Client, hosts};
use evenkeel_core::ids::SnapshotId;
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use std::time::Duration;

/// Properties of a new volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewVolume {
    pub volume_type: VolumeType,
    /// `None` for the size of the snapshot.
    pub size_gib: Option<u32>,
    /// The snapshot that the volume begins as.
    pub snapshot: Option<SnapshotId>,
    /// `None` for the server's first zone.
    pub zone: Option<String>,
    pub iops: Option<u32>,
    pub throughput_mibps: Option<u32>,
    pub multi_attach: bool,
    pub encrypted: bool,
    pub tags: Vec<(String, String)>,
}

impl From<&VolumeRequest> for NewVolume {
    /// Returns an empty, plain volume without tags in the server's first zone.
    fn from(request: &VolumeRequest) -> Self {
        Self {
            volume_type: request.volume_type,
            size_gib: Some(request.size_gib),
            snapshot: None,
            zone: None,
            iops: request.iops,
            throughput_mibps: request.throughput_mibps,
            multi_attach: request.multi_attach,
            encrypted: false,
            tags: Vec::new(),
        }
    }
}

/// Creates a volume.
///
/// With a `timeout`, waits until the volume is available, for this time at most.
pub fn create(
    client: &Client,
    new: &NewVolume,
    timeout: Option<Duration>,
) -> Result<VolumeDescription, Failure> {
    let zone = new.zone.clone().map_or_else(|| zone(client), Ok)?;
    let volume_type = new.volume_type.to_string();
    let size = new.size_gib.map(|n| n.to_string());
    let snapshot = new.snapshot.map(|id| id.to_string());
    let iops = new.iops.map(|n| n.to_string());
    let throughput = new.throughput_mibps.map(|n| n.to_string());
    let mut parameters = vec![("AvailabilityZone", zone.as_str()), ("VolumeType", &volume_type)];
    parameters.extend(size.as_deref().map(|n| ("Size", n)));
    parameters.extend(snapshot.as_deref().map(|id| ("SnapshotId", id)));
    parameters.extend(iops.as_deref().map(|n| ("Iops", n)));
    parameters.extend(throughput.as_deref().map(|n| ("Throughput", n)));
    parameters.extend(new.multi_attach.then_some(("MultiAttachEnabled", "true")));
    parameters.extend(new.encrypted.then_some(("Encrypted", "true")));
    let tags = tag_specification("volume", &new.tags);
    parameters.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let volume = VolumeDescription::read(&client.call("CreateVolume", &parameters)?);
    once_available(client, volume, timeout)
}

/// Returns a new volume. With a `timeout`, waits until it is available, for this time at most.
pub fn once_available(
    client: &Client,
    volume: VolumeDescription,
    timeout: Option<Duration>,
) -> Result<VolumeDescription, Failure> {
    let Some(timeout) = timeout else { return Ok(volume) };
    let id = &volume.volume_id;
    wait_for_state(client, id, "available", timeout).map_err(|failure| {
        // The server removes a volume whose creation fails.
        let is_gone = failure.exit == Exit::NotFound;
        let reason = is_gone.then(|| failed_creation(client, id)).flatten();
        reason.map_or(failure, |reason| Failure::new(format!("{id} was not created: {reason}")))
    })
}

/// Returns the reason for which the server has removed a new volume, from its events; `None` if
/// they do not have it.
fn failed_creation(client: &Client, id: &str) -> Option<String> {
    let mut after = 0;
    let mut reason = None;
    loop {
        let after_text = after.to_string();
        let wanted = [
            ("AfterSequence", after_text.as_str()),
            ("MaxResults", PAGE),
            ("Filter.1.Name", "resource"),
            ("Filter.1.Value.1", id),
            ("Filter.2.Name", "event"),
            ("Filter.2.Value.1", "createVolume"),
        ];
        let page = Page::read(&client.call("DescribeEvents", &wanted).ok()?);
        let mut causes =
            page.events.iter().filter_map(|event| event.event["detail"]["cause"].as_str());
        reason = causes.rfind(|cause| !cause.is_empty()).map(str::to_owned).or(reason);
        if page.examined <= after || page.examined >= page.last {
            return reason;
        }
        after = page.examined;
    }
}

/// Creates a volume and attaches it to this machine.
///
/// Waits until the volume is available, and until it is attached, for `timeout` at most each.
pub fn create_and_attach(
    client: &Client,
    new: &NewVolume,
    timeout: Duration,
) -> Result<VolumeDescription, Failure> {
    let id = create(client, new, Some(timeout))?.volume_id;
    attach(client, &id, None, None, Some(timeout))?;
    get(client, &id)
}

/// Attaches a volume to a host (default: this machine) under a device name (default: a free one).
///
/// With a `timeout`, waits until the volume is attached, for this time at most.
pub fn attach(
    client: &Client,
    id: &str,
    host: Option<&str>,
    device: Option<&str>,
    timeout: Option<Duration>,
) -> Result<(), Failure> {
    let known = match host {
        Some(host) => hosts::get(client, host)?,
        None => Some(hosts::local(client)?),
    };
    let used = known.as_ref().map(|host| host.devices.as_slice()).unwrap_or_default();
    let device = match device {
        Some(device) => device.to_owned(),
        None => free_device(used).ok_or_else(|| {
            Failure::new(format!("all device names of {} are in use", or_dash(host)))
                .hint("name another with --device")
        })?,
    };
    // An unknown host is sent to the server, which returns the error.
    let host = host.map(str::to_owned).or(known.map(|known| known.host_id)).unwrap_or_default();
    let parameters = [("VolumeId", id), ("InstanceId", &host), ("Device", &device)];
    client.call("AttachVolume", &parameters)?;
    let Some(timeout) = timeout else { return Ok(()) };
    client.wait(&format!("{id} to be attached to {host}"), timeout, |client| {
        let attached = get(client, id)?
            .attachments
            .iter()
            .any(|attachment| attachment.host_id == host && attachment.state == "attached");
        Ok(attached.then_some(()))
    })
}

/// Detaches a volume from a host (default: the only one).
///
/// With a `timeout`, waits until the volume is detached, for this time at most.
pub fn detach(
    client: &Client,
    id: &str,
    host: Option<&str>,
    timeout: Option<Duration>,
) -> Result<(), Failure> {
    let mut parameters = vec![("VolumeId", id)];
    parameters.extend(host.map(|host| ("InstanceId", host)));
    client.call("DetachVolume", &parameters)?;
    let Some(timeout) = timeout else { return Ok(()) };
    client.wait(&format!("{id} to be detached"), timeout, |client| {
        let attachments = get(client, id)?.attachments;
        let is_of_host = |attached: &str| host.is_none_or(|host| host == attached);
        let is_gone = !attachments.iter().any(|attachment| is_of_host(&attachment.host_id));
        Ok(is_gone.then_some(()))
    })
}

/// Waits until a volume can be modified again, for `timeout` at most. Its new limits are in force
/// earlier.
pub fn wait_for_modification(client: &Client, id: &str, timeout: Duration) -> Result<(), Failure> {
    client.wait(&format!("the modification of {id} to complete"), timeout, |client| {
        let answer = client.call("DescribeVolumesModifications", &[("VolumeId.1", id)])?;
        let state = answer.items("volumeModificationSet").first();
        match state.and_then(|item| item.child_text("modificationState")) {
            Some("completed") => Ok(Some(())),
            Some("failed") => Err(Failure::new(format!("the modification of {id} failed"))),
            _ => Ok(None),
        }
    })
}

/// Returns the first unused one of EC2's names for data volumes: /dev/sd[f-p], then
/// `/dev/xvd[b-c][a-z]`.
pub fn free_device(used: &[String]) -> Option<String> {
    let short = ('f'..='p').map(|letter| format!("/dev/sd{letter}"));
    let long = ('b'..='c').flat_map(|a| ('a'..='z').map(move |b| format!("/dev/xvd{a}{b}")));
    short.chain(long).find(|device| !used.contains(device))
}

/// Reads the present state of a volume.
pub fn get(client: &Client, id: &str) -> Result<VolumeDescription, Failure> {
    let answer = client.call("DescribeVolumes", &[("VolumeId.1", id)])?;
    VolumeDescription::set(&answer).into_iter().next().ok_or_else(|| {
        Failure::new(format!("the server returns nothing for {id}")).exit(Exit::NotFound)
    })
}

/// Returns the server's first zone.
pub fn zone(client: &Client) -> Result<String, Failure> {
    let zones = client.call("DescribeAvailabilityZones", &[])?;
    let zone = zones.items("availabilityZoneInfo").first();
    Ok(zone.and_then(|item| item.child_text("zoneName")).unwrap_or_default().to_owned())
}

/// Returns whether a volume of this type has provisioned IOPS, and not IOPS by its size.
pub fn is_provisioned(volume: &VolumeDescription) -> bool {
    ["gp3", "io1", "io2"].contains(&volume.volume_type.as_str())
}

/// Returns the tags of a new resource of this type; nothing if there are none.
pub fn tag_specification(resource_type: &str, tags: &[(String, String)]) -> Vec<(String, String)> {
    let mut all = tag_parameters("TagSpecification.1.Tag", tags);
    if !all.is_empty() {
        all.push(("TagSpecification.1.ResourceType".to_owned(), resource_type.to_owned()));
    }
    all
}

/// Returns `Prefix.1.Key`, `Prefix.1.Value`, `Prefix.2.Key`, ...
pub fn tag_parameters(prefix: &str, tags: &[(String, String)]) -> Vec<(String, String)> {
    let pairs = tags.iter().zip(1..).map(|((key, value), number)| {
        [
            (format!("{prefix}.{number}.Key"), key.clone()),
            (format!("{prefix}.{number}.Value"), value.clone()),
        ]
    });
    pairs.flatten().collect()
}

/// Waits until a volume is in a state. Fails if it cannot reach that state any more.
pub fn wait_for_state(
    client: &Client,
    id: &str,
    state: &str,
    timeout: Duration,
) -> Result<VolumeDescription, Failure> {
    let progress = Progress::of_steps(100);
    let reached = client.wait(&format!("{id} to be {state}"), timeout, |client| {
        let volume = get(client, id)?;
        match volume.state.as_str() {
            "error" => {
                return Err(Failure::new(format!("{id} is in state error: it could not be made")));
            }
            "creating" => {
                let answer = client.call("DescribeVolumeStatus", &[("VolumeId.1", id)])?;
                let status = VolumeStatus::set(&answer).into_iter().next().unwrap_or_default();
                let percent = status.initialized_percent.unwrap_or_default();
                progress.at(percent.into(), &format!("{id} is creating"));
            }
            _ => {}
        }
        Ok(Some(volume).filter(|volume| volume.state == state))
    });
    progress.done();
    reached
}

/// Reads the credit balances of a volume.
pub fn credits(client: &Client, id: &str) -> Result<Credits, Failure> {
    let answer = client.call("DescribeVolumeCredits", &[("VolumeId.1", id)])?;
    Ok(Credits::set(&answer).into_iter().next().unwrap_or_default())
}

/// Sets the balance of the only kind of credits that the volume has.
pub fn set_credits(client: &Client, id: &str, balance: u64) -> Result<(), Failure> {
    let present = credits(client, id)?;
    let name = if present.operations.is_some() {
        "Operations"
    } else if present.bytes.is_some() {
        "Bytes"
    } else {
        let none = format!("{id} has no credits: only gp2, st1 and sc1 volumes do");
        return Err(Failure::new(none).exit(Exit::Usage));
    };
    let parameters = [("VolumeId", id), (name, &balance.to_string())];
    client.call("SetVolumeCredits", &parameters).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_numbered_from_one() {
        let tags = [("Name".to_owned(), "log".to_owned()), ("a".to_owned(), String::new())];
        let parameters = tag_parameters("TagSpecification.1.Tag", &tags);
        let names: Vec<&str> = parameters.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "TagSpecification.1.Tag.1.Key",
                "TagSpecification.1.Tag.1.Value",
                "TagSpecification.1.Tag.2.Key",
                "TagSpecification.1.Tag.2.Value"
            ]
        );
    }

    #[test]
    fn device_names_are_taken_in_order_and_run_out() {
        assert_eq!(free_device(&[]).unwrap(), "/dev/sdf");
        let mut used = vec!["/dev/sdg".to_owned()];
        while let Some(device) = free_device(&used) {
            used.push(device);
        }
        assert_eq!(used.len(), 11 + 52);
        assert_eq!(used[11], "/dev/xvdba");
        used.retain(|device| device != "/dev/sdp");
        assert_eq!(free_device(&used).unwrap(), "/dev/sdp");
    }
}
