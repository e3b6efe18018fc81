//! Proofs of invented measurements: how they are judged, recognized and printed.

use super::*;
use crate::checker::Dimension;
use crate::nbd_uri::NbdUri;
use crate::stalls::{Stall, Stalls};
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
use evenkeel_sim::figures::series::Series;
use evenkeel_sim::workload::Workload;

/// Returns the promise of a gp2 volume of 100 GiB: 300 IOPS, and 3,000 while 5.4 million credits
/// last.
fn gp2() -> Promise {
    let request = VolumeRequest {
        volume_type: VolumeType::Gp2,
        size_gib: 100,
        iops: None,
        throughput_mibps: None,
        multi_attach: false,
    };
    let spec = Rules::newest().resolve(&request).unwrap();
    Promise::from_pacing(&Rules::newest().pacing(&spec), Balances::default())
}

/// Returns a series of seconds with these numbers of I/Os, spread evenly.
fn series(seconds: &[u32]) -> Series {
    let mut series = Series::new(seconds.len() as u32);
    for (second, count) in seconds.iter().enumerate() {
        for number in 0..*count {
            series.record(second as u64 * 1_000 + u64::from(number) * 1_000 / u64::from(*count));
        }
    }
    series
}

fn step(name: &'static str, read_percent: u8, seconds: u32) -> Step {
    let workload = Workload { read_percent, ..Workload::random_read(16 << 10, 32, seconds) };
    Step { name, workload }
}

fn measured(promise: Promise, step: Step, seconds: &[u32]) -> Measured {
    let series = series(seconds);
    let measurement = Measurement {
        name: step.name.to_owned(),
        workload: step.workload,
        latency: LatencySummary { mean_ns: 10_000_000, ..LatencySummary::default() },
        latency_per_second: vec![LatencySummary::default(); seconds.len()],
        ios_total: series.total(),
        runtime_ms: seconds.len() as u64 * 1_000,
        started_unix_ms: Some(0),
        error: None,
        gone_after_ms: None,
        series,
    };
    let observed = Observed::default();
    let held_up = None;
    let guarantees = None;
    Measured { step, measurement, observed, promise, held_up, guarantees }
}

fn proof(promise: Promise, all: Vec<Measured>) -> Proof {
    proof_within(Bands::PROMISE, promise, all)
}

fn proof_within(bands: Bands, promise: Promise, all: Vec<Measured>) -> Proof {
    let uri = NbdUri::parse("nbd://127.0.0.1:10809/x").unwrap();
    let subject = Subject {
        name: "<the \"disk\">".to_owned(),
        target: uri.into(),
        volume_type: "gp2".to_owned(),
        size_gib: 100,
        promise,
    };
    let prover = Prover {
        bands,
        load_before_hundredths: None,
        subject: &subject,
        folder: Path::new("/"),
        insight: &mut Outside,
        commands: vec!["fio".to_owned()],
        warnings: Vec::new(),
        version: "fio-3".to_owned(),
    };
    prover.proof(all, LatencySummary::default(), Vec::new())
}

fn kinds(proof: &Proof) -> Vec<CautionKind> {
    proof.cautions.iter().map(|caution| caution.kind).collect()
}

/// Judged from outside, a gp2 volume may show its burst, its baseline, or the end of a burst. Each
/// is a kept promise, and a burst alone gets a caution.
#[test]
fn a_burst_is_recognized_from_outside() {
    let load = step("reads", 100, 12);
    let seen = |seconds: &[u32]| {
        let promise = steps::assumed(&gp2(), &load.workload, &series(seconds), 0.0);
        proof(gp2(), vec![measured(promise, load, seconds)])
    };
    let burst = seen(&[3_000; 12]);
    assert_eq!(burst.outcome, Outcome::Kept, "{}", burst.to_text());
    assert_eq!(kinds(&burst), [CautionKind::MeasuredBurst]);
    assert!(burst.cautions[0].text.contains("they last 2,000 s"), "{}", burst.cautions[0].text);
    let baseline = seen(&[300; 12]);
    assert_eq!((baseline.outcome, kinds(&baseline)), (Outcome::Kept, vec![]));
    // 2,700 credits a second for five seconds and a half.
    let ends = seen(&[3_000, 3_000, 3_000, 3_000, 3_000, 1_650, 300, 300, 300, 300, 300, 300]);
    assert_eq!((ends.outcome, kinds(&ends)), (Outcome::Kept, vec![]), "{}", ends.to_text());
    let half = seen(&[1_500; 12]);
    assert_eq!(half.outcome, Outcome::Broken);
    assert!(half.reasons[0].contains("the subject gave no more"), "{:?}", half.reasons);
}

