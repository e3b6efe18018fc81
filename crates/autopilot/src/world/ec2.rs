//! The EC2 side of the world: the pure model of `evenkeel-control`, with delays.
//!
//! A call is decided and applied at once, and is in force some seconds later, as the model's second
//! step.

use std::collections::BTreeMap;

use evenkeel_control::model::{
    AttachmentState, Begins, Command, LOCAL_TYPE, Model, Phase, Refusal, Settled, Tagged,
};
use evenkeel_control::{ModifyPolicy, Settings};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::random::Random;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{Rules, VolumeChange, VolumeRequest, VolumeSpec};
use evenkeel_planner::autopilot::observation::{Modification, Volume, VolumeState};
use evenkeel_planner::autopilot::operation::Call;
use evenkeel_wire::agent::{Capacity, HostAddress};

use super::load::{DAY_MS, HOUR_MS};

/// The tag with the UUID of the file system.
const TAG_FILE_SYSTEM: &str = "evenkeel:file-system";
/// The tag with the operation that created the volume.
const TAG_OPERATION: &str = "evenkeel:operation";
/// The tag with the time at which the volume was retired.
const TAG_RETIRED: &str = "evenkeel:retired";

/// The stream of random numbers of delays.
const STREAM: u64 = 2;

/// A call that had no effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refused {
    pub(super) reason: String,
    /// Whether it would be refused again at once.
    pub(super) is_final: bool,
}

/// The API and what it knows.
#[derive(Clone, Debug)]
pub(super) struct Ec2 {
    settings: Settings,
    pub(super) model: Model,
    /// Volumes that settle, by time and number.
    due: BTreeMap<(u64, u64), VolumeId>,
    random: Random,
    next: u64,
    host: InstanceId,
    instance_type: &'static str,
    /// When attachments that begin now are in force; `None` unless they are stuck.
    pub(super) stuck_until_ms: Option<u64>,
    /// The monthly cost of all volumes, in millionths of the currency.
    pub(super) monthly_micro: u64,
    /// The prices.
    price: fn(&VolumeSpec) -> u64,
}

impl Ec2 {
    /// Creates an account with one host.
    pub(super) fn new(
        seed: u64,
        policy: ModifyPolicy,
        instance_type: &'static str,
        price: fn(&VolumeSpec) -> u64,
        unix_ms: u64,
    ) -> Self {
        let settings = Settings { modify_policy: policy, ..Settings::default() };
        let host = InstanceId::from_bits(1);
        let mut api = Self {
            settings,
            model: Model::default(),
            due: BTreeMap::new(),
            random: Random::new(seed, STREAM),
            next: 1,
            host,
            instance_type,
            stuck_until_ms: None,
            monthly_micro: 0,
            price,
        };
        let address = HostAddress::Remote(std::net::Ipv4Addr::new(10, 0, 0, 1).into());
        for (id, name, address) in
            [(0, LOCAL_TYPE, HostAddress::Local), (1, instance_type, address)]
        {
            let id = InstanceId::from_bits(id);
            let instance_type = name.to_owned();
            let command = Command::RegisterHost {
                id,
                zone: None,
                instance_type,
                address,
                tags: BTreeMap::new(),
            };
            api.run(&command, unix_ms).expect("invariant: a host of a known type is accepted");
        }
        api
    }

    pub(super) const fn modify_policy(&self) -> ModifyPolicy {
        self.settings.modify_policy
    }

    /// Changes the rule of modifications.
    pub(super) fn set_modify_policy(&mut self, policy: ModifyPolicy) {
        self.settings.modify_policy = policy;
    }

