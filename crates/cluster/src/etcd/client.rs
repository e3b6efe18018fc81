//! A blocking client of etcd's JSON gateway (`POST /v3/…`).
//!
//! It asks one endpoint after the other, each for a bounded time, until one answers or the caller's
//! time limit ends. So a request may reach etcd more than once, and **every request must be one
//! that may be repeated**: a read, or a transaction whose conditions hold only once.
//!
//! A user's password becomes a token, which is renewed when etcd no longer knows it.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_os::clock;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::gateway::Refusal;

/// Maximum number of endpoints.
pub const ENDPOINTS_MAX: usize = 16;
/// Maximum time that one endpoint may take to answer.
pub const ATTEMPT_MAX: Duration = Duration::from_millis(1_500);
/// Pause after a round in which no endpoint answered.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum of bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Maximum of bytes of one message of a stream.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// Address and user of an etcd.
#[derive(Clone, Default)]
pub struct Options {
    /// `http://HOST:PORT` or `https://HOST:PORT`; at least one.
    pub endpoints: Vec<String>,
    /// User and password, if etcd asks for them.
    pub user: Option<(String, String)>,
    /// For `https`.
    pub tls: Option<TlsFiles>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("Options")
            .field("endpoints", &self.endpoints)
            .field("user", &user)
            .field("tls", &self.tls)
            .finish()
    }
}

/// Files in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificates that etcd's are signed with.
    pub authorities: PathBuf,
    /// This client's certificate and key, if etcd asks for one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EtcdError {
    /// The configuration cannot be used.
    Options(String),
    /// This etcd does not have the data of this cluster. The request was not carried out.
    OtherCluster(String),
    /// No endpoint has answered.
    Unavailable {
        /// The answer or error of each endpoint, and the operator's next step.
        text: String,
        /// Whether etcd may have got the request.
        may_be_done: bool,
    },
    /// etcd has refused the request.
    Refused {
        /// gRPC's code.
        code: u64,
        /// etcd's message, and the operator's next step.
        text: String,
        /// Whether etcd may have carried out the request in an earlier attempt.
        may_be_done: bool,
    },
}

impl EtcdError {
    /// Returns whether etcd may have carried out the request.
    #[must_use]
    pub const fn may_be_done(&self) -> bool {
        match self {
            Self::Options(_) | Self::OtherCluster(_) => false,
            Self::Unavailable { may_be_done, .. } | Self::Refused { may_be_done, .. } => {
                *may_be_done
            }
        }
    }

    /// Returns whether etcd's quota is used up.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Refused { code: RESOURCE_EXHAUSTED, text, .. }
            if text.contains(NO_SPACE))
    }

    /// Returns whether the requested revision is compacted.
    #[must_use]
    pub fn is_compacted(&self) -> bool {
        // A future revision has the same code.
        matches!(self, Self::Refused { code: OUT_OF_RANGE, text, .. }
            if text.contains("has been compacted"))
    }

    /// Returns whether the lease does not exist.
    #[must_use]
    pub fn is_no_lease(&self) -> bool {
        // The gateway uses the same code for an unknown path.
        matches!(self, Self::Refused { code: NOT_FOUND, text, .. } if text.contains("lease"))
    }

    /// Returns whether a stream's refusal means that the lease does not exist.
    pub(super) fn is_no_lease_of(refusal: &Refusal) -> bool {
        refusal.code == NOT_FOUND
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(text)
            | Self::OtherCluster(text)
            | Self::Unavailable { text, .. }
            | Self::Refused { text, .. } => f.write_str(text),
        }
    }
}

impl std::error::Error for EtcdError {}

