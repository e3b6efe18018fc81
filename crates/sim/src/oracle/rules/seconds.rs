//! Lines 1 and 2: the first second of a backlog, every later one, and the floor.

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::{Seen, worth_without};
use super::super::system::{DIMENSIONS, Floor, Margins};
use super::super::token_level::{UNIT, worth};
use super::super::volumes::VolumeModel;
use super::bins::{BIN_NS, Backlog, SECOND_BINS, Second};
use super::{NAMES, PerVolume, Watcher, units_text};
use crate::text::latency;
use evenkeel_core::convert::saturating;

const SECOND_NS: u64 = BIN_NS * SECOND_BINS as u64;
const MILLION: i128 = 1_000_000;
/// Factor on the waiting time that proves that a volume was held up, if two limits hold it in
/// turns.
const MIXED_MARGINS: u64 = 10;
/// Maximum time for which the instance may hold a volume up in a second with a floor, in
/// nanoseconds.
const BY_INSTANCE_NS_MAX: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Seconds(PerVolume<Option<Box<Backlog>>>);

impl Seconds {
    pub(super) fn new() -> Self {
        Self(PerVolume::new())
    }

    /// Advances the time of one volume's backlog, and judges the seconds that have ended.
    fn pass(&mut self, number: u32, seen: &Seen, findings: &mut Findings) {
        let Some(volume) = seen.volume(number) else { return };
        let Some(backlog) = self.0.of(number) else { return };
        backlog.pass(volume, seen, |backlog, second| {
            let judge = Judge { number, volume, seen, backlog, second };
            judge.ceilings(findings);
            judge.floor(findings);
        });
    }
}

impl Watcher for Seconds {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Some(number) = event.volume() else { return };
        self.pass(number, seen, findings);
        let Some(volume) = seen.volume(number) else { return };
        let backlog = self.0.of(number);
        match event {
            Event::Submitted(_) if !volume.is_backlogged() => {
                *backlog = Some(Box::new(Backlog::new(volume, seen.now, true)));
            }
            Event::Dispatched(dispatched) => {
                if dispatched.last && volume.requests.queued <= 1 {
                    *backlog = None;
                } else if let Some(backlog) = backlog {
                    backlog.take(dispatched, volume, seen.now);
                }
            }
            Event::Cancelled { .. } if volume.requests.queued <= 1 => *backlog = None,
            Event::Removed { .. } => *backlog = None,
            // The limits have changed: a new backlog begins with the next event.
            Event::Modified { promise, .. } if backlog.is_some() => {
                let mut changed = VolumeModel::new(seen.now, promise);
                changed.limits = volume.limits;
                changed.held_up = volume.held_up;
                changed.modify(promise, seen.system.margins.modify_debt_ns);
                *backlog = Some(Box::new(Backlog::new(&changed, seen.now, false)));
            }
            Event::Credited { .. } => *backlog = None,
            _ => {}
        }
    }

    fn finish(&mut self, seen: &Seen, findings: &mut Findings) {
        let numbers: Vec<u32> = seen.each_volume().map(|(number, _)| number).collect();
        for number in numbers {
            self.pass(number, seen, findings);
        }
    }
}

/// A second, and everything that is needed to judge it.
struct Judge<'a> {
    number: u32,
    volume: &'a VolumeModel,
    seen: &'a Seen,
    backlog: &'a Backlog,
    second: &'a Second,
}

