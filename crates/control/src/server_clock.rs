//! The clock of the control plane: that of the machine, or that of a test server.
//!
//! All times that clients see, and all durations of the API, are by this clock: cool-downs of
//! modifications, the recycle bin, locks, credits, metrics, events. Real time stays real where a
//! client or the data plane measures it: signatures, deadlines of connections, pacing, latencies.
//!
//! The clock of a test server can be moved ahead, stopped and started again. It never goes back.
//! Its state is a file of the data folder ([`FILE_NAME`]), which is written before a change takes
//! effect. So the next start on that folder continues with the same time. A server without a test
//! clock refuses such a folder: its journal has times that have not come yet.
//!
//! Both of its readings move together, the wall clock's and the one since the machine's boot. So
//! [`crate::server_time`], which moves deadlines with steps of the wall clock, finds no step.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use evenkeel_core::convert::{exact, saturating};
use evenkeel_core::time::UnixMs;
use evenkeel_os::clock;
use evenkeel_telemetry::private;
use serde::{Deserialize, Serialize};

/// Name of the file with the state of a test clock, in the data folder.
pub const FILE_NAME: &str = "test-clock.json";
/// Maximum number of days by which one change moves the clock ahead: the longest durations of the
/// API have a year.
pub const ADVANCE_DAYS_MAX: u64 = 400;
/// Maximum number of days that the clock is ahead of real time.
pub const AHEAD_DAYS_MAX: u64 = 3_660;
const DAY_MS: u64 = 86_400_000;
/// A difference between the two clocks of the machine that is no step of the wall clock, in
/// milliseconds: they are read one after the other.
const JITTER_MS: u64 = 1_000;

/// The two clocks of the machine at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The wall clock.
    pub unix: UnixMs,
    /// The clock since the machine's boot, which does not jump.
    pub since_boot: Duration,
}

impl Reading {
    fn of_machine() -> Self {
        Self { unix: clock::unix_ms(), since_boot: clock::since_boot() }
    }

    fn later(self, ms: u64) -> Self {
        let since_boot = self.since_boot.saturating_add(Duration::from_millis(ms));
        Self { unix: self.unix.plus_ms(ms), since_boot }
    }
}

/// The state of a test clock, as its file has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// How far it is ahead of real time, in milliseconds; negative if it was stopped for longer
    /// than it was moved ahead. Without effect while it is stopped.
    offset_ms: i64,
    /// The time at which it is stopped, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    frozen_unix_ms: Option<u64>,
}

impl Kept {
    /// Returns the field that is too far from the machine's time. A clock that was stopped may be
    /// behind it, so both directions have the bound.
    fn out_of_bounds(&self, real: UnixMs) -> Option<&'static str> {
        let max_ms = AHEAD_DAYS_MAX * DAY_MS;
        if self.offset_ms.unsigned_abs() > max_ms {
            return Some("offset_ms");
        }
        let frozen = self.frozen_unix_ms?;
        (frozen.abs_diff(real.0) > max_ms).then_some("frozen_unix_ms")
    }
}

/// The state of a test clock.
#[derive(Clone, Copy, Debug)]
struct Shift {
    offset_ms: i64,
    /// The offset at the server's start. The clock since the boot counts from there, so
    /// that it is not before the boot.
    offset_at_start_ms: i64,
    frozen: Option<Reading>,
    /// By how much the clock was moved ahead since the server's start, in milliseconds.
    moved_ms: u64,
}

/// Why a test clock does not change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClockRefusal {
    /// The server has the machine's clock.
    NotATest,
    /// The new time is before the present one.
    Backwards {
        /// The present time.
        now: UnixMs,
        /// The requested time.
        to: UnixMs,
    },
    /// One change moves the clock by more than [`ADVANCE_DAYS_MAX`].
    TooFarAtOnce(u64),
    /// The clock would be ahead of real time by more than [`AHEAD_DAYS_MAX`].
    TooFarAhead(u64),
    /// The state could not be stored.
    NotStored(String),
}

