//! The page of a decision: the answers of `evenkeel plan` for the recordings that were judged.
//!
//! A person who reads a decision finds the same answer as in `evenkeel plan` with the same
//! recording. The page is no input of a decision.

use evenkeel_core::volume::VolumeSpec;

use super::evidence::{Evidence, last_day};
use super::policy::Policy;
use crate::case::{Case, Wishes, Workload};
use crate::fleet::alternatives::space;
use crate::refusal::Refusal;
use crate::trace::Trace;

/// Layouts of an answer.
const LAYOUTS_MAX: usize = 3;

/// Returns the answers for volumes, each with its present specification and its recording, as text.
/// The answer for a volume that needs more is about its last 24 hours, as in the evidence.
#[must_use]
pub fn page(
    policy: &Policy,
    volumes: &[(String, VolumeSpec, Trace)],
    evidence: &Evidence,
) -> String {
    let mut pages = Vec::new();
    for (id, spec, trace) in volumes {
        let judged = evidence.volumes.iter().find(|judged| judged.volume == *id);
        let needs_more = judged.is_some_and(|judged| judged.up.is_some());
        let trace =
            if needs_more { last_day(policy, trace, evidence.made_ms) } else { trace.clone() };
        pages.push(answer(policy, *spec, trace).unwrap_or_else(|refusal| refused(id, &refusal)));
    }
    pages.join("\n")
}

/// Returns the answer for one volume. Layouts have its size and are one volume, as a modification
/// makes it.
fn answer(policy: &Policy, spec: VolumeSpec, trace: Trace) -> Result<String, Refusal> {
    let workload = Workload {
        trace,
        is_served: false,
        spec: Some(spec),
        described: None,
        source: None,
        assume: None,
        is_from_cloudwatch: false,
    };
    let wishes = Wishes {
        capacity_gib: Some(spec.size_gib.into()),
        multi_attach: spec.multi_attach,
        headroom_percent: Some(policy.plan.headroom_percent),
        less_durable: policy.plan.less_durable,
        layouts_max: LAYOUTS_MAX,
        ..Wishes::default()
    };
    let case = Case::of_search(workload, space(&policy.plan, &policy.plan.types), wishes)?;
    Ok(case.answer()?.text_without_commands())
}

/// Returns the line about a volume without an answer.
fn refused(id: &str, refusal: &Refusal) -> String {
    let hint = refusal.hint.as_ref().map_or_else(String::new, |hint| format!("; {hint}"));
    format!("{id}: no layout: {}{hint}\n", refusal.message)
}
