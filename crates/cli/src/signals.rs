//! Signals that end a program, and the clean-up before its end.

use evenkeel_client::output::Failure;
use evenkeel_lab::{cancel, child, leftovers};
use evenkeel_os::clock::Deadline;
use rustix::process::{self, Pid, WaitId, WaitIdOptions, getpid, kill_process, waitid};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Longest wait for the programs of a benchmark to end after SIGTERM.
const CHILDREN_MAX: Duration = Duration::from_secs(10);
/// Longest wait after SIGKILL.
const KILLED_MAX: Duration = Duration::from_secs(2);
/// Longest wait for the end of this process: longer than the clean-up before it may take.
const ENDING_MAX: Duration = Duration::from_secs(120);
/// Time between two polls.
const LOOK: Duration = Duration::from_millis(20);

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
    for folder in folders.iter().filter(|folder| have_ended && !leftovers::is_any_below(folder)) {
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
