//! `evenkeel serve`: the server, in the foreground, until it is told to stop.

use crate::cli::Serve;
use crate::clock::Deadline;
use crate::message::{self, Exit, Failure};
use crate::server::{self, Addresses, Config};
use evenkeel_lab::bench::{child, mounts, stop};
use rustix::process::{self, Pid, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

/// Longest wait for the programs of a benchmark that are told to end.
const CHILDREN_MAX: Duration = Duration::from_secs(10);
/// The same once they are killed.
const KILLED_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the end of this process: longer than what is taken down before may last.
const ENDING_MAX: Duration = Duration::from_secs(120);
/// Distance of two looks.
const LOOK: Duration = Duration::from_millis(20);

pub fn run(arguments: &Serve) -> Result<(), Failure> {
    log_to_stderr(&arguments.log)?;
    // Before anything is opened: whoever waits for a sign of life may stop us with the next breath.
    let stop = StopRequest::awaited()?;
    let config = Config::of(arguments)?;
    let shown = config.clone();
    // Whoever starts us from a script waits for this text: by then every address answers. One who
    // has closed the pipe since is no reason to stop serving.
    let ready = move |addresses: &Addresses| {
        let mut stdout = std::io::stdout();
        let _ = stdout.write_all(greeting(&shown, addresses).as_bytes());
        let _ = stdout.flush();
    };
    // The listening thread ends only after it has sent.
    server::run(&config, &stop.made, ready, async { drop(stop.comes.await) })
}

/// Logs what passes `filter` to standard error, in colour on a terminal.
pub fn log_to_stderr(filter: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::new(format!("log filter \"{filter}\": {error}")).exit(Exit::Usage)
    })?;
    let colour = message::is_colourful(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .init();
    Ok(())
}

/// The signals by which the process is asked to stop: Ctrl-C, or whoever manages services.
struct StopSignals(Vec<Signal>);

impl StopSignals {
    /// Counts from now on; before, each of them ends the process at once.
    fn registered() -> Self {
        let mut signals = Vec::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
            match signal(kind) {
                Ok(signal) => signals.push(signal),
                Err(error) => {
                    tracing::error!(%error, "no handler for a signal: it ends us at once")
                }
            }
        }
        Self(signals)
    }

    async fn next(&mut self) {
        let next = std::future::poll_fn(|context| {
            let received = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if received { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        next.await;
    }
}

/// Ends when the process is asked to, counted from the first poll on.
pub async fn stop_signal() {
    StopSignals::registered().next().await;
}

/// The request to stop, made at any time of the server's life.
struct StopRequest {
    /// Whether it was made, for work that looks up now and then.
    made: Arc<AtomicBool>,
    /// Ends when it is made.
    comes: oneshot::Receiver<()>,
}

impl StopRequest {
    /// Once this returns no request is missed. A thread listens, because the server's own runtime
    /// runs only when everything is open.
    fn awaited() -> Result<Self, Failure> {
        let made = Arc::new(AtomicBool::new(false));
        let (come, comes) = oneshot::channel();
        let (listening, listens) = std::sync::mpsc::channel();
        let flag = Arc::clone(&made);
        let listen = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(listening.send(Err(error))),
            };
            runtime.block_on(async {
                let mut signals = StopSignals::registered();
                let _ = listening.send(Ok(()));
                signals.next().await;
            });
            flag.store(true, Ordering::Release);
            let _ = come.send(());
        };
        let failed = |error| Failure::new(format!("a thread for signals: {error}"));
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(listen);
        thread.map_err(failed)?;
        // It answers before it ends.
        listens.recv().unwrap_or(Ok(())).map_err(failed)?;
        Ok(Self { made, comes })
    }
}

/// Lets Ctrl-C end a benchmark in the middle without leaving its folders behind.
pub fn end_when_told_to(folders: Vec<PathBuf>) -> Result<(), Failure> {
    end_when_told_to_after(folders, || {})
}

/// The same, with something to be done first.
pub fn end_when_told_to_after(
    folders: Vec<PathBuf>,
    first: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(stop_signal());
            stop::stop();
            first();
            interrupted(&folders);
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(wait);
    thread.map(drop).map_err(|error| Failure::new(format!("a thread for signals: {error}")))
}

