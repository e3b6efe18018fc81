//! Line 5: the limits of a client host and of the device hold beside those of a volume.

use super::super::event::{Dispatched, Event, Sample};
use super::super::instances;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::token_level::Level;
use super::{NAMES, Watcher, units_text};

#[derive(Debug)]
pub(super) struct Hierarchy;

impl Watcher for Hierarchy {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        match event {
            Event::Dispatched(dispatched) => {
                of_instance(dispatched, seen, findings);
                of_device(dispatched, seen, findings);
            }
            Event::Sampled { sample: Sample::Window { cost_ns }, .. } => {
                window(*cost_ns, seen, findings);
            }
            _ => {}
        }
    }
}

fn of_instance(dispatched: &Dispatched, seen: &Seen, findings: &mut Findings) {
    let Some(instance) = seen.instance(dispatched.instance) else { return };
    let whose = Whose::Instance(dispatched.instance);
    let mut judge = |level: &Level, name: &str| {
        findings.judge(Rule::Hierarchy, level.is_ready(), seen.now, whose, || {
            let expected = format!("{name} within {} a second", level.rate);
            (expected, format!("{} ahead before one more", units_text(level.depth - level.level)))
        });
    };
    let charge = instances::charge(dispatched);
    for (dimension, (limited, units)) in instance.limits.iter().zip(charge).enumerate() {
        if let Some(limited) = limited.as_ref().filter(|_| units > 0) {
            judge(&limited.pacer, NAMES[dimension]);
        }
    }
    let link =
        instances::link_of(dispatched.direction).and_then(|index| instance.links[index].as_ref());
    if let Some(link) = link.filter(|_| dispatched.length > 0) {
        judge(link, "bytes of the link");
    }
}

fn of_device(dispatched: &Dispatched, seen: &Seen, findings: &mut Findings) {
    let device = &seen.device;
    if device.window_ns == u64::MAX || dispatched.device_cost_ns == 0 {
        return;
    }
    // A reported window is the present one. It may have been different at the time of this
    // dispatch.
    let (before_ns, most_ns) = match &device.work {
        None => (device.cost_ns, device.window_ns.saturating_sub(1)),
        Some(work) => {
            let dearest_ns = device.dearest_ns().max(dispatched.device_cost_ns);
            (device.cost_ns + dispatched.device_cost_ns, work.slots_max.saturating_mul(dearest_ns))
        }
    };
    // A window smaller than one request allows one at a time.
    let kept = before_ns <= most_ns || device.pieces == 0;
    findings.judge(Rule::Hierarchy, kept, seen.now, Whose::Node, || {
        let expected = format!("at most {most_ns} ns of device in flight");
        (expected, format!("{before_ns} ns, {} pieces before one more", device.pieces))
    });
}

/// Judges a reported window: it must be large enough to keep all channels busy.
fn window(told_ns: u64, seen: &Seen, findings: &mut Findings) {
    let Some(work) = &seen.device.work else { return };
    let least_ns = work.window_min_ns();
    findings.judge(Rule::Hierarchy, told_ns >= least_ns, seen.now, Whose::Node, || {
        (format!("a window of at least {least_ns} ns"), format!("{told_ns} ns"))
    });
}
