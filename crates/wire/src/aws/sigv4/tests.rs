//! Signatures against the published vectors of AWS's own test suite, and against every way to break
//! them.

use super::*;
use alloc::vec;
use proptest::prelude::*;

/// The account, scope and moment of the published vectors.
const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const CREDENTIALS: Credentials<'_> = Credentials { access_key_id: KEY, secret_access_key: SECRET };
const SCOPE: Scope<'_> = Scope { region: "us-east-1", service: "service" };
const NOW: u64 = 1_440_938_160; // 2015-08-30T12:36:00Z
const HOST: (&str, &str) = ("Host", "example.amazonaws.com");
const SHA: &str = "x-amz-content-sha256";

fn secret(key: &str) -> Option<String> {
    (key == KEY).then(|| SECRET.into())
}

/// The published vectors; the file says where they are from.
const VECTORS: &str = include_str!("vectors.txt");

/// One of them: a request, and the signatures it must give in the headers and in the URL.
#[derive(Default)]
struct Vector<'a> {
    name: &'a str,
    method: &'a str,
    path: &'a str,
    query: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: &'a str,
    /// A session token, and whether it is signed.
    token: Option<(&'a str, bool)>,
    signs_body: bool,
    in_headers: &'a str,
    in_url: &'a str,
}

impl<'a> Vector<'a> {
    fn all() -> Vec<Self> {
        let lines = VECTORS.lines().filter(|line| !line.starts_with('#'));
        let mut all: Vec<Self> = vec![];
        for line in lines.filter(|line| !line.is_empty()) {
            let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
            if kind == "name" {
                all.push(Self { name: text, ..Self::default() });
            } else {
                all.last_mut().unwrap().add(kind, text);
            }
        }
        all
    }

    fn add(&mut self, kind: &str, text: &'a str) {
        match kind {
            "request" => {
                let target;
                (self.method, target) = text.split_once(' ').unwrap();
                (self.path, self.query) = target.split_once('?').unwrap_or((target, ""));
            }
            "header" => self.headers.push(text.split_once(':').unwrap()),
            "body" => self.body = text,
            "token" => self.token = Some((text, true)),
            "token-unsigned" => self.token = Some((text, false)),
            "signs-body" => self.signs_body = true,
            "in-headers" => self.in_headers = text,
            "in-url" => self.in_url = text,
            other => panic!("{other}"),
        }
    }

    fn request<'b>(&'b self, query: &'b str, headers: &'b [(&'b str, &'b str)]) -> Request<'b> {
        let Self { method, path, body, .. } = self;
        Request { method, path, query, headers, body: body.as_bytes() }
    }
}

#[test]
fn published_vectors_in_headers() {
    for vector in Vector::all() {
        let name = vector.name;
        let expected = vector.in_headers;
        let sha = sha256_hex(vector.body.as_bytes());
        let mut headers = vector.headers.clone();
        headers.extend(vector.signs_body.then_some((SHA, sha.as_str())));
        let token = |(token, _)| ("X-Amz-Security-Token", token);
        headers.extend(vector.token.filter(|(_, is_signed)| *is_signed).map(token));
        let request = vector.request(vector.query, &headers);
        let added = sign(&request, CREDENTIALS, SCOPE, NOW);
        assert!(added[1].1.ends_with(&format!("Signature={expected}")), "{name}: {}", added[1].1);
        let added = added.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let mut all: Vec<_> = headers.iter().copied().chain(added).collect();
        let verified = verify(&Request { headers: &all, ..request }, SCOPE, secret, NOW);
        let expected = Verified {
            access_key_id: KEY.into(),
            presigned: false,
            signed_at_unix_s: NOW,
            good_until_unix_s: NOW + SKEW_MAX_S,
            signature: expected.into(),
        };
        assert_eq!(verified, Ok(expected), "{name}");
        // A header added after signing is not authentic.
        if let Some(token) = vector.token.filter(|(_, is_signed)| !*is_signed).map(token) {
            all.push(token);
            let unsigned = verify(&Request { headers: &all, ..request }, SCOPE, secret, NOW);
            assert!(matches!(unsigned, Err(SignatureError::Incomplete(_))), "{name}");
        }
    }
}

