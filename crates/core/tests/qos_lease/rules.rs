//! The rules of leases, one by one.

use evenkeel_core::qos::bucket::Depth;
use evenkeel_core::qos::lease::{
    Cap, Grant, HOLDERS_MAX, Holder, HolderIndex, Home, Report, Request, Timing, ToHome,
};
use evenkeel_core::time::{Duration, Instant};

use crate::world::{Net, World};

const MS: u64 = 1_000_000;
const FIRST: HolderIndex = HolderIndex(0);

/// 40,000 a second, saved for 5 ms: 200 tokens. The float of one holder alone is 10.
const CAP: Cap = Cap {
    rate_per_second: 40_000,
    depth: Depth::time(Duration::from_ms(5)),
    charge_max: 16,
    timing: Timing::CORES,
};

fn at(ns: u64) -> Instant {
    Instant::from_ns(1_000 * MS + ns)
}

fn one() -> (Home, Holder) {
    (Home::new(CAP, 2, at(0)), Holder::new(CAP, FIRST, 1, at(0)))
}

/// Carries what both have to say, at once.
fn exchange(home: &mut Home, holder: &mut Holder, now: Instant) {
    loop {
        let (up, down) = (holder.poll_output(), home.poll_output());
        if up.is_none() && down.is_none() {
            return;
        }
        up.into_iter().for_each(|message| home.handle(message, now));
        down.into_iter().for_each(|grant| holder.handle(&grant, now));
    }
}

/// A holder that has tokens on lease, after its first request of `cost`.
fn leased(cost: u64) -> (Home, Holder) {
    let (mut home, mut holder) = one();
    assert!(!holder.take(cost, at(0)));
    exchange(&mut home, &mut holder, at(0));
    assert!(holder.take(cost, at(0)));
    exchange(&mut home, &mut holder, at(0));
    (home, holder)
}

fn request(number: u64, want: u64) -> ToHome {
    let (sent_at, report) = (at(0), Report::default());
    ToHome::Request(Request {
        holder: FIRST,
        incarnation: 1,
        number,
        sent_at,
        want,
        again: false,
        alone: false,
        gives_back: false,
        report,
    })
}

#[test]
fn tokens_are_granted_at_once_and_the_next_are_asked_for_at_half() {
    let (mut home, mut holder) = leased(1);
    // Nothing was known of the float at first; the second lease has it.
    assert_eq!(holder.held(), 10);
    for left in (6..10).rev() {
        assert!(holder.take(1, at(1_000)));
        assert_eq!((holder.held(), holder.poll_output()), (left, None));
    }
    assert!(holder.take(1, at(1_000)));
    let Some(ToHome::Request(asked)) = holder.poll_output() else { panic!("nothing asked") };
    assert_eq!((asked.want, asked.report.left), (5, 5));
    home.handle(ToHome::Request(asked), at(1_000));
    assert_eq!(home.poll_output().unwrap().amount, 5);
    assert_eq!(home.outstanding(), 10);
}

#[test]
fn a_part_that_covers_the_request_is_enough() {
    let (mut home, mut holder) = leased(16);
    holder.poll(at(MS));
    exchange(&mut home, &mut holder, at(MS));
    assert!(!holder.take(16, at(2 * MS)));
    let Some(ToHome::Request(asked)) = holder.poll_output() else { panic!("nothing asked") };
    assert_eq!(asked.want, 26);
    home.handle(ToHome::Request(asked), at(2 * MS));
    let grant = home.poll_output().unwrap();
    holder.handle(&Grant { amount: 16, ..grant }, at(2 * MS));
    assert!(holder.take(16, at(2 * MS)));
}

#[test]
fn a_request_that_comes_twice_is_granted_once_and_a_grant_counts_once() {
    let (mut home, mut holder) = one();
    assert!(!holder.take(4, at(0)));
    let asked = holder.poll_output().unwrap();
    home.handle(asked, at(0));
    home.handle(asked, at(0));
    let grant = home.poll_output().unwrap();
    assert_eq!(home.poll_output(), None);
    holder.handle(&grant, at(0));
    holder.handle(&grant, at(0));
    assert_eq!((grant.amount, holder.held(), home.outstanding()), (4, 4, 4));
}

