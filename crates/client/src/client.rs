//! The client of the server's API: the EC2 query protocol, and the EBS direct APIs, signed. Errors
//! have the exit code that fits the server's error.

use crate::output::{Exit, Failure};
use crate::trust;
use evenkeel_os::clock::{self, Deadline};
use evenkeel_wire::aws::sigv4::{self, Credentials, Request, Scope};
use evenkeel_wire::aws::{query, xml::Element};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The version of the EC2 API that the client uses.
const VERSION: &str = "2016-11-15";

/// Maximum wait for one answer. A modification may have to grow a file first; no other action takes
/// longer.
pub(crate) const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Maximum size of an answer in bytes: ten thousand volumes with all their tags are below it.
pub(crate) const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of characters of an answer without a document that are shown.
const SHOWN_MAX: usize = 300;

/// The error code, with status 503, after which a request must be signed and sent again.
const TOO_EARLY: &str = "<Code>RequestLimitExceeded</Code>";

/// End of the message of a dry run that would have succeeded.
const DRY_RUN: &str = "(DryRunOperation)";

/// Maximum number of pages of one list: of 500 each, enough for twice as many volumes as a server
/// has.
const PAGES_MAX: u32 = 264;

/// Pause before a request is sent again.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An access key with its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    pub access_key_id: String,
    pub secret_access_key: String,
}

/// A client for one server.
pub struct Client {
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// `host:port`, as the signature covers it.
    pub(crate) authority: String,
    pub(crate) region: String,
    pub(crate) keys: Keys,
    pub(crate) agent: ureq::Agent,
    /// The file of the authorities that it trusts.
    authorities: Option<PathBuf>,
}

impl Client {
    /// Creates a client for the server at `endpoint`, `http://HOST:PORT`. Does not connect yet.
    ///
    /// # Errors
    /// If `endpoint` is no such address.
    pub fn new(endpoint: &str, region: &str, keys: Keys) -> Result<Self, Failure> {
        Self::trusting(None, endpoint, region, keys)
    }

