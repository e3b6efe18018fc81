//! TLS of a server's listeners, and the listeners that other machines may reach without it.

use crate::certificates::Shown;
use crate::private_file;
use evenkeel_cli::endpoint::Scheme;
use evenkeel_cli::tls::{NbdListen, PlainListener, Tls};
use evenkeel_client::output::{Exit, Failure, failed};
use evenkeel_engine::{Engine, Entrance};
use evenkeel_tls::nbd::{Inside, Listening, NbdTls, Proven};
use evenkeel_tls::server::{ServerFiles, ServerTls};
use evenkeel_wire::agent::HostAddress;
use std::cell::{Cell, OnceCell};
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a server protects its connections, as the flags say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transport {
    /// The server's certificate, if it has one.
    pub files: Option<ServerFiles>,
    /// Addresses of NBD over TLS.
    pub nbd_listen: Vec<SocketAddr>,
    /// Listeners that may be without TLS on any address.
    pub insecure: Vec<PlainListener>,
}

fn usage(message: impl Into<String>) -> Failure {
    Failure::new(message).exit(Exit::Usage)
}

/// Returns a path that does not depend on the current folder.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

impl Transport {
    /// Reads the flags. Paths are made absolute; the files are not opened yet.
    ///
    /// # Errors
    /// Flags that do not fit each other, or a key that other users can read.
    pub fn of(flags: &Tls, is_of_cluster: bool) -> Result<Self, Failure> {
        let Tls { tls_cert, tls_key, tls_ca, nbd_tls_listen, insecure } = flags;
        let files = match (tls_cert, tls_key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(ServerFiles {
                certificate: absolute(certificate)?,
                key: absolute(key)?,
                authority: tls_ca.as_deref().map(absolute).transpose()?,
            }),
            _ => return Err(usage("tls-cert and tls-key: name both, or neither")),
        };
        let nbd_listen = NbdListen::only_addresses("nbd-tls-listen", nbd_tls_listen)?;
        let Some(files) = files else {
            let without =
                [("tls-ca", tls_ca.is_some()), ("nbd-tls-listen", !nbd_listen.is_empty())];
            if let Some((flag, _)) = without.iter().find(|(_, is_given)| *is_given) {
                let hint = "name tls-cert and tls-key; `evenkeel tls init` makes them";
                return Err(usage(format!("{flag}: the server has no certificate")).hint(hint));
            }
            return Ok(Self { insecure: insecure.clone(), ..Self::default() });
        };
        if is_of_cluster && files.authority.is_none() {
            let message = "tls-cert: nodes of a cluster (etcd) check each other's certificate of \
                           the API, which they cannot without tls-ca";
            return Err(usage(message).hint("`evenkeel tls init` makes an authority"));
        }
        if !nbd_listen.is_empty() && files.authority.is_none() {
            let message = "nbd-tls-listen: certificates of hosts cannot be checked without tls-ca";
            return Err(usage(message).hint("`evenkeel tls init` makes an authority"));
        }
        private_file::check("tls-key", &files.key)?;
        Ok(Self { files: Some(files), nbd_listen, insecure: insecure.clone() })
    }

    /// Refuses listeners that other machines reach without TLS, unless the operator has named them.
    ///
    /// # Errors
    /// Names the first of them.
    pub fn check(&self, api: SocketAddr, nbd: &[SocketAddr]) -> Result<(), Failure> {
        let plain = self.plain(api, nbd);
        let refused = plain.into_iter().find(|plain| !self.insecure.contains(&plain.listener));
        refused.map_or(Ok(()), |plain| Err(plain.refusal()))
    }

    /// Logs a warning for each listener that other machines reach without TLS.
    pub fn warn(&self, api: SocketAddr, nbd: &[SocketAddr]) {
        for plain in self.plain(api, nbd) {
            let Exposed { address, .. } = plain;
            let listener = plain.name();
            let risk = plain.risk();
            tracing::warn!(
                "{listener}: {address} is reachable from other machines, and there is no TLS: \
                 anyone on the network path {risk}; see docs/operating/security.md"
            );
        }
    }

    /// Returns the listeners without TLS that other machines reach.
    fn plain(&self, api: SocketAddr, nbd: &[SocketAddr]) -> Vec<Exposed> {
        let api = Some(api).filter(|_| self.files.is_none());
        let of_api = api.map(|address| Exposed { listener: PlainListener::Listen, address });
        let of_nbd =
            nbd.iter().map(|&address| Exposed { listener: PlainListener::NbdListen, address });
        let all = of_api.into_iter().chain(of_nbd);
        all.filter(|plain| !plain.address.ip().to_canonical().is_loopback()).collect()
    }