#[test]
fn a_lease_is_over_after_ten_milliseconds_and_counts_as_spent() {
    let (mut home, mut holder) = one();
    assert!(!holder.take(16, at(0)));
    home.handle(holder.poll_output().unwrap(), at(0));
    let grant = home.poll_output().unwrap();
    assert_eq!(grant.expiry, at(10 * MS));
    holder.handle(&grant, at(10 * MS - 1));
    assert_eq!(holder.held(), 16);
    assert!(!holder.take(16, at(10 * MS)));
    home.poll(at(10 * MS - 1));
    assert_eq!(home.outstanding(), 16);
    home.poll(at(10 * MS));
    assert_eq!(home.outstanding(), 0);
    // 200 saved, 16 gone: 184 and one grant into debt are left.
    let mut granted = 0;
    for number in 2.. {
        home.handle(request(number, 8), at(10 * MS));
        match home.poll_output() {
            Some(grant) => granted += grant.amount,
            None => break,
        }
        assert!(number < 100);
        home.handle(
            ToHome::Return(evenkeel_core::qos::lease::Return {
                holder: HolderIndex(1),
                incarnation: 1,
                number,
                report: Report::default(),
            }),
            at(10 * MS),
        );
        while home.poll_output().is_some() {}
        if granted >= 8 * 8 {
            break; // as many leases as one holder may have
        }
    }
    assert_eq!(granted, 64);
}

#[test]
fn what_is_unused_goes_back_after_a_millisecond_and_idle_is_silence() {
    let (mut home, mut holder) = leased(1);
    assert_eq!(home.outstanding(), 10);
    assert_eq!(holder.poll_timeout(), Some(at(MS)));
    holder.poll(at(MS));
    assert_eq!(holder.held(), 0);
    exchange(&mut home, &mut holder, at(MS));
    assert_eq!((home.outstanding(), home.active()), (0, 0));
    assert_eq!((holder.poll_timeout(), home.poll_timeout()), (None, None));
}

#[test]
fn a_grant_from_before_a_return_is_refused() {
    let (mut home, mut holder) = one();
    assert!(!holder.take(16, at(0)));
    home.handle(holder.poll_output().unwrap(), at(0));
    let late = home.poll_output().unwrap();
    holder.handle(&late, at(0));
    holder.abandon(at(0));
    holder.poll(at(MS));
    exchange(&mut home, &mut holder, at(MS));
    assert_eq!(home.outstanding(), 0);
    let newer = Grant { lease: 99, word: 99, ..late };
    holder.handle(&newer, at(MS));
    assert_eq!(holder.held(), 0);
    assert!(!holder.take(1, at(MS)));
    holder.handle(&newer, at(MS));
    assert_eq!(holder.held(), 0);
}

#[test]
fn a_return_that_comes_late_returns_nothing() {
    let (mut home, mut holder) = leased(1);
    holder.poll(at(MS));
    let returned = holder.poll_output().unwrap();
    home.handle(returned, at(11 * MS));
    assert_eq!(home.outstanding(), 0);
    home.handle(returned, at(11 * MS));
    assert_eq!(home.outstanding(), 0);
}

#[test]
fn another_life_s_grants_are_refused() {
    let (mut home, mut holder) = one();
    assert!(!holder.take(4, at(0)));
    home.handle(holder.poll_output().unwrap(), at(0));
    let grant = home.poll_output().unwrap();
    let mut reborn = Holder::new(CAP, FIRST, 2, at(1));
    assert!(!reborn.take(4, at(1)));
    reborn.handle(&grant, at(1));
    assert_eq!(reborn.held(), 0);
    exchange(&mut home, &mut reborn, at(2));
    assert_eq!(reborn.held(), 4);
    // The former life is over: nobody answers it.
    home.handle(request(9, 4), at(3));
    assert_eq!(home.poll_output(), None);
}

