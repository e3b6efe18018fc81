//! Where the bucket lives: what is on lease, to whom, and whose turn is next.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::message::{Grant, HolderIndex, Report, Request, Return, ToHome};
use super::{Cap, HOLDERS_MAX, LEASES_MAX};
use crate::qos::bucket::{Bucket, LEVEL_PER_TOKEN};
use crate::time::{Duration, Instant};

/// A lease as the home knows it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    id: u64,
    /// Which of its holder's lives has it: no later one knows what was spent of it.
    incarnation: u64,
    /// Tokens not known to be spent.
    unspent: u64,
    /// From here on the holder has certainly stopped spending it.
    closes_at: Instant,
}

/// What the home knows of a holder.
#[derive(Debug)]
struct Member {
    incarnation: u64,
    /// Whether this life is over, by what the caller said.
    over: bool,
    /// The latest message of this life.
    number: u64,
    /// When the latest message was sent that was not sent alone.
    heard_at: Instant,
    /// Asked for something since it last gave all back.
    active: bool,
    /// The largest share that it may believe to have.
    share_max: u64,
    /// The share sent in the latest word, and that word.
    share_sent: u64,
    share_sent_in: u64,
    /// Tokens wanted; in `round_robin` while not 0.
    want: u64,
    /// Tokens it may be granted by turns; negative after a grant of more.
    deficit: i128,
    leases: VecDeque<Lease>,
}

impl Member {
    fn new() -> Self {
        Self {
            incarnation: 0,
            over: false,
            number: 0,
            heard_at: Instant::ZERO,
            active: false,
            share_max: 0,
            share_sent: 0,
            share_sent_in: 0,
            want: 0,
            deficit: 0,
            leases: VecDeque::with_capacity(LEASES_MAX),
        }
    }
}

/// The one place where a [`Cap`] is kept.
///
/// Order of calls: [`Home::handle`] or [`Home::poll`], then [`Home::poll_output`] until it is
/// empty, then [`Home::poll_timeout`]. Polling more often or later changes no bound.
#[derive(Debug)]
pub struct Home {
    cap: Cap,
    /// Level of the cap, tokens on lease included: they are charged when they are known, or must
    /// be presumed, to be spent.
    bucket: Bucket,
    settled_at: Instant,
    /// Charged for shares of silent holders ahead of time, in token x 10^9.
    prepaid: u128,
    /// Tokens on lease.
    outstanding: u128,
    /// No lease closes before this.
    next_close: Instant,
    /// No holder with a share is silent before this.
    next_silence: Instant,
    members: Vec<Member>,
    /// Who wants tokens, each once.
    turns: VecDeque<usize>,
    leases_made: u64,
    words_said: u64,
    output: VecDeque<Grant>,
}

impl Home {
    /// A home of `cap` for holders 0 to `holders` - 1 (at most [`HOLDERS_MAX`]), its bucket full.
    #[must_use]
    pub fn new(cap: Cap, holders: usize, now: Instant) -> Self {
        let holders = holders.min(HOLDERS_MAX);
        Self {
            cap,
            bucket: Bucket::full(cap.rate_per_second, cap.depth),
            settled_at: now,
            prepaid: 0,
            outstanding: 0,
            next_close: Instant::from_ns(u64::MAX),
            next_silence: Instant::from_ns(u64::MAX),
            members: (0..holders).map(|_| Member::new()).collect(),
            turns: VecDeque::with_capacity(holders),
            leases_made: 0,
            words_said: 0,
            output: VecDeque::with_capacity(2 * holders),
        }
    }

    /// A home in place of one that was lost, its bucket empty. All holders must be replaced with
    /// it, by ones of a higher incarnation: what they knew of the old home ends with them.
    #[must_use]
    pub fn replacing(cap: Cap, holders: usize, now: Instant) -> Self {
        let bucket = Bucket::empty(cap.rate_per_second, cap.depth);
        Self { bucket, ..Self::new(cap, holders, now) }
    }

