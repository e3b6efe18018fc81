//! AWS Signature Version 4, signing and verifying, in headers and in presigned URLs.
//!
//! A signature binds method, path, query, the signed headers and the body to an access key, a
//! region, a service and a time. [`verify`] requires that `host` and every `x-amz-*` header is
//! signed and that the body is the signed one. Chunked signatures, which only S3 uses, are refused,
//! and so is `UNSIGNED-PAYLOAD`, except where the caller allows it. It returns a [`SignatureError`]
//! with the first reason found.

mod canonical;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{percent, timestamp};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const TERMINATOR: &str = "aws4_request";
/// Value that a client sends as the hash of a body that its signature does not cover.
const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
/// The largest difference between the clocks of client and server, in seconds: AWS's own five
/// minutes.
pub const SKEW_MAX_S: u64 = 300;
/// The longest life of a presigned URL, in seconds: a week.
pub const EXPIRES_MAX_S: u64 = 604_800;
/// The most headers that a signature may cover.
const SIGNED_HEADERS_MAX: usize = 100;

/// The parts of a request that are signed: all of it, in its form on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, `POST`, ...
    pub method: &'a str,
    /// The path before the `?`, still encoded.
    pub path: &'a str,
    /// The part after the `?`, still encoded; empty if there is none.
    pub query: &'a str,
    /// All headers; names in any case, in the order sent.
    pub headers: &'a [(&'a str, &'a str)],
    /// The whole body.
    pub body: &'a [u8],
}

/// The hash of a body, in hexadecimal, and whether the signature must cover it.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// It must.
    Signed(&'a str),
    /// It need not (`UNSIGNED-PAYLOAD`): another header that is signed has a checksum of the body.
    MayBeUnsigned(&'a str),
}

/// The scope of a signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scope<'a> {
    /// For example `local-1`. Empty, when a signature is verified: any.
    pub region: &'a str,
    /// For example `ec2`.
    pub service: &'a str,
}

/// An access key with its secret.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The public half.
    pub access_key_id: &'a str,
    /// The secret half.
    pub secret_access_key: &'a str,
}

/// A verified signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The access key that signed.
    pub access_key_id: String,
    /// Whether the signature was in the URL.
    pub presigned: bool,
    /// The time of signing, in seconds of Unix time.
    pub signed_at_unix_s: u64,
    /// The last second of Unix time in which it is valid.
    pub good_until_unix_s: u64,
    /// The signature itself, 64 hexadecimal digits. Equal requests that are signed in the same
    /// second have the same signature.
    pub signature: String,
}

/// Why a signature is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SignatureError {
    /// The request has no signature.
    Missing,
    /// The signature is malformed; the text has the reason.
    Incomplete(String),
    /// Signed for another region, service or day; the text says which one.
    WrongScope(String),
    /// Signed too long ago, or in the future; the text compares the clocks.
    Expired(String),
    /// The access key does not exist.
    UnknownKey {
        /// The access key of the request.
        access_key_id: String,
    },
    /// The request was changed in transit, or signed with another secret.
    Mismatch,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the request is not signed"),
            Self::Incomplete(text) | Self::WrongScope(text) | Self::Expired(text) => {
                f.write_str(text)
            }
            Self::UnknownKey { access_key_id } => {
                write!(f, "the access key '{access_key_id}' is unknown")
            }
            Self::Mismatch => f.write_str("the signature does not match the request"),
        }
    }
}

/// A signature in the headers or in the query.
struct Claim<'a> {
    presigned: bool,
    credential: Credential<'a>,
    signed_headers: &'a str,
    signature: &'a str,
    date: &'a str,
    /// The time after `date` for which it is valid, in seconds.
    lifetime_s: u64,
}

/// The parts of `key/day/region/service/aws4_request`.
struct Credential<'a> {
    access_key_id: &'a str,
    day: &'a str,
    region: &'a str,
    service: &'a str,
}