/// Told to stop in the middle: nothing is worth a graceful end, but the folders must not stay.
pub fn interrupted(folders: &[PathBuf]) {
    stop::stop();
    let have_ended = end_children();
    // What could not be taken down is found again by its journal.
    for folder in folders.iter().filter(|folder| have_ended && !mounts::is_any_below(folder)) {
        let _ = std::fs::remove_dir_all(folder);
    }
    eprintln!("\ninterrupted");
    // As a shell reports a program that SIGINT ended.
    std::process::exit(130);
}

/// Waits for the end of a process that is told to stop: what the programs of a benchmark say that
/// are told so, too, is no failure of it.
pub fn end_if_told_to() {
    let deadline = Deadline::after(ENDING_MAX);
    while stop::is_stopped() && deadline.pause(LOOK) {}
}

/// Ends the programs that this process has started: they may write to its folders until then.
/// Whether all of them have ended.
fn end_children() -> bool {
    [(process::Signal::TERM, CHILDREN_MAX), (process::Signal::KILL, KILLED_MAX)]
        .into_iter()
        .any(|(signal, longest)| children_end(signal, longest))
}

/// Whether all of them end in time by a signal.
fn children_end(signal: process::Signal, longest: Duration) -> bool {
    let mut stopped = Vec::new();
    let deadline = Deadline::after(longest);
    loop {
        let running: Vec<Pid> =
            child::children(getpid()).into_iter().filter(|child| is_running(*child)).collect();
        // A terminal tells the whole group, `kill` only us. One that has just ended is told
        // nothing.
        for child in running.iter().filter(|child| !stopped.contains(*child)) {
            let _ = kill_process(*child, signal);
        }
        if running.is_empty() || !deadline.pause(LOOK) {
            return running.is_empty();
        }
        stopped = running;
    }
}

/// Whether a program that this process has started has not ended; who waits for it finds its end
/// all the same.
fn is_running(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(child), options), Ok(None))
}

fn greeting(config: &Config, addresses: &Addresses) -> String {
    let mut text = format!("evenkeel {} is serving\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "  API    http://{}  region {}", addresses.api, config.region);
    for address in &addresses.nbd {
        let _ = writeln!(text, "  NBD    nbd://{address}/VOLUME");
    }
    if let Some(socket) = &config.nbd_unix {
        let _ = writeln!(text, "  NBD    nbd+unix:///VOLUME?socket={}", socket.display());
    }
    let _ = writeln!(text, "  data   {}", config.data_dir.display());
    let _ = writeln!(text, "  rules  {}", config.rules.date());
    let _ = writeln!(text, "Ctrl-C stops it. In another shell, same folder:");
    let _ = writeln!(text, "  evenkeel volume create --size 10 --attach");
    let _ = writeln!(text, "  eval \"$(evenkeel env)\"; aws ec2 describe-volumes");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_greeting_shows_every_address() {
        let line = "evenkeel serve --data-dir /srv/e --as-of 2025-10 --region r --zone z";
        let cli = crate::cli::Cli::parse_from(line.split(' '));
        let crate::cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
        let addresses = Addresses {
            api: "127.0.0.1:8650".parse().unwrap(),
            nbd: vec!["127.0.0.1:10809".parse().unwrap()],
        };
        let text = greeting(&Config::of(&arguments).unwrap(), &addresses);
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            text,
            format!(
                "evenkeel {version} is serving\n  \
                 API    http://127.0.0.1:8650  region r\n  \
                 NBD    nbd://127.0.0.1:10809/VOLUME\n  \
                 NBD    nbd+unix:///VOLUME?socket=/srv/e/nbd.sock\n  \
                 data   /srv/e\n  \
                 rules  2025-09-26\n\
                 Ctrl-C stops it. In another shell, same folder:\n  \
                 evenkeel volume create --size 10 --attach\n  \
                 eval \"$(evenkeel env)\"; aws ec2 describe-volumes\n"
            )
        );
    }

    #[test]
    fn rules_older_than_the_oldest_are_refused() {
        let line = "evenkeel serve --as-of 2001-01-01";
        let cli = crate::cli::Cli::parse_from(line.split(' '));
        let crate::cli::Verb::Serve(arguments) = cli.verb else { panic!("not serve") };
        let failure = Config::of(&arguments).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains("2001-01-01"), "{failure}");
    }
}
