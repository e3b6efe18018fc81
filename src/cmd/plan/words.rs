//! The words for costs, times, names and limits that all answers share.

use crate::message;
use evenkeel_planner::neighbours::Less;
pub use evenkeel_planner::risk::limit_words;
use evenkeel_planner::trace::Clock;

const MICRO_USD_PER_CENT: u64 = 10_000;

/// Millionths of a dollar as dollars and cents.
pub fn usd(micro: u64) -> String {
    let cents = micro.div_ceil(MICRO_USD_PER_CENT);
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// How much more something costs: `+2.50`, `-1.00`.
pub fn usd_more(micro: u64, than: u64) -> String {
    let sign = if micro < than { "-" } else { "+" };
    // Of what is shown, and not of what was rounded away.
    let cents = |micro: u64| micro.div_ceil(MICRO_USD_PER_CENT).saturating_mul(MICRO_USD_PER_CENT);
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

/// A span of microseconds; fractions of seconds are told below ten seconds only.
pub fn span_us(us: u64) -> String {
    match us / 1_000 {
        ms @ 0..10_000 => format!("{} s", seconds(ms)),
        ms => message::span(ms / 1_000),
    }
}

/// How many of a hundred lose data within a year.
pub fn lost((best, worst): (u64, u64)) -> String {
    let percent = |ppb: u64| format!("{}.{:03}", ppb / 10_000_000, ppb / 10_000 % 1_000);
    match best == worst {
        true => format!("{} %", percent(best)),
        false => format!("{}-{} %", percent(best), percent(worst)),
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
