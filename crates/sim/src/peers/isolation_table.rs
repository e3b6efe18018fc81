//! Every scheduler beside a neighbour that wants the whole device: `evenkeel sim run isolation`.

use evenkeel_core::request::Operation;
use evenkeel_core::time::Duration;

use super::device_bench::{self, Client, Device, Got};
use super::mclock::MClock;
use super::orders::{Fifo, RoundRobin, VirtualTime};
use super::product;
use super::table::{Cell, Section, Table};
use super::windowed::{Share, Windowed};
use crate::scenario::setup::WindowSetup;
use crate::text;
use crate::world::policy::Policy;

const KIB: u32 = 1 << 10;
const WRITE: Operation = Operation::Write { fua: false };

/// A log: one write of 16 KiB at a time, 100 us apart.
const LOG: Client =
    Client { depth: 1, length: 16 * KIB, pause: Duration::from_us(100), operation: WRITE };
/// A batch: 256 writes of 256 KiB under way.
const BATCH: Client =
    Client { depth: 256, length: 256 * KIB, pause: Duration::ZERO, operation: WRITE };
/// A volume with a reservation that uses all it gets.
const BUYER: Client =
    Client { depth: 32, length: 16 * KIB, pause: Duration::ZERO, operation: WRITE };

/// Channels, and two more so that none waits for its next request.
const NARROW: u32 = Device::NVME.channels + 2;
const WIDE: u32 = 2 * Device::NVME.channels;
/// No window: as many requests as any client sends.
const DEEP: u32 = u32::MAX;

/// What the adaptive window aims at: half more than the log's 99th percentile alone.
const SMALL_P99: Duration = Duration::from_us(350);

const WARM_UP_S: u32 = 2;
const SECONDS: u32 = 10;

/// Volumes with a reservation; together 80 % of what the device does at 16 KiB.
const BUYERS: usize = 40;
const RESERVATION: u64 = 4_398;
const HOGS: usize = 10;
const HOG_WEIGHT: u32 = 8;

/// What a log writer gets beside a batch, as [`Got`] of each: volume 0 is the log, 1 the batch.
#[must_use]
pub fn neighbour(policy: &mut dyn Policy, seconds: u32, seed: u64) -> [Got; 2] {
    let mut got = device_bench::run(policy, &Device::NVME, &[LOG, BATCH], WARM_UP_S, seconds, seed);
    let batch = got.remove(1);
    [got.remove(0), batch]
}

/// What 40 volumes with a reservation of 4,398 I/Os a second get beside 10 of weight 8 without one
/// that send 256 KiB at depth 256: volumes 0 to 39, then the others.
#[must_use]
pub fn reservations(policy: &mut dyn Policy, seconds: u32, seed: u64) -> Vec<Got> {
    let clients = [vec![BUYER; BUYERS], vec![BATCH; HOGS]].concat();
    device_bench::run(policy, &Device::NVME, &clients, WARM_UP_S, seconds, seed)
}

/// The shares of [`reservations`], for policies that know them.
pub(super) fn shares() -> Vec<Share> {
    let buyer = Share { weight: 1, reservation: RESERVATION, limit: 0 };
    [vec![buyer; BUYERS], vec![Share::weight(HOG_WEIGHT); HOGS]].concat()
}

/// A scheduler of a table, for volumes with these shares.
pub(super) struct Scheme {
    pub(super) name: &'static str,
    pub(super) build: fn(&[Share]) -> Box<dyn Policy>,
}

fn fifo(shares: &[Share]) -> Box<dyn Policy> {
    Box::new(Windowed::new(Fifo::default(), shares.len() as u32, DEEP))
}

fn round_robin<const WINDOW: u32>(shares: &[Share]) -> Box<dyn Policy> {
    Box::new(Windowed::new(RoundRobin::default(), shares.len() as u32, WINDOW))
}

fn virtual_time<const WINDOW: u32, const PIECE: u32>(shares: &[Share]) -> Box<dyn Policy> {
    let order = VirtualTime::new(Device::NVME.cost, shares);
    Box::new(Windowed::new(order, shares.len() as u32, WINDOW).cut(PIECE))
}

fn mclock<const WINDOW: u32>(shares: &[Share]) -> Box<dyn Policy> {
    let order = MClock::new(Device::NVME.cost, BUYER.length, shares);
    Box::new(Windowed::new(order, shares.len() as u32, WINDOW))
}

fn mclock_beside<const WINDOW: u32>(shares: &[Share]) -> Box<dyn Policy> {
    let order = MClock::new(Device::NVME.cost, BUYER.length, shares).weights_beside_reservations();
    Box::new(Windowed::new(order, shares.len() as u32, WINDOW))
}

fn product<const SLOTS: u32>(shares: &[Share]) -> Box<dyn Policy> {
    Box::new(product::on_device(&Device::NVME, WindowSetup::Slots(SLOTS), shares))
}

