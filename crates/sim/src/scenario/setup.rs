//! What one simulated run consists of: plain data, made by the scenario reader or by hand.
//!
//! Volumes, instances, stripes and clients are named by their number in these lists. Times are
//! nanoseconds after the start.

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::volume::VolumeSpec;

use crate::scenario::program::ProgramSetup;

// What a faulty store is like is said in the same words, and means the same.
pub use evenkeel_core::device::{ServiceTime, WriteCache};

/// Everything that is in a simulated world.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// Length of the run.
    pub duration_ns: u64,
    /// Distance of the samples: rates and balances are kept once each.
    pub sample_ns: u64,
    /// The volumes.
    pub volumes: Vec<VolumeSetup>,
    /// The client hosts.
    pub instances: Vec<InstanceSetup>,
    /// RAID 0 sets over volumes.
    pub stripes: Vec<StripeSetup>,
    /// Who sends requests.
    pub clients: Vec<ClientSetup>,
    /// What the volumes lie on.
    pub device: DeviceSetup,
    /// How late the scheduler is woken.
    pub poller: PollerSetup,
    /// What happens during the run, in order of time.
    pub changes: Vec<Change>,
}

/// One volume.
#[derive(Clone, PartialEq, Debug)]
pub struct VolumeSetup {
    /// Its name.
    pub name: String,
    /// Its type and size in words.
    pub kind: String,
    /// Bytes it holds.
    pub size_bytes: u64,
    /// Its limits.
    pub pacing: Pacing,
    /// Credit balances at the start; full where there is none.
    pub balances: Balances,
    /// The EBS volume it is; `None` for one of raw limits.
    pub spec: Option<VolumeSpec>,
    /// Number of the instance it is attached to.
    pub instance: Option<u32>,
    /// What it is promised of the device; `None` leaves it to the scheduler.
    pub share: Option<ShareSetup>,
}

/// What a volume is promised of a device that others use too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareSetup {
    /// I/Os per second it gets whatever the others do; 0 is the scheduler's minimum.
    pub reservation_per_second: u64,
    /// Its weight where more is wanted than there is; `None` is its rate.
    pub weight: Option<u32>,
}

/// One client host, and what all its volumes together may do.
#[derive(Clone, PartialEq, Debug)]
pub struct InstanceSetup {
    /// Its name.
    pub name: String,
    /// Its type, or its limits in words.
    pub kind: String,
    /// I/Os per second it sustains, at most `unit_bytes` each.
    pub baseline_iops: u64,
    /// Most I/Os per second.
    pub iops_max: u64,
    /// Bytes per second it sustains.
    pub baseline_bytes_per_second: u64,
    /// Most bytes per second.
    pub bytes_per_second_max: u64,
    /// Whether reads and writes have the bandwidth each for itself, as on a full-duplex link.
    pub per_direction: bool,
    /// Share of the bandwidth that payload gets, in millionths.
    pub efficiency_ppm: u32,
}

/// A RAID 0 set: chunk after chunk on volume after volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeSetup {
    /// Its name.
    pub name: String,
    /// Numbers of its volumes.
    pub volumes: Vec<u32>,
    /// Bytes in a row on one volume.
    pub chunk_bytes: u32,
}

/// Where a client's requests go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// The volume of that number.
    Volume(u32),
    /// The stripe of that number.
    Stripe(u32),
}

/// Who sends requests, and which.
#[derive(Clone, PartialEq, Debug)]
pub struct ClientSetup {
    /// Its name.
    pub name: String,
    /// Where they go.
    pub target: Target,
    /// What they are.
    pub shape: Shape,
    /// When they are sent.
    pub load: Load,
    /// When the client begins.
    pub start_ns: u64,
    /// When it sends its last.
    pub stop_ns: u64,
    /// What it stands for where it is run live on a file system.
    pub program: Option<ProgramSetup>,
}

impl ClientSetup {
    /// Whether it is run live on a file system or not at all.
    #[must_use]
    pub fn is_live_only(&self) -> bool {
        self.program.is_some_and(|setup| setup.program.is_live_only())
    }

    /// Whether it only goes on beside others: requests or batches at random times.
    #[must_use]
    pub const fn is_beside(&self) -> bool {
        let is_random = matches!(self.load, Load::Open { .. } | Load::Job { poisson: true, .. });
        is_random && self.program.is_none()
    }
}

/// What a client's requests are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Share of reads, in percent; the others are writes.
    pub read_percent: u8,
    /// Bytes of each.
    pub block_bytes: u32,
    /// One after the other from the start of the range, round and round; else anywhere in it.
    pub sequential: bool,
    /// Writes are durable before the reply.
    pub fua: bool,
    /// Bytes of the range, from the target's first byte on.
    pub span_bytes: u64,
}

