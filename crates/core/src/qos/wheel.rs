//! A hierarchical timing wheel: one entry per waiting volume, O(1) to insert, remove and expire.
//!
//! ```text
//!            next_tick
//!               ▼
//!  near  ░░░░░░░█▁▁█▁▁▁▁▁█▁▁  4,096 slots of one tick (50 us): 204.8 ms ahead
//!                                ▲ a far slot is dealt out when its time begins
//!  far   ░░█▁▁▁▁▁▁█▁▁▁▁▁▁▁▁▁  256 slots of 4,096 ticks (204.8 ms): 52 s ahead
//!
//!  due   ■■■■                 expired, in the order of service
//! ```
//!
//! An entry beyond both levels comes out at their horizon, before its time; its owner compares its
//! own deadline and puts it back. That costs one comparison in 52 s, as an overflow list would,
//! without the list.
//!
//! Deadlines are rounded up to a tick, so no entry comes out before its time for another reason.
//! The lists are rings of links in one slab, first in, first out, and an entry is removed from its
//! list when its volume is removed: there are no stale entries. Bitmaps of the occupied slots make
//! the next deadline a few instructions.

mod bitmap;
mod invariants;
mod typed;

use crate::convert::exact;
use alloc::vec;
use alloc::vec::Vec;

use self::bitmap::Bitmap;
pub(crate) use self::typed::WheelOf;
use super::phase::Phase;
use super::slots::{Table, TimerSlot};
use crate::time::{Duration, Instant};

/// The resolution of deadlines. Debt keeps the mean exact with any resolution; 50 us keep a volume
/// of 16,000 IOPS (one request each 62.5 us) even within a request.
pub const TICK: Duration = Duration::from_us(50);

const NEAR_SLOTS: u64 = 4_096;
const FAR_SLOTS: u64 = 256;
const NEAR_LISTS: u16 = 4_096;
const LIST_DUE: u16 = NEAR_LISTS + 256;
const LISTS: usize = 4_096 + 256 + 1;
const NOWHERE: u16 = u16::MAX;

const _: () = assert!(NEAR_SLOTS.is_power_of_two() && FAR_SLOTS.is_power_of_two());
// So a slot's number is always a `u16`, and never `NOWHERE`.
const _: () = assert!(NEAR_SLOTS + FAR_SLOTS < 1 << 16);

/// The list and the neighbours of an entry.
#[derive(Clone, Copy, Debug)]
struct Link {
    next: TimerSlot,
    previous: TimerSlot,
    /// The list in which it is, or `NOWHERE`.
    list: u16,
    /// Near slot of an entry in the far level, for when it is moved there.
    near_slot: u16,
}

/// Memory of each entry, in bytes.
pub(crate) const LINK_BYTES: usize = size_of::<Link>();

impl Link {
    const UNLINKED: Self =
        Self { next: TimerSlot::NONE, previous: TimerSlot::NONE, list: NOWHERE, near_slot: 0 };
}

/// A timing wheel; see the module's text. Its entries are dense from the first; [`WheelOf`] names
/// them by the slots for which they are.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// The first tick that has not been expired.
    next_tick: u64,
    near_occupied: Bitmap<64>,
    far_occupied: Bitmap<4>,
    /// First entry of each list: near slots, far slots, due.
    heads: Vec<TimerSlot>,
    links: Table<TimerSlot, Link>,
}

impl Wheel {
    pub fn new(now: Instant) -> Self {
        Self {
            next_tick: now.ns / TICK.ns,
            near_occupied: Bitmap::new(),
            far_occupied: Bitmap::new(),
            heads: vec![TimerSlot::NONE; LISTS],
            links: Table::new(),
        }
    }

    /// Makes room for `entries` entries. No other function allocates.
    pub fn grow(&mut self, entries: usize) {
        self.links.grow(entries, Link::UNLINKED);
    }

