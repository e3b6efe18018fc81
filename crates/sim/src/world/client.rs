//! Clients: the next request of each, and the time at which it is sent.

use super::record::Recorder;
use crate::scenario::setup::{ClientSetup, Load, Shape, Think};
use evenkeel_core::convert::{exact, index, saturating};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;

/// Maximum number of requests in flight of a client that does not wait for answers. Further ones
/// are dropped and counted.
pub const BACKLOG_MAX: u64 = 65_536;

/// The client itself, where a thread is named. Threads are numbered from 0.
pub const NO_THREAD: u16 = u16::MAX;

/// One client while it runs.
#[derive(Debug)]
pub struct Client {
    /// Its setup.
    pub setup: ClientSetup,
    random: Random,
    /// Number of blocks in the range.
    blocks: u64,
    /// The next offset of each thread's sequential run.
    cursors: Vec<u64>,
    /// Requests that were sent and are not answered.
    pub under_way: u64,
    /// Requests that were dropped, because too many were in flight.
    pub dropped: u64,
    /// Arrivals so far, of an even open load and of a trace.
    arrivals: u64,
    /// The present batch.
    batch: Batch,
    /// Batches that ended.
    pub batches: Vec<BatchRecord>,
    /// Its own record; `None` if it equals its volume's.
    pub recorder: Option<Recorder>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    started_at: u64,
    left: u64,
}

/// A batch of requests that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchRecord {
    /// Its start, after the start of the run.
    pub started_ns: u64,
    /// Its duration.
    pub took_ns: u64,
}

/// A request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The operation.
    pub operation: Operation,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
}

/// The next action of a client that was woken or got an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextSend {
    /// Sends this number of requests, of threads 0, 1, ... in turn.
    Send(u32),
    /// Sends a request of this thread.
    SendAs(u16),
    /// Sends this request.
    SendThis(Wanted),
    /// Waits until this time, for this thread or [`NO_THREAD`].
    Wait(u64, u16),
    /// Does nothing.
    Rest,
}

impl Client {
    /// Creates a client before its start.
    #[must_use]
    pub fn new(setup: &ClientSetup, random: Random, recorder: Option<Recorder>) -> Self {
        let threads = match setup.load {
            Load::Closed { threads, .. } => threads.max(1),
            _ => 1,
        };
        let block = u64::from(setup.shape.block_bytes.max(1));
        let share = setup.shape.span_bytes / u64::from(threads) / block * block;
        Self {
            setup: setup.clone(),
            random,
            blocks: (setup.shape.span_bytes / block).max(1),
            cursors: (0..threads).map(|thread| share * u64::from(thread)).collect(),
            under_way: 0,
            dropped: 0,
            arrivals: 0,
            batch: Batch::default(),
            batches: Vec::new(),
            recorder,
        }
    }

    /// Returns the thread of the `nth` request in flight.
    #[must_use]
    pub fn thread(&self, nth: u32) -> u16 {
        let threads: u32 = exact(self.cursors.len().max(1), "threads have numbers of 16 bits");
        exact(nth % threads, "threads have numbers of 16 bits")
    }

    /// Returns the action at its start.
    pub fn start(&mut self, now: u64) -> NextSend {
        match &self.setup.load {
            Load::Closed { threads, depth, .. } => {
                NextSend::Send(u32::from(*threads) * u32::from(*depth))
            }
            Load::Open { .. } => self.next_arrival(now),
            Load::Job { every_ns, poisson: true, .. } => {
                let every_ns = *every_ns;
                NextSend::Wait(now.saturating_add(self.random.exponential(every_ns)), NO_THREAD)
            }
            Load::Job { .. } => self.begin_batch(now),
            Load::Trace(_) => self.next_recorded(now),
        }
    }

    /// Returns the action at the end of a wait. It is called until it returns [`NextSend::Wait`] or
    /// [`NextSend::Rest`]. Open loads send a request first and then wait for the next arrival.
    pub fn wake(&mut self, now: u64, thread: u16) -> NextSend {
        if now >= self.setup.stop_ns {
            return NextSend::Rest;
        }
        match &self.setup.load {
            Load::Closed { .. } => NextSend::SendAs(thread),
            Load::Open { .. } => NextSend::SendAs(0),
            Load::Job { .. } if thread == NO_THREAD => self.begin_batch(now),
            Load::Job { .. } => NextSend::SendAs(thread),
            Load::Trace(arrivals) => match arrivals.get(index(self.arrivals)) {
                Some(arrival) => {
                    self.arrivals += 1;
                    let operation = self.operation(arrival.is_read);
                    let offset = arrival.offset;
                    let length = arrival.length;
                    NextSend::SendThis(Wanted { operation, offset, length })
                }
                None => NextSend::Rest,
            },
        }
    }

