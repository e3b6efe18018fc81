//! Certificates of a server while it runs: they are read again when their files change, and the log
//! warns before they expire, and of addresses that they are not for.

use evenkeel_client::output::{Failure, failed};
use evenkeel_os::clock;
use evenkeel_tls::server::{Expiry, Refreshed, ServerTls, Unfit};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two checks of the files of certificates.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_hours(24);
/// Time before its end in which a certificate expires soon, as the alert
/// `EvenkeelCertificateExpires` has it.
const SOON: Duration = Duration::from_hours(30 * 24);

/// A listener that shows the certificate to its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    setting: &'static str,
    address: IpAddr,
}

/// Why clients refuse the server's certificate, or will soon.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Warning {
    /// A file's certificate is valid until this second since 1970, which is `left` seconds away.
    Expires { setting: &'static str, file: String, until: u64, left: u64 },
    /// The certificate of a file is not valid yet, or `tls-ca` has not signed it.
    Unfit { file: String, unfit: Unfit },
    /// It was valid until this second.
    Expired { setting: &'static str, file: String, until: u64 },
    /// The certificate is for these names, of which the listener's address is none.
    Name { shown: Shown, file: String, names: String },
    /// The listener is reached from other machines, and the certificate is for loopback only.
    Loopback { shown: Shown, file: String, names: String },
}

impl Shown {
    pub const fn at(setting: &'static str, address: SocketAddr) -> Self {
        Self { setting, address: address.ip().to_canonical() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = |setting| match setting {
            "tls-ca" => "certificates that it has signed are refused then",
            _ => "clients refuse it then",
        };
        match self {
            Self::Expires { setting, file, until, left } => write!(
                f,
                "{setting}: {file} expires on {}, in {} days; {}: replace it, \
                 docs/operating/security.md has the commands",
                clock::utc_text(*until),
                left / DAY.as_secs(),
                clients(setting)
            ),
            Self::Expired { setting, file, until } => write!(
                f,
                "{setting}: {file} has expired on {}: clients refuse it, or what it has signed; \
                 replace it, docs/operating/security.md has the commands",
                clock::utc_text(*until)
            ),
            Self::Unfit { file, unfit } => write!(
                f,
                "tls-cert: {file}: {unfit}: clients that trust the authority in tls-ca refuse it, \
                 among them the verbs on this machine; `evenkeel tls server` makes another one, or \
                 give them its authority as --ca"
            ),
            Self::Name { shown: Shown { setting, address }, file, names } => write!(
                f,
                "{setting}: clients that connect to {address} refuse the certificate {file}, which \
                 is for {names}; `evenkeel tls server --name {address}` adds the address"
            ),
            Self::Loopback { shown: Shown { setting, address }, file, names } => write!(
                f,
                "{setting}: other machines reach {address}, and refuse the certificate {file}, \
                 which is for {names}; `evenkeel tls server --name NAME` adds a name"
            ),
        }
    }
}

/// The certificate of a server, and where it is shown.
pub struct Watched {
    tls: Arc<ServerTls>,
    shown: Vec<Shown>,
}

impl Watched {
    /// `shown` are the listeners.
    pub const fn new(tls: Arc<ServerTls>, shown: Vec<Shown>) -> Self {
        Self { tls, shown }
    }

    fn warn(&self) {
        for warning in self.warnings(clock::since_1970()) {
            tracing::warn!("{warning}");
        }
    }

    fn warnings(&self, now: Duration) -> Vec<Warning> {
        let files = self.tls.files();
        let Expiry { server, authority } = self.tls.expiry();
        let certificate = Some(&files.certificate);
        let all =
            [("tls-cert", certificate, server), ("tls-ca", files.authority.as_ref(), authority)];
        let ends = all.into_iter().filter_map(|(setting, file, until)| {
            expiring(setting, file?.display().to_string(), until?, now.as_secs())
        });
        // That it has expired is reported by its end.
        let unfit = self.tls.check(now).err().filter(|unfit| !matches!(unfit, Unfit::Expired(_)));
        let file = files.certificate.display().to_string();
        let unfit = unfit.map(|unfit| Warning::Unfit { file, unfit });
        let names = self.shown.iter().filter_map(|shown| self.misnamed(*shown));
        ends.chain(unfit).chain(names).collect()
    }

    /// Returns the warning for a listener that clients reach under no name of the certificate. The
    /// verbs on this machine use the address, too, also if it is on loopback. The addresses behind
    /// an unspecified one are not known: any name of the certificate may be one of them.
    fn misnamed(&self, shown: Shown) -> Option<Warning> {
        if !shown.address.is_unspecified() && self.tls.is_for(shown.address) {
            return None;
        }
        let file = self.tls.files().certificate.display().to_string();
        let names = match self.tls.names() {
            Ok(names) => names,
            Err(unclear) => vec![format!("names that are unclear ({unclear})")],
        };
        let text = names.join(", ");
        if !shown.address.is_unspecified() {
            return Some(Warning::Name { shown, file, names: text });
        }
        let is_for_others = names.iter().any(|name| !is_loopback(name));
        (!is_for_others).then_some(Warning::Loopback { shown, file, names: text })
    }
}

/// Returns the warning for a certificate that has expired, or expires soon.
fn expiring(setting: &'static str, file: String, until: u64, now: u64) -> Option<Warning> {
    match until.checked_sub(now) {
        None => Some(Warning::Expired { setting, file, until }),
        Some(left) if left < SOON.as_secs() => {
            Some(Warning::Expires { setting, file, until, left })
        }
        Some(_) => None,
    }
}

fn is_loopback(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The thread that has certificates read again when their files change. Ends when dropped.
pub struct Refresher {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Refresher {
    /// Logs the warnings, and starts the thread, which repeats them once a day and after each
    /// change of the files.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(watched: Watched) -> Result<Self, Failure> {
        watched.warn();
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            let mut warned = clock::since_boot();
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let is_replaced = refresh(&watched.tls);
                if is_replaced || clock::since_boot().saturating_sub(warned) >= DAY {
                    watched.warn();
                    warned = clock::since_boot();
                }
            }
        };
        let thread = std::thread::Builder::new().name("tls-files".to_owned()).spawn(work);
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { stop: Some(stop), thread })
    }
}