/// Verifies the signature of `request` for `scope`; `secret` looks up an access key's secret.
///
/// # Errors
/// See [`SignatureError`]; the first reason found. The cheapest checks come first.
pub fn verify(
    request: &Request<'_>,
    scope: Scope<'_>,
    secret: impl FnOnce(&str) -> Option<String>,
    now_unix_s: u64,
) -> Result<Verified, SignatureError> {
    verify_hashed(request, Payload::Signed(&sha256_hex(request.body)), scope, secret, now_unix_s)
}

/// Checks everything of a signature but the signature itself, before the body has arrived.
/// `is_known` returns whether an access key exists; `request.body` is not used.
///
/// # Errors
/// As [`verify`], except [`SignatureError::Mismatch`].
pub fn verify_head(
    request: &Request<'_>,
    scope: Scope<'_>,
    is_known: impl FnOnce(&str) -> bool,
    now_unix_s: u64,
) -> Result<(), SignatureError> {
    let parsed_query = canonical::decoded_query(request.query)
        .ok_or_else(|| incomplete("the query string has a broken escape"))?;
    let (claim, _) = checked_claim(request, &parsed_query, scope, now_unix_s)?;
    let access_key_id = claim.credential.access_key_id;
    if is_known(access_key_id) {
        Ok(())
    } else {
        Err(SignatureError::UnknownKey { access_key_id: access_key_id.into() })
    }
}

/// Returns the claim of a request whose time, scope and signed headers are right, and its time.
fn checked_claim<'a>(
    request: &Request<'a>,
    parsed_query: &'a [(String, String)],
    scope: Scope<'_>,
    now_unix_s: u64,
) -> Result<(Claim<'a>, u64), SignatureError> {
    let claim = claim(request, parsed_query)?;
    let signed_at_unix_s = check_time(&claim, now_unix_s)?;
    check_scope(&claim.credential, scope)?;
    check_signed_headers(request, claim.signed_headers)?;
    Ok((claim, signed_at_unix_s))
}

/// Verifies as [`verify`], with the hash of the body from the caller; `request.body` is not used.
///
/// # Errors
/// As [`verify`].
pub fn verify_hashed(
    request: &Request<'_>,
    payload: Payload<'_>,
    scope: Scope<'_>,
    secret: impl FnOnce(&str) -> Option<String>,
    now_unix_s: u64,
) -> Result<Verified, SignatureError> {
    let parsed_query = canonical::decoded_query(request.query)
        .ok_or_else(|| incomplete("the query string has a broken escape"))?;
    let (claim, signed_at_unix_s) = checked_claim(request, &parsed_query, scope, now_unix_s)?;
    let scope = Scope { region: claim.credential.region, ..scope };
    let access_key_id = String::from(claim.credential.access_key_id);
    let Some(secret) = secret(&access_key_id) else {
        return Err(SignatureError::UnknownKey { access_key_id });
    };
    let stated = canonical::header(request.headers, "x-amz-content-sha256");
    let body_hash = match (payload, stated) {
        (Payload::MayBeUnsigned(_), Some(UNSIGNED_PAYLOAD)) => UNSIGNED_PAYLOAD,
        (Payload::Signed(hash) | Payload::MayBeUnsigned(hash), stated) => {
            if stated.is_some_and(|stated| stated != hash) {
                return Err(SignatureError::Mismatch);
            }
            hash
        }
    };
    let expected = signature(
        request,
        &parsed_query,
        &Stamp {
            date: claim.date,
            day: claim.credential.day,
            scope,
            secret: &secret,
            signed_headers: claim.signed_headers,
            body_hash,
        },
    );
    // The comparison takes constant time.
    if bool::from(expected.as_bytes().ct_eq(claim.signature.as_bytes())) {
        Ok(Verified {
            access_key_id,
            presigned: claim.presigned,
            signed_at_unix_s,
            good_until_unix_s: signed_at_unix_s.saturating_add(claim.lifetime_s),
            signature: expected,
        })
    } else {
        Err(SignatureError::Mismatch)
    }
}

