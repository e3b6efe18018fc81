//! Who spends: tokens on lease, when to ask for more, and what to do when nobody answers.

use alloc::collections::VecDeque;

use super::message::{Grant, HolderIndex, Report, Request, Return, ToHome};
use super::{Cap, LEASES_MAX, RETRY_MAX};
use crate::qos::bucket::{Bucket, Depth};
use crate::time::{Duration, Instant};

/// Messages that wait to be read at most; nothing is sent beyond.
const OUTPUT_MAX: usize = 4;

/// A lease as its holder knows it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    id: u64,
    left: u64,
    expiry: Instant,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Has nothing, wants nothing.
    Idle,
    /// Has given all back and wants to know that the home knows; asks again after this pause.
    Leaving(Duration),
    /// Spends, asks, reports.
    Active,
    /// Nobody answered: says nothing since then.
    Silent(Instant),
    /// Lives on its share; tries to reach the home again after this pause.
    Alone { bucket: Bucket, settled_at: Instant, pause: Duration },
}

/// One of those who spend from a [`Cap`].
///
/// [`Holder::take`] says whether a request may go. Where it may not, it is to be asked again after
/// the next [`Holder::handle`] or [`Holder::poll`]. After each call: [`Holder::poll_output`] until
/// it is empty, then [`Holder::poll_timeout`].
#[derive(Debug)]
pub struct Holder {
    cap: Cap,
    index: HolderIndex,
    incarnation: u64,
    now: Instant,
    state: State,
    /// Oldest first, and so soonest to end first: ids and ends rise together.
    leases: VecDeque<Lease>,
    /// The latest word of the home.
    acknowledged: u64,
    /// The latest lease that arrived.
    latest: u64,
    /// The number of the latest message.
    number: u64,
    /// When it was sent.
    sent_at: Instant,
    /// Grants that answer this or earlier messages are refused: all was given back since.
    left_at: u64,
    /// Whether tokens are asked for and none have come.
    asked: bool,
    /// The earliest message since the last answer.
    unanswered_since: Option<Instant>,
    /// The cost of the request that waits.
    waiting: Option<u64>,
    /// The cost of the last request: what the next one is expected to be.
    last_cost: u64,
    used_at: Instant,
    share_per_second: u64,
    /// Holders to share with; 0 before the first grant.
    active: usize,
    output: VecDeque<ToHome>,
}

impl Holder {
    /// Holder number `index` of a home with the same cap. A holder in place of one that
    /// was lost needs a higher `incarnation`, and must be sure that the old one is no more.
    #[must_use]
    pub fn new(cap: Cap, index: HolderIndex, incarnation: u64, now: Instant) -> Self {
        Self {
            cap,
            index,
            incarnation,
            now,
            state: State::Idle,
            leases: VecDeque::with_capacity(LEASES_MAX),
            acknowledged: 0,
            latest: 0,
            number: 0,
            sent_at: now,
            left_at: 0,
            asked: false,
            unanswered_since: None,
            waiting: None,
            last_cost: 0,
            used_at: now,
            share_per_second: 0,
            active: 0,
            output: VecDeque::with_capacity(OUTPUT_MAX),
        }
    }

    /// Spends `cost` tokens if they are there. If not, asks for them: the request waits, and is to
    /// be tried again until it goes or [`Holder::abandon`] is called.
    pub fn take(&mut self, cost: u64, now: Instant) -> bool {
        self.advance(now);
        self.used_at = self.now;
        self.last_cost = cost;
        let may = self.spend(cost);
        self.waiting = if may { None } else { Some(cost) };
        if matches!(self.state, State::Idle | State::Leaving(_)) && !may {
            self.state = State::Active;
            self.left_at = self.number;
        }
        self.ask_in_time();
        may
    }

    /// The request that waits is gone: nothing is wanted.
    pub fn abandon(&mut self, now: Instant) {
        self.waiting = None;
        self.poll(now);
    }

