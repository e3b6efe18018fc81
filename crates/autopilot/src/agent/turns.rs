//! The ticks of one file system, in a thread of its own.
//!
//! A file system, a device or an API that does not answer blocks its own thread, and no other one.
//! The agent waits for a tick for a bounded time, and takes its report later.

use super::Shared;
use super::metrics::MountNow;
use crate::counters::Watched;
use evenkeel_client::output::Failure;
use evenkeel_os::clock;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// The time after which a tick that has not ended is reported.
const LATE: Duration = Duration::from_secs(60);

/// The result of a tick.
#[derive(Default)]
pub struct Report {
    /// The lines to print.
    pub lines: Vec<String>,
    /// Why the file system was not observed; `None` if it was.
    pub absence: Option<String>,
    /// The facts that metrics show; `None` if it was not observed.
    pub now: Option<MountNow>,
    /// Its devices.
    pub watched: Vec<Watched>,
    /// Operations that have not ended.
    pub open_operations: usize,
}

/// A tick that is due.
pub struct Turn {
    /// The parts that all file systems share.
    pub shared: Shared,
    /// The time, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// A thread with the ticks of one file system.
pub struct Turns<T = Turn> {
    path: PathBuf,
    turns: SyncSender<T>,
    reports: Receiver<Report>,
    /// When the tick began that has not ended.
    begun: Option<Instant>,
    /// Whether the delay of this tick was printed.
    is_said: bool,
    /// The report of the last tick; `None` before the first one has ended.
    last: Option<Report>,
}

impl<T: Send + 'static> Turns<T> {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub fn start(
        path: PathBuf,
        mut tick: impl FnMut(&T) -> Report + Send + 'static,
    ) -> Result<Self, Failure> {
        let (turns, due) = sync_channel::<T>(1);
        let (sender, reports) = sync_channel(1);
        let work = move || {
            while let Ok(turn) = due.recv() {
                if sender.send(tick(&turn)).is_err() {
                    return;
                }
            }
        };
        let failed = |error| Failure::new(format!("no thread for {}: {error}", path.display()));
        std::thread::Builder::new().name("mount".to_owned()).spawn(work).map_err(failed)?;
        Ok(Self { path, turns, reports, begun: None, is_said: false, last: None })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a tick, unless the last one has not ended.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn begin(&mut self, turn: T) -> Result<(), Failure> {
        if self.begun.is_some() {
            return Ok(());
        }
        self.turns.send(turn).map_err(|_| self.ended())?;
        self.begun = Some(clock::now());
        self.is_said = false;
        Ok(())
    }

    /// Waits for the end of the tick, at most this long. Returns the lines to print.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn wait(&mut self, longest: Duration) -> Result<Vec<String>, Failure> {
        let Some(begun) = self.begun else { return Ok(Vec::new()) };
        match self.reports.recv_timeout(longest) {
            Ok(mut report) => {
                let lines = std::mem::take(&mut report.lines);
                self.begun = None;
                self.last = Some(report);
                Ok(lines)
            }
            Err(RecvTimeoutError::Timeout) => {
                let late = self.lateness(begun).filter(|_| !self.is_said);
                self.is_said |= late.is_some();
                let line = late.map(|late| {
                    let time = evenkeel_wire::aws::timestamp::extended(clock::unix_ms().0);
                    format!("{time} {} {late}\n", self.path.display())
                });
                Ok(line.into_iter().collect())
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ended(&self) -> Failure {
        Failure::new(format!("the thread of {} has ended", self.path.display()))
    }

    /// Returns why a tick takes long; `None` before that.
    fn lateness(&self, begun: Instant) -> Option<String> {
        let passed = clock::now() - begun;
        (passed >= LATE).then(|| {
            let passed_s = passed.as_secs();
            format!(
                "is not observed: its tick began {passed_s} s ago and has not ended: the file \
                 system, one of its devices or the API does not answer"
            )
        })
    }

    /// Returns why it was not observed; `None` if it was.
    pub fn absence(&self) -> Option<String> {
        let late = self.begun.and_then(|begun| self.lateness(begun));
        match &self.last {
            Some(last) => late.or_else(|| last.absence.clone()),
            None => late.or_else(|| Some("its first tick has not ended".to_owned())),
        }
    }

    /// Returns whether no tick runs.
    const fn is_idle(&self) -> bool {
        self.begun.is_none()
    }

    /// Returns its operations that have not ended, with one that a running tick may begin.
    pub fn open_operations(&self) -> usize {
        let known = self.last.as_ref().map_or(0, |last| last.open_operations);
        known + usize::from(!self.is_idle())
    }

    /// Returns its devices.
    pub fn watched(&self) -> Vec<Watched> {
        self.last.as_ref().map(|last| last.watched.clone()).unwrap_or_default()
    }

    /// Returns what the metrics have of it; `None` if it was not observed.
    pub fn now(&self) -> Option<MountNow> {
        self.last.as_ref().filter(|_| self.absence().is_none()).and_then(|last| last.now.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any tick of these tests.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn report(open_operations: usize) -> Report {
        Report { lines: vec!["ended\n".to_owned()], open_operations, ..Report::default() }
    }

    #[test]
    fn tick_that_does_not_end_delays_no_other_file_system() {
        let (release, gate) = sync_channel::<()>(0);
        let blocks = move |(): &()| {
            gate.recv().unwrap();
            report(1)
        };
        let mut slow = Turns::start("/slow".into(), blocks).unwrap();
        let mut quick = Turns::start("/quick".into(), |(): &()| report(0)).unwrap();
        for _ in 0..3 {
            slow.begin(()).unwrap();
            assert!(slow.wait(Duration::ZERO).unwrap().is_empty());
            quick.begin(()).unwrap();
            assert_eq!(quick.wait(PATIENCE).unwrap(), ["ended\n"]);
            assert_eq!(quick.absence(), None);
        }
        // It may have begun an operation, and counts as one that has.
        assert_eq!((slow.is_idle(), slow.open_operations()), (false, 1));
        assert_eq!(slow.absence().unwrap(), "its first tick has not ended");
        release.send(()).unwrap();
        assert_eq!(slow.wait(PATIENCE).unwrap(), ["ended\n"]);
        assert_eq!((slow.is_idle(), slow.open_operations()), (true, 1));
        assert_eq!(slow.absence(), None);
    }

    #[test]
    fn tick_that_takes_a_minute_is_reported_once_and_counts_as_absent() {
        let (_release, gate) = sync_channel::<()>(0);
        let blocks = move |(): &()| {
            let _ = gate.recv();
            report(0)
        };
        let mut slow = Turns::start("/slow".into(), blocks).unwrap();
        slow.begin(()).unwrap();
        slow.begun = clock::now().checked_sub(LATE);
        let lines = slow.wait(Duration::ZERO).unwrap();
        assert!(lines[0].contains(" /slow is not observed: its tick began 60 s ago"), "{lines:?}");
        assert!(slow.wait(Duration::ZERO).unwrap().is_empty());
        assert!(slow.absence().unwrap().contains("does not answer"));
    }

    #[test]
    fn thread_that_has_ended_is_a_failure() {
        let mut turns = Turns::start("/a".into(), |(): &()| panic!("a tick that panics")).unwrap();
        turns.begin(()).unwrap();
        let failure = turns.wait(PATIENCE).unwrap_err();
        assert_eq!(failure.message, "the thread of /a has ended");
    }
}
