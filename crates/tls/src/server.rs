//! The server's certificate and the authority of its clients. Their files are read again when they
//! change, so that a certificate is renewed without a restart.

use crate::validity;
pub use crate::validity::Unfit;
use crate::{TlsError, host_name, pem, provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// The one protocol within TLS that the API speaks.
const HTTP: &[u8] = b"http/1.1";

/// Files in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerFiles {
    /// The server's certificate, and intermediate certificates up to the authority's.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of the authority that signs those of hosts, if there are any.
    pub authority: Option<PathBuf>,
}

/// TLS configurations by the files as they were read last.
struct Read {
    api: Arc<ServerConfig>,
    /// With certificates of clients; `None` without an authority.
    nbd: Option<Arc<ServerConfig>>,
    /// With the authority for other servers; `None` without one.
    nodes: Option<Arc<ClientConfig>>,
    /// The server's own certificate, and those of intermediate authorities.
    chain: Vec<CertificateDer<'static>>,
    /// The authority, if there is one.
    roots: Option<Arc<RootCertStore>>,
    expiry: Expiry,
}

/// The last seconds in which certificates are valid, since 1970; `None` if they cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expiry {
    /// Of the server's certificate, or of an intermediate one that ends before it.
    pub server: Option<u64>,
    /// Of the authority's certificates, the first that ends; `None` also without an authority.
    pub authority: Option<u64>,
}

/// The number and size of each file, and the times of its last changes, also of its owner and mode:
/// they differ when the content or the access does.
type Versions = Vec<Option<(u64, u64, [i64; 4])>>;

/// The result of [`ServerTls::refresh`].
struct Seen {
    /// The files when they were read last and could be used.
    used: Versions,
    /// Why they could not be used since then.
    refused: Option<TlsError>,
}

