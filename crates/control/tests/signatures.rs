//! Signatures of botocore, an independent implementation: its signatures are accepted, our own
//! signature of the same request is equal, and no signed byte can be changed. Without botocore the
//! test skips with a message. The published vectors are in `evenkeel-wire`.

#![allow(clippy::unwrap_used)] // a test and its helpers may panic

use std::io::Write;
use std::process::Command;

use evenkeel_core::random::Random;
use evenkeel_wire::aws::sigv4::{self, Credentials, Scope, SignatureError, Verified};
use evenkeel_wire::aws::timestamp;
use serde::Deserialize;

/// Number of requests of a plain run.
const CASES: u64 = 300;
/// Number of bytes that are changed in each, one at a time.
const CHANGES: u64 = 12;

#[derive(Clone, Deserialize, Debug)]
struct Signed {
    method: String,
    path: String,
    query: String,
    in_url: bool,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    region: String,
    service: String,
    access_key_id: String,
    secret_access_key: String,
}

impl Signed {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn scope(&self) -> Scope<'_> {
        Scope { region: &self.region, service: &self.service }
    }

    fn with<T>(
        &self,
        keep: impl Fn(&str) -> bool,
        run: impl FnOnce(&sigv4::Request<'_>) -> T,
    ) -> T {
        let headers: Vec<(&str, &str)> = self
            .headers
            .iter()
            .filter(|(name, _)| keep(name))
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        run(&sigv4::Request {
            method: &self.method,
            path: &self.path,
            query: &self.query,
            headers: &headers,
            body: &self.body,
        })
    }

    fn verify(&self, now: u64) -> Result<Verified, SignatureError> {
        let secret = |id: &str| (id == self.access_key_id).then(|| self.secret_access_key.clone());
        self.with(|_| true, |request| sigv4::verify(request, self.scope(), secret, now))
    }

    /// Returns the time of signing.
    fn signed_at(&self) -> u64 {
        let in_query = self.query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-Date="));
        let text = in_query.or_else(|| self.header("x-amz-date")).unwrap();
        timestamp::parse_basic(text).unwrap()
    }

    /// Returns the names of signed headers, in lower case.
    fn signed_headers(&self) -> Vec<String> {
        let list = match self.header("authorization") {
            Some(text) => text.split("SignedHeaders=").nth(1).unwrap().split(',').next().unwrap(),
            None => self.query.split("X-Amz-SignedHeaders=").nth(1).unwrap(),
        };
        let list = list.split('&').next().unwrap();
        list.replace("%3B", ";").split(';').map(str::to_owned).collect()
    }

    /// Returns the texts that are signed.
    fn texts(&mut self) -> Vec<&mut String> {
        let signed = self.signed_headers();
        let Self { method, path, query, headers, .. } = self;
        let is_signed = |name: &str| {
            let name = name.to_ascii_lowercase();
            name == "authorization" || signed.contains(&name)
        };
        let mut texts = vec![method, path, query];
        for (name, value) in headers {
            if is_signed(name) {
                texts.extend([name, value]);
            }
        }
        texts
    }
}

fn botocore(seed: u64, count: u64) -> Option<Vec<Signed>> {
    let in_venv = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/venv/bin/python");
    let named = std::env::var("EVENKEEL_PYTHON").ok();
    let works = |python: &&str| {
        let found = Command::new(python).args(["-B", "-c", "import botocore"]).output();
        found.is_ok_and(|output| output.status.success())
    };
    let all = [named.as_deref(), Some(in_venv), Some("python3")];
    let Some(python) = all.into_iter().flatten().find(works) else {
        let _ = writeln!(
            std::io::stdout(),
            "SKIPPED: there is no botocore; run cargo x setup, or set EVENKEEL_PYTHON"
        );
        return None;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/botocore_signer.py");
    let seed = seed.to_string();
    let count = count.to_string();
    let output = Command::new(python).args(["-B", script, &seed, &count]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn botocore_signatures_are_accepted_and_changed_requests_are_not() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let cases = number("EVENKEEL_FUZZ_CASES").unwrap_or(CASES);
    let seed = number("EVENKEEL_SEED").unwrap_or(1);
    let Some(requests) = botocore(seed, cases) else { return };
    assert_eq!(requests.len() as u64, cases);
    let mut random = Random::from_state(seed);
    for signed in requests {
        let now = signed.signed_at();
        let verified = signed.verify(now).unwrap_or_else(|error| panic!("{error}: {signed:?}"));
        assert_eq!(verified.presigned, signed.in_url);
        if !signed.in_url {
            check_own(&signed, now);
        }
        for _ in 0..CHANGES {
            check_changed(&signed, now, &mut random);
        }
    }
}

/// Checks that our signature of the request equals botocore's.
fn check_own(signed: &Signed, now: u64) {
    let is_added = |name: &str| {
        ["authorization", "x-amz-date"].iter().any(|added| name.eq_ignore_ascii_case(added))
    };
    let keys = Credentials {
        access_key_id: &signed.access_key_id,
        secret_access_key: &signed.secret_access_key,
    };
    let own = signed
        .with(|name| !is_added(name), |request| sigv4::sign(request, keys, signed.scope(), now));
    let authorization = own.iter().find(|(name, _)| name == "authorization").unwrap();
    assert_eq!(Some(authorization.1.as_str()), signed.header("authorization"), "{signed:?}");
}

/// Changes one letter or digit, not only between upper and lower case, or one bit of a body.
fn check_changed(signed: &Signed, now: u64, random: &mut Random) {
    let mut changed = signed.clone();
    let mut texts = changed.texts();
    let part = random.below(texts.len() as u64 + 1) as usize;
    // A part of the path that `..` removes is not signed.
    if part == 1 && signed.path.contains("/..") {
        return;
    }
    if let Some(text) = texts.get_mut(part) {
        let letters = text.char_indices().filter(|(_, c)| c.is_ascii_alphanumeric());
        let places: Vec<usize> = letters.map(|(at, _)| at).collect();
        if places.is_empty() {
            return;
        }
        let offset = places[random.below(places.len() as u64) as usize];
        let before = text.as_bytes()[offset];
        let all = (b'0'..=b'9').chain(b'a'..=b'z');
        let others: Vec<u8> = all.filter(|other| !other.eq_ignore_ascii_case(&before)).collect();
        let other = char::from(others[random.below(others.len() as u64) as usize]);
        text.replace_range(offset..=offset, other.encode_utf8(&mut [0; 4]));
    } else if !changed.body.is_empty() {
        let offset = random.below(changed.body.len() as u64) as usize;
        changed.body[offset] ^= 1 << random.below(8);
    } else {
        changed.body.push(b'x');
    }
    assert!(changed.verify(now).is_err(), "accepted: {changed:?}\nsigned: {signed:?}");
}
