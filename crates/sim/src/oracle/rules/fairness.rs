//! Line 5: volumes with the same promise on a saturated client host get the same share of it.
//!
//! Judged over every second but the first in which all of them were backlogged throughout, and
//! waited for at least half of it although their own limits let them pass. A share is device cost
//! if that is known, otherwise the time that the dispatch takes of the host's limit of which it
//! takes most. A volume that got all that its own limits allowed is owed nothing, even if others
//! had saved more: shares are max-min fair.

use super::super::event::{Dispatched, Event};
use super::super::instances;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::{Seen, VOLUMES_MAX};
use super::super::system::{DIMENSIONS, System, VolumePromise};
use super::super::token_level::UNIT;
use super::super::volumes::Limited;
use super::Watcher;

const SECOND_NS: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;

/// Volumes with the same promise on the same instance.
#[derive(Debug)]
struct Group {
    promise: VolumePromise,
    members: Vec<Member>,
    /// Time since which all of them are backlogged.
    since: Option<u64>,
    /// Whether balances were set since: the amount that own limits allowed is then unknown.
    disturbed: bool,
    /// Whether all of them had been backlogged for a second before.
    steady: bool,
    largest: u64,
}

#[derive(Debug)]
struct Member {
    volume: u32,
    backlogged: bool,
    used: u64,
    /// Units that its own limits charged it, and the largest single charge.
    charged: [u64; DIMENSIONS],
    largest: [u64; DIMENSIONS],
    /// Its own limits at its last settling before the window, `back_ns` earlier.
    limits: [Option<Limited>; DIMENSIONS],
    back_ns: u64,
    /// Its waiting time at the start of the window, in nanoseconds.
    held_up_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Fairness {
    groups: Vec<Group>,
    /// Group and index in it of each volume.
    places: Vec<Option<(usize, usize)>>,
}

impl Fairness {
    pub(super) fn new(system: &System) -> Self {
        let mut fairness = Self::default();
        for (number, promise) in (0..).zip(&system.volumes) {
            fairness.join(number, promise, false);
        }
        fairness
    }

    fn join(&mut self, volume: u32, promise: &VolumePromise, backlogged: bool) {
        if promise.instance.is_none() || volume >= VOLUMES_MAX {
            return;
        }
        let same = |group: &Group| group.promise == *promise;
        let group = self.groups.iter().position(same).unwrap_or_else(|| {
            self.groups.push(Group {
                promise: *promise,
                members: Vec::new(),
                since: None,
                disturbed: false,
                steady: false,
                largest: 0,
            });
            self.groups.len() - 1
        });
        let members = &mut self.groups[group].members;
        members.push(Member::new(volume, backlogged));
        let place = members.len() - 1;
        if self.places.len() <= volume as usize {
            self.places.resize(volume as usize + 1, None);
        }
        self.places[volume as usize] = Some((group, place));
        self.groups[group].since = None;
    }

    fn leave(&mut self, volume: u32) {
        let Some(Some((group, place))) = self.places.get(volume as usize).copied() else { return };
        self.places[volume as usize] = None;
        let Group { members, since, .. } = &mut self.groups[group];
        members.swap_remove(place);
        if let Some(moved) = members.get(place) {
            self.places[moved.volume as usize] = Some((group, place));
        }
        *since = None;
        // Empty groups are kept for later volumes with their promise, unless there are many.
        if self.groups.len() > 1_024 {
            self.regroup();
        }
    }

    fn regroup(&mut self) {
        self.groups.retain(|group| !group.members.is_empty());
        for (at, group) in self.groups.iter().enumerate() {
            for (place, member) in group.members.iter().enumerate() {
                self.places[member.volume as usize] = Some((at, place));
            }
        }
    }

    fn place(&mut self, volume: u32) -> Option<(&mut Group, usize)> {
        let (group, place) = (*self.places.get(volume as usize)?)?;
        Some((&mut self.groups[group], place))
    }

    fn dispatched(&mut self, dispatched: &Dispatched, seen: &Seen, findings: &mut Findings) {
        let Some((group, place)) = self.place(dispatched.volume) else { return };
        if group.since.is_some_and(|since| seen.now >= since + SECOND_NS) {
            group.judge(seen, findings);
        }
        let cost = match dispatched.device_cost_ns {
            0 => host_cost_ns(dispatched, seen),
            cost => cost,
        };
        group.members[place].charge(cost, dispatched.charge());
        group.largest = group.largest.max(cost);
        let volume = seen.volume(dispatched.volume);
        if dispatched.last && volume.is_none_or(|volume| volume.requests.queued <= 1) {
            group.set_backlogged(place, false, seen);
        }
    }
}

impl Group {
    fn set_backlogged(&mut self, place: usize, backlogged: bool, seen: &Seen) {
        self.members[place].backlogged = backlogged;
        if !backlogged {
            self.since = None;
        } else if self.members.len() > 1 && self.members.iter().all(|member| member.backlogged) {
            self.begin(seen);
        }
    }

    fn begin(&mut self, seen: &Seen) {
        (self.since, self.disturbed, self.steady) = (Some(seen.now), false, false);
        for member in &mut self.members {
            *member = Member::new(member.volume, member.backlogged);
            let Some(volume) = seen.volume(member.volume) else { continue };
            member.limits = volume.limits;
            member.back_ns = seen.now - volume.settled_at;
            member.held_up_ns = volume.held_up.all_ns;
        }
    }