    /// Takes a grant. What is stale, repeated or another's is ignored.
    pub fn handle(&mut self, grant: &Grant, now: Instant) {
        self.advance(now);
        let mine = grant.holder == self.index && grant.incarnation == self.incarnation;
        if mine {
            match self.state {
                State::Idle => {}
                State::Leaving(_) if grant.answers >= self.left_at => self.state = State::Idle,
                State::Leaving(_) => {}
                _ if grant.answers > self.left_at => self.accept(grant),
                _ => {}
            }
        }
        self.poll(now);
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Instant) {
        self.advance(now);
        self.ask_in_time();
        if self.poll_timeout().is_some_and(|due| due <= self.now) {
            self.act();
        }
    }

    /// The next message to send.
    pub fn poll_output(&mut self) -> Option<ToHome> {
        self.output.pop_front()
    }

    /// When to poll at the latest; `None` while idle.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timing = self.cap.timing;
        match self.state {
            State::Idle => None,
            State::Leaving(pause) => Some(self.sent_at + pause),
            State::Active => {
                let next = self.sent_at + self.pause();
                match (self.unanswered_since, self.waiting) {
                    (Some(since), _) => Some(next.min(since + timing.silence)),
                    (None, Some(_)) => Some(next),
                    (None, None) => Some(next.min(self.used_at + timing.idle)),
                }
            }
            State::Silent(since) => Some(since + timing.silence + timing.clock_error),
            State::Alone { bucket, settled_at, pause } => {
                let probe = self.sent_at + pause;
                let ready = self.waiting.and_then(|_| bucket.eligible_at(settled_at));
                Some(ready.map_or(probe, |ready| probe.min(ready)))
            }
        }
    }

    /// Tokens that may be spent now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.leases.iter().map(|lease| lease.left).fold(0, u64::saturating_add)
    }

    /// Whether it has lost its home and lives on its share.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        matches!(self.state, State::Alone { .. })
    }

    /// How long to wait for an answer, or until the home should get a message.
    const fn pause(&self) -> Duration {
        let timing = self.cap.timing;
        if self.unanswered_since.is_none() { timing.contact } else { timing.retry }
    }

    /// Lets time pass: leases end. A clock that steps back does nothing.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while self.leases.front().is_some_and(|lease| lease.expiry <= self.now) {
            self.leases.pop_front();
        }
        if let State::Alone { bucket, settled_at, .. } = &mut self.state {
            bucket.settle(self.now.since(*settled_at));
            *settled_at = self.now;
        }
    }

    fn spend(&mut self, cost: u64) -> bool {
        if self.held() < cost {
            let State::Alone { bucket, .. } = &mut self.state else { return false };
            let ready = bucket.is_ready();
            if ready {
                bucket.charge(cost);
            }
            return ready;
        }
        let mut rest = cost;
        for lease in &mut self.leases {
            let part = rest.min(lease.left);
            lease.left -= part;
            rest -= part;
        }
        self.leases.retain(|lease| lease.left > 0);
        true
    }

    fn accept(&mut self, grant: &Grant) {
        if grant.word > self.acknowledged {
            self.acknowledged = grant.word;
            self.share_per_second = grant.share_per_second;
            self.active = usize::from(grant.active);
        }
        self.unanswered_since = None;
        if !matches!(self.state, State::Active) {
            // The home is back. What was asked before is long forgotten there.
            self.state = State::Active;
            self.asked = false;
        }
        if grant.amount == 0 {
            return;
        }
        if grant.lease <= self.latest {
            return; // a copy, or overtaken by a later one and reported as spent
        }
        self.latest = grant.lease;
        self.asked = false;
        if self.leases.len() < LEASES_MAX {
            let (id, left, expiry) = (grant.lease, grant.amount, grant.expiry);
            self.leases.push_back(Lease { id, left, expiry });
        }
    }

    /// What may be leased before there is a request for it, unless the bucket is too shallow: what
    /// lies unused at all holders is not to fill more than half of it.
    fn float(&self) -> u64 {
        if self.active == 0 {
            return 0;
        }
        self.cap.float(self.active).min(self.cap.advance_max(self.active))
    }

    /// The float, and at least what the next request will cost if it is like the last.
    fn advance_tokens(&self) -> u64 {
        let fits = self.active > 0 && self.last_cost <= self.cap.advance_max(self.active);
        if fits { self.float().max(self.last_cost) } else { self.float() }
    }

    /// Asks for more once half is used, or if a request waits.
    fn ask_in_time(&mut self) {
        if !matches!(self.state, State::Active) || self.asked {
            return;
        }
        let held = self.held();
        let used = self.used_at + self.cap.timing.idle > self.now;
        let advance = self.advance_tokens();
        let low = advance > 0 && held <= advance / 2 && used;
        // A request that waits and is covered goes as soon as the caller tries it.
        let waits = self.waiting.is_some_and(|cost| cost > held);
        if waits || (low && self.waiting.is_none()) {
            self.asked = true;
            self.send_request(false);
        }
    }

    /// The time of [`Holder::poll_timeout`] has come.
    fn act(&mut self) {
        let timing = self.cap.timing;
        match self.state {
            State::Idle => {}
            State::Leaving(pause) => {
                self.send_return();
                let pause = Duration::from_ns(pause.ns.saturating_mul(2));
                self.state = State::Leaving(pause.min(RETRY_MAX));
            }
            State::Active => {
                let unanswered =
                    self.unanswered_since.is_some_and(|since| since + timing.silence <= self.now);
                let idle = self.waiting.is_none() && self.used_at + timing.idle <= self.now;
                if unanswered {
                    self.state = State::Silent(self.sent_at);
                } else if idle && self.unanswered_since.is_none() {
                    self.leave();
                } else if self.sent_at + self.pause() <= self.now {
                    self.send_request(true);
                }
            }
            State::Silent(_) => {
                // By now the home has noticed, and keeps the share out of what it grants. Nothing
                // is saved: what others do not know of must not come in a burst.
                let bucket = Bucket::empty(self.share_per_second, Depth::tokens(0));
                let (settled_at, pause) = (self.now, timing.silence);
                self.state = State::Alone { bucket, settled_at, pause };
                self.send_request(true);
            }
            State::Alone { bucket, pause: ref mut pause_now, .. } => {
                if bucket.is_ready() {
                    // The caller learns it once; it tries again now, or wants nothing any longer.
                    self.waiting = None;
                }
                if self.sent_at + *pause_now <= self.now {
                    let longer = Duration::from_ns(pause_now.ns.saturating_mul(2));
                    *pause_now = longer.min(RETRY_MAX);
                    self.send_request(true);
                }
            }
        }
    }

    /// Gives all back, the share too.
    fn leave(&mut self) {
        self.send_return();
        self.left_at = self.number;
        self.leases.clear();
        self.share_per_second = 0;
        self.asked = false;
        self.unanswered_since = None;
        self.state = State::Leaving(self.cap.timing.retry);
    }

    fn report(&self) -> Report {
        let none = (self.latest, 0);
        let (open, left) = self.leases.front().map_or(none, |lease| (lease.id, lease.left));
        Report { acknowledged: self.acknowledged, open, left }
    }

    fn send_request(&mut self, again: bool) {
        let target = match self.waiting {
            Some(head) => head.saturating_add(self.float()),
            None => self.advance_tokens(),
        };
        let alone = self.is_alone();
        // Not again: a home that is slow to answer would see its answers refused for ever.
        let gives_back = !again && !alone && self.waiting.is_some() && self.held() > 0;
        let kept = if gives_back { 0 } else { self.held() };
        let want = if self.asked { target.saturating_sub(kept).max(1) } else { 0 };
        let report = self.report();
        self.send(|number, from| {
            let (holder, incarnation, sent_at) = from;
            let want = if alone { 0 } else { want };
            ToHome::Request(Request {
                holder,
                incarnation,
                number,
                sent_at,
                want,
                again,
                alone,
                gives_back,
                report,
            })
        });
        if gives_back {
            self.leases.clear();
            self.left_at = self.number - 1;
        }
        if !alone && self.unanswered_since.is_none() {
            self.unanswered_since = Some(self.now);
        }
    }

    fn send_return(&mut self) {
        let report = self.report();
        self.send(|number, (holder, incarnation, _)| {
            ToHome::Return(Return { holder, incarnation, number, report })
        });
    }

    fn send(&mut self, message: impl FnOnce(u64, (HolderIndex, u64, Instant)) -> ToHome) {
        // Even if nobody reads: it counts as lost on the way.
        self.number += 1;
        self.sent_at = self.now;
        if self.output.len() < OUTPUT_MAX {
            let from = (self.index, self.incarnation, self.now);
            self.output.push_back(message(self.number, from));
        }
    }
}
