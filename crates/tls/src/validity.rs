//! The end of the validity of certificates.

use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, Error, KeyUsage};

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
