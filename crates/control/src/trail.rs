//! The audit of calls: records in the form of CloudTrail, and LookupEvents.
//!
//! [`Api::recorded`] executes a call and stores its record before its reply is sent. Records name
//! the signer, the action, its parameters and the error. They have no secrets, no payload and no
//! replies. [`evenkeel_telemetry::audit`] stores them.

use std::sync::Arc;

use evenkeel_core::time::UnixMs;
use evenkeel_os::clock;
use evenkeel_telemetry::audit::Audit;
use evenkeel_telemetry::metrics::AuditNow;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::visit::{Visit, VisitOutcome};
use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::error::ApiError;
use crate::api::{Api, Unauthorized};
use crate::model::Settings;
use crate::random;
use crate::rights::{Caller, Identity};
use crate::visits::{Entry, Kind, Report};

/// The name of the service in signatures.
pub const SERVICE: &str = "cloudtrail";
/// The beginning of the names of its actions in requests.
pub const TARGET: &str = "com.amazonaws.cloudtrail.v20131101.CloudTrail_20131101.";
/// The only action.
pub const ACTION: &str = "LookupEvents";
/// Maximum number of bytes of a record's parameters, and of characters of a parameter that is
/// neither an id nor a policy. All ids of a request fit: it has 1,100 parameters at most.
const PARAMETERS_BYTES_MAX: usize = 120 << 10;
const VALUE_MAX: usize = 256;
/// Maximum number of bytes of the name of an id, and of an id: ARNs are the longest.
const ID_NAME_BYTES_MAX: usize = 40;
const ID_BYTES_MAX: usize = 700;
/// Maximum number of bytes of the parameters of a call that only reads, and of one that ends with
/// an error. With [`crate::visits`]' bound, a user's refused calls are less than 50 MiB a day.
const READ_BYTES_MAX: usize = 4 << 10;
const REFUSED_BYTES_MAX: usize = 1 << 10;
/// The field with the number of parameters that a record leaves out.
const LEFT_OUT: &str = "parametersLeftOut";
/// Maximum number of characters of an error's text in a record.
const ERROR_MAX: usize = 1_024;
/// Parameters whose values are not recorded, and all whose names, or parts of names between dots,
/// begin with one of these, in any case. Programs of instances may contain secrets, and a signed
/// URL is a right. A client may send the others by mistake.
const SECRETS: [&str; 10] = [
    "NewPassword",
    "OldPassword",
    "Password",
    "PresignedUrl",
    "PrivateKey",
    "Secret",
    "SecurityToken",
    "SessionToken",
    "UserData",
    "X-Amz-S",
];
/// Actions that lead to free space, or that end the use of a stolen key. They are executed on a
/// full disk, too, and use the room that is still reserved.
const FREEING: [&str; 9] = [
    "DeleteAccessKey",
    "DeleteSnapshot",
    "DeleteUnownedSnapshot",
    "DeleteUnownedVolume",
    "DeleteVolume",
    "DetachVolume",
    "PurgeSnapshot",
    "PurgeVolume",
    "UpdateAccessKey",
];
/// The service and the action that need no right, so a bound of their own for each user.
pub const UNRESTRICTED: (&str, &str) = ("sts", "GetCallerIdentity");
/// The source of records of connections and refused signatures.
const CONNECTIONS: &str = "evenkeel";
/// The address in a record of a client on the server's own machine.
const LOCAL: &str = "local";
/// The text in place of a value that is not recorded, as at AWS.
const REMOVED: &str = "HIDDEN_DUE_TO_SECURITY_REASONS";
/// Maximum number of events in a page, and the time for which they are found: 90 days.
const EVENTS_MAX: usize = 50;
const FOUND_MS: u64 = 90 * 24 * 3_600_000;
/// Records are in the order in which calls ended, but have the time at which they began. A search
/// continues for this time before its first one.
const CALL_MS_MAX: u64 = 3_600_000;

/// A call before its end.
#[derive(Debug)]
pub struct Begun {
    at: UnixMs,
    fields: Map<String, Value>,
}

/// The record of a change might find no room; the text has the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoRoom(pub String);

