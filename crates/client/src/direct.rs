//! The client's part of the EBS direct APIs: snapshots are listed, read and filled block by block.

use crate::Client;
use crate::client::{ANSWER_WAIT_MAX, RETRY_PAUSE};
use crate::export::UNIT_BYTES;
use crate::output::{Exit, Failure};
use evenkeel_os::clock::{self, Deadline};
use evenkeel_wire::aws::checksum::{self, Digest};
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::sigv4::{self, Credentials, Request, Scope};
use serde_json::{Value, json};
use std::time::Duration;

/// Longest wait for a snapshot to be completed: the server may read it back.
const COMPLETE_WAIT_MAX: Duration = Duration::from_secs(600);

/// Maximum time for which a request is repeated while connections break.
const BROKEN_MAX: Duration = Duration::from_secs(4);

/// Maximum size of an answer in bytes: a page of ten thousand blocks is below it.
const BYTES_MAX: u64 = 16 << 20;

/// Place at which a list begins or continues.
pub struct Listed(&'static str, String);

impl Listed {
    /// Returns the place of the first block from this number on.
    pub fn first(number: u64) -> Self {
        Self("startingBlockIndex", number.to_string())
    }

    /// Returns the place behind the page that had this token.
    pub fn after(token: String) -> Self {
        Self("pageToken", token)
    }
}

/// Numbers of blocks, ascending, with the token of those that have data.
pub type Blocks = Vec<(u64, Option<String>)>;

/// Some blocks of a list.
pub struct Page {
    pub blocks: Blocks,
    /// The token of the next page.
    pub next: Option<String>,
}

/// A snapshot to start.
pub struct NewSnapshot<'a> {
    pub size_gib: u64,
    /// The snapshot whose data and encryption it begins with.
    pub parent: Option<&'a str>,
    /// Whether it is encrypted in any case; otherwise the account's default applies.
    pub is_encrypted: bool,
    pub description: &'a str,
    pub tags: &'a [(String, String)],
    /// A repeated call with the same token finds the same snapshot.
    pub token: &'a str,
    pub timeout_min: u32,
}

/// A snapshot that was started, now or before.
pub struct Started {
    pub id: String,
    /// pending, completed, error.
    pub status: String,
}

struct Sent<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
    /// The body's hash, where it is known.
    digest: Option<&'a Digest>,
    wait: Duration,
}

impl<'a> Sent<'a> {
    const fn new(method: &'a str, path: &'a str) -> Self {
        let wait = ANSWER_WAIT_MAX;
        Self { method, path, query: "", headers: &[], body: &[], digest: None, wait }
    }
}

impl Client {
    /// Returns whether the server has this snapshot, and it is complete.
    pub fn has_snapshot(&self, id: &str) -> bool {
        let answer = self.call("DescribeSnapshots", &[("SnapshotId.1", id)]);
        answer.is_ok_and(|answer| {
            answer.items("snapshotSet").iter().any(|s| s.child_text("status") == Some("completed"))
        })
    }

    /// Returns a page of at most `max` blocks that have data, or that differ from those of an older
    /// snapshot.
    pub fn listed(
        &self,
        id: &str,
        older: Option<&str>,
        Listed(name, value): &Listed,
        max: u32,
    ) -> Result<Page, Failure> {
        let max = max.to_string();
        let mut pairs = vec![(*name, value.as_str()), ("maxResults", &max)];
        pairs.extend(older.map(|older| ("firstSnapshotId", older)));
        let query = query::encode(pairs);
        let (what, field) = match older {
            Some(_) => ("changedblocks", "ChangedBlocks"),
            None => ("blocks", "Blocks"),
        };
        let path = format!("/snapshots/{id}/{what}");
        let (_, body) = self.direct(&Sent { query: &query, ..Sent::new("GET", &path) })?;
        let page: Value = serde_json::from_slice(&body)
            .map_err(|error| Failure::new(format!("{path}: {error}")))?;
        let token = if older.is_some() { "SecondBlockToken" } else { "BlockToken" };
        let block = |block: &Value| {
            Some((block["BlockIndex"].as_u64()?, block[token].as_str().map(str::to_owned)))
        };
        let blocks = page[field].as_array().map(|blocks| blocks.iter().filter_map(block).collect());
        let blocks =
            blocks.ok_or_else(|| Failure::new(format!("{path}: a list without blocks")))?;
        Ok(Page { blocks, next: page["NextToken"].as_str().map(str::to_owned) })
    }

