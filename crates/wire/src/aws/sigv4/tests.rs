//! Signatures against the published vectors of AWS's own test suite, and against every way to break
//! them.

use super::*;
use alloc::vec;
use proptest::prelude::*;

/// The account, scope and moment of the published vectors ("AWS Signature Version 4 test suite", as
/// kept in the repository awslabs/aws-c-auth).
const KEY: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const CREDENTIALS: Credentials<'_> = Credentials { access_key_id: KEY, secret_access_key: SECRET };
const SCOPE: Scope<'_> = Scope { region: "us-east-1", service: "service" };
const NOW: u64 = 1_440_938_160; // 2015-08-30T12:36:00Z
const HOST: (&str, &str) = ("Host", "example.amazonaws.com");
const SHA: &str = "x-amz-content-sha256";
const FORM_SHA: &str = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";

fn secret(key: &str) -> Option<String> {
    (key == KEY).then(|| SECRET.into())
}

/// One vector: its name, method, path, query, headers beside `host`, body, and the signatures it
/// must give in the headers and in the URL (empty where the suite's form does not apply).
type Vector = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
    &'static str,
);

const VECTORS: &[Vector] = &[
    (
        "get-vanilla",
        "GET",
        "/",
        "",
        &[],
        "",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d",
    ),
    (
        "get-header-key-duplicate",
        "GET",
        "/",
        "",
        &[("My-Header1", "value2"), ("My-Header1", "value2"), ("My-Header1", "value1")],
        "",
        "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        "3349ee0b81b4b589da0ff28a395c3591e04de515651dd74f298fa992d1507a97",
    ),
    (
        "get-header-value-order",
        "GET",
        "/",
        "",
        &[
            ("My-Header1", "value4"),
            ("My-Header1", "value1"),
            ("My-Header1", "value3"),
            ("My-Header1", "value2"),
        ],
        "",
        "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01",
        "313720e71ca6202fdcfa9b20f88de01a4eb0638a83c833b1c184359a4eda864e",
    ),
    (
        "get-header-value-trim",
        "GET",
        "/",
        "",
        &[("My-Header1", " value1"), ("My-Header2", " \"a   b   c\"")],
        "",
        "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        "e7bb0fd515e125e1aec2ecc4c0c17484fb06f6846b927c35e46005dd3df3acd4",
    ),
    (
        "get-relative-normalized",
        "GET",
        "/example/..",
        "",
        &[],
        "",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d",
    ),
    (
        "get-relative-relative-normalized",
        "GET",
        "/example1/example2/../..",
        "",
        &[],
        "",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d",
    ),
    (
        "get-slash-dot-slash-normalized",
        "GET",
        "/./",
        "",
        &[],
        "",
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        "e93c787ed7f371d5c6b165c1b38ede9550f4dce4144713e844b25b7192d3865d",
    ),
    (
        "get-slash-pointless-dot-normalized",
        "GET",
        "/./example",
        "",
        &[],
        "",
        "ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5",
        "35034b1a0bdd969f346975386daf8aedfd4976573b8348cf4f67eaa41c5857de",
    ),
    (
        "get-slashes-normalized",
        "GET",
        "//example//",
        "",
        &[],
        "",
        "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
        "c1834e8fb0307243711f0f907f6ab7311ed300d87f13792d7ee4da89ab93e082",
    ),
    (
        "get-space-normalized",
        "GET",
        "/example space/",
        "",
        &[],
        "",
        "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741",
        "7a1f416954786484c9824d93c1f26ef64acb9b1b6c9154d08c9f07d0e394abf6",
    ),
    (
        "get-unreserved",
        "GET",
        "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        "",
        &[],
        "",
        "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        "95968482db1b9e0fadef6efc1bd24689f77c77d9ef56919c96a28cc92e0d6005",
    ),
    (
        "get-utf8",
        "GET",
        "/\u{1234}",
        "",
        &[],
        "",
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85",
        "10eae3f14a260bd3911cc6d008d3c576d143b05b62f09782a7a4b37f52178e44",
    ),
    (
        "get-vanilla-empty-query-key",
        "GET",
        "/",
        "Param1=value1",
        &[],
        "",
        "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb",
        "49096700cbbaa5753443850f40df10f904fc2fdb544dc9512203cc77c471a9de",
    ),
    (
        "get-vanilla-query-order-encoded",
        "GET",
        "/",
        "Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
        &[],
        "",
        "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        "c5f1848ceec943ac2ca68ee720460c23aaae30a2300586597ada94c4a65e4787",
    ),
    (
        "get-vanilla-query-order-key-case",
        "GET",
        "/",
        "Param2=value2&Param1=value1",
        &[],
        "",
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        "86012e2c9ad4d77369f5d81c11f75158aae4f895a085212cc6d3f923d300bed5",
    ),
    (
        "get-vanilla-query-unreserved",
        "GET",
        "/",
        "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz=\
      -._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
        &[],
        "",
        "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        "8e76a88a7433637b12778d5592799b29ad21ecd6cf6325051c21d86f0acda2bf",
    ),
    (
        "get-vanilla-utf8-query",
        "GET",
        "/",
        "\u{1234}=bar",
        &[],
        "",
        "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        "0bdd809b1519ac4f0c1dc3540e2cc46bd0c7f778eda408b2ebf3b913d21ff600",
    ),
    (
        "post-vanilla",
        "POST",
        "/",
        "",
        &[],
        "",
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        "2ce6e6d2e0cf2f9d1b55fafec88cd20574c31dc2e7631979f71ba2310083e95b",
    ),
    (
        "post-header-key-sort",
        "POST",
        "/",
        "",
        &[("My-Header1", "value1")],
        "",
        "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c",
        "c09d07e0d55871f10f2a6d350d994acf6825a3cae70673d7def55616e6119dd7",
    ),
    (
        "post-header-value-case",
        "POST",
        "/",
        "",
        &[("My-Header1", "VALUE1")],
        "",
        "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d",
        "0698bc9e4f7f9139065ba2909c0e99da257e8e2a42492a097bcd46d792391fed",
    ),
    (
        "post-vanilla-query",
        "POST",
        "/",
        "Param1=value1",
        &[],
        "",
        "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11",
        "a9ef26247f293bffe40eeff86a0480ba8c14d31503b2e0c3399e3a16bf1a3682",
    ),
    (
        "post-x-www-form-urlencoded",
        "POST",
        "/",
        "",
        &[
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Length", "13"),
            (SHA, FORM_SHA),
        ],
        "Param1=value1",
        "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
        "",
    ),
    (
        "post-x-www-form-urlencoded-parameters",
        "POST",
        "/",
        "",
        &[
            ("Content-Type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("Content-Length", "13"),
            (SHA, FORM_SHA),
        ],
        "Param1=value1",
        "328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422",
        "",
    ),
    (
        "post-x-www-form-urlencoded",
        "POST",
        "/",
        "",
        &[("Content-Type", "application/x-www-form-urlencoded"), ("Content-Length", "13")],
        "Param1=value1",
        "",
        "89a40deed0f26f9461242825a082d2222717248abc7ab41f552ad84a94ad46e9",
    ),
];

#[test]
fn published_vectors_in_headers() {
    for (name, method, path, query, extra, body, expected, _) in VECTORS {
        if expected.is_empty() {
            continue;
        }
        let mut headers = vec![HOST];
        headers.extend(*extra);
        let request = Request { method, path, query, headers: &headers, body: body.as_bytes() };
        let added = sign(&request, CREDENTIALS, SCOPE, NOW);
        assert!(added[1].1.ends_with(&format!("Signature={expected}")), "{name}: {}", added[1].1);
        let own = headers.iter().copied();
        let all: Vec<_> = own.chain(added.iter().map(|(n, v)| (n.as_str(), v.as_str()))).collect();
        let verified = verify(&Request { headers: &all, ..request }, SCOPE, secret, NOW);
        let expected = Verified {
            access_key_id: KEY.into(),
            presigned: false,
            signed_at_unix_s: NOW,
            good_until_unix_s: NOW + SKEW_MAX_S,
            signature: (*expected).into(),
        };
        assert_eq!(verified, Ok(expected));
    }
}

#[test]
fn published_vectors_in_urls() {
    for (name, method, path, query, extra, body, _, expected) in VECTORS {
        if expected.is_empty() {
            continue;
        }
        let mut headers = vec![HOST];
        headers.extend(*extra);
        let request = Request { method, path, query, headers: &headers, body: body.as_bytes() };
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
