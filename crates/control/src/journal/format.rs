//! The JSON of an [`Event`], which every journal stores. Pure.
//!
//! JSON, in this order and without spaces:
//!
//! ```text
//! {"version":1,"kind":"volume_gone","event":{"id":"vol-00000000000000007"}}
//! ```
//!
//! The types below exist for this form only. So renaming a field of the model does not change the
//! bytes, and a field that is added here by mistake fails a golden test. The rules:
//!
//! - The bytes of an event depend on the event only.
//! - After the first release, a change of any golden byte needs a new [`FORM`]:
//!   docs/internals/journal.md has the rule.
//! - An unknown form, kind or field is an error. Nothing is ignored or guessed: a program that
//!   ignored a field would write the volume back without it.
//!
//! Times are milliseconds of Unix time. Ids and types have the form of the API.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_wire::agent::HostAddress;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::JournalError;
use crate::model::users::{AccessKey, Secret};
use crate::model::{
    Account, Attachment, AttachmentState, Event, FastRestore, Filled, Host, HostState, Lock,
    LockMode, Modification, ModificationPhase, Phase, PublicAccess, Snapshot, SnapshotPhase,
    TierOperation, Tiering, Token, User, Volume,
};
use crate::time::Moment;

#[cfg(test)]
pub mod tests;

/// The form of the control plane's state, in events, in SQLite's file and in etcd: the one that is
/// written, and the only one that is read.
pub const FORM: u64 = 1;

/// Why bytes are not an event or a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FormatError {
    /// Not the JSON of one; the text has the error and its position.
    Malformed(String),
    /// Written in another form, this one.
    Form(u64),
    /// The form has no event of this kind.
    Kind(String),
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(reason) => write!(f, "the value cannot be read: {reason}"),
            Self::Form(found) => write!(
                f,
                "written in form {found}, and this program reads form {FORM}; run the version of \
                 evenkeel that wrote it"
            ),
            Self::Kind(kind) => write!(f, "form {FORM} has no event of the kind '{kind}'"),
        }
    }
}

impl std::error::Error for FormatError {}

impl FormatError {
    /// Returns the journal's error for a value at this place.
    #[must_use]
    pub fn at(&self, place: &str) -> JournalError {
        let text = format!("{place}: {self}");
        match self {
            Self::Form(_) => JournalError::OtherForm(text),
            Self::Malformed(_) | Self::Kind(_) => JournalError::Failed(text),
        }
    }
}

/// Encodes an event.
///
/// # Errors
/// [`FormatError::Malformed`]; no event of the model is known to cause it.
pub fn encode(event: &Event) -> Result<String, FormatError> {
    match event {
        Event::Volume(volume) => whole("volume", VolumeForm::from(volume)),
        Event::VolumeGone(id) => whole("volume_gone", VolumeGoneForm { id: *id }),
        Event::Host(host) => whole("host", HostForm::from(host)),
        Event::HostGone(id) => whole("host_gone", HostGoneForm { id: *id }),
        Event::Token(name, token) => whole("token", TokenForm::from((name, token))),
        Event::TokenGone(name) => whole("token_gone", TokenGoneForm { name: name.clone() }),
        Event::Snapshot(snapshot) => whole("snapshot", SnapshotForm::from(snapshot)),
        Event::SnapshotGone(id) => whole("snapshot_gone", SnapshotGoneForm { id: *id }),
        Event::Account(account) => {
            let Account { encrypt_by_default, public_access } = *account;
            whole("account", AccountForm { encrypt_by_default, public_access })
        }
        Event::User(user) => whole("user", UserForm::from(user)),
        Event::UserGone(key) => whole("user_gone", UserGoneForm { key: key.clone() }),
    }
}

fn whole(kind: &str, event: impl Serialize) -> Result<String, FormatError> {
    #[derive(Serialize)]
    struct Whole<'a, T> {
        version: u64,
        kind: &'a str,
        event: T,
    }
    serde_json::to_string(&Whole { version: FORM, kind, event }).map_err(malformed)
}

