//! Child processes: each is waited for with a deadline, and killed when dropped.

use std::fs;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use crate::{LabError, cancel};
use evenkeel_os::clock::{self, Deadline};
use evenkeel_sim::text;

/// Longest run of a program that ends by itself. Generous: it exists to end a hang.
const PROGRAM_MAX: Duration = Duration::from_secs(600);
/// Time between two polls of a kernel table, which has no event to wait for.
pub const LOOK: Duration = Duration::from_millis(20);
/// Time between two checks whether the process is asked to stop.
const STOP_LOOK: Duration = Duration::from_millis(200);
/// Bytes that are kept of a program's standard error: its end, where the reason for a failure is.
const STDERR_BYTES_MAX: usize = 16 << 10;

/// Longest wait until the reader of a pipe notices that its program has ended.
const READER_WAIT: Duration = Duration::from_secs(2);

/// A running program. Dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
    pidfd: OwnedFd,
    stderr: Option<mpsc::Receiver<String>>,
    status: Option<ExitStatus>,
}

impl Guarded {
    /// Starts a program with an empty standard input. The end of its standard error is kept.
    /// Standard output goes where the command says.
    ///
    /// # Errors
    /// [`LabError::ToolMissing`] if there is no such program; `package` is the package that holds
    /// it.
    pub fn spawn(command: &mut Command, package: &'static str) -> Result<Self, LabError> {
        let tool = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => LabError::ToolMissing { tool: tool.clone(), package },
            _ => LabError::io("cannot start", tool.clone())(error),
        })?;
        let stderr = child.stderr.take().map(|pipe| apart(move || tail(pipe)));
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { child, pidfd, stderr, status: None }),
            Err(error) => {
                // Without a pidfd there is no wait with a deadline, so the program must not
                // continue.
                let _ = child.kill();
                let _ = child.wait();
                Err(LabError::io("cannot watch", tool)(error.into()))
            }
        }
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the program's standard output, once, if the command has piped it.
    pub fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits until the program ends or the deadline passes (`None`).
    pub fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            if let Some(status) = self.status {
                return Some(status);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                self.status = Some(status);
                return self.status;
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

    /// Asks the program to end (SIGTERM), and kills it if it has not ended within `grace`.
    pub fn stop(&mut self, grace: Duration) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if self.wait_until(clock::now() + grace).is_none() {
            self.kill();
        }
    }

    /// Kills the program and its descendants, and waits until the program has ended.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            // Descendants would otherwise continue, or wait for their parent forever. The stopped
            // program cannot start more of them in the meantime.
            let _ = pidfd_send_signal(&self.pidfd, Signal::STOP);
            let family = descendants(Pid::from_child(&self.child));
            let _ = self.child.kill();
            for process in family {
                let _ = kill_process(process, Signal::KILL);
            }
            self.status = self.child.wait().ok();
        }
    }

    /// Returns the end of the program's standard error. Call it after the program has ended.
    pub fn stderr(&mut self) -> String {
        self.kill();
        self.stderr.take().map(|reader| result_of(&reader)).unwrap_or_default()
    }

    /// Waits until the program ends, or the process is asked to stop; `what` describes it.
    ///
    /// # Errors
    /// If it takes longer than `longest`, or the process is asked to stop.
    pub fn wait_to_end(
        &mut self,
        longest: Duration,
        what: impl FnOnce() -> String,
    ) -> Result<ExitStatus, LabError> {
        let deadline = clock::now() + longest;
        loop {
            if let Some(status) = self.wait_until(deadline.min(clock::now() + STOP_LOOK)) {
                return Ok(status);
            }
            cancel::go_on()?;
            if clock::now() >= deadline {
                return Err(LabError::Deadline { what: what(), after: longest });
            }
        }
    }

    /// Polls until a started server is ready. `tool` is its name, `command` its command line, and
    /// `more` returns its messages beside those on standard error.
    ///
    /// # Errors
    /// If the server ends, is not ready within `longest`, or the process is asked to stop.
    pub fn wait_until_ready(
        &mut self,
        (tool, command): (&str, String),
        longest: Duration,
        mut is_ready: impl FnMut() -> bool,
        more: impl FnOnce() -> String,
    ) -> Result<(), LabError> {
        let deadline = clock::now() + longest;
        while !is_ready() {
            cancel::go_on()?;
            if self.wait_until(clock::now() + LOOK).is_some() {
                return Err(LabError::ToolFailed {
                    tool: tool.to_owned(),
                    how: "it ended when it should have begun".to_owned(),
                    said: format!("{}\n{}", self.stderr(), more()).trim().to_owned(),
                    command,
                });
            }
            if clock::now() > deadline {
                let what = format!("the start of {tool}");
                return Err(LabError::Deadline { what, after: longest });
            }
        }
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Polls until a condition holds; `what` names it.
///
/// # Errors
/// If it does not hold within `after`.
pub fn wait_until(
    what: &str,
    after: Duration,
    mut has_come: impl FnMut() -> bool,
) -> Result<(), LabError> {
    wait_for(what, after, LOOK, || Ok(has_come().then_some(())))
}

/// Polls every `look` until `found` returns a value, which `what` names.
///
/// # Errors
/// Those of `found`, or if it returns no value within `after`.
pub fn wait_for<T>(
    what: &str,
    after: Duration,
    look: Duration,
    mut found: impl FnMut() -> Result<Option<T>, LabError>,
) -> Result<T, LabError> {
    let deadline = Deadline::after(after);
    loop {
        if let Some(value) = found()? {
            return Ok(value);
        }
        if deadline.left().is_zero() {
            return Err(LabError::Deadline { what: what.to_owned(), after });
        }
        clock::pause(look);
    }
}

/// Runs a program to its end, unless the process is asked to stop before. Returns the end of its
/// output.
///
/// # Errors
/// If the program is missing, fails or hangs, or the process is asked to stop.
pub fn run_to_end(command: &mut Command, package: &'static str) -> Result<String, LabError> {
    run_within(PROGRAM_MAX, command, package)
}

/// Runs a program as [`run_to_end`] does, for at most `longest`.
pub fn run_within(
    longest: Duration,
    command: &mut Command,
    package: &'static str,
) -> Result<String, LabError> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let mut child = Guarded::spawn(command.stdout(Stdio::piped()), package)?;
    let printed = child.take_stdout().map(|pipe| apart(move || tail(pipe)));
    let status = child.wait_to_end(longest, || words.join(" "))?;
    if status.success() {
        return Ok(printed.map(|printed| result_of(&printed)).unwrap_or_default());
    }
    Err(LabError::ToolFailed {
        tool: words[0].clone(),
        how: status.to_string(),
        said: child.stderr(),
        command: text::command_line(&words),
    })
}

