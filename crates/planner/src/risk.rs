//! The risks of a layout, in words, which its figures alone do not show.

use core::fmt;
use evenkeel_core::convert::saturating;

use evenkeel_core::volume::VolumeType;

use crate::answer::Rated;
use crate::demand::{Demand, HOUR_US};
use crate::fluid::Part;
use crate::layout::LimitKind;
use crate::search::Space;
use crate::spread::Spread;
use crate::trace::{Note, Trace};
use evenkeel_sim::text::span;

/// Lowest use of a limit, in thousandths, that leaves no headroom.
const NO_HEADROOM_PERMILLE: u64 = 950;
/// Credits below which they are reported as low, in millionths of the maximum.
const CREDITS_LOW_PPM: u32 = 250_000;

/// A risk of a layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Risk {
    /// Requests wait in the replay itself.
    Waits {
        /// Waiting time in milliseconds per day.
        ms_per_day: u64,
        /// The limit for which they wait the longest.
        limit: LimitKind,
    },
    /// If the workload is repeated for a month, it spends more credits than it earns.
    RunsDry {
        /// Seconds after which the credits are spent.
        after_s: u64,
    },
    /// The busiest hour exceeds the earned rate.
    LivesOnCredits {
        /// The limit.
        limit: LimitKind,
        /// Seconds after which full credits are spent at the rate of that hour.
        empty_after_s: u64,
        /// Lowest credits of the replay, in millionths of the maximum.
        least_ppm: u32,
    },
    /// No hour exceeds the earned rate, but bursts leave few credits.
    CreditsRunLow {
        /// The limit.
        limit: LimitKind,
        /// Lowest credits of the replay, in millionths of the maximum.
        least_ppm: u32,
    },
    /// The demand exceeds a limit, in bursts that its tokens let through or that wait.
    OverLimit {
        /// The limit.
        limit: LimitKind,
        /// Demand of the busiest interval, in thousandths of the limit.
        permille: u64,
    },
    /// A limit is nearly reached.
    NoHeadroom {
        /// The limit.
        limit: LimitKind,
        /// Use of the limit in the busiest interval, in thousandths.
        permille: u64,
    },
    /// A disk with a head takes several milliseconds for a request, which no limit shows.
    SlowDevice,
    /// One lost volume loses all data.
    Stripe {
        /// Number of volumes.
        volumes: u32,
        /// Such layouts of a billion that lose data within a year, at best and at worst.
        loss_ppb: Option<(u64, u64)>,
    },
    /// Not every file system spreads its busy data over all volumes.
    HotSet {
        /// Number of volumes.
        volumes: u32,
        /// The given percentage of the requests that go to one of them.
        percent: Option<u32>,
    },
    /// The times within an interval are not known, and they matter.
    Steps {
        /// Length of an interval in milliseconds.
        resolution_ms: u64,
        /// Least and largest waiting time, in milliseconds per day.
        ms_per_day: (u64, u64),
    },
    /// The source was at its limit: more was wanted than was recorded.
    Censored {
        /// Number of intervals in which it was.
        intervals: u64,
        /// Number of all intervals.
        of: u64,
    },
    /// A part of the time is unknown.
    Gaps {
        /// Length of that part, in milliseconds.
        unknown_ms: u64,
    },
    /// No durability of such a volume is published.
    NoDurability,
}

/// Returns the name of a limit, as tables have it.
#[must_use]
pub const fn limit_words(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::VolumeIops => "IOPS",
        LimitKind::VolumeBytes => "MiB/s",
        LimitKind::InstanceIops => "instance IOPS",
        LimitKind::InstanceBytes => "instance MiB/s",
    }
}

/// Returns the percentage of layouts that are lost, at best and at worst, from their billionths.
#[must_use]
pub fn loss_words((best, worst): (u64, u64)) -> String {
    let percent = |ppb: u64| format!("{}.{:03}", ppb / 10_000_000, ppb / 10_000 % 1_000);
    if best == worst {
        format!("{} %", percent(best))
    } else {
        format!("{}-{} %", percent(best), percent(worst))
    }
}

