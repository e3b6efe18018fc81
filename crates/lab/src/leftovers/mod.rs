//! What runs set up on this machine, and its removal: servers, mounts, loop devices, folders.
//!
//! Each step is written to a journal before it is done. It is undone by the run itself, by
//! [`clean`] after Ctrl-C, or by [`clean_leftovers`] after a crash.

mod journal;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

pub use self::journal::{Journal, Step};
use crate::child::{self, Guarded, wait_until};
use crate::{LabError, servers};
use evenkeel_os::clock;

/// Longest wait for one program of the stack: mkfs writes little, but perhaps at 100 IOPS.
const STEP_MAX: Duration = Duration::from_secs(120);
/// Longest wait until the kernel has detached a loop device from its file, which it does once the
/// device is closed.
pub const GONE_MAX: Duration = Duration::from_secs(20);

/// Returns why this process may not mount file systems; `None` if it may.
#[must_use]
pub fn lacks_right_to_mount() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("loop devices and mounts need root".to_owned());
    }
    let may = may_mount(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    (!may).then(|| "mounts need CAP_SYS_ADMIN, which this container has not".to_owned())
}

/// Returns whether a process with this status may mount. True if the kernel does not report
/// capabilities.
fn may_mount(status: &str) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    journal::bits(status, "CapEff").is_none_or(|rights| rights >> CAP_SYS_ADMIN & 1 == 1)
}

/// Undoes the steps in a folder's journal, the last first, and removes the journal. A step that is
/// already undone succeeds. At the first failure it stops, and returns the error as text: the
/// mounts below have to stay, because a loop device is found by the name of its file, which is gone
/// once the file's own mount is.
pub fn clean(folder: &Path) -> Vec<String> {
    clean_with(folder, take_down)
}

fn clean_with(folder: &Path, take_down: impl Fn(&Step) -> Result<(), LabError>) -> Vec<String> {
    let left = undo(folder, take_down);
    if left.is_empty() {
        journal::remove(folder);
    }
    left
}

/// Undoes the steps as [`clean`] does, and keeps the journal.
fn undo(folder: &Path, take_down: impl Fn(&Step) -> Result<(), LabError>) -> Vec<String> {
    for step in journal::read(folder).unwrap_or_default().into_iter().rev() {
        if let Err(error) = take_down(&step) {
            return vec![format!("{step}: {error}")];
        }
    }
    Vec::new()
}

/// Returns whether a stack is set up in a folder directly below `parent`.
#[must_use]
pub fn is_any_below(parent: &Path) -> bool {
    below(parent).any(|folder| journal::read(&folder).is_some())
}

/// Returns the entries of a folder.
fn below(parent: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Makes the kernel fail all requests that wait for frontends in the folders below `parent`. Only
/// for runs that end, whose bytes are not needed.
pub fn give_up_below(parent: &Path) {
    below(parent).for_each(|folder| give_up(&folder));
}

/// Calls [`clean`] for every folder below `parent`.
#[must_use]
pub fn clean_below(parent: &Path) -> Vec<String> {
    below(parent).flat_map(|folder| clean(&folder)).collect()
}

/// Records this process as the owner of a run's folder. After the process has ended,
/// [`clean_leftovers`] removes the folder and stops the servers that work in it, even if it has no
/// stacks.
///
/// # Errors
/// If the journal cannot be written.
pub fn claim(run: &Path) -> Result<(), LabError> {
    // The kernel reports the canonical path as a process's working directory.
    let run = run.canonicalize().map_err(LabError::io("cannot find", run))?;
    Journal::begin(&run)?.write(&Step::Server(run))
}

/// The leftovers of a run that ended without cleaning up, and whether they were removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leftover {
    /// The folder, and the error or "taken down", in one line.
    pub text: String,
    /// Whether nothing is left of it.
    pub is_gone: bool,
}

