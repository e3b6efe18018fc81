//! The EC2 actions: their table, and the steps that they share.
//!
//! [`Api::prepare`] verifies a request's signature and finds its action, [`Api::admit`] refuses
//! repeated signatures, and [`Api::run`] executes the action. Each returns an [`ApiError`] in EC2's
//! form. A new action is one file with an `ACTION` and one line in [`ACTIONS`].

mod absent_resources;
pub mod args;
pub mod error;
pub mod filter;
mod nodes;
pub mod page;
mod public_access;
mod view;

mod adopt_volume;
mod attach_volume;
pub(crate) mod authentic;
mod copy_snapshot;
mod copy_volumes;
mod create_snapshot;
mod create_snapshots;
mod create_tags;
mod create_volume;
mod delete_snapshot;
mod delete_tags;
mod delete_unowned_snapshot;
mod delete_unowned_volume;
mod delete_volume;
mod deregister_host;
mod describe_account_attributes;
mod describe_availability_zones;
mod describe_capacity;
mod describe_endpoints;
mod describe_events;
mod describe_history;
mod describe_instance_status;
mod describe_instance_types;
mod describe_instances;
mod describe_regions;
mod describe_snapshots;
mod describe_tags;
mod describe_unowned_snapshots;
mod describe_unowned_volumes;
mod describe_volume_credits;
mod describe_volume_metrics;
mod describe_volume_recording;
mod describe_volume_status;
mod describe_volumes;
mod describe_volumes_modifications;
mod detach_volume;
mod encryption;
mod fast_restores;
mod instance_attribute;
mod instance_state;
mod modify_volume;
mod recycle_bin;
mod register_host;
mod replays;
mod run_instances;
mod scrub;
mod set_volume_credits;
mod shortage;
mod snapshot_attribute;
mod snapshot_lock;
mod snapshot_tiers;
mod test_clock;
mod test_faults;
mod volume_attribute;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::cloudwatch::CloudWatch;
use evenkeel_wire::aws::query::{self, Params};
use evenkeel_wire::aws::sigv4::{self, Verified};
use evenkeel_wire::aws::xml::Element;

use self::args::Args;
pub use self::authentic::Unauthorized;
use self::error::ApiError;
use self::replays::Replays;
pub use self::replays::{Denied, SIGNATURES_MAX};
use crate::credentials::Credentials;
use crate::endpoint::Endpoint;
use crate::events::During;
use crate::model::Command;
use crate::plane::{Outcome, Plane, PlaneError};
use crate::rights::Caller;
use crate::trail::{Asked, Trail};
use crate::visits::{Records, Visits};
use evenkeel_os::clock;

/// The supported version of the EC2 API.
pub const VERSION: &str = "2016-11-15";
/// The XML namespace of replies.
const NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";
/// The name of the service in signatures.
const SERVICE: &str = "ec2";

