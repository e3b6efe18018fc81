//! The counted I/Os and bytes of a request: the counting rule, restated with prefix sums.
//!
//! Written from the rule's words, without code of the scheduler's own counting, so that a wrong
//! charge shows as a wrong rate.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::CountingRule;

use super::event::Direction;

/// The counting of one volume. It must get every piece in the order of dispatch.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    rule: CountingRule,
    run: Option<Run>,
}

/// Adjacent requests that share units: their end and their bytes.
#[derive(Clone, Copy, Debug)]
struct Run {
    direction: Direction,
    end: u64,
    bytes: u64,
    /// Whether another request may join after the piece that ended it.
    open: bool,
}

/// The properties of a piece that the counting rule needs.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Direction of its payload.
    pub direction: Direction,
    /// Offset of its first byte.
    pub offset: u64,
    /// Length of this piece in bytes.
    pub length: u32,
    /// Length of the whole request in bytes.
    pub whole_length: u32,
    /// Whether it is the first piece of its request.
    pub first: bool,
    /// Whether it is the last piece.
    pub last: bool,
}

impl Counter {
    /// Creates the counter of a volume that counts by `rule` and has no requests yet.
    #[must_use]
    pub const fn new(rule: CountingRule) -> Self {
        Self { rule, run: None }
    }

    /// Sets the rule. A different rule ends the run.
    pub fn set_rule(&mut self, rule: CountingRule) {
        if self.rule != rule {
            *self = Self::new(rule);
        }
    }

    /// Ends the run: for requests that change content without payload (discard, zeroes), which are
    /// one I/O, and for flushes, which are none.
    pub fn interrupt(&mut self) {
        self.run = None;
    }

    /// Returns the I/Os and the bytes of a piece of a read or a write.
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
        (saturating(units), bytes)
    }
}
