//! StartSnapshot: begins a snapshot that the client fills.

use evenkeel_core::ids::SnapshotId;
use evenkeel_wire::agent::UNIT_BYTES;
use evenkeel_wire::aws::query::{self, Params};
use evenkeel_wire::aws::sigv4;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::lists::seconds;
use super::{Answer, DirectError, Operation, snapshot};
use crate::api::Api;
use crate::api::args::{Args, check_key};
use crate::model::{Command, Filled, Snapshot, Tags};
use crate::plane::PlaneError;
use crate::random;

/// The minimum of minutes without a block, the maximum, and the default.
const TIMEOUT_MIN: u32 = 10;
const TIMEOUT_MAX: u32 = 4_320;
const TIMEOUT_USUAL: u32 = 60;
/// The largest snapshot: as large as the largest volume.
const SIZE_GIB_MAX: u32 = 65_536;
/// Maximum number of characters of a description, and of a client token.
const TEXT_MAX: usize = 255;

/// The request.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Request {
    volume_size: u64,
    parent_snapshot_id: Option<String>,
    tags: Option<Vec<Tag>>,
    description: Option<String>,
    client_token: Option<String>,
    encrypted: Option<bool>,
    kms_key_arn: Option<String>,
    timeout: Option<u32>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "PascalCase")]
struct Tag {
    key: Option<String>,
    value: Option<String>,
}

fn parse(body: &[u8]) -> Result<Request, DirectError> {
    let parsed = serde_json::from_slice(body);
    parsed.map_err(|error| DirectError::parameter(format!("the body is no request: {error}")))
}

/// Returns the hash of everything in a request but its token. Equal tags in another order make the
/// same hash.
fn fingerprint(body: &[u8]) -> String {
    let mut value: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.remove("ClientToken");
        if let Some(Value::Array(tags)) = fields.get_mut("Tags") {
            tags.sort_by_cached_key(Value::to_string);
        }
    }
    // Keys of its objects are sorted.
    sigv4::sha256_hex(value.to_string().as_bytes())
}

impl Api {
    /// Returns whether a request to start a snapshot was executed before, so that it starts none.
    pub(super) fn is_started(&self, body: &[u8]) -> bool {
        let token = parse(body).ok().and_then(|request| request.client_token);
        token.is_some_and(|token| self.plane().model().started_with(&token).is_some())
    }

    pub(super) fn start(&self, body: &[u8]) -> Result<Answer, DirectError> {
        let request = parse(body)?;
        let is_encrypted = request.encrypted;
        if let Some(key) = &request.kms_key_arn {
            if is_encrypted != Some(true) {
                let message = "KmsKeyArn needs Encrypted to be true";
                return Err(DirectError::parameter(message));
            }
            check_key(&self.plane().settings, key)
                .map_err(|error| DirectError::invalid("INVALID_CUSTOMER_KEY", error.message))?;
        }
        let parent = request.parent_snapshot_id.as_deref().map(snapshot).transpose()?;
        if parent.is_some() && request.encrypted.is_some() {
            let message = "ParentSnapshotId and Encrypted cannot be used together";
            return Err(DirectError::parameter(message));
        }
        let size = request.volume_size;
        let is_size = |size: &u32| (1..=SIZE_GIB_MAX).contains(size);
        let size_gib = u32::try_from(size).ok().filter(is_size).ok_or_else(|| {
            let message = format!("VolumeSize is {size}; it must be 1 to {SIZE_GIB_MAX} GiB");
            DirectError::invalid("INVALID_VOLUME_SIZE", message)
        })?;
        let timeout_min = request.timeout.unwrap_or(TIMEOUT_USUAL);
        if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout_min) {
            return Err(DirectError::parameter(format!(
                "Timeout is {timeout_min}; it must be {TIMEOUT_MIN} to {TIMEOUT_MAX} minutes"
            )));
        }
        let description = request.description.unwrap_or_default();
        let characters = description.chars().count();
        if characters > TEXT_MAX || description.chars().any(char::is_control) {
            return Err(DirectError::parameter(format!(
                "Description has {characters} characters; it may have {TEXT_MAX}, and no control \
                 characters"
            )));
        }
        let token = request.client_token.filter(|token| !token.is_empty());
        if let Some(token) = &token
            && (token.len() > TEXT_MAX || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            let message =
                format!("ClientToken must have at most {TEXT_MAX} visible ASCII characters");
            return Err(DirectError::parameter(message));
        }
        let filled =
            Filled { parent, timeout_min, token: token.map(|token| (token, fingerprint(body))) };
        let tags = tags(request.tags.unwrap_or_default())?;
        let id = random::snapshot_id().map_err(PlaneError::from)?;
        #[rustfmt::skip]
        let command =
            Command::StartSnapshot { id, size_gib, filled, is_encrypted, description, tags };
        let outcome = self.plane().execute(&command, false)?;
        let snapshot =
            outcome.snapshot().ok_or_else(|| DirectError::internal("the new snapshot is gone"))?;
        Ok(Answer::json(201, &view(&self.plane().settings.account, &snapshot)))
    }
}

