//! Certificates and keys in files, in PEM form.

use crate::TlsError;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;

/// Returns the certificates in a file, at least one.
///
/// # Errors
/// The file cannot be read, or has none.
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match found {
        Ok(found) if found.is_empty() => {
            Err(TlsError::new(file, "it has no certificate in PEM form"))
        }
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::new(file, format!("certificates cannot be read: {error}"))),
    }
}

/// Returns the private key in a file.
///
/// # Errors
/// The file cannot be read, or has none.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(file)
        .map_err(|error| TlsError::new(file, format!("no private key can be read: {error}")))
}

/// Returns the authorities in a file, at least one.
///
/// # Errors
/// As [`certificates`], and if one of them cannot be an authority's.
pub fn authorities(file: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| TlsError::new(file, error))?;
    }
    Ok(Arc::new(roots))
}
