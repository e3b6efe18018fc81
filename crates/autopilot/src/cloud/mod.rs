//! The EC2 API of an Evenkeel server, or of AWS.
//!
//! [`Ec2`] has the rules of both: which volumes are a file system's, what a call needs, and when it
//! has no further effect. An [`Api`] sends the calls: [`evenkeel::Evenkeel`] by the typed client,
//! [`aws::Amazon`] by the AWS CLI. [`form`] has what they exchange.

pub mod aws;
mod calls;
mod changes;
pub mod evenkeel;
mod faults;
mod form;
mod meter;

use crate::counters::Counters;
use crate::{Cloud, Fault, Known};
use changes::Changes;
use evenkeel_client::output::Failure;
use evenkeel_core::convert::saturating;
use evenkeel_core::instance;
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::observation::{Account, Instance, Volume, VolumeState};
use evenkeel_planner::autopilot::operation::Call;
use evenkeel_planner::autopilot::policy::{Policy, PolicyFile};
use evenkeel_planner::fleet::alternatives::Limits;
use faults::fault;
pub use faults::lacks_capacity;
use form::{
    Described, DescribedInstance, FILE_SYSTEM_TAG, Measure, Modified, OPERATION_TAG, RETIRED_TAG,
    Request,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The names of devices for data volumes: the most volumes of a host whose type is not known.
const DEVICES_MAX: u32 = 63;
/// Time between two readings of the account's totals, in milliseconds.
const ACCOUNT_MS: u64 = 60_000;
/// Time between two readings of the instance's type, in milliseconds.
const INSTANCE_MS: u64 = 600_000;
/// The most ids of one call, by the EC2 API's limit of a filter's values.
const IDS_MAX: usize = 200;

/// The metrics of volumes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Measured {
    volumes: BTreeMap<String, Measure>,
    /// The time of the server's clock, in milliseconds since 1970.
    unix_ms: Option<u64>,
}

/// Sends calls of the EC2 API.
pub trait Api {
    /// Returns the volumes that pass all filters.
    ///
    /// # Errors
    /// If the API refuses it or does not answer, as all methods.
    fn volumes(&mut self, filters: &[(String, Vec<String>)]) -> Result<Vec<Described>, Failure>;

    /// Returns the last modifications of these volumes.
    fn modifications(&mut self, volumes: &[&str]) -> Result<Vec<Modified>, Failure>;

    /// Returns an instance; `None` if the API does not know it.
    fn instance(&mut self, id: &str) -> Result<Option<DescribedInstance>, Failure>;

    /// Returns what the metrics of these volumes show of the last `window_s` seconds.
    fn measures(&mut self, volumes: &[&Described], window_s: u32) -> Result<Measured, Failure>;

    /// Makes a call that changes something.
    fn call(&mut self, request: &Request) -> Result<(), Failure>;
}

/// The volumes of a file system's devices that do not have its tag yet. A clone shares them.
///
/// The data of a volume without the tag must not move: once the volume is no device any more,
/// nothing else tells that it is to be detached and deleted.
#[derive(Clone, Default, Debug)]
pub struct Untagged(Arc<Mutex<BTreeSet<String>>>);

impl Untagged {
    /// Returns whether a volume is one of them.
    #[must_use]
    pub fn has(&self, volume: &str) -> bool {
        self.set().contains(volume)
    }

    fn set(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // The set is consistent after each of its changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces them by those of these volumes.
    fn find<'a>(&self, uuid: &str, volumes: impl Iterator<Item = &'a Described>) {
        let has_tag =
            |volume: &&Described| volume.tags.get(FILE_SYSTEM_TAG).is_some_and(|tag| tag == uuid);
        let untagged = volumes.filter(|volume| !has_tag(volume));
        *self.set() = untagged.map(|volume| volume.id.clone()).collect();
    }
}

/// The settings of an [`Ec2`].
#[derive(Clone)]
pub struct Setting {
    /// The id of the host.
    pub instance: String,
    /// The policy of the file system's group.
    pub policy: Policy,
    /// The tags of all groups of the policy file.
    pub groups: Vec<BTreeMap<String, String>>,
    /// The file with the starts of modifications, of which AWS shows only the last one.
    pub changes: PathBuf,
    /// The kernel's counters of the host's devices, which are more recent than the API's metrics.
    pub counters: Option<Counters>,
    /// Returns the milliseconds since 1970.
    pub clock: fn() -> u64,
}