impl Risk {
    /// Returns a short name for programs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Waits { .. } => "waits",
            Self::RunsDry { .. } => "runs_dry",
            Self::LivesOnCredits { .. } => "lives_on_credits",
            Self::CreditsRunLow { .. } => "credits_run_low",
            Self::OverLimit { .. } => "over_limit",
            Self::NoHeadroom { .. } => "no_headroom",
            Self::SlowDevice => "slow_device",
            Self::Stripe { .. } => "stripe",
            Self::HotSet { .. } => "hot_set",
            Self::Steps { .. } => "steps",
            Self::Censored { .. } => "censored",
            Self::Gaps { .. } => "gaps",
            Self::NoDurability => "no_durability",
        }
    }
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waits { ms_per_day, limit } => {
                let limit = limit_words(*limit);
                write!(f, "requests wait {} s a day, mostly for {limit}", Tenths(*ms_per_day))
            }
            Self::RunsDry { after_s } => write!(
                f,
                "its credits run out after {} if the workload repeats: requests wait longer then",
                span(*after_s)
            ),
            Self::LivesOnCredits { limit, empty_after_s, least_ppm } => write!(
                f,
                "lives on credits of {}: empty after {} at the busiest hour's rate; the least in \
                 this trace is {} %",
                limit_words(*limit),
                span(*empty_after_s),
                least_ppm / 10_000,
            ),
            Self::CreditsRunLow { limit, least_ppm } => write!(
                f,
                "bursts leave {} % of the credits of {}",
                least_ppm / 10_000,
                limit_words(*limit)
            ),
            Self::OverLimit { limit, permille } => over_limit(f, *limit, *permille),
            Self::NoHeadroom { limit, permille } => write!(
                f,
                "{} % of the {} limit in the busiest interval: no headroom",
                permille / 10,
                limit_words(*limit)
            ),
            Self::SlowDevice => f.write_str(
                "a magnetic disk takes some milliseconds for each request, which are not in the \
                 delays here",
            ),
            Self::Stripe { volumes, loss_ppb } => stripe(f, *volumes, *loss_ppb),
            Self::HotSet { volumes, percent: Some(percent) } => write!(
                f,
                "{percent} % of the requests go to one of the {volumes} volumes, whose limits and \
                 waiting these are; if it gets more, they wait longer"
            ),
            Self::HotSet { volumes, percent: None } => write!(
                f,
                "a file system that does not stripe keeps a hot set on one of the {volumes} \
                 volumes, with its limits alone"
            ),
            Self::Steps { resolution_ms, ms_per_day: (least, most) } => write!(
                f,
                "steps of {} hide what happens within: requests wait {} to {} s a day; a {} tells \
                 which",
                span(resolution_ms.div_ceil(1_000)),
                Tenths(*least),
                Tenths(*most),
                if *resolution_ms > 1_000 { "trace of seconds" } else { "trace of each request" },
            ),
            Self::Censored { intervals, of } => write!(
                f,
                "the source was at its limit in {intervals} of {of} intervals: more was wanted \
                 than was recorded"
            ),
            Self::Gaps { unknown_ms } => {
                write!(f, "{} of the time are not known", span(unknown_ms.div_ceil(1_000)))
            }
            Self::NoDurability => f.write_str("no durability is published of this type"),
        }
    }
}

fn over_limit(f: &mut fmt::Formatter<'_>, limit: LimitKind, permille: u64) -> fmt::Result {
    let (whole, tenths, limit) = (permille / 10, permille % 10, limit_words(limit));
    write!(f, "{whole}.{tenths} % of the {limit} limit are asked for in the busiest interval")
}

fn stripe(f: &mut fmt::Formatter<'_>, volumes: u32, loss: Option<(u64, u64)>) -> fmt::Result {
    write!(f, "{volumes} volumes: one lost volume loses all")?;
    match loss {
        None => Ok(()),
        Some(loss) => write!(f, ", {} a year", loss_words(loss)),
    }
}

/// Milliseconds as seconds with tenths.
struct Tenths(u64);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1_000, self.0 % 1_000 / 100)
    }
}

/// Returns the risks of a layout, the worst first.
#[must_use]
pub fn risks(space: &Space, trace: &Trace, demand: &Demand, rated: &Rated) -> Vec<Risk> {
    let mut risks = Vec::new();
    let (found, layout) = (&rated.found, &rated.found.layout);
    let length_us = demand.length_us.max(found.end_us());
    if let Some(limit) = found.binding() {
        let ms_per_day = crate::answer::ms_per_day(found.waited_us(), length_us);
        risks.push(Risk::Waits { ms_per_day, limit });
    }
    risks.extend(rated.dry_after_s.map(|after_s| Risk::RunsDry { after_s }));
    let of_limits = used_risks(space, demand, rated);
    risks.extend(of_limits);
    if matches!(layout.each.volume_type, VolumeType::Standard | VolumeType::St1 | VolumeType::Sc1) {
        risks.push(Risk::SlowDevice);
    }
    if layout.volumes > 1 {
        risks.push(Risk::Stripe { volumes: layout.volumes, loss_ppb: rated.loss_ppb });
        let percent = match space.spread {
            Spread::Striped { .. } => None,
            Spread::Hot { percent } => Some(percent.max(100_u32.div_ceil(layout.volumes))),
        };
        risks.push(Risk::HotSet { volumes: layout.volumes, percent });
    }
    if rated.loss_ppb.is_none() {
        risks.push(Risk::NoDurability);
    }
    let [even, _, worst] = rated.throttled_ms_per_day;
    let resolution_ms = trace.resolution_ms();
    if worst > even {
        risks.push(Risk::Steps { resolution_ms, ms_per_day: (even, worst) });
    }
    if let Some(held) = demand.held_back {
        let of = trace.intervals.len() as u64;
        risks.push(Risk::Censored { intervals: held.intervals, of });
    }
    let gap = |note: &Note| match note {
        Note::Gap { length_ms, .. } => *length_ms,
        Note::Remark(_) => 0,
    };
    let unknown_ms = trace.notes.iter().map(gap).fold(0_u64, u64::saturating_add);
    if unknown_ms > 0 {
        risks.push(Risk::Gaps { unknown_ms });
    }
    risks
}

