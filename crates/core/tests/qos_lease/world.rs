//! A home, its holders and the messages between them, in virtual time. Messages are late, lost,
//! doubled and out of order as a seed has it; a party that is dead or stalled does nothing.

use std::collections::BTreeMap;

use evenkeel_core::qos::lease::{Cap, Grant, Holder, HolderIndex, Home, ToHome};
use evenkeel_core::time::Instant;

pub use crate::support::Rng;

/// What becomes of a message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Net {
    pub delay_ns: (u64, u64),
    pub lost_ppm: u32,
    pub twice_ppm: u32,
    /// So many take up to `late_ns`.
    pub late_ppm: u32,
    pub late_ns: u64,
}

impl Net {
    /// 2 to 12 us, as between cores.
    pub const CORES: Self =
        Self { delay_ns: (2_000, 12_000), lost_ppm: 0, twice_ppm: 0, late_ppm: 0, late_ns: 0 };
}

#[derive(Clone, Copy)]
enum Message {
    ToHome(ToHome),
    ToHolder(usize, Grant),
}

/// One machine: when it runs again, and how far its clock is off.
#[derive(Clone, Copy, Default)]
struct Machine {
    stalled_until: u64,
    clock_ahead_ns: u64,
}

pub struct World {
    pub now: u64,
    cap: Cap,
    net: Net,
    pub rng: Rng,
    pub home: Option<Home>,
    home_machine: Machine,
    pub holders: Vec<Option<Holder>>,
    machines: Vec<Machine>,
    incarnation: u64,
    mail: BTreeMap<(u64, u64), Message>,
    posted: u64,
    /// Messages that were delivered.
    pub delivered: u64,
}

impl World {
    pub fn new(cap: Cap, holders: usize, net: Net, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let now = 1_000_000_000;
        let error = cap.timing.clock_error.ns;
        let mut machine = || Machine { stalled_until: 0, clock_ahead_ns: rng.between(0, error) };
        let home_machine = machine();
        let machines: Vec<_> = (0..holders).map(|_| machine()).collect();
        let home = Home::new(cap, holders, Instant::from_ns(now + home_machine.clock_ahead_ns));
        let mut world = Self {
            now,
            cap,
            net,
            rng,
            home: Some(home),
            home_machine,
            holders: vec![],
            machines,
            incarnation: 0,
            mail: BTreeMap::new(),
            posted: 0,
            delivered: 0,
        };
        for index in 0..holders {
            world.holders.push(None);
            world.restart(index);
        }
        world
    }

    fn clock(&self, machine: Machine) -> Instant {
        Instant::from_ns(self.now + machine.clock_ahead_ns)
    }

    pub fn runs(&self, index: usize) -> bool {
        self.holders[index].is_some() && self.machines[index].stalled_until <= self.now
    }

    /// Whether `index` may spend `cost` now.
    pub fn take(&mut self, index: usize, cost: u64) -> bool {
        let now = self.clock(self.machines[index]);
        let may = self.runs(index)
            && self.holders[index].as_mut().is_some_and(|holder| holder.take(cost, now));
        self.collect(index);
        may
    }

    pub fn abandon(&mut self, index: usize) {
        let now = self.clock(self.machines[index]);
        if self.runs(index) {
            self.holders[index].as_mut().unwrap().abandon(now);
        }
        self.collect(index);
    }

    /// A new life of a holder; the old one, if any, ends.
    pub fn restart(&mut self, index: usize) {
        self.incarnation += 1;
        let name = HolderIndex(u16::try_from(index).unwrap());
        let now = self.clock(self.machines[index]);
        self.holders[index] = Some(Holder::new(self.cap, name, self.incarnation, now));
    }

    /// A new home, with new holders.
    pub fn replace_home(&mut self) {
        let now = self.clock(self.home_machine);
        self.home = Some(Home::replacing(self.cap, self.holders.len(), now));
        (0..self.holders.len()).for_each(|index| self.restart(index));
    }

    pub fn forget(&mut self, index: usize) {
        let now = self.clock(self.home_machine);
        if let Some(home) = &mut self.home {
            home.forget(HolderIndex(u16::try_from(index).unwrap()), now);
        }
        self.collect_home();
    }