/// Signs `request` and returns the headers to add (`x-amz-date` and `authorization`). All of
/// `request.headers` are signed; `host` must be among them.
#[must_use]
pub fn sign(
    request: &Request<'_>,
    credentials: Credentials<'_>,
    scope: Scope<'_>,
    now_unix_s: u64,
) -> Vec<(String, String)> {
    sign_hashed(request, &sha256_hex(request.body), credentials, scope, now_unix_s)
}

/// Signs as [`sign`], with the hexadecimal hash of the body from the caller; `request.body` is not
/// used.
#[must_use]
pub fn sign_hashed(
    request: &Request<'_>,
    body_hash: &str,
    credentials: Credentials<'_>,
    scope: Scope<'_>,
    now_unix_s: u64,
) -> Vec<(String, String)> {
    let date = timestamp::basic(now_unix_s);
    let day = &date[..8];
    let mut headers = request.headers.to_vec();
    headers.push(("x-amz-date", &date));
    let signed_headers = canonical::names(&headers);
    let request = Request { headers: &headers, ..*request };
    let query = canonical::decoded_query(request.query).unwrap_or_default();
    let stamp = Stamp {
        date: &date,
        day,
        scope,
        secret: credentials.secret_access_key,
        signed_headers: &signed_headers,
        body_hash,
    };
    let signature = signature(&request, &query, &stamp);
    let Scope { region, service } = scope;
    let key = credentials.access_key_id;
    let authorization = format!(
        "{ALGORITHM} Credential={key}/{day}/{region}/{service}/{TERMINATOR}, \
         SignedHeaders={signed_headers}, Signature={signature}"
    );
    Vec::from([("x-amz-date".into(), date), ("authorization".into(), authorization)])
}

/// Signs `request` and returns its query string with the signature, which is valid for `expires_s`
/// seconds.
///
/// For tests.
#[must_use]
pub fn presign(
    request: &Request<'_>,
    credentials: Credentials<'_>,
    scope: Scope<'_>,
    now_unix_s: u64,
    expires_s: u64,
) -> String {
    let date = timestamp::basic(now_unix_s);
    let day = &date[..8];
    let signed_headers = canonical::names(request.headers);
    let Scope { region, service } = scope;
    let key = credentials.access_key_id;
    let mut url = String::from(request.query);
    for (name, value) in [
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", &format!("{key}/{day}/{region}/{service}/{TERMINATOR}")),
        ("X-Amz-Date", &date),
        ("X-Amz-SignedHeaders", &signed_headers),
        ("X-Amz-Expires", &expires_s.to_string()),
    ] {
        let separator = if url.is_empty() { "" } else { "&" };
        url.push_str(&format!("{separator}{name}={}", percent::encode(value)));
    }
    let query = canonical::decoded_query(&url).unwrap_or_default();
    let stamp = Stamp {
        date: &date,
        day,
        scope,
        secret: credentials.secret_access_key,
        signed_headers: &signed_headers,
        body_hash: &sha256_hex(request.body),
    };
    let signature = signature(request, &query, &stamp);
    url.push_str(&format!("&X-Amz-Signature={signature}"));
    url
}

fn incomplete(text: impl Into<String>) -> SignatureError {
    SignatureError::Incomplete(text.into())
}

/// Finds and parses the signature in the headers or in the query.
fn claim<'a>(
    request: &Request<'a>,
    query: &'a [(String, String)],
) -> Result<Claim<'a>, SignatureError> {
    let in_header = canonical::header(request.headers, "authorization");
    let in_query = query.iter().any(|(name, _)| name == "X-Amz-Signature");
    match (in_header, in_query) {
        (Some(_), true) => Err(incomplete(
            "there is a signature in the headers and another in the query; send only one",
        )),
        (Some(authorization), false) => claim_in_header(request, authorization),
        (None, true) => claim_in_query(query),
        (None, false) => Err(SignatureError::Missing),
    }
}