/// Removes what earlier runs left in `parent`. A run's folder has a name that begins with `prefix`,
/// and is removed if the process that owns it or one of its stacks has ended. Stacks are taken down
/// first, then servers, then the folder. Folders to which other users may write are skipped, as are
/// such folders of stacks. Returns one line of text for each leftover.
#[must_use]
pub fn clean_leftovers(parent: &Path, prefix: &str) -> Vec<String> {
    take_down_leftovers(parent, prefix).into_iter().map(|leftover| leftover.text).collect()
}

/// Removes leftovers as [`clean_leftovers`] does, for callers that need to know whether any stay.
#[must_use]
pub fn take_down_leftovers(parent: &Path, prefix: &str) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    let is_of_runs = |run: &PathBuf| {
        run.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    for run in below(parent).filter(is_of_runs).filter(|run| journal::is_private(run)) {
        let stacks: Vec<PathBuf> = below(&run).collect();
        if !journal::is_orphan(&run) && !stacks.iter().any(|stack| journal::is_orphan(stack)) {
            continue;
        }
        stacks.iter().for_each(|stack| give_up(stack));
        let mut left: Vec<String> = stacks.iter().flat_map(|stack| clean(stack)).collect();
        if left.is_empty() {
            left = undo(&run, take_down);
        }
        if left.is_empty() {
            left.extend(journal::remove_with_folder(&run).err().map(|error| error.to_string()));
        }
        let is_gone = left.is_empty();
        if is_gone {
            left.push("taken down".to_owned());
        }
        leftovers.extend(left.into_iter().map(|what| {
            let text = format!("an earlier run had left {}: {what}", run.display());
            Leftover { text, is_gone }
        }));
    }
    leftovers
}

/// Makes the kernel fail all requests that wait for the frontends of a run that has ended or is to
/// end. Its bytes are not needed. Otherwise a thread of that run may wait forever, and keep its
/// files open.
fn give_up(folder: &Path) {
    for step in journal::read(folder).unwrap_or_default() {
        if let Step::Fuse(at) = step
            && journal::is_mounted(&at)
        {
            // A mount in use stays, and fails all requests from now on.
            let _ = output(&["umount", "-f", &at.to_string_lossy()], "mount");
        }
    }
}

/// Undoes one step. A program of the step may still run after its run was killed. It is waited for,
/// as its mount or device would otherwise appear after this cleanup.
fn take_down(step: &Step) -> Result<(), LabError> {
    match step {
        Step::Server(folder) => servers::stop(folder),
        Step::Mount(at) => {
            wait_for_makers("mount", at)?;
            unmount(at, &["umount"])
        }
        Step::Loop(file) => {
            wait_for_makers("losetup", file)?;
            detach(file)
        }
        Step::Fuse(at) => {
            if !journal::is_mounted(at) {
                // An nbdfuse that has not mounted yet would serve forever.
                for process in makers("nbdfuse", &at.join("nbd")) {
                    let _ = kill_process(process, Signal::KILL);
                }
                wait_for_makers("nbdfuse", &at.join("nbd"))?;
            }
            unmount(at, &["fusermount3", "-u"])
        }
    }
}

/// Waits until two polls in a row find no process: during an exec a process has no command line for
/// a moment.
fn wait_for_makers(tool: &str, path: &Path) -> Result<(), LabError> {
    let what = format!("{tool} of {}", path.display());
    let mut in_vain = 0;
    wait_until(&what, GONE_MAX, || {
        in_vain = if makers(tool, path).is_empty() { in_vain + 1 } else { 0 };
        in_vain == 2
    })
}

/// Returns the processes of a program that have this path among their arguments.
fn makers(tool: &str, path: &Path) -> Vec<Pid> {
    child::processes(|process| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let mut words =
            line.split(|byte| *byte == 0).map(|word| Path::new(OsStr::from_bytes(word)));
        let is_tool = words.clone().any(|word| word.file_name() == Some(OsStr::new(tool)));
        is_tool && words.any(|word| word == path)
    })
}

