//! `evenkeel serve`: runs the server in the foreground until a signal stops it.

use crate::cli::Serve;
use crate::events;
use crate::server::{self, Addresses, Config};
use crate::store_options;
use evenkeel_client::clock::Deadline;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_lab::bench::{cancel, child, mounts};
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

/// Longest wait for the programs of a benchmark to end after SIGTERM.
const CHILDREN_MAX: Duration = Duration::from_secs(10);
/// Longest wait after SIGKILL.
const KILLED_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the end of this process: longer than the clean-up before it may take.
const ENDING_MAX: Duration = Duration::from_secs(120);
/// Time between two polls.
const LOOK: Duration = Duration::from_millis(20);

pub fn run(arguments: &Serve) -> Result<(), Failure> {
    log_to_stderr(&arguments.log)?;
    // Before the first secret is read: the access key, passwords, keys of volumes and of TLS.
    store_options::forbid_core_dumps()?;
    // Before anything is opened, since a script that waits for a sign of life may stop the server
    // at once.
    let stop = StopRequest::awaited()?;
    let config = Config::of(arguments)?;
    events::warn_of_arguments(std::env::args_os(), &arguments.events_webhook);
    let shown = config.clone();
    // A script that starts the server waits for this text: all addresses answer by then. If the
    // script has closed the pipe since, the server continues.
    let ready = move |addresses: &Addresses| {
        let mut stdout = std::io::stdout();
        let _ = stdout.write_all(greeting(&shown, addresses).as_bytes());
        let _ = stdout.flush();
    };
    // The thread that listens for signals ends only after it has sent.
    server::run(&config, &stop.made, ready, async { drop(stop.comes.await) })
}

/// Logs messages that pass `filter` to standard error, in colour on a terminal.
pub fn log_to_stderr(filter: &str) -> Result<(), Failure> {
    let wrong =
        |why: String| Failure::new(format!("log filter \"{filter}\": {why}")).exit(Exit::Usage);
    let whole = whole_filter(filter).map_err(wrong)?;
    let filter = EnvFilter::try_new(whole).map_err(|error| wrong(error.to_string()))?;
    let colour = output::is_colourful(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .init();
    Ok(())
}

/// Returns a filter that also passes errors of modules that it does not name.
///
/// # Errors If a word is neither a level nor one of the server's modules. As a module, it would
/// silence all others. The text describes the expected form.
fn whole_filter(filter: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    for word in filter.split(',').map(str::trim).filter(|word| !word.contains(['=', '['])) {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        let is_number = matches!(word.parse(), Ok(0..=5_u8));
        if !word.is_empty() && !is_level && !is_number && !word.starts_with("evenkeel") {
            return Err(format!(
                "\"{word}\" is no level; expected {}, or a module and its level, such as \
                 evenkeel_engine=debug",
                LEVELS.join(", ")
            ));
        }
    }
    // Of several levels without a module the last one counts.
    Ok(format!("error,{filter}"))
}

/// The signals that stop the process: SIGINT (Ctrl-C), SIGTERM, SIGQUIT, and SIGHUP unless the
/// process was started to ignore it, as `nohup` does. SIGUSR1 and SIGUSR2 do nothing.
struct StopSignals(Vec<Signal>);

/// Whether this process was started with SIGHUP ignored.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 != 0)
}

