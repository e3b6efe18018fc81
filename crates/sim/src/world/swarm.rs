//! Random worlds under every checker: volumes of all kinds, clients, instances and a device, with
//! changes and pauses. The seed alone determines a world.

#[cfg(test)]
mod found;

use super::product::{NotSimulated, Product};
use super::watched::Watched;
use crate::oracle::{Alone, Report, Rule};
use crate::scenario::setup::{
    Change, ChangeKind, ClientSetup, DeviceSetup, InstanceSetup, Load, PollerSetup, ServiceTime,
    Setup, Shape, ShareSetup, Target, Think, VolumeSetup, WindowSetup,
};
use crate::world::World;
use evenkeel_core::convert::exact;
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::random::Random;
use evenkeel_core::time::Duration;
use evenkeel_core::units::GIB;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Maximum share of the device's time for reservations, in thousandths: admission sells no more.
const SOLD_PER_MILLE: u64 = 800;

/// Maximum noise of the device, in millionths. The device's measured capacity includes its noise.
const NOISE_PPM_MAX: u64 = 200_000;

/// The kind of a volume that has a promised latency.
const LOG: &str = "log";

/// Reservation of a log, in percent of the rate that one request at a time can reach.
const LOG_PERCENT: u64 = 120;

/// The verdict on one world.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// Its seed.
    pub seed: u64,
    /// Description of the world.
    pub world: String,
    /// Number of answered requests.
    pub ios: u64,
    /// Findings of the checkers.
    pub report: Report,
}

/// Sums of many verdicts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of worlds that were judged.
    pub worlds: u64,
    /// Number of requests answered in them.
    pub ios: u64,
    /// Number of occasions that each rule judged, in the order of [`Rule::ALL`].
    pub judged: [u64; Rule::ALL.len()],
    /// Number of worlds that broke the promise.
    pub failed_worlds: u64,
    /// The first of those worlds.
    pub failed: Vec<Judged>,
}

/// Maximum number of failed worlds that are kept with all findings.
const FAILED_MAX: usize = 100;

impl Tally {
    /// Adds the verdict on a world.
    pub fn add(&mut self, judged: Judged) {
        self.worlds += 1;
        self.ios += judged.ios;
        for finding in &judged.report.findings {
            let place = Rule::ALL.iter().position(|rule| *rule == finding.rule);
            if let Some(place) = place {
                self.judged[place] += finding.judged;
            }
        }
        if !judged.report.pass() {
            self.failed_worlds += 1;
            if self.failed.len() < FAILED_MAX {
                self.failed.push(judged);
            }
        }
    }
}

/// Generates the world of a seed, runs it, and judges it by every rule.
///
/// # Errors
/// Returns an error if the product rejects the world: a fault of the generator.
pub fn judge(seed: u64) -> Result<Judged, NotSimulated> {
    judge_world(&setup(seed), seed)
}

/// Runs a world, and judges it by every rule. The seed determines the behaviour of clients and
/// device.
fn judge_world(setup: &Setup, seed: u64) -> Result<Judged, NotSimulated> {
    let alone = if has_log(setup) { vec![alone(setup, seed)?] } else { Vec::new() };
    let outcome = World::new(setup, seed, Watched::new(setup, &alone)?).run();
    Ok(Judged {
        seed,
        world: described(setup),
        ios: outcome.census.completed,
        report: outcome.policy.finish(),
    })
}

/// Returns whether the first volume is a log with a promised latency.
fn has_log(setup: &Setup) -> bool {
    setup.volumes.first().is_some_and(|volume| volume.kind == LOG)
}

/// Runs the first volume in the same world without its neighbours.
fn alone(setup: &Setup, seed: u64) -> Result<Alone, NotSimulated> {
    let clients = setup.clients.iter().take(1).cloned().collect();
    let setup = Setup { clients, ..setup.clone() };
    let outcome = World::new(&setup, seed, Product::new(&setup)?).run();
    let p99_ns = outcome.volumes.first().map_or(0, |volume| volume.latency.p99_ns);
    Ok(Alone { volume: 0, p99_ns })
}

fn described(setup: &Setup) -> String {
    let device = match setup.device.window {
        None => "no device of its own",
        Some(WindowSetup::Slots(_)) => "a device with a fixed window",
        Some(WindowSetup::Adaptive(_)) => "a device with a window that adapts",
    };
    format!(
        "{} volumes, {} instances, {} changes, {device}",
        setup.volumes.len(),
        setup.instances.len(),
        setup.changes.len()
    )
}

