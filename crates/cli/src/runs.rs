//! Runs of measurements: their folders, and their command lines.

use evenkeel_client::output::Failure;
use evenkeel_lab::leftovers;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// The prefix of the name of every [`folder`].
pub const PREFIX: &str = "evenkeel-";

/// Returns the command line of this process of `program`, in a form that can be typed again.
#[must_use]
pub fn this_call(program: &str) -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = std::iter::once(program.to_owned()).chain(words).collect();
    evenkeel_sim::text::command_line(&words)
}

/// Creates a folder in `parent` for a run; it is removed on drop. First removes the folders of
/// earlier killed runs with the same prefix.
///
/// # Errors
/// If the folder cannot be created.
pub fn folder(parent: &Path, prefix: &str) -> Result<TempDir, Failure> {
    debug_assert!(prefix.starts_with(PREFIX), "`evenkeel-bench clean` would not find {prefix}");
    // Absolute, because programs in it have other working folders.
    let parent = parent
        .canonicalize()
        .map_err(|error| Failure::new(format!("a folder in {}: {error}", parent.display())))?;
    for message in leftovers::clean_leftovers(&parent, prefix) {
        eprintln!("{message}");
    }
    let folder = temporary_folder(&parent, prefix)?;
    leftovers::claim(folder.path()).map_err(|error| Failure::new(error.to_string()))?;
    Ok(folder)
}

/// Creates a folder in `parent` that is removed on drop.
fn temporary_folder(parent: &Path, prefix: &str) -> Result<TempDir, Failure> {
    // Other users may enter, because their servers work in it; only the owner may write, whatever
    // the umask.
    let mode = Permissions::from_mode(0o755);
    let made = tempfile::Builder::new().prefix(prefix).permissions(mode).tempdir_in(parent);
    made.map_err(|error| Failure::new(format!("a folder in {}: {error}", parent.display())))
}
