//! A record of a scheduler's calls and dispatches, for playback.
//!
//! A scheduler is a function of its calls: a caller that makes the same calls at the same times
//! gets the same dispatches, in the same order, at the same nanosecond. A trace of a live server is
//! therefore played back exactly, and in the simulator as exactly as the times of its requests
//! allow.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use super::pacing::{Balances, Pacing};
use super::scheduler::{Dispatch, Io, Scheduler, Ticket, VolumeIndex};
use crate::ids::VolumeId;
use crate::time::Instant;

/// One call of a scheduler, or one of its dispatches.
#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    /// A volume was added under this name. Boxed, because it is rare and large.
    Add(VolumeIndex, Box<(Pacing, Balances)>),
    /// The volume of this name has this id. Not a call of the scheduler: a replay skips it.
    Name(VolumeIndex, VolumeId),
    /// The limits of a volume were replaced.
    SetLimits(VolumeIndex, Box<Pacing>),
    /// The credit balances of a volume were replaced.
    SetBalances(VolumeIndex, Box<Balances>),
    /// A request was taken.
    Submit(VolumeIndex, Io),
    /// The scheduler was polled.
    Poll,
    /// The device has completed a dispatch.
    Complete(Ticket),
    /// The scheduler has returned this dispatch.
    Dispatch(Dispatch),
    /// A call that is not played back, by its name.
    Other(&'static str),
}

/// A call, and its time.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// The `now` of the call.
    pub at: Instant,
    /// The call.
    pub call: Call,
}

/// Selection of the calls that a trace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Detail {
    /// All calls: the trace can be played back.
    #[default]
    Calls,
    /// Requests, dispatches and changes of volumes, by which a promise is judged. Polls and
    /// completions, which are most of a trace, are left out.
    Requests,
}

/// The recorded calls, as far as there is room.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    detail: Detail,
    entries: Vec<Entry>,
    room: usize,
    left_out: u64,
}

/// The first difference between a replay and its record.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Difference {
    /// Another dispatch, or none, in place of a recorded one.
    Dispatch {
        /// Number of equal dispatches before.
        after: u64,
        /// The recorded dispatch.
        recorded: Dispatch,
        /// The dispatch of the replay.
        replayed: Option<Dispatch>,
    },
    /// A dispatch in addition to the recorded ones.
    Surplus {
        /// Number of equal dispatches before.
        after: u64,
        /// The dispatch of the replay.
        replayed: Dispatch,
    },
    /// A call was refused that was carried out when it was recorded.
    Refused {
        /// Index of the entry.
        entry: usize,
    },
    /// The trace has a call that is not played back. It has to end before it.
    Other {
        /// The call's name.
        name: &'static str,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dispatch { after, recorded, replayed: Some(replayed) } => {
                write!(f, "dispatch {after} was {recorded:?} and is {replayed:?}")
            }
            Self::Dispatch { after, recorded, replayed: None } => {
                write!(f, "dispatch {after} was {recorded:?} and does not come")
            }
            Self::Surplus { after, replayed } => {
                write!(f, "after {after} dispatches comes one that was not: {replayed:?}")
            }
            Self::Refused { entry } => write!(f, "entry {entry} is refused and was carried out"),
            Self::Other { name } => write!(f, "{name} is not played back: record without it"),
        }
    }
}

impl core::error::Error for Difference {}

impl Trace {
    /// Creates an empty trace with room for `entries` entries; later ones are only counted.
    #[must_use]
    pub fn with_room(entries: usize, detail: Detail) -> Self {
        Self { detail, entries: Vec::with_capacity(entries), room: entries, left_out: 0 }
    }

    /// Records a call, unless the trace leaves out calls of this kind.
    pub fn push(&mut self, at: Instant, call: Call) {
        let is_of_requests = !matches!(call, Call::Poll | Call::Complete(_));
        if self.detail == Detail::Requests && !is_of_requests {
            return;
        }
        if self.entries.len() < self.room {
            self.entries.push(Entry { at, call });
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the calls in their order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the number of calls without room.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Makes the same calls of a new scheduler, and compares each dispatch with the recorded one,
    /// in order. Returns the number of dispatches.
    ///
    /// # Errors
    /// The first difference.
    pub fn replay(&self) -> Result<u64, Difference> {
        let start = self.entries.first().map_or(Instant::ZERO, |entry| entry.at);
        let mut scheduler = Scheduler::new(start);
        let mut same = 0;
        for (number, entry) in self.entries.iter().enumerate() {
            let time = entry.at;
            // All dispatches are taken before the next call.
            let is_question = matches!(entry.call, Call::Submit(..) | Call::Poll);
            if is_question && let Some(replayed) = scheduler.poll_output() {
                return Err(Difference::Surplus { after: same, replayed });
            }
            let is_done = match &entry.call {
                Call::Add(name, with) => {
                    let (pacing, balances) = **with;
                    scheduler.add(time, &pacing, balances) == Ok(*name)
                }
                Call::Name(..) => true,
                Call::SetLimits(name, pacing) => {
                    scheduler.set_limits(time, *name, pacing);
                    true
                }
                Call::SetBalances(name, balances) => {
                    scheduler.set_balances(time, *name, **balances);
                    true
                }
                Call::Submit(volume, io) => scheduler.submit(time, *volume, *io).is_ok(),
                Call::Poll => {
                    scheduler.poll(time);
                    true
                }
                Call::Complete(ticket) => {
                    scheduler.complete(time, *ticket);
                    true
                }
                Call::Dispatch(recorded) => {
                    let replayed = scheduler.poll_output();
                    if replayed != Some(*recorded) {
                        let recorded = *recorded;
                        return Err(Difference::Dispatch { after: same, recorded, replayed });
                    }
                    same += 1;
                    true
                }
                Call::Other(name) => return Err(Difference::Other { name }),
            };
            if !is_done {
                return Err(Difference::Refused { entry: number });
            }
        }
        Ok(same)
    }
}
