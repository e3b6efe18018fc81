//! Events that can be observed from outside a system; the rules judge the promise by them.
//!
//! All times are nanoseconds on one clock that does not step back. Volumes, instances and handles
//! are the numbers of the program that reports the events. Volumes and instances are numbered
//! densely from 0.

pub use super::system::Direction;
use super::system::{DIMENSIONS, VolumePromise};

/// Whether a dispatch was covered by the volume's floor, or only by its credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Covered by the reservation or the baseline.
    Base,
    /// Allowed by credits or weight alone. These wait first if the device is short of time.
    Burst,
}

/// A request was accepted and waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// Time of the event.
    pub at: u64,
    /// Its volume.
    pub volume: u32,
    /// The client host that sent it.
    pub instance: u32,
    /// Its handle until it is answered.
    pub handle: u64,
    /// Direction of its payload.
    pub direction: Direction,
    /// Offset of the first byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

/// A request, or one piece of it, was given to the device and charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatched {
    /// Time of the event.
    pub at: u64,
    /// Its volume.
    pub volume: u32,
    /// The client host that sent it.
    pub instance: u32,
    /// The handle of its request.
    pub handle: u64,
    /// Direction of its payload.
    pub direction: Direction,
    /// Length of this piece in bytes.
    pub length: u32,
    /// Counted I/Os of this piece; see [`Counter`](super::Counter).
    pub operations: u32,
    /// Bytes charged to the volume's byte limit; not always the bytes moved.
    pub bytes: u64,
    /// Units charged to the guard, which limits requests that cost no bytes.
    pub guard: u32,
    /// Its cost in nanoseconds of one device channel; 0 if no device is modelled.
    pub device_cost_ns: u64,
    /// The tier that covered it; `None` if the scheduler does not report it.
    pub tier: Option<Tier>,
    /// Whether it was dispatched in the urgent class.
    pub urgent: bool,
    /// Whether it is the last piece of its request.
    pub last: bool,
}

/// The device completed a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// Time of the event.
    pub at: u64,
    /// Its volume.
    pub volume: u32,
    /// The handle of its request.
    pub handle: u64,
    /// Length of the piece in bytes.
    pub length: u32,
    /// The cost of the piece at its dispatch.
    pub device_cost_ns: u64,
    /// Whether it completes its request.
    pub last: bool,
}

/// A quantity that the system reports of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// Requests and payload bytes that wait for a volume.
    Queued {
        /// The volume.
        volume: u32,
        /// Number of requests.
        requests: u64,
        /// Payload bytes that are not dispatched yet; `None` if they are not reported.
        bytes: Option<u64>,
    },
    /// Cost of all pieces on the device, in nanoseconds of a channel.
    InFlight {
        /// The cost.
        cost_ns: u64,
    },
    /// The window of the device from now on, in nanoseconds of a channel.
    Window {
        /// The window.
        cost_ns: u64,
    },
    /// Credit balances of a volume in whole units, rounded down.
    VolumeBalances {
        /// The volume.
        volume: u32,
        /// Credits in I/Os, then in bytes; `None` without such credits.
        units: [Option<u64>; 2],
    },
    /// Credit balances of an instance in whole units, rounded down.
    InstanceBalances {
        /// The instance.
        instance: u32,
        /// Credits in I/Os, then in bytes; `None` without such credits.
        units: [Option<u64>; 2],
    },
    /// The size of any other structure.
    Structure {
        /// Its name in reports.
        name: &'static str,
        /// Its number of entries.
        size: u64,
        /// The maximum at this time.
        bound: u64,
    },
}

/// The part of the system that paused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The server: its poller was late.
    Ours,
    /// The device below.
    Device,
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A volume begins to exist, with the credits of its promise.
    Added {
        /// Time of the event.
        at: u64,
        /// Its number, which no volume has.
        volume: u32,
        /// Its promise.
        promise: Box<VolumePromise>,
    },
    /// A volume has other limits from now on.
    Modified {
        /// Time of the event.
        at: u64,
        /// The volume.
        volume: u32,
        /// The promise from now on; its `balances` are ignored.
        promise: Box<VolumePromise>,
    },
    /// An operator replaced the given balances.
    Credited {
        /// Time of the event.
        at: u64,
        /// The volume.
        volume: u32,
        /// Credits in I/Os, then in bytes.
        units: [Option<u64>; 2],
    },
    /// A volume is removed. Its waiting requests were cancelled before.
    Removed {
        /// Time of the event.
        at: u64,
        /// Its number.
        volume: u32,
    },
    /// A request was accepted; see [`Submitted`].
    Submitted(Submitted),
    /// A request was refused because the queue was full. There is no [`Event::Submitted`] of it.
    Refused {
        /// Time of the event.
        at: u64,
        /// The volume.
        volume: u32,
        /// Its payload in bytes.
        length: u32,
    },
    /// A piece was dispatched; see [`Dispatched`].
    Dispatched(Dispatched),
    /// A piece was completed; see [`Completed`].
    Completed(Completed),
    /// A request is answered although it was not completely dispatched. Pieces of it that are on
    /// the device complete as usual, without `last`.
    Cancelled {
        /// Time of the event.
        at: u64,
        /// The volume.
        volume: u32,
        /// The handle of the request.
        handle: u64,
    },
    /// The system paused, which excuses the work that was not done meanwhile. This event must
    /// precede all others that are later than `from`, because a second is judged when it is over.
    Stalled {
        /// First nanosecond of the pause.
        from: u64,
        /// First nanosecond after it.
        to: u64,
        /// The part of the system that paused.
        cause: Cause,
    },
    /// The system reported a quantity of itself; see [`Sample`].
    Sampled {
        /// Time of the event.
        at: u64,
        /// The quantity.
        sample: Sample,
    },
}

impl Event {
    /// Returns its time; of a pause, the start.
    #[must_use]
    pub const fn at(&self) -> u64 {
        match self {
            Self::Added { at, .. }
            | Self::Modified { at, .. }
            | Self::Credited { at, .. }
            | Self::Removed { at, .. }
            | Self::Refused { at, .. }
            | Self::Cancelled { at, .. }
            | Self::Sampled { at, .. } => *at,
            Self::Submitted(submitted) => submitted.at,
            Self::Dispatched(dispatched) => dispatched.at,
            Self::Completed(completed) => completed.at,
            Self::Stalled { from, .. } => *from,
        }
    }

    /// Returns its volume; `None` if it has none.
    #[must_use]
    pub const fn volume(&self) -> Option<u32> {
        match self {
            Self::Added { volume, .. }
            | Self::Modified { volume, .. }
            | Self::Credited { volume, .. }
            | Self::Removed { volume, .. }
            | Self::Refused { volume, .. }
            | Self::Cancelled { volume, .. } => Some(*volume),
            Self::Submitted(submitted) => Some(submitted.volume),
            Self::Dispatched(dispatched) => Some(dispatched.volume),
            Self::Completed(completed) => Some(completed.volume),
            Self::Sampled {
                sample: Sample::Queued { volume, .. } | Sample::VolumeBalances { volume, .. },
                ..
            } => Some(*volume),
            Self::Stalled { .. } | Self::Sampled { .. } => None,
        }
    }
}

impl Dispatched {
    /// Returns the units that it is charged: I/Os, bytes, units of the guard.
    #[must_use]
    pub fn charge(&self) -> [u64; DIMENSIONS] {
        [u64::from(self.operations), self.bytes, u64::from(self.guard)]
    }
}