/// Returns the world of a seed.
#[must_use]
pub fn setup(seed: u64) -> Setup {
    let mut maker = Maker { random: Random::new(seed, u64::MAX) };
    let duration_ns = (2 + maker.random.below(3)) * NS_PER_S;
    let instances: Vec<InstanceSetup> =
        (0..maker.random.below(3)).map(|number| maker.instance(number)).collect();
    let mut device = maker.device();
    let mut volumes: Vec<VolumeSetup> = (0..1 + maker.random.below(8))
        .map(|number| maker.volume(number, instances.len() as u64))
        .collect();
    let equal = !instances.is_empty() && maker.random.one_in(3);
    if equal {
        let first = VolumeSetup { instance: Some(0), ..volumes[0].clone() };
        for volume in &mut volumes {
            *volume = VolumeSetup { name: volume.name.clone(), ..first.clone() };
        }
    }
    let log = device.window.is_some() && !equal && maker.random.one_in(3);
    if log {
        maker.fast(&mut device);
    }
    if device.window.is_some() {
        maker.reserve(&mut volumes, &device, equal);
    }
    let mut clients: Vec<ClientSetup> =
        (0..volumes.len()).map(|number| maker.client(number)).collect();
    if log {
        maker.log(&mut volumes[0], &mut clients[0], &device);
    }
    if equal {
        // Equal volumes, whose clients ask for the same rate, together for more than there is.
        for client in &mut clients {
            client.shape = Shape { block_bytes: 16 << 10, read_percent: 100, ..client.shape };
            client.shape.sequential = false;
            client.load = Load::Closed { threads: 1, depth: 64, think: Think::No };
            client.start_ns = 0;
        }
    }
    let mut changes: Vec<Change> =
        (0..maker.random.below(6)).map(|_| maker.change(duration_ns, &volumes)).collect();
    changes.sort_by_key(|change| change.at_ns);
    let poller = maker.poller(duration_ns);
    Setup {
        duration_ns,
        sample_ns: NS_PER_S,
        volumes,
        instances,
        stripes: Vec::new(),
        clients,
        device,
        poller,
        changes,
    }
}

struct Maker {
    random: Random,
}

impl Maker {
    fn pacing(&mut self) -> Pacing {
        let rate = self.random.among(&[100, 500, 1_000, 3_000, 5_000, 16_000]);
        let credit = CreditLimit {
            refill_per_second: 1 + rate / (1 + self.random.below(30)),
            capacity: self.random.below(3 * rate),
        };
        let credit = Some(credit).filter(|_| self.random.one_in(3));
        let bytes_alone = self.random.one_in(8);
        // At most the load of the fastest other volume: 250 MiB/s are 16,000 requests of 16 KiB per
        // second.
        let rates: &[u64] =
            if bytes_alone { &[4, 25, 125, 250] } else { &[4, 25, 125, 250, 1_000] };
        let bytes_per_second = self.random.among(rates) << 20;
        let bytes = Some(Limit { per_second: bytes_per_second, credit: None });
        let tolerance_ms = self.random.among(&[1, 5, 50, 50, 50, 200, 1_000]);
        Pacing {
            counting: CountingRule::SSD,
            tolerance: Duration::from_ms(tolerance_ms),
            // Hard disks' types have no limit in I/Os.
            operations: Some(Limit { per_second: rate, credit }).filter(|_| !bytes_alone),
            bytes: bytes.filter(|_| bytes_alone || self.random.one_in(2)),
        }
    }

    fn instance(&mut self, number: u64) -> InstanceSetup {
        let iops = self.random.among(&[500, 2_000, 8_000, 40_000]);
        let bytes_per_second = self.random.among(&[62_500_000, 125_000_000, 593_750_000]);
        let bursts = self.random.one_in(3);
        let part = if bursts { 4 } else { 1 };
        InstanceSetup {
            name: format!("i{number}"),
            kind: String::new(),
            baseline_iops: iops / part,
            iops_max: iops,
            baseline_bytes_per_second: bytes_per_second / part,
            bytes_per_second_max: bytes_per_second,
            per_direction: !bursts && self.random.one_in(2),
            efficiency_ppm: self.random.among(&[880_000, 1_000_000]),
        }
    }

