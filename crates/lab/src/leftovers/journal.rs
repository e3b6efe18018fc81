//! The journal of a stack: one line for each step, written before the step, after a first line that
//! names the owning process. A journal is only read if its folder belongs to this user and no other
//! user may write to it, since its lines say which mounts and servers are ended.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use evenkeel_os::files;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::LabError;

/// The journal's name in its folder.
const NAME: &str = "chain.journal";
/// Permissions in a folder's mode that let its group or others write.
const OTHERS_WRITE: u32 = 0o022;

/// A step that has to be undone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A FUSE mount at this path.
    Fuse(PathBuf),
    /// Loop devices of this file.
    Loop(PathBuf),
    /// A mount at this path.
    Mount(PathBuf),
    /// A server that works in this folder.
    Server(PathBuf),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fuse(path) => write!(f, "fuse {}", path.display()),
            Self::Loop(path) => write!(f, "loop {}", path.display()),
            Self::Mount(path) => write!(f, "mount {}", path.display()),
            Self::Server(path) => write!(f, "server {}", path.display()),
        }
    }
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
}

impl Journal {
    /// Begins a journal in a folder, with this process as its owner.
    ///
    /// # Errors
    /// If other users may write to the folder, or the journal cannot be written.
    pub fn begin(folder: &Path) -> Result<Self, LabError> {
        if !is_private(folder) {
            let others = io::Error::other("others own it, or may write to it");
            return Err(LabError::io("cannot keep a journal in", folder)(others));
        }
        let path = folder.join(NAME);
        let pid = std::process::id();
        let began = started(pid).ok().flatten().unwrap_or_default();
        let first = format!("process {pid} {began} {}\n", system());
        // Renamed into place when complete: a half-written line would name no owner.
        files::write_whole(&path, first.as_bytes()).map_err(LabError::io("cannot write", &path))?;
        Ok(Self { path })
    }

    /// Returns the journal that this process has begun in a folder.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        Self { path: folder.join(NAME) }
    }

    /// Appends a step that is about to be done.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn write(&self, step: &Step) -> Result<(), LabError> {
        let mut options = OpenOptions::new();
        let written = options.append(true).open(&self.path).and_then(|mut file| {
            file.write_all(format!("{step}\n").as_bytes())?;
            file.sync_data()
        });
        written.map_err(LabError::io("cannot write", &self.path))
    }
}

/// Returns the steps of a journal in order; `None` if there is no journal. A last line without its
/// end is ignored, as its step was not begun.
pub(super) fn read(folder: &Path) -> Option<Vec<Step>> {
    let text = text(folder)?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let step = |line: &str| match line.split_once(' ')? {
        ("fuse", path) => Some(Step::Fuse(path.into())),
        ("loop", path) => Some(Step::Loop(path.into())),
        ("mount", path) => Some(Step::Mount(path.into())),
        ("server", path) => Some(Step::Server(path.into())),
        _ => None,
    };
    Some(whole.lines().filter_map(step).collect())
}

/// Removes the journal of a folder.
pub(super) fn remove(folder: &Path) {
    if is_private(folder) {
        let _ = fs::remove_file(folder.join(NAME));
    }
}

/// Removes a folder and its contents, the journal last. So after a failure or a crash the folder is
/// found and removed again.
pub(super) fn remove_with_folder(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == NAME => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir_all(folder)
}

/// Returns the text of a folder's journal, if the folder is private.
fn text(folder: &Path) -> Option<String> {
    is_private(folder).then(|| fs::read_to_string(folder.join(NAME)).ok()).flatten()
}

/// Returns whether a folder belongs to this user, and no other user may write to it.
pub(super) fn is_private(folder: &Path) -> bool {
    let is_ours = |of: &fs::Metadata| of.is_dir() && of.uid() == geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|of| is_ours(&of) && of.mode() & OTHERS_WRITE == 0)
}

/// Returns whether a folder has a journal whose process has ended. A process with the same number
/// that began at another time is another process. Returns false for processes of another machine or
/// container, which are not visible here.
pub(super) fn is_orphan(folder: &Path) -> bool {
    let Some(text) = text(folder) else { return false };
    let mut words = text.lines().next().unwrap_or_default().split(' ').skip(1);
    let pid = words.next().and_then(|pid| pid.parse::<u32>().ok());
    let began = words.next().unwrap_or_default();
    let is_here = words.next().is_none_or(|told| told == system());
    let is_gone = |pid| started(pid).is_ok_and(|now| now.is_none_or(|now| now != began));
    is_here && pid.is_none_or(is_gone)
}

