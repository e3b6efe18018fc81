//! Whether certificates are valid at a time, and signed by an authority.

use evenkeel_os::clock;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::fmt;
use std::time::Duration;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, Error, KeyUsage};

/// Why clients refuse a server's certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It, or a certificate between it and the authority, was valid until this second since 1970.
    Expired(u64),
    /// It is valid from this second on.
    Early(u64),
    /// The authority does not verify it, for this reason.
    Unverified(String),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(until) => write!(f, "it has expired on {}", clock::utc_text(*until)),
            Self::Early(since) => {
                write!(f, "it is not valid before {}", clock::utc_text(*since))
            }
            Self::Unverified(reason) => write!(f, "tls-ca has not signed it ({reason})"),
        }
    }
}

/// Checks a server's certificate, which is the first of `chain`, at `now` since 1970. Without
/// `roots` any authority may have signed it.
///
/// # Errors
/// See [`Unfit`].
pub(crate) fn check(
    chain: &[CertificateDer<'_>],
    roots: Option<&RootCertStore>,
    now: Duration,
) -> Result<(), Unfit> {
    if let Some(until) = until(chain).filter(|until| *until < now.as_secs()) {
        return Err(Unfit::Expired(until));
    }
    let Some((own, between)) = chain.split_first() else { return Ok(()) };
    let unverified = |error: Error| Unfit::Unverified(error.to_string());
    let parsed = EndEntityCert::try_from(own).map_err(unverified)?;
    let anchors = roots.map_or(&[][..], |roots| &roots.roots);
    let usage = KeyUsage::server_auth();
    let now = UnixTime::since_unix_epoch(now);
    let verified =
        parsed.verify_for_usage(ALL_VERIFICATION_ALGS, anchors, between, now, usage, None, None);
    match verified.map(drop) {
        Err(Error::CertNotValidYet { not_before, .. }) => Err(Unfit::Early(not_before.as_secs())),
        Err(error) if roots.is_some() => Err(unverified(error)),
        _ => Ok(()),
    }
}

/// Returns the last second in which all of these certificates are valid, since 1970; `None` if that
/// of none can be read.
pub(crate) fn until(certificates: &[CertificateDer<'_>]) -> Option<u64> {
    certificates.iter().filter_map(not_after).min()
}

/// Returns the last second in which a certificate is valid; `None` if it cannot be read, as that of
/// an authority in version 1 of X.509.
fn not_after(certificate: &CertificateDer<'_>) -> Option<u64> {
    let parsed = EndEntityCert::try_from(certificate).ok()?;
    // webpki shows the end of the validity only of a certificate that has expired. It checks that
    // before all else, so the usage and the missing authorities do not matter.
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let usage = KeyUsage::server_auth();
    let verified =
        parsed.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], end_of_time, usage, None, None);
    match verified.map(drop) {
        Err(Error::CertExpired { not_after, .. }) => Some(not_after.as_secs()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{AUTHORITY_DAYS, Authority, Made, Validity};
    use rustls::pki_types::pem::PemObject;

    #[test]
    fn the_end_of_the_validity_is_found_in_certificates_of_servers_hosts_and_authorities() {
        const NOW: u64 = 1_800_000_000;
        let days = |days| Validity { now: Duration::from_secs(NOW), days };
        let der =
            |made: &Made| CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap();
        let (authority, made) = Authority::create(days(AUTHORITY_DAYS)).unwrap();
        let host = authority.host("i-0123456789abcdef0", days(3)).unwrap();
        let server = authority.server(&["a".to_owned()], days(2)).unwrap();
        let certificates = [&made, &host, &server].map(der);
        let found = certificates.each_ref().map(not_after);
        let after = |days: u64| Some(NOW + days * 86_400);
        assert_eq!(found, [after(u64::from(AUTHORITY_DAYS)), after(3), after(2)]);
        assert_eq!(until(&certificates), after(2), "the first that ends");
        let unread = CertificateDer::from(vec![0_u8]);
        assert_eq!(until(&[unread]), None);
    }
}