#[test]
fn a_closed_cap_grants_nothing_and_wakes_nobody() {
    let mut home = Home::new(Cap { rate_per_second: 0, ..CAP }, 1, at(0));
    home.handle(request(1, 4), at(0));
    home.poll(at(1_000_000 * MS));
    assert_eq!((home.poll_output(), home.poll_timeout()), (None, None));
}

#[test]
fn nonsense_is_bounded() {
    let mut home = Home::new(CAP, 1_000_000, at(0));
    for number in 1..10_000 {
        let ToHome::Request(asked) = request(number, u64::MAX) else { unreachable!() };
        let holder = HolderIndex(u16::try_from(number % 5_000).unwrap());
        let sent_at = Instant::from_ns(u64::MAX);
        let left = u64::MAX;
        let report = Report { acknowledged: number, open: number, left };
        let asked = Request { holder, sent_at, report, again: true, ..asked };
        home.handle(ToHome::Request(asked), at(number));
    }
    let mut said = 0;
    while let Some(grant) = home.poll_output() {
        assert!(grant.amount <= CAP.grant_max());
        said += 1;
    }
    assert!(said <= 2 * HOLDERS_MAX, "{said}");
    assert!(home.poll_timeout().is_some());
}

/// The answer to a request of `holder` that has acknowledged the home up to `acknowledged`.
fn ask(
    home: &mut Home,
    holder: u16,
    number: u64,
    acknowledged: u64,
    now: Instant,
) -> Option<Grant> {
    let ToHome::Request(asked) = request(number, 8) else { unreachable!() };
    // All that was leased before is spent.
    let report = Report { acknowledged, open: u64::MAX, left: 0 };
    let holder = HolderIndex(holder);
    home.handle(ToHome::Request(Request { holder, sent_at: now, report, ..asked }), now);
    home.poll_output()
}

#[test]
fn shares_never_add_up_to_more_than_the_cap_while_one_has_not_heard_of_its_smaller_one() {
    let mut home = Home::new(CAP, 2, at(0));
    assert_eq!(ask(&mut home, 0, 1, 0, at(0)).unwrap().share_per_second, 40_000);
    assert_eq!(ask(&mut home, 1, 1, 0, at(0)).unwrap().share_per_second, 0);
    let smaller = ask(&mut home, 0, 2, 0, at(0)).unwrap();
    assert_eq!(smaller.share_per_second, 20_000);
    assert_eq!(ask(&mut home, 1, 2, 0, at(0)).unwrap().share_per_second, 0);
    assert!(ask(&mut home, 0, 3, smaller.word, at(0)).is_some());
    assert_eq!(ask(&mut home, 1, 3, 0, at(0)).unwrap().share_per_second, 20_000);
}

#[test]
fn silence_counts_from_when_a_message_was_sent() {
    let mut home = Home::new(CAP, 2, at(0));
    let mut number = 0;
    let mut drain = |home: &mut Home, now| {
        let mut drained = 0;
        loop {
            number += 1;
            match ask(home, 1, number, 0, now) {
                Some(grant) => drained += grant.amount,
                None => return drained,
            }
        }
    };
    // The first has the whole cap as its share; its message takes 9 ms, and it says no more.
    home.handle(request(1, 8), at(9 * MS));
    assert_eq!(home.poll_output().unwrap().share_per_second, 40_000);
    assert!(drain(&mut home, at(10 * MS)) > 150);
    assert_eq!(drain(&mut home, at(19 * MS)), 0);
}

#[test]
fn clocks_that_differ_make_both_sides_wait() {
    let timing = Timing { clock_error: Duration::from_ms(1), ..Timing::CORES };
    let cap = Cap { timing, ..CAP };
    let mut home = Home::new(cap, 1, at(0));
    home.handle(request(1, 8), at(0));
    assert_eq!(home.poll_output().unwrap().expiry, at(10 * MS));
    home.poll(at(11 * MS - 1));
    assert_eq!(home.outstanding(), 8);
    home.poll(at(11 * MS));
    assert_eq!(home.outstanding(), 0);
    // Asks at 0, 1, ... 9 ms, is silent from 9 ms on, and alone from 9 + 10 + 1 ms on.
    let mut holder = Holder::new(cap, FIRST, 1, at(0));
    assert!(!holder.take(1, at(0)));
    let mut alone_at = 0;
    while !holder.is_alone() {
        let due = holder.poll_timeout().unwrap();
        alone_at = due.since(at(0)).ns;
        holder.poll(due);
        while holder.poll_output().is_some() {}
    }
    assert_eq!(alone_at, 20 * MS);
}

