//! EC2's error codes and texts. Clients match on both, so the texts are a wire format.
//!
//! Where Amazon's own text is unknown, ours names the object, the value, the limit and the next
//! step.

use std::fmt::Display;

use evenkeel_core::volume::InvalidSpec;
use evenkeel_wire::agent::{Failed, FailedKind};
use evenkeel_wire::aws::query::QueryError;
use evenkeel_wire::aws::sigv4::SignatureError;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;
use tracing::error;

use super::{ACTIONS, shortage};
use crate::model::{
    ATTACHMENTS_MAX, FILLING_MAX, HOSTS_MAX, Refusal, SNAPSHOTS_MAX, TAGS_MAX, VOLUMES_MAX,
};
use crate::plane::PlaneError;

/// An error reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// EC2's code.
    pub code: &'static str,
    /// The text.
    pub message: String,
}

impl ApiError {
    /// Creates a client error with EC2's usual status.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { status: 400, code, message: message.into() }
    }

    /// Returns the error of a parameter with an illegal value.
    pub fn value(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }

    /// Returns the error of a missing required parameter.
    #[must_use]
    pub fn missing(parameter: &str) -> Self {
        let shown = lower_camel(parameter);
        Self::new("MissingParameter", format!("The request must contain the parameter {shown}"))
    }

    /// Returns the error of a parameter that the action does not have.
    #[must_use]
    pub fn unknown_parameter(parameter: &str) -> Self {
        Self::new("UnknownParameter", format!("The parameter {parameter} is not recognized"))
    }

    /// Returns the error of a missing parameter `Action`.
    #[must_use]
    pub fn missing_action() -> Self {
        Self::new("MissingAction", "The request must contain the parameter Action")
    }

    /// Returns the error of an action that does not exist.
    #[must_use]
    pub fn unknown_action(action: &str) -> Self {
        let near = ACTIONS.iter().map(|known| known.name).max_by(|one, two| {
            let common =
                |name: &str| name.bytes().zip(action.bytes()).take_while(|(a, b)| a == b).count();
            // Of names with an equal common beginning, the first.
            common(one).cmp(&common(two)).then_with(|| two.cmp(one))
        });
        // A name with nothing in common is no help.
        let near = near.filter(|name| name.as_bytes().first() == action.as_bytes().first());
        let near = near.map(|name| format!("; the nearest is {name}")).unwrap_or_default();
        let text = format!(
            "The action {action} is not valid for this web service. docs/reference/api.md lists \
             the actions that are{near}."
        );
        Self::new("InvalidAction", text)
    }

    /// Returns the error of an unsupported version.
    #[must_use]
    pub fn unknown_version(version: &str) -> Self {
        let text = format!("The requested version ({version}) of service AmazonEC2 does not exist");
        Self::new("NoSuchVersion", text)
    }

    /// Returns the error of a filter that the action does not have.
    #[must_use]
    pub fn unknown_filter(name: &str) -> Self {
        Self::value(format!("The filter '{name}' is invalid"))
    }

    /// Returns the error of a zone that does not exist.
    #[must_use]
    pub fn unknown_zone(zone: &str) -> Self {
        Self::new("InvalidZone.NotFound", format!("The zone '{zone}' does not exist."))
    }

    /// Returns the error of an unsupported feature.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new("UnsupportedOperation", message)
    }

    /// Returns the answer to a dry run of a request that would have succeeded.
    #[must_use]
    pub fn dry_run() -> Self {
        let message = "Request would have succeeded, but DryRun flag is set.".into();
        Self { status: 412, code: "DryRunOperation", message }
    }

    /// Returns the error of a request that is refused for now. All SDKs sign it again and retry by
    /// themselves.
    pub fn throttled(message: impl Display) -> Self {
        Self { status: 503, code: "RequestLimitExceeded", message: message.to_string() }
    }

    /// Returns the error of a server that cannot be reached. All SDKs retry by themselves.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { status: 503, code: "Unavailable", message: message.into() }
    }

    /// Returns the error of missing capacity. It is one of EC2's server errors.
    pub fn no_capacity(message: impl Into<String>) -> Self {
        Self { status: 500, code: "InsufficientVolumeCapacity", message: message.into() }
    }

    /// Returns the error of a failed server, and logs the reason.
    pub fn internal(reason: impl Display) -> Self {
        error!(%reason, "a request failed");
        let message = format!("An internal error has occurred: {reason}");
        Self { status: 500, code: "InternalError", message }
    }

    /// Returns whether this is a server error, which clients retry by themselves.
    #[must_use]
    pub const fn is_the_servers(&self) -> bool {
        self.status >= 500
    }

    /// Returns the reply's body.
    #[must_use]
    pub fn document(&self, request_id: &str) -> String {
        let error = [Element::text("Code", self.code), Element::text("Message", &self.message)];
        Element::list(
            "Response",
            [
                Element::list("Errors", [Element::list("Error", error)]),
                Element::text("RequestID", request_id),
            ],
        )
        .document()
    }
}

