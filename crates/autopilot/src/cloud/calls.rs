//! The calls that change something. Each looks at the volume first, so a call that is repeated
//! after a lost answer has no further effect.

use super::form::{Attachment, Described, FILE_SYSTEM_TAG, OPERATION_TAG, RETIRED_TAG, Request};
use super::{Ec2, fault, faults};
use crate::Fault;
use evenkeel_client::output::Failure;
use evenkeel_client::volumes::free_device;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::operation::Call;

/// The most characters of a client token, by the EC2 API.
const TOKEN_CHARS_MAX: usize = 64;

impl Ec2 {
    /// Makes a call, unless it has been made.
    pub(super) fn make(&mut self, uuid: &str, call: &Call) -> Result<(), Fault> {
        match call {
            Call::Create { operation, spec } => self.create(uuid, operation, spec),
            Call::Attach { volume } => self.attach(uuid, volume),
            Call::Modify { volume, to } => self.modify(volume, to),
            Call::Detach { volume } => self.detach(volume),
            Call::Retire { volume } => self.retire(uuid, volume),
            Call::Delete { volume } => self.delete(uuid, volume),
        }
    }

    /// Gives the volumes of the file system's devices its tag, so that they are known after their
    /// data has moved.
    ///
    /// # Errors
    /// If the API refuses it, or does not answer.
    pub fn adopt(&mut self, uuid: &str) -> Result<(), Fault> {
        let untagged = self.untagged.set().clone();
        for id in untagged {
            let tags = vec![(FILE_SYSTEM_TAG.to_owned(), uuid.to_owned())];
            self.send("CreateTags", vec![("ResourceId.1", id.clone())], tags)?;
            self.untagged.set().remove(&id);
        }
        Ok(())
    }

