//! The end of a migration: the volume is detached, the new one is made, and temporary snapshots are
//! removed.

use super::state::{self, Base, Detached};
use super::{AGAIN, Credit, Had, Migration, WAIT_MAX};
use crate::model::{Attachment, VolumeDescription};
use crate::output::{Exit, Failure};
use crate::{snapshots, volumes};
use evenkeel_os::clock::{self, Deadline};
use std::time::Duration;

/// Time between two polls of a volume that the operator is to detach.
const LOOK: Duration = Duration::from_millis(500);

impl Migration<'_> {
    /// Detaches the volume, or waits until the operator has.
    pub(super) fn detach(&mut self, base: &Base) -> Result<(), Failure> {
        let source = self.copier.source;
        let first = snapshots::get(source, &base.of)?;
        let volume = volumes::get(source, &self.id)?;
        let had = |(host_id, device)| Had { host_id, device };
        if volume.attachments.is_empty() {
            // An earlier run may have detached it.
            let Detached { hosts, at_ms } = Detached::read(&first);
            self.told.hosts = hosts.into_iter().map(had).collect();
            self.detached_ms = Some(at_ms.unwrap_or_else(|| clock::unix_ms().0));
        } else {
            let hosts = volume.attachments.iter();
            let hosts = hosts.map(|host| (host.host_id.clone(), host.device.clone()));
            self.told.hosts = hosts.map(had).collect();
            if self.options.detach {
                let now = clock::unix_ms().0;
                Detached::note(source, &first, &volume.attachments, now)?;
                self.detached_ms = Some(now);
                // An attachment that is detaching already needs no call.
                let stays = |it: &&Attachment| !it.state.starts_with("detach");
                for attachment in volume.attachments.iter().filter(stays) {
                    let host = attachment.host_id.as_str();
                    let of = [("VolumeId", self.id.as_str()), ("InstanceId", host)];
                    source.call("DetachVolume", &of)?;
                }
            } else {
                self.wait_until_detached(&volume)?;
                self.detached_ms = Some(clock::unix_ms().0);
            }
        }
        volumes::wait_for_state(source, &self.id, "available", WAIT_MAX).map(drop)
    }

    fn wait_until_detached(&self, volume: &VolumeDescription) -> Result<(), Failure> {
        let id = &self.id;
        let hosts = volume.attachments.iter().map(|attachment| attachment.host_id.as_str());
        let hosts = hosts.collect::<Vec<_>>().join(", ");
        let waits = self.options.wait;
        if !waits.is_zero() {
            eprintln!("{id} is copied but for the last changes; detach it now from {hosts}");
        }
        let deadline = Deadline::after(waits);
        loop {
            if volumes::get(self.copier.source, id)?.attachments.is_empty() {
                return Ok(());
            }
            if !deadline.pause(LOOK) {
                let message = format!(
                    "{id} is copied but for the last changes, and was not detached from {hosts} \
                     within {} s",
                    waits.as_secs()
                );
                return Err(Failure::new(message).exit(Exit::Timeout).hint(format!(
                    "detach it, and {AGAIN}; --detach has the command do it, and --wait TIME waits"
                )));
            }
        }
    }

    /// Makes the new volume of the snapshot at the target, unless the source was written to since
    /// the snapshot `last` there.
    pub(super) fn make_volume(&mut self, image: &str, last: &str) -> Result<(), Failure> {
        let source = self.copier.source;
        let target = self.copier.target;
        for unfinished in state::volumes(target, &self.id, false)? {
            state::delete(target, state::VOLUME, &unfinished.volume_id)?;
        }
        let volume = volumes::get(source, &self.id)?;
        let parameters = self.parameters(&volume, Some(image));
        let parameters: Vec<(&str, &str)> =
            parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let made = VolumeDescription::read(&target.call("CreateVolume", &parameters)?);
        let made = made.volume_id;
        let made = volumes::wait_for_state(target, &made, "available", WAIT_MAX)?;
        self.carry_credits(&made.volume_id)?;
        if let Err(failure) = self.check_unchanged(&volume, last) {
            // No host uses the volume yet. If it cannot be deleted, the next run does that.
            let _ = state::delete(target, state::VOLUME, &made.volume_id);
            return Err(failure);
        }
        state::set_tags(target, &made.volume_id, &[state::from(&self.id, true)])?;
        let since = self.detached_ms.unwrap_or_else(|| clock::unix_ms().0);
        self.told.detached_ms = Some(clock::unix_ms().0.saturating_sub(since));
        self.told.is_encrypted = made.encrypted;
        self.told.volume_id = made.volume_id;
        Ok(())
    }

    /// Gives the new volume the credits of the source's, so that a migration gains none.
    fn carry_credits(&mut self, made: &str) -> Result<(), Failure> {
        let had = volumes::credits(self.copier.source, &self.id)?;
        let has = volumes::credits(self.copier.target, made)?;
        for (name, unit, had, has) in [
            ("Operations", "operations", had.operations, has.operations),
            ("Bytes", "bytes", had.bytes, has.bytes),
        ] {
            let (Some(had), Some(has)) = (had, has) else { continue };
            let balance = had.balance.min(has.capacity);
            let parameters = [("VolumeId", made), (name, &balance.to_string())];
            self.copier.target.call("SetVolumeCredits", &parameters)?;
            self.told.credits.push(Credit { unit, balance });
        }
        Ok(())
    }

    /// Checks that the source was not written to since the last snapshot, and cannot be at this
    /// moment.
    fn check_unchanged(&self, then: &VolumeDescription, last: &str) -> Result<(), Failure> {
        let source = self.copier.source;
        let check = self.snapshot()?.snapshot_id;
        let differs = self.copier.differs(&check, last);
        state::delete(source, state::SNAPSHOT, &check)?;
        let now = volumes::get(source, &self.id)?;
        let hosts: Vec<&str> =
            now.attachments.iter().map(|attachment| attachment.host_id.as_str()).collect();
        let is_same = |a: &VolumeDescription, b: &VolumeDescription| {
            (&a.volume_type, a.size_gib, a.iops) == (&b.volume_type, b.size_gib, b.iops)
                && a.throughput_mibps == b.throughput_mibps
        };
        let why = if !hosts.is_empty() {
            format!("it is attached to {}", hosts.join(", "))
        } else if differs? {
            "it was written to".to_owned()
        } else if !is_same(then, &now) {
            "it was modified".to_owned()
        } else {
            return Ok(());
        };
        let message = format!("{} has changed since it was copied: {why}", self.id);
        Err(Failure::new(message).hint(format!("keep it detached, and {AGAIN}")))
    }

    /// Deletes the snapshots that the migration has made, at both servers.
    pub(super) fn clean_up(&self) -> Result<(), Failure> {
        let source = self.copier.source;
        let target = self.copier.target;
        for snapshot in state::snapshots(target, state::OF, &self.id)? {
            let base = Base::read(&snapshot).map(|base| base.of);
            let list = snapshot.tags.get(state::CHANGES).cloned();
            // Deleted by their names, too, since the target may have had other keys then.
            for id in base.iter().chain(&list).flat_map(|text| text.split(' ')) {
                state::delete(source, state::SNAPSHOT, id)?;
            }
            state::delete(target, state::SNAPSHOT, &snapshot.snapshot_id)?;
        }
        self.remove_snapshots(&[])
    }

    /// Deletes the snapshots of the volume that were made for this target, except `kept`.
    pub(super) fn remove_snapshots(&self, kept: &[&String]) -> Result<(), Failure> {
        let source = self.copier.source;
        for snapshot in state::snapshots(source, state::OF, self.copier.target.access_key_id())? {
            let id = &snapshot.snapshot_id;
            if snapshot.volume_id == self.id && !kept.contains(&id) {
                state::delete(source, state::SNAPSHOT, id)?;
            }
        }
        Ok(())
    }

    /// Deletes the volume at the source, if that is requested.
    pub(super) fn remove_source(&mut self) -> Result<(), Failure> {
        if self.options.remove_source {
            self.copier.source.call("DeleteVolume", &[("VolumeId", &self.id)])?;
            self.told.source_removed = true;
        }
        Ok(())
    }
}