impl From<NoRoom> for ApiError {
    fn from(NoRoom(why): NoRoom) -> Self {
        Self::unavailable(why)
    }
}

/// An error of a service, as a record tells it.
pub trait Recorded {
    /// Returns its code and its text.
    fn code_and_text(&self) -> (&str, &str);
}

impl Recorded for ApiError {
    fn code_and_text(&self) -> (&str, &str) {
        (self.code, &self.message)
    }
}

/// The facts of a call that its record has.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The signer.
    pub caller: &'a Caller,
    /// The service, as in signatures.
    pub service: &'a str,
    /// The action.
    pub action: &'a str,
    /// Whether it changes nothing.
    pub is_read_only: bool,
    /// Its parameters.
    pub params: &'a Params,
    /// The id of the request.
    pub request_id: &'a str,
}

/// See the module's text.
#[derive(Debug)]
pub struct Trail {
    audit: Audit,
    account: String,
    region: String,
}

impl Trail {
    /// Creates the records of a server with these settings.
    #[must_use]
    pub fn new(audit: Audit, settings: &Settings) -> Self {
        let Settings { account, region, .. } = settings;
        Self { audit, account: account.clone(), region: region.clone() }
    }

    /// Begins the record of a call.
    ///
    /// # Errors
    /// [`NoRoom`].
    fn begin(&self, asked: &Asked<'_>) -> Result<Begun, NoRoom> {
        let now = clock::unix_ms();
        if !asked.is_read_only {
            let checked = if is_freeing(asked.action, asked.params) {
                self.audit.check_file()
            } else {
                self.audit.check_room(now)
            };
            checked.map_err(|why| {
                self.audit.lose_refused();
                NoRoom(why)
            })?;
        }
        let Self { account, region, .. } = self;
        let Asked { caller, service, action, is_read_only, request_id, .. } = *asked;
        let mut identity = identity_of(&caller.identity, account);
        identity["accessKeyId"] = caller.access_key_id.as_str().into();
        let fields = json!({
            "eventVersion": "1.11",
            "userIdentity": identity,
            "eventTime": seconds(now),
            "eventSource": format!("{service}.amazonaws.com"),
            "eventName": action,
            "awsRegion": region,
            "sourceIPAddress": caller.address.to_canonical().to_string(),
            "responseElements": null,
            "requestID": request_id,
            "eventID": request_id,
            "readOnly": is_read_only,
            "eventType": "AwsApiCall",
            "managementEvent": true,
            "recipientAccountId": account,
            "eventCategory": "Management",
        });
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        Ok(Begun { at: now, fields })
    }

    /// Stores the record of a call with its error, if it had one: a code and a text. `left_out` is
    /// the number of records of the signer's refused calls that were left out before it.
    fn end(&self, begun: Begun, asked: &Asked<'_>, error: Option<(&str, &str)>, left_out: u64) {
        let Begun { mut fields, at } = begun;
        let detail = match error {
            Some(_) => Detail::Refused,
            None if asked.is_read_only => Detail::Read,
            None => Detail::Changed,
        };
        fields.insert("requestParameters".into(), recorded(asked.params, detail));
        if left_out > 0 {
            fields.insert("additionalEventData".into(), json!({ "recordsLeftOut": left_out }));
        }
        if let Some((code, text)) = error {
            // The encoded message repeats what the record says.
            let text = text.split(" Encoded authorization").next().unwrap_or_default();
            fields.insert("errorCode".into(), code.into());
            fields.insert("errorMessage".into(), shortened(text, ERROR_MAX).into());
        }
        self.audit.append(at, &Value::Object(fields).to_string());
    }
}

impl Trail {
    /// Checks that the record of a change will find room.
    ///
    /// # Errors
    /// It might not; the text has the reason.
    pub(crate) fn check_room(&self) -> Result<(), String> {
        self.audit.check_room(clock::unix_ms())
    }

    /// Returns the state of the audit for metrics.
    pub(crate) fn facts(&self) -> AuditNow {
        self.audit.facts(clock::unix_ms())
    }

