//! How long a client waits while `/metrics` is scraped: the longest of its requests during each
//! question to the data plane, the median of many questions, with 10,000 volumes that were used.
//!
//! `cargo bench -p evenkeel-engine --bench scrape`
#![allow(clippy::unwrap_used)]

#[path = "../tests/support/mod.rs"]
mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use evenkeel_engine::IoMode;
use evenkeel_os::clock::Clock;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{Command, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Answer, Nbd, Served, unlimited};

const VOLUMES: u128 = 10_000;
const QUESTIONS: usize = 40;

fn main() {
    let served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    for id in (0..VOLUMES).map(VolumeId::from_bits) {
        served.apply(unlimited(id, 1 << 20));
        let answer = served.connect(id).ask(Operation::Read, 0, 4_096, &[]);
        assert!(matches!(answer, Answer::Done(_)));
    }
    let clock = Clock::start();
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let mut client = served.connect(VolumeId::from_bits(1));
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || read(&mut client, clock, &stop))
    };
    let mut asked = Vec::new();
    for _ in 0..QUESTIONS {
        for (what, command) in [
            ("nothing", None),
            ("Report", Some(Command::Report)),
            ("Latencies", Some(Command::Latencies(None))),
        ] {
            let from = clock.now();
            match command.map(|command| served.call(command)) {
                None => std::thread::park_timeout(std::time::Duration::from_millis(20)),
                Some(Reply::Report(report)) => assert_eq!(report.volumes.len() as u128, VOLUMES),
                Some(Reply::Latencies(all)) => assert_eq!(all.len() as u128, VOLUMES),
                Some(other) => panic!("{other:?}"),
            }
            asked.push((what, from, clock.now()));
        }
    }
    stop.store(true, Ordering::Relaxed);
    let requests = reader.join().unwrap();
    for what in ["nothing", "Report", "Latencies"] {
        let questions = asked.iter().filter(|(asked, ..)| *asked == what);
        let (mut waits, mut spans): (Vec<u64>, Vec<u64>) = questions
            .map(|(_, from, to)| (longest(&requests, *from, *to), to.since(*from).ns / 1_000))
            .unzip();
        waits.sort_unstable();
        spans.sort_unstable();
        let median = QUESTIONS / 2;
        println!(
            "{what:<10} {:>6} us for the answer, {:>6} us for the longest request meanwhile",
            spans[median], waits[median]
        );
    }
}

/// Requests one after the other: when each was sent and answered.
fn read(client: &mut Nbd, clock: Clock, stop: &AtomicBool) -> Vec<(Instant, Instant)> {
    let mut requests = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let sent = clock.now();
        assert!(matches!(client.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(_)));
        requests.push((sent, clock.now()));
    }
    requests
}

/// The longest of those that were under way in a span, in microseconds.
fn longest(requests: &[(Instant, Instant)], from: Instant, to: Instant) -> u64 {
    let meanwhile = requests.iter().filter(|(sent, answered)| *sent <= to && *answered >= from);
    meanwhile.map(|(sent, answered)| answered.since(*sent).ns / 1_000).max().unwrap_or_default()
}