    fn device(&mut self) -> DeviceSetup {
        let mut device = DeviceSetup::ideal(50_000 + self.random.below(200_000));
        if self.random.one_in(2) {
            return device;
        }
        let channels = self.random.among(&[4, 16, 32]);
        let read = ServiceTime {
            base_ns: 40_000 + self.random.below(80_000),
            ns_per_kib: 500 + self.random.below(4_000),
        };
        device.channels = Some(channels);
        device.read = read;
        device.write = read;
        device.noise_ppm = exact(self.random.below(NOISE_PPM_MAX), "NOISE_PPM_MAX is small");
        device.window = Some(match self.random.below(2) {
            0 => WindowSetup::Slots(channels + 2),
            _ => WindowSetup::Adaptive(2 * (read.base_ns + 16 * read.ns_per_kib)),
        });
        device
    }

    fn volume(&mut self, number: u64, instances: u64) -> VolumeSetup {
        let instance = self.random.below(instances + 1);
        VolumeSetup {
            name: format!("v{number}"),
            kind: "raw".to_owned(),
            size_bytes: 16 * GIB,
            pacing: self.pacing(),
            balances: Balances::default(),
            spec: None,
            instance: u32::try_from(instance).ok().filter(|number| u64::from(*number) < instances),
            share: None,
        }
    }

    /// Reserves four fifths of the device, in random parts of at most a volume's rate, or in equal
    /// parts. What one request at a time can reach stays free for a log.
    fn reserve(&mut self, volumes: &mut [VolumeSetup], device: &DeviceSetup, equal: bool) {
        let count = volumes.len() as u64;
        let reference_ns = device.read.base_ns + 16 * device.read.ns_per_kib;
        let channels = u64::from(device.channels.unwrap_or(1));
        let mut left = channels * NS_PER_S / reference_ns * SOLD_PER_MILLE / 1_000;
        left -= LOG_PERCENT * NS_PER_S / reference_ns / 100;
        let most_each = left / count / 2;
        for volume in volumes {
            // Every volume has a hundredth of its limit, and at least 20 I/Os per second, without a
            // claim.
            let rate = volume.pacing.operations.map_or(0, |limit| limit.sustained_per_second());
            let most = volume.pacing.operations.map_or(0, |limit| limit.per_second);
            let least = (most / 100).max(20);
            left = left.saturating_sub(least);
            let mut reservation = self.random.below(rate.min(left) + 1);
            let mut weight = Some(1 + exact::<_, u32>(self.random.below(1_000), "below 1,000"));
            // This draw has no effect. It stays, so that each seed still generates the same world.
            let _ = self.random.one_in(4);
            if equal {
                (reservation, weight) = (rate.min(most_each), Some(1));
            } else {
                left -= reservation;
            }
            volume.share = Some(ShareSetup { reservation_per_second: reservation, weight });
        }
    }

    /// Makes the device so fast that the largest request, shared by the channels, takes at most a
    /// sixth of a small one. On slower ones a log waits longer for a channel than it is promised.
    fn fast(&mut self, device: &mut DeviceSetup) {
        let base_ns = device.read.base_ns;
        let cost = ServiceTime { base_ns, ns_per_kib: base_ns / (40 + self.random.below(100)) };
        let channels = 32;
        device.window = Some(match device.window {
            Some(WindowSetup::Adaptive(_)) => WindowSetup::Adaptive(2 * cost.ns(16 << 10)),
            _ => WindowSetup::Slots(channels + 2),
        });
        (device.channels, device.read, device.write) = (Some(channels), cost, cost);
    }

    /// Turns a volume into a log: one small write at a time, all of it reserved.
    fn log(&mut self, volume: &mut VolumeSetup, client: &mut ClientSetup, device: &DeviceSetup) {
        let per_second = LOG_PERCENT * NS_PER_S / device.write.ns(16 << 10) / 100;
        LOG.clone_into(&mut volume.kind);
        volume.instance = None;
        volume.pacing.operations = Some(Limit { per_second: 2 * per_second, credit: None });
        volume.pacing.bytes = None;
        volume.share = Some(ShareSetup { reservation_per_second: per_second, weight: Some(1) });
        let think = Think::Exponential(self.random.below(NS_PER_MS));
        client.load = Load::Closed { threads: 1, depth: 1, think };
        client.shape.read_percent = 0;
        client.shape.block_bytes = self.random.among(&[4 << 10, 16 << 10]);
        (client.shape.sequential, client.shape.fua) = (true, true);
    }