#[test]
fn published_vectors_in_urls() {
    for vector in Vector::all() {
        let name = vector.name;
        let expected = vector.in_url;
        let mut query = vector.query.to_string();
        if let Some((token, true)) = vector.token {
            query = crate::aws::query::encode([("X-Amz-Security-Token", token)]);
        }
        let request = vector.request(&query, &vector.headers);
        let url = presign(&request, CREDENTIALS, SCOPE, NOW, 3_600);
        assert!(url.ends_with(&format!("X-Amz-Signature={expected}")), "{name}: {url}");
        let verified = verify(&Request { query: &url, ..request }, SCOPE, secret, NOW + 3_600);
        assert!(verified.is_ok_and(|v| v.presigned), "{name}");
        let late = verify(&Request { query: &url, ..request }, SCOPE, secret, NOW + 3_601);
        assert!(matches!(late, Err(SignatureError::Expired(_))), "{name}");
    }
}

/// A signed request that a test may damage.
#[derive(Clone, Debug)]
struct Signed {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Signed {
    fn new(query: &str, body: &[u8]) -> Self {
        let headers = [HOST, ("content-type", "application/x-www-form-urlencoded")];
        let request = Request { method: "POST", path: "/", query, headers: &headers, body };
        let added = sign(&request, CREDENTIALS, SCOPE, NOW);
        let own = headers.iter().map(|(n, v)| ((*n).into(), (*v).into()));
        Self {
            method: "POST".into(),
            path: "/".into(),
            query: query.into(),
            headers: own.chain(added).collect(),
            body: body.into(),
        }
    }

    fn verify_at(&self, now: u64) -> Result<Verified, SignatureError> {
        let headers: Vec<_> = self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let request = Request {
            method: &self.method,
            path: &self.path,
            query: &self.query,
            headers: &headers,
            body: &self.body,
        };
        verify(&request, SCOPE, secret, now)
    }