/// When a client sends requests.
#[derive(Clone, PartialEq, Debug)]
pub enum Load {
    /// Each answer is followed, after a pause, by the next request.
    Closed {
        /// Each with its own place in a sequential run.
        threads: u16,
        /// Requests each keeps under way.
        depth: u16,
        /// Pause between answer and request.
        think: Think,
    },
    /// Requests come whatever becomes of the earlier ones.
    Open {
        /// So many a second on average.
        per_second: u64,
        /// At exponentially distributed distances; else evenly.
        poisson: bool,
    },
    /// A batch of requests again and again.
    Job {
        /// Distance of the starts; a batch that takes longer is followed by the next at once.
        every_ns: u64,
        /// Whether that is the mean of exponentially distributed distances, the first of them
        /// before the first batch; else they are all alike, and the first batch begins at once.
        poisson: bool,
        /// Requests of each batch.
        ios: u64,
        /// Requests kept under way meanwhile.
        depth: u16,
        /// Pause between answer and request, of a batch of one request at a time.
        think: Think,
    },
    /// What was recorded.
    Trace(Vec<Arrival>),
}

/// A pause of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Think {
    /// None.
    No,
    /// Always as long.
    Constant(u64),
    /// Exponentially distributed with this mean.
    Exponential(u64),
}

/// A recorded request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// When it came, after the client's start.
    pub at_ns: u64,
    /// Read or write.
    pub is_read: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// The device below the volumes, as it behaves.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceSetup {
    /// Requests it works on at once; `None` is no bound.
    pub channels: Option<u32>,
    /// What a read takes.
    pub read: ServiceTime,
    /// What a write takes.
    pub write: ServiceTime,
    /// What a read or a write takes before its bytes are counted if it begins near where the last
    /// one of its volume ended; `None` if that makes no difference.
    pub near_ns: Option<u64>,
    /// Relative standard deviation of what they take, in millionths.
    pub noise_ppm: u32,
    /// Where writes are fast until it is full.
    pub cache: Option<WriteCache>,
    /// What the device does to itself.
    pub collection: Option<GarbageCollection>,
    /// Whether the scheduler knows of the device, and how it bounds what it gives to it.
    pub window: Option<WindowSetup>,
}

/// The bound on what the scheduler gives to a device at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowSetup {
    /// As much as so many requests of the present mean cost.
    Slots(u32),
    /// What keeps 99 of 100 small requests within this many nanoseconds.
    Adaptive(u64),
}

/// Pauses that writes bring about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GarbageCollection {
    /// Bytes written between two pauses.
    pub every_bytes: u64,
    /// Length of each.
    pub pause_ns: u64,
}

/// How late the scheduler is woken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PollerSetup {
    /// Mean of the exponentially distributed lateness of its timer; 0 is exact.
    pub late_mean_ns: u64,
    /// Chance that a wake-up finds the whole program paused, in millionths.
    pub pause_ppm: u32,
    /// Length of such a pause.
    pub pause_ns: u64,
    /// Further pauses of the whole program, in order, apart from each other: begin and length.
    pub pauses: Vec<(u64, u64)>,
}

/// Something that happens at a time.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// When.
    pub at_ns: u64,
    /// What.
    pub kind: ChangeKind,
}

/// What may happen.
#[derive(Clone, PartialEq, Debug)]
pub enum ChangeKind {
    /// A volume gets other limits.
    SetLimits(u32, Box<Pacing>),
    /// A volume gets other balances.
    SetBalances(u32, Balances),
    /// The device does nothing for so long.
    Stall(u64),
    /// Requests take so many percent of what they took at first.
    DevicePercent(u32),
    /// The device has so many channels: a part of it was lost, or is back.
    DeviceChannels(u32),
}

impl Target {
    /// The numbers of the volumes that it consists of.
    #[must_use]
    pub fn volumes<'a>(&'a self, setup: &'a Setup) -> &'a [u32] {
        match self {
            Self::Volume(volume) => std::slice::from_ref(volume),
            Self::Stripe(stripe) => &setup.stripes[*stripe as usize].volumes,
        }
    }
}

impl Setup {
    /// Whether only one client uses a volume, and no stripe does.
    #[must_use]
    pub fn is_sole(&self, target: Target) -> bool {
        let Target::Volume(volume) = target else { return false };
        let clients = self.clients.iter().filter(|client| client.target == target).count();
        clients == 1 && !self.stripes.iter().any(|stripe| stripe.volumes.contains(&volume))
    }
}

impl DeviceSetup {
    /// A device without queues or surprises: every request takes as long.
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
    /// What a busy host does to a thread that waits: tens of microseconds, and now and then a
    /// millisecond and a half.
    #[must_use]
    pub fn realistic() -> Self {
        let pause_ns = 1_500_000;
        Self { late_mean_ns: 15_000, pause_ppm: 1_000, pause_ns, pauses: Vec::new() }
    }
}
