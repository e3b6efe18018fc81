//! Faults that a server for tests injects on request: into its API, into changes of volumes and
//! snapshots, and into I/O. Their names are those of AWS FIS where it has the fault.
//!
//! Faults are in memory only: none is left after a restart. Each has an end in real time, which is
//! [`DURATION_S_MAX`] away at most. Random choices follow a seed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::io_fault::{IoFault, IoFaultKind, Share};
use evenkeel_core::random::Random;
use evenkeel_core::time::{Duration, Instant, UnixMs};
use evenkeel_os::clock;
use tracing::{info, warn};

/// Maximum number of faults that are in force at once.
pub const FAULTS_MAX: usize = 64;
/// Maximum duration of a fault, in seconds: 12 hours, as FIS has it.
pub const DURATION_S_MAX: u64 = 43_200;
/// Maximum latency that a fault adds, in milliseconds, as FIS has it.
pub const LATENCY_MS_MAX: u64 = 60_000;
/// Maximum number of volumes or actions that a fault names.
pub const TARGETS_MAX: usize = 100;
/// Millionths in a percent.
pub const PERCENT_PPM: u32 = 10_000;
const NS_PER_S: u64 = 1_000_000_000;

/// The effect of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultType {
    /// Volumes answer no I/O (`aws:ebs:pause-volume-io`).
    PauseVolumeIo,
    /// I/O of volumes takes longer (`aws:ebs:volume-io-latency`).
    VolumeIoLatency,
    /// I/O of volumes fails.
    VolumeIoError,
    /// Attachments stay `attaching`.
    StuckAttachment,
    /// New snapshots of volumes end in the state `error`.
    SnapshotError,
    /// New volumes are refused with `InsufficientVolumeCapacity`.
    InsufficientVolumeCapacity,
    /// Requests are refused with `RequestLimitExceeded` (`aws:fis:inject-api-throttle-error`).
    ApiThrottleError,
    /// Requests fail with `InternalError` (`aws:fis:inject-api-internal-error`).
    ApiInternalError,
    /// Requests are refused with `Unavailable` (`aws:fis:inject-api-unavailable-error`).
    ApiUnavailableError,
}

impl FaultType {
    /// All types, with their names.
    pub const ALL: [(&'static str, Self); 9] = [
        ("pause-volume-io", Self::PauseVolumeIo),
        ("volume-io-latency", Self::VolumeIoLatency),
        ("volume-io-error", Self::VolumeIoError),
        ("stuck-attachment", Self::StuckAttachment),
        ("snapshot-error", Self::SnapshotError),
        ("insufficient-volume-capacity", Self::InsufficientVolumeCapacity),
        ("api-throttle-error", Self::ApiThrottleError),
        ("api-internal-error", Self::ApiInternalError),
        ("api-unavailable-error", Self::ApiUnavailableError),
    ];

    /// Returns the type of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, it)| *it)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, it)| *it == self).map_or("", |(name, _)| name)
    }

    /// Returns whether it concerns volumes, and so may name some.
    #[must_use]
    pub const fn is_of_volumes(self) -> bool {
        matches!(
            self,
            Self::PauseVolumeIo
                | Self::VolumeIoLatency
                | Self::VolumeIoError
                | Self::StuckAttachment
                | Self::SnapshotError
        )
    }

    /// Returns whether it concerns requests of the API, and so may name actions.
    #[must_use]
    pub const fn is_of_api(self) -> bool {
        matches!(self, Self::ApiThrottleError | Self::ApiInternalError | Self::ApiUnavailableError)
    }

    /// Returns whether it distinguishes reads and writes.
    #[must_use]
    pub const fn has_directions(self) -> bool {
        matches!(self, Self::VolumeIoLatency | Self::VolumeIoError)
    }
}

/// A part of the requests, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// How many of a million requests are concerned.
    pub ppm: u32,
    /// The latency that is added to each, in milliseconds.
    pub latency_ms: u64,
}

