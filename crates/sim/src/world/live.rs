//! Replays the trace of a live server in virtual time. At first every recorded call is repeated and
//! must yield the same dispatches. Then only the requests are simulated, in a world that knows
//! nothing but their arrival times.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::VolumeIndex;
use evenkeel_core::qos::trace::{Call, Difference, Trace};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use serde::Serialize;

use super::policy::{Dispatch, Policy, Request};
use super::product::{NotSimulated, Product};
use crate::scenario::setup::{
    Arrival, ClientSetup, DeviceSetup, Load, PollerSetup, Setup, Shape, Target, VolumeSetup,
};
use crate::world::World;

const NS_PER_S: u64 = 1_000_000_000;

/// Dispatches of one volume, live and in the simulator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct VolumeReplay {
    /// Requests dispatched live.
    pub dispatches: u64,
    /// Whether the simulator dispatched the same requests in the same order.
    pub same_order: bool,
    /// Dispatches in each second, live.
    pub live_per_second: Vec<u64>,
    /// Dispatches in each second, in the simulator.
    pub simulated_per_second: Vec<u64>,
    /// Largest time by which a live dispatch was later than the simulated one, in nanoseconds: live
    /// timers are late.
    pub live_later_max_ns: u64,
    /// Largest time by which a live dispatch was earlier than the simulated one.
    pub live_earlier_max_ns: u64,
}

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Replay {
    /// Number of dispatches that the repeated calls yielded again, at the same nanosecond and in
    /// the same order.
    pub same: u64,
    /// The volumes, in the order in which they were added.
    pub volumes: Vec<VolumeReplay>,
}

