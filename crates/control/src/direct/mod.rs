//! The EBS direct APIs: snapshots read, compared and filled block by block, over REST and JSON.
//!
//! [`Operation::of`] finds the operation of a request, [`Api::check_direct`] verifies its
//! signature, [`Api::admit_direct`] refuses repeated ones, and [`Api::run_direct`] executes it. A
//! block is a unit of the data plane, so nothing here splits or joins any. `docs/reference/api.md`
//! lists the supported features.

mod error;
mod lists;
mod start;
mod tokens;

use std::net::IpAddr;

use evenkeel_core::ids::SnapshotId;
use evenkeel_wire::agent::UNIT_BYTES;
use evenkeel_wire::aws::checksum::{self, Digest};
use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::sigv4::{self, Payload, Verified};
use serde_json::{Value, json};

pub use self::error::DirectError;
pub(crate) use self::lists::seconds;
use crate::api::{Api, Denied};
use crate::plane::NotComplete;
use crate::rights::Caller;
use crate::trail::Asked;
use evenkeel_os::clock;

/// The name of the service in signatures.
const SERVICE: &str = "ebs";
/// Maximum of bytes of a body that is not a block.
const JSON_BYTES_MAX: usize = 64 << 10;

/// An operation, with the parts of its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation<'a> {
    /// StartSnapshot
    Start,
    /// PutSnapshotBlock: snapshot and block.
    Put(&'a str, &'a str),
    /// CompleteSnapshot
    Complete(&'a str),
    /// ListSnapshotBlocks
    List(&'a str),
    /// ListChangedBlocks: the second snapshot.
    ListChanged(&'a str),
    /// GetSnapshotBlock: snapshot and block.
    Get(&'a str, &'a str),
}

impl<'a> Operation<'a> {
    /// Returns the operation of a request; `None` if there is none.
    #[must_use]
    pub fn of(method: &str, path: &'a str) -> Option<Self> {
        let mut parts = path.strip_prefix("/snapshots")?.split('/');
        let parts = [(); 5].map(|()| parts.next());
        Some(match (method, parts) {
            ("POST", [Some(""), None, ..]) => Self::Start,
            ("POST", [Some(""), Some("completion"), Some(id), None, _]) => Self::Complete(id),
            ("GET", [Some(""), Some(id), Some("blocks"), None, _]) => Self::List(id),
            ("GET", [Some(""), Some(id), Some("changedblocks"), None, _]) => Self::ListChanged(id),
            ("PUT", [Some(""), Some(id), Some("blocks"), Some(block), None]) => {
                Self::Put(id, block)
            }
            ("GET", [Some(""), Some(id), Some("blocks"), Some(block), None]) => {
                Self::Get(id, block)
            }
            _ => return None,
        })
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start => "StartSnapshot",
            Self::Put(..) => "PutSnapshotBlock",
            Self::Complete(_) => "CompleteSnapshot",
            Self::List(_) => "ListSnapshotBlocks",
            Self::ListChanged(_) => "ListChangedBlocks",
            Self::Get(..) => "GetSnapshotBlock",
        }
    }

    /// Returns whether it changes anything.
    #[must_use]
    pub const fn mutates(&self) -> bool {
        matches!(self, Self::Start | Self::Put(..) | Self::Complete(_))
    }

    /// Returns the maximum of bytes of its body.
    #[must_use]
    pub const fn body_max(&self) -> usize {
        match self {
            Self::Put(..) => UNIT_BYTES as usize,
            _ => JSON_BYTES_MAX,
        }
    }

    /// Returns whether it is one of the operations of which only a few run concurrently.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        !matches!(self, Self::Start | Self::Complete(_))
    }
}

/// An authentic request.
pub struct Checked {
    verified: Verified,
    /// Digest of its body.
    digest: Digest,
    caller: Caller,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers of its own.
    pub headers: Vec<(&'static str, String)>,
    /// The type of the body.
    pub content_type: &'static str,
    /// Its body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Creates an answer of JSON.
    pub(crate) fn json(status: u16, value: &Value) -> Self {
        let content_type = "application/json";
        let body = value.to_string().into_bytes();
        Self { status, headers: vec![], content_type, body }
    }
}

impl Api {
    /// Checks the signature of a request from `address`.
    ///
    /// # Errors
    /// The error has the form of the direct APIs.
    pub fn check_direct(
        &self,
        operation: &Operation<'_>,
        request: &sigv4::Request<'_>,
        address: IpAddr,
    ) -> Result<Checked, DirectError> {
        let digest = checksum::digest(request.body);
        let hash = sigv4::hex(&digest);
        let payload = match operation {
            // Its checksum is a header, which is signed.
            Operation::Put(..) => Payload::MayBeUnsigned(&hash),
            _ => Payload::Signed(&hash),
        };
        let (verified, caller) = self.verify_hashed(request, payload, SERVICE, address)?;
        Ok(Checked { verified, digest, caller })
    }

