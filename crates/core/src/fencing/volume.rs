//! One volume at one node, under one instance: takeover, serving, moves. One step waits for its
//! answer at a time.

use super::step::{Alarm, Answer, Cas, Fault, LockOwner, Order, Step, Ticket};
use super::{
    ATTEMPTS_QUIET_MAX, BLOCKLIST_EXPIRE_S, Generation, Instance, Ownership, RETRY_FIRST,
    RETRY_LONGEST, Record, Revision, State,
};
use crate::ids::VolumeId;
use crate::time::Duration;
use alloc::vec::Vec;

/// Where orders are put.
pub(super) struct Desk<'a> {
    /// The node's present instance.
    pub me: Instance,
    /// Whose orders these are.
    pub volume: Option<VolumeId>,
    /// The last ticket given out.
    pub tickets: &'a mut u64,
    /// The orders.
    pub out: &'a mut Vec<Order>,
}

impl Desk<'_> {
    /// Gives an order, which is begun after `delay`.
    pub fn order(&mut self, step: Step, delay: Duration) -> Ticket {
        *self.tickets += 1;
        let ticket = Ticket(*self.tickets);
        self.out.push(Order { ticket, volume: self.volume, delay, step });
        ticket
    }

    fn tell(&mut self, step: Step) {
        self.order(step, Duration::ZERO);
    }
}

/// The wait before a step is tried once more, after so many attempts.
pub(super) fn delay_after(attempts: u32) -> Duration {
    match attempts {
        0 => Duration::ZERO,
        _ => {
            let ns = RETRY_FIRST.ns.saturating_mul(1 << (attempts - 1).min(16));
            Duration::from_ns(ns.min(RETRY_LONGEST.ns))
        }
    }
}

/// What is under way. Every stage but `Idle`, `Serving` and `Stopped` waits for an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// Not ours.
    Idle,
    Claiming {
        expected: Option<Revision>,
        next: Ownership,
    },
    /// Of the instances in `before` so many are fenced.
    Noting {
        fenced: usize,
    },
    Fencing {
        fenced: usize,
    },
    Learning,
    Opening,
    Asking,
    Breaking {
        owner: Instance,
    },
    Acquiring,
    Declaring,
    Serving,
    /// Serves, but asks first whether the lock is still its own.
    Checking,
    Draining,
    Balancing,
    Releasing,
    HandingOver,
    Abandoning,
    /// No longer ours; what was submitted is on its way yet.
    Closing,
    /// Until the volume is given to us again.
    Stopped,
}

/// A volume.
pub(super) struct Volume {
    stage: Stage,
    /// The record that makes it ours, as it was last seen.
    held: Option<Record>,
    /// The highest revision that was seen: a watch may tell old news.
    newest: Option<Revision>,
    /// A record that makes it ours anew, seen while the former tenure was being closed.
    missed: Option<Record>,
    /// The answer that is waited for.
    awaiting: Option<Ticket>,
    /// Whether that is the record, because nobody knows what became of the last write.
    is_reading: bool,
    /// Failed attempts at the present step.
    attempts: u32,
}

impl Volume {
    pub const fn new() -> Self {
        Self {
            stage: Stage::Idle,
            held: None,
            newest: None,
            missed: None,
            awaiting: None,
            is_reading: false,
            attempts: 0,
        }
    }