/// Returns `VolumeId` in the spelling of EC2's texts: `volumeId`.
pub(super) fn lower_camel(parameter: &str) -> String {
    let mut letters = parameter.chars();
    letters.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(letters).collect()
}

impl From<InvalidSpec> for ApiError {
    fn from(invalid: InvalidSpec) -> Self {
        Self::new(invalid.code(), invalid.to_string())
    }
}

impl From<QueryError> for ApiError {
    fn from(error: QueryError) -> Self {
        let code = match error {
            QueryError::TooLong { .. } | QueryError::TooManyParameters => "RequestEntityTooLarge",
            _ => "MalformedQueryString",
        };
        Self::new(code, error.to_string())
    }
}

impl ApiError {
    /// Returns whether it is an error of the request's signature.
    #[must_use]
    pub fn is_of_signature(&self) -> bool {
        const CODES: [&str; 5] = [
            "AuthFailure",
            "IncompleteSignature",
            "MissingAuthenticationToken",
            "RequestExpired",
            "SignatureDoesNotMatch",
        ];
        CODES.contains(&self.code)
    }
}

impl ApiError {
    /// Converts an error that is not an action's to the names of services with JSON.
    #[must_use]
    pub(crate) fn in_json(self) -> Self {
        let code = match self.code {
            "AuthFailure" => "UnrecognizedClientException",
            "IncompleteSignature" => "IncompleteSignatureException",
            "MissingAuthenticationToken" => "MissingAuthenticationTokenException",
            "RequestExpired" | "SignatureDoesNotMatch" => "InvalidSignatureException",
            _ => return self,
        };
        Self { status: 403, code, ..self }
    }
}

impl From<SignatureError> for ApiError {
    fn from(error: SignatureError) -> Self {
        let text = error.to_string();
        let (status, code, message) = match error {
            SignatureError::Missing => (
                403,
                "MissingAuthenticationToken",
                "Request is missing Authentication Token; sign it with the keys that `evenkeel \
                 env` prints"
                    .into(),
            ),
            SignatureError::Incomplete(_) => (400, "IncompleteSignature", text),
            SignatureError::WrongScope(_) => (403, "SignatureDoesNotMatch", text),
            SignatureError::Expired(_) => (400, "RequestExpired", text),
            SignatureError::UnknownKey { .. } => (
                401,
                "AuthFailure",
                "AWS was not able to validate the provided access credentials".into(),
            ),
            SignatureError::Mismatch => (
                403,
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided. \
                 Check your AWS Secret Access Key and signing method. \
                 Consult the service documentation for details."
                    .into(),
            ),
        };
        Self { status, code, message }
    }
}