const NO_SPACE: &str = "database space exceeded";
/// Codes of gRPC.
const DEADLINE_EXCEEDED: u64 = 4;
const NOT_FOUND: u64 = 5;
const PERMISSION_DENIED: u64 = 7;
const RESOURCE_EXHAUSTED: u64 = 8;
const FAILED_PRECONDITION: u64 = 9;
const OUT_OF_RANGE: u64 = 11;
const INTERNAL: u64 = 13;
const UNAVAILABLE: u64 = 14;
const UNAUTHENTICATED: u64 = 16;

/// An endpoint's answer and the time that it took, or the reason why there is none.
pub type Answered<T> = Result<(T, Duration), String>;

/// Limits of the time of one endpoint.
#[derive(Clone, Copy)]
struct Times {
    /// Maximum time until the answer begins.
    first: Duration,
    /// Maximum time until the answer is complete.
    whole: Duration,
}

impl Times {
    const fn of(whole: Duration) -> Self {
        Self { first: whole, whole }
    }
}

/// Result of a request to one endpoint.
enum Attempt {
    /// It was not reached, so it has not got the request.
    NotSent(String),
    /// It may have got the request.
    Unknown(String),
    /// It has no leader now, or is overloaded; it may have passed the request on.
    NotNow(String),
    /// It does not know the token.
    Token(String),
    /// It has refused the request, and would again.
    Refused(u64, String),
}