    /// Creates a client for the server at `endpoint`, `http://HOST:PORT` or `https://HOST:PORT`,
    /// whose certificate the authorities in a file have signed. Does not connect yet.
    ///
    /// # Errors
    /// If `endpoint` is no such address, or the file cannot be used.
    pub fn trusting(
        authorities: Option<&Path>,
        endpoint: &str,
        region: &str,
        keys: Keys,
    ) -> Result<Self, Failure> {
        let (scheme, authority) = parts(endpoint)?;
        let authority = authority.to_owned();
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WAIT_MAX))
            .http_status_as_error(false)
            .max_redirects(0)
            // A proxy in the environment does not apply to this server.
            .proxy(None)
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")));
        let config = match (scheme, authorities) {
            ("https", Some(authorities)) => config.tls_config(trust::by(authorities)?),
            ("https", None) => return Err(trust::none(endpoint)),
            _ => config,
        };
        let agent = config.build().new_agent();
        let authorities = authorities.map(Path::to_owned);
        Ok(Self { scheme, authority, region: region.to_owned(), keys, agent, authorities })
    }

    /// The server's host and port.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the public half of the server's keys, which identifies the server at any address.
    pub fn access_key_id(&self) -> &str {
        &self.keys.access_key_id
    }

    /// The server's host, by name or address.
    pub fn host(&self) -> &str {
        let port = self.authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
        port.map_or(self.authority.as_str(), |(host, _)| host)
    }

    /// Calls one action and returns the answer's root element. If the server answers that it was
    /// too early, the request is signed and sent again.
    pub fn call(&self, action: &str, parameters: &[(&str, &str)]) -> Result<Element, Failure> {
        let fixed = [("Action", action), ("Version", VERSION)];
        let body = query::encode(fixed.iter().chain(parameters).copied());
        let deadline = Deadline::after(ANSWER_WAIT_MAX);
        loop {
            let (status, text) = self.ask(&body)?;
            let is_too_early = status == 503 && text.contains(TOO_EARLY);
            if !is_too_early || !deadline.pause(RETRY_PAUSE) {
                return self.read(action, status, &text);
            }
        }
    }

    /// Checks by a dry run whether an action would succeed now.
    pub fn would(&self, action: &str, parameters: &[(&str, &str)]) -> Result<(), Failure> {
        let mut parameters = parameters.to_vec();
        parameters.push(("DryRun", "true"));
        match self.call(action, &parameters) {
            Err(failure) if failure.message.ends_with(DRY_RUN) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Calls an action that lists, page by page, and returns what `read` makes of all pages.
    pub fn list<T>(
        &self,
        action: &str,
        parameters: &[(&str, &str)],
        read: impl Fn(&Element) -> Vec<T>,
    ) -> Result<Vec<T>, Failure> {
        let mut all = Vec::new();
        let mut token = None::<String>;
        for _ in 0..PAGES_MAX {
            let mut parameters = parameters.to_vec();
            parameters.extend(token.as_deref().map(|token| ("NextToken", token)));
            let answer = self.call(action, &parameters)?;
            all.extend(read(&answer));
            token = answer.child_text("nextToken").map(str::to_owned);
            if token.is_none() {
                return Ok(all);
            }
        }
        Err(Failure::new(format!("{action} has more than {PAGES_MAX} pages")))
    }

    /// Signs and sends a request; returns the answer's status and text.
    fn ask(&self, body: &str) -> Result<(u16, String), Failure> {
        // Part of the signed request, as in other SDKs: the signature of a change is valid once,
        // and this makes the signatures of equal requests in the same second differ.
        let invocation = invocation();
        let headers = [
            ("host", self.authority.as_str()),
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("amz-sdk-invocation-id", invocation.as_str()),
        ];
        let signed = sigv4::sign(
            &Request {
                method: "POST",
                path: "/",
                query: "",
                headers: &headers,
                body: body.as_bytes(),
            },
            Credentials {
                access_key_id: &self.keys.access_key_id,
                secret_access_key: &self.keys.secret_access_key,
            },
            Scope { region: &self.region, service: "ec2" },
            clock::unix_ms().0 / 1_000,
        );
        let mut request = self.agent.post(format!("{}://{}/", self.scheme, self.authority));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        for (name, value) in &signed {
            request = request.header(name, value);
        }
        let mut answer = request.send(body).map_err(|error| self.unreachable(&error))?;
        let status = answer.status().as_u16();
        let text = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_string()
            .map_err(|error| self.unreachable(&error))?;
        Ok((status, text))
    }

    /// Gets a path that needs no signature, such as `/healthz`. Returns the answer's status and
    /// text.
    ///
    /// # Errors
    /// If no server answers within half a minute.
    pub fn get_unsigned(&self, path: &str) -> Result<(u16, String), Failure> {
        let request = self.agent.get(format!("{}://{}{path}", self.scheme, self.authority));
        let mut answer = request.call().map_err(|error| self.unreachable(&error))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let text = body.read_to_string().map_err(|error| self.unreachable(&error))?;
        Ok((status, text))
    }

    fn read(&self, action: &str, status: u16, text: &str) -> Result<Element, Failure> {
        let root = Element::parse(text).map_err(|error| {
            // Servers explain a request that they do not understand in plain text, such as one
            // without TLS.
            let plain = text.trim();
            let reason = if plain.is_empty() || plain.starts_with('<') {
                error.to_string()
            } else {
                plain.chars().take(SHOWN_MAX).collect()
            };
            Failure::new(format!(
                "{} answered {action} with status {status} and no EC2 document: {reason}",
                self.authority
            ))
            .hint("is it an Evenkeel server? --endpoint names another")
        })?;
        let fault = root.items("Errors").first().or_else(|| root.child("Error"));
        if let Some(fault) = fault {
            let code = fault.child_text("Code").unwrap_or("unknown");
            return Err(refusal(code, fault.child_text("Message").unwrap_or_default()));
        }
        if status == 200 {
            Ok(root)
        } else {
            Err(Failure::new(format!("{} answered {action} with status {status}", self.authority)))
        }
    }

    pub(crate) fn unreachable(&self, error: &ureq::Error) -> Failure {
        let at = &self.authority;
        match error {
            ureq::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
                Failure::new(format!("no server at {at}")).hint("start one with `evenkeel serve`")
            }
            ureq::Error::Timeout(_) => {
                let seconds = ANSWER_WAIT_MAX.as_secs();
                Failure::new(format!("{at} did not answer within {seconds} s")).exit(Exit::Timeout)
            }
            ureq::Error::Io(io) if is_disconnect(io.kind()) => {
                let unknown = "it is not known whether the request was executed";
                Failure::new(format!("{at} ended the connection before it answered: {unknown}"))
                    .hint("look at what is there before you repeat it")
            }
            other => {
                let failure = Failure::new(format!("{at}: {other}"));
                trust::explained(failure, self.authorities.as_deref())
            }
        }
    }

    /// Polls until `look` returns a value.
    pub fn wait<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut look: impl FnMut(&Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let deadline = Deadline::after(timeout);
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if !deadline.pause(POLL_INTERVAL) {
                let message = format!("{what}: not within {} s", timeout.as_secs());
                return Err(Failure::new(message)
                    .exit(Exit::Timeout)
                    .hint("it may still happen; --timeout waits longer"));
            }
        }
    }
}