impl StopSignals {
    /// Handles signals from now on; before, each of them ends the process at once.
    fn registered() -> Self {
        let mut signals = Vec::new();
        let mut stopping =
            vec![SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()];
        if !ignores_hang_up() {
            stopping.push(SignalKind::hangup());
        }
        let ignored = [SignalKind::user_defined1(), SignalKind::user_defined2()];
        let all = stopping.into_iter().map(|kind| (kind, true));
        for (kind, stops) in all.chain(ignored.map(|kind| (kind, false))) {
            match signal(kind) {
                Ok(signal) if stops => signals.push(signal),
                // A handled signal does not end the process by itself.
                Ok(_) => {}
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

/// Resolves when the process gets a signal to stop, counted from the first poll on.
pub async fn stop_signal() {
    StopSignals::registered().next().await;
}

/// A request to stop, at any time of the server's life.
struct StopRequest {
    /// Whether it was made, for tasks that poll it.
    made: Arc<AtomicBool>,
    /// Resolves when it is made.
    comes: oneshot::Receiver<()>,
}

impl StopRequest {
    /// Starts to listen for a request. No signal is missed after this returns. A thread waits for
    /// signals, because the server's runtime starts only when everything is open.
    fn awaited() -> Result<Self, Failure> {
        let made = Arc::new(AtomicBool::new(false));
        let (come, comes) = oneshot::channel();
        let (flag, mut come) = (Arc::clone(&made), Some(come));
        when_signalled(move |_| {
            flag.store(true, Ordering::Release);
            come.take().map(|come| come.send(()));
            false
        })?;
        Ok(Self { made, comes })
    }
}

/// Starts a thread that calls `told` with the number of each signal to stop, counted from 1, until
/// it returns false. After this returns, no signal ends the process by itself.
pub fn when_signalled(mut told: impl FnMut(u32) -> bool + Send + 'static) -> Result<(), Failure> {
    let (listening, listens) = std::sync::mpsc::channel();
    let listen = move || {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(listening.send(Err(error))),
        };
        runtime.block_on(async {
            let mut signals = StopSignals::registered();
            let _ = listening.send(Ok(()));
            for number in 1.. {
                signals.next().await;
                if !told(number) {
                    break;
                }
            }
        });
    };
    let failed = |error| Failure::new(format!("a thread for signals: {error}"));
    let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(listen);
    thread.map_err(failed)?;
    // The thread answers before it ends.
    listens.recv().unwrap_or(Ok(())).map_err(failed)
}

/// Whether a signal's handler ends this process.
static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C end a benchmark at once and remove its folders.
pub fn end_when_told_to(folders: Vec<PathBuf>) -> Result<(), Failure> {
    end_when_told_to_after(folders, || {})
}

/// Makes Ctrl-C run `first`, end a benchmark at once and remove its folders.
pub fn end_when_told_to_after(
    folders: Vec<PathBuf>,
    first: impl FnOnce() + Send + 'static,
) -> Result<(), Failure> {
    let mut first = Some(first);
    when_signalled(move |_| {
        IS_INTERRUPTED.store(true, Ordering::Release);
        cancel::stop();
        if let Some(first) = first.take() {
            first();
        }
        interrupted(&folders);
        false
    })
}

/// Ends the process after a signal: nothing needs a graceful end, but the folders must be removed.
pub fn interrupted(folders: &[PathBuf]) {
    IS_INTERRUPTED.store(true, Ordering::Release);
    cancel::stop();
    let have_ended = end_children();
    // The next run finds folders that could not be removed by their journals.
    for folder in folders.iter().filter(|folder| have_ended && !mounts::is_any_below(folder)) {
        let _ = std::fs::remove_dir_all(folder);
    }
    eprintln!("\ninterrupted");
    // The exit code of a program that SIGINT ended, as a shell reports it.
    std::process::exit(130);
}

/// Waits for the end of this process if a signal's handler ends it. Errors of a benchmark's
/// programs that got the signal, too, are not a failure of the benchmark.
pub fn end_if_interrupted() {
    if IS_INTERRUPTED.load(Ordering::Acquire) {
        let deadline = Deadline::after(ENDING_MAX);
        while deadline.pause(LOOK) {}
    }
}

/// Ends the programs that this process has started, since they may write to its folders. Returns
/// whether all of them have ended.
fn end_children() -> bool {
    [(process::Signal::TERM, CHILDREN_MAX), (process::Signal::KILL, KILLED_MAX)]
        .into_iter()
        .any(|(signal, longest)| children_end(signal, longest))
}

/// Sends a signal to all of them; returns whether they end in time.
fn children_end(signal: process::Signal, longest: Duration) -> bool {
    let mut stopped = Vec::new();
    let deadline = Deadline::after(longest);
    loop {
        let running: Vec<Pid> =
            child::children(getpid()).into_iter().filter(|child| is_running(*child)).collect();
        // A terminal sends a signal to the whole process group, `kill` only to this process. A
        // program that has just ended gets none.
        for child in running.iter().filter(|child| !stopped.contains(*child)) {
            let _ = kill_process(*child, signal);
        }
        if running.is_empty() || !deadline.pause(LOOK) {
            return running.is_empty();
        }
        stopped = running;
    }
}

/// Returns whether a program that this process has started still runs. It can still be waited for.
fn is_running(child: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(child), options), Ok(None))
}

fn greeting(config: &Config, addresses: &Addresses) -> String {
    let mut text = format!("evenkeel {} is serving\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "  API    http://{}  region {}", addresses.api, config.settings.region);
    for address in &addresses.nbd {
        let _ = writeln!(text, "  NBD    nbd://{address}/VOLUME");
    }
    if let Some(socket) = &config.nbd_unix {
        let _ = writeln!(text, "  NBD    nbd+unix:///VOLUME?socket={}", socket.display());
    }
    let _ = writeln!(text, "  data   {}", config.data_dir.display());
    let _ = writeln!(text, "  rules  {}", config.settings.rules.date());
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
    fn log_filters_that_would_silence_errors_are_refused_or_completed() {
        for (filter, whole) in [
            ("info", "error,info"),
            ("WARN", "error,WARN"),
            ("off", "error,off"),
            ("3", "error,3"),
            ("evenkeel_engine=debug,warn", "error,evenkeel_engine=debug,warn"),
            ("evenkeel_engine", "error,evenkeel_engine"),
            ("", "error,"),
        ] {
            assert_eq!(whole_filter(filter).as_deref(), Ok(whole));
            assert!(EnvFilter::try_new(whole).is_ok(), "{whole}");
        }
        for filter in ["warning", "err", "info,verbose", "6"] {
            let error = whole_filter(filter).unwrap_err();
            assert!(error.contains("is no level; expected error, warn, info"), "{error}");
        }
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