/// Decodes an event.
///
/// # Errors
/// See [`FormatError`].
pub fn decode(bytes: &[u8]) -> Result<Event, FormatError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Whole<'a> {
        version: u64,
        kind: String,
        #[serde(borrow)]
        event: &'a RawValue,
    }
    // serde would accept a JSON array for the fields of an object.
    if bytes.first() != Some(&b'{') {
        return Err(FormatError::Malformed("it is no JSON object".into()));
    }
    let (kind, event) = match serde_json::from_slice(bytes) {
        Ok(Whole { version: FORM, kind, event }) => (kind, event),
        Ok(Whole { version, .. }) => return Err(FormatError::Form(version)),
        Err(error) => return Err(other_form(bytes).unwrap_or_else(|| malformed(error))),
    };
    Ok(match kind.as_str() {
        "volume" => Event::Volume(form::<VolumeForm>(event)?.into()),
        "volume_gone" => Event::VolumeGone(form::<VolumeGoneForm>(event)?.id),
        "host" => Event::Host(form::<HostForm>(event)?.into()),
        "host_gone" => Event::HostGone(form::<HostGoneForm>(event)?.id),
        "token" => {
            let TokenForm { name, fingerprint, volume, used_ms } = form(event)?;
            Event::Token(name, Token { fingerprint, volume, used: UnixMs(used_ms) })
        }
        "token_gone" => Event::TokenGone(form::<TokenGoneForm>(event)?.name),
        "snapshot" => Event::Snapshot(form::<SnapshotForm>(event)?.into()),
        "snapshot_gone" => Event::SnapshotGone(form::<SnapshotGoneForm>(event)?.id),
        "account" => {
            let AccountForm { encrypt_by_default, public_access } = form(event)?;
            Event::Account(Account { encrypt_by_default, public_access })
        }
        "user" => Event::User(form::<UserForm>(event)?.into()),
        "user_gone" => Event::UserGone(form::<UserGoneForm>(event)?.key),
        _ => return Err(FormatError::Kind(kind)),
    })
}

/// Returns the error of an event with unknown fields, if it is of another form.
fn other_form(bytes: &[u8]) -> Option<FormatError> {
    #[derive(Deserialize)]
    struct Numbered {
        version: u64,
    }
    let Numbered { version } = serde_json::from_slice(bytes).ok()?;
    (version != FORM).then_some(FormatError::Form(version))
}

/// Encodes a point in time.
///
/// # Errors
/// [`FormatError::Malformed`]; no moment is known to cause it.
pub fn encode_moment(moment: &Moment) -> Result<String, FormatError> {
    let form = MomentForm { unix_ms: moment.unix.0, boot: moment.boot.clone() };
    serde_json::to_string(&form).map_err(malformed)
}

