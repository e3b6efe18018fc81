//! The access key of the API. It is created at the first start and stored in the data folder,
//! readable by its owner only.
//!
//! Reading fails if the file is missing, malformed, or readable by other users.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use evenkeel_telemetry::private;

use crate::random;

/// Name of the file in the data folder.
pub const FILE_NAME: &str = "credentials";
/// Prefix of our access keys, which distinguishes them from Amazon's.
const KEY_PREFIX: &str = "EVKL";

/// An access key and its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The public half.
    pub access_key_id: String,
    /// The secret half.
    pub secret_access_key: String,
}

impl Credentials {
    /// Returns a new access key.
    ///
    /// # Errors
    /// The OS returns no random bytes.
    pub fn random() -> Result<Self, getrandom::Error> {
        let key = random::text(16, random::LETTERS)?;
        let secret = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".as_slice();
        let access_key_id = format!("{KEY_PREFIX}{key}");
        Ok(Self { access_key_id, secret_access_key: random::text(40, secret)? })
    }
}

impl fmt::Debug for Credentials {
    /// Omits the secret, so that it is never logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("access_key_id", &self.access_key_id)
            .finish_non_exhaustive()
    }
}

/// Why there are no credentials.
#[derive(Debug)]
pub enum CredentialsError {
    /// The file cannot be read or written.
    Io(PathBuf, io::Error),
    /// The file's content is malformed.
    Malformed(PathBuf, String),
    /// Other users may read the file.
    Exposed(PathBuf, u32),
    /// The OS returned no random bytes.
    Random(getrandom::Error),
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) if error.kind() == io::ErrorKind::NotFound => write!(
                f,
                "{}: there are no credentials; they are made when the server first starts on \
                 this folder",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Malformed(path, why) => write!(
                f,
                "{}: {why}; it must have access_key_id = \"...\" and secret_access_key = \"...\" \
                 (remove it \
                 to have new ones made at the next start)",
                path.display()
            ),
            Self::Exposed(path, mode) => write!(
                f,
                "{}: others may read the secret in it (mode {mode:04o}); run: chmod 600 {0}",
                path.display()
            ),
            Self::Random(error) => write!(f, "the OS gives no random bytes: {error}"),
        }
    }
}

impl std::error::Error for CredentialsError {}

/// Reads the credentials of a data folder.
///
/// # Errors
/// See [`CredentialsError`]; [`CredentialsError::Io`] with `NotFound` before the first start.
pub fn load(data_dir: &Path) -> Result<Credentials, CredentialsError> {
    let path = data_dir.join(FILE_NAME);
    let io = |error| CredentialsError::Io(path.clone(), error);
    let mode = fs::metadata(&path).map_err(io)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(CredentialsError::Exposed(path, mode));
    }
    let text = fs::read_to_string(&path).map_err(io)?;
    parse(&text).map_err(|why| CredentialsError::Malformed(path, why))
}

fn parse(text: &str) -> Result<Credentials, String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let field = |name: &str| match table.get(name).and_then(toml::Value::as_str) {
        Some(value) if !value.is_empty() => Ok(value.to_owned()),
        _ => Err(format!("{name} is missing")),
    };
    if let Some(other) =
        table.keys().find(|k| !["access_key_id", "secret_access_key"].contains(&k.as_str()))
    {
        return Err(format!("the key {other} is unknown"));
    }
    Ok(Credentials {
        access_key_id: field("access_key_id")?,
        secret_access_key: field("secret_access_key")?,
    })
}

/// Reads the credentials of a data folder; returns `None` if there are none yet. A server calls
/// this before it locks a new folder, so that one with malformed credentials is left unchanged.
///
/// # Errors
/// See [`CredentialsError`].
pub fn load_if_any(data_dir: &Path) -> Result<Option<Credentials>, CredentialsError> {
    match load(data_dir) {
        Err(CredentialsError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Reads the credentials of a data folder, or creates them if there are none.
///
/// # Errors
/// See [`CredentialsError`].
pub fn load_or_create(data_dir: &Path) -> Result<Credentials, CredentialsError> {
    if let Some(credentials) = load_if_any(data_dir)? {
        return Ok(credentials);
    }
    let credentials = Credentials::random().map_err(CredentialsError::Random)?;
    let text = format!(
        "# The access key of this server's EC2 API. Keep it secret; remove the file to get a new \
         one.\n\
         access_key_id = \"{}\"\nsecret_access_key = \"{}\"\n",
        credentials.access_key_id, credentials.secret_access_key
    );
    private::replace(data_dir, FILE_NAME, text.as_bytes())
        .map_err(|error| CredentialsError::Io(data_dir.join(FILE_NAME), error))?;
    Ok(credentials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_made_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        assert!(load(folder.path()).unwrap_err().to_string().contains("first starts"));
        let made = load_or_create(folder.path()).unwrap();
        assert_eq!(made.access_key_id.len(), 20);
        assert_eq!(made.secret_access_key.len(), 40);
        assert_eq!(load_or_create(folder.path()).unwrap(), made);
        assert_eq!(load(folder.path()).unwrap(), made);
        assert!(!format!("{made:?}").contains(&made.secret_access_key));
        let path = folder.path().join(FILE_NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(load(folder.path()), Err(CredentialsError::Exposed(_, 0o644))));
    }

    #[test]
    fn a_damaged_file_is_named_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        for text in [
            "",
            "x",
            "access_key_id = \"a\"",
            "access_key_id = 1\nsecret_access_key = \"b\"",
            "access_key_id = \"a\"\nsecret_access_key = \"b\"\nother = 1",
        ] {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = load_or_create(folder.path()).unwrap_err();
            assert!(matches!(error, CredentialsError::Malformed(..)), "{text}: {error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}