/// One action.
pub struct Action {
    /// Its name, as in the parameter `Action`.
    pub name: &'static str,
    /// Whether it changes anything.
    pub mutates: bool,
    /// Executes the action and returns the contents of the reply, without the request id.
    pub run: fn(&mut Call<'_>) -> Result<Vec<Element>, ApiError>,
}

/// All actions, ordered by name.
pub const ACTIONS: &[Action] = &[
    adopt_volume::ACTION,
    attach_volume::ACTION,
    copy_snapshot::ACTION,
    copy_volumes::ACTION,
    create_snapshot::ACTION,
    create_snapshots::ACTION,
    create_tags::ACTION,
    create_volume::ACTION,
    delete_snapshot::ACTION,
    delete_tags::ACTION,
    delete_unowned_snapshot::ACTION,
    delete_unowned_volume::ACTION,
    delete_volume::ACTION,
    deregister_host::ACTION,
    describe_account_attributes::ACTION,
    absent_resources::ADDRESSES,
    describe_availability_zones::ACTION,
    describe_capacity::ACTION,
    describe_endpoints::ACTION,
    describe_events::ACTION,
    fast_restores::DESCRIBE,
    describe_history::ACTION,
    absent_resources::IMAGES,
    instance_attribute::DESCRIBE,
    describe_instance_status::ACTION,
    describe_instance_types::ACTION,
    describe_instances::ACTION,
    snapshot_lock::DESCRIBE,
    nodes::DESCRIBE,
    describe_regions::ACTION,
    scrub::DESCRIBE,
    snapshot_attribute::DESCRIBE,
    snapshot_tiers::DESCRIBE,
    describe_snapshots::ACTION,
    describe_tags::ACTION,
    test_clock::DESCRIBE,
    test_faults::DESCRIBE,
    describe_unowned_snapshots::ACTION,
    describe_unowned_volumes::ACTION,
    volume_attribute::DESCRIBE,
    describe_volume_credits::ACTION,
    describe_volume_metrics::ACTION,
    describe_volume_recording::ACTION,
    describe_volume_status::ACTION,
    describe_volumes::ACTION,
    describe_volumes_modifications::ACTION,
    absent_resources::VPCS,
    detach_volume::ACTION,
    encryption::DISABLE,
    fast_restores::DISABLE,
    public_access::DISABLE,
    encryption::ENABLE,
    fast_restores::ENABLE,
    public_access::ENABLE,
    volume_attribute::ENABLE_IO,
    encryption::GET_KEY,
    encryption::GET,
    public_access::GET,
    recycle_bin::LIST_SNAPSHOTS,
    recycle_bin::LIST_VOLUMES,
    snapshot_lock::LOCK,
    encryption::MODIFY_KEY,
    instance_attribute::MODIFY,
    nodes::MODIFY,
    snapshot_attribute::MODIFY,
    snapshot_tiers::ARCHIVE,
    test_clock::MODIFY,
    modify_volume::ACTION,
    volume_attribute::MODIFY,
    nodes::MOVE,
    recycle_bin::PURGE_SNAPSHOT,
    recycle_bin::PURGE_VOLUME,
    register_host::ACTION,
    encryption::RESET_KEY,
    snapshot_attribute::RESET,
    recycle_bin::RESTORE_SNAPSHOT,
    snapshot_tiers::RESTORE,
    recycle_bin::RESTORE_VOLUME,
    run_instances::ACTION,
    set_volume_credits::ACTION,
    instance_state::START,
    scrub::START,
    test_faults::START,
    instance_state::STOP,
    scrub::STOP,
    test_faults::STOP,
    instance_state::TERMINATE,
    snapshot_lock::UNLOCK,
];

/// A request in execution.
pub struct Call<'a> {
    /// The control plane.
    pub plane: &'a Plane,
    /// The addresses of the data plane.
    pub endpoints: &'a [Endpoint],
    /// The metrics of volumes; `None` if there are none.
    pub cloudwatch: Option<&'a CloudWatch>,
    /// The parameters that have not been read yet.
    pub args: Args,
    /// Hash of all parameters that define the request.
    pub fingerprint: String,
    /// Whether this is a dry run, which changes nothing.
    pub dry_run: bool,
    /// When the request arrived.
    pub now: UnixMs,
}

impl Call<'_> {
    /// Executes a command of the model.
    fn execute(&self, command: &Command) -> Result<Outcome, ApiError> {
        self.plane.execute(command, self.dry_run).map_err(ApiError::from)
    }
}

/// An authentic request for an existing action.
pub struct Prepared {
    /// The action.
    pub action: &'static Action,
    params: Params,
    /// Hash of all parameters that define the request.
    fingerprint: String,
    verified: Verified,
    caller: Caller,
}

/// The API, independent of its sockets.
pub struct Api {
    plane: Arc<Plane>,
    pub(crate) credentials: Credentials,
    endpoints: Vec<Endpoint>,
    replays: Mutex<Replays>,
    /// The metrics of volumes; `None` if there are none.
    pub(crate) cloudwatch: Option<Arc<CloudWatch>>,
    /// The audit of calls; `None` if there is none.
    pub(crate) trail: Option<Arc<Trail>>,
    /// The way of refused signatures to the audit; `None` if there is none.
    pub(crate) visits: Option<Arc<Visits>>,
}