/// Returns whether the other side has ended the connection.
const fn is_disconnect(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Returns the scheme and `host:port` of an endpoint.
fn parts(endpoint: &str) -> Result<(&'static str, &str), Failure> {
    let wrong = || {
        let form = "expected http://HOST:PORT or https://HOST:PORT";
        Failure::new(format!("endpoint {endpoint}: {form}")).exit(Exit::Usage)
    };
    let plain = endpoint.strip_prefix("http://").map(|rest| ("http", rest));
    let found = plain.or_else(|| endpoint.strip_prefix("https://").map(|rest| ("https", rest)));
    let (scheme, rest) = found.ok_or_else(wrong)?;
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.is_empty() || authority.contains(['/', '?', '#', '@', ' ']) {
        return Err(wrong());
    }
    Ok((scheme, authority))
}

/// Returns the failure with the exit code for an EC2 error code.
fn refusal(code: &str, message: &str) -> Failure {
    let exit = if code.ends_with(".NotFound") {
        Exit::NotFound
    } else if code.starts_with("Insufficient") || code.contains("LimitExceeded") {
        Exit::Refused
    } else if ["Invalid", "Missing", "Unknown", "Malformed"]
        .iter()
        .any(|start| code.starts_with(start))
    {
        Exit::Usage
    } else {
        Exit::Failed
    };
    let failure = Failure::new(format!("{message} ({code})")).exit(exit);
    match code {
        "InvalidVolume.NotFound" => failure.hint("`evenkeel volume ls` lists the volumes"),
        "InvalidSnapshot.NotFound" => failure.hint("`evenkeel snapshot ls` lists the snapshots"),
        "InvalidInstanceID.NotFound" => failure.hint("`evenkeel host ls` lists the hosts"),
        "VolumeInUse" => failure.hint("`evenkeel volume detach` first"),
        "AuthFailure" | "SignatureDoesNotMatch" => failure
            .hint("keys or region are another server's: --data-dir and --region name this one's"),
        _ => failure,
    }
}

/// Returns a unique name for one request: no other request of this machine has it, and one of
/// another machine only if it is made in the same nanosecond under the same process id.
pub(crate) fn invocation() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let ns = clock::since_1970().as_nanos();
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    format!("{ns:x}-{:x}-{number:x}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(authority: &str) -> Client {
        let keys = Keys {
            access_key_id: "AKIAEXAMPLE".to_owned(),
            secret_access_key: "secret".to_owned(),
        };
        Client::new(&format!("http://{authority}"), "local-1", keys).unwrap()
    }

    #[test]
    fn without_a_server_the_next_step_is_told() {
        // Bound and dropped, on an address that no other test binds: no server listens there.
        let listener = std::net::TcpListener::bind("127.0.0.11:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let failure = client(&address.to_string()).call("DescribeVolumes", &[]).unwrap_err();
        assert_eq!(
            failure.to_string(),
            format!("error: no server at {address}\n hint: start one with `evenkeel serve`")
        );
    }

    #[test]
    fn a_connection_that_ends_without_an_answer_leaves_the_result_unknown() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            io::Read::read_exact(&mut stream, &mut [0; 16]).unwrap();
        });
        let failure = client(&address.to_string()).call("CreateVolume", &[]).unwrap_err();
        served.join().unwrap();
        assert_eq!(
            failure.to_string(),
            format!(
                "error: {address} ended the connection before it answered: it is not known whether \
                 the request was executed\n hint: look at what is there before you repeat it"
            )
        );
    }

    #[test]
    fn a_path_without_a_signature_is_asked_over_tls_too() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca-cert.pem");
        let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        std::fs::write(&ca, text).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        let first = std::thread::spawn(move || {
            let mut first = [0];
            io::Read::read_exact(&mut listener.accept().unwrap().0, &mut first).unwrap();
            first[0]
        });
        let keys = client("127.0.0.1:1").keys;
        let client = Client::trusting(Some(&ca), &endpoint, "local-1", keys).unwrap();
        client.get_unsigned("/healthz").unwrap_err();
        // The type of a record of TLS with a handshake.
        assert_eq!(first.join().unwrap(), 0x16);
    }

    #[test]
    fn an_error_document_becomes_a_failure() {
        let text = "<Response><Errors><Error><Code>InvalidVolume.NotFound</Code>\
                    <Message>The volume \
                    'vol-1' does not exist.</Message></Error></Errors><RequestID>r</RequestID>\
                    </Response>";
        let failure = client("127.0.0.1:1").read("DeleteVolume", 400, text).unwrap_err();
        assert_eq!(failure.exit, Exit::NotFound);
        assert_eq!(
            failure.to_string(),
            "error: The volume 'vol-1' does not exist. (InvalidVolume.NotFound)\n \
             hint: `evenkeel volume ls` lists the volumes"
        );
    }

    #[test]
    fn an_answer_that_is_not_ours_is_told_apart() {
        let failure = client("127.0.0.1:1").read("DeleteVolume", 404, "not found").unwrap_err();
        let text = "127.0.0.1:1 answered DeleteVolume with status 404 and no EC2 document: ";
        assert_eq!(failure.message, format!("{text}not found"));
        let cut = client("127.0.0.1:1").read("DeleteVolume", 502, "<html>").unwrap_err();
        assert!(cut.message.contains("status 502 and no EC2 document: "), "{cut}");
    }

    #[test]
    fn codes_become_exit_codes() {
        for (code, exit) in [
            ("InvalidVolume.NotFound", Exit::NotFound),
            ("InsufficientVolumeCapacity", Exit::Refused),
            ("VolumeLimitExceeded", Exit::Refused),
            ("AttachmentLimitExceeded", Exit::Refused),
            ("InvalidParameterValue", Exit::Usage),
            ("InvalidParameterCombination", Exit::Usage),
            ("MissingParameter", Exit::Usage),
            ("UnknownVolumeType", Exit::Usage),
            ("InvalidInstanceType", Exit::Usage),
            ("InvalidVolumeID.Malformed", Exit::Usage),
            ("IncorrectState", Exit::Failed),
            ("VolumeInUse", Exit::Failed),
            ("InternalError", Exit::Failed),
        ] {
            assert_eq!(refusal(code, "").exit, exit, "{code}");
        }
    }

    #[test]
    fn endpoints_are_http_and_have_no_path() {
        assert_eq!(parts("http://127.0.0.1:8650").unwrap(), ("http", "127.0.0.1:8650"));
        assert_eq!(parts("https://[::1]:8650/").unwrap(), ("https", "[::1]:8650"));
        for endpoint in ["ftp://a:1", "a:1", "http://", "http://a/b", "https://u@a", "http://a b"] {
            assert_eq!(
                parts(endpoint).unwrap_err().message,
                format!("endpoint {endpoint}: expected http://HOST:PORT or https://HOST:PORT")
            );
        }
    }

    #[test]
    fn the_host_is_told_without_its_port() {
        for (authority, host) in
            [("127.0.0.1:8650", "127.0.0.1"), ("[::1]:8650", "[::1]"), ("[::1]", "[::1]")]
        {
            assert_eq!(client(authority).host(), host);
        }
        assert_eq!(client("store.example").host(), "store.example");
    }

    #[test]
    fn a_wait_ends() {
        let failure = client("127.0.0.1:1")
            .wait("vol-1 to be available", Duration::ZERO, |_| Ok(None::<()>))
            .unwrap_err();
        assert_eq!(failure.exit, Exit::Timeout);
        assert_eq!(failure.message, "vol-1 to be available: not within 0 s");
    }
}