    fn judge(&mut self, seen: &Seen, findings: &mut Findings) {
        let waited = |member: &Member| held_up_ns(member.volume, seen) - member.held_up_ns;
        let saturated = self.members.iter().all(|member| waited(member) * 2 >= SECOND_NS);
        let used = || self.members.iter().map(|member| member.used);
        let least = used().min().unwrap_or(0);
        let most = used().max().unwrap_or(0);
        // Turns compensate for the time before the window: a volume that was ahead then is behind
        // now, at a device or because its own limits delay it until it is level with later volumes.
        if saturated && self.steady && !self.disturbed {
            let share = MILLION - u64::from(seen.system.margins.fairness_ppm);
            let due = u128::from(most) * u128::from(share) / u128::from(MILLION);
            // Turns are indivisible: one volume may have had a turn that another one has not had
            // yet, at the host and at the device if there is one.
            let places = 1 + u128::from(seen.device.work.is_some());
            let turns = 2 * places * u128::from(self.largest);
            let span_ns = seen.now - self.since.unwrap_or(seen.now);
            let kept = self.members.iter().all(|member| {
                u128::from(member.used) + turns >= due || member.has_all_of_its_own(span_ns, share)
            });
            let instance = self.promise.instance.unwrap_or(u32::MAX);
            findings.judge(Rule::Fairness, kept, seen.now, Whose::Instance(instance), || {
                let equals = self.members.len();
                (format!("{equals} equals get the same"), format!("from {least} to {most}"))
            });
        }
        self.begin(seen);
        self.steady = true;
    }
}

impl Member {
    fn new(volume: u32, backlogged: bool) -> Self {
        let charged = [0; DIMENSIONS];
        let largest = [0; DIMENSIONS];
        let limits = [None; DIMENSIONS];
        let used = 0;
        let back_ns = 0;
        let held_up_ns = 0;
        Self { volume, backlogged, used, charged, largest, limits, back_ns, held_up_ns }
    }

    fn charge(&mut self, cost: u64, units: [u64; DIMENSIONS]) {
        self.used += cost;
        for (dimension, units) in units.into_iter().enumerate() {
            self.charged[dimension] += units;
            self.largest[dimension] = self.largest[dimension].max(units);
        }
    }

    /// Returns whether it was charged all that one of its own limits could allow in the window,
    /// less the margin: `share` millionths.
    fn has_all_of_its_own(&self, span_ns: u64, share: u64) -> bool {
        (0..DIMENSIONS).any(|dimension| {
            let Some(limited) = &self.limits[dimension] else { return false };
            let charged = i128::from(self.charged[dimension] + self.largest[dimension]) * UNIT;
            let most = limited.most(self.back_ns, span_ns);
            self.charged[dimension] > 0 && charged >= most / i128::from(MILLION) * i128::from(share)
        })
    }
}

impl Watcher for Fairness {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        match event {
            Event::Submitted(submitted) => {
                let volume = seen.volume(submitted.volume);
                if volume.is_some_and(|volume| !volume.is_backlogged())
                    && let Some((group, place)) = self.place(submitted.volume)
                {
                    group.set_backlogged(place, true, seen);
                }
            }
            Event::Dispatched(dispatched) => self.dispatched(dispatched, seen, findings),
            Event::Cancelled { volume: number, .. } => {
                let volume = seen.volume(*number);
                if volume.is_some_and(|volume| volume.requests.queued <= 1)
                    && let Some((group, place)) = self.place(*number)
                {
                    group.set_backlogged(place, false, seen);
                }
            }
            Event::Credited { volume, .. } => {
                if let Some((group, _)) = self.place(*volume) {
                    group.disturbed = true;
                }
            }
            Event::Added { volume, promise, .. } => self.join(*volume, promise, false),
            Event::Modified { volume, promise, .. } => {
                let backlogged = seen.volume(*volume).is_some_and(|volume| volume.is_backlogged());
                self.leave(*volume);
                self.join(*volume, promise, backlogged);
            }
            Event::Removed { volume, .. } => self.leave(*volume),
            _ => {}
        }
    }
}

fn held_up_ns(number: u32, seen: &Seen) -> u64 {
    seen.volume(number).map_or(0, |volume| volume.held_up.all_ns)
}

/// Returns the time that a dispatch takes of the host's limit of which it takes most, in
/// nanoseconds.
fn host_cost_ns(dispatched: &Dispatched, seen: &Seen) -> u64 {
    let Some(instance) = seen.instance(dispatched.instance) else {
        return dispatched.operations.into();
    };
    let [operations, bytes] = instances::charge(dispatched);
    let rate = |at: usize| instance.limits[at].as_ref().map(|limited| limited.pacer.rate);
    let link =
        instances::link_of(dispatched.direction).and_then(|index| instance.links[index].as_ref());
    let of = |units: u64, rate: Option<u64>| {
        rate.map_or(0, |rate| units.saturating_mul(SECOND_NS) / rate.max(1))
    };
    of(operations, rate(0)).max(of(bytes, rate(1))).max(of(bytes, link.map(|link| link.rate)))
}