impl From<PlaneError> for ApiError {
    fn from(error: PlaneError) -> Self {
        match error {
            PlaneError::Refused(refusal) => refusal.into(),
            PlaneError::DryRun => Self::dry_run(),
            PlaneError::Busy(_) => Self::throttled(error),
            PlaneError::Agent(Failed { kind: FailedKind::NoSpace, message }) => {
                Self::no_capacity(message)
            }
            PlaneError::Agent(Failed { kind: FailedKind::Unsupported, message }) => {
                Self::unsupported(message)
            }
            // A client error, because clients retry server errors, and a retry would be refused
            // again.
            PlaneError::Agent(Failed {
                kind: FailedKind::Refused | FailedKind::Damaged,
                message,
            }) => Self::new("IncorrectState", message),
            other => Self::internal(other),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Spec(invalid) => invalid.into(),
            Refusal::Capacity(shortfall) => Self::no_capacity(shortage::capacity(&shortfall)),
            Refusal::Space(short) => Self::no_capacity(shortage::space(&short)),
            Refusal::SpaceForSnapshot { for_sale, sold, needed } => {
                Self::no_capacity(shortage::snapshot(for_sale, sold, needed))
            }
            Refusal::VolumesNotFound(_)
            | Refusal::InstancesNotFound(_)
            | Refusal::NotUnowned(_)
            | Refusal::UnownedServed(_)
            | Refusal::UnknownZone(_)
            | Refusal::NotTaggable(_)
            | Refusal::UnknownInstanceType(_) => unknown(refusal),
            Refusal::SnapshotsNotFound(_)
            | Refusal::SnapshotNotUnowned(_)
            | Refusal::SnapshotUnready(..)
            | Refusal::BelowSnapshot { .. }
            | Refusal::NotForSnapshot(..)
            | Refusal::TooManyPending(_)
            | Refusal::TooManySnapshots
            | Refusal::NotFilling(..)
            | Refusal::NoUnit { .. }
            | Refusal::TooManyFilling => snapshot(refusal),
            Refusal::BelowSource { .. }
            | Refusal::BeingCopied { .. }
            | Refusal::TooManyVolumeCopies(_)
            | Refusal::TooManySnapshotCopies(_)
            | Refusal::SnapshotBeingCopied { .. } => copy(refusal),
            Refusal::SnapshotLocked(..)
            | Refusal::LockedForGood(..)
            | Refusal::NotLocked(_)
            | Refusal::PublicAccessBlocked(..)
            | Refusal::TooManyShares(_)
            | Refusal::TooLargeForFastRestore(..)
            | Refusal::TooManyFast(_) => protection(refusal),
            Refusal::SnapshotArchived(_)
            | Refusal::SnapshotRestored(..)
            | Refusal::NotArchived(_)
            | Refusal::ArchiveOfFast(_)
            | Refusal::ArchiveQuota(..) => tier(refusal),
            Refusal::ZoneMismatch(..)
            | Refusal::AlreadyAttached(_)
            | Refusal::DeviceMalformed(_)
            | Refusal::DeviceTaken(_)
            | Refusal::AttachmentLimit(_)
            | Refusal::NotAttached(..)
            | Refusal::NotAttachedTo(..)
            | Refusal::NotAttachedAs(..)
            | Refusal::AddressShared { .. }
            | Refusal::InstanceMustBeNamed(_) => attachment(refusal),
            Refusal::ModificationUnfinished(..)
            | Refusal::ModificationRate { .. }
            | Refusal::MultiAttachWhileAttached(_) => modification(refusal),
            other => state_or_limit(other),
        }
    }
}

/// Converts refusals because an object does not exist.
fn unknown(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::VolumesNotFound(ids) => {
            let text = missing_ids("The volume", &ids);
            ApiError::new("InvalidVolume.NotFound", text)
        }
        Refusal::NotUnowned(id) => ApiError::new(
            "InvalidVolume.NotFound",
            format!("There are no bytes of {id} that no volume has"),
        ),
        Refusal::UnownedServed(id) => ApiError::new(
            "VolumeInUse",
            format!(
                "No volume has the bytes of {id}, and the data plane serves them: this control \
                 plane has lost the volume. Restore its database, or stop the server that has \
                 them open, and try again"
            ),
        ),
        Refusal::InstancesNotFound(ids) => {
            let text = missing_ids("The instance ID", &ids);
            ApiError::new("InvalidInstanceID.NotFound", text)
        }
        Refusal::UnknownZone(zone) => ApiError::unknown_zone(&zone),
        Refusal::NotTaggable(id) => {
            ApiError::new("InvalidID", format!("The ID '{id}' is not valid"))
        }
        Refusal::UnknownInstanceType(name) => ApiError::new(
            "InvalidInstanceType",
            format!("The following supplied instance types do not exist: [{name}]"),
        ),
        other => state_or_limit(other),
    }
}

