//! What can be seen of a system from outside: the events that the promise is judged by.
//!
//! All times are nanoseconds on one clock that does not step back; volumes, instances and handles
//! are the numbers of the program that reports the events. Volumes and instances are numbered
//! densely from 0.

use super::system::{DIMENSIONS, VolumePromise};

/// Which way the payload of a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the client.
    Read,
    /// From the client.
    Write,
    /// There is no payload: flush, discard, block status.
    None,
}

/// Whether a dispatch was covered by what a volume is sure of, or only by its credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tier {
    /// Covered by the reservation or the baseline.
    Base,
    /// Allowed by credits or weight alone: the first to wait when the device is short.
    Burst,
}

/// A request was taken and waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// When.
    pub at: u64,
    /// Whose it is.
    pub volume: u32,
    /// The client host it came from.
    pub instance: u32,
    /// Its name until it is answered.
    pub handle: u64,
    /// Which way its payload goes.
    pub direction: Direction,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

/// A request, or one piece of it, went to the device and was charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dispatched {
    /// When.
    pub at: u64,
    /// Whose it is.
    pub volume: u32,
    /// The client host it came from.
    pub instance: u32,
    /// The name of its request.
    pub handle: u64,
    /// Which way its payload goes.
    pub direction: Direction,
    /// Length of this piece in bytes.
    pub length: u32,
    /// Counted I/Os that it is worth; see [`Counter`](super::Counter).
    pub operations: u32,
    /// Bytes that it is worth against the volume's byte limit; not always the bytes moved.
    pub bytes: u64,
    /// Passes of the guard on requests that cost no byte.
    pub guard: u32,
    /// Nanoseconds of one device channel that it is worth; 0 where no device is modelled.
    pub device_cost_ns: u64,
    /// What covered it; `None` where the scheduler does not report it.
    pub tier: Option<Tier>,
    /// Whether it went by the urgent class.
    pub urgent: bool,
    /// Whether it is the last piece of its request.
    pub last: bool,
}

/// The device is done with a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// When.
    pub at: u64,
    /// Whose it is.
    pub volume: u32,
    /// The name of its request.
    pub handle: u64,
    /// Length of the piece in bytes.
    pub length: u32,
    /// What the piece was worth when it was dispatched.
    pub device_cost_ns: u64,
    /// Whether its request is answered by this.
    pub last: bool,
}

/// A size that the system says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sample {
    /// Requests and payload bytes that wait for a volume; `None` where it is not reported.
    Queued {
        /// The volume.
        volume: u32,
        /// Requests.
        requests: u64,
        /// Payload bytes not dispatched yet.
        bytes: Option<u64>,
    },
    /// Cost of everything on the device, in nanoseconds of a channel.
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
        /// I/Os, then bytes; `None` where there are no such credits.
        units: [Option<u64>; 2],
    },
    /// Credit balances of an instance in whole units, rounded down.
    InstanceBalances {
        /// The instance.
        instance: u32,
        /// I/Os, then bytes; `None` where there are no such credits.
        units: [Option<u64>; 2],
    },
    /// The size of any other structure.
    Structure {
        /// What it is called in a report.
        name: &'static str,
        /// How many entries it has.
        size: u64,
        /// The most it may have now.
        bound: u64,
    },
}

/// Who stood still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The server: its poller was late.
    Ours,
    /// The device below.
    Device,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A volume begins, with its credits as promised.
    Added {
        /// When.
        at: u64,
        /// Its number, not in use.
        volume: u32,
        /// What is promised for it.
        promise: Box<VolumePromise>,
    },
    /// Other limits are in force from now on.
    Modified {
        /// When.
        at: u64,
        /// Of which volume.
        volume: u32,
        /// What is promised from now on; its `balances` say nothing.
        promise: Box<VolumePromise>,
    },
    /// An operator replaced the balances that are given.
    Credited {
        /// When.
        at: u64,
        /// Of which volume.
        volume: u32,
        /// I/Os, then bytes.
        units: [Option<u64>; 2],
    },
    /// A volume ends. What waited was cancelled before.
    Removed {
        /// When.
        at: u64,
        /// Its number.
        volume: u32,
    },
    /// See [`Submitted`].
    Submitted(Submitted),
    /// A request was not taken, because the queue was full. It is not submitted either.
    Refused {
        /// When.
        at: u64,
        /// Whose it is.
        volume: u32,
        /// Payload bytes of it.
        length: u32,
    },
    /// See [`Dispatched`].
    Dispatched(Dispatched),
    /// See [`Completed`].
    Completed(Completed),
    /// A request is answered without having been dispatched to its end. Pieces of it that are on
    /// the device complete as usual, none of them `last`.
    Cancelled {
        /// When.
        at: u64,
        /// Whose it is.
        volume: u32,
        /// Its name.
        handle: u64,
    },
    /// The system stood still, and nobody else is to blame for what was not done meanwhile. It must
    /// be reported before anything else that happened after `from`: a second is judged by what is
    /// known when it is over.
    Stalled {
        /// Its first nanosecond.
        from: u64,
        /// The first one after it.
        to: u64,
        /// Who stood still.
        cause: Cause,
    },
    /// See [`Sample`].
    Sampled {
        /// When.
        at: u64,
        /// What was reported.
        sample: Sample,
    },
}

impl Event {
    /// When it happened.
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

    /// Whose it is; `None` when it is of no one volume.
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
    /// What it is worth to its volume: I/Os, bytes, passes of the guard.
    #[must_use]
    pub fn charge(&self) -> [u64; DIMENSIONS] {
        [u64::from(self.operations), self.bytes, u64::from(self.guard)]
    }
}