/// The description of a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultSpec {
    /// Its effect.
    pub kind: FaultType,
    /// The volumes that it concerns; empty for all.
    pub volumes: Vec<VolumeId>,
    /// The actions that it concerns; empty for all.
    pub actions: Vec<String>,
    /// How long it lasts, in seconds.
    pub duration_s: u64,
    /// The percentage of the requests of the API that are concerned.
    pub percent: u32,
    /// Reads, for a fault that distinguishes directions.
    pub reads: Part,
    /// Writes, likewise; with latency also flushes.
    pub writes: Part,
    /// The seed of random choices.
    pub seed: u64,
}

/// A fault in force, as DescribeTestFaults returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultView {
    /// Its id.
    pub id: String,
    /// Its description.
    pub spec: FaultSpec,
    /// When it began.
    pub started: UnixMs,
    /// The time until its end, in milliseconds.
    pub left_ms: u64,
    /// How many requests it has changed.
    pub hits: u64,
}

/// Why a fault does not start or end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FaultRefusal {
    /// The server injects no faults.
    NotATest,
    /// [`FAULTS_MAX`] are in force.
    TooMany,
    /// There is no fault with this id.
    Unknown(String),
}

impl fmt::Display for FaultRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotATest => f.write_str(
                "This server injects no faults. Start `evenkeel serve` with --test-server for one \
                 that does.",
            ),
            Self::TooMany => write!(
                f,
                "{FAULTS_MAX} faults are in force, the maximum. Stop one with StopTestFaults."
            ),
            Self::Unknown(id) => write!(
                f,
                "The fault '{id}' is not in force. DescribeTestFaults lists those that are."
            ),
        }
    }
}

/// The part of a server that executes faults of I/O.
pub trait IoFaults: fmt::Debug + Send + Sync {
    /// Sets all faults that are in force from now on.
    fn set(&self, faults: Vec<IoFault>);

    /// Returns how many requests each fault has changed, by its number.
    fn hits(&self) -> Vec<(u64, u64)>;
}

#[derive(Debug)]
struct Active {
    number: u64,
    spec: FaultSpec,
    started: UnixMs,
    until: Instant,
    /// The choices of a fault of the API.
    choices: Random,
    hits: u64,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    active: Vec<Active>,
}

impl State {
    fn check_room(&self) -> Result<(), FaultRefusal> {
        if self.active.len() < FAULTS_MAX { Ok(()) } else { Err(FaultRefusal::TooMany) }
    }

    fn check_in_force(&self, ids: &[String]) -> Result<(), FaultRefusal> {
        let is_in_force = |id: &&String| self.active.iter().any(|fault| fault.id() == **id);
        match ids.iter().find(|id| !is_in_force(id)) {
            Some(unknown) => Err(FaultRefusal::Unknown(unknown.clone())),
            None => Ok(()),
        }
    }
}

/// The faults of a server. A server that is not for tests has none.
#[derive(Debug, Default)]
pub struct Faults {
    io: Option<Arc<dyn IoFaults>>,
    state: Mutex<State>,
}

impl Faults {
    /// Creates the faults of a server for tests.
    #[must_use]
    pub fn of_test(io: Arc<dyn IoFaults>) -> Self {
        Self { io: Some(io), state: Mutex::default() }
    }

    /// Starts a fault. Returns it as it is in force.
    ///
    /// # Errors
    /// See [`FaultRefusal`].
    pub fn start(&self, spec: FaultSpec, started: UnixMs) -> Result<FaultView, FaultRefusal> {
        let io = self.io.as_ref().ok_or(FaultRefusal::NotATest)?;
        let now = clock::monotonic();
        let mut state = self.state(now);
        state.check_room()?;
        state.last += 1;
        let number = state.last;
        let span = Duration::from_secs(spec.duration_s.min(DURATION_S_MAX));
        let choices = Random::new(spec.seed, 1);
        let fault = Active { number, started, until: now + span, choices, hits: 0, spec };
        warn!(fault = id_of(number), kind = fault.spec.kind.name(), "a fault has started");
        let view = fault.view(now, 0);
        state.active.push(fault);
        set_io(io, &state);
        Ok(view)
    }