    /// Adds `entry`, which must be in no list. It comes out at `deadline`, or up to a tick later.
    pub fn insert(&mut self, entry: TimerSlot, deadline: Instant, now: Instant) {
        if self.near_occupied.is_empty() && self.far_occupied.is_empty() {
            // The wheel was empty, so it did not advance: catch up.
            self.next_tick = self.next_tick.max(now.ns / TICK.ns);
        }
        let tick = deadline.ns.div_ceil(TICK.ns).max(self.next_tick);
        if tick - self.next_tick < NEAR_SLOTS {
            self.push_near(entry, low_bits(tick));
            return;
        }
        let horizon = (self.next_tick / NEAR_SLOTS + FAR_SLOTS - 1) * NEAR_SLOTS;
        let tick = tick.min(horizon);
        let slot = low_bits(tick / NEAR_SLOTS % FAR_SLOTS);
        self.far_occupied.set(slot);
        self.push_back(NEAR_LISTS + slot, entry);
        self.link(entry).near_slot = low_bits(tick);
    }

    /// Returns whether `entry` is in a list.
    pub fn contains(&self, entry: TimerSlot) -> bool {
        self.links.get(entry).is_some_and(|link| link.list != NOWHERE)
    }

    /// Removes `entry` from its list, if it is in one.
    pub fn remove(&mut self, entry: TimerSlot) {
        let Link { next, previous, list, .. } = *self.link(entry);
        if list == NOWHERE {
            return;
        }
        if next == entry {
            self.vacate(list);
        } else {
            self.link(next).previous = previous;
            self.link(previous).next = next;
            let head = &mut self.heads[usize::from(list)];
            if *head == entry {
                *head = next;
            }
        }
        self.link(entry).list = NOWHERE;
        self.check_without(list);
    }

    /// Moves entries that have expired by `now` to the due list, at most `moves_max` at a time. If
    /// some are left, the next deadline stays in the past, so the caller comes back.
    pub fn advance(&mut self, now: Instant, moves_max: u32) {
        let now_tick = now.ns / TICK.ns;
        let mut moves = moves_max;
        loop {
            let Event { tick, list } = self.next_event();
            if tick > now_tick {
                break;
            }
            self.next_tick = self.next_tick.max(tick);
            moves = match list {
                near if near < NEAR_LISTS => self.expire(near, moves),
                far => self.deal_out(far, moves),
            };
            if moves == 0 {
                return;
            }
        }
        self.next_tick = self.next_tick.max(now_tick + 1);
    }

    /// Moves entries of a near slot, which must not be empty, to the end of the due list in their
    /// order. The ring is cut and joined as a whole; each entry only records its new list. Moves at
    /// most `moves_max`, and at least one. Returns how many more may be moved.
    fn expire(&mut self, list: u16, moves_max: u32) -> u32 {
        debug_assert!(list < NEAR_LISTS && moves_max > 0, "list {list}, {moves_max} moves");
        let head = self.heads[usize::from(list)];
        debug_assert!(!head.is_none(), "list {list} is empty");
        let tail = self.link(head).previous;
        let mut moves = moves_max - 1;
        let mut last = head;
        self.link(last).list = LIST_DUE;
        while last != tail && moves > 0 {
            last = self.link(last).next;
            self.link(last).list = LIST_DUE;
            moves -= 1;
        }
        if last == tail {
            self.vacate(list);
        } else {
            let rest = self.link(last).next;
            self.join(tail, rest);
            self.heads[usize::from(list)] = rest;
        }
        self.append_due(head, last);
        self.check_without(list);
        self.check_touched(LIST_DUE, head);
        self.check_touched(LIST_DUE, last);
        moves
    }

    /// Appends a chain of entries that have already recorded that they are due.
    fn append_due(&mut self, first: TimerSlot, last: TimerSlot) {
        let head = self.heads[usize::from(LIST_DUE)];
        if head.is_none() {
            self.heads[usize::from(LIST_DUE)] = first;
            self.join(last, first);
        } else {
            let tail = self.link(head).previous;
            self.join(tail, first);
            self.join(last, head);
        }
    }

    /// Makes two entries neighbours.
    fn join(&mut self, before: TimerSlot, after: TimerSlot) {
        self.link(before).next = after;
        self.link(after).previous = before;
    }

