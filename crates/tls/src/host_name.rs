//! The names in certificates. The host in a client's certificate is a DNS name that is the host's
//! id, such as `i-0123456789abcdef0`.

use evenkeel_core::ids::InstanceId;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::{IpAddr, Ipv4Addr};
use webpki::{EndEntityCert, Error};

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

/// Returns the DNS names and the addresses that a server's certificate is for.
///
/// # Errors
/// The text says why they cannot be read.
pub fn names_of(certificate: &CertificateDer<'_>) -> Result<Vec<String>, String> {
    let unread = |error: Error| format!("the certificate cannot be read: {error}");
    let parsed = EndEntityCert::try_from(certificate).map_err(unread)?;
    let mut names: Vec<String> = parsed.valid_dns_names().map(str::to_owned).collect();
    let is_for = |address| parsed.verify_is_valid_for_subject_name(&ServerName::from(address));
    // webpki lists addresses only to say that another one is not among them.
    let presented = match is_for(IpAddr::V4(Ipv4Addr::BROADCAST)) {
        Err(Error::CertNotValidForName(context)) => context.presented,
        Err(error) => return Err(unread(error)),
        Ok(()) => return Err("the certificate is for 255.255.255.255, no server's".to_owned()),
    };
    for name in &presented {
        let Some(text) = name.strip_prefix("IpAddress(") else { continue };
        let text = text.strip_suffix(')').unwrap_or(text);
        // It leaves out zeros at the end, so some addresses of IPv6 look like others.
        let address = text.parse().ok().filter(|address| is_for(*address).is_ok());
        let unclear = || format!("the certificate's address {text} cannot be read");
        names.push(address.ok_or_else(unclear)?.to_string());
    }
    Ok(names)
}

/// Returns whether a server's certificate is for an address.
pub(crate) fn is_for(certificate: &CertificateDer<'_>, address: IpAddr) -> bool {
    let name = ServerName::from(address.to_canonical());
    EndEntityCert::try_from(certificate)
        .is_ok_and(|parsed| parsed.verify_is_valid_for_subject_name(&name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{AUTHORITY_DAYS, Authority, Validity};
    use rustls::pki_types::pem::PemObject;
    use std::time::Duration;

    #[test]
    fn a_servers_names_are_found_in_its_certificate() {
        let validity = Validity { now: Duration::from_secs(1_800_000_000), days: AUTHORITY_DAYS };
        let (authority, _) = Authority::create(validity).unwrap();
        let certificate = |names: &[String]| {
            let made = authority.server(names, validity).unwrap();
            CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap()
        };
        for names in [
            &["storage.example", "*.a.example", "192.0.2.7", "2001:db8::1:7", "::1"][..],
            &["localhost"],
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(names_of(&certificate(&names)), Ok(names));
        }
        for unclear in ["::", "fe80:0:0:1::", "255.255.255.255"] {
            assert!(names_of(&certificate(&[unclear.to_owned()])).is_err(), "{unclear}");
        }
        assert!(names_of(&CertificateDer::from(vec![0_u8])).is_err());
    }
}
