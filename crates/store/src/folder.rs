//! The data folder of a server. It is claimed with a marker file and held with a lock. So two
//! servers never share one, and a mistyped path never changes files of another program. The marker
//! names the kind of store that has the folder's volumes, since another kind would find none of
//! them.

use crate::local::discovery;
use crate::{StoreError, memory, rbd};
use evenkeel_os::clock;
use evenkeel_os::files::write_whole;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the marker file.
pub const MARKER: &str = "EVENKEEL";
/// Name of the file with the access key of the API. An operator who chooses the key writes it
/// before the first start, so a folder with nothing else is new.
const CREDENTIALS: &str = "credentials";
/// Beginning of a line of such a file; the files of AWS's clients have no such line.
const CREDENTIALS_KEY: &str = "access_key_id";
/// Maximum number of bytes of such a file that are read.
const CREDENTIALS_BYTES_MAX: u64 = 1 << 16;
/// The first line of the marker file; the second is `store` and the kind of store. How it changes
/// after the first release: docs/internals/journal.md.
pub const FORMAT: &str = "evenkeel data folder, format 1";

/// Kinds of store that a marker of this version may name.
pub(crate) const KINDS: [&str; 3] = [discovery::KIND, rbd::KIND, memory::KIND];

/// A lock outlives its process briefly: the kernel closes the files of a killed process a little
/// later, and a forked child has them open until it executes another program.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A claimed data folder; locked until dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Folder {
    /// Claims `path` for a store of kind `store`: creates it if there is none, takes it if it is
    /// empty, and opens it if it has a marker of this kind.
    ///
    /// # Errors
    /// When it has other contents or a store of another kind, was written in another format, or
    /// another process holds it.
    pub fn claim(path: &Path, store: &'static str) -> Result<Self, StoreError> {
        fs::create_dir_all(path)
            .map_err(|e| StoreError::io(format!("make the data folder {}", path.display()), e))?;
        let marker = path.join(MARKER);
        if !marker.exists() {
            refuse_if_occupied(path)?;
            write_marker(path, &marker, store)?;
        }
        let (lock, text) = locked(path, &marker)?;
        match kind(&text) {
            Some(held) if held == store => Ok(Self { path: path.to_owned(), _lock: lock }),
            Some(held) => {
                let present = held.to_owned();
                Err(StoreError::OtherKind { path: marker, present, asked: store })
            }
            None => Err(StoreError::Format { path: marker, found: text.trim_end().to_owned() }),
        }
    }

    /// Returns whether [`Self::claim`] would accept the folder `path`, which exists: it has a
    /// marker, or is empty.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn may_claim(path: &Path) -> Result<bool, StoreError> {
        match refuse_if_occupied(path) {
            _ if path.join(MARKER).exists() => Ok(true),
            Ok(()) => Ok(true),
            Err(StoreError::NotOurs { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks the marker and reads it.
fn locked(path: &Path, marker: &Path) -> Result<(OwnedFd, String), StoreError> {
    let doing = || format!("open {}", marker.display());
    let lock = rustix::fs::open(marker, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| StoreError::io(doing(), e))?;
    let mut tries = 1..LOCK_TRIES;
    while rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if tries.next().is_none() {
            return Err(StoreError::InUse { path: path.to_owned() });
        }
        clock::pause(LOCK_PAUSE);
    }
    let mut text = String::new();
    let read = fs::File::open(marker).and_then(|f| f.take(1_024).read_to_string(&mut text));
    read.map_err(|e| StoreError::io(doing(), e))?;
    Ok((lock, text))
}

/// Returns the contents of a marker.
fn marker_text(store: &str) -> String {
    format!("{FORMAT}\nstore {store}\n")
}

/// Returns the kind of store that a marker names; `None` if it has another format.
fn kind(text: &str) -> Option<&str> {
    let store = text.strip_prefix(FORMAT)?.strip_prefix("\nstore ")?.strip_suffix('\n')?;
    (!store.is_empty() && !store.contains(char::is_whitespace)).then_some(store)
}

fn refuse_if_occupied(path: &Path) -> Result<(), StoreError> {
    let mut entries = fs::read_dir(path)
        .map_err(|e| StoreError::io(format!("list the data folder {}", path.display()), e))?;
    // A new file system has lost+found. An incomplete marker is this program's own, from a crash at
    // the first start.
    let foreign = entries.find_map(|entry| match entry {
        Ok(entry) if entry.file_name() == "lost+found" => None,
        Ok(entry) if *entry.file_name() == *marker_draft() => None,
        Ok(entry) if entry.file_name() == CREDENTIALS && has_our_key(&entry.path()) => None,
        Ok(entry) => Some(entry.file_name().to_string_lossy().into_owned()),
        Err(_) => None,
    });
    match foreign {
        Some(found) => Err(StoreError::NotOurs { path: path.to_owned(), found }),
        None => Ok(()),
    }
}

/// Returns whether a file has an access key in the form of this program's.
fn has_our_key(path: &Path) -> bool {
    let mut text = String::new();
    let read =
        fs::File::open(path).and_then(|f| f.take(CREDENTIALS_BYTES_MAX).read_to_string(&mut text));
    read.is_ok() && text.lines().any(|line| line.trim_start().starts_with(CREDENTIALS_KEY))
}

/// Writes the marker completely or not at all: under another name, synced, and then renamed.
fn write_marker(folder: &Path, marker: &Path, store: &str) -> Result<(), StoreError> {
    debug_assert_eq!(marker.parent(), Some(folder));
    write_whole(marker, marker_text(store).as_bytes())
        .map_err(|e| StoreError::io(format!("write {}", marker.display()), e))
}

fn marker_draft() -> String {
    format!("{MARKER}.new")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_an_empty_and_an_own_folder_are_claimed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new/er");
        drop(Folder::claim(&path, "local").unwrap());
        let again = Folder::claim(&path, "local").unwrap();
        assert_eq!(again.path(), path);
        assert!(Folder::may_claim(&path).unwrap());
    }

    #[test]
    fn a_foreign_folder_is_refused_and_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("thesis.tex"), "years of work").unwrap();
        let error = Folder::claim(parent.path(), "local").unwrap_err();
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        assert!(!Folder::may_claim(parent.path()).unwrap());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_with_chosen_credentials_alone_is_new() {
        let parent = tempfile::tempdir().unwrap();
        let credentials = parent.path().join(CREDENTIALS);
        let ours = "# chosen\naccess_key_id = \"a\"\nsecret_access_key = \"b\"\n";
        for foreign in ["", "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"] {
            fs::write(&credentials, foreign).unwrap();
            assert!(!Folder::may_claim(parent.path()).unwrap(), "{foreign}");
            let error = Folder::claim(parent.path(), "local").unwrap_err();
            assert!(error.to_string().contains("credentials"), "{error}");
        }
        fs::write(&credentials, ours).unwrap();
        fs::write(parent.path().join("config"), "").unwrap();
        assert!(Folder::claim(parent.path(), "local").is_err());
        fs::remove_file(parent.path().join("config")).unwrap();
        assert!(Folder::may_claim(parent.path()).unwrap());
        drop(Folder::claim(parent.path(), "local").unwrap());
        assert_eq!(fs::read_to_string(&credentials).unwrap(), ours);
    }

    #[test]
    fn two_servers_never_share_a_folder() {
        let parent = tempfile::tempdir().unwrap();
        let _held = Folder::claim(parent.path(), "local").unwrap();
        let error = Folder::claim(parent.path(), "local").unwrap_err();
        assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    }

    #[test]
    fn a_lock_that_outlives_its_server_by_a_moment_is_waited_for() {
        let parent = tempfile::tempdir().unwrap();
        let held = Folder::claim(parent.path(), "local").unwrap();
        let dying = std::thread::spawn(move || {
            clock::pause(LOCK_PAUSE);
            drop(held);
        });
        Folder::claim(parent.path(), "local").unwrap();
        dying.join().unwrap();
    }

    #[test]
    fn another_format_is_refused_and_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let marker = parent.path().join(MARKER);
        for (text, words) in [
            ("evenkeel data folder, format 9\n".to_owned(), "format 9"),
            ("evenkeel data folder, format 3\nstore local\n".to_owned(), "format 3"),
            (format!("{FORMAT}\n"), FORMAT),
            (format!("{FORMAT}\nstore \n"), FORMAT),
        ] {
            fs::write(&marker, &text).unwrap();
            let error = Folder::claim(parent.path(), "local").unwrap_err();
            assert!(matches!(error, StoreError::Format { .. }), "{error}");
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(fs::read_to_string(&marker).unwrap(), text);
        }
    }

    #[test]
    fn a_folder_keeps_its_kind_of_store() {
        let parent = tempfile::tempdir().unwrap();
        drop(Folder::claim(parent.path(), "memory").unwrap());
        drop(Folder::claim(parent.path(), "memory").unwrap());
        let error = Folder::claim(parent.path(), "local").unwrap_err().to_string();
        assert!(error.contains("serve with --store memory"), "{error}");
    }

    /// Versions before the first release had the store `files`.
    #[test]
    fn a_folder_of_a_store_that_no_longer_exists_is_refused_and_left_alone() {
        let parent = tempfile::tempdir().unwrap();
        let marker = parent.path().join(MARKER);
        for text in [format!("{FORMAT}\nstore files\n"), "evenkeel data folder, format 2\n".into()]
        {
            fs::write(&marker, &text).unwrap();
            for store in KINDS {
                let error = Folder::claim(parent.path(), store).unwrap_err().to_string();
                assert!(error.contains("use the version that wrote the folder"), "{error}");
                assert!(!error.contains("--store"), "{error}");
            }
            assert_eq!(fs::read_to_string(&marker).unwrap(), text);
        }
    }
}
