//! The capacity that may be sold, as the data plane reports it, and its log lines.
//!
//! Every change of what customers can buy is logged once; a decrease is logged as a warning.

use std::ops::Deref;

use evenkeel_wire::agent::Capacity;
use tracing::{info, warn};

use crate::model::{Line, Model, Settings, Source};

/// A change of at most one part in this many of the logged figure is not logged again.
const NOTABLE_PART: u64 = 20;

/// The last capacity reported, and the last one logged.
#[derive(Debug, Default)]
pub struct KnownCapacity {
    now: Capacity,
    logged: Option<Logged>,
}

/// The last logged lines of a capacity.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Logged {
    /// The calibration's id; `None` if nothing was measured.
    calibration: Option<String>,
    lines: Vec<Line>,
}

impl KnownCapacity {
    /// Returns the capacity that the data plane reported last.
    #[must_use]
    pub fn now(&self) -> &Capacity {
        &self.now
    }

    /// Processes a reported capacity. Calls `model` only if it differs from the last one. A server
    /// for tests sells without limits, so it does not warn about that.
    pub fn learn<M: Deref<Target = Model>>(
        &mut self,
        capacity: Capacity,
        settings: &Settings,
        is_test: bool,
        model: impl FnOnce() -> M,
    ) {
        if self.logged.is_some() && capacity == self.now {
            return;
        }
        let calibration = match &capacity {
            Capacity::Unknown => None,
            Capacity::Measured(measured) => Some(measured.calibration.clone()),
        };
        let lines = model().books(settings, &capacity).lines();
        self.now = capacity;
        let logged = Logged { calibration, lines };
        if self.logged.as_ref().is_none_or(|before| logged.differs_from(before)) {
            if logged.lines.is_empty() && !is_test {
                warn!(
                    "what may be sold is unknown, so no volume is refused for want of capacity; \
                     run `evenkeel calibrate`, or set --sell-iops and --sell-throughput"
                );
            }
            logged.log(self.logged.as_ref());
            self.logged = Some(logged);
        }
    }
}

impl Logged {
    fn differs_from(&self, before: &Self) -> bool {
        let differs = |(now, before): (&Line, &Line)| {
            let change = now.for_sale.abs_diff(before.for_sale);
            (now.short_by() > 0) != (before.short_by() > 0)
                || change > before.for_sale / NOTABLE_PART
        };
        self.calibration != before.calibration
            || self.lines.len() != before.lines.len()
            || self.lines.iter().zip(&before.lines).any(differs)
    }

    fn log(&self, before: Option<&Self>) {
        for line in &self.lines {
            let Line { row, resource, sold, for_sale, .. } = *line;
            let row = row.words().unwrap_or("present");
            let source = match line.source {
                Source::Calibration => self.calibration.as_deref().unwrap_or_default(),
                Source::Operator => "the operator's figure",
            };
            let same = |other: &&Line| {
                (other.source, other.row, other.resource) == (line.source, line.row, resource)
            };
            let was = before.and_then(|before| before.lines.iter().find(same));
            if line.short_by() > 0 {
                let short_by = line.short_by();
                warn!(
                    %resource, row, source, sold, for_sale, short_by,
                    "more is sold than there is: volumes keep what they have, and none that \
                     reserves more is admitted"
                );
            } else if was.is_some_and(|was| was.for_sale > for_sale) {
                warn!(%resource, row, source, sold, for_sale, "less may be sold than before");
            } else {
                info!(%resource, row, source, sold, for_sale, "may be sold");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Row;
    use evenkeel_core::qos::admission::Resource;

    fn logged(sold: u64, for_sale: u64) -> Logged {
        let source = Source::Calibration;
        let resource = Resource::DeviceTime;
        let lines = vec![Line { source, row: Row::Present, resource, sold, for_sale }];
        Logged { calibration: Some("cal-1".into()), lines }
    }

    #[test]
    fn small_changes_are_not_logged_again() {
        let before = logged(5_000, 10_000);
        for (now, notable) in [
            (logged(5_000, 9_500), false),
            (logged(5_000, 9_499), true),
            (logged(5_000, 10_501), true),
            (logged(9_000, 10_000), false),
            (logged(10_001, 10_000), true),
            (Logged { calibration: Some("cal-2".into()), ..before.clone() }, true),
            (Logged { calibration: None, lines: vec![] }, true),
        ] {
            assert_eq!(now.differs_from(&before), notable, "{now:?}");
        }
    }
}
