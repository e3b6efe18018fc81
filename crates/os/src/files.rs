//! Files that are replaced as a whole.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

/// Replaces a file durably, or creates it with the default access. Readers, and a restart after a
/// crash, see either the old or the new bytes.
///
/// # Errors
/// The file cannot be written; it is then what it was before.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_whole_with_mode(path, bytes, 0o666)
}

/// Replaces a file as [`write_whole`] does. The new one has this `mode`, without the bits that the
/// process masks.
///
/// # Errors
/// See [`write_whole`].
pub fn write_whole_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    replace(path, bytes, mode, |_| Ok(()))
}

/// Replaces a file as [`write_whole`] does. The new one has the owner and the group of the old one,
/// and the bits `kept` of its mode; a first one has `mode`.
///
/// # Errors
/// See [`write_whole`]; the process may not give the file its owner or its group.
pub fn write_whole_with_access(path: &Path, bytes: &[u8], mode: u32, kept: u32) -> io::Result<()> {
    let former = match fs::metadata(path) {
        Ok(former) => Some(former),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // Until it has its owner, only this process's user can use it.
    replace(path, bytes, 0o600, |file| {
        let Some(former) = former else {
            return file.set_permissions(Permissions::from_mode(mode));
        };
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != (former.uid(), former.gid()) {
            fchown(file, Some(former.uid()), Some(former.gid()))?;
        }
        // After the owner: a new owner clears bits of the mode.
        file.set_permissions(Permissions::from_mode(former.mode() & kept))
    })
}

/// Replaces a file by a new one of this `mode`, on which `finish` is called before it is in place.
fn replace(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    finish: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = Path::new(&draft);
    // A crash may have left one, with another mode.
    let _ = fs::remove_file(draft);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(draft)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            finish(&file)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(draft, path))
        .and_then(|()| sync_folder(folder.unwrap_or(Path::new("."))));
    written.inspect_err(|_| {
        let _ = fs::remove_file(draft);
    })
}

/// Makes the names of a folder durable.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn write_whole_leaves_all_bytes_or_the_old_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for text in ["first", "second"] {
            write_whole(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // A failed rename changes nothing, and leaves no draft.
        let occupied = folder.path().join("folder");
        fs::create_dir(&occupied).unwrap();
        write_whole(&occupied, b"text").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn mode_is_that_of_the_call_and_not_of_an_older_draft() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        fs::write(folder.path().join("secret.new"), "of a crash").unwrap();
        write_whole_with_mode(&path, b"text", 0o600).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
