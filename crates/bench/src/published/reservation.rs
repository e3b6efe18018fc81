//! `evenkeel-bench reservation`: a fully sold device, and greedy neighbours. Every volume with
//! reserved IOPS is held to its promise in every second.

use super::{Bench, Outcome, driven};
use crate::server_process::{Served, io2, of_size};
use evenkeel_client::capacity::Capacity;
use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::Pacing;
use evenkeel_core::volume::{Rules, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::checker::Bands;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

/// Volumes that share the device's sellable capacity, and the requests under way of each.
const RESERVED: u32 = 4;
const RESERVED_DEPTH: u32 = 32;
/// Their neighbours, by size of an I/O and share of reads; each has three times as many requests
/// under way.
const GREEDY: [(u32, u8); 3] = [(16 << 10, 100), (16 << 10, 0), (256 << 10, 100)];
const GREEDY_DEPTH: u32 = 3 * RESERVED_DEPTH;
/// Size of a gp2 volume that has reserved its baseline of 102 IOPS and bursts to 3,000.
const GREEDY_GIB: u32 = 34;
const GREEDY_BASELINE: u64 = 102;

/// Sells all of a store's device, and drives all volumes.
///
/// # Errors
/// If the server does not start, the store has no device to sell, or fio cannot be run.
pub fn measure(mut bench: Bench<'_>, store: &str) -> Result<Outcome, LabError> {
    bench.report(&format!("calibrating {store}"));
    let server = bench.serve("data", store, &[])?;
    let left = for_sale(&server)?.saturating_sub(GREEDY_BASELINE * GREEDY.len() as u64);
    let iops = saturating::<_, u32>(left / u64::from(RESERVED));
    let mut volumes = Vec::new();
    for number in 1..=RESERVED {
        let request = io2(iops);
        let rules = Rules::newest();
        let pacing = rules.pacing(&rules.resolve(&request).map_err(LabError::failed)?);
        let workload = Workload {
            read_percent: 50,
            seed: number.into(),
            ..Workload::random_read(16 << 10, RESERVED_DEPTH, bench.seconds)
        };
        let name = format!("reserved-{number}");
        let export = server.volume(&request)?;
        volumes.push(driven(&name, &request, &export, &pacing, workload));
    }
    for (number, (block_bytes, read_percent)) in (1..).zip(GREEDY) {
        let request = of_size(VolumeType::Gp2, GREEDY_GIB);
        let workload = Workload {
            read_percent,
            seed: u64::from(RESERVED) + number,
            ..Workload::random_read(block_bytes, GREEDY_DEPTH, bench.seconds)
        };
        let name = format!("greedy-{number}-{}", text::bytes(block_bytes.into()).replace(' ', ""));
        // Only its baseline is promised, and not checked here.
        let export = server.volume(&request)?;
        volumes.push(driven(&name, &request, &export, &Pacing::UNLIMITED, workload));
    }
    for line in Capacity::get(&server.api)?.sold {
        bench.report(&format!("sold: {} of {} {}", line.sold, line.for_sale, line.unit));
    }
    let title = format!("Reserved volumes beside greedy ones on {store}, sold as far as it may be");
    let report = bench.judge(&title, &volumes, &Bands::PROMISE)?;
    server.stop();
    Outcome::of_report(&report, "a reserved volume did not get its IOPS")
}

/// Returns the sellable capacity, in I/Os of 16 KiB per second.
fn for_sale(server: &Served) -> Result<u64, LabError> {
    let least = Capacity::get(&server.api)?.sold.iter().map(|sold| sold.for_sale).min();
    least.ok_or_else(|| LabError::Failed {
        what: "the server does not know what may be sold".to_owned(),
        hint: Some("a store in memory has no device to sell: name one with --store"),
    })
}
