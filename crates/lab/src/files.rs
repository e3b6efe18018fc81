//! Files for other programs and for users: reports, results, records.

use std::fs;
use std::path::Path;

use evenkeel_os::files;

use crate::LabError;

/// Writes a text.
///
/// # Errors
/// With the path, if the file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), LabError> {
    fs::write(path, text).map_err(LabError::path(path))
}

/// Replaces a text as a whole, as [`files::write_whole`] does.
///
/// # Errors
/// With the path, if the file cannot be written; it is then what it was before.
pub fn write_whole(path: &Path, text: &str) -> Result<(), LabError> {
    files::write_whole(path, text.as_bytes()).map_err(LabError::path(path))
}