/// Unmounts a mount point. If it is in use, detaches it, so that the kernel unmounts it after its
/// last use.
fn unmount(at: &Path, words: &[&str]) -> Result<(), LabError> {
    if !journal::is_mounted(at) {
        return Ok(());
    }
    let shown = at.to_string_lossy();
    let gently: Vec<&str> = words.iter().copied().chain([shown.as_ref()]).collect();
    if output(&gently, "mount").is_err() {
        output(&["umount", "-l", &shown], "mount")?;
    }
    wait_until(&format!("{shown} is unmounted"), GONE_MAX, || !journal::is_mounted(at))
}

/// Detaches every loop device of a file, and waits until the kernel has done so.
fn detach(file: &Path) -> Result<(), LabError> {
    for device in loops_of(file) {
        output(&["losetup", "-d", &device.to_string_lossy()], "mount")?;
    }
    let what = format!("the loop device of {} is gone", file.display());
    wait_until(&what, GONE_MAX, || loops_of(file).is_empty())
}

/// Returns the loop devices of a file from the kernel's own table. `losetup -j` opens the file
/// itself, and finds nothing if the server behind it has ended.
fn loops_of(file: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let is_of_file = |entry: &fs::DirEntry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim_end_matches('\n')) == file)
    };
    entries.filter(is_of_file).map(|entry| Path::new("/dev").join(entry.file_name())).collect()
}

