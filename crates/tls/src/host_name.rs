//! The host in a client's certificate: a DNS name that is the host's id, such as
//! `i-0123456789abcdef0`.

use evenkeel_core::ids::InstanceId;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Returns the host that a certificate names. The certificate has been verified before.
///
/// # Errors
/// The text says why it names none: it cannot be read, or has no or several ids of hosts.
pub fn host_of(certificate: &CertificateDer<'_>) -> Result<InstanceId, String> {
    let parsed = EndEntityCert::try_from(certificate)
        .map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let names: Vec<&str> = parsed.valid_dns_names().collect();
    let mut hosts = names.iter().filter_map(|name| name.parse::<InstanceId>().ok());
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => Ok(host),
        (Some(_), Some(_)) => Err(format!(
            "the certificate is for several hosts ({}); use one for each",
            names.join(", ")
        )),
        (None, _) => Err(format!(
            "the certificate names no host but {}; make one with `evenkeel tls host HOST`",
            if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
        )),
    }
}