    /// Checks whether the request may be executed now: a signature starts one snapshot. Other
    /// operations change nothing when they are repeated before the snapshot is complete.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn admit_direct(
        &self,
        operation: &Operation<'_>,
        body: &[u8],
        checked: &Checked,
    ) -> Result<(), Denied> {
        if *operation != Operation::Start || self.is_started(body) {
            return Ok(());
        }
        self.replays().take(&checked.verified, clock::unix_ms())
    }

    /// Executes a request. May block for as long as the data plane takes.
    ///
    /// # Errors
    /// The error has the form of the direct APIs.
    pub fn run_direct(
        &self,
        operation: &Operation<'_>,
        query: &str,
        headers: &[(String, String)],
        body: Vec<u8>,
        (checked, request_id): (&Checked, &str),
    ) -> Result<Answer, DirectError> {
        let named = start::named(operation, &body, query);
        let caller = &checked.caller;
        let action = operation.name();
        let asked = Asked {
            caller,
            service: SERVICE,
            action,
            is_read_only: !operation.mutates(),
            params: &named,
            request_id,
        };
        self.recorded(&asked, || {
            self.authorize(&asked)?;
            self.execute_direct(operation, query, headers, body, checked)
        })
    }

    fn execute_direct(
        &self,
        operation: &Operation<'_>,
        query: &str,
        headers: &[(String, String)],
        body: Vec<u8>,
        checked: &Checked,
    ) -> Result<Answer, DirectError> {
        let params = || {
            let mut params = Params::decode(query.as_bytes())
                .map_err(|error| DirectError::parameter(error.to_string()))?;
            params.retain(|name| !name.starts_with("X-Amz-"));
            Ok::<_, DirectError>(params)
        };
        let headers = Headers(headers);
        match operation {
            Operation::Start => {
                self.keep_ahead(&checked.verified)?;
                self.start(&body)
            }
            Operation::Put(id, block) => {
                self.put(snapshot(id)?, number(block, "block index")?, &headers, body, checked)
            }
            Operation::Complete(id) => self.complete(snapshot(id)?, &headers),
            Operation::List(id) => self.list_blocks(snapshot(id)?, params()?),
            Operation::ListChanged(id) => {
                let mut params = params()?;
                let first = params.take("firstSnapshotId");
                let first = first.as_deref().map(snapshot).transpose()?;
                self.list_changed(snapshot(id)?, first, params)
            }
            Operation::Get(id, block) => {
                self.get(snapshot(id)?, number(block, "block index")?, params()?)
            }
        }
    }

    fn put(
        &self,
        id: SnapshotId,
        block: u64,
        headers: &Headers<'_>,
        body: Vec<u8>,
        Checked { digest, .. }: &Checked,
    ) -> Result<Answer, DirectError> {
        let length = number(headers.required("x-amz-Data-Length")?, "x-amz-Data-Length")?;
        if length != UNIT_BYTES || body.len() as u64 != UNIT_BYTES {
            return Err(DirectError::block(format!(
                "a block has {UNIT_BYTES} bytes; x-amz-Data-Length is {length}, and {} were sent",
                body.len()
            )));
        }
        algorithm(headers)?;
        if let Some(progress) = headers.get("x-amz-Progress")
            && number(progress, "x-amz-Progress")? > 100
        {
            let message = format!("x-amz-Progress is {progress}; it is at most 100");
            return Err(DirectError::parameter(message));
        }
        let stated = headers.required("x-amz-Checksum")?;
        if checksum::parse(stated) != Some(*digest) {
            return Err(DirectError::block(format!(
                "x-amz-Checksum is {stated}, and that of the {length} bytes that arrived is {}",
                checksum::text(digest)
            )));
        }
        self.plane().put_unit(id, block, body, *digest)?;
        Ok(Answer { headers: checksums(digest), ..Answer::json(201, &json!({})) })
    }