    /// The instance is dead: whatever was under way goes with it.
    pub fn forget(&mut self) {
        *self = Self { newest: self.newest, ..Self::new() };
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// The generation in which clients are served.
    pub fn serves(&self) -> Option<Generation> {
        match self.stage {
            Stage::Serving | Stage::Checking if !self.is_reading => {
                Some(self.held.as_ref()?.ownership.generation)
            }
            _ => None,
        }
    }

    /// The generation in which it is ours, whether clients are served yet or not.
    pub fn holds(&self) -> Option<Generation> {
        Some(self.held.as_ref()?.ownership.generation)
    }

    /// The volume is given to us, or its owner is suspected: `record` is what was read.
    pub fn take(&mut self, record: Option<&Record>, desk: &mut Desk<'_>) {
        if self.stage == Stage::Stopped {
            return self.enter(Stage::Asking, desk);
        }
        let revision = record.map(|record| record.revision);
        if self.stage != Stage::Idle || revision < self.newest {
            return;
        }
        self.newest = revision;
        let next = match record {
            None => Ok(Ownership::first(desk.me)),
            Some(record) => record.ownership.taken_by(desk.me),
        };
        match next {
            Ok(next) => self.enter(Stage::Claiming { expected: revision, next }, desk),
            Err(_) => desk.tell(Step::Alarm(Alarm::TooManyTakers)),
        }
    }

    /// The record has changed.
    pub fn seen(&mut self, record: &Record, desk: &mut Desk<'_>) {
        if self.newest.is_some_and(|newest| record.revision <= newest) {
            return;
        }
        self.newest = Some(record.revision);
        let ownership = &record.ownership;
        let Some(held) = &mut self.held else {
            return self.seen_by_others(record, desk);
        };
        if !ownership.is_tenure_of(&held.ownership) {
            self.miss(record, desk);
            // Who hands the volume over learns from the answer that it is gone.
            if self.stage != Stage::HandingOver {
                self.lose(desk);
            }
            return;
        }
        *held = record.clone();
        match (&self.stage, ownership.state) {
            (Stage::Serving, State::Moving { .. }) => self.enter(Stage::Draining, desk),
            (Stage::Draining | Stage::Balancing, State::Serving) => {
                // The door may have been closed meanwhile.
                let generation = ownership.generation;
                self.rest(Stage::Serving);
                desk.tell(Step::Serve { generation });
            }
            _ => {}
        }
    }

    /// A record of a volume that is not ours, so far.
    fn seen_by_others(&mut self, record: &Record, desk: &mut Desk<'_>) {
        let ownership = &record.ownership;
        if self.stage != Stage::Idle {
            return self.miss(record, desk);
        }
        match ownership.state {
            State::Taking if ownership.owner == desk.me => self.adopt(record.clone(), desk),
            State::Moving { to } if to == desk.me => desk.tell(Step::Warm),
            _ => {}
        }
    }

    /// Keeps a record that makes the volume ours until the former tenure is closed.
    fn miss(&mut self, record: &Record, desk: &Desk<'_>) {
        let is_ours = record.ownership.owner == desk.me;
        self.missed = is_ours.then(|| record.clone());
    }

    /// The process has slept.
    pub fn woke(&mut self, desk: &mut Desk<'_>) {
        match self.stage {
            Stage::Serving => self.enter(Stage::Checking, desk),
            // What was read and not submitted is not passed on any more: see `CloseRelays`.
            Stage::Draining | Stage::Balancing | Stage::Releasing | Stage::HandingOver => {
                desk.tell(Step::CloseClients);
            }
            _ => {}
        }
    }

    /// Ceph is out of reach: another node may reach it.
    pub fn abandon(&mut self, desk: &mut Desk<'_>) {
        if matches!(self.stage, Stage::Serving | Stage::Checking | Stage::Draining) {
            desk.tell(Step::CloseClients);
            self.enter(Stage::Abandoning, desk);
        }
    }

    pub fn answered(&mut self, ticket: Ticket, answer: Answer, desk: &mut Desk<'_>) {
        if self.awaiting != Some(ticket) {
            return;
        }
        self.awaiting = None;
        if core::mem::take(&mut self.is_reading) {
            return match answer {
                Answer::Record(record) => self.decide(record, desk),
                _ => self.read(desk),
            };
        }
        match (self.stage.clone(), answer) {
            (Stage::Claiming { .. } | Stage::Declaring, Answer::Cas(cas))
            | (Stage::HandingOver | Stage::Abandoning, Answer::Cas(cas)) => self.written(cas, desk),
            (Stage::Noting { fenced }, Answer::Done) => self.enter(Stage::Fencing { fenced }, desk),
            (Stage::Fencing { fenced }, Answer::Done) => self.fence(fenced + 1, desk),
            (Stage::Learning, Answer::Done) => self.enter(Stage::Opening, desk),
            (Stage::Opening | Stage::Breaking { .. }, Answer::Done) => {
                self.enter(Stage::Asking, desk);
            }
            // It may be gone by now, or somebody else's.
            (Stage::Breaking { .. }, Answer::Failed(_))
            | (Stage::Acquiring, Answer::Failed(Fault::NotOwner)) => {
                self.stage = Stage::Asking;
                self.again(desk);
            }
            (Stage::Asking, Answer::Owner(owner)) => self.owned_by(owner, desk),
            (Stage::Acquiring, Answer::Done) => self.enter(Stage::Declaring, desk),
            (Stage::Checking, Answer::IsOwner(true)) => self.resume(desk),
            (Stage::Checking, Answer::IsOwner(false) | Answer::Failed(Fault::NotOwner)) => {
                desk.tell(Step::CloseClients);
                self.read(desk);
            }
            (Stage::Draining, Answer::Done) => self.enter(Stage::Balancing, desk),
            (Stage::Balancing, Answer::Done) => self.enter(Stage::Releasing, desk),
            (Stage::Releasing, Answer::Done) => self.released(desk),
            (Stage::Closing, Answer::Done) => self.closed(desk),
            _ => self.again(desk),
        }
    }

    /// The lock is released; the move may have been called off meanwhile.
    fn released(&mut self, desk: &mut Desk<'_>) {
        let moves = |held: &Record| matches!(held.ownership.state, State::Moving { .. });
        match self.held.as_ref().is_some_and(moves) {
            true => self.enter(Stage::HandingOver, desk),
            false => self.enter(Stage::Asking, desk),
        }
    }

    fn closed(&mut self, desk: &mut Desk<'_>) {
        self.rest(Stage::Idle);
        if let Some(record) = self.missed.take() {
            self.seen_by_others(&record, desk);
        }
    }

    /// The write of the record has an outcome.
    fn written(&mut self, cas: Cas, desk: &mut Desk<'_>) {
        match (cas, self.wanted()) {
            (Cas::Won(revision), Some((_, ownership))) => {
                let written = Record { ownership, revision };
                // The watch may have been faster, and tell what came after it.
                let newer = self.held.clone().filter(|held| {
                    held.revision > revision && held.ownership.is_tenure_of(&written.ownership)
                });
                self.decide(Some(newer.unwrap_or(written)), desk);
            }
            (Cas::Lost(record), _) => self.decide(record, desk),
            _ => self.read(desk),
        }
    }

    /// Goes on by what the record says, after a write of it or instead of one.
    fn decide(&mut self, record: Option<Record>, desk: &mut Desk<'_>) {
        if let Some(record) = &record {
            self.newest = self.newest.max(Some(record.revision));
        }
        let ours = match (&self.stage, &self.held) {
            (Stage::Claiming { next, .. }, _) => Some(next),
            (_, held) => held.as_ref().map(|held| &held.ownership),
        };
        let is_ours = |record: &Record| {
            ours.is_some_and(|ours| {
                record.ownership.is_tenure_of(ours) && record.ownership.state != State::Abandoned
            })
        };
        match (record, &self.stage) {
            (_, Stage::Abandoning) => self.close(desk),
            (Some(record), Stage::HandingOver) if !is_ours(&record) => {
                let Ownership { owner: to, generation, .. } = record.ownership;
                desk.tell(Step::Relay { to, generation });
                self.miss(&record, desk);
                self.close(desk);
            }
            (Some(record), _) if !is_ours(&record) => {
                self.miss(&record, desk);
                self.lose(desk);
            }
            (None, _) => self.lose(desk),
            (Some(record), Stage::Declaring) => self.declared(record, desk),
            (Some(record), Stage::HandingOver)
                if matches!(record.ownership.state, State::Moving { .. }) =>
            {
                self.held = Some(record);
                self.again(desk);
            }
            // Claimed; or the lock was lost, or released for a move that was called off.
            (Some(record), _) => self.adopt(record, desk),
        }
    }

    fn declared(&mut self, record: Record, desk: &mut Desk<'_>) {
        let Ownership { state, generation, .. } = record.ownership;
        self.held = Some(record);
        if state == State::Taking {
            return self.again(desk);
        }
        desk.tell(Step::Serve { generation });
        self.resume(desk);
    }

    /// Serves, unless the record says by now that the volume moves on.
    fn resume(&mut self, desk: &mut Desk<'_>) {
        let state = self.held.as_ref().map(|held| held.ownership.state);
        if self.stage == Stage::Checking {
            desk.tell(Step::Resume);
        }
        match state {
            Some(State::Moving { .. }) => self.enter(Stage::Draining, desk),
            _ => self.rest(Stage::Serving),
        }
    }

    /// The record names us: from here on it is ours to fence, lock and serve.
    fn adopt(&mut self, record: Record, desk: &mut Desk<'_>) {
        self.held = Some(record);
        self.fence(0, desk);
    }

    /// The next one to fence, or what comes after all of them.
    fn fence(&mut self, fenced: usize, desk: &mut Desk<'_>) {
        let next = match self.before().get(fenced) {
            Some(_) => Stage::Noting { fenced },
            None => Stage::Learning,
        };
        self.enter(next, desk);
    }

    fn owned_by(&mut self, owner: LockOwner, desk: &mut Desk<'_>) {
        match owner {
            LockOwner::Nobody => self.enter(Stage::Acquiring, desk),
            LockOwner::Known(owner) if owner == desk.me => self.enter(Stage::Acquiring, desk),
            LockOwner::Known(owner) if self.before().contains(&owner) => {
                self.enter(Stage::Breaking { owner }, desk);
            }
            by => {
                desk.tell(Step::Alarm(Alarm::LockHeld { by }));
                self.rest(Stage::Stopped);
            }
        }
    }

    fn before(&self) -> &[Instance] {
        self.held.as_ref().map_or(&[], |held| &held.ownership.before)
    }

    /// The volume is somebody else's. Clients find their way to its home by connecting anew.
    fn lose(&mut self, desk: &mut Desk<'_>) {
        desk.tell(Step::CloseClients);
        self.close(desk);
    }

    fn close(&mut self, desk: &mut Desk<'_>) {
        self.held = None;
        self.enter(Stage::Closing, desk);
    }

    fn read(&mut self, desk: &mut Desk<'_>) {
        self.attempts = self.attempts.saturating_add(1);
        self.is_reading = true;
        let delay = delay_after(self.attempts - 1);
        self.awaiting = Some(desk.order(Step::ReadRecord, delay));
    }

    fn rest(&mut self, stage: Stage) {
        self.stage = stage;
        self.awaiting = None;
        self.is_reading = false;
        self.attempts = 0;
    }

    fn enter(&mut self, stage: Stage, desk: &mut Desk<'_>) {
        self.rest(stage);
        self.issue(desk);
    }

    /// The present step once more, later each time.
    fn again(&mut self, desk: &mut Desk<'_>) {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts == ATTEMPTS_QUIET_MAX {
            desk.tell(Step::Alarm(Alarm::Slow { attempts: self.attempts }));
        }
        self.issue(desk);
    }