    /// Stores the record of a connection or of a refused signature. If the system has no random
    /// bits, its id is zero.
    pub(crate) fn report(&self, entry: &Entry) {
        let Self { account, region, .. } = self;
        let Entry { at, report, left_out } = entry;
        let id = format!("{:032x}", random::random_bits().unwrap_or_default());
        let mut fields = json!({
            "eventVersion": "1.11",
            "userIdentity": { "type": "Unknown", "accountId": account },
            "eventTime": seconds(*at),
            "eventSource": CONNECTIONS,
            "awsRegion": region,
            "requestParameters": null,
            "responseElements": null,
            "requestID": id,
            "eventID": id,
            "readOnly": false,
            "eventType": "AwsServiceEvent",
            "managementEvent": true,
            "recipientAccountId": account,
            "eventCategory": "Management",
        });
        let mut refused = |code: &str, text: &str| {
            fields["errorCode"] = code.into();
            fields["errorMessage"] = shortened(text, ERROR_MAX).into();
        };
        let name = match report {
            Report::Visit(visit) => match &visit.outcome {
                VisitOutcome::Connected => "ConnectVolume",
                VisitOutcome::Ended => "DisconnectVolume",
                VisitOutcome::Refused(why) => {
                    refused("AccessDenied", why);
                    "RefuseConnection"
                }
            },
            Report::Signature(_, code, text) => {
                refused(code, text);
                "RefuseSignature"
            }
            Report::LeftOut(Kind::Served) => "LeaveOutConnections",
            Report::LeftOut(Kind::Refused) => "LeaveOutRefusals",
            Report::LeftOutOf(_) => "LeaveOutCalls",
        };
        fields["eventName"] = name.into();
        match report {
            Report::Visit(visit) => add_visit(&mut fields, visit),
            Report::Signature(address, ..) => {
                fields["sourceIPAddress"] = address.to_canonical().to_string().into();
            }
            Report::LeftOutOf(user) => {
                fields["userIdentity"] = identity_of(&Identity::User(Arc::clone(user)), account);
            }
            Report::LeftOut(_) => {}
        }
        if *left_out > 0 {
            fields["additionalEventData"] = json!({ "recordsLeftOut": left_out });
        }
        self.audit.append(*at, &fields.to_string());
    }
}

/// Returns a signer as a record has it.
fn identity_of(identity: &Identity, account: &str) -> Value {
    let mut fields = json!({
        "type": "Root",
        "principalId": identity.id(account),
        "arn": identity.arn(account),
        "accountId": account,
    });
    if let Identity::User(principal) = identity {
        fields["type"] = "IAMUser".into();
        fields["userName"] = principal.name.as_str().into();
    }
    fields
}

/// Adds the facts of a connection to its record.
fn add_visit(fields: &mut Value, visit: &Visit) {
    let Visit { address, host, is_proven, volume, .. } = visit;
    fields["sourceIPAddress"] = match address {
        HostAddress::Local => LOCAL.into(),
        HostAddress::Remote(ip) => ip.to_string().into(),
    };
    let mut parameters = Map::new();
    parameters.extend(volume.map(|volume| ("VolumeId".to_owned(), volume.to_string().into())));
    if let Some(host) = host {
        let host = host.to_string();
        let identity = &mut fields["userIdentity"];
        identity["type"] = "Host".into();
        identity["principalId"] = host.as_str().into();
        identity["userName"] = host.as_str().into();
        if *is_proven {
            fields["tlsDetails"] = json!({ "clientCertificate": host });
        }
        parameters.insert("InstanceId".to_owned(), host.into());
    }
    if !parameters.is_empty() {
        fields["requestParameters"] = parameters.into();
    }
}

fn is_freeing(action: &str, params: &Params) -> bool {
    let activates =
        action == "UpdateAccessKey" && !params.iter().any(|pair| pair == ("Status", "Inactive"));
    FREEING.contains(&action) && !activates
}

fn seconds(at: UnixMs) -> String {
    timestamp::extended(at.0 / 1_000 * 1_000).replace(".000Z", "Z")
}