/// Returns the risks of its limits and their credits.
fn used_risks(space: &Space, demand: &Demand, rated: &Rated) -> Vec<Risk> {
    let layout = &rated.found.layout;
    let pacing = space.rules.pacing(&layout.each);
    let parts = || demand.parts(pacing.counting, layout.share(space));
    let hour = busiest_hour(parts(), demand.length_us);
    let least = rated.found.outcome.least_ppm.iter();
    let mut risks = Vec::new();
    for ((kind, limit), least_ppm) in layout.all(space).zip(least) {
        let Some(credit) = limit.credit else { continue };
        let rate = if kind.counts_bytes() { hour.1 } else { hour.0 };
        let above = rate.min(limit.per_second).saturating_sub(credit.refill_per_second);
        let limit = kind;
        let least_ppm = *least_ppm;
        if let Some(empty_after_s) = credit.capacity.checked_div(above) {
            risks.push(Risk::LivesOnCredits { limit, empty_after_s, least_ppm });
        } else if least_ppm < CREDITS_LOW_PPM {
            risks.push(Risk::CreditsRunLow { limit, least_ppm });
        }
    }
    for (limit, permille) in &rated.used_permille {
        let limit = *limit;
        let permille = *permille;
        match permille {
            0..NO_HEADROOM_PERMILLE => {}
            NO_HEADROOM_PERMILLE..=1_000 => risks.push(Risk::NoHeadroom { limit, permille }),
            _ => risks.push(Risk::OverLimit { limit, permille }),
        }
    }
    risks
}

