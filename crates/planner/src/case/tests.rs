//! Tests of questions and their answers.

use super::*;
use crate::explanation::Excerpt;
use crate::price_book::PriceBook;
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

/// Returns the trace of [`STEADY`] in steps of an hour.
fn in_hours() -> Trace {
    let mut trace = minutes(&STEADY[..12]);
    for (at, interval) in (0..).zip(&mut trace.intervals) {
        (interval.start_ms, interval.length_ms) = (at * 3_600_000, 3_600_000);
        interval.reads *= 60;
        interval.read_bytes *= 60;
    }
    trace
}

/// Returns the trace of [`STEADY`] without 48 % of its minutes.
fn with_gaps() -> Trace {
    let mut trace = minutes(&STEADY[..50]);
    trace.intervals.retain(|interval| interval.start_ms / 60_000 % 25 < 13);
    trace.intervals.extend(minutes(&STEADY[..50]).intervals.last());
    trace
}

/// Returns the question about a trace.
fn of_trace(trace: Trace, source: Option<&str>) -> Case {
    let space = terms(&[]).space("us-east-1", &[], 2).unwrap();
    let workload = Workload { trace, ..workload(&[], source) };
    Case::of_search(workload, space, wishes(Some(100))).unwrap()
}

#[test]
fn what_does_not_show_that_less_suffices_lowers_nothing() {
    let hours = "its metrics are in steps of 3600 s, of at most 300 s";
    let gaps = "46 % of its metrics are gaps, of at most 20 %";
    for (trace, why) in [(in_hours(), hours), (with_gaps(), gaps)] {
        let source = "gp3 100 GiB, 6000 IOPS, 250 MiB/s";
        let case = of_trace(trace.clone(), Some(source));
        let answer = case.answer().unwrap();
        let text = answer.text();
        let keep = format!("keep {source}, because {why}, so no limit is lowered; risk: ");
        assert!(text.contains(&keep), "{text}");
        let next = "; next: record steps of 300 s or less with at most 20 % of gaps";
        assert!(text.contains(next) && text.ends_with("this is the present layout\n"), "{text}");
        for rated in &answer.rated {
            let each = rated.found.layout.each;
            assert!(each.iops >= Some(6_000) && rated.found.total() >= 28_000_000, "{each:?}");
        }
        let evidence = &answer.json()["evidence"];
        assert_eq!((&evidence["is_enough"], &evidence["why_not"]), (&false.into(), &why.into()));
        assert!(answer.html().unwrap().contains(why));
        // The fleet's words.
        let policy = crate::fleet::Policy { days_min: 0, ..crate::fleet::Policy::usual() };
        let mut volume = crate::fleet::testing::volume(VolumeType::Gp3, 100, Some(6_000), None);
        volume.spec.throughput_mibps = Some(250);
        let evidence = crate::fleet::Evidence::Trace(Box::new(trace));
        let judged = crate::fleet::judge(&policy, &volume, evidence);
        assert_eq!(judged.action, crate::fleet::Action::Keep);
        assert_eq!(judged.reasons, [format!("{why}: no limit is lowered")]);
    }
    let enough = of_trace(minutes(&STEADY), Some("gp3 100 GiB, 6000 IOPS"));
    assert_eq!(enough.not_shown, None);
    assert_eq!(enough.answer().unwrap().json()["evidence"]["is_enough"], true);
}

#[test]
fn a_volume_that_never_does_less_needs_no_evidence() {
    let case = of_trace(in_hours(), Some("gp2 100"));
    let answer = case.answer().unwrap();
    let text = answer.text();
    let gp3 = "buy gp3 100 GiB, 3000 IOPS, 128 MiB/s, 8.12 USD a month: saves 1.88 USD a month";
    assert!(text.contains(gp3), "{text}");
    let why = "because it never has less than the source; no limit is lowered, because its metrics";
    assert!(text.contains(why), "{text}");
}

#[test]
fn without_a_source_nothing_is_advised_by_what_does_not_show_enough() {
    let case = of_trace(in_hours(), None);
    let answer = case.answer().unwrap();
    let text = answer.text();
    let words =
        "no layout is advised, because its metrics are in steps of 3600 s, of at most 300 s";
    assert!(text.contains(words) && text.contains("LAYOUT"), "{text}");
    assert!(text.ends_with("no commands: no layout is advised\n"), "{text}");
    let json = answer.json();
    assert!(json["layouts"][0]["commands"].is_null(), "{json}");
    assert!(json["advice"].as_str().unwrap().starts_with(words), "{json}");
}