fn claim_in_header<'a>(
    request: &Request<'a>,
    authorization: &'a str,
) -> Result<Claim<'a>, SignatureError> {
    let rest = authorization.strip_prefix(ALGORITHM).filter(|rest| rest.starts_with(' '));
    let rest = rest.ok_or_else(|| {
        incomplete(format!("the Authorization header must begin with '{ALGORITHM} '"))
    })?;
    let mut credential = None;
    let mut signed_headers = None;
    let mut signature = None;
    for part in rest.split(',') {
        let place = match part.trim().split_once('=') {
            Some(("Credential", value)) => (&mut credential, value),
            Some(("SignedHeaders", value)) => (&mut signed_headers, value),
            Some(("Signature", value)) => (&mut signature, value),
            _ => return Err(incomplete("the Authorization header has a part that is unknown")),
        };
        if place.0.replace(place.1).is_some() {
            return Err(incomplete("the Authorization header has a part twice"));
        }
    }
    let missing =
        |part: &str| incomplete(format!("Authorization header requires '{part}' parameter."));
    let date = canonical::header(request.headers, "x-amz-date").ok_or_else(|| {
        incomplete("Authorization header requires existence of 'X-Amz-Date' header.")
    })?;
    let credential = credential.ok_or_else(|| missing("Credential"))?;
    let signed_headers = signed_headers.ok_or_else(|| missing("SignedHeaders"))?;
    let signature = signature.ok_or_else(|| missing("Signature"))?;
    Ok(Claim {
        presigned: false,
        credential: parse_credential(credential)?,
        signed_headers,
        signature,
        date,
        lifetime_s: SKEW_MAX_S,
    })
}

fn claim_in_query(query: &[(String, String)]) -> Result<Claim<'_>, SignatureError> {
    let value = |wanted: &str| {
        let mut found = query.iter().filter(|(name, _)| name == wanted);
        match (found.next(), found.next()) {
            (Some((_, value)), None) => Ok(value.as_str()),
            _ => {
                Err(incomplete(format!("AWS query-string parameters must include '{wanted}' once")))
            }
        }
    };
    if value("X-Amz-Algorithm")? != ALGORITHM {
        return Err(incomplete(format!("X-Amz-Algorithm must be {ALGORITHM}")));
    }
    let expires = value("X-Amz-Expires")?;
    let lifetime_s =
        expires.parse().ok().filter(|seconds| (1..=EXPIRES_MAX_S).contains(seconds)).ok_or_else(
            || {
                incomplete(format!(
                    "X-Amz-Expires is '{expires}'; it must be between 1 and {EXPIRES_MAX_S} seconds"
                ))
            },
        )?;
    Ok(Claim {
        presigned: true,
        credential: parse_credential(value("X-Amz-Credential")?)?,
        signed_headers: value("X-Amz-SignedHeaders")?,
        signature: value("X-Amz-Signature")?,
        date: value("X-Amz-Date")?,
        lifetime_s,
    })
}

fn parse_credential(credential: &str) -> Result<Credential<'_>, SignatureError> {
    let mut parts = credential.split('/');
    match [(); 6].map(|()| parts.next()) {
        [Some(access_key_id), Some(day), Some(region), Some(service), Some(TERMINATOR), None] => {
            Ok(Credential { access_key_id, day, region, service })
        }
        _ => Err(incomplete(format!(
            "Credential must have the form key/YYYYMMDD/region/service/{TERMINATOR}, got: \
             '{credential}'"
        ))),
    }
}