    /// Returns how clients reach the API.
    pub fn scheme(&self) -> Scheme<'_> {
        match &self.files {
            None => Scheme::Http,
            Some(files) => Scheme::Https(files.authority.as_deref()),
        }
    }

    /// Returns the listeners that show the certificate, with their settings.
    pub fn encrypted(&self, api: SocketAddr) -> Vec<Shown> {
        let of_nbd = self.nbd_listen.iter().map(|address| Shown::at("nbd-tls-listen", *address));
        [Shown::at("listen", api)].into_iter().chain(of_nbd).collect()
    }

    /// Reads the certificates, if there are any.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn open(&self) -> Result<Option<Arc<ServerTls>>, Failure> {
        let opened = self.files.clone().map(ServerTls::open).transpose();
        opened.map(|tls| tls.map(Arc::new)).map_err(|error| usage(format!("tls: {error}")))
    }
}

/// A listener that other machines reach without TLS.
struct Exposed {
    listener: PlainListener,
    address: SocketAddr,
}

impl Exposed {
    const fn name(&self) -> &'static str {
        match self.listener {
            PlainListener::Listen => "listen",
            PlainListener::NbdListen => "nbd-listen",
        }
    }

    const fn risk(&self) -> &'static str {
        match self.listener {
            PlainListener::Listen => "can read requests and replies",
            PlainListener::NbdListen => "can read and change the data of attached volumes",
        }
    }

    fn refusal(&self) -> Failure {
        let Self { address, .. } = self;
        let name = self.name();
        let risk = self.risk();
        let message = format!(
            "{name}: other machines reach {address}, and there is no TLS: anyone on the network \
             path {risk}"
        );
        let hint = match self.listener {
            PlainListener::Listen => {
                "`evenkeel tls init` makes certificates for tls-cert and tls-key; `--insecure \
                 listen` serves the address without TLS"
            }
            PlainListener::NbdListen => {
                "serve the address with nbd-tls-listen, after `evenkeel tls init`; `--insecure \
                 nbd-listen` serves it without TLS"
            }
        };
        usage(message).hint(hint)
    }
}

/// The data plane for clients that have proven which host they are.
struct ByName(Entrance);

impl Inside for ByName {
    fn connect(&self, client: &Proven<'_>) -> io::Result<UnixStream> {
        let address = HostAddress::of(client.address.ip());
        self.0.connect_proven(client.host, Some(address)).map(|inside| inside.stream)
    }

    fn report_refused(&self, address: HostAddress, why: &str) {
        self.0.report_refused(address, why);
    }
}

/// Returns the data plane of an engine for clients over TLS.
pub fn data_plane_of(engine: &Engine) -> Arc<dyn Inside> {
    Arc::new(ByName(engine.entrance()))
}

/// NBD over TLS of a server: bound from the start, and open when the data plane is.
pub struct NbdListeners {
    waiting: Cell<Option<(Listening, Arc<ServerTls>)>>,
    addresses: Vec<SocketAddr>,
    open: OnceCell<NbdTls>,
}