/// The EC2 API for a file system of a host.
pub struct Ec2 {
    api: Box<dyn Api + Send>,
    setting: Setting,
    changes: Changes,
    /// The instance, and when it was read.
    instance: Option<(u64, DescribedInstance)>,
    /// The totals of the account, and when they were read.
    account: Option<(u64, Account)>,
    /// Whether the file system has an encrypted volume, and its key.
    encryption: Option<Option<String>>,
    untagged: Untagged,
    /// Operations that run on other file systems of the host.
    pub other_operations: u32,
}

impl Ec2 {
    /// Creates it. Calls nothing yet.
    #[must_use]
    pub fn new(api: Box<dyn Api + Send>, setting: Setting) -> Self {
        let changes = Changes::of(&setting.changes);
        Self {
            api,
            setting,
            changes,
            instance: None,
            account: None,
            encryption: None,
            untagged: Untagged::default(),
            other_operations: 0,
        }
    }

    /// Returns the tags of the volumes of a file system's devices.
    ///
    /// # Errors
    /// If the API does not answer.
    pub fn tags(
        &mut self,
        uuid: &str,
        volumes: &[String],
    ) -> Result<Vec<BTreeMap<String, String>>, Fault> {
        let named = [("volume-id".to_owned(), volumes.to_vec())];
        let found = self.api.volumes(&named).map_err(|failure| fault(&failure))?;
        self.untagged.find(uuid, found.iter());
        Ok(found.into_iter().map(|volume| volume.tags).collect())
    }

    /// Returns the volumes of devices that do not have the tag of the file system yet.
    #[must_use]
    pub fn untagged(&self) -> Untagged {
        self.untagged.clone()
    }

    /// Changes the policy, and the groups of its file.
    pub fn set_policy(&mut self, policy: &Policy, file: &PolicyFile) {
        self.setting.policy = policy.clone();
        self.setting.groups = file.groups.iter().map(|group| group.tags.clone()).collect();
        self.account = None;
    }

    /// Returns the instance, read again now and then.
    fn host(&mut self, now_ms: u64) -> Result<DescribedInstance, Failure> {
        if let Some((read_ms, known)) = &self.instance
            && now_ms.saturating_sub(*read_ms) < INSTANCE_MS
        {
            return Ok(known.clone());
        }
        let id = &self.setting.instance;
        let found = self.api.instance(id)?.ok_or_else(|| {
            Failure::new(format!("the instance {id} does not exist"))
                .hint("name the host of the file system with --instance-id")
        })?;
        self.instance = Some((now_ms, found.clone()));
        Ok(found)
    }

    /// Returns the volumes attached to the host, and those of the file system wherever they are.
    fn gather(
        &mut self,
        uuid: &str,
        devices: &[String],
    ) -> Result<BTreeMap<String, Described>, Failure> {
        let host = vec![self.setting.instance.clone()];
        let mut all = self.api.volumes(&[("attachment.instance-id".to_owned(), host)])?;
        all.extend(self.api.volumes(&[(format!("tag:{FILE_SYSTEM_TAG}"), vec![uuid.to_owned()])])?);
        let mut found: BTreeMap<String, Described> =
            all.into_iter().map(|volume| (volume.id.clone(), volume)).collect();
        let is_missing = |id: &&String| !found.contains_key(*id);
        let missing: Vec<String> = devices.iter().filter(is_missing).cloned().collect();
        for some in missing.chunks(IDS_MAX) {
            let named = [("volume-id".to_owned(), some.to_vec())];
            let more = self.api.volumes(&named)?;
            found.extend(more.into_iter().map(|volume| (volume.id.clone(), volume)));
        }
        found.retain(|_, volume| !["deleting", "deleted"].contains(&volume.state.as_str()));
        Ok(found)
    }

    fn modifications(&mut self, ids: &[&str]) -> Result<Vec<Modified>, Failure> {
        let mut all = Vec::new();
        for some in ids.chunks(IDS_MAX) {
            all.extend(self.api.modifications(some)?);
        }
        Ok(all)
    }

