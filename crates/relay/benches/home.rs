//! Measures the cost of the front for a client at its volume's home: relayed over a socket pair,
//! and lent to the data plane, in turn. The volume is in memory, so other costs are small.
//!
//! `cargo bench -p evenkeel-relay --bench home`
//!
//! The processor time includes that of the client, which is the same in both cases.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a measurement may panic, and measures

#[path = "../tests/front/cluster.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod cluster;
#[path = "../../engine/tests/support/mod.rs"]
mod support;

use cluster::Cluster;
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::IoMode;
use evenkeel_wire::nbd::transmission::{RequestHeader, reply};
use std::io::{Read, Write};
use std::time::Instant;
use support::Nbd;

/// Bytes of a read, number under way, and number in total.
const LOADS: [(u32, usize, usize); 3] =
    [(4_096, 32, 100_000), (4_096, 1, 20_000), (262_144, 8, 8_000)];
/// Runs of each kind, in turn.
const ROUNDS: usize = 5;

/// Processor time of this process, in seconds.
fn processor_seconds() -> f64 {
    // SAFETY: all zeroes is a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage
    };
    let of = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Returns microseconds of processor time per I/O, and I/Os per second.
fn run(client: &mut Nbd, (length, depth, total): (u32, usize, usize)) -> [f64; 2] {
    let request = Request { operation: Operation::Read, offset: 0, length };
    let head = RequestHeader::new(1, &request, false).encode();
    let reply_bytes = reply::SIMPLE_BYTES + length as usize;
    let begin = Instant::now();
    let processor = processor_seconds();
    client.stream.write_all(&head.repeat(depth)).unwrap();
    let mut sent = depth;
    let mut received = 0;
    let mut done = 0;
    let mut buffer = vec![0; 1 << 20];
    while done < total {
        received += client.stream.read(&mut buffer).unwrap();
        let more = (received / reply_bytes - done).min(total - sent);
        done = received / reply_bytes;
        client.stream.write_all(&head.repeat(more)).unwrap();
        sent += more;
    }
    let ios = total as f64;
    let seconds = begin.elapsed().as_secs_f64();
    [(processor_seconds() - processor) * 1e6 / ios, ios / seconds]
}

fn main() {
    let out = |line: String| std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    out(format!("{:<28} {:>12} {:>12} {:>10}", "", "relayed", "lent", "ratio"));
    for load in LOADS {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (lends, runs) in [false, true].into_iter().zip(&mut runs) {
                let cluster = if lends {
                    Cluster::on(IoMode::Auto, 1, "")
                } else {
                    Cluster::relayed(1, |config| config)
                };
                runs.push(run(&mut cluster.connect(0, false), load));
            }
        }
        for (at, name) in ["us an I/O", "I/Os a second"].into_iter().enumerate() {
            let median = |runs: &[[f64; 2]]| {
                let mut of: Vec<f64> = runs.iter().map(|run| run[at]).collect();
                of.sort_by(f64::total_cmp);
                of[of.len() / 2]
            };
            let relayed = median(&runs[0]);
            let lent = median(&runs[1]);
            let name = format!("{} KiB x {}, {name}", load.0 >> 10, load.1);
            out(format!("{name:<28} {relayed:>12.1} {lent:>12.1} {:>10.2}", lent / relayed));
        }
    }
}
