//! `evenkeel bench reservation`: a device that is sold as far as it may be, and greedy neighbours.
//! Every volume that has reserved its IOPS is held to its promise in every second.

use super::served::{DEVICE, Served, io2};
use super::{begin, failed, print, seconds};
use crate::api::capacity::Capacity;
use crate::cli::BenchReservation;
use crate::message::Failure;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
use evenkeel_lab::bench::NbdUri;
use evenkeel_lab::checker::{Bands, Promise};
use evenkeel_lab::demo::{self, DemoVolume};
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

/// Volumes that share what may be sold, each driven with so many I/Os at once.
const RESERVED: u32 = 4;
const RESERVED_DEPTH: u32 = 32;
/// Their neighbours, each with three times that, by size of an I/O and share of reads.
const GREEDY: [(u32, u8); 3] = [(16 << 10, 100), (16 << 10, 0), (256 << 10, 100)];
const GREEDY_DEPTH: u32 = 3 * RESERVED_DEPTH;
/// A gp2 volume of this size has reserved its baseline of 102 IOPS and bursts to 3,000.
const GREEDY_GIB: u32 = 34;
const GREEDY_BASELINE: u64 = 102;

pub fn run(arguments: &BenchReservation) -> Result<(), Failure> {
    let folder = begin(&std::env::temp_dir(), "evenkeel-reservation-")?;
    let store = arguments.store.map_or_else(|| DEVICE.to_owned(), |store| store.to_string());
    eprintln!("calibrating {store}");
    let server = Served::start(&folder.path().join("data"), &store, &[])?;
    let seconds = seconds(arguments.time);
    let for_sale = for_sale(&server)?;
    let left = for_sale.saturating_sub(GREEDY_BASELINE * GREEDY.len() as u64);
    let iops = u32::try_from(left / u64::from(RESERVED)).unwrap_or(u32::MAX);
    let mut volumes = Vec::new();
    for number in 1..=RESERVED {
        let request = io2(iops);
        let pacing = Rules::newest().pacing(&Rules::newest().resolve(&request).map_err(failed)?);
        let workload = Workload {
            read_percent: 50,
            seed: number.into(),
            ..Workload::random_read(16 << 10, RESERVED_DEPTH, seconds)
        };
        volumes.push(driven(&server, &format!("reserved-{number}"), &request, pacing, workload)?);
    }
    for (number, (block_bytes, read_percent)) in (1..).zip(GREEDY) {
        let request = VolumeRequest {
            volume_type: VolumeType::Gp2,
            size_gib: GREEDY_GIB,
            iops: None,
            throughput_mibps: None,
            multi_attach: false,
        };
        let seed = u64::from(RESERVED) + number;
        let workload = Workload {
            read_percent,
            seed,
            ..Workload::random_read(block_bytes, GREEDY_DEPTH, seconds)
        };
        let name = format!("greedy-{number}-{}", text::bytes(block_bytes.into()).replace(' ', ""));
        // Nothing but its baseline was promised to it, and that is what nobody doubts.
        volumes.push(driven(&server, &name, &request, Pacing::UNLIMITED, workload)?);
    }
    let sold = Capacity::get(&server.client)?;
    for line in &sold.sold {
        eprintln!("sold: {} of {} {}", line.sold, line.for_sale, line.unit);
    }
    let title = format!("Reserved volumes beside greedy ones on {store}, sold as far as it may be");
    let report = demo::run(&title, &volumes, &Bands::PROMISE, folder.path(), &mut |volumes| {
        eprintln!("{}", demo::progress_line(volumes));
    })
    .map_err(failed)?;
    server.stop();
    print(&arguments.output, &report, |report| format!("{}\n", report.to_text().trim_end()))?;
    if report.pass { Ok(()) } else { Err(Failure::new("a reserved volume did not get its IOPS")) }
}

/// What may be sold, in I/Os of 16 KiB per second.
fn for_sale(server: &Served) -> Result<u64, Failure> {
    let capacity = Capacity::get(&server.client)?;
    let least = capacity.sold.iter().map(|sold| sold.for_sale).min();
    least.ok_or_else(|| {
        Failure::new("the server does not know what may be sold")
            .hint("a store in memory has no device to sell: name one with --store")
    })
}

fn driven(
    server: &Served,
    name: &str,
    request: &VolumeRequest,
    pacing: Pacing,
    workload: Workload,
) -> Result<DemoVolume, Failure> {
    let id = server.volume(request)?;
    Ok(DemoVolume {
        name: name.to_owned(),
        volume_type: request.volume_type.to_string(),
        size_gib: request.size_gib,
        promise: Promise::from_pacing(&pacing, Balances::default()),
        workload,
        uri: NbdUri::unix(&server.socket, &id),
    })
}