    /// Returns the wait of an open load for its next request, after it has sent one.
    pub fn after_arrival(&mut self, now: u64) -> NextSend {
        match &self.setup.load {
            Load::Open { .. } => self.next_arrival(now),
            Load::Trace(_) => self.next_recorded(now),
            Load::Closed { .. } | Load::Job { .. } => NextSend::Rest,
        }
    }

    /// Returns the action after the answer to a request of `thread`.
    #[inline(always)]
    pub fn answered(&mut self, now: u64, thread: u16) -> NextSend {
        self.under_way -= 1;
        if now >= self.setup.stop_ns {
            return NextSend::Rest;
        }
        match &self.setup.load {
            Load::Closed { think, .. } => {
                let think = *think;
                self.go_on(now, thread, think)
            }
            Load::Job { every_ns, poisson, think, .. } => {
                if self.batch.left > 0 {
                    self.batch.left -= 1;
                    let think = *think;
                    return self.go_on(now, thread, think);
                }
                if self.under_way > 0 {
                    return NextSend::Rest;
                }
                let distance_ns =
                    if *poisson { self.random.exponential(*every_ns) } else { *every_ns };
                let started_ns = self.batch.started_at;
                self.batches.push(BatchRecord { started_ns, took_ns: now - started_ns });
                NextSend::Wait(now.max(started_ns.saturating_add(distance_ns)), NO_THREAD)
            }
            Load::Open { .. } | Load::Trace(_) => NextSend::Rest,
        }
    }

    /// Returns the action of a thread that has another request to send.
    #[inline(always)]
    fn go_on(&mut self, now: u64, thread: u16, think: Think) -> NextSend {
        match think {
            Think::No => NextSend::SendAs(thread),
            Think::Constant(ns) => NextSend::Wait(now.saturating_add(ns), thread),
            Think::Exponential(mean_ns) => {
                let ns = self.random.exponential(mean_ns);
                NextSend::Wait(now.saturating_add(ns), thread)
            }
        }
    }

    /// Creates the next request of a thread.
    #[inline(always)]
    pub fn next_request(&mut self, thread: u16) -> Wanted {
        let Shape { read_percent, block_bytes, sequential, span_bytes, .. } = self.setup.shape;
        let block = u64::from(block_bytes.max(1));
        let offset = if sequential {
            let cursor = &mut self.cursors[usize::from(thread)];
            let offset = *cursor;
            *cursor = if offset + 2 * block > span_bytes { 0 } else { offset + block };
            offset
        } else {
            self.random.below(self.blocks) * block
        };
        let is_read = match read_percent {
            100 => true,
            0 => false,
            percent => self.random.below(100) < u64::from(percent),
        };
        Wanted { operation: self.operation(is_read), offset, length: block_bytes }
    }

    /// Returns the arrivals of an even load in the present second.
    pub fn arrivals_of_second(&self) -> u64 {
        match self.setup.load {
            Load::Open { per_second, .. } => self.arrivals % per_second.max(1),
            _ => 0,
        }
    }

    fn operation(&self, is_read: bool) -> Operation {
        if is_read { Operation::Read } else { Operation::Write { fua: self.setup.shape.fua } }
    }

    fn next_arrival(&mut self, now: u64) -> NextSend {
        let Load::Open { per_second, poisson } = self.setup.load else { return NextSend::Rest };
        let per_second = per_second.max(1);
        if poisson {
            let distance = self.random.exponential(1_000_000_000 / per_second);
            return NextSend::Wait(now.saturating_add(distance), NO_THREAD);
        }
        // Counted from the start, so that rounding errors do not add up.
        self.arrivals += 1;
        let after = u128::from(self.arrivals) * 1_000_000_000 / u128::from(per_second);
        NextSend::Wait(self.setup.start_ns.saturating_add(saturating(after)), NO_THREAD)
    }

    fn next_recorded(&self, _now: u64) -> NextSend {
        let Load::Trace(arrivals) = &self.setup.load else { return NextSend::Rest };
        match arrivals.get(index(self.arrivals)) {
            Some(next) => NextSend::Wait(self.setup.start_ns.saturating_add(next.at_ns), NO_THREAD),
            None => NextSend::Rest,
        }
    }

    fn begin_batch(&mut self, now: u64) -> NextSend {
        let Load::Job { ios, depth, .. } = self.setup.load else { return NextSend::Rest };
        let at_once = u64::from(depth.max(1)).min(ios);
        self.batch = Batch { started_at: now, left: ios - at_once };
        NextSend::Send(exact(at_once, "at most the depth"))
    }
}