fn shortened(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

/// Returns the type of the resource that a parameter names.
fn kind_of(name: &str, value: &str) -> Option<&'static str> {
    match value.split_once('-').map(|(begin, _)| begin) {
        Some("vol") => return Some("AWS::EC2::Volume"),
        Some("snap") => return Some("AWS::EC2::Snapshot"),
        Some("i") => return Some("AWS::EC2::Instance"),
        _ => (),
    }
    match name {
        "UserName" => Some("AWS::IAM::User"),
        "PolicyArn" => Some("AWS::IAM::Policy"),
        "AccessKeyId" => Some("AWS::IAM::AccessKey"),
        _ => None,
    }
}

fn is_id(name: &str, value: &str) -> bool {
    let kind = name.trim_end_matches(|c: char| c == '.' || c.is_ascii_digit());
    let is_named = ["Id", "Arn", "UserName", "PolicyName"].iter().any(|end| kind.ends_with(end));
    let is_short = name.len() <= ID_NAME_BYTES_MAX && value.len() <= ID_BYTES_MAX;
    is_short && (is_named || kind_of(name, value).is_some())
}

/// The calls whose parameters have different bounds in records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Detail {
    /// Changes.
    Changed,
    /// Calls that only read.
    Read,
    /// Calls that end with an error.
    Refused,
}

impl Detail {
    const fn bytes_max(self) -> usize {
        match self {
            Self::Changed => PARAMETERS_BYTES_MAX,
            Self::Read => READ_BYTES_MAX,
            Self::Refused => REFUSED_BYTES_MAX,
        }
    }
}

/// Returns whether a parameter's value is not recorded.
fn is_secret(name: &str) -> bool {
    let begins = |part: &str, secret: &str| {
        part.get(..secret.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(secret))
    };
    name.split('.').any(|part| SECRETS.iter().any(|secret| begins(part, secret)))
}

/// Returns the parameters as a record has them: ids first and whole, then policies, then others,
/// shortened; of calls that change nothing the policies are shortened, too. The order of the
/// request has no influence, so it cannot hide an id.
fn recorded(params: &Params, detail: Detail) -> Value {
    let mut entries: Vec<(u8, usize, &str, Value)> = Vec::new();
    // ModifyInstanceAttribute has a second form: Attribute=userData, and the data in Value.
    let is_attribute = |(name, value): (&str, &str)| name == "Attribute" && is_secret(value);
    let has_secret_value = params.iter().any(is_attribute);
    for (name, value) in params.iter() {
        let is_hidden = is_secret(name) || has_secret_value && name.starts_with("Value");
        let (class, value) = if is_hidden {
            (2, REMOVED.to_owned())
        } else if is_id(name, value) {
            (0, value.to_owned())
        } else if name == "PolicyDocument" && detail == Detail::Changed {
            (1, value.to_owned())
        } else {
            (2, marked(value))
        };
        let value = Value::from(value);
        // Four more for the colon, the comma and the quotes of the name.
        let bytes = Value::from(name).to_string().len() + value.to_string().len() + 4;
        entries.push((class, bytes, name, value));
    }
    entries.sort_by_key(|(class, bytes, ..)| (*class, *bytes));
    let mut fields = Map::new();
    let mut left_out = 0_usize;
    let mut left = detail.bytes_max();
    for (_, bytes, name, value) in entries {
        if bytes > left || name == LEFT_OUT {
            left_out += 1;
            continue;
        }
        left -= bytes;
        fields.insert(name.to_owned(), value);
    }
    if left_out > 0 {
        fields.insert(LEFT_OUT.to_owned(), left_out.into());
    }
    if fields.is_empty() { Value::Null } else { fields.into() }
}

/// Returns a text, of a long one the beginning and the number of the characters left out.
fn marked(text: &str) -> String {
    match text.chars().count().checked_sub(VALUE_MAX) {
        None | Some(0) => text.to_owned(),
        Some(more) => format!("{}... ({more} characters left out)", shortened(text, VALUE_MAX)),
    }
}

