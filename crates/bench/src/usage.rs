//! CPU time and memory of a process, from the kernel's counters.

use std::fs;

use evenkeel_lab::LabError;

/// Returns the CPU seconds (user and system, all threads, living and ended) that a process has used
/// since its start. The kernel counts in ticks of usually 10 ms.
///
/// # Errors
/// When there is no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64, LabError> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).map_err(LabError::io("cannot read", path))?;
    let ticks = cpu_ticks(&stat).ok_or_else(|| LabError::BadOutput {
        tool: "/proc/<pid>/stat",
        what: format!("no fields 14 and 15 in {stat:?}"),
    })?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the CPU seconds of this process's descendants that have ended.
///
/// # Errors
/// When the kernel does not report them.
pub fn children_cpu_seconds() -> Result<f64, LabError> {
    let path = "/proc/self/stat";
    let stat = fs::read_to_string(path).map_err(LabError::io("cannot read", path))?;
    let ticks = ticks_from(&stat, CUTIME).ok_or_else(|| LabError::BadOutput {
        tool: "/proc/self/stat",
        what: format!("no fields 16 and 17 in {stat:?}"),
    })?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the bytes of memory that a process uses now.
///
/// # Errors
/// When there is no such process.
pub fn resident_bytes(pid: u32) -> Result<u64, LabError> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).map_err(LabError::io("cannot read", path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| LabError::BadOutput {
        tool: "/proc/<pid>/status",
        what: format!("no VmRSS in {status:?}"),
    })
}

/// Positions of `utime` and of `cutime` after the name; `stime` and `cstime` follow them. They are
/// fields 14 to 17.
const UTIME: usize = 11;
const CUTIME: usize = 13;

fn cpu_ticks(stat: &str) -> Option<u64> {
    ticks_from(stat, UTIME)
}

/// Returns the sum of two fields that follow each other. The second field, the name, may contain
/// spaces and brackets, so the fields are counted from the last bracket.
fn ticks_from(stat: &str, field: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(field);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "42 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20 0 1 0 99";
        assert_eq!((cpu_ticks(stat), ticks_from(stat, CUTIME)), (Some(281), Some(0)));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn cpu_time_and_memory_of_this_process_are_read() {
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
        assert!(cpu_seconds(u32::MAX).is_err());
        assert!(children_cpu_seconds().unwrap() >= 0.0);
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
        assert!(resident_bytes(u32::MAX).is_err());
    }
}