    pub fn stall_home(&mut self, ns: u64) {
        self.home_machine.stalled_until = self.now + ns;
    }

    pub fn stall(&mut self, index: usize, ns: u64) {
        self.machines[index].stalled_until = self.now + ns;
    }

    pub fn set_net(&mut self, net: Net) {
        self.net = net;
    }

    /// When something happens next by itself.
    pub fn next_due(&self) -> Option<u64> {
        let at = |machine: Machine, due: Option<Instant>| {
            let due = due?.ns.saturating_sub(machine.clock_ahead_ns);
            Some(due.max(machine.stalled_until).max(self.now))
        };
        let home = at(self.home_machine, self.home.as_ref().and_then(Home::poll_timeout));
        let holders = self.holders.iter().zip(&self.machines).filter_map(|(holder, machine)| {
            at(*machine, holder.as_ref().and_then(Holder::poll_timeout))
        });
        let mail = self.mail.keys().next().map(|key| key.0);
        holders.chain(home).chain(mail).min()
    }

    /// Does what is due now; of those that got a message or were woken.
    pub fn step(&mut self) -> Vec<usize> {
        let mut touched = Vec::new();
        while let Some(entry) = self.mail.first_entry()
            && entry.key().0 <= self.now
        {
            match entry.remove() {
                Message::ToHome(message) => self.deliver_home(message),
                Message::ToHolder(index, grant) => {
                    self.deliver(index, grant);
                    touched.push(index);
                }
            }
        }
        let now = self.clock(self.home_machine);
        if let Some(home) = &mut self.home
            && self.home_machine.stalled_until <= self.now
            && home.poll_timeout().is_some_and(|due| due <= now)
        {
            home.poll(now);
            self.collect_home();
        }
        for index in 0..self.holders.len() {
            let now = self.clock(self.machines[index]);
            if self.runs(index)
                && let Some(holder) = &mut self.holders[index]
                && holder.poll_timeout().is_some_and(|due| due <= now)
            {
                holder.poll(now);
                touched.push(index);
                self.collect(index);
            }
        }
        touched
    }

    fn deliver_home(&mut self, message: ToHome) {
        let Some(home) = &mut self.home else { return };
        let stalled_until = self.home_machine.stalled_until;
        if stalled_until > self.now {
            self.posted += 1;
            self.mail.insert((stalled_until, self.posted), Message::ToHome(message));
            return;
        }
        self.delivered += 1;
        home.handle(message, Instant::from_ns(self.now + self.home_machine.clock_ahead_ns));
        self.collect_home();
    }

    fn deliver(&mut self, index: usize, grant: Grant) {
        let machine = self.machines[index];
        if machine.stalled_until > self.now {
            self.posted += 1;
            let key = (machine.stalled_until, self.posted);
            self.mail.insert(key, Message::ToHolder(index, grant));
            return;
        }
        self.delivered += 1;
        let now = self.clock(machine);
        if let Some(holder) = &mut self.holders[index] {
            holder.handle(&grant, now);
        }
        self.collect(index);
    }

    fn collect(&mut self, index: usize) {
        while let Some(message) = self.holders[index].as_mut().and_then(Holder::poll_output) {
            self.post(Message::ToHome(message));
        }
    }

    fn collect_home(&mut self) {
        while let Some(grant) = self.home.as_mut().and_then(Home::poll_output) {
            self.post(Message::ToHolder(usize::from(grant.holder.0), grant));
        }
    }

    fn post(&mut self, message: Message) {
        let net = self.net;
        let copies = 1 + u64::from(self.rng.chance_ppm(net.twice_ppm));
        for _ in 0..copies {
            if self.rng.chance_ppm(net.lost_ppm) {
                continue;
            }
            let (low, high) = net.delay_ns;
            let late = self.rng.chance_ppm(net.late_ppm);
            let delay = self.rng.between(low, if late { net.late_ns.max(low) } else { high });
            self.posted += 1;
            self.mail.insert((self.now + delay, self.posted), message);
        }
    }
}