impl fmt::Display for ClockRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATest => f.write_str(
                "This server has the clock of its machine, which cannot be changed here. Start \
                 `evenkeel serve` with --test-server for a clock that can.",
            ),
            Self::Backwards { now, to } => write!(
                f,
                "The clock is at {}, and {} is before that. A clock is only set ahead; start \
                 another server for an earlier time.",
                time_text(*now),
                time_text(*to)
            ),
            Self::TooFarAtOnce(ms) => write!(
                f,
                "The change moves the clock ahead by {} days, and one change moves it by \
                 {ADVANCE_DAYS_MAX} at most. Make several.",
                ms.div_ceil(DAY_MS)
            ),
            Self::TooFarAhead(ms) => write!(
                f,
                "The clock would be {} days ahead of real time, and {AHEAD_DAYS_MAX} is the \
                 maximum. Start another server, whose clock begins with real time.",
                ms.div_ceil(DAY_MS)
            ),
            Self::NotStored(why) => write!(f, "The clock's state cannot be stored: {why}"),
        }
    }
}

fn time_text(time: UnixMs) -> String {
    evenkeel_wire::aws::timestamp::extended(time.0)
}

/// Why the clock of a data folder cannot be used.
#[derive(Debug)]
pub enum ClockError {
    /// The file cannot be read.
    Io(PathBuf, io::Error),
    /// The file has no state of a clock.
    Unreadable(PathBuf, String),
    /// The file has a time that no test server's clock can have: a maximum of days is exceeded.
    OutOfBounds(PathBuf, &'static str),
    /// The folder belongs to a test server, and this is none.
    OfATest(PathBuf),
}

impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Unreadable(path, why) => write!(
                f,
                "{}: no state of a test clock ({why}); delete the file, and the next start is at \
                 real time and moves every deadline with it, or use another data folder",
                path.display()
            ),
            Self::OutOfBounds(path, field) => write!(
                f,
                "{}: {field} is more than {AHEAD_DAYS_MAX} days from the time of the machine, \
                 which is the maximum; set the clock of the machine, or use another data folder",
                path.display()
            ),
            Self::OfATest(path) => write!(
                f,
                "{}: the clock of this data folder was changed by a test server, so its times are \
                 not those of the machine; start with --test-server, or use another data folder",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ClockError {}

/// The state of a clock, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockView {
    /// Its time.
    pub now: UnixMs,
    /// The machine's.
    pub real: UnixMs,
    /// Whether it is stopped.
    pub is_frozen: bool,
}

impl Shift {
    fn of(kept: Kept, real: Reading) -> Self {
        let Some(unix) = kept.frozen_unix_ms.map(UnixMs) else {
            let offset_ms = kept.offset_ms;
            return Self { offset_ms, offset_at_start_ms: offset_ms, frozen: None, moved_ms: 0 };
        };
        let offset_ms = difference_ms(unix.0, real.unix.0);
        let frozen = Some(Reading { unix, since_boot: real.since_boot });
        Self { offset_ms, offset_at_start_ms: offset_ms, frozen, moved_ms: 0 }
    }

    fn kept(&self) -> Kept {
        let frozen_unix_ms = self.frozen.map(|frozen| frozen.unix.0);
        Kept { offset_ms: self.offset_ms, frozen_unix_ms }
    }

    fn read(&self, real: Reading) -> Reading {
        self.frozen.unwrap_or_else(|| {
            let unix = UnixMs(real.unix.0.saturating_add_signed(self.offset_ms));
            let moved_ms = self.offset_ms.saturating_sub(self.offset_at_start_ms);
            let boot_ms: u64 = saturating(real.since_boot.as_millis());
            let below_ms = real.since_boot.subsec_nanos() % 1_000_000;
            let since_boot = Duration::from_millis(boot_ms.saturating_add_signed(moved_ms));
            Reading { unix, since_boot: since_boot + Duration::from_nanos(below_ms.into()) }
        })
    }

    /// Returns the state with the clock moved ahead.
    fn advanced(mut self, ms: u64, real: Reading) -> Result<Self, ClockRefusal> {
        if ms > ADVANCE_DAYS_MAX * DAY_MS {
            return Err(ClockRefusal::TooFarAtOnce(ms));
        }
        let ahead_ms = self.read(real).later(ms).unix.ms_since(real.unix);
        if ahead_ms > AHEAD_DAYS_MAX * DAY_MS {
            return Err(ClockRefusal::TooFarAhead(ahead_ms));
        }
        self.frozen = self.frozen.map(|frozen| frozen.later(ms));
        self.offset_ms += exact::<u64, i64>(ms, "at most ADVANCE_DAYS_MAX");
        self.moved_ms = self.moved_ms.saturating_add(ms);
        Ok(self)
    }

