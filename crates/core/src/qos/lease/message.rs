//! The messages between a home and its holders. All of it may come late, twice, in any order or
//! never.

use crate::time::Instant;

/// A holder's place at its home.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HolderIndex(pub u16);

/// What became of a holder's leases: a total, so the latest says it all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The latest word of the home that arrived; 0 before the first.
    pub acknowledged: u64,
    /// The oldest lease with tokens left: nothing is left of those before. The latest, if nothing
    /// is left of that either.
    pub open: u64,
    /// Tokens left of `open`. Later ones are untouched.
    pub left: u64,
}

/// A holder wants tokens, or only shows that it is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Who asks.
    pub holder: HolderIndex,
    /// Which life of it: higher after every restart.
    pub incarnation: u64,
    /// Counts the messages of this life.
    pub number: u64,
    /// When, by the holder's clock.
    pub sent_at: Instant,
    /// Tokens wanted: one request's and the float. 0 wants none.
    pub want: u64,
    /// Whether an answer is due even if it is "wait": the first ask goes without.
    pub again: bool,
    /// Whether it lives on its share: it wants to know whether the home is back, no more.
    pub alone: bool,
    /// Whether it gives back what is left of its leases: too little for the request that waits, it
    /// is asked for anew with the rest, so that it does not lie unused meanwhile.
    pub gives_back: bool,
    /// What became of its leases.
    pub report: Report,
}

/// A holder is idle: it gives back all that is left of its leases, and its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Return {
    /// Who gives back.
    pub holder: HolderIndex,
    /// Which life of it.
    pub incarnation: u64,
    /// Counts the messages of this life.
    pub number: u64,
    /// What it gives back: all that it still holds.
    pub report: Report,
}

/// What a home receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToHome {
    /// See [`Request`].
    Request(Request),
    /// See [`Return`].
    Return(Return),
}

/// A lease, or with an amount of 0 only an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// To whom.
    pub holder: HolderIndex,
    /// To which life of it.
    pub incarnation: u64,
    /// Counts what the home says, from 1: the share in the latest word holds.
    pub word: u64,
    /// The lease's name, counted from 1. Not counted with the words, for news that overtakes a
    /// lease must not make it stale.
    pub lease: u64,
    /// The number of the message that it answers.
    pub answers: u64,
    /// Tokens.
    pub amount: u64,
    /// When the lease ends, by the home's clock: at this instant nothing of it may be spent.
    pub expiry: Instant,
    /// Tokens per second the holder may spend if it loses contact.
    pub share_per_second: u64,
    /// How many holders there are to share with, itself included.
    pub active: u16,
}