    /// Moves entries of a far slot to near ones, at most `moves_max`. Returns how many more may be
    /// moved.
    fn deal_out(&mut self, list: u16, moves_max: u32) -> u32 {
        for moves in (0..moves_max).rev() {
            let Some(entry) = self.take_first(list) else { return moves + 1 };
            let slot = self.link(entry).near_slot;
            self.push_near(entry, slot);
        }
        0
    }

    /// Adds `entry`, which must be in no list, to the end of the due list.
    pub fn push_due(&mut self, entry: TimerSlot) {
        self.push_back(LIST_DUE, entry);
    }

    /// Removes the first entry of the due list, and returns it.
    pub fn pop_due(&mut self) -> Option<TimerSlot> {
        self.take_first(LIST_DUE)
    }

    /// Returns whether more than one entry is due.
    pub fn has_many_due(&self) -> bool {
        let head = self.heads[usize::from(LIST_DUE)];
        !head.is_none() && self.links[head].next != head
    }

    /// Removes the first entry of a list, and returns it.
    fn take_first(&mut self, list: u16) -> Option<TimerSlot> {
        let head = self.heads[usize::from(list)];
        if head.is_none() {
            return None;
        }
        let Link { next, previous, .. } = *self.link(head);
        if next == head {
            self.vacate(list);
        } else {
            self.link(next).previous = previous;
            self.link(previous).next = next;
            self.heads[usize::from(list)] = next;
        }
        self.link(head).list = NOWHERE;
        self.check_without(list);
        Some(head)
    }

    /// Marks a list as empty.
    fn vacate(&mut self, list: u16) {
        self.heads[usize::from(list)] = TimerSlot::NONE;
        if list < NEAR_LISTS {
            self.near_occupied.clear(list);
        } else if list < LIST_DUE {
            self.far_occupied.clear(list - NEAR_LISTS);
        }
    }

    /// Returns the due list in order.
    pub fn due(&self) -> impl Iterator<Item = TimerSlot> + '_ {
        let head = self.heads[usize::from(LIST_DUE)];
        core::iter::successors(Some(head).filter(|head| !head.is_none()), move |entry| {
            Some(self.links[*entry].next).filter(|next| *next != head)
        })
    }

    /// Returns when [`Wheel::advance`] has to be called next: never later than any entry's rounded
    /// deadline, earlier only if a far slot has to be distributed. Returns the origin of time while
    /// an entry is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.heads[usize::from(LIST_DUE)].is_none() {
            return Some(Instant::ZERO);
        }
        let Event { tick, .. } = self.next_event();
        (tick < Event::NEVER.tick).then(|| Instant::from_ns(tick.saturating_mul(TICK.ns)))
    }

    /// Returns the earliest occupied slot of both levels. At the same tick the far one comes first,
    /// because its entries may belong to the near one.
    fn next_event(&self) -> Event {
        let near = match self.near_occupied.next_from(low_bits(self.next_tick)) {
            None => Event::NEVER,
            Some(slot) => {
                let ahead = u64::from(slot).wrapping_sub(self.next_tick) % NEAR_SLOTS;
                Event { tick: self.next_tick + ahead, list: slot }
            }
        };
        if self.far_occupied.is_empty() {
            return near;
        }
        let far = self.next_deal_out();
        if near.tick < far.tick { near } else { far }
    }

    /// Returns the earliest occupied slot of the far level.
    fn next_deal_out(&self) -> Event {
        let block = self.next_tick / NEAR_SLOTS;
        let Some(slot) = self.far_occupied.next_from(low_bits(block % FAR_SLOTS)) else {
            return Event::NEVER;
        };
        let ahead = u64::from(slot).wrapping_sub(block) % FAR_SLOTS;
        // `ahead` is 0 if the slot's distribution was interrupted.
        let tick = ((block + ahead) * NEAR_SLOTS).max(self.next_tick);
        Event { tick, list: NEAR_LISTS + slot }
    }

    /// Writes when the only entry comes out. Returns `None` if it is in the far level.
    pub fn tell(&self, entry: TimerSlot, phase: &mut Phase) -> Option<()> {
        let tick = phase.at().ns / TICK.ns;
        let list = self.links[entry].list;
        let ahead = match list {
            NOWHERE => 0,
            LIST_DUE => NEAR_SLOTS,
            slot if slot < NEAR_LISTS => u64::from(slot).wrapping_sub(tick) % NEAR_SLOTS,
            _ => return None,
        };
        // An empty wheel catches up by itself.
        let behind = if list == NOWHERE { 0 } else { tick.wrapping_sub(self.next_tick) };
        phase.words([phase.at().ns % TICK.ns, u64::from(list == NOWHERE), ahead, behind]);
        Some(())
    }

    fn push_near(&mut self, entry: TimerSlot, slot: u16) {
        self.near_occupied.set(slot);
        self.push_back(slot, entry);
    }

    fn push_back(&mut self, list: u16, entry: TimerSlot) {
        debug_assert!(!self.contains(entry), "entry {entry:?} is in a list");
        let head = self.heads[usize::from(list)];
        if head.is_none() {
            self.heads[usize::from(list)] = entry;
            *self.link(entry) = Link { next: entry, previous: entry, list, near_slot: 0 };
            self.check_touched(list, entry);
            return;
        }
        let tail = self.link(head).previous;
        self.link(head).previous = entry;
        self.link(tail).next = entry;
        *self.link(entry) = Link { next: head, previous: tail, list, near_slot: 0 };
        self.check_touched(list, entry);
    }

    fn link(&mut self, entry: TimerSlot) -> &mut Link {
        &mut self.links[entry]
    }
}