/// Tokens each of `world`'s holders spends in `ns`, always hungry.
fn spend_for(world: &mut World, ns: u64) -> Vec<u64> {
    let mut spent = vec![0; world.holders.len()];
    let ends_at = world.now + ns;
    for (index, spent) in spent.iter_mut().enumerate() {
        while world.runs(index) && world.take(index, 1) {
            *spent += 1;
        }
    }
    while let Some(due) = world.next_due().filter(|&due| due < ends_at) {
        world.now = due;
        for index in world.step() {
            while world.runs(index) && world.take(index, 1) {
                spent[index] += 1;
            }
        }
    }
    world.now = ends_at;
    spent
}

#[test]
fn who_loses_the_home_keeps_its_fair_share() {
    let mut world = World::new(CAP, 4, Net::CORES, 1);
    spend_for(&mut world, 100 * MS);
    world.home = None;
    // Leases, then nothing for the time in which the home must notice.
    let between: u64 = spend_for(&mut world, 25 * MS).iter().sum();
    assert!(between < 500, "{between}");
    let alone = spend_for(&mut world, 1_000 * MS);
    assert!(alone.iter().all(|&spent| (9_999..=10_001).contains(&spent)), "{alone:?}");
}

#[test]
fn a_home_that_was_away_is_found_again_and_the_pause_is_not_made_up_for() {
    let mut world = World::new(CAP, 4, Net::CORES, 2);
    spend_for(&mut world, 100 * MS);
    world.stall_home(200 * MS);
    let away: u64 = spend_for(&mut world, 200 * MS).iter().sum();
    assert!((6_500..=8_000).contains(&away), "{away}");
    spend_for(&mut world, 300 * MS);
    assert!(world.holders.iter().flatten().all(|holder| !holder.is_alone()));
    let back: u64 = spend_for(&mut world, 1_000 * MS).iter().sum();
    assert!((39_990..=40_010).contains(&back), "{back}");
}

#[test]
fn a_dead_holder_s_share_is_withheld_until_it_is_forgotten() {
    let mut world = World::new(CAP, 4, Net::CORES, 3);
    spend_for(&mut world, 100 * MS);
    world.holders[0] = None;
    spend_for(&mut world, 100 * MS);
    let withheld: u64 = spend_for(&mut world, 1_000 * MS).iter().sum();
    assert!((29_990..=30_010).contains(&withheld), "{withheld}");
    world.forget(0);
    spend_for(&mut world, 100 * MS);
    let all: u64 = spend_for(&mut world, 1_000 * MS).iter().sum();
    assert!((39_990..=40_010).contains(&all), "{all}");
}

#[test]
fn what_lies_unused_fills_at_most_half_of_a_shallow_bucket() {
    let cap = Cap { depth: Depth::tokens(4), ..CAP };
    let mut home = Home::new(cap, 1, at(0));
    let mut holder = Holder::new(cap, FIRST, 1, at(0));
    for _ in 0..10 {
        holder.take(1, at(0));
        exchange(&mut home, &mut holder, at(0));
        assert!(holder.held() <= 2 + 1, "{}", holder.held());
    }
}

#[test]
fn messages_stay_few() {
    let mut world = World::new(CAP, 1, Net::CORES, 4);
    spend_for(&mut world, 100 * MS);
    let before = world.delivered;
    let spent = spend_for(&mut world, 1_000 * MS)[0];
    // Half a float of ten for each request and its grant.
    let messages = world.delivered - before;
    assert!(messages * 2 < spent, "{messages} messages for {spent} tokens");
}