    fn set(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }
}

#[test]
fn clocks_may_differ_by_five_minutes() {
    let signed = Signed::new("", b"Action=X");
    for now in [NOW - SKEW_MAX_S, NOW, NOW + SKEW_MAX_S] {
        assert!(signed.verify_at(now).is_ok(), "{now}");
    }
    for now in [NOW - SKEW_MAX_S - 1, NOW + SKEW_MAX_S + 1, 0, u64::MAX] {
        assert!(matches!(signed.verify_at(now), Err(SignatureError::Expired(_))), "{now}");
    }
    let late = signed.verify_at(NOW + 400).unwrap_err();
    assert_eq!(
        late.to_string(),
        "Signature expired: 20150830T123600Z + 300 s is now earlier than 20150830T124240Z; \
         compare the clocks of client and server"
    );
}

#[test]
fn each_kind_of_failure_has_its_error() {
    let signed = Signed::new("", b"Action=X");
    let authorization = signed.headers[3].1.clone();
    let with = |from: &str, to: &str| {
        signed.clone().set("authorization", &authorization.replace(from, to)).verify_at(NOW)
    };
    let mut unsigned = signed.clone();
    unsigned.headers.truncate(2);
    assert_eq!(unsigned.verify_at(NOW), Err(SignatureError::Missing));
    let unknown = SignatureError::UnknownKey { access_key_id: "AKIDOTHER".into() };
    assert_eq!(with(KEY, "AKIDOTHER"), Err(unknown));
    for (from, to) in
        [("us-east-1", "eu-west-1"), ("/service/", "/s3/"), ("/20150830/", "/20150831/")]
    {
        assert!(matches!(with(from, to), Err(SignatureError::WrongScope(_))), "{to}");
    }
    for (from, to) in [
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA512"),
        ("AWS4-HMAC-SHA256 ", "AWS4-HMAC-SHA256"),
        ("aws4_request", "aws4"),
        ("Signature=", "Sign="),
        ("SignedHeaders=", "Signature=0, SignedHeaders="),
        ("content-type;host", "host;content-type"),
        ("content-type;host", "content-type"),
        ("content-type;host;x-amz-date", "content-type;host"),
        ("content-type;host", "content-type;Host"),
        ("content-type;host;", "content-type;host;other;"),
    ] {
        assert!(matches!(with(from, to), Err(SignatureError::Incomplete(_))), "{from} {to}");
    }
    let undated = signed.clone().set("x-amz-date", "yesterday").verify_at(NOW);
    assert!(matches!(undated, Err(SignatureError::Incomplete(_))));
    let unsigned_body = signed.clone().set(SHA, "UNSIGNED-PAYLOAD").verify_at(NOW);
    assert!(matches!(unsigned_body, Err(SignatureError::Incomplete(_))));
    let mut both = signed.clone();
    both.query = "X-Amz-Signature=0".into();
    assert!(matches!(both.verify_at(NOW), Err(SignatureError::Incomplete(_))));
}

#[test]
fn an_unsigned_payload_is_refused_even_when_signed_so() {
    let headers = [HOST, (SHA, "UNSIGNED-PAYLOAD")];
    let request = Request { method: "POST", path: "/", query: "", headers: &headers, body: b"a" };
    let mut signed = Signed::new("", b"a");
    signed.headers = headers
        .iter()
        .map(|(n, v)| ((*n).into(), (*v).into()))
        .chain(sign(&request, CREDENTIALS, SCOPE, NOW))
        .collect();
    assert_eq!(signed.verify_at(NOW), Err(SignatureError::Mismatch));
}

proptest! {
    #[test]
    fn any_single_change_breaks_it(
        body in proptest::collection::vec(any::<u8>(), 1..40),
        query in "[a-z]{1,5}=[a-z]{1,5}",
        change in 0_usize..8,
        at: proptest::sample::Index,
    ) {
        let mut signed = Signed::new(&query, &body);
        prop_assert!(signed.verify_at(NOW).is_ok());
        match change {
            0 => signed.method = "PUT".into(),
            1 => signed.path = "/x".into(),
            2 => signed.query.push('x'),
            3 => { let i = at.index(body.len()); signed.body[i] ^= 1; }
            4 => signed.body.push(b'a'),
            5 => { signed.body.remove(at.index(body.len())); }
            6 => signed.headers[at.index(2)].1.push('x'),
            _ => signed.headers[2].1 = timestamp::basic(NOW + 1),
        }
        prop_assert_eq!(signed.verify_at(NOW), Err(SignatureError::Mismatch));
    }

    #[test]
    fn any_flipped_digit_of_the_signature_breaks_it(at in 0_usize..64) {
        let signed = Signed::new("", b"Action=X");
        let mut authorization = signed.headers[3].1.clone().into_bytes();
        let position = authorization.len() - 64 + at;
        authorization[position] = if authorization[position] == b'0' { b'1' } else { b'0' };
        let signed = signed.set("authorization", core::str::from_utf8(&authorization).unwrap());
        prop_assert_eq!(signed.verify_at(NOW), Err(SignatureError::Mismatch));
    }

    #[test]
    fn verifying_never_panics(
        method in "\\PC{0,8}", path in "\\PC{0,20}",
        query in "\\PC{0,80}|(X-Amz-[A-Z][a-z]{0,9}=[%a-z0-9/]{0,9}&?){0,8}",
        authorization in
            "\\PC{0,80}|AWS4-HMAC-SHA256 (Credential|SignedHeaders|Signature)=[a-z/;,=]{0,40}",
        date in "\\PC{0,16}|[0-9]{8}T[0-9]{6}Z", body: Vec<u8>, now: u64,
    ) {
        let date = ("x-amz-date", date.as_str());
        let headers = [HOST, ("authorization", authorization.as_str()), date];
        for headers in [&headers[..], &headers[..1]] {
            let request =
                Request { method: &method, path: &path, query: &query, headers, body: &body };
            prop_assert!(verify(&request, SCOPE, secret, now).is_err());
            let _ = sign(&request, CREDENTIALS, SCOPE, now);
            let _ = presign(&request, CREDENTIALS, SCOPE, now, 1);
        }
    }
}