fn snapshot(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::SnapshotsNotFound(ids) => {
            let text = missing_ids("The snapshot", &ids);
            ApiError::new("InvalidSnapshot.NotFound", text)
        }
        Refusal::SnapshotNotUnowned(id) => ApiError::new(
            "InvalidSnapshot.NotFound",
            format!("There are no bytes of {id} that no snapshot has"),
        ),
        Refusal::SnapshotUnready(_, state) => {
            ApiError::new("IncorrectState", format!("Snapshot is in invalid state - {state}"))
        }
        Refusal::BelowSnapshot { id, size_gib, least_gib } => ApiError::value(format!(
            "Volume of {size_gib}GiB is smaller than snapshot '{id}', expect size >= {least_gib}GiB"
        )),
        Refusal::NotForSnapshot(volume, state) => ApiError::new(
            "IncorrectState",
            format!("Volume '{volume}' is in the '{}' state.", state.name()),
        ),
        Refusal::TooManyPending(_) => ApiError::new(
            "ConcurrentSnapshotLimitExceeded",
            "Maximum allowed in-progress snapshots for a single volume exceeded.",
        ),
        Refusal::TooManySnapshots => ApiError::new(
            "SnapshotLimitExceeded",
            format!("there are {SNAPSHOTS_MAX} snapshots, which is the limit; delete some first"),
        ),
        Refusal::NotFilling(id, state) => {
            ApiError::new("IncorrectState", format!("{id} is {state}, and not being filled"))
        }
        Refusal::NoUnit { id, unit, units } => {
            ApiError::value(format!("{id} has no block {unit}: it has {units} blocks, from 0 on"))
        }
        Refusal::TooManyFilling => ApiError::new(
            "ConcurrentSnapshotLimitExceeded",
            format!(
                "{FILLING_MAX} snapshots are being filled, which is the limit; complete or delete \
                 some first"
            ),
        ),
        other => state_or_limit(other),
    }
}

fn copy(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::BelowSource { id, size_gib, least_gib } => ApiError::value(format!(
            "The copy would have {size_gib} GiB, and {id} has {least_gib} GiB; a copy is at least \
             as large as its source"
        )),
        Refusal::BeingCopied { id, copy } => ApiError::new(
            "IncorrectState",
            format!("{id} is being copied to {copy}; wait until that is available"),
        ),
        Refusal::TooManyVolumeCopies(max) => ApiError::new(
            "CopyVolumesLimitExceeded",
            format!("{max} copies of volumes are in progress, which is the limit; try again later"),
        ),
        Refusal::TooManySnapshotCopies(max) => ApiError::new(
            "ResourceLimitExceeded",
            format!(
                "{max} copies of snapshots are in progress, which is the limit; try again later"
            ),
        ),
        Refusal::SnapshotBeingCopied { id, copy } => ApiError::new(
            "InvalidSnapshot.InUse",
            format!("The snapshot {id} is being copied to {copy}; wait until that is done"),
        ),
        other => state_or_limit(other),
    }
}

/// Converts refusals of storage tiers.
fn tier(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::SnapshotArchived(id) => ApiError::new(
            "IncorrectState",
            format!("{id} is archived; restore it with RestoreSnapshotTier first"),
        ),
        Refusal::SnapshotRestored(id, until) => ApiError::new(
            "IncorrectState",
            format!(
                "{id} is archived, and restored until {}; it cannot be used after that. \
                 RestoreSnapshotTier with TemporaryRestoreDays changes the time",
                timestamp::extended(until.0)
            ),
        ),
        Refusal::NotArchived(id) => ApiError::new(
            "IncorrectState",
            format!("{id} is not archived, so there is nothing to restore"),
        ),
        Refusal::ArchiveOfFast(id) => ApiError::new(
            "IncorrectState",
            format!("{id} has fast restore; DisableFastSnapshotRestores ends that"),
        ),
        Refusal::ArchiveQuota(volume, most) => ApiError::new(
            "ResourceLimitExceeded",
            format!(
                "{volume} has {most} archived snapshots, which is the quota; delete one, or \
                 restore it permanently"
            ),
        ),
        other => state_or_limit(other),
    }
}

