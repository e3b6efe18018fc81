//! Runs the AWS CLI, which has the user's credentials in every form: keys, profiles, single
//! sign-on, roles. Time and output of each call are bounded.
//!
//! `evenkeel plan aws` and the agent use it.

use evenkeel_client::output::{Exit, Failure};
use evenkeel_lab::LabError;
use evenkeel_lab::child::Guarded;
use evenkeel_os::clock;
use evenkeel_planner::format::plain;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The program, on the path.
const PROGRAM: &str = "aws";
/// Wait for the end of a program that has closed its output.
const END_MAX: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// The most characters of the program's message that an error repeats.
const SAID_CHARS_MAX: usize = 600;
/// The start of an error of the API, after which its code, the call and the reason follow.
const ERROR_START: &str = "An error occurred (";
/// The text before a word of thousands of characters that only AWS decodes.
const ENCODED_START: &str = "Encoded authorization failure message:";
/// Settings of the program, unless the user has set them: throttled calls are repeated at a rate
/// that falls.
const RETRIES: [(&str, &str); 2] = [("AWS_RETRY_MODE", "adaptive"), ("AWS_MAX_ATTEMPTS", "6")];

/// The AWS CLI with the flags of all calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Aws {
    /// The profile; `None` leaves it to the program.
    pub profile: Option<String>,
    /// The region; `None` leaves it to the program.
    pub region: Option<String>,
    /// The endpoint of a server with the same API; `None` for that of AWS.
    pub endpoint_url: Option<String>,
    /// The longest time of a call, with all its pages and retries.
    pub call_max: Duration,
}

impl Aws {
    /// Returns the JSON that a call prints.
    ///
    /// # Errors
    /// If the program is missing, fails, prints too much or does not end.
    pub fn call(&self, words: &[&str]) -> Result<Vec<u8>, Failure> {
        let mut command = Command::new(PROGRAM);
        command.args(words).args(["--output", "json"]);
        let flags = [
            ("--profile", self.profile.as_deref()),
            ("--region", self.region.as_deref()),
            ("--endpoint-url", self.endpoint_url.as_deref()),
        ];
        for (flag, value) in flags {
            command.args(value.map(|value| [flag, value]).into_iter().flatten());
        }
        command.env("AWS_PAGER", "").env("AWS_CLI_AUTO_PROMPT", "off");
        for (name, value) in RETRIES {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let what = format!("aws {}", words.iter().take(2).copied().collect::<Vec<_>>().join(" "));
        run(&mut command, &what, ANSWER_BYTES_MAX, self.call_max)
    }
}

/// Returns the standard output of a program that succeeds.
fn run(
    command: &mut Command,
    what: &str,
    bytes_max: u64,
    longest: Duration,
) -> Result<Vec<u8>, Failure> {
    let mut child =
        Guarded::spawn(command.stdout(Stdio::piped()), "awscli").map_err(not_started)?;
    let output = child.take_stdout().expect("invariant: it is piped");
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(bytes_max + 1).read_to_end(&mut bytes);
        // Without a receiver the call has failed.
        let _ = sender.send(read.map(|_| bytes));
    });
    let printed: io::Result<Vec<u8>> = match receiver.recv_timeout(longest) {
        Ok(printed) => printed,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            let message = format!("{what} did not end within {} s", longest.as_secs());
            return Err(Failure::new(message)
                .exit(Exit::Timeout)
                .hint("look whether the endpoint can be reached, or ask for fewer --days"));
        }
    };
    let printed = printed.map_err(|error| Failure::new(format!("{what}: {error}")))?;
    if printed.len() as u64 > bytes_max {
        let message = format!("{what} printed more than {} MiB", bytes_max >> 20);
        return Err(Failure::new(message).hint("name some volumes, or ask for fewer --days"));
    }
    match child.wait_until(clock::now() + END_MAX) {
        Some(status) if status.success() => Ok(printed),
        Some(status) => Err(failed(what, &status.to_string(), &child.stderr())),
        None => Err(Failure::new(format!("{what} closed its output and did not end"))),
    }
}

fn not_started(error: LabError) -> Failure {
    match error {
        LabError::ToolMissing { .. } => {
            Failure::new("the AWS CLI is not installed: no program `aws` is on the path").hint(
                "install it (https://aws.amazon.com/cli), or export the files elsewhere and use \
             `evenkeel plan fleet`: docs/reference/fleet.md",
            )
        }
        other => Failure::new(other.to_string()),
    }
}

/// Returns the lines of a text without characters that steer a terminal, in one line.
fn plain_lines(text: &str) -> String {
    let lines: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(plain).collect();
    lines.join(" ")
}

/// Returns the reason in what the program says, in one line: the beginning of an error of the API,
/// without its encoded message; otherwise the end.
fn reason_in(said: &str) -> String {
    let mut said = said.trim().to_owned();
    if let Some((before, after)) = said.split_once(ENCODED_START) {
        let after = after.trim_start();
        let encoded = after.find(char::is_whitespace).unwrap_or(after.len());
        said = format!("{}{}", before.trim_end(), &after[encoded..]);
    }
    if let Some(start) = said.find(ERROR_START) {
        return plain_lines(&said[start..]).chars().take(SAID_CHARS_MAX).collect();
    }
    let start = said.char_indices().rev().nth(SAID_CHARS_MAX).map_or(0, |(at, _)| at);
    plain_lines(&said[start..])
}