    /// Handles a message. What is stale, repeated or from nobody known is ignored.
    pub fn handle(&mut self, message: ToHome, now: Instant) {
        self.advance(now);
        let (holder, incarnation, number) = match message {
            ToHome::Request(Request { holder, incarnation, number, .. })
            | ToHome::Return(Return { holder, incarnation, number, .. }) => {
                (holder, incarnation, number)
            }
        };
        let index = usize::from(holder.0);
        let Some(member) = self.members.get_mut(index) else { return };
        if incarnation > member.incarnation {
            self.begin_life(index, incarnation);
        }
        let Some(member) = self.members.get_mut(index) else { return };
        if incarnation < member.incarnation || member.over || number <= member.number {
            return;
        }
        member.number = number;
        match message {
            ToHome::Request(request) => self.handle_request(index, &request),
            ToHome::Return(returned) => self.take_back(index, returned.report),
        }
        self.serve();
        // A holder that asks again gets the answer to wait, so that it does not take the home for
        // dead.
        let again = matches!(message, ToHome::Request(Request { again: true, .. }));
        if again && self.members.get(index).is_some_and(|member| member.want > 0) {
            self.answer(index, 0);
        }
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Instant) {
        self.advance(now);
        self.serve();
    }

    /// The next message to send.
    pub fn poll_output(&mut self) -> Option<Grant> {
        self.output.pop_front()
    }