/// An m5.large sustains 3,600 IOPS.
#[test]
fn a_load_that_stands_at_the_limit_of_its_instance_lowers_nothing() {
    let text = |instance: &str, per_second: u64| {
        let prices = PriceSources::new(vec![], None, Discounts::default(), None).unwrap();
        let names = [instance.to_owned()];
        let terms = Terms::new(None, prices, Spread::STRIPED, &names).unwrap();
        let space = terms.space("us-east-1", &[], 1).unwrap();
        let workload = workload(&[per_second * 60; 60], Some("gp3 100 GiB, 6000 IOPS"));
        let case = Case::of_search(workload, space, wishes(None)).unwrap();
        case.answer().unwrap().text()
    };
    let kept = text("m5.large", 3_600);
    let keep = "keep gp3 100 GiB, 6000 IOPS, 125 MiB/s, because it stood at the 3600 IOPS that \
                m5.large sustains for 1 h, so the instance may have held requests back: \
                m5.xlarge is the smallest of its family that has more, so no limit is lowered";
    assert!(kept.contains(keep), "{kept}");
    assert!(kept.contains("next: record the workload on the larger instance"), "{kept}");
    for lowered in [text("m5.xlarge", 3_600), text("m5.large", 3_200)] {
        assert!(lowered.contains("buy gp3 100 GiB, 3"), "{lowered}");
    }
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

/// Returns the source as a list describes it.
fn described(source: &str, boots: bool) -> Described {
    let space = terms(&[]).space("us-east-1", &[], 1).unwrap();
    let spec = layout("--source", source, &space).unwrap().each;
    let file = "volumes.json".to_owned();
    Described { spec, boots, region: None, zone: None, file }
}

#[test]
fn a_source_for_several_hosts_is_replaced_by_one() {
    let source = "io1 500 GiB, 9000 IOPS, Multi-Attach";
    let case = of_search(&STEADY, Some(source), wishes(None));
    for rated in &case.answer().unwrap().rated {
        assert!(rated.found.layout.each.multi_attach, "{}", rated.found.layout);
    }
}

#[test]
fn a_source_that_costs_as_much_as_the_cheapest_is_kept() {
    let steady = [300_000; 60];
    let advice = |source: Option<&str>, book: Option<PriceBook>, types: &[VolumeType]| {
        let books = book.into_iter().collect();
        let prices = PriceSources::new(books, None, Discounts::default(), None).unwrap();
        let terms = Terms::new(None, prices, Spread::STRIPED, &[]).unwrap();
        let space = terms.space("us-east-1", types, 1).unwrap();
        let wishes = wishes(Some(500));
        let case = Case::of_search(workload(&steady, source), space, wishes).unwrap();
        let answer = case.answer().unwrap();
        let words = crate::answer::sentence::advice(&answer).unwrap();
        words.split_once(',').unwrap().0.to_owned()
    };
    let io = [VolumeType::Io1, VolumeType::Io2];
    let keep = "keep io2 500 GiB";
    assert_eq!(advice(Some("io2 500 GiB, 5000 IOPS"), None, &io), keep);
    assert_eq!(advice(Some("io1 500 GiB, 5000 IOPS"), None, &io), "keep io1 500 GiB");
    assert_eq!(advice(Some("io1 500 GiB, 6000 IOPS"), None, &io), "buy io2 500 GiB");
    assert_eq!(advice(None, None, &io), "buy io2 500 GiB", "the more durable one");
    // By this book, such a volume pays for its space.
    let text = include_str!("../../books/price_book.toml");
    let book = PriceBook::read(text, &mut |path| Err(path.to_owned())).unwrap();
    let fast = Some("gp3 500 GiB, 8000 IOPS");
    assert_eq!(advice(fast, Some(book), &[]), "keep gp3 500 GiB");
}

#[test]
fn check_fails_a_layout_that_cannot_take_the_place_of_the_source() {
    let check = |described, instance: &str, layout: &str| {
        let prices = PriceSources::new(vec![], None, Discounts::default(), None).unwrap();
        let names: Vec<String> = instance.split_whitespace().map(str::to_owned).collect();
        let terms = Terms::new(None, prices, Spread::STRIPED, &names).unwrap();
        let space = terms.space("us-east-1", &[], 1).unwrap();
        let workload = Workload { described, ..workload(&[60; 60], None) };
        let case = Case::of_layouts(workload, space, Wishes::default()).unwrap();
        let verdict = case.check(layout).unwrap();
        let words = verdict.failure_words();
        (verdict.passes(), words.split_once(": ").unwrap().1.to_owned())
    };
    let passes = (true, String::new());
    let fails = |words: &str| (false, words.to_owned());
    let many = "it has 27 volumes, and the instance takes 26";
    assert_eq!(check(None, "m5.24xlarge", "27 x gp3 150"), fails(many));
    assert_eq!(check(None, "m5.24xlarge", "26 x gp3 150"), passes);
    let root = described("gp3 150", true);
    assert_eq!(check(Some(root.clone()), "m5.24xlarge", "27 x gp3 150"), passes);
    let hdd = fails("its volumes boot no host, and the source boots one");
    assert_eq!(check(Some(root), "", "st1 150"), hdd);
    let shared = described("io1 150 GiB, 3000 IOPS, Multi-Attach", false);
    let one_host = fails(
        "its volumes are for one host only, and the source is for several: a layout for these \
         ends in `, Multi-Attach`",
    );
    assert_eq!(check(Some(shared.clone()), "", "gp3 150"), one_host);
    assert_eq!(check(Some(shared), "", "io2 150, 100 IOPS, Multi-Attach"), passes);
}

#[test]
fn compare_and_explain_name_a_layout_that_is_impossible() {
    let prices = PriceSources::new(vec![], None, Discounts::default(), None).unwrap();
    let names = ["m5.24xlarge".to_owned()];
    let terms = Terms::new(None, prices, Spread::STRIPED, &names).unwrap();
    let space = terms.space("us-east-1", &[], 1).unwrap();
    let case = Case::of_layouts(workload(&STEADY, None), space, Wishes::default()).unwrap();
    let layouts = ["26 x gp3 150", "27 x gp3 150"];
    let comparison = case.compare(&layouts.map(str::to_owned)).unwrap();
    let words = "B is impossible: it has 27 volumes, and the instance takes 26";
    assert_eq!(comparison.impossible_words(), [words]);
    assert!(comparison.text().contains(words), "{}", comparison.text());
    assert!(comparison.csv().contains("\npossible,yes,no\n"), "{}", comparison.csv());
    assert!(comparison.html().unwrap().contains(words));
    let reasons = &comparison.json()["impossible"];
    assert_eq!((&reasons[0], reasons[1].is_string()), (&serde_json::Value::Null, true));
    let excerpt = Excerpt { step_s: None, from: None, to: None, lines_max: 5 };
    let explained = |layout| case.explain(Some(layout), &excerpt).unwrap();
    let [can, cannot] = layouts.map(explained);
    assert_eq!((can.impossible_words(), can.text().contains("impossible")), (None, false));
    let why = "impossible: it has 27 volumes, and the instance takes 26\n";
    assert!(cannot.text().contains(why), "{}", cannot.text());
    assert!(cannot.json()["impossible"].is_string());
    // What the rules of the day do not allow is refused.
    for layout in ["gp3 100 GiB, 100000 IOPS", "gp3 10 GiB, 6000 IOPS", "io1 20000 GiB, 100 IOPS"] {
        let both = [layouts[0].to_owned(), layout.to_owned()];
        assert_eq!(case.compare(&both).err().unwrap().cause, Cause::Question, "{layout}");
        assert_eq!(case.explain(Some(layout), &excerpt).err().unwrap().cause, Cause::Question);
    }
}

/// An r4.16xlarge is not built on the Nitro System.
#[test]
fn no_volume_has_more_iops_than_an_instance_without_nitro_achieves() {
    let case = |instance: &str, stripes: u32| {
        let prices = PriceSources::new(vec![], None, Discounts::default(), None).unwrap();
        let terms = Terms::new(None, prices, Spread::STRIPED, &[instance.to_owned()]).unwrap();
        let space = terms.space("us-east-1", &[VolumeType::Io2], stripes).unwrap();
        let workload = workload(&[40_000 * 60; 60], None);
        Case::of_search(workload, space, wishes(Some(1_000))).unwrap()
    };
    let nitro = case("r5.24xlarge", 2);
    assert_eq!(nitro.answer().unwrap().rated[0].found.layout.volumes, 1);
    let xen = case("r4.16xlarge", 2);
    let answer = xen.answer().unwrap();
    for rated in &answer.rated {
        assert!(rated.found.layout.each.iops <= Some(32_000), "{}", rated.found.layout);
    }
    let note = "r4.16xlarge is not built on the Nitro System: IOPS are at most 32000 on a volume \
                of io2";
    assert_eq!(answer.notes, [note]);
    let refusal = case("r4.16xlarge", 1).answer().err().unwrap();
    assert!(refusal.message.contains(note), "{refusal}");
    let space = xen.space.clone();
    let named = Case::of_layouts(workload(&STEADY, None), space, Wishes::default()).unwrap();
    let check = |layout: &str| named.check(layout).unwrap().failure_words();
    let fails = "a volume has 40000 IOPS, and an instance that is not built on the Nitro System \
                 achieves at most 32000";
    assert!(check("io2 1000 GiB, 40000 IOPS").contains(fails));
    assert!(named.check("io2 1000 GiB, 32000 IOPS").unwrap().passes());
    let shared = check("io2 1000 GiB, 3000 IOPS, Multi-Attach");
    assert!(shared.contains("on the Nitro System takes none such"), "{shared}");
}

#[test]
fn an_instance_keeps_a_place_for_its_root_volume() {
    let notes = |boots| {
        let prices = PriceSources::new(vec![], None, Discounts::default(), None).unwrap();
        let names = ["m5.24xlarge".to_owned()];
        let terms = Terms::new(None, prices, Spread::STRIPED, &names).unwrap();
        let space = terms.space("us-east-1", &[VolumeType::Gp3], 40).unwrap();
        let wishes = Wishes { boots, layouts_max: 40, ..wishes(Some(4_000)) };
        let case = Case::of_search(workload(&STEADY, None), space, wishes).unwrap();
        let answer = case.answer().unwrap();
        let volumes = answer.rated.iter().map(|rated| rated.found.layout.volumes).max();
        (volumes.unwrap(), answer.notes)
    };
    let note = |words: &str| vec![format!("m5.24xlarge takes at most {words}")];
    assert_eq!(notes(false), (26, note("26 volumes beside its root volume")));
    assert_eq!(notes(true), (27, note("27 volumes")));
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
