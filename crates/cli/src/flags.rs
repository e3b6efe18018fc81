//! Flags and their values that are not of one verb alone.

use clap::{Args, ValueEnum, ValueHint};
use evenkeel_client::output::Format;
use evenkeel_engine::IoMode;
use evenkeel_engine::priority::Priority;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How the server talks to disks and sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Io {
    /// io_uring if the kernel allows it, otherwise plain system calls.
    Auto,
    /// io_uring, one ring per core.
    Uring,
    /// Plain system calls on threads.
    Pread,
}

impl Io {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Pread => "pread",
        }
    }
}

impl From<Io> for IoMode {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Uring,
            Io::Pread => Self::Pread,
        }
    }
}

/// The priority of the data plane's threads for processor time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum DataPlanePriority {
    /// The first of `real-time`, `nice` and `none` that the kernel allows.
    Auto,
    /// The policy SCHED_RR at priority 1.
    RealTime,
    /// The nice value -15.
    Nice,
    /// The priority of the process.
    None,
}

impl From<DataPlanePriority> for Priority {
    fn from(priority: DataPlanePriority) -> Self {
        match priority {
            DataPlanePriority::Auto => Self::Auto,
            DataPlanePriority::RealTime => Self::RealTime,
            DataPlanePriority::Nice => Self::Nice,
            DataPlanePriority::None => Self::None,
        }
    }
}

/// The default data folder of verbs.
pub const DATA_DIR: &str = "./evenkeel-data";

/// The data folder of the Debian package's service.
const SERVICE_DATA_DIR: &str = "/var/lib/evenkeel";

/// How a verb finds the server and signs its requests.
#[derive(Args, Clone, Debug)]
pub struct Connection {
    /// Address of the server's API. [default: that of the server on the data folder, or
    /// http://127.0.0.1:8650]
    #[arg(long, global = true, env = "EVENKEEL_ENDPOINT", value_name = "URL")]
    #[arg(help_heading = "Connection")]
    pub endpoint: Option<String>,

    /// The certificates of the authority, in PEM form, by which the server's certificate is checked
    /// at https://. [default: those that the server on the data folder names]
    #[arg(long, global = true, env = "EVENKEEL_CA", value_name = "FILE")]
    #[arg(help_heading = "Connection", value_hint = ValueHint::FilePath)]
    pub ca: Option<PathBuf>,

    /// The server's data folder, for its credentials; if the default one does not exist, that of
    /// the Debian package, /var/lib/evenkeel. Without credentials, AWS_ACCESS_KEY_ID and
    /// AWS_SECRET_ACCESS_KEY are used.
    #[arg(long, global = true, env = "EVENKEEL_DATA_DIR", value_name = "DIR")]
    #[arg(default_value = DATA_DIR, help_heading = "Connection")]
    #[arg(value_hint = ValueHint::DirPath)]
    pub data_dir: PathBuf,

    /// The server's region; requests are signed for it. [default: that of the server on the data
    /// folder, or local-1]
    #[arg(long, global = true, env = "EVENKEEL_REGION", value_name = "NAME")]
    #[arg(help_heading = "Connection")]
    pub region: Option<String>,
}

impl Connection {
    /// Returns the data folder to read: if the default one does not exist, that of the service.
    pub fn data_folder(&self) -> &Path {
        folder_to_read(&self.data_dir, Path::is_dir)
    }
}

fn folder_to_read(named: &Path, is_there: impl Fn(&Path) -> bool) -> &Path {
    let service = Path::new(SERVICE_DATA_DIR);
    let is_service = named == Path::new(DATA_DIR) && !is_there(named) && is_there(service);
    if is_service { service } else { named }
}

/// The form in which results are printed.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Form of the output.
    #[arg(
        short = 'o',
        long = "output",
        global = true,
        env = "EVENKEEL_OUTPUT",
        value_name = "FORMAT"
    )]
    #[arg(default_value = "text")]
    pub format: Format,
}

/// Parses a span of time in whole seconds.
///
/// # Errors
/// If it is not a whole number with a known unit.
pub fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds_per_unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        unit => return Err(format!("unit {unit} is not s, m, h or d")),
    };
    if let Some(ahead) = text.strip_prefix('-') {
        return Err(format!("{text} is negative; name a time ahead, such as {ahead}"));
    }
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err("expected a whole number, then s, m, h or d".to_owned());
    }
    let too_large = |_| format!("{digits} is too large; the maximum is {}", u32::MAX);
    let number: u32 = digits.parse().map_err(too_large)?;
    Ok(Duration::from_secs(u64::from(number) * seconds_per_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_that_is_no_time_ahead_is_refused_for_its_reason() {
        assert_eq!(span("6h"), Ok(Duration::from_hours(6)));
        for (text, reason) in [
            ("-6h", "-6h is negative; name a time ahead, such as 6h"),
            ("99999999999h", "99999999999 is too large; the maximum is 4294967295"),
            ("h", "expected a whole number"),
            ("1.5h", "expected a whole number"),
            ("6w", "unit w is not"),
        ] {
            let refused = span(text).unwrap_err();
            assert!(refused.starts_with(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn the_folder_of_the_service_stands_in_for_a_missing_default_only() {
        let [usual, service, other] = [DATA_DIR, SERVICE_DATA_DIR, "./data"].map(Path::new);
        let on = |there: &[&Path], named| folder_to_read(named, |path| there.contains(&path));
        assert_eq!(on(&[service], usual), service);
        assert_eq!(on(&[usual, service], usual), usual);
        assert_eq!(on(&[service], other), other);
        assert_eq!(on(&[], usual), usual);
    }
}