/// Returns the path of a program: in a folder of the `PATH`, or in one of `more`, where
/// distributions have programs that are not started by hand.
pub fn find(tool: &str, more: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).chain(more).collect();
    folders.into_iter().map(|folder| folder.join(tool)).find(|program| program.is_file())
}

/// Returns the child processes of a process that have not been reaped, as far as the kernel lists
/// them.
#[must_use]
pub fn children(process: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let text = lists.collect::<String>();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Returns the children of a process, their children, and so on.
fn descendants(process: Pid) -> Vec<Pid> {
    let mut found = children(process);
    let mut looked_at = 0;
    while let Some(next) = found.get(looked_at).copied() {
        looked_at += 1;
        found.extend(children(next));
    }
    found
}

/// Returns the processes for which a predicate on their folder in `/proc` is true.
pub fn processes(is_one: impl Fn(&Path) -> bool) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of_entry = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        is_one(&entry.path()).then_some(pid)
    };
    entries.filter_map(of_entry).collect()
}

/// Runs a reader of a pipe on a thread of its own; its result can be waited for with [`result_of`].
pub fn apart(read: impl FnOnce() -> String + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || sender.send(read()));
    receiver
}

/// Returns the result of a pipe's reader, once its program has ended. If a child of the program
/// holds the pipe open, the reader does not end: after a short wait the result is empty.
pub fn result_of(reader: &mpsc::Receiver<String>) -> String {
    reader.recv_timeout(READER_WAIT).unwrap_or_default()
}

/// Reads to the end, keeping the last bytes only.
pub fn tail(mut pipe: impl Read) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut chunk = [0_u8; 4_096];
    loop {
        match pipe.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                kept.extend_from_slice(&chunk[..count]);
                let excess = kept.len().saturating_sub(STDERR_BYTES_MAX);
                kept.drain(..excess);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&kept).trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn shell(script: &str) -> Guarded {
        Guarded::spawn(Command::new("sh").args(["-c", script]), "dash").unwrap()
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = Guarded::spawn(&mut Command::new("no-such-program-here"), "nbdkit");
        let text = error.expect_err("there is no such program").to_string();
        assert!(text.contains("apt-get install nbdkit"), "{text}");
    }

    #[test]
    fn an_end_is_seen_with_its_status_and_words() {
        let mut child = shell("echo why >&2; exit 3");
        let status = child.wait_until(clock::now() + Duration::from_secs(60)).expect("it ends");
        assert_eq!(status.code(), Some(3));
        assert_eq!(child.stderr(), "why");
    }

    #[test]
    fn a_deadline_returns_and_drop_kills() {
        let mut child = shell("exec sleep 1000");
        assert_eq!(child.wait_until(clock::now()), None);
        let proc = format!("/proc/{}", child.id());
        assert!(std::path::Path::new(&proc).exists());
        drop(child);
        assert!(!std::path::Path::new(&proc).exists());
    }

    /// Jobs of a load are processes of their own, and wait for output of the first one.
    #[test]
    fn descendants_of_a_program_are_killed_with_it() {
        let child = shell("sh -c 'sleep 1000 & exec sleep 1000' & sleep 1000; true");
        let own = Pid::from_child(&child.child);
        wait_until("all are there", Duration::from_secs(60), || {
            let is_asleep = |pid: &Pid| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
            };
            descendants(own).iter().filter(|pid| is_asleep(pid)).count() == 3
        })
        .unwrap();
        let family = descendants(own);
        drop(child);
        // Their new parent may not have reaped them yet.
        let is_gone = |pid: &Pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(')').is_none_or(|(_, after)| after.starts_with(" Z"))
        };
        let all_gone = || family.iter().all(is_gone);
        wait_until("none is left", Duration::from_secs(60), all_gone).unwrap();
    }

    #[test]
    fn a_program_that_ignores_sigterm_is_killed() {
        // An ignored signal stays ignored in the program that the shell turns into.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; exec sleep 1000"]).stdout(Stdio::piped());
        let mut child = Guarded::spawn(&mut command, "dash").unwrap();
        let mut ready = [0_u8; 6];
        child.take_stdout().unwrap().read_exact(&mut ready).unwrap();
        child.stop(Duration::from_millis(20));
        let status = child.wait_until(clock::now()).expect("it is gone");
        assert_eq!(status.signal(), Some(9));
    }

    #[test]
    fn long_stderr_is_cut_to_its_end() {
        let long = [b'x'; 3 * STDERR_BYTES_MAX];
        assert_eq!(tail(&long[..]).len(), STDERR_BYTES_MAX);
    }
}
