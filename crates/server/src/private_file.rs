//! Files with secrets: passwords, keys. One that other users can use is refused.

use evenkeel_client::output::{Exit, Failure};
use evenkeel_tls::pem::{self, FORBIDDEN};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn usage(message: String) -> Failure {
    Failure::new(message).exit(Exit::Usage)
}

/// Returns the failure of an operation on a file that `setting` names.
fn failed(setting: &str, path: &Path, error: &std::io::Error) -> Failure {
    usage(format!("{setting}: {}: {error}", path.display()))
}

/// Refuses an open file with a secret that other users can use.
fn allowed(setting: &str, path: &Path, file: &File) -> Result<(), Failure> {
    let metadata = file.metadata().map_err(|error| failed(setting, path, &error))?;
    let mode = metadata.mode() & 0o7777;
    if mode & FORBIDDEN == 0 {
        return Ok(());
    }
    let shown = path.display();
    let message = format!("{setting}: others can use {shown}, which is secret (mode {mode:04o})");
    let refused = usage(message);
    Err(if metadata.is_file() { refused.hint(format!("run: chmod 600 {shown}")) } else { refused })
}

/// Refuses a file with a secret that other users can use, or that is not regular: it is read more
/// than once. `setting` is the setting that names it.
pub fn check(setting: &str, path: &Path) -> Result<(), Failure> {
    let file = pem::open(path).map_err(|error| usage(format!("{setting}: {error}")))?;
    if pem::is_certificate(path) {
        let shown = path.display();
        let text = format!("{setting}: {shown} has a certificate and no private key");
        return Err(usage(text).hint("name the file with the key, such as server-key.pem"));
    }
    allowed(setting, path, &file)
}

/// The secret in a file, of at least `least` and at most `most` bytes. A newline at the end of the
/// file is not part of it.
pub fn read(setting: &str, path: &Path, least: usize, most: usize) -> Result<String, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| failed(setting, path, &error))?;
    allowed(setting, path, &file)?;
    let mut text = String::new();
    // One byte more for a newline, and one that is too many.
    let read = file.take(most as u64 + 2).read_to_string(&mut text);
    read.map_err(|error| failed(setting, path, &error))?;
    let secret = text.strip_suffix('\n').unwrap_or(&text);
    match (least..=most).contains(&secret.len()) {
        true => Ok(secret.to_owned()),
        false => Err(usage(format!(
            "{setting}: {shown} holds {} bytes; from {least} to {most} are possible",
            secret.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_tls::authority::{Authority, Validity};
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_secret_is_read_from_a_file_that_others_cannot_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let of_mode = |mode| {
            write(&path, "word\n").unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            (read("x", &path, 4, 4), check("x", &path))
        };
        for mode in [0o600, 0o400, 0o640, 0o440] {
            assert_eq!(of_mode(mode), (Ok("word".to_owned()), Ok(())));
        }
        for mode in [0o644, 0o604, 0o660, 0o602, 0o777] {
            let (read, checked) = of_mode(mode);
            let failure = read.unwrap_err();
            assert_eq!(Err(failure.clone()), checked);
            assert!(failure.message.starts_with("x: others can use "), "{failure}");
            assert!(failure.message.ends_with(&format!("(mode {mode:04o})")), "{failure}");
            assert!(failure.hint.unwrap().starts_with("run: chmod 600 "));
        }
    }

    #[test]
    fn a_certificate_in_place_of_a_key_is_named_as_one_whatever_its_access() {
        let folder = tempfile::tempdir().unwrap();
        let now = std::time::Duration::from_secs(1_800_000_000);
        let (_, made) = Authority::create(Validity { now, days: 90 }).unwrap();
        let path = folder.path().join("server-cert.pem");
        for mode in [0o600, 0o644] {
            write(&path, &made.certificate).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let failure = check("tls-key", &path).unwrap_err();
            let expected = "server-cert.pem has a certificate and no private key";
            assert!(failure.message.ends_with(expected), "{failure}");
            assert!(!failure.hint.unwrap().contains("chmod"));
        }
    }

    #[test]
    fn a_folder_and_a_device_are_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path(), Path::new("/dev/null")] {
            let failure = check("x", path).unwrap_err();
            assert!(failure.message.ends_with("; name a regular file"), "{failure}");
            assert_eq!(failure.hint, None);
        }
    }

    #[test]
    fn a_secret_has_a_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let of = |text: &str| {
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            read("x", &path, 2, 4).map_err(|failure| failure.message)
        };
        assert_eq!(of("a\nb\n"), Ok("a\nb".to_owned()));
        for (text, bytes) in [("", 0), ("a\n", 1), ("abcde", 5), ("abcd\n\n", 5)] {
            let message = of(text).unwrap_err();
            let expected = format!("holds {bytes} bytes; from 2 to 4 are possible");
            assert!(message.ends_with(&expected), "{message}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read("x", &path, 2, 4).unwrap_err().message.contains("No such file"));
    }
}
