//! The order in which a process fences another one and opens a volume.
//!
//! An OSD refuses a fenced process once it has the map with the blocklist entry, and it catches up
//! with the map of its caller before it executes a request. So a process that waits for the newest
//! map after the entry was made comes after everything that a fenced process has done.
//!
//! The store executes these steps with librados, and a simulation executes them with a model of
//! Ceph. Each step is executed after the previous one succeeds. If a step fails, the remaining
//! ones are not executed, and the sequence is retried later. `A` is the address of a process at
//! Ceph.

use alloc::vec::Vec;

/// A step of fencing a node, or of registering a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FenceStep<A> {
    /// The monitors put this process on the blocklist for [`BLOCKLIST_EXPIRE_S`] seconds.
    ///
    /// [`BLOCKLIST_EXPIRE_S`]: super::BLOCKLIST_EXPIRE_S
    Blocklist(A),
    /// The pool's books record that this process is fenced, and drop its registration, in one
    /// operation.
    Note(A),
    /// This process gets the newest map of the OSDs.
    WaitForLatestMap,
    /// The pool's books record this process: from now on it may lock images.
    Register(A),
}

/// The steps that fence the processes of a node. `registered` are those that the pool's books have
/// of it; `own` is the process that executes the steps.
#[must_use]
pub fn fence<A: Clone + PartialEq>(registered: &[A], own: &A) -> Vec<FenceStep<A>> {
    let others = registered.iter().filter(|address| *address != own);
    let mut steps: Vec<FenceStep<A>> = others
        .flat_map(|address| {
            [FenceStep::Blocklist(address.clone()), FenceStep::Note(address.clone())]
        })
        .collect();
    // Also without an entry to make: another process may have made the entries.
    steps.push(FenceStep::WaitForLatestMap);
    steps
}

/// The steps with which a process begins. It fences the earlier processes of its node first: what
/// they have sent may still be on its way.
#[must_use]
pub fn register<A: Clone + PartialEq>(registered: &[A], own: &A) -> Vec<FenceStep<A>> {
    let mut steps = fence(registered, own);
    steps.push(FenceStep::Register(own.clone()));
    steps
}

/// Locks that are broken before an opening gives up.
const BREAKS_MAX: u32 = 3;

/// A step of opening an image for one process alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenStep {
    /// This process gets the newest map of the OSDs.
    WaitForLatestMap,
    /// The image is opened, without its lock.
    Open,
    /// Which process has the image's lock?
    FindOwner,
    /// Do the pool's books have the lock's owner as fenced?
    FindFenced,
    /// The owner's lock is broken.
    BreakLock,
    /// The image is locked.
    Lock,
    /// The image is open and locked.
    Done,
    /// Another process has the image, and is not fenced.
    Refuse,
}

/// The result of a step of an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenAnswer {
    /// The step is done.
    Done,
    /// No process has the lock ([`OpenStep::FindOwner`]).
    Unlocked,
    /// A process has the lock ([`OpenStep::FindOwner`], [`OpenStep::Lock`]).
    Locked,
    /// The owner is fenced ([`OpenStep::FindFenced`]).
    Fenced,
    /// The owner is not known to be fenced ([`OpenStep::FindFenced`]).
    NotFenced,
}

/// An image that is being opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    step: OpenStep,
    /// Whether the present wait for the map precedes breaking a lock.
    breaks: bool,
    left: u32,
}

impl Default for Opening {
    fn default() -> Self {
        // The map comes first also where the image has no lock: its former owner may be fenced by
        // an entry that this process has not seen, and an OSD that has not seen it executes the
        // owner's late writes after ours.
        Self { step: OpenStep::WaitForLatestMap, breaks: false, left: BREAKS_MAX }
    }
}

impl Opening {
    /// The step to execute now.
    #[must_use]
    pub const fn step(&self) -> OpenStep {
        self.step
    }

    /// Takes the result of the present step in.
    pub fn answered(&mut self, answer: OpenAnswer) {
        self.step = match (self.step, answer) {
            (OpenStep::WaitForLatestMap, _) if self.breaks => OpenStep::BreakLock,
            (OpenStep::WaitForLatestMap, _) => OpenStep::Open,
            // The owner is looked for first: librbd takes the lock of a process that was silent for
            // half a minute, also of one that was only stopped and is not fenced.
            (OpenStep::Open, _) => OpenStep::FindOwner,
            (OpenStep::FindOwner, OpenAnswer::Unlocked) => OpenStep::Lock,
            (OpenStep::FindOwner, _) => OpenStep::FindFenced,
            (OpenStep::FindFenced, OpenAnswer::Fenced) => {
                // The entry may be newer than the map that was waited for.
                self.breaks = true;
                OpenStep::WaitForLatestMap
            }
            (OpenStep::BreakLock, _) => OpenStep::Lock,
            (OpenStep::Lock, OpenAnswer::Done) => OpenStep::Done,
            (OpenStep::Lock, _) if self.left > 0 => {
                self.left -= 1;
                OpenStep::FindOwner
            }
            (OpenStep::FindFenced | OpenStep::Lock | OpenStep::Refuse, _) => OpenStep::Refuse,
            (OpenStep::Done, _) => OpenStep::Done,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_fenced_entry_by_entry_before_the_newest_map_is_waited_for() {
        use FenceStep::{Blocklist, Note, Register, WaitForLatestMap};
        let steps = [Blocklist(1), Note(1), Blocklist(3), Note(3), WaitForLatestMap];
        assert_eq!(fence(&[1, 2, 3], &2), steps);
        assert_eq!(fence(&[], &2), [WaitForLatestMap]);
        assert_eq!(register(&[1], &2), [Blocklist(1), Note(1), WaitForLatestMap, Register(2)]);
    }

    /// The steps of an opening with these answers, up to its end.
    fn steps(answers: &[OpenAnswer]) -> Vec<OpenStep> {
        let mut opening = Opening::default();
        let mut steps = Vec::from([opening.step()]);
        for answer in answers {
            opening.answered(*answer);
            steps.push(opening.step());
        }
        steps
    }

    #[test]
    fn an_unlocked_image_is_locked_after_the_newest_map() {
        use OpenAnswer::{Done, Unlocked};
        let expected = [
            OpenStep::WaitForLatestMap,
            OpenStep::Open,
            OpenStep::FindOwner,
            OpenStep::Lock,
            OpenStep::Done,
        ];
        assert_eq!(steps(&[Done, Done, Unlocked, Done]), expected);
    }

    #[test]
    fn only_the_lock_of_a_fenced_process_is_broken_and_after_the_newest_map() {
        use OpenAnswer::{Done, Fenced, Locked, NotFenced};
        let refused = steps(&[Done, Done, Locked, NotFenced]);
        assert_eq!(refused.last(), Some(&OpenStep::Refuse));
        let broken = steps(&[Done, Done, Locked, Fenced, Done, Done, Done]);
        let expected =
            [OpenStep::WaitForLatestMap, OpenStep::BreakLock, OpenStep::Lock, OpenStep::Done];
        assert_eq!(broken[4..], expected);
    }

    #[test]
    fn a_lock_that_is_taken_each_time_ends_the_opening() {
        use OpenAnswer::{Done, Locked, Unlocked};
        let mut opening = Opening::default();
        opening.answered(Done);
        opening.answered(Done);
        for _ in 0..BREAKS_MAX {
            opening.answered(Unlocked);
            opening.answered(Locked);
            assert_eq!(opening.step(), OpenStep::FindOwner);
        }
        opening.answered(Unlocked);
        opening.answered(Locked);
        assert_eq!(opening.step(), OpenStep::Refuse);
    }
}
