//! The audit of calls: records in the form of CloudTrail, and LookupEvents.
//!
//! [`Api::open_record`] is called before a call is executed, and [`Api::close_record`] before its
//! reply is sent. Records name the signer, the action, its parameters and the error. They have no
//! secrets, no payload and no replies. [`evenkeel_telemetry::audit`] stores them.

use std::net::IpAddr;

use evenkeel_core::time::UnixMs;
use evenkeel_os::clock;
use evenkeel_telemetry::audit::{Audit, RECORD_BYTES_MAX};
use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::{sigv4, timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::error::ApiError;
use crate::api::{Api, Unauthorized};
use crate::model::Settings;
use crate::rights::{Caller, Identity};

/// The name of the service in signatures.
pub const SERVICE: &str = "cloudtrail";
/// The beginning of the names of its actions in requests.
pub const TARGET: &str = "com.amazonaws.cloudtrail.v20131101.CloudTrail_20131101.";
/// The only action.
pub const ACTION: &str = "LookupEvents";
/// Maximum number of parameters in a record, and of characters of one.
const PARAMETERS_MAX: usize = 64;
const VALUE_MAX: usize = 256;
/// Maximum number of characters of an error's text in a record.
const ERROR_MAX: usize = 1_024;
/// Parameters whose values are not recorded: programs of instances may contain secrets.
const SECRETS: [&str; 1] = ["UserData"];
/// Actions that lead to free space. They are executed on a full disk, too, and find the rest of the
/// reserved room.
const FREEING: [&str; 7] = [
    "DeleteSnapshot",
    "DeleteUnownedSnapshot",
    "DeleteUnownedVolume",
    "DeleteVolume",
    "DetachVolume",
    "PurgeSnapshot",
    "PurgeVolume",
];
/// The text in place of a value that is not recorded, as at AWS.
const REMOVED: &str = "HIDDEN_DUE_TO_SECURITY_REASONS";
/// Maximum number of events in a page, and the time for which they are found: 90 days.
const EVENTS_MAX: usize = 50;
const FOUND_MS: u64 = 90 * 24 * 3_600_000;

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
        if !asked.is_read_only && !FREEING.contains(&asked.action) {
            self.audit.check_room(now).map_err(NoRoom)?;
        }
        let Self { account, region, .. } = self;
        let Asked { caller, service, action, is_read_only, params, request_id } = *asked;
        let mut identity = json!({
            "type": "Root",
            "principalId": caller.identity.id(account),
            "arn": caller.identity.arn(account),
            "accountId": account,
            "accessKeyId": caller.access_key_id,
        });
        if let Identity::User(principal) = &caller.identity {
            identity["type"] = "IAMUser".into();
            identity["userName"] = principal.name.as_str().into();
        }
        let fields = json!({
            "eventVersion": "1.11",
            "userIdentity": identity,
            "eventTime": seconds(now),
            "eventSource": format!("{service}.amazonaws.com"),
            "eventName": action,
            "awsRegion": region,
            "sourceIPAddress": caller.address.to_canonical().to_string(),
            "requestParameters": recorded(params),
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

    /// Stores the record of a call with its error, if it had one: a code and a text.
    fn end(&self, begun: Begun, error: Option<(&str, &str)>) {
        let Begun { mut fields, at } = begun;
        if let Some((code, text)) = error {
            // The encoded message repeats what the record says.
            let text = text.split(" Encoded authorization").next().unwrap_or_default();
            fields.insert("errorCode".into(), code.into());
            fields.insert("errorMessage".into(), shortened(text, ERROR_MAX).into());
        }
        let mut record = Value::Object(fields);
        let mut text = record.to_string();
        if text.len() > RECORD_BYTES_MAX {
            record["requestParameters"] = Value::Null;
            text = record.to_string();
        }
        self.audit.append(at, &text);
    }
}

fn seconds(at: UnixMs) -> String {
    timestamp::extended(at.0 / 1_000 * 1_000).replace(".000Z", "Z")
}

fn shortened(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}

fn recorded(params: &Params) -> Value {
    let mut fields = Map::new();
    for (name, value) in params.iter().take(PARAMETERS_MAX) {
        let value =
            if SECRETS.contains(&name) { REMOVED.to_owned() } else { shortened(value, VALUE_MAX) };
        fields.insert(name.to_owned(), value.into());
    }
    if fields.is_empty() { Value::Null } else { fields.into() }
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
    user_name: Option<String>,
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
        self.user_identity.user_name.as_deref().unwrap_or("root")
    }

    /// Returns the types and ids of the resources that the parameters name.
    fn resources(&self) -> Vec<(&'static str, &str)> {
        let values = self.request_parameters.iter().flat_map(Map::values);
        let texts = values.filter_map(Value::as_str);
        let kind = |id: &str| match id.split_once('-')?.0 {
            "vol" => Some("AWS::EC2::Volume"),
            "snap" => Some("AWS::EC2::Snapshot"),
            "i" => Some("AWS::EC2::Instance"),
            _ => None,
        };
        texts.filter_map(|id| Some((kind(id)?, id))).collect()
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

/// Returns a time of a request, in seconds, as records write it.
fn bound(unix_s: f64) -> String {
    // A time before 1970 or after the last year is the first or the last one.
    seconds(UnixMs(unix_s.clamp(0.0, LAST_S) as u64 * 1_000))
}

impl Api {
    /// Begins the record of a call, before its execution.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub(crate) fn open_record(&self, asked: &Asked<'_>) -> Result<Option<Begun>, NoRoom> {
        self.trail.as_ref().map(|trail| trail.begin(asked)).transpose()
    }

    /// Stores the record of a call with its result, before its reply.
    pub(crate) fn close_record<T, E: Recorded>(
        &self,
        record: Option<Begun>,
        result: &Result<T, E>,
    ) {
        if let (Some(trail), Some(begun)) = (&self.trail, record) {
            trail.end(begun, result.as_ref().err().map(E::code_and_text));
        }
    }

    /// Checks the signature of a request for CloudTrail from `address`. Returns its signer.
    ///
    /// # Errors
    /// EC2's errors for signatures.
    pub fn check_trail(
        &self,
        request: &sigv4::Request<'_>,
        address: IpAddr,
    ) -> Result<Caller, ApiError> {
        let (_, caller) = self.verify(request, SERVICE, address)?;
        Ok(caller)
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
        let record = self.open_record(&asked)?;
        let checked = self.authorize(caller, (SERVICE, ACTION), params);
        let result = checked.map_err(Unauthorized::denied).and_then(|()| {
            let lookup = Lookup::read(body)?;
            let Some(trail) = &self.trail else {
                return Err(ApiError::internal("this server keeps no records"));
            };
            trail.lookup(&lookup)
        });
        self.close_record(record, &result);
        result
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
        let oldest = seconds(UnixMs(now.0.saturating_sub(FOUND_MS)));
        let start = lookup.start_time.map(bound).unwrap_or_default().max(oldest);
        let end = lookup.end_time.map(bound);
        let is_wanted = |record: &str| {
            Known::read(record).is_some_and(|(known, _)| {
                end.as_ref().is_none_or(|end| known.event_time <= *end)
                    && lookup.lookup_attributes.iter().all(|attribute| known.has(attribute))
            })
        };
        let is_over =
            |record: &str| Known::read(record).is_some_and(|(known, _)| known.event_time < start);
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
