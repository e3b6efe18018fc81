//! The id of an instance of AWS, as its metadata service says.

use evenkeel_client::output::{Exit, Failure};
use std::time::Duration;

/// The variable with another address of the service, which other programs of AWS read, too.
const VARIABLE: &str = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
/// The address of the service.
const USUAL: &str = "http://169.254.169.254";
/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 4 << 10;

/// Returns the id of this instance, by version 2 of the service.
pub fn of_metadata() -> Result<String, Failure> {
    let endpoint = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    let endpoint = endpoint.unwrap_or_else(|| USUAL.to_owned());
    let endpoint = endpoint.trim_end_matches('/');
    let failed = |error: ureq::Error| {
        Failure::new(format!("the metadata service at {endpoint}: {error}"))
            .exit(Exit::NotFound)
            .hint("if this is no instance of AWS, name it with --instance-id")
    };
    let config = ureq::Agent::config_builder().timeout_global(Some(ANSWER_MAX)).proxy(None);
    let agent = config.build().new_agent();
    let token = agent
        .put(format!("{endpoint}/latest/api/token"))
        .header("X-aws-ec2-metadata-token-ttl-seconds", "60")
        .send_empty()
        .and_then(|mut answer| {
            answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string()
        })
        .map_err(failed)?;
    let id = agent
        .get(format!("{endpoint}/latest/meta-data/instance-id"))
        .header("X-aws-ec2-metadata-token", token.trim())
        .call()
        .and_then(|mut answer| {
            answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string()
        })
        .map_err(failed)?;
    let id = id.trim().to_owned();
    if id.starts_with("i-") {
        return Ok(id);
    }
    Err(Failure::new(format!(
        "the metadata service at {endpoint} says {id:?}, which is no instance"
    ))
    .hint("name this instance with --instance-id"))
}