/// Decodes a point in time.
///
/// # Errors
/// [`FormatError::Malformed`].
pub fn decode_moment(bytes: &[u8]) -> Result<Moment, FormatError> {
    let MomentForm { unix_ms, boot } = serde_json::from_slice(bytes).map_err(malformed)?;
    Ok(Moment { unix: UnixMs(unix_ms), boot })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MomentForm {
    unix_ms: u64,
    boot: Option<(String, u64)>,
}

fn form<'a, T: Deserialize<'a>>(event: &'a RawValue) -> Result<T, FormatError> {
    serde_json::from_str(event.get()).map_err(malformed)
}

fn malformed(error: serde_json::Error) -> FormatError {
    FormatError::Malformed(error.to_string())
}

/// Serializes values in the text form that they print and parse.
mod text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'a, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'a>,
    {
        let text = String::deserialize(from)?;
        text.parse().map_err(|error| D::Error::custom(format_args!("'{text}': {error}")))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeForm {
    #[serde(with = "text")]
    id: VolumeId,
    zone: String,
    created_ms: u64,
    snapshot: Option<SnapshotText>,
    spec: SpecForm,
    phase: PhaseForm,
    attachments: Vec<AttachmentForm>,
    tags: BTreeMap<String, String>,
    modification: Option<ModificationForm>,
    modification_starts_ms: Vec<u64>,
    source: Option<VolumeText>,
    through: Option<SnapshotText>,
    encrypted: bool,
    fast_restored: bool,
    auto_enable_io: bool,
    /// Written only while it is true, so the bytes of other volumes are those of version 0.1.0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    adopted: bool,
}

/// A snapshot's id in its text form, for optional fields.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct SnapshotText(#[serde(with = "text")] SnapshotId);

/// A volume's id in its text form, for optional fields.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct VolumeText(#[serde(with = "text")] VolumeId);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeGoneForm {
    #[serde(with = "text")]
    id: VolumeId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecForm {
    #[serde(rename = "type", with = "text")]
    volume_type: VolumeType,
    size_gib: u32,
    iops: Option<u32>,
    throughput_mibps: Option<u32>,
    multi_attach: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
enum PhaseForm {
    Creating,
    Ready,
    Deleting,
    Error { reason: String },
    Binned { entered_ms: u64, until_ms: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachmentForm {
    #[serde(with = "text")]
    instance: InstanceId,
    device: String,
    state: AttachmentStateForm,
    attached_ms: u64,
    delete_on_termination: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AttachmentStateForm {
    Attaching,
    Attached,
    Detaching,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModificationForm {
    original: SpecForm,
    target: SpecForm,
    started_ms: u64,
    phase: ModificationPhaseForm,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
enum ModificationPhaseForm {
    Modifying,
    Optimizing { since_ms: u64, until_ms: u64 },
    Completed { ended_ms: u64 },
    Failed { ended_ms: u64, reason: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostForm {
    #[serde(with = "text")]
    id: InstanceId,
    #[serde(rename = "type")]
    instance_type: String,
    /// `null` means this machine.
    address: Option<IpAddr>,
    registered_ms: u64,
    tags: BTreeMap<String, String>,
    state: HostStateForm,
    /// `null` means the first zone of the server.
    zone: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
enum HostStateForm {
    Running,
    Stopped,
    Terminated { at_ms: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostGoneForm {
    #[serde(with = "text")]
    id: InstanceId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenForm {
    name: String,
    fingerprint: String,
    #[serde(with = "text")]
    volume: VolumeId,
    used_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenGoneForm {
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotForm {
    #[serde(with = "text")]
    id: SnapshotId,
    #[serde(with = "text")]
    volume: VolumeId,
    size_gib: u32,
    description: String,
    started_ms: u64,
    phase: SnapshotPhaseForm,
    tags: BTreeMap<String, String>,
    filled: Option<FilledForm>,
    copy_of: Option<SnapshotText>,
    for_volume: Option<VolumeText>,
    encrypted: bool,
    lock: Option<LockForm>,
    shared_with: BTreeSet<String>,
    fast_restores: BTreeMap<String, FastRestoreForm>,
    tiering: Option<TieringForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockForm {
    mode: LockModeForm,
    created_ms: u64,
    cool_off_hours: u32,
    days: u32,
    until_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LockModeForm {
    Governance,
    Compliance,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FastRestoreForm {
    since_ms: u64,
    credits_micro: u64,
    counted_ms: u64,
}

impl FastRestoreForm {
    fn of((zone, fast): (&String, &FastRestore)) -> (String, Self) {
        let FastRestore { since, credits, counted } = *fast;
        let form = Self { since_ms: since.0, credits_micro: credits, counted_ms: counted.0 };
        (zone.clone(), form)
    }

    fn read((zone, form): (String, Self)) -> (String, FastRestore) {
        let Self { since_ms, credits_micro: credits, counted_ms } = form;
        (zone, FastRestore { since: UnixMs(since_ms), credits, counted: UnixMs(counted_ms) })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TieringForm {
    last: TierOperationForm,
    began_ms: u64,
    archived_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
enum TierOperationForm {
    Archive,
    TemporaryRestore { until_ms: u64 },
    PermanentRestore,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountForm {
    encrypt_by_default: Option<bool>,
    #[serde(with = "text")]
    public_access: PublicAccess,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserForm {
    name: String,
    path: String,
    id: String,
    created_ms: u64,
    keys: Vec<AccessKeyForm>,
    policies: BTreeMap<String, String>,
    attached: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessKeyForm {
    id: String,
    secret: String,
    active: bool,
    created_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserGoneForm {
    key: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilledForm {
    parent: Option<SnapshotText>,
    timeout_min: u32,
    token: Option<StartTokenForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StartTokenForm {
    name: String,
    fingerprint: String,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
enum SnapshotPhaseForm {
    Pending,
    Filling,
    Copying { data_bytes: u64 },
    Completed { data_bytes: u64, ended_ms: u64 },
    Error { reason: String },
    Deleting { data_bytes: u64 },
    Binned { data_bytes: u64, ended_ms: u64, entered_ms: u64, until_ms: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotGoneForm {
    #[serde(with = "text")]
    id: SnapshotId,
}

fn ms(times: &[UnixMs]) -> Vec<u64> {
    times.iter().map(|time| time.0).collect()
}

impl From<&Volume> for VolumeForm {
    fn from(volume: &Volume) -> Self {
        Self {
            id: volume.id,
            zone: volume.zone.clone(),
            created_ms: volume.created.0,
            snapshot: volume.snapshot.map(SnapshotText),
            spec: volume.spec.into(),
            phase: (&volume.phase).into(),
            attachments: volume.attachments.iter().map(AttachmentForm::from).collect(),
            tags: volume.tags.clone(),
            modification: volume.modification.as_ref().map(ModificationForm::from),
            modification_starts_ms: ms(&volume.modification_starts),
            source: volume.source.map(VolumeText),
            through: volume.through.map(SnapshotText),
            encrypted: volume.is_encrypted,
            fast_restored: volume.is_fast_restored,
            auto_enable_io: volume.auto_enable_io,
            adopted: volume.is_adopted,
        }
    }
}

impl From<VolumeForm> for Volume {
    fn from(form: VolumeForm) -> Self {
        Self {
            id: form.id,
            zone: form.zone,
            created: UnixMs(form.created_ms),
            snapshot: form.snapshot.map(|SnapshotText(id)| id),
            spec: form.spec.into(),
            phase: form.phase.into(),
            attachments: form.attachments.into_iter().map(Attachment::from).collect(),
            tags: form.tags,
            modification: form.modification.map(Modification::from),
            modification_starts: form.modification_starts_ms.into_iter().map(UnixMs).collect(),
            source: form.source.map(|VolumeText(id)| id),
            through: form.through.map(|SnapshotText(id)| id),
            is_encrypted: form.encrypted,
            is_fast_restored: form.fast_restored,
            auto_enable_io: form.auto_enable_io,
            is_adopted: form.adopted,
        }
    }
}

impl From<VolumeSpec> for SpecForm {
    fn from(spec: VolumeSpec) -> Self {
        let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach } = spec;
        Self { volume_type, size_gib, iops, throughput_mibps, multi_attach }
    }
}

impl From<SpecForm> for VolumeSpec {
    fn from(form: SpecForm) -> Self {
        let SpecForm { volume_type, size_gib, iops, throughput_mibps, multi_attach } = form;
        Self { volume_type, size_gib, iops, throughput_mibps, multi_attach }
    }
}

impl From<&Phase> for PhaseForm {
    fn from(phase: &Phase) -> Self {
        match phase {
            Phase::Creating => Self::Creating,
            Phase::Ready => Self::Ready,
            Phase::Deleting => Self::Deleting,
            Phase::Error(reason) => Self::Error { reason: reason.clone() },
            Phase::Binned { entered, until } => {
                Self::Binned { entered_ms: entered.0, until_ms: until.0 }
            }
        }
    }
}

impl From<PhaseForm> for Phase {
    fn from(form: PhaseForm) -> Self {
        match form {
            PhaseForm::Creating => Self::Creating,
            PhaseForm::Ready => Self::Ready,
            PhaseForm::Deleting => Self::Deleting,
            PhaseForm::Error { reason } => Self::Error(reason),
            PhaseForm::Binned { entered_ms, until_ms } => {
                Self::Binned { entered: UnixMs(entered_ms), until: UnixMs(until_ms) }
            }
        }
    }
}

impl From<&Attachment> for AttachmentForm {
    fn from(attachment: &Attachment) -> Self {
        Self {
            instance: attachment.instance,
            device: attachment.device.clone(),
            state: match attachment.state {
                AttachmentState::Attaching => AttachmentStateForm::Attaching,
                AttachmentState::Attached => AttachmentStateForm::Attached,
                AttachmentState::Detaching => AttachmentStateForm::Detaching,
            },
            attached_ms: attachment.attached.0,
            delete_on_termination: attachment.delete_on_termination,
        }
    }
}

impl From<AttachmentForm> for Attachment {
    fn from(form: AttachmentForm) -> Self {
        Self {
            instance: form.instance,
            device: form.device,
            state: match form.state {
                AttachmentStateForm::Attaching => AttachmentState::Attaching,
                AttachmentStateForm::Attached => AttachmentState::Attached,
                AttachmentStateForm::Detaching => AttachmentState::Detaching,
            },
            attached: UnixMs(form.attached_ms),
            delete_on_termination: form.delete_on_termination,
        }
    }
}

impl From<&Modification> for ModificationForm {
    fn from(modification: &Modification) -> Self {
        Self {
            original: modification.original.into(),
            target: modification.target.into(),
            started_ms: modification.started.0,
            phase: match &modification.phase {
                ModificationPhase::Modifying => ModificationPhaseForm::Modifying,
                ModificationPhase::Optimizing { since, until } => {
                    ModificationPhaseForm::Optimizing { since_ms: since.0, until_ms: until.0 }
                }
                ModificationPhase::Completed { ended } => {
                    ModificationPhaseForm::Completed { ended_ms: ended.0 }
                }
                ModificationPhase::Failed { ended, reason } => {
                    ModificationPhaseForm::Failed { ended_ms: ended.0, reason: reason.clone() }
                }
            },
        }
    }
}

impl From<ModificationForm> for Modification {
    fn from(form: ModificationForm) -> Self {
        Self {
            original: form.original.into(),
            target: form.target.into(),
            started: UnixMs(form.started_ms),
            phase: match form.phase {
                ModificationPhaseForm::Modifying => ModificationPhase::Modifying,
                ModificationPhaseForm::Optimizing { since_ms, until_ms } => {
                    let since = UnixMs(since_ms);
                    let until = UnixMs(until_ms);
                    ModificationPhase::Optimizing { since, until }
                }
                ModificationPhaseForm::Completed { ended_ms } => {
                    ModificationPhase::Completed { ended: UnixMs(ended_ms) }
                }
                ModificationPhaseForm::Failed { ended_ms, reason } => {
                    ModificationPhase::Failed { ended: UnixMs(ended_ms), reason }
                }
            },
        }
    }
}

impl From<&Host> for HostForm {
    fn from(host: &Host) -> Self {
        Self {
            id: host.id,
            instance_type: host.instance_type.clone(),
            address: match host.address {
                HostAddress::Local => None,
                HostAddress::Remote(ip) => Some(ip),
            },
            registered_ms: host.registered.0,
            tags: host.tags.clone(),
            state: match host.state {
                HostState::Running => HostStateForm::Running,
                HostState::Stopped => HostStateForm::Stopped,
                HostState::Terminated { at } => HostStateForm::Terminated { at_ms: at.0 },
            },
            zone: host.zone.clone(),
        }
    }
}

impl From<HostForm> for Host {
    fn from(form: HostForm) -> Self {
        Self {
            id: form.id,
            instance_type: form.instance_type,
            address: form.address.map_or(HostAddress::Local, HostAddress::Remote),
            registered: UnixMs(form.registered_ms),
            state: match form.state {
                HostStateForm::Running => HostState::Running,
                HostStateForm::Stopped => HostState::Stopped,
                HostStateForm::Terminated { at_ms } => HostState::Terminated { at: UnixMs(at_ms) },
            },
            tags: form.tags,
            zone: form.zone,
        }
    }
}

impl From<(&String, &Token)> for TokenForm {
    fn from((name, token): (&String, &Token)) -> Self {
        Self {
            name: name.clone(),
            fingerprint: token.fingerprint.clone(),
            volume: token.volume,
            used_ms: token.used.0,
        }
    }
}

impl From<&User> for UserForm {
    fn from(user: &User) -> Self {
        let key = |key: &AccessKey| AccessKeyForm {
            id: key.id.clone(),
            secret: key.secret.0.clone(),
            active: key.is_active,
            created_ms: key.created.0,
        };
        Self {
            name: user.name.clone(),
            path: user.path.clone(),
            id: user.id.clone(),
            created_ms: user.created.0,
            keys: user.keys.iter().map(key).collect(),
            policies: user.policies.clone(),
            attached: user.attached.clone(),
        }
    }
}

impl From<UserForm> for User {
    fn from(form: UserForm) -> Self {
        let key = |key: AccessKeyForm| AccessKey {
            id: key.id,
            secret: Secret(key.secret),
            is_active: key.active,
            created: UnixMs(key.created_ms),
        };
        Self {
            name: form.name,
            path: form.path,
            id: form.id,
            created: UnixMs(form.created_ms),
            keys: form.keys.into_iter().map(key).collect(),
            policies: form.policies,
            attached: form.attached,
        }
    }
}

impl From<&Snapshot> for SnapshotForm {
    fn from(snapshot: &Snapshot) -> Self {
        Self {
            id: snapshot.id,
            volume: snapshot.volume,
            size_gib: snapshot.size_gib,
            description: snapshot.description.clone(),
            started_ms: snapshot.started.0,
            phase: match &snapshot.phase {
                SnapshotPhase::Pending => SnapshotPhaseForm::Pending,
                SnapshotPhase::Filling => SnapshotPhaseForm::Filling,
                SnapshotPhase::Copying { data } => {
                    SnapshotPhaseForm::Copying { data_bytes: data.0 }
                }
                SnapshotPhase::Binned { data, ended, entered, until } => {
                    SnapshotPhaseForm::Binned {
                        data_bytes: data.0,
                        ended_ms: ended.0,
                        entered_ms: entered.0,
                        until_ms: until.0,
                    }
                }
                SnapshotPhase::Completed { data, ended } => {
                    SnapshotPhaseForm::Completed { data_bytes: data.0, ended_ms: ended.0 }
                }
                SnapshotPhase::Error(reason) => SnapshotPhaseForm::Error { reason: reason.clone() },
                SnapshotPhase::Deleting { data } => {
                    SnapshotPhaseForm::Deleting { data_bytes: data.0 }
                }
            },
            tags: snapshot.tags.clone(),
            filled: snapshot.filled.as_ref().map(FilledForm::from),
            copy_of: snapshot.copy_of.map(SnapshotText),
            for_volume: snapshot.for_volume.map(VolumeText),
            encrypted: snapshot.is_encrypted,
            lock: snapshot.lock.map(LockForm::from),
            shared_with: snapshot.shared_with.clone(),
            fast_restores: snapshot.fast_restores.iter().map(FastRestoreForm::of).collect(),
            tiering: snapshot.tiering.map(TieringForm::from),
        }
    }
}

impl From<Tiering> for TieringForm {
    fn from(tiering: Tiering) -> Self {
        let Tiering { last, began, archived } = tiering;
        let last = match last {
            TierOperation::Archive => TierOperationForm::Archive,
            TierOperation::TemporaryRestore { until } => {
                TierOperationForm::TemporaryRestore { until_ms: until.0 }
            }
            TierOperation::PermanentRestore => TierOperationForm::PermanentRestore,
        };
        Self { last, began_ms: began.0, archived_ms: archived.0 }
    }
}

impl From<TieringForm> for Tiering {
    fn from(form: TieringForm) -> Self {
        let last = match form.last {
            TierOperationForm::Archive => TierOperation::Archive,
            TierOperationForm::TemporaryRestore { until_ms } => {
                TierOperation::TemporaryRestore { until: UnixMs(until_ms) }
            }
            TierOperationForm::PermanentRestore => TierOperation::PermanentRestore,
        };
        Self { last, began: UnixMs(form.began_ms), archived: UnixMs(form.archived_ms) }
    }
}

impl From<Lock> for LockForm {
    fn from(lock: Lock) -> Self {
        let Lock { mode, created, cool_off_hours, days, until } = lock;
        let mode = match mode {
            LockMode::Governance => LockModeForm::Governance,
            LockMode::Compliance => LockModeForm::Compliance,
        };
        let until_ms = until.map(|until| until.0);
        Self { mode, created_ms: created.0, cool_off_hours, days, until_ms }
    }
}

impl From<LockForm> for Lock {
    fn from(form: LockForm) -> Self {
        Self {
            mode: match form.mode {
                LockModeForm::Governance => LockMode::Governance,
                LockModeForm::Compliance => LockMode::Compliance,
            },
            created: UnixMs(form.created_ms),
            cool_off_hours: form.cool_off_hours,
            days: form.days,
            until: form.until_ms.map(UnixMs),
        }
    }
}

impl From<&Filled> for FilledForm {
    fn from(filled: &Filled) -> Self {
        let token = filled.token.clone();
        Self {
            parent: filled.parent.map(SnapshotText),
            timeout_min: filled.timeout_min,
            token: token.map(|(name, fingerprint)| StartTokenForm { name, fingerprint }),
        }
    }
}

impl From<FilledForm> for Filled {
    fn from(form: FilledForm) -> Self {
        let token = form.token.map(|StartTokenForm { name, fingerprint }| (name, fingerprint));
        let parent = form.parent.map(|SnapshotText(id)| id);
        Self { parent, timeout_min: form.timeout_min, token }
    }
}

impl From<SnapshotForm> for Snapshot {
    fn from(form: SnapshotForm) -> Self {
        Self {
            id: form.id,
            volume: form.volume,
            size_gib: form.size_gib,
            description: form.description,
            started: UnixMs(form.started_ms),
            phase: match form.phase {
                SnapshotPhaseForm::Pending => SnapshotPhase::Pending,
                SnapshotPhaseForm::Filling => SnapshotPhase::Filling,
                SnapshotPhaseForm::Copying { data_bytes } => {
                    SnapshotPhase::Copying { data: ByteCount(data_bytes) }
                }
                SnapshotPhaseForm::Binned { data_bytes, ended_ms, entered_ms, until_ms } => {
                    let data = ByteCount(data_bytes);
                    let ended = UnixMs(ended_ms);
                    let entered = UnixMs(entered_ms);
                    let until = UnixMs(until_ms);
                    SnapshotPhase::Binned { data, ended, entered, until }
                }
                SnapshotPhaseForm::Completed { data_bytes, ended_ms } => {
                    let data = ByteCount(data_bytes);
                    let ended = UnixMs(ended_ms);
                    SnapshotPhase::Completed { data, ended }
                }
                SnapshotPhaseForm::Error { reason } => SnapshotPhase::Error(reason),
                SnapshotPhaseForm::Deleting { data_bytes } => {
                    SnapshotPhase::Deleting { data: ByteCount(data_bytes) }
                }
            },
            tags: form.tags,
            filled: form.filled.map(Filled::from),
            copy_of: form.copy_of.map(|SnapshotText(id)| id),
            for_volume: form.for_volume.map(|VolumeText(id)| id),
            is_encrypted: form.encrypted,
            lock: form.lock.map(Lock::from),
            shared_with: form.shared_with,
            fast_restores: form.fast_restores.into_iter().map(FastRestoreForm::read).collect(),
            tiering: form.tiering.map(Tiering::from),
        }
    }
}