    fn look(&mut self, uuid: &str, devices: &[String]) -> Result<Known, Failure> {
        let now_ms = (self.setting.clock)();
        let host = self.host(now_ms)?;
        let found = self.gather(uuid, devices)?;
        let is_own = |volume: &&Described| {
            devices.contains(&volume.id)
                || volume.tags.get(FILE_SYSTEM_TAG).is_some_and(|tag| tag == uuid)
        };
        let own: Vec<&Described> = found.values().filter(is_own).collect();
        let others: Vec<&Described> =
            found.values().filter(|volume| !is_own(volume) && self.has(volume)).collect();
        let attached = found.values().filter(|volume| self.has(volume)).count();
        let encrypted = own.iter().find(|volume| volume.encrypted);
        self.encryption = encrypted.map(|volume| volume.kms_key.clone());
        let in_devices = own.iter().copied().filter(|volume| devices.contains(&volume.id));
        self.untagged.find(uuid, in_devices);
        let ids: Vec<&str> = own.iter().map(|volume| volume.id.as_str()).collect();
        let modifications = self.modifications(&ids)?;
        self.changes.add(&modifications, now_ms);
        let window_s = self.setting.policy.rate.window_s;
        let measured = self.api.measures(&own, window_s)?;
        let volumes: Vec<Volume> = own
            .iter()
            .map(|volume| self.volume(volume, &modifications, &measured, now_ms))
            .collect();
        let instance = self.observed_instance(&host, attached, &others);
        let account = self.totals(&own, now_ms)?;
        Ok(Known { volumes, instance: Some(instance), account, unix_ms: measured.unix_ms })
    }

    /// Returns whether the host has a volume, or it is on the way to or from it.
    fn has(&self, volume: &Described) -> bool {
        let host = &self.setting.instance;
        let is_here = |instance: &str, state: &str| instance == host && state != "detached";
        volume.attachments.iter().any(|attachment| is_here(&attachment.instance, &attachment.state))
    }

    fn volume(
        &self,
        described: &Described,
        modifications: &[Modified],
        measured: &Measured,
        now_ms: u64,
    ) -> Volume {
        let id = &described.id;
        let measure = measured.volumes.get(id).copied().unwrap_or_default();
        let modification = modifications.iter().find(|modified| modified.volume == *id);
        let rules = self.setting.policy.plan.rules.modify_rules();
        let hour_ms = self.setting.policy.hour_ms();
        Volume {
            id: id.clone(),
            spec: described.spec,
            state: self.state(described),
            created_ms: described.created_ms,
            made_by: described.tags.get(OPERATION_TAG).cloned(),
            retired_ms: retired_ms(described),
            has_superblock: None,
            modification: modification.map(|modified| modified.state),
            modified_ms: self.changes.last_day(id, now_ms),
            modifiable_from_ms: rules.and_then(|rules| {
                self.changes.modifiable_from_ms(id, rules.policy, hour_ms, now_ms)
            }),
            balance_ppm: measure.balance_ppm,
            exceeded_s: measure.exceeded_s,
            used_mibps: self.used_mibps(described, now_ms).or(measure.used_mibps),
        }
    }

    /// Returns the used part of a volume's limits by the kernel's counters, as MiB/s: those of its
    /// bytes, or of its requests if they use the larger part of their limit.
    fn used_mibps(&self, volume: &Described, now_ms: u64) -> Option<u32> {
        let counters = self.setting.counters.as_ref()?;
        let used = counters.used(volume.id.parse().ok()?, now_ms)?;
        let limits = Limits::of(&self.setting.policy.plan, &volume.spec);
        let by_requests = match (limits.iops, limits.bytes) {
            (Some(iops), Some(bytes)) => {
                let part = u128::from(used.requests_per_s) * u128::from(bytes);
                part / u128::from(iops.max(1))
            }
            _ => 0,
        };
        let bytes = u128::from(used.bytes_per_s).max(by_requests);
        Some(saturating(bytes.div_ceil(u128::from(MIB))))
    }

    fn state(&self, volume: &Described) -> VolumeState {
        match volume.state.as_str() {
            "creating" => return VolumeState::Creating,
            "available" => return VolumeState::Available,
            "in-use" => {}
            _ => return VolumeState::Elsewhere,
        }
        let host = &self.setting.instance;
        let here = volume.attachments.iter().find(|attachment| attachment.instance == *host);
        let Some(here) = here else { return VolumeState::Elsewhere };
        match here.state.as_str() {
            "attaching" => VolumeState::Attaching { since_ms: here.since_ms },
            "attached" => VolumeState::Attached,
            _ => VolumeState::Detaching,
        }
    }