/// An action of the wheel at a tick: the entries of a near list become due, or those of a far one
/// move to near ones. Two words that fit into registers: an enum in an option would go through
/// memory, written in parts and read as a whole, which stalls each poll.
#[derive(Clone, Copy)]
struct Event {
    tick: u64,
    list: u16,
}

impl Event {
    const NEVER: Self = Self { tick: u64::MAX, list: NOWHERE };
}

/// Returns the slot number in the low 12 bits.
fn low_bits(tick: u64) -> u16 {
    exact(tick % NEAR_SLOTS, "below NEAR_SLOTS")
}

#[cfg(test)]
mod tests {
    use super::super::slots::Slot;
    use super::*;
    use proptest::prelude::*;

    /// Returns an entry of this number.
    fn e(number: u32) -> TimerSlot {
        TimerSlot::new(number)
    }

    fn due(wheel: &mut Wheel) -> Vec<u32> {
        core::iter::from_fn(|| wheel.pop_due()).map(Slot::number).collect()
    }

    fn index(entry: u32) -> usize {
        usize::try_from(entry).unwrap()
    }

    fn at(ticks: u64) -> Instant {
        Instant::from_ns(ticks * TICK.ns)
    }

    #[test]
    fn a_deadline_is_rounded_up_to_a_tick() {
        let mut wheel = Wheel::new(Instant::ZERO);
        wheel.grow(2);
        wheel.insert(e(0), Instant::from_ns(TICK.ns + 1), Instant::ZERO);
        wheel.insert(e(1), at(1), Instant::ZERO);
        assert_eq!(wheel.next_deadline(), Some(at(1)));
        wheel.advance(at(1), 10);
        assert_eq!(due(&mut wheel), [1]);
        wheel.advance(Instant::from_ns(2 * TICK.ns - 1), 10);
        assert_eq!(due(&mut wheel), []);
        wheel.advance(at(2), 10);
        assert_eq!(due(&mut wheel), [0]);
        assert_eq!(wheel.next_deadline(), None);
    }

    #[test]
    fn entries_of_one_slot_come_out_in_order_however_few_at_a_time() {
        let mut wheel = Wheel::new(Instant::ZERO);
        wheel.grow(100);
        for entry in 0..100 {
            wheel.insert(e(entry), at(10_000), Instant::ZERO);
        }
        let mut out = Vec::new();
        for _ in 0..30 {
            wheel.advance(at(10_000), 7);
            out.extend(due(&mut wheel));
        }
        assert_eq!(out, (0..100).collect::<Vec<u32>>());
    }