/// Converts refusals of locks, sharing and fast restore.
fn protection(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::SnapshotLocked(id, state) => ApiError::new(
            "SnapshotLocked",
            format!("{id} is locked ({state}) and cannot be deleted; unlock it first"),
        ),
        Refusal::LockedForGood(id, expires) => {
            let until = expires.map_or_else(
                || "some time after it is completed".to_owned(),
                |expires| timestamp::extended(expires.0),
            );
            ApiError::new(
                "SnapshotLocked",
                format!(
                    "{id} is locked in compliance mode until {until}; its time can be made longer \
                     and nothing else"
                ),
            )
        }
        Refusal::NotLocked(id) => ApiError::new("IncorrectState", format!("{id} is not locked")),
        Refusal::PublicAccessBlocked(id, access) => ApiError::new(
            "OperationNotPermitted",
            format!(
                "{id} cannot be shared with all accounts: public access to snapshots has the state \
                 {access}; DisableSnapshotBlockPublicAccess ends that"
            ),
        ),
        Refusal::TooManyShares(id) => ApiError::new(
            "ResourceLimitExceeded",
            format!("{id} would be shared with more than 1,000 accounts, which is the limit"),
        ),
        Refusal::TooLargeForFastRestore(id, max) => ApiError::value(format!(
            "{id} is larger than {max} GiB, the largest snapshot that can have fast restore"
        )),
        Refusal::TooManyFast(max) => ApiError::new(
            "FastSnapshotRestoreLimitExceeded",
            format!("{max} snapshots have fast restore, which is the limit; disable it of some"),
        ),
        other => state_or_limit(other),
    }
}

fn missing_ids<T: Display>(what: &str, ids: &[T]) -> String {
    let list: Vec<String> = ids.iter().map(T::to_string).collect();
    match list.as_slice() {
        [id] => format!("{what} '{id}' does not exist."),
        ids => format!("{what}s '{}' do not exist", ids.join(", ")),
    }
}

fn attachment(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::ZoneMismatch(volume, instance) => ApiError::new(
            "InvalidVolume.ZoneMismatch",
            format!(
                "The volume '{volume}' is not in the same availability zone as instance \
                 '{instance}'"
            ),
        ),
        Refusal::AlreadyAttached(volume) => {
            ApiError::new("VolumeInUse", format!("{volume} is already attached to an instance"))
        }
        Refusal::DeviceMalformed(device) => ApiError::value(format!(
            "Value ({device}) for parameter device is invalid. {device} is not a valid EBS \
             device name."
        )),
        Refusal::DeviceTaken(device) => ApiError::value(format!(
            "Invalid value '{device}' for unixDevice. Attachment point {device} is already in use"
        )),
        Refusal::AttachmentLimit(volume) => ApiError::new(
            "AttachmentLimitExceeded",
            format!(
                "{volume} is attached to {ATTACHMENTS_MAX} instances, which is the limit; detach \
                 one first"
            ),
        ),
        Refusal::NotAttached(volume, state) => ApiError::new(
            "IncorrectState",
            format!("Volume '{volume}' is in the '{}' state.", state.name()),
        ),
        Refusal::NotAttachedTo(volume, instance) => ApiError::new(
            "InvalidAttachment.NotFound",
            format!(
                "Volume {volume} can not be detached from {instance} because it is not attached"
            ),
        ),
        Refusal::NotAttachedAs(volume, instance, device) => ApiError::new(
            "InvalidAttachment.NotFound",
            format!(
                "The volume {volume} is not attached to instance {instance} as device {device}"
            ),
        ),
        Refusal::AddressShared { volume, instance, other } => ApiError::new(
            "UnsupportedOperation",
            format!(
                "Volume {volume} is attached to {other}, which connects from the same address as \
                 {instance}, so their requests could not be distinguished. Detach it from {other} \
                 first, or attach it to an instance that is registered with an address of its own"
            ),
        ),
        Refusal::InstanceMustBeNamed(volume) => ApiError::new(
            "MissingParameter",
            format!(
                "The request must contain the parameter instanceId: {volume} is attached to \
                 several instances"
            ),
        ),
        other => state_or_limit(other),
    }
}

fn modification(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::ModificationUnfinished(volume, state) => ApiError::new(
            "IncorrectModificationState",
            format!("{volume} cannot be modified in modification state {}", state.to_uppercase()),
        ),
        Refusal::ModificationRate { modifications_max: 1, hours, .. } => ApiError::new(
            "VolumeModificationRateExceeded",
            format!(
                "You've reached the maximum modification rate per volume limit. \
                 Wait at least {hours} hours between modifications per EBS volume."
            ),
        ),
        Refusal::ModificationRate { next, .. } => ApiError::new(
            "VolumeModificationRateExceeded",
            format!(
                "You've reached the maximum modification rate per volume limit. \
                 Wait until {} before you can issue the next modification request for this volume.",
                timestamp::extended(next.0)
            ),
        ),
        Refusal::MultiAttachWhileAttached(volume) => ApiError::new(
            "IncorrectState",
            format!(
                "Multi-Attach of {volume} cannot be switched while it is attached; detach it first"
            ),
        ),
        other => state_or_limit(other),
    }
}

