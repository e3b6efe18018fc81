//! Several servers, of which one serves: it is elected over etcd, and the others stand by. What
//! keeps a former one from writing is Ceph's blocklist, which the next one puts it on, and etcd's
//! comparison at each commit; the election only says when to try.

use crate::cli::{self, Bytes, StoreKind};
use crate::clock::Deadline;
use crate::message::{Exit, Failure, failed};
use evenkeel_control::journal::etcd::EtcdJournal;
use evenkeel_control::journal::etcd::client::{Client, EtcdError, Options, TlsFiles};
use evenkeel_control::journal::etcd::election::{Election, Leader, Leadership, Standing};
use evenkeel_control::journal::etcd::keys::Keys;
use evenkeel_store::Pool;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks at who leads, and at whether this server still may serve.
const LOOK: Duration = Duration::from_millis(250);
/// The most bytes of a password.
const PASSWORD_BYTES_MAX: usize = 1_024;
/// A text that no other process is given.
const RANDOM_ID: &str = "/proc/sys/kernel/random/uuid";

/// The cluster that a server belongs to.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    node: String,
    options: Options,
}

/// The right to serve.
pub struct Elected {
    pub journal: EtcdJournal,
    pub leadership: Leadership,
}

fn usage(message: String) -> Failure {
    Failure::new(message).exit(Exit::Usage)
}

impl Cluster {
    /// What the flags say; none without endpoints of etcd.
    pub fn of(arguments: &cli::Etcd, store: &StoreKind) -> Result<Option<Self>, Failure> {
        if arguments.etcd.is_empty() {
            return alone(arguments);
        }
        if store.bytes != Bytes::Rbd {
            let message = format!("etcd: the bytes of the store \"{store}\" are on one machine");
            let hint = "serve with --store rbd, or leave out --etcd";
            return Err(usage(message).hint(hint));
        }
        let name = arguments.cluster.clone().unwrap_or_else(|| cli::CLUSTER.to_owned());
        Keys::of(&name).map_err(usage)?;
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = arguments.node.clone().unwrap_or_else(host);
        let options = Options {
            endpoints: arguments.etcd.clone(),
            user: user(arguments)?,
            tls: tls(arguments)?,
        };
        // What cannot be used is told before anything waits.
        Client::new(&options).map_err(|error| usage(format!("etcd: {error}")))?;
        Ok(Some(Self { name, node, options }))
    }

    /// Waits until this server leads; `None` if it is to stop before.
    pub fn wait_to_lead(
        &self,
        api: SocketAddr,
        is_stopped: &AtomicBool,
    ) -> Result<Option<Elected>, Failure> {
        let keys = Keys::of(&self.name).map_err(Failure::new)?;
        let client = Client::new(&self.options).map_err(failed)?;
        let incarnation = fs::read_to_string(RANDOM_ID)
            .map_err(|error| Failure::new(format!("{RANDOM_ID}: {error}")))?;
        let candidate = Leader {
            node: self.node.clone(),
            incarnation: incarnation.trim().to_owned(),
            address: api.to_string(),
        };
        let election = Election::new(client.clone(), keys.clone(), candidate);
        let mut told = String::new();
        while !is_stopped.load(Ordering::Acquire) {
            match election.campaign() {
                Ok(Standing::Leads(leadership)) => {
                    let journal = EtcdJournal::lead(client, keys, leadership.clone());
                    return Ok(Some(Elected { journal, leadership }));
                }
                Ok(Standing::Follows(leader)) => {
                    let Leader { node, address, .. } = leader;
                    tell(&mut told, format!("stands by: {node} serves, its API is at {address}"));
                }
                Err(EtcdError::Unavailable { text, .. }) => {
                    tell(&mut told, format!("stands by until etcd answers: {text}"));
                }
                Err(error) => return Err(failed(error)),
            }
            Deadline::after(LOOK).pause(LOOK);
        }
        Ok(None)
    }
}

