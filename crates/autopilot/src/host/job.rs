//! Programs of the host. A program that exceeds its time continues in the background: a kernel
//! that executes a request for it could not be interrupted, and the next observation finds it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use evenkeel_os::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::Fault;

/// Folders of system programs that a service's `PATH` may lack.
const MORE_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin";
/// Bytes of a program's output that are kept.
const OUTPUT_BYTES_MAX: u64 = 64 << 10;

/// A program that was started.
#[derive(Debug)]
pub(super) struct Job {
    /// Its command line.
    pub command: String,
    child: Child,
    pidfd: OwnedFd,
    output: File,
    errors: File,
}

/// The end of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    /// Its exit code; `None` after a signal.
    pub status: Option<i32>,
    /// Its standard output.
    pub printed: String,
    /// Its standard error in one line.
    pub said: String,
}

impl Job {
    /// Starts a program, in a cgroup if there is one. Its standard input is a lock, or empty.
    pub fn start(
        program: &str,
        words: &[&OsStr],
        cgroup: Option<&Path>,
        lock: Option<File>,
    ) -> Result<Self, Fault> {
        let mut command = if let Some(cgroup) = cgroup {
            // The shell enters the cgroup before the program's first request.
            let mut command = Command::new("sh");
            let enter = "echo $$ > \"$1\" && shift && exec \"$@\"";
            command.args(["-c", enter, "sh"]).arg(cgroup.join("cgroup.procs")).arg(program);
            command
        } else {
            Command::new(program)
        };
        let line =
            [program.into()].into_iter().chain(words.iter().map(|word| word.to_string_lossy()));
        let line = line.collect::<Vec<_>>().join(" ");
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                Fault::Refused(format!("{program} is not installed: install {}", package(program)))
            }
            _ => Fault::Later(format!("{line}: {error}")),
        };
        let output = memory("output").map_err(failed)?;
        let errors = memory("errors").map_err(failed)?;
        let path = std::env::var("PATH").unwrap_or_default();
        command.args(words).env("PATH", format!("{path}:{MORE_FOLDERS}")).env("LC_ALL", "C");
        // A signal for the agent's group, as of a terminal, does not reach the program.
        command.process_group(0).stdin(lock.map_or_else(Stdio::null, Stdio::from));
        command.stdout(output.try_clone().map_err(failed)?);
        command.stderr(errors.try_clone().map_err(failed)?);
        let child = command.spawn().map_err(failed)?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let pidfd = pidfd.map_err(|error| failed(error.into()))?;
        Ok(Self { command: line, child, pidfd, output, errors })
    }

    /// Waits for the program's end, at most this long.
    pub fn wait(&mut self, longest: Duration) -> Option<Ended> {
        let deadline = clock::now() + longest;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(self.ended(status));
            }
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return None;
            }
            let timeout = Timespec::try_from(left).ok();
            let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
            // An interrupted poll only repeats the loop.
            let _ = poll(&mut watched, timeout.as_ref());
        }
    }

    fn ended(&mut self, status: ExitStatus) -> Ended {
        let said = text(&mut self.errors);
        let lines: Vec<&str> =
            said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let mut said = lines.join("; ");
        if let Some(signal) = status.signal() {
            said = format!("signal {signal}; {said}");
        }
        Ended { status: status.code(), printed: text(&mut self.output), said }
    }
}

/// Runs a program that changes nothing to its end.
pub(super) fn run_short(
    program: &str,
    words: &[&OsStr],
    longest: Duration,
) -> Result<Ended, Fault> {
    let mut job = Job::start(program, words, None, None)?;
    job.wait(longest).ok_or_else(|| {
        let _ = job.child.kill();
        Fault::Later(format!("{} has not ended within {longest:?}", job.command))
    })
}

fn memory(name: &str) -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // What cannot be read is left out: it is only shown.
    if file.rewind().is_ok() {
        let _ = file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn package(program: &str) -> &'static str {
    match program {
        "btrfs" => "btrfs-progs",
        "xfs_growfs" => "xfsprogs",
        "resize2fs" => "e2fsprogs",
        "losetup" => "mount",
        _ => "util-linux",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_returns_status_and_both_outputs() {
        let script = "echo out; echo ' why'; echo bad >&2; echo; exit 3";
        let mut job = Job::start("sh", &["-c".as_ref(), script.as_ref()], None, None).unwrap();
        let ended = job.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(ended.status, Some(3));
        assert_eq!(ended.printed, "out\n why\n\n");
        assert_eq!(ended.said, "bad");
    }

    #[test]
    fn job_that_exceeds_its_time_continues() {
        let mut job = Job::start("sleep", &["1000".as_ref()], None, None).unwrap();
        assert_eq!(job.wait(Duration::ZERO), None);
        assert_eq!(job.wait(Duration::ZERO), None);
        job.child.kill().unwrap();
        let ended = job.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(ended.status, None);
        assert_eq!(ended.said, "signal 9; ");
    }

    #[test]
    fn program_that_is_absent_is_refused_with_its_package() {
        let Err(Fault::Refused(text)) = Job::start("no-such-program", &[], None, None) else {
            panic!()
        };
        assert_eq!(text, "no-such-program is not installed: install util-linux");
    }
}