fn state_or_limit(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::VolumeInUse(volume, instance) => ApiError::new(
            "VolumeInUse",
            format!("Volume {volume} is currently attached to {instance}"),
        ),
        Refusal::NotAvailable(volume, _) => {
            ApiError::new("IncorrectState", format!("{volume} is not 'available'"))
        }
        Refusal::Unsettled(volume) => ApiError::new(
            "IncorrectState",
            format!("{volume} is being changed and the change is not confirmed yet; try again"),
        ),
        Refusal::TooManyTags(resource) => ApiError::new(
            "TagLimitExceeded",
            format!("{resource} would have more than {TAGS_MAX} tags, which is the limit"),
        ),
        Refusal::TooManySignatures(most) => ApiError::throttled(format!(
            "{most} changes of the last minutes were signed ahead of the server's clock, which is \
             as many as are stored; correct the client's clock, or try again in some minutes"
        )),
        Refusal::TokenReused(token) => ApiError::new(
            "IdempotentParameterMismatch",
            format!("The client token '{token}' was used before with other parameters"),
        ),
        Refusal::TooManyVolumes => ApiError::new(
            "VolumeLimitExceeded",
            format!("there are {VOLUMES_MAX} volumes, which is the limit; delete some first"),
        ),
        Refusal::SnapshotQuota(most) => ApiError::new(
            "SnapshotLimitExceeded",
            format!("the quota of {most} snapshots is reached; delete some first"),
        ),
        Refusal::StorageQuota { volume_type, gib, asked, tib } => ApiError::new(
            "VolumeLimitExceeded",
            format!(
                "a {volume_type} volume of {asked} GiB beside {gib} GiB of others would exceed the \
                 quota of {tib} TiB of {volume_type}; delete some first"
            ),
        ),
        Refusal::IopsQuota { volume_type, present, asked, most } => ApiError::new(
            "MaxIOPSLimitExceeded",
            format!(
                "a {volume_type} volume of {asked} IOPS beside {present} IOPS of others would \
                 exceed the quota of {most} IOPS of {volume_type}; delete some first"
            ),
        ),
        Refusal::OverQuota(over) => {
            ApiError::new(shortage::quota_code(over.resource), shortage::quota(&over))
        }
        Refusal::NoKey => ApiError::unsupported(
            "Encryption is asked for, by the request or by the default of the account, and the \
             store has no key; serve with --key-file or --key-command",
        ),
        other => of_host(other),
    }
}

fn of_host(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::TooManyHosts => ApiError::new(
            "InstanceLimitExceeded",
            format!("there are {HOSTS_MAX} hosts, which is the limit; deregister some first"),
        ),
        Refusal::HostBusy(instance, volume) => ApiError::new(
            "DependencyViolation",
            format!("{volume} is attached to {instance}; detach it first"),
        ),
        Refusal::HostIsLocal(instance) => ApiError::new(
            "OperationNotPermitted",
            format!("{instance} is the machine the server runs on and cannot be deregistered"),
        ),
        Refusal::HostTerminated(instance) => {
            ApiError::new("IncorrectInstanceState", format!("{instance} is terminated"))
        }
        Refusal::HostRuns(instance) => ApiError::new(
            "IncorrectInstanceState",
            format!("The instance '{instance}' is not in the 'stopped' state."),
        ),
        Refusal::HostHasNoType(instance) => ApiError::unsupported(format!(
            "{instance} has the type of the server's own machine, which has no limits; register a \
             host of another type instead"
        )),
        Refusal::HostIsFull { instance, instance_type, most } => ApiError::new(
            "AttachmentLimitExceeded",
            format!(
                "{instance}: {most} volumes can be attached to an instance of type \
                 {instance_type}, which is the limit; detach one, or choose another type"
            ),
        ),
        Refusal::NoDevice(instance, device) => ApiError::new(
            "InvalidInstanceAttributeValue",
            format!("No device is currently mapped at {device} of {instance}"),
        ),
        // The callers handle all other refusals; a plain text is better than a panic.
        other => ApiError::internal(format!("{other:?}")),
    }
}