    fn complete(&self, id: SnapshotId, headers: &Headers<'_>) -> Result<Answer, DirectError> {
        const COUNT: &str = "x-amz-ChangedBlocksCount";
        const METHOD: &str = "x-amz-Checksum-Aggregation-Method";
        let count = number(headers.required(COUNT)?, COUNT)?;
        let linear = match headers.get("x-amz-Checksum") {
            None => None,
            Some(text) => {
                algorithm(headers)?;
                let method = headers.required(METHOD)?;
                if method != checksum::METHOD {
                    let known = checksum::METHOD;
                    let message = format!("{METHOD} is {method}; it must be {known}");
                    return Err(DirectError::parameter(message));
                }
                let parsed = checksum::parse(text).ok_or_else(|| {
                    let what = "it must be a SHA-256 in base64";
                    DirectError::parameter(format!("x-amz-Checksum is {text}; {what}"))
                })?;
                Some(parsed)
            }
        };
        match self.plane().complete_snapshot(id, count, linear) {
            Ok(()) => Ok(Answer::json(202, &json!({ "Status": "completed" }))),
            Err(NotComplete::Differs(why)) => Err(DirectError::parameter(why)),
            Err(NotComplete::Failed(error)) => Err(error.into()),
        }
    }

    fn get(&self, id: SnapshotId, block: u64, mut params: Params) -> Result<Answer, DirectError> {
        let token = params.take("blockToken").ok_or_else(|| {
            DirectError::parameter("the query must contain blockToken, as a list returned it")
        })?;
        nothing_left(&params)?;
        self.check_block(&token, id, block)?;
        let bytes = self.plane().read_unit(id, block)?;
        let body = bytes.unwrap_or_else(|| vec![0; UNIT_BYTES as usize]);
        let mut headers = checksums(&checksum::digest(&body));
        headers.push(("x-amz-Data-Length", body.len().to_string()));
        Ok(Answer { status: 200, headers, content_type: "application/octet-stream", body })
    }
}

/// The headers of a request that are text.
struct Headers<'a>(&'a [(String, String)]);

impl Headers<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.0.iter();
        all.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    fn required(&self, name: &str) -> Result<&str, DirectError> {
        self.get(name).ok_or_else(|| DirectError::parameter(format!("{name} is missing")))
    }
}

fn checksums(digest: &Digest) -> Vec<(&'static str, String)> {
    vec![
        ("x-amz-Checksum", checksum::text(digest)),
        ("x-amz-Checksum-Algorithm", checksum::ALGORITHM.into()),
    ]
}

fn algorithm(headers: &Headers<'_>) -> Result<(), DirectError> {
    const ALGORITHM: &str = "x-amz-Checksum-Algorithm";
    match headers.required(ALGORITHM)? {
        checksum::ALGORITHM => Ok(()),
        other => {
            let known = checksum::ALGORITHM;
            Err(DirectError::parameter(format!("{ALGORITHM} is {other}; it must be {known}")))
        }
    }
}

fn snapshot(text: &str) -> Result<SnapshotId, DirectError> {
    text.parse().map_err(|error| DirectError::snapshot(format!("'{text}': {error}")))
}

fn number(text: &str, what: &str) -> Result<u64, DirectError> {
    // Rust's parser would accept "+5".
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = text.parse().ok().filter(|_| plain);
    parsed.ok_or_else(|| {
        let wanted = "it must be a whole number that is not negative";
        DirectError::parameter(format!("{what} is '{text}'; {wanted}"))
    })
}

fn nothing_left(params: &Params) -> Result<(), DirectError> {
    match params.first_name() {
        None => Ok(()),
        Some(name) => Err(DirectError::parameter(format!("the parameter {name} is unknown"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_method_are_one_operation_or_none() {
        for (method, path, expected) in [
            ("POST", "/snapshots", Some(Operation::Start)),
            ("PUT", "/snapshots/snap-1/blocks/7", Some(Operation::Put("snap-1", "7"))),
            ("GET", "/snapshots/snap-1/blocks/7", Some(Operation::Get("snap-1", "7"))),
            ("POST", "/snapshots/completion/snap-1", Some(Operation::Complete("snap-1"))),
            ("GET", "/snapshots/snap-1/blocks", Some(Operation::List("snap-1"))),
            ("GET", "/snapshots/snap-1/changedblocks", Some(Operation::ListChanged("snap-1"))),
            ("GET", "/snapshots", None),
            ("POST", "/snapshots/", None),
            ("POST", "/snapshotsx", None),
            ("POST", "/snapshots/snap-1", None),
            ("DELETE", "/snapshots/snap-1/blocks/7", None),
            ("GET", "/snapshots/snap-1/blocks/7/8", None),
            ("GET", "/", None),
        ] {
            assert_eq!(Operation::of(method, path), expected, "{method} {path}");
        }
    }
}