impl Api {
    /// Creates the API of `plane` for clients with `credentials`; the data plane is reached at
    /// `endpoints`. Signatures made until `began`, this server's start, may have been used at an
    /// earlier server; `None` if there was none.
    #[must_use]
    pub fn new(
        plane: Arc<Plane>,
        credentials: Credentials,
        endpoints: Vec<Endpoint>,
        began: Option<UnixMs>,
    ) -> Self {
        // Signatures have real time, and a test clock is alone: only this start counts.
        let stored = plane.time_before().filter(|_| !plane.clock().is_test());
        let replays = Replays::new(began, stored, plane.model().used_signatures());
        let replays = Mutex::new(replays);
        Self { plane, credentials, endpoints, replays, cloudwatch: None, trail: None, visits: None }
    }

    /// Returns the addresses of the data plane.
    pub(crate) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Adds the metrics of volumes.
    #[must_use]
    pub fn with_metrics(self, cloudwatch: Arc<CloudWatch>) -> Self {
        Self { cloudwatch: Some(cloudwatch), ..self }
    }

    /// Adds the audit of calls.
    #[must_use]
    pub(crate) fn with_records(self, records: &Records) -> Self {
        let trail = Some(Arc::clone(&records.trail));
        Self { trail, visits: Some(records.visits()), ..self }
    }

    /// Returns the control plane.
    #[must_use]
    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    /// Checks the signature of a request from `address`, and finds the action.
    ///
    /// # Errors
    /// EC2's errors for signatures, malformed parameters and unknown actions.
    pub fn prepare(
        &self,
        request: &sigv4::Request<'_>,
        address: IpAddr,
    ) -> Result<Prepared, ApiError> {
        let (verified, caller) = self.verify(request, SERVICE, address)?;
        let mut params = authentic::parameters(request)?;
        let name = params.take("Action").ok_or_else(ApiError::missing_action)?;
        let action = ACTIONS
            .iter()
            .find(|action| action.name == name)
            .ok_or_else(|| ApiError::unknown_action(&name))?;
        match params.take("Version") {
            Some(version) if version == VERSION => {
                let fingerprint = fingerprint(&params);
                Ok(Prepared { action, params, fingerprint, verified, caller })
            }
            Some(version) => Err(ApiError::unknown_version(&version)),
            None => Err(ApiError::missing("Version")),
        }
    }