    /// Calls `on` for each page of such a list, from block `first` on.
    pub fn each_page(
        &self,
        id: &str,
        older: Option<&str>,
        first: u64,
        max: u32,
        mut on: impl FnMut(Blocks) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut next = Listed::first(first);
        loop {
            let page = self.listed(id, older, &next, max)?;
            on(page.blocks)?;
            match page.next {
                Some(token) => next = Listed::after(token),
                None => return Ok(()),
            }
        }
    }

    /// Returns the bytes of a block, and their checksum, which is compared with the one in the
    /// answer.
    pub fn block(&self, id: &str, number: u64, token: &str) -> Result<(Vec<u8>, Digest), Failure> {
        let path = format!("/snapshots/{id}/blocks/{number}");
        let query = query::encode([("blockToken", token)]);
        let (sum, body) = self.direct(&Sent { query: &query, ..Sent::new("GET", &path) })?;
        let digest = checksum::digest(&body);
        if body.len() as u64 != UNIT_BYTES
            || sum.as_deref().and_then(checksum::parse) != Some(digest)
        {
            let message = format!("{path}: {} bytes came that are not the block", body.len());
            return Err(Failure::new(message));
        }
        Ok((body, digest))
    }

    /// Starts a snapshot that is filled block by block, or finds the one of the same token.
    pub fn start_snapshot(&self, new: &NewSnapshot<'_>) -> Result<Started, Failure> {
        let tag = |(key, value): &(String, String)| json!({ "Key": key, "Value": value });
        let mut body = json!({
            "VolumeSize": new.size_gib,
            "ClientToken": new.token,
            "Timeout": new.timeout_min,
            "Tags": new.tags.iter().map(tag).collect::<Vec<_>>(),
        });
        if !new.description.is_empty() {
            body["Description"] = new.description.into();
        }
        if let Some(parent) = new.parent {
            body["ParentSnapshotId"] = parent.into();
        } else if new.is_encrypted {
            body["Encrypted"] = true.into();
        }
        let body = body.to_string();
        let sent = Sent { body: body.as_bytes(), ..Sent::new("POST", "/snapshots") };
        let (_, answer) = self.direct(&sent)?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        match (answer["SnapshotId"].as_str(), answer["Status"].as_str()) {
            (Some(id), Some(status)) => Ok(Started { id: id.into(), status: status.into() }),
            _ => Err(Failure::new("the server started a snapshot and did not name it")),
        }
    }

    /// Fills a block of a snapshot. It survives a crash of the server when this returns.
    pub fn put_block(
        &self,
        id: &str,
        number: u64,
        data: &[u8],
        digest: &Digest,
    ) -> Result<(), Failure> {
        let length = data.len().to_string();
        let sum = checksum::text(digest);
        let headers = [
            ("x-amz-data-length", length.as_str()),
            ("x-amz-checksum", &sum),
            ("x-amz-checksum-algorithm", checksum::ALGORITHM),
        ];
        let path = format!("/snapshots/{id}/blocks/{number}");
        let headers = headers.as_slice();
        let digest = Some(digest);
        self.direct(&Sent { headers, body: data, digest, ..Sent::new("PUT", &path) }).map(drop)
    }