fn check_time(claim: &Claim<'_>, now_unix_s: u64) -> Result<u64, SignatureError> {
    let date = claim.date;
    let signed_at = timestamp::parse_basic(date)
        .ok_or_else(|| incomplete(format!("the date '{date}' must look like 20150830T123600Z")))?;
    let day = claim.credential.day;
    if !date.starts_with(day) || day.len() != 8 {
        return Err(SignatureError::WrongScope(format!(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from \
             HTTP: \
             '{day}' != '{}'",
            &date[..8]
        )));
    }
    let now = timestamp::basic(now_unix_s);
    if signed_at > now_unix_s.saturating_add(SKEW_MAX_S) {
        return Err(SignatureError::Expired(format!(
            "Signature not yet current: {date} is still later than {now} + {SKEW_MAX_S} s; \
             compare the clocks of client and server"
        )));
    }
    if signed_at.saturating_add(claim.lifetime_s) < now_unix_s {
        return Err(SignatureError::Expired(format!(
            "Signature expired: {date} + {} s is now earlier than {now}; \
             compare the clocks of client and server",
            claim.lifetime_s
        )));
    }
    Ok(signed_at)
}

fn check_scope(claim: &Credential<'_>, scope: Scope<'_>) -> Result<(), SignatureError> {
    for (what, got, expected) in
        [("region", claim.region, scope.region), ("service", claim.service, scope.service)]
    {
        let any = what == "region" && expected.is_empty();
        if got != expected && !any {
            return Err(SignatureError::WrongScope(format!(
                "Credential should be scoped to {what} '{expected}', not '{got}'."
            )));
        }
    }
    Ok(())
}

fn check_signed_headers(request: &Request<'_>, list: &str) -> Result<(), SignatureError> {
    let names: Vec<&str> = list.split(';').take(SIGNED_HEADERS_MAX + 1).collect();
    if names.len() > SIGNED_HEADERS_MAX {
        return Err(incomplete(format!("more than {SIGNED_HEADERS_MAX} headers are signed")));
    }
    if !names.is_sorted_by(|a, b| a < b) || names.iter().any(|n| n.contains(char::is_uppercase)) {
        return Err(incomplete("SignedHeaders must be in lower case, sorted, and each there once"));
    }
    if let Some(name) = names.iter().find(|n| canonical::header(request.headers, n).is_none()) {
        return Err(incomplete(format!("the signed header '{name}' was not sent")));
    }
    let must = |name: &str| {
        name.eq_ignore_ascii_case("host")
            || name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"))
    };
    let signed = |name: &str| names.iter().any(|n| n.eq_ignore_ascii_case(name));
    let sent = request.headers.iter().map(|(name, _)| *name);
    match sent.chain(["host"]).find(|name| must(name) && !signed(name)) {
        Some(name) => Err(incomplete(format!("the header '{name}' must be signed"))),
        None => Ok(()),
    }
}

/// The inputs of a signature in addition to the request.
struct Stamp<'a> {
    date: &'a str,
    day: &'a str,
    scope: Scope<'a>,
    secret: &'a str,
    signed_headers: &'a str,
    body_hash: &'a str,
}

fn signature(request: &Request<'_>, query: &[(String, String)], stamp: &Stamp<'_>) -> String {
    let Stamp { date, day, scope: Scope { region, service }, .. } = *stamp;
    let canonical = canonical::request(request, query, stamp.signed_headers, stamp.body_hash);
    let hash = sha256_hex(canonical.as_bytes());
    let to_sign = format!("{ALGORITHM}\n{date}\n{day}/{region}/{service}/{TERMINATOR}\n{hash}");
    let mut key = hmac(format!("AWS4{}", stamp.secret).as_bytes(), day.as_bytes());
    for step in [region, service, TERMINATOR] {
        key = hmac(&key, step.as_bytes());
    }
    hex(&hmac(&key, to_sign.as_bytes()))
}

/// Returns the HMAC of a message with SHA-256.
#[must_use]
pub fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(key).expect("HMAC is defined for keys of every length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// Returns the SHA-256 of `bytes` in lower-case hexadecimal.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns bytes in lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