#[test]
fn cause_of_a_broken_promise_is_named() {
    let promise = Promise::iops(1_000);
    let load = step("reads", 100, 10);
    let fast = proof(promise, vec![measured(promise, load, &[2_000; 10])]);
    assert_eq!(fast.outcome, Outcome::Broken);
    assert!(fast.reasons[0].contains("nothing holds it to its limit"), "{:?}", fast.reasons);
    let little = measured(promise, load, &[1_025; 10]);
    let more = proof(promise, vec![little]);
    assert_eq!(more.outcome, Outcome::Broken);
    assert!(more.reasons[0].contains("--over PERCENT allows for it"), "{:?}", more.reasons);
    let few = vec![measured(promise, load, &[1_025; 10])];
    let allowed = proof_within(Bands::PROMISE.with_over(37_000), promise, few);
    assert!(allowed.promise.ends_with(", and up to 3.7 % more"), "{}", allowed.promise);
    assert!(!allowed.reasons.iter().any(|why| why.contains("--over")), "{:?}", allowed.reasons);
    let mut slow = measured(promise, load, &[600; 10]);
    slow.held_up = Some(HeldUp { own_s: 0.0, instance_s: 0.1, device_s: 0.2 });
    let why =
        cautions::reason(&slow, &judge(&slow, &Bands::PROMISE).unwrap(), &Bands::PROMISE).unwrap();
    let any = "neighbours took what was promised to it, the device gives less than was sold, or \
               the client had no processor";
    assert!(why.contains("no limit held it up") && why.ends_with(any), "{why}");
    slow.guarantees = Some(false);
    let verdict = judge(&slow, &Bands::PROMISE).unwrap();
    let why = cautions::reason(&slow, &verdict, &Bands::PROMISE).unwrap();
    assert!(why.contains("its server guarantees nothing against neighbours"), "{why}");
    slow.held_up = Some(HeldUp { own_s: 0.0, instance_s: 1.0, device_s: 9.0 });
    let slow = proof(promise, vec![slow]);
    assert!(
        slow.reasons[0].contains("waited for the device for 9.0 of 10 s"),
        "{:?}",
        slow.reasons
    );
}

#[test]
fn a_write_cache_is_recognized_and_a_burst_is_none() {
    let promise = Promise::iops(3_000);
    let writes = step("writes", 0, 12);
    let fills = [3_000, 3_000, 3_000, 3_000, 2_000, 900, 900, 900, 900, 900, 900, 900];
    let cached = proof(promise, vec![measured(promise, writes, &fills)]);
    assert_eq!(kinds(&cached), [CautionKind::WriteCache]);
    let reads = proof(promise, vec![measured(promise, step("reads", 100, 12), &fills)]);
    assert_eq!(kinds(&reads), []);
}

/// A machine that stood still for a tenth of the time proves nothing.
#[test]
fn a_machine_that_stands_still_leaves_it_undecided() {
    let promise = Promise::iops(1_000);
    let load = step("reads", 100, 10);
    let mut seconds = [1_000; 10];
    seconds[2] = 0;
    let mut stopped = measured(promise, load, &seconds);
    let pause = Stall { start_us: 2_000_000, length_us: 1_000_000 };
    stopped.observed.stalls = Stalls::merged(vec![pause]);
    let compiler = Some("others used 42 %".to_owned());
    let busy = cautions::busy(&[], compiler, &[]).unwrap();
    assert!(busy.text.starts_with("the host was busy: others used 42 %; "), "{}", busy.text);
    assert_eq!(cautions::busy(&[], None, &[]), None);
    let busy = cautions::busy(&[], None, std::slice::from_ref(&stopped)).unwrap();
    assert_eq!(busy.kind, CautionKind::HostBusy);
    assert!(busy.text.contains("1000 ms of 10 s"), "{}", busy.text);
    let undecided = proof(promise, vec![stopped]);
    assert_eq!(undecided.outcome, Outcome::Undecided);
    assert!(undecided.to_text().ends_with("The promise: undecided\n"));
    assert!(undecided.to_text().contains("undecided: reads: mean: expected"));
    let junit = undecided.to_junit();
    assert!(junit.contains("skipped=\"1\"") && junit.contains("<skipped message="), "{junit}");
    // Without measurements no promise is kept.
    assert_eq!(proof(promise, vec![]).outcome, Outcome::Undecided);
}