/// The TLS of a server, which all its listeners share.
pub struct ServerTls {
    files: ServerFiles,
    read: RwLock<Read>,
    seen: Mutex<Seen>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Result of [`ServerTls::refresh`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refreshed {
    /// No file has changed since the last time, or the files are refused for the same reason.
    Unchanged,
    /// New connections get the new certificate.
    Replaced,
    /// The files have changed and cannot be used; the former ones stay in use.
    Refused(TlsError),
}

impl ServerFiles {
    fn versions(&self) -> Versions {
        let files = [Some(&self.certificate), Some(&self.key), self.authority.as_ref()];
        let version = |file: Option<&PathBuf>| {
            let found = fs::metadata(file?).ok()?;
            let changes = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
            Some((found.ino(), found.size(), changes))
        };
        files.into_iter().map(version).collect()
    }

    fn read(&self) -> Result<Read, TlsError> {
        let chain = pem::certificates(&self.certificate)?;
        let key = pem::private_key(&self.key)?;
        let mut until = None;
        let mut authorities = None;
        let (nbd, nodes) = match &self.authority {
            None => (None, None),
            Some(authority) => {
                let certificates = pem::certificates(authority)?;
                until = validity::until(&certificates);
                let roots = pem::roots(authority, certificates)?;
                authorities = Some(Arc::clone(&roots));
                let nodes = ClientConfig::builder_with_provider(provider())
                    .with_protocol_versions(&[&version::TLS13])
                    .map_err(|error| TlsError::new(authority, error))?
                    .with_root_certificates(Arc::clone(&roots))
                    .with_no_client_auth();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| TlsError::new(authority, error))?;
                let pair = (chain.clone(), key.clone_key());
                let mut nbd =
                    self.config(pair, |builder| builder.with_client_cert_verifier(verifier))?;
                // A resumed session would not check the client's certificate again.
                nbd.session_storage = Arc::new(NoServerSessionStorage {});
                nbd.send_tls13_tickets = 0;
                (Some(Arc::new(nbd)), Some(Arc::new(nodes)))
            }
        };
        let expiry = Expiry { server: validity::until(&chain), authority: until };
        let mut api = self.config((chain.clone(), key), |builder| builder.with_no_client_auth())?;
        api.alpn_protocols = vec![HTTP.to_vec()];
        Ok(Read { api: Arc::new(api), nbd, nodes, chain, roots: authorities, expiry })
    }

    fn config(
        &self,
        (chain, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
        clients: impl FnOnce(
            rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier>,
        )
            -> rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    ) -> Result<ServerConfig, TlsError> {
        let wrong = |error: rustls::Error| {
            let key = self.key.display();
            TlsError::new(
                &self.certificate,
                format!("it cannot be used with the key {key}: {error}"),
            )
        };
        let builder = ServerConfig::builder_with_provider(provider())
            // 1.2 for clients of today's distributions, such as nbd-client.
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .map_err(wrong)?;
        clients(builder).with_single_cert(chain, key).map_err(wrong)
    }
}

impl Read {
    /// Returns the server's own certificate. A chain has one at least.
    fn own(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }

    fn check(&self, now: Duration) -> Result<(), Unfit> {
        validity::check(&self.chain, self.roots.as_deref(), now)
    }

    /// Checks that clients that accept `former` accept this one, too. A certificate of another
    /// authority than tls-ca may be intended, so it is refused only after one that tls-ca verifies.
    fn replaces(&self, former: &Self, now: Duration) -> Result<(), Unfit> {
        match self.check(now) {
            Err(Unfit::Unverified(_)) if former.check(now).is_err() => Ok(()),
            checked => checked,
        }
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used, or the key is not that of the certificate.
    pub fn open(files: ServerFiles) -> Result<Self, TlsError> {
        let seen = Mutex::new(Seen { used: files.versions(), refused: None });
        let read = RwLock::new(files.read()?);
        Ok(Self { files, read, seen })
    }

    /// Returns the configuration for the next connection to the API.
    #[must_use]
    pub fn api(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.read.read().unwrap_or_else(PoisonError::into_inner).api)
    }

    /// Returns the configuration for the next connection of NBD; `None` without an authority of
    /// hosts.
    #[must_use]
    pub fn nbd(&self) -> Option<Arc<ServerConfig>> {
        self.read.read().unwrap_or_else(PoisonError::into_inner).nbd.clone()
    }

    /// Returns the configuration for the next connection to the API of another node of the cluster,
    /// whose certificate the authority has signed; `None` without an authority.
    #[must_use]
    pub fn nodes(&self) -> Option<Arc<ClientConfig>> {
        self.read.read().unwrap_or_else(PoisonError::into_inner).nodes.clone()
    }

    /// Returns when the certificates expire.
    #[must_use]
    pub fn expiry(&self) -> Expiry {
        self.read.read().unwrap_or_else(PoisonError::into_inner).expiry
    }

    /// Returns whether the server's certificate is for an address.
    #[must_use]
    pub fn is_for(&self, address: IpAddr) -> bool {
        host_name::is_for(self.read.read().unwrap_or_else(PoisonError::into_inner).own(), address)
    }

    /// Returns the names and the addresses that the server's certificate is for.
    ///
    /// # Errors
    /// The text says why they cannot be read.
    pub fn names(&self) -> Result<Vec<String>, String> {
        host_name::names_of(self.read.read().unwrap_or_else(PoisonError::into_inner).own())
    }

    /// Checks the server's certificate at `now` since 1970, by the authority if there is one.
    ///
    /// # Errors
    /// See [`Unfit`].
    pub fn check(&self, now: Duration) -> Result<(), Unfit> {
        self.read.read().unwrap_or_else(PoisonError::into_inner).check(now)
    }

    /// Returns the files.
    #[must_use]
    pub fn files(&self) -> &ServerFiles {
        &self.files
    }

    /// Reads the files again if one of them has changed, or if they could not be used the last
    /// time: the reason may be outside of them. Connections that are open stay as they are. A
    /// certificate that is not valid at `now` since 1970 is refused, and one that the authority
    /// has not signed after one that it has.
    pub fn refresh(&self, now: Duration) -> Refreshed {
        let versions = self.files.versions();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.used == versions && seen.refused.is_none() {
            return Refreshed::Unchanged;
        }
        let read = self.files.read().and_then(|read| {
            let former = self.read.read().unwrap_or_else(PoisonError::into_inner);
            let fits = read.replaces(&former, now);
            fits.map_err(|unfit| TlsError::new(&self.files.certificate, unfit))?;
            Ok(read)
        });
        match read {
            Ok(read) => {
                *seen = Seen { used: versions, refused: None };
                *self.read.write().unwrap_or_else(PoisonError::into_inner) = read;
                Refreshed::Replaced
            }
            Err(error) if seen.refused.as_ref() == Some(&error) => Refreshed::Unchanged,
            Err(error) => {
                seen.refused = Some(error.clone());
                Refreshed::Refused(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{Authority, Made, Validity};
    use evenkeel_os::files::{write_whole, write_whole_with_mode};
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    const NOW: Duration = Duration::from_secs(1_800_000_000);
    const DAY: Duration = Duration::from_hours(24);

    fn write(folder: &Path, server: &Made) {
        write_whole_with_mode(&folder.join("key"), server.key.as_bytes(), 0o600).unwrap();
        write_whole(&folder.join("cert"), server.certificate.as_bytes()).unwrap();
    }

    #[test]
    fn files_that_change_are_read_again_and_broken_ones_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let validity = Validity { now: NOW, days: 1 };
        let (authority, made) = Authority::create(validity).unwrap();
        let server = |name: &str| authority.server(&[name.to_owned()], validity).unwrap();
        let first = server("a");
        write(folder.path(), &first);
        fs::write(path("ca"), &made.certificate).unwrap();
        let files = ServerFiles {
            certificate: path("cert"),
            key: path("key"),
            authority: Some(path("ca")),
        };
        let tls = ServerTls::open(files.clone()).unwrap();
        assert!(tls.nbd().is_some());
        assert_eq!(tls.refresh(NOW), Refreshed::Unchanged);
        let before = tls.api();
        // A key without its certificate, as in the middle of a replacement.
        let second = server("b");
        write_whole_with_mode(&path("key"), second.key.as_bytes(), 0o600).unwrap();
        let Refreshed::Refused(error) = tls.refresh(NOW) else { panic!("it is used") };
        assert!(error.to_string().contains("cannot be used with the key"), "{error}");
        assert_eq!(tls.refresh(NOW), Refreshed::Unchanged, "it is reported once");
        assert!(Arc::ptr_eq(&tls.api(), &before));
        fs::remove_file(path("cert")).unwrap();
        assert!(matches!(tls.refresh(NOW), Refreshed::Refused(_)));
        write(folder.path(), &second);
        assert_eq!(tls.refresh(NOW), Refreshed::Replaced);
        assert!(!Arc::ptr_eq(&tls.api(), &before));
        assert_eq!(tls.names(), Ok(vec!["b".to_owned()]), "those of the new certificate");
        assert!(!tls.is_for([127, 0, 0, 1].into()));
        let end = Some(1_800_000_000 + 86_400);
        assert_eq!(tls.expiry(), Expiry { server: end, authority: end });
        // A mode is no part of the content. It is refused, and used once it is mended.
        let of_mode = |mode| {
            set_permissions(path("key"), Permissions::from_mode(mode)).unwrap();
            tls.refresh(NOW)
        };
        let Refreshed::Refused(error) = of_mode(0o644) else { panic!("others can use it") };
        assert!(error.to_string().contains("others can use it"), "{error}");
        assert_eq!(of_mode(0o644), Refreshed::Unchanged, "it is reported once");
        assert_eq!(of_mode(0o640), Refreshed::Replaced);
        // Without an authority there is no NBD over TLS.
        let without = ServerTls::open(ServerFiles { authority: None, ..files.clone() }).unwrap();
        assert!(without.nbd().is_none());
        assert_eq!(without.expiry().authority, None);
        let no_ca = ServerFiles { authority: Some(path("key")), ..files };
        let error = ServerTls::open(no_ca).unwrap_err();
        assert!(error.to_string().ends_with("it has no certificate in PEM form"), "{error}");
    }
    #[test]
    fn a_new_certificate_that_clients_would_refuse_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let valid = |now, days| Validity { now, days };
        let (authority, made) = Authority::create(valid(NOW, 40)).unwrap();
        let (other, made_by_other) = Authority::create(valid(NOW, 40)).unwrap();
        let server = |authority: &Authority, validity| {
            write(folder.path(), &authority.server(&["a".to_owned()], validity).unwrap());
        };
        fs::write(path("ca"), &made.certificate).unwrap();
        server(&authority, valid(NOW, 30));
        let files = ServerFiles {
            certificate: path("cert"),
            key: path("key"),
            authority: Some(path("ca")),
        };
        let tls = ServerTls::open(files.clone()).unwrap();
        assert_eq!(tls.check(NOW), Ok(()));
        let before = tls.api();
        let refused = |validity, by: &Authority, reason: &str| {
            server(by, validity);
            let now = NOW + 9 * DAY;
            let Refreshed::Refused(error) = tls.refresh(now) else { panic!("used: {reason}") };
            assert!(error.to_string().contains(reason), "{error}");
            assert_eq!(tls.refresh(now), Refreshed::Unchanged, "it is reported once");
            assert!(Arc::ptr_eq(&tls.api(), &before));
        };
        refused(valid(NOW, 8), &authority, "cert: it has expired on 2027-01-23 08:00:00 UTC");
        refused(valid(NOW + 20 * DAY, 9), &authority, "cert: it is not valid before 2027-02-0");
        refused(valid(NOW, 30), &other, "cert: tls-ca has not signed it (");
        // The time comes at which it is valid.
        server(&authority, valid(NOW + 20 * DAY, 9));
        assert_eq!(tls.refresh(NOW + 21 * DAY), Refreshed::Replaced);
        // The authority is replaced with the certificate.
        server(&other, valid(NOW, 30));
        fs::write(path("ca"), &made_by_other.certificate).unwrap();
        assert_eq!(tls.refresh(NOW + 21 * DAY), Refreshed::Replaced);
        // A start with a certificate of another authority is intended, and so is its renewal.
        server(&authority, valid(NOW, 30));
        let tls = ServerTls::open(files.clone()).unwrap();
        assert!(matches!(tls.check(NOW), Err(Unfit::Unverified(_))));
        server(&authority, valid(NOW, 31));
        assert_eq!(tls.refresh(NOW), Refreshed::Replaced);
        let alone = ServerTls::open(ServerFiles { authority: None, ..files }).unwrap();
        assert_eq!(alone.check(NOW), Ok(()));
        assert!(matches!(alone.check(NOW + 32 * DAY), Err(Unfit::Expired(_))));
    }
}
