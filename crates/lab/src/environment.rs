//! The machine and software of a measurement, for its reader: machine, kernel, versions, load.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine and the software of a measurement. Carries no host name: reports are meant to be
/// shared.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Environment {
    /// Evenkeel's version.
    pub evenkeel: String,
    /// The load generator's version, as it prints it.
    pub fio: String,
    /// Kernel name and release.
    pub kernel: String,
    /// The processor's name, if the kernel reports it.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: u64,
    /// Memory in bytes; 0 if the kernel does not report it.
    pub memory_bytes: u64,
}

impl Environment {
    /// Reads the properties of the system. Those that it does not report stay empty.
    #[must_use]
    pub fn read(fio: String) -> Self {
        let uname = rustix::system::uname();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            evenkeel: env!("CARGO_PKG_VERSION").to_string(),
            fio,
            kernel: format!(
                "{} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy()
            ),
            processor: field(&cpuinfo, "model name").unwrap_or_default().to_string(),
            processors: processors(),
            memory_bytes: memory_field(&meminfo, "MemTotal").unwrap_or(0),
        }
    }

    /// Returns the line above a table, with the time of the measurement, the machine and its
    /// software.
    #[must_use]
    pub fn heading(&self, measured_at: &str) -> String {
        let Self { evenkeel, fio, kernel, processors, .. } = self;
        format!("{measured_at} · {kernel} · {fio} · {processors} processors · evenkeel {evenkeel}")
    }
}

/// Returns the processors that this process may use; 1 if the system does not report them.
#[must_use]
pub fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

/// Returns the load average of the last minute, in hundredths; `None` if the kernel does not report
/// it.
#[must_use]
pub fn load_hundredths() -> Option<u64> {
    parse_load(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_load(loadavg: &str) -> Option<u64> {
    let (whole, hundredths) = loadavg.split_whitespace().next()?.split_once('.')?;
    Some(whole.parse::<u64>().ok()? * 100 + hundredths.parse::<u64>().ok()?)
}

/// Returns the memory that programs can still get, in bytes; `None` if the kernel does not report
/// it.
#[must_use]
pub fn available_memory_bytes() -> Option<u64> {
    memory_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Returns the value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

fn memory_field(meminfo: &str, name: &str) -> Option<u64> {
    let kib = field(meminfo, name)?.strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()? * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_files_are_understood() {
        assert_eq!(parse_load("12.34 1.00 0.50 1/200 777\n"), Some(1_234));
        assert_eq!(parse_load(""), None);
        let meminfo = "MemTotal:       24689664 kB\nMemFree: 1 kB\nMemAvailable: 7 kB\n";
        assert_eq!(memory_field(meminfo, "MemTotal"), Some(24_689_664 << 10));
        assert_eq!(memory_field(meminfo, "MemAvailable"), Some(7 << 10));
        assert_eq!(memory_field("nonsense", "MemTotal"), None);
        assert_eq!(
            field("processor\t: 0\nmodel name\t: Fast CPU\n", "model name"),
            Some("Fast CPU")
        );
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_processor() {
        let environment = Environment::read("fio-0".to_string());
        assert!(!environment.kernel.trim().is_empty());
        assert!(environment.processors >= 1);
    }
}
