//! Files for other programs and for users: reports, results, records.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::LabError;

/// Writes a text.
///
/// # Errors
/// With the path, if the file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), LabError> {
    fs::write(path, text).map_err(LabError::path(path))
}

/// Writes a text so that readers, and a restart after a crash, see either the old or the new one as
/// a whole. It is written under another name, synced and renamed.
///
/// # Errors
/// With the path, if the file cannot be written; it is then what it was before.
pub fn write_whole(path: &Path, text: &str) -> Result<(), LabError> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    let draft = Path::new(&draft);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let written = File::create(draft)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(draft, path))
        .and_then(|()| File::open(folder.unwrap_or(Path::new(".")))?.sync_all());
    written.map_err(|error| {
        let _ = fs::remove_file(draft);
        LabError::path(path)(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        for text in ["first", "second"] {
            write_whole(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // A failed rename changes nothing, and leaves no draft.
        let occupied = folder.path().join("folder");
        fs::create_dir(&occupied).unwrap();
        let failure = format!("{:?}", write_whole(&occupied, "text").unwrap_err());
        assert!(failure.contains("folder"), "{failure}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
