//! The words for costs, times, names and limits that all answers share.

use crate::advice;
use crate::answer::{Asked, Rated};
use crate::case::Case;
use crate::layout::{Layout, LimitKind};
use crate::neighbours::Less;
use crate::prices::{ListPrices, Prices};
pub use crate::risk::{limit_words, loss_words};
use crate::search::Tolerance;
use crate::trace::Clock;
pub use evenkeel_core::price::rounded as money;
use evenkeel_core::price::{self, PriceList};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeType;

/// Returns an amount in millionths with all its digits, and cents at least.
pub fn money_exact(micro: u64) -> String {
    let part = format!("{:06}", micro % 1_000_000);
    let part = part.trim_end_matches('0');
    format!("{}.{part:0<2}", micro / 1_000_000)
}

/// Returns the difference of two amounts as they are shown: `+2.50`, `-1.00`.
pub fn money_more(micro: u64, than: u64) -> String {
    let cents = price::half_up(micro);
    let than = price::half_up(than);
    let sign = if cents < than { "-" } else { "+" };
    format!("{sign}{}", price::decimal(cents.abs_diff(than)))
}

/// Returns how much less or more than the source a layout costs, if the source is known.
pub fn saving_words(case: &Case, monthly: u64) -> Option<String> {
    let source = case.source.as_ref()?;
    let Some(before) = case.source_monthly else {
        let lacks = case.space.prices.unpriced(&source.each);
        let lacks = lacks.map_or_else(String::new, |lacks| format!(" of {lacks}"));
        return Some(format!(
            "what is saved against the source, {source}, is not known: no price{lacks} is known"
        ));
    };
    let permille = saved_permille(before, monthly).map_or_else(String::new, |permille| {
        let permille = permille.unsigned_abs();
        format!(" ({}.{} %)", permille / 10, permille % 10)
    });
    let currency = currency(case);
    let sum = money_more(monthly, before);
    let sum = sum.trim_start_matches(['+', '-']);
    Some(match price::half_up(monthly).cmp(&price::half_up(before)) {
        std::cmp::Ordering::Less => {
            format!("saves {sum} {currency} a month{permille} against the source, {source}")
        }
        std::cmp::Ordering::Equal => format!("costs as much as the source, {source}"),
        std::cmp::Ordering::Greater => {
            format!("costs {sum} {currency} a month{permille} more than the source, {source}")
        }
    })
}

/// Returns the saved share of the source's cost, in thousandths; `None` if it costs nothing.
pub fn saved_permille(before: u64, monthly: u64) -> Option<i64> {
    let saved = (i128::from(before) - i128::from(monthly)) * 1_000;
    i64::try_from(saved.checked_div(before.into())?).ok()
}

/// Returns the name of the currency of all costs.
pub fn currency(case: &Case) -> String {
    plain(case.space.prices.currency())
}

/// Returns the words for the headroom, if there is some.
pub fn headroom_words(case: &Case) -> Option<String> {
    let percent = case.headroom_percent;
    (percent > 0).then(|| format!("layouts carry {percent} % more than that"))
}

/// Returns the line about the cheapest layout of HDD types: its cost, and the share of requests
/// for which such disks are slow.
pub fn hdd_words(case: &Case, rated: &Rated, than: u64) -> String {
    let permille = advice::small_permille(&case.trace);
    format!(
        "if latency does not matter: {}, for {} {} a month, {} less; {}.{} % of the requests are \
         smaller than 128 KiB, and a disk moves its head for each that is not sequential",
        rated.found.layout,
        money(rated.found.total()),
        currency(case),
        money_more(than, rated.found.total()).trim_start_matches('+'),
        permille / 10,
        permille % 10,
    )
}

/// Returns the lines of an answer that name its prices and limits.
pub fn basis_lines(case: &Case) -> String {
    format!("prices {}\nlimits {}\n", prices_words(case), limits_words(case))
}

/// Returns whose limits apply, and the bursts above them that are counted on.
pub fn limits_words(case: &Case) -> String {
    match case.space.tolerance {
        Tolerance::None => "of EBS as documented: no burst above them is counted on".to_owned(),
        Tolerance::Evenkeel => {
            let ms = case.space.tolerance_ms();
            format!("of volumes of Evenkeel: bursts of {ms} ms above them do not wait")
        }
    }
}

/// Returns which prices apply.
pub fn prices_words(case: &Case) -> String {
    match &case.space.prices {
        Prices::List(prices) => format!("of {}", list_words(prices)),
        Prices::Book(_) => format!("of the price book, in {}", currency(case)),
    }
}

