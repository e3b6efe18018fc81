//! A model of several nodes on one Ceph cluster: do the rules of fencing keep what clients were
//! told?
//!
//! The nodes run the rules of [`evenkeel_core::fencing`], which no server executes: there, a leader
//! decides (`docs/internals/fencing.md` says what is proven of which). Around them are models: a
//! monitor whose map names the fenced, OSDs that learn of a map late, wires in which operations
//! wait, processes that pause and die, etcd's records, clients that send again what was not
//! answered. A history is a row of random steps, decided by its seed, and a quiet end, in which
//! every request must be answered. `docs/internals/fencing.md` describes all of it.
//!
//! [`Rules`] takes one rule at a time away from the world; the histories that break then show that
//! the model would notice.

mod books;
mod calm;
mod ceph;
mod client;
mod shell;
mod steps;
mod world;

use evenkeel_core::random::Random;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;
use world::World;

/// Which rules the world keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// A taker enters the former owner in the blocklist.
    pub has_entry: bool,
    /// The entry outlives every pause; else it lasts five seconds.
    pub outlives_pauses: bool,
    /// A taker waits for the map with the entry.
    pub waits_for_map: bool,
    /// A fenced node leaves its entry alone.
    pub stays_fenced: bool,
    /// A node asks for its lock before it lets a connection in.
    pub checks_at_door: bool,
}

impl Rules {
    /// All of them.
    pub const ALL: Self = Self {
        has_entry: true,
        outlives_pauses: true,
        waits_for_map: true,
        stays_fenced: true,
        checks_at_door: true,
    };

    /// All but the look at the lock at the door. Few histories need it: a client has to go to a new
    /// owner, back to one that does not know that it is fenced, and to the new one again.
    ///
    /// For tests.
    pub const OPEN_DOOR: Self = Self { checks_at_door: false, ..Self::ALL };

    /// All but one, and what is broken.
    #[must_use]
    pub const fn mutations() -> [(&'static str, Self); 4] {
        [
            ("no blocklist entry", Self { has_entry: false, ..Self::ALL }),
            ("an entry that expires", Self { outlives_pauses: false, ..Self::ALL }),
            ("no wait for the map", Self { waits_for_map: false, ..Self::ALL }),
            ("a node that un-fences itself", Self { stays_fenced: false, ..Self::ALL }),
        ]
    }
}

/// What must never be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Broken {
    /// An operation was executed on an object that a younger generation had touched.
    LateOperation,
    /// A write was executed on an object that held a later one.
    Overwritten,
    /// A read returned less than what had been acknowledged before it was asked for, or more than
    /// was ever written.
    WrongRead,
    /// Two nodes served a volume at once, and neither was on the blocklist.
    TwoServing,
    /// A takeover stopped because of a lock that nobody holds by mistake.
    FalseAlarm,
    /// A request was not answered although a node lives.
    Unanswered,
}

impl Broken {
    /// Whether a client's data is wrong, or would be with other values.
    #[must_use]
    pub const fn is_of_data(self) -> bool {
        matches!(self, Self::LateOperation | Self::Overwritten | Self::WrongRead)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LateOperation => "an operation came after a younger generation's",
            Self::Overwritten => "a write was overwritten by an older one",
            Self::WrongRead => "a read did not return the last acknowledged write or a later one",
            Self::TwoServing => "two nodes served one volume",
            Self::FalseAlarm => "a takeover stopped without a reason",
            Self::Unanswered => "a request was not answered",
        })
    }
}

/// What a history had in it: so that a test can see that the model reaches what it is about.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Requests answered.
    pub answered: u64,
    /// Operations that an OSD refused to a fenced instance.
    pub refused: u64,
    /// Records won from another owner.
    pub takeovers: u64,
    /// Locks broken.
    pub breaks: u64,
    /// Volumes handed over in a move.
    pub moves: u64,
    /// Times that a fenced node began anew.
    pub rejoins: u64,
    /// Processes that died while a volume of theirs was being taken.
    pub takers_died: u64,
    /// Processes that woke with operations not sent yet.
    pub woke_with_operations: u64,
}

impl Counts {
    fn all(&mut self) -> [&mut u64; 8] {
        [
            &mut self.answered,
            &mut self.refused,
            &mut self.takeovers,
            &mut self.breaks,
            &mut self.moves,
            &mut self.rejoins,
            &mut self.takers_died,
            &mut self.woke_with_operations,
        ]
    }

    /// The rarest of them.
    #[must_use]
    pub fn least(mut self) -> u64 {
        self.all().into_iter().fold(u64::MAX, |least, count| least.min(*count))
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, mut other: Self) {
        for (sum, count) in self.all().into_iter().zip(other.all()) {
            *sum += *count;
        }
    }
}

/// How a history went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct History {
    /// What was broken. It ends with the first loss of data.
    pub broken: BTreeSet<Broken>,
    /// What was in it.
    pub counts: Counts,
    /// Step by step, if that was asked for.
    pub told: Vec<String>,
}

/// Random steps of a history, before its quiet end.
const STEPS: u64 = 3_000;

/// Runs the history of a seed.
#[must_use]
pub fn run(seed: u64, rules: Rules) -> History {
    history(seed, rules, false)
}

/// Runs the history of a seed and tells it step by step.
///
/// For tests.
#[must_use]
pub fn run_told(seed: u64, rules: Rules) -> History {
    history(seed, rules, true)
}

fn history(seed: u64, rules: Rules, is_told: bool) -> History {
    let mut world = World::new(Random::new(seed, 27), rules, is_told);
    let steps = world.random.below(STEPS) + STEPS / 2;
    for _ in 0..steps {
        world.step();
        if world.is_over() {
            return world.end();
        }
    }
    world.calm_down();
    world.end()
}
