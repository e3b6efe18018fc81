//! The product beside the models: how the limits and shares that they are given are said to it.

use evenkeel_core::qos::pacing::{Balances, CountingRule, Limit, Pacing};
use evenkeel_core::time::Duration;

use super::device_bench::Device;
use super::limited::Rates;
use super::windowed::Share;
use crate::scenario::setup::{
    DeviceSetup, PollerSetup, ServiceTime, Setup, ShareSetup, VolumeSetup, WindowSetup,
};
use crate::world::product::{NotSimulated, Product};

/// What a volume may save where the models have no such number.
const TOLERANCE: Duration = Duration::from_ms(50);

/// Limits as those of a volume of an SSD type with this much time's worth of saved tokens.
pub(super) fn pacing(rates: &Rates, tolerance: Duration) -> Pacing {
    let limit = |per_second| Limit { per_second, credit: None };
    Pacing {
        counting: CountingRule::SSD,
        tolerance,
        operations: rates.operations.map(limit),
        bytes: rates.bytes.map(limit),
    }
}

/// Volumes with these limits, and no device that they share.
pub(super) fn limited(rates: &[Rates], tolerance: Duration) -> Product {
    // No request is put on this device: the bench has its own.
    let device = DeviceSetup::ideal(0);
    let volumes = rates.iter().map(|rates| volume(pacing(rates, tolerance), None)).collect();
    made(volumes, device)
}

/// Volumes without limits that share a device.
pub(super) fn on_device(device: &Device, window: WindowSetup, shares: &[Share]) -> Product {
    let cost =
        ServiceTime { base_ns: device.cost.request_ns, ns_per_kib: device.cost.byte_ns * 1_024 };
    let device = DeviceSetup {
        channels: Some(device.channels),
        read: cost,
        write: cost,
        window: Some(window),
        ..DeviceSetup::ideal(0)
    };
    let unlimited = pacing(&Rates::default(), TOLERANCE);
    let share = |share: &Share| ShareSetup {
        reservation_per_second: share.reservation,
        weight: Some(share.weight),
    };
    made(shares.iter().map(|given| volume(unlimited, Some(share(given)))).collect(), device)
}

fn volume(pacing: Pacing, share: Option<ShareSetup>) -> VolumeSetup {
    VolumeSetup {
        name: String::new(),
        kind: String::new(),
        size_bytes: u64::MAX,
        pacing,
        balances: Balances::default(),
        spec: None,
        instance: None,
        share,
    }
}

fn made(volumes: Vec<VolumeSetup>, device: DeviceSetup) -> Product {
    let setup = Setup {
        duration_ns: 0,
        sample_ns: 0,
        volumes,
        instances: Vec::new(),
        stripes: Vec::new(),
        clients: Vec::new(),
        device,
        poller: PollerSetup::default(),
        changes: Vec::new(),
    };
    match Product::new(&setup) {
        Ok(product) => product,
        // A table of this file's callers that the scheduler has no room for: a mistake of ours.
        Err(NotSimulated { what }) => unreachable!("{what}"),
    }
}
