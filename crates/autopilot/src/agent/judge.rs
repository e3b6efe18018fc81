//! The evidence of the recordings, made in a thread of its own: a replay of weeks takes seconds.

use crate::counters::Counters;
use crate::journal::Folder;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::instance;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::evidence::{Evidence, JUDGEMENTS_A_DAY_MAX, evidence};
use evenkeel_planner::autopilot::observation::{Observation, VolumeState};
use evenkeel_planner::autopilot::page::page;
use evenkeel_planner::autopilot::policy::Policy;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

/// Makes the evidence of a file system's recordings.
#[derive(Default)]
pub struct Judge {
    /// When the last judgement began, in milliseconds since 1970.
    begun_ms: Option<u64>,
    /// The volumes of it.
    judged: Vec<(String, VolumeSpec)>,
    running: Option<Receiver<Evidence>>,
}

impl Judge {
    /// Returns new evidence, if a judgement has ended. Begins one if it is due. The thread of a
    /// judgement also keeps its page in `folder`. Evidence from before `changed_ms` does not count.
    pub fn look(
        &mut self,
        policy: &Policy,
        counters: &Counters,
        folder: &Folder,
        seen: &Observation,
        changed_ms: Option<u64>,
    ) -> Option<Evidence> {
        let made = match self.running.as_ref().map(Receiver::try_recv) {
            Some(Ok(made)) => Some(made),
            Some(Err(TryRecvError::Empty)) => return None,
            Some(Err(TryRecvError::Disconnected)) | None => None,
        };
        self.running = None;
        let attached = seen.volumes.iter().filter(|volume| volume.state == VolumeState::Attached);
        let volumes: Vec<(String, VolumeSpec)> =
            attached.map(|volume| (volume.id.clone(), volume.spec)).collect();
        if self.is_due(policy, seen, changed_ms, &volumes) {
            self.begin(policy, counters, folder, seen, volumes);
        }
        made
    }

    fn is_due(
        &self,
        policy: &Policy,
        seen: &Observation,
        changed_ms: Option<u64>,
        volumes: &[(String, VolumeSpec)],
    ) -> bool {
        let Some(begun_ms) = self.begun_ms else { return !volumes.is_empty() };
        let age_ms = seen.unix_ms.saturating_sub(begun_ms);
        let waits = |exceeded_s: Option<u32>| {
            exceeded_s.is_some_and(|exceeded_s| exceeded_s > policy.rate.exceeded_s_max)
        };
        let is_pressed = seen.volumes.iter().any(|volume| waits(volume.exceeded_s));
        let is_older = changed_ms.is_some_and(|changed_ms| begun_ms <= changed_ms);
        let has_changed = is_older || volumes != self.judged;
        let day_ms = policy.day_ms();
        age_ms >= day_ms || (age_ms >= day_ms / JUDGEMENTS_A_DAY_MAX && (is_pressed || has_changed))
    }

    fn begin(
        &mut self,
        policy: &Policy,
        counters: &Counters,
        folder: &Folder,
        seen: &Observation,
        volumes: Vec<(String, VolumeSpec)>,
    ) {
        let (sender, receiver) = sync_channel(1);
        let policy = policy.clone();
        let counters = counters.clone();
        let folder = folder.clone();
        self.judged.clone_from(&volumes);
        let now_ms = seen.unix_ms;
        let host = seen.instance.as_ref();
        let host = host.and_then(|host| instance::by_name(&host.instance_type));
        let work = move || {
            // A day beside those that lower a limit, as far as they are kept.
            let days = policy.rate.days.saturating_add(1).min(crate::counters::DAYS);
            let from_ms = now_ms.saturating_sub(u64::from(days) * policy.day_ms());
            let trace = |(id, spec): (String, VolumeSpec)| {
                let volume: VolumeId = id.parse().ok()?;
                let trace = counters.trace(volume, &spec, from_ms, now_ms)?;
                Some((id, spec, trace))
            };
            let traces: Vec<_> = volumes.into_iter().filter_map(trace).collect();
            let made = evidence(&policy, &traces, host, now_ms);
            // Without a receiver the agent has ended.
            let _ = sender.send(made.clone());
            // No decision depends on the page. `explain` says that it is not kept.
            let _ = folder.keep_page(&made, &page(&policy, &traces, &made));
        };
        // Without a thread the next tick tries again.
        let spawned = std::thread::Builder::new().name("evidence".to_owned()).spawn(work);
        if spawned.is_ok() {
            self.begun_ms = Some(now_ms);
            self.running = Some(receiver);
        }
    }
}
