//! Posts events to webhooks, by HTTP, or by HTTPS with the certificates that this machine trusts.

use crate::private_file;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_telemetry::events::webhook::{Post, Secret, WEBHOOKS_MAX, Webhooks};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::runtime::Builder;

/// Maximum time to connect to a receiver.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Maximum time until a receiver answers.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Time after [`ANSWER_MAX`] in which the thread of a connection reports that. A receiver that
/// keeps the thread busy delays it.
const LATE_MAX: Duration = Duration::from_secs(2);
/// Maximum number of bytes of an answer that are read; its contents are ignored.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The header with the number of an event.
const SEQUENCE: &str = "x-evenkeel-sequence";
/// The header with the signature of a post.
const SIGNATURE: &str = "x-evenkeel-signature";
/// Minimum size in bytes of the secret that posts are signed with.
const SECRET_BYTES_MIN: usize = 16;
/// Maximum size of that secret.
const SECRET_BYTES_MAX: usize = 1_024;
/// The flag that names a webhook.
const FLAG: &str = "--events-webhook";

/// The webhooks that the flags name. Messages do not show URLs, which may have secrets.
pub fn webhooks(urls: &[String], secret_file: Option<&Path>) -> Result<Webhooks, Failure> {
    let usage = |message: String| Failure::new(message).exit(Exit::Usage);
    if urls.len() > WEBHOOKS_MAX {
        let message = format!("events-webhook: {} URLs; at most {WEBHOOKS_MAX}", urls.len());
        return Err(usage(message));
    }
    for (place, url) in urls.iter().enumerate() {
        let parsed = Url::parse(url).ok();
        let is_http = |url: &Url| ["http", "https"].contains(&url.scheme()) && url.has_host();
        if !parsed.as_ref().is_some_and(is_http) {
            let expected = "expected http://HOST[:PORT][/PATH], or https://";
            return Err(usage(format!("events-webhook: URL {}: {expected}", place + 1)));
        }
        if urls.iter().take(place).any(|other| other == url) {
            return Err(usage(format!("events-webhook: URL {} is named twice", place + 1)));
        }
    }
    let read = |path: &Path| {
        let least = SECRET_BYTES_MIN;
        let most = SECRET_BYTES_MAX;
        private_file::read("events-webhook-secret-file", path, least, most).map(Secret::new)
    };
    let secret = secret_file.map(read).transpose()?;
    Ok(Webhooks { urls: urls.to_vec(), secret, connect: Some(connect) })
}

/// Logs a warning if the command line has the URL of a webhook with more than a host in it.
pub fn warn_of_arguments(arguments: impl IntoIterator<Item = OsString>, urls: &[String]) {
    let is_flag = |argument: &OsString| {
        let argument = argument.to_string_lossy();
        argument == FLAG || argument.starts_with(&format!("{FLAG}="))
    };
    let may_be_secret = |url: &String| {
        Url::parse(url).is_ok_and(|url| {
            url.path() != "/" || url.query().is_some() || !url.username().is_empty()
        })
    };
    if arguments.into_iter().any(|argument| is_flag(&argument)) && urls.iter().any(may_be_secret) {
        tracing::warn!(
            "every user of this machine can read the URL of {FLAG} in the list of processes; if \
             it has a secret, use the variable EVENKEEL_EVENTS_WEBHOOK or the configuration file"
        );
    }
}

/// A client for one webhook.
struct Http {
    url: Url,
    secret: Option<Secret>,
    /// `None` after a post that left the connections in an unknown state.
    connections: Option<Connections>,
}

/// The connections to a receiver, on a thread of their own. A receiver may keep that thread busy;
/// the thread that posts gives it up then.
struct Connections {
    client: Client,
    requests: Sender<RequestBuilder>,
    answers: Receiver<Answered>,
}

/// The status of an answer, and whether its body was read to the end.
type Answered = reqwest::Result<(StatusCode, bool)>;

fn connect(url: &str, secret: Option<&Secret>) -> Result<Box<dyn Post>, String> {
    // Needed once per process; later calls fail, which is harmless.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    let connections = Some(Connections::new()?);
    Ok(Box::new(Http { url, secret: secret.cloned(), connections }))
}

impl Connections {
    /// Starts the thread, which ends after the post in progress when this value is dropped, and
    /// closes the connections.
    fn new() -> Result<Self, String> {
        // The timeout is checked after each turn of a connection.
        let runtime = Builder::new_current_thread().event_interval(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let client = Client::builder()
            .connect_timeout(CONNECT_MAX)
            .timeout(ANSWER_MAX)
            .redirect(Policy::none())
            // A proxy in the environment is not meant for this.
            .no_proxy()
            .user_agent(concat!("evenkeel/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| error.to_string())?;
        let (requests, arriving) = channel::<RequestBuilder>();
        let (done, answers) = channel();
        let run = move || {
            for request in arriving {
                if done.send(runtime.block_on(answer(request))).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("webhook-http".into()).spawn(run);
        thread.map_err(|error| error.to_string())?;
        Ok(Self { client, requests, answers })
    }

    /// Sends a request. Returns `None` if its end does not come in time.
    fn send(&self, request: RequestBuilder) -> Option<Answered> {
        self.requests.send(request).ok()?;
        self.answers.recv_timeout(ANSWER_MAX + LATE_MAX).ok()
    }
}

/// Sends a request, and reads its answer to the end, so that the connection can be used again. A
/// longer answer than the maximum is not read.
async fn answer(request: RequestBuilder) -> Answered {
    let mut answer = request.send().await?;
    let mut left = ANSWER_BYTES_MAX;
    while let Some(part) = answer.chunk().await? {
        let Some(rest) = left.checked_sub(part.len()) else {
            return Ok((answer.status(), false));
        };
        left = rest;
    }
    Ok((answer.status(), true))
}

impl Post for Http {
    fn post(&mut self, sequence: u64, event: &str) -> Result<(), String> {
        let connections = match self.connections.take() {
            Some(connections) => connections,
            None => Connections::new()?,
        };
        let request = connections
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(SEQUENCE, sequence)
            .body(event.to_owned());
        let request = match &self.secret {
            Some(secret) => request.header(SIGNATURE, secret.sign(sequence, event)),
            None => request,
        };
        let answered = connections.send(request);
        if matches!(answered, Some(Ok((_, true)))) {
            self.connections = Some(connections);
        }
        match answered {
            Some(Ok((status, _))) if status.is_success() => Ok(()),
            Some(Ok((status, _))) => Err(format!("it answered with status {status}")),
            // Without the URL, which may be secret.
            Some(Err(error)) => Err(reason(&error.without_url())),
            None => {
                let seconds = ANSWER_MAX.as_secs();
                Err(format!("it sends data, and has not answered within {seconds} s"))
            }
        }
    }
}

/// An error with its causes.
fn reason(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_before_the_start() {
        let check = |urls: &[&str]| {
            let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
            webhooks(&urls, None).map(|it| it.urls.len()).map_err(|failure| failure.message)
        };
        assert_eq!(check(&["http://127.0.0.1:1/a", "https://b.example/?t=1"]), Ok(2));
        for url in ["ftp://a", "a:1", "http://", "/a"] {
            let text = "expected http://HOST[:PORT][/PATH], or https://";
            assert_eq!(check(&[url]), Err(format!("events-webhook: URL 1: {text}")));
        }
        assert!(check(&["http://a", "http://a"]).unwrap_err().contains("named twice"));
        assert!(check(&["http://a"; 5]).unwrap_err().contains("5 URLs; at most 4"));
    }
}
