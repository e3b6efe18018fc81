//! Files that only the server's own user may access: databases, recordings, events, keys, the lock.
//! Names and tags may be confidential, and the server trusts the content of these files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use evenkeel_os::files;
use tracing::warn;

/// Access for the owner only.
const MODE: u32 = 0o600;

/// Opens a file for writing without truncating it, or creates it. Other users get no access.
///
/// # Errors
/// The file cannot be opened or created.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(MODE).open(path)?;
    mend(path);
    Ok(file)
}

/// Creates the file of a database if it is missing, and makes it and SQLite's files beside it
/// accessible to their owner only. Files that SQLite creates beside it later get the same mode.
///
/// # Errors
/// The file cannot be opened or created.
pub fn prepare_database(path: &Path) -> io::Result<()> {
    open(path)?;
    for beside in ["-wal", "-shm", "-journal"] {
        let mut file = path.as_os_str().to_owned();
        file.push(beside);
        mend(Path::new(&file));
    }
    Ok(())
}

/// Replaces a file of a folder as a whole.
///
/// # Errors
/// The file cannot be written; an existing one is unchanged.
pub fn replace(folder: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    files::write_whole_with_mode(&folder.join(name), contents, MODE)
}

/// Removes the access of other users to a file, if it exists. Earlier versions granted it.
pub fn mend(path: &Path) {
    let Ok(metadata) = path.metadata() else { return };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 {
        return;
    }
    // Another user's file cannot be changed. If it is unusable, a later step fails.
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(MODE)) {
        let path = path.display();
        warn!("{path}: others may use it (mode {mode:04o}): {error}; run: chmod 600 {path}");
    }
}