/// The request of LookupEvents.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields, rename_all = "PascalCase", default)]
struct Lookup {
    lookup_attributes: Vec<Attribute>,
    start_time: Option<f64>,
    end_time: Option<f64>,
    max_results: Option<usize>,
    next_token: Option<String>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Attribute {
    attribute_key: String,
    attribute_value: String,
}

/// The fields of a record that a lookup compares or returns.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Known {
    event_time: String,
    event_source: String,
    event_name: String,
    #[serde(rename = "eventID")]
    event_id: String,
    read_only: bool,
    user_identity: KnownIdentity,
    request_parameters: Option<Map<String, Value>>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct KnownIdentity {
    #[serde(rename = "type", default)]
    kind: String,
    user_name: Option<String>,
    #[serde(default)]
    access_key_id: String,
}

impl Known {
    /// Reads a record. That of a gap has the record that followed it.
    fn read(record: &str) -> Option<(Self, Value)> {
        let mut value: Value = serde_json::from_str(record).ok()?;
        if value["eventType"] == "Gap" {
            value = value["then"].take();
        }
        let known = Self::deserialize(&value).ok()?;
        Some((known, value))
    }

    fn user(&self) -> &str {
        let KnownIdentity { kind, user_name, .. } = &self.user_identity;
        let unnamed = if kind == "Root" { "root" } else { "" };
        user_name.as_deref().unwrap_or(unnamed)
    }

    /// Returns the types and ids of the resources that the parameters name.
    fn resources(&self) -> Vec<(&'static str, &str)> {
        let pairs = self.request_parameters.iter().flatten();
        let named = |(name, value): (&'_ String, &'_ Value)| {
            value.as_str().and_then(|id| kind_of(name, id))
        };
        pairs.filter_map(|pair| Some((named(pair)?, pair.1.as_str()?))).collect()
    }

    fn has(&self, Attribute { attribute_key, attribute_value: wanted }: &Attribute) -> bool {
        match attribute_key.as_str() {
            "EventId" => self.event_id == *wanted,
            "EventName" => self.event_name == *wanted,
            "EventSource" => self.event_source == *wanted,
            "ReadOnly" => self.read_only.to_string() == *wanted,
            "Username" => self.user() == wanted,
            "AccessKeyId" => self.user_identity.access_key_id == *wanted,
            "ResourceType" => self.resources().iter().any(|(kind, _)| kind == wanted),
            "ResourceName" => self.resources().iter().any(|(_, id)| id == wanted),
            _ => false,
        }
    }
}

/// The attributes of a lookup.
const ATTRIBUTES: [&str; 8] = [
    "AccessKeyId",
    "EventId",
    "EventName",
    "EventSource",
    "ReadOnly",
    "ResourceName",
    "ResourceType",
    "Username",
];

impl Lookup {
    fn read(body: &[u8]) -> Result<Self, ApiError> {
        let lookup: Self = serde_json::from_slice(body).map_err(|error| {
            ApiError::new("SerializationException", format!("the body is no request: {error}"))
        })?;
        let attributes = &lookup.lookup_attributes;
        let is_known =
            |attribute: &Attribute| ATTRIBUTES.contains(&attribute.attribute_key.as_str());
        if attributes.len() > 1 || !attributes.iter().all(is_known) {
            let known = ATTRIBUTES.join(", ");
            let text = format!("LookupAttributes may have one attribute, of these: {known}");
            return Err(ApiError::new("InvalidLookupAttributesException", text));
        }
        let max = lookup.max_results.unwrap_or(EVENTS_MAX);
        if !(1..=EVENTS_MAX).contains(&max) {
            let text = format!("MaxResults is {max}; it must be 1 to {EVENTS_MAX}");
            return Err(ApiError::new("InvalidMaxResultsException", text));
        }
        if let (Some(start), Some(end)) = (lookup.start_time, lookup.end_time)
            && start > end
        {
            let text = format!("StartTime ({start}) is after EndTime ({end})");
            return Err(ApiError::new("InvalidTimeRangeException", text));
        }
        Ok(lookup)
    }
}

/// The last second of the year 9999.
const LAST_S: f64 = 253_402_300_799.0;

/// Returns a time of a request, in milliseconds.
fn bound_ms(unix_s: f64) -> u64 {
    // A time before 1970 or after the last year is the first or the last one.
    unix_s.clamp(0.0, LAST_S) as u64 * 1_000
}

impl Api {
    /// Executes a call, and stores its record with its result.
    ///
    /// # Errors
    /// Those of the call; [`NoRoom`] of a change whose record might find no room: then the call is
    /// not executed.
    pub(crate) fn recorded<T, E: Recorded + From<NoRoom>>(
        &self,
        asked: &Asked<'_>,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(trail) = &self.trail else { return call() };
        let begun = trail.begin(asked)?;
        let result = call();
        let error = result.as_ref().err().map(E::code_and_text);
        let is_bounded = error.is_some() || (asked.service, asked.action) == UNRESTRICTED;
        let left_out = match (&asked.caller.identity, &self.visits) {
            (Identity::User(user), Some(visits)) if is_bounded => visits.admit(user),
            _ => Some(0),
        };
        if let Some(left_out) = left_out {
            trail.end(begun, asked, error, left_out);
        }
        result
    }

