//! How many events a second are judged: printed, not asserted.

use super::*;
use crate::clock;

/// `cargo test --release -p evenkeel-lab speed_of_the_checkers -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a check"]
fn speed_of_the_checkers() {
    for (volumes, depth) in [(1_u64, 32_usize), (100, 32)] {
        let one = VolumePromise { instance: Some(0), ..VolumePromise::iops(100_000 / volumes) };
        let operations = limit(200_000);
        let host = InstancePromise { operations, ..InstancePromise::UNLIMITED };
        let volumes = usize::try_from(volumes).unwrap();
        let system = System { instances: vec![host], ..system(&vec![one; volumes]) };
        let client = Client { depth, ..STEADY };
        let clients = vec![client; volumes];
        let events = serve(&system, &clients, 4 * S, 100_000, Fault::default());
        println!("{volumes} volumes at depth {depth}, {} events", events.len());
        let speed = |name: &str, rules: &[Rule]| {
            let mut checkers = Checkers::only(system.clone(), rules);
            let begin = clock::monotonic_ns();
            events.iter().for_each(|event| checkers.observe(event));
            let took_ns = clock::monotonic_ns() - begin;
            let report = checkers.finish();
            assert!(report.pass(), "{report}");
            let per_s = events.len() as u64 * 1_000 / (took_ns / 1_000_000).max(1);
            println!("  {name:24} {:>12} events/s", crate::text::thousands(per_s));
        };
        speed("none (the account alone)", &[]);
        for rule in Rule::ALL {
            speed(&rule.to_string(), &[rule]);
        }
        speed("all", &Rule::ALL);
    }
}