/// Returns the parameters of an operation on which its rights depend, named as EC2 names them.
pub(super) fn named(operation: &Operation<'_>, body: &[u8], query: &str) -> Params {
    let mut pairs = Vec::new();
    let mut add = |name: &str, value: &str| pairs.push((name.to_owned(), value.to_owned()));
    match operation {
        Operation::Start => {
            let request = parse(body).ok();
            let parent = request.as_ref().and_then(|request| request.parent_snapshot_id.as_ref());
            parent.into_iter().for_each(|parent| add("ParentSnapshotId", parent));
            pairs.extend(tag_pairs(request.and_then(|request| request.tags).unwrap_or_default()));
        }
        Operation::ListChanged(id) => {
            add("SnapshotId", id);
            let params = Params::decode(query.as_bytes()).unwrap_or_default();
            let first = params.get("firstSnapshotId");
            first.into_iter().for_each(|first| add("FirstSnapshotId", first));
        }
        Operation::Put(id, _) | Operation::Get(id, _) => add("SnapshotId", id),
        Operation::Complete(id) | Operation::List(id) => add("SnapshotId", id),
    }
    // What has too many parameters is refused by the operation itself.
    let encoded = query::encode(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    Params::decode(encoded.as_bytes()).unwrap_or_default()
}

fn tag_pairs(given: Vec<Tag>) -> Vec<(String, String)> {
    let pair = |(number, Tag { key, value }): (u32, Tag)| {
        let key = key.map(|key| (format!("Tag.{number}.Key"), key));
        let value = value.map(|value| (format!("Tag.{number}.Value"), value));
        key.into_iter().chain(value)
    };
    (1..).zip(given).flat_map(pair).collect()
}

/// Returns the tags, checked as EC2's are.
fn tags(given: Vec<Tag>) -> Result<Tags, DirectError> {
    let invalid = |text: String| DirectError::invalid("INVALID_TAG", text);
    let pairs = tag_pairs(given);
    let encoded = query::encode(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let params = Params::decode(encoded.as_bytes()).map_err(|error| invalid(error.to_string()))?;
    Args::new(params).tags("").map_err(|error| invalid(error.message))
}

fn view(account: &str, snapshot: &Snapshot) -> Value {
    let tag = |(key, value): (&String, &String)| json!({ "Key": key, "Value": value });
    let mut fields = Map::new();
    fields.insert("SnapshotId".into(), snapshot.id.to_string().into());
    fields.insert("OwnerId".into(), account.into());
    fields.insert("Status".into(), snapshot.state().into());
    fields.insert("StartTime".into(), seconds(snapshot.started));
    fields.insert("VolumeSize".into(), snapshot.size_gib.into());
    fields.insert("BlockSize".into(), UNIT_BYTES.into());
    fields.insert("Tags".into(), snapshot.tags.iter().map(tag).collect());
    if !snapshot.description.is_empty() {
        fields.insert("Description".into(), snapshot.description.clone().into());
    }
    let parent: Option<SnapshotId> = snapshot.filled.as_ref().and_then(|filled| filled.parent);
    if let Some(parent) = parent {
        fields.insert("ParentSnapshotId".into(), parent.to_string().into());
    }
    fields.into()
}
