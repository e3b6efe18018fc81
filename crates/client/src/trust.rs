//! The authorities by which a client checks the server's certificate.

use crate::output::{Exit, Failure};
use std::path::Path;
use std::sync::Arc;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// Returns the TLS of a client that trusts the authorities in a file, and no others.
pub(crate) fn by(authorities: &Path) -> Result<TlsConfig, Failure> {
    let shown = authorities.display();
    let usage = |message: String| Failure::new(message).exit(Exit::Usage);
    let text =
        std::fs::read(authorities).map_err(|error| usage(format!("ca: {shown}: {error}")))?;
    let certificates: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(usage(format!("ca: {shown} has no certificate in PEM form")));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(certificates)))
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Returns the failure of a client that knows no authority.
pub(crate) fn none(endpoint: &str) -> Failure {
    Failure::new(format!("endpoint {endpoint}: no authority of its certificate is known"))
        .exit(Exit::Usage)
        .hint("name the file of its certificate with --ca, such as ca-cert.pem of `evenkeel tls`")
}

/// Adds the next step to a failure, if the server's certificate was refused by the `authorities` in
/// a file.
pub(crate) fn explained(failure: Failure, authorities: Option<&Path>) -> Failure {
    let message = failure.message.to_ascii_lowercase();
    let says = |text: &str| message.contains("certificate") && message.contains(text);
    if says("unknownissuer") || says("badsignature") {
        let trusted = authorities.map_or_else(String::new, |file| format!(" {}", file.display()));
        failure.hint(format!(
            "the authority{trusted} has not signed the server's certificate: name the ca-cert.pem \
             of this server with --ca; without it, the file is the server's tls-ca"
        ))
    } else if says("not valid for name") {
        failure.hint("the certificate is for other names: `evenkeel tls server --name` adds one")
    } else if says("expired") {
        failure.hint("renew it on the server: `evenkeel tls server`")
    } else {
        failure
    }
}