    fn observed_instance(
        &self,
        host: &DescribedInstance,
        attached: usize,
        others: &[&Described],
    ) -> Instance {
        let known = instance::by_name(&host.instance_type);
        let most = known.map_or(DEVICES_MAX, |known| known.attachments_max);
        let attached = u32::try_from(attached).expect("invariant: the API has no such number");
        let mut observed = Instance {
            id: self.setting.instance.clone(),
            instance_type: host.instance_type.clone(),
            free_slots: most.saturating_sub(attached),
            other_iops: 0,
            other_mibps: 0,
            operations: self.other_operations,
        };
        for other in others {
            let pacing = self.setting.policy.plan.rules.pacing(&other.spec);
            let per_second = |limit: Option<evenkeel_core::qos::pacing::Limit>| {
                limit.map_or(0, |limit| limit.per_second)
            };
            observed.other_iops += per_second(pacing.operations);
            observed.other_mibps += per_second(pacing.bytes).div_ceil(MIB);
        }
        observed
    }

    /// Returns the totals of the policy's groups, read again now and then.
    fn totals(&mut self, own: &[&Described], now_ms: u64) -> Result<Account, Failure> {
        if let Some((read_ms, account)) = self.account
            && now_ms.saturating_sub(read_ms) < ACCOUNT_MS
        {
            return Ok(account);
        }
        let group = self.setting.policy.tags.clone();
        let mut fleet: BTreeMap<String, Described> =
            own.iter().map(|volume| (volume.id.clone(), (*volume).clone())).collect();
        for tags in &self.setting.groups {
            let found = self.api.volumes(&filters_of(tags))?;
            fleet.extend(found.into_iter().map(|volume| (volume.id.clone(), volume)));
        }
        let ids: Vec<&str> = fleet.keys().map(String::as_str).collect();
        let modifications = self.modifications(&ids)?;
        let hour_ms = self.setting.policy.hour_ms();
        let is_recent = |ms: u64| ms != 0 && now_ms.saturating_sub(ms) < hour_ms;
        let has_changed = |volume: &&Described| {
            let modified = modifications.iter().filter(|modified| modified.volume == volume.id);
            retired_ms(volume).is_some_and(is_recent)
                || modified.map(|modified| modified.started_ms).any(is_recent)
        };
        let in_group = |volume: &&Described| {
            own.iter().any(|own| own.id == volume.id) || has_tags(volume, &group)
        };
        let count =
            |number: usize| u32::try_from(number).expect("invariant: below the API's limit");
        let account = Account {
            fleet_monthly_micro: fleet.values().map(|volume| self.monthly(&volume.spec)).sum(),
            group_monthly_micro: fleet
                .values()
                .filter(in_group)
                .map(|volume| self.monthly(&volume.spec))
                .sum(),
            fleet_volumes: count(fleet.len()),
            fleet_changed_last_hour: count(fleet.values().filter(has_changed).count()),
        };
        self.account = Some((now_ms, account));
        Ok(account)
    }

    /// Returns the price of a month; 0 for a type without a price.
    fn monthly(&self, spec: &VolumeSpec) -> u64 {
        self.setting.policy.plan.prices.list().monthly_micro_usd(spec).unwrap_or(0)
    }
}

impl Cloud for Ec2 {
    fn observe(&mut self, uuid: &str, devices: &[String]) -> Result<Known, Fault> {
        self.look(uuid, devices).map_err(|failure| fault(&failure))
    }

    fn execute(&mut self, uuid: &str, call: &Call) -> Result<(), Fault> {
        self.account = None;
        self.make(uuid, call)
    }
}

fn retired_ms(volume: &Described) -> Option<u64> {
    volume.tags.get(RETIRED_TAG)?.parse().ok()
}

/// Returns whether a volume is one of a group with these tags. A group without tags has the volumes
/// that the autopilot has made.
fn has_tags(volume: &Described, group: &BTreeMap<String, String>) -> bool {
    let is_made = volume.tags.contains_key(FILE_SYSTEM_TAG);
    if group.is_empty() {
        is_made
    } else {
        group.iter().all(|(key, value)| volume.tags.get(key) == Some(value))
    }
}

fn filters_of(group: &BTreeMap<String, String>) -> Vec<(String, Vec<String>)> {
    if group.is_empty() {
        return vec![("tag-key".to_owned(), vec![FILE_SYSTEM_TAG.to_owned()])];
    }
    group.iter().map(|(key, value)| (format!("tag:{key}"), vec![value.clone()])).collect()
}

#[cfg(test)]
pub(crate) mod tests;