impl NbdListeners {
    /// Binds the addresses.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub fn bind(transport: &Transport, tls: Option<&Arc<ServerTls>>) -> Result<Self, Failure> {
        let listening = match tls {
            Some(tls) if !transport.nbd_listen.is_empty() => {
                let listening = Listening::bind(&transport.nbd_listen).map_err(failed)?;
                Some((listening, Arc::clone(tls)))
            }
            _ => None,
        };
        let addresses = listening.iter().flat_map(|(listening, _)| listening.addresses());
        let addresses = addresses.copied().collect();
        Ok(Self { waiting: Cell::new(listening), addresses, open: OnceCell::new() })
    }

    /// Returns the addresses with their real ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts clients of `inside` from now on. `cores` processors may encrypt.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn open(&self, inside: Arc<dyn Inside>, cores: u16) -> Result<(), Failure> {
        let Some((listening, tls)) = self.waiting.take() else { return Ok(()) };
        let open = listening.open(tls, inside, cores).map_err(failed)?;
        // It is opened once.
        let _ = self.open.set(open);
        Ok(())
    }

    /// Stops accepting clients; those of volumes stay.
    pub fn close_doors(&self) {
        drop(self.waiting.take());
        self.open.get().into_iter().for_each(NbdTls::close_doors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn listeners_that_other_machines_reach_need_tls_or_the_operators_word() {
        let none = Transport::default();
        for here in ["127.0.0.1:8650", "127.9.9.9:1", "[::1]:8650", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(none.check(address(here), &[address(here)]), Ok(()), "{here}");
        }
        let here = address("127.0.0.1:1");
        for there in ["0.0.0.0:10809", "[::]:10809", "10.0.0.1:10809", "[fe80::1]:1"] {
            let there = address(there);
            let of_api = none.check(there, &[]).unwrap_err();
            let start = format!("listen: other machines reach {there}, and there is no TLS");
            assert!(of_api.message.starts_with(&start), "{of_api}");
            assert!(of_api.hint.unwrap().contains("--insecure listen"));
            let of_nbd = none.check(here, &[here, there]).unwrap_err();
            let start = format!("nbd-listen: other machines reach {there}, and there is no TLS");
            assert!(of_nbd.message.starts_with(&start), "{of_nbd}");
            assert!(of_nbd.hint.unwrap().contains("--insecure nbd-listen"));
            let allow = |insecure: &[PlainListener]| Transport {
                insecure: insecure.to_vec(),
                ..Transport::default()
            };
            use PlainListener::{Listen, NbdListen};
            assert!(allow(&[Listen]).check(there, &[]).is_ok());
            assert!(allow(&[Listen]).check(there, &[there]).is_err());
            assert!(allow(&[NbdListen]).check(here, &[there]).is_ok());
            assert!(allow(&[NbdListen]).check(there, &[there]).is_err());
            assert!(allow(&[NbdListen, Listen]).check(there, &[there]).is_ok());
            // With a certificate the API has TLS, and `nbd-listen` still has none.
            let path = PathBuf::from("x");
            let files = ServerFiles { certificate: path.clone(), key: path, authority: None };
            let encrypted = Transport { files: Some(files), ..Transport::default() };
            assert!(encrypted.check(there, &[]).is_ok());
            assert!(encrypted.check(there, &[there]).is_err());
        }
    }

    #[test]
    fn flags_of_tls_that_do_not_fit_each_other_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        let key = path("key").unwrap();
        write(&key, "").unwrap();
        set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        let full = Tls {
            tls_cert: path("cert"),
            tls_key: path("key"),
            tls_ca: path("ca"),
            nbd_tls_listen: vec![NbdListen::At(address("127.0.0.1:1"))],
            insecure: Vec::new(),
        };
        let listens = |flags: &Tls| Transport::of(flags, false).unwrap().nbd_listen;
        assert_eq!(listens(&full), [address("127.0.0.1:1")]);
        let off = Tls { nbd_tls_listen: vec![NbdListen::None], ..full.clone() };
        assert_eq!(listens(&off), []);
        // It is no reason to need a certificate or an authority.
        assert_eq!(listens(&Tls { tls_ca: None, ..off.clone() }), []);
        assert_eq!(listens(&Tls { nbd_tls_listen: off.nbd_tls_listen, ..Tls::default() }), []);
        let refused = |flags: Tls, is_of_cluster, text: &str| {
            let failure = Transport::of(&flags, is_of_cluster).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(failure.message.starts_with(text), "{failure}");
        };
        let part = full.clone();
        refused(Tls { tls_cert: None, ..part.clone() }, false, "tls-cert and tls-key: name both");
        let only_ca = Tls { tls_cert: None, tls_key: None, ..part.clone() };
        refused(only_ca.clone(), false, "tls-ca: the server has no certificate");
        refused(Tls { tls_ca: None, ..only_ca }, false, "nbd-tls-listen: the server has no");
        refused(Tls { tls_ca: None, ..part.clone() }, false, "nbd-tls-listen: certificates of");
        let both = vec![NbdListen::None, NbdListen::At(address("127.0.0.1:1"))];
        let both = Tls { nbd_tls_listen: both, ..part.clone() };
        refused(both, false, "nbd-tls-listen: none stands beside an address");
        let alone = Tls { tls_ca: None, nbd_tls_listen: Vec::new(), ..part.clone() };
        refused(alone, true, "tls-cert: nodes of a cluster (etcd)");
        assert!(Transport::of(&part, true).is_ok());
        set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
        refused(part, false, "tls-key: others can use ");
    }
}