/// Without etcd the other flags of a cluster would be without effect.
fn alone(arguments: &cli::Etcd) -> Result<Option<Cluster>, Failure> {
    let given = [
        ("cluster", arguments.cluster.is_some()),
        ("node", arguments.node.is_some()),
        ("etcd-user", arguments.etcd_user.is_some()),
        ("etcd-password-file", arguments.etcd_password_file.is_some()),
        ("etcd-ca", arguments.etcd_ca.is_some()),
        ("etcd-cert", arguments.etcd_cert.is_some()),
        ("etcd-key", arguments.etcd_key.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(None),
        Some((flag, _)) => {
            let message = format!("{flag}: there is no etcd");
            Err(usage(message)
                .hint(format!("name its endpoints with --etcd, or leave out --{flag}")))
        }
    }
}

fn user(arguments: &cli::Etcd) -> Result<Option<(String, String)>, Failure> {
    match (&arguments.etcd_user, &arguments.etcd_password_file) {
        (None, None) => Ok(None),
        (Some(name), Some(path)) => {
            let text = fs::read_to_string(path)
                .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
            let password = text.strip_suffix('\n').unwrap_or(&text);
            if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
                return Err(usage(format!(
                    "etcd-password-file: {} has {} bytes; a password has 1 to {PASSWORD_BYTES_MAX}",
                    path.display(),
                    password.len()
                )));
            }
            Ok(Some((name.clone(), password.to_owned())))
        }
        _ => Err(usage("etcd-user and etcd-password-file: name both, or neither".to_owned())),
    }
}

fn tls(arguments: &cli::Etcd) -> Result<Option<TlsFiles>, Failure> {
    let cli::Etcd { etcd_ca, etcd_cert, etcd_key, .. } = arguments;
    let own: Option<(PathBuf, PathBuf)> = match (etcd_cert, etcd_key) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        (None, None) => None,
        _ => return Err(usage("etcd-cert and etcd-key: name both, or neither".to_owned())),
    };
    match (etcd_ca, own) {
        (Some(authorities), own) => Ok(Some(TlsFiles { authorities: authorities.clone(), own })),
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(usage("etcd-cert: etcd-ca must name the certificates of etcd's side".to_owned()))
        }
    }
}

/// Logs what has changed.
fn tell(told: &mut String, text: String) {
    if *told != text {
        tracing::info!("{text}");
        *told = text;
    }
}

/// Looks whether this server may go on.
pub struct Guard {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Guard {
    /// Calls `lost` once with the reason when another server has taken over.
    pub fn over(
        pool: Arc<dyn Pool>,
        leadership: Option<Leadership>,
        lost: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self, Failure> {
        let (stop, stopped) = sync_channel::<()>(0);
        let reason = move || {
            if pool.is_taken_over() {
                return Some("the Ceph cluster has fenced this server: another one took over");
            }
            let is_lost = leadership.as_ref().is_some_and(Leadership::is_lost);
            is_lost.then_some("this server leads no more: its lease in etcd has ended")
        };
        let look = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(LOOK) {
                if let Some(what) = reason() {
                    return lost(what.to_owned());
                }
            }
        };
        let thread = std::thread::Builder::new().name("guard".to_owned()).spawn(look);
        let thread = thread.map_err(|error| Failure::new(format!("a thread: {error}")))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn refused(flags: &str) -> Failure {
        let line = format!("evenkeel serve {flags}");
        let cli = cli::Cli::parse_from(line.split(' '));
        let cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
        let Err(failure) = Cluster::of(&arguments.etcd, &arguments.store) else {
            panic!("{flags} is taken")
        };
        failure
    }

    #[test]
    fn flags_that_do_not_fit_together_are_named() {
        let etcd = "--store rbd --etcd http://127.0.0.1:1";
        for (flags, named) in [
            ("--etcd http://127.0.0.1:1".to_owned(), "etcd: the bytes of the store \"local\""),
            ("--node a".to_owned(), "node: there is no etcd"),
            ("--store rbd --etcd-ca x".to_owned(), "etcd-ca: there is no etcd"),
            (format!("{etcd} --cluster a/b"), "the cluster's name 'a/b'"),
            (format!("{etcd} --etcd-user x"), "etcd-user and etcd-password-file"),
            (format!("{etcd} --etcd-key x"), "etcd-cert and etcd-key"),
            (format!("{etcd} --etcd-cert x --etcd-key y"), "etcd-cert: etcd-ca must"),
            ("--store rbd --etcd 127.0.0.1:1".to_owned(), "etcd: "),
        ] {
            let failure = refused(&flags);
            assert!(failure.message.contains(named), "{flags}: {}", failure.message);
            assert_eq!(failure.exit, Exit::Usage, "{flags}");
        }
    }

    #[test]
    fn a_server_that_stands_by_for_an_etcd_that_is_away_can_be_stopped() {
        let line = "evenkeel serve --store rbd --etcd http://127.0.0.1:1";
        let cli = cli::Cli::parse_from(line.split(' '));
        let cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
        let cluster = Cluster::of(&arguments.etcd, &arguments.store).unwrap().unwrap();
        let waited = cluster.wait_to_lead(arguments.listen, &AtomicBool::new(true)).unwrap();
        assert!(waited.is_none());
    }
}
