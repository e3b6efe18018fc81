//! Certificates and keys in files, in PEM form.

use crate::TlsError;
use rustix::fs::{Mode, OFlags};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Maximum size of a file: thousands of certificates.
const BYTES_MAX: u64 = 1 << 20;

/// Permissions that a file with a secret must not have: others may do nothing, its group may read.
/// A group is how a service gets a key that another user has made.
pub const FORBIDDEN: u32 = 0o037;

/// Opens a regular file to read it. Does not wait, as the opening of a pipe would.
///
/// # Errors
/// The file cannot be opened, or is a folder, a device or a pipe.
pub fn open(file: &Path) -> Result<File, TlsError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file, flags, Mode::empty());
    let opened = File::from(opened.map_err(|error| TlsError::new(file, error))?);
    let metadata = opened.metadata().map_err(|error| TlsError::new(file, error))?;
    if metadata.is_file() {
        Ok(opened)
    } else {
        let kind = if metadata.is_dir() { "a folder" } else { "a device or a pipe" };
        Err(TlsError::new(file, format!("it is {kind}; name a regular file")))
    }
}

/// Reads a whole file that was opened.
fn read(file: &Path, opened: File) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = opened.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    let length = read.map_err(|error| TlsError::new(file, error))?;
    if length as u64 > BYTES_MAX {
        let problem = format!("it has more than {BYTES_MAX} bytes; name a file in PEM form");
        return Err(TlsError::new(file, problem));
    }
    Ok(bytes)
}

/// Returns the certificates in a file, at least one.
///
/// # Errors
/// The file cannot be read, or has none.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(file, open(file)?)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(TlsError::new(file, "it has no certificate in PEM form"))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::new(file, format!("certificates cannot be read: {error}"))),
    }
}

/// Returns whether a file has certificates and no private key. Certificates are public, so the
/// access of others to it is no fault.
#[must_use]
pub fn is_certificate(file: &Path) -> bool {
    certificates(file).is_ok() && checked_private_key(file).is_err()
}

/// Returns the private key in a file that others cannot use.
///
/// # Errors
/// The file cannot be read, has no key, or others can use it.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let opened = open(file)?;
    let mode = opened.metadata().map_err(|error| TlsError::new(file, error))?.mode() & 0o7777;
    if mode & FORBIDDEN != 0 {
        if is_certificate(file) {
            let problem = "it has a certificate and no private key; name the file with the key";
            return Err(TlsError::new(file, problem));
        }
        let problem = format!("others can use it, which is secret (mode {mode:04o}); chmod 600");
        return Err(TlsError::new(file, problem));
    }
    key_in(file, opened)
}

/// Returns the private key in a file whose access the caller has checked.
///
/// # Errors
/// The file cannot be read, or has no key.
pub fn checked_private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    key_in(file, open(file)?)
}

fn key_in(file: &Path, opened: File) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(file, opened)?)
        .map_err(|error| TlsError::new(file, format!("no private key can be read: {error}")))
}

/// Returns the store of these authorities, which were read from a file.
///
/// # Errors
/// One of them cannot be an authority's.
pub fn roots(
    file: &Path,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| TlsError::new(file, error))?;
    }
    Ok(Arc::new(roots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_regular_and_small_and_a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let problem = |path: &Path| certificates(path).unwrap_err().problem;
        assert!(problem(folder.path()).contains("it is a folder"));
        assert!(problem(Path::new("/dev/null")).contains("it is a device or a pipe"));
        let pipe = folder.path().join("pipe");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(problem(&pipe).contains("it is a device or a pipe"));
        let large = folder.path().join("large");
        File::create(&large).unwrap().set_len(BYTES_MAX + 1).unwrap();
        assert_eq!(problem(&large), "it has more than 1048576 bytes; name a file in PEM form");
    }
}
