//! Tests of questions and their answers.

use super::*;
use crate::price_sources::PriceSources;
use crate::prices::Discounts;
use crate::spread::Spread;
use crate::testing::minutes;
use crate::verdict::Verdict;

/// Returns the terms of the newest rules and lists, with these discounts.
fn terms(discounts: &[(VolumeType, u32)]) -> Terms {
    let discounts: Discounts = discounts.iter().copied().collect();
    let prices = PriceSources::new(vec![], None, discounts, None).unwrap();
    Terms::new(None, prices, Spread::STRIPED, &[]).unwrap()
}

/// Returns a workload of minutes with these numbers of requests of 4 KiB, which was recorded on a
/// volume in words.
fn workload(all: &[u64], source: Option<&str>) -> Workload {
    Workload {
        trace: minutes(all),
        is_served: false,
        spec: None,
        described: None,
        source: source.map(str::to_owned),
        assume: None,
        is_from_cloudwatch: false,
    }
}

/// Returns wishes for at most four layouts, with the headroom of a recorded workload left out.
fn wishes(capacity_gib: Option<u64>) -> Wishes {
    Wishes { capacity_gib, headroom_percent: Some(0), layouts_max: 4, ..Wishes::default() }
}

fn of_search(all: &[u64], source: Option<&str>, wishes: Wishes) -> Case {
    let space = terms(&[]).space("us-east-1", &[], 1).unwrap();
    Case::of_search(workload(all, source), space, wishes).unwrap()
}

fn of_layouts(all: &[u64], wishes: Wishes) -> Case {
    let space = terms(&[]).space("us-east-1", &[], 1).unwrap();
    Case::of_layouts(workload(all, None), space, wishes).unwrap()
}

/// 1,000 requests a second.
const STEADY: [u64; 60] = [60_000; 60];

#[test]
fn answer_replaces_a_volume_by_a_cheaper_one_and_names_what_it_saves() {
    let case = of_search(&STEADY, Some("gp3 100 GiB, 6000 IOPS"), wishes(None));
    let answer = case.answer().unwrap();
    let first = &answer.rated[0];
    assert_eq!(answer.wanted.capacity_gib, 100, "the size of the source");
    assert_eq!(first.found.layout.to_string(), "gp3 100 GiB, 3000 IOPS, 125 MiB/s");
    // 100 GiB for 0.08, and 3,000 IOPS above the included ones for 0.005.
    assert_eq!((case.source_monthly, first.found.total()), (Some(23_000_000), 8_000_000));
    let saving = "buy gp3 100 GiB, 3000 IOPS, 125 MiB/s, 8.00 USD a month: saves 15.00 USD a month";
    assert!(answer.text().contains(saving), "{}", answer.text());
    let json = answer.json();
    assert_eq!(json["layouts"][0]["saved_against_the_source"]["monthly_micros"], 15_000_000);
    assert_eq!(json["present"]["layout"], "gp3 100 GiB, 6000 IOPS, 125 MiB/s");
    assert_eq!(answer.csv().lines().count(), 1 + 1 + answer.rated.len(), "titles and the source");
}

#[test]
fn answer_costs_less_by_the_discount_of_its_type() {
    let space = terms(&[(VolumeType::Gp3, 2_500)]).space("us-east-1", &[], 1).unwrap();
    let discounted = Case::of_search(workload(&STEADY, None), space, wishes(Some(100))).unwrap();
    let answer = discounted.answer().unwrap();
    assert_eq!(answer.rated[0].found.total(), 6_000_000, "three quarters of 8.00");
    assert_eq!(answer.json()["discounts_percent"]["gp3"], 25.0);
}

#[test]
fn answer_needs_a_size_and_enough_days() {
    let case = of_search(&STEADY, None, wishes(None));
    assert!(case.is_without_size());
    let refusal = case.answer().err().unwrap();
    assert_eq!(refusal.cause, Cause::Question);
    assert!(refusal.hint.unwrap().contains("--capacity GIB"));
    let text = case.answer_without_size().unwrap().text();
    assert!(text.contains("0.08 for each GiB"), "{text}");
    let case = of_search(&STEADY, None, Wishes { days_min: 7, ..wishes(Some(100)) });
    let refusal = case.answer().err().unwrap();
    assert_eq!(refusal.cause, Cause::Undecided);
    assert!(refusal.hint.unwrap().starts_with("record at least 7 days"));
}

#[test]
fn answer_of_a_cost_that_no_layout_has_is_refused() {
    let case = of_search(&STEADY, None, Wishes { monthly_max: Some(1), ..wishes(Some(100)) });
    let refusal = case.answer().err().unwrap();
    assert_eq!(refusal.cause, Cause::NoAnswer);
    assert!(refusal.message.starts_with("no layout does this"), "{refusal}");
}

#[test]
fn check_agrees_with_the_answer_of_the_search() {
    let mut all = STEADY;
    all[30] = 600_000;
    let answered = of_search(&all, None, wishes(Some(100)));
    let case = of_layouts(&all, wishes(Some(100)));
    for rated in &answered.answer().unwrap().rated {
        let layout = rated.found.layout.to_string();
        assert!(case.check(&layout).unwrap().passes(), "{layout}");
    }
    let slow = case.check("gp3 100 GiB").unwrap();
    assert!(!slow.passes());
    assert!(slow.failure_words().contains("does not carry v: throttled a day"));
    let small = case.check("gp3 99 GiB, 16000 IOPS").unwrap();
    let failed = |verdict: &Verdict<'_>| {
        let failed = verdict.checks.iter().filter(|check| !check.pass);
        failed.map(|check| check.what).collect::<Vec<_>>()
    };
    assert_eq!(failed(&small), ["capacity"]);
}

#[test]
fn compare_takes_two_to_six_layouts_with_a_price() {
    let case = of_layouts(&STEADY, Wishes::default());
    let named = |count| vec!["gp3 100 GiB".to_owned(); count];
    for count in [1, 7] {
        assert_eq!(case.compare(&named(count)).err().unwrap().cause, Cause::Question);
    }
    let comparison = case.compare(&named(2)).unwrap();
    assert!(comparison.text().contains("B against A: +0.00 USD a month, +0.00 a year"));
    let refusal = case.compare(&["gp3 100".to_owned(), "gp9 100".to_owned()]).err().unwrap();
    assert!(refusal.message.starts_with("--layout \"gp9 100\": "), "{refusal}");
}

#[test]
fn region_of_a_zone_contradicts_another_that_is_named() {
    let mut workload = workload(&STEADY, None);
    assert_eq!(workload.region(None).unwrap(), "us-east-1");
    assert_eq!(workload.region(Some("eu-west-1")).unwrap(), "eu-west-1");
    let spec = layout("--source", "gp3 100 GiB", &terms(&[]).space("us-east-1", &[], 1).unwrap());
    workload.described = Some(Described {
        spec: spec.unwrap().each,
        boots: true,
        region: Some("us-west-2-lax-1".to_owned()),
        zone: None,
        file: "volumes.json".to_owned(),
    });
    // The endpoint of a Local Zone is that of its region.
    for named in [None, Some("us-west-2"), Some("us-west-2-lax-1")] {
        assert_eq!(workload.region(named).unwrap(), "us-west-2-lax-1");
    }
    let refusal = workload.region(Some("eu-west-1")).unwrap_err();
    assert_eq!(
        refusal.message,
        "v is in us-west-2-lax-1 by volumes.json, and --region says eu-west-1"
    );
}
