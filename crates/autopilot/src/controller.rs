//! The controller: observes, decides, stores, and executes the steps that are due.
//!
//! The order of a tick keeps what a kill at any instant needs: the state with new operations is
//! durable before the first step, and the next tick begins with another observation. The journal
//! says which operations are wanted and why; how far they are is only observed.

mod act;
mod look;

use crate::audit::{self, Inputs};
use crate::{Cloud, Fault, Host, Journal, Memory, Orders, Ticked};
use evenkeel_planner::autopilot::policy::{Mode, Policy};
use evenkeel_planner::autopilot::state::Hold;
use evenkeel_planner::autopilot::{Evidence, Step, decide, state};
use std::collections::BTreeMap;

/// The controller of one file system.
pub struct Controller<H, C, J> {
    /// The host.
    pub host: H,
    /// The API.
    pub cloud: C,
    /// The memory.
    pub journal: J,
    /// The policy of the file system's group.
    pub policy: Policy,
    /// SHA-256 of the policy's text, in hexadecimal digits; empty if it has none.
    pub policy_digest: String,
    /// The evidence of the volumes' recordings, if they were judged.
    pub evidence: Option<Evidence>,
    /// The last readings of each source.
    readings: look::Readings,
    /// The memory, since it was loaded.
    memory: Option<Memory>,
    /// Steps that were refused, by operation, and how often in a row.
    refused: BTreeMap<String, (Step, u32)>,
}

impl<H: Host, C: Cloud, J: Journal> Controller<H, C, J> {
    /// Creates a controller that has observed nothing yet.
    #[must_use]
    pub fn new(host: H, cloud: C, journal: J, policy: Policy) -> Self {
        Self {
            host,
            cloud,
            journal,
            policy,
            policy_digest: String::new(),
            evidence: None,
            readings: look::Readings::default(),
            memory: None,
            refused: BTreeMap::new(),
        }
    }

    /// Observes, decides and executes at most one step of each open operation.
    ///
    /// # Errors
    /// If the journal cannot be read or written. Then nothing is executed; after an error of the
    /// last writes of a tick, its steps were executed.
    pub fn tick(&mut self, unix_ms: u64) -> Result<Ticked, Fault> {
        let result = self.try_tick(unix_ms);
        if result.is_err() {
            // The journal is the truth after a failed write, not a copy of it.
            self.memory = None;
        }
        result
    }

    fn try_tick(&mut self, unix_ms: u64) -> Result<Ticked, Fault> {
        let orders = self.journal.orders()?;
        self.look(unix_ms);
        let Some(uuid) = self.readings.uuid() else {
            return Ok(self.unobserved());
        };
        let mut memory = match self.memory.take() {
            Some(memory) => memory,
            None => self.journal.load(&uuid)?,
        };
        let Some(observation) = self.observation(unix_ms, &mut memory.history) else {
            return Ok(self.unobserved());
        };
        obey(&orders, &mut memory, unix_ms);
        let mut policy = self.policy.clone();
        policy.is_paused |= orders.pause.is_some();
        let (decision, after) = decide(&policy, &observation, &memory.state);
        let inputs = Inputs {
            policy: &policy,
            digest: &self.policy_digest,
            observation: &observation,
            state: &memory.state,
        };
        let has_audit = self.journal.has_audit();
        let line = has_audit.then(|| audit::decided(&inputs, &decision)).transpose()?;
        memory.state = after;
        let acts = policy.mode == Mode::Act && !decision.is_stopped;
        if acts {
            for intent in &decision.intents {
                state::begun(&mut memory.state, intent, unix_ms);
            }
            act::adopt(&mut memory.state, &observation);
        }
        if let Some(line) = line {
            self.journal.audit(unix_ms, &line)?;
        }
        self.journal.store(&uuid, &memory)?;
        let mut steps = Vec::new();
        if acts {
            let before = memory.clone();
            steps = self.act(&policy, &observation, &decision, &mut memory.state);
            if has_audit && !steps.is_empty() {
                let line = audit::executed(&decision.id, unix_ms, &steps)?;
                self.journal.audit(unix_ms, &line)?;
            }
            if memory != before {
                self.journal.store(&uuid, &memory)?;
            }
        }
        self.memory = Some(memory);
        let faults = self.readings.faults.clone();
        Ok(Ticked { observation: Some(observation), decision: Some(decision), steps, faults })
    }

    /// Returns a tick without an observation.
    fn unobserved(&self) -> Ticked {
        let faults = self.readings.faults.clone();
        Ticked { observation: None, decision: None, steps: Vec::new(), faults }
    }

    /// Returns when the last change ended that outdates the evidence, in milliseconds since 1970.
    #[must_use]
    pub fn last_change_ms(&self) -> Option<u64> {
        self.memory.as_ref()?.state.last_change_ms()
    }

    /// Returns the number of operations that have not ended.
    #[must_use]
    pub fn open_operations(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.state.open.len())
    }
}

/// Puts the orders of a person into the memory.
fn obey(orders: &Orders, memory: &mut Memory, unix_ms: u64) {
    if orders.released_ms > memory.released_ms {
        memory.released_ms = orders.released_ms;
        memory.state.hold = None;
        memory.state.failures = 0;
        memory.state.failure = None;
    }
    if let Some(held) = orders.hold.as_ref().filter(|held| held.until_ms > unix_ms) {
        let until_ms = held.until_ms;
        let reason = held.reason.clone();
        memory.state.hold = Some(Hold { until_ms, reason, allows_growth: false });
    }
}