    /// Checks whether the request may be executed now: the signature of a mutating request must not
    /// have been used before. Callers call this once per request, before its execution.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn admit(&self, prepared: &Prepared) -> Result<(), Denied> {
        let Prepared { action, params, fingerprint, verified, .. } = prepared;
        let now = self.plane.now();
        // A request with a client token returns the existing volume, however often it is repeated.
        let is_known = |token: &str| {
            let model = self.plane.model();
            model.known_token(token, now).is_some_and(|known| known.fingerprint == *fingerprint)
        };
        let makes_nothing_new = [create_volume::ACTION.name, copy_volumes::ACTION.name]
            .contains(&action.name)
            && params.get("ClientToken").is_some_and(is_known);
        if !action.mutates || is_dry_run(params) || makes_nothing_new {
            return Ok(());
        }
        self.replays().take(verified, clock::unix_ms())
    }

    pub(crate) fn replays(&self) -> MutexGuard<'_, Replays> {
        // Every change of it is a single call, so a poisoned lock is still consistent.
        self.replays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request. May block for as long as the data plane takes.
    ///
    /// # Errors
    /// The errors of the action.
    pub fn run(&self, prepared: Prepared, request_id: &str) -> Result<String, ApiError> {
        let Prepared { action, params, fingerprint, verified, caller } = prepared;
        let _request = During::request(request_id);
        let asked = Asked {
            caller: &caller,
            service: SERVICE,
            action: action.name,
            is_read_only: !action.mutates,
            params: &params,
            request_id,
        };
        self.recorded(&asked, || {
            self.authorize(&asked)?;
            self.execute((action, fingerprint, &verified), params.clone(), request_id)
        })
    }

    fn execute(
        &self,
        (action, fingerprint, verified): (&Action, String, &Verified),
        params: Params,
        request_id: &str,
    ) -> Result<String, ApiError> {
        let kept = if action.mutates && !is_dry_run(&params) {
            self.keep_ahead(verified).map_err(ApiError::from)
        } else {
            Ok(())
        };
        let result = kept.and_then(|()| self.perform(action, params, fingerprint, request_id));
        if let Err(error) = &result
            && action.mutates
            && error.is_the_servers()
        {
            self.replays().failed(verified, error, clock::unix_ms());
        }
        result
    }

    /// Stores the signature of a change before its execution, if it was made ahead of the clock: a
    /// later server could not tell that it was used.
    pub(crate) fn keep_ahead(&self, verified: &Verified) -> Result<(), PlaneError> {
        let now = clock::unix_ms();
        match replays::ahead(verified, now) {
            Some(used) => self.plane.keep_signature(&used, now),
            None => Ok(()),
        }
    }

    fn perform(
        &self,
        action: &Action,
        params: Params,
        fingerprint: String,
        request_id: &str,
    ) -> Result<String, ApiError> {
        let mut args = Args::new(params);
        let dry_run = args.boolean("DryRun")?.unwrap_or(false);
        let now = self.plane.now();
        let mut call = Call {
            plane: &self.plane,
            endpoints: &self.endpoints,
            cloudwatch: self.cloudwatch.as_deref(),
            args,
            fingerprint,
            dry_run,
            now,
        };
        if let Some(error) = test_faults::injected(&call, action.name) {
            return Err(error);
        }
        let content = (action.run)(&mut call)?;
        if dry_run {
            return Err(ApiError::dry_run());
        }
        let mut root = Element::new(&format!("{}Response", action.name));
        root.namespace = Some(NAMESPACE.into());
        root.children.push(Element::text("requestId", request_id));
        root.children.extend(content);
        Ok(root.document())
    }
}

/// Returns the hash of all parameters of a request except its client token.
///
/// Tags have no order, so equal tags in another order make the same hash: the EBS CSI driver sends
/// them in a random one. Tags that are sorted by key hash as they are.
fn fingerprint(params: &Params) -> String {
    let mut params = params.clone();
    let mut specifications = Vec::new();
    for (_, mut fields) in params.take_structures("TagSpecification") {
        let mut tags: Vec<_> = fields.take_structures("Tag").into_iter().map(sorted).collect();
        tags.sort_unstable();
        specifications.push((sorted((0, fields)), tags));
    }
    specifications.sort_unstable();
    let mut pairs: Vec<(String, String)> = sorted((0, params));
    pairs.retain(|(name, _)| !["ClientToken", "DryRun"].contains(&name.as_str()));
    for ((own, tags), number) in specifications.into_iter().zip(1..) {
        let prefix = format!("TagSpecification.{number}");
        pairs.extend(own.into_iter().map(|(name, value)| (format!("{prefix}.{name}"), value)));
        for (fields, tag) in tags.into_iter().zip(1..) {
            let field = |(name, value)| (format!("{prefix}.Tag.{tag}.{name}"), value);
            pairs.extend(fields.into_iter().map(field));
        }
    }
    pairs.sort_unstable();
    let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    sigv4::sha256_hex(query::encode(pairs).as_bytes())
}

/// Returns the fields of a list's structure, sorted by name, without the structure's number.
fn sorted((_, fields): (u32, Params)) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> =
        fields.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    pairs.sort_unstable();
    pairs
}

/// Returns whether the parameters request a dry run, read as [`Args::boolean`] reads them.
fn is_dry_run(params: &Params) -> bool {
    params.get("DryRun").is_some_and(|value| args::truth(value) == Some(true))
}