fn product_adaptive(shares: &[Share]) -> Box<dyn Policy> {
    Box::new(product::on_device(&Device::NVME, WindowSetup::Adaptive(SMALL_P99.ns), shares))
}

pub(super) const NEIGHBOUR_SCHEMES: [Scheme; 8] = [
    Scheme { name: "first come, first served", build: fifo },
    Scheme { name: "round robin, 64 in flight", build: round_robin::<WIDE> },
    Scheme { name: "fair by cost, 64 in flight", build: virtual_time::<WIDE, { u32::MAX }> },
    Scheme { name: "fair by cost, 34 in flight", build: virtual_time::<NARROW, { u32::MAX }> },
    Scheme {
        name: "fair by cost, 34 in flight, 64 KiB pieces",
        build: virtual_time::<NARROW, { 64 * KIB }>,
    },
    Scheme { name: "mClock, 34 in flight", build: mclock::<NARROW> },
    Scheme { name: "evenkeel, 34 in flight", build: product::<NARROW> },
    Scheme { name: "evenkeel, adaptive window", build: product_adaptive },
];

pub(super) const RESERVATION_SCHEMES: [Scheme; 9] = [
    Scheme { name: "first come, first served", build: fifo },
    Scheme { name: "round robin, 34 in flight", build: round_robin::<NARROW> },
    Scheme { name: "virtual time, 34 in flight", build: virtual_time::<NARROW, { u32::MAX }> },
    Scheme { name: "virtual time, 64 in flight", build: virtual_time::<WIDE, { u32::MAX }> },
    Scheme { name: "mClock, 34 in flight", build: mclock::<NARROW> },
    Scheme { name: "mClock, 64 in flight", build: mclock::<WIDE> },
    Scheme { name: "reservations, then weights beside them, 34", build: mclock_beside::<NARROW> },
    Scheme { name: "evenkeel, 34 in flight", build: product::<NARROW> },
    Scheme { name: "evenkeel, adaptive window", build: product_adaptive },
];

/// Every scheduler, beside a batch and beside neighbours of weight.
#[must_use]
pub fn isolation(seed: u64) -> Table {
    Table { seed, sections: vec![neighbour_section(seed), reservation_section(seed)] }
}

fn neighbour_section(seed: u64) -> Section {
    let columns = ["scheduler", "log IOPS", "p50", "p99", "p99.9", "batch"];
    let row = |name: &str, log: &Got, batch: Option<&Got>| {
        vec![
            Cell::text(name),
            Cell::figure(log.per_second, text::thousands(log.per_second.round() as u64)),
            latency(log.latency.p50_ns),
            latency(log.latency.p99_ns),
            latency(log.latency.p999_ns),
            batch.map_or_else(Cell::none, |batch| {
                let gigabytes = batch.bytes_per_second / 1_000_000_000.0;
                Cell::figure(batch.bytes_per_second, format!("{gigabytes:.2} GB/s"))
            }),
        ]
    };
    let mut alone = Windowed::new(Fifo::default(), 1, DEEP);
    let alone = device_bench::run(&mut alone, &Device::NVME, &[LOG], WARM_UP_S, SECONDS, seed);
    let mut rows = vec![row("alone", &alone[0], None)];
    let equal = [Share::weight(1); 2];
    rows.extend(NEIGHBOUR_SCHEMES.iter().map(|scheme| {
        let [log, batch] = neighbour((scheme.build)(&equal).as_mut(), SECONDS, seed);
        row(scheme.name, &log, Some(&batch))
    }));
    Section {
        title: "A log of 16 KiB at depth 1 beside a batch of 256 KiB at depth 256".to_string(),
        columns: columns.map(String::from).to_vec(),
        rows,
    }
}

fn reservation_section(seed: u64) -> Section {
    let columns = ["scheduler", "worst volume-second", "against 4,398", "mean"];
    let row = |scheme: &Scheme| {
        let got = reservations((scheme.build)(&shares()).as_mut(), SECONDS, seed);
        let buyers = &got[..BUYERS];
        let worst = buyers.iter().map(|got| got.worst_second).min().unwrap_or(0);
        let mean = buyers.iter().map(|got| got.per_second).sum::<f64>() / BUYERS as f64;
        let ratio = worst as f64 / RESERVATION as f64 - 1.0;
        vec![
            Cell::text(scheme.name),
            Cell::figure(worst as f64, text::thousands(worst)),
            Cell::figure(ratio, format!("{:+.1} %", ratio * 100.0)),
            Cell::figure(mean, text::thousands(mean.round() as u64)),
        ]
    };
    Section {
        title: "40 volumes with 4,398 IOPS of 16 KiB reserved beside 10 of weight 8 that send \
                256 KiB at depth 256"
            .to_string(),
        columns: columns.map(String::from).to_vec(),
        rows: RESERVATION_SCHEMES.iter().map(row).collect(),
    }
}

fn latency(ns: u64) -> Cell {
    Cell::figure(ns as f64, text::latency(ns))
}