    /// Checks that the records of changes can be written.
    ///
    /// # Errors
    /// The text has the reason.
    pub(crate) fn check_audit(&self) -> Result<(), String> {
        self.trail.as_ref().map_or(Ok(()), |trail| trail.check_room())
    }

    /// Returns the state of the audit for metrics; `None` without one.
    pub(crate) fn audit_now(&self) -> Option<AuditNow> {
        self.trail.as_ref().map(|trail| trail.facts())
    }

    /// Executes LookupEvents: returns records of the last 90 days, newest first.
    ///
    /// # Errors
    /// CloudTrail's errors for its parameters.
    pub fn lookup_events(
        &self,
        caller: &Caller,
        body: &[u8],
        request_id: &str,
    ) -> Result<Value, ApiError> {
        let params = &Params::default();
        let service = SERVICE;
        let is_read_only = true;
        let action = ACTION;
        let asked = Asked { caller, service, action, is_read_only, params, request_id };
        self.recorded(&asked, || {
            self.authorize(&asked).map_err(|refused| ApiError {
                code: "AccessDeniedException",
                ..Unauthorized::denied(refused)
            })?;
            let lookup = Lookup::read(body)?;
            let Some(trail) = &self.trail else {
                return Err(ApiError::internal("this server keeps no records"));
            };
            trail.lookup(&lookup)
        })
    }
}

impl Trail {
    fn lookup(&self, lookup: &Lookup) -> Result<Value, ApiError> {
        let below = match lookup.next_token.as_deref() {
            None => u64::MAX,
            Some(token) => token.parse().map_err(|_| {
                let text = format!("NextToken '{token}' is not one of this server's");
                ApiError::new("InvalidNextTokenException", text)
            })?,
        };
        let now = clock::unix_ms();
        let oldest_ms = now.0.saturating_sub(FOUND_MS);
        let start_ms = lookup.start_time.map(bound_ms).unwrap_or_default().max(oldest_ms);
        let start = seconds(UnixMs(start_ms));
        let over = seconds(UnixMs(start_ms.saturating_sub(CALL_MS_MAX)));
        let end = lookup.end_time.map(|unix_s| seconds(UnixMs(bound_ms(unix_s))));
        let is_wanted = |record: &str| {
            Known::read(record).is_some_and(|(known, _)| {
                known.event_time >= start
                    && end.as_ref().is_none_or(|end| known.event_time <= *end)
                    && lookup.lookup_attributes.iter().all(|attribute| known.has(attribute))
            })
        };
        let is_over =
            |record: &str| Known::read(record).is_some_and(|(known, _)| known.event_time < over);
        let max = lookup.max_results.unwrap_or(EVENTS_MAX);
        let page = self.audit.find(below, max, is_wanted, is_over).map_err(ApiError::internal)?;
        let events: Vec<Value> =
            page.records.iter().filter_map(|found| shown(&found.record)).collect();
        let mut reply = json!({ "Events": events });
        if let Some(below) = page.below {
            reply["NextToken"] = below.to_string().into();
        }
        Ok(reply)
    }
}

fn shown(record: &str) -> Option<Value> {
    let (known, value) = Known::read(record)?;
    let resource = |(kind, id): (&str, &str)| json!({ "ResourceType": kind, "ResourceName": id });
    let resources: Vec<Value> = known.resources().into_iter().map(resource).collect();
    let unix_s = timestamp::parse_extended(&known.event_time).map(|unix_ms| unix_ms / 1_000);
    Some(json!({
        "EventId": known.event_id,
        "EventName": known.event_name,
        "ReadOnly": known.read_only.to_string(),
        "AccessKeyId": known.user_identity.access_key_id,
        "EventTime": unix_s,
        "EventSource": known.event_source,
        "Username": known.user(),
        "Resources": resources,
        "CloudTrailEvent": value.to_string(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_recorded_whole_whatever_else_a_request_has() {
        let padding: String = (0..500).map(|n| format!("&Pad.{n}={}", "x".repeat(1_000))).collect();
        let ids: String = (0..500).map(|n| format!("&ResourceId.{n}=vol-{n:017}")).collect();
        let text = format!("Action=CreateTags&Version=2016-11-15{padding}{ids}&UserName=ann");
        let fields = recorded(&Params::decode(text.as_bytes()).unwrap(), Detail::Changed);
        for number in 0..500 {
            assert_eq!(fields[format!("ResourceId.{number}")], format!("vol-{number:017}"));
        }
        assert_eq!(fields["UserName"], "ann");
        assert!(fields[LEFT_OUT].as_u64().unwrap() > 0);
        assert!(fields["Pad.0"].as_str().unwrap().ends_with("... (744 characters left out)"));
        assert!(fields.to_string().len() <= PARAMETERS_BYTES_MAX + 64);
    }

    #[test]
    fn a_refused_call_and_one_that_reads_have_short_parameters() {
        let text = format!("UserName=ann&PolicyName=p&PolicyDocument={}", "{".repeat(115_000));
        let params = Params::decode(text.as_bytes()).unwrap();
        let whole = recorded(&params, Detail::Changed);
        assert_eq!(whole["PolicyDocument"].as_str().unwrap().len(), 115_000);
        let refused = recorded(&params, Detail::Refused);
        let policy = refused["PolicyDocument"].as_str().unwrap();
        assert!(policy.ends_with("{{{... (114744 characters left out)"), "{policy}");
        assert_eq!(refused["UserName"], "ann");
        let ids: String = (0..1_000).map(|n| format!("&VolumeId.{n}=vol-{n:017}")).collect();
        let params = Params::decode(format!("Version=1{ids}").as_bytes()).unwrap();
        for (detail, bytes_max) in [(Detail::Refused, 1 << 10), (Detail::Read, 4 << 10)] {
            let fields = recorded(&params, detail);
            assert!(fields[LEFT_OUT].as_u64().unwrap() > 800, "{fields}");
            assert!(fields.to_string().len() <= bytes_max + 64, "{fields}");
        }
    }

    #[test]
    fn secrets_are_hidden_whatever_the_form_of_their_names() {
        let hidden = |text: &str, name: &str| {
            let fields = recorded(&Params::decode(text.as_bytes()).unwrap(), Detail::Changed);
            assert_eq!(fields[name], REMOVED, "{fields}");
        };
        for name in [
            "UserData",
            "UserData.Value",
            "UserData.Data",
            "UserData.1",
            "userData",
            "userdataId",
            "LaunchSpecification.UserData",
            "PresignedUrl",
            "SecretAccessKey",
            "Password",
            "X-Amz-Signature",
        ] {
            hidden(&format!("{name}=vol-hidden"), name);
        }
        hidden("Attribute=userData&Value=x", "Value");
        hidden("Value.1=x&Attribute=userData", "Value.1");
        let text = "Attribute=instanceType&Value=m5.large&ClientToken=t&Tag.1.Key=User";
        let fields = recorded(&Params::decode(text.as_bytes()).unwrap(), Detail::Changed);
        assert!(!fields.to_string().contains(REMOVED), "{fields}");
    }

    #[test]
    fn a_stolen_key_can_be_ended_on_a_full_disk() {
        let decoded = |text: &str| Params::decode(text.as_bytes()).unwrap();
        assert!(is_freeing("DeleteAccessKey", &decoded("UserName=ann")));
        assert!(is_freeing("UpdateAccessKey", &decoded("UserName=ann&Status=Inactive")));
        assert!(!is_freeing("UpdateAccessKey", &decoded("UserName=ann&Status=Active")));
        assert!(!is_freeing("CreateAccessKey", &decoded("UserName=ann")));
    }

    #[test]
    fn a_lookup_finds_calls_that_ended_before_a_longer_one() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        let trail = Trail { audit, account: String::new(), region: String::new() };
        let now_ms = clock::unix_ms().0 / 1_000 * 1_000;
        // The last record is of the call that began first.
        for (number, ago_ms) in [(1, 5_000), (2, 600_000)] {
            let record = json!({
                "eventTime": seconds(UnixMs(now_ms - ago_ms)), "eventSource": "", "eventName": "",
                "eventID": number.to_string(), "readOnly": true,
                "userIdentity": { "accessKeyId": "" },
            });
            trail.audit.append(UnixMs(now_ms), &record.to_string());
        }
        let start_time = Some((now_ms / 1_000 - 60) as f64);
        let found = trail.lookup(&Lookup { start_time, ..Lookup::default() }).unwrap();
        let events = found["Events"].as_array().unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["EventId"], "1");
    }

    #[test]
    fn a_lookup_finds_connections_by_volume_and_host() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path());
        let trail = Trail { audit, account: "000000000000".into(), region: "local-1".into() };
        let volume = evenkeel_core::ids::VolumeId::from_bits(7);
        let host = evenkeel_core::ids::InstanceId::from_bits(8);
        let now = clock::unix_ms();
        let address = HostAddress::Remote([192, 0, 2, 9].into());
        let refused = VisitOutcome::Refused("no such volume is attached to it".into());
        for (outcome, host) in [(VisitOutcome::Connected, Some(host)), (refused, None)] {
            let volume = Some(volume);
            let is_proven = host.is_some();
            let visit = Visit { outcome, address, host, is_proven, volume };
            trail.report(&Entry { at: now, report: Report::Visit(visit), left_out: 0 });
        }
        let text = "the signature does not match".to_owned();
        let report = Report::Signature([10, 0, 0, 1].into(), "SignatureDoesNotMatch", text);
        trail.report(&Entry { at: now, report, left_out: 3 });
        trail.report(&Entry { at: now, report: Report::LeftOut(Kind::Refused), left_out: 4 });
        let names = |key: &str, value: &str| -> Vec<String> {
            let attribute = Attribute { attribute_key: key.into(), attribute_value: value.into() };
            let lookup = Lookup { lookup_attributes: vec![attribute], ..Lookup::default() };
            let found = trail.lookup(&lookup).unwrap();
            let events = found["Events"].as_array().unwrap().iter();
            events.map(|event| event["EventName"].as_str().unwrap().to_owned()).collect()
        };
        let of_volume = ["RefuseConnection", "ConnectVolume"];
        assert_eq!(names("ResourceName", &volume.to_string()), of_volume);
        assert_eq!(names("Username", &host.to_string()), ["ConnectVolume"]);
        assert_eq!(names("Username", "root"), [""; 0]);
        let all = trail.lookup(&Lookup::default()).unwrap();
        let record = |number: usize| -> Value {
            let text = all["Events"][number]["CloudTrailEvent"].as_str();
            serde_json::from_str(text.unwrap()).unwrap()
        };
        let signature = record(1);
        assert_eq!(signature["eventName"], "RefuseSignature");
        assert_eq!(signature["errorCode"], "SignatureDoesNotMatch");
        assert_eq!(signature["sourceIPAddress"], "10.0.0.1");
        assert_eq!(signature["additionalEventData"]["recordsLeftOut"], 3);
        let connection = record(3);
        assert_eq!(connection["sourceIPAddress"], "192.0.2.9");
        assert_eq!(connection["tlsDetails"]["clientCertificate"], host.to_string());
        assert_eq!(connection["requestParameters"]["InstanceId"], host.to_string());
        assert_eq!(record(0)["additionalEventData"]["recordsLeftOut"], 4);
    }
}
