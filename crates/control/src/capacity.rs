//! What the data plane says may be sold, and what the log is told of it: everything that changes
//! what customers can buy, once, and loudly where it is less than before.

use std::ops::Deref;

use evenkeel_wire::agent::Capacity;
use tracing::{info, warn};

use crate::model::{Line, Model, Settings, Source};

/// Smaller changes are not worth a line in the log: a twentieth of what was told before.
const NOTABLE_PART: u64 = 20;

/// The last answer, and what the log was told.
#[derive(Debug, Default)]
pub struct Known {
    now: Capacity,
    told: Option<Told>,
}

/// What was told of a capacity.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    /// Of which calibration; none if nothing was measured.
    calibration: Option<String>,
    lines: Vec<Line>,
}

impl Known {
    /// The last answer of the data plane.
    #[must_use]
    pub fn now(&self) -> &Capacity {
        &self.now
    }

    /// Takes an answer in. `model` is asked for only if it is another than the last.
    pub fn learn<M: Deref<Target = Model>>(
        &mut self,
        capacity: Capacity,
        settings: &Settings,
        model: impl FnOnce() -> M,
    ) {
        if self.told.is_some() && capacity == self.now {
            return;
        }
        let calibration = match &capacity {
            Capacity::Unknown => None,
            Capacity::Measured(measured) => Some(measured.calibration.clone()),
        };
        let lines = model().books(settings, &capacity).lines();
        self.now = capacity;
        let told = Told { calibration, lines };
        if self.told.as_ref().is_none_or(|before| told.differs_from(before)) {
            told.log(self.told.as_ref());
            self.told = Some(told);
        }
    }
}

impl Told {
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
        if self.lines.is_empty() {
            warn!(
                "what may be sold is unknown, so no volume is refused for want of capacity; \
                 run `evenkeel calibrate`, or set --sell-iops and --sell-throughput"
            );
        }
        for line in &self.lines {
            let Line { resource, sold, for_sale, .. } = *line;
            let source = match line.source {
                Source::Calibration => self.calibration.as_deref().unwrap_or_default(),
                Source::Operator => "the operator's figure",
            };
            let same = |other: &&Line| other.source == line.source && other.resource == resource;
            let was = before.and_then(|before| before.lines.iter().find(same));
            if line.short_by() > 0 {
                let short_by = line.short_by();
                warn!(
                    %resource, source, sold, for_sale, short_by,
                    "more is sold than there is: volumes keep what they have, and none that \
                     reserves more is admitted"
                );
            } else if was.is_some_and(|was| was.for_sale > for_sale) {
                warn!(%resource, source, sold, for_sale, "less may be sold than before");
            } else {
                info!(%resource, source, sold, for_sale, "may be sold");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::admission::Resource;

    fn told(sold: u64, for_sale: u64) -> Told {
        let (source, resource) = (Source::Calibration, Resource::DeviceTime);
        let lines = vec![Line { source, resource, sold, for_sale }];
        Told { calibration: Some("cal-1".into()), lines }
    }

    #[test]
    fn what_changes_little_is_not_told_again() {
        let before = told(5_000, 10_000);
        for (now, notable) in [
            (told(5_000, 9_500), false),
            (told(5_000, 9_499), true),
            (told(5_000, 10_501), true),
            (told(9_000, 10_000), false),
            (told(10_001, 10_000), true),
            (Told { calibration: Some("cal-2".into()), ..before.clone() }, true),
            (Told { calibration: None, lines: vec![] }, true),
        ] {
            assert_eq!(now.differs_from(&before), notable, "{now:?}");
        }
    }
}