    pub(super) const fn rules(&self) -> &'static Rules {
        self.settings.rules
    }

    pub(super) const fn instance_type(&self) -> &'static str {
        self.instance_type
    }

    pub(super) fn host_id(&self) -> String {
        self.host.to_string()
    }

    fn run(&mut self, command: &Command, unix_ms: u64) -> Result<Option<VolumeId>, Refusal> {
        let now = UnixMs(unix_ms);
        let decision = self.model.decide(&self.settings, &Capacity::Unknown, command, now)?;
        let volume = decision.volume();
        for event in decision.events {
            self.model.apply(event);
        }
        self.reprice();
        Ok(volume)
    }

    fn reprice(&mut self) {
        self.monthly_micro = self.model.volumes.values().map(|v| (self.price)(&v.spec)).sum();
    }

    /// Creates an attached volume of the file system.
    pub(super) fn furnish(&mut self, uuid: &str, spec: &VolumeSpec, unix_ms: u64) -> String {
        let id = self.create(uuid, "", spec, unix_ms).expect("invariant: a valid volume");
        self.settle(id, Settled::Done, unix_ms);
        self.attach(id, unix_ms).expect("invariant: the host has room");
        self.settle(id, Settled::Done, unix_ms);
        self.due.clear();
        id.to_string()
    }

    fn settle(&mut self, id: VolumeId, settled: Settled<'_>, unix_ms: u64) {
        for event in self.model.settle(&self.settings, id, settled, UnixMs(unix_ms)) {
            self.model.apply(event);
        }
        self.reprice();
    }

    /// Returns when the next change is in force.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.due.first_key_value().map(|((unix_ms, _), _)| *unix_ms)
    }

    /// Completes the changes that are due.
    pub(super) fn advance(&mut self, unix_ms: u64) {
        while let Some(((due_ms, number), id)) = self.due.first_key_value() {
            if *due_ms > unix_ms {
                break;
            }
            let key = (*due_ms, *number);
            let id = *id;
            self.due.remove(&key);
            self.settle(id, Settled::Done, key.0);
        }
    }

    fn settle_after(&mut self, id: VolumeId, unix_ms: u64, least_ms: u64, spread_ms: u64) {
        let due_ms = unix_ms + least_ms + self.random.below(spread_ms);
        self.due.insert((due_ms, self.next), id);
        self.next += 1;
    }

    fn create(
        &mut self,
        uuid: &str,
        operation: &str,
        spec: &VolumeSpec,
        unix_ms: u64,
    ) -> Result<VolumeId, Refusal> {
        let number = self.next;
        self.next += 1;
        let mut tags = BTreeMap::from([(TAG_FILE_SYSTEM.to_owned(), uuid.to_owned())]);
        let mut token = None;
        if !operation.is_empty() {
            tags.insert(TAG_OPERATION.to_owned(), operation.to_owned());
            token = Some((operation.to_owned(), format!("{spec:?}")));
        }
        let is_gp2 = spec.volume_type == evenkeel_core::volume::VolumeType::Gp2;
        let command = Command::CreateVolume {
            id: VolumeId::from_bits(number.into()),
            request: VolumeRequest {
                volume_type: spec.volume_type,
                size_gib: spec.size_gib,
                iops: if is_gp2 { None } else { spec.iops },
                throughput_mibps: spec.throughput_mibps,
                multi_attach: false,
            },
            begins: Begins::default(),
            zone: self.settings.zones[0].clone(),
            tags,
            token,
        };
        let id = self.run(&command, unix_ms)?;
        Ok(id.expect("invariant: a created volume is called"))
    }

    fn attach(&mut self, id: VolumeId, unix_ms: u64) -> Result<(), Refusal> {
        let taken: Vec<String> = self
            .model
            .attachments_of(self.host)
            .map(|(_, attachment)| attachment.device.clone())
            .collect();
        let letters = ('f'..='z').map(|letter| format!("/dev/sd{letter}"));
        let more = ('a'..='z').map(|letter| format!("/dev/xvdb{letter}"));
        let device = letters.chain(more).find(|name| !taken.contains(name));
        let device = device.unwrap_or_else(|| "/dev/xvdzz".to_owned());
        let command = Command::AttachVolume { id, instance: self.host, device };
        self.run(&command, unix_ms).map(|_| ())
    }

    /// Makes a call.
    pub(super) fn call(&mut self, uuid: &str, call: &Call, unix_ms: u64) -> Result<(), Refused> {
        self.advance(unix_ms);
        self.try_call(uuid, call, unix_ms).map_err(|refusal| {
            let is_final = !matches!(
                refusal,
                Refusal::Unsettled(_)
                    | Refusal::ModificationUnfinished(..)
                    | Refusal::ModificationRate { .. }
                    | Refusal::NotAvailable(..)
                    | Refusal::VolumeInUse(..)
            );
            Refused { reason: format!("{refusal:?}"), is_final }
        })
    }

    fn try_call(&mut self, uuid: &str, call: &Call, unix_ms: u64) -> Result<(), Refusal> {
        match call {
            Call::Create { operation, spec } => {
                let known = self.model.known_token(operation, UnixMs(unix_ms)).is_some();
                let id = self.create(uuid, operation, spec, unix_ms)?;
                if !known {
                    self.settle_after(id, unix_ms, 1_000, 8_000);
                }
            }
            Call::Attach { volume } => {
                let id = parsed(volume)?;
                let is_here = self
                    .model
                    .volume(id)?
                    .attachments
                    .iter()
                    .any(|a| a.instance == self.host && a.state != AttachmentState::Detaching);
                if is_here {
                    return Ok(());
                }
                self.attach(id, unix_ms)?;
                match self.stuck_until_ms {
                    Some(until_ms) if until_ms > unix_ms => {
                        self.settle_after(id, until_ms, 0, 60_000);
                    }
                    _ => self.settle_after(id, unix_ms, 2_000, 10_000),
                }
            }
            Call::Modify { volume, to } => {
                let id = parsed(volume)?;
                let from = self.model.volume(id)?.spec;
                if from == *to {
                    return Ok(());
                }
                self.run(&Command::ModifyVolume { id, change: change(&from, to) }, unix_ms)?;
                self.settle_after(id, unix_ms, 3_000, 30_000);
            }
            Call::Detach { volume } => self.detach(parsed(volume)?, unix_ms)?,
            Call::Retire { volume } => {
                let tags = BTreeMap::from([(TAG_RETIRED.to_owned(), unix_ms.to_string())]);
                let resources = vec![Tagged::Volume(parsed(volume)?)];
                self.run(&Command::CreateTags { resources, tags }, unix_ms)?;
            }
            Call::Delete { volume } => {
                let id = parsed(volume)?;
                if self.model.volume(id).is_err() {
                    return Ok(());
                }
                self.run(&Command::DeleteVolume { id }, unix_ms)?;
                self.settle_after(id, unix_ms, 500, 2_000);
            }
        }
        Ok(())
    }

    fn detach(&mut self, id: VolumeId, unix_ms: u64) -> Result<(), Refusal> {
        let attachments = &self.model.volume(id)?.attachments;
        if attachments.is_empty() {
            return Ok(());
        }
        if attachments.iter().any(|a| a.state == AttachmentState::Attaching) {
            // A forced detach ends an attachment that is stuck.
            self.due.retain(|_, due| *due != id);
            self.settle(id, Settled::Failed("it was detached by force"), unix_ms);
            return Ok(());
        }
        self.run(&Command::DetachVolume { id, instance: None, device: None }, unix_ms)?;
        self.settle_after(id, unix_ms, 2_000, 10_000);
        Ok(())
    }

    /// Returns the volumes of the file system as an observation has them, without counters.
    pub(super) fn volumes(&self, uuid: &str, unix_ms: u64) -> Vec<Volume> {
        let has_tag = |volume: &&evenkeel_control::model::Volume| {
            volume.tags.get(TAG_FILE_SYSTEM).is_some_and(|tag| tag == uuid)
        };
        let volumes = self.model.volumes.values().filter(has_tag);
        volumes.map(|volume| self.seen(volume, unix_ms)).collect()
    }

    /// Returns whether an operation made a volume, by its tag.
    pub(super) fn was_made_by(&self, id: &str, operation: &str) -> bool {
        let tag = self.volume(id).and_then(|volume| volume.tags.get(TAG_OPERATION));
        tag.is_some_and(|tag| tag == operation)
    }

    /// Returns what is known of a volume, for checks.
    pub(super) fn volume(&self, id: &str) -> Option<&evenkeel_control::model::Volume> {
        self.model.volumes.get(&id.parse().ok()?)
    }

    /// Returns whether the host has a volume.
    pub(super) fn is_attached(&self, id: &str) -> bool {
        let volume = self.volume(id);
        volume.is_some_and(|volume| {
            volume.attachments.iter().any(|attachment| {
                attachment.instance == self.host && attachment.state != AttachmentState::Attaching
            })
        })
    }

    fn seen(&self, volume: &evenkeel_control::model::Volume, unix_ms: u64) -> Volume {
        let since_ms = volume.attachments.first().map_or(0, |attachment| attachment.attached.0);
        let state = match (&volume.phase, volume.attachments.first().map(|a| a.state)) {
            (Phase::Creating, _) => VolumeState::Creating,
            (Phase::Ready, None) => VolumeState::Available,
            (Phase::Ready, Some(AttachmentState::Attaching)) => VolumeState::Attaching { since_ms },
            (Phase::Ready, Some(AttachmentState::Attached)) => VolumeState::Attached,
            (Phase::Ready, Some(AttachmentState::Detaching)) => VolumeState::Detaching,
            _ => VolumeState::Elsewhere,
        };
        let day_ago = unix_ms.saturating_sub(DAY_MS);
        let starts = volume.modification_starts.iter().map(|start| start.0);
        let retired = volume.tags.get(TAG_RETIRED).and_then(|text| text.parse().ok());
        let id = volume.id.to_string();
        Volume {
            made_by: volume.tags.get(TAG_OPERATION).cloned(),
            retired_ms: retired,
            modification: modification(volume, unix_ms),
            modified_ms: starts.filter(|start| *start > day_ago).collect(),
            modifiable_from_ms: self.modifiable_from(volume, unix_ms),
            ..Volume::new(id, in_force(volume), state, volume.created.0)
        }
    }

    fn modifiable_from(
        &self,
        volume: &evenkeel_control::model::Volume,
        unix_ms: u64,
    ) -> Option<u64> {
        use evenkeel_control::model::ModificationPhase;
        let (modifications, window_ms) = match self.settings.modify_policy {
            ModifyPolicy::Immediate => (usize::MAX, 0),
            ModifyPolicy::AwsClassic => (1, 6 * HOUR_MS),
            ModifyPolicy::Aws | ModifyPolicy::Aws2026 => (4, DAY_MS),
        };
        let starts = &volume.modification_starts;
        let counted = starts.iter().rev().nth(modifications.saturating_sub(1));
        let rate = counted.map(|start| start.0 + window_ms);
        let phase = volume.modification.as_ref().map(|modification| &modification.phase);
        let busy = match phase {
            Some(ModificationPhase::Optimizing { until, .. }) => Some(until.0),
            _ => None,
        };
        rate.max(busy).filter(|from_ms| *from_ms > unix_ms)
    }
}

