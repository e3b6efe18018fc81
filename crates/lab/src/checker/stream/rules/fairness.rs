//! Line 5: volumes with the same promise on a saturated client host get the same share of it.
//!
//! Judged over every second in which all of them were backlogged throughout and waited for somebody
//! other than their own limits for at least half of it. A share is device cost where it is known,
//! else I/Os.

use super::super::event::{Dispatched, Event};
use super::super::report::{Findings, Rule, Whose};
use super::super::seen::{Seen, VOLUMES_MAX};
use super::super::system::{System, VolumePromise};
use super::Watcher;

const SECOND_NS: u64 = 1_000_000_000;
const MILLION: u64 = 1_000_000;

/// Volumes with the same promise on the same instance.
#[derive(Debug)]
struct Group {
    promise: VolumePromise,
    members: Vec<Member>,
    /// Since when all of them are backlogged.
    since: Option<u64>,
    largest: u64,
}

#[derive(Debug)]
struct Member {
    volume: u32,
    backlogged: bool,
    used: u64,
    /// How long it had waited when the window began.
    held_up_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Fairness {
    groups: Vec<Group>,
    /// By volume: its group and its place in it.
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
            let (members, since, largest) = (Vec::new(), None, 0);
            self.groups.push(Group { promise: *promise, members, since, largest });
            self.groups.len() - 1
        });
        let members = &mut self.groups[group].members;
        members.push(Member { volume, backlogged, used: 0, held_up_ns: 0 });
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
        // Empty groups stay for the next of their kind, unless there are many.
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
            0 => u64::from(dispatched.operations),
            cost => cost,
        };
        group.members[place].used += cost;
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
        self.since = Some(seen.now);
        for member in &mut self.members {
            member.used = 0;
            member.held_up_ns = held_up_ns(member.volume, seen);
        }
    }

    fn judge(&mut self, seen: &Seen, findings: &mut Findings) {
        let waited = |member: &Member| held_up_ns(member.volume, seen) - member.held_up_ns;
        let saturated = self.members.iter().all(|member| waited(member) * 2 >= SECOND_NS);
        let used = || self.members.iter().map(|member| member.used);
        let (least, most) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
        if saturated {
            let share = MILLION - u64::from(seen.system.margins.fairness_ppm);
            let due = u128::from(most) * u128::from(share) / u128::from(MILLION);
            // Turns are not divided: one turn may have gone to one and not to the other yet.
            let kept = u128::from(least) + 2 * u128::from(self.largest) >= due;
            let instance = self.promise.instance.unwrap_or(u32::MAX);
            findings.judge(Rule::Fairness, kept, seen.now, Whose::Instance(instance), || {
                let equals = self.members.len();
                (format!("{equals} equals get the same"), format!("from {least} to {most}"))
            });
        }
        self.begin(seen);
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
