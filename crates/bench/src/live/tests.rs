//! The conversion of a scenario to jobs of fio, without running it.

use super::recorder::LiveRecorder;
use super::requests::check;
use super::writer::Writer;
use super::*;
use crate::suite::{self, Choice};
use evenkeel_lab::fio::Completion;
use evenkeel_sim::scenario::catalogue;
use evenkeel_sim::scenario::setup::Load;
use evenkeel_sim::scenario::{self, Source};
use std::io::Write;

fn scenario(text: &str) -> Scenario {
    scenario::read(&Source::new("s.toml", text)).unwrap()
}

fn known(name: &str) -> Scenario {
    scenario(catalogue::find(name).unwrap())
}

#[test]
fn threads_are_dealt_out_over_a_stripe() {
    let stripe = known("piops-stripe");
    let parts = check(&stripe.cases[0]).unwrap();
    let depths: Vec<u32> = parts.iter().map(|part| part.workload.queue_depth).collect();
    assert_eq!(depths, [2, 2, 2, 2, 2, 2, 1, 1, 1, 1], "16 threads on ten volumes");
    assert!(parts.iter().all(|part| part.workload.span_mib == Some(256)));
    assert!(parts.iter().all(|part| part.workload.duration_s == 300 && part.client == 0));
}

#[test]
fn every_suite_can_be_driven_shortened_and_at_full_length() {
    for (name, _) in suite::SUITES {
        let suite = suite::find(name).unwrap();
        for is_full in [false, true] {
            let ready = suite.live_plan(is_full).read(name, &Choice::default()).unwrap();
            for case in &ready.scenario.cases {
                let driven = can_be_driven(case);
                assert!(driven.is_ok(), "{name}, full: {is_full}: {driven:?}");
            }
        }
    }
}

/// A server that does not answer.
struct Gone;

impl Host for Gone {
    fn open(&mut self, _: &Setup) -> Result<Vec<Export>, LabError> {
        Err(LabError::Unjudgeable("nobody answers".to_owned()))
    }

    fn limit(&mut self, _: &Setup) -> Result<(), LabError> {
        Ok(())
    }

    fn storage(&self) -> String {
        String::new()
    }

    fn counters(&mut self) -> Result<Vec<Counters>, LabError> {
        Ok(Vec::new())
    }
}

#[test]
fn failed_runs_are_reported_and_have_no_figures() {
    if fio::version().is_err() {
        let _ = writeln!(std::io::stdout(), "SKIPPED: fio is not installed");
        return;
    }
    let scenario = known("fio-40");
    let folder = tempfile::tempdir().unwrap();
    let live = run(&scenario, &mut Gone, Files::None, folder.path(), &mut |_, _| {}).unwrap();
    assert_eq!(live.failures.len(), FAILURES_MAX, "{:?}", live.failures);
    assert!(live.failures.iter().all(|told| told.ends_with("nobody answers")), "{live:?}");
    assert!(live.warnings.iter().any(|told| told.ends_with("the rest is not tried")), "{live:?}");
    assert_eq!(live.results.cases.len(), scenario.cases.len());
    assert!(!live.results.pass && live.results.cases.iter().all(|case| case.volumes.is_empty()));
}

#[test]
fn repetitions_are_interleaved() {
    let stripe = known("piops-stripe");
    let order = interleaved(&stripe.cases);
    assert_eq!(order.len(), stripe.cases.len());
    let labels: Vec<&str> = order.iter().map(|run| stripe.cases[*run].label.as_str()).collect();
    assert_eq!(labels[..2], ["m1.large seqwr (1)", "m1.large seqrd (1)"]);
    assert_eq!(labels.last(), Some(&"standard m2.4xlarge rndwr (9)"));
}

