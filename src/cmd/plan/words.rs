//! The words for costs, times, names and limits that all answers share.

use crate::message;
use evenkeel_core::units::MIB;
use evenkeel_planner::answer::Asked;
use evenkeel_planner::cost::{self, MICROS_PER_CENT};
use evenkeel_planner::neighbours::Less;
pub use evenkeel_planner::risk::{limit_words, loss_words};
use evenkeel_planner::trace::Clock;

/// Millionths of a dollar as dollars and cents.
pub fn usd(micro: u64) -> String {
    cost::decimal(micro.div_ceil(MICROS_PER_CENT))
}

/// How much more something costs: `+2.50`, `-1.00`.
pub fn usd_more(micro: u64, than: u64) -> String {
    let sign = if micro < than { "-" } else { "+" };
    // Of what is shown, and not of what was rounded away.
    let cents = |micro: u64| micro.div_ceil(MICROS_PER_CENT).saturating_mul(MICROS_PER_CENT);
    format!("{sign}{}", usd(cents(micro).abs_diff(cents(than))))
}

/// Milliseconds as seconds.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}", ms / 1_000, ms % 1_000 / 100),
        _ => (ms / 1_000).to_string(),
    }
}

/// A name from a file, which may have anything in it: what steers a terminal is shown and not sent.
pub fn plain(name: &str) -> String {
    let shown = |c: char| match is_unseen(c) {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    };
    name.chars().map(shown).collect()
}

/// Control characters, and those that change the direction of the text around them.
fn is_unseen(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// A time of a trace.
pub fn at(clock: Clock, ms: u64) -> String {
    match clock {
        Clock::Unix => evenkeel_wire::aws::timestamp::extended(ms),
        Clock::Elapsed => {
            let seconds = ms / 1_000;
            format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
        }
    }
}

/// What a trace asks for at most and on average.
pub fn asked_words(asked: &Asked) -> String {
    format!(
        "asked for: at most {} requests and {} MiB a second, on average {} and {}",
        asked.peak_iops,
        asked.peak_bytes_per_second.div_ceil(MIB),
        asked.mean_iops,
        asked.mean_bytes_per_second.div_ceil(MIB),
    )
}

/// A gap of a trace.
pub fn gap_words(clock: Clock, start_ms: u64, length_ms: u64) -> String {
    let length = message::span(length_ms.div_ceil(1_000));
    format!("{length} from {} on are not known", at(clock, start_ms))
}

/// A span of microseconds; fractions of seconds are told below ten seconds only.
pub fn span_us(us: u64) -> String {
    match us / 1_000 {
        ms @ 0..10_000 => format!("{} s", seconds(ms)),
        ms => message::span(ms / 1_000),
    }
}

/// What a neighbour has one less of.
pub const fn less_words(less: Less) -> &'static str {
    match less {
        Less::Volumes => "volume",
        Less::Gib => "GiB",
        Less::Iops => "IOPS",
        Less::Mibps => "MiB/s",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_steer_a_terminal() {
        assert_eq!(plain("vol-1 \u{e4}"), "vol-1 \u{e4}");
        assert_eq!(plain("a\u{1b}[2Jb\n\u{202e}c"), "a\\u{1b}[2Jb\\u{a}\\u{202e}c");
    }

    #[test]
    fn differences_are_of_what_is_shown() {
        assert_eq!(usd_more(8_000_000, 10_000_000), "-2.00");
        assert_eq!(usd_more(10_000_001, 8_000_001), "+2.00");
        assert_eq!(usd_more(5, 5), "+0.00");
        // 0.01 and 0.02 are shown.
        assert_eq!(usd_more(10_001, 10_000), "+0.01");
    }
}