impl Judge<'_> {
    /// Judges the first second after idle, and those that begin a second or more after it.
    fn ceilings(&self, findings: &mut Findings) {
        let Margins { first_second_ppm, steady_second_ppm, .. } = self.seen.system.margins;
        let tolerance_ppm = self.volume.promise.tolerance_ns / 1_000;
        let (rule, ppm) = match self.backlog.closed {
            10 if self.backlog.from_idle => {
                (Rule::FirstSecond, first_second_ppm.map_or(tolerance_ppm, u64::from))
            }
            20.. => (Rule::SteadySecond, u64::from(steady_second_ppm)),
            _ => return,
        };
        // A volume that was held up by others, or by a pause, catches up. Only the ceiling of any
        // window applies then.
        let before = self.second.from.saturating_sub(SECOND_NS);
        if self.backlog.excused_at.is_some_and(|time| time >= before) {
            return;
        }
        for (dimension, limit) in self.volume.promise.limits().into_iter().enumerate() {
            let Some(limit) = limit else { continue };
            let bound_since = self.backlog.bound_since[dimension];
            if self.second.used[dimension] == 0 {
                continue;
            }
            let steady = bound_since.is_some_and(|since| since <= self.second.from);
            if rule == Rule::SteadySecond && !steady {
                continue;
            }
            let rate = i128::from(limit.per_second);
            let most = rate * (MILLION + i128::from(ppm)) / 1_000 * (UNIT / 1_000)
                + i128::from(self.backlog.largest[dimension]) * UNIT;
            let used = i128::from(self.second.used[dimension]) * UNIT;
            findings.judge(rule, used <= most, self.second.to, Whose::Volume(self.number), || {
                let name = NAMES[dimension];
                (format!("at most {} {name} in a second", units_text(most)), units_text(used))
            });
        }
    }

    fn floor(&self, findings: &mut Findings) {
        let lost_ns = self.seen.stalls.overlap(self.second.from, self.second.to);
        let limits = self.volume.promise.limits();
        let unlimited = limits.iter().all(Option::is_none);
        let reserved = match self.volume.promise.floor {
            Floor::None => return,
            Floor::Limit if unlimited => return,
            Floor::Limit => None,
            Floor::Reserved { per_second, reference_cost_ns } => {
                Some((per_second, reference_cost_ns))
            }
        };
        if self.second.by_instance_ns > BY_INSTANCE_NS_MAX {
            return;
        }
        let own_limits_hold = !unlimited
            && (self.second.held_up_ns <= lost_ns + self.spare_ns()
                || self.least_busy_ns(lost_ns) <= self.second.busy_ns
                || (0..limits.len()).any(|dimension| self.is_at_limit(dimension, lost_ns)));
        let reservation_holds =
            reserved.is_some_and(|(rate, cost)| self.is_at_reservation(rate, cost, lost_ns));
        let kept = own_limits_hold || reservation_holds;
        findings.judge(Rule::Floor, kept, self.second.to, Whose::Volume(self.number), || {
            let [operations, bytes, _] = self.second.used;
            let floor_ppm = self.seen.system.margins.floor_ppm;
            let percent = 100.0 - f64::from(floor_ppm) / 10_000.0;
            let of = match reserved {
                None => "its limits".to_owned(),
                Some((rate, _)) => format!("{rate} reserved"),
            };
            let held_up = latency(self.second.held_up_ns);
            let cost = match self.second.cost_ns {
                0 => String::new(),
                cost_ns => format!(", {} of device", latency(cost_ns)),
            };
            (
                format!(
                    "{percent} % of {of} in a second, of which {} were lost to stalls",
                    latency(lost_ns)
                ),
                format!("{operations} I/Os, {bytes} bytes{cost}; {held_up} held up"),
            )
        });
    }

    /// Returns the waiting time that cannot cost more than the margin, in nanoseconds. If two
    /// limits hold a volume in turns, neither is reached, and tokens saved meanwhile make up for
    /// more waiting than this.
    fn spare_ns(&self) -> u64 {
        let margin_ns = SECOND_NS / 1_000_000 * u64::from(self.seen.system.margins.floor_ppm);
        let half = |dimension: &usize| {
            let limited = self.second.levels[*dimension].as_ref();
            let entitled = limited.map_or(0, |limited| limited.entitled(SECOND_NS));
            i128::from(self.second.used[*dimension]) * UNIT * 2 > entitled.max(1)
        };
        let mixed = (0..DIMENSIONS).filter(half).count() > 1;
        if mixed { MIXED_MARGINS * margin_ns } else { margin_ns }
    }

    fn share(&self, whole: i128) -> i128 {
        let ppm = MILLION - i128::from(self.seen.system.margins.floor_ppm);
        if whole > 0 { whole / MILLION * ppm } else { whole }
    }

    /// Returns the minimum time's worth that must be served, less one I/O, in nanoseconds.
    fn least_busy_ns(&self, lost_ns: u64) -> u64 {
        let one_ns = |dimension: usize| {
            let limited = self.second.levels[dimension].as_ref()?;
            let rate =
                limited.credit.map_or(limited.pacer.rate, |c| c.rate.min(limited.pacer.rate));
            let debt = limited.pacer.level.min(0).unsigned_abs() / u128::from(rate.max(1));
            let one = u128::from(self.backlog.largest[dimension]) * 1_000_000_000;
            u64::try_from(debt + one / u128::from(rate.max(1))).ok()
        };
        let one_ns = (0..DIMENSIONS).filter_map(one_ns).max().unwrap_or(0);
        let whole = self.share(i128::from(SECOND_NS.saturating_sub(lost_ns)));
        saturating::<_, u64>(whole).saturating_sub(one_ns)
    }

    fn is_at_limit(&self, dimension: usize, lost_ns: u64) -> bool {
        self.second.levels[dimension].as_ref().is_some_and(|limited| {
            let entitled = self.share(limited.entitled(SECOND_NS.saturating_sub(lost_ns)));
            let used = self.second.used[dimension] + self.backlog.largest[dimension];
            self.second.used[dimension] > 0 && i128::from(used) * UNIT >= entitled
        })
    }

    fn is_at_reservation(&self, per_second: u64, reference_cost_ns: u64, lost_ns: u64) -> bool {
        let (used, each) = if reference_cost_ns == 0 {
            (self.second.used[0] + self.backlog.largest[0], 1)
        } else {
            (self.second.cost_ns + self.backlog.largest_cost_ns, reference_cost_ns)
        };
        let reserved = worth_without(per_second, SECOND_NS, lost_ns);
        let reserved = self.share(reserved.min(worth(per_second, SECOND_NS)) * i128::from(each));
        i128::from(used) * UNIT >= reserved
    }
}
