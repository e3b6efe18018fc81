//! What a scheduler was asked and what it answered, call by call, so that it can be asked again.
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

/// One call of a scheduler, or one of its answers.
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
    /// What was due was asked for.
    Poll,
    /// The device was done with a dispatch.
    Complete(Ticket),
    /// The answer to one of these.
    Dispatch(Dispatch),
    /// A call that is not played back; its name.
    Other(&'static str),
}

/// A call and when it was made.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// As the scheduler was called.
    pub at: Instant,
    /// What.
    pub call: Call,
}

/// Which calls a trace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Detail {
    /// All of them: the trace can be played back.
    #[default]
    Calls,
    /// Requests, dispatches and changes of volumes, which are what a promise is judged by. Polls
    /// and completions, which are most of a trace, are left out.
    Requests,
}

/// What a scheduler was asked, as far as there is room.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Trace {
    detail: Detail,
    entries: Vec<Entry>,
    room: usize,
    left_out: u64,
}

/// How a replay ended that did not give what was recorded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Difference {
    /// Another dispatch, or none, where this one was recorded.
    Dispatch {
        /// How many were the same before.
        after: u64,
        /// What was recorded.
        recorded: Dispatch,
        /// What came.
        replayed: Option<Dispatch>,
    },
    /// A dispatch where none was recorded.
    Surplus {
        /// How many were the same before.
        after: u64,
        /// What came.
        replayed: Dispatch,
    },
    /// A call was refused that had been carried out.
    Refused {
        /// Which entry.
        entry: usize,
    },
    /// A call that is not played back: the trace has to end before it.
    Other {
        /// Its name.
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
    /// An empty trace with room for `entries` entries; later ones are counted and left out.
    #[must_use]
    pub fn with_room(entries: usize, detail: Detail) -> Self {
        Self { detail, entries: Vec::with_capacity(entries), room: entries, left_out: 0 }
    }

    /// Notes a call, unless the trace leaves out calls of this kind.
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

    /// The calls in their order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Calls that there was no room for.
    #[must_use]
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Makes the same calls of a new scheduler and compares every dispatch with what was recorded,
    /// its order included. How many there were.
    ///
    /// # Errors
    /// The first difference.
    pub fn replay(&self) -> Result<u64, Difference> {
        let start = self.entries.first().map_or(Instant::ZERO, |entry| entry.at);
        let mut scheduler = Scheduler::new(start);
        let mut same = 0;
        for (number, entry) in self.entries.iter().enumerate() {
            let at = entry.at;
            // Answers are taken before the next question.
            let is_question = matches!(entry.call, Call::Submit(..) | Call::Poll);
            if is_question && let Some(replayed) = scheduler.poll_output() {
                return Err(Difference::Surplus { after: same, replayed });
            }
            let is_done = match &entry.call {
                Call::Add(name, with) => {
                    let (pacing, balances) = **with;
                    scheduler.add(at, &pacing, balances) == Ok(*name)
                }
                Call::Name(..) => true,
                Call::SetLimits(name, pacing) => {
                    scheduler.set_limits(at, *name, pacing);
                    true
                }
                Call::SetBalances(name, balances) => {
                    scheduler.set_balances(at, *name, **balances);
                    true
                }
                Call::Submit(volume, io) => scheduler.submit(at, *volume, *io).is_ok(),
                Call::Poll => {
                    scheduler.poll(at);
                    true
                }
                Call::Complete(ticket) => {
                    scheduler.complete(at, *ticket);
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