/// The error of a call that failed, with the next step for what the program says.
fn failed(what: &str, status: &str, said: &str) -> Failure {
    let said = reason_in(said);
    let reason = if said.is_empty() { status } else { &said };
    let message = format!("{what} failed: {reason}");
    let failure = Failure::new(message);
    match hint(&said) {
        Some((exit, hint)) => failure.exit(exit).hint(hint),
        None => failure,
    }
}

/// Returns the exit code and the next step for an error of the AWS CLI.
fn hint(said: &str) -> Option<(Exit, &'static str)> {
    let says = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    if says(&["AccessDenied", "UnauthorizedOperation", "not authorized"]) {
        return Some((
            Exit::Refused,
            "it needs the actions ec2:DescribeVolumes and cloudwatch:GetMetricData: `evenkeel plan \
             aws --print-policy` prints the policy",
        ));
    }
    if says(&["Unable to locate credentials", "NoCredentials", "Partial credentials"]) {
        return Some((
            Exit::Usage,
            "run `aws configure` or `aws sso login`, name a profile with --profile, or set \
             AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ));
    }
    if says(&["ExpiredToken", "RequestExpired", "has expired", "Token expired", "SSO session"]) {
        return Some((
            Exit::Refused,
            "the credentials have expired: run `aws sso login`, or get new ones",
        ));
    }
    if says(&["must specify a region"]) {
        return Some((Exit::Usage, "name the region with --region, such as --region eu-west-1"));
    }
    if says(&["config profile"]) {
        return Some((Exit::Usage, "`aws configure list-profiles` lists the profiles"));
    }
    if says(&["Throttling", "RequestLimitExceeded", "Rate exceeded", "LimitExceeded"]) {
        return Some((
            Exit::Refused,
            "AWS answers fewer requests a second: try again later, name some volumes, or ask for \
             fewer --days or --step 300",
        ));
    }
    if says(&["InvalidVolume"]) {
        return Some((Exit::NotFound, "look whether it is in this region: --region, --profile"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, bytes_max: u64, longest: Duration) -> Result<Vec<u8>, Failure> {
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), "aws ec2 describe-volumes", bytes_max, longest)
    }

    #[test]
    fn an_answer_is_bounded_in_bytes_and_in_time() {
        let long = Duration::from_secs(600);
        assert_eq!(shell("printf '{}'", 2, long).unwrap(), b"{}");
        let endless = shell("yes", 1 << 20, long).unwrap_err();
        assert!(endless.message.contains("printed more than 1 MiB"), "{}", endless.message);
        let hangs = shell("exec sleep 600", 8, Duration::from_millis(20)).unwrap_err();
        assert_eq!(hangs.exit, Exit::Timeout);
    }

    #[test]
    fn an_error_of_the_program_has_its_message_and_the_next_step() {
        let denied = "An error occurred (UnauthorizedOperation) when calling the DescribeVolumes \
                      operation: You are not authorized to perform this operation.";
        let script = format!("echo '{denied}' >&2; exit 254");
        let failure = shell(&script, 8, Duration::from_secs(600)).unwrap_err();
        assert_eq!(failure.exit, Exit::Refused);
        assert!(failure.message.contains("aws ec2 describe-volumes failed: An error occurred"));
        assert!(failure.hint.unwrap().contains("--print-policy"));
        for (said, exit, part) in [
            ("Unable to locate credentials. You can configure", Exit::Usage, "aws configure"),
            ("The SSO session associated with this profile has expired", Exit::Refused, "sso"),
            ("You must specify a region. You can also", Exit::Usage, "--region"),
            ("The config profile (x) could not be found", Exit::Usage, "list-profiles"),
            ("(Throttling) when calling the GetMetricData", Exit::Refused, "fewer"),
        ] {
            let failure = failed("aws", "exit status: 255", said);
            assert_eq!(failure.exit, exit, "{said}");
            assert!(failure.hint.unwrap().contains(part), "{said}");
        }
        let encoded = "CqaWKhVsKD9r".repeat(300);
        let denied = format!(
            "\naws: [ERROR]: An error occurred (UnauthorizedOperation) when calling the \
             CreateVolume operation: You are not authorized to perform this operation. User: \
             arn:aws:iam::123456789012:user/agent is not authorized to perform: \
             ec2:CreateVolume. Encoded authorization failure message: {encoded}\n"
        );
        assert_eq!(
            failed("aws ec2 create-volume", "exit status: 254", &denied).message,
            "aws ec2 create-volume failed: An error occurred (UnauthorizedOperation) when calling \
             the CreateVolume operation: You are not authorized to perform this operation. User: \
             arn:aws:iam::123456789012:user/agent is not authorized to perform: ec2:CreateVolume."
        );
        let long = format!("An error occurred (A) when: {}", "b".repeat(2 * SAID_CHARS_MAX));
        let message = failed("aws", "exit status: 254", &long).message;
        assert!(message.starts_with("aws failed: An error occurred (A) when: bbb"), "{message}");
        assert_eq!(message.chars().count(), "aws failed: ".len() + SAID_CHARS_MAX);
        let trace = format!("Traceback\n{}\nKeyError: x", "c\n".repeat(SAID_CHARS_MAX));
        let message = failed("aws", "exit status: 1", &trace).message;
        assert!(message.ends_with("c c KeyError: x"), "{message}");
        let failure = failed("aws", "exit status: 7", "");
        assert_eq!(failure.message, "aws failed: exit status: 7");
        assert_eq!(failure.hint, None);
    }
}