    /// Checks whether a fault could start now.
    ///
    /// # Errors
    /// See [`FaultRefusal`].
    pub fn check_start(&self) -> Result<(), FaultRefusal> {
        self.io.as_ref().ok_or(FaultRefusal::NotATest)?;
        self.state(clock::monotonic()).check_room()
    }

    /// Checks whether these faults could be ended now.
    ///
    /// # Errors
    /// See [`FaultRefusal`].
    pub fn check_stop(&self, ids: &[String]) -> Result<(), FaultRefusal> {
        self.io.as_ref().ok_or(FaultRefusal::NotATest)?;
        self.state(clock::monotonic()).check_in_force(ids)
    }

    /// Ends faults; all of them if none is named. Returns those that have ended.
    ///
    /// # Errors
    /// See [`FaultRefusal`]; then none has ended.
    pub fn stop(&self, ids: &[String]) -> Result<Vec<FaultView>, FaultRefusal> {
        let io = self.io.as_ref().ok_or(FaultRefusal::NotATest)?;
        let before = self.list();
        let now = clock::monotonic();
        let mut state = self.state(now);
        state.check_in_force(ids)?;
        let ends = |fault: &Active| ids.is_empty() || ids.contains(&fault.id());
        let ended: Vec<String> =
            state.active.iter().filter(|fault| ends(fault)).map(Active::id).collect();
        state.active.retain(|fault| !ends(fault));
        set_io(io, &state);
        drop(state);
        for id in &ended {
            info!(fault = id, "a fault was stopped");
        }
        Ok(before.into_iter().filter(|view| ended.contains(&view.id)).collect())
    }

    /// Returns the faults in force.
    #[must_use]
    pub fn list(&self) -> Vec<FaultView> {
        let Some(io) = &self.io else { return Vec::new() };
        let io_hits = io.hits();
        let now = clock::monotonic();
        let state = self.state(now);
        let hits = |number: u64| {
            let found = io_hits.iter().find(|(known, _)| *known == number);
            found.map_or(0, |(_, hits)| *hits)
        };
        state.active.iter().map(|fault| fault.view(now, hits(fault.number))).collect()
    }

    /// Returns whether faults can be started.
    #[must_use]
    pub const fn is_test(&self) -> bool {
        self.io.is_some()
    }

    /// Returns the fault that a request of an action meets, and its id.
    #[must_use]
    pub fn of_action(&self, action: &str) -> Option<(FaultType, String)> {
        const CREATE: [&str; 2] = ["CopyVolumes", "CreateVolume"];
        self.io.as_ref()?;
        let concerns = |it: &Active| match it.spec.kind {
            FaultType::InsufficientVolumeCapacity => CREATE.contains(&action),
            kind => {
                let named = it.spec.actions.iter().any(|name| name == action);
                kind.is_of_api() && (named || it.spec.actions.is_empty())
            }
        };
        let mut state = self.state(clock::monotonic());
        for fault in state.active.iter_mut().filter(|fault| concerns(fault)) {
            let ppm = fault.spec.percent.saturating_mul(PERCENT_PPM);
            if fault.choices.chance_ppm(ppm) {
                fault.hits += 1;
                return Some((fault.spec.kind, fault.id()));
            }
        }
        None
    }

    /// Returns the id of a fault of this kind that concerns one of these volumes, and counts the
    /// request that meets it.
    #[must_use]
    pub fn of_volumes(&self, kind: FaultType, volumes: &[VolumeId]) -> Option<String> {
        self.io.as_ref()?;
        let mut state = self.state(clock::monotonic());
        let hit = state.active.iter_mut().find(|fault| fault.is_of(kind, volumes))?;
        hit.hits += 1;
        Some(hit.id())
    }

