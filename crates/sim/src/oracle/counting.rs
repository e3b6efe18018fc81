//! What a request is worth: the counting rule stated once more, by prefix sums.
//!
//! Written from the rule's words and sharing no code with the scheduler's own counting, so that a
//! charge that is wrong shows as a rate that is wrong.

use evenkeel_core::qos::pacing::CountingRule;

use super::event::Direction;

/// The counting of one volume: feed it every piece in the order of dispatch.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    rule: CountingRule,
    run: Option<Run>,
}

/// Neighbouring requests that share units: where they end, and how many bytes they are.
#[derive(Clone, Copy, Debug)]
struct Run {
    direction: Direction,
    end: u64,
    bytes: u64,
    /// Whether the piece that ended it lets another request join.
    open: bool,
}

/// A piece as the counting rule sees it.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which way its payload goes.
    pub direction: Direction,
    /// First byte.
    pub offset: u64,
    /// Bytes of this piece.
    pub length: u32,
    /// Bytes of the whole request.
    pub whole_length: u32,
    /// Whether it is the first piece of its request.
    pub first: bool,
    /// Whether it is the last.
    pub last: bool,
}

impl Counter {
    /// A volume that counts by `rule` and has seen nothing.
    #[must_use]
    pub const fn new(rule: CountingRule) -> Self {
        Self { rule, run: None }
    }

    /// Counts by another rule from now on; another one ends the run.
    pub fn set_rule(&mut self, rule: CountingRule) {
        if self.rule != rule {
            *self = Self::new(rule);
        }
    }

    /// A request that changes content without payload (discard, zeroes) ends a run and is one I/O;
    /// so is a flush, which is none.
    pub fn interrupt(&mut self) {
        self.run = None;
    }

    /// I/Os and bytes that a piece of a read or a write is worth.
    pub fn count(&mut self, piece: &Piece) -> (u32, u64) {
        let unit = u64::from(self.rule.unit_bytes.max(1));
        let mergeable = piece.whole_length >= self.rule.merge_bytes_min;
        let before = match self.run {
            Some(run)
                if run.direction == piece.direction
                    && run.end == piece.offset
                    && (!piece.first || (mergeable && run.open)) =>
            {
                run.bytes
            }
            _ => 0,
        };
        let after = before + u64::from(piece.length);
        let units = (after.div_ceil(unit) - before.div_ceil(unit)).max(u64::from(after == before));
        self.run = Some(Run {
            direction: piece.direction,
            end: piece.offset.saturating_add(u64::from(piece.length)),
            bytes: after,
            open: piece.length > 0 && (mergeable || !piece.last),
        });
        let bytes = if self.rule.charge_whole_units { units * unit } else { piece.length.into() };
        (u32::try_from(units).unwrap_or(u32::MAX), bytes)
    }
}