/// A client; clones share it.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    user: Option<(String, String)>,
    /// The endpoint that is asked first: the one that answered last.
    first: AtomicUsize,
    token: Mutex<Option<String>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("endpoints", &self.0.endpoints).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client. Does not connect yet.
    ///
    /// # Errors
    /// [`EtcdError::Options`].
    pub fn new(options: &Options) -> Result<Self, EtcdError> {
        let bad = |text: String| Err(EtcdError::Options(text));
        if options.endpoints.is_empty() || options.endpoints.len() > ENDPOINTS_MAX {
            let count = options.endpoints.len();
            return bad(format!(
                "etcd: {count} endpoints; name 1 to {ENDPOINTS_MAX} as http://HOST:PORT"
            ));
        }
        let mut endpoints = Vec::new();
        for endpoint in &options.endpoints {
            endpoints.push(checked(endpoint, options.tls.is_some())?);
        }
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // A proxy in the environment does not apply to these servers.
            .proxy(None)
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")));
        if let Some(files) = &options.tls {
            config = config.tls_config(tls(files)?);
        }
        let agent = config.build().new_agent();
        let first = AtomicUsize::new(0);
        let token = Mutex::new(None);
        let user = options.user.clone();
        Ok(Self(Arc::new(Inner { agent, endpoints, user, first, token })))
    }

    /// Sends the request until an endpoint answers or `patience` ends. Asks each endpoint at least
    /// once, unless one refuses the request.
    ///
    /// # Errors
    /// [`EtcdError::Unavailable`], [`EtcdError::Refused`].
    pub fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
        patience: Duration,
    ) -> Result<T, EtcdError> {
        self.call_within(path, request, ATTEMPT_MAX, patience)
    }

    /// Sends the request as [`Self::call`] does; each endpoint may take as long as `attempt_max`.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub fn call_within<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
        attempt_max: Duration,
        patience: Duration,
    ) -> Result<T, EtcdError> {
        let body = request.to_string();
        self.each(patience, |endpoint| self.read(endpoint, path, &body, Times::of(attempt_max)))
    }

    /// Opens a stream of messages, one on each line. It ends after `longest`, even if messages
    /// come.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub fn stream(
        &self,
        path: &str,
        request: &Value,
        longest: Duration,
        patience: Duration,
    ) -> Result<impl BufRead + use<>, EtcdError> {
        let body = request.to_string();
        let times = Times { first: ATTEMPT_MAX, whole: longest };
        self.each(patience, |endpoint| {
            let answer = self.ask(endpoint, path, &body, times)?;
            Ok(BufReader::new(answer.into_body().into_reader()))
        })
    }

    /// Asks each endpoint once, one after the other, each for at most `attempt_max`.
    pub fn ask_each<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
        attempt_max: Duration,
    ) -> Vec<(String, Answered<T>)> {
        let body = request.to_string();
        let ask = |endpoint: &String| {
            let sent = clock::since_boot();
            let answer = self.read(endpoint, path, &body, Times::of(attempt_max));
            let took = clock::since_boot().saturating_sub(sent);
            let answer = match answer {
                Ok(answer) => Ok((answer, took)),
                Err(Attempt::Refused(code, text)) => {
                    Err(format!("{text}{}", next_step(code, &text)))
                }
                Err(
                    Attempt::NotSent(text)
                    | Attempt::Unknown(text)
                    | Attempt::NotNow(text)
                    | Attempt::Token(text),
                ) => Err(text),
            };
            (endpoint.clone(), answer)
        };
        self.0.endpoints.iter().map(ask).collect()
    }

    /// Sends a request to an endpoint and reads its answer.
    fn read<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &str,
        times: Times,
    ) -> Result<T, Attempt> {
        let text = self
            .ask(endpoint, path, body, times)?
            .into_body()
            .into_with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| Attempt::Unknown(reason(&error)))?;
        serde_json::from_slice(&text)
            .map_err(|error| Attempt::Unknown(format!("not an answer of etcd: {error}")))
    }

    /// Makes the next request begin with another endpoint.
    pub fn turn_away(&self) {
        self.0.first.fetch_add(1, Ordering::Relaxed);
    }

    fn each<T>(
        &self,
        patience: Duration,
        ask: impl Fn(&str) -> Result<T, Attempt>,
    ) -> Result<T, EtcdError> {
        let deadline = clock::since_boot() + patience;
        let mut said = vec![None; self.0.endpoints.len()];
        let mut may_be_done = false;
        let mut has_new_token = false;
        for attempt in 0.. {
            let index = self.0.first.load(Ordering::Relaxed) % said.len();
            let endpoint = &self.0.endpoints[index];
            let reason = match ask(endpoint) {
                Ok(answer) => return Ok(answer),
                Err(Attempt::Token(_)) if !has_new_token => {
                    has_new_token = true;
                    self.forget_token();
                    continue;
                }
                Err(Attempt::NotSent(reason)) => reason,
                Err(Attempt::Unknown(reason) | Attempt::NotNow(reason)) => {
                    may_be_done = true;
                    reason
                }
                Err(Attempt::Token(text)) => {
                    let code = UNAUTHENTICATED;
                    let text = format!("etcd at {endpoint}: {text}");
                    return Err(EtcdError::Refused { code, text, may_be_done });
                }
                Err(Attempt::Refused(code, text)) => {
                    let text = format!("etcd at {endpoint}: {text}{}", next_step(code, &text));
                    return Err(EtcdError::Refused { code, text, may_be_done });
                }
            };
            said[index] = Some(reason);
            // Moves to the next endpoint, unless another thread has moved meanwhile.
            let next = index + 1;
            let first = &self.0.first;
            let same = |now: usize| (now % said.len() == index).then_some(next);
            let _ = first.fetch_update(Ordering::Relaxed, Ordering::Relaxed, same);
            let is_round_over = (attempt + 1) % said.len() == 0;
            if is_round_over {
                if clock::since_boot() >= deadline {
                    break;
                }
                clock::pause(PAUSE);
                has_new_token = false;
            }
        }
        Err(EtcdError::Unavailable { text: self.silence(&said, patience), may_be_done })
    }

    /// Returns the message of a request that no endpoint has answered.
    fn silence(&self, said: &[Option<String>], patience: Duration) -> String {
        let each = self.0.endpoints.iter().zip(said).map(|(endpoint, said)| {
            format!("{endpoint}: {}", said.as_deref().unwrap_or("not asked"))
        });
        let each = each.collect::<Vec<_>>().join("; ");
        let seconds = patience.as_secs_f32();
        format!(
            "etcd has not answered within {seconds} s ({each}); see that a majority of its members \
             runs and can be reached: etcdctl endpoint status"
        )
    }

    fn forget_token(&self) {
        *self.0.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the user's token. Requests one if there is none yet.
    fn token(&self, endpoint: &str) -> Result<Option<String>, Attempt> {
        let Some((name, password)) = &self.0.user else { return Ok(None) };
        let mut token = self.0.token.lock().unwrap_or_else(PoisonError::into_inner);
        if token.is_none() {
            #[derive(Deserialize)]
            struct Answer {
                token: String,
            }
            let body = json!({ "name": name, "password": password }).to_string();
            let answer =
                self.post(endpoint, "auth/authenticate", &body, Times::of(ATTEMPT_MAX), None);
            let answer = answer.map_err(|attempt| match attempt {
                // A request for a token does not carry out the caller's request.
                Attempt::Unknown(text) | Attempt::NotNow(text) => Attempt::NotSent(text),
                other => other,
            })?;
            let answer: Answer = answer
                .into_body()
                .into_with_config()
                .read_to_vec()
                .map_err(|error| Attempt::NotSent(reason(&error)))
                .and_then(|text| {
                    serde_json::from_slice(&text)
                        .map_err(|error| Attempt::NotSent(format!("no token: {error}")))
                })?;
            *token = Some(answer.token);
        }
        Ok(token.clone())
    }

    fn ask(
        &self,
        endpoint: &str,
        path: &str,
        body: &str,
        times: Times,
    ) -> Result<ureq::http::Response<ureq::Body>, Attempt> {
        let token = self.token(endpoint)?;
        self.post(endpoint, path, body, times, token.as_deref())
    }

    fn post(
        &self,
        endpoint: &str,
        path: &str,
        body: &str,
        times: Times,
        token: Option<&str>,
    ) -> Result<ureq::http::Response<ureq::Body>, Attempt> {
        let mut request = self
            .0
            .agent
            .post(format!("{endpoint}/v3/{path}"))
            .config()
            .timeout_connect(Some(ATTEMPT_MAX))
            .timeout_recv_response(Some(times.first))
            .timeout_global(Some(times.whole))
            .build()
            .header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let answer = request.send(body).map_err(|error| {
            if is_unsent(&error) {
                Attempt::NotSent(reason(&error))
            } else {
                Attempt::Unknown(reason(&error))
            }
        })?;
        let status = answer.status().as_u16();
        if status == 200 {
            return Ok(answer);
        }
        let text = answer.into_body().into_with_config().limit(64 << 10).read_to_string();
        Err(judged(status, &text.unwrap_or_default()))
    }
}

