//! Line 4: credits are spent to the last one and no further, and reported exactly.
//!
//! Credits that end too early show in the floor: while a balance is left, a backlogged volume is
//! promised its burst rate.

use super::super::event::{Event, Sample};
use super::super::instances;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::token_level::Level;
use super::super::volumes::Limited;
use super::{NAMES, Watcher, units_text};

#[derive(Debug)]
pub(super) struct Credits;

impl Watcher for Credits {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        match event {
            Event::Dispatched(dispatched) => {
                if let Some(volume) = seen.volume(dispatched.volume) {
                    let whose = Whose::Volume(dispatched.volume);
                    spend(&volume.limits, &dispatched.charge(), whose, seen, findings);
                }
                if let Some(instance) = seen.instance(dispatched.instance) {
                    let whose = Whose::Instance(dispatched.instance);
                    spend(&instance.limits, &instances::charge(dispatched), whose, seen, findings);
                }
            }
            Event::Sampled { sample: Sample::VolumeBalances { volume: number, units }, .. } => {
                if let Some(volume) = seen.volume(*number) {
                    compare(&volume.limits, *units, Whose::Volume(*number), seen, findings);
                }
            }
            Event::Sampled { sample: Sample::InstanceBalances { instance, units }, .. } => {
                let whose = Whose::Instance(*instance);
                if let Some(instance) = seen.instance(*instance) {
                    compare(&instance.limits, *units, whose, seen, findings);
                }
            }
            _ => {}
        }
    }
}

/// Judges that a volume in debt of credits spends nothing.
fn spend(
    limits: &[Option<Limited>],
    charge: &[u64],
    whose: Whose,
    seen: &Seen,
    findings: &mut Findings,
) {
    for (dimension, (limited, units)) in limits.iter().zip(charge).enumerate() {
        let credit = limited.as_ref().and_then(|limited| limited.credit.as_ref());
        let Some(credit) = credit.filter(|_| *units > 0) else { continue };
        findings.judge(Rule::Credits, credit.level >= 0, seen.now, whose, || {
            let name = NAMES[dimension];
            let balance = units_text(credit.level);
            (format!("a balance of {name} before {units} are spent"), format!("balance {balance}"))
        });
    }
}

fn compare(
    limits: &[Option<Limited>],
    reported: [Option<u64>; 2],
    whose: Whose,
    seen: &Seen,
    findings: &mut Findings,
) {
    for (dimension, (limited, reported)) in limits.iter().zip(reported).enumerate() {
        let credit = limited.as_ref().and_then(|limited| limited.credit.as_ref());
        if credit.is_none() && reported.is_none() {
            continue;
        }
        let exact = credit.map(Level::balance);
        findings.judge(Rule::Credits, exact == reported, seen.now, whose, || {
            let name = NAMES[dimension];
            (format!("a balance of {exact:?} {name}"), format!("{reported:?}"))
        });
    }
}
