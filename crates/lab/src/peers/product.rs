//! The product's own scheduler behind the [`Policy`] of the models.

use evenkeel_core::qos::pacing::{Balances, CountingRule, Limit, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler, Ticket, VolumeIndex};
use evenkeel_core::qos::sharing::{Claim, DeviceModel, OperationCost, Window};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

use super::device_bench::Device;
use super::limited::Rates;
use super::windowed::Share;
use crate::sim::policy::{Dispatch, Policy, Request};

/// The scheduler with volumes numbered from 0.
#[derive(Debug)]
pub(super) struct Product {
    scheduler: Scheduler,
    volumes: Vec<VolumeIndex>,
    /// What the requests do and of which volume they are, by handle.
    notes: Vec<(u32, Operation)>,
    /// Keys of the dispatches in the device, by the ticket that the caller has of them.
    tickets: Vec<Ticket>,
    vacant: Vec<usize>,
}

/// How the product is told of limits: as of a volume of an SSD type with this much time's worth of
/// saved tokens.
pub(super) fn pacing(rates: &Rates, tolerance: Duration) -> Pacing {
    let limit = |per_second| Limit { per_second, credit: None };
    Pacing {
        counting: CountingRule::SSD,
        tolerance,
        operations: rates.operations.map(limit),
        bytes: rates.bytes.map(limit),
    }
}

impl Product {
    /// Volumes with these limits, and no device that they share.
    pub(super) fn new(now: Instant, rates: &[Rates], tolerance: Duration) -> Self {
        let mut scheduler = Scheduler::new(now);
        let volumes = rates
            .iter()
            .filter_map(|rates| {
                scheduler.add(now, &pacing(rates, tolerance), Balances::default()).ok()
            })
            .collect();
        Self { scheduler, volumes, notes: Vec::new(), tickets: Vec::new(), vacant: Vec::new() }
    }

    /// Volumes without limits that share a device by claims.
    pub(super) fn on_device(
        now: Instant,
        device: &Device,
        window: Window,
        shares: &[Share],
    ) -> Self {
        let tolerance = Duration::from_ms(50);
        let unlimited = vec![Rates::default(); shares.len()];
        let mut product = Self::new(now, &unlimited, tolerance);
        let cost = OperationCost {
            base: Duration::from_ns(device.cost.request_ns),
            byte_ps: (device.cost.byte_ns * 1_000) as u32,
        };
        let model = DeviceModel { channels: device.channels, read: cost, write: cost, window };
        if let Ok(device) = product.scheduler.add_device(now, &model) {
            for (volume, share) in product.volumes.iter().zip(shares) {
                let claim = Claim {
                    reservation_per_second: share.reservation as u32,
                    weight: share.weight,
                    surplus_per_second: None,
                };
                // Cannot fail: both were made above.
                let pacing = pacing(&Rates::default(), tolerance);
                let at = (Some(device), None);
                let _ = product.scheduler.share(now, *volume, &pacing, at, &claim);
            }
        }
        product
    }

    fn keep(&mut self, ticket: Ticket) -> u64 {
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.tickets.push(Ticket::NONE);
            self.tickets.len() - 1
        });
        self.tickets[at] = ticket;
        at as u64
    }
}

impl Policy for Product {
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let Request { volume, operation, offset, length, handle, .. } = *request;
        let at = handle as usize;
        if at >= self.notes.len() {
            self.notes.resize(at + 1, (0, Operation::Read));
        }
        self.notes[at] = (volume, operation);
        let Some(volume) = self.volumes.get(volume as usize) else { return false };
        self.scheduler.submit(now, *volume, Io { operation, offset, length, handle }).is_ok()
    }

    fn poll(&mut self, now: Instant) {
        self.scheduler.poll(now);
    }

    fn poll_output(&mut self) -> Option<Dispatch> {
        let out = self.scheduler.poll_output()?;
        let (volume, operation) = self.notes[out.handle as usize];
        Some(Dispatch {
            volume,
            handle: out.handle,
            operation,
            offset: out.offset,
            length: out.length,
            last: out.last,
            ticket: self.keep(out.ticket),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.scheduler.poll_timeout()
    }

    fn complete(&mut self, now: Instant, dispatch: &Dispatch, _: Duration) {
        let at = dispatch.ticket as usize;
        let Some(ticket) = self.tickets.get_mut(at) else { return };
        let ticket = std::mem::replace(ticket, Ticket::NONE);
        self.vacant.push(at);
        self.scheduler.complete(now, ticket);
    }

    fn repace(&mut self, now: Instant, volume: u32, pacing: &Pacing) -> bool {
        let Some(volume) = self.volumes.get(volume as usize) else { return false };
        self.scheduler.repace(now, *volume, pacing);
        true
    }
}
