//! A local authority: a key that signs the certificates of a server and of client hosts.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::CertificateDer;
use std::time::Duration;
use time::OffsetDateTime;
use webpki::{EndEntityCert, anchor_from_trusted_cert};

/// Time before now from which a certificate is valid, in seconds: clocks of clients differ.
const EARLY_SECONDS: i64 = 3_600;
/// Validity of the authority's certificate, in days: ten years.
pub const AUTHORITY_DAYS: u32 = 3_650;
/// Longest and usual validity of other certificates, in days: the longest that all clients of TLS
/// accept from a server.
pub const DAYS: u32 = 825;
const DAY_SECONDS: i64 = 86_400;
/// Beginning of the authority's name; the beginning of its key's fingerprint follows.
const NAME: &str = "Evenkeel authority";

/// A certificate and its key, in PEM form.
pub struct Made {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// The span of time in which a certificate is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// The current time, as the span since 1970.
    pub now: Duration,
    /// Days from now.
    pub days: u32,
}

/// An authority that signs certificates.
pub struct Authority(Issuer<'static, KeyPair>);

/// Returns the parameters of the authority's certificate, which its key determines.
fn of_authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let fingerprint = params.key_identifier(key);
    let digits: String = fingerprint.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("{NAME} {digits}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Why a key and a certificate are not those of an authority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotAuthority {
    /// The key cannot be read.
    Key(String),
    /// The certificate cannot be read.
    Certificate(String),
    /// The certificate is that of another key.
    OtherKey,
    /// The certificate has another name than [`Authority::create`] gives it.
    OtherName,
}

/// Returns the name in a certificate with these parameters, in DER.
fn subject(params: &CertificateParams, key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let certificate = params.self_signed(key)?;
    let anchor = anchor_from_trusted_cert(certificate.der());
    anchor.map(|anchor| anchor.subject.to_vec()).map_err(|_| rcgen::Error::CouldNotParseCertificate)
}

impl Validity {
    fn apply(self, params: &mut CertificateParams) -> Result<(), String> {
        let seconds = i64::try_from(self.now.as_secs()).map_err(|error| error.to_string())?;
        let date = |seconds| {
            OffsetDateTime::from_unix_timestamp(seconds).map_err(|error| error.to_string())
        };
        params.not_before = date(seconds - EARLY_SECONDS)?;
        params.not_after = date(seconds + i64::from(self.days) * DAY_SECONDS)?;
        Ok(())
    }
}

impl Authority {
    /// Creates an authority with a new key. Returns its certificate, too.
    ///
    /// # Errors
    /// The system has no randomness, or the time is beyond the year 9999.
    pub fn create(validity: Validity) -> Result<(Self, Made), String> {
        let key = KeyPair::generate().map_err(|error| error.to_string())?;
        let mut params = of_authority(&key);
        validity.apply(&mut params)?;
        let certificate = params.self_signed(&key).map_err(|error| error.to_string())?;
        let made = Made { certificate: certificate.pem(), key: key.serialize_pem() };
        Ok((Self(Issuer::new(params, key)), made))
    }

    /// Returns the authority of this private key, in PEM form, and of its certificate, as
    /// [`Self::create`] made them.
    ///
    /// # Errors
    /// The text is no such key, or clients with the certificate would refuse what the key signs.
    pub fn open(key: &str, certificate: &CertificateDer<'_>) -> Result<Self, NotAuthority> {
        let of_key = |error: rcgen::Error| NotAuthority::Key(error.to_string());
        let key = KeyPair::from_pem(key).map_err(of_key)?;
        let parsed = EndEntityCert::try_from(certificate)
            .map_err(|error| NotAuthority::Certificate(error.to_string()))?;
        if parsed.subject_public_key_info().as_ref() != key.subject_public_key_info() {
            return Err(NotAuthority::OtherKey);
        }
        let anchor = anchor_from_trusted_cert(certificate)
            .map_err(|error| NotAuthority::Certificate(error.to_string()))?;
        let params = of_authority(&key);
        if anchor.subject.as_ref() != subject(&params, &key).map_err(of_key)? {
            return Err(NotAuthority::OtherName);
        }
        Ok(Self(Issuer::new(params, key)))
    }

    /// Makes a server's certificate for `names`: DNS names and addresses, at least one.
    ///
    /// # Errors
    /// A name is no DNS name, or as [`Self::create`].
    pub fn server(&self, names: &[String], validity: Validity) -> Result<Made, String> {
        self.make(names, validity, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Makes the certificate by which a client host is recognized, for its id.
    ///
    /// # Errors
    /// As [`Self::server`].
    pub fn host(&self, host: &str, validity: Validity) -> Result<Made, String> {
        self.make(&[host.to_owned()], validity, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn make(
        &self,
        names: &[String],
        validity: Validity,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Made, String> {
        let first = names.first().ok_or("a certificate needs a name")?;
        let mut params =
            CertificateParams::new(names.to_vec()).map_err(|error| error.to_string())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, first.as_str());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        validity.apply(&mut params)?;
        let key = KeyPair::generate().map_err(|error| error.to_string())?;
        let certificate = params.signed_by(&key, &self.0).map_err(|error| error.to_string())?;
        Ok(Made { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_name::host_of;
    use rustls::pki_types::UnixTime;
    use rustls::pki_types::pem::PemObject;
    use webpki::KeyUsage;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn der(made: &Made) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap()
    }

    fn verify(authority: &Made, made: &Made, after: u64, usage: KeyUsage) -> Result<(), String> {
        let anchor = der(authority);
        let anchors = [anchor_from_trusted_cert(&anchor).unwrap()];
        let certificate = der(made);
        let now = UnixTime::since_unix_epoch(NOW + Duration::from_secs(after));
        let algorithms = webpki::ALL_VERIFICATION_ALGS;
        EndEntityCert::try_from(&certificate)
            .unwrap()
            .verify_for_usage(algorithms, &anchors, &[], now, usage, None, None)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn certificates_are_signed_by_their_authority_also_after_its_key_was_read_again() {
        let days = |days| Validity { now: NOW, days };
        let (first, made) = Authority::create(days(AUTHORITY_DAYS)).unwrap();
        let again = Authority::open(&made.key, &der(&made)).unwrap();
        let (stranger, of_stranger) = Authority::create(days(AUTHORITY_DAYS)).unwrap();
        let host = "i-0123456789abcdef0";
        for authority in [&first, &again] {
            let made_host = authority.host(host, days(2)).unwrap();
            assert_eq!(host_of(&der(&made_host)).unwrap().to_string(), host);
            let client = KeyUsage::client_auth;
            assert_eq!(verify(&made, &made_host, 0, client()), Ok(()));
            assert_eq!(verify(&made, &made_host, 2 * 86_400 - 1, client()), Ok(()));
            assert!(verify(&made, &made_host, 2 * 86_400 + 1, client()).is_err(), "expired");
            assert!(verify(&of_stranger, &made_host, 0, client()).is_err(), "another authority");
            assert!(verify(&made, &made_host, 0, KeyUsage::server_auth()).is_err(), "no server's");
            let names = ["localhost".to_owned(), "::1".to_owned()];
            let server = authority.server(&names, days(2)).unwrap();
            assert_eq!(verify(&made, &server, 0, KeyUsage::server_auth()), Ok(()));
            assert!(verify(&made, &server, 0, client()).is_err(), "no host's");
            let why = host_of(&der(&server)).unwrap_err();
            assert!(why.contains("names no host but localhost"), "{why}");
        }
        let other = stranger.host(host, days(2)).unwrap();
        assert!(verify(&made, &other, 0, KeyUsage::client_auth()).is_err());
        let refused = |key: &str, certificate: &CertificateDer<'_>| {
            Authority::open(key, certificate).map(drop)
        };
        assert!(matches!(refused("no key", &der(&made)), Err(NotAuthority::Key(_))));
        let unread = CertificateDer::from(vec![0_u8]);
        assert!(matches!(refused(&made.key, &unread), Err(NotAuthority::Certificate(_))));
        assert_eq!(refused(&made.key, &der(&of_stranger)), Err(NotAuthority::OtherKey));
        // A company's certificate of the same key: its name is not in what the key signs here.
        let key = KeyPair::from_pem(&made.key).unwrap();
        let mut params = of_authority(&key);
        params.distinguished_name.push(DnType::CommonName, "Another name");
        let named = params.self_signed(&key).unwrap();
        assert_eq!(refused(&made.key, named.der()), Err(NotAuthority::OtherName));
        assert!(first.server(&["a b".to_owned()], days(1)).is_ok(), "rcgen checks letters only");
        assert!(first.server(&["ä".to_owned()], days(1)).is_err());
        assert!(first.server(&[], days(1)).is_err());
    }
}
