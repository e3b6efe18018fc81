//! The findings of the rules: violations, and the number of occasions that each rule judged.

use std::fmt;

use crate::check::Check;
use crate::text::thousands;

/// Maximum number of violations of one rule that are kept in words. All are counted.
const KEPT_MAX: usize = 16;

/// The rules of the promise. The numbers are the lines of the specification.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// 1: no window of any length has more than its rate, the tolerance and one I/O.
    Ceiling,
    /// 1: the first second of a backlog has at most the tolerance's worth more.
    FirstSecond,
    /// 1: later seconds are exact.
    SteadySecond,
    /// 1: no 10 ms of a steady backlog have much more than the average.
    Peak10Ms,
    /// 2: every second of a backlog has the provisioned or reserved rate.
    Floor,
    /// 4: credits are exact to one I/O, one byte.
    Credits,
    /// 5: the limits of volume, instance and device hold at once, and sums are exact.
    Hierarchy,
    /// 5: equal volumes get equal shares of a shared resource.
    Fairness,
    /// 5: no burst is dispatched before work that a baseline covers.
    BaseBeforeBurst,
    /// 6: a log writer's 99th percentile beside neighbours.
    Isolation,
    /// 6: while urgent requests arrive, large ones leave a channel of the device free.
    FreeChannel,
    /// 7: modifications act at once, refill nothing and gain nothing.
    Modify,
    /// 2: no waiting request is passed over for ever.
    NoStarvation,
    /// 9: requests of a class are dispatched in the order of arrival.
    ClassOrder,
    /// 9: every request is answered exactly once, and its bytes add up.
    Conservation,
    /// 9: queues and structures keep their bounds.
    Bounded,
}

/// A broken promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Time at which it was found, in nanoseconds.
    pub at: u64,
    /// The volume, if it concerns one.
    pub volume: Option<u32>,
    /// The client host, if it concerns one.
    pub instance: Option<u32>,
    /// The promise, in words.
    pub expected: String,
    /// The observation, in words.
    pub observed: String,
}

/// The findings of one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Number of occasions that it judged. If it is 0, nothing is proved.
    pub judged: u64,
    /// Number of them that were violations.
    pub violations: u64,
    /// The first violations.
    pub first: Vec<Violation>,
}

/// All findings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Number of observed events.
    pub events: u64,
    /// One finding for each rule that applied, in the order of [`Rule::ALL`].
    pub findings: Vec<Finding>,
}

/// The findings so far.
#[derive(Debug)]
pub(super) struct Findings {
    by_rule: [Option<Finding>; Rule::ALL.len()],
}

/// The subject of a violation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whose {
    Volume(u32),
    Instance(u32),
    Node,
}

impl Rule {
    /// Every rule, in the order of a report.
    pub const ALL: [Self; 16] = [
        Self::Ceiling,
        Self::FirstSecond,
        Self::SteadySecond,
        Self::Peak10Ms,
        Self::Floor,
        Self::Credits,
        Self::Hierarchy,
        Self::Fairness,
        Self::BaseBeforeBurst,
        Self::Isolation,
        Self::FreeChannel,
        Self::Modify,
        Self::NoStarvation,
        Self::ClassOrder,
        Self::Conservation,
        Self::Bounded,
    ];

    /// Returns the line of the specification that it checks.
    #[must_use]
    pub const fn line(self) -> u8 {
        match self {
            Self::Ceiling | Self::FirstSecond | Self::SteadySecond | Self::Peak10Ms => 1,
            Self::Floor | Self::NoStarvation => 2,
            Self::Credits => 4,
            Self::Hierarchy | Self::Fairness | Self::BaseBeforeBurst => 5,
            Self::Isolation | Self::FreeChannel => 6,
            Self::Modify => 7,
            Self::ClassOrder | Self::Conservation | Self::Bounded => 9,
        }
    }

