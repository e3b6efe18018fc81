//! The flags of `evenkeel plan aws`.

use super::{FleetPolicy, RiskMax};
use clap::{Args, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct PlanAws {
    /// The volumes that are meant, such as vol-0123456789abcdef0. [default: all of the region]
    #[arg(value_name = "VOLUME", value_parser = volume)]
    pub volumes: Vec<String>,

    /// Profile of the AWS CLI. [default: its own choice, by AWS_PROFILE]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,

    /// Days of metrics: CloudWatch keeps minutes for 15 days, and five minutes for 63.
    #[arg(long, value_name = "DAYS", default_value_t = 14)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=63))]
    pub days: u32,

    /// Seconds of a step of the metrics: 60 or 300. [default: 60 for up to 100 volumes, 300 for
    /// more]
    #[arg(long, value_name = "S", value_parser = step)]
    pub step: Option<u32>,

    /// Endpoint of another server with the APIs of EC2 and CloudWatch. [default: that of AWS]
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub endpoint_url: Option<String>,

    /// A new or empty folder for the list of volumes and their metrics, or that of a run with the
    /// same flags that failed within the last day: it is continued. [default: a new one in the
    /// working folder, named after the time]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,

    /// Print the policy of IAM that is needed, and end.
    #[arg(long)]
    pub print_policy: bool,

    #[command(flatten)]
    pub policy: FleetPolicy,

    /// The most volumes to list as text; CSV and JSON have all.
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub top: u32,

    /// Write the commands of all changes, with their way back, to a file; nothing is executed.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub commands: Option<PathBuf>,

    /// The highest risk of a change whose command is not a comment.
    #[arg(long, value_enum, value_name = "RISK", default_value_t = RiskMax::Medium)]
    pub risk_max: RiskMax,
}

fn volume(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("vol-").unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(text.to_owned())
    } else {
        Err("expected the id of a volume, such as vol-0123456789abcdef0".to_owned())
    }
}

fn step(text: &str) -> Result<u32, String> {
    match text {
        "60" => Ok(60),
        "300" => Ok(300),
        _ => Err("expected 60 or 300: the steps that CloudWatch keeps for weeks".to_owned()),
    }
}