impl Drop for Refresher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that reads certificates again panicked");
        }
    }
}

/// Returns whether there is a new certificate.
fn refresh(tls: &ServerTls) -> bool {
    let certificate = tls.files().certificate.display();
    match tls.refresh(clock::since_1970()) {
        Refreshed::Unchanged => false,
        Refreshed::Replaced => {
            tracing::info!(%certificate, "new connections get the certificate that was read again");
            true
        }
        Refreshed::Refused(error) => {
            let what = "the files of the certificate have changed and cannot be used: the former \
                        ones stay in use";
            tracing::warn!(%error, "{what}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_os::files::write_whole_with_mode;
    use evenkeel_tls::authority::{Authority, Validity};
    use evenkeel_tls::server::ServerFiles;
    use std::fs::write;
    use tempfile::TempDir;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    /// Returns the warnings of listeners with a certificate for these names, valid for `days` of
    /// the authority's 40.
    fn warnings(names: &[&str], days: u32, shown: &[&str]) -> Vec<Warning> {
        let folder = TempDir::new().unwrap();
        let path = |name| folder.path().join(name);
        let (authority, made) = Authority::create(Validity { now: NOW, days: 40 }).unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let server = authority.server(&names, Validity { now: NOW, days }).unwrap();
        write(path("cert"), server.certificate).unwrap();
        write(path("ca"), made.certificate).unwrap();
        write_whole_with_mode(&path("key"), server.key.as_bytes(), 0o600).unwrap();
        let files = ServerFiles {
            certificate: path("cert"),
            key: path("key"),
            authority: Some(path("ca")),
        };
        let shown = shown.iter().map(|text| Shown::at("listen", text.parse().unwrap())).collect();
        let watched = Watched::new(Arc::new(ServerTls::open(files).unwrap()), shown);
        watched.warnings(NOW + 9 * DAY)
    }

    #[test]
    fn a_certificate_of_another_authority_or_of_later_is_reported() {
        let folder = TempDir::new().unwrap();
        let path = |name| folder.path().join(name);
        let valid = Validity { now: NOW, days: 40 };
        let (authority, _) = Authority::create(valid).unwrap();
        let (_, made) = Authority::create(valid).unwrap();
        let server = authority.server(&["a".to_owned()], valid).unwrap();
        write(path("cert"), server.certificate).unwrap();
        write(path("ca"), made.certificate).unwrap();
        write_whole_with_mode(&path("key"), server.key.as_bytes(), 0o600).unwrap();
        let authority = Some(path("ca"));
        let files = ServerFiles { certificate: path("cert"), key: path("key"), authority };
        let watched = Watched::new(Arc::new(ServerTls::open(files).unwrap()), Vec::new());
        let found = texts(&watched.warnings(NOW + 9 * DAY));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("cert: tls-ca has not signed it ("), "{found:?}");
        let early = texts(&watched.warnings(NOW - 9 * DAY));
        assert!(early[0].contains("cert: it is not valid before 2027-"), "{early:?}");
    }

    fn texts(warnings: &[Warning]) -> Vec<String> {
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_certificate_that_expires_within_thirty_days_or_has_expired_is_reported() {
        assert_eq!(warnings(&["a"], 39, &[]), []);
        let soon = texts(&warnings(&["a"], 38, &[]));
        assert_eq!(soon.len(), 1);
        let text = "cert expires on 2027-02-22 08:00:00 UTC, in 29 days; clients refuse it then";
        assert!(soon[0].starts_with("tls-cert: ") && soon[0].contains(text), "{soon:?}");
        let late = texts(&warnings(&["a"], 8, &[]));
        assert!(late[0].contains("cert has expired on 2027-01-23 08:00:00 UTC"), "{late:?}");
        let of_authority = expiring("tls-ca", "x".to_owned(), 100, 50).unwrap().to_string();
        assert!(of_authority.contains("certificates that it has signed are"), "{of_authority}");
    }

    #[test]
    fn a_listener_whose_address_the_certificate_is_not_for_is_reported() {
        let own = ["storage.example", "localhost", "127.0.0.1", "192.0.2.7"];
        let fits = ["127.0.0.1:1", "192.0.2.7:1", "[::ffff:192.0.2.7]:1", "0.0.0.0:1", "[::]:1"];
        assert_eq!(warnings(&own, 40, &fits), []);
        for other in ["192.0.2.8:1", "[2001:db8::1]:1", "127.0.0.2:1", "[::1]:1"] {
            let found = texts(&warnings(&own, 40, &[other]));
            let address = other.parse::<SocketAddr>().unwrap().ip();
            assert_eq!(found.len(), 1, "{found:?}");
            let start = format!("listen: clients that connect to {address} refuse the certificate");
            assert!(found[0].starts_with(&start), "{found:?}");
            assert!(found[0].contains("which is for storage.example, localhost, "), "{found:?}");
        }
        // Only this machine has these names.
        let here = ["localhost", "127.0.0.1", "::1"];
        let found = texts(&warnings(&here, 40, &["0.0.0.0:1"]));
        assert!(found[0].starts_with("listen: other machines reach 0.0.0.0"), "{found:?}");
        assert_eq!(warnings(&here, 40, &["127.0.0.1:1", "[::1]:1"]), []);
    }
}