    /// Completes a snapshot into which `count` blocks were put. `linear` is the checksum of all of
    /// them, if it is known.
    pub fn complete_snapshot(
        &self,
        id: &str,
        count: u64,
        linear: Option<&Digest>,
    ) -> Result<(), Failure> {
        let count = count.to_string();
        let sum = linear.map(checksum::text);
        let mut headers = vec![("x-amz-changedblockscount", count.as_str())];
        if let Some(sum) = &sum {
            headers.extend([
                ("x-amz-checksum", sum.as_str()),
                ("x-amz-checksum-algorithm", checksum::ALGORITHM),
                ("x-amz-checksum-aggregation-method", checksum::METHOD),
            ]);
        }
        let path = format!("/snapshots/completion/{id}");
        let wait = COMPLETE_WAIT_MAX;
        self.direct(&Sent { headers: &headers, wait, ..Sent::new("POST", &path) }).map(drop)
    }

    /// Sends a request. Returns the checksum in the answer, and its body. If the server is
    /// overloaded, or no node of its cluster leads, the request is signed and sent again. It is
    /// also repeated for some seconds if the connection breaks: each of these requests may be
    /// repeated, and a copy of hours should survive a restart of a server.
    fn direct(&self, sent: &Sent<'_>) -> Result<(Option<String>, Vec<u8>), Failure> {
        let deadline = Deadline::after(ANSWER_WAIT_MAX);
        let broken = Deadline::after(BROKEN_MAX);
        loop {
            let (status, kind, sum, body) = match self.ask_direct(sent) {
                Err(failure) if failure.exit == Exit::Failed && broken.pause(RETRY_PAUSE) => {
                    continue;
                }
                answer => answer?,
            };
            if (200..300).contains(&status) {
                return Ok((sum, body));
            }
            let is_too_early = kind == "RequestThrottledException" || status == 503;
            if is_too_early && deadline.pause(RETRY_PAUSE) {
                continue;
            }
            let value: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = value["Message"].as_str().unwrap_or("no EBS server");
            let failure = Failure::new(format!("{message} ({kind}, {status})"));
            return Err(match status {
                404 => failure.exit(Exit::NotFound),
                402 => failure.exit(Exit::Refused),
                _ => failure,
            });
        }
    }

    fn ask_direct(
        &self,
        sent: &Sent<'_>,
    ) -> Result<(u16, String, Option<String>, Vec<u8>), Failure> {
        let &Sent { method, path, query, headers, body, digest, wait } = sent;
        let invocation = crate::client::invocation();
        let mut all =
            vec![("host", self.authority.as_str()), ("amz-sdk-invocation-id", &invocation)];
        all.extend(headers);
        let hash = digest.map_or_else(|| sigv4::sha256_hex(body), |digest| sigv4::hex(digest));
        let signed = sigv4::sign_hashed(
            &Request { method, path, query, headers: &all, body },
            &hash,
            Credentials {
                access_key_id: &self.keys.access_key_id,
                secret_access_key: &self.keys.secret_access_key,
            },
            Scope { region: &self.region, service: "ebs" },
            clock::unix_ms().0 / 1_000,
        );
        let separator = if query.is_empty() { "" } else { "?" };
        let url = format!("{}://{}{path}{separator}{query}", self.scheme, self.authority);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        let signed = signed.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in all.into_iter().chain(signed) {
            request = request.header(name, value);
        }
        let unsent = |error: ureq::http::Error| Failure::new(format!("{path}: {error}"));
        let config =
            |request| self.agent.configure_request(request).timeout_global(Some(wait)).build();
        let ran = match method {
            "GET" => self.agent.run(
                self.agent
                    .configure_request(request.body(()).map_err(unsent)?)
                    .timeout_global(Some(wait))
                    .build(),
            ),
            _ => self.agent.run(config(request.body(body).map_err(unsent)?)),
        };
        let mut answer = ran.map_err(|error| self.unreachable(&error))?;
        let header = |name| {
            let value = answer.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned)
        };
        let kind = header("x-amzn-errortype").unwrap_or_default();
        let status = answer.status().as_u16();
        let sum = header("x-amz-checksum");
        let read = answer.body_mut().with_config().limit(BYTES_MAX).read_to_vec();
        Ok((status, kind, sum, read.map_err(|error| self.unreachable(&error))?))
    }
}
