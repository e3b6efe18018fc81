//! The words for costs, times, names and limits that all answers share.

use super::input::Case;
use evenkeel_core::price::{self, MICROS_PER_CENT};
use evenkeel_core::units::MIB;
use evenkeel_planner::answer::Asked;
use evenkeel_planner::layout::{Layout, LimitKind};
use evenkeel_planner::layout_text;
use evenkeel_planner::neighbours::Less;
use evenkeel_planner::prices::Prices;
pub use evenkeel_planner::risk::{limit_words, loss_words};
use evenkeel_planner::trace::Clock;

/// Millionths of a currency as units and hundredths: dollars and cents.
pub fn money(micro: u64) -> String {
    price::decimal(micro.div_ceil(MICROS_PER_CENT))
}

/// How much more something costs: `+2.50`, `-1.00`.
pub fn money_more(micro: u64, than: u64) -> String {
    let sign = if micro < than { "-" } else { "+" };
    // Of what is shown, and not of what was rounded away.
    let cents = |micro: u64| micro.div_ceil(MICROS_PER_CENT).saturating_mul(MICROS_PER_CENT);
    format!("{sign}{}", money(cents(micro).abs_diff(cents(than))))
}

/// What a layout costs less or more than the source, if that is known.
pub fn saving_words(case: &Case, monthly: u64) -> Option<String> {
    let source = case.source.as_ref()?;
    let Some(before) = case.source_monthly else {
        return Some(format!("the source, {source}, has no price: what is saved is not known"));
    };
    let permille = saved_permille(before, monthly).map_or_else(String::new, |permille| {
        let permille = permille.unsigned_abs();
        format!(" ({}.{} %)", permille / 10, permille % 10)
    });
    let (sum, currency) = (money_more(monthly, before), currency(case));
    let sum = sum.trim_start_matches(['+', '-']);
    Some(match monthly.cmp(&before) {
        std::cmp::Ordering::Less => {
            format!("saves {sum} {currency} a month{permille} against the source, {source}")
        }
        std::cmp::Ordering::Equal => format!("costs as much as the source, {source}"),
        std::cmp::Ordering::Greater => {
            format!("costs {sum} {currency} a month{permille} more than the source, {source}")
        }
    })
}

/// How much of what the source costs is saved, in thousandths; `None` if it costs nothing.
pub fn saved_permille(before: u64, monthly: u64) -> Option<i64> {
    let saved = (i128::from(before) - i128::from(monthly)) * 1_000;
    i64::try_from(saved.checked_div(before.into())?).ok()
}

/// The name of the currency that costs are in.
pub fn currency(case: &Case) -> String {
    plain(case.space.prices.currency())
}

/// Which prices apply.
pub fn prices_words(case: &Case) -> String {
    match &case.space.prices {
        Prices::List(prices) => {
            let list = prices.list();
            let less = if prices.discounts().is_empty() { "" } else { ", less the discounts" };
            format!("of {}, {}{less}", list.date(), list.region())
        }
        Prices::Book(_) => format!("of the price book, in {}", currency(case)),
    }
}

/// A layout, with its instance if several were asked for.
pub fn layout_words(case: &Case, layout: &Layout) -> String {
    match layout.instance.filter(|_| case.space.instances.len() > 1) {
        Some(instance) => format!("{layout} on {}", instance.name),
        None => layout.to_string(),
    }
}

/// Whether a limit is the instance's.
pub const fn is_of_instance(kind: LimitKind) -> bool {
    matches!(kind, LimitKind::InstanceIops | LimitKind::InstanceBytes)
}

/// Milliseconds as seconds.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}", ms / 1_000, ms % 1_000 / 100),
        _ => (ms / 1_000).to_string(),
    }
}

/// Waiting of a day in seconds. Where the limits of the source held requests back, more were wanted
/// than were recorded, and wait beside these.
pub fn waiting(case: &Case, ms: u64) -> String {
    match case.demand.held_back {
        Some(_) => format!(">= {}", seconds(ms)),
        None => seconds(ms),
    }
}

/// The longest waiting in words: unknown where limits of the source held requests back.
pub fn waiting_at_most(case: &Case, ms: u64) -> String {
    match case.demand.held_back {
        Some(_) => "not known".to_owned(),
        None => seconds(ms),
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
    let length = layout_text::span(length_ms.div_ceil(1_000));
    format!("{length} from {} on are not known", at(clock, start_ms))
}

/// A span of microseconds; fractions of seconds are told below ten seconds only.
pub fn span_us(us: u64) -> String {
    match us / 1_000 {
        ms @ 0..10_000 => format!("{} s", seconds(ms)),
        ms => layout_text::span(ms / 1_000),
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
        assert_eq!(money_more(8_000_000, 10_000_000), "-2.00");
        assert_eq!(money_more(10_000_001, 8_000_001), "+2.00");
        assert_eq!(money_more(5, 5), "+0.00");
        // 0.01 and 0.02 are shown.
        assert_eq!(money_more(10_001, 10_000), "+0.01");
    }
}
