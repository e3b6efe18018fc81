//! Attaching volumes to hosts and detaching them.

use evenkeel_core::ids::{InstanceId, VolumeId};

use super::{
    ATTACHMENTS_MAX, Attachment, AttachmentState, Decision, Event, HostState, Model, Phase,
    Refusal, Settings, UnixMs,
};

/// The parameters of an attachment to create.
pub(super) struct NewAttachment<'a> {
    pub id: VolumeId,
    pub instance: InstanceId,
    pub device: &'a str,
}

impl Model {
    pub(super) fn attach(
        &self,
        settings: &Settings,
        new: &NewAttachment<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewAttachment { id, instance, device } = new;
        let volume = self.volume(id)?;
        let host = self.host(instance)?;
        if matches!(host.state, HostState::Terminated { .. }) {
            return Err(Refusal::HostTerminated(instance));
        }
        let address = host.address;
        if !is_device_name(device) {
            return Err(Refusal::DeviceMalformed(device.into()));
        }
        if volume.zone != host.zone(settings) {
            return Err(Refusal::ZoneMismatch(id, instance));
        }
        if volume.phase != Phase::Ready {
            return Err(Refusal::NotAvailable(id, volume.state()));
        }
        let here = volume.attachments.iter().any(|a| a.instance == instance);
        if here || (!volume.attachments.is_empty() && !volume.spec.multi_attach) {
            return Err(Refusal::AlreadyAttached(id));
        }
        if volume.attachments.len() >= ATTACHMENTS_MAX {
            return Err(Refusal::AttachmentLimit(id));
        }
        if let Some(most) = host.attachments_max()
            && self.attachments_of(instance).count() >= most
        {
            let instance_type = host.instance_type.clone();
            return Err(Refusal::HostIsFull { instance, instance_type, most });
        }
        // Several instances on one machine are allowed, each with volumes of its own.
        let shares = |other: &&Attachment| {
            self.hosts.get(&other.instance).is_some_and(|host| host.address == address)
        };
        if let Some(Attachment { instance: other, .. }) = volume.attachments.iter().find(shares) {
            return Err(Refusal::AddressShared { volume: id, instance, other: *other });
        }
        if !volume.is_settled() {
            return Err(Refusal::Unsettled(id));
        }
        if self.index.has_device(instance, device) {
            return Err(Refusal::DeviceTaken(device.into()));
        }
        let mut volume = volume.clone();
        volume.attachments.push(Attachment {
            instance,
            device: device.into(),
            state: AttachmentState::Attaching,
            attached: now,
            delete_on_termination: false,
        });
        Ok(Decision::changing(volume))
    }

    pub(super) fn detach(
        &self,
        id: VolumeId,
        instance: Option<InstanceId>,
        device: &Option<String>,
    ) -> Result<Decision, Refusal> {
        let mut volume = self.volume(id)?.clone();
        if volume.attachments.is_empty() {
            return Err(Refusal::NotAttached(id, volume.state()));
        }
        if let Some(instance) = instance {
            self.host(instance)?;
        } else if volume.spec.multi_attach && volume.attachments.len() > 1 {
            return Err(Refusal::InstanceMustBeNamed(id));
        }
        // A volume in error waits for its bytes, so it may stay unsettled for a long time.
        let settled = volume.is_settled() || matches!(volume.phase, Phase::Error(_));
        let place =
            volume.attachments.iter_mut().find(|a| instance.is_none_or(|i| i == a.instance));
        let Some(attachment) = place else {
            // Without a host's id the first attachment was chosen.
            return match instance {
                Some(instance) => Err(Refusal::NotAttachedTo(id, instance)),
                None => Err(Refusal::InstanceMustBeNamed(id)),
            };
        };
        if let Some(device) = device.as_ref().filter(|device| **device != attachment.device) {
            return Err(Refusal::NotAttachedAs(id, attachment.instance, device.clone()));
        }
        if !settled {
            return Err(Refusal::Unsettled(id));
        }
        attachment.state = AttachmentState::Detaching;
        Ok(Decision::changing(volume))
    }
}

impl Model {
    pub(super) fn set_delete_on_termination(
        &self,
        instance: InstanceId,
        devices: &[(String, bool)],
    ) -> Result<Decision, Refusal> {
        self.host(instance)?;
        let mut events = Vec::new();
        for (device, is_deleted) in devices {
            let found = self.attachments_of(instance).find(|(_, a)| a.device == *device);
            let Some((volume, _)) = found else {
                return Err(Refusal::NoDevice(instance, device.clone()));
            };
            let mut volume = volume.clone();
            for attachment in &mut volume.attachments {
                if attachment.instance == instance {
                    attachment.delete_on_termination = *is_deleted;
                }
            }
            events.push(Event::Volume(volume));
        }
        Ok(Decision { events, ..Decision::default() })
    }
}

/// Returns whether EC2 accepts the device name: `/dev/sdf`, `/dev/sdf1`, `/dev/xvdba`, and the same
/// without `/dev/`.
fn is_device_name(name: &str) -> bool {
    let name = name.strip_prefix("/dev/").unwrap_or(name);
    let Some(rest) = name.strip_prefix("sd").or_else(|| name.strip_prefix("xvd")) else {
        return false;
    };
    let letters = rest.bytes().take_while(u8::is_ascii_lowercase).count();
    let partition = &rest[letters..];
    let digits = partition.bytes().all(|b| b.is_ascii_digit()) && !partition.starts_with('0');
    (1..=2).contains(&letters) && partition.len() <= 2 && digits
}

#[cfg(test)]
mod tests {
    use super::is_device_name;

    #[test]
    fn device_names() {
        for name in
            ["/dev/sdf", "/dev/sdf1", "/dev/sda15", "/dev/xvdba", "xvdf", "sdz", "/dev/xvdaa"]
        {
            assert!(is_device_name(name), "{name}");
        }
        for name in [
            "",
            "/dev/",
            "/dev/sd",
            "/dev/sdabc",
            "/dev/sdf123",
            "/dev/sdf0",
            "/dev/SDF",
            "/dev/nvme1n1",
            "sdf/..",
            "/dev//sdf",
            "/dev/sdf 1",
            "/dev/sd\u{e9}",
        ] {
            assert!(!is_device_name(name), "{name}");
        }
    }
}
