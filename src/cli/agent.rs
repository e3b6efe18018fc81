//! The flags of `evenkeel agent`.

use super::{Connection, span};
use clap::{Args, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args, Debug)]
pub struct Agent {
    /// The policies (TOML): docs/operating/autopilot.md has each key.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present_any = ["print_policy", "print_rights"])]
    pub policy: Option<PathBuf>,

    /// The mount point of a file system on volumes; once for each.
    #[arg(long = "mount", value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[arg(required_unless_present_any = ["print_policy", "print_rights"])]
    pub mounts: Vec<PathBuf>,

    /// The folder of the agent: its journal, its audit and its recordings.
    #[arg(long = "agent-folder", env = "EVENKEEL_AGENT_FOLDER", value_name = "DIR")]
    #[arg(default_value = "/var/lib/evenkeel-agent", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,

    /// The volumes are those of AWS, or of another server with its API. The AWS CLI makes the
    /// calls.
    #[arg(long)]
    pub aws: bool,

    /// Profile of the AWS CLI. [default: its own choice, by AWS_PROFILE]
    #[arg(long, value_name = "NAME", requires = "aws")]
    pub profile: Option<String>,

    /// Endpoint of another server with the APIs of EC2 and CloudWatch. [default: that of AWS]
    #[arg(long, value_name = "URL", requires = "aws", value_hint = ValueHint::Url)]
    pub endpoint_url: Option<String>,

    /// This host in the API, such as i-0123456789abcdef0. [default: the server's own machine; with
    /// --aws, what the metadata service says]
    #[arg(long, value_name = "ID")]
    pub instance_id: Option<String>,

    /// Observe, decide and act once, and end.
    #[arg(long)]
    pub once: bool,

    /// Time between two ticks, such as 10s or 1m. [default: 10s; 30s with --aws]
    #[arg(long, value_name = "TIME", value_parser = every)]
    pub every: Option<Duration>,

    /// A device of a volume whose serial number is not the volume's id, as DEVICE=VOLUME; once for
    /// each.
    #[arg(long = "device", value_name = "DEVICE=VOLUME", value_parser = device)]
    pub devices: Vec<(PathBuf, String)>,

    /// Command that makes a device of an attached volume, and prints its path as the last line. It
    /// is started without a shell, within a minute; {volume} and {uri} are replaced.
    #[arg(long, value_name = "COMMAND", requires = "detach_command")]
    pub attach_command: Option<String>,

    /// Command that removes such a device before its volume is detached; {volume} and {device} are
    /// replaced.
    #[arg(long, value_name = "COMMAND", requires = "attach_command")]
    pub detach_command: Option<String>,

    /// Address of the metrics, on loopback, such as 127.0.0.1:9650. [default: none]
    #[arg(long, value_name = "ADDR", value_parser = loopback)]
    pub metrics_listen: Option<SocketAddr>,

    /// Print a file of policies with each key, and end: with --aws the default of each, otherwise
    /// with the values for volumes of an Evenkeel server.
    #[arg(long)]
    pub print_policy: bool,

    /// Print the policy of IAM that is needed with --aws, and end.
    #[arg(long)]
    pub print_rights: bool,

    #[command(flatten)]
    pub connection: Connection,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = span(text)?;
    match every.as_secs() {
        1..=3_600 => Ok(every),
        _ => Err("expected 1s to 1h".to_owned()),
    }
}

fn device(text: &str) -> Result<(PathBuf, String), String> {
    let expected = "expected a device and its volume, such as /dev/sdb=vol-0123456789abcdef0";
    let (device, volume) = text.split_once('=').ok_or(expected)?;
    let digits = volume.strip_prefix("vol-").ok_or(expected)?;
    let is_id = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id || !device.starts_with('/') {
        return Err(expected.to_owned());
    }
    Ok((PathBuf::from(device), volume.to_owned()))
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "expected an address with a port, such as 127.0.0.1:9650")?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err("the metrics need no password, so the address must be on loopback".to_owned())
}