    /// When to poll at the latest; `None` while nobody waits for time to pass.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.turns.is_empty() || self.cap.rate_per_second == 0 {
            return None;
        }
        let on_lease = self.lease_level();
        let missing = on_lease.saturating_sub(self.bucket.level()).max(0).unsigned_abs();
        if on_lease > self.cap.full_level() {
            // More is on lease than the bucket holds: only a lease's end or a report helps.
            return Some(self.next_close.max(self.settled_at + Duration::from_ns(1)));
        }
        let silent = self.silent_shares(self.settled_at);
        let net = u128::from(self.cap.rate_per_second.saturating_sub(silent));
        if net == 0 {
            return None;
        }
        let wait = u64::try_from(missing.div_ceil(net)).unwrap_or(u64::MAX);
        Some(self.settled_at + Duration::from_ns(wait.max(1)))
    }

    /// A holder is gone for good, or until it comes back with a higher incarnation: nothing is kept
    /// for it any longer. Its leases still run their time.
    pub fn forget(&mut self, holder: HolderIndex, now: Instant) {
        self.advance(now);
        let index = usize::from(holder.0);
        if let Some(member) = self.members.get_mut(index) {
            member.over = true;
            let incarnation = member.incarnation;
            self.begin_life(index, incarnation);
        }
        self.serve();
    }

    /// Tokens on lease, as far as the home knows.
    #[must_use]
    pub const fn outstanding(&self) -> u128 {
        self.outstanding
    }

    /// Holders that have asked since they last gave all back.
    #[must_use]
    pub fn active(&self) -> usize {
        self.members.iter().filter(|member| member.active).count()
    }

    fn begin_life(&mut self, index: usize, incarnation: u64) {
        if let Some(member) = self.members.get_mut(index) {
            member.over &= incarnation == member.incarnation;
            member.incarnation = incarnation;
            member.number = 0;
            member.active = false;
            member.share_max = 0;
            member.want = 0;
            member.deficit = 0;
        }
        self.turns.retain(|&turn| turn != index);
    }

    fn handle_request(&mut self, index: usize, request: &Request) {
        self.book(index, request.report, request.gives_back);
        let now = self.settled_at;
        let Some(member) = self.members.get_mut(index) else { return };
        if member.share_sent_in == request.report.acknowledged {
            member.share_max = member.share_sent;
        }
        member.active = true;
        if request.alone {
            // It spends its share: as long as it says so it stays silent in our books.
            member.want = 0;
            self.turns.retain(|&turn| turn != index);
            return self.answer(index, 0);
        }
        // A clock that is ahead of ours must not keep a silent holder from being noticed.
        member.heard_at = request.sent_at.min(now + self.cap.timing.clock_error);
        let waits = member.want > 0;
        let may = member.leases.len() < LEASES_MAX;
        member.want = if may { request.want.min(self.cap.grant_max()) } else { 0 };
        let wants = member.want > 0;
        if wants && !waits {
            self.turns.push_back(index);
        } else if waits && !wants {
            self.turns.retain(|&turn| turn != index);
        }
        if !wants {
            self.answer(index, 0);
        }
    }

    fn take_back(&mut self, index: usize, report: Report) {
        self.book(index, report, true);
        if let Some(member) = self.members.get_mut(index) {
            member.active = false;
            member.share_max = 0;
            member.want = 0;
        }
        self.turns.retain(|&turn| turn != index);
        self.answer(index, 0);
    }

    /// Charges what a report says was spent; if all is given back, frees the rest.
    fn book(&mut self, index: usize, report: Report, given_back: bool) {
        let Some(member) = self.members.get_mut(index) else { return };
        let (mut spent, mut freed) = (0, 0);
        let of_this_life = |lease: &&mut Lease| lease.incarnation == member.incarnation;
        for lease in member.leases.iter_mut().filter(of_this_life) {
            let left = match lease.id.cmp(&report.open) {
                core::cmp::Ordering::Less => 0,
                core::cmp::Ordering::Equal => report.left.min(lease.unspent),
                core::cmp::Ordering::Greater => lease.unspent,
            };
            spent += u128::from(lease.unspent - left);
            lease.unspent = left;
            if given_back {
                freed += u128::from(left);
                lease.unspent = 0;
            }
        }
        member.leases.retain(|lease| lease.unspent > 0);
        // What goes back unused was no turn; but turns are not saved up either.
        member.deficit = member.deficit.saturating_add_unsigned(freed).min(0);
        self.charge(spent);
        self.outstanding -= spent + freed;
    }

    fn charge(&mut self, tokens: u128) {
        let mut rest = tokens;
        while rest > 0 {
            let part = u64::try_from(rest).unwrap_or(u64::MAX);
            self.bucket.charge(part);
            rest -= u128::from(part);
        }
    }

    /// Brings the books to `now`: lease ends and inflow, in the order of time, so that it does not
    /// matter how often this is called.
    fn advance(&mut self, now: Instant) {
        let now = now.max(self.settled_at);
        while self.next_close <= now {
            let at = self.next_close.max(self.settled_at);
            self.settle(at);
            let mut ended = 0;
            let mut next = Instant::from_ns(u64::MAX);
            for member in &mut self.members {
                while let Some(lease) = member.leases.front()
                    && lease.closes_at <= at
                {
                    ended += u128::from(lease.unspent);
                    member.leases.pop_front();
                }
                next = member.leases.front().map_or(next, |lease| next.min(lease.closes_at));
            }
            self.next_close = next;
            // Unheard of: it must be presumed spent.
            self.charge(ended);
            self.outstanding -= ended;
        }
        self.settle(now);
    }

    /// Lets time flow in, but for the shares of the silent.
    fn settle(&mut self, now: Instant) {
        let elapsed = now.since(self.settled_at);
        if now > self.next_silence {
            let mut withheld: u128 = 0;
            let mut next = Instant::from_ns(u64::MAX);
            for member in self.members.iter().filter(|member| member.share_max > 0) {
                let silent_from = member.heard_at + self.cap.timing.silence;
                let silent = now.since(silent_from.max(self.settled_at));
                let share = u128::from(member.share_max) * u128::from(silent.ns);
                withheld = withheld.saturating_add(share);
                next = next.min(silent_from);
            }
            self.next_silence = next;
            let due = withheld.saturating_sub(self.prepaid);
            let tokens = due.div_ceil(u128::from(LEVEL_PER_TOKEN));
            let paid = tokens.saturating_mul(u128::from(LEVEL_PER_TOKEN));
            self.prepaid = self.prepaid.saturating_add(paid).saturating_sub(withheld);
            // First, so that what may be saved is the rest: the rate is never below the shares.
            self.charge(tokens);
        }
        self.bucket.settle(elapsed);
        self.settled_at = now;
    }

    /// The shares of those who are silent at `now`.
    fn silent_shares(&self, now: Instant) -> u64 {
        let silent = |member: &&Member| member.heard_at + self.cap.timing.silence <= now;
        let shares = self.members.iter().filter(silent).map(|member| member.share_max);
        shares.fold(0, u64::saturating_add)
    }

    /// The tokens on lease as a level.
    fn lease_level(&self) -> i128 {
        let level = self.outstanding.saturating_mul(u128::from(LEVEL_PER_TOKEN));
        i128::try_from(level).unwrap_or(i128::MAX)
    }

    /// Grants while the level, without what is on lease, is not negative.
    fn serve(&mut self) {
        let output_max = 2 * self.members.len();
        while self.cap.rate_per_second > 0
            && self.output.len() < output_max
            && self.bucket.level() >= self.lease_level()
            && let Some(index) = self.next_turn()
        {
            let Some(member) = self.members.get_mut(index) else { return };
            let amount = core::mem::take(&mut member.want);
            member.deficit = (member.deficit - i128::from(amount)).min(0);
            self.answer(index, amount);
        }
    }

    /// Whose turn it is: each holder that waits gets the same number of tokens a round, and one
    /// that was granted more than it had sits out rounds until that is made up for.
    fn next_turn(&mut self) -> Option<usize> {
        let quantum = i128::from(self.cap.float(self.active()).max(1));
        let deficit = |&index: &usize| self.members.get(index).map_or(0, |m| m.deficit);
        let best = self.turns.iter().map(deficit).max()?;
        // Rounds in which nobody's turn comes are made at once.
        let rounds = (-best / quantum).max(0);
        for &index in &self.turns {
            if let Some(member) = self.members.get_mut(index) {
                member.deficit += rounds * quantum;
            }
        }
        for _ in 0..2 * self.turns.len() {
            let index = self.turns.pop_front()?;
            let Some(member) = self.members.get_mut(index) else { continue };
            member.deficit += quantum;
            if member.deficit > 0 {
                return Some(index);
            }
            self.turns.push_back(index);
        }
        None
    }

    /// Sends `amount` tokens, or with 0 an acknowledgement.
    fn answer(&mut self, index: usize, amount: u64) {
        if self.output.len() >= 2 * self.members.len() && amount == 0 {
            return; // nobody reads; it will ask again
        }
        let active = self.active().max(1);
        let others = self.members.iter().enumerate().filter(|&(other, _)| other != index);
        let others = others.map(|(_, other)| other.share_max).fold(0, u64::saturating_add);
        let rate = self.cap.rate_per_second;
        let fair = rate / u64::try_from(active).unwrap_or(u64::MAX);
        let share = fair.min(rate.saturating_sub(others));
        let timing = self.cap.timing;
        let expiry = self.settled_at + timing.lease;
        let (Some(member), Ok(holder)) = (self.members.get_mut(index), u16::try_from(index)) else {
            return;
        };
        self.words_said += 1;
        let share = if member.active { share } else { 0 };
        member.share_max = member.share_max.max(share);
        (member.share_sent, member.share_sent_in) = (share, self.words_said);
        self.next_silence = self.next_silence.min(member.heard_at + timing.silence);
        if amount > 0 {
            let closes_at = expiry + timing.clock_error;
            self.leases_made += 1;
            let id = self.leases_made;
            let incarnation = member.incarnation;
            member.leases.push_back(Lease { id, incarnation, unspent: amount, closes_at });
            self.outstanding += u128::from(amount);
            self.next_close = self.next_close.min(closes_at);
        }
        self.output.push_back(Grant {
            holder: HolderIndex(holder),
            incarnation: member.incarnation,
            word: self.words_said,
            lease: self.leases_made,
            answers: member.number,
            amount,
            expiry,
            share_per_second: share,
            active: u16::try_from(active).unwrap_or(u16::MAX),
        });
    }
}
