//! CPU time and memory that a process has used, from the kernel's books.

use std::fs;

use crate::LabError;

/// CPU seconds (user and system, all threads, living and ended) a process has used since its start.
/// The kernel counts in ticks of usually 10 ms.
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

/// Bytes of memory that a process has in use now.
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

/// utime + stime: fields 14 and 15. The second field, the name, may itself hold spaces and
/// brackets, so the fields are counted from the last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let utime: u64 = fields.next()?.parse().ok()?;
    let stime: u64 = fields.next()?.parse().ok()?;
    Some(utime + stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "42 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20 0 1 0 99";
        assert_eq!(cpu_ticks(stat), Some(281));
        assert_eq!(cpu_ticks("42 (a) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn this_process_has_books() {
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
        assert!(cpu_seconds(u32::MAX).is_err());
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
        assert!(resident_bytes(u32::MAX).is_err());
    }
}
