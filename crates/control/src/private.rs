//! Files that are for nobody but the server's own user: what exists, whose it is, and the space
//! kept aside for that. Names and tags may be confidential, and who could write would be believed.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use tracing::warn;

/// Reading and writing for the owner.
const MODE: u32 = 0o600;

/// Opens a file for writing, as it is, and makes it if there is none; others may not even read it
/// from now on.
///
/// # Errors
/// It cannot be opened or made.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(MODE).open(path)?;
    mend(path);
    Ok(file)
}

/// Others may not even read the file from now on, if there is one. Earlier versions let them.
pub fn mend(path: &Path) {
    let Ok(metadata) = path.metadata() else { return };
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 == 0 {
        return;
    }
    // Somebody else's file stays as it is: whether it can be used will be seen.
    if let Err(error) = std::fs::set_permissions(path, Permissions::from_mode(MODE)) {
        let path = path.display();
        warn!("{path}: others may use it (mode {mode:04o}): {error}; run: chmod 600 {path}");
    }
}
