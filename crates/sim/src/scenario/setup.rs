//! The setup of one simulated run: plain data, made by the scenario reader or by a test.
//!
//! Volumes, instances, stripes and clients are named by their number in these lists. Times are
//! nanoseconds after the start.

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::volume::VolumeSpec;

use crate::scenario::program::ProgramSetup;

// A faulty store has the same keys with the same meaning.
pub use evenkeel_core::device::{ServiceTime, WriteCache};

/// The setup of a simulated world.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Length of the run.
    pub duration_ns: u64,
    /// Time between two samples of rates and balances.
    pub sample_ns: u64,
    /// The volumes.
    pub volumes: Vec<VolumeSetup>,
    /// The client hosts.
    pub instances: Vec<InstanceSetup>,
    /// RAID 0 sets over volumes.
    pub stripes: Vec<StripeSetup>,
    /// The clients.
    pub clients: Vec<ClientSetup>,
    /// The device under the volumes.
    pub device: DeviceSetup,
    /// Lateness of the scheduler's wake-ups.
    pub poller: PollerSetup,
    /// Events during the run, in order of time.
    pub changes: Vec<Change>,
}

/// One volume.
#[derive(Clone, PartialEq, Debug)]
pub struct VolumeSetup {
    /// Its name.
    pub name: String,
    /// Its type and size in words.
    pub kind: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its limits.
    pub pacing: Pacing,
    /// Credit balances at the start; a missing one is full.
    pub balances: Balances,
    /// Its EBS type and size; `None` for a volume of raw limits.
    pub spec: Option<VolumeSpec>,
    /// Number of the instance it is attached to.
    pub instance: Option<u32>,
    /// Its share of the device; `None` leaves it to the scheduler.
    pub share: Option<ShareSetup>,
}

/// A volume's share of a shared device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareSetup {
    /// I/Os per second that are reserved for it; 0 is the scheduler's minimum.
    pub reservation_per_second: u64,
    /// Its weight if volumes want more than the device has; `None` is its rate.
    pub weight: Option<u32>,
}

/// One client host, and the limits of all its volumes together.
#[derive(Clone, PartialEq, Debug)]
pub struct InstanceSetup {
    /// Its name.
    pub name: String,
    /// Its type, or its limits in words.
    pub kind: String,
    /// I/Os per second that it sustains, of at most `unit_bytes` each.
    pub baseline_iops: u64,
    /// Most I/Os per second.
    pub iops_max: u64,
    /// Bytes per second it sustains.
    pub baseline_bytes_per_second: u64,
    /// Most bytes per second.
    pub bytes_per_second_max: u64,
    /// Whether reads and writes each have the whole bandwidth, as on a full-duplex link.
    pub per_direction: bool,
    /// Share of the bandwidth that is payload, in millionths.
    pub efficiency_ppm: u32,
}

/// A RAID 0 set: its chunks lie on its volumes in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeSetup {
    /// Its name.
    pub name: String,
    /// Numbers of its volumes.
    pub volumes: Vec<u32>,
    /// Size of a chunk in bytes.
    pub chunk_bytes: u32,
}

/// The destination of a client's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The volume of that number.
    Volume(u32),
    /// The stripe of that number.
    Stripe(u32),
}

/// A client and its requests.
#[derive(Clone, PartialEq, Debug)]
pub struct ClientSetup {
    /// Its name.
    pub name: String,
    /// Destination of its requests.
    pub target: Target,
    /// Properties of its requests.
    pub shape: Shape,
    /// Times of its requests.
    pub load: Load,
    /// Time of its start.
    pub start_ns: u64,
    /// Time after which it sends nothing.
    pub stop_ns: u64,
    /// The program that it stands for in a live run on a file system.
    pub program: Option<ProgramSetup>,
}

impl ClientSetup {
    /// Returns whether it can run only live on a file system.
    #[must_use]
    pub fn is_live_only(&self) -> bool {
        self.program.is_some_and(|setup| setup.program.is_live_only())
    }

    /// Returns whether it only adds load beside other clients: requests or batches at random times.
    #[must_use]
    pub const fn is_beside(&self) -> bool {
        let is_random = matches!(self.load, Load::Open { .. } | Load::Job { poisson: true, .. });
        is_random && self.program.is_none()
    }
}

/// Properties of a client's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Share of reads, in percent; the others are writes.
    pub read_percent: u8,
    /// Size of each.
    pub block_bytes: u32,
    /// Whether requests follow each other through the range, repeatedly; otherwise they are
    /// anywhere in it.
    pub sequential: bool,
    /// Whether writes are durable before they are answered.
    pub fua: bool,
    /// Size of the range, which begins at the target's first byte.
    pub span_bytes: u64,
}