    /// Returns its promise in words.
    #[must_use]
    pub const fn promise(self) -> &'static str {
        match self {
            Self::Ceiling => "any window: at most rate x length, the tolerance's worth and one I/O",
            Self::FirstSecond => "at most the tolerance's worth above the rate (5 % for 50 ms)",
            Self::SteadySecond => "at most 0.5 % and one I/O above the rate",
            Self::Peak10Ms => "at most 1.15 x the average and one I/O",
            Self::Floor => "at least 99 % of what is provisioned while backlogged",
            Self::Credits => "spent and told exactly to one I/O, one byte",
            Self::Hierarchy => "all limits hold at once, sums exact to 0.1 %",
            Self::Fairness => "the least of equals gets at least 99 % of the most",
            Self::BaseBeforeBurst => "no burst while what a baseline covers is due",
            Self::Isolation => "p99 at most twice that alone",
            Self::FreeChannel => "no large request takes the last channel while urgent ones come",
            Self::Modify => "acts at once, refills nothing, gains nothing",
            Self::NoStarvation => "no request is passed over beyond the bound",
            Self::ClassOrder => "first in, first out, in each class",
            Self::Conservation => "each request answered exactly once, all bytes accounted for",
            Self::Bounded => "no queue or structure beyond its bound",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ceiling => "ceiling",
            Self::FirstSecond => "first second",
            Self::SteadySecond => "steady second",
            Self::Peak10Ms => "busiest 10 ms",
            Self::Floor => "floor",
            Self::Credits => "credits",
            Self::Hierarchy => "hierarchy",
            Self::Fairness => "fairness",
            Self::BaseBeforeBurst => "base before burst",
            Self::Isolation => "isolation",
            Self::FreeChannel => "free channel",
            Self::Modify => "modify",
            Self::NoStarvation => "no starvation",
            Self::ClassOrder => "order in a class",
            Self::Conservation => "conservation of requests",
            Self::Bounded => "bounded memory",
        })
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.rule)?;
        match (self.volume, self.instance) {
            (Some(volume), _) => write!(f, "volume {volume}")?,
            (None, Some(instance)) => write!(f, "instance {instance}")?,
            (None, None) => f.write_str("node")?,
        }
        let at = self.at;
        let expected = &self.expected;
        let observed = &self.observed;
        write!(f, ", at {} ns: {observed}; promised: {expected}", thousands(at))
    }
}

impl Findings {
    pub(super) fn new(rules: &[Rule]) -> Self {
        let mut by_rule = [const { None }; Rule::ALL.len()];
        for (slot, rule) in by_rule.iter_mut().zip(Rule::ALL) {
            if rules.contains(&rule) {
                *slot = Some(Finding { rule, judged: 0, violations: 0, first: Vec::new() });
            }
        }
        Self { by_rule }
    }

    /// Returns whether the rule is checked.
    pub(super) fn wants(&self, rule: Rule) -> bool {
        self.by_rule[rule as usize].is_some()
    }

    /// Counts one occasion that was judged.
    pub(super) fn judged(&mut self, rule: Rule) {
        if let Some(finding) = &mut self.by_rule[rule as usize] {
            finding.judged += 1;
        }
    }

    /// Judges one occasion; if it is not `kept`, `words` returns the expectation and the
    /// observation.
    pub(super) fn judge(
        &mut self,
        rule: Rule,
        kept: bool,
        at: u64,
        whose: Whose,
        words: impl FnOnce() -> (String, String),
    ) {
        self.judged(rule);
        if !kept {
            self.broken(rule, at, whose, words);
        }
    }

    #[cold]
    pub(super) fn broken(
        &mut self,
        rule: Rule,
        at: u64,
        whose: Whose,
        words: impl FnOnce() -> (String, String),
    ) {
        let Some(finding) = &mut self.by_rule[rule as usize] else { return };
        finding.violations += 1;
        if finding.first.len() < KEPT_MAX {
            let (expected, observed) = words();
            let (volume, instance) = match whose {
                Whose::Volume(volume) => (Some(volume), None),
                Whose::Instance(instance) => (None, Some(instance)),
                Whose::Node => (None, None),
            };
            let violation = Violation { rule, at, volume, instance, expected, observed };
            finding.first.push(violation);
        }
    }

    pub(super) fn violations(&self) -> u64 {
        self.by_rule.iter().flatten().map(|finding| finding.violations).sum()
    }

    pub(super) fn into_report(self, events: u64) -> Report {
        Report { events, findings: self.by_rule.into_iter().flatten().collect() }
    }
}

impl Report {
    /// Returns whether every rule was kept.
    #[must_use]
    pub fn pass(&self) -> bool {
        self.findings.iter().all(|finding| finding.violations == 0)
    }

    /// Returns the rules that were broken.
    #[must_use]
    pub fn broken(&self) -> Vec<Rule> {
        let broken = self.findings.iter().filter(|finding| finding.violations > 0);
        broken.map(|finding| finding.rule).collect()
    }

    /// Returns the violations that were kept in words, in the order of the rules.
    pub fn violations(&self) -> impl Iterator<Item = &Violation> {
        self.findings.iter().flat_map(|finding| &finding.first)
    }

    /// Returns the finding of one rule; `None` if the rule did not apply.
    #[must_use]
    pub fn finding(&self, rule: Rule) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.rule == rule)
    }

    /// Returns one line of a verdict for each rule that judged anything.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let judged = self.findings.iter().filter(|f| f.judged > 0 || f.violations > 0);
        judged.map(Finding::check).collect()
    }
}

impl Finding {
    fn check(&self) -> Check {
        let measured = match self.first.first() {
            None => format!("kept {} times", thousands(self.judged)),
            Some(first) => {
                format!("broken {} times, first: {first}", thousands(self.violations))
            }
        };
        Check::new(self.rule.to_string(), self.rule.promise(), measured, self.violations == 0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in self.checks() {
            let verdict = if check.pass { "ok  " } else { "FAIL" };
            writeln!(f, "{verdict} {}: {}", check.name, check.measured)?;
        }
        for violation in self.violations() {
            writeln!(f, "     {violation}")?;
        }
        write!(f, "{} events", thousands(self.events))
    }
}