/// Returns the names of the machine and of the container, as far as they have any. A process number
/// has a meaning only within them.
fn system() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let numbers = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{}/{}", host.trim().replace(' ', "-"), numbers.display())
}

/// Replaces the owner in a folder's journal by a process that has ended.
#[cfg(test)]
pub(super) fn disown(folder: &Path) {
    let path = folder.join(NAME);
    let text = fs::read_to_string(&path).unwrap();
    let steps = text.split_once('\n').map_or("", |(_, steps)| steps);
    fs::write(&path, format!("process 4294967294 1\n{steps}")).unwrap();
}

/// Returns the time at which a process began, in kernel ticks. Returns `None` if there is no such
/// process, or if it has been killed and cannot exit: a thread that waits for a file which its own
/// process served exits only once that file is gone.
fn started(pid: u32) -> io::Result<Option<String>> {
    let stat = match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => return Ok(None),
        stat => stat?,
    };
    // Fields are counted from the last bracket of the name, as the name may contain any characters.
    let (_, after_name) = stat.rsplit_once(')').unwrap_or_default();
    let mut fields = after_name.split_whitespace();
    let is_dead = matches!(fields.next(), Some("Z" | "X"));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    Ok((!is_dead && !is_killed(&status)).then(|| fields.nth(18).map(str::to_owned)).flatten())
}

/// Returns whether a process with this status has a pending SIGKILL.
fn is_killed(status: &str) -> bool {
    const SIGKILL: u64 = 1 << (9 - 1);
    ["SigPnd", "ShdPnd"].iter().filter_map(|name| bits(status, name)).any(|set| set & SIGKILL > 0)
}

/// Returns a bit set from a process's status, such as pending signals or capabilities.
pub(super) fn bits(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    u64::from_str_radix(value.trim(), 16).ok()
}

/// Returns whether a file system is mounted exactly at this path.
pub(super) fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let wanted = at.to_string_lossy().replace(' ', "\\040");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::wait_until;
    use crate::leftovers::GONE_MAX;

    #[test]
    fn steps_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), None);
        let journal = Journal::begin(folder.path()).unwrap();
        let steps = [
            Step::Fuse("/tmp/a b/fuse".into()),
            Step::Loop("/tmp/a b/fuse/nbd".into()),
            Step::Mount("/tmp/mnt".into()),
            Step::Server("/tmp/mnt/data".into()),
        ];
        steps.iter().for_each(|step| journal.write(step).unwrap());
        assert_eq!(read(folder.path()).unwrap(), steps);
        // A crash in the middle of a line.
        let path = folder.path().join(NAME);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 3]).unwrap();
        assert_eq!(read(folder.path()).unwrap(), steps[..3]);
    }

    #[test]
    fn run_without_its_process_is_an_orphan() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_orphan(folder.path()), "no journal");
        Journal::begin(folder.path()).unwrap();
        assert!(!is_orphan(folder.path()));
        let path = folder.path().join(NAME);
        let own = std::process::id();
        let here = system();
        for first in [
            "process 4294967294 1",
            &format!("process 4294967294 1 {here}"),
            &format!("process {own} 1"),
            "process",
            "",
        ] {
            fs::write(&path, format!("{first}\n")).unwrap();
            assert!(is_orphan(folder.path()), "{first}");
        }
        for elsewhere in [format!("another-{here}"), format!("{here}0"), "/".to_owned()] {
            fs::write(&path, format!("process 4294967294 1 {elsewhere}\n")).unwrap();
            assert!(!is_orphan(folder.path()), "{elsewhere}");
        }
    }

    /// A zombie has a number but does not run. Nor does a killed process that waits for a request
    /// without an answer.
    #[test]
    fn killed_process_counts_as_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let is_zombie = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            stat.rsplit_once(')').is_some_and(|(_, after)| after.starts_with(" Z"))
        };
        wait_until("a zombie", GONE_MAX, is_zombie).unwrap();
        assert_eq!(started(child.id()).unwrap(), None);
        child.wait().unwrap();
        assert!(started(std::process::id()).unwrap().is_some());
        let status = |own: &str, shared: &str| format!("SigPnd:\t{own}\nShdPnd:\t{shared}\n");
        let none = "0000000000000000";
        assert!(!is_killed(&status(none, none)) && !is_killed(""));
        assert!(!is_killed(&status("0000000000004000", none)), "that is SIGTERM");
        assert!(is_killed(&status("0000000000000100", none)));
        assert!(is_killed(&status(none, "0000000000004100")));
    }

    #[test]
    fn mounts_are_seen() {
        assert!(is_mounted(Path::new("/")) && is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/no/such/mount")));
    }
}
