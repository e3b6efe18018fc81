//! `evenkeel autopilot hold`, `pause`, `resume` and `release`.

use evenkeel_autopilot::Orders;
use evenkeel_autopilot::answers::words;
use evenkeel_autopilot::journal::Reader;
use evenkeel_autopilot::orders::{Held, Paused};
use evenkeel_cli::flags::span;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::volume::Date;
use evenkeel_wire::aws::timestamp;

const DAY_MS: u64 = 86_400_000;
/// The longest hold, in days.
const HOLD_DAYS_MAX: u64 = 366;

/// Makes no call and no change before a time.
pub fn hold(reader: &Reader, until: &str, reason: &str, now_ms: u64) -> Result<(), Failure> {
    let until_ms = end(until, now_ms)
        .map_err(|message| Failure::new(format!("hold {until:?}: {message}")).exit(Exit::Usage))?;
    let orders = reader.orders().map_err(Failure::new)?;
    let hold = Some(Held { until_ms, reason: reason.to_owned() });
    give(reader, &Orders { hold, ..orders })?;
    let until = words::time(until_ms);
    output::print(&format!("no call and no change before {until}: {reason}\n{}", when(reader)?))
}

/// Returns the end of a hold: a day, a time or a duration from now on.
fn end(text: &str, now_ms: u64) -> Result<u64, String> {
    let of_day = |date: Date| date.unix_day().map(|day| day * DAY_MS);
    let until_ms = match text.parse::<Date>() {
        Ok(date) if text.len() == 10 => of_day(date),
        _ => timestamp::parse_extended(text),
    };
    let until_ms = match until_ms {
        Some(until_ms) => until_ms,
        None => {
            let duration = span(text).map_err(|_| {
                "expected a day such as 2026-12-24, a time such as 2026-12-24T06:00:00Z, or a \
                 duration such as 36h"
            })?;
            now_ms.saturating_add(duration.as_secs() * 1_000)
        }
    };
    if until_ms <= now_ms {
        let now = words::time(now_ms);
        return Err(format!("it is over: the time is {now}; name a later one"));
    }
    if until_ms - now_ms > HOLD_DAYS_MAX * DAY_MS {
        return Err(format!(
            "it is more than {HOLD_DAYS_MAX} days from now; `evenkeel autopilot pause` has no end"
        ));
    }
    Ok(until_ms)
}

/// Makes no call and no change before `resume`.
pub fn pause(reader: &Reader, reason: &str, now_ms: u64) -> Result<(), Failure> {
    let orders = reader.orders().map_err(Failure::new)?;
    let pause = Some(Paused { since_ms: now_ms, reason: reason.to_owned() });
    give(reader, &Orders { pause, ..orders })?;
    output::print(&format!("no call and no change before `resume`: {reason}\n{}", when(reader)?))
}

/// Ends a pause.
pub fn resume(reader: &Reader) -> Result<(), Failure> {
    let orders = reader.orders().map_err(Failure::new)?;
    if orders.pause.is_none() {
        return output::print("there is no pause\n");
    }
    give(reader, &Orders { pause: None, ..orders })?;
    output::print(&format!("the pause is over\n{}", when(reader)?))
}

/// Ends a hold and the brake after failures. Orders that cannot be read are replaced.
pub fn release(reader: &Reader, now_ms: u64) -> Result<(), Failure> {
    let pause = reader.orders().ok().and_then(|orders| orders.pause);
    let is_paused = pause.is_some();
    give(reader, &Orders { hold: None, pause, released_ms: now_ms })?;
    let still =
        if is_paused { "; the pause stays: `evenkeel autopilot resume` ends it" } else { "" };
    output::print(&format!("holds are over, and failures are forgotten{still}\n{}", when(reader)?))
}

fn give(reader: &Reader, orders: &Orders) -> Result<(), Failure> {
    reader.order(orders).map_err(|message| {
        Failure::new(message).hint("run it as the user of the agent, with sudo for root")
    })
}

fn when(reader: &Reader) -> Result<&'static str, Failure> {
    Ok(if reader.is_running().map_err(Failure::new)? {
        "the agent reads it before its next decision\n"
    } else {
        "no agent runs; it applies when one starts\n"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_795_633_200_000;

    #[test]
    fn end_is_a_day_a_time_or_a_duration() {
        assert_eq!(end("2026-11-26", NOW_MS), Ok(1_795_651_200_000));
        assert_eq!(end("2026-11-25T20:00:00Z", NOW_MS), Ok(NOW_MS + 3_600_000));
        assert_eq!(end("36h", NOW_MS), Ok(NOW_MS + 36 * 3_600_000));
    }

    #[test]
    fn end_that_is_over_or_too_far_is_refused() {
        let over = end("2026-11-25", NOW_MS).unwrap_err();
        assert!(over.contains("it is over: the time is 2026-11-25T19:00:00"), "{over}");
        let far = end("2030-01-01", NOW_MS).unwrap_err();
        assert!(far.contains("more than 366 days"), "{far}");
        for text in ["", "soon", "5 weeks", "2026-13-01"] {
            assert!(end(text, NOW_MS).unwrap_err().contains("expected a day"), "{text}");
        }
    }
}