    /// Returns whether a fault of this kind concerns a volume.
    #[must_use]
    pub fn is_met(&self, kind: FaultType, volume: VolumeId) -> bool {
        let state = || self.state(clock::monotonic());
        self.io.is_some() && state().active.iter().any(|fault| fault.is_of(kind, &[volume]))
    }

    /// Returns the faults that are in force at `now`.
    fn state(&self, now: Instant) -> MutexGuard<'_, State> {
        // Each change of it leaves it whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.active.retain(|fault| fault.until > now);
        state
    }
}

/// Returns the id of a fault by its number.
fn id_of(number: u64) -> String {
    format!("fault-{number}")
}

/// Sets the faults of I/O among those in force.
fn set_io(io: &Arc<dyn IoFaults>, state: &State) {
    io.set(state.active.iter().filter_map(Active::of_io).collect());
}

impl Active {
    fn is_of(&self, kind: FaultType, volumes: &[VolumeId]) -> bool {
        let own = &self.spec.volumes;
        let is_named = own.is_empty() || volumes.iter().any(|id| own.contains(id));
        self.spec.kind == kind && is_named
    }

    fn id(&self) -> String {
        id_of(self.number)
    }

    fn view(&self, now: Instant, io_hits: u64) -> FaultView {
        FaultView {
            id: self.id(),
            spec: self.spec.clone(),
            started: self.started,
            left_ms: self.until.since(now).ns / (NS_PER_S / 1_000),
            hits: self.hits + io_hits,
        }
    }