    /// Returns the state with the clock stopped at its present time.
    fn frozen(mut self, real: Reading) -> Self {
        self.frozen = Some(self.read(real));
        self
    }

    /// Returns the state with the clock running from its present time on.
    fn running(mut self, real: Reading) -> Self {
        let Some(frozen) = self.frozen.take() else { return self };
        let boot_ms = |reading: Reading| saturating::<_, u64>(reading.since_boot.as_millis());
        let by_boot = difference_ms(boot_ms(frozen), boot_ms(real));
        let by_boot = by_boot.saturating_add(self.offset_at_start_ms);
        let by_wall = difference_ms(frozen.unix.0, real.unix.0);
        // Neither reading may be earlier than it was. If the wall clock was set meanwhile, that is
        // a step, which is found later.
        self.offset_ms = match by_boot.abs_diff(by_wall) {
            0..=JITTER_MS => by_boot.max(by_wall),
            _ => by_boot,
        };
        self
    }
}

fn difference_ms(one: u64, other: u64) -> i64 {
    let ahead: i64 = saturating(one.saturating_sub(other));
    let behind: i64 = saturating(other.saturating_sub(one));
    ahead - behind
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct ServerClock {
    /// `None`: the machine's clock.
    test: Option<TestClock>,
    changing: Mutex<()>,
}

#[derive(Debug)]
struct TestClock {
    folder: PathBuf,
    shift: RwLock<Shift>,
}

impl ServerClock {
    /// Returns the clock of the machine for a server on this data folder.
    ///
    /// # Errors
    /// [`ClockError::OfATest`] if a test server has changed the folder's time.
    pub fn of_machine(folder: &Path) -> Result<Self, ClockError> {
        match kept_in(folder)? {
            Some(kept) if kept != Kept::default() => {
                Err(ClockError::OfATest(folder.join(FILE_NAME)))
            }
            _ => Ok(Self::default()),
        }
    }

    /// Returns the clock of a test server on this data folder. It begins with real time, or
    /// continues that of the last test server.
    ///
    /// # Errors
    /// The folder's file cannot be read.
    pub fn of_test(folder: &Path) -> Result<Self, ClockError> {
        let kept = kept_in(folder)?.unwrap_or_default();
        let real = Reading::of_machine();
        if let Some(field) = kept.out_of_bounds(real.unix) {
            return Err(ClockError::OutOfBounds(folder.join(FILE_NAME), field));
        }
        let shift = RwLock::new(Shift::of(kept, real));
        let test = Some(TestClock { folder: folder.into(), shift });
        Ok(Self { test, changing: Mutex::default() })
    }

    /// Returns whether it is the clock of a test server.
    #[must_use]
    pub const fn is_test(&self) -> bool {
        self.test.is_some()
    }

    /// Returns both readings of one moment.
    #[must_use]
    pub fn read(&self) -> Reading {
        let real = Reading::of_machine();
        self.shift().map_or(real, |shift| shift.read(real))
    }

    /// Returns the milliseconds since 1970, and by how many of them the clock was moved ahead since
    /// the server's start.
    #[must_use]
    pub fn unix_ms_and_moved_ms(&self) -> (UnixMs, u64) {
        let real = Reading::of_machine();
        self.shift().map_or((real.unix, 0), |shift| (shift.read(real).unix, shift.moved_ms))
    }

    /// Returns whether the clock is stopped.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.shift().is_some_and(|shift| shift.frozen.is_some())
    }

    /// Returns the milliseconds since 1970.
    #[must_use]
    pub fn unix_ms(&self) -> UnixMs {
        self.read().unix
    }

    /// Returns the time since the machine's boot.
    #[must_use]
    pub fn since_boot(&self) -> Duration {
        self.read().since_boot
    }

    /// Returns the state; `None` if it is the machine's clock.
    #[must_use]
    pub fn view(&self) -> Option<ClockView> {
        let real = Reading::of_machine();
        self.shift().map(|shift| ClockView {
            now: shift.read(real).unix,
            real: real.unix,
            is_frozen: shift.frozen.is_some(),
        })
    }

    /// Locks changes. A caller holds this until everything that follows from its change is done.
    pub fn one_change_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the clock ahead by `ms` milliseconds.
    ///
    /// # Errors
    /// See [`ClockRefusal`]; the clock is then as it was.
    pub fn advance(&self, ms: u64) -> Result<(), ClockRefusal> {
        self.change(|shift, real| shift.advanced(ms, real))
    }

    /// Checks whether the clock can be moved ahead by `ms` milliseconds.
    ///
    /// # Errors
    /// See [`ClockRefusal`].
    pub fn check_advance(&self, ms: u64) -> Result<(), ClockRefusal> {
        let shift = self.shift().ok_or(ClockRefusal::NotATest)?;
        shift.advanced(ms, Reading::of_machine()).map(drop)
    }

    /// Stops the clock, or lets it run.
    ///
    /// # Errors
    /// See [`ClockRefusal`]; the clock is then as it was.
    pub fn set_frozen(&self, is_frozen: bool) -> Result<(), ClockRefusal> {
        self.change(|shift, real| {
            Ok(if is_frozen { shift.frozen(real) } else { shift.running(real) })
        })
    }

    fn change(
        &self,
        changed: impl FnOnce(Shift, Reading) -> Result<Shift, ClockRefusal>,
    ) -> Result<(), ClockRefusal> {
        let test = self.test.as_ref().ok_or(ClockRefusal::NotATest)?;
        // A change of the state is one assignment.
        let mut shift = test.shift.write().unwrap_or_else(PoisonError::into_inner);
        let next = changed(*shift, Reading::of_machine())?;
        if next.kept() != shift.kept() {
            keep(&test.folder, &next.kept())?;
        }
        *shift = next;
        Ok(())
    }

    fn shift(&self) -> Option<Shift> {
        let test = self.test.as_ref()?;
        Some(*test.shift.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn keep(folder: &Path, kept: &Kept) -> Result<(), ClockRefusal> {
    let json = serde_json::to_vec(kept).map_err(|error| ClockRefusal::NotStored(error.to_string()));
    private::replace(folder, FILE_NAME, &json?).map_err(|error| {
        ClockRefusal::NotStored(format!("{}: {error}", folder.join(FILE_NAME).display()))
    })
}

fn kept_in(folder: &Path) -> Result<Option<Kept>, ClockError> {
    let path = folder.join(FILE_NAME);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| ClockError::Unreadable(path, error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ClockError::Io(path, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn real(unix_ms: u64, boot_ms: u64) -> Reading {
        Reading { unix: UnixMs(unix_ms), since_boot: Duration::from_millis(boot_ms) }
    }

    #[test]
    fn both_readings_move_ahead_together_and_stand_still_while_the_clock_is_stopped() {
        let start = real(1_000_000, 7_000);
        let clock = Shift::of(Kept::default(), start);
        assert_eq!(clock.read(real(1_000_005, 7_005)), real(1_000_005, 7_005));
        let clock = clock.advanced(HOUR_MS, start).unwrap();
        assert_eq!(clock.read(start), real(1_000_000 + HOUR_MS, 7_000 + HOUR_MS));
        let clock = clock.frozen(start);
        let later = real(1_060_000, 67_000);
        assert_eq!(clock.read(later), clock.read(start));
        let clock = clock.advanced(5, later).unwrap();
        assert_eq!(clock.read(later), real(1_000_005 + HOUR_MS, 7_005 + HOUR_MS));
        let clock = clock.running(later);
        assert_eq!(clock.read(later), real(1_000_005 + HOUR_MS, 7_005 + HOUR_MS));
        let last = real(1_061_000, 68_000);
        assert_eq!(clock.read(last), real(1_001_005 + HOUR_MS, 8_005 + HOUR_MS));
        assert_eq!(clock.moved_ms, HOUR_MS + 5);
        // A clock that runs already stays as it is.
        assert_eq!(clock.running(last).read(last), clock.read(last));
    }

    #[test]
    fn the_next_server_continues_with_the_same_time() {
        let start = real(1_000_000, 7_000);
        let clock = Shift::of(Kept::default(), start).advanced(HOUR_MS, start).unwrap();
        // After a restart of the machine.
        let next = Shift::of(clock.kept(), real(1_500_000, 100));
        assert_eq!(next.read(real(1_500_000, 100)), real(1_500_000 + HOUR_MS, 100));
        let frozen = clock.frozen(start);
        let next = Shift::of(frozen.kept(), real(9_000_000, 100));
        assert_eq!(next.read(real(9_000_500, 600)), real(1_000_000 + HOUR_MS, 100));
        // The clock was stopped for longer than it was moved ahead: it is behind real time.
        let behind = next.running(real(9_000_500, 600));
        assert_eq!(behind.read(real(9_000_600, 700)).unix, UnixMs(1_000_100 + HOUR_MS));
        assert!(behind.offset_ms < 0);
        let next = Shift::of(behind.kept(), real(9_001_000, 1_000));
        assert_eq!(next.read(real(9_001_000, 1_000)).unix, UnixMs(1_000_500 + HOUR_MS));
    }

    #[test]
    fn no_reading_goes_back_when_the_clock_runs_again() {
        let start = real(1_000_000, 7_000);
        let frozen = Shift::of(Kept::default(), start).frozen(start);
        for (unix_ms, boot_ms) in [(1_010_000, 17_001), (1_010_001, 17_000), (1_010_000, 17_000)] {
            let now = real(unix_ms, boot_ms);
            let clock = frozen.running(now);
            let read = clock.read(now);
            assert!(read.unix >= start.unix && read.since_boot >= start.since_boot, "{read:?}");
        }
        // The wall clock was set meanwhile: the clock since the boot continues, and shows
        // the step.
        let now = real(5_000_000, 17_000);
        let read = frozen.running(now).read(now);
        assert_eq!((read.since_boot.as_millis(), read.unix.0), (7_000, 4_990_000));
    }

    #[test]
    fn moves_are_bounded() {
        let start = real(1_000_000, 7_000);
        let clock = Shift::of(Kept::default(), start);
        let most = ADVANCE_DAYS_MAX * DAY_MS;
        assert_eq!(
            clock.advanced(most + 1, start).unwrap_err(),
            ClockRefusal::TooFarAtOnce(most + 1)
        );
        let mut moved = clock;
        for _ in 0..AHEAD_DAYS_MAX / ADVANCE_DAYS_MAX {
            moved = moved.advanced(most, start).unwrap();
        }
        let ahead = most * (AHEAD_DAYS_MAX / ADVANCE_DAYS_MAX + 1);
        assert_eq!(moved.advanced(most, start).unwrap_err(), ClockRefusal::TooFarAhead(ahead));
    }

    #[test]
    fn a_folder_of_a_test_server_is_refused_by_another() {
        let folder = tempfile::tempdir().unwrap();
        let clock = ServerClock::of_test(folder.path()).unwrap();
        assert!(ServerClock::of_machine(folder.path()).is_ok());
        assert_eq!(ServerClock::default().advance(1), Err(ClockRefusal::NotATest));
        clock.advance(HOUR_MS).unwrap();
        let now = clock.unix_ms();
        assert!(now.ms_since(clock::unix_ms()) > HOUR_MS - 60_000);
        let refused = ServerClock::of_machine(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("start with --test-server"), "{refused}");
        let next = ServerClock::of_test(folder.path()).unwrap();
        assert!(next.unix_ms() >= now);
        std::fs::write(folder.path().join(FILE_NAME), "{").unwrap();
        let unreadable = ServerClock::of_test(folder.path()).unwrap_err().to_string();
        assert!(unreadable.contains("no state of a test clock"), "{unreadable}");
        let too_far = (AHEAD_DAYS_MAX + 1) * DAY_MS;
        let frozen = clock::unix_ms().0 + too_far;
        for (state, field) in [
            (format!("{{\"offset_ms\":{too_far}}}"), "offset_ms"),
            (format!("{{\"offset_ms\":-{too_far}}}"), "offset_ms"),
            (format!("{{\"offset_ms\":{}}}", i64::MIN), "offset_ms"),
            (format!("{{\"offset_ms\":0,\"frozen_unix_ms\":{frozen}}}"), "frozen_unix_ms"),
            (format!("{{\"offset_ms\":0,\"frozen_unix_ms\":{}}}", u64::MAX), "frozen_unix_ms"),
        ] {
            std::fs::write(folder.path().join(FILE_NAME), &state).unwrap();
            let refused = ServerClock::of_test(folder.path()).unwrap_err().to_string();
            let text = format!("test-clock.json: {field} is more than 3660 days from the time");
            assert!(refused.contains(&text), "{state}: {refused}");
        }
    }
}