/// The reason why a trace cannot be replayed, or why its replay differs.
#[derive(Clone, PartialEq, Debug)]
pub enum NotReplayed {
    /// The trace had no room for this number of its entries.
    LeftOut(u64),
    /// The recorded calls yield other dispatches, or cannot be repeated.
    Differs(Difference),
    /// A request of a kind that a recorded load does not have.
    Request(Operation),
    /// A volume was changed during the recording; has the name of the call.
    Changed(&'static str),
    /// The simulator cannot simulate the setup.
    NotSimulated(NotSimulated),
}

impl fmt::Display for NotReplayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut(entries) => {
                write!(
                    f,
                    "the trace had no room for {entries} entries: record less, or for less time"
                )
            }
            Self::Differs(difference) => {
                write!(f, "the same calls gave something else: {difference}")
            }
            Self::Request(operation) => {
                write!(f, "a trace of reads and writes is played back, and it has {operation:?}")
            }
            Self::Changed(call) => {
                write!(
                    f,
                    "a trace of volumes that stay as they are is played back, and it has {call}"
                )
            }
            Self::NotSimulated(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for NotReplayed {}

impl VolumeReplay {
    /// Returns the largest difference between the dispatches of the same second.
    #[must_use]
    pub fn off_max(&self) -> u64 {
        let seconds = self.live_per_second.len().max(self.simulated_per_second.len());
        let of = |counts: &[u64], second: usize| counts.get(second).copied().unwrap_or(0);
        let off = |second| {
            of(&self.live_per_second, second).abs_diff(of(&self.simulated_per_second, second))
        };
        (0..seconds).map(off).max().unwrap_or(0)
    }
}

/// A dispatch: its time, and the offset and the length of its range.
type Seen = (u64, u64, u32);

/// Replays a trace both ways.
///
/// # Errors
/// Returns an error if the repeated calls yield other dispatches, or if the trace has anything but
/// reads and writes of volumes that do not change.
pub fn replay(trace: &Trace) -> Result<Replay, NotReplayed> {
    if trace.left_out() > 0 {
        return Err(NotReplayed::LeftOut(trace.left_out()));
    }
    let same = trace.replay().map_err(NotReplayed::Differs)?;
    let live = Live::read(trace)?;
    let setup = live.setup();
    let product = Product::new(&setup).map_err(NotReplayed::NotSimulated)?;
    let noting = Noting { product, now: 0, seen: vec![Vec::new(); live.volumes.len()] };
    let outcome = World::new(&setup, 0, noting).run();
    let volumes = live.volumes.iter().zip(&outcome.policy.seen);
    let volumes = volumes.map(|(volume, simulated)| compared(&volume.dispatched, simulated));
    Ok(Replay { same, volumes: volumes.collect() })
}

/// The trace of one volume.
struct LiveVolume {
    pacing: Pacing,
    balances: Balances,
    arrivals: Vec<Arrival>,
    dispatched: Vec<Seen>,
}

struct Live {
    volumes: Vec<LiveVolume>,
    end_ns: u64,
}

impl Live {
    fn read(trace: &Trace) -> Result<Self, NotReplayed> {
        let mut numbers: BTreeMap<VolumeIndex, usize> = BTreeMap::new();
        let mut live = Self { volumes: Vec::new(), end_ns: 0 };
        let start = trace.entries().first().map_or(Instant::ZERO, |entry| entry.at);
        for entry in trace.entries() {
            let at_ns = entry.at.since(start).ns;
            live.end_ns = live.end_ns.max(at_ns);
            match &entry.call {
                Call::Add(name, with) => {
                    let (pacing, balances) = **with;
                    numbers.insert(*name, live.volumes.len());
                    let arrivals = Vec::new();
                    let dispatched = Vec::new();
                    live.volumes.push(LiveVolume { pacing, balances, arrivals, dispatched });
                }
                Call::Submit(name, io) => {
                    let is_read = match io.operation {
                        Operation::Read => true,
                        Operation::Write { .. } => false,
                        other => return Err(NotReplayed::Request(other)),
                    };
                    let offset = io.offset;
                    let length = io.length;
                    let arrival = Arrival { at_ns, is_read, offset, length };
                    live.of(&numbers, *name, |volume| volume.arrivals.push(arrival));
                }
                Call::Dispatch(dispatch) => {
                    let seen = (at_ns, dispatch.offset, dispatch.length);
                    live.of(&numbers, dispatch.volume, |volume| volume.dispatched.push(seen));
                }
                // Volumes of the simulation keep their limits.
                Call::SetLimits(..) => return Err(NotReplayed::Changed("set_limits")),
                Call::SetBalances(..) => return Err(NotReplayed::Changed("set_balances")),
                Call::Name(..) | Call::Poll | Call::Complete(_) | Call::Other(_) => {}
            }
        }
        Ok(live)
    }

    fn of(
        &mut self,
        numbers: &BTreeMap<VolumeIndex, usize>,
        name: VolumeIndex,
        then: impl FnOnce(&mut LiveVolume),
    ) {
        // `Trace::replay` has found that every name is a volume's.
        if let Some(volume) = numbers.get(&name).and_then(|&number| self.volumes.get_mut(number)) {
            then(volume);
        }
    }

    /// Creates a world with the same volumes, on a device that answers at once, and the recorded
    /// requests.
    fn setup(&self) -> Setup {
        let mut volumes = Vec::new();
        let mut clients = Vec::new();
        for (number, volume) in (0_u32..).zip(&self.volumes) {
            let ends = volume.arrivals.iter().map(|a| a.offset.saturating_add(a.length.into()));
            let size_bytes = ends.max().unwrap_or(0).max(1);
            volumes.push(VolumeSetup {
                name: format!("volume-{number}"),
                kind: String::new(),
                size_bytes,
                pacing: volume.pacing,
                balances: volume.balances,
                spec: None,
                instance: None,
                share: None,
            });
            clients.push(ClientSetup {
                name: format!("client-{number}"),
                target: Target::Volume(number),
                shape: Shape {
                    read_percent: 100,
                    block_bytes: 512,
                    sequential: false,
                    fua: false,
                    span_bytes: size_bytes,
                },
                load: Load::Trace(volume.arrivals.clone()),
                start_ns: 0,
                stop_ns: self.end_ns.saturating_add(1),
                program: None,
            });
        }
        Setup {
            duration_ns: self.end_ns.saturating_add(1),
            sample_ns: NS_PER_S,
            volumes,
            instances: Vec::new(),
            stripes: Vec::new(),
            clients,
            device: DeviceSetup::ideal(0),
            poller: PollerSetup::default(),
            changes: Vec::new(),
        }
    }
}

fn compared(live: &[Seen], simulated: &[Seen]) -> VolumeReplay {
    let what = |seen: &[Seen]| -> Vec<(u64, u32)> {
        seen.iter().map(|&(_, offset, length)| (offset, length)).collect()
    };
    let per_second = |seen: &[Seen]| {
        let mut counts = Vec::new();
        for (at_ns, ..) in seen {
            let second = (at_ns / NS_PER_S) as usize;
            counts.resize(counts.len().max(second + 1), 0);
            counts[second] += 1;
        }
        counts
    };
    let pairs = || live.iter().zip(simulated);
    VolumeReplay {
        dispatches: live.len() as u64,
        same_order: what(live) == what(simulated),
        live_per_second: per_second(live),
        simulated_per_second: per_second(simulated),
        live_later_max_ns: pairs().map(|(l, s)| l.0.saturating_sub(s.0)).max().unwrap_or(0),
        live_earlier_max_ns: pairs().map(|(l, s)| s.0.saturating_sub(l.0)).max().unwrap_or(0),
    }
}

/// The product, and a record of its dispatches.
#[derive(Debug)]
struct Noting {
    product: Product,
    now: u64,
    seen: Vec<Vec<Seen>>,
}

impl Policy for Noting {
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        self.now = now.ns;
        self.product.submit(now, request)
    }

    fn poll(&mut self, now: Instant) {
        self.now = now.ns;
        self.product.poll(now);
    }

    fn poll_output(&mut self) -> Option<Dispatch> {
        let dispatch = self.product.poll_output()?;
        let seen = (self.now, dispatch.offset, dispatch.length);
        self.seen[dispatch.volume as usize].push(seen);
        Some(dispatch)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.product.poll_timeout()
    }

    fn complete(&mut self, now: Instant, dispatch: &Dispatch, service: Duration) {
        self.now = now.ns;
        self.product.complete(now, dispatch, service);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::pacing::{CreditLimit, Limit};
    use evenkeel_core::qos::scheduler::{Io, Scheduler, Ticket};
    use evenkeel_core::qos::trace::Detail;

    /// Returns the trace of a server of two volumes that is always late by a few microseconds.
    fn recorded() -> Trace {
        let start = Instant::from_ns(77_000_000_123);
        let mut scheduler = Scheduler::new(start);
        let mut trace = Trace::with_room(100_000, Detail::Calls);
        let credit = CreditLimit { refill_per_second: 100, capacity: 1_500 };
        let limits = [
            Limit { per_second: 1_000, credit: None },
            Limit { per_second: 2_000, credit: Some(credit) },
        ];
        let mut names = Vec::new();
        for limit in limits {
            let pacing = Pacing { operations: Some(limit), ..Pacing::UNLIMITED };
            let balances = Balances::default();
            let name = scheduler.add(start, &pacing, balances).unwrap();
            trace.push(start, Call::Add(name, Box::new((pacing, balances))));
            names.push(name);
        }
        let mut now = start;
        let mut waiting = vec![(0, 8), (1, 8)];
        let mut number = 0_u32;
        while now.since(start).ns < 3 * NS_PER_S {
            for (volume, count) in std::mem::take(&mut waiting) {
                for _ in 0..count {
                    number += 1;
                    let offset = u64::from(number) * 7_919 % 1_000 * 4_096;
                    let io =
                        Io { operation: Operation::Read, offset, length: 4_096, handle: number };
                    scheduler.submit(now, names[volume], io).unwrap();
                    trace.push(now, Call::Submit(names[volume], io));
                    drain(&mut scheduler, &mut trace, now, &names, &mut waiting);
                }
            }
            let due = scheduler.poll_timeout().map_or(now.ns, |due| due.ns.max(now.ns));
            now = Instant::from_ns(due + 3_000 + u64::from(number % 50) * 1_000);
            scheduler.poll(now);
            trace.push(now, Call::Poll);
            drain(&mut scheduler, &mut trace, now, &names, &mut waiting);
        }
        trace
    }

    fn drain(
        scheduler: &mut Scheduler,
        trace: &mut Trace,
        now: Instant,
        names: &[VolumeIndex],
        answered: &mut Vec<(usize, u32)>,
    ) {
        while let Some(dispatch) = scheduler.poll_output() {
            trace.push(now, Call::Dispatch(dispatch));
            trace.push(now, Call::Complete(Ticket::NONE));
            answered.push((names.iter().position(|name| *name == dispatch.volume).unwrap(), 1));
        }
    }

    #[test]
    fn a_recorded_server_is_played_back_exactly_and_simulated_to_the_i_o() {
        let trace = recorded();
        let replay = replay(&trace).unwrap();
        let dispatches: u64 = replay.volumes.iter().map(|volume| volume.dispatches).sum();
        assert_eq!(replay.same, dispatches);
        assert!(dispatches > 3_000, "{replay:?}");
        for volume in &replay.volumes {
            assert!(volume.same_order && volume.off_max() <= 1, "{volume:?}");
            assert!(volume.live_later_max_ns < 200_000, "{volume:?}");
        }
    }

    #[test]
    fn changed_or_short_record_is_not_replayed() {
        let mut trace = Trace::with_room(100_000, Detail::Calls);
        for entry in recorded().entries() {
            let call = match entry.call.clone() {
                Call::Dispatch(mut dispatch) if entry.at.ns % 11 == 0 => {
                    dispatch.offset += 1;
                    Call::Dispatch(dispatch)
                }
                other => other,
            };
            trace.push(entry.at, call);
        }
        let error = replay(&trace).unwrap_err();
        let differs = matches!(error, NotReplayed::Differs(Difference::Dispatch { .. }));
        assert!(differs, "{error}");
        let mut short = Trace::with_room(1, Detail::Calls);
        short.push(Instant::ZERO, Call::Poll);
        short.push(Instant::ZERO, Call::Poll);
        assert_eq!(replay(&short), Err(NotReplayed::LeftOut(1)));
        let mut other = Trace::with_room(1, Detail::Calls);
        other.push(Instant::ZERO, Call::Other("remove"));
        assert!(replay(&other).unwrap_err().to_string().contains("remove is not played back"));
    }
}