/// Returns the day, the region and the discounts of a price list, such as
/// `2025-10-14, us-east-1, less 12.5 % of gp3`.
pub fn list_words(prices: &ListPrices) -> String {
    let list = prices.list();
    let discount = |(volume_type, hundredths): (&VolumeType, &u32)| {
        let percent = price::decimal((*hundredths).into());
        let percent = percent.trim_end_matches('0').trim_end_matches('.');
        format!("{percent} % of {volume_type}")
    };
    let discounts: Vec<String> = prices.discounts().iter().map(discount).collect();
    let less = match discounts.as_slice() {
        [] => String::new(),
        all => format!(", less {}", all.join(" and ")),
    };
    format!("{}, {}{less}", list.date(), list.region())
}

/// Returns the words for a price that a list lacks.
pub fn no_price(list: &PriceList, lacks: &str) -> String {
    format!("no price of {lacks} in {} is known for {}", list.region(), list.date())
}

/// Returns a layout in words, with its instance if several are candidates.
pub fn layout_words(case: &Case, layout: &Layout) -> String {
    match layout.instance.filter(|_| case.space.instances.len() > 1) {
        Some(instance) => format!("{layout} on {}", instance.name),
        None => layout.to_string(),
    }
}

/// Returns whether a limit is the instance's.
pub const fn is_of_instance(kind: LimitKind) -> bool {
    matches!(kind, LimitKind::InstanceIops | LimitKind::InstanceBytes)
}

/// Returns milliseconds as seconds.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}", ms / 1_000, ms % 1_000 / 100),
        _ => (ms / 1_000).to_string(),
    }
}

/// Returns the waiting of a day in seconds: a lower bound if the source's limits held requests
/// back, because more were wanted than were recorded.
pub fn waiting(case: &Case, ms: u64) -> String {
    match case.demand.held_back {
        Some(_) => format!(">= {}", seconds(ms)),
        None => seconds(ms),
    }
}

/// Returns the longest waiting: unknown if the source's limits held requests back.
pub fn waiting_at_most(case: &Case, ms: u64) -> String {
    match case.demand.held_back {
        Some(_) => "not known".to_owned(),
        None => seconds(ms),
    }
}

/// Returns a name from a file with its control characters escaped, so that it cannot steer a
/// terminal.
pub fn plain(name: &str) -> String {
    let shown = |c: char| if is_unseen(c) { c.escape_unicode().to_string() } else { c.to_string() };
    name.chars().map(shown).collect()
}

/// Returns whether a character steers a terminal, or changes the direction of the text around it.
fn is_unseen(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// Returns a time of a trace in words.
pub fn at(clock: Clock, ms: u64) -> String {
    match clock {
        Clock::Unix => evenkeel_wire::aws::timestamp::extended(ms),
        Clock::Elapsed => {
            let seconds = ms / 1_000;
            format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
        }
    }
}

/// Returns the rates of a trace at most and on average.
pub fn asked_words(asked: &Asked) -> String {
    format!(
        "asked for: at most {} requests and {} MiB a second, on average {} and {}",
        asked.peak_iops,
        asked.peak_bytes_per_second.div_ceil(MIB),
        asked.mean_iops,
        asked.mean_bytes_per_second.div_ceil(MIB),
    )
}

/// Returns a gap of a trace in words.
pub fn gap_words(clock: Clock, start_ms: u64, length_ms: u64) -> String {
    let length = evenkeel_sim::text::span(length_ms.div_ceil(1_000));
    format!("{length} from {} on are not known", at(clock, start_ms))
}

/// Returns a span of time in words, with fractions of seconds below ten seconds.
pub fn span_us(us: u64) -> String {
    match us / 1_000 {
        ms @ 0..10_000 => format!("{} s", seconds(ms)),
        ms => evenkeel_sim::text::span(ms / 1_000),
    }
}

/// Returns the unit that a neighbour has one less of.
pub const fn less_words(less: Less) -> &'static str {
    match less {
        Less::Volumes => "volume",
        Less::Gib => "GiB",
        Less::Iops => "IOPS",
        Less::Mibps => "MiB/s",
    }
}

/// Names that a list shows.
const NAMES_SHOWN: usize = 4;

/// Returns the first names of a list, and the number of the others.
#[must_use]
pub fn listed(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(NAMES_SHOWN).map(String::as_str).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
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
    fn amounts_are_exact_with_cents_at_least() {
        let all = [0, 5_000, 8_000_000, 1_234_567, 10_000_010].map(money_exact);
        assert_eq!(all, ["0.00", "0.005", "8.00", "1.234567", "10.00001"]);
    }

    #[test]
    fn differences_are_of_what_is_shown() {
        assert_eq!(money_more(8_000_000, 10_000_000), "-2.00");
        assert_eq!(money_more(10_000_001, 8_000_001), "+2.00");
        // 0.01 and 0.01 are shown, and 0.01 and 0.02.
        assert_eq!([money_more(14_999, 5_000), money_more(5_000, 14_999)], ["+0.00"; 2]);
        assert_eq!(money_more(15_000, 14_999), "+0.01");
    }
}
