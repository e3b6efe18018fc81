//! Judges limits by the server's own record of dispatches.

use evenkeel_core::qos::trace::Trace;

use super::Check;
use crate::stalls::{Observed, Stall, Stalls};
use evenkeel_sim::oracle::recorded::{self, Judged, NotJudged, Provisioned, Span};
use evenkeel_sim::oracle::{Finding, Rule};
use evenkeel_sim::text::thousands;

/// The rules that a late server breaks. Lost time excuses only these: it makes no request early.
const LATE: [Rule; 2] = [Rule::Floor, Rule::Modify];

/// The record of a data plane, and the origin of its clock.
#[derive(Clone, Debug)]
pub struct Record {
    /// The traces of its cores.
    pub traces: Vec<Trace>,
    /// Nanoseconds since 1970 at which the record's clock was 0.
    pub origin_unix_ns: u64,
}

impl Record {
    /// Judges one volume by the rules for windows, seconds and credits. `observed` has the times at
    /// which the server did not run although it had work, in microseconds since 1970. A client
    /// counted `ios` requests, and had at most `queue_depth` under way.
    ///
    /// # Errors
    /// If the record does not allow a verdict.
    pub fn checks(
        &self,
        volume: &Provisioned,
        observed: &Observed,
        ios: u64,
        queue_depth: u32,
    ) -> Result<Recorded, NotJudged> {
        let lost = observed.lost_by_server();
        let judge = |stalls: &Stalls| recorded::judge(&self.traces, volume, &self.spans(stalls));
        let known = judge(&lost)?;
        let judged = known.report.findings.iter().filter(|finding| finding.judged > 0);
        let mut checks: Vec<Check> = judged.map(|finding| check(finding, known.span)).collect();
        for rule in LATE {
            let Some(finding) = violated(&known, rule) else { continue };
            let doubtful = judge(&lost.doubtful().and(&observed.steal))?;
            let unexplained = violated(&doubtful, rule);
            // A violation that no lost time explains is shown before one that lost time may
            // explain.
            let shown = check(unexplained.unwrap_or(finding), known.span);
            let undecided = unexplained.is_none();
            if let Some(found) = checks.iter_mut().find(|check| check.name == shown.name) {
                *found = Check { undecided, ..shown };
            }
        }
        checks.push(same_requests(known.operations, ios, queue_depth));
        let us = |ns: u64| ns.saturating_add(self.origin_unix_ns) / 1_000;
        let stall =
            |&(from, to): &Span| Stall { start_us: us(from), length_us: (to - from) / 1_000 };
        Ok(Recorded { checks, idle: Stalls::merged(known.idle.iter().map(stall).collect()) })
    }

    fn spans(&self, stalls: &Stalls) -> Vec<Span> {
        let ns = |us: u64| us.saturating_mul(1_000).saturating_sub(self.origin_unix_ns);
        let span = |stall: &Stall| (ns(stall.start_us), ns(stall.end_us()));
        stalls.as_slice().iter().map(span).collect()
    }
}

/// The verdict of a volume's record.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The checks of its limits.
    pub checks: Vec<Check>,
    /// Times at which no request waited for the volume's limits, in microseconds since 1970: its
    /// store or its client was late.
    pub idle: Stalls,
}

/// Returns the finding of a rule, if it was broken.
fn violated(judged: &Judged, rule: Rule) -> Option<&Finding> {
    judged.report.finding(rule).filter(|finding| finding.violations > 0)
}

/// Converts a finding to a check. Times count from the first request of the volume.
fn check(finding: &Finding, (first_ns, _): Span) -> Check {
    let Finding { rule, judged, violations, first } = finding;
    let measured = match first.first() {
        None => format!("so {} times", thousands(*judged)),
        Some(violation) => format!(
            "{} after {:.1} s, the first of {} times in {}",
            violation.observed,
            violation.at.saturating_sub(first_ns) as f64 / 1e9,
            thousands(*violations),
            thousands(*judged),
        ),
    };
    let expected = first.first().map_or(rule.promise(), |violation| violation.expected.as_str());
    Check::new(format!("{rule}, by the server's record"), expected, measured, *violations == 0)
}

/// Checks that the record and the client have the same number of requests.
fn same_requests(recorded: u64, ios: u64, queue_depth: u32) -> Check {
    Check::new(
        "requests, by the server's record",
        format!("{} of the client, and at most {queue_depth} under way", thousands(ios)),
        thousands(recorded),
        (ios..=ios + u64::from(queue_depth)).contains(&recorded),
    )
}