/// Times of a client's requests.
#[derive(Clone, PartialEq, Debug)]
pub enum Load {
    /// The next request follows each answer, after a pause.
    Closed {
        /// Number of threads. Each has its own place in a sequential range.
        threads: u16,
        /// Number of requests that each keeps in flight.
        depth: u16,
        /// Pause between answer and request.
        think: Think,
    },
    /// Requests are sent at their times, whether earlier ones are answered or not.
    Open {
        /// Average number of requests per second.
        per_second: u64,
        /// Whether the distances are exponentially distributed; otherwise they are equal.
        poisson: bool,
    },
    /// A batch of requests, repeatedly.
    Job {
        /// Time between the starts of two batches. If a batch takes longer, the next one follows at
        /// once.
        every_ns: u64,
        /// Whether that is the mean of exponentially distributed distances, the first of which
        /// precedes the first batch. Otherwise distances are equal, and the first batch starts at
        /// once.
        poisson: bool,
        /// Requests of each batch.
        ios: u64,
        /// Number of requests that a batch keeps in flight.
        depth: u16,
        /// Pause between answer and request, of a batch with one request at a time.
        think: Think,
    },
    /// Recorded requests.
    Trace(Vec<Arrival>),
}

/// A pause of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Think {
    /// None.
    No,
    /// Always this many nanoseconds.
    Constant(u64),
    /// Exponentially distributed, with this mean in nanoseconds.
    Exponential(u64),
}

/// A recorded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// Its time, after the client's start.
    pub at_ns: u64,
    /// Whether it is a read; otherwise it is a write.
    pub is_read: bool,
    /// Offset of its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u32,
}

/// The behaviour of the device under the volumes.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceSetup {
    /// Number of requests that it serves at once; `None` is unlimited.
    pub channels: Option<u32>,
    /// Service time of a read.
    pub read: ServiceTime,
    /// Service time of a write.
    pub write: ServiceTime,
    /// Part of the service time that does not depend on the length, for a request that begins near
    /// the end of the previous one of its volume; `None` if its place makes no difference. In
    /// nanoseconds.
    pub near_ns: Option<u64>,
    /// Relative standard deviation of service times, in millionths.
    pub noise_ppm: u32,
    /// A write cache: writes are fast until it is full.
    pub cache: Option<WriteCache>,
    /// Pauses of the device's own.
    pub collection: Option<GarbageCollection>,
    /// The bound on what the scheduler has in flight at the device; `None` if the scheduler does
    /// not know of the device.
    pub window: Option<WindowSetup>,
}

/// The bound on what the scheduler has in flight at a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowSetup {
    /// The device time of this many requests of the present mean.
    Slots(u32),
    /// The device time with which 99 of 100 small requests take at most this many nanoseconds.
    Adaptive(u64),
}

/// Pauses that writes cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GarbageCollection {
    /// Bytes written between two pauses.
    pub every_bytes: u64,
    /// Length of each pause.
    pub pause_ns: u64,
}

/// Lateness of the scheduler's wake-ups.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PollerSetup {
    /// Mean of the timer's lateness, which is exponentially distributed; 0 is exact.
    pub late_mean_ns: u64,
    /// Chance that a wake-up finds the whole program paused, in millionths.
    pub pause_ppm: u32,
    /// Length of such a pause.
    pub pause_ns: u64,
    /// Further pauses of the whole program, in order, apart from each other: begin and length.
    pub pauses: Vec<(u64, u64)>,
}

/// An event at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// Its time.
    pub at_ns: u64,
    /// The event.
    pub kind: ChangeKind,
}

/// The kinds of events.
#[derive(Clone, PartialEq, Debug)]
pub enum ChangeKind {
    /// The volume of this number gets other limits.
    SetLimits(u32, Box<Pacing>),
    /// The volume of this number gets other balances.
    SetBalances(u32, Balances),
    /// The device serves nothing for this many nanoseconds.
    Stall(u64),
    /// Service times change to this percentage of those of the setup.
    DevicePercent(u32),
    /// The number of channels changes to this: a part of the device is lost, or is back.
    DeviceChannels(u32),
}

impl Target {
    /// Returns the numbers of its volumes.
    #[must_use]
    pub fn volumes<'a>(&'a self, setup: &'a Setup) -> &'a [u32] {
        match self {
            Self::Volume(volume) => std::slice::from_ref(volume),
            Self::Stripe(stripe) => &setup.stripes[*stripe as usize].volumes,
        }
    }
}

impl Setup {
    /// Returns whether the target is a volume that only one client uses, and no stripe.
    #[must_use]
    pub fn is_sole(&self, target: Target) -> bool {
        let Target::Volume(volume) = target else { return false };
        let clients = self.clients.iter().filter(|client| client.target == target).count();
        clients == 1 && !self.stripes.iter().any(|stripe| stripe.volumes.contains(&volume))
    }
}

impl DeviceSetup {
    /// Returns a device without queues or variation: every request takes `latency_ns`.
    #[must_use]
    pub const fn ideal(latency_ns: u64) -> Self {
        let time = ServiceTime { base_ns: latency_ns, ns_per_kib: 0 };
        Self {
            channels: None,
            read: time,
            write: time,
            near_ns: None,
            noise_ppm: 0,
            cache: None,
            collection: None,
            window: None,
        }
    }
}

impl PollerSetup {
    /// Returns the lateness of a thread on a busy host: a mean of 15 microseconds, and in one of a
    /// thousand wake-ups 1.5 milliseconds.
    #[must_use]
    pub fn realistic() -> Self {
        let pause_ns = 1_500_000;
        Self { late_mean_ns: 15_000, pause_ppm: 1_000, pause_ns, pauses: Vec::new() }
    }
}