/// Steal that no thread shows makes the verdict undecided, and the proof says so.
#[test]
fn a_host_that_takes_processors_leaves_it_undecided() {
    let promise = Promise::iops(1_000);
    let mut seconds = [1_000; 10];
    (2..6).for_each(|second| seconds[second] = 950);
    let mut short = measured(promise, step("reads", 100, 10), &seconds);
    let taken = |second: u64| Stall { start_us: second * 1_000_000, length_us: 60_000 };
    short.observed.steal = Stalls::merged((2..6).map(taken).collect());
    let busy = cautions::busy(&[], None, std::slice::from_ref(&short)).unwrap();
    assert!(busy.text.contains("stood still for 240 ms of 10 s"), "{}", busy.text);
    let undecided = proof(promise, vec![short]);
    assert_eq!(undecided.outcome, Outcome::Undecided, "{}", undecided.to_text());
    assert!(undecided.to_text().contains("host took 240 ms more"), "{}", undecided.to_text());
    let alone = measured(promise, step("reads", 100, 10), &seconds);
    assert_eq!(proof(promise, vec![alone]).outcome, Outcome::Broken);
}

/// The seconds before the server's end are judged, there is no reason about speed, and the outcome
/// has a name of its own.
#[test]
fn proof_of_an_ended_server_has_the_outcome_server_gone() {
    let promise = Promise::iops(1_000);
    let load = step("reads", 100, 10);
    let gone = |seconds: &[u32]| {
        let mut measured = measured(promise, load, seconds);
        measured.measurement.gone_after_ms = Some(6_400);
        measured.measurement.error =
            Some("the server closed the connection after 6.4 s".to_owned());
        proof(promise, vec![measured])
    };
    let kept_until_then = gone(&[1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 400, 0, 0, 0]);
    assert_eq!(kept_until_then.outcome, Outcome::ServerGone, "{}", kept_until_then.to_text());
    let text = kept_until_then.to_text();
    assert!(text.contains("the server closed the connection after 6.4 s"), "{text}");
    assert!(
        text.contains(" server gone") && text.ends_with("The promise: server gone\n"),
        "{text}"
    );
    assert!(kept_until_then.reasons.is_empty(), "{:?}", kept_until_then.reasons);
    assert_eq!(kept_until_then.report.volumes[0].gone_after_s, Some(6.4));
    let too_slow = gone(&[1_000, 1_000, 700, 700, 700, 700, 400, 0, 0, 0]);
    assert_eq!(too_slow.outcome, Outcome::Broken, "{}", too_slow.to_text());
    // Too few seconds for a verdict.
    let at_once = measured(promise, load, &[1_000, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut at_once = at_once;
    at_once.measurement.gone_after_ms = Some(1_300);
    at_once.measurement.error = Some("gone".to_owned());
    assert_eq!(proof(promise, vec![at_once]).outcome, Outcome::ServerGone);
}

#[test]
fn reads_that_are_slower_the_first_time_are_cold() {
    let promise = Promise::iops(1_000);
    let mut first = measured(promise, step("first reads", 100, 3), &[10; 3]).measurement;
    let mut again = first.clone();
    (first.latency.p50_ns, again.latency.p50_ns) = (900_000, 300_000);
    first.latency_per_second.clear();
    again.latency_per_second.clear();
    let [cold] = &cautions::cold(&first, &again)[..] else { panic!("not seen") };
    assert!(cold.text.contains("900 us to read the first time and 300 us"), "{}", cold.text);
    assert_eq!(cautions::cold(&again, &first), []);
    // Blocks beyond those of the first reads are cold as well, and are read later.
    let begins = LatencySummary { count: 600, p50_ns: 300_000, ..LatencySummary::default() };
    again.latency_per_second = vec![begins];
    again.latency.p50_ns = 900_000;
    assert_eq!(cautions::cold(&first, &again).len(), 1);
}

/// The queue is deep enough for the rate. Writes are made only if data may be overwritten, and
/// large requests only if bytes are limited.
#[test]
fn the_loads_fit_the_promise() {
    let plan = Plan { seconds: 30, writes: false, seed: 7, over_ppm: 0 };
    let names = |promise: &Promise, plan: &Plan| {
        steps::loads(promise, plan, 100_000).iter().map(|step| step.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&Promise::iops(1_000), &plan), ["reads"]);
    let mut gp3 = Promise::iops(3_000);
    gp3.bytes = Some(crate::checker::Rate { per_second: 125 << 20, credit: None });
    assert_eq!(names(&gp3, &plan), ["reads", "large-reads"]);
    let writes = Plan { writes: true, ..plan };
    let all = ["reads", "large-reads", "writes", "half-writes", "large-writes"];
    assert_eq!(names(&gp3, &writes), all);
    let large = &steps::loads(&gp3, &plan, 100_000)[1].workload;
    assert_eq!((large.block_bytes, gp3.binds(large)), (256 << 10, Some(Dimension::Bytes)));
    assert_eq!(large.queue_depth, 8);
    // 16,000 a second of 10 ms each need 160 at once.
    assert_eq!(
        steps::loads(&Promise::iops(16_000), &plan, 10_000_000)[0].workload.queue_depth,
        256
    );
    assert_eq!(steps::loads(&Promise::iops(16_000), &plan, 4_000_000)[0].workload.queue_depth, 128);
    assert_eq!(steps::loads(&Promise::iops(100), &plan, 0)[0].workload.queue_depth, 32);
}

#[test]
fn every_form_holds_the_same() {
    let promise = Promise::iops(1_000);
    let load = step("reads", 100, 10);
    let mut seconds = [1_000; 10];
    seconds[4] = 700;
    let broken = proof(promise, vec![measured(promise, load, &seconds)]);
    assert_eq!(broken.outcome, Outcome::Broken);
    let read = Proof::from_json(&broken.to_json().unwrap()).unwrap();
    assert_eq!(read.to_text(), broken.to_text());
    let other = broken.to_json().unwrap().replace("proof/2", "proof/1");
    assert!(Proof::from_json(&other).unwrap_err().to_string().contains("proof/1"));
    let junit = broken.to_junit();
    for needle in [
        "name=\"first second\"><system-out>expected 990 to 1,051 I/Os, measured 1,000",
        "name=\"every second\"><failure message=\"expected 990 to 1,010",
        "<property name=\"call\" value=\"fio\"/>",
        "<property name=\"outcome\" value=\"broken\"/>",
        "<property name=\"reads: mean IOPS, with 95 % confidence\" value=\"",
    ] {
        assert!(junit.contains(needle), "{needle}: {junit}");
    }
    let csv = broken.to_csv();
    assert_eq!(csv.lines().count(), 11);
    assert_eq!(csv.lines().nth(5), Some("reads,4,700,0,0,0"));
    let junit = broken.to_junit();
    assert!(junit.contains("testsuite name=\"&lt;the &quot;disk&quot;&gt; held to"), "{junit}");
    let failures = broken.report.volumes[0].verdict.checks.iter().filter(|c| !c.pass).count();
    assert!(failures > 0 && junit.contains(&format!("failures=\"{failures}\"")), "{junit}");
    assert_eq!(junit.matches("<failure ").count(), failures);
    let text = broken.to_text();
    assert!(text.contains("reads: mean 966.7 IOPS, with 95 % confidence "), "{text}");
    assert!(broken.to_html().unwrap().contains("</html>"));
}

/// The server's dispatches are not recorded. The proof says in each of its forms which ceilings are
/// judged instead.
#[test]
fn a_proof_says_by_which_record_ceilings_are_judged() {
    let promise = Promise::iops(1_000);
    let proof = proof(promise, vec![measured(promise, step("reads", 100, 10), &[1_000; 10])]);
    let said = "Ceilings are judged by the client's log";
    assert!(proof.to_text().contains(said), "{}", proof.to_text());
    assert!(proof.to_text().contains("6 ms more than its tolerance"), "{}", proof.to_text());
    assert!(proof.to_json().unwrap().contains(said));
    assert!(proof.to_html().unwrap().contains("Ceilings are judged by the client"));
    // This does not put a kept promise in doubt.
    assert!(proof.report.warnings.is_empty(), "{:?}", proof.report.warnings);
}