    fn client(&mut self, number: usize) -> ClientSetup {
        let depth = self.random.among(&[1, 4, 32, 64, 128]);
        let load = match self.random.below(6) {
            0 => Load::Open { per_second: 50 + self.random.below(5_000), poisson: true },
            1 => Load::Closed {
                threads: 1,
                depth: 1,
                think: Think::Exponential(self.random.below(3 * NS_PER_MS)),
            },
            _ => Load::Closed { threads: 1, depth, think: Think::No },
        };
        ClientSetup {
            name: format!("c{number}"),
            target: Target::Volume(exact(number, "volumes have numbers of 32 bits")),
            shape: Shape {
                read_percent: self.random.among(&[0, 50, 70, 100, 100]),
                block_bytes: self.random.among(&[4 << 10, 16 << 10, 16 << 10, 64 << 10, 256 << 10]),
                sequential: self.random.one_in(4),
                fua: self.random.one_in(4),
                span_bytes: 16 * GIB,
            },
            load,
            start_ns: if self.random.one_in(3) { self.random.below(NS_PER_S) } else { 0 },
            stop_ns: u64::MAX,
            program: None,
        }
    }

    fn change(&mut self, duration_ns: u64, volumes: &[VolumeSetup]) -> Change {
        let at_ns = self.random.below(duration_ns);
        let volume = self.random.below(volumes.len() as u64);
        let number = exact(volume, "volumes have numbers of 32 bits");
        let kind = match self.random.below(3) {
            0 => {
                let units = self.random.below(10_000);
                let balances = Balances { operations: Some(units), bytes: None };
                let of = &volumes[number as usize].pacing;
                if of.operations.is_some_and(|limit| limit.credit.is_some()) {
                    ChangeKind::SetBalances(number, balances)
                } else {
                    ChangeKind::Stall(NS_PER_MS + self.random.below(40 * NS_PER_MS))
                }
            }
            1 => ChangeKind::Stall(NS_PER_MS + self.random.below(100 * NS_PER_MS)),
            // A log's promise holds only while its limits do not change.
            _ if volumes[number as usize].kind == LOG => {
                ChangeKind::Stall(NS_PER_MS + self.random.below(10 * NS_PER_MS))
            }
            _ => {
                // Only the rate changes; the credits stay as they are.
                let of = &volumes[number as usize].pacing;
                let mut pacing = *of;
                let factor = self.random.among(&[2, 5, 15, 40]);
                if let Some(limit) = &mut pacing.operations {
                    limit.per_second = (limit.per_second * factor / 10).max(20);
                }
                ChangeKind::SetLimits(number, Box::new(pacing))
            }
        };
        Change { at_ns, kind }
    }

    fn poller(&mut self, duration_ns: u64) -> PollerSetup {
        let late_mean_ns = self.random.among(&[0, 15_000]);
        let pauses = if self.random.one_in(3) {
            vec![(self.random.below(duration_ns), NS_PER_MS + self.random.below(60 * NS_PER_MS))]
        } else {
            Vec::new()
        };
        PollerSetup { late_mean_ns, pause_ppm: 0, pause_ns: 0, pauses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many worlds as a test has time for; `evenkeel sim swarm --seeds N` judges more.
    #[test]
    fn the_promise_is_kept_in_random_worlds() {
        let mut tally = Tally::default();
        for seed in 0..100 {
            let judged = judge(seed).unwrap();
            let Judged { world, report, .. } = &judged;
            assert!(
                report.pass(),
                "{world}\n{report}\nreplay: evenkeel sim swarm --seed {seed} --seeds 1"
            );
            tally.add(judged);
        }
        assert_eq!(tally.worlds, 100);
        for (rule, judged) in Rule::ALL.iter().zip(tally.judged) {
            assert!(judged > 0, "{rule:?} judged nothing");
        }
    }

    #[test]
    fn a_world_is_decided_by_its_seed() {
        assert_eq!(setup(7), setup(7));
        assert_ne!(setup(7), setup(8));
        assert_eq!(judge(3).unwrap(), judge(3).unwrap());
    }
}