    fn issue(&mut self, desk: &mut Desk<'_>) {
        match self.step() {
            Some(step) => self.awaiting = Some(desk.order(step, delay_after(self.attempts))),
            // The record does not fit the stage any more: what it says by now decides.
            None => self.read(desk),
        }
    }

    /// What the present stage wants to be in the record, and which revision that replaces.
    fn wanted(&self) -> Option<(Option<Revision>, Ownership)> {
        if let Stage::Claiming { expected, next } = &self.stage {
            return Some((*expected, next.clone()));
        }
        let Record { ownership, revision } = self.held.as_ref()?;
        let next = match (&self.stage, ownership.state) {
            (Stage::Declaring, _) => ownership.serving(),
            (Stage::HandingOver, State::Moving { to }) => ownership.handed_to(to),
            (Stage::Abandoning, _) => ownership.abandoned(),
            _ => return None,
        };
        Some((Some(*revision), next))
    }

    fn step(&self) -> Option<Step> {
        let fenced = |at: usize| self.before().get(at).copied();
        Some(match &self.stage {
            Stage::Idle | Stage::Serving | Stage::Stopped => return None,
            Stage::Claiming { .. } | Stage::Declaring | Stage::HandingOver | Stage::Abandoning => {
                let (expected, next) = self.wanted()?;
                Step::Claim { expected, next }
            }
            Stage::Noting { fenced: at } => Step::NoteFence { instance: fenced(*at)? },
            Stage::Fencing { fenced: at } => {
                Step::Blocklist { instance: fenced(*at)?, expire_s: BLOCKLIST_EXPIRE_S }
            }
            Stage::Learning => Step::WaitForLatestOsdMap,
            Stage::Opening => Step::Open,
            Stage::Asking => Step::GetLockOwners,
            Stage::Breaking { owner } => Step::BreakLock { owner: *owner },
            Stage::Acquiring => Step::AcquireLock,
            Stage::Checking => Step::HoldAndCheckLock,
            Stage::Draining => Step::Drain,
            Stage::Balancing => Step::SendBalances,
            Stage::Releasing => Step::ReleaseLock,
            Stage::Closing => Step::CloseImage,
        })
    }
}