    fn send(
        &mut self,
        action: &'static str,
        fields: Vec<(&'static str, String)>,
        tags: Vec<(String, String)>,
    ) -> Result<(), Fault> {
        let request = Request { action, fields, tags };
        self.api.call(&request).map_err(|failure| with_rights(&failure, action))
    }

    /// Returns a volume; `None` if it does not exist.
    fn find(&mut self, id: &str) -> Result<Option<Described>, Fault> {
        let named = [("volume-id".to_owned(), vec![id.to_owned()])];
        match self.api.volumes(&named) {
            Ok(found) => Ok(found.into_iter().find(|volume| volume.id == id)),
            Err(failure) if faults::is_not_found(&failure) => Ok(None),
            Err(failure) => Err(fault(&failure)),
        }
    }

    /// Returns a volume that must exist.
    fn existing(&mut self, id: &str) -> Result<Described, Fault> {
        self.find(id)?.ok_or_else(|| Fault::Refused(format!("the volume {id} does not exist")))
    }

    fn create(&mut self, uuid: &str, operation: &str, spec: &VolumeSpec) -> Result<(), Fault> {
        let made = [(format!("tag:{OPERATION_TAG}"), vec![operation.to_owned()])];
        let made = self.api.volumes(&made).map_err(|failure| fault(&failure))?;
        if made.iter().any(|volume| volume.state != "deleting") {
            return Ok(());
        }
        let zone = self.host((self.setting.clock)()).map_err(|failure| fault(&failure))?.zone;
        let request = spec.request();
        let mut fields = vec![
            ("AvailabilityZone", zone),
            ("VolumeType", request.volume_type.to_string()),
            ("Size", request.size_gib.to_string()),
        ];
        fields.extend(request.iops.map(|iops| ("Iops", iops.to_string())));
        fields.extend(request.throughput_mibps.map(|mibps| ("Throughput", mibps.to_string())));
        if let Some(key) = &self.encryption {
            fields.push(("Encrypted", "true".to_owned()));
            fields.extend(key.clone().map(|key| ("KmsKeyId", key)));
        }
        let token: String = operation.chars().take(TOKEN_CHARS_MAX).collect();
        fields.push(("ClientToken", token));
        let group = self.setting.policy.tags.iter();
        let mut tags: Vec<(String, String)> =
            group.map(|(key, value)| (key.clone(), value.clone())).collect();
        tags.push((FILE_SYSTEM_TAG.to_owned(), uuid.to_owned()));
        tags.push((OPERATION_TAG.to_owned(), operation.to_owned()));
        self.send("CreateVolume", fields, tags)
    }

    fn attach(&mut self, uuid: &str, id: &str) -> Result<(), Fault> {
        let volume = self.existing(id)?;
        if self.has(&volume) {
            return Ok(());
        }
        if volume.tags.get(FILE_SYSTEM_TAG).is_none_or(|tag| tag != uuid) {
            let text = format!("{id} has no tag {FILE_SYSTEM_TAG}={uuid}, so it is not attached");
            return Err(Fault::Refused(text));
        }
        let host = self.setting.instance.clone();
        let attached = [("attachment.instance-id".to_owned(), vec![host.clone()])];
        let attached = self.api.volumes(&attached).map_err(|failure| fault(&failure))?;
        let is_here = |attachment: &&Attachment| attachment.instance == host;
        let used: Vec<String> = attached
            .iter()
            .flat_map(|volume| volume.attachments.iter().filter(is_here))
            .map(|attachment| attachment.device.clone())
            .collect();
        let device = free_device(&used).ok_or_else(|| {
            Fault::Refused(format!("all {} names of devices of {host} are in use", used.len()))
        })?;
        let fields = vec![("VolumeId", id.to_owned()), ("InstanceId", host), ("Device", device)];
        self.send("AttachVolume", fields, Vec::new())
    }

    fn modify(&mut self, id: &str, to: &VolumeSpec) -> Result<(), Fault> {
        let from = self.existing(id)?.spec;
        let fields = differences(&from, to);
        if fields.is_empty() {
            return Ok(());
        }
        let all = [vec![("VolumeId", id.to_owned())], fields].concat();
        self.send("ModifyVolume", all, Vec::new())
    }

    fn detach(&mut self, id: &str) -> Result<(), Fault> {
        let is_here = self.find(id)?.is_some_and(|volume| self.has(&volume));
        if !is_here {
            return Ok(());
        }
        let host = self.setting.instance.clone();
        let fields = vec![("VolumeId", id.to_owned()), ("InstanceId", host)];
        self.send("DetachVolume", fields, Vec::new())
    }

    fn retire(&mut self, uuid: &str, id: &str) -> Result<(), Fault> {
        let Some(volume) = self.find(id)? else { return Ok(()) };
        if let Some(other) = volume.tags.get(FILE_SYSTEM_TAG).filter(|tag| *tag != uuid) {
            let text = format!("{id} is a volume of the file system {other}, by its tag");
            return Err(Fault::Refused(text));
        }
        // The grace time begins at the first mark.
        if super::retired_ms(&volume).is_some() {
            return Ok(());
        }
        let now_ms = (self.setting.clock)();
        let tags = vec![
            (FILE_SYSTEM_TAG.to_owned(), uuid.to_owned()),
            (RETIRED_TAG.to_owned(), now_ms.to_string()),
        ];
        self.send("CreateTags", vec![("ResourceId.1", id.to_owned())], tags)
    }

    fn delete(&mut self, uuid: &str, id: &str) -> Result<(), Fault> {
        let Some(volume) = self.find(id)? else { return Ok(()) };
        let is_own = volume.tags.get(FILE_SYSTEM_TAG).is_some_and(|tag| tag == uuid);
        let is_marked = super::retired_ms(&volume).is_some();
        if !is_own || !is_marked {
            let text = format!(
                "{id} is not deleted: it needs the tags {FILE_SYSTEM_TAG}={uuid} and {RETIRED_TAG}"
            );
            return Err(Fault::Refused(text));
        }
        match volume.state.as_str() {
            "available" | "error" => {
                self.send("DeleteVolume", vec![("VolumeId", id.to_owned())], Vec::new())
            }
            "deleting" | "deleted" => Ok(()),
            state => Err(Fault::Later(format!("{id} is {state}, and is deleted when detached"))),
        }
    }
}

/// Returns the fault of a call, with the rights that it needs if they are missing.
fn with_rights(failure: &Failure, action: &str) -> Fault {
    match fault(failure) {
        Fault::Refused(text)
            if text.contains("UnauthorizedOperation") || text.contains("AccessDenied") =>
        {
            Fault::Refused(format!("{text}; the credentials need the right ec2:{action}"))
        }
        other => other,
    }
}

/// Returns the fields of a modification: the properties that differ.
fn differences(from: &VolumeSpec, to: &VolumeSpec) -> Vec<(&'static str, String)> {
    let changes_type = from.volume_type != to.volume_type;
    let wanted = to.request();
    let mut fields = Vec::new();
    if changes_type {
        fields.push(("VolumeType", to.volume_type.to_string()));
    }
    if from.size_gib != to.size_gib {
        fields.push(("Size", to.size_gib.to_string()));
    }
    let iops = wanted.iops.filter(|iops| changes_type || from.iops != Some(*iops));
    fields.extend(iops.map(|iops| ("Iops", iops.to_string())));
    let mibps = wanted
        .throughput_mibps
        .filter(|mibps| changes_type || from.throughput_mibps != Some(*mibps));
    fields.extend(mibps.map(|mibps| ("Throughput", mibps.to_string())));
    fields
}