    fn of_io(&self) -> Option<IoFault> {
        let &Self { number, until, .. } = self;
        let FaultSpec { kind, ref volumes, reads, writes, seed, .. } = self.spec;
        let share = |part: Part| Share {
            ppm: part.ppm,
            added: Duration::from_ms(part.latency_ms.min(LATENCY_MS_MAX)),
        };
        let kind = match kind {
            FaultType::PauseVolumeIo => IoFaultKind::Pause,
            FaultType::VolumeIoLatency => {
                IoFaultKind::Latency { reads: share(reads), writes: share(writes) }
            }
            FaultType::VolumeIoError => {
                IoFaultKind::Error { reads_ppm: reads.ppm, writes_ppm: writes.ppm }
            }
            _ => return None,
        };
        Some(IoFault { number, kind, volumes: volumes.clone(), seed, until })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Io(Mutex<Vec<IoFault>>);

    impl IoFaults for Io {
        fn set(&self, faults: Vec<IoFault>) {
            *self.0.lock().unwrap() = faults;
        }

        fn hits(&self) -> Vec<(u64, u64)> {
            let numbers = self.0.lock().unwrap();
            numbers.iter().map(|fault| (fault.number, 10 + fault.number)).collect()
        }
    }

    fn spec(kind: FaultType) -> FaultSpec {
        let all = Part { ppm: 1_000_000, latency_ms: 30 };
        let volumes = vec![];
        let actions = vec![];
        let duration_s = 600;
        FaultSpec {
            kind,
            volumes,
            actions,
            duration_s,
            percent: 100,
            reads: all,
            writes: all,
            seed: 1,
        }
    }

    fn faults() -> (Arc<Io>, Faults) {
        let io = Arc::<Io>::default();
        (Arc::clone(&io), Faults::of_test(io))
    }

    fn start(faults: &Faults, spec: FaultSpec) -> String {
        faults.start(spec, UnixMs(5)).unwrap().id
    }

    #[test]
    fn names_are_those_of_the_types() {
        for (name, kind) in FaultType::ALL {
            assert_eq!((FaultType::of_name(name), kind.name()), (Some(kind), name));
            assert!(!(kind.is_of_api() && kind.is_of_volumes()));
        }
        assert_eq!(FaultType::of_name("nothing"), None);
    }

    #[test]
    fn faults_of_io_are_passed_on_while_they_are_in_force() {
        let (io, faults) = faults();
        let pause = start(&faults, spec(FaultType::PauseVolumeIo));
        start(&faults, spec(FaultType::ApiThrottleError));
        let latency = FaultSpec {
            reads: Part { ppm: 250_000, latency_ms: 200 },
            ..spec(FaultType::VolumeIoLatency)
        };
        start(&faults, latency);
        let kinds = || io.0.lock().unwrap().iter().map(|fault| fault.kind).collect::<Vec<_>>();
        let share = |ppm, ms| Share { ppm, added: Duration::from_ms(ms) };
        let expected =
            IoFaultKind::Latency { reads: share(250_000, 200), writes: share(1_000_000, 30) };
        assert_eq!(kinds(), [IoFaultKind::Pause, expected]);
        assert_eq!(faults.list()[0].hits, 11);
        let ended = faults.stop(std::slice::from_ref(&pause)).unwrap();
        assert_eq!((ended.len(), &ended[0].id), (1, &pause));
        assert_eq!(kinds(), [expected]);
        assert_eq!(faults.stop(std::slice::from_ref(&pause)), Err(FaultRefusal::Unknown(pause)));
        assert_eq!(faults.stop(&[]).unwrap().len(), 2);
        assert!(kinds().is_empty() && faults.list().is_empty());
    }

    #[test]
    fn requests_meet_the_faults_of_their_action_by_the_seed() {
        let run = |seed| {
            let (_, faults) = faults();
            let throttle = FaultSpec {
                actions: vec!["DescribeVolumes".into()],
                percent: 30,
                seed,
                ..spec(FaultType::ApiThrottleError)
            };
            let id = start(&faults, throttle);
            let meets = |action: &str| faults.of_action(action).is_some();
            let met: Vec<bool> = (0..200).map(|_| meets("DescribeVolumes")).collect();
            assert!(!meets("CreateVolume"));
            let count = met.iter().filter(|is_met| **is_met).count() as u64;
            assert!((30..90).contains(&count), "{count}");
            assert_eq!((&faults.list()[0].id, faults.list()[0].hits), (&id, count));
            met
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        let (_, faults) = faults();
        start(&faults, spec(FaultType::InsufficientVolumeCapacity));
        assert!(faults.of_action("CreateVolume").is_some());
        assert!(faults.of_action("ModifyVolume").is_none());
    }

    #[test]
    fn faults_concern_their_volumes_have_an_end_and_a_bound() {
        let (_, faults) = faults();
        let volume = VolumeId::from_bits(7);
        let stuck = FaultSpec { volumes: vec![volume], ..spec(FaultType::StuckAttachment) };
        start(&faults, stuck);
        let other = VolumeId::from_bits(8);
        assert!(faults.of_volumes(FaultType::StuckAttachment, &[other]).is_none());
        assert!(faults.of_volumes(FaultType::SnapshotError, &[volume]).is_none());
        assert!(faults.of_volumes(FaultType::StuckAttachment, &[other, volume]).is_some());
        faults.stop(&[]).unwrap();
        // Its end is now.
        start(&faults, FaultSpec { duration_s: 0, ..spec(FaultType::StuckAttachment) });
        assert!(faults.of_volumes(FaultType::StuckAttachment, &[volume]).is_none());
        for _ in 0..FAULTS_MAX {
            start(&faults, spec(FaultType::SnapshotError));
        }
        let refused = faults.start(spec(FaultType::SnapshotError), UnixMs(0));
        assert_eq!(refused, Err(FaultRefusal::TooMany));
        let usual = Faults::default();
        let refused = usual.start(spec(FaultType::SnapshotError), UnixMs(0));
        assert_eq!(refused, Err(FaultRefusal::NotATest));
        assert!(usual.of_action("CreateVolume").is_none());
    }
}