#[test]
fn undrivable_client_is_refused_before_any_run() {
    let even = "title = \"t\"\nduration_s = 9\n[[volume]]\nname = \"v\"\niops = 9\n[[client]]\n\
                on = \"v\"\niops = 3\narrivals = \"even\"\n";
    for (scenario, why) in [
        (scenario(even), "is neither of threads that wait for answers nor of random arrivals"),
        (known("modify-step"), "when requests go to the device is not seen"),
    ] {
        let refused = scenario.cases.iter().find_map(|case| check(case).err());
        let text = refused.expect("must be refused").to_string();
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn a_database_beside_a_batch_is_two_jobs_and_a_log_writer() {
    let setup = &known("batch-beside-oltp-short").cases[0].setup;
    let parts = check(&known("batch-beside-oltp-short").cases[0]).unwrap();
    let [oltp, batch] = &parts[..] else { panic!("{} parts", parts.len()) };
    assert_eq!((oltp.workload.rate_iops, oltp.workload.start_s), (Some(100), None));
    let batch = batch.workload;
    assert_eq!((batch.rate_iops, batch.queue_depth), (Some(1_600), 64), "64 threads of 40 ms");
    assert_eq!((batch.start_s, batch.duration_s, batch.end_s()), (Some(10), 40, 50));
    let writers: Vec<Writer> =
        (0..setup.clients.len()).filter_map(|number| Writer::of(number, setup)).collect();
    let [log] = writers[..] else { panic!("{writers:?}") };
    assert_eq!((log.client, log.length_ns()), (1, 52_000_000_000), "it ends with the run");
    assert_eq!(filled_to_the_brim(setup), *setup, "it earns until the batch begins");
    let burst = &known("fio-40").cases[0].setup;
    let credit = |setup: &Setup| setup.volumes[0].pacing.operations.unwrap().credit.unwrap();
    assert_eq!(credit(burst).capacity, 5_400_000);
    assert_eq!(credit(&filled_to_the_brim(burst)).capacity, 54_000);
}

#[test]
fn logs_in_any_order_make_one_record() {
    let setup = &known("fio-40").cases[0].setup;
    let span = Span { from_ns: 1_000_000_000, to_ns: 2_000_000_000 };
    let mut recorder = LiveRecorder::new(setup, vec![span]);
    let io = |time_ms, latency_ns| Completion { time_ms, latency_ns, bytes: 4_096 };
    for (time_ms, latency_ns) in [(39_999, 10), (1_500, 20), (0, 30), (1_999, 40), (40_000, 50)] {
        recorder.completed(io(time_ms, latency_ns));
    }
    let record = recorder.finish();
    let counts: Vec<u64> = record.samples.iter().map(|sample| sample.completed).collect();
    assert_eq!((counts.len(), counts[0], counts[1], counts[39]), (40, 1, 2, 1));
    assert_eq!(record.bytes, 4 * 4_096, "what is answered after the end counts nowhere");
    assert_eq!((record.spans[0].latency.count, record.spans[0].latency.max_ns), (2, 40));
    assert_eq!((record.latency.count, record.latencies.len()), (4, 40));
}

#[test]
fn programs_run_in_the_order_of_their_starts() {
    let suite = known("desktop-suite-short");
    let case = suite.cases.iter().find(|case| case.name == "S1").unwrap();
    let tests = programs::tests(&case.setup).unwrap();
    let order: Vec<&str> = tests.iter().map(programs::Test::name).collect();
    assert_eq!(order.len(), 10);
    assert_eq!(order[..3], ["IOzone write", "IOzone read", "FS-Mark"]);
    assert_eq!(order[8..], ["TIO read", "pgbench"]);
    assert_eq!(engines(&suite), [Engine::Postgres]);
    assert!(suite.cases.iter().all(|case| database_of(case).is_none()), "no case is of one");
    assert!(has_files(&suite) && length_s(case) > 10);
    let striped = "title = \"t\"\nduration_s = 9\n[[volume]]\nname = \"v\"\ncount = 2\n\
                   [[stripe]]\nname = \"s\"\nvolumes = \"v-*\"\nchunk_kib = 64\n[[client]]\n\
                   on = \"s\"\njob_ios = 1\njob_every_s = 9\nprogram = \"gzip\"\n\
                   program_calls = 1\n";
    let error = programs::tests(&scenario(striped).cases[0].setup).err().unwrap().to_string();
    assert!(error.contains("is a program, and not on one volume"), "{error}");
}

#[test]
fn a_standard_volume_makes_its_batches_beside_strangers() {
    let jobs = known("five-minute-job-short");
    let [provisioned, slow, standard] = &jobs.cases[..] else {
        panic!("{} cases", jobs.cases.len())
    };
    assert!(jobs::are_all(&provisioned.setup) && jobs::are_all(&standard.setup));
    assert!(
        !programs::are_any(&provisioned.setup) && !jobs::are_all(&known("fio-40").cases[0].setup)
    );
    let passes = |case: &Case| jobs::passes(&case.setup).map_err(|error| error.to_string());
    let names = ["serial write", "random rewrite", "serial read", "random reread"];
    let of_100 = [&names[..], &["random read and write"]].concat();
    let all = passes(provisioned).unwrap();
    assert_eq!(all[0], ("piops-100".to_owned(), of_100));
    assert_eq!(
        all[2],
        ("piops-2000".to_owned(), vec!["serial write", "serial read", "random reread"])
    );
    assert_eq!(passes(slow).unwrap().len(), 3, "two limits, and none");
    assert_eq!(passes(standard).unwrap(), [("standard".to_owned(), vec!["serial write"])]);
    // Batches of virtual time become requests at a rate.
    let full = known("five-minute-job");
    let parts = programs::parts_beside(&full.cases[1].setup).unwrap();
    assert_eq!(parts.len(), 1);
    assert_eq!((parts[0].workload.rate_iops, parts[0].workload.queue_depth), (Some(1), 3));
    let mut other = provisioned.clone();
    let reads = other.setup.clients.iter_mut().find(|client| client.name == "read-100").unwrap();
    let Load::Job { ios, .. } = &mut reads.load else { panic!("{reads:?}") };
    *ios += 1;
    let error = passes(&other).unwrap_err();
    let why = "the serial read on \"piops-100\" has job_ios = 257, where the file has 256 blocks: ";
    assert!(error.contains(why), "{error}");
}

#[test]
fn clients_of_files_are_recognised_and_refused_where_impossible() {
    let xfs = known("piops-stripe-xfs");
    let btrfs = known("fio-40");
    assert!(has_files(&xfs) && has_files(&btrfs) && !has_files(&known("piops-stripe")));
    let on_files = |scenario: &Scenario| {
        scenario.cases.iter().filter(|case| files::are_any(&case.setup)).count()
    };
    assert_eq!(on_files(&xfs), xfs.cases.len());
    assert_eq!(on_files(&btrfs), 5);
    // Without mounts the same cases are requests on ranges of volumes.
    assert_eq!(check(&xfs.cases[0]).unwrap().len(), 10);
    let one = "title = \"t\"\nduration_s = 9\n[[volume]]\nname = \"v\"\n[[client]]\non = \"v\"\n\
               threads = 2\nprogram = \"fio\"\nprogram_calls = 1\n";
    let error = files::refusal(&scenario(one).cases[0].setup);
    assert!(error.contains("works on files, and not on a stripe"), "{error}");
    let odd = "title = \"t\"\nduration_s = 9\n[[volume]]\nname = \"v\"\ncount = 2\n[[stripe]]\n\
               name = \"s\"\nvolumes = \"v-*\"\n[[client]]\non = \"s\"\nthreads = 2\n\
               block_kib = 4\n\
               program = \"sysbench\"\nprogram_calls = 1\n";
    let error = files::refusal(&scenario(odd).cases[0].setup);
    assert!(error.contains("is sysbench, and not one block of 16 KiB at a time"), "{error}");
}

#[test]
fn layout_of_files_has_no_limits_and_no_credits() {
    let burst = known("fio-40");
    let case = burst.cases.iter().find(|case| case.name == "gp2 5 x 100").unwrap();
    let free = without_limits(&filled_to_the_brim(&case.setup));
    assert_eq!((free.volumes.len(), free.instances.len()), (5, case.setup.instances.len()));
    for volume in &free.volumes {
        assert_eq!((volume.pacing, volume.balances), (Pacing::UNLIMITED, Balances::default()));
    }
    let behind = burst.cases.iter().find(|case| !case.setup.instances.is_empty()).unwrap();
    for instance in without_limits(&behind.setup).instances {
        assert_eq!([instance.iops_max, instance.bytes_per_second_max], [UNBOUND; 2]);
    }
}
