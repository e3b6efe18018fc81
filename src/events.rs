//! How events are posted to webhooks: by HTTP, or by HTTPS with the certificates that this machine
//! trusts.

use crate::message::{Exit, Failure};
use evenkeel_control::events::webhook::{Post, WEBHOOKS_MAX, Webhooks};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long a receiver may take to be reached.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long it may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read: nothing in it is looked at.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// The header with the number of an event.
const SEQUENCE: &str = "x-evenkeel-sequence";

/// The webhooks that the flags name.
pub fn webhooks(urls: &[String]) -> Result<Webhooks, Failure> {
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
            return Err(usage(format!("events-webhook {url}: {expected}")));
        }
        if urls.iter().take(place).any(|other| other == url) {
            return Err(usage(format!("events-webhook {url}: named twice")));
        }
    }
    Ok(Webhooks { urls: urls.to_vec(), connect: Some(connect) })
}

/// A client for one webhook.
struct Http {
    runtime: Runtime,
    client: Client,
    url: Url,
}

fn connect(url: &str) -> Result<Box<dyn Post>, String> {
    // Once for the process; it fails where that has been done.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = Url::parse(url).map_err(|error| error.to_string())?;
    Ok(Box::new(Http::to(url)?))
}

impl Http {
    fn to(url: Url) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
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
        Ok(Self { runtime, client, url })
    }

    /// Closes all connections. The runtime closes them only while it runs, which may be much later.
    fn close(&mut self) {
        match Self::to(self.url.clone()) {
            Ok(new) => *self = new,
            Err(error) => tracing::debug!(error, "a webhook's connections stay open"),
        }
    }
}

impl Post for Http {
    fn post(&mut self, sequence: u64, event: &str) -> Result<(), String> {
        let request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(SEQUENCE, sequence)
            .body(event.to_owned());
        let answer = self.runtime.block_on(async {
            let mut answer = request.send().await?;
            // Read to its end, so that the connection can be used again. A longer answer is not
            // read, and its connection is closed.
            let mut left = ANSWER_BYTES_MAX;
            while let Some(part) = answer.chunk().await? {
                let Some(rest) = left.checked_sub(part.len()) else {
                    return Ok((answer.status(), true));
                };
                left = rest;
            }
            reqwest::Result::Ok((answer.status(), false))
        });
        if !matches!(answer, Ok((_, false))) {
            self.close();
        }
        match answer {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((status, _)) => Err(format!("it answered with status {status}")),
            // Without the URL, which may be secret.
            Err(error) => Err(reason(&error.without_url())),
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
            webhooks(&urls).map(|it| it.urls.len()).map_err(|failure| failure.message)
        };
        assert_eq!(check(&["http://127.0.0.1:1/a", "https://b.example/?t=1"]), Ok(2));
        for url in ["ftp://a", "a:1", "http://", "/a"] {
            let text = "expected http://HOST[:PORT][/PATH], or https://";
            assert_eq!(check(&[url]), Err(format!("events-webhook {url}: {text}")));
        }
        assert!(check(&["http://a", "http://a"]).unwrap_err().contains("named twice"));
        assert!(check(&["http://a"; 5]).unwrap_err().contains("5 URLs; at most 4"));
    }
}