/// Returns the highest counted I/Os and bytes per second, on average over an hour of the demand, or
/// over all of a shorter one.
fn busiest_hour(parts: impl Iterator<Item = Part>, length_us: u64) -> (u64, u64) {
    let (mut hour, mut sums, mut most) = (0, (0, 0), (0, 0));
    for mut part in parts {
        while part.length_us > 0 {
            let until_end_us = HOUR_US - part.start_us % HOUR_US;
            let piece = part.cut(until_end_us);
            if piece.start_us / HOUR_US != hour {
                (hour, sums) = (piece.start_us / HOUR_US, (0, 0));
            }
            sums = (sums.0 + piece.operations, sums.1 + piece.bytes);
            most = (sums.0.max(most.0), sums.1.max(most.1));
        }
    }
    let length_us = length_us.clamp(1, HOUR_US);
    let rate = |sum: u128| saturating::<_, u64>(sum / u128::from(length_us));
    (rate(most.0), rate(most.1))
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::{Rules, VolumeType};

    use super::*;
    use crate::answer::rate;
    use crate::demand::Assume;
    use crate::layout_text;
    use crate::search::given;
    use crate::testing::{minutes, space};

    fn of(trace: &Trace, layout: &str) -> Vec<String> {
        let space = space(&VolumeType::ALL, 1);
        let demand = Demand::of(trace, Assume::Even);
        let layout = layout_text::parse(layout, Rules::newest()).expect("a layout");
        let found = given(&space, &demand, &layout).expect("a price");
        let rated = rate(&space, trace, &demand, vec![found]).remove(0);
        risks(&space, trace, &demand, &rated).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_risk_is_told_where_it_is() {
        // 400 per second for an hour; 100 GiB of gp2 earn 300, and save 5.4 million.
        let hour = minutes(&[24_000; 60]);
        let told = of(&hour, "gp2 100");
        assert!(told[0].starts_with("its credits run out after 15 h"), "{told:?}");
        assert_eq!(
            told[1],
            "lives on credits of IOPS: empty after 15 h at the busiest hour's rate; the least in \
             this trace is 93 %"
        );
        assert!(told[2].starts_with("steps of 60 s hide what happens within"), "{told:?}");
        assert!(of(&hour, "gp3 100").iter().all(|it| !it.contains("credits")));
        let full = minutes(&[178_500; 3]);
        let told = of(&full, "gp3 100");
        assert_eq!(told[0], "99 % of the IOPS limit in the busiest interval: no headroom");
        let told = of(&minutes(&[240_000]), "gp3 100");
        // It takes 80 s, and requests wait in all of them.
        assert_eq!(told[0], "requests wait 86400.0 s a day, mostly for IOPS");
        assert_eq!(told[1], "133.3 % of the IOPS limit are asked for in the busiest interval");
        let told = of(&hour, "5 x gp3 100");
        assert_eq!(told[0], "5 volumes: one lost volume loses all, 0.499-0.996 % a year");
        assert!(told[1].starts_with("a file system that does not stripe"), "{told:?}");
    }

    /// From 95 % on, no use of a limit is silent, whatever the type, and whether requests wait.
    #[test]
    fn a_limit_that_is_nearly_used_or_exceeded_is_a_risk() {
        let of_limit = |requests: u64, layout: &str, limit: &str| -> Vec<String> {
            let mut risks = of(&minutes(&[requests]), layout);
            risks.retain(|words| words.contains(&format!("of the {limit} limit")));
            risks
        };
        let words = |whole: &str, limit: &str| match whole.split_once('.') {
            None => format!("{whole} % of the {limit} limit in the busiest interval: no headroom"),
            Some(_) => {
                format!("{whole} % of the {limit} limit are asked for in the busiest interval")
            }
        };
        // Requests a minute, and the part of 3,000 per second: gp2 has as many with credits.
        for (requests, whole) in [
            (170_999, None),
            (171_000, Some("95")),
            (179_999, Some("99")),
            (180_000, Some("100")),
            (180_180, Some("100.1")),
            (181_800, Some("101.0")),
            (183_600, Some("102.0")),
            (360_000, Some("200.0")),
        ] {
            for layout in ["gp3 100", "gp2 100", "io2 100, 3000 IOPS"] {
                let expected: Vec<String> =
                    whole.map(|whole| words(whole, "IOPS")).into_iter().collect();
                assert_eq!(of_limit(requests, layout, "IOPS"), expected, "{requests} {layout}");
            }
        }
        // 125 MiB/s are 32,000 requests of 4 KiB per second.
        for (requests, whole) in [(1_920_000, "100"), (1_939_200, "101.0"), (2_880_000, "150.0")] {
            let risks = of_limit(requests, "gp3 100, 50000 IOPS", "MiB/s");
            assert_eq!(risks, [words(whole, "MiB/s")], "{requests}");
        }
    }

    #[test]
    fn what_the_trace_lacks_is_told() {
        let mut trace = minutes(&[60, 60, 60]);
        trace.intervals[1].is_censored = Some(true);
        trace.notes.push(Note::Gap { start_ms: 180_000, length_ms: 7_200_000 });
        // Limits of the source count as well, for intervals in which the trace does not state it.
        let mut limited = trace.clone();
        limited.source.iops = Some(1);
        let held = Demand::of(&limited, Assume::Even).held_back.map(|held| held.intervals);
        assert_eq!(held, Some(3));
        let at_limit = "the source was at its limit in 3 of 3 intervals";
        assert!(of(&limited, "gp3 100").iter().any(|it| it.starts_with(at_limit)));
        let told = of(&trace, "gp3 100");
        let expected = [
            "the source was at its limit in 1 of 3 intervals: more was wanted than was recorded",
            "2 h of the time are not known",
        ];
        assert_eq!(told, expected);
        assert!(
            of(&trace, "standard 100").contains(&"no durability is published of this type".into())
        );
    }

    #[test]
    fn bursts_that_leave_little_are_told() {
        // 28 minutes of 3,000 per second, then 92 idle ones: full credits last for 33 minutes.
        let mut all = vec![180_000; 28];
        all.extend([0; 92]);
        let told = of(&minutes(&all), "gp2 100");
        assert!(told[1].contains("the least in this trace is 16 %"), "{told:?}");
        let names: Vec<&str> = [
            Risk::CreditsRunLow { limit: LimitKind::VolumeIops, least_ppm: 120_000 },
            Risk::NoDurability,
        ]
        .iter()
        .map(Risk::name)
        .collect();
        assert_eq!(names, ["credits_run_low", "no_durability"]);
        // Small volumes earn 100 per second: 99 on average of the hour, in one burst.
        let mut burst = vec![0; 60];
        burst[0] = 180_000;
        burst[1] = 176_000;
        let told = of(&minutes(&burst), "gp2 1");
        assert!(told.iter().all(|it| !it.contains("lives on credits")), "{told:?}");
    }
}