    #[test]
    fn deadline_beyond_the_horizon_comes_out_early_and_is_put_back() {
        let mut wheel = Wheel::new(Instant::ZERO);
        wheel.grow(1);
        let deadline = Instant::ZERO + Duration::from_secs(300);
        wheel.insert(e(0), deadline, Instant::ZERO);
        let mut looks = 0;
        let mut now = Instant::ZERO;
        while now < deadline {
            now = wheel.next_deadline().unwrap();
            wheel.advance(now, 10);
            for entry in due(&mut wheel) {
                looks += 1;
                if now < deadline {
                    wheel.insert(e(entry), deadline, now);
                }
            }
        }
        assert_eq!(now, deadline);
        assert!(looks <= 7, "{looks}");
    }

    #[derive(Clone, Debug)]
    enum WheelCall {
        Insert { entry: u32, ahead_ns: u64 },
        Remove { entry: u32 },
        Advance { ahead_ns: u64, moves_max: u32 },
    }

    fn steps() -> impl Strategy<Value = Vec<WheelCall>> {
        let ahead = || {
            prop_oneof![
                0..2 * TICK.ns,
                0..NEAR_SLOTS * TICK.ns,
                0..3 * NEAR_SLOTS * TICK.ns,
                0..2 * FAR_SLOTS * NEAR_SLOTS * TICK.ns
            ]
        };
        let step = prop_oneof![
            4 => (0..16u32, ahead())
                .prop_map(|(entry, ahead_ns)| WheelCall::Insert { entry, ahead_ns }),
            1 => (0..16u32).prop_map(|entry| WheelCall::Remove { entry }),
            3 => (ahead(), 1..20u32)
                .prop_map(|(ahead_ns, moves_max)| WheelCall::Advance { ahead_ns, moves_max }),
        ];
        prop::collection::vec(step, 1..200)
    }

    proptest! {
        /// Compares the wheel with a plain list of deadlines: no entry comes early, late, twice or
        /// never.
        #[test]
        fn the_wheel_behaves_like_a_list_of_deadlines(steps in steps(), start: u32) {
            let mut now = Instant::from_ns(u64::from(start) * 1_000_000);
            let mut wheel = Wheel::new(now);
            wheel.grow(16);
            let mut waiting: [Option<Instant>; 16] = [None; 16];
            for step in steps {
                match step {
                    WheelCall::Insert { entry, ahead_ns } => {
                        wheel.remove(e(entry));
                        let deadline = now + Duration::from_ns(ahead_ns);
                        wheel.insert(e(entry), deadline, now);
                        waiting[index(entry)] = Some(deadline);
                    }
                    WheelCall::Remove { entry } => {
                        wheel.remove(e(entry));
                        waiting[index(entry)] = None;
                    }
                    WheelCall::Advance { ahead_ns, moves_max } => {
                        now = now + Duration::from_ns(ahead_ns);
                        // A caller comes back as long as there is work.
                        while wheel.next_deadline().is_some_and(|d| d <= now) {
                            wheel.advance(now, moves_max);
                            while let Some(entry) = wheel.pop_due().map(Slot::number) {
                                let deadline = waiting[index(entry)].take();
                                prop_assert!(deadline.is_some(), "{entry} was not waiting");
                                let deadline = deadline.unwrap_or(now);
                                if deadline > now {
                                    wheel.insert(e(entry), deadline, now); // beyond the horizon
                                    waiting[index(entry)] = Some(deadline);
                                }
                            }
                        }
                        for (entry, deadline) in waiting.iter().enumerate() {
                            let overdue = deadline.is_some_and(|d| d.ns + TICK.ns <= now.ns);
                            prop_assert!(!overdue, "{entry} should have come out");
                        }
                    }
                }
                wheel.invariants();
                for (entry, deadline) in (0..).zip(&waiting) {
                    prop_assert_eq!(wheel.contains(e(entry)), deadline.is_some(), "{}", entry);
                }
                let first = waiting.iter().flatten().min();
                prop_assert_eq!(first.is_some(), wheel.next_deadline().is_some());
                if let (Some(first), Some(deadline)) = (first, wheel.next_deadline()) {
                    prop_assert!(deadline.ns < first.ns + TICK.ns);
                }
            }
        }
    }
}