/// Returns the limits in force: the old ones until a modification is.
fn in_force(volume: &evenkeel_control::model::Volume) -> VolumeSpec {
    match &volume.modification {
        Some(modification) if volume.is_being_modified() => modification.original,
        _ => volume.spec,
    }
}

fn modification(volume: &evenkeel_control::model::Volume, unix_ms: u64) -> Option<Modification> {
    let (state, _, _) = volume.modification.as_ref()?.progress(UnixMs(unix_ms));
    Some(match state {
        "modifying" => Modification::Modifying,
        "optimizing" => Modification::Optimizing,
        "completed" => Modification::Completed,
        _ => Modification::Failed,
    })
}

fn parsed(volume: &str) -> Result<VolumeId, Refusal> {
    volume.parse().map_err(|_| Refusal::VolumesNotFound(vec![]))
}

/// Returns the request that changes a specification to another one.
fn change(from: &VolumeSpec, to: &VolumeSpec) -> VolumeChange {
    let becomes = from.volume_type != to.volume_type;
    VolumeChange {
        volume_type: becomes.then_some(to.volume_type),
        size_gib: (from.size_gib != to.size_gib).then_some(to.size_gib),
        iops: if becomes || from.iops != to.iops { sold_iops(to) } else { None },
        throughput_mibps: if becomes || from.throughput_mibps != to.throughput_mibps {
            to.throughput_mibps
        } else {
            None
        },
        multi_attach: None,
    }
}

/// Returns the IOPS that are bought apart from the size.
fn sold_iops(spec: &VolumeSpec) -> Option<u32> {
    let rules = Rules::newest().of(spec.volume_type)?;
    rules.iops_max(spec.size_gib).and(spec.iops)
}