/// Returns a command in a process group of its own, so that a terminal's Ctrl-C does not reach it.
/// The lower parts of a stack have to stay until those above are gone. (nbdfuse unmounts at once on
/// a signal, and the kernel then has no path by which the loop device above it could be found.)
#[must_use]
pub fn apart_from_terminal(program: &str) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// Runs a program of a set-up to its end, within two minutes. Returns its output.
///
/// # Errors
/// If the program is missing, fails or hangs.
pub fn output(words: &[&str], package: &'static str) -> Result<String, LabError> {
    let mut command = apart_from_terminal(words[0]);
    let mut child = Guarded::spawn(command.args(&words[1..]).stdout(Stdio::piped()), package)?;
    let printed = child.take_stdout().map(|pipe| child::apart(move || child::tail(pipe)));
    let Some(status) = child.wait_until(clock::now() + STEP_MAX) else {
        return Err(LabError::Deadline { what: words.join(" "), after: STEP_MAX });
    };
    if !status.success() {
        return Err(LabError::ToolFailed {
            tool: words[0].to_owned(),
            how: status.to_string(),
            said: child.stderr(),
            command: evenkeel_sim::text::command_line(words),
        });
    }
    Ok(printed.map(|printed| child::result_of(&printed)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    /// Returns whether this machine cannot mount, and prints why the test is skipped.
    fn cannot_mount() -> bool {
        let no_loops = || {
            let device = "/dev/loop-control";
            (!Path::new(device).exists()).then(|| format!("{device} is not there"))
        };
        let lacks = lacks_right_to_mount().or_else(no_loops);
        if let Some(why) = &lacks {
            let _ = writeln!(std::io::stdout(), "SKIPPED: {why}");
        }
        lacks.is_some()
    }

    #[test]
    fn a_journal_of_nothing_that_is_there_is_cleaned() {
        let folder = tempfile::Builder::new().prefix("evenkeel-chain-test-").tempdir().unwrap();
        let journal = Journal::begin(folder.path()).unwrap();
        journal.write(&Step::Mount(folder.path().join("mnt"))).unwrap();
        assert!(!journal::is_orphan(folder.path()), "its process lives");
        assert!(clean_leftovers(folder.path(), "no such prefix").is_empty());
        assert_eq!(clean(folder.path()), Vec::<String>::new());
        assert!(journal::read(folder.path()).is_none(), "a clean folder has no journal");
    }

    #[test]
    fn missing_right_to_mount_is_detected() {
        assert!(may_mount("Name:\tx\nCapEff:\t000001ffffffffff\n") && may_mount(""));
        assert!(!may_mount("CapEff:\t00000000a80425fb\n"), "as a container's root has it");
    }

    /// A run without mounts leaves only the logs of its load.
    #[test]
    fn folder_of_an_ended_run_is_removed_with_its_contents() {
        let parent = tempfile::tempdir().unwrap();
        let [killed, alive] = ["run-killed", "run-alive"].map(|name| parent.path().join(name));
        for run in [&killed, &alive] {
            servers::private_folder(run).unwrap();
            claim(run).unwrap();
            fs::write(run.join("log"), "many lines").unwrap();
        }
        journal::disown(&killed);
        let report = clean_leftovers(parent.path(), "run-");
        assert!(report.len() == 1 && report[0].ends_with("run-killed: taken down"), "{report:?}");
        assert!(!killed.exists() && alive.join("log").exists());
    }

    /// Any user may create folders in the directory of temporary files. So may a server that runs
    /// as another user below those of a run. A journal there could name anything as a step to undo.
    #[test]
    fn a_journal_that_others_may_write_is_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().canonicalize().unwrap();
        let run = folder.join("run-0");
        let stack = folder.join("run-0/0");
        let served = folder.join("x");
        for made in [&run, &stack, &served] {
            servers::private_folder(made).unwrap();
        }
        let program = folder.join("postgres");
        // Another process copies it. If a test forked while this process wrote the copy, the child
        // would keep it open for writing until its exec, and a file that is open for writing cannot
        // be executed.
        let copied = std::process::Command::new("cp").arg("/bin/sleep").arg(&program).status();
        assert!(copied.unwrap().success(), "cp /bin/sleep");
        let mut server = std::process::Command::new(program);
        let server = server.arg("1000").current_dir(&served);
        let mut server = Guarded::spawn(server, "coreutils").unwrap();
        Journal::begin(&stack).unwrap().write(&Step::Server(served)).unwrap();
        journal::disown(&stack);
        let may_write = |of: &Path, mode| {
            fs::set_permissions(of, fs::Permissions::from_mode(mode)).unwrap();
        };
        let told_nothing = |why: &str| {
            assert_eq!(clean_leftovers(&folder, "run-"), Vec::<String>::new(), "{why}");
            assert_eq!(clean_below(&run), Vec::<String>::new(), "{why}");
            assert!(!is_any_below(&run), "{why}");
        };
        for mode in [0o777, 0o775, 0o722] {
            may_write(&run, mode);
            assert_eq!(clean_leftovers(&folder, "run-"), Vec::<String>::new(), "{mode:o}");
            may_write(&run, 0o755);
            may_write(&stack, mode);
            told_nothing(&format!("{mode:o}"));
            assert!(Journal::begin(&stack).is_err(), "{mode:o}");
            may_write(&stack, 0o755);
            assert!(is_any_below(&run), "{mode:o}");
        }
        let user = rustix::process::geteuid();
        if user.is_root() {
            for (owner, is_ours) in [(Some(65_534), false), (Some(user.as_raw()), true)] {
                std::os::unix::fs::chown(&stack, owner, None).unwrap();
                assert_eq!(is_any_below(&run), is_ours);
                (!is_ours).then(|| told_nothing("another's"));
            }
        } else {
            let _ = writeln!(std::io::stdout(), "SKIPPED: only root may give a folder to others");
        }
        assert_eq!(server.wait_until(evenkeel_os::clock::now()), None, "it was stopped");
        std::os::unix::fs::symlink(&run, folder.join("run-1")).unwrap();
        let report = clean_leftovers(&folder, "run-");
        assert!(report.len() == 1 && report[0].contains("run-0: taken down"), "{report:?}");
        assert!(!run.exists() && server.wait_until(evenkeel_os::clock::now() + GONE_MAX).is_some());
    }

    /// If a removal fails, the error is returned, and the journal stays until a retry succeeds.
    #[test]
    fn failed_removal_is_reported_and_retried() {
        if cannot_mount() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let run = parent.path().join("run-0");
        servers::private_folder(&run).unwrap();
        claim(&run).unwrap();
        let busy = run.join("busy");
        servers::private_folder(&busy).unwrap();
        fs::write(run.join("log"), "many lines").unwrap();
        journal::disown(&run);
        let path = busy.to_string_lossy();
        output(&["mount", "-t", "tmpfs", "none", &path], "mount").unwrap();
        let report = clean_leftovers(parent.path(), "run-");
        output(&["umount", &path], "mount").unwrap();
        assert!(report.len() == 1 && report[0].contains("busy"), "{report:?}");
        let report = clean_leftovers(parent.path(), "run-");
        assert!(report.len() == 1 && report[0].ends_with("run-0: taken down"), "{report:?}");
        assert!(!run.exists());
    }

    /// The loop device below a mount that stays is found by the mount's path, and so must stay,
    /// too.
    #[test]
    fn a_clean_up_stops_at_the_first_thing_that_does_not_go() {
        let folder = tempfile::Builder::new().prefix("evenkeel-chain-test-").tempdir().unwrap();
        let file = folder.path().join("file");
        let stays = folder.path().join("stays");
        let journal = Journal::begin(folder.path()).unwrap();
        let steps = [Step::Fuse(file.clone()), Step::Mount(stays.clone()), Step::Loop(file)];
        steps.iter().for_each(|step| journal.write(step).unwrap());
        let tried = std::cell::RefCell::new(Vec::new());
        let left = clean_with(folder.path(), |step| {
            tried.borrow_mut().push(step.clone());
            match step {
                Step::Mount(_) => Err(LabError::Unjudgeable("is in use".to_owned())),
                _ => Ok(()),
            }
        });
        assert_eq!(*tried.borrow(), [steps[2].clone(), steps[1].clone()], "the last first");
        assert!(left.len() == 1, "{left:?}");
        assert!(left[0].starts_with(&format!("mount {}: ", stays.display())), "{left:?}");
        assert!(left[0].ends_with("is in use"), "{left:?}");
        assert_eq!(journal::read(folder.path()).unwrap(), steps, "to be tried again");
        let report = clean_with(folder.path(), |_| Ok(()));
        assert_eq!(report, Vec::<String>::new());
        assert!(journal::read(folder.path()).is_none(), "all is gone");
    }

    /// losetup continues after the run that started it has been killed.
    #[test]
    fn a_loop_device_that_comes_after_its_run_is_gone_is_taken_down() {
        if cannot_mount() {
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        let above = parent.path().canonicalize().unwrap();
        let file = above.join("file");
        let losetup = above.join("losetup");
        let folder = above.join("killed/chain");
        servers::private_folder(&above.join("killed")).unwrap();
        servers::private_folder(&folder).unwrap();
        fs::write(&file, vec![0; 1 << 20]).unwrap();
        fs::write(&losetup, "sleep 0.5; exec losetup -f \"$1\"").unwrap();
        let journal = Journal::begin(&folder).unwrap();
        journal.write(&Step::Loop(file.clone())).unwrap();
        journal::disown(&folder);
        let mut late = Command::new("sh");
        let mut late = Guarded::spawn(late.args([&losetup, &file]), "dash").unwrap();
        let report = clean_leftovers(parent.path(), "killed");
        let ended = late.wait_until(clock::now() + STEP_MAX);
        assert!(ended.is_some_and(|status| status.success()), "{}", late.stderr());
        assert_eq!(loops_of(&file), Vec::<PathBuf>::new(), "{report:?}");
        assert!(report.len() == 1 && report[0].ends_with("taken down"), "{report:?}");
        assert!(!folder.exists());
    }

    #[test]
    fn failed_program_is_an_error_with_its_message() {
        let error = output(&["sh", "-c", "echo why >&2; exit 3"], "dash").unwrap_err().to_string();
        assert!(error.contains("why") && error.contains("sh -c"), "{error}");
        assert_eq!(output(&["echo", "a b"], "coreutils").unwrap().trim(), "a b");
        assert!(output(&["no-such-program"], "nowhere").is_err());
    }
}