/// Returns the endpoint without trailing slashes, or an error if it is invalid.
fn checked(endpoint: &str, has_tls: bool) -> Result<String, EtcdError> {
    let bad = |why: &str| {
        let form = "name it as http://HOST:PORT or https://HOST:PORT";
        Err(EtcdError::Options(format!("etcd's endpoint '{endpoint}': {why}; {form}")))
    };
    let (scheme, authority) = match endpoint.split_once("://") {
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest.trim_end_matches('/')),
        _ => return bad("the scheme is neither http nor https"),
    };
    if authority.is_empty() || authority.contains(['/', '?', '#', '@', ' ']) {
        return bad("there is more or less than a host and a port");
    }
    match (scheme, has_tls) {
        ("https", false) => bad("https needs the file of certificates that etcd's is signed with"),
        ("http", true) => bad("certificates are named, and http does not use them"),
        _ => Ok(format!("{scheme}://{authority}")),
    }
}

fn tls(files: &TlsFiles) -> Result<TlsConfig, EtcdError> {
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| EtcdError::Options(format!("{}: {error}", path.display())))
    };
    let certificates = |path: &Path| -> Result<Vec<Certificate<'static>>, EtcdError> {
        let all = parse_pem(&read(path)?)
            .filter_map(|item| match item {
                Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
                _ => None,
            })
            .collect::<Vec<_>>();
        if all.is_empty() {
            let text = format!("{}: no certificate in PEM form", path.display());
            Err(EtcdError::Options(text))
        } else {
            Ok(all)
        }
    };
    let own = match &files.own {
        None => None,
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let key = PrivateKey::from_pem(&read(key)?).map_err(|error| {
                EtcdError::Options(format!("{}: no key in PEM form: {error}", key.display()))
            })?;
            Some(ClientCert::new_with_certs(&chain, key))
        }
    };
    let roots = RootCerts::Specific(Arc::new(certificates(&files.authorities)?));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .client_cert(own)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Returns whether the endpoint cannot have received the request.
fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(io) => io.kind() == std::io::ErrorKind::ConnectionRefused,
        ureq::Error::Timeout(timeout) => {
            matches!(timeout, ureq::Timeout::Resolve | ureq::Timeout::Connect)
        }
        ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::BadUri(_)
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::TlsRequired => true,
        _ => false,
    }
}

fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        other => other.to_string(),
    }
}

/// Interprets an answer that is not a success. Pure.
fn judged(status: u16, text: &str) -> Attempt {
    let Ok(Refusal { code, message }) = serde_json::from_str::<Refusal>(text) else {
        return Attempt::Unknown(format!("status {status}, and not an answer of etcd"));
    };
    let message = if message.is_empty() {
        format!("status {status} and code {code}, without a reason")
    } else {
        message
    };
    match code {
        UNAUTHENTICATED => Attempt::Token(message),
        _ if message.contains("revision of auth store is old") => Attempt::Token(message),
        UNAVAILABLE | DEADLINE_EXCEEDED | INTERNAL => Attempt::NotNow(message),
        RESOURCE_EXHAUSTED if message.contains("too many requests") => Attempt::NotNow(message),
        _ => Attempt::Refused(code, message),
    }
}

/// Returns the operator's next step after a refusal. Pure.
fn next_step(code: u64, text: &str) -> &'static str {
    match code {
        PERMISSION_DENIED => "; grant the user's role read and write on this prefix",
        FAILED_PRECONDITION if text.contains("authentication is not enabled") => {
            "; leave the user out, or run: etcdctl auth enable"
        }
        RESOURCE_EXHAUSTED if text.contains(NO_SPACE) => {
            "; compact and defragment etcd, or raise --quota-backend-bytes, and then run: etcdctl \
             alarm disarm"
        }
        _ if text.contains("user name is empty") => "; name a user and its password",
        _ if text.contains("invalid user ID or password") => "; check the user and its password",
        _ if text.contains("request is too large") => "; start it with more --max-request-bytes",
        _ if text.contains("too many operations") => "; start it with more --max-txn-ops",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_endpoint_is_named_in_the_error() {
        let client = |endpoint: &str| {
            let endpoints = vec![endpoint.to_owned()];
            Client::new(&Options { endpoints, ..Options::default() }).map_err(|e| e.to_string())
        };
        for (endpoint, part) in [
            ("a:2379", "neither http nor https"),
            ("http://", "a host and a port"),
            ("http://a:1/b", "a host and a port"),
            ("http://u:p@a:1", "a host and a port"),
            ("https://a:1", "https needs the file"),
        ] {
            let text = client(endpoint).unwrap_err();
            assert!(text.contains(part) && text.contains(endpoint), "{text}");
        }
        assert!(client("http://a:1/").is_ok());
        let none = Client::new(&Options::default()).unwrap_err().to_string();
        assert!(none.contains("0 endpoints"), "{none}");
        let absent = Options {
            endpoints: vec!["https://a:1".into()],
            tls: Some(TlsFiles { authorities: "/no/such".into(), own: None }),
            user: None,
        };
        let text = Client::new(&absent).unwrap_err().to_string();
        assert!(text.starts_with("/no/such: "), "{text}");
    }

    #[test]
    fn a_password_is_not_shown() {
        let user = Some(("u".to_owned(), "secret".to_owned()));
        let options = Options { user, ..Options::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn call_without_an_answer_names_endpoints_and_a_next_step() {
        // Port 1 of loopback refuses connections at once, so no request can have been carried out.
        let endpoints = vec!["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()];
        let client = Client::new(&Options { endpoints, ..Options::default() }).unwrap();
        let error = client.call::<Value>("kv/range", &json!({}), Duration::ZERO).unwrap_err();
        let text = error.to_string();
        assert!(!error.may_be_done(), "{text}");
        for part in ["127.0.0.1:1: ", "127.0.0.1:2: ", "refused", "etcdctl endpoint status"] {
            assert!(text.contains(part), "{text}");
        }
    }

    /// Returns a refusal as versions 3.4, 3.5, 3.6 and 3.7 write it.
    fn bodies(code: u64, message: &str) -> [String; 4] {
        [
            format!(r#"{{"error":"{message}","message":"{message}","code":{code}}}"#),
            format!(r#"{{"error":"{message}","code":{code},"message":"{message}"}}"#),
            format!(r#"{{"code":{code}, "message":"{message}"}}"#),
            format!(r#"{{"code":{code},"message":"{message}"}}"#),
        ]
    }

    /// Returns the client's error for an answer.
    fn refused(status: u16, body: &str) -> EtcdError {
        let Attempt::Refused(code, text) = judged(status, body) else { panic!("{body}") };
        let text = format!("etcd at http://a:1: {text}{}", next_step(code, &text));
        EtcdError::Refused { code, text, may_be_done: false }
    }

    #[test]
    fn refusals_of_every_etcd_version_are_classified() {
        for body in bodies(8, "etcdserver: mvcc: database space exceeded") {
            let error = refused(429, &body);
            assert!(error.is_no_space() && error.to_string().contains("alarm disarm"), "{error}");
        }
        for body in bodies(8, "etcdserver: too many requests") {
            assert!(matches!(judged(429, &body), Attempt::NotNow(_)), "{body}");
        }
        for body in bodies(14, "etcdserver: request timed out") {
            assert!(matches!(judged(503, &body), Attempt::NotNow(_)), "{body}");
        }
        for body in bodies(16, "etcdserver: invalid auth token") {
            assert!(matches!(judged(401, &body), Attempt::Token(_)), "{body}");
        }
        for body in bodies(3, "etcdserver: revision of auth store is old") {
            assert!(matches!(judged(400, &body), Attempt::Token(_)), "{body}");
        }
        for body in bodies(5, "etcdserver: requested lease not found") {
            assert!(refused(404, &body).is_no_lease(), "{body}");
        }
        for body in bodies(11, "etcdserver: mvcc: required revision has been compacted") {
            assert!(refused(400, &body).is_compacted(), "{body}");
        }
        for body in bodies(11, "etcdserver: mvcc: required revision is a future revision") {
            assert!(!refused(400, &body).is_compacted(), "{body}");
        }
        for body in bodies(9, "etcdserver: authentication is not enabled") {
            let error = refused(400, &body).to_string();
            assert!(error.contains("etcdctl auth enable"), "{error}");
        }
    }

    #[test]
    fn replies_that_are_not_of_etcd_are_named_by_their_status() {
        for body in ["<html>", "Not Found\n", "{}"] {
            let Attempt::Unknown(text) = judged(502, body) else { panic!("{body}") };
            assert!(text.contains("502"), "{text}");
        }
        let unnamed = refused(400, r#"{"code":3}"#);
        assert!(unnamed.to_string().contains("status 400 and code 3"), "{unnamed}");
        let unknown_path = refused(404, r#"{"code":5,"message":"Not Found"}"#);
        assert!(!unknown_path.is_no_lease());
    }
}
